# SPDX-License-Identifier: MIT
"""Linear attention, and its states."""

from __future__ import annotations

from typing import Any

from . import _arrays as arrays
from . import _c, _gpu
from ._attend import Problem
from ._c import Error
from ._plan import aligned, thread


class State:
    """State of `linear_attention()` after its last row. It is opaque, and it pickles.

    Parameters
    ----------
    bytes_ : bytes
        The sums over all keys so far.
    batch : int
        Number of sequences.
    made_for : tuple
        The plan and sizes it belongs to.
    """

    def __init__(self, bytes_: bytes, batch: int, made_for: tuple[object, ...]) -> None:
        self._memory = aligned(len(bytes_))
        self._memory[:] = memoryview(bytes_)
        self._batch, self._made_for = batch, made_for

    def __reduce__(self) -> tuple[Any, ...]:
        return (State, (self._memory.tobytes(), self._batch, self._made_for))

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
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
    plan, s = p.plan, p.shape
    before = _before(p, state)
    size = _c.lib.linear_state(plan._handle, s.batch) if back or state is not None else 0
    after = aligned(size) if back else None
    if (p.device is not None or p.kind.away) and (back or not p.form.empty):
        o = _gpu.linear_forward(p, before, None if after is None else after.ctypes.data, size)
        return o, None if after is None else State(after.tobytes(), s.batch, _made_for(p))
    o = p.kind.empty(p.form.shapes["o"], p.q)
    if p.form.empty and not back:
        return o, None
    tables = p.tables
    call, alive = p.call(o)
    try:
        work = thread.work(p.room(call, 0))
        to = None if after is None else after.ctypes.data
        _c.check(p.run("linear_forward", call, plan._handle, tables.at, work, call, before, to), thread.error)
    finally:
        thread.done()
    del alive
    return o, None if after is None else State(after.tobytes(), s.batch, _made_for(p))


def backward(p: Problem, o: Any, dout: Any, wanted: Any, wanted_tensors: list[bool]) -> tuple[list[Any], list[Any]]:
    if p.device is not None or p.kind.away:
        return _gpu.backward(p, o, None, None, dout, None, None, wanted, wanted_tensors)
    grads, dtensors = p.grads(wanted, wanted_tensors)
    if p.form.empty:
        return grads, dtensors
    tables = p.tables
    call, alive = p.call(o)
    grad = p.grad(dout, grads, arrays.pointers(p.kind, dtensors), alive)
    try:
        work = thread.work(p.room(call, 1))
        _c.check(p.run("linear_backward", call, p.plan._handle, tables.at, work, call, grad), thread.error)
    finally:
        thread.done()
    del alive
    return grads, dtensors


def results(o: Any, state: Any) -> Any:
    return o if state is None else (o, state)
