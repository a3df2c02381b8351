#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# A header is guarded by its path from src, include or the root, so that no two have the same guard: src/attn/walk.h by
# LOCI_ATTN_WALK_H.  Lists, which are there to be included again, and vocabularies of instruction sets, of which a file sees
# one, have none.
set -euo pipefail
passed=0 failed=0

while read -r header; do
    case $header in */list.h | src/isa/*/vec.h) continue ;; esac
    want=LOCI_$(sed -E 's,^(src|include)/,,; s,[/.],_,g' <<<"$header" | tr '[:lower:]' '[:upper:]')
    said=$(grep -m 2 -E '^#' "$header" | tr '\n' ' ')
    if [ "$said" = "#ifndef $want #define $want " ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "guards: $header begins with $said, wanted #ifndef and #define $want"
    fi
done < <(find src include cli tests examples -name '*.h' | sort)
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
