# SPDX-License-Identifier: MIT
"""Rotation by tables of cos and sin that a caller has, in torch: gradients are autograd's."""

from __future__ import annotations

from typing import Any

import torch

from ._c import Error


def check_tables(cos: Any, sin: Any, width: int) -> None:
    """Two tables [positions, pairs] for rows of this width."""
    for name, x in (("cos", cos), ("sin", sin)):
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name} must be a tensor of torch, not {type(x).__name__}")
    if cos.ndim != 2 or cos.shape != sin.shape:
        raise Error(f"cos and sin have the shapes {list(cos.shape)} and {list(sin.shape)}, not [positions, pairs] both")
    if 2 * cos.shape[1] > width:
        raise Error(f"cos and sin have {cos.shape[1]} pairs, and rows are {width} wide")


def turned(x: Any, cos: Any, sin: Any, interleaved: bool, pos: Any) -> Any:
    """x [..., rows, heads, width], rotated by the rows `pos` [..., rows] of the tables.  Numbers of 16 bits are
    rotated as float32 and rounded once."""
    pairs = cos.shape[1]
    real = torch.float64 if x.dtype is torch.float64 else torch.float32
    c, s = (table[pos].to(real).unsqueeze(-2) for table in (cos, sin))
    turns, rest = x[..., : 2 * pairs].to(real), x[..., 2 * pairs :]
    if interleaved:
        a, b = turns[..., 0::2], turns[..., 1::2]
        made = torch.stack((a * c - b * s, b * c + a * s), -1).flatten(-2)
    else:
        a, b = turns[..., :pairs], turns[..., pairs:]
        made = torch.cat((a * c - b * s, b * c + a * s), -1)
    made = made.to(x.dtype)
    return torch.cat((made, rest), -1) if rest.shape[-1] else made
