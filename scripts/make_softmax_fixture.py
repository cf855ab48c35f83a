#!/usr/bin/env python3
"""Writes tests/data/softmax_257.txt, the keys of the 257-key test in tests/test_state.c.

257 scores uniform in [-1, 1], then 257 values of four numbers uniform in [-2, 2], key by key, from Python's generator
random.Random(20260924). The scores of the range [-a, a] are a times these, rounded to f64. For each range the file also
holds the softmax-weighted mean of the values, computed with 60 decimal digits from the rounded scores.

All numbers are hexadecimal floats, so nothing is lost in print. Run it again and the file does not change.
"""

import argparse
import decimal
import pathlib
import random

SEED = 20260924
KEYS = 257
WIDTH = 4
RANGES = (1.0, 10.0, 1000.0)

HEADER = (
    "# Made by scripts/make_softmax_fixture.py from Python's random.Random(%d): %d scores uniform in [-1, 1] (times a for "
    "the range [-a, a]), then values of %d numbers uniform in [-2, 2]. Lines: expect a o[4]; then score v[4]."
    % (SEED, KEYS, WIDTH)
)


def weighted_mean(scores, values):
    """The attention output of one query, rounded once to f64."""
    with decimal.localcontext() as context:
        context.prec = 60
        exact = [decimal.Decimal(s) for s in scores]
        largest = max(exact)
        weights = [(s - largest).exp() for s in exact]
        total = sum(weights)
        return [
            float(sum(w * decimal.Decimal(v[e]) for w, v in zip(weights, values)) / total) for e in range(WIDTH)
        ]


def line(*numbers):
    return " ".join(x.hex() for x in numbers)


def fixture():
    generator = random.Random(SEED)
    scores = [generator.uniform(-1.0, 1.0) for _ in range(KEYS)]
    values = [[generator.uniform(-2.0, 2.0) for _ in range(WIDTH)] for _ in range(KEYS)]
    lines = [HEADER]
    lines += ["expect " + line(a, *weighted_mean([a * s for s in scores], values)) for a in RANGES]
    lines += [line(s, *v) for s, v in zip(scores, values)]
    return "\n".join(lines) + "\n"


def main():
    default = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "softmax_257.txt"
    parser = argparse.ArgumentParser(description="Writes the keys of the 257-key softmax test.")
    parser.add_argument("output", nargs="?", type=pathlib.Path, default=default, help="default: %(default)s")
    parser.parse_args().output.write_text(fixture(), encoding="ascii")


if __name__ == "__main__":
    main()
