#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# scripts/accuracy repeats a problem by its seed, prints the promises and fails beyond them.
# accuracy-torch names its requirements.
. tests/support/harness.sh
if [ -x "$LOCI_BUILD/tests/test_accuracy" ]; then
    check "one problem" bash -c 'scripts/accuracy --seed 7 fox >"$0/out"' "$work"
    check "names its problem" grep -q '^fox, seed 7: ' "$work/out"
    check "and the errors of what comes out" grep -Eq '^lse +lse +C [0-9]' "$work/out"
    cp "$work/out" "$work/first"
    check "again" bash -c 'scripts/accuracy --seed 7 fox >"$0/out"' "$work"
    check "the same" cmp "$work/first" "$work/out"
    check "a few problems keep what is promised" bash -c 'scripts/accuracy 8 fox >"$0/out"' "$work"
    check "many keys" bash -c 'scripts/accuracy --keys 900 1 kerple >"$0/out"' "$work"
    check "and one or two rows of them" grep -Eq ' dk +[0-9]+00 numbers' "$work/out"
    check "the table" bash -c 'LC_ALL=C scripts/accuracy --table 0 >"$0/out"' "$work"
    mkdir -p "$work/docs"
    sed -E '/^\| fox \|/s/[0-9]+ \|$/1e-9 |/; /^\| fox \|/s/([0-9]+ \| )([0-9]+ \| )([0-9]+ \| )(1e-9)/1e-9 | \2\3\4/' \
        docs/accuracy.md >"$work/docs/accuracy.md"
    check "a smaller promise is broken" bash -c '! (cd "$0" && "$1/tests/test_accuracy" 8 fox) >"$0/out"' "$work" "$LOCI_BUILD"
    check "and says so" grep -q 'fox, f32 forward: C is .* and 1e-09 is promised' "$work/out"
fi
check "--keys wants two numbers" bash -c '! scripts/accuracy --keys 900 2>"$0/err"' "$work"
check "--seed wants two words" bash -c '! scripts/accuracy --seed 7 2>"$0/err"' "$work"
if command -v python3 >/dev/null; then
    mkdir "$work/none"
    echo 'raise ImportError' >"$work/none/torch.py"
    check "no torch" bash -c '! PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$0/none scripts/accuracy-torch 2>"$0/err"' "$work"
    check "what it needs" grep -Fxq 'accuracy-torch: needs PyTorch: pip install torch' "$work/err"
fi
harness_end
