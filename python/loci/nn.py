# SPDX-License-Identifier: MIT
"""Modules of torch: encodings that learn, attention, embeddings, FoX (Pro) and TaPE, and what makes inputs.

Each takes device= and dtype= as torch's own modules do.  One that was made on the meta device gets numbers by
to_empty(device="cpu") and reset_parameters()."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

try:
    import torch
except ImportError:
    raise ImportError("loci.nn needs PyTorch: pip install torch") from None
from torch import nn
from torch.nn import functional

from . import _html, layers
from . import attention as _attention
from . import embed as _embed
from ._c import Error
from ._masks import lengths
from ._nn_inputs import GrapeA, GrapeM, PaTH, RePo, SelectiveRoPE, Wall
from ._nn_sizes import MOST_DIM, MOST_HEADS, MOST_WIDTH, rate, reset_children, sizes
from ._numbers import real, whole
from ._plan import Plan, acts_on
from ._torch import autocast
from ._types import DTypeLike, IntArrayLike, RealArrayLike, Tensors
from .cache import Cache
from .gpu import Device

__all__ = [
    "Attention",
    "Embedding",
    "Encoding",
    "FoXPro",
    "GrapeA",
    "GrapeM",
    "PaTH",
    "PoPE",
    "RePo",
    "SelectiveRoPE",
    "TaPE",
    "Wall",
]


def _seed() -> int:
    """From torch's generator: torch.manual_seed() governs, and two modules differ."""
    return int(torch.randint(1 << 62, (), device="cpu").item())


@torch.no_grad()
def _start(plan: Plan, tensors: Mapping[str, torch.Tensor]) -> None:
    """Writes what the plan starts with into tensors; those of the meta device have no numbers."""
    real = {name: x for name, x in tensors.items() if not x.is_meta}
    made = plan.init(_seed()) if real else {}
    for name, x in real.items():
        x.copy_(torch.from_numpy(made[name]))


@torch.no_grad()
def _start_uniform(_: Plan, tensors: Mapping[str, torch.Tensor]) -> None:
    """Phases of PoPE between -2 pi and 0."""
    for x in tensors.values():
        nn.init.uniform_(x, -2 * math.pi, 0)


@contextlib.contextmanager
def _taking_back(cache: Cache, added: Sequence[int]) -> Iterator[None]:
    """What follows a step: if it fails, the cache forgets the tokens that the step added to each sequence."""
    try:
        yield
    except BaseException:
        for entry, count in enumerate(added):
            cache.truncate(cache.length(entry) - count, entry)
        raise


def _text(encoding: Any, name: str) -> str:
    if not isinstance(encoding, str):
        raise TypeError(f"{name} must be a text such as 'rope:pairing=half', not {type(encoding).__name__}")
    return encoding


def _cache_dtype(weight: torch.Tensor, dtype: Any) -> Any:
    """The type that a layer's keys have where it is called now, unless another one is asked for."""
    return autocast(weight)[0].dtype if dtype is None else dtype


def _refuse_dropout(layer: Any) -> None:
    """A cache has none, and nothing is left out in silence."""
    if layer.training and layer.dropout:
        raise Error("weights of a cache are not dropped: call eval() before decoding", "unsupported")


_Start = Callable[[Plan, Mapping[str, torch.Tensor]], None]


class _Tensors(nn.Module):
    """Those of one encoding: learned ones are parameters, fixed ones buffers."""

    def __init__(self, plan: Plan, encoding: str, start: _Start) -> None:
        super().__init__()
        self._plan, self._encoding, self._start = plan, encoding, start

    def reset_parameters(self) -> None:
        """FSDP and others ask each module with parameters of its own."""
        own = (*self._parameters.items(), *self._buffers.items())
        self._start(self._plan, {f"{self._encoding}.{name}": x for name, x in own if x is not None})


class _Learns(nn.Module):
    """A module with the tensors of a plan, in a submodule for each encoding."""

    _plan: Plan

    def _starts(self) -> _Start:
        """What writes the numbers that tensors start with."""
        return _start

    def _make_tensors(self, device: Any, dtype: Any) -> None:
        dtype = getattr(torch, self._plan.real) if dtype is None else dtype
        for t in self._plan.tensors:
            if t.role == "input":
                continue
            encoding, name = t.name.split(".")
            if encoding not in self._modules:
                self.add_module(encoding, _Tensors(self._plan, encoding, self._starts()))
            x = torch.empty([size or 0 for size in t.shape], device=device, dtype=dtype)
            if t.role == "learned":
                self._modules[encoding].register_parameter(name, nn.Parameter(x))  # type: ignore[union-attr]
            else:
                self._modules[encoding].register_buffer(name, x)  # type: ignore[union-attr]
        self.reset_parameters()

    @property
    def plan(self) -> Plan:
        """The plan of the encoding."""
        return self._plan

    def tensors(self) -> dict[str, Any]:
        """Return learned and fixed tensors by name, as `loci.attention()` reads them.

        Returns
        -------
        dict of str to Tensor
            Parameters and buffers.
        """
        named = (t.name for t in self._plan.tensors if t.role != "input")
        return {name: getattr(self._modules[name.split(".")[0]], name.split(".")[1]) for name in named}

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the tensors that come with each call."""
        return tuple(t.name for t in self._plan.tensors if t.role == "input")

    def _input_of(self, source: str) -> str | None:
        """The name of the input that a layer makes so."""
        return next((t.name for t in self._plan.tensors if t.source == source), None)

    def reset_parameters(self) -> None:
        """Set all tensors to the initial values of the encodings' papers, by torch's generator."""
        self._starts()(self._plan, self.tensors())

    @torch.no_grad()
    def constrain_(self) -> None:
        """Clamp what the papers' authors clamp after each step of the optimiser, such as kerple's numbers."""
        tensors = self.tensors()
        for t in self._plan.tensors:
            if t.low > -math.inf:
                tensors[t.name].clamp_(min=t.low)


class Encoding(_Learns):
    """An encoding as a module: what it learns are parameters, what is fixed are buffers.

    Parameters
    ----------
    encoding : str
        Name and options of one or more encodings.
    heads : int
        Number of query heads.
    dim : int
        Width of queries and keys of one head.
    kv_heads : int, optional
        Number of key and value heads. By default `heads`.
    value_dim : int, optional
        Width of values of one head. By default `dim`.
    model_dim : int, optional
        Width of hidden states, for encodings that depend on it and for stage `embed`.
    causal : bool
        Hide later keys from each row. The last row is aligned with the last key.
    window_size : (int, int)
        Keys that a row sees to its left and right. -1 leaves a side open; 0 is the own position only.
    scale : float, optional
        Factor on the product of q and k. None is the encoding's own, by default 1/sqrt(dim). 0 is refused.
    max_len : int, optional
        Context length, for encodings whose rule depends on one.
    shapes : mapping of str to sequence of int, optional
        Shapes of tensors that differ from the usual ones, by name.
    dropout : float
        Drop weights in training with this probability, from 0 and below 1. torch's generator gives the seeds.
    device : torch.device, str or int, optional
        Device of parameters and buffers: the CPU, or `meta`.
    dtype : torch.dtype, optional
        Type of parameters and buffers. By default torch's default.
    """

    def __init__(
        self,
        encoding: str,
        heads: int,
        dim: int,
        *,
        kv_heads: int | None = None,
        value_dim: int | None = None,
        model_dim: int | None = None,
        causal: bool = True,
        window_size: Sequence[int] = (-1, -1),
        scale: float | None = None,
        max_len: int | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
        dropout: float = 0.0,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self._plan = Plan(
            encoding,
            whole(heads, "heads", 1, MOST_HEADS),
            whole(dim, "dim", 1, MOST_DIM),
            kv_heads=kv_heads,
            value_dim=value_dim,
            model_dim=model_dim,
            causal=causal,
            window_size=window_size,
            scale=scale,
            max_len=max_len,
            shapes=shapes,
        )
        self.encoding, self.causal, self.window_size = encoding, causal, tuple(window_size)
        self.scale, self.max_len, self.dropout = scale, max_len, rate(dropout)
        self._make_tensors(device, dtype)

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        inputs: Tensors | None = None,
        layout: str = "bhld",
        return_lse: bool = False,
        **masking: Any,
    ) -> Any:
        """Compute attention.

        Parameters
        ----------
        q : array [batch, heads, rows, dim]
            Queries, in the order of axes that `layout` says.
        k : array [batch, kv_heads, keys, dim]
            Keys. `heads` is a multiple of `kv_heads`.
        v : array [batch, kv_heads, keys, value_dim]
            Values.
        inputs : mapping of str to array, optional
            Tensors that come with each call, by name (`"fox.log_f"`).
        layout : {"bhld", "blhd", "thd"}
            Order of axes: batch (b), heads (h), length (l), width (d). `thd` is packed sequences, without a batch.
        return_lse : bool
            Also return the logarithm of the sum of exponentials of each row, [batch, heads, rows].
        **masking
            Other options of `loci.attention()`: positions, segments, masks, `dropout_p` in the place of `dropout`.

        Returns
        -------
        Tensor or tuple
            As `loci.attention()`.
        """
        masking.setdefault("dropout_p", self.dropout if self.training else 0.0)
        return _attention(
            q,
            k,
            v,
            self.encoding,
            tensors={**self.tensors(), **(inputs or {})},
            causal=self.causal,
            window_size=self.window_size,
            scale=self.scale,
            max_len=self.max_len,
            layout=layout,
            return_lse=return_lse,
            **masking,
        )

    def extra_repr(self) -> str:
        """Return what repr() shows of the module.

        Returns
        -------
        str
            Encoding and sizes.
        """
        shown = f"{self.encoding!r}, heads={self._plan.heads}, dim={self._plan.dim}"
        return shown + (f", dropout={self.dropout}" if self.dropout else "")

    def _repr_html_(self) -> str:
        return _html.module(self, self._plan)


class PoPE(Encoding):
    """The encoding `pope` as a module: `o = m(q, k, v)`, with phases that start at 0 or at random.

    q and k have any sign: softplus makes them magnitudes. The phases are learned, one per key head and channel.

    Parameters
    ----------
    heads : int
        Number of query heads.
    dim : int
        Width of queries and keys of one head.
    kv_heads : int, optional
        Number of key and value heads. By default `heads`.
    value_dim : int, optional
        Width of values of one head. By default `dim`.
    base : float
        Channel t has the frequency base^(-t/dim).
    phases : {"zero", "uniform"}
        What phases start at: 0, or random numbers between -2 pi and 0.
    causal : bool
        Hide later keys from each row. The last row is aligned with the last key.
    window_size : (int, int)
        Keys that a row sees to its left and right. -1 leaves a side open; 0 is the own position only.
    scale : float, optional
        Factor on the product of q and k. None is 1/sqrt(dim). 0 is refused.
    dropout : float
        Drop weights in training with this probability, from 0 and below 1. torch's generator gives the seeds.
    device : torch.device, str or int, optional
        Device of parameters and buffers: the CPU, or `meta`.
    dtype : torch.dtype, optional
        Type of parameters and buffers. By default torch's default.
    """

    def __init__(
        self,
        heads: int,
        dim: int,
        *,
        kv_heads: int | None = None,
        value_dim: int | None = None,
        base: float = 10000.0,
        phases: str = "zero",
        causal: bool = True,
        window_size: Sequence[int] = (-1, -1),
        scale: float | None = None,
        dropout: float = 0.0,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        base = real(base, "base")
        if not 1 <= base <= 1e18:
            raise Error(f"base must be from 1 to 1e18, not {base}")
        if phases not in ("zero", "uniform"):
            raise Error(f"phases must be zero or uniform, not '{phases}'")
        self.phases = phases
        super().__init__(
            f"pope:base={base!r}",
            heads,
            dim,
            kv_heads=kv_heads,
            value_dim=value_dim,
            causal=causal,
            window_size=window_size,
            scale=scale,
            dropout=dropout,
            device=device,
            dtype=dtype,
        )

    def _starts(self) -> _Start:
        return _start_uniform if self.phases == "uniform" else _start


class Attention(nn.Module):
    """Multi-head attention with projections and an encoding.

    Parameters
    ----------
    embed_dim : int
        Width of hidden states.
    heads : int
        Number of query heads.
    encoding : str
        Name and options of one or more encodings. It has no default: `"nope"` is attention without positions.
    kv_heads : int, optional
        Number of key and value heads. By default `heads`.
    head_dim : int, optional
        Width of one head. By default `embed_dim // heads`.
    bias : bool
        Projections have biases.
    causal : bool
        Hide later keys from each row. The last row is aligned with the last key.
    window_size : (int, int)
        Keys that a row sees to its left and right. -1 leaves a side open; 0 is the own position only.
    scale : float, optional
        Factor on the product of q and k. None is the encoding's own, by default 1/sqrt(dim). 0 is refused.
    max_len : int, optional
        Context length, for encodings whose rule depends on one.
    qk_norm : bool
        Normalise queries and keys by RMSNorm over the width of a head.
    dropout : float
        Drop weights in training with this probability, from 0 and below 1. torch's generator gives the seeds.
    device : torch.device, str or int, optional
        Device of parameters and buffers: the CPU, or `meta`.
    dtype : torch.dtype, optional
        Type of parameters and buffers. By default torch's default.
    """

    def __init__(
        self,
        embed_dim: int,
        heads: int,
        encoding: str | None = None,
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        bias: bool = False,
        causal: bool = True,
        window_size: Sequence[int] = (-1, -1),
        scale: float | None = None,
        max_len: int | None = None,
        qk_norm: bool = False,
        dropout: float = 0.0,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if encoding is None:
            raise TypeError(
                "encoding is missing: give a text such as 'rope:pairing=half', or 'nope' for no positions at all"
            )
        if acts_on(_text(encoding, "encoding"), "state"):
            raise Error(f"'{encoding}' has states that go from layer to layer: loci.nn.TaPE", "unsupported")
        embed_dim, heads, self.kv_heads, self.head_dim = sizes(embed_dim, heads, kv_heads, head_dim)
        self.heads = heads
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.q_proj = nn.Linear(embed_dim, heads * self.head_dim, bias=bias, **made)
        self.k_proj = nn.Linear(embed_dim, self.kv_heads * self.head_dim, bias=bias, **made)
        self.v_proj = nn.Linear(embed_dim, self.kv_heads * self.head_dim, bias=bias, **made)
        self.o_proj = nn.Linear(heads * self.head_dim, embed_dim, bias=bias, **made)
        self.q_norm = nn.RMSNorm(self.head_dim, **made) if qk_norm else None
        self.k_norm = nn.RMSNorm(self.head_dim, **made) if qk_norm else None
        self.encoding = Encoding(
            encoding,
            heads,
            self.head_dim,
            kv_heads=self.kv_heads,
            model_dim=embed_dim,
            causal=causal,
            window_size=window_size,
            scale=scale,
            max_len=max_len,
            dropout=dropout,
            **made,
        )
        self._log_f, self._gates = self.encoding._input_of("log gate"), self.encoding._input_of("keys")
        kv_dim = self.kv_heads * self.head_dim
        self.f_proj = None if self._log_f is None else nn.Linear(embed_dim, heads, **made)
        self.g_proj = None if self._gates is None else nn.Linear(embed_dim, kv_dim, bias=False, **made)

    def _repr_html_(self) -> str:
        return _html.module(self, self.encoding.plan)

    def reset_parameters(self) -> None:
        """Set all parameters to initial values again."""
        reset_children(self)

    def _heads_of(self, projection: nn.Linear, x: torch.Tensor, heads: int) -> torch.Tensor:
        made: torch.Tensor = projection(x)
        apart: torch.Tensor = made.unflatten(-1, (heads, self.head_dim))  # type: ignore[no-untyped-call]
        return apart

    def _made_inputs(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        made = {}
        if self.f_proj is not None and self._log_f is not None:
            made[self._log_f] = functional.logsigmoid(self.f_proj(x).float()).transpose(1, 2)
        if self.g_proj is not None and self._gates is not None:
            made[self._gates] = self._heads_of(self.g_proj, x, self.kv_heads).transpose(1, 2)
        return made

    def forward(
        self,
        x: torch.Tensor,
        context: torch.Tensor | None = None,
        *,
        cache: Cache | None = None,
        parents: IntArrayLike | None = None,
        pos: IntArrayLike | None = None,
        coords: RealArrayLike | None = None,
        seg: IntArrayLike | None = None,
        q_seg: IntArrayLike | None = None,
        k_seg: IntArrayLike | None = None,
        k_lens: int | IntArrayLike | None = None,
        cu_seqlens: IntArrayLike | None = None,
    ) -> torch.Tensor:
        """Attend.

        Parameters
        ----------
        x : Tensor [batch, length, embed_dim]
            Hidden states.
        context : Tensor [batch, keys, embed_dim], optional
            Hidden states for keys and values. By default x.
        cache : Cache, optional
            From `new_cache()`: x are new tokens, which attend to all before.
        parents : int array [rows] or [batch, rows], optional
            With a cache: x are nodes of a tree of tokens, as in `Cache.tree()`. `cache.keep()` then keeps some.
        pos : int array [rows] or [batch, rows], optional
            Positions of rows and keys alike, as many of each. By default keys count from 0 and the last row is at
            the last key.
        coords : array [axes, rows] or [batch, axes, rows], optional
            Coordinates of rows and keys alike, for encodings of several axes.
        seg : int array [rows] or [batch, rows], optional
            Segments of rows and keys alike. A row sees keys of its own segment; negative is padding.
        q_seg : int array [rows] or [batch, rows], optional
            Segments of rows, given together with `k_seg`.
        k_seg : int array [keys] or [batch, keys], optional
            Segments of keys, given together with `q_seg`.
        k_lens : int or int array [batch], optional
            Number of valid keys of each batch entry, or one number for all.
        cu_seqlens : int array [sequences + 1], optional
            Where packed sequences start, and the end of the last one.

        Returns
        -------
        Tensor [batch, length, embed_dim]
            Hidden states.
        """
        source = x if context is None else context
        q = self._heads_of(self.q_proj, x, self.heads)
        k = self._heads_of(self.k_proj, source, self.kv_heads)
        v = self._heads_of(self.v_proj, source, self.kv_heads)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        inputs = self._made_inputs(source)
        if cache is not None:
            if context is not None or any(given is not None for given in (seg, q_seg, k_seg, cu_seqlens)):
                raise Error("with a cache there is one sequence per batch entry: no context, segments or cu_seqlens")
            _refuse_dropout(self.encoding)
            q, k, v = autocast(q, k, v)
            if parents is not None:
                if k_lens is not None:
                    raise Error("a tree of tokens (parents) has no k_lens")
                return self._out(cache.tree(q, k, v, parents, inputs=inputs, pos=pos, coords=coords))
            o = cache.step(q, k, v, inputs=inputs, pos=pos, coords=coords, k_lens=k_lens)
            added = [x.shape[1]] * cache.batch if k_lens is None else lengths(k_lens, cache.batch).tolist()
            with _taking_back(cache, added):
                return self._out(o)
        if parents is not None:
            raise Error("parents are of a tree of tokens, which needs a cache")
        return self._out(
            self.encoding(
                q,
                k,
                v,
                inputs=inputs,
                layout="blhd",
                pos=pos,
                coords=coords,
                seg=seg,
                q_seg=q_seg,
                k_seg=k_seg,
                k_lens=k_lens,
                cu_seqlens_q=cu_seqlens,
            )
        )

    def _out(self, o: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.o_proj(o.flatten(-2))
        return y

    def new_cache(
        self,
        batch: int,
        capacity: int,
        *,
        ring: bool = False,
        dtype: DTypeLike | None = None,
        device: str | Device | None = None,
    ) -> Cache:
        """Create a cache for decoding, with the tensors as they are now.

        Parameters
        ----------
        batch : int
            Number of sequences.
        capacity : int
            Most tokens of a sequence.
        ring : bool
            Overwrite keys that left the window, so that sequences may outgrow the capacity.
        dtype : dtype, optional
            Type of keys and values. By default that of the projections here, under autocast its own.
        device : str or loci.gpu.Device, optional
            Where keys and values are kept. By default where the projections are.

        Returns
        -------
        Cache
            An empty one.
        """
        e = self.encoding
        weight = self.q_proj.weight
        if device is None and weight.is_cuda:
            device = str(weight.device)
        return Cache(
            e.encoding,
            self.heads,
            self.head_dim,
            batch=batch,
            capacity=capacity,
            kv_heads=self.kv_heads,
            dtype=_cache_dtype(weight, dtype),
            tensors=e.tensors(),
            ring=ring,
            window_size=e.window_size,
            scale=e.scale,
            max_len=e.max_len,
            layout="blhd",
            device=device,
        )


class Embedding(_Learns):
    """Add the encoding of positions to hidden states.

    Parameters
    ----------
    encoding : str
        Name and options of an encoding that is added to embeddings.
    embed_dim : int
        Width of hidden states.
    max_len : int, optional
        Context length, for encodings whose rule depends on one.
    device : torch.device, str or int, optional
        Device of parameters and buffers: the CPU, or `meta`.
    dtype : torch.dtype, optional
        Type of parameters and buffers. By default torch's default.
    """

    def __init__(
        self,
        encoding: str,
        embed_dim: int,
        *,
        max_len: int | None = None,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        embed_dim = whole(embed_dim, "embed_dim", 1, MOST_WIDTH)
        self._plan = Plan(encoding, model_dim=embed_dim, stage="embed", max_len=max_len)
        self.encoding, self.max_len = encoding, max_len
        self._make_tensors(device, dtype)

    def forward(self, x: torch.Tensor, *, pos: IntArrayLike | None = None) -> torch.Tensor:
        """Return x + p(pos).

        Parameters
        ----------
        x : Tensor [batch, length, embed_dim]
            Hidden states.
        pos : int array [length] or [batch, length], optional
            Positions. By default 0, 1, 2, ...

        Returns
        -------
        Tensor [batch, length, embed_dim]
            The sum.
        """
        y: torch.Tensor = _embed(x, self.encoding, pos=pos, tensors=self.tensors(), max_len=self.max_len)
        return y


class FoXPro(nn.Module):
    """The attention layer of the Forgetting Transformer (Pro), see docs/layers.md.

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
    rope : str, optional
        Encoding of a rotation beside fox. By default none.
    qk_norm : bool
        Normalise queries and keys by RMSNorm.
    k_shift : bool
        Mix each key with that of the token before.
    v_shift : bool
        Mix each value with that of the token before.
    output_norm : bool
        Normalise the output of each head.
    output_gate : {"sigmoid", "silu"}, optional
        Activation of the output's gate. None is no gate.
    dropout : float
        Drop weights in training with this probability, from 0 and below 1. torch's generator gives the seeds.
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
        rope: str | None = None,
        qk_norm: bool = True,
        k_shift: bool = True,
        v_shift: bool = True,
        output_norm: bool = True,
        output_gate: str | None = "sigmoid",
        dropout: float = 0.0,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        embed_dim, heads, self.kv_heads, self.head_dim = sizes(embed_dim, heads, kv_heads, head_dim)
        if output_gate not in (None, *layers.ACTIVATIONS):
            raise Error(f"output_gate must be None or one of {', '.join(layers.ACTIVATIONS)}, not '{output_gate}'")
        self.heads, self.dropout = heads, rate(dropout)
        width, kv_width = heads * self.head_dim, self.kv_heads * self.head_dim
        self.encoding = "fox" if rope is None else f"{_text(rope, 'rope')}+fox"
        Plan(self.encoding, heads, self.head_dim, kv_heads=self.kv_heads)  # refuses what no call could have
        self.output_gate = output_gate
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.q_proj = nn.Linear(embed_dim, width, bias=False, **made)
        self.k_proj = nn.Linear(embed_dim, kv_width, bias=False, **made)
        self.v_proj = nn.Linear(embed_dim, kv_width, bias=False, **made)
        self.o_proj = nn.Linear(width, embed_dim, bias=False, **made)
        self.f_proj = nn.Linear(embed_dim, heads, **made)
        self.k_shift_proj = nn.Linear(embed_dim, self.kv_heads, bias=False, **made) if k_shift else None
        self.v_shift_proj = nn.Linear(embed_dim, self.kv_heads, bias=False, **made) if v_shift else None
        self.g_proj = nn.Linear(embed_dim, width, bias=False, **made) if output_gate else None
        self.q_norm = nn.Parameter(torch.ones(heads, self.head_dim, **made)) if qk_norm else None
        self.k_norm = nn.Parameter(torch.ones(self.kv_heads, self.head_dim, **made)) if qk_norm else None
        self.o_norm = nn.Parameter(torch.ones(heads, self.head_dim, **made)) if output_norm else None

    def reset_parameters(self) -> None:
        """Set all parameters to initial values again."""
        reset_children(self)
        for norm in (self.q_norm, self.k_norm, self.o_norm):
            if norm is not None:
                nn.init.ones_(norm)

    def _heads_of(self, projection: nn.Linear, x: torch.Tensor, heads: int) -> torch.Tensor:
        made: torch.Tensor = projection(x).unflatten(-1, (heads, self.head_dim)).transpose(1, 2)
        return made

    def _shifted(self, x: torch.Tensor, hidden: torch.Tensor, projection: Any, which: str, seg: Any, last: Any) -> Any:
        """`last` has the tokens before, of a cache, and gets those of this call."""
        if projection is None:
            return x
        logits = projection(hidden).transpose(1, 2)
        if last is None:
            return layers.shift(x, logits, seg)
        y, last[which] = layers.shift(x, logits, None, last.get(which), True)
        return y

    def forward(
        self, x: torch.Tensor, *, cache: FoXCache | None = None, seg: IntArrayLike | None = None
    ) -> torch.Tensor:
        """Attend.

        Parameters
        ----------
        x : Tensor [batch, length, embed_dim]
            Hidden states.
        cache : FoXCache, optional
            From `new_cache()`: x are new tokens, which attend to all before.
        seg : int array [rows] or [batch, rows], optional
            Segments of rows and keys alike. A row sees keys of its own segment; negative is padding.

        Returns
        -------
        Tensor [batch, length, embed_dim]
            Hidden states.
        """
        if cache is None:
            q, k, v, log_f = self._projected(x, seg, None)
            p = self.dropout if self.training else 0.0
            return self._out(_attention(q, k, v, self.encoding, tensors={"fox.log_f": log_f}, seg=seg, dropout_p=p), x)
        if seg is not None:
            raise Error("with a cache there is one sequence per batch entry: no segments")
        _refuse_dropout(self)
        last = dict(cache.last)
        q, k, v, log_f = self._projected(x, None, last)
        o = cache.keys.step(q, k, v, inputs={"fox.log_f": log_f})
        with _taking_back(cache.keys, [x.shape[1]] * cache.keys.batch):
            y = self._out(o, x)
            cache.last = last
        return y

    def _projected(self, x: torch.Tensor, seg: Any, last: dict[str, Any] | None) -> tuple[Any, Any, Any, Any]:
        q = self._heads_of(self.q_proj, x, self.heads)
        k = self._shifted(self._heads_of(self.k_proj, x, self.kv_heads), x, self.k_shift_proj, "k", seg, last)
        v = self._shifted(self._heads_of(self.v_proj, x, self.kv_heads), x, self.v_shift_proj, "v", seg, last)
        if self.q_norm is not None:
            q, k = layers.rmsnorm(q, self.q_norm, 1e-5), layers.rmsnorm(k, self.k_norm, 1e-5)
        return q, k, v, layers.log_gate(self.f_proj(x).transpose(1, 2))

    def _out(self, o: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        if self.o_norm is not None:
            o = layers.rmsnorm(o, self.o_norm, 1e-6)
        if self.g_proj is not None and self.output_gate is not None:
            o = layers.gate(o, self._heads_of(self.g_proj, x, self.heads), self.output_gate)
        y: torch.Tensor = self.o_proj(o.transpose(1, 2).flatten(-2))
        return y

    def new_cache(self, batch: int, capacity: int, *, dtype: DTypeLike | None = None) -> FoXCache:
        """Create a cache for decoding.

        Parameters
        ----------
        batch : int
            Number of sequences.
        capacity : int
            Most tokens of a sequence.
        dtype : dtype, optional
            Type of keys and values. By default that of the projections here, under autocast its own.

        Returns
        -------
        FoXCache
            An empty one.
        """
        keys = Cache(
            self.encoding,
            self.heads,
            self.head_dim,
            batch=batch,
            capacity=capacity,
            kv_heads=self.kv_heads,
            dtype=_cache_dtype(self.q_proj.weight, dtype),
        )
        return FoXCache(keys)


class FoXCache:
    """Cache of a `FoXPro` layer: keys, values and gates of all tokens, and the last token before its shift.

    Parameters
    ----------
    keys : Cache
        Keys and values after the shift.
    """

    def __init__(self, keys: Cache) -> None:
        self.keys = keys
        self.last: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def nbytes(self) -> int:
        """Size of the keys and values in bytes."""
        return self.keys.nbytes


class TaPE(nn.Module):
    """The attention layer of TaPE, whose states e go from layer to layer: `y, e = m(x, e)`, then `e = m.update(e,
    gates)`.

    Parameters
    ----------
    embed_dim : int
        Width of hidden states.
    heads : int
        Number of heads.
    units : int
        Number of units of the MLP, whose gates update the states.
    mix : {"rowsum", "full"}
        How heads of the states mix: not at all, or by the whole matrix.
    base : float
        Base of the frequencies of the first states.
    dropout : float
        Drop weights in training with this probability, from 0 and below 1. torch's generator gives the seeds.
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
        units: int,
        mix: str = "rowsum",
        base: float = 10000.0,
        dropout: float = 0.0,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        heads = whole(heads, "heads", 1, MOST_HEADS)
        if whole(embed_dim, "embed_dim", 1, MOST_WIDTH) % (2 * heads):
            raise Error(f"embed_dim {embed_dim} must be a multiple of 2 x {heads} heads")
        embed_dim, heads, _, self.head_dim = sizes(embed_dim, heads, None, None)
        units = whole(units, "units", 1, MOST_WIDTH)
        if mix not in layers.MIXES:
            raise Error(f"mix must be one of {', '.join(layers.MIXES)}, not '{mix}'")
        self.heads, self.mix, self.base, self.dropout = heads, mix, real(base, "base"), rate(dropout)
        if not 1 <= self.base <= 1e18:
            raise Error(f"base must be from 1 to 1e18, not {self.base}")
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=False, **made)
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=False, **made)
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias=False, **made)
        self.o_proj = nn.Linear(embed_dim, embed_dim, bias=False, **made)
        self.w = nn.Parameter(torch.empty(heads, heads, **made))
        self.up = nn.Parameter(torch.empty(units, heads, **made))
        self.down = nn.Parameter(torch.empty(heads, units, **made))
        self._start_updates()

    def reset_parameters(self) -> None:
        """Set all parameters to initial values again."""
        reset_children(self)
        self._start_updates()

    def _start_updates(self) -> None:
        nn.init.zeros_(self.w)
        nn.init.zeros_(self.up)
        nn.init.normal_(self.down, std=0.02)

    def start(self, batch: int, length: int, pos: IntArrayLike | None = None) -> torch.Tensor:
        """Create the states before the first layer.

        Parameters
        ----------
        batch : int
            Number of sequences.
        length : int
            Number of tokens.
        pos : int array [length] or [batch, length], optional
            Positions. By default 0, 1, 2, ...

        Returns
        -------
        Tensor [batch, heads, length, head_dim / 2, 2]
            Cosines and sines.
        """
        e: torch.Tensor = layers.tape_start(
            batch, self.heads, length, self.head_dim, pos=pos, base=self.base, like=self.w
        )
        return e

    def _heads_of(self, projection: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = projection(x)
        apart: torch.Tensor = made.unflatten(-1, (self.heads, self.head_dim))  # type: ignore[no-untyped-call]
        return apart

    def forward(self, x: torch.Tensor, e: torch.Tensor, **masking: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Attend.

        Parameters
        ----------
        x : Tensor [batch, length, embed_dim]
            Hidden states.
        e : Tensor [batch, heads, length, head_dim / 2, 2]
            States of the tokens.
        **masking
            Other options of `loci.attention()`: positions, segments, masks, `dropout_p` in the place of `dropout`.

        Returns
        -------
        y : Tensor [batch, length, embed_dim]
            Hidden states.
        e : Tensor [batch, heads, length, head_dim / 2, 2]
            States after attention.
        """
        q, k, v = (self._heads_of(projection, x) for projection in (self.q_proj, self.k_proj, self.v_proj))
        states = {"tape.eq": e, "tape.ek": e}
        masking.setdefault("dropout_p", self.dropout if self.training else 0.0)
        o, ae = _attention(q, k, v, "tape", tensors=states, layout="blhd", **masking)
        return self.o_proj(o.flatten(-2)), layers.tape_attention_update(e, ae, self.w, self.mix)

    def update(self, e: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        """Update the states by the gates of the MLP.

        Parameters
        ----------
        e : Tensor [batch, heads, length, head_dim / 2, 2]
            States after attention.
        gates : Tensor [batch, length, units]
            Gates of the MLP, before silu.

        Returns
        -------
        Tensor [batch, heads, length, head_dim / 2, 2]
            States for the next layer.
        """
        made: torch.Tensor = layers.tape_mlp_update(e, gates, self.up, self.down)
        return made
