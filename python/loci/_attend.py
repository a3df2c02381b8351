# SPDX-License-Identifier: MIT
"""A call of attention, checked and laid out for C: of numpy and torch alike."""

from __future__ import annotations

import ctypes as c
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from . import _arrays as arrays
from . import _c
from ._c import Error
from ._plan import Plan, Tables, Tensor, find_plan, full_text, host, thread

MASKS = (
    "pos",
    "q_pos",
    "k_pos",
    "coords",
    "q_coords",
    "k_coords",
    "seg",
    "q_seg",
    "k_seg",
    "k_lens",
    "cu_seqlens_q",
    "cu_seqlens_k",
)


@dataclass
class Shape:
    """What a problem's arrays say of it."""

    batch: int
    heads: int
    kv_heads: int
    rows: int
    keys: int
    dim: int
    value_dim: int
    layout: str

    def of(self, name: str) -> tuple[int, ...]:
        """The shape of q, k, v, o or a row of lse."""
        if name == "q":
            return arrays.shape_of(self.layout, self.batch, self.heads, self.rows, self.dim)
        if name == "o":
            return arrays.shape_of(self.layout, self.batch, self.heads, self.rows, self.value_dim)
        if name == "k":
            return arrays.shape_of(self.layout, self.batch, self.kv_heads, self.keys, self.dim)
        if name == "v":
            return arrays.shape_of(self.layout, self.batch, self.kv_heads, self.keys, self.value_dim)
        if name == "lse":
            lse = (self.heads, self.rows)
            return lse if self.layout == "thd" else (self.batch, *lse)
        raise KeyError(name)

    def to_plan(self) -> Shape:
        """A plan wants heads and widths, also where there is nothing to compute."""
        if self.heads and self.kv_heads and self.dim and self.value_dim:
            return self
        sizes = (max(size, 1) for size in (self.heads, self.kv_heads, self.rows, self.keys, self.dim, self.value_dim))
        return Shape(self.batch, *sizes, self.layout)


def shape_of(q: Any, k: Any, v: Any, layout: str) -> Shape:
    """Checked in this order, so that the sentence is about the later one."""
    if layout not in arrays.LAYOUTS:
        raise Error(f"layout must be one of {', '.join(arrays.LAYOUTS)}, not '{layout}'")
    batch, heads, rows, dim = arrays.sizes(q, "q", layout)
    k_batch, kv_heads, keys, k_dim = arrays.sizes(k, "k", layout)
    v_batch, v_heads, v_keys, value_dim = arrays.sizes(v, "v", layout)
    if k_batch != batch:
        raise Error(f"k has a batch of {k_batch} and q of {batch}")
    if k_dim != dim:
        raise Error(f"k is {k_dim} wide and q {dim}")
    if v_batch != batch:
        raise Error(f"v has a batch of {v_batch} and q of {batch}")
    if v_heads != kv_heads:
        raise Error(f"v has {v_heads} heads and k {kv_heads}")
    if v_keys != keys:
        raise Error(f"v has {v_keys} rows and k {keys}")
    return Shape(batch, heads, kv_heads, rows, keys, dim, value_dim, layout)


# ---- Who sees whom -------------------------------------------------------------------------------


@dataclass
class Masking:
    """Positions, coordinates, segments and lengths as C reads them.  distance bounds those of all pairs."""

    q_pos: Any = None
    k_pos: Any = None
    q_coords: Any = None
    k_coords: Any = None
    q_seg: Any = None
    k_seg: Any = None
    k_lens: Any = None
    q_starts: Any = None
    k_starts: Any = None
    per_batch: bool = False
    distance: int = 0
    given: list[Any] = field(default_factory=list)


def _both(given: Mapping[str, Any], one: str, q: str, k: str) -> tuple[Any, Any, str, str]:
    """What is said once for both, or for each; and under which names."""
    if given.get(one) is not None:
        for other in (q, k):
            if given.get(other) is not None:
                raise Error(f"{one} stands for both {q} and {k}; {other} was given, too")
        return given[one], given[one], one, one
    for missing, there in ((k, q), (q, k)):
        if given.get(there) is not None and given.get(missing) is None:
            raise Error(f"{missing} is missing: {there} was given, and the two go together")
    return given.get(q), given.get(k), q, k


def _spread(x: Any, batch: int, rank: int) -> Any:
    """With the batch in front."""
    return np.ascontiguousarray(np.broadcast_to(x, (batch, *x.shape))) if x.ndim == rank else x


def masking(given: Mapping[str, Any], s: Shape, axes: int) -> Masking:
    m = Masking(distance=max(s.rows, s.keys))
    q_pos, k_pos, q_name, k_name = _both(given, "pos", "q_pos", "k_pos")
    if given.get("pos") is not None and s.rows != s.keys:
        raise Error(f"pos stands for q_pos and k_pos, but q has {s.rows} rows and k {s.keys}")
    if q_pos is not None:
        m.q_pos = arrays.whole(q_pos, q_name, ((s.rows,), (s.batch, s.rows)))
        m.k_pos = arrays.whole(k_pos, k_name, ((s.keys,), (s.batch, s.keys)))
        if m.q_pos.size and m.k_pos.size:
            far = int(m.q_pos.max()) - int(m.k_pos.min()), int(m.k_pos.max()) - int(m.q_pos.min())
            m.distance = max(*far, 1)
    q_coords, k_coords, q_name, k_name = _both(given, "coords", "q_coords", "k_coords")
    if q_coords is not None:
        m.q_coords = arrays.reals(q_coords, q_name, ((axes, s.rows), (s.batch, axes, s.rows)))
        m.k_coords = arrays.reals(k_coords, k_name, ((axes, s.keys), (s.batch, axes, s.keys)))
    elif axes > 1:
        raise Error(f"coords is missing: the encoding has {axes} axes, so each row wants as many coordinates")
    q_seg, k_seg, q_name, k_name = _both(given, "seg", "q_seg", "k_seg")
    if q_seg is not None:
        m.q_seg = arrays.whole(q_seg, q_name, ((s.rows,), (s.batch, s.rows)))
        m.k_seg = arrays.whole(k_seg, k_name, ((s.keys,), (s.batch, s.keys)))
    _lengths(given, s, m)
    _batch_in_front(s, m)
    return m


def _batch_in_front(s: Shape, m: Masking) -> None:
    """Either all of them have it or none."""
    ranks = {"q_pos": 1, "k_pos": 1, "q_coords": 2, "k_coords": 2, "q_seg": 1, "k_seg": 1}
    there = {name: rank for name, rank in ranks.items() if getattr(m, name) is not None}
    m.per_batch = any(getattr(m, name).ndim > rank for name, rank in there.items())
    for name, rank in there.items():
        if m.per_batch:
            setattr(m, name, _spread(getattr(m, name), s.batch, rank))


def _lengths(given: Mapping[str, Any], s: Shape, m: Masking) -> None:
    if given.get("k_lens") is not None:
        m.k_lens = arrays.whole(given["k_lens"], "k_lens", ((s.batch,),))
    starts, k_starts = given.get("cu_seqlens_q"), given.get("cu_seqlens_k")
    if starts is None:
        if k_starts is not None:
            raise Error("cu_seqlens_q is missing: cu_seqlens_k was given, and alone it says nothing")
        if s.layout == "thd":
            raise Error("layout 'thd' is packed: cu_seqlens_q says where its sequences begin")
        return
    if s.batch != 1:
        raise Error(f"cu_seqlens_q is for packed sequences, with a batch of 1; q has one of {s.batch}")
    m.q_starts = _starts(starts, "cu_seqlens_q", s.rows, "q")
    if k_starts is None:
        if s.rows != s.keys:
            raise Error(f"cu_seqlens_k is missing: q has {s.rows} rows and k {s.keys}")
        m.k_starts = m.q_starts
    else:
        m.k_starts = _starts(k_starts, "cu_seqlens_k", s.keys, "k")
    if m.q_starts.size != m.k_starts.size:
        counts = m.k_starts.size - 1, m.q_starts.size - 1
        raise Error(f"cu_seqlens_k has {counts[0]} sequences and cu_seqlens_q {counts[1]}")


def _starts(x: Any, name: str, end: int, of: str) -> Any:
    got = arrays.whole(x, name, ((int(np.shape(x)[0]),),) if np.ndim(x) == 1 else ((0,),))
    if got.size < 2 or got[0] != 0 or got[-1] != end:
        raise Error(f"{name} must go from 0 to the {end} rows of {of}, one number more than there are sequences")
    if (np.diff(got) < 0).any():
        raise Error(f"{name} falls: each sequence begins where the one before ends")
    return got


# ---- Tensors -------------------------------------------------------------------------------------


def known_sizes(t: Tensor, plan: Plan, which: int, s: Shape) -> tuple[int, ...]:
    """Its shape in this call."""
    sizes = {"batch": s.batch, "queries": s.rows, "keys": s.keys}
    return tuple(sizes[size] if isinstance(size, str) else size for size in plan.unknown_sizes(which))


def _text_of(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join(str(size) for size in shape) + "]"


def take_tensors(kind: Any, plan: Plan, given: Mapping[str, Any], s: Shape) -> list[Any]:
    """The plan's tensors in their order, in the type that C reads; 16 bits are widened."""
    taken = []
    names = [t.name for t in plan.tensors]
    for name in given:
        if name not in names:
            has = f"it has {', '.join(names)}" if names else "it has none"
            raise Error(f"tensors: {plan.encoding} has no tensor '{name}'; {has}")
    for i, t in enumerate(plan.tensors):
        if given.get(t.name) is None:
            raise Error(f"tensors: {t.name} is missing, {t.role}, {_text_of(known_sizes(t, plan, i, s))}")
        own, x = arrays.read(given[t.name], t.name, kind)
        dtype = arrays.check_dtype(own, x, t.name)
        shape = known_sizes(t, plan, i, s)
        if tuple(x.shape) != shape:
            raise Error(f"{t.name} has the shape {_text_of(tuple(x.shape))}, not {_text_of(shape)}")
        if dtype == "float64" and plan.real == "float32":
            raise Error(f"{t.name} is float64 and q {plan.dtype}")
        if dtype != plan.real:
            x = kind.cast(x, plan.real)
        taken.append(kind.dense(x))
    return taken


# ---- Problems ------------------------------------------------------------------------------------


def plan_for(
    dtype: str,
    s: Shape,
    encoding: str,
    given: Mapping[str, Any],
    *,
    stage: str = "attention",
    causal: bool,
    window_size: Any,
    scale: float | None,
    max_len: int | None,
    keys_rotated: bool = False,
    fast: bool = False,
) -> Plan:
    """The plan of a call: the usual form of its tensors, or that of those given."""
    base = (encoding, s.heads, s.kv_heads, s.dim, s.value_dim, dtype, stage, causal, window_size, scale, max_len)
    key = (*base, keys_rotated, fast)

    def make(shapes: Mapping[str, tuple[int, ...]] | None = None) -> Plan:
        return Plan(
            encoding,
            s.heads,
            s.dim,
            kv_heads=s.kv_heads,
            value_dim=s.value_dim,
            dtype=dtype,
            stage=stage,
            causal=causal,
            window_size=window_size,
            scale=scale,
            max_len=max_len,
            keys_rotated=keys_rotated,
            fast=fast,
            shapes=shapes,
        )

    return formed_plan(key, make, given)


def formed_plan(key: tuple[Any, ...], make: Any, given: Mapping[str, Any]) -> Plan:
    """The plan of a key in the form of the tensors that are given; make(shapes) makes it."""
    try:
        plan = find_plan(key, make)
        forms = other_forms(plan, given)
        if forms is None:
            return plan
    except Error as error:
        # without a length, say, only the table tells
        forms = {name: tuple(x.shape) for name, x in given.items()}
        try:
            return find_plan((*key, tuple(forms.items())), lambda: make(forms or None))
        except Error:
            raise error from None
    return find_plan((*key, tuple(forms.items())), lambda: make(forms))


def other_forms(plan: Plan, given: Mapping[str, Any]) -> dict[str, tuple[int, ...]] | None:
    """Shapes to ask a plan for, where what is given is not the usual form."""
    usual = {t.name: t for t in plan.tensors}
    learned = {name: tuple(x.shape) for name, x in given.items() if name not in usual or usual[name].role != "input"}
    if all(name in usual and usual[name].shape == shape for name, shape in learned.items()):
        return None
    encodings = {part.split(":")[0].strip() for part in plan.encoding.split("+")}
    if any(name.split(".")[0] not in encodings for name in learned):
        return None  # an unknown one, which take_tensors() names
    forms = dict(learned)
    for i, t in enumerate(plan.tensors):
        if t.role == "input":
            words = {"batch": -1, "queries": -2, "keys": -3}
            forms[t.name] = tuple(words[z] if isinstance(z, str) else z for z in plan.unknown_sizes(i))
    return forms


class Problem:
    """A call of attention: arrays that C can read, and what it says of them."""

    def __init__(self, kind: Any, plan: Plan, s: Shape, q: Any, k: Any, v: Any, m: Masking, tensors: list[Any]) -> None:
        self.kind, self.plan, self.shape, self.masking, self.tensors = kind, plan, s, m, tensors
        self.q, self.k, self.v = (arrays.in_place(kind, x) for x in (q, k, v))
        self.pointers = arrays.pointers(kind, tensors)
        self._tables: Tables | None = None

    @property
    def tables(self) -> Tables:
        if self._tables is None:
            self._tables = self.plan.tables(self.masking.distance, self.pointers)
        return self._tables

    def share_tables(self, tables: Tables | None) -> None:
        self._tables = tables

    def call(self) -> Any:
        m, s, kind = self.masking, self.shape, self.kind

        def at(x: Any) -> Any:
            return None if x is None else x.__array_interface__["data"][0]

        return _c.Call(
            size=c.sizeof(_c.Call),
            batch=s.batch,
            q_len=s.rows,
            k_len=s.keys,
            q=arrays.view(kind, self.q, s.layout),
            k=arrays.view(kind, self.k, s.layout),
            v=arrays.view(kind, self.v, s.layout),
            q_pos=at(m.q_pos),
            k_pos=at(m.k_pos),
            q_coord=at(m.q_coords),
            k_coord=at(m.k_coords),
            q_seg=at(m.q_seg),
            k_seg=at(m.k_seg),
            per_batch=m.per_batch,
            k_lens=at(m.k_lens),
            q_starts=at(m.q_starts),
            k_starts=at(m.k_starts),
            sequences=0 if m.q_starts is None else m.q_starts.size - 1,
            tensors=c.addressof(self.pointers),
            host=host(),
            error=thread.error_at,
        )

    def empty(self) -> bool:
        return 0 in (self.shape.batch, self.shape.heads, self.shape.rows)

    def forward(self, out: Any = None, want_lse: bool = False) -> tuple[Any, Any, Any]:
        """o, lse or rem, ae; what is not wanted or not there is None."""
        kind, plan, s = self.kind, self.plan, self.shape
        o = kind.empty(s.of("o"), self.q) if out is None else out
        lse = kind.empty(s.of("lse"), self.q, plan.real) if want_lse else None
        ae = kind.empty(self.ae_shape(), self.q, plan.real) if plan.averages else None
        if self.empty():
            return o, lse, ae
        call = self.call()
        call.o = arrays.output(kind, o, s.layout)
        if lse is not None:
            setattr(call, "rem" if plan.weighs else "lse", kind.pointer(lse))
        if ae is not None:
            call.ae = kind.pointer(ae)
        tables = self.tables
        try:
            size = _c.lib.workspace(plan._handle, call, 0)
            if not size:
                _c.check(thread.error.status or 1, thread.error)
            status = _c.lib.forward(plan._handle, tables.at, thread.work(size), call)
            _c.check(status, thread.error)
        finally:
            thread.done()
        return o, lse, ae

    def ae_shape(self) -> tuple[int, ...]:
        s = self.shape
        return (s.batch, s.heads, s.rows, s.dim // 2, 2)

    def backward(
        self,
        o: Any,
        lse: Any,
        ae: Any,
        dout: Any,
        dlse: Any,
        dae: Any,
        wanted: tuple[bool, bool, bool],
        wanted_tensors: list[bool],
    ) -> tuple[list[Any], list[Any]]:
        """Gradients of q, k and v, and of the tensors; None where none is wanted."""
        kind, plan, s = self.kind, self.plan, self.shape
        arrays_ = zip("qkv", wanted, (self.q, self.k, self.v), strict=True)
        grads = [kind.empty(s.of(name), x) if want else None for name, want, x in arrays_]
        dtensors = [
            kind.empty(tuple(x.shape), x) if want and t.role != "fixed" else None
            for t, x, want in zip(plan.tensors, self.tensors, wanted_tensors, strict=True)
        ]
        if self.empty():
            return [g if g is None else kind.zeros(tuple(g.shape), g) for g in grads], [
                g if g is None else kind.zeros(tuple(g.shape), g) for g in dtensors
            ]
        call = self.call()
        call.o = arrays.view(kind, arrays.in_place(kind, o), s.layout)
        setattr(call, "rem" if plan.weighs else "lse", kind.pointer(lse))
        if plan.averages and ae is not None:
            call.ae = kind.pointer(ae)
        pointers = arrays.pointers(kind, dtensors)
        grad = _c.Grad(size=c.sizeof(_c.Grad), dtensors=c.addressof(pointers))
        if dout is not None:
            grad.dout = arrays.view(kind, dout, s.layout)
        for name, x in (("drem" if plan.weighs else "dlse", dlse), ("dae", dae)):
            if x is not None:
                setattr(grad, name, kind.pointer(x))
        for name, x in zip(("dq", "dk", "dv"), grads, strict=True):
            if x is not None and x.shape[0]:
                setattr(grad, name, arrays.output(kind, x, s.layout))
        tables = self.tables
        try:
            size = _c.lib.workspace(plan._handle, call, 1)
            if not size:
                _c.check(thread.error.status or 1, thread.error)
            status = _c.lib.backward(plan._handle, tables.at, thread.work(size), call, grad)
            _c.check(status, thread.error)
        finally:
            thread.done()
        return grads, dtensors


@dataclass
class Opened:
    """A call that has been checked: what is not an array that has a gradient, and those that are."""

    kind: Any
    plan: Plan
    shape: Shape
    masking: Masking
    q: Any
    k: Any
    v: Any
    tensors: list[Any]

    def problem(self, q: Any, k: Any, v: Any, tensors: Any) -> Problem:
        return Problem(self.kind, self.plan, self.shape, q, k, v, self.masking, list(tensors))

    def tiled(self, times: int) -> Opened:
        """The same with so many batches one after the other."""
        m = replace(self.masking)
        for name in ("q_pos", "k_pos", "q_coords", "k_coords", "q_seg", "k_seg"):
            x = getattr(m, name)
            if x is not None and m.per_batch:
                setattr(m, name, np.ascontiguousarray(np.tile(x, (times,) + (1,) * (x.ndim - 1))))
        if m.k_lens is not None:
            m.k_lens = np.tile(m.k_lens, times)
        return replace(self, shape=replace(self.shape, batch=self.shape.batch * times), masking=m)


def open_call(
    q: Any,
    k: Any,
    v: Any,
    encoding: str,
    *,
    given: Mapping[str, Any],
    tensors: Mapping[str, Any] | None = None,
    softcap: float | None = None,
    sinks: Any = None,
    layout: str = "bhld",
    causal: bool = True,
    window_size: Any = (-1, -1),
    scale: float | None = None,
    max_len: int | None = None,
    keys_rotated: bool = False,
    fast: bool = False,
    stage: str = "attention",
) -> Opened:
    """Everything that attention() is given, checked."""
    kind, q = arrays.read(q, "q")
    _, k = arrays.read(k, "k", kind)
    _, v = arrays.read(v, "v", kind)
    dtype = arrays.check_dtype(kind, q, "q")
    arrays.check_dtype(kind, k, "k", dtype)
    arrays.check_dtype(kind, v, "v", dtype)
    s = shape_of(q, k, v, layout)
    mapping = dict(tensors or {})
    if sinks is not None:
        mapping["sink.logit"] = sinks
    text = full_text(encoding, softcap, sinks is not None)
    checked = {name: arrays.read(x, name, kind)[1] for name, x in mapping.items() if x is not None}
    plan = plan_for(
        dtype,
        s.to_plan(),
        text,
        checked,
        stage=stage,
        causal=bool(causal),
        window_size=tuple(window_size) if isinstance(window_size, (tuple, list)) else window_size,
        scale=scale,
        max_len=max_len,
        keys_rotated=bool(keys_rotated),
        fast=bool(fast),
    )
    m = masking(given, s, plan.axes)
    return Opened(kind, plan, s, m, q, k, v, take_tensors(kind, plan, checked, s))


def results(o: Any, lse: Any, ae: Any) -> Any:
    """What attention() returns: o alone, or with what else there is."""
    all_ = tuple(x for x in (o, lse, ae) if x is not None)
    return all_ if len(all_) > 1 else o


def check_out(p: Problem, out: Any) -> Any:
    """An array to write into, of the shape and type of the result."""
    if out is None:
        return None
    _, out = arrays.read(out, "out", p.kind)
    arrays.check_dtype(p.kind, out, "out", p.plan.dtype)
    if tuple(out.shape) != p.shape.of("o"):
        raise Error(f"out has the shape {_text_of(tuple(out.shape))}, not {_text_of(p.shape.of('o'))}")
    if arrays.in_place(p.kind, out) is not out:
        raise Error("out must be dense along its last axis")
    return out


def _like(p: Problem, x: Any, name: str, shape: tuple[int, ...], dtype: str) -> Any:
    """An output or its gradient, come back."""
    if x is None:
        return None
    _, x = arrays.read(x, name, p.kind)
    if p.kind.dtype(x) != dtype:
        raise Error(f"{name} is {p.kind.dtype(x)}, not {dtype}")
    if tuple(x.shape) != shape:
        raise Error(f"{name} has the shape {_text_of(tuple(x.shape))}, not {_text_of(shape)}")
    return x


def backward(
    opened: Opened, dout: Any, out: Any, lse: Any, ae: Any, dlse: Any, dae: Any
) -> tuple[Any, Any, Any, dict[str, Any]]:
    p = opened.problem(opened.q, opened.k, opened.v, opened.tensors)
    kind, plan, rows = p.kind, p.plan, p.shape.of("lse")
    out = _like(p, out, "out", p.shape.of("o"), plan.dtype)
    lse = _like(p, lse, "lse", rows, plan.real)
    for name, x in (("out", out), ("lse", lse)):
        if x is None:
            raise Error(f"{name} is missing: attention(..., return_lse=True) gives out and lse")
    dout = _like(p, dout, "dout", p.shape.of("o"), plan.dtype)
    if dout is not None:
        dout = arrays.in_place(kind, dout)
    dlse = _like(p, dlse, "dlse", rows, plan.real)
    ae = _like(p, ae, "ae", p.ae_shape(), plan.real)
    dae = _like(p, dae, "dae", p.ae_shape(), plan.real)
    dense = [None if x is None else kind.dense(x) for x in (lse, ae, dlse, dae)]
    wanted = [t.role != "fixed" for t in plan.tensors]
    grads, dtensors = p.backward(out, dense[0], dense[1], dout, dense[2], dense[3], (True, True, True), wanted)
    named = {t.name: x for t, x in zip(plan.tensors, dtensors, strict=True) if x is not None}
    return grads[0], grads[1], grads[2], named
