# SPDX-License-Identifier: MIT
"""loci.hf.patch() on encoders with relative positions, most of them of speech: small models with random weights,
against their own eager attention."""

from __future__ import annotations

import copy
import importlib
import unittest
import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

try:
    import torch
    import transformers as tf
except ImportError:
    raise unittest.SkipTest("there is no torch or no transformers") from None

import loci
import loci.hf
from loci import _hf_speech as speech
from tests.test_hf import Case, Largest, everything, randomise, softmax

FRAMES = 13  # after subsampling
# The models compute angles in float32, loci in double: this is what is left of it in double.
ANGLES = 1e-5


def kind(family: str, name: str) -> Any:
    """A class of transformers, which need not be among its top names, or none."""
    try:
        return getattr(importlib.import_module(f"transformers.models.{family}.modeling_{family}"), name, None)
    except ImportError:
        return None


def parakeet(**options: Any) -> Any:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    sizes |= {"subsampling_conv_channels": 8, "num_mel_bins": 16, "layerdrop": 0.0, "attention_dropout": 0.0}
    quiet = {"dropout": 0.0, "activation_dropout": 0.0}
    return tf.ParakeetEncoder(tf.ParakeetEncoderConfig(**{**sizes, **quiet, **options}))


def nemotron(**options: Any) -> Any:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    sizes |= {"subsampling_conv_channels": 8, "num_mel_bins": 16, "layerdrop": 0.0, "attention_dropout": 0.0}
    near = {"sliding_window": 5, "default_num_lookahead_tokens": 1, "dropout": 0.0, "activation_dropout": 0.0}
    make = kind("nemotron_asr_streaming", "NemotronAsrStreamingEncoder")
    return make(make.config_class(**{**sizes, **near, **options}))


WAV2VEC2 = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
WAV2VEC2 |= {"conv_depthwise_kernel_size": 3, "layerdrop": 0.0, "max_source_positions": 40}
WAV2VEC2 |= dict.fromkeys(("hidden_dropout", "activation_dropout", "attention_dropout", "conformer_conv_dropout"), 0.0)


def conformer(**options: Any) -> Any:
    convolutions = {"conv_dim": (8,), "conv_stride": (5,), "conv_kernel": (10,), "num_conv_pos_embeddings": 4}
    more = {"num_conv_pos_embedding_groups": 2, "apply_spec_augment": False}
    return tf.Wav2Vec2ConformerModel(tf.Wav2Vec2ConformerConfig(**{**WAV2VEC2, **convolutions, **more, **options}))


def bert(positions: str, **options: Any) -> Any:
    near = {"left_max_position_embeddings": 4, "right_max_position_embeddings": 2, "apply_spec_augment": False}
    more = {"feature_projection_input_dim": 16, "position_embeddings_type": positions}
    return tf.Wav2Vec2BertModel(tf.Wav2Vec2BertConfig(**{**WAV2VEC2, **near, **more, **options}))


def seamless(version: str = "", **options: Any) -> Any:
    sizes = {"hidden_size": 32, "speech_encoder_layers": 2, "speech_encoder_attention_heads": 4, "adaptor_dropout": 0.0}
    sizes |= {"speech_encoder_intermediate_size": 48, "feature_projection_input_dim": 16, "adaptor_kernel_size": 2}
    sizes |= {
        "adaptor_stride": 2,
        "speech_encoder_layerdrop": 0.0,
        "conv_depthwise_kernel_size": 3,
        "add_adapter": False,
    }
    near = {"left_max_position_embeddings": 4, "right_max_position_embeddings": 2, "max_source_positions": 40}
    make = kind(f"seamless_m4t{version}", f"SeamlessM4T{version.lstrip('_')}SpeechEncoder")
    return make(make.config_class(**{**sizes, **near, **options}))


def fastspeech2(**options: Any) -> Any:
    """Its encoder alone: what follows depends on durations."""
    make = kind("fastspeech2_conformer", "FastSpeech2ConformerModel")
    small = {"hidden_size": 32, "vocab_size": 20, "num_mel_bins": 8, "encoder_layers": 2, "decoder_layers": 1}
    small |= {"encoder_num_attention_heads": 4, "decoder_num_attention_heads": 4, "encoder_linear_units": 48}
    small |= {"decoder_linear_units": 48, "encoder_kernel_size": 3, "decoder_kernel_size": 3}
    small |= {"speech_decoder_postnet_units": 8, "speech_decoder_postnet_layers": 2, "duration_predictor_channels": 8}
    small |= {"energy_predictor_channels": 8, "pitch_predictor_channels": 8}
    quiet = dict.fromkeys((f"encoder_{x}dropout_rate" for x in ("", "positional_", "attention_")), 0.0)
    return make(make.config_class(**{**small, **quiet, **options}))


GEMMA = {"hidden_size": 32}


def gemma3n(**options: Any) -> Any:
    make = kind("gemma3n", "Gemma3nAudioEncoder")
    sizes = {"hidden_size": 32, "input_feat_size": 16, "conf_num_hidden_layers": 2, "conf_num_attention_heads": 4}
    sizes |= {"conf_attention_chunk_size": 3, "conf_attention_context_left": 5, "conf_attention_context_right": 0}
    sizes |= {"conf_attention_logit_cap": 2.0, "conf_conv_kernel_size": 3, "conf_reduction_factor": 1}
    sizes |= {"sscp_conv_channel_size": (4, 4)}
    return make(make.config_class(**{**sizes, **options}))


def gemma4(**options: Any) -> Any:
    make = kind("gemma4", "Gemma4AudioModel")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "subsampling_conv_channels": (16, 4)}
    near = {"attention_chunk_size": 4, "attention_context_left": 5, "attention_context_right": 0}
    more = {"attention_logit_cap": 2.0, "output_proj_dims": 24, "conv_kernel_size": 3}
    return make(make.config_class(**{**sizes, **near, **more, **options}))


def sound(length: int, bins: int = 16, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(2, length, bins, generator=torch.Generator().manual_seed(5), dtype=dtype)


def kept(length: int, keep: int) -> torch.Tensor:
    """A mask that leaves the second entry of a batch this long."""
    mask = torch.ones(2, length, dtype=torch.int64)
    mask[1, keep:] = 0
    return mask


SHORT = {"input_features": sound(FRAMES)}, {"attention_mask": kept(FRAMES, 8)}, kept(FRAMES, 8)
LONG = {"input_features": sound(100)}, {"attention_mask": kept(100, 60)}, kept(13, 8)
Inputs = tuple[dict[str, Any], dict[str, Any], torch.Tensor]

# model, and its inputs without padding, those that say it, and what is left of the output
ENCODERS: dict[str, tuple[Callable[[], Any], Inputs]] = {
    "parakeet": (parakeet, LONG),
    "parakeet, fewer heads of keys": (lambda: parakeet(num_key_value_heads=2), LONG),
    "wav2vec2 conformer": (
        conformer,
        ({"input_values": sound(90)[..., 0]}, {"attention_mask": kept(90, 50)}, kept(17, 9)),
    ),
    "wav2vec2-bert, waves": (lambda: bert("relative"), SHORT),
    "wav2vec2-bert, clipped": (lambda: bert("relative_key"), SHORT),
    "wav2vec2-bert, rotary": (lambda: bert("rotary"), SHORT),
    "seamless": (seamless, SHORT),
    "gemma 3n": (
        gemma3n,
        (
            {"audio_mel": sound(100), "audio_mel_mask": torch.zeros(2, 100, dtype=torch.bool)},
            {"audio_mel_mask": ~kept(100, 60).bool()},
            kept(25, 15),
        ),
    ),
}


def eager(make: Callable[[], Any], dtype: torch.dtype = torch.float64, attention: str = "eager") -> Any:
    model = randomise(make())
    if model._can_set_attn_implementation():
        model.set_attn_implementation(attention)
    return model.to(dtype)


def run(model: Any, **inputs: Any) -> Any:
    """Without gradients, and with softmax in double."""
    with torch.no_grad(), mock.patch.object(torch.nn.functional, "softmax", softmax):
        return model(**inputs)


def patched(model: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error", loci.hf.FallbackWarning)
        return loci.hf.patch(copy.deepcopy(model))


class Encoders(Case):
    def test_logits_and_gradients(self) -> None:
        for name, (make, (inputs, padded, keep)) in ENCODERS.items():
            with self.subTest(name=name):
                one = eager(make)
                other = patched(one)
                self.same(one, other, tol=ANGLES, **copy.deepcopy(inputs))
                self.same(one, other, keep, tol=ANGLES, **copy.deepcopy({**inputs, **padded}))

    def test_chunks(self) -> None:
        """Truths of pairs mean the same to torch's attention as here; eager attention would add them."""
        for size, left in ((20000, 128), (3, -1), (3, 0), (3, 1)):
            near = {"speech_encoder_chunk_size": size, "speech_encoder_left_chunk_num": left}
            one = eager(lambda near=near: seamless("_v2", **near), attention="sdpa")
            other = patched(one)
            inputs, padded, keep = SHORT
            self.same(one, other, **inputs)
            self.same(one, other, keep, **inputs, **padded)

    @unittest.skipUnless(
        kind("nemotron_asr_streaming", "NemotronAsrStreamingEncoder"), "there is no streaming Nemotron"
    )
    def test_nemotron(self) -> None:
        """Its eager attention reads masks of numbers the other way round, torch's has truths."""
        inputs, padded, _ = LONG
        for near in (
            {},
            {"sliding_window": 71, "default_num_lookahead_tokens": 13},
            {"default_num_lookahead_tokens": 0},
        ):
            one = eager(lambda near=near: nemotron(**near), attention="sdpa")
            other = patched(one)
            self.same(one, other, tol=ANGLES, **inputs)
            self.same(one, other, kept(14, 8), tol=ANGLES, **inputs, **padded)

    @unittest.skipUnless(
        kind("nemotron_asr_streaming", "NemotronAsrStreamingEncoder"), "there is no streaming Nemotron"
    )
    def test_nemotron_streams(self) -> None:
        """Rows that are the last of more keys, from transformers' own caches."""
        one = eager(nemotron, attention="sdpa")
        other = patched(one)
        x, found = sound(96), []
        for model in (one, other):
            out, parts = None, []
            with torch.no_grad():
                for part in x.split(32, 1):
                    past = {} if out is None else {"cache": out.cache, "padding_cache": out.padding_cache}
                    out = model(input_features=part, use_cache=True, **past)
                    parts.append(out.last_hidden_state)
            found.append(torch.cat(parts, 1))
        self.assertLess(float((found[0] - found[1]).abs().max()), ANGLES)
        self.assertEqual(loci.hf.stats()["fallback"], {})
        self.assertGreater(loci.hf.stats()["fused"], 0)

    @unittest.skipUnless(kind("gemma4", "Gemma4AudioModel"), "there is no audio tower of Gemma 4")
    def test_gemma4(self) -> None:
        """Which computes in float32."""
        x = sound(100, dtype=torch.float32)
        one = eager(gemma4, torch.float32)
        other = patched(one)
        self.same(one, other, tol=1e-4, input_features=x, attention_mask=torch.ones(2, 100, dtype=torch.bool))
        self.same(one, other, kept(25, 15), tol=1e-4, input_features=x, attention_mask=kept(100, 60).bool())

    def test_fastspeech2(self) -> None:
        one = eager(fastspeech2)
        other = patched(one)
        x = torch.randint(1, 20, (2, FRAMES), generator=torch.Generator().manual_seed(5))
        for mask in (None, kept(FRAMES, 8)):
            found = []
            for model in (one, other):
                loci.hf.reset_stats()
                model.zero_grad()
                y = model.encoder(x, attention_mask=None if mask is None else mask[:, None], return_dict=True)
                y = y.last_hidden_state if mask is None else y.last_hidden_state[mask.bool()]
                y.square().sum().backward()
                found.append({"y": y, **{n: p.grad for n, p in model.encoder.named_parameters()}})
            for name, want in found[0].items():
                self.assertLess(float((want - found[1][name]).abs().max()), ANGLES * float(want.abs().max() + 1), name)
            self.assertEqual(loci.hf.stats(), {"fused": 2, "fallback": {}})

    def test_half_precision(self) -> None:
        """No further from the same model in double than eager attention is."""
        for name in ("parakeet", "wav2vec2-bert, clipped", "seamless"):
            make, (inputs, _, _) = ENCODERS[name]
            for dtype in (torch.float32, torch.bfloat16):
                with self.subTest(name=name, dtype=dtype), torch.no_grad():
                    given = {key: x.to(dtype) for key, x in inputs.items()}
                    one = eager(make, dtype)
                    want = eager(make)(**{key: x.double() for key, x in given.items()}).last_hidden_state
                    errors = [(m(**given).last_hidden_state - want).abs().mean() for m in (one, patched(one))]
                    self.assertLess(float(errors[1]), 1.5 * float(errors[0]) + 1e-6)
        self.assertEqual(loci.hf.stats()["fallback"], {})


class Memory(Case):
    def test_masks_by_row(self) -> None:
        """Padding of Parakeet and windows of Nemotron say what the pairs say."""
        inputs, padded, _ = LONG
        seen: list[Any] = []

        def look(module: Any, args: Any, kwargs: Any) -> None:
            seen.append(kwargs["attention_mask"])

        models = [(parakeet, "eager")]
        if kind("nemotron_asr_streaming", "NemotronAsrStreamingEncoder"):
            models.append((nemotron, "sdpa"))
        for make, attention in models:
            one = eager(make, attention=attention)
            for model in (one, patched(one)):
                model.layers[0].self_attn.register_forward_pre_hook(look, with_kwargs=True)
                model(**inputs, **padded)
            dense, rows = seen[-2:]
            self.assertIsInstance(rows, speech.Frames)
            pairs = rows.sight.pairs(dense.shape[-1], dense.shape[-1])
            self.assertTrue(torch.equal(pairs.expand_as(dense), dense))
            self.assertTrue(torch.equal(torch.all(~rows, dim=-1)[:, 0], (~dense).all(-1)[:, 0]))
            with self.assertRaisesRegex(loci.Error, "computes with its attention mask"):
                rows + 1

    def test_nothing_of_rows_times_keys(self) -> None:
        """No tensor of a pass has as many numbers as pairs."""
        frames = 1000
        x, mask = sound(8 * frames)[:1], torch.ones(1, 8 * frames, dtype=torch.int64)
        mask[:, 7000:] = 0
        for make, given in (
            (lambda: parakeet(subsampling_conv_channels=2), {"input_features": x, "attention_mask": mask}),
            (lambda: seamless("_v2"), {"input_features": x[:, :frames], "attention_mask": mask[:, -frames:]}),
        ):
            model = patched(eager(make))
            with Largest() as largest, torch.no_grad():
                model(**given)
            self.assertLess(largest.numbers, frames * frames // 2)


class Fallbacks(Case):
    def test_dropout(self) -> None:
        """In training weights are dropped by loci: those of a seed, and none in eval()."""
        for make, inputs in (
            (lambda: parakeet(attention_dropout=0.3), LONG[0]),
            (lambda: bert("relative_key", attention_dropout=0.3), SHORT[0]),
            (lambda: seamless(speech_encoder_dropout=0.3), SHORT[0]),
        ):
            one = eager(make)
            other = patched(one)
            want, got = (everything(model, None, copy.deepcopy(inputs))["output"] for model in (one, other))
            self.assertLess(float((want - got).abs().max()), ANGLES)
            other.train()
            loci.hf.reset_stats()
            found = []
            for seed in (7, 7, 8):
                torch.manual_seed(seed)
                found.append(everything(other, None, copy.deepcopy(inputs)))
            for name, x in found[0].items():
                self.assertTrue(torch.equal(x, found[1][name]), name)
            self.assertGreater(float((found[0]["output"] - found[2]["output"]).abs().max()), 1e-4)
            self.assertGreater(float((found[0]["output"] - got).abs().max()), 1e-4)
            self.assertEqual(loci.hf.stats()["fallback"], {})
            self.assertGreater(loci.hf.stats()["fused"], 0)

    def test_dropout_with_weights_as_an_output(self) -> None:
        """torch computes both, and drops what eager attention drops."""
        one = eager(lambda: parakeet(attention_dropout=0.3)).train()
        other = patched(one)
        found = []
        for model in (one, other):
            torch.manual_seed(7)
            made = run(model, **LONG[0], **LONG[1], output_attentions=True)
            found.append(made.last_hidden_state[LONG[2].bool()])
        self.assertLess(float((found[0] - found[1]).abs().max()), ANGLES)

    def test_positions_that_are_dropped(self) -> None:
        one = eager(lambda: parakeet(dropout_positions=0.3)).train()
        other = patched(one)
        found = []
        for model in (one, other):
            torch.manual_seed(7)
            found.append(run(model, **LONG[0], **LONG[1]).last_hidden_state[LONG[2].bool()])
        self.assertLess(float((found[0] - found[1]).abs().max()), ANGLES)
        self.assertEqual(loci.hf.stats()["fallback"]["positions"], 2)
        loci.hf.register(fallback="error")
        with self.assertRaisesRegex(loci.Error, "attention to positions that are dropped is not computed by loci"):
            other(**LONG[0])
        loci.hf.register()

    def test_weights_as_an_output(self) -> None:
        for make, (inputs, padded, keep) in (ENCODERS["parakeet"], ENCODERS["wav2vec2-bert, clipped"]):
            one = eager(make)
            given = {**inputs, **padded, "output_attentions": True}
            want, got = (run(model, **given) for model in (one, patched(one)))
            for x, y in zip(want.attentions, got.attentions, strict=True):
                rows = keep.bool()[:, None, :, None].expand_as(x)
                self.assertLess(float((x - y)[rows].abs().max()), ANGLES)

    def test_another_implementation(self) -> None:
        """A patched model whose attention is set to another one is as it was."""
        for make, (inputs, padded, keep) in ENCODERS.values():
            one = eager(make)
            other = patched(one)
            other.config._attn_implementation = one.config._attn_implementation
            loci.hf.reset_stats()
            given = {**inputs, **padded}
            with torch.no_grad():
                want, got = (m(**copy.deepcopy(given)).last_hidden_state[keep.bool()] for m in (one, other))
            self.assertTrue(torch.equal(want.nan_to_num(7), got.nan_to_num(7)))
            self.assertEqual(loci.hf.stats()["fused"], 0)

    def test_projections_that_are_more_than_a_matrix(self) -> None:
        """As those that are trained by LoRA."""

        class Twice(torch.nn.Module):
            def __init__(self, of: torch.nn.Linear) -> None:
                super().__init__()
                self.of = of

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return 2 * self.of(x)

        one = eager(parakeet)
        for layer in one.layers:
            layer.self_attn.relative_k_proj = Twice(layer.self_attn.relative_k_proj)
        self.same(one, patched(one), tol=ANGLES, **LONG[0])

    @unittest.skipUnless(kind("gemma4", "Gemma4AudioModel"), "there is no audio tower of Gemma 4")
    def test_towers_that_are_left(self) -> None:
        """Waves of other distances than those of rows and keys: it stays eager, and says so."""
        one = eager(lambda: gemma4(attention_context_left=3), torch.float32)
        inputs = {"input_features": sound(100).float(), "attention_mask": kept(100, 60).bool()}
        with self.assertWarnsRegex(loci.hf.FallbackWarning, "Gemma4AudioAttention computes attention in transformers"):
            other = loci.hf.patch(copy.deepcopy(one))
        want, got = (run(model, **inputs).last_hidden_state for model in (one, other))
        self.assertTrue(torch.equal(want, got))
        self.assertEqual(loci.hf.stats()["fused"], 0)

    def test_checkpoints(self) -> None:
        inputs, padded, keep = LONG
        one = eager(parakeet)
        other = patched(one).train()
        one.train()
        for reentrant in (True, False):
            other.gradient_checkpointing_enable({"use_reentrant": reentrant})
            self.same(one, other, keep, tol=ANGLES, **inputs, **padded)

    def test_autocast(self) -> None:
        one, x = eager(parakeet, torch.float32), LONG[0]["input_features"].float()
        want = run(one, input_features=x).last_hidden_state
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            errors = [(m(input_features=x).last_hidden_state - want).abs().mean() for m in (one, patched(one))]
        self.assertLess(float(errors[1]), 1.5 * float(errors[0]))

    def test_compiles(self) -> None:
        inputs, padded, keep = LONG
        one = eager(parakeet)
        other = torch.compile(patched(one), backend="eager")
        for given in (inputs, {**inputs, **padded}):
            want, got = (run(model, **given).last_hidden_state[keep.bool()] for model in (one, other))
            self.assertLess(float((want - got).abs().max()), ANGLES)


if __name__ == "__main__":
    unittest.main()
