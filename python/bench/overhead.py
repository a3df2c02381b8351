#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What Python adds to a call of C: attention() of a small problem, and a step of a cache, against the same calls of C,
with everything laid out beforehand, in the same rounds.

    python python/bench/overhead.py [--rounds 200]

Times are medians over rounds of 50 calls each; one row of 8 heads of 64, 16 keys, one thread.  The goals are those of
docs/python.md."""

from __future__ import annotations

import argparse
import ctypes as c
import statistics
import time
from typing import Any

import numpy as np

import loci
from loci import _c, _plan

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

CALLS = 50
HEADS, DIM, KEYS = 8, 64, 16


def views(arrays: Any) -> list[Any]:
    return [_c.View(x.ctypes.data) for x in arrays]


class Bare:
    """The calls of C."""

    def __init__(self, encoding: str) -> None:
        rng = np.random.default_rng(0)
        self.plan = loci.Plan(encoding, HEADS, DIM)
        self.q, self.o = (rng.standard_normal((1, HEADS, 1, DIM), np.float32) for _ in range(2))
        self.k, self.v = (rng.standard_normal((1, HEADS, KEYS, DIM), np.float32) for _ in range(2))
        self.tensors = self.plan.init()
        self.pointers = (c.c_void_p * max(len(self.tensors), 1))(*(x.ctypes.data for x in self.tensors.values()))
        self.tables = self.plan.tables(KEYS, self.pointers)
        self.error = c.pointer(_c.CError())
        q, k, v, o = views((self.q, self.k, self.v, self.o))
        self.lse = np.empty((1, HEADS, 1), np.float32)
        size = c.sizeof(_c.Call)
        self.call = _c.Call(size=size, batch=1, q_len=1, k_len=KEYS, q=q, k=k, v=v, o=o, error=self.error)
        self.call.lse = self.lse.ctypes.data
        self.work = _plan.aligned(_c.lib.workspace(self.plan._handle, self.call, 1))
        self.grads = [np.empty_like(x) for x in (self.q, self.k, self.v)]
        dq, dk, dv = views(self.grads)
        self.dout = np.ones_like(self.o)
        self.grad = _c.Grad(size=c.sizeof(_c.Grad), dout=views([self.dout])[0], dq=dq, dk=dk, dv=dv)

    def forward(self) -> None:
        _c.lib.forward(self.plan._handle, self.tables.at, self.work.ctypes.data, self.call)

    def both(self) -> None:
        self.forward()
        _c.lib.backward(self.plan._handle, self.tables.at, self.work.ctypes.data, self.call, self.grad)


class BareCache(Bare):
    def __init__(self, encoding: str, room: int) -> None:
        super().__init__(encoding)
        self.plan = loci.Plan(encoding, HEADS, DIM, keys_rotated=True)
        self.tables = self.plan.tables(room, self.pointers)
        self.memory = _plan.aligned(_c.lib.cache_size(self.plan._handle, 1, room))
        self.cache = c.c_void_p()
        at = self.memory.ctypes.data
        _c.lib.cache_create(c.byref(self.cache), self.plan._handle, 1, room, 0, at, self.error)
        self.call.k_len, self.call.cache, self.call.lse = 1, self.cache, None
        self.call.k, self.call.v = views([np.ascontiguousarray(self.k[:, :, :1]), self.v[:, :, :1].copy()])
        self.kept = self.call.k, self.call.v
        self.work = _plan.aligned(_c.lib.workspace(self.plan._handle, self.call, 0))

    def step(self) -> None:
        work = self.work.ctypes.data
        _c.lib.cache_append(self.plan._handle, self.tables.at, work, self.cache, self.call)
        _c.lib.forward(self.plan._handle, self.tables.at, work, self.call)

    def restart(self) -> None:
        _c.lib.cache_truncate(self.cache, 0, 8, self.error)


def measure(sides: dict[str, Any], restart: Any, rounds: int) -> dict[str, float]:
    """Microseconds a call of each, medians of rounds that go by turns."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, call in sides.items():
            restart()
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            times[name].append(1e6 * (time.perf_counter() - start) / CALLS)
    return {name: statistics.median(each) for name, each in times.items()}


def of_attention(encoding: str, rounds: int) -> dict[str, float]:
    bare = Bare(encoding)
    tensors = dict(bare.tensors)
    sides: dict[str, Any] = {
        "C": bare.forward,
        "numpy": lambda: loci.attention(bare.q, bare.k, bare.v, encoding, tensors=tensors),
    }
    if torch is not None:
        q, k, v = (torch.from_numpy(x) for x in (bare.q, bare.k, bare.v))
        learned = {name: torch.from_numpy(x) for name, x in tensors.items()}
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        dout = torch.from_numpy(bare.dout)

        def both() -> None:
            torch.autograd.grad(loci.attention(*leaves, encoding, tensors=learned), leaves, dout)

        sides["torch"] = lambda: loci.attention(q, k, v, encoding, tensors=learned)
        sides["torch, with gradient"] = lambda: loci.attention(*leaves, encoding, tensors=learned)
        sides["C forward, backward"] = bare.both
        sides["torch forward, backward"] = both
    return measure(sides, lambda: None, rounds)


def of_steps(encoding: str, rounds: int) -> dict[str, float]:
    room = 8 + 2 * CALLS
    bare = BareCache(encoding, room)
    made = loci.Cache(encoding, HEADS, DIM, capacity=room, tensors=bare.tensors)
    q, k, v = bare.q, bare.k[:, :, :1].copy(), bare.v[:, :, :1].copy()
    for _ in range(8):
        made.step(q, k, v)
        bare.step()
    sides: dict[str, Any] = {"C": bare.step, "numpy": lambda: made.step(q, k, v)}
    caches = [made]
    if torch is not None:
        other = made.copy()
        tq, tk, tv = (torch.from_numpy(x) for x in (q, k, v))
        caches.append(other)
        sides["torch"] = lambda: other.step(tq, tk, tv)

    def restart() -> None:
        bare.restart()
        for cache in caches:
            cache.truncate(8)

    return measure(sides, restart, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    loci.set_num_threads(1)
    if torch is not None:
        torch.set_num_threads(1)
    print("| call | encoding | C | Python | above C | goal |\n|---|---|---|---|---|---|")
    for encoding in ("nope", "rope:pairing=half", "t5:bidirectional=0"):
        us = of_attention(encoding, rounds)
        for name, goal, against in (
            ("numpy", 40, "C"),
            ("torch", 40, "C"),
            ("torch, with gradient", 90, "C"),
            ("torch forward, backward", None, "C forward, backward"),
        ):
            if name in us:
                above = us[name] - us[against]
                figures = f"{us[against]:.1f} | {us[name]:.1f} | {above:.1f} | {goal or ''}"
                print(f"| attention, {name} | `{encoding}` | {figures} |")
        us = of_steps(encoding, rounds)
        for name in us:
            if name != "C":
                above = us[name] - us["C"]
                print(f"| cache step, {name} | `{encoding}` | {us['C']:.1f} | {us[name]:.1f} | {above:.1f} | 10 |")


if __name__ == "__main__":
    main()
