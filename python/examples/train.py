# SPDX-License-Identifier: MIT
"""A layer learns to copy the token five places back, which only positions can tell it: loci.nn in a loop of torch."""

import torch
from torch.nn import functional

import loci.nn

torch.manual_seed(0)
VOCABULARY, WIDTH, BACK, LENGTH = 12, 32, 5, 48


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.attention = loci.nn.Attention(WIDTH, heads=4, encoding="t5:bidirectional=0")
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        logits: torch.Tensor = self.head(x + self.attention(x))
        return logits


model = Model()
optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
for step in range(201):
    tokens = torch.randint(VOCABULARY, (16, LENGTH))
    logits = model(tokens)[:, BACK:]
    loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, :-BACK].flatten())
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    if step % 50 == 0:
        print(f"step {step:3}  loss {loss.item():.3f}")
assert loss.item() < 0.1

# What it has learnt: the bias of each head by distance, of which five stands out.
table = model.attention.encoding.tensors()["t5.table"]
print("largest bias at distance", table[:16].amax(1).argmax().item())
