# SPDX-License-Identifier: MIT
"""A call of attention, checked and laid out for C: of numpy and torch alike.

What does not change from call to call is a Form: which plan, which sizes, what each tensor must be, and a call for C
with all of that in place.  Forms are kept by what arrays and options look like, so that a call that looks like an
earlier one is neither checked nor laid out again."""

from __future__ import annotations

import ctypes as c
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from . import _arrays as arrays
from . import _c, _gpu
from ._c import Error
from ._interrupt import run
from ._masks import Masking, Pairs, masking, open_mask, page_table, repeated, set_pages
from ._numbers import real, scale_of, whole, whole_or_none, window_of
from ._plan import SINKS, Plan, Prepared, Tables, find_plan, full_text, host, kept, thread
from ._shape import Shape, shape_of

# ---- Tensors -------------------------------------------------------------------------------------


def known_sizes(plan: Plan, which: int, s: Shape) -> tuple[int, ...]:
    """Its shape in this call."""
    sizes = {"batch": s.batch, "queries": s.rows, "keys": s.keys}
    return tuple(sizes[size] if isinstance(size, str) else size for size in plan.sizes[which])


def read_tensors(plan: Plan, given: Mapping[str, Any]) -> tuple[list[Any], Any]:
    """Learned and fixed ones as C reads them, of either library, and the list of where they are."""
    kind: Any = None
    made: list[Any] = []
    for name, x in given.items():
        kind, _ = arrays.read_placed(x, name, kind)
        if name not in [t.name for t in plan.tensors if t.role != "input"]:
            raise Error(f"tensors: {plan.encoding} learns no tensor '{name}'")
    for t in plan.tensors:
        x = given.get(t.name)
        if t.role == "input":
            made.append(None)
            continue
        if x is None:
            raise Error(f"tensors: {t.name} is missing, {t.role}, {_text_of(tuple(size or 0 for size in t.shape))}")
        if tuple(x.shape) != t.shape:
            raise Error(f"{t.name} has the shape {_text_of(tuple(x.shape))}, not {list(t.shape)}")
        dtype = arrays.check_dtype(kind, x, t.name)
        if dtype == "float64" and plan.real == "float32":
            raise Error(f"{t.name} is float64 and the plan {plan.dtype}")
        x = kind.detach(x)
        made.append(kind.dense(kind.cast(x, plan.real) if dtype != plan.real else x))
    if kind is None:
        return made, arrays.pointers(kind, made)
    return made, arrays.for_prepare(kind, made, [t.role for t in plan.tensors])


def _text_of(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join(str(size) for size in shape) + "]"


def take_tensors(kind: Any, plan: Plan, given: Mapping[str, Any], s: Shape, role: str = "") -> list[Any]:
    """The plan's tensors in their order, in the type that C reads; 16 bits are widened.

    The rotation of one role does not read the inputs of the other, which may be missing.
    """
    unread = {"query": "keys", "key": "queries", "cache": "queries", "value": "queries"}.get(role)
    taken: list[Any] = []
    names = [t.name for t in plan.tensors]
    for name in given:
        if name not in names:
            has = f"it has {', '.join(names)}" if names else "it has none"
            raise Error(f"tensors: {plan.encoding} has no tensor '{name}'; {has}")
    for i, t in enumerate(plan.tensors):
        if given.get(t.name) is None and unread in plan.sizes[i]:
            taken.append(None)
            continue
        if given.get(t.name) is None:
            raise Error(f"tensors: {t.name} is missing, {t.role}, {_text_of(known_sizes(plan, i, s))}")
        own, x = arrays.read(given[t.name], t.name, kind)
        dtype = arrays.check_dtype(own, x, t.name)
        shape = known_sizes(plan, i, s)
        if tuple(x.shape) != shape:
            raise Error(f"{t.name} has the shape {_text_of(tuple(x.shape))}, not {_text_of(shape)}")
        if dtype == "float64" and plan.real == "float32":
            raise Error(f"{t.name} is float64 and q {plan.dtype}")
        if dtype != plan.real:
            x = kind.cast(x, plan.real)
        taken.append(kind.dense(x))
    return taken


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
            forms[t.name] = tuple(words[z] if isinstance(z, str) else z for z in plan.sizes[i])
    return forms


# ---- Forms ---------------------------------------------------------------------------------------


class Form:
    """What calls that look alike have in common."""

    def __init__(
        self, kind: Any, plan: Plan, s: Shape, q: Any, checked: Mapping[str, Any], paged: bool = False
    ) -> None:
        self.kind, self.plan, self.shape = kind, plan, s
        self.casts = [kind.dtype(checked[t.name]) != plan.real for t in plan.tensors]
        self.names = [t.name for t in plan.tensors]
        self.shapes = {name: s.of(name) for name in ("q", "k", "v", "o", "lse")}
        self.ae = (s.batch, s.heads, s.rows, s.dim // 2, 2) if plan.averages else None
        self.products = float(s.batch * s.heads * s.rows * s.keys * (s.dim + s.value_dim))
        if plan.stage == "linear_attention":
            self.products = float(s.batch * s.heads * max(s.rows, s.keys) * s.dim * s.value_dim)
        self.empty = 0 in (s.batch, s.heads, s.rows)
        self.bytes = _c.SIZES[_c.DTYPES[plan.dtype]]
        # strides of arrays that are dense: as their library has them, and as C wants them
        self.dense = {name: kind.dense_strides(self.shapes[name], q) for name in "qkvo"}
        if paged:  # k and v have shapes of their own
            self.dense["k"] = self.dense["v"] = None
        self.strides = {
            name: arrays.strides_for(self.shapes[name], arrays.dense_strides(self.shapes[name]), s.layout, name == "o")
            for name in "qkvo"
        }
        self.template = _c.Call(size=c.sizeof(_c.Call), batch=s.batch, q_len=s.rows, k_len=s.keys)
        self.tables = None if plan.prepares else plan.tables(max(s.rows, s.keys), None)
        self.sizes: dict[Any, int] = {}


def form_of(
    kind: Any,
    q: Any,
    k: Any,
    v: Any,
    encoding: Any,
    mapping: Mapping[str, Any],
    stage: str,
    layout: str,
    causal: bool,
    window_size: Any,
    scale: float | None,
    max_len: int | None,
    keys_rotated: bool,
    fast: bool,
    table: tuple[int, int] | None = None,
) -> Form:
    """The form of a call, kept from an earlier one or checked and made."""
    signature = kind.signature
    key = (
        *(kind, encoding, stage, layout, causal, window_size, scale, max_len, keys_rotated, fast, table),
        *(signature(q), signature(k), signature(v)),
        *((name, signature(x)) for name, x in mapping.items()),
    )

    def make() -> Form:
        for name, x in (("q", q), ("k", k), ("v", v), *mapping.items()):
            arrays.check_together(x, name, q)
            kind.check_device(x, name)
        dtype = arrays.check_dtype(kind, q, "q")
        arrays.check_dtype(kind, k, "k", dtype)
        arrays.check_dtype(kind, v, "v", dtype)
        s = shape_of(q, k, v, layout, table)
        if isinstance(encoding, Plan):
            plan, p = encoding, s.to_plan()
            sizes = {"heads": p.heads, "kv_heads": p.kv_heads, "dim": p.dim, "value_dim": p.value_dim}
            plan.fits(stage, dtype, "q", **sizes)
        else:
            plan = plan_for(
                dtype,
                s.to_plan(),
                encoding,
                mapping,
                stage=stage,
                causal=bool(causal),
                window_size=window_size,
                scale=scale,
                max_len=max_len,
                keys_rotated=bool(keys_rotated),
                fast=bool(fast),
            )
        take_tensors(kind, plan, mapping, s)
        return Form(kind, plan, s, q, mapping, table is not None)

    form: Form = kept(key, make)
    return form


# ---- Problems ------------------------------------------------------------------------------------


NOWHERE = (0, 0, 0, 0)  # a view of nothing


def _at(x: Any) -> Any:
    return None if x is None else x.__array_interface__["data"][0]


class Problem:
    """A call of attention: its form, arrays that C can read, and who sees whom; `ranks` where it is one of several
    processes, each with its own part."""

    __slots__ = (
        "device",
        "drawn",
        "dropout",
        "form",
        "k",
        "kind",
        "listed",
        "mask",
        "masking",
        "plan",
        "q",
        "ranks",
        "shape",
        "shared",
        "tensors",
        "v",
    )

    def __init__(
        self, form: Form, m: Masking | None, q: Any, k: Any, v: Any, tensors: list[Any], mask: Pairs | None = None
    ) -> None:
        self.form, self.masking, self.mask = form, m, mask
        self.kind, self.plan, self.shape = form.kind, form.plan, form.shape
        self.q, self.k, self.v, self.tensors = q, k, v, tensors
        self.listed: Any = None
        self.shared: Tables | None = None
        self.ranks: Any = None
        self.dropout: tuple[float, int] | None = None  # the probability, and the seed
        self.device: Any = None  # that arrays of the CPU are copied to
        self.drawn = False  # the seed is from the generator of this process

    def of(self, q: Any, k: Any, v: Any, tensors: Any) -> Problem:
        """The same with other arrays that look like these; behind the tensors may stand a mask."""
        count, mask = len(self.form.names), self.mask
        if len(tensors) > count:
            mask = open_mask(self.kind, tensors[count], self.shape, self.plan.real, self.plan.dtype)
        again = Problem(self.form, self.masking, q, k, v, list(tensors[:count]), mask)
        again.shared, again.ranks, again.dropout = self.shared, self.ranks, self.dropout
        again.device = self.device
        return again

    def tiled(self, times: int, like: Any) -> Problem:
        """The same with so many batches one after the other; the arrays come later, of the kind of this one."""
        paged = self.masking is not None and self.masking.pages is not None
        if self.mask is not None or self.ranks is not None or paged or self.dropout is not None:
            what = "a mask" if self.mask is not None else "a call over ranks" if self.ranks is not None else "dropout"
            what = "a table of pages" if paged else what
            raise Error(f"{what} cannot be mapped by torch.func.vmap", "unsupported")
        s = replace(self.shape, batch=self.shape.batch * times)
        given = dict(zip(self.form.names, self.tensors, strict=True))
        m = None if self.masking is None else repeated(self.masking, times)
        tiled = Problem(Form(self.kind, self.plan, s, like, given), m, self.q, self.k, self.v, self.tensors)
        tiled.device = self.device
        return tiled

    @property
    def pointers(self) -> Any:
        """The tensors' addresses, which those of torch.func have not."""
        if self.listed is None:
            self.listed = arrays.for_prepare(self.kind, self.tensors, [t.role for t in self.plan.tensors])
        return self.listed

    @property
    def empty(self) -> bool:
        """Is there nothing to do?  A rank without rows has others to serve."""
        return self.form.empty and self.ranks is None

    @property
    def tables(self) -> Tables:
        if self.shared is None:
            if self.ranks is not None:
                self.shared = self.plan.tables(self.ranks.distance, self.pointers)
            elif self.form.tables is not None and self.masking is None:
                self.shared = self.form.tables
            else:
                s = self.shape
                distance = max(s.rows, s.keys) if self.masking is None else self.masking.distance
                self.shared = self.plan.tables(distance, self.pointers)
        return self.shared

    def _view(self, name: str, x: Any, kept_alive: list[Any]) -> tuple[int, int, int, int]:
        """Where an array is, and its strides for C."""
        form, kind = self.form, self.kind
        at: int = kind.pointer(x)
        if kind.raw_strides(x) == form.dense[name] and at % form.bytes == 0:
            return (at, *form.strides[name])
        x = arrays.in_place(kind, x)
        kept_alive.append(x)
        strides = arrays.strides_for(tuple(x.shape), kind.strides(x), self.shape.layout, name == "o")
        return (kind.pointer(x), *strides)

    def call(self, o: Any = None) -> tuple[Any, list[Any]]:
        """The call, and what must live as long as it."""
        alive: list[Any] = [self.pointers]
        call = _c.Call.from_buffer_copy(self.form.template)
        q, k = self._view("q", self.q, alive), self._view("k", self.k, alive)
        v = NOWHERE if self.plan.values_in_keys else self._view("v", self.v, alive)
        at = NOWHERE if o is None else self._view("o", o, alive)
        _c.VIEWS.pack_into(call, _c.VIEWS_AT, *q, *k, *v, *at)
        if self.tensors:
            call.tensors = c.addressof(self.pointers)
        threads = host()
        if threads is not None:
            call.host = threads
        call.error = thread.error_at
        m = self.masking
        if m is not None:
            call.q_pos, call.k_pos = _at(m.q_pos), _at(m.k_pos)
            call.q_coord, call.k_coord = _at(m.q_coords), _at(m.k_coords)
            call.q_seg, call.k_seg = _at(m.q_seg), _at(m.k_seg)
            call.per_batch = m.per_batch
            call.k_lens, call.q_starts, call.k_starts = _at(m.k_lens), _at(m.q_starts), _at(m.k_starts)
            call.sequences = 0 if m.q_starts is None else m.q_starts.size - 1
            call.k_first, call.k_last = _at(m.k_first), _at(m.k_last)
            if m.pages is not None:
                pages = _c.Pages(_at(m.pages), m.page_length, m.pages.shape[1])
                call.pages = c.pointer(pages)
                alive.append(pages)
        if self.mask is not None:
            call.mask_kind, call.mask_key = self.mask.kind, self.mask.step
            call.mask = arrays.view(self.kind, self.mask.x, "bhld")
            alive.append(self.mask.x)
        if self.dropout is not None:
            call.dropout, call.dropout_seed = self.dropout
        return call, alive

    def room(self, call: Any, backward: int) -> int:
        """The workspace's bytes, which the form remembers for calls with nothing special."""
        if self.ranks is not None:
            return int(self.ranks.workspace(self.plan._handle, call, backward))
        key = None
        if self.masking is None and self.mask is None:
            threads = call.host.contents.threads if call.host else 1
            key = backward, threads, call.lse is None, call.rem is None, self.dropout is None
            size = self.form.sizes.get(key)
            if size is not None:
                return size
        size = int(_c.lib.workspace(self.plan._handle, call, backward))
        if not size:
            _c.check(thread.error.status or 1, thread.error)
        if key is not None:
            self.form.sizes[key] = size
        return size

    def run(self, name: str, call: Any, *arguments: Any) -> int:
        """A function of C.  Calls over ranks are not interrupted: others wait for them."""
        if self.ranks is not None:
            return int(getattr(self.ranks, name)(*arguments))
        return run(getattr(_c.lib, name), call, self.products(), *arguments)

    def products(self) -> float:
        """Of two numbers, where all rows see all keys of their sequence."""
        s, m = self.form.shape, self.masking
        if m is None or m.q_starts is None or self.plan.stage == "linear_attention":
            return self.form.products
        return self.form.products * m.pairs() / max(s.rows * s.keys, 1)

    def forward(self, out: Any = None, want_lse: bool = False) -> tuple[Any, Any, Any]:
        """o, lse or rem, ae; what is not wanted or not there is None."""
        if self.device is not None or self.kind.away:
            return _gpu.forward(self, out, want_lse)
        if self.ranks is None:
            return self._forward(out, want_lse)
        with self.ranks.calling(False):
            return self._forward(out, want_lse)

    def _forward(self, out: Any, want_lse: bool) -> tuple[Any, Any, Any]:
        kind, plan, form = self.kind, self.plan, self.form
        o = kind.empty(form.shapes["o"], self.q) if out is None else out
        lse = kind.empty(form.shapes["lse"], self.q, plan.real) if want_lse else None
        ae = kind.empty(form.ae, self.q, plan.real) if form.ae else None
        if self.empty:
            return o, lse, ae
        tables = self.tables
        call, alive = self.call(o)
        if lse is not None:
            setattr(call, "rem" if plan.weighs else "lse", kind.pointer(lse))
        if ae is not None:
            call.ae = kind.pointer(ae)
        if out is not None:
            kind.bump_version(out)
        try:
            work = thread.work(self.room(call, 0))
            _c.check(self.run("forward", call, plan._handle, tables.at, work, call), thread.error)
        finally:
            thread.done()
        del alive
        return o, lse, ae

    def weights(self) -> Any:
        """What rows give to keys, [batch, heads, rows, keys]."""
        kind, plan, s = self.kind, self.plan, self.shape
        shape = (s.batch, s.heads, s.rows, s.keys)
        if self.form.empty or not s.keys:
            return kind.zeros(shape, self.q, plan.real)
        o, lse, ae = self.forward(None, True)
        made = kind.empty(shape, self.q, plan.real)
        call, alive = self.call(o)
        setattr(call, "rem" if plan.weighs else "lse", kind.pointer(lse))
        try:
            work = thread.work(self.room(call, 1))
            view = _c.View(kind.pointer(made), 0, 0, 0)
            _c.check(self.run("weights", call, plan._handle, self.tables.at, work, call, view), thread.error)
        finally:
            thread.done()
        del alive, ae
        return made

    def grads(self, wanted: Any, wanted_tensors: list[bool]) -> tuple[list[Any], list[Any]]:
        """Arrays for the gradients of q, k and v, and of the tensors; None where none is wanted."""
        kind, form = self.kind, self.form
        make = kind.zeros if self.empty else kind.empty
        three = zip("qkv", wanted, (self.q, self.k, self.v), strict=True)
        grads = [make(form.shapes[name], x) if want else None for name, want, x in three]
        each = zip(self.plan.tensors, self.tensors, wanted_tensors, strict=True)
        return grads, [make(tuple(x.shape), x) if want and t.role != "fixed" else None for t, x, want in each]

    def grad(self, dout: Any, grads: list[Any], pointers: Any, alive: list[Any]) -> Any:
        """The struct of C for them."""
        kind, s = self.kind, self.shape
        grad = _c.Grad(size=c.sizeof(_c.Grad), dtensors=c.addressof(pointers))
        alive.append(pointers)
        if dout is not None:
            dout = arrays.in_place(kind, dout)
            alive.append(dout)
            grad.dout = arrays.view(kind, dout, s.layout)
        for name, x in zip(("dq", "dk", "dv"), grads, strict=True):
            if x is not None and x.shape[0]:
                setattr(grad, name, arrays.output(kind, x, s.layout))
        return grad

    def backward(
        self, o: Any, lse: Any, ae: Any, dout: Any, dlse: Any, dae: Any, wanted: Any, wanted_tensors: list[bool]
    ) -> tuple[list[Any], list[Any]]:
        """Gradients of q, k and v, and of the tensors; None where none is wanted.  Behind those of the tensors comes
        that of a mask, if wanted_tensors asks for one more."""
        given = o, lse, ae, dout, dlse, dae, wanted, wanted_tensors
        if self.device is not None or self.kind.away:
            return _gpu.backward(self, *given)
        if self.ranks is None:
            return self._backward(*given)
        with self.ranks.calling(True):
            return self._backward(*given)

    def _backward(
        self, o: Any, lse: Any, ae: Any, dout: Any, dlse: Any, dae: Any, wanted: Any, wanted_tensors: list[bool]
    ) -> tuple[list[Any], list[Any]]:
        kind, plan = self.kind, self.plan
        grads, dtensors = self.grads(wanted, wanted_tensors[: len(plan.tensors)])
        dmask = self.grad_of_mask(wanted_tensors)
        if self.empty:
            return grads, self.with_mask(dtensors, dmask, wanted_tensors)
        tables = self.tables
        call, alive = self.call(o)
        setattr(call, "rem" if plan.weighs else "lse", kind.pointer(lse))
        if plan.averages and ae is not None:
            call.ae = kind.pointer(ae)
        grad = self.grad(dout, grads, arrays.pointers(kind, dtensors), alive)
        for name, x in (("drem" if plan.weighs else "dlse", dlse), ("dae", dae)):
            if x is not None:
                setattr(grad, name, kind.pointer(x))
        if dmask is not None and dmask.shape[-1]:
            grad.dmask = _c.View(kind.pointer(dmask), 0, 0, 0)
        try:
            work = thread.work(self.room(call, 1))
            _c.check(self.run("backward", call, plan._handle, tables.at, work, call, grad), thread.error)
        finally:
            thread.done()
        del alive
        if self.ranks is not None:
            self.ranks.divide(plan, dtensors)
        return grads, self.with_mask(dtensors, dmask, wanted_tensors)

    def grad_of_mask(self, wanted: list[bool]) -> Any:
        """An array for that of the mask, if it is wanted."""
        s, count = self.shape, len(self.plan.tensors)
        if len(wanted) == count or not wanted[count] or self.mask is None:
            return None
        make = self.kind.zeros if self.empty else self.kind.empty
        return make((s.batch, s.heads, s.rows, s.keys), self.q, self.plan.real)

    def with_mask(self, dtensors: list[Any], dmask: Any, wanted: list[bool]) -> list[Any]:
        if len(wanted) == len(dtensors):
            return dtensors
        if dmask is None or self.mask is None:
            return [*dtensors, None]
        dmask = self.kind.gather(dmask, tuple(self.mask.given.shape))
        return [*dtensors, self.kind.cast(dmask, self.kind.dtype(self.mask.given)) if self.mask.cast else dmask]


SEEDS = 1 << 64  # of dropout
OPEN = (-1, -1)  # a window without ends


def _refuse_options(plan: Plan, *given: Any) -> None:
    """What is said beside a plan must be nothing, or what the plan says."""
    names = ("causal", "window_size", "scale", "max_len", "keys_rotated", "fast", "softcap", "sinks")
    usual = (True, OPEN, None, None, False, False, None, None)
    told = plan.options()
    for name, x, nothing in zip(names, given, usual, strict=True):
        if x is not nothing and x != nothing and x != told.get(name):
            raise Error(f"{name} has been decided by the plan")


def _placed(kind: Any, q: Any, device: Any) -> tuple[Any, Any]:
    """The class of arrays like q, and the device that arrays in memory of the CPU are copied to."""
    kind = kind.placed(q)
    if device is None:
        return kind, None
    if kind.away:
        raise Error(f"device is for arrays in memory of the CPU, and q is on {q.device}: leave it out")
    return kind, _gpu.opened(device)


def values_of(k: Any, v: Any, encoding: Any) -> Any:
    """The values of a call, which a plan may find in its keys: a view, of which C needs the sizes alone."""
    in_keys = isinstance(encoding, Plan) and encoding.values_in_keys
    if v is None and not in_keys:
        raise Error("v is missing; if values are the first channels of the keys, give v=k[..., :value_dim]")
    if v is not None and in_keys:
        raise Error("v must be None: the plan has values_in_keys, so values are channels of k")
    if v is not None:
        return v
    if arrays.kind_of(k, "k") is None:
        k = arrays.read(k, "k")[1]
    return k[..., : encoding.value_dim]


def open_call(
    q: Any,
    k: Any,
    v: Any,
    encoding: Any,
    *,
    given: Mapping[str, Any],
    tensors: Mapping[str, Any] | None = None,
    softcap: float | None = None,
    sinks: Any = None,
    layout: str = "bhld",
    causal: bool = True,
    window_size: Any = OPEN,
    scale: float | None = None,
    max_len: int | None = None,
    keys_rotated: bool = False,
    fast: bool = False,
    mask: Any = None,
    dropout_p: float = 0.0,
    dropout_seed: int | None = None,
    device: Any = _gpu.CPU,
    stage: str = "attention",
) -> Problem:
    """Everything that attention() is given, checked.  A device of None is the one where q is."""
    kind = arrays.kind_of(q)
    if kind is None:
        kind, q = arrays.read(q, "q")
    there = None
    if device != _gpu.CPU:
        kind, there = _placed(kind, q, device)
    if not kind.owns(k):
        k = arrays.read(k, "k", kind)[1]
    if not kind.owns(v):
        v = arrays.read(v, "v", kind)[1]
    mapping: dict[str, Any] = {}
    if tensors:
        for name, x in tensors.items():
            if x is not None:
                mapping[name] = x if kind.owns(x) else arrays.read(x, name, kind)[1]
    if sinks is not None:
        mapping[SINKS] = sinks if kind.owns(sinks) else arrays.read(sinks, "sinks", kind)[1]
    tables = None
    if isinstance(tensors, Prepared):
        tables = tensors.tables
        if isinstance(encoding, str) and encoding == tensors.plan.encoding:
            encoding = tensors.plan
        if encoding is not tensors.plan:
            raise Error("tensors were prepared for another plan")
    scale, max_len = scale_of(scale), whole_or_none(max_len, "max_len")
    window_size = window_size if window_size is OPEN else window_of(window_size)
    if isinstance(encoding, Plan):
        _refuse_options(encoding, causal, window_size, scale, max_len, keys_rotated, fast, softcap, sinks)
    text = encoding if isinstance(encoding, Plan) else full_text(encoding, softcap, sinks is not None)
    options = causal, window_size, scale, max_len, keys_rotated, fast
    table = page_table(given["pages"]) if given.get("pages") is not None else None
    if table is not None and layout == "thd":
        raise Error("pages are of batch entries; layout 'thd' has packed sequences")
    form = form_of(kind, q, k, v, text, mapping, stage, layout, *options, None if table is None else table.shape)
    m = None
    if form.plan.axes > 1 or any(given[name] is not None for name in given) or layout == "thd":
        m = masking(given, form.shape, form.plan.axes)
        if table is not None:
            pages, _, length, _ = arrays.sizes(k, "k", layout)
            set_pages(m, table, pages, length, form.shape)
    ordered = []
    for name, cast in zip(form.names, form.casts, strict=True):
        x = mapping[name]
        ordered.append(kind.dense(kind.cast(x, form.plan.real) if cast else x))
    pairs = None if mask is None else open_mask(kind, mask, form.shape, form.plan.real, form.plan.dtype)
    opened = Problem(form, m, q, k, v, ordered, pairs)
    opened.shared, opened.device = tables, there
    opened.dropout = _dropout(dropout_p, dropout_seed)
    return opened


def _dropout(p: Any, seed: Any) -> tuple[float, int] | None:
    """The probability and the seed; None: nothing is dropped."""
    if p == 0:
        return None
    p = real(p, "dropout_p")
    if not 0 <= p < 1:
        raise Error(f"dropout_p must be from 0 and below 1, not {p}")
    if seed is None:
        raise Error("dropout_p needs dropout_seed=, a whole number; only attention() of torch's tensors draws one")
    return p, whole(seed, "dropout_seed", 0, SEEDS - 1)


# Keywords of other libraries' attention, and what loci has for them.
ELSEWHERE = {
    "is_causal": "loci calls it causal, which is True unless you say causal=False",
    "attn_mask": "loci calls it mask, which counts beside causal=True; say causal=False where it alone decides",
    "attention_mask": "loci.seg.from_mask(attention_mask), given as seg=, says which tokens are padding",
    "key_padding_mask": "loci.seg.from_mask() makes segments of a mask of tokens, given as seg=",
    "dropout": "loci calls it dropout_p",
    "enable_gqa": "loci reads the number of kv heads from k and v; leave it out",
    "softmax_scale": "loci calls it scale",
    "sm_scale": "loci calls it scale",
    "alibi_slopes": "it is an encoding: 'alibi', whose options say which slopes",
    "position_ids": "loci calls it pos",
    "theta": "it is an option of the encoding: 'rope:pairing=half,base=10000'",
    "rotary": "it is an encoding: 'rope:pairing=half'",
    "sinusoidal": "it is added to the embeddings, by loci.embed(x, 'sinusoidal')",
}


def refuse_keywords(function: str, names: Mapping[str, Any]) -> None:
    for name in names:
        hint = ELSEWHERE.get(name)
        raise TypeError(f"{function}() has no argument '{name}'" + (f": {hint}" if hint else ""))


def results(o: Any, lse: Any, ae: Any) -> Any:
    """What attention() returns: o alone, or with what else there is."""
    all_ = tuple(x for x in (o, lse, ae) if x is not None)
    return all_ if len(all_) > 1 else o


def check_out(p: Problem, out: Any) -> Any:
    """The caller's array for the result, validated."""
    return arrays.check_out(p.kind, out, p.form.shapes["o"], p.plan.dtype)


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


def check_grads(p: Problem, dout: Any, out: Any, lse: Any, ae: Any, dlse: Any, dae: Any) -> tuple[Any, ...]:
    """What attention_backward() is given beside the arrays of the call, as backward() takes it."""
    kind, plan, rows = p.kind, p.plan, p.form.shapes["lse"]
    out = _like(p, out, "out", p.form.shapes["o"], plan.dtype)
    lse = _like(p, lse, "lse", rows, plan.real)
    for name, x in (("out", out), ("lse", lse)):
        if x is None:
            raise Error(f"{name} is missing: attention(..., return_lse=True) gives out and lse")
    dout = _like(p, dout, "dout", p.form.shapes["o"], plan.dtype)
    dlse = _like(p, dlse, "dlse", rows, plan.real)
    if p.form.ae:
        ae, dae = _like(p, ae, "ae", p.form.ae, plan.real), _like(p, dae, "dae", p.form.ae, plan.real)
    elif ae is not None or dae is not None:
        raise Error(f"{'dae' if ae is None else 'ae'} is of states, which '{plan.encoding}' has not")
    lse, ae, dlse, dae = (None if x is None else kind.dense(x) for x in (lse, ae, dlse, dae))
    return out, lse, ae, dout, dlse, dae


def backward(p: Problem, checked: tuple[Any, ...]) -> tuple[Any, Any, Any, dict[str, Any]]:
    """attention_backward()."""
    out, lse, ae, dout, dlse, dae = checked
    plan = p.plan
    wanted = [t.role != "fixed" for t in plan.tensors]
    if p.mask is not None and p.mask.kind == _c.ADDED:
        wanted.append(True)
    grads, dtensors = p.backward(out, lse, ae, dout, dlse, dae, (True, True, True), wanted)
    names = [*(t.name for t in plan.tensors), "mask"]
    named = {name: x for name, x in zip(names, dtensors, strict=False) if x is not None}
    return grads[0], grads[1], grads[2], named
