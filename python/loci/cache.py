# SPDX-License-Identifier: MIT
"""Keys and values of sequences that grow: decode."""

from __future__ import annotations

import ctypes as c
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from . import _arrays as arrays
from . import _c
from ._attend import Masking, Shape, known_sizes, take_tensors
from ._c import Error
from ._plan import Plan, Tables, aligned, dtype_name, full_text, host, thread


class Cache:
    """A cache of `batch` sequences of up to `capacity` keys.  step() appends and attends; a cache is one thread's at a
    time."""

    def __init__(
        self,
        encoding: str,
        heads: int,
        dim: int,
        *,
        batch: int = 1,
        capacity: int,
        kv_heads: int | None = None,
        value_dim: int | None = None,
        dtype: Any = "float32",
        tensors: Mapping[str, Any] | None = None,
        ring: bool = False,
        window_size: Sequence[int] = (-1, -1),
        scale: float | None = None,
        softcap: float | None = None,
        sinks: Any = None,
        max_len: int | None = None,
        layout: str = "bhld",
    ) -> None:
        if layout not in arrays.LAYOUTS[:2]:
            raise Error(f"layout of a cache must be bhld or blhd, not '{layout}'")
        self._encoding = full_text(encoding, softcap, sinks is not None)
        self._layout, self._ring, self.batch, self.capacity = layout, bool(ring), int(batch), int(capacity)
        mapping = dict(tensors or {})
        if sinks is not None:
            mapping["sink.logit"] = sinks
        copies = {name: _copied(x, name) for name, x in mapping.items()}
        options: dict[str, Any] = {
            "encoding": self._encoding,
            "heads": heads,
            "dim": dim,
            "kv_heads": kv_heads,
            "value_dim": value_dim,
            "dtype": dtype_name(dtype),
            "window_size": tuple(window_size),
            "scale": scale,
            "max_len": max_len,
        }
        self._plan = _rotated_plan(options, copies)
        size = _c.lib.cache_size(self._plan._handle, self.batch, self.capacity)
        if not size:
            raise Error(f"a cache for a batch of {batch} and a capacity of {capacity} cannot be: they must be positive")
        self._memory = aligned(size)
        at = c.c_void_p()
        memory = self._memory.ctypes.data
        status = _c.lib.cache_create(
            c.byref(at), self._plan._handle, self.batch, self.capacity, self._ring, memory, thread.error_at
        )
        _c.check(status, thread.error)
        self._at = at
        self._tensors: dict[str, Any] = {}
        self._learn(copies)

    # ---- Tables --------------------------------------------------------------------------------

    def _learn(self, copies: Mapping[str, np.ndarray[Any, Any]]) -> None:
        plan = self._plan
        learned = [t for t in plan.tensors if t.role != "input"]
        inputs = {t.name for t in plan.tensors if t.role == "input"}
        for name in copies:
            if name in inputs:
                raise Error(f"tensors: {name} comes with each step, in inputs=")
        shape = Shape(self.batch, plan.heads, plan.kv_heads, 1, 1, plan.dim, plan.value_dim, self._layout)
        checked = take_tensors(arrays.Numpy, _Only(plan, learned), copies, shape)  # type: ignore[arg-type]
        self._tensors = {t.name: x for t, x in zip(learned, checked, strict=True)}
        given = [self._tensors.get(t.name) for t in plan.tensors]
        self._given = arrays.pointers(arrays.Numpy, given)
        self._tables = Tables(plan, self.capacity, self._given)

    def refresh(self, tensors: Mapping[str, Any] | None = None, *, sinks: Any = None) -> None:
        """After learned tensors have changed.  Keys that are there stay as they were turned."""
        mapping = dict(tensors or {})
        if sinks is not None:
            mapping["sink.logit"] = sinks
        self._learn({name: _copied(x, name) for name, x in mapping.items()})

    # ---- Steps ---------------------------------------------------------------------------------

    def _opened(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        """q, k and v of one library, without gradients, of the cache's type."""
        kind: Any = None
        for name, x in given.items():
            own, x = arrays.read(x, name, kind)
            kind = own
            arrays.check_dtype(kind, x, name)
            if kind.dtype(x) != self._plan.dtype:
                raise Error(f"{name} is {kind.dtype(x)} and the cache {self._plan.dtype}")
            if kind.name == "torch" and kind.wants_gradient(x):
                raise Error("a cache has no gradient; use torch.no_grad()")
            given[name] = arrays.in_place(kind, kind.detach(x))
        return kind, given

    def _sizes(self, x: Any, name: str, heads: int, width: int) -> int:
        batch, has, rows, wide = arrays.sizes(x, name, self._layout)
        if batch != self.batch:
            raise Error(f"{name} has a batch of {batch} and the cache of {self.batch}")
        if has != heads or wide != width:
            raise Error(f"{name} has {has} heads of {wide}, and the cache wants {heads} of {width}")
        return rows

    def _call(self, rows: int, keys: int, inputs: Any, k_lens: Any, pos: Any, coords: Any, kind: Any) -> Any:
        """The call, and what must live as long as it."""
        plan = self._plan
        m = Masking()
        shape = Shape(self.batch, plan.heads, plan.kv_heads, rows, keys, plan.dim, plan.value_dim, self._layout)
        if k_lens is not None:
            m.k_lens = arrays.whole(k_lens, "k_lens", ((self.batch,),))
        both = (max(rows, keys),), (self.batch, max(rows, keys))
        if pos is not None:
            m.q_pos = m.k_pos = arrays.whole(pos, "pos", both)
            m.per_batch = m.q_pos.ndim == 2
        if coords is not None:
            m.q_coords = m.k_coords = arrays.reals(
                coords, "coords", ((plan.axes, both[0][0]), (self.batch, plan.axes, both[0][0]))
            )
            if m.q_pos is not None and (m.q_coords.ndim == 3) != m.per_batch:
                raise Error("coords and pos must both have the batch in front, or neither")
            m.per_batch = m.q_coords.ndim == 3
        elif plan.axes > 1:
            raise Error(f"coords is missing: the encoding has {plan.axes} axes, so each row wants as many coordinates")
        given = self._inputs(inputs, shape, kind)
        list_ = (c.c_void_p * max(len(plan.tensors), 1))()
        for i, t in enumerate(plan.tensors):
            list_[i] = kind.pointer(given[t.name]) if t.name in given else self._given[i]

        def at(x: Any) -> Any:
            return None if x is None else x.ctypes.data

        call = _c.Call(
            size=c.sizeof(_c.Call),
            batch=self.batch,
            q_len=rows,
            k_len=keys,
            q_pos=at(m.q_pos),
            k_pos=at(m.k_pos),
            q_coord=at(m.q_coords),
            k_coord=at(m.k_coords),
            per_batch=m.per_batch,
            k_lens=at(m.k_lens),
            tensors=c.addressof(list_),
            host=host(),
            cache=self._at,
            error=thread.error_at,
        )
        return call, (m, given, list_)

    def _inputs(self, inputs: Any, shape: Shape, kind: Any) -> dict[str, Any]:
        wanted = [(i, t) for i, t in enumerate(self._plan.tensors) if t.role == "input"]
        given = dict(inputs or {})
        for name in given:
            if all(name != t.name for _, t in wanted):
                raise Error(f"inputs: {self._plan.encoding} has no input '{name}'")
        made = {}
        for i, t in wanted:
            if given.get(t.name) is None:
                raise Error(f"inputs: {t.name} is missing, for the new tokens")
            own, x = arrays.read(given[t.name], t.name, kind)
            size = known_sizes(t, self._plan, i, shape)
            if tuple(x.shape) != size:
                raise Error(f"{t.name} has the shape {list(x.shape)}, not {list(size)}")
            x = own.detach(x)
            made[t.name] = own.dense(x if own.dtype(x) == self._plan.real else own.cast(x, self._plan.real))
        return made

    def append(
        self, k: Any, v: Any, *, inputs: Any = None, k_lens: Any = None, pos: Any = None, coords: Any = None
    ) -> None:
        """Adds the keys and values of new tokens."""
        kind, x = self._opened(k=k, v=v)
        keys = self._check_keys(x)
        call, kept = self._call(0, keys, inputs, k_lens, pos, coords, kind)
        self._append(call, kind, x)
        del kept

    def _check_keys(self, x: Mapping[str, Any]) -> int:
        plan = self._plan
        keys = self._sizes(x["k"], "k", plan.kv_heads, plan.dim)
        of_v = self._sizes(x["v"], "v", plan.kv_heads, plan.value_dim)
        if of_v != keys:
            raise Error(f"v has {of_v} rows and k {keys}")
        return keys

    def _append(self, call: Any, kind: Any, x: Mapping[str, Any]) -> None:
        call.k, call.v = arrays.view(kind, x["k"], self._layout), arrays.view(kind, x["v"], self._layout)
        self._run(call, lambda work: _c.lib.cache_append(self._plan._handle, self._tables.at, work, self._at, call))

    def _run(self, call: Any, run: Any) -> None:
        try:
            size = _c.lib.workspace(self._plan._handle, call, 0)
            if not size:
                _c.check(thread.error.status or 1, thread.error)
            _c.check(run(thread.work(size)), thread.error)
        finally:
            thread.done()

    def attend(
        self,
        q: Any,
        *,
        inputs: Any = None,
        k_lens: Any = None,
        pos: Any = None,
        coords: Any = None,
        out: Any = None,
    ) -> Any:
        """The rows that were appended last, against all keys."""
        kind, x = self._opened(q=q)
        rows = self._sizes(x["q"], "q", self._plan.heads, self._plan.dim)
        call, kept = self._call(rows, rows, inputs, k_lens, pos, coords, kind)
        o = self._attend(call, kind, x["q"], rows, out)
        del kept
        return o

    def _attend(self, call: Any, kind: Any, q: Any, rows: int, out: Any) -> Any:
        plan = self._plan
        shape = arrays.shape_of(self._layout, self.batch, plan.heads, rows, plan.value_dim)
        if out is None:
            o = kind.empty(shape, q)
        else:
            own, o = arrays.read(out, "out", kind)
            if tuple(o.shape) != shape or own.dtype(o) != plan.dtype:
                raise Error(f"out must be {plan.dtype} of the shape {list(shape)}")
        call.q, call.o = arrays.view(kind, q, self._layout), arrays.output(kind, o, self._layout)
        averages = None
        if plan.averages:
            averages = kind.empty((self.batch, plan.heads, rows, plan.dim // 2, 2), q, plan.real)
            call.ae = kind.pointer(averages)
        self._run(call, lambda work: _c.lib.forward(plan._handle, self._tables.at, work, call))
        return o if averages is None else (o, averages)

    def step(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        inputs: Any = None,
        k_lens: Any = None,
        pos: Any = None,
        coords: Any = None,
        out: Any = None,
    ) -> Any:
        """append() and attend(): n new tokens, n from 1 on."""
        kind, x = self._opened(q=q, k=k, v=v)
        keys = self._check_keys(x)
        rows = self._sizes(x["q"], "q", self._plan.heads, self._plan.dim)
        if rows != keys:
            raise Error(f"q has {rows} rows and k {keys}: a step is of new tokens, with all three")
        call, kept = self._call(rows, keys, inputs, k_lens, pos, coords, kind)
        self._append(call, kind, x)
        o = self._attend(call, kind, x["q"], rows, out)
        del kept
        return o

    # ---- What is there -------------------------------------------------------------------------

    def length(self, entry: int = 0) -> int:
        """Keys of a sequence so far."""
        if not 0 <= entry < self.batch:
            raise Error(f"entry must be from 0 to {self.batch - 1}, not {entry}")
        return int(_c.lib.cache_length(self._at, entry))

    @property
    def lengths(self) -> list[int]:
        return [self.length(entry) for entry in range(self.batch)]

    def __len__(self) -> int:
        return self.length(0)

    @property
    def nbytes(self) -> int:
        return int(self._memory.size)

    @property
    def memory(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """All of it, as it is."""
        return self._memory

    @property
    def plan(self) -> Plan:
        return self._plan

    def truncate(self, length: int, entry: int | None = None) -> None:
        """Forgets the keys from `length` on, of one sequence or of all."""
        for one in range(self.batch) if entry is None else (entry,):
            _c.check(_c.lib.cache_truncate(self._at, one, length, thread.error_at), thread.error)

    def remove(self, first: int, count: int, entry: int | None = None) -> None:
        """Forgets `count` keys from `first` on; later ones move up, and their positions with them."""
        call = _c.Call(
            size=c.sizeof(_c.Call), batch=self.batch, cache=self._at, host=host(), error=thread.error_at, q_len=0
        )
        call.tensors = c.addressof(self._given)
        lib = _c.lib
        for one in range(self.batch) if entry is None else (entry,):
            self._run(
                call,
                lambda work, one=one: lib.cache_remove(
                    self._plan._handle, self._tables.at, work, self._at, one, first, count, call
                ),
            )

    # ---- Copies --------------------------------------------------------------------------------

    def copy(self) -> Cache:
        return _again(self._state())

    def _state(self) -> dict[str, Any]:
        return {
            "plan": self._plan,
            "tensors": dict(self._tensors),
            "memory": self._memory.tobytes(),
            "encoding": self._encoding,
            "layout": self._layout,
            "ring": self._ring,
            "batch": self.batch,
            "capacity": self.capacity,
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return (_again, (self._state(),))

    def __copy__(self) -> Cache:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> Cache:
        return self.copy()


class _Only:
    """A plan as take_tensors() sees it, with some of its tensors."""

    def __init__(self, plan: Plan, some: list[Any]) -> None:
        self._plan, self._some = plan, some
        self.tensors, self.encoding, self.real, self.dtype = tuple(some), plan.encoding, plan.real, plan.dtype

    def unknown_sizes(self, which: int) -> tuple[str | int, ...]:
        return self._plan.unknown_sizes(self._plan.tensors.index(self._some[which]))


def _copied(x: Any, name: str) -> np.ndarray[Any, Any]:
    """What is learned, as it is now."""
    kind, x = arrays.read(x, name)
    x = kind.detach(x)
    if kind.dtype(x) in ("bfloat16", "float16"):
        x = kind.cast(x, "float32")
    return np.array(kind.to_numpy(x), copy=True)


def _rotated_plan(options: dict[str, Any], copies: Mapping[str, Any]) -> Plan:
    """Keys are kept turned; where nothing turns that says nothing."""
    from ._attend import other_forms

    plan = Plan(**options, keys_rotated=True)
    forms = other_forms(plan, copies)
    return plan if forms is None else Plan(**options, keys_rotated=True, shapes=forms)


def _again(state: dict[str, Any]) -> Cache:
    cache = Cache.__new__(Cache)
    cache._plan, cache._encoding, cache._layout = state["plan"], state["encoding"], state["layout"]
    cache._ring, cache.batch, cache.capacity = state["ring"], state["batch"], state["capacity"]
    cache._memory = aligned(len(state["memory"]))
    cache._memory[:] = memoryview(state["memory"])
    at = c.c_void_p()
    status = _c.lib.cache_open(
        c.byref(at), cache._plan._handle, cache._memory.ctypes.data, cache.nbytes, thread.error_at
    )
    _c.check(status, thread.error)
    cache._at = at
    cache._learn(state["tensors"])
    return cache
