#!/usr/bin/env python3
"""A decoder of one layer with random weights, over a paged q8_0 cache: a prompt at once, then token by token.

    ./decode.py [--tokens N]    N tokens for each of two sequences, and how long an attention step took
"""
import argparse
import time

import numpy as np

import attree

HEADS, KV_HEADS, WIDTH, PAGE = 8, 2, 64, 16
BATCH, PROMPT = 2, 20


class Model:
    """Projections of an embedding to q, k, v, and back to the next token."""

    def __init__(self, vocabulary=100):
        rng = np.random.default_rng(1)
        size = HEADS * WIDTH
        self.embedding = rng.standard_normal((vocabulary, size), dtype=np.float32)
        columns = size + 2 * KV_HEADS * WIDTH
        self.projection = rng.standard_normal((size, columns), dtype=np.float32) / np.sqrt(size, dtype=np.float32)

    def project(self, tokens):
        """q, k, v as [batch, heads, tokens, width]: views of one array, which attree reads where it is."""
        x = self.embedding[tokens] @ self.projection
        x = x.reshape(*tokens.shape, HEADS + 2 * KV_HEADS, WIDTH).swapaxes(1, 2)
        return x[:, :HEADS], x[:, HEADS : HEADS + KV_HEADS], x[:, HEADS + KV_HEADS :]

    def next_token(self, o):
        """Of the last query of each sequence."""
        return np.argmax(o[:, :, -1].reshape(len(o), -1) @ self.embedding.T, axis=1)[:, None]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=200)
    count = parser.parse_args().tokens

    model = Model()
    pages = -(-(PROMPT + count) // PAGE)
    cache = attree.PagedCache(BATCH * pages, KV_HEADS, PAGE, WIDTH, type="q8_0")
    # Which pages a sequence has does not matter; here those of the two alternate.
    table = np.arange(BATCH * pages, dtype=np.int32).reshape(pages, BATCH).T.copy()

    tokens = np.random.default_rng(2).integers(0, 100, (BATCH, PROMPT))
    q, k, v = model.project(tokens)
    cache.append(k, v, table, kv_lens=PROMPT)
    tokens = model.next_token(cache.attention(q, table, kv_lens=PROMPT, causal=True))

    written = [tokens]
    seconds = 0.0
    q, k, v = model.project(tokens)
    plan = attree.PagedPlan(cache, q, table, PROMPT + 1, causal=True)
    for length in range(PROMPT + 1, PROMPT + count):
        q, k, v = model.project(tokens)
        start = time.perf_counter()
        plan.update(q, table, length)
        plan.append(k, v, table)
        o = plan(q, table)
        seconds += time.perf_counter() - start
        tokens = model.next_token(o)
        written.append(tokens)
    for sequence in np.concatenate(written, axis=1):
        print(*sequence)
    print(f"{seconds / max(1, count - 1) * 1e6:.0f} us for the attention of a step")


if __name__ == "__main__":
    main()
