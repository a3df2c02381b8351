# SPDX-License-Identifier: MIT
"""Every golden case through the package: forward, backward, rows alone, linear attention; numpy and torch."""

from __future__ import annotations

import unittest
from typing import Any

import numpy as np

import loci

from . import cases

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]


class Golden(unittest.TestCase):
    def close(self, got: Any, want: Any, bound: float, what: str) -> None:
        got = np.asarray(got, np.float64)
        self.assertEqual(got.shape, want.shape, what)
        same = (got == want) | (np.isnan(got) & np.isnan(want))
        finite = want[np.isfinite(want)]
        most = float(np.abs(finite).max()) if finite.size else 0.0
        error = np.where(same, 0, np.abs(got - want))
        self.assertFalse((error > bound * (1 + most)).any() or np.isnan(error).any(), f"{what}: off by {error.max()}")

    def attention(self, path: Any, m: dict[str, str], t: dict[str, Any], dtype: str) -> None:
        forward, backward = cases.tolerances(m)
        q, k, v = (t[name].astype(dtype) for name in "qkv")
        options = cases.options(m, t, dtype)
        made = loci.attention(q, k, v, m["loci.encoding"], return_lse=True, **options)
        o, row, ae = made[0], made[1], made[2] if len(made) > 2 else None
        for name, x in (("out", o), ("lse", row), ("rem", row), ("ae", ae)):
            if f"expect.{name}" in t:
                self.close(x, t[f"expect.{name}"], forward, f"{path.name} {name}")
        cotangents = {name: t[name].astype(dtype) for name in ("dout", "dlse", "drem", "dae") if name in t}
        if not cotangents:
            return
        dq, dk, dv, dtensors = loci.attention_backward(
            cotangents.get("dout"),
            q,
            k,
            v,
            o,
            row,
            m["loci.encoding"],
            dlse=cotangents.get("dlse", cotangents.get("drem")),
            dae=cotangents.get("dae"),
            ae=ae,
            **options,
        )
        for name, x in {"q": dq, "k": dk, "v": dv, **{f"param.{n}": x for n, x in dtensors.items()}}.items():
            if f"expect.d.{name}" in t:
                self.close(x, t[f"expect.d.{name}"], backward, f"{path.name} d.{name}")
        if torch is not None:
            self.through_torch(path, m, t, dtype, options, (dq, dk, dv), dtensors)

    def through_torch(self, path: Any, m: Any, t: Any, dtype: str, options: Any, three: Any, more: Any) -> None:
        """The same bits by autograd."""
        leaf = {name: torch.from_numpy(t[name].astype(dtype)).requires_grad_() for name in "qkv"}
        tensors = {name: torch.from_numpy(x).requires_grad_() for name, x in options["tensors"].items()}
        options = {**options, "tensors": tensors}
        made = loci.attention(leaf["q"], leaf["k"], leaf["v"], m["loci.encoding"], return_lse=True, **options)
        loss = torch.zeros((), dtype=torch.float64)
        for x, names in zip(made, (("dout",), ("dlse", "drem"), ("dae",)), strict=False):
            for name in names:
                if name in t:
                    gradient = torch.from_numpy(t[name].astype(dtype))
                    finite = torch.where(torch.isfinite(x), x, torch.zeros_like(x))
                    loss = loss + (finite * gradient).sum().double()
        loss.backward()
        for name, x in zip("qkv", three, strict=True):
            if leaf[name].grad is not None and "expect.d." + name in t:
                self.close(leaf[name].grad.numpy(), np.asarray(x, np.float64), 1e-6, f"{path.name} torch {name}")
        for name, x in more.items():
            if f"expect.d.param.{name}" in t and tensors[name].grad is not None:
                self.close(tensors[name].grad.numpy(), np.asarray(x, np.float64), 1e-6, f"{path.name} torch {name}")

    def rows(self, path: Any, m: dict[str, str], t: dict[str, Any], dtype: str) -> None:
        forward, backward = cases.tolerances(m)
        options = cases.options(m, t, dtype)
        x = t["x"].astype(dtype)
        at = t.get("pos")
        given: dict[str, Any] = {"tensors": options["tensors"]}
        if m["loci.stage"] == "rotate":
            given["role"] = m.get("loci.role", "query")
        if at is not None:
            given["pos" if at.dtype == np.int64 else "coords"] = at
        function = loci.rotate if m["loci.stage"] == "rotate" else loci.embed
        if m["loci.stage"] == "embed" and at is not None:
            given["max_len"] = int(at.max()) + 1
        if m["loci.stage"] == "embed" and at is None:
            given["max_len"] = x.shape[-2]
        y = function(x, m["loci.encoding"], **given)
        self.close(y, t["expect.out"], forward, f"{path.name} out")
        if torch is None or "dout" not in t:
            return
        leaf = torch.from_numpy(x).requires_grad_()
        tensors = {name: torch.from_numpy(p).requires_grad_() for name, p in given["tensors"].items()}
        y = function(leaf, m["loci.encoding"], **{**given, "tensors": tensors})
        (y * torch.from_numpy(t["dout"].astype(dtype))).sum().backward()
        self.close(leaf.grad.numpy(), t["expect.d.x"], backward, f"{path.name} d.x")
        for name, p in tensors.items():
            if f"expect.d.param.{name}" in t:
                self.close(p.grad.numpy(), t[f"expect.d.param.{name}"], backward, f"{path.name} d.{name}")

    def linear(self, path: Any, m: dict[str, str], t: dict[str, Any], dtype: str) -> None:
        forward, _ = cases.tolerances(m)
        options = {name: x for name, x in cases.options(m, t, dtype).items() if name not in ("window_size", "scale")}
        q, k, v = (t[name].astype(dtype) for name in "qkv")
        o = loci.linear_attention(q, k, v, m["loci.encoding"], **options)
        self.close(o, t["expect.out"], forward, f"{path.name} out")

    def test_all(self) -> None:
        ways = {"attention": self.attention, "rotate": self.rows, "embed": self.rows, "linear_attention": self.linear}
        tried = 0
        for path in cases.paths():
            m, t = cases.read(path)
            if m.get("loci.offset", "0") != "0":
                continue  # which only C has
            if m["loci.encoding"] == "t5" and m.get("loci.mask") == "full":
                m["loci.encoding"] = "t5:bidirectional=0"  # what a case means by default
            stage = m.get("loci.stage", "attention")
            for dtype in ("float32", "float64"):
                with self.subTest(case=path.stem, dtype=dtype):
                    ways[stage](path, m, t, dtype)
                    tried += 1
        self.assertGreater(tried, 200)


if __name__ == "__main__":
    unittest.main()
