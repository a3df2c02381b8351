#!/bin/bash
# SPDX-License-Identifier: MIT
# A folder of runs: a killed run continues with the same bits, a full disk and other obstacles give
# one sentence and lose nothing, several processes share the work, and a damaged file is reported
# and never trusted.
. tests/support/harness.sh

under=(lab)
lab() { loci "$@"; }
hashes() { grep -H '"weights_sha256"' "$1"/runs/*/result.json | sed -E 's/.*runs.([0-9a-f]*).*: "([0-9a-f]*)".*/\1 \2/'; }
alike() {  # DIR DIR: the same files, byte for byte except for time and memory that threads share
    local file own='"(seconds_per_step|peak_bytes)"'
    [ -n "$(hashes "$1")" ] && [ "$(cd "$1/runs" && find . | sort)" = "$(cd "$2/runs" && find . | sort)" ] || return 1
    for file in $(cd "$1/runs" && find . -type f); do
        cmp <(grep -Eav "$own" "$1/runs/$file") <(grep -Eav "$own" "$2/runs/$file") || return 1
    done
}
tiny=(--tasks recall --size XS --length 16 --set layers=1,dim=16,keys=4,values=4,tokens=64,variants=0)
steps=300 kills=10
[ -z "${LOCI_SANITIZE:-}" ] || steps=40 kills=4
state() { ls "$1"/runs/*/state.safetensors 2>/dev/null; }
wait_for() {  # PID COMMAND...: waits until it is true, or the process has ended
    local pid=$1
    shift
    until "$@" >/dev/null 2>&1; do kill -0 "$pid" 2>/dev/null || return 1; sleep 0.01; done
}

# ---- Killed at any time
three=(run --arms nope,rope+fox,t5 "${tiny[@]}" --steps $steps -q)
check "runs that nobody disturbs" says '^3 of 3 runs are done' "${three[@]}" -t 2 -o "$work/calm"
: >"$work/noise"
for ((i = 0; i < kills; i++)); do
    "$LOCI" lab "${three[@]}" -t 2 --checkpoint 0 -o "$work/killed" >/dev/null 2>>"$work/noise" &
    pid=$!
    sleep "0.$(printf %03d $((RANDOM % 350)))"
    kill -9 $pid
    wait $pid 2>/dev/null
    check "every result is whole" bash -c 'for f in "$1"/runs/*/result.json; do [ ! -e "$f" ] || tail -n 1 "$f" | grep -q "}$" || exit 1; done' - "$work/killed"
done
check "killed, and gone on" says '^3 of 3 runs are done' "${three[@]}" -o "$work/killed"
check "nothing was damaged" test ! -s "$work/noise"
check "the same files in the end" alike "$work/calm" "$work/killed"

# ---- Several learning rates: seed 0 tries all, the other seeds get the one that validation chooses
rates=(run --arms nope,t5 "${tiny[@]}" --steps 20 --seeds 3 --lr-grid 1e-4,3e-3 -q)
field() { grep -Eh "\"$2\": " "$1"/runs/*/config.json | grep -c "\"$2\": $3"; }
both() { [ "$(field "$1" rate 0.003)" -eq 6 ] && [ "$(field "$1" seed 0)" -eq 4 ] && [ "$(ls "$1/runs" | wc -l)" -eq 8 ]; }
check "rates are tried by one seed" says '^8 of 8 runs are done' "${rates[@]}" -o "$work/rates"
check "and the others have the better one" both "$work/rates"
check "watch knows all of them" says '^8 of 8 runs, 100 %' watch "$work/rates" --once
check "a part of the runs" says '^[0-4] of 4 runs are done' "${rates[@]}" --shard 0/2 -o "$work/parts"
check "and the other part" says 'runs are done' "${rates[@]}" --shard 1/2 -o "$work/parts"
check "and what waited for it" says '^4 of 4 runs are done' "${rates[@]}" --shard 0/2 -o "$work/parts"
check "all of them, with the same bits" test "$(hashes "$work/rates")" = "$(hashes "$work/parts")"

# ---- Obstacles
one=(run --arms nope "${tiny[@]}" --steps $steps -q) two=(run --arms t5 "${tiny[@]}" --steps $steps -q)
check "one run" lab "${one[@]}" -o "$work/one"
sum() { (cd "$1" && find . -type f | sort | xargs sha256sum); }
kept=$(sum "$work/one/runs")
: >"$work/file"
check "a file in the place of the folder" refused "$work/file: cannot make this folder" "${one[@]}" -o "$work/file"
check "below a file" refused 'cannot make this folder' "${one[@]}" -o "$work/file/lab"
mkdir "$work/runs"
: >"$work/runs/runs"
check "a file in the place of runs" refused 'runs/runs: cannot make this folder' "${one[@]}" -o "$work/runs"
limited() { (trap '' XFSZ; ulimit -f 4; refused "$@"); }
check "no file may be large" limited 'cannot write' "${two[@]}" -o "$work/one"
holds() { [ -z "$(sort <<<"$kept" | comm -23 - <(sum "$1" | sort))" ] && [ -z "$(find "$1" -name '*.loci-tmp' -o -name claim)" ]; }
check "nothing is lost, nothing half written" holds "$work/one/runs"

own() { unshare --user --map-root-user --mount "$BASH" -c "$1" "$0" "$2"; }
mkdir "$work/disk"
if own 'mount -t tmpfs -o size=600k none "$1"' "$work/disk" 2>/dev/null; then
    full() {
        local disk=$1
        lab "${one[@]}" -o "$disk/lab" || return 1
        kept=$(sum "$disk/lab/runs")
        cat /dev/zero >"$disk/zeros" 2>/dev/null
        refused 'No space left|cannot' "${two[@]}" -o "$disk/lab" && holds "$disk/lab/runs" || return 1
        truncate -s -12K "$disk/zeros"  # enough for a claim and config.json, too little for weights
        refused 'No space left' "${two[@]}" -o "$disk/lab" && holds "$disk/lab/runs" || return 1
        rm "$disk/zeros"
        says '^1 of 1 runs are done' "${two[@]}" -o "$disk/lab" && holds "$disk/lab/runs"
    }
    closed() {
        local disk=$1
        kept=$(sum "$work/one/runs")
        mount --bind "$work/one" "$disk" && mount -o remount,ro,bind "$disk" || return 1
        refused 'Read-only' "${two[@]}" -o "$disk" && holds "$work/one/runs"
    }
    inside() { own "$(declare -f loci lab refused says sum holds "$1"; declare -p one two work LOCI under); $2 && $1 \"\$1\"" "$work/disk"; }
    check "a full disk" inside full 'mount -t tmpfs -o size=600k none "$1"'
    check "a disk that is only read" inside closed true
else
    echo "lab_folder: nothing can be mounted here: full and read-only disks are left out"
fi

# ---- Several processes
eight=(run --arms nope,alibi,rope,fox --seeds 2 "${tiny[@]}" --steps $steps -q -t 1)
check "one process" lab "${eight[@]}" -o "$work/single"
for shard in 0/3 1/3 2/3; do
    check "shard $shard" says '^[23] of [23] runs are done' "${eight[@]}" --shard $shard -o "$work/shards"
done
check "three shards make the same files" alike "$work/single" "$work/shards"
"$LOCI" lab "${eight[@]}" --checkpoint 0 -o "$work/pair" >"$work/first" 2>&1 &
first=$!
wait_for $first compgen -G "$work/pair/runs/*/claim"
"$LOCI" lab "${eight[@]}" --checkpoint 0 -o "$work/pair" >"$work/second" 2>&1 &
second=$!
: >"$work/claims"
while kill -0 $first 2>/dev/null || kill -0 $second 2>/dev/null; do
    for claim in "$work"/pair/runs/*/claim; do
        read -r host pid rest 2>/dev/null <"$claim" && echo "$(basename "${claim%/claim}") $pid" >>"$work/claims"
    done 2>/dev/null
    for result in "$work"/pair/runs/*/result.json; do
        stat -c '%n %i' "$result" >>"$work/results"
    done 2>/dev/null
    sleep 0.01
done
wait $first && wait $second
check "two processes on one folder" test $? -eq 0
check "end without complaints" bash -c '! grep -q loci: "$1" "$2"' - "$work/first" "$work/second"
check "both have worked" bash -c 'grep -q " $2\$" "$1" && grep -q " $3\$" "$1"' - "$work/claims" $first $second
check "no run twice" test -z "$(sort -u "$work/claims" | cut -d' ' -f1 | uniq -d)"
check "no result twice" test -z "$(sort -u "$work/results" | cut -d' ' -f1 | uniq -d)"
check "and what they made is the same" alike "$work/single" "$work/pair"

# ---- Claims
id=$(basename "$(dirname "$(grep -l '"arm": "nope"' "$work"/one/runs/*/result.json)")")
claimed() {                              # TEXT [AGE]: an unfinished run with this claim
    rm -rf "$work/c" && mkdir -p "$work/c/runs/$id" && printf '%-191s\n' "$1" >"$work/c/runs/$id/claim"
    touch -d "${2:-0} seconds ago" "$work/c/runs/$id/claim"
}
taken() { claimed "$@" && says '^1 of 1 runs are done' "${one[@]}" -o "$work/c" && [ ! -e "$work/c/runs/$id/claim" ]; }
left() {
    claimed "$@" && cp "$work/c/runs/$id/claim" "$work/claim" && says '^0 of 1 runs are done, 1 are running in other processes$' "${one[@]}" -o "$work/c" &&
        cmp "$work/claim" "$work/c/runs/$id/claim" && [ "$(ls "$work/c/runs/$id")" = claim ]
}
here=$(uname -n)
sleep 0 &
dead=$!
wait $dead
check "of a dead process" taken "$here $dead 5 $steps 1.25"
check "of a living one" left "$here $$ 5 $steps 1.25"
check "of a living one that has not moved for long" taken "$here $$ 5 $steps 1.25" 700
check "of another machine" left "elsewhere $dead 5 $steps 1.25"
check "of another machine, long ago" taken "elsewhere $dead 5 $steps 1.25" 700
check "that says nothing" left ''
check "that says nothing, long ago" taken '' 700
check "of nonsense" left 'x 99999999999999999999 -5 nan nan'
check "and watch lives with it" says '^0 of 1 runs, 0 %' watch "$work/c" --once
check "of nonsense, long ago" taken 'x y z' 700
ended() {                                # killed between its result and the end of its claim
    rm -rf "$work/c" && cp -a "$work/one" "$work/c" && printf '%-191s\n' "$here $dead 5 $steps 1.25" >"$work/c/runs/$id/claim" &&
        says '^1 of 1 runs are done' "${one[@]}" -o "$work/c" && [ ! -e "$work/c/runs/$id/claim" ]
}
check "of a dead process, on a run that is done" ended
claimed '' && rm "$work/c/runs/$id/claim"
for kind in mkdir mkfifo 'ln -s /dev/null'; do
    rm -rf "$work/c/runs/$id/claim"
    $kind "$work/c/runs/$id/claim"
    check "that is none: $kind" refused 'claim: this is not a regular file; remove it' "${one[@]}" -o "$work/c"
done

# ---- Damaged files
damage() {                               # KIND FILE
    local size
    case $1 in
        truncated) size=$(stat -c %s "$2") && truncate -s $((size / 2)) "$2" ;;
        empty) : >"$2" ;;
        garbage) head -c 3000 /dev/zero | tr '\0' 'x' >"$2" ;;
        changed) size=$(stat -c %s "$2") && printf '\377' | dd of="$2" bs=1 seek=$((size - 999)) conv=notrunc status=none ;;
        foreign) printf '{"format": "of something else", "name": "value"}\n' >"$2" ;;
        folder) rm -f "$2" && mkdir "$2" ;;
        fifo) rm -f "$2" && mkfifo "$2" ;;
    esac
}
"$LOCI" lab "${one[@]}" --checkpoint 0 -o "$work/half" >/dev/null 2>&1 &
pid=$!
wait_for $pid state "$work/half"
kill -INT $pid
wait $pid
check "a run that was stopped has a checkpoint" state "$work/half"
check "and goes on" bash -c 'cp -a "$1/half" "$1/on"' - "$work"
check "to the end" says '^1 of 1 runs are done' "${one[@]}" -o "$work/on"
restarted() {  # FILE KIND: it is named in one line, and the run is repeated
    lab "${one[@]}" -o "$work/d" && [ "$(wc -l <"$work/err")" -eq 1 ] && grep -Eq "^loci: .*$1.* left aside" "$work/err" &&
        [ "$(hashes "$work/d")" = "$(hashes "$work/on")" ]
}
for kind in truncated empty garbage changed foreign folder fifo; do
    rm -rf "$work/d" && cp -a "$work/half" "$work/d" && damage $kind "$work/d/runs/$id/state.safetensors"
    check "a checkpoint: $kind" restarted state.safetensors
done
for kind in truncated empty garbage foreign; do
    rm -rf "$work/d" && cp -a "$work/on" "$work/d" && damage $kind "$work/d/runs/$id/result.json"
    check "a result, in a report: $kind" bash -c '! timeout 60 "$LOCI" lab report "$1" >/dev/null 2>"$2" && grep -q "result.json is left out" "$2"' - "$work/d" "$work/err"
    check "a result: $kind" restarted result.json
done
for kind in folder fifo; do
    rm -rf "$work/d" && cp -a "$work/on" "$work/d" && damage $kind "$work/d/runs/$id/result.json"
    check "a result: $kind" refused 'result.json: this is not a regular file' "${one[@]}" -o "$work/d"
    check "a report of it: $kind" bash -c 'timeout 60 "$LOCI" lab report "$1" >/dev/null 2>"$2"; [ $? -eq 2 ] && grep -q "result.json is left out" "$2"' - "$work/d" "$work/err"
done
for kind in truncated empty garbage foreign folder fifo; do
    rm -rf "$work/d" && cp -a "$work/on" "$work/d" && damage $kind "$work/d/runs/$id/config.json"
    check "a configuration: $kind" refused 'config.json' sample "$work/d" nope recall
    check "and a report without pictures: $kind" lab report "$work/d" -o "$work/page.html"
done
sed -i 's/"seed": 0/"seed": 1/' "$work/on/runs/$id/config.json"
check "a configuration of another run" refused 'is the configuration of run' sample "$work/on" nope recall
sed -i 's/"seed": 1/"seed": 0/' "$work/on/runs/$id/config.json"
for kind in truncated empty garbage changed foreign folder fifo; do
    rm -rf "$work/d" && cp -a "$work/on" "$work/d" && damage $kind "$work/d/runs/$id/weights.safetensors"
    check "weights: $kind" refused 'weights.safetensors' sample "$work/d" nope recall
done
for kind in truncated empty garbage foreign folder fifo; do
    rm -rf "$work/d" && cp -a "$work/on" "$work/d" && damage $kind "$work/d/lab.json"
    stamp=$(stat -c '%i %s %Y' "$work/d/lab.json")
    check "lab.json: $kind" refused 'lab.json: .*; remove it, or choose another folder' "${two[@]}" -o "$work/d"
    check "it stays: $kind" test "$stamp" = "$(stat -c '%i %s %Y' "$work/d/lab.json")"
    check "watch: $kind" refused 'lab.json' watch "$work/d" --once
done
harness_end
