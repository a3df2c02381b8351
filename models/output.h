/* SPDX-License-Identifier: MIT */
/* output.h -- how every file of the program is written.
 *
 * The new file is written next to its destination as NAME.XXXXXXXXXXXXXXXX.loci-tmp, with 16
 * random hexadecimal digits, and is renamed when all of it is on the disk.  So the old file
 * stays until then.  If two programs write one file, both finish, and the file of the last one
 * remains, complete.  A replaced file passes its mode, owner and group to the new one, as far as
 * the system allows.  A symbolic link stays, and its target is written.  A failure removes the
 * new file, and so do SIGINT, SIGTERM and SIGHUP, which then have their default effect.  Only
 * events that leave a program no time (SIGKILL, a crash of the machine) leave the new file
 * there.  No later run reads it, and it may be deleted. */
#ifndef LOCI_MODELS_OUTPUT_H
#define LOCI_MODELS_OUTPUT_H

#include <stddef.h>

#include "loci/loci.h"

/* True if `path` can be written and is not one of the input files under any name.  Programs
 * call it before they work. */
loci_status loci_output_check(const char *path, int inputs, const char *const *input, loci_error *);

/* Must not move from begin to end; one thread writes at a time. */
struct new_file {
    char *path, *temp;
    int fd;
    struct new_file *next;
};

/* A begin that fails needs no end.  end keeps the file if `so_far` is LOCI_OK, and removes it
 * otherwise; it returns so_far, or its own failure. */
loci_status loci_output_begin(struct new_file *, const char *path, loci_error *);
loci_status loci_output_put(struct new_file *, const void *data, size_t bytes, loci_error *);
loci_status loci_output_end(struct new_file *, loci_status so_far, loci_error *);

#endif
