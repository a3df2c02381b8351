#!/bin/bash
# SPDX-License-Identifier: MIT
# loci show: every encoding in every form, pages that fit their terminal, numbers of textbooks,
# errors of invalid arguments.
. tests/support/harness.sh

under=(show)
# COLUMNS ARGUMENTS...: no line is longer, none ends with a blank, and there are no colours
fits() {
    local columns=$1
    shift
    COLUMNS=$columns "$LOCI" show "$@" >"$work/out" 2>"$work/err" && [ -s "$work/out" ] &&
        ! grep -Eq ".{$((columns + 1))}| \$|"$'\033' "$work/out"
}
complete() {  # FILE: correct beginning and end, and every opened tag is closed
    [ -s "$1" ] || return 1
    if command -v python3 >/dev/null; then
        python3 - "$1" <<'P'
import re, sys, xml.dom.minidom
text = open(sys.argv[1], encoding="ascii").read()
for part in re.findall(r"<svg\b.*?</svg>\s*(?=<p>|</section>|$)", text, re.S) if "<html" in text else [text]:
    xml.dom.minidom.parseString(part)
P
    else grep -q '</svg>' "$1"; fi
}
svg() { "$LOCI" show "$@" --svg "$work/f.svg" && complete "$work/f.svg" && grep -q '<title>' "$work/f.svg" && grep -q '<desc>' "$work/f.svg"; }
html() { "$LOCI" show "$@" --html "$work/f.html" && complete "$work/f.html" && ! grep -Eq '<script|http://[^w]|https:' "$work/f.html"; }

few=" alibi rope mrope sinusoidal cope sba liere "
[ -z "${LOCI_SANITIZE:-}" ] || few=" alibi sinusoidal sba "
for name in $("$LOCI" list --json | sed -E 's/.*"name":"([a-z0-9]+)","brief".*/\1/'); do
    size=()
    [ "$name" != liere ] || size=(--len 17) # slow, as each position has matrices of its own
    [ "${few/ $name /}" != "$few" ] && check "$name as a picture" svg "$name" "${size[@]}"
    [ -n "${LOCI_SANITIZE:-}" ] && [ "${few/ $name /}" = "$few" ] && continue
    check "$name fits 80 columns" fits 80 "$name"
done
check "200 columns" fits 200 alibi
check "a narrow terminal" fits 40 alibi --what map
check "a page" html rope:pairing=half+alibi
check "several side by side" html --compare alibi,kerple,rope:pairing=half,base=100,fire
check "JSON" says '^\{"encoding":"alibi".*"figures":\[\{"what":"map".*\}\]\}$' alibi --json
check "a table in Markdown" says '^\| property \|' alibi --what properties --markdown
check "a word of --what" says 'by distance' fire --what curve
check "another head" says 'head 3 of 4' alibi --what map --heads 4 --head 3

# ---- Numbers of textbooks
check "rope, d = 4 at m = 2" says 'R\(2\) q +-0\.416147 +0\.909297 +0\.980067 +0\.198669' rope --example
check "and its product, here and further on" test "$(grep -c -- '-0.034656' "$work/out")" -eq 2
check "sines, d = 4" says 'p = 2 +0\.909297 -0\.416147 +0\.019999 +0\.999800$' sinusoidal --example
check "sines, d = 8" grep -Eq 'p = 1 +0\.841471 +0\.540302 +0\.099833 +0\.995004 +0\.010000 +0\.999950 +0\.001000 +1\.000000' "$work/out"
check "slopes of 8 heads" says 'm +0\.500000 +0\.250000 +0\.125000 +0\.062500 +0\.031250 +0\.015625 +0\.007812 +0\.003906' alibi --example
check "a bucket for each distance up to 15" says '^ +15 +15 +9 +25$' t5 --example
check "and the last from 128 on" grep -Eq '^ +128 +31 +15 +31$' "$work/out"
check "a normalised distance" says '^ +x +0\.000000 +0\.162151 +0\.310183 .* 0\.999998$' fire --example
check "counted tokens" says '^ +row 7 +3\.000000 +3\.000000 +2\.000000 +2\.000000 +2\.000000 +1\.000000 +1\.000000 +0\.000000$' cope --example

# ---- A model's rotation
check "a config.json" says 'trained length 131072' tests/cases/rope/llama-3.1.gguf --what spectrum
check "its decay" says '131072, 524288, 4194304' tests/cases/rope/llama-3.1.gguf --what properties --json

# ---- Invalid arguments
check "an unknown encoding" refused 'rope' ropes
check "nothing to show" refused 'one encoding'
check "an unknown word" refused 'what' alibi --what maps
check "a picture that it has not" refused 'has no spectrum; it has map, curve, attention, properties' alibi --what spectrum
check "a head too many" refused 'head must be from 0 to 7, not 8' alibi --head 8
check "positions too many" refused 'len' alibi --len 100000
check "an example that nobody wrote" refused 'no worked example' xl --example
check "all of what" refused 'needs --what properties' --all
check "one to compare" refused 'needs 2 to' --compare alibi
check "a bad one among others" refused 'alibi2' --compare alibi,alibi2
check "no folder" refused 'none' alibi --svg "$work/none/f.svg"
# a safetensors file: the length of its header in eight bytes, the header, four numbers
{ printf '\102\0\0\0\0\0\0\0{"alibi.slopes":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}' && printf '\0%.0s' {1..16}; } >"$work/t"
check "tensors of a wrong shape" refused 'tensor alibi.slopes must have the shape \[8\] here, not \[4\]' alibi:slopes=given --tensors "$work/t"
check "tensors that are right" says 'head 0' alibi:slopes=given --heads 4 --what map --tensors "$work/t"
check "no tensors" refused 'no such|No such|cannot' alibi --tensors "$work/none"
printf 'damaged' >"$work/damaged"
check "damaged tensors" refused 'damaged' t5 --tensors "$work/damaged"
check "nothing is half written" test ! -e "$work/none"
harness_end
