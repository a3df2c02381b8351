#!/bin/bash
# SPDX-License-Identifier: MIT
# The public ABI is that of the last record in abi/, or a growth of it.  Libraries export the
# declarations of the headers, with the versions of the lists in abi/.  Each kind of break, planted
# in a copy, is detected.
. tests/support/harness.sh
CC=$(sed -n 's/^CMAKE_C_COMPILER:[A-Z]*=//p' "$LOCI_BUILD/CMakeCache.txt" 2>/dev/null)
export CC=${CC:-cc}

# ---- Headers, lists and libraries
declared() { sed -nE 's/^LOCI_API .*[ *](loci_[a-z0-9_]+) ?\(.*/\1/p' "${@/#/include/loci/}" | sort; }
# If several nodes have a name, programs are linked with the last one.
listed() {
    awk '/^LOCI_/ { node = $1 }
         $1 ~ /^loci_/ { sub(";", "", $1); if ($1 in last) print $1 "@" last[$1]; last[$1] = node }
         END { for (name in last) print name "@@" last[name] }' "abi/lib$1.map" | sort
}
exported() { nm -D --defined-only "$LOCI_BUILD/lib$1.so" | awk '$2 != "A" { print $NF }' | sort; }
soname() { readelf -d "$LOCI_BUILD/lib$1.so" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p'; }
declare -A headers=([loci]="loci.h cache.h convert.h layers.h positions.h parallel.h" [loci-gpu]=gpu.h [loci-io]=io.h [loci-mpi]=mpi.h)
for library in loci loci-gpu loci-io loci-mpi; do
    check "lib$library.map lists what its headers declare" diff <(declared ${headers[$library]}) <(listed $library | sed 's/@.*//' | sort -u)
    if [ -e "$LOCI_BUILD/lib$library.so" ]; then
        check "lib$library.so exports these names, with versions" diff <(listed $library) <(exported $library)
        check "lib$library.so's soname" test "$(soname $library)" = "$(soname loci | sed "s/libloci/lib$library/")"
    fi
done

# ---- Programs of other versions
flags=(-std=c17 -Wall -Wextra -Werror -Wno-missing-field-initializers -Iinclude)
[ -z "${LOCI_SANITIZE:-}" ] || flags+=("-fsanitize=$LOCI_SANITIZE")
fails() { ! "$@"; }
run() {                                  # FLAGS...: the program of 0.2, compiled and run
    $CC "${flags[@]}" "$@" tests/package/old.c "$LOCI_BUILD/libloci.so" -Wl,-rpath,"$LOCI_BUILD" -lm -lpthread -o "$work/old" &&
        "$work/old" 2>"$work/err"
}
if [ -e "$LOCI_BUILD/libloci.so" ]; then
    check "a program that was linked with 0.2 runs" run
    check "linked today, it must set sizes" fails run -DLINKED_TODAY
    check "and is told so" grep -q "loci_desc: size is 0 and must be sizeof(loci_desc)" "$work/err"
fi
if command -v c++ >/dev/null; then
    echo 'loci_grad none = LOCI_GRAD(); loci_call call = LOCI_CALL(.batch = 1, .q_len = 2);' >"$work/macros.cc"
    check "C++20 takes the macros" c++ -std=c++20 -fsyntax-only -Iinclude -include loci/loci.h "$work/macros.cc"
fi

if ! python3 -c '' 2>/dev/null; then
    echo "left out: sizes and offsets, which scripts/abi lists by python3"
    harness_end
    exit
fi
if [ ! -e "$LOCI_BUILD/libloci.so" ]; then :
else check "the record's soname" test "$(scripts/abi | sed -n 's/^soname //p')" = "$(soname loci)"; fi

# ---- Today's against the record
record=$(printf '%s\n' abi/*.txt | sort -V | tail -n 1)
grows() { scripts/abi --root "$1" --against "$record" >"$work/out" 2>"$work/err"; }
check "today's ABI is that of $record, or more" grows .

# ---- Breaks
tree() {                                 # a copy in $work/tree, of the headers as recorded
    rm -rf "$work/tree"
    mkdir -p "$work/tree/include"
    cp -r include/loci "$work/tree/include/" && cp -r abi CMakeLists.txt "$work/tree/"
}
edit() { sed -E -i "$2" "$work/tree/$1" && ! cmp -s "$1" "$work/tree/$1"; }
breaks() {                               # PATTERN FILE SCRIPT...: detected, with a matching line
    local pattern=$1
    shift
    tree
    while [ $# -gt 0 ]; do edit "$1" "$2" || return 1; shift 2; done
    ! grows "$work/tree" && [ ! -s "$work/err" ] && grep -Eq -- "$pattern" "$work/out"
}
still() {                                # FILE SCRIPT...: accepted
    tree
    while [ $# -gt 0 ]; do edit "$1" "$2" || return 1; shift 2; done
    grows "$work/tree"
}
h=include/loci/loci.h
check "a field that moved" breaks 'field loci_call.q_len was .8? ?16' $h 's/ptrdiff_t batch, q_len, k_len;/ptrdiff_t batch, k_len, q_len;/'
check "a field in the middle" breaks 'field loci_desc.stage was' $h 's/^    loci_stage stage;/    int extra; loci_stage stage;/'
check "a field that is gone" breaks 'field loci_grad.dmask is gone' $h '/^    loci_view dmask;/d'
check "a field of another type" breaks 'field loci_desc.scale was' $h 's/^    double scale;/    int64_t scale;/'
check "a field in the rest of a struct" breaks 'field loci_desc.more is new, and within' $h 's/^    int tensor_count;/    int tensor_count, more;/'
check "a plain struct that grew" breaks 'struct loci_error had 516 bytes' $h 's/char text\[512\]/char text[1024]/'
check "a field more in one" breaks 'field loci_view.more is new in a struct that cannot grow' $h 's/^    ptrdiff_t batch, head, row;/    ptrdiff_t batch, head, row, more;/'
check "an enumerator in the middle" breaks 'enumerator LOCI_NO_MEMORY was' $h 's/^    LOCI_NO_MEMORY,/    LOCI_NEW, LOCI_NO_MEMORY,/'
check "a constant" breaks 'constant LOCI_NONE was' $h 's/LOCI_NONE \(-1\)/LOCI_NONE (-2)/'
check "another argument" breaks 'function loci_axes was' $h 's/loci_axes\(const loci_plan \*\)/loci_axes(const loci_plan *, int)/'
check "another result" breaks 'function loci_version was' $h 's/^LOCI_API int( +)loci_version\(/LOCI_API long\1loci_version(/'
check "a function that is gone" breaks 'function loci_version_text is gone' $h '/loci_version_text/d' abi/libloci.map '/loci_version_text/d'
check "another version of a name" breaks 'function loci_axes was' abi/libloci.map 's/^LOCI_0.2/LOCI_0.9/'
check "a struct's size in front" breaks 'struct loci_grad was' $h '/sizeof\(loci_grad\)/{n;s/^    size_t size;/    size_t bytes;/}'

# ---- Growth
check "a field at the end of a struct with a size" still $h 's/^    loci_view dmask;/    loci_view dmask; void *more;/'
check "an enumerator at the end" still $h 's/^    LOCI_DEVICE$/    LOCI_DEVICE, LOCI_MORE/'
check "a function, in a node of its own" still $h 's/^(LOCI_API int +)(loci_version)\(void\);/\1\2(void);\n\1loci_more(void);/' \
    abi/libloci.map '$a LOCI_0.4 {\n    global:\n        loci_more;\n} LOCI_0.3;'
check "another name of an argument" still $h 's/void \*tables, void \*work,/void *tabs, void *work,/'
check "another soname" still $h 's/char text\[512\]/char text[1024]/' CMakeLists.txt 's/project\(loci VERSION [0-9]+/project(loci VERSION 9/'
tree && edit $h 's/^(LOCI_API int +)(loci_version)\(void\);/\1\2(void);\n\1loci_more(void);/'
check "a function without a version" bash -c '! "$0" --root "$1" --against "$2" 2>&1 | grep -Fvx "abi: no symbol version, missing in abi/*.map: loci_more"' scripts/abi "$work/tree" "$record"
harness_end
