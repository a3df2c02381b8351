# SPDX-License-Identifier: MIT
"""Calls on devices.  libloci-gpu is opened when somebody asks for a device, and drivers not before.

Arrays in memory of the CPU are copied to the device and back (Staged).  Those in memory of a device stay where they are
(Direct).  Both go the same way otherwise."""

from __future__ import annotations

import ctypes as c
import glob
import importlib.util
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

from . import _arrays as arrays
from . import _c
from ._c import Error

if TYPE_CHECKING:
    from ._attend import Problem
    from ._plan import Plan, Tables

CPU = "cpu"  # the device of libloci itself

# ---- The library ---------------------------------------------------------------------------------

_lock = threading.Lock()
_open: dict[Any, Any] = {}  # devices, by their names or as others call them
MOST = 64  # that stay open

# CUDA's compiler, as packages of Python install it; newer ones first.
_COMPILERS = (
    ("nvidia", "cu13/lib/libnvrtc.so.13"),
    ("nvidia", "cuda_nvrtc/lib/libnvrtc.so.12"),
    ("torch", "lib/libnvrtc.so.1[23]"),
)


def find_compiler() -> str | None:
    """The folder of NVRTC, if a package has brought it along.  No package is imported."""
    for package, pattern in _COMPILERS:
        try:
            spec = importlib.util.find_spec(package)
        except (ImportError, ValueError):
            continue
        for folder in (spec and spec.submodule_search_locations) or ():
            for file in glob.glob(os.path.join(glob.escape(folder), *pattern.split("/"))):
                return os.path.dirname(file)
    return None


def library() -> Any:
    """loci-gpu, which looks for drivers when its first function is called."""
    if "LOCI_NVRTC" not in os.environ:
        folder = find_compiler()
        if folder is not None:
            os.environ["LOCI_NVRTC"] = folder
    return _c.gpu()


def _forget() -> None:
    """Devices do not survive a fork, and a lock may have been held by another thread."""
    global _lock
    _lock = threading.Lock()
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def release() -> None:
    """Forgets devices; they are closed when nothing is on them any more."""
    with _lock:
        dropped = list(_open.values())
        _open.clear()
    del dropped  # without the lock


# ---- Devices -------------------------------------------------------------------------------------


def _end(process: int, function: Any, *arguments: Any) -> None:
    if os.getpid() == process:  # a child has no device
        function(*(x.handle if isinstance(x, Device) else x for x in arguments))


def _when_gone(owner: Any, function: Any, *arguments: Any) -> None:
    """Calls function(*arguments) after the owner.  A device among them stays open until then.  When the process ends,
    drivers free what is left."""
    weakref.finalize(owner, _end, os.getpid(), function, *arguments).atexit = False


class Memory:
    """Bytes of a device, for as long as this object is there."""

    __slots__ = ("__weakref__", "at")

    def __init__(self, device: Device, size: int) -> None:
        at, error = c.c_void_p(), _c.CError()
        _c.check(library().gpu_alloc(device.handle, max(size, 1), c.byref(at), error), error)
        self.at = at.value or 0
        _when_gone(self, library().gpu_free, device, self.at)


class Device:
    """An open device.  All that is on it refers to it, so it is closed last."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        _when_gone(self, library().gpu_close, handle)

    def memory(self, size: int) -> Any:
        """So many bytes, at `at`."""
        return Memory(self, size)

    def copy(self, to: int, from_: int, size: int, kind: int) -> None:
        error = _c.CError()
        _c.check(library().gpu_copy(self.handle, to, from_, size, kind, error), error)

    def wait(self) -> None:
        """Until it has done what it was told."""
        error = _c.CError()
        _c.check(library().gpu_wait(self.handle, error), error)


def kept(key: Any, make: Any) -> Any:
    """The device of a key, which is opened once."""
    device = _open.get(key)
    if device is None:
        made = make()
        dropped = []
        with _lock:
            device = _open.setdefault(key, made)
            while len(_open) > MOST:
                dropped.append(_open.pop(next(iter(_open))))
        del dropped, made  # without the lock
    return device


def opened(name: Any) -> Any:
    """The device with this name."""
    if not isinstance(name, str):
        raise TypeError(f"device must be a text such as 'cuda:0', not {type(name).__name__}")

    def make() -> Device:
        handle, error = c.c_void_p(), _c.CError()
        _c.check(library().gpu_open(c.byref(handle), name.encode(), error), error)
        return Device(handle)

    return kept(name, make)


# ---- Plans and tables ----------------------------------------------------------------------------


class _PlanThere:
    """A plan on a device."""

    __slots__ = ("__weakref__", "handle")

    def __init__(self, device: Device, plan: Plan) -> None:
        handle, error = c.c_void_p(), _c.CError()
        _c.check(library().gpu_plan_create(c.byref(handle), device.handle, plan._handle, error), error)
        self.handle = handle
        weakref.finalize(self, library().gpu_plan_destroy, handle).atexit = False


def plan_on(device: Device, plan: Plan) -> Any:
    found = plan.there.get(device)
    if found is None:
        found = plan.there.setdefault(device, _PlanThere(device, plan))
    return found.handle


def tables_on(device: Device, tables: Tables) -> Any:
    found = tables.there.get(device)
    if found is None:
        memory = device.memory(tables.size)
        device.copy(memory.at, tables.at, tables.size, _c.UPLOAD)
        found = tables.there.setdefault(device, memory)
    return _c.GpuTables(tables.at, found.at)


# ---- Arrays --------------------------------------------------------------------------------------


class Direct:
    """Arrays that are in memory of the device."""

    def __init__(self, kind: Any, device: Device) -> None:
        self.kind, self.device = kind, device
        self.alive: list[Any] = []

    def read(self, x: Any, layout: str) -> Any:
        """How C reads it."""
        x = arrays.in_place(self.kind, x)
        self.alive.append(x)
        return arrays.view(self.kind, x, layout)

    def read_dense(self, x: Any) -> int:
        """Where a dense array is."""
        at: int = self.kind.pointer(x)
        return at

    def write(self, x: Any, layout: str) -> Any:
        """How C writes it."""
        return arrays.output(self.kind, x, layout)

    def write_dense(self, x: Any) -> int:
        at: int = self.kind.pointer(x)
        return at

    def room(self, size: int) -> int:
        """The address of so many bytes, until the call ends."""
        memory = self.device.memory(size)
        self.alive.append(memory)
        at: int = memory.at
        return at

    def done(self) -> None:
        """Results are where they belong, or will be in the order of the device's work."""


class Staged(Direct):
    """Arrays of the CPU, and their copies."""

    def __init__(self, kind: Any, device: Device) -> None:
        super().__init__(kind, device)
        self.results: list[tuple[Any, int]] = []

    def read(self, x: Any, layout: str) -> Any:
        """What is repeated in memory goes there once."""
        stays = [stride != 0 or size == 1 for stride, size in zip(self.kind.strides(x), x.shape, strict=True)]
        once = self.kind.dense(x[tuple(slice(None) if stay else slice(0, 1) for stay in stays)])
        strides = arrays.dense_strides(tuple(once.shape))
        strides = tuple(stride if stay else 0 for stride, stay in zip(strides, stays, strict=True))
        return _c.View(self.read_dense(once), *arrays.strides_for(tuple(x.shape), strides, layout, False))

    def read_dense(self, x: Any) -> int:
        at = self.room(x.nbytes)
        self.device.copy(at, self.kind.pointer(x), x.nbytes, _c.UPLOAD)
        return at

    def write(self, x: Any, layout: str, partial: bool = False) -> Any:
        shape = tuple(x.shape)
        strides = arrays.dense_strides(shape)
        return _c.View(self.write_dense(x, partial), *arrays.strides_for(shape, strides, layout, True))

    def write_dense(self, x: Any, partial: bool = False) -> int:
        """partial: rows that are not written stay as they are."""
        at = self.read_dense(self.kind.dense(x)) if partial else self.room(x.nbytes)
        self.results.append((x, at))
        return at

    def done(self) -> None:
        for x, at in self.results:
            dense = x if self.kind.dense(x) is x else self.kind.host_like(x)
            self.device.copy(self.kind.pointer(dense), at, x.nbytes, _c.DOWNLOAD)
            if dense is not x:
                x[...] = dense


def _there(p: Problem) -> Direct:
    if p.ranks is not None:
        raise Error("ranks compute on their CPUs, not on a device", "unsupported")
    if p.kind.away:
        return Direct(p.kind, p.kind.current())
    return Staged(p.kind, p.device)


# ---- Calls ---------------------------------------------------------------------------------------


def _call(p: Problem, there: Direct, o: Any, writes: bool) -> Any:
    """The call with addresses of the device."""
    call, alive = p.call(o)
    there.alive.append(alive)
    layout = p.shape.layout
    if isinstance(there, Staged):
        call.q, call.k = (there.read(x, layout) for x in (p.q, p.k))
        if not p.plan.values_in_keys:
            call.v = there.read(p.v, layout)
        call.o = there.write(o, layout) if writes else there.read(o, layout)
    if p.mask is not None and isinstance(there, Staged):
        call.mask = there.read(p.mask.x, "bhld")
        call.mask_key = _step(p.mask.x, p.kind)
    inputs = [i for i, t in enumerate(p.plan.tensors) if t.role == "input"]
    if inputs:
        listed = (c.c_void_p * len(p.tensors))(*p.pointers)
        for i in inputs:
            listed[i] = there.read_dense(p.tensors[i])
        there.alive.append(listed)
        call.tensors = c.addressof(listed)
    return call


def _step(mask: Any, kind: Any) -> int:
    """From key to key of a mask's copy."""
    repeats = mask.shape[3] > 1 and kind.strides(mask)[3] == 0
    return _c.BROADCAST if repeats else 1


def _run(p: Problem, there: Direct, function: str, call: Any, *more: Any) -> None:
    lib, device = library(), there.device
    plan, tables = plan_on(device, p.plan), tables_on(device, p.tables)
    size = lib.gpu_workspace(plan, call, function.endswith("backward"))
    work = there.room(size) if size else None  # without one, the call says what is wrong
    _c.check(getattr(lib, function)(plan, tables, work, call, *more), call.error.contents)
    there.done()


def forward(p: Problem, out: Any, want_lse: bool) -> tuple[Any, Any, Any]:
    """o, lse or rem, ae; what is not wanted or not there is None."""
    kind, plan, form = p.kind, p.plan, p.form
    there = _there(p)
    o = kind.empty(form.shapes["o"], p.q) if out is None else out
    lse = kind.empty(form.shapes["lse"], p.q, plan.real) if want_lse else None
    ae = kind.empty(form.ae, p.q, plan.real) if form.ae else None
    if p.empty:
        return o, lse, ae
    call = _call(p, there, o, True)
    if lse is not None:
        setattr(call, "rem" if plan.weighs else "lse", there.write_dense(lse))
    if ae is not None:
        call.ae = there.write_dense(ae)
    if out is not None:
        kind.bump_version(out)
    _run(p, there, "gpu_forward", call)
    return o, lse, ae


def linear_forward(p: Problem, before: int | None, after: int | None, size: int) -> Any:
    """o.  States are memory of the CPU, of so many bytes."""
    there = _there(p)
    o = p.kind.empty(p.form.shapes["o"], p.q)
    call = _call(p, there, o, True)
    first = 0 if before is None else there.room(size)
    last = 0 if after is None else there.room(size)
    if before is not None:
        there.device.copy(first, before, size, _c.UPLOAD)
    _run(p, there, "gpu_linear_forward", call, first or None, last or None)
    if after is not None:
        there.device.copy(after, last, size, _c.DOWNLOAD)
    return o


def backward(
    p: Problem, o: Any, lse: Any, ae: Any, dout: Any, dlse: Any, dae: Any, wanted: Any, wanted_tensors: list[bool]
) -> tuple[list[Any], list[Any]]:
    """As Problem.backward()."""
    kind, plan, layout = p.kind, p.plan, p.shape.layout
    there = _there(p)
    grads, dtensors = p.grads(wanted, wanted_tensors[: len(plan.tensors)])
    dmask = p.grad_of_mask(wanted_tensors)
    if p.empty:
        return grads, p.with_mask(dtensors, dmask, wanted_tensors)
    call = _call(p, there, o, False)
    linear = plan.stage == "linear_attention"
    if not linear:
        setattr(call, "rem" if plan.weighs else "lse", there.read_dense(lse))
    if plan.averages and ae is not None:
        call.ae = there.read_dense(ae)
    # C writes gradients of what is learned to memory of the CPU.
    learned = {
        i: kind.host_like(x)
        for i, (x, t) in enumerate(zip(dtensors, plan.tensors, strict=True))
        if x is not None and t.role != "input"
    }
    pointers = (c.c_void_p * max(len(dtensors), 1))()
    for i, x in enumerate(dtensors):
        if x is not None:
            pointers[i] = kind.pointer(learned[i]) if i in learned else there.write_dense(x)
    grad = _c.Grad(size=c.sizeof(_c.Grad), dtensors=c.addressof(pointers))
    if dout is not None:
        grad.dout = there.read(dout, layout)
    for name, x in zip(("dq", "dk", "dv"), grads, strict=True):
        if x is not None and x.shape[0]:
            setattr(grad, name, there.write(x, layout))
    for name, x in (("drem" if plan.weighs else "dlse", dlse), ("dae", dae)):
        if x is not None:
            setattr(grad, name, there.read_dense(x))
    if dmask is not None and dmask.shape[-1]:
        grad.dmask = _c.View(there.write_dense(dmask), 0, 0, 0)
    _run(p, there, "gpu_linear_backward" if linear else "gpu_backward", call, grad)
    for i, x in learned.items():
        dtensors[i] = x if not kind.away else kind.from_host(x)
    return grads, p.with_mask(dtensors, dmask, wanted_tensors)
