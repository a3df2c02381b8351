# SPDX-License-Identifier: MIT
"""Layers against formulas of numpy."""

from __future__ import annotations

import unittest
from typing import Any

import numpy as np

import loci

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


class Layers(unittest.TestCase):
    def setUp(self) -> None:
        self.rng = np.random.default_rng(9)
        self.x = self.rng.standard_normal((2, 3, 7, 8))
        self.logits = self.rng.standard_normal((2, 3, 7))

    def near(self, got: Any, want: Any, bound: float = 1e-12) -> None:
        self.assertEqual(got.shape, want.shape)
        self.assertLess(np.abs(got - want).max(), bound)

    def test_rmsnorm(self) -> None:
        w = self.rng.standard_normal((3, 8))
        root = np.sqrt((self.x**2).mean(-1, keepdims=True) + 1e-5)
        self.near(loci.layers.rmsnorm(self.x, w, 1e-5), w[:, None] * self.x / root)
        self.near(loci.layers.rmsnorm(self.x), self.x / np.sqrt((self.x**2).mean(-1, keepdims=True) + 1e-6))
        half = self.x.astype(np.float16)
        y = loci.layers.rmsnorm(half)
        self.assertEqual(y.dtype, np.float16)

    def test_shift(self) -> None:
        a = sigmoid(self.logits)[..., None]
        before = np.concatenate((np.zeros((2, 3, 1, 8)), self.x[:, :, :-1]), 2)
        want = a * before + (1 - a) * self.x
        self.near(loci.layers.shift(self.x, self.logits), want)
        first, after = loci.layers.shift(self.x[:, :, :4], self.logits[..., :4], return_after=True)
        rest = loci.layers.shift(self.x[:, :, 4:], self.logits[..., 4:], before=after)
        self.assertTrue(np.array_equal(np.concatenate((first, rest), 2), loci.layers.shift(self.x, self.logits)))
        seg = np.array([0, 0, 0, 1, 1, 1, -1])
        y = loci.layers.shift(self.x, self.logits, seg)
        self.near(y[:, :, 3], ((1 - a) * self.x)[:, :, 3])
        self.assertFalse(y[:, :, 6].any())

    def test_gates(self) -> None:
        g = self.rng.standard_normal((2, 3, 7, 8))
        self.near(loci.layers.gate(self.x, g), self.x * sigmoid(g))
        self.near(loci.layers.gate(self.x, g, "silu"), self.x * g * sigmoid(g))
        self.near(loci.layers.log_gate(self.logits[0]), np.log(sigmoid(self.logits[0])))

    def test_temperature(self) -> None:
        at = np.arange(7) + 1
        want = self.x * (1 + 0.1 * np.log(1 + np.floor(at / 4)))[:, None]
        self.near(loci.layers.temperature(self.x, 0.1, 4, 1), want)
        self.near(loci.layers.temperature(self.x, 0.1, 4, pos=at), want)

    def test_running_angles(self) -> None:
        rate = self.rng.standard_normal((3, 8)).astype(np.float32)
        before = self.rng.standard_normal((2, 3, 8))
        want = before[:, :, None] + (rate[:, None] * self.x).cumsum(2)
        y, after = loci.layers.running_angles(self.x, rate, before=before, return_after=True)
        self.turned(y, want)
        self.turned(after, want[:, :, -1])
        self.turned(loci.layers.running_angles(40 * self.x), (40 * self.x).cumsum(2))
        self.assertLess(np.abs(loci.layers.running_angles(40 * self.x)).max(), 3.1416)
        for dtype in (np.float64, np.float32, np.float16):
            for exclusive in (False, True):
                x = self.x.astype(dtype)
                how = {"rate": rate, "exclusive": exclusive}
                whole = loci.layers.running_angles(x, **how)
                self.assertEqual(whole.dtype, dtype)
                first, after = loci.layers.running_angles(x[:, :, :4], return_after=True, **how)
                self.assertEqual(after.dtype, np.float64)
                rest = loci.layers.running_angles(x[:, :, 4:], before=after, **how)
                self.assertTrue(np.array_equal(np.concatenate((first, rest), 2), whole))
        seg = np.array([0, 0, 0, 1, 1, 1, -1])
        y = loci.layers.running_angles(self.x, rate, seg=seg)
        self.assertTrue(np.array_equal(y[:, :, 3:6], loci.layers.running_angles(self.x[:, :, 3:6], rate)))
        self.assertFalse(y[:, :, 6].any())
        y = loci.layers.running_angles(self.x, rate, exclusive=True, seg=np.stack((seg, seg)))
        self.assertFalse(y[:, :, [0, 3, 6]].any())

    def turned(self, got: Any, want: Any) -> None:
        self.near(np.cos(got), np.cos(want))
        self.near(np.sin(got), np.sin(want))

    def test_tape(self) -> None:
        e = loci.layers.tape_start(2, 3, 7, 8, dtype="float64")
        angles = np.arange(7)[:, None] * 10000.0 ** (-np.arange(4) / 4)
        self.near(e, np.broadcast_to(np.stack((np.cos(angles), np.sin(angles)), -1), (2, 3, 7, 4, 2)))
        ae, w = self.rng.standard_normal(e.shape), self.rng.standard_normal((3, 3))
        want = e + w.sum(1)[:, None, None, None] * ae
        self.near(loci.layers.tape_attention_update(e, ae, w), want)
        want = e + np.einsum("hg,bgltc->bhltc", w, ae)
        self.near(loci.layers.tape_attention_update(e, ae, w, mix="full"), want)

    def test_wrong(self) -> None:
        for call, sentence in (
            (lambda: loci.layers.rmsnorm(self.x[0]), "x has 3 dimensions"),
            (lambda: loci.layers.rmsnorm(self.x, np.ones((3, 7))), "weight has the shape"),
            (lambda: loci.layers.gate(self.x, self.x, "relu"), "activation must be one of"),
            (lambda: loci.layers.shift(self.x, self.logits.astype(np.float32)), "x is float64, and all must be"),
            (lambda: loci.layers.tape_start(1, 1, 1, 7), "dim must be even"),
            (lambda: loci.layers.running_angles(self.x[0]), "x has 3 dimensions"),
            (lambda: loci.layers.running_angles(self.x, np.ones((3, 7))), "rate has the shape"),
            (lambda: loci.layers.running_angles(self.x, before=np.ones((2, 3, 7))), "before has the shape"),
            (
                lambda: loci.layers.running_angles(self.x, seg=np.zeros(7, int), return_after=True),
                "seg must be None with after",
            ),
        ):
            with self.assertRaisesRegex(loci.Error, sentence):
                call()

    @unittest.skipIf(torch is None, "there is no torch")
    def test_gradients_with_strides(self) -> None:
        """What backward passes copy is there for as long as C reads it: here other arrays take free memory at once."""
        from loci import layers

        x, g = (torch.randn(2, 3, 70, 32, requires_grad=True) for _ in range(2))
        logits, dout = torch.randn(2, 3, 70, requires_grad=True), torch.randn(2, 70, 3, 32).transpose(1, 2)
        real = layers._run

        def run(function: Any, *arguments: Any) -> None:
            others = [torch.full(size, torch.nan) for size in ((2, 3, 70, 32), (2, 3, 70)) for _ in range(20)]
            real(function, *arguments)
            del others

        def gradients(dout: Any) -> list[Any]:
            made = [
                torch.autograd.grad(layers.rmsnorm(x), x, dout),
                torch.autograd.grad(layers.gate(x, g), (x, g), dout),
            ]
            made.append(torch.autograd.grad(layers.shift(x, logits), (x, logits), dout))
            made.append(torch.autograd.grad(layers.log_gate(logits), logits, dout[..., 0]))
            return [one for some in made for one in some]

        want = gradients(dout.contiguous())
        layers._run = run
        try:
            got = gradients(dout)
        finally:
            layers._run = real
        for a, b in zip(got, want, strict=True):
            self.assertTrue(torch.equal(a, b))


if __name__ == "__main__":
    unittest.main()
