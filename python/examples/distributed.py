# SPDX-License-Identifier: MIT
"""A Llama with random weights learns one long sequence, alone or over several processes:

    python distributed.py
    torchrun --nproc-per-node 2 distributed.py

Each process has its own rows of the sequence, zig-zag; attention reads the keys of all.  The losses are the same."""

import contextlib
import os
import sys

import torch
import torch.distributed as dist
import transformers
from torch.nn import functional

import loci.distributed
import loci.hf

LENGTH, VOCABULARY, STEPS = 8192, 64, 5
loci.hf.register(fallback="error")
torch.manual_seed(0)  # on every process the same weights, and the same tokens
config = transformers.LlamaConfig(
    vocab_size=VOCABULARY,
    hidden_size=48,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    use_cache=False,
)
model = transformers.LlamaForCausalLM._from_config(config, attn_implementation="loci")
text = (torch.arange(LENGTH + 1) ** 2 // 7 % VOCABULARY)[None]
tokens, following = text[:, :-1], text[:, 1:]

# Which rows are this process's, and where they are in the sequence.  A model that is told finds its own rope.
together = "RANK" in os.environ  # torchrun started this
if together:
    dist.init_process_group("gloo")
    shares = loci.distributed.share_out(LENGTH)
else:
    shares = loci.distributed.Shares([(0, LENGTH, 0)], rank=0)
tokens, following = shares.take(tokens, 1), shares.take(following, 1)
positions = torch.from_numpy(shares.positions())[None]

optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(STEPS):
    optimiser.zero_grad()
    with loci.distributed.sharing(shares) if together else contextlib.nullcontext():
        logits = model(tokens, position_ids=positions).logits
        loss = functional.cross_entropy(logits[0], following[0], reduction="sum") / LENGTH
        loss.backward()
    if together:  # of its own rows each process has the loss and, for every weight, the gradient
        loci.distributed.sum_gradients(model)
        dist.all_reduce(loss)
    optimiser.step()
    if not together or dist.get_rank() == 0:
        print(f"step {step}  loss {loss.item():.4f}")

if together:
    if dist.get_rank() == 0:
        told = loci.distributed.report()
        sent, received = (f"{bytes_ / 1e6:.1f} MB" for bytes_ in (told.sent, told.received))
        print(f"the last pass: {told.attention:.2f} s of work, {told.waited:.2f} s of waiting", file=sys.stderr)
        print(f"sent {sent}, received {received}", file=sys.stderr)
    dist.destroy_process_group()
