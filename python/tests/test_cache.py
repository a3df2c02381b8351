# SPDX-License-Identifier: MIT
"""Caches: rows have the bits of one pass, whatever the pieces; and what is wrong changes nothing."""

from __future__ import annotations

import copy
import itertools
import pickle
import unittest
from typing import Any

import numpy as np

import loci

from . import encodings

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

LENGTH, HEADS, DIM = 24, 4, 16
PIECES = [(0, 9), (9, 10), (10, 11), (11, 15), *((i, i + 1) for i in range(15, LENGTH))]


def first(x: Any) -> Any:
    return x[0] if isinstance(x, tuple) else x


def problem(batch: int = 2, kv_heads: int = HEADS) -> Any:
    rng = np.random.default_rng(1)
    q = rng.standard_normal((batch, HEADS, LENGTH, DIM), np.float32)
    k, v = (rng.standard_normal((batch, kv_heads, LENGTH, DIM), np.float32) for _ in range(2))
    return q, k, v


def piece(arrays: Any, begin: int, end: int) -> list[Any]:
    return [x[:, :, begin:end] for x in arrays]


class Caches(unittest.TestCase):
    def same(self, got: Any, want: Any) -> None:
        self.assertTrue(np.array_equal(np.asarray(got), np.asarray(want)))

    def test_every_encoding_in_pieces(self) -> None:
        tried = 0
        for e in encodings.attending():
            if "state" in e.places:
                continue
            with self.subTest(encoding=e.example):
                plan = loci.Plan(e.example, HEADS, DIM, max_len=64)
                arrays, tensors = problem(), plan.init(2)
                given = encodings.inputs(plan, 2, LENGTH, LENGTH)
                coords = np.random.default_rng(2).integers(0, 5, (plan.axes, LENGTH)) if plan.axes > 1 else None
                whole = loci.attention(*arrays, e.example, tensors={**tensors, **given}, max_len=64, coords=coords)
                caches = [
                    loci.Cache(e.example, HEADS, DIM, batch=2, capacity=LENGTH, tensors=tensors, max_len=64)
                    for _ in range(2)
                ]
                for begin, end in PIECES:
                    at = None if coords is None else coords[:, begin:end]
                    inputs = encodings.cut(plan, given, begin, end) or None
                    q, k, v = piece(arrays, begin, end)
                    o = caches[0].step(q, k, v, inputs=inputs, coords=at)
                    self.same(first(o), first(whole)[:, :, begin:end])
                    caches[1].append(k, v, inputs=inputs, coords=at)
                    self.same(first(caches[1].attend(q, inputs=inputs, coords=at)), first(o))
                self.assertEqual((len(caches[0]), caches[0].lengths), (LENGTH, [LENGTH] * 2))
                tried += 1
        self.assertGreater(tried, 15)

    def test_positions_far_apart(self) -> None:
        q, k, v = (x[:1] for x in problem())
        pos = np.arange(LENGTH) * 1000
        for text in ("rope:pairing=half", "alibi"):
            want = loci.attention(q, k, v, text, pos=pos)
            short = loci.Cache(text, HEADS, DIM, capacity=LENGTH)
            with self.assertRaisesRegex(loci.Error, "distances up to 23000, .*; make the cache with max_distance="):
                short.step(q, k, v, pos=pos)
            self.assertEqual(len(short), 0)
            far = loci.Cache(text, HEADS, DIM, capacity=LENGTH, max_distance=23000)
            for cache in (far, far.copy(), pickle.loads(pickle.dumps(far))):
                self.same(cache.step(q, k, v, pos=pos), want)

    def test_one_number_of_keys_for_all(self) -> None:
        q, k, v = problem()
        caches = [loci.Cache("alibi", HEADS, DIM, batch=2, capacity=LENGTH) for _ in range(2)]
        for cache, lens in zip(caches, (6, [6, 6]), strict=True):
            cache.append(k, v, k_lens=lens)
        self.assertEqual(caches[0].lengths, [6, 6])
        self.same(*(cache.attend(q[:, :, :6]) for cache in caches))

    def test_copies_go_on_apart(self) -> None:
        arrays = problem()
        cache = loci.Cache("rope:pairing=half+alibi", HEADS, DIM, batch=2, capacity=LENGTH)
        cache.step(*piece(arrays, 0, 10))
        others = [cache.copy(), copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))]
        want = cache.step(*piece(arrays, 10, 12))
        for other in others:
            self.assertEqual(len(other), 10)
            self.same(other.step(*piece(arrays, 10, 12)), want)

    def test_truncate_and_remove(self) -> None:
        arrays = problem()
        want = loci.attention(*arrays, "alibi")
        cache = loci.Cache("alibi", HEADS, DIM, batch=2, capacity=LENGTH)
        cache.step(*piece(arrays, 0, 20))
        cache.truncate(8)
        self.same(cache.step(*piece(arrays, 8, 24)), want[:, :, 8:])
        cache.remove(0, 4)
        self.assertEqual(cache.lengths, [20, 20])
        cache.truncate(10, entry=1)
        self.assertEqual(cache.lengths, [20, 10])

    def test_fork(self) -> None:
        q, k, v = problem()
        for x in (q, k, v):
            x[1, :, :9] = x[0, :, :9]  # the second sequence begins like the first
        log_f = np.full((2, HEADS, LENGTH), -0.1, np.float32)
        want = loci.attention(q, k, v, "fox", tensors={"fox.log_f": log_f})
        cache = loci.Cache("fox", HEADS, DIM, batch=2, capacity=LENGTH)
        at = slice(0, 12)
        cache.append(k[:, :, at], v[:, :, at], inputs={"fox.log_f": log_f[:, :, at]}, k_lens=[12, 0])
        cache.fork(0, 1, 9)
        self.assertEqual(cache.lengths, [12, 9])
        # each goes on: the first from key 12 on, the second from key 9 on
        rest = [np.stack([x[0, :, -15:], x[1, :, -15:]]) for x in (k, v, log_f)]
        cache.append(*rest[:2], inputs={"fox.log_f": rest[2]}, k_lens=[12, 15])
        self.same(cache.attend(q[:, :, -1:], inputs={"fox.log_f": log_f[:, :, -1:]}), want[:, :, -1:])
        cache.fork(1, 0)
        self.assertEqual(cache.lengths, [LENGTH, LENGTH])
        with self.assertRaisesRegex(loci.Error, "length 25 must be from 0 to 24, the keys of entry 0"):
            cache.fork(0, 1, 25)
        with self.assertRaisesRegex(loci.Error, "must be two different ones from 0 to 1"):
            cache.fork(0, 0)

    def test_stored_types(self) -> None:
        def q8(x: Any) -> Any:
            blocks = x.reshape(-1, 32)
            scale = (abs(blocks).max(1, keepdims=True) / np.float32(127)).astype(np.float16).astype(np.float32)
            return (np.clip(np.rint(blocks / scale), -127, 127) * scale).reshape(x.shape)

        rng = np.random.default_rng(3)
        q, k, v = (rng.standard_normal((1, heads, LENGTH, 32), np.float32) for heads in (4, 2, 2))
        usual = {"kv_heads": 2, "capacity": LENGTH}
        plain = loci.Cache("alibi", 4, 32, **usual)
        want = plain.step(q, q8(k), v.astype(np.float16).astype(np.float32))
        cache = loci.Cache("alibi", 4, 32, **usual, k_dtype="q8_0", v_dtype="float16")
        self.same(np.concatenate([cache.step(*piece((q, k, v), *at)) for at in PIECES], 2), want)
        self.assertLess(cache.nbytes, plain.nbytes / 2)
        again = pickle.loads(pickle.dumps(cache))
        self.same(again.step(*piece((q, k, v), 0, 1)), cache.step(*piece((q, k, v), 0, 1)))
        with self.assertRaisesRegex(loci.Error, "k_dtype must be one of bfloat16, float16, q8_0, or float32"):
            loci.Cache("nope", 4, 32, capacity=64, k_dtype="float64")
        with self.assertRaisesRegex(loci.Error, "32 numbers"):
            loci.Cache("nope", 4, 48, capacity=64, v_dtype="q8_0")
        with self.assertRaisesRegex(loci.Error, "as only loci.Cache can"):
            loci.attention(q, q, q, loci.Plan("nope", 4, 32, k_dtype="q8_0"))

    def test_values_in_keys(self) -> None:
        """Bits are those of values in an array of their own, in half the memory and less."""
        rng, text = np.random.default_rng(5), "rope:pairing=interleaved,dim=32,offset=64"
        q, k = (rng.standard_normal((2, heads, LENGTH, 96), np.float32) for heads in (HEADS, 1))
        kinds = [lambda x: x] if torch is None else [lambda x: x, torch.from_numpy]
        parents = [-1, 0, 0, 1]
        for stored, of in itertools.product((None, "bfloat16", "float16", "q8_0"), kinds):
            with self.subTest(stored=stored, of=of):
                usual = {"kv_heads": 1, "value_dim": 64, "batch": 4, "capacity": 64, "k_dtype": stored}
                own = loci.Cache(text, HEADS, 96, **usual, v_dtype=stored)
                cache = loci.Cache(text, HEADS, 96, **usual, values_in_keys=True)
                self.assertLess(cache.nbytes, 0.65 * own.nbytes)
                rows, keys = (of(np.concatenate((x, x))) for x in (q, k))
                values = of(np.ascontiguousarray(keys[..., :64]))
                for begin, end in PIECES[:4]:
                    q_, k_, v_ = piece((rows, keys, values), begin, end)
                    want = own.step(q_, k_, v_)
                    if end - begin == 1:
                        self.same(cache.step(q_, k_), want)
                    else:
                        cache.append(k_)
                        self.same(cache.attend(q_), want)
                copies = [cache, cache.copy(), pickle.loads(pickle.dumps(cache))]
                for c in (own, *copies):
                    c.truncate(12)
                    c.fork(0, 1)
                    c.remove(2, 3, entry=3)
                    q_, k_, v_ = piece((rows, keys, values), 15, 16)
                    c.append(k_, v_ if c is own else None, k_lens=[1, 0, 1, 1])
                    self.assertEqual(c.lengths, [13, 12, 13, 10])
                want = own.step(q_, k_, v_)
                for c in copies:
                    self.same(c.step(q_, k_), want)
                for c in (own, cache):
                    for entry in (2, 3):
                        c.truncate(0, entry)
                q_, k_, v_ = (x[:1, :, 16:20] for x in (rows, keys, values))
                self.same(
                    cache.tree(q_, k_, None, parents, entry=0, branch=2),
                    own.tree(q_, k_, v_, parents, entry=0, branch=2),
                )
                for c in (own, cache):
                    c.keep(3)
                    self.assertEqual(c.lengths[0], 17)
                q_, k_, v_ = piece((rows, keys, values), 20, 21)
                self.same(cache.step(q_, k_), own.step(q_, k_, v_))

    def test_values_in_keys_refused(self) -> None:
        rng, usual = np.random.default_rng(5), {"kv_heads": 1, "capacity": 64}
        q, k = (rng.standard_normal((1, heads, 2, 96), np.float32) for heads in (HEADS, 1))
        cache = loci.Cache("nope", HEADS, 96, **usual, value_dim=64, values_in_keys=True)
        own = loci.Cache("nope", HEADS, 96, **usual, value_dim=64)
        cache.append(k)
        for call, sentence in (
            (lambda: cache.step(q, k, k[..., :64]), "v must be None: the cache has values_in_keys"),
            (lambda: cache.append(k, k[..., :64]), "v must be None"),
            (lambda: cache.tree(q, k, k[..., :64], [-1, 0]), "v must be None"),
            (lambda: own.step(q, k), "v is missing; a cache with values_in_keys"),
            (lambda: loci.Cache("nope", HEADS, 96, **usual, values_in_keys=True), "value_dim must be .* 96, not None"),
            (lambda: loci.Cache("nope", HEADS, 96, **usual, value_dim=97, values_in_keys=True), "96, not 97"),
            (
                lambda: loci.Cache("rope:pairing=half", HEADS, 96, **usual, value_dim=64, values_in_keys=True),
                "rope rotates channels of keys from number 0 on, .* offset=64",
            ),
            (
                lambda: loci.Cache(
                    "nope", HEADS, 96, **usual, value_dim=64, values_in_keys=True, k_dtype="q8_0", v_dtype="float32"
                ),
                "v_dtype must be q8_0 or left out",
            ),
        ):
            with self.subTest(sentence=sentence), self.assertRaisesRegex(loci.Error, sentence):
                call()
        self.assertEqual(len(cache), 2)
        if torch is not None:
            with self.assertRaisesRegex(loci.Error, "values_in_keys must be False over ranks"):
                loci.distributed.Cache("nope", HEADS, 96, capacity=64, value_dim=64, values_in_keys=True)

    def test_ring(self) -> None:
        rng = np.random.default_rng(4)
        arrays = [rng.standard_normal((1, HEADS, 300, DIM), np.float32) for _ in range(3)]
        want = loci.attention(*arrays, "rope:pairing=half", window_size=(20, 0))
        cache = loci.Cache("rope:pairing=half", HEADS, DIM, capacity=100, window_size=(20, 0), ring=True)
        self.assertEqual(cache.capacity, 128)
        made = [cache.step(*piece(arrays, i, i + 4)) for i in range(0, 300, 4)]
        self.same(np.concatenate(made, 2), want)

    def test_layout_groups_and_lengths(self) -> None:
        arrays = problem(kv_heads=2)
        want = loci.attention(*arrays, "alibi")
        cache = loci.Cache("alibi", HEADS, DIM, batch=2, kv_heads=2, capacity=LENGTH, layout="blhd")
        turned = [x.swapaxes(1, 2) for x in arrays]
        made = [cache.step(*(x[:, i : i + 3] for x in turned)) for i in range(0, LENGTH, 3)]
        self.same(np.concatenate(made, 1).swapaxes(1, 2), want)
        cache = loci.Cache("alibi", HEADS, DIM, batch=2, kv_heads=2, capacity=LENGTH)
        o = cache.step(*piece(arrays, 0, 6), k_lens=[6, 4])
        self.assertEqual(cache.lengths, [6, 4])
        self.same(o[:1], want[:1, :, :6])

    def test_refresh(self) -> None:
        arrays = problem()
        plan = loci.Plan("t5:bidirectional=0", HEADS, DIM)
        one, two = plan.init(1), plan.init(2)
        cache = loci.Cache("t5:bidirectional=0", HEADS, DIM, batch=2, capacity=LENGTH, tensors=one)
        kept = {name: x.copy() for name, x in one.items()}
        cache.step(*piece(arrays, 0, 10))
        one["t5.table"][:] = 9  # a cache has its own
        o = cache.step(*piece(arrays, 10, 11))
        self.same(o, loci.attention(*arrays, "t5:bidirectional=0", tensors=kept)[:, :, 10:11])
        cache.refresh(two)
        o = cache.step(*piece(arrays, 11, 12))
        self.same(o, loci.attention(*arrays, "t5:bidirectional=0", tensors=two)[:, :, 11:12])

    def test_what_is_wrong_changes_nothing(self) -> None:
        arrays = problem()
        cache = loci.Cache("fox", HEADS, DIM, batch=2, capacity=12)
        gates = -np.ones((2, HEADS, 64), np.float32)
        cache.step(*piece(arrays, 0, 10), inputs={"fox.log_f": gates[:, :, :10]})
        many = [np.concatenate((x, x, x), 2)[:, :, :55] for x in arrays]
        before = cache.memory.copy()
        ok = piece(arrays, 10, 11)
        for call, sentence in (
            (lambda: cache.step(*many, inputs={"fox.log_f": gates[:, :, :55]}), "10 of 64 keys"),
            (lambda: cache.step(*ok), "fox.log_f is missing"),
            (lambda: cache.step(*ok, inputs={"fox.log_f": gates}), "fox.log_f has the shape"),
            (lambda: cache.step(*ok, inputs={"x.y": gates}), "fox has no input 'x.y'"),
            (lambda: cache.step(ok[0], ok[1], piece(arrays, 10, 12)[2]), "v has 2 rows and q 1"),
            (lambda: cache.step(*(x[:1] for x in ok)), "q has a batch of 1 and the cache of 2"),
            (lambda: cache.step(*(x.astype(np.float64) for x in ok)), "q is float64 and the cache float32"),
            (lambda: cache.append(ok[1][..., :8], ok[2]), "k has 4 heads of 8, and the cache wants 4 of 16"),
            (lambda: cache.truncate(11), "11"),
            (lambda: cache.remove(5, 9), "9|14"),
        ):
            with self.subTest(sentence=sentence):
                with self.assertRaisesRegex(loci.Error, sentence):
                    call()
                self.same(cache.memory, before)
                self.assertEqual(cache.lengths, [10, 10])

    def test_a_step_that_cannot_attend_appends_nothing(self) -> None:
        arrays = problem()
        cache = loci.Cache("alibi", HEADS, DIM, batch=2, capacity=LENGTH)
        cache.step(*piece(arrays, 0, 10), pos=np.arange(10))
        with self.assertRaisesRegex(loci.Error, "distances up to 5001"):
            cache.step(*piece(arrays, 10, 12), pos=[5000, 5001])
        self.assertEqual(cache.lengths, [10, 10])
        o = cache.step(*piece(arrays, 10, 11), pos=[10])
        self.same(o, loci.attention(*arrays, "alibi")[:, :, 10:11])

    def test_a_refused_step_leaves_no_inputs(self) -> None:
        """The next step that looks like it has gates of its own."""
        arrays = problem()
        gates = -np.random.default_rng(9).random((2, HEADS, LENGTH)).astype(np.float32)
        want = loci.attention(*arrays, "fox", tensors={"fox.log_f": gates})
        refused = np.zeros((2, HEADS, 4, DIM), np.float32)
        refused.flags.writeable = False
        cache = loci.Cache("fox", HEADS, DIM, batch=2, capacity=LENGTH)
        for i in range(0, LENGTH, 4):
            rows, own = piece(arrays, i, i + 4), gates[:, :, i : i + 4].copy()
            if i == 0:
                with self.assertRaisesRegex(loci.Error, "read-only"):
                    cache.step(*rows, inputs={"fox.log_f": own - 30}, out=refused)
            self.same(cache.step(*rows, inputs={"fox.log_f": own}), want[:, :, i : i + 4])

    def test_what_one_sequence_refuses_changes_none(self) -> None:
        arrays = problem(batch=3)
        cache = loci.Cache("alibi", HEADS, DIM, batch=3, capacity=LENGTH)
        cache.append(*arrays[1:], k_lens=[20, 4, 24])
        before = cache.memory.copy()
        for call in (lambda: cache.truncate(5), lambda: cache.remove(0, 5)):
            with self.assertRaisesRegex(loci.Error, "4"):
                call()
            self.assertEqual(cache.lengths, [20, 4, 24])
            self.same(cache.memory, before)
        cache.truncate(4)
        self.assertEqual(cache.lengths, [4, 4, 4])

    def test_a_ring_truncates_all_or_none(self) -> None:
        rng = np.random.default_rng(4)
        k = rng.standard_normal((2, HEADS, 8, DIM), np.float32)
        cache = loci.Cache("alibi", HEADS, DIM, batch=2, capacity=128, window_size=(4, 0), ring=True)
        for _ in range(40):
            cache.append(k, k, k_lens=[1, 8])
        before = cache.memory.copy()
        with self.assertRaisesRegex(loci.Error, "length 20: the ring contains only keys from 192 on"):
            cache.truncate(20)
        self.assertEqual(cache.lengths, [40, 320])
        self.same(cache.memory, before)

    @unittest.skipIf(torch is None, "there is no torch")
    def test_torch(self) -> None:
        arrays = [torch.from_numpy(x) for x in problem()]
        want = loci.attention(*arrays, "rope:pairing=half")
        cache = loci.Cache("rope:pairing=half", HEADS, DIM, batch=2, capacity=LENGTH)
        made = [cache.step(*piece(arrays, i, i + 1)) for i in range(LENGTH)]
        self.assertTrue(torch.equal(torch.cat(made, 2), want))
        cache.truncate(0)
        leaf = arrays[0].clone().requires_grad_()
        for i in range(2):  # the second looks like the first, which was without a gradient
            with self.assertRaisesRegex(loci.Error, "a cache has no gradient; use torch.no_grad()"):
                cache.step(*piece((leaf, *arrays[1:]), i, i + 1))
        with torch.no_grad():
            cache.step(*piece((leaf, *arrays[1:]), 0, 1))
        with self.assertRaisesRegex(loci.Error, "no gradient"):
            cache.step(*piece((leaf, *arrays[1:]), 1, 2))
        self.assertEqual(len(cache), 1)


if __name__ == "__main__":
    unittest.main()
