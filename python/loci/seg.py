# SPDX-License-Identifier: MIT
"""Segments from what other libraries say: int64, of the argument's kind; negative is padding."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _arrays as arrays
from ._c import Error
from ._types import IntArrayLike


def _read(x: Any, name: str) -> tuple[Any, np.ndarray[Any, Any]]:
    if isinstance(x, (list, tuple)):
        x = np.asarray(x)
    kind, x = arrays.read(x, name)
    return kind, kind.to_numpy(x)


def from_mask(attention_mask: IntArrayLike) -> Any:
    """Make segments from a mask of tokens.

    Parameters
    ----------
    attention_mask : array [length] or [batch, length]
        1 or True is a token; 0 or False is padding.

    Returns
    -------
    int64 array
        0 for tokens, -1 for padding, in the shape of the mask.
    """
    kind, mask = _read(attention_mask, "attention_mask")
    if mask.dtype.kind not in "biuf":
        raise Error(f"attention_mask must be of numbers or truths, not {mask.dtype.name}")
    return kind.from_numpy(np.where(mask != 0, 0, -1).astype(np.int64))


def from_position_ids(ids: IntArrayLike) -> Any:
    """Make segments from position ids: one starts wherever an id is not the one before plus 1.

    Parameters
    ----------
    ids : int array [length] or [batch, length]
        Position ids.

    Returns
    -------
    int64 array
        Segments from 0 on, in the shape of ids.
    """
    kind, at = _read(ids, "ids")
    if at.dtype.kind not in "iu" or at.ndim < 1:
        raise Error("ids must be whole numbers, [length] or [batch, length]")
    begins = np.ones(at.shape, np.int64)
    begins[..., 1:] = at[..., 1:].astype(np.int64) != at[..., :-1].astype(np.int64) + 1
    return kind.from_numpy(np.cumsum(begins, -1) - 1)


def from_cu_seqlens(cu: IntArrayLike, length: int | None = None) -> Any:
    """Make segments from the starts of packed sequences.

    Parameters
    ----------
    cu : int array [sequences + 1]
        Where sequences start, and the end of the last one.
    length : int, optional
        Number of rows. Rows after the last sequence are padding.

    Returns
    -------
    int64 array [length]
        Segments from 0 on, -1 for padding.
    """
    kind, starts = _read(cu, "cu")
    if starts.dtype.kind not in "iu" or starts.ndim != 1 or starts.size < 1:
        raise Error("cu must be the whole numbers where sequences begin, and the last one's end")
    starts = starts.astype(np.int64)
    if starts[0] != 0 or (np.diff(starts) < 0).any():
        raise Error("cu must begin with 0 and never fall")
    end = int(starts[-1])
    if length is not None and length < end:
        raise Error(f"cu ends at {end}, beyond the length {length}")
    made = np.full(end if length is None else length, -1, np.int64)
    made[:end] = np.repeat(np.arange(starts.size - 1), np.diff(starts))
    return kind.from_numpy(made)
