# SPDX-License-Identifier: MIT
"""Ops of torch.library: what loci's functions are under torch.compile and torch.export.

An op takes tensors, numbers, and one text for all else: json does not trace, f-strings do, but not of numbers that vary
(torch.SymInt).  Arguments are validated where the op runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from . import _attend, _linear, _rows
from ._c import Error
from ._masks import MASKS
from ._plan import SINKS, acts_on, full_text
from ._torch import incoming

SEED = "dropout_seed"  # comes among the masks
END = "\x1f"  # between two fields of a key; a text of an encoding has none
ATTENTION = ("layout", "causal", "keys_rotated", "fast", "device")
LINEAR = ("layout", "causal", "device")
# On a GPU an op reads what is learned and waits, so no CUDA graph can record it.  Older versions of torch have no tag
# that says so.
_TAGS: dict[str, Any] = {"tags": (torch.Tag.cudagraph_unsafe,)} if hasattr(torch.Tag, "cudagraph_unsafe") else {}


def _truth(text: str) -> bool:
    return text == "True"


_READ: dict[str, Callable[[str], Any]] = {
    "layout": str,
    "role": str,
    "causal": _truth,
    "keys_rotated": _truth,
    "fast": _truth,
    "device": lambda text: text or None,
}


def _named(names: str, tensors: Any) -> dict[str, Any]:
    return dict(zip(names.split(","), tensors, strict=True)) if names else {}


def _unpack(key: str, names: tuple[str, ...]) -> tuple[str, dict[str, Any], str, str]:
    """Encoding, options, names of tensors, names of masks."""
    encoding, tensors, masks, *fields = key.split(END)
    options = {name: _READ[name](text) for name, text in zip(names, fields, strict=True)}
    return encoding, options, tensors, masks


def _masks(given: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """What is given of them, as tensors."""
    names = [name for name in MASKS if given.get(name) is not None]
    return ",".join(names), [torch.as_tensor(given[name]) for name in names]


# ---- Attention -----------------------------------------------------------------------------------


def _open(q: Any, k: Any, v: Any, tensors: Any, masks: Any, key: str, linear: bool, **numbers: Any) -> _attend.Problem:
    encoding, options, names, given = _unpack(key, LINEAR if linear else ATTENTION)
    stage = "linear_attention" if linear else "attention"
    mapping = _named(names, [x.detach() for x in tensors])
    mask = mapping.pop("mask", None)
    placed = _named(given, masks)
    if SEED in placed:
        numbers[SEED] = int(placed.pop(SEED))
    return _attend.open_call(
        q.detach(),
        k.detach(),
        v.detach(),
        encoding,
        given=placed,
        tensors=mapping,
        mask=mask,
        stage=stage,
        **options,
        **numbers,
    )


def _shapes(q: Any, k: Any, v: Any, key: str, linear: bool) -> tuple[Any, Any, bool]:
    """Those of o and lse, and is there ae?"""
    encoding, options, _, _ = _unpack(key, LINEAR if linear else ATTENTION)
    layout = options["layout"]
    if len(q.shape) != len(layout):
        raise Error(f"q has {len(q.shape)} dimensions; layout '{layout}' has {len(layout)}")
    o = (*q.shape[:-1], v.shape[-1])
    if layout == "bhld":
        lse = tuple(q.shape[:3])
    elif layout == "blhd":
        lse = (q.shape[0], q.shape[2], q.shape[1])
    else:
        lse = (q.shape[1], q.shape[0])
    return o, lse, acts_on(encoding, "state")


def _real(q: Any) -> Any:
    return torch.float64 if q.dtype is torch.float64 else torch.float32


@torch.library.custom_op("loci::attention", mutates_args=(), **_TAGS)
def attention_op(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    tensors: list[torch.Tensor],
    masks: list[torch.Tensor],
    key: str,
    left: int,
    right: int,
    max_len: int | None,
    scale: float | None,
    softcap: float | None,
    dropout_p: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    numbers = _numbers(left, right, max_len, scale, softcap, dropout_p)
    o, lse, ae = _open(q, k, v, tensors, masks, key, False, **numbers).forward(None, True)
    return o, lse, lse.new_empty(0) if ae is None else ae


def _numbers(left: int, right: int, max_len: Any, scale: Any, softcap: Any, dropout_p: float) -> dict[str, Any]:
    return {
        "window_size": (left, right),
        "max_len": max_len,
        "scale": scale,
        "softcap": softcap,
        "dropout_p": dropout_p,
    }


@attention_op.register_fake
def _(q: Any, k: Any, v: Any, tensors: Any, masks: Any, key: str, *numbers: Any) -> Any:
    o, lse, averages = _shapes(q, k, v, key, False)
    real = _real(q)
    b, h, length = (1, *lse) if len(lse) == 2 else lse
    ae = (b, h, length, q.shape[-1] // 2, 2) if averages else (0,)
    return q.new_empty(o), q.new_empty(lse, dtype=real), q.new_empty(ae, dtype=real)


@torch.library.custom_op("loci::attention_backward", mutates_args=(), **_TAGS)
def attention_backward_op(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    ae: torch.Tensor,
    dout: torch.Tensor | None,
    dlse: torch.Tensor | None,
    dae: torch.Tensor | None,
    tensors: list[torch.Tensor],
    masks: list[torch.Tensor],
    key: str,
    needs: str,
    left: int,
    right: int,
    max_len: int | None,
    scale: float | None,
    softcap: float | None,
    dropout_p: float,
) -> list[torch.Tensor]:
    p = _open(q, k, v, tensors, masks, key, False, **_numbers(left, right, max_len, scale, softcap, dropout_p))
    names = _unpack(key, ATTENTION)[2].split(",")
    wants = dict(zip(names, needs[3:], strict=False))
    order = [*(t.name for t in p.plan.tensors), *(("mask",) if "mask" in names else ())]
    wanted = [wants.get(name) == "1" for name in order]
    dout, dlse, dae = incoming((dout, dlse, dae))
    rest = [None if x is None else x.contiguous() for x in (dlse, dae)]
    averages = ae if p.plan.averages else None
    three = needs[0] == "1", needs[1] == "1", needs[2] == "1"
    grads, dtensors = p.backward(o, lse, averages, dout, rest[0], rest[1], three, wanted)
    made = dict(zip(order, dtensors, strict=True))
    given = dict(zip(names, tensors, strict=False))
    back = [made[name].to(x.dtype) for name, x in given.items() if wants.get(name) == "1" and made[name] is not None]
    return [x for x in grads if x is not None] + back


@attention_backward_op.register_fake
def _(
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Any,
    ae: Any,
    dout: Any,
    dlse: Any,
    dae: Any,
    tensors: Any,
    masks: Any,
    key: str,
    needs: str,
    *numbers: Any,
) -> Any:
    every = [q, k, v, *tensors]
    return [x.new_empty(x.shape) for x, need in zip(every, needs, strict=True) if need == "1"]


def _spread(grads: list[Any], needs: str) -> list[Any]:
    """Gradients where one is needed, None elsewhere."""
    left = iter(grads)
    return [next(left) if need == "1" else None for need in needs]


def _needs(ctx: Any, tensors: int) -> str:
    return "".join("1" if need else "0" for need in (*ctx.needs_input_grad[:3], *_of_list(ctx, tensors)))


def _of_list(ctx: Any, count: int) -> list[bool]:
    flag = ctx.needs_input_grad[3]
    return list(flag) if isinstance(flag, (list, tuple)) else [bool(flag)] * count


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, tensors, masks, key, *numbers = inputs
    ctx.key, ctx.tensors, ctx.numbers = key, len(tensors), numbers
    ctx.set_materialize_grads(False)
    ctx.needs = _needs(ctx, len(tensors))
    outputs = output if isinstance(output, tuple) else (output,)
    ctx.save_for_backward(q, k, v, *outputs, *tensors, *masks)


def _attention_back(ctx: Any, dout: Any, dlse: Any, dae: Any) -> Any:
    q, k, v, o, lse, ae, *rest = ctx.saved_tensors
    tensors, masks = rest[: ctx.tensors], rest[ctx.tensors :]
    rest = ([None] * len(masks), None, *(None for _ in ctx.numbers))
    if dout is None and dlse is None and dae is None:
        return (None, None, None, [None] * len(tensors), *rest)
    given = q, k, v, o, lse, ae, dout, dlse, dae, tensors, masks, ctx.key, ctx.needs
    spread = _spread(attention_backward_op(*given, *ctx.numbers), ctx.needs)
    return (*spread[:3], spread[3:], *rest)


attention_op.register_autograd(_attention_back, setup_context=_keep)


def attention(q: Any, k: Any, v: Any, encoding: str, given: Any, arguments: Any, return_lse: bool, out: Any) -> Any:
    if out is not None:
        raise Error("out is written in place, which torch.compile cannot follow: leave it out")
    sinks = arguments["sinks"]
    tensors = dict(arguments["tensors"] or {})
    if sinks is not None:
        tensors[SINKS] = sinks
    if arguments["mask"] is not None:
        tensors["mask"] = arguments["mask"]
    text = full_text(encoding, None, sinks is not None)
    masks, list_ = _masks(given)
    if arguments["dropout_p"]:
        masks = f"{masks},{SEED}" if masks else SEED
        list_ = [*list_, torch.as_tensor(arguments[SEED])]
    left, right = arguments["window_size"]
    key = f"{text}{END}{','.join(tensors)}{END}{masks}{END}{arguments['layout']}{END}{bool(arguments['causal'])}"
    key += f"{END}{bool(arguments['keys_rotated'])}{END}{bool(arguments['fast'])}{END}{arguments.get('device') or ''}"
    numbers = left, right, arguments["max_len"], arguments["scale"], arguments["softcap"], arguments["dropout_p"]
    o, lse, ae = attention_op(q, k, v, list(tensors.values()), list_, key, *numbers)
    return _attend.results(o, lse if return_lse else None, ae if ae.ndim > 1 else None)  # ae is [0] where there is none


# ---- Linear attention ----------------------------------------------------------------------------


@torch.library.custom_op("loci::linear_attention", mutates_args=(), **_TAGS)
def linear_op(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    tensors: list[torch.Tensor],
    masks: list[torch.Tensor],
    key: str,
    max_len: int | None,
) -> torch.Tensor:
    opened = _open(q, k, v, tensors, masks, key, True, max_len=max_len)
    o: torch.Tensor = _linear.forward(opened, None, False)[0]
    return o


@linear_op.register_fake
def _(q: Any, k: Any, v: Any, tensors: Any, masks: Any, key: str, max_len: Any) -> Any:
    return q.new_empty(_shapes(q, k, v, key, True)[0])


@torch.library.custom_op("loci::linear_attention_backward", mutates_args=(), **_TAGS)
def linear_backward_op(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    dout: torch.Tensor,
    tensors: list[torch.Tensor],
    masks: list[torch.Tensor],
    key: str,
    needs: str,
    max_len: int | None,
) -> list[torch.Tensor]:
    p = _open(q, k, v, tensors, masks, key, True, max_len=max_len)
    names = _unpack(key, LINEAR)[2].split(",")
    wants = dict(zip(names, needs[3:], strict=False))
    wanted = [wants.get(t.name) == "1" for t in p.plan.tensors]
    three = needs[0] == "1", needs[1] == "1", needs[2] == "1"
    grads, dtensors = _linear.backward(p, o, incoming((dout,))[0], three, wanted)
    made = dict(zip([t.name for t in p.plan.tensors], dtensors, strict=True))
    given = dict(zip(names, tensors, strict=False))
    back = [made[name].to(x.dtype) for name, x in given.items() if wants.get(name) == "1"]
    return [x for x in grads if x is not None] + back


@linear_backward_op.register_fake
def _(q: Any, k: Any, v: Any, o: Any, dout: Any, tensors: Any, masks: Any, key: str, needs: str, max_len: Any) -> Any:
    return [x.new_empty(x.shape) for x, need in zip([q, k, v, *tensors], needs, strict=True) if need == "1"]


def _linear_back(ctx: Any, dout: Any) -> Any:
    q, k, v, o, *rest = ctx.saved_tensors
    tensors, masks = rest[: ctx.tensors], rest[ctx.tensors :]
    rest = ([None] * len(masks), None, None)
    if dout is None:
        return (None, None, None, [None] * len(tensors), *rest)
    grads = linear_backward_op(q, k, v, o, dout, tensors, masks, ctx.key, ctx.needs, *ctx.numbers)
    spread = _spread(grads, ctx.needs)
    return (*spread[:3], spread[3:], *rest)


linear_op.register_autograd(_linear_back, setup_context=_keep)


def linear_attention(q: Any, k: Any, v: Any, encoding: str, given: Any, arguments: Any, state: Any, back: bool) -> Any:
    if state is not None or back:
        raise Error("states do not go through torch.compile")
    tensors = dict(arguments["tensors"] or {})
    masks, list_ = _masks(given)
    key = f"{encoding}{END}{','.join(tensors)}{END}{masks}{END}{arguments['layout']}{END}{bool(arguments['causal'])}"
    key += f"{END}{arguments.get('device') or ''}"
    return linear_op(q, k, v, list(tensors.values()), list_, key, arguments["max_len"])


# ---- Rows ----------------------------------------------------------------------------------------

ROTATE = ("device", "layout", "role")
EMBED = ("device",)


def _open_rows(x: Any, tensors: Any, masks: Any, key: str, max_len: Any, rotates: bool) -> _rows.Opened:
    encoding, options, names, given = _unpack(key, ROTATE if rotates else EMBED)
    placed = _named(given, masks)
    given_ = {"pos": placed.get("pos"), "tensors": _named(names, [t.detach() for t in tensors]), "max_len": max_len}
    if rotates:
        return _rows.open_rotation(x.detach(), encoding, coords=placed.get("coords"), **given_, **options)
    return _rows.open_embedding(x.detach(), encoding, **given_, **options)


def _back_rows(
    x: Any, dy: Any, tensors: Any, masks: Any, key: str, needs: str, max_len: Any, rotates: bool
) -> list[torch.Tensor]:
    opened = _open_rows(x, tensors, masks, key, max_len, rotates)
    dy = incoming((dy,))[0]
    names = _unpack(key, ROTATE if rotates else EMBED)[2].split(",")
    wants = dict(zip(names, needs[1:], strict=False))
    wanted = [wants.get(t.name) == "1" for t in opened.plan.tensors]
    dx, dtensors = opened.backward(opened.x, opened.tensors, dy, needs[0] == "1", wanted)
    made = dict(zip([t.name for t in opened.plan.tensors], dtensors, strict=True))
    given = dict(zip(names, tensors, strict=False))
    back = [made[name].to(t.dtype) for name, t in given.items() if wants.get(name) == "1"]
    if dx is dy:
        dx = dy.clone()
    return [g for g in (dx,) if g is not None] + back


@torch.library.custom_op("loci::rotate", mutates_args=(), **_TAGS)
def rotate_op(
    x: torch.Tensor, tensors: list[torch.Tensor], masks: list[torch.Tensor], key: str, max_len: int | None
) -> torch.Tensor:
    opened = _open_rows(x, tensors, masks, key, max_len, True)
    y: torch.Tensor = opened.forward(opened.x, opened.tensors)
    return y


@torch.library.custom_op("loci::rotate_backward", mutates_args=(), **_TAGS)
def rotate_backward_op(
    x: torch.Tensor,
    dy: torch.Tensor,
    tensors: list[torch.Tensor],
    masks: list[torch.Tensor],
    key: str,
    needs: str,
    max_len: int | None,
) -> list[torch.Tensor]:
    return _back_rows(x, dy, tensors, masks, key, needs, max_len, True)


@torch.library.custom_op("loci::embed", mutates_args=(), **_TAGS)
def embed_op(
    x: torch.Tensor, tensors: list[torch.Tensor], masks: list[torch.Tensor], key: str, max_len: int | None
) -> torch.Tensor:
    opened = _open_rows(x, tensors, masks, key, max_len, False)
    y: torch.Tensor = opened.forward(opened.x, opened.tensors)
    return y


@torch.library.custom_op("loci::embed_backward", mutates_args=(), **_TAGS)
def embed_backward_op(
    x: torch.Tensor,
    dy: torch.Tensor,
    tensors: list[torch.Tensor],
    masks: list[torch.Tensor],
    key: str,
    needs: str,
    max_len: int | None,
) -> list[torch.Tensor]:
    return _back_rows(x, dy, tensors, masks, key, needs, max_len, False)


def _fake_rows(x: Any, tensors: Any, masks: Any, key: str, max_len: Any) -> Any:
    return x.new_empty(x.shape)


def _fake_back(x: Any, dy: Any, tensors: Any, masks: Any, key: str, needs: str, max_len: Any) -> Any:
    return [t.new_empty(t.shape) for t, need in zip([x, *tensors], needs, strict=True) if need == "1"]


def _keep_rows(ctx: Any, inputs: Any, output: Any) -> None:
    x, tensors, masks, key, max_len = inputs
    ctx.key, ctx.tensors, ctx.max_len = key, len(tensors), max_len
    flag = ctx.needs_input_grad[1]
    some = list(flag) if isinstance(flag, (list, tuple)) else [bool(flag)] * len(tensors)
    ctx.needs = "".join("1" if need else "0" for need in (ctx.needs_input_grad[0], *some))
    ctx.save_for_backward(x, *tensors, *masks)


def _register_rows(op: Any, back_op: Any) -> None:
    def back(ctx: Any, dy: Any) -> Any:
        x, *rest = ctx.saved_tensors
        tensors, masks = rest[: ctx.tensors], rest[ctx.tensors :]
        spread = _spread(back_op(x, dy, tensors, masks, ctx.key, ctx.needs, ctx.max_len), ctx.needs)
        return spread[0], spread[1:], [None] * len(masks), None, None

    op.register_fake(_fake_rows)
    back_op.register_fake(_fake_back)
    op.register_autograd(back, setup_context=_keep_rows)


_register_rows(rotate_op, rotate_backward_op)
_register_rows(embed_op, embed_backward_op)


def rows(name: str, x: Any, encoding: str, arguments: Any) -> Any:
    tensors = dict(arguments["tensors"] or {})
    masks, list_ = _masks(arguments)
    key = f"{encoding}{END}{','.join(tensors)}{END}{masks}{END}{arguments.get('device') or ''}"
    max_len = arguments["max_len"]
    if name == "rotate":
        key += f"{END}{arguments['layout']}{END}{arguments['role']}"
        return rotate_op(x, list(tensors.values()), list_, key, max_len)
    return embed_op(x, list(tensors.values()), list_, key, max_len)
