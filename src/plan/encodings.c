/* SPDX-License-Identifier: MIT */
/* encodings.c -- the list of encodings. */
#include "util/lock.h"
#include "contract/encoding.h"

static const struct loci_pe *const encodings[] = {
#define PE(name) &loci_pe_##name,
#include "encodings/list.h"
#undef PE
};
/* Filled by the first caller, and constant after that. */
static loci_encoding_info infos[COUNT(encodings)];

/* The public list, from the encodings' tables. */
static void fill_infos(void)
{
    for (int i = 0; i < COUNT(encodings); i++) {
        const struct loci_pe *pe = encodings[i];
        int options = 0;
        while (options_of(pe)[options].name) options++;
        infos[i] = (loci_encoding_info){
            .name = pe->name,
            .cite = pe->cite,
            .brief = pe->brief,
            .places = pe->places,
            .causal_only = pe->causal_only,
            .option_count = options,
            .options = options_of(pe),
            .tolerance = pe->tol,
            .example = pe->example,
        };
    }
}

int loci_encodings(const loci_encoding_info **list)
{
    static struct once once = ONCE;
    once_do(&once, fill_infos);
    if (list) *list = infos;
    return COUNT(encodings);
}
