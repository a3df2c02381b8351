# SPDX-License-Identifier: MIT
"""Renders a conda recipe by py-rattler-build, and runs the script of its library without conda.

    python conda.py RECIPE ARCHIVE [PREFIX [CMAKE_ARGUMENT...]]

Without PREFIX the recipe is rendered alone.  The script runs in the unpacked archive.
"""

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from rattler_build import PlatformConfig, RenderConfig, Stage0Recipe, VariantConfig

PLATFORMS = ("linux-64", "linux-aarch64", "osx-64", "osx-arm64")


def rendered(recipe: Path, platform: str) -> dict:
    """The outputs of a recipe on a platform, by name, as rattler-build sees them."""
    config = RenderConfig(PlatformConfig(target_platform=platform, build_platform=platform, host_platform=platform))
    variants = VariantConfig({"python": ["3.12.* *_cpython"], "c_stdlib": ["sysroot"], "c_stdlib_version": ["2.17"]})
    found = Stage0Recipe.from_file(recipe).render(variants, config)
    return {v.recipe.package.name: v.recipe.to_dict() for v in found}


def main() -> None:
    """Check each platform's outputs, and build one."""
    recipe, archive, *rest = sys.argv[1:]
    total = hashlib.sha256(Path(archive).read_bytes()).hexdigest()
    for platform in PLATFORMS:
        outputs = rendered(Path(recipe), platform)
        if set(outputs) != {"libloci", "loci-attention"}:
            sys.exit(f"{platform}: the outputs are {', '.join(outputs) or 'none'}")
        for name, output in outputs.items():
            source = output["source"][0]
            if source["sha256"] != total or Path(source["url"]).name != Path(archive).name:
                sys.exit(f"{platform}: {name} has another source than {archive}")
            if f"loci-{output['package']['version']}.tar.gz" != Path(archive).name:
                sys.exit(f"{platform}: {name} has version {output['package']['version']}")
    if not rest:
        return
    prefix = Path(rest[0]).absolute()
    commands = rendered(Path(recipe), "linux-64")["libloci"]["build"]["script"]
    if isinstance(commands, dict):
        commands = commands["content"]
    if isinstance(commands, str):
        commands = [commands]
    arguments = [
        f"-DCMAKE_INSTALL_PREFIX={prefix}",
        "-DCMAKE_INSTALL_LIBDIR=lib",
        "-DCMAKE_BUILD_TYPE=Release",
        *rest[1:],
    ]
    with tempfile.TemporaryDirectory() as work:
        with tarfile.open(archive) as sources:
            sources.extractall(work, filter="data")
        env = os.environ | {"PREFIX": str(prefix), "CMAKE_ARGS": " ".join(arguments)}
        env.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count()))
        script = "set -eu\n" + "\n".join(commands)
        subprocess.run(["bash", "-c", script], cwd=next(Path(work).iterdir()), env=env, check=True)
    for file in ("bin/loci", "include/loci/loci.h", "lib/libloci.so", "lib/libloci-io.so"):
        if not (prefix / file).exists():
            sys.exit(f"the recipe installed no {file}")


main()
