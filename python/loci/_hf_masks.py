# SPDX-License-Identifier: MIT
"""What masks of transformers say, as segments and positions.

transformers describes a mask as a function of (batch, head, row, key), made of a few closures.  Those are taken apart
here: order, window, packed sequences, chunks and padding become O(L) numbers.  What is not known becomes the dense
mask of transformers, which is computed by torch."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import masking_utils

from ._c import Error

Window = tuple[int, int]
OPEN: Window = (-1, -1)

# ---- Who sees whom -------------------------------------------------------------------------------

# What may be done with a Mask: looked at and carried along.  __get__ and __set__ are attributes such as shape.
_LOOKS = {
    *("__get__", "__set__", "__repr__", "__hash__", "__len__", "__reduce_ex__", "__deepcopy__", "requires_grad_"),
    *("size", "dim", "ndimension", "numel", "stride", "storage_offset", "untyped_storage", "data_ptr", "squeeze_copy"),
}
# MptModel asks for truths, and others for their own type: the numbers stay what they are.
_STAYS = {"to", "contiguous", "detach", "clone", "bool", "float", "cpu"}


class Mask(torch.Tensor):
    """int64, [batch, 1, 1, keys + rows]: segments of keys, then of rows; negative is padding.  Twice as long, positions
    of both follow.  Four dimensions, because generate() hands a made mask to the model again, where one of two is
    taken for padding.

    It is no mask of pairs, so a model that computes with it (adds, slices, compares) would lose it: an Error."""

    causal: bool
    window: Window
    whole: bool  # every row sees every key that order and window let it see

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in _STAYS:
            return args[0]
        return look(func, name, args, kwargs)


def look(func: Any, name: str, args: Any, kwargs: Any) -> Any:
    """What may be done with a mask that is none of pairs; else an Error."""
    private = name.startswith("_") and not name.startswith("__")  # torch.compile's
    if name not in _LOOKS and not name.startswith("is_") and not private:
        raise Error(
            f"this model computes with its attention mask ({name}), which attn_implementation='loci' cannot "
            "follow; use 'eager'",
            "unsupported",
        )
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **(kwargs or {}))


def _numbers(mask: Mask) -> torch.Tensor:
    """[batch, n].  An operation that no model uses on a mask, so that it may stand in graphs of torch.compile, where
    a Mask is an input whose operations are dispatched again."""
    with torch._C.DisableTorchFunctionSubclass():
        return torch.squeeze_copy(mask, 1).flatten(1)


def sequence_of(starts: torch.Tensor, length: int) -> torch.Tensor:
    """The number of each row's packed sequence."""
    return torch.bucketize(torch.arange(length), starts[1:].long(), right=True)


@dataclass
class Sight:
    """Who sees whom, as loci.attention() takes it; `dense` is a mask of pairs, of truths or to be added.  `placed` is
    whether it is known where rows are among the keys: the last of them, or at q_pos."""

    causal: bool = False
    window: Window = OPEN
    q_seg: torch.Tensor | None = None
    k_seg: torch.Tensor | None = None
    q_pos: torch.Tensor | None = None
    k_pos: torch.Tensor | None = None
    k_first: torch.Tensor | None = None
    k_last: torch.Tensor | None = None
    cu_q: torch.Tensor | None = None
    cu_k: torch.Tensor | None = None
    dense: torch.Tensor | None = None
    placed: bool = True

    def arguments(self, by_distance: bool) -> dict[str, Any]:
        """`by_distance`: the encoding reads distances.  Else only order and window read positions."""
        placed = by_distance or self.causal or self.window != OPEN
        return {
            "causal": self.causal,
            "window_size": self.window,
            "q_seg": self.q_seg,
            "k_seg": self.k_seg,
            "q_pos": self.q_pos if placed else None,
            "k_pos": self.k_pos if placed else None,
            "k_first": self.k_first,
            "k_last": self.k_last,
            "cu_seqlens_q": self.cu_q,
            "cu_seqlens_k": self.cu_k,
        }

    def distances(self, rows: int, keys: int) -> torch.Tensor:
        """Row minus key, [batch or 1, rows, keys]."""
        q = torch.arange(keys - rows, keys) if self.q_pos is None else self.q_pos
        k = torch.arange(keys) if self.k_pos is None else self.k_pos
        return q.reshape(-1, rows, 1) - k.reshape(-1, 1, keys)

    def pairs(self, rows: int, keys: int) -> torch.Tensor:
        """Truths, [batch or 1, 1, rows, keys], of all but `dense`."""
        d = self.distances(rows, keys)
        seen = d >= 0 if self.causal else torch.ones_like(d, dtype=torch.bool)
        if self.window[0] >= 0:
            seen = seen & (d <= self.window[0])
        if self.window[1] >= 0:
            seen = seen & (-d <= self.window[1])
        if self.q_seg is not None and self.k_seg is not None:
            q, k = self.q_seg.reshape(-1, rows, 1), self.k_seg.reshape(-1, 1, keys)
            seen = seen & (q == k) & (k >= 0)
        if self.k_first is not None and self.k_last is not None:
            first, last = self.k_first.reshape(-1, rows, 1), self.k_last.reshape(-1, rows, 1)
            at = torch.arange(keys)
            seen = seen & (at >= first) & (at <= last)
        if self.cu_q is not None and self.cu_k is not None:
            q, k = sequence_of(self.cu_q, rows), sequence_of(self.cu_k, keys)
            seen = seen & (q[:, None] == k[None])
        return seen[:, None]


def sight_of(mask: Mask, rows: int, keys: int) -> Sight:
    """What a Mask says to rows and keys of this number."""
    x = _numbers(mask)
    x = x[0] if x.shape[0] == 1 else x
    if x.shape[-1] not in (keys + rows, 2 * (keys + rows)):
        raise _other_length(x.shape[-1], rows, keys)
    sight = Sight(mask.causal, mask.window)
    if mask.whole:
        return sight
    sight.k_seg, sight.q_seg = x[..., :keys], x[..., keys : keys + rows]
    if x.shape[-1] > keys + rows:
        x = x[..., keys + rows :]
        sight.k_pos, sight.q_pos = x[..., :keys], x[..., keys:]
    return sight


# ---- Masks as plain tensors ----------------------------------------------------------------------


def _other_length(length: int, rows: int, keys: int) -> Error:
    return Error(
        f"attention_mask has {length} numbers, which is another length than that of {keys} keys and {rows} rows: this "
        "model changes its keys or its mask on the way, which attn_implementation='loci' cannot follow; use 'eager'",
        "unsupported",
    )


def pack(
    batch: int,
    k_seg: torch.Tensor,
    q_seg: torch.Tensor,
    k_first: torch.Tensor,
    k_last: torch.Tensor,
    k_pos: torch.Tensor,
    q_pos: torch.Tensor,
) -> torch.Tensor:
    """A mask as a plain tensor, int64 of [batch, 1, 1, 2 keys + 4 rows], which says all in its numbers.

    It enters and leaves compiled code, where a Mask and its attributes cannot.  Row i sees the keys k_first[i] to
    k_last[i] of its segment."""
    parts = (k_seg, q_seg, k_first, k_last, k_pos, q_pos)
    return torch.cat([x.expand(batch, -1) for x in parts], -1)[:, None, None]


def is_packed(mask: torch.Tensor) -> bool:
    return mask.dtype == torch.int64 and mask.ndim == 4 and mask.shape[1] == 1 and mask.shape[2] == 1


def unpack(mask: torch.Tensor, rows: int, keys: int) -> Sight:
    if mask.shape[-1] != 2 * keys + 4 * rows:
        raise _other_length(mask.shape[-1], rows, keys)
    parts = torch.split(mask[:, 0, 0], [keys, rows, rows, rows, keys, rows], -1)
    k_seg, q_seg, k_first, k_last, k_pos, q_pos = parts
    return Sight(q_seg=q_seg, k_seg=k_seg, q_pos=q_pos, k_pos=k_pos, k_first=k_first, k_last=k_last)


def _ranges(
    function: Callable[..., Any], batch: int, q_at: torch.Tensor, k_at: torch.Tensor, first_key: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The first and the last key that each row sees, [batch or 1, rows], counted from the first key.

    Closures cannot be read where code is traced.  Functions other than order alone are evaluated for every pair and
    reduced at once: a compiler fuses the two, others make rows times keys truths.  Rows must see one range each, as
    they do by order, windows, chunks, packed sequences and blocks."""
    keys = k_at.shape[0]
    if function is masking_utils.causal_mask_function:
        return torch.zeros_like(q_at)[None], (q_at - first_key).clamp(max=keys - 1)[None]
    if function is masking_utils.bidirectional_mask_function:
        return torch.zeros_like(q_at)[None], torch.full_like(q_at, keys - 1)[None]
    entries, heads = torch.arange(batch)[:, None, None, None], torch.zeros(1, 1, 1, 1, dtype=torch.int64)
    seen = function(entries, heads, q_at[None, None, :, None], k_at[None, None, None, :])
    seen = seen.expand(batch, 1, q_at.shape[0], keys)[:, 0]
    count = seen.sum(-1)
    first = seen.to(torch.uint8).argmax(-1)
    last = torch.where(count > 0, keys - 1 - seen.to(torch.uint8).flip(-1).argmax(-1), first - 1)
    torch._assert_async(
        (count == last - first + 1).all(),
        "a row of attention_mask sees keys that are no range, which loci does not know in compiled code",
    )
    return first, last


def traced(
    batch: int,
    rows: int,
    keys: int,
    first_row: Any,
    first_key: Any,
    padding: torch.Tensor | None,
    function: Callable[..., Any],
    counted: bool,
) -> torch.Tensor:
    """As build(), of tensor operations alone."""
    q_at, k_at = torch.arange(rows) + first_row, torch.arange(keys) + first_key
    k_first, k_last = _ranges(function, batch, q_at, k_at, first_key)
    w = Wanted(batch, rows, keys, first_row, first_key, padding)
    k_seg = torch.where(w.tokens(k_at[None]), 0, -1)
    k_pos, q_pos = k_at[None], q_at[None]
    if counted and padding is not None:
        k_pos, q_pos = _counted(w, k_pos), _counted(w, q_pos)
    return pack(batch, k_seg, torch.zeros_like(q_at)[None], k_first, k_last, k_pos, q_pos)


# ---- Reading closures ----------------------------------------------------------------------------


class UnknownMaskError(Exception):
    """A mask function, or a use of one, that is not known."""


def _take(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """x[b, at[b]], for [batch, n] and [batch or 1, m]."""
    if at.numel() and not 0 <= int(at.min()) <= int(at.max()) < x.shape[-1]:
        raise UnknownMaskError
    return x.gather(1, at.expand(x.shape[0], -1))


@dataclass
class Reading:
    """What a mask function says about rows and keys."""

    causal: bool | None = None
    behind: int | None = None  # the key is less than this many places behind the row
    around: int | None = None  # or at most this many away
    groups: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)  # pairs must have the same number
    chunked: bool = False
    packed: torch.Tensor | None = None
    remapped: torch.Tensor | None = None
    hidden: torch.Tensor | None = None  # padding among the keys

    def read(self, function: Callable[..., Any], rows: torch.Tensor, keys: torch.Tensor) -> None:
        """rows and keys are their indices, [batch or 1, n]."""
        known = _KNOWN.get(getattr(function, "__qualname__", ""))
        if known is None or getattr(function, "__module__", "") != masking_utils.__name__:
            raise UnknownMaskError
        cells = getattr(function, "__closure__", None) or ()
        free = {name: cell.cell_contents for name, cell in zip(function.__code__.co_freevars, cells, strict=True)}
        known(self, rows, keys, **free)

    def _both(self, rows: Any, keys: Any, mask_functions: Any) -> None:
        for function in mask_functions:
            self.read(function, rows, keys)

    def _order(self, rows: Any, keys: Any) -> None:
        self.causal = True

    def _no_order(self, rows: Any, keys: Any) -> None:
        self.causal = bool(self.causal)

    def _window(self, rows: Any, keys: Any, sliding_window: int) -> None:
        if self.behind is not None:
            raise UnknownMaskError
        self.behind = int(sliding_window)

    def _window_around(self, rows: Any, keys: Any, sliding_window: int) -> None:
        if self.around is not None:
            raise UnknownMaskError
        self.around = int(sliding_window)

    def _chunks(self, rows: Any, keys: Any, chunk_size: int, left_padding: torch.Tensor) -> None:
        self.chunked = True
        begin = left_padding.reshape(-1, 1)
        self.groups.append(((rows - begin) // chunk_size, (keys - begin) // chunk_size))

    def _packed(self, rows: Any, keys: Any, packed_sequence_mask: torch.Tensor) -> None:
        if self.packed is not None:
            raise UnknownMaskError
        self.packed = packed_sequence_mask
        self.groups.append((_take(packed_sequence_mask, rows), _take(packed_sequence_mask, keys)))

    def _remap(self, rows: Any, keys: Any, mask_function: Any, position_ids: torch.Tensor) -> None:
        if self.remapped is not None:
            raise UnknownMaskError
        self.remapped = position_ids
        self.read(mask_function, _take(position_ids, rows), _take(position_ids, keys))

    def _padding(self, rows: Any, keys: Any, padding_mask: torch.Tensor) -> None:
        hidden = ~_take(padding_mask.bool(), keys)
        self.hidden = hidden if self.hidden is None else self.hidden | hidden

    def check(self) -> None:
        """Order and window must mean the same by index as by the positions they are told for, and go together."""
        if self.causal is None or (self.behind if self.causal is False else self.around) is not None:
            raise UnknownMaskError
        if self.remapped is not None:
            follows = self.remapped.diff(dim=-1) == 1
            if self.packed is not None:
                follows = follows | (self.packed.diff(dim=-1) != 0)
            if not bool(follows.all()):
                raise UnknownMaskError

    def window(self) -> Window:
        if self.behind is not None:
            return self.behind - 1, -1
        return OPEN if self.around is None else (self.around, self.around)

    def segments(self) -> tuple[torch.Tensor, torch.Tensor]:
        """One number for rows and one for keys, [batch or 1, n], that are the same where all groups' are."""
        rows, keys = torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 1, dtype=torch.int64)
        for r, k in self.groups:
            low, high = (int(f(r).item()) for f in (torch.min, torch.max))
            low, high = min(low, int(k.min())), max(high, int(k.max()))
            rows, keys = rows * (high - low + 1) + r - low, keys * (high - low + 1) + k - low
        return rows, keys


_KNOWN: dict[str, Callable[..., None]] = {
    "causal_mask_function": Reading._order,
    "bidirectional_mask_function": Reading._no_order,
    "and_masks.<locals>.and_mask": Reading._both,
    "sliding_window_overlay.<locals>.inner_mask": Reading._window,
    "sliding_window_bidirectional_overlay.<locals>.inner_mask": Reading._window_around,
    "chunked_overlay.<locals>.inner_mask": Reading._chunks,
    "packed_sequence_mask_function.<locals>.inner_mask": Reading._packed,
    "remap_positions_for_packed_sequence.<locals>.inner_mask": Reading._remap,
    "padding_mask_function.<locals>.inner_mask": Reading._padding,
}


# ---- Making masks --------------------------------------------------------------------------------


@dataclass
class Wanted:
    """A mask that transformers asks for."""

    batch: int
    rows: int
    keys: int
    first_row: int
    first_key: int
    padding: torch.Tensor | None  # [batch, n], True is a token, of the indices 0 .. n - 1

    @property
    def ends_together(self) -> bool:
        return self.first_row + self.rows == self.first_key + self.keys

    def row_indices(self) -> torch.Tensor:
        return torch.arange(self.first_row, self.first_row + self.rows)[None]

    def key_indices(self) -> torch.Tensor:
        return torch.arange(self.first_key, self.first_key + self.keys)[None]

    def tokens(self, at: torch.Tensor) -> torch.Tensor:
        """Which of these indices are tokens; beyond the padding mask none is."""
        if self.padding is None:
            return torch.ones_like(at, dtype=torch.bool)
        inside = at < self.padding.shape[-1]
        return self.padding.gather(1, (at * inside).expand(self.padding.shape[0], -1)) & inside


def _far(w: Wanted, r: Reading) -> bool:
    """Whether the window may hide a pair.  Calls to attention may count a window around a row with the row or
    without it, so a tie is far."""
    back = w.first_row + w.rows - 1 - w.first_key
    ahead = w.first_key + w.keys - 1 - w.first_row
    if r.behind is not None:
        return back >= r.behind
    return r.around is not None and max(back, ahead) >= r.around


def _counted(w: Wanted, at: torch.Tensor) -> torch.Tensor:
    """Positions as models with ALiBi have them: padding is not counted."""
    assert w.padding is not None
    count = w.padding.long().cumsum(-1) - 1
    return count.gather(1, at.clamp(max=count.shape[-1] - 1).expand(count.shape[0], -1))


def _segments(w: Wanted, r: Reading) -> tuple[torch.Tensor, torch.Tensor]:
    """Of keys and of rows."""
    row_at, key_at = w.row_indices(), w.key_indices()
    q_seg, k_seg = (x.expand(-1, n) for x, n in zip(r.segments(), (w.rows, w.keys), strict=True))
    tokens = w.tokens(key_at) if r.hidden is None else w.tokens(key_at) & ~r.hidden
    k_seg = torch.where(tokens, k_seg, -1)
    if r.causal and w.rows > 1 and w.padding is not None:
        # a row is what its key is; where it is the only one, somebody wants it
        q_seg = torch.where(w.tokens(row_at) | (row_at >= w.padding.shape[-1]), q_seg, -1)
    return k_seg, q_seg


def _pack(w: Wanted, r: Reading, counted: bool) -> torch.Tensor:
    """As a plain tensor."""
    row_at, key_at = w.row_indices(), w.key_indices()
    k_seg, q_seg = _segments(w, r)
    (back, ahead), at = r.window(), row_at - w.first_key
    k_first = torch.zeros_like(at) if back < 0 else (at - back).clamp(min=0)
    k_last = torch.full_like(at, w.keys - 1) if ahead < 0 else at + ahead
    k_last = (torch.minimum(k_last, at) if r.causal else k_last).clamp(max=w.keys - 1)
    k_pos, q_pos = key_at, row_at
    if counted and w.padding is not None:
        k_pos, q_pos = _counted(w, key_at), _counted(w, row_at)
    return pack(w.batch, k_seg, q_seg, k_first, k_last, k_pos, q_pos)


def _assemble(w: Wanted, r: Reading, whole: bool, counted: bool) -> Mask:
    row_at, key_at = w.row_indices(), w.key_indices()
    k_seg, q_seg = _segments(w, r)
    parts = [k_seg, q_seg]
    if counted and not whole and w.padding is not None:
        parts += [_counted(w, key_at), _counted(w, row_at)]
    elif not w.ends_together and (r.causal or r.window() != OPEN):
        parts += [key_at, row_at]
    numbers = torch.cat([x.expand(w.batch, -1) for x in parts], -1)
    mask = numbers[:, None, None].as_subclass(Mask)
    mask.causal, mask.window, mask.whole = bool(r.causal), r.window(), whole
    return mask


@dataclass
class Treatment:
    """How a model takes its masks.  `own`: its attention is ours, patched; `never_none`: it calls methods of its
    mask; `counted`: positions do not count padding; `flat`: a mask of four dimensions would be added to; `local`: it
    describes a window by a function of its own."""

    own: bool = False
    never_none: bool = False
    counted: bool = False
    flat: bool = False
    local: bool = False


def positions(shares: Any) -> torch.Tensor:
    """Of the own rows, [1, rows]."""
    return torch.from_numpy(shares.positions())[None]


def _shared(w: Wanted, r: Reading, shares: Any) -> Mask:
    """Over ranks: order and window alone.  That positions jump from share to share makes no packed sequences."""
    at = positions(shares)
    if r.remapped is not None and w.rows == at.shape[-1] and bool((r.remapped == at).all()) and not r.chunked:
        r.groups.clear()
    if r.groups or r.hidden is not None or not bool(w.tokens(w.key_indices()).all()):
        raise Error(
            "rows of several ranks are one sequence in each batch entry: no padding, packed sequences or chunks",
            "unsupported",
        )
    return _assemble(w, r, True, False)


def build(
    wanted: Wanted,
    function: Callable[..., Any],
    how: Treatment,
    *,
    skip: bool,
    ahead: bool,
    tells_order: bool,
    shares: Any = None,
    plain: bool = False,
) -> torch.Tensor | None:
    """A Mask, or None where order alone is left, transformers would `skip` the mask and the model tells its order by
    other means.  `ahead`: generate() makes it for a static cache.  `shares`: there are rows of other ranks.  `plain`:
    it may enter compiled code, so a tensor as pack() makes it."""
    r = Reading()
    r.read(function, wanted.row_indices(), wanted.key_indices())
    r.check()
    if not (skip or ahead or how.own or r.packed is not None):
        raise UnknownMaskError  # the model wants to see the mask itself
    if shares is not None:
        return _shared(wanted, r, shares)
    none_is_fine = (how.own or (skip and tells_order)) and not how.never_none
    tokens = wanted.tokens(wanted.key_indices())
    whole = not r.groups and r.hidden is None and bool(tokens.all())
    whole = whole and (wanted.ends_together or not (r.causal or r.window() != OPEN))
    if whole and none_is_fine and not _far(wanted, r):
        return None
    if plain:
        return _pack(wanted, r, how.counted)
    mask = _assemble(wanted, r, whole, how.counted)
    if how.flat:
        flat = _numbers(mask)[:, None].as_subclass(Mask)
        flat.causal, flat.window, flat.whole = mask.causal, mask.window, mask.whole
        return flat
    return mask


# ---- Patched models ------------------------------------------------------------------------------

_treatments: dict[int, tuple[weakref.ref[Any], Treatment]] = {}


def remember(config: Any, how: Treatment) -> None:
    """By identity: a config may be compared, copied and saved, and none of that is about this."""
    at = id(config)
    _treatments[at] = weakref.ref(config, lambda _: _treatments.pop(at, None)), how


def treatment(config: Any) -> Treatment | None:
    kept = _treatments.get(id(config))
    return kept[1] if kept is not None and kept[0]() is config else None
