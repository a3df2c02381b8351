# SPDX-License-Identifier: MIT
"""Rotation by tables of cos and sin.  Imports are absolute: this may be loaded as flash_attn.layers.rotary."""

from __future__ import annotations

import torch

from loci._rotary import check_tables, turned
from loci._torch import Torch
from loci.flash_attn import Error, _raising

__all__ = ["apply_rotary_emb"]


@_raising
def apply_rotary_emb(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: int | torch.Tensor = 0,
    cu_seqlens: torch.Tensor | None = None,
    max_seqlen: int | None = None,
) -> torch.Tensor:
    """Rotate rows by tables, with a gradient of x.

    Parameters
    ----------
    x : tensor [batch, rows, heads, width]
        Rows, or with `cu_seqlens` packed rows, [rows, heads, width].
    cos : tensor [positions, pairs]
        Cosines. The first 2 pairs channels are rotated.
    sin : tensor [positions, pairs]
        Sines.
    interleaved : bool
        Channels 2t and 2t + 1 are a pair; otherwise t and t + pairs.
    inplace : bool
        Write the result into x, which must not require a gradient.
    seqlen_offsets : int or int tensor [batch]
        Position of the first row of each entry, or packed sequence.
    cu_seqlens : int32 tensor [sequences + 1], optional
        Where packed sequences start, and the end of the last one.
    max_seqlen : int, optional
        The rows of the longest sequence. It is not needed.

    Returns
    -------
    tensor
        Rotated rows, in the shape of x.
    """
    packed = cu_seqlens is not None
    if x.ndim != (3 if packed else 4):
        raise Error(f"x has the shape {list(x.shape)}, not {'[rows, ' if packed else '[batch, rows, '}heads, width]")
    check_tables(Torch, cos, sin, x.shape[-1])
    entries = x.shape[0] if cu_seqlens is None else cu_seqlens.numel() - 1
    first = torch.as_tensor(seqlen_offsets)
    if first.is_floating_point() or first.ndim > 1 or (first.ndim and first.shape[0] != entries):
        raise Error(f"seqlen_offsets must be a whole number, or one for each of the {entries} sequences")
    first = first.long().expand(entries)
    if cu_seqlens is None:
        pos = first[:, None] + torch.arange(x.shape[1])
    else:
        if int(cu_seqlens[0]) or int(cu_seqlens[-1]) != x.shape[0] or bool((cu_seqlens.diff() < 0).any()):
            raise Error(f"cu_seqlens must rise from 0 to the {x.shape[0]} rows of x")
        starts, counts = cu_seqlens[:-1].long(), cu_seqlens.diff().long()
        pos = torch.arange(x.shape[0]) + torch.repeat_interleave(first - starts, counts)
    if pos.numel() and not 0 <= int(pos.min()) <= int(pos.max()) < cos.shape[0]:
        raise Error(f"cos has {cos.shape[0]} rows, and positions go from {int(pos.min())} to {int(pos.max())}")
    made: torch.Tensor = turned(Torch, x, cos[pos], sin[pos], bool(interleaved), "thd" if packed else "blhd")
    if not inplace:
        return made
    if x.requires_grad and torch.is_grad_enabled():
        raise Error("x requires a gradient, and is not rotated in place; leave inplace out")
    return x.copy_(made)
