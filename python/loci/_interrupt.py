# SPDX-License-Identifier: MIT
"""Ctrl-C during long calls.

Python handles signals in the main thread, and only between two steps of the interpreter: a call of C must end first.
So a long call of the main thread runs in a thread of its own, while the main thread waits where signals are handled.
If a handler raises, the call's host says `cancelled`, C stops within a work item, and the exception goes on."""

from __future__ import annotations

import _thread
import ctypes as c
import os
import threading
from collections.abc import Callable
from typing import Any

from . import _c, _plan

LONG = 4e8  # products of two numbers for each thread, some ten milliseconds; starting a thread takes 0.05


def run(function: Callable[..., int], call: Any, products: float, *arguments: Any) -> int:
    """The status of function(*arguments).  `call` is the loci_call among them."""
    if products < LONG:
        return function(*arguments)
    if products < LONG * (call.host.contents.threads if call.host else 1):
        return function(*arguments)
    if threading.current_thread() is not threading.main_thread():
        return function(*arguments)
    return _run_aside(function, call, arguments)


def _run_aside(function: Callable[..., int], call: Any, arguments: tuple[Any, ...]) -> int:
    stop = c.create_string_buffer(b"0")
    begun, running = _thread.allocate_lock(), _thread.allocate_lock()
    made: list[Any] = []
    before = call.host
    # a pool of loci: in a new thread OpenMP would start new threads, too
    pool = _plan.pool_of(before.contents.threads, False) if before else None
    host = _stoppable(pool.contents if pool else None, stop)

    def work() -> None:
        if not begun.acquire(False):
            return  # the main thread was interrupted before
        try:
            made.append(function(*arguments))
        except BaseException as error:
            made.append(error)
        finally:
            running.release()

    call.host = c.pointer(host)
    running.acquire()
    try:
        _thread.start_new_thread(work, ())
        running.acquire()
    except BaseException:
        stop[0] = b"1"
        if not begun.acquire(False):
            _wait(running, made)
        raise
    finally:
        call.host = before
    if isinstance(made[0], BaseException):
        raise made[0]
    return int(made[0])


def _wait(running: Any, made: list[Any]) -> None:
    """Until the call has ended, whatever is raised meanwhile: until then C writes into the caller's arrays."""
    while not made:
        try:
            running.acquire(timeout=1.0)
        except BaseException:
            continue


# C asks `cancelled` in any thread, so it cannot be a function of Python, which would have to wait for the interpreter.
# atoi() reads the text that `user` points to: "0", or "1" when the call shall stop.
_library = c.CDLL(None) if os.name == "posix" else c.cdll.msvcrt
_atoi = c.cast(_library.atoi, c.c_void_p).value


def _stoppable(pool: Any, stop: Any) -> Any:
    """A host with the threads of this pool, if there is one, that is cancelled when `stop` says so."""
    host = _c.Host(cancelled=_atoi, user=c.addressof(stop), threads=1)
    host.kept = [stop]
    if pool is not None and pool.run:
        own = _c.RUN(pool.run)

        # `user` is the text, so the pool's own comes from here; C calls this a few times in a call
        def run(user: int, count: int, job: int, argument: int) -> None:
            own(pool.user, count, job, argument)

        callback = _c.RUN(run)
        host.run, host.threads = c.cast(callback, c.c_void_p), pool.threads
        host.kept += [callback, pool]
    return host
