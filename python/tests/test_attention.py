# SPDX-License-Identifier: MIT
"""attention() on arrays: layouts, strides, masks, types, and gradients against differences."""

from __future__ import annotations

import itertools
import tracemalloc
import unittest
from typing import Any

import numpy as np

import loci

from . import encodings, reference

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]


def problem(
    batch: int, heads: int, kv_heads: int, rows: int, keys: int, dim: int, dtype: Any = np.float32, seed: int = 0
) -> Any:
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((batch, heads, rows, dim))
    k, v = (rng.standard_normal((batch, kv_heads, keys, dim)) for _ in range(2))
    return q.astype(dtype), k.astype(dtype), v.astype(dtype)


class Attention(unittest.TestCase):
    def near(self, got: Any, want: Any, bound: float = 2e-6) -> None:
        got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
        self.assertEqual(got.shape, want.shape)
        same = got == want
        self.assertTrue((same | (np.abs(np.where(same, 0, got - want)) <= bound * (1 + np.abs(want)))).all())

    def same(self, got: Any, want: Any) -> None:
        self.assertTrue(np.array_equal(np.asarray(got), np.asarray(want), equal_nan=True))

    def test_against_the_definition(self) -> None:
        for causal in (True, False):
            for window in ((-1, -1), (0, 0), (3, 0), (0, 2), (5, 4)):
                for rows, keys in ((1, 1), (7, 7), (1, 33), (5, 33), (33, 33), (9, 4)):
                    with self.subTest(causal=causal, window=window, rows=rows, keys=keys):
                        q, k, v = problem(2, 4, 2, rows, keys, 16)
                        o, lse = loci.attention(q, k, v, causal=causal, window_size=window, return_lse=True)
                        seen = reference.visible(rows, keys, causal, window)
                        want, rows_lse, _ = reference.attention(q, k, v, seen)
                        self.near(o, want)
                        self.near(lse, rows_lse)

    def test_softcap_and_sinks(self) -> None:
        q, k, v = problem(2, 4, 2, 9, 20, 16)
        sinks = np.array([0.5, -1, 2, 0], np.float32)
        seen = reference.visible(9, 20, True, (-1, -1))
        o = loci.attention(q, k, v, softcap=0.7, sinks=sinks, scale=0.3)
        self.near(o, reference.attention(q, k, v, seen, scale=0.3, cap=0.7, sinks=sinks)[0])
        self.same(loci.attention(q, k, v, softcap=0), loci.attention(q, k, v))

    def test_layouts_and_strides_have_the_same_bits(self) -> None:
        q, k, v = problem(2, 4, 2, 9, 12, 16)
        want = loci.attention(q, k, v, "rope:pairing=half+alibi")
        turned = [x.swapaxes(1, 2) for x in (q, k, v)]
        for how in (turned, [x.copy() for x in turned]):
            o = loci.attention(*how, "rope:pairing=half+alibi", layout="blhd")
            self.assertEqual(o.shape, (2, 9, 4, 16))
            self.same(o.swapaxes(1, 2), want)
        wide = [np.concatenate((x, x), -1)[..., :16] for x in (q, k, v)]
        backwards = [x[:, :, ::-1].copy()[:, :, ::-1] for x in (q, k, v)]
        columns = [np.asfortranarray(x) for x in (q, k, v)]
        for how in (wide, backwards, columns):
            self.same(loci.attention(*how, "rope:pairing=half+alibi"), want)

    def test_nothing_to_attend_to(self) -> None:
        for e in encodings.attending():
            plan = loci.Plan(e.example, 2, 8)
            for sizes in ((2, 0, 4), (2, 3, 0), (2, 40, 0), (0, 3, 4), (0, 0, 0)):
                if plan.axes > 1:
                    continue
                batch, rows, keys = sizes
                q, k, v = problem(batch, 2, 2, rows, keys, 8)
                given = encodings.inputs(plan, *sizes)
                learned = plan.init()
                with self.subTest(encoding=e.name, sizes=sizes):
                    o = loci.attention(q, k, v, e.example, tensors={**learned, **given})
                    o = o[0] if isinstance(o, tuple) else o
                    self.same(o, np.zeros_like(q))
                    if torch is None:
                        continue
                    leaves = [torch.from_numpy(x).requires_grad_() for x in (q, k, v, *given.values())]
                    named = dict(zip(given, leaves[3:], strict=True))
                    fixed = {name: torch.from_numpy(x) for name, x in learned.items()}
                    o = loci.attention(*leaves[:3], e.example, tensors={**fixed, **named})
                    o = o[0] if isinstance(o, tuple) else o
                    self.same(o.detach(), np.zeros_like(q))
                    for x, grad in zip(leaves, torch.autograd.grad(o.sum(), leaves), strict=True):
                        self.same(grad, np.zeros_like(x.detach()))

    def test_arrays_that_start_anywhere(self) -> None:
        q, k, v = problem(1, 2, 2, 5, 5, 8)
        room = np.zeros(q.nbytes + 1, np.uint8)
        crooked = room[1:].view(np.float32).reshape(q.shape)
        crooked[:] = q
        self.assertFalse(crooked.flags.aligned)
        for _ in range(2):
            self.same(loci.attention(crooked, k, v), loci.attention(q, k, v))
        cache = loci.Cache("alibi", 2, 8, capacity=8)
        self.same(cache.step(crooked, k, v), loci.attention(q, k, v, "alibi"))

    def test_strides_of_axes_of_size_1_mean_nothing(self) -> None:
        """numpy calls an array dense whatever they are."""
        q, k, v = problem(2, 1, 1, 5, 5, 8)
        want = loci.attention(q, k, v, "rope:pairing=half")
        for x in ((q[:, ::-1], k, v), (q, k[:, ::-1], v[:, ::-1])):
            self.same(loci.attention(*x, "rope:pairing=half"), want)
        out = np.zeros((2, 2, 5, 8), np.float32)[:, 1::-2]
        self.assertIs(loci.attention(q, k, v, "rope:pairing=half", out=out), out)
        self.same(out, want)
        self.same(loci.rotate(q[:, ::-1], "rope:pairing=half"), loci.rotate(q, "rope:pairing=half"))
        cache = loci.Cache("rope:pairing=half", 1, 8, batch=2, capacity=8)
        self.same(cache.step(q[:, ::-1], k[:, ::-1], v), want)

    def test_weights_check_what_comes_by_row(self) -> None:
        """Rows are chosen from it, so a size that is wrong would choose others, or fail in numpy."""
        q, k, _ = problem(1, 2, 2, 5, 7, 8)
        at = {"k_pos": np.arange(7)}
        for given, sentence in (
            ({"q_pos": [1, 2], **at}, r"q_pos has the shape \[2\], and q 5 rows"),
            ({"q_pos": np.arange(9), **at}, r"q_pos has the shape \[9\], and q 5 rows"),
            ({"q_pos": "ab", **at}, "q_pos must be whole numbers"),
            ({"k_first": [1, 2, 3]}, r"k_first has the shape \[3\], and q 5 rows"),
            ({"mask": np.ones((9, 7), bool)}, r"mask has the shape \[9, 7\], and q 5 rows"),
        ):
            with self.subTest(sentence=sentence), self.assertRaisesRegex(loci.Error, sentence):
                loci.weights(q, k, rows=[1], **given)
        whole = loci.weights(q, k, k_first=2, k_last=[[4]])
        self.same(loci.weights(q, k, k_first=2, k_last=[[4]], rows=[3]), whole[:, :, 3:4])

    def test_gradient_of_a_mask_without_rows(self) -> None:
        for shape in ((0, 2, 5, 8), (1, 2, 0, 8)):
            none, mask = np.zeros(shape, np.float32), np.zeros((1, 1, 1, 1), np.float32)
            o, lse = loci.attention(none, none, none, mask=mask, return_lse=True)
            self.same(loci.attention_backward(o, none, none, none, o, lse, mask=mask)[3]["mask"], mask)

    def test_no_rows_have_positions_of_no_type(self) -> None:
        none = np.zeros((1, 2, 0, 8), np.float32)
        self.assertEqual(loci.attention(none, none, none, "alibi", pos=[]).shape, none.shape)

    def test_broadcast_axes_are_read_in_place(self) -> None:
        q, k, v = problem(3, 4, 4, 8, 8, 16)
        one_k, one_v = k[:1, :1], v[:1, :1]
        k, v = (np.broadcast_to(x, (3, 4, 8, 16)) for x in (one_k, one_v))
        self.same(loci.attention(q, k, v), loci.attention(q, k.copy(), v.copy()))
        row = np.broadcast_to(k[:, :, :1], (3, 4, 8, 16))
        self.same(loci.attention(q, row, v), loci.attention(q, row.copy(), v.copy()))

    def test_packed_sequences(self) -> None:
        q, k, v = problem(1, 4, 2, 20, 20, 16)
        starts = np.array([0, 7, 7, 20], np.int32)
        flat = [x[0].swapaxes(0, 1) for x in (q, k, v)]
        o, lse = loci.attention(*flat, "alibi", layout="thd", cu_seqlens_q=starts, return_lse=True)
        self.assertEqual((o.shape, lse.shape), ((20, 4, 16), (4, 20)))
        for first, end in ((0, 7), (7, 20)):
            part, part_lse = loci.attention(*(x[:, :, first:end] for x in (q, k, v)), "alibi", return_lse=True)
            self.same(o[first:end].swapaxes(0, 1), part[0])
            self.same(lse[:, first:end], part_lse[0])

    def test_lengths_segments_positions(self) -> None:
        q, k, v = problem(2, 4, 4, 6, 10, 16)
        o = loci.attention(q, k, v, "alibi", k_lens=[10, 8])
        self.same(o[1:], loci.attention(q[1:], k[1:, :, :8], v[1:, :, :8], "alibi"))
        segments = [0] * 3 + [1] * 7
        q, k, v = problem(2, 4, 4, 10, 10, 16)
        o = loci.attention(q, k, v, seg=segments)
        self.same(o[:, :, :3], loci.attention(*(x[:, :, :3] for x in (q, k, v))))
        self.same(loci.attention(q, k, v, "alibi", pos=np.arange(10) + 77), loci.attention(q, k, v, "alibi"))
        padded = loci.attention(q, k, v, seg=[[-1] + [0] * 9, [0] * 10])
        self.assertFalse(padded[0, :, 0].any())
        for kind in (np.int16, np.uint8, np.int32):
            self.same(
                loci.attention(q, k, v, "alibi", pos=np.arange(10).astype(kind)), loci.attention(q, k, v, "alibi")
            )

    def test_one_length_for_all(self) -> None:
        rng = np.random.default_rng(5)
        q, k, v = (rng.standard_normal((2, 3, 12, 8), np.float32) for _ in range(3))
        for n in (7, np.int64(7), np.array(7)):
            self.assertTrue(
                np.array_equal(
                    loci.attention(q, k, v, "alibi", k_lens=n), loci.attention(q, k, v, "alibi", k_lens=[7, 7])
                )
            )
        self.assertTrue(
            np.array_equal(
                loci.weights(q, k, "alibi", k_lens=7, k_last=5),
                loci.weights(q, k, "alibi", k_lens=[7, 7], k_first=np.zeros((2, 12), int), k_last=np.full((2, 12), 5)),
            )
        )

    def test_segments_with_lengths(self) -> None:
        """The same as each entry alone, cut to its keys; what lies behind is not read."""
        rng = np.random.default_rng(6)
        q = rng.standard_normal((3, 2, 4, 8), np.float32)
        k, v = (rng.standard_normal((3, 2, 12, 8), np.float32) for _ in range(2))
        lens, k_seg = [12, 7, 4], np.arange(12) // 5
        for entry, n in enumerate(lens):
            k[entry, :, n:] = v[entry, :, n:] = np.nan
        q_seg = np.stack([k_seg[n - 4 : n] for n in lens])
        for text in ("rope:pairing=half+alibi", "t5:bidirectional=0", "kerple"):
            tensors = loci.Plan(text, 2, 8).init()
            got = loci.attention(q, k, v, text, tensors=tensors, q_seg=q_seg, k_seg=k_seg, k_lens=lens)
            for entry, n in enumerate(lens):
                one = [x[entry : entry + 1] for x in (q, k[:, :, :n], v[:, :, :n])]
                want = loci.attention(*one, text, tensors=tensors, q_seg=q_seg[entry], k_seg=k_seg[:n])
                self.assertTrue(np.array_equal(got[entry : entry + 1], want))
            pos = np.arange(12) * 2
            where = {"q_pos": pos[-4:], "k_pos": pos, "q_seg": q_seg, "k_seg": k_seg, "k_lens": lens}
            self.assertTrue(np.isfinite(loci.attention(q, k, v, text, tensors=tensors, **where)).all())

    def test_first_or_last_key_alone(self) -> None:
        rng = np.random.default_rng(7)
        q, k, v = (rng.standard_normal((2, 3, 9, 8), np.float32) for _ in range(3))
        first, last = np.arange(9) // 2, np.full((2, 9), 6)
        zero, end = np.zeros((2, 9), int), np.full((2, 9), 8)

        def attend(**where: Any) -> Any:
            return loci.attention(q, k, v, "alibi", causal=False, **where)

        for got, want in (
            (attend(k_first=first), attend(k_first=first, k_last=end[0])),
            (attend(k_last=last), attend(k_first=zero, k_last=last)),
            (attend(k_last=6), attend(k_first=zero, k_last=last)),
            (attend(k_first=first, k_last=last), attend(k_first=np.stack([first, first]), k_last=last)),
            (attend(k_first=[[2], [3]]), attend(k_first=[[2] * 9, [3] * 9], k_last=end)),
        ):
            self.assertTrue(np.array_equal(got, want))

    def test_nothing(self) -> None:
        for shape in ((0, 4, 3), (2, 0, 3), (2, 4, 0)):
            q = np.zeros((*shape, 8), np.float32)
            o, lse = loci.attention(q, q, q, return_lse=True)
            self.assertEqual((o.shape, lse.shape), (q.shape, shape))
        q, k, v = problem(2, 4, 4, 3, 0, 8)
        o, lse = loci.attention(q, k, v, return_lse=True)
        self.assertFalse(o.any())
        self.assertTrue((lse == -np.inf).all())
        o, lse = loci.attention(q, k, v, sinks=np.ones(4, np.float32), return_lse=True)
        self.assertTrue((lse == 1).all())

    def test_types(self) -> None:
        q, k, v = problem(1, 2, 2, 9, 9, 16, np.float64)
        exact = loci.attention(q, k, v)
        seen = reference.visible(9, 9, True, (-1, -1))
        self.near(exact, reference.attention(q, k, v, seen)[0], 1e-14)
        half = [x.astype(np.float16) for x in (q, k, v)]
        o = loci.attention(*half)
        self.assertEqual(o.dtype, np.float16)
        self.same(o, loci.attention(*(x.astype(np.float32) for x in half)).astype(np.float16))

    def test_out_is_written_in_place(self) -> None:
        q, k, v = problem(2, 4, 4, 6, 6, 16)
        room = np.full((2, 6, 4, 32), 7, np.float32)
        out = room[..., :16].swapaxes(1, 2)
        made = loci.attention(q, k, v, out=out)
        self.assertIs(made, out)
        self.same(out, loci.attention(q, k, v))
        self.assertTrue((room[..., 16:] == 7).all())

    def test_dlpack(self) -> None:
        class Foreign:
            def __init__(self, x: Any) -> None:
                self.x = x

            def __dlpack__(self, **options: Any) -> Any:
                return self.x.__dlpack__()

            def __dlpack_device__(self) -> Any:
                return self.x.__dlpack_device__()

        q, k, v = problem(1, 2, 2, 5, 5, 8)
        self.same(loci.attention(*(Foreign(x) for x in (q, k, v))), loci.attention(q, k, v))

    def test_not_finite(self) -> None:
        q, k, v = problem(1, 2, 2, 8, 8, 16)
        v[:, :, 5] = np.nan
        o = loci.attention(q, k, v)
        self.assertTrue(np.isfinite(o[:, :, :5]).all())
        self.assertTrue(np.isnan(o[:, :, 5:]).all())

    def test_gradients_against_differences(self) -> None:
        for encoding, causal in (
            ("t5:bidirectional=1", False),
            ("alibi+softcap:cap=2", True),
            ("rope:pairing=half", True),
        ):
            with self.subTest(encoding=encoding):
                self.differences(encoding, causal)

    def differences(self, encoding: str, causal: bool) -> None:
        q, k, v = problem(2, 2, 1, 5, 6, 8, np.float64)
        rng = np.random.default_rng(5)
        plan = loci.Plan(encoding, 2, 8, kv_heads=1, dtype="float64", causal=causal)
        tensors = {name: x + rng.standard_normal(x.shape) for name, x in plan.init().items()}
        dout = rng.standard_normal((2, 2, 5, 8))
        dlse = rng.standard_normal((2, 2, 5))

        def loss() -> float:
            o, lse = loci.attention(q, k, v, encoding, tensors=tensors, causal=causal, return_lse=True)
            return float((o * dout).sum() + (lse * dlse).sum())

        o, lse = loci.attention(q, k, v, encoding, tensors=tensors, causal=causal, return_lse=True)
        options: Any = {"dlse": dlse, "tensors": tensors, "causal": causal}
        dq, dk, dv, dt = loci.attention_backward(dout, q, k, v, o, lse, encoding, **options)
        for x, dx in ((q, dq), (k, dk), (v, dv), *((tensors[name], dt[name]) for name in dt)):
            for at in rng.integers(0, x.size, 12):
                kept, step = x.flat[at], 1e-6
                x.flat[at] = kept + step
                above = loss()
                x.flat[at] = kept - step
                below = loss()
                x.flat[at] = kept
                self.assertAlmostEqual((above - below) / (2 * step), dx.flat[at], delta=1e-7)

    def test_masks(self) -> None:
        """Booleans and numbers that are added, of every shape that spreads, against the definition."""
        q, k, v = problem(2, 4, 2, 9, 20, 16)
        rng = np.random.default_rng(8)
        order = reference.visible(9, 20, True, (-1, -1))
        for shape in ((2, 4, 9, 20), (4, 9, 20), (2, 1, 1, 20), (9, 20), (9, 1), (20,), (1, 1)):
            seen = rng.random(shape) < 0.6
            o, lse = loci.attention(q, k, v, mask=seen, return_lse=True)
            want = reference.attention(q, k, v, order & np.broadcast_to(seen, (2, 4, 9, 20)))
            self.near(o, want[0])
            self.near(lse, want[1])
            bias = np.where(seen, rng.standard_normal(shape), -np.inf).astype(np.float32)
            o = loci.attention(q, k, v, mask=bias, softcap=2.0)
            raw = reference.scores(q, k)
            capped = 2 * np.tanh(raw / 2) - raw
            added = capped + np.where(seen, bias, 0)
            want = reference.attention(q, k, v, order & np.broadcast_to(seen, (2, 4, 9, 20)), bias=added)
            self.near(o, want[0])
            zero = np.where(seen, 0, -np.inf).astype(np.float32)
            self.same(loci.attention(q, k, v, mask=zero), loci.attention(q, k, v, mask=seen))
        strided = np.asfortranarray(rng.random((2, 4, 9, 20)) < 0.5)
        self.same(loci.attention(q, k, v, mask=strided), loci.attention(q, k, v, mask=strided.copy()))

    def test_views_of_masks(self) -> None:
        """Repeated, turned or with gaps: the bits of the mask that is written out, forward and backward."""
        q, k, v = problem(2, 4, 2, 9, 20, 16)
        rng = np.random.default_rng(9)
        whole = 2, 4, 9, 20
        views: tuple[Any, ...] = (
            lambda x, spread: spread(x[:, :1, :9, :1], whole),
            lambda x, spread: spread(x[:1, :, :1, :1], whole),
            lambda x, spread: spread(x[0, 0, :9, :1], whole[2:]),
            lambda x, spread: spread(x[0, 0, 0, 0], whole),
            lambda x, spread: x[:, :, ::2, :9].swapaxes(2, 3),
            lambda x, spread: x.swapaxes(2, 3)[:, :, :9, 1::2],
        )
        kept = rng.random((2, 4, 40, 20)) < 0.6
        numbers = np.where(kept, rng.standard_normal(kept.shape), -np.inf)
        for view, base in itertools.product(views, (kept, numbers.astype("f"), numbers.astype(np.float16))):
            mask = view(base, np.broadcast_to)
            with self.subTest(strides=mask.strides, dtype=mask.dtype.name):
                made = []
                for m in (mask, mask.copy()):
                    o, lse = loci.attention(q, k, v, "alibi", mask=m, return_lse=True)
                    grads = loci.attention_backward(q, q, k, v, o, lse, "alibi", mask=m)
                    made.append((o, lse, *grads[:3], *grads[3].values(), loci.weights(q, k, "alibi", mask=m)))
                for got, want in zip(*made, strict=True):
                    self.same(got, want)
                if torch is None:
                    continue
                t = torch.from_numpy(base)
                leaves = [torch.from_numpy(x).requires_grad_() for x in (q, k, v)]
                o = loci.attention(*leaves, "alibi", mask=view(t, lambda x, shape: x.expand(shape)))
                self.same(o.detach(), made[0][0])
                for got, want in zip(
                    torch.autograd.grad((o * leaves[0].detach()).sum(), leaves), made[0][2:5], strict=True
                ):
                    self.same(got, want)

    def test_masks_are_not_written_out(self) -> None:
        q, k, v = problem(1, 8, 8, 512, 512, 8)
        tracemalloc.start()
        try:
            for dtype in (bool, np.float32, np.float16):
                for shape in ((1, 1, 512, 1), (1, 8, 1, 1), (1, 1, 1, 512), (1, 8, 512, 1)):
                    mask = np.broadcast_to(np.ones(shape, dtype), (1, 8, 512, 512))
                    tracemalloc.reset_peak()
                    before = tracemalloc.get_traced_memory()[0]
                    loci.attention(q, k, v, mask=mask)
                    self.assertLess(tracemalloc.get_traced_memory()[1] - before, 1 << 19)
        finally:
            tracemalloc.stop()

    def test_first_and_last_keys(self) -> None:
        q, k, v = problem(2, 4, 4, 70, 150, 16)
        at = np.arange(80, 150)
        o = loci.attention(q, k, v, "rope:pairing=half", k_first=at - 30, k_last=at)
        self.same(o, loci.attention(q, k, v, "rope:pairing=half", window_size=(30, 0)))
        whole = loci.attention(q[:, :, :40], k[:, :, :110], v[:, :, :110], causal=False)
        last = np.maximum(at, 109)  # a prefix of 110 keys that all rows of it see
        o = loci.attention(q, k, v, causal=False, k_first=np.zeros(70, np.int64), k_last=last)
        self.same(o[:, :, :30], whole[:, :, :30])
        self.same(o[:, :, 30:], loci.attention(q, k, v)[:, :, 30:])

    def test_gradients_of_masks(self) -> None:
        q, k, v = problem(2, 2, 2, 5, 6, 8, np.float64)
        rng = np.random.default_rng(4)
        dout = rng.standard_normal(q.shape)
        for shape in ((2, 2, 5, 6), (2, 5, 6), (1, 1, 1, 6), (5, 1)):
            mask = rng.standard_normal(shape)
            o, lse = loci.attention(q, k, v, "alibi", mask=mask, return_lse=True)
            got = loci.attention_backward(dout, q, k, v, o, lse, "alibi", mask=mask)[3]["mask"]
            self.assertEqual(got.shape, mask.shape)
            for at in range(0, mask.size, 3):
                kept, step, both = mask.flat[at], 1e-6, []
                for sign in (1, -1):
                    mask.flat[at] = kept + sign * step
                    both.append(float((loci.attention(q, k, v, "alibi", mask=mask) * dout).sum()))
                mask.flat[at] = kept
                self.assertAlmostEqual((both[0] - both[1]) / (2 * step), got.flat[at], delta=1e-8)

    def test_caps_before_and_after_a_bias(self) -> None:
        """flash-attention caps the product and adds biases to that; some models cap the whole score."""
        q, k, v = problem(1, 8, 8, 9, 9, 16)
        seen = reference.visible(9, 9, True, (-1, -1))
        d = np.arange(9)[:, None] - np.arange(9)
        bias = -np.abs(d) * (2.0 ** -np.arange(1, 9))[:, None, None]
        raw = reference.scores(q, k)
        before = 0.5 * np.tanh(raw / 0.5) + bias
        after = 0.5 * np.tanh((raw + bias) / 0.5)
        for text, want in (("softcap:cap=0.5+alibi", before), ("alibi+softcap:cap=0.5", after)):
            self.near(loci.attention(q, k, v, text), reference.attention(q, k, v, seen, bias=want - raw)[0])
        self.same(loci.attention(q, k, v, "alibi", softcap=0.5), loci.attention(q, k, v, "softcap:cap=0.5+alibi"))

    def test_weights(self) -> None:
        q, k, v = problem(2, 4, 2, 30, 300, 16)
        made = loci.weights(q, k, "alibi", rows=[0, 7, -1])
        slope = 2.0 ** (-2 * np.arange(1, 5))
        d = np.arange(270, 300)[:, None] - np.arange(300)
        bias = -np.abs(d) * slope[:, None, None]
        seen = reference.visible(30, 300, True, (-1, -1))
        self.near(made, reference.attention(q, k, v, seen, bias=bias)[2][:, :, [0, 7, 29]])
        self.near(made.sum(-1), np.ones((2, 4, 3)), 1e-6)
        mask = np.random.default_rng(2).random((30, 300)) < 0.5
        some = loci.weights(q, k, rows=[3, 29], mask=mask)
        want = reference.attention(q, k, v, seen & mask)[2]
        self.near(some, want[:, :, [3, 29]])
        stick = loci.weights(q, k, "sba")
        rest = loci.attention(q, k, v, "sba", return_lse=True)[1]
        self.near(stick.sum(-1) + rest, np.ones((2, 4, 30)), 1e-5)

    def test_linear_attention_and_states(self) -> None:
        q, k, v = problem(2, 4, 4, 20, 20, 16)
        whole, end = loci.linear_attention(q, k, v, "rope:pairing=half", return_state=True)
        state = None
        parts = []
        for first in range(0, 20, 6):
            cut = [np.ascontiguousarray(x[:, :, first : first + 6]) for x in (q, k, v)]
            o, state = loci.linear_attention(*cut, "rope:pairing=half", state=state, return_state=True)
            parts.append(o)
        self.same(np.concatenate(parts, 2), whole)
        self.same(state._memory, end._memory)
        with self.assertRaisesRegex(loci.Error, "another plan"):
            loci.linear_attention(q, k, v, state=state)

    @unittest.skipIf(torch is None, "there is no torch")
    def test_torch_has_the_bits_of_numpy(self) -> None:
        q, k, v = problem(2, 4, 2, 9, 9, 16)
        for encoding in ("nope", "rope:pairing=half", "alibi"):
            o = loci.attention(*(torch.from_numpy(x) for x in (q, k, v)), encoding)
            self.assertIsInstance(o, torch.Tensor)
            self.same(o.numpy(), loci.attention(q, k, v, encoding))


class Random(unittest.TestCase):
    """Shapes, groups, masks and encodings by chance, against the definition where there is one in closed form, else
    against float64."""

    def test_every_encoding(self) -> None:
        rng = np.random.default_rng(11)
        tried = 0
        for e in encodings.attending():
            for _ in range(4):
                group, kv, dim = int(rng.integers(1, 4)), int(rng.integers(1, 3)), 8 * int(rng.integers(1, 5))
                heads, keys = group * kv, int(rng.integers(1, 80))
                rows, causal = int(rng.integers(1, keys + 1)), e.causal_only or bool(rng.integers(2))
                options: dict[str, Any] = {"causal": causal, "max_len": 128}
                plan = loci.Plan(e.example, heads, dim, kv_heads=kv, **options)
                q, k, v = problem(2, heads, kv, rows, keys, dim, np.float64, int(rng.integers(1 << 30)))
                if plan.axes > 1:
                    options["q_coords"] = rng.integers(0, 9, (plan.axes, rows))
                    options["k_coords"] = rng.integers(0, 9, (plan.axes, keys))
                tensors = {name: x.astype(np.float64) for name, x in plan.init(3).items()}
                tensors |= encodings.inputs(plan, 2, rows, keys, 4, "float64")
                with self.subTest(encoding=e.example, heads=(heads, kv), dim=dim, rows=rows, keys=keys, causal=causal):
                    exact = loci.attention(q, k, v, e.example, tensors=tensors, **options)
                    narrow = {name: x.astype(np.float32) for name, x in tensors.items()}
                    three = (x.astype(np.float32) for x in (q, k, v))
                    o = loci.attention(*three, e.example, tensors=narrow, **options)
                    if not isinstance(o, tuple):
                        o, exact = (o,), (exact,)
                    for got, want in zip(o, exact, strict=True):
                        bound = max(4 * e.tolerance, 2e-4) * (1 + np.abs(want).max(initial=0))
                        self.assertLess(np.abs(got - want).max(initial=0), bound)
                    tried += 1
        self.assertGreater(tried, 60)


if __name__ == "__main__":
    unittest.main()
