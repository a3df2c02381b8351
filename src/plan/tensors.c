/* SPDX-License-Identifier: MIT */
/* tensors.c -- the tensors of a plan and their initial values. */
#include "math/random.h"
#include "contract/plan.h"

int loci_tensors(const loci_plan *p, loci_tensor *list, int capacity)
{
    if (!p) return 0;
    for (int i = 0; list && i < p->tensors.n && i < capacity; i++) list[i] = p->tensors.list[i];
    return p->tensors.n;
}

loci_source loci_tensor_source(const loci_plan *p, int which)
{
    return p && which >= 0 && which < p->tensors.n ? p->tensors.source[which] : LOCI_SOURCE_OTHER;
}

double loci_tensor_low(const loci_plan *p, int which)
{
    return p && which >= 0 && which < p->tensors.n ? p->tensors.low[which] : -INFINITY;
}

/* Number i of a tensor as it starts: by a function of the encoding, or by one of the usual kinds.
 * A uniform start without b goes from -a to a. */
static double start(const loci_plan *p, int enc, int which, uint64_t stream, ptrdiff_t i)
{
    const struct tensors *t = &p->tensors;
    double a = t->init[which].a, b = t->init[which].b;
    if (t->fill[which]) return t->fill[which](&p->enc[enc], i);
    if (t->draw[which]) return t->draw[which](&p->enc[enc], stream, i);
    switch (t->init[which].kind) {
    case INIT_CONSTANT:
        return a;
    case INIT_NORMAL:
        return a * loci_normal(stream, (uint64_t)i);
    case INIT_UNIFORM:
        return b == 0 ? a * (2 * loci_uniform(stream, (uint64_t)i) - 1)
                      : a + (b - a) * loci_uniform(stream, (uint64_t)i);
    default:
        return 0;
    }
}

void loci_tensor_init(const loci_plan *p, int which, uint64_t seed, void *data)
{
    if (!p || !data || which < 0 || which >= p->tensors.n
        || p->tensors.list[which].role == LOCI_INPUT)
        return;
    /* Each tensor has its own stream, so its numbers do not depend on the sizes of earlier
     * tensors. */
    int enc = 0;
    while (which >= p->first_tensor[enc + 1]) enc++;
    uint64_t stream = loci_scramble(loci_scramble(seed) + (uint64_t)which);
    ptrdiff_t n = tensor_count(&p->tensors.list[which]);
    for (ptrdiff_t i = 0; i < n; i++) store_real(data, p->f64, i, start(p, enc, which, stream, i));
}
