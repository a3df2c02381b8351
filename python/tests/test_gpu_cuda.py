# SPDX-License-Identifier: MIT
"""Tensors of torch on a GPU have the bits of the CPU.  Run from python/, on a machine with a GPU of NVIDIA:

LOCI_LIBRARY=.../libloci.so.0 python -m unittest tests.test_gpu_cuda
"""

from __future__ import annotations

import gc
import importlib.util
import threading
import unittest
from typing import Any

import numpy as np

import loci

try:
    import torch

    from .on_device import TEXTS, computed, masks, problem, same
except ImportError:
    torch = None  # type: ignore[assignment]

HERE = torch is not None and torch.cuda.is_available()


def cuda(x: Any) -> Any:
    return x.cuda()


@unittest.skipUnless(HERE, "there is no GPU of NVIDIA, or no torch for it")
class Cuda(unittest.TestCase):
    def compare(self, text: str, dtype: Any, **options: Any) -> None:
        want = computed(text, dtype, **options)
        got = computed(text, dtype, cuda, **options)
        self.assertTrue(all(x.is_cuda for x in got))
        self.assertTrue(same(want, got), f"{text} {dtype} {list(options)}")

    def test_devices(self) -> None:
        first = loci.gpu.devices()[0]
        self.assertEqual(first.id, "cuda:0")
        self.assertGreater(first.memory, 1 << 30)

    def test_bits(self) -> None:
        for text in TEXTS:
            with self.subTest(text=text):
                self.compare(text, torch.float32)

    def test_bits_of_16(self) -> None:
        for text in ("alibi", "t5:bidirectional=0", "rope:pairing=half"):
            with self.subTest(text=text):
                self.compare(text, torch.bfloat16)
        self.compare("alibi", torch.float16)

    def test_views(self) -> None:
        for text in ("alibi", "rope:pairing=half"):
            for view in ("transposed", "sliced", "columns", "repeated"):
                for dtype in (torch.float32, torch.bfloat16):
                    with self.subTest(text=text, view=view, dtype=dtype):
                        self.compare(text, dtype, view=view)

    def test_masks(self) -> None:
        for name, options in masks().items():
            with self.subTest(mask=name):
                self.compare("t5:bidirectional=1" if name == "full" else "alibi", torch.float32, **options)

    def test_packed(self) -> None:
        starts = torch.tensor([0, 50, 50, 130, 150], dtype=torch.int32)
        q, k, v, *_ = problem("rope:pairing=half", torch.float32)
        packed = [x[0].transpose(0, 1).contiguous() for x in (q, k, v)]
        options: dict[str, Any] = {"layout": "thd", "return_lse": True}
        want = loci.attention(*packed, "rope:pairing=half", cu_seqlens_q=starts, **options)
        got = loci.attention(*map(cuda, packed), "rope:pairing=half", cu_seqlens_q=starts.cuda(), **options)
        self.assertTrue(same(list(want), list(got)))

    def test_out(self) -> None:
        q, k, v, *_ = problem("alibi", torch.float32)
        out = torch.empty(q.shape, device="cuda").transpose(1, 2).contiguous().transpose(1, 2)
        made = loci.attention(q.cuda(), k.cuda(), v.cuda(), "alibi", out=out)
        self.assertIs(made, out)
        self.assertTrue(same([loci.attention(q, k, v, "alibi")], [out]))

    def compile(self, backend: str) -> None:
        for text in ("alibi", "t5:bidirectional=0", "rope:pairing=half"):
            with self.subTest(text=text):
                torch.compiler.reset()
                call = torch.compile(loci.attention, fullgraph=True, backend=backend)
                got = computed(text, torch.float32, cuda, call=call)
                self.assertTrue(same(computed(text, torch.float32), got))

    def test_compile(self) -> None:
        self.compile("aot_eager")

    @unittest.skipUnless(importlib.util.find_spec("triton"), "there is no triton")
    def test_inductor(self) -> None:
        self.compile("inductor")

    def test_module(self) -> None:
        """Its products are torch's, whose bits differ."""
        torch.manual_seed(0)
        layer = loci.nn.Attention(64, heads=4, encoding="rope:pairing=half+t5:bidirectional=0", kv_heads=2)
        x = torch.randn(2, 50, 64)
        want = layer(x)
        want.square().sum().backward()
        grads = {name: p.grad.clone() for name, p in layer.named_parameters() if p.grad is not None}
        layer.zero_grad()
        there = layer.cuda()(x.cuda())
        there.square().sum().backward()
        torch.testing.assert_close(there.cpu(), want, rtol=1e-3, atol=1e-4)
        for name, p in layer.named_parameters():
            torch.testing.assert_close(p.grad.cpu(), grads[name], rtol=1e-2, atol=1e-3)

    def test_graph(self) -> None:
        q = torch.zeros(1, 4, 8, 32, device="cuda")
        loci.attention(q, q, q)
        graph = torch.cuda.graph(torch.cuda.CUDAGraph())
        with self.assertRaisesRegex(loci.Error, "a CUDA graph cannot record a call"), graph:
            loci.attention(q, q, q)

    def test_side_stream(self) -> None:
        """A call waits for what its stream has to do, and what comes later waits for the call."""
        text = "t5:bidirectional=0"
        q, k, v, tensors, dout, _ = problem(text, torch.float32)
        inputs = [x.requires_grad_() for x in (q, k, v, *tensors.values())]
        want = loci.attention(q, k, v, text, tensors=tensors)
        want = [want.detach(), *torch.autograd.grad(want, inputs, dout)]
        real = [x.detach().cuda() for x in inputs]
        late = [torch.zeros_like(x) for x in real]
        there = dout.cuda()
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        for _ in range(2):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(100_000_000)
                for x, y in zip(late, real, strict=True):
                    x.detach().copy_(y)
                for x in late:
                    x.requires_grad_()
                o = loci.attention(*late[:3], text, tensors={"t5.table": late[3]})
                got = [o.detach().clone(), *(g.clone() for g in torch.autograd.grad(o, late, there))]
                for x in late:
                    x.detach().zero_()
            stream.synchronize()
            self.assertTrue(same(want, got))
            late = [x.detach() for x in late]

    def test_threads(self) -> None:
        """A thread that has not used CUDA yet."""
        want = computed("alibi", torch.float32)
        made: list[Any] = []

        def work() -> None:
            made.append(computed("alibi", torch.float32, cuda))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(made), 4)
        self.assertTrue(all(same(want, one) for one in made))

    def test_first_use_in_a_thread(self) -> None:
        q, k, v, *_ = problem("alibi", torch.float32)
        want, there = loci.attention(q, k, v, "alibi"), [x.cuda() for x in (q, k, v)]
        made: list[Any] = []
        loci.release()
        thread = threading.Thread(target=lambda: made.append(loci.attention(*there, "alibi")))
        thread.start()
        thread.join()
        self.assertTrue(same([want], made))

    def test_autocast(self) -> None:
        q, k, v, *_ = problem("alibi", torch.float32)
        want = loci.attention(*(x.bfloat16() for x in (q, k, v)), "alibi")
        with torch.autocast("cuda", torch.bfloat16):
            got = loci.attention(q.cuda(), k.cuda(), v.cuda(), "alibi")
        self.assertTrue(same([want], [got]))

    def test_prepared(self) -> None:
        plan = loci.Plan("t5:bidirectional=0", 4, 32, kv_heads=2)
        q, k, v, tensors, *_ = problem(plan.encoding, torch.float32)
        want = plan.attention(q, k, v, tensors)
        table = tensors["t5.table"].cuda()
        prepared = plan.prepared({"t5.table": table}, max_distance=200)
        there = [x.cuda() for x in (q, k, v)]
        for _ in range(2):
            self.assertTrue(same([want], [plan.attention(*there, prepared)]))
        table.mul_(2)
        want = plan.attention(q, k, v, {"t5.table": 2 * tensors["t5.table"]})
        self.assertTrue(same([want], [plan.attention(*there, prepared)]))

    def test_numpy(self) -> None:
        rng = np.random.default_rng(0)
        q = rng.standard_normal((1, 4, 90, 32), np.float32)
        k, v = (rng.standard_normal((1, 2, 90, 32), np.float32) for _ in range(2))
        want = loci.attention(q, k, v, "alibi", return_lse=True)
        got = loci.attention(q, k, v, "alibi", return_lse=True, device="cuda:0")
        self.assertTrue(all(np.array_equal(a, b) for a, b in zip(want, got, strict=True)))
        grads = [loci.attention_backward(q, q, k, v, *want, "alibi", device=where) for where in ("cpu", "cuda")]
        self.assertTrue(all(np.array_equal(a, b) for a, b in zip(grads[0][:3], grads[1][:3], strict=True)))

    def test_larger(self) -> None:
        """More than one chunk of keys."""
        for dtype in (torch.float32, torch.bfloat16):
            generator = torch.Generator().manual_seed(1)
            q, k, v = (torch.randn(1, heads, 5000, 64, generator=generator).to(dtype) for heads in (4, 2, 2))
            want = loci.attention(q, k, v, "rope:pairing=half", return_lse=True)
            got = loci.attention(q.cuda(), k.cuda(), v.cuda(), "rope:pairing=half", return_lse=True)
            self.assertTrue(same(list(want), list(got)), dtype)

    def test_refused(self) -> None:
        q = torch.zeros(1, 4, 8, 32)
        there = q.cuda()
        with self.assertRaisesRegex(loci.Error, r"k is on cpu and q on cuda:0; arrays of a call are on one device"):
            loci.attention(there, q, q)
        with self.assertRaisesRegex(loci.Error, r"k is on cuda:0 and q on cpu"):
            loci.attention(q, there, there)
        with self.assertRaisesRegex(loci.Error, r"t5.table is on cpu and q on cuda:0"):
            loci.attention(there, there, there, "t5:bidirectional=0", tensors={"t5.table": torch.zeros(32, 4)})
        with self.assertRaisesRegex(loci.Error, r"dtype F64 does not run on a GPU") as caught:
            loci.attention(there.double(), there.double(), there.double())
        self.assertEqual(caught.exception.status, "unsupported")
        with self.assertRaisesRegex(loci.Error, r"x is on cuda:0; this function of loci computes on the CPU"):
            loci.rotate(there, "rope:pairing=half")
        with self.assertRaisesRegex(loci.Error, r"device is for arrays in memory of the CPU, and q is on cuda:0"):
            loci.attention(there, there, there, device="host")

    def test_memory(self) -> None:
        """Nothing stays but results."""
        for _ in range(2):
            computed("t5:bidirectional=0", torch.float32, cuda)
        gc.collect()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        for _ in range(10):
            computed("t5:bidirectional=0", torch.float32, cuda)
        gc.collect()
        torch.cuda.synchronize()
        self.assertLessEqual(torch.cuda.memory_allocated(), before)

    def test_several_gpus(self) -> None:
        if torch.cuda.device_count() < 2:
            self.skipTest("there is one GPU")
        want = computed("alibi", torch.float32)
        self.assertTrue(same(want, computed("alibi", torch.float32, lambda x: x.to("cuda:1"))))

    # ---- Caches --------------------------------------------------------------------------------

    def caches(self, text: str, dtype: Any, device: str = "cuda", **options: Any) -> tuple[Any, Any, list[Any]]:
        """A cache on the CPU, one on the GPU, and q, k and v of the CPU."""
        q, k, v, tensors, *_ = problem(text, dtype)
        usual = {"kv_heads": 2, "batch": 2, "capacity": 192, "dtype": dtype, **options}
        here = loci.Cache(text, 4, 32, **usual, tensors=tensors)
        there = loci.Cache(text, 4, 32, **usual, tensors={name: cuda(x) for name, x in tensors.items()}, device=device)
        return here, there, [q, k, v]

    def step(self, here: Any, there: Any, arrays: list[Any], begin: int, end: int, **options: Any) -> None:
        own = [x[:, :, begin:end] for x in arrays]
        inputs = options.pop("inputs", None)
        want = here.step(*own, **options, inputs=inputs and {name: x[:, :, begin:end] for name, x in inputs.items()})
        moved = inputs and {name: cuda(x[:, :, begin:end]) for name, x in inputs.items()}
        got = there.step(*map(cuda, own), **options, inputs=moved)
        self.assertTrue(got.is_cuda)
        self.assertTrue(same([want], [got]), f"rows {begin} to {end}")
        self.assertEqual(here.lengths, there.lengths)

    def test_cache(self) -> None:
        stored: list[dict[str, Any]] = [{}, {"k_dtype": "q8_0", "v_dtype": "q8_0"}, {"k_dtype": "float16"}]
        for text in ("nope", "alibi", "t5:bidirectional=0", "rope:pairing=half", "rope:pairing=half+alibi"):
            for dtype in (torch.float32, torch.bfloat16):
                for options in stored:
                    with self.subTest(text=text, dtype=dtype, options=options):
                        here, there, arrays = self.caches(text, dtype, **options)
                        for at in ((0, 70), (70, 71), (71, 72), (72, 99), (99, 100)):
                            self.step(here, there, arrays, *at)
                        for cache in (here, there):
                            cache.truncate(90, entry=1)
                            cache.remove(3, 10)
                            cache.fork(0, 1, 80)
                        self.step(here, there, arrays, 100, 101)
                        self.step(here, there, arrays, 101, 110, k_lens=[9, 4])
                        self.step(here, there, arrays, 110, 111)

    def test_cache_trees(self) -> None:
        """Tensors that are there, and arrays that are copied."""
        for move in (cuda, lambda x: x):
            here, there, arrays = self.caches("rope:pairing=half", torch.float32)
            self.step(here, there, arrays, 0, 62)
            for begin in (62, 65):
                own = [x[:1, :, begin : begin + 3] for x in arrays]
                options: dict[str, Any] = {"branch": 1, "nodes": [3 if begin == 62 else 2]}
                want = here.tree(*own, [-1, 0, 1], **options)
                self.assertTrue(same([want], [there.tree(*map(move, own), [-1, 0, 1], **options)]))
                for cache in (here, there):
                    cache.keep(1)
            self.step(here, there, arrays, 70, 71)

    def test_cache_inputs(self) -> None:
        gates = {"fox.log_f": -torch.rand(2, 4, 150, generator=torch.Generator().manual_seed(3))}
        here, there, arrays = self.caches("rope:pairing=half+fox", torch.float32)
        for begin, end in ((0, 70), (70, 71), (71, 72), (72, 99)):
            self.step(here, there, arrays, begin, end, inputs=gates)

    def test_cache_states(self) -> None:
        """tape has a second result, of tensors that are there and of arrays that are copied."""
        generator = torch.Generator().manual_seed(3)
        states = {name: torch.randn(2, 4, 150, 16, 2, generator=generator) for name in ("tape.eq", "tape.ek")}
        here, there, arrays = self.caches("tape", torch.float32)
        for move in (cuda, lambda x: x):
            for at in (slice(0, 20), slice(20, 21), slice(21, 22)):
                own, given = [x[:, :, at] for x in arrays], {name: x[:, :, at] for name, x in states.items()}
                want = here.step(*own, inputs=given)
                got = there.step(*map(move, own), inputs={name: move(x) for name, x in given.items()})
                self.assertTrue(same(list(want), list(got)))

    def test_cache_halves(self) -> None:
        """Append and attend, views, and out."""
        here, there, (q, k, v) = self.caches("rope:pairing=half", torch.float32)
        for begin, end in ((0, 70), (70, 71), (71, 72)):
            own = [x[:, :, begin:end] for x in (q, k, v)]
            moved = [cuda(x.mT.contiguous()).mT for x in own]
            here.append(*own[1:])
            there.append(*moved[1:])
            out = torch.empty(2, end - begin, 4, 32, device="cuda").transpose(1, 2)
            self.assertIs(there.attend(moved[0], out=out), out)
            self.assertTrue(same([here.attend(own[0])], [out]))

    def test_cache_ring(self) -> None:
        here, there, arrays = self.caches(
            "rope:pairing=half", torch.float32, capacity=128, window_size=(20, 0), ring=True
        )
        for _ in range(3):
            for begin in range(0, 150, 30):
                self.step(here, there, arrays, begin, begin + 30)
            self.step(here, there, arrays, 0, 1)

    def test_cache_positions(self) -> None:
        here, there, arrays = self.caches("rope:pairing=half+alibi", torch.float32, max_distance=900)
        pos = torch.arange(0, 500, 5)
        want = here.step(*(x[:, :, :100] for x in arrays), pos=pos)
        got = there.step(*(cuda(x[:, :, :100]) for x in arrays), pos=pos.cuda())
        self.assertTrue(same([want], [got]))
        self.step(here, there, arrays, 100, 101, pos=[700])

    def test_cache_refresh(self) -> None:
        text = "t5:bidirectional=0"
        here, there, arrays = self.caches(text, torch.float32)
        self.step(here, there, arrays, 0, 70)
        table = 2 * problem(text, torch.float32)[3]["t5.table"]
        here.refresh({"t5.table": table})
        there.refresh({"t5.table": table.cuda()})
        self.step(here, there, arrays, 70, 71)

    def test_cache_of_arrays(self) -> None:
        """Those of the CPU are copied there, also beside tensors that are there."""
        here, there, arrays = self.caches("rope:pairing=half", torch.float32, device="cuda:0")
        for at in (slice(0, 70), slice(70, 71), slice(71, 72)):
            own = [x[:, :, at] for x in arrays]
            got = there.step(*(x.numpy() for x in own))
            self.assertIsInstance(got, np.ndarray)
            self.assertTrue(same([here.step(*own)], [torch.from_numpy(got)]))
        self.step(here, there, arrays, 72, 73)
        own = [x[:, :, 73:80] for x in arrays]
        self.assertTrue(same([here.step(*own)], [there.step(*own)]))
        self.step(here, there, arrays, 80, 81)

    def test_cache_streams(self) -> None:
        """Calls in several streams stay in their order, and each waits for what its stream has to do."""
        here, there, arrays = self.caches("rope:pairing=half", torch.float32)
        real = [x.cuda() for x in arrays]
        late = [torch.zeros_like(x) for x in real]
        torch.cuda.synchronize()
        streams = [torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.current_stream()]
        made = []
        for i, (begin, end) in enumerate(((0, 70), (70, 71), (71, 75), (75, 76), (76, 90), (90, 91))):
            with torch.cuda.stream(streams[i % 3]):
                torch.cuda._sleep(50_000_000)
                for x, y in zip(late, real, strict=True):
                    x[:, :, begin:end].copy_(y[:, :, begin:end])
                made.append(there.step(*(x[:, :, begin:end] for x in late)))
                for x in late:
                    x[:, :, begin:end].zero_()
                if i == 3:
                    there.remove(3, 2)
        torch.cuda.synchronize()
        for i, (begin, end) in enumerate(((0, 70), (70, 71), (71, 75), (75, 76), (76, 90), (90, 91))):
            self.assertTrue(same([here.step(*(x[:, :, begin:end] for x in arrays))], [made[i]]), i)
            if i == 3:
                here.remove(3, 2)

    def test_cache_refused(self) -> None:
        here, there, arrays = self.caches("alibi", torch.float32)
        own = [x[:, :, :3] for x in arrays]
        moved = [x.cuda() for x in own]
        with self.assertRaisesRegex(loci.Error, "q is on cuda:0 and the cache on the CPU: make .* device='cuda:0'"):
            here.step(*moved)
        host = loci.Cache("alibi", 4, 32, kv_heads=2, batch=2, capacity=64, device="host")
        with self.assertRaisesRegex(loci.Error, "q is on cuda:0 and the cache on host: make .* device='cuda:0'"):
            host.step(*moved)
        with self.assertRaisesRegex(loci.Error, "k is on cpu and arrays before it on cuda:0; arrays of a"):
            there.step(moved[0], *own[1:])
        with self.assertRaisesRegex(loci.Error, "k is on cuda:0 and arrays before it on cpu"):
            there.step(own[0], *moved[1:])
        with self.assertRaisesRegex(loci.Error, "out is on cpu"):
            there.step(*moved, out=torch.empty_like(own[0]))
        with self.assertRaisesRegex(loci.Error, "a cache on cuda:0 cannot be copied"):
            there.copy()
        there.step(*moved)
        graph = torch.cuda.graph(torch.cuda.CUDAGraph())
        with self.assertRaisesRegex(loci.Error, "a CUDA graph cannot record a call"), graph:
            there.step(*moved)
        self.assertEqual((here.lengths, there.lengths), ([0, 0], [3, 3]))

    def test_cache_memory(self) -> None:
        """Nothing of torch's memory stays but results and, while the cache is there, its tables."""

        def decode() -> None:
            _, there, arrays = self.caches("t5:bidirectional=0", torch.float32)
            moved = [x.cuda() for x in arrays]
            for i in range(20):
                there.step(*(x[:, :, i : i + 1] for x in moved))

        decode()
        gc.collect()
        torch.cuda.synchronize()
        before, free = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
        for _ in range(10):
            decode()
        gc.collect()
        torch.cuda.synchronize()
        self.assertLessEqual(torch.cuda.memory_allocated(), before)
        self.assertGreater(torch.cuda.mem_get_info()[0], free - (64 << 20))

    def test_cache_of_a_layer(self) -> None:
        torch.manual_seed(0)
        layer = loci.nn.Attention(64, heads=4, encoding="rope:pairing=half+t5:bidirectional=0", kv_heads=2).cuda()
        x = torch.randn(2, 50, 64, device="cuda")
        with torch.no_grad():
            want, cache = layer(x), layer.new_cache(2, 64)
            for at in (slice(0, 40), slice(40, 41), slice(41, 50)):
                torch.testing.assert_close(layer(x[:, at], cache=cache), want[:, at], rtol=1e-3, atol=1e-4)
        self.assertEqual(cache.lengths, [50, 50])

    def test_cache_on_another_gpu(self) -> None:
        if torch.cuda.device_count() < 2:
            self.skipTest("there is one GPU")
        here, there, arrays = self.caches("alibi", torch.float32)
        own = [x[:, :, :3] for x in arrays]
        with self.assertRaisesRegex(loci.Error, "q is on cuda:1 and the cache on cuda:0: make .* device='cuda:1'"):
            there.step(*(x.to("cuda:1") for x in own))
        other = loci.Cache("alibi", 4, 32, kv_heads=2, batch=2, capacity=64, device="cuda:1")
        self.assertTrue(same([here.step(*own)], [other.step(*(x.to("cuda:1") for x in own))]))


if __name__ == "__main__":
    unittest.main()
