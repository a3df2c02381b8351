# SPDX-License-Identifier: MIT
"""Pictures.  Those by matplotlib take ax=None, return the Axes, and show nothing; in a notebook the Axes are an SVG.
show() has the pictures of the program `loci show`, and needs no matplotlib."""

from __future__ import annotations

import io
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _notebook
from . import rope as _rope
from . import weights as _weights
from ._c import Error
from ._numbers import INT, whole
from ._plan import Plan
from ._program import find as _find_program
from ._types import ArrayLike, ModelSource, Tensors

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class _Inline:
    """_repr_svg_() of new Axes in a notebook.  A class, so that a figure can be copied and pickled."""

    def __init__(self, axes: Any) -> None:
        self.axes = axes

    def __call__(self) -> str:
        from matplotlib import get_backend, pyplot

        made = io.StringIO()
        self.axes.figure.savefig(made, format="svg", bbox_inches="tight")
        if "inline" in get_backend():
            pyplot.close(self.axes.figure)  # or the backend would show it once more, at the end of the cell
        return made.getvalue()


def _axes(ax: Any) -> Any:
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ImportError:
        raise ImportError("loci.plot needs matplotlib: pip install matplotlib") from None
    made = pyplot.subplots()[1]
    if _notebook.is_notebook():
        made._repr_svg_ = _Inline(made)  # type: ignore[attr-defined]
    return made


def weights(
    q: ArrayLike, k: ArrayLike, encoding: str = "nope", row: int = -1, *, ax: Axes | None = None, **options: Any
) -> Any:
    """Plot the weights that one row gives to each key, one curve for each head of the first batch entry.

    Parameters
    ----------
    q : array [batch, heads, rows, dim]
        Queries, in the order of axes that `layout` says.
    k : array [batch, kv_heads, keys, dim]
        Keys. `heads` is a multiple of `kv_heads`.
    encoding : str
        Name and options of one or more encodings.
    row : int
        Index of the row. Negative ones count from the end.
    ax : matplotlib Axes, optional
        Axes to draw on. By default those of a new figure.
    **options
        Other options of `loci.weights()`.

    Returns
    -------
    Axes
        With the curves.
    """
    made = np.asarray(_weights(q, k, encoding, rows=[row], **options))[0, :, 0]
    axes = _axes(ax)
    for head, curve in enumerate(made):
        axes.plot(curve, label=f"head {head}")
    axes.set_xlabel("key")
    axes.set_ylabel("weight")
    axes.legend()
    return axes


def bias(
    encoding: str,
    heads: int,
    length: int,
    *,
    tensors: Tensors | None = None,
    dim: int = 64,
    seed: int = 0,
    ax: Axes | None = None,
) -> Any:
    """Plot what an encoding adds to scores by distance, one curve for each head.

    Parameters
    ----------
    encoding : str
        Name and options of one or more encodings.
    heads : int
        Number of query heads.
    length : int
        Number of distances, from 0.
    tensors : mapping of str to array, optional
        Learned tensors, by name. By default initial values.
    dim : int
        Width of a head.
    seed : int
        Seed of the initial values.
    ax : matplotlib Axes, optional
        Axes to draw on. By default those of a new figure.

    Returns
    -------
    Axes
        With the curves.

    Raises
    ------
    Error
        The encoding reads tensors with each call, so it has no bias of its own.
    """
    plan = Plan(encoding, heads, dim, max_len=length)
    wanted = [t.name for t in plan.tensors if t.role == "input"]
    if wanted:
        raise Error(f"{encoding} wants {', '.join(wanted)} with each call: it has no bias of its own", "unsupported")
    given = plan.init(seed) if tensors is None else tensors
    zero = np.zeros((1, heads, length, dim), np.float64)
    given = {name: np.asarray(x, np.float64) for name, x in given.items()}
    made = _weights(zero[:, :, :1], zero, encoding, tensors=given, q_pos=[length - 1], k_pos=np.arange(length))
    with np.errstate(divide="ignore"):
        score = np.log(made[0, :, 0, ::-1])
    axes = _axes(ax)
    for head, curve in enumerate(score - score[:, :1]):
        axes.plot(curve, label=f"head {head}")
    axes.set_xlabel("distance")
    axes.set_ylabel("score, from that of distance 0")
    axes.legend()
    return axes


def frequencies(source: ModelSource, *, layers: Sequence[int] = (0,), ax: Axes | None = None) -> Any:
    """Plot the wavelength of each pair of a model, in positions.

    Parameters
    ----------
    source : path, dict or configuration
        A config.json or GGUF file, the dict of a config.json, or a configuration of transformers.
    layers : sequence of int
        Indices of layers.
    ax : matplotlib Axes, optional
        Axes to draw on. By default those of a new figure.

    Returns
    -------
    Axes
        With one curve for each layer.
    """
    axes = _axes(ax)
    for layer in layers:
        r = _rope.from_config(source, layer=layer)
        axes.semilogy(2 * np.pi / r.frequency, label=f"layer {layer}: {r.scaling}")
    if r.trained_length:
        axes.axhline(r.trained_length, linestyle="--", color="grey", label="trained length")
    axes.set_xlabel("pair")
    axes.set_ylabel("wavelength")
    axes.legend()
    return axes


@dataclass(frozen=True, repr=False)
class Picture:
    """A picture of `loci show`, which a notebook shows.

    Attributes
    ----------
    svg : str
        Its text.
    """

    svg: str

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"loci.plot.Picture of {len(self.svg)} characters"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture.

        Parameters
        ----------
        path : path
            File to write, `.svg`.
        """
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.svg)


def _program() -> str:
    found = _find_program()
    if found is None:
        raise Error(
            "there is no program loci, which draws: set LOCI to its path, or install jansson and build the "
            "package again",
            "unsupported",
        )
    return found


def show(
    encoding: str,
    what: str | None = None,
    *,
    heads: int = 8,
    dim: int = 64,
    length: int = 64,
    head: int = 0,
    seed: int = 1,
) -> Picture:
    """Draw what `loci show` draws: scores of all pairs, curves by distance, wavelengths, weights.

    Parameters
    ----------
    encoding : str
        Name and options of one or more encodings, or the path of a config.json or GGUF file.
    what : {"map", "curve", "spectrum", "angles", "embedding", "similarity", "attention", "properties"}, optional
        The picture, by default the first that the encoding has.
    heads : int
        Number of heads.
    dim : int
        Width of a head.
    length : int
        Number of positions.
    head : int
        Index of the head of a map.
    seed : int
        Seed of random numbers.

    Returns
    -------
    Picture
        Its text is `svg`, and `save(path)` writes it. A notebook shows it.

    Raises
    ------
    Error
        There is no program `loci`, or it refuses the arguments: the sentence is its own.
    """
    if not isinstance(encoding, str):
        raise TypeError(f"encoding must be a text such as 'rope:pairing=half', not {type(encoding).__name__}")
    if encoding.startswith("-"):
        raise Error(f"'{encoding}' is no encoding")
    numbers = {"heads": heads, "dim": dim, "len": length, "head": head, "seed": seed}
    options = [f"--{name}={whole(x, name, 0, INT)}" for name, x in numbers.items()]
    if what is not None:
        options.append(f"--what={what}")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "picture.svg")
        try:
            run = subprocess.run(
                [_program(), "show", encoding, *options, "--svg", path], capture_output=True, text=True, check=False
            )
        except OSError as error:
            raise Error(f"the program {error.filename} cannot be run: {error.strerror}", "unsupported") from None
        if run.returncode or not os.path.exists(path):
            said = run.stderr.strip().removeprefix("loci: ").removeprefix("show: ")
            raise Error(said or f"loci show failed with {run.returncode}")
        with open(path, encoding="utf-8") as file:
            return Picture(file.read())
