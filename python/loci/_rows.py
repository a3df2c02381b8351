# SPDX-License-Identifier: MIT
"""Rows alone: rotations, and embeddings."""

from __future__ import annotations

import ctypes as c
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from . import _arrays as arrays
from . import _c, _gpu
from ._attend import formed_plan, take_tensors
from ._c import Error
from ._masks import masking, read_starts
from ._numbers import whole_or_none
from ._plan import Plan, Tables, host, kept, thread
from ._shape import Shape

STATES, STATES_OF_ROWS = "tape", "tape.eq"  # rotates by numbers of each row, and their name


@dataclass
class Opened:
    """A call that has been checked.  role None: an embedding."""

    kind: Any
    plan: Plan
    shape: Shape
    role: str | None
    pos: Any
    coords: Any
    per_batch: bool
    distance: int
    x: Any
    tensors: list[Any]
    flat: bool = False  # [L, Dm], without a batch
    device: Any = None  # that arrays of the CPU are copied to

    def copied(self) -> Opened:
        """For a backward pass, which must see the positions of the forward pass."""
        pos, coords = (None if x is None else x.copy() for x in (self.pos, self.coords))
        return replace(self, pos=pos, coords=coords)

    def tiled(self, times: int) -> Opened:
        def spread(x: Any) -> Any:
            return x if x is None or not self.per_batch else np.tile(x, (times,) + (1,) * (x.ndim - 1))

        if self.flat:
            raise Error("rows without a batch cannot be mapped by torch.func.vmap", "unsupported")
        shape = replace(self.shape, batch=self.shape.batch * times)
        return replace(self, shape=shape, pos=spread(self.pos), coords=spread(self.coords))

    def _call(self, pointers: Any) -> Any:
        s = self.shape
        pos = None if self.pos is None else self.pos.ctypes.data
        coords = None if self.coords is None else self.coords.ctypes.data
        call = _c.Call(
            size=c.sizeof(_c.Call),
            batch=s.batch,
            q_len=s.rows,
            per_batch=self.per_batch,
            q_pos=pos,
            tensors=c.addressof(pointers),
            host=host(),
            error=thread.error_at,
        )
        call.k_len, call.k_pos, call.q_coord, call.k_coord = s.rows, pos, coords, coords
        return call

    def _view(self, x: Any, written: bool) -> _c.View:
        return (arrays.output if written else arrays.view)(self.kind, x, self.shape.layout)

    def _tables(self, pointers: Any) -> Tables:
        return self.plan.tables(self.distance, pointers)

    def _run(self, size_of: int, call: Any, run: Any) -> None:
        try:
            size = _c.lib.workspace(self.plan._handle, call, size_of)
            if not size:
                _c.check(thread.error.status or 1, thread.error)
            _c.check(run(thread.work(size)), thread.error)
        finally:
            thread.done()

    def forward(self, x: Any, tensors: Any) -> Any:
        kind = self.kind
        x = arrays.in_place(kind, x)
        y = kind.empty(tuple(x.shape), x)
        if 0 in x.shape:
            return y
        if self.device is not None or kind.away:
            self._there(False, tensors, lambda there, view: (view(x), view(y, True)))
            return y
        pointers = arrays.pointers(kind, tensors)
        call, tables = self._call(pointers), self._tables(pointers)
        given, made = self._view(x, False), self._view(y, True)
        if self.role is None:
            _c.check(_c.lib.embed(self.plan._handle, tables.at, call, given, made), thread.error)
        else:
            which = _c.WHICH[self.role]
            self._run(0, call, lambda work: _c.lib.rotate(self.plan._handle, tables.at, work, call, which, given, made))
        return y

    def backward(self, x: Any, tensors: Any, dy: Any, wants_x: bool, wanted: Any) -> tuple[Any, list[Any]]:
        kind, plan = self.kind, self.plan
        x, dy = arrays.in_place(kind, x), arrays.in_place(kind, dy)
        dx = None
        if wants_x:
            dx = dy if self.role is None else kind.empty(tuple(x.shape), x)
        dtensors = [
            kind.zeros(tuple(t.shape), t) if want and own.role != "fixed" else None
            for own, t, want in zip(plan.tensors, tensors, wanted, strict=True)
        ]
        if 0 in x.shape or (self.role is None and not any(t is not None for t in dtensors)):
            return dx, dtensors
        if self.device is not None or kind.away:
            return dx, self._back_there(x, tensors, dy, dx, dtensors)
        pointers, back = arrays.pointers(kind, tensors), arrays.pointers(kind, dtensors)
        call, tables = self._call(pointers), self._tables(pointers)
        list_ = c.addressof(back)
        lib, handle = _c.lib, plan._handle
        if self.role is None:
            seen = self._view(dy, False)
            self._run(1, call, lambda work: lib.embed_backward(handle, tables.at, work, call, seen, list_))
            return dx, dtensors
        which = _c.WHICH[self.role]
        views = self._view(x, False), self._view(dy, False), _c.View() if dx is None else self._view(dx, True)
        self._run(1, call, lambda work: lib.rotate_backward(handle, tables.at, work, call, which, *views, list_))
        return dx, dtensors

    # ---- On a device -----------------------------------------------------------------------------

    def _there(self, back: bool, tensors: Any, arguments: Any) -> None:
        """Calls the function for a device with arguments(there, view)."""
        kind, plan = self.kind, self.plan
        there = _gpu.Direct(kind, kind.current()) if kind.away else _gpu.Staged(kind, self.device)

        def view(x: Any, written: bool = False) -> _c.View:
            made: _c.View = (there.write if written else there.read)(x, self.shape.layout)
            return made

        roles = [t.role for t in plan.tensors]
        pointers = arrays.for_prepare(kind, tensors, roles)
        tables = self._tables(pointers)
        given = (c.c_void_p * max(len(tensors), 1))(*pointers)
        for i, role in enumerate(roles):
            if role == "input" and tensors[i] is not None:
                given[i] = there.read_dense(tensors[i])
        call = self._call(given)
        call.host = None
        library, handle = _gpu.library(), _gpu.plan_on(there.device, plan)
        size = library.gpu_workspace(handle, call, back)
        work = there.room(size) if size else None  # without one, the call says what is wrong
        which = () if self.role is None else (_c.WHICH[self.role],)
        run = getattr(library, ("gpu_embed" if self.role is None else "gpu_rotate") + ("_backward" if back else ""))
        tables_there = _gpu.tables_on(there.device, tables)
        _c.check(run(handle, tables_there, work, call, *which, *arguments(there, view)), thread.error)
        there.done()

    def _back_there(self, x: Any, tensors: Any, dy: Any, dx: Any, dtensors: list[Any]) -> list[Any]:
        """Gradients of tensors.  C writes those of what is learned to memory of the CPU."""
        kind, own = self.kind, self.plan.tensors
        learned = {
            i: kind.host_like(t)
            for i, (t, tensor) in enumerate(zip(dtensors, own, strict=True))
            if t is not None and tensor.role != "input"
        }
        pointers = (c.c_void_p * max(len(dtensors), 1))()

        def arguments(there: Any, view: Any) -> tuple[Any, ...]:
            for i, t in enumerate(dtensors):
                if t is not None:
                    pointers[i] = kind.pointer(learned[i]) if i in learned else there.write_dense(t)
            list_ = c.addressof(pointers)
            if self.role is None:
                return view(dy), list_
            return view(x), view(dy), _c.View() if dx is None else view(dx, True), list_

        self._there(True, tensors, arguments)
        for i, t in learned.items():
            dtensors[i] = t if not kind.away else kind.from_host(t)
        return dtensors


def _place(x: Any, device: Any) -> tuple[Any, Any, Any]:
    """The class of arrays like x, x itself, and the device that arrays in memory of the CPU are copied to."""
    if device == _gpu.CPU:
        return *arrays.read(x, "x"), None
    kind, x = arrays.read_placed(x, "x")
    if device is None:
        return kind, x, None
    if kind.away:
        raise Error(f"device is for arrays in memory of the CPU, and x is on {x.device}: leave it out")
    return kind, x, _gpu.opened(device)


def _plan(key: tuple[Any, ...], checked: Mapping[str, Any], **arguments: Any) -> Plan:
    return formed_plan(key, lambda shapes=None: Plan(**arguments, shapes=shapes), checked)


def _given(kind: Any, tensors: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: arrays.read(x, name, kind)[1] for name, x in (tensors or {}).items()}


def packed_positions(cu_seqlens: Any, x: Any, pos: Any, layout: str) -> Any:
    """Where rows of packed sequences are, each of which begins with 0."""
    if pos is not None:
        raise Error("cu_seqlens and pos both say where rows are; give one of them")
    if layout != "thd":
        raise Error(f"cu_seqlens is for packed rows, layout 'thd', not '{layout}'")
    rows = int(x.shape[0])
    if arrays.is_torch(cu_seqlens) and arrays.is_torch(x):
        from ._torch import by_op
        from ._torch import packed_positions as of_tensors

        if by_op(x):
            return of_tensors(cu_seqlens, rows)
    starts = read_starts(cu_seqlens, "cu_seqlens", rows, "x")
    return np.arange(rows) - np.repeat(starts[:-1], np.diff(starts))


def open_rotation(
    x: Any,
    encoding: Any,
    *,
    pos: Any,
    coords: Any,
    role: str,
    tensors: Mapping[str, Any] | None,
    layout: str,
    max_len: int | None,
    device: Any = None,
) -> Opened:
    if not isinstance(encoding, (str, Plan)):
        raise TypeError(f"encoding must be a text such as 'rope:pairing=half', not {type(encoding).__name__}")
    if role not in _c.WHICH:
        raise Error(f"role must be one of {', '.join(_c.WHICH)}, not '{role}'")
    if layout not in arrays.LAYOUTS:
        raise Error(f"layout must be one of {', '.join(arrays.LAYOUTS)}, not '{layout}'")
    if layout == "thd" and pos is None and coords is None:
        raise Error("layout 'thd' is packed: cu_seqlens says where its sequences begin, or pos where each row is")
    max_len = whole_or_none(max_len, "max_len")
    kind, x, there = _place(x, device)
    dtype = arrays.check_dtype(kind, x, "x")
    batch, heads, rows, dim = arrays.sizes(x, "x", layout)
    if not dim:
        raise Error("x is 0 wide; rows need at least one number")
    s = Shape(batch, heads, heads, rows, rows, dim, dim, layout)
    checked = _given(kind, tensors)
    # Values rotate in plans of attention only, which know that they do; states belong to attention, too.
    stage = "attention" if role == "value" or encoding == STATES else "rotate"
    if isinstance(encoding, Plan):
        plan = encoding
        sizes = {"kv_heads": heads, "value_dim": dim} if role == "value" else {"heads": heads, "dim": dim}
        plan.fits(stage, dtype, "x", **{name: max(size, 1) for name, size in sizes.items()})
    else:
        key = (stage, encoding, heads, dim, dtype, max_len)
        options = {"heads": max(heads, 1), "dim": max(dim, 1), "dtype": dtype, "stage": stage, "max_len": max_len}
        plan = _plan(key, checked, encoding=encoding, **options)
    m = masking({"pos": pos, "coords": coords}, replace(s, layout="bhld"), plan.axes)  # rows alone need no starts
    distance = m.distance
    if m.q_pos is not None and m.q_pos.size:
        distance = max(abs(int(m.q_pos.max())), abs(int(m.q_pos.min())), 1)
    own = take_tensors(kind, plan, checked, s, role)
    return Opened(kind, plan, s, role, m.q_pos, m.q_coords, m.per_batch, distance, x, own, device=there)


def of_states(kind: Any, x: Any, states: Any, layout: str) -> Opened:
    """What open_rotation() makes of `tape` and states [batch, heads, rows, pairs, 2] that are known to fit.  What does
    not change from call to call is kept."""

    def make() -> tuple[Plan, Shape]:
        dtype = arrays.check_dtype(kind, x, "x")
        batch, heads, rows, dim = arrays.sizes(x, "x", layout)
        key = ("attention", STATES, heads, dim, dtype, None)
        options = {"heads": max(heads, 1), "dim": dim, "dtype": dtype, "stage": "attention"}
        return _plan(key, {}, encoding=STATES, **options), Shape(batch, heads, heads, rows, rows, dim, dim, layout)

    plan, s = kept((kind, STATES, layout, kind.signature(x)), make)
    given = [kind.dense(states) if t.name == STATES_OF_ROWS else None for t in plan.tensors]
    return Opened(kind, plan, s, "query", None, None, False, max(s.rows, 1), x, given)


def open_embedding(
    x: Any, encoding: Any, *, pos: Any, tensors: Mapping[str, Any] | None, max_len: int | None, device: Any = None
) -> Opened:
    if not isinstance(encoding, (str, Plan)):
        raise TypeError(f"encoding must be a text such as 'sinusoidal', not {type(encoding).__name__}")
    max_len = whole_or_none(max_len, "max_len")
    kind, x, there = _place(x, device)
    dtype = arrays.check_dtype(kind, x, "x")
    if len(x.shape) not in (2, 3):
        raise Error(f"x has {len(x.shape)} dimensions; embeddings are [batch, rows, width] or [rows, width]")
    batch, rows, width = (1, *x.shape) if len(x.shape) == 2 else tuple(x.shape)
    if not width:
        raise Error("x is 0 wide; rows need at least one number")
    flat = len(x.shape) == 2
    s = Shape(int(batch), 1, 1, int(rows), int(rows), int(width), int(width), "ld" if flat else "bld")
    checked = _given(kind, tensors)
    if isinstance(encoding, Plan):
        plan = encoding
        plan.fits("embed", dtype, "x", model_dim=int(width))
    else:
        key = ("embed", encoding, int(width), dtype, max_len)
        options = {"model_dim": int(width), "dtype": dtype, "stage": "embed", "max_len": max_len}
        plan = _plan(key, checked, encoding=encoding, **options)
    shapes = ((int(rows),), (int(batch), int(rows)))
    at = None if pos is None else arrays.whole(pos, "pos", shapes)
    per_batch = at is not None and at.ndim == 2
    own = take_tensors(kind, plan, checked, s)
    return Opened(kind, plan, s, None, at, None, per_batch, int(rows), x, own, flat, there)
