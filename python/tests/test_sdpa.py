# SPDX-License-Identifier: MIT
"""loci.sdpa(): torch's scaled_dot_product_attention in a block of code."""

from __future__ import annotations

import contextlib
import itertools
import threading
import unittest
import warnings
from typing import Any

import loci

try:
    import torch
except ImportError:
    raise unittest.SkipTest("there is no torch") from None

from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention as imported

TORCH = functional.scaled_dot_product_attention


def numbers(*shape: int, seed: int = 0, dtype: Any = torch.float32) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


class SDPA(unittest.TestCase):
    def near(self, got: Any, wanted: Any, bound: float = 1e-5) -> None:
        self.assertEqual((got.shape, got.dtype), (wanted.shape, wanted.dtype))
        self.assertLess((got.double() - wanted.double()).abs().max().item(), bound)

    def test_what_torch_computes_with_gradients(self) -> None:
        rows, keys = 7, 10
        masks = (
            None,
            torch.rand(rows, keys) > 0.4,
            torch.rand(2, 1, 1, keys) > 0.4,
            numbers(2, 4, rows, keys),
            numbers(1, 4, rows, 1),
            numbers(keys),
        )
        tried = 0
        for mask, causal, kv, scale in itertools.product(masks, (False, True), (4, 2), (None, 0.3)):
            if causal and mask is not None:
                continue
            if mask is not None and mask.dtype is torch.bool:
                mask[..., 0] = True
            x = [numbers(2, h, n, 16, seed=s) for s, (h, n) in enumerate(((4, rows), (kv, keys), (kv, keys)))]
            bias = mask.clone().requires_grad_() if mask is not None and mask.is_floating_point() else None
            options = {"attn_mask": mask if bias is None else bias, "is_causal": causal, "scale": scale}
            results = []
            for block in (contextlib.nullcontext(), loci.sdpa()):
                leaves = [t.clone().requires_grad_() for t in x]
                if bias is not None:
                    bias.grad = None
                with block as calls:
                    o = functional.scaled_dot_product_attention(*leaves, **options, enable_gqa=kv != 4)
                (o * numbers(*o.shape, seed=9)).sum().backward()
                grads = [t.grad for t in leaves] + ([] if bias is None else [bias.grad.clone()])
                results.append((o.detach(), *grads))
            self.assertEqual((calls.fused, calls.fallback), (1, {}))
            for a, b in zip(*results, strict=True):
                self.near(b, a, 2e-5)
            tried += 1
        self.assertEqual(tried, 28)

    def test_bits_of_loci(self) -> None:
        q, k, v = numbers(2, 4, 9, 16), numbers(2, 2, 9, 16, seed=1), numbers(2, 2, 9, 16, seed=2)
        with loci.sdpa():
            causal = imported(q, k, v, is_causal=True, enable_gqa=True)
            full = imported(q, k, v, None, 0.0, False, enable_gqa=True)
        self.assertTrue(torch.equal(causal, loci.attention(q, k, v)))
        self.assertTrue(torch.equal(full, loci.attention(q, k, v, causal=False)))

    def test_other_shapes_and_types(self) -> None:
        for dtype, rank in itertools.product((torch.float64, torch.bfloat16, torch.float16), (2, 3, 4)):
            q, k, v = (numbers(2, 4, n, 16, seed=n, dtype=dtype)[(0,) * (4 - rank)] for n in (5, 8, 8))
            mask = torch.rand(*q.shape[:-1], 8) > 0.3
            mask[..., 0] = True
            for options in ({}, {"is_causal": True}, {"attn_mask": mask}):
                wanted = functional.scaled_dot_product_attention(q, k, v, **options)
                with loci.sdpa() as calls:
                    o = functional.scaled_dot_product_attention(q, k, v, **options)
                self.assertEqual(calls.fused, 1, calls.fallback)
                self.near(o, wanted, {torch.float64: 1e-12, torch.bfloat16: 0.04, torch.float16: 0.005}[dtype])
        with loci.sdpa() as calls:  # one batch of keys for all
            q, k = numbers(3, 4, 5, 16), numbers(1, 1, 8, 16)
            o = functional.scaled_dot_product_attention(q, k, k)
        self.near(o, functional.scaled_dot_product_attention(q, k, k))
        self.assertEqual(calls.fused, 1)

    def test_dropout(self) -> None:
        """Weights that loci.attention drops with the same seed; about as many as torch drops."""
        q, k, v = (numbers(2, 4, 9, 16, seed=seed) for seed in range(3))
        mask = numbers(2, 1, 9, 9)
        for options, ours in (
            ({"is_causal": True}, {}),
            ({"attn_mask": mask, "scale": 0.3}, {"mask": mask, "scale": 0.3, "causal": False}),
        ):
            found = []
            for with_sdpa in (True, False):
                leaves = [t.clone().requires_grad_() for t in (q, k, v)]
                torch.manual_seed(2)
                if with_sdpa:
                    with loci.sdpa() as calls:
                        o = imported(*leaves, dropout_p=0.4, **options)
                    self.assertEqual((calls.fused, calls.fallback), (1, {}))
                else:
                    o = loci.attention(*leaves, dropout_p=0.4, **ours)
                o.square().sum().backward()
                found.append((o.detach(), *(t.grad for t in leaves)))
            for a, b in zip(*found, strict=True):
                self.assertTrue(torch.equal(a, b))
        q, v, p = torch.zeros(2, 4, 300, 8), torch.ones(2, 4, 300, 8), 0.2
        bound = 5 * (p * (1 - p) / (2 * 4 * 300 * 300)) ** 0.5 + 1e-6
        for block in (loci.sdpa(), contextlib.nullcontext()):
            with block:
                o = imported(q, q, v, dropout_p=p)
            self.assertLess(abs(1 - o.mean().item() * (1 - p) - p), bound)

    def test_torch_draws_its_own_numbers_where_it_computes(self) -> None:
        """A call that loci refuses has drawn nothing, so a seed of torch means what it means without loci."""
        q = numbers(2, 4, 6, 16)
        found = []
        for block in (loci.sdpa(), contextlib.nullcontext()):
            torch.manual_seed(8)
            with block, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found.append(imported(q, q, q, dropout_p=0.5, scale=0.0))
        self.assertTrue(torch.equal(*found))

    def test_dropout_that_is_mapped(self) -> None:
        q = numbers(3, 2, 4, 6, 16)
        for randomness in ("same", "different"):
            torch.manual_seed(8)
            with loci.sdpa() as calls, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                o = torch.func.vmap(lambda x: imported(x, x, x, dropout_p=0.5), randomness=randomness)(q)
            self.assertEqual(o.shape, q.shape)
            self.assertEqual((calls.fused, list(calls.fallback)), (0, ["dropout cannot be mapped by torch.func.vmap"]))

    def test_what_loci_cannot_goes_to_torch_with_one_warning(self) -> None:
        q, k, v = (numbers(2, 4, 6, 16, seed=seed) for seed in range(3))
        mask = torch.ones(6, 6, dtype=torch.bool)
        five = numbers(2, 2, 4, 6, 16)
        for sentence, arrays, options in (
            ("dropout_p must be from 0 and below 1, not 1.0", (q, k, v), {"dropout_p": 1.0}),
            ("query has 5 dimensions", (five, five, five), {}),
            ("scale must not be 0", (q, k, v), {"scale": 0.0}),
            ("is_causal and attn_mask are both given", (q, k, v), {"attn_mask": mask, "is_causal": True}),
            ("on meta", (q.to("meta"), k.to("meta"), v.to("meta")), {}),
        ):
            with self.subTest(sentence), loci.sdpa() as calls, warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                for _ in range(3):
                    o = functional.scaled_dot_product_attention(*arrays, **options)
                self.assertEqual([w.category for w in said], [loci.FallbackWarning])
                self.assertIn(sentence, str(said[0].message))
                self.assertEqual(said[0].filename, __file__)
                self.assertEqual((calls.fused, list(calls.fallback.values())), (0, [3]))
                self.assertEqual(o.shape, arrays[0].shape)

    def test_what_torch_refuses_it_still_refuses(self) -> None:
        q, k, v = (numbers(2, 4, 6, 16, seed=seed) for seed in range(3))
        for arrays, options in (
            ((q, k[:, :2], v[:, :2]), {}),
            ((q, k.double(), v), {}),
            ((q, k[..., :8], v), {}),
            ((q, k, v), {"attn_mask": torch.ones(6, 5)}),
            ((q, k, v), {"window": 3}),
        ):
            with self.subTest(options=options), loci.sdpa() as calls, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with self.assertRaises((RuntimeError, TypeError)) as caught:
                    functional.scaled_dot_product_attention(*arrays, **options)
                self.assertNotIsInstance(caught.exception, loci.Error)
                self.assertEqual(calls.fused, 0)

    def test_modules_of_torch(self) -> None:
        x = numbers(2, 7, 32)
        attention = torch.nn.MultiheadAttention(32, 4, batch_first=True)
        inner = torch.nn.TransformerEncoderLayer(32, 4, batch_first=True, dropout=0.0)
        training = torch.nn.MultiheadAttention(32, 4, dropout=0.5, batch_first=True)
        with loci.sdpa() as calls:
            found = []
            for seed in (1, 1, 2):
                torch.manual_seed(seed)
                found.append(training(x, x, x, need_weights=False)[0])
            torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
            self.assertFalse(torch.equal(found[0], found[2]))
            self.assertEqual((calls.fused, calls.fallback), (3, {}))
        encoder = torch.nn.TransformerEncoder(inner, 2, enable_nested_tensor=False)
        padding = torch.zeros(2, 7, dtype=torch.bool)
        padding[1, 4:] = True
        order = torch.nn.Transformer.generate_square_subsequent_mask(7)
        for n, call in (
            (1, lambda: attention(x, x, x, need_weights=False)[0]),
            (2, lambda: encoder(x)),
            (2, lambda: encoder(x, src_key_padding_mask=padding)),
            (2, lambda: encoder(x, mask=order, is_causal=True)),
        ):
            wanted = call()
            with loci.sdpa() as calls:
                self.near(call(), wanted)
            self.assertEqual((calls.fused, calls.fallback), (n, {}))
            self.assertIs(functional.scaled_dot_product_attention, TORCH)

    def test_it_ends_and_is_of_one_thread(self) -> None:
        q = numbers(1, 2, 5, 8)
        seen = []
        with loci.sdpa() as calls:
            thread = threading.Thread(target=lambda: seen.append(imported(q, q, q)))
            thread.start()
            thread.join()
            self.assertEqual(calls.fused, 0)
            with loci.sdpa() as inner:
                imported(q, q, q)
            imported(q, q, q)
        imported(q, q, q)
        self.assertEqual((len(seen), calls.fused, inner.fused), (1, 1, 1))
        self.assertIs(functional.scaled_dot_product_attention, TORCH)


if __name__ == "__main__":
    unittest.main()
