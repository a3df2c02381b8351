#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Figures of the lab have one source: the results in lab/README.md, docs/choosing.md and
# lab/results/hour.md are made from lab/results, each figure of a sentence is looked up there, and
# comparisons in words are checked.
. tests/support/harness.sh
if ! command -v python3 >/dev/null; then
    echo "lab_page: left out: there is no python3"
    echo "0 passed, 0 failed"
    exit 0
fi
export PYTHONDONTWRITEBYTECODE=1
check "the pages agree with the data" scripts/lab-tables --check
check "it has results" grep -q '^<!-- results -->$' lab/README.md
check "each set of them says when, where and with what it was made" bash -c '
    for f in lab/results/*-runs.csv; do
        name=$(basename "$f" -runs.csv)
        grep -Eq "^$name,[0-9]{4}-[0-9]{2}-[0-9]{2},[^,]+,[^,]+,.+,[0-9]+,\"?loci lab run " lab/results/sets.csv || exit 1
        [ -s "lab/results/$name.csv" ] && [ -s "lab/results/$name-verdicts.csv" ] || exit 1
    done'
check "no set is without its runs" bash -c 'for n in $(tail -n +2 lab/results/sets.csv | cut -d, -f1); do [ -s "lab/results/$n-runs.csv" ] || exit 1; done'

# In a copy, with data of its own.
tree=$work/tree
results=$tree/lab/results
mkdir -p "$tree/scripts" "$tree/docs" "$results"
cp scripts/lab-tables "$tree/scripts"
page=$tree/lab/README.md text=$results/page.txt
tables() { "$tree/scripts/lab-tables" "$@" >"$work/out" 2>"$work/err"; }
printf 'Before.\n\n<!-- results -->\n<!-- end -->\n\nAfter.\n' | tee "$tree/docs/choosing.md" "$results/hour.md" >"$page"
touch "$results/choosing.txt" "$results/hour.txt"
cat >"$results/few.csv" <<'END'
arm,variant,task,size,steps,settings,seed,column,tokens,metric,value,learned,chosen,steps_to_99
rope,,copy,S,10,,0,as trained,40,exact,0.9,1,1,400
rope,,copy,S,10,,1,as trained,40,exact,0.8,0,1,
rope,,copy,S,10,,0,n=40,80,exact,0.25,1,1,400
rope,,copy,S,10,,1,n=40,80,exact,0.75,0,1,
rope,ntk,copy,S,10,,0,n=40,80,exact,1,1,1,400
rope,,copy,S,10,rate=1,0,n=40,80,exact,0.01,1,0,
nope,,copy,S,10,,0,n=40,80,exact,0.1,1,1,
END
make() { cat >"$text" && tables && sed -n '/^<!-- results -->$/,/^<!-- end -->$/p' "$page" | sed '1d;$d' >"$work/made"; }
makes() { make <<<"$1" && [ "$(cat "$work/made")" = "$2" ]; }
fails() {                                # TEXT PATTERN: one sentence, and the page stays
    local kept
    kept=$(cat "$page")
    ! make <<<"$1" && [ "$(wc -l <"$work/err")" -eq 1 ] && grep -Eq "$2" "$work/err" && [ "$(cat "$page")" = "$kept" ]
}
check "a mean of the chosen runs" makes '- rope has {few|copy|rope|n=40}.' '- rope has 50.0.'
check "its seeds" makes '- {few|copy|rope|n=40|values}, {few|copy|rope|n=40|range}, {few|copy|rope|n=40|learned}' '- 25.0, 75.0, 25.0 to 75.0, 1 of 2'
check "a variant" makes '{few|copy|rope/ntk|n=40}' '100.0'
check "what stands around it stays" bash -c 'grep -q ^Before "$1" && grep -q ^After "$1"' - "$page"
check "what holds is said" makes '- rope copies more than nope.{check|few:copy:nope:n=40|<|few:copy:rope:n=40}' '- rope copies more than nope.'
check "what does not hold is not" fails '- nope copies more.{check|few:copy:rope:n=40|<|few:copy:nope:n=40}' 'is 0.5 and not less than'
check "a figure without data" fails '- rope has 50 %.' "'50' is no figure from the data"
check "multiples of L are no figures" makes '- At 8L `rope:base=10` wins.' '- At 8L `rope:base=10` wins.'
check "an arm that was not run" fails '{few|copy|alibi|n=40}' "no 'alibi'"
check "a column that is none" fails '{few|copy|rope|n=41}' "at 'n=41'"
check "a task that was not run" fails '{few|add|rope|n=40}' "no task 'add'"
check "a set that is none" fails '{many|copy|rope|n=40}' 'no many.csv'
check "a word that is none" fails '{few|copy|rope|n=40|middle}' "'middle' is none of"
check "too few words" fails '{few|copy}' 'too few'
make <<<'{table|few|copy}'
check "a table" grep -qxF '| `rope` | 1 of 2 | 85.0 (80.0-90.0) |  |  |  | 50.0 (25.0-75.0) | 20 | 400 (1 of 2) |' "$work/made"
check "with its variants" grep -qxF '| &nbsp;&nbsp;ntk |  |  |  |  |  | 100.0 |  |  |' "$work/made"
check "and all arms" grep -q '^| `nope` | 1 of 1 |' "$work/made"
make <<<'{table|few|copy|seeds}'
check "or those of several seeds" bash -c '! grep -q nope "$1"' - "$work/made"
cat >"$results/sum.csv" <<'END'
arm,variant,task,size,steps,settings,seed,column,tokens,metric,value,learned,chosen,steps_to_99
alibi,,text,S,10,,0,L,64,loss,0.69314718056,1,1,
alibi,,text,S,10,,1,L,64,loss,1.38629436112,1,1,
alibi,,text,S,10,,2,L,64,loss,2.77258872224,0,1,
alibi,window,text,S,10,,0,8L,512,loss,0.69314718056,1,1,
rope,,text,S,10,,0,L,64,loss,1,1,1,
alibi,,copy,S,10,,0,as trained,40,exact,1,1,1,400
alibi,,copy,S,10,,1,as trained,40,exact,0.9,1,1,400
alibi,,copy,S,10,,0,n=40,80,exact,0.95,1,1,400
alibi,,copy,S,10,,1,n=40,80,exact,0.85,1,1,400
END
cat >"$results/sum-verdicts.csv" <<'END'
id,claim,size,verdict,setting,parts
E3,ALiBi stays flat.,S,mixed,"size S, text (L = 64, 3 seeds): of 2 parts 1 hold, 1 fail",holds: alibi at 8L 1 nats / fails: alibi at 4L 2 nats
END
make <<<'{summary|sum}'
check "a summary in bits per byte, with the interval of Student's t" \
    grep -qxF '| `alibi` | 2 of 3 | 2.333 +-3.795 |  |  |  | 1.000 |' "$work/made"
check "of arms with several seeds" bash -c '! grep -q rope "$1"' - "$work/made"
make <<<'{summary|sum|copy}'
check "of shares, with the seeds at 90 %" \
    grep -qxF '| `alibi` | 2 of 2 | 95.0 +-63.5 (2 of 2) |  |  |  | 90.0 +-63.5 (1 of 2) |' "$work/made"
check "the success" makes '{success|sum}' $'| | copy |\n|---|---|\n| `alibi` | 2 of 2, 60 |'
check "verdicts" makes '{verdicts|sum}' $'| claim | verdict | of what |\n|---|---|---|
| E3: ALiBi stays flat. | **mixed** | size S, text (L = 64, 3 seeds): of 2 parts 1 hold, 1 fail |'
make <<<'{verdicts|sum|parts}'
check "and their parts" grep -qxF '| E3.2 | fails | alibi at 4L 2 nats |' "$work/made"
check "a set without several seeds" fails '{summary|few|add}' "no task 'add'"
check "no other word" fails '{verdicts|sum|part}' "none of claims, parts"
sed 's/^rope,,copy,S,10,,1,n=40/rope,,copy,S,10,layers=3,0,n=40/' "$results/few.csv" >"$results/twice.csv"
check "two settings of one arm are two sets" fails '{twice|copy|rope|n=40}' "two runs of 'rope' on copy with seed 0"
make <<<'{table|few|copy|seeds}'
check "the page then agrees" tables --check
sed -i 's/85\.0/86.0/' "$page"
check "another figure on the page" bash -c '! "$1" --check' - "$tree/scripts/lab-tables"
sed -i 's/86\.0/85.0/' "$page"
echo 'rope has {few|copy|rope|n=40}.' >"$results/choosing.txt"
check "another page that does not agree" bash -c '! "$1" --check' - "$tree/scripts/lab-tables"
check "is made" tables
sed -i 's/50\.0/51.0/' "$page" && cp "$page" "$work/kept"
echo 'rope has {few|copy|rope|n=41}.' >"$results/choosing.txt"
check "a mistake in one text leaves all pages" bash -c '! "$1" 2>"$2" && cmp -s "$3" "$4"' \
    - "$tree/scripts/lab-tables" "$work/err" "$page" "$work/kept"
echo 'rope has {few|copy|rope|n=40}.' >"$results/choosing.txt"
check "is made again" tables
check "from its own text" grep -qxF 'rope has 50.0.' "$tree/docs/choosing.md"
check "wrong words" bash -c '! "$1" --chek 2>"$2" && grep -q usage: "$2"' - "$tree/scripts/lab-tables" "$work/err"

# Runs are recorded.
under=(lab)
check "two arms are trained" loci run --arms nope,rope --tasks copy --size XS --steps 3 --seeds 2 -o "$work/runs"
check "and recorded" tables --add "$LOCI" "$work/runs" mine
sed -i 's/"runs": \[/"runs": [{"id": "0", "arm": "nope", "task": "copy", "seed": 9, "steps": 3},/' "$work/runs/lab.json"
check "not before all runs are done" bash -c '! "$1" --add "$2" "$3" half 2>"$4" && grep -q "has 4 of 5 runs" "$4" && [ ! -e "$5/half.csv" ]' \
    - "$tree/scripts/lab-tables" "$LOCI" "$work/runs" "$work/err" "$results"
sed -i 's/{"id": "0", "arm": "nope", "task": "copy", "seed": 9, "steps": 3},//' "$work/runs/lab.json"
check "with their hashes" test "$(grep -Ec ',[0-9a-f]{32},[0-9a-f]{64}$' "$results/mine-runs.csv")" -eq 4
check "and where they were made" grep -q '^mine,20..-..-..,.*,4,loci lab run --arms nope,rope\|^mine,20..-..-..,.*,4,"loci lab run' "$results/sets.csv"
check "once" tables --add "$LOCI" "$work/runs" mine
check "in one line" test "$(grep -c '^mine,' "$results/sets.csv")" -eq 1
harness_end
