"""Caches in pages, also quantised ones, and plans over them."""
from __future__ import annotations

import ctypes
from dataclasses import dataclass, field, replace
from typing import Any, Optional

import numpy as np

from . import _structs as s
from ._arrays import element_strides, float_type, require_array
from ._library import check, lib
from ._plan import BasePlan, Result
from ._problem import PerEntry, PerHead, Problem, Terms, Window
from ._quantise import CacheType, cache_type

INT32 = np.dtype(np.int32)


@dataclass(frozen=True, eq=False)
class PagedCache:
    """Keys and values in a pool of pages. A page table, int32 [B, pages of the longest], says which pages each sequence
    has, in order: key j of sequence b is token j % page_size of page table[b, j // page_size]. Sequences may share
    pages.

    pages, kv_heads, page_size, qk_width   sizes; v_width, if it is not qk_width. Pages of a multiple of 16 tokens are
                                           fast.
    type, v_type                           "float32", "float16", "bfloat16", "int8", "q8_0", "q4_0", "float8_e4m3",
                                           "float8_e5m2"; v_type, if it is not type
    k, v                                   the memory, [pages, kv_heads, page_size, ...], as attree.quantize makes rows
    k_scales, v_scales                     float32 [pages, kv_heads, page_size] of int8, else None

    >>> import numpy as np, attree
    >>> cache = attree.PagedCache(pages=8, kv_heads=2, page_size=16, qk_width=64, type="q8_0")
    >>> table = np.array([[3, 7], [5, 0]], np.int32)
    >>> new = np.ones((2, 2, 20, 64), np.float32)                 # 20 tokens for each of two sequences
    >>> cache.append(new, new, table, kv_lens=20)
    >>> q = np.ones((2, 8, 1, 64), np.float32)
    >>> cache.attention(q, table, kv_lens=20).shape
    (2, 8, 1, 64)
    """

    pages: int
    kv_heads: int
    page_size: int
    qk_width: int
    v_width: int = 0
    type: str = "float32"
    v_type: str = ""
    k: np.ndarray = field(init=False, repr=False)
    v: np.ndarray = field(init=False, repr=False)
    k_scales: Optional[np.ndarray] = field(init=False, repr=False)
    v_scales: Optional[np.ndarray] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.page_size < 1:
            raise ValueError(f"page_size is {self.page_size}; it must be at least 1")
        set_field = object.__setattr__  # frozen: plans keep the addresses of this memory
        if not self.v_width:
            set_field(self, "v_width", self.qk_width)
        if not self.v_type:
            set_field(self, "v_type", self.type)
        for name, kind, width in (("k", self.type, self.qk_width), ("v", self.v_type, self.v_width)):
            rows, scales = self._memory(cache_type(kind), width)
            set_field(self, name, rows)
            set_field(self, f"{name}_scales", scales)

    def _memory(self, kind: CacheType, width: int) -> tuple[np.ndarray, Optional[np.ndarray]]:
        places = (self.pages, self.kv_heads, self.page_size)
        rows = np.zeros((*places, kind.row_elements(width)), kind.storage)
        return rows, np.zeros(places, np.float32) if kind.code == s.I8 else None

    def append(
        self, k: np.ndarray, v: np.ndarray, page_table: np.ndarray, kv_lens: PerEntry, bf16: bool = False
    ) -> None:
        """Writes new tokens, k [B, G, Q, D] and v [B, G, Q, E] of floats, behind those that each sequence has; kv_lens
        count the new ones, too. Many times the same shapes: PagedPlan.append."""
        PagedPlan(self, k, page_table, kv_lens, bf16=bf16, threads=1).append(k, v, page_table)

    def attention(self, q: np.ndarray, page_table: np.ndarray, kv_lens: PerEntry, **terms: Any) -> Result:
        """attree.attention of q, [B, H, Q, D], over the first kv_lens keys of each sequence, with its other arguments.
        Many times the same shapes: PagedPlan."""
        return PagedPlan(self, q, page_table, kv_lens, **terms)(q, page_table, out=terms.get("out"))


def paged_problem(cache: PagedCache, q: Any, page_table: Any, terms: Terms, out: Optional[np.ndarray]) -> Problem:
    problem = Problem(terms)
    q = require_array(q, "q")
    if q.ndim != 4 or q.shape[3] != cache.qk_width:
        raise ValueError(f"q has shape {q.shape}; it must be [batch, heads, tokens, {cache.qk_width}]")
    problem.set_queries(q)
    desc, args = problem.desc, problem.args
    table_width = _check_table(page_table, desc.batch).shape[1]
    desc.kv_heads, desc.kv_len, desc.v_width = cache.kv_heads, table_width * cache.page_size, cache.v_width
    desc.k_type, desc.v_type = cache_type(cache.type).code, cache_type(cache.v_type).code
    desc.page_size, desc.page_count, desc.table_width = cache.page_size, cache.pages, table_width
    args.k, args.v = cache.k.ctypes.data, cache.v.ctypes.data
    if cache.k_scales is not None:
        args.k_scales = cache.k_scales.ctypes.data
    if cache.v_scales is not None:
        args.v_scales = cache.v_scales.ctypes.data
    problem.out_shape = (*q.shape[:3], cache.v_width)
    problem.set_output(out)
    problem.set_terms()
    return problem


def _check_table(table: Any, batch: int, width: Optional[int] = None) -> np.ndarray:
    if not isinstance(table, np.ndarray) or table.dtype != INT32 or table.ndim != 2 or not table.flags.c_contiguous:
        raise TypeError("page_table must be a C-contiguous array of int32: np.ascontiguousarray(page_table, np.int32)")
    if table.shape[0] != batch or width not in (None, table.shape[1]):
        raise ValueError(f"page_table has shape {table.shape}; it must be ({batch}, {width or 'pages'})")
    return table


class PagedPlan(BasePlan):
    """A Plan over a PagedCache, for calls with the same shapes: see Plan for what calls cost and share.

    q             [B, H, Q, D], like those of the calls
    page_table    int32 [B, pages of the longest sequence], like those of the calls
    kv_lens       an integer, or [B]: keys of each sequence, the tokens of append() included
    The other arguments are those of attention(), where K is page_table.shape[1] * page_size.

    A step of a decoder: update() with the new lengths, append() the new token's k and v, then call. Positions are those
    of the last keys, unless q_offsets says others; append writes where the queries are.
    """

    def __init__(
        self,
        cache: PagedCache,
        q: np.ndarray,
        page_table: np.ndarray,
        kv_lens: PerEntry,
        *,
        causal: bool = False,
        window: Window = None,
        mask: Optional[np.ndarray] = None,
        bias: Optional[np.ndarray] = None,
        q_offsets: PerEntry = None,
        scale: Optional[float] = None,
        softcap: Optional[float] = None,
        sinks: PerHead = None,
        alibi_slopes: PerHead = None,
        out: Optional[np.ndarray] = None,
        lse: bool = False,
        threads: int = 0,
        bf16: bool = False,
    ):
        terms = Terms(
            causal, window, mask, bias, kv_lens, q_offsets, scale, softcap, sinks, alibi_slopes, threads, bf16
        )
        self.cache = cache
        super().__init__(paged_problem(cache, q, page_table, terms, out), lse)

    def update(
        self, q: np.ndarray, page_table: np.ndarray, kv_lens: PerEntry, out: Optional[np.ndarray] = None, **terms: Any
    ) -> None:
        """Makes the plan one for other lengths, tables or queries. Arguments of attention() that are not given stay as
        they were; out, too, is given anew. On an error the plan is as it was."""
        changed = replace(self._problem.terms, kv_lens=kv_lens, **terms)
        self._update(paged_problem(self.cache, q, page_table, changed, out))

    def append(self, k: np.ndarray, v: np.ndarray, page_table: np.ndarray) -> None:
        """Writes the tokens of the plan's queries into the cache: k [B, G, Q, D] and v [B, G, Q, E], of floats, with
        any strides. Numbers that the cache's type cannot hold are an error, and nothing is written."""
        desc, cache, bf16 = self._problem.desc, self.cache, self._problem.terms.bf16
        tokens = s.attree_new_tokens(size=ctypes.sizeof(s.attree_new_tokens))
        k, v = require_array(k, "k"), require_array(v, "v")
        for array, name, width in ((k, "k", desc.qk_width), (v, "v", desc.v_width)):
            shape = (desc.batch, desc.kv_heads, desc.q_len, width)
            if array.shape != shape:
                raise ValueError(f"{name} has shape {array.shape}; it must be {shape}")
        tokens.k, tokens.k_type = k.ctypes.data, float_type(k.dtype, "k", bf16)
        tokens.v, tokens.v_type = v.ctypes.data, float_type(v.dtype, "v", bf16)
        tokens.k_strides = s.attree_strides(*element_strides(k, "k"))
        tokens.v_strides = s.attree_strides(*element_strides(v, "v"))
        tokens.cache_k, tokens.cache_v = cache.k.ctypes.data, cache.v.ctypes.data
        if cache.k_scales is not None:
            tokens.cache_k_scales = cache.k_scales.ctypes.data
        if cache.v_scales is not None:
            tokens.cache_v_scales = cache.v_scales.ctypes.data
        tokens.page_table = _check_table(page_table, desc.batch, desc.table_width).ctypes.data
        with self._lock:
            check(lib.attree_append(self._plan_address, tokens))

    def __call__(
        self,
        q: np.ndarray,
        page_table: np.ndarray,
        *,
        out: Optional[np.ndarray] = None,
        lse: Optional[np.ndarray] = None,
        mask: Optional[np.ndarray] = None,
        bias: Optional[np.ndarray] = None,
    ) -> Result:
        """o, or (o, lse) of a plan with lse=True, in new arrays or in those given."""
        with self._lock:
            args, desc = self._args, self._problem.desc
            args.q = self._q.address(q)
            args.page_table = _check_table(page_table, desc.batch, desc.table_width).ctypes.data
            self._set_pairs(mask, bias)
            result = self._set_outputs(out, lse)
            check(lib.attree_run(self._plan_address, self._args_pointer))
        return result
