#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# `loci lab data` and `loci lab compare`: their options, and what they refuse.  lab_data.c compares
# the sequences, lab_compare.c the numbers.
. tests/support/harness.sh
under=(lab data)
file=$work/x.safetensors
check "a step is written" loci --task copy --size XS --seed 1 --step 3 -o "$file"
check "and says what it is" grep -q 'split.*train.*seed.*1.*step.*3' "$file"
check "a test is written" loci --task copy --column n=30 -o "$file"
check "and says what it is" grep -q 'split.*test.*column.*n=30' "$file"
check "there is no such column" refused "has no column 'n=31'; it has 'as trained'" --task copy --column n=31 -o "$file"
check "a test needs a column" refused "needs --column" --task copy --split test -o "$file"
check "validation, too" refused "validation needs --column" --task copy --split validation -o "$file"
check "a validation is written" loci --task copy --split validation --column "as trained" -o "$file"
check "and says what it is" grep -q 'split.*validation.*column.*as trained' "$file"
check "a step has none" refused "names a test" --task copy --split train --column n=30 -o "$file"
check "tests have no seed" refused "no seed" --task copy --column n=30 --seed 1 -o "$file"
check "no step 0" refused "step" --task copy --step 0 -o "$file"
check "one task" refused "one task, not 2" --task copy,add -o "$file"
check "no such task" refused "did you mean copy" --task cpy -o "$file"
check "no task" refused "required" -o "$file"

under=(lab)
dir=$work/runs
check "two arms are trained" loci run --arms nope,rope --tasks copy --size XS --steps 3 --seeds 2 -o "$dir"
under=(lab compare)
check "they are compared" says '^    n=40 .* = *$' nope rope -d "$dir"
check "with JSON" says '"n": 2, "a": [0-9]' rope nope -d "$dir" --task copy --json
check "a variant, too" says '^    n=40 ' rope rope@ntk -d "$dir"
check "an arm that is not there" refused "no completed run of arm 'alibi'" nope alibi -d "$dir"
check "two arms" refused "give two arms" nope -d "$dir"
check "no folder" refused "cannot open" nope rope -d "$work/none"
harness_end
