# SPDX-License-Identifier: MIT
"""One attention over several processes: who has which rows, and C's functions for that, which stand in for those of
one process.  What carries bytes between processes is in _transport.py."""

from __future__ import annotations

import ctypes as c
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import numpy as np

from . import _c
from ._c import Error
from ._numbers import INT, whole
from ._plan import thread
from ._types import ArrayLike

# ---- Shares --------------------------------------------------------------------------------------

LAYOUTS = ("contiguous", "zigzag")


@dataclass(frozen=True)
class Share:
    """Rows or keys first .. first + count - 1, which one rank has.

    Attributes
    ----------
    first : int
        Index of the first row.
    count : int
        Number of rows.
    rank : int
        The rank.
    """

    first: int
    count: int
    rank: int

    def __iter__(self) -> Iterator[int]:
        return iter((self.first, self.count, self.rank))


def _share(first: Any, count: Any, rank: Any) -> Share:
    return Share(whole(first, "shares: first"), whole(count, "shares: count"), whole(rank, "shares: rank", 0, INT))


class Shares(Sequence[Share]):
    """Which rank has which rows of a sequence: the same list on every rank.

    Parameters
    ----------
    shares : iterable of (first, count, rank)
        In the order of rows.
    rank : int, optional
        Whose rows `own`, `positions()` and `take()` mean. By default those of this process.
    """

    def __init__(self, shares: Iterable[Iterable[int]], rank: int | None = None) -> None:
        self._list = tuple(_share(*share) for share in shares)
        self._rank = rank
        self.rows = sum(share.count for share in self._list)  # of all ranks

    @overload
    def __getitem__(self, at: int) -> Share: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[Share, ...]: ...

    def __getitem__(self, at: Any) -> Any:
        return self._list[at]

    def __len__(self) -> int:
        return len(self._list)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shares) and self._list == other._list

    def __hash__(self) -> int:
        return hash(self._list)

    def __repr__(self) -> str:
        return f"Shares({[tuple(share) for share in self._list]})"

    @property
    def rank(self) -> int:
        """The rank that `own`, `positions()` and `take()` are about."""
        if self._rank is None:
            from .distributed import own_rank

            self._rank = own_rank()
        return self._rank

    def of(self, rank: int) -> Shares:
        """Return the same shares as another rank sees them.

        Parameters
        ----------
        rank : int
            The rank.

        Returns
        -------
        Shares
            With another `rank`.
        """
        return Shares(self._list, rank)

    @property
    def own(self) -> tuple[Share, ...]:
        """The shares of this rank."""
        return tuple(share for share in self._list if share.rank == self.rank)

    def positions(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return where the rows of this rank are in the whole sequence.

        Returns
        -------
        numpy.ndarray of int64
            One position for each row.
        """
        each = [np.arange(share.first, share.first + share.count) for share in self.own]
        return np.concatenate((np.empty(0, np.int64), *each))

    def take(self, x: ArrayLike, dim: int) -> Any:
        """Take the rows of this rank from a whole array.

        Parameters
        ----------
        x : array
            Rows of all ranks.
        dim : int
            Axis of the rows.

        Returns
        -------
        array
            Rows of this rank.
        """
        if x.shape[dim] != self.rows:
            raise Error(f"axis {dim} has {x.shape[dim]} rows, and the shares {self.rows}")
        return _together([_cut(x, dim, share.first, share.count) for share in self.own] or [_cut(x, dim, 0, 0)], dim)

    def join(self, parts: Sequence[ArrayLike], dim: int) -> Any:
        """Join the parts of all ranks: the inverse of `take()`.

        Parameters
        ----------
        parts : sequence of array
            The part of each rank.
        dim : int
            Axis of the rows.

        Returns
        -------
        array
            Rows of all ranks in order.
        """
        taken, pieces = [0] * len(parts), []
        for share in self._list:
            pieces.append(_cut(parts[share.rank], dim, taken[share.rank], share.count))
            taken[share.rank] += share.count
        for rank, part in enumerate(parts):
            if part.shape[dim] != taken[rank]:
                raise Error(f"the part of rank {rank} has {part.shape[dim]} rows, and its shares {taken[rank]}")
        return _together(pieces or list(parts[:1]), dim)


def _cut(x: Any, dim: int, first: int, count: int) -> Any:
    return x[(slice(None),) * (dim % len(x.shape)) + (slice(first, first + count),)]


def _together(pieces: list[Any], dim: int) -> Any:
    if isinstance(pieces[0], np.ndarray):
        return np.concatenate(pieces, dim)
    import torch

    return torch.cat(pieces, dim)


def share_out(rows: int, ranks: int | None = None, layout: str = "zigzag", *, rank: int | None = None) -> Shares:
    """Share out rows over ranks in equal pieces.

    Pieces start at multiples of 4096 rows; where there are too few rows, of 1024 (gradients need that) or 64.

    Parameters
    ----------
    rows : int
        Number of rows of all ranks.
    ranks : int, optional
        Number of ranks. By default all processes.
    layout : {"zigzag", "contiguous"}
        zigzag gives rank r the pieces r and 2 ranks - 1 - r of 2 ranks: equal work under a causal mask. contiguous
        gives it piece r of ranks.
    rank : int, optional
        Whose rows `Shares.own` means. By default those of this process.

    Returns
    -------
    Shares
        Which rank has which rows.
    """
    if layout not in LAYOUTS:
        raise Error(f"layout must be {' or '.join(LAYOUTS)}, not '{layout}'")
    if ranks is None:
        from .distributed import number_of_ranks

        ranks = number_of_ranks()
    rows, ranks = whole(rows, "rows"), whole(ranks, "ranks", 1, INT // 2)
    room = (_c.Share * (2 * max(ranks, 1)))()
    count = _c.lib.share_out(LAYOUTS.index(layout), rows, ranks, room, len(room))
    if not count:
        raise Error(f"{rows} rows cannot be shared out among {ranks} ranks")
    return Shares(((s.first, s.count, s.rank) for s in room[:count]), rank)


# ---- Calls ---------------------------------------------------------------------------------------


class Report(NamedTuple):
    """What the last call did on this rank.

    Attributes
    ----------
    attention : float
        Seconds of work.
    waited : float
        Seconds of waiting for other ranks.
    sent : int
        Bytes sent.
    received : int
        Bytes received.
    """

    attention: float
    waited: float
    sent: int
    received: int


def _listed(shares: Shares | None) -> tuple[Any, int]:
    if shares is None:
        return None, 0
    return (_c.Share * max(len(shares), 1))(*(_c.Share(*share) for share in shares)), len(shares)


class _Now:
    """What sharing() says: group, shares, key_shares, gather; of the process, as torch.compile follows nothing else."""

    said: Any = None


now = _Now()


def alone(what: str) -> None:
    """For what would be wrong with the rows of one rank, and not say so."""
    if now.said is not None:
        raise Error(f"{what}, but loci.distributed.sharing() is at work, and this rank has only its own rows")


FAR = 1 << 62
NOTHING = "call must not be None"


class Ranks:
    """One call over ranks.  `workspace`, `forward` and `backward` stand in for C's functions of one process."""

    def __init__(self, group: Any, shares: Shares | None, key_shares: Shares | None, gather: bool) -> None:
        self.group = group
        longest = max(shares.rows if shares else 0, key_shares.rows if key_shares else 0)
        self.distance = longest  # that tables are made for
        (own, count), (keys, key_count) = _listed(shares), _listed(key_shares)
        self.struct = _c.Parallel(
            size=c.sizeof(_c.Parallel),
            transport=c.pointer(group.transport.struct),
            shares=own,
            count=count,
            key_shares=keys,
            key_count=key_count,
            gather=gather,
            ahead=group.ahead,
            check_tables=group.check_tables,
            report=c.pointer(group.transport.counts),
        )

    def open(self, make: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
        """What make() makes of the arrays of this rank, the Problem first.  Where it fails on one rank it fails on all;
        and how far apart positions are is known then, and one seed of dropout, as each rank has drawn one."""
        made: tuple[Any, ...] = ()
        failed = None
        seed = -FAR
        reach = [-FAR] * 4  # the highest and the negative lowest position of rows, and of keys
        try:
            made = make()
            for i, x in enumerate((made[0].masking.q_pos, made[0].masking.k_pos) if made[0].masking else ()):
                if x is not None and x.size:
                    reach[2 * i : 2 * i + 2] = int(x.max()), -int(x.min())
            if made[0].drawn:
                seed = made[0].dropout[1]
        except Exception as error:
            failed = error
        *reach, seed = self.group.transport.agree(failed, [*reach, seed])
        if made[0].drawn:
            made[0].dropout = made[0].dropout[0], seed
        if min(reach) > -FAR:
            self.distance = max(reach[0] + reach[3], reach[2] + reach[1], 1)
        made[0].ranks = self
        return made

    @contextmanager
    def calling(self, backward: bool) -> Iterator[None]:
        """Around all that leads to a call of C: who fails before it tells the others, who would wait."""
        transport = self.group.transport
        calls = transport.calls
        try:
            yield
        except BaseException:
            if transport.calls == calls:
                transport.calls += 1
                self._function(backward)(None, None, None, None, *((None,) if backward else ()), self.struct)
            raise

    def _function(self, backward: bool) -> Any:
        return _c.lib.parallel_backward if backward else _c.lib.parallel_forward

    def _run(self, backward: bool, *arguments: Any) -> int:
        transport = self.group.transport
        transport.begin()
        self.struct.transport = c.pointer(transport.tested if backward else transport.struct)
        status = self._function(backward)(*arguments, self.struct)
        if status:
            raise transport.reason(_c.failure(status, thread.error))
        return 0

    def workspace(self, plan: Any, call: Any, backward: int) -> int:
        """Where there is none, what is wrong is for the call to say, to all ranks."""
        return int(_c.lib.parallel_workspace(plan, call, self.struct, backward)) or _c.PAGE

    def divide(self, plan: Any, dtensors: list[Any]) -> None:
        """What is learned has its whole gradient on every rank, unless somebody will sum it up."""
        if self.group.rank and not self.group.whole_gradients:
            for t, x in zip(plan.tensors, dtensors, strict=True):
                if x is not None and t.role == "learned":
                    x[...] = 0

    def forward(self, *arguments: Any) -> int:
        return self._run(False, *arguments)

    def backward(self, *arguments: Any) -> int:
        return self._run(True, *arguments)


class DecodeRanks(Ranks):
    """A call of few rows, which are the same on every rank."""

    def _function(self, backward: bool) -> Any:
        return _c.lib.parallel_decode

    def workspace(self, plan: Any, call: Any, backward: int) -> int:
        return int(_c.lib.parallel_decode_workspace(plan, call, self.struct)) or _c.PAGE
