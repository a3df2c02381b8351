#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# `make deps` and missing packages: it installs them as root, uses sudo otherwise, or names the
# missing ones in one sentence.  With --check nothing is installed.
. tests/support/harness.sh
mkdir "$work/bin"

a() {                                    # COMMAND BODY: this machine has such a command
    printf '#!%s\n%s\n' "$BASH" "$2" >"$work/bin/$1"
    chmod +x "$work/bin/$1"
}
need() { PATH=$work/bin "$BASH" scripts/need "$@" >"$work/out" 2>"$work/err"; }
stops() {                                # WORDS ARGUMENTS...: exit code 1, and one line that has the words
    local words=$1
    shift
    ! need "$@" && [ "$(wc -l <"$work/err")" -eq 1 ] && grep -Fq -- "$words" "$work/err"
}
installs() {                             # LINES ARGUMENTS...: which commands ran
    local lines=$1
    shift
    need "$@" && [ "$(cat "$work/ran")" = "$lines" ]
}
root='echo 0' user='echo 1000'
noted='echo "${0##*/} $*" >>'"'$work/ran'"
line='DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends'

a id "$user" && a that ':'
check "a command that is there" need that:package
check "and it says so" grep -Fqx "Nothing to install." "$work/out"
check "a file that is there" need "$work/bin/that:package"
check "no apt-get" stops "there is no apt-get" this:one that:two other:three
check "and what is missing" grep -Fq "Debian's one three," "$work/err"
check "a file that is not there" stops "Debian's folder," "$work/none:folder"
check "a header without a compiler" stops "Debian's libx-dev," x.h:libx-dev
a cc 'exit 0'
check "a header" need x.h:libx-dev
a cc 'exit 1'
check "a header that is not there" stops "Debian's libx-dev," x.h:libx-dev
a apt-get "$noted"
check "a user without sudo" stops "apt-get install one" this:one that:two
a sudo "$noted"
check "a user with sudo" installs "sudo apt-get update -q
sudo env $line one three" this:one that:two other:three
check "and what is installed" grep -Fqx "Installing Debian's one three (sudo apt-get)." "$work/out"
rm "$work/ran"
check "a check installs nothing" stops "Debian's one three, not installed here; \`make deps\` installs" \
    --check deps this:one that:two other:three
check "and runs nothing" test ! -e "$work/ran"
check "a check of what is there" need --check deps that:package
check "says nothing" test ! -s "$work/out"
a id "$root" && a env "$noted"
check "root" installs "apt-get update -q
env $line one" this:one
a apt-get 'echo out of reach >&2; exit 100' && rm "$work/ran"
check "a source that is out of reach" installs "env $line one" this:one
a env 'exit 100' && a apt-get :
check "no such package" stops "apt-get could not install it" this:one

harness_end
