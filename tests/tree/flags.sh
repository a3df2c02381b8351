#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The guarantees of compiler flags: vector kernels at -O3 and others at -O2 in every build type, no
# contraction, no fast-math.
set -euo pipefail
commands=$LOCI_BUILD/compile_commands.json
. tests/support/harness.sh

# none WHAT COUNT: COUNT command lines break a rule.
none() { if [ "$2" -eq 0 ]; then pass; else fail "$2 files $1"; fi; }

kernels=$(grep '"command"' "$commands" | grep -E 'src/(engine|terms)/[a-z0-9_]+\.c' || true)
all=$(grep '"command"' "$commands")
none "are kernels, too few" "$([ "$(wc -l <<<"$kernels")" -ge 20 ]; echo $?)"
if [ -z "$LOCI_SANITIZE" ]; then
    plain=$(grep -E 'DLOCI_ISA=(scalar|f64) ' <<<"$kernels")
    vectors=$(grep -vE 'DLOCI_ISA=(scalar|f64) ' <<<"$kernels" || true)
    none "are kernels without -O2" "$(grep -cvE -- '-O2( (-[^O ]|[^- ])[^ ]*)* -o ' <<<"$plain" || true)"
    none "are kernels of vectors without -O3" "$([ -z "$vectors" ] || grep -cvE -- '-O3( (-[^O ]|[^- ])[^ ]*)* -o ' <<<"$vectors" || true)"
fi
none "may contract products" "$(grep -cv -- '-ffp-contract=off' <<<"$all" || true)"
none "use fast-math" "$(grep -cE -- '-(ffast-math|Ofast|ffinite-math-only|funsafe-math[^ ]*|fassociative-math)' <<<"$all" || true)"
harness_end
