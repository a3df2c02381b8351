/* SPDX-License-Identifier: MIT */
/* terminal.c -- see terminal.h. */
#include "cli/terminal.h"

#include <stdlib.h>
#include <string.h>

#include "platform/system.h"
#include "cli/cli.h"
#include "models/output.h"

struct terminal terminal(void)
{
    struct terminal t = { .columns = 80 };
    const char *columns = getenv("COLUMNS"), *true_colour = getenv("COLORTERM");
    const int wide = loci_terminal_columns();
    int64_t n;
    if (columns && parse_whole(columns, &n) && n > 0 && n < 10000) t.columns = (int)n;
    else if (wide > 0) t.columns = wide;
    t.unicode = loci_terminal_unicode();
    if (colours()) {
        const bool all =
            true_colour && (!strcmp(true_colour, "truecolor") || !strcmp(true_colour, "24bit"));
        t.colours = all ? COLOURS_TRUE : COLOURS_256;
    }
    return t;
}

int print_text(struct text *t)
{
    if (t->n) fwrite(t->s, 1, t->n, stdout);
    text_free(t);
    return EXIT_DONE;
}

int write_text(struct text *t, const char *path)
{
    struct new_file out;
    loci_error e;
    loci_status status = loci_output_begin(&out, path, &e);
    if (!status) {
        status = loci_output_put(&out, t->s, t->n, &e);
        status = loci_output_end(&out, status, &e);
    }
    text_free(t);
    return status ? fail("%s: %s", path, e.text) : EXIT_DONE;
}
