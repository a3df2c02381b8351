# SPDX-License-Identifier: MIT
"""Plans: calls with what they have decided, and tables that are made once."""

from __future__ import annotations

import pickle
import unittest
from unittest import mock

import numpy as np

import loci
from loci import _table_memo
from loci._attend import read_tensors

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]


class Plans(unittest.TestCase):
    def setUp(self) -> None:
        rng = np.random.default_rng(6)
        self.q = rng.standard_normal((2, 4, 9, 16), np.float32)
        self.k, self.v = (rng.standard_normal((2, 2, 9, 16), np.float32) for _ in range(2))

    def same(self, a: object, b: object) -> None:
        self.assertTrue(np.array_equal(np.asarray(a), np.asarray(b)))

    def test_calls(self) -> None:
        q, k, v = self.q, self.k, self.v
        plan = loci.Plan("t5:bidirectional=1", 4, 16, kv_heads=2, causal=False, window_size=(4, 3), scale=0.3)
        tensors = plan.init(3)
        options = {"causal": False, "window_size": (4, 3), "scale": 0.3}
        want = loci.attention(q, k, v, "t5:bidirectional=1", tensors=tensors, **options)
        self.same(plan.attention(q, k, v, tensors), want)
        self.same(plan.attention(q, k, v, tensors, return_lse=True)[0], want)
        self.same(plan.weights(q, k, tensors), loci.weights(q, k, plan.encoding, tensors=tensors, **options))
        turn = loci.Plan("rope:pairing=half", 4, 16, stage="rotate")
        self.same(turn.rotate(q, pos=[5] * 9), loci.rotate(q, "rope:pairing=half", pos=[5] * 9))
        x = np.ones((3, 12), np.float32)
        self.same(loci.Plan("sinusoidal", model_dim=12, stage="embed").embed(x), loci.embed(x, "sinusoidal"))
        linear = loci.Plan("nope", 4, 16, kv_heads=2, stage="linear_attention")
        self.same(linear.linear_attention(q, k, v), loci.linear_attention(q, k, v))

    def test_instruction_sets_have_the_same_bits(self) -> None:
        made = [loci.Plan("alibi", 4, 16, kv_heads=2, isa=isa).attention(self.q, self.k, self.v) for isa in loci.isas()]
        for other in made[1:]:
            self.same(made[0], other)

    def test_prepared(self) -> None:
        q, k, v = self.q, self.k, self.v
        plan = loci.Plan("fire+fox", 4, 16, kv_heads=2, max_len=64)
        learned, gates = plan.init(1), -np.ones((2, 4, 9), np.float32)
        want = plan.attention(q, k, v, {**learned, "fox.log_f": gates})
        plan = loci.Plan("fire", 4, 16, kv_heads=2, max_len=64)
        learned = plan.init(1)
        prepared = plan.prepared(learned, max_distance=64)
        want = plan.attention(q, k, v, learned)
        self.same(plan.attention(q, k, v, prepared), want)
        self.same(loci.attention(q, k, v, "fire", tensors=prepared), want)
        with self.assertRaisesRegex(loci.Error, "prepared for another plan"):
            loci.attention(q, k, v, "alibi", tensors=prepared)
        near = plan.prepared(learned, max_distance=4)
        with self.assertRaisesRegex(loci.Error, "max_distance 4"):
            plan.attention(q, k, v, near)
        with self.assertRaisesRegex(loci.Error, "is missing, learned"):
            plan.prepared({}, max_distance=4)

    def test_tables_of_earlier_calls(self) -> None:
        """They are found by the contents of the tensors, not by arrays."""
        plan = loci.Plan("xl", 2, 16, causal=False)
        start = plan.init(5)

        def tables(distance: int = 700) -> object:
            copies = {name: x.copy() for name, x in start.items()}
            made, pointers = read_tensors(plan, copies)
            found = plan.tables(distance, pointers)
            del made
            return found

        self.assertIsNot(tables(), tables())  # kept from the second time on
        self.assertIs(tables(), tables())
        self.assertIs(tables(300), tables())
        self.assertIsNot(tables(900), tables(901))
        before = tables(901)
        start["xl.w"].reshape(-1)[1] += 1  # between the samples
        self.assertIsNot(tables(901), before)
        rows = np.random.default_rng(7).standard_normal((1, 2, 700, 16), np.float32)
        some = loci.attention(rows, rows, rows, plan, tensors=start)
        self.same(loci.attention(rows, rows, rows, plan, tensors=start), some)
        loci.release()
        self.same(loci.attention(rows, rows, rows, plan, tensors=start), some)
        start["xl.w"].reshape(-1)[1] -= 1
        self.assertFalse(np.array_equal(loci.attention(rows, rows, rows, plan, tensors=start), some))

    def test_tables_that_are_not_kept(self) -> None:
        """Each step of training has other tensors, and large tables go in turn."""
        plan = loci.Plan("xl", 2, 16, causal=False)
        loci.release()
        for seed in range(3):
            made, pointers = read_tensors(plan, plan.init(seed))
            plan.tables(700, pointers)
            del made
        self.assertFalse(_table_memo._kept)
        with mock.patch.object(_table_memo, "MOST", 1 << 20):
            for seed in range(3):
                made, pointers = read_tensors(plan, plan.init(seed))
                for _ in range(2):
                    plan.tables(700, pointers)
                del made
                self.assertEqual(_table_memo._bytes, sum(map(_table_memo._size, _table_memo._kept.values())))
                self.assertTrue(0 < _table_memo._bytes <= 1 << 20)
            self.assertLess(len(_table_memo._kept), 3)
        loci.release()
        self.assertEqual((len(_table_memo._kept), _table_memo._bytes), (0, 0))

    def test_what_has_been_decided(self) -> None:
        plan = loci.Plan("alibi", 4, 16, kv_heads=2)
        q, k, v = self.q, self.k, self.v
        for call, sentence in (
            (lambda: plan.attention(q, k, v, causal=False), "causal has been decided by the plan"),
            (lambda: loci.attention(q, k, v, plan, scale=0.5), "scale has been decided by the plan"),
            (lambda: plan.attention(q, k, v, softcap=3), "softcap has been decided by the plan"),
            (lambda: plan.attention(q[:, :2], k, v), "the arrays have heads 2 and the plan 4"),
            (lambda: plan.attention(*(x.astype(np.float64) for x in (q, k, v))), "q is float64 and the plan float32"),
            (lambda: plan.rotate(q), "the plan is one for stage attention, and this is rotate"),
        ):
            with self.assertRaisesRegex(loci.Error, sentence):
                call()

    def test_values_in_keys(self) -> None:
        q, k = self.q, self.k[:, :1]
        plan = loci.Plan("alibi", 4, 16, kv_heads=1, value_dim=10, values_in_keys=True)
        want = loci.attention(q, k, np.ascontiguousarray(k[..., :10]), "alibi")
        for p in (plan, pickle.loads(pickle.dumps(plan))):
            self.same(p.attention(q, k), want)
            self.same(loci.attention(q, k, None, p, k_lens=[9, 9]), want)
        stored = loci.Plan("nope", 4, 96, kv_heads=1, value_dim=64, values_in_keys=True, k_dtype="q8_0")
        self.assertEqual(pickle.loads(pickle.dumps(stored)).v_dtype, "q8_0")
        for call, sentence in (
            (lambda: plan.attention(q, k, k[..., :10]), "v must be None: the plan has values_in_keys"),
            (lambda: loci.attention(q, k, None, "alibi"), r"v is missing; .*, give v=k\[..., :value_dim\]"),
            (lambda: plan.weights(q, k), "give a plan without values_in_keys"),
            (
                lambda: loci.attention_backward(want, q, k, k[..., :10], want, want[..., 0], plan),
                "values_in_keys must be 0: for gradients",
            ),
            (
                lambda: loci.Plan("nope", 4, 16, value_dim=10, values_in_keys=True, stage="linear_attention"),
                "values_in_keys must be 0 in stages other than ATTENTION",
            ),
        ):
            with self.subTest(sentence=sentence), self.assertRaisesRegex(loci.Error, sentence):
                call()

    @unittest.skipIf(torch is None, "there is no torch")
    def test_values_in_keys_of_tensors(self) -> None:
        q, k = torch.from_numpy(self.q), torch.from_numpy(self.k[:, :1])
        plan = loci.Plan("alibi", 4, 16, kv_heads=1, value_dim=10, values_in_keys=True)
        want = plan.attention(self.q, self.k[:, :1])
        self.same(plan.attention(q, k), want)
        self.same(torch.compile(lambda q: plan.attention(q, k), fullgraph=True, backend="aot_eager")(q), want)
        leaf = q.clone().requires_grad_()
        with self.assertRaisesRegex(loci.Error, r"no gradient: .* give v=k\[..., :10\] to a plan without it"):
            plan.attention(leaf, k)
        with torch.no_grad():
            self.same(plan.attention(leaf, k), want)

    @unittest.skipIf(torch is None, "there is no torch")
    def test_torch(self) -> None:
        plan = loci.Plan("t5:bidirectional=0", 4, 16, kv_heads=2)
        q, k, v = (torch.from_numpy(x).requires_grad_() for x in (self.q, self.k, self.v))
        table = torch.from_numpy(plan.init(2)["t5.table"]).requires_grad_()
        o = plan.attention(q, k, v, {"t5.table": table})
        o.square().sum().backward()
        kept = table.grad.clone()
        table.grad = None
        prepared = plan.prepared({"t5.table": table}, max_distance=16)
        again = plan.attention(q, k, v, prepared)
        again.square().sum().backward()
        self.assertTrue(torch.equal(o, again) and torch.equal(kept, table.grad))
        compiled = torch.compile(
            lambda q: plan.attention(q, k, v, {"t5.table": table}), fullgraph=True, backend="aot_eager"
        )
        self.assertTrue(torch.equal(compiled(q), o))


if __name__ == "__main__":
    unittest.main()
