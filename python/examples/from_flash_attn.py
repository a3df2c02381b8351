# SPDX-License-Identifier: MIT
"""Code that was written for flash-attn, on a CPU: training on packed sequences, generation from a cache in blocks,
ALiBi of 8192 rows; and torch's own modules, in a block that sends their attention to loci."""

import resource
import sys
import time

import torch

import loci
import loci.flash_attn

sys.modules["flash_attn"] = loci.flash_attn  # before the import of code that needs it

from flash_attn import flash_attn_func, flash_attn_varlen_qkvpacked_func, flash_attn_with_kvcache  # noqa: E402
from flash_attn.bert_padding import pad_input, unpad_input  # noqa: E402
from flash_attn.layers.rotary import apply_rotary_emb  # noqa: E402

torch.manual_seed(0)
VOCABULARY, WIDTH, HEADS, LONGEST, BLOCK = 16, 64, 4, 64, 16
angle = torch.arange(LONGEST)[:, None] * 10000.0 ** (-torch.arange(8) / 8)
COS, SIN = angle.cos(), angle.sin()


class Cache:
    """Blocks of keys and values, which two sequences take from in turn."""

    def __init__(self) -> None:
        self.k, self.v = torch.zeros(2, 2 * LONGEST // BLOCK, BLOCK, HEADS, WIDTH // HEADS)
        self.table = torch.arange(2 * LONGEST // BLOCK, dtype=torch.int32).view(-1, 2).t().contiguous()
        self.lengths = torch.zeros(2, dtype=torch.int32)


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.RMSNorm(WIDTH)
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.mlp = torch.nn.Sequential(
            torch.nn.RMSNorm(WIDTH), torch.nn.Linear(WIDTH, 128), torch.nn.GELU(), torch.nn.Linear(128, WIDTH)
        )

    def forward(self, x: torch.Tensor, cu: torch.Tensor, longest: int) -> torch.Tensor:
        qkv = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, -1))
        q, k = (apply_rotary_emb(qkv[:, i], COS, SIN, cu_seqlens=cu, max_seqlen=longest) for i in range(2))
        o = flash_attn_varlen_qkvpacked_func(torch.stack((q, k, qkv[:, 2]), 1), cu, longest, causal=True)
        x = x + self.out(o.flatten(1))
        return x + self.mlp(x)

    def step(self, x: torch.Tensor, cache: Cache) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, -1)).unbind(2)
        where = {"cache_seqlens": cache.lengths, "block_table": cache.table}
        turn = {"rotary_cos": COS, "rotary_sin": SIN, "rotary_interleaved": False}
        o = flash_attn_with_kvcache(q, cache.k, cache.v, k, v, **where, **turn, causal=True)
        cache.lengths += x.shape[1]
        x = x + self.out(o.flatten(2))
        return x + self.mlp(x)


embed, blocks = torch.nn.Embedding(VOCABULARY, WIDTH), torch.nn.ModuleList([Block(), Block()])
head = torch.nn.Linear(WIDTH, VOCABULARY)
parameters = [p for module in (embed, blocks, head) for p in module.parameters()]


def logits(tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Of a padded batch, whose tokens are packed."""
    x, indices, cu, longest, _ = unpad_input(embed(tokens), mask)
    for block in blocks:
        x = block(x, cu, longest)
    made: torch.Tensor = pad_input(head(x), indices, *tokens.shape)
    return made


# ---- Training: the second half of each sequence repeats the first one
optimiser = torch.optim.AdamW(parameters, lr=3e-3)
for _ in range(100):
    half = torch.randint(VOCABULARY, (8, 12))
    tokens = torch.cat((half, half), 1)
    mask = torch.arange(24) < torch.randint(16, 25, (8, 1))
    score = logits(tokens, mask)[:, 11:-1]
    seen = mask[:, 12:]
    loss = torch.nn.functional.cross_entropy(score[seen], tokens[:, 12:][seen])
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
print(f"training on packed sequences: loss {loss.item():.3f} after 100 steps")
assert loss.item() < 1

# ---- Generation: a prompt of 12 tokens, then token by token
with torch.no_grad():
    tokens, caches = torch.randint(VOCABULARY, (2, 12)), [Cache() for _ in blocks]
    following = tokens
    for _ in range(12):
        x = embed(following)
        for block, cache in zip(blocks, caches, strict=True):
            x = block.step(x, cache)
        following = head(x[:, -1:]).argmax(-1)
        tokens = torch.cat((tokens, following), 1)
    whole = logits(tokens[:, :-1], torch.ones(2, 23)).argmax(-1)
right = (tokens[:, 12:] == tokens[:, :12]).float().mean().item()
print(f"generation from a cache in blocks: {right:.0%} of the tokens repeat the prompt")
assert torch.equal(whole[:, 11:], tokens[:, 12:])

# ---- ALiBi with slopes of each batch entry
rows = 8192
q, k, v = (torch.randn(2, rows, 8, 32) for _ in range(3))
start = time.perf_counter()
flash_attn_func(q, k, v, causal=True, alibi_slopes=torch.rand(2, 8), window_size=(1023, 0))
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform != "darwin" else 2**30)
bias = 2 * 8 * rows * rows * 4 / 2**30
print(
    f"alibi_slopes [2, 8] at {rows} rows: {time.perf_counter() - start:.1f} s; the process has {memory:.1f} GiB, and a "
    f"bias for torch's attention would be {bias:.0f} GiB"
)

# ---- Modules of torch
layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, batch_first=True, dropout=0.0)
x, padding = torch.randn(4, 50, WIDTH), torch.arange(50) >= torch.tensor([[50], [30], [44], [7]])
wanted = layer(x, src_key_padding_mask=padding)
with loci.sdpa() as calls:
    y = layer(x, src_key_padding_mask=padding)
print(f"loci.sdpa(): {calls.fused} call by loci, {sum(calls.fallback.values())} by torch")
assert torch.allclose(y, wanted, atol=1e-5)
