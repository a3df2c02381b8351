# SPDX-License-Identifier: MIT
"""Packed rows that rotate, packed sequences with unused keys, and sinks of each row."""

from __future__ import annotations

import itertools
import unittest
from typing import Any

import numpy as np

import loci

from . import reference

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

STARTS, K_STARTS = np.array([0, 3, 3, 10, 11]), np.array([0, 6, 9, 18, 20])


def numbers(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


class Rotations(unittest.TestCase):
    def test_packed_rows_have_the_bits_of_each_sequence(self) -> None:
        x = numbers(11, 4, 16)
        for text in ("rope:pairing=half", "rope:pairing=interleaved,base=50", "xpos"):
            for role in ("query", "key"):
                got = loci.rotate(x, text, role=role, layout="thd", cu_seqlens=STARTS)
                for a, b in itertools.pairwise(STARTS):
                    alone = loci.rotate(x[None, a:b], text, role=role, layout="blhd")
                    np.testing.assert_array_equal(got[a:b], alone[0])
                pos = np.concatenate([np.arange(b - a) for a, b in itertools.pairwise(STARTS)])
                np.testing.assert_array_equal(got, loci.rotate(x, text, role=role, layout="thd", pos=pos))

    def test_errors(self) -> None:
        x, text = numbers(11, 4, 16), "rope:pairing=half"
        for sentence, options in (
            ("layout 'thd' is packed: cu_seqlens says", {"layout": "thd"}),
            ("cu_seqlens is for packed rows", {"layout": "bhld", "cu_seqlens": STARTS}),
            ("cu_seqlens and pos both", {"layout": "thd", "cu_seqlens": STARTS, "pos": np.arange(11)}),
            ("cu_seqlens must go from 0 to the 11 rows of x", {"layout": "thd", "cu_seqlens": STARTS + 1}),
            ("cu_seqlens falls", {"layout": "thd", "cu_seqlens": [0, 5, 3, 11]}),
        ):
            with self.subTest(sentence), self.assertRaisesRegex(loci.Error, sentence):
                loci.rotate(x, text, **options)

    @unittest.skipUnless(torch, "there is no torch")
    def test_torch(self) -> None:
        x, cu, text = (
            torch.from_numpy(numbers(11, 4, 16)).requires_grad_(),
            torch.from_numpy(STARTS),
            "rope:pairing=half",
        )

        def turn(x: Any, cu: Any) -> Any:
            return loci.rotate(x, text, layout="thd", cu_seqlens=cu)

        y = turn(x, cu)
        np.testing.assert_array_equal(
            y.detach().numpy(), loci.rotate(x.detach().numpy(), text, layout="thd", cu_seqlens=STARTS)
        )
        (dx,) = torch.autograd.grad((y * y.detach()).sum(), x)
        np.testing.assert_allclose(dx.numpy(), x.detach().numpy(), rtol=0, atol=1e-6)  # a rotation, there and back
        compiled = torch.compile(turn, backend="aot_eager", fullgraph=True)
        np.testing.assert_array_equal(compiled(x, cu).detach().numpy(), y.detach().numpy())


class Lengths(unittest.TestCase):
    def test_unused_keys_of_packed_sequences(self) -> None:
        q, k, v = numbers(11, 4, 16), numbers(20, 2, 16, seed=1), numbers(20, 2, 16, seed=2)
        for lens, text, causal in itertools.product(
            ([5, 0, 9, 1], [6, 3, 2, 0]), ("nope", "alibi", "rope:pairing=half+t5:bidirectional=1"), (True, False)
        ):
            k2, v2 = k.copy(), v.copy()
            for a, b, n in zip(K_STARTS, K_STARTS[1:], lens, strict=False):
                k2[a + n : b] = v2[a + n : b] = np.nan
            tensors = {"t5.table": numbers(32, 4, seed=3)} if "t5" in text else None
            options: dict[str, Any] = {"causal": causal, "tensors": tensors, "window_size": (4, 2)}
            given = {"layout": "thd", "cu_seqlens_q": STARTS, "cu_seqlens_k": K_STARTS, "k_lens": lens, **options}
            o, lse = loci.attention(q, k2, v2, text, **given, return_lse=True)
            dout = numbers(11, 4, 16, seed=4)
            dq, dk, dv, _ = loci.attention_backward(dout, q, k, v, o, lse, text, **given)
            for s in range(4):
                rows, first = slice(STARTS[s], STARTS[s + 1]), K_STARTS[s]
                keys = slice(first, first + lens[s])
                alone = q[None, rows], k[None, keys], v[None, keys]
                same = {"layout": "blhd", **options}
                wanted = loci.attention(*alone, text, **same, return_lse=True)
                np.testing.assert_array_equal(o[rows], wanted[0][0])
                np.testing.assert_array_equal(lse[:, rows], wanted[1][0])
                if rows.start == rows.stop or not lens[s]:
                    continue
                back = loci.attention_backward(dout[None, rows], *alone, *wanted, text, **same)
                for got, one in ((dq[rows], back[0]), (dk[keys], back[1]), (dv[keys], back[2])):
                    np.testing.assert_array_equal(got, one[0])
                unused = slice(first + lens[s], K_STARTS[s + 1])
                self.assertFalse(dk[unused].any() or dv[unused].any())

    def test_with_ranges_and_one_length_for_all(self) -> None:
        q, k, v = numbers(6, 4, 16), numbers(10, 2, 16, seed=1), numbers(10, 2, 16, seed=2)
        given = {"layout": "thd", "cu_seqlens_q": [0, 3, 6], "cu_seqlens_k": [0, 5, 10], "causal": False}
        o = loci.attention(q, k, v, k_lens=4, k_last=[1, 2, 9, 6, 7, 8], k_first=[1, 0, 0, 6, 0, 0], **given)
        for row, (a, b) in enumerate(((1, 2), (0, 3), (0, 4), (6, 7), (5, 8), (5, 9))):
            one = q[None, row : row + 1], k[None, a:b], v[None, a:b]
            np.testing.assert_array_equal(o[row : row + 1], loci.attention(*one, layout="blhd", causal=False)[0])

    def test_errors(self) -> None:
        q, k = numbers(11, 4, 16), numbers(20, 2, 16)
        given = {"layout": "thd", "cu_seqlens_q": STARTS, "cu_seqlens_k": K_STARTS}
        for sentence, lens in (
            ("k_lens: sequence 0 has 7 keys, and k 6 for it", [7, 0, 0, 0]),
            ("k_lens: sequence 1 has -1 keys", [0, -1, 0, 0]),
            (r"k_lens has the shape \[3\]", [0, 0, 0]),
        ):
            with self.subTest(sentence), self.assertRaisesRegex(loci.Error, sentence):
                loci.attention(q, k, k, k_lens=lens, **given)


class Sinks(unittest.TestCase):
    def wanted(self, q: Any, k: Any, v: Any, sinks: Any, lens: Any) -> Any:
        """A softmax with one key more, whose value is 0."""
        seen = reference.visible(q.shape[2], k.shape[2], False, (-1, -1)) & (np.arange(k.shape[2]) < lens)
        s = np.where(seen, reference.scores(q, k), -np.inf)
        s = np.concatenate((s, np.broadcast_to(sinks, s.shape[:3])[..., None]), -1)
        top = s.max(-1, keepdims=True)
        w = np.exp(s - top)
        total = w.sum(-1, keepdims=True)
        values = np.repeat(np.asarray(v, np.float64), q.shape[1] // v.shape[1], 1)
        return np.einsum("bhij,bhjd->bhid", (w / total)[..., :-1], values), (np.log(total) + top)[..., 0]

    def test_against_a_softmax(self) -> None:
        for dtype, bound in ((np.float64, 1e-13), (np.float32, 2e-6), (np.float16, 1e-3)):
            q, k, v = (numbers(2, h, n, 8, seed=n, dtype=dtype) for h, n in ((4, 5), (2, 7), (2, 7)))
            for shape, lens in itertools.product(((2, 4, 5), (1, 4, 5), (4, 5), (2, 1, 5), (4, 1)), (7, 0)):
                sinks = numbers(*shape, seed=9) * 3
                want = self.wanted(q, k, v, sinks, lens)
                options = {"causal": False, "k_lens": lens}
                o, lse = loci.attention(q, k, v, sinks=sinks, **options, return_lse=True)
                self.assertEqual((o.dtype, lse.dtype), (dtype, np.float64 if dtype == np.float64 else np.float32))
                self.assertLess(np.abs(o - want[0]).max(), bound)
                self.assertLess(np.abs(lse - want[1]).max(), max(bound / 10, 1e-13) * 20)
                heads_last = [x.swapaxes(1, 2) for x in (q, k, v)]
                np.testing.assert_array_equal(
                    loci.attention(*heads_last, sinks=sinks, layout="blhd", **options), o.swapaxes(1, 2)
                )
        constant = numbers(4, seed=3)
        one = loci.attention(q, k, v, sinks=constant)
        np.testing.assert_allclose(loci.attention(q, k, v, sinks=constant[:, None]), one, rtol=0, atol=2e-3)
        cu = [0, 5, 10], [0, 7, 14]
        packed = [x.swapaxes(1, 2).reshape(-1, x.shape[1], 8) for x in (q, k, v)]
        sinks = numbers(2, 4, 5, seed=9)
        o = loci.attention(
            *packed,
            sinks=sinks.swapaxes(0, 1).reshape(4, 10),
            layout="thd",
            cu_seqlens_q=cu[0],
            cu_seqlens_k=cu[1],
        )
        np.testing.assert_array_equal(o.reshape(2, 5, 4, 8).swapaxes(1, 2), loci.attention(q, k, v, sinks=sinks))

    def test_errors(self) -> None:
        q, sinks = numbers(2, 4, 5, 8), numbers(2, 4, 5)
        for sentence, text, options in (
            ("sinks has the shape", "nope", {"sinks": numbers(2, 4, 6)}),
            ("no softmax that a sink could join", "sba", {"sinks": sinks}),
            ("sinks is int64", "nope", {"sinks": np.zeros((2, 4, 5), np.int64)}),
            ("out is for sinks", "nope", {"sinks": sinks, "out": np.empty_like(q)}),
        ):
            with self.subTest(sentence), self.assertRaisesRegex(loci.Error, sentence):
                loci.attention(q, q, q, text, **options)

    @unittest.skipUnless(torch, "there is no torch")
    def test_gradients_and_compiled(self) -> None:
        double = torch.float64
        q, k, v = (torch.from_numpy(numbers(2, h, n, 4, seed=n)).to(double) for h, n in ((2, 3), (1, 4), (1, 4)))
        sinks = torch.from_numpy(numbers(2, 2, 3)).to(double)
        leaves = [x.requires_grad_() for x in (q, k, v, sinks)]

        def attend(q: Any, k: Any, v: Any, sinks: Any) -> Any:
            return loci.attention(q, k, v, "alibi", sinks=sinks, k_lens=[0, 3], return_lse=True)

        self.assertTrue(torch.autograd.gradcheck(attend, leaves))
        whole = loci.attention(q, k, v, sinks=sinks)
        heads_last = (x.transpose(1, 2) for x in (q, k, v))
        self.assertTrue(torch.equal(loci.attention(*heads_last, sinks=sinks, layout="blhd"), whole.transpose(1, 2)))
        arrays = (x.detach().numpy() for x in (q, k, v))
        numpy = loci.attention(*arrays, sinks=sinks.detach().numpy())
        np.testing.assert_allclose(whole.detach().numpy(), numpy, rtol=0, atol=1e-15)
        compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)
        for a, b in zip(compiled(*leaves), attend(*leaves), strict=True):
            self.assertTrue(torch.equal(a, b))


if __name__ == "__main__":
    unittest.main()
