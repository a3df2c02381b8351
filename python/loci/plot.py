# SPDX-License-Identifier: MIT
"""Pictures by matplotlib: each takes ax=None, returns the Axes, and shows nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from . import rope as _rope
from . import weights as _weights
from ._c import Error
from ._plan import Plan


def _axes(ax: Any) -> Any:
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ImportError:
        raise ImportError("loci.plot needs matplotlib: pip install matplotlib") from None
    return pyplot.subplots()[1]


def weights(q: Any, k: Any, encoding: str = "nope", row: int = -1, *, ax: Any = None, **options: Any) -> Any:
    """What a row gives to each key, a curve for each head of the first batch."""
    made = np.asarray(_weights(q, k, encoding, rows=[row], **options))[0, :, 0]
    axes = _axes(ax)
    for head, curve in enumerate(made):
        axes.plot(curve, label=f"head {head}")
    axes.set_xlabel("key")
    axes.set_ylabel("weight")
    axes.legend()
    return axes


def bias(
    encoding: str, heads: int, length: int, *, tensors: Any = None, dim: int = 64, seed: int = 0, ax: Any = None
) -> Any:
    """What the encoding adds to the score of a key so far behind: queries and keys are 0, distance is all there is."""
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


def frequencies(source: Any, *, layers: Sequence[int] = (0,), ax: Any = None) -> Any:
    """Wavelengths of a model's pairs, in positions."""
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
