#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The package of npm that `make npm` wrote to this build, by node: its contents, the golden cases
# bit for bit, the functions of loci.js, and the examples of pages.
. tests/support/harness.sh

check "loci.js is strict" grep -Fqx '"use strict";' javascript/loci.js
check "it names no encoding" test -z "$(sed 's,//.*,,; s,/\*\*.*,,' javascript/loci.js |
    grep -oE "[\"'](rope|alibi|t5|kerple|fox|sba|tape|pope|cope)[\"']")"
version=$(scripts/sources version)
archive=$LOCI_BUILD/npm/loci-attention-$version.tgz
if [ ! -e "$archive" ]; then
    echo "left out: this build has no package of npm, which make npm builds"
elif ! node -e 'process.exit(parseInt(process.versions.node) < 18 ? 1 : 0)' 2>/dev/null; then
    echo "left out: there is no node 18 here"
else
    package=$work/node_modules/loci-attention
    mkdir -p "$package" "$work/again"
    tar -xzf "$archive" -C "$package" --strip-components=1
    check "its files" test "$(cd "$package" && echo *)" = "LICENSE README.md loci.d.ts loci.js loci.wasm package.json"
    has() { node -p "JSON.parse(require('fs').readFileSync('$package/package.json'))$1"; }
    check "its name" test "$(has .name)" = loci-attention
    check "its version" test "$(has .version)" = "$version"
    check "it needs nothing" test "$(has .dependencies)" = undefined
    check "the files that it lists" test "$(has '.files.sort().join(" ")')" = "LICENSE README.md loci.d.ts loci.js loci.wasm"
    check "the module is below 3 MB" test "$(wc -c <"$package/loci.wasm")" -lt 3000000
    check "it is made again" javascript/pack "$LOCI_BUILD/explorer" "$work/again"
    check "with the same bytes" cmp "$archive" "$work/again/$(basename "$archive")"

    of() {                               # WHAT COMMAND...: its checks, up to the end
        local ended=no line
        while IFS= read -r line; do
            case $line in
                "ok "*) pass ;;
                "FAILED "*) fail "${line#FAILED }" ;;
                end) ended=yes ;;
                *) echo "$line" ;;
            esac
        done < <("${@:2}" 2>&1)
        check "$1 came to the end" test $ended = yes
    }
    of "the golden cases" node tests/tools/javascript_cases.mjs "$package"
    of "the tests of loci.js" node --expose-gc tests/tools/javascript.mjs "$package" "$LOCI" "$LOCI_BUILD/explorer/javascript/sums.wasm"

    # Every ```js block of a page runs alone.
    for page in javascript/README.md docs/javascript.md; do
        count=0
        while IFS= read -rd '' block; do
            count=$((count + 1))
            printf '%s' "$block" >"$work/block-$count.mjs"
            check "$page: block $count" node "$work/block-$count.mjs"
        done < <(awk '/^```js$/ { on = 1; next } on && /^```$/ { on = 0; printf "%c", 0; next } on' "$page")
        check "$page has examples" test "$count" -gt 0
    done
fi
harness_end
