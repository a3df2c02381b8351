/* SPDX-License-Identifier: MIT */
/* system.h -- what a program asks of its system: terminals, names, sizes, processes. */
#ifndef LOCI_PLATFORM_SYSTEM_H
#define LOCI_PLATFORM_SYSTEM_H

#include <stdbool.h>
#include <stddef.h>

/* Prepares standard input, output and error.  A closed one would get the number of the next opened
 * file, and that file the output, so it is replaced by one that fails.  Output is bytes: a line
 * ends with \n alone.  False: impossible. */
bool loci_system_begin(void);

bool loci_terminal(void);         /* standard output is one */
bool loci_terminal_colours(void); /* and understands colours and moves of the cursor */
bool loci_terminal_unicode(void); /* and shows UTF-8 */
int loci_terminal_columns(void);  /* 0: unknown */

/* "Linux" and "x86_64", as uname says.  Short texts are cut. */
void loci_system_names(char *system, char *machine, size_t capacity);
void loci_host_name(char *name, size_t capacity);
double loci_system_memory(void); /* bytes; 0: unknown */
double loci_system_cache(void);  /* of the largest cache */

void loci_sleep(double seconds);
/* True only if it is certain that no process of this system has that number. */
bool loci_process_gone(long process);
/* How often the system took the processor away from this process. */
long loci_preemptions(void);
/* Allows this process so many open files, if it may. */
void loci_allow_files(int count);

/* Does the name match the pattern of *, ? and [...], as names of files do in a shell? */
bool loci_name_matches(const char *pattern, const char *name);

/* All that a command of the shell writes.  NULL: the system has no such shell. */
struct command_output;
struct command_output *loci_command_begin(const char *command);
size_t loci_command_read(struct command_output *, void *to, size_t bytes);
int loci_command_end(struct command_output *); /* its exit code; 127: there is no such program */

/* Shared libraries.  NULL: it is not there, or not in it. */
void *loci_library_open(const char *name);
void *loci_library_find(void *library, const char *name);
const char *loci_library_error(void);

#endif
