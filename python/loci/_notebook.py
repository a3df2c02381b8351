# SPDX-License-Identifier: MIT
"""Whether this is a notebook, and progress of what takes longer than two seconds.  IPython is never imported: where it
is at work, it is there."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from html import escape
from typing import Any

QUIET = 2.0  # seconds before anything is shown
OFTEN = 0.2  # seconds between two pictures
WIDTH = 30  # of the bar in a terminal


def shell() -> Any:
    """IPython's, or None."""
    get = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return None if get is None else get()


def is_notebook() -> bool:
    """Whether what is displayed may be HTML: IPython has a kernel, unlike in a terminal."""
    return getattr(shell(), "kernel", None) is not None


def _left(seconds: float) -> str:
    whole = int(seconds + 0.5)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class _Terminal:
    """A line of stderr that is written again and again."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def show(self, share: float, text: str) -> None:
        full = int(share * WIDTH)
        line = f"[{'#' * full}{'.' * (WIDTH - full)}] {text}"
        self.stream.write(f"\r{line[: _columns(self.stream) - 1]}\x1b[K")
        self.stream.flush()

    def clear(self) -> None:
        self.stream.write("\r\x1b[K")
        self.stream.flush()


def _columns(stream: Any) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError, AttributeError):
        return 80


class _Cell:
    """An output of a notebook's cell that is replaced again and again."""

    def __init__(self) -> None:
        self.display: Any = None

    def _write(self, html: str) -> None:
        data = {"text/html": html, "text/plain": ""}
        if self.display is None:
            self.display = sys.modules["IPython"].display.display(data, raw=True, display_id=True)
        else:
            self.display.update(data, raw=True)

    def show(self, share: float, text: str) -> None:
        self._write(f'<progress value="{share:.4f}" max="1"></progress> {escape(text)}')

    def clear(self) -> None:
        if self.display is not None:
            self._write("")


def _where(wanted: bool) -> Any:
    """What shows progress here: a cell, a terminal, or None, as in a pipe."""
    if not wanted:
        return None
    if is_notebook() and hasattr(sys.modules["IPython"], "display"):
        return _Cell()
    stream = sys.stderr
    if stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb":
        return _Terminal(stream)
    return None


class Progress:
    """A bar that appears after two seconds, where there is a notebook or a terminal.

    with Progress() as bar:
        bar.begin(100, "training")
        for step in range(100):
            bar.step()
    """

    def __init__(self, wanted: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self.opened = clock, clock()
        self.where = _where(wanted)
        self.last: float | None = None  # when it was shown, while it is there
        self.begin(1, "")

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.hide()

    def begin(self, total: int, text: str) -> None:
        """What comes has so many steps."""
        self.total, self.text, self.done, self.began = total, text, 0, self.clock()

    def step(self) -> None:
        self.done += 1
        now = self.clock()
        if self.where is None or now - self.opened < QUIET or (self.last is not None and now - self.last < OFTEN):
            return
        self.last = now
        share = min(1.0, self.done / self.total)
        left = (now - self.began) * (1 - share) / share
        self.where.show(share, f"{self.text}, {self.done} of {self.total}, {_left(left)} left")

    def hide(self) -> None:
        """Before something else is written, and at the end."""
        if self.where is not None and self.last is not None:
            self.where.clear()
            self.last = None
