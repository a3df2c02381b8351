#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# `loci lab data`: its options, and what it refuses.  lab_data.c compares the sequences.
. tests/support/harness.sh
under=(lab data)
file=$work/x.safetensors
check "a step is written" loci --task copy --size XS --seed 1 --step 3 -o "$file"
check "and says what it is" grep -q 'split.*train.*seed.*1.*step.*3' "$file"
check "a test is written" loci --task copy --column n=30 -o "$file"
check "and says what it is" grep -q 'split.*test.*column.*n=30' "$file"
check "there is no such column" refused "has no column 'n=31'; it has 'as trained'" --task copy --column n=31 -o "$file"
check "a test needs a column" refused "needs --column" --task copy --split test -o "$file"
check "a step has none" refused "names a test" --task copy --split train --column n=30 -o "$file"
check "tests have no seed" refused "no seed" --task copy --column n=30 --seed 1 -o "$file"
check "no step 0" refused "step" --task copy --step 0 -o "$file"
check "one task" refused "one task, not 2" --task copy,add -o "$file"
check "no such task" refused "did you mean copy" --task cpy -o "$file"
check "no task" refused "required" -o "$file"
harness_end
