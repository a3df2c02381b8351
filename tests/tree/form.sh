#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The files around the code: the files of .github are YAML, templates name existing commands, pages
# name existing targets of make, CITATION.cff agrees with LICENSE, and files follow .editorconfig.
# tests/tree/workflows.sh reads the workflows.
. tests/support/harness.sh
mapfile -t yaml < <(find .github -name '*.yml' | sort; echo CITATION.cff)

# ---- YAML
if python3 -c 'import yaml' 2>/dev/null; then
    parses() { python3 -c 'import sys, yaml; assert isinstance(yaml.safe_load(open(sys.argv[1])), dict)' "$1"; }
else
    # Without a parser: keys, items, comments or indented text, in steps of two and never with a
    # tab.
    parses() { ! grep -P '\t' "$1" && ! grep -Evn '^(  )*(- )?([#/A-Za-z"]|$)' "$1"; }
fi
has() {                                  # FILE KEY...: at the top
    local file=$1 key
    for key in "${@:2}"; do grep -Eq "^$key:( |\$)" "$file" || return 1; done
}
for file in "${yaml[@]}"; do
    check "$file is YAML" parses "$file"
done
for file in .github/ISSUE_TEMPLATE/*.yml; do
    check "$file is a form" has "$file" name description body
    check "$file has each id once" test -z "$(sed -n 's/^ *id: //p' "$file" | sort | uniq -d)"
done
for command in 'loci version' 'loci info'; do
    check "bug reports ask for $command" grep -Fq "\`$command\`" .github/ISSUE_TEMPLATE/bug.yml
    check "$command is a command" "$LOCI" ${command#loci }
done

check "and for the report of Python" grep -Fq '`python -m loci`' .github/ISSUE_TEMPLATE/bug.yml

# ---- Targets of make, wherever they are named
targets() { sed -nE 's/^([a-z-]+):.*/\1/p' Makefile; }
while read -r target; do
    check "make $target is a target" grep -Fqx "$target" <(targets)
done < <(cat .github/workflows/*.yml .ci/run .github/*.md ./*.md docs/*.md |
    grep -oE '(^    |`|run: |if |^check "make [a-z]+" )make [a-z][a-z-]*' | sed 's/.*make //' | sort -u)

# ---- Authors and licence
holder=$(sed -nE 's/^Copyright \(c\) [0-9]+ (.*)/\1/p' LICENSE)
check "the authors are those of LICENSE" grep -Fqx "  - name: $holder" CITATION.cff
check "and so is the licence" grep -Fqx "license: $(sed -n '1s/ License//p' LICENSE)" CITATION.cff

# ---- Form of text files, except for inputs of tests
scripts/sources files | grep -zvE '^tests/(cases|fuzz/kept)/' | xargs -0 grep -lIZ '' >"$work/files"
none() { [ -z "$("$@" <"$work/files")" ]; }
check "there are files" test "$(tr -cd '\0' <"$work/files" | wc -c)" -gt 300
check "no line ends with a blank" none xargs -0 grep -nE '[[:blank:]]+$'
check "no line ends with a carriage return" none xargs -0 grep -n $'\r$'
check "no line is indented by tabs" none xargs -0 awk '/^ *\t/ && FILENAME !~ /Makefile$|debian\/rules$/ { print FILENAME ":" FNR }'
unended() { while IFS= read -rd '' file; do [ -z "$(tail -c 1 "$file")" ] || echo "$file"; done; }
check "every file ends with a line's end" none unended
harness_end
