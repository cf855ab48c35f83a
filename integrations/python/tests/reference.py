"""Attention in float64, as attree.h writes it down."""
import numpy as np


def reference(q, k, v, *, causal=False, window=None, mask=None, bias=None, kv_lens=None, q_offsets=None, scale=None,
              softcap=None, sinks=None, alibi_slopes=None):
    """o, lse and the weights of [B, H, Q, D], [B, G, K, D], [B, G, K, E]."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    batch, heads, queries, width = q.shape
    k, v = (np.repeat(x, heads // k.shape[1], axis=1) for x in (k, v))
    keys = k.shape[2]
    lens = np.broadcast_to(keys if kv_lens is None else kv_lens, batch)
    offsets = np.broadcast_to(lens - queries if q_offsets is None else q_offsets, batch)
    j = np.arange(keys)
    position = (offsets[:, None] + np.arange(queries))[:, None, :, None]
    seen = np.broadcast_to(j < lens[:, None, None, None], (batch, heads, queries, keys))
    scores = q @ k.swapaxes(2, 3) * (1 / np.sqrt(width) if scale is None else scale)
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    if alibi_slopes is not None:
        scores = scores + np.asarray(alibi_slopes, np.float64)[:, None, None] * (j - position)
    if bias is not None:
        scores = scores + bias.astype(np.float64)
    if causal:
        seen = seen & (j <= position)
    if window is not None:
        left, right = window
        seen = seen & (left is None or j >= position - left) & (right is None or j <= position + right)
    if mask is not None:
        seen = seen & mask
    scores = np.where(seen, scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        sinks = np.broadcast_to(np.asarray(sinks, np.float64)[:, None, None], top.shape)
        top = np.maximum(top, sinks)
    top = np.where(np.isfinite(top), top, 0)
    weights = np.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks - top)
    with np.errstate(divide="ignore"):
        lse = (top + np.log(total))[..., 0]
    weights = weights / np.where(total == 0, 1, total)
    return weights @ v, lse, weights
