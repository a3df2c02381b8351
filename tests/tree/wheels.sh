#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# scripts/wheels says what it cannot do, scripts/binary reads what the linker wrote, and
# scripts/check-wheel finds what is wrong with a wheel.  Nothing is compiled.
. tests/support/harness.sh
python=${PYTHON:-python3}
if ! "$python" -c 'import sys, zipfile; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
    echo "left out: there is no Python 3.10 here"
    pass
    harness_end
    exit
fi

# ---- What it refuses
ends() {                                    # CODE WORDS COMMAND...
    local code=0
    "${@:3}" >"$work/out" 2>&1 || code=$?
    [ "$code" -eq "$1" ] && grep -Fq -- "$2" "$work/out" || { cat "$work/out" && false; }
}
check "no folder" ends 2 "it wants a folder" scripts/wheels
check "an unknown target" ends 2 "amiga is no target; there are macos-arm64 " scripts/wheels "$work/none" amiga
printf '#!/bin/sh\nexit 1\n' >"$work/python" && chmod +x "$work/python"
check "no compiler" ends 3 "left out: wheels, as $work/python has no package ziglang" \
    env LOCI_ZIG_PYTHON="$work/python" scripts/wheels "$work/none"
check "no folder is made for nothing" test ! -e "$work/none"
check "eight targets" test "$(scripts/wheels --list | wc -l)" -eq 8
check "docs/platforms.md has all of them" \
    test -z "$(scripts/wheels --list | while read -r target; do grep -Fq "\`$target\`" docs/platforms.md || echo "$target"; done)"

# ---- What the linker wrote, and a wheel of it
library=$LOCI_BUILD/libloci.so.0
case $(od -An -tu1 -j4 -N2 "$library" 2>/dev/null | xargs):$(od -An -tu2 -j18 -N2 "$library" 2>/dev/null | xargs) in
"2 1:62") processor=x86_64 other=aarch64 ;;
"2 1:183") processor=aarch64 other=x86_64 ;;
*) processor= ;;
esac
if [ -z "$processor" ] || [ -n "${LOCI_SANITIZE:-}" ] || ! command -v nm >/dev/null; then
    echo "left out: this build has no shared library that a wheel might have, or one for sanitizers"
    harness_end
    exit
fi
names() { nm -D --defined-only "$library" | awk '$2 != "A" { sub("@.*", "", $NF); print "exports " $NF }' | sort -u; }
"$python" scripts/binary "$library" >"$work/library"
check "scripts/binary reads the names" diff <(grep '^exports' "$work/library") <(names)
check "the processor" grep -Fxq "for $processor" "$work/library"
check "the library's name" grep -Fxq "name libloci.so.0" "$work/library"
check "a text is no library" ends 1 "is no file of 64 bits" "$python" scripts/binary README.md

cat >"$work/pack.py" <<'END'
import base64, hashlib, sys, zipfile
build, *pairs = sys.argv[1:]
read = lambda name: open(f"{build}/{name}", "rb").read()
built = {f"loci/_lib/lib{n}.so.0": read(f"lib{n}.so.0") for n in ("loci", "loci-gpu", "loci-io", "loci-lab")}
built["loci/_bin/loci"] = read("loci")
info = "loci_attention-1.0.dist-info/"
for number, pair in enumerate(pairs):
    tag, change = pair.split(":")
    files = built | {info + "WHEEL": f"Tag: py3-none-{tag if change != 'tag' else 'any'}\n".encode()}
    record = ""
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(data) + (change == 'size' and name == info + 'WHEEL')}\n"
    files[info + "RECORD"] = (record + info + "RECORD,,\n").encode()
    if change == "missing":
        del files["loci/_lib/libloci-lab.so.0"]
    with zipfile.ZipFile(f"loci_attention-{number}-py3-none-{tag}.whl", "w") as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (0o644 if change == "mode" else 0o755) << 16
            archive.writestr(entry, data)
END
good=manylinux_2_99_$processor
wheels=("$good:" "manylinux_2_2_$processor:" "manylinux_2_99_$other:" "musllinux_1_2_$processor:" any: "$good:missing" "$good:mode" "$good:size" "$good:tag")
if [ -e "$LOCI_BUILD/libloci-io.so.0" ] && [ -e "$LOCI_BUILD/libloci-lab.so.0" ] && [ -e "$LOCI_BUILD/libloci-gpu.so.0" ]; then
    checker=$PWD/scripts/check-wheel build=$(cd "$LOCI_BUILD" && pwd)
    # what it says, less that this build has jansson outside
    (cd "$work" && "$python" pack.py "$build" "${wheels[@]}" && "$python" "$checker" ./*.whl | grep -v libjansson) >"$work/out" || true
    about() { grep -F "loci_attention-$1-" "$work/out"; }
    finds() { about "$1" | grep -Fq -- "$2"; }
    check "a wheel of this build" test -z "$(about 0)"
    check "symbols that are too new" finds 1 "libloci.so.0 wants GLIBC_2."
    check "another processor" finds 2 "loci for $processor, which"
    check "another C library" finds 3 "needs libc.so.6, which"
    check "no such tag" finds 4 "any is no tag"
    check "a missing library" finds 5 "loci/_lib/libloci-lab.so.0 is missing"
    check "a program that cannot be run" finds 6 "it lacks the permission"
    check "a size in the record" finds 7 "WHEEL is not what RECORD says"
    check "a tag inside" finds 8 "its tag inside is py3-none-any"
fi
harness_end
