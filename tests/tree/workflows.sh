#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The workflows of .github: every script, file, preset, target of make and test that they name is
# there, actions are pinned to commits, every job has a limit, and jobs may write only where listed
# here.  Nothing here runs a workflow.  With actionlint or zizmor on the path, they read them, too.
. tests/support/harness.sh

# Jobs that have more than `contents: read`, with what they have.
allowed='release/attest: attestations id-token
release/pypi: id-token
release/github: contents
release/site: id-token pages'
# Actions, each of one commit.
actions='actions/attest-build-provenance actions/checkout actions/deploy-pages actions/download-artifact actions/upload-artifact
actions/upload-pages-artifact pypa/gh-action-pypi-publish'

code() { grep -hv '^ *#' "$1"; }
targets() { sed -nE 's/^([a-z-]+):.*/\1/p' Makefile; }
presets() { sed -nE 's/^ *(- )?preset:? ([a-z]+).*/\2/p' "$1" | sort; }
tests() { find tests lab/tests -name '*.[cs]*' -printf '%f\n' | sed 's/\..*//'; }

mistakes() {                             # FOLDER: prints what is wrong with its workflows
    local file name path line action
    for file in "$1"/*.yml; do
        name=$(basename "$file" .yml)
        for path in name on permissions concurrency jobs; do
            grep -Eq "^$path:( |\$)" "$file" || echo "$name has no $path"
        done
        sed -n '/^permissions:/,/^[a-z]*:$/p' "$file" | grep -Fqx '  contents: read' || echo "$name does not begin with contents: read"
        # Each job has a runner of a version, a limit, and no more rights than allowed.
        awk -v name="$name" '
            function ends() {
                if (job == "") return
                if (runner !~ /^(ubuntu|macos|windows)-[0-9]|matrix\.runner/) print name "/" job ": its runner is " runner
                if (limit == "") print name "/" job " has no timeout-minutes"
                if (rights != "") print "rights " name "/" job ":" rights
            }
            /^jobs:/ { on = 1; next }
            on && /^  [a-z-]+:$/ { ends(); job = $1; sub(":", "", job); runner = limit = rights = ""; next }
            on && /^    runs-on: / { runner = substr($0, 14) }
            on && /^    timeout-minutes: [0-9]+$/ { limit = $2 }
            /^    permissions:/ { inside = 1; next }
            /^    [a-z]/ { inside = 0 }
            inside && $2 == "write" { sub(":", "", $1); rights = rights " " $1 }
            END { ends() }' "$file" | while IFS= read -r line; do
            case $line in
                "rights "*) grep -Fqx "$(tr ' ' '\n' <<<"${line#* }" | sed 1d | sort | xargs echo "$(cut -d' ' -f2 <<<"$line")")" <<<"$allowed" || echo "not listed: ${line#* }" ;;
                *) echo "$line" ;;
            esac
        done
        while IFS= read -r line; do
            action=${line%%@*}
            [[ $line =~ ^[a-z/-]+@[0-9a-f]{40}\ #\ v[0-9]+\.[0-9]+\.[0-9]+$ ]] || echo "$name: $line is not pinned to a commit with its version"
            grep -Fqw -- "$action" <<<"$actions" || echo "$name: $action is not listed"
        done < <(sed -n 's/.* uses: //p' "$file" | sort -u)
        [ "$(grep -c 'uses: actions/checkout@' "$file")" -eq "$(grep -c 'persist-credentials: false' "$file")" ] || echo "$name: a checkout keeps its token"
        # Text from outside reaches commands as a variable only.
        ! grep -nE '^ *(- )?run: .*\$\{\{' "$file" | grep -v '^[0-9]*: *- run: \${{ matrix\.command }}$' || echo "$name: a command has an expression in it"
        while read -r path; do
            [ -f "$path" ] && [ -x "$path" ] || echo "$name: $path cannot be run"
        done < <(code "$file" | grep -oE '(scripts/[a-z0-9-]+|\.ci/[a-z]+)' | sort -u)
        while read -r path; do
            compgen -G "$path" >/dev/null || echo "$name: $path is not in the tree"
        done < <(code "$file" | grep -oE '(^|[ "])(python|tests|docs|include)/[A-Za-z0-9/*._-]*' | sed 's/^[ "]//; s,/$,,' | sort -u)
        while read -r path; do
            targets | grep -Fqx "$path" || echo "$name: make $path is no target"
        done < <(code "$file" | grep -oE 'run: make [a-z][a-z -]*' | sed 's/run: make //' | tr ' ' '\n' | grep '^[a-z]' | sort -u)
        while read -r path; do
            grep -Eq "\"(name|configurePreset)\": \"$path\"" CMakePresets.json || echo "$name: $path is no preset"
        done < <(presets "$file")
        while read -r path; do
            tests | grep -Fqx "$path" || echo "$name: $path is no test"
        done < <(code "$file" | sed -nE 's/.*ctest .*-R "\^\((.*)\)\$".*/\1/p; s/.*LOCI_TEST_FILTER=([a-z|]+).*/\1/p' | tr '|' '\n' | sort -u)
        while read -r path; do
            grep -Eq "^parts=\(.*\b$path\b" scripts/release || echo "$name: $path is no part of a release"
        done < <(sed -nE 's/^ *part: \[(.*)\]/\1/p' "$file" | tr -d '" ' | tr ',' '\n' | sort -u)
        while read -r path; do
            code scripts/release | grep -Eq -- "^ +(--[a-z]+ \| )*$path( \| --[a-z]+)*\)" || echo "$name: scripts/release has no option $path"
        done < <(code "$file" | grep -E 'scripts/release' | grep -oE -- ' --[a-z]+' | sort -u)
    done
    path=$(sed -n 's/.* uses: //p' "$1"/*.yml | sort -u | sed 's/@.*//' | uniq -d)
    [ -z "$path" ] || echo "$path has two versions"
}
none() { [ ! -s "$1" ]; }
mistakes .github/workflows >"$work/out"
check "the workflows" none "$work/out"
: >"$work/out"

# ---- ci.yml has what .ci/run has
ci=.github/workflows/ci.yml
check "it has the presets of .ci/run" diff <(presets .ci/run) <(presets $ci)
while read -r part; do
    check ".ci/run has $part" grep -Fq -- "$part" .ci/run
done < <(sed -n '/^        command:/,/^    [a-z]/s/^          - //p' $ci)
check "a release needs a tag" grep -Fqx '    tags: ["v*"]' .github/workflows/release.yml

# ---- Planted mistakes are found
finds() {                                # WORDS FILE SCRIPT: in copies of which one is changed by sed
    rm -rf "$work/copy" && cp -r .github/workflows "$work/copy"
    sed -i -E "$3" "$work/copy/$2.yml"
    ! cmp -s ".github/workflows/$2.yml" "$work/copy/$2.yml" && mistakes "$work/copy" >"$work/out" && grep -Fq -- "$1" "$work/out"
}
check "a job without a limit" finds 'ci/format has no timeout-minutes' ci '0,/^    timeout-minutes/{/^    timeout-minutes/d}'
check "a runner without a version" finds 'its runner is ubuntu-latest' ci '0,/ubuntu-24.04/s//ubuntu-latest/'
check "a tag in place of a commit" finds 'is not pinned' ci '0,/@[0-9a-f]{40} # /s//@/'
check "another action" finds 'actions/cache is not listed' ci '0,/actions\/checkout@/s//actions\/cache@/'
check "another version" finds 'actions/checkout has two versions' release '0,/actions\/checkout@8/s//actions\/checkout@9/'
check "no permissions" finds 'ci has no permissions' ci '/^permissions:/,/^  contents/d'
check "more permissions" finds 'not listed: release/build: contents' release '0,/^      contents: read/s//      contents: write/'
check "another job's permissions" finds 'not listed: release/github: contents id-token' release 's/^      contents: write/&\n      id-token: write/'
check "no concurrency" finds 'ci has no concurrency' ci 's/^concurrency:/other:/'
check "a token that stays" finds 'a checkout keeps its token' ci '0,/persist-credentials: false/s//clean: true/'
check "an expression in a command" finds 'a command has an expression' release 's/run: cd release/run: cd ${{ github.ref_name }}/'
check "a script that is not there" finds 'scripts/publish cannot be run' release 's,scripts/release --check,scripts/publish --check,'
check "a file that is not there" finds 'tests/golden/*.safetensors is not in the tree' ci 's,tests/cases/\*,tests/golden/*,'
check "a target that is not there" finds 'make test is no target' ci 's/make check CMAKE/make test CMAKE/'
check "a preset that is not there" finds 'msan is no preset' ci 's/preset: asan/preset: msan/'
check "a test that is not there" finds 'hash is no test' ci 's/\(hashes\|/(hash|/'
check "a part of no release" finds 'docker is no part' ci 's/npm, debian/npm, docker/'
check "an option that is not there" finds 'has no option --all' release 's/--complete/--all/'
: >"$work/out"

# ---- Programs that know workflows
for tool in "actionlint -shellcheck= -pyflakes=" "zizmor --offline --no-progress --quiet"; do
    if command -v "${tool%% *}" >/dev/null; then
        # shellcheck disable=SC2086
        check "${tool%% *}" $tool .github/workflows/*.yml
    else
        echo "left out: ${tool%% *}, which is not here"
    fi
done
harness_end
