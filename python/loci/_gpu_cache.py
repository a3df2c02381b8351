# SPDX-License-Identifier: MIT
"""Caches whose keys and values are memory of a device.  Lengths and positions are in memory of the CPU.

Arrays of the CPU are copied there and results back.  Tensors of torch on the device are computed where they are, in
torch's current stream, so calls of a cache may come in several streams: each waits for the one before."""

from __future__ import annotations

import ctypes as c
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _arrays as arrays
from . import _c, _gpu
from ._c import Error
from ._plan import Plan, aligned, host, thread

if TYPE_CHECKING:
    from .cache import Cache

MOST_WHOLE, MOST_ROWS = 256, 8  # heads that are wider have so many rows: gpu/call.c


def read(place: Place | None, x: Any, name: str, kind: Any = None) -> tuple[Any, Any]:
    """As arrays.read(), of an array in memory of the CPU or of the device of the cache.  None is the CPU."""
    own = arrays.kind_of(x, name)
    if own is not None:
        own = own.placed(x)
        if own.away and (place is None or own.id != place.id):
            where = "the CPU" if place is None else place.id
            raise Error(f"{name} is on {own.id} and the cache on {where}: make the cache with device='{own.id}'")
        if kind is not None and own is not kind and own.family is kind.family:
            where = kind.id if kind.away else "cpu"
            raise Error(f"{name} is on {x.device} and arrays before it on {where}; arrays of a call are on one device")
    return arrays.read(x, name, own if kind is None else kind)


class Place:
    """Where a cache is, if that is a device."""

    def __init__(self, name: Any) -> None:
        self.device = _gpu.opened(name)  # for arrays of the CPU
        self.id = name if ":" in name or name == "host" else f"{name}:0"
        self.last = self.device  # which had the last call
        self.kind: Any = None  # of the tensors of that call, if they are on the device
        self.memory: Any = None
        self.size = 0

    def create(self, plan: Plan, batch: int, capacity: int, ring: bool) -> tuple[Any, np.ndarray[Any, Any]]:
        """The cache, and its memory of the CPU."""
        library, there, at = _gpu.library(), _gpu.plan_on(self.device, plan), c.c_void_p()
        size = library.gpu_cache_size(there, batch, capacity)
        memory = aligned(max(size.host, _c.PAGE))
        self.memory, self.size = self.device.memory(max(size.device, _c.PAGE)), size.device
        given = there, batch, capacity, ring, memory.ctypes.data, self.memory.at
        _c.check(library.gpu_cache_create(c.byref(at), *given, thread.error_at), thread.error)
        return at, memory

    def refuse(self, what: str) -> Error:
        return Error(f"a cache on {self.id} {what}", "unsupported")

    def _turn(self, kind: Any) -> Any:
        """The device for a call of tensors of this kind, or of arrays of the CPU."""
        away = kind is not None and kind.away
        device = kind.current() if away else self.device
        if device is not self.last:
            self.last.wait()
            self.last = device
        self.kind = kind if away else None
        return device

    # ---- Append and attend ---------------------------------------------------------------------

    def run(
        self, cache: Cache, laid: Any, given: Mapping[str, Any], inputs: Any, o: Any = None, averages: Any = None
    ) -> None:
        """Appends keys, if there are any, and computes rows, if o is there."""
        device = self._turn(laid.kind)
        library, plan = _gpu.library(), _gpu.plan_on(device, cache._plan)
        pool, before = laid.use(host()), cache._count(laid)
        try:
            at = plan, _gpu.tables_on(device, cache._tables)
            lay = self._direct if laid.kind.away else self._staged
            there, call, alive = lay(device, laid, given, inputs, o, averages)
            laid.room = laid.room or library.gpu_workspace(plan, call, 0)
            work = there.room(laid.room) if laid.room else None
            many = laid.rows > MOST_ROWS and max(cache._plan.dim, cache._plan.value_dim) > MOST_WHOLE
            if o is not None and (work is None or many):  # the call says what is wrong, before keys are appended
                self._check(cache, library.gpu_forward(*at, None, call))
            if "k" in given:
                self._check(cache, library.gpu_cache_append(*at, work, cache._at, call))
                cache._appended(laid)
            if o is not None:
                self._check(cache, library.gpu_forward(*at, work, call))
            there.done()
        except BaseException:
            cache._take_back(laid, before)
            raise
        del alive, pool

    def tree(
        self, cache: Cache, laid: Any, given: Mapping[str, Any], inputs: Any, trees: Any, taken: Any, o: Any, ae: Any
    ) -> None:
        """Computes the rows of trees, whose paths take entries."""
        device = self._turn(laid.kind)
        library, plan = _gpu.library(), _gpu.plan_on(device, cache._plan)
        pool = laid.use(host())
        at = plan, _gpu.tables_on(device, cache._tables)
        if laid.kind.away:
            there, call, alive = self._direct(device, laid, given, inputs, o, ae)
        else:
            there, call, alive = self._staged(device, laid, given, inputs, o, ae, bool((trees.nodes < laid.rows).any()))
        tree = trees.struct()
        size = library.gpu_tree_workspace(plan, cache._at, tree, call)
        work = there.room(size) if size else None  # without one, the call says what is wrong
        if size:
            cache._take_paths(trees, taken)
        self._check(cache, library.gpu_tree_forward(*at, work, cache._at, tree, call))
        there.done()
        cache._trees = trees
        del alive, pool

    def keep(self, cache: Cache, tree: Any, last: Any, call: Any) -> None:
        plan = _gpu.plan_on(self._turn(self.kind), cache._plan)
        _c.check(_gpu.library().gpu_tree_keep(plan, cache._at, tree, last, call), thread.error)

    @staticmethod
    def _check(cache: Cache, status: int) -> None:
        if status:
            raise cache._failure(status)

    @staticmethod
    def _direct(device: Any, laid: Any, given: Mapping[str, Any], inputs: Any, o: Any, averages: Any) -> Any:
        """The call of tensors that are there, and what must live as long."""
        alive = laid.place(given, o, inputs)
        return _gpu.Direct(laid.kind, device), laid.call, alive

    @staticmethod
    def _staged(
        device: Any, laid: Any, given: Mapping[str, Any], inputs: Any, o: Any, averages: Any, partial: bool = False
    ) -> Any:
        """The call of copies there.  partial: rows of results stay as they are."""
        there, kind = _gpu.Staged(laid.kind, device), laid.kind
        call = _c.Call.from_buffer_copy(laid.call)
        call.error = thread.error_at
        for name, x in given.items():
            setattr(call, name, there.read(kind.detach(x), laid.layout))
        if o is not None:
            call.o = there.write(o, laid.layout, partial)
        if averages is not None:
            call.ae = there.write_dense(averages, partial)
        given_inputs = laid.first or inputs
        for name, i in laid.inputs.items():
            laid.list[i] = there.read_dense(kind.detach(given_inputs[name]))
        laid.first = None
        return there, call, None

    # ---- Edits ---------------------------------------------------------------------------------

    def remove(self, cache: Cache, entries: Any, first: int, count: int) -> None:
        device, library = self._turn(self.kind), _gpu.library()
        plan, tables = _gpu.plan_on(device, cache._plan), _gpu.tables_on(device, cache._tables)
        call = cache._edit_call()
        size = library.gpu_workspace(plan, call, 0)
        memory = device.memory(size) if size else None
        for one in entries:
            given = plan, tables, memory and memory.at, cache._at, one, first, count, call
            _c.check(library.gpu_cache_remove(*given), thread.error)
            cache._trees = None

    def fork(self, cache: Cache, source: int, target: int, length: int) -> None:
        plan = _gpu.plan_on(self._turn(self.kind), cache._plan)
        status = _gpu.library().gpu_cache_fork(plan, cache._at, source, target, length, thread.error_at)
        _c.check(status, thread.error)
