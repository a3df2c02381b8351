# SPDX-License-Identifier: MIT
"""Attention as a textbook writes it, in float64, with a dense mask and bias."""

from __future__ import annotations

from typing import Any

import numpy as np


def visible(rows: int, keys: int, causal: bool, window: tuple[int, int], q_pos: Any = None, k_pos: Any = None) -> Any:
    """Which row sees which key, [rows, keys]."""
    q = np.arange(keys - rows, keys) if q_pos is None else np.asarray(q_pos)
    k = np.arange(keys) if k_pos is None else np.asarray(k_pos)
    d = q[:, None] - k[None, :]
    seen = d >= 0 if causal else np.ones_like(d, bool)
    left, right = window
    if left >= 0:
        seen &= d <= left
    if right >= 0 and not causal:
        seen &= -d <= right
    return seen


def scores(q: Any, k: Any) -> Any:
    """Of the product alone, [batch, heads, rows, keys]."""
    q, k = np.asarray(q, np.float64), np.asarray(k, np.float64)
    return np.einsum("bhid,bhjd->bhij", q, np.repeat(k, q.shape[1] // k.shape[1], 1)) * q.shape[-1] ** -0.5


def attention(
    q: Any, k: Any, v: Any, seen: Any, *, scale: Any = None, bias: Any = 0, cap: Any = None, sinks: Any = None
) -> Any:
    """o and lse of arrays [batch, heads, rows, width]; seen spreads over [batch, heads, rows, keys]."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    s = np.einsum("bhid,bhjd->bhij", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if cap:
        s = cap * np.tanh(s / cap)
    s = s + bias
    s = np.where(seen, s, -np.inf)
    if sinks is not None:
        column = np.broadcast_to(np.asarray(sinks, np.float64)[None, :, None, None], (*s.shape[:3], 1))
        s = np.concatenate((s, column), -1)
    top = s.max(-1, keepdims=True, initial=-np.inf)
    w = np.exp(s - np.where(np.isfinite(top), top, 0))
    total = w.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + top)[..., 0]
    w = np.divide(w, total, out=np.zeros_like(w), where=total > 0)[..., : k.shape[2]]
    return np.einsum("bhij,bhjd->bhid", w, v), np.where(np.isfinite(lse), lse, -np.inf), w


def rotated(x: Any, pos: Any, pairing: str, base: float, dim: int) -> Any:
    """rope of x [batch, heads, rows, width], by positions [batch, rows], in the first `dim` channels."""
    x, pairs = np.array(x, np.float64), dim // 2
    angle = np.asarray(pos)[:, None, :, None] * base ** (-np.arange(pairs) / pairs)
    first = slice(0, pairs) if pairing == "half" else slice(0, dim, 2)
    second = slice(pairs, dim) if pairing == "half" else slice(1, dim, 2)
    a, b = x[..., first].copy(), x[..., second].copy()
    x[..., first] = a * np.cos(angle) - b * np.sin(angle)
    x[..., second] = b * np.cos(angle) + a * np.sin(angle)
    return x


def slopes(heads: int, geometric: bool = False) -> Any:
    """Of alibi.  Official ones of other counts than powers of 2 are filled up from those of twice the power below."""
    power = heads if geometric else 1 << (heads.bit_length() - 1)
    made = 2.0 ** (-8 * np.arange(1, power + 1) / power)
    between = 2.0 ** (-4 * np.arange(1, 2 * power, 2) / power)
    return np.concatenate((made, between[: heads - power]))
