#!/usr/bin/env python3
"""Compares two runs of attree_bench: what became slower, and whether that is more than noise.

Usage: scripts/bench_compare.py [--threshold PERCENT] [--alpha P] [--counter NAME] BEFORE.json AFTER.json

Before a change and after it:
  attree_bench --shape ... --benchmark_repetitions=10 --benchmark_out=before.json
  attree_bench --shape ... --benchmark_repetitions=10 --benchmark_out=after.json
  scripts/bench_compare.py before.json after.json

Per case: both medians, how many times longer it takes now, and the two-sided p of the Mann-Whitney U test over the
repetitions. A case is slower, or faster, when p is below alpha and the medians differ by more than the threshold.
The test needs at least four repetitions on both sides; with fewer, nothing is ever significant at 0.05. --counter
compares a counter instead of the time, of which more is better: of_bandwidth and of_peak are less noisy where others
use the machine.

Exit status: 0 nothing is slower, 1 something is slower or failed in AFTER only, 2 the files cannot be compared.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import statistics
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any, Optional

MICROSECONDS = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}


class BadInput(Exception):
    """The files cannot be compared."""


# ---- The test --------------------------------------------------------------------------------------------------------


def midranks(values: list[float]) -> dict[float, float]:
    """The rank of each value, from 1; equal ones share the mean of theirs."""
    ranks: dict[float, float] = {}
    before = 0
    for value, count in sorted(Counter(values).items()):
        ranks[value] = before + (count + 1) / 2.0
        before += count
    return ranks


def mann_whitney(first: list[float], second: list[float]) -> float:
    """The two-sided p of the U test: normal approximation, corrected for continuity and for ties."""
    n, m = len(first), len(second)
    total = n + m
    if n == 0 or m == 0:
        return 1.0
    both = first + second
    ranks = midranks(both)
    u = sum(ranks[value] for value in first) - n * (n + 1) / 2.0
    ties = sum(count**3 - count for count in Counter(both).values())
    variance = n * m / 12.0 * (total + 1 - ties / (total * (total - 1)))
    if variance <= 0.0:  # all are equal
        return 1.0
    z = max(0.0, abs(u - n * m / 2.0) - 0.5) / math.sqrt(variance)
    return math.erfc(z / math.sqrt(2.0))


# ---- Files -----------------------------------------------------------------------------------------------------------


@dataclass
class Samples:
    """A case's repetitions."""

    values: list[float]
    failed: bool = False


def value_of(row: dict[str, Any], counter: Optional[str]) -> Optional[float]:
    if counter:
        return row.get(counter)
    return row["real_time"] * MICROSECONDS[row["time_unit"]]


def read_samples(path: pathlib.Path, counter: Optional[str]) -> dict[str, Samples]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["benchmarks"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{path} is not a file of Google Benchmark: {error}") from error
    cases: dict[str, Samples] = {}
    for row in rows:
        if row.get("run_type", "iteration") != "iteration":
            continue
        case = cases.setdefault(row["name"], Samples([]))
        if row.get("error_occurred"):
            case.failed = True
        elif (value := value_of(row, counter)) is not None:
            case.values.append(value)
    if not any(case.values or case.failed for case in cases.values()):
        raise BadInput(f"{path} has no repetitions{' with ' + counter if counter else ''}, or only aggregates")
    return cases


# ---- Comparing -------------------------------------------------------------------------------------------------------


@dataclass
class Row:
    """A case in both files."""

    name: str
    before: float
    after: float
    longer: float  # how many times longer it takes now
    p: float
    verdict: str


def compare_case(name: str, before: list[float], after: list[float], arguments: argparse.Namespace) -> Row:
    old, new = statistics.median(before), statistics.median(after)
    over, under = (old, new) if arguments.counter else (new, old)
    longer = over / under if under else math.inf if over else 1.0
    p = mann_whitney(before, after)
    most = 1.0 + arguments.threshold / 100.0
    verdict = ""
    if p < arguments.alpha and longer > most:
        verdict = "SLOWER"
    elif p < arguments.alpha and longer < 1.0 / most:
        verdict = "faster"
    return Row(name, old, new, longer, p, verdict)


def compare(before: dict[str, Samples], after: dict[str, Samples], arguments: argparse.Namespace) -> list[Row]:
    rows = []
    for name, old in before.items():
        new = after.get(name)
        if new is None or not old.values:
            continue
        if new.failed and not old.failed:
            rows.append(Row(name, statistics.median(old.values), math.nan, math.nan, math.nan, "FAILED"))
        elif new.values:
            rows.append(compare_case(name, old.values, new.values, arguments))
    if not rows:
        raise BadInput("no case is in both files")
    return rows


def print_rows(rows: list[Row], unit: str) -> None:
    width = max(len(row.name) for row in rows)
    print(f"{'case':{width}} {'before':>12} {'after':>12} {'time ratio':>10} {'p':>8}   ({unit})")
    for row in rows:
        numbers = f"{row.before:12.4g} {row.after:12.4g} {row.longer:9.3f}x {row.p:8.4f}"
        print(f"{row.name:{width}} {numbers}   {row.verdict}".rstrip())


def print_notes(before: dict[str, Samples], after: dict[str, Samples]) -> None:
    for name in [name for name in before if name not in after]:
        print(f"only before: {name}")
    for name in [name for name in after if name not in before]:
        print(f"only after: {name}")
    least = min(len(side[name].values) for name in before if name in after for side in (before, after))
    if least < 4:
        print(f"note: {least} repetitions are too few for the test; use --benchmark_repetitions=10")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threshold", type=float, default=5.0, help="percent that do not matter (%(default)s)")
    parser.add_argument("--alpha", type=float, default=0.05, help="significant is a p below this (%(default)s)")
    parser.add_argument("--counter", help="a counter instead of the time; more is better")
    parser.add_argument("before", type=pathlib.Path)
    parser.add_argument("after", type=pathlib.Path)
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    try:
        before = read_samples(arguments.before, arguments.counter)
        after = read_samples(arguments.after, arguments.counter)
        rows = compare(before, after, arguments)
    except BadInput as error:
        print(f"bench_compare.py: {error}", file=sys.stderr)
        return 2
    print_rows(rows, arguments.counter or "us")
    print_notes(before, after)
    return 1 if any(row.verdict in ("SLOWER", "FAILED") for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
