# SPDX-License-Identifier: MIT
"""What autograd and torch.func can do to a call: unusual gradients, forward mode, changes before the backward pass."""

from __future__ import annotations

import unittest
from collections.abc import Callable
from typing import Any

import numpy as np

import loci

try:
    import torch
except ImportError:
    raise unittest.SkipTest("there is no torch") from None

from torch.autograd import forward_ad

from loci import layers

ROPE = "rope:pairing=half"


def randn(*shape: int, grad: bool = False) -> Any:
    return torch.randn(shape, dtype=torch.float64, requires_grad=grad)


def attention(x: Any) -> Any:
    return loci.attention(x, x, x)


# functions of one [2, 2, 6, 8] tensor
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "attention": attention,
    "lse": lambda x: loci.attention(x, x, x, return_lse=True)[1],
    "ae": lambda x: loci.attention(x, x, x, "tape", tensors=dict.fromkeys(("tape.eq", "tape.ek"), states(x)))[1],
    "linear_attention": lambda x: loci.linear_attention(x, x, x),
    "rotate": lambda x: loci.rotate(x, ROPE),
    "rotate values": lambda x: loci.rotate(
        x, "angles:pairing=half,values=1", role="value", tensors={"angles.phi_k": x.flip(2)[..., ::2]}
    ),
    "embed": lambda x: loci.embed(x[0], "sinusoidal"),
    "embed learned": lambda x: loci.embed(x[0].detach(), "learned", tensors={"learned.table": x[1, 0]}, max_len=6),
    "rmsnorm": layers.rmsnorm,
    "shift": lambda x: layers.shift(x, x[..., 0]),
    "log_gate": layers.log_gate,
    "gate": lambda x: layers.gate(x, x),
    "temperature": lambda x: layers.temperature(x, 0.1, 2.0),
    "running_angles": lambda x: layers.running_angles(x, x[0, :, 0], before=x[:, :, 1]),
    "running_angles, after": lambda x: layers.running_angles(x, x[0, :, 0], before=x[:, :, 1], return_after=True)[1],
    "tape_attention_update": lambda x: layers.tape_attention_update(states(x), states(x), x[0, :, :2, 0]),
    "tape_mlp_update": lambda x: layers.tape_mlp_update(
        states(x), x[:, 0], x[0, 0, :, :2].repeat(2, 1)[:8], x[0, :, 0]
    ),
}


def states(x: Any) -> Any:
    return x.unflatten(-1, (4, 2))


class IncomingGradients(unittest.TestCase):
    def same(self, strange: Any, plain: Any, name: str) -> None:
        x = randn(2, 2, 6, 8, grad=True)
        y = FUNCTIONS[name](x)
        got = torch.autograd.grad(y, x, strange(y), retain_graph=True)[0]
        self.assertTrue(torch.equal(got, torch.autograd.grad(y, x, plain(y))[0]))

    def test_negative_views(self) -> None:
        for name in FUNCTIONS:
            with self.subTest(function=name):
                self.same(lambda y: torch._neg_view(torch.ones_like(y)), lambda y: -torch.ones_like(y), name)

    def test_imaginary_part_of_a_conjugate(self) -> None:
        """Where negative views come from."""
        q = randn(1, 1, 5, 8, grad=True)
        grads = []
        for part in (lambda z: z.conj().imag, lambda z: -z.imag):
            z = torch.view_as_complex(torch.ones(1, 1, 5, 8, 2, dtype=torch.float64))
            grads.append(torch.autograd.grad(attention(q), q, part(z))[0])
        self.assertTrue(torch.equal(*grads))

    def test_sparse_and_implicit_zeros(self) -> None:
        for name in FUNCTIONS:
            with self.subTest(function=name):
                self.same(lambda y: torch.ones_like(y).to_sparse(), torch.ones_like, name)
                self.same(lambda y: torch._efficientzerotensor(y.shape, dtype=y.dtype), torch.zeros_like, name)

    def test_ops_of_torch_library(self) -> None:
        from loci import _ops

        q = randn(1, 1, 5, 8, grad=True)
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
            key = _ops.END.join(("nope", "", "", "bhld", "True", "False", "False", ""))
            o = _ops.attention_op(q, q, q, [], [], key, -1, -1, None, None, None, 0.0)[0]
        got = torch.autograd.grad(o, q, torch._neg_view(torch.ones_like(o)))[0]
        self.assertTrue(torch.equal(got, torch.autograd.grad(attention(q), q, -torch.ones_like(o))[0]))

    def test_outputs_that_are_negative_views(self) -> None:
        q = randn(1, 1, 5, 8)
        with self.assertRaisesRegex(loci.Error, r"out is a view whose signs .* resolve_neg"):
            loci.attention(q, q, q, out=torch._neg_view(torch.zeros_like(q)))
        cache = loci.Cache("nope", 1, 8, capacity=64, dtype="float64")
        with self.assertRaisesRegex(loci.Error, r"out is a view whose signs .* resolve_neg"):
            cache.step(q, q, q, out=torch._neg_view(torch.zeros_like(q)))
        self.assertEqual(len(cache), 0)


class ForwardMode(unittest.TestCase):
    def refused(self, function: Any) -> None:
        with self.assertRaisesRegex(loci.Error, "no forward-mode derivatives"):
            function()

    def test_dual_tensors(self) -> None:
        for grad in (False, True):
            for name, function in FUNCTIONS.items():
                with self.subTest(function=name, grad=grad), forward_ad.dual_level():
                    x = randn(2, 2, 6, 8, grad=grad)
                    function(x)
                    self.refused(lambda x=x, f=function: f(forward_ad.make_dual(x, torch.ones_like(x))))

    def test_dual_tensors_beside_the_rows(self) -> None:
        q = randn(1, 4, 6, 8)
        table = randn(32, 4)
        cache = loci.Cache("nope", 4, 8, capacity=64, dtype="float64")
        with forward_ad.dual_level(), torch.no_grad():
            dual = forward_ad.make_dual(table, torch.ones_like(table))
            self.refused(lambda: loci.attention(q, q, q, "t5", tensors={"t5.table": dual}))
            scores = forward_ad.make_dual(torch.zeros(6, 6, dtype=torch.float64), torch.ones(6, 6, dtype=torch.float64))
            self.refused(lambda: loci.attention(q, q, q, mask=scores))
            one = q[:, :, :1].contiguous()
            cache.step(one, one, one)
            self.refused(lambda: cache.step(forward_ad.make_dual(one, one), one, one))
        self.assertEqual(len(cache), 1)

    def test_torch_func(self) -> None:
        x = randn(2, 2, 6, 8)
        for name, function in FUNCTIONS.items():
            with self.subTest(function=name):
                self.refused(lambda f=function: torch.func.jvp(f, (x,), (x,)))
                self.refused(lambda f=function: torch.func.jacfwd(f)(x))
        self.refused(lambda: torch.func.hessian(lambda x: attention(x).sum())(x))


class Numbers(unittest.TestCase):
    def test_tensors_are_read_once(self) -> None:
        q = randn(1, 2, 6, 8)
        scale = torch.tensor(0.1)
        for value in (0.1, 0.7):
            scale.fill_(value)
            self.assertTrue(
                torch.equal(loci.attention(q, q, q, scale=scale), loci.attention(q, q, q, scale=scale.item()))
            )
        window = torch.tensor([3, 0])
        for value in (3, 1):
            window[0] = value
            self.assertTrue(
                torch.equal(
                    loci.attention(q, q, q, window_size=window), loci.attention(q, q, q, window_size=(value, 0))
                )
            )
        sides = torch.tensor(2), 0
        self.assertTrue(
            torch.equal(loci.attention(q, q, q, window_size=sides), loci.attention(q, q, q, window_size=(2, 0)))
        )

    def test_what_is_no_number(self) -> None:
        q = randn(1, 2, 6, 8)
        learned = torch.tensor(0.1, requires_grad=True)
        for name in ("scale", "softcap", "max_len"):
            with self.assertRaisesRegex(loci.Error, f"{name} requires a gradient"):
                loci.attention(q, q, q, **{name: learned})
            with self.assertRaisesRegex(loci.Error, f"{name} must be a number, not a tensor"):
                loci.attention(q, q, q, **{name: torch.ones(2)})
        with self.assertRaisesRegex(loci.Error, "window_size requires a gradient"):
            loci.attention(q, q, q, window_size=(learned, 0))
        with self.assertRaisesRegex(loci.Error, "max_len requires a gradient"):
            loci.rotate(q, ROPE, max_len=learned)


class ChangedBeforeBackward(unittest.TestCase):
    def test_what_is_beside_the_rows(self) -> None:
        """Backward passes see what forward passes saw."""
        x = randn(2, 2, 6, 8, grad=True)
        at = np.array([[0, 1, 2, 3, 4, 5], [7, 8, 9, 10, 12, 14]])
        calls: dict[str, tuple[Any, Any]] = {
            "seg": (np.arange(6) // 3, lambda g: loci.attention(x, x, x, seg=g)),
            "pos": (at, lambda g: loci.attention(x, x, x, "alibi", pos=g)),
            "coords": (at[:, None] * 0.5, lambda g: loci.attention(x, x, x, "alibi", coords=g)),
            "k_lens": (np.array([5, 6]), lambda g: loci.attention(x, x, x, k_lens=g)),
            "k_first": (np.arange(6) // 2, lambda g: loci.attention(x, x, x, k_first=g, k_last=np.arange(6))),
            "cu_seqlens": (
                np.array([0, 3, 6]),
                lambda g: loci.attention(*(x[0].transpose(0, 1),) * 3, layout="thd", cu_seqlens_q=g),
            ),
            "linear": (np.arange(6) // 3, lambda g: loci.linear_attention(x, x, x, seg=g)),
            "rotate": (at, lambda g: loci.rotate(x, ROPE, pos=g)),
            "embed": (
                np.arange(6),
                lambda g: loci.embed(x[0], "learned", tensors={"learned.table": x[1, 0]}, pos=g, max_len=6),
            ),
            "shift": (np.arange(6) // 3, lambda g: layers.shift(x, x[..., 0], g)),
            "running_angles": (np.arange(6) // 3, lambda g: layers.running_angles(x, seg=g)),
            "temperature": (at, lambda g: layers.temperature(x, 0.5, 2.0, pos=g)),
        }
        for name, (array, call) in calls.items():
            want = torch.autograd.grad(call(array).square().sum(), x)[0]
            for kind in ("numpy", "torch"):
                with self.subTest(argument=name, kind=kind):
                    given: Any = array.copy() if kind == "numpy" else torch.from_numpy(array.copy())
                    loss = call(given).square().sum()
                    given[:] = 0
                    self.assertTrue(torch.equal(torch.autograd.grad(loss, x)[0], want))

    def test_prepared_tables_follow_their_tensors(self) -> None:
        plan = loci.Plan("fire", 2, 8, dtype="float64")
        learned = {name: torch.from_numpy(x).requires_grad_() for name, x in plan.init(1).items()}
        q = randn(1, 2, 9, 8)
        prepared = plan.prepared(learned, max_distance=16)
        before = prepared.tables
        self.assertIs(prepared.tables, before)
        optimiser = torch.optim.SGD(learned.values(), 0.5)
        for _ in range(2):
            o = plan.attention(q, q, q, prepared)
            self.assertTrue(torch.equal(o, plan.attention(q, q, q, learned)))
            o.square().sum().backward()
            optimiser.step()
        self.assertIsNot(prepared.tables, before)
        o = plan.attention(q, q, q, prepared)
        next(iter(learned.values())).data.add_(1)  # which raises no version
        other = next(iter(learned.values()))
        other.data = other.data.clone()
        self.assertTrue(torch.equal(plan.attention(q, q, q, prepared), plan.attention(q, q, q, learned)))

    def test_prepared_tables_of_arrays(self) -> None:
        """numpy does not tell of changes: what was prepared stays."""
        plan = loci.Plan("fire", 2, 8)
        learned = plan.init(1)
        q = np.random.default_rng(1).standard_normal((1, 2, 9, 8), np.float32)
        prepared = plan.prepared(learned, max_distance=16)
        want = plan.attention(q, q, q, learned)
        for x in learned.values():
            x += 1
        self.assertTrue(np.array_equal(plan.attention(q, q, q, prepared), want))
        turns = loci.Plan("mixed", 2, 8, stage="rotate")
        learned = turns.init(1)
        coords = np.arange(turns.axes * 9).reshape(turns.axes, 9)
        want_turned, prepared = turns.rotate(q, learned, coords=coords), turns.prepared(learned, max_distance=16)
        for x in learned.values():
            x += 1
        self.assertTrue(np.array_equal(turns.rotate(q, prepared, coords=coords), want_turned))
        with torch.inference_mode():  # tensors without versions
            tensors = {name: torch.from_numpy(x).clone() for name, x in plan.init(1).items()}
            prepared = plan.prepared(tensors, max_distance=16)
            for x in tensors.values():
                x += 1
            got = plan.attention(*(torch.from_numpy(q),) * 3, prepared)
            self.assertTrue(np.array_equal(got.numpy(), want))

    def test_shift_after_a_token_has_no_gradient(self) -> None:
        x = randn(1, 2, 3, 4, grad=True)
        before = randn(1, 2, 4)
        with self.assertRaisesRegex(loci.Error, r"shift\(\) with before has no gradient"):
            layers.shift(x, x[..., 0], before=before)
        with torch.no_grad():
            layers.shift(x, x[..., 0], before=before)


class Mapped(unittest.TestCase):
    def test_nothing_to_map(self) -> None:
        """The shapes are those that vmap promises, whatever is empty."""
        for name, function in FUNCTIONS.items():
            if name == "embed learned":
                continue  # a learned tensor is not mapped
            for shape in ((0, 2, 2, 6, 8), (3, 2, 2, 6, 8)):
                with self.subTest(function=name, shape=shape):
                    x = randn(*shape)
                    want = function(randn(2, 2, 6, 8)).shape
                    self.assertEqual(torch.func.vmap(function)(x).shape, (shape[0], *want))
                    each = torch.func.vmap(torch.func.grad(lambda x, f=function: f(x).sum()))(x)
                    self.assertEqual(each.shape, shape)
        for shape in ((3, 2, 0, 6, 8), (3, 2, 2, 0, 8), (3, 0, 2, 6, 8)):
            for name in ("attention", "linear_attention", "rotate"):
                with self.subTest(function=name, shape=shape):
                    x = randn(*shape)
                    self.assertEqual(torch.func.vmap(FUNCTIONS[name])(x).shape, shape)
                    each = torch.func.vmap(torch.func.grad(lambda x, f=FUNCTIONS[name]: f(x).sum()))(x)
                    self.assertEqual(each.shape, shape)

    def test_fixed_tensors_have_no_gradient(self) -> None:
        plan = loci.Plan("fope", 2, 8, dtype="float64")
        q = randn(1, 2, 6, 8)
        names, fixed = zip(*((name, torch.from_numpy(x)) for name, x in plan.init(1).items()), strict=True)

        def loss(q: Any, *fixed: Any) -> Any:
            return loci.attention(q, q, q, "fope", tensors=dict(zip(names, fixed, strict=True))).sum()

        leaves = [x.clone().requires_grad_() for x in (q, *fixed)]
        loss(*leaves).backward()
        self.assertEqual([x.grad is None for x in leaves], [False, True, True])
        grads = torch.func.grad(loss, argnums=(0, 1, 2))(q, *fixed)
        self.assertTrue(torch.equal(grads[0], leaves[0].grad) and not grads[1].any() and not grads[2].any())
        each = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1)), in_dims=(0, None, None))(q[None], *fixed)
        self.assertTrue(torch.equal(each[0][0], grads[0]) and each[1].shape == (1, *fixed[0].shape))

    def test_inputs_that_are_not_mapped(self) -> None:
        q, phi = randn(3, 1, 2, 6, 8), randn(1, 2, 6, 4)

        def turn(x: Any) -> Any:
            return loci.rotate(x, "angles:pairing=half", tensors={"angles.phi_q": phi})

        self.assertTrue(torch.equal(torch.func.vmap(turn)(q), torch.stack([turn(x) for x in q])))

    def test_what_cannot_be_mapped(self) -> None:
        q = randn(1, 2, 6, 8)
        cache = loci.Cache("nope", 2, 8, capacity=64, dtype="float64")
        at = torch.arange(12).view(2, 6)
        mapped = torch.func.vmap
        for function, argument, sentence in (
            (lambda p: loci.attention(q, q, q, "alibi", pos=p), at, "pos cannot be mapped by torch.func.vmap"),
            (lambda p: loci.rotate(q, ROPE, pos=p), at, "pos cannot be mapped by torch.func.vmap"),
            (lambda p: layers.shift(q, q[..., 0], p), at, "seg cannot be mapped by torch.func.vmap"),
            (lambda s: loci.attention(q, q, q, scale=s), torch.rand(3), "scale cannot be mapped by torch.func.vmap"),
            (lambda x: cache.step(x, x, x), randn(3, 1, 2, 4, 8), "by torch.func"),
            (lambda x: loci.weights(x, x), randn(3, 1, 2, 4, 8), "not followed by torch.func"),
        ):
            with self.assertRaisesRegex(loci.Error, sentence):
                mapped(function)(argument)
        self.assertEqual(len(cache), 0)

    def test_positions_as_arguments_of_grad(self) -> None:
        """torch.func.grad wraps every argument, also those that have no gradient."""
        q = randn(1, 2, 6, 8)
        at = torch.tensor([0, 1, 2, 5, 6, 9])
        got = torch.func.grad(lambda q, at: loci.attention(q, q, q, "alibi", pos=at).square().sum())(q, at)
        want = torch.func.grad(lambda q: loci.attention(q, q, q, "alibi", pos=at).square().sum())(q)
        self.assertTrue(torch.equal(got, want))


if __name__ == "__main__":
    unittest.main()
