# SPDX-License-Identifier: MIT
"""numpy's arrays, as the rest of the package sees arrays of any library."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._c import Error

NAMES = ("float32", "float64", "bfloat16", "float16")


class Numpy:
    """What calls need of arrays.  _torch.py has the same for torch."""

    name = "numpy"
    family: Any = None  # the class for arrays in memory of the CPU: itself
    away = False  # are the arrays in memory of a device?
    library: Any = np

    @staticmethod
    def placed(x: Any) -> Any:
        """The class for arrays that are where this one is."""
        return Numpy

    @staticmethod
    def owns(x: Any) -> bool:
        return type(x) is np.ndarray  # others are looked at by kind_of()

    @staticmethod
    def dtype(x: Any) -> str:
        return str(x.dtype.name if x.dtype.isnative else x.dtype.str)

    @staticmethod
    def dtype_of(name: str) -> Any:
        if name == "bfloat16":
            try:
                import ml_dtypes
            except ImportError:
                raise Error("bfloat16 arrays of numpy need ml_dtypes: pip install ml_dtypes", "unsupported") from None
            return np.dtype(ml_dtypes.bfloat16)
        return np.dtype(name)

    @staticmethod
    def pointer(x: Any) -> int:
        at: int = x.__array_interface__["data"][0]
        return at

    @staticmethod
    def strides(x: Any) -> tuple[int, ...]:
        """In numbers; those of views into records may be none."""
        size = x.itemsize
        return tuple(s // size if s % size == 0 else -1 for s in x.strides)

    @staticmethod
    def signature(x: Any) -> tuple[Any, ...]:
        """What checks look at."""
        return x.shape, x.dtype

    @staticmethod
    def raw_strides(x: Any) -> Any:
        """As numpy has them, in bytes."""
        return x.strides

    @staticmethod
    def dense_strides(shape: tuple[int, ...], like: Any) -> tuple[int, ...]:
        """The raw ones of a dense array."""
        made, step = [], int(like.itemsize)
        for size in reversed(shape):
            made.append(step)
            step *= max(size, 1)
        return tuple(reversed(made))

    @staticmethod
    def aligned(x: Any) -> bool:
        return bool(x.flags.aligned)

    @staticmethod
    def dense(x: Any) -> Any:
        return np.require(x, requirements=("C", "A"))

    @staticmethod
    def copy(x: Any) -> Any:
        return x.copy()

    @staticmethod
    def version(x: Any) -> Any:
        """None: arrays do not tell whether they have changed."""
        return None

    @staticmethod
    def refuse_untracked(*arrays: Any) -> None:
        """Nobody follows arrays of numpy."""

    @staticmethod
    def empty(shape: tuple[int, ...], like: Any, dtype: str | None = None) -> Any:
        return np.empty(shape, like.dtype if dtype is None else Numpy.dtype_of(dtype))

    @staticmethod
    def zeros(shape: tuple[int, ...], like: Any, dtype: str | None = None) -> Any:
        return np.zeros(shape, like.dtype if dtype is None else Numpy.dtype_of(dtype))

    @staticmethod
    def host_like(x: Any) -> Any:
        """An array in memory of the CPU, for numbers of a device."""
        return np.empty(x.shape, x.dtype)

    @staticmethod
    def cast(x: Any, dtype: str) -> Any:
        return x.astype(Numpy.dtype_of(dtype))

    @staticmethod
    def to_numpy(x: Any) -> np.ndarray[Any, Any]:
        return np.asarray(x)

    @staticmethod
    def check_device(x: Any, name: str) -> None:
        """All of them are where loci computes."""

    @staticmethod
    def check_writable(x: Any, name: str) -> None:
        if not x.flags.writeable:
            raise Error(f"{name} is read-only; give an array that can be written")

    @staticmethod
    def bump_version(x: Any) -> None:
        """numpy does not count changes."""

    @staticmethod
    def from_numpy(x: np.ndarray[Any, Any]) -> Any:
        return x

    @staticmethod
    def spread(x: Any, shape: tuple[int, ...]) -> Any:
        return np.broadcast_to(x, shape)

    @staticmethod
    def gather(x: Any, shape: tuple[int, ...]) -> Any:
        """The adjoint: sums over the axes that were spread."""
        lead = x.ndim - len(shape)
        axes = tuple(i for i in range(x.ndim) if i < lead or (shape[i - lead] == 1 and x.shape[i] != 1))
        return x.sum(axes, keepdims=True, dtype=x.dtype).reshape(shape) if axes else x.reshape(shape)

    @staticmethod
    def detach(x: Any) -> Any:
        return x


Numpy.family = Numpy
