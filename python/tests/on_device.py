# SPDX-License-Identifier: MIT
"""Attention of torch's tensors and its gradients, to be computed in several places: bits must not depend on where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import loci

TEXTS = (
    "nope",
    "alibi",
    "t5:bidirectional=0",
    "clip:max=40",
    "kerple",
    "rope:pairing=half",
    "rope:pairing=interleaved+alibi",
    "softcap:cap=20+t5:bidirectional=0",
    "alibi+sink",
)
HEADS, KV_HEADS, BATCH, ROWS, DIM = 4, 2, 2, 150, 32
Move = Callable[[torch.Tensor], torch.Tensor]


def stay(x: torch.Tensor) -> torch.Tensor:
    return x


def as_bits(x: torch.Tensor) -> torch.Tensor:
    return x.detach().cpu().contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(
        x.dtype is y.dtype and torch.equal(as_bits(x), as_bits(y)) for x, y in zip(a, b, strict=True)
    )


def rows(heads: int, dtype: torch.dtype, generator: torch.Generator, view: str) -> torch.Tensor:
    """Rows whose memory is laid out in some way."""
    shape = BATCH, heads, ROWS, DIM
    if view == "dense":
        return torch.randn(shape, generator=generator).to(dtype)
    if view == "transposed":
        return torch.randn(BATCH, ROWS, heads, DIM, generator=generator).to(dtype).transpose(1, 2)
    if view == "sliced":
        return torch.randn(BATCH, heads, ROWS + 3, 2 * DIM, generator=generator).to(dtype)[:, :, 2:-1, 5 : 5 + DIM]
    if view == "columns":
        return torch.randn(BATCH, heads, DIM, ROWS, generator=generator).to(dtype).mT
    return torch.randn(1, 1, ROWS, DIM, generator=generator).to(dtype).expand(shape)


def moved(x: torch.Tensor, move: Move) -> torch.Tensor:
    """The tensor elsewhere, with the same strides and offset."""
    whole = x.as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
    return move(whole.clone()).as_strided(x.shape, x.stride(), x.storage_offset()).detach()


def problem(text: str, dtype: torch.dtype, view: str = "dense", seed: int = 0) -> Any:
    """q, k, v, the plan's tensors, and gradients of the results."""
    generator = torch.Generator().manual_seed(seed)
    q = rows(HEADS, dtype, generator, view)
    k, v = (rows(KV_HEADS, dtype, generator, view) for _ in range(2))
    plan = loci.Plan(text, HEADS, DIM, kv_heads=KV_HEADS)
    tensors = {name: torch.from_numpy(x).to(dtype) for name, x in plan.init(seed + 1).items()}
    dout = torch.randn(BATCH, HEADS, ROWS, DIM, generator=generator).to(dtype)
    return q, k, v, tensors, dout, torch.randn(BATCH, HEADS, ROWS, generator=generator)


def computed(
    text: str,
    dtype: torch.dtype,
    move: Move = stay,
    view: str = "dense",
    call: Callable[..., Any] = loci.attention,
    **options: Any,
) -> list[torch.Tensor]:
    """o, lse and all gradients."""
    q, k, v, tensors, dout, dlse = problem(text, dtype, view)
    q, k, v = (moved(x, move).requires_grad_() for x in (q, k, v))
    tensors = {name: move(x).requires_grad_() for name, x in tensors.items()}
    options = {name: move(x) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    o, lse = call(q, k, v, text, tensors=tensors, return_lse=True, **options)
    wanted = [q, k, v, *tensors.values()]
    return [o, lse, *torch.autograd.grad([o, lse], wanted, [move(dout), move(dlse)])]


def masks() -> dict[str, dict[str, Any]]:
    """Who sees whom, in several ways."""
    generator = torch.Generator().manual_seed(5)
    pos = torch.arange(ROWS) * 2
    seg = (torch.arange(ROWS) // 60).expand(BATCH, ROWS).clone()
    seg[1, -20:] = -1
    return {
        "full": {"causal": False},
        "window": {"window_size": (30, 0)},
        "positions": {"pos": pos},
        "segments": {"seg": seg},
        "lengths": {"k_lens": torch.tensor([ROWS, 90])},
        "first": {"k_first": torch.clamp(torch.arange(ROWS) - 50, 0)},
        "booleans": {"mask": torch.rand(BATCH, 1, ROWS, ROWS, generator=generator) < 0.7, "causal": False},
        "numbers": {"mask": torch.randn(ROWS, ROWS, generator=generator)},
    }
