# SPDX-License-Identifier: MIT
"""loci.hf: tiny models of transformers with random weights, against their own eager attention."""

from __future__ import annotations

import copy
import inspect
import os
import re
import subprocess
import sys
import unittest
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

try:
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    import torch
    import transformers as tf
    from torch.utils._python_dispatch import TorchDispatchMode
    from transformers import masking_utils
except ImportError:
    raise unittest.SkipTest("there is no torch or no transformers") from None

import loci
import loci.hf

VOCABULARY, LENGTH = 48, 12
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
GROUPED = {**SMALL, "num_key_value_heads": 2, "max_position_embeddings": 64}
HEADS_OF_8 = {**GROUPED, "head_dim": 8}
SLIDES = {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}
MOE = {"num_experts_per_tok": 2, "num_local_experts": 4}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
ROPE = {"rope_theta": 10000.0}


def randomise(model: Any, seed: int = 1) -> Any:
    """Weights that make attention look at something: those of a fresh model are too small for it."""
    made = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            noise = torch.randn(p.shape, generator=made, dtype=torch.float64)
            p.copy_(noise * p.shape[-1] ** -0.5 if p.ndim > 1 else p + 0.2 * noise)
    return model.eval()


def llama(**options: Any) -> Any:
    return tf.LlamaForCausalLM(tf.LlamaConfig(**{**GROUPED, **options}))


def llama4() -> Any:
    more = {"attention_chunk_size": 5, "intermediate_size_mlp": 48, "layer_types": None, "no_rope_layers": [1, 0]}
    return tf.Llama4ForCausalLM(tf.Llama4TextConfig(**{**HEADS_OF_8, **MOE, **more}))


def gemma2() -> Any:
    caps = {"attn_logit_softcapping": 3.0, "final_logit_softcapping": None, "query_pre_attn_scalar": 8}
    return tf.Gemma2ForCausalLM(tf.Gemma2Config(**{**HEADS_OF_8, **SLIDES, **caps}))


def qwen2_moe() -> Any:
    """Its mask has a window, its calls of attention do not say so."""
    window = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1, "num_experts": 4}
    sizes = {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
    return tf.Qwen2MoeForCausalLM(tf.Qwen2MoeConfig(**{**GROUPED, **window, **sizes, **SLIDES}))


CAUSAL: dict[str, Callable[[], Any]] = {
    "llama": llama,
    "llama3": lambda: llama(rope_parameters={**ROPE, **LLAMA3, "rope_type": "llama3"}),
    "yarn": lambda: llama(rope_parameters={**ROPE, "rope_type": "yarn", "factor": 4.0}),
    "mistral": lambda: tf.MistralForCausalLM(tf.MistralConfig(**HEADS_OF_8, sliding_window=5)),
    "qwen3": lambda: tf.Qwen3ForCausalLM(tf.Qwen3Config(**HEADS_OF_8)),
    "qwen2_moe": qwen2_moe,
    "gemma2": gemma2,
    "gemma3": lambda: tf.Gemma3ForCausalLM(tf.Gemma3TextConfig(**HEADS_OF_8, **SLIDES, query_pre_attn_scalar=8)),
    "gpt_oss": lambda: tf.GptOssForCausalLM(tf.GptOssConfig(**HEADS_OF_8, **SLIDES, **MOE)),
    "llama4": llama4,
    "gpt_neox": lambda: tf.GPTNeoXForCausalLM(tf.GPTNeoXConfig(**SMALL, max_position_embeddings=64)),
}


def modernbert() -> Any:
    more = {"local_attention": 6, "global_attn_every_n_layers": 2, "max_position_embeddings": 64}
    return tf.ModernBertForMaskedLM(tf.ModernBertConfig(**{**SMALL, **more, "cls_token_id": 1, "sep_token_id": 2}))


def deberta(kind: str, **options: Any) -> Any:
    """max_relative_positions is short, so that rows are shared."""
    base = {"relative_attention": True, "position_biased_input": False, "pos_att_type": ["c2p", "p2c"]}
    base |= {"max_relative_positions": 8, "max_position_embeddings": 64, "hidden_dropout_prob": 0.0}
    config, model = getattr(tf, f"{kind}Config"), getattr(tf, f"{kind}ForMaskedLM")
    return model(config(**{**SMALL, **base, "type_vocab_size": 0, "legacy": False, **options}))


V3 = {"position_buckets": 4, "share_att_key": True, "norm_rel_ebd": "layer_norm", "max_relative_positions": 10}
ENCODERS: dict[str, Callable[[], Any]] = {
    "bert": lambda: tf.BertForMaskedLM(tf.BertConfig(**SMALL, max_position_embeddings=64)),
    "modernbert": modernbert,
    "deberta": lambda: deberta("Deberta"),
    "deberta c2p": lambda: deberta("Deberta", pos_att_type=["c2p"]),
    "deberta_v2": lambda: deberta("DebertaV2"),
    "deberta_v3": lambda: deberta("DebertaV2", **V3),
    "deberta_v2 p2c": lambda: deberta("DebertaV2", pos_att_type=["p2c"], position_buckets=4),
}


def bloom() -> Any:
    return tf.BloomForCausalLM(tf.BloomConfig(**{**SMALL, "n_layer": 2, "n_head": 4}))


def mpt() -> Any:
    sizes = {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 32, "expansion_ratio": 2}
    return tf.MptForCausalLM(tf.MptConfig(vocab_size=VOCABULARY, **sizes))


def falcon(alibi: bool = True, **options: Any) -> Any:
    """Its reference is torch's attention, as its eager way adds the bias twice."""
    config = tf.FalconConfig(**{**SMALL, "alibi": alibi, **options}, attn_implementation="sdpa")
    return tf.FalconForCausalLM(config)


ALIBI: dict[str, Callable[[], Any]] = {
    "bloom": bloom,
    "mpt": mpt,
    "falcon": lambda: falcon(multi_query=False),
    "falcon multi-query": lambda: falcon(parallel_attn=False),
    "falcon rotary": lambda: falcon(False, new_decoder_architecture=True, num_kv_heads=2),
}


def t5(kind: str = "T5", **options: Any) -> Any:
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}
    near = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 10, "num_decoder_layers": 2}
    ids = {"pad_token_id": 0, "eos_token_id": None, "decoder_start_token_id": 0}
    config = getattr(tf, f"{kind}Config")(vocab_size=VOCABULARY, **{**sizes, **near, **ids, **options})
    return getattr(tf, f"{kind}ForConditionalGeneration")(config)


def with_loci(model: Any, patched: bool = True) -> Any:
    """A copy whose attention is loci's."""
    other = copy.deepcopy(model)
    if patched:
        return loci.hf.patch(other)
    other.set_attn_implementation("loci")
    return other


def tokens(rows: int = 2, length: int = LENGTH, seed: int = 2) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


def padding(side: str, rows: int = 2, length: int = LENGTH) -> torch.Tensor:
    mask = torch.ones(rows, length, dtype=torch.int64)
    mask[-1, : length // 3] = 0
    return mask.flip(-1) if side == "right" else mask


def softmax(x: torch.Tensor, dim: int = -1, dtype: Any = None, **_: Any) -> torch.Tensor:
    """In double where the scores are: many models' eager attention goes through float32."""
    return x.softmax(dim, None if x.dtype == torch.float64 else dtype)


def everything(model: Any, keep: torch.Tensor | None, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Logits where they are kept, and gradients of all parameters of a weighted sum of those."""
    model.zero_grad()
    with mock.patch.object(torch.nn.functional, "softmax", softmax):
        out = model(**inputs)
    y = next(out[name] for name in ("logits", "last_hidden_state") if name in out)
    y = y if keep is None else y[keep.bool()]
    (
        y * torch.randn(y.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(y.dtype)
    ).sum().backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"output": y.detach(), **found}


class Largest(TorchDispatchMode):
    """How many numbers the largest tensor has that is made in a block."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.numbers = max(self.numbers, out.untyped_storage().nbytes() // out.element_size())
        return out


class Case(unittest.TestCase):
    def setUp(self) -> None:
        quiet = warnings.catch_warnings()
        quiet.__enter__()
        self.addCleanup(quiet.__exit__, None, None, None)
        warnings.simplefilter("ignore")
        loci.hf.register()
        loci.hf.reset_stats()
        torch.manual_seed(0)

    def same(
        self,
        one: Any,
        other: Any,
        keep: torch.Tensor | None = None,
        fused: bool = True,
        tol: float = 1e-9,
        **inputs: Any,
    ) -> None:
        """The same outputs and gradients, by loci alone."""
        want = everything(one, keep, inputs)
        loci.hf.reset_stats()
        got = everything(other, keep, inputs)
        self.assertEqual(set(want), set(got))
        overall = max(float(x.abs().max()) for name, x in want.items() if name != "output")
        for name, x in want.items():
            scale = max(float(x.abs().max()), 1e-3 * overall)
            self.assertLess(float((got[name] - x).abs().max()) / scale, tol, name)
        stats = loci.hf.stats()
        self.assertGreater(stats["fused"], 0)
        if fused:
            self.assertEqual(stats["fallback"], {})

    def generates(self, one: Any, other: Any, cache: str | None, mask: Any = None, x: Any = None, **more: Any) -> None:
        """The same tokens, greedily."""
        x = tokens() if x is None else x
        options = {
            "max_new_tokens": 9,
            "do_sample": False,
            "attention_mask": mask,
            "cache_implementation": cache,
            **more,
        }
        with torch.no_grad():
            want = one.generate(x, **options)
            loci.hf.reset_stats()
            got = other.generate(x, **options)
        self.assertEqual(want.tolist(), got.tolist())
        self.assertGreater(loci.hf.stats()["fused"], 0)
        self.assertEqual(loci.hf.stats()["fallback"], {})


def eager(make: Callable[[], Any], dtype: Any = torch.float64) -> Any:
    """In double, so that nothing hides in rounding; generate() and MPT want float32, in whose range they mask."""
    model = randomise(make())
    if "Falcon" not in type(model).__name__:
        model.set_attn_implementation("eager")
    if hasattr(model.config, "num_experts_per_tok"):
        model.set_experts_implementation("eager")  # others do not know double
    return model.to(dtype)


class Families(Case):
    def test_decoders(self) -> None:
        """As they are, padded on either side, packed by position_ids."""
        for name, make in CAUSAL.items():
            with self.subTest(name=name):
                one = eager(make)
                other = with_loci(one, False)
                self.same(one, other, input_ids=tokens(), use_cache=False)
                for side in ("left", "right"):
                    mask = padding(side)
                    self.same(one, other, mask, input_ids=tokens(), attention_mask=mask, use_cache=False)
                packed = torch.cat((torch.arange(4), torch.arange(LENGTH - 4)))[None].expand(2, -1)
                self.same(one, other, input_ids=tokens(), position_ids=packed, use_cache=False)

    def test_decoders_generate(self) -> None:
        """Beyond the window and the chunk, with caches that grow and static ones."""
        for name, make in CAUSAL.items():
            with self.subTest(name=name):
                one = eager(make, torch.float32)
                other = with_loci(one, False)
                for cache in (None, "static"):
                    self.generates(one, other, cache)
                    self.generates(one, other, cache, padding("left"))

    def test_encoders(self) -> None:
        for name, make in ENCODERS.items():
            with self.subTest(name=name):
                one = eager(make)
                other = with_loci(one)
                tol = 1e-6 if "deberta" in name else 1e-9  # which divides by a root in float32
                self.same(one, other, tol=tol, input_ids=tokens())
                for side in ("left", "right"):
                    mask = padding(side)
                    self.same(one, other, mask, tol=tol, input_ids=tokens(), attention_mask=mask)

    def test_alibi(self) -> None:
        """Padding, also inside, which BLOOM and Falcon do not count."""
        for name, make in ALIBI.items():
            with self.subTest(name=name):
                single = eager(make, torch.float32)
                one = single if name == "mpt" else eager(make)
                other = with_loci(one)
                tol = 1e-5 if name == "mpt" else 1e-9
                self.same(one, other, tol=tol, input_ids=tokens(), use_cache=False)
                hole = torch.ones(2, LENGTH, dtype=torch.int64)
                hole[1, 4:7] = 0
                for mask in (padding("left"), padding("right"), hole):
                    self.same(one, other, mask, tol=tol, input_ids=tokens(), attention_mask=mask, use_cache=False)
                other = with_loci(single)
                self.generates(single, other, None)
                self.generates(single, other, None, padding("left"))

    def test_static_caches_with_alibi(self) -> None:
        """transformers itself has none for Falcon with alibi."""
        for name in ("bloom", "mpt", "falcon rotary"):
            with self.subTest(name=name):
                one = eager(ALIBI[name], torch.float32)
                other = with_loci(one)
                self.generates(one, other, "static")
                self.generates(one, other, "static", padding("left"))

    def test_t5(self) -> None:
        gated = {"feed_forward_proj": "gated-gelu"}
        for kind, options in (("T5", {}), ("T5", gated), ("MT5", {}), ("UMT5", {}), ("SwitchTransformers", {})):
            with self.subTest(kind=kind):
                one = eager(lambda kind=kind, options=options: t5(kind, **options))
                other = with_loci(one)
                mask = padding("right")
                inputs = {"input_ids": tokens(), "decoder_input_ids": tokens(length=15, seed=5), "use_cache": False}
                self.same(one, other, **inputs)
                self.same(one, other, **inputs, attention_mask=mask)
                for cache in (None, "static"):
                    self.generates(one.float(), other.float(), cache, mask)

    def test_whisper(self) -> None:
        sizes = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4}
        sizes |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "num_mel_bins": 8}
        ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
        lengths = {"max_source_positions": 10, "max_target_positions": 32, "vocab_size": VOCABULARY}
        one = eager(lambda: tf.WhisperForConditionalGeneration(tf.WhisperConfig(**sizes, **ids, **lengths)))
        other = with_loci(one, False)
        sound = torch.randn(2, 8, 20, dtype=torch.float64)
        self.same(one, other, input_features=sound, decoder_input_ids=tokens(), use_cache=False)

    def test_vit(self) -> None:
        sizes = {**SMALL, "image_size": 16, "patch_size": 4}
        one = eager(lambda: tf.ViTModel(tf.ViTConfig(**{x: sizes[x] for x in sizes if "token" not in x})))
        self.same(one, with_loci(one, False), pixel_values=torch.randn(2, 3, 16, 16, dtype=torch.float64))

    def test_order_that_only_the_mask_tells(self) -> None:
        """Calls of attention in these say nothing of order, or the wrong thing."""
        small = {"vocab_size": VOCABULARY, "d_model": 32, "decoder_layers": 2, "decoder_ffn_dim": 48}
        small |= {"decoder_attention_heads": 4, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2}
        for make in (
            lambda: tf.BigBirdPegasusForCausalLM(tf.BigBirdPegasusConfig(**small)),
            lambda: tf.SplinterModel(tf.SplinterConfig(**{**SMALL, "max_position_embeddings": 64})),
        ):
            one = eager(make)
            self.same(one, with_loci(one, False), input_ids=tokens())

    def test_float32_and_bfloat16(self) -> None:
        for dtype, tol in ((torch.float32, 1e-5), (torch.bfloat16, 0.06)):
            for make in (llama, gemma2):
                one = eager(make, dtype)
                self.same(one, with_loci(one, False), input_ids=tokens(), use_cache=False, tol=tol)

    def test_checkpoints(self) -> None:
        for make in (llama, t5):
            one = eager(make)
            other = with_loci(one).train()
            for reentrant in (True, False):
                other.gradient_checkpointing_enable({"use_reentrant": reentrant})
                mask = padding("right")
                inputs: dict[str, Any] = {"input_ids": tokens(), "attention_mask": mask, "use_cache": False}
                if make is t5:
                    inputs["decoder_input_ids"] = tokens()
                self.same(one, other, None if make is t5 else mask, **inputs)

    @unittest.skipUnless(hasattr(tf, "Inkling2TextConfig"), "there is no Inkling 2")
    def test_sinks_that_depend_on_the_row(self) -> None:
        """Inkling 2 computes some of its numbers in float32, whatever the model is."""
        sizes = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "hidden_size": 32}
        sizes |= {f"swa_{name}": sizes[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim")}
        more = {"sliding_window_size": 5, "rel_extent": 6, "d_rel": 4, "moe_intermediate_size": 16}
        more |= {"n_routed_experts": 4, "num_experts_per_tok": 2, "layer_types": ["hybrid_sliding", "hybrid"]}
        words = {"vocab_size": VOCABULARY, "unpadded_vocab_size": VOCABULARY, "eos_token_id": 2, "num_hidden_layers": 2}
        one = eager(lambda: tf.Inkling2ForCausalLM(tf.Inkling2TextConfig(**sizes, **more, **words)), torch.float32)
        other = with_loci(one, False)
        for side in ("left", "right"):
            mask = padding(side)
            self.same(one, other, mask, tol=1e-3, input_ids=tokens(), attention_mask=mask, use_cache=False)


class Masks(Case):
    def test_prefill_in_parts(self) -> None:
        """Rows that are the last of more keys, in caches of both kinds."""
        for make in (llama, CAUSAL["gemma3"], llama4, bloom):
            one = eager(make, torch.float32)
            other = with_loci(one)
            x, mask = tokens(), padding("left")
            for static in (False, True)[: 1 if make is bloom else 2]:  # BLOOM's own way has no such static masks
                found = []
                for model in (one, other):
                    config = model.config
                    cache = tf.StaticCache(config, max_cache_len=20) if static else tf.DynamicCache(config=config)
                    with torch.no_grad():
                        parts = [
                            model(x[:, i:j], attention_mask=mask[:, :j], past_key_values=cache).logits
                            for i, j in ((0, 7), (7, 11), (11, 12))
                        ]
                    found.append(torch.cat(parts, 1)[mask.bool()])
                self.assertLess(float((found[0] - found[1]).abs().max()), 1e-5, type(one).__name__)
            self.assertEqual(loci.hf.stats()["fallback"], {})

    def test_what_is_made(self) -> None:
        """None for order alone, int64 of four dimensions else, truths where a function is not known."""
        config = llama().config
        config._attn_implementation = "loci"
        x = torch.empty(2, LENGTH, 0)

        def made(**more: Any) -> Any:
            given = {"attention_mask": None, "past_key_values": None, **more}
            return masking_utils.create_causal_mask(config, x, **given)

        self.assertIsNone(made())
        self.assertIsNone(made(attention_mask=torch.ones(2, LENGTH)))
        mask = made(attention_mask=padding("left"))
        self.assertEqual((mask.dtype, mask.shape), (torch.int64, (2, 1, 1, 2 * LENGTH)))
        cache = tf.StaticCache(config, max_cache_len=20)
        static = made(past_key_values=cache)
        self.assertEqual((type(static), static.shape), (torch.Tensor, (2, 1, 1, 2 * 20 + 4 * LENGTH)))
        dense = made(or_mask_function=lambda b, h, q, k: q - k == -1)
        self.assertEqual((dense.dtype, dense.shape), (torch.bool, (2, 1, LENGTH, LENGTH)))
        self.assertEqual(made(attention_mask=dense).dtype, torch.bool)
        with self.assertRaisesRegex(loci.Error, "computes with its attention mask"):
            mask + 1

    def test_not_understood(self) -> None:
        """A function of the user's, blocks and masks of pairs are read pair by pair."""
        one = eager(llama)
        other = with_loci(one, False)
        seen = torch.rand(2, 1, LENGTH, LENGTH) < 0.6
        seen |= torch.eye(LENGTH, dtype=torch.bool)
        dense = torch.zeros(seen.shape, dtype=torch.float64).masked_fill(~seen, torch.finfo(torch.float64).min)
        want = one(tokens(), attention_mask=dense).logits
        for mask in (dense, seen):
            loci.hf.reset_stats()
            got = other(tokens(), attention_mask=mask).logits
            self.assertLess(float((got - want).detach().abs().max()), 1e-6)
            self.assertEqual(loci.hf.stats(), {"fused": 2, "fallback": {}})
        with self.assertRaisesRegex(loci.Error, "no mask of pairs"):
            other(tokens(), attention_mask=seen.long())

    def test_windows_as_long_as_the_text(self) -> None:
        for make in (CAUSAL["mistral"], CAUSAL["gemma3"], qwen2_moe, modernbert):
            one = eager(make)
            other = with_loci(one, False)
            for length in (3, 4, 5, 6, 7):
                self.same(one, other, input_ids=tokens(length=length))

    def test_a_model_that_computes_with_its_mask(self) -> None:
        """Doge says so beforehand, and gets one of pairs."""
        experts = {"is_moe": False, "keep_window_size": 64}
        one = eager(lambda: tf.DogeForCausalLM(tf.DogeConfig(**{**GROUPED, **experts})), torch.float32)
        other = with_loci(one, False)
        for mask in (None, padding("left")):
            keep = slice(None) if mask is None else mask.bool()
            with torch.no_grad():
                want, got = (m(tokens(), attention_mask=mask).logits[keep] for m in (one, other))
            self.assertLess(float((want - got).abs().max()), 1e-5)
        self.assertEqual(loci.hf.stats(), {"fused": 4, "fallback": {}})

    def test_packed_by_starts(self) -> None:
        """What flash attention is told by collators, honoured with and without a mask."""
        one = eager(llama)
        other = with_loci(one, False)
        at = torch.cat((torch.arange(5), torch.arange(LENGTH - 5)))[None]
        want = one(tokens(1), position_ids=at, use_cache=False).logits
        starts = torch.tensor([0, 5, LENGTH], dtype=torch.int32)
        full = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()[None, None]
        for mask in (None, torch.ones(1, LENGTH, dtype=torch.int64), full):
            more = {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts, "attention_mask": mask}
            got = other(tokens(1), position_ids=at, use_cache=False, **more).logits
            self.assertLess(float((got - want).detach().abs().max()), 1e-6)

    def test_positions_that_do_not_follow(self) -> None:
        """Remapped positions mean more than segments when they jump within one."""
        causal, at = masking_utils.causal_mask_function, torch.tensor([[0, 1, 3, 2]])
        one = masking_utils.and_masks(
            masking_utils.remap_positions_for_packed_sequence(causal, at),
            masking_utils.packed_sequence_mask_function(torch.zeros(1, 4, dtype=torch.int64)),
        )
        config = llama().config
        given = {"batch_size": 1, "q_length": 4, "kv_length": 4, "mask_function": one, "config": config}
        mask = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS["loci"](**given)
        self.assertEqual(mask.dtype, torch.bool)
        self.assertTrue(bool(mask[0, 0, 3, 1]) and not bool(mask[0, 0, 3, 2]))


def git() -> Any:
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    vision |= {"image_size": 16, "patch_size": 8}
    return tf.GitForCausalLM(tf.GitConfig(**{**SMALL, "max_position_embeddings": 64}, vision_config=vision))


def paligemma() -> Any:
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    vision |= {"image_size": 16, "patch_size": 8, "model_type": "siglip_vision_model"}
    text = {"model_type": "gemma", **HEADS_OF_8}
    config = tf.PaliGemmaConfig(text_config=text, vision_config=vision, image_token_index=1, projection_dim=32)
    return tf.PaliGemmaForConditionalGeneration(config)


EXPERTS = {"moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
LATENT = {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8}
ALL_HEADS = {**GROUPED, "num_key_value_heads": 4}


def deepseek_v4() -> Any:
    """Its compressed keys come behind those that its mask is for."""
    sizes = {"moe_intermediate_size": 16, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2}
    sizes |= {"q_lora_rank": 16, "o_groups": 2, "o_lora_rank": 8, "head_dim": 16, "hc_mult": 2, "sliding_window": 6}
    sizes |= {"index_topk": 4, "index_n_heads": 2, "index_head_dim": 16, "num_key_value_heads": 1}
    return tf.DeepseekV4ForCausalLM(tf.DeepseekV4Config(**{**GROUPED, **sizes}))


def glm_dsa() -> Any:
    index = {"index_topk": 4, "index_n_heads": 2, "index_head_dim": 8}
    return tf.GlmMoeDsaForCausalLM(tf.GlmMoeDsaConfig(**{**ALL_HEADS, **EXPERTS, **LATENT, **index}))


def sarvam_mla() -> Any:
    config = tf.SarvamMLAConfig(**{**ALL_HEADS, **EXPERTS, **LATENT, "first_k_dense_replace": 1})
    return tf.DeepseekV3ForCausalLM(config)


def sarvam_moe() -> Any:
    return tf.Glm4MoeForCausalLM(tf.SarvamMoEConfig(**{**HEADS_OF_8, **EXPERTS, "first_k_dense_replace": 1}))


# Names of models that not every version of transformers has.
FOREIGN: dict[str, Callable[[], Any]] = {
    "ExaoneConfig": lambda: tf.LlamaForCausalLM(tf.ExaoneConfig(**GROUPED)),
    "InternLM3Config": lambda: tf.LlamaForCausalLM(tf.InternLM3Config(**GROUPED)),
    "IQuestCoderConfig": lambda: tf.LlamaForCausalLM(tf.IQuestCoderConfig(**GROUPED)),
    "SarvamMLAConfig": sarvam_mla,
    "SarvamMoEConfig": sarvam_moe,
}
OWN_CODE: dict[str, Callable[[], Any]] = {
    "roformer": lambda: tf.RoFormerForMaskedLM(
        tf.RoFormerConfig(**{**SMALL, "max_position_embeddings": 64, "embedding_size": 32})
    ),
    "xlnet": lambda: tf.XLNetModel(tf.XLNetConfig(vocab_size=VOCABULARY, d_model=32, n_layer=2, n_head=4, d_inner=48)),
    "mpnet": lambda: tf.MPNetModel(tf.MPNetConfig(**{**SMALL, "max_position_embeddings": 64})),
}


class Kinds(Case):
    """Models that do something else with attention and its masks than to pass them on."""

    def close(self, make: Callable[[], Any], **inputs: Any) -> dict[str, Any]:
        """The outputs of eager attention; returns the counts."""
        one = eager(make, torch.float32)
        other = with_loci(one, False)
        loci.hf.reset_stats()
        with torch.no_grad():
            want, got = (next(iter(m(**inputs).values())) for m in (one, other))
        self.assertLess(float((want - got).abs().max()), 1e-4)
        return loci.hf.stats()

    def test_attention_beside_the_interface(self) -> None:
        """GIT's text attention adds its mask itself, its vision asks for 'loci'."""
        pixels = torch.randn(2, 3, 16, 16)
        counts = self.close(git, input_ids=tokens())
        self.assertEqual((counts["fused"], set(counts["fallback"])), (0, {"own_code"}))
        counts = self.close(git, input_ids=tokens(), pixel_values=pixels, attention_mask=padding("left"))
        self.assertEqual((counts["fused"], set(counts["fallback"])), (1, {"own_code"}))
        one = with_loci(eager(git, torch.float32), False)
        loci.hf.register(fallback="error")
        with self.assertRaisesRegex(loci.Error, "GitSelfAttention computes attention in transformers' own code"):
            one(tokens())

    @unittest.skipUnless(hasattr(tf, "DeepseekV4Config"), "there is no DeepSeek V4")
    def test_keys_behind_the_mask(self) -> None:
        for more in ({}, {"attention_mask": padding("left")}):
            self.assertEqual(self.close(deepseek_v4, input_ids=tokens(), use_cache=False, **more)["fallback"], {})
        mask = loci.hf.masks.build(
            loci.hf.masks.Wanted(1, 4, 4, 0, 0, None),
            masking_utils.causal_mask_function,
            loci.hf.masks.Treatment(never_none=True),
            skip=True,
            ahead=False,
            tells_order=True,
        )
        with self.assertRaisesRegex(loci.Error, "another length than that of 6 keys and 4 rows"):
            loci.hf.sight(mask, 4, 6, True)

    @unittest.skipUnless(hasattr(tf, "GlmMoeDsaConfig"), "there is no GLM-MoE-DSA")
    def test_keys_that_are_chosen(self) -> None:
        with self.assertRaisesRegex(loci.Error, "chooses its keys by indices"):
            with_loci(eager(glm_dsa, torch.float32), False)(tokens())

    def test_keywords_of_calls(self) -> None:
        """What models tell an attention beside tensors is known, or known to say nothing."""
        known = set(inspect.signature(loci.hf._attention).parameters) | set(loci.hf._CHOICES)
        nothing = {"max_length_q", "max_length_k", "position_ids", "deterministic"}
        found: dict[str, str] = {}
        for path in Path(tf.__file__).parent.glob("models/*/modeling_*.py"):
            text = path.read_text(encoding="utf-8")
            for call in re.finditer(r"^( *)\S[^\n]*attention_interface\(\n(.*?)^\1\)", text, re.MULTILINE | re.DOTALL):
                found |= dict.fromkeys(re.findall(r"^ +(\w+)=", call[2], re.MULTILINE), path.name)
        self.assertGreater(len(found), 8)
        self.assertEqual({name: at for name, at in found.items() if name not in known | nothing}, {})

    def test_order_that_the_config_changes(self) -> None:
        """PaliGemma's calls say that there is no order, its mask says that there is."""
        self.assertEqual(self.close(paligemma, input_ids=tokens()), {"fused": 2, "fallback": {}})
        one = eager(llama, torch.float32)
        one.config.is_causal = False
        other = with_loci(one, False)
        with torch.no_grad():
            want, got = (m(tokens(), use_cache=False).logits for m in (one, other))
        self.assertLess(float((want - got).abs().max()), 1e-4)

    def test_configs_of_other_models(self) -> None:
        for name, make in FOREIGN.items():
            if hasattr(tf, name):
                with self.subTest(name=name):
                    counts = self.close(make, input_ids=tokens())
                    self.assertEqual((counts["fused"], counts["fallback"]), (2, {}))

    def test_gptj_and_codegen(self) -> None:
        sizes = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 4}
        for name in ("GPTJ", "CodeGen"):
            config, model = getattr(tf, f"{name}Config"), getattr(tf, f"{name}ForCausalLM")
            counts = self.close(lambda c=config, m=model: m(c(**sizes)), input_ids=tokens())
            self.assertEqual(counts, {"fused": 2, "fallback": {}})

    def test_own_code(self) -> None:
        """One warning for a model class, whichever way it is asked, and the result of eager attention."""
        for name, make in OWN_CODE.items():
            with self.subTest(name=name):
                one = eager(make, torch.float32)
                for how in ("created", "set"):
                    loci.hf.reset_stats()
                    with warnings.catch_warnings(record=True) as caught:
                        warnings.simplefilter("always")
                        if how == "created":
                            other = type(one)._from_config(copy.deepcopy(one.config), attn_implementation="loci")
                            other.load_state_dict(one.state_dict())
                        else:
                            other = with_loci(one, False)
                        with torch.no_grad():
                            want, got = (next(iter(m.eval()(tokens()).values())) for m in (one, other))
                    told = [str(w.message) for w in caught if w.category is loci.hf.FallbackWarning]
                    self.assertEqual(len(told), 1, told)
                    self.assertRegex(told[0], "attention in transformers' own code .* it stays eager")
                    self.assertTrue(torch.equal(want, got))
                    self.assertEqual(set(loci.hf.stats()["fallback"]), {"own_code"})
                loci.hf.register(fallback="error")
                with self.assertRaisesRegex(loci.Error, "attention in transformers' own code"):
                    with_loci(one, False)
                loci.hf.register()

    def test_unpatched(self) -> None:
        """DeBERTa asks for no mask, so nothing but the call of the model tells that it is not patched."""
        config = deberta("DebertaV2").config
        model = tf.DebertaV2ForMaskedLM._from_config(config, attn_implementation="loci").eval()
        with self.assertRaisesRegex(loci.Error, "call loci.hf.patch"):
            model(tokens())
        loci.hf.patch(model)(tokens())


COMPILED: dict[str, Callable[[], Any]] = {
    "llama": lambda: llama(num_hidden_layers=1),
    "gemma2": gemma2,
    "t5": lambda: t5(num_layers=1, num_decoder_layers=1),
    "bert": lambda: tf.BertForMaskedLM(tf.BertConfig(**{**SMALL, "num_hidden_layers": 1})),
}


class Compiled(Case):
    """Whole graphs: nothing of a mask is left out of them."""

    def setUp(self) -> None:
        super().setUp()
        torch._dynamo.reset()
        self.addCleanup(torch._dynamo.reset)

    def both(self, name: str) -> tuple[Any, Any]:
        one = eager(COMPILED[name], torch.float32)
        return one, with_loci(one, name == "t5")

    def inputs(self, name: str, length: int, mask: torch.Tensor | None) -> dict[str, Any]:
        x = tokens(length=length)
        found: dict[str, Any] = {"input_ids": x}
        found |= {"decoder_input_ids": x} if name == "t5" else {}
        found |= {"use_cache": False} if name != "bert" else {}
        return found if mask is None else {**found, "attention_mask": mask[:, :length]}

    def test_training(self) -> None:
        for name in COMPILED:
            with self.subTest(name=name):
                one, other = self.both(name)
                dynamic, backend = (True, "eager") if name == "gemma2" else (None, "aot_eager")
                compiled = torch.compile(other, fullgraph=True, dynamic=dynamic, backend=backend)
                mask = padding("right") if name == "t5" else padding("left")
                for given in (None, mask) if name == "llama" else (mask,):
                    inputs = self.inputs(name, LENGTH, given)
                    keep = None if name == "t5" or given is None else given
                    want, got = everything(one, keep, inputs), everything(compiled, keep, inputs)
                    self.assertLess(float((want["output"] - got["output"]).abs().max()), 1e-4)
                    for weight, x in want.items():
                        if weight != "output":
                            y = got[f"_orig_mod.{weight}"]
                            self.assertLess(float((x - y).abs().max()), 1e-4 * max(1.0, float(x.abs().max())), weight)

    def test_generation(self) -> None:
        """Masks are made outside of the graph, for prefill and for each token."""
        for name in ("llama", "gemma2", "t5"):
            with self.subTest(name=name):
                one, other = self.both(name)
                other.forward = torch.compile(other.forward, fullgraph=True, backend="eager")
                mask = padding("right") if name == "t5" else padding("left")
                options = {"max_new_tokens": 4, "do_sample": False, "cache_implementation": "static"}
                with torch.no_grad():
                    want, got = (m.generate(tokens(), attention_mask=mask, **options) for m in (one, other))
                self.assertEqual(want.tolist(), got.tolist())

    def test_export(self) -> None:
        for name in COMPILED:
            with self.subTest(name=name):
                one, other = self.both(name)
                mask = padding("right") if name == "t5" else padding("left")
                inputs = self.inputs(name, LENGTH, mask)
                length = torch.export.Dim("length", min=4, max=60)
                shapes = {key: {1: length} if isinstance(x, torch.Tensor) else None for key, x in inputs.items()}
                program = torch.export.export(other, (), inputs, dynamic_shapes=shapes, strict=False)
                inputs = self.inputs(name, 9, mask)
                with torch.no_grad():
                    want, got = (m(**inputs).logits for m in (one, program.module()))
                keep = slice(None) if name == "t5" else mask[:, :9].bool()
                self.assertLess(float((want - got)[keep].abs().max()), 1e-4)

    def test_traced_masks(self) -> None:
        """They see what transformers' dense masks see, and what is no range is refused."""
        masks, mu = loci.hf.masks, masking_utils
        packed = torch.tensor([[0, 0, 0, 1, 1, 2], [0, 1, 1, 1, 1, 1]])
        at = torch.tensor([[0, 1, 2, 0, 1, 0], [0, 0, 1, 2, 3, 4]])
        blocks = torch.tensor([[-1, 0, 0, -1, -1, -1], [0, 0, -1, 1, 1, 1]])
        functions = {
            "causal": mu.causal_mask_function,
            "all": mu.bidirectional_mask_function,
            "window": mu.sliding_window_causal_mask_function(3),
            "around": mu.sliding_window_bidirectional_mask_function(1),
            "chunks": mu.chunked_causal_mask_function(2, torch.tensor([0, 1])),
            "packed": mu.and_masks(
                mu.remap_positions_for_packed_sequence(mu.sliding_window_causal_mask_function(2), at),
                mu.packed_sequence_mask_function(packed),
            ),
            "blocks": mu.or_masks(mu.causal_mask_function, mu.blockwise_overlay(blocks)),
        }
        for name, function in functions.items():
            for shape in ((6, 6, 0), (2, 6, 4), (1, 6, torch.tensor(3))):
                with self.subTest(name=name, shape=shape):
                    rows, keys, first = shape
                    tokens_ = torch.tensor([[0, 1, 1, 1, 1, 1], [1, 1, 0, 1, 1, 1]]).bool()
                    got = masks.traced(2, rows, keys, first, 0, tokens_, function, False)
                    pairs = masks.unpack(got, rows, keys).pairs(rows, keys)
                    want = mu.sdpa_mask(2, rows, keys, first, 0, function, tokens_, allow_is_causal_skip=False)
                    self.assertTrue(torch.equal(pairs.expand_as(want), want))
        apart = mu.or_masks(mu.causal_mask_function, mu.blockwise_overlay(torch.tensor([[0, -1, 0]])))
        with self.assertRaisesRegex(RuntimeError, "no range"):
            masks.traced(1, 3, 3, 0, 0, None, apart, False)


class Fallbacks(Case):
    def test_guard(self) -> None:
        for make in (bloom, mpt):
            model = randomise(make())
            model.config._attn_implementation = "loci"
            with self.assertRaisesRegex(loci.Error, r"computes attention in its own code; call loci.hf.patch"):
                model(tokens())
            loci.hf.patch(model)(tokens())
            self.assertEqual(loci.hf.stats()["fallback"], {})
        xglm = tf.XGLMModel(
            tf.XGLMConfig(vocab_size=VOCABULARY, d_model=32, ffn_dim=32, num_layers=1, attention_heads=2)
        )
        with self.assertRaisesRegex(loci.Error, "loci.hf.patch does not know"):
            loci.hf.patch(xglm)

    def test_patching(self) -> None:
        """Twice does no harm, and another implementation is still that one."""
        for make in (bloom, t5, lambda: deberta("DebertaV2"), lambda: falcon(multi_query=False)):
            one = eager(make)
            other = loci.hf.patch(with_loci(one))
            inputs = {"input_ids": tokens(), **({"decoder_input_ids": tokens()} if make is t5 else {})}
            with torch.no_grad():
                want = one(**inputs).logits
                self.assertLess(float((other(**inputs).logits - want).abs().max()), 1e-5)
                if make is t5:
                    other.set_attn_implementation("eager")
                other.config._attn_implementation = one.config._attn_implementation
                loci.hf.reset_stats()
                self.assertTrue(torch.equal(other(**inputs).logits, want), type(one).__name__)
            self.assertEqual(loci.hf.stats()["fused"], 0)

    def test_copies(self) -> None:
        """Who is patched is known by identity: a copy of a model that computes itself has to be patched again."""
        for make in (bloom, t5):
            other = with_loci(eager(make))
            again = copy.deepcopy(other)
            inputs = {"input_ids": tokens(), **({"decoder_input_ids": tokens()} if make is t5 else {})}
            if make is bloom:
                with self.assertRaisesRegex(loci.Error, "loci.hf.patch"):
                    again(**inputs)
                loci.hf.patch(again)
            again.load_state_dict(other.state_dict())
            with torch.no_grad():
                self.assertTrue(torch.equal(again(**inputs).logits, other(**inputs).logits))

    def test_without_transformers(self) -> None:
        code = "import sys; sys.modules['transformers'] = None; import loci; loci.hf"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        self.assertRegex(done.stderr, "ImportError: loci.hf needs transformers 5: pip install")

    def test_warns_once(self) -> None:
        other = with_loci(eager(llama), False)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            other(tokens(), output_attentions=True)
            other(tokens(), output_attentions=True)
        told = [str(w.message) for w in caught if w.category is loci.hf.FallbackWarning]
        self.assertEqual(len(told), 1, told)
        self.assertIn("weights of attention", told[0])
        self.assertEqual(loci.hf.stats(), {"fused": 0, "fallback": {"output_attentions": 4}})

    def test_error_mode(self) -> None:
        model = with_loci(eager(llama), False)
        loci.hf.register(fallback="error")
        model(tokens())
        with self.assertRaisesRegex(loci.Error, "weights of attention"):
            model(tokens(), output_attentions=True)
        with self.assertRaisesRegex(loci.Error, "'torch' or 'error'"):
            loci.hf.register(fallback="sdpa")

    def test_dropout(self) -> None:
        """In training weights are dropped by loci: those of a seed, about as many as asked for, none in eval()."""
        for make in (lambda: llama(attention_dropout=0.3), lambda: t5(dropout_rate=0.3), lambda: deberta_dropping()):
            one = eager(make)
            other = with_loci(one)
            inputs = {"input_ids": tokens(), "attention_mask": padding("right")}
            if "T5" in type(one).__name__:
                inputs["decoder_input_ids"] = tokens()
            keep = padding("right").bool() if "T5" not in type(one).__name__ else slice(None)
            with torch.no_grad():
                want, got = (model.eval()(**inputs).logits[keep] for model in (one, other))
                self.assertLess(float((want - got).abs().max()), 1e-5)
            found = []
            for seed in (7, 7, 8):
                torch.manual_seed(seed)
                other.train().zero_grad()
                logits = other(**inputs).logits[keep]
                logits.square().sum().backward()
                found.append((logits.detach(), [p.grad.clone() for p in other.parameters() if p.grad is not None]))
            self.assertTrue(torch.equal(found[0][0], found[1][0]))
            self.assertTrue(all(torch.equal(x, y) for x, y in zip(found[0][1], found[1][1], strict=True)))
            self.assertGreater(float((found[0][0] - found[2][0]).abs().max()), 1e-4)
            self.assertEqual(loci.hf.stats()["fallback"], {})
            self.assertGreater(loci.hf.stats()["fused"], 0)

    def test_dropout_replayed(self) -> None:
        """Gradient checkpointing computes attention again, and drops the same weights."""
        model = with_loci(eager(lambda: llama(attention_dropout=0.4)), False).train()
        found = []
        for checkpointed in (False, True):
            if checkpointed:
                model.gradient_checkpointing_enable({"use_reentrant": False})
            torch.manual_seed(3)
            model.zero_grad()
            model(tokens(), use_cache=False).logits.square().sum().backward()
            found.append([p.grad.clone() for p in model.parameters()])
        self.assertTrue(all(torch.equal(x, y) for x, y in zip(*found, strict=True)))

    def test_output_attentions(self) -> None:
        for make in (llama, bloom, t5, gemma2, CAUSAL["gpt_oss"], lambda: deberta("DebertaV2")):
            one = eager(make)
            other = with_loci(one)
            inputs = {"input_ids": tokens(), **({"decoder_input_ids": tokens()} if make is t5 else {})}
            with torch.no_grad():
                want, got = (model(**inputs, output_attentions=True) for model in (one, other))
            name = "decoder_attentions" if make is t5 else "attentions"
            for x, y in zip(want[name], got[name], strict=True):
                self.assertLess(float((x - y).abs().max()), 1e-6)
            self.assertLess(float((want.logits - got.logits).abs().max()), 1e-5)

    def test_unpatched_t5(self) -> None:
        one = eager(t5)
        other = with_loci(one, False)
        inputs = {"input_ids": tokens(), "decoder_input_ids": tokens(), "attention_mask": padding("right")}
        with torch.no_grad():
            self.assertLess(float((one(**inputs).logits - other(**inputs).logits).abs().max()), 1e-6)
        self.assertEqual(loci.hf.stats(), {"fused": 6, "fallback": {}})

    def test_refused(self) -> None:
        model = with_loci(eager(llama), False)
        q = torch.zeros(1, 4, 3, 8)
        with self.assertRaisesRegex(loci.Error, "paged"):
            loci.hf._attention(model, q, q, q, None, cache=object())
        with self.assertRaisesRegex(loci.Error, "talking heads"):
            made = deberta("Deberta")
            made.deberta.encoder.layer[0].attention.self.talking_head = True
            loci.hf.patch(made)
        with self.assertRaises(TypeError):
            loci.hf.patch(torch.nn.Linear(2, 2))

    def test_compiles(self) -> None:
        one = eager(llama, torch.float32)
        other = torch.compile(with_loci(one, False), backend="eager")
        for mask in (None, padding("left")):
            keep = slice(None) if mask is None else mask.bool()
            with torch.no_grad():
                want, got = (m(tokens(), attention_mask=mask, use_cache=False).logits for m in (one, other))
            self.assertLess(float((want - got)[keep].abs().max()), 1e-5)


def deberta_dropping() -> Any:
    return deberta("DebertaV2", attention_probs_dropout_prob=0.3)


if __name__ == "__main__":
    unittest.main()
