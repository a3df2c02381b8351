# SPDX-License-Identifier: MIT
"""Some calls of the fuzzer, the same in every run: python -m tests.fuzz has more."""

from __future__ import annotations

import importlib.util
import unittest

EXAMPLES = {"attention": 120, "cache": 60, "linear": 50, "rotation": 50, "embedding": 50}


@unittest.skipIf(importlib.util.find_spec("hypothesis") is None, "hypothesis is not installed: pip install hypothesis")
class Fuzz(unittest.TestCase):
    def test_every_target(self) -> None:
        from . import fuzz

        self.assertEqual(set(EXAMPLES), set(fuzz.TARGETS))
        for target, examples in EXAMPLES.items():
            with self.subTest(target=target):
                before = fuzz.counts[f"{target}: compared"]
                fuzz.run(target, examples, derandomize=True)
                self.assertGreater(fuzz.counts[f"{target}: compared"] - before, examples // 4)


if __name__ == "__main__":
    unittest.main()
