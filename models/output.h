/* SPDX-License-Identifier: MIT */
/* output.h -- how every file of the program is written.
 *
 * The new file grows beside its place as NAME.XXXXXXXXXXXXXXXX.loci-tmp, with 16 random hexadecimal
 * digits, and is renamed when all of it is on the disk.  So what was there stays until then; of two
 * programs that write one file both finish, and the last one's stays, whole.  A file that is
 * replaced leaves its mode, owner and group to the new one, as far as the system lets us; a
 * symbolic link stays, and what it points to is written.  A failure removes the new file, and so do
 * SIGINT, SIGTERM and SIGHUP, which then do what they usually do.  Only what leaves a program no
 * time (SIGKILL, a crash of the machine) leaves the new file there: no later run looks at it, and
 * it may be deleted. */
#ifndef LOCI_MODELS_OUTPUT_H
#define LOCI_MODELS_OUTPUT_H

#include <stddef.h>

#include "loci/loci.h"

/* Can `path` be written, and is it none of the files that are read, under whatever name?  For
 * programs to ask before they work. */
loci_status loci_output_check(const char *path, int inputs, const char *const *input, loci_error *);

/* Must stay where it is from begin to end; one thread writes at a time. */
struct new_file { char *path, *temp; int fd; struct new_file *next; };

/* A begin that fails needs no end.  end keeps the file if `so_far` is LOCI_OK, and leaves nothing
 * otherwise; it returns so_far, or its own failure. */
loci_status loci_output_begin(struct new_file *, const char *path, loci_error *);
loci_status loci_output_put(struct new_file *, const void *data, size_t bytes, loci_error *);
loci_status loci_output_end(struct new_file *, loci_status so_far, loci_error *);

#endif
