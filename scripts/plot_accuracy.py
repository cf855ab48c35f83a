#!/usr/bin/env python3
"""Draws tests/accuracy.svg: error against the number of keys, the tree's order and one running state side by side.

The numbers are those that `test_accuracy --csv` prints, about a minute of work. Needs matplotlib: on Debian,
apt-get install python3-matplotlib.
"""

import argparse
import csv
import pathlib
import subprocess

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402  the backend comes first

ROOT = pathlib.Path(__file__).resolve().parent.parent
SERIES = (
    ("uniform", "1", "random scores in [-1, 1]", "tab:blue", "o"),
    ("uniform", "10", "random scores in [-10, 10]", "tab:green", "s"),
    ("ascend", "1", "ascending scores in [-1, 1]", "tab:orange", "^"),
    ("equal", "1", "equal scores and values, worst rounding", "tab:red", "D"),
)
ORDERS = (("tree", "attree: blocks of 256 keys, binary tree"), ("sequential", "one running state, key by key"))


def read_rows(arguments):
    if arguments.csv:
        text = arguments.csv.read_text(encoding="ascii")
    else:
        text = subprocess.run([arguments.program, "--csv"], check=True, capture_output=True, text=True).stdout
    return list(csv.DictReader(text.splitlines()))


def draw(axes, rows, order):
    for name, span, label, colour, marker in SERIES:
        mine = [row for row in rows if row["set"] == name and row["range"] == span]
        seen = [row for row in mine if float(row[order + "_error"]) > 0.0]
        axes.plot(
            [int(row["keys"]) for row in seen],
            [float(row[order + "_error"]) for row in seen],
            color=colour,
            marker=marker,
            markersize=3.5,
            linewidth=1.2,
            label=label,
        )
        axes.plot(
            [int(row["keys"]) for row in mine],
            [float(row[order + "_bound"]) for row in mine],
            color=colour,
            linestyle="--",
            linewidth=0.9,
            label="bound, each in its colour" if colour == SERIES[-1][3] else None,
        )


def plot(rows, output):
    pyplot.rcParams.update({"font.size": 9, "svg.hashsalt": "attree"})  # the same file from the same numbers
    figure, both = pyplot.subplots(1, 2, figsize=(9.5, 4.4), sharex=True, sharey=True)
    for axes, (order, title) in zip(both, ORDERS):
        draw(axes, rows, order)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlim(0.7, 2.0**20.8)
        axes.set_xticks([4**n for n in range(11)])
        axes.set_xlabel("keys K")
        axes.set_title(title, fontsize=10)
        axes.axvline(256, color="grey", linewidth=0.6, linestyle=":")
        axes.axhline(2.0**-24, color="grey", linewidth=0.6, linestyle=":")
        axes.grid(which="major", linewidth=0.3)
    both[0].set_ylabel(r"largest $|o - \mathrm{exact}|\;/\;\sum_j P_j |v_j|$")
    both[0].annotate("$2^{-24}$", (0.8, 2.0**-24 * 0.5), color="grey", fontsize=8)
    both[0].annotate("256", (256 * 1.1, 1.3e-9), color="grey", fontsize=8)
    both[0].set_ylim(1e-9, 1.0)
    handles, labels = both[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=3, frameon=False, fontsize=8.5)
    figure.tight_layout(rect=(0, 0.1, 1, 1))
    figure.savefig(output, metadata={"Date": None} if output.suffix == ".svg" else None, dpi=120)


def main():
    parser = argparse.ArgumentParser(description="Draws the error of attention against the number of keys.")
    parser.add_argument(
        "--program",
        type=pathlib.Path,
        default=ROOT / "build" / "release" / "tests" / "test_accuracy",
        help="default: %(default)s",
    )
    parser.add_argument("--csv", type=pathlib.Path, help="numbers that were printed before, instead of the program's")
    parser.add_argument(
        "output", nargs="?", type=pathlib.Path, default=ROOT / "tests" / "accuracy.svg", help="default: %(default)s"
    )
    arguments = parser.parse_args()
    plot(read_rows(arguments), arguments.output)


if __name__ == "__main__":
    main()
