# SPDX-License-Identifier: MIT
"""Runs in the folders of the lab: config.json, log.csv, weights.safetensors, result.json, and lab.json above them.

Each file is written beside its name, flushed and renamed, and result.json is the last: a run that has one is done."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ._c import Error

RESULT = "loci lab result 1"


def write(path: str, content: bytes) -> None:
    folder, name = os.path.split(path)
    handle, made = tempfile.mkstemp(prefix=f".{name}", suffix=".loci-tmp", dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(made, 0o644)
        os.replace(made, path)
    except BaseException:
        os.unlink(made)
        raise


def _json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()


def _read(path: str) -> Any:
    """The object in a file; None if there is no such file, or something else in it."""
    try:
        with open(path, "rb") as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def id_of(config: Mapping[str, Any]) -> str:
    text = "".join(f"{key}={value!r}\n" for key, value in config.items())
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def run_folder(out: str, config: Mapping[str, Any]) -> str:
    return os.path.join(out, "runs", id_of(config))


def finished(folder: str) -> dict[str, Any] | None:
    """The result of a run that is done."""
    found = _read(os.path.join(folder, "result.json"))
    return found if isinstance(found, dict) and found.get("format") == RESULT else None


def _same_row(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Would a report show the two runs as one? They differ in what they compute, not in what is said of them."""
    return all(a.get(key) == value for key, value in b.items() if key not in ("code", "torch"))


def others(out: str, config: Mapping[str, Any]) -> Iterator[str]:
    """Folders of runs that have this row and seed, but another code."""
    runs = os.path.join(out, "runs")
    with contextlib.suppress(FileNotFoundError):
        for name in sorted(os.listdir(runs)):
            found = _read(os.path.join(runs, name, "config.json"))
            other = isinstance(found, dict) and found.get("code") not in (None, config["code"])
            if other and _same_row(found, config):
                yield os.path.join(runs, name)


def remove(folder: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(folder, "result.json"))  # first: it is a run no longer
    shutil.rmtree(folder)


def open_folder(out: str, layout: int, version: str, command: str, configs: Sequence[Mapping[str, Any]]) -> None:
    """DIR, DIR/runs and DIR/lab.json, which gets the command and its runs. `layout` is the format of all of them."""
    path = os.path.join(out, "lab.json")
    try:
        os.makedirs(os.path.join(out, "runs"), exist_ok=True)
    except OSError as error:
        raise Error(f"{out}: cannot make this folder: {error.strerror}") from None
    old = _read(path)
    if os.path.lexists(path) and not (isinstance(old, dict) and old.get("format") == layout):
        raise Error(f"{path} is not of this lab; remove it, or choose another folder")
    lab = old or {"format": layout, "version": version, "compiler": "", "preset": "", "command": command}
    commands, runs = lab.setdefault("commands", []), lab.setdefault("runs", [])
    if command not in commands:
        commands.append(command)
    known = {run.get("id") for run in runs}
    for config in configs:
        if id_of(config) not in known:
            runs.append({"id": id_of(config), **{key: config[key] for key in ("arm", "task", "seed", "steps")}})
    write(path, _json(lab))


def safetensors(tensors: Mapping[str, npt.NDArray[np.float32]], meta: Mapping[str, str]) -> bytes:
    head: dict[str, Any] = {"__metadata__": dict(meta)}
    at = 0
    for name, x in tensors.items():
        head[name] = {"dtype": "F32", "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(x.astype("<f4").tobytes() for x in tensors.values())


def hash_of(tensors: Mapping[str, npt.NDArray[np.float32]]) -> str:
    """As the lab hashes weights: names with a 0, and their numbers."""
    made = hashlib.sha256()
    for name, x in tensors.items():
        made.update(name.encode() + b"\0")
        made.update(x.astype("<f4").tobytes())
    return made.hexdigest()


def store(
    folder: str,
    config: Mapping[str, Any],
    result: Mapping[str, Any],
    log: Sequence[tuple[int, float, float, float]],
    tensors: Mapping[str, npt.NDArray[np.float32]],
) -> None:
    os.makedirs(folder, exist_ok=True)
    lines = ["step,loss,rate,norm,trained,far"]
    for step, *numbers in log:
        lines.append(f"{step}," + ",".join(f"{x:.9g}" if np.isfinite(x) else "" for x in numbers) + ",,")
    write(os.path.join(folder, "config.json"), _json(config))
    meta = {"id": result["id"], "sha256": result["weights_sha256"]}
    write(os.path.join(folder, "weights.safetensors"), safetensors(tensors, meta))
    write(os.path.join(folder, "log.csv"), ("\n".join(lines) + "\n").encode())
    write(os.path.join(folder, "result.json"), _json(result))
