# SPDX-License-Identifier: MIT
"""XLNet: what loci.hf.patch() puts into it.

Scores are Transformer-XL's, loci's `xl`, and one term more for keys of another segment.  A key of row i's own segment
loses (q_i + r_s) (e_1 - e_0), as much as the others gain but for a summand of the whole row.  So each segment has a
channel of its own: rows have that number in theirs, negative, and keys a one.  The model makes arrays of rows times
keys out of its masks and segments.  It runs here on a copy of itself that is given neither, and whose layers are given
them by row."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from . import _hf_masks as masks
from ._hf_attend import attend, fall_back
from ._hf_masks import Sight
from ._hf_speech import xl
from ._ranks import alone


def _ours(module: Any) -> bool:
    """Whether the model still has "loci" for its implementation."""
    return getattr(module._loci_config, "_attn_implementation", None) == "loci"


@dataclass
class ByRow:
    """In the place of a layer's mask.  segments: of all keys, [batch, keys]; clamp: -1 is none."""

    seen: Sight
    segments: torch.Tensor | None
    clamp: int


# ---- The model -----------------------------------------------------------------------------------


def _sight(self: Any, tokens: Any, mems: int, rows: int, dense: Any, keeps: bool) -> Sight:
    """tokens: truths [batch, rows], or None; dense: truths of pairs that are hidden, [batch, rows, rows], or None."""
    seen = Sight()
    if self.attn_type == "uni":
        seen = Sight(True, (mems, -1) if self.same_length else masks.OPEN)
    if tokens is not None and bool(tokens.all()):
        tokens = None
    if dense is None and tokens is not None and not keeps:
        seen.k_seg = functional.pad(torch.where(tokens, 0, -1), (mems, 0))
        seen.q_seg = torch.zeros_like(seen.k_seg[:, mems:])
    elif dense is not None or tokens is not None:
        # every row sees itself, and rows of padding are kept for later calls
        hidden = torch.zeros(1, rows, rows, dtype=torch.bool) if dense is None else dense
        hidden = hidden if tokens is None else hidden | ~tokens[:, None]
        hidden = functional.pad(hidden, (mems, 0))[:, None] | ~seen.pairs(rows, mems + rows)
        seen = Sight(dense=~hidden | torch.eye(rows, mems + rows, dtype=torch.bool).roll(mems, -1))
    return seen


def _model(
    self: Any,
    input_ids: torch.Tensor | None = None,
    attention_mask: torch.Tensor | None = None,
    mems: Any = None,
    perm_mask: torch.Tensor | None = None,
    target_mapping: torch.Tensor | None = None,
    token_type_ids: torch.Tensor | None = None,
    input_mask: torch.Tensor | None = None,
    inputs_embeds: torch.Tensor | None = None,
    use_mems: bool | None = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """In the place of the model's forward()."""
    if _ours(self):
        alone("XLNet's attention is that of one process")
    if target_mapping is not None and _ours(self):
        fall_back("two_streams")
    x = input_ids if inputs_embeds is None else inputs_embeds
    both = attention_mask is not None and input_mask is not None  # which the model refuses
    if not _ours(self) or target_mapping is not None or x is None or both or torch.compiler.is_compiling():
        given = (input_ids, attention_mask, mems, perm_mask, target_mapping, token_type_ids, input_mask, inputs_embeds)
        return type(self).forward(self, *given, use_mems, *args, **kwargs)
    rows = x.shape[1]
    before = mems[0].shape[0] if mems is not None and mems[0] is not None else 0
    tokens = None
    if input_mask is not None:
        tokens = input_mask <= 0
    elif attention_mask is not None:
        tokens = 1.0 - attention_mask <= 0
    segments = None if token_type_ids is None else functional.pad(token_type_ids, (before, 0))
    keeps = self.config.use_mems_train if self.training else self.config.use_mems_eval
    keeps = bool(keeps if use_mems is None else use_mems)
    dense = None if perm_mask is None else perm_mask > 0
    by_row = ByRow(_sight(self, tokens, before, rows, dense, keeps), segments, max(self.clamp_len, 0) or -1)

    # a copy with parameters, layers and hooks of the model
    lean = copy.copy(self)
    waves = self.relative_positional_encoding
    if not self.bi_data and not (self.training and self.dropout.p):
        waves = _none  # the layers know them
    layers = [partial(_layer, layer, by_row) for layer in self.layer]
    for name, value in (("attn_type", "bi"), ("relative_positional_encoding", waves), ("layer", layers)):
        object.__setattr__(lean, name, value)
    unsaid = (None,) * 4  # by_row says it
    return type(self).forward(lean, input_ids, None, mems, *unsaid, inputs_embeds, use_mems, *args, **kwargs)


def _none(qlen: int, klen: int, bsz: int | None = None, device: Any = None) -> torch.Tensor:
    return torch.empty(0)


def _layer(layer: Any, by_row: ByRow, h: Any, g: Any, **given: Any) -> Any:
    return layer(h, g, **{**given, "attn_mask_h": by_row})


# ---- Its attention -------------------------------------------------------------------------------


def _projected(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """[rows, batch, model's width] to [batch, heads, rows, width]."""
    return torch.einsum("ibh,hnd->bnid", x, weight)


def _wider(x: torch.Tensor, channels: int, dim: int = -1) -> torch.Tensor:
    """With zeros for so many channels more."""
    if not channels:
        return x
    shape = list(x.shape)
    shape[dim] = channels
    return torch.cat((x, x.new_zeros(shape)), dim)


def _segment_channels(self: Any, q: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """What rows and keys have more: [batch, heads, rows, segments] and [batch, heads, keys, segments]."""
    names, at = torch.unique(ids, return_inverse=True)
    if names.numel() < 2:
        return None
    one = functional.one_hot(at).to(q.dtype)[:, None]  # [batch, 1, keys, segments]
    other = (q + self.r_s_bias[:, None]) @ (self.seg_embed[1] - self.seg_embed[0])[..., None]
    return -other * one[:, :, -q.shape[2] :], one.expand(-1, q.shape[1], -1, -1)


def _given_waves(
    self: Any, q: torch.Tensor, k: torch.Tensor, r: torch.Tensor, entry: int, channels: int
) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    """Scores of vectors by distance, of one batch entry: `shaw`.  A channel more adds r_r - r_w to its rows."""
    # from the farthest key behind to the farthest ahead
    vectors = torch.einsum("th,hnd->ntd", r[1:, entry].type(self.r.dtype), self.r)
    apart = vectors @ (self.r_r_bias - self.r_w_bias)[..., None]
    table = torch.cat((_wider(vectors, channels), apart), -1)
    q = torch.cat((q, torch.ones_like(q[..., :1])), -1)
    rows, keys = q.shape[2], k.shape[2]

    def bias(seen: Sight) -> torch.Tensor:
        at = (keys - 1 - seen.distances(rows, keys)).clamp(0, table.shape[1] - 1)
        every = q @ table.to(q.dtype).transpose(-1, -2)
        moved: torch.Tensor = self.scale * every.gather(-1, at[:, None].expand(1, q.shape[1], -1, -1))
        return moved

    text = f"shaw:left={keys - 1},right={table.shape[1] - keys},values=0"
    return q, _wider(k, 1), {"encoding": text, "tensors": {"shaw.k": table}, "bias": bias}


def _one_entry(seen: Sight, entry: int) -> Sight:
    one = copy.copy(seen)
    for name in ("q_seg", "k_seg", "dense"):
        x = getattr(seen, name)
        if x is not None and x.shape[0] > 1:
            setattr(one, name, x[entry : entry + 1])
    return one


def _attention(
    self: Any,
    h: torch.Tensor,
    g: torch.Tensor | None,
    attn_mask_h: Any,
    attn_mask_g: Any,
    r: torch.Tensor,
    seg_mat: Any,
    mems: torch.Tensor | None = None,
    target_mapping: torch.Tensor | None = None,
    output_attentions: bool = False,
) -> Any:
    if not isinstance(attn_mask_h, ByRow):
        more = {"mems": mems, "target_mapping": target_mapping, "output_attentions": output_attentions}
        return type(self).forward(self, h, g, attn_mask_h, attn_mask_g, r, seg_mat, **more)
    seen, ids = attn_mask_h.seen, attn_mask_h.segments
    source = torch.cat((mems, h)) if mems is not None and mems.dim() > 1 else h
    q, k, v = _projected(h, self.q), _projected(source, self.k), _projected(source, self.v)
    how: dict[str, Any] = {
        "scaling": self.scale,
        "dropout": self.dropout.p if self.training else 0.0,
        "output_attentions": bool(output_attentions),
    }
    found = None if ids is None else _segment_channels(self, q, ids)
    extra = 0 if found is None else found[0].shape[-1]
    drops = r.numel() > 0
    if drops:
        q = q + self.r_w_bias[:, None]
    if found is not None:
        q, k = torch.cat((q, found[0]), -1), torch.cat((k, found[1]), -1)
    if drops:
        made = []
        for entry in range(h.shape[1]):
            one = slice(entry, entry + 1)
            own = _one_entry(seen, entry)
            wide, keys, positions = _given_waves(self, q[one], k[one], r, entry, extra)
            positions["bias"] = partial(positions["bias"], own)
            made.append(attend(wide, keys, v[one], own, **positions, **how))
        o = torch.cat([o for o, _ in made])
        w = torch.cat([w for _, w in made if w is not None]) if output_attentions else None
    else:
        weight = _wider(self.r.permute(1, 2, 0), extra, 1)
        u, t = (_wider(x, extra) for x in (self.r_w_bias, self.r_r_bias))
        positions = xl(q, k, seen, self.scale, weight.flatten(0, 1), u, t, interleaved=False, clamp=attn_mask_h.clamp)
        o, w = attend(q, k, v, seen, **positions, **how)
    y = self.post_attention(h, o.transpose(0, 1))
    return (y, None) if w is None else (y, None, w.permute(2, 3, 0, 1))


PATCHES: dict[str, tuple[dict[str, Any], masks.Treatment]] = {
    "XLNetModel": ({"forward": _model}, masks.Treatment(own=True)),
    "XLNetRelativeAttention": ({"forward": _attention}, masks.Treatment(own=True)),
}
