# SPDX-License-Identifier: MIT
"""Modules that make inputs of encodings: against their papers' formulas, and token by token."""

from __future__ import annotations

import itertools
import math
import unittest
from typing import Any

import numpy as np

import loci

try:
    import torch
except ImportError:
    raise unittest.SkipTest("there is no torch") from None

from loci import nn
from loci._nn_inputs import PaTH, Wall

B, L, C, H, G, D = 2, 11, 24, 4, 2, 6
P = D // 2
SEG = np.array([[0, 0, 0, 1, 1, 2, 2, 2, 2, 1, -1], [5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5]])


def hidden(rows: int = L, seed: int = 1) -> Any:
    return torch.randn(B, rows, C, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def selective(**options: Any) -> Any:
    torch.manual_seed(3)
    m = nn.SelectiveRoPE(C, H, kv_heads=G, head_dim=D, dtype=torch.float64, **options)
    with torch.no_grad():
        for x in m.parameters():
            x.add_(torch.randn_like(x) / 8)
    return m


def grape(**options: Any) -> Any:
    torch.manual_seed(4)
    m = nn.GrapeM(C, H, kv_heads=G, head_dim=D, dtype=torch.float64, **options)
    with torch.no_grad():
        m.omega.weight.normal_(std=8)
    return m


OPTIONS: list[dict[str, Any]] = [
    {"rank": rank, "width": width, "bias": bias, "gate": gate, "learn_temperature": learned}
    for (rank, width, bias, gate, learned) in itertools.chain(
        itertools.product((5, None), (4, None), (False,), (None,), (False,)),
        itertools.product((5,), (1,), (True,), ("head", "channel"), (True,)),
    )
]
OPTIONS.append({"temperature": "rfa", "theta": 0.6, "temperature_max": 2.0})


def selective_angles(m: Any, x: Any) -> Any:
    """By the paper, token by token; sums are not reduced."""
    apart = x.view(B, -1, G, C // G)
    h = apart / (apart.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    flat = h.reshape(B, -1, C)
    if m.down is not None:
        raw = flat @ m.down.weight.T @ m.up.weight.T
    else:
        columns = m.weight / m.weight.square().sum(1, keepdim=True).sqrt()
        raw = torch.stack([m.scalar[g] * (h[:, :, g] @ columns[g]) for g in range(G)], 2).reshape(B, -1, G * P)
    rows = []
    for t in range(raw.shape[1]):
        if m.conv is None:
            row = raw[:, t] - (raw[:, t - 1] if t else 0)
        else:
            taps = m.conv.weight.shape[-1]
            row = sum(m.conv.weight[:, 0, taps - 1 - j] * raw[:, t - j] for j in range(min(taps, t + 1)))
        rows.append(row)
    steps = torch.stack(rows, 1).view(B, -1, G, P)
    if m.bias is not None:
        steps = steps + m.bias.exp()
    if m.gate_of == "head":
        steps = steps * (flat @ m.gate_up.weight.T + m.gate_up.bias).sigmoid()[..., None]
    if m.gate_of == "channel":
        logits = flat @ m.gate_down.weight.T @ m.gate_up.weight.T + m.gate_up.bias
        steps = steps * logits.sigmoid().view(B, -1, G, P)
    temperature = m.temperature
    if temperature is None and m.temperature_of == "rope":
        temperature = torch.tensor([m.theta ** (-2 * t / D) for t in range(P)], dtype=torch.float64)
    elif temperature is None:
        a = torch.linspace(0, m.theta * math.pi, P, dtype=torch.float64)
        root = ((1 - a.cos()) / (1 + a.cos())).sqrt()
        temperature = m.temperature_max * root / root.max()
    return (temperature * steps.cumsum(1)).transpose(1, 2)


def grape_angles(m: Any, x: Any) -> Any:
    omega = ((x @ m.omega.weight.T + m.omega.bias) / 16).sigmoid().expand(-1, -1, G)
    phase = omega.cumsum(1) - omega
    return -(phase[..., None] * m.log_freq.exp().expand(G, P)).transpose(1, 2)


class Angles(unittest.TestCase):
    def modules(self) -> Any:
        for options in OPTIONS:
            yield selective(**options), selective_angles, options
        for options in ({}, {"per_head": True, "share_frequencies": False}):
            yield grape(**options), grape_angles, options

    def test_formulas_and_gradients(self) -> None:
        for m, formula, options in self.modules():
            with self.subTest(module=type(m).__name__, **options):
                x = hidden().requires_grad_()
                phi = m(x)
                self.assertEqual(list(phi), ["angles.phi_q", "angles.phi_k"])
                self.assertEqual(phi["angles.phi_q"].shape, (B, H, L, P))
                got, want = phi["angles.phi_k"], formula(m, x)
                self.assertTrue(torch.equal(phi["angles.phi_q"], got.repeat_interleave(H // G, 1)))
                self.assertLess((got.cos() - want.cos()).abs().max(), 1e-12)
                self.assertLess((got.sin() - want.sin()).abs().max(), 1e-12)
                w = torch.randn(got.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
                leaves = [x, *m.parameters()]
                grads = [torch.autograd.grad((w * y.cos()).sum(), leaves, retain_graph=True) for y in (got, want)]
                for a, b in zip(*grads, strict=True):
                    self.assertGreater(b.abs().max(), 0)
                    self.assertLess((a - b).abs().max(), 1e-10 * (1 + b.abs().max()))

    def test_steps(self) -> None:
        for m, _, options in self.modules():
            with self.subTest(module=type(m).__name__, **options):
                x = hidden()
                want = m(x)
                for cuts in (range(L + 1), (0, 2, 3, 9, L), (0, L)):
                    state = None
                    made = []
                    for i, j in itertools.pairwise(cuts):
                        inputs, state = m.step(x[:, i:j], state)
                        made.append(inputs)
                    for name, y in want.items():
                        self.assertLess((torch.cat([one[name] for one in made], 2) - y).abs().max(), 1e-12)

    def test_segments(self) -> None:
        for m, _, options in self.modules():
            with self.subTest(module=type(m).__name__, **options):
                x = hidden()
                got = m(x, seg=SEG)["angles.phi_k"]
                for first, last in ((0, 3), (3, 5), (5, 9), (9, 10)):
                    alone = m(x[:, first:last])["angles.phi_k"]
                    self.assertLess((got[0, :, first:last] - alone[0]).abs().max(), 1e-12)
                self.assertFalse(got[0, :, 10].any())
                self.assertLess((got[1] - m(x)["angles.phi_k"][1]).abs().max(), 1e-12)
                one = m(x, seg=SEG[0])["angles.phi_k"]
                self.assertLess((one[0] - got[0]).abs().max(), 1e-12)

    def test_starts(self) -> None:
        """The authors' starts: GRAPE's increments are sigmoid(log(e^0.001 - 1) / 16) = 0.394."""
        m = nn.GrapeM(C, H)
        phi = m(torch.randn(1, 3, C))["angles.phi_k"]
        self.assertLess((phi[0, 0, :, 0] + torch.tensor([0, 0.3937, 2 * 0.3937])).abs().max(), 2e-4)

    def test_types(self) -> None:
        """16-bit modules have angles of float32."""
        x = hidden().bfloat16()
        for m in (nn.SelectiveRoPE(C, H, dtype=torch.bfloat16), nn.GrapeM(C, H, dtype=torch.bfloat16)):
            inputs, _ = m.step(x)
            self.assertEqual({y.dtype for y in inputs.values()}, {torch.float32})
        self.assertEqual(nn.RePo(C, H, dtype=torch.bfloat16)(x)["rope.z_q"].dtype, torch.float32)
        q = torch.randn(1, 4, 3, 8).bfloat16()
        slopes = nn.GrapeA(4, 8, dtype=torch.bfloat16)(q, q)
        self.assertEqual(slopes["alibi.slope_k"].dtype, torch.float32)

    def test_wrong(self) -> None:
        for call, sentence in (
            (lambda: nn.SelectiveRoPE(30, 4, head_dim=8), "embed_dim 30 must be a multiple of the 4 key heads"),
            (lambda: nn.SelectiveRoPE(32, 4, head_dim=7), "head_dim 7 must be even"),
            (lambda: nn.SelectiveRoPE(32, 4, gate="all"), "gate must be None, head or channel, not 'all'"),
            (lambda: nn.SelectiveRoPE(32, 4, temperature="hot"), "temperature must be rope or rfa"),
            (lambda: nn.SelectiveRoPE(32, 4, temperature="rfa"), "theta must be between 0 and 1, not 500000"),
            (lambda: nn.SelectiveRoPE(8, 4, temperature="rfa", theta=0.5), "a head_dim of at least 4"),
            (lambda: nn.SelectiveRoPE(32, 4, temperature_max=0), "temperature_max must be between 0 and inf"),
            (lambda: nn.GrapeM(32, 4, scale=-1), "scale must be between 0 and inf"),
            (lambda: nn.GrapeM(32, 4, base=float("nan")), "base must be between 0 and inf, not nan"),
            (lambda: nn.GrapeM(32, 4, kv_heads=3), "kv_heads 3 must divide heads 4"),
            (lambda: nn.RePo(32, 4, kv_heads=3), "kv_heads 3 must divide heads 4"),
            (lambda: nn.GrapeA(4, 8, slopes="all"), "slopes must be both, keys or queries, not 'all'"),
            (lambda: selective()(hidden(), seg=np.zeros((3, L), int)), "seg"),
        ):
            with self.assertRaisesRegex(loci.Error, sentence):
                call()


def known(*names: str) -> bool:
    return set(names) <= {e.name for e in loci.list()}


class Polar(unittest.TestCase):
    """PoPE by its formula: magnitudes by softplus, angles by positions and phases."""

    def rows(self, x: Any, angles: Any) -> Any:
        """Magnitudes at angles, as complex numbers."""
        return torch.polar(torch.log1p(x.exp()), angles.expand(x.shape))

    def want(self, m: Any, q: Any, k: Any, v: Any, base: float, pos: Any) -> Any:
        angles = pos[:, None] * base ** -(torch.arange(D, dtype=torch.float64) / D)
        phases = m.tensors()["pope.delta"].clamp(-2 * math.pi, 0)
        a, b = self.rows(q, angles), self.rows(k, angles + phases[:, None])
        b, v = b.repeat_interleave(H // k.shape[1], 1), v.repeat_interleave(H // k.shape[1], 1)
        scores = (a @ b.conj().mT).real / math.sqrt(D)
        return scores.masked_fill(~torch.ones(L, L).tril().bool(), -math.inf).softmax(-1) @ v

    def test_it(self) -> None:
        torch.manual_seed(10)
        far = torch.arange(L) ** 2 + 1000
        for groups, base, pos in ((H, 10000.0, None), (G, 10000.0, far), (G, 50.5, None)):
            with self.subTest(groups=groups, base=base, pos=pos is not None):
                options: dict[str, Any] = {} if base == 10000 else {"base": base}
                m = nn.PoPE(H, D, kv_heads=groups, dtype=torch.float64, phases="uniform", **options)
                with torch.no_grad():
                    m.tensors()["pope.delta"][0, :2] = torch.tensor([0.5, -7])  # cut: they have no gradient
                q, k, v = (torch.randn(B, n, L, D, dtype=torch.float64) for n in (H, groups, groups))
                leaves = [x.requires_grad_() for x in (q, k, v)]
                at = torch.arange(L) if pos is None else pos
                got, want = m(q, k, v, pos=pos), self.want(m, q, k, v, base, at)
                self.assertLess((got - want).abs().max(), 1e-11)
                grads = [torch.autograd.grad(o.square().sum(), [*leaves, *m.parameters()]) for o in (got, want)]
                for a, b in zip(*grads, strict=True):
                    self.assertLess((a - b).abs().max(), 1e-9)
                self.assertTrue((grads[0][-1][0, :2] == 0).all())

    def test_phases(self) -> None:
        """They start at 0, or at any angle of the circle; and a cache decodes with them."""
        self.assertTrue((nn.PoPE(H, D).tensors()["pope.delta"] == 0).all())
        torch.manual_seed(11)
        m = nn.PoPE(64, 256, kv_heads=32, phases="uniform")
        delta = m.tensors()["pope.delta"]
        self.assertEqual(delta.shape, (32, 256))
        histogram = torch.histc(delta, 4, -2 * math.pi, 0)
        self.assertTrue(((histogram > 1900) & (histogram < 2200)).all(), histogram)
        self.assertEqual(histogram.sum(), delta.numel())
        m = nn.PoPE(H, D, kv_heads=G, phases="uniform", base=100)
        q, k, v = (torch.randn(1, n, L, D) for n in (H, G, G))
        with torch.no_grad():
            cache = loci.Cache(m.encoding, H, D, kv_heads=G, capacity=16, tensors=m.tensors())
            made = [cache.step(*(x[:, :, t : t + 1] for x in (q, k, v))) for t in range(L)]
            self.assertTrue(torch.equal(torch.cat(made, 2), m(q, k, v)))

    def test_wrong(self) -> None:
        for base in (0, 0.5, math.inf, math.nan):
            with self.assertRaisesRegex(loci.Error, "base must be from 1 to 1e18"):
                nn.PoPE(H, D, base=base)
        with self.assertRaisesRegex(loci.Error, "phases must be zero or uniform, not 'random'"):
            nn.PoPE(H, D, phases="random")
        with self.assertRaisesRegex(loci.Error, "pope: dim 520 must be at most 512"):
            nn.PoPE(H, 520)


class Reflections(unittest.TestCase):
    """PaTH and Wall: what their layers make, and attention where this build has the encodings."""

    def path(self, groups: int = G, **options: Any) -> Any:
        torch.manual_seed(8)
        return PaTH(C, H, kv_heads=groups, head_dim=D, dtype=torch.float64, **options)

    def test_path(self) -> None:
        for groups, options in itertools.product((G, H), ({}, {"width": None}, {"width": 1, "forget_gate": True})):
            with self.subTest(groups=groups, **options):
                m = self.path(groups, **options)
                x = hidden().requires_grad_()
                raw = x @ m.up.weight.T if m.down is None else x @ m.down.weight.T @ m.up.weight.T
                rows = []
                for t in range(L):
                    if m.conv is None:
                        rows.append(raw[:, t])
                    else:
                        taps = m.conv.weight.shape[-1]
                        y = sum(m.conv.weight[:, 0, taps - 1 - j] * raw[:, t - j] for j in range(min(taps, t + 1)))
                        rows.append(y * y.sigmoid())
                w = torch.stack(rows, 1).view(B, L, groups, D).transpose(1, 2)
                want = {
                    "path.w": w / (w.square().sum(-1, keepdim=True) + 1e-6).sqrt(),
                    "path.beta": 2 * (x @ m.beta.weight.T + m.beta.bias).sigmoid().mT,
                }
                if m.gate is not None:
                    want["fox.log_f"] = (x @ m.gate.weight.T + m.gate.bias).sigmoid().log().mT / math.sqrt(D)
                got = m(x)
                self.assertEqual(got.keys(), want.keys())
                for name, y in want.items():
                    self.assertLess((got[name] - y).abs().max(), 1e-12)
                grads = [
                    torch.autograd.grad(sum(y.square().sum() for y in made.values()), [x, *m.parameters()])
                    for made in (got, want)
                ]
                for a, b in zip(*grads, strict=True):
                    self.assertLess((a - b).abs().max(), 1e-10)

    def test_path_by_steps_and_segments(self) -> None:
        m = self.path(forget_gate=True)
        x = hidden()
        want = m(x)
        state, made = None, []
        for i, j in ((0, 1), (1, 2), (2, 6), (6, 6), (6, L)):
            inputs, state = m.step(x[:, i:j], state)
            made.append(inputs)
        for name, y in want.items():
            self.assertLess((torch.cat([one[name] for one in made], 2) - y).abs().max(), 1e-12)
        got = m(x, seg=SEG)
        for first, last in ((0, 3), (3, 5), (5, 9), (9, 10)):
            alone = m(x[:, first:last])
            self.assertLess((got["path.w"][0, :, first:last] - alone["path.w"][0]).abs().max(), 1e-12)

    def test_wall(self) -> None:
        torch.manual_seed(9)
        m = Wall(C, H, head_dim=D, scalar_gate=True, dtype=torch.float64)
        x = hidden()
        made = m(x)
        self.assertEqual(made["wall.log_f"].shape, (B, H, L, D))
        want = (x @ m.channels.weight.T + m.channels.bias).sigmoid().log().view(B, L, H, D).transpose(1, 2)
        self.assertLess((made["wall.log_f"] - want).abs().max(), 1e-12)
        want = (x @ m.scalar.weight.T + m.scalar.bias).sigmoid().log().mT
        self.assertLess((made["fox.log_f"] - want).abs().max(), 1e-12)
        self.assertGreater(made["wall.log_f"].mean(), -0.001)
        self.assertTrue((m.channels.bias == 8).all())

    def rest(self) -> Any:
        g = torch.Generator().manual_seed(7)
        return [torch.randn(B, n, L, D, dtype=torch.float64, generator=g) for n in (H, G, G)]

    @unittest.skipUnless(known("path"), "this build has no path")
    def test_path_attention(self) -> None:
        for forget in (False, True):
            m = self.path(forget_gate=forget)
            q, k, v = self.rest()
            inputs = m(hidden())
            got = loci.attention(q, k, v, m.encoding, tensors=inputs)
            w, beta = (inputs[name].repeat_interleave(H // G, 1) for name in ("path.w", "path.beta"))
            keys, scores = k.repeat_interleave(H // G, 1), torch.full((B, H, L, L), -math.inf, dtype=torch.float64)
            for i in range(L):
                u = q[:, :, i]
                for j in range(i, -1, -1):
                    scores[:, :, i, j] = (u * keys[:, :, j]).sum(-1) / math.sqrt(D)
                    u = u - (beta[:, :, j] * (w[:, :, j] * u).sum(-1))[..., None] * w[:, :, j]
            if forget:
                fading = inputs["fox.log_f"].cumsum(-1)
                scores = scores + fading[..., None] - fading[:, :, None]
            want = scores.softmax(-1) @ v.repeat_interleave(H // G, 1)
            self.assertLess((got - want).abs().max(), 1e-10)

    @unittest.skipUnless(known("wall"), "this build has no wall")
    def test_wall_attention(self) -> None:
        for scalar in (False, True):
            m = Wall(C, H, head_dim=D, scalar_gate=scalar, bias=1.0, dtype=torch.float64)
            q, k, v = self.rest()
            inputs = m(hidden())
            got = loci.attention(q, k, v, m.encoding, tensors=inputs)
            sums, keys = inputs["wall.log_f"].cumsum(2), k.repeat_interleave(H // G, 1)
            fading = (sums[:, :, :, None] - sums[:, :, None]).exp()
            scores = (q[:, :, :, None] * keys[:, :, None] * fading).sum(-1) / math.sqrt(D)
            if scalar:
                fading = inputs["fox.log_f"].cumsum(-1)
                scores = scores + fading[..., None] - fading[:, :, None]
            hide = torch.ones(L, L).tril().bool()
            want = scores.masked_fill(~hide, -math.inf).softmax(-1) @ v.repeat_interleave(H // G, 1)
            self.assertLess((got - want).abs().max(), 1e-10)


def turned(x: Any, phi: Any) -> Any:
    a, b = x[..., :P], x[..., P:]
    return torch.cat((a * phi.cos() - b * phi.sin(), a * phi.sin() + b * phi.cos()), -1)


def dense(q: Any, k: Any, v: Any, bias: Any = 0) -> Any:
    k, v = (x.repeat_interleave(H // G, 1) for x in (k, v))
    scores = q @ k.mT / math.sqrt(D) + bias
    hide = torch.ones(scores.shape[-2:]).tril().bool()
    return scores.masked_fill(~hide, -math.inf).softmax(-1) @ v


class Attention(unittest.TestCase):
    """The modules with their encodings: attention by the formula, its gradients, and decode."""

    def setUp(self) -> None:
        g = torch.Generator().manual_seed(7)
        self.x = hidden()
        self.q, self.k, self.v = (torch.randn(B, n, L, D, dtype=torch.float64, generator=g) for n in (H, G, G))

    def alike(self, m: Any, inputs: Any, want: Any) -> None:
        """inputs(m, x, q, k) are those of the module, want(m, x, q, k, v) the attention by torch."""
        leaves = [x.requires_grad_() for x in (self.x, self.q, self.k, self.v)]
        x, q, k, v = leaves
        encoding = nn.Encoding(m.encoding, H, D, kv_heads=G, dtype=torch.float64)
        outputs = encoding(q, k, v, inputs=inputs(m, x, q, k)), want(m, x, q, k, v)
        self.assertLess((outputs[0] - outputs[1]).abs().max(), 1e-12)
        w = torch.randn(outputs[0].shape, dtype=torch.float64)
        learned = [*leaves, *m.parameters()]
        grads = [torch.autograd.grad((w * o).sum(), learned, allow_unused=True) for o in outputs]
        for a, b in zip(*grads, strict=True):
            self.assertEqual(a is None, b is None)
            if b is not None:
                self.assertLess((a - b).abs().max(), 1e-10 * (1 + b.abs().max()))

    def decodes(self, m: Any, step: Any) -> None:
        """step(m, x, q, k, state) -> inputs and state of a few tokens."""
        with torch.no_grad():
            inputs, _ = step(m, self.x, self.q, self.k, None)
            encoding = nn.Encoding(m.encoding, H, D, kv_heads=G, dtype=torch.float64)
            want = encoding(self.q, self.k, self.v, inputs=inputs)
            for cuts in (range(L + 1), (0, 4, 5, L)):
                cache = loci.Cache(m.encoding, H, D, batch=B, capacity=64, kv_heads=G, dtype="float64")
                state, made = None, []
                for i, j in itertools.pairwise(cuts):
                    x, q, k, v = (y[..., i:j, :] for y in (self.x, self.q, self.k, self.v))
                    inputs, state = step(m, x, q, k, state)
                    made.append(cache.step(q, k, v, inputs=inputs))
                self.assertLess((torch.cat(made, 2) - want).abs().max(), 1e-12)

    def test_angles(self) -> None:
        for m, formula in ((selective(), selective_angles), (grape(per_head=True), grape_angles)):
            with self.subTest(module=type(m).__name__):

                def want(m: Any, x: Any, q: Any, k: Any, v: Any, formula: Any = formula) -> Any:
                    phi = formula(m, x)
                    return dense(turned(q, phi.repeat_interleave(H // G, 1)), turned(k, phi), v)

                self.alike(m, lambda m, x, q, k: m(x), want)
                self.decodes(m, lambda m, x, q, k, state: m.step(x, state))

    def test_repo(self) -> None:
        torch.manual_seed(5)
        m = nn.RePo(C, H, kv_heads=G, dtype=torch.float64)
        self.assertLess(m(self.x)["rope.z_q"].abs().max(), 0.01)
        with torch.no_grad():
            for x in m.parameters():
                x.normal_()

        def want(m: Any, x: Any, q: Any, k: Any, v: Any) -> Any:
            gate = x @ m.gate_map.weight.T
            z = ((gate * gate.sigmoid() * (x @ m.content_map.weight.T)) @ m.final_map.weight.T).mT
            phi = z[..., None] * 10000.0 ** (-torch.arange(P, dtype=torch.float64) / P)
            return dense(turned(q, phi.repeat_interleave(H // G, 1)), turned(k, phi), v)

        self.alike(m, lambda m, x, q, k: m(x), want)
        self.decodes(m, lambda m, x, q, k, state: (m(x), None))

    def test_grape_a(self) -> None:
        slopes = 2.0 ** (-2 * torch.arange(1, H + 1, dtype=torch.float64))
        at = torch.arange(L, dtype=torch.float64)
        apart = (at[:, None] - at).abs()
        for which in ("both", "keys", "queries"):
            with self.subTest(slopes=which):
                torch.manual_seed(6)
                m = nn.GrapeA(H, D, kv_heads=G, slopes=which, dtype=torch.float64)

                def slope(m: Any, rows: Any, u: Any) -> Any:
                    unit = u / u.square().sum(-1, keepdim=True).sqrt()
                    gate = (1 + ((rows * unit[:, None]).sum(-1) / math.sqrt(D)).exp()).log()
                    return ((1 + m.omega.exp()).log() * slopes)[:, None] * gate

                def want(m: Any, x: Any, q: Any, k: Any, v: Any, slope: Any = slope) -> Any:
                    bias = torch.zeros(B, H, L, L, dtype=torch.float64)
                    if m.u is not None:
                        bias = bias - slope(m, k.repeat_interleave(H // G, 1), m.u)[:, :, None] * apart
                    if m.v is not None:
                        bias = bias - slope(m, q, m.v)[..., None] * apart
                    return dense(q, k, v, bias)

                self.alike(m, lambda m, x, q, k: m(q, k), want)
                self.decodes(m, lambda m, x, q, k, state: (m(q, k), None))


if __name__ == "__main__":
    unittest.main()
