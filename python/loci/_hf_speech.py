# SPDX-License-Identifier: MIT
"""Encoders with relative positions, most of them of speech: what loci.hf.patch() puts into them.

Transformer-XL's scores are loci's `xl`.  Many models interleave sines and cosines, xl has all sines first, so the
columns of a projection are put in that order.  Vectors by clipped distance are `shaw`.  Masks stay O(L): where a model
writes pairs out, its method for that is replaced by one that says the same by row."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from . import _hf_masks as masks
from ._hf_attend import attend, fall_back
from ._hf_masks import Sight


def _ours(module: Any) -> bool:
    """Whether the model still has "loci" for its implementation."""
    return getattr(module._loci_config, "_attn_implementation", None) == "loci"


def _heads(x: torch.Tensor, width: int) -> torch.Tensor:
    """[batch, rows, heads width] to [batch, heads, rows, width]."""
    return x.reshape(*x.shape[:2], -1, width).transpose(1, 2)


# ---- Masks by row --------------------------------------------------------------------------------

_SAME = {"unsqueeze", "expand", "transpose", "__and__", "bitwise_and", "to", "contiguous", "detach", "clone"}


class Frames(torch.Tensor):
    """Truths, [batch, keys]: which keys are frames.  It stands for the truths of all pairs in models that make those in
    their own code, and answers what they ask: they combine the padding of rows with that of keys, and want to know
    which rows see nothing.  Anything else is an Error."""

    sight: Sight
    blind: torch.Tensor  # [batch, rows]
    inverted: bool

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, x = getattr(func, "__name__", ""), args[0]
        if name in _SAME and all(isinstance(y, Frames) for y in args if isinstance(y, torch.Tensor)):
            return x
        if name in ("__invert__", "bitwise_not"):
            return frames(_plain(x), x.sight, x.blind, not x.inverted)
        if name == "all" and x.inverted:
            return x.blind[:, None]
        if name == "int" and not x.inverted:
            return _plain(x).int()
        return masks.look(func, name, args, kwargs)


def _plain(x: torch.Tensor) -> torch.Tensor:
    with torch._C.DisableTorchFunctionSubclass():
        return x.clone()


def frames(tokens: torch.Tensor, sight: Sight, blind: torch.Tensor, inverted: bool = False) -> Frames:
    made: Frames = tokens.as_subclass(Frames)
    made.sight, made.blind, made.inverted = sight, blind, inverted
    return made


def sight(mask: Any, rows: int, keys: int) -> Sight:
    """Of an encoder: no order, and rows are the last of the keys."""
    from .hf import sight

    if isinstance(mask, Frames):
        return mask.sight
    seen = sight(mask, rows, keys, False)
    if seen.dense is not None:
        seen.placed = True
    return seen


def _padded(tokens: torch.Tensor) -> Sight:
    segments = torch.where(tokens, 0, -1)
    return Sight(q_seg=segments, k_seg=segments)


# ---- Transformer-XL ------------------------------------------------------------------------------


def _drops(module: torch.nn.Module) -> bool:
    return any(isinstance(m, torch.nn.Dropout) and m.p and m.training for m in module.modules())


def _weight(projection: torch.nn.Module, width: int, like: torch.Tensor) -> torch.Tensor:
    """[outputs, width], also where the projection is more than one matrix."""
    if type(projection) is torch.nn.Linear and projection.bias is None and not projection._forward_hooks:
        return projection.weight
    made: torch.Tensor = projection(torch.eye(width, dtype=like.dtype))
    return made.T


def _waves(distances: torch.Tensor, width: int, base: float) -> torch.Tensor:
    """[n, width] in double, sines first."""
    t = torch.arange((width + 1) // 2, dtype=torch.float64)
    angles = distances[:, None].double() * base ** (-2 * t / width)
    return torch.cat((angles.sin(), angles[:, : width // 2].cos()), -1)


def _by_distance(q: torch.Tensor, vectors: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """q [batch, heads, rows, width] times vectors [heads or none, n, width], at [batch or 1, rows, keys] of the n."""
    every = q @ vectors.to(q.dtype).transpose(-1, -2)
    return every.gather(-1, at[:, None].expand(*q.shape[:3], -1))


def xl(
    q: torch.Tensor,
    k: torch.Tensor,
    seen: Sight,
    scale: float,
    weight: torch.Tensor,
    u: torch.Tensor,
    v: torch.Tensor,
    *,
    interleaved: bool = True,
    base: float = 10000.0,
    clamp: int = -1,
) -> dict[str, Any]:
    """What attend() needs for a projection [heads width, model's width] of the waves.  clamp: -1 is none."""
    heads, rows, keys = q.shape[1], q.shape[2], k.shape[2]
    w = weight.reshape(heads, -1, weight.shape[-1])
    if interleaved:
        w = torch.cat((w[..., 0::2], w[..., 1::2]), -1)

    def bias() -> torch.Tensor:
        d = seen.distances(rows, keys)
        d = d if clamp < 0 else d.clamp(-clamp, clamp)
        low = int(d.min())
        waves = _waves(torch.arange(low, int(d.max()) + 1), w.shape[-1], base).to(w.dtype)
        moved = _by_distance(q + v[:, None], waves @ w.transpose(-1, -2), d - low)
        every = k.repeat_interleave(heads // k.shape[1], 1)
        return scale * (moved + (every @ u[..., None]).transpose(-1, -2))

    text = "xl" if base == 10000.0 else f"xl:base={base!r}"
    reach = clamp if clamp >= 0 else max(seen.window)
    if clamp >= 0 or (min(seen.window) >= 0 and reach > 0):  # distances that nobody sees need no tables
        text += ("," if ":" in text else ":") + f"clamp={reach}"
    return {"encoding": text, "tensors": {"xl.w": w, "xl.u": u, "xl.v": v}, "bias": bias}


def _parakeet(
    self: Any,
    hidden_states: torch.Tensor,
    position_embeddings: torch.Tensor | None = None,
    attention_mask: Any = None,
    cache: Any = None,
    **kwargs: Any,
) -> Any:
    given = {} if cache is None else {"cache": cache}
    drops = (self.training and self.config.dropout_positions) or _drops(self.relative_k_proj)
    if not _ours(self) or drops:
        if _ours(self):
            fall_back("positions")
        if isinstance(attention_mask, Frames):
            attention_mask = attention_mask.sight.pairs(hidden_states.shape[1], attention_mask.shape[-1])
        return type(self).forward(self, hidden_states, position_embeddings, attention_mask, **given, **kwargs)
    q, k, v = (_heads(f(hidden_states), self.head_dim) for f in (self.q_proj, self.k_proj, self.v_proj))
    if cache is not None:
        k, v = cache.update(k, v, self.layer_idx, kwargs=kwargs)
    seen = sight(attention_mask, q.shape[2], k.shape[2])
    weight = _weight(self.relative_k_proj, hidden_states.shape[-1], hidden_states)
    o, w = attend(
        q,
        k,
        v,
        seen,
        scaling=self.scaling,
        dropout=self.attention_dropout if self.training else 0.0,
        output_attentions=bool(kwargs.get("output_attentions")),
        **xl(q, k, seen, self.scaling, weight, self.bias_u, self.bias_v),
    )
    return self.o_proj(o.flatten(2)), w


def _parakeet_mask(self: Any, attention_mask: torch.Tensor, target_length: int | None = None) -> Any:
    """In the place of _get_output_attention_mask(): frames that stay [batch, frames]."""
    tokens = type(self)._get_output_attention_mask(self, attention_mask, target_length)
    if not _ours(self) or torch.compiler.is_compiling():
        return tokens
    return frames(tokens, _padded(tokens), ~tokens)


# ---- wav2vec2, Seamless --------------------------------------------------------------------------


def _shaw(self: Any, q: torch.Tensor, k: torch.Tensor, seen: Sight) -> dict[str, Any]:
    """What attend() needs for vectors by clipped distance, the same for all heads."""
    left, right = self.left_max_position_embeddings, self.right_max_position_embeddings
    vectors = self.distance_embedding.weight
    rows, keys = q.shape[2], k.shape[2]

    def bias() -> torch.Tensor:
        at = (-seen.distances(rows, keys)).clamp(-left, right) + left
        moved: torch.Tensor = self.scaling * _by_distance(q, vectors, at)
        return moved

    text = f"shaw:left={left},right={right},values=0"
    return {"encoding": text, "tensors": {"shaw.k": vectors}, "bias": bias}


def _wav2vec2(
    self: Any,
    hidden_states: torch.Tensor,
    attention_mask: Any = None,
    relative_position_embeddings: torch.Tensor | None = None,
    **kwargs: Any,
) -> Any:
    """wav2vec2-conformer, wav2vec2-bert and Seamless."""
    kind = self.position_embeddings_type
    drops = kind == "relative" and _drops(self.linear_pos)  # then the bias is dense, as the class makes it
    if not _ours(self) or kind not in ("relative", "relative_key") or drops:
        given = {"relative_position_embeddings": relative_position_embeddings}
        given = {name: x for name, x in given.items() if x is not None}
        return type(self).forward(self, hidden_states, attention_mask, **given, **kwargs)
    q, k, v = (_heads(f(hidden_states), self.head_size) for f in (self.linear_q, self.linear_k, self.linear_v))
    seen = sight(attention_mask, q.shape[2], k.shape[2])
    if kind == "relative":
        weight = _weight(self.linear_pos, hidden_states.shape[-1], hidden_states)
        positions = xl(q, k, seen, self.scaling, weight, self.pos_bias_u, self.pos_bias_v)
    else:
        positions = _shaw(self, q, k, seen)
    o, w = attend(
        q,
        k,
        v,
        seen,
        scaling=self.scaling,
        dropout=self.dropout.p if self.training else 0.0,
        output_attentions=bool(kwargs.get("output_attentions")),
        **positions,
    )
    return self.linear_out(o.flatten(2)), w


def _chunks(self: Any, attention_mask: torch.Tensor | None, hidden_states: torch.Tensor) -> torch.Tensor:
    """In the place of _apply_chunk_attention(): a range of keys for each row."""
    if not _ours(self):
        mask: torch.Tensor = type(self)._apply_chunk_attention(self, attention_mask, hidden_states)
        return mask
    batch, rows = hidden_states.shape[:2]
    size, left = self.config.speech_encoder_chunk_size, self.config.speech_encoder_left_chunk_num
    at = torch.arange(rows)[None]
    first = torch.zeros_like(at) if left < 0 else (at // size - left).clamp(min=0) * size
    last = ((at // size + 1) * size).clamp(max=rows) - 1
    tokens = torch.ones_like(at, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
    return masks.pack(batch, torch.where(tokens, 0, -1), torch.zeros_like(at), first, last, at, at)


# ---- FastSpeech 2 --------------------------------------------------------------------------------


def _fastspeech2(
    self: Any,
    hidden_states: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    pos_emb: torch.Tensor | None = None,
    output_attentions: Any = False,
) -> Any:
    if not _ours(self) or _drops(self._loci_positions[0]) or _drops(self.linear_pos):
        if _ours(self):
            fall_back("positions")
        return type(self).forward(self, hidden_states, attention_mask, pos_emb, output_attentions)
    q, k, v = (_heads(f(hidden_states), self.head_dim) for f in (self.linear_q, self.linear_k, self.linear_v))
    seen = Sight()
    if attention_mask is not None:
        tokens = attention_mask.ne(0).expand(q.shape[0], 1, q.shape[2])[:, 0]
        segments = torch.where(tokens, 0, -1)
        seen = Sight(q_seg=torch.zeros_like(segments), k_seg=segments)
    scale = self.dim_key**-0.5
    weight = _weight(self.linear_pos, hidden_states.shape[-1], hidden_states)
    o, w = attend(
        q,
        k,
        v,
        seen,
        scaling=scale,
        dropout=self.dropout.p if self.training else 0.0,
        output_attentions=bool(output_attentions),
        **xl(q, k, seen, scale, weight, self.pos_bias_u, self.pos_bias_v),
    )
    return self.linear_out(o.flatten(2)), w


# ---- Windows of Nemotron and of Gemma's audio towers ---------------------------------------------

_AND = "and_masks.<locals>.and_mask"
_LIMITED = "chunked_limited_mask_function.<locals>.inner_mask"
_SLIDING = "sliding_window_mask_function.<locals>.inner_mask"


def _free(function: Any) -> dict[str, Any]:
    cells = getattr(function, "__closure__", None) or ()
    return {name: x.cell_contents for name, x in zip(function.__code__.co_freevars, cells, strict=True)}


def local_mask(wanted: masks.Wanted, function: Any) -> Frames | None:
    """What a window that a model itself describes says, by row.  None: it is not known."""
    if getattr(function, "__qualname__", "") != _AND or not wanted.ends_together:
        return None
    parts = {getattr(f, "__qualname__", ""): f for f in _free(function)["mask_functions"]}
    parts.pop("bidirectional_mask_function", None)
    if len(parts) != 1:
        return None
    ((name, inner),) = parts.items()
    row_at = wanted.row_indices()
    if name == _LIMITED:
        size, left = _free(inner)["chunk_size"], _free(inner)["left_context_chunks"]
        first, last = (row_at // size - left) * size, (row_at // size + 1) * size - 1
        window = ((left + 1) * size - 1, size - 1)
    elif name == _SLIDING:
        behind, ahead = (int(side) for side in _free(inner)["sliding_window"])
        if behind < 1:
            return None
        window = (behind - 1, max(ahead - 1, 0))
        first, last = row_at - window[0], row_at + window[1]
    else:
        return None
    first = (first - wanted.first_key).clamp(min=0)
    last = (last - wanted.first_key).clamp(max=wanted.keys - 1)
    tokens = wanted.tokens(wanted.key_indices()).expand(wanted.batch, -1)
    before = functional.pad(tokens.long().cumsum(-1), (1, 0))
    blind = before.gather(1, (last + 1).expand(wanted.batch, -1)) == before.gather(1, first.expand(wanted.batch, -1))
    seen = Sight(window=window if max(window) < wanted.keys else masks.OPEN)
    if name == _LIMITED:
        seen.k_first, seen.k_last = first, last
    if not bool(tokens.all()):
        seen.k_seg = torch.where(tokens, 0, -1)
        seen.q_seg = seen.k_seg.new_zeros(wanted.batch, wanted.rows)
    return frames(tokens.clone(), seen, blind)


def _same_mask(self: Any, mask_4d: Any) -> Any:
    """In the place of _convert_4d_mask_to_blocked_5d()."""
    if isinstance(mask_4d, Frames):
        return mask_4d
    return type(self)._convert_4d_mask_to_blocked_5d(self, mask_4d)


def _gemma_base(width: int) -> float:
    """Gemma's wavelengths reach from 2 pi to 20000 pi, both included."""
    half = width // 2
    return float(10000.0 ** (half / (half - 1))) if half > 1 else 10000.0


def _gemma(self: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: Sight, projection: Any) -> torch.Tensor:
    """o [batch, rows, heads, width], of q that is scaled."""
    width = self.config.hidden_size
    weight = _weight(projection, width, projection.weight).to(q.dtype)
    none = q.new_zeros(q.shape[1], q.shape[-1])
    positions = xl(q, k, seen, 1.0, weight, none, none, interleaved=False, base=_gemma_base(width))
    del positions["bias"]
    return attend(q, k, v, seen, scaling=1.0, softcap=float(self.attention_logits_soft_cap), **positions)[0]


def _gemma3n(self: Any, hidden_states: torch.Tensor, mask: torch.Tensor) -> Any:
    """mask is True for padding."""
    if not _ours(self) or torch.compiler.is_compiling():
        return type(self).forward(self, hidden_states, mask)
    q, k, v = (_heads(f(hidden_states), self.head_dim) for f in (self.q_proj, self.k_proj, self.v_proj))
    q = q * self.q_scale * functional.softplus(self.per_dim_scale)
    seen = Sight(window=(self.max_past_horizon, self.max_future_horizon))
    if bool(mask.any()):
        seen.k_seg = torch.where(mask, -1, 0)
        seen.q_seg = torch.zeros_like(seen.k_seg)
    return _gemma(self, q, k, v, seen, self.relative_position_embedding.pos_proj)


def _gemma4(
    self: Any, hidden_states: torch.Tensor, position_embeddings: torch.Tensor, attention_mask: Any = None
) -> Any:
    if not _ours(self) or not isinstance(attention_mask, Frames):
        return type(self).forward(self, hidden_states, position_embeddings, attention_mask)
    q, k, v = (_heads(f(hidden_states).float(), self.head_dim) for f in (self.q_proj, self.k_proj, self.v_proj))
    q = q * self.q_scale * functional.softplus(self.per_dim_scale)
    o = _gemma(self, q, k * self.k_scale, v, attention_mask.sight, self.relative_k_proj)
    return self.post(o.flatten(2).to(hidden_states.dtype)), None


# ---- What is put where ---------------------------------------------------------------------------

# class of the module: what it is given, and how its model takes masks
PATCHES: dict[str, tuple[dict[str, Any], masks.Treatment]] = {
    "ParakeetEncoderAttention": ({"forward": _parakeet}, masks.Treatment()),
    "ParakeetEncoder": ({"_get_output_attention_mask": _parakeet_mask}, masks.Treatment()),
    "NemotronAsrStreamingEncoderAttention": ({"forward": _parakeet}, masks.Treatment(local=True)),
    "Wav2Vec2ConformerSelfAttention": ({"forward": _wav2vec2}, masks.Treatment()),
    "Wav2Vec2BertSelfAttention": ({"forward": _wav2vec2}, masks.Treatment()),
    "SeamlessM4TConformerSelfAttention": ({"forward": _wav2vec2}, masks.Treatment()),
    "SeamlessM4Tv2ConformerSelfAttention": ({"forward": _wav2vec2}, masks.Treatment()),
    "SeamlessM4Tv2ConformerEncoder": ({"_apply_chunk_attention": _chunks}, masks.Treatment()),
    "FastSpeech2ConformerAttention": ({"forward": _fastspeech2}, masks.Treatment(own=True)),
    "Gemma3nAudioAttention": ({"forward": _gemma3n}, masks.Treatment(own=True)),
    "Gemma4AudioAttention": ({"forward": _gemma4}, masks.Treatment(own=True, local=True)),
    "Gemma4AudioModel": ({"_convert_4d_mask_to_blocked_5d": _same_mask}, masks.Treatment(own=True, local=True)),
}

# what a class must have to be the one that is known here
_PARTS = {
    "ParakeetEncoderAttention": ("relative_k_proj", "bias_u", "bias_v", "o_proj"),
    "NemotronAsrStreamingEncoderAttention": ("relative_k_proj", "bias_u", "bias_v", "o_proj"),
    "Wav2Vec2ConformerSelfAttention": ("position_embeddings_type", "scaling"),
    "Wav2Vec2BertSelfAttention": ("position_embeddings_type", "scaling"),
    "SeamlessM4TConformerSelfAttention": ("position_embeddings_type", "scaling"),
    "SeamlessM4Tv2ConformerSelfAttention": ("position_embeddings_type", "scaling"),
    "FastSpeech2ConformerAttention": ("linear_pos", "pos_bias_u", "pos_bias_v", "_loci_positions"),
    "DeepseekV2Attention": ("kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj"),
    "DeepseekV3Attention": ("kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj"),
    "XLNetRelativeAttention": ("r_w_bias", "r_r_bias", "r_s_bias", "seg_embed", "post_attention", "scale"),
    "Gemma3nAudioAttention": ("relative_position_embedding", "per_dim_scale", "max_past_horizon"),
    "Gemma4AudioAttention": ("relative_k_proj", "per_dim_scale", "max_past_horizon"),
}


def prepare(model: Any) -> None:
    """Tells attention of FastSpeech 2 where its positions are dropped.  A tuple, as a module would become a part."""
    for module in model.modules():
        if type(module).__name__ == "FastSpeech2ConformerEncoder":
            for layer in module.conformer_layers:
                layer.self_attn._loci_positions = (module.pos_enc,)


def known(module: Any) -> bool:
    """Whether it is as the class of this name is known here.  What is not stays as it is."""
    name = type(module).__name__
    if name not in _PARTS:  # a model, which makes masks for its attention
        return all(known(m) for m in module.modules() if type(m).__name__ in _PARTS)
    if not all(hasattr(module, part) for part in _PARTS[name]):
        return False
    if name == "Gemma4AudioAttention":  # else the distances of its waves are not those of rows and keys
        return bool(module.context_size // 2 == module.max_past_horizon and module.max_future_horizon <= 1)
    return True
