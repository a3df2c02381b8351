# SPDX-License-Identifier: MIT
"""The lab's model in torch, its training and its tests: lab/README.md, "The model" and "Training"."""

from __future__ import annotations

import copy
import hashlib
import inspect
import math
import platform
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import _c, _lab, _lab_files
from ._c import Error
from ._lab import Problem, Sequences
from ._notebook import Progress
from ._numbers import whole

BETAS, EPSILON, DECAY, CLIP = (0.9, 0.98), 1e-8, 0.1, 1.0
TEST_TOKENS = 4096  # of a batch of tests, but at least a sequence
LOGGED = 100  # lines of a log


# ---- The model -----------------------------------------------------------------------------------


def _rms(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)


class _Layer(nn.Module):
    def __init__(self, dim: int, kv: int, ffn: int) -> None:
        super().__init__()
        self.norm1 = nn.Parameter(torch.ones(dim))
        self.wq, self.wk, self.wv = (nn.Parameter(torch.empty(dim, n)) for n in (dim, kv, kv))
        self.wo = nn.Parameter(torch.empty(dim, dim))
        self.norm2 = nn.Parameter(torch.ones(dim))
        self.w1 = nn.Parameter(torch.empty(dim, ffn))
        self.w2 = nn.Parameter(torch.empty(ffn, dim))


class Model(nn.Module):
    """The lab's model. Its attention, and what it adds to embeddings, are the caller's."""

    def __init__(self, problem: Problem, seed: int, attention: Any, embedding: Any) -> None:
        super().__init__()
        f = problem.fields
        self.heads, self.width = f["heads"], f["dim"] // f["heads"]
        kv_heads = f["kv_heads"] or self.heads
        if f["dim"] % f["heads"] or self.heads % kv_heads:
            raise Error(f"heads {self.heads} must divide dim {f['dim']}, and kv_heads {kv_heads} must divide heads")
        self.embed = nn.Parameter(torch.empty(problem.vocabulary, f["dim"]))
        kv, ffn = kv_heads * self.width, f["ffn"] or 4 * f["dim"]
        self.layers = nn.ModuleList(_Layer(f["dim"], kv, ffn) for _ in range(f["layers"]))
        self.norm = nn.Parameter(torch.ones(f["dim"]))
        self.unembed = nn.Parameter(torch.empty(f["dim"], problem.vocabulary))
        self.own = {name for name, _ in self.named_parameters()}  # the lab's; the others belong to the encoding
        self._start(problem, seed)
        self.attention, self.embedding = copy.deepcopy(attention), copy.deepcopy(embedding)
        self.wants_x = "x" in _parameters(attention)

    def _start(self, problem: Problem, seed: int) -> None:
        """The numbers of the lab's own models, by seed and name."""
        std = problem.fields["std"]
        for name, p in self.named_parameters():
            if p.dim() == 2:
                ends = name.endswith((".wo", ".w2"))
                size = problem.fields["embed_std"] if name == "embed" else std
                if ends:
                    size = std / math.sqrt(2.0 * problem.fields["layers"])
                with torch.no_grad():
                    p.copy_(torch.from_numpy(_lab.normal(seed, name, size, tuple(p.shape))))

    def forward(self, tokens: Tensor) -> Tensor:
        """The normed rows behind the last layer, [batch, length, dim]."""
        x = F.embedding(tokens, self.embed)
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        if self.embedding is not None:
            x = self.embedding(x, positions=positions)
        for index, module in enumerate(self.layers):
            layer = cast(_Layer, module)
            a = _rms(x) * layer.norm1
            batch, length = tokens.shape
            q, k, v = (
                (a @ w).view(batch, length, -1, self.width).transpose(1, 2) for w in (layer.wq, layer.wk, layer.wv)
            )
            if k.shape[1] < self.heads:
                k, v = (t.repeat_interleave(self.heads // t.shape[1], 1) for t in (k, v))
            more = {"x": a} if self.wants_x else {}
            o = self.attention(q, k, v, layer=index, positions=positions, **more)
            if not isinstance(o, Tensor) or o.shape != q.shape:
                shape = tuple(o.shape) if isinstance(o, Tensor) else type(o).__name__
                raise Error(f"attention must return the output in the shape of q, {tuple(q.shape)}, not {shape}")
            x = x + o.transpose(1, 2).flatten(-2) @ layer.wo
            x = x + F.gelu(_rms(x) * layer.norm2 @ layer.w1, approximate="tanh") @ layer.w2
        return _rms(x) * self.norm


def _parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    called = function.forward if isinstance(function, nn.Module) else function
    try:
        return inspect.signature(called).parameters
    except (TypeError, ValueError):
        return {}


def _padded(s: Sequences, device: str) -> tuple[Tensor, Tensor]:
    """Tokens and targets [batch, length]. Rows behind a sequence's end are 0 and not asked; nothing sees them."""
    lengths = np.diff(s.starts)
    there = np.arange(lengths.max()) < lengths[:, None]
    tokens, targets = np.zeros(there.shape, np.int64), np.full(there.shape, -1, np.int64)
    tokens[there], targets[there] = s.tokens, s.targets
    return torch.from_numpy(tokens).to(device), torch.from_numpy(targets).to(device)


def check_causal(model: Model, problem: Problem, device: str) -> None:
    """Rows must not depend on later tokens: else each row reads what it is asked."""
    tokens = torch.arange(problem.longest, device=device)[None] % problem.vocabulary
    later = tokens.clone()
    half = max(1, problem.longest // 2)
    later[:, half:] = (later[:, half:] + 1) % problem.vocabulary
    model.eval()
    with torch.no_grad():
        apart = (model(tokens)[:, :half] - model(later)[:, :half]).abs().max()
    model.train()
    if not float(apart) <= 1e-3:
        raise Error("attention is not causal: a later token changes the output of an earlier row")


# ---- Training ------------------------------------------------------------------------------------


def rate_of(problem: Problem, steps: int, step: int) -> float:
    """Of a step from 0 on: 5 % warm up, then half a cosine down to a tenth."""
    warm = math.ceil(0.05 * steps)
    rate: float = problem.fields["rate"]
    if step < warm:
        return rate * (step + 1) / warm
    share = (step - warm) / max(1, steps - warm)
    return rate * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * share)))


def _due(step: int, steps: int, times: int) -> bool:
    return step == steps or step * times // steps != (step - 1) * times // steps


def _loss(model: Model, tokens: Tensor, targets: Tensor) -> Tensor:
    asked = targets >= 0
    return F.cross_entropy(model(tokens)[asked] @ model.unembed, targets[asked])


def optimiser_of(model: Model) -> torch.optim.Optimizer:
    """AdamW, with decay on the lab's matrices and on nothing else."""
    matrices = [p for name, p in model.named_parameters() if name in model.own and p.dim() == 2]
    rest = [p for name, p in model.named_parameters() if name not in model.own or p.dim() != 2]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1.0, betas=BETAS, eps=EPSILON)


def fit(
    model: Model, problem: Problem, seed: int, steps: int, device: str, bar: Progress | None = None
) -> tuple[list[tuple[int, float, float, float]], float, int]:
    """Trains, and returns the log, the seconds of a step, and the step with a loss that was not finite, or 0."""
    optimiser = optimiser_of(model)
    every = list(model.parameters())
    log: list[tuple[int, float, float, float]] = []
    began = time.monotonic()
    for step in range(steps):
        rate = rate_of(problem, steps, step)
        for group in optimiser.param_groups:
            group["lr"] = rate
        mean = _loss(model, *_padded(problem.train(seed, step + 1), device))
        if not torch.isfinite(mean):
            return log, (time.monotonic() - began) / (step + 1), step + 1
        optimiser.zero_grad()
        mean.backward()  # type: ignore[no-untyped-call]
        norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in every if p.grad is not None]))
        scale = (CLIP / norm).clamp(max=1.0)
        for p in every:
            if p.grad is not None:
                p.grad *= scale
        optimiser.step()
        if _due(step + 1, steps, LOGGED):
            log.append((step + 1, float(mean.detach()), rate, float(norm)))
        if bar is not None:
            bar.step()
    return log, (time.monotonic() - began) / steps, 0


# ---- Tests ---------------------------------------------------------------------------------------


def _finite(x: float) -> float | None:
    return float(x) if math.isfinite(x) else None


def measure_column(
    model: Model, problem: Problem, index: int, device: str, by_position: bool = False, validation: bool = False
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A column of the result, and the loss by position if it is wanted."""
    column = problem.columns[index]
    metric, count, length = column["metric"], column["count"], column["length"]
    each: list[float | None] = []
    sums = np.zeros(3)  # loss, right, asked
    exact = scored = 0
    costs, counts = np.zeros(length), np.zeros(length, np.int64)
    at_once = max(1, TEST_TOKENS // length)
    for first in range(0, count, at_once):
        tokens, targets = _padded(problem.test(index, first, min(at_once, count - first), validation), device)
        asked = targets >= 0
        with torch.no_grad():
            logits = model(tokens)[asked] @ model.unembed
            loss = torch.zeros(targets.shape, dtype=torch.float64, device=device)
            loss[asked] = F.cross_entropy(logits, targets[asked], reduction="none").double()
            right = torch.zeros_like(asked)
            right[asked] = logits.argmax(-1) == targets[asked]
        table = torch.stack((loss, right.double(), asked.double())).cpu().numpy()
        costs[: table.shape[2]] += table[0].sum(0)
        counts[: table.shape[2]] += table[2].sum(0).astype(np.int64)
        for one_loss, one_right, one_asked in table.sum(2).T:
            if not one_asked:
                each.append(None)
                continue
            whole_right = one_right == one_asked
            values = {"loss": one_loss / one_asked, "exact": float(whole_right), "accuracy": one_right / one_asked}
            each.append(_finite(values[metric]))
            exact += whole_right
            scored += 1
        sums += table.sum((1, 2))
    means = {"loss": sums[0] / sums[2], "accuracy": sums[1] / sums[2], "exact": exact / scored}
    found = {key: _finite(value) for key, value in means.items()}
    spans = []
    start = 0
    for end in problem.about["spans"][index] if by_position else ():
        n = int(counts[start:end].sum())
        mean = _finite(costs[start:end].sum() / n) if n else None
        spans.append({"from": start, "to": end - 1, "loss": mean, "count": n})
        start = end
    return {**column, "mean": found[metric], **found, "each": each}, spans


def measure_all(
    model: Model, problem: Problem, device: str, bar: Progress | None = None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    far = max(range(len(problem.columns)), key=lambda i: (problem.columns[i]["times"], -i))
    columns: list[dict[str, Any]] = []
    positions: list[dict[str, Any]] = []
    model.eval()
    for index in range(len(problem.columns)):
        column, spans = measure_column(model, problem, index, device, index == far)
        columns.append(column)
        positions = spans or positions
        if bar is not None:
            bar.step()
    return columns, positions


def validate(model: Model, problem: Problem, device: str) -> float | None:
    """The mean loss of the columns as trained, on sequences of their own."""
    trained = [index for index, column in enumerate(problem.columns) if column["trained"]]
    losses = [measure_column(model, problem, index, device, validation=True)[0]["loss"] for index in trained]
    return None if not losses or None in losses else float(np.mean(losses))


def is_learned(problem: Problem, columns: Sequence[Mapping[str, Any]]) -> bool:
    means = [c["mean"] for c in columns if c["trained"]]
    if not means or any(mean is None for mean in means):
        return False
    mean, least = sum(means) / len(means), problem.about["learned"]
    if problem.about["corpus"] and columns[0]["metric"] == "loss":
        return bool(mean <= least * problem.about["corpus"]["unigram"])
    return bool(mean >= least)


# ---- Runs ----------------------------------------------------------------------------------------


def _code_of(function: Any) -> str:
    """A hash of the source, and of a module's state: runs of other code are other runs."""
    made = hashlib.sha256()
    if function is None:
        return ""
    kind = type(function) if isinstance(function, nn.Module) else function
    try:
        made.update(inspect.getsource(kind).encode())
    except (OSError, TypeError):  # no file, as in python -c
        code = getattr(kind, "__code__", None) or getattr(getattr(kind, "forward", None), "__code__", None)
        if code is not None:
            made.update(code.co_code + repr((code.co_consts, code.co_names)).encode())
    if isinstance(function, nn.Module):
        for name, x in function.state_dict().items():
            made.update(name.encode() + x.detach().cpu().contiguous().numpy().tobytes())
    return made.hexdigest()[:16]


def _config(problem: Problem, arm: str, seed: int, steps: int, code: str) -> dict[str, Any]:
    config = {
        "format": _lab.all_sizes()["format"],
        "arm": arm,
        "task": problem.task,
        "size": problem.size,
        "seed": seed,
    }
    config |= {**problem.fields, "steps": steps, **problem.options}
    if problem.about["corpus"]:
        config["corpus"] = problem.about["corpus"]["sha256"]
    return config | {"torch": torch.__version__, "code": code}


def _numbers(model: Model) -> dict[str, npt.NDArray[np.float32]]:
    return {name: p.detach().float().cpu().numpy() for name, p in model.named_parameters()}


def _run(
    problem: Problem, config: Mapping[str, Any], attention: Any, embedding: Any, device: str, folder: str, bar: Progress
) -> dict[str, Any]:
    seed, steps = config["seed"], config["steps"]
    torch.manual_seed(seed)
    model = Model(problem, seed, attention, embedding).to(device)
    check_causal(model, problem, device)
    name = f"{config['arm']}, {config['task']}, seed {seed}"
    bar.begin(steps, f"{name}: steps")
    log, seconds, diverged = fit(model, problem, seed, steps, device, bar)
    bar.begin(len(problem.columns), f"{name}: tests")
    columns, positions = measure_all(model, problem, device, bar)
    tensors = _numbers(model)
    learned = is_learned(problem, columns)
    warnings = [f"torch, bits not repeatable: trained by loci.lab.train with torch {torch.__version__} on {device}"]
    if diverged:
        warnings.append(f"diverged: the loss of step {diverged} was not finite, and training ended there")
    if not learned:
        warnings.append("not learned: what it does at other lengths says nothing about its encoding")
    result = {
        "format": _lab_files.RESULT,
        "id": _lab_files.id_of(config),
        **{key: config[key] for key in ("arm", "task", "size")},
        "settings": problem.settings(),
        "seed": seed,
        "length": problem.longest,
        "steps": steps,
        "params": sum(p.numel() for p in model.parameters()),
        "params_encoding": sum(p.numel() for name, p in model.named_parameters() if name not in model.own),
        "seconds_per_step": seconds,
        "peak_bytes": None,
        "cache_bytes_per_token": None,
        "teraflops": None,
        "validation": validate(model, problem, device),
        "learned": learned,
        "weights_sha256": _lab_files.hash_of(tensors),
        "version": _c.lib.version_text().decode(),
        "compiler": f"torch {torch.__version__}",
        "cpu": platform.processor() or platform.machine(),
        "isa": "torch",
        "columns": columns,
        "positions": positions,
        "variants": [],
        "warnings": warnings,
    }
    _lab_files.store(folder, config, result, log, tensors)
    return result


@contextmanager
def _threads_of(count: int) -> Iterator[None]:
    """Steps as small as these lose more by sharing work than they win."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _said(result: Mapping[str, Any]) -> str:
    means = ", ".join(f"{c['name']} {c['mean']:.4g}" for c in result["columns"] if c["mean"] is not None)
    return f"{result['arm']}, {result['task']}, seed {result['seed']}: {means}"


def train_all(
    attention: Any,
    tasks: Sequence[str],
    *,
    name: str,
    out: str,
    size: str,
    seeds: Sequence[int],
    steps: int | None,
    embedding: Any,
    corpus: Any,
    device: str,
    threads: int,
    replace: bool,
    progress: Callable[[str], None] | None,
    settings: Mapping[str, Any],
) -> list[dict[str, object]]:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,60}", name):
        raise Error(f"name '{name}' must be 1 to 60 letters, digits, '.', '_' or '-'")
    for function in (attention, embedding):
        if function is not None and not callable(function):
            raise TypeError(f"attention and embedding must be callable, not {type(function).__name__}")
    if not tasks or not seeds:
        raise Error("there is nothing to train: tasks or seeds are empty")
    code = _code_of(attention) + _code_of(embedding)
    whole(threads, "threads", 1, 1024)
    runs = []
    for task in tasks:
        problem = _lab.problem(task, size, corpus, settings)
        count = problem.steps if steps is None else whole(steps, "steps", 1, 10**9)
        for seed in seeds:
            config = _config(problem, f"{name}@torch", whole(seed, "seed", 0, 10**9), count, code)
            for folder in list(_lab_files.others(out, config)):
                if not replace:
                    raise Error(
                        f"{folder} has runs of '{name}' with other code; choose another name, or give replace=True"
                    )
                _lab_files.remove(folder)
            runs.append((problem, config, _lab_files.run_folder(out, config)))
    command = f"loci.lab.train: {name}, {', '.join(tasks)}, size {size}"
    _lab_files.open_folder(
        out, _lab.all_sizes()["format"], _c.lib.version_text().decode(), command, [config for _, config, _ in runs]
    )
    results = []
    with Progress(wanted=progress is not None) as bar:
        for problem, config, folder in runs:
            with _threads_of(threads):
                result = _lab_files.finished(folder) or _run(problem, config, attention, embedding, device, folder, bar)
            if progress is not None:
                bar.hide()
                progress(_said(result))
            results.append(result)
    return results
