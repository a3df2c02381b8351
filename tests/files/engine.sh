#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# examples/engine.c: its tokens are those of transformers on the models of tests/cases/engine
# (scripts/engine-cases), with both caches, with trees and without, for sequences together, in the
# other order and alone; logits have the same bits each time.  Invalid files and prompts are refused
# with one sentence.
. tests/support/harness.sh
engine=$LOCI_BUILD/example_engine
[ -x "$engine" ] || { printf 'engine: left out: this build has no examples, or no loci-io\n0 passed, 0 failed\n'; exit 0; }

answers() {                              # MODEL ARGUMENTS...: of the prompts on the standard input
    timeout 300 "$engine" "$@" >"$work/answers" 2>"$work/line"
}
same() {                                 # MODEL ARGUMENTS...: the recorded tokens
    answers "$@" --new=20 <"$1/prompts" && diff "$work/answers" "$1/tokens"
}
reversed() {
    tac "$1/prompts" | answers "$@" --new=20 && diff "$work/answers" <(tac "$1/tokens")
}
one_by_one() {                           # each prompt in a process; the sums of bits are added up in $total
    local prompt
    total=0
    while IFS= read -r prompt; do
        answers "$@" --new=20 <<<"$prompt" && cat "$work/answers" || return
        total=$(((total + 16#$(sum)) % (1 << 32)))
    done
}
alone() { one_by_one "$@" <"$1/prompts" >"$work/alone" && diff "$work/alone" "$1/tokens"; }
line='^([0-9]+) steps; ([0-9]+) of ([0-9]+) drafts accepted, ([0-9]+) keys shared; sum of logits ([0-9a-f]{8})$'
field() { sed -nE "s/$line/\\$1/p" "$work/line"; }
sum() { field 5; }

models=0
for model in tests/cases/engine/*/; do
    model=${model%/}
    models=$((models + 1))
    for cache in q8_0 f32; do
        name="${model##*/}, $cache"
        check "$name" same "$model" --cache=$cache --tree=0
        steps=$(field 1) bits=$(sum)
        check "$name: no drafts" test "$(field 3)" = 0
        check "$name: it has a sum" test -n "$bits"
        check "$name, trees" same "$model" --cache=$cache
        check "$name, trees: the bits" test "$(sum)" = "$bits"
        check "$name, trees: fewer steps than $steps" test "$(field 1)" -lt "$steps"
        check "$name, trees: some drafts are right" test "$(field 2)" -gt 0
        check "$name, trees: and some wrong" test "$(field 2)" -lt "$(field 3)"
        [ "${model##*/}" != grouped ] || check "$name: prompts share keys" test "$(field 4)" -ge 256
        check "$name, in the other order" reversed "$model" --cache=$cache
        check "$name, in the other order: the bits" test "$(sum)" = "$bits"
        check "$name, alone" alone "$model" --cache=$cache
        check "$name, alone: the bits" test "$(printf %08x "$total")" = "$bits"
    done
    answers "$model" --new=20 <"$model/prompts"
    check "${model##*/}: the caches have different bits" test "$(sum)" != "$bits"
done
check "there are models" test $models -eq 2

# Prompts that begin like others, or are the beginning of others, in slots that had such prompts.
model=tests/cases/engine/grouped
long=$(head -n 3 "$model/prompts" | tr '\n' ' ')
for length in 90 1 300 300 299 64 250 481 65 129 481 128 66; do
    cut -d ' ' -f 1-$length <<<"$long"
    cut -d ' ' -f $((length + 1))-$((length + 40)) <<<"$long 1 2 3"
done | grep . >"$work/prompts"
together() { answers "$model" --new=20 "$@" <"$work/prompts" && diff "$work/answers" "$work/alone"; }
apart() { one_by_one "$model" <"$work/prompts" >"$work/alone"; }
check "prompts like others, alone" apart
check "they have answers" test "$(grep -c . "$work/alone")" -ge 20
for flag in --tree=1 --tree=0; do
    check "prompts like others, $flag" together $flag
    check "prompts like others, $flag: the bits" test "$(sum)" = "$(printf %08x "$total")"
    check "prompts like others, $flag: shared keys" test "$(field 4)" -gt 1000
done

# ---- What is refused: exit code 1, one sentence, no tokens
refused() {                              # PATTERN ARGUMENTS...
    local pattern=$1
    shift
    answers "$@" <"$work/prompts"
    [ $? -eq 1 ] && [ ! -s "$work/answers" ] && [ "$(wc -l <"$work/line")" -eq 1 ] && grep -Eq "^engine: .*$pattern" "$work/line"
}
prompts() { printf "$@" >"$work/prompts"; }
good=tests/cases/engine/tied
bad=$work/bad
config() {                               # SED-SCRIPT: of the config
    rm -rf "$bad"
    mkdir "$bad"
    sed -E "$1" "$good/config.json" >"$bad/config.json"
    cp "$good/model.safetensors" "$bad"
}
prompts '1 2\n'
for arguments in '' "$good --cache=q4" "$good --tree=2" "$good --new=0" "$good --new=4x" "$good more"; do
    # shellcheck disable=SC2086
    check "arguments '$arguments'" refused 'the arguments are FOLDER' $arguments
done
check "no folder" refused 'none/config.json' "$work/none"
config 's/"llama"/"mistral"/'
check "another model" refused 'model_type must be llama' "$bad"
config 's/"silu"/"gelu"/'
check "another activation" refused 'hidden_act must be silu' "$bad"
config 's/"vocab_size"/"size"/'
check "no size" refused 'vocab_size' "$bad"
config 's/("intermediate_size": )48/\147/'
check "another size" refused 'mlp.gate_proj.weight, 47 by 32' "$bad"
config 's/("hidden_size": )32/\10/'
check "a size of 0" refused 'hidden_size' "$bad"
config 's/("hidden_size": )32/\1-32/'
check "a negative size" refused 'hidden_size' "$bad"
config 's/true/false/'
check "a tensor too few" refused 'must have 12 tensors for 1 layers' "$bad"
config ''
sed -i 's/"F32"/"F64"/' "$bad/model.safetensors"
check "numbers of 64 bits" refused 'in F32 or BF16' "$bad"
for bytes in 0 7 8 100; do
    head -c $bytes "$good/model.safetensors" >"$bad/model.safetensors"
    check "$bytes bytes of the weights" refused 'must be a safetensors file' "$bad"
done
head -c -1 "$good/model.safetensors" >"$bad/model.safetensors"
check "a byte too few" refused 'ends within' "$bad"
rm "$bad/model.safetensors"
check "no weights" refused 'must be a safetensors file' "$bad"
for prompt in 64 -1 99999999999 x 1,2 '1 2 x'; do
    prompts '3 4\n%s\n' "$prompt"
    check "prompt '$prompt'" refused 'prompt 2 must be fewer than [0-9]+ tokens from 0 to 63' "$good"
done
prompts '%*s' 140000 ''
sed -i 's/  /1 /g' "$work/prompts"
check "too many tokens" refused 'prompt 1 must be fewer than' "$good"
full() { ! "$engine" "$good" <"$good/prompts" >/dev/full 2>"$work/line" && grep -q 'output cannot be written' "$work/line"; }
[ ! -w /dev/full ] || check "a full disk" full

# ---- Forms of prompts
plain() { answers "$good" --new=4 && diff "$work/answers" "$work/four"; }
cut -d ' ' -f 1-4 "$good/tokens" >"$work/four"
check "four tokens" plain <"$good/prompts"
check "lines of DOS" plain < <(sed 's/$/\r/' "$good/prompts")
check "more blanks, and empty lines" plain < <(sed 's/ /  /g; s/$/ \n/' "$good/prompts")
check "no end of the last line" plain < <(printf %s "$(cat "$good/prompts")")
check "no prompts" answers "$good" </dev/null
check "no answers then" test ! -s "$work/answers"
harness_end
