# SPDX-License-Identifier: MIT
"""Speculative decoding with a tree of guesses: fewer passes of the model, and the tokens of greedy decoding."""

import itertools

import torch

import loci.nn

torch.manual_seed(0)
VOCABULARY, WIDTH, LAYERS, PROMPT, TOKENS = 50, 64, 3, 100, 60
WAYS, DEPTH = 2, 3  # guesses after each token, and tokens of a path


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = torch.nn.RMSNorm(WIDTH), torch.nn.RMSNorm(WIDTH)
        self.attention = loci.nn.Attention(WIDTH, heads=4, encoding="rope:pairing=half+alibi", kv_heads=2)
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, cache: loci.Cache, parents: list[int] | None) -> torch.Tensor:
        x = x + self.attention(self.norm1(x), cache=cache, parents=parents)
        made: torch.Tensor = x + self.down(torch.nn.functional.silu(self.up(self.norm2(x))))
        return made


embed, head = torch.nn.Embedding(VOCABULARY, WIDTH), torch.nn.Linear(WIDTH, VOCABULARY)
blocks = [Block() for _ in range(LAYERS)]


@torch.no_grad()
def following(tokens: list[int], caches: list[loci.Cache], parents: list[int] | None = None) -> list[int]:
    """The token after each of these: new ones of a sequence, or nodes of a tree."""
    x = embed(torch.tensor([tokens]))
    for block, cache in zip(blocks, caches, strict=True):
        x = block(x, cache, parents)
    made: list[int] = head(x)[0].argmax(-1).tolist()
    return made


def new_caches(batch: int) -> list[loci.Cache]:
    return [block.attention.new_cache(batch=batch, capacity=PROMPT + TOKENS + 2 * DEPTH) for block in blocks]


def greedy(prompt: list[int]) -> list[int]:
    caches = new_caches(1)
    made = following(prompt, caches)[-1:]
    while len(made) < TOKENS:
        made += following(made[-1:], caches)
    return made


def guesses(tokens: list[int], last: int) -> list[int]:
    """What came after this token before, the latest first: a draft without a model."""
    after = [b for a, b in itertools.pairwise(tokens) if a == last]
    return list(dict.fromkeys(reversed(after)))[:WAYS]


def speculative(prompt: list[int]) -> tuple[list[int], int]:
    """The tokens, and how many passes they took."""
    caches = new_caches(1 + WAYS ** (DEPTH - 1))  # entries for the sequence, and for each leaf of a tree
    made = following(prompt, caches, list(range(-1, len(prompt) - 1)))[-1:]  # a prompt is a tree of one path
    for cache in caches:
        cache.keep(len(prompt) - 1)
    passes = 0
    while len(made) < TOKENS:
        nodes, parents, first = made[-1:], [-1], 0  # the root is the last token, which is in no cache yet
        for _ in range(DEPTH - 1):
            first, level = len(nodes), range(first, len(nodes))
            for node in level:
                for token in guesses(prompt + made, nodes[node]):
                    nodes.append(token)
                    parents.append(node)
        then, node = following(nodes, caches, parents), 0
        passes += 1
        while True:  # as long as a guess was right
            made.append(then[node])
            right = [i for i in range(len(nodes)) if parents[i] == node and nodes[i] == then[node]]
            if not right:
                break
            node = right[0]
        for cache in caches:
            cache.keep(node)
    return made[:TOKENS], passes


prompt = torch.randint(VOCABULARY, (PROMPT,)).tolist()
tokens, passes = speculative(prompt)
print("generated", tokens)
assert tokens == greedy(prompt)
print(f"{TOKENS} tokens in {passes} passes of the model, the same as one by one in {TOKENS - 1}")
