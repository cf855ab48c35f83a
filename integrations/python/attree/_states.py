"""Partial results: states of some of the keys, merging them, and results made of them."""
from __future__ import annotations

from typing import Any, Optional

import numpy as np

from . import _structs as s
from ._arrays import Layout, float_type, require_array
from ._library import check, lib
from ._plan import Handle, Result
from ._problem import PerHead, Problem, Terms, shape4

FLOAT32 = np.dtype(np.float32)


def states(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, *, kv_len: Optional[int] = None, shard_begin: int = 0, **terms: Any
) -> np.ndarray:
    """What attention over a part of the keys leaves to be merged: float32 [B, H, Q, E + 2], where a row is m, the
    maximum of the scores, l, the sum of exp(score - m), and the E sums of exp(score - m) * v.

    k, v           the part: keys shard_begin ... shard_begin + k.shape[-2] - 1 of kv_len keys (default: all there are)
    shard_begin    a multiple of 256; so is the part's end, unless it is kv_len
    terms          those of attention(), without sinks, out and lse; masks, biases and positions are those of all keys

    merge_states() adds parts, finish() makes o of them. Results have the bits of attention() over all keys when parts
    are split where tree_split() says, and merged as they were split.

    >>> import numpy as np, attree
    >>> x = np.random.default_rng(1).standard_normal((1, 2, 700, 8)).astype(np.float32)
    >>> cut = 256 * attree.tree_split(3)  # of the three blocks of 700 keys
    >>> left = attree.states(x, x[:, :, :cut], x[:, :, :cut], kv_len=700)
    >>> right = attree.states(x, x[:, :, cut:], x[:, :, cut:], kv_len=700, shard_begin=cut)
    >>> bool((attree.finish(attree.merge_states(left, right)) == attree.attention(x, x, x)).all())
    True
    """
    q, k, v = require_array(q, "q"), require_array(k, "k"), require_array(v, "v")
    if terms.get("sinks") is not None:
        raise ValueError("states have no sinks; give them to finish()")
    problem = Problem(Terms(**terms))
    problem.set_queries(q)
    problem.set_cache(k, v)
    problem.set_output(None, FLOAT32)
    desc, args = problem.desc, problem.args
    tokens = desc.kv_len
    desc.kv_len = shard_begin + tokens if kv_len is None else kv_len
    if tokens == 0 and shard_begin == 0 and desc.kv_len > 0:
        raise ValueError("k has no keys; a part without any cannot begin at 0")
    desc.shard_begin, desc.shard_end = shard_begin, shard_begin + tokens
    desc.flags |= s.STATES
    problem.set_terms()
    result = np.empty((*q.shape[:-1], desc.v_width + 2), np.float32)
    args.q, args.k, args.v, args.states = (array.ctypes.data for array in (q, k, v, result))
    check(lib.attree_attention(desc, args))
    return result


def _require_states(x: Any, name: str) -> np.ndarray:
    x = require_array(x, name)
    if x.dtype != FLOAT32 or not 2 <= x.ndim <= 4 or x.shape[-1] < 3:
        raise ValueError(f"{name} is {x.dtype} of shape {x.shape}; states are float32 [..., Q, E + 2]")
    return np.ascontiguousarray(x)


def merge_states(left: np.ndarray, right: np.ndarray, out: Optional[np.ndarray] = None) -> np.ndarray:
    """The states of the keys of both, which must be disjoint. out may be left or right itself."""
    left, right = _require_states(left, "left"), _require_states(right, "right")
    if left.shape != right.shape:
        raise ValueError(f"left has shape {left.shape}, and right {right.shape}; they must be the same")
    if out is None:
        out = np.empty_like(left)
    elif not isinstance(out, np.ndarray) or out.shape != left.shape or out.dtype != FLOAT32 or not out.flags.carray:
        raise ValueError(f"out must be a writeable, C-contiguous array of shape {left.shape} and type float32")
    result, first, second = (array.ctypes.data for array in (out, left, right))
    if any(result != other and abs(result - other) < out.nbytes for other in (first, second)):
        raise ValueError("out overlaps a part of left or right; it may be one of them, or apart from both")
    width = left.shape[-1] - 2
    check(lib.attree_states_merge(result, first, second, left.size // left.shape[-1], width))
    return out


def finish(
    states: np.ndarray, *, sinks: PerHead = None, dtype: Any = np.float32, lse: bool = False, bf16: bool = False
) -> Result:
    """o [B, H, Q, E] of states [B, H, Q, E + 2], in float32 or another float type; with lse=True, (o, lse). sinks: [H],
    as of attention()."""
    states = _require_states(states, "states")
    problem = Problem(Terms(sinks=sinks, bf16=bf16, threads=1))
    desc, args = problem.desc, problem.args
    desc.batch, desc.q_heads, desc.q_len, width = shape4(states)
    desc.kv_heads, desc.v_width = desc.q_heads, width - 2
    problem.q = Layout(states, "states")
    problem.out_shape = (*states.shape[:-1], width - 2)
    problem.set_output(None, dtype)
    problem.set_terms()
    o = np.empty(problem.out_shape, problem.out_dtype)
    sums = np.empty(states.shape[:-1], np.float32)
    args.states, args.o, args.lse = (array.ctypes.data for array in (states, o, sums))
    handle = Handle(desc)
    handle.give(args)
    check(lib.attree_finish(handle.address, args))
    return (o, sums) if lse else o


def merge_outputs(
    o: np.ndarray, lse: np.ndarray, other_o: np.ndarray, other_lse: np.ndarray, bf16: bool = False
) -> "tuple[np.ndarray, np.ndarray]":
    """(o, lse) of the keys of both results, as attention(..., lse=True) or another engine makes them: o [..., E] of one
    float type, lse float32 [...]. Unlike states, they have been rounded: the last bits depend on how keys were split.
    """
    o, other_o = require_array(o, "o"), require_array(other_o, "other_o")
    lse, other_lse = require_array(lse, "lse"), require_array(other_lse, "other_lse")
    code = float_type(o.dtype, "o", bf16)
    if o.ndim == 0 or o.shape != other_o.shape or o.dtype != other_o.dtype:
        raise ValueError(f"o is {o.dtype} {o.shape}, other_o {other_o.dtype} {other_o.shape}; they must be the same")
    for array, name in ((lse, "lse"), (other_lse, "other_lse")):
        if array.dtype != FLOAT32 or array.shape != o.shape[:-1]:
            raise ValueError(f"{name} is {array.dtype} of shape {array.shape}; it must be float32 of {o.shape[:-1]}")
    o, lse = o.copy(order="C"), lse.copy(order="C")
    other_o, other_lse = np.ascontiguousarray(other_o), np.ascontiguousarray(other_lse)
    addresses = [array.ctypes.data for array in (o, lse, other_o, other_lse)]
    check(lib.attree_merge_outputs(*addresses, code, lse.size, o.shape[-1]))
    return o, lse


def tree_split(blocks: int) -> int:
    """Blocks of 256 keys in the left part of the merge tree over so many blocks; 0 for one block, or none.

    >>> import attree
    >>> [attree.tree_split(blocks) for blocks in (1, 2, 3, 4, 5)]
    [0, 1, 2, 2, 4]
    """
    return lib.attree_tree_split(blocks)
