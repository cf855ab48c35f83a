"""Exact attention on CPUs, over NumPy arrays, with the same bits for any number of threads and any machine."""
from ._library import ArgumentError, ElementTypeError, Error, OutOfMemoryError, UnsupportedError, version
from ._plan import Plan, attention, weights

__version__ = version()
