# SPDX-License-Identifier: MIT
"""What rows give to keys, for pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from . import _arrays as arrays
from . import _attend
from ._c import Error

COLUMNS = 256  # values at a time


def _chosen(rows: Any, count: int) -> Any:
    if rows is None:
        return np.arange(count)
    got = np.asarray(rows)
    if got.ndim != 1 or got.dtype.kind not in "iu":
        raise Error("rows must be a list of whole numbers")
    if got.size and (got.min() < -count or got.max() >= count):
        raise Error(f"rows are indices into the {count} rows of q, from 0 to {count - 1}")
    return got % count if count else got


def weights(
    q: Any,
    k: Any,
    encoding: str = "nope",
    *,
    rows: Sequence[int] | None = None,
    tensors: Mapping[str, Any] | None = None,
    causal: bool = True,
    window_size: Sequence[int] = (-1, -1),
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Any = None,
    pos: Any = None,
    q_pos: Any = None,
    k_pos: Any = None,
    coords: Any = None,
    q_coords: Any = None,
    k_coords: Any = None,
    seg: Any = None,
    q_seg: Any = None,
    k_seg: Any = None,
    k_lens: Any = None,
    layout: str = "bhld",
    max_len: int | None = None,
) -> Any:
    """What row i gives to key j: [batch, heads, chosen rows, keys].  Each sums to 1, but for what a sink takes and what
    a stick has left."""
    given: dict[str, Any] = {
        "pos": pos,
        "q_pos": q_pos,
        "k_pos": k_pos,
        "coords": coords,
        "q_coords": q_coords,
        "k_coords": k_coords,
        "seg": seg,
        "q_seg": q_seg,
        "k_seg": k_seg,
        "k_lens": k_lens,
    }
    kind, q = arrays.read(q, "q")
    _, k = arrays.read(k, "k", kind)
    dtype = arrays.check_dtype(kind, q, "q")
    batch, heads, count, dim = arrays.sizes(q, "q", layout)
    keys = arrays.sizes(k, "k", layout)[2]
    which = _chosen(rows, count)
    real = "float64" if dtype == "float64" else "float32"
    x, y = (kind.cast(a.detach() if kind.name == "torch" else a, real) for a in (q, k))
    axis = 2 if layout == "bhld" else 1
    x = x.take(which, axis) if kind.name == "numpy" else x.index_select(axis, kind.index(which))
    _positions(given, which, count, keys, batch)
    names = {part.split(":")[0].strip() for part in encoding.split("+")} if isinstance(encoding, str) else set()
    strip = dim if names & {"cope"} else COLUMNS  # gates of values want them as wide as keys
    mine = dict(tensors or {})
    made = np.zeros((batch, heads, which.size, keys), real)
    for first in range(0, keys, strip):
        width = min(strip, keys - first)
        columns = dim if strip == dim else width
        v = np.zeros((batch, keys, 1, columns) if layout == "blhd" else (batch, 1, keys, columns), real)
        ones = np.eye(keys, columns, -first, dtype=real)
        v[...] = ones[None, :, None, :] if layout == "blhd" else ones[None, None]
        heads_of_k = y.shape[2] if layout == "blhd" else y.shape[1]
        v = np.repeat(v, heads_of_k, 2 if layout == "blhd" else 1)
        if mine.get("shaw.v") is not None:
            shape = tuple(mine["shaw.v"].shape)[:-1]
            mine["shaw.v"] = kind.from_numpy(np.zeros((*shape, columns), real))
        opened = _attend.open_call(
            x,
            y,
            kind.from_numpy(v),
            encoding,
            given=given,
            tensors=mine,
            softcap=softcap,
            sinks=sinks,
            layout=layout,
            causal=causal,
            window_size=window_size,
            scale=scale,
            max_len=max_len,
        )
        o = kind.to_numpy(opened.forward()[0])
        made[..., first : first + width] = (o.swapaxes(1, 2) if layout == "blhd" else o)[..., :width]
    return kind.from_numpy(made)


def _positions(given: dict[str, Any], which: Any, rows: int, keys: int, batch: int) -> None:
    """The chosen rows stay where they are: positions, coordinates and segments of q are theirs alone."""
    for one, q, k in (("pos", "q_pos", "k_pos"), ("coords", "q_coords", "k_coords"), ("seg", "q_seg", "k_seg")):
        if given[one] is not None and given[q] is None and given[k] is None:
            given[q] = given[k] = given[one]
            given[one] = None
        if given[q] is not None:
            given[q] = np.asarray(given[q])[..., which]
    if given["q_pos"] is None:
        ends = np.full(batch, keys) if given["k_lens"] is None else np.asarray(given["k_lens"])
        given["q_pos"] = ends[:, None] - rows + which
        given["k_pos"] = np.broadcast_to(np.arange(keys), (batch, keys)).copy()
