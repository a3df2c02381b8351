# SPDX-License-Identifier: MIT
"""loci as an attention of transformers' models.

    loci.hf.register()
    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="loci")
    loci.hf.patch(model)          # where a model has biases or latents, or computes attention in its own code

A mask, bias, window, softcap or sink is never left out: what loci cannot do, and what a model computes in its own code,
torch computes, with a FallbackWarning, or register(fallback="error") makes it an Error.

Models compile whole (torch.compile with fullgraph=True, torch.export): in compiled code a mask is a plain tensor."""

from __future__ import annotations

import functools
from typing import Any

try:
    import torch
except ImportError:
    raise ImportError("loci.hf needs PyTorch and transformers: pip install torch transformers") from None
try:
    import transformers

    if int(transformers.__version__.split(".")[0]) < 5:
        raise ImportError
    from transformers import PreTrainedModel, masking_utils
    from transformers.modeling_utils import AttentionInterface
except ImportError:
    raise ImportError("loci.hf needs transformers 5: pip install 'transformers>=5'") from None

from torch._dynamo import assume_constant_result

from . import _hf_families as families
from . import _hf_masks as masks
from . import _hf_speech as speech
from ._c import Error
from ._fallback import FallbackWarning
from ._hf_attend import attend, leave, reset_stats, set_mode, stats
from ._hf_families import PATCHABLE
from ._hf_latent import LatentCache
from ._ranks import now

__all__ = ["FallbackWarning", "LatentCache", "patch", "register", "reset_stats", "stats"]

# ---- Guard ---------------------------------------------------------------------------------------

_facts_of = assume_constant_result(families.facts_of)  # type: ignore[no-untyped-call]


def _guard(config: Any) -> tuple[masks.Treatment, families.Facts]:
    """How the model takes its masks.  Models that patch() knows are refused while they are not patched."""
    if config is None:
        return masks.Treatment(), families.Facts(asks=True, known=True)
    how, facts = masks.treatment(config), _facts_of(type(config))
    if how is not None and how.own:
        return how, families.Facts(asks=True, known=True)
    if any(name in PATCHABLE for name in facts.own):
        raise Error(
            f"{config.model_type} computes attention in its own code; call loci.hf.patch(model) or use "
            "attn_implementation='eager'",
            "unsupported",
        )
    if how is None and not facts.known:
        raise Error(
            f"no model of transformers is known to have a {type(config).__name__}, so loci cannot tell how its masks "
            "are used; call loci.hf.patch(model) or use attn_implementation='eager'",
            "unsupported",
        )
    return how or masks.Treatment(), facts


def _tells_order(config: Any, facts: families.Facts) -> bool:
    """Whether calls of attention say by is_causal what the mask would.  Under these two options they do not."""
    usual = getattr(config, "is_causal", True) and not getattr(config, "use_bidirectional_attention", False)
    return facts.sdpa and bool(usual)


# ---- What transformers calls ---------------------------------------------------------------------


def _shares() -> Any:
    """Who has which rows, where loci.distributed.sharing() is at work."""
    return None if now.said is None else now.said[1]


def _check_positions(given: Any) -> None:
    shares = _shares()
    if (
        shares is not None
        and isinstance(given, torch.Tensor)
        and not torch.equal(given, masks.positions(shares).expand_as(given))
    ):
        raise Error(
            "position_ids must be those of this rank's rows: torch.from_numpy(shares.positions())[None]", "bad_arg"
        )


def _mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: Any = 0,
    mask_function: Any = masking_utils.causal_mask_function,
    attention_mask: Any = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    use_vmap: bool = False,
    config: Any = None,
    device: Any = "cpu",
    dtype: torch.dtype = torch.float32,
    **kwargs: Any,
) -> Any:
    """None, a Mask, the same as a plain tensor, or where it is not understood a dense one."""
    if torch.device(device).type != "cpu":
        raise Error(f"the model is on {device}; loci computes on the CPU")
    how, facts = _guard(config)
    if facts.own:
        leave(facts.own)
    everything: dict[str, Any] = {
        "batch_size": batch_size,
        "q_length": q_length,
        "kv_length": kv_length,
        "q_offset": q_offset,
        "kv_offset": kv_offset,
        "mask_function": mask_function,
        "attention_mask": attention_mask,
        "allow_is_causal_skip": False,
        "allow_is_bidirectional_skip": False,
        "use_vmap": use_vmap,
        "device": device,
    }
    if facts.own or facts.rewrites:
        return masking_utils.eager_mask(**everything, dtype=dtype)  # what the model's own code computes with
    padding = None if attention_mask is None or attention_mask.ndim != 2 else attention_mask.bool()
    if how.local and use_vmap:
        found = None
        if not torch.compiler.is_compiling() and (padding is not None or attention_mask is None):
            wanted = masks.Wanted(batch_size, q_length, kv_length, int(q_offset), int(kv_offset), padding)
            found = speech.local_mask(wanted, mask_function)
        if found is not None:
            return found
        if how.own:
            return masking_utils.eager_mask(**everything, dtype=dtype)
    if use_vmap or (attention_mask is not None and attention_mask.ndim != 2):
        return masking_utils.sdpa_mask(**everything)
    if torch.compiler.is_compiling():
        return masks.traced(batch_size, q_length, kv_length, q_offset, kv_offset, padding, mask_function, how.counted)
    wanted = masks.Wanted(batch_size, q_length, kv_length, int(q_offset), int(kv_offset), padding)
    # a static cache counts in a tensor, or has more keys than have been written; what is made for it may enter
    # compiled code, and for one row transformers always wants a mask
    static = isinstance(q_offset, torch.Tensor) or (q_offset == 0 and kv_length > q_length)
    ahead = q_length == 1 and static
    try:
        return masks.build(
            wanted,
            mask_function,
            how,
            skip=allow_is_causal_skip or allow_is_bidirectional_skip,
            ahead=ahead,
            tells_order=_tells_order(config, facts),
            shares=_shares(),
            plain=static and not how.never_none,
        )
    except masks.UnknownMaskError:
        return masking_utils.sdpa_mask(**everything)


def _window(width: int | None, causal: bool) -> masks.Window:
    """A call's sliding_window counts the row itself."""
    if width is None:
        return masks.OPEN
    return (width - 1, -1) if causal else (width - 1, width - 1)


def sight(mask: Any, rows: int, keys: int, causal: bool, window: int | None = None) -> masks.Sight:
    """What a mask means; causal and window are what the module says where there is none."""
    if mask is None:
        return masks.Sight(causal, _window(window, causal))
    if isinstance(mask, masks.Mask):
        seen = masks.sight_of(mask, rows, keys)
        if seen.window == masks.OPEN:
            seen.window = _window(window, seen.causal)
        return seen
    if masks.is_packed(mask):
        return masks.unpack(mask, rows, keys)
    if mask.ndim != 4 or not (mask.dtype == torch.bool or mask.is_floating_point()):
        raise Error(
            f"attention_mask {list(mask.shape)} of {mask.dtype} is no mask of pairs: [batch, heads, rows, keys], of "
            "truths or to be added"
        )
    return _hidden_keys(mask, rows) or masks.Sight(dense=mask, placed=False)


def _hidden_keys(mask: torch.Tensor, rows: int) -> masks.Sight | None:
    """What a mask [batch, 1, 1, keys] of truths, or of zeros and the lowest number, says about padding: models that
    make their masks themselves have such ones."""
    if mask.shape[1] != 1 or mask.shape[2] != 1 or mask.requires_grad or torch.compiler.is_compiling():
        return None
    seen = mask[:, 0, 0]
    if seen.dtype != torch.bool:
        if not bool(((seen == 0) | (seen <= torch.finfo(seen.dtype).min)).all()):
            return None
        seen = seen == 0
    k_seg = torch.where(seen, 0, -1)
    return masks.Sight(q_seg=k_seg.new_zeros(k_seg.shape[0], rows), k_seg=k_seg, placed=False)


def _starts(seen: masks.Sight, starts: Any, k_starts: Any, rows: int, keys: int) -> None:
    """Packed sequences by where they begin, beside what the mask says."""
    if seen.dense is not None:
        apart = ~masks.Sight(cu_q=starts, cu_k=k_starts).pairs(rows, keys)
        hidden = False if seen.dense.dtype == torch.bool else -torch.inf
        seen.dense = seen.dense.masked_fill(apart, hidden)
    elif seen.q_seg is None or seen.k_seg is None:
        seen.cu_q, seen.cu_k = starts, k_starts
    else:
        count = len(starts)
        seen.q_seg = torch.where(seen.q_seg < 0, -1, seen.q_seg * count + masks.sequence_of(starts, rows))
        seen.k_seg = torch.where(seen.k_seg < 0, -1, seen.k_seg * count + masks.sequence_of(k_starts, keys))


_CHOICES = ("indices", "block_indices")  # of sparse attention: which keys each row sees, beside the mask


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    output_attentions: bool = False,
    cu_seq_lens_q: Any = None,
    cu_seq_lens_k: Any = None,
    cache: Any = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """q, k and v [batch, heads, rows, width], turned already, to o [batch, rows, heads, width]."""
    for name in _CHOICES:
        if kwargs.get(name) is not None:
            raise Error(
                f"{type(module).__name__} chooses its keys by {name}, which attn_implementation='loci' does not know; "
                "use 'eager'",
                "unsupported",
            )
    if cache is not None:
        raise Error("loci has no paged caches: use attn_implementation='paged|eager'", "unsupported")
    if hasattr(query, "device_mesh"):
        raise Error("loci has no tensor parallelism: load the model without a plan for it", "unsupported")
    _check_positions(kwargs.get("position_ids"))
    rows, keys = query.shape[2], key.shape[2]
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    seen = sight(attention_mask, rows, keys, bool(causal), sliding_window)
    if cu_seq_lens_q is not None and cu_seq_lens_k is not None:
        _starts(seen, cu_seq_lens_q, cu_seq_lens_k, rows, keys)
    more: dict[str, Any] = {}
    if position_bias is not None and position_bias.numel() and not hasattr(module, "_loci_no_bias"):
        if position_bias.ndim == 2:
            from ._hf_models import t5

            more = t5(module, position_bias, seen, rows, keys)
        else:
            more = {"bias": lambda: position_bias, "dense_bias": True}
    return attend(
        query,
        key,
        value,
        seen,
        scaling=scaling,
        dropout=dropout,
        softcap=softcap,
        sinks=sinks if s_aux is None else s_aux,
        output_attentions=bool(output_attentions),
        **more,
    )


# ---- What one calls ------------------------------------------------------------------------------


def _left(model: Any) -> None:
    """Warns, or refuses, where a model computes attention in its own code."""
    how = masks.treatment(model.config)
    if how is not None and how.own:
        return
    own = families.facts_of_model(type(model)).own
    if any(name in PATCHABLE for name in own):
        if not any(hook is _refuse_unpatched for hook in model._forward_pre_hooks.values()):
            model.register_forward_pre_hook(_refuse_unpatched)
    elif own:
        leave(own)


def _refuse_unpatched(model: Any, args: Any) -> None:
    """Before forward of a model that patch() knows: DeBERTa never asks for a mask, where _guard() would see it."""
    if model.config._attn_implementation == "loci":
        _guard(model.config)


def _watch() -> None:
    """Models say nothing when their attention is never looked up, so the two methods that set it are wrapped."""
    check, change = PreTrainedModel._check_and_adjust_attn_implementation, PreTrainedModel.set_attn_implementation
    if hasattr(check, "_loci"):
        return

    @functools.wraps(check)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = check(self, *args, **kwargs)
        if found == "loci":
            families.met(self)
            _left(self)
        return found

    @functools.wraps(change)
    def changed(self: Any, attn_implementation: Any, *args: Any, **kwargs: Any) -> None:
        change(self, attn_implementation, *args, **kwargs)
        if attn_implementation == "loci":
            for model in self.modules():
                if isinstance(model, PreTrainedModel) and model.config._attn_implementation != "loci":
                    _left(model)

    checked._loci = True  # type: ignore[attr-defined]
    PreTrainedModel._check_and_adjust_attn_implementation = checked  # type: ignore[method-assign]
    PreTrainedModel.set_attn_implementation = changed  # type: ignore[method-assign]


def register(fallback: str = "torch") -> None:
    """Register `"loci"` among the attention implementations of transformers.

    Parameters
    ----------
    fallback : {"torch", "error"}
        What to do where loci cannot compute: let torch compute, with a FallbackWarning, or raise an Error. A second
        call changes it.
    """
    set_mode(fallback)
    _watch()
    AttentionInterface.register("loci", _attention)
    masking_utils.AttentionMaskInterface.register("loci", _mask)


def patch(model: PreTrainedModel) -> Any:
    """Make loci the attention of a model, also where it has biases or computes attention in its own code.

    Steps of DeepSeek V2 and V3 then attend to latents, where that takes fewer products.

    Parameters
    ----------
    model : PreTrainedModel
        A model of transformers. It is changed in place; a second call changes nothing.

    Returns
    -------
    PreTrainedModel
        The model.

    Raises
    ------
    TypeError
        It is no model of transformers.
    Error
        The model is tensor-parallel, or of a kind that loci does not know.
    """
    from . import _hf_models

    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"model is a model of transformers, not {type(model).__name__}")
    if (getattr(model, "tp_size", None) or 1) > 1:
        raise Error("loci has no tensor parallelism: load the model without a plan for it", "unsupported")
    if "loci" not in AttentionInterface._global_mapping:
        register()
    _hf_models.patch(model)
    return model
