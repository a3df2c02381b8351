/* SPDX-License-Identifier: MIT */
/* show.h -- figures and properties of an encoding, computed by the engine, so they show what runs.
 * All numbers are those of F64 plans, so every machine makes the same figures.
 *
 *     struct wish w = { .encoding = "alibi" };
 *     struct show *s;
 *     if (show_open(&s, &w, &error)) ...
 *     if (show_figures(s, SHOW_CURVE, list, &count, &error)) ...
 *     show_close(s); */
#ifndef LOCI_SHOW_SHOW_H
#define LOCI_SHOW_SHOW_H

#include <stdint.h>

#include "draw/figure.h"
#include "loci/loci.h"

enum show_what {
    SHOW_MAP,
    SHOW_CURVE,
    SHOW_SPECTRUM,
    SHOW_ANGLES,
    SHOW_EMBEDDING,
    SHOW_SIMILARITY,
    SHOW_ATTENTION,
    SHOW_PROPERTIES,
    SHOW_COUNT
};
extern const char *const show_names[SHOW_COUNT];

/* A tensor of the caller, named as in "t5.table". show_open() copies its numbers. */
struct given {
    const char *name;
    int rank;
    ptrdiff_t shape[5];
    const double *data;
};

/* 0 selects the default: 8 heads of 64, head 0, 64 positions, seed 1. */
struct wish {
    const char *encoding;
    int heads, dim, head;
    ptrdiff_t len;
    double trained; /* length of training sequences; 0: as len */
    uint64_t seed;
    int given_count;
    const struct given *given;
};

/* An encoding with its tensors, ready for queries. */
struct show;
loci_status show_open(struct show **, const struct wish *, loci_error *);
void show_close(struct show *);
/* The available figures of enum show_what, a bit each. */
unsigned show_has(const struct show *);
/* The plan's text, and a sentence about the origin of its tensors, or "". */
const char *show_text(const struct show *), *show_tensors(const struct show *);

/* Fills in at most MAX_FIGURES figures.  The caller frees them. */
enum { MAX_FIGURES = 4 };
loci_status show_figures(struct show *, enum show_what, struct figure *, int *count, loci_error *);

#endif
