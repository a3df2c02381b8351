#!/bin/bash
# SPDX-License-Identifier: MIT
# The program's surface: help, exit codes, one sentence per error, machine-readable output.
. tests/harness.sh

refused() {                              # exit code 2, nothing on stdout, one line on stderr that starts with "loci: "
    "$LOCI" "$@" >"$work/out" 2>"$work/err"
    [ $? -eq 2 ] && [ ! -s "$work/out" ] && [ "$(wc -l <"$work/err")" -eq 1 ] && grep -q '^loci: ' "$work/err"
}
prints() {                               # PATTERN ARGUMENTS...: exit code 0, and a line that matches
    local pattern=$1
    shift
    "$LOCI" "$@" >"$work/out" 2>"$work/err" && [ ! -s "$work/err" ] && grep -Eq -- "$pattern" "$work/out"
}
fits() {                                 # COMMAND...: it succeeds, and its lines fit into 100 columns
    "$@" >"$work/out" && [ -s "$work/out" ] && ! grep -Eq '.{101}' "$work/out"
}
narrow() { fits "$LOCI" "$@"; }

check "help" prints 'COMMANDS' --help
check "version" prints '^loci [0-9]+\.[0-9]+\.[0-9]+$' version
check "--version" prints '^loci ' --version
check "info" prints 'isas' info
check "info tells of fast" prints '^fast ' info
check "info --json" prints '^\{"version":.*"isa":".*\}$' info --json
check "list" prints '^nope ' list
check "list NAME" prints 'must be given' list rope
check "list --json" prints '^\{"name":"nope",' list --json
for command in '' race list run bench rope check convert info version; do
    check "help of '$command'" prints 'EXIT CODES' $command --help
    check "help of '$command' fits into 100 columns" narrow $command --help
done
check "list fits into 100 columns" narrow list

check "no command" refused
check "nothing to check" refused check
check "a file that is not there" refused check "$work/none"
check "a tolerance below zero" refused check file --tol -1
check "unknown command" refused frobnicate
check "unknown option" refused bench --lem 5
check "an option's value is missing" refused bench --len
check "an option takes no value" refused bench --json=yes
check "an argument too many" refused info now
check "a number out of range" refused bench --repeat 2
check "rows without a chunk" refused bench --rows 16
check "more rows than tokens" refused bench --pass prefill-chunk --rows 16 --len 100,15
check "a cache without new tokens" refused bench --cache
check "no number" refused race --len many
check "a word that is none of the list" refused run case --dtype f8
check "bf16 dot products of other numbers" refused bench --fast
check "bf16 dot products of other numbers, run" refused run tests/cases/nope-causal.safetensors --fast --dtype f16
check "an unknown instruction set" refused bench --isa sse9
check "an unknown encoding" refused bench rotary
check "an unknown encoding to list" refused list rotary
check "one bound of two" refused run case --tol 1e-5
check "a negative bound" refused run case --tol 1e-5,-1
check "no case" refused run
check "no such file" refused run "$work/none"
check "a folder is no case" refused run "$work"
check "two cases, one output" refused run a b -o c
check "the reference has one dtype" refused run case --engine reference --dtype f32
refused bench --lem 5
check "a hint" grep -q 'did you mean --len' "$work/err"

check "nothing to convert" refused convert --to half
check "a table" prints '^cos, sin  \[7,4\]' convert --table split -e rope:pairing=half --dim 8 --rows 7 -n

printf '\x02\0\0\0\0\0\0\0{}' >"$work/empty"
check "an empty file of tensors" refused run "$work/empty" -o "$work/result"
check "nothing is left behind" test -z "$(compgen -G "$work/result*")"
check "bench" prints '^nope ' bench nope --len 32 --heads 1 --repeat 5
check "bench --json" prints '"ratio_to_nope":[0-9.]+' bench nope --len 32 --heads 1 --json
check "bench decode" prints '"percent_of_stream":[0-9.]+' bench nope --pass decode --len 4096 --heads 8 --repeat 5 --json
check "bench prefill-chunk" prints '"pass":"prefill-chunk".*"q_len":16,"k_len":200,.*"percent_of_peak":[0-9.]+' bench t5 --pass prefill-chunk --rows 16 --len 200 --heads 2 --repeat 5 --json
check "bench names the rows" prints 'prefill-chunk of 16 rows with a cache' bench nope --pass prefill-chunk --rows 16 --len 200 --heads 2 --repeat 5 --cache
for dtype in f32 bf16 f16; do
    check "bench decode with a cache, $dtype" prints '"dtype":"'$dtype'".*"percent_of_stream":[0-9.]+' bench rope:pairing=half+fox --pass decode --len 4096 --heads 2 --repeat 5 --json --cache --threads 2 --dtype $dtype
done
for text in nope tape cope:gates=given sinusoidal; do
    check "bench $text with a cache" prints '"q_len":3,' bench "$text" --pass prefill-chunk --rows 3 --cache --len 130 --heads 2 --batch 2 --repeat 5 --json
done
check "race" prints '^nope ' race nope --len 64
check "race fits into 100 columns" narrow race nope --len 64
# The same where the processor has another name, if the system lets us hide its own.
hidden() {                               # FILE COMMAND...: FILE stands for /proc/cpuinfo
    unshare --user --map-root-user --mount bash -c 'mount --bind "$1" /proc/cpuinfo && "${@:2}"' hidden "$@"
}
printf 'model name\t: %0200d\n' 0 >"$work/long"
if hidden "$work/long" true 2>/dev/null; then
    for file in "$work/long" /dev/null; do
        check "race fits, its processor read from $(basename "$file")" fits hidden "$file" "$LOCI" race nope --len 64
    done
fi

harness_end
