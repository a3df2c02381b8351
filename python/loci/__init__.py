# SPDX-License-Identifier: MIT
"""loci: every positional encoding for Transformers, fused into attention, for numpy and torch.

    o = loci.attention(q, k, v, "rope:pairing=half+alibi")

q, k and v are arrays of numpy or tensors of torch, [batch, heads, rows, width]; o is what they are.
"""

from __future__ import annotations

import importlib as _importlib
import sys as _sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, overload

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
from ._ranks import alone as _alone
from ._ranks import now as _now
from ._weights import weights
from .cache import Cache

__version__ = "0.3.0"
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


_MODULES = ("distributed", "hf", "layers", "nn", "plot", "rope", "seg")


def __getattr__(name: str) -> Any:
    """Modules load when they are first used: none of them is needed for attention()."""
    if name in _MODULES:
        return _importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module 'loci' has no attribute '{name}'")


def __dir__() -> Sequence[str]:
    return sorted((*__all__, *_MODULES))


Array = TypeVar("Array")  # of numpy or torch: what goes in comes out

if TYPE_CHECKING:
    from typing_extensions import Unpack


class _Options(TypedDict, total=False):
    """Of attention(), for overloads."""

    tensors: Mapping[str, Any] | None
    causal: bool
    window_size: Sequence[int]
    scale: float | None
    softcap: float | None
    sinks: Any
    pos: Any
    q_pos: Any
    k_pos: Any
    coords: Any
    q_coords: Any
    k_coords: Any
    seg: Any
    q_seg: Any
    k_seg: Any
    k_lens: Any
    cu_seqlens_q: Any
    cu_seqlens_k: Any
    mask: Any
    k_first: Any
    k_last: Any
    layout: str
    max_len: int | None
    keys_rotated: bool
    fast: bool
    out: Any
    shares: Any
    key_shares: Any
    group: Any
    gather: bool


def _is_torch(x: Any) -> bool:
    torch = _sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    encoding: str | Plan = ...,
    *,
    return_lse: Literal[False] = ...,
    **options: Unpack[_Options],
) -> Array: ...  # with tape in the encoding, (o, ae)


@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    encoding: str | Plan = ...,
    *,
    return_lse: Literal[True],
    **options: Unpack[_Options],
) -> tuple[Array, ...]: ...


@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    encoding: str | Plan = ...,
    *,
    return_lse: bool,
    **options: Unpack[_Options],
) -> Any: ...


def attention(
    q: Any,
    k: Any,
    v: Any,
    encoding: str | Plan = "nope",
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
    shares: Any = None,
    key_shares: Any = None,
    group: Any = None,
    gather: bool = False,
) -> Any:
    """softmax(scale q k + what the encoding adds) v, with what the encoding turns: forward, and through torch's
    autograd backward.  With shares the arrays are this process's part of those of a group: loci.distributed."""
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
    if shares is not None or group is not None or _now.said is not None:
        from . import distributed

        over = {"group": group, "shares": shares, "key_shares": key_shares, "gather": gather}
        return distributed.attention(q, k, v, encoding, given, arguments, return_lse, out, over)
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
    encoding: str | Plan = "nope",
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
    shares: Any = None,
    key_shares: Any = None,
    group: Any = None,
    gather: bool = False,
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
    if shares is not None or group is not None or _now.said is not None:
        from . import distributed

        over = {"group": group, "shares": shares, "key_shares": key_shares, "gather": gather}
        douts = dout, dlse, dae
        return distributed.attention_backward(douts, out, lse, ae, q, k, v, encoding, given, arguments, over)
    opened = _attend.open_call(q, k, v, encoding, given=given, **arguments)
    return _attend.backward(opened, _attend.check_grads(opened, dout, out, lse, ae, dlse, dae))


def linear_attention(
    q: Any,
    k: Any,
    v: Any,
    encoding: str | Plan = "nope",
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
    _alone("linear attention sums up all rows before")
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
    x: Array,
    encoding: str | Plan,
    *,
    pos: Any = None,
    coords: Any = None,
    role: str = "query",
    tensors: Mapping[str, Any] | None = None,
    layout: str = "bhld",
    max_len: int | None = None,
) -> Array:
    """Rows turned by their positions, as queries, as keys, or as a cache keeps its keys."""
    if pos is None and coords is None:
        _alone("pos is missing")
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

        made: Array = _torch_calls.rows(rotate, x, encoding, arguments, _rows.open_rotation)
        return made
    opened = _rows.open_rotation(x, encoding, **arguments)
    turned: Array = opened.forward(opened.x, opened.tensors)
    return turned


def embed(
    x: Array,
    encoding: str | Plan,
    *,
    pos: Any = None,
    tensors: Mapping[str, Any] | None = None,
    max_len: int | None = None,
) -> Array:
    """x + p(pos), for x [batch, rows, width] or [rows, width]."""
    if pos is None:
        _alone("pos is missing")
    arguments = {"pos": pos, "tensors": tensors, "max_len": max_len}
    if _is_torch(x):
        from . import _torch_calls

        made: Array = _torch_calls.rows(embed, x, encoding, arguments, _rows.open_embedding)
        return made
    opened = _rows.open_embedding(x, encoding, **arguments)
    moved: Array = opened.forward(opened.x, opened.tensors)
    return moved
