#!/bin/bash
# SPDX-License-Identifier: MIT
# The manual pages agree with --help, word by word, for every command that it lists. mandoc and
# groff, if available, report no warnings.
. tests/support/harness.sh

listed() { "$LOCI" $1 --help | awk '/^COMMANDS/ { on = 1; next } /^$/ { on = 0 } on { print $1 }'; }
commands=$(listed; listed lab | sed 's/^/lab /')
[ "$(wc -l <<<"$commands")" -gt 15 ] || fail "--help lists too few commands: $commands"

# The text that roff prints for a page, a word a line.  It knows only the macros of our pages.
words_of_page() {
    sed -E '/^\.(\\"|TH|PP|nf|fi|TP)/d; s/^\.(SH|B|BR) //; s/\\f[BIR]//g; s/\\&//g; s/\\-/-/g; s/\\\(aq/'"'"'/g
        s/\\\(ha/^/g; s/\\\(ti/~/g; s/\\\(ga/`/g; s/\\e/\\/g' "$1" | sed '/^SEE ALSO$/,$d' | tr -s ' ' '\n'
}
same_words() {                           # COMMAND PAGE: but for the page's own words
    "$LOCI" $1 --help | sed -E "2s/loci $1/loci-${1// /-}/; s/^EXIT CODES$/EXIT STATUS/; s/^(    -h, --help) .*/\1 a short form of this page/" |
        tr -s ' ' '\n' | grep . >"$work/out"
    words_of_page "$2" | grep . | diff "$work/out" -
}

mkdir "$work/man"
SOURCE_DATE_EPOCH=1700000000 "$LOCI" man -o "$work/man" || fail "man -o"
check "a page for each command, and one for the program" \
    diff <((echo loci.1; sed 's/ /-/; s/.*/loci-&.1/' <<<"$commands") | sort) <(ls "$work/man" | sort)
while read -r command; do
    page=$work/man/loci-${command// /-}.1
    check "the page of $command says what --help says" same_words "$command" "$page"
    SOURCE_DATE_EPOCH=1700000000 "$LOCI" man $command >"$work/one"
    check "man $command prints the same" cmp "$work/one" "$page"
    check "the program's page names $command" grep -Fqx ".B ${command#lab }" "$work/man/loci${command:+$([ "${command%% *}" = lab ] && [ "$command" != lab ] && echo -lab)}.1"
done <<<"$commands"
while read -r name; do
    check "the program's page has $name" grep -Fqx ".B $name" "$work/man/loci.1"
done < <("$LOCI" list --json | sed -E 's/.*"name":"([a-z0-9]+)","brief".*/\1/')
check "a page has the day of the source" grep -Fqx '.TH LOCI\-BENCH 1 "2023-11-14" "'"$("$LOCI" version)"'" "User Commands"' "$work/man/loci-bench.1"
SOURCE_DATE_EPOCH=never "$LOCI" man bench >"$work/one"
check "or none" grep -Fq '.TH LOCI\-BENCH 1 "" ' "$work/one"
check "the same page twice" cmp <("$LOCI" man check) <("$LOCI" man check)
check "a command that is not there" refused "man: unknown command 'benhc'" man benhc
check "a command below none" refused "man: unknown command 'bench run'" man bench run
check "no folder" refused none man -o "$work/none"

linted=0
if command -v mandoc >/dev/null; then
    linted=1
    check "mandoc has nothing to say" test -z "$(mandoc -Tlint -Wwarning "$work"/man/*.1 2>&1)"
fi
if command -v groff >/dev/null && groff -man -ww -z /dev/null 2>/dev/null; then
    linted=1
    for page in "$work"/man/*.1; do
        check "groff has nothing to say of $(basename "$page")" test -z "$(groff -man -Tascii -ww -z "$page" 2>&1)"
    done
fi
[ $linted -eq 1 ] || echo "left out: neither mandoc nor groff is here"

# The build generates the installed pages with the same program.
if [ -d "$LOCI_BUILD/said/man" ]; then
    check "the build has the pages" diff <(ls "$work/man") <(ls "$LOCI_BUILD/said/man")
fi
harness_end
