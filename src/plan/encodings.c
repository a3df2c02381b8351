/* SPDX-License-Identifier: MIT */
/* encodings.c -- the list of encodings. */
#include "util/lock.h"
#include "contract/encoding.h"

#define PE(name) extern const struct loci_pe loci_pe_##name;
#include "encodings/list.h"
#undef PE

static const struct loci_pe *const encodings[] = {
#define PE(name) &loci_pe_##name,
#include "encodings/list.h"
#undef PE
};

const struct loci_pe *const *loci_pe_list(int *count)
{
    *count = COUNT(encodings);
    return encodings;
}

const char *loci_pe_plain(void) { return encodings[0]->name; }

const struct loci_pe *loci_pe_find(const char *name, size_t n)
{
    for (int i = 0; i < COUNT(encodings); i++)
        if (strlen(encodings[i]->name) == n && !memcmp(encodings[i]->name, name, n))
            return encodings[i];
    return NULL;
}

/* Written once, when somebody asks first, and constant from then on. */
static loci_encoding_info infos[COUNT(encodings)];

/* The public list, from the encodings' tables. */
static void fill_infos(void)
{
    for (int i = 0; i < COUNT(encodings); i++) {
        const struct loci_pe *pe = encodings[i];
        int options = 0;
        while (encoding_options(pe)[options].name) options++;
        infos[i] = (loci_encoding_info){
            .name = pe->name,
            .cite = pe->cite,
            .brief = pe->brief,
            .places = pe->places,
            .causal_only = pe->causal_only,
            .option_count = options,
            .options = encoding_options(pe),
            .tolerance = pe->tol,
            .example = pe->example,
        };
    }
}

int loci_encodings(const loci_encoding_info **list)
{
    static struct once once = ONCE_INIT;
    once_run(&once, fill_infos);
    if (list) *list = infos;
    return COUNT(encodings);
}
