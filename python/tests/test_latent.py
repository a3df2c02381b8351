# SPDX-License-Identifier: MIT
"""loci.hf.patch() on DeepSeek V2 and V3, and LatentCache: small models with random weights, against eager attention."""

from __future__ import annotations

import copy
import unittest
from typing import Any
from unittest import mock

try:
    import torch
    import transformers as tf
except ImportError:
    raise unittest.SkipTest("there is no torch or no transformers") from None

import loci
import loci.hf
from loci import _hf_latent
from tests.test_hf import LENGTH, SMALL, Case, everything, padding, randomise, softmax, tokens

LATENT = {"kv_lora_rank": 64, "qk_rope_head_dim": 32, "qk_nope_head_dim": 8, "v_head_dim": 12, "q_lora_rank": 16}
EXPERTS = {"n_routed_experts": 4, "moe_intermediate_size": 16, "first_k_dense_replace": 1, "num_experts_per_tok": 2}
SIZES = {**SMALL, **LATENT, **EXPERTS, "num_key_value_heads": 4, "max_position_embeddings": 256}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.7}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "V2": ("V2", {}),
    "V2 without a latent of queries": ("V2", {"q_lora_rank": None}),
    "V3": ("V3", {"n_group": 2, "topk_group": 1}),
    "V3 by halves": ("V3", {"n_group": 2, "topk_group": 1, "rope_interleave": False, "q_lora_rank": None}),
    "V3 with YaRN": ("V3", {"n_group": 2, "topk_group": 1, "rope_parameters": YARN}),
}


def eager(name: str = "V3", dtype: Any = torch.float64, **options: Any) -> Any:
    kind, more = MODELS[name]
    config = getattr(tf, f"Deepseek{kind}Config")(**{**SIZES, **more, **options})
    model = randomise(getattr(tf, f"Deepseek{kind}ForCausalLM")(config))
    model.set_attn_implementation("eager")
    model.set_experts_implementation("eager")
    return model.to(dtype)


def patched(model: Any) -> Any:
    return loci.hf.patch(copy.deepcopy(model))


def latents(model: Any, length: int = 64, **options: Any) -> Any:
    return loci.hf.LatentCache(model.config, length, **options)


def ask(model: Any, x: torch.Tensor, mask: torch.Tensor | None, cache: Any, **more: Any) -> Any:
    """Logits of tokens behind those of a cache; the mask is of all tokens."""
    with mock.patch.object(torch.nn.functional, "softmax", softmax):
        return model(x, attention_mask=mask, past_key_values=cache, use_cache=True, **more).logits


def in_pieces(model: Any, x: torch.Tensor, mask: torch.Tensor | None, cache: Any) -> torch.Tensor:
    """A prompt, several tokens in a piece, and one by one."""
    made, ends = [], [LENGTH, LENGTH + 3, *range(LENGTH + 4, x.shape[1] + 1)]
    position = None if mask is None else (mask.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        for begin, end in zip([0, *ends], ends, strict=False):
            given = None if mask is None else mask[:, :end]
            at = None if position is None else position[:, begin:end]
            made.append(ask(model, x[:, begin:end], given, cache, position_ids=at))
    return torch.cat(made, 1)


class Latents(Case):
    def test_steps(self) -> None:
        """Logits of a prompt, a piece and of many steps; the second prompt is padded, and the second piece may be."""
        x = tokens(length=LENGTH + 28)
        left = torch.cat((padding("left"), torch.ones(2, 28, dtype=torch.int64)), 1)
        between = left.clone()
        between[0, LENGTH : LENGTH + 2] = 0
        for name in MODELS:
            one = eager(name)
            other = patched(one)
            for mask in (None, left, between):
                keep = slice(None) if mask is None else mask.bool()
                want = in_pieces(one, x, mask, tf.DynamicCache())
                static = tf.StaticCache(config=one.config, max_cache_len=64)
                for cache in (tf.DynamicCache(), static, latents(one)):
                    with self.subTest(name=name, cache=type(cache).__name__, mask=mask is not None):
                        got = in_pieces(other, x, mask, cache)
                        self.assertLess(float((got - want)[keep].abs().max() / want.abs().max()), 1e-9)
                        self.assertEqual(int(cache.get_seq_length()), x.shape[1])
        self.assertEqual(loci.hf.stats()["fallback"], {})

    def test_generates(self) -> None:
        for name in MODELS:
            one = eager(name, torch.float32)
            other = patched(one)
            for mask in (None, padding("left")):
                with self.subTest(name=name, mask=mask is not None):
                    self.generates(one, other, None, mask)
                    self.generates(one, other, "static", mask)
                    self.generates(one, other, None, mask, num_beams=3)
                    options = {"max_new_tokens": 9, "do_sample": False, "attention_mask": mask}
                    want = one.generate(tokens(), **options).tolist()
                    for more in ({}, {"prefill_chunk_size": 5}):
                        got = other.generate(tokens(), past_key_values=latents(one), **options, **more)
                        self.assertEqual(got.tolist(), want)

    def test_matrices_of_heads(self) -> None:
        """A step multiplies no latents by them."""
        other, calls = patched(eager()), []
        for layer in other.model.layers:
            layer.self_attn.kv_b_proj.register_forward_hook(lambda *_: calls.append(1))
        for cache in (tf.DynamicCache(), latents(other)):
            calls.clear()
            in_pieces(other, tokens(length=LENGTH + 9), None, cache)
            self.assertEqual(len(calls), 2, type(cache).__name__)
        # of 128 and 512 channels for each head; many rows take more products
        sizes = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "v_head_dim": 128}
        module = mock.Mock(**sizes)
        absorbs = [_hf_latent._absorbs(module, rows, 8192) for rows in (1, 16, 167, 168, 8192)]
        self.assertEqual(absorbs, [True, True, True, False, False])
        self.assertFalse(_hf_latent._absorbs(module, 1, 1))

    def test_stored_types(self) -> None:
        x, one = tokens(length=LENGTH + 20), eager(dtype=torch.float32)
        other = patched(one)
        want = in_pieces(one, x, None, tf.DynamicCache())
        own = latents(one)
        self.assertEqual(own.nbytes, 0)
        in_pieces(other, x, None, own)
        self.assertGreater(own.nbytes, 2 * 2 * 64 * 96 * 4)  # layers, sequences, tokens, channels, bytes
        for dtype, error, share in (("bfloat16", 3e-2, 0.51), (torch.float16, 4e-3, 0.51), ("q8_0", 6e-2, 0.28)):
            with self.subTest(dtype=dtype):
                cache = latents(one, dtype=dtype)
                got = in_pieces(other, x, None, cache)
                apart = float((got - want).abs().max() / want.abs().max())
                self.assertTrue(0.01 * error < apart < error, apart)
                self.assertLess(cache.nbytes, share * own.nbytes + 4096)
        half = patched(one).to(torch.bfloat16)
        with torch.no_grad():
            made = half.generate(x, past_key_values=latents(one, dtype="q8_0"), max_new_tokens=5)
        self.assertEqual(made.shape[1], x.shape[1] + 5)

    def test_copies(self) -> None:
        other, x = patched(eager(dtype=torch.float32)), tokens(length=LENGTH + 6)
        cache = latents(other)
        first = in_pieces(other, x[:, : LENGTH + 3], None, cache)
        again = copy.deepcopy(cache)
        with torch.no_grad():
            made = [ask(other, x[:, LENGTH + 3 :], None, c) for c in (cache, again)]
        self.assertTrue(torch.equal(*made))
        cache.reset()
        self.assertEqual((cache.get_seq_length(), again.get_seq_length()), (0, LENGTH + 6))
        self.assertTrue(torch.equal(in_pieces(other, x[:, : LENGTH + 3], None, cache), first))

    def test_gradients(self) -> None:
        """Without a cache the model is as it was; steps on caches of transformers have gradients."""
        one = eager()
        other = patched(one)
        self.same(one, other, input_ids=tokens(), use_cache=False)
        x, made = tokens(length=LENGTH + 1), []
        for model in (one, other):
            cache = tf.DynamicCache()
            with torch.no_grad():
                ask(model, x[:, :-1], None, cache)
            made.append(everything(model, None, {"input_ids": x[:, -1:], "past_key_values": cache}))
        for name, want in made[0].items():
            self.assertLess(float((made[1][name] - want).abs().max()), 1e-9 * max(1.0, float(want.abs().max())), name)

    def test_compiled(self) -> None:
        torch._dynamo.reset()
        self.addCleanup(torch._dynamo.reset)
        one = eager(dtype=torch.float32, first_k_dense_replace=2)  # experts are no whole graph
        other = patched(one)
        other.forward = torch.compile(other.forward, fullgraph=True, backend="eager")
        options = {"max_new_tokens": 4, "cache_implementation": "static", "attention_mask": padding("left")}
        with torch.no_grad():
            want, got = (m.generate(tokens(), do_sample=False, **options) for m in (one, other))
        self.assertEqual(want.tolist(), got.tolist())

    def test_other_matrices(self) -> None:
        """Adapters and quantised weights are classes of their own, whose weight is not all that they multiply by."""

        class Doubled(torch.nn.Linear):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return 2 * super().forward(x)

        one = eager(dtype=torch.float32)
        for layer in one.model.layers:
            layer.self_attn.kv_b_proj.__class__ = Doubled
        other = patched(one)
        self.generates(one, other, None)
        with self.assertRaisesRegex(loci.Error, "kv_b_proj as a torch.nn.Linear, not a Doubled"), torch.no_grad():
            ask(other, tokens(), None, latents(one))

    def test_weights_as_an_output(self) -> None:
        one = eager()
        other = patched(one)
        made = []
        for model in (one, other):
            cache = tf.DynamicCache()
            with torch.no_grad(), mock.patch.object(torch.nn.functional, "softmax", softmax):
                model(tokens(), past_key_values=cache)
                made.append(model(tokens()[:, :1], past_key_values=cache, output_attentions=True).attentions)
        for want, got in zip(*made, strict=True):
            self.assertLess(float((want - got).abs().max()), 1e-9)

    def test_refused(self) -> None:
        one = eager(dtype=torch.float32, attention_dropout=0.5)
        other, x, long = patched(one), tokens(), tokens(length=70)
        pairs = torch.ones(2, 1, LENGTH, LENGTH, dtype=torch.bool).tril()
        kept = latents(one)
        with torch.no_grad():
            ask(other, x, padding("left"), kept)
        longer = torch.ones(2, LENGTH + 1, dtype=torch.int64)
        for sentence, call in (
            ("DeepSeek V2 and V3 after loci.hf.patch", lambda: ask(one, x, None, latents(one))),
            ("causal masks and padding on the left", lambda: ask(other, x, padding("right"), latents(one))),
            ("causal masks and padding on the left", lambda: ask(other, x, pairs, latents(one))),
            ("hides other tokens than in the steps before", lambda: ask(other, x[:, :1], longer, kept)),
            ("q has a batch of 1 and the cache of 2", lambda: ask(other, x[:1, :1], None, latents_of(x))),
            ("no beams", lambda: other.generate(x, past_key_values=latents(one), num_beams=2, max_new_tokens=3)),
            ("no way back", lambda: latents_of(x).crop(-1)),
            ("no weights as an output", lambda: ask(other, x, None, latents(one), output_attentions=True)),
            ("call model.eval()", lambda: ask(patched(one).train(), x, None, latents(one))),
            ("the cache's 64", lambda: ask(other, long, None, latents(one))),
            ("k_dtype must be one of", lambda: ask(other, x, None, latents(one, dtype="float64"))),
            ("max_cache_len must be from 1", lambda: latents(one, 0)),
        ):

            def latents_of(x: torch.Tensor) -> Any:
                cache = latents(one)
                ask(other, x, None, cache)
                return cache

            with self.subTest(sentence), self.assertRaisesRegex(loci.Error, sentence), torch.no_grad():
                call()
        with self.assertRaisesRegex(loci.Error, "a cache has no gradient"):
            ask(other, x, None, latents(one))


if __name__ == "__main__":
    unittest.main()
