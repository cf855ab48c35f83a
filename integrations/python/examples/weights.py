#!/usr/bin/env python3
"""The weights of four kinds of attention, drawn as text, or with Matplotlib into a file.

    ./weights.py              as text
    ./weights.py weights.png  as a picture
"""
import sys

import numpy as np

import attree

TOKENS, WIDTH = 24, 16
SHADES = " .:-=+*#%@"


def kinds():
    """Name and weights, [queries, keys]."""
    rng = np.random.default_rng(1)
    walk = np.cumsum(rng.standard_normal((TOKENS, WIDTH), dtype=np.float32), axis=0) / 4  # neighbours are alike
    terms = {
        "every key": {},
        "causal": {"causal": True},
        "window of 6": {"causal": True, "window": (5, 0)},
        "causal, with ALiBi": {"causal": True, "alibi_slopes": [0.5]},
    }
    return {name: attree.weights(walk, walk, walk, **term) for name, term in terms.items()}


def print_text(pictures):
    for name, weights in pictures.items():
        print(f"{name}: a row is a query, a column a key")
        shades = np.minimum(weights / weights.max() * len(SHADES), len(SHADES) - 1).astype(int)
        for row in shades:
            print("  " + "".join(SHADES[shade] for shade in row))


def draw(pictures, path):
    try:
        import matplotlib
    except ImportError:
        sys.exit("drawing needs Matplotlib (apt-get install python3-matplotlib); without a file name this prints text")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(pictures), figsize=(4 * len(pictures), 4), layout="constrained")
    for axis, (name, weights) in zip(axes, pictures.items()):
        axis.imshow(weights, cmap="Greys")
        axis.set(title=name, xlabel="key", ylabel="query")
    figure.savefig(path)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        draw(kinds(), sys.argv[1])
    else:
        print_text(kinds())
