/* SPDX-License-Identifier: MIT */
/* show.h -- shared by the two files of `loci show`, for one encoding and for several. */
#ifndef LOCI_CLI_SHOW_H
#define LOCI_CLI_SHOW_H

#include "cli/cli.h"
#include "cli/terminal.h"
#include "show/properties.h"
#include "show/show.h"

enum {
    WHAT,
    HEAD,
    HEADS,
    DIM,
    LEN,
    SEED,
    TENSORS,
    COMPARE,
    ALL,
    EXAMPLE,
    SVG,
    HTML,
    OUTPUT,
    JSON,
    MARKDOWN
};

enum { ALL_FIGURES = SHOW_COUNT * MAX_FIGURES };
struct album {
    int count;
    struct figure f[ALL_FIGURES];
};
void free_album(struct album *);
/* Adds the figures of one kind.  Both print their error. */
bool add_figures(struct album *, struct show *, int what);
struct show *open_show(const struct wish *);
/* The kind of figure that is most instructive for this encoding. */
int best_kind(const struct show *);
/* --html or --output */
const char *page_path(const struct args *);
/* Prints or writes everything in the requested form: a picture, a page, JSON, or text after
 * `heading`. */
struct form {
    const char *title, *about;
    bool side;
};
int put_album(const struct args *, const struct album *, const struct form *, struct text *json,
              struct text *heading);

/* what: of enum show_what, -1 for all */
int show_several(const struct args *, const struct wish *, int what);
int show_list(const struct args *, const struct wish *, int what);

#endif
