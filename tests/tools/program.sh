#!/bin/bash
# SPDX-License-Identifier: MIT
# The program's surface: help, exit codes, one sentence per error, machine-readable output.
. tests/support/harness.sh

refused() {  # exit code 2, nothing on stdout, one line on stderr that starts with "loci: "
    "$LOCI" "$@" >"$work/out" 2>"$work/err"
    [ $? -eq 2 ] && [ ! -s "$work/out" ] && [ "$(wc -l <"$work/err")" -eq 1 ] && grep -q '^loci: ' "$work/err"
}
prints() {                               # PATTERN ARGUMENTS...: exit code 0, and a line that matches
    local pattern=$1
    shift
    "$LOCI" "$@" >"$work/out" 2>"$work/err" && [ ! -s "$work/err" ] && grep -Eq -- "$pattern" "$work/out"
}
fits() {  # COMMAND...: it succeeds, and its lines fit into 100 columns
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
check "list NAME" prints 'required  .*half' list rope
check "list --json" prints '^\{"name":"nope",' list --json
for command in '' race list show run bench rope check convert info man completion version; do
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
check "values in keys of a whole pass" refused bench --values-in-keys 32
check "more values than channels" refused bench --pass decode --values-in-keys 96
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

check "already converted" refused convert --to half
check "a table" prints '^cos, sin  \[7,4\]' convert --table split -e rope:pairing=half --dim 8 --rows 7 -n

printf '\x02\0\0\0\0\0\0\0{}' >"$work/empty"
check "an empty file of tensors" refused run "$work/empty" -o "$work/result"
check "nothing is left behind" test -z "$(compgen -G "$work/result*")"
# On a shared machine `loci bench` may count no round: then figures are null, and a word in the
# table.
figure() {  # FIELD: the object has it, a number if any round counts and else null
    if grep -q '"counted":0,' "$work/out"; then grep -Eq "\"$1\":null[,}]" "$work/out"
    else grep -Eq "\"$1\":[0-9.e+-]+[,}]" "$work/out"; fi
}
measured() {  # FIELD ARGUMENTS...: measures, and the object has the field
    "$LOCI" bench "${@:2}" --json >"$work/out" 2>"$work/err" && [ ! -s "$work/err" ] &&
        grep -Eq '"counted":[0-9]+,"made":[1-9][0-9]*,"best_probe":[0-9.]+' "$work/out" && figure "$1"
}
# Measuring waits for quiet moments, which are rare beside other tests, so problems are small.
row='^nope +32 +([0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+|busy +- +- +-) +[0-9.]+ KiB +[0-9]+ of [0-9]+$'
check "bench" prints "$row" bench nope --len 32 --heads 1 --repeat 5
check "bench says of which machine" prints ', peak [0-9.]+ GFLOP/s at best; quiet: rounds whose probes are within 4 %$' bench nope --len 32 --repeat 5
check "bench fits into 100 columns" narrow bench nope --len 32 --repeat 5
check "bench --json" measured ratio_to_nope nope --len 32 --heads 1
check "bench of latents" measured percent_of_peak nope --pass decode --dim 48 --values-in-keys 32 --heads 4 --kv-heads 1 --cache --len 64
# Calls of 600 keys and 256 channels take long under sanitizers.
if [ -z "${LOCI_SANITIZE:-}" ]; then
    check "bench chooses heads by the length" prints 'heads 1/1,' bench nope --len 32,600 --dim 256 --repeat 5
    check "bench takes the heads that were asked for" measured percent_of_peak nope --len 600 --dim 256 --heads 3 --repeat 5
    check "and says so" grep -q '"heads":3,"kv_heads":3,' "$work/out"
    check "every thread has a head" measured percent_of_peak nope --len 600 --dim 256 --threads 2 --repeat 5
    check "and that is two" grep -q '"heads":2,"kv_heads":2,' "$work/out"
fi
check "bench decode" measured percent_of_stream nope --pass decode --len 1024 --heads 8 --repeat 5
check "bench rotate" measured percent_of_stream rope:pairing=half --pass rotate --len 100 --repeat 5
check "and there is no ratio" grep -q '"ratio_to_nope":null' "$work/out"
check "bench prefill-chunk" measured percent_of_peak t5 --pass prefill-chunk --rows 16 --len 200 --heads 2 --repeat 5
check "and its rows" grep -q '"pass":"prefill-chunk".*"q_len":16,"k_len":200,' "$work/out"
check "bench names the rows" prints 'prefill-chunk of 16 rows with a cache' bench nope --pass prefill-chunk --rows 16 --len 48 --heads 2 --repeat 5 --cache
# Other tests cover the number types under sanitizers.
dtypes=(f32 bf16 f16)
[ -z "${LOCI_SANITIZE:-}" ] || dtypes=(bf16)
for dtype in "${dtypes[@]}"; do
    check "bench decode with a cache, $dtype" measured percent_of_stream rope:pairing=half+fox --pass decode --len 600 --heads 2 --repeat 5 --cache --threads 2 --dtype $dtype
    check "and it is $dtype" grep -q '"dtype":"'$dtype'"' "$work/out"
done
texts=(nope tape cope:gates=given sinusoidal)
[ -z "${LOCI_SANITIZE:-}" ] || texts=(tape)
for text in "${texts[@]}"; do
    check "bench $text with a cache" prints '"q_len":3,' bench "$text" --pass prefill-chunk --rows 3 --cache --len 40 --heads 2 --batch 2 --repeat 5 --json
done

# Two builds, interleaved.  Here both are the same.
against='^t5 +40 +([0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+-[0-9.]+|busy +- +- +- +-) +[0-9]+ of [0-9]+$'
check "bench --against" prints "$against" bench t5 --len 40 --repeat 5 --against "$LOCI"
check "bench --against says whom" prints "^against $LOCI \(loci [0-9.]+\): x is our time to its time" bench t5 --len 40 --repeat 5 --against "$LOCI"
check "bench --against fits into 100 columns" bash -c '"$0" bench nope --len 40 --repeat 5 --against "$0" >"$1" && ! grep -v ^against "$1" | grep -Eq ".{101}"' "$LOCI" "$work/out"
check "bench --against --json" measured seconds t5 --len 40 --repeat 5 --against "$LOCI"
for field in against_seconds ratio ratio_low ratio_high; do
    check "and its $field" figure $field
done
check "and the other fields" grep -q '"ratio_to_nope":null.*"against":".*","against_version":"[0-9.]*"' "$work/out"
passes=(backward decode rotate)
[ -z "${LOCI_SANITIZE:-}" ] || passes=(rotate)
for pass in "${passes[@]}"; do
    check "bench --against, $pass" measured ratio rope:pairing=half --pass $pass --len 100 --repeat 5 --against "$LOCI" --threads 2
done
program() { printf '#!%s\n%s\n' "$BASH" "$2" >"$work/$1" && chmod +x "$work/$1"; }
program noted 'echo "$*" >"${0%/*}/asked"; exec "$LOCI" "$@"'
isa=$("$LOCI" info --json | sed -E 's/.*"isa":"([^"]*)".*/\1/')
if [ -z "${LOCI_SANITIZE:-}" ]; then
    check "bench --against of a cache" measured ratio t5+rope:pairing=half --pass prefill-chunk --rows 7 --cache --lasting --batch 2 --heads 4 --kv-heads 2 --dtype bf16 --fast --len 70 --repeat 5 --against "$work/noted"
    check "the other one has the same problem" grep -Fxq -- "bench t5+rope:pairing=half --serve --pass prefill-chunk --dtype bf16 --isa $isa --len 70 --dim 64 --heads 4 --kv-heads 2 --batch 2 --threads 1 --rows 7 --cache --fast --lasting" "$work/asked"
    check "bench --against with a full mask" measured ratio nope --full --dim 256 --len 600 --repeat 5 --against "$work/noted"
    check "and what we chose" grep -Fxq -- "bench nope --serve --pass forward --dtype f32 --isa $isa --len 600 --dim 256 --heads 1 --kv-heads 1 --batch 1 --threads 1 --full" "$work/asked"
fi

# One attention over ranks: the sent bytes do not depend on speed.
ranks() { "$LOCI" bench "$@" --parallel zigzag --ranks 3 --len 700 --heads 2 --repeat 5 >"$work/out" 2>"$work/err" && [ ! -s "$work/err" ]; }
check "bench --parallel" ranks fox
check "and the bits are those of one process" grep -Fq 'bits: the same;' "$work/out"
check "a rank has what its rows see" grep -Eq '^received ([0-9.]+) MB, by the model \1; memory [0-9.]+ MB, by the model [0-9.]+$' "$work/out"
check "bench --parallel fits into 100 columns" bash -c '! grep -Eq ".{112}" "$0"' "$work/out"
check "bench --parallel --json" ranks t5 --json
check "an object for each rank, and one for all" test "$(grep -c '"form":"streamed","ranks":3,.*"same_bits":true' "$work/out")" -eq 4
back() { "$LOCI" bench alibi --pass backward --parallel zigzag --ranks 3 --len "$1" --heads 1 --repeat 5 --json >"$work/out" 2>"$work/err"; }
# tests/distributed/parallel_backward.c runs these sums under sanitizers.
if [ -z "${LOCI_SANITIZE:-}" ]; then
    check "bench --parallel, gradients" back 6144
    check "with the bits of one process" test "$(grep -c '"pass":"backward",.*"same_bits":true' "$work/out")" -eq 4
fi
for wrong in '--parallel ring --ranks 2' '--parallel zigzag,both --ranks 2' '--parallel zigzag' '--ranks 2' '--parallel zigzag --ranks 0' '--parallel zigzag --ranks 2 --pass decode' '--pass decode --kv-dtype q8_0 --dim 16'; do
    check "bench t5 $wrong" refused bench t5 $wrong
done
check "gradients want shares of 1024 rows" bash -c '! "$0" bench alibi --pass backward --parallel zigzag --ranks 3 --len 700 2>&1 | grep -Fvq "must be a multiple of 1024"' "$LOCI"
check "embeddings are no matter of ranks" refused bench sinusoidal --parallel zigzag --ranks 2

serves() { printf '%s\n' "$@" | "$LOCI" bench nope --len 40 --serve >"$work/out" 2>"$work/err"; }
serves_not() { ! serves "$@" && grep -Fq 'loci: bench: --serve reads a number of steps from 1 to 1000000' "$work/err"; }
check "bench --serve" serves 3 1
check "it says when it is ready" grep -Eq '^\{"serve":1,"loci":"[0-9.]+","steps":[0-9]+,"workspace_bytes":[0-9]+\}$' "$work/out"
check "and answers each line" test "$(grep -Ec '^\{"seconds":[0-9.e-]+,"before":[0-9.e+]+,"after":[0-9.e+]+,"flops":[0-9.e+]+,"taken":[0-9.e-]+\}$' "$work/out")" -eq 2
for line in 0 -1 x 1000001 '' '3 '; do
    check "bench --serve, '$line'" serves_not 3 "$line"
done
check "what serves has one problem" refused bench nope t5 --serve
check "of one length" refused bench nope --len 3,4 --serve
check "and asks nobody" refused bench nope --serve --against "$LOCI"

wrong() {                                # WORDS PROGRAM: fails with these words
    refused bench nope --len 32 --repeat 5 --against "$2" && grep -Fq -- "loci: bench: --against $2: $1" "$work/err"
}
check "against nothing" wrong 'cannot be started: No such file' "$work/nothing"
check "against a folder" wrong 'cannot be started' "$work"
program silent 'exit 0'
check "against a program that says nothing" wrong "it does not answer as 'loci bench --serve' does" "$work/silent"
program talks 'while echo and so on; do :; done'
check "against one that says something else" wrong 'it does not answer' "$work/talks"
program hangs 'echo no; exec sleep 1000'
check "and one that does not end" wrong 'it does not answer' "$work/hangs"
program before "echo \"loci: bench: unknown option '--serve'; did you mean --rows? ('loci bench --help' lists all)\" >&2; exit 2"
check "against a loci before this" wrong "it is an older loci, without 'bench --serve'" "$work/before"
program refuses 'echo "loci: unknown encoding" >&2; echo "and more" >&2; exit 2'
check "against one that cannot do it" wrong 'unknown encoding' "$work/refuses"
program fails 'echo "{\"serve\":1,\"loci\":\"9\",\"steps\":1,\"workspace_bytes\":0}"; read -r line; echo "loci: it broke" >&2; exit 2'
check "against one that breaks later" wrong 'it broke' "$work/fails"
program odd 'echo "{\"serve\":2,\"loci\":\"9\",\"steps\":1,\"workspace_bytes\":0}"; read -r line'
check "against one that serves in another way" wrong 'it does not answer' "$work/odd"
check "the fault may be ours" refused bench rotary --against "$LOCI"
check "and then it is said so" grep -q '^loci: unknown encoding' "$work/err"
check "race" prints '^nope ' race nope --len 64
honest() {  # figures without an undisturbed try are marked and explained
    local out
    out=$("$LOCI" race nope --len 64) || return 1
    ! grep -Eq '[0-9]\?' <<<"$out" || grep -q '^busy: ' <<<"$out"
}
check "race says so where the machine was busy" honest
check "race fits into 100 columns" narrow race nope --len 64
drawn() { "$LOCI" race nope t5 --len 64 --svg "$work/race.svg" --html "$work/race.html" >/dev/null && grep -q '</svg>' "$work/race.svg" && grep -q '<table>' "$work/race.html"; }
check "race draws what it found" drawn
# The same with another CPU name, if the system permits hiding the real one.
hidden() {                               # FILE COMMAND...: FILE replaces /proc/cpuinfo
    unshare --user --map-root-user --mount bash -c 'mount --bind "$1" /proc/cpuinfo && "${@:2}"' hidden "$@"
}
printf 'model name\t: %0200d\n' 0 >"$work/long"
if hidden "$work/long" true 2>/dev/null; then
    for file in "$work/long" /dev/null; do
        check "race fits, its processor read from $(basename "$file")" fits hidden "$file" "$LOCI" race nope --len 64
    done
fi

harness_end
