# SPDX-License-Identifier: MIT
"""Each encoding of attention with everything that a call of it wants."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import loci

PLACES = {"score", "rotate", "mix", "weight", "value", "state", "sum"}


def attending() -> Iterator[Any]:
    for e in loci.list():
        if e.name == "nope" or set(e.places) & PLACES:
            yield e


def inputs(plan: loci.Plan, batch: int, rows: int, keys: int, seed: int = 0, dtype: str = "float32") -> dict[str, Any]:
    """Numbers below 0, which gates may be; of reflections those that keep rows bounded."""
    rng = np.random.default_rng(seed)
    sizes = {"batch": batch, "queries": rows, "keys": keys}
    made = {}
    for t, shape in zip(plan.tensors, plan.sizes, strict=True):
        if t.role == "input":
            x = -np.abs(rng.standard_normal([sizes[z] if isinstance(z, str) else z for z in shape]))
            if t.source == "unit":
                x /= np.linalg.norm(x, axis=-1, keepdims=True)
            elif t.source == "strength":
                x = np.minimum(-x, 2)
            made[t.name] = x.astype(dtype)
    return made


def cut(plan: loci.Plan, given: dict[str, Any], first: int, end: int) -> dict[str, Any]:
    """Of inputs by row or key those from first to end."""
    made = {}
    for t, shape in zip(plan.tensors, plan.sizes, strict=True):
        if t.name in given and t.role == "input":
            axis = next(i for i, z in enumerate(shape) if z in ("queries", "keys"))
            made[t.name] = np.ascontiguousarray(np.take(given[t.name], range(first, end), axis))
    return made
