/* SPDX-License-Identifier: MIT */
/* cli.h -- shared by all commands of the program: arguments, errors, memory, time. */
#ifndef LOCI_CLI_CLI_H
#define LOCI_CLI_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "util/nearest.h"
#include "loci/io.h"
#include "loci/loci.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))
enum { EXIT_DONE = 0, EXIT_BROKEN = 1, EXIT_ERROR = 2, MAX_FLAGS = 24 };

/* ---- Commands and their arguments (args.c, main.c) ------------------------------------------- */

/* letter may be NULL. value NULL: the flag has no value.  A LIST that is given several times, and
 * KEY=VALUE, join their values by commas.  The text behind the value's name and a colon says what
 * is valid: words as "f32|f64", or one of @encoding, @isa, @figure, @preset, @arm, @task, @file and
 * @folder.  A comma at the end allows several, separated by commas. */
struct flag {
    const char *name, *letter, *value, *help;
};
struct args;
struct command {
    const char *name, *brief, *synopsis, *about, *examples;
    /* Positional arguments, each described as a flag's value is behind its colon.  "...": repeats
     * the last one. */
    const char *operand_text;
    /* ends with a NULL name; indexed by the command's enum */
    const struct flag *flags;
    int (*run)(const struct args *);
    /* Subcommands, selected by the word behind the command's name.  Ends with NULL.  NULL: none. */
    const struct command *const *under;
};
struct args {
    const struct command *command;
    const char *value[MAX_FLAGS]; /* per flag: NULL if absent, "" if it has no value */
    bool help;
    int rest_count;
    const char **rest;
};
extern const struct command cmd_list, cmd_show, cmd_info, cmd_run, cmd_bench, cmd_race, cmd_rope,
    cmd_check, cmd_convert, cmd_lab, cmd_man, cmd_completion, cmd_version;

/* The program as a command without a name, with its commands in the order of the help, and the
 * meaning of its exit codes from 0 on. */
extern const struct command whole_program;
extern const char *const exit_codes[3];
void print_help(const struct command *);
/* The word to type: of a subcommand, the last word of its name. */
const char *word_of(const struct command *);
/* Returns the command with that word, or NULL. */
const struct command *find_command(const struct command *const *list, const char *word);
/* The value's name and its description; "" if there is none. */
int value_name(const struct flag *); /* length of the name, for "%.*s" */
const char *value_words(const struct flag *);

/* These seven print their own error and return false. */
bool args_parse(struct args *, const struct command *, int argc, char **argv);
/* leaves *value unchanged if absent */
bool args_whole(const struct args *, int flag, int low, int high, int *value);
/* one of the flag's words, or of "a|b|c" */
bool args_word(const struct args *, int flag, int *index);
bool args_word_of(const struct args *, int flag, const char *words, int *index);
/* tests that the file is writable and is no input */
bool args_output(const struct args *, int flag);
/* accepts at most this number of positional arguments */
bool args_rest(const struct args *, int most);
/* Creates a pool for more than one thread, which *host then points to.  The caller destroys the
 * pool. */
bool start_threads(const struct args *, int threads, loci_host *pool, const loci_host **host);

/* finite, nothing before or after */
bool parse_number(const char *text, double *);
bool parse_whole(const char *text, int64_t *);

/* ---- Errors, memory, time -------------------------------------------------------------------- */

/* Prints "loci: " and one plain sentence.  Returns EXIT_ERROR. */
int fail(const char *format, ...)
#if defined __GNUC__
    __attribute__((format(printf, 1, 2)))
#endif
    ;
/* For paths and text from files, which must not control the terminal. */
void print_plain(FILE *, const char *text);
/* the same for functions that return bool */
#define refuse(...) (fail(__VA_ARGS__), false)
void *alloc(size_t count, size_t each); /* 64-byte aligned, zeroed; exits if out of memory */
double now(void);                       /* seconds; never falls in a thread */
double median(double *, int count);     /* sorts */
/* the quantile at `share`, 0 to 1; sorts */
double quantile(double *, int count, double share);
bool colours(void); /* is stdout a terminal with colours? */
#define PAINT(code) (colours() ? "\033[" code "m" : "")

/* Returns the entry of an encoding, or NULL. */
const loci_encoding_info *find_encoding(const char *name, size_t length);
/* Returns all places of an encoding text, LOCI_PLACE_... or-ed.  Unknown names have none.  NULL:
 * the default text. */
int text_places(const char *text);
/* Replaces a bare name by its example if the encoding has options without a default.  Returns any
 * other text unchanged. */
const char *runnable_text(const char *text);
const char *best_isa(void);
bool runs_fast(const char *isa); /* does a plan with `fast` use bf16 dot products there? */
/* Reads the rotation of a layer from a model's file (rope.c).  Prints its error and returns
 * false. */
bool read_rope(const char *path, int layer, double length, loci_rope *);
/* The CPU's name, or "unknown", in printable ASCII, cut to the capacity. cpu_name_in() reads a file
 * like /proc/cpuinfo. */
const char *cpu_name(char *buffer, size_t capacity);
const char *cpu_name_in(const char *file, char *buffer, size_t capacity);

#endif
