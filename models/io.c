/* SPDX-License-Identifier: MIT */
/* io.c -- see io.h. */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "models/io.h"
#include "util/printable.h"

loci_status loci_io_fail(loci_error *e, loci_status status, const char *format, ...)
{
    if (e) {
        va_list args;
        va_start(args, format);
        e->status = status;
        vsnprintf(e->text, sizeof e->text, format, args);
        va_end(args);
        make_plain(e->text); /* names come from files */
    }
    return status;
}

loci_status loci_io_open(struct source *from, const char *path, loci_error *e)
{
    struct stat st;
    from->bytes = NULL;
    /* For some devices opening alone has an effect, and at a FIFO it waits.  One of these may
     * replace the file after stat(): hence O_NONBLOCK, and a second test of the opened file. */
    IO_CHECK(e, !stat(path, &st), "cannot open: %s", strerror(errno));
    IO_CHECK(e, !S_ISDIR(st.st_mode), "this is a folder, not a file");
    IO_CHECK(e, S_ISREG(st.st_mode), "this is not a regular file");
    from->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    IO_CHECK(e, from->fd >= 0, "cannot open: %s", strerror(errno));
    loci_status s = LOCI_OK;
    if (fstat(from->fd, &st)) s = loci_io_fail(e, LOCI_BAD_ARG, "cannot read: %s", strerror(errno));
    else if (!S_ISREG(st.st_mode)) s = loci_io_fail(e, LOCI_BAD_ARG, "this is not a regular file");
    else from->size = (uint64_t)st.st_size;
    if (s) close(from->fd);
    return s;
}

loci_status loci_io_read(const struct source *from, void *to, uint64_t bytes, uint64_t at,
                         loci_error *e)
{
    char *p = to;
    if (from->bytes) {
        memcpy(to, from->bytes + at, (size_t)bytes);
        return LOCI_OK;
    }
    while (bytes > 0) { /* a read may return fewer bytes than requested */
        size_t part = bytes < (1 << 30) ? (size_t)bytes : 1 << 30;
        ssize_t n = pread(from->fd, p, part, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return loci_io_fail(e, LOCI_BAD_ARG, "cannot read: %s", strerror(errno));
        if (n == 0) return loci_io_fail(e, LOCI_BAD_ARG, "the file shrank while it was read");
        p += n;
        at += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
    return LOCI_OK;
}
