# SPDX-License-Identifier: MIT
"""What rows give to keys, for pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from . import _arrays as arrays
from . import _attend
from ._c import Error
from ._masks import MASKS, lengths
from ._numbers import real
from ._plan import Plan, Prepared
from ._types import ArrayLike, IntArrayLike, RealArrayLike, Tensors


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
    q: ArrayLike,
    k: ArrayLike,
    encoding: str | Plan = "nope",
    *,
    v: ArrayLike | None = None,
    rows: Sequence[int] | None = None,
    tensors: Tensors | None = None,
    causal: bool = True,
    window_size: Sequence[int] = (-1, -1),
    scale: float | None = None,
    softcap: float | None = None,
    sinks: ArrayLike | None = None,
    pos: IntArrayLike | None = None,
    q_pos: IntArrayLike | None = None,
    k_pos: IntArrayLike | None = None,
    coords: RealArrayLike | None = None,
    q_coords: RealArrayLike | None = None,
    k_coords: RealArrayLike | None = None,
    seg: IntArrayLike | None = None,
    q_seg: IntArrayLike | None = None,
    k_seg: IntArrayLike | None = None,
    k_lens: int | IntArrayLike | None = None,
    mask: ArrayLike | None = None,
    k_first: IntArrayLike | None = None,
    k_last: IntArrayLike | None = None,
    layout: str = "bhld",
    max_len: int | None = None,
    dropout_p: float = 0.0,
    dropout_seed: int | None = None,
) -> Any:
    """Compute the weights that rows give to keys, for looking at them.

    Parameters
    ----------
    q : array [batch, heads, rows, dim]
        Queries, in the order of axes that `layout` says.
    k : array [batch, kv_heads, keys, dim]
        Keys. `heads` is a multiple of `kv_heads`.
    encoding : str or Plan
        Name and options of one or more encodings, such as `"rope:pairing=half+alibi"`, or a plan. `"nope"` is no
        encoding.
    v : array [batch, kv_heads, keys, value_dim], optional
        Values, which only `cope:gates=v` and `shaw` with values of another width need.
    rows : sequence of int, optional
        Indices of the rows to compute. Negative ones count from the end; by default all rows.
    tensors : mapping of str to array, optional
        Tensors that the encoding learns or reads, by name (`"t5.table"`). `Plan.tensors` lists names and shapes.
    causal : bool
        Hide later keys from each row. The last row is aligned with the last key.
    window_size : (int, int)
        Keys that a row sees to its left and right. -1 leaves a side open; 0 is the own position only.
    scale : float, optional
        Factor on the product of q and k. None is the encoding's own, by default 1/sqrt(dim). 0 is refused.
    softcap : float, optional
        Cap c of the product: c tanh(score / c). None or 0 is no cap.
    sinks : array [heads], optional
        Logit of each head that joins the softmax and takes weight without a value.
    pos : int array [rows] or [batch, rows], optional
        Positions of rows and keys alike, as many of each. By default keys count from 0 and the last row is at the
        last key.
    q_pos : int array [rows] or [batch, rows], optional
        Positions of rows, given together with `k_pos`.
    k_pos : int array [keys] or [batch, keys], optional
        Positions of keys, given together with `q_pos`.
    coords : array [axes, rows] or [batch, axes, rows], optional
        Coordinates of rows and keys alike, for encodings of several axes.
    q_coords : array [axes, rows] or [batch, axes, rows], optional
        Coordinates of rows, given together with `k_coords`.
    k_coords : array [axes, keys] or [batch, axes, keys], optional
        Coordinates of keys, given together with `q_coords`.
    seg : int array [rows] or [batch, rows], optional
        Segments of rows and keys alike. A row sees keys of its own segment; negative is padding.
    q_seg : int array [rows] or [batch, rows], optional
        Segments of rows, given together with `k_seg`.
    k_seg : int array [keys] or [batch, keys], optional
        Segments of keys, given together with `q_seg`.
    k_lens : int or int array [batch], optional
        Number of valid keys of each batch entry, or one number for all.
    mask : array, optional
        Dense mask that broadcasts to [batch, heads, rows, keys]. True is visible; numbers are added to scores and
        have a gradient. It applies beside `causal`.
    k_first : int array, optional
        First key that each row sees. It broadcasts to [batch, rows].
    k_last : int array, optional
        Last key that each row sees. It broadcasts to [batch, rows].
    layout : {"bhld", "blhd"}
        Order of axes: batch (b), heads (h), length (l), width (d).
    max_len : int, optional
        Context length, for encodings whose rule depends on one.
    dropout_p : float
        Drop each weight with this probability, from 0 and below 1, and divide the others by 1 - dropout_p.
    dropout_seed : int, optional
        Which weights are dropped: those that `loci.attention()` drops with the same seed. By default torch's
        generator gives one; numpy needs it.

    Returns
    -------
    array [batch, heads, chosen rows, keys]
        Each row sums to 1, but for what a sink takes, stick-breaking leaves over, or dropout drops.

    Raises
    ------
    Error
        An argument has a wrong shape, type or value, or options exclude each other.
    TypeError
        An argument has a wrong Python type.
    """
    values = pos, q_pos, k_pos, coords, q_coords, k_coords, seg, q_seg, k_seg, k_lens, None, None, k_first, k_last, None
    given: dict[str, Any] = dict(zip(MASKS, values, strict=True))
    kind, whole = arrays.read(q, "q")
    _, k = arrays.read(k, "k", kind)
    if layout not in arrays.LAYOUTS[:2]:
        raise Error(f"layout must be bhld or blhd here, not '{layout}'")
    text = encoding.encoding if isinstance(encoding, Plan) else encoding
    if v is None and isinstance(text, str) and "gates=v" in text:
        raise Error(f"v is missing: '{text}' makes its gates of values")
    if isinstance(encoding, Plan) and encoding.values_in_keys:
        raise Error("weights do not depend on values: give a plan without values_in_keys", "unsupported")
    batch, _, count, _ = arrays.sizes(whole, "q", layout)
    keys = arrays.sizes(k, "k", layout)[2]
    chosen = which = _chosen(rows, count)
    dropout_p = real(dropout_p, "dropout_p")
    draws = dropout_p != 0 and dropout_seed is None and kind.name == "torch"
    if dropout_p and which.size:  # which weights are dropped is counted from the last row
        which = np.arange(which.min(), count)
    axis = 2 if layout == "bhld" else 1
    x = whole.take(which, axis) if kind.name == "numpy" else whole.index_select(axis, kind.index(which))
    _positions(given, which, count, keys, batch)
    pairs: Any = None
    if mask is not None:
        _, pairs = arrays.read(mask, "mask", kind)
        if pairs.ndim > 1 and pairs.shape[-2] != 1:
            _of_rows(pairs, "mask", count, -2)
            pairs = pairs.take(which, -2) if kind.name == "numpy" else pairs.index_select(-2, kind.index(which))
    opened = _attend.open_call(
        kind.detach(x),
        kind.detach(k),
        kind.detach(k if v is None else v),
        encoding,
        given=given,
        tensors=tensors
        if tensors is None or isinstance(tensors, Prepared)
        else {name: kind.detach(arrays.read(t, name, kind)[1]) for name, t in tensors.items()},
        mask=pairs,
        softcap=softcap,
        sinks=sinks,
        layout=layout,
        causal=causal,
        window_size=window_size,
        scale=scale,
        max_len=max_len,
        dropout_p=dropout_p,
        dropout_seed=0 if draws else dropout_seed,
    )
    if draws and opened.dropout is not None:  # last, so that a refused call draws nothing
        from ._torch_calls import _seed

        opened.dropout = opened.dropout[0], int(_seed())
    made = opened.weights()
    if chosen is which:
        return made
    at = chosen - which[0]
    return made[:, :, at if kind.name == "numpy" else kind.index(at)]


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
