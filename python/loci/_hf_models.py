# SPDX-License-Identifier: MIT
"""Models of transformers with biases of their own: what loci.hf.patch() puts into them.

A patched module keeps its class: forward, or compute_bias, of the instance is replaced, and does as the class does
whenever the model's implementation is another than "loci"."""

from __future__ import annotations

import inspect
import math
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional
from transformers import PreTrainedModel

from . import _hf_latent as latent
from . import _hf_masks as masks
from . import _hf_speech as speech
from . import _hf_xlnet as xlnet
from ._c import Error
from ._hf_attend import attend, fall_back
from ._hf_masks import Sight


def _ours(module: Any) -> bool:
    """Whether the model still has "loci" for its implementation."""
    return getattr(module._loci_config, "_attn_implementation", None) == "loci"


def _source(module: Any) -> Any:
    """Where the class of a module is written, with the functions beside it."""
    for kind in type(module).__mro__:
        if kind.__name__ in _PATCHES:
            return sys.modules[kind.__module__]
    raise Error(f"{type(module).__name__} is not known to loci.hf.patch", "unsupported")


# ---- T5 and its kin: a table of biases by distance ------------------------------------------------


def _table(self: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    """In the place of compute_bias(): the table itself, which travels from layer to layer as a bias would."""
    if not _ours(self):
        bias: torch.Tensor = type(self).compute_bias(self, *args, **kwargs)
        return bias
    # a copy: as an output of a checkpoint the parameter itself would become a result of what it is a part of
    table: torch.Tensor = self.relative_attention_bias.weight.clone()
    return table


def _no_zeros(module: Any, args: Any, kwargs: Any) -> Any:
    """Attention without a table makes zeros for every pair unless it is given a bias: an empty one will do."""
    if _ours(module) and len(args) < 4 and kwargs.get("position_bias") is None:
        kwargs = {**kwargs, "position_bias": args[0].new_empty(0)}
    return args, kwargs


def _is_t5(module: Any) -> bool:
    """Attention that asks for an implementation and adds t5's bias.  LongT5's local kind computes itself."""
    make = getattr(type(module), "compute_bias", None)
    if make is None or not hasattr(module, "has_relative_attention_bias") or not hasattr(module, "is_decoder"):
        return False
    return "key_length" in inspect.signature(make).parameters


def _patch_t5(module: Any, config: Any) -> None:
    module._loci_config = config
    if module.has_relative_attention_bias:
        module.compute_bias = types.MethodType(_table, module)
    elif "position_bias" in inspect.signature(type(module).forward).parameters:
        if not any(hook is _no_zeros for hook in module._forward_pre_hooks.values()):
            module.register_forward_pre_hook(_no_zeros, with_kwargs=True)
    else:
        module._loci_no_bias = True  # the zeros that it makes are all that it could be given


def _buckets(module: Any, distances: torch.Tensor) -> torch.Tensor:
    """The model's own buckets, of keys minus rows."""
    bucket = module._relative_position_bucket
    if len(inspect.signature(bucket).parameters) == 1:
        found: torch.Tensor = bucket(distances)
        return found
    found = bucket(
        distances,
        bidirectional=not module.is_decoder,
        num_buckets=module.relative_attention_num_buckets,
        max_distance=module.relative_attention_max_distance,
    )
    return found


def t5(module: Any, table: torch.Tensor, seen: Sight, rows: int, keys: int) -> dict[str, Any]:
    """What attend() needs for a table [buckets, heads]."""
    if not seen.placed and rows != keys:
        raise Error("a dense attention_mask does not say where its rows are among the keys, which t5 must know")

    def bias() -> torch.Tensor:
        return functional.embedding(_buckets(module, -seen.distances(rows, keys)), table).permute(0, 3, 1, 2)

    buckets, far = module.relative_attention_num_buckets, module.relative_attention_max_distance
    text = f"t5:buckets={buckets},max_distance={far},bidirectional={int(not module.is_decoder)}"
    return {"encoding": text, "tensors": {"t5.table": table}, "bias": bias}


# ---- ALiBi: BLOOM, MPT, Falcon --------------------------------------------------------------------


def _sight(mask: Any, rows: int, keys: int) -> Sight:
    from .hf import sight

    return sight(mask, rows, keys, True)


def _alibi(slopes: torch.Tensor, seen: Sight, rows: int, keys: int) -> dict[str, Any]:
    """What attend() needs for slopes [heads]."""

    def bias() -> torch.Tensor:
        return -slopes[:, None, None] * seen.distances(rows, keys).abs()[:, None]

    return {"encoding": "alibi:slopes=given", "tensors": {"alibi.slopes": slopes}, "bias": bias}


def _bloom(
    self: Any,
    hidden_states: torch.Tensor,
    residual: torch.Tensor,
    alibi: torch.Tensor,
    attention_mask: Any,
    layer_past: Any = None,
    use_cache: bool = False,
    output_attentions: bool = False,
    **kwargs: Any,
) -> Any:
    if not _ours(self):
        return type(self).forward(
            self, hidden_states, residual, alibi, attention_mask, layer_past, use_cache, output_attentions, **kwargs
        )
    q, k, v = self._reshape(self.query_key_value(hidden_states))
    if layer_past is not None:
        k, v = layer_past.update(k, v, self.layer_idx)
    rows, keys = q.shape[2], k.shape[2]
    seen = _sight(attention_mask, rows, keys)
    slopes = _source(self)._get_alibi_slopes(self.num_heads, q.device)
    o, w = attend(
        q,
        k,
        v,
        seen,
        scaling=self.inv_norm_factor,
        dropout=self.attention_dropout.p if self.training else 0.0,
        output_attentions=output_attentions,
        # loci's rule for slopes is that of BLOOM, and tables by rule are kept from call to call
        **{**_alibi(slopes, seen, rows, keys), "encoding": "alibi", "tensors": None},
    )
    y = functional.dropout(self.dense(o.flatten(2)), self.hidden_dropout, self.training)
    return residual + y, w


def _mpt(
    self: Any,
    hidden_states: torch.Tensor,
    position_bias: torch.Tensor | None,
    past_key_values: Any = None,
    attention_mask: Any = None,
    **kwargs: Any,
) -> Any:
    if not _ours(self):
        return type(self).forward(self, hidden_states, position_bias, past_key_values, attention_mask, **kwargs)
    qkv = self.Wqkv(hidden_states)
    if self.clip_qkv:
        qkv = qkv.clamp(-self.clip_qkv, self.clip_qkv)
    q, k, v = qkv.unflatten(2, (3, self.n_heads, self.head_dim)).transpose(1, 3).unbind(2)
    if past_key_values is not None:
        k, v = past_key_values.update(k, v, self.layer_idx)
    rows, keys = q.shape[2], k.shape[2]
    if attention_mask is not None and not isinstance(attention_mask, masks.Mask):
        attention_mask = ~attention_mask.bool()  # MPT's dense masks say True for what is hidden
    seen = _sight(attention_mask, rows, keys)
    more: dict[str, Any] = {}
    if position_bias is not None and position_bias.shape[-1] > 1:
        more = _alibi(-position_bias[:, 0, -2], seen, rows, keys)  # the bias of the key one place behind
    o, w = attend(
        q, k, v, seen, scaling=self.softmax_scale, dropout=self.attn_dropout_p if self.training else 0.0, **more
    )
    return self.out_proj(o.flatten(2)), w


def _falcon(
    self: Any,
    hidden_states: torch.Tensor,
    alibi: torch.Tensor | None,
    attention_mask: Any,
    position_ids: Any = None,
    layer_past: Any = None,
    use_cache: bool = False,
    output_attentions: bool = False,
    position_embeddings: Any = None,
    **kwargs: Any,
) -> Any:
    """As with torch's attention, Falcon's default: the bias once, divided by sqrt(D), of slopes in bfloat16, and no
    dropout beside a rotation.  (The other way of the model adds the bias to the scores and with the mask again.)
    transformers rounds slope times position to bfloat16, too, which is off by up to 0.2 %; here only slopes are."""
    if not _ours(self):
        return type(self).forward(
            self,
            hidden_states,
            alibi,
            attention_mask,
            position_ids,
            layer_past,
            use_cache,
            output_attentions,
            position_embeddings,
            **kwargs,
        )
    q, k, v = (x.transpose(1, 2) for x in self._split_heads(self.query_key_value(hidden_states)))
    source = _source(self)
    if alibi is None:
        q, k = source.apply_rotary_pos_emb(q, k, *position_embeddings)
    if layer_past is not None:
        k, v = layer_past.update(k, v, self.layer_idx)
    rows, keys = q.shape[2], k.shape[2]
    seen = _sight(attention_mask, rows, keys)
    more: dict[str, Any] = {"output_attentions": output_attentions}
    if alibi is not None and seen.dense is not None and seen.dense.shape[1] > 1:
        more["dropout"] = self.attention_dropout.p if self.training else 0.0  # the model put the bias into its mask
    elif alibi is not None:
        ones = torch.ones(1, 2, dtype=torch.int64)
        slopes = source.build_alibi_tensor(ones, self.num_heads, q.dtype)[:, 0, 1] / math.sqrt(self.head_dim)
        more.update(_alibi(slopes, seen, rows, keys))
        more["dropout"] = self.attention_dropout.p if self.training else 0.0
    o, w = attend(q, k, v, seen, scaling=self.inv_norm_factor, **more)
    return self.dense(o.flatten(2)), w


# ---- DeBERTa: products of content and position ----------------------------------------------------


def _segments(self: Any, attention_mask: torch.Tensor) -> Any:
    """In the place of an encoder's get_attention_mask(): padding among keys, and among rows."""
    if not _ours(self) or attention_mask.ndim != 2:
        return type(self).get_attention_mask(self, attention_mask)
    seg = torch.where(attention_mask.bool(), 0, -1)
    mask = torch.cat((seg, seg), -1)[:, None, None].as_subclass(masks.Mask)
    mask.causal, mask.window, mask.whole = False, masks.OPEN, bool((seg == 0).all())
    return mask


def _no_pairs(self: Any, hidden_states: Any, query_states: Any = None, relative_pos: Any = None) -> Any:
    """In the place of get_rel_pos(): distances of all pairs are not needed."""
    if not _ours(self):
        return type(self).get_rel_pos(self, hidden_states, query_states, relative_pos)
    return relative_pos


def _deberta_text(self: Any, v2: bool) -> str:
    """The encoding, in loci's words."""
    both = {"c2p", "p2c"} <= set(self.pos_att_type)
    terms = "both" if both else self.pos_att_type[0]
    if v2 and self.position_buckets > 0:
        kind = f"kind=v2,span={self.position_buckets},max_distance={self.max_relative_positions},saturate=0"
    else:
        kind = f"kind=v1,span={self.max_relative_positions}"
    return f"deberta:{kind},terms={terms}" + ("" if terms == "c2p" else ",p2c=ij")


def _heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """[.., n, heads D] to [.., heads, n, D]."""
    return x.reshape(*x.shape[:-1], heads, -1).transpose(-3, -2)


def _project(self: Any, rel: torch.Tensor, v2: bool) -> dict[str, torch.Tensor]:
    """Relative embeddings after the projections of keys and of queries."""
    makes: dict[str, Any]
    if not v2:
        makes = {"c2p": getattr(self, "pos_proj", None), "p2c": getattr(self, "pos_q_proj", None)}
    elif self.share_att_key:
        makes = {"c2p": self.key_proj, "p2c": self.query_proj}
    else:
        makes = {"c2p": getattr(self, "pos_key_proj", None), "p2c": getattr(self, "pos_query_proj", None)}
    names = {"c2p": "deberta.k", "p2c": "deberta.q"}
    heads = self.num_attention_heads
    return {names[term]: _heads(makes[term](rel), heads) for term in names if term in self.pos_att_type}


def _dense_deberta(self: Any, hidden_states: Any, mask: Any, wants: bool, queries: Any, pos: Any, rel: Any) -> Any:
    """As the class does, which is dense."""
    n = hidden_states.shape[1]
    if isinstance(mask, masks.Mask):
        seen = masks.sight_of(mask, n, n)
        mask = seen.pairs(n, n).expand(hidden_states.shape[0], 1, n, n)
    if pos is None and self.relative_attention:
        source, other = _source(self), hidden_states if queries is None else queries
        if hasattr(self, "query_proj"):
            pos = source.build_relative_position(
                other, hidden_states, self.position_buckets, self.max_relative_positions
            )
        else:
            pos = source.build_relative_position(other, hidden_states)
    return type(self).forward(self, hidden_states, mask, wants, queries, pos, rel)


def _deberta(
    self: Any,
    hidden_states: torch.Tensor,
    attention_mask: Any,
    output_attentions: bool = False,
    query_states: torch.Tensor | None = None,
    relative_pos: torch.Tensor | None = None,
    rel_embeddings: torch.Tensor | None = None,
) -> Any:
    reason = None
    if output_attentions:
        reason = "output_attentions"
    elif query_states is not None:
        reason = "query_states"
    elif relative_pos is not None:
        reason = "position_bias"
    elif not isinstance(attention_mask, masks.Mask):
        reason = "mask"
    if reason is not None or not _ours(self):
        if _ours(self) and reason is not None:
            fall_back(reason)
        return _dense_deberta(
            self, hidden_states, attention_mask, output_attentions, query_states, relative_pos, rel_embeddings
        )
    v2, heads = hasattr(self, "query_proj"), self.num_attention_heads
    if v2:
        q, k, v = (_heads(f(hidden_states), heads) for f in (self.query_proj, self.key_proj, self.value_proj))
    else:
        q, k, v = _heads(self.in_proj(hidden_states), heads).chunk(3, -1)
        q = q + _heads(self.q_bias[None, None], heads)
        v = v + _heads(self.v_bias[None, None], heads)
    more: dict[str, Any] = {}
    if self.relative_attention and self.pos_att_type and rel_embeddings is not None:
        span = self.pos_ebd_size if v2 else self.max_relative_positions
        rel = self.pos_dropout(rel_embeddings[: 2 * span])
        more = {"encoding": _deberta_text(self, v2), "tensors": _project(self, rel, v2)}
    scale = (q.shape[-1] * (1 + len(set(self.pos_att_type)))) ** -0.5
    n = q.shape[2]
    more["dropout"] = self.dropout.p if self.training else 0.0
    o, _ = attend(q, k, v, masks.sight_of(attention_mask, n, n), scaling=scale, **more)
    return o.flatten(2), None


def _check_deberta(module: Any) -> None:
    if getattr(module, "talking_head", False):
        raise Error("loci has no talking heads, which this DeBERTa has", "unsupported")
    if len(set(module.pos_att_type)) != len(module.pos_att_type) or not set(module.pos_att_type) <= {"c2p", "p2c"}:
        raise Error(f"loci does not know pos_att_type {module.pos_att_type} of this DeBERTa", "unsupported")


# ---- Patching ------------------------------------------------------------------------------------

# class of the module: what it is given, and how its model takes masks
_PATCHES: dict[str, tuple[dict[str, Callable[..., Any]], masks.Treatment]] = {
    "BloomAttention": ({"forward": _bloom}, masks.Treatment(own=True, counted=True)),
    "MptAttention": ({"forward": _mpt}, masks.Treatment(own=True, never_none=True)),
    "FalconAttention": ({"forward": _falcon}, masks.Treatment(own=True, counted=True)),
    "DisentangledSelfAttention": ({"forward": _deberta}, masks.Treatment(own=True)),
    "DebertaEncoder": ({"get_attention_mask": _segments, "get_rel_pos": _no_pairs}, masks.Treatment(own=True)),
    "DebertaV2Encoder": ({"get_attention_mask": _segments, "get_rel_pos": _no_pairs}, masks.Treatment(own=True)),
    **latent.PATCHES,
    **speech.PATCHES,
    **xlnet.PATCHES,
}


def _found(model: Any) -> list[tuple[Any, str]]:
    """Modules that compute attention in their own code, and which of those known each is."""
    found = []
    for module in model.modules():
        if type(module).__name__ == "FalconFlashAttention2":
            raise Error("this Falcon is made for flash attention; load it without that", "unsupported")
        if type(module).__name__ == "DisentangledSelfAttention":
            _check_deberta(module)
        if type(module).__name__ not in _PATCHES or not type(module).__module__.startswith("transformers."):
            continue
        if speech.known(module):
            found.append((module, type(module).__name__))
    return found


def _owners(model: Any) -> dict[Any, Any]:
    """The config of the innermost model that each module belongs to."""
    configs: dict[Any, Any] = {}
    for owner in model.modules():  # outer ones come first
        if isinstance(owner, PreTrainedModel):
            for module in owner.modules():
                configs[module] = owner.config
    return configs


def patch(model: Any) -> None:
    speech.prepare(model)
    found, owners = _found(model), _owners(model)
    for module, name in found:  # first, as models that compute attention themselves are warned about
        masks.remember(owners[module], _PATCHES[name][1])
    if model._can_set_attn_implementation():
        model.set_attn_implementation("loci")
    elif not found:
        raise Error(
            f"{type(model).__name__} computes attention in its own code, which loci.hf.patch does not know; use "
            "attn_implementation='eager'",
            "unsupported",
        )
    for owner in model.modules():
        # a config may be of a class that no model is written for
        if isinstance(owner, PreTrainedModel) and owner._can_set_attn_implementation():
            masks.remember(owner.config, masks.treatment(owner.config) or masks.Treatment())
    for module, name in found:
        replaced, how = _PATCHES[name]
        module._loci_config = config = owners[module]
        for method, function in replaced.items():
            setattr(module, method, types.MethodType(function, module))
        flat = name == "FalconAttention" and bool(getattr(config, "alibi", False))
        masks.remember(config, replace(how, flat=flat))
        config._attn_implementation_internal = "loci"
    for module in model.modules():
        if _is_t5(module):
            _patch_t5(module, owners[module])
