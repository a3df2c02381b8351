/* SPDX-License-Identifier: MIT */
/* command.h -- commands of the program, run in this process on an input of arguments and files: a
 * line of words, a model's config.json up to a byte 0, and a safetensors file.  The words FILE,
 * CONFIG and OUT become paths. */
#ifndef LOCI_TESTS_FUZZ_COMMAND_H
#define LOCI_TESTS_FUZZ_COMMAND_H

#include <stdbool.h>

#include "cli/cli.h"
#include "fuzz.h"

enum { MOST_WORDS = 24 };
struct input {
    char words[1024]; /* each followed by a 0 */
    int count;
    char *word[MOST_WORDS + 1];
    const char *file, *config, *out, *back; /* paths; back: of another output */
};

/* False: there is no line of words. */
bool input_open(struct input *, const uint8_t *data, size_t size);
/* Removes outputs. */
void input_close(struct input *);
/* The value of an option, or NULL. */
const char *input_value(const struct input *, const char *option);

/* Runs it and returns its exit code.  Its output goes to files.  Exit code 2 comes with one
 * sentence, the others with none. */
int run_command(const struct command *, const struct input *);
/* The output of the last command. */
size_t printed(char *text, size_t capacity);

/* A path for the file of a seed. */
const char *fuzz_scratch(void);
/* A seed: the line, a config (its path, or text that begins with a brace, or NULL), and the path of
 * a file (or NULL). */
void add_input(void (*add)(const void *, size_t), const char *line, const char *config,
               const char *file);

#endif
