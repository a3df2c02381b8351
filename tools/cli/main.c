/* SPDX-License-Identifier: MIT */
/* main.c -- the program `loci`: selects the command. */

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "platform/system.h"
#include "cli/cli.h"

/* The commands that nearest() chooses from. */
static const struct command *const *among;
static const char *command_name(int i) { return word_of(among[i]); }

static int parse_and_run(const struct command *c, int argc, char **argv)
{
    struct args a; /* --help works even if the other arguments are invalid */
    if (!args_parse(&a, c, argc, argv)) return EXIT_ERROR;
    if (a.help) {
        print_help(c);
        return EXIT_DONE;
    }
    return c->run(&a);
}

static int unknown_command(const struct command *const *list, const char *above, const char *name)
{
    int n = 0;
    while (list[n]) n++;
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
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
        print_help(&whole_program);
        return EXIT_DONE;
    }
    const char *name = strcmp(argv[1], "--version") ? argv[1] : "version";
    const struct command *c = find_command(whole_program.under, name);
    if (!c) return unknown_command(whole_program.under, "", name);
    if (!c->under || argc < 3 || argv[2][0] == '-') return parse_and_run(c, argc - 2, argv + 2);
    char above[32];
    const struct command *own = find_command(c->under, argv[2]);
    if (own) return parse_and_run(own, argc - 3, argv + 3);
    snprintf(above, sizeof above, "%s ", c->name);
    return unknown_command(c->under, above, argv[2]);
}

/* If out of memory, jansson silently omits values, and a line of JSON would be incomplete. */
static void *alloc_for_json(size_t bytes)
{
    void *p = malloc(bytes);
    if (!p) exit(fail("out of memory for %zu bytes", bytes));
    return p;
}

/* A result that did not reach a full disk or a closed pipe is an error. */
int main(int argc, char **argv)
{
    if (!loci_system_begin()) return EXIT_ERROR;
    json_set_alloc_funcs(alloc_for_json, free);
    int code = run_command(argc, argv);
    if (fflush(stdout) || ferror(stdout)) return fail("cannot write to standard output");
    return code;
}
