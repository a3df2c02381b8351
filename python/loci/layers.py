# SPDX-License-Identifier: MIT
"""What stands around attention in the layers of FoX (Pro), TaPE, Llama 4 and Selective RoPE: docs/layers.md.

Rows are [batch, heads, length, width].  Numbers are computed in double and rounded once; 16 bits are widened, and the
result is rounded back.  All is differentiable in torch, but for a shift from a token before, which is refused, and its
token after."""

from __future__ import annotations

import ctypes as c
from typing import Any

import numpy as np

from . import _arrays as arrays
from . import _c
from ._c import Error
from ._numbers import INT, LONG, real, whole
from ._numpy import Numpy
from ._plan import host, thread
from ._ranks import alone
from ._types import ArrayLike, IntArrayLike

MIXES = {"rowsum": 0, "full": 1}
ACTIVATIONS = {"sigmoid": 0, "silu": 1}


class _Work:
    """One call of a function of layers.h: arrays in, arrays out, and back."""

    def __init__(self, kind: Any, dtype: str, batch: int, rows: int, heads: int, width: int) -> None:
        self.kind, self.dtype = kind, dtype
        self.sizes = batch, rows, heads, width

    def layer(self) -> Any:
        batch, rows, heads, width = self.sizes
        return _c.Layer(
            size=c.sizeof(_c.Layer),
            dtype=_c.DTYPES[self.dtype],
            batch=batch,
            rows=rows,
            heads=heads,
            width=width,
            host=host(),
            error=thread.error_at,
        )

    def forward(self, arrays_: tuple[Any, ...]) -> tuple[Any, ...]:
        raise NotImplementedError

    def backward(self, douts: Any, arrays_: Any, outputs: Any, needs: Any) -> tuple[Any, ...]:
        raise NotImplementedError

    def copy_given(self) -> None:
        """Copies what is no tensor of autograd, for a backward pass: the caller may change his arrays before it."""

    def empty(self, like: Any) -> Any:
        return self.kind.empty(tuple(like.shape), like)

    def pointer(self, x: Any) -> Any:
        return None if x is None else self.kind.pointer(x)


def _dense(kind: Any, x: Any) -> _c.View:
    """Of [batch, heads, length, width] without gaps."""
    return _c.View() if x is None else _c.View(kind.pointer(x), 0, 0, 0)


def _run(function: Any, *arguments: Any) -> None:
    _c.check(function(*arguments), thread.error)


def _apply(work: _Work, tensors: tuple[Any, ...], back_to: str) -> tuple[Any, ...]:
    """The outputs, through autograd where somebody wants that, in the type that came."""
    wide = tuple(_widened(work.kind, x, work.dtype) for x in tensors)
    made = _compute(work, wide)
    return made if back_to == work.dtype else tuple(work.kind.cast(y, back_to) for y in made)


def _widened(kind: Any, x: Any, dtype: str) -> Any:
    return kind.dense(x if kind.dtype(x) == dtype else kind.cast(x, dtype))


def _compute(work: _Work, wide: tuple[Any, ...]) -> tuple[Any, ...]:
    """The outputs of arrays that have the types of the call."""
    if work.kind.name == "torch":
        from . import _torch

        if _torch.wants_gradient(*wide) or _torch.transformed():
            work.copy_given()
            return _torch.apply(_torch.of_work(work), *wide)
        wide = tuple(x.detach() for x in wide)
    return work.forward(wide)


def _open(named: dict[str, Any]) -> tuple[Any, str, str, list[Any]]:
    """The library, the type to compute in, the type to give back, and the arrays."""
    kind: Any = None
    opened = []
    types = []
    for name, x in named.items():
        kind, x = arrays.read(x, name, kind)
        types.append(arrays.check_dtype(kind, x, name))
        opened.append(x)
    if any((dtype == "float64") != (types[0] == "float64") for dtype in types):
        first = next(iter(named))
        raise Error(f"{first} is {types[0]}, and all must be float64 or none")
    return kind, "float64" if types[0] == "float64" else "float32", types[0], opened


def _four(x: Any, name: str) -> tuple[int, int, int, int]:
    if len(x.shape) != 4:
        raise Error(f"{name} has {len(x.shape)} dimensions; layers want [batch, heads, length, width]")
    return int(x.shape[0]), int(x.shape[1]), int(x.shape[2]), int(x.shape[3])


def _want(x: Any, name: str, shape: tuple[int, ...]) -> None:
    if tuple(x.shape) != shape:
        raise Error(f"{name} has the shape {list(x.shape)}, not {list(shape)}")


# ---- RMSNorm -------------------------------------------------------------------------------------


class _Rmsnorm(_Work):
    eps = 1e-6

    def forward(self, arrays_: tuple[Any, ...]) -> tuple[Any, ...]:
        x, *w = arrays_
        y = self.empty(x)
        weight = self.pointer(w[0]) if w else None
        _run(_c.lib.rmsnorm, self.layer(), _dense(self.kind, x), weight, self.eps, _dense(self.kind, y))
        return (y,)

    def backward(self, douts: Any, arrays_: Any, outputs: Any, needs: Any) -> tuple[Any, ...]:
        x, *w = arrays_
        kind = self.kind
        dx, dw = self.empty(x), self.empty(w[0]) if w else None
        dy = kind.dense(douts[0])  # a name, so that a copy lives while C reads it
        _run(
            _c.lib.rmsnorm_backward,
            self.layer(),
            _dense(kind, x),
            self.pointer(w[0]) if w else None,
            self.eps,
            _dense(kind, dy),
            _dense(kind, dx),
            self.pointer(dw),
        )
        return (dx, dw) if w else (dx,)


def rmsnorm(x: ArrayLike, weight: ArrayLike | None = None, eps: float = 1e-6) -> Any:
    """Normalise rows: weight x / sqrt(mean(x^2) + eps).

    Parameters
    ----------
    x : array [batch, heads, length, width]
        Rows.
    weight : array [heads, width], optional
        Factors. By default 1.
    eps : float
        Added to the mean of squares.

    Returns
    -------
    array
        In the shape and type of x.
    """
    named = {"x": x} if weight is None else {"x": x, "weight": weight}
    kind, dtype, back, opened = _open(named)
    batch, heads, rows, width = _four(opened[0], "x")
    if weight is not None:
        _want(opened[1], "weight", (heads, width))
    work = _Rmsnorm(kind, dtype, batch, rows, heads, width)
    work.eps = real(eps, "eps")
    return _apply(work, tuple(opened), back)[0]


# ---- Shift ---------------------------------------------------------------------------------------


class _Shift(_Work):
    seg: Any = None
    before: Any = None
    after: Any = None

    def copy_given(self) -> None:
        self.seg = None if self.seg is None else self.seg.copy()

    def _segments(self) -> tuple[Any, int]:
        return (None, 0) if self.seg is None else (self.seg.ctypes.data, int(self.seg.ndim == 2))

    def forward(self, arrays_: tuple[Any, ...]) -> tuple[Any, ...]:
        x, logits = arrays_
        y, kind = self.empty(x), self.kind
        seg, per_batch = self._segments()
        before, after = self.pointer(self.before), self.pointer(self.after)
        views = _dense(kind, x), _dense(kind, logits)
        _run(_c.lib.shift, self.layer(), *views, seg, per_batch, before, after, _dense(kind, y))
        return (y,)

    def backward(self, douts: Any, arrays_: Any, outputs: Any, needs: Any) -> tuple[Any, ...]:
        x, logits = arrays_
        dx, dlogits, kind = self.empty(x), self.empty(logits), self.kind
        seg, per_batch = self._segments()
        dy = kind.dense(douts[0])
        views = [_dense(kind, a) for a in (dy, dx, dlogits)]
        _run(_c.lib.shift_backward, self.layer(), _dense(kind, x), _dense(kind, logits), seg, per_batch, *views)
        return dx, dlogits


def shift(
    x: ArrayLike,
    logits: ArrayLike,
    seg: IntArrayLike | None = None,
    before: ArrayLike | None = None,
    return_after: bool = False,
) -> Any:
    """Mix each row with the one before: a_t x_(t-1) + (1 - a_t) x_t, a = sigmoid(logits).

    Parameters
    ----------
    x : array [batch, heads, length, width]
        Rows.
    logits : array [batch, heads, length]
        Logits of a.
    seg : int array [length] or [batch, length], optional
        Segments. The first row of each has none before; negative is padding and gives 0.
    before : array [batch, heads, width], optional
        The last row of the part before. With it there is no gradient.
    return_after : bool
        Also return the last row of x, for the next part.

    Returns
    -------
    y : array
        In the shape and type of x.
    after : array [batch, heads, width]
        With `return_after` only.
    """
    if before is None:
        alone("shift() mixes a row with the one before")
    kind, dtype, back, opened = _open({"x": x, "logits": logits})
    batch, heads, rows, width = _four(opened[0], "x")
    _want(opened[1], "logits", (batch, heads, rows))
    work = _Shift(kind, dtype, batch, rows, heads, width)
    if seg is not None:
        work.seg = arrays.whole(seg, "seg", ((rows,), (batch, rows)))
    if before is not None:
        own, x = arrays.read(before, "before", kind)
        _want(x, "before", (batch, heads, width))
        if own.name == "torch" and any(own.wants_gradient(one) for one in (*opened, x)):
            raise Error("shift() with before has no gradient; use torch.no_grad()", "unsupported")
        x = own.detach(x)
        work.before = own.dense(x if own.dtype(x) == dtype else own.cast(x, dtype))
    if return_after:
        work.after = kind.zeros((batch, heads, width), opened[0], dtype)
    y = _apply(work, tuple(opened), back)[0]
    if not return_after:
        return y
    return y, work.after if back == dtype else kind.cast(work.after, back)


# ---- Gates ---------------------------------------------------------------------------------------


class _LogGate(_Work):
    def forward(self, arrays_: tuple[Any, ...]) -> tuple[Any, ...]:
        y = self.empty(arrays_[0])
        _run(_c.lib.log_gate, self.layer(), _dense(self.kind, arrays_[0]), _dense(self.kind, y))
        return (y,)

    def backward(self, douts: Any, arrays_: Any, outputs: Any, needs: Any) -> tuple[Any, ...]:
        dx, kind = self.empty(arrays_[0]), self.kind
        dy = kind.dense(douts[0])
        views = [_dense(kind, a) for a in (arrays_[0], dy, dx)]
        _run(_c.lib.log_gate_backward, self.layer(), *views)
        return (dx,)


def log_gate(logits: ArrayLike) -> Any:
    """Compute log sigmoid of each number.

    Parameters
    ----------
    logits : array
        Of any shape.

    Returns
    -------
    array
        In the shape and type of logits.
    """
    kind, dtype, back, opened = _open({"logits": logits})
    count = int(np.prod(tuple(opened[0].shape), dtype=np.int64))
    return _apply(_LogGate(kind, dtype, 1, count, 1, 1), tuple(opened), back)[0]


class _Gate(_Work):
    activation = 0

    def forward(self, arrays_: tuple[Any, ...]) -> tuple[Any, ...]:
        y, kind = self.empty(arrays_[0]), self.kind
        views = [_dense(kind, a) for a in (*arrays_, y)]
        _run(_c.lib.gate, self.layer(), self.activation, *views)
        return (y,)

    def backward(self, douts: Any, arrays_: Any, outputs: Any, needs: Any) -> tuple[Any, ...]:
        x, g = arrays_
        dx, dg, kind = self.empty(x), self.empty(g), self.kind
        dy = kind.dense(douts[0])
        views = [_dense(kind, a) for a in (x, g, dy, dx, dg)]
        _run(_c.lib.gate_backward, self.layer(), self.activation, *views)
        return dx, dg


def gate(x: ArrayLike, g: ArrayLike, activation: str = "sigmoid") -> Any:
    """Multiply by a gate: x sigmoid(g), or x g sigmoid(g) with silu.

    Parameters
    ----------
    x : array [batch, heads, length, width]
        Rows.
    g : array [batch, heads, length, width]
        Logits of the gate.
    activation : {"sigmoid", "silu"}
        Activation of the gate.

    Returns
    -------
    array
        In the shape and type of x.
    """
    if activation not in ACTIVATIONS:
        raise Error(f"activation must be one of {', '.join(ACTIVATIONS)}, not '{activation}'")
    kind, dtype, back, opened = _open({"x": x, "g": g})
    batch, heads, rows, width = _four(opened[0], "x")
    _want(opened[1], "g", (batch, heads, rows, width))
    work = _Gate(kind, dtype, batch, rows, heads, width)
    work.activation = ACTIVATIONS[activation]
    return _apply(work, tuple(opened), back)[0]


# ---- Temperature ---------------------------------------------------------------------------------


class _Temperature(_Work):
    numbers: tuple[float, float, int] = (0.0, 1.0, 0)
    pos: Any = None

    def copy_given(self) -> None:
        self.pos = None if self.pos is None else self.pos.copy()

    def forward(self, arrays_: tuple[Any, ...]) -> tuple[Any, ...]:
        y, kind = self.empty(arrays_[0]), self.kind
        pos, per_batch = (None, 0) if self.pos is None else (self.pos.ctypes.data, int(self.pos.ndim == 2))
        views = _dense(kind, arrays_[0]), _dense(kind, y)
        _run(_c.lib.temperature, self.layer(), *self.numbers, pos, per_batch, *views)
        return (y,)

    def backward(self, douts: Any, arrays_: Any, outputs: Any, needs: Any) -> tuple[Any, ...]:
        return self.forward((self.kind.dense(douts[0]),))


def temperature(x: ArrayLike, beta: float, length: float, from_: int = 0, pos: IntArrayLike | None = None) -> Any:
    """Scale queries by position: x (1 + beta ln(1 + floor((pos + from_) / length))).

    Parameters
    ----------
    x : array [batch, heads, length, width]
        Rows.
    beta : float
        Factor of the logarithm.
    length : float
        Positions up to which nothing changes.
    from_ : int
        Added to positions.
    pos : int array [length] or [batch, length], optional
        Positions. By default 0, 1, 2, ...

    Returns
    -------
    array
        In the shape and type of x.
    """
    if pos is None:
        alone("pos is missing")
    kind, dtype, back, opened = _open({"x": x})
    batch, heads, rows, width = _four(opened[0], "x")
    work = _Temperature(kind, dtype, batch, rows, heads, width)
    work.numbers = real(beta, "beta"), real(length, "length"), whole(from_, "from_", -LONG)
    if pos is not None:
        work.pos = arrays.whole(pos, "pos", ((rows,), (batch, rows)))
    return _apply(work, tuple(opened), back)[0]


# ---- Running angles ------------------------------------------------------------------------------


class _RunningAngles(_Work):
    exclusive = False
    seg: Any = None
    has_rate = has_before = return_after = False

    def copy_given(self) -> None:
        self.seg = None if self.seg is None else self.seg.copy()

    def _given(self, arrays_: tuple[Any, ...]) -> tuple[Any, Any, Any]:
        x, *more = arrays_
        rate = more.pop(0) if self.has_rate else None
        return x, rate, more.pop(0) if self.has_before else None

    def _segments(self) -> tuple[Any, int]:
        return (None, 0) if self.seg is None else (self.seg.ctypes.data, int(self.seg.ndim == 2))

    def _sums(self, like: Any) -> Any:
        batch, _, heads, width = self.sizes
        return self.kind.zeros((batch, heads, width), like, "float64")

    def forward(self, arrays_: tuple[Any, ...]) -> tuple[Any, ...]:
        x, rate, before = self._given(arrays_)
        y, kind = self.empty(x), self.kind
        after = self._sums(x) if self.return_after else None
        ends = self.pointer(before), self.pointer(after)
        how = self.pointer(rate), int(self.exclusive), *self._segments()
        _run(_c.lib.running_angles, self.layer(), _dense(kind, x), *how, *ends, _dense(kind, y))
        return (y,) if after is None else (y, after)

    def backward(self, douts: Any, arrays_: Any, outputs: Any, needs: Any) -> tuple[Any, ...]:
        x, rate, _ = self._given(arrays_)
        kind, (_, heads, width) = self.kind, self.sizes[1:]
        dx = self.empty(x)
        drate = kind.zeros((heads, width), x, "float64") if self.has_rate else None
        dbefore = self._sums(x) if self.has_before else None
        dy = kind.zeros(tuple(x.shape), x, self.dtype) if douts[0] is None else kind.dense(douts[0])
        dafter = kind.dense(douts[1]) if self.return_after and douts[1] is not None else None
        _run(
            _c.lib.running_angles_backward,
            self.layer(),
            _dense(kind, x),
            self.pointer(rate),
            int(self.exclusive),
            *self._segments(),
            _dense(kind, dy),
            self.pointer(dafter),
            _dense(kind, dx),
            self.pointer(drate),
            self.pointer(dbefore),
        )
        return tuple(d for d, given in ((dx, True), (drate, self.has_rate), (dbefore, self.has_before)) if given)


def running_angles(
    x: ArrayLike,
    rate: ArrayLike | None = None,
    *,
    exclusive: bool = False,
    seg: IntArrayLike | None = None,
    before: ArrayLike | None = None,
    return_after: bool = False,
) -> Any:
    """Sum increments of angles: y_t is the sum of rate x_l over l <= t, reduced to [-pi, pi] in float64.

    Parameters
    ----------
    x : array [batch, heads, length, width]
        Increments.
    rate : array [heads, width], optional
        Factors of the increments, used as float64. By default 1.
    exclusive : bool
        Sum over l < t.
    seg : int array [length] or [batch, length], optional
        Segments. The sums of each start at 0; negative is padding and gives 0.
    before : array [batch, heads, width], optional
        The sums so far, from `return_after` of the part before. By default 0.
    return_after : bool
        Also return the sums over all rows.

    Returns
    -------
    y : array
        In the shape and type of x.
    after : array [batch, heads, width]
        With `return_after` only, float64 for any type of x.
    """
    if before is None:
        alone("running_angles() sums over the rows before")
    kind, dtype, back, opened = _open({"x": x})
    batch, heads, rows, width = _four(opened[0], "x")
    work = _RunningAngles(kind, dtype, batch, rows, heads, width)
    work.exclusive, work.return_after = bool(exclusive), bool(return_after)
    wide = [_widened(kind, opened[0], dtype)]
    for name, given, shape in (("rate", rate, (heads, width)), ("before", before, (batch, heads, width))):
        if given is not None:
            own, array = arrays.read(given, name, kind)
            arrays.check_dtype(own, array, name)
            _want(array, name, shape)
            wide.append(_widened(own, array, "float64"))
            setattr(work, f"has_{name}", True)
    if seg is not None:
        work.seg = arrays.whole(seg, "seg", ((rows,), (batch, rows)))
    y, *after = _compute(work, tuple(wide))
    y = y if back == dtype else kind.cast(y, back)
    return (y, after[0]) if return_after else y


# ---- TaPE ----------------------------------------------------------------------------------------


def tape_start(
    batch: int,
    heads: int,
    length: int,
    dim: int,
    *,
    pos: IntArrayLike | None = None,
    base: float = 10000.0,
    factor: float = 1.0,
    dtype: str = "float32",
    like: ArrayLike | None = None,
) -> Any:
    """Create the states of TaPE before the first layer: cosines and sines of positions.

    Parameters
    ----------
    batch : int
        Number of sequences.
    heads : int
        Number of heads.
    length : int
        Number of tokens.
    dim : int
        Width of a head, even.
    pos : int array [length] or [batch, length], optional
        Positions. By default 0, 1, 2, ...
    base : float
        Base of the frequencies.
    factor : float
        Divides positions.
    dtype : str
        Type of the states. They are computed in float32 and rounded, unless it is float64.
    like : array, optional
        An array of the library to return. By default numpy.

    Returns
    -------
    array [batch, heads, length, dim / 2, 2]
        The states.
    """
    if pos is None:
        alone("pos is missing")
    batch, heads, length = whole(batch, "batch"), whole(heads, "heads", 0, INT), whole(length, "length")
    dim, base, factor = whole(dim, "dim", 0, INT), real(base, "base"), real(factor, "factor")
    kind, like = (Numpy, np.empty(0)) if like is None else arrays.read(like, "like")
    if dim % 2 or dim < 2:
        raise Error(f"dim must be even, not {dim}")
    own = "float64" if dtype == "float64" else "float32"
    e = kind.empty((batch, heads, length, dim // 2, 2), like, own)
    at = None if pos is None else arrays.whole(pos, "pos", ((length,), (batch, length)))
    work = _Work(kind, own, batch, length, heads, dim)
    where = None if at is None else at.ctypes.data
    per_batch = int(at is not None and at.ndim == 2)
    _run(_c.lib.tape_start, work.layer(), base, factor, where, per_batch, _dense(kind, e))
    return e if own == dtype else kind.cast(e, dtype)


class _AttentionUpdate(_Work):
    mix = 0

    def forward(self, arrays_: tuple[Any, ...]) -> tuple[Any, ...]:
        e, ae, w = arrays_
        y, kind = self.empty(e), self.kind
        views = _dense(kind, e), _dense(kind, ae)
        _run(_c.lib.tape_attention_update, self.layer(), self.mix, *views, self.pointer(w), _dense(kind, y))
        return (y,)

    def backward(self, douts: Any, arrays_: Any, outputs: Any, needs: Any) -> tuple[Any, ...]:
        _, ae, w = arrays_
        dae, dw, kind = self.empty(ae), self.empty(w), self.kind
        dy = kind.dense(douts[0])
        views = _dense(kind, dy), _dense(kind, dae)
        _run(
            _c.lib.tape_attention_update_backward,
            self.layer(),
            self.mix,
            _dense(kind, ae),
            self.pointer(w),
            *views,
            self.pointer(dw),
        )
        return dy, dae, dw


def _states(e: Any, name: str) -> tuple[int, int, int, int]:
    shape = tuple(int(size) for size in e.shape)
    if len(shape) != 5 or shape[4] != 2:
        raise Error(f"{name} has the shape {list(shape)}; states are [batch, heads, length, width / 2, 2]")
    return shape[0], shape[1], shape[2], 2 * shape[3]


def tape_attention_update(e: ArrayLike, ae: ArrayLike, w: ArrayLike, mix: str = "rowsum") -> Any:
    """Update the states of TaPE by attention's averages.

    rowsum: e_h + (sum over g of w[h][g]) ae_h; full: e_h + sum over g of w[h][g] ae_g.

    Parameters
    ----------
    e : array [batch, heads, length, width / 2, 2]
        States of the tokens.
    ae : array [batch, heads, length, width / 2, 2]
        Averages that attention returned.
    w : array [heads, heads]
        Learned weights.
    mix : {"rowsum", "full"}
        Which of the two sums.

    Returns
    -------
    array
        In the shape and type of e.
    """
    if mix not in MIXES:
        raise Error(f"mix must be one of {', '.join(MIXES)}, not '{mix}'")
    kind, dtype, back, opened = _open({"e": e, "ae": ae, "w": w})
    batch, heads, rows, width = _states(opened[0], "e")
    _want(opened[1], "ae", tuple(opened[0].shape))
    _want(opened[2], "w", (heads, heads))
    work = _AttentionUpdate(kind, dtype, batch, rows, heads, width)
    work.mix = MIXES[mix]
    return _apply(work, tuple(opened), back)[0]


class _MlpUpdate(_Work):
    units = 0

    def _gates(self, x: Any) -> _c.View:
        rows = self.sizes[1]
        return _c.View(self.kind.pointer(x), rows * self.units, rows * self.units, self.units)

    def forward(self, arrays_: tuple[Any, ...]) -> tuple[Any, ...]:
        e, gates, up, down = arrays_
        y, kind = self.empty(e), self.kind
        weights = self.pointer(up), self.pointer(down)
        views = _dense(kind, e), self._gates(gates)
        _run(_c.lib.tape_mlp_update, self.layer(), self.units, *views, *weights, _dense(kind, y))
        return (y,)

    def backward(self, douts: Any, arrays_: Any, outputs: Any, needs: Any) -> tuple[Any, ...]:
        e, gates, up, down = arrays_
        kind = self.kind
        de, dgates, dup, ddown = (self.empty(x) for x in arrays_)
        dy = kind.dense(douts[0])
        _run(
            _c.lib.tape_mlp_update_backward,
            self.layer(),
            self.units,
            _dense(kind, e),
            self._gates(gates),
            self.pointer(up),
            self.pointer(down),
            _dense(kind, dy),
            _dense(kind, de),
            self._gates(dgates),
            self.pointer(dup),
            self.pointer(ddown),
        )
        return de, dgates, dup, ddown


def tape_mlp_update(e: ArrayLike, gates: ArrayLike, up: ArrayLike, down: ArrayLike) -> Any:
    """Update the states of TaPE by the MLP's gates.

    e_h + sum over p of down[h][p] silu(gates_p) (sum over g of up[p][g] e_g).

    Parameters
    ----------
    e : array [batch, heads, length, width / 2, 2]
        States of the tokens.
    gates : array [batch, length, units]
        Gates of the MLP, before silu.
    up : array [units, heads]
        Learned weights.
    down : array [heads, units]
        Learned weights.

    Returns
    -------
    array
        In the shape and type of e.
    """
    kind, dtype, back, opened = _open({"e": e, "gates": gates, "up": up, "down": down})
    batch, heads, rows, width = _states(opened[0], "e")
    if len(opened[1].shape) != 3:
        raise Error(f"gates has the shape {list(opened[1].shape)}, not [batch, length, units]")
    units = int(opened[1].shape[2])
    _want(opened[1], "gates", (batch, rows, units))
    _want(opened[2], "up", (units, heads))
    _want(opened[3], "down", (heads, units))
    work = _MlpUpdate(kind, dtype, batch, rows, heads, width)
    work.units = units
    return _apply(work, tuple(opened), back)[0]
