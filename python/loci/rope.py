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
from ._c import Error
from ._plan import Plan, dtype_name, thread


@dataclass(frozen=True)
class Rope:
    """What a layer of a model does.  `encoding` is for loci.attention() and loci.rotate()."""

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
    files = _c.files()
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


def from_config(source: Any, *, layer: int = 0, length: float = 0) -> Rope:
    """What one layer does: source is a config.json or a GGUF file, a dict, or a configuration of transformers."""
    model = _open(source)
    try:
        return _read(model, layer, length)
    finally:
        _c.files().model_close(model)


def layers(source: Any, *, length: float = 0) -> list[Rope]:
    """One for each layer."""
    model = _open(source)
    try:
        return [_read(model, layer, length) for layer in range(_c.files().model_layers(model))]
    finally:
        _c.files().model_close(model)


def table(
    source: Any, rows: int, *, layout: str = "half", dtype: Any = "float32", pos: Any = None, layer: int = 0
) -> tuple[Any, Any]:
    """cos and sin of every position, [rows, width]: layout half (as Hugging Face has them: frequencies twice, one after
    the other), interleaved (each frequency twice), or once."""
    layouts = ("half", "interleaved", "once")
    if layout not in layouts:
        raise Error(f"layout must be one of {', '.join(layouts)}, not '{layout}'")
    if isinstance(source, str) and not os.path.exists(source):
        plan = _plan_of(source)
        frequency, factor = plan.frequencies, plan.attention_factor
    else:
        r = from_config(source, layer=layer, length=0)
        frequency, factor = r.frequency, r.attention_factor
    if not frequency.size:
        raise Error("nothing turns here, or its frequencies are learned: there is no table")
    at = np.arange(rows) if pos is None else np.asarray(pos)
    if at.shape != (rows,):
        raise Error(f"pos has the shape {list(at.shape)}, not [{rows}]")
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
