# SPDX-License-Identifier: MIT
"""Golden cases: problems with results of independent float64 oracles (docs/cases.md), read without any package."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tests" / "cases"
TYPES = {"F32": np.float32, "F64": np.float64, "I64": np.int64}


def read(path: pathlib.Path) -> tuple[dict[str, str], dict[str, np.ndarray[Any, Any]]]:
    """Metadata, and tensors by their names."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, t in header.items():
        first, end = t["data_offsets"]
        raw = data[8 + length + first : 8 + length + end]
        tensors[name] = np.frombuffer(raw, TYPES[t["dtype"]]).reshape(t["shape"]).copy()
    return metadata, tensors


def paths() -> list[pathlib.Path]:
    """All but those whose keys are stored in another type than queries: only caches have them here (test_cache)."""
    return sorted(path for path in FOLDER.glob("*.safetensors") if not path.name.startswith("stored-"))


def options(metadata: dict[str, str], t: dict[str, Any], dtype: str) -> dict[str, Any]:
    """What loci.attention() is given beside q, k, v and the encoding."""
    left, right = (int(metadata.get(f"loci.window_{side}", "-1")) for side in ("left", "right"))
    made: dict[str, Any] = {
        "causal": metadata.get("loci.mask", "causal") == "causal",
        "window_size": (left, right),
        "tensors": {name[6:]: x.astype(dtype) for name, x in t.items() if name.startswith("param.")},
    }
    if "loci.dropout" in metadata:
        made["dropout_p"] = float(metadata["loci.dropout"])
        made["dropout_seed"] = int(metadata.get("loci.seed", "0"))
    if "loci.scale" in metadata:
        made["scale"] = float(metadata["loci.scale"])
    for side in "qk":
        at = t.get(f"{side}_pos")
        if at is not None:
            made[f"{side}_pos" if at.dtype == np.int64 else f"{side}_coords"] = at
        if f"{side}_seg" in t:
            made[f"{side}_seg"] = t[f"{side}_seg"]
    return made


def tolerances(metadata: dict[str, str]) -> tuple[float, float]:
    forward, backward = metadata.get("loci.tol", "2e-5 2e-4").split()
    return float(forward), float(backward)
