#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What `make site` makes without MkDocs: its pages and the references of C and Python.  Every public
# name has an anchor, a page of docs/ is in the navigation, lists are those of GitHub, and the check
# of the site finds what is planted.  .ci/run makes the whole site.
. tests/support/harness.sh
if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
    echo "left out: there is no Python 3.10 here"
    pass
    harness_end
    exit
fi
pages=$work/pages
check "pages are made" python3 scripts/site-pages "$pages"
grep -ohE '(id="|\{ #)[^" ]+' "$pages"/api/*/*.md | sed -E 's/^(id="|\{ #)//' | sort -u >"$work/anchors"
{
    cat abi/*.map | grep -oE '\bloci_[a-z0-9_]+;' | tr -d ';'
    sed -nE 's/^(struct|field|enumerator|constant) ((loci|LOCI)_[A-Za-z0-9_.]+) .*/\2/p' "$(printf '%s\n' abi/*.txt | sort -V | tail -n 1)"
} | sort -u >"$work/names"
check "there are names" test "$(wc -l <"$work/names")" -gt 300
check "C has an anchor for each" test -z "$(comm -23 "$work/names" "$work/anchors" | tee "$work/out")"
check "Python has an anchor of a method" grep -Fqx loci.Plan.init "$work/anchors"
while read -r page; do
    check "$page is in the navigation" grep -Fq ": $page" mkdocs.yml
done < <(find docs -maxdepth 1 -name '*.md'; find docs/quality -name '*.md')
check "a link to a header leads to its reference" grep -Fq '](../api/c/loci.md)' "$pages/docs/guide.md"
check "a link to a source leads to its page" test -f "$pages/files/examples/infer.c.md"
check "the notebook is a page" grep -Fqx '# Positions: what order means to attention' "$pages/examples/positions.md"
check "the explorer is not there" grep -Fq 'make explorer site' "$pages/docs/explorer.md"

# ---- Lists, as Python-Markdown reads them: WHAT, then a text and what becomes of it, | ends a line
cat >"$work/lists" <<'END'
a list in a paragraph
text|- a|- b
text||- a|- b
an item of two lines
- a|  b
- a|    b
an item below an item
- a|  - b|    c
- a|    - b|        c
code in an item
1. a||       code||2. b
1. a||        code||2. b
an item behind a block
- a||  b|- c
- a||    b||- c
a number in a sentence
- at|  8. And
- at|    8\. And
a fenced block is left alone
```|- a|  - b|```
```|- a|  - b|```
and so is indented code
    - a|      - b
    - a|      - b
END
python3 - "$work/lists" >"$work/read" <<'END'
import importlib.machinery, importlib.util, sys
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("pages", "scripts/site-pages")
pages = importlib.util.module_from_spec(importlib.util.spec_from_loader("pages", loader))
loader.exec_module(pages)
lines = open(sys.argv[1]).read().splitlines()
for what, given, wanted in zip(lines[::3], lines[1::3], lines[2::3]):
    got = pages.four_spaces(given.replace("|", "\n")).replace("\n", "|")
    print(what, "holds" if got == wanted else f"is read as {got}")
END
while read -r line; do
    check "$line" test -z "${line##* holds}"
done <"$work/read"
check "there are lists" test "$(wc -l <"$work/read")" -eq 8

# ---- The check of the site
site=$work/site
mkdir -p "$site"
runs() { python3 scripts/site-check "$site" >"$work/out" 2>&1; }
said() { grep -Fq "site-check: $1" "$work/out"; }
check "no site fails" test "$(runs && echo passed)" = ""
check "it says so" said "$site is no site"
mkdir -p "$site/search"
echo '{"docs": []}' >"$site/search/search_index.json"
cat >"$site/index.html" <<'END'
<h1 id="top">a</h1><a href="none.html">a</a><a href="#bottom">a</a><a href="#top">a</a>
<img src="none.svg"><script src="https://example.org/a.js"></script><pre class="mermaid">a</pre>
END
echo 'a { background: url(//example.org/a.png) }' >"$site/a.css"
check "a site with mistakes fails" test "$(runs && echo passed)" = ""
check "a link" said "index.html: none.html leads nowhere"
check "an anchor" said "index.html: #bottom names no anchor"
check "a picture" said "index.html: none.svg leads nowhere"
check "a script" said "index.html loads https://example.org/a.js from elsewhere"
check "a style" said "a.css loads"
check "a diagram" said "index.html has a diagram"
check "a name" said "the reference of C has no anchor loci_plan_create"
check "the search" said "the search does not know alibi"
check "an anchor that is there" test "$(grep -c '#top' "$work/out")" -eq 0

# ---- Notebooks
book() { printf '{"cells": [{"cell_type": "code", "execution_count": null, "outputs": [%s], "source": ["%s"]}]}' "$2" "$1" >"$work/a.ipynb"; }
executes() { python3 scripts/run-notebook python3 "$work/a.ipynb" >"$work/out" 2>&1; }
book 'assert 1 == 1' ''
check "a notebook runs" executes
book 'assert 1 == 2' ''
check "one fails" test "$(executes && echo ran)" = ""
check "it says where" grep -Fq 'cell 1' "$work/out"
book '%matplotlib inline' ''
check "a magic is refused" test "$(executes && echo ran)" = ""
book '1' '{}'
check "outputs are refused" test "$(executes && echo ran)" = ""
check "in a sentence" grep -Fq 'cell 1 is stored with its output' "$work/out"
check "ours is stored without" python3 -c 'import json, sys; sys.exit(any(c.get("outputs") for c in json.load(open("examples/positions.ipynb"))["cells"]))'
harness_end
