# SPDX-License-Identifier: MIT
"""Modules: what they learn, how it is called, and that a cache gives the bits of one pass."""

from __future__ import annotations

import copy
import pickle
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
        free = nn.Encoding("alibi:slopes=given", 4, 16)
        with torch.no_grad():
            free.tensors()["alibi.slopes"].fill_(-1)
        free.constrain_()
        self.assertTrue((free.tensors()["alibi.slopes"] == -1).all())

    def test_what_inputs_are_made_of(self) -> None:
        made = {"fox": "log gate", "cope:gates=given": "keys", "tape": "states", "kerple": "other"}
        for encoding, source in made.items():
            plan = loci.Plan(encoding, heads=4, dim=16)
            self.assertEqual({t.source for t in plan.tensors if t.role == "input" or source == "other"}, {source})

    def test_one_length_for_all_entries_of_a_cache(self) -> None:
        m = loci.nn.Attention(32, 4, "rope:pairing=half")
        x = torch.randn(2, 3, 32)
        with torch.no_grad():
            one, each = m.new_cache(2, 64), m.new_cache(2, 64)
            self.assertTrue(torch.equal(m(x, cache=one, k_lens=2), m(x, cache=each, k_lens=torch.tensor([2, 2]))))
        self.assertEqual(one.lengths, [2, 2])

    def test_trees_of_tokens(self) -> None:
        parents = [-1, 0, 0, 1]
        for encoding in ("rope:pairing=half+alibi", "fox"):
            m, x = nn.Attention(32, 4, encoding, kv_heads=2), torch.randn(1, 14, 32)
            with torch.no_grad():
                cache, alone = m.new_cache(3, 64), m.new_cache(1, 64)
                m(x[:, :10], cache=cache, parents=range(-1, 9))  # the prompt
                cache.keep(9)
                m(x[:, :10], cache=alone)
                made = m(x[:, 10:], cache=cache, parents=parents)
                for path in ([0, 1, 3], [0, 2]):
                    other = alone.copy()
                    for node in path:
                        want = m(x[:, 10 + node : 11 + node], cache=other)
                        self.assertLess((made[:, node : node + 1] - want).abs().max(), 2e-6)
                cache.keep(3)
                self.assertEqual(len(cache), 13)
                with self.assertRaisesRegex(loci.Error, "a tree of tokens \\(parents\\) has no k_lens"):
                    m(x, cache=cache, parents=range(-1, 13), k_lens=2)
        with self.assertRaisesRegex(loci.Error, "parents are of a tree of tokens, which needs a cache"):
            m(x, parents=range(-1, 13))

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
        with self.assertRaisesRegex(loci.Error, "'tape' has states"):
            nn.Attention(32, 4, "tape")
        with self.assertRaisesRegex(loci.Error, "no multiple"):
            nn.Attention(30, 4, "nope")
        with self.assertRaisesRegex(TypeError, "encoding is missing: .* 'nope' for no positions"):
            nn.Attention(32, 4)

    def test_sizes(self) -> None:
        """Each size of each module: no error of torch or Python, and none of a call that comes later."""
        modules: dict[str, tuple[Any, dict[str, Any]]] = {
            "Encoding": (nn.Encoding, {"encoding": "nope", "heads": 4, "dim": 8}),
            "Attention": (nn.Attention, {"embed_dim": 32, "heads": 4, "encoding": "nope"}),
            "Embedding": (nn.Embedding, {"encoding": "sinusoidal", "embed_dim": 32}),
            "FoXPro": (nn.FoXPro, {"embed_dim": 32, "heads": 4}),
            "TaPE": (nn.TaPE, {"embed_dim": 32, "heads": 4, "units": 3}),
            "SelectiveRoPE": (nn.SelectiveRoPE, {"embed_dim": 32, "heads": 4}),
            "GrapeM": (nn.GrapeM, {"embed_dim": 32, "heads": 4}),
            "RePo": (nn.RePo, {"embed_dim": 32, "heads": 4}),
            "GrapeA": (nn.GrapeA, {"heads": 4, "head_dim": 8}),
            "PaTH": (nn.PaTH, {"embed_dim": 32, "heads": 4}),
            "PoPE": (nn.PoPE, {"heads": 4, "dim": 8}),
            "Wall": (nn.Wall, {"embed_dim": 32, "heads": 4}),
        }
        heads = ("kv_heads", "head_dim")
        optional = {
            "Attention": heads,
            "FoXPro": heads,
            "SelectiveRoPE": (*heads, "rank", "width"),
            "GrapeM": heads,
            "RePo": ("kv_heads", "hidden"),
            "GrapeA": ("kv_heads",),
            "PaTH": heads,
            "Wall": ("head_dim",),
        }
        for module, (cls, sizes) in modules.items():
            for name in (*(n for n in sizes if n != "encoding"), *optional.get(module, ())):
                for wrong in (0, -1, -4, 1 << 40, 2.0, 2.5, True, "8", [4], float("nan")):
                    with self.subTest(module=module, name=name, wrong=wrong):
                        kind = loci.Error if type(wrong) is int else TypeError
                        with self.assertRaisesRegex(kind, f"^{name} must be (from|a whole number)"):
                            cls(**{**sizes, name: wrong})
            for name in sizes:
                with self.subTest(module=module, name=name), self.assertRaises(TypeError):
                    cls(**{**sizes, name: None})

    def test_sizes_together(self) -> None:
        for cls in (nn.Attention, nn.FoXPro):
            rest = ("nope",) if cls is nn.Attention else ()
            with self.assertRaisesRegex(loci.Error, "kv_heads 3 must divide heads 4"):
                cls(32, 4, *rest, kv_heads=3)
            with self.assertRaisesRegex(loci.Error, "embed_dim 2 is no multiple of 4 heads"):
                cls(2, 4, *rest)
            with self.assertRaisesRegex(loci.Error, "embed_dim // heads must be from 1 to 1024"):
                cls(4096, 2, *rest)
        with self.assertRaisesRegex(loci.Error, "multiple of 2 x 4 heads"):
            nn.TaPE(36, 4, units=3)
        with self.assertRaisesRegex(loci.Error, "mix must be one of rowsum, full"):
            nn.TaPE(32, 4, units=3, mix="half")
        for base in (0, -1.0, 0.5, float("inf"), float("nan")):
            with self.assertRaisesRegex(loci.Error, "base must be from 1 to 1e18"):
                nn.TaPE(32, 4, units=3, base=base)
        with self.assertRaisesRegex(TypeError, "base must be a number"):
            nn.TaPE(32, 4, units=3, base="ten")  # type: ignore[arg-type]
        for wrong in (5, b"nope"):
            with self.assertRaisesRegex(TypeError, "must be a text such as"):
                nn.Attention(32, 4, wrong)  # type: ignore[arg-type]
            with self.assertRaisesRegex(TypeError, "rope must be a text such as"):
                nn.FoXPro(32, 4, rope=wrong)  # type: ignore[arg-type]
        with self.assertRaisesRegex(loci.Error, "xyz"):
            nn.FoXPro(32, 4, rope="xyz")


MODULES: dict[str, tuple[Any, ...]] = {
    "Encoding": (nn.Encoding, "fire+t5", 4, 8),
    "Encoding with fixed tensors": (nn.Encoding, "fope", 4, 8),
    "Attention": (nn.Attention, 32, 4, "fire+fox"),
    "Embedding": (nn.Embedding, "learned", 32),
    "FoXPro": (nn.FoXPro, 32, 4),
    "TaPE": (nn.TaPE, 32, 4),
    "SelectiveRoPE": (nn.SelectiveRoPE, 32, 4),
    "SelectiveRoPE with all": (nn.SelectiveRoPE, 32, 4),
    "GrapeM": (nn.GrapeM, 32, 4),
    "RePo": (nn.RePo, 32, 4),
    "GrapeA": (nn.GrapeA, 4, 8),
    "PaTH": (nn.PaTH, 32, 4),
    "PoPE": (nn.PoPE, 4, 8),
    "PoPE with phases": (nn.PoPE, 4, 8),
    "Wall": (nn.Wall, 32, 4),
}
ALL: dict[str, Any] = {"rank": None, "bias": True, "gate": "channel", "learn_temperature": True}


def make(name: str, **options: Any) -> Any:
    cls, *arguments = MODULES[name]
    more: dict[str, dict[str, Any]] = {
        "Embedding": {"max_len": 8},
        "TaPE": {"units": 3},
        "Attention": {"qk_norm": True, "bias": True},
        "SelectiveRoPE with all": ALL,
        "PoPE with phases": {"phases": "uniform"},
    }
    return cls(*arguments, **more.get(name, {}), **options)


class Empty(unittest.TestCase):
    """Modules without numbers, and how they get them."""

    def equals_a_new_one(self, module: Any, name: str) -> None:
        torch.manual_seed(5)
        module.reset_parameters()
        torch.manual_seed(5)
        want = make(name).state_dict()
        got = module.state_dict()
        self.assertEqual(got.keys(), want.keys())
        for key, x in want.items():
            self.assertTrue(torch.equal(got[key], x), key)

    def test_meta_device(self) -> None:
        for name in MODULES:
            with self.subTest(module=name):
                generator = torch.random.get_rng_state()
                with torch.device("meta"):
                    module = make(name)
                self.assertTrue(torch.equal(torch.random.get_rng_state(), generator))
                self.assertTrue(all(x.is_meta for x in module.state_dict().values()))
                module = module.to_empty(device="cpu")
                for x in module.state_dict().values():
                    x.fill_(7)
                self.equals_a_new_one(module, name)

    def test_skip_init(self) -> None:
        for name, (cls, *arguments) in MODULES.items():
            more: dict[str, Any] = {"Embedding": {"max_len": 8}, "TaPE": {"units": 3}}.get(name, {})
            with self.subTest(module=name):
                module = torch.nn.utils.skip_init(cls, *arguments, **more)
                self.assertFalse(any(x.is_meta for x in module.state_dict().values()))

    def test_each_module_resets_its_own(self) -> None:
        """As FSDP does it: modules with parameters or buffers of their own are asked one by one."""
        for name in MODULES:
            with self.subTest(module=name):
                module = make(name, device="meta").to_empty(device="cpu")
                with torch.no_grad():
                    for x in module.state_dict().values():
                        x.fill_(float("nan"))
                for part in module.modules():
                    if any(True for _ in (*part.parameters(recurse=False), *part.buffers(recurse=False))):
                        part.reset_parameters()
                self.assertTrue(all(x.isfinite().all() for x in module.state_dict().values()))

    def test_types(self) -> None:
        for name in MODULES:
            with self.subTest(module=name):
                module = make(name, dtype=torch.bfloat16)
                self.assertEqual({x.dtype for x in module.state_dict().values()}, {torch.bfloat16})

    def test_it_pickles(self) -> None:
        m = copy.deepcopy(pickle.loads(pickle.dumps(make("Attention"))))
        self.equals_a_new_one(m, "Attention")


class FailedSteps(unittest.TestCase):
    """A step that fails leaves the cache as it was."""

    def fails(self, module: Any, cache: Any, x: Any, y: Any, error: Any) -> None:
        """The step with x fails; the one with y then gives what it gives without it."""
        before, keys = copy.deepcopy(cache), getattr(cache, "keys", cache)
        with self.assertRaises(error):
            module(x, cache=cache)
        self.assertEqual(keys.lengths, getattr(before, "keys", before).lengths)
        self.assertTrue(torch.equal(module(y, cache=cache), module(y, cache=before)))

    def test_full_caches(self) -> None:
        for name in ("Attention", "FoXPro"):
            with self.subTest(module=name), torch.no_grad():
                m = make(name)
                x = torch.randn(1, 66, 32)
                cache = m.new_cache(1, 64)
                m(x[:, :63], cache=cache)
                self.fails(m, cache, x[:, 63:65], x[:, 65:], loci.Error)

    def test_failures_after_the_keys_were_added(self) -> None:
        class Stop(BaseException):
            """As KeyboardInterrupt."""

        def stop(*_: Any) -> None:
            raise Stop

        for name in ("Attention", "FoXPro"):
            with self.subTest(module=name), torch.no_grad():
                m = make(name)
                x = torch.randn(2, 9, 32)
                cache = m.new_cache(2, 64)
                m(x[:, :4], cache=cache)
                hook = m.o_proj.register_forward_pre_hook(stop)
                before = copy.deepcopy(cache)
                with self.assertRaises(Stop):
                    m(x[:, 4:6], cache=cache)
                hook.remove()
                self.assertTrue(torch.equal(m(x[:, 6:], cache=cache), m(x[:, 6:], cache=before)))
        m = make("Attention")
        m.o_proj.register_forward_pre_hook(stop)
        cache = m.new_cache(2, 64)
        with torch.no_grad(), self.assertRaises(Stop):
            m(torch.randn(2, 3, 32), cache=cache, k_lens=torch.tensor([3, 1]))
        self.assertEqual(cache.lengths, [0, 0])

    def test_tape_changes_no_states(self) -> None:
        m = make("TaPE")
        e, x = m.start(1, 5), torch.randn(1, 5, 32)
        kept = e.clone()
        m(x, e)
        with self.assertRaises(loci.Error):
            m(torch.randn(1, 6, 32), e)
        with self.assertRaises(loci.Error):
            m.update(e, torch.randn(1, 5, 9))
        self.assertTrue(torch.equal(e, kept))


class Autocast(unittest.TestCase):
    def test_caches_fit(self) -> None:
        for name in ("Attention", "FoXPro"):
            m = make(name)
            x = torch.randn(1, 8, 32)
            with self.subTest(module=name), torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
                want, cache = m(x), m.new_cache(1, 64)
                made = torch.cat([m(x[:, i : i + 1], cache=cache) for i in range(8)], 1)
                self.assertEqual((cache if name == "Attention" else cache.keys).plan.dtype, "bfloat16")
                self.assertLess((made.float() - want.float()).abs().max(), 0.05)
            self.assertEqual(
                (m.new_cache(1, 64) if name == "Attention" else m.new_cache(1, 64).keys).plan.dtype, "float32"
            )

    def test_tape(self) -> None:
        m = make("TaPE")
        x, e = torch.randn(1, 5, 32), m.start(1, 5)
        with torch.autocast("cpu", torch.bfloat16):
            y, states = m(x, e)
        self.assertLess((y.float() - m(x, e)[0]).abs().max(), 0.05)
        self.assertEqual(states.dtype, torch.float32)

    def test_what_is_not_cast(self) -> None:
        """As torch's own functions by element: rows keep their type."""
        x = torch.randn(1, 2, 5, 8)
        with torch.autocast("cpu", torch.bfloat16):
            self.assertEqual(loci.rotate(x, "rope:pairing=half").dtype, torch.float32)
            self.assertEqual(loci.embed(x[0], "sinusoidal").dtype, torch.float32)
            self.assertEqual(loci.linear_attention(x, x, x).dtype, torch.bfloat16)


if __name__ == "__main__":
    unittest.main()
