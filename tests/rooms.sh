#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Who may include whom: the table of docs/design.md ("Rooms"), held to what the files say.  Every include of ours is
# written from src, include or the root; a header is guarded by that path, and lists and vocabularies have no guard.
# And all of C is read in 100 columns, and calls go where includes may.
set -euo pipefail
. tests/harness.sh

# room: rooms it may see, from | room | sees | ... | of the table
declare -A sees
while IFS='|' read -r _ room list _; do
    room=$(tr -d ' `' <<<"$room")
    sees[$room]=" $room $(tr -d '`,' <<<"$list") "
done < <(awk '/^\| room \| may see \|/ { on = 1; getline; next } on && !/^\|/ { exit } on' docs/design.md)
[ "${#sees[@]}" -gt 8 ] || fail "docs/design.md has no table of rooms"

room_of() {                                 # of a path from src, include or the root
    case $1 in
        loci/*) echo public ;;
        */list.h) echo list ;;              # lists may be read wherever their names are known
        */*) echo "${1%%/*}" ;;
        *) echo none ;;
    esac
}
while read -r file; do
    from=${file#src/}
    room=${from%%/*}
    [ -n "${sees[$room]:-}" ] || { fail "$file is in room $room, which the table does not have"; continue; }
    while read -r include; do
        to=$(room_of "$include")
        if [ -e "src/$include" ] || [ -e "include/$include" ] || [ -e "$include" ]; then
            case " public list ${sees[$room]}" in
                *" $to "*) pass ;;
                *) fail "$file includes $include, but $room may see${sees[$room]% } only" ;;
            esac
        else
            fail "$file includes $include, which is not written from src or include"
        fi
    done < <(sed -n 's/^#include "\(.*\)"$/\1/p' "$file")
done < <(find src cli lab explorer -name '*.[ch]' | sort)

# ---- Guards
while read -r header; do
    case $header in */list.h | src/isa/*/vec.h) continue ;; esac
    want=LOCI_$(sed -E 's,^(src|include)/,,; s,[/.],_,g' <<<"$header" | tr '[:lower:]' '[:upper:]')
    said=$(grep -m 2 -E '^#' "$header" | tr '\n' ' ')
    if [ "$said" = "#ifndef $want #define $want " ]; then pass
    else fail "$header begins with $said, wanted #ifndef and #define $want"; fi
done < <(find src include cli lab tests examples -name '*.h' | sort)

# ---- Columns
while read -r file; do
    wide=$(awk 'length > 100 { printf "%s%d", sep, FNR; sep = " " }' "$file")
    if [ -z "$wide" ]; then pass
    else fail "$file has lines of more than 100 columns: $wide"; fi
done < <(find src include cli lab explorer tests examples -name '*.[ch]' | sort)

# ---- Calls: what a room's objects take from another's they may see as well.  The other way three lists lead: plan knows
# encodings and engines by name, and attn the terms; loci.h and what it promises are known to all.
declare -A home
objects() {                                 # of a room: those of files that are still there
    find "$LOCI_BUILD"/CMakeFiles/loci_*.dir/src -name '*.o' -path "*/src/$1/*" | while read -r object; do
        if [ -e "src/$1/$(basename "$object" .o)" ]; then echo "$object"; fi
    done
}
for room in base plan shape pe attn terms call parallel layers extras; do
    while read -r symbol; do home[$symbol]=$room; done < <(objects $room | xargs nm -g --defined-only | awk 'NF == 3 { print $3 }')
done
[ "${#home[@]}" -gt 100 ] || fail "$LOCI_BUILD has no objects whose symbols could be looked at"
for room in base plan shape pe attn terms call parallel layers extras; do
    while read -r symbol; do
        to=${home[$symbol]:-}
        [ -n "$to" ] || continue
        case "${sees[$room]} $symbol" in
            *" $to "* | *" loci_pe_"* | *" loci_engine_"* | *" loci_terms_"*) pass ;;
            *) fail "$room calls $symbol of $to, and may see${sees[$room]% } only" ;;
        esac
    done < <(objects $room | xargs nm -g --undefined-only | awk 'NF == 2 { print $2 }' | sort -u)
done

harness_end
