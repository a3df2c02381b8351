# SPDX-License-Identifier: MIT
"""Prefill in pieces and decode token by token: each layer has a cache, and the logits are those of one pass."""

import torch

import loci.nn

torch.manual_seed(0)
VOCABULARY, WIDTH, LAYERS = 50, 64, 3


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = torch.nn.RMSNorm(WIDTH), torch.nn.RMSNorm(WIDTH)
        self.attention = loci.nn.Attention(WIDTH, heads=4, encoding="rope:pairing=half+alibi", kv_heads=2)
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, cache: loci.Cache | None = None) -> torch.Tensor:
        x = x + self.attention(self.norm1(x), cache=cache)
        made: torch.Tensor = x + self.down(torch.nn.functional.silu(self.up(self.norm2(x))))
        return made


embed, head = torch.nn.Embedding(VOCABULARY, WIDTH), torch.nn.Linear(WIDTH, VOCABULARY)
blocks = [Block() for _ in range(LAYERS)]


@torch.no_grad()
def logits(tokens: torch.Tensor, caches: list[loci.Cache] | None = None) -> torch.Tensor:
    x = embed(tokens)
    for i, block in enumerate(blocks):
        x = block(x, None if caches is None else caches[i])
    made: torch.Tensor = head(x)
    return made


prompt = torch.randint(VOCABULARY, (1, 100))
caches = [block.attention.new_cache(batch=1, capacity=160) for block in blocks]
for first in range(0, 100, 32):  # the prompt in pieces
    last = logits(prompt[:, first : first + 32], caches)[:, -1]
tokens = prompt
for _ in range(40):
    following = last.argmax(-1, keepdim=True)
    tokens = torch.cat((tokens, following), 1)
    last = logits(following, caches)[:, -1]
print("generated", tokens[0, 100:].tolist())

again = logits(tokens)[:, -1]
assert torch.allclose(last, again, atol=1e-5)
print(
    f"the last logits differ from those of one pass over {tokens.shape[1]} tokens by {(last - again).abs().max():.1e}"
)
