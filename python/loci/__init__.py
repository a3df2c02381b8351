# SPDX-License-Identifier: MIT
"""loci: every positional encoding for Transformers, fused into attention, for numpy and torch.

    o = loci.attention(q, k, v, "rope:pairing=half+alibi")

q, k and v are arrays of numpy or tensors of torch, [batch, heads, rows, width]; o is what they are.
"""

from __future__ import annotations

import importlib as _importlib
import sys as _sys
from collections.abc import Mapping, Sequence
from typing import Any

from . import _attend, _linear, _rows
from ._c import Error
from ._c import lib as _lib
from ._linear import State
from ._plan import (
    Encoding,
    Option,
    Plan,
    Tensor,
    describe,
    get_num_threads,
    isas,
    release,
    set_num_threads,
)
from ._plan import list_encodings as list
from ._weights import weights
from .cache import Cache

__version__ = "0.2.0"
library_version: str = _lib.version_text().decode()

__all__ = [
    "Cache",
    "Encoding",
    "Error",
    "Option",
    "Plan",
    "State",
    "Tensor",
    "attention",
    "attention_backward",
    "describe",
    "embed",
    "get_num_threads",
    "isas",
    "library_version",
    "linear_attention",
    "list",
    "release",
    "rotate",
    "set_num_threads",
    "weights",
]


_MODULES = ("hf", "layers", "nn", "plot", "rope", "seg")


def __getattr__(name: str) -> Any:
    """Modules load when they are first used: none of them is needed for attention()."""
    if name in _MODULES:
        return _importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module 'loci' has no attribute '{name}'")


def __dir__() -> Sequence[str]:
    return sorted((*__all__, *_MODULES))


def _is_torch(x: Any) -> bool:
    torch = _sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def attention(
    q: Any,
    k: Any,
    v: Any,
    encoding: str = "nope",
    *,
    tensors: Mapping[str, Any] | None = None,
    causal: bool = True,
    window_size: Sequence[int] = (-1, -1),
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Any = None,
    pos: Any = None,
    q_pos: Any = None,
    k_pos: Any = None,
    coords: Any = None,
    q_coords: Any = None,
    k_coords: Any = None,
    seg: Any = None,
    q_seg: Any = None,
    k_seg: Any = None,
    k_lens: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    mask: Any = None,
    k_first: Any = None,
    k_last: Any = None,
    layout: str = "bhld",
    max_len: int | None = None,
    keys_rotated: bool = False,
    fast: bool = False,
    return_lse: bool = False,
    out: Any = None,
) -> Any:
    """softmax(scale q k + what the encoding adds) v, with what the encoding turns: forward, and through torch's
    autograd backward."""
    given = {
        "pos": pos,
        "q_pos": q_pos,
        "k_pos": k_pos,
        "coords": coords,
        "q_coords": q_coords,
        "k_coords": k_coords,
        "seg": seg,
        "q_seg": q_seg,
        "k_seg": k_seg,
        "k_lens": k_lens,
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
        "k_first": k_first,
        "k_last": k_last,
    }
    arguments = {
        "tensors": tensors,
        "mask": mask,
        "softcap": softcap,
        "sinks": sinks,
        "layout": layout,
        "causal": causal,
        "window_size": window_size,
        "scale": scale,
        "max_len": max_len,
        "keys_rotated": keys_rotated,
        "fast": fast,
    }
    if _is_torch(q):
        from . import _torch_calls

        return _torch_calls.attention(q, k, v, encoding, given, arguments, return_lse, out)
    opened = _attend.open_call(q, k, v, encoding, given=given, **arguments)
    return _attend.results(*opened.forward(_attend.check_out(opened, out), return_lse))


def attention_backward(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    encoding: str = "nope",
    *,
    dlse: Any = None,
    dae: Any = None,
    ae: Any = None,
    tensors: Mapping[str, Any] | None = None,
    causal: bool = True,
    window_size: Sequence[int] = (-1, -1),
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Any = None,
    pos: Any = None,
    q_pos: Any = None,
    k_pos: Any = None,
    coords: Any = None,
    q_coords: Any = None,
    k_coords: Any = None,
    seg: Any = None,
    q_seg: Any = None,
    k_seg: Any = None,
    k_lens: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    mask: Any = None,
    k_first: Any = None,
    k_last: Any = None,
    layout: str = "bhld",
    max_len: int | None = None,
    keys_rotated: bool = False,
    fast: bool = False,
) -> tuple[Any, Any, Any, dict[str, Any]]:
    """Gradients of q, k, v and the tensors from those of the outputs of attention(..., return_lse=True)."""
    given = {
        "pos": pos,
        "q_pos": q_pos,
        "k_pos": k_pos,
        "coords": coords,
        "q_coords": q_coords,
        "k_coords": k_coords,
        "seg": seg,
        "q_seg": q_seg,
        "k_seg": k_seg,
        "k_lens": k_lens,
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
        "k_first": k_first,
        "k_last": k_last,
    }
    arguments = {
        "tensors": tensors,
        "mask": mask,
        "softcap": softcap,
        "sinks": sinks,
        "layout": layout,
        "causal": causal,
        "window_size": window_size,
        "scale": scale,
        "max_len": max_len,
        "keys_rotated": keys_rotated,
        "fast": fast,
    }
    opened = _attend.open_call(q, k, v, encoding, given=given, **arguments)
    return _attend.backward(opened, dout, out, lse, ae, dlse, dae)


def linear_attention(
    q: Any,
    k: Any,
    v: Any,
    encoding: str = "nope",
    *,
    causal: bool = True,
    tensors: Mapping[str, Any] | None = None,
    pos: Any = None,
    q_pos: Any = None,
    k_pos: Any = None,
    coords: Any = None,
    q_coords: Any = None,
    k_coords: Any = None,
    seg: Any = None,
    q_seg: Any = None,
    k_seg: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    layout: str = "bhld",
    max_len: int | None = None,
    state: State | None = None,
    return_state: bool = False,
) -> Any:
    """Attention with elu + 1 in the place of the softmax, in linear time; a state goes on where a call ended."""
    given = {
        "pos": pos,
        "q_pos": q_pos,
        "k_pos": k_pos,
        "coords": coords,
        "q_coords": q_coords,
        "k_coords": k_coords,
        "seg": seg,
        "q_seg": q_seg,
        "k_seg": k_seg,
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
    }
    arguments: dict[str, Any] = {"tensors": tensors, "layout": layout, "causal": causal, "max_len": max_len}
    if _is_torch(q):
        from . import _torch_calls

        return _torch_calls.linear_attention(q, k, v, encoding, given, arguments, state, return_state)
    opened = _attend.open_call(q, k, v, encoding, given=given, stage="linear_attention", **arguments)
    return _linear.results(*_linear.forward(opened, state, return_state))


def rotate(
    x: Any,
    encoding: str,
    *,
    pos: Any = None,
    coords: Any = None,
    role: str = "query",
    tensors: Mapping[str, Any] | None = None,
    layout: str = "bhld",
    max_len: int | None = None,
) -> Any:
    """Rows turned by their positions, as queries, as keys, or as a cache keeps its keys."""
    arguments = {
        "pos": pos,
        "coords": coords,
        "role": role,
        "tensors": tensors,
        "layout": layout,
        "max_len": max_len,
    }
    if _is_torch(x):
        from . import _torch_calls

        return _torch_calls.rows(rotate, x, encoding, arguments, _rows.open_rotation)
    opened = _rows.open_rotation(x, encoding, **arguments)
    return opened.forward(opened.x, opened.tensors)


def embed(
    x: Any, encoding: str, *, pos: Any = None, tensors: Mapping[str, Any] | None = None, max_len: int | None = None
) -> Any:
    """x + p(pos), for x [batch, rows, width] or [rows, width]."""
    arguments = {"pos": pos, "tensors": tensors, "max_len": max_len}
    if _is_torch(x):
        from . import _torch_calls

        return _torch_calls.rows(embed, x, encoding, arguments, _rows.open_embedding)
    opened = _rows.open_embedding(x, encoding, **arguments)
    return opened.forward(opened.x, opened.tensors)
