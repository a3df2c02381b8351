#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The promises that compiler flags keep: kernels at -O3 in every build type, no contraction, no fast-math.
set -euo pipefail
commands=$LOCI_BUILD/compile_commands.json
passed=0
failed=0

# check WHAT COUNT: COUNT command lines break a rule.
check() {
    if [ "$2" -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "flags: $2 files $1"; fi
}

kernels=$(grep '"command"' "$commands" | grep -E 'src/(attn|terms)/[a-z0-9_]+\.c' || true)
all=$(grep '"command"' "$commands")
check "are kernels, too few" "$([ "$(wc -l <<<"$kernels")" -ge 20 ]; echo $?)"
if [ -z "$LOCI_SANITIZE" ]; then
    check "are kernels without -O3" "$(grep -cvE -- '-O3( -[^O ][^ ]*)* -o ' <<<"$kernels" || true)"
fi
check "may contract products" "$(grep -cv -- '-ffp-contract=off' <<<"$all" || true)"
check "use fast-math" "$(grep -cE -- '-(ffast-math|Ofast|ffinite-math-only|funsafe-math[^ ]*|fassociative-math)' <<<"$all" || true)"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
