# SPDX-License-Identifier: MIT
"""out=: the caller's array is written only where every number fits; nothing beside it changes."""

from __future__ import annotations

import os
import tempfile
import unittest
from typing import Any

import numpy as np

import loci

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

as_strided = np.lib.stride_tricks.as_strided


def attend(shape: tuple[int, ...], out: Any, layout: str = "bhld") -> Any:
    """A call whose result has this shape."""
    q = np.ones((*shape[:-1], 8), np.float32)
    v = np.ones(shape, np.float32)
    arrays = [q, q, v] if isinstance(out, np.ndarray) else [torch.from_numpy(x) for x in (q, q, v)]
    return loci.attention(*arrays, layout=layout, out=out)


def step(shape: tuple[int, ...], out: Any, layout: str = "bhld") -> Any:
    q = np.ones((*shape[:-1], 8), np.float32)
    v = np.ones(shape, np.float32)
    rows, heads = (shape[2], shape[1]) if layout == "bhld" else (shape[1], shape[2])
    cache = loci.Cache("nope", heads, 8, batch=shape[0], capacity=max(rows, 1), value_dim=shape[3], layout=layout)
    arrays = [q, q, v] if isinstance(out, np.ndarray) else [torch.from_numpy(x) for x in (q, q, v)]
    try:
        return cache.step(*arrays, out=out)
    except loci.Error:
        assert cache.length() == 0, "a step that was refused has left keys behind"
        raise


CALLS = (attend, step)


class Out(unittest.TestCase):
    def refused(self, sentence: str, call: Any, *arguments: Any) -> None:
        with self.subTest(call=call.__name__, sentence=sentence):
            self.assertRaisesRegex(loci.Error, sentence, call, *arguments)

    def test_repeated_axes(self) -> None:
        """Each axis in turn has a stride of 0, at width 1 and wider, in both layouts."""
        for call in CALLS:
            for layout in ("bhld", "blhd"):
                for width in (1, 8):
                    for axis in range(3):
                        shape = [1, 1, 1, width]
                        shape[axis] = 64
                        memory = np.zeros(64 * 64, np.float32)
                        strides = [4 * width] * 3 + [4]
                        strides[axis] = 0
                        out = as_strided(memory, shape, strides)
                        self.refused("out has strides .* share memory", call, tuple(shape), out, layout)
                        self.assertFalse(memory.any())

    def test_overlapping_rows(self) -> None:
        for call in CALLS:
            memory = np.zeros(4096, np.float32)
            for shape, strides in (
                ((1, 1, 8, 8), (0, 0, 16, 4)),  # rows overlap
                ((1, 2, 8, 8), (0, 32, 32, 4)),  # heads and rows
                ((2, 1, 4, 1), (8, 4, 4, 4)),  # batches, at width 1
            ):
                self.refused("share memory", call, shape, as_strided(memory, shape, strides))
            self.assertFalse(memory.any())

    def test_views_that_fit(self) -> None:
        """Gaps and other orders of axes are fine, and what lies in the gaps stays."""
        for call in CALLS:
            memory = np.zeros((2, 3, 5, 12), np.float32)
            made = call((2, 3, 5, 8), memory[..., 2:10])
            self.assertTrue(np.shares_memory(made, memory))
            self.assertTrue((memory[..., 2:10] != 0).all())
            self.assertFalse(memory[..., :2].any() or memory[..., 10:].any())
            turned = np.zeros((3, 5, 2, 8), np.float32).transpose(2, 0, 1, 3)
            self.assertTrue((call((2, 3, 5, 8), turned) != 0).all())

    def test_read_only(self) -> None:
        shape = (1, 1, 4, 8)
        for call in CALLS:
            out = np.zeros(shape, np.float32)
            out.flags.writeable = False
            self.refused("out is read-only", call, shape, out)
            self.assertFalse(out.any())
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "out")
                np.zeros(shape, np.float32).tofile(path)
                self.refused("out is read-only", call, shape, np.memmap(path, np.float32, "r", shape=shape))

    def test_read_only_dlpack(self) -> None:
        """What numpy imports read-only stays as it is."""

        class Foreign:
            def __init__(self, x: Any) -> None:
                self.x = x

            def __dlpack__(self, **options: Any) -> Any:
                return self.x.__dlpack__(**options)

            def __dlpack_device__(self) -> Any:
                return self.x.__dlpack_device__()

        x = np.zeros((1, 1, 4, 8), np.float32)
        x.flags.writeable = False
        q = np.ones_like(x)
        with self.assertRaisesRegex(loci.Error, "out is read-only|out cannot be read through DLPack"):
            loci.attention(q, q, q, out=Foreign(x))
        self.assertFalse(x.any())

    def test_others_that_do_not_fit(self) -> None:
        for call in CALLS:
            self.refused("out has the shape", call, (1, 1, 4, 8), np.zeros((1, 1, 8, 4), np.float32))
            self.refused("out is float64", call, (1, 1, 4, 8), np.zeros((1, 1, 4, 8)))
            self.refused("out must be aligned", call, (1, 1, 4, 8), np.zeros((1, 1, 4, 16), np.float32)[..., ::2])
            self.refused("out must be aligned", call, (1, 1, 4, 8), np.zeros((1, 1, 4, 8), np.float32)[:, :, ::-1])


@unittest.skipIf(torch is None, "there is no torch")
class OutOfTorch(unittest.TestCase):
    def test_expanded(self) -> None:
        for call in CALLS:
            memory = torch.zeros(256)
            with self.assertRaisesRegex(loci.Error, "share memory"):
                call((256, 1, 1, 1), memory[:1].view(1, 1, 1, 1).expand(256, 1, 1, 1))
            self.assertFalse(memory.any())

    def test_versions(self) -> None:
        """Autograd sees that out was written, through views too."""
        for call in CALLS:
            out = torch.ones(1, 1, 4, 8)
            x = torch.ones(1, 1, 4, 8, requires_grad=True)
            product = (x * out).sum()
            with torch.no_grad():
                call((1, 1, 4, 8), out[:])
            with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                product.backward()

    def test_refused_calls_write_nothing(self) -> None:
        out = torch.zeros(1, 1, 4, 8)
        q = torch.ones(1, 1, 4, 8)
        with self.assertRaises(loci.Error):
            loci.attention(q, q, q, out=out, k_lens=[9])
        self.assertFalse(out.any())

    def test_gradients(self) -> None:
        for call in CALLS:
            out = torch.zeros(1, 1, 4, 8, requires_grad=True)
            with self.assertRaisesRegex(loci.Error, r"out requires a gradient.*out\.detach\(\)"):
                call((1, 1, 4, 8), out)
            with torch.inference_mode():
                made = torch.zeros(1, 1, 4, 8)
                self.assertTrue(call((1, 1, 4, 8), made).all())


if __name__ == "__main__":
    unittest.main()
