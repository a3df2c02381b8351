# SPDX-License-Identifier: MIT
"""The functions of the package flash-attn, with its names, arguments and defaults, on the CPU.

    import sys, loci.flash_attn
    sys.modules["flash_attn"] = loci.flash_attn

and code that imports flash_attn runs on a machine without a GPU: float16, bfloat16, float32 and float64, any width of
heads, any size of blocks, gradients through autograd.  What is refused is an Error, a RuntimeError as there."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from .. import _attend
from .. import attention as _attention
from .._c import Error as _LociError
from .._masks import MASKS
from .._numbers import real, whole
from .._rotary import check_tables, of_rows, turned
from .._torch import Torch, by_op

__version__ = "2.8.4"  # of the interface that these functions have

__all__ = [
    "Error",
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]


class Error(_LociError, RuntimeError):
    """An argument that is refused, with the reason in one sentence.

    Parameters
    ----------
    text : str
        The sentence.
    status : str
        Kind of error: bad_arg, unsupported, no_memory and others.
    """

    def __init__(self, text: str, status: str = "bad_arg") -> None:
        super().__init__(text, status)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Error, (str(self), self.status))


Function = TypeVar("Function", bound=Callable[..., Any])


def _raising(function: Function) -> Function:
    """The function, whose errors are RuntimeErrors too."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except _LociError as error:
            if isinstance(error, Error):
                raise
            raise Error(str(error), error.status) from error

    return call  # type: ignore[return-value]


# ---- Arguments -----------------------------------------------------------------------------------


def _check_tensor(x: Any, name: str, axes: str) -> None:
    """axes: their names, such as "batch, rows, heads, width"."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name} must be a tensor of torch, not {type(x).__name__}")
    if x.ndim != axes.count(",") + 1:
        raise Error(f"{name} has the shape {list(x.shape)}, not [{axes}]")


def _check_whole(x: Any, name: str, shape: Sequence[int] | None) -> None:
    """Lengths, starts and tables are tensors of int32, as in flash-attn; shape None: one axis of any length."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name} must be a tensor of torch, not {type(x).__name__}")
    if x.dtype is not torch.int32:
        raise Error(f"{name} must have the dtype int32, not {str(x.dtype).removeprefix('torch.')}")
    if x.device.type != "cpu":
        raise Error(f"{name} is on {x.device}; loci computes on the CPU", "unsupported")
    if x.ndim != 1 if shape is None else tuple(x.shape) != tuple(shape):
        raise Error(f"{name} has the shape {list(x.shape)}, not {'[sequences + 1]' if shape is None else list(shape)}")


def _check_causal(causal: Any) -> bool:
    if not isinstance(causal, (bool, int)):
        raise TypeError(f"causal must be True or False, not {causal!r}")
    return bool(causal)


def _window(window_size: Any) -> tuple[int, int]:
    """(left, right), where any negative number is open."""
    try:
        left, right = (operator.index(side) for side in window_size)
    except (TypeError, ValueError):
        raise TypeError(f"window_size must be two whole numbers, (left, right), not {window_size!r}") from None
    return max(left, -1), max(right, -1)


class _Options(NamedTuple):
    """What all functions are told of a softmax."""

    scale: Any
    causal: bool
    window: tuple[int, int]
    softcap: float
    dropout: Any


def _options(softmax_scale: Any, causal: Any, window_size: Any, softcap: Any, dropout_p: Any = 0.0) -> _Options:
    cap = real(softcap, "softcap")
    if cap < 0:
        raise Error(f"softcap must be 0, which is none, or more, not {cap}")
    return _Options(softmax_scale, _check_causal(causal), _window(window_size), cap, dropout_p)


def _bias(slopes: Any, heads: int, batch: int, spread: Callable[[Any], Any]) -> tuple[str, dict[str, Any]]:
    """The encoding of alibi_slopes, [heads] or [batch, heads].  spread() makes [batch, heads] one for each row."""
    if slopes is None:
        return "nope", {}
    if not isinstance(slopes, torch.Tensor):
        raise TypeError(f"alibi_slopes must be a tensor of torch, not {type(slopes).__name__}")
    if slopes.dtype is not torch.float32:
        raise Error(f"alibi_slopes must have the dtype float32, not {str(slopes.dtype).removeprefix('torch.')}")
    if tuple(slopes.shape) == (heads,):
        return "alibi:slopes=given", {"alibi.slopes": slopes}
    if tuple(slopes.shape) != (batch, heads):
        raise Error(f"alibi_slopes has the shape {list(slopes.shape)}, not [{heads}] or [{batch}, {heads}]")
    return "alibi:slopes=queries", {"alibi.slope_q": spread(slopes)}


def _shown(lse: Any) -> Any:
    """The lse of rows that see nothing is +inf in flash-attn and -inf in loci."""
    return lse.masked_fill(lse == -torch.inf, torch.inf)


# ---- Batches and packed sequences ----------------------------------------------------------------


def _call(
    q: Any, k: Any, v: Any, options: _Options, bias: tuple[str, dict[str, Any]], layout: str, **given: Any
) -> Any:
    """o and lse."""
    return _attention(
        q,
        k,
        v,
        bias[0],
        tensors=bias[1],
        causal=options.causal,
        window_size=options.window,
        scale=options.scale,
        softcap=options.softcap,
        dropout_p=options.dropout,
        layout=layout,
        return_lse=True,
        **given,
    )


def _results(o: Any, lse: Any, wanted: Any) -> Any:
    """With the lse if it is wanted, and a tensor without numbers in the place of flash-attn's S_dmask."""
    return (o, _shown(lse), o.new_empty(0)) if wanted else o


def _batch(q: Any, k: Any, v: Any, options: _Options, slopes: Any, wanted: Any) -> Any:
    for name, x in (("q", q), ("k", k), ("v", v)):
        _check_tensor(x, name, "batch, rows, heads, width")
    batch, rows, heads, _ = q.shape
    bias = _bias(slopes, heads, batch, lambda x: x[:, :, None].expand(batch, heads, rows))
    o, lse = _call(q, k, v, options, bias, "blhd")
    return _results(o, lse, wanted)


def _end(cu: Any, name: str, rows: int, longest: Any, longest_name: str) -> int:
    """Where the last sequence ends; rows behind it are unused.  Compiled code leaves the checks to the op."""
    _check_whole(cu, name, None)
    if by_op(cu):
        return rows
    longest = whole(longest, longest_name)
    starts = cu.tolist()
    if len(starts) < 2 or starts[0] != 0 or starts != sorted(starts) or starts[-1] > rows:
        raise Error(f"{name} must rise from 0 to at most {rows}, one number more than there are sequences")
    most = max(b - a for a, b in itertools.pairwise(starts))
    if most > longest:
        raise Error(f"{longest_name} is {longest}, but a sequence of {name} has {most} rows")
    return int(starts[-1])


def _of_pages(x: Any, table: Any, cu: Any) -> Any:
    """Rows of the sequences in pages, packed."""
    length, counts = x.shape[1], cu.diff().long()
    entry = torch.repeat_interleave(torch.arange(counts.numel()), counts)
    at = torch.arange(entry.numel()) - cu[:-1].long()[entry]
    return x.flatten(0, 1).index_select(0, table[entry, at // length].long() * length + at % length)


def _varlen(
    q: Any,
    k: Any,
    v: Any,
    cu_q: Any,
    cu_k: Any,
    longest: tuple[Any, Any],
    options: _Options,
    slopes: Any,
    wanted: Any,
    table: Any = None,
    names: tuple[str, str, str, str] = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"),
) -> Any:
    _check_tensor(q, "q", "rows, heads, width")
    paged = table is not None
    for name, x in (("k", k), ("v", v)):
        _check_tensor(x, name, "blocks, rows of a block, heads, width" if paged else "rows, heads, width")
    rows, heads, _ = q.shape
    end = _end(cu_q, names[0], rows, longest[0], names[2])
    sequences = cu_q.shape[0] - 1
    _check_whole(cu_k, names[1], None)
    if cu_k.shape != cu_q.shape:
        raise Error(f"{names[1]} has the shape {list(cu_k.shape)}, and {names[0]} {list(cu_q.shape)}")
    if paged:
        _check_block_table(table, sequences)
        if v.shape[:2] != k.shape[:2]:
            raise Error(f"v has blocks {list(v.shape[:2])} and k {list(k.shape[:2])}")
        _end(cu_k, names[1], table.shape[1] * k.shape[1] * sequences, longest[1], names[3])
        counts, lens = cu_q.diff(), cu_k.diff()
        _check_table(table.numpy(), lens.numpy(), k.shape[0], k.shape[1])
        each = end // sequences
        if each and bool((counts == each).all()) and not _wants_gradient(q, k, v, slopes):
            # As batch entries of the same number of rows they are read from their pages.
            bias = _bias(slopes, heads, sequences, lambda x: x[:, :, None].expand(-1, -1, each))
            q = q[:end].unflatten(0, (sequences, each))
            o, lse = _call(q, k, v, options, bias, "blhd", pages=table, k_lens=lens)
            return _packed(o.flatten(0, 1), lse.transpose(0, 1).flatten(1), rows, wanted)
        k, v = (_of_pages(x, table, cu_k) for x in (k, v))
    else:
        keys = _end(cu_k, names[1], k.shape[0], longest[1], names[3])
        if keys < k.shape[0]:
            k, v = k[:keys], v[:keys]
    if end < rows:
        q = q[:end]

    def spread(x: Any) -> Any:
        return torch.repeat_interleave(x, cu_q.diff(), 0, output_size=end).t()[None]

    bias = _bias(slopes, heads, sequences, spread)
    o, lse = _call(q, k, v, options, bias, "thd", cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)
    return _packed(o, lse, rows, wanted)


def _packed(o: Any, lse: Any, rows: int, wanted: Any) -> Any:
    """Rows behind the last sequence are zeros."""
    unused = rows - o.shape[0]
    if unused:
        o = torch.nn.functional.pad(o, (0, 0, 0, 0, 0, unused))
        lse = torch.nn.functional.pad(lse, (0, unused), value=-torch.inf)
    return _results(o, lse, wanted)


def _wants_gradient(*tensors: Any) -> bool:
    return torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in tensors)


def _check_block_table(table: Any, batch: int) -> None:
    if not isinstance(table, torch.Tensor):
        raise TypeError(f"block_table must be a tensor of torch, not {type(table).__name__}")
    if table.ndim != 2:
        raise Error(f"block_table has the shape {list(table.shape)}, not [batch, blocks of an entry]")
    _check_whole(table, "block_table", (batch, table.shape[1]))


def _check_table(table: Any, lens: Any, blocks: int, length: int) -> None:
    """Blocks that hold keys must be there; the other entries of a table may be anything."""
    if not length:
        raise Error("blocks have 0 rows; a block has at least one")
    if (lens > table.shape[1] * length).any():
        raise Error(f"block_table has {table.shape[1]} blocks of {length} rows, too few for {lens.max()} keys")
    used = np.arange(table.shape[1]) * length < lens[:, None]
    wrong = table[used & ((table < 0) | (table >= blocks))]
    if wrong.size:
        raise Error(f"block_table has the block {wrong[0]}, and the cache has {blocks} blocks")


def _unpacked(x: Any, name: str, count: int, axes: str) -> Any:
    """q, k and v, or k and v, of one tensor."""
    _check_tensor(x, name, axes)
    if x.shape[-3] != count:
        raise Error(f"{name} has the shape {list(x.shape)}, not [{axes}]")
    return x.unbind(-3)


@_raising
def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Compute attention of a batch.

    Parameters
    ----------
    q : tensor [batch, rows, heads, width]
        Queries.
    k : tensor [batch, keys, kv_heads, width]
        Keys. `heads` is a multiple of `kv_heads`.
    v : tensor [batch, keys, kv_heads, width]
        Values.
    dropout_p : float
        Drop each weight with this probability, from 0 and below 1, and divide the others by 1 - dropout_p. Which ones
        follows from torch's generator.
    softmax_scale : float, optional
        Factor on the product of q and k. None is 1/sqrt(width).
    causal : bool
        Hide later keys from each row. The last row is aligned with the last key.
    window_size : (int, int)
        Keys that a row sees to its left and right. A negative number leaves a side open.
    softcap : float
        Cap c of the product: c tanh(score / c). 0 is no cap.
    alibi_slopes : tensor [heads] or [batch, heads], optional
        Slope m of each head, float32: m times the distance is taken from a score.
    deterministic : bool
        Gradients always have the same bits, whatever is said.
    return_attn_probs : bool
        Also return the lse, which is that without dropout, and S_dmask.

    Returns
    -------
    out : tensor [batch, rows, heads, width]
        Rows that see no key are 0.
    softmax_lse : tensor [batch, heads, rows]
        With `return_attn_probs` only: the logarithm of the sum of exponentials of each row, +inf for rows that see no
        key.
    S_dmask : tensor [0]
        With `return_attn_probs` only. It is empty: no weight is stored, where flash-attn returns weights for tests of
        its dropout.

    Raises
    ------
    Error
        An argument has a wrong shape, type or value.
    """
    options = _options(softmax_scale, causal, window_size, softcap, dropout_p)
    return _batch(q, k, v, options, alibi_slopes, return_attn_probs)


@_raising
def flash_attn_kvpacked_func(
    q: torch.Tensor,
    kv: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Compute attention of a batch, with keys and values in one tensor.

    Parameters
    ----------
    q : tensor [batch, rows, heads, width]
        Queries.
    kv : tensor [batch, keys, 2, kv_heads, width]
        Keys and values. `heads` is a multiple of `kv_heads`.
    dropout_p : float
        Drop each weight with this probability, from 0 and below 1, and divide the others by 1 - dropout_p. Which ones
        follows from torch's generator.
    softmax_scale : float, optional
        Factor on the product of q and k. None is 1/sqrt(width).
    causal : bool
        Hide later keys from each row. The last row is aligned with the last key.
    window_size : (int, int)
        Keys that a row sees to its left and right. A negative number leaves a side open.
    softcap : float
        Cap c of the product: c tanh(score / c). 0 is no cap.
    alibi_slopes : tensor [heads] or [batch, heads], optional
        Slope m of each head, float32: m times the distance is taken from a score.
    deterministic : bool
        Gradients always have the same bits, whatever is said.
    return_attn_probs : bool
        Also return the lse, which is that without dropout, and S_dmask.

    Returns
    -------
    out : tensor [batch, rows, heads, width]
        Rows that see no key are 0.
    softmax_lse : tensor [batch, heads, rows]
        With `return_attn_probs` only: the logarithm of the sum of exponentials of each row, +inf for rows that see no
        key.
    S_dmask : tensor [0]
        With `return_attn_probs` only. It is empty: no weight is stored, where flash-attn returns weights for tests of
        its dropout.

    Raises
    ------
    Error
        An argument has a wrong shape, type or value.
    """
    options = _options(softmax_scale, causal, window_size, softcap, dropout_p)
    k, v = _unpacked(kv, "kv", 2, "batch, keys, 2, heads, width")
    return _batch(q, k, v, options, alibi_slopes, return_attn_probs)


@_raising
def flash_attn_qkvpacked_func(
    qkv: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Compute attention of a batch, with queries, keys and values in one tensor.

    Parameters
    ----------
    qkv : tensor [batch, rows, 3, heads, width]
        Queries, keys and values.
    dropout_p : float
        Drop each weight with this probability, from 0 and below 1, and divide the others by 1 - dropout_p. Which ones
        follows from torch's generator.
    softmax_scale : float, optional
        Factor on the product of q and k. None is 1/sqrt(width).
    causal : bool
        Hide later keys from each row. The last row is aligned with the last key.
    window_size : (int, int)
        Keys that a row sees to its left and right. A negative number leaves a side open.
    softcap : float
        Cap c of the product: c tanh(score / c). 0 is no cap.
    alibi_slopes : tensor [heads] or [batch, heads], optional
        Slope m of each head, float32: m times the distance is taken from a score.
    deterministic : bool
        Gradients always have the same bits, whatever is said.
    return_attn_probs : bool
        Also return the lse, which is that without dropout, and S_dmask.

    Returns
    -------
    out : tensor [batch, rows, heads, width]
        Rows that see no key are 0.
    softmax_lse : tensor [batch, heads, rows]
        With `return_attn_probs` only: the logarithm of the sum of exponentials of each row, +inf for rows that see no
        key.
    S_dmask : tensor [0]
        With `return_attn_probs` only. It is empty: no weight is stored, where flash-attn returns weights for tests of
        its dropout.

    Raises
    ------
    Error
        An argument has a wrong shape, type or value.
    """
    options = _options(softmax_scale, causal, window_size, softcap, dropout_p)
    q, k, v = _unpacked(qkv, "qkv", 3, "batch, rows, 3, heads, width")
    return _batch(q, k, v, options, alibi_slopes, return_attn_probs)


@_raising
def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: torch.Tensor | None = None,
) -> Any:
    """Compute attention of packed sequences.

    Parameters
    ----------
    q : tensor [rows, heads, width]
        Queries. Rows after the last sequence are unused, and their outputs are 0.
    k : tensor [keys, kv_heads, width]
        Keys, or with `block_table` blocks of keys, [blocks, block size, kv_heads, width].
    v : tensor [keys, kv_heads, width]
        Values, or blocks of values.
    cu_seqlens_q : int32 tensor [sequences + 1]
        Where sequences of rows start, and the end of the last one.
    cu_seqlens_k : int32 tensor [sequences + 1]
        The same for keys. With `block_table` only its differences are read: the keys of each sequence.
    max_seqlen_q : int
        The rows of the longest sequence, or more.
    max_seqlen_k : int
        The keys of the longest sequence, or more.
    dropout_p : float
        Drop each weight with this probability, from 0 and below 1, and divide the others by 1 - dropout_p. Which ones
        follows from torch's generator.
    softmax_scale : float, optional
        Factor on the product of q and k. None is 1/sqrt(width).
    causal : bool
        Hide later keys from each row. The last row is aligned with the last key.
    window_size : (int, int)
        Keys that a row sees to its left and right. A negative number leaves a side open.
    softcap : float
        Cap c of the product: c tanh(score / c). 0 is no cap.
    alibi_slopes : tensor [heads] or [sequences, heads], optional
        Slope m of each head, float32: m times the distance is taken from a score.
    deterministic : bool
        Gradients always have the same bits, whatever is said.
    return_attn_probs : bool
        Also return the lse, which is that without dropout, and S_dmask.
    block_table : int32 tensor [sequences, blocks of a sequence], optional
        Which blocks hold the keys and values of each sequence, in order.

    Returns
    -------
    out : tensor [rows, heads, width]
        Rows that see no key are 0.
    softmax_lse : tensor [heads, rows]
        With `return_attn_probs` only: the logarithm of the sum of exponentials of each row, +inf for rows that see no
        key.
    S_dmask : tensor [0]
        With `return_attn_probs` only. It is empty: no weight is stored, where flash-attn returns weights for tests of
        its dropout.

    Raises
    ------
    Error
        An argument has a wrong shape, type or value.
    """
    options = _options(softmax_scale, causal, window_size, softcap, dropout_p)
    longest = max_seqlen_q, max_seqlen_k
    given = options, alibi_slopes, return_attn_probs, block_table
    return _varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, longest, *given)


@_raising
def flash_attn_varlen_kvpacked_func(
    q: torch.Tensor,
    kv: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Compute attention of packed sequences, with keys and values in one tensor.

    Parameters
    ----------
    q : tensor [rows, heads, width]
        Queries. Rows after the last sequence are unused, and their outputs are 0.
    kv : tensor [keys, 2, kv_heads, width]
        Keys and values. `heads` is a multiple of `kv_heads`.
    cu_seqlens_q : int32 tensor [sequences + 1]
        Where sequences of rows start, and the end of the last one.
    cu_seqlens_k : int32 tensor [sequences + 1]
        The same for keys.
    max_seqlen_q : int
        The rows of the longest sequence, or more.
    max_seqlen_k : int
        The keys of the longest sequence, or more.
    dropout_p : float
        Drop each weight with this probability, from 0 and below 1, and divide the others by 1 - dropout_p. Which ones
        follows from torch's generator.
    softmax_scale : float, optional
        Factor on the product of q and k. None is 1/sqrt(width).
    causal : bool
        Hide later keys from each row. The last row is aligned with the last key.
    window_size : (int, int)
        Keys that a row sees to its left and right. A negative number leaves a side open.
    softcap : float
        Cap c of the product: c tanh(score / c). 0 is no cap.
    alibi_slopes : tensor [heads] or [sequences, heads], optional
        Slope m of each head, float32: m times the distance is taken from a score.
    deterministic : bool
        Gradients always have the same bits, whatever is said.
    return_attn_probs : bool
        Also return the lse, which is that without dropout, and S_dmask.

    Returns
    -------
    out : tensor [rows, heads, width]
        Rows that see no key are 0.
    softmax_lse : tensor [heads, rows]
        With `return_attn_probs` only: the logarithm of the sum of exponentials of each row, +inf for rows that see no
        key.
    S_dmask : tensor [0]
        With `return_attn_probs` only. It is empty: no weight is stored, where flash-attn returns weights for tests of
        its dropout.

    Raises
    ------
    Error
        An argument has a wrong shape, type or value.
    """
    options = _options(softmax_scale, causal, window_size, softcap, dropout_p)
    k, v = _unpacked(kv, "kv", 2, "keys, 2, heads, width")
    longest = max_seqlen_q, max_seqlen_k
    given = options, alibi_slopes, return_attn_probs
    return _varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, longest, *given)


@_raising
def flash_attn_varlen_qkvpacked_func(
    qkv: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Compute attention of packed sequences, with queries, keys and values in one tensor.

    Parameters
    ----------
    qkv : tensor [rows, 3, heads, width]
        Queries, keys and values. Rows after the last sequence are unused, and their outputs are 0.
    cu_seqlens : int32 tensor [sequences + 1]
        Where sequences start, and the end of the last one.
    max_seqlen : int
        The rows of the longest sequence, or more.
    dropout_p : float
        Drop each weight with this probability, from 0 and below 1, and divide the others by 1 - dropout_p. Which ones
        follows from torch's generator.
    softmax_scale : float, optional
        Factor on the product of q and k. None is 1/sqrt(width).
    causal : bool
        Hide later keys from each row. The last row is aligned with the last key.
    window_size : (int, int)
        Keys that a row sees to its left and right. A negative number leaves a side open.
    softcap : float
        Cap c of the product: c tanh(score / c). 0 is no cap.
    alibi_slopes : tensor [heads] or [sequences, heads], optional
        Slope m of each head, float32: m times the distance is taken from a score.
    deterministic : bool
        Gradients always have the same bits, whatever is said.
    return_attn_probs : bool
        Also return the lse, which is that without dropout, and S_dmask.

    Returns
    -------
    out : tensor [rows, heads, width]
        Rows that see no key are 0.
    softmax_lse : tensor [heads, rows]
        With `return_attn_probs` only: the logarithm of the sum of exponentials of each row, +inf for rows that see no
        key.
    S_dmask : tensor [0]
        With `return_attn_probs` only. It is empty: no weight is stored, where flash-attn returns weights for tests of
        its dropout.

    Raises
    ------
    Error
        An argument has a wrong shape, type or value.
    """
    options = _options(softmax_scale, causal, window_size, softcap, dropout_p)
    q, k, v = _unpacked(qkv, "qkv", 3, "rows, 3, heads, width")
    names = ("cu_seqlens", "cu_seqlens", "max_seqlen", "max_seqlen")
    given = options, alibi_slopes, return_attn_probs
    return _varlen(q, k, v, cu_seqlens, cu_seqlens, (max_seqlen, max_seqlen), *given, names=names)


# ---- Caches --------------------------------------------------------------------------------------


def _check_like(x: Any, name: str, q: Any) -> None:
    if x.dtype is not q.dtype:
        said = str(x.dtype).removeprefix("torch."), str(q.dtype).removeprefix("torch.")
        raise Error(f"{name} is {said[0]} and q {said[1]}")


def _lengths(cache_seqlens: Any, batch: int, capacity: int, space: str) -> Any:
    """The keys that are in the cache, int64 [batch]."""
    if cache_seqlens is None:
        return np.full(batch, capacity)
    if isinstance(cache_seqlens, int):
        lens = np.full(batch, whole(cache_seqlens, "cache_seqlens"))
    else:
        _check_whole(cache_seqlens, "cache_seqlens", (batch,))
        lens = cache_seqlens.numpy().astype(np.int64)
    if batch and not 0 <= lens.min() <= lens.max() <= capacity:
        raise Error(f"cache_seqlens are {lens.tolist()}, and {space}")
    return lens


def _entries(cache_batch_idx: Any, batch: int, entries: int) -> Any:
    """Which entries of the cache are those of the batch; None: the first ones."""
    if cache_batch_idx is None:
        if entries < batch:
            raise Error(f"k_cache has {entries} entries, and q a batch of {batch}")
        return None
    _check_whole(cache_batch_idx, "cache_batch_idx", (batch,))
    which = cache_batch_idx.numpy()
    if batch and not 0 <= which.min() <= which.max() < entries:
        raise Error(f"cache_batch_idx is {which.tolist()}, and the cache has {entries} entries")
    return which


def _new_rows(k: Any, v: Any, q: Any, k_cache: Any, v_cache: Any, cache_seqlens: Any) -> int:
    """How many rows come into the cache."""
    if k is None and v is None:
        return 0
    for name, other, x in (("v", "k", v), ("k", "v", k)):
        if x is None:
            raise Error(f"{name} is missing: {other} was given, and the two go together")
    if cache_seqlens is None:
        raise Error("cache_seqlens is missing: it says where the rows of k and v go")
    for name, x, cache in (("k", k, k_cache), ("v", v, v_cache)):
        _check_tensor(x, name, "batch, rows, heads, width")
        _check_like(x, name, q)
        if (x.shape[0], *x.shape[2:]) != (q.shape[0], *cache.shape[2:]):
            raise Error(f"{name} has the shape {list(x.shape)}, and {name}_cache {list(cache.shape)}")
    if v.shape[1] != k.shape[1]:
        raise Error(f"v has {v.shape[1]} rows and k {k.shape[1]}")
    return int(k.shape[1])


def _check_rotary(cos: Any, sin: Any, k: Any, q: Any, capacity: int) -> None:
    for name, other, x in (("rotary_sin", "rotary_cos", sin), ("rotary_cos", "rotary_sin", cos)):
        if x is None:
            raise Error(f"{name} is missing: {other} was given, and the two go together")
    if k is None:
        raise Error("k and v are missing: rotary_cos and rotary_sin rotate rows that go into the cache")
    check_tables(Torch, cos, sin, q.shape[-1])
    _check_like(cos, "rotary_cos", q)
    _check_like(sin, "rotary_sin", q)
    if cos.shape[0] < capacity:
        raise Error(f"rotary_cos has {cos.shape[0]} rows, and the cache {capacity} positions")


@torch.compiler.disable  # type: ignore[untyped-decorator]
@_raising
def flash_attn_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    rotary_cos: torch.Tensor | None = None,
    rotary_sin: torch.Tensor | None = None,
    cache_seqlens: int | torch.Tensor | None = None,
    cache_batch_idx: torch.Tensor | None = None,
    cache_leftpad: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: torch.Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """Write new keys and values into a cache, in place, and compute attention over it.

    The cache is read where it lies, in blocks too. A call that is refused writes nothing. There is no backward pass.

    Parameters
    ----------
    q : tensor [batch, rows, heads, width]
        Queries.
    k_cache : tensor [entries, capacity, kv_heads, width]
        Keys, or with `block_table` blocks of keys, [blocks, block size, kv_heads, width].
    v_cache : tensor [entries, capacity, kv_heads, width]
        Values, or blocks of values.
    k : tensor [batch, new rows, kv_heads, width], optional
        New keys, which are written from row `cache_seqlens` on.
    v : tensor [batch, new rows, kv_heads, width], optional
        New values.
    rotary_cos : tensor [positions, pairs], optional
        Cosines by which q and k are rotated, of the dtype of q. Row `cache_seqlens` of the table is that of the first
        new row. Without causal order and window all rows of q have this position.
    rotary_sin : tensor [positions, pairs], optional
        Sines.
    cache_seqlens : int or int32 tensor [batch], optional
        Keys in the cache before the call. By default it is full.
    cache_batch_idx : int32 tensor [batch], optional
        The entry of the cache of each batch entry. By default the first ones. Not with `block_table`.
    cache_leftpad : int32 tensor [batch], optional
        The first row of the cache that holds a key.
    block_table : int32 tensor [batch, blocks of an entry], optional
        Which blocks hold the keys and values of each batch entry, in order.
    softmax_scale : float, optional
        Factor on the product of q and k. None is 1/sqrt(width).
    causal : bool
        Hide later keys from each row. The last row is aligned with the last key.
    window_size : (int, int)
        Keys that a row sees to its left and right. A negative number leaves a side open.
    softcap : float
        Cap c of the product: c tanh(score / c). 0 is no cap.
    rotary_interleaved : bool
        Channels 2t and 2t + 1 are a pair; otherwise t and t + pairs.
    alibi_slopes : tensor [heads] or [batch, heads], optional
        Slope m of each head, float32: m times the distance is taken from a score.
    num_splits : int
        From 0 to 128. Results do not depend on it.
    return_softmax_lse : bool
        Also return the lse.

    Returns
    -------
    out : tensor [batch, rows, heads, width]
        Rows that see no key are 0.
    softmax_lse : tensor [batch, heads, rows]
        With `return_softmax_lse` only: the logarithm of the sum of exponentials of each row, +inf for rows that see no
        key.

    Raises
    ------
    Error
        An argument has a wrong shape, type or value.
    """
    options = _options(softmax_scale, causal, window_size, softcap)
    whole(num_splits, "num_splits", 0, 128)
    paged = block_table is not None
    _check_tensor(q, "q", "batch, rows, heads, width")
    for name, x in (("k_cache", k_cache), ("v_cache", v_cache)):
        _check_tensor(x, name, f"{'blocks, rows of a block' if paged else 'entries, rows'}, heads, width")
        _check_like(x, name, q)
        if x.stride(-1) != 1:
            raise Error(f"{name} must be contiguous along its last axis")
    if v_cache.shape[:3] != k_cache.shape[:3]:
        raise Error(f"v_cache has the shape {list(v_cache.shape)} and k_cache {list(k_cache.shape)}")
    if _wants_gradient(q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, alibi_slopes):
        raise Error("a cache has no gradient; use torch.no_grad()")
    batch, rows, heads, _ = q.shape
    length = k_cache.shape[1]
    if block_table is not None:
        _check_block_table(block_table, batch)
        if cache_batch_idx is not None:
            raise Error("cache_batch_idx must be None with block_table, which says where each entry lies")
        table: Any = block_table.numpy()
        capacity = block_table.shape[1] * length
    else:
        entries = _entries(cache_batch_idx, batch, k_cache.shape[0])
        table = None if entries is None else entries[:, None]
        capacity = length
    new = _new_rows(k, v, q, k_cache, v_cache, cache_seqlens)
    space = f"the cache has {capacity} rows for each entry"
    if paged:
        space = f"block_table has {table.shape[1]} blocks of {length} rows"
    held = _lengths(cache_seqlens, batch, capacity, space)
    lens = held + new
    if batch and lens.max() > capacity:
        raise Error(f"{space}, too few for {lens.max()} keys")
    if paged:
        _check_table(table, lens, k_cache.shape[0], length)
    first = None
    if cache_leftpad is not None:
        _check_whole(cache_leftpad, "cache_leftpad", (batch,))
        first = cache_leftpad.numpy()[:, None]
        if batch and first.min() < 0:
            raise Error(f"cache_leftpad must not be negative, as in {cache_leftpad.tolist()}")
    at = held[:, None] + np.arange(new)
    if rotary_cos is not None or rotary_sin is not None:
        _check_rotary(rotary_cos, rotary_sin, k, q, capacity)
        apart = options.causal or options.window != (-1, -1)
        pos = held[:, None] + np.arange(rows) * apart
        if pos.size and pos.max() >= len(rotary_cos):  # type: ignore[arg-type]
            raise Error(f"rotary_cos has {len(rotary_cos)} rows, too few for position {pos.max()}")  # type: ignore[arg-type]
        interleaved = bool(rotary_interleaved)
        q, k = (
            turned(
                Torch, x, *of_rows(Torch, rotary_cos, rotary_sin, torch.from_numpy(where)), interleaved, "blhd", False
            )
            for x, where in ((q, pos), (k, at))
        )
    # All of the call is checked before anything is written.
    text, tensors = _bias(alibi_slopes, heads, batch, lambda x: x[:, :, None].expand(batch, heads, rows))
    given: dict[str, Any] = dict.fromkeys(MASKS)
    given.update(pages=table, k_lens=lens, k_first=first)
    own = slice(batch if table is None else None)
    opened = _attend.open_call(
        q,
        k_cache[own],
        v_cache[own],
        text,
        given=given,
        tensors=tensors,
        causal=options.causal,
        window_size=options.window,
        scale=options.scale,
        softcap=options.softcap,
        layout="blhd",
    )
    if new:
        entry = np.arange(batch)[:, None] if table is None else np.take_along_axis(table, at // length, 1)
        where = torch.from_numpy(entry.astype(np.int64)), torch.from_numpy(at % length)
        k_cache.index_put_(where, k)  # type: ignore[arg-type]
        v_cache.index_put_(where, v)  # type: ignore[arg-type]
    o, lse, _ = opened.forward(None, bool(return_softmax_lse))
    return (o, _shown(lse)) if return_softmax_lse else o
