#!/bin/bash
# SPDX-License-Identifier: MIT
# loci lab, end to end: the preset smoke learns and is reported.  A run has the same bits whether it
# was stopped and resumed, with one thread or two, and under every instruction set of this machine.
. tests/support/harness.sh
export COLUMNS=100

under=(lab)
lab() { loci "$@"; }
python() { command -v python3 >/dev/null; }
json() {                                 # FILE...: each is one valid JSON object
    if python; then python3 - "$@" <<'P'
import json, sys
def no(x): raise ValueError(x)
for file in sys.argv[1:]: assert isinstance(json.load(open(file), parse_constant=no), dict)
P
    else for file; do head -c 1 "$file" | grep -q '{' && tail -n 1 "$file" | grep -q '}$' || return 1; done; fi
}
hashes() { grep -h '"weights_sha256"' "$1"/runs/*/result.json | grep -Eo '[0-9a-f]{64}' | sort; }
same() {  # DIR DIR: the same runs have the same weights, and there are some
    [ -n "$(hashes "$1")" ] && [ "$(hashes "$1")" = "$(hashes "$2")" ] &&
        (cd "$1/runs" && find . -name weights.safetensors) | while read -r file; do cmp "$1/runs/$file" "$2/runs/$file" || return 1; done
}
few=()                                   # sanitizers take ten times as long
[ -z "${LOCI_SANITIZE:-}" ] || few=(--tasks flipflop)
tasks=3
[ -z "${LOCI_SANITIZE:-}" ] || tasks=1
all=$((4 * tasks))

# ---- The preset
dir=$work/smoke
check "smoke runs" says "^$all of $all runs are done: loci lab report" run --preset smoke "${few[@]}" -o "$dir"
check "all of it is there" test "$(ls "$dir"/runs/*/{config.json,log.csv,weights.safetensors,result.json} | wc -l)" -eq $((4 * all))
check "and nothing else" test "$(find "$dir" -type f | wc -l)" -eq $((4 * all + 1))
# FILE: the mean loss of the last five lines is at least a hundredth below that of the first five
falls() {
    awk -F, 'NR > 1 { x[n++] = $2 } END { for (i = 0; i < 5; i++) { a += x[i]; b += x[n - 1 - i] } exit !(n >= 10 && b < 0.99 * a) }' "$1"
}
for log in "$dir"/runs/*/log.csv; do
    check "the loss falls: $(grep -Eo '"(arm|task)": "[a-z]*"' "${log%/*}/config.json" | tr '\n' ' ')" falls "$log"
done
check "every JSON is sound" json "$dir"/lab.json "$dir"/runs/*/{config,result}.json
check "lab.json has all runs" test "$(grep -c '"id"' "$dir/lab.json")" -eq $all
stamps() { find "$dir/runs" -printf '%p %T@ %s\n' | sort; }
before=$(stamps)
check "a second run" says "^$all of $all runs are done" run --preset smoke "${few[@]}" -o "$dir"
check "does nothing" test "$before" = "$(stamps)"
check "and is no other command" test "$(grep -c '^  "loci' "$dir/lab.json")" -eq 1

# ---- The report, in four forms
whole_page() {  # FILE: correct beginning and end, valid pictures, no external resources
    [ -s "$1" ] && head -c 15 "$1" | grep -qi '<!doctype html>' && tail -n 1 "$1" | grep -q '</html>' &&
        ! grep -Eiq '<script|<link|<img|src=|@import|url\(' "$1" || return 1
    ! python || python3 - "$1" <<'P'
import html.parser, re, sys, xml.dom.minidom
text = open(sys.argv[1], encoding="utf-8").read()
pictures = re.findall(r"<svg\b.*?</svg>", text, re.S)
assert pictures
for part in pictures: xml.dom.minidom.parseString(part)
class Tags(html.parser.HTMLParser):
    open = []
    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "br", "hr", "col", "p", "li"): self.open.append(tag)
    def handle_startendtag(self, tag, attrs): pass
    def handle_endtag(self, tag):
        if tag not in ("p", "li"): assert self.open.pop() == tag, (tag, self.getpos())
page = Tags(); page.feed(text); page.close()
assert not page.open, page.open
P
}
check "a page" lab report "$dir" -o "$work/report.html"
check "it is whole" whole_page "$work/report.html"
# Learned biases by distance, gates and sticks are drawn from the weights.
seen=$work/seen
check "arms that learn something" lab run --arms t5,fox,sba,alibi+cape --tasks text --steps 3 --size XS --length 16 --set layers=1,dim=16,tokens=64 -q -o "$seen"
check "their page" lab report "$seen" -o "$work/seen.html"
check "it is whole, too" whole_page "$work/seen.html"
for word in 't5 after 3 steps of text, layer 1, by distance' 'forget gates of layer 1' 'what is left of the stick' \
    'attention of layer 1' 'How far attention reaches on text'; do
    check "it shows: $word" grep -Fq "$word" "$work/seen.html"
done
check "its pictures" says '^[0-9]+ pictures in ' report "$seen" --svg "$work/pictures"
check "each is a file" test -s "$work/pictures/fox-on-text-l-attention-of-layer-1.svg"
check "as text" says 'Warnings' report "$dir" --text
check "in 100 columns" bash -c '! grep -Eq ".{101}" "$1"' - "$work/out"
for word in nope rope alibi fox flipflop; do check "the report has $word" grep -q "$word" "$work/out"; done
check "the traps are told" grep -q 'not learned' "$work/out"
check "as CSV" says '^arm,variant,task,' report "$dir" --csv
check "its lines have as many fields" awk -F, 'NR == 1 { n = NF } NF != n || n < 20 { exit 1 } END { exit NR < 50 }' "$work/out"
check "as JSON" says '"claims":' report "$dir" --json
check "and it is JSON" json "$work/out"
check "two forms at once" refused 'one of' report "$dir" --csv --json
check "a folder that is not there" refused 'none' report "$work/none"

# ---- Other commands on the folder
check "watch" says "^$all of $all runs, 100 %" watch "$dir" --once
check "plan" says '^1 runs, 40 steps, .* about [0-9]+ (s|min|h) on 2 threads here' plan --preset smoke --arms fox --tasks flipflop --threads 2
check "plan --json" says '"teraflops"' plan --preset smoke --tasks flipflop --json
check "is JSON" json "$work/out"
planned() {
    [ "$(grep -c '"config"' "$work/out")" -eq 4 ] || return 1
    for id in $(grep -Eo '"id": "[0-9a-f]{32}"' "$work/out" | cut -d'"' -f4); do [ -e "$dir/runs/$id/result.json" ] || return 1; done
}
check "with the runs that were made" planned
check "list" says '^    flipflop' list
check "list --json" says '"name": "recall"' list --json
check "is JSON" json "$work/out"
check "what the lab is" bash -c '"$1" lab | grep -q "^    smoke "' - "$LOCI"
check "sample" says '^ +expected +[01]( [01])*$' sample "$dir" fox flipflop --count 2
check "and it counts" grep -Eq '^[0-9]+ of [0-9]+ answers are right' "$work/out"
check "an arm that was not run" refused "no completed run of arm 'xl'" sample "$dir" xl flipflop
check "a column that is none" refused "has no column '9L'" sample "$dir" fox flipflop --column 9L
check "bench" says '"tokens_per_second": [0-9.e+]+' bench --size XS --arms nope --json
check "is JSON" json "$work/out"
check "dump" lab dump --arm rope+fox --task copy --size XS -o "$work/step.safetensors"
header() { head -c 20000 "$work/step.safetensors" | tr -d '\0' | grep -aq "$1"; }
for name in tokens targets logits loss w.embed d.layers.0.wq n.layers.1.bf; do check "it has $name" header "\"$name\""; done

# ---- The same bits in every way of running
tiny=(--arms rope+fox --tasks recall --size XS --length 16 --set layers=1,dim=16,keys=4,values=4,tokens=64,variants=0)
golden=bc2b843b95ddd93970ae5e10bd110833ea4d8db05b07083e840768b90c3161a2
for isa in $("$LOCI" info --json | sed -E 's/.*"isas":\[([^]]*)\].*/\1/' | tr -d '"' | tr ',' ' '); do
    check "under $isa" lab run "${tiny[@]}" --steps 5 --isa "$isa" -q -o "$work/$isa"
    check "as on every machine" test "$(hashes "$work/$isa")" = $golden
    check "and it says so" grep -q "\"isa\": \"$isa\"" "$work/$isa"/runs/*/result.json
done
check "an instruction set that is none" refused 'sse9' run "${tiny[@]}" --isa sse9 -o "$work/sse9"

one=(--arms fox --tasks copy --size XS --steps 12 --set variants=0)
check "one thread" lab run "${one[@]}" --threads 1 -q -o "$work/one"
check "two threads for one run" lab run "${one[@]}" --threads 2 -q -o "$work/two"
check "give the same weights" same "$work/one" "$work/two"

steps=1000
check "a run that nobody stops" lab run "${tiny[@]}" --steps $steps -q -o "$work/whole"
stop() {  # SIGNAL: starts or resumes the run, and stops it some steps later
    local claim="$work/parts/runs/*/claim" state="$work/parts/runs/*/state.safetensors" from
    from=$(cat $state 2>/dev/null | head -c 4000 | grep -aEo '"step":"[0-9]+"' | tr -dc 0-9)
    "$LOCI" lab run "${tiny[@]}" --steps $steps -q -o "$work/parts" >"$work/out" 2>"$work/err" &
    local pid=$!
    while kill -0 $pid 2>/dev/null; do   # the claim records the first step made
        [ "$(cat $claim 2>/dev/null | awk '{ print $3; exit }')" -gt "${from:-0}" ] 2>/dev/null && break
        sleep 0.01
    done
    kill -"$1" $pid 2>/dev/null
    wait $pid && grep -q '^0 of 1 runs are done, 1 are left; repeat the command to continue$' "$work/out" &&
        [ "$(ls $state | wc -l)" -eq 1 ] && [ ! -e $claim ] && [ -z "$(find "$work/parts" -name '*.loci-tmp')" ]
}
check "stopped by SIGINT" stop INT
check "and by SIGTERM" stop TERM
check "what is left is made" says '^1 of 1 runs are done' run "${tiny[@]}" --steps $steps -o "$work/parts"
check "with the same weights" same "$work/whole" "$work/parts"
check "and the same log" bash -c 'cmp "$1"/whole/runs/*/log.csv "$1"/parts/runs/*/log.csv' - "$work"
check "no checkpoint is left" test -z "$(find "$work/parts" -name 'state*')"

# ---- Invalid selections
check "an unknown preset" refused 'did you mean smoke' run --preset smok -o "$work/no"
check "an unknown key" refused 'did you mean heads' run --preset smoke --set head=2 -o "$work/no"
check "an unknown task" refused 'did you mean recall' run --arms nope --tasks recal -o "$work/no"
check "an unknown arm" refused 'alibo' run --arms alibo --tasks copy -o "$work/no"
check "a shard that is none" refused 'shard must be I/N' run --preset smoke --shard 3/3 -o "$work/no"
check "nothing to run" refused 'a preset, or arms and tasks' run -o "$work/no"
check "nothing was made" test ! -e "$work/no"
printf '{"arms": ["nope", "rope:base=1e6,pairing=half"], "tasks": "copy", "steps": 3, "size": "XS", "set": {"variants": 0}}' >"$work/wish.json"
check "wishes from a file" says '^2 of 2 runs are done' run "$work/wish.json" -o "$work/wished"
printf '{"arms": "nope", "taks": "copy"}' >"$work/wish.json"
check "an unknown key there" refused "unknown key 'taks'; did you mean tasks" run "$work/wish.json" -o "$work/no"

# ---- Examples
check "an example for Slurm" bash -n examples/lab-slurm.sbatch
check "an example for GNU parallel" bash -n examples/lab-parallel.sh
harness_end
