"""What cannot be right is an error with a sentence, never a wrong number."""
import unittest

import numpy as np

import attree


def tensors(dtype=np.float32, heads=4):
    return [np.ones((2, n, 6, 8), dtype) for n in (heads, 2, 2)]


class Arguments(unittest.TestCase):
    def refuse(self, kind, sentence, call, *args, **kwargs):
        with self.assertRaisesRegex(kind, sentence) as caught:
            call(*args, **kwargs)
        return caught.exception

    def test_types_that_attree_does_not_have(self):
        q, k, v = tensors()
        for dtype, advice in (("float64", "astype"), ("int32", "astype"), ("complex64", "astype"), ("bool", "astype"),
                              (">f4", "newbyteorder"), (">f2", "newbyteorder"), ("uint16", "bf16=True"),
                              (">u2", "newbyteorder"), ("O", "astype")):
            for place in range(3):
                arrays = [q, k, v]
                arrays[place] = arrays[place].astype(dtype)
                with self.subTest(dtype=dtype, place=place):
                    self.refuse(TypeError, f"{'qkv'[place]} is .*{advice}", attree.attention, *arrays)
                    self.refuse(TypeError, advice, attree.Plan, *arrays)
            self.refuse(TypeError, advice, attree.attention, q, k, v, out=np.empty(q.shape, dtype))
            if dtype != "uint16":
                self.refuse(TypeError, advice, attree.attention, q.astype(dtype), k, v, bf16=True)
            self.refuse(TypeError, "bias", attree.attention, q, k, v, bias=np.zeros((6, 6), dtype))
            if dtype != "bool":
                self.refuse(TypeError, "mask is", attree.attention, q, k, v, mask=np.zeros((6, 6), dtype))

    def test_what_is_not_an_array(self):
        q, k, v = tensors()
        self.refuse(TypeError, "q is list", attree.attention, q.tolist(), k, v)
        self.refuse(TypeError, "masked array", attree.attention, q, np.ma.masked_equal(k, 1), v)
        self.refuse(TypeError, "mask is list", attree.attention, q, k, v, mask=[True])

    def test_shapes(self):
        q, k, v = tensors()
        self.refuse(ValueError, "batch and width", attree.attention, q, k[:1], v[:1])
        self.refuse(ValueError, "batch and width", attree.attention, q, k[..., :4], v)
        self.refuse(ValueError, "v has shape", attree.attention, q, k, v[:, :1])
        self.refuse(ValueError, "v has shape", attree.attention, q, k, v[:, :, :5])
        self.refuse(ValueError, "batch and width", attree.attention, q, k[0], v[0])
        self.refuse(ValueError, "2 to 4", attree.attention, q[0, 0, 0], k[0, 0, 0], v[0, 0, 0])
        self.refuse(ValueError, "out has shape", attree.attention, q, k, v, out=np.empty((2, 4, 6, 7), np.float32))
        self.refuse(ValueError, "must broadcast", attree.attention, q, k, v, mask=np.ones((3, 6, 6), bool))
        self.refuse(ValueError, "must broadcast", attree.attention, q, k, v, mask=np.ones((0, 6), bool))
        self.refuse(ValueError, "must broadcast", attree.attention, q[0], k[0], v[0], mask=np.ones((1, 1, 6, 6), bool))
        self.refuse(ValueError, "kv_lens", attree.attention, q, k, v, kv_lens=[1, 2, 3])
        self.refuse(TypeError, "kv_lens", attree.attention, q, k, v, kv_lens=[1.0, 2.0])
        self.refuse(ValueError, "sinks", attree.attention, q, k, v, sinks=[0.0, 1.0])
        self.refuse(ValueError, "window", attree.attention, q, k, v, window=3)

    def test_what_the_library_refuses(self):
        q, k, v = tensors(heads=3)
        error = self.refuse(attree.Error, "kv_heads", attree.attention, q, k, v)
        self.assertEqual(error.status, "ATTREE_ERROR_SHAPE")
        self.assertIsInstance(error, ValueError)
        q, k, v = tensors()
        self.refuse(attree.ArgumentError, "kv_lens", attree.attention, q, k, v, kv_lens=7)
        self.refuse(attree.ArgumentError, "softcap", attree.attention, q, k, v, softcap=-1)
        self.refuse(attree.ArgumentError, "scale", attree.attention, q, k, v, scale=float("nan"))
        self.refuse(attree.ArgumentError, "threads", attree.attention, q, k, v, threads=-1)

    def test_strides(self):
        q, k, v = tensors()
        bytes_ = np.zeros((2, 4, 6, 8, 6), np.uint8)
        odd = np.ndarray(q.shape, np.float32, bytes_.data, strides=bytes_.strides[:4])
        self.refuse(ValueError, "multiples", attree.attention, odd, k, v)
        unaligned = np.zeros(q.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(q.shape)
        self.assertEqual(self.refuse(attree.Error, "aligned", attree.attention, unaligned, k, v).status,
                         "ATTREE_ERROR_ALIGN")
        self.refuse(ValueError, "repeats one number", attree.attention, np.broadcast_to(np.float32(1), q.shape), k, v)
        out = np.lib.stride_tricks.as_strided(np.empty(8, np.float32), q.shape, (0, 0, 0, 4))
        self.assertEqual(self.refuse(attree.Error, "apart", attree.attention, q, k, v, out=out).status,
                         "ATTREE_ERROR_STRIDE")

    def test_outputs(self):
        q, k, v = tensors()
        self.assertEqual(self.refuse(attree.Error, "overlap", attree.attention, q, k, v, out=q).status,
                         "ATTREE_ERROR_ALIAS")
        mask = np.ones(q.shape[:3] + (6,), bool)
        inside = np.zeros(q.nbytes * 2, np.uint8)
        mask = inside[: mask.size].view(bool).reshape(mask.shape)
        self.refuse(attree.Error, "overlap", attree.attention, q, k, v, mask=mask,
                    out=inside[: q.nbytes].view(np.float32).reshape(q.shape))
        out = np.empty_like(q)
        out.flags.writeable = False
        self.refuse(ValueError, "read-only", attree.attention, q, k, v, out=out)
        self.refuse(ValueError, "read-only", attree.Plan(q, k, v), q, k, v, out=out)


class Plans(unittest.TestCase):
    def test_other_arrays_than_the_plans_are_refused(self):
        q, k, v = tensors()
        plan = attree.Plan(q, k, v)
        others = (q[:, :, :5], q.view(np.int32), q.astype(np.float64), np.asfortranarray(q), q[:, :, ::-1], q.tolist())
        for other in others:
            with self.assertRaises((TypeError, ValueError)):
                plan(other, k, v)
        for out in (np.empty(q.shape), np.empty_like(q)[:1], np.asfortranarray(q), q.tolist()):
            with self.assertRaises(ValueError):
                plan(q, k, v, out=out)
        with self.assertRaisesRegex(ValueError, "without a mask"):
            plan(q, k, v, mask=np.ones((6, 6), bool))
        with self.assertRaisesRegex(ValueError, "lse=True"):
            plan(q, k, v, lse=np.empty(q.shape[:3], np.float32))

    def test_strides_of_size_one_do_not_matter(self):
        buffer = np.ones((3, 4, 6, 8), np.float32)
        q = np.ones((1, 4, 6, 8), np.float32)
        strided = np.lib.stride_tricks.as_strided(buffer, q.shape, (12345, *q.strides[1:]))
        np.testing.assert_array_equal(attree.Plan(q, q, q)(strided, q, q), attree.attention(q, q, q))

    def test_masks_and_biases_are_those_of_the_call(self):
        rng = np.random.default_rng(1)
        q, k, v = (rng.standard_normal(x.shape).astype(np.float32) for x in tensors())
        masks = [rng.random((2, 1, 6, 6)) < 0.5 for _ in range(2)]
        biases = [rng.standard_normal((6, 6)).astype(np.float32) for _ in range(2)]
        plan = attree.Plan(q, k, v, mask=masks[0], bias=biases[0])
        for mask, bias in ((0, 0), (0, 1), (1, 1)):
            given = {"mask": masks[mask], "bias": biases[bias]}
            np.testing.assert_array_equal(plan(q, k, v, **given), attree.attention(q, k, v, **given))
        given = {"mask": masks[0], "bias": biases[0]}
        np.testing.assert_array_equal(plan(q, k, v), attree.attention(q, k, v, **given))
        masks[0][...] = True
        np.testing.assert_array_equal(plan(q, k, v), attree.attention(q, k, v, **given))
        with self.assertRaises(ValueError):
            plan(q, k, v, mask=np.ones((6, 6), bool))

    def test_update_keeps_what_is_not_given(self):
        rng = np.random.default_rng(1)
        cache = rng.standard_normal((2, 2, 600, 8)).astype(np.float32)
        q = rng.standard_normal((2, 4, 1, 8)).astype(np.float32)
        plan = attree.Plan(q, cache[:, :, :1], cache[:, :, :1], softcap=2.0, window=(300, 0), lse=True)
        for keys in (2, 255, 256, 257, 600):
            k = cache[:, :, :keys]
            plan.update(q, k, k)
            expected = attree.attention(q, k, k, softcap=2.0, window=(300, 0), lse=True)
            for got, want in zip(plan(q, k, k), expected):
                np.testing.assert_array_equal(got, want)
        with self.assertRaises(attree.Error):
            plan.update(q, k, k, kv_lens=601)
        with self.assertRaises(TypeError):
            plan.update(q, k, k, no_such_term=1)
        np.testing.assert_array_equal(plan(q, k, k)[0], expected[0])

    def test_outputs_of_the_plans_layout(self):
        q, k, v = tensors()
        out = np.empty((2, 6, 4, 8), np.float16).swapaxes(1, 2)
        plan = attree.Plan(q, k, v, out=out)
        self.assertIs(plan(q, k, v, out=out), out)
        np.testing.assert_array_equal(out, attree.attention(q, k, v).astype(np.float16))
        with self.assertRaises(ValueError):
            plan(q, k, v)
        with self.assertRaises(ValueError):
            plan(q, k, v, out=np.empty((2, 4, 6, 8), np.float16))


if __name__ == "__main__":
    unittest.main()
