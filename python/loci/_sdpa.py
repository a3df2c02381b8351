# SPDX-License-Identifier: MIT
"""torch's scaled_dot_product_attention, sent to loci in a block of code."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from . import attention
from ._c import Error
from ._fallback import FallbackWarning

_TORCH = functional.scaled_dot_product_attention


class SDPA(TorchFunctionMode):
    """What `loci.sdpa()` returns.

    Attributes
    ----------
    fused : int
        Calls that loci computed.
    fallback : dict of str to int
        Calls that torch computed, by reason.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fused = 0
        self.fallback: dict[str, int] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _TORCH:
            return self.send(args, kwargs or {})
        if func is functional.multi_head_attention_forward:  # its own calls do not come here
            with _inside(self):
                return func(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def send(self, args: Any, kwargs: Any) -> Any:
        """Compute a call, here or by torch.

        Parameters
        ----------
        args : tuple
            Arguments of scaled_dot_product_attention.
        kwargs : dict
            The named ones.
        """
        try:
            made = _attention(*args, **kwargs)
        except (Error, TypeError) as error:
            self._say(str(error))
            return _TORCH(*args, **kwargs)
        self.fused += 1
        return made

    def _say(self, reason: str) -> None:
        if reason not in self.fallback:
            text = f"torch computes scaled_dot_product_attention: {reason}"
            warnings.warn(text, FallbackWarning, stacklevel=4)
        self.fallback[reason] = self.fallback.get(reason, 0) + 1


class _Now(threading.local):
    """Whose functions of torch.nn are at work in this thread."""

    mode: SDPA | None = None


_now = _Now()
_lock = threading.Lock()
_count = 0  # of functions at work


def _sent(*args: Any, **kwargs: Any) -> Any:
    return _TORCH(*args, **kwargs) if _now.mode is None else _now.mode.send(args, kwargs)


@contextlib.contextmanager
def _inside(mode: SDPA) -> Iterator[None]:
    """A function of torch.nn.functional finds scaled_dot_product_attention in its own module."""
    global _count
    before, _now.mode = _now.mode, mode
    with _lock:
        _count += 1
        functional.scaled_dot_product_attention = _sent
    try:
        yield
    finally:
        _now.mode = before
        with _lock:
            _count -= 1
            if not _count:
                functional.scaled_dot_product_attention = _TORCH


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """The call of loci.  What torch would refuse is refused, so that torch says why."""
    rank = query.ndim
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not isinstance(x, torch.Tensor) or x.is_nested:
            raise Error(f"{name} is no plain tensor")
        if x.ndim != rank or not 2 <= rank <= 4:
            raise Error(f"{name} has {x.ndim} dimensions; loci takes 2 to 4, the same for all three")
    if is_causal and attn_mask is not None:
        raise Error("is_causal and attn_mask are both given")
    q, k, v = (x[(None,) * (4 - rank)] for x in (query, key, value))
    heads, kv_heads = q.shape[1], k.shape[1]
    if kv_heads not in (1, heads) and not enable_gqa:
        raise Error(f"key has {kv_heads} heads and query {heads}, without enable_gqa")
    batch = max(q.shape[0], k.shape[0], v.shape[0])
    q, k, v = (x.expand(batch, -1, -1, -1) if x.shape[0] == 1 else x for x in (q, k, v))
    if heads == 1 and kv_heads > 1:
        raise Error("query has one head, and key more")
    if isinstance(attn_mask, torch.Tensor):
        if attn_mask.ndim > rank:
            raise Error(f"attn_mask has {attn_mask.ndim} dimensions and query {rank}")
        if attn_mask.is_floating_point() and attn_mask.dtype not in (query.dtype, torch.float32):
            raise Error(f"attn_mask is {attn_mask.dtype} and query {query.dtype}")
        attn_mask = attn_mask[(None,) * (4 - rank)] if attn_mask.ndim == rank else attn_mask
    rows, keys = q.shape[-2], k.shape[-2]
    given: dict[str, Any] = {"mask": attn_mask, "causal": bool(is_causal), "scale": scale, "dropout_p": dropout_p}
    if is_causal and rows != keys:  # aligned at the start
        given.update(q_pos=torch.arange(rows), k_pos=torch.arange(keys))
    o = attention(q, k, v, **given)
    return o[(0,) * (4 - rank)] if rank < 4 else o
