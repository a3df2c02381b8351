#!/bin/bash
# SPDX-License-Identifier: MIT
# The hardening flags are visible in the ELF files: of a build with LOCI_HARDENED, or of an
# installed tree (LOCI_INSTALLED), such as a package's.  Other builds are skipped.
. tests/support/harness.sh
root=${LOCI_INSTALLED:-}
if [ -z "$root" ] && ! grep -Fqx 'LOCI_HARDENED:BOOL=ON' "$LOCI_BUILD/CMakeCache.txt"; then
    check "readelf is here" readelf --version
    echo "left out: this build is not hardened"
    harness_end
    exit
fi
if [ -z "$root" ]; then
    root=$work/root
    cmake --install "$LOCI_BUILD" --prefix "$root" >"$work/out" 2>&1 || fail "cmake --install"
fi

headers() { readelf -lW "$1"; }
dynamic() { readelf -dW "$1"; }
stack_is_data() { headers "$1" | grep -Eq 'GNU_STACK .* RW +0x'; }
has_relro() { headers "$1" | grep -q GNU_RELRO; }
binds_now() { dynamic "$1" | grep -Eq 'BIND_NOW|FLAGS.*NOW'; }
is_pie() { headers "$1" | grep -q '^Elf file type is DYN' && headers "$1" | grep -q INTERP; }
no_text_relocations() { ! dynamic "$1" | grep -q TEXTREL; }
no_writable_code() { ! headers "$1" | grep -Eq 'LOAD .* RWE '; }
guards_stack() { readelf -sW --dyn-syms "$1" | grep -q __stack_chk_fail; }
fortified() { readelf -sW --dyn-syms "$1" | grep -Eq '__[a-z]+_chk(@|$)' ; }
# libloci-io searches libloci in its own folder, so that a tree can be moved.
no_search_path() { ! dynamic "$1" | grep -E 'R(UN)?PATH' | grep -Fv '[$ORIGIN]'; }
# A file has the property only if all linked objects have it, including the startup code of the
# system, which lacks it on Debian.  So our own code is checked too: every indirect jump target
# begins with a landing pad.
property() { readelf -nW "$1" 2>/dev/null | grep -E 'x86 feature:|AArch64 feature:' | grep -Eq "$2"; }
start=$("${CC:-cc}" -print-file-name=crti.o 2>/dev/null)
marked() { ! property "$start" "$2" || property "$1" "$2"; }
# FILE PATTERN: our functions begin with it; a stripped program has many
pads() {
    if [[ $1 = */bin/* ]] && ! readelf -SW "$1" | grep -q ' \.symtab '; then
        [ "$(objdump -d --no-show-raw-insn "$1" | grep -Ec "$2")" -gt 500 ]
        return
    fi
    objdump -d --no-show-raw-insn "$1" | awk -v pad="$2" '
        /^[0-9a-f]+ <(loci_[a-z0-9_]+|main)(@@[A-Za-z0-9_.]+)?>:$/ { name = $2; next }
        name { if ($0 ~ pad) good++; else { print name, $0; bad++ } name = "" }
        END { exit bad || !good }'
}

count=0
while read -r file; do
    name=${file##*/}
    count=$((count + 1))
    check "$name: the stack holds no code" stack_is_data "$file"
    check "$name: tables are read-only after the start" has_relro "$file"
    check "$name: and bound by then" binds_now "$file"
    check "$name: code is not written to" no_text_relocations "$file"
    check "$name: nor is what is written to code" no_writable_code "$file"
    check "$name: libraries are looked for nowhere else" no_search_path "$file"
    case $name in
        libloci-mpi*) ;;                 # has no arrays on its stack
        *) check "$name: stacks have guards" guards_stack "$file" ;;
    esac
    case $name in
        libloci.so* | loci) check "$name: calls of libc are fortified" fortified "$file" ;;
    esac
    case $(uname -m) in
        x86_64)
            check "$name: marked for indirect branches" marked "$file" IBT
            check "$name: marked for returns" marked "$file" SHSTK
            check "$name: landing pads" pads "$file" endbr64 ;;
        aarch64)
            check "$name: marked for indirect branches" marked "$file" BTI
            check "$name: landing pads" pads "$file" '(bti|paciasp)' ;;
    esac
    case $file in
        */bin/*) check "$name: its place is chosen at random" is_pie "$file" ;;
    esac
done < <(find "$root" -type f \( -path '*/bin/loci' -o -name 'lib*.so.*' \) | sort)
check "a program and its libraries" test "$count" -ge 3
harness_end
