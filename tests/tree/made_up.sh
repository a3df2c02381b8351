#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# "A new encoding is one file and one line."  Nothing but its file and lists names an encoding, and a made-up one, added to
# a copy of this tree, is in every command.  made_up/ has its file and its definition.
. tests/support/harness.sh
left_out() { echo "left out: $*"; pass; harness_end; exit; }

# ---- Names
# What may name encodings: their files and lists; models/ and _hf_*, which write texts for families of models; layers
# around one encoding (layers/, nn.py's FoXPro and TaPE, model.c's tape.*); what a user may say instead (parse.c, softcap=
# and sinks=, _attend.py's ELSEWHERE, alibi_slopes= of flash_attn, rotate_by() in _rows.py); claims of papers; variants of a test; worked examples; commands that read files of one rule.
may='^(src/(encodings|layers|terms)/|src/plan/parse\.c|models/|lab/(list\.h|arm\.c|claims\.c|model\.c|corpus\.c)|tools/show/(example|spectrum)\.c'
may+='|tools/cli/(check|check_bias|check_rotation|rope)\.c|tools/explorer/|python/loci/(_hf_[a-z]*|nn|_nn_inputs|_attend|_rows|flash_attn/__init__)\.py)'
# angles, learned, index, sink and softcap are words of other things, too.
names=$(sed -n 's/^PE(\(.*\))$/\1/p' src/encodings/list.h | grep -vxE 'angles|learned|index|sink|softcap' | paste -sd '|')
named=$(grep -nrE "\"($names)[\":.]" src tools lab python/loci --include='*.[ch]' --include='*.py' |
    grep -vE ':[0-9]+: ?/?\*|^lab/tests/|^tools/cli/check_device\.c:|`"|>>>|:    o = loci\.|: str( \| Plan)? = "nope"|^python/loci/__init__.py:[0-9]*:_MODULES' |
    grep -vE "$may")
check "no other file names an encoding: $named" test -z "$named"

# ---- The copy
[ -z "${LOCI_SANITIZE:-}" ] || left_out "the copy is built without sanitizers"
cache() { sed -n "s/^$1:[A-Z]*=//p" "$LOCI_BUILD/CMakeCache.txt"; }
[ -z "$(cache CMAKE_TOOLCHAIN_FILE)" ] || left_out "this build is for another machine"
[ "$(cache LOCI_COVERAGE)" != ON ] || left_out "this build counts lines"
tree=$work/tree
mkdir "$tree"
cp -R CMakeLists.txt abi cmake docs include lab models reference src tests tools "$tree"

cp tests/tree/made_up/smooth.c "$tree/src/encodings/"
sed -i 's/^PE(kerple)$/&\nPE(smooth)/' "$tree/src/encodings/list.h"
cat tests/tree/made_up/definition.c >>"$tree/reference/bias.c"
echo 'DEFINITION(smooth)' >>"$tree/reference/list.h"

# The program and one test, quick to compile: kernels at -O0, and objects from this build's cache if
# it has one.
sed -i 's/set(kernel_level -O1 /set(kernel_level -O0 /' "$tree/CMakeLists.txt"
check "kernels are not optimised" grep -q 'set(kernel_level -O0 ' "$tree/CMakeLists.txt"
export CCACHE_BASEDIR=$work CCACHE_NOHASHDIR=1
flags=(-DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS_DEBUG=-O0 -DLOCI_ROLLED=ON -DLOCI_ISAS=scalar -DLOCI_WERROR=ON
    -DLOCI_MPI=OFF -DLOCI_GPU=OFF -DLOCI_EXAMPLES=OFF -DLOCI_TEST_FILTER=accuracy "-DCMAKE_C_COMPILER=$(cache CMAKE_C_COMPILER)"
    "-DCMAKE_C_COMPILER_LAUNCHER=$(cache CMAKE_C_COMPILER_LAUNCHER)")
check "the copy is configured" cmake -S "$tree" -B "$tree/build" "${flags[@]}"
check "and built" cmake --build "$tree/build" --parallel 2 --target loci_cli test_accuracy
LOCI=$tree/build/loci
[ -x "$LOCI" ] || { harness_end; exit; }

# ---- Every command has it
check "list" says '^ *smooth ' list
check "list: its option and its tensor" says 'width.*4' list smooth
check "show draws" says 'smooth' show smooth --what curve --len 16
check "show measures" says 'translation' show smooth --what properties --len 16
check "a wrong name is told" refused "did you mean 'smooth'" show smoth
check "bench" says 'smooth' bench smooth --len 64 --repeat 5
check "race" says 'smooth' race smooth --len 64
check "the lab trains it" says . lab run --arms smooth --tasks recall --steps 2 --size XS --length 16 \
    --set layers=1,dim=16,heads=2,tokens=64 -q -o "$work/lab"
check "the lab's report has its family" says '"family": *"bias by distance"' lab report "$work/lab" --json

# ---- Forward and gradients by the definition: C of each, by the budget of docs/accuracy.md
table() { (cd "$tree" && build/tests/test_accuracy --table 40 smooth) >"$work/out" 2>&1; }
small() {                                # every C is a number below 64
    awk -F '|' '$2 == " smooth " { rows++; for (i = 4; i <= 12; i++) if (!($i + 0 > 0 && $i + 0 < 64)) bad++ }
                END { exit !(rows == 1 && !bad) }' "$work/out"
}
check "the engine and the definition agree" table
check "forward and backward" small
harness_end
