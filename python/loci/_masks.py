# SPDX-License-Identifier: MIT
"""Who sees whom: positions, coordinates, segments, lengths and starts, as C reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from . import _arrays as arrays
from . import _c
from ._c import Error
from ._numbers import INT
from ._shape import Shape

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
    "k_first",
    "k_last",
    "pages",
)


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
    k_first: Any = None
    k_last: Any = None
    pages: Any = None  # the table, int32 [batch, pages of an entry], and the keys of a page
    page_length: int = 0
    per_batch: bool = False
    distance: int = 0

    def copied(self) -> Masking:
        """For a backward pass, which must see what the forward pass saw whatever becomes of the caller's arrays."""
        arrays_ = {name: x.copy() for name, x in vars(self).items() if isinstance(x, np.ndarray)}
        return replace(self, **arrays_)

    def pairs(self) -> float:
        """Of rows and keys in packed sequences."""
        return float(np.diff(self.q_starts).astype(float) @ np.diff(self.k_starts).astype(float))


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
    if given.get("k_first") is not None or given.get("k_last") is not None:
        m.k_first = _bound(given.get("k_first"), "k_first", 0, s)
        m.k_last = _bound(given.get("k_last"), "k_last", s.keys - 1, s)
    _starts_of_sequences(given, s, m)
    if given.get("k_lens") is not None and m.q_starts is not None:
        _lengths_of_sequences(given["k_lens"], s, m)
    elif given.get("k_lens") is not None:
        m.k_lens = lengths(given["k_lens"], s.batch)
        if m.q_seg is not None:
            _lengths_as_segments(s, m)
    batch_in_front(s, m)
    return m


def page_table(x: Any) -> Any:
    """Which pages each batch entry has, as C reads it."""
    got = arrays.whole(x, "pages")
    if got.ndim != 2:
        raise Error(f"pages has {got.ndim} dimensions; it is a table [batch, pages of an entry]")
    if got.size and int(got.max()) > INT:
        raise Error(f"pages has {got.max()}, which is no number of a page")
    return np.ascontiguousarray(got.astype(np.int32))


def set_pages(m: Masking, table: Any, pages: int, length: int, s: Shape) -> None:
    """Entries of the table that hold no key are not read, and may be anything."""
    if not length:
        raise Error("k has pages of 0 rows; a page holds at least one key")
    m.pages, m.page_length = table, length
    ends = [s.keys] * s.batch if m.k_lens is None else m.k_lens
    for entry, keys in enumerate(ends):
        held = table[entry, : -(-int(keys) // length)]
        if held.size and not 0 <= int(held.min()) <= int(held.max()) < pages:
            wrong = next(int(page) for page in held if not 0 <= page < pages)
            raise Error(f"pages: entry {entry} has page {wrong}, and k has {pages} pages")


def _bound(x: Any, name: str, open_: int, s: Shape) -> Any:
    """The first or last key of each row; None bounds nothing, and what spreads to all rows will do."""
    made = arrays.whole(open_ if x is None else x, name)
    try:
        return np.ascontiguousarray(np.broadcast_to(made, (s.rows,) if made.ndim < 2 else (s.batch, s.rows)))
    except ValueError:
        shape = list(made.shape)
        raise Error(f"{name} has the shape {shape}, which does not spread to {[s.batch, s.rows]}") from None


def lengths(x: Any, batch: int) -> Any:
    """The keys of each batch entry, which may be one number for all."""
    made = arrays.whole(x, "k_lens", ((batch,), ()))
    return np.full(batch, made) if made.ndim == 0 else made


def _lengths_as_segments(s: Shape, m: Masking) -> None:
    """C takes lengths or segments.  So keys behind an entry's length become padding, and rows get the positions that
    lengths would give them."""
    for entry, n in enumerate(m.k_lens):
        if not 0 <= n <= s.keys:
            raise Error(f"k_lens: entry {entry} has {n} keys, and k has {s.keys}")
    keys = np.arange(s.keys)
    m.k_seg = np.where(keys < m.k_lens[:, None], m.k_seg, -1)
    if m.q_pos is None:
        m.q_pos = m.k_lens[:, None] - s.rows + np.arange(s.rows)
        m.k_pos = keys
        m.distance = s.rows + s.keys
    m.k_lens = None


def _lengths_of_sequences(k_lens: Any, s: Shape, m: Masking) -> None:
    """Packed sequences whose last keys are unused: C takes starts or lengths.  So rows have a last key, and the
    positions that lengths would give them."""
    counts, rows = np.diff(m.k_starts), np.diff(m.q_starts)
    lens = arrays.whole(k_lens, "k_lens", (counts.shape, ()))
    lens = np.broadcast_to(lens, counts.shape)
    for which in np.flatnonzero((lens < 0) | (lens > counts))[:1]:
        raise Error(f"k_lens: sequence {which} has {lens[which]} keys, and k {counts[which]} for it")
    last = np.repeat(m.k_starts[:-1] + lens - 1, rows)
    m.k_first = np.zeros(s.rows, np.int64) if m.k_first is None else m.k_first
    m.k_last = last if m.k_last is None else np.minimum(m.k_last, last)
    if m.q_pos is None:
        m.q_pos = np.arange(s.rows) + np.repeat(lens - rows - m.q_starts[:-1], rows)
        m.k_pos = np.arange(s.keys) - np.repeat(m.k_starts[:-1], counts)
        m.distance = s.rows + s.keys


def batch_in_front(s: Shape, m: Masking) -> None:
    """Either all of them have it or none."""
    ranks = {"q_pos": 1, "k_pos": 1, "q_coords": 2, "k_coords": 2, "q_seg": 1, "k_seg": 1, "k_first": 1, "k_last": 1}
    there = {name: rank for name, rank in ranks.items() if getattr(m, name) is not None}
    if not there:
        m.per_batch = False
        return
    m.per_batch = any(getattr(m, name).ndim > rank for name, rank in there.items())
    for name, rank in there.items():
        if m.per_batch:
            setattr(m, name, _spread(getattr(m, name), s.batch, rank))


def _starts_of_sequences(given: Mapping[str, Any], s: Shape, m: Masking) -> None:
    starts, k_starts = given.get("cu_seqlens_q"), given.get("cu_seqlens_k")
    if starts is None:
        if k_starts is not None:
            raise Error("cu_seqlens_q is missing: cu_seqlens_k was given, and alone it says nothing")
        if s.layout == "thd":
            raise Error("layout 'thd' is packed: cu_seqlens_q says where its sequences begin")
        return
    if s.batch != 1:
        raise Error(f"cu_seqlens_q is for packed sequences, with a batch of 1; q has one of {s.batch}")
    m.q_starts = read_starts(starts, "cu_seqlens_q", s.rows, "q")
    if k_starts is None:
        if s.rows != s.keys:
            raise Error(f"cu_seqlens_k is missing: q has {s.rows} rows and k {s.keys}")
        m.k_starts = m.q_starts
    else:
        m.k_starts = read_starts(k_starts, "cu_seqlens_k", s.keys, "k")
    if m.q_starts.size != m.k_starts.size:
        counts = m.k_starts.size - 1, m.q_starts.size - 1
        raise Error(f"cu_seqlens_k has {counts[0]} sequences and cu_seqlens_q {counts[1]}")


def read_starts(x: Any, name: str, end: int, of: str) -> Any:
    got = arrays.whole(x, name, ((int(np.shape(x)[0]),),) if np.ndim(x) == 1 else ((0,),))
    if got.size < 2 or got[0] != 0 or got[-1] != end:
        raise Error(f"{name} must go from 0 to the {end} rows of {of}, one number more than there are sequences")
    if (np.diff(got) < 0).any():
        raise Error(f"{name} falls: each sequence begins where the one before ends")
    return got


def repeated(m: Masking, times: int) -> Masking:
    """For so many batches one after the other."""
    again = replace(m)
    for name in ("q_pos", "k_pos", "q_coords", "k_coords", "q_seg", "k_seg", "k_first", "k_last"):
        x = getattr(m, name)
        if x is not None and m.per_batch:
            setattr(again, name, np.ascontiguousarray(np.tile(x, (times,) + (1,) * (x.ndim - 1))))
    if m.k_lens is not None:
        again.k_lens = np.tile(m.k_lens, times)
    return again


# ---- Pair by pair --------------------------------------------------------------------------------


@dataclass
class Pairs:
    """A mask as C reads it, and what it was: booleans, or numbers that are added."""

    kind: int
    x: Any
    given: Any
    cast: bool
    step: int = 0  # from key to key, for C


def open_mask(kind: Any, mask: Any, s: Shape, real: str, dtype: str) -> Pairs:
    """A mask of [batch, heads, rows, keys], or what spreads to that."""
    _, mask = arrays.read(mask, "mask", kind)
    own = kind.dtype(mask)
    shape = tuple(int(size) for size in mask.shape)
    whole = (s.batch, s.heads, s.rows, s.keys)
    fits = len(shape) <= 4 and all(have in (1, want) for have, want in zip(shape[::-1], whole[::-1], strict=False))
    if not fits:
        raise Error(f"mask has the shape {list(shape)}, which does not spread to {list(whole)}")
    if own != "bool" and own not in _c.DTYPES:
        raise Error(f"mask is {own}; it must be of booleans, or of numbers that are added to the scores")
    if own == "float64" and real == "float32":
        raise Error(f"mask is float64 and q {dtype}")
    cast = own not in ("bool", real)
    x = mask
    if cast:
        x = kind.cast(_once(kind, x), real)
    elif min(kind.strides(x), default=0) < 0 or not kind.aligned(x):
        x = kind.dense(_once(kind, x))
    x = kind.spread(x, whole)
    step = kind.strides(x)[3] if whole[3] > 1 else 1
    return Pairs(_c.SEEN if own == "bool" else _c.ADDED, x, mask, cast, step or _c.BROADCAST)


def _once(kind: Any, x: Any) -> Any:
    """What is repeated in memory, once: a copy of that is small."""
    return x[tuple(slice(None) if stride else slice(0, 1) for stride in kind.strides(x))] if x.ndim else x
