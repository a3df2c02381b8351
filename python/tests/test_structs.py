# SPDX-License-Identifier: MIT
"""The structs here against those of a C compiler."""

from __future__ import annotations

import ctypes
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from loci import _c

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
RENAMED: dict[str, str] = {}


def program() -> str:
    """Prints the size of each struct and where its fields are."""
    lines = ["#include <stdio.h>", "#include <stddef.h>"]
    lines += [f'#include "loci/{name}.h"' for name in ("loci", "cache", "layers", "io", "parallel", "gpu")]
    lines.append("int main(void) {")
    for name, struct in _c.STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        for field in struct._fields_:
            lines.append(f'printf("{name}.{field[0]} %zu\\n", offsetof({name}, {field[0]}));')
    return "\n".join([*lines, "return 0; }"])


class Structs(unittest.TestCase):
    @unittest.skipUnless(COMPILER, "there is no C compiler")
    def test_sizes_and_offsets(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            source, made = pathlib.Path(folder) / "sizes.c", pathlib.Path(folder) / "sizes"
            source.write_text(program())
            subprocess.run([str(COMPILER), f"-I{ROOT}/include", str(source), "-o", str(made)], check=True)
            said = subprocess.run([str(made)], check=True, capture_output=True, text=True).stdout.split("\n")
        told = dict(line.split() for line in said if line)
        checked = 0
        for name, struct in _c.STRUCTS.items():
            self.assertEqual(ctypes.sizeof(struct), int(told[name]), name)
            for field in struct._fields_:
                here = getattr(struct, field[0]).offset
                self.assertEqual(here, int(told[f"{name}.{field[0]}"]), f"{name}.{field[0]}")
                checked += 1
        self.assertGreater(checked, 100)

    def test_every_function_is_there(self) -> None:
        """All that the headers export, the package has, but for what it has no use for."""
        import re

        unused = {"prepare"}
        declared = set()
        for header in ("loci", "cache", "layers", "parallel"):
            text = (ROOT / "include" / "loci" / f"{header}.h").read_text()
            declared |= set(re.findall(r"LOCI_API[^;]*?\bloci_(\w+)\(", text))
        self.assertEqual(declared - set(_c.FUNCTIONS) - unused, set())
        unused = {"gpu_clock_start", "gpu_clock_stop", "gpu_describe", "gpu_peaks"}
        text = (ROOT / "include" / "loci" / "gpu.h").read_text()
        declared = set(re.findall(r"LOCI_API[^;]*?\bloci_(\w+)\(", text))
        self.assertEqual(declared - unused, set(_c.GPU_FUNCTIONS))


if __name__ == "__main__":
    unittest.main()
