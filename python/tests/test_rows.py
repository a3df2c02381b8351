# SPDX-License-Identifier: MIT
"""Rotations, embeddings, segments, and rope from models' files."""

from __future__ import annotations

import functools
import json
import pathlib
import pickle
import tempfile
import unittest
from typing import Any

import numpy as np

import loci

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

LLAMA3 = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 131072,
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}


def files_are_read() -> bool:
    from loci import _c

    try:
        _c.files()
    except loci.Error:
        return False
    return True


class Tables(unittest.TestCase):
    """rotate_by() against complex numbers, and against rope's own rotation."""

    def setUp(self) -> None:
        rng = np.random.default_rng(5)
        self.x = rng.standard_normal((2, 3, 7, 16), np.float32)
        angles = rng.standard_normal((20, 6))
        self.cos, self.sin = 1.5 * np.cos(angles), 1.5 * np.sin(angles)  # of any length

    def plain(self, x: Any, cos: Any, sin: Any, pairing: str) -> Any:
        """x [..., rows, width]; cos and sin [..., rows, pairs]."""
        pairs, made = cos.shape[-1], np.array(x, np.float64)
        a, b = (
            (slice(pairs), slice(pairs, 2 * pairs))
            if pairing == "half"
            else (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2))
        )
        z = (made[..., a] + 1j * made[..., b]) * (cos + 1j * sin)
        made[..., a], made[..., b] = z.real, z.imag
        return made

    def near(self, got: Any, want: Any, bound: float = 2e-6) -> None:
        self.assertEqual(got.shape, want.shape)
        self.assertLess(np.abs(np.asarray(got, np.float64) - want).max(initial=0), bound)

    def test_against_complex_numbers(self) -> None:
        pos = np.array([[3, 4, 5, 6, 7, 19, 0], [0, 0, 1, 2, 9, 8, 7]])
        for pairing in ("half", "interleaved"):
            turn = functools.partial(loci.rotate_by, pairing=pairing)
            for at, rows in ((None, np.arange(7)), (pos[0], pos[0]), (pos, pos)):
                cos, sin = self.cos[rows], self.sin[rows]
                spread = (cos[:, None], sin[:, None]) if rows.ndim == 2 else (cos, sin)
                want = self.plain(self.x, *spread, pairing)
                y = turn(self.x, self.cos, self.sin, pos=at)
                self.assertEqual(y.dtype, np.float32)
                self.near(y, want)
                if rows.ndim == 2:
                    self.assertTrue(np.array_equal(turn(self.x, cos, sin), y))
                swapped = turn(self.x.swapaxes(1, 2), self.cos, self.sin, pos=at, layout="blhd")
                self.assertTrue(np.array_equal(swapped.swapaxes(1, 2), y))
                back = turn(y, self.cos, self.sin, pos=at, inverse=True)
                self.near(back[..., :12], 2.25 * self.x[..., :12], 1e-5)
                self.assertTrue(np.array_equal(back[..., 12:], self.x[..., 12:]))
                exact = turn(self.x.astype(np.float64), self.cos, self.sin, pos=at)
                self.near(exact, want, 1e-14)
                half = turn(self.x.astype(np.float16), self.cos.astype("f"), self.sin.astype("f"), pos=at)
                self.assertEqual(half.dtype, np.float16)
                self.near(half, want, 1e-2)
            starts = [0, 5, 5, 7]
            packed = turn(self.x[0].swapaxes(0, 1), self.cos, self.sin, cu_seqlens=starts, layout="thd")
            for first, end in ((0, 5), (5, 7)):
                want = turn(self.x[:1, :, first:end], self.cos, self.sin)[0].swapaxes(0, 1)
                self.assertTrue(np.array_equal(packed[first:end], want))
        self.assertEqual(loci.rotate_by(self.x[:, :, :0], self.cos, self.sin, pairing="half").shape, (2, 3, 0, 16))

    def test_bits_of_rope(self) -> None:
        for pairing in ("half", "interleaved"):
            text = f"rope:pairing={pairing},base=500,dim=12"
            wide = np.zeros((1, 1, 20, 12), np.float32)
            wide[..., :6] = 1
            turned = loci.rotate(wide, f"{text.replace('interleaved', 'half')}")[0, 0]
            cos, sin = turned[:, :6], turned[:, 6:]
            pos = np.arange(7) + 4
            want = loci.rotate(self.x, text, pos=pos)
            self.assertTrue(np.array_equal(loci.rotate_by(self.x, cos, sin, pairing=pairing, pos=pos), want))
            low = self.x.astype(np.float16)
            want = loci.rotate(low, text, pos=pos)
            self.assertTrue(np.array_equal(loci.rotate_by(low, cos, sin, pairing=pairing, pos=pos), want))

    def test_errors(self) -> None:
        x, cos, sin = self.x, self.cos, self.sin
        for words, arguments, options in (
            (r"pairing must be one of half, interleaved, not 'adjacent'", (x, cos, sin), {"pairing": "adjacent"}),
            (r"shapes \[20, 6\] and \[20, 5\], not \[positions, pairs\]", (x, cos, sin[:, :5]), {}),
            (r"first half of tables that have each angle twice", (x[..., :6], cos, sin), {}),
            (r"cos and sin have 6 positions, and x 7 rows", (x, cos[:6], sin[:6]), {}),
            (r"cos has 20 rows, and positions go from 14 to 20", (x, cos, sin), {"pos": np.arange(14, 21)}),
            (r"cos has 20 rows, and positions go from -1", (x, cos, sin), {"pos": np.arange(-1, 6)}),
            (r"pos has the shape \[6\]", (x, cos, sin), {"pos": np.arange(6)}),
            (r"one for each row, so pos", (x, cos[None, :7], sin[None, :7]), {"pos": np.arange(7)}),
            (r"shape \[1, 6, 6\], and x 7 rows", (x, cos[None, :6], sin[None, :6]), {}),
            (r"layout 'thd' is packed", (x[0], cos, sin), {"layout": "thd"}),
            (r"cos is int64", (x, cos.astype(int), sin), {}),
        ):
            with self.subTest(words=words), self.assertRaisesRegex(loci.Error, words):
                loci.rotate_by(*arguments, **{"pairing": "half", **options})

    @unittest.skipIf(torch is None, "there is no torch")
    def test_gradients(self) -> None:
        pos = np.array([[3, 4, 5, 6, 7, 3, 0], [0, 0, 1, 2, 9, 8, 7]])
        for pairing in ("half", "interleaved"):
            leaves = [torch.from_numpy(np.array(t, np.float64)).requires_grad_() for t in (self.x, self.cos, self.sin)]
            w = torch.from_numpy(np.random.default_rng(1).standard_normal(self.x.shape))
            y = loci.rotate_by(*leaves, pairing=pairing, pos=pos)
            self.near(
                y.detach(), loci.rotate_by(*(t.detach().numpy() for t in leaves), pairing=pairing, pos=pos), 1e-30
            )
            got = torch.autograd.grad((y * w).sum(), leaves)
            x, cos, sin = leaves
            z = torch.complex(cos, sin)[pos][:, None]
            a, b = (slice(6), slice(6, 12)) if pairing == "half" else (slice(0, 12, 2), slice(1, 12, 2))
            z = torch.complex(x[..., a], x[..., b]) * z
            loss = (z.real * w[..., a]).sum() + (z.imag * w[..., b]).sum() + (x[..., 12:] * w[..., 12:]).sum()
            for one, other in zip(got, torch.autograd.grad(loss, leaves), strict=True):
                self.near(one, other.numpy(), 1e-13)

    @unittest.skipIf(torch is None, "there is no torch")
    def test_compiled_and_mapped(self) -> None:
        x, cos, sin = (torch.from_numpy(np.array(t, np.float32)) for t in (self.x, self.cos, self.sin))
        pos = torch.arange(7) + 2

        def turn(x: Any) -> Any:
            return loci.rotate_by(x, cos, sin, pairing="half", pos=pos)

        compiled = torch.compile(turn, backend="aot_eager", fullgraph=True)
        self.assertTrue(torch.equal(compiled(x), turn(x)))
        self.assertTrue(torch.equal(torch.func.vmap(turn)(x[:, None])[:, 0], turn(x)))


class Rows(unittest.TestCase):
    def setUp(self) -> None:
        self.x = np.random.default_rng(3).standard_normal((2, 4, 7, 16), np.float32)

    def test_rotations_keep_products_by_distance(self) -> None:
        x = np.broadcast_to(self.x[:, :, :1], self.x.shape)
        q = loci.rotate(x, "rope:pairing=half", pos=np.arange(7) * 1000)
        k = loci.rotate(x, "rope:pairing=half", pos=np.arange(7) * 1000 - 3, role="key")
        s = np.einsum("bhid,bhid->bhi", q, k)
        self.assertLess(np.ptp(s, axis=-1).max(), 1e-4)
        self.assertTrue(np.array_equal(loci.rotate(self.x, "rope:pairing=half", pos=[0] * 7), self.x))

    def test_attention_is_attention_of_turned_rows(self) -> None:
        q, k, v = self.x, self.x[:, :, ::-1].copy(), self.x + 1
        text = "rope:pairing=interleaved,base=500"
        turned = loci.rotate(q, text), loci.rotate(k, text, role="key"), v
        self.assertTrue(np.array_equal(loci.attention(*turned), loci.attention(q, k, v, text)))

    def test_values(self) -> None:
        """Values rotate as keys do, without the factor; outputs rotate back."""
        q, k, v = self.x, self.x[:, :, ::-1].copy(), self.x + 1
        text = "rope:pairing=half,attention_factor=1.5"
        turned, plain = loci.rotate(v, text + ",values=1", role="value"), loci.rotate(v, "rope:pairing=half")
        self.assertTrue(np.array_equal(turned, plain))
        plan = loci.Plan(text + ",values=1", 4, 16)
        self.assertTrue(np.array_equal(plan.rotate(v, role="value"), turned))
        o = loci.rotate(loci.attention(q, k, turned, text), "rope:pairing=half", pos=-np.arange(7))
        self.assertLess(np.abs(o - loci.attention(q, k, v, text + ",values=1")).max(), 1e-5)
        with self.assertRaisesRegex(loci.Error, "the plan is one for stage attention, and this is rotate"):
            plan.rotate(k, role="key")
        with self.assertRaisesRegex(loci.Error, "the arrays have value_dim 8 and the plan 16"):
            plan.rotate(v[..., :8], role="value")

    def test_layouts(self) -> None:
        y = loci.rotate(self.x.swapaxes(1, 2), "rope:pairing=half", layout="blhd")
        self.assertTrue(np.array_equal(y.swapaxes(1, 2), loci.rotate(self.x, "rope:pairing=half")))

    def test_embeddings(self) -> None:
        x = np.zeros((2, 9, 12), np.float32)
        y = loci.embed(x, "sinusoidal")
        at = np.arange(9)[:, None] / 10000 ** (np.arange(6) * 2 / 12)
        self.assertLess(np.abs(y[0, :, 0::2] - np.sin(at)).max(), 1e-6)
        self.assertTrue(np.array_equal(loci.embed(x[0], "sinusoidal"), y[0]))
        table = np.arange(20 * 12, dtype=np.float32).reshape(20, 12)
        y = loci.embed(x, "learned", tensors={"learned.table": table}, pos=np.arange(9) + 5, max_len=20)
        self.assertTrue(np.array_equal(y[1], table[5:14]))

    def test_segments(self) -> None:
        self.assertEqual(loci.seg.from_mask(np.array([[1, 1, 0], [0, 1, 1]])).tolist(), [[0, 0, -1], [-1, 0, 0]])
        ids = np.array([0, 1, 2, 0, 1, 5, 6])
        self.assertEqual(loci.seg.from_position_ids(ids).tolist(), [0, 0, 0, 1, 1, 2, 2])
        self.assertEqual(loci.seg.from_cu_seqlens(np.array([0, 2, 2, 5]), 7).tolist(), [0, 0, 2, 2, 2, -1, -1])
        for wrong in ([1, 2], [0, 3, 1]):
            with self.assertRaises(loci.Error):
                loci.seg.from_cu_seqlens(np.array(wrong))

    def test_plans(self) -> None:
        plan = loci.Plan("rope:pairing=half,scaling=linear,factor=4+t5", 8, 64)
        self.assertEqual([(t.name, t.role, t.shape) for t in plan.tensors], [("t5.table", "learned", (32, 8))])
        self.assertTrue(np.allclose(plan.frequencies, 10000 ** (-np.arange(32) / 32) / 4))
        self.assertEqual(plan.attention_factor, 1.0)
        again = pickle.loads(pickle.dumps(plan))
        self.assertEqual((again.text, again.tensors), (plan.text, plan.tensors))
        self.assertTrue(np.array_equal(plan.init(7)["t5.table"], again.init(7)["t5.table"]))
        self.assertFalse(np.array_equal(plan.init(7)["t5.table"], plan.init(8)["t5.table"]))
        self.assertEqual(loci.Plan("fox", 4, 16).tensors[0].shape, (None, 4, None))

    def test_list(self) -> None:
        names = [e.name for e in loci.list()]
        self.assertIn("rope", names)
        self.assertEqual(loci.describe("t5").name, "t5")
        pairing = next(o for o in loci.describe("rope").options if o.name == "pairing")
        self.assertTrue(pairing.required)
        self.assertIn("half", pairing.words)


@unittest.skipUnless(files_are_read(), "this build does not read models' files")
class Models(unittest.TestCase):
    def test_llama3(self) -> None:
        r = loci.rope.from_config(LLAMA3)
        self.assertTrue(r.rotates)
        self.assertEqual((r.pairing, r.head_dim, r.base, len(r.frequency)), ("half", 64, 500000.0, 32))
        frequency = 500000.0 ** (-np.arange(32) / 32)
        wavelength = 2 * np.pi / frequency
        smooth = (8192 / wavelength - 1) / 3
        middle = (1 - smooth) * frequency / 8 + smooth * frequency
        want = np.where(wavelength < 2048, frequency, np.where(wavelength > 8192, frequency / 8, middle))
        self.assertTrue(np.allclose(r.frequency, want, rtol=1e-6))
        plan = loci.Plan(r.encoding, 4, 64, stage="rotate")
        self.assertTrue(np.allclose(plan.frequencies, r.frequency, rtol=1e-12))
        self.assertEqual(len(loci.rope.layers(LLAMA3)), 2)

    def test_sources_and_tables(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "config.json"
            path.write_text(json.dumps(LLAMA3))
            one, two = loci.rope.from_config(str(path)), loci.rope.from_config(path)
        self.assertEqual(one.encoding, two.encoding)
        cos, sin = loci.rope.table(LLAMA3, 10)
        self.assertEqual((cos.shape, cos.dtype), ((10, 64), np.float32))
        self.assertTrue(np.allclose(cos[:, :32], np.cos(np.outer(np.arange(10), one.frequency)), atol=1e-7))
        self.assertTrue(np.array_equal(sin[:, :32], sin[:, 32:]))
        once = loci.rope.table("rope:pairing=half", 4, layout="once", dtype="float64")[0]
        self.assertEqual((once.shape, once.dtype), ((4, 32), np.float64))

    def test_refusals(self) -> None:
        wrong: list[tuple[Any, str]] = [
            ({"model_type": "llama"}, "."),
            ({**LLAMA3, "rope_parameters": {"rope_type": "lama3"}}, "lama3"),
            ("/nowhere/config.json", "/nowhere/config.json: cannot open"),
        ]
        for source, sentence in wrong:
            with self.subTest(sentence=sentence), self.assertRaisesRegex(loci.Error, sentence):
                loci.rope.from_config(source)
        with self.assertRaisesRegex(loci.Error, "layout must be one of"):
            loci.rope.table(LLAMA3, 4, layout="both")


if __name__ == "__main__":
    unittest.main()
