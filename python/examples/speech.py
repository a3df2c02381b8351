# SPDX-License-Identifier: MIT
"""An encoder of speech with relative positions, Parakeet's, by loci and by transformers' own attention: time, memory.
Weights and sound are random; nothing is loaded.

    python speech.py                                        # twenty seconds of sound, two layers of true size
    python speech.py --seconds 3600 --layers 24 --attention loci

Eager attention and torch's have rows times twice as many distances of scores, for each head; loci has none of them.
Every way runs in a process of its own, as memory is the most that a process ever had.  All are forks of one that has
imported PyTorch and computed nothing. Each imports loci itself, as after a fork it would not run on torch's threads."""

import argparse
import copy
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Callable

import torch
import transformers
from transformers.models.parakeet.modeling_parakeet import ParakeetEncoder

RATE = 100  # features of sound a second; the encoder has a frame for every eighth


def encoder(layers: int, **options: int) -> ParakeetEncoder:
    """Of the size of parakeet-ctc-0.6b, where it has 24 layers."""
    config = transformers.ParakeetEncoderConfig(num_hidden_layers=layers, **options)
    return ParakeetEncoder._from_config(config, attn_implementation="eager").eval()


def in_pieces(model: ParakeetEncoder, frames: int = 750) -> None:
    """Convolutions in front of the layers a minute at a time: of an hour they would take more memory than all else.  A
    frame depends on the 15 features around it."""
    whole = model.subsampling.forward

    def forward(features: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        assert mask is None
        made = []
        for first in range(0, features.shape[1], 8 * frames):
            before = 8 if first else 0
            made.append(whole(features[:, first - before : first + 8 * frames + 8])[:, before // 8 :][:, :frames])
        return torch.cat(made, 1)

    model.subsampling.forward = forward


def measure(attention: str, layers: int, seconds: int, threads: int) -> None:
    import loci.hf

    torch.manual_seed(0)
    torch.set_num_threads(threads)
    loci.set_num_threads(threads)
    model = encoder(layers)
    if attention == "loci":
        loci.hf.patch(model)
    else:
        model.set_attn_implementation(attention)
    in_pieces(model)
    sound = torch.randn(1, seconds * RATE, model.config.num_mel_bins)
    with torch.inference_mode():
        start = time.perf_counter()
        frames = model(sound).last_hidden_state.shape[1]
        took = time.perf_counter() - start
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(
        f"{attention:5} {frames:6} frames, {layers} layers: {took:8.1f} s, {seconds / took:7.1f} times as fast as the "
        f"sound, {memory / 1e9:5.2f} GB"
    )
    assert attention != "loci" or loci.hf.stats() == {"fused": layers, "fallback": {}}


def asks_for(config: transformers.ParakeetEncoderConfig, seconds: int) -> float:
    """Bytes of the scores by distance, which exist twice while they are shifted."""
    frames = seconds * RATE / 8
    return 2 * 4 * config.num_attention_heads * frames * 2 * frames


def memory() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check() -> None:
    """That both are the same, of sound that is padded, and that convolutions in pieces are those of the whole."""
    import loci.hf

    torch.manual_seed(0)
    one = encoder(2, hidden_size=64, intermediate_size=96, num_attention_heads=4)
    other = loci.hf.patch(copy.deepcopy(one))
    sound, mask = torch.randn(2, 400, 80), torch.ones(2, 400, dtype=torch.int64)
    mask[1, 250:] = 0
    with torch.no_grad():
        want, got = (m(sound, attention_mask=mask) for m in (one, other))
        keep = want.attention_mask.bool()
        difference = (want.last_hidden_state - got.last_hidden_state)[keep].abs().max()
        whole = other(sound).last_hidden_state
        in_pieces(other, 9)
        pieces = (other(sound).last_hidden_state - whole).abs().max()
    print(f"small models: frames differ from eager attention's by {difference:.1e}; {loci.hf.stats()}")
    assert difference < 1e-4
    assert pieces < 1e-4


def alone(work: Callable[..., None], *arguments: str | int) -> None:
    sys.stdout.flush()
    process = multiprocessing.get_context("fork").Process(target=work, args=arguments)
    process.start()
    process.join()
    if process.exitcode:
        sys.exit(f"{work.__name__}: exit code {process.exitcode}")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--seconds", type=int, default=20, help="of sound")
    p.add_argument("--layers", type=int, default=2, help="parakeet-ctc-0.6b has 24")
    p.add_argument("--threads", type=int, default=torch.get_num_threads())
    p.add_argument("--attention", nargs="+", default=["eager", "sdpa", "loci"], choices=["eager", "sdpa", "loci"])
    options = p.parse_args()
    alone(check)
    for attention in options.attention:
        needs = asks_for(transformers.ParakeetEncoderConfig(), options.seconds)
        if attention != "loci" and needs > 0.7 * memory():
            print(f"{attention:5} asks for {needs / 1e9:.0f} GB of scores: left out")
            continue
        alone(measure, attention, options.layers, options.seconds, options.threads)


if __name__ == "__main__":
    main()
