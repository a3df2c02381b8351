# SPDX-License-Identifier: MIT
# The systems for which the compiler of the PyPI package ziglang builds loci.  Other scripts read
# this file, in the root of the tree.  LOCI_ZIG_PYTHON is the Python that has the package.
zig_python=${LOCI_ZIG_PYTHON:-python3}

#       target            zig's name of it              tag of its wheel
zig_table='
        macos-arm64       aarch64-macos.11.0            macosx_11_0_arm64
        macos-x86_64      x86_64-macos.10.15            macosx_10_15_x86_64
        linux-x86_64      x86_64-linux-gnu.2.17         manylinux_2_17_x86_64
        linux-aarch64     aarch64-linux-gnu.2.17        manylinux_2_17_aarch64
        musl-x86_64       x86_64-linux-musl             musllinux_1_2_x86_64
        musl-aarch64      aarch64-linux-musl            musllinux_1_2_aarch64
        windows-x86_64    x86_64-windows-gnu            win_amd64
        windows-arm64     aarch64-windows-gnu           win_arm64
'
zig_targets() { awk 'NF { print $1 }' <<<"$zig_table"; }
zig_word() { awk -v target="$1" -v n="$2" '$1 == target { print $n }' <<<"$zig_table"; }
zig_name() { zig_word "$1" 2; }             # TARGET: none if it is not in the table
zig_tag() { zig_word "$1" 3; }

zig_here() { "$zig_python" -c 'import ziglang' 2>/dev/null; }

# What CMake is told for TARGET: the array zig_arguments.  Builds jansson if it is not there.
zig_prepare() {                             # TARGET LOG
    zig_arguments=("-DCMAKE_TOOLCHAIN_FILE=$PWD/cmake/zig.cmake" "-DLOCI_ZIG_PYTHON=$zig_python" "-DLOCI_ZIG_TARGET=$(zig_name "$1")")
    scripts/jansson "$PWD/build-jansson/$1" "${zig_arguments[@]}" >"$2" 2>&1 || return 1
    zig_arguments+=("-DCMAKE_PREFIX_PATH=$PWD/build-jansson/$1")
}
