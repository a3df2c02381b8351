#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Every relative link of a Markdown file leads to a file of the tree, and every #fragment to a
# heading (except in code).  Every page of docs/ that a source, a script or a test names exists.
. tests/support/harness.sh

slugs() {                                # FILE: the fragments of its headings
    awk '/^```/ { code = !code } !code && /^#+ / { sub(/^#+ +/, ""); print tolower($0) }' "$1" |
        sed -E 's/\[([^]]*)\]\([^)]*\)/\1/g; s/[^a-z0-9 _-]//g; s/ /-/g'
}
links() {                                # FILE: the contents of ](...), outside of code
    awk '/^```/ { code = !code } !code && !/^    [^ -]/ { gsub(/`[^`]*`/, ""); print }' "$1" |
        grep -oE '\]\([^)]+\)' | sed -E 's/^\]\(//; s/\)$//'
}
count=0
while read -r page; do
    while read -r link; do
        case $link in http:* | https:* | mailto:*) continue ;; esac
        file=${link%%#*} fragment=
        case $link in *'#'*) fragment=${link#*#} ;; esac
        file=${file:+$(dirname "$page")/$file}
        file=${file:-$page}
        count=$((count + 1))
        if [ ! -e "$file" ]; then fail "$page: $link leads nowhere"
        elif [ -n "$fragment" ] && ! grep -qxF -- "$fragment" <<<"$(slugs "$file")"; then fail "$page: $link names no heading"
        else pass; fi
    done < <(links "$page")
done < <(find . -name '*.md' -not -path './build*' -not -path './.git/*' | sort)
while IFS=: read -r file page; do
    check "$file names $page" test -e "$page"
done < <(grep -rIoE '\b(docs|lab)/[a-z0-9_/-]+\.(md|csv)\b' .ci CMakeLists.txt CONTRIBUTING.md Makefile README.md SECURITY.md \
    examples ggml include javascript python scripts src tests tools lab cli explorer 2>/dev/null | grep -v '/links\.sh:' | sort -u)
check "there are links" test "$count" -gt 100
harness_end
