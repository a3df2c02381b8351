# SPDX-License-Identifier: MIT
"""The transport of loci/parallel.h over a process group of torch.distributed, with gloo.

C calls what is here from the thread that called C.  Nothing may be raised into C: what goes wrong first is kept, the
transport is broken for good, and whoever called C raises it.

A Work of gloo does not know whether it is done before somebody waits for it.  So a request that C tests has a thread
that waits; forward passes are given no test, and have none.  A wait that gloo gives up closes the connections to all
others, and ends all other waits: so a transport that breaks gives one up, which ends its own requests and tells the
other ranks, who would wait.

Agreements go up and down a binomial tree of ranks as messages.  With gloo that takes a fifth of the time of
all_reduce(), whose work passes through other threads."""

from __future__ import annotations

import contextlib
import ctypes as c
import datetime
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist

from . import _c
from ._c import Error
from ._ranks import NOTHING

PIECE = 1 << 30  # bytes that go at once: a longer message goes in pieces
TAGS = 1 << 29  # is added to C's, so that no message of the host is met
NEVER, UP, DOWN = -3, -2, -1  # tags: of what nobody sends, and of agreements
SENTENCE = 512  # bytes
AT_ONCE = datetime.timedelta(milliseconds=1)
THREADS = 4096  # at most: a request that waited for a free one might wait for ever


def _memory(at: int | None, bytes_: int) -> torch.Tensor:
    """Memory of C, in place."""
    if not bytes_ or at is None:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer((c.c_char * bytes_).from_address(at), dtype=torch.uint8)


class _Request:
    """The pieces of a message on their way."""

    def __init__(self, works: list[Any]) -> None:
        self.works = works
        self.waiter: Future[None] | None = None

    def wait(self) -> None:
        for work in self.works:
            work.wait()

    def done(self, threads: ThreadPoolExecutor) -> bool:
        if self.waiter is None:
            self.waiter = threads.submit(self.wait)
        return self.waiter.done()

    def end(self) -> None:
        """When it has ended nothing touches its memory."""
        if self.waiter is None:
            self.wait()
        else:
            self.waiter.result()

    def give_up(self) -> None:
        for work in self.works:
            with contextlib.suppress(Exception):
                work.wait(AT_ONCE)
        if self.waiter is not None:
            self.waiter.exception()


class _OwnRequest:
    """A message to oneself, that is received."""

    def __init__(self, messages: deque[torch.Tensor], memory: torch.Tensor) -> None:
        self.messages, self.memory = messages, memory

    def done(self, threads: ThreadPoolExecutor) -> bool:
        return bool(self.messages)

    def end(self) -> None:
        self.memory.copy_(self.messages.popleft())

    def give_up(self) -> None:
        pass


class Transport:
    """`struct` is what C is given, `tested` the same with test(); `calls` counts how often C was called."""

    def __init__(self, process_group: Any) -> None:
        self._group = weakref.ref(process_group)
        self.rank, self.ranks = dist.get_rank(process_group), dist.get_world_size(process_group)
        self._names = dist.get_process_group_ranks(process_group)  # by which torch.distributed knows the ranks
        self.failed: BaseException | None = None
        self.calls = 0
        self.counts = _c.ParallelReport(size=c.sizeof(_c.ParallelReport))  # of the last call
        self._open: dict[int, Any] = {}  # requests, by the numbers that C has for them
        self._threads = ThreadPoolExecutor(THREADS, "loci-waits")
        self._next = 1
        self._own: defaultdict[int, deque[Any]] = defaultdict(deque)  # messages of this rank to itself, by tag
        functions: dict[str, Any] = {
            "send": _c.BEGIN(self._guarded(self._send)),
            "receive": _c.BEGIN(self._guarded(self._receive)),
            "wait": _c.END(self._wait),
            "highest": _c.AGREE(self._guarded(self._highest)),
        }
        size = c.sizeof(_c.Transport)
        self.struct = _c.Transport(size=size, rank=self.rank, ranks=self.ranks, **functions)
        functions["test"] = _c.END(self._guarded(self._test))
        self.tested = _c.Transport(size=size, rank=self.rank, ranks=self.ranks, **functions)

    # ---- What fails ----------------------------------------------------------------------------

    def _guarded(self, function: Callable[..., None]) -> Callable[..., int]:
        def called(user: Any, *arguments: Any) -> int:
            if self.failed is None:
                try:
                    function(*arguments)
                except BaseException as error:
                    self._break(error)
            return int(self.failed is not None)

        return called

    def _break(self, error: BaseException) -> None:
        # frames of a traceback would keep requests, and these the memory
        self.failed = error.with_traceback(None)
        with contextlib.suppress(Exception):
            self._begin(dist.irecv, (self.rank + 1) % self.ranks, NEVER, torch.empty(1)).give_up()

    def begin(self) -> None:
        """Before a call of C, and before an agreement."""
        self.calls += 1
        if self.failed is not None:
            raise Error(
                f"the transport of rank {self.rank} failed earlier ({self.failed}); end the process, or make another "
                "process group",
                "transport",
            ) from self.failed

    def reason(self, error: Error) -> BaseException:
        """What to raise when C has failed."""
        if self.failed is None:
            text = str(error)
            if text.endswith(NOTHING):
                said = text.replace(f": {NOTHING}", " failed before it called, and its own error says why")
                return Error(said, error.status)
            return error
        if not isinstance(self.failed, Exception):
            return self.failed  # somebody wants to end the program
        error = Error(f"{error}: {self.failed}", error.status)
        error.__cause__ = self.failed
        return error

    # ---- Messages ------------------------------------------------------------------------------

    @property
    def process_group(self) -> Any:
        group = self._group()
        if group is None:
            raise Error("the process group has ended", "transport")
        return group

    def _begin(self, way: Any, rank: int, tag: int, memory: torch.Tensor) -> _Request:
        name, group = self._names[rank], self.process_group
        request = _Request([])
        try:
            for at in range(0, max(memory.numel(), 1), PIECE):
                request.works.append(way(memory[at : at + PIECE], name, group=group, tag=TAGS + tag))
        except BaseException:
            request.give_up()
            raise
        return request

    def _keep(self, request: Any, at: Any) -> None:
        self._open[self._next] = request
        at[0] = self._next
        self._next += 1

    def _send(self, to: int, tag: int, data: Any, bytes_: int, at: Any) -> None:
        at[0] = None
        memory = _memory(data, bytes_)
        if to == self.rank:
            self._own[tag].append(memory.clone())
        else:
            self._keep(self._begin(dist.isend, to, tag, memory), at)

    def _receive(self, whom: int, tag: int, data: Any, bytes_: int, at: Any) -> None:
        at[0] = None
        memory = _memory(data, bytes_)
        to_itself = whom == self.rank
        self._keep(_OwnRequest(self._own[tag], memory) if to_itself else self._begin(dist.irecv, whom, tag, memory), at)

    def _test(self, at: Any) -> None:
        request = self._open.get(at[0])
        if request is not None and request.done(self._threads):
            request.end()
            del self._open[at[0]]
            at[0] = None

    def _wait(self, user: Any, at: Any) -> int:
        request = self._open.pop(at[0], None)
        at[0] = None
        if request is not None and self.failed is None:
            try:
                request.end()
            except BaseException as error:
                self._break(error)
        if request is not None and self.failed is not None:
            request.give_up()
        return int(self.failed is not None)

    def broadcast(self, rank: int, data: int, bytes_: int) -> None:
        """A rank's memory to that of all others."""
        if bytes_:
            dist.broadcast(_memory(data, bytes_), self._names[rank], group=self.process_group)

    # ---- Agreements ----------------------------------------------------------------------------

    def _move(self, way: Any, rank: int, tag: int, x: torch.Tensor) -> None:
        self._begin(way, rank, tag, x).end()

    def _maximum(self, x: torch.Tensor) -> torch.Tensor:
        below = self.rank & -self.rank or self.ranks
        children = [self.rank + step for step in (1 << i for i in range(31)) if step < below]
        children = [child for child in children if child < self.ranks]
        theirs = torch.empty_like(x)
        for child in children:
            self._move(dist.irecv, child, UP, theirs)
            torch.maximum(x, theirs, out=x)
        if self.rank:
            self._move(dist.isend, self.rank & (self.rank - 1), UP, x)
            self._move(dist.irecv, self.rank & (self.rank - 1), DOWN, x)
        for child in reversed(children):
            self._move(dist.isend, child, DOWN, x)
        return x

    def _highest(self, list_: Any, n: int) -> None:
        if n:
            numbers = _memory(list_, 8 * n).view(torch.int64)
            numbers.copy_(self._maximum(numbers.clone()))

    def _agreed(self, numbers: list[int]) -> list[int]:
        x = torch.tensor(numbers, dtype=torch.int64)
        try:
            self._maximum(x)
        except BaseException as error:
            self._break(error)
            broken = Error(f"parallel: the transport of rank {self.rank} failed, so no rank can continue", "transport")
            raise self.reason(broken)  # noqa: B904
        agreed: list[int] = x.tolist()
        return agreed

    def agree(self, failed: Exception | None, numbers: list[int]) -> list[int]:
        """The highest of each number; or where a rank has failed, its sentence for all others."""
        self.begin()
        worst, *numbers = self._agreed([self.rank + 1 if failed else 0, *numbers])
        if not worst:
            return numbers
        own = str(failed).encode()[:SENTENCE] if worst == self.rank + 1 else b""
        told = bytes(self._agreed(list(own.ljust(SENTENCE, b"\0"))))
        if failed is not None:
            raise failed
        text = told.rstrip(b"\0").decode(errors="replace")
        raise Error(f"parallel: rank {worst - 1}: {text}")
