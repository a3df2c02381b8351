# SPDX-License-Identifier: MIT
"""Arrays of whatever library: which one it is, and how C sees them."""

from __future__ import annotations

import ctypes as c
import sys
from typing import Any, TypeVar

import numpy as np

from . import _c
from ._c import Error
from ._numbers import LONG
from ._numpy import Numpy

Array = TypeVar("Array", bound="np.ndarray[Any, Any]")
LAYOUTS = ("bhld", "blhd", "thd")


def kind_of(x: Any, name: str = "q") -> Any:
    """The library of an array, or what it can be read as."""
    if isinstance(x, np.ndarray):
        refuse_masked(x, name)
        return Numpy
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        from ._torch import Torch

        return Torch
    if hasattr(x, "__dlpack__"):
        return None
    raise TypeError(f"{name} must be an array of numpy, a tensor of torch, or have __dlpack__, not {type(x).__name__}")


def refuse_masked(x: Any, name: str) -> None:
    if isinstance(x, np.ma.MaskedArray):
        raise Error(
            f"{name} is a masked array, whose mask loci would ignore: give {name}.filled(...), and mask= for keys"
        )


def refuse_mapped(x: Any, name: str) -> None:
    """Tensors of torch.func have no memory; loci maps rows and what comes with them."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor) and torch._C._functorch.is_batchedtensor(x):
        raise Error(f"{name} cannot be mapped by torch.func.vmap; map q, k, v and inputs", "unsupported")


def read(x: Any, name: str, kind: Any = None) -> tuple[Any, Any]:
    """The library and the array, which a foreign one becomes.  All arrays of a call are of one library."""
    own = kind_of(x, name)
    if own is None:
        try:
            x, own = np.from_dlpack(x), Numpy
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise Error(f"{name} cannot be read through DLPack: {error}") from None
    if kind is not None and own is not kind.family:
        raise Error(f"{name} is an array of {own.name}, and q of {kind.name}")
    kind = own if kind is None else kind
    kind.check_device(x, name)
    return kind, x


def read_placed(x: Any, name: str, kind: Any = None) -> tuple[Any, Any]:
    """The same of an array in memory of the CPU or of a device."""
    if kind is None:
        kind = kind_of(x, name)
        kind = None if kind is None else kind.placed(x)
    return read(x, name, kind)


def check_together(x: Any, name: str, q: Any) -> None:
    """Arrays of a call are on one device."""
    own, other = getattr(x, "device", None), getattr(q, "device", None)
    if own != other and own is not None and other is not None:
        raise Error(f"{name} is on {own} and q on {other}; arrays of a call are on one device")


def check_dtype(kind: Any, x: Any, name: str, like: str | None = None) -> str:
    dtype: str = kind.dtype(x)
    if dtype not in _c.DTYPES:
        raise Error(f"{name} is {dtype}; loci has float32, float64, bfloat16 and float16")
    if like is not None and dtype != like:
        raise Error(f"{name} is {dtype} and q {like}")
    return dtype


def in_place(kind: Any, x: Any) -> Any:
    """The array, or a copy where C could not read it: its last axis must be dense, and no stride negative."""
    strides = [stride for stride, size in zip(kind.strides(x), x.shape, strict=True) if size != 1]
    if (x.shape[-1] > 1 and strides[-1] != 1) or min(strides, default=0) < 0 or not kind.aligned(x):
        return kind.dense(x)
    return x


def check_out(kind: Any, out: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """The caller's array for the result.  It must fit, be writable, and have a place of its own for each number."""
    if out is None:
        return None
    _, out = read(out, "out", kind)
    check_dtype(kind, out, "out", dtype)
    if tuple(out.shape) != shape:
        raise Error(f"out has the shape {list(out.shape)}, not {list(shape)}")
    kind.check_writable(out, "out")
    if _overlaps(kind, out):
        raise Error(f"out has strides {kind.strides(out)}, so some of its numbers share memory; give an array without")
    if in_place(kind, out) is not out:
        raise Error("out must be aligned and dense along its last axis, without negative strides")
    return out


def _overlaps(kind: Any, x: Any) -> bool:
    """Do two numbers share memory?  An axis must step over all that the axes of shorter strides reach."""
    if 0 in x.shape:
        return False
    reach = 1
    for stride, size in sorted(zip(kind.strides(x), x.shape, strict=True)):
        if size > 1 and 0 <= stride < reach:
            return True
        reach += (size - 1) * stride
    return False


def sizes(x: Any, name: str, layout: str) -> tuple[int, int, int, int]:
    """Batch, heads, rows and width."""
    shape = tuple(int(size) for size in x.shape)
    if len(shape) != len(layout):
        said = ", ".join(str(size) for size in shape)
        raise Error(f"{name} has the shape ({said}); layout '{layout}' has {len(layout)} dimensions")
    if layout == "bhld":
        return shape[0], shape[1], shape[2], shape[3]
    if layout == "blhd":
        return shape[0], shape[2], shape[1], shape[3]
    return 1, shape[1], shape[0], shape[2]


def shape_of(layout: str, batch: int, heads: int, rows: int, width: int) -> tuple[int, ...]:
    if layout == "bhld":
        return (batch, heads, rows, width)
    if layout == "blhd":
        return (batch, rows, heads, width)
    return (rows, heads, width)


def dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    made, step = [], 1
    for size in reversed(shape):
        made.append(step)
        step *= max(size, 1)
    return tuple(reversed(made))


def strides_for(shape: tuple[int, ...], strides: Any, layout: str, written: bool) -> tuple[int, int, int]:
    """Those of batch, head and row as C reads them.  An input's stride of 0 becomes BROADCAST, as three zeros would
    mean dense.  In an output only an axis of size 1 may have one: see check_out().  Strides below 0 are of axes of
    size 1, where they mean nothing: see in_place()."""
    one = 1 if written else _c.BROADCAST
    s = [stride if stride > 0 else one for stride in strides]
    if layout == "bhld":
        return s[0], s[1], s[2]
    if layout == "blhd":
        return s[0], s[2], s[1]
    if layout == "thd":
        return one, s[1], s[0]
    if layout == "bld":  # embeddings
        return s[0], one, s[1]
    return one, one, s[0]


def view(kind: Any, x: Any, layout: str) -> _c.View:
    """How C reads it."""
    return _c.View(kind.pointer(x), *strides_for(x.shape, kind.strides(x), layout, False))


def output(kind: Any, x: Any, layout: str) -> _c.View:
    """How C writes it."""
    return _c.View(kind.pointer(x), *strides_for(x.shape, kind.strides(x), layout, True))


def for_prepare(kind: Any, tensors: Any, roles: Any) -> Any:
    """The list for C, which reads what is learned in memory of the CPU, and inputs where the call's arrays are."""
    if not kind.away:
        return pointers(kind, tensors)
    there = [kind.host(x) if x is not None and role != "input" else x for x, role in zip(tensors, roles, strict=True)]
    list_ = pointers(kind, there)
    list_.kept = there
    return list_


def pointers(kind: Any, arrays: Any) -> Any:
    """A list of addresses for C; None is NULL."""
    list_ = (c.c_void_p * max(len(arrays), 1))()
    for i, x in enumerate(arrays):
        list_[i] = None if x is None else kind.pointer(x)
    return list_


def whole(x: Any, name: str, shapes: tuple[tuple[int, ...], ...] | None = None) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Whole numbers of any type as int64, of one of these shapes, or of any."""
    got = _as_numpy(x, name)
    if got.dtype.kind not in "iu" and got.size:  # numpy makes floats of an empty list
        raise Error(f"{name} must be whole numbers, not {got.dtype.name}")
    if got.dtype.kind == "u" and got.size and int(got.max()) > LONG:
        raise Error(f"{name} has {got.max()}, which is beyond int64; positions lie within 2^40")
    made: np.ndarray[Any, np.dtype[np.int64]] = np.require(got, np.int64, ("C", "A"))
    return made if shapes is None else _shaped(made, name, shapes)


def reals(
    x: Any, name: str, shapes: tuple[tuple[int, ...], ...] | None = None
) -> np.ndarray[Any, np.dtype[np.float64]]:
    got = _as_numpy(x, name)
    if got.dtype.kind not in "iuf":
        raise Error(f"{name} must be numbers, not {got.dtype.name}")
    made: np.ndarray[Any, np.dtype[np.float64]] = np.require(got, np.float64, ("C", "A"))
    return made if shapes is None else _shaped(made, name, shapes)


def _as_numpy(x: Any, name: str) -> np.ndarray[Any, Any]:
    refuse_masked(x, name)
    if is_torch(x):
        from ._torch import to_numpy

        return to_numpy(x, name)
    try:
        return np.asarray(x)
    except ValueError:
        raise Error(f"{name} must be one list, or lists of one length") from None


def is_torch(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def _shaped(x: Array, name: str, shapes: tuple[tuple[int, ...], ...]) -> Array:
    if x.shape not in shapes:
        said = " or ".join("[" + ", ".join(str(size) for size in shape) + "]" for shape in shapes)
        raise Error(f"{name} has the shape [{', '.join(str(size) for size in x.shape)}], not {said}")
    return x
