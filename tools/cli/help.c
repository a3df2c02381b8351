/* SPDX-License-Identifier: MIT */
/* help.c -- the commands of the program, and its help.  Help, manual, completion and parser all use
 * the commands' own tables, so they cannot disagree. */
#include <string.h>

#include "cli/cli.h"

/* In the order of the help: the most instructive commands come first. */
static const struct command *const commands[] = {
    &cmd_race,    &cmd_list, &cmd_show, &cmd_run, &cmd_bench,      &cmd_rope,    &cmd_check,
    &cmd_convert, &cmd_lab,  &cmd_info, &cmd_man, &cmd_completion, &cmd_version, NULL
};
static const struct flag program_flags[] = { { "version", NULL, NULL, "the version" },
                                             { NULL, NULL, NULL, NULL } };
const struct command whole_program = {
    .name = "",
    .brief =
        "every positional encoding for Transformers, fused into attention, forward and backward",
    .synopsis = "loci COMMAND [OPTION...]\n    loci COMMAND --help",
    .examples =
        "    loci race                       see what fusing buys, in under a minute\n"
        "    loci list                       the encodings\n"
        "    loci show alibi                 what one looks like, and its properties\n"
        "    loci run case.safetensors       compute a case and compare it with what it expects\n"
        "    loci bench --len 4096 --json    measure all encodings for a script\n"
        "    loci rope config.json           how a model turns queries and keys\n"
        "    loci lab run --preset coffee    train small models, one for each encoding\n",
    .flags = program_flags,
    .under = commands,
};

const char *const exit_codes[3] = {
    "success; every expected result matched",
    "loci run: a result differs from the expected one; loci check: numbers do not follow the rule",
    "error: one sentence on stderr; no file is changed",
};

const char *word_of(const struct command *c)
{
    const char *blank = strrchr(c->name, ' ');
    return blank ? blank + 1 : c->name;
}

const struct command *find_command(const struct command *const *list, const char *word)
{
    for (; list && *list; list++)
        if (!strcmp(word_of(*list), word)) return *list;
    return NULL;
}

static void title(const char *text) { printf("%s%s%s\n", PAINT("1"), text, PAINT("0")); }

static void print_flag(const char *letter, const char *name, const struct flag *f, int width)
{
    char left[64];
    snprintf(left, sizeof left, "%s%s%s--%s%s%.*s", letter ? "-" : "  ", letter ? letter : "",
             letter ? ", " : "  ", name, f->value ? " " : "", value_name(f),
             f->value ? f->value : "");
    printf("    %-*s%s%s\n", width, left, (int)strlen(left) < width ? "" : "  ", f->help);
}

void print_help(const struct command *c)
{
    static const struct flag help = { "help", "h", NULL, "this text" };
    const bool whole = c == &whole_program;
    if (whole) printf("loci %s: %s\n\n", loci_version_text(), c->brief);
    else {
        title("NAME");
        printf("    loci %s - %s\n\n", c->name, c->brief);
    }
    title("SYNOPSIS");
    printf("    %s\n\n", c->synopsis);
    if (c->about) {
        title("DESCRIPTION");
        printf("%s\n", c->about);
    }
    if (c->under) {
        title("COMMANDS");
        for (int i = 0; c->under[i]; i++)
            printf("    %-12s%s\n", word_of(c->under[i]), c->under[i]->brief);
        printf("\n");
    }
    title("OPTIONS");
    if (whole) print_flag(help.letter, help.name, &help, 16);
    for (const struct flag *f = c->flags; f->name; f++)
        print_flag(f->letter, f->name, f, whole ? 16 : 24);
    if (!whole) print_flag(help.letter, help.name, &help, 24);
    printf("\n");
    title("EXAMPLES");
    printf("%s\n", c->examples);
    title("EXIT CODES");
    for (int i = 0; i < COUNT(exit_codes); i++) printf("    %d   %s\n", i, exit_codes[i]);
}
