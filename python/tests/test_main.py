# SPDX-License-Identifier: MIT
"""`python -m loci`: the report, and the program."""

from __future__ import annotations

import os
import subprocess
import sys
import unittest

import numpy as np

import loci
from loci import _program


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    told = {name: value for name, value in os.environ.items() if name != "LOCI"}
    command = [sys.executable, "-m", "loci", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**told, **environment})


class Main(unittest.TestCase):
    def test_report(self) -> None:
        done = run()
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        lines = dict(line.split(None, 1) for line in done.stdout.splitlines() if not line.startswith("model files"))
        self.assertEqual(lines["loci"], loci.__version__)
        self.assertEqual(lines["numpy"], np.__version__)
        self.assertIn(loci.isas()[-1], lines["instructions"])
        self.assertIn("in a pool of loci; with torch, its own", lines["threads"])

    def test_program(self) -> None:
        if _program.own() is None:
            done = run("version")
            self.assertEqual(done.returncode, 2)
            self.assertEqual(done.stderr, "loci: this wheel has no program: jansson was not here when it was built\n")
        else:
            done = run("version", **({"LOCI": os.environ["LOCI"]} if "LOCI" in os.environ else {}))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(loci.library_version, done.stdout)

    def test_program_that_is_not_there(self) -> None:
        done = run("version", LOCI="/nowhere/loci")
        self.assertEqual(done.returncode, 2)
        self.assertEqual(done.stderr, "loci: /nowhere/loci cannot be run: No such file or directory\n")


if __name__ == "__main__":
    unittest.main()
