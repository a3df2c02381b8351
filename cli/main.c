/* SPDX-License-Identifier: MIT */
/* main.c -- the program `loci`: picks the command, and prints help. */
#define _POSIX_C_SOURCE 200809L

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

/* In the order of the help: what shows the most at once comes first. */
static const struct command *const commands[] = {
    &cmd_race, &cmd_list, &cmd_show, &cmd_run, &cmd_bench, &cmd_rope, &cmd_check, &cmd_convert,
    &cmd_info, &cmd_version
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
           "\n%sEXIT CODES%s\n%s",
           PAINT("1"), PAINT("0"), PAINT("1"), PAINT("0"), PAINT("1"), PAINT("0"), exit_codes);
}

/* All from the command's own tables, so that help and parser cannot disagree. */
static void print_command_help(const struct command *c)
{
    printf("%sNAME%s\n    loci %s - %s\n\n%sSYNOPSIS%s\n    "
           "%s\n\n%sDESCRIPTION%s\n%s\n%sOPTIONS%s\n",
           PAINT("1"), PAINT("0"), c->name, c->brief, PAINT("1"), PAINT("0"), c->synopsis,
           PAINT("1"), PAINT("0"), c->about, PAINT("1"), PAINT("0"));
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

/* for nearest() */
static const char *command_name(int i) { return commands[i]->name; }

static int run_command(int argc, char **argv)
{
    if (argc < 2) return fail("no command given; 'loci --help' lists them");
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))
        return print_program_help(), EXIT_DONE;
    const char *name = strcmp(argv[1], "--version") ? argv[1] : "version";
    for (int i = 0; i < COUNT(commands); i++) {
        if (strcmp(commands[i]->name, name)) continue;
        struct args a;                   /* --help counts even if the rest would not do */
        if (!args_parse(&a, commands[i], argc - 2, argv + 2)) return EXIT_ERROR;
        if (a.help) return print_command_help(commands[i]), EXIT_DONE;
        return commands[i]->run(&a);
    }
    const char *hint = nearest(name, command_name, COUNT(commands));
    if (hint)
        return fail("unknown command '%s'; did you mean %s? ('loci --help' lists all)", name, hint);
    return fail("unknown command '%s'; 'loci --help' lists all", name);
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

/* A result that did not reach a full disk or a closed pipe is an error, however it was computed. */
int main(int argc, char **argv)
{
    if (!hold_streams()) return EXIT_ERROR;
#ifdef SIGXFSZ
    signal(SIGXFSZ, SIG_IGN);            /* a file size limit is an error of write(), not the end */
#endif
    int code = run_command(argc, argv);
    if (fflush(stdout) || ferror(stdout)) return fail("cannot write to standard output");
    return code;
}
