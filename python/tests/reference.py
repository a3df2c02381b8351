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
    s = np.einsum("bhid,bhjd->bhij", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale) + bias
    if cap:
        s = cap * np.tanh(s / cap)
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
