# SPDX-License-Identifier: MIT
"""Linear attention, and its states."""

from __future__ import annotations

import ctypes as c
from typing import Any

from . import _arrays as arrays
from . import _c
from ._attend import Problem
from ._c import Error
from ._plan import aligned, thread


class State:
    """What later rows have to know of all keys so far: opaque, and it pickles."""

    def __init__(self, bytes_: bytes, batch: int, made_for: tuple[Any, ...]) -> None:
        self._memory = aligned(len(bytes_))
        self._memory[:] = memoryview(bytes_)
        self._batch, self._made_for = batch, made_for

    def __reduce__(self) -> tuple[Any, ...]:
        return (State, (self._memory.tobytes(), self._batch, self._made_for))

    @property
    def nbytes(self) -> int:
        return int(self._memory.size)


def _made_for(p: Problem) -> tuple[Any, ...]:
    return (p.plan.text, p.plan.dtype, p.shape.heads, p.shape.kv_heads, p.shape.dim, p.shape.value_dim)


def _before(p: Problem, state: Any) -> int | None:
    if state is None:
        return None
    if not isinstance(state, State):
        raise TypeError(f"state must be what return_state=True gave, not {type(state).__name__}")
    if state._made_for != _made_for(p) or state._batch != p.shape.batch:
        raise Error("state is that of another plan or batch")
    return int(state._memory.ctypes.data)


def forward(p: Problem, state: Any, back: bool) -> tuple[Any, Any]:
    """o, and the state after it if somebody wants it back."""
    kind, plan, s = p.kind, p.plan, p.shape
    o = kind.empty(s.of("o"), p.q)
    before = _before(p, state)
    size = _c.lib.linear_state(plan._handle, s.batch) if back else 0
    after = aligned(size) if back else None
    if p.empty() and not back:
        return o, None
    call = p.call()
    call.o = arrays.output(kind, o, s.layout)
    tables = p.tables
    try:
        room = _c.lib.workspace(plan._handle, call, 0)
        if not room:
            _c.check(thread.error.status or 1, thread.error)
        to = None if after is None else after.ctypes.data
        _c.check(_c.lib.linear_forward(plan._handle, tables.at, thread.work(room), call, before, to), thread.error)
    finally:
        thread.done()
    return o, None if after is None else State(after.tobytes(), s.batch, _made_for(p))


def backward(p: Problem, o: Any, dout: Any, wanted: Any, wanted_tensors: list[bool]) -> tuple[list[Any], list[Any]]:
    kind, plan, s = p.kind, p.plan, p.shape
    three = zip("qkv", wanted, (p.q, p.k, p.v), strict=True)
    grads = [kind.empty(s.of(name), x) if want else None for name, want, x in three]
    dtensors = [
        kind.empty(tuple(x.shape), x) if want and t.role != "fixed" else None
        for t, x, want in zip(plan.tensors, p.tensors, wanted_tensors, strict=True)
    ]
    if p.empty():
        return [x if x is None else kind.zeros(tuple(x.shape), x) for x in grads], [
            x if x is None else kind.zeros(tuple(x.shape), x) for x in dtensors
        ]
    call = p.call()
    call.o = arrays.view(kind, arrays.in_place(kind, o), s.layout)
    pointers = arrays.pointers(kind, dtensors)
    grad = _c.Grad(size=c.sizeof(_c.Grad), dtensors=c.addressof(pointers), dout=arrays.view(kind, dout, s.layout))
    for name, x in zip(("dq", "dk", "dv"), grads, strict=True):
        if x is not None:
            setattr(grad, name, arrays.output(kind, x, s.layout))
    tables = p.tables
    try:
        room = _c.lib.workspace(plan._handle, call, 1)
        if not room:
            _c.check(thread.error.status or 1, thread.error)
        _c.check(_c.lib.linear_backward(plan._handle, tables.at, thread.work(room), call, grad), thread.error)
    finally:
        thread.done()
    return grads, dtensors


def results(o: Any, state: Any) -> Any:
    return o if state is None else (o, state)
