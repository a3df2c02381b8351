#!/bin/bash
# SPDX-License-Identifier: MIT
# Files that the program reads and writes: outputs never overwrite inputs, anything except a file
# fails at once and with one sentence, and names do not control a terminal.
. tests/support/harness.sh
case=tests/cases/nope-one-token.safetensors
table=(convert --table half -e rope:pairing=half --dim 8 --rows 4)

plain() { [ "$(cat "$@" | LC_ALL=C tr -d '\n -~' | wc -c)" -eq 0 ]; }
loci() { timeout 20 "$LOCI" "$@" >"$work/out" 2>"$work/err"; }
# SENTENCE ARGUMENTS...: exit code 2 soon, nothing on stdout, one plain line with the sentence
refused() {
    local sentence=$1
    shift
    loci "$@"
    [ $? -eq 2 ] && [ ! -s "$work/out" ] && [ "$(wc -l <"$work/err")" -eq 1 ] && plain "$work/err" && grep -q "^loci: .*$sentence" "$work/err"
}
done_plain() {  # ARGUMENTS...: exit code 0 or 1, nothing on stderr, plain lines
    loci "$@"
    [ $? -le 1 ] && [ ! -s "$work/err" ] && [ -s "$work/out" ] && plain "$work/out"
}
same() { cmp -s "$1" "$2"; }
only() { [ "$(find "$work/in" | wc -l)" -eq "$1" ]; }

# ---- Inputs are not overwritten

mkdir "$work/in"
cp $case "$work/in/case"
echo '{"model_type":"llama","hidden_size":64,"num_attention_heads":4,"num_hidden_layers":4}' >"$work/in/config.json"
cp "$work/in/config.json" "$work/config.json"
ln "$work/in/case" "$work/in/hard"
ln -s case "$work/in/link"
for name in "$work/in/case" "$work/in/../in/case" "$work/in/hard" "$work/in/link"; do
    check "run CASE -o $name" refused 'would be overwritten' run "$work/in/case" -o "$name"
    check "convert FILE -o $name" refused 'would be overwritten' convert "$work/in/case" --to half --dim 2 -o "$name"
done
check "convert CONFIG -o CONFIG" refused 'would be overwritten' convert $case "$work/in/config.json" --to interleaved -o "$work/in/config.json"
check "a table -o CONFIG" refused 'would be overwritten' convert --table half "$work/in/config.json" --rows 4 -o "$work/in/config.json"
check "inputs stay" same "$work/in/case" $case
check "CONFIG stays" same "$work/in/config.json" "$work/config.json"
check "nothing is left beside them" only 5

"$LOCI" "${table[@]}" -o "$work/in/t.loci-tmp" && cp "$work/in/t.loci-tmp" "$work/input"
check "an input with the name of a temporary" loci convert "$work/in/t.loci-tmp" --to half --dim 2 --part -o "$work/in/t"
check "is there afterwards" same "$work/in/t.loci-tmp" "$work/input"
check "and so is the result" test -s "$work/in/t"
check "and nothing else" only 7
check "a result" loci run $case -o "$work/in/t"
check "replaces a file" loci run "$work/in/case" -o "$work/in/t"
rm -r "$work/in"

# ---- Inputs that are not files

mkfifo "$work/fifo"
mkdir "$work/folder"
for name in fifo folder; do
    said=$([ $name = fifo ] && echo 'not a regular file' || echo 'this is a folder')
    other="$work/$name"
    check "run $name" refused "$said" run "$other"
    check "check $name" refused "$said" check "$other"
    check "check FILE $name" refused "$said" check $case "$other"
    check "rope $name" refused "$said" rope "$other"
    check "convert $name" refused "$said" convert "$other" --to half --dim 2 -n
    check "convert FILE $name" refused "$said" convert $case "$other" --to half -n
    check "convert --table $name" refused "$said" convert --table half "$other" --rows 4 -n
    check "run -o $name" refused "$said" run $case -o "$other"
    check "convert -o $name" refused "$said" convert $case --to half --dim 2 -o "$other"
    check "convert --table -o $name" refused "$said" "${table[@]}" -o "$other"
done
for name in /dev/null /dev/zero /dev/full /dev/tty; do
    check "run $name" refused 'not a regular file' run $name
    check "rope $name" refused 'not a regular file' rope $name
    check "run -o $name" refused 'not a regular file' run $case -o $name
done
check "-o -" refused 'a file of that name' run $case -o -
check "-o and nothing" refused 'the name is empty' run $case -o ''
check "a folder that is not there" refused 'cannot write' run $case -o "$work/none/x"
check "a name in a file" refused 'cannot write' run $case -o "$work/config.json/x"
check "what is refused is refused before the work" refused 'this is a folder' run "$work/none" -o "$work/folder"
for command in 'list' 'list --json' 'info --json' "run $case" 'bench nope --len 32 --heads 1 --json' 'convert --help'; do
    check "no room for what $command prints" bash -c '"$LOCI" "$@" 2>"$0" >/dev/full; [ $? -eq 2 ] && grep -q "^loci: cannot write" "$0"' "$work/err" $command
done

"$LOCI" run $case -o "$work/whole" >"$work/out"
# REDIRECTION...: closes a stream; the result must be complete, or missing
closed() {
    rm -f "$work/closed"
    eval "\"\$LOCI\" run $case $case -o x >/dev/null $1"
    [ $? -eq 2 ] && eval "\"\$LOCI\" run $case -o \"\$work/closed\" >/dev/null $1"
    same "$work/closed" "$work/whole"
}
for streams in '<&-' '>&-' '2>&-' '>&- 2>&-' '<&- >&-' '<&- 2>&-' '<&- >&- 2>&-'; do
    check "closed: $streams" closed "$streams"
done
check "nothing goes to a stream that is closed" bash -c '"$LOCI" list >&- 2>"$0"; [ $? -eq 2 ] && grep -q "^loci: cannot write" "$0"' "$work/err"

# ---- Names that would control a terminal

for odd in $'\e[31mred' $'two\nlines' $'csi\x9b31m' $'c1\xc2\x9b31m' $'turned\xe2\x80\xaename' $'del\x7f' $'mark\xef\xbb\xbf' $'cut\xe2\x82' '%s%n'; do
    name=$(printf %q "$odd")
    cp $case "$work/$odd"
    check "run $name" done_plain run "$work/$odd"
    check "one line is about it" test "$(grep -c "$work" "$work/out")" -eq 1
    check "run -o, $name" loci run "$work/$odd" -o "$work/x$odd"
    check "and it is there" test -s "$work/x$odd"
    "$LOCI" "${table[@]}" -o "$work/$odd"
    check "check $name" done_plain check "$work/$odd"
    check "check --json $name" done_plain check "$work/$odd" --json
    check "JSON names the file" grep -q '^{"file":"' "$work/out"
    check "JSON is one line" test "$(wc -l <"$work/out")" -eq 1
    rm "$work/$odd" "$work/x$odd"
    for command in run check rope "convert --to half --dim 2 -n" "convert --table half --rows 4 -n"; do
        check "$command of what is not there, $name" refused 'cannot open' $command "$work/$odd"
    done
    check "a command, $name" refused 'unknown command' "$odd"
    check "an option, $name" refused 'unknown option' run "--$odd"
    check "an argument too many, $name" refused 'one argument too many' info "$odd"
    check "an encoding, $name" refused '' bench "$odd"
    check "an encoding's option, $name" refused '' bench "t5:$odd=1"
    check "an option's value, $name" refused '' bench "t5:buckets=$odd" --len 16
    check "a number, $name" refused 'must be' bench --len "$odd"
    check "a word, $name" refused 'must be one of' run --dtype "$odd" $case
    check "an instruction set, $name" refused '' run --isa "$odd" $case
    check "an encoding to list, $name" refused 'unknown encoding' list "$odd"
done
cp $case "$work/$(printf '\xc3\xa9\xe2\x82\xac')"
loci run "$work/$(printf '\xc3\xa9\xe2\x82\xac')"
check "other letters stay as they are" grep -q "$(printf '\xc3\xa9\xe2\x82\xac')" "$work/out"
long=$(printf 'n%.0s' {1..240})
check "a long path is no end of the sentence" refused 'cannot open: ' run "$work/$long/../$long/../$long/../$long/../$long/../$long/../$long/../$long/../$long/../$long/x"

harness_end
