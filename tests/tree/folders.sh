#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Checks includes against the table in docs/design.md ("Folders").  Every include of ours is written
# relative to src, include, tools or the root.  A header's guard follows that path; lists and vector
# vocabularies have no guard.  Layout headers are named after terms.  C lines have at most 100
# columns, and calls go only where includes may.
set -euo pipefail
. tests/support/harness.sh

# folder: folders it may see, from | folder | sees | ... | of the table
declare -A sees
while IFS='|' read -r _ folder list _; do
    folder=$(tr -d ' `' <<<"$folder")
    sees[$folder]=" $folder $(tr -d '`,' <<<"$list") "
done < <(awk '/^\| folder \| may see \|/ { on = 1; getline; next } on && !/^\|/ { exit } on' docs/design.md)
[ "${#sees[@]}" -gt 8 ] || fail "docs/design.md has no table of folders"

folder_of() {                                 # of a path from src, include or the root
    case $1 in
        loci/*) echo public ;;
        */list.h) echo list ;;              # lists may be read wherever their names are known
        */*) echo "${1%%/*}" ;;
        *) echo none ;;
    esac
}
while read -r file; do
    from=${file#src/} && from=${from#tools/}
    folder=${from%%/*}
    [ -n "${sees[$folder]:-}" ] || { fail "$file is in folder $folder, which the table does not have"; continue; }
    while read -r include; do
        to=$(folder_of "$include")
        if [ -e "src/$include" ] || [ -e "include/$include" ] || [ -e "tools/$include" ] || [ -e "$include" ]; then
            case " public list ${sees[$folder]}" in
                *" $to "*) pass ;;
                *) fail "$file includes $include, but $folder may see${sees[$folder]% } only" ;;
            esac
        else
            fail "$file includes $include, which is not written from src, include, tools or the root"
        fi
    done < <(sed -n 's/^#include "\(.*\)"$/\1/p' "$file")
done < <(find src reference models tools lab ggml javascript -name '*.[ch]' ! -path 'lab/tests/*' | sort)

# ---- Guards
while read -r header; do
    case $header in */list.h | src/simd/*/vec.h) continue ;; esac
    want=LOCI_$(sed -E 's,^(src|include|tools)/,,; s,[/.],_,g' <<<"$header" | tr '[:lower:]' '[:upper:]')
    said=$(grep -m 2 -E '^#' "$header" | tr '\n' ' ')
    if [ "$said" = "#ifndef $want #define $want " ]; then pass
    else fail "$header begins with $said, wanted #ifndef and #define $want"; fi
done < <(find src include reference models tools lab ggml gpu javascript tests examples -name '*.h' | sort)

# ---- Columns
while read -r file; do
    wide=$(awk 'length > 100 { printf "%s%d", sep, FNR; sep = " " }' "$file")
    if [ -z "$wide" ]; then pass
    else fail "$file has lines of more than 100 columns: $wide"; fi
done < <(find src include reference models tools lab ggml gpu javascript tests examples -name '*.[ch]' | sort)

# ---- A layout has the name of its term.
while read -r header; do
    term=$(basename "${header%.*}")
    if grep -q "^TERM($term," src/terms/list.h; then pass; else fail "$header is named after no term of src/terms/list.h"; fi
done < <(find src/layout -name '*.[ch]' | sort)

# ---- Calls: a folder may call functions of another folder only if it may see it.  In reverse there
# are three lists: plan knows encodings and engines by name, and engine the terms.  All folders know
# loci.h.
declare -A home
objects() {                                 # of a folder: objects of files that still exist
    find "$LOCI_BUILD"/CMakeFiles/loci_*.dir/src -name '*.o' -path "*/src/$1/*" | while read -r object; do
        if [ -n "$(find "src/$1" -name "$(basename "$object" .o)")" ]; then echo "$object"; fi
    done
}
for folder in platform util math plan layout encodings engine terms api distributed layers extras; do
    while read -r symbol; do home[$symbol]=$folder; done < <(objects $folder | xargs nm -g --defined-only | awk 'NF == 3 { print $3 }')
done
[ "${#home[@]}" -gt 100 ] || fail "$LOCI_BUILD has no objects whose symbols could be looked at"
for folder in platform util math plan layout encodings engine terms api distributed layers extras; do
    while read -r symbol; do
        to=${home[$symbol]:-}
        [ -n "$to" ] || continue
        case "${sees[$folder]} $symbol" in
            *" $to "* | *" loci_pe_"* | *" loci_engine_"* | *" loci_terms_"*) pass ;;
            *) fail "$folder calls $symbol of $to, and may see${sees[$folder]% } only" ;;
        esac
    done < <(objects $folder | xargs nm -g --undefined-only | awk 'NF == 2 { print $2 }' | sort -u)
done

harness_end
