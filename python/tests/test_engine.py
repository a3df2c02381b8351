# SPDX-License-Identifier: MIT
"""examples/engine.c against transformers: the record of tests/cases/engine, and new models with random weights."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any

try:
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    import torch
    import transformers as tf
except ImportError:
    raise unittest.SkipTest("there is no torch or no transformers") from None

from . import cases

FOLDER = cases.FOLDER / "engine"
ENGINE = Path(os.environ.get("LOCI_LIBRARY", "")).parent / "example_engine"


def lines(text: str) -> list[list[int]]:
    return [[int(token) for token in line.split()] for line in text.splitlines()]


def greedy(model: Any, prompt: list[int], new: int) -> tuple[list[int], float]:
    """The likeliest tokens after a prompt by passes without a cache, and the least distance to the second ones."""
    ends = model.config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    tokens, gap = list(prompt), float("inf")
    while len(tokens) < len(prompt) + new and (len(tokens) == len(prompt) or tokens[-1] not in ends):
        with torch.no_grad():
            two = model(torch.tensor([tokens])).logits[0, -1].topk(2)
        tokens.append(int(two.indices[0]))
        gap = min(gap, float(two.values[0] - two.values[1]))
    return tokens[len(prompt) :], gap


class Record(unittest.TestCase):
    def test_tokens(self) -> None:
        models = sorted(FOLDER.iterdir())
        self.assertEqual([folder.name for folder in models], ["grouped", "tied"])
        for folder in models:
            model = tf.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
            prompts, tokens = (lines((folder / name).read_text()) for name in ("prompts", "tokens"))
            for prompt, wanted in zip(prompts, tokens, strict=True):
                got, gap = greedy(model, prompt, 20)
                self.assertEqual(got, wanted, folder.name)
                self.assertGreater(gap, 0.059, folder.name)


@unittest.skipUnless(ENGINE.exists(), "this build has no example_engine")
class New(unittest.TestCase):
    """Other shapes, with a cache in float32.  A prompt counts up to the first token that rounding may change."""

    def check(self, cache: str = "f32", seed: int = 1, **options: Any) -> str:
        sizes = {"vocab_size": 96, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2}
        heads = {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 16, "eos_token_id": None}
        torch.manual_seed(seed)
        model = tf.LlamaForCausalLM(tf.LlamaConfig(**{**sizes, **heads, **options})).eval()
        with torch.no_grad():
            for p in model.parameters():
                noise = torch.randn(p.shape)
                p.copy_(noise * p.shape[-1] ** -0.5 if p.ndim > 1 else p + 0.2 * noise)
        prompts = [torch.randint(96, (length,)).tolist() for length in (1, 3, 63, 66, 10, 131)]
        prompts.append(prompts[5][:100] + prompts[4])
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            made = subprocess.run(
                [ENGINE, folder, f"--cache={cache}", "--new=24"],
                input="".join(" ".join(map(str, prompt)) + "\n" for prompt in prompts),
                capture_output=True,
                text=True,
                check=False,
            )
        if made.returncode:
            return made.stderr
        compared, ends = 0, model.config.eos_token_id or []
        for prompt, got in zip(prompts, lines(made.stdout), strict=True):
            self.assertTrue(len(got) == 24 or got[-1] in ends, (options, len(prompt), got))
            for count in range(1, len(got) + 1):
                wanted, gap = greedy(model, prompt + got[: count - 1], 1)
                if gap < 1e-4:
                    break
                self.assertEqual(got[count - 1], wanted[0], (options, len(prompt), count))
                compared += 1
        self.assertGreater(compared, 100)
        return made.stderr

    def test_shapes(self) -> None:
        self.assertRegex(self.check(), re.compile(r"^\d+ steps; "))
        self.check(num_key_value_heads=3, head_dim=32, eos_token_id=[7, 9])
        self.check(num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True, rms_norm_eps=1e-3)
        self.check(num_hidden_layers=1, head_dim=8, rope_parameters={"rope_type": "default", "rope_theta": 100.0})

    def test_scalings(self) -> None:
        yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0}
        self.check(rope_parameters=yarn, max_position_embeddings=128)
        self.check(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0})

    def test_refused(self) -> None:
        self.assertRegex(self.check(attention_bias=True), "must have 21 tensors for 2 layers")
        self.assertRegex(self.check(hidden_act="gelu"), "hidden_act must be silu")
        self.assertRegex(self.check(cache="q8_0"), "blocks of 32 numbers, which must divide the width of keys, 16")
