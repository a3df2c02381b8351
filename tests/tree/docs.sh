#!/bin/bash
# SPDX-License-Identifier: MIT
# Every encoding has a page and a row in docs/encodings.md, README.md counts them, and the commands that pages show
# work, on problems made small.
. tests/support/harness.sh
mapfile -t names < <("$LOCI" list --json | sed -E 's/.*"name":"([a-z0-9]+)","brief".*/\1/')
check "README.md counts the encodings" test "$(grep -oE 'computes [0-9]+ positional' README.md)" = "computes ${#names[@]} positional"
for name in "${names[@]}"; do
    check "$name has a page" test -f "docs/encodings/$name.md"
    check "$name has a row in docs/encodings.md" grep -Fq "[\`$name\`](encodings/$name.md)" docs/encodings.md
    check "$name's page shows a command" grep -Eq "^    loci bench .*$name" "docs/encodings/$name.md"
done
while IFS=: read -r page command; do
    read -ra words <<<"$(sed -E 's/--len [0-9]+/--len 33/' <<<"$command")"
    check "$page: $command" "$LOCI" "${words[@]:1}" --repeat 5
done < <(grep -E '^    loci bench ' docs/encodings/*.md docs/cache.md | sed -E 's/^([^:]*):/\1:/')
while read -ra words; do
    check "docs/guide.md: ${words[*]}" "$LOCI" "${words[@]:1}"
done < <(grep -E '^    loci ' docs/guide.md)
harness_end
