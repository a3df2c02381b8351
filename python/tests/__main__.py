# SPDX-License-Identifier: MIT
"""The tests with the standard library's unittest, and a line with how many passed: python -m tests [I/N]

I/N: part I of N; every N-th module belongs to it.
"""

from __future__ import annotations

import pathlib
import re
import sys
import unittest


def main() -> int:
    part = re.fullmatch(r"(\d+)/(\d+)", sys.argv[1] if len(sys.argv) == 2 else "1/1")
    if not part or len(sys.argv) > 2 or not 1 <= int(part[1]) <= int(part[2]):
        sys.exit(f"tests: the argument must be a part, such as 1/2, not '{' '.join(sys.argv[1:])}'")
    folder = pathlib.Path(__file__).resolve().parent
    modules = list(unittest.defaultTestLoader.discover(str(folder), top_level_dir=str(folder.parent)))
    suite = unittest.TestSuite(modules[int(part[1]) - 1 :: int(part[2])])
    result = unittest.TextTestRunner(verbosity=1).run(suite)
    bad = len(result.failures) + len(result.errors) + len(result.unexpectedSuccesses)
    for test, why in result.skipped:
        print(f"left out: {test}: {why}")
    print(f"{result.testsRun - len(result.skipped)} tests ran")
    return 1 if bad or not result.testsRun else 0


if __name__ == "__main__":
    sys.exit(main())
