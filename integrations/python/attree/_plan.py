"""Attention over dense arrays: attention(), Plan, weights()."""
from __future__ import annotations

import ctypes
import threading
from dataclasses import replace
from typing import Any, Optional, Union

import numpy as np

from . import _structs as s
from ._arrays import require_array
from ._library import check, lib
from ._problem import PerEntry, PerHead, Problem, Terms, Window

Result = Union[np.ndarray, "tuple[np.ndarray, np.ndarray]"]


def dense_problem(q: Any, k: Any, v: Any, terms: Terms, out: Optional[np.ndarray] = None) -> Problem:
    q, k, v = require_array(q, "q"), require_array(k, "k"), require_array(v, "v")
    problem = Problem(terms)
    problem.set_queries(q)
    problem.set_cache(k, v)
    problem.set_output(out)
    problem.set_terms()
    return problem


def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    causal: bool = False,
    window: Window = None,
    mask: Optional[np.ndarray] = None,
    bias: Optional[np.ndarray] = None,
    kv_lens: PerEntry = None,
    q_offsets: PerEntry = None,
    scale: Optional[float] = None,
    softcap: Optional[float] = None,
    sinks: PerHead = None,
    alibi_slopes: PerHead = None,
    out: Optional[np.ndarray] = None,
    lse: bool = False,
    threads: int = 0,
    bf16: bool = False,
) -> Result:
    """softmax(scale * q k^T + ...) v. Returns o [B, H, Q, E] in q's type, or (o, lse) with lse=True.

    q             [B, H, Q, D]: batch, query heads, queries, width
    k             [B, G, K, D]: H is a multiple of G; query head h reads head h // (H // G)
    v             [B, G, K, E]
                  All three may also be [H, Q, D], [G, K, D], [G, K, E], or [Q, D], [K, D], [K, E].
                  float32, float16 or bfloat16 (of ml_dtypes, or uint16 with bf16=True), in any mix, with any strides:
                  views are read where they are. Sums are of float32.
    causal        query i sees keys up to its position, p = i + q_offset; the last query sees the last key
    window        (left, right): a query sees keys p - left ... p + right; None is no limit on that side
    mask          bool, broadcast to [B, H, Q, K]: True where a query sees a key
    bias          float32, float16 or bfloat16, broadcast to [B, H, Q, K], added to scores; -inf hides a key
    kv_lens       an integer, or [B]: keys of each batch entry; those beyond are padding, and not read
    q_offsets     an integer, or [B]: position of query 0 among the keys; default: keys less queries
    scale         default 1 / sqrt(D)
    softcap       scores become softcap * tanh(score / softcap), before bias and masks
    sinks         [H]: exp(sink) is added to the sum of exponentials of each row of that head
    alibi_slopes  [H]: slope * (key - p) is added to scores
    out           where o goes: of the result's shape, any float type and strides; must overlap no input
    lse           also return log(sum(exp(scores))), float32 [B, H, Q]
    threads       0: OpenMP's default. The result has the same bits for any number.
    bf16          uint16 arrays are bfloat16

    A query that sees no key has o = 0 and lse = -inf. Types that attree does not have, such as float64, are a
    TypeError; what libattree refuses is an attree.Error.

    >>> import numpy as np, attree
    >>> q = np.zeros((1, 8, 3, 64), np.float32)
    >>> k = np.zeros((1, 2, 3, 64), np.float32)
    >>> v = np.broadcast_to(np.arange(3, dtype=np.float32)[:, None], (1, 2, 3, 64))
    >>> attree.attention(q, k, v, causal=True)[0, 0, :, 0]  # all scores are 0: the mean of the keys so far
    array([0. , 0.5, 1. ], dtype=float32)
    """
    terms = Terms(
        causal, window, mask, bias, kv_lens, q_offsets, scale, softcap, sinks, alibi_slopes, threads, bf16
    )
    q, k, v = require_array(q, "q"), require_array(k, "k"), require_array(v, "v")
    problem = dense_problem(q, k, v, terms, out)
    args = problem.args
    if out is None:
        out = np.empty(problem.out_shape, problem.out_dtype)
    args.o = _writeable(out, "out")
    args.q, args.k, args.v = q.ctypes.data, k.ctypes.data, v.ctypes.data
    sums = np.empty(problem.out_shape[:-1], np.float32) if lse else None
    if sums is not None:
        args.lse = sums.ctypes.data
    check(lib.attree_attention(problem.desc, args))
    return out if sums is None else (out, sums)


class Handle:
    """An attree_plan and its workspace. One thread at a time may use it: its user has a lock."""

    def __init__(self, desc: s.attree_desc):
        self.address = ctypes.c_void_p()
        check(lib.attree_plan_create(self.address, desc))
        self._memory = np.empty(0, np.uint8)
        self.reserve()

    def update(self, desc: s.attree_desc) -> None:
        check(lib.attree_plan_update(self.address, desc))
        self.reserve()

    def reserve(self) -> None:
        """Workspace for a run. It never shrinks."""
        self.workspace_bytes = lib.attree_plan_workspace(self.address)
        if self._memory.nbytes < self.workspace_bytes + 63:
            self._memory = np.empty(self.workspace_bytes + 63, np.uint8)
        self.workspace = -(-self._memory.ctypes.data // 64) * 64

    def give(self, args: s.attree_args) -> None:
        args.workspace, args.workspace_bytes = self.workspace, self.workspace_bytes

    def __del__(self, destroy=lib.attree_plan_destroy):
        if getattr(self, "address", None):
            destroy(self.address)


class BasePlan:
    """What plans for dense and for paged caches have in common."""

    def __init__(self, problem: Problem, lse: bool):
        self._lock = threading.Lock()
        self._has_lse = lse
        self._handle = Handle(problem.desc)
        self._adopt(problem)

    def _adopt(self, problem: Problem) -> None:
        self._problem = problem
        self._args = problem.args
        self._handle.give(self._args)
        self._q, self._out, self._mask, self._bias = problem.q, problem.out, problem.mask, problem.bias
        self._out_shape, self._out_dtype = problem.out_shape, problem.out_dtype
        self._plan_address = self._handle.address
        self._args_pointer = ctypes.pointer(problem.args)
        self._mask_address, self._bias_address = problem.args.mask, problem.args.bias

    def _update(self, problem: Problem) -> None:
        """The plan is as it was when libattree refuses the problem."""
        with self._lock:
            self._handle.update(problem.desc)
            self._adopt(problem)

    def describe(self) -> str:
        """One line about how libattree runs this plan: kernel, tiles, tasks, workers."""
        text = ctypes.create_string_buffer(512)
        with self._lock:
            check(lib.attree_plan_describe(self._plan_address, text, len(text)))
        return text.value.decode()

    def _set_outputs(self, out: Optional[np.ndarray], lse: Optional[np.ndarray]) -> Result:
        """To be called with the lock, as all that changes args."""
        args = self._args
        if out is None:
            if self._out is not None:
                raise ValueError("the plan was made for an out=; give one of the same layout")
            out = np.empty(self._out_shape, self._out_dtype)
            args.o = out.ctypes.data
        else:
            if self._out is None:
                self._check_dense(out, "out", self._out_shape, self._out_dtype)
            else:
                self._out.address(out)
            args.o = _writeable(out, "out")
        if not self._has_lse:
            if lse is not None:
                raise ValueError("lse= is for plans made with lse=True")
            return out
        if lse is None:
            lse = np.empty(self._out_shape[:-1], np.float32)
        else:
            self._check_dense(lse, "lse", self._out_shape[:-1], np.dtype(np.float32))
        args.lse = _writeable(lse, "lse")
        return out, lse

    @staticmethod
    def _check_dense(array: Any, name: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
        if (
            not isinstance(array, np.ndarray)
            or array.shape != shape
            or array.dtype != dtype
            or not array.flags.c_contiguous
        ):
            raise ValueError(f"{name} must be a C-contiguous array of shape {shape} and type {dtype}")

    def _set_pairs(self, mask: Optional[np.ndarray], bias: Optional[np.ndarray]) -> None:
        args = self._args
        if mask is None:
            args.mask = self._mask_address
        elif self._mask is None:
            raise ValueError("the plan was made without a mask")
        else:
            args.mask = self._mask.address(mask)
        if bias is None:
            args.bias = self._bias_address
        elif self._bias is None:
            raise ValueError("the plan was made without a bias")
        else:
            args.bias = self._bias.address(bias)


def _writeable(array: np.ndarray, name: str) -> int:
    if not array.flags.writeable:
        raise ValueError(f"{name} is read-only")
    return array.ctypes.data


class Plan(BasePlan):
    """Attention that is called many times with arrays of the same shapes, strides and types.

    Plan(q, k, v, ...) takes arrays like those of the calls, and the arguments of attention(), which see; lse=True makes
    calls return (o, lse). A call, plan(q, k, v), costs a few microseconds more than the attention itself, and allocates
    nothing when it is given out= (and lse=). The mask and the bias of the plan are used where they are in each call,
    with what is in them then, or others of the same layout are given to the call; sinks, slopes, lengths and offsets
    are those of the plan. out= of the plan is an array like the calls' out, when that is not C-contiguous in q's type.

    Any threads may call a plan: they wait for each other. A plan for each thread lets them run at the same time; calls
    release the GIL. In a process made by fork(), as by multiprocessing on Linux, plans with threads=1 work; with more
    threads the child hangs if its parent has run more than one before: GNU's OpenMP cannot do that. Use threads=1, or
    multiprocessing.get_context("spawn").

    >>> import numpy as np, attree
    >>> q, k, v = (np.ones((1, heads, 5, 16), np.float32) for heads in (4, 2, 2))
    >>> plan = attree.Plan(q, k, v, causal=True)
    >>> o = np.empty_like(q)
    >>> plan(q, k, v, out=o) is o
    True
    """

    def __init__(
        self,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        *,
        causal: bool = False,
        window: Window = None,
        mask: Optional[np.ndarray] = None,
        bias: Optional[np.ndarray] = None,
        kv_lens: PerEntry = None,
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
        super().__init__(dense_problem(q, k, v, terms, out), lse)

    def _adopt(self, problem: Problem) -> None:
        super()._adopt(problem)
        self._k, self._v = problem.k, problem.v

    def update(
        self, q: np.ndarray, k: np.ndarray, v: np.ndarray, out: Optional[np.ndarray] = None, **terms: Any
    ) -> None:
        """Makes the plan one for arrays like these, as when there is one key more. Arguments of attention() that are
        not given stay as they were; out, too, is given anew. On an error the plan is as it was."""
        self._update(dense_problem(q, k, v, replace(self._problem.terms, **terms), out))

    def __call__(
        self,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        *,
        out: Optional[np.ndarray] = None,
        lse: Optional[np.ndarray] = None,
        mask: Optional[np.ndarray] = None,
        bias: Optional[np.ndarray] = None,
    ) -> Result:
        """o, or (o, lse) of a plan with lse=True, in new arrays or in those given."""
        with self._lock:
            result = self._set_tensors(q, k, v, out, lse, mask, bias)
            status = lib.attree_run(self._plan_address, self._args_pointer)
            if status:
                check(status)
        return result

    def _set_tensors(self, q, k, v, out, lse, mask, bias) -> Result:
        args = self._args
        args.q, args.k, args.v = self._q.address(q), self._k.address(k), self._v.address(v)
        if self._mask is not None or self._bias is not None or mask is not None or bias is not None:
            self._set_pairs(mask, bias)
        return self._set_outputs(out, lse)

    def _weights(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        desc = self._problem.desc
        weights = np.empty((desc.batch, desc.q_heads, desc.q_len, desc.kv_len), np.float32)
        with self._lock:
            result = self._set_tensors(q, k, v, None, None, None, None)
            check(lib.attree_run(self._plan_address, self._args_pointer))
            for row in np.ndindex(weights.shape[:3]):
                check(lib.attree_weights(self._plan_address, self._args_pointer, *row, weights[row].ctypes.data))
        del result  # args points to it until here
        return weights.reshape(*self._q.shape[:-1], desc.kv_len)


def weights(q: np.ndarray, k: np.ndarray, v: np.ndarray, **terms: Any) -> np.ndarray:
    """The softmax weights themselves, float32 [B, H, Q, K] (or [H, Q, K], [Q, K]): to look at, not fast.

    Arguments are those of attention(), without out and lse. A hidden key has weight 0; a row adds up to 1, or to less
    when there is a sink.

    >>> import numpy as np, attree
    >>> x = np.zeros((2, 8), np.float32)
    >>> attree.weights(x, x, x, causal=True)
    array([[1. , 0. ],
           [0.5, 0.5]], dtype=float32)
    """
    plan = Plan(q, k, v, lse=True, **terms)
    return plan._weights(q, k, v)
