#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Figures of speed have one source: README.md and docs/ agree with docs/results/performance.csv, and
# rows from scripts/performance can be merged into it.
. tests/support/harness.sh
if ! command -v python3 >/dev/null; then
    echo "performance_tables: left out: there is no python3"
    echo "0 passed, 0 failed"
    exit 0
fi
export PYTHONDONTWRITEBYTECODE=1
check "pages agree with the data" scripts/performance-tables --check
for page in README.md docs/performance.md docs/encodings/alibi.md; do
    check "$page shows the data" grep -q '<!-- performance: ' "$page"
done
ratios() { awk '/<!-- performance: / { on = 1 } !on && /[0-9]\.[0-9]+x? (\/ [0-9.]+ )?(of|against) `nope`/; /<!-- end -->/ { on = 0 }' "$@"; }
check "no page of an encoding has ratios of its own" test -z "$(ratios docs/encodings/*.md)"

# In a copy of the pages.
copy() {
    rm -rf "$work/tree"
    mkdir -p "$work/tree/scripts" && cp -r README.md docs "$work/tree" && cp scripts/performance-tables "$work/tree/scripts"
}
tables() { "$work/tree/scripts/performance-tables" "$@" >"$work/out" 2>"$work/err"; }
fails() {                                # STATUS PATTERN ARGUMENTS...: one sentence on stdout or stderr
    tables "${@:3}"
    [ $? -eq "$1" ] && [ "$(cat "$work/out" "$work/err" | wc -l)" -eq 1 ] && cat "$work/out" "$work/err" | grep -Eq "$2"
}
data=$work/tree/docs/results/performance.csv
value() { sed -i -E "/^encodings,zen4,.*,alibi,,forward,causal,4096,.*,64,1,/s/[^,]*\$/$1/" "$data"; }

copy
sed -i '/^<!-- performance: encodings -->/,/^<!-- end -->/s/^| `alibi` .*/| `alibi` | 0.85 | 0.75 | 0.76 | 0.75 |/' "$work/tree/docs/performance.md"
check "another figure on a page" fails 1 '^docs/performance.md disagrees' --check
check "is put right" tables
check "and all pages agree" tables --check
check "the page is ours again" cmp docs/performance.md "$work/tree/docs/performance.md"
value 0.123
check "another figure in the data" bash -c '! "$0" --check >"$1"' "$work/tree/scripts/performance-tables" "$work/out"
check "shows on three pages" test "$(wc -l <"$work/out")" -eq 3
check "which follow it" tables
for page in README.md docs/performance.md docs/encodings/alibi.md; do
    check "$page follows" grep -q '0\.123' "$work/tree/$page"
done
value none
check "what is no number" fails 2 'value must be a number'
copy
sed -n '/^encodings,.*,alibi,/p' "$data" | head -n 1 >>"$data"
check "one setting twice" fails 2 'two rows have one setting'
copy
sed -i 's/^cache,zen4/nothing,zen4/' "$data"
check "a set that no page shows" fails 2 'performance.csv'
copy
sed -i 's/performance: decode -->/performance: dekode -->/' "$work/tree/docs/performance.md"
check "a block that is none" fails 2 "there is no block 'dekode'"
copy
sed -i '/performance: speed -->/,/<!-- end -->/d' "$work/tree/README.md"
check "a page without its block" fails 2 'no page has the block'
check "wrong words" fails 2 '^usage: ' --chek

# The output of scripts/performance, with a program of fixed answers in place of loci.
cat >"$work/loci" <<'END'
#!/bin/sh
case "$*" in
info*) echo '{"version":"9.9","cpu":"A Processor","cpus":3,"isas":["scalar","avx2"],"isa":"avx2","fast":false,"compiler":"cc 1.2"}'; exit ;;
list*) printf '{"name":"%s","example":"%s"}\n' nope nope alibi alibi; exit ;;
esac
encoding=$2 pass=forward dim=64 rows=4096 len=4096 threads=1 heads=8 kv= dtype=f32 kv_dtype=
while [ $# -gt 0 ]; do
    case $1 in
    --pass) pass=$2 ;; --dim) dim=$2 ;; --len) len=$2 rows=$2 ;; --threads) threads=$2 ;;
    --heads) heads=$2 ;; --kv-heads) kv=$2 ;; --dtype) dtype=$2 ;; --kv-dtype) kv_dtype=$2 ;;
    esac
    shift
done
case "$pass $threads" in decode*) rows=1 ;; 'backward 2') counted=0 ;; esac
ratio=0.5
echo '{"encoding":"'$encoding'","pass":"'$pass'","dtype":"'$dtype'","kv_dtype":"'${kv_dtype:-$dtype}'","fast":false,"isa":"avx512","threads":'$threads',"batch":1,"heads":'$heads',"kv_heads":'${kv:-$heads}',"q_len":'$rows',"k_len":'$len',"dim":'$dim',"mask":"causal","percent_of_peak":81.6,"percent_of_stream":97.4,"ratio_to_nope":'$ratio',"counted":'${counted:-9}',"made":90,"best_probe":77.25}'
END
chmod +x "$work/loci"
check "scripts/performance writes rows" scripts/performance "$work/loci" zen4 "$work/new.csv"
check "with the columns of the data" test "$(head -n 1 "$work/new.csv")" = "$(head -n 1 docs/results/performance.csv)"
has() { grep -Eqx -- "$1" "$work/new.csv"; }
check "and all settings" has 'encodings,zen4,[0-9-]+,9\.9,alibi,,backward,causal,4096,,2,2,128,1,avx512,f32,,ratio_to_nope,0\.50'
check "with their flags" has 'cache,zen4,[0-9-]+,9\.9,nope,--lasting --cache,decode,causal,16384,1,8,2,64,2,avx512,bf16,,percent_of_stream,97'
check "but none where nothing counted" test -z "$(grep ',backward,.*,2,avx512,f32,,percent_of_peak,' "$work/new.csv")"
copy
check "they are merged" tables --add "$work/new.csv"
for page in README.md docs/performance.md docs/encodings/alibi.md; do
    check "$page has them" grep -Eq '0\.50 .*0\.50' "$work/tree/$page"
done
check "once" test "$(grep -c '^encodings,zen4,.*,alibi,' "$data")" -eq 4
check "and again" tables --add "$work/new.csv"
sed 's/,zen4,/,unknown,/' "$work/new.csv" >"$work/other.csv"
check "an unknown processor" fails 2 "processors.csv has no 'unknown'" --add "$work/other.csv"
check "other columns" fails 2 'columns must be set,' --add docs/results/processors.csv
check "a name without a file" bash -c '! scripts/performance "$0/loci" zen4 2>"$0/err" && grep -q usage: "$0/err"' "$work"
harness_end
