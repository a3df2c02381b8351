#!/bin/bash
# SPDX-License-Identifier: MIT
# Every C program in README.md and docs/guide.md compiles unchanged and runs: each ```c block whose
# first line is an #include.
. tests/support/harness.sh
cc=$(sed -n 's/^CMAKE_C_COMPILER:[A-Z]*=//p' "$LOCI_BUILD/CMakeCache.txt")
flags=(-std=c17 -Wall -Wextra -Werror -Wno-missing-field-initializers -Iinclude)
[ -z "$LOCI_SANITIZE" ] || flags+=("-fsanitize=$LOCI_SANITIZE")
library=$(compgen -G "$LOCI_BUILD/libloci.so" || echo "$LOCI_BUILD/libloci.a")

awk -v to="$work/program" '
    /^```c$/ { first = 1; next }
    /^```/ { file = ""; first = 0 }
    first { if (/^#include/) file = to (++n) ".c"; first = 0 }
    file { print > file }' README.md docs/guide.md
check "there are programs" test -e "$work/program3.c"
for program in "$work"/program*.c; do
    [ -e "$program" ] || continue
    check "$(basename "$program") compiles" "$cc" "${flags[@]}" "$program" "$library" -Wl,-rpath,"$LOCI_BUILD" -lm -lpthread -o "$work/run"
    check "$(basename "$program") runs" env ASAN_OPTIONS=detect_leaks=0 "$work/run"
    rm -f "$work/run"
done
harness_end
