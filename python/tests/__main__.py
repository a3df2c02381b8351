# SPDX-License-Identifier: MIT
"""All tests with the standard library's unittest, and a line with how many passed: python -m tests"""

from __future__ import annotations

import pathlib
import sys
import unittest


def main() -> int:
    folder = pathlib.Path(__file__).resolve().parent
    suite = unittest.defaultTestLoader.discover(str(folder), top_level_dir=str(folder.parent))
    result = unittest.TextTestRunner(verbosity=1).run(suite)
    bad = len(result.failures) + len(result.errors) + len(result.unexpectedSuccesses)
    for test, why in result.skipped:
        print(f"left out: {test}: {why}")
    print(f"{result.testsRun - len(result.skipped)} tests ran")
    return 1 if bad or not result.testsRun else 0


if __name__ == "__main__":
    sys.exit(main())
