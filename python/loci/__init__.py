# SPDX-License-Identifier: MIT
"""loci: every positional encoding for Transformers, fused into attention, for numpy and torch.

    o = loci.attention(q, k, v, "rope:pairing=half+alibi")

q, k and v are arrays of numpy or tensors of torch, [batch, heads, rows, width]; o is what they are.
"""

from __future__ import annotations

import functools as _functools
import importlib as _importlib
import sys as _sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, overload

from . import _attend, _linear, _rows
from ._c import Error
from ._c import lib as _lib
from ._fallback import FallbackWarning
from ._linear import State
from ._masks import MASKS as _MASKS
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
from ._types import ArrayLike, GroupLike, IntArrayLike, RealArrayLike, Tensors
from ._weights import weights
from .cache import Cache

__version__ = "0.3.0"
library_version: str = _lib.version_text().decode()

__all__ = [
    "Cache",
    "Encoding",
    "Error",
    "FallbackWarning",
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
    "rotate_by",
    "sdpa",
    "set_num_threads",
    "weights",
]


_MODULES = ("distributed", "flash_attn", "gpu", "hf", "lab", "layers", "nn", "plot", "rope", "seg")


def __getattr__(name: str) -> Any:
    """Modules load when they are first used: none of them is needed for attention()."""
    if name in _MODULES:
        return _importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module 'loci' has no attribute '{name}'")


def __dir__() -> Sequence[str]:
    return sorted((*__all__, *_MODULES))


Array = TypeVar("Array", bound=ArrayLike)  # of numpy or torch: what goes in comes out

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._sdpa import SDPA
    from .gpu import Device


class _Options(TypedDict, total=False):
    """Of attention(), for overloads."""

    tensors: Tensors | None
    causal: bool
    window_size: Sequence[int]
    scale: float | None
    softcap: float | None
    sinks: ArrayLike | None
    pos: IntArrayLike | None
    q_pos: IntArrayLike | None
    k_pos: IntArrayLike | None
    coords: RealArrayLike | None
    q_coords: RealArrayLike | None
    k_coords: RealArrayLike | None
    seg: IntArrayLike | None
    q_seg: IntArrayLike | None
    k_seg: IntArrayLike | None
    k_lens: int | IntArrayLike | None
    cu_seqlens_q: IntArrayLike | None
    cu_seqlens_k: IntArrayLike | None
    mask: ArrayLike | None
    k_first: IntArrayLike | None
    k_last: IntArrayLike | None
    pages: IntArrayLike | None
    layout: str
    max_len: int | None
    keys_rotated: bool
    fast: bool
    dropout_p: float
    dropout_seed: int | None
    device: str | Device | None
    out: ArrayLike | None
    shares: Iterable[Iterable[int]] | None
    key_shares: Iterable[Iterable[int]] | None
    group: GroupLike | None
    gather: bool


# Of attention() and attention_backward(), beside what says who sees whom.
_OPTIONS = (
    *("tensors", "mask", "softcap", "sinks", "layout", "causal", "window_size"),
    *("scale", "max_len", "keys_rotated", "fast", "dropout_p", "dropout_seed", "device"),
)
_LINEAR_MASKS = tuple(name for name in _MASKS if name not in ("k_lens", "k_first", "k_last", "pages"))


def _named(names: tuple[str, ...], *values: Any) -> dict[str, Any]:
    """Arguments by their names.  locals() would do, but torch.compile does not trace it."""
    return dict(zip(names, values, strict=True))


def _id_of(device: Any) -> Any:
    return getattr(device, "id", device)


def _is_torch(x: Any) -> bool:
    torch = _sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


@overload
def attention(
    q: Array,
    k: Array,
    v: Array | None,
    encoding: str | Plan = ...,
    *,
    return_lse: Literal[False] = ...,
    **options: Unpack[_Options],
) -> Array: ...  # with tape in the encoding, (o, ae)


@overload
def attention(
    q: Array,
    k: Array,
    v: Array | None,
    encoding: str | Plan = ...,
    *,
    return_lse: Literal[True],
    **options: Unpack[_Options],
) -> tuple[Array, ...]: ...


@overload
def attention(
    q: Array,
    k: Array,
    v: Array | None,
    encoding: str | Plan = ...,
    *,
    return_lse: bool,
    **options: Unpack[_Options],
) -> Any: ...


def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike | None,
    encoding: str | Plan = "nope",
    *,
    tensors: Tensors | None = None,
    causal: bool = True,
    window_size: Sequence[int] = (-1, -1),
    scale: float | None = None,
    softcap: float | None = None,
    sinks: ArrayLike | None = None,
    pos: IntArrayLike | None = None,
    q_pos: IntArrayLike | None = None,
    k_pos: IntArrayLike | None = None,
    coords: RealArrayLike | None = None,
    q_coords: RealArrayLike | None = None,
    k_coords: RealArrayLike | None = None,
    seg: IntArrayLike | None = None,
    q_seg: IntArrayLike | None = None,
    k_seg: IntArrayLike | None = None,
    k_lens: int | IntArrayLike | None = None,
    cu_seqlens_q: IntArrayLike | None = None,
    cu_seqlens_k: IntArrayLike | None = None,
    mask: ArrayLike | None = None,
    k_first: IntArrayLike | None = None,
    k_last: IntArrayLike | None = None,
    pages: IntArrayLike | None = None,
    layout: str = "bhld",
    max_len: int | None = None,
    keys_rotated: bool = False,
    fast: bool = False,
    dropout_p: float = 0.0,
    dropout_seed: int | None = None,
    device: str | Device | None = None,
    return_lse: bool = False,
    out: ArrayLike | None = None,
    shares: Iterable[Iterable[int]] | None = None,
    key_shares: Iterable[Iterable[int]] | None = None,
    group: GroupLike | None = None,
    gather: bool = False,
    **others: Any,
) -> Any:
    """Compute attention with a positional encoding: softmax(scale q k + bias) v.

    The encoding rotates q and k, adds biases to scores, or both, inside the call: no [rows, keys] array is made.
    Torch tensors get gradients by autograd. With `shares` the arrays are this process's part of those of a group:
    see `loci.distributed`.

    Parameters
    ----------
    q : array [batch, heads, rows, dim]
        Queries, in the order of axes that `layout` says.
    k : array [batch, kv_heads, keys, dim]
        Keys. `heads` is a multiple of `kv_heads`.
    v : array [batch, kv_heads, keys, value_dim]
        Values, which may be a view of k. None with a plan that has `values_in_keys`.
    encoding : str or Plan
        Name and options of one or more encodings, such as `"rope:pairing=half+alibi"`, or a plan. `"nope"` is no
        encoding.
    tensors : mapping of str to array, optional
        Tensors that the encoding learns or reads, by name (`"t5.table"`). `Plan.tensors` lists names and shapes.
    causal : bool
        Hide later keys from each row. The last row is aligned with the last key.
    window_size : (int, int)
        Keys that a row sees to its left and right. -1 leaves a side open; 0 is the own position only.
    scale : float, optional
        Factor on the product of q and k. None is the encoding's own, by default 1/sqrt(dim). 0 is refused.
    softcap : float, optional
        Cap c of the product: c tanh(score / c). None or 0 is no cap.
    sinks : array [heads], optional
        Logit of each head that joins the softmax and takes weight without a value. Logits of each row have a shape
        that broadcasts to that of `lse`.
    pos : int array [rows] or [batch, rows], optional
        Positions of rows and keys alike, as many of each. By default keys count from 0 and the last row is at the
        last key.
    q_pos : int array [rows] or [batch, rows], optional
        Positions of rows, given together with `k_pos`.
    k_pos : int array [keys] or [batch, keys], optional
        Positions of keys, given together with `q_pos`.
    coords : array [axes, rows] or [batch, axes, rows], optional
        Coordinates of rows and keys alike, for encodings of several axes.
    q_coords : array [axes, rows] or [batch, axes, rows], optional
        Coordinates of rows, given together with `k_coords`.
    k_coords : array [axes, keys] or [batch, axes, keys], optional
        Coordinates of keys, given together with `q_coords`.
    seg : int array [rows] or [batch, rows], optional
        Segments of rows and keys alike. A row sees keys of its own segment; negative is padding.
    q_seg : int array [rows] or [batch, rows], optional
        Segments of rows, given together with `k_seg`.
    k_seg : int array [keys] or [batch, keys], optional
        Segments of keys, given together with `q_seg`.
    k_lens : int or int array [batch], optional
        Number of valid keys of each batch entry or packed sequence, or one number for all.
    cu_seqlens_q : int array [sequences + 1], optional
        Where packed sequences of rows start, and the end of the last one.
    cu_seqlens_k : int array [sequences + 1], optional
        The same for keys. By default keys are packed like rows.
    mask : array, optional
        Dense mask that broadcasts to [batch, heads, rows, keys]. True is visible; numbers are added to scores and
        have a gradient. It applies beside `causal`.
    k_first : int array, optional
        First key that each row sees. It broadcasts to [batch, rows].
    k_last : int array, optional
        Last key that each row sees. It broadcasts to [batch, rows].
    pages : int array [batch, pages of an entry], optional
        Keys and values are in pages: k is [pages, kv_heads, page length, dim], and row b of this table lists the
        pages of entry b, in order. With `k_lens`, entries that hold no key are not read. Forward only.
    layout : {"bhld", "blhd", "thd"}
        Order of axes: batch (b), heads (h), length (l), width (d). `thd` is packed sequences, without a batch.
    max_len : int, optional
        Context length, for encodings whose rule depends on one.
    keys_rotated : bool
        k is rotated by its positions already, as `rotate(k, role="cache")` returns it.
    fast : bool
        For bfloat16 only: use the CPU's bf16 dot products where it has them. Bits then differ.
    dropout_p : float
        Drop each weight with this probability, from 0 and below 1, and divide the others by 1 - dropout_p. For
        training.
    dropout_seed : int, optional
        Which weights are dropped. Torch tensors have a default: a number drawn from torch's generator, which
        `torch.manual_seed()` sets and `torch.utils.checkpoint` replays.
    device : str or loci.gpu.Device, optional
        Where to compute: `"cuda:0"`, `"opencl:0"`, `"host"` or `"cpu"`. Arrays are copied there and results back, and
        bits stay the same. By default where q is: tensors on a GPU are computed there, in torch's current stream.
    return_lse : bool
        Also return the logarithm of the sum of exponentials of each row, [batch, heads, rows].
    out : array, optional
        Array for the result. It must be writable, have the shape and type of the result, and be dense along its
        last axis.
    shares : list of (first, count, rank), optional
        Which rank has which rows, from `loci.distributed.share_out()`. The arrays then hold the rows of this rank.
    key_shares : list of (first, count, rank), optional
        Which rank has which keys, where that differs from `shares`.
    group : Group or ProcessGroup, optional
        Ranks that attend together. By default all processes.
    gather : bool
        Collect all keys that this rank's rows see at once, instead of chunk by chunk.
    **others
        Not accepted. Keywords of other libraries raise a TypeError that names loci's own.

    Returns
    -------
    o : array [batch, heads, rows, value_dim]
        Of the library and type of q.
    lse : array [batch, heads, rows]
        With `return_lse` only. Encodings that replace the softmax return the weight that is left instead.
    ae : array [batch, heads, rows, dim / 2, 2]
        With `tape` only: the averages of its states.

    Raises
    ------
    Error
        An argument has a wrong shape, type or value, or options exclude each other.
    TypeError
        An argument has a wrong Python type.

    Examples
    --------
    >>> import numpy as np, loci
    >>> q = np.ones((1, 8, 500, 64), np.float32)
    >>> k = v = np.ones((1, 2, 500, 64), np.float32)
    >>> loci.attention(q, k, v, "rope:pairing=half+alibi").shape
    (1, 8, 500, 64)
    >>> table = np.zeros((32, 8), np.float32)
    >>> loci.attention(q, k, v, "t5:bidirectional=1", tensors={"t5.table": table}, causal=False).shape
    (1, 8, 500, 64)
    """
    if others:
        _attend.refuse_keywords("attention", others)
    v = _attend.values_of(k, v, encoding)
    given = _named(
        *(_MASKS, pos, q_pos, k_pos, coords, q_coords, k_coords, seg, q_seg, k_seg),
        *(k_lens, cu_seqlens_q, cu_seqlens_k, k_first, k_last, pages),
    )
    options = tensors, mask, softcap, sinks, layout, causal, window_size, scale, max_len, keys_rotated, fast
    arguments = _named(_OPTIONS, *options, dropout_p, dropout_seed, _id_of(device))
    if sinks is not None and len(getattr(sinks, "shape", ())) > 1:
        from . import _sinks

        over = {"group": group, "shares": shares, "key_shares": key_shares, "gather": gather}
        same: dict[str, Any] = {**given, **arguments, **over, "sinks": None, "return_lse": True}
        call = _functools.partial(attention, q, k, v, encoding, **same)
        return _sinks.by_row(sinks, q, encoding, layout, return_lse, out, call)
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
    dout: ArrayLike,
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    out: ArrayLike,
    lse: ArrayLike,
    encoding: str | Plan = "nope",
    *,
    dlse: ArrayLike | None = None,
    dae: ArrayLike | None = None,
    ae: ArrayLike | None = None,
    tensors: Tensors | None = None,
    causal: bool = True,
    window_size: Sequence[int] = (-1, -1),
    scale: float | None = None,
    softcap: float | None = None,
    sinks: ArrayLike | None = None,
    pos: IntArrayLike | None = None,
    q_pos: IntArrayLike | None = None,
    k_pos: IntArrayLike | None = None,
    coords: RealArrayLike | None = None,
    q_coords: RealArrayLike | None = None,
    k_coords: RealArrayLike | None = None,
    seg: IntArrayLike | None = None,
    q_seg: IntArrayLike | None = None,
    k_seg: IntArrayLike | None = None,
    k_lens: int | IntArrayLike | None = None,
    cu_seqlens_q: IntArrayLike | None = None,
    cu_seqlens_k: IntArrayLike | None = None,
    mask: ArrayLike | None = None,
    k_first: IntArrayLike | None = None,
    k_last: IntArrayLike | None = None,
    layout: str = "bhld",
    max_len: int | None = None,
    keys_rotated: bool = False,
    fast: bool = False,
    dropout_p: float = 0.0,
    dropout_seed: int | None = None,
    device: str | Device | None = None,
    shares: Iterable[Iterable[int]] | None = None,
    key_shares: Iterable[Iterable[int]] | None = None,
    group: GroupLike | None = None,
    gather: bool = False,
) -> tuple[Any, Any, Any, dict[str, Any]]:
    """Compute the gradients of `attention()` for numpy arrays.

    Pass the arguments of the forward call, and its outputs with `return_lse=True`.

    Parameters
    ----------
    dout : array [batch, heads, rows, value_dim]
        Gradient of the output.
    q : array [batch, heads, rows, dim]
        Queries, in the order of axes that `layout` says.
    k : array [batch, kv_heads, keys, dim]
        Keys. `heads` is a multiple of `kv_heads`.
    v : array [batch, kv_heads, keys, value_dim]
        Values.
    out : array [batch, heads, rows, value_dim]
        The output.
    lse : array [batch, heads, rows]
        The second output of `attention(..., return_lse=True)`.
    encoding : str or Plan
        Name and options of one or more encodings, such as `"rope:pairing=half+alibi"`, or a plan. `"nope"` is no
        encoding.
    dlse : array [batch, heads, rows], optional
        Gradient of `lse`.
    dae : array [batch, heads, rows, dim / 2, 2], optional
        Gradient of `ae`, with `tape` only.
    ae : array [batch, heads, rows, dim / 2, 2], optional
        The averages that the forward call returned, with `tape` only.
    tensors : mapping of str to array, optional
        Tensors that the encoding learns or reads, by name (`"t5.table"`). `Plan.tensors` lists names and shapes.
    causal : bool
        Hide later keys from each row. The last row is aligned with the last key.
    window_size : (int, int)
        Keys that a row sees to its left and right. -1 leaves a side open; 0 is the own position only.
    scale : float, optional
        Factor on the product of q and k. None is the encoding's own, by default 1/sqrt(dim). 0 is refused.
    softcap : float, optional
        Cap c of the product: c tanh(score / c). None or 0 is no cap.
    sinks : array [heads], optional
        Logit of each head that joins the softmax and takes weight without a value.
    pos : int array [rows] or [batch, rows], optional
        Positions of rows and keys alike, as many of each. By default keys count from 0 and the last row is at the
        last key.
    q_pos : int array [rows] or [batch, rows], optional
        Positions of rows, given together with `k_pos`.
    k_pos : int array [keys] or [batch, keys], optional
        Positions of keys, given together with `q_pos`.
    coords : array [axes, rows] or [batch, axes, rows], optional
        Coordinates of rows and keys alike, for encodings of several axes.
    q_coords : array [axes, rows] or [batch, axes, rows], optional
        Coordinates of rows, given together with `k_coords`.
    k_coords : array [axes, keys] or [batch, axes, keys], optional
        Coordinates of keys, given together with `q_coords`.
    seg : int array [rows] or [batch, rows], optional
        Segments of rows and keys alike. A row sees keys of its own segment; negative is padding.
    q_seg : int array [rows] or [batch, rows], optional
        Segments of rows, given together with `k_seg`.
    k_seg : int array [keys] or [batch, keys], optional
        Segments of keys, given together with `q_seg`.
    k_lens : int or int array [batch], optional
        Number of valid keys of each batch entry or packed sequence, or one number for all.
    cu_seqlens_q : int array [sequences + 1], optional
        Where packed sequences of rows start, and the end of the last one.
    cu_seqlens_k : int array [sequences + 1], optional
        The same for keys. By default keys are packed like rows.
    mask : array, optional
        Dense mask that broadcasts to [batch, heads, rows, keys]. True is visible; numbers are added to scores and
        have a gradient. It applies beside `causal`.
    k_first : int array, optional
        First key that each row sees. It broadcasts to [batch, rows].
    k_last : int array, optional
        Last key that each row sees. It broadcasts to [batch, rows].
    layout : {"bhld", "blhd", "thd"}
        Order of axes: batch (b), heads (h), length (l), width (d). `thd` is packed sequences, without a batch.
    max_len : int, optional
        Context length, for encodings whose rule depends on one.
    keys_rotated : bool
        k is rotated by its positions already, as `rotate(k, role="cache")` returns it.
    fast : bool
        For bfloat16 only: use the CPU's bf16 dot products where it has them. Bits then differ.
    dropout_p : float
        That of the forward call.
    dropout_seed : int, optional
        That of the forward call.
    device : str or loci.gpu.Device, optional
        Where to compute: `"cuda:0"`, `"opencl:0"`, `"host"` or `"cpu"`. Arrays are copied there and results back, and
        bits stay the same. By default where q is: tensors on a GPU are computed there, in torch's current stream.
    shares : list of (first, count, rank), optional
        Which rank has which rows, from `loci.distributed.share_out()`. The arrays then hold the rows of this rank.
    key_shares : list of (first, count, rank), optional
        Which rank has which keys, where that differs from `shares`.
    group : Group or ProcessGroup, optional
        Ranks that attend together. By default all processes.
    gather : bool
        Collect all keys that this rank's rows see at once, instead of chunk by chunk.

    Returns
    -------
    dq, dk, dv : array
        Gradients of q, k and v, in their shapes.
    dtensors : dict of str to array
        Gradients of the tensors by name; of an additive mask as `"mask"`.

    Raises
    ------
    Error
        An argument has a wrong shape, type or value, or options exclude each other.
    TypeError
        An argument has a wrong Python type.
    """
    given = _named(
        *(_MASKS, pos, q_pos, k_pos, coords, q_coords, k_coords, seg, q_seg, k_seg),
        *(k_lens, cu_seqlens_q, cu_seqlens_k, k_first, k_last, None),
    )
    options = tensors, mask, softcap, sinks, layout, causal, window_size, scale, max_len, keys_rotated, fast
    arguments = _named(_OPTIONS, *options, dropout_p, dropout_seed, _id_of(device))
    if shares is not None or group is not None or _now.said is not None:
        from . import distributed

        over = {"group": group, "shares": shares, "key_shares": key_shares, "gather": gather}
        douts = dout, dlse, dae
        return distributed.attention_backward(douts, out, lse, ae, q, k, v, encoding, given, arguments, over)
    opened = _attend.open_call(q, k, v, encoding, given=given, **arguments)
    return _attend.backward(opened, _attend.check_grads(opened, dout, out, lse, ae, dlse, dae))


def linear_attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    encoding: str | Plan = "nope",
    *,
    causal: bool = True,
    tensors: Tensors | None = None,
    pos: IntArrayLike | None = None,
    q_pos: IntArrayLike | None = None,
    k_pos: IntArrayLike | None = None,
    coords: RealArrayLike | None = None,
    q_coords: RealArrayLike | None = None,
    k_coords: RealArrayLike | None = None,
    seg: IntArrayLike | None = None,
    q_seg: IntArrayLike | None = None,
    k_seg: IntArrayLike | None = None,
    cu_seqlens_q: IntArrayLike | None = None,
    cu_seqlens_k: IntArrayLike | None = None,
    layout: str = "bhld",
    max_len: int | None = None,
    device: str | Device | None = None,
    state: State | None = None,
    return_state: bool = False,
) -> Any:
    """Compute attention with elu(x) + 1 as feature map in the place of the softmax, in linear time.

    Parameters
    ----------
    q : array [batch, heads, rows, dim]
        Queries, in the order of axes that `layout` says.
    k : array [batch, kv_heads, keys, dim]
        Keys. `heads` is a multiple of `kv_heads`.
    v : array [batch, kv_heads, keys, value_dim]
        Values.
    encoding : str or Plan
        Name and options of one or more encodings, such as `"rope:pairing=half+alibi"`, or a plan. `"nope"` is no
        encoding.
    causal : bool
        Hide later keys from each row. The last row is aligned with the last key.
    tensors : mapping of str to array, optional
        Tensors that the encoding learns or reads, by name (`"t5.table"`). `Plan.tensors` lists names and shapes.
    pos : int array [rows] or [batch, rows], optional
        Positions of rows and keys alike, as many of each. By default keys count from 0 and the last row is at the
        last key.
    q_pos : int array [rows] or [batch, rows], optional
        Positions of rows, given together with `k_pos`.
    k_pos : int array [keys] or [batch, keys], optional
        Positions of keys, given together with `q_pos`.
    coords : array [axes, rows] or [batch, axes, rows], optional
        Coordinates of rows and keys alike, for encodings of several axes.
    q_coords : array [axes, rows] or [batch, axes, rows], optional
        Coordinates of rows, given together with `k_coords`.
    k_coords : array [axes, keys] or [batch, axes, keys], optional
        Coordinates of keys, given together with `q_coords`.
    seg : int array [rows] or [batch, rows], optional
        Segments of rows and keys alike. A row sees keys of its own segment; negative is padding.
    q_seg : int array [rows] or [batch, rows], optional
        Segments of rows, given together with `k_seg`.
    k_seg : int array [keys] or [batch, keys], optional
        Segments of keys, given together with `q_seg`.
    cu_seqlens_q : int array [sequences + 1], optional
        Where packed sequences of rows start, and the end of the last one.
    cu_seqlens_k : int array [sequences + 1], optional
        The same for keys. By default keys are packed like rows.
    layout : {"bhld", "blhd", "thd"}
        Order of axes: batch (b), heads (h), length (l), width (d). `thd` is packed sequences, without a batch.
    max_len : int, optional
        Context length, for encodings whose rule depends on one.
    device : str or loci.gpu.Device, optional
        Where to compute: `"cuda:0"`, `"opencl:0"`, `"host"` or `"cpu"`. Arrays are copied there and results back, and
        bits stay the same. By default where q is: tensors on a GPU are computed there, in torch's current stream.
    state : State, optional
        Where an earlier call ended. The call goes on from there.
    return_state : bool
        Also return the state after the last row.

    Returns
    -------
    o : array [batch, heads, rows, value_dim]
        Of the library and type of q.
    state : State
        With `return_state` only.

    Raises
    ------
    Error
        An argument has a wrong shape, type or value, or options exclude each other.
    TypeError
        An argument has a wrong Python type.
    """
    _alone("linear attention sums up all rows before")
    given = _named(
        *(_LINEAR_MASKS, pos, q_pos, k_pos, coords, q_coords, k_coords, seg, q_seg, k_seg),
        *(cu_seqlens_q, cu_seqlens_k),
    )
    arguments: dict[str, Any] = {"tensors": tensors, "layout": layout, "causal": causal, "max_len": max_len}
    arguments["device"] = _id_of(device)
    if _is_torch(q):
        from . import _torch_calls

        return _torch_calls.linear_attention(q, k, v, encoding, given, arguments, state, return_state)
    opened = _attend.open_call(q, k, v, encoding, given=given, stage="linear_attention", **arguments)
    return _linear.results(*_linear.forward(opened, state, return_state))


def rotate(
    x: Array,
    encoding: str | Plan,
    *,
    pos: IntArrayLike | None = None,
    cu_seqlens: IntArrayLike | None = None,
    coords: RealArrayLike | None = None,
    role: str = "query",
    tensors: Tensors | None = None,
    layout: str = "bhld",
    max_len: int | None = None,
    device: str | Device | None = None,
) -> Array:
    """Rotate rows by their positions.

    Parameters
    ----------
    x : array [batch, heads, rows, dim]
        Queries, keys or values, in the order of axes that `layout` says.
    encoding : str or Plan
        Name and options of one or more encodings, such as `"rope:pairing=half+alibi"`, or a plan. `"nope"` is no
        encoding.
    pos : int array [rows] or [batch, rows], optional
        Positions of rows. By default 0, 1, 2, ...
    cu_seqlens : int array [sequences + 1], optional
        Where packed sequences start, and the end of the last one. Positions of each begin with 0.
    coords : array [axes, rows] or [batch, axes, rows], optional
        Coordinates of rows, for encodings of several axes.
    role : {"query", "key", "cache", "value"}
        Rotate as queries, as keys, as a cache stores keys (for `keys_rotated=True`), or as values of an encoding
        with `values=1`. A plan for values is one for attention.
    tensors : mapping of str to array, optional
        Tensors that the encoding learns or reads, by name (`"t5.table"`). `Plan.tensors` lists names and shapes.
    layout : {"bhld", "blhd", "thd"}
        Order of axes: batch (b), heads (h), length (l), width (d). `thd` is packed sequences, without a batch.
    max_len : int, optional
        Context length, for encodings whose rule depends on one.
    device : str or loci.gpu.Device, optional
        Where to compute: `"cuda:0"`, `"opencl:0"`, `"host"` or `"cpu"`. Arrays are copied there and results back, and
        bits stay the same. By default where x is: tensors on a GPU are computed there, in torch's current stream.

    Returns
    -------
    array
        Rotated rows, in the shape of x.

    Raises
    ------
    Error
        An argument has a wrong shape, type or value, or options exclude each other.
    TypeError
        An argument has a wrong Python type.

    Examples
    --------
    >>> import numpy as np, loci
    >>> x = np.ones((1, 1, 3, 2), np.float32)
    >>> loci.rotate(x, "rope:pairing=half")[0, 0, 0]
    array([1., 1.], dtype=float32)
    """
    if cu_seqlens is not None:
        pos = _rows.packed_positions(cu_seqlens, x, pos, layout)
    if pos is None and coords is None:
        _alone("pos is missing")
    arguments: dict[str, Any] = {
        "pos": pos,
        "coords": coords,
        "role": role,
        "tensors": tensors,
        "layout": layout,
        "max_len": max_len,
        "device": _id_of(device),
    }
    if _is_torch(x):
        from . import _torch_calls

        made: Array = _torch_calls.rows(rotate, x, encoding, arguments, _rows.open_rotation)
        return made
    opened = _rows.open_rotation(x, encoding, **arguments)
    turned: Array = opened.forward(opened.x, opened.tensors)
    return turned


def rotate_by(
    x: Array,
    cos: ArrayLike,
    sin: ArrayLike,
    *,
    pairing: str,
    pos: IntArrayLike | None = None,
    cu_seqlens: IntArrayLike | None = None,
    layout: str = "bhld",
    inverse: bool = False,
) -> Array:
    """Rotate rows by tables of cos and sin, in which a model may have anything.

    Parameters
    ----------
    x : array [batch, heads, rows, dim]
        Queries, keys or values, in the order of axes that `layout` says.
    cos : array [positions, pairs] or [batch, rows, pairs]
        Cosines by position, or of each row. The first 2 pairs channels are rotated, others stay. Tables of more
        digits than float32 are rounded to it, unless x is float64.
    sin : array
        Sines, in the shape of cos.
    pairing : {"half", "interleaved"}
        Channels t and t + pairs are rotated together, or 2t and 2t + 1.
    pos : int array [rows] or [batch, rows], optional
        Positions of rows, which are rows of the tables. By default 0, 1, 2, ...
    cu_seqlens : int array [sequences + 1], optional
        Where packed sequences start, and the end of the last one. Positions of each begin with 0.
    layout : {"bhld", "blhd", "thd"}
        Order of axes: batch (b), heads (h), length (l), width (d). `thd` is packed sequences, without a batch.
    inverse : bool
        Rotate back.

    Returns
    -------
    array
        Rotated rows, in the shape of x. Gradients flow to x, cos and sin. With the numbers of `rope` the bits are
        those of `loci.rotate`.

    Raises
    ------
    Error
        An argument has a wrong shape, type or value, or options exclude each other.
    TypeError
        An argument has a wrong Python type.

    Examples
    --------
    >>> import numpy as np, loci
    >>> angles = np.arange(3)[:, None] * np.array([1.0, 0.1])
    >>> x = np.ones((1, 1, 3, 4), np.float32)
    >>> loci.rotate_by(x, np.cos(angles), np.sin(angles), pairing="half").shape
    (1, 1, 3, 4)
    """
    from ._rotary import rotate_by as turn

    if pos is None and cu_seqlens is None and len(cos.shape) == 2:
        _alone("pos is missing")
    made: Array = turn(x, cos, sin, pairing, pos, cu_seqlens, layout, inverse)
    return made


def embed(
    x: Array,
    encoding: str | Plan,
    *,
    pos: IntArrayLike | None = None,
    tensors: Tensors | None = None,
    max_len: int | None = None,
    device: str | Device | None = None,
) -> Array:
    """Add the encoding of positions to hidden states: x + p(pos).

    Parameters
    ----------
    x : array [batch, rows, width] or [rows, width]
        Hidden states.
    encoding : str or Plan
        Name and options of one or more encodings, such as `"rope:pairing=half+alibi"`, or a plan. `"nope"` is no
        encoding.
    pos : int array [rows] or [batch, rows], optional
        Positions of rows. By default 0, 1, 2, ...
    tensors : mapping of str to array, optional
        Tensors that the encoding learns or reads, by name (`"t5.table"`). `Plan.tensors` lists names and shapes.
    max_len : int, optional
        Context length, for encodings whose rule depends on one.
    device : str or loci.gpu.Device, optional
        Where to compute: `"cuda:0"`, `"opencl:0"`, `"host"` or `"cpu"`. Arrays are copied there and results back, and
        bits stay the same. By default where x is: tensors on a GPU are computed there, in torch's current stream.

    Returns
    -------
    array
        The sum, in the shape of x.

    Raises
    ------
    Error
        An argument has a wrong shape, type or value, or options exclude each other.
    TypeError
        An argument has a wrong Python type.
    """
    if pos is None:
        _alone("pos is missing")
    arguments: dict[str, Any] = {"pos": pos, "tensors": tensors, "max_len": max_len, "device": _id_of(device)}
    if _is_torch(x):
        from . import _torch_calls

        made: Array = _torch_calls.rows(embed, x, encoding, arguments, _rows.open_embedding)
        return made
    opened = _rows.open_embedding(x, encoding, **arguments)
    moved: Array = opened.forward(opened.x, opened.tensors)
    return moved


def sdpa() -> SDPA:
    """Send torch's `scaled_dot_product_attention` to loci, in a block of code of this thread.

        with loci.sdpa() as calls:
            y = model(x)

    Masks, is_causal, scale and enable_gqa are those of torch, and gradients flow. dropout_p is too, but the weights
    that are dropped are not those that torch drops with the same seed. Calls inside modules of `torch.nn` come here
    too. What loci cannot compute (other devices, more than 4 dimensions), torch computes, with one warning for each
    reason.

    Returns
    -------
    SDPA
        A context, which counts: `fused` calls that loci computed, and `fallback` ones by reason.
    """
    from ._sdpa import SDPA as _SDPA

    return _SDPA()
