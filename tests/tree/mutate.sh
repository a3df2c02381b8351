#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# scripts/mutate on a project of one file with known mistakes.
. tests/support/harness.sh
left_out() { printf "mutate: left out: %s\n0 passed, 0 failed\n" "$*"; exit 0; }
command -v python3 >/dev/null && command -v git >/dev/null || left_out "there is no python3 or no git here"
[ -z "${LOCI_SANITIZE:-}" ] || left_out "it does not ask this build"

mkdir -p "$work"/toy/{scripts,tests/toy,src/encodings,src/engine,src/terms}
cp scripts/mutate "$work/toy/scripts/"
cd "$work/toy" || exit 2
cat >CMakeLists.txt <<'EOF'
cmake_minimum_required(VERSION 3.21)
project(toy C)
add_library(loci_toy OBJECT src/encodings/toy.c)
add_library(loci_internal STATIC $<TARGET_OBJECTS:loci_toy>)
add_executable(test_sum tests/toy/sum.c)
target_link_libraries(test_sum loci_internal)
set_target_properties(test_sum PROPERTIES RUNTIME_OUTPUT_DIRECTORY tests)
EOF
cat >src/encodings/toy.c <<'EOF'
/* 1 + 2 < 3 */
const char *toy_text = "4 - 5 * 6";
int toy_sum(const int *x, int n);
int toy_sum(const int *x, int n)
{
    int s = 0;
    for (int i = 0; i < n; i++) s += x[i];
    return s;
}
int toy_next(int n);
int toy_next(int n) { return n + 1; }
int toy_none(int n);
int toy_none(int n) { return n + 0; }
EOF
cat >tests/toy/sum.c <<'EOF'
int toy_sum(const int *x, int n);
int toy_next(int n);
int main(void)
{
    static const int x[] = { 9, 1, 2, 3, 4 };
    return toy_sum(x, 4) != 15;
}
EOF
echo "# none" >scripts/mutate.same
git init -q . && git add . && git -c user.name=a -c user.email=a@b commit -qm toy

run() { scripts/mutate --jobs 1 --tests '^sum$' "$@" >"$work/out" 2>"$work/err"; }
says() { grep -Eq "$1" "$work/out"; }
run --list --count 99
check "mistakes are in code, not in comments and texts" \
    test "$(sort "$work/out" | tr '\n' ';')" = "$(sed 's/$/;/' <<'EOF' | tr -d '\n'
src/encodings/toy.c:11: `-` for `+`
src/encodings/toy.c:11: `2` for `1`
src/encodings/toy.c:13: `-` for `+`
src/encodings/toy.c:13: `1` for `0`
src/encodings/toy.c:6: `1` for `0`
src/encodings/toy.c:7: `-=` for `+=`
src/encodings/toy.c:7: `1` for `0`
src/encodings/toy.c:7: `<=` for `<`
EOF
)"
run --count 99
check "below the floor it fails" test $? -eq 1
check "what the tests look at is noticed" test "$(grep -c 'noticed by sum (' "$work/out")" -eq 4
check "what they do not is named, with its line" grep -Fx '    int toy_next(int n) { return n [+ -> -] 1; }' "$work/out"
check "and how much that is" says '^4 of 7 are noticed, 57.1 %; the floor is 95 %$'
check "what compiles to the same is no mistake" test -z "$(grep '13: `-`' "$work/out")"
sed -i 's/+ 1/- 1/' build-mutate/0/tree/src/encodings/toy.c
run --count 99 --floor 50
check "above the floor it does not" test $? -eq 0
check "and what is known is not tried again" says '^4 of 7 are noticed' &&
    check "at all" test -z "$(grep 'noticed by sum (' "$work/out")"
sed -i 's/!= 15/!= 15 || toy_next(1) != 2/' tests/toy/sum.c
run --count 99 --left --floor 80
check "with a better test what was left is noticed, and a mistake that lay about is gone" says '^6 of 7 are noticed'
printf '# known\n\nsrc/encodings/toy.c\nint toy_none(int n) { return n + [0 -> 1]; }\nNobody\ncalls it.\n' >scripts/mutate.same
run --count 99
check "what changes nothing is passed over" says '^1 that change nothing are passed over$' && check "and does not count" says '^6 of 6 are noticed, 100.0 %'
printf '\nsrc/encodings/toy.c\nint toy_none(int n) { return n [+ -> *] 0; }\nNo such line.\n' >>scripts/mutate.same
run --count 99
check "of a line that is not there it says so" grep -q 'mutate.same has a line that src/encodings/toy.c has not: int toy_none' "$work/err"
echo >scripts/mutate.same
sed -i 's/!= 15/!= 16/' tests/toy/sum.c && rm build-mutate/found
run --count 99
check "a test that fails anyway is said" grep -q 'sum fails without any mistake' "$work/err"
harness_end
