# SPDX-License-Identifier: MIT
"""Attention over processes that torchrun starts on this machine: ranks.py."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import unittest

try:
    import torch.distributed
except ImportError:
    raise unittest.SkipTest("there is no torch") from None

FOLDER = pathlib.Path(__file__).resolve().parents[1]


@unittest.skipUnless(torch.distributed.is_available(), "this torch has no torch.distributed")
@unittest.skipUnless(torch.distributed.is_gloo_available(), "this torch has no gloo")
class Distributed(unittest.TestCase):
    def ranks(self, count: int, *names: str) -> None:
        """The tests of these names, or all of them, in so many processes."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_ADDR2LINE": "1"}
        if sys.platform == "linux":
            environment["GLOO_SOCKET_IFNAME"] = "lo"  # whatever this machine is called
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
        done = subprocess.run(
            [*start, "-m", "tests.ranks", *names],
            cwd=FOLDER,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(len(re.findall(r"Ran \d+ tests? in", done.stderr)), count, done.stderr)

    def test_two(self) -> None:
        self.ranks(2)

    def test_three(self) -> None:
        self.ranks(3, "Forward", "Backward.test_every_encoding", "Decode")


if __name__ == "__main__":
    unittest.main()
