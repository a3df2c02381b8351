/* SPDX-License-Identifier: MIT */
/* io.c -- see io.h. */

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "platform/file.h"
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
    struct file_info info;
    from->bytes = NULL;
    /* For some devices opening alone has an effect, and at a FIFO it waits.  One of these may
     * replace the file after the first look: hence loci_file_open(), which never waits, and a
     * second look at the opened file. */
    IO_CHECK(e, loci_path_info(path, &info), "cannot open: %s", strerror(errno));
    IO_CHECK(e, info.kind != FILE_FOLDER, "this is a folder, not a file");
    IO_CHECK(e, info.kind == FILE_PLAIN, "this is not a regular file");
    from->fd = loci_file_open(path);
    IO_CHECK(e, from->fd >= 0, "cannot open: %s", strerror(errno));
    loci_status s = LOCI_OK;
    if (!loci_file_info(from->fd, &info))
        s = loci_io_fail(e, LOCI_BAD_ARG, "cannot read: %s", strerror(errno));
    else if (info.kind != FILE_PLAIN)
        s = loci_io_fail(e, LOCI_BAD_ARG, "this is not a regular file");
    else from->size = info.size;
    if (s) loci_io_close(from);
    return s;
}

void loci_io_close(const struct source *from) { loci_file_close(from->fd); }

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
        ptrdiff_t n = loci_file_read(from->fd, p, part, at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return loci_io_fail(e, LOCI_BAD_ARG, "cannot read: %s", strerror(errno));
        if (n == 0) return loci_io_fail(e, LOCI_BAD_ARG, "the file shrank while it was read");
        p += n;
        at += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
    return LOCI_OK;
}
