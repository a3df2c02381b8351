# SPDX-License-Identifier: MIT
"""Attention of transformers' models: by loci, or by torch where loci cannot, with a warning."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from . import attention as _attention
from ._c import Error
from ._fallback import FallbackWarning
from ._hf_masks import Sight
from ._ranks import alone

_REASONS = {
    "output_attentions": "weights of attention, which were asked for, are",
    "query_states": "attention of other rows' queries is",
    "positions": "attention to positions that are dropped is",
    "two_streams": "attention of two streams, which target_mapping asks for, is",
}

_lock = threading.Lock()
_told: set[tuple[str, ...]] = set()
_fused = 0
_fallback: dict[str, int] = {}
mode = "torch"


def set_mode(fallback: str) -> None:
    global mode
    if fallback not in ("torch", "error"):
        raise Error(f"fallback is 'torch' or 'error', not {fallback!r}")
    mode = fallback


def stats() -> dict[str, Any]:
    """Count calls of attention since the start or `reset_stats()`. Compiled code does not count.

    Returns
    -------
    dict
        `fused`: calls that loci computed; `fallback`: calls that torch computed, by reason.
    """
    with _lock:
        return {"fused": _fused, "fallback": dict(_fallback)}


def reset_stats() -> None:
    """Set the counts of `stats()` to zero, and allow warnings again that were given."""
    global _fused
    with _lock:
        _fused = 0
        _fallback.clear()
        _told.clear()


def count_fused() -> None:
    global _fused
    if not torch.compiler.is_compiling():
        with _lock:
            _fused += 1


def fall_back(reason: str) -> None:
    """Counts and warns, or refuses."""
    if mode == "error":
        raise Error(
            f"{_REASONS[reason]} not computed by loci, and loci.hf.register(fallback='error') makes that an Error"
        )
    if torch.compiler.is_compiling():
        return
    with _lock:
        _fallback[reason] = _fallback.get(reason, 0) + 1
        first = _fallback[reason] == 1
    if first:
        warnings.warn(
            f"{_REASONS[reason]} computed by torch, in memory of rows times keys; loci.hf.stats() counts such calls",
            FallbackWarning,
            stacklevel=2,
        )


def leave(classes: tuple[str, ...]) -> None:
    """Counts and warns, once for these classes, that transformers' own code computes their attention, or refuses."""
    verb = "computes" if len(classes) == 1 else "compute"
    who = f"{' and '.join(classes)} {verb} attention in transformers' own code and never ask{'s' * (verb[-1] == 's')}"
    if mode == "error":
        raise Error(f"{who} for 'loci', and loci.hf.register(fallback='error') makes that an Error")
    if torch.compiler.is_compiling():
        return
    with _lock:
        _fallback["own_code"] = _fallback.get("own_code", 0) + 1
        first = classes not in _told
        _told.add(classes)
    if first:
        warnings.warn(f"{who} for 'loci': it stays eager", FallbackWarning, stacklevel=3)


def by_torch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sight: Sight,
    *,
    scaling: float,
    dropout: float = 0.0,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The definition, in torch: o [batch, rows, heads, width] and weights.  Rows that see no key are zeros."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    s = (q @ k.transpose(-1, -2)) * scaling
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    if bias is not None:
        s = s + bias
    seen = sight.dense
    if seen is None:
        seen = sight.pairs(q.shape[2], k.shape[2])
    s = s.masked_fill(~seen, -torch.inf) if seen.dtype == torch.bool else s + seen
    if sinks is not None:
        column = sinks.reshape(1, -1, 1, 1) if sinks.ndim == 1 else sinks
        s = torch.cat((s, column.to(s.dtype).expand(*s.shape[:3], 1)), -1)
    blind = (s == -torch.inf).all(-1, keepdim=True)
    wide = torch.float32 if s.dtype in (torch.float16, torch.bfloat16) else s.dtype
    w = s.masked_fill(blind, 0).softmax(-1, dtype=wide).masked_fill(blind, 0).to(v.dtype)
    w = w[..., : k.shape[2]]
    w = functional.dropout(w, dropout) if dropout else w
    return (w @ v).transpose(1, 2).contiguous(), w


def _pairs(sight: Sight, bias: torch.Tensor | None) -> torch.Tensor | None:
    """What loci is told pair by pair."""
    if sight.dense is None or bias is None:
        return bias if sight.dense is None else sight.dense
    if sight.dense.dtype == torch.bool:
        return bias.masked_fill(~sight.dense, -torch.inf)
    return bias + sight.dense


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sight: Sight,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    encoding: str = "nope",
    tensors: Mapping[str, torch.Tensor] | None = None,
    bias: Callable[[], torch.Tensor] | None = None,
    dense_bias: bool = False,
    output_attentions: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """o [batch, rows, heads, width], and weights where they are wanted.  bias() is what the encoding adds, dense, for
    torch; with dense_bias loci has no encoding for it, and is given it as a mask."""
    for x, name in ((q, "q"), (k, "k"), (v, "v")):
        if x.device.type != "cpu":
            raise Error(f"{name} is on {x.device}; loci computes on the CPU")
    if q.shape[0] == 1 and k.shape[0] > 1:
        q = q.expand(k.shape[0], -1, -1, -1)  # learned queries
    scale = q.shape[-1] ** -0.5 if scaling is None else float(scaling)
    softcap = softcap or None
    if output_attentions:
        alone(f"{_REASONS['output_attentions']} computed by torch")
        fall_back("output_attentions")
        more = None if bias is None else bias()
        return by_torch(q, k, v, sight, scaling=scale, dropout=dropout, softcap=softcap, sinks=sinks, bias=more)
    count_fused()
    mask = _pairs(sight, bias() if bias is not None and dense_bias else None)
    o = _attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        encoding,
        tensors=tensors,
        scale=scale,
        softcap=softcap,
        sinks=sinks if sinks is None or sinks.ndim == 1 else sinks.squeeze(-1),  # of each row: [batch, heads, rows, 1]
        mask=mask,
        dropout_p=dropout,
        layout="blhd",
        **({"causal": False} if sight.dense is not None else sight.arguments(encoding != "nope")),
    )
    return o, None
