# SPDX-License-Identifier: MIT
"""Modules: what they learn, how it is called, and that a cache gives the bits of one pass."""

from __future__ import annotations

import unittest
from typing import Any

import loci

try:
    import torch
except ImportError:
    raise unittest.SkipTest("there is no torch") from None

from loci import nn


class Modules(unittest.TestCase):
    def test_names_and_starts(self) -> None:
        torch.manual_seed(1)
        e = nn.Encoding("fire+t5", 8, 64)
        self.assertLessEqual({"fire.c", "t5.table"}, set(e.state_dict()))
        other = nn.Encoding("fire+t5", 8, 64)
        self.assertFalse(torch.equal(e.tensors()["t5.table"], other.tensors()["t5.table"]))
        torch.manual_seed(1)
        again = nn.Encoding("fire+t5", 8, 64)
        self.assertTrue(torch.equal(e.tensors()["t5.table"], again.tensors()["t5.table"]))
        again.reset_parameters()
        self.assertFalse(torch.equal(e.tensors()["t5.table"], again.tensors()["t5.table"]))

    def test_a_shared_tensor(self) -> None:
        one, two = nn.Encoding("t5", 4, 16), nn.Encoding("t5", 4, 16)
        two.t5 = one.t5
        q, k, v = (torch.randn(1, 4, 6, 16) for _ in range(3))
        (one(q, k, v) + two(q, k, v)).sum().backward()
        self.assertIs(one.tensors()["t5.table"], two.tensors()["t5.table"])
        self.assertTrue(one.tensors()["t5.table"].grad.abs().sum() > 0)

    def test_kerple_is_constrained(self) -> None:
        e = nn.Encoding("kerple", 4, 16)
        with torch.no_grad():
            for x in e.tensors().values():
                x.fill_(-1)
        e.constrain_()
        self.assertTrue(all((x == 0.01).all() for x in e.tensors().values()))

    def test_attention_with_a_cache(self) -> None:
        for encoding in ("nope", "rope:pairing=half", "t5:bidirectional=0", "fox", "cope:gates=given", "xl"):
            with self.subTest(encoding=encoding):
                m = nn.Attention(32, 4, encoding, kv_heads=2, max_len=32, bias=True)
                x = torch.randn(2, 12, 32)
                with torch.no_grad():
                    want = m(x)
                    cache = m.new_cache(2, 32)
                    made = [m(x[:, i:j], cache=cache) for i, j in ((0, 5), (5, 6), (6, 7), (7, 12))]
                self.assertLess((torch.cat(made, 1) - want).abs().max(), 2e-6)

    def test_it_learns(self) -> None:
        """A copy of the token three places back, which only positions can tell."""
        torch.manual_seed(0)
        m = nn.Attention(24, 2, "t5:bidirectional=0")
        embed, head = torch.nn.Embedding(8, 24), torch.nn.Linear(24, 8)
        learned: list[Any] = [*m.parameters(), *embed.parameters(), *head.parameters()]
        optimiser = torch.optim.Adam(learned, 0.02)
        loss = torch.zeros(())
        for _ in range(150):
            x = torch.randint(8, (16, 24))
            y = head(m(embed(x)))[:, 3:]
            loss = torch.nn.functional.cross_entropy(y.flatten(0, 1), x[:, :-3].flatten())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        self.assertLess(loss.item(), 0.2)

    def test_foxpro(self) -> None:
        m = nn.FoXPro(32, 4, kv_heads=2)
        names = {name for name, _ in m.named_parameters()}
        self.assertLessEqual({"q_proj.weight", "f_proj.bias", "k_shift_proj.weight", "o_norm", "g_proj.weight"}, names)
        x = torch.randn(2, 10, 32)
        with torch.no_grad():
            want, cache = m(x), m.new_cache(2, 16)
            made = torch.cat([m(x[:, i : i + 1], cache=cache) for i in range(10)], 1)
        self.assertLess((made - want).abs().max(), 2e-6)
        m(x).sum().backward()
        self.assertTrue(all(p.grad is not None for p in m.parameters()))

    def test_tape(self) -> None:
        m = nn.TaPE(32, 4, units=6)
        e = m.start(2, 9)
        x = torch.randn(2, 9, 32)
        y, e = m(x, e)
        e = m.update(e, torch.randn(2, 9, 6))
        (y.sum() + e.square().sum()).backward()
        self.assertEqual((y.shape, e.shape), (x.shape, (2, 4, 9, 4, 2)))
        rope = nn.Attention(32, 4, "rope:pairing=half")
        with torch.no_grad():
            for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
                getattr(rope, name).weight.copy_(getattr(m, name).weight)
            self.assertLess((rope(x) - m(x, m.start(2, 9))[0]).abs().max(), 1e-5)

    def test_embedding(self) -> None:
        m = nn.Embedding("learned", 16, max_len=32)
        m(torch.zeros(2, 5, 16), pos=torch.tensor([0, 1, 1, 30, 31])).sum().backward()
        grad = m.tensors()["learned.table"].grad
        self.assertEqual(grad[:, 0].tolist()[:2] + grad[30:, 0].tolist(), [2, 4, 2, 2])

    def test_wrong(self) -> None:
        with self.assertRaisesRegex(loci.Error, "tape has states"):
            nn.Attention(32, 4, "tape")
        with self.assertRaisesRegex(loci.Error, "no multiple"):
            nn.Attention(30, 4)


if __name__ == "__main__":
    unittest.main()
