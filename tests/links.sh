#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Every relative link of our pages leads to a file that is there, and to a heading of it.  So does every page of docs/
# that a source, a script or a test names.
. tests/harness.sh
pages() { find . -maxdepth 1 -name '*.md'; find docs .github -name '*.md' 2>/dev/null; }
anchors() {                              # PAGE: its headings as links name them
    sed -nE '/^```/,/^```$/d; s/^#+ +//p' "$1" | tr '[:upper:]' '[:lower:]' | sed -E 's/[^a-z0-9 _-]//g; s/ /-/g'
}
links() {                                # PAGE: what it links to, but for code
    sed -E '/^    /d; /^```/,/^```$/d; s/`[^`]*`//g' "$1" | grep -oE '\]\([^)]*\)' | sed -E 's/^\]\(//; s/\)$//'
}
while read -r page; do
    while read -r link; do
        case $link in *://* | mailto:*) continue ;; esac
        file=${link%%#*}
        to=$(dirname "$page")/$file
        [ -n "$file" ] || to=$page
        check "$page: $link" test -e "$to"
        case $link in
            *#*) check "$page: $link has a heading" grep -Fxq -- "${link#*#}" <<<"$(anchors "$to")" ;;
        esac
    done < <(links "$page" || true)
done < <(pages | sort)
while IFS=: read -r file page; do
    check "$file names $page" test -e "$page"
done < <(grep -rIoE --include='*' '\bdocs/[a-z0-9_/-]+\.(md|csv)\b' src include cli lab tests scripts python/loci README.md \
    CONTRIBUTING.md SECURITY.md Makefile CMakeLists.txt explorer examples | grep -v '^tests/links\.sh' | sort -u)
harness_end
