# SPDX-License-Identifier: MIT
"""How a model's own files say that it turns queries and keys."""

from __future__ import annotations

import ctypes as c
import json
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _c
from ._arrays import reals
from ._c import Error
from ._numbers import INT, whole
from ._plan import Plan, dtype_name, thread
from ._types import DTypeLike, ModelSource, RealArrayLike


@dataclass(frozen=True)
class Rope:
    """What one layer of a model does to queries and keys, and to scores.

    Attributes
    ----------
    encoding : str
        Text for `loci.attention()` and `loci.rotate()`.
    attention : str
        The same, with what else changes scores and weights.
    rotates : bool
        The layer rotates.
    pairing : {"half", "interleaved"}
        Which channels make a pair.
    head_dim : int
        Width of a head.
    dim : int
        How many channels rotate.
    offset : int
        First channel that rotates.
    heads : int or None
        Number of query heads; None if the file does not tell.
    base : float
        Base of the frequencies, before any scaling.
    frequency : numpy.ndarray [dim / 2]
        Radians per position of each pair, after scaling.
    attention_factor : float
        Factor on rotated q and k.
    softmax_factor : float
        Factor on scores. `scale` includes it.
    sections : (int, int, int)
        Pairs of time, height and width for mrope; zeros without it.
    order : {"blocks", "interleaved"}
        Order of these sections.
    layer : str
        Kind of layer in the words of config.json.
    scaling : str
        Name of the scaling, `none` included.
    trained_length : float or None
        Length of training before the scaling.
    warmth : float
        Queries are multiplied by 1 + warmth ln(1 + floor((pos + warm_shift) / warm_length)); 0 is not at all.
    warm_length : float
        See warmth.
    warm_shift : float
        See warmth.
    scale : float or None
        Factor on the product of q and k; None if the file does not tell.
    softcap : float or None
        Cap of scores.
    sink : bool
        A learned logit of each head joins the softmax.
    window : int or None
        Keys that a row sees, its own included; None is all.
    chunk : int or None
        A row sees keys of its own chunk of so many positions; None is all.
    values : bool
        Values are rotated as keys are, which the text does not say.
    slopes : numpy.ndarray [heads] or None
        Slopes for alibi.
    note : str or None
        One sentence about what no field says.
    """

    encoding: str
    attention: str
    rotates: bool
    pairing: str
    head_dim: int
    dim: int
    offset: int
    heads: int | None
    base: float
    frequency: np.ndarray[Any, np.dtype[np.float64]]
    attention_factor: float
    softmax_factor: float
    sections: tuple[int, int, int]
    order: str
    layer: str
    scaling: str
    trained_length: float | None
    warmth: float
    warm_length: float
    warm_shift: float
    scale: float | None
    softcap: float | None
    sink: bool
    window: int | None
    chunk: int | None
    values: bool
    slopes: np.ndarray[Any, np.dtype[np.float64]] | None
    note: str | None


def _text(bytes_: bytes | None) -> str:
    return bytes_.decode() if bytes_ else ""


def _open(source: Any) -> Any:
    """The model of a file, a dict, or a configuration of transformers."""
    files = _c.files()
    model = c.c_void_p()
    if isinstance(source, (str, os.PathLike)):
        path = os.fspath(source)
        status = files.model_open(c.byref(model), os.fsencode(path), thread.error_at)
    else:
        if hasattr(source, "to_dict"):
            source = source.to_dict()
        if not isinstance(source, dict):
            kind = type(source).__name__
            raise TypeError(f"a model is a path, a dict or a configuration of transformers, not {kind}")
        text = json.dumps(source, default=str).encode()
        status = files.model_parse(c.byref(model), text, len(text), thread.error_at)
    _c.check(status, thread.error)
    return model


def _read(model: Any, layer: int, length: float) -> Rope:
    files, layer = _c.files(), whole(layer, "layer", 0, INT)
    r = _c.Rope()
    _c.check(files.model_rope(model, layer, float(length), c.byref(r), thread.error_at), thread.error)
    try:
        half = r.dim // 2
        frequency = np.array(r.frequency[:half]) if r.frequency and half else np.empty(0)
        slopes = np.array(r.slopes[: r.heads]) if r.slopes else None
        return Rope(
            encoding=_text(r.encoding),
            attention=_text(r.attention),
            rotates=bool(r.rotates),
            pairing="interleaved" if r.interleaved else "half",
            head_dim=r.head_dim,
            dim=r.dim,
            offset=r.offset,
            heads=r.heads or None,
            base=r.base,
            frequency=frequency,
            attention_factor=r.attention_factor,
            softmax_factor=r.softmax_factor,
            sections=(r.sections[0], r.sections[1], r.sections[2]),
            order="interleaved" if r.spread else "blocks",
            layer=_text(r.layer),
            scaling=_text(r.scaling),
            trained_length=r.trained_length or None,
            warmth=r.warmth,
            warm_length=r.warm_length,
            warm_shift=r.warm_shift,
            scale=r.scale or None,
            softcap=r.softcap or None,
            sink=bool(r.sink),
            window=r.window or None,
            chunk=r.chunk or None,
            values=bool(r.values),
            slopes=slopes,
            note=_text(r.note) or None,
        )
    finally:
        files.rope_free(c.byref(r))


def from_config(source: ModelSource, *, layer: int = 0, length: float = 0) -> Rope:
    """Read what one layer of a model does.

    Parameters
    ----------
    source : path, dict or configuration
        A config.json or GGUF file, the dict of a config.json, or a configuration of transformers.
    layer : int
        Index of the layer, from 0.
    length : float
        Length of the call, for scalings that depend on it. 0 is the trained length.

    Returns
    -------
    Rope
        Of this layer.

    Raises
    ------
    Error
        The file cannot be read, or its model or scaling is unknown.
    """
    model = _open(source)
    try:
        return _read(model, layer, length)
    finally:
        _c.files().model_close(model)


def layers(source: ModelSource, *, length: float = 0) -> list[Rope]:
    """Read what each layer of a model does.

    Parameters
    ----------
    source : path, dict or configuration
        A config.json or GGUF file, the dict of a config.json, or a configuration of transformers.
    length : float
        Length of the call, for scalings that depend on it. 0 is the trained length.

    Returns
    -------
    list of Rope
        One for each layer.

    Raises
    ------
    Error
        The file cannot be read, or its model or scaling is unknown.
    """
    model = _open(source)
    try:
        return [_read(model, layer, length) for layer in range(_c.files().model_layers(model))]
    finally:
        _c.files().model_close(model)


def table(
    source: ModelSource,
    rows: int,
    *,
    layout: str = "half",
    dtype: DTypeLike = "float32",
    pos: RealArrayLike | None = None,
    layer: int = 0,
) -> tuple[Any, Any]:
    """Compute cosines and sines of positions.

    Parameters
    ----------
    source : str, path, dict or configuration
        Text of an encoding, or a model as in `from_config()`.
    rows : int
        Number of positions.
    layout : {"half", "interleaved", "once"}
        half: all frequencies, twice, as Hugging Face has them. interleaved: each frequency twice. once: each once.
    dtype : str or dtype
        Type of the tables.
    pos : array [rows], optional
        Positions. By default 0, 1, 2, ...
    layer : int
        Index of the layer, from 0.

    Returns
    -------
    cos, sin : numpy.ndarray [rows, width]
        The width is that of all rotated channels, or half of it with `once`.

    Raises
    ------
    Error
        Nothing rotates, or frequencies are learned.
    """
    layouts = ("half", "interleaved", "once")
    if layout not in layouts:
        raise Error(f"layout must be one of {', '.join(layouts)}, not '{layout}'")
    rows = whole(rows, "rows", 0, INT)
    if isinstance(source, str) and not os.path.exists(source):
        plan = _plan_of(source)
        frequency, factor = plan.frequencies, plan.attention_factor
    else:
        r = from_config(source, layer=layer, length=0)
        frequency, factor = r.frequency, r.attention_factor
    if not frequency.size:
        raise Error("nothing turns here, or its frequencies are learned: there is no table")
    at = np.arange(rows) if pos is None else reals(pos, "pos", ((rows,),))
    phi = np.outer(at.astype(np.float64), frequency)
    cos, sin = np.cos(phi) * factor, np.sin(phi) * factor
    if layout == "half":
        cos, sin = np.concatenate((cos, cos), 1), np.concatenate((sin, sin), 1)
    elif layout == "interleaved":
        cos, sin = np.repeat(cos, 2, 1), np.repeat(sin, 2, 1)
    from ._numpy import Numpy

    to = Numpy.dtype_of(dtype_name(dtype))
    return cos.astype(to), sin.astype(to)


def _plan_of(encoding: str) -> Plan:
    """Of a text alone the width is that of its options, or 64."""
    return Plan(encoding, 1, 64, stage="rotate")
