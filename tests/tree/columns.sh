#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Prose in Markdown has at most 100 columns.  Exempt are rows of tables, code, and lines that cannot be broken: a
# heading, a picture, a link or a word alone.  rooms.sh looks at lines of C.
. tests/support/harness.sh

# FILE: its wide lines, as NUMBER: TEXT.  Bytes that continue a UTF-8 character do not count, in any locale.
wide() {
    LC_ALL=C awk '
        /^ *```/ { code = !code; next }
        code || /^ *\|/ || /^#/ { next }
        /^    / && (blank || indented) { indented = 1; next }
        { text = $0; gsub(/[\200-\277]/, "", text); blank = text ~ /^ *$/; indented = 0 }
        text ~ /^ *([-*] )?!?\[[^]]*\]\([^)]*\)[.,:]?$/ || text ~ /^ *([-*] )?[^ ]+$/ { next }
        length(text) > 100 { print FNR ": " $0 }' "$1"
}
count=0
while IFS= read -rd '' page; do
    check "$page has no wide prose" test -z "$(wide "$page" | tee "$work/out")"
    count=$((count + 1))
done < <(scripts/sources files | grep -zE '\.md$')
check "there are pages" test "$count" -gt 60

# A planted line is found where it is prose, and only there.
long=$(printf 'word %.0s' {1..21})
planted() {                              # LINES TEXT...: so many wide lines
    printf '%s\n' "${@:2}" >"$work/page.md"
    test "$(wide "$work/page.md" | wc -l)" -eq "$1"
}
check "a line of 105 columns" planted 1 "$long"
check "an item of a list, and what follows it" planted 2 "- $long" "  $long"
check "an item below an item" planted 1 "- a" "    - $long"
check "a line of 100 columns" planted 0 "$(printf '%0100d' 0 | sed 's/00/0 /g')"
check "100 characters in more bytes" planted 0 "$(printf '%0100d' 0 | sed 's/00/± /g')"
check "no row of a table" planted 0 "| $long |"
check "no code" planted 0 '```c' "$long" '```' "" "    $long" "    $long"
check "but text behind code" planted 1 '```c' "$long" '```' "$long"
check "no link alone" planted 0 "![$long](x.svg)" "[$long](x.md)."
check "but a link in a sentence" planted 1 "See [$long](x.md)."
harness_end
