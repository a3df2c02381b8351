# SPDX-License-Identifier: MIT
"""Sizes of a problem of attention."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from . import _arrays as arrays
from ._c import Error


@dataclass
class Shape:
    """What a problem's arrays say of it."""

    batch: int
    heads: int
    kv_heads: int
    rows: int
    keys: int
    dim: int
    value_dim: int
    layout: str

    def of(self, name: str) -> tuple[int, ...]:
        """The shape of q, k, v, o or a row of lse."""
        if name == "q":
            return arrays.shape_of(self.layout, self.batch, self.heads, self.rows, self.dim)
        if name == "o":
            return arrays.shape_of(self.layout, self.batch, self.heads, self.rows, self.value_dim)
        if name == "k":
            return arrays.shape_of(self.layout, self.batch, self.kv_heads, self.keys, self.dim)
        if name == "v":
            return arrays.shape_of(self.layout, self.batch, self.kv_heads, self.keys, self.value_dim)
        if name == "lse":
            lse = (self.heads, self.rows)
            return lse if self.layout == "thd" else (self.batch, *lse)
        raise KeyError(name)

    def to_plan(self) -> Shape:
        """A plan wants heads and widths, also where there is nothing to compute."""
        if self.heads and self.kv_heads and self.dim and self.value_dim:
            return self
        names = ("heads", "kv_heads", "rows", "keys", "dim", "value_dim")
        return replace(self, **{name: max(getattr(self, name), 1) for name in names})


def shape_of(q: Any, k: Any, v: Any, layout: str, table: tuple[int, int] | None = None) -> Shape:
    """Checked in this order, so that the sentence is about the later one.  With a table of pages k and v are pages."""
    if layout not in arrays.LAYOUTS:
        raise Error(f"layout must be one of {', '.join(arrays.LAYOUTS)}, not '{layout}'")
    batch, heads, rows, dim = arrays.sizes(q, "q", layout)
    k_batch, kv_heads, keys, k_dim = arrays.sizes(k, "k", layout)
    v_batch, v_heads, v_keys, value_dim = arrays.sizes(v, "v", layout)
    if table is not None:
        if table[0] != batch:
            raise Error(f"pages has {table[0]} rows, and q a batch of {batch}")
        if v_batch != k_batch:
            raise Error(f"v has {v_batch} pages and k {k_batch}")
        if v_keys != keys:
            raise Error(f"v has pages of {v_keys} rows and k of {keys}")
        k_batch = v_batch = batch
        keys = v_keys = keys * table[1]
    if k_batch != batch:
        raise Error(f"k has a batch of {k_batch} and q of {batch}")
    if k_dim != dim:
        raise Error(f"k is {k_dim} wide and q {dim}")
    if v_batch != batch:
        raise Error(f"v has a batch of {v_batch} and q of {batch}")
    if v_heads != kv_heads:
        raise Error(f"v has {v_heads} heads and k {kv_heads}")
    if v_keys != keys:
        raise Error(f"v has {v_keys} rows and k {keys}")
    for name, width in (("q", dim), ("v", value_dim)):
        if not width:
            raise Error(f"{name} is 0 wide; rows need at least one number")
    return Shape(batch, heads, kv_heads, rows, keys, dim, value_dim, layout)
