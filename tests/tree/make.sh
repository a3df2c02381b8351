#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The Makefile: which targets install packages, their announcements, and the printed progress.
# Scripts replace compilers, CMake and apt-get, so nothing is built and nothing is installed.
. tests/support/harness.sh
if ! command -v make >/dev/null; then
    echo "left out: there is no make here"
    pass
    harness_end
    exit
fi
mkdir "$work/bin"
for tool in bash sh make cat mkdir rm tee grep tail wc nproc; do
    ln -s "$(command -v "$tool")" "$work/bin/$tool"
done
a() {                                    # COMMAND BODY: this machine has such a command
    printf '#!%s\n%s\n' "$BASH" "$2" >"$work/bin/$1"
    chmod +x "$work/bin/$1"
}
runs() {                                 # ARGUMENTS of make...
    rm -rf "$work/ran" "$work/build"
    env -u MAKEFLAGS -u MAKELEVEL -u CMAKE_ARGS -u JOBS PATH="$work/bin" make BUILD="$work/build" "$@" \
        >"$work/out" 2>"$work/err"
}
ran() { grep -Fq -- "$1" "$work/ran" 2>/dev/null; }
noted='echo "${0##*/} $*" >>'"'$work/ran'"

a cc 'exit 0'
a id 'echo 0'
a apt-get "$noted"
a env "$noted"
for target in all pictures; do
    check "make $target without cmake stops" test "$(runs $target && echo built)" = ""
    check "it says how to get it" grep -Fq "Debian's cmake, not installed here; \`make deps\` installs" "$work/err"
    check "it installs nothing" test ! -e "$work/ran"
done
check "make explorer without clang stops" test "$(runs explorer && echo built)" = ""
check "it says how to get it" grep -Fq "\`make explorer-deps\` installs" "$work/err"
check "it installs nothing" test ! -e "$work/ran"
check "make deps installs" runs deps
check "what is missing" ran "install -qy --no-install-recommends cmake"
for target in demo check; do
    runs $target
    check "make $target says how long it takes" grep -Eq "^make $target .* minutes on two cores" "$work/out"
    check "then what it installs" test "$(sed -n 2p "$work/out")" = "Installing Debian's cmake (apt-get)."
    check "and installs it" ran "install -qy --no-install-recommends cmake"
done

# ---- Progress
a cmake "$noted
[ \"\$1\" = --build ] || { echo '-- The C compiler'; exit; }
for share in 1 5 9 10 11 47 50 99 100; do echo \"[ \$share%] Building C object\"; done
echo 'src/one.c:1:2: warning: a warning'"
a ctest "$noted
echo '      Start  1: one'
echo ' 1/2 Test  #1: one ......   Passed    0.01 sec'
echo ' 2/2 Test  #2: two ......***Failed    0.01 sec'
echo 'two: why it failed'
exit 8"
check "make" runs JOBS=3 CMAKE_ARGS=-DONE=2
check "CMAKE_ARGS goes to cmake" ran "cmake -S . -B $work/build -DONE=2"
check "JOBS, too" ran "cmake --build $work/build --parallel 3 --target loci_installed"
check "a line per tenth" test "$(grep -oE '^ +[0-9]+ %' "$work/out" | tr -d ' \n')" = 10%40%50%90%100%
check "warnings" grep -Fqx 'src/one.c:1:2: warning: a warning' "$work/out"
check "and no more" test "$(wc -l <"$work/out")" -eq 8
check "the log has all" test "$(grep -c . "$work/build/build.log")" -eq 10
check "make check fails where a test does" test "$(runs check && echo passed)" = ""
check "it shows that test" grep -Fq '#2: two ......***Failed' "$work/out"
check "and its output" grep -Fqx 'two: why it failed' "$work/out"
check "but none that passed" test "$(grep -c '#1: one' "$work/out")" -eq 0
a cmake "[ \"\$1\" = --build ] || exit 0
echo '[ 10%] Building C object'
echo 'src/one.c:1:2: error: a mistake'
exit 2"
check "make fails where cmake does" test "$(runs && echo built)" = ""
check "it shows why" grep -Fqx 'src/one.c:1:2: error: a mistake' "$work/out"
check "and where all of it is" grep -Fq "$work/build/build.log has all of it" "$work/err"
ninja() { bash scripts/progress "$work/log" printf '%s\n' '[1/4] one' '[2/4] two' '[4/4] four' >"$work/out"; }
check "ninja" ninja
check "its progress" test "$(grep -oE '^ +[0-9]+ %' "$work/out" | tr -d ' \n')" = 20%50%100%

harness_end
