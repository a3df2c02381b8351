/* SPDX-License-Identifier: MIT */
/* ranged.c -- see ranged.h. */
#include "encodings/ranged.h"

#include "math/dd.h"
#include "math/trig.h"

void loci_ranged_terms(const struct ranged_pairs *rule, struct termlist *t)
{
    loci_add_term_layout(t, TERM_ranged_pairs, GROUP_ROTATE, rule, sizeof *rule);
}

size_t loci_ranged_size(const struct config *c, const struct ranged_pairs *rule)
{
    return ranged_pairs_size(rule, (int)c->opt[ROPE_DIM] / 2);
}

static const struct ranged_pairs *rule_of(const struct prep *p) { return p->layout; }

/* Group 1 are the frequencies times the leak, to 106 bits like the others. */
static void frequency(const struct prep *p, int axis, int group, int t, double *hi, double *lo)
{
    (void)axis;
    loci_rope_frequency(p, t, hi, lo);
    if (!group) return;
    const struct dd w = dd_mul((struct dd){ *hi, *lo }, (struct dd){ rule_of(p)->leak, 0 });
    *hi = w.hi;
    *lo = w.lo;
}
void loci_ranged_prepare(const struct prep *p)
{
    const struct ranged_pairs *rule = rule_of(p);
    loci_rope_prepare(p, 1, range_leaks(rule) ? 2 : 1, frequency);
    if (!range_leaks(rule)) return;
    const struct pairs *pairs = p->table;
    const int W = pairs->width;
    double *cos = (double *)range_constant(pairs), *sin = cos + W;
    for (int t = 0; t < W; t++) {
        cos[t] = 1;
        sin[t] = 0;
        if (t >= pairs->count) continue;
        struct dd w = { 0, 0 }, less = { 0, 0 };
        frequency(p, 0, 0, t, &w.hi, &w.lo);
        frequency(p, 0, 1, t, &less.hi, &less.lo);
        w = dd_add(w, (struct dd){ -less.hi, -less.lo });
        loci_sincos((double)rule->window, w.hi, w.lo, &cos[t], &sin[t]);
    }
}
