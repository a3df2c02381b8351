# SPDX-License-Identifier: MIT
"""Sizes of modules, and what each of them does to its children."""

from __future__ import annotations

from typing import Any

from torch import nn

from ._c import Error
from ._numbers import real, whole, whole_or_none

MOST_HEADS, MOST_DIM, MOST_WIDTH = 1 << 16, 1 << 10, 1 << 20  # of a plan


def heads_of(heads: Any, kv_heads: Any) -> tuple[int, int]:
    """Query heads, and the key heads that divide them."""
    heads = whole(heads, "heads", 1, MOST_HEADS)
    kv_heads = whole_or_none(kv_heads, "kv_heads", high=heads) or heads
    if heads % kv_heads:
        raise Error(f"kv_heads {kv_heads} must divide heads {heads}, as each key head serves the same number")
    return heads, kv_heads


def sizes(embed_dim: Any, heads: Any, kv_heads: Any, head_dim: Any) -> tuple[int, int, int, int]:
    """The sizes of a layer, read before any of its tensors is made."""
    embed_dim = whole(embed_dim, "embed_dim", 1, MOST_WIDTH)
    heads, kv_heads = heads_of(heads, kv_heads)
    head_dim = whole_or_none(head_dim, "head_dim", high=MOST_DIM)
    if head_dim is None and embed_dim % heads:
        raise Error(f"embed_dim {embed_dim} is no multiple of {heads} heads; say head_dim")
    return embed_dim, heads, kv_heads, head_dim or whole(embed_dim // heads, "embed_dim // heads", 1, MOST_DIM)


def rate(dropout: Any) -> float:
    """Of a layer's weights in training."""
    p = real(dropout, "dropout")
    if not 0 <= p < 1:
        raise Error(f"dropout must be from 0 and below 1, not {p}")
    return p


def reset_children(module: nn.Module) -> None:
    for child in module.children():
        reset: Any = getattr(child, "reset_parameters", None)
        if reset is not None:
            reset()
