# SPDX-License-Identifier: MIT
"""Modules that make inputs of encodings from hidden states: angles, real positions, slopes.

forward() returns a dict for `inputs=` of loci.nn.Encoding and loci.Cache.step().  What depends on tokens before has
step(), which continues where its state ends."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from . import _arrays as arrays
from . import layers
from ._c import Error
from ._nn_sizes import MOST_DIM, MOST_WIDTH, heads_of, reset_children, sizes
from ._numbers import real, whole, whole_or_none
from ._plan import Plan
from ._types import IntArrayLike


def _wide(x: torch.Tensor) -> torch.Tensor:
    """Inputs are float32 where queries have 16 bits."""
    return x if x.dtype is torch.float64 else x.float()


def _number(x: Any, name: str, least: float, most: float = math.inf) -> float:
    number: float = real(x, name)
    if not least < number < most:
        raise Error(f"{name} must be between {least:g} and {most:g}, not {number:g}")
    return number


def _even(head_dim: int) -> int:
    if head_dim % 2:
        raise Error(f"head_dim {head_dim} must be even, as a rotation turns pairs of channels")
    return head_dim // 2


def _runs(seg: IntArrayLike, batch: int, rows: int) -> torch.Tensor:
    """A number for each sequence of a batch, [1 or batch, rows]."""
    given = torch.from_numpy(arrays.whole(seg, "seg", ((rows,), (batch, rows))).copy()).view(-1, rows)
    return functional.pad((given[:, 1:] != given[:, :-1]).long().cumsum(-1), (1, 0)) if rows else given


def _taps(x: torch.Tensor, weight: torch.Tensor, last: torch.Tensor | None, runs: Any) -> torch.Tensor:
    """Causal convolution of each channel over the rows of x [batch, rows, channels], with weight [channels, taps].

    `last` are the rows before x."""
    rows, more = x.shape[1], weight.shape[1] - 1
    before = x.new_zeros(x.shape[0], more, x.shape[2]) if last is None else last
    padded = torch.cat((before, x), 1)
    y = weight[:, more] * x
    for back in range(1, more + 1):
        tap = weight[:, more - back] * padded[:, more - back : more - back + rows]
        if runs is not None:
            same = runs[:, back:] == runs[:, :-back] if back < rows else runs[:, :0].bool()
            tap = tap.masked_fill(~functional.pad(same, (rows - same.shape[1], 0))[..., None], 0)
        y = y + tap
    return y


def _last_rows(x: torch.Tensor, last: torch.Tensor | None, count: int) -> torch.Tensor:
    """What a convolution reads of the tokens so far, zeros where there are fewer."""
    rows = x if last is None else torch.cat((last, x), 1)
    rows = functional.pad(rows, (0, 0, max(0, count - rows.shape[1]), 0))
    return rows[:, rows.shape[1] - count :].clone()


def _unit(x: torch.Tensor) -> torch.Tensor:
    """Rows of length 1, as flash-linear-attention normalises them."""
    return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()


class _Angles(nn.Module):
    """Angles that are running sums, one set per key head; the query heads of a group share them."""

    encoding = "angles:pairing=half"

    def __init__(self, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads

    def _inputs(self, phi: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"angles.phi_q": phi.repeat_interleave(self.heads // self.kv_heads, 1), "angles.phi_k": phi}


class SelectiveRoPE(_Angles):
    """Angles of Selective RoPE, for the encoding `angles:pairing=half`: `inputs = m(x)`.

    x is normalised per key head and projected. A causal convolution, a bias and a gate follow, and the running sums
    times temperatures are the angles. Queries and keys of a token share them.

    Parameters
    ----------
    embed_dim : int
        Width of hidden states, a multiple of the key heads.
    heads : int
        Number of query heads.
    kv_heads : int, optional
        Number of key and value heads. By default `heads`.
    head_dim : int, optional
        Width of one head. By default `embed_dim // heads`.
    rank : int, optional
        Rank of the projection. None is a full one per head, with columns of length 1 times a learned scalar.
    width : int, optional
        Taps of the convolution. None takes differences of neighbouring tokens instead.
    bias : bool
        Add exp(b) to each increment.
    gate : {"head", "channel"}, optional
        Multiply increments by a learned sigmoid per head, or per pair. None is no gate.
    temperature : {"rope", "rfa"}
        Temperatures are theta^(-2t/head_dim), or tan(a/2) for a from 0 to theta pi.
    theta : float
        See `temperature`; below 1 for `rfa`.
    temperature_max : float
        The largest temperature.
    learn_temperature : bool
        Make temperatures parameters.
    device : torch.device, str or int, optional
        Device of parameters and buffers: the CPU, or `meta`.
    dtype : torch.dtype, optional
        Type of parameters and buffers. By default torch's default.
    """

    def __init__(
        self,
        embed_dim: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        rank: int | None = 16,
        width: int | None = 4,
        bias: bool = False,
        gate: str | None = None,
        temperature: str = "rope",
        theta: float = 500000.0,
        temperature_max: float = 1.0,
        learn_temperature: bool = False,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        embed_dim, heads, kv_heads, head_dim = sizes(embed_dim, heads, kv_heads, head_dim)
        super().__init__(heads, kv_heads)
        self.pairs, self.gate_of = _even(head_dim), gate
        rank, width = whole_or_none(rank, "rank", high=MOST_WIDTH), whole_or_none(width, "width", high=MOST_DIM)
        if embed_dim % kv_heads:
            raise Error(f"embed_dim {embed_dim} must be a multiple of the {kv_heads} key heads, which normalise slices")
        if gate not in (None, "head", "channel"):
            raise Error(f"gate must be None, head or channel, not '{gate}'")
        if temperature not in ("rope", "rfa"):
            raise Error(f"temperature must be rope or rfa, not '{temperature}'")
        if temperature == "rfa" and self.pairs < 2:
            raise Error("temperature rfa wants a head_dim of at least 4: the first temperature is 0")
        self.theta = _number(theta, "theta", 0.0, math.inf if temperature == "rope" else 1.0)
        self.temperature_of, self.temperature_max = temperature, _number(temperature_max, "temperature_max", 0.0)
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        channels = kv_heads * self.pairs
        self.down = None if rank is None else nn.Linear(embed_dim, rank, bias=False, **made)
        self.up = None if rank is None else nn.Linear(rank, channels, bias=False, **made)
        self.conv = None if width is None else nn.Conv1d(channels, channels, width, groups=channels, bias=False, **made)
        self.gate_down = None if gate != "channel" else nn.Linear(embed_dim, 16, bias=False, **made)
        out = channels if gate == "channel" else kv_heads
        self.gate_up = None if gate is None else nn.Linear(16 if gate == "channel" else embed_dim, out, **made)
        full, slice_ = rank is None, embed_dim // kv_heads
        self.weight = nn.Parameter(torch.empty(kv_heads, slice_, self.pairs, **made)) if full else None
        self.scalar = nn.Parameter(torch.empty(kv_heads, **made)) if full else None
        self.bias = nn.Parameter(torch.empty(kv_heads, self.pairs, **made)) if bias else None
        self.temperature = nn.Parameter(torch.empty(self.pairs, **made)) if learn_temperature else None
        self._start()

    def reset_parameters(self) -> None:
        """Set all parameters to initial values again."""
        reset_children(self)
        self._start()

    @torch.no_grad()
    def _start(self) -> None:
        if self.weight is not None and self.scalar is not None:
            for one in self.weight:
                nn.init.kaiming_uniform_(one)
            nn.init.ones_(self.scalar)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        if self.temperature is not None:
            self.temperature.copy_(self._temperatures())

    def _temperatures(self) -> torch.Tensor:
        t = torch.arange(self.pairs, dtype=torch.float64, device="cpu")
        if self.temperature_of == "rope":
            return self.temperature_max * self.theta ** (-t / self.pairs)
        tangent = (t / max(1, self.pairs - 1) * (self.theta * math.pi / 2)).tan()
        return self.temperature_max * tangent / tangent.max()

    def _projected(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Normalised hidden states, and angles before the convolution, [batch, length, channels]."""
        apart = _unit(x.unflatten(-1, (self.kv_heads, -1)))  # type: ignore[no-untyped-call]
        hidden = apart.flatten(-2)
        if self.down is not None and self.up is not None:
            return hidden, self.up(self.down(hidden))
        assert self.weight is not None
        assert self.scalar is not None
        weight = self.scalar[:, None, None] * functional.normalize(self.weight, dim=1)
        return hidden, torch.einsum("blhi,hio->blho", apart, weight).flatten(-2)

    def _sums(self, x: torch.Tensor, seg: Any, state: Any, return_state: bool) -> Any:
        hidden, raw = self._projected(x)
        raw = _wide(raw)
        last, before = (None, None) if state is None else state
        weight = raw.new_tensor([[-1.0, 1.0]]) if self.conv is None else self.conv.weight[:, 0].to(raw.dtype)
        runs = None if seg is None else _runs(seg, x.shape[0], x.shape[1])
        steps = _taps(raw, weight, last, runs).unflatten(-1, (self.kv_heads, self.pairs))  # type: ignore[no-untyped-call]
        if self.bias is not None:
            steps = steps + self.bias.to(raw.dtype).exp()
        if self.gate_up is not None:
            made = self.gate_up(hidden if self.gate_down is None else self.gate_down(hidden)).sigmoid()
            steps = steps * _wide(made).unflatten(-1, (self.kv_heads, -1))  # type: ignore[no-untyped-call]
        temperatures = self._temperatures() if self.temperature is None else self.temperature
        rate = temperatures.expand(self.kv_heads, -1)
        made = layers.running_angles(steps.transpose(1, 2), rate, seg=seg, before=before, return_after=return_state)
        if not return_state:
            return self._inputs(made)
        return self._inputs(made[0]), (_last_rows(raw, last, weight.shape[1] - 1), made[1])

    def forward(self, x: torch.Tensor, *, seg: IntArrayLike | None = None) -> dict[str, torch.Tensor]:
        """Compute the angles of whole sequences.

        Parameters
        ----------
        x : Tensor [batch, length, embed_dim]
            Hidden states.
        seg : int array [length] or [batch, length], optional
            Segments. Each starts at 0; negative is padding.

        Returns
        -------
        dict of str to Tensor
            `angles.phi_q` [batch, heads, length, head_dim / 2] and `angles.phi_k` [batch, kv_heads, length,
            head_dim / 2].
        """
        made: dict[str, torch.Tensor] = self._sums(x, seg, None, False)
        return made

    def step(
        self, x: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor] | None = None
    ) -> tuple[dict[str, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
        """Compute the angles of new tokens.

        Parameters
        ----------
        x : Tensor [batch, length, embed_dim]
            Hidden states of the new tokens.
        state : tuple of Tensor, optional
            The state after the tokens before. None is the start of a sequence.

        Returns
        -------
        inputs : dict of str to Tensor
            As of a call.
        state : tuple of Tensor
            The last tokens of the convolution, and the sums in float64.
        """
        made: tuple[dict[str, torch.Tensor], tuple[torch.Tensor, torch.Tensor]] = self._sums(x, None, state, True)
        return made


class GrapeM(_Angles):
    """Angles of contextual GRAPE-M, for the encoding `angles:pairing=half`: `inputs = m(x)`.

    A token's increment is sigmoid((x W + b) / scale), times a learned frequency per pair. Sums are exclusive, and
    rotate by minus the angle. The authors' layer normalises queries and keys after the rotation.

    Parameters
    ----------
    embed_dim : int
        Width of hidden states.
    heads : int
        Number of query heads.
    kv_heads : int, optional
        Number of key and value heads. By default `heads`.
    head_dim : int, optional
        Width of one head. By default `embed_dim // heads`.
    per_head : bool
        An increment per key head, not one for all.
    share_frequencies : bool
        Heads share frequencies.
    base : float
        Base of the first frequencies.
    scale : float
        Divides the logits of increments.
    device : torch.device, str or int, optional
        Device of parameters and buffers: the CPU, or `meta`.
    dtype : torch.dtype, optional
        Type of parameters and buffers. By default torch's default.
    """

    def __init__(
        self,
        embed_dim: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        per_head: bool = False,
        share_frequencies: bool = True,
        base: float = 10000.0,
        scale: float = 16.0,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        embed_dim, heads, kv_heads, head_dim = sizes(embed_dim, heads, kv_heads, head_dim)
        super().__init__(heads, kv_heads)
        self.pairs = _even(head_dim)
        self.base, self.scale = _number(base, "base", 0.0), _number(scale, "scale", 0.0)
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.omega = nn.Linear(embed_dim, kv_heads if per_head else 1, **made)
        self.log_freq = nn.Parameter(torch.empty(1 if share_frequencies else kv_heads, self.pairs, **made))
        self._start()

    def reset_parameters(self) -> None:
        """Set all parameters to initial values again."""
        reset_children(self)
        self._start()

    @torch.no_grad()
    def _start(self) -> None:
        """Bias: that of the authors, which would give increments of 0.001 through softplus, and gives 0.394."""
        nn.init.zeros_(self.omega.weight)
        nn.init.constant_(self.omega.bias, math.log(math.expm1(1e-3)))
        t = torch.arange(self.pairs, dtype=torch.float64, device="cpu")
        self.log_freq.copy_((-t / self.pairs * math.log(self.base)).expand_as(self.log_freq))

    def _sums(self, x: torch.Tensor, seg: Any, before: Any, return_state: bool) -> Any:
        omega = (_wide(self.omega(x)) / self.scale).sigmoid().transpose(1, 2)
        steps = omega[..., None].expand(-1, self.kv_heads, -1, self.pairs)
        rate = -self.log_freq.double().exp().expand(self.kv_heads, -1)
        made = layers.running_angles(steps, rate, exclusive=True, seg=seg, before=before, return_after=return_state)
        return (self._inputs(made[0]), made[1]) if return_state else self._inputs(made)

    def forward(self, x: torch.Tensor, *, seg: IntArrayLike | None = None) -> dict[str, torch.Tensor]:
        """Compute the angles of whole sequences.

        Parameters
        ----------
        x : Tensor [batch, length, embed_dim]
            Hidden states.
        seg : int array [length] or [batch, length], optional
            Segments. Each starts at 0; negative is padding.

        Returns
        -------
        dict of str to Tensor
            `angles.phi_q` [batch, heads, length, head_dim / 2] and `angles.phi_k` [batch, kv_heads, length,
            head_dim / 2].
        """
        made: dict[str, torch.Tensor] = self._sums(x, seg, None, False)
        return made

    def step(self, x: torch.Tensor, state: torch.Tensor | None = None) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Compute the angles of new tokens.

        Parameters
        ----------
        x : Tensor [batch, length, embed_dim]
            Hidden states of the new tokens.
        state : Tensor, optional
            The state after the tokens before. None is the start of a sequence.

        Returns
        -------
        inputs : dict of str to Tensor
            As of a call.
        state : Tensor [batch, kv_heads, head_dim / 2]
            The sums in float64.
        """
        made: tuple[dict[str, torch.Tensor], torch.Tensor] = self._sums(x, None, state, True)
        return made


class RePo(nn.Module):
    """Positions of RePo, for the encoding `rope:pairing=half,positions=given`: `inputs = m(x)`.

    A token's position in a head is W_f (silu(W_g x) * (W_c x)). Weights start small, so that positions are near 0.

    Parameters
    ----------
    embed_dim : int
        Width of hidden states.
    heads : int
        Number of query heads.
    kv_heads : int, optional
        Number of key and value heads. By default `heads`.
    hidden : int, optional
        Width of the hidden layer. By default `embed_dim // 8`.
    device : torch.device, str or int, optional
        Device of parameters and buffers: the CPU, or `meta`.
    dtype : torch.dtype, optional
        Type of parameters and buffers. By default torch's default.
    """

    encoding = "rope:pairing=half,positions=given"

    def __init__(
        self,
        embed_dim: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        hidden: int | None = None,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        embed_dim = whole(embed_dim, "embed_dim", 1, MOST_WIDTH)
        self.heads, self.kv_heads = heads_of(heads, kv_heads)
        hidden = whole_or_none(hidden, "hidden", high=MOST_WIDTH) or max(1, embed_dim // 8)
        made: dict[str, Any] = {"bias": False, "device": device, "dtype": dtype}
        self.gate_map = nn.Linear(embed_dim, hidden, **made)
        self.content_map = nn.Linear(embed_dim, hidden, **made)
        self.final_map = nn.Linear(hidden, self.kv_heads, **made)
        self._start()

    def reset_parameters(self) -> None:
        """Set all parameters to initial values again."""
        reset_children(self)
        self._start()

    def _start(self) -> None:
        for one in (self.gate_map, self.content_map, self.final_map):
            nn.init.normal_(one.weight, std=0.02)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Compute the positions of tokens. They depend on their own token alone.

        Parameters
        ----------
        x : Tensor [batch, length, embed_dim]
            Hidden states.

        Returns
        -------
        dict of str to Tensor
            `rope.z_q` [batch, heads, length] and `rope.z_k` [batch, kv_heads, length].
        """
        z = _wide(self.final_map(functional.silu(self.gate_map(x)) * self.content_map(x))).transpose(1, 2)
        return {"rope.z_q": z.repeat_interleave(self.heads // self.kv_heads, 1), "rope.z_k": z}


class GrapeA(nn.Module):
    """Slopes of GRAPE-A, for the encoding `alibi:slopes=both`: `inputs = m(q, k)`, after any norm of q and k.

    A key's slope is softplus(omega) m softplus(u.k / sqrt(head_dim)), with m the slope of alibi and u a learned
    vector of length 1. A query's has a vector of its own.

    Parameters
    ----------
    heads : int
        Number of query heads.
    head_dim : int
        Width of one head.
    kv_heads : int, optional
        Number of key and value heads. By default `heads`.
    slopes : {"both", "keys", "queries"}
        What has slopes; `alibi:slopes=` wants the same.
    device : torch.device, str or int, optional
        Device of parameters and buffers: the CPU, or `meta`.
    dtype : torch.dtype, optional
        Type of parameters and buffers. By default torch's default.
    """

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        kv_heads: int | None = None,
        slopes: str = "both",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads = heads_of(heads, kv_heads)
        self.head_dim = whole(head_dim, "head_dim", 1, MOST_DIM)
        if slopes not in ("both", "keys", "queries"):
            raise Error(f"slopes must be both, keys or queries, not '{slopes}'")
        self.encoding = f"alibi:slopes={slopes}"
        self._official = Plan("alibi:slopes=given", self.heads, self.head_dim).init(0)["alibi.slopes"]
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.omega = nn.Parameter(torch.empty(self.heads, **made))
        empty = (self.heads, self.head_dim)
        self.u = nn.Parameter(torch.empty(empty, **made)) if slopes != "queries" else None
        self.v = nn.Parameter(torch.empty(empty, **made)) if slopes != "keys" else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set all parameters to initial values again."""
        nn.init.constant_(self.omega, math.log(math.expm1(1.0)))
        for vector in (self.u, self.v):
            if vector is not None:
                nn.init.normal_(vector, std=self.head_dim**-0.5)

    def _slopes(self, rows: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
        rows = _wide(rows)
        unit = functional.normalize(vector.to(rows.dtype), dim=-1, eps=1e-6)
        gate = functional.softplus(torch.einsum("bhld,hd->bhl", rows, unit) / math.sqrt(self.head_dim))
        most = functional.softplus(self.omega.to(rows.dtype)) * torch.from_numpy(self._official).to(rows.dtype)
        return most[:, None] * gate

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> dict[str, torch.Tensor]:
        """Compute the slopes of tokens. They depend on their own token alone.

        Parameters
        ----------
        q : Tensor [batch, heads, rows, head_dim]
            Queries.
        k : Tensor [batch, kv_heads, keys, head_dim]
            Keys.

        Returns
        -------
        dict of str to Tensor
            `alibi.slope_k` [batch, heads, keys] and `alibi.slope_q` [batch, heads, rows], as `slopes` says.
        """
        made = {}
        if self.u is not None:
            made["alibi.slope_k"] = self._slopes(k.repeat_interleave(self.heads // self.kv_heads, 1), self.u)
        if self.v is not None:
            made["alibi.slope_q"] = self._slopes(q, self.v)
        return made


class PaTH(nn.Module):
    """Reflections of PaTH, for the encoding `path`: `inputs = m(x)`.

    w is a projection of x after a causal convolution and silu, with rows of length 1. beta is 2 sigmoid(x W + b).

    Parameters
    ----------
    embed_dim : int
        Width of hidden states.
    heads : int
        Number of query heads.
    kv_heads : int, optional
        Number of key and value heads. By default `heads`.
    head_dim : int, optional
        Width of one head. By default `embed_dim // heads`.
    width : int, optional
        Taps of the convolution. None is no convolution and no silu.
    forget_gate : bool
        Also make the gates of `path+fox`, times 1/sqrt(head_dim), as the authors' code scales them with the scores.
    device : torch.device, str or int, optional
        Device of parameters and buffers: the CPU, or `meta`.
    dtype : torch.dtype, optional
        Type of parameters and buffers. By default torch's default.
    """

    def __init__(
        self,
        embed_dim: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        width: int | None = 3,
        forget_gate: bool = False,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        embed_dim, heads, self.kv_heads, self.head_dim = sizes(embed_dim, heads, kv_heads, head_dim)
        width = whole_or_none(width, "width", high=MOST_DIM)
        self.encoding = "path+fox" if forget_gate else "path"
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        channels, low = self.kv_heads * self.head_dim, heads == self.kv_heads  # grouped heads have few channels
        self.down = nn.Linear(embed_dim, 32, bias=False, **made) if low else None
        self.up = nn.Linear(32 if low else embed_dim, channels, bias=False, **made)
        self.conv = None if width is None else nn.Conv1d(channels, channels, width, groups=channels, bias=False, **made)
        self.beta = nn.Linear(embed_dim, self.kv_heads, **made)
        self.gate = nn.Linear(embed_dim, heads, **made) if forget_gate else None

    def reset_parameters(self) -> None:
        """Set all parameters to initial values again."""
        reset_children(self)

    def _made(self, x: torch.Tensor, seg: Any, last: Any) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        raw = _wide(self.up(x if self.down is None else self.down(x)))
        w, more = raw, 0
        if self.conv is not None:
            runs = None if seg is None else _runs(seg, x.shape[0], x.shape[1])
            w = functional.silu(_taps(raw, self.conv.weight[:, 0].to(raw.dtype), last, runs))
            more = self.conv.weight.shape[-1] - 1
        w = _unit(w.unflatten(-1, (self.kv_heads, self.head_dim)))  # type: ignore[no-untyped-call]
        beta = 2 * _wide(self.beta(x)).sigmoid()
        made = {"path.w": w.transpose(1, 2), "path.beta": beta.transpose(1, 2)}
        if self.gate is not None:
            gate = functional.logsigmoid(_wide(self.gate(x))) / math.sqrt(self.head_dim)
            made["fox.log_f"] = gate.transpose(1, 2)
        return made, _last_rows(raw, last, more)

    def forward(self, x: torch.Tensor, *, seg: IntArrayLike | None = None) -> dict[str, torch.Tensor]:
        """Compute the reflections of whole sequences.

        Parameters
        ----------
        x : Tensor [batch, length, embed_dim]
            Hidden states.
        seg : int array [length] or [batch, length], optional
            Segments, whose first tokens see none before.

        Returns
        -------
        dict of str to Tensor
            `path.w` [batch, kv_heads, length, head_dim], `path.beta` [batch, kv_heads, length], and `fox.log_f`
            [batch, heads, length] if there is a gate.
        """
        return self._made(x, seg, None)[0]

    def step(self, x: torch.Tensor, state: torch.Tensor | None = None) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Compute the reflections of new tokens.

        Parameters
        ----------
        x : Tensor [batch, length, embed_dim]
            Hidden states of the new tokens.
        state : Tensor, optional
            The state after the tokens before. None is the start of a sequence.

        Returns
        -------
        inputs : dict of str to Tensor
            As of a call.
        state : Tensor
            The last tokens of the convolution.
        """
        return self._made(x, None, state)


class Wall(nn.Module):
    """Gates of Wall, for the encoding `wall`: `inputs = m(x)`.

    A gate per query head and channel, log sigmoid(x W + b). They start near 0.

    Parameters
    ----------
    embed_dim : int
        Width of hidden states.
    heads : int
        Number of query heads.
    head_dim : int, optional
        Width of one head. By default `embed_dim // heads`.
    scalar_gate : bool
        Also make the gates of `wall+fox`, one per head.
    bias : float
        What biases start at.
    device : torch.device, str or int, optional
        Device of parameters and buffers: the CPU, or `meta`.
    dtype : torch.dtype, optional
        Type of parameters and buffers. By default torch's default.
    """

    def __init__(
        self,
        embed_dim: int,
        heads: int,
        *,
        head_dim: int | None = None,
        scalar_gate: bool = False,
        bias: float = 8.0,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        embed_dim, self.heads, _, self.head_dim = sizes(embed_dim, heads, None, head_dim)
        self.bias = _number(bias, "bias", -math.inf)
        self.encoding = "wall+fox" if scalar_gate else "wall"
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.channels = nn.Linear(embed_dim, self.heads * self.head_dim, **made)
        self.scalar = nn.Linear(embed_dim, self.heads, **made) if scalar_gate else None
        self._start()

    def reset_parameters(self) -> None:
        """Set all parameters to initial values again."""
        reset_children(self)
        self._start()

    def _start(self) -> None:
        for gate in (self.channels, self.scalar):
            if gate is not None:
                nn.init.constant_(gate.bias, self.bias)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Compute the gates of tokens. They depend on their own token alone.

        Parameters
        ----------
        x : Tensor [batch, length, embed_dim]
            Hidden states.

        Returns
        -------
        dict of str to Tensor
            `wall.log_f` [batch, heads, length, head_dim], and `fox.log_f` [batch, heads, length] if there is a scalar
            gate.
        """
        gates = functional.logsigmoid(_wide(self.channels(x)))
        made = {"wall.log_f": gates.unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)}  # type: ignore[no-untyped-call]
        if self.scalar is not None:
            made["fox.log_f"] = functional.logsigmoid(_wide(self.scalar(x))).transpose(1, 2)
        return made
