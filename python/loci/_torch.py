# SPDX-License-Identifier: MIT
"""torch's tensors, as the rest of the package sees arrays of any library, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from . import _arrays as arrays
from ._c import Error

_DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class Torch:
    """What calls need of tensors.  _numpy.py has the same for numpy."""

    name = "torch"

    @staticmethod
    def owns(x: Any) -> bool:
        return isinstance(x, torch.Tensor)

    @staticmethod
    def dtype(x: Any) -> str:
        return _NAMES.get(x.dtype) or str(x.dtype).removeprefix("torch.")

    @staticmethod
    def pointer(x: Any) -> int:
        return int(x.data_ptr())

    @staticmethod
    def strides(x: Any) -> tuple[int, ...]:
        return tuple(x.stride())

    @staticmethod
    def signature(x: Any) -> tuple[Any, ...]:
        """What checks look at."""
        return x.shape, x.dtype, x.is_cpu, x.layout, x.is_neg()

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
    def empty(shape: tuple[int, ...], like: Any, dtype: str | None = None) -> Any:
        return torch.empty(shape, dtype=like.dtype if dtype is None else _DTYPES[dtype])

    @staticmethod
    def zeros(shape: tuple[int, ...], like: Any, dtype: str | None = None) -> Any:
        return torch.zeros(shape, dtype=like.dtype if dtype is None else _DTYPES[dtype])

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

    grad_enabled = staticmethod(torch.is_grad_enabled)

    @staticmethod
    def wants_gradient(x: Any) -> bool:
        return torch.is_grad_enabled() and bool(x.requires_grad)

    @staticmethod
    def index(which: Any) -> Any:
        return torch.as_tensor(which)

    @staticmethod
    def check_device(x: Any, name: str) -> None:
        if x.device.type != "cpu":
            raise Error(f"{name} is on {x.device}; loci computes on the CPU", "unsupported")
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


SECOND = "loci has no second derivatives; a backward pass with create_graph=True ends here"


def wants_gradient(*tensors: Any) -> bool:
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def transformed() -> bool:
    """Is torch.func at work?  Then even calls without a gradient go by a Function."""
    return bool(torch._C._are_functorch_transforms_active())


def autocast(*tensors: Any) -> tuple[Any, ...]:
    """As torch's own attention: float32 becomes what autocast says."""
    if not torch.is_autocast_enabled("cpu"):
        return tensors
    dtype = torch.get_autocast_dtype("cpu")
    return tuple(x.to(dtype) if x.dtype is torch.float32 else x for x in tensors)


class Job:
    """One call of a function of loci, opened: what a Function is given beside tensors."""

    def forward(self, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        """Tensors from tensors; an empty one where there is none."""
        raise NotImplementedError

    def backward(self, douts: Any, arrays: Any, outputs: Any, needs: Any) -> tuple[Any, ...]:
        """Gradients of the arrays that need one, None for the others, from those of the outputs, which may be None."""
        raise NotImplementedError

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
        """One after the other."""
        each = []
        for i in range(times):
            one = [x if dim is None else x.select(dim, i) for x, dim in zip(arrays, in_dims, strict=True)]
            each.append(Call.apply(self, *one))  # type: ignore[no-untyped-call]
        return tuple(torch.stack(some) for some in zip(*each, strict=True))


def of_work(work: Any) -> Job:
    return _WorkJob(work)


class Call(torch.autograd.Function):
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
        if all(d is None for d in douts):
            return (None,) * (1 + len(needs))
        saved = ctx.saved_tensors
        grads = Back.apply(ctx.job, ctx.count, needs, *douts, *saved)  # type: ignore[no-untyped-call]
        each = zip(grads, needs, saved[ctx.count :], strict=True)
        return (None, *(g if need and g.shape == x.shape else None for g, need, x in each))

    @staticmethod
    def vmap(info: Any, in_dims: Any, job: Any, *arrays: Any) -> Any:
        outputs = job.vmap(info.batch_size, in_dims[1:], arrays)
        return outputs, tuple(0 if x.numel() else None for x in outputs)


class Eager(torch.autograd.Function):
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
        return (None, *ctx.job.backward(douts, saved[count:], saved[:count], needs))


def apply(job: Job, *arrays: Any) -> tuple[Any, ...]:
    """Outputs of a job that autograd follows."""
    made: tuple[Any, ...] = (Call if transformed() else Eager).apply(job, *arrays)  # type: ignore[no-untyped-call]
    return made


class Back(torch.autograd.Function):
    """(job, number of outputs, needs, gradients of outputs, outputs, arrays) -> gradients of arrays, some empty.  It is
    a Function, as torch.func hands its wrapped tensors to backward()."""

    @staticmethod
    def forward(job: Any, count: int, needs: Any, *tensors: Any) -> Any:
        douts, outputs, arrays = tensors[:count], tensors[count : 2 * count], tensors[2 * count :]
        grads = job.backward(douts, arrays, outputs, needs)
        return tuple(torch.empty(0) if g is None else g for g in grads)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise Error(SECOND, "unsupported")

    @staticmethod
    def vmap(info: Any, in_dims: Any, job: Any, count: Any, needs: Any, *tensors: Any) -> Any:
        """One after the other: what is learned has a gradient of each."""
        each = []
        for i in range(info.batch_size):
            one = [x if dim is None else x.select(dim, i) for x, dim in zip(tensors, in_dims[3:], strict=True)]
            each.append(Back.apply(job, count, needs, *one))  # type: ignore[no-untyped-call]
        stacked = tuple(torch.stack(some) for some in zip(*each, strict=True))
        return stacked, (0,) * len(stacked)
