#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# scripts/release checks everything before it writes anything, in a small tree with a tag.  Its
# archives, notes and recipes are complete, and the recipes name what CMakeLists.txt has.
. tests/support/harness.sh
version=$(scripts/sources version) tag=v$(scripts/sources version) home=https://loci.invalid/loci
tree=$work/tree clean=$work/clean
mkdir -p "$clean"
cp -r --parents CMakeLists.txt CHANGELOG.md CITATION.cff LICENSE Makefile debian include packaging pyproject.toml python/loci/__init__.py \
    "abi/$version.txt" scripts/{release,sources,dist,sbom} "$clean"
fresh() { rm -rf "$tree" && cp -r "$clean" "$tree"; }
release() { (cd "$tree" && scripts/release "$@") >"$work/out" 2>"$work/err"; }
stops() {                                # SENTENCE ARGUMENTS...: exit code 2, one line, and nothing is written
    local words=$1 before
    shift
    before=$(cd "$tree" && find . "$work" -path '*/.git/*' -prune -o -print | sort)
    release "$@"
    [ $? -eq 2 ] && [ "$(wc -l <"$work/err")" -eq 1 ] && grep -Fq -- "$words" "$work/err" &&
        [ "$before" = "$(cd "$tree" && find . "$work" -path '*/.git/*' -prune -o -print | sort)" ]
}
: >"$work/out" && : >"$work/err" && : >"$work/said"

# ---- The command line
fresh
check "no arguments" stops 'TAG FOLDER'
check "an option that is not there" stops 'no option --all' --all "$tag" "$work/new"
check "an option without a value" stops '--home needs a value' --home
check "a part that is not there" stops '--only has docs, and may have sdist' --only docs "$tag" "$work/new"
check "a project's home that is none" stops 'must begin with https://' --home loci "$tag" "$work/new"
check "--complete is no rehearsal" stops '--complete is for releases' --complete --untagged "$tag" "$work/new"
check "--complete has recipes" stops '--complete needs --home' --complete "$tag" "$work/new"
check "a folder that exists" stops 'goes into a new folder' "$tag" "$work"
check "a tag of another form" stops 'must be like v1.2.3' --untagged "$version" "$work/new"
check "a tag of another version" stops "the tag is v9.9.9, but CMakeLists.txt has version $version" --untagged v9.9.9 "$work/new"

# ---- Versions and the list of changes, each changed by sed
disagrees() {                            # SENTENCE FILE SCRIPT
    fresh
    sed -i -E "$3" "$tree/$2" && ! cmp -s "$clean/$2" "$tree/$2" && stops "$1" --untagged --only "" "$tag" "$work/new"
}
check "the header" disagrees 'LOCI_VERSION in include/loci/loci.h must be' include/loci/loci.h 's/^(#define LOCI_VERSION ).*/\199/'
check "Python" disagrees 'python/loci/__init__.py has version 9.9.9' python/loci/__init__.py 's/^__version__ = .*/__version__ = "9.9.9"/'
check "Python's metadata" disagrees 'pyproject.toml must take its version' pyproject.toml 's/^dynamic = .*/version = "9.9.9"/'
check "Debian" disagrees 'debian/changelog has version 9.9.9' debian/changelog '1s/\(.*\)/(9.9.9)/'
check "a citation" disagrees 'CITATION.cff has version 9.9.9' CITATION.cff '$s/$/\nversion: 9.9.9/'
check "a recipe" disagrees 'vcpkg.json must have @VERSION@' packaging/vcpkg/vcpkg.json 's/@VERSION@/9.9.9/'
check "another version on top" disagrees 'begins with "9.9.9"' CHANGELOG.md '0,/^## /s/^## .*/## 9.9.9/'
check "no date" disagrees 'with the day of the release' CHANGELOG.md "0,/^## /s/^## .*/## $version/"
check "a day that is none" disagrees '2026-02-30 is no day' CHANGELOG.md "0,/^## /s/^## .*/## $version, 2026-02-30/"
check "another day than Debian's" disagrees 'but debian/changelog has' CHANGELOG.md "0,/^## /s/^## .*/## $version, 2001-01-01/"
check "nothing said" disagrees "says nothing under ## $version" CHANGELOG.md '/^## /,/^## 0/{/^## /!d}'
check "something said elsewhere" disagrees 'also has "## Unreleased"' CHANGELOG.md '$s/$/\n\n## Unreleased\n\n- More./'
fresh && rm "$tree/abi/$version.txt"
check "no record of the ABI" stops "scripts/abi --record abi/$version.txt" --untagged --only "" "$tag" "$work/new"

# ---- A rehearsal, and what it writes
fresh
sed -i -E '0,/^## /{/^## /a\\n- One line\n  and [its end](docs/guide.md).\n
}' "$tree/CHANGELOG.md"
check "a rehearsal" release --untagged --only "" --home $home "$tag" "$work/one"
check "its sums" bash -c 'cd "$0" && sha256sum --quiet -c SHA256SUMS' "$work/one"
check "of all files" diff <(cd "$work/one" && find . -type f ! -name SHA256SUMS -printf '%P\n' | sort) <(sed 's/^[^ ]*  //' "$work/one/SHA256SUMS")
check "archive, bill and notes" test -s "$work/one/loci-$version.tar.gz" -a -s "$work/one/loci-$version.spdx" -a -s "$work/one/loci-notes-$version.md"
check "notes have whole lines and links" grep -Fqx -- "- One line and [its end]($home/blob/$tag/docs/guide.md)." "$work/one/loci-notes-$version.md"
check "and those of no other version" test "$(grep -c '^## ' "$work/one/loci-notes-$version.md")" -eq 0
check "again, elsewhere" bash -c 'cd "$0" && umask 077 && TZ=Asia/Tokyo scripts/release --untagged --only "" --home "$1" "$2" "$3"' "$tree" $home "$tag" "$work/two"
check "the same bytes" diff -r "$work/one" "$work/two"
check "without --home" release --untagged --only "" "$tag" "$work/three"
check "recipes are left out" grep -q '^left out: recipes' "$work/out"
check "and are not there" test ! -e "$work/three/loci-recipes-$version.tar.gz"
check "wheels without their script are left out" release --untagged --only wheels "$tag" "$work/four"
check "and it says so" grep -q '^left out: wheels, as there is no scripts/wheels' "$work/out"
check "a part that fails" bash -c 'cd "$0" && printf "#!/bin/sh\necho broken\nexit 1\n" >scripts/wheels && chmod +x scripts/wheels &&
    ! LOCI_ZIG_PYTHON=none scripts/release --untagged --only wheels "$1" "$2"' "$tree" "$tag" "$work/five"
check "writes nothing" test -z "$(find "$work" -maxdepth 1 -name 'five*')"

# ---- Recipes
check "the recipes" tar -xzf "$work/one/loci-recipes-$version.tar.gz" -C "$work"
recipes=$work/loci-recipes-$version
sum() { "sha$1sum" <"$work/one/loci-$version.tar.gz" | cut -d' ' -f1; }
check "every recipe" test "$(find "$recipes" -type f | wc -l)" -eq "$(find packaging -mindepth 2 -type f | wc -l)"
check "no name is left" test -z "$(grep -rE '@[A-Z0-9]+@' "$recipes")"
for file in conda/recipe.yaml homebrew/loci.rb vcpkg/portfile.cmake; do
    check "$file has the archive" grep -Fq "\"$home/releases/download/$tag/loci-$version.tar.gz\"" "$recipes/$file"
done
check "conda's sum" grep -Fqx "  sha256: \"$(sum 256)\"" "$recipes/conda/recipe.yaml"
check "Homebrew's sum" grep -Fqx "  sha256 \"$(sum 256)\"" "$recipes/homebrew/loci.rb"
check "vcpkg's sum" grep -Fqx "    SHA512 \"$(sum 512)\"" "$recipes/vcpkg/portfile.cmake"
while read -r option; do
    check "$option is an option of CMakeLists.txt" grep -Eq "^ *(option|set)\($option " CMakeLists.txt
done < <(grep -rohE 'LOCI_[A-Z]+(=|$)' packaging --include='*.yaml' --include='*.cmake' --include='*.rb' | tr -d = | sort -u)
if python3 -c '' 2>/dev/null; then check "vcpkg.json" python3 -m json.tool "$recipes/vcpkg/vcpkg.json"; fi
if command -v ruby >/dev/null; then check "Homebrew's formula" ruby -c "$recipes/homebrew/loci.rb"; else echo "left out: the syntax of Homebrew's formula, as there is no ruby"; fi
# The portfile calls stand-ins of vcpkg's functions and of cmake, which note what would be built.
mkdir "$work/bin"
printf '#!%s\necho "$*" >>"%s"\n[ "$1" = --install ] && mkdir -p "%s" && cd "%s" && mkdir -p %s && touch %s || true\n' "$BASH" "$work/ran" \
    "$work/port" "$work/port" 'include/loci lib/cmake/loci lib/pkgconfig bin' \
    'include/loci/loci.h lib/libloci.a lib/cmake/loci/loci-config.cmake lib/pkgconfig/loci.pc bin/loci' >"$work/bin/cmake"
chmod +x "$work/bin/cmake"
port() {                                 # FEATURES
    rm -rf "$work/ran" "$work/port"
    cmake -DRUN="$work/bin/cmake" -DPORT="$recipes/vcpkg" -DARCHIVE="$work/one/loci-$version.tar.gz" -DPREFIX="$work/port" "-DFEATURES=$1" \
        -P tests/recipes/vcpkg.cmake
}
check "the port alone" port ""
check "builds the library alone" grep -q 'LOCI_IO=OFF -DLOCI_CLI=OFF -DLOCI_MPI=OFF -DLOCI_TESTS=OFF' "$work/ran"
check "the port with all features" port "io;tools"
check "builds all" grep -q 'LOCI_IO=ON -DLOCI_CLI=ON' "$work/ran"
check "it has the licence" cmp LICENSE "$work/port/share/loci/LICENSE"
sed -i 's/SHA512 "./SHA512 "x/' "$recipes/vcpkg/portfile.cmake"
fails() { ! "$@"; }
check "another archive is refused" fails port ""

# ---- A tag
if ! command -v git >/dev/null; then
    echo "left out: tags, as there is no git here"
    harness_end
    exit
fi
git_() { git -C "$tree" -c user.name=loci -c user.email=loci@invalid -c init.defaultBranch=main -c commit.gpgsign=false -c tag.gpgsign=false "$@" >"$work/said" 2>&1; }
fresh
check "a version in preparation" stops 'not yet released"; a release has its date there' --check "$tag"
day=$(TZ=UTC date -d "$(sed -nE 's/^ -- .*>  (.*)$/\1/p;T;q' debian/changelog)" +%F)
sed -i "0,/^## /s/^## .*/## $version, $day/" "$tree/CHANGELOG.md"
sed -i '1s/) [^;]*;/) UNRELEASED;/' "$tree/debian/changelog"
check "a tree without git" stops 'no checkout of git' --check "$tag"
git_ init && git_ add -A && git_ commit -m one
check "no tag" stops "there is no tag $tag" --check "$tag"
git_ tag "$tag"
check "a Debian package in preparation" stops 'debian/changelog has UNRELEASED' --check "$tag"
sed -i '1s/UNRELEASED/unstable/' "$tree/debian/changelog"
check "changes behind the tag" stops 'has changes that are not in' --check "$tag"
git_ commit -am two
check "a commit behind the tag" stops "but $tag is" --check "$tag"
git_ tag -f -a -m "$tag" "$tag"
check "all is well" release --check "$tag"
check "and it says so" grep -Fqx "$tag can be released" "$work/out"
check "a release" release --only "" --home $home "$tag" "$work/released"
check "what is left out is an error with --complete" stops 'left out: wheels, as there is no scripts/wheels' --complete --only wheels --home $home "$tag" "$work/new"
touch "$tree/more"
check "a file that is not in git" stops 'has changes that are not in' --check "$tag"
harness_end
