# SPDX-License-Identifier: MIT
"""A fuzzer of the Python layer: python -m tests.fuzz --minutes 30 --seed 1

Calls are drawn by hypothesis.  What a call returns is compared with the same call of dense arrays, bit by bit; with a
plan in float64; and, for nope, alibi and rope, with a softmax that numpy computes.  What is refused is a loci.Error or
a TypeError that loci raises, and leaves everything as it was.  Nothing is written but the numbers of `out`."""

from __future__ import annotations

import argparse
import collections
import contextlib
import faulthandler
import pathlib
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import numpy as np
from hypothesis import strategies as st

import loci

from . import reference
from .fuzz_arrays import DTYPES, LIBRARIES, Draw, Foreign, Placed, given_as, numbers, of_torch, place, torch

EPS = {"float32": 2.0**-24, "float64": 2.0**-53, "float16": 2.0**-11, "bfloat16": 2.0**-8}
SIMPLE = ("nope", "alibi", "alibi:slopes=geometric", "rope:pairing=half", "rope:pairing=interleaved,base=50,dim=4")
SIMPLE = (*SIMPLE, "rope:pairing=half+alibi", "alibi+rope:pairing=interleaved")
PARTS = (
    *SIMPLE[:5],
    "softcap:cap=3",
    "t5",
    "t5:bidirectional=1,buckets=8,max_distance=20",
    "clip:max=3,sided=2",
    "kerple",
    "kerple:kernel=power",
    "sandwich:dim=8",
    "fire:hidden=4",
    "fire:hidden=4,threshold=0",
    "mrope:sections=1/1/1,dim=6",
    "xpos",
    "rope2d",
    "mixed",
    "comrope",
    "liere:block=3",
    "fope:train_length=32",
    "tape",
    "fox",
    "shaw:left=3,right=2",
    "xl",
    "deberta:span=4",
    "cope:npos=5",
    "sba",
    "sba:remainder=value",
    "sink",
    "cape:hidden=4",
    "ssmax",
    "logn:length=7",
    "alibi:slopes=keys",
    "alibi:slopes=queries",
    "alibi:slopes=both",
    "angles:pairing=half",
    "angles:pairing=interleaved,values=1,dim=4",
    "rope:pairing=half,positions=given",
    "rope:pairing=half,values=1",
    "rope:pairing=half,freq=given",
    "rerope:window=5,pairing=half",
    "rerope:window=5,pairing=interleaved,leak=0.25",
    "selfextend:group=3,window=6,pairing=half",
    "dca:pairing=half,chunk=12,local=4",
    "pope",
    "pope:base=50",
    "wall",
    "path",
)
ROTATIONS = ("rope:pairing=half", "rope:pairing=interleaved,base=50,dim=4", "mrope:sections=1/1/1,dim=6", "rope2d")
ROTATIONS = (*ROTATIONS, "mixed", "comrope", "liere:block=3", "fope:train_length=32", "xpos")
ROTATIONS = (*ROTATIONS, "rope:pairing=half,values=1")
EMBEDDINGS = ("sinusoidal", "sinusoidal:layout=halves", "learned", "index", "normalised:length=64", "binary")

counts: collections.Counter[str] = collections.Counter()
sentences: collections.Counter[str] = collections.Counter()

# ---- Outcomes ------------------------------------------------------------------------------------


class RefusedError(Exception):
    """loci has refused a call, with a sentence."""


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """An Error, or a TypeError that loci raises itself, is a refusal; anything else is a finding."""
    try:
        yield
    except (loci.Error, TypeError) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        if isinstance(error, TypeError) and not (last.line or "").startswith("raise TypeError("):
            raise
        if not 8 < len(str(error)) < 500:
            raise AssertionError(f"no sentence: {error}") from error
        sentences[re.sub(r"-?\d[\d.]*", "#", str(error))[:60]] += 1
        raise RefusedError from error


def close(got: Any, want: Any, dtype: str, name: str, loose: float = 1) -> None:
    got, want = numbers(got), numbers(want)
    assert got.shape == want.shape, f"{name} has the shape {got.shape}, not {want.shape}"
    if not want.size:
        return
    assert np.array_equal(np.isfinite(got), np.isfinite(want)), f"{name}: other numbers are finite"
    ok = np.isfinite(want)
    computed = 1e-9 if dtype == "float64" else 4e-4
    bound = loose * (computed * (1 + np.abs(want[ok]).max(initial=0)) + 2 * EPS[dtype] * np.abs(want[ok]))
    over = np.abs(got[ok] - want[ok]) - bound
    assert (over <= 0).all(), f"{name} is off by {np.abs(got[ok] - want[ok]).max()} where {bound.max()} is allowed"
    assert np.array_equal(got[~ok], want[~ok], equal_nan=True), f"{name}: other infinities"


def same(got: Any, want: Any, name: str) -> None:
    got, want = numbers(got), numbers(want)
    assert got.shape == want.shape, f"{name} has the shape {got.shape}, not {want.shape}"
    assert np.array_equal(got, want, equal_nan=True), f"{name} has other bits than that of dense arrays"


def listed(x: Any) -> list[Any]:
    return list(x) if isinstance(x, tuple) else [x]


# ---- Problems of attention -----------------------------------------------------------------------


def encoding_of(d: Draw, parts: tuple[str, ...] = PARTS) -> str:
    if d.chance(35):
        return str(d.pick(SIMPLE))
    text = str(d.pick(parts))
    for _ in range(d.int(0, 2)):
        more = str(d.pick(parts))
        if more.split(":")[0] not in text:
            text += f"+{more}"
    return text


def within(t: Any, shape: tuple[int, ...]) -> dict[str, Any]:
    """Numbers of an input: below 0, which gates may be; of reflections those that keep rows bounded."""
    if t.source == "unit":
        return {"most": shape[-1] ** -0.5}
    return {"sign": 1, "most": 2} if t.source == "strength" else {"sign": -1}


def to_layout(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    b, h, rows, width = shape
    return {"bhld": shape, "blhd": (b, rows, h, width), "thd": (rows, h, width)}[layout]


def to_bhld(x: Any, layout: str) -> Any:
    """numpy's, dense."""
    x = x.swapaxes(1, 2) if layout == "blhd" else x.swapaxes(0, 1)[None] if layout == "thd" else x
    return np.ascontiguousarray(x)


class Problem:
    """Arrays, options and who sees whom, with all of it as the references read it."""

    def __init__(self, d: Draw, stage: str = "attention") -> None:
        self.d, self.stage = d, stage
        self.library, self.dtype = d.pick(LIBRARIES), d.pick(("float32", "float32", "float64", *DTYPES))
        self.layout = d.pick(("bhld", "bhld", "blhd", "thd"))
        self.batch = 1 if self.layout == "thd" else d.pick((1, 2, 3, 0))
        self.kv_heads, group = d.pick((1, 2, 3)), d.pick((1, 2, 3))
        self.heads = self.kv_heads * group
        self.rows = d.pick((1, 2, 5, 9, 0, 17))
        self.keys = self.rows if d.chance(50) else d.pick((1, 3, 12, 70, 130, 0))
        self.dim, self.value_dim = d.pick((12, 8, 12, 4, 16, 2, 6, 3)), d.pick((8, 4, 1, 3, 17))
        self.text = encoding_of(d) if stage == "attention" else d.pick(("nope", *ROTATIONS))
        self.options: dict[str, Any] = {"causal": not d.chance(35)}
        if stage == "attention":
            self._draw_options()
        if d.chance(5):
            self.options["max_len"] = d.pick((64, 200))
        self.q = self._place((self.batch, self.heads, self.rows, self.dim))
        self.k = self._place((self.batch, self.kv_heads, self.keys, self.dim))
        self.v = self._place((self.batch, self.kv_heads, self.keys, self.value_dim))
        self.tensors: dict[str, Placed] = {}
        self.mask: Placed | None = None
        self.truths: Any = None
        self.where: dict[str, Any] = {}  # as the references read it
        self._draw_where()
        if stage == "attention" and d.chance(15):
            self._draw_mask()

    def _draw_options(self) -> None:
        d = self.d
        if d.chance(30):
            self.options["window_size"] = (d.int(-1, 7), d.int(-1, 7))
        if d.chance(15):
            self.options["scale"] = d.pick((0.3, 1.0, -0.5, 2))
        if d.chance(10):
            self.options["softcap"] = d.pick((2.0, 30, 0))
        if d.chance(30 if self.dtype == "bfloat16" else 1):
            self.options["fast"] = True

    def _place(self, shape: tuple[int, ...]) -> Placed:
        return place(self.d, to_layout(shape, self.layout), self.dtype, self.library)

    def _whole(self, low: int, high: int, size: int) -> Any:
        shape = (self.batch, size) if self.d.chance(40) else (size,)
        return self.d.rng.integers(low, high + 1, shape)

    def _positions(self, size: int) -> Any:
        x = self._whole(0, 60, size)
        how = self.d.pick(("rising", "any", "shifted"))
        if how == "shifted":
            return np.arange(size) + self.d.int(-20, 1000)
        return np.sort(x, -1) if how == "rising" else x

    def _draw_where(self) -> None:
        d, square = self.d, self.rows == self.keys
        if d.chance(20):
            if square and d.chance(50):
                self.where["pos"] = self._positions(self.rows)
            else:
                self.where |= {"q_pos": self._positions(self.rows), "k_pos": self._positions(self.keys)}
        if d.chance(15):
            names = [("seg", self.rows)] if square and d.chance(50) else [("q_seg", self.rows), ("k_seg", self.keys)]
            for name, size in names:
                x = self._whole(-1, 2, size)
                self.where[name] = np.sort(x, -1) if d.chance(70) else x
        if self.layout == "thd" or (self.batch == 1 and d.chance(10)):
            cuts = d.int(0, 3)
            for name, size in (("cu_seqlens_q", self.rows), ("cu_seqlens_k", self.keys)):
                self.where[name] = np.array([0, *sorted(d.int(0, size) for _ in range(cuts)), size])
            if square and d.chance(50):
                self.where["cu_seqlens_k"] = self.where["cu_seqlens_q"]
        if self.stage != "attention":
            return
        if d.chance(12):
            lens = d.rng.integers(0, self.keys + 1, self.batch)
            self.where["k_lens"] = int(lens[0]) if self.batch and d.chance(30) else lens
        for name in ("k_first", "k_last"):
            if d.chance(8):
                shape = d.pick(((), (1,), (self.rows,), (self.batch, self.rows), (self.batch, 1), (1, self.rows)))
                self.where[name] = d.rng.integers(0, max(self.keys, 1), shape)

    def _draw_mask(self) -> None:
        d = self.d
        whole = (self.batch, self.heads, self.rows, self.keys)
        shape = tuple(size if d.chance(60) else 1 for size in whole)[d.int(0, 3) :]
        self.mask = place(d, shape, "float64" if self.dtype == "float64" else "float32", self.library)
        if d.chance(50):
            self.truths = self.mask.values > -0.5
            self.mask.array = self.mask.array > -0.5

    def prepare(self) -> None:
        """The plan, and tensors that fit it."""
        d = self.d
        sizes: dict[str, Any] = {"kv_heads": self.kv_heads, "value_dim": self.value_dim}
        options = {name: x for name, x in self.options.items() if name != "softcap"}
        with refusals():
            self.plan = loci.Plan(
                self.text, self.heads, self.dim, dtype=self.dtype, stage=self.stage, **sizes, **options
            )
            learned = self.plan.init(d.int(0, 9))
        known = {"batch": self.batch, "queries": self.rows, "keys": self.keys}
        for t, own in zip(self.plan.tensors, self.plan.sizes, strict=True):
            shape = tuple(known[size] if isinstance(size, str) else size for size in own)
            dtype = self.plan.real if t.role == "fixed" or d.chance(80) else self.dtype
            is_input = t.role == "input"
            x = place(d, shape, dtype, self.library, odd=is_input, **(within(t, shape) if is_input else {}))
            if not is_input:
                start = learned[t.name] + (0.1 * np.abs(x.values) if t.role == "learned" else 0)
                x = self._refilled(x, start)
            self.tensors[t.name] = x
        if self.plan.axes > 1:
            for name, size in (("q_coords", self.rows), ("k_coords", self.keys)):
                shape = (self.plan.axes, size)
                self.where[name] = d.rng.integers(0, 9, (self.batch, *shape) if d.chance(30) else shape)

    @staticmethod
    def _refilled(x: Placed, values: Any) -> Placed:
        x.array[...] = torch.from_numpy(values).to(x.array.dtype) if of_torch(x.array) else values.astype(x.dtype)
        return Placed(x.array, x.memory, x.owned, x.dtype)

    # ---- As loci and as the references are given it ----------------------------------------------

    def masks(self) -> dict[str, Any]:
        made = {
            name: x.copy() if "coords" in name else given_as(self.d, x, self.library) for name, x in self.where.items()
        }
        if self.mask is not None:
            made["mask"] = self.mask.array
        return made

    def dense(self, dtype: str) -> tuple[list[Any], dict[str, Any]]:
        """Arrays and options of the same call, [batch, heads, rows, width] and dense."""
        real = "float64" if dtype == "float64" else "float32"
        arrays = [to_bhld(x.values, self.layout).astype(DTYPES[dtype]) for x in (self.q, self.k, self.v)]
        more: dict[str, Any] = {**self.where, **self.options}
        if dtype != self.dtype:
            more.pop("fast", None)  # which is for bfloat16
        more["tensors"] = {name: np.ascontiguousarray(x.values.astype(real)) for name, x in self.tensors.items()}
        if self.mask is not None:
            more["mask"] = self.truths if self.truths is not None else self.mask.values.astype(real)
        return arrays, more

    def __str__(self) -> str:
        arrays = ", ".join(f"{name}: {x}" for name, x in self.inputs().items())
        return f"'{self.text}' {self.layout} {self.options} {self.where} {arrays}"

    def inputs(self) -> dict[str, Placed]:
        made = {"q": self.q, "k": self.k, "v": self.v, **self.tensors}
        return made if self.mask is None else {**made, "mask": self.mask}

    def assert_inputs_unchanged(self) -> None:
        for name, x in self.inputs().items():
            x.assert_unchanged(name)


# ---- numpy's own attention -----------------------------------------------------------------------


def places_of(p: Problem) -> tuple[Any, Any]:
    """Positions of rows and keys, [batch, rows] and [batch, keys]."""
    where = p.where
    q = np.arange(p.keys - p.rows, p.keys) + np.zeros((p.batch, 1), int)
    k = np.arange(p.keys) + np.zeros((p.batch, 1), int)
    if "k_lens" in where:
        q = q - p.keys + np.broadcast_to(where["k_lens"], (p.batch,))[:, None]
    if "cu_seqlens_q" in where:
        starts, k_starts = where["cu_seqlens_q"], where["cu_seqlens_k"]
        for i in range(len(starts) - 1):
            n, m = starts[i + 1] - starts[i], k_starts[i + 1] - k_starts[i]
            q[0, starts[i] : starts[i + 1]] = np.arange(m - n, m)
            k[0, k_starts[i] : k_starts[i + 1]] = np.arange(m)
    q, k = where.get("q_pos", where.get("pos", q)), where.get("k_pos", where.get("pos", k))
    return np.broadcast_to(q, (p.batch, p.rows)), np.broadcast_to(k, (p.batch, p.keys))


def seen_by(p: Problem, q_pos: Any, k_pos: Any) -> Any:
    """Which row sees which key, [batch, heads, rows, keys]."""
    where, causal, window = p.where, p.options["causal"], p.options.get("window_size", (-1, -1))
    seen = np.zeros((p.batch, 1, p.rows, p.keys), bool)
    for entry in range(p.batch):
        seen[entry] = reference.visible(p.rows, p.keys, causal, window, q_pos[entry], k_pos[entry])
    j = np.arange(p.keys)
    if "k_lens" in where:
        seen &= j < np.broadcast_to(where["k_lens"], (p.batch,))[:, None, None, None]
    for name, ok in (("k_first", np.less_equal), ("k_last", np.greater_equal)):
        if name in where:
            seen &= ok(np.broadcast_to(where[name], (p.batch, p.rows))[:, None, :, None], j)
    q_seg, k_seg = (where.get(name, where.get("seg")) for name in ("q_seg", "k_seg"))
    if q_seg is not None:
        q_seg, k_seg = np.broadcast_to(q_seg, (p.batch, p.rows)), np.broadcast_to(k_seg, (p.batch, p.keys))
        seen &= ((q_seg[:, :, None] == k_seg[:, None, :]) & (q_seg[:, :, None] >= 0))[:, None]
    if "cu_seqlens_q" in where:
        rows = np.searchsorted(where["cu_seqlens_q"], np.arange(p.rows), "right")
        seen &= rows[:, None] == np.searchsorted(where["cu_seqlens_k"], j, "right")
    return seen if p.truths is None else seen & p.truths


def simple_attention(p: Problem) -> tuple[Any, Any, Any]:
    """o, lse and weights of nope, alibi and rope."""
    q, k, v = (to_bhld(x.values, p.layout) for x in (p.q, p.k, p.v))
    q_pos, k_pos = places_of(p)
    bias = np.zeros((1, 1, 1, 1))
    for part in p.text.split("+"):
        name, _, options = part.partition(":")
        if name == "rope":
            told = dict(option.split("=") for option in options.split(","))
            how = told["pairing"], float(told.get("base", 10000)), int(told.get("dim", p.dim))
            q, k = reference.rotated(q, q_pos, *how), reference.rotated(k, k_pos, *how)
        elif name == "alibi":
            slopes = reference.slopes(p.heads, "geometric" in options)
            bias = bias - slopes[:, None, None] * np.abs(q_pos[:, None, :, None] - k_pos[:, None, None, :])
    if p.mask is not None and p.truths is None:
        bias = bias + p.mask.values
    scale, cap = p.options.get("scale"), p.options.get("softcap")
    return reference.attention(q, k, v, seen_by(p, q_pos, k_pos), scale=scale, bias=bias, cap=cap)


# ---- Targets -------------------------------------------------------------------------------------


def attention(d: Draw) -> None:
    p = Problem(d)
    p.prepare()
    arrays: list[Any] = [p.q.array, p.k.array, p.v.array]
    more = {**p.masks(), **p.options, "tensors": {name: x.array for name, x in p.tensors.items()}, "layout": p.layout}
    wrong = d.chance(6) and spoil(d, p, arrays, more)
    if not wrong and d.chance(3) and p.library == "numpy" and p.dtype != "bfloat16":
        arrays = [Foreign(x) for x in arrays]
    hypothesis.note(f"{p} wrong: {wrong}")
    encoding: Any = p.plan if not p.tensors and "softcap" not in p.options and d.chance(20) else p.text
    lse = d.chance(40)
    out = _out(d, p, to_layout((p.batch, p.heads, p.rows, p.value_dim), p.layout)) if d.chance(60) else None
    try:
        with refusals():
            got = loci.attention(*arrays, encoding, **more, return_lse=lse, out=None if out is None else out.array)
    except RefusedError:
        p.assert_inputs_unchanged()
        if out is not None:
            out.assert_unchanged("out of a refused call")
        raise
    if p.batch and p.rows and p.keys:  # where there is nothing to do, not all is looked at
        assert not wrong, f"{wrong} was not refused"
    p.assert_inputs_unchanged()
    results = listed(got)
    if out is not None:
        assert results[0] is out.array
        out.assert_only_own_changed("out")
    compare_attention(p, results, lse)
    if d.chance(25):
        compare_weights(p)
    if d.chance(25):
        backward(d, p, arrays, encoding, more)


def _out(d: Draw, p: Any, shape: tuple[int, ...]) -> Placed:
    library = d.pick(LIBRARIES) if d.chance(3) else p.library
    return place(d, shape, d.pick(tuple(DTYPES)) if d.chance(3) else p.dtype, library, out=True)


def spoil(d: Draw, p: Problem, arrays: list[Any], more: dict[str, Any]) -> str:
    """Makes the call wrong, and says how."""
    how = str(
        d.pick(("dtype", "rank", "width", "window", "scale", "lens", "positions", "tensor", "layout", "int array"))
    )
    if how == "dtype":
        dtype = d.pick(("int32", "complex64", "bool", ">f4"))
        arrays[d.int(0, 2)] = np.zeros(p.q.array.shape, dtype)
    elif how == "rank":
        arrays[0] = arrays[0][None] if not of_torch(arrays[0]) else arrays[0].unsqueeze(0)
    elif how == "width":
        arrays[1] = arrays[1][..., :0]
    elif how == "window":
        more["window_size"] = d.pick((3, (1, 2, 3), (1.5, 0), (-2, 0), (1 << 64, 0), "ab", (None, 1), None, (True, 1)))
    elif how == "scale":
        more["scale"] = d.pick((0, 0.0, "a", float("nan"), float("inf"), [1, 2]))
    elif how == "lens":
        more["k_lens"] = d.pick((-1, p.keys + 1, 1.5, [1] * (p.batch + 1), "3", (1 << 63) + 3))
    elif how == "positions":
        more.pop("pos", None)
        more["q_pos"] = d.pick((np.arange(p.rows + 1), np.zeros(p.rows) + 0.5, "ab", [[]]))
        more["k_pos"] = np.arange(p.keys)
    elif how == "tensor":
        more["tensors"] = {**more["tensors"], "none.such": np.zeros(3, np.float32)}
    elif how == "layout":
        more["layout"] = d.pick(("bhl", None, 3, "", "hld"))
    else:
        arrays[2] = d.pick((3, None, "v", [[1.0]], object()))
    return how


def compare_attention(p: Problem, results: list[Any], lse: bool) -> None:
    results[0] = to_bhld(numbers(results[0]), p.layout)
    if lse and p.layout == "thd":
        results[1] = numbers(results[1])[None]
    arrays, more = p.dense(p.dtype)
    for got, want in zip(results, listed(loci.attention(*arrays, p.text, **more, return_lse=lse)), strict=True):
        same(got, want, "a result")
    counts["compared bits"] += 1
    arrays, more = p.dense("float64")
    loose = 50 if p.options.get("fast") else 1
    exact = listed(loci.attention(*arrays, p.text, **more, return_lse=lse))
    for i, (got, want) in enumerate(zip(results, exact, strict=True)):
        close(got, want, p.plan.real if i else p.dtype, f"result {i} against float64", loose)
    counts["compared float64"] += 1
    if p.text in SIMPLE:
        for got, want in zip(results, simple_attention(p)[: len(results)], strict=True):
            close(got, want, p.dtype, "a result against numpy", loose)
        counts["compared numpy"] += 1


def compare_weights(p: Problem) -> None:
    options = {name: x for name, x in p.options.items() if name != "fast"}
    if "cu_seqlens_q" in p.where or p.layout == "thd":
        return
    tensors = {name: x.array for name, x in p.tensors.items()}
    with refusals():
        got = loci.weights(
            p.q.array, p.k.array, p.text, v=p.v.array, tensors=tensors, **p.masks(), **options, layout=p.layout
        )
    p.assert_inputs_unchanged()
    (q, k, v), more = p.dense("float64")
    close(got, loci.weights(q, k, p.text, v=v, **more), p.plan.real, "weights against float64")
    if p.text in SIMPLE:
        close(got, simple_attention(p)[2], p.plan.real, "weights against numpy")


def backward(d: Draw, p: Problem, arrays: list[Any], encoding: Any, more: dict[str, Any]) -> None:
    """Gradients: of attention_backward(), or of torch's autograd."""
    if any(isinstance(x, Foreign) for x in arrays):
        return
    dout = place(d, to_layout((p.batch, p.heads, p.rows, p.value_dim), p.layout), p.dtype, p.library)
    hypothesis.note(f"dout: {dout}")
    if p.library == "torch":
        leaves = [x.clone().requires_grad_() for x in arrays]
        with refusals():
            o = listed(loci.attention(*leaves, encoding, **more))[0]
            o.backward(dout.array)
        grads = [x.grad for x in leaves]
    else:
        with refusals():
            o, lse, *rest = loci.attention(*arrays, encoding, **more, return_lse=True)
            ae = {"ae": rest[0]} if rest else {}
            grads = list(loci.attention_backward(dout.array, *arrays, o, lse, encoding, **ae, **more)[:3])
    p.assert_inputs_unchanged()
    dout.assert_unchanged("dout")
    dense, options = p.dense("float64")
    o, lse, *rest = loci.attention(*dense, p.text, **options, return_lse=True)
    ae = {"ae": rest[0]} if rest else {}
    want = loci.attention_backward(to_bhld(dout.values, p.layout), *dense, o, lse, p.text, **ae, **options)
    if "cope" not in p.text and not p.options.get("fast"):  # whose slope has jumps
        for name, x, exact in zip(("dq", "dk", "dv"), grads, want[:3], strict=True):
            close(to_bhld(numbers(x), p.layout), exact, p.dtype, name, 10 if EPS[p.dtype] < 1e-6 else 50)
        counts["compared gradients"] += 1


def linear(d: Draw) -> None:
    p = Problem(d, "linear_attention")
    p.prepare()
    more = {**p.masks(), **p.options, "tensors": {name: x.array for name, x in p.tensors.items()}, "layout": p.layout}
    hypothesis.note(str(p))
    try:
        with refusals():
            got = loci.linear_attention(p.q.array, p.k.array, p.v.array, p.text, **more)
    finally:
        p.assert_inputs_unchanged()
    got = to_bhld(numbers(got), p.layout)
    arrays, options = p.dense(p.dtype)
    same(got, loci.linear_attention(*arrays, p.text, **options), "o")
    arrays, options = p.dense("float64")
    want = loci.linear_attention(*arrays, p.text, **options)
    # weights may be below 0, so that sums cancel
    close(got, want, p.dtype, "o against float64", 1 if p.text == "nope" else 50)
    if p.text in SIMPLE[:5]:
        close(want, simple_linear(p), "float64", "o against numpy", 50)
        counts["compared numpy"] += 1
    if p.options["causal"] and not p.where and p.rows == p.keys and p.rows > 1 and p.plan.axes < 2:
        linear_in_pieces(d, p, arrays, options, want)
    counts["compared bits"] += 1


def simple_linear(p: Problem) -> Any:
    q, k, v = (to_bhld(x.values, p.layout) for x in (p.q, p.k, p.v))
    k, v = np.repeat(k, p.heads // p.kv_heads, 1), np.repeat(v, p.heads // p.kv_heads, 1)
    q, k = (np.where(x > 0, x, np.expm1(np.minimum(x, 0))) + 1 for x in (q, k))
    q_pos, k_pos = places_of(p)
    seen = seen_by(p, q_pos, k_pos)
    below = np.where(seen, np.einsum("bhid,bhjd->bhij", q, k), 0).sum(-1)
    if p.text != "nope":
        told = dict(option.split("=") for option in p.text.partition(":")[2].split(","))
        how = told["pairing"], float(told.get("base", 10000)), int(told.get("dim", p.dim))
        q, k = reference.rotated(q, q_pos, *how), reference.rotated(k, k_pos, *how)
    above = np.einsum("bhij,bhjd->bhid", np.where(seen, np.einsum("bhid,bhjd->bhij", q, k), 0), v)
    return np.divide(above, below[..., None], out=np.zeros_like(above), where=below[..., None] > 0)


def linear_in_pieces(d: Draw, p: Problem, arrays: list[Any], options: dict[str, Any], want: Any) -> None:
    state, at, made = None, 0, []
    while at < p.rows:
        end = min(p.rows, at + d.int(1, 5))
        part = [x[:, :, at:end] for x in arrays]
        with refusals():
            o, state = loci.linear_attention(*part, p.text, **options, state=state, return_state=True)
        made.append(o)
        at = end
    same(np.concatenate(made, 2), want, "o in pieces")


def rotation(d: Draw) -> None:
    library, dtype, layout = d.pick(LIBRARIES), d.pick(("float32", *DTYPES)), d.pick(("bhld", "blhd"))
    batch, heads, rows, dim = d.pick((1, 2, 0)), d.pick((1, 2, 3)), d.pick((1, 5, 9, 0)), d.pick((12, 8, 4, 6, 3))
    text, role = d.pick(ROTATIONS), d.pick(("query", "key", "cache"))
    if "values=1" in text and d.chance(50):
        role = "value"
    with refusals():
        plan = loci.Plan(text, heads, dim, dtype=dtype, stage="rotate")
    x = place(d, to_layout((batch, heads, rows, dim), layout), dtype, library)
    tensors = plan.init(3)
    where: dict[str, Any] = {}
    if plan.axes > 1:
        where["coords"] = d.rng.integers(0, 50, (batch, plan.axes, rows) if d.chance(30) else (plan.axes, rows))
    elif d.chance(60):
        shape = (batch, rows) if d.chance(40) else (rows,)
        where["pos"] = d.rng.integers(-50, 60 if text == "xpos" else d.pick((60, 100000)), shape)
    given = {name: given_as(d, y, library) if name == "pos" else y for name, y in where.items()}
    learned = {name: torch.from_numpy(y.copy()) if library == "torch" else y.copy() for name, y in tensors.items()}
    try:
        with refusals():
            got = loci.rotate(x.array, text, role=role, tensors=learned, layout=layout, **given)
    finally:
        x.assert_unchanged("x")
    got, dense = to_bhld(numbers(got), layout), to_bhld(x.values, layout)
    same(got, loci.rotate(dense.astype(x.dtype), text, role=role, tensors=tensors, **where), "y")
    wide = {name: y.astype(np.float64) for name, y in tensors.items()}
    want = loci.rotate(dense, text, role=role, tensors=wide, **where)
    close(got, want, dtype, "y against float64")
    if text in SIMPLE:
        told = dict(option.split("=") for option in text.partition(":")[2].split(","))
        pos = np.broadcast_to(where.get("pos", np.arange(rows)), (batch, rows))
        how = told["pairing"], float(told.get("base", 10000)), int(told.get("dim", dim))
        close(want, reference.rotated(dense, pos, *how), "float64", "y against numpy")
        counts["compared numpy"] += 1
    counts["compared bits"] += 1


def embedding(d: Draw) -> None:
    library, dtype, text = d.pick(LIBRARIES), d.pick(("float32", *DTYPES)), d.pick(EMBEDDINGS)
    batch, rows, width = d.pick((1, 2, 0)), d.pick((1, 5, 9, 0)), d.pick((8, 6, 3, 1, 12, 16, 0))
    flat = d.chance(30)
    shape = (rows, width) if flat else (batch, rows, width)
    x = place(d, shape, dtype, library)
    pos = d.rng.integers(0, 60, (batch, rows) if d.chance(40) and not flat else (rows,)) if d.chance(60) else None
    tensors: dict[str, Any] = {}
    if text == "learned":
        tensors["learned.table"] = place(d, (64, width), d.pick(("float32", dtype)), library)
    more = {name: y.array for name, y in tensors.items()}
    try:
        with refusals():
            at = None if pos is None else given_as(d, pos, library)
            got = loci.embed(x.array, text, pos=at, tensors=more)
    finally:
        for name, y in {"x": x, **tensors}.items():
            y.assert_unchanged(name)
    wide = {name: y.values for name, y in tensors.items()}
    real = {name: y.astype(np.float64 if dtype == "float64" else np.float32) for name, y in wide.items()}
    same(got, loci.embed(x.dense, text, pos=pos, tensors=real), "y")
    want = loci.embed(x.values, text, pos=pos, tensors=wide)
    close(got, want, dtype, "y against float64")
    at = np.broadcast_to(np.arange(rows) if pos is None else pos, shape[:-1])
    if text in ("index", "learned"):
        added = at[..., None] if text == "index" else wide["learned.table"][at]
        close(want, x.values + added, "float64", "y against numpy")
        counts["compared numpy"] += 1
    counts["compared bits"] += 1


# ---- Caches --------------------------------------------------------------------------------------


class CacheModel:
    """A cache, and all that it should hold: of each entry keys, values, inputs and positions."""

    def __init__(self, d: Draw) -> None:
        self.d, self.library = d, d.pick(LIBRARIES)
        self.dtype, self.layout = d.pick(("float32", "float32", *DTYPES)), d.pick(("bhld", "blhd"))
        self.batch, self.kv_heads = d.pick((1, 2, 3, 4)), d.pick((1, 2))
        self.heads = self.kv_heads * d.pick((1, 2))
        self.dim, self.value_dim = d.pick((12, 8, 4, 16)), d.pick((8, 3, 1))
        self.text = encoding_of(d)
        self.window = (d.int(0, 9), 0) if d.chance(25) else (-1, -1)
        self.ring = self.window[0] >= 0 and d.chance(50)
        self.given_positions = d.chance(15)
        self.removed = False
        sizes: dict[str, Any] = {"kv_heads": self.kv_heads, "value_dim": self.value_dim, "window_size": self.window}
        with refusals():
            self.plan = loci.Plan(self.text, self.heads, self.dim, dtype=self.dtype, max_len=500, **sizes)
            self.tensors = self.plan.init(5)
            self.cache = loci.Cache(
                self.text,
                self.heads,
                self.dim,
                batch=self.batch,
                capacity=128 if self.ring else d.pick((128, 70, 1)),
                dtype=self.dtype,
                tensors=self.tensors,
                ring=self.ring,
                max_len=500,
                layout=self.layout,
                max_distance=d.pick((None, 400)) if self.given_positions else None,
                **sizes,
            )
        empty = {"k": (self.kv_heads, 0, self.dim), "v": (self.kv_heads, 0, self.value_dim)}
        self.held = [{name: np.zeros(shape) for name, shape in empty.items()} for _ in range(self.batch)]
        self.pos = [np.zeros(0, int) for _ in range(self.batch)]
        self.coords = [np.zeros((self.plan.axes, 0)) for _ in range(self.batch)]
        hypothesis.note(f"'{self.text}' {self.dtype} {self.layout} {sizes} batch {self.batch} ring {self.ring}")

    @property
    def lengths(self) -> list[int]:
        return [len(x) for x in self.pos]

    def _place(self, batch: int, heads: int, rows: int, width: int) -> Placed:
        return place(self.d, to_layout((batch, heads, rows, width), self.layout), self.dtype, self.library)

    def new_tokens(self, batch: int, rows: int) -> tuple[dict[str, Placed], dict[str, Placed], dict[str, Any]]:
        """Arrays, inputs, and where they are."""
        d = self.d
        arrays = {
            "q": self._place(batch, self.heads, rows, self.dim),
            "k": self._place(batch, self.kv_heads, rows, self.dim),
            "v": self._place(batch, self.kv_heads, rows, self.value_dim),
        }
        sizes = {"batch": batch, "queries": rows, "keys": rows}
        inputs = {}
        for t, own in zip(self.plan.tensors, self.plan.sizes, strict=True):
            if t.role == "input":
                shape = tuple(sizes[z] if isinstance(z, str) else z for z in own)
                inputs[t.name] = place(d, shape, self.plan.real, self.library, **within(t, shape))
        where: dict[str, Any] = {}
        if self.given_positions:
            where["pos"] = d.pick((0, 20, 30, 300)) + np.sort(d.rng.integers(0, 90, (batch, rows)), -1)
        if self.plan.axes > 1:
            where["coords"] = d.rng.integers(0, 9, (batch, self.plan.axes, rows))
        return arrays, inputs, where

    def told(self, inputs: Any, where: Any) -> dict[str, Any]:
        """Arguments of a call."""
        told = {name: given_as(self.d, x, self.library) if name != "coords" else x for name, x in where.items()}
        return {**told, "inputs": {name: x.array for name, x in inputs.items()} or None}

    def hold(self, entry: int, arrays: Any, inputs: Any, where: Any, of: int, which: Any) -> None:
        """An entry has got these tokens of a call's batch entry."""
        held, count = self.held[entry], len(self.pos[entry])
        for name in ("k", "v"):
            x = to_bhld(arrays[name].values, self.layout)[of][:, which]
            held[name] = np.concatenate((held[name], x), 1)
        for name, x in inputs.items():
            if "keys" in self.sizes_of(name):
                axis = self.sizes_of(name).index("keys")
                part = np.take(self.of_entry(name, x, of), which, axis)
                held[name] = np.concatenate((held[name], part), axis) if name in held else part
        pos = where["pos"][of, which] if "pos" in where else np.arange(count, count + len(which))
        self.pos[entry] = np.concatenate((self.pos[entry], pos))
        if "coords" in where:
            self.coords[entry] = np.concatenate((self.coords[entry], where["coords"][of][:, which]), 1)

    def hold_copy(self, source: int, target: int) -> None:
        self.held[target] = dict(self.held[source])
        self.pos[target], self.coords[target] = self.pos[source], self.coords[source]

    def sizes_of(self, name: str) -> Any:
        return next(own for t, own in zip(self.plan.tensors, self.plan.sizes, strict=True) if t.name == name)

    def of_entry(self, name: str, x: Placed, entry: int) -> Any:
        return x.values[entry : entry + 1] if "batch" in self.sizes_of(name) else x.values

    def keep(self, entry: int, which: Any) -> None:
        """Of an entry's keys these."""
        held = self.held[entry]
        for name in held:
            held[name] = np.take(held[name], which, 1 if name in "kv" else self.sizes_of(name).index("keys"))
        self.pos[entry] = self.pos[entry][which]
        if self.plan.axes > 1:
            self.coords[entry] = self.coords[entry][:, which]

    def want(self, q: Any, inputs: Any, entry: int, where: Any, dtype: str, of: int, which: Any) -> Any:
        """One pass over all keys of an entry, of these rows of a call's batch entry; without keys they are 0."""
        if not self.lengths[entry]:
            return np.zeros((1, q.shape[1], len(which), self.value_dim))
        held, real = self.held[entry], "float64" if dtype == "float64" else "float32"
        tensors = {name: x.astype(real) for name, x in self.tensors.items()}
        tensors |= {name: x.astype(real) for name, x in held.items() if name not in "kv"}
        for name, x in inputs.items():
            if name not in held:
                part = np.take(self.of_entry(name, x, of), which, self.sizes_of(name).index("queries"))
                tensors[name] = part.astype(real)
        more: dict[str, Any] = {"window_size": self.window, "max_len": 500, "tensors": tensors}
        if not self.given_positions:
            more["k_lens"] = self.lengths[entry]  # so that rows may begin before the first key
        else:
            more |= {"q_pos": where["pos"][of, which], "k_pos": self.pos[entry]}
        if self.plan.axes > 1:
            more |= {"q_coords": where["coords"][of][:, which], "k_coords": self.coords[entry]}
        arrays = (q[of : of + 1][:, :, which], held["k"][None], held["v"][None])
        return listed(loci.attention(*(x.astype(DTYPES[dtype]) for x in arrays), self.text, **more))[0]

    def compare(self, got: Any, q: Placed, inputs: Any, where: Any, entry: int, of: int, which: Any) -> None:
        """These rows of a call's batch entry, with all keys of an entry."""
        q_values, name = to_bhld(q.values, self.layout), f"rows of entry {entry}"
        one = to_bhld(numbers(got), self.layout)[of : of + 1][:, :, which]
        # keys that turn are rounded when they are stored; removing turns them once more
        if self.dtype in ("float32", "float64") and not self.removed:
            same(one, self.want(q_values, inputs, entry, where, self.dtype, of, which), name)
        loose = 1 if EPS[self.dtype] < 1e-6 else 20
        close(one, self.want(q_values, inputs, entry, where, "float64", of, which), self.dtype, name, loose)
        counts["compared rows of caches"] += 1

    # ---- Operations ------------------------------------------------------------------------------

    def grow(self) -> None:
        """step(), or append() and attend(), or append() alone."""
        d, how, rows = self.d, self.d.pick(("step", "step", "both", "append")), self.d.pick((1, 1, 2, 7, 40))
        arrays, inputs, where = self.new_tokens(self.batch, rows)
        if d.chance(15):
            where["k_lens"] = d.rng.integers(0, rows + 1, self.batch)
        told = self.told(inputs, where)
        out = _out(d, self, to_layout((self.batch, self.heads, rows, self.value_dim), self.layout))
        to = out.array if d.chance(40) and how != "append" else None
        before = self.lengths
        q, k, v = (arrays[name].array for name in "qkv")
        got = None
        try:
            with refusals():
                if how == "step":
                    got = self.cache.step(q, k, v, out=to, **told)
                else:
                    self.cache.append(k, v, **told)
            for entry, n in enumerate(np.broadcast_to(where.get("k_lens", rows), (self.batch,))):
                self.hold(entry, arrays, inputs, where, entry, range(rows - int(n), rows))
            if how == "both":
                with refusals():
                    got = self.cache.attend(q, out=to, **told)
        except RefusedError:
            out.assert_unchanged("out of a refused step")
            if how == "step":
                assert self.cache.lengths == before, "a refused step has left keys"
            raise
        finally:
            for name, x in {**arrays, **inputs}.items():
                x.assert_unchanged(name)
        if got is not None and to is not None:
            assert listed(got)[0] is to
            out.assert_only_own_changed("out")
        else:
            out.assert_unchanged("out that was not given")
        for entry in range(self.batch if got is not None else 0):
            self.compare(listed(got)[0], arrays["q"], inputs, where, entry, entry, range(rows))

    def branch(self) -> None:
        """tree() after one entry, whose paths take others, and keep()."""
        d, rows = self.d, self.d.pick((1, 2, 3, 5, 9))
        entry = d.int(0, self.batch - 1)
        start = entry + 1 if d.chance(80) else d.int(0, self.batch - 1)
        branch = None if start == entry + 1 and d.chance(40) else start
        parents = [i - 1 if d.chance(70) else d.int(-1, i - 1) for i in range(rows)]
        taken = dict(zip(range(start, self.batch), (i for i in range(rows) if i not in parents), strict=False))
        taken.pop(entry, None)
        arrays, inputs, where = self.new_tokens(1, rows)
        before = self.lengths
        try:
            with refusals():
                got = self.cache.tree(
                    *(arrays[name].array for name in "qkv"),
                    given_as(d, np.array(parents), self.library),
                    entry=entry,
                    branch=branch,
                    **self.told(inputs, where),
                )
        except RefusedError:
            assert self.cache.length(entry) == before[entry], "a refused tree has changed its sequence"
            for one in taken if not self.ring else ():  # what these have is not promised
                self.cache.truncate(0, one)
                self.keep(one, [])
            raise
        finally:
            for name, x in {**arrays, **inputs}.items():
                x.assert_unchanged(name)
        for one, leaf in taken.items():
            path = path_of(parents, leaf)
            self.hold_copy(entry, one)
            self.hold(one, arrays, inputs, where, 0, path)
            self.compare(listed(got)[0], arrays["q"], inputs, where, one, 0, path)
        counts["compared trees"] += 1
        node = d.int(-1, rows)
        with refusals():
            self.cache.keep(node)
        self.hold(entry, arrays, inputs, where, 0, path_of(parents, node))

    def shrink(self) -> None:
        """truncate() or remove(), of one entry or of all, within the keys and beyond."""
        d = self.d
        entry = d.int(0, self.batch - 1) if d.chance(50) else None
        some = range(self.batch) if entry is None else [entry]
        most = max(self.lengths[one] for one in some)
        if d.chance(50):
            length = d.int(0, most + 1) if d.chance(20) else d.int(0, min(self.lengths[one] for one in some))
            with refusals():
                self.cache.truncate(length, entry)
            for one in some:
                self.keep(one, range(length))
            return
        first = d.int(0, most)
        count = d.int(0, most + 1 - first)
        with refusals():
            self.cache.remove(first, count, entry)
        for one in some:
            which = [i for i in range(self.lengths[one]) if not first <= i < first + count]
            moved = self.pos[one] - np.where(np.arange(self.lengths[one]) >= first + count, count, 0)
            self.pos[one] = moved
            self.keep(one, which)
        self.removed = self.removed or count > 0


def path_of(parents: list[int], node: int) -> list[int]:
    """Nodes from the root to this one; -1 is before all of them."""
    return [*path_of(parents, parents[node]), node] if node >= 0 else []


def cache(d: Draw) -> None:
    m = CacheModel(d)
    worked = 0
    for _ in range(d.int(1, 8)):
        how = d.pick(("grow", "grow", "grow", "branch", "shrink", "copy"))
        try:
            if how == "copy":
                m.cache = m.cache.copy()
            else:
                getattr(m, how)()
            worked += 1
        except RefusedError:
            counts["refused operations of caches"] += 1
        assert m.cache.lengths == m.lengths, f"the cache has {m.cache.lengths} keys, not {m.lengths}"
    if not worked:
        raise RefusedError


TARGETS: dict[str, Callable[[Draw], None]] = {
    "attention": attention,
    "cache": cache,
    "linear": linear,
    "rotation": rotation,
    "embedding": embedding,
}

# ---- Runs ----------------------------------------------------------------------------------------


def run(target: str, examples: int, **settings: Any) -> None:
    """A finding is an exception, with the smallest example that hypothesis finds."""

    home = pathlib.Path(tempfile.gettempdir(), "loci-fuzz-hypothesis")
    hypothesis.configuration.set_hypothesis_home_dir(home)  # by default it would be a folder here

    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        print_blob=False,
        report_multiple_bugs=False,
        **{name: x for name, x in settings.items() if name != "seed"},
    )
    @hypothesis.given(st.data())
    def once(data: Any) -> None:
        try:
            TARGETS[target](Draw(data))
            counts[f"{target}: compared"] += 1
        except RefusedError:
            counts[f"{target}: refused"] += 1

    (once if settings.get("derandomize") else hypothesis.seed(settings["seed"])(once))()


def report(seconds: float) -> None:
    print(f"{seconds / 60:.1f} minutes")
    for name, count in sorted(counts.items()):
        print(f"{count:9} {name}")
    print("sentences:")
    for sentence, count in sentences.most_common(40):
        print(f"{count:9} {sentence}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--seed", type=int, default=1, help="of the first round; the same seed draws the same calls")
    parser.add_argument("--target", choices=tuple(TARGETS), action="append")
    parser.add_argument("--examples", type=int, default=200, help="of a round")
    parser.add_argument("--shrink", action=argparse.BooleanOptionalAction, default=True)
    given = parser.parse_args()
    faulthandler.enable()
    phases = [hypothesis.Phase.generate, *([hypothesis.Phase.shrink] if given.shrink else [])]
    start, seed, findings = time.monotonic(), given.seed, 0
    while time.monotonic() - start < given.minutes * 60:
        for target in given.target or TARGETS:
            print(f"\r{target} --seed {seed} ", end="", file=sys.stderr, flush=True)
            try:
                run(target, given.examples, seed=seed, phases=phases)
            except Exception:
                findings += 1
                print(f"\nFINDING: --target {target} --seed {seed}")
                traceback.print_exc(limit=-6)
        seed += 1
    report(time.monotonic() - start)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
