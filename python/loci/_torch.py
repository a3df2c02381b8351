# SPDX-License-Identifier: MIT
"""torch's tensors, as the rest of the package sees arrays of any library, and their gradients."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad

from . import _arrays as arrays
from ._c import Error

_DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}

_tracing_state = torch._C._get_tracing_state  # of jit.trace
_dispatch_modes = torch._C._len_torch_dispatch_stack  # how many are at work


class Torch:
    """What calls need of tensors.  _numpy.py has the same for numpy."""

    name = "torch"
    family: Any = None  # the class for tensors in memory of the CPU: itself
    away = False  # are the tensors in memory of a device?
    library: Any = torch

    @staticmethod
    def placed(x: Any) -> Any:
        """The class for tensors that are where this one is."""
        if not x.is_cuda:
            return Torch
        from ._torch_gpu import of_device

        return of_device(x.device)

    @staticmethod
    def owns(x: Any) -> bool:
        return isinstance(x, torch.Tensor)

    @staticmethod
    def dtype(x: Any) -> str:
        return _NAMES.get(x.dtype) or str(x.dtype).removeprefix("torch.")

    @staticmethod
    def pointer(x: Any) -> int:
        try:
            at = int(x.data_ptr())
        except RuntimeError:  # of torch.func
            at = 0
        if not at and x.numel():
            raise Error(_why_no_address(x), "unsupported")
        return at

    @staticmethod
    def strides(x: Any) -> tuple[int, ...]:
        return tuple(x.stride())

    @staticmethod
    def signature(x: Any) -> tuple[Any, ...]:
        """What checks look at."""
        return x.shape, x.dtype, x.device, x.layout, x.is_neg()

    @staticmethod
    def raw_strides(x: Any) -> Any:
        return x.stride()

    @staticmethod
    def dense_strides(shape: tuple[int, ...], like: Any) -> tuple[int, ...]:
        return arrays.dense_strides(shape)

    @staticmethod
    def aligned(x: Any) -> bool:
        return True

    @staticmethod
    def dense(x: Any) -> Any:
        return x.contiguous()

    @staticmethod
    def copy(x: Any) -> Any:
        return x.detach().clone()

    @staticmethod
    def empty(shape: tuple[int, ...], like: Any, dtype: str | None = None) -> Any:
        return torch.empty(shape, dtype=like.dtype if dtype is None else _DTYPES[dtype], device=like.device)

    @staticmethod
    def zeros(shape: tuple[int, ...], like: Any, dtype: str | None = None) -> Any:
        return torch.zeros(shape, dtype=like.dtype if dtype is None else _DTYPES[dtype], device=like.device)

    @staticmethod
    def host_like(x: Any) -> Any:
        """A tensor in memory of the CPU, for numbers of a device."""
        return torch.empty(x.shape, dtype=x.dtype)

    @staticmethod
    def cast(x: Any, dtype: str) -> Any:
        return x.to(_DTYPES[dtype])

    @staticmethod
    def to_numpy(x: Any) -> np.ndarray[Any, Any]:
        return np.asarray(x.detach().numpy())

    @staticmethod
    def from_numpy(x: np.ndarray[Any, Any]) -> Any:
        return torch.from_numpy(x)

    @staticmethod
    def spread(x: Any, shape: tuple[int, ...]) -> Any:
        return x.expand(shape)

    @staticmethod
    def gather(x: Any, shape: tuple[int, ...]) -> Any:
        """The adjoint: sums over the axes that were spread."""
        return x.sum_to_size(shape)

    @staticmethod
    def detach(x: Any) -> Any:
        return x.detach()

    @staticmethod
    def version(x: Any) -> Any:
        """Changes when the numbers do; None where torch does not count."""
        return None if x.is_inference() else (x._version, x.data_ptr())

    grad_enabled = staticmethod(torch.is_grad_enabled)

    @staticmethod
    def wants_gradient(x: Any) -> bool:
        return torch.is_grad_enabled() and bool(x.requires_grad)

    @staticmethod
    def refuse_untracked(*tensors: Any) -> None:
        """Calls by address are invisible to tracers and to forward-mode AD, which would go on with wrong results."""
        if _recorded():
            raise Error(UNTRACED, "unsupported")
        if forward_ad._current_level >= 0:
            refuse_tangents(*tensors)

    @staticmethod
    def index(which: Any) -> Any:
        return torch.as_tensor(which)

    @staticmethod
    def check_device(x: Any, name: str) -> None:
        Torch.refuse_untracked(x)
        if x.device.type != "cpu":
            who = "this function of loci" if x.is_cuda else "loci"
            raise Error(f"{name} is on {x.device}; {who} computes on the CPU", "unsupported")
        Torch.check_readable(x, name)

    @staticmethod
    def check_readable(x: Any, name: str) -> None:
        if x.layout is not torch.strided:
            raise Error(f"{name} is {x.layout}; loci reads strided tensors", "unsupported")
        if x.is_neg():
            raise Error(f"{name} is a view whose signs are still to be turned; call resolve_neg() on it", "unsupported")

    @staticmethod
    def check_writable(x: Any, name: str) -> None:
        if x.requires_grad:
            raise Error(f"{name} requires a gradient, which autograd could not follow; give {name}.detach()")

    @staticmethod
    def bump_version(x: Any) -> None:
        """Autograd compares versions: it refuses a backward pass that needs what was overwritten."""
        torch.autograd.graph.increment_version(x)


Torch.family = Torch


SECOND = "loci has no second derivatives; a backward pass with create_graph=True ends here"
FORWARD = (
    "loci has no forward-mode derivatives (dual tensors, torch.func.jvp, jacfwd, hessian); "
    "use reverse mode: backward(), torch.func.grad, vjp or jacrev"
)
UNTRACED = (
    "this function of loci is no op of torch, so torch.jit.trace and make_fx would record its result as a constant; "
    "attention, linear_attention, rotate and embed can be traced"
)


def _recorded() -> bool:
    """Is jit.trace or make_fx at work?"""
    if _tracing_state() is not None:
        return True
    proxies = torch._C._TorchDispatchModeKey.PROXY
    return _dispatch_modes() > 0 and torch._C._get_dispatch_mode(proxies) is not None


def by_op(x: Any) -> bool:
    """Does somebody record or replace ops?  Then calls go by those of torch.library."""
    return torch.compiler.is_compiling() or _recorded() or isinstance(x, FakeTensor)


def packed_positions(cu_seqlens: Any, rows: int) -> Any:
    """Where rows of packed sequences are, in ops of torch."""
    starts = torch.repeat_interleave(cu_seqlens[:-1], cu_seqlens.diff(), output_size=rows)
    return torch.arange(rows) - starts


def _tangent(x: Any) -> Any:
    return forward_ad.unpack_dual(x).tangent  # type: ignore[no-untyped-call]


def refuse_tangents(*tensors: Any) -> None:
    if forward_ad._current_level < 0:
        return
    if any(isinstance(x, torch.Tensor) and _tangent(x) is not None for x in tensors):
        raise Error(FORWARD, "unsupported")


def _why_no_address(x: Any) -> str:
    """Why there are no numbers to read in a tensor, and what to do about it."""
    if torch._C._functorch.is_functorch_wrapped_tensor(x):
        return "a tensor of torch.func has no address, and this function of loci is not followed by torch.func"
    if type(x).__name__ == "DTensor":
        return "a DTensor spreads over processes; use its to_local(), or share out rows with loci.distributed (shares=)"
    if x._is_zerotensor():
        return "a tensor of implicit zeros has no address; call clone() on it"
    return f"a {type(x).__name__} has a shape and no numbers in memory; give loci a plain tensor"


def read_numbers(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of a call with tensors that stand for numbers read, once: later changes of them change nothing."""
    made = {}
    for name in ("scale", "softcap", "max_len"):
        x = arguments.get(name)
        if isinstance(x, torch.Tensor):
            made[name] = number(x, name)
    window = arguments.get("window_size")
    if isinstance(window, torch.Tensor) and window.ndim:
        window = window.unbind()
    if isinstance(window, (tuple, list)) and any(isinstance(side, torch.Tensor) for side in window):
        made["window_size"] = tuple(number(x, "window_size") if isinstance(x, torch.Tensor) else x for x in window)
    return {**arguments, **made} if made else arguments


def number(x: Any, name: str) -> Any:
    """The value of a tensor that stands for a number."""
    if torch.compiler.is_compiling():
        raise Error(f"{name} is a tensor; under torch.compile it must be a number")
    if x.requires_grad:
        raise Error(f"{name} requires a gradient, and loci has none for it: give a number, or {name}.detach()")
    if x.numel() != 1:
        raise Error(f"{name} must be a number, not a tensor of the shape {list(x.shape)}")
    return to_numpy(x, name).item()


def to_numpy(x: Any, name: str) -> np.ndarray[Any, Any]:
    """What is no tensor of autograd: positions, lengths, numbers."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(x):
        if functorch.is_batchedtensor(x):
            raise Error(f"{name} cannot be mapped by torch.func.vmap; map q, k, v and inputs", "unsupported")
        x = functorch.get_unwrapped(x)  # of torch.func.grad, which wraps every argument
    refuse_tangents(x)
    with torch._C._DisableFuncTorch():
        x = x.detach().cpu().resolve_neg()
        Torch.pointer(x)  # refuses a tensor without numbers
        made: np.ndarray[Any, Any] = x.numpy()
    return made


def incoming(grads: Any) -> tuple[Any, ...]:
    """Gradients from autograd, as C can read them: dense layout, signs resolved, zeros in memory."""
    return tuple(None if x is None else _readable(x) for x in grads)


def _readable(x: Any) -> Any:
    if x.layout is not torch.strided:
        x = x.to_dense()
    if x._is_zerotensor():
        x = x.clone()
    return x.resolve_neg()


def wants_gradient(*tensors: Any) -> bool:
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def transformed() -> bool:
    """Is torch.func at work?  Then even calls without a gradient go by a Function."""
    return bool(torch._C._are_functorch_transforms_active())


def autocast(*tensors: Any) -> tuple[Any, ...]:
    """As torch's own attention: float32 becomes what autocast says."""
    where = "cuda" if tensors[0].is_cuda else "cpu"
    if not torch.is_autocast_enabled(where):
        return tensors
    dtype = torch.get_autocast_dtype(where)
    return tuple(x.to(dtype) if x.dtype is torch.float32 else x for x in tensors)


class Job:
    """One call of a function of loci, opened: what a Function is given beside tensors."""

    def forward(self, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        raise NotImplementedError

    def backward(self, douts: Any, arrays: Any, outputs: Any, needs: Any) -> tuple[Any, ...]:
        """Gradients of the arrays that gives() names, None for the others.  Those of outputs may be None."""
        raise NotImplementedError

    def gives(self, needs: tuple[bool, ...]) -> tuple[bool, ...]:
        """Which arrays get a gradient, of those that need one."""
        return needs

    def vmap(self, times: int, in_dims: Any, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        """Outputs with the mapped axis in front."""
        raise Error("this call cannot be mapped by torch.func.vmap", "unsupported")


class _WorkJob(Job):
    """A function of layers.h."""

    def __init__(self, work: Any) -> None:
        self.work = work

    def forward(self, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        made: tuple[Any, ...] = self.work.forward(arrays)
        return made

    def backward(self, douts: Any, arrays: Any, outputs: Any, needs: Any) -> tuple[Any, ...]:
        made: tuple[Any, ...] = self.work.backward(douts, arrays, outputs, needs)
        return made

    def vmap(self, times: int, in_dims: Any, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        return _one_by_one(times, in_dims, arrays, lambda *one: Call.apply(self, *one))  # type: ignore[no-untyped-call]


def of_work(work: Any) -> Job:
    return _WorkJob(work)


def _one_by_one(times: int, in_dims: Any, tensors: Any, call: Any) -> tuple[Any, ...]:
    """The outputs of a call per mapped index, stacked.  Without any index a call on zeros tells their shapes."""

    def at(x: Any, dim: int | None, i: int) -> Any:
        if dim is None:
            return x
        return x.select(dim, i) if times else x.new_zeros(x.shape[:dim] + x.shape[dim + 1 :])

    each = [call(*(at(x, dim, i) for x, dim in zip(tensors, in_dims, strict=True))) for i in range(max(times, 1))]
    return tuple(torch.stack(some)[:times] for some in zip(*each, strict=True))


class _Reverse(torch.autograd.Function):
    """A Function without forward-mode derivatives."""

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise Error(FORWARD, "unsupported")


class Call(_Reverse):
    """(job, arrays) -> outputs."""

    @staticmethod
    def forward(job: Any, *arrays: Any) -> Any:
        return job.forward(arrays)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.job, ctx.count = inputs[0], len(output)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*output, *inputs[1:])

    @staticmethod
    def backward(ctx: Any, *douts: Any) -> Any:
        needs = tuple(ctx.needs_input_grad[1:])
        gives = ctx.job.gives(needs)
        if all(d is None for d in douts) or not any(gives):
            return (None,) * (1 + len(needs))
        grads = iter(Back.apply(ctx.job, ctx.count, needs, *douts, *ctx.saved_tensors))  # type: ignore[no-untyped-call]
        return (None, *(next(grads) if give else None for give in gives))

    @staticmethod
    def vmap(info: Any, in_dims: Any, job: Any, *arrays: Any) -> Any:
        outputs = job.vmap(info.batch_size, in_dims[1:], arrays)
        return outputs, (0,) * len(outputs)


class Eager(_Reverse):
    """The same where torch.func is not at work, without what that costs: a third of a small call."""

    @staticmethod
    def forward(ctx: Any, job: Any, *arrays: Any) -> Any:
        outputs = job.forward(arrays)
        ctx.job, ctx.count = job, len(outputs)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*outputs, *arrays)
        return outputs

    @staticmethod
    def backward(ctx: Any, *douts: Any) -> Any:
        if torch.is_grad_enabled():  # create_graph: an error, when somebody goes back further
            return Call.backward(ctx, *douts)
        needs = tuple(ctx.needs_input_grad[1:])
        if all(d is None for d in douts):
            return (None,) * (1 + len(needs))
        saved, count = ctx.saved_tensors, ctx.count
        return (None, *ctx.job.backward(incoming(douts), saved[count:], saved[:count], needs))


def apply(job: Job, *arrays: Any) -> tuple[Any, ...]:
    """Outputs of a job that autograd follows."""
    made: tuple[Any, ...] = (Call if transformed() else Eager).apply(job, *arrays)  # type: ignore[no-untyped-call]
    return made


class Back(_Reverse):
    """(job, number of outputs, needs, gradients of outputs, outputs, arrays) -> the gradients that the job gives.  It
    is a Function, as torch.func hands its wrapped tensors to backward()."""

    @staticmethod
    def forward(job: Any, count: int, needs: Any, *tensors: Any) -> Any:
        douts, outputs, arrays = tensors[:count], tensors[count : 2 * count], tensors[2 * count :]
        grads = job.backward(incoming(douts), arrays, outputs, needs)
        return tuple(g for g, give in zip(grads, job.gives(needs), strict=True) if give)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise Error(SECOND, "unsupported")

    @staticmethod
    def vmap(info: Any, in_dims: Any, job: Any, count: Any, needs: Any, *tensors: Any) -> Any:
        """What is learned has a gradient of each index."""
        call = functools.partial(Back.apply, job, count, needs)
        grads = _one_by_one(info.batch_size, in_dims[3:], tensors, call)
        return grads, (0,) * len(grads)
