# SPDX-License-Identifier: MIT
"""Numbers that callers give.  ctypes would cut whole ones to the width of C's types without a word."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from ._c import Error

INT = (1 << 31) - 1  # the largest of C's int
LONG = (1 << 63) - 1  # and of int64_t


def whole(x: Any, name: str, low: int = 0, high: int = LONG) -> int:
    """A whole number from low to high: an int of Python, numpy or torch."""
    return _within(_index(x, name), name, low, high, "")


def whole_or_none(x: Any, name: str, low: int = 1, high: int = LONG) -> int | None:
    """The same, where None asks for the usual number."""
    return None if x is None else _within(_index(x, name), name, low, high, ", or None for the usual")


def _index(x: Any, name: str) -> int:
    if isinstance(x, bool):
        raise TypeError(f"{name} must be a whole number, not {x}")
    try:
        return operator.index(x)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {_said(x)}") from None


def _within(n: int, name: str, low: int, high: int, instead: str) -> int:
    if not low <= n <= high:
        raise Error(f"{name} must be from {low} to {high}{instead}, not {n}")
    return n


def real(x: Any, name: str) -> float:
    """A number, read once: a tensor that changes later changes nothing, so one that requires a gradient is refused."""
    if getattr(x, "requires_grad", False):
        raise Error(f"{name} requires a gradient, and loci has none for it; give a number")
    try:
        return float(x)
    except (TypeError, ValueError, RuntimeError):  # the last one is torch's, of tensors without a value
        raise TypeError(f"{name} must be a number, not {_said(x)}") from None


def scale_of(x: Any) -> float | None:
    """What the product of queries and keys is multiplied by; None is the encoding's own."""
    if x is None:
        return None
    scale = real(x, "scale")
    if scale == 0:
        raise Error("scale must not be 0: give None for the usual scale, or q of zeros for weights without a product")
    return scale


def window_of(x: Any) -> tuple[int, int]:
    """flash-attention's (left, right): distances, or -1 for an open side."""
    if not isinstance(x, Sequence) and not hasattr(x, "__array__"):
        raise TypeError(
            f"window_size must be (left, right), not {_said(x)}; (n, 0) is n keys before each row and its own"
        )
    if isinstance(x, str) or len(x) != 2:
        raise TypeError(f"window_size must be two whole numbers, (left, right), not {x!r}")
    left, right = (_index(side, "window_size") for side in x)
    if not (-1 <= left <= LONG and -1 <= right <= LONG):
        raise Error(f"window_size must be distances, or -1 for what is open, not ({left}, {right})")
    return left, right


def _said(x: Any) -> str:
    return f"{x}" if isinstance(x, (int, float)) else type(x).__name__
