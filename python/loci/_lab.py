# SPDX-License-Identifier: MIT
"""The library loci-lab: tasks of the lab, and their sequences."""

from __future__ import annotations

import ctypes as c
import functools
import json
import os
import weakref
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import _c
from ._c import Error
from ._numbers import INT, real, whole

# Fields of a size in the order of the lab's settings, with the least and the most of each.
SHAPES = {
    "layers": (1, 64),
    "dim": (16, 8192),
    "heads": (1, 16),
    "kv_heads": (0, 16),
    "ffn": (0, 65536),
    "length": (8, 65536),
    "tokens": (16, 10_000_000),
}
NUMBERS = ("rate", "std", "embed_std")


class Sequences(NamedTuple):
    """Sequences one after another: number i is from `starts[i]` to `starts[i + 1]`.

    Attributes
    ----------
    tokens : int32 array [rows]
        Tokens. 0 begins each sequence.
    targets : int32 array [rows]
        The token that should follow, or -1 where nothing is asked.
    starts : int64 array [sequences + 1]
        Where each sequence starts, and the end of the last one.
    """

    tokens: npt.NDArray[np.int32]
    targets: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int64]


def about(handle: Any = None) -> dict[str, Any]:
    library = _c.lab()
    capacity = library.lab_about(handle, None, 0) + 1
    text = c.create_string_buffer(capacity)
    library.lab_about(handle, text, capacity)
    found: dict[str, Any] = json.loads(text.value)
    return found


@functools.lru_cache(maxsize=1)
def all_sizes() -> dict[str, Any]:
    """Sizes and tasks."""
    return about()


def _one_of(word: str, words: Any, what: str) -> str:
    if word not in words:
        raise Error(f"{what} '{word}' is none of {', '.join(words)}")
    return word


class Problem:
    """A task of a size with all settings, as the lab has them."""

    def __init__(self, task: str, size: str, corpus: str | None, settings: Mapping[str, Any]) -> None:
        sizes, tasks = all_sizes()["sizes"], all_sizes()["tasks"]
        self.task, self.size = _one_of(task, tasks, "task"), _one_of(size, sizes, "size")
        self.steps: int = tasks[task]["steps"]
        usual = {"kv_heads": 0, "ffn": 0, **sizes[size]}
        usual |= {"std": 0.5 / usual["dim"] ** 0.5, "embed_std": 1.0}
        self.usual = {name: usual[name] for name in (*SHAPES, *NUMBERS)}
        self.fields = dict(self.usual)
        options = {}
        for name, value in settings.items():
            if name in SHAPES:
                self.fields[name] = whole(value, name, *SHAPES[name])
            elif name in NUMBERS:
                self.fields[name] = real(value, name)
                if not 1e-9 <= self.fields[name] <= 10:
                    raise Error(f"{name} must be from 1e-9 to 10, not {self.fields[name]}")
            elif name in tasks[task]["options"]:
                options[name] = real(value, name)
            else:
                known = ", ".join((*self.fields, *tasks[task]["options"]))
                raise Error(f"there is no setting '{name}' for {task}; it has {known}")
        self._open(corpus if tasks[task]["corpus"] else None, options)
        self.options: dict[str, float] = self.about["options"]
        self.usual_options: dict[str, float] = tasks[task]["options"]
        if self.fields["tokens"] < self.longest:
            raise Error(f"tokens {self.fields['tokens']} must have room for a sequence of {self.longest} tokens")

    def _open(self, corpus: str | None, options: dict[str, float]) -> None:
        library, error, handle = _c.lab(), _c.CError(), c.c_void_p()
        path = None if corpus is None else os.fsencode(corpus)
        _c.check(library.lab_open(c.byref(handle), self.task.encode(), self.fields["length"], path, error), error)
        weakref.finalize(self, library.lab_close, handle.value)
        self.handle = handle.value
        for name, value in options.items():
            _c.check(library.lab_set(self.handle, name.encode(), value, error), error)
        _c.check(library.lab_check(self.handle, error), error)
        self.about = about(self.handle)
        self.vocabulary: int = self.about["vocabulary"]
        self.longest: int = self.about["longest"]
        self.columns: list[dict[str, Any]] = self.about["columns"]

    def _draw(self, function: Any, arguments: tuple[Any, ...], count: int, longest: int) -> Sequences:
        tokens, targets = np.empty((2, count * longest), np.int32)
        starts = np.empty(count + 1, np.int64)
        error = _c.CError()
        _c.check(
            function(
                self.handle, *arguments, count, tokens.ctypes.data, targets.ctypes.data, starts.ctypes.data, error
            ),
            error,
        )
        rows = int(starts[-1])
        return Sequences(tokens[:rows].copy(), targets[:rows].copy(), starts)

    def train(self, seed: int, step: int) -> Sequences:
        """Those of a step, counted from 1."""
        seed, step = whole(seed, "seed", 0, 10**9), whole(step, "step", 1, INT)
        return self._draw(_c.lab().lab_train, (seed, step - 1), self.fields["tokens"] // self.longest, self.longest)

    def test(self, column: int, first: int, count: int, validation: bool = False) -> Sequences:
        function = _c.lab().lab_validation if validation else _c.lab().lab_test
        return self._draw(function, (column, first), count, self.columns[column]["length"])

    def find(self, column: str) -> int:
        names = [x["name"] for x in self.columns]
        return names.index(_one_of(column, names, f"column of {self.task}"))

    def show(self, token: int) -> str:
        text = c.create_string_buffer(16)
        _c.lab().lab_show(self.handle, token, text)
        return text.value.decode()

    def settings(self) -> str:
        """What differs from the size's and the task's own, in the words of the lab's results."""
        words = [f"{k}={v:.9g}" for k, v in self.fields.items() if v != self.usual[k]]
        words += [f"{k}={v:.9g}" for k, v in self.options.items() if v != self.usual_options[k]]
        corpus = self.about["corpus"]
        if corpus and corpus["name"] != "generated":
            words.append(f"corpus={corpus['name']}")
        return " ".join(words)


@functools.lru_cache(maxsize=16)
def _opened(task: str, size: str, corpus: str | None, state: Any, settings: tuple[tuple[str, Any], ...]) -> Problem:
    return Problem(task, size, corpus, dict(settings))


def problem(task: str, size: str, corpus: str | os.PathLike[str] | None, settings: Mapping[str, Any]) -> Problem:
    """The same one as before, if the file of the text has not changed."""
    path = None if corpus is None else os.fspath(corpus)
    state = None
    if path is not None and path not in all_sizes()["texts"]:
        try:
            found = os.stat(path)
        except OSError as error:
            raise Error(f"corpus {path}: {error.strerror}") from None
        state = found.st_mtime_ns, found.st_size
    try:
        return _opened(task, size, path, state, tuple(sorted(settings.items())))
    except TypeError as error:  # a setting without a hash
        if "unhashable" not in str(error):
            raise
        return Problem(task, size, path, settings)


def normal(seed: int, name: str, std: float, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """The numbers at the start of a tensor of the lab's models."""
    made = np.empty(shape, np.float32)
    _c.lab().lab_normal(seed, name.encode(), std, made.size, made.ctypes.data)
    return made
