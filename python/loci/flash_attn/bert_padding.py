# SPDX-License-Identifier: MIT
"""From padded batches to packed rows, and back.  Imports are absolute: it may be loaded as flash_attn.bert_padding."""

from __future__ import annotations

import torch

from loci.flash_attn import Error

__all__ = [
    "index_first_axis",
    "index_put_first_axis",
    "pad_input",
    "unpad_input",
    "unpad_input_for_concatenated_sequences",
]


def index_first_axis(input: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Choose rows.

    Parameters
    ----------
    input : tensor [rows, ...]
        Rows.
    indices : int tensor [chosen]
        Which rows.

    Returns
    -------
    tensor [chosen, ...]
        The rows, with gradients.
    """
    return input.index_select(0, indices)


def index_put_first_axis(values: torch.Tensor, indices: torch.Tensor, first_axis_dim: int) -> torch.Tensor:
    """Put rows among rows of zeros.

    Parameters
    ----------
    values : tensor [chosen, ...]
        Rows.
    indices : int tensor [chosen]
        Where each row goes.
    first_axis_dim : int
        Number of rows of the result.

    Returns
    -------
    tensor [first_axis_dim, ...]
        The rows, with gradients.
    """
    return values.new_zeros(first_axis_dim, *values.shape[1:]).index_copy(0, indices, values)


def _starts(lengths: torch.Tensor) -> tuple[torch.Tensor, int]:
    """cu_seqlens, and the longest."""
    ends = torch.cumsum(lengths, 0, dtype=torch.int32)
    return torch.nn.functional.pad(ends, (1, 0)), int(lengths.max()) if lengths.numel() else 0


def _check(hidden_states: torch.Tensor, mask: torch.Tensor, name: str) -> None:
    if mask.ndim != 2 or hidden_states.shape[:2] != mask.shape:
        raise Error(f"{name} has the shape {list(mask.shape)}, and hidden_states {list(hidden_states.shape)}")


def unpad_input(
    hidden_states: torch.Tensor, attention_mask: torch.Tensor, unused_mask: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, torch.Tensor]:
    """Pack the rows of a padded batch.

    Parameters
    ----------
    hidden_states : tensor [batch, rows, ...]
        The batch.
    attention_mask : tensor [batch, rows]
        1 or True is a token; 0 or False is padding.
    unused_mask : tensor [batch, rows], optional
        1 or True is a row that is packed too, though it is no token.

    Returns
    -------
    hidden_states : tensor [packed, ...]
        The rows, with gradients.
    indices : int64 tensor [packed]
        Where they were in the batch.
    cu_seqlens : int32 tensor [batch + 1]
        Where each entry starts, and the end of the last one.
    max_seqlen_in_batch : int
        The rows of the longest entry.
    seqused : int32 tensor [batch]
        Tokens of each entry.
    """
    _check(hidden_states, attention_mask, "attention_mask")
    packed = attention_mask
    if unused_mask is not None:
        _check(hidden_states, unused_mask, "unused_mask")
        packed = attention_mask + unused_mask
    indices = packed.flatten().nonzero().flatten()
    cu_seqlens, longest = _starts((packed != 0).sum(-1, dtype=torch.int32))
    used = attention_mask.sum(-1, dtype=torch.int32)
    return index_first_axis(hidden_states.flatten(0, 1), indices), indices, cu_seqlens, longest, used


def unpad_input_for_concatenated_sequences(
    hidden_states: torch.Tensor, attention_mask_in_length: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """Pack the rows of a batch whose entries hold several sequences each.

    Parameters
    ----------
    hidden_states : tensor [batch, rows, ...]
        The batch.
    attention_mask_in_length : int tensor [batch, rows]
        The lengths of the sequences of each entry, which follow each other from its first row on; then zeros.

    Returns
    -------
    hidden_states : tensor [packed, ...]
        The rows, with gradients.
    indices : int64 tensor [packed]
        Where they were in the batch.
    cu_seqlens : int32 tensor [sequences + 1]
        Where each sequence starts, and the end of the last one.
    max_seqlen_in_batch : int
        The rows of the longest sequence.
    """
    lengths = attention_mask_in_length
    _check(hidden_states, lengths, "attention_mask_in_length")
    rows = torch.arange(lengths.shape[-1])
    indices = (rows < lengths.sum(-1)[:, None]).flatten().nonzero().flatten()
    cu_seqlens, longest = _starts(lengths[lengths != 0])
    return index_first_axis(hidden_states.flatten(0, 1), indices), indices, cu_seqlens, longest


def pad_input(hidden_states: torch.Tensor, indices: torch.Tensor, batch: int, seqlen: int) -> torch.Tensor:
    """Undo `unpad_input()`.

    Parameters
    ----------
    hidden_states : tensor [packed, ...]
        Rows.
    indices : int tensor [packed]
        Where they are in the batch.
    batch : int
        Entries of the batch.
    seqlen : int
        Rows of each entry.

    Returns
    -------
    tensor [batch, seqlen, ...]
        The batch, with zeros for padding.
    """
    padded = index_put_first_axis(hidden_states, indices, batch * seqlen)
    return padded.view(batch, seqlen, *padded.shape[1:])
