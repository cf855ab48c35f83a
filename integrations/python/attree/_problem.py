"""A problem as libattree takes it, made from arrays and the terms of attention()."""
from __future__ import annotations

import ctypes
import operator
from dataclasses import dataclass
from typing import Any, Optional, Sequence, Union

import numpy as np

from . import _structs as s
from ._arrays import Layout, element_strides, float_type, integers, numbers, pairs, require_array

Window = Optional[Sequence[Optional[int]]]
PerEntry = Union[None, int, Sequence[int], np.ndarray]
PerHead = Union[None, Sequence[float], np.ndarray]


@dataclass(frozen=True)
class Terms:
    """What attention() takes besides the tensors; see there."""

    causal: bool = False
    window: Window = None
    mask: Optional[np.ndarray] = None
    bias: Optional[np.ndarray] = None
    kv_lens: PerEntry = None
    q_offsets: PerEntry = None
    scale: Optional[float] = None
    softcap: Optional[float] = None
    sinks: PerHead = None
    alibi_slopes: PerHead = None
    threads: int = 0
    bf16: bool = False


class Problem:
    """desc and args, with the arrays that they point to. Addresses of q, k, v, o and lse are set by whoever runs it."""

    desc: s.attree_desc
    args: s.attree_args
    q: Layout
    out_shape: tuple[int, ...]

    def __init__(self, terms: Terms):
        self.terms = terms
        self.desc = s.attree_desc(size=ctypes.sizeof(s.attree_desc), threads=operator.index(terms.threads))
        self.args = s.attree_args(size=ctypes.sizeof(s.attree_args))
        self.mask: Optional[Layout] = None
        self.bias: Optional[Layout] = None
        self._kept: list[np.ndarray] = []

    def set_queries(self, q: np.ndarray) -> None:
        """q is [B, H, Q, D], or without the first dimensions."""
        if not 2 <= q.ndim <= 4:
            raise ValueError(f"q has shape {q.shape}; it must have 2 to 4 dimensions, [batch, heads, tokens, width]")
        desc = self.desc
        desc.batch, desc.q_heads, desc.q_len, desc.qk_width = shape4(q)
        desc.q_type = float_type(q.dtype, "q", self.terms.bf16)
        self.q = Layout(q, "q")
        desc.q = s.attree_strides(*element_strides(q, "q"))

    def set_cache(self, k: np.ndarray, v: np.ndarray) -> None:
        """k is [B, G, K, D] and v [B, G, K, E], dense caches of floats with as many dimensions as q."""
        desc = self.desc
        batch, desc.kv_heads, desc.kv_len, width = shape4(k)
        desc.v_width = v.shape[-1] if v.ndim else 0
        if k.ndim != len(self.q.shape) or batch != desc.batch or width != desc.qk_width:
            raise ValueError(f"k has shape {k.shape}, and q {self.q.shape}; batch and width must be the same")
        if v.shape[:-1] != k.shape[:-1]:
            raise ValueError(f"v has shape {v.shape}, and k {k.shape}; all but the widths must be the same")
        desc.k_type = float_type(k.dtype, "k", self.terms.bf16)
        desc.v_type = float_type(v.dtype, "v", self.terms.bf16)
        self.k, self.v = Layout(k, "k"), Layout(v, "v")
        desc.k = s.attree_strides(*element_strides(k, "k"))
        desc.v = s.attree_strides(*element_strides(v, "v"))
        self.out_shape = (*self.q.shape[:-1], desc.v_width)

    def set_output(self, out: Optional[np.ndarray], dtype: Any = None) -> None:
        """The type and layout of o: those of out, or dense and of q's type or another."""
        if out is None:
            self.out_dtype = self.q.dtype if dtype is None else np.dtype(dtype)
            self.desc.o_type = float_type(self.out_dtype, "out", self.terms.bf16)
            self.out: Optional[Layout] = None
            return
        out = require_array(out, "out")
        if out.shape != self.out_shape:
            raise ValueError(f"out has shape {out.shape}; it must be {self.out_shape}")
        self.out_dtype = out.dtype
        self.desc.o_type = float_type(out.dtype, "out", self.terms.bf16)
        self.desc.o = s.attree_strides(*element_strides(out, "out"))
        self.out = Layout(out, "out")

    def set_terms(self) -> None:
        """All terms, once the sizes are known."""
        terms, desc = self.terms, self.desc
        if terms.causal:
            desc.flags |= s.CAUSAL
        if terms.scale is not None:
            desc.flags |= s.USE_SCALE
            desc.scale = terms.scale
        if terms.softcap is not None:
            desc.softcap = terms.softcap
        if terms.window is not None:
            self._set_window(terms.window)
        if terms.kv_lens is not None:
            desc.kv_lens = self._keep(integers(terms.kv_lens, desc.batch, "kv_lens"))
        if terms.q_offsets is not None:
            desc.q_offsets = self._keep(integers(terms.q_offsets, desc.batch, "q_offsets"))
        if terms.sinks is not None:
            self.args.sinks = self._keep(numbers(terms.sinks, desc.q_heads, "sinks"))
            self.args.sink_heads = desc.q_heads
        if terms.alibi_slopes is not None:
            self.args.alibi_slopes = self._keep(numbers(terms.alibi_slopes, desc.q_heads, "alibi_slopes"))
            self.args.alibi_heads = desc.q_heads
        self._set_pairs()

    def _set_window(self, window: Sequence[Optional[int]]) -> None:
        if isinstance(window, int) or len(window) != 2:
            raise ValueError(f"window is {window!r}; it must be (keys to the left, keys to the right), None: no limit")
        self.desc.flags |= s.USE_WINDOW
        left, right = (-1 if side is None else operator.index(side) for side in window)
        self.desc.window_left, self.desc.window_right = left, right

    def _set_pairs(self) -> None:
        desc, mask, bias = self.desc, self.terms.mask, self.terms.bias
        shape = (*self.q.shape[:-1], desc.kv_len)
        if mask is not None:
            mask = require_array(mask, "mask")
            if mask.dtype != np.bool_:
                raise TypeError(
                    f"mask is {mask.dtype}; it must be bool, True where a query sees a key: mask.astype(bool). Numbers"
                    " to be added to scores are bias="
                )
            desc.mask = pairs(mask, shape, "mask")
            self.mask = PairLayout(mask, "mask")
            self.args.mask = self._keep(mask)
        if bias is not None:
            bias = require_array(bias, "bias")
            desc.bias_type = float_type(bias.dtype, "bias", self.terms.bf16)
            desc.bias = pairs(bias, shape, "bias")
            self.bias = PairLayout(bias, "bias")
            self.args.bias = self._keep(bias)

    def _keep(self, array: np.ndarray) -> int:
        self._kept.append(array)
        return array.ctypes.data


class PairLayout(Layout):
    """Of a mask or a bias, which may repeat one number along all dimensions."""

    def _elements_of(self, array: np.ndarray) -> list[int]:
        return [stride if size > 1 else 1 for size, stride in zip(array.shape, array.strides)]


def shape4(array: np.ndarray) -> tuple[int, ...]:
    return (1,) * (4 - array.ndim) + array.shape
