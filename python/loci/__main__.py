# SPDX-License-Identifier: MIT
"""`python -m loci` reports what is installed; `python -m loci COMMAND ...` runs the program of the wheel."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys

import loci
from loci import _c, _program


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _files() -> str:
    try:
        _c.files()
    except loci.Error as e:
        return str(e)
    return "read"


def report() -> str:
    """What an issue about loci should say: versions, files and the processor, a line each."""
    isas = loci.isas()
    lines = {
        "loci": loci.__version__,
        "library": f"{loci.library_version}, {_c.path}",
        "program": _program.own() or "none: jansson was not here when the wheel was built",
        "model files": _files(),
        "instructions": f"{', '.join(isas)} (in use: {isas[-1]})",
        "threads": f"{loci.get_num_threads()} of {os.cpu_count()} processors, in a pool of loci; with torch, its own",
        "processor": _processor(),
        "system": platform.platform(),
        "python": f"{platform.python_version()}, {sys.executable}",
    }
    lines.update((name, _version(name)) for name in ("numpy", "torch", "transformers"))
    return "\n".join(f"{name:<13} {what}" for name, what in lines.items())


def main() -> int:
    """Run the program with the arguments of this process, and return its exit status."""
    program = _program.own()
    if program is None:
        print("loci: this wheel has no program: jansson was not here when it was built", file=sys.stderr)
        return 2
    command = [program, *sys.argv[1:]]
    if sys.platform == "win32":
        return subprocess.call(command)
    try:
        os.execv(program, command)
    except OSError as e:
        print(f"loci: {program} cannot be run: {e.strerror}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(main())
    print(report())
