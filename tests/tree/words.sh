#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Pages, headers and help use plain words: phrases that docs/glossary.md bans ("Words that are not
# used") do not occur, if a phrase is unmistakable.  Code in Markdown is exempt.
. tests/support/harness.sh

banned='nobody|whoever|as many|by turns|what is none|that are none|such as there can(not)? be|beside'
plain() {                                # FILE: its words on one line, without code
    sed -E '/^ *```/,/^ *```/d; s/^ \* //; s/`[^`]*`//g' "$1" | tr -s '[:space:]' ' '
}
found() {                                # FILE: banned phrases, with the words around them
    plain "$1" | grep -oiE ".{0,30}\b($banned)\b.{0,30}"
}
none() { [ -z "$(found "$1" | tee "$work/out")" ]; }

# The program writes docs/properties.md, and docs/glossary.md lists the phrases.
while IFS= read -rd '' page; do
    check "$page" none "$page"
done < <(scripts/sources files | grep -zE '^(docs|lab|src)/.*\.md$|^(README|CONTRIBUTING|SECURITY)\.md$' |
    grep -zvE '^docs/(properties|glossary)\.md$')
for header in loci cache convert gpu io layers mpi parallel positions; do
    check "loci/$header.h" none "include/loci/$header.h"
done
for command in '' race list show run bench rope check convert lab info man completion version; do
    "$LOCI" $command --help >"$work/help" || fail "loci $command --help"
    check "loci $command --help" none "$work/help"
done

# A planted phrase is detected, also across lines and in a comment.
planted() {                              # COUNT LINES...
    printf '%s\n' "${@:2}" >"$work/page.md"
    test "$(found "$work/page.md" | wc -l)" -eq "$1"
}
check "a phrase" planted 1 "The mistake of a host, which nobody finds."
check "a phrase across lines" planted 1 "Two builds run by" "turns, in one run."
check "a phrase in a comment" planted 1 " * The shares are such as" " * there cannot be."
check "besides is another word" planted 0 "Besides, it is fast."
check "code is exempt" planted 0 'The `nobody` user.' '```' "nobody" '```'
check "text behind code is not" planted 1 '```' "code" '```' "Whoever reads."
harness_end
