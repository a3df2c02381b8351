/* SPDX-License-Identifier: MIT */
/* parts.c -- what begins before a pass in parts, and before each part. */
#include "distributed/gathered.h"

static int rotation_of_plan(const struct loci_plan *p)
{
    return p->rotate >= 0 ? p->use[p->rotate].enc : -1;
}
void loci_begin_others(struct call *c)
{
    for (int e = 0; e < c->plan->encs; e++)
        if (e != rotation_of_plan(c->plan)) loci_begin_encoding(c, e);
}
void loci_begin_part(struct call *c, ptrdiff_t first)
{
    const int rotation = rotation_of_plan(c->plan);
    c->stream.first = first;
    for (ptrdiff_t s = 0; s < c->seqs.n; s++) c->seqs.list[s].k0 = -first;
    if (rotation >= 0) loci_begin_encoding(c, rotation);
    c->plan->engine->keys(c);
}
