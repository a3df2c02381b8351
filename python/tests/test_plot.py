# SPDX-License-Identifier: MIT
"""Pictures: what is drawn is what is computed."""

from __future__ import annotations

import unittest

import numpy as np

import loci

try:
    import matplotlib
except ImportError:
    raise unittest.SkipTest("there is no matplotlib") from None

matplotlib.use("Agg")

from loci import plot

from .test_rows import LLAMA3, files_are_read


class Pictures(unittest.TestCase):
    def test_weights(self) -> None:
        q, k = (np.random.default_rng(i).standard_normal((1, 2, 9, 8), np.float32) for i in range(2))
        axes = plot.weights(q, k, "alibi", 5)
        want = loci.weights(q, k, "alibi", rows=[5])[0, :, 0]
        self.assertEqual(len(axes.lines), 2)
        self.assertTrue(np.allclose(axes.lines[1].get_ydata(), want[1]))

    def test_bias(self) -> None:
        axes = plot.bias("alibi", 8, 20)
        self.assertTrue(np.allclose(axes.lines[0].get_ydata(), -0.5 * np.arange(20)))
        self.assertIs(plot.bias("alibi", 8, 20, ax=axes), axes)
        with self.assertRaisesRegex(loci.Error, "no bias of its own"):
            plot.bias("fox", 2, 8)

    @unittest.skipUnless(files_are_read(), "this build does not read models' files")
    def test_frequencies(self) -> None:
        axes = plot.frequencies(LLAMA3)
        self.assertTrue(np.allclose(axes.lines[0].get_ydata(), 2 * np.pi / loci.rope.from_config(LLAMA3).frequency))


if __name__ == "__main__":
    unittest.main()
