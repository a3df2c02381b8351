# SPDX-License-Identifier: MIT
"""Devices: GPUs, and the host, which runs their kernels slowly to check them.

`loci.attention(..., device="cuda:0")` computes on one, with the bits of the CPU, and `loci.Cache(..., device="cuda:0")`
keeps keys and values there. Tensors of torch on a GPU are computed there without being asked. Importing this module
opens no driver.
"""

from __future__ import annotations

from dataclasses import dataclass

from . import _c, _gpu

__all__ = ["Device", "devices"]


@dataclass(frozen=True)
class Device:
    """A device that attention can be computed on.

    Attributes
    ----------
    id : str
        What `device` of `loci.attention()` and `loci.Cache` takes, such as `"cuda:0"`.
    name : str
        As its maker calls it.
    driver : str
        Its driver and version.
    memory : int
        Bytes. 0 for the host.
    units : int
        Number of multiprocessors or compute units.
    """

    id: str
    name: str
    driver: str
    memory: int
    units: int


def devices() -> list[Device]:
    """List the devices that are here. Those of CUDA come first, the host last.

    Returns
    -------
    list of Device
        The host runs kernels as loops on the CPU, slowly, to check them without a GPU.

    Raises
    ------
    Error
        This build of loci has no libloci-gpu.
    """
    library = _gpu.library()
    room = (_c.GpuInfo * 1)()
    count = library.gpu_devices(room, 1)
    room = (_c.GpuInfo * max(count, 1))()
    count = min(library.gpu_devices(room, len(room)), len(room))

    def text(bytes_: bytes) -> str:
        return bytes_.decode(errors="replace")

    return [Device(text(d.id), text(d.name), text(d.driver), d.memory, d.units) for d in room[:count]]
