# SPDX-License-Identifier: MIT
"""torch's tensors in memory of a GPU: calls are queued in torch's current stream, and memory is that of torch."""

from __future__ import annotations

import ctypes as c
import functools
from typing import Any

import torch

from . import _c, _gpu
from ._c import Error
from ._torch import Torch


class _Memory:
    """Bytes of torch's allocator, which gives them to others in the order of their stream."""

    __slots__ = ("at", "bytes")

    def __init__(self, device: torch.device, size: int) -> None:
        self.bytes = torch.empty(max(size, 1), dtype=torch.uint8, device=device)
        self.at = self.bytes.data_ptr()


class _Stream(_gpu.Device):
    """A stream of torch."""

    def __init__(self, handle: Any, device: torch.device) -> None:
        super().__init__(handle)
        self.device = device

    def memory(self, size: int) -> Any:
        return _Memory(self.device, size)


def _adopt(device: torch.device, stream: int) -> _Stream:
    handle, error = c.c_void_p(), _c.CError()
    with torch.cuda.device(device):
        torch.cuda.mem_get_info(device)  # makes torch's context this thread's current one
        status = _gpu.library().gpu_adopt(c.byref(handle), b"cuda", None, stream or None, error)
    _c.check(status, error)
    return _Stream(handle, device)


class OnDevice(Torch):
    """What calls need of tensors on a device."""

    family = Torch
    away = True

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.id = f"{device.type}:{device.index}"  # as loci calls it

    def current(self) -> Any:
        """The device in torch's current stream."""
        if torch.cuda.is_current_stream_capturing():  # the copies of its lists would be repeated without the lists
            raise Error("a CUDA graph cannot record a call of loci, which prepares lists on the CPU", "unsupported")
        stream = torch.cuda.current_stream(self.device).cuda_stream
        return _gpu.kept((self.device, stream), lambda: _adopt(self.device, stream))

    def check_device(self, x: Any, name: str) -> None:  # type: ignore[override]
        Torch.refuse_untracked(x)
        if x.device != self.device:
            raise Error(f"{name} is on {x.device} and q on {self.device}; arrays of a call are on one device")
        Torch.check_readable(x, name)

    @staticmethod
    def host(x: Any) -> Any:
        """A copy in memory of the CPU."""
        return x.detach().cpu()

    def from_host(self, x: Any) -> Any:
        return x.to(self.device)


@functools.cache
def of_device(device: torch.device) -> OnDevice:
    """The class for tensors on a device."""
    return OnDevice(device)
