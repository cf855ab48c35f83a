"""attention() and Plan against float64, over random problems: shapes, types, strides, all terms together."""
import os
import unittest

import numpy as np

import attree
from reference import reference

CASES = 300 // int(os.environ.get("ATTREE_TEST_THIN", "1"))


def to_bf16(x):
    """The bits of bfloat16, as uint16, and the numbers that they are."""
    bits = (np.ascontiguousarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return bits, (bits.astype(np.uint32) << 16).view(np.float32)


def scatter(rng, x):
    """The same numbers with other strides: dimensions in any order, steps of any size, backwards, repeated."""
    order = rng.permutation(x.ndim)
    steps = rng.integers(1, 4, x.ndim)
    base = np.zeros([n * step for n, step in zip(np.array(x.shape)[order], steps)], x.dtype)
    view = base[tuple(slice(None, None, step) for step in steps)].transpose(np.argsort(order))
    view = view[tuple(slice(None, None, rng.choice([-1, 1])) for _ in range(x.ndim))]
    view[...] = x
    return view


def tensor(rng, shape, kind):
    """An array of the type, with any strides, and its numbers in float32."""
    x = rng.standard_normal(shape).astype(np.float32)
    for axis, size in enumerate(shape[:3]):
        if size > 1 and rng.random() < 0.15:  # repeats along this dimension, without memory for it
            x = np.broadcast_to(x.take([0], axis), shape)
            return (x, x) if kind == "float32" else convert(x, kind)
    array, numbers = convert(x, kind)
    return (array if rng.random() < 0.3 else scatter(rng, array)), numbers


def convert(x, kind):
    if kind == "bfloat16":
        return to_bf16(x)
    array = x.astype(kind)
    return array, array.astype(np.float32)


def random_terms(rng, batch, heads, queries, keys):
    terms = {"causal": bool(rng.random() < 0.5)}
    pairs = [size if rng.random() < 0.6 else 1 for size in (batch, heads, queries, keys)][rng.integers(0, 4):]
    choices = {
        "window": lambda: [(3, 2), (None, 0), (0, None), (keys, 1)][rng.integers(4)],
        "mask": lambda: scatter(rng, rng.random(pairs) < 0.7),
        "bias": lambda: scatter(rng, rng.standard_normal(pairs).astype(rng.choice(["float32", "float16"]))),
        "kv_lens": lambda: rng.integers(0, keys + 1, batch),
        "q_offsets": lambda: [int(rng.integers(-2, keys + 1)), rng.integers(-2, keys + 1, batch)][rng.integers(2)],
        "scale": lambda: float(rng.choice([0, -0.3, 0.2])),
        "softcap": lambda: 1.5,
        "sinks": lambda: rng.standard_normal(heads).tolist(),
        "alibi_slopes": lambda: 2.0 ** -np.arange(1, heads + 1),
    }
    for name, choose in choices.items():
        if rng.random() < 0.3:
            terms[name] = choose()
    return terms


class Case:
    """A random problem; its description is its seed."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        groups, share, batch = (int(rng.integers(1, 4)) for _ in range(3))
        queries = int(rng.choice([1, 2, 5, 40]))
        keys = int(rng.choice([1, 3, 70, 300, 700]))
        d, e = int(rng.choice([1, 8, 33, 64])), int(rng.choice([1, 16, 40]))
        kinds = rng.choice(["float32", "float16", "bfloat16"], 3)
        heads = groups * share
        shapes = [(batch, heads, queries, d), (batch, groups, keys, d), (batch, groups, keys, e)]
        both = [tensor(rng, shape, kind) for shape, kind in zip(shapes, kinds)]
        self.arrays = [array for array, _ in both]
        self.numbers = [numbers for _, numbers in both]
        self.terms = random_terms(rng, batch, heads, queries, keys)
        self.out = scatter(rng, np.zeros((batch, heads, queries, e), np.float32))


class Attention(unittest.TestCase):
    def compare(self, got, expected):
        np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-4)

    def test_random_problems_are_as_in_float64(self):
        for seed in range(CASES):
            with self.subTest(seed=seed):
                case = Case(seed)
                o, lse, weights = reference(*case.numbers, **case.terms)
                got, sums = attree.attention(*case.arrays, **case.terms, out=case.out, lse=True, bf16=True)
                self.assertIs(got, case.out)
                self.compare(got, o)
                self.compare(sums, lse)
                if weights.size < 20000:
                    self.compare(attree.weights(*case.arrays, **case.terms, bf16=True), weights)

    def test_threads_and_plans_change_no_bit(self):
        for seed in range(1000, 1000 + CASES):
            with self.subTest(seed=seed):
                case = Case(seed)
                o = [attree.attention(*case.arrays, **case.terms, bf16=True, threads=n) for n in (1, 3)]
                plan = attree.Plan(*case.arrays, **case.terms, bf16=True, threads=2)
                o += [plan(*case.arrays), plan(*case.arrays, out=np.empty_like(o[0]))]
                for other in o[1:]:
                    self.assertEqual(o[0].tobytes(), other.tobytes())

    def test_arrays_may_lack_batch_and_heads(self):
        case = Case(7)
        q, k, v = (x.astype(np.float32) for x in case.numbers)
        whole = attree.attention(q, k, v, causal=True)
        np.testing.assert_array_equal(attree.attention(q[0], k[0], v[0], causal=True), whole[0])
        np.testing.assert_array_equal(attree.attention(q[0, 0], k[0, 0], v[0, 0], causal=True), whole[0, 0])
        keep = np.random.default_rng(1).random((q.shape[2], k.shape[2])) < 0.5
        np.testing.assert_array_equal(attree.attention(q[0], k[0], v[0], mask=keep),
                                      attree.attention(q, k, v, mask=keep)[0])

    def test_outputs_have_the_type_of_q_or_of_out(self):
        q, k, v = (np.ones((2, 3, 4), np.float16) for _ in range(3))
        self.assertEqual(attree.attention(q, k, v).dtype, np.float16)
        self.assertEqual(attree.attention(q, k, v, out=np.empty(q.shape, np.float32)).dtype, np.float32)
        self.assertEqual(attree.attention(to_bf16(q)[0], k, v, bf16=True).dtype, np.uint16)

    def test_bfloat16_of_ml_dtypes(self):
        try:
            from ml_dtypes import bfloat16
        except ImportError:
            self.skipTest("ml_dtypes is not installed")
        x = np.random.default_rng(1).standard_normal((2, 5, 8)).astype(bfloat16)
        o = attree.attention(x, x, x)
        self.assertEqual(o.dtype, bfloat16)
        bits = x.view(np.uint16)
        self.assertEqual(o.tobytes(), attree.attention(bits, bits, bits, bf16=True).tobytes())

    def test_sizes_of_zero(self):
        x = np.ones((2, 3, 4, 8), np.float32)
        self.assertEqual(attree.attention(x[:, :, :0], x, x).shape, (2, 3, 0, 8))
        self.assertEqual(attree.attention(x[:0], x[:0], x[:0]).shape, (0, 3, 4, 8))
        o, lse = attree.attention(x, x[:, :, :0], x[:, :, :0], lse=True)
        self.assertTrue((o == 0).all() and (lse == -np.inf).all())

    def test_a_mask_that_repeats_one_number(self):
        x = np.random.default_rng(1).standard_normal((2, 3, 4, 8)).astype(np.float32)
        for keep in (True, False):
            mask = np.broadcast_to(np.array(keep), (2, 3, 4, 4))
            expected = attree.attention(x, x, x, mask=np.array(mask))
            np.testing.assert_array_equal(attree.attention(x, x, x, mask=mask), expected)


if __name__ == "__main__":
    unittest.main()
