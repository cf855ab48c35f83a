"""Exact attention on CPUs, over NumPy arrays, with the same bits for any number of threads and any machine.

    attention(q, k, v, ...)     attention, once
    Plan(q, k, v, ...)          the same, many times with arrays of the same layout
    weights(q, k, v, ...)       the softmax weights, to look at
    PagedCache, PagedPlan       keys and values in pages, in float32, float16, bfloat16, int8, q8_0, q4_0, float8_e4m3 or float8_e5m2
    quantize, dequantize        rows of these types
    states, merge_states, finish, tree_split, merge_outputs    keys that are in several places
    Error                       what libattree refuses; a ValueError, TypeError, MemoryError or RuntimeError as well

Arrays are [batch, heads, tokens, width], of any strides. See help(attree.attention).
"""
from ._library import ArgumentError, ElementTypeError, Error, OutOfMemoryError, UnsupportedError, version
from ._paged import PagedCache, PagedPlan
from ._plan import Plan, attention, weights
from ._quantise import dequantize, quantize
from ._states import finish, merge_outputs, merge_states, states, tree_split

__all__ = [
    "ArgumentError",
    "ElementTypeError",
    "Error",
    "OutOfMemoryError",
    "PagedCache",
    "PagedPlan",
    "Plan",
    "UnsupportedError",
    "attention",
    "dequantize",
    "finish",
    "merge_outputs",
    "merge_states",
    "quantize",
    "states",
    "tree_split",
    "version",
    "weights",
]
__version__ = version()
