#!/bin/bash
# SPDX-License-Identifier: MIT
# Shell completions agree with --help and with the parser.  Keys typed into bash, zsh and fish
# complete them.
. tests/support/harness.sh

next() { "$LOCI" completion next -- "$@" | cut -f1; }
is() {                                   # WANTED WORD...: these lines, in any order
    diff <(tr ' ' '\n' <<<"$1" | grep . | sort) <(next "${@:2}" | sort)
}
has() { next "${@:2}" | grep -Fqx -- "$1"; }
has_not() { ! has "$@"; }

# ---- Agreement with --help
listed() { "$LOCI" $1 --help | awk '/^COMMANDS/ { on = 1; next } /^$/ { on = 0 } on { print $1 }'; }
section() { "$LOCI" $1 --help | awk '/^OPTIONS/ { on = 1; next } /^$/ { on = 0 } on'; }
check "commands" is "$(listed | xargs)" ""
check "commands of lab" is "$(listed lab | xargs)" lab ""
commands=$(listed; listed lab | sed 's/^/lab /')
[ "$(wc -l <<<"$commands")" -gt 15 ] || fail "too few commands: $commands"
while read -r command; do
    flags=$(section "$command" | grep -oE '^ +(-[a-z], )?--[a-z-]+' | grep -oE -- '-[-a-z]+' | grep -vx -- -h | paste -sd " ")
    check "options of $command" is "$flags" $command -
    # the words of a value are in the option's help, or in the description
    while read -r flag; do
        for word in $(next $command "$flag" "" | grep -vE '^:' | head -n 8); do
            case $(section "$command" | grep -E -- "$flag [A-Z]" | grep -oE -- '--[a-z-]+ [A-Z]+') in
                *ISA | "--isa NAME") check "$command $flag $word" grep -Fq "\"$word\"" <("$LOCI" info --json) ;;
                *TEXT | *LIST | "--task NAME" | "--column NAME") ;;
                *) check "$command $flag $word" grep -Eq -- "(^|[^a-z0-9])${word%,*}([^a-z0-9]|$)" <("$LOCI" $command --help) ;;
            esac
        done
    done < <(section "$command" | grep -oE -- '--[a-z-]+ [A-Z]' | cut -d' ' -f1)
done <<<"$commands"

# ---- Encodings, their options and their words
names=$("$LOCI" list --json | sed -E 's/.*"name":"([a-z0-9]+)","brief".*/\1/' | xargs)
check "encodings" is "$names" bench ""
check "each of several" is "$names" bench alibi ""
check "options of an encoding" test "$(next bench t5:)" = "$(printf 't5:%s\n' $("$LOCI" list --json t5 | grep -oE '"name":"[a-z_]+","kind' | cut -d'"' -f4 | sed 's/$/=/'))"
check "words of an option" is "rope:pairing=half rope:pairing=interleaved" bench rope:pairing=
check "behind another option" is "rope:base=1e4,pairing=half" bench rope:base=1e4,pairing=h
check "behind another encoding" is "alibi+kerple" bench alibi+ke
check "a name that takes options" is "t5 t5:" bench t5
check "nothing for a number" is "" bench rope:base=
check "nothing for no encoding" is "" bench rotary:
check "in a list" is "alibi,kerple" show --compare alibi,ke
check "options in a list" is "alibi,rope:pairing=half" show --compare alibi,rope:pairing=h
check "the next one in a list" has "rope:pairing=half,t5" show --compare rope:pairing=half,
check "an option in a list" has "rope:pairing=half,base=" show --compare rope:pairing=half,

# ---- Position of a word
check "a value apart" is "f32 bf16 f16" bench t5 --dtype ""
check "a value behind =" is "--dtype=bf16" bench --dtype=b
check "behind a value no value" is "$names" bench --dtype bf16 ""
check "a short option's value" is ":file" run -o ""
check "behind -- no options" is ":file" run -- --dt
check "no option of another command" is "" list --dt
check "files" is ":file" run a.safetensors ""
check "one file alone" is "" rope config.json ""
check "folders" is ":folder" lab report ""
check "an arm of the second word" has "fox" lab sample dir ""
check "a task of the third" is "$("$LOCI" lab list --json | grep -oE '\{"name": "[a-z0-9]+", "brief' | cut -d'"' -f4 | xargs)" lab sample dir fox ""
check "tasks in a list" is "text,copy text,copy1" lab plan --tasks text,copy
check "presets" is "coffee cluster" lab run --preset c
check "figures" is "spectrum" show rope --what sp
check "a shell" is "bash zsh fish" completion ""
check "pages" is "bench" man be
check "no such command" is "" frobnicate ""
check "no word" test -z "$("$LOCI" completion next 2>&1)"
long=$(printf 'x%.0s' {1..600})
check "a word that is too long" is "" show --compare "$long,al"

# ---- Offered words are valid
for command in bench run show check convert; do
    while read -r flag; do
        check "$command takes $flag" bash -c '! "$0" "$@" 2>&1 | grep -q "unknown option"' "$LOCI" $command --help "$flag"
    done < <(next $command --)
done
for word in $(next run --dtype ""); do
    check "run takes --dtype $word" says '' run tests/cases/nope-causal.safetensors --dtype "$word" --tol 1,1
done

# ---- Keys typed into shells.  A completed line is printed word by word, not run.
bin=$work/bin
mkdir "$bin" && ln -s "$LOCI" "$bin/loci" && mkdir -p "$work/a place/folder" && touch "$work/a place/case one"
keys=("loci ben" "loci bench rope:pai" "loci bench rope:pairing=i" "loci bench 'rope:pairing=i" "loci bench --pas" "loci bench --dtype=b" "loci bench --dtype b"
    "loci bench alibi+ker" "loci lab rep" "loci run ca" "loci run -o fo" "loci lab report fo")
wanted=("<loci><bench>" "<loci><bench><rope:pairing=>" "<loci><bench><rope:pairing=interleaved>" "<loci><bench><rope:pairing=interleaved>" "<loci><bench><--pass>" "<loci><bench><--dtype=bf16>" "<loci><bench><--dtype><bf16>"
    "<loci><bench><alibi+kerple>" "<loci><lab><report>" "<loci><run><case one>" "<loci><run><-o><folder>" "<loci><lab><report><folder>")
for shell in bash zsh fish; do
    "$LOCI" completion $shell >"$work/$shell"
    if [ -d "$LOCI_BUILD/said/$shell" ]; then
        check "the build has the script of $shell" cmp "$work/$shell" "$LOCI_BUILD/said/$shell"/*loci*
    fi
done
typed() {  # SHELL: the lines that result from the keys, for comparison
    grep -oaE '^<loci>(<[^<>]*>)*' "$work/typed" | sed 's,/>$,>,' >"$work/out" || true
    printf '%s\n' "${wanted[@]}" | diff - "$work/out"
}
# Without a terminal of its own: a shell in the background of one would block.
if setsid -w true 2>/dev/null && echo 'bind -v' | setsid -w timeout 60 bash --norc --noprofile -i 2>/dev/null | grep -q editing-mode; then
    {
        printf 'cd "%s/a place"; PATH="%s:$PATH"; bind "set enable-bracketed-paste off"; source "%s/bash"\n' "$work" "$bin" "$work"
        for line in "${keys[@]}"; do printf '%s\t\001printf "<%%s>" \005\necho\n' "$line"; done
    } | HOME=$work INPUTRC=/dev/null TERM=dumb setsid -w timeout 60 bash --norc --noprofile -i >"$work/typed" 2>/dev/null
    check "keys in bash" typed
else
    echo "left out: keys in bash, which has no line editor here"
fi
if command -v zsh >/dev/null && zsh -fc 'zmodload zsh/zpty' 2>/dev/null; then
    HOME=$work setsid -w timeout 60 zsh -f -c '
        zmodload zsh/zpty
        zpty z env TERM=dumb zsh -f -i
        zpty -w z "cd \"$1/a place\"; PATH=$1/bin:\$PATH; autoload -U compinit; compinit -u -D; source $1/zsh; unsetopt automenu"
        for keys in "${@[2,-1]}"; do
            zpty -w -n z "$keys"$'"'\\t'"'
            zpty -w z $'"'\\C-aprintf \"<%s>\" \\C-e'"'
            zpty -w z "echo"
        done
        zpty -w z exit
        while zpty -r z line; do print -r -- "$line"; done' zsh "$work" "${keys[@]}" >"$work/typed" 2>"$work/err"
    check "keys in zsh" typed
fi
if command -v fish >/dev/null; then
    fish_next() {                        # LINE: the candidates at its end
        HOME=$work XDG_CONFIG_HOME=$work timeout 60 fish --no-config -c 'set PATH $argv[1] $PATH; cd $argv[2]; source $argv[3]; complete -C $argv[4]' \
            "$bin" "$work/a place" "$work/fish" "$1" 2>/dev/null | cut -f1
    }
    offers() { diff <(printf '%s\n' "${@:2}") <(fish_next "$1"); }
    check "commands in fish" offers "loci ben" bench
    check "words in fish" offers "loci bench rope:pairing=" rope:pairing=half rope:pairing=interleaved
    check "values in fish" offers "loci bench --dtype=b" --dtype=bf16
    check "files in fish" offers "loci run ca" "case one"
    check "folders in fish" offers "loci lab report fo" folder/
fi
harness_end
