# SPDX-License-Identifier: MIT
"""Pictures by matplotlib: each takes ax=None, returns the Axes, and shows nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import rope as _rope
from . import weights as _weights
from ._c import Error
from ._plan import Plan
from ._types import ArrayLike, ModelSource, Tensors

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def _axes(ax: Any) -> Any:
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ImportError:
        raise ImportError("loci.plot needs matplotlib: pip install matplotlib") from None
    return pyplot.subplots()[1]


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
