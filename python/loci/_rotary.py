# SPDX-License-Identifier: MIT
"""Rotation by tables of cos and sin that a caller has.  A pair of them is a state of `tape`, whose rotation does the
arithmetic and the gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _arrays as arrays
from . import _rows
from ._c import Error
from ._numpy import Numpy

PAIRINGS = ("half", "interleaved")


def _read(x: Any, name: str, kind: Any = None) -> tuple[Any, Any]:
    """arrays.read(), but for tensors of a compiler, whose ops check them."""
    if arrays.is_torch(x):
        from ._torch import Torch, by_op

        if by_op(x) and kind in (None, Torch):
            return Torch, x
    return arrays.read(x, name, kind)


def check_tables(kind: Any, cos: Any, sin: Any, width: int, ranks: tuple[int, ...] = (2,)) -> tuple[Any, Any]:
    """Two tables [positions, pairs], or [batch, rows, pairs], for rows of this width."""
    for name, x in (("cos", cos), ("sin", sin)):
        if not kind.owns(x):
            _read(x, name, kind)
    if cos.ndim not in ranks or cos.shape != sin.shape:
        forms = "[positions, pairs]" if ranks == (2,) else "[positions, pairs] or [batch, rows, pairs]"
        raise Error(f"cos and sin have the shapes {list(cos.shape)} and {list(sin.shape)}, not {forms} both")
    for name, x in (("cos", cos), ("sin", sin)):
        arrays.check_dtype(kind, x, name)
    pairs = int(cos.shape[-1])
    if 2 * pairs > width:
        hint = f"; give the first half of tables that have each angle twice, [..., :{pairs // 2}]"
        hint = hint if pairs == width and not pairs % 2 else ""
        raise Error(f"cos and sin have {pairs} pairs, and rows are {width} wide{hint}")
    return cos, sin


def _apart(x: Any) -> Any:
    """Channels 2t and 2t + 1 become t and t + pairs."""
    return x.reshape(*x.shape[:-1], -1, 2).swapaxes(-1, -2).reshape(x.shape)


def _together(x: Any) -> Any:
    return x.reshape(*x.shape[:-1], 2, -1).swapaxes(-1, -2).reshape(x.shape)


def turned(kind: Any, x: Any, cos: Any, sin: Any, interleaved: bool, layout: str, follow: bool = True) -> Any:
    """x, rotated by cos and sin of each row, [rows, pairs] or [batch, rows, pairs].  Numbers of 16 bits are rotated as
    float32 and rounded once.  Without `follow` neither autograd nor a compiler looks on."""
    lib = kind.library
    batch, heads, rows, _ = arrays.sizes(x, "x", layout)
    pairs = int(cos.shape[-1])
    if not pairs:
        return kind.copy(x)
    real = "float64" if kind.dtype(x) == "float64" else "float32"
    cos, sin = (t if kind.dtype(t) == real else kind.cast(t, real) for t in (cos, sin))
    states = lib.stack((cos, sin), -1)
    states = kind.spread(states[None] if cos.ndim == 2 else states[:, None], (batch, heads, rows, pairs, 2))
    some = x[..., : 2 * pairs]
    some = _apart(some) if interleaved else some
    if kind is Numpy or not follow:
        opened = _rows.of_states(kind, some, states, layout)
        made = opened.forward(opened.x, opened.tensors)
    else:
        from ._torch_calls import by_states

        made = by_states(some, states, layout)
    made = _together(made) if interleaved else made
    return lib.concatenate((made, x[..., 2 * pairs :]), -1) if 2 * pairs < x.shape[-1] else made


def _positions(x: Any, pos: Any, cu_seqlens: Any, layout: str) -> Any:
    """Where rows are, as their library indexes; None: 0, 1, 2, ..."""
    batch, _, rows, _ = arrays.sizes(x, "x", layout)
    if cu_seqlens is not None:
        pos = _rows.packed_positions(cu_seqlens, x, pos, layout)
    elif pos is None:
        return None
    if arrays.is_torch(pos) and arrays.is_torch(x):
        from ._torch import by_op

        if by_op(x):
            return pos
    return arrays.whole(pos, "pos", ((rows,),) if layout == "thd" else ((rows,), (batch, rows)))


def rotate_by(x: Any, cos: Any, sin: Any, pairing: str, pos: Any, cu_seqlens: Any, layout: str, inverse: bool) -> Any:
    kind, x = _read(x, "x")
    cos, sin = (_read(t, name, kind)[1] for name, t in (("cos", cos), ("sin", sin)))
    if pairing not in PAIRINGS:
        raise Error(f"pairing must be one of {', '.join(PAIRINGS)}, not '{pairing}'")
    if layout not in arrays.LAYOUTS:
        raise Error(f"layout must be one of {', '.join(arrays.LAYOUTS)}, not '{layout}'")
    arrays.check_dtype(kind, x, "x")
    batch, _, rows, width = arrays.sizes(x, "x", layout)
    check_tables(kind, cos, sin, width, (2, 3))
    if cos.ndim == 3:
        if pos is not None or cu_seqlens is not None:
            raise Error("cos and sin are [batch, rows, pairs], one for each row, so pos and cu_seqlens must be None")
        if layout == "thd" or tuple(cos.shape[:2]) not in ((batch, rows), (1, rows)):
            said = list(cos.shape)
            raise Error(f"cos and sin have the shape {said}, and x {rows} rows in a batch of {batch}")
    elif layout == "thd" and pos is None and cu_seqlens is None:
        raise Error("layout 'thd' is packed: cu_seqlens says where its sequences begin, or pos where each row is")
    else:
        at = _positions(x, pos, cu_seqlens, layout)
        if at is None and cos.shape[0] < rows:
            raise Error(f"cos and sin have {cos.shape[0]} positions, and x {rows} rows")
        cos, sin = (cos[:rows], sin[:rows]) if at is None else of_rows(kind, cos, sin, at)
    return turned(kind, x, cos, -sin if inverse else sin, pairing == "interleaved", layout)


def of_rows(kind: Any, cos: Any, sin: Any, pos: Any) -> tuple[Any, Any]:
    """Those of rows at these positions."""
    if isinstance(pos, np.ndarray):
        if pos.size and not 0 <= int(pos.min()) <= int(pos.max()) < cos.shape[0]:
            raise Error(f"cos has {cos.shape[0]} rows, and positions go from {pos.min()} to {pos.max()}")
        pos = kind.from_numpy(pos)
    return cos[pos], sin[pos]
