/* SPDX-License-Identifier: MIT */
/* properties.h -- answers to textbook questions, for tables over many encodings. */
#ifndef LOCI_SHOW_PROPERTIES_H
#define LOCI_SHOW_PROPERTIES_H

#include "show/show.h"

enum property {
    PROPERTY_TRANSLATION,
    PROPERTY_SYMMETRY,
    PROPERTY_MONOTONE,
    PROPERTY_DECAY,
    PROPERTY_APART,
    PROPERTY_NORM,
    PROPERTY_BEYOND,
    PROPERTY_CONTENT,
    PROPERTY_COST,
    PROPERTY_COUNT
};
/* largest: deviation, NaN if not applicable; tried: number of scores. */
struct finding {
    const char *name;
    char brief[24], text[400]; /* a word for a table, and a sentence */
    double largest;
    int tried;
    /* of PROPERTY_COST */
    ptrdiff_t parameters;
    /* flops of a pair; bytes of a token and head in a decode */
    double flops, bytes;
};
loci_status show_measure(struct show *, struct finding all[PROPERTY_COUNT], loci_error *);

#endif
