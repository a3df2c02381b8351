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
    # whatever has been committed since
    time=$(stat -c %Y "$package/loci.js")
    check "it is made again" env SOURCE_DATE_EPOCH="$time" TZ=Asia/Tokyo javascript/pack "$LOCI_BUILD/explorer" "$work/again"
    check "with the same bytes, of these sources" cmp "$archive" "$work/again/$(basename "$archive")"

    relay "the golden cases" node tests/tools/javascript_cases.mjs "$package"
    relay "the tests of loci.js" node --expose-gc tests/tools/javascript.mjs "$package" "$LOCI" "$LOCI_BUILD/explorer/javascript/sums.wasm"

    # The same module in a browser, by fetch.
    cat >"$work/page.mjs" <<'END'
import { load } from "./node_modules/loci-attention/loci.js";
const loci = await load(), n = 2 * 40 * 16, x = Float32Array.from({ length: n }, (_, i) => Math.fround(i * 37 % 101 / 50 - 1));
const plan = loci.plan({ encoding: "rope:pairing=half+kerple", heads: 2, dim: 16 }), tensors = plan.init(3);
const { o, lse } = plan.forward(x, x, x, { tensors, return_lse: true });
const { dq, dk, dtensors } = plan.backward(x, x, x, x, o, lse, { tensors });
globalThis.said = JSON.stringify([o, lse, dq, dk, ...Object.values(dtensors)].map(y => [...new Uint32Array(y.buffer)]));
END
    if (cd tests/tools && python3 -c 'import browser, sys; sys.exit(sys.version_info < (3, 10) or not browser.program())' 2>/dev/null); then
        relay "the browser" env PYTHONDONTWRITEBYTECODE=1 python3 tests/tools/javascript.py "$work"
    else
        echo "left out: there is no Chromium here, or no Python 3.10, which drives it"
    fi

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
