#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Figures of docs/gpu.md are those of the output that is kept, and its counts are there, too.
. tests/support/harness.sh
if ! command -v python3 >/dev/null; then
    echo "gpu_page: left out: there is no python3"
    echo "0 passed, 0 failed"
    exit 0
fi
export PYTHONDONTWRITEBYTECODE=1
output=docs/gpu/h200.txt
counts() { tr '\n' ' ' <docs/gpu.md | grep -Eo '[0-9,]{5,} problems|among [0-9,]{5,}' | tr -cd '0-9\n'; }
check "the page agrees with the output" scripts/gpu-tables --check
check "the output has passed tests and no failed one" test "$(grep -c ' passed, 0 failed$' $output)" -ge 7
check "no test of it failed" test -z "$(grep -E ' passed, [1-9][0-9]* failed$' $output)"
for count in $(counts); do
    check "the output says $count" grep -Eq "(^| )$count( |\$)" $output
done
check "the page has counts" test "$(counts | wc -l)" -ge 2
mkdir -p "$work/scripts" "$work/docs/gpu" && cp scripts/gpu-tables "$work/scripts" && cp $output "$work/docs/gpu" && cp docs/gpu.md "$work/docs"
sed -i -E 's/^(\| nope \|.*\| )[0-9.]+ \(/\199.99 (/' "$work/docs/gpu.md"
other() { ! "$work/scripts/gpu-tables" --check >/dev/null; }
check "another figure is found" other
harness_end
