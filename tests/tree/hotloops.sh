#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The findings and the output of scripts/hotloops for an object file.  Programs with fixed answers
# replace objdump and llvm-mca: one prints the loops below, the other uses half a cycle for every
# instruction.
. tests/support/harness.sh
if ! command -v python3 >/dev/null; then
    echo "scripts/hotloops left out: there is no python3 here"
    pass
    harness_end
    exit
fi
mkdir "$work/bin"
a() {                                    # COMMAND: the script on stdin
    cat >"$work/bin/$1" && chmod +x "$work/bin/$1"
}
object() {                               # FILE MACHINE: the header fields that are read
    mkdir -p "$(dirname "$work/$1")"
    { printf '\177ELF%014d' 0 && printf "$2" && cat; } >"$work/$1"
}
a objdump <<'END'
#!/bin/sh
for file; do :; done
tail -c +21 "$file"
END
cp "$work/bin/objdump" "$work/bin/aarch64-linux-gnu-objdump"
a llvm-mca <<'END'
#!/bin/sh
case "$*" in
*mcpu=unheard*) echo "'unheard' is not a recognized processor" >&2 ;;
esac
awk '
    /LLVM-MCA-BEGIN/ { name = $3; n = 0; next }
    /LLVM-MCA-END/ {
        all = all sep "{\"Name\":\"" name "\",\"SummaryView\":{\"TotalCycles\":" 300 * n / 2 "}}"
        sep = ","
        next
    }
    /^ *unheard/ { exit bad = 1 }
    NF { n++ }
    END { if (bad) exit 1; print "{\"CodeRegions\":[" all "]}" }'
END

# FROM COUNT TEXT: numbered instructions, # is their number
lines() {
    for ((i = 0; i < $2; i++)); do printf '  %x:\t%s\n' $(($1 + i)) "${3//#/$i}"; done
}
{
    echo '0000000000000000 <wide>:'
    lines 0 16 'vfmadd231ps (%rax){1to16},%zmm20,%zmm#'
    lines 16 1 'add $0x4,%rax'
    lines 17 1 'jne 0 <wide>'
    # half of them from the stack, and twice as long
    lines 18 16 'vfmadd231ps 0x40(%rsp),%zmm20,%zmm#'
    lines 34 16 'vmovups %zmm#,0x80(%rsp)'
    lines 50 1 'jne 12 <wide+0x12>'
    lines 51 1 'jne 0 <wide>'                                 # around both
    lines 52 1 'ret'
    echo '0000000000000100 <narrow>:'
    lines 256 4 'vfmadd213ps %zmm1,%zmm2,%zmm#'
    lines 260 2 'add $0x4,%rax'
    lines 262 1 'jb 100 <narrow>'
    lines 263 1 'vfmadd231ps %ymm1,%ymm2,%ymm3'
    lines 264 3 'mov %rax,%rbx'
    lines 267 1 'jmp 107 <narrow+0x7>'
    lines 268 1 'vfmadd231ps %zmm1,%zmm2,%zmm3'               # calls a function
    lines 269 1 'call 0 <wide>'
    lines 270 1 'jne 10c <narrow+0xc>'
    lines 271 1 'vfmadd231ss %xmm1,%xmm2,%xmm3'               # no vectors
    lines 272 1 'jne 10f <narrow+0xf>'
    lines 273 1 'vfmadd231ps %zmm1,%zmm2,%zmm3'               # no loop
    lines 274 1 'ret'
} | object build/CMakeFiles/loci_avx512_64.dir/src/engine/gemm.c.o '\076\000'
{
    echo '0000000000000000 <block>:'
    lines 0 16 'fmla v#.4s, v30.4s, v31.s[0]'
    lines 16 1 'ldr q1, [sp, #16]'
    lines 17 1 'cbnz x1, 0 <block>'
} | object build/CMakeFiles/loci_neon_64.dir/src/engine/gemm.c.o '\267\000'
{
    echo '0000000000000000 <odd>:'
    lines 0 8 'vfmadd231ps %ymm14,%ymm15,%ymm#'
    lines 8 1 'jne 0 <odd>'
    lines 9 1 'unheard %ymm1'
    lines 10 1 'vfmadd231ps %ymm14,%ymm15,%ymm1'
    lines 11 1 'jne 9 <odd+0x9>'
} | object odd.o '\076\000'
echo 'nothing to see' | object empty.o '\076\000'
mkdir "$work/none"

hot() { PATH=$work/bin:$PATH scripts/hotloops --mca "$work/bin/llvm-mca" "$@" >"$work/out" 2>"$work/err"; }
refused() {                              # WORDS ARGUMENTS...
    ! hot "${@:2}" && [ ! -s "$work/out" ] && [ "$(wc -l <"$work/err")" -eq 1 ] && grep -Fq "hotloops: $1" "$work/err"
}
row() { grep -Eq "^$(sed 's/ / +/g' <<<"$1")$" "$work/out"; }
has() { grep -Fxq -- "$1" "$work/out"; }
build=$work/build

check "a build" hot "$build"
check "a full loop" row "wide 0x0 16 16 18 0 94 % 94 % 94 %"
check "one that spills" row "wide 0x12 16 16 33 32 50 % 50 % 50 %"
check "a narrow loop" row "narrow 0x0 4 4 7 0 67 % 67 % 67 %"
check "one of other vectors" row "narrow 0x7 1 1 5 0 25 % 25 % 25 %"
check "and these are all, the worst first" test "$(grep -E '^(wide|narrow) ' "$work/out" | sed -E 's/ +/ /g' | cut -d' ' -f1,2 | tr '\n' ,)" = "narrow 0x7,wide 0x12,narrow 0x0,wide 0x0,"
check "what it is about" grep -Fq "avx512: $build/CMakeFiles/loci_avx512_64.dir/src/engine/gemm.c.o" "$work/out"
check "the goals" has "avx512 on znver4, 2 a cycle: full width 90 %: 1 meets, 1 misses, lowest 50 %; narrow 60 %: 1 meets, 1 misses, lowest 25 %"
check "NEON" row "block 0x0 16 16 18 1 94 % 94 % 94 %"
check "and its goals" has "neon on apple-m1, 2 a cycle: full width 80 %: 1 meets, 0 miss, lowest 94 %; narrow 60 %: 0 meet, 0 miss"
check "the summary" hot "$build" --summary
check "is a line per processor" test "$(wc -l <"$work/out")" -eq 6
check "other processors" hot "$build/CMakeFiles/loci_neon_64.dir/src/engine/gemm.c.o" --cpu one,unheard,two
check "of which one is not known" has 'neon: llvm-mca has no model of unheard'
check "and the others are" row "block 0x0 16 16 18 1 94 % 94 %"
check "an instruction that is not known" hot "$work/odd.o" --cpu one
check "has no figure" row "odd 0x9 1 1 3 0 \?"
check "and is no miss" has "avx2 on one, 2 a cycle: full width 85 %: 1 meets, 0 miss, lowest 100 %; narrow 60 %: 0 meet, 0 miss, 1 unread"

check "nothing" refused "there is no $work/nothing" "$work/nothing"
check "a folder that is no build" refused "$work/none has no objects of products" "$work/none"
check "an object without loops" refused 'no loop there' "$work/empty.o"
check "no model at all" refused 'there is no llvm-mca here' "$build" --mca "$work/none/llvm-mca"
harness_end
