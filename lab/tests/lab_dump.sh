#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Whole training steps of `loci lab dump`, recomputed by lab/tests/lab_dump.py: names, losses and
# AdamW by any Python 3.10, logits and gradients if it has PyTorch.  $PYTHON replaces python3.
. tests/support/harness.sh
python=${PYTHON:-python3}
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
    printf "lab_dump: left out: there is no Python 3.10\n0 passed, 0 failed\n"
    exit 0
fi

files=()
dump() {                                 # ARM TASK ARGUMENTS...
    local file=$work/${#files[@]}.safetensors
    check "$1 on $2 is dumped" "$LOCI" lab dump --arm "$1" --task "$2" --size XS --dtype f64 -o "$file" "${@:3}"
    files+=("$file")
}
if "$python" -c 'import torch' 2>/dev/null; then
    # Steps after the first, since many learned numbers start at 0 and AdamW has no history then.
    # Sequences of copy have several lengths.
    for arm in nope rope alibi t5 fox cope alibi+cape shaw; do
        dump $arm text --step 20
        dump $arm copy --step 20
    done
    for arm in sinusoidal learned kerple fire sba xl deberta fox-pro rope-pro fox@open shaw@wide rope@random; do dump $arm copy --step 20; done
    for arm in alibi:slopes=keys alibi:slopes=queries alibi:slopes=both rope:positions=given angles:pairing=half; do
        dump $arm copy --step 20
    done
    dump angles:pairing=half copy --step 20 --set kv_heads=2
    dump tape copy --step 40 --set layers=3,rate=0.01  # no layer reads the last layer's states
    dump nope text                                                  # gradients are clipped here,
    dump rope copy --step 100 --set kv_heads=2                      # and here
    dump alibi text --set heads=6,dim=48
    dump t5 text --step 20 --dtype f32
else
    echo "logits and gradients left out: there is no PyTorch here"
    for arm in nope fox fox-pro rope-pro tape; do dump $arm copy --step 2; done
    dump alibi+cape text
    dump t5 text --dtype f32
fi
while IFS= read -r line; do
    case $line in
        *" worst error "*) pass; echo "$line" ;;
        *" passed, "*) said=$line ;;
        *) fail "$line" ;;
    esac
done < <(OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1 "$python" lab/tests/lab_dump.py "${files[@]}" 2>&1)
check "it came to the end" test "${said:-}" = "${#files[@]} passed, 0 failed"

# Cases that an empty comparison would miss.
"$python" - "${files[0]}" "$work/wrong.safetensors" <<'END'
import sys

data = bytearray(open(sys.argv[1], "rb").read())
data[-3] ^= 1                            # a number of the last tensor, in its fourth digit
open(sys.argv[2], "wb").write(data)
END
wrong() { OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1 "$python" lab/tests/lab_dump.py "$work/wrong.safetensors" | grep -q FAILED; }
check "a wrong number is found" wrong
no_step() { ! "$LOCI" lab dump --arm nope --task text --size XS --step 0 -o "$work/none"; }
check "there is no step 0" no_step
harness_end
