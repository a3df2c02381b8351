# SPDX-License-Identifier: MIT
"""loci.flash_attn against a softmax in float64, and bit by bit against the calls of loci that it stands for."""

from __future__ import annotations

import inspect
import itertools
import subprocess
import sys
import unittest
from typing import Any

import loci

try:
    import torch
except ImportError:
    raise unittest.SkipTest("there is no torch") from None

import loci.flash_attn as fa
from loci.flash_attn import bert_padding
from loci.flash_attn.layers.rotary import apply_rotary_emb

INF = float("inf")


def numbers(*shape: int, seed: int = 0, dtype: Any = torch.float32) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def int32(*values: Any) -> Any:
    return torch.tensor(values, dtype=torch.int32)


def drawn() -> int:
    """The seed that loci draws for dropout."""
    return int(torch.randint(0, 2**63 - 1, (1,)))


def one(q: Any, k: Any, v: Any, causal: bool, window: Any, slopes: Any, scale: Any, cap: float, first: int = 0) -> Any:
    """o [rows, heads, width] and lse [heads, rows] of one sequence, in float64; keys before `first` are not there."""
    q, k, v = q.double(), k.double(), v.double()
    rows, heads, width = q.shape
    keys, group = k.shape[0], heads // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    s = torch.einsum("ihd,jhd->hij", q, k) * (width**-0.5 if scale is None else scale)
    if cap:
        s = cap * torch.tanh(s / cap)
    ahead = torch.arange(keys)[None] - (torch.arange(rows)[:, None] + keys - rows)
    if slopes is not None:
        s = s - slopes.double()[:, None, None] * ahead.abs()
    seen = (torch.arange(keys) >= first).expand(rows, keys)
    if causal:
        seen = seen & (ahead <= 0)
    if window[0] >= 0:
        seen = seen & (-ahead <= window[0])
    if window[1] >= 0:
        seen = seen & (ahead <= window[1])
    s = s.masked_fill(~seen, -INF)
    empty = ~seen.any(-1)
    w = torch.softmax(s.masked_fill(empty[:, None], 0), -1).masked_fill(empty[:, None], 0)
    lse = torch.logsumexp(s.masked_fill(empty[:, None], 0), -1).masked_fill(empty, INF)
    return torch.einsum("hij,jhd->ihd", w, v), lse


def reference(q: Any, k: Any, v: Any, **options: Any) -> Any:
    """Of a batch; slopes [heads] or [batch, heads], first [batch]."""
    slopes, first = options.pop("slopes", None), options.pop("first", [0] * len(q))
    settings = {"causal": False, "window": (-1, -1), "scale": None, "cap": 0.0, **options}
    each = [
        one(*x, slopes=None if slopes is None else slopes[b] if slopes.ndim > 1 else slopes, first=first[b], **settings)
        for b, x in enumerate(zip(q, k, v, strict=True))
    ]
    return torch.stack([o for o, _ in each]), torch.stack([lse for _, lse in each])


class Tests(unittest.TestCase):
    def near(self, got: Any, wanted: Any, bound: float) -> None:
        self.assertEqual(tuple(got.shape), tuple(wanted.shape))
        wanted = wanted.detach()
        got, both = got.detach(), torch.isfinite(wanted)
        self.assertTrue(torch.equal(got[~both].double(), wanted[~both]), "what is infinite")
        if both.any():
            self.assertLess((got.double() - wanted)[both].abs().max().item(), bound)

    def same(self, got: Any, wanted: Any) -> None:
        self.assertEqual(got.dtype, wanted.dtype)
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)

    def refused(self, sentence: str, function: Any, *arguments: Any, **options: Any) -> None:
        with self.assertRaisesRegex(fa.Error, sentence) as caught:
            function(*arguments, **options)
        self.assertIsInstance(caught.exception, RuntimeError)
        self.assertIsInstance(caught.exception, loci.Error)


WINDOWS = ((-1, -1), (3, 0), (2, 5), (-1, 2), (4, -1))


class Batches(Tests):
    def test_against_a_softmax_with_gradients(self) -> None:
        tried = 0
        slopes = (None, torch.rand(4), torch.rand(2, 4))
        shapes = ((9, 9, 4), (5, 12, 2), (12, 5, 1), (1, 17, 2))
        for (rows, keys, kv), causal, window, m in itertools.product(shapes, (False, True), WINDOWS, slopes):
            with self.subTest(rows=rows, keys=keys, causal=causal, window=window, slopes=m is not None and m.ndim):
                cap = 5.0 if tried % 3 == 0 else 0.0
                scale = 0.3 if tried % 2 else None
                x = [numbers(2, rows, 4, 16), numbers(2, keys, kv, 16, seed=1), numbers(2, keys, kv, 16, seed=2)]
                ours = [t.clone().requires_grad_() for t in x]
                theirs = [t.double().requires_grad_() for t in x]
                options = {"causal": causal, "window_size": window, "softcap": cap, "softmax_scale": scale}
                o, lse, dropped = fa.flash_attn_func(*ours, **options, alibi_slopes=m, return_attn_probs=True)
                wanted = reference(*theirs, causal=causal, window=window, slopes=m, scale=scale, cap=cap)
                self.near(o, wanted[0], 1e-5)
                self.near(lse, wanted[1], 1e-5)
                self.assertEqual(dropped.numel(), 0)
                weights = numbers(*o.shape, seed=3)
                (o * weights).sum().backward()
                (wanted[0] * weights.double()).sum().backward()
                for a, b in zip(ours, theirs, strict=True):
                    self.near(a.grad, b.grad, 5e-5)
                tried += 1
        self.assertEqual(tried, len(shapes) * 2 * len(WINDOWS) * 3)

    def test_16_bits_are_as_near_as_torch_in_16_bits(self) -> None:
        for dtype in (torch.float16, torch.bfloat16):
            q, k, v = (numbers(2, 40, 4, 32, seed=seed, dtype=dtype) for seed in range(3))
            o, lse, _ = fa.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
            self.assertEqual((o.dtype, lse.dtype), (dtype, torch.float32))
            wanted, log = reference(q, k, v, causal=True)
            self.near(o, wanted, 4 * torch.finfo(dtype).eps)
            self.near(lse, log, 1e-5)

    def test_bits_of_loci(self) -> None:
        q, k, v = numbers(2, 9, 4, 16), numbers(2, 12, 2, 16, seed=1), numbers(2, 12, 2, 16, seed=2)
        m = torch.rand(4)
        for causal, window in itertools.product((False, True), WINDOWS):
            o, lse, _ = fa.flash_attn_func(
                q, k, v, causal=causal, window_size=window, softcap=3.0, alibi_slopes=m, return_attn_probs=True
            )
            wanted = loci.attention(
                *(q, k, v, "alibi:slopes=given"),
                tensors={"alibi.slopes": m},
                layout="blhd",
                causal=causal,
                window_size=window,
                softcap=3.0,
                return_lse=True,
            )
            self.same(o, wanted[0])
            self.same(lse, wanted[1].masked_fill(wanted[1] == -INF, INF))
        each = torch.rand(2, 4)
        o = fa.flash_attn_func(q, k, v, causal=True, alibi_slopes=each)
        for b in range(2):
            alone = fa.flash_attn_func(q[b : b + 1], k[b : b + 1], v[b : b + 1], causal=True, alibi_slopes=each[b])
            self.same(o[b : b + 1], alone)

    def test_dropout(self) -> None:
        """Outputs and gradients have the bits of loci.attention with the seed that is drawn."""
        x = [numbers(2, 9, 4, 16), numbers(2, 12, 2, 16, seed=1), numbers(2, 12, 2, 16, seed=2)]
        options = {"causal": True, "window_size": (5, 0), "softcap": 3.0}
        m = torch.rand(2, 4)
        encodings: Any = (
            (None, "nope", {}),
            (m, "alibi:slopes=queries", {"alibi.slope_q": m[:, :, None].expand(2, 4, 9)}),
        )
        for slopes, encoding, tensors in encodings:
            found = []
            for recomputed in (False, True):
                leaves = [t.clone().requires_grad_() for t in x]
                torch.manual_seed(4)
                if recomputed:
                    given: Any = {"layout": "blhd", "tensors": tensors, "return_lse": True, "dropout_seed": drawn()}
                    o, lse = loci.attention(*leaves, encoding, dropout_p=0.3, **given, **options)
                else:
                    called = fa.flash_attn_func(*leaves, 0.3, **options, alibi_slopes=slopes, return_attn_probs=True)
                    o, lse, dropped = called
                    self.assertEqual(dropped.numel(), 0)
                (o * numbers(*o.shape, seed=3)).sum().backward()
                found.append((o.detach(), lse.detach(), *(t.grad for t in leaves)))
            for a, b in zip(*found, strict=True):
                self.same(a, b)
            bare = fa.flash_attn_func(*x, **options, alibi_slopes=slopes, return_attn_probs=True)
            self.same(found[0][1], bare[1])
            self.assertFalse(torch.equal(found[0][0], bare[0]))
            torch.manual_seed(4)
            again = [fa.flash_attn_func(*x, 0.3, **options, alibi_slopes=slopes) for _ in range(2)]
            self.same(again[0], found[0][0])
            self.assertFalse(torch.equal(*again))

    def test_dropped_fraction(self) -> None:
        """Equal scores and values of 1: an output is the part that was kept, times 1 / (1 - p)."""
        q, v = torch.zeros(2, 300, 4, 8), torch.ones(2, 300, 4, 8)
        for p in (0.1, 0.5, 0.9):
            o = fa.flash_attn_func(q, q, v, p)
            dropped = 1 - o.mean().item() * (1 - p)
            self.assertLess(abs(dropped - p), 5 * (p * (1 - p) / (2 * 4 * 300 * 300)) ** 0.5 + 1e-6)
            self.assertGreater(o[..., 0].std().item(), 0)

    def test_a_refused_call_draws_no_seed(self) -> None:
        state = torch.get_rng_state()
        q = numbers(2, 9, 4, 16)
        self.refused("k is 8 wide", fa.flash_attn_func, q, q[..., :8], q, 0.1)
        self.refused("below 1", fa.flash_attn_func, q, q, q, 1.5)
        self.assertTrue(torch.equal(state, torch.get_rng_state()))

    def test_packed_tensors(self) -> None:
        qkv = numbers(2, 9, 3, 4, 16).requires_grad_()
        options = {"causal": True, "window_size": (4, 0), "softcap": 7.0, "alibi_slopes": torch.rand(2, 4)}
        q, k, v = (x.detach().requires_grad_() for x in qkv.unbind(2))
        wanted = fa.flash_attn_func(q, k, v, **options, return_attn_probs=True)
        o = fa.flash_attn_qkvpacked_func(qkv, **options, return_attn_probs=True)
        for a, b in zip(o, wanted, strict=True):
            self.same(a, b)
        o[0].sum().backward()
        wanted[0].sum().backward()
        self.same(qkv.grad, torch.stack((q.grad, k.grad, v.grad), 2))
        kv = torch.stack((k, v), 2).detach().requires_grad_()
        o = fa.flash_attn_kvpacked_func(q.detach(), kv, **options)
        self.same(o, wanted[0])
        o.sum().backward()
        self.same(kv.grad, torch.stack((k.grad, v.grad), 2))

    def test_signatures(self) -> None:
        """Names, order and defaults, which code depends on."""
        shared = "dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None"
        shared += ", deterministic=False, return_attn_probs=False"
        starts = "cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k"
        wanted = {
            fa.flash_attn_func: f"q, k, v, {shared}",
            fa.flash_attn_kvpacked_func: f"q, kv, {shared}",
            fa.flash_attn_qkvpacked_func: f"qkv, {shared}",
            fa.flash_attn_varlen_func: f"q, k, v, {starts}, {shared}, block_table=None",
            fa.flash_attn_varlen_kvpacked_func: f"q, kv, {starts}, {shared}",
            fa.flash_attn_varlen_qkvpacked_func: f"qkv, cu_seqlens, max_seqlen, {shared}",
            fa.flash_attn_with_kvcache: "q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, "
            "cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, "
            "causal=False, window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None, "
            "num_splits=0, return_softmax_lse=False",
        }
        for function, text in wanted.items():
            bare = [p.replace(annotation=p.empty) for p in inspect.signature(function).parameters.values()]
            self.assertEqual(", ".join(str(p) for p in bare), text, function.__name__)

    def test_errors(self) -> None:
        q, k, v = numbers(2, 9, 4, 16), numbers(2, 12, 2, 16), numbers(2, 12, 2, 16)
        f = fa.flash_attn_func
        self.refused("dropout_p must be from 0 and below 1, not 1.5", f, q, k, v, 1.5)
        self.refused("dropout_p must be from 0 and below 1, not -0.1", f, q, k, v, -0.1)
        self.refused("softcap must be 0, which is none, or more, not -1", f, q, k, v, softcap=-1.0)
        self.refused("scale must not be 0", f, q, k, v, softmax_scale=0)
        self.refused(r"q has the shape \[9, 4, 16\], not \[batch, rows", f, q[0], k, v)
        self.refused("k is float16 and q float32", f, q, k.half(), v)
        self.refused("k is 8 wide and q 16", f, q, k[..., :8], v)
        self.refused("heads", f, q, k[:, :, :1].expand(-1, -1, 3, -1), v[:, :, :1].expand(-1, -1, 3, -1))
        self.refused("float32, not float64", f, q, k, v, alibi_slopes=torch.rand(4).double())
        self.refused(r"shape \[3\], not \[4\] or \[2, 4\]", f, q, k, v, alibi_slopes=torch.rand(3))
        self.refused(r"kv has the shape .* not \[batch", fa.flash_attn_kvpacked_func, q, k[:, :, None])
        with self.assertRaisesRegex(TypeError, "window_size must be two whole numbers"):
            f(q, k, v, window_size=3)
        with self.assertRaisesRegex(TypeError, "causal must be"):
            f(q, k, v, causal="yes")
        with self.assertRaisesRegex(TypeError, "unexpected keyword"):
            f(q, k, v, sliding_window=3)
        for example in (fa.Error("a sentence"), fa.Error("another", "unsupported")):
            import pickle

            again = pickle.loads(pickle.dumps(example))
            self.assertEqual((type(again), str(again), again.status), (fa.Error, str(example), example.status))

    def test_compiled(self) -> None:
        q, k, v = (numbers(2, 9, 4, 16, seed=seed) for seed in range(3))
        m, cu = torch.rand(2, 4), int32(0, 4, 18)

        def both(q: Any, k: Any, v: Any) -> Any:
            a = fa.flash_attn_func(q, k, v, causal=True, alibi_slopes=m)
            packed = [x.flatten(0, 1) for x in (q, k, v)]
            b = fa.flash_attn_varlen_func(*packed, cu, cu, 14, 14, causal=True)
            c = fa.flash_attn_func(q, k, v, 0.3)
            return a, b, c, fa.flash_attn_varlen_func(*packed, cu, cu, 14, 14, 0.3)

        compiled = torch.compile(both, backend="aot_eager", fullgraph=True)
        found = []
        for f in (compiled, both):
            torch.manual_seed(3)
            found.append(f(q, k, v))
        for a, b in zip(*found, strict=True):
            self.same(a, b)


class Packed(Tests):
    counts, keys = (3, 0, 7, 1), (5, 4, 7, 0)

    def setUp(self) -> None:
        self.cu_q, self.cu_k = int32(0, 3, 3, 10, 11), int32(0, 5, 9, 16, 16)
        self.q = numbers(11, 4, 16)
        self.k, self.v = numbers(16, 2, 16, seed=1), numbers(16, 2, 16, seed=2)

    def one_by_one(self, q: Any, k: Any, v: Any, slopes: Any, **options: Any) -> Any:
        outs, lses = [], []
        for b in range(4):
            part = q[None, self.cu_q[b] : self.cu_q[b + 1]]
            keys = (x[None, self.cu_k[b] : self.cu_k[b + 1]] for x in (k, v))
            m = slopes[b] if slopes is not None and slopes.ndim > 1 else slopes
            o, lse, _ = fa.flash_attn_func(part, *keys, **options, alibi_slopes=m, return_attn_probs=True)
            outs.append(o[0])
            lses.append(lse[0])
        return torch.cat(outs), torch.cat(lses, 1)

    def test_bits_and_gradients_of_each_sequence_alone(self) -> None:
        slopes = (None, torch.rand(4), torch.rand(4, 4))
        for causal, window, m in itertools.product((False, True), WINDOWS, slopes):
            with self.subTest(causal=causal, window=window, slopes=m is not None and m.ndim):
                x = [t.clone().requires_grad_() for t in (self.q, self.k, self.v)]
                y = [t.clone().requires_grad_() for t in (self.q, self.k, self.v)]
                options = {"causal": causal, "window_size": window, "softcap": 4.0}
                given = (*x, self.cu_q, self.cu_k, 7, 7)
                o, lse, _ = fa.flash_attn_varlen_func(*given, **options, alibi_slopes=m, return_attn_probs=True)
                wanted = self.one_by_one(*y, m, **options)
                self.same(o, wanted[0])
                self.same(lse, wanted[1])
                o.square().sum().backward()
                wanted[0].square().sum().backward()
                for a, b in zip(x, y, strict=True):
                    self.same(a.grad, b.grad)

    def test_unused_rows(self) -> None:
        plain = fa.flash_attn_varlen_func(self.q, self.k, self.v, self.cu_q, self.cu_k, 7, 7, return_attn_probs=True)
        q = torch.cat((self.q, torch.full((5, 4, 16), float("nan")))).requires_grad_()
        k, v = (torch.cat((x, torch.full((3, 2, 16), float("nan")))) for x in (self.k, self.v))
        o, lse, _ = fa.flash_attn_varlen_func(q, k, v, self.cu_q, self.cu_k, 7, 7, return_attn_probs=True)
        self.same(o[:11], plain[0])
        self.same(lse[:, :11], plain[1])
        self.assertTrue((o[11:] == 0).all() and (lse[:, 11:] == INF).all())
        o.sum().backward()
        self.assertTrue((q.grad[11:] == 0).all() and torch.isfinite(q.grad).all())

    def test_packed_tensors(self) -> None:
        qkv = numbers(11, 3, 4, 16)
        m = torch.rand(4, 4)
        wanted = fa.flash_attn_varlen_func(*qkv.unbind(1), self.cu_q, self.cu_q, 7, 7, causal=True, alibi_slopes=m)
        o = fa.flash_attn_varlen_qkvpacked_func(qkv, self.cu_q, 7, causal=True, alibi_slopes=m)
        self.same(o, wanted)
        kv = torch.stack((self.k, self.v), 1)
        given = self.cu_q, self.cu_k, 7, 7
        wanted = fa.flash_attn_varlen_func(self.q, self.k, self.v, *given)
        self.same(fa.flash_attn_varlen_kvpacked_func(self.q, kv, *given), wanted)

    def test_blocks(self) -> None:
        """Of different and of equal numbers of rows: two ways, with the bits of keys in one piece."""
        for length in (1, 4, 16):
            per = -(-7 // length)
            table = torch.full((4, per), -9, dtype=torch.int32)
            places = torch.randperm(40, generator=torch.Generator().manual_seed(1))
            blocks_k, blocks_v = numbers(40, length, 2, 16, seed=5), numbers(40, length, 2, 16, seed=6)
            for b, keys in enumerate(self.keys):
                for i in range(keys):
                    table[b, i // length] = place = places[b * per + i // length]
                    blocks_k[place, i % length] = self.k[self.cu_k[b] + i]
                    blocks_v[place, i % length] = self.v[self.cu_k[b] + i]
            for cu_q, slopes in itertools.product((self.cu_q, int32(0, 2, 4, 6, 8)), (None, torch.rand(4, 4))):
                options = {"causal": True, "alibi_slopes": slopes, "return_attn_probs": True}
                given = cu_q, self.cu_k, 7, 7
                wanted = fa.flash_attn_varlen_func(self.q, self.k, self.v, *given, **options)
                o = fa.flash_attn_varlen_func(self.q, blocks_k, blocks_v, *given, **options, block_table=table)
                self.same(o[0], wanted[0])
                self.same(o[1], wanted[1])
            leaf = blocks_k.clone().requires_grad_()
            o = fa.flash_attn_varlen_func(self.q, leaf, blocks_v, self.cu_q, self.cu_k, 7, 7, block_table=table)
            o.sum().backward()
            k = self.k.clone().requires_grad_()
            fa.flash_attn_varlen_func(self.q, k, self.v, self.cu_q, self.cu_k, 7, 7).sum().backward()
            self.same(leaf.grad[table[0, 0], 0], k.grad[0])

    def test_dropout(self) -> None:
        """Bits of a call of loci with the same seed; equal sequences drop what a batch drops, in blocks too."""
        given = self.cu_q, self.cu_k, 7, 7, 0.4
        x = [t.clone().requires_grad_() for t in (self.q, self.k, self.v)]
        y = [t.clone().requires_grad_() for t in (self.q, self.k, self.v)]
        torch.manual_seed(5)
        o, lse, _ = fa.flash_attn_varlen_func(*x, *given, causal=True, return_attn_probs=True)
        torch.manual_seed(5)
        seed = drawn()
        starts = {"cu_seqlens_q": self.cu_q, "cu_seqlens_k": self.cu_k}
        wanted = loci.attention(*y, layout="thd", **starts, dropout_p=0.4, dropout_seed=seed, return_lse=True)
        self.same(o, wanted[0])
        self.same(lse, wanted[1].masked_fill(wanted[1] == -INF, INF))
        self.assertFalse(torch.equal(o, fa.flash_attn_varlen_func(*x, *given[:-1], causal=True)))
        o.square().sum().backward()
        wanted[0].square().sum().backward()
        for a, b in zip(x, y, strict=True):
            self.same(a.grad, b.grad)

        q, k, v = numbers(3, 8, 4, 16), numbers(3, 12, 2, 16, seed=1), numbers(3, 12, 2, 16, seed=2)
        starts_q, starts_k = int32(0, 8, 16, 24), int32(0, 12, 24, 36)
        packed = [t.flatten(0, 1) for t in (q, k, v)]
        blocks = [t.view(9, 4, 2, 16) for t in (k, v)]
        table = torch.arange(9, dtype=torch.int32).view(3, 3)
        kv, qkv = torch.stack(packed[1:], 1), torch.stack((packed[0],) * 3, 1)
        given, cu = (starts_q, starts_k, 8, 12, 0.4), (starts_q, 8, 0.4)
        found = []
        for call in (
            lambda: fa.flash_attn_func(q, k, v, 0.4).flatten(0, 1),
            lambda: fa.flash_attn_kvpacked_func(q, torch.stack((k, v), 2), 0.4).flatten(0, 1),
            lambda: fa.flash_attn_varlen_func(*packed, *given),
            lambda: fa.flash_attn_varlen_func(packed[0], *blocks, *given, block_table=table),
            lambda: fa.flash_attn_varlen_func(packed[0].requires_grad_(), *blocks, *given, block_table=table),
            lambda: fa.flash_attn_varlen_kvpacked_func(packed[0], kv, *given),
        ):
            torch.manual_seed(6)
            found.append(call().detach())
            self.same(found[-1], found[0])
        found = []
        for call in (
            lambda: fa.flash_attn_qkvpacked_func(torch.stack((q,) * 3, 2), 0.4).flatten(0, 1),
            lambda: fa.flash_attn_varlen_qkvpacked_func(qkv, *cu),
            lambda: fa.flash_attn_varlen_func(*qkv.unbind(1), starts_q, *cu[:1], 8, 8, 0.4),
        ):
            torch.manual_seed(6)
            found.append(call().detach())
            self.same(found[-1], found[0])

    def test_dropped_fraction(self) -> None:
        q, v = torch.zeros(1500, 2, 8), torch.ones(1500, 2, 8)
        cu, p = int32(0, 100, 600, 1500), 0.3
        o = fa.flash_attn_varlen_func(q, q, v, cu, cu, 900, 900, p)
        counts = cu.diff().repeat_interleave(cu.diff())  # weights of a row: each 1 / count
        kept = (o[:, :, 0] * (1 - p) * counts[:, None]).sum() / (2 * counts.sum())
        self.assertLess(abs(1 - kept.item() - p), 5 * (p * (1 - p) / (2 * counts.sum().item())) ** 0.5)

    def test_errors(self) -> None:
        f, x = fa.flash_attn_varlen_func, (self.q, self.k, self.v)
        cu_q, cu_k = self.cu_q, self.cu_k
        self.refused("cu_seqlens_q must have the dtype int32, not int64", f, *x, cu_q.long(), cu_k, 7, 7)
        self.refused("dropout_p must be from 0 and below 1, not 1.0", f, *x, cu_q, cu_k, 7, 7, 1.0)
        self.refused("max_seqlen_q is 6, but a sequence of cu_seqlens_q has 7", f, *x, cu_q, cu_k, 6, 7)
        self.refused("max_seqlen_k is 3, but", f, *x, cu_q, cu_k, 7, 3)
        self.refused("cu_seqlens_q must rise from 0 to at most 11", f, *x, int32(0, 3, 2, 10, 11), cu_k, 7, 7)
        self.refused("cu_seqlens_k must rise from 0 to at most 16", f, *x, cu_q, int32(0, 3, 4, 10, 17), 7, 9)
        self.refused("cu_seqlens_k has the shape", f, *x, cu_q, cu_k[:-1], 7, 9)
        self.refused(r"alibi_slopes .* not \[4\] or \[4, 4\]", f, *x, cu_q, cu_k, 7, 7, alibi_slopes=torch.rand(2, 4))
        blocks = numbers(6, 4, 2, 16)
        table = int32(0, 1, 2, 3, 4, 5, 9, 9).view(4, 2)
        given = self.q, blocks, blocks, cu_q
        self.refused("block_table has the block 7", f, *given, cu_k, 7, 7, block_table=table.clamp(max=4) + 3)
        self.refused(
            "block_table has 2 blocks of 4 rows, too few for 9",
            f,
            *given,
            int32(0, 9, 9, 9, 9),
            7,
            9,
            block_table=table,
        )
        self.refused("block_table has the shape", f, *given, cu_k, 7, 7, block_table=table[0])
        self.refused(r"k has the shape .* not \[blocks", f, *x, cu_q, cu_k, 7, 7, block_table=table)


def tables(positions: int, pairs: int, dtype: Any) -> Any:
    angle = torch.arange(positions)[:, None] * 10000.0 ** (-torch.arange(pairs) / pairs)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def turned(x: Any, cos: Any, sin: Any, interleaved: bool, pos: Any) -> Any:
    """Rows [batch, rows, heads, width] by complex numbers."""
    pairs = cos.shape[1]
    z = torch.complex(cos.double(), sin.double())[pos][:, :, None]
    x, y = x.double(), x.double().clone()
    first, second = (
        (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)) if interleaved else (slice(pairs), slice(pairs, 2 * pairs))
    )
    made = torch.complex(x[..., first], x[..., second]) * z
    y[..., first], y[..., second] = made.real, made.imag
    return y


class Caches(Tests):
    """Batch 3, capacity 24, in one of three places: entries, entries by index, blocks."""

    batch, capacity = 3, 24

    def place(self, kind: str, seed: int, dtype: Any, width: int = 16) -> tuple[Any, Any, dict[str, Any], Any]:
        """Two caches, what says where entries lie, and a function that reads them as [batch, capacity, ...]."""
        if kind == "blocks":
            k, v = (numbers(13, 8, 2, width, seed=seed + i, dtype=dtype) for i in range(2))
            table = torch.randperm(13, generator=torch.Generator().manual_seed(seed))[:9].view(3, 3).int()
            return k, v, {"block_table": table}, lambda x: x[table.long()].flatten(1, 2)
        k, v = (numbers(5, 24, 2, width, seed=seed + i, dtype=dtype) for i in range(2))
        if kind == "index":
            return k, v, {"cache_batch_idx": int32(4, 0, 2)}, lambda x: x[[4, 0, 2]]
        return k, v, {}, lambda x: x[:3].clone()

    def test_against_a_softmax(self) -> None:
        tried = 0
        lens = int32(0, 7, 19)
        news = (0, 1, 4)
        turns = (None, True, False)
        for kind, new, turn, causal in itertools.product(("entries", "index", "blocks"), news, turns, (False, True)):
            for window, rows in itertools.product(((-1, -1), (5, 1)), (1, 4)):
                if turn is not None and not new:
                    continue
                tried += 1
                dtype = (torch.float32, torch.float64, torch.float16)[tried % 3]
                bound = {torch.float32: 1e-5, torch.float64: 1e-12, torch.float16: 4e-3}[dtype]
                pad = int32(0, 3, 8) if tried % 2 else None
                slopes = (None, torch.rand(4), torch.rand(3, 4))[tried % 3]
                with self.subTest(kind=kind, new=new, turn=turn, causal=causal, window=window, rows=rows):
                    k_cache, v_cache, where, read = self.place(kind, tried, dtype)
                    was_k, was_v = k_cache.clone(), v_cache.clone()
                    q = numbers(3, rows, 4, 16, seed=tried, dtype=dtype)
                    k, v = (numbers(3, new, 2, 16, seed=tried + i, dtype=dtype) for i in (7, 8))
                    given: dict[str, Any] = {**where, "cache_leftpad": pad, "alibi_slopes": slopes}
                    given.update(causal=causal, window_size=window, cache_seqlens=lens)
                    turned_q, turned_k = q, k
                    at = lens.long()[:, None] + torch.arange(new)
                    if turn is not None:
                        cos, sin = tables(24, 5, dtype)
                        given.update(rotary_cos=cos, rotary_sin=sin, rotary_interleaved=turn)
                        steps = (
                            torch.arange(rows) if causal or window != (-1, -1) else torch.zeros(rows, dtype=torch.long)
                        )
                        turned_q = turned(q, cos, sin, turn, lens.long()[:, None] + steps).to(dtype)
                        turned_k = turned(k, cos, sin, turn, at).to(dtype)
                    if new:
                        given.update(k=k, v=v)
                    o, lse = fa.flash_attn_with_kvcache(q, k_cache, v_cache, **given, return_softmax_lse=True)
                    # the cache: new rows where they belong, and nothing else has changed
                    held_k, held_v = read(k_cache), read(v_cache)
                    for b, first in enumerate(lens.tolist()):
                        self.near(held_k[b, first : first + new], turned_k[b].double(), bound)
                        self.same(held_v[b, first : first + new], v[b])
                        held_k[b, first : first + new] = read(was_k)[b, first : first + new]
                        held_v[b, first : first + new] = read(was_v)[b, first : first + new]
                    self.same(held_k, read(was_k))
                    self.same(held_v, read(was_v))
                    changed = (k_cache != was_k).flatten(1).any(1).sum()
                    self.assertLessEqual(int(changed), 0 if not new else 6)
                    held_k, held_v = read(k_cache), read(v_cache)
                    for b, end in enumerate((lens + new).tolist()):
                        m = slopes[b] if slopes is not None and slopes.ndim > 1 else slopes
                        first = 0 if pad is None else int(pad[b])
                        wanted = one(
                            *(turned_q[b], held_k[b, :end], held_v[b, :end], causal, window),
                            slopes=m,
                            scale=None,
                            cap=0.0,
                            first=first,
                        )
                        self.near(o[b], wanted[0], bound)
                        self.near(lse[b], wanted[1], max(bound, 1e-5))
        self.assertEqual(tried, 3 * 2 * 2 * 2 * 7)

    def test_bits_of_loci_wherever_the_keys_lie(self) -> None:
        lens, slopes = int32(24, 1, 10), torch.rand(4)
        for rows, causal in itertools.product((1, 6), (False, True)):
            q = numbers(3, rows, 4, 16)
            k_cache, v_cache, _, _ = self.place("entries", 3, torch.float32)
            options = {"causal": causal, "softcap": 3.0}
            o = fa.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=lens, alibi_slopes=slopes, **options)
            tensors = {"alibi.slopes": slopes}
            wanted = loci.attention(
                *(q, k_cache[:3], v_cache[:3], "alibi:slopes=given"),
                tensors=tensors,
                k_lens=lens,
                layout="blhd",
                **options,
            )
            self.same(o, wanted)
            whole_k, whole_v, where, _ = self.place("index", 3, torch.float32)
            whole_k[[4, 0, 2]], whole_v[[4, 0, 2]] = k_cache[:3].clone(), v_cache[:3].clone()
            given = {"cache_seqlens": lens, "alibi_slopes": slopes, **options}
            self.same(fa.flash_attn_with_kvcache(q, whole_k, whole_v, **where, **given), wanted)
            blocks_k, blocks_v, where, _ = self.place("blocks", 3, torch.float32)
            at = where["block_table"].long()
            blocks_k[at] = k_cache[:3].unflatten(1, (3, 8))
            blocks_v[at] = v_cache[:3].unflatten(1, (3, 8))
            self.same(fa.flash_attn_with_kvcache(q, blocks_k, blocks_v, **where, **given), wanted)
            paged = loci.attention(
                *(q, blocks_k, blocks_v, "alibi:slopes=given"),
                tensors=tensors,
                k_lens=lens,
                pages=at,
                layout="blhd",
                **options,
            )
            self.same(paged, wanted)

    def test_token_by_token(self) -> None:
        """Generation has the bits of one pass over rotated rows."""
        q, k, v = (numbers(2, 20, heads, 16, seed=seed) for seed, heads in enumerate((4, 2, 2)))
        cos, sin = tables(32, 8, torch.float32)
        turn = [apply_rotary_emb(x, cos, sin) for x in (q, k)]
        wanted = fa.flash_attn_func(*turn, v, causal=True, window_size=(8, 0))
        k_cache, v_cache = torch.zeros(2, 32, 2, 16), torch.zeros(2, 32, 2, 16)
        first = 0
        for n in (7, 1, 1, 4, 1, 1, 5):
            part = [x[:, first : first + n] for x in (q, k, v)]
            o = fa.flash_attn_with_kvcache(
                *(part[0], k_cache, v_cache, part[1], part[2]),
                rotary_cos=cos,
                rotary_sin=sin,
                cache_seqlens=first,
                causal=True,
                window_size=(8, 0),
                rotary_interleaved=False,
            )
            self.same(o, wanted[:, first : first + n])
            first += n

    def test_strided_caches_are_written_in_place(self) -> None:
        """A cache of all layers, of which this is one, with heads before rows."""
        layers = torch.zeros(3, 2, 2, 32, 16)  # layer, batch, heads, rows, width
        k_cache, v_cache = layers[1].transpose(1, 2), layers[2].transpose(1, 2)
        q, k, v = numbers(2, 3, 4, 16), numbers(2, 3, 2, 16, seed=1), numbers(2, 3, 2, 16, seed=2)
        o = fa.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=int32(5, 0), causal=True)
        self.same(layers[1, 0, :, 5:8], k[0].transpose(0, 1))
        self.same(layers[2, 1, :, 0:3], v[1].transpose(0, 1))
        self.assertEqual(int((layers[0] != 0).sum()), 0)
        dense = [x.contiguous() for x in (k_cache, v_cache)]
        self.same(o, fa.flash_attn_with_kvcache(q, *dense, cache_seqlens=int32(8, 3), causal=True))

    def test_lengths(self) -> None:
        q, (k_cache, v_cache, _, _) = numbers(3, 2, 4, 16), self.place("entries", 1, torch.float32)
        full = fa.flash_attn_with_kvcache(q, k_cache, v_cache)
        self.same(full, fa.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=24))
        self.same(full, fa.flash_attn_func(q, k_cache[:3], v_cache[:3]))
        nothing, lse = fa.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=0, return_softmax_lse=True)
        self.assertTrue((nothing == 0).all() and (lse == INF).all())

    def test_errors_leave_the_cache_as_it_was(self) -> None:
        k_cache, v_cache, _, _ = self.place("entries", 1, torch.float32)
        was = k_cache.clone(), v_cache.clone()
        q, k, v = numbers(3, 2, 4, 16), numbers(3, 2, 2, 16, seed=1), numbers(3, 2, 2, 16, seed=2)
        cos, sin = tables(24, 8, torch.float32)
        wide = tables(24, 9, torch.float32)
        lens, table = int32(3, 4, 5), int32(*range(5), 0, 1, 2, 3).view(3, 3)
        new = {"k": k, "v": v, "cache_seqlens": lens}
        paged = {**new, "block_table": table}
        for sentence, options in (
            ("v is missing", {"k": k, "cache_seqlens": lens}),
            ("k is missing", {"v": v, "cache_seqlens": lens}),
            ("cache_seqlens is missing", {"k": k, "v": v}),
            ("cache_seqlens must have the dtype int32", {**new, "cache_seqlens": lens.long()}),
            ("cache_seqlens has the shape", {**new, "cache_seqlens": lens[:2]}),
            ("cache_seqlens are .* the cache has 24", {**new, "cache_seqlens": lens + 21}),
            ("the cache has 24 rows for each entry, too few for 25", {**new, "cache_seqlens": lens + 18}),
            ("v has 1 rows and k 2", {**new, "v": v[:, :1]}),
            ("k has the shape", {**new, "k": k[:2]}),
            ("k is float16 and q float32", {**new, "k": k.half()}),
            ("rotary_sin is missing", {**new, "rotary_cos": cos}),
            ("rotary_cos is missing", {**new, "rotary_sin": sin}),
            ("k and v are missing", {"cache_seqlens": lens, "rotary_cos": cos, "rotary_sin": sin}),
            ("rotary_cos has 20 rows", {**new, "rotary_cos": cos[:20], "rotary_sin": sin[:20]}),
            ("rotary_cos is float64", {**new, "rotary_cos": cos.double(), "rotary_sin": sin}),
            (
                "9 pairs, and rows are 16 wide",
                {**new, "rotary_cos": wide[0], "rotary_sin": wide[1]},
            ),
            ("cache_batch_idx is", {**new, "cache_batch_idx": int32(0, 1, 5)}),
            ("cache_batch_idx must have the dtype", {**new, "cache_batch_idx": int32(0, 1, 2).long()}),
            ("cache_batch_idx must be None with block_table", {**new, "block_table": table, "cache_batch_idx": lens}),
            ("block_table has the block 7", {**new, "block_table": table + 4}),
            (
                "block_table has 3 blocks of 24 rows, too few for 74",
                {**paged, "cache_seqlens": lens + 67},
            ),
            (
                "cache_seqlens are .* block_table has 3 blocks",
                {**paged, "cache_seqlens": lens + 70},
            ),
            ("cache_leftpad must not be negative", {**new, "cache_leftpad": int32(0, -1, 0)}),
            ("cache_leftpad has the shape", {**new, "cache_leftpad": int32(0, 1)}),
            ("num_splits must be from 0 to 128", {**new, "num_splits": 129}),
            ("scale must not be 0", {**new, "softmax_scale": 0.0}),
            ("alibi_slopes has the shape", {**new, "alibi_slopes": torch.rand(2, 4)}),
            ("softcap", {**new, "softcap": 1e300}),
        ):
            with self.subTest(sentence):
                self.refused(sentence, fa.flash_attn_with_kvcache, q, k_cache, v_cache, **options)
        f = fa.flash_attn_with_kvcache
        self.refused("heads", f, numbers(3, 2, 3, 16), k_cache, v_cache, **new)
        self.refused("entries, and q a batch of 6", f, numbers(6, 2, 4, 16), k_cache, v_cache)
        self.refused("no gradient", f, q.clone().requires_grad_(), k_cache, v_cache, **new)
        self.refused("k_cache must be contiguous", f, q[..., :8], k_cache[..., ::2], v_cache[..., :8])
        self.refused("k_cache is float16", f, q, k_cache.half(), v_cache.half())
        self.refused("v_cache has the shape", f, q, k_cache, v_cache[:, :20])
        self.same(k_cache, was[0])
        self.same(v_cache, was[1])


class Helpers(Tests):
    def test_in_the_place_of_the_package(self) -> None:
        code = (
            "import sys, loci.flash_attn; sys.modules['flash_attn'] = loci.flash_attn\n"
            "import flash_attn, importlib.util\n"
            "from flash_attn import flash_attn_func as a\n"
            "from flash_attn.flash_attn_interface import flash_attn_func as b, flash_attn_varlen_qkvpacked_func\n"
            "from flash_attn.bert_padding import unpad_input, pad_input, index_first_axis\n"
            "from flash_attn.layers.rotary import apply_rotary_emb\n"
            "assert a is b is loci.flash_attn.flash_attn_func\n"
            "assert importlib.util.find_spec('flash_attn') is not None\n"
            "print(flash_attn.__version__)"
        )
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        self.assertEqual((said.stderr, said.stdout.strip()), ("", "2.8.4"))

    def test_padding_there_and_back(self) -> None:
        x = numbers(3, 6, 2, 4).requires_grad_()
        mask = torch.tensor([[1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]])
        for m in (mask, mask.bool()):
            rows, indices, cu, longest, used = bert_padding.unpad_input(x, m)
            self.same(rows, x[m.bool()])
            self.assertEqual((cu.tolist(), cu.dtype, longest), ([0, 2, 5, 11], torch.int32, 6))
            self.assertEqual(used.tolist(), [2, 3, 6])
            back = bert_padding.pad_input(rows, indices, 3, 6)
            self.same(back, x * mask[..., None, None])
        (back * back).sum().backward()
        self.same(x.grad, 2 * x.detach() * mask[..., None, None])
        extra = torch.tensor([[0, 0, 1, 0, 0, 0]] + [[0] * 6] * 2)
        rows, _, cu, longest, used = bert_padding.unpad_input(x, mask, extra)
        self.assertEqual((len(rows), cu.tolist(), used.tolist()), (12, [0, 3, 6, 12], [2, 3, 6]))
        lengths = torch.tensor([[2, 3, 0, 0, 0, 0], [6, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0]])
        rows, indices, cu, longest = bert_padding.unpad_input_for_concatenated_sequences(x, lengths)
        self.assertEqual((cu.tolist(), longest), ([0, 2, 5, 11, 12], 6))
        self.assertEqual(indices.tolist(), [*range(5), *range(6, 12), 12])
        self.refused("attention_mask has the shape", bert_padding.unpad_input, x, mask[:, :5])

    def test_rotation_by_tables(self) -> None:
        x = numbers(2, 9, 3, 16)
        cos, sin = tables(40, 6, torch.float32)
        for interleaved, first in itertools.product((False, True), (0, 5, int32(3, 30))):
            pos = torch.as_tensor(first).long().expand(2)[:, None] + torch.arange(9)
            leaf, other = x.clone().requires_grad_(), x.double().requires_grad_()
            y = apply_rotary_emb(leaf, cos, sin, interleaved=interleaved, seqlen_offsets=first)
            wanted = turned(other, cos, sin, interleaved, pos)
            self.near(y, wanted, 1e-6)
            w = numbers(*x.shape, seed=4)
            (y * w).sum().backward()
            (wanted * w.double()).sum().backward()
            self.near(leaf.grad, other.grad, 1e-6)
            cu = int32(0, 9, 18)
            packed = apply_rotary_emb(
                x.flatten(0, 1), cos, sin, interleaved=interleaved, seqlen_offsets=first, cu_seqlens=cu, max_seqlen=9
            )
            self.same(packed.unflatten(0, (2, 9)), y.detach())
            into = x.clone()
            same = apply_rotary_emb(into, cos, sin, interleaved=interleaved, seqlen_offsets=first, inplace=True)
            self.assertIs(same, into)
            self.same(into, y.detach())
        cos, sin = tables(40, 8, torch.float32)
        rope = loci.rotate(x, "rope:pairing=half", layout="blhd")
        self.near(apply_rotary_emb(x, cos, sin), rope.double(), 1e-5)
        self.refused("cos has 40 rows, and positions go from 35", apply_rotary_emb, x, cos, sin, seqlen_offsets=35)
        self.refused("cu_seqlens must rise from 0 to the 9", apply_rotary_emb, x[0], cos, sin, cu_seqlens=int32(0, 8))


if __name__ == "__main__":
    unittest.main()
