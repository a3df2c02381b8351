# SPDX-License-Identifier: MIT
"""Threads, forks and memory of a process."""

from __future__ import annotations

import concurrent.futures
import importlib.util
import os
import subprocess
import sys
import threading
import unittest
from typing import Any

import numpy as np

import loci


def problem(length: int = 256) -> Any:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((2, 4, length, 32), np.float32) for _ in range(3)]


class Process(unittest.TestCase):
    def tearDown(self) -> None:
        loci.set_num_threads(2)

    def test_threads_do_not_change_bits(self) -> None:
        arrays = problem()
        made = []
        for threads in (1, 2, 5):
            loci.set_num_threads(threads)
            self.assertEqual(loci.get_num_threads(), threads)
            made.append(loci.attention(*arrays, "rope:pairing=half+alibi"))
        self.assertTrue(np.array_equal(made[0], made[1]) and np.array_equal(made[0], made[2]))

    def test_many_threads_of_python(self) -> None:
        arrays = problem(64)
        texts = ["nope", "alibi", "rope:pairing=half", "t5:bidirectional=0", "softcap:cap=3"]
        plans = {text: loci.Plan(text, 4, 32).init(1) for text in texts}
        want = {text: loci.attention(*arrays, text, tensors=plans[text]) for text in texts}
        start = threading.Barrier(8)

        def work(which: int) -> bool:
            start.wait()
            order = [texts[(which + i) % len(texts)] for i in range(40)]
            return all(np.array_equal(loci.attention(*arrays, t, tensors=plans[t]), want[t]) for t in order)

        loci.set_num_threads(2)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            self.assertTrue(all(pool.map(work, range(8))))

    def test_the_end_is_quiet(self) -> None:
        """Plans outlive the package's modules where another package keeps a function of loci."""
        code = (
            "import sys, numpy, loci; sys.kept = loci.attention; x = numpy.zeros((1, 1, 2, 8)); loci.attention(x, x, x)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    @unittest.skipUnless(hasattr(os, "fork"), "there is no fork")
    def test_fork(self) -> None:
        """A child has no threads of its parent's pool; it makes its own."""
        loci.set_num_threads(2)
        arrays = problem()
        want = loci.attention(*arrays)
        child = os.fork()
        if child == 0:
            os._exit(0 if np.array_equal(loci.attention(*arrays), want) else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertTrue(np.array_equal(loci.attention(*arrays), want))

    @unittest.skipUnless(hasattr(os, "fork") and importlib.util.find_spec("torch"), "there is no fork, or no torch")
    def test_threads_of_torch(self) -> None:
        """Calls run on torch's OpenMP, but with another number of threads, and in a forked child, in a pool of loci."""
        code = """
import os, signal, torch, loci
from loci import _plan
torch.set_num_threads(2)
x = torch.randn(2, 4, 96, 32, generator=torch.Generator().manual_seed(1))
def o(threads=None):
    if threads:
        loci.set_num_threads(threads)
    return loci.attention(x, x, x, "alibi")
by_torch = _plan.torch_runs(2)
want = o()
assert list(_plan._pools) == [(2, by_torch)], _plan._pools
assert torch.equal(o(3), want) and list(_plan._pools) == [(2, by_torch), (3, False)]
loci.set_num_threads(2)
child = os.fork()
if child == 0:
    signal.alarm(60)
    os._exit(0 if torch.equal(o(), want) and list(_plan._pools) == [(2, False)] else 1)
assert os.waitpid(child, 0)[1] == 0
print(by_torch)
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        if sys.platform == "linux":
            self.assertEqual(done.stdout, "True\n")

    def test_release(self) -> None:
        loci.set_num_threads(2)
        arrays = problem()
        want = loci.attention(*arrays)
        loci.release()
        self.assertTrue(np.array_equal(loci.attention(*arrays), want))

    def test_release_during_calls(self) -> None:
        """In a process of its own: a mistake here is a crash."""
        code = """
import threading, time, numpy, loci
x = numpy.ones((2, 4, 96, 32), numpy.float32)
want = loci.attention(x, x, x, "alibi")
done, wrong = threading.Event(), []
def attend():
    while not done.is_set():
        loci.set_num_threads(2)
        if not numpy.array_equal(loci.attention(x, x, x, "alibi"), want):
            wrong.append("attention")
def step():
    cache = loci.Cache("alibi", 4, 32, batch=2, capacity=96)
    while not done.is_set():
        o = cache.step(x, x, x)
        cache.truncate(0)
        loci.rotate(x, "rope:pairing=half")
        loci.layers.rmsnorm(x)
        if not numpy.array_equal(o, want):
            wrong.append("cache")
threads = [threading.Thread(target=work) for work in (attend, step)]
for thread in threads:
    thread.start()
for i in range(300):
    loci.set_num_threads(2 + i % 2)
    loci.release()
    time.sleep(1e-3)
done.set()
for thread in threads:
    thread.join()
assert not wrong, wrong
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    @unittest.skipUnless(os.path.isdir("/proc/self/task"), "threads are not listed here")
    def test_threads_end(self) -> None:
        """Of the thread counts that were asked for only the last few have threads; release() ends all of them."""

        def running() -> int:
            return len(os.listdir("/proc/self/task"))

        loci.release()
        before, arrays = running(), problem(64)
        cache = loci.Cache("nope", 4, 32, batch=2, capacity=64)
        for threads in range(2, 12):
            loci.set_num_threads(threads)
            loci.attention(*arrays)
            cache.step(*arrays)
            cache.truncate(0)
        self.assertLessEqual(running() - before, 7 + 8 + 9 + 10)
        loci.release()
        self.assertEqual(running(), before)
        self.assertTrue(np.array_equal(cache.step(*arrays), loci.attention(*arrays)))

    def interrupted(self, call: str) -> None:
        """A process of its own in which this call, of minutes, gets a SIGINT; it must end before it is done."""
        code = f"""
import os, signal, threading, time, numpy, loci
from loci import _interrupt
signal.signal(signal.SIGINT, signal.default_int_handler)    # a shell's background jobs ignore it
x = numpy.ones((1, 2, 300000, 8), numpy.float32)
o = numpy.zeros_like(x)
small = x[:, :, :64]
want = loci.attention(small, small, small, "nope")
cache = loci.Cache("nope", 2, 8, capacity=300064)
cache.append(x[:, :, :64], x[:, :, :64])
inside = threading.Event()
real = _interrupt._run_aside
def aside(*arguments):
    inside.set()
    return real(*arguments)
_interrupt._run_aside = aside
def kill():
    inside.wait()
    time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=kill, daemon=True).start()
try:
    {call}
except KeyboardInterrupt:
    assert not o.all(), "the call was done"
    assert cache.length() == 64, cache.length()
    assert numpy.array_equal(loci.attention(small, small, small, "nope"), want)
    print("interrupted")
"""
        for threads in ("1", "2"):
            environment = {**os.environ, "LOCI_NUM_THREADS": threads}
            options: Any = {"capture_output": True, "text": True, "check": False, "env": environment}
            done = subprocess.run([sys.executable, "-c", code], **options)
            self.assertEqual((done.returncode, done.stderr, done.stdout), (0, "", "interrupted\n"))

    @unittest.skipUnless(os.name == "posix", "there is no kill")
    def test_interrupted_calls(self) -> None:
        self.interrupted('loci.attention(x, x, x, "nope", out=o)')
        self.interrupted("cache.step(x, x, x, out=o)")
        self.interrupted(
            'cache = loci.Cache("nope", 2, 8, batch=2, capacity=300064); '
            "cache.tree(small, small, small, range(-1, 63)); cache.keep(63); "
            "cache.tree(x, x, x, range(-1, 299999), out=o)"
        )
        self.interrupted('loci.attention_backward(x, x, x, x, x, x[..., 0].copy(), "nope")')

    def test_calls_in_a_thread_of_their_own(self) -> None:
        """What a long call of the main thread does: the same bits, the same sentences, and other handlers go on."""
        from loci import _interrupt

        arrays = problem(96)
        length = _interrupt.LONG

        def work() -> Any:
            lse: Any
            o, lse = loci.attention(*arrays, "rope:pairing=half+alibi", return_lse=True)
            back = loci.attention_backward(o, *arrays, o, lse, "rope:pairing=half+alibi")
            cache = loci.Cache(
                "fire", 4, 32, batch=2, capacity=96, tensors=loci.Plan("fire", 4, 32, max_len=96).init(1)
            )
            tree = loci.Cache("alibi", 4, 32, batch=4, capacity=96).tree(*arrays, range(-1, 95))
            return [
                o,
                lse,
                *back[:3],
                cache.step(*arrays),
                tree,
                loci.linear_attention(*arrays),
                loci.weights(*arrays[:2]),
            ]

        for threads in (1, 2):
            loci.set_num_threads(threads)
            want = work()
            try:
                _interrupt.LONG = 0
                got = work()
                with self.assertRaisesRegex(loci.Error, "k_lens: entry 1 has 97 keys"):
                    loci.attention(*arrays, k_lens=[1, 97])
            finally:
                _interrupt.LONG = length
            self.assertTrue(all(np.array_equal(a, b) for a, b in zip(got, want, strict=True)))

    def test_packed_calls_are_short(self) -> None:
        """They are as long as their sequences, not as one sequence of all rows."""
        from loci import _interrupt

        x = np.random.default_rng(1).standard_normal((1, 4, 64 * 60, 32), np.float32)
        starts, aside = range(0, 64 * 60 + 1, 60), _interrupt._run_aside

        def long(*_: Any) -> int:
            raise AssertionError("a long call")

        loci.set_num_threads(1)
        try:
            _interrupt._run_aside = long
            loci.attention(x, x, x, cu_seqlens_q=starts, cu_seqlens_k=starts)
            with self.assertRaisesRegex(AssertionError, "a long call"):
                loci.attention(x, x, x)
        finally:
            _interrupt._run_aside = aside

    def test_memory(self) -> None:
        """Calls of 3000 shapes: forms and plans are kept, but not without end."""
        import resource

        def many(first: int, end: int) -> None:
            for i in range(first, end):
                x = np.zeros((1, 1 + i % 3, 1 + i, 8), np.float32)
                loci.attention(x, x, x, "alibi")

        many(0, 600)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(4):
            many(0, 600)
        self.assertLess(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, 20000)


if __name__ == "__main__":
    unittest.main()
