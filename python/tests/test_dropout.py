# SPDX-License-Identifier: MIT
"""Dropout of weights: which ones, gradients, seeds of torch, packing."""

from __future__ import annotations

import unittest
from typing import Any

import numpy as np

import loci

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

MASK = (1 << 64) - 1
SEED = 0xFEDCBA9876543210


def mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def factors(p: float, seed: int, shape: tuple[int, int, int, int]) -> np.ndarray[Any, Any]:
    """What docs/bits.md says of every weight: 0 or 1 / (1 - p)."""
    batch, heads, rows, keys = shape
    made = np.empty(shape)
    j = np.arange(keys, dtype=np.uint32)
    with np.errstate(over="ignore"):
        for b, h, i in np.ndindex(batch, heads, rows):
            ab = mix(mix(mix(mix(seed) + b) + h) + (i + keys - rows & MASK))
            u = np.uint32(ab & 0xFFFFFFFF) + j * np.uint32(0x9E3779B9)
            u = (u ^ u >> 16) * np.uint32(0x21F0AAAD) ^ np.uint32(ab >> 32)
            u = (u ^ u >> 15) * np.uint32(0x735A2D97)
            made[b, h, i] = u.view(np.int32) >= int(p * 2**32 + 0.5) - 2**31
    return made / (1 - p)


def random(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(shape)).standard_normal(shape)


class Dropout(unittest.TestCase):
    def test_definition(self) -> None:
        q, k, v = random(2, 4, 70, 8), random(2, 2, 75, 8), random(2, 2, 75, 5)
        options = {"dropout_p": 0.3, "dropout_seed": SEED}
        for encoding in ("nope", "rope:pairing=half+alibi"):
            bare, lse = loci.attention(q, k, v, encoding, return_lse=True)
            o, same = loci.attention(q, k, v, encoding, return_lse=True, **options)
            np.testing.assert_array_equal(lse, same)
            w = loci.weights(q, k, encoding)
            want = (w * factors(0.3, SEED, w.shape)) @ v.repeat(2, 1)
            np.testing.assert_allclose(o, want, rtol=0, atol=1e-12)
            none = loci.attention(q, k, v, encoding, dropout_p=0.0, dropout_seed=SEED)
            np.testing.assert_array_equal(bare, none)

    def test_packed(self) -> None:
        """Sequence s of packed ones drops what entry s of a batch drops."""
        q, k, v = random(3, 4, 40, 8), random(3, 2, 40, 8), random(3, 2, 40, 8)
        want = loci.attention(q, k, v, "alibi", dropout_p=0.5, dropout_seed=3)
        flat = [np.ascontiguousarray(x.swapaxes(0, 1).reshape(x.shape[1], -1, 8).swapaxes(0, 1)) for x in (q, k, v)]
        starts = [0, 40, 80, 120]
        o = loci.attention(*flat, "alibi", layout="thd", cu_seqlens_q=starts, dropout_p=0.5, dropout_seed=3)
        np.testing.assert_array_equal(o, want.swapaxes(1, 2).reshape(120, 4, 8))

    def test_lengths_and_pages(self) -> None:
        """Keys that an entry has not, and where keys lie, change nothing."""
        q, k, v = random(2, 4, 6, 8), random(2, 2, 32, 8), random(2, 2, 32, 8)
        options: dict[str, Any] = {"dropout_p": 0.5, "dropout_seed": 9, "return_lse": True}
        lens = [21, 32]
        want = loci.attention(q, k, v, "alibi", k_lens=lens, **options)
        alone = loci.attention(q[:1], k[:1, :, :21], v[:1, :, :21], "alibi", **options)
        table = np.array([[5, 0, 3, 7], [1, 6, 2, 4]])
        pages = [np.empty((8, 2, 8, 8)) for _ in "kv"]
        for page, x in zip(pages, (k, v), strict=True):
            page[table] = x.reshape(2, 2, 4, 8, 8).swapaxes(1, 2)
        paged = loci.attention(q, *pages, "alibi", pages=table, k_lens=lens, **options)
        for a, b, c in zip(want, alone, paged, strict=True):
            np.testing.assert_array_equal(a[:1], b)
            np.testing.assert_array_equal(a, c)

    def test_sinks(self) -> None:
        """Sinks of each row take weight before weights are dropped, as those of each head do."""
        q, k, v = random(2, 4, 30, 8), random(2, 2, 30, 8), random(2, 2, 30, 8)
        options: dict[str, Any] = {"dropout_p": 0.5, "dropout_seed": 9, "return_lse": True}
        sinks = random(4)
        want = loci.attention(q, k, v, "alibi", sinks=sinks, **options)
        rows = np.broadcast_to(sinks[None, :, None], (2, 4, 30))
        for a, b in zip(want, loci.attention(q, k, v, "alibi", sinks=rows, **options), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)

    def test_backward(self) -> None:
        """Differences of a call in double."""
        arrays = random(1, 2, 9, 4), random(1, 1, 9, 4), random(1, 1, 9, 4)
        options: dict[str, Any] = {"dropout_p": 0.4, "dropout_seed": 11}
        dout = random(1, 2, 9, 4)
        o, lse = loci.attention(*arrays, "alibi", return_lse=True, **options)
        *grads, _ = loci.attention_backward(dout, *arrays, o, lse, "alibi", **options)
        for n, grad in enumerate(grads):
            u = random(*grad.shape)
            ends = []
            for h in (1e-5, -1e-5):
                moved = [x + h * u if i == n else x for i, x in enumerate(arrays)]
                ends.append(float((dout * loci.attention(*moved, "alibi", **options)).sum()))
            self.assertAlmostEqual((ends[0] - ends[1]) / 2e-5, float((u * grad).sum()), 7)

    def test_fraction(self) -> None:
        """With equal scores and values that count, every row shows how many weights were dropped."""
        q, v = np.zeros((2, 8, 512, 16), np.float32), np.ones((2, 8, 512, 1), np.float32)
        for p in (0.01, 0.17, 0.5, 0.9):
            o = loci.attention(q, q, v, causal=False, dropout_p=p, dropout_seed=1)
            dropped = 1 - o.mean() * (1 - p)
            self.assertLess(abs(dropped - p), 5 * (p * (1 - p) / (2 * 8 * 512 * 512)) ** 0.5 + 1e-6)

    @unittest.skipIf(torch is None, "no torch")
    def test_seeds_of_torch(self) -> None:
        q, k, v = (torch.from_numpy(random(1, 2, 33, 8)).requires_grad_() for _ in range(3))

        def call() -> Any:
            return loci.attention(q, k, v, "rope:pairing=half", dropout_p=0.5)

        torch.manual_seed(1)
        first, second = call(), call()
        torch.manual_seed(1)
        self.assertTrue(torch.equal(first, call()))
        self.assertFalse(torch.equal(first, second))
        given = [loci.attention(q, k, v, dropout_p=0.5, dropout_seed=SEED) for _ in range(2)]
        self.assertTrue(torch.equal(*given))
        state = torch.get_rng_state()
        loci.attention(q, k, v)
        loci.attention(q, k, v, dropout_p=0.5, dropout_seed=1)
        self.assertTrue(torch.equal(state, torch.get_rng_state()))

    @unittest.skipIf(torch is None, "no torch")
    def test_gradients_of_torch(self) -> None:
        q, k, v = (
            torch.from_numpy(x).requires_grad_() for x in (random(1, 2, 6, 4), random(1, 1, 6, 4), random(1, 1, 6, 3))
        )
        table = torch.from_numpy(random(32, 2)).requires_grad_()

        def call(q: Any, k: Any, v: Any, table: Any) -> Any:
            return loci.attention(
                q, k, v, "t5:bidirectional=0", tensors={"t5.table": table}, dropout_p=0.3, dropout_seed=5
            )

        self.assertTrue(torch.autograd.gradcheck(call, (q, k, v, table)))

    @unittest.skipIf(torch is None, "no torch")
    def test_checkpoint(self) -> None:
        from torch.utils.checkpoint import checkpoint

        x = torch.from_numpy(random(1, 2, 40, 8)).requires_grad_()

        def layer(x: Any) -> Any:
            return loci.attention(x, x, x, "alibi", dropout_p=0.5)

        found = []
        for replay in (False, True):
            torch.manual_seed(9)
            x.grad = None
            y = checkpoint(layer, x, use_reentrant=False) if replay else layer(x)
            torch.rand(5)
            y.square().sum().backward()
            found.append((y.detach(), x.grad))
        self.assertTrue(torch.equal(found[0][0], found[1][0]))
        self.assertTrue(torch.equal(found[0][1], found[1][1]))

    @unittest.skipIf(torch is None, "no torch")
    def test_compiled(self) -> None:
        x = torch.from_numpy(random(1, 2, 20, 8)).requires_grad_()

        def layer(x: Any) -> Any:
            return loci.attention(x, x, x, "alibi", dropout_p=0.5)

        compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
        found = []
        for f in (layer, compiled, compiled):
            torch.manual_seed(9)
            x.grad = None
            y = f(x)
            y.square().sum().backward()
            found.append((y.detach(), x.grad))
        for other in found[1:]:
            self.assertTrue(torch.equal(found[0][0], other[0]))
            self.assertTrue(torch.equal(found[0][1], other[1]))

    def test_weights(self) -> None:
        """What attention() drops, for all rows and for some of them."""
        q, k, v = random(2, 4, 70, 8), random(2, 2, 75, 8), random(2, 2, 75, 5)
        options: dict[str, Any] = {"dropout_p": 0.3, "dropout_seed": SEED}
        for more in ({}, {"k_lens": [75, 71], "window_size": (40, -1)}):
            whole, left = loci.weights(q, k, "alibi", **more), loci.weights(q, k, "alibi", **more, **options)
            if not more:
                np.testing.assert_allclose(left, whole * factors(0.3, SEED, whole.shape), rtol=0, atol=1e-15)
            o = loci.attention(q, k, v, "alibi", **more, **options)
            np.testing.assert_allclose(left @ v.repeat(2, 1), o, rtol=0, atol=1e-12)
            for rows in ([69], [-3, 5, 5, 64]):
                some = loci.weights(q, k, "alibi", rows=rows, **more, **options)
                np.testing.assert_allclose(some, left[:, :, rows], rtol=0, atol=1e-15)
        turned = loci.weights(q.swapaxes(1, 2), k.swapaxes(1, 2), layout="blhd", rows=[3], **options)
        np.testing.assert_array_equal(turned, loci.weights(q, k, **options)[:, :, 3:4])
        for p in (1, -0.1):
            with self.assertRaisesRegex(loci.Error, "dropout_p must be from 0 and below 1"):
                loci.weights(q, k, dropout_p=p, dropout_seed=1)
        with self.assertRaisesRegex(loci.Error, "dropout_p needs dropout_seed="):
            loci.weights(q, k, dropout_p=0.1)

    @unittest.skipIf(torch is None, "no torch")
    def test_weights_of_torch(self) -> None:
        q, v = torch.from_numpy(random(1, 2, 9, 4)), torch.from_numpy(random(1, 2, 9, 4))
        torch.manual_seed(3)
        o, after = loci.attention(q, q, v, dropout_p=0.5), torch.get_rng_state()
        torch.manual_seed(3)
        w = loci.weights(q, q, dropout_p=0.5, rows=[8, 2])
        self.assertTrue(torch.equal(after, torch.get_rng_state()))
        torch.testing.assert_close(w @ v, o[:, :, [8, 2]])
        with self.assertRaises(loci.Error):
            loci.weights(q, q, dropout_p=0.5, window_size=(-2, 0))
        self.assertTrue(torch.equal(after, torch.get_rng_state()))

    @unittest.skipIf(torch is None, "no torch")
    def test_modules(self) -> None:
        """In training only, from torch's generator, and again when a checkpoint replays it."""
        from torch.utils.checkpoint import checkpoint

        from loci import nn

        x, e = torch.randn(2, 9, 16, requires_grad=True), nn.TaPE(16, 2, units=4).start(2, 9)
        heads = torch.randn(2, 2, 9, 8)
        modules: dict[str, tuple[Any, Any]] = {
            "Encoding": (nn.Encoding("t5", 2, 8, dropout=0.5), lambda m: m(heads, heads, heads)),
            "PoPE": (nn.PoPE(2, 8, dropout=0.5), lambda m: m(heads, heads, heads)),
            "Attention": (nn.Attention(16, 2, "rope:pairing=half+fox", dropout=0.5), lambda m: m(x)),
            "FoXPro": (nn.FoXPro(16, 2, dropout=0.5), lambda m: m(x)),
            "TaPE": (nn.TaPE(16, 2, units=4, dropout=0.5), lambda m: m(x, e)[0]),
        }
        for name, (module, call) in modules.items():
            with self.subTest(name):
                module.eval()
                state = torch.get_rng_state()
                bare = call(module)
                self.assertTrue(torch.equal(bare, call(module)))
                self.assertTrue(torch.equal(state, torch.get_rng_state()))
                module.train()
                found = []
                for replay in (False, True):
                    torch.manual_seed(5)
                    x.grad = None
                    module.zero_grad()
                    y = checkpoint(call, module, use_reentrant=False) if replay else call(module)
                    torch.rand(3)
                    y.square().sum().backward()
                    found.append([y.detach(), *(p.grad for p in (x, *module.parameters()) if p.grad is not None)])
                self.assertFalse(torch.equal(bare, found[0][0]))
                self.assertEqual(len(found[0]), len(found[1]))
                for one, two in zip(*found, strict=True):
                    self.assertTrue(torch.equal(one, two))
        self.assertIn("dropout=0.5", repr(modules["Attention"][0]))
        encoding, _ = modules["Encoding"]
        state = torch.get_rng_state()
        given = encoding(heads, heads, heads, dropout_p=0.0)
        self.assertTrue(torch.equal(given, encoding.eval()(heads, heads, heads)))
        self.assertTrue(torch.equal(state, torch.get_rng_state()))

    @unittest.skipIf(torch is None, "no torch")
    def test_modules_with_caches(self) -> None:
        from loci import nn

        x = torch.randn(1, 3, 16)
        for layer in (nn.Attention(16, 2, "fox", dropout=0.5), nn.FoXPro(16, 2, dropout=0.5)):
            cache = layer.new_cache(1, 8)
            with self.assertRaisesRegex(loci.Error, r"not dropped: call eval\(\)"):
                layer(x, cache=cache)
            self.assertEqual(len(cache), 0)
            with torch.no_grad():
                layer.eval()(x, cache=cache)
        for p in (1, -0.1, float("nan")):
            with self.assertRaisesRegex(loci.Error, "dropout must be from 0 and below 1"):
                nn.Attention(16, 2, "nope", dropout=p)
        with self.assertRaisesRegex(TypeError, "dropout must be a number"):
            nn.TaPE(16, 2, units=4, dropout="half")  # type: ignore[arg-type]

    def test_no_seed(self) -> None:
        q = random(1, 1, 3, 4)
        with self.assertRaisesRegex(loci.Error, "dropout_p needs dropout_seed="):
            loci.attention(q, q, q, dropout_p=0.1)

    @unittest.skipIf(torch is None, "no torch")
    def test_mapped(self) -> None:
        x = torch.from_numpy(random(3, 1, 2, 5, 4))
        with self.assertRaisesRegex(loci.Error, "dropout cannot be mapped"):
            torch.func.vmap(lambda x: loci.attention(x, x, x, dropout_p=0.5, dropout_seed=1))(x)


if __name__ == "__main__":
    unittest.main()
