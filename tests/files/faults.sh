#!/bin/bash
# SPDX-License-Identifier: MIT
# The program is killed, told to stop, and cut off from its disk, its readers, its threads and its
# inputs.  Files are either unchanged or complete, never a mixture.  It prints one sentence, and
# never hangs.
#     tests/files/faults.sh [KILLS]      KILLS times SIGKILL in each of three commands (default 10;
#                                        scripts/faults kill KILLS)
. tests/support/harness.sh
kills=${1:-10}
[ -z "${LOCI_SANITIZE:-}" ] || kills=4
case=tests/cases/alibi-kerple-shaw.safetensors
tiny=(--tasks recall --size XS --length 16 --set layers=1,dim=16,keys=4,values=4,tokens=64,variants=0)
sum() { sha256sum <"$1"; }
milliseconds() { sleep "$(printf '%d.%03d' $(($1 / 1000)) $(($1 % 1000)))"; }
started=0

# ---- kill -9: a result is missing, the old one, or the new one

# once COMMAND...: its duration here in milliseconds; a kill comes anywhere within it, or a little
# later
once() {
    local from to
    from=$(date +%s%N)
    "$LOCI" "$@" >/dev/null 2>&1
    to=$(date +%s%N)
    echo $(((to - from) / 1000000 + 2))
}
absent=0 old=0 new=0 left=0
# COMMAND...: writes $work/k/out, once over an old file, once where there was none
killed() {
    local took i pid
    rm -rf "$work/k" && mkdir "$work/k" && took=$(once "$@") && mv "$work/k/out" "$work/fresh" || return 1
    for ((i = 0; i < kills; i++)); do
        rm -f "$work/k/out"
        [ $((i % 2)) -eq 0 ] || echo old >"$work/k/out"
        "$LOCI" "$@" >/dev/null 2>&1 &
        pid=$!
        milliseconds $((RANDOM % took))
        kill -9 $pid 2>/dev/null
        wait $pid 2>/dev/null
        started=$((started + 1))
        if [ ! -e "$work/k/out" ]; then
            [ $((i % 2)) -eq 0 ] || return 1
            absent=$((absent + 1))
        elif cmp -s "$work/k/out" "$work/fresh"; then new=$((new + 1))
        elif [ $((i % 2)) -eq 1 ] && [ "$(cat "$work/k/out")" = old ]; then old=$((old + 1))
        else return 1
        fi
        left=$((left + $(find "$work/k" -name '*.loci-tmp' | wc -l)))
        [ -z "$(find "$work/k" -type f ! -name out ! -name 'out.*.loci-tmp')" ] || return 1
        rm -f "$work/k"/*.loci-tmp
    done
}
check "kill -9 in run -o" killed run $case --engine reference -o "$work/k/out"
check "kill -9 in convert --table" killed convert --table half -e rope:pairing=half --dim 64 --rows 40000 -o "$work/k/out"
"$LOCI" convert --table half -e rope:pairing=half --dim 64 --rows 40000 -o "$work/table"
hashes() { grep -h '"weights_sha256"' "$1"/runs/*/result.json 2>/dev/null; }
two=(lab run --arms nope,t5 "${tiny[@]}" --steps 40 -t 2 -q --checkpoint 0)
lab_killed() {
    local took i pid
    took=$(once "${two[@]}" -o "$work/calm")
    for ((i = 0; i < kills; i++)); do
        [ $((i % 5)) -ne 0 ] || rm -rf "$work/lab"       # five kills during a run, then a new one
        "$LOCI" "${two[@]}" -o "$work/lab" >/dev/null 2>>"$work/noise" &
        pid=$!
        milliseconds $((RANDOM % took))
        kill -9 $pid 2>/dev/null
        wait $pid 2>/dev/null
        started=$((started + 1))
        [ $((i % 5)) -eq 4 ] || [ $i -eq $((kills - 1)) ] || continue
        "$LOCI" "${two[@]}" -o "$work/lab" >/dev/null 2>>"$work/noise" || return 1
        [ "$(hashes "$work/lab")" = "$(hashes "$work/calm")" ] || return 1
        [ -z "$(find "$work/lab/runs" -name '*.loci-tmp' -o -name claim -o -name 'state.*')" ] || return 1
    done
    [ "$(hashes "$work/calm" | wc -l)" -eq 2 ] && [ ! -s "$work/noise" ]
}
check "kill -9 in lab run, and it goes on to the same weights" lab_killed
echo "$started times killed: results were $absent times not there, $old times old, $new times new, and $left times a part lay beside them"
[ "$kills" -le 10 ] || { harness_end; exit; }

# ---- Signals that request an exit

long_run() { "$LOCI" run $case $case --engine reference "$@"; }
# SIGNAL CODE COMMAND...: ends by it, or as COMMAND normally does, within seconds
asked() {
    local signal=$1 want=$2 pid code i
    shift 2
    for i in 1 2 3 4; do
        "$LOCI" "$@" >/dev/null 2>"$work/err" &
        pid=$!
        milliseconds $((RANDOM % 60 + 5))
        kill -"$signal" $pid 2>/dev/null
        timeout 60 tail --pid=$pid -f /dev/null || return 1
        wait $pid 2>/dev/null
        code=$?
        [ $code -eq 0 ] || [ $code -eq "$want" ] || return 1
        [ ! -s "$work/err" ] && [ -z "$(find "$work/signals" -name '*.loci-tmp')" ] || return 1
    done
}
mkdir "$work/signals"
check "SIGINT in bench" asked INT 130 bench nope --len 512 --json
check "SIGTERM in bench" asked TERM 143 bench nope --len 512 --json
check "SIGINT in race" asked INT 130 race nope --len 512 --html "$work/signals/page"
check "SIGTERM in convert" asked TERM 143 convert --table half -e rope:pairing=half --dim 64 --rows 40000 -o "$work/signals/table"
check "SIGHUP in convert" asked HUP 129 convert --table half -e rope:pairing=half --dim 64 --rows 40000 -o "$work/signals/table"
check "SIGTERM in lab run" asked TERM 143 "${two[@]}" -o "$work/signals/lab"
check "and it goes on" "$LOCI" "${two[@]}" -o "$work/signals/lab"
check "to the same weights" test "$(hashes "$work/signals/lab")" = "$(hashes "$work/calm")"

# COMMAND...: into a closed reader; ends by the signal, quietly and soon
piped() {
    "$LOCI" "$@" 2>"$work/err" | head -n 1 >"$work/out"
    local codes=("${PIPESTATUS[@]}")
    { [ "${codes[0]}" -eq 141 ] || [ "${codes[0]}" -eq 0 ]; } && [ "$(wc -l <"$work/out")" -eq 1 ] && [ ! -s "$work/err" ]
}
unheard() {                              # the same with SIGPIPE ignored: one sentence
    local code
    (trap '' PIPE; "$LOCI" list --json 2>"$work/err"; echo $? >"$work/code") | true
    code=$(cat "$work/code")
    [ "$code" -eq 2 ] && [ "$(wc -l <"$work/err")" -eq 1 ] && grep -q '^loci: cannot write' "$work/err"
}
check "show into head" piped show alibi
check "list into head" piped list --json
check "no reader, and no signal" unheard

# ---- Full disks

kept() { [ "$(cat "$1")" = old ] && [ -z "$(find "$(dirname "$1")" -name '*.loci-tmp')" ]; }
mkdir "$work/limited"
writes=("run $case --engine reference" "convert --table half -e rope:pairing=half --dim 64 --rows 4000" "show t5 --html" "show t5 --svg"
    "lab dump --arm nope --task recall --size XS --length 16")
limited() {                              # WORDS: no file may have more than a block
    local words=$1 o=-o
    [[ $words == *--html || $words == *--svg ]] && o=
    echo old >"$work/limited/out"
    (ulimit -f 1; refused 'cannot write' $words $o "$work/limited/out") && kept "$work/limited/out"
}
for words in "${writes[@]}"; do check "no file may be large: $words" limited "$words"; done
for words in "lab report $work/calm --json" "show alibi" "rope tests/cases/models/bloom.json" "check $work/table -e rope:pairing=half"; do
    check "no room for what is printed: $words" bash -c '"$LOCI" $1 2>"$0" >/dev/full; [ $? -eq 2 ] && grep -q "^loci: cannot write" "$0"' "$work/err" "$words"
done
own() { unshare --user --map-root-user --mount "$BASH" -c "$1" "$0" "$2"; }
mkdir "$work/disk"
if own 'mount -t tmpfs -o size=64k none "$1"' "$work/disk" 2>/dev/null; then
    full() {
        local words o
        echo old >"$1/out" && { cat /dev/zero >"$1/zeros" 2>/dev/null; true; }
        for words in "${writes[@]}"; do
            o=-o
            [[ $words == *--html || $words == *--svg ]] && o=
            refused 'cannot write.*No space left' $words $o "$1/out" && kept "$1/out" || return 1
        done
        rm "$1/zeros" && loci ${writes[0]} -o "$1/out" && ! kept "$1/out"
    }
    full_inside() {
        own "$(declare -f loci refused kept full); $(declare -p writes work LOCI under case); mount -t tmpfs -o size=64k none \"\$1\" && full \"\$1\"" "$work/disk"
    }
    check "a full disk" full_inside
else
    echo "faults: nothing can be mounted here: a full disk is left out"
fi

# ---- Inputs that are not files, or change meanwhile

socket() { python3 -c 'import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])' "$1" 2>/dev/null; }
cd "$work" && socket s && cd "$OLDPWD" || cd "$OLDPWD" || exit 1
if [ -S "$work/s" ]; then
    for command in run check rope "convert --to half --dim 2 -n"; do
        check "$command of a socket" refused 'not a regular file' $command "$work/s"
    done
    check "run -o a socket" refused 'not a regular file' run $case -o "$work/s"
else
    echo "faults: no socket can be made here (python3): sockets are left out"
fi
mkfifo "$work/fifo"
check "a corpus that is a FIFO" bash -c 'timeout 20 "$LOCI" lab run --arms nope --tasks text --size XS --steps 1 -q --corpus "$1" -o "$2" 2>"$3"; [ $? -eq 2 ] && [ "$(wc -l <"$3")" -eq 1 ]' - "$work/fifo" "$work/l" "$work/err"
check "a plan that is a FIFO" bash -c 'timeout 20 "$LOCI" lab plan "$1" 2>"$2"; [ $? -eq 2 ] && [ "$(wc -l <"$2")" -eq 1 ]' - "$work/fifo" "$work/err"
check "tensors that are a FIFO" refused 'not a regular file' show t5 --tensors "$work/fifo"
check "a lab that is a FIFO" refused '' lab report "$work/fifo"
for name in "$work" /dev/zero; do
    check "a corpus that is $name" bash -c 'timeout 20 "$LOCI" lab run --arms nope --tasks text --size XS --steps 1 -q --corpus "$1" -o "$2" 2>"$3"; [ $? -eq 2 ] && [ "$(wc -l <"$3")" -eq 1 ]' - "$name" "$work/l" "$work/err"
done

# A file shrinks, grows, and shrinks while it is read.  Whatever was read, the program ends by
# itself, with a result or one sentence.
shrinking() {
    local i pid writer size codes=0
    size=$(stat -c %s "$work/table")
    cp "$work/table" "$work/moving"
    (while :; do truncate -s $((size / 3)) "$work/moving"; cp "$work/table" "$work/moving"; done) 2>/dev/null &
    writer=$!
    for ((i = 0; i < 20; i++)); do
        timeout 60 "$LOCI" check "$work/moving" -e rope:pairing=half >"$work/out" 2>"$work/err"
        case $? in 0) ;; 1 | 2) codes=$((codes + 1)) ;; *) kill $writer; return 1 ;; esac
        [ "$(wc -l <"$work/err")" -le 1 ] || { kill $writer; return 1; }
    done
    kill $writer
    wait $writer 2>/dev/null
    true
}
check "a file that shrinks while it is read" shrinking

# ---- Threads that cannot be created: as another user, who already has too many

if [ "$(id -u)" -eq 0 ] && command -v setpriv >/dev/null && setpriv --reuid 65534 --clear-groups true 2>/dev/null; then
    chmod 755 "$work"
    few() { setpriv --reuid 65534 --clear-groups bash -c 'ulimit -u 1; exec "$LOCI" "$@"' - "$@" >"$work/out" 2>"$work/err"; }
    if setpriv --reuid 65534 --clear-groups test -x "$LOCI" && setpriv --reuid 65534 --clear-groups test -r $case; then
        without() { few run $case --threads 8; [ $? -eq 2 ] && [ "$(wc -l <"$work/err")" -eq 1 ] && grep -Eq "threads cannot be started|fork|Resource" "$work/err"; }
        check "threads that cannot be made" without
    else
        echo "faults: another user cannot read this folder: a limit on threads is left out (tests/api/calls.c and tests/api/faults.c fail each of them)"
    fi
else
    echo "faults: this is no root: a limit on threads is left out (tests/api/calls.c and tests/api/faults.c fail each of them)"
fi
harness_end
