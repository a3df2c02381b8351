# SPDX-License-Identifier: MIT
"""What people do with torch: autograd, checks, torch.func, compile, checkpoints, autocast, copies."""

from __future__ import annotations

import copy
import functools
import gc
import io
import pickle
import unittest
import warnings
from typing import Any

import numpy as np

import loci

from . import encodings

try:
    import torch
except ImportError:
    raise unittest.SkipTest("there is no torch") from None


def leaves(*shapes: tuple[int, ...], dtype: Any = torch.float64, seed: int = 0) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, dtype=dtype, generator=generator).requires_grad_() for shape in shapes]


def qkv(dtype: Any = torch.float64) -> list[Any]:
    return leaves((2, 4, 6, 8), (2, 2, 6, 8), (2, 2, 6, 8), dtype=dtype)


class Gradients(unittest.TestCase):
    def test_gradcheck_of_every_encoding(self) -> None:
        tried = 0
        for e in encodings.attending():
            if e.name in ("liere", "comrope"):
                continue  # of one axis they have nothing that is not in the golden cases
            with self.subTest(encoding=e.example):
                self.gradcheck(e.example)
                tried += 1
        self.assertGreater(tried, 15)

    def gradcheck(self, text: str) -> None:
        options: dict[str, Any] = {"causal": True, "max_len": 16}
        plan = loci.Plan(text, 4, 8, kv_heads=2, dtype="float64", **options)
        q, k, v = leaves((1, 4, 3, 8), (1, 2, 4, 8), (1, 2, 4, 8))
        tensors = {name: torch.from_numpy(x) + 0.1 for name, x in plan.init(1).items()}
        for name, x in encodings.inputs(plan, 1, 3, 4, dtype="float64").items():
            tensors[name] = torch.from_numpy(x)
        roles = {t.name: t.role for t in plan.tensors}
        names = [name for name in tensors if roles[name] != "fixed"]
        wanted = [tensors[name].clone().requires_grad_() for name in names]
        if plan.axes > 1:
            options["q_coords"] = np.arange(plan.axes * 3).reshape(plan.axes, 3) % 5
            options["k_coords"] = np.arange(plan.axes * 4).reshape(plan.axes, 4) % 5

        def function(q: Any, k: Any, v: Any, *some: Any) -> Any:
            given = {**tensors, **dict(zip(names, some, strict=True))}
            return loci.attention(q, k, v, text, tensors=given, return_lse=True, **options)

        self.assertTrue(torch.autograd.gradcheck(function, (q, k, v, *wanted), fast_mode=True, atol=1e-5))

    def test_gradcheck_of_the_rest(self) -> None:
        q, k, v = qkv()
        x = leaves((2, 3, 5, 8))[0]
        angles = leaves((4,))[0]
        logits, w = leaves((2, 3, 5), (3, 8), seed=2)

        def sums(x: Any, rate: Any, before: Any, exclusive: bool) -> Any:
            """Reduced angles jump where their sums pass pi; cosines do not."""
            made = loci.layers.running_angles(x, rate, before=before, exclusive=exclusive, return_after=True)
            return tuple(y.cos() for y in made)

        functions: list[tuple[Any, Any]] = [
            (lambda *a: loci.linear_attention(*a, "rope:pairing=half"), (q, k, v)),
            (lambda *a: loci.attention(*a, softcap=1.5, sinks=angles.detach()), (q, k, v)),
            (lambda s: loci.attention(*(a.detach() for a in (q, k, v)), sinks=s), (angles,)),
            (lambda x: loci.rotate(x, "rope:pairing=half", pos=[3, 1, 4, 1, 5]), (x,)),
            (lambda x: loci.embed(x[0], "sinusoidal"), (x,)),
            (loci.layers.rmsnorm, (x, w)),
            (loci.layers.shift, (x, logits)),
            (loci.layers.log_gate, (logits,)),
            (lambda x, g: loci.layers.gate(x, g, "silu"), (x, leaves((2, 3, 5, 8), seed=4)[0])),
            (lambda x: loci.layers.temperature(x, 0.1, 2.0), (x,)),
            *(
                (functools.partial(sums, exclusive=exclusive), (x, w, leaves((2, 3, 8), seed=5)[0]))
                for exclusive in (False, True)
            ),
        ]
        for i, (function, arguments) in enumerate(functions):
            with self.subTest(function=i):
                self.assertTrue(torch.autograd.gradcheck(function, arguments, fast_mode=True))

    def test_masks(self) -> None:
        q, k, v = qkv()
        for shape in ((2, 4, 6, 6), (4, 6, 6), (1, 6)):
            mask = leaves(shape, seed=3)[0]
            self.assertTrue(
                torch.autograd.gradcheck(lambda *a: loci.attention(*a[:3], "alibi", mask=a[3]), (q, k, v, mask))
            )
        seen = torch.rand(6, 6) < 0.6
        o = loci.attention(q, k, v, mask=seen)
        o.sum().backward()
        want = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=seen & torch.ones(6, 6).tril().bool(), enable_gqa=True
        )
        some = (seen & torch.ones(6, 6).tril().bool()).any(-1)
        self.assertTrue(torch.allclose(o[:, :, some], want[:, :, some]))
        narrow = torch.randn(6, 6).bfloat16().requires_grad_()
        loci.attention(*(x.float() for x in (q, k, v)), mask=narrow).sum().backward()
        self.assertEqual(narrow.grad.dtype, torch.bfloat16)

    def test_only_what_is_wanted(self) -> None:
        q, k, v = (x.detach() for x in qkv())
        k.requires_grad_()
        loci.attention(q, k, v).sum().backward()
        self.assertIsNotNone(k.grad)
        self.assertIsNone(q.grad)

    def test_no_second_derivatives(self) -> None:
        q, k, v = qkv()
        o = loci.attention(q, k, v)
        (dq,) = torch.autograd.grad(o.sum(), q, create_graph=True)
        with self.assertRaisesRegex(loci.Error, "no second derivatives"):
            dq.sum().backward()

    def test_changes_in_place_are_caught(self) -> None:
        q, k, v = (x * 1 for x in qkv())
        o = loci.attention(q, k, v)
        k += 1
        with self.assertRaisesRegex(RuntimeError, "inplace"):
            o.sum().backward()

    def test_layouts_and_broadcast(self) -> None:
        q, k, v = qkv()
        turned = [x.transpose(1, 2) for x in (q, k, v)]
        o = loci.attention(*turned, "alibi", layout="blhd")
        self.assertTrue(torch.equal(o.transpose(1, 2), loci.attention(q, k, v, "alibi")))
        one = k.detach()[:, :1].clone().requires_grad_()
        loci.attention(q, one.expand(2, 2, 6, 8), v).square().sum().backward()
        other = k.detach()[:, :1].clone().requires_grad_()
        loci.attention(q, other.repeat(1, 2, 1, 1), v).square().sum().backward()
        self.assertTrue(torch.allclose(one.grad, other.grad))

    def test_narrow_tensors_of_narrow_models(self) -> None:
        q, k, v = (x.detach().bfloat16().requires_grad_() for x in qkv())
        table = torch.randn(32, 4).bfloat16().requires_grad_()
        o = loci.attention(q, k, v, "t5:bidirectional=0", tensors={"t5.table": table})
        o.float().sum().backward()
        self.assertEqual((o.dtype, table.grad.dtype, q.grad.dtype), (torch.bfloat16,) * 3)
        wide = [x.detach().float().requires_grad_() for x in (q, k, v, table)]
        loci.attention(*wide[:3], "t5:bidirectional=0", tensors={"t5.table": wide[3]}).sum().backward()
        self.assertLess((wide[3].grad - table.grad.float()).abs().max(), 0.02)


class Transforms(unittest.TestCase):
    def test_grad_and_vmap(self) -> None:
        q, k, v = (x.detach() for x in qkv())

        def loss(q: Any, k: Any, v: Any) -> Any:
            return loci.attention(q, k, v, "rope:pairing=half").square().sum()

        want = torch.autograd.grad(loss(*(x.requires_grad_() for x in (q, k, v))), (q, k, v))
        q, k, v = (x.detach() for x in (q, k, v))
        got = torch.func.grad(loss, argnums=(0, 1, 2))(q, k, v)
        for a, b in zip(got, want, strict=True):
            self.assertTrue(torch.equal(a, b))
        many = torch.stack((q, q + 1, q * 2))
        mapped = torch.func.vmap(lambda x: loci.attention(x, k, v, "alibi"))(many)
        for i in range(3):
            self.assertTrue(torch.equal(mapped[i], loci.attention(many[i], k, v, "alibi")))
        each = torch.func.vmap(torch.func.grad(loss), in_dims=(0, None, None))(many, k, v)
        self.assertTrue(torch.allclose(each[0], want[0]))
        with self.assertRaisesRegex(loci.Error, "is mapped by torch.func.vmap"):
            tables = torch.zeros(3, 32, 4, dtype=torch.float64)
            torch.func.vmap(lambda t: loci.attention(q, k, v, "t5", tensors={"t5.table": t}))(tables)

    def test_checkpoints(self) -> None:
        from torch.utils.checkpoint import checkpoint

        q, k, v = qkv()
        want = torch.autograd.grad(loci.attention(q, k, v, "alibi").square().sum(), (q, k, v))
        o = checkpoint(lambda *a: loci.attention(*a, "alibi"), q, k, v, use_reentrant=False)
        for a, b in zip(torch.autograd.grad(o.square().sum(), (q, k, v)), want, strict=True):
            self.assertTrue(torch.equal(a, b))

    def test_autocast(self) -> None:
        q, k, v = qkv(torch.float32)
        with torch.autocast("cpu", torch.bfloat16):
            o = loci.attention(q, k, v)
        self.assertEqual(o.dtype, torch.bfloat16)
        o.float().sum().backward()
        self.assertEqual(q.grad.dtype, torch.float32)

    def test_subclasses_have_the_first_word(self) -> None:
        seen = []

        class Watched(torch.Tensor):
            @classmethod
            def __torch_function__(cls, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
                if function is loci.attention:
                    seen.append(arguments[3])
                    plain = [x.as_subclass(torch.Tensor) if isinstance(x, torch.Tensor) else x for x in arguments]
                    return function(*plain, **(options or {}))
                return super().__torch_function__(function, types, arguments, options or {})

        q, k, v = (x.detach() for x in qkv())
        o = loci.attention(q.as_subclass(Watched), k, v, "alibi")
        self.assertEqual(seen, ["alibi"])
        self.assertTrue(torch.equal(o, loci.attention(q, k, v, "alibi")))


class Compiled(unittest.TestCase):
    """aot_eager, so that no compiler is needed: what is traced is the same."""

    def same(self, function: Any, *arguments: Any, dynamic: bool = False) -> None:
        torch._dynamo.reset()
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=dynamic)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got = compiled(*arguments)
        want = function(*arguments)
        for a, b in zip(*((x,) if isinstance(x, torch.Tensor) else x for x in (got, want)), strict=True):
            self.assertTrue(torch.equal(a, b))
        some = [x for x in arguments if isinstance(x, torch.Tensor) and x.requires_grad]
        if some:
            first = got if isinstance(got, torch.Tensor) else got[0]
            second = want if isinstance(want, torch.Tensor) else want[0]
            mine = torch.autograd.grad(first.square().sum(), some)
            for a, b in zip(mine, torch.autograd.grad(second.square().sum(), some), strict=True):
                self.assertTrue(torch.equal(a, b))

    def test_functions(self) -> None:
        q, k, v = qkv(torch.float32)
        table = torch.randn(32, 4, requires_grad=True)
        x = leaves((2, 4, 6, 8), dtype=torch.float32)[0]

        def t5(q: Any, k: Any, v: Any, table: Any) -> Any:
            return loci.attention(q, k, v, "t5:bidirectional=1", tensors={"t5.table": table}, causal=False)

        self.same(t5, q, k, v, table)
        self.same(lambda q, k, v: loci.attention(q, k, v, "alibi", window_size=(3, 0), softcap=2.0), q, k, v)
        mask = torch.randn(4, 6, 6, requires_grad=True)
        self.same(lambda q, k, v, m: loci.attention(q, k, v, mask=m, causal=False), q, k, v, mask)
        at = torch.arange(6)
        self.same(lambda q, k, v: loci.attention(q, k, v, "rope:pairing=half", pos=at, seg=at // 3), q, k, v)
        self.same(lambda q, k, v: loci.linear_attention(q, k, v, "rope:pairing=half"), q, k, v)
        self.same(lambda x: loci.rotate(x, "rope:pairing=half", pos=at), x)
        self.same(lambda x: loci.embed(x[0], "sinusoidal"), x)

    def test_dynamic_shapes(self) -> None:
        torch._dynamo.reset()
        compiled = torch.compile(
            lambda q, k, v: loci.attention(q, k, v, "alibi"), fullgraph=True, backend="aot_eager", dynamic=True
        )
        for rows in (5, 6, 9):
            q, k, v = (x.detach() for x in leaves((2, 4, rows, 8), (2, 4, rows, 8), (2, 4, rows, 8)))
            self.assertTrue(torch.equal(compiled(q, k, v), loci.attention(q, k, v, "alibi")))

    def test_export(self) -> None:
        class Model(torch.nn.Module):
            def forward(self, q: Any, k: Any, v: Any) -> Any:
                return loci.attention(q, k, v, "alibi")

        q, k, v = (x.detach() for x in qkv(torch.float32))
        exported = torch.export.export(Model(), (q, k, v))
        self.assertTrue(torch.equal(exported.module()(q, k, v), loci.attention(q, k, v, "alibi")))

    def test_opcheck(self) -> None:
        from loci import _ops

        q, k, v = qkv(torch.float32)
        key = _ops.END.join(("alibi", "", "", "bhld", "True", "False", "False", ""))
        torch.library.opcheck(_ops.attention_op, (q, k, v, [], [], key, -1, -1, None, None, None, 0.0))


class Copies(unittest.TestCase):
    def test_modules(self) -> None:
        from loci import nn

        torch.manual_seed(3)
        module = nn.Attention(32, 4, "fire+t5")
        x = torch.randn(2, 9, 32)
        want = module(x)
        room = io.BytesIO()
        torch.save(module.state_dict(), room)
        other = nn.Attention(32, 4, "fire+t5")
        self.assertFalse(torch.equal(other(x), want))
        room.seek(0)
        other.load_state_dict(torch.load(room))
        for again in (other, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
            self.assertTrue(torch.equal(again(x), want))

    def test_memory_is_given_back(self) -> None:
        """Graphs that are dropped, and shapes that change, leave nothing behind."""
        import resource

        def many(times: int) -> None:
            for i in range(times):
                q, k, v = (torch.randn(1, 2, 8 + i % 300, 16, requires_grad=True) for _ in range(3))
                loci.attention(q, k, v, "rope:pairing=half").sum().backward()

        many(1200)
        gc.collect()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        many(2400)
        gc.collect()
        self.assertLess(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, 30000)


if __name__ == "__main__":
    unittest.main()
