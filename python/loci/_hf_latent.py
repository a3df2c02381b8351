# SPDX-License-Identifier: MIT
"""DeepSeek V2 and V3: what loci.hf.patch() puts into their attention, and a cache of latents.

A token leaves one latent and one rotated key for all heads.  In each step the model multiplies all latents by the
matrices of its heads, which makes keys and values.  Where that takes more products, a step multiplies its own queries
and outputs instead, and all heads attend to the latents: keys are latents and rotated keys, values are the latents."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache, CacheLayerMixin

from . import _hf_masks as masks
from ._c import Error
from ._hf_attend import count_fused
from ._hf_masks import Sight
from ._hf_speech import _ours
from ._numbers import whole
from ._types import DTypeLike
from .cache import Cache as Rows

# ---- The cache -----------------------------------------------------------------------------------


class _Layer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """Of one layer of the model.  Padding in front of new tokens is counted, as transformers does, and not stored."""

    def __init__(self, capacity: int, dtype: DTypeLike | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.capacity, self.dtype = capacity, dtype
        self.reset()

    def reset(self) -> None:
        self.rows: Rows | None = None
        self.length = 0
        self.hidden = torch.zeros(1, dtype=torch.int64)  # tokens of padding, of each sequence or of all

    def get_seq_length(self) -> int:
        return self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_max_length(self) -> int:
        return self.capacity

    get_max_cache_shape = get_max_length  # its name in older versions of transformers

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """append() does that."""

    def update(self, *args: Any, **kwargs: Any) -> Any:
        raise Error("LatentCache is for DeepSeek V2 and V3 after loci.hf.patch(model)", "unsupported")

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise Error("LatentCache only grows: it has no beams and no way back; use another cache", "unsupported")

    reorder_cache = crop = batch_repeat_interleave = batch_select_indices = _refuse

    def append(self, seen: Sight, module: Any, k: torch.Tensor) -> None:
        """The first tokens, k [batch, 1, n, width]."""
        batch, _, n, width = k.shape
        rows = Rows(
            "nope",
            module.num_heads,
            width,
            batch=batch,
            capacity=self.capacity,
            kv_heads=1,
            value_dim=module.kv_lora_rank,
            values_in_keys=True,
            dtype=k.dtype,
            k_dtype=self.dtype,
            scale=module.scaling,
        )
        padding = self._padding(seen, n)
        rows.append(k, k_lens=None if padding is None else n - padding.expand(batch))
        self.rows = rows
        self._count(n, padding)

    def attend(self, seen: Sight, module: Any, q: torch.Tensor, k: torch.Tensor, v: Any) -> tuple[torch.Tensor, None]:
        """Later ones.  Returns o [batch, n, heads, latent]."""
        assert self.rows is not None
        batch, _, n, _ = k.shape
        padding = self._padding(seen, n)
        o = self.rows.step(q, k, k_lens=None if padding is None else n - padding.expand(batch))
        self._count(n, padding)
        count_fused()
        return o.transpose(1, 2), None

    def _padding(self, seen: Sight, n: int) -> torch.Tensor | None:
        """How many of n new tokens are padding, [batch or 1]: the first ones; None if none is."""
        others = seen.dense, seen.q_pos, seen.k_first, seen.cu_q
        segments = torch.zeros(1, self.length + n, dtype=torch.int64) if seen.k_seg is None else seen.k_seg
        hidden, new = segments < 0, segments[..., -n:]
        left = bool((segments <= 0).all() and (new.diff(dim=-1) >= 0).all())
        if not (seen.causal and left and seen.window == masks.OPEN and all(x is None for x in others)):
            raise Error(
                "LatentCache supports causal masks and padding on the left alone, and no torch.compile", "unsupported"
            )
        if not bool((hidden[..., :-n].sum(-1) == self.hidden).all()):
            raise Error("attention_mask hides other tokens than in the steps before, which LatentCache did not store")
        padding = hidden[..., -n:].sum(-1)
        return padding if bool(padding.any()) else None

    def _count(self, n: int, padding: torch.Tensor | None) -> None:
        self.length += n
        if padding is not None:
            self.hidden = self.hidden + padding


class LatentCache(Cache):
    """A cache of DeepSeek V2 and V3 that stores their latents in 16 bits or 8, after `loci.hf.patch(model)`.

        model.generate(tokens, cache=loci.hf.LatentCache(model.config, 4096, dtype="q8_0"))

    A step copies none of the latents before it. Padding is on the left; there are no beams and no gradients.

    Parameters
    ----------
    config : PreTrainedConfig
        Configuration of the model.
    max_cache_len : int
        Most tokens of a sequence.
    dtype : str or dtype, optional
        Type in which latents are stored: bfloat16, float16, or `"q8_0"`, 8 bits with a scale for 32 numbers. By default
        that of the model.
    """

    def __init__(self, config: PreTrainedConfig, max_cache_len: int, dtype: DTypeLike | None = None) -> None:
        capacity = whole(max_cache_len, "max_cache_len", 1)
        super().__init__(layers=[_Layer(capacity, dtype) for _ in range(config.num_hidden_layers)])

    @property
    def nbytes(self) -> int:
        """Size in bytes, from the first tokens on."""
        layers: list[Any] = self.layers
        return sum(layer.rows.nbytes for layer in layers if layer.rows is not None)


# ---- Attention -----------------------------------------------------------------------------------


def _rotate(self: Any, q: torch.Tensor, k: torch.Tensor, embeddings: Any) -> Any:
    """By the functions beside the class."""
    source = sys.modules[type(self).__module__]
    if isinstance(embeddings, torch.Tensor):
        return source.apply_rotary_emb(q, k, embeddings)
    if self.config.rope_interleave:
        return source.apply_rotary_pos_emb_interleave(q, k, *embeddings)
    return source.apply_rotary_pos_emb(q, k, *embeddings)


def _absorbs(self: Any, rows: int, keys: int) -> bool:
    """Whether it takes fewer products of a head to multiply rows by its matrices than to multiply keys."""
    matrices = self.kv_lora_rank * (self.qk_nope_head_dim + self.v_head_dim)
    wider = 2 * self.kv_lora_rank - self.qk_nope_head_dim - self.v_head_dim  # a latent than a key and a value
    return bool(rows * (matrices + keys * wider) < keys * matrices)


def _absorbed(self: Any, q: torch.Tensor, latent: torch.Tensor, rotated: torch.Tensor, attend: Any) -> Any:
    """All heads share the latents.  Returns o [batch, n, heads, width], and weights where they are wanted."""
    widths = [self.qk_nope_head_dim, self.v_head_dim]
    up, down = torch.split(self.kv_b_proj.weight.unflatten(0, (self.num_heads, -1)), widths, 1)
    q, q_rot = torch.split(q, [widths[0], self.qk_rope_head_dim], -1)
    k = torch.cat((latent, rotated), -1)
    o, weights = attend(self, torch.cat((q @ up, q_rot), -1), k, k[..., : self.kv_lora_rank])
    return (o.transpose(1, 2) @ down.mT).transpose(1, 2), weights


def _materialised(self: Any, q: torch.Tensor, latent: torch.Tensor, rotated: torch.Tensor, attend: Any) -> Any:
    """Each head has keys and values of its own."""
    made = self.kv_b_proj(latent[:, 0]).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
    k, v = torch.split(made, [self.qk_nope_head_dim, self.v_head_dim], -1)
    return attend(self, q, torch.cat((k, rotated.expand(-1, self.num_heads, -1, -1)), -1), v)


def _check_cached(self: Any, options: dict[str, Any]) -> None:
    if type(self.kv_b_proj) is not torch.nn.Linear:
        raise Error(f"LatentCache needs kv_b_proj as a torch.nn.Linear, not a {type(self.kv_b_proj).__name__}")
    if options.get("output_attentions"):
        raise Error("LatentCache has no weights as an output: use another cache", "unsupported")
    if options.get("cu_seq_lens_q") is not None:
        raise Error("LatentCache has no packed sequences: use another cache", "unsupported")
    if self.training and self.attention_dropout:
        raise Error("LatentCache has no dropout: call model.eval()", "unsupported")


def _forward(
    self: Any,
    hidden_states: torch.Tensor,
    *args: Any,
    attention_mask: Any = None,
    position_embeddings: Any = None,
    **kwargs: Any,
) -> Any:
    name = "cache" if "cache" in kwargs else "past_key_values"  # its name in older versions of transformers
    cache = kwargs.get(name)
    if args or not _ours(self) or not isinstance(cache, Cache):
        given = {"attention_mask": attention_mask, "position_embeddings": position_embeddings, **kwargs}
        return type(self).forward(self, hidden_states, *args, **given)
    from .hf import _attention, sight

    del kwargs[name]
    x, n = hidden_states, hidden_states.shape[1]
    q = self.q_proj(x) if self.q_lora_rank is None else self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
    q = q.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
    latent, rotated = torch.split(self.kv_a_proj_with_mqa(x)[:, None], [self.kv_lora_rank, self.qk_rope_head_dim], -1)
    latent = self.kv_a_layernorm(latent)
    q, q_rot = torch.split(q, [self.qk_nope_head_dim, self.qk_rope_head_dim], -1)
    q_rot, rotated = _rotate(self, q_rot, rotated, position_embeddings)
    q = torch.cat((q, q_rot), -1)

    dropout = self.attention_dropout if self.training else 0.0
    attend = partial(_attention, attention_mask=attention_mask, scaling=self.scaling, dropout=dropout, **kwargs)
    if isinstance(cache, LatentCache):
        _check_cached(self, kwargs)
        layer = cache.layers[self.layer_idx]
        seen = sight(attention_mask, n, layer.length + n, True)
        absorbs = layer.length > 0
        if absorbs:
            attend = partial(layer.attend, seen)
        else:
            layer.append(seen, self, torch.cat((latent, rotated), -1))
    else:
        latent, rotated = cache.update(latent, rotated, self.layer_idx)
        absorbs = type(self.kv_b_proj) is torch.nn.Linear and _absorbs(self, n, latent.shape[2])
    o, weights = (_absorbed if absorbs else _materialised)(self, q, latent, rotated, attend)
    return self.o_proj(o.flatten(2)), weights


PATCHES: dict[str, tuple[dict[str, Any], masks.Treatment]] = {
    name: ({"forward": _forward}, masks.Treatment()) for name in ("DeepseekV2Attention", "DeepseekV3Attention")
}
