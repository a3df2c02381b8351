#!/bin/bash
# SPDX-License-Identifier: MIT
# Two source archives have the same bytes.  An archive has all sources, and can create itself again
# when unpacked.  The bill of materials has the fields that SPDX 2.3 requires, and the sums of the
# files.
. tests/support/harness.sh
version=$(scripts/sources version)
check "the version is the program's" test "$("$LOCI" version)" = "loci $version"
dist() { (cd "$1" && umask "$3" && TZ=$4 scripts/dist "$2" >/dev/null); }
archive=loci-$version.tar.gz bill=loci-$version.spdx
check "dist" dist . "$work/one" 022 UTC
check "dist, again" dist . "$work/two" 077 Asia/Tokyo
check "the same archive" cmp "$work/one/$archive" "$work/two/$archive"
check "the same bill" cmp "$work/one/$bill" "$work/two/$bill"
check "their sums" bash -c 'cd "$0" && sha256sum --quiet -c "$1"' "$work/one" "loci-$version.sha256"
mkdir "$work/x" && tar -xzf "$work/one/$archive" -C "$work/x"
tree=$work/x/loci-$version
check "all sources" diff <(scripts/sources files | tr '\0' '\n') <(cd "$tree" && find . -type f -printf '%P\n' | sort)
alike() { (cd "$tree" && scripts/sources files | xargs -0 sha256sum) | sha256sum --quiet -c; }
check "as they are" alike
check "the archive from the archive" dist "$tree" "$work/three" 022 UTC
check "is the same" cmp "$work/one/$archive" "$work/three/$archive"
check "and so is its bill" cmp "$work/one/$bill" "$work/three/$bill"
check "cmake takes it" cmake -S "$tree" -B "$work/build" -DLOCI_TESTS=OFF -DLOCI_ISAS=none

# ---- The bill: required fields, once and well-formed; all names that relationships use; every sum.
whole() {                                # BILL ROOT: prints the mistakes
    awk '
        function once(tag, form) {
            if (count[tag] != 1) print what ": " tag " stands " count[tag] + 0 " times"
            else if (value[tag] !~ form) print what ": " tag " is " value[tag]
        }
        function ends() {
            if (what == "document") {
                once("SPDXVersion", "^SPDX-2\\.3$"); once("DataLicense", "^CC0-1\\.0$"); once("SPDXID", "^SPDXRef-DOCUMENT$")
                once("DocumentName", "."); once("DocumentNamespace", "^https?://[^# ]+$"); once("Creator", "^(Tool|Person|Organization): ")
                once("Created", "^[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]T[0-9][0-9]:[0-9][0-9]:[0-9][0-9]Z$")
            } else if (what == "package") {
                packages++
                once("PackageName", "."); once("SPDXID", "^SPDXRef-[A-Za-z0-9.-]+$"); once("PackageDownloadLocation", "^NOASSERTION$")
                once("PackageLicenseConcluded", "."); once("PackageLicenseDeclared", "."); once("PackageCopyrightText", ".")
                once("FilesAnalyzed", "^(true|false)$")
                if (value["FilesAnalyzed"] == "true") { once("PackageVerificationCode", "^[0-9a-f]+$"); once("PackageLicenseInfoFromFiles", ".") }
            } else if (what == "file") {
                files++
                once("FileName", "^\\./"); once("SPDXID", "^SPDXRef-"); once("LicenseConcluded", "."); once("LicenseInfoInFile", "^(MIT|NONE)$")
                once("FileCopyrightText", ".")
                if (count["FileChecksum"] != 2) print value["FileName"] " has " count["FileChecksum"] + 0 " sums"
            }
            split("", count); split("", value)
        }
        BEGIN { what = "document" }
        /^$/ { next }
        !/^[A-Za-z0-9]+: ./ { print "line " NR " is no tag: " $0; next }
        /^PackageName: / { ends(); what = "package" }
        /^FileName: / { ends(); what = "file" }
        { tag = $1; sub(":", "", tag); text = $0; sub("^[A-Za-z0-9]+: ", "", text); count[tag]++; value[tag] = text }
        tag == "SPDXID" { if (text in ids) print text " twice"; ids[text] = 1 }
        tag == "Relationship" { used[$2] = used[$4] = 1; if ($3 == "DESCRIBES") describes = 1 }
        END {
            ends()
            for (id in used) if (!(id in ids)) print "a relationship of " id ", which is not there"
            for (id in ids) if (!(id in used)) print id " has no relationship"
            if (!describes) print "the document describes nothing"
            if (packages < 2 || files < 100) print packages + 0 " packages, " files + 0 " files"
        }' "$1"
    (cd "$2" && sed -nE 's/^FileName: //p' "$1" | sort | diff - <(scripts/sources files | tr '\0' '\n' | sed 's,^\(\./\)\?,./,' | sort))
    for kind in 1 256; do
        sed -nE "s/^FileName: //p; s/^FileChecksum: SHA$kind: //p" "$1" | paste - - | awk -F'\t' '{ print $2 "  " $1 }' |
            (cd "$2" && "sha${kind}sum" --quiet -c 2>&1)
    done
    local code
    code=$(sed -n 's/^FileChecksum: SHA1: //p' "$1" | sort | tr -d '\n' | sha1sum | cut -d' ' -f1)
    grep -Fqx "PackageVerificationCode: $code" "$1" || echo "the verification code is not $code"
}
says_nothing() { whole "$@" >"$work/out"; [ ! -s "$work/out" ]; }
finds() {                                # PATTERN SCRIPT: in a bill changed by sed
    sed -E "$2" "$work/one/$bill" >"$work/changed"
    ! cmp -s "$work/one/$bill" "$work/changed" && whole "$work/changed" . >"$work/out"
    grep -Eq -- "$1" "$work/out"
}
check "the bill" says_nothing "$work/one/$bill" .
check "and of the unpacked sources" says_nothing "$work/three/$bill" "$tree"
check "a licence that is missing" finds 'file: LicenseConcluded stands 0 times' '0,/^LicenseConcluded/{/^LicenseConcluded/d}'
check "a wrong sum" finds 'FAILED|verification code' '0,/^FileChecksum: SHA1: ./s/^(FileChecksum: SHA1: )./\1x/'
check "a file that is left out" finds '^> \./' '0,/^FileName/s/^FileName: .*/FileName: .\/none/'
check "a package without a name" finds 'package: PackageVersion|is no tag|stands' 's/^PackageDownloadLocation: .*//'
check "a relationship to nothing" finds 'relationship of SPDXRef-nothing' 's/^(Relationship: SPDXRef-loci DEPENDS_ON ).*/\1SPDXRef-nothing/'
check "a time that is none" finds 'document: Created' 's/^Created: .*/Created: today/'
check "every file that says its licence says ours" test -z "$(scripts/sources files | xargs -0 grep -ohE '^.{0,8}SPDX-License-Identifier: .*' | grep -v 'SPDX-License-Identifier: MIT' | grep -v sed)"
harness_end
