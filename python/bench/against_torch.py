#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Training steps of loci in Python against PyTorch's: scaled_dot_product_attention, FlexAttention, plain operations.

    python python/bench/against_torch.py [--lens 1024,2048,4096] [--rounds 5] [--cases causal,alibi,t5] [--no-flex]

A step is a forward pass and the gradients of q, k and v, and of T5's table: 8 heads of 64, float32, causal, one batch.
alibi and t5 are a dense bias for SDPA, which for t5 is made from the table in each step, as the table learns.
FlexAttention on the CPU has no gradients, so it is compared with loci's forward pass.  Contenders go by turns; `x` is
the median of the ratios to loci of the same round.  Memory is what a process has at most beyond the inputs (Linux),
each contender in one of its own; errors are the largest of some rows of the result and of the gradient of q, against
float64, relative to 1 + the largest exact value."""

from __future__ import annotations

import argparse
import math
import statistics
import subprocess
import sys
import time
from typing import Any

import torch
from torch.nn import functional

import loci

HEADS, DIM = 8, 64
ENCODING = {"causal": "nope", "alibi": "alibi", "t5": "t5:bidirectional=0"}


def buckets(length: int) -> torch.Tensor:
    d = torch.arange(length, dtype=torch.float64).clamp(min=1)
    wide = 16 + torch.floor(torch.log(d / 16) / math.log(128 / 16) * 16).long()
    return torch.where(torch.arange(length) < 16, torch.arange(length), wide.clamp(max=31))


class Problem:
    """The numbers of a case, and its bias as a function of the table."""

    def __init__(self, case: str, length: int) -> None:
        torch.manual_seed(1)
        self.case, self.length = case, length
        self.q, self.k, self.v = (torch.randn(1, HEADS, length, DIM, requires_grad=True) for _ in range(3))
        self.dout = torch.randn(1, HEADS, length, DIM)
        self.table = (torch.randn(32, HEADS) * 0.1).requires_grad_(case == "t5")
        self.leaves = [self.q, self.k, self.v, *([self.table] if case == "t5" else [])]
        self.slopes = torch.tensor([2.0 ** (-(h + 1)) for h in range(HEADS)])
        self.kept: Any = None

    def bias(self, rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """What some rows add to their scores, [heads, rows, length], -inf ahead."""
        d = rows[:, None] - torch.arange(self.length)
        if self.case == "t5":
            own = self.table.to(dtype)[buckets(self.length)[d.clamp(min=0)]].permute(2, 0, 1)
        elif self.case == "alibi":
            own = -d * self.slopes.to(dtype)[:, None, None]
        else:
            own = torch.zeros(1, *d.shape, dtype=dtype)
        return own.masked_fill(d < 0, -math.inf)

    def dense(self) -> torch.Tensor:
        """That of all rows; what does not learn is made once."""
        if self.case == "t5":
            return self.bias(torch.arange(self.length), torch.float32)
        if self.kept is None:
            self.kept = self.bias(torch.arange(self.length), torch.float32)
        return self.kept

    def exact(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Some rows, their o and their dq, in float64."""
        rows = torch.tensor(sorted({0, 1, self.length // 3, self.length // 2 + 1, self.length - 1}))
        q, dout = (x.detach()[0][:, rows].double() for x in (self.q, self.dout))
        k, v = self.k.detach()[0].double(), self.v.detach()[0].double()
        with torch.no_grad():
            p = torch.softmax(q @ k.mT * DIM**-0.5 + self.bias(rows, torch.float64), -1)
            dp = dout @ v.mT
            return rows, p @ v, (p * (dp - (p * dp).sum(-1, keepdim=True))) @ k * DIM**-0.5


# ---- Contenders ----------------------------------------------------------------------------------


def by_loci(p: Problem) -> torch.Tensor:
    tensors = {"t5.table": p.table} if p.case == "t5" else None
    made: torch.Tensor = loci.attention(p.q, p.k, p.v, ENCODING[p.case], tensors=tensors, scale=DIM**-0.5)
    return made


def by_sdpa(p: Problem) -> torch.Tensor:
    if p.case == "causal":
        return functional.scaled_dot_product_attention(p.q, p.k, p.v, is_causal=True)
    return functional.scaled_dot_product_attention(p.q, p.k, p.v, attn_mask=p.dense()[None])


def by_hand(p: Problem) -> torch.Tensor:
    return torch.softmax(p.q @ p.k.mT * DIM**-0.5 + p.dense(), -1) @ p.v


_flex: dict[Any, Any] = {}


def by_flex(p: Problem) -> torch.Tensor:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if p.case == "causal":
        score = None
    elif p.case == "alibi":

        def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return s - p.slopes[h] * (i - j)

    else:
        table, bucket = p.table.detach(), buckets(p.length)

        def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return s + table[bucket[(i - j).clamp(min=0)], h]

    key = id(p)
    if key not in _flex:
        mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, p.length, p.length, device="cpu")
        _flex[key] = torch.compile(flex_attention, dynamic=False), mask
    compiled, mask = _flex[key]
    made: torch.Tensor = compiled(p.q.detach(), p.k.detach(), p.v.detach(), score_mod=score, block_mask=mask)
    return made


CONTENDERS = {"loci": by_loci, "SDPA": by_sdpa, "plain": by_hand}


def step(p: Problem, by: Any) -> tuple[torch.Tensor, torch.Tensor]:
    o = by(p)
    return o, torch.autograd.grad(o, p.leaves, p.dout)[0]


# ---- What is measured ----------------------------------------------------------------------------


def seconds(run: Any) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def error(p: Problem, o: torch.Tensor, dq: torch.Tensor | None) -> float:
    rows, want_o, want_dq = p.exact()
    pairs = [(o, want_o), *([(dq, want_dq)] if dq is not None else [])]
    each = ((got.detach()[0][:, rows].double() - want).abs().max() / (1 + want.abs().max()) for got, want in pairs)
    return float(max(each))


def resident(which: str) -> float:
    """MiB that the process has (VmRSS), or had at most since the last reset (VmHWM)."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(which)) / 1024


def memory(case: str, length: int, name: str) -> str:
    """MiB of one step, in a process of its own."""
    told = [sys.executable, __file__, "--memory", f"{case},{length},{name}"]
    run = subprocess.run(told, capture_output=True, text=True, check=False)
    return run.stdout.strip() if run.returncode == 0 else "?"


def memory_here(told: str) -> None:
    case, length, name = told.split(",")
    small = Problem(case, 64)
    step(small, CONTENDERS[name])  # what libraries take once
    p = Problem(case, int(length))
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = resident("VmRSS")
    step(p, CONTENDERS[name])
    print(f"{resident('VmHWM') - before:.0f}")


def compare(case: str, length: int, rounds: int, flex: bool) -> None:
    p = Problem(case, length)
    kept = {name: step(p, by) for name, by in CONTENDERS.items()}
    times: dict[str, list[float]] = {name: [] for name in (*CONTENDERS, "loci forward", "FlexAttention forward")}
    ours = torch.no_grad()(by_loci)
    if flex:
        kept_flex = by_flex(p)
    for i in range(rounds):
        for name in sorted(CONTENDERS, reverse=bool(i % 2)):
            times[name].append(seconds(lambda by=CONTENDERS[name]: step(p, by)))
        if flex:
            times["loci forward"].append(seconds(lambda: ours(p)))
            times["FlexAttention forward"].append(seconds(lambda: by_flex(p)))
    for name in CONTENDERS:
        x = statistics.median(b / a for a, b in zip(times["loci"], times[name], strict=True))
        ms = 1e3 * statistics.median(times[name])
        print_row(case, length, name, ms, x, memory(case, length, name), error(p, *kept[name]))
    if flex:
        pairs = zip(times["loci forward"], times["FlexAttention forward"], strict=True)
        x = statistics.median(b / a for a, b in pairs)
        ms = 1e3 * statistics.median(times["FlexAttention forward"])
        print_row(case, length, "FlexAttention, forward", ms, x, "", error(p, kept_flex, None))
        _flex.clear()


def print_row(case: str, length: int, name: str, ms: float, x: float, mib: str, off: float) -> None:
    print(f"| {case} | {length} | {name} | {ms:.1f} | {x:.2f} | {mib} | {off:.1e} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lens", default="1024,2048,4096")
    parser.add_argument("--cases", default=",".join(ENCODING))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-flex", action="store_true")
    parser.add_argument("--memory", help=argparse.SUPPRESS)
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    if a.memory:
        memory_here(a.memory)
        return
    unknown = [case for case in a.cases.split(",") if case not in ENCODING]
    if unknown:
        sys.exit(f"against_torch: --cases are some of {','.join(ENCODING)}, not '{unknown[0]}'")
    print(f"torch {torch.__version__}, loci {loci.library_version}, {loci.isas()[-1]}, {a.threads} thread(s)")
    print("\n| case | L | | ms | x | MiB | error |\n|---|---|---|---|---|---|---|")
    for case in a.cases.split(","):
        for length in map(int, a.lens.split(",")):
            compare(case, length, a.rounds, not a.no_flex)


if __name__ == "__main__":
    main()
