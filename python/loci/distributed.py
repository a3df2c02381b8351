# SPDX-License-Identifier: MIT
"""One attention over the processes of torch.distributed, with the bits of one process.

    shares = loci.distributed.share_out(tokens.shape[1])         # who has which rows
    mine = shares.take(tokens, 1)                                # those of this rank
    o = loci.attention(q, k, v, "alibi", shares=shares)          # of its rows, against the keys of all

Every rank calls, in the same order.  docs/python.md has more."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np

try:
    import torch
    import torch.distributed as dist
except ImportError:
    raise ImportError("loci.distributed needs PyTorch: pip install torch") from None

from . import _arrays as arrays
from . import _attend, _gpu
from ._c import Error
from ._masks import MASKS
from ._numbers import whole
from ._plan import Plan, thread
from ._ranks import DecodeRanks, Ranks, Report, Share, Shares, now, share_out
from ._transport import Transport
from ._types import ArrayLike, GroupLike, IntArrayLike, Tensors
from .cache import Cache as _Cache

__all__ = [
    "Cache",
    "Group",
    "Report",
    "Share",
    "Shares",
    "collect",
    "decode",
    "report",
    "share_out",
    "sharing",
    "sum_gradients",
]

CHUNK = 4096  # keys: what each rank has to decode against begins at a multiple

# ---- Groups --------------------------------------------------------------------------------------


def _world() -> Any:
    if not dist.is_available() or not dist.is_initialized():
        raise Error("there are no ranks yet: torch.distributed.init_process_group() comes before")
    return dist.group.WORLD


def own_rank() -> int:
    return int(dist.get_rank(_world()))


def number_of_ranks() -> int:
    return int(dist.get_world_size(_world()))


_transports: weakref.WeakKeyDictionary[Any, Transport] = weakref.WeakKeyDictionary()


def _transport(process_group: Any) -> Transport:
    if not isinstance(process_group, dist.ProcessGroup) or dist.get_rank(process_group) < 0:
        raise Error("group must be a process group of torch.distributed with this process in it")
    made = _transports.get(process_group)
    if made is None:
        backends = dist.get_backend_config(process_group)
        if "cpu:gloo" not in backends:
            raise Error(
                f"the process group is of {backends}; loci wants gloo, torch.distributed.new_group(backend='gloo')",
                "unsupported",
            )
        made = _transports[process_group] = Transport(process_group)
    return made


class Group:
    """A process group of torch.distributed, and how its ranks attend together.

    Parameters
    ----------
    process_group : ProcessGroup, optional
        A group with gloo. By default all processes.
    ahead : int
        How many messages a rank asks for before it needs them.
    check_tables : bool
        Compare learned tensors between ranks in each call, too.
    whole_gradients : bool
        Give every rank the whole gradient of a learned tensor. False gives it to rank 0 and zeros to others, so
        that a sum over ranks is right.
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup | None = None,
        *,
        ahead: int = 0,
        check_tables: bool = False,
        whole_gradients: bool = True,
    ) -> None:
        self.transport = _transport(_world() if process_group is None else process_group)
        self.rank, self.ranks = self.transport.rank, self.transport.ranks
        self.ahead, self.check_tables, self.whole_gradients = ahead, bool(check_tables), bool(whole_gradients)

    @property
    def process_group(self) -> Any:
        """The process group of torch.distributed."""
        return self.transport.process_group

    @property
    def report(self) -> Report:
        """Report of the last call that succeeded."""
        n = self.transport.counts
        return Report(n.attention, n.waited, n.sent, n.received)

    def share_out(self, rows: int, layout: str = "zigzag") -> Shares:
        """Share out rows over the ranks of this group.

        Parameters
        ----------
        rows : int
            Number of rows of all ranks.
        layout : {"zigzag", "contiguous"}
            See `share_out()`.

        Returns
        -------
        Shares
            Which rank has which rows.
        """
        return share_out(rows, self.ranks, layout, rank=self.rank)

    def __repr__(self) -> str:
        return f"loci.distributed.Group(rank {self.rank} of {self.ranks})"


_groups: weakref.WeakKeyDictionary[Any, Group] = weakref.WeakKeyDictionary()


def _group(group: Any) -> Group:
    """What a process group is where nothing else is said of it."""
    if isinstance(group, Group):
        return group
    group = _world() if group is None else group
    _transport(group)
    if group not in _groups:
        _groups[group] = Group(group)
    return _groups[group]


def report(group: GroupLike | None = None) -> Report:
    """Report what the last call over a group that succeeded did on this rank.

    Parameters
    ----------
    group : Group or ProcessGroup, optional
        Ranks that attend together. By default all processes.

    Returns
    -------
    Report
        Seconds and bytes.
    """
    return _group(group).report


# ---- Attention -----------------------------------------------------------------------------------


def _shares(shares: Any, name: str) -> Shares | None:
    if shares is None or isinstance(shares, Shares):
        return shares
    try:
        return Shares(shares)
    except TypeError:
        raise TypeError(f"{name} must be a list of (first, count, rank), not {type(shares).__name__}") from None


def _ranks(group: Any, shares: Any, key_shares: Any, gather: bool) -> Ranks:
    """Of a call that says so, or that is made where sharing() does."""
    if shares is None:
        if now.said is None or group is not None or key_shares is not None:
            raise Error("shares is missing: loci.distributed.share_out(rows) says who has which rows")
        group, shares, key_shares, gather = now.said
    own = _group(group)
    return Ranks(own, _shares(shares, "shares"), _shares(key_shares, "key_shares"), gather)


@contextmanager
def sharing(
    shares: Iterable[Iterable[int]],
    *,
    group: GroupLike | None = None,
    key_shares: Iterable[Iterable[int]] | None = None,
    gather: bool = False,
) -> Iterator[None]:
    """Run all calls of `loci.attention()` inside this context over ranks, those of modules and models too.

    Run the backward pass inside as well if checkpoints compute again.

    Parameters
    ----------
    shares : list of (first, count, rank)
        Which rank has which rows.
    group : Group or ProcessGroup, optional
        Ranks that attend together. By default all processes.
    key_shares : list of (first, count, rank), optional
        Which rank has which keys, where that differs from `shares`.
    gather : bool
        Collect all keys that this rank's rows see at once, instead of chunk by chunk.

    Yields
    ------
    None
        Attention is over ranks until the end of the block.
    """
    before = now.said
    now.said = _group(group), _shares(shares, "shares"), _shares(key_shares, "key_shares"), bool(gather)
    try:
        yield
    finally:
        now.said = before


def _refuse_pages(given: Any) -> None:
    if given["pages"] is not None:
        raise Error("keys in pages are not shared out over ranks; give each rank its keys as rows", "unsupported")


def _on_cpu(arguments: Any) -> Any:
    """Ranks compute on their CPUs."""
    if arguments["device"] not in (None, _gpu.CPU):
        raise Error("device does not go with shares: ranks compute on their CPUs", "unsupported")
    return {**arguments, "device": _gpu.CPU}


@torch.compiler.disable  # type: ignore[untyped-decorator]
def attention(
    q: Any, k: Any, v: Any, encoding: Any, given: Any, arguments: Any, return_lse: bool, out: Any, over: Any
) -> Any:
    """loci.attention() with shares."""
    _refuse_pages(given)
    arguments = _on_cpu(arguments)
    ranks = _ranks(**over)
    if isinstance(q, torch.Tensor):
        from . import _torch_calls

        return _torch_calls.attention(q, k, v, encoding, given, arguments, return_lse, out, over, ranks)

    def make() -> Any:
        opened = _attend.open_call(q, k, v, encoding, given=given, **arguments)
        return opened, _attend.check_out(opened, out)

    opened, out = ranks.open(make)
    return _attend.results(*opened.forward(out, return_lse))


def attention_backward(
    douts: Any,
    out: Any,
    lse: Any,
    ae: Any,
    q: Any,
    k: Any,
    v: Any,
    encoding: Any,
    given: Any,
    arguments: Any,
    over: Any,
) -> tuple[Any, Any, Any, dict[str, Any]]:
    """loci.attention_backward() with shares."""
    arguments = _on_cpu(arguments)

    def make() -> Any:
        opened = _attend.open_call(q, k, v, encoding, given=given, **arguments)
        return opened, _attend.check_grads(opened, douts[0], out, lse, ae, *douts[1:])

    opened, checked = _ranks(**over).open(make)
    return _attend.backward(opened, checked)


def decode(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    encoding: str | Plan = "nope",
    *,
    shares: Iterable[Iterable[int]],
    group: GroupLike | None = None,
    return_lse: bool = False,
    out: ArrayLike | None = None,
    **options: Any,
) -> Any:
    """Attend from a few new rows, the same on every rank, to keys that are spread over ranks.

    Parameters
    ----------
    q : array [batch, heads, rows, dim]
        Queries, the same on every rank.
    k : array [batch, kv_heads, own keys, dim]
        Keys of this rank.
    v : array [batch, kv_heads, own keys, value_dim]
        Values of this rank.
    encoding : str or Plan
        Name and options of one or more encodings, such as `"rope:pairing=half+alibi"`, or a plan. `"nope"` is no
        encoding.
    shares : list of (first, count, rank)
        Which rank has which keys: one piece for each, from a multiple of 4096 keys on.
    group : Group or ProcessGroup, optional
        Ranks that attend together. By default all processes.
    return_lse : bool
        Also return the logarithm of the sum of exponentials of each row, [batch, heads, rows].
    out : array, optional
        Array for the result. It must be writable, have the shape and type of the result, and be dense along its
        last axis.
    **options
        Other options of `loci.attention()`.

    Returns
    -------
    o : array [batch, heads, rows, value_dim]
        The same on every rank.
    lse : array [batch, heads, rows]
        With `return_lse` only.
    """
    ranks = DecodeRanks(_group(group), None, _shares(shares, "shares"), False)
    given = {name: options.pop(name, None) for name in MASKS}
    _refuse_pages(given)

    def make() -> Any:
        opened = _attend.open_call(q, k, v, encoding, given=given, **options)
        some = (q, k, v, *(options.get("tensors") or {}).values(), options.get("sinks"))
        if torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in some):
            raise Error("decode() has no gradient; use torch.no_grad()")
        return opened, _attend.check_out(opened, out)

    opened, out = ranks.open(make)
    return _attend.results(*opened.forward(out, return_lse))


# ---- Caches --------------------------------------------------------------------------------------


class _Piece(_Cache):
    """The keys of one rank.  Distances are those of all ranks' keys."""

    def __init__(self, reach: int, *arguments: Any, **options: Any) -> None:
        self.reach = reach
        self.ranks: Any = None  # of the call
        super().__init__(*arguments, **options)

    def _distance(self) -> int:
        return self.reach

    def _forward(self, laid: Any, work: int) -> int:
        work = thread.work(self.ranks.workspace(self._plan._handle, laid.at, 0))
        return int(self.ranks.forward(self._plan._handle, self._tables.at, work, laid.at))


class Cache:
    """A `loci.Cache` whose keys are spread over ranks. All ranks call, with the same new tokens.

    Parameters
    ----------
    encoding : str
        Name and options of one or more encodings.
    heads : int
        Number of query heads.
    dim : int
        Width of queries and keys of one head.
    capacity : int
        Most keys of a sequence, of all ranks.
    group : Group or ProcessGroup, optional
        Ranks that attend together. By default all processes.
    starts : sequence of int, optional
        First key of each rank, multiples of 4096. By default each has as many keys.
    **options
        Other options of `loci.Cache`, but for `ring` and `values_in_keys`.
    """

    def __init__(
        self,
        encoding: str,
        heads: int,
        dim: int,
        *,
        capacity: int,
        group: GroupLike | None = None,
        starts: Sequence[int] | None = None,
        **options: Any,
    ) -> None:
        if options.pop("ring", False):
            raise Error("a ring forgets keys, so ranks can have no shares of them")
        if options.get("values_in_keys"):
            raise Error("values_in_keys must be False over ranks, which pass on keys and values by themselves")
        self.group = _group(group)
        if starts is None:
            piece = -(-whole(capacity, "capacity") // (self.group.ranks * CHUNK)) * CHUNK
            starts = [piece * rank for rank in range(self.group.ranks)]
            capacity = piece * self.group.ranks
        self.starts, self.capacity = tuple(whole(start, "starts") for start in starts), whole(capacity, "capacity")
        ends = (*self.starts[1:], self.capacity)
        rises = all(first < end for first, end in zip(self.starts, ends, strict=True))
        if len(ends) != self.group.ranks or self.starts[0] or not rises or any(x % CHUNK for x in self.starts):
            raise Error(
                f"starts must be {self.group.ranks} multiples of {CHUNK} that rise from 0 and end below capacity"
            )
        self.first, self.end = self.starts[self.group.rank], ends[self.group.rank]
        self._length = 0
        self.own = _Piece(self.capacity, encoding, heads, dim, capacity=self.end - self.first, **options)
        self._axis = -2 if self.own._layout == "bhld" else -3

    # ---- Whose keys are whose ------------------------------------------------------------------

    def __len__(self) -> int:
        return self._length

    def shares(self, length: int | None = None) -> Shares:
        """Return which rank has which keys.

        Parameters
        ----------
        length : int, optional
            Number of keys. By default those in the cache.

        Returns
        -------
        Shares
            One piece for each rank.
        """
        length = self._length if length is None else length
        ends = (*self.starts[1:], self.capacity)
        each = ((min(a, length), max(0, min(length, b) - a)) for a, b in zip(self.starts, ends, strict=True))
        return Shares(((first, count, rank) for rank, (first, count) in enumerate(each)), self.group.rank)

    @property
    def plan(self) -> Any:
        """The plan that the cache was made with."""
        return self.own.plan

    @property
    def nbytes(self) -> int:
        """Size of this rank's part in bytes."""
        return self.own.nbytes

    def refresh(self, tensors: Tensors | None = None, *, sinks: ArrayLike | None = None) -> None:
        """Replace learned tensors. Keys that are in the cache are not rotated again.

        Parameters
        ----------
        tensors : mapping of str to array, optional
            All learned and fixed tensors, by name.
        sinks : array [heads], optional
            Logit of each head that joins the softmax and takes weight without a value.
        """
        self.own.refresh(tensors, sinks=sinks)

    def truncate(self, length: int) -> None:
        """Drop the keys from an index on.

        Parameters
        ----------
        length : int
            Number of keys to keep.
        """
        length = whole(length, "length", 0, self._length)
        self.own.truncate(max(0, min(length, self.end) - self.first))
        self._length = length

    # ---- Steps ---------------------------------------------------------------------------------

    def _cut(self, x: Any, sizes: Sequence[Any], begin: int, end: int) -> Any:
        at = tuple(slice(begin, end) if size in ("keys", "queries") else slice(None) for size in sizes)
        return x[at]

    def _own_inputs(self, inputs: Mapping[str, Any] | None, begin: int, end: int) -> Any:
        if not inputs:
            return inputs
        sizes = {t.name: size for t, size in zip(self.plan.tensors, self.plan.sizes, strict=True)}
        return {name: self._cut(x, sizes.get(name, ()), begin, end) for name, x in inputs.items()}

    def _rows(self, given: Mapping[str, Any]) -> int:
        """Of arrays that are of the same tokens."""
        rows = {name: int(x.shape[self._axis]) for name, x in given.items()}
        for name, count in rows.items():
            if count != rows["k"]:
                raise Error(f"{name} has {count} rows and k {rows['k']}: they are of the same new tokens")
        return rows["k"]

    def fill(
        self,
        k: ArrayLike,
        v: ArrayLike,
        length: int,
        *,
        inputs: Tensors | None = None,
        coords: ArrayLike | None = None,
    ) -> None:
        """Store the keys of a prompt that was shared out as `shares(length)` says.

        Parameters
        ----------
        k : array [batch, kv_heads, own keys, dim]
            Keys of this rank.
        v : array [batch, kv_heads, own keys, value_dim]
            Values of this rank.
        length : int
            Number of keys of all ranks.
        inputs : mapping of str to array, optional
            Tensors that come with each call, by name, for the new tokens.
        coords : array [axes, n] or [batch, axes, n], optional
            Coordinates of the new tokens, for encodings of several axes.
        """
        share = self.shares(length)[self.group.rank]
        if self._length or not 0 <= length <= self.capacity:
            raise Error(f"fill() is for an empty cache and up to {self.capacity} keys; it has {self._length}")
        rows = self._rows({"k": k, "v": v})
        if rows != share.count:
            raise Error(f"k has {rows} rows, and rank {share.rank} has {share.count} keys of {length}")
        if share.count:
            self.own.append(k, v, inputs=inputs, pos=_from(share.first, share.count), coords=coords)
        self._length = length

    def append(
        self, k: ArrayLike, v: ArrayLike, *, inputs: Tensors | None = None, coords: ArrayLike | None = None
    ) -> None:
        """Append the keys and values of n new tokens. No rank waits for another.

        Parameters
        ----------
        k : array [batch, kv_heads, n, dim]
            Keys of n new tokens, before any rotation.
        v : array [batch, kv_heads, n, value_dim]
            Values of n new tokens.
        inputs : mapping of str to array, optional
            Tensors that come with each call, by name, for the new tokens.
        coords : array [axes, n] or [batch, axes, n], optional
            Coordinates of the new tokens, for encodings of several axes.
        """
        rows, length = self._rows({"k": k, "v": v}), self._length
        if length + rows > self.capacity:
            raise Error(f"{rows} new keys are too many: the cache has {length} of {self.capacity} keys")
        begin, end = max(self.first - length, 0), min(self.end - length, rows)
        if begin < end:
            cut = (slice(None),) * (self._axis % len(k.shape)) + (slice(begin, end),)
            at = None if coords is None else coords[..., begin:end]
            own = self._own_inputs(inputs, begin, end)
            self.own.append(k[cut], v[cut], inputs=own, pos=_from(length + begin, end - begin), coords=at)
        self._length += rows

    def attend(
        self,
        q: ArrayLike,
        *,
        inputs: Tensors | None = None,
        coords: ArrayLike | None = None,
        out: ArrayLike | None = None,
    ) -> Any:
        """Attend from the tokens that were appended last to all keys.

        Parameters
        ----------
        q : array [batch, heads, n, dim]
            Queries of n new tokens, in the order of axes of the cache's `layout`.
        inputs : mapping of str to array, optional
            Tensors that come with each call, by name, for the new tokens.
        coords : array [axes, n] or [batch, axes, n], optional
            Coordinates of the new tokens, for encodings of several axes.
        out : array, optional
            Array for the result. It must be writable, have the shape and type of the result, and be dense along its
            last axis.

        Returns
        -------
        o : array [batch, heads, n, value_dim]
            The same on every rank.
        """
        ranks = self.own.ranks = DecodeRanks(self.group, None, self.shares(), False)
        with ranks.calling(False):
            given = {"q": q}
            rows = int(q.shape[self._axis])
            laid = self.own._laid(given, inputs, None, _from(self._length - rows, rows), coords)
            return self.own._attend(laid, given, inputs, out)

    def step(
        self,
        q: ArrayLike,
        k: ArrayLike,
        v: ArrayLike,
        *,
        inputs: Tensors | None = None,
        k_lens: int | IntArrayLike | None = None,
        pos: IntArrayLike | None = None,
        coords: ArrayLike | None = None,
        out: ArrayLike | None = None,
    ) -> Any:
        """Append n new tokens and attend from them to all keys.

        Parameters
        ----------
        q : array [batch, heads, n, dim]
            Queries of n new tokens, in the order of axes of the cache's `layout`.
        k : array [batch, kv_heads, n, dim]
            Keys of n new tokens, before any rotation.
        v : array [batch, kv_heads, n, value_dim]
            Values of n new tokens.
        inputs : mapping of str to array, optional
            Tensors that come with each call, by name, for the new tokens.
        k_lens : None
            Not supported: all sequences grow alike.
        pos : None
            Not supported: positions follow the last ones.
        coords : array [axes, n] or [batch, axes, n], optional
            Coordinates of the new tokens, for encodings of several axes.
        out : array, optional
            Array for the result. It must be writable, have the shape and type of the result, and be dense along its
            last axis.

        Returns
        -------
        o : array [batch, heads, n, value_dim]
            The same on every rank.
        """
        if k_lens is not None or pos is not None:
            raise Error("a cache over ranks counts the positions of its keys itself: no k_lens and no pos")
        length = self._length
        try:
            with DecodeRanks(self.group, None, self.shares(), False).calling(False):
                self._rows({"k": k, "v": v, "q": q})
                self.append(k, v, inputs=inputs, coords=coords)
                return self.attend(q, inputs=inputs, coords=coords, out=out)
        except BaseException:
            self.own.truncate(max(0, min(length, self.end) - self.first))
            self._length = length
            raise

    def __reduce__(self) -> Any:
        raise TypeError("a cache over ranks cannot be copied: each rank has only its own keys")


def _from(first: int, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.arange(first, first + count, dtype=np.int64)


# ---- Around it -----------------------------------------------------------------------------------


def collect(x: ArrayLike, shares: Iterable[Iterable[int]], dim: int, *, group: GroupLike | None = None) -> Any:
    """Collect a whole array on every rank from the parts of all. It has no gradient.

    Parameters
    ----------
    x : array
        The part of this rank.
    shares : list of (first, count, rank)
        Which rank has which rows.
    dim : int
        Axis of the rows.
    group : Group or ProcessGroup, optional
        Ranks that attend together. By default all processes.

    Returns
    -------
    array
        Rows of all ranks in order.
    """
    own, parted = _group(group), cast(Shares, _shares(shares, "shares"))
    kind, x = arrays.read(x, "x")
    counts = [sum(share.count for share in parted if share.rank == rank) for rank in range(own.ranks)]
    failed = None
    if x.shape[dim] != counts[own.rank]:
        failed = Error(f"axis {dim} has {x.shape[dim]} rows, and the shares of rank {own.rank} {counts[own.rank]}")
    own.transport.agree(failed, [])
    parts, shape = [], list(x.shape)
    for rank, count in enumerate(counts):
        shape[dim] = count
        parts.append(kind.dense(kind.detach(x)) if rank == own.rank else kind.empty(tuple(shape), x))
        own.transport.broadcast(rank, kind.pointer(parts[-1]), parts[-1].nbytes)
    return parted.join(parts, dim)


def _whole(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    from .nn import Encoding

    for part in module.modules():
        if isinstance(part, Encoding):
            yield from part.parameters()


def sum_gradients(
    parameters: torch.nn.Module | Iterable[torch.Tensor],
    group: GroupLike | None = None,
    *,
    whole: Iterable[torch.Tensor] = (),
) -> None:
    """Sum gradients over ranks, in place.

    What an encoding learns has its whole gradient on every rank already. Parameters of `loci.nn.Encoding` in a
    module are left out, unless the group has `whole_gradients=False`.

    Parameters
    ----------
    parameters : Module or iterable of Tensor
        Whose gradients to sum.
    group : Group or ProcessGroup, optional
        Ranks that attend together. By default all processes.
    whole : iterable of Tensor
        Further parameters to leave out.
    """
    own = _group(group)
    skipped = {id(x) for x in whole}
    if isinstance(parameters, torch.nn.Module):
        skipped |= {id(x) for x in _whole(parameters)}
        parameters = parameters.parameters()
    if not own.whole_gradients:
        skipped = set()
    wanted = [x for x in parameters if x.requires_grad and id(x) not in skipped]
    for dtype in dict.fromkeys(x.dtype for x in wanted):
        some = [x for x in wanted if x.dtype is dtype]
        wide = torch.float64 if dtype is torch.float64 else torch.float32
        there = torch.tensor([float(x.grad is not None) for x in some], dtype=wide)  # on how many ranks
        flat = [torch.zeros(x.numel(), dtype=wide) if x.grad is None else x.grad.flatten().to(wide) for x in some]
        sums = torch.cat((there, *flat))
        dist.all_reduce(sums, group=own.process_group)
        at = len(some)
        for x, ranks in zip(some, sums[:at].tolist(), strict=True):
            if ranks:
                x.grad = sums[at : at + x.numel()].view_as(x).to(dtype)
            at += x.numel()
