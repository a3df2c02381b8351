# SPDX-License-Identifier: MIT
"""What rows give to keys, for pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from . import _arrays as arrays
from . import _attend
from ._c import Error
from ._masks import lengths
from ._plan import Plan, Prepared


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
    encoding: str | Plan = "nope",
    *,
    v: Any = None,
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
    mask: Any = None,
    k_first: Any = None,
    k_last: Any = None,
    layout: str = "bhld",
    max_len: int | None = None,
) -> Any:
    """What row i gives to key j: [batch, heads, chosen rows, keys].  Each sums to 1, but for what a sink takes and what
    a stick has left.  v is needed by what looks at values: cope:gates=v, and shaw with values of another width."""
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
        "k_first": k_first,
        "k_last": k_last,
    }
    kind, q = arrays.read(q, "q")
    _, k = arrays.read(k, "k", kind)
    if layout not in arrays.LAYOUTS[:2]:
        raise Error(f"layout must be bhld or blhd here, not '{layout}'")
    text = encoding.encoding if isinstance(encoding, Plan) else encoding
    if v is None and isinstance(text, str) and "gates=v" in text:
        raise Error(f"v is missing: '{text}' makes its gates of values")
    batch, _, count, _ = arrays.sizes(q, "q", layout)
    keys = arrays.sizes(k, "k", layout)[2]
    which = _chosen(rows, count)
    axis = 2 if layout == "bhld" else 1
    x = q.take(which, axis) if kind.name == "numpy" else q.index_select(axis, kind.index(which))
    _positions(given, which, count, keys, batch)
    if mask is not None:
        _, mask = arrays.read(mask, "mask", kind)
        if mask.ndim > 1 and mask.shape[-2] != 1:
            _of_rows(mask, "mask", count, -2)
            mask = mask.take(which, -2) if kind.name == "numpy" else mask.index_select(-2, kind.index(which))
    opened = _attend.open_call(
        kind.detach(x),
        kind.detach(k),
        kind.detach(k if v is None else v),
        encoding,
        given=given,
        tensors=tensors
        if tensors is None or isinstance(tensors, Prepared)
        else {name: kind.detach(arrays.read(t, name, kind)[1]) for name, t in tensors.items()},
        mask=mask,
        softcap=softcap,
        sinks=sinks,
        layout=layout,
        causal=causal,
        window_size=window_size,
        scale=scale,
        max_len=max_len,
    )
    return opened.weights()


def _of_rows(x: Any, name: str, rows: int, axis: int = -1) -> Any:
    """What is given by row.  Rows are chosen from it, so its size is checked before."""
    if not x.ndim or x.shape[axis] != rows:
        raise Error(f"{name} has the shape {list(x.shape)}, and q {rows} rows")
    return x


def _positions(given: dict[str, Any], which: Any, rows: int, keys: int, batch: int) -> None:
    """The chosen rows stay where they are: positions, coordinates and segments of q are theirs alone."""
    for one, q, k in (("pos", "q_pos", "k_pos"), ("coords", "q_coords", "k_coords"), ("seg", "q_seg", "k_seg")):
        name = q
        if given[one] is not None and given[q] is None and given[k] is None:
            given[q] = given[k] = given[one]
            given[one], name = None, one
        if given[q] is not None:
            read = arrays.reals if one == "coords" else arrays.whole
            given[q] = _of_rows(read(given[q], name), name, rows)[..., which]
    for name in ("k_first", "k_last"):
        if given[name] is not None:
            bound = arrays.whole(given[name], name)
            if not bound.ndim or bound.shape[-1] == 1:
                bound = np.broadcast_to(bound, (*bound.shape[:-1], rows))
            given[name] = _of_rows(bound, name, rows)[..., which]
    if given["q_pos"] is None:
        ends = np.full(batch, keys) if given["k_lens"] is None else lengths(given["k_lens"], batch)
        given["q_pos"] = ends[:, None] - rows + which
        given["k_pos"] = np.broadcast_to(np.arange(keys), (batch, keys)).copy()
