/* SPDX-License-Identifier: MIT */
/* properties.h -- answers to what textbooks ask, for tables over many encodings. */
#ifndef LOCI_SHOW_PROPERTIES_H
#define LOCI_SHOW_PROPERTIES_H

#include "show/show.h"

enum property {
    PROPERTY_TRANSLATION, PROPERTY_SYMMETRY, PROPERTY_MONOTONE, PROPERTY_DECAY, PROPERTY_APART,
    PROPERTY_NORM, PROPERTY_BEYOND, PROPERTY_CONTENT, PROPERTY_COST, PROPERTY_COUNT
};
/* largest: deviation, NaN where there is none to speak of; tried: over so many scores. */
struct finding {
    const char *name;
    char brief[24], text[400];           /* a word for a table, and a sentence */
    double largest;
    int tried;
    /* of PROPERTY_COST */
    ptrdiff_t parameters;
    double flops, bytes;                 /* of a pair; of a token and head in a decode */
};
loci_status show_measure(struct show *, struct finding all[PROPERTY_COUNT], loci_error *);

#endif
