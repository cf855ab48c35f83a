#!/usr/bin/env python3
"""Runs attree_bench on a set of shapes and writes a report: numbers, a table, plots.

Usage: scripts/report.py [--quick] [--bench PATH] [--out DIR] [--from FILE.json]

Into DIR go
  report.json   the machine and all results, in Google Benchmark's format (scripts/bench_compare.py reads it, too)
  report.md     the machine and a table of medians over the repetitions
  decode.svg    GB/s and time against the length of the context, per type of K and V
  prefill.svg   GFLOP/s against the length of the prompt
  threads.svg   speed against threads
  unfused.svg   how many times longer sgemm, softmax, sgemm takes
  memory.svg    attree's workspace and the unfused scores; the caches

The limits in the plots are those that attree_bench measures in turn with the cases. --from makes table and plots of a
file that was written before, also of one that attree_bench wrote. Plots need matplotlib: on Debian, apt-get install
python3-matplotlib, which is for /usr/bin/python3. The exit status is 1 when a case failed.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Optional

try:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker
except ImportError:
    pyplot = None

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADS = "H32/G8/D128"  # Llama 3 8B
NAME = re.compile(
    r"(?P<phase>decode|prefill)/(?P<type>\w+)/(?P<heads>H\d+/G\d+/D\d+)/Q(?P<queries>\d+)/K(?P<keys>\d+)"
    r"/(?P<mask>full|causal)/T(?P<threads>\d+)"
)
LIMIT_NAME = re.compile(r"roofline/(?P<limit>read|fma_f32)/T(?P<threads>\d+)")
MICROSECONDS = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}
STYLES = {  # colour and marker of a type, the same in all plots
    "f32": ("tab:blue", "o"),
    "f16": ("tab:orange", "s"),
    "bf16": ("tab:olive", "p"),
    "i8": ("tab:green", "^"),
    "q8_0": ("tab:red", "D"),
    "q4_0": ("tab:purple", "v"),
    "f8": ("tab:brown", "P"),
    "f8_e5m2": ("tab:olive", "X"),
}


# ---- Running ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """What is measured, and how often."""

    decode_types: tuple[str, ...]
    decode_keys: tuple[int, ...]
    prefill_types: tuple[str, ...]
    prefill_tokens: tuple[int, ...]
    scaling_types: tuple[str, ...]  # of decode on fewer threads
    repetitions: int
    min_time: float


QUICK = Plan(
    decode_types=("f32", "f16", "i8", "q8_0", "q4_0"),
    decode_keys=(512, 2048, 8192),
    prefill_types=("f32", "f16"),
    prefill_tokens=(128, 512, 2048),
    scaling_types=("f32", "q8_0"),
    repetitions=3,
    min_time=0.1,
)
FULL = Plan(
    decode_types=("f32", "f16", "bf16", "i8", "q8_0", "q4_0", "f8", "f8_e5m2"),
    decode_keys=(128, 512, 2048, 8192, 32768),
    prefill_types=("f32", "f16", "bf16"),
    prefill_tokens=(64, 128, 256, 512, 1024, 2048),
    scaling_types=("f32", "f16", "i8", "q8_0", "q4_0"),
    repetitions=5,
    min_time=0.3,
)


def processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def thread_counts() -> list[int]:
    """1, 2, 4, ... and all, as attree_bench counts."""
    most = processors()
    return [2**n for n in range(most.bit_length()) if 2**n < most] + [most]


def shapes(plan: Plan) -> list[str]:
    *fewer, most = thread_counts()

    def decode(kind: str, keys: int, threads: int) -> str:
        return f"decode/{kind}/{HEADS}/Q1/K{keys}/full/T{threads}"

    def prefill(kind: str, tokens: int, threads: int) -> str:
        return f"prefill/{kind}/{HEADS}/Q{tokens}/K{tokens}/causal/T{threads}"

    names = [decode(kind, keys, most) for keys in plan.decode_keys for kind in plan.decode_types]
    names += [prefill(kind, tokens, most) for tokens in plan.prefill_tokens for kind in plan.prefill_types]
    for threads in fewer:
        names += [decode(kind, 8192, threads) for kind in plan.scaling_types]
        names += [prefill(kind, 512, threads) for kind in plan.prefill_types]
    return names


def run_bench(bench: pathlib.Path, arguments: list[str]) -> dict[str, Any]:
    """What attree_bench writes; what it prints is to be seen meanwhile. That a case fails is in the results."""
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder) / "out.json"
        command = [str(bench), f"--benchmark_out={output}", *arguments]
        status = subprocess.run(command, check=False).returncode
        text = output.read_text(encoding="utf-8") if output.exists() else ""
    if not text.strip():
        raise SystemExit(f"report.py: {bench} wrote no results; its exit status is {status}")
    return json.loads(text)


def cpu_facts() -> dict[str, str]:
    """The first processor's model; empty where there is no /proc/cpuinfo."""
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return {}
    facts = dict(re.findall(r"^([^\t:]+)[\t ]*: (.*)$", text.split("\n\n")[0], flags=re.MULTILINE))
    found = {"cpu": facts.get("model name", "")}
    if "cpu family" in facts and "model" in facts:
        found["cpu_model"] = f"family {facts['cpu family']}, model {facts['model']}"
    return {key: value for key, value in found.items() if value}


def merged_results(runs: list[dict[str, Any]], mode: str) -> dict[str, Any]:
    """One file of several; without the names of the host and of paths on it, and without aggregates."""
    context = {key: value for key, value in runs[0]["context"].items() if key not in ("host_name", "executable")}
    context.update(cpu_facts(), machine=platform.machine(), system=platform.system(), report=mode)
    rows = [row for run in runs for row in run["benchmarks"] if row.get("run_type", "iteration") == "iteration"]
    dropped = ("family_index", "per_family_instance_index", "run_name")
    return {"context": context, "benchmarks": [{k: v for k, v in row.items() if k not in dropped} for row in rows]}


def write_results(results: dict[str, Any], path: pathlib.Path) -> None:
    """JSON with a line for each repetition."""
    rows = ",\n".join(json.dumps(row) for row in results["benchmarks"])
    path.write_text(f'{{"context": {json.dumps(results["context"])},\n"benchmarks": [\n{rows}\n]}}\n', encoding="utf-8")


def measure(bench: pathlib.Path, plan: Plan, mode: str) -> dict[str, Any]:
    common = [f"--benchmark_repetitions={plan.repetitions}", f"--benchmark_min_time={plan.min_time}"]
    limits = run_bench(bench, ["--short", "--benchmark_filter=^roofline/", *common])
    names = [argument for name in shapes(plan) for argument in ("--shape", name)]
    return merged_results([limits, run_bench(bench, names + common)], mode)


# ---- Results ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A case's medians over its repetitions."""

    name: str
    values: dict[str, float]  # the counters; time_us, spread, workspace_mb, cache_mb
    errors: tuple[str, ...]
    phase: str = ""  # this and what follows: of decode and prefill in no special layout
    type: str = ""
    heads: str = ""
    length: int = 0
    threads: int = 0

    def get(self, key: str) -> Optional[float]:
        return self.values.get(key)

    def limit(self, rate: str, fraction: str) -> Optional[float]:
        """The machine's limit while this case ran, from a rate and its fraction of the limit."""
        return self.values[rate] / self.values[fraction] if self.values.get(fraction) else None


def medians(rows: list[dict[str, Any]]) -> dict[str, float]:
    skipped = ("family_index", "per_family_instance_index", "repetitions", "repetition_index", "threads")
    keys = {key for row in rows for key, value in row.items() if isinstance(value, (int, float))} - set(skipped)
    values = {key: statistics.median(row[key] for row in rows if key in row) for key in keys}
    times = [row["real_time"] * MICROSECONDS[row["time_unit"]] for row in rows]
    values["time_us"] = statistics.median(times)
    if len(times) > 1:
        values["spread"] = (max(times) - min(times)) / values["time_us"]
    if workspace := re.search(r"workspace (\d+) bytes", rows[0].get("label", "")):
        values["workspace_mb"] = int(workspace.group(1)) * 1e-6
    if "GBs" in values:
        values["cache_mb"] = statistics.median(row["GBs"] * time for row, time in zip(rows, times)) * 1e-3
    return values


def make_case(name: str, rows: list[dict[str, Any]]) -> Case:
    good = [row for row in rows if not row.get("error_occurred")]
    errors = tuple(row.get("error_message", "failed") for row in rows if row.get("error_occurred"))
    values = medians(good) if good else {}
    found = NAME.fullmatch(name)
    if not found:
        return Case(name, values, errors)
    length, threads = int(found["keys"]), int(found["threads"])
    return Case(name, values, errors, found["phase"], found["type"], found["heads"], length, threads)


def read_cases(results: dict[str, Any]) -> list[Case]:
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in results["benchmarks"]:
        if row.get("run_type", "iteration") == "iteration":
            rows.setdefault(row["name"], []).append(row)
    return [make_case(name, mine) for name, mine in rows.items()]


def plotted_cases(cases: list[Case]) -> list[Case]:
    """Those that plots are of: without errors, all with the same heads."""
    good = [case for case in cases if case.phase and case.values]
    if not good:
        return []
    heads = Counter(case.heads for case in good).most_common(1)[0][0]
    return [case for case in good if case.heads == heads]


# ---- The table -------------------------------------------------------------------------------------------------------


def format_time(value: float) -> str:
    return f"{value:.1f} us" if value < 1e3 else f"{value * 1e-3:.2f} ms" if value < 1e6 else f"{value * 1e-6:.2f} s"


def percent(value: float) -> str:
    return f"{value * 100.0:.0f} %"


def times(value: float) -> str:
    return f"{value:.2f}x"


def decimals(count: int) -> Callable[[float], str]:
    return lambda value: f"{value:.{count}f}"


COLUMNS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("time", "time_us", format_time),
    ("spread", "spread", percent),
    ("GB/s", "GBs", decimals(2)),
    ("of bandwidth", "of_bandwidth", percent),
    ("GFLOP/s", "GFLOPs", decimals(1)),
    ("of FMA peak", "of_peak", percent),
    ("vs unfused", "vs_unfused", times),
    ("vs f16", "vs_f16", times),
    ("workspace MB", "workspace_mb", decimals(3)),
    ("unfused MB", "unfused_mb", decimals(3)),
    ("max error", "max_error", lambda value: f"{value:.1e}"),
)


def cell(case: Case, key: str, show: Callable[[float], str]) -> str:
    value = case.get(key)
    return "" if value is None or (key == "time_us" and LIMIT_NAME.fullmatch(case.name)) else show(value)


def table(cases: list[Case]) -> list[str]:
    columns = [column for column in COLUMNS if any(case.get(column[1]) is not None for case in cases)]
    lines = ["| case | " + " | ".join(title for title, _, _ in columns) + " |", "|---|" + "---:|" * len(columns)]
    for case in cases:
        cells = [cell(case, key, show) for _, key, show in columns]
        lines.append(f"| `{case.name}` | " + " | ".join(cells) + " |")
        lines += [f"| ERROR: {error} |" + " |" * len(columns) for error in sorted(set(case.errors))]
    return lines


def machine_lines(context: dict[str, Any]) -> list[str]:
    caches = [f"L{c['level']} {c['type'].lower()} {c['size'] // 1024} KiB" for c in context.get("caches", [])]
    facts = (
        ("CPU", ", ".join(context[key] for key in ("cpu", "cpu_model", "machine") if context.get(key))),
        ("processors", f"{context.get('num_cpus', '?')} at {context.get('mhz_per_cpu', '?')} MHz"),
        ("caches", ", ".join(caches)),
        ("load average before", ", ".join(f"{load:.2f}" for load in context.get("load_avg", []))),
        ("kernels", context.get("attree_isa", "")),
        ("attree", context.get("attree_version", "")),
        ("unfused baseline", context.get("unfused_baseline", "")),
        ("date", context.get("date", "")),
        ("set of cases", context.get("report", "")),
    )
    return [f"- {name}: {value}" for name, value in facts if value]


def busy_lines(context: dict[str, Any]) -> list[str]:
    """A warning when others had more than half of a processor as the run began."""
    load = context.get("load_avg", [])
    if not load or load[0] <= 0.5:
        return []
    return [f"**The machine was busy, load average {load[0]:.1f}: times on all processors are too long.**", ""]


def markdown(results: dict[str, Any], cases: list[Case], plots: list[str]) -> str:
    lines = ["# Report of attree_bench", "", *machine_lines(results["context"]), ""]
    lines += busy_lines(results["context"])
    lines += ["Medians over the repetitions; spread is the range of their times over the median. Limits are measured"]
    lines += ["in turn with each case. `attree_bench --help` says what the names and the columns mean.", ""]
    lines += [f"![{plot}]({plot}.svg)" for plot in plots] + ([""] if plots else [])
    lines += table(cases) if cases else ["There are no results."]
    return "\n".join(lines) + "\n"


# ---- Plots -----------------------------------------------------------------------------------------------------------

Point = tuple[float, float]


def series(cases: Iterable[Case], value: Callable[[Case], Optional[float]]) -> list[Point]:
    """Median against length, without the cases that have no such value."""
    found: dict[int, list[float]] = {}
    for case in cases:
        number = value(case)
        if number is not None:
            found.setdefault(case.length, []).append(number)
    return [(length, statistics.median(numbers)) for length, numbers in sorted(found.items())]


def draw_line(axes: Any, points: list[Point], label: str, **style: Any) -> None:
    if points:
        axes.plot([x for x, _ in points], [y for _, y in points], label=label, linewidth=1.2, markersize=4, **style)


def draw_types(axes: Any, cases: list[Case], key: str, suffix: str = "", line: str = "-") -> None:
    for kind, (colour, marker) in STYLES.items():
        mine = [case for case in cases if case.type == kind]
        draw_line(axes, series(mine, lambda c: c.get(key)), kind + suffix, color=colour, marker=marker, linestyle=line)


def draw_limit(axes: Any, cases: list[Case], rate: str, fraction: str, label: str) -> None:
    draw_line(axes, series(cases, lambda c: c.limit(rate, fraction)), label, color="black", linestyle="--")


def finish(axes: Any, x: str, y: str, title: str, zero: bool = True) -> None:
    """Axes and legend; the y axis begins at 0 or is logarithmic."""
    lengths = sorted({int(value) for line in axes.get_lines() for value in line.get_xdata()})
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths)
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:.0f}"))
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    if zero:
        axes.set_ylim(bottom=0)
    else:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(ticker.NullLocator())
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title, fontsize=10)
    axes.grid(which="major", linewidth=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8)


def on_most_threads(cases: list[Case], phase: str) -> list[Case]:
    mine = [case for case in cases if case.phase == phase]
    most = max((case.threads for case in mine), default=0)
    return [case for case in mine if case.threads == most]


def where(cases: list[Case]) -> str:
    return f"{cases[0].heads.replace('/', ' ')}, {cases[0].threads} threads" if cases else "no results"


def draw_decode(axes: list[Any], cases: list[Case]) -> None:
    mine = on_most_threads(cases, "decode")
    draw_types(axes[0], mine, "GBs")
    draw_limit(axes[0], mine, "GBs", "of_bandwidth", "read bandwidth")
    finish(axes[0], "keys", "GB/s of K and V", f"decode, {where(mine)}")
    draw_types(axes[1], mine, "time_us")
    finish(axes[1], "keys", "time of one layer, us", "the same, time", zero=False)


def draw_prefill(axes: list[Any], cases: list[Case]) -> None:
    mine = on_most_threads(cases, "prefill")
    draw_types(axes[0], mine, "GFLOPs")
    draw_limit(axes[0], mine, "GFLOPs", "of_peak", "FMA peak")
    finish(axes[0], "tokens", "GFLOP/s of visible pairs", f"prefill, {where(mine)}")


def limit_scaling(cases: list[Case], limit: str, counter: str) -> list[Point]:
    found = [(LIMIT_NAME.fullmatch(case.name), case.get(counter)) for case in cases]
    rates = {int(name["threads"]): rate for name, rate in found if name and name["limit"] == limit and rate}
    return [(threads, rate / rates[1]) for threads, rate in sorted(rates.items())] if 1 in rates else []


def scaling(cases: list[Case]) -> dict[tuple[str, str, int], list[Point]]:
    """The speed on several threads over that on one, per phase, type and length."""
    groups: dict[tuple[str, str, int], dict[int, float]] = {}
    for case in cases:
        groups.setdefault((case.phase, case.type, case.length), {})[case.threads] = case.values["time_us"]
    return {
        key: [(threads, seconds[1] / time) for threads, time in sorted(seconds.items())]
        for key, seconds in sorted(groups.items())
        if 1 in seconds and len(seconds) > 1
    }


def draw_threads(axes: list[Any], cases: list[Case], every: list[Case]) -> None:
    limits = (("decode", "read", "GBs", "read bandwidth"), ("prefill", "fma_f32", "GFLOPs", "FMA peak"))
    for ax, (phase, limit, counter, label) in zip(axes, limits):
        lines = {key: points for key, points in scaling(cases).items() if key[0] == phase}
        for (_, kind, length), points in lines.items():
            colour, marker = STYLES.get(kind, ("grey", "."))
            draw_line(ax, points, f"{kind}, {length}", color=colour, marker=marker)
        draw_line(ax, limit_scaling(every, limit, counter), label, color="black", linestyle="--")
        most = max((x for points in lines.values() for x, _ in points), default=1)
        draw_line(ax, [(1, 1), (most, most)], "linear", color="grey", linestyle=":")
        finish(ax, "threads", "speed, one thread is 1", phase)


def draw_unfused(axes: list[Any], cases: list[Case]) -> None:
    for ax, phase, x in zip(axes, ("decode", "prefill"), ("keys", "tokens")):
        mine = on_most_threads(cases, phase)
        draw_types(ax, mine, "vs_unfused")
        draw_line(ax, series(mine, lambda c: 1.0), "unfused", color="black", linestyle="--")
        finish(ax, x, "time of unfused over attree's", f"{phase}, {where(mine)}")


def draw_memory(axes: list[Any], cases: list[Case]) -> None:
    mine = on_most_threads(cases, "prefill")
    draw_types(axes[0], mine, "workspace_mb", ": attree's workspace")
    draw_line(axes[0], series(mine, lambda c: c.get("unfused_mb")), "unfused: scores", color="black", linestyle="--")
    finish(axes[0], "tokens", "MB beside the tensors", f"prefill, {where(mine)}", zero=False)
    draw_types(axes[1], on_most_threads(cases, "decode"), "cache_mb")
    finish(axes[1], "keys", "MB of K and V of a layer", "caches", zero=False)


def save(name: str, panels: int, draw: Callable[[list[Any]], None], out: pathlib.Path) -> str:
    figure, grid = pyplot.subplots(1, panels, figsize=(4.75 * panels, 3.6), squeeze=False)
    draw(list(grid[0]))
    figure.tight_layout()
    figure.savefig(out / f"{name}.svg", metadata={"Date": None})
    pyplot.close(figure)
    return name


def draw_all(cases: list[Case], out: pathlib.Path) -> list[str]:
    """The names of the plots; none without matplotlib."""
    if pyplot is None:
        print("report.py: matplotlib is not there, so no plots (Debian: python3-matplotlib)", file=sys.stderr)
        return []
    # The same file from the same numbers; text as text, which is half the size.
    pyplot.rcParams.update({"font.size": 9, "svg.hashsalt": "attree", "svg.fonttype": "none"})
    mine = plotted_cases(cases)
    if not mine:
        return []
    return [
        save("decode", 2, lambda axes: draw_decode(axes, mine), out),
        save("prefill", 1, lambda axes: draw_prefill(axes, mine), out),
        save("threads", 2, lambda axes: draw_threads(axes, mine, cases), out),
        save("unfused", 2, lambda axes: draw_unfused(axes, mine), out),
        save("memory", 2, lambda axes: draw_memory(axes, mine), out),
    ]


# ---- Command line ----------------------------------------------------------------------------------------------------


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    bench = ROOT / "build" / "release" / "benchmarks" / "attree_bench"
    parser.add_argument("--bench", type=pathlib.Path, default=bench, help="the program")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs" / "report", help="the folder")
    parser.add_argument("--quick", action="store_true", help="fewer cases, less often: a minute or two on two cores")
    parser.add_argument("--from", dest="source", type=pathlib.Path, help="results from this file; nothing is run")
    return parser.parse_args()


def get_results(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.source:
        return json.loads(arguments.source.read_text(encoding="utf-8"))
    if not arguments.bench.exists():
        raise SystemExit(f"report.py: there is no {arguments.bench}; build it, or say --bench PATH")
    return measure(arguments.bench, QUICK if arguments.quick else FULL, "quick" if arguments.quick else "full")


def main() -> int:
    arguments = parse_arguments()
    results = get_results(arguments)
    arguments.out.mkdir(parents=True, exist_ok=True)
    if not arguments.source:
        write_results(results, arguments.out / "report.json")
    cases = read_cases(results)
    plots = draw_all(cases, arguments.out)
    (arguments.out / "report.md").write_text(markdown(results, cases, plots), encoding="utf-8")
    failed = [case.name for case in cases if case.errors]
    for name in failed:
        print(f"report.py: {name} failed", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
