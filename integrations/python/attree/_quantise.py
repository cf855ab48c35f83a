"""Types of caches, and rows of numbers in them."""
from __future__ import annotations

from typing import Any, NamedTuple, Optional, Union

import numpy as np

from . import _structs as s
from ._arrays import require_array
from ._library import check, lib


class CacheType(NamedTuple):
    name: str
    code: int  # attree_dtype
    storage: np.dtype  # of the array that holds the rows
    numbers: int = 1  # in this many
    elements: int = 1  # elements of the array

    def row_elements(self, width: int) -> int:
        """Elements of the array for a row of so many numbers."""
        count = lib.attree_row_bytes(self.code, width)
        if count == 0 and width != 0:
            raise ValueError(f"{self.name} has no rows of {width} numbers; the width must be a multiple of 32")
        return count // self.storage.itemsize

    def width(self, elements: int) -> int:
        """Numbers of a row of so many elements."""
        blocks, rest = divmod(elements, self.elements)
        if rest:
            raise ValueError(f"a row of {elements} bytes is not one of {self.name}, whose blocks have {self.elements}")
        return blocks * self.numbers


_TYPES = [
    CacheType("float32", s.F32, np.dtype(np.float32)),
    CacheType("float16", s.F16, np.dtype(np.float16)),
    CacheType("bfloat16", s.BF16, np.dtype(np.uint16)),
    CacheType("int8", s.I8, np.dtype(np.int8)),
    CacheType("q8_0", s.Q8_0, np.dtype(np.uint8), 32, 34),
    CacheType("q4_0", s.Q4_0, np.dtype(np.uint8), 32, 18),
    CacheType("float8_e4m3", s.F8_E4M3, np.dtype(np.uint8)),
    CacheType("float8_e5m2", s.F8_E5M2, np.dtype(np.uint8)),
]
_BY_NAME = {kind.name: kind for kind in _TYPES}


def cache_type(name: Any) -> CacheType:
    """The type of a name, or of a NumPy type that is called so."""
    if not isinstance(name, str):
        name = np.dtype(name).name
    try:
        return _BY_NAME[name]
    except KeyError:
        raise TypeError(f"{name!r} is not a type of caches; these are: {', '.join(_BY_NAME)}") from None


def quantize(x: np.ndarray, type: str) -> Union[np.ndarray, "tuple[np.ndarray, np.ndarray]"]:
    """The numbers of x, float32 [..., width], as rows of a type of caches, rounded to nearest even.

    float32, float16   arrays of these, [..., width]
    bfloat16           uint16 [..., width]
    int8               (int8 [..., width], float32 [...]): codes, and a scale for each row
    q8_0, q4_0         uint8 [..., bytes]: ggml's blocks of 32 numbers; the width is a multiple of 32
    float8_e4m3, _e5m2 uint8 [..., width]; numbers too large become the largest

    >>> import numpy as np, attree
    >>> codes, scales = attree.quantize(np.float32([[1, -2, 127]]), "int8")
    >>> codes, scales
    (array([[  1,  -2, 127]], dtype=int8), array([1.], dtype=float32))
    """
    x = require_array(x, "x")
    if x.dtype != np.float32 or not x.dtype.isnative or x.ndim == 0:
        raise TypeError(f"x is {x.dtype} of shape {x.shape}; it must be float32 [..., width]: x.astype(np.float32)")
    kind = cache_type(type)
    x = np.ascontiguousarray(x)
    width = x.shape[-1]
    rows = np.empty((*x.shape[:-1], kind.row_elements(width)), kind.storage)
    scales = np.zeros(x.shape[:-1], np.float32)
    source, target, scale = (array.ctypes.data for array in (x, rows, scales))
    x_bytes, row_bytes = width * x.itemsize, rows.shape[-1] * rows.itemsize
    for row in range(scales.size):
        status = lib.attree_quantize(
            kind.code, width, source + row * x_bytes, target + row * row_bytes, scale + row * scales.itemsize
        )
        check(status)
    return (rows, scales) if kind.code == s.I8 else rows


def dequantize(rows: np.ndarray, type: str, scales: Optional[np.ndarray] = None) -> np.ndarray:
    """The numbers of rows as quantize() makes them, float32 [..., width], exactly as attention sees them; scales: those
    of int8, [...].

    >>> import numpy as np, attree
    >>> x = np.arange(32, dtype=np.float32)
    >>> x.nbytes, attree.quantize(x, "q8_0").nbytes
    (128, 34)
    >>> float(abs(attree.dequantize(attree.quantize(x, "q8_0"), "q8_0") - x).max()) < 0.2
    True
    """
    kind = cache_type(type)
    rows = require_array(rows, "rows")
    if rows.dtype != kind.storage or rows.ndim == 0:
        raise TypeError(f"rows are {rows.dtype}, of {rows.ndim} dimensions; those of {kind.name} are {kind.storage}")
    if (scales is not None) != (kind.code == s.I8):
        raise ValueError("scales are for int8, which needs them")
    rows = np.ascontiguousarray(rows)
    x = np.empty((*rows.shape[:-1], kind.width(rows.shape[-1])), np.float32)
    count = x.size // x.shape[-1] if x.size else 0
    if scales is not None and (np.shape(scales) != x.shape[:-1] or np.asarray(scales).dtype != np.float32):
        raise ValueError(f"scales must be float32 of shape {x.shape[:-1]}")
    factors = np.ravel(scales).tolist() if scales is not None else [0.0] * count
    source, target, width = rows.ctypes.data, x.ctypes.data, x.shape[-1]
    x_bytes, row_bytes = width * x.itemsize, rows.shape[-1] * rows.itemsize
    for row in range(count):
        status = lib.attree_dequantize(
            kind.code, width, source + row * row_bytes, factors[row], target + row * x_bytes
        )
        check(status)
    return x
