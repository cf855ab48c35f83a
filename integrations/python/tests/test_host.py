"""What else goes on in the process: other threads, forks, the collector of garbage."""
import gc
import multiprocessing
import threading
import time
import unittest

import numpy as np

import attree


def tensors(seed=1, keys=300):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((1, n, keys, 32)).astype(np.float32) for n in (4, 2, 2)]


def child(pipe):
    pipe.send(attree.attention(*tensors(), causal=True, threads=1).tobytes())


class Host(unittest.TestCase):
    def test_threads_may_share_a_plan(self):
        problems = [tensors(seed) for seed in range(4)]
        expected = [attree.attention(*problem, threads=1) for problem in problems]
        plan = attree.Plan(*problems[0], threads=1)
        wrong = []

        def work(number):
            out = np.empty_like(expected[number])
            for _ in range(50):
                if not np.array_equal(plan(*problems[number], out=out), expected[number]):
                    wrong.append(number)

        workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        self.assertEqual(wrong, [])

    def test_other_threads_run_during_a_call(self):
        x = np.ones((1, 8, 1500, 64), np.float32)
        done, ticks = threading.Event(), []

        def tick():
            while not done.is_set():
                ticks.append(time.perf_counter())
                time.sleep(0.001)

        ticker = threading.Thread(target=tick)
        ticker.start()
        start = time.perf_counter()
        attree.attention(x, x, x, threads=1)
        end = time.perf_counter()
        done.set()
        ticker.join()
        self.assertTrue(any(start + (end - start) / 4 < at < end - (end - start) / 4 for at in ticks))

    @unittest.skipUnless("fork" in multiprocessing.get_all_start_methods(), "no fork")
    def test_a_forked_child_with_one_thread(self):
        expected = attree.attention(*tensors(), causal=True, threads=2).tobytes()
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe()
        process = context.Process(target=child, args=(there,))
        process.start()
        self.assertTrue(here.poll(60), "the child hangs")
        self.assertEqual(here.recv(), expected)
        process.join()

    def test_a_plan_keeps_what_it_needs(self):
        q, k, v = tensors()
        mask = np.random.default_rng(1).random((300, 300)) < 0.5
        expected = attree.attention(q, k, v, mask=mask, sinks=[1, 2, 3, 4], alibi_slopes=[1, 2, 3, 4])
        plan = attree.Plan(q, k, v, mask=mask.copy(), sinks=[1, 2, 3, 4], alibi_slopes=[1, 2, 3, 4])
        gc.collect()
        garbage = [np.full(size, 255, np.uint8) for size in (16, 90000)]
        np.testing.assert_array_equal(plan(q, k, v), expected)
        del garbage

    def test_calls_with_out_allocate_no_array(self):
        import tracemalloc

        q, k, v = tensors()
        plan, out = attree.Plan(q, k, v, threads=1), np.empty_like(q)
        plan(q, k, v, out=out)
        tracemalloc.start()
        for _ in range(10):
            plan(q, k, v, out=out)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        self.assertLess(peak, 4096)


if __name__ == "__main__":
    unittest.main()
