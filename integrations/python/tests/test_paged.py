"""Paged and quantised caches: the bits of a dense call over the numbers that the cache holds."""
import unittest

import numpy as np

import attree

TYPES = ("float32", "float16", "bfloat16", "int8", "q8_0", "q4_0", "float8_e4m3", "float8_e5m2")


def numbers_of(cache, name):
    """The whole pool in float32, [pages, heads, page_size, width]."""
    kind = cache.type if name == "k" else cache.v_type
    return attree.dequantize(getattr(cache, name), kind, getattr(cache, f"{name}_scales"))


def gather(pool, table):
    """[B, heads, tokens, width] of the pages that the table names."""
    pages = pool[table]  # [B, pages, heads, page_size, width]
    return np.ascontiguousarray(pages.swapaxes(1, 2)).reshape(len(table), pool.shape[1], -1, pool.shape[3])


class Paged(unittest.TestCase):
    def test_every_type_has_the_bits_of_a_dense_call(self):
        rng = np.random.default_rng(1)
        for number, kind in enumerate(TYPES):
            for v_kind in (kind, TYPES[number - 1]):
                with self.subTest(k=kind, v=v_kind):
                    cache = attree.PagedCache(20, 2, 16, 32, 64, kind, v_kind)
                    table = rng.permutation(20)[:18].astype(np.int32).reshape(2, 9)
                    lens = np.array([140, 77])
                    new_k, new_v = (rng.standard_normal((2, 2, 77, w)).astype(np.float32) for w in (32, 64))
                    cache.append(new_k[:, :, 40:], new_v[:, :, 40:], table, kv_lens=lens - 40)
                    cache.append(new_k[:, :, :40], new_v[:, :, :40], table, kv_lens=lens)
                    q = rng.standard_normal((2, 6, 3, 32)).astype(np.float32)
                    k, v = gather(numbers_of(cache, "k"), table), gather(numbers_of(cache, "v"), table)
                    terms = {"causal": True, "kv_lens": lens, "window": (100, 0)}
                    expected = attree.attention(q, k, v, **terms, lse=True)
                    del terms["kv_lens"]
                    for got, want in zip(cache.attention(q, table, lens, **terms, lse=True), expected):
                        np.testing.assert_array_equal(got, want)

    def test_append_writes_what_quantize_makes(self):
        rng = np.random.default_rng(2)
        for kind in TYPES:
            with self.subTest(kind=kind):
                cache = attree.PagedCache(4, 3, 16, 32, type=kind)
                tokens = rng.standard_normal((1, 20, 3, 32)).astype(np.float32).swapaxes(1, 2)
                table = np.array([[3, 1]], np.int32)
                cache.append(tokens, tokens, table, kv_lens=20)
                rows = attree.quantize(tokens, kind)
                want = attree.dequantize(rows[0], kind, rows[1]) if kind == "int8" else attree.dequantize(rows, kind)
                np.testing.assert_array_equal(gather(numbers_of(cache, "k"), table)[:, :, :20], want)
                self.assertLess(np.abs(want - tokens).max(), 0.6)

    def test_a_decoder_has_the_bits_of_a_prefill(self):
        rng = np.random.default_rng(3)
        tokens = 40
        q, k, v = (rng.standard_normal((1, n, tokens, 16)).astype(np.float32) for n in (4, 2, 2))
        whole = attree.attention(q, k, v, causal=True)
        cache = attree.PagedCache(5, 2, 16, 16)
        table = np.array([[4, 0, 2]], np.int32)
        plan = attree.PagedPlan(cache, q[:, :, :1], table, 1, causal=True)
        for i in range(tokens):
            step = slice(i, i + 1)
            plan.update(q[:, :, step], table, i + 1)
            plan.append(k[:, :, step], v[:, :, step], table)
            np.testing.assert_array_equal(plan(q[:, :, step], table), whole[:, :, step])

    def test_what_is_refused(self):
        cache = attree.PagedCache(4, 2, 16, 32)
        x = np.ones((1, 2, 3, 32), np.float32)
        table = np.array([[3, 1]], np.int32)
        for bad in (table.astype(np.int64), table.tolist(), np.asfortranarray(np.zeros((2, 2), np.int32))):
            with self.assertRaisesRegex(TypeError, "int32"):
                cache.append(x, x, bad, 3)
        with self.assertRaisesRegex(ValueError, "page_table has shape"):
            cache.append(x, x, np.zeros((2, 1), np.int32), 3)
        for bad_page in (-1, 4):
            with self.assertRaisesRegex(attree.Error, "page_table"):
                cache.attention(x, np.array([[bad_page]], np.int32), 3)
        for bad_q in (x[..., :16], x[0]):
            with self.assertRaisesRegex(ValueError, "q has shape"):
                cache.attention(bad_q, table, 3)
        with self.assertRaisesRegex(attree.Error, "kv_lens"):
            cache.append(x, x, table, 33)
        with self.assertRaisesRegex(attree.Error, "token"):
            cache.append(x, x, table, 2)
        with self.assertRaisesRegex(TypeError, "k is float64|q is float64"):
            cache.append(x.astype(float), x, table, 3)
        plan = attree.PagedPlan(cache, x, table, 3)
        with self.assertRaisesRegex(TypeError, "v is float64"):
            plan.append(x, x.astype(float), table)
        with self.assertRaisesRegex(ValueError, "v has shape"):
            plan.append(x, x[..., :16], table)
        with self.assertRaisesRegex(ValueError, "page_table has shape"):
            plan(x, np.zeros((1, 3), np.int32))
        with self.assertRaises(AttributeError):
            cache.k = cache.k.copy()
        quantised = attree.PagedCache(4, 2, 16, 32, type="q8_0")
        with self.assertRaises(attree.Error) as caught:
            quantised.append(np.full_like(x, np.inf), x, table, 3)
        self.assertEqual(caught.exception.status, "ATTREE_ERROR_NONFINITE")
        self.assertFalse(quantised.v.any())
        with self.assertRaisesRegex(ValueError, "multiple of 32"):
            attree.PagedCache(4, 2, 16, 33, type="q4_0")
        with self.assertRaisesRegex(TypeError, "not a type of caches"):
            attree.PagedCache(4, 2, 16, 32, type="float64")


class Quantise(unittest.TestCase):
    def test_codes_of_int8_and_half(self):
        x = np.random.default_rng(1).standard_normal((3, 4, 32)).astype(np.float32)
        codes, scales = attree.quantize(x, "int8")
        np.testing.assert_array_equal(scales, np.abs(x).max(-1) / np.float32(127))
        np.testing.assert_allclose(codes * scales[..., None], x, atol=scales.max() / 1.99)
        np.testing.assert_array_equal(attree.quantize(x, "float16"), x.astype(np.float16))
        np.testing.assert_array_equal(attree.quantize(x[:, ::-2], "float16"), x[:, ::-2].astype(np.float16))

    def test_rows_of_any_strides(self):
        codes = np.arange(64, dtype=np.int8).reshape(2, 32)
        for view in (codes[::-1], codes[:, ::-2], codes.T):
            scales = np.float32([0.5, 2] * 16)[: len(view)]
            np.testing.assert_array_equal(attree.dequantize(view, "int8", scales), view * scales[:, None])

    def test_what_is_refused(self):
        x = np.ones((2, 32), np.float32)
        for call in (lambda: attree.quantize(x.astype(float), "int8"), lambda: attree.quantize(x, "int4"),
                     lambda: attree.dequantize(x, "q8_0"), lambda: attree.quantize(x.tolist(), "int8")):
            with self.assertRaises(TypeError):
                call()
        for call in (lambda: attree.quantize(x[:, :31], "q8_0"), lambda: attree.quantize(x * np.inf, "int8"),
                     lambda: attree.dequantize(x.astype(np.int8), "int8"),
                     lambda: attree.dequantize(np.zeros(33, np.uint8), "q8_0"),
                     lambda: attree.dequantize(x.astype(np.int8), "int8", np.ones(3, np.float32))):
            with self.assertRaises(ValueError):
                call()


if __name__ == "__main__":
    unittest.main()
