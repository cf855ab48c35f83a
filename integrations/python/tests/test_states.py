"""Parts of the keys: merged as they were split they have the bits of one run."""
import unittest

import numpy as np

import attree


def merged(q, k, v, begin, end, keys, **terms):
    """The states of keys begin ... end - 1, each block by itself."""
    blocks = -(-(end - begin) // 256)
    if blocks <= 1:
        return attree.states(q, k[:, :, begin:end], v[:, :, begin:end], kv_len=keys, shard_begin=begin, **terms)
    cut = begin + 256 * attree.tree_split(blocks)
    return attree.merge_states(merged(q, k, v, begin, cut, keys, **terms), merged(q, k, v, cut, end, keys, **terms))


class States(unittest.TestCase):
    def test_blocks_merged_along_the_tree_have_the_bits_of_one_run(self):
        rng = np.random.default_rng(1)
        keys = 1500
        q = rng.standard_normal((2, 4, 5, 16)).astype(np.float32)
        k, v = (rng.standard_normal((2, 2, keys, width)).astype(np.float32) for width in (16, 24))
        terms = {"causal": True, "mask": rng.random((2, 1, 5, keys)) < 0.5, "softcap": 3.0, "kv_lens": [1500, 900]}
        for sinks in (None, [0.5, 1, -np.inf, 2]):
            expected = attree.attention(q, k, v, **terms, sinks=sinks, lse=True)
            parts = merged(q, k, v, 0, keys, keys, **terms)
            for got, want in zip(attree.finish(parts, sinks=sinks, lse=True), expected):
                np.testing.assert_array_equal(got, want)
        half = attree.attention(q, k, v, **terms, sinks=sinks, out=np.empty((2, 4, 5, 24), np.float16))
        np.testing.assert_array_equal(attree.finish(parts, sinks=sinks, dtype=np.float16), half)

    def test_outputs_are_merged_within_rounding(self):
        rng = np.random.default_rng(2)
        x = rng.standard_normal((2, 3, 50, 8)).astype(np.float32)
        left, right = (attree.attention(x, part, part, lse=True) for part in (x[:, :, :20], x[:, :, 20:]))
        kept = left[0].copy()
        for got, want in zip(attree.merge_outputs(*left, *right), attree.attention(x, x, x, lse=True)):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(left[0], kept)

    def test_where_results_may_go(self):
        rng = np.random.default_rng(3)
        x = rng.standard_normal((2, 2, 4, 8)).astype(np.float32)
        one, two = attree.states(x, x, x), attree.states(x, -x, x)
        expected = attree.merge_states(one, two)
        memory = np.empty(one.size + 10, np.float32)
        shifted, inside = memory[10:].reshape(one.shape), memory[:-10].reshape(one.shape)
        shifted[...] = one
        with self.assertRaisesRegex(ValueError, "overlaps"):
            attree.merge_states(shifted, two, out=inside)
        np.testing.assert_array_equal(attree.merge_states(shifted, two, out=shifted), expected)
        strided = np.repeat(two, 2, axis=2)[:, :, ::2]
        np.testing.assert_array_equal(attree.merge_states(one, strided), expected)
        with self.assertRaisesRegex(ValueError, "out must be"):
            attree.merge_states(one, two, out=np.empty(one.shape))

    def test_what_is_refused(self):
        x = np.ones((1, 2, 300, 8), np.float32)
        for terms in ({"shard_begin": 100}, {"kv_len": 299}, {"kv_len": 301}, {"sinks": [0, 0]}, {"shard_begin": -256}):
            with self.subTest(**terms), self.assertRaises(ValueError):
                attree.states(x, x, x, **terms)
        with self.assertRaisesRegex(ValueError, "no keys"):
            attree.states(x, x[:, :, :0], x[:, :, :0], kv_len=300)
        parts = attree.states(x, x, x)
        for call in (lambda: attree.merge_states(parts, parts[:, :1]), lambda: attree.finish(parts.astype(float)),
                     lambda: attree.merge_outputs(x, parts[..., 0], x, parts[:, :, :5, 0])):
            with self.assertRaises(ValueError):
                call()
        with self.assertRaises(TypeError):
            attree.finish(parts, dtype=np.float64)


if __name__ == "__main__":
    unittest.main()
