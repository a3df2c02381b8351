/* SPDX-License-Identifier: MIT */
/* main.c -- the program `loci`: picks the command, and prints help. */
#define _POSIX_C_SOURCE 200809L

#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

/* In the order of the help: what shows the most at once comes first. */
static const struct command *const commands[] = {
    &cmd_race, &cmd_list, &cmd_show, &cmd_run, &cmd_bench, &cmd_rope, &cmd_check, &cmd_convert,
    &cmd_lab, &cmd_info, &cmd_version
};

static const char exit_codes[] =
    "    0   done, and every expectation held\n"
    "    1   loci run: a result differs from what the case expects; "
    "loci check: numbers follow no rule\n"
    "    2   error: one sentence on stderr, and no file is changed\n";

static void print_program_help(void)
{
    printf("loci %s: every positional encoding for Transformers, fused into attention, "
           "forward and backward\n\n"
           "%sSYNOPSIS%s\n    loci COMMAND [OPTION...]\n    loci COMMAND --help\n\n%sCOMMANDS%s\n",
           loci_version_text(), PAINT("1"), PAINT("0"), PAINT("1"), PAINT("0"));
    for (int i = 0; i < COUNT(commands); i++)
        printf("    %-10s%s\n", commands[i]->name, commands[i]->brief);
    printf("\n%sOPTIONS%s\n    -h, --help      this text\n        --version   the version\n"
           "\n%sEXAMPLES%s\n"
           "    loci race                       see what fusing buys, in under a minute\n"
           "    loci list                       the encodings\n"
           "    loci show alibi                 what one looks like, and its properties\n"
           "    loci run case.safetensors       compute a case and compare it with what it expects"
           "\n"
           "    loci bench --len 4096 --json    measure all encodings for a script\n"
           "    loci rope config.json           how a model turns queries and keys\n"
           "    loci lab run --preset coffee    train small models, one for each encoding\n"
           "\n%sEXIT CODES%s\n%s",
           PAINT("1"), PAINT("0"), PAINT("1"), PAINT("0"), PAINT("1"), PAINT("0"), exit_codes);
}

/* What is typed: of a command under another one the last word. */
static const char *word_of(const struct command *c)
{
    const char *blank = strrchr(c->name, ' ');
    return blank ? blank + 1 : c->name;
}

/* All from the command's own tables, so that help and parser cannot disagree. */
static void print_command_help(const struct command *c)
{
    printf("%sNAME%s\n    loci %s - %s\n\n%sSYNOPSIS%s\n    "
           "%s\n\n%sDESCRIPTION%s\n%s\n",
           PAINT("1"), PAINT("0"), c->name, c->brief, PAINT("1"), PAINT("0"), c->synopsis,
           PAINT("1"), PAINT("0"), c->about);
    if (c->under) {
        printf("%sCOMMANDS%s\n", PAINT("1"), PAINT("0"));
        for (int i = 0; c->under[i]; i++)
            printf("    %-10s%s\n", word_of(c->under[i]), c->under[i]->brief);
        printf("\n");
    }
    printf("%sOPTIONS%s\n", PAINT("1"), PAINT("0"));
    for (const struct flag *f = c->flags; f->name; f++) {
        char left[64];
        snprintf(left, sizeof left, "%s%s%s--%s%s%s", f->letter ? "-" : "  ",
                 f->letter ? f->letter : "", f->letter ? ", " : "  ", f->name, f->value ? " " : "",
                 f->value ? f->value : "");
        printf("    %-24s%s\n", left, f->help);
    }
    printf("    %-24s%s\n\n%sEXAMPLES%s\n%s\n%sEXIT CODES%s\n%s", "-h, --help", "this text",
           PAINT("1"), PAINT("0"), c->examples, PAINT("1"), PAINT("0"), exit_codes);
}

/* The list that nearest() chooses from. */
static const struct command *const *among;
static const char *command_name(int i) { return word_of(among[i]); }

static int parse_and_run(const struct command *c, int argc, char **argv)
{
    struct args a;                       /* --help counts even if the rest would not do */
    if (!args_parse(&a, c, argc, argv)) return EXIT_ERROR;
    if (a.help) return print_command_help(c), EXIT_DONE;
    return c->run(&a);
}

static const struct command *find_command(const struct command *const *list, int n,
                                          const char *name)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(word_of(list[i]), name)) return list[i];
    return NULL;
}
static int unknown_command(const struct command *const *list, int n, const char *above,
                           const char *name)
{
    among = list;
    const char *hint = nearest(name, command_name, n);
    if (hint)
        return fail("unknown command '%s%s'; did you mean %s%s? ('loci %s--help' lists all)", above,
                    name, above, hint, above);
    return fail("unknown command '%s%s'; 'loci %s--help' lists all", above, name, above);
}

static int run_command(int argc, char **argv)
{
    if (argc < 2) return fail("no command given; 'loci --help' lists them");
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))
        return print_program_help(), EXIT_DONE;
    const char *name = strcmp(argv[1], "--version") ? argv[1] : "version";
    const struct command *c = find_command(commands, COUNT(commands), name);
    if (!c) return unknown_command(commands, COUNT(commands), "", name);
    if (!c->under || argc < 3 || argv[2][0] == '-') return parse_and_run(c, argc - 2, argv + 2);
    int n = 0;
    char above[32];
    while (c->under[n]) n++;
    const struct command *own = find_command(c->under, n, argv[2]);
    if (own) return parse_and_run(own, argc - 3, argv + 3);
    snprintf(above, sizeof above, "%s ", c->name);
    return unknown_command(c->under, n, above, argv[2]);
}

/* Where stdin, stdout or stderr is closed, a file would get its number and what is printed.  What
 * takes the place here fails when it is used. */
static bool hold_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0
            && open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd)
            return false;
    return true;
}

/* Without memory jansson leaves out what it was given, and nobody would see that a line of JSON
 * lacks something. */
static void *take_for_json(size_t bytes)
{
    void *p = malloc(bytes);
    if (!p) exit(fail("out of memory: %zu bytes were asked for", bytes));
    return p;
}

/* A result that did not reach a full disk or a closed pipe is an error, however it was computed. */
int main(int argc, char **argv)
{
    if (!hold_streams()) return EXIT_ERROR;
#ifdef SIGXFSZ
    signal(SIGXFSZ, SIG_IGN);            /* a file size limit is an error of write(), not the end */
#endif
    json_set_alloc_funcs(take_for_json, free);
    int code = run_command(argc, argv);
    if (fflush(stdout) || ferror(stdout)) return fail("cannot write to standard output");
    return code;
}
