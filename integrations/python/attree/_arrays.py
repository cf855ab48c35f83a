"""What libattree has to know about an array: element type, strides in elements, address."""
from __future__ import annotations

from typing import Any

import numpy as np

from . import _structs as s

FLOATS = {np.dtype(np.float32): s.F32, np.dtype(np.float16): s.F16}
UINT16 = np.dtype(np.uint16)


def require_array(x: Any, name: str) -> np.ndarray:
    if type(x) is np.ndarray:
        return x
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array, whose mask would be ignored; give {name}.data and mask=")
    if not isinstance(x, np.ndarray):
        raise TypeError(f"{name} is {type(x).__name__}; it must be a NumPy array")
    return x.view(np.ndarray)


def _advice(dtype: np.dtype, name: str) -> str:
    if not dtype.isnative:
        return f"this machine has another byte order; convert it: {name}.astype({name}.dtype.newbyteorder('='))"
    if dtype == UINT16:
        return "pass bf16=True if its numbers are the bits of bfloat16"
    if dtype.kind == "f":
        return f"attree computes in float32; convert it: {name}.astype(np.float32)"
    return f"it must be float32, float16 or bfloat16; convert it: {name}.astype(np.float32)"


def float_type(dtype: np.dtype, name: str, bf16: bool = False) -> int:
    """The attree_dtype of an array of floats; bf16: uint16 are the bits of bfloat16."""
    code = FLOATS.get(dtype)
    if code is not None:
        return code
    if dtype.isnative and (dtype.name == "bfloat16" or (bf16 and dtype == UINT16)):
        return s.BF16
    raise TypeError(f"{name} is {dtype}: {_advice(dtype, name)}")


def element_strides(array: np.ndarray, name: str) -> list[int]:
    """The strides of [batch, head, token, width], in elements; leading dimensions that the array lacks have size 1.

    All zero would mean dense to libattree. The stride of a dimension of size 0 or 1 does not matter, and is 1 here, so
    that all are zero only when every dimension repeats one number.
    """
    strides = [1] * (4 - array.ndim)
    for size, stride in zip(array.shape, array.strides):
        elements, rest = divmod(stride, array.itemsize)
        if size > 1 and rest:
            raise ValueError(
                f"{name} has strides of {array.strides} bytes, which are not multiples of its element's"
                f" {array.itemsize}; copy it: np.ascontiguousarray({name})"
            )
        strides.append(elements if size > 1 else 1)
    if not any(strides) and array.size:
        raise ValueError(f"{name} repeats one number along all dimensions; copy it: {name}.copy()")
    return strides


def pairs(array: np.ndarray, shape: tuple[int, ...], name: str) -> s.attree_pairs:
    """The layout of a mask or a bias that is broadcast to this shape, [B, H, Q, K] or its last dimensions."""
    missing = (1,) * (len(shape) - array.ndim)
    if array.ndim > len(shape) or any(a not in (1, b) for a, b in zip(missing + array.shape, shape)):
        raise ValueError(f"{name} has shape {array.shape}; it must broadcast to {shape}")
    # One element of each dimension that repeats it.
    array = array[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in array.strides)]
    return s.attree_pairs(*(1,) * (4 - array.ndim), *array.shape, *element_strides(array, name))


class Layout:
    """Shape, strides and type that arrays must have to take this array's place in a plan."""

    def __init__(self, array: np.ndarray, name: str):
        self.name, self.shape, self.strides, self.dtype = name, array.shape, array.strides, array.dtype
        self._elements = self._elements_of(array)

    def _elements_of(self, array: np.ndarray) -> list[int]:
        return element_strides(array, self.name)

    def address(self, array: np.ndarray) -> int:
        if (
            type(array) is not np.ndarray
            or array.shape != self.shape
            or array.strides != self.strides
            or array.dtype != self.dtype
        ):
            array = self._same(array)
        return array.ctypes.data

    def _same(self, array: Any) -> np.ndarray:
        """The array as a plain one when it differs in nothing that matters."""
        array = require_array(array, self.name)
        if array.shape != self.shape or array.dtype != self.dtype:
            raise ValueError(
                f"{self.name} has shape {array.shape} and type {array.dtype}; the plan is for {self.shape} and"
                f" {self.dtype}"
            )
        if self._elements_of(array) != self._elements:
            raise ValueError(
                f"{self.name} has strides of {array.strides} bytes; the plan is for {self.strides}: copy it, or make"
                " another plan"
            )
        return array


def numbers(x: Any, count: int, name: str) -> np.ndarray:
    """One float32 for each head, of any real numbers."""
    array = np.asarray(x)
    if array.dtype.kind not in "fiu" or array.shape != (count,):
        raise ValueError(f"{name} has shape {array.shape} and type {array.dtype}; it must be {count} real numbers")
    return np.ascontiguousarray(array, np.float32)


def integers(x: Any, count: int, name: str) -> np.ndarray:
    """One int64 for each batch entry, of integers, or of one integer for all."""
    array = np.asarray(x)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} is {array.dtype}; it must be integers")
    if array.shape not in ((), (count,)):
        raise ValueError(f"{name} has shape {array.shape}; it must be one integer, or {count}")
    return np.ascontiguousarray(np.broadcast_to(array, (count,)), np.int64)
