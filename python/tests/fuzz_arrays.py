# SPDX-License-Identifier: MIT
"""Arrays for the fuzzer: views of every sort into guarded memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]
try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

GUARD = 64  # numbers in front of an array's memory and behind it
DTYPES = {"float32": np.dtype("f4"), "float64": np.dtype("f8"), "float16": np.dtype("f2")}
if ml_dtypes is not None:
    DTYPES["bfloat16"] = np.dtype(ml_dtypes.bfloat16)
LIBRARIES = ("numpy",) if torch is None else ("numpy", "torch")


class Draw:
    """What hypothesis decides; numbers themselves come from a generator that it seeds."""

    def __init__(self, data: Any) -> None:
        self.data = data
        self.rng = np.random.default_rng(self.int(0, 1 << 32))

    def int(self, low: int, high: int) -> int:
        return int(self.data.draw(st.integers(low, high)))

    def pick(self, of: Any) -> Any:
        return self.data.draw(st.sampled_from(of))

    def chance(self, percent: int) -> bool:
        """False is the simpler case, which shrinking prefers."""
        return self.int(0, 99) >= 100 - percent


@dataclass
class Placed:
    """An array as loci is given it, the memory that it lies in, and the numbers that it shows."""

    array: Any
    memory: Any  # all of it, guards included, as bytes
    owned: Any  # which bytes the array's numbers occupy
    dtype: Any

    def __post_init__(self) -> None:
        self.before = self.memory.copy()
        self.values = numbers(self.array)

    def __str__(self) -> str:
        strides = self.array.stride() if of_torch(self.array) else self.array.strides
        neg = " negated" if of_torch(self.array) and self.array.is_neg() else ""
        return f"{self.array.dtype} {tuple(self.array.shape)} by {tuple(strides)}{neg}"

    @property
    def dense(self) -> Any:
        """A copy that is dense, of numpy."""
        return np.ascontiguousarray(self.values.astype(self.dtype))

    def assert_unchanged(self, name: str) -> None:
        assert np.array_equal(self.memory, self.before), f"{name} or the memory around it has changed"

    def assert_only_own_changed(self, name: str) -> None:
        assert of_torch(self.array) or self.array.flags.writeable, f"{name} is read-only and was not refused"
        changed = (self.memory != self.before) & ~self.owned
        assert not changed.any(), f"{changed.sum()} bytes that are not of {name} have changed"


class Foreign:
    """An array of another library, which has __dlpack__ and nothing else."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __dlpack__(self, **options: Any) -> Any:
        return self.x.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.x.__dlpack_device__()


def of_torch(x: Any) -> bool:
    return torch is not None and isinstance(x, torch.Tensor)


def numbers(x: Any) -> Any:
    """As float64 of numpy."""
    if of_torch(x):
        x = x.detach().resolve_neg()
        return (x.double() if x.is_floating_point() else x).numpy().copy()
    return np.array(x, np.float64)


def _strides(d: Draw, shape: tuple[int, ...], backwards: bool, distinct: bool) -> list[int]:
    """In numbers.  Distinct ones give each number a place of its own."""
    if not d.chance(60):
        return [int(np.prod(shape[i + 1 :])) for i in range(len(shape))]
    if not distinct and d.chance(10):
        return [d.int(0, 5) for _ in shape]
    axes = d.data.draw(st.permutations(range(len(shape)))) if d.chance(50) else list(range(len(shape)))
    last_is_dense = d.chance(90 if distinct else 70)
    strides, reach = [0] * len(shape), 1
    for axis in reversed(axes):
        gaps = d.chance(20) and not (last_is_dense and axis == len(shape) - 1)
        stride = reach * (d.int(1, 3) if gaps else 1) + (d.int(0, 9) if gaps else 0)
        reach = stride * max(shape[axis], 1)
        if not distinct and d.chance(10):
            stride = 0
        elif backwards and d.chance(8):
            stride = -stride
        strides[axis] = stride
    for axis, size in enumerate(shape):
        if size == 1 and d.chance(20):
            strides[axis] = d.pick((0, 1, 7, 1 << 20))
    return strides


def place(
    d: Draw,
    shape: tuple[int, ...],
    dtype: str,
    library: str,
    *,
    out: bool = False,
    odd: bool = True,
    sign: int = 0,
    most: float = np.inf,
) -> Placed:
    """A view of random numbers, below 0 for a sign of -1, cut to +-most.  What is `out` overlaps itself seldom, as that
    is refused; odd=False is dense."""

    def fill(size: Any) -> Any:
        x = d.rng.standard_normal(size)
        return np.clip(sign * np.abs(x) if sign else x, -most, most).astype(np_dtype)

    np_dtype = DTYPES[dtype]
    item = np_dtype.itemsize
    of_numpy = library == "numpy"
    strides = [int(np.prod(shape[i + 1 :])) for i in range(len(shape))]
    pitch, start = item, 0
    if odd:
        distinct = out and not d.chance(30)
        if of_numpy and d.chance(4):  # fields of packed records
            pitch, distinct = item + d.int(1, item), True
        strides = _strides(d, shape, of_numpy and (not out or d.chance(20)), distinct)
        start = d.int(1, item - 1) if of_numpy and d.chance(5) else 0
    span = [(size - 1) * stride for size, stride in zip(shape, strides, strict=True) if size > 1 and 0 not in shape]
    low, high = sum(min(s, 0) for s in span), sum(max(s, 0) for s in span)
    count = high - low + 1
    memory = np.zeros((count + 2 * GUARD) * pitch + item, np.uint8)
    inside = memory[start : start + (count + 2 * GUARD) * pitch // item * item].view(np_dtype)
    inside[:] = fill(inside.size)
    at = start + (GUARD - low) * pitch
    steps = [stride * pitch for stride in strides]
    view = _view(memory, np_dtype, shape, steps, at)
    if pitch != item:
        view[...] = fill(shape)
    owned = np.zeros(memory.size, bool)
    if 0 not in shape:
        for byte in range(item):
            _view(owned, np.dtype(bool), shape, steps, at + byte)[...] = True
    if library == "torch":
        flat = inside.view(np.int16) if dtype == "bfloat16" else inside
        flat = torch.from_numpy(flat)
        view = (flat.view(torch.bfloat16) if dtype == "bfloat16" else flat).as_strided(shape, strides, GUARD - low)
        if odd and not sign and d.chance(1):
            view = torch._neg_view(view)
    elif odd and d.chance(12 if out else 5):
        view.flags.writeable = False
    return Placed(view, memory, owned, np_dtype)


def _view(memory: Any, dtype: Any, shape: tuple[int, ...], steps: list[int], at: int) -> Any:
    """np.ndarray() of a buffer looks whether it fits, but not for an axis of size 1."""
    some = [step if size > 1 and 0 not in shape else 0 for step, size in zip(steps, shape, strict=True)]
    view = np.ndarray(shape, dtype, memory.data, at, some)
    return np.lib.stride_tricks.as_strided(view, shape, steps)


def given_as(d: Draw, x: Any, library: str) -> Any:
    """Whole numbers as callers have them: lists, arrays of any width, tensors, views."""
    x = np.asarray(x)
    how = d.pick(("int64", "int64", "list", "int32", "int16", "reversed", "tensor", "wide"))
    if how == "list":
        return x.tolist()
    if how in ("int32", "int16") and (x.size == 0 or np.abs(x).max() < 1 << 15):
        return x.astype(how)
    if how == "reversed" and x.ndim:
        return x[..., ::-1].copy()[..., ::-1]
    if how == "wide":
        return np.repeat(x, 2, -1)[..., ::2] if x.ndim else x
    if how == "tensor" and library == "torch":
        return torch.from_numpy(x.astype(np.int64))
    return x.astype(np.int64)
