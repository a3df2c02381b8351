#!/bin/bash
# SPDX-License-Identifier: MIT
# docs/ has the pictures and tables of `loci show`, byte for byte, and every page shows its own.
# None is large.
. tests/support/harness.sh
if [ -n "${LOCI_SANITIZE:-}" ]; then
    echo "pictures: left out: a build with sanitizers takes too long for all of them"
    echo "0 passed, 0 failed"
    exit 0
fi
check "all pictures are made" scripts/pictures "$LOCI" "$work/docs"
for file in "$work"/docs/pictures/*.svg "$work"/docs/gallery.md "$work"/docs/properties.md; do
    name=${file#"$work"/docs/}
    check "docs/$name is what 'make pictures' makes" cmp "$file" "docs/$name"
done
for file in docs/pictures/*.svg; do
    check "$file is still made" test -e "$work/$file"
    check "$file is below 30 kB" test "$(wc -c <"$file")" -lt 30000
    check "$file is shown" grep -rqF "pictures/$(basename "$file"))" docs/encodings docs/gallery.md
done
check "together they are below 1.5 MB" test "$(cat docs/pictures/*.svg | wc -c)" -lt 1500000
for page in docs/encodings/*.md; do
    check "$page has a picture" grep -q '](../pictures/' "$page"
done
harness_end
