#!/bin/bash
# SPDX-License-Identifier: MIT
# The golden cases: within their bounds on the fused engine, with the same bytes from every
# instruction set and any number of threads, and to rounding on the reference. tests/cases/errors
# has invalid and damaged ones.
[ ! -w /dev/shm ] || export TMPDIR=/dev/shm
. tests/support/harness.sh
isas=$("$LOCI" info --json | grep -o '"isas":\[[^]]*' | cut -d[ -f2 | tr -d '"' | tr , ' ')

refused() {  # CASE SENTENCE: exit code 2, one line on stderr with the sentence, no file
    "$LOCI" run "$1" -o "$work/none" >"$work/out" 2>"$work/err"
    local code=$?
    cat "$work/err"
    [ $code -eq 2 ] && [ "$(wc -l <"$work/err")" -eq 1 ] && [ ! -s "$work/out" ] &&
        grep -Eq "^loci: .*($2)" "$work/err" && [ -z "$(compgen -G "$work/none*")" ]
}
broken() { "$LOCI" run "$@"; [ $? -eq 1 ]; }

check "this processor runs something" test -n "$isas"

# One process for many cases: a start takes long with sanitizers.  It must succeed, and every case
# have results, all within their bounds.
run_into() { "$LOCI" run "${@:2}" >"$1"; }
each() {                                 # WHAT CASE... -- OPTION...
    local what=$1 cases=() case
    shift
    while [ "$1" != -- ]; do cases+=("$1") && shift; done
    check "all cases, $what" run_into "$work/out" "${cases[@]}" "${@:2}"
    awk '/^[^ ]/ { name = $1; sub(/:$/, "", name) } /^ / { rows[name]++ } /^ .* ok$/ { good[name]++ }
         END { for (name in rows) if (rows[name] == good[name]) print name }' "$work/out" >"$work/right"
    for case in "${cases[@]}"; do check "$case, $what" grep -Fxq "$case" "$work/right"; done
}
all=(tests/cases/*.safetensors)
# the angles of the oracle of these are plain doubles, 10^-10 off at position 10^6
far=(tests/cases/*-far[-.]*)
near=()
for case in "${all[@]}"; do
    [[ $case == *-far[-.]* ]] || near+=("$case")
done
each "f32" "${all[@]}" --
each "reference" "${near[@]}" -- --engine reference --tol 1e-12,1e-11
each "reference" "${far[@]}" -- --engine reference --tol 1e-10,1e-9
each "f64" "${all[@]}" -- --dtype f64 --tol 1e-10,1e-9
each "bf16" "${all[@]}" -- --dtype bf16
each "bf16 dot products" "${all[@]}" -- --dtype bf16 --fast
each "f16" "${all[@]}" -- --dtype f16
for case in "${all[@]}"; do
    "$LOCI" run "$case" --threads 2 -o "$work/threads" >/dev/null 2>&1
    for isa in $isas; do
        "$LOCI" run "$case" --isa "$isa" -o "$work/isa" >/dev/null 2>&1
        check "$case, $isa against two threads of the best" cmp "$work/isa" "$work/threads"
        rm -f "$work/isa"
    done
    rm -f "$work/threads"
done
check "a bound can break" broken tests/cases/nope-causal.safetensors --tol 0,0
for case in tests/cases/errors/*.safetensors; do
    check "$case" refused "$case" .
done

# ---- Cases made here: one query and one key of width 2, all numbers zero

u64() {                                  # little-endian, of numbers below 2^16
    printf "\\x$(printf %02x $(($1 % 256)))\\x$(printf %02x $(($1 / 256)))\0\0\0\0\0\0"
}
make() {  # METADATA [AXES]: "key":"value",...; q_pos and k_pos with AXES coordinates
    local meta=$1 axes=${2:-0} header at=24 name
    header="{\"__metadata__\":{\"loci.case\":\"1\",$meta}"
    for name in q k v; do
        header+=",\"$name\":{\"dtype\":\"F32\",\"shape\":[1,1,1,2],\"data_offsets\":[$((at - 24)),$((at - 16))]}"
        at=$((at + 8))
    done
    if [ "$axes" -gt 0 ]; then
        for name in q_pos k_pos; do
            header+=",\"$name\":{\"dtype\":\"F64\",\"shape\":[$axes,1],\"data_offsets\":[$((at - 24)),$((at - 24 + 8 * axes))]}"
            at=$((at + 8 * axes))
        done
    fi
    header+="}"
    { u64 ${#header}; printf %s "$header"; head -c $((at - 24)) /dev/zero; } >"$work/case"
}
make '"loci.encoding":"nope"'
check "a case made here" "$LOCI" run "$work/case"
make '"loci.encoding":"nope","loci.stage":"linear_attention"'
check "linear attention" "$LOCI" run "$work/case"
make '"loci.encoding":"alibi","loci.stage":"linear_attention"'
check "linear attention with scores" refused "$work/case" 'alibi does not support stage linear_attention, which accepts nope or a rotation'
make '"loci.encoding":"nope","loci.stage":"linear_attention","loci.window_left":"3"'
check "linear attention in a window" refused "$work/case" 'linear attention has no windows'
make '"loci.encoding":"nope","loci.stage":"attentoin"'
check "a stage that is not there" refused "$work/case" 'loci.stage must be attention, rotate, embed or linear_attention'
make '"loci.encoding":"rope:pairing=half,scaling=cubic,factor=2"'
check "a scaling rule that is not there" refused "$work/case" "scaling=cubic"
make '"loci.encoding":"rope:pairing=half,scales=linear,factor=2"'
check "an option that is not there" refused "$work/case" "rope: .*'?scales"
make '"loci.encoding":"kerplunk"'
check "an encoding that is not there" refused "$work/case" "kerplunk"
make '"loci.encoding":"nope","loci.mask":"none"'
check "an unknown mask" refused "$work/case" 'loci.mask must be causal or full'
make '"loci.encoding":"nope","loci.tol":"1e-5 1e-4 1e-3"'
check "one tolerance too many" refused "$work/case" 'loci.tol must be two non-negative numbers'
make '"loci.encoding":"nope","loci.sacle":"2"'
check "a misspelt key" refused "$work/case" 'did you mean loci.scale'
for rate in 1 -0.1 nan "" half; do
    make '"loci.encoding":"nope","loci.dropout":"'"$rate"'"'
    check "a rate of '$rate'" refused "$work/case" "loci.dropout must be a number from 0 and below 1, not '$rate'"
done
for name in seed offset; do
    for value in -1 1.5 " 1" "" 18446744073709551616; do
        make '"loci.encoding":"nope","loci.dropout":"0.5","loci.'$name'":"'"$value"'"'
        check "$name '$value'" refused "$work/case" "loci.$name must be a whole number from 0 to 2\^64 - 1, not '$value'"
    done
done
make '"loci.encoding":"nope","loci.dropout":"0.5","loci.seed":"18446744073709551615","loci.offset":"0"'
check "the largest seed" "$LOCI" run "$work/case"
make '"loci.encoding":"rope:pairing=half","loci.stage":"linear_attention","loci.dropout":"0.5"'
check "dropout where no weights are" refused "$work/case" 'loci.dropout belongs to stage attention only'
make '"loci.encoding":"rope:pairing=half"' 1
check "one coordinate where positions do" "$LOCI" run "$work/case"
make '"loci.encoding":"rope:pairing=half"' 2
check "a coordinate too many" refused "$work/case" 'has 2 coordinates per position, but this encoding needs 1'
make '"loci.encoding":"nope"' 1
check "coordinates for an encoding that turns nothing" refused "$work/case" 'must be I64'

harness_end
