# SPDX-License-Identifier: MIT
"""loci's functions on tensors: straight to C where nobody wants a gradient, by a Function where somebody does, by ops
of torch.library where something records or replaces ops: torch.compile, torch.jit.trace, make_fx, FakeTensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function

from . import _attend, _linear, _rows
from ._c import Error
from ._plan import Plan
from ._torch import Call, Job, Torch, apply, autocast, by_op, read_numbers, refuse_tangents, transformed, wants_gradient


def _fold(x: Any, dim: int | None, times: int) -> Any:
    x = x.expand(times, *x.shape) if dim is None else x.movedim(dim, 0)
    return x.flatten(0, 1)


def _folded(opened: Any, times: int, dims: Any, arrays: Any) -> list[Any]:
    """The mapped axis goes into the batch, of rows and of what comes with each call."""
    count = len(arrays) - len(opened.plan.tensors)
    if opened.shape.layout == "thd":
        raise Error("packed sequences have no batch that torch.func.vmap could map", "unsupported")
    folded = [_fold(x, dim, times) for x, dim in zip(arrays[:count], dims[:count], strict=True)]
    for t, x, dim in zip(opened.plan.tensors, arrays[count:], dims[count:], strict=True):
        if dim is not None and t.role != "input":
            raise Error(f"{t.name} is mapped by torch.func.vmap; loci maps rows and inputs", "unsupported")
        read = x is not None and t.role == "input"
        folded.append(_fold(x, dim, times).contiguous() if read else x)  # a batch of 1 folds to a view
    return folded


class _OpenedJob(Job):
    """A call with arrays of rows, then the tensors of its plan, then perhaps a mask."""

    rows = 3

    def __init__(self, opened: Any) -> None:
        self.opened = opened

    def gives(self, needs: tuple[bool, ...]) -> tuple[bool, ...]:
        learned = [t.role != "fixed" for t in self.opened.plan.tensors]
        rest = len(needs) - self.rows - len(learned)
        each = (*(True,) * self.rows, *learned, *(True,) * rest)
        return tuple(need and has for need, has in zip(needs, each, strict=True))

    def folded(self, inner: Job, times: int, in_dims: Any, arrays: Any) -> tuple[Any, ...]:
        """The outputs of the call with the mapped axis in its batch."""
        outputs = Call.apply(inner, *_folded(self.opened, times, in_dims, arrays))  # type: ignore[no-untyped-call]
        batch = self.opened.shape.batch
        return tuple(x.unflatten(0, (times, batch)) for x in outputs)


class AttentionJob(_OpenedJob):
    def __init__(self, opened: _attend.Problem) -> None:
        super().__init__(opened)
        self.tables: Any = None  # of the forward pass, for the backward one

    def forward(self, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        """o, lse, and with tape ae."""
        problem = self.opened.of(arrays[0], arrays[1], arrays[2], arrays[3:])
        o, lse, ae = problem.forward(None, True)
        self.tables = problem.shared
        return (o, lse) if ae is None else (o, lse, ae)

    def backward(self, douts: Any, arrays: Any, outputs: Any, needs: Any) -> tuple[Any, ...]:
        problem = self.opened.of(arrays[0], arrays[1], arrays[2], arrays[3:])
        problem.shared = self.tables
        o, lse, *ae = outputs
        dlse, *dae = (None if x is None else x.contiguous() for x in douts[1:])
        grads, dtensors = problem.backward(
            o, lse, *(ae or [None]), douts[0], dlse, *(dae or [None]), needs[:3], list(needs[3:])
        )
        return (*grads, *dtensors)

    def vmap(self, times: int, in_dims: Any, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        inner = AttentionJob(self.opened.tiled(times, arrays[0]))
        outputs = self.folded(inner, times, in_dims, arrays)
        self.tables = inner.tables
        return outputs


class LinearJob(_OpenedJob):
    def forward(self, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        problem = self.opened.of(arrays[0], arrays[1], arrays[2], arrays[3:])
        return (_linear.forward(problem, None, False)[0],)

    def backward(self, douts: Any, arrays: Any, outputs: Any, needs: Any) -> tuple[Any, ...]:
        problem = self.opened.of(arrays[0], arrays[1], arrays[2], arrays[3:])
        grads, dtensors = _linear.backward(problem, outputs[0], douts[0], needs[:3], list(needs[3:]))
        return (*grads, *dtensors)

    def vmap(self, times: int, in_dims: Any, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        return self.folded(LinearJob(self.opened.tiled(times, arrays[0])), times, in_dims, arrays)


class RowsJob(_OpenedJob):
    rows = 1

    def forward(self, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self.opened.forward(arrays[0], arrays[1:]),)

    def backward(self, douts: Any, arrays: Any, outputs: Any, needs: Any) -> tuple[Any, ...]:
        dx, dtensors = self.opened.backward(arrays[0], arrays[1:], douts[0], needs[0], needs[1:])
        return (dx, *dtensors)

    def vmap(self, times: int, in_dims: Any, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        return self.folded(RowsJob(self.opened.tiled(times)), times, in_dims, arrays)


def _spelled(plan: Plan, arguments: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """A plan as a text and options, which are all that goes through torch.compile."""
    if plan.isa is not None:
        raise Error("a plan for an instruction set of its own does not go through torch.compile", "unsupported")
    tensors = arguments["tensors"]
    return plan.encoding, {**arguments, **plan.options(), "tensors": None if tensors is None else dict(tensors)}


def _learned(arguments: Mapping[str, Any]) -> tuple[Any, ...]:
    some = [*(arguments.get("tensors") or {}).values(), arguments.get("sinks")]
    return tuple(x for x in some if isinstance(x, torch.Tensor))


def _subclass(public: Any, arrays: Any, encoding: str, options: Any, learned: Any) -> Any:
    """Subclasses with __torch_function__ have the first word; the result is in a tuple, if there is one."""
    if not has_torch_function((*arrays, *learned)):
        return None
    handle: Any = handle_torch_function  # whose annotations do not admit a function of anything
    return (handle(public, (*arrays, *learned), *arrays, encoding, **options),)


def _seed() -> torch.Tensor:
    """Of dropout, from torch's generator."""
    return torch.randint(0, 2**63 - 1, (1,), device="cpu")


def attention(
    q: Any,
    k: Any,
    v: Any,
    encoding: Any,
    given: Mapping[str, Any],
    arguments: Mapping[str, Any],
    return_lse: bool,
    out: Any,
    over: Mapping[str, Any] | None = None,
    ranks: Any = None,
) -> Any:
    """`over` is what was said of ranks, and `ranks` what that means."""
    from . import attention as public

    learned = _learned(arguments)
    mask = arguments["mask"]
    if isinstance(mask, torch.Tensor):
        learned = (*learned, mask)
    options = {**given, **arguments, **(over or {}), "return_lse": return_lse, "out": out}
    answered = _subclass(public, (q, k, v), encoding, options, learned)
    if answered is not None:
        return answered[0]
    refuse_tangents(q, k, v, *learned)
    arguments = read_numbers(arguments)
    q, k, v = autocast(q, k, v)
    draws = arguments["dropout_p"] != 0 and arguments["dropout_seed"] is None
    if by_op(q) and ranks is None:
        from . import _ops

        if isinstance(encoding, Plan):
            encoding, arguments = _spelled(encoding, arguments)
        if draws:
            arguments = {**arguments, "dropout_seed": _seed()}
        return _ops.attention(q, k, v, encoding, given, arguments, return_lse, out)

    def make() -> tuple[Any, bool, Any]:
        seeded = {**arguments, "dropout_seed": 0} if draws else arguments
        opened = _attend.open_call(q, k, v, encoding, given=given, **seeded)
        follow = wants_gradient(q, k, v, *learned) or transformed()
        if follow and opened.plan.values_in_keys:
            raise Error(
                "a plan with values_in_keys has no gradient: use torch.no_grad(), or give "
                f"v=k[..., :{opened.plan.value_dim}] to a plan without it"
            )
        if follow and opened.masking is not None:
            opened.masking = opened.masking.copied()
        if follow and opened.masking is not None and opened.masking.pages is not None:
            raise Error("keys in pages have no gradient: use torch.no_grad(), or give k and v as rows")
        if follow and out is not None:
            raise Error("out is written in place, which autograd cannot follow: leave it out, or use torch.no_grad()")
        checked = _attend.check_out(opened, out)
        if draws and opened.dropout is not None:  # last, so that a refused call draws nothing
            seed = _seed()
            if torch._C._functorch.is_batchedtensor(seed):
                raise Error("dropout cannot be mapped by torch.func.vmap", "unsupported")
            opened.dropout, opened.drawn = (opened.dropout[0], int(seed)), True
        return opened, follow, checked

    opened, follow, made = make() if ranks is None else ranks.open(make)
    if not follow:
        return _attend.results(*opened.forward(made, return_lse))
    behind = () if opened.mask is None else (opened.mask.given,)
    o, lse, *ae = apply(AttentionJob(opened), opened.q, opened.k, opened.v, *opened.tensors, *behind)
    return _attend.results(o, lse if return_lse else None, *(ae or [None]))


def linear_attention(q: Any, k: Any, v: Any, encoding: Any, given: Any, arguments: Any, state: Any, back: bool) -> Any:
    from . import linear_attention as public

    learned = _learned(arguments)
    options = {**given, **arguments, "state": state, "return_state": back}
    answered = _subclass(public, (q, k, v), encoding, options, learned)
    if answered is not None:
        return answered[0]
    refuse_tangents(q, k, v, *learned)
    arguments = read_numbers(arguments)
    q, k, v = autocast(q, k, v)
    if by_op(q):
        from . import _ops

        if isinstance(encoding, Plan):
            encoding, arguments = _spelled(encoding, arguments)
        return _ops.linear_attention(q, k, v, encoding, given, arguments, state, back)
    opened = _attend.open_call(q, k, v, encoding, given=given, stage="linear_attention", **arguments)
    if not wants_gradient(q, k, v, *learned) and not transformed():
        problem = opened
        return _linear.results(*_linear.forward(problem, state, back))
    if state is not None or back:
        raise Error("states have no gradient: use torch.no_grad(), or no state")
    if opened.masking is not None:
        opened.masking = opened.masking.copied()
    return apply(LinearJob(opened), opened.q, opened.k, opened.v, *opened.tensors)[0]


def rows(public: Any, x: Any, encoding: Any, arguments: Any, open_: Any) -> Any:
    """rotate() and embed()."""
    learned = _learned(arguments)
    answered = _subclass(public, (x,), encoding, arguments, learned)
    if answered is not None:
        return answered[0]
    refuse_tangents(x, *learned)
    arguments = read_numbers(arguments)
    if by_op(x):
        from . import _ops

        if isinstance(encoding, Plan):
            encoding, arguments = _spelled(encoding, arguments)
        return _ops.rows(public.__name__, x, encoding, arguments)
    opened = open_(x, encoding, **arguments)
    if not wants_gradient(x, *learned) and not transformed():
        return opened.forward(opened.x, opened.tensors)
    return apply(RowsJob(opened.copied()), opened.x, *opened.tensors)[0]


def by_states(x: Any, states: Any, layout: str) -> Any:
    """rotate() by `tape`, with states [batch, heads, rows, pairs, 2] that are known to fit."""
    if by_op(x) or has_torch_function((x, states)):
        from . import rotate

        pos = torch.arange(states.shape[2])
        return rotate(x, _rows.STATES, pos=pos, tensors={_rows.STATES_OF_ROWS: states}, layout=layout)
    refuse_tangents(x, states)
    opened = _rows.of_states(Torch.placed(x), x, states, layout)
    if not wants_gradient(x, states) and not transformed():
        return opened.forward(opened.x, opened.tensors)
    return apply(RowsJob(opened), opened.x, *opened.tensors)[0]
