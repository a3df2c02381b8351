# SPDX-License-Identifier: MIT
"""Caches on devices have the bits of those on the CPU.  Devices are those that need no GPU."""

from __future__ import annotations

import copy
import ctypes
import pickle
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

import loci
from loci import _c, _gpu, _plan

from . import encodings
from .test_gpu import DEVICES, IDS, recording

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

HEADS, KV_HEADS, DIM, BATCH, LENGTH = 4, 2, 32, 2, 100
PIECES = [(0, 70), (70, 71), (71, 74), (74, 75), (75, 100)]


def problem(batch: int = BATCH, length: int = LENGTH, dim: int = DIM) -> list[Any]:
    rng = np.random.default_rng(1)
    heads = (HEADS, KV_HEADS, KV_HEADS)
    return [rng.standard_normal((batch, one, length, dim), np.float32) for one in heads]


def piece(arrays: Any, begin: int, end: int) -> list[Any]:
    return [x[:, :, begin:end] for x in arrays]


def as_tuple(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)


class Both:
    """A cache on the CPU and one on a device, which are told the same."""

    def __init__(self, test: unittest.TestCase, device: str, text: str, **options: Any) -> None:
        usual = {"kv_heads": KV_HEADS, "batch": BATCH, "capacity": 128, **options}
        self.test, self.calls = test, {}
        self.here = loci.Cache(text, HEADS, usual.pop("dim", DIM), **usual)
        usual = {**usual, "kv_heads": self.here.plan.kv_heads}
        self.there = loci.Cache(text, HEADS, self.here.plan.dim, **usual, device=device)

    def same(self, a: Any, b: Any) -> Any:
        a, b = as_tuple(a), as_tuple(b)
        self.test.assertEqual(len(a), len(b))
        for x, y in zip(a, b, strict=True):
            self.test.assertEqual((type(x), x.dtype, x.shape), (type(y), y.dtype, y.shape))
            if torch is not None and isinstance(x, torch.Tensor):
                x, y = (z.contiguous().view(torch.uint8).numpy() for z in (x, y))
            np.testing.assert_array_equal(*(np.ascontiguousarray(z).view(np.uint8) for z in (x, y)))

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any, **options: Any) -> Any:
            a, b = getattr(self.here, name)(*given, **options), getattr(self.there, name)(*given, **options)
            if a is not None:
                self.same(a, b)
            self.test.assertEqual(self.here.lengths, self.there.lengths)
            return b

        return call


@unittest.skipUnless(IDS, "there is no libloci-gpu")
class Caches(unittest.TestCase):
    def test_every_encoding(self) -> None:
        """Each has the CPU's bits, or is refused."""
        ran = set()
        for e in encodings.attending():
            with self.subTest(encoding=e.example):
                plan = loci.Plan(e.example, HEADS, DIM, kv_heads=KV_HEADS, max_len=64)
                arrays, tensors = problem(length=40), plan.init(2)
                given = encodings.inputs(plan, BATCH, 40, 40)
                coords = np.arange(plan.axes * 40).reshape(plan.axes, 40) % 7 if plan.axes > 1 else None
                try:
                    both = Both(self, "host", e.example, tensors=tensors, max_len=64, capacity=64)
                except loci.Error as error:
                    self.assertEqual(error.status, "unsupported")
                    continue
                for begin, end in ((0, 20), (20, 21), (21, 22), (22, 40)):
                    at = None if coords is None else coords[:, begin:end]
                    inputs = encodings.cut(plan, given, begin, end) or None
                    both.step(*piece(arrays, begin, end), inputs=inputs, coords=at)
                ran.add(e.name)
        least = "nope alibi t5 clip kerple sandwich fire rope mrope rope2d mixed xpos fope angles comrope liere pope"
        least += " rerope selfextend shaw xl deberta sba cope wall path cape tape fox sink softcap logn ssmax"
        self.assertGreaterEqual(ran, set(least.split()))

    def test_pieces(self) -> None:
        arrays = problem()
        texts = "nope", "alibi", "rope:pairing=half", "t5:bidirectional=0", "rope:pairing=half+alibi:slopes=both"
        for device in DEVICES:
            for text in texts:
                with self.subTest(device=device, text=text):
                    plan = loci.Plan(text, HEADS, DIM, kv_heads=KV_HEADS)
                    given = encodings.inputs(plan, BATCH, LENGTH, LENGTH)
                    both = Both(self, device, text, tensors=plan.init(3))
                    for at in PIECES:
                        q, k, v = piece(arrays, *at)
                        inputs = encodings.cut(plan, given, *at)
                        both.append(k, v, inputs=inputs)
                        both.attend(q, inputs=inputs)
                    self.assertEqual((len(both.there), both.there.lengths), (LENGTH, [LENGTH] * BATCH))
                    self.assertGreater(both.there.nbytes, BATCH * KV_HEADS * 128 * 2 * DIM * 4)

    def test_inputs(self) -> None:
        """Those of the first call may be copies, and those of later ones are where they are."""
        arrays = problem()
        gates = -np.random.default_rng(2).random((BATCH, HEADS, LENGTH)).astype(np.float32)
        wide = np.zeros((BATCH, HEADS, 2 * LENGTH), np.float32)
        wide[:, :, ::2] = gates
        for device in DEVICES:
            both = Both(self, device, "rope:pairing=half+fox")
            for i, at in enumerate([*PIECES[:2], (71, 72), (72, 73), (73, 75), (75, 77)]):
                own = (gates if i % 2 else wide[:, :, ::2])[:, :, slice(*at)]
                both.step(*piece(arrays, *at), inputs={"fox.log_f": own})

    def test_types(self) -> None:
        kinds: list[dict[str, Any]] = [
            {"k_dtype": "q8_0", "v_dtype": "q8_0"},
            {"k_dtype": "bfloat16", "v_dtype": "float16"},
            {"dtype": "float16"},
            {"dtype": "float16", "k_dtype": "q8_0"},
        ]
        for device in DEVICES:
            for kind in kinds:
                with self.subTest(device=device, kind=kind):
                    arrays = [x.astype(kind.get("dtype", "float32")) for x in problem()]
                    both = Both(self, device, "rope:pairing=half", **kind)
                    for at in PIECES:
                        both.step(*piece(arrays, *at))
                    both.remove(5, 40)
                    both.attend(arrays[0][:, :, -1:])

    def test_latents(self) -> None:
        """Values are the first channels of the keys; wide heads have up to eight rows a call."""
        rng = np.random.default_rng(3)
        for device in DEVICES:
            for dim, value_dim, most in ((48, 32, 30), (576, 512, 8)):
                with self.subTest(device=device, dim=dim):
                    q, k = (rng.standard_normal((BATCH, heads, LENGTH, dim), np.float32) for heads in (HEADS, 1))
                    text = f"rope:pairing=half,dim={dim - value_dim},offset={value_dim}"
                    latent = {"kv_heads": 1, "value_dim": value_dim, "values_in_keys": True}
                    both = Both(self, device, text, dim=dim, **latent)
                    both.append(k[:, :, :70])
                    both.attend(q[:, :, 60 : 60 + most])
                    both.remove(5, 30)
                    both.step(q[:, :, 70 : 70 + most], k[:, :, 70 : 70 + most])
                    if most == 8:
                        with self.assertRaisesRegex(loci.Error, "wider than 256 run on a GPU with at most 8 rows"):
                            both.there.step(q[:, :, :9], k[:, :, :9])
                        self.assertEqual(both.there.lengths, both.here.lengths)
                        both.step(q[:, :, 80:81], k[:, :, 80:81])

    def test_views_and_layouts(self) -> None:
        arrays = problem(length=20)
        for device in DEVICES:
            both = Both(self, device, "alibi", layout="blhd")
            turned = [x.swapaxes(1, 2) for x in arrays]
            both.step(*(x[:, :10] for x in turned))
            both.step(*(np.asfortranarray(x[:, 10:]) for x in turned))
            q, k, v = (x[:, :, :6] for x in arrays)
            both = Both(self, device, "alibi")
            both.step(q[..., ::-1], np.broadcast_to(k[:1, :1], k.shape), v)
            both.step(*(x[:, :, :0] for x in arrays))
            both.step(q, k, np.broadcast_to(v[:, :, :1], v.shape))

    def test_out(self) -> None:
        arrays = problem(length=9)
        for device in DEVICES:
            both = Both(self, device, "alibi")
            want = both.step(*arrays)
            for out in (np.empty_like(want), np.empty((BATCH, 9, HEADS, DIM), "float32").transpose(0, 2, 1, 3)):
                both.truncate(0)
                self.assertIs(both.there.step(*arrays, out=out), out)
                both.same(want, out)
                both.here.step(*arrays)

    def test_lengths_and_positions(self) -> None:
        q, k, v = problem()
        for device in DEVICES:
            both = Both(self, device, "rope:pairing=half")
            both.step(*piece((q, k, v), 0, 9), k_lens=[9, 4])
            both.append(*piece((k, v), 9, 12), k_lens=[0, 3])
            both.attend(q[:, :, 9:10])
            both.step(*piece((q, k, v), 12, 13))
            both.append(*piece((k, v), 13, 15), k_lens=2)
            self.assertEqual(both.there.lengths, [12, 10])
            both = Both(self, device, "rope:pairing=half+alibi", max_distance=900)
            both.step(*piece((q, k, v), 0, 9), pos=np.arange(9) * 100)
            both.step(*piece((q, k, v), 9, 11), pos=[[805, 809], [870, 880]])
            both = Both(self, device, "mrope:sections=4/6/6")
            both.step(*piece((q, k, v), 0, 9), coords=np.arange(27).reshape(3, 9))
            both.step(*piece((q, k, v), 9, 10), coords=[[9], [20], [30]])

    def test_ring(self) -> None:
        arrays = problem(length=300)
        for device in DEVICES:
            both = Both(self, device, "rope:pairing=half", window_size=(20, 0), ring=True)
            for begin in range(0, 300, 43):
                both.step(*piece(arrays, begin, begin + 43))
            both.truncate(290)
            both.step(*piece(arrays, 290, 291))
            for cache in (both.here, both.there):
                with self.assertRaisesRegex(loci.Error, "length 20: the ring contains only keys from"):
                    cache.truncate(20)
            both.step(*piece(arrays, 291, 292))

    def test_edits(self) -> None:
        arrays = problem(batch=3)
        for device in DEVICES:
            for text in ("alibi", "rope:pairing=half", "fox"):
                with self.subTest(device=device, text=text):
                    gates = -np.random.default_rng(2).random((3, HEADS, LENGTH)).astype(np.float32)

                    def step(both: Both, begin: int, end: int, text: str = text, gates: Any = gates) -> None:
                        inputs = {"fox.log_f": gates[:, :, begin:end]} if text == "fox" else None
                        both.step(*piece(arrays, begin, end), inputs=inputs)

                    both = Both(self, device, text, batch=3)
                    step(both, 0, 70)
                    both.truncate(66)
                    both.truncate(65, entry=1)
                    step(both, 66, 67)
                    both.remove(3, 10)
                    both.remove(0, 1, entry=2)
                    step(both, 67, 70)
                    both.fork(0, 2)
                    both.fork(1, 0, 30)
                    step(both, 70, 75)
                    self.assertEqual(both.there.lengths, [35, 64, 65])

    def test_trees(self) -> None:
        """Rows of trees, and what follows the nodes that are kept."""
        parents, chains = [-1, 0, 0, 1, 2, -1, 5, 3, 7], [[-1, 0, 9], [-1, 0, 1]]
        arrays = problem(batch=4)
        for device in DEVICES:
            for text in ("rope:pairing=half", "fox", "tape", "alibi"):
                with self.subTest(device=device, text=text):
                    both = Both(self, device, text, batch=4)
                    given = encodings.inputs(both.here.plan, 4, LENGTH, LENGTH)

                    def rows(count: int, begin: int, end: int, both: Any = both, given: Any = given) -> Any:
                        own = [x[:count] for x in piece(arrays, begin, end)]
                        own[1:] = [x[:, : both.here.plan.kv_heads] for x in own[1:]]
                        cut = encodings.cut(both.here.plan, given, begin, end)
                        return own, {name: x[:count] for name, x in cut.items()} or None

                    own, inputs = rows(4, 0, 62)
                    both.step(*own, inputs=inputs, k_lens=[62, 0, 0, 0])
                    own, inputs = rows(1, 62, 71)
                    both.tree(*own, parents, inputs=inputs)
                    both.tree(*own, parents, inputs=inputs)
                    both.keep(7)
                    self.assertEqual(both.there.lengths[0], 66)
                    own, inputs = rows(2, 71, 74)
                    out = [np.full((2, HEADS, 3, DIM), 7, np.float32) for _ in range(2)]
                    options = {"entry": [0, 2], "branch": [1, 3], "nodes": [2, 3], "inputs": inputs}
                    both.same(
                        both.here.tree(*own, chains, **options, out=out[0]),
                        both.there.tree(*own, chains, **options, out=out[1]),
                    )
                    self.assertTrue((out[1][0, :, 2] == 7).all())
                    both.keep([1, -1])
                    self.assertEqual(both.there.lengths, [68, 68, 64, 67])
                    own, inputs = rows(4, 74, 76)
                    both.step(*own, inputs=inputs)
                    for cache in (both.here, both.there):
                        with self.assertRaisesRegex(loci.Error, "there is none, or the cache has changed since"):
                            cache.keep(0)
                        with self.assertRaisesRegex(loci.Error, "entry 1 has 70 keys, which a path of the tree would"):
                            cache.tree(*rows(1, 76, 77)[0], [-1], inputs=rows(1, 76, 77)[1])

    def test_refresh(self) -> None:
        arrays, text = problem(), "t5:bidirectional=0"
        plan = loci.Plan(text, HEADS, DIM)
        sinks = np.linspace(-1, 1, HEADS, dtype=np.float32)
        for device in DEVICES:
            both = Both(self, device, text, tensors=plan.init(1), sinks=sinks)
            first = both.step(*piece(arrays, 0, 10))
            both.refresh(plan.init(2), sinks=2 * sinks)
            both.step(*piece(arrays, 10, 11))
            both.truncate(0)
            self.assertFalse(np.array_equal(both.step(*piece(arrays, 0, 10)), first))

    def test_states(self) -> None:
        """tape has a second result."""
        plan = loci.Plan("tape", HEADS, DIM, kv_heads=KV_HEADS)
        arrays, given = problem(), encodings.inputs(plan, BATCH, LENGTH, LENGTH)
        for device in DEVICES:
            both = Both(self, device, "tape")
            for at in ((0, 9), (9, 10), (10, 11)):
                self.assertEqual(len(both.step(*piece(arrays, *at), inputs=encodings.cut(plan, given, *at))), 2)

    def test_all_of_a_call_is_there(self) -> None:
        """On the host memory of the CPU would do as well; a GPU could not read it."""
        library, rooms, seen = _gpu.library(), [], []

        class Library:
            def __getattr__(self, name: str) -> Any:
                return getattr(library, name)

            def gpu_alloc(self, device: Any, size: int, at: Any, error: Any) -> int:
                status = int(library.gpu_alloc(device, size, at, error))
                rooms.append((at._obj.value, size))
                return status

            def gpu_cache_append(self, plan: Any, tables: Any, work: int, cache: Any, call: Any) -> int:
                seen.extend([tables.device, work, call.k.data, call.v.data, *self.inputs(call)])
                return int(library.gpu_cache_append(plan, tables, work, cache, call))

            def gpu_forward(self, plan: Any, tables: Any, work: int, call: Any) -> int:
                seen.extend([tables.device, work, call.q.data, call.o.data, call.ae or work, *self.inputs(call)])
                return int(library.gpu_forward(plan, tables, work, call))

            def gpu_cache_remove(self, plan: Any, tables: Any, work: int, *rest: Any) -> int:
                seen.extend([tables.device, work])
                return int(library.gpu_cache_remove(plan, tables, work, *rest))

            def gpu_tree_forward(self, plan: Any, tables: Any, work: int, cache: Any, tree: Any, call: Any) -> int:
                views = call.q.data, call.k.data, call.v.data, call.o.data
                seen.extend([tables.device, work, *views, call.ae or work, *self.inputs(call)])
                return int(library.gpu_tree_forward(plan, tables, work, cache, tree, call))

            @staticmethod
            def inputs(call: Any) -> list[int]:
                given = ctypes.cast(call.tensors, ctypes.POINTER(ctypes.c_void_p))
                return [given[i] or 0 for i, t in enumerate(cache.plan.tensors) if t.role == "input"]

        arrays = problem()
        for text in ("tape", "rope:pairing=half+fox"):
            with mock.patch.object(_gpu, "library", Library), self.subTest(text=text):
                cache = loci.Cache(text, HEADS, DIM, kv_heads=KV_HEADS, batch=BATCH, capacity=64, device="host")
                given = encodings.inputs(cache.plan, BATCH, LENGTH, LENGTH)
                for at in ((0, 9), (9, 10), (10, 11)):
                    cache.step(*piece(arrays, *at), inputs=encodings.cut(cache.plan, given, *at))
                    cache.remove(1, 2)
                cut = {name: x[:1] for name, x in encodings.cut(cache.plan, given, 11, 13).items()}
                cache.tree(*(x[:1] for x in piece(arrays, 11, 13)), [-1, 0], branch=1, inputs=cut)
        self.assertGreater(len(seen), 70)
        for at in seen:
            self.assertTrue(any(first <= at < first + size for first, size in rooms), f"{at} is not there")

    def test_devices(self) -> None:
        """By a name or an object of the list; the CPU's are as without one."""
        arrays = problem(length=5)
        for device in (*(d for d in loci.gpu.devices() if d.id == "host"), "host"):
            Both(self, device, "alibi").step(*arrays)
        usual = {"kv_heads": KV_HEADS, "batch": BATCH, "capacity": 64}
        for cpu in (None, "cpu"):
            cache = loci.Cache("alibi", HEADS, DIM, **usual, device=cpu)
            cache.step(*arrays)
            self.assertEqual(pickle.loads(pickle.dumps(cache)).lengths, [5, 5])
            self.assertEqual(cache.memory.size, cache.nbytes)

    def test_released(self) -> None:
        """A cache keeps its device."""
        arrays = problem()
        both = Both(self, "host", "alibi")
        both.step(*piece(arrays, 0, 10))
        loci.release()
        both.step(*piece(arrays, 10, 12))
        both.remove(2, 3)
        both.step(*piece(arrays, 12, 13))

    def test_memory(self) -> None:
        """Each allocation is freed, and the device is closed after it."""
        called: list[str] = []
        loci.release()
        with mock.patch.object(_gpu, "library", return_value=recording(called)):
            cache = loci.Cache("alibi", HEADS, DIM, kv_heads=KV_HEADS, batch=BATCH, capacity=64, device="host")
            cache.step(*problem(length=5))
            cache.remove(1, 1)
            loci.release()
            self.assertNotIn("gpu_close", called)
            del cache
        self.assertEqual(called.count("gpu_alloc"), called.count("gpu_free"))
        self.assertEqual((called.count("gpu_open"), called.count("gpu_close"), called[-1]), (1, 1, "gpu_close"))


class Failing:
    """The library, one of whose functions fails."""

    def __init__(self, library: Any, name: str) -> None:
        self.library, self.name = library, name

    def __getattr__(self, name: str) -> Any:
        if name != self.name:
            return getattr(self.library, name)

        def fail(*given: Any) -> int:
            own = isinstance(given[-1], _c.CError)
            (given[-1] if own else _plan.thread.error).text = b"it failed"
            return _c.STATUS.index("device")

        return fail


@unittest.skipUnless(IDS, "there is no libloci-gpu")
class Refusals(unittest.TestCase):
    def test_what_it_has_not(self) -> None:
        _, k, v = problem(length=3)
        cache = loci.Cache("alibi", HEADS, DIM, kv_heads=KV_HEADS, batch=BATCH, capacity=64, device="host")
        cache.append(k, v)
        for call, sentence in (
            (cache.copy, r"a cache on host cannot be copied or pickled; fork\(\) copies a sequence within"),
            (lambda: copy.copy(cache), "a cache on host cannot be copied"),
            (lambda: copy.deepcopy(cache), "a cache on host cannot be copied"),
            (lambda: pickle.dumps(cache), "a cache on host cannot be copied or pickled"),
            (lambda: cache.memory, "a cache on host has its keys there; memory is of caches on the CPU"),
            (lambda: loci.Cache("nope", 4, 32, capacity=64, dtype="float64", device="host"), "F64 does not run on"),
            (lambda: loci.Cache("shaw", 4, 288, capacity=64, device="host"), "shaw does not run on a GPU in heads"),
            (lambda: loci.Cache("nope", 4, 32, batch=1 << 20, capacity=64, device="host"), "are too large for a GPU"),
        ):
            with self.subTest(sentence=sentence):
                with self.assertRaisesRegex(loci.Error, sentence) as caught:
                    call()
                self.assertEqual(caught.exception.status, "unsupported")
        for device, sentence in (("moon:0", "'moon:0' is no device"), ("host:99", "there is no host:99")):
            with self.assertRaisesRegex(loci.Error, sentence):
                loci.Cache("nope", 4, 32, capacity=64, device=device)
        with self.assertRaisesRegex(TypeError, "device must be a text such as 'cuda:0', not int"):
            loci.Cache("nope", 4, 32, capacity=64, device=1)  # type: ignore[arg-type]
        self.assertEqual(cache.lengths, [3, 3])

    def test_what_is_wrong_changes_nothing(self) -> None:
        for device in DEVICES:
            with self.subTest(device=device):
                self.wrong(device)

    def wrong(self, device: str) -> None:
        arrays = problem()
        gates = -np.ones((BATCH, HEADS, LENGTH), np.float32)
        both = Both(self, device, "fox", capacity=64)
        both.step(*piece(arrays, 0, 10), inputs={"fox.log_f": gates[:, :, :10]})
        there, ok = both.there, piece(arrays, 10, 11)
        for call, sentence in (
            (lambda: there.step(*piece(arrays, 10, 65), inputs={"fox.log_f": gates[:, :, 10:65]}), "10 of 64 keys"),
            (lambda: there.step(*ok), "fox.log_f is missing"),
            (lambda: there.step(*ok, inputs={"fox.log_f": gates}), "fox.log_f has the shape"),
            (lambda: there.step(ok[0], ok[1], piece(arrays, 10, 12)[2]), "v has 2 rows and q 1"),
            (lambda: there.step(*(x.astype("float16") for x in ok)), "q is float16 and the cache float32"),
            (lambda: there.truncate(11), "length 11 must be from 0 to 10"),
            (lambda: there.remove(5, 9), "9 keys from key 5 on reach beyond the end"),
            (lambda: there.fork(0, 0), "must be two different ones"),
            (lambda: there.fork(0, 1, 11), "length 11 must be from 0 to 10"),
        ):
            with self.subTest(sentence=sentence):
                with self.assertRaisesRegex(loci.Error, sentence):
                    call()
                self.assertEqual(there.lengths, [10, 10])
        both.step(*ok, inputs={"fox.log_f": gates[:, :, 10:11]})
        both = Both(self, device, "alibi", capacity=64)
        both.step(*piece(arrays, 0, 10), pos=np.arange(10))
        with self.assertRaisesRegex(loci.Error, "distances up to 5001, .*; make the cache with max_distance="):
            both.there.step(*piece(arrays, 10, 12), pos=[5000, 5001])
        both.step(*ok, pos=[10])

    def test_a_device_that_fails(self) -> None:
        """What has been appended is taken back, and the next call has the right bits."""
        arrays = problem(batch=3)
        both = Both(self, "host", "rope:pairing=half", batch=3)
        both.append(*piece(arrays[1:], 0, 9), k_lens=[9, 5, 7])
        for i, name in enumerate(("gpu_forward", "gpu_cache_append", "gpu_copy", "gpu_alloc")):
            for lens in (None, [1, 0, 1]):
                failing = mock.patch.object(_gpu, "library", return_value=Failing(_gpu.library(), name))
                with failing, self.subTest(name=name), self.assertRaisesRegex(loci.Error, "it failed") as caught:
                    both.there.step(*piece(arrays, 9, 10), k_lens=lens)
                self.assertEqual(caught.exception.status, "device")
                self.assertEqual(both.there.lengths, both.here.lengths)
            both.step(*piece(arrays, 10 + i, 11 + i))
        downloads = mock.Mock(side_effect=KeyboardInterrupt)
        with mock.patch.object(_gpu.Staged, "done", downloads), self.assertRaises(KeyboardInterrupt):
            both.there.step(*piece(arrays, 20, 30))
        both.step(*piece(arrays, 20, 30))


if torch is not None:
    from loci import _torch, _torch_gpu

    class Pretended(_torch_gpu.OnDevice):
        """Tensors of the CPU as if they were a GPU's, which the host computes."""

        def __init__(self, id: str = "host") -> None:
            super().__init__(torch.device("cpu"))
            self.id = id
            self.stream = _gpu.opened("host")

        def current(self) -> Any:
            return self.stream

        @staticmethod
        def host(x: Any) -> Any:
            return x.detach().clone()


@contextmanager
def pretending(kind: Any, both: Any = None) -> Iterator[None]:
    """Calls that are laid out stay apart from those of tensors of the CPU, which look alike."""
    with mock.patch.object(_torch.Torch, "placed", return_value=kind):
        if both is None:
            yield
            return
        with mock.patch.object(both.there, "_calls", both.calls):
            yield


@unittest.skipUnless(torch is not None and IDS, "there is no torch, or no libloci-gpu")
class Torch(unittest.TestCase):
    def test_tensors_of_the_cpu(self) -> None:
        arrays = [torch.from_numpy(x) for x in problem()]
        for device in DEVICES:
            for dtype in (torch.float32, torch.bfloat16):
                both = Both(self, device, "rope:pairing=half", dtype=str(dtype).removeprefix("torch."))
                for at in PIECES:
                    both.step(*(x.to(dtype) for x in piece(arrays, *at)))
            both = Both(self, device, "alibi")
            both.step(*piece([x.numpy() for x in arrays], 0, 5))
            both.step(*piece(arrays, 5, 9))
            leaf = arrays[0].clone().requires_grad_()
            with self.assertRaisesRegex(loci.Error, r"a cache has no gradient; use torch.no_grad\(\)"):
                both.there.step(*piece((leaf, *arrays[1:]), 9, 10))
            with torch.no_grad():
                both.step(*piece((leaf, *arrays[1:]), 9, 10))

    def step(self, kind: Any, both: Both, arrays: Any, begin: int, end: int, **options: Any) -> None:
        """On the CPU, and where they are pretended to be."""
        given = piece(arrays, begin, end)
        want = both.here.step(*given, **options)
        with pretending(kind, both):
            got = both.there.step(*given, **options)
        both.same(want, got)
        self.assertEqual(both.here.lengths, both.there.lengths)

    def test_tensors_there(self) -> None:
        kind = Pretended()
        arrays = [torch.from_numpy(x) for x in problem()]
        gates = torch.from_numpy(-np.random.default_rng(2).random((BATCH, HEADS, LENGTH)).astype(np.float32))
        plan = loci.Plan("t5:bidirectional=0", HEADS, DIM)
        tensors = {name: torch.from_numpy(x) for name, x in plan.init(1).items()}
        both = Both(self, "host", plan.encoding, tensors=plan.init(2))
        both.here.refresh(tensors)
        with pretending(kind):
            both.there.refresh(tensors)
        for at in PIECES:
            self.step(kind, both, arrays, *at)
        both = Both(self, "host", "rope:pairing=half+fox")
        for at in [*PIECES[:2], (71, 72), (72, 73)]:
            own = {"fox.log_f": gates[:, :, slice(*at)]}
            self.step(kind, both, arrays, *at, inputs=own)
        both.remove(3, 4)
        both.fork(0, 1)
        self.step(kind, both, arrays, 73, 76, inputs={"fox.log_f": gates[:, :, 73:76].double()})
        both.step(*piece(arrays, 76, 77), inputs={"fox.log_f": gates[:, :, 76:77]})  # copied there, of the same cache
        turned = [x.mT.contiguous().mT for x in arrays]
        self.step(kind, both, turned, 77, 80, inputs={"fox.log_f": gates[:, :, 77:80]})
        out = torch.empty(BATCH, 1, HEADS, DIM).transpose(1, 2)
        with pretending(kind, both):
            got = both.there.step(*piece(arrays, 80, 81), inputs={"fox.log_f": gates[:, :, 80:81]}, out=out)
        self.assertIs(got, out)
        both.same(both.here.step(*piece(arrays, 80, 81), inputs={"fox.log_f": gates[:, :, 80:81]}), out.clone())

    def test_streams(self) -> None:
        """A call waits for that of another stream, and only for that."""
        kind, arrays = Pretended(), [torch.from_numpy(x) for x in problem()]
        both = Both(self, "host", "rope:pairing=half")
        first = kind.stream
        loci.release()
        second = _gpu.opened("host")
        waited: list[Any] = []
        with mock.patch.object(_gpu.Device, "wait", lambda device: waited.append(device)):
            self.step(kind, both, arrays, 0, 9)
            self.step(kind, both, arrays, 9, 10)
            self.assertEqual(waited, [])
            kind.stream = second
            self.step(kind, both, arrays, 10, 11)
            self.step(kind, both, arrays, 11, 12)
            self.assertEqual(waited, [first])
            both.remove(2, 1)  # in the current stream
            both.fork(0, 1)
            self.assertEqual(waited, [first])
            both.step(*piece(arrays, 12, 13))  # copied, so on the cache's own device
            self.assertEqual(waited, [first, second])
            kind.stream = second
            self.step(kind, both, arrays, 13, 14)
            kind.stream = first
            both.remove(1, 1)
            self.assertEqual(waited, [first, second, first, second])
        self.step(kind, both, arrays, 14, 15)

    def test_elsewhere(self) -> None:
        """Tensors of another device than the cache's."""
        arrays = [torch.from_numpy(x) for x in problem(length=3)]
        usual: dict[str, Any] = {"kv_heads": KV_HEADS, "batch": BATCH, "capacity": 64}
        cpu, host = (loci.Cache("alibi", HEADS, DIM, **usual, device=device) for device in (None, "host"))
        kind = Pretended("cuda:1")
        for cache, where in ((cpu, "the CPU"), (host, "host")):
            cache.step(*arrays)
            want = f"q is on cuda:1 and the cache on {where}: make the cache with device='cuda:1'"
            with pretending(kind), self.assertRaisesRegex(loci.Error, want):
                cache.step(*piece(arrays, 0, 2))
            with pretending(kind), self.assertRaisesRegex(loci.Error, "sink.logit is on cuda:1 and the cache on"):
                cache.refresh(sinks=torch.zeros(HEADS))
            self.assertEqual(cache.lengths, [3, 3])

    def test_layer(self) -> None:
        torch.manual_seed(0)
        layer = loci.nn.Attention(64, heads=4, encoding="rope:pairing=half+t5:bidirectional=0", kv_heads=2)
        x = torch.randn(2, 20, 64)
        with torch.no_grad():
            want, here = layer(x), layer.new_cache(2, 64)
            there = layer.new_cache(2, 64, device="host")
            for at in (slice(0, 9), slice(9, 10), slice(10, 20)):
                got = layer(x[:, at], cache=there)
                self.assertTrue(torch.equal(layer(x[:, at], cache=here), got))
                torch.testing.assert_close(got, want[:, at])


if __name__ == "__main__":
    unittest.main()
