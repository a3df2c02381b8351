#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The explorer: its sources, and the page that `make explorer` wrote to this build, in headless
# Chromium.  EXPLORER=all compares the numbers of every encoding and figure.
. tests/support/harness.sh

check "the page's script can be read" test "$(wc -l <tools/explorer/explorer.js)" -lt 400
check "the style can be read" test "$(wc -l <tools/explorer/explorer.css)" -lt 200
check "scripts are strict" test "$(grep -lx '"use strict";' tools/explorer/*.js | wc -l)" -eq 2
check "nothing comes from elsewhere" test -z "$(grep -nE '(src|href)="?[a-z]*:?//|@import|url\(|https?://' tools/explorer/*.{html,css,js})"

page=$LOCI_BUILD/explorer/index.html
if [ ! -e "$page" ]; then
    echo "left out: this build has no explorer, which make explorer builds"
elif ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
    echo "left out: there is no Python 3.10 here, which drives the browser"
elif ! (cd tests/tools && python3 -c 'import browser, sys; sys.exit(not browser.program())'); then
    echo "left out: there is no Chromium here"
else
    check "the page is one file below 1.5 MB" test "$(wc -c <"$page")" -lt 1500000
    check "it names no other" test -z "$(grep -oE '(src|href)="(https?:|//)[^"]*' "$page")"
    relay "the browser" env PYTHONDONTWRITEBYTECODE=1 python3 tests/tools/explorer.py "$(realpath "$page")" "$LOCI" ${EXPLORER:-}
fi
harness_end
