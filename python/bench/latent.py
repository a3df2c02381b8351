#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Decode of DeepSeek V3's attention in transformers on the CPU: loci against eager attention and torch's (sdpa).

    python python/bench/latent.py [--lens 2048,8192] [--heads 16] [--rounds 7]

Two layers with random weights, 16 heads, latents of 512 + 64 channels, and small matrices around attention.  A step is
one token through the model.  `eager`, `sdpa` and `register` make keys and values of all latents in each step; `patch`
is loci.hf.patch(model), with the cache of transformers; the others are LatentCache by the type that it stores.  They
are interleaved in one process of one thread.  Seconds are those of the processor, `x` is the median of the ratios to
eager of the same round, and the difference is the largest one from eager's logits, relative to the largest logit."""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from typing import Any

import torch
import transformers

import loci.hf

STORED = {"f32": None, "bf16": "bfloat16", "q8_0": "q8_0"}
LATENT, ROTATED, LAYERS = 512, 64, 2


def make(heads: int, short: bool) -> Any:
    size = {"hidden_size": 64 if short else 2048, "q_lora_rank": 32 if short else 512, "intermediate_size": 512}
    size |= {"kv_lora_rank": LATENT, "qk_rope_head_dim": ROTATED, "qk_nope_head_dim": 128, "v_head_dim": 128}
    size |= {"num_hidden_layers": LAYERS, "first_k_dense_replace": LAYERS, "vocab_size": 256}
    size |= {"num_attention_heads": heads, "num_key_value_heads": heads, "max_position_embeddings": 1 << 17}
    torch.manual_seed(0)
    return transformers.DeepseekV3ForCausalLM(transformers.DeepseekV3Config(**size)).eval()


def contenders(model: Any, length: int) -> dict[str, tuple[Any, Any]]:
    """Models with their caches, which have a prompt of this length."""
    loci.hf.register()
    patched = loci.hf.patch(copy.deepcopy(model))
    found: dict[str, tuple[Any, Any]] = {}
    prompt, own = torch.randint(2, 256, (1, length)), transformers.DynamicCache()
    patched(prompt, cache=own, logits_to_keep=1)
    for by in ("eager", "sdpa", "register"):
        other = copy.deepcopy(model)
        other.set_attn_implementation("loci" if by == "register" else by)
        found[by] = other, copy.deepcopy(own)
    found["patch"] = patched, own
    for by, dtype in STORED.items():
        cache = loci.hf.LatentCache(model.config, length + 64, dtype=dtype)
        patched(prompt, cache=cache, logits_to_keep=1)
        found[by] = patched, cache
    return found


def size(cache: Any) -> int:
    """Bytes of a cache."""
    if isinstance(cache, loci.hf.LatentCache):
        return cache.nbytes
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


def compare(length: int, given: argparse.Namespace) -> None:
    runs = contenders(make(given.heads, given.short), length)
    times: dict[str, list[float]] = {by: [] for by in runs}
    off = dict.fromkeys(runs, 0.0)
    for i in range(given.rounds + 1):
        logits = {}
        for by, (model, cache) in runs.items():
            start = time.process_time()
            logits[by] = model(torch.tensor([[7 + i]]), cache=cache).logits
            times[by].append(time.process_time() - start)
        for by, y in logits.items():
            off[by] = max(off[by], float((y - logits["eager"]).abs().max() / logits["eager"].abs().max()))
    for by, (_, cache) in runs.items():
        took = times[by][1:]  # the first round finds memory and plans
        x = statistics.median(a / b for a, b in zip(took, times["eager"][1:], strict=True))
        mb, ms = size(cache) / 1e6, 1e3 * statistics.median(took)
        print(f"| {length} | {by} | {x:.3f} | {ms:.1f} | {1e3 / ms:.1f} | {off[by]:.0e} | {mb:.2f} |", flush=True)
        if not off[by] < (1e-4 if by not in ("bf16", "q8_0") else 5e-2):
            raise SystemExit(f"latent: {by} differs from eager by {off[by]:.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lens", default="2048,8192")
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--short", action="store_true", help="few tokens and small matrices: compares numbers")
    given = parser.parse_args()
    if given.short:
        given.lens, given.heads, given.rounds = "70", 4, 1
    torch.set_num_threads(1)
    print("| tokens | | x | ms | tokens/s | difference | cache, MB |\n|---|---|---|---|---|---|---|")
    with torch.inference_mode():
        for length in map(int, given.lens.split(",")):
            compare(length, given)


if __name__ == "__main__":
    main()
