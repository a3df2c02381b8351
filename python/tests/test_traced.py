# SPDX-License-Identifier: MIT
"""Calls that somebody records or replaces: torch.compile with numbers that vary, jit.trace, make_fx, fake tensors."""

from __future__ import annotations

import unittest
import warnings
from typing import Any

import loci

try:
    import torch
except ImportError:
    raise unittest.SkipTest("there is no torch") from None

from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from loci import layers

ROPE = "rope:pairing=half"
DYNAMIC = "rope:pairing=half,scaling=dynamic,factor=2,original_length=8"


def randn(*shape: int, grad: bool = False) -> Any:
    return torch.randn(shape, requires_grad=grad)


FUNCTIONS = {
    "attention": lambda x: loci.attention(x, x, x, "alibi", window_size=(3, 0), softcap=3.0, scale=0.4),
    "positions": lambda x: loci.attention(x, x, x, "alibi", pos=torch.arange(6) * 2, return_lse=True)[0],
    "linear_attention": lambda x: loci.linear_attention(x, x, x, ROPE),
    "rotate": lambda x: loci.rotate(x, ROPE),
    "embed": lambda x: loci.embed(x[0], "sinusoidal"),
}


class VaryingNumbers(unittest.TestCase):
    """A number that varies makes one more graph, not one per value, and never a break."""

    def vary(self, function: Any, values: Any, dynamic: bool | None, most: int | None) -> None:
        torch._dynamo.reset()
        graphs = []

        def backend(graph: Any, inputs: Any) -> Any:
            graphs.append(graph)
            return graph.forward

        compiled = torch.compile(function, fullgraph=True, dynamic=dynamic, backend=backend)
        q = randn(1, 2, 6, 8, grad=True)
        for x in values:
            got, want = compiled(q, x), function(q, x)
            self.assertTrue(torch.equal(got, want))
            grads = [torch.autograd.grad(o.square().sum(), q)[0] for o in (got, want)]
            self.assertTrue(torch.equal(*grads))
        if most is not None:
            self.assertLessEqual(len(graphs), most)

    def test_whole_numbers(self) -> None:
        functions = {
            "window": lambda q, n: loci.attention(q, q, q, "alibi", window_size=(n, 0)),
            "max_len of attention": lambda q, n: loci.attention(q, q, q, DYNAMIC, max_len=n),
            "max_len of rotate": lambda q, n: loci.rotate(q, DYNAMIC, max_len=n),
            "max_len of linear attention": lambda q, n: loci.linear_attention(q, q, q, DYNAMIC, max_len=n),
            "max_len of embed": lambda q, n: loci.embed(q[0], "sinusoidal", max_len=n),
        }
        for name, function in functions.items():
            for dynamic in (None, True):
                with self.subTest(number=name, dynamic=dynamic):
                    self.vary(function, range(9, 21), dynamic, 2)

    def test_real_numbers(self) -> None:
        """As of torch's own attention, each value is compiled for."""
        for dynamic in (None, True):
            with self.subTest(dynamic=dynamic):
                self.vary(
                    lambda q, s: loci.attention(q, q, q, scale=s, softcap=s * 10), (0.2, 0.3, 0.45), dynamic, None
                )
                self.vary(lambda q, n: loci.attention(q, q, q, scale=q.shape[-1] ** -0.5), (1, 2), dynamic, None)

    def test_tensors_are_no_numbers(self) -> None:
        q = randn(1, 2, 6, 8)
        compiled = torch.compile(lambda q, s: loci.attention(q, q, q, scale=s), fullgraph=True, backend="eager")
        with self.assertRaisesRegex(Exception, "scale is a tensor; under torch.compile it must be a number"):
            compiled(q, torch.tensor(0.2))

    def test_with_aot_autograd(self) -> None:
        torch._dynamo.reset()
        compiled = torch.compile(
            lambda q, n: loci.attention(q, q, q, "alibi", window_size=(n, 0)), fullgraph=True, backend="aot_eager"
        )
        q = randn(1, 2, 6, 8, grad=True)
        for n in (1, 2, 3):
            grads = [
                torch.autograd.grad(o.square().sum(), q)[0]
                for o in (compiled(q, n), loci.attention(q, q, q, "alibi", window_size=(n, 0)))
            ]
            self.assertTrue(torch.equal(*grads))


class Recorded(unittest.TestCase):
    def test_functions(self) -> None:
        example, x = randn(2, 2, 6, 8), randn(2, 2, 6, 8, grad=True)
        for name, function in FUNCTIONS.items():
            want = function(x)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                recorded = {"trace": torch.jit.trace(function, (example,), check_trace=False)}
                for mode in ("real", "fake", "symbolic"):
                    recorded[mode] = make_fx(function, tracing_mode=mode)(example)
            for tracer, again in recorded.items():
                with self.subTest(function=name, tracer=tracer):
                    got = again(x)
                    self.assertTrue(torch.equal(got, want))
                    grads = [torch.autograd.grad(o.square().sum(), x, retain_graph=True)[0] for o in (got, want)]
                    self.assertTrue(torch.equal(*grads))

    def test_what_is_no_op(self) -> None:
        """An error, not a constant in the graph."""
        x = randn(1, 2, 1, 8)
        cache = loci.Cache("nope", 2, 8, capacity=64)
        cache.step(x, x, x)
        for name, function in {
            "rmsnorm": lambda x: layers.rmsnorm(x),
            "shift": lambda x: layers.shift(x, x[..., 0]),
            "weights": lambda x: loci.weights(x, x),
            "attention_backward": lambda x: loci.attention_backward(x, x, x, x, x, x[..., 0])[0],
            "step": lambda x: cache.step(x, x, x),
            "append": lambda x: cache.append(x, x),
        }.items():
            for tracer in (torch.jit.trace, lambda f, args: make_fx(f)(*args)):
                with (
                    self.subTest(function=name, tracer=tracer),
                    self.assertRaisesRegex(loci.Error, "is no op of torch"),
                ):
                    tracer(function, (x,))
        self.assertEqual(len(cache), 1)

    def test_export(self) -> None:
        class Model(torch.nn.Module):
            def forward(self, x: Any) -> Any:
                return FUNCTIONS["attention"](x)

        x = randn(1, 2, 6, 8)
        self.assertTrue(torch.equal(torch.export.export(Model(), (x,)).module()(x), FUNCTIONS["attention"](x)))


class Watched(unittest.TestCase):
    def test_modes_that_only_look(self) -> None:
        """They change nothing."""
        from torch.utils.flop_counter import FlopCounterMode

        x, room = randn(1, 2, 6, 8), torch.empty(1, 2, 6, 8)
        with FlopCounterMode(display=False):
            self.assertIs(loci.attention(x, x, x, out=room), room)
            self.assertTrue(torch.equal(loci.attention(x, x, x), room))
            layers.rmsnorm(x)


class WithoutNumbers(unittest.TestCase):
    def test_fake_tensors(self) -> None:
        with FakeTensorMode():
            x = torch.randn(2, 2, 6, 8, requires_grad=True)
            for name, function in FUNCTIONS.items():
                with self.subTest(function=name):
                    y = function(x)
                    self.assertEqual(
                        (type(y).__name__, y.shape), ("FakeTensor", x[0].shape if name == "embed" else x.shape)
                    )
                    y.sum().backward()
        self.assertEqual(FUNCTIONS["attention"](x).shape, x.shape)  # beside its mode
        plain = randn(2, 2, 6, 8)
        for function in (layers.rmsnorm, lambda x: loci.attention(plain, x, plain)):
            with warnings.catch_warnings(), self.assertRaisesRegex(loci.Error, "FakeTensor has a shape and no numbers"):
                warnings.simplefilter("ignore")
                function(x.detach())

    def test_spread_tensors(self) -> None:
        import torch.distributed as dist

        if not dist.is_available() or dist.is_initialized():
            self.skipTest("there is no torch.distributed, or it is in use")
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            x = DTensor.from_local(randn(1, 2, 6, 8), init_device_mesh("cpu", (1,)))
            for function in (lambda x: loci.attention(x, x, x), layers.rmsnorm, lambda x: loci.rotate(x, ROPE)):
                with self.assertRaisesRegex(loci.Error, r"DTensor spreads over processes; use its to_local\(\)"):
                    function(x)
        finally:
            dist.destroy_process_group()

    def test_implicit_zeros(self) -> None:
        x = torch._efficientzerotensor((1, 2, 6, 8))
        with self.assertRaisesRegex(loci.Error, r"implicit zeros has no address; call clone\(\)"):
            loci.attention(x, x, x)


if __name__ == "__main__":
    unittest.main()
