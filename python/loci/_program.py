# SPDX-License-Identifier: MIT
"""Where the program `loci` is."""

from __future__ import annotations

import os
import shutil
import sys


def own() -> str | None:
    """What LOCI says, or the program that came with the package."""
    name = "loci.exe" if sys.platform == "win32" else "loci"
    file = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_bin", name)
    return os.environ.get("LOCI") or (file if os.path.isfile(file) else None)


def find() -> str | None:
    """own(), or the one on the path."""
    return own() or shutil.which("loci")
