#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Real texts of `loci lab corpus`: what is there, with size and hash; what is not, with how to get it;
# runs of such a text, and its bits per byte.  A made-up python3 stands for the one of the machine.
. tests/support/harness.sh

under=(lab)
mkdir "$work/bin" "$work/none"
cat >"$work/bin/python3" <<'END'
#!/bin/sh
awk 'BEGIN { for (i = 0; i < 20000; i++) printf "line %d of %d\n", i, i * i % 977 }'
END
printf '#!/bin/sh\necho short\nexit 1\n' >"$work/none/python3"
chmod +x "$work/bin/python3" "$work/none/python3"
"$work/bin/python3" >"$work/text"
bytes=$(wc -c <"$work/text")
hash=$(cksum <"$work/text")
same() { [ "$(cksum <"$work/text")" = "$hash" ]; }
check "the made-up text is the same each time" same
path=$PATH

export PATH=$work/bin:$path
for name in generated python jargon kjv; do check "$name is listed" says "$name" corpus; done
check "licences" says "PSF-2.0" corpus
check "the size of a text that is here" says "${bytes// /} bytes of" corpus python
check "JSON" says "\"bytes\": ${bytes// /}," corpus python --json
loci corpus python
mine=$(sed -n 's/ *sha256 //p' "$work/out")
check "a file by its path" says "$mine" corpus "$work/text"
check "one hash" test ${#mine} = 64
export PATH=$work/none:$path
check "half a text is none" says "wrote no whole text" corpus python
check "how to get it" refused "to get it: install python3" run --tasks text --arms nope --corpus python -o "$work/no"
check "no such file" says "there is no such file" corpus "$work/nothing"
check "in JSON" says '"missing": "corpus' corpus "$work/nothing" --json

# A run of a text by its name, and of the same bytes in a file: one run.
export PATH=$work/bin:$path
tiny=(--arms nope --tasks text --size XS --length 16 --steps 2 --set layers=1,dim=16,tokens=64,variants=0 -q)
check "trains" says "1 of 1 runs are done" run "${tiny[@]}" --corpus python -o "$work/runs"
check "the file is the same text" says "1 of 1 runs are done" run "${tiny[@]}" --corpus "$work/text" -o "$work/runs"
one() { set -- "$work"/runs/runs/*/; [ $# = 1 ]; }
check "which is one run" one
check "bits per byte in the report" says "Bits per byte" report "$work/runs" --text
check "and its name" says "corpus=python" report "$work/runs" --text
harness_end
