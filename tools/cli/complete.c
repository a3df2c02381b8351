/* SPDX-License-Identifier: MIT */
/* complete.c -- `loci completion`: words that can come next on a command line, for bash, zsh and
 * fish.
 *
 * The shells' scripts are short and know no commands.  They run `loci completion next -- WORD...`,
 * where the last word is the typed part of the word at the cursor.  Each answer is a line: the
 * whole completed word, a tab and its description.  The line ":file" or ":folder" asks the shell to
 * complete file or folder names. */
#include <string.h>

#include "cli/cli.h"
#include "cli/terminal.h"
#include "draw/text.h"
#include "lab/arm.h"
#include "lab/config.h"
#include "lab/task.h"
#include "show/show.h"

/* ---- Candidates ------------------------------------------------------------------------------ */

/* The word at the cursor: `kept` is the text in front of the part that is completed. */
struct word {
    char kept[512];
    const char *part;
    bool several;
};

/* Prints one answer if the part is a prefix of it. */
static void answer(const struct word *w, const char *value, size_t n, const char *end,
                   const char *help)
{
    if (strlen(w->part) <= n + strlen(end) && !strncmp(value, w->part, strlen(w->part)))
        printf("%s%.*s%s\t%s\n", w->kept, (int)n, value, end, help);
}

/* Moves w to the part that begins at `at`. */
static void move_to(struct word *w, const char *at)
{
    const size_t have = strlen(w->kept), n = (size_t)(at - w->part);
    if (have + n >= sizeof w->kept) w->part = "\n"; /* a prefix of nothing */
    else {
        memcpy(w->kept + have, w->part, n);
        w->kept[have + n] = 0;
        w->part = at;
    }
}

static void answer_words(const struct word *w, const char *words)
{
    for (const char *p = words; p && *p; p += strcspn(p, "|"), p += *p == '|')
        answer(w, p, strcspn(p, "|"), "", "");
}

/* Does another text begin behind this comma, rather than an option of the current encoding? */
static bool begins_text(const char *s)
{
    const size_t n = strcspn(s, ":+,");
    return s[n] && find_encoding(s, n);
}

/* Completes an encoding text: names, then options and their words behind a name and a colon. */
static void answer_encoding(struct word w)
{
    const loci_encoding_info *list, *own = NULL;
    const int n = loci_encodings(&list);
    const char *start = w.part;
    for (const char *p = w.part; *p; p++)
        if (*p == '+' || (w.several && *p == ',' && begins_text(p + 1))) start = p + 1;
    const char *colon = strchr(start, ':');
    if (colon) own = find_encoding(start, (size_t)(colon - start));
    const char *comma = strrchr(start, ',');
    /* a comma may begin another text */
    if (!own || (w.several && comma)) {
        struct word name = w;
        const char *from = !own && colon ? colon : comma && w.several ? comma + 1 : start;
        move_to(&name, from);
        for (int i = 0; i < n; i++) {
            answer(&name, list[i].name, strlen(list[i].name), "", list[i].brief);
            if (!strcmp(list[i].name, name.part) && list[i].option_count)
                answer(&name, list[i].name, strlen(list[i].name), ":", "with options");
        }
    }
    if (!own) return;
    const char *option = comma && comma > colon ? comma + 1 : colon + 1;
    const char *equals = strchr(option, '=');
    move_to(&w, equals ? equals + 1 : option);
    for (int i = 0; i < own->option_count; i++) {
        const loci_option *o = &own->options[i];
        if (!equals) answer(&w, o->name, strlen(o->name), "=", o->help);
        else if (o->kind == LOCI_WORD && strlen(o->name) == (size_t)(equals - option)
                 && !memcmp(o->name, option, strlen(o->name)))
            answer_words(&w, o->words);
    }
}

static void answer_isas(const struct word *w)
{
    const char *names[16];
    const int n = loci_isas(names, COUNT(names));
    for (int i = 0; i < n && i < COUNT(names); i++)
        answer(w, names[i], strlen(names[i]), "", "instruction set");
}

static void answer_presets(const struct word *w)
{
    const struct lab_preset *list;
    for (int i = 0, n = lab_presets(&list); i < n; i++)
        answer(w, list[i].name, strlen(list[i].name), "", list[i].about);
}

static void answer_tasks(const struct word *w)
{
    const struct lab_task *const *list;
    for (int i = 0, n = lab_tasks(&list); i < n; i++)
        answer(w, list[i]->name, strlen(list[i]->name), "", list[i]->brief);
}

/* Answers named arms and every encoding text. */
static void answer_arms(const struct word *w)
{
    const struct lab_known *list;
    for (int i = 0, n = lab_known_arms(&list); i < n; i++)
        if (!find_encoding(list[i].text, strlen(list[i].text)))
            answer(w, list[i].text, strlen(list[i].text), "", "arm");
    answer_encoding(*w);
}

static void answer_figures(const struct word *w)
{
    for (int i = 0; i < SHOW_COUNT; i++)
        answer(w, show_names[i], strlen(show_names[i]), "", "figure");
}

static void answer_commands(const struct word *w, const struct command *const *list)
{
    for (; list && *list; list++)
        answer(w, word_of(*list), strlen(word_of(*list)), "", (*list)->brief);
}

/* `words` describes the value of a flag or a command, up to a blank or the end. */
static void answer_kinds(struct word w, const char *words)
{
    const size_t n = strcspn(words, " ");
    w.several = n && words[n - 1] == ',';
    if (w.several && strncmp(words, "@encoding", 9) && !strstr(words, "@arm")) {
        const char *comma = strrchr(w.part, ',');
        if (comma) move_to(&w, comma + 1);
    }
    for (const char *p = words; p < words + n; p += strcspn(p, "| "), p += *p == '|') {
        const size_t size = strcspn(p, "| ") - (w.several && !strpbrk(p, "| "));
        const char *kind = *p == '@' ? p + 1 : "";
        if (!strncmp(kind, "encoding", 8)) answer_encoding(w);
        else if (!strncmp(kind, "isa", 3)) answer_isas(&w);
        else if (!strncmp(kind, "preset", 6)) answer_presets(&w);
        else if (!strncmp(kind, "task", 4)) answer_tasks(&w);
        else if (!strncmp(kind, "arm", 3)) answer_arms(&w);
        else if (!strncmp(kind, "figure", 6)) answer_figures(&w);
        else if (!strncmp(kind, "command", 7)) answer_commands(&w, whole_program.under);
        else if (!strncmp(kind, "file", 4)) printf(":file\n");
        else if (!strncmp(kind, "folder", 6)) printf(":folder\n");
        else answer(&w, p, size, "", "");
    }
}

/* ---- A command line -------------------------------------------------------------------------- */

/* Finds the flag whose value follows "--name=", "-l" or "--name".  NULL: the word is no such
 * flag. */
static const struct flag *flag_of(const struct command *c, const char *word, size_t n)
{
    for (const struct flag *f = c->flags; f->name; f++)
        if ((n > 2 && !strncmp(word, "--", 2) && strlen(f->name) == n - 2
             && !memcmp(word + 2, f->name, n - 2))
            || (n == 2 && f->letter && word[0] == '-' && word[1] == f->letter[0]))
            return f;
    return NULL;
}

static void answer_flags(const struct word *w, const struct command *c)
{
    char name[64];
    for (const struct flag *f = c->flags; f->name; f++) {
        snprintf(name, sizeof name, "--%s", f->name);
        answer(w, name, strlen(name), "", f->help);
        if (f->letter) answer(w, (char[]){ '-', f->letter[0], 0 }, 2, "", f->help);
    }
    answer(w, "--help", 6, "", "this text");
}

/* The description of positional argument n. */
static const char *operand_text(const struct command *c, int n)
{
    const char *p = c->operand_text ? c->operand_text : "";
    for (; n > 0 && *p; n--) {
        const size_t size = strcspn(p, " ");
        if (size >= 3 && !strncmp(p + size - 3, "...", 3)) break;
        p += size;
        p += *p == ' ';
    }
    return p;
}

static void answer_next(const char *const *word, int count)
{
    const struct command *c = &whole_program;
    const struct flag *open = NULL; /* its value comes next */
    struct word w = { .part = word[count - 1] };
    bool options = true;
    int operands = 0, i = 0;
    for (; i < count - 1 && c->under && find_command(c->under, word[i]); i++)
        c = find_command(c->under, word[i]);
    for (; i < count - 1; i++) {
        if (open) open = NULL;
        else if (options && !strcmp(word[i], "--")) options = false;
        else if (options && word[i][0] == '-' && word[i][1]) {
            const struct flag *f = flag_of(c, word[i], strlen(word[i]));
            open = f && f->value ? f : NULL;
        } else operands++;
    }
    const size_t name = strcspn(w.part, "=");
    const struct flag *f = options && w.part[name] ? flag_of(c, w.part, name) : NULL;
    if (!open && f && f->value && !strncmp(w.part, "--", 2)) {
        open = f;
        move_to(&w, w.part + name + 1);
    }
    if (open) answer_kinds(w, value_words(open));
    else if (options && w.part[0] == '-') answer_flags(&w, c);
    else if (c->under && !operands) answer_commands(&w, c->under);
    else answer_kinds(w, operand_text(c, operands));
}

/* ---- Scripts --------------------------------------------------------------------------------- */

/* Bash splits words at = and :, except in quotes, and replaces only the text behind the last
 * split. */
static const char bash[] =
    "# SPDX-License-Identifier: MIT\n"
    "# bash completion of loci, made by: loci completion bash\n"
    "_loci() {\n"
    "    local words=() line=${COMP_LINE:0:COMP_POINT} i part cut cur value\n"
    "    for ((i = 0; i <= COMP_CWORD; i++)); do\n"
    "        part=${line%%[! $'\\t']*}\n"
    "        line=${line#\"$part\"}\n"
    "        cut=${COMP_WORDS[i]}\n"
    "        [ $i -lt $COMP_CWORD ] || cut=$line\n"
    "        line=${line#\"$cut\"}\n"
    "        if [ $i -eq 0 ] || [ -n \"$part\" ]; then\n"
    "            words+=(\"$cut\")\n"
    "        else\n"
    "            words[${#words[@]} - 1]+=$cut\n"
    "        fi\n"
    "    done\n"
    "    for i in \"${!words[@]}\"; do words[i]=${words[i]//[\\'\\\"\\\\]/}; done\n"
    "    cur=${words[${#words[@]} - 1]}\n"
    "    cut=\n"
    "    case ${COMP_WORDS[COMP_CWORD]}$cur in\n"
    "        [\\'\\\"]*) ;;\n"
    "        *[=:]*) cut=${cur%\"${cur##*[=:]}\"} ;;\n"
    "    esac\n"
    "    COMPREPLY=()\n"
    "    while IFS=$'\\t' read -r value _; do\n"
    "        case $value in\n"
    "            :file | :folder)\n"
    "                part=-f\n"
    "                [ \"$value\" = :file ] || part=-d\n"
    "                compopt -o filenames 2>/dev/null\n"
    "                while IFS= read -r value; do COMPREPLY+=(\"$value\"); done \\\n"
    "                    < <(compgen $part -- \"${cur#\"$cut\"}\") ;;\n"
    "            *)\n"
    "                case $value in *[=:]) compopt -o nospace 2>/dev/null ;; esac\n"
    "                COMPREPLY+=(\"${value#\"$cut\"}\") ;;\n"
    "        esac\n"
    "    done < <(\"${words[0]/#\\~/$HOME}\" completion next -- \"${words[@]:1}\" 2>/dev/null)\n"
    "}\n"
    "complete -F _loci loci\n";

static const char zsh[] =
    "#compdef loci\n"
    "# SPDX-License-Identifier: MIT\n"
    "# zsh completion of loci, made by: loci completion zsh\n"
    "_loci() {\n"
    "    local line value tab=$'\\t'\n"
    "    local -a values shown open open_shown\n"
    "    for line in \"${(@f)$(${(Q)words[1]} completion next -- \\\n"
    "        \"${(@Q)words[2,CURRENT-1]}\" \"${(Q)PREFIX}\" 2>/dev/null)}\"; do\n"
    "        value=${line%%$tab*}\n"
    "        case $value in\n"
    "            '') ;;\n"
    "            :file) [[ $PREFIX != --*=* ]] || compset -P '*='; _files ;;\n"
    "            :folder) [[ $PREFIX != --*=* ]] || compset -P '*='; _files -/ ;;\n"
    "            *[=:]) open+=(\"$value\"); open_shown+=(\"$value  ${line#*$tab}\") ;;\n"
    "            *) values+=(\"$value\"); shown+=(\"$value  ${line#*$tab}\") ;;\n"
    "        esac\n"
    "    done\n"
    "    (( ! $#values )) || compadd -l -d shown -a values\n"
    "    (( ! $#open )) || compadd -S '' -l -d open_shown -a open\n"
    "}\n"
    "if [ \"$funcstack[1]\" = _loci ]; then _loci \"$@\"; else compdef _loci loci; fi\n";

static const char fish[] =
    "# SPDX-License-Identifier: MIT\n"
    "# fish completion of loci, made by: loci completion fish\n"
    "function __loci_next\n"
    "    set -l words (commandline -opc)\n"
    "    set -l current (commandline -ct)\n"
    "    for line in ($words[1] completion next -- $words[2..-1] \"$current\" 2>/dev/null)\n"
    "        switch $line\n"
    "            case :file\n"
    "                __fish_complete_path (string replace -r '^--[a-z-]+=' '' -- \"$current\")\n"
    "            case :folder\n"
    "                __fish_complete_directories \\\n"
    "                    (string replace -r '^--[a-z-]+=' '' -- \"$current\")\n"
    "            case '*'\n"
    "                printf '%s\\n' $line\n"
    "        end\n"
    "    end\n"
    "end\n"
    "complete -c loci -f -a '(__loci_next)'\n";

/* ---- The command ----------------------------------------------------------------------------- */

enum { OUTPUT };
static const struct flag flags[] = { [OUTPUT] = { "output", "o", "FILE:@file",
                                                  "write the script to FILE" },
                                     { NULL, NULL, NULL, NULL } };

static int run(const struct args *a)
{
    static const struct {
        const char *name, *script;
    } shells[] = { { "bash", bash }, { "zsh", zsh }, { "fish", fish } };
    if (!a->rest_count) return fail("completion: a shell is missing: bash, zsh or fish");
    if (!strcmp(a->rest[0], "next")) {
        if (a->rest_count > 1) answer_next(a->rest + 1, a->rest_count - 1);
        return EXIT_DONE;
    }
    if (!args_rest(a, 1)) return EXIT_ERROR;
    for (int i = 0; i < COUNT(shells); i++)
        if (!strcmp(a->rest[0], shells[i].name)) {
            struct text t = { 0 };
            text_put(&t, shells[i].script, strlen(shells[i].script));
            return a->value[OUTPUT] ? write_text(&t, a->value[OUTPUT]) : print_text(&t);
        }
    return fail("completion: the shell must be bash, zsh or fish, not '%s'", a->rest[0]);
}

const struct command cmd_completion = {
    .name = "completion",
    .brief = "print the script that completes command lines in a shell",
    .synopsis = "loci completion bash|zsh|fish [-o FILE]\n    loci completion next -- WORD...",
    .about =
        "    Prints a script that completes commands, options, encodings with their options,\n"
        "    and words by the tab key.  An installed loci has the scripts in place; otherwise\n"
        "    load the script when the shell starts.  The script calls 'loci completion next'\n"
        "    with the words so far, the last of them at the cursor.\n",
    .examples = "    eval \"$(loci completion bash)\"\n"
                "    loci completion zsh > ~/.zsh/completions/_loci\n"
                "    loci completion fish > ~/.config/fish/completions/loci.fish\n"
                "    loci completion next -- bench rope:pairing=\n",
    .operand_text = "bash|zsh|fish",
    .flags = flags,
    .run = run,
};
