# SPDX-License-Identifier: MIT
"""Types of public arguments.  Importing them imports neither torch nor transformers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, Union

import numpy as np

if TYPE_CHECKING:
    import torch

    from .distributed import Group


class ArrayLike(Protocol):
    """A numpy.ndarray, a torch.Tensor, or an array of another library that has __dlpack__."""

    @property
    def shape(self) -> Any: ...

    def __getitem__(self, key: Any, /) -> Any: ...

    def __dlpack__(self) -> Any: ...


class ModelConfig(Protocol):
    """A configuration of transformers: anything with to_dict()."""

    def to_dict(self) -> dict[str, Any]: ...


# Whole numbers, such as positions and segments: an array, or lists.
IntArrayLike: TypeAlias = ArrayLike | Sequence[int] | Sequence[Sequence[int]]
# Numbers, such as coordinates: an array, or lists.
RealArrayLike: TypeAlias = ArrayLike | Sequence[float] | Sequence[Sequence[float]] | Sequence[Sequence[Sequence[float]]]
# Tensors of encodings by their names; None counts as not given.
Tensors: TypeAlias = Mapping[str, ArrayLike | None]
DTypeLike: TypeAlias = Union[str, "np.dtype[Any]", "type[Any]", "torch.dtype"]
GroupLike: TypeAlias = Union["Group", "torch.distributed.ProcessGroup"]
ModelSource: TypeAlias = Union[str, "os.PathLike[str]", Mapping[str, object], ModelConfig]
