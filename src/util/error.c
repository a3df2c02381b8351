/* SPDX-License-Identifier: MIT */
/* error.c -- see error.h. */
#include "util/error.h"

#include <stdarg.h>
#include <stdio.h>

#include "util/printable.h"

loci_status loci_fail(loci_error *e, loci_status status, const char *format, ...)
{
    if (!e) return status;
    va_list args;
    va_start(args, format);
    vsnprintf(e->text, sizeof e->text, format, args);
    va_end(args);
    make_plain(e->text); /* names in it come from files and command lines */
    e->status = status;
    return status;
}
