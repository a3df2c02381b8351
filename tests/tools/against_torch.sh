#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# scripts/against-torch and lab-against-torch without PyTorch: their errors, and the agreement of
# their structs with include/loci/loci.h.
. tests/support/harness.sh
if ! command -v python3 >/dev/null; then
    echo "scripts/against-torch left out: there is no python3 here"
    pass
    harness_end
    exit
fi
mkdir "$work/none" "$work/some"
echo 'raise ImportError' >"$work/none/torch.py"
echo '' >"$work/some/torch.py"
refused() {                              # WORDS TORCH ARGUMENTS...: with such a torch
    ! PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$work/$2 scripts/against-torch "${@:3}" >"$work/out" 2>"$work/err" &&
        [ ! -s "$work/out" ] && [ "$(wc -l <"$work/err")" -eq 1 ] && grep -Fq -- "against-torch: $1" "$work/err"
}
check "no torch" refused 'needs PyTorch: pip install torch' none
check "no library" refused "there is no $work/libloci.so" some --library "$work/libloci.so"
check "an unknown case" refused "--cases are some of forward,backward,step,alibi,flex,t5, not 'sideways'" some --cases forward,sideways
lab_refused() {                          # WORDS TORCH ARGUMENTS...: of scripts/lab-against-torch
    ! PYTHONPATH=$work/$2 scripts/lab-against-torch "${@:3}" >"$work/out" 2>"$work/err" &&
        [ ! -s "$work/out" ] && [ "$(wc -l <"$work/err")" -eq 1 ] && grep -Fq -- "lab-against-torch: $1" "$work/err"
}
check "the lab's without torch" lab_refused 'needs PyTorch: pip install torch' none
check "the lab's of an unknown size" lab_refused "--sizes are some of XS,S,M,L, not 'Z'" none --sizes S,Z

cc=$(sed -n 's/^CMAKE_C_COMPILER:[A-Z]*=//p' "$LOCI_BUILD/CMakeCache.txt")
cat >"$work/fields.py" <<'END'
import importlib.machinery
import importlib.util
import sys

loader = importlib.machinery.SourceFileLoader("against", "scripts/against-torch")
spec = importlib.util.spec_from_loader("against", loader)
against = importlib.util.module_from_spec(spec)
loader.exec_module(against)
structs = {"view": "View", "desc": "Desc", "host": "Host", "error": "Error", "call": "Call", "grad": "Grad"}
if sys.argv[1] == "c":
    print('#include <stdio.h>\n#include "loci/loci.h"\nint main(void)\n{')
for name, ours in structs.items():
    struct = getattr(against, ours)
    if sys.argv[1] == "c":
        print(f'    printf("{name} %zu\\n", sizeof(loci_{name}));')
        for field, *_ in struct._fields_:
            print(f'    printf("{name}.{field} %zu %zu\\n", offsetof(loci_{name}, {field}), sizeof(((loci_{name} *)0)->{field}));')
    else:
        print(name, against.c.sizeof(struct))
        for field, *_ in struct._fields_:
            place = getattr(struct, field)
            print(f"{name}.{field} {place.offset} {place.size}")
if sys.argv[1] == "c":
    print("    return 0;\n}")
END
fields() { PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$work/none python3 "$work/fields.py" "$1"; }
fields c >"$work/fields.c"
fields python >"$work/ours"
check "a program that says the header's" "$cc" -Iinclude "$work/fields.c" -o "$work/fields"
"$work/fields" >"$work/theirs"
check "there are some" test "$(wc -l <"$work/ours")" -gt 60
check "and they are the same" diff "$work/ours" "$work/theirs"
harness_end
