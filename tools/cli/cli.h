/* SPDX-License-Identifier: MIT */
/* cli.h -- what the commands of the program share: arguments, errors, memory, time. */
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

/* letter may be NULL; value NULL: takes none; of a LIST that is given several times, and of
 * KEY=VALUE, the values are joined by commas.  Behind the value's name and a colon stands what it
 * may be: words as "f32|f64", or one of @encoding, @isa, @figure, @preset, @arm, @task, @file and
 * @folder; a comma at the end: several, with commas between. */
struct flag { const char *name, *letter, *value, *help; };
struct args;
struct command {
    const char *name, *brief, *synopsis, *about, *examples;
    const char *operand_text;                   /* arguments that are no options, each as behind the colon
                                            of a flag; "...": the last one again and again */
    const struct flag *flags;            /* ends with a NULL name; indexed by the command's enum */
    int (*run)(const struct args *);
    /* Commands of its own, called by the word behind its name; ends with NULL.  NULL: none. */
    const struct command *const *under;
};
struct args {
    const struct command *command;
    const char *value[MAX_FLAGS];        /* per flag: NULL when absent, "" if it takes no value */
    bool help;
    int rest_count;
    const char **rest;
};
extern const struct command cmd_list, cmd_show, cmd_info, cmd_run, cmd_bench, cmd_race, cmd_rope,
    cmd_check, cmd_convert, cmd_lab, cmd_man, cmd_completion, cmd_version;

/* The program as a command without a name, the commands under it in the order of its help; and
 * what its exit codes mean, from 0 on. */
extern const struct command whole_program;
extern const char *const exit_codes[3];
void print_help(const struct command *);
/* What is typed: of a command under another one the last word. */
const char *word_of(const struct command *);
/* The command with that word, or NULL. */
const struct command *find_command(const struct command *const *list, const char *word);
/* The value's name, and what may stand there; "" where nothing is said. */
int value_name(const struct flag *);     /* characters of it; "%.*s" */
const char *value_words(const struct flag *);

/* These seven print their own error and return false. */
bool args_parse(struct args *, const struct command *, int argc, char **argv);
/* value stays when absent */
bool args_whole(const struct args *, int flag, int low, int high, int *value);
/* of those that the flag says, or of "a|b|c" */
bool args_word(const struct args *, int flag, int *index);
bool args_word_of(const struct args *, int flag, const char *words, int *index);
/* can the file be written, and is it none of those that are read? */
bool args_output(const struct args *, int flag);
/* at most so many arguments that are no options */
bool args_rest(const struct args *, int most);
/* A pool for more threads than one, which *host then is; the pool is the caller's to destroy. */
bool start_threads(const struct args *, int threads, loci_host *pool, const loci_host **host);

/* finite, nothing before or after */
bool parse_number(const char *text, double *);
bool parse_whole(const char *text, int64_t *);

/* ---- Errors, memory, time -------------------------------------------------------------------- */

/* Prints "loci: " and one plain sentence; returns EXIT_ERROR. */
int  fail(const char *format, ...)
#if defined __GNUC__
    __attribute__((format(printf, 1, 2)))
#endif
    ;
/* For paths, and for what comes from a file: they must not steer a terminal. */
void print_plain(FILE *, const char *text);
/* the same for functions that return bool */
#define refuse(...) (fail(__VA_ARGS__), false)
void *alloc(size_t count, size_t each);   /* on 64 bytes, zeroed; without memory the program ends */
double now(void);                        /* seconds; never falls in a thread */
double median(double *, int count);      /* sorts */
/* what lies at this share from the least to the largest; sorts */
double quantile(double *, int count, double share);
bool  colours(void);                     /* is stdout a terminal that wants them? */
#define PAINT(code) (colours() ? "\033[" code "m" : "")

/* The entry of an encoding, or NULL. */
const loci_encoding_info *find_encoding(const char *name, size_t length);
/* All places of an encoding text, LOCI_PLACE_... or-ed; unknown names have none.  NULL: the usual
 * text. */
int text_places(const char *text);
/* A bare name whose encoding has options without default stands for its example here; all else for
 * itself. */
const char *runnable_text(const char *text);
const char *best_isa(void);
bool  runs_fast(const char *isa);        /* does a plan with `fast` use bf16 dot products there? */
/* What a model's file says of a layer (rope.c); prints its error and returns false. */
bool read_rope(const char *path, int layer, double length, loci_rope *);
/* The processor's name, or "unknown": printable ASCII, cut to the room.  The second one reads a
 * file like /proc/cpuinfo. */
const char *cpu_name(char *buffer, size_t capacity);
const char *cpu_name_in(const char *file, char *buffer, size_t capacity);

#endif
