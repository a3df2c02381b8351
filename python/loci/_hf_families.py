# SPDX-License-Identifier: MIT
"""What the code of a model class does with attention and with its masks.

transformers has no flag for it: some models look all attention up by its name, some compute it in their own code, some
do both, and some rewrite the mask before they pass it on.  The bytecode of their classes tells."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any, get_args

import torch
from transformers import PreTrainedModel
from transformers.models.auto import modeling_auto

# Attention of its own code that loci.hf.patch() replaces.
PATCHABLE = {"BloomAttention", "MptAttention", "FalconAttention", "DisentangledSelfAttention"}
_SOFTMAX = {"softmax", "Softmax", "scaled_dot_product_attention"}
_LOADS = {"LOAD_FAST", "LOAD_CONST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK"}


@dataclass(frozen=True)
class Facts:
    """`asks`: some attention is looked up by its name.  `own`: the classes that compute attention themselves, with a
    mask.  `rewrites`: a class computes with the mask before it passes it on.  `known`: any class was found."""

    asks: bool = False
    own: tuple[str, ...] = ()
    rewrites: bool = False
    sdpa: bool = False
    known: bool = False


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _functions(kind: type) -> list[Any]:
    """The methods of a class and of its bases of transformers, without their decorators."""
    bases = [c for c in kind.__mro__ if c is not PreTrainedModel and c.__module__.startswith(("transformers.", "__"))]
    bases = bases if kind in bases else [kind, *bases]
    found = [inspect.unwrap(x) for c in bases for x in vars(c).values() if inspect.isfunction(x)]
    return [f for f in found if hasattr(f, "__code__")]


def _names(function: Any) -> set[str]:
    return {name for code in _codes(function.__code__) for name in code.co_names}


def _modules_named(function: Any) -> Iterator[type]:
    """The classes of modules that a function names, also by a table of them."""
    for name in _names(function):
        found = function.__globals__.get(name)
        for x in found.values() if isinstance(found, dict) else (found,):
            if isinstance(x, type) and issubclass(x, torch.nn.Module):
                yield x


def _parts(model: type) -> set[type]:
    """The classes that a model is made of, but for models with a config of another class."""
    config, parts, todo = getattr(model, "config_class", None), set[type](), [model]
    while todo:
        kind = todo.pop()
        if kind in parts or kind is PreTrainedModel or kind.__module__.startswith("torch."):
            continue
        if issubclass(kind, PreTrainedModel) and getattr(kind, "config_class", None) is not config:
            continue
        parts.add(kind)
        for function in _functions(kind):
            if function.__name__ == "__init__":  # others name classes that may be elsewhere in the file
                todo += _modules_named(function)
    return parts


def _rewrites(function: Any) -> bool:
    """Whether a variable named as a mask is set to anything but another variable."""
    before = None
    for step in dis.get_instructions(function.__code__):
        if step.opname == "STORE_FAST" and "mask" in step.argval and before is not None and before not in _LOADS:
            return True
        before = step.opname
    return False


def _own(kind: Any, names: set[str]) -> bool:
    if not (names & _SOFTMAX) or not any(word in kind.__name__ for word in ("Attention", "Attn")):
        return False
    forward = inspect.unwrap(vars(kind).get("forward", kind.forward))
    return any("mask" in name for name in inspect.signature(forward).parameters)


_of_model: dict[type, Facts] = {}


def facts_of_model(model: type) -> Facts:
    if model not in _of_model:
        asks, own, rewrites = False, [], False
        for kind in _parts(model):
            if issubclass(kind, PreTrainedModel):
                continue
            functions = _functions(kind)
            names = set[str]().union(*(_names(f) for f in functions))
            if "ALL_ATTENTION_FUNCTIONS" in names:
                asks = True
                rewrites = rewrites or any(_rewrites(f) for f in functions if f.__name__ == "forward")
            elif _own(kind, names):
                own.append(kind.__name__)
        sdpa = bool(getattr(model, "_supports_sdpa", False))
        _of_model[model] = Facts(asks, tuple(sorted(own)), rewrites, sdpa, True)
    return _of_model[model]


# ---- By the class of a config --------------------------------------------------------------------

_met: dict[type, set[type]] = {}
_of_config: dict[type, Facts] = {}


def met(model: Any) -> None:
    """Notes which class of model a config of this class is used with."""
    kind = type(model.config)
    if type(model) not in _met.setdefault(kind, set()):
        _met[kind].add(type(model))
        _of_config.pop(kind, None)


def _models_of(kind: type) -> set[type]:
    """The classes of models with this class of config: those met, else those that transformers has for it."""
    if kind in _met:
        return _met[kind]
    found, todo = set[type](), [PreTrainedModel]
    named = modeling_auto.MODEL_MAPPING_NAMES.get(getattr(kind, "model_type", ""), ())
    names = {named} if isinstance(named, str) else set(named)
    while todo:
        model = todo.pop()
        todo += model.__subclasses__()
        declared = getattr(model, "config_class", None)
        if kind in (declared, *get_args(declared)) or model.__name__ in names:
            found.add(model)
    if not found:  # written for a config that this one is made from
        return next((models for base in kind.__mro__[1:-1] if (models := _models_of(base))), set())
    return found


def facts_of(kind: type) -> Facts:
    if kind not in _of_config:
        every = [facts_of_model(model) for model in _models_of(kind)]
        _of_config[kind] = Facts(
            any(x.asks for x in every),
            tuple(sorted({name for x in every for name in x.own})),
            any(x.rewrites for x in every),
            any(x.sdpa for x in every),
            bool(every),
        )
    return _of_config[kind]
