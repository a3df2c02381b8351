# SPDX-License-Identifier: MIT
"""Sinks that depend on the row: they only divide an output by a larger sum, so they come after the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import _arrays as arrays
from ._c import Error
from ._plan import Plan, acts_on


def by_row(sinks: Any, q: Any, encoding: Any, layout: str, return_lse: bool, out: Any, call: Callable[[], Any]) -> Any:
    """The results of a call without sinks, which returns o and lse, with sinks that spread to the shape of lse."""
    text = encoding.encoding if isinstance(encoding, Plan) else encoding
    if isinstance(text, str) and acts_on(text, "weight"):
        raise Error(f"'{text}' has no softmax that a sink could join")
    if out is not None:
        raise Error("out is for sinks [heads]; with sinks of each row leave it out")
    of_torch = arrays.is_torch(q)
    if of_torch != arrays.is_torch(sinks):
        names = ("torch", "numpy") if of_torch else ("numpy", "torch")
        raise Error(f"sinks is an array of {names[1]}, and q of {names[0]}")
    sinks = sinks if of_torch else arrays.read(sinks, "sinks")[1]
    if not (sinks.is_floating_point() if of_torch else sinks.dtype.kind == "f" or sinks.dtype.name == "bfloat16"):
        raise Error(f"sinks is {sinks.dtype}; it must be of numbers, as q is")
    o, lse, *more = call()
    shape, whole = tuple(sinks.shape), tuple(lse.shape)
    if len(shape) > len(whole) or any(a != 1 and a != b for a, b in zip(shape[::-1], whole[::-1], strict=False)):
        raise Error(f"sinks has the shape {list(shape)}, which does not spread to {list(whole)}")
    o, lse = (_torch if of_torch else _numpy)(o, lse, sinks, 1 if layout == "bhld" else 2)
    results = (o, lse, *more) if return_lse else (o, *more)
    return results if len(results) > 1 else o


def _torch(o: Any, lse: Any, sinks: Any, heads_at: int) -> tuple[Any, Any]:
    import torch

    sinks = sinks.to(lse.dtype)
    blind = lse == -torch.inf
    share = torch.sigmoid(lse.masked_fill(blind, 0) - sinks).masked_fill(blind, 0)
    joined = torch.logaddexp(lse.masked_fill(blind, 0), sinks)
    joined = torch.where(blind, sinks, joined)
    share = share.unsqueeze(-1) if heads_at == 1 else share.transpose(-1, -2).unsqueeze(-1)
    return (o.to(lse.dtype) * share).to(o.dtype), joined


def _numpy(o: Any, lse: Any, sinks: Any, heads_at: int) -> tuple[Any, Any]:
    sinks = sinks.astype(lse.dtype)
    blind = lse == -np.inf
    with np.errstate(over="ignore"):
        share = np.where(blind, 0, 1 / (1 + np.exp(sinks - np.where(blind, 0, lse))))
    joined = np.where(blind, sinks, np.logaddexp(np.where(blind, 0, lse), sinks))
    share = share[..., None] if heads_at == 1 else share.swapaxes(-1, -2)[..., None]
    return (o.astype(lse.dtype) * share).astype(o.dtype), joined.astype(lse.dtype)
