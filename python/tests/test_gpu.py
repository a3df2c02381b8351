# SPDX-License-Identifier: MIT
"""Devices that need no GPU: the host, which is always there, and OpenCL.  Bits are those of the CPU."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from typing import Any
from unittest import mock

import numpy as np

import loci
from loci import _c, _gpu

from .encodings import attending, inputs

try:
    import torch

    from . import on_device
    from .on_device import computed, masks, problem, same
except ImportError:
    torch = None  # type: ignore[assignment]

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

try:
    IDS = [d.id for d in loci.gpu.devices()]
except loci.Error:
    IDS = []
DEVICES = [name for name in ("host", "host:2", "opencl:0") if name in IDS]
TEXTS = ("nope", "alibi", "t5:bidirectional=0", "rope:pairing=half+alibi", "softcap:cap=20+clip:max=9", "alibi+sink")


def arrays(rows: int = 70, keys: int = 70, heads: int = 4, kv_heads: int = 2, dtype: Any = "float32") -> Any:
    rng = np.random.default_rng(rows)
    q = rng.standard_normal((2, heads, rows, 32)).astype(dtype)
    k, v = (rng.standard_normal((2, kv_heads, keys, 32)).astype(dtype) for _ in range(2))
    return q, k, v


def bits(x: Any) -> Any:
    return np.ascontiguousarray(x).view(np.uint8)


def recording(names: list[str]) -> Any:
    """libloci-gpu, which appends the names of the functions that are called."""
    library = _gpu.library()

    class Library:
        def __getattr__(self, name: str) -> Any:
            def call(*arguments: Any) -> Any:
                names.append(name)
                return getattr(library, name)(*arguments)

            return call

    return Library()


@unittest.skipUnless(IDS, "there is no libloci-gpu")
class Numpy(unittest.TestCase):
    def same(self, a: Any, b: Any) -> None:
        a, b = (x if isinstance(x, tuple) else (x,) for x in (a, b))
        self.assertEqual(len(a), len(b))
        for x, y in zip(a, b, strict=True):
            self.assertEqual((x.dtype, x.shape), (y.dtype, y.shape))
            np.testing.assert_array_equal(bits(x), bits(y))

    def both(self, device: str, q: Any, k: Any, v: Any, text: Any = "alibi", **options: Any) -> None:
        """Forward and backward there and on the CPU."""
        want = loci.attention(q, k, v, text, return_lse=True, **options)
        self.same(want, loci.attention(q, k, v, text, return_lse=True, device=device, **options))
        dout = np.random.default_rng(9).standard_normal(want[0].shape).astype(want[0].dtype)
        dlse = np.random.default_rng(8).standard_normal(want[1].shape).astype(want[1].dtype)
        out, lse, *states = want
        given = dout, q, k, v, out, lse, text
        for ae in states:
            options |= {"ae": ae, "dae": np.random.default_rng(7).standard_normal(ae.shape).astype(ae.dtype)}
        *grads, learned = loci.attention_backward(*given, dlse=dlse, **options)
        *others, also = loci.attention_backward(*given, dlse=dlse, device=device, **options)
        self.same(tuple(grads), tuple(others))
        self.assertEqual(list(learned), list(also))
        self.same(tuple(learned.values()), tuple(also.values()))

    def test_encodings(self) -> None:
        q, k, v = arrays()
        for device in DEVICES:
            for text in TEXTS:
                with self.subTest(device=device, text=text):
                    self.both(device, q, k, v, text, tensors=loci.Plan(text, 4, 32, kv_heads=2).init(1))

    def test_every_encoding(self) -> None:
        """Each has the CPU's bits, or is refused."""
        q, k, v = arrays(40, 40)
        ran = set()
        for e in attending():
            try:
                plan = loci.Plan(e.example, 4, 32, kv_heads=2, max_len=64)
            except loci.Error:
                continue  # wants as many heads of keys
            tensors = {**plan.init(1), **inputs(plan, 2, 40, 40)}
            options = {"coords": np.arange(plan.axes * 40).reshape(plan.axes, 40) % 7} if plan.axes > 1 else {}
            with self.subTest(encoding=e.example):
                try:
                    self.both("host", q, k, v, plan, tensors=tensors, **options)
                    ran.add(e.name)
                except loci.Error as error:
                    self.assertEqual(error.status, "unsupported")
                    self.assertRegex(str(error), "not run on a GPU")
        least = "nope alibi t5 clip kerple sandwich rope softcap sink "
        least += "xpos fope angles comrope shaw xl deberta sba cope wall path cape tape"
        self.assertGreaterEqual(ran, set(least.split()))

    def test_shapes(self) -> None:
        for device in DEVICES:
            for sizes in ((1, 1), (1, 200), (65, 130), (3, 0)):
                with self.subTest(device=device, sizes=sizes):
                    self.both(device, *arrays(*sizes))

    def test_types(self) -> None:
        types: list[Any] = ["float16"] + ([ml_dtypes.bfloat16] if ml_dtypes else [])
        for device in DEVICES:
            for dtype in types:
                with self.subTest(device=device, dtype=dtype):
                    self.both(device, *arrays(dtype=dtype))

    def test_views(self) -> None:
        q, k, v = arrays(40, 40)
        broad = np.broadcast_to(k[:1, :1], k.shape)
        for device in DEVICES:
            with self.subTest(device=device):
                self.both(device, q[:, :, ::-1], k[:, :, ::2].repeat(2, 2), np.asfortranarray(v))
                self.both(device, q, broad, broad)
                self.both(device, *(x.transpose(0, 2, 1, 3) for x in (q, k, v)), layout="blhd")

    def test_masks(self) -> None:
        q, k, v = arrays(40, 40)
        rng = np.random.default_rng(3)
        seg = np.repeat([[0, 1, -1]], [20, 15, 5], axis=1).repeat(2, 0)
        each: list[dict[str, Any]] = [
            {"causal": False},
            {"window_size": (5, 0)},
            {"pos": np.arange(40) * 3},
            {"seg": seg},
            {"k_lens": [40, 11]},
            {"k_first": np.maximum(np.arange(40) - 9, 0)},
            {"mask": rng.random((2, 1, 40, 40)) < 0.7},
            {"mask": np.broadcast_to(rng.random((40, 1)) < 0.7, (40, 40)), "causal": False},
        ]
        for device in DEVICES:
            for options in each:
                with self.subTest(device=device, options=list(options)):
                    self.both(device, q, k, v, **options)
            with self.subTest(device=device, options="numbers"):
                mask = rng.standard_normal((4, 1, 40)).astype("float32")
                self.same(loci.attention(q, k, v, mask=mask), loci.attention(q, k, v, mask=mask, device=device))
                o, lse = loci.attention(q, k, v, mask=mask, return_lse=True)
                *want, learned = loci.attention_backward(o, q, k, v, o, lse, mask=mask)
                *got, also = loci.attention_backward(o, q, k, v, o, lse, mask=mask, device=device)
                self.same((*want, *learned.values()), (*got, *also.values()))

    def test_packed(self) -> None:
        q, k, v = (x[0].transpose(1, 0, 2) for x in arrays(60, 60))
        for device in DEVICES:
            self.both(device, q, k, v, layout="thd", cu_seqlens_q=[0, 11, 11, 60])

    def test_out(self) -> None:
        q, k, v = arrays()
        want = loci.attention(q, k, v)
        for device in DEVICES:
            for out in (np.empty_like(q), np.empty((2, 70, 4, 32), "float32").transpose(0, 2, 1, 3)):
                self.assertIs(loci.attention(q, k, v, out=out, device=device), out)
                self.same(want, out)

    def test_rows(self) -> None:
        """Rotations and embeddings alone."""
        x = arrays()[0]
        pos = np.arange(70) * 3 % 50
        coords = np.arange(140).reshape(2, 70) % 9
        plans = {text: loci.Plan(text, 4, 32, stage="rotate") for text in ("mixed", "fope:train_length=60")}
        given: list[tuple[Any, dict[str, Any]]] = [
            ("rope:pairing=half", {"pos": pos}),
            ("rope:pairing=interleaved", {"pos": pos, "role": "key"}),
            ("xpos:scale_base=40", {"pos": pos}),
            ("mixed", {"coords": coords, "tensors": plans["mixed"].init(1)}),
            ("fope:train_length=60", {"pos": pos, "tensors": plans["fope:train_length=60"].init(1)}),
        ]
        for device in (*DEVICES, "cpu"):
            for text, options in given:
                with self.subTest(device=device, text=text):
                    self.same(loci.rotate(x, text, **options), loci.rotate(x, text, **options, device=device))
            for text in ("sinusoidal", "index", "binary"):
                with self.subTest(device=device, text=text):
                    self.same(loci.embed(x[0], text, pos=pos), loci.embed(x[0], text, pos=pos, device=device))
            there = loci.rotate(x, "rope:pairing=half", pos=pos[:4], layout="blhd", device=device)
            self.same(loci.rotate(x, "rope:pairing=half", pos=pos[:4], layout="blhd"), there)
            tensors = {"learned.table": np.random.default_rng(1).standard_normal((64, 32)).astype("float32")}
            given_ = x[:, 0], "learned"
            want = loci.embed(*given_, pos=pos, tensors=tensors)
            self.same(want, loci.embed(*given_, pos=pos, tensors=tensors, device=device))
            self.assertEqual(loci.embed(x[0, :0], "index", pos=pos, device=device).shape, (0, 70, 32))

    def test_linear_attention(self) -> None:
        """A state goes from a device to the CPU and back."""
        q, k, v = arrays(150, 150)
        text = "rope:pairing=half"
        want, state = loci.linear_attention(q, k, v, text, return_state=True)
        for device in DEVICES:
            with self.subTest(device=device):
                o, after = loci.linear_attention(q, k, v, text, return_state=True, device=device)
                self.same(want, o)
                self.same(state._memory, after._memory)
                parts: list[Any] = []
                held = None
                for first, end, where in ((0, 40, device), (40, 100, "cpu"), (100, 150, device)):
                    pos = np.arange(first, end)
                    cut = (x[:, :, first:end] for x in (q, k, v))
                    part, held = loci.linear_attention(*cut, text, pos=pos, state=held, return_state=True, device=where)
                    parts.append(part)
                self.same(want, np.concatenate(parts, 2))
                _, held = loci.linear_attention(q[:, :, :0], k, v, text, return_state=True, device=device)
                self.same(state._memory, held._memory)
                self.assertEqual(
                    loci.linear_attention(q[:, :, :0], k[:, :, :0], v[:, :, :0], text, device=device).shape,
                    (2, 4, 0, 32),
                )

    def test_empty(self) -> None:
        q, k, v = arrays(0, 5)
        self.assertEqual(loci.attention(q, k, v, device="host").shape, q.shape)
        o, lse = loci.attention(q, k, v, return_lse=True)
        dq, dk, *_ = loci.attention_backward(o, q, k, v, o, lse, device="host")
        self.assertEqual((dq.shape, dk.any()), (q.shape, False))

    def test_plans(self) -> None:
        plan = loci.Plan("t5:bidirectional=0", 4, 32, kv_heads=2)
        q, k, v = arrays()
        tensors = plan.init(1)
        want = plan.attention(q, k, v, tensors)
        for device in (*DEVICES, *(d for d in loci.gpu.devices() if d.id == "host"), "cpu"):
            self.same(want, plan.attention(q, k, v, tensors, device=device))
            self.same(want, plan.attention(q, k, v, plan.prepared(tensors, max_distance=80), device=device))

    def test_values_in_keys(self) -> None:
        rng = np.random.default_rng(5)
        for dim, value_dim, rows in ((48, 32, 30), (576, 512, 3)):
            text = f"rope:pairing=half,dim={dim - value_dim},offset={value_dim}"
            plan = loci.Plan(text, 4, dim, kv_heads=1, value_dim=value_dim, values_in_keys=True)
            q, k = (rng.standard_normal((2, heads, n, dim), np.float32) for heads, n in ((4, rows), (1, 90)))
            want = loci.attention(q, k, None, plan, return_lse=True)
            for device in DEVICES:
                self.same(want, loci.attention(q, k, None, plan, return_lse=True, device=device))
                self.same(want[0], plan.attention(q, k, None, device=device))
                if dim > 256:
                    with self.assertRaisesRegex(loci.Error, "wider than 256 run on a GPU with at most 8 rows"):
                        plan.attention(np.repeat(q, 3, 2), k, None, device=device)

    def test_refused(self) -> None:
        q, k, v = arrays(4, 4)
        with self.assertRaisesRegex(loci.Error, "'moon:0' is no device") as caught:
            loci.attention(q, k, v, device="moon:0")
        self.assertEqual(caught.exception.status, "bad_arg")
        with self.assertRaisesRegex(loci.Error, "there is no host:99"):
            loci.attention(q, k, v, device="host:99")
        with self.assertRaisesRegex(TypeError, "device must be a text such as 'cuda:0', not int"):
            loci.attention(q, k, v, device=0)  # type: ignore[call-overload]
        with self.assertRaisesRegex(loci.Error, "dtype F64 does not run on a GPU") as caught:
            loci.attention(*(x.astype("float64") for x in (q, k, v)), device="host")
        self.assertEqual(caught.exception.status, "unsupported")
        with self.assertRaisesRegex(loci.Error, "k is 32 wide and q 16"):
            loci.attention(q[..., :16], k, v, device="host")
        with self.assertRaisesRegex(loci.Error, "'moon:0' is no device"):
            loci.rotate(q, "rope:pairing=half", device="moon:0")
        with self.assertRaisesRegex(loci.Error, "dtype F64 does not run on a GPU"):
            loci.embed(q[0, 0].astype("float64"), "sinusoidal", device="host")

    def test_shares(self) -> None:
        q, k, v = arrays(4, 4)
        if torch is not None:
            with self.assertRaisesRegex(loci.Error, "device does not go with shares"):
                loci.attention(q, k, v, device="host", shares=[(0, 4, 0)])

    def test_threads(self) -> None:
        q, k, v = arrays()
        want = {text: loci.attention(q, k, v, text) for text in ("nope", "alibi", "rope:pairing=half")}

        def work(i: int) -> bool:
            text = list(want)[i % 3]
            if i % 7 == 0:
                loci.release()
            return np.array_equal(loci.attention(q, k, v, text, device=DEVICES[i % len(DEVICES)]), want[text])

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            self.assertTrue(all(pool.map(work, range(40))))

    @unittest.skipUnless(hasattr(os, "fork"), "there is no fork")
    def test_fork(self) -> None:
        q, k, v = arrays()
        want = loci.attention(q, k, v, "alibi", device="host")
        child = os.fork()
        if child == 0:
            os._exit(0 if np.array_equal(loci.attention(q, k, v, "alibi", device="host"), want) else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)


@unittest.skipUnless(IDS, "there is no libloci-gpu")
class Devices(unittest.TestCase):
    def test_list(self) -> None:
        for device in loci.gpu.devices():
            self.assertIsInstance(device, loci.gpu.Device)
            self.assertTrue(device.id and device.name and device.driver)
        self.assertIn("host", IDS)
        with self.assertRaises(dataclasses.FrozenInstanceError):
            loci.gpu.devices()[0].id = "other"  # type: ignore[misc]

    @unittest.skipUnless(os.path.exists("/proc/self/maps"), "the system does not list what a process has opened")
    def test_nothing_is_opened_before(self) -> None:
        """Neither libloci-gpu nor a driver, before somebody asks for a device."""
        code = """
import os, numpy, loci, loci.gpu
def opened():
    maps = open("/proc/self/maps").read()
    return [name for name in ("loci-gpu", "OpenCL", "libcuda", "nvrtc", "pocl") if name in maps]
x = numpy.zeros((1, 1, 2, 8), "float32")
loci.attention(x, x, x)
loci.Cache("nope", 1, 8, capacity=64).step(x, x, x)
assert not opened(), opened()
assert "LOCI_NVRTC" not in os.environ
loci.gpu.devices()
assert "loci-gpu" in opened()
"""
        environment = {name: x for name, x in os.environ.items() if name != "LOCI_NVRTC"}
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_the_end_is_quiet(self) -> None:
        code = (
            "import sys, numpy, loci; sys.kept = loci.attention; x = numpy.zeros((1, 1, 2, 8), 'float32'); "
            "loci.attention(x, x, x, device='host')"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_without_the_library(self) -> None:
        with mock.patch.dict(_c._beside, clear=True), mock.patch.object(_c, "path", "/nowhere/libloci.so.0"):
            with (
                mock.patch.dict(os.environ),
                self.assertRaisesRegex(loci.Error, "has no devices but the CPU") as caught,
            ):
                os.environ.pop("LOCI_GPU_LIBRARY", None)
                loci.gpu.devices()
            self.assertEqual(caught.exception.status, "unsupported")
            with mock.patch.dict(os.environ, {"LOCI_GPU_LIBRARY": "/nowhere/x.so"}):
                self.assertRaisesRegex(ImportError, "/nowhere/x.so cannot be loaded", loci.gpu.devices)

    def test_compiler(self) -> None:
        """NVRTC is found in packages, which are not imported."""
        with tempfile.TemporaryDirectory() as folder:
            own = pathlib.Path(folder) / "nvidia" / "cu13" / "lib"
            own.mkdir(parents=True)
            (own / "libnvrtc.so.13").touch()
            with mock.patch.object(sys, "path", [folder, *sys.path]), mock.patch.dict(sys.modules):
                sys.modules.pop("nvidia", None)
                self.assertEqual(_gpu.find_compiler(), str(own))
                self.assertNotIn("nvidia", sys.modules)

    def test_memory(self) -> None:
        """Each allocation is freed, and the device is closed after it."""
        freed: list[str] = []
        q, k, v = arrays()
        tensors = loci.Plan("t5:bidirectional=0", 4, 32, kv_heads=2).init(1)
        loci.release()
        with mock.patch.object(_gpu, "library", return_value=recording(freed)):
            loci.attention(q, k, v, "t5:bidirectional=0", tensors=tensors, device="host")
            loci.attention(q, k, v, "alibi", device="host")
            loci.release()
        self.assertEqual(freed.count("gpu_alloc"), freed.count("gpu_free"))
        self.assertEqual(freed.count("gpu_plan_create"), freed.count("gpu_plan_destroy"))
        self.assertEqual((freed.count("gpu_open"), freed.count("gpu_close"), freed[-1]), (1, 1, "gpu_close"))


if torch is not None:
    from loci import _torch, _torch_gpu

    class Pretended(_torch_gpu.OnDevice):
        """Tensors of the CPU as if they were a GPU's, which the host computes."""

        def current(self) -> Any:
            return _gpu.opened("host")

        @staticmethod
        def host(x: Any) -> Any:
            return x.detach().clone()

    def pretending() -> Any:
        return mock.patch.object(_torch.Torch, "placed", return_value=Pretended(torch.device("cpu")))


@unittest.skipUnless(torch is not None and IDS, "there is no torch, or no libloci-gpu")
class Torch(unittest.TestCase):
    def ways(self) -> Any:
        for device in DEVICES:
            yield device, lambda *given, d=device, **more: computed(*given, device=d, **more)

        def pretended(*given: Any, **more: Any) -> Any:
            with pretending():
                return computed(*given, **more)

        yield "as on a GPU", pretended

    def test_bits(self) -> None:
        for name, way in self.ways():
            for text in on_device.TEXTS:
                for dtype in (torch.float32, torch.bfloat16):
                    with self.subTest(way=name, text=text, dtype=dtype):
                        self.assertTrue(same(computed(text, dtype), way(text, dtype)))

    def test_views(self) -> None:
        for name, way in self.ways():
            for view in ("transposed", "sliced", "columns", "repeated"):
                with self.subTest(way=name, view=view):
                    got = way("alibi", torch.float32, view=view)
                    self.assertTrue(same(computed("alibi", torch.float32, view=view), got))

    def test_masks(self) -> None:
        for name, way in self.ways():
            for kind, options in masks().items():
                with self.subTest(way=name, mask=kind):
                    text = "t5:bidirectional=1" if kind == "full" else "alibi"
                    self.assertTrue(same(computed(text, torch.float32, **options), way(text, torch.float32, **options)))

    def test_compile(self) -> None:
        for name, way in self.ways():
            with self.subTest(way=name):
                torch.compiler.reset()
                call = torch.compile(loci.attention, fullgraph=True, backend="aot_eager")
                got = way("t5:bidirectional=0", torch.float32, call=call)
                self.assertTrue(same(computed("t5:bidirectional=0", torch.float32), got))

    def test_functions(self) -> None:
        """torch.func: vmap folds the batch, grad goes by its own Function."""
        q, k, v, *_ = problem("alibi", torch.float32)
        many = torch.stack([q, 2 * q])

        def loss(x: Any, device: str | None) -> Any:
            return loci.attention(x, k, v, "alibi", device=device).sin().sum()

        want = torch.func.vmap(torch.func.grad(lambda x: loss(x, None)))(many)
        got = torch.func.vmap(torch.func.grad(lambda x: loss(x, "host")))(many)
        self.assertTrue(same([want], [got]))
        with pretending():
            self.assertTrue(same([want], [torch.func.vmap(torch.func.grad(lambda x: loss(x, None)))(many)]))

    def test_prepared(self) -> None:
        plan = loci.Plan("t5:bidirectional=0", 4, 32, kv_heads=2)
        q, k, v, tensors, *_ = problem(plan.encoding, torch.float32)
        want = plan.attention(q, k, v, tensors)
        with pretending():
            prepared = plan.prepared(tensors, max_distance=200)
            self.assertTrue(same([want], [plan.attention(q, k, v, prepared)]))
            tensors["t5.table"].mul_(2)
            self.assertFalse(same([want], [plan.attention(q, k, v, prepared)]))
            want = plan.attention(q, k, v, tensors, device="cpu")
            self.assertTrue(same([want], [plan.attention(q, k, v, prepared)]))

    def test_out(self) -> None:
        q, k, v, *_ = problem("alibi", torch.float32)
        want = loci.attention(q, k, v, "alibi")
        for device in DEVICES:
            out = torch.empty(2, 150, 4, 32).transpose(1, 2)
            self.assertIs(loci.attention(q, k, v, "alibi", out=out, device=device), out)
            self.assertTrue(same([want], [out]))

    def test_module(self) -> None:
        torch.manual_seed(0)
        layer = loci.nn.Attention(64, heads=4, encoding="rope:pairing=half+t5:bidirectional=0", kv_heads=2)
        x = torch.randn(2, 50, 64)
        with pretending():
            got = layer(x)
            got.square().sum().backward()
        grads = [p.grad for p in layer.parameters()]
        layer.zero_grad()
        want = layer(x)
        want.square().sum().backward()
        self.assertTrue(same([want, *(p.grad for p in layer.parameters())], [got, *grads]))

    def test_rows(self) -> None:
        """Rotations and embeddings, with all gradients."""
        generator = torch.Generator().manual_seed(3)
        x = torch.randn(2, 4, 40, 32, generator=generator)
        pos = torch.arange(40) * 3 % 50

        def run(device: str | None, rotate: Any = loci.rotate, embed: Any = loci.embed) -> list[torch.Tensor]:
            out = []
            for text in ("rope:pairing=half,freq=given", "angles:pairing=half", "mixed"):
                plan = loci.Plan(text, 4, 32, stage="rotate")
                numbers = {**plan.init(1), **inputs(plan, 2, 40, 40)}
                given = {name: torch.tensor(t) for name, t in numbers.items() if not name.endswith("_k")}
                rows = x.clone().requires_grad_()
                learned = [t.requires_grad_() for t in given.values()]
                where: dict[str, Any] = {"coords": torch.stack((pos, pos % 7))} if text == "mixed" else {"pos": pos}
                y = rotate(rows, text, **where, tensors=given, device=device)
                y.sin().sum().backward()
                out += [y, rows.grad, *(t.grad for t in learned)]
            table = torch.randn(64, 32, generator=torch.Generator().manual_seed(6)).requires_grad_()
            rows = x[:, 0].clone().requires_grad_()
            y = embed(rows, "learned", pos=pos, tensors={"learned.table": table}, device=device)
            y.sin().sum().backward()
            return [*out, y, rows.grad, table.grad]

        want = run(None)
        for device in DEVICES:
            with self.subTest(device=device):
                self.assertTrue(same(want, run(device)))
        torch.compiler.reset()
        compiled = (torch.compile(call, fullgraph=True, backend="aot_eager") for call in (loci.rotate, loci.embed))
        self.assertTrue(same(want, run("host", *compiled)))
        cos, sin = torch.rand(40, 16, generator=generator), torch.rand(40, 16, generator=generator)
        turned = loci.rotate_by(x, cos, sin, pairing="half")
        with pretending():
            self.assertTrue(same(want, run(None)))
            self.assertTrue(same([turned], [loci.rotate_by(x, cos, sin, pairing="half")]))

    def test_linear_attention(self) -> None:
        generator = torch.Generator().manual_seed(3)
        given = [torch.randn(2, heads, 90, 32, generator=generator) for heads in (4, 2, 2)]
        freq = torch.rand(16, generator=generator)

        def run(device: str | None, call: Any = loci.linear_attention) -> list[torch.Tensor]:
            q, k, v, own = (x.clone().requires_grad_() for x in (*given, freq))
            o = call(q, k, v, "rope:pairing=half,freq=given", tensors={"rope.freq": own}, device=device)
            o.sin().sum().backward()
            return [o, q.grad, k.grad, v.grad, own.grad]

        want = run(None)
        for device in DEVICES:
            with self.subTest(device=device):
                self.assertTrue(same(want, run(device)))
        torch.compiler.reset()
        self.assertTrue(
            same(want, run("host", torch.compile(loci.linear_attention, fullgraph=True, backend="aot_eager")))
        )
        with pretending():
            self.assertTrue(same(want, run(None)))

    def test_sinks_of_rows(self) -> None:
        q, k, v, _, _, dlse = problem("alibi", torch.float32)
        want = loci.attention(q, k, v, "alibi", sinks=dlse)
        self.assertTrue(same([want], [loci.attention(q, k, v, "alibi", sinks=dlse, device="host")]))

    def test_refused(self) -> None:
        q = torch.zeros(1, 4, 8, 32)
        there = torch.zeros(1, 4, 8, 32, device="meta")
        with self.assertRaisesRegex(loci.Error, "k is on meta and q on cpu; arrays of a call are on one device"):
            loci.attention(q, there, there)
        with pretending(), self.assertRaisesRegex(loci.Error, "device is for arrays in memory of the CPU, and q is on"):
            loci.attention(q, q, q, device="host")
        with pretending(), self.assertRaisesRegex(loci.Error, "dtype F64 does not run on a GPU"):
            loci.attention(q.double(), q.double(), q.double())


if __name__ == "__main__":
    unittest.main()
