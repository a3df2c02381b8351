# SPDX-License-Identifier: MIT
# harness.sh -- counted checks, for tests/*.sh:
#
#     . tests/support/harness.sh
#     check NAME COMMAND...
#     check NAME says PATTERN ARGUMENTS...        of the program, after the words in ${under[@]}
#     check NAME refused PATTERN ARGUMENTS...
#     relay WHAT COMMAND...
#     harness_end
#
# $work is a folder that is removed when the test ends.  If a check fails, the output of its command
# is shown, and so are $work/out and $work/err, where a test stores inputs.  After the first 20
# failures they are only counted.
passed=0 failed=0
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

pass() { passed=$((passed + 1)); }
fail() {                                 # TEXT: a failed check
    failed=$((failed + 1))
    [ $failed -gt 20 ] || echo "$(basename "$0" .sh): $1"
}
check() {                                # NAME COMMAND...
    local name=$1
    shift
    if "$@" >"$work/said" 2>&1; then
        pass
        return
    fi
    fail "$name: $*"
    [ $failed -gt 20 ] || cat "$work/said" "$work/out" "$work/err" 2>/dev/null | head -n 20 | sed 's/^/    /'
}
under=()
loci() { timeout 300 "$LOCI" "${under[@]}" "$@" >"$work/out" 2>"$work/err"; }
says() {                                 # PATTERN ARGUMENTS...: exit code 0, nothing on stderr, and a line that matches
    local pattern=$1
    shift
    loci "$@" && [ ! -s "$work/err" ] && grep -Eq -- "$pattern" "$work/out"
}
refused() {                              # PATTERN ARGUMENTS...: exit code 2, nothing on stdout, one line with the pattern
    local pattern=$1
    shift
    loci "$@"
    [ $? -eq 2 ] && [ ! -s "$work/out" ] && [ "$(wc -l <"$work/err")" -eq 1 ] && grep -Eq -- "^loci: .*$pattern" "$work/err"
}
relay() {                                # WHAT COMMAND...: the checks that it prints, "ok ..." and "FAILED ...", up to "end"
    local ended=no line
    while IFS= read -r line; do
        case $line in
            "ok "*) pass ;;
            "FAILED "*) fail "${line#FAILED }" ;;
            end) ended=yes ;;
            *) echo "$line" ;;
        esac
    done < <("${@:2}" 2>&1)
    check "$1 came to the end" test $ended = yes
}
harness_end() {                          # the last line, and the exit code
    [ $failed -le 20 ] || echo "$((failed - 20)) more checks failed"
    echo "$passed passed, $failed failed"
    [ $failed -eq 0 ] && [ $passed -gt 0 ]
}
