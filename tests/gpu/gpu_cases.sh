#!/bin/bash
# SPDX-License-Identifier: MIT
# The golden cases on a device: within their bounds, and with the bytes of the CPU.  What a device
# refuses is one sentence.  $LOCI_DEVICES names other devices than host: "opencl:0 cuda:0".
[ ! -w /dev/shm ] || export TMPDIR=/dev/shm
. tests/support/harness.sh

if "$LOCI" info | grep -q 'this build has no GPU support'; then
    check "a build without devices says so" refused 'this build has no GPU support' run tests/cases/nope-causal.safetensors --device host
    harness_end
    exit
fi
devices=${LOCI_DEVICES:-host}

sentence() {                             # one line on stderr, of what a GPU does not do; nothing else
    [ ! -s "$work/out" ] && [ "$(wc -l <"$work/err")" -eq 1 ] && grep -Eq '^loci: .*(GPU|shared memory)' "$work/err" && [ ! -e "$work/there" ]
}
ran=0 left_out=0
declare -A by
try() {                                  # DEVICE CASE OPTION...
    local device=$1 case=$2 name
    shift 2
    rm -f "$work/there"
    "$LOCI" run "$case" --device "$device" -o "$work/there" "$@" >"$work/out" 2>"$work/err"
    local code=$?
    if [ $code -eq 2 ]; then
        check "$case on $device, $*: a sentence" sentence
        left_out=$((left_out + 1))
        return
    fi
    check "$case on $device, $*: its bounds" test $code -eq 0
    "$LOCI" run "$case" -o "$work/here" "$@" >/dev/null 2>&1
    check "$case on $device, $*: the bytes of the CPU" cmp "$work/here" "$work/there"
    ran=$((ran + 1))
    name=$(basename "$case")
    by[${name%%[-.]*}]=$((${by[${name%%[-.]*}]:-0} + 1))
}
for device in $devices; do
    ran=0 left_out=0 by=()
    for case in tests/cases/*.safetensors; do
        try "$device" "$case"
        [[ $case != */@(nope|alibi|t5|rope)-* ]] || for dtype in bf16 f16; do try "$device" "$case" --dtype $dtype; done
    done
    for name in nope alibi t5 rope; do
        check "$device runs a case of $name" test "${by[$name]:-0}" -gt 0
    done
    echo "$device: $ran cases have the bytes of the CPU, $left_out are refused"
done

harness_end
