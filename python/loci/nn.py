# SPDX-License-Identifier: MIT
"""Modules of torch: encodings that learn, attention, embeddings, FoX (Pro) and TaPE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

try:
    import torch
except ImportError:
    raise ImportError("loci.nn needs PyTorch: pip install torch") from None
from torch import nn
from torch.nn import functional

from . import attention as _attention
from . import embed as _embed
from . import layers
from ._c import Error
from ._numbers import whole_or_none
from ._plan import Plan
from .cache import Cache

__all__ = ["Attention", "Embedding", "Encoding", "FoXPro", "TaPE"]


def _seed() -> int:
    """From torch's generator: torch.manual_seed() governs, and two modules differ."""
    return int(torch.randint(1 << 62, ()).item())


class _Tensors(nn.Module):
    """Those of one encoding: learned ones are parameters, fixed ones buffers."""


class _Learns(nn.Module):
    """A module with the tensors of a plan, in a submodule for each encoding."""

    _plan: Plan

    def _make_tensors(self) -> None:
        made = self._plan.init(_seed())
        for t in self._plan.tensors:
            if t.role == "input":
                continue
            encoding, name = t.name.split(".")
            if encoding not in self._modules:
                self.add_module(encoding, _Tensors())
            x = torch.from_numpy(made[t.name])
            if t.role == "learned":
                self._modules[encoding].register_parameter(name, nn.Parameter(x))  # type: ignore[union-attr]
            else:
                self._modules[encoding].register_buffer(name, x)  # type: ignore[union-attr]

    @property
    def plan(self) -> Plan:
        return self._plan

    def tensors(self) -> dict[str, Any]:
        """Learned and fixed ones by their names, as loci.attention() takes them."""
        named = (t.name for t in self._plan.tensors if t.role != "input")
        return {name: getattr(self._modules[name.split(".")[0]], name.split(".")[1]) for name in named}

    @property
    def inputs(self) -> tuple[str, ...]:
        """What comes with each call."""
        return tuple(t.name for t in self._plan.tensors if t.role == "input")

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """As the papers start them, with another seed."""
        made = self._plan.init(_seed())
        for name, x in self.tensors().items():
            x.copy_(torch.from_numpy(made[name]))

    @torch.no_grad()
    def constrain_(self) -> None:
        """Clamps what authors clamp after each step: kerple's numbers are at least 0.01."""
        for name, x in self.tensors().items():
            if name.startswith("kerple."):
                x.clamp_(min=0.01)


class Encoding(_Learns):
    """An encoding with what it learns: o = e(q, k, v)."""

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
    ) -> None:
        super().__init__()
        self._plan = Plan(
            encoding,
            heads,
            dim,
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
        self.scale, self.max_len = scale, max_len
        self._make_tensors()

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        inputs: Mapping[str, Any] | None = None,
        layout: str = "bhld",
        return_lse: bool = False,
        **masking: Any,
    ) -> Any:
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
        return f"{self.encoding!r}, heads={self._plan.heads}, dim={self._plan.dim}"


def _names(encoding: str) -> list[str]:
    return [part.split(":")[0].strip() for part in encoding.split("+")]


class Attention(nn.Module):
    """Multi-head attention with an encoding; what inputs want is made here."""

    def __init__(
        self,
        embed_dim: int,
        heads: int,
        encoding: str = "nope",
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        bias: bool = False,
        causal: bool = True,
        window_size: Sequence[int] = (-1, -1),
        scale: float | None = None,
        max_len: int | None = None,
        qk_norm: bool = False,
    ) -> None:
        super().__init__()
        if "tape" in _names(encoding):
            raise Error("tape has states that go from layer to layer: loci.nn.TaPE", "unsupported")
        if head_dim is None and embed_dim % heads:
            raise Error(f"embed_dim {embed_dim} is no multiple of {heads} heads; say head_dim")
        self.heads, self.kv_heads = heads, whole_or_none(kv_heads, "kv_heads", high=heads) or heads
        self.head_dim = head_dim or embed_dim // heads
        self.q_proj = nn.Linear(embed_dim, heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(embed_dim, self.kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(embed_dim, self.kv_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(heads * self.head_dim, embed_dim, bias=bias)
        self.q_norm = nn.RMSNorm(self.head_dim) if qk_norm else None
        self.k_norm = nn.RMSNorm(self.head_dim) if qk_norm else None
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
        )
        wanted = self.encoding.inputs
        self.f_proj = nn.Linear(embed_dim, heads) if "fox.log_f" in wanted else None
        gates = [name for name in wanted if name.startswith("cope.")]
        self._gates = gates[0] if gates else None
        self.g_proj = nn.Linear(embed_dim, self.kv_heads * self.head_dim, bias=False) if gates else None

    def _heads_of(self, projection: nn.Linear, x: torch.Tensor, heads: int) -> torch.Tensor:
        made: torch.Tensor = projection(x)
        apart: torch.Tensor = made.unflatten(-1, (heads, self.head_dim))  # type: ignore[no-untyped-call]
        return apart

    def _made_inputs(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        made = {}
        if self.f_proj is not None:
            made["fox.log_f"] = functional.logsigmoid(self.f_proj(x).float()).transpose(1, 2)
        if self.g_proj is not None and self._gates is not None:
            made[self._gates] = self._heads_of(self.g_proj, x, self.kv_heads).transpose(1, 2)
        return made

    def forward(
        self,
        x: torch.Tensor,
        context: torch.Tensor | None = None,
        *,
        cache: Cache | None = None,
        pos: Any = None,
        coords: Any = None,
        seg: Any = None,
        q_seg: Any = None,
        k_seg: Any = None,
        k_lens: Any = None,
        cu_seqlens: Any = None,
    ) -> torch.Tensor:
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
            o = cache.step(q, k, v, inputs=inputs, pos=pos, coords=coords, k_lens=k_lens)
        else:
            o = self.encoding(
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
        y: torch.Tensor = self.o_proj(o.flatten(-2))
        return y

    def new_cache(self, batch: int, capacity: int, *, ring: bool = False, dtype: Any = None) -> Cache:
        """For decoding, with the tensors as they are now."""
        e = self.encoding
        return Cache(
            e.encoding,
            self.heads,
            self.head_dim,
            batch=batch,
            capacity=capacity,
            kv_heads=self.kv_heads,
            dtype=self.q_proj.weight.dtype if dtype is None else dtype,
            tensors=e.tensors(),
            ring=ring,
            window_size=e.window_size,
            scale=e.scale,
            max_len=e.max_len,
            layout="blhd",
        )


class Embedding(_Learns):
    """x + p(pos)."""

    def __init__(self, encoding: str, embed_dim: int, *, max_len: int | None = None) -> None:
        super().__init__()
        self._plan = Plan(encoding, model_dim=embed_dim, stage="embed", max_len=max_len)
        self.encoding, self.max_len = encoding, max_len
        self._make_tensors()

    def forward(self, x: torch.Tensor, *, pos: Any = None) -> torch.Tensor:
        y: torch.Tensor = _embed(x, self.encoding, pos=pos, tensors=self.tensors(), max_len=self.max_len)
        return y


class FoXPro(nn.Module):
    """The layer of the forgetting Transformer, docs/layers.md."""

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
    ) -> None:
        super().__init__()
        if head_dim is None and embed_dim % heads:
            raise Error(f"embed_dim {embed_dim} is no multiple of {heads} heads; say head_dim")
        if output_gate not in (None, *layers.ACTIVATIONS):
            raise Error(f"output_gate must be None or one of {', '.join(layers.ACTIVATIONS)}, not '{output_gate}'")
        self.heads, self.kv_heads = heads, whole_or_none(kv_heads, "kv_heads", high=heads) or heads
        self.head_dim = head_dim or embed_dim // heads
        width, kv_width = heads * self.head_dim, self.kv_heads * self.head_dim
        self.encoding = "fox" if rope is None else f"{rope}+fox"
        self.output_gate = output_gate
        self.q_proj = nn.Linear(embed_dim, width, bias=False)
        self.k_proj = nn.Linear(embed_dim, kv_width, bias=False)
        self.v_proj = nn.Linear(embed_dim, kv_width, bias=False)
        self.o_proj = nn.Linear(width, embed_dim, bias=False)
        self.f_proj = nn.Linear(embed_dim, heads)
        self.k_shift_proj = nn.Linear(embed_dim, self.kv_heads, bias=False) if k_shift else None
        self.v_shift_proj = nn.Linear(embed_dim, self.kv_heads, bias=False) if v_shift else None
        self.g_proj = nn.Linear(embed_dim, width, bias=False) if output_gate else None
        self.q_norm = nn.Parameter(torch.ones(heads, self.head_dim)) if qk_norm else None
        self.k_norm = nn.Parameter(torch.ones(self.kv_heads, self.head_dim)) if qk_norm else None
        self.o_norm = nn.Parameter(torch.ones(heads, self.head_dim)) if output_norm else None

    def _heads_of(self, projection: nn.Linear, x: torch.Tensor, heads: int) -> torch.Tensor:
        made: torch.Tensor = projection(x).unflatten(-1, (heads, self.head_dim)).transpose(1, 2)
        return made

    def _shifted(self, x: torch.Tensor, hidden: torch.Tensor, projection: Any, which: str, seg: Any, cache: Any) -> Any:
        if projection is None:
            return x
        logits = projection(hidden).transpose(1, 2)
        if cache is None:
            return layers.shift(x, logits, seg)
        y, cache.last[which] = layers.shift(x, logits, None, cache.last.get(which), True)
        return y

    def forward(self, x: torch.Tensor, *, cache: FoXCache | None = None, seg: Any = None) -> torch.Tensor:
        if cache is not None and seg is not None:
            raise Error("with a cache there is one sequence per batch entry: no segments")
        q = self._heads_of(self.q_proj, x, self.heads)
        k = self._shifted(self._heads_of(self.k_proj, x, self.kv_heads), x, self.k_shift_proj, "k", seg, cache)
        v = self._shifted(self._heads_of(self.v_proj, x, self.kv_heads), x, self.v_shift_proj, "v", seg, cache)
        if self.q_norm is not None:
            q, k = layers.rmsnorm(q, self.q_norm, 1e-5), layers.rmsnorm(k, self.k_norm, 1e-5)
        log_f = layers.log_gate(self.f_proj(x).transpose(1, 2))
        if cache is None:
            o = _attention(q, k, v, self.encoding, tensors={"fox.log_f": log_f}, seg=seg)
        else:
            o = cache.keys.step(q, k, v, inputs={"fox.log_f": log_f})
        if self.o_norm is not None:
            o = layers.rmsnorm(o, self.o_norm, 1e-6)
        if self.g_proj is not None and self.output_gate is not None:
            o = layers.gate(o, self._heads_of(self.g_proj, x, self.heads), self.output_gate)
        y: torch.Tensor = self.o_proj(o.transpose(1, 2).flatten(-2))
        return y

    def new_cache(self, batch: int, capacity: int, *, dtype: Any = None) -> FoXCache:
        keys = Cache(
            self.encoding,
            self.heads,
            self.head_dim,
            batch=batch,
            capacity=capacity,
            kv_heads=self.kv_heads,
            dtype=self.q_proj.weight.dtype if dtype is None else dtype,
        )
        return FoXCache(keys)


class FoXCache:
    """Keys, values and gates of all tokens, and of the last one its key and value before the shift."""

    def __init__(self, keys: Cache) -> None:
        self.keys = keys
        self.last: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes


class TaPE(nn.Module):
    """Attention of a layer of TaPE: y, e = m(x, e), and after the MLP e = m.update(e, gates)."""

    def __init__(self, embed_dim: int, heads: int, *, units: int, mix: str = "rowsum", base: float = 10000.0) -> None:
        super().__init__()
        if embed_dim % (2 * heads):
            raise Error(f"embed_dim {embed_dim} must be a multiple of 2 x {heads} heads")
        self.heads, self.head_dim, self.mix, self.base = heads, embed_dim // heads, mix, base
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.o_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.w = nn.Parameter(torch.zeros(heads, heads))
        self.up = nn.Parameter(torch.zeros(units, heads))
        self.down = nn.Parameter(torch.randn(heads, units) * 0.02)

    def start(self, batch: int, length: int, pos: Any = None) -> torch.Tensor:
        """The states before the first layer."""
        e: torch.Tensor = layers.tape_start(
            batch, self.heads, length, self.head_dim, pos=pos, base=self.base, like=self.w
        )
        return e

    def _heads_of(self, projection: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = projection(x)
        apart: torch.Tensor = made.unflatten(-1, (self.heads, self.head_dim))  # type: ignore[no-untyped-call]
        return apart

    def forward(self, x: torch.Tensor, e: torch.Tensor, **masking: Any) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v = (self._heads_of(projection, x) for projection in (self.q_proj, self.k_proj, self.v_proj))
        states = {"tape.eq": e, "tape.ek": e}
        o, ae = _attention(q, k, v, "tape", tensors=states, layout="blhd", **masking)
        return self.o_proj(o.flatten(-2)), layers.tape_attention_update(e, ae, self.w, self.mix)

    def update(self, e: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        """With the MLP's own gates, [batch, length, units]."""
        made: torch.Tensor = layers.tape_mlp_update(e, gates, self.up, self.down)
        return made
