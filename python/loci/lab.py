# SPDX-License-Identifier: MIT
"""The lab from Python: its sequences as arrays, and its model in torch with an attention of your own.

docs/lab-own-encoding.md goes from an idea to a row of a report.  `batch()` and `data()` need numpy alone."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypedDict, cast

import numpy as np

from . import _lab, _lab_files
from ._c import Error
from ._lab import Sequences
from ._types import ArrayLike, RealArrayLike

if TYPE_CHECKING:
    import torch

__all__ = ["Sequences", "batch", "columns", "data", "tasks", "tokens", "train", "write_bias"]


class Column(TypedDict):
    """A test of a task: sequences that no training has."""

    name: str
    times: float
    length: int
    count: int
    trained: bool
    metric: str


def tasks() -> dict[str, str]:
    """List the tasks.

    Returns
    -------
    dict of str to str
        What each task asks, by name.
    """
    return {name: task["brief"] for name, task in _lab.all_sizes()["tasks"].items()}


def columns(
    task: str, *, size: str = "S", corpus: str | os.PathLike[str] | None = None, **settings: float
) -> list[Column]:
    """List the tests of a task.

    Parameters
    ----------
    task : str
        Name of a task.
    size : {"XS", "S", "M", "L"}
        Size of the lab, which gives the length of training.
    corpus : path, optional
        For tasks that need a text: a name of `loci lab corpus`, or a file. By default the generated one.
    **settings
        Fields of the size (`length`, `tokens`) and options of the task, as in `loci lab run --set`.

    Returns
    -------
    list of dict
        `name`; `times`, the length over the trained one; `length`, tokens of the longest sequence; `count` of
        sequences; `trained`, whether they are drawn as in training; `metric`, which tables show.
    """
    return [cast(Column, dict(column)) for column in _lab.problem(task, size, corpus, settings).columns]


def batch(
    task: str,
    step: int,
    seed: int = 0,
    *,
    size: str = "S",
    corpus: str | os.PathLike[str] | None = None,
    **settings: float,
) -> Sequences:
    """Draw the sequences of a training step, the same ones for every arm of the lab.

    Parameters
    ----------
    task : str
        Name of a task.
    step : int
        Step of the training, counted from 1.
    seed : int
        Seed of the training.
    size : {"XS", "S", "M", "L"}
        Size of the lab, which gives the length of training and the tokens of a step.
    corpus : path, optional
        For tasks that need a text: a name of `loci lab corpus`, or a file. By default the generated one.
    **settings
        Fields of the size (`length`, `tokens`) and options of the task, as in `loci lab run --set`.

    Returns
    -------
    Sequences
        `tokens`, `targets` and `starts`, bit for bit those of `loci lab data`.

    Raises
    ------
    Error
        An unknown task, size or setting, or settings that contradict each other.
    """
    return _lab.problem(task, size, corpus, settings).train(seed, step)


def data(
    task: str,
    column: str,
    *,
    split: str = "test",
    size: str = "S",
    corpus: str | os.PathLike[str] | None = None,
    **settings: float,
) -> Sequences:
    """Draw the sequences of a test, which depend on no seed.

    Parameters
    ----------
    task : str
        Name of a task.
    column : str
        Name of the test, such as `"4L"` or `"n=30"`. `columns()` lists them.
    split : {"test", "validation"}
        Validation is drawn like the test, but has sequences of its own: choose learning rates by it.
    size : {"XS", "S", "M", "L"}
        Size of the lab, which gives the length of training.
    corpus : path, optional
        For tasks that need a text: a name of `loci lab corpus`, or a file. By default the generated one.
    **settings
        Fields of the size (`length`, `tokens`) and options of the task, as in `loci lab run --set`.

    Returns
    -------
    Sequences
        `tokens`, `targets` and `starts`, bit for bit those of `loci lab data`.

    Raises
    ------
    Error
        An unknown task, column, size or setting, or settings that contradict each other.
    """
    if split not in ("test", "validation"):
        raise Error(f"split '{split}' is none of test, validation; batch() draws training steps")
    problem = _lab.problem(task, size, corpus, settings)
    index = problem.find(column)
    return problem.test(index, 0, problem.columns[index]["count"], split == "validation")


def tokens(task: str, *, size: str = "S", corpus: str | os.PathLike[str] | None = None, **settings: float) -> list[str]:
    """List the vocabulary of a task.

    Parameters
    ----------
    task : str
        Name of a task.
    size : {"XS", "S", "M", "L"}
        Size of the lab.
    corpus : path, optional
        For tasks that need a text: a name of `loci lab corpus`, or a file. By default the generated one.
    **settings
        Fields of the size and options of the task, as in `loci lab run --set`.

    Returns
    -------
    list of str
        Each token in readable form.
    """
    problem = _lab.problem(task, size, corpus, settings)
    return [problem.show(token) for token in range(problem.vocabulary)]


def write_bias(path: str | os.PathLike[str], bias: ArrayLike | RealArrayLike) -> None:
    """Write a table of biases for `loci lab run --arms bias:file=PATH`.

    Parameters
    ----------
    path : path
        File to write, `.safetensors`. Its name must not have `,`, `:`, `+` or `@`, which mean something in an arm.
    bias : array [heads, distances] or [heads, rows, keys]
        What is added to scores. Distances from the last one on share its number.

    Raises
    ------
    Error
        The table has another shape, or numbers that are not finite.
    """
    table = np.asarray(bias, np.float32)
    if table.ndim not in (2, 3) or table.size == 0:
        raise Error(f"bias must be [heads, distances] or [heads, rows, keys], not of shape {list(table.shape)}")
    if not np.isfinite(table).all():
        raise Error("bias has numbers that are not finite; causal order hides later keys already")
    name = os.fspath(path)
    if re.search("[,:+@]", name):
        raise Error(f"path '{name}' must not have ',', ':', '+' or '@', which mean something in an arm")
    _lab_files.write(os.path.abspath(name), _lab_files.safetensors({"bias": table}, {}))


def train(
    attention: Callable[..., torch.Tensor],
    tasks: str | Sequence[str],
    *,
    name: str,
    out: str | os.PathLike[str],
    size: str = "S",
    seeds: Sequence[int] = (0,),
    steps: int | None = None,
    embedding: Callable[..., torch.Tensor] | None = None,
    corpus: str | os.PathLike[str] | None = None,
    device: str = "cpu",
    threads: int = 1,
    replace: bool = False,
    progress: Callable[[str], None] | None = print,
    **settings: float,
) -> list[dict[str, object]]:
    """Train the lab's model in torch with an attention of your own, and store what its tests say.

    The model, its first numbers, its sequences and its optimiser are those of `loci lab run`. So a row is compared
    with the lab's own by `loci lab report` and `loci lab compare`, seed by seed. It is called `NAME@torch`, because
    torch's bits are not repeatable.

    Parameters
    ----------
    attention : callable or torch.nn.Module
        `attention(q, k, v, layer=..., positions=...)` returns the output, in the shape of q. q, k and v are
        [batch, heads, length, width], `layer` counts from 0, `positions` is [length]. If it has a parameter `x`, it
        also gets the layer's input, [batch, length, dim]. It must be causal. Each run starts with a copy of a
        module, whose parameters are trained without decay.
    tasks : str or list of str
        Tasks to train, one model for each.
    name : str
        Name of the row, of letters, digits, `.`, `_` and `-`.
    out : path
        Folder of runs, as `loci lab run -o` makes. Runs that are done there are not made again.
    size : {"XS", "S", "M", "L"}
        Size of the lab.
    seeds : list of int
        Seeds of the training.
    steps : int, optional
        Training steps. By default as many as `loci lab run --arms ... --tasks ...` makes.
    embedding : callable or torch.nn.Module, optional
        `embedding(x, positions=...)` returns the embeddings [batch, length, dim] with positions.
    corpus : path, optional
        For tasks that need a text: a name of `loci lab corpus`, or a file. By default the generated one.
    device : str
        Where torch computes, such as `"cuda"`.
    threads : int
        Threads of torch on the CPU while it trains. Models of size S or less run fastest with one.
    replace : bool
        Replace runs of this name that had another code.
    progress : callable, optional
        Gets a line of text for each run. None is silent. Otherwise a notebook or a terminal shows a bar if training
        takes longer than two seconds.
    **settings
        Fields of the size (`layers`, `dim`, `heads`, `kv_heads`, `ffn`, `length`, `tokens`, `rate`, `std`,
        `embed_std`) and options of the tasks, as in `loci lab run --set`.

    Returns
    -------
    list of dict
        The results, as in `result.json`, task by task and seed by seed.

    Raises
    ------
    Error
        An unknown task, size or setting, an attention that sees later keys, or a folder of something else.
    """
    from . import _lab_train

    return _lab_train.train_all(
        attention,
        [tasks] if isinstance(tasks, str) else list(tasks),
        name=name,
        out=os.fspath(out),
        size=size,
        seeds=list(seeds),
        steps=steps,
        embedding=embedding,
        corpus=corpus,
        device=device,
        threads=threads,
        replace=replace,
        progress=progress,
        settings=settings,
    )
