/* SPDX-License-Identifier: MIT */
/* scan.h -- shared by cope and its term `scan`: options, tensors, and the layout of gradients.
 *
 * The table is e as it is, [npos][D] or [H][npos][D].  A part of the gradient has npos rows of de,
 * `width` apart.  Heads that share e share one place in the total, or one per kv head if the call
 * has the keys of the gates.  The gradient of these keys follows the places, [B][Hkv][Lk][D]. */
#ifndef LOCI_LAYOUT_SCAN_H
#define LOCI_LAYOUT_SCAN_H

#include "contract/call.h"

enum { SCAN_NPOS, SCAN_GATE_SCALE, SCAN_POS_SCALE, SCAN_GATES }; /* options */
enum { SCAN_E, SCAN_GATE_K };                                    /* tensors */
enum gates { GATES_K, GATES_V, GATES_GIVEN };

struct scan {
    int npos, width;
    bool per_head;
    enum gates gates;
    double gate, pos; /* scales of gates and positions, divided by that of q.k */
    ptrdiff_t part;   /* numbers in one part */
};

/* What scan and cope read from a call.  Scores are computed as scale q.k, so the scales of gates
 * and positions are divided by that scale. */
static inline struct scan scan_of(const struct call *c, int enc)
{
    const struct loci_plan *p = c->plan;
    const double *o = p->enc[enc].opt;
    struct scan a = {
        .npos = (int)o[SCAN_NPOS],
        .width = (p->dim + 15) / 16 * 16,
        .gates = (enum gates)o[SCAN_GATES],
        .per_head = p->tensors.list[p->first_tensor[enc] + SCAN_E].rank == 3,
        .gate = o[SCAN_GATE_SCALE] / p->scale,
        .pos = o[SCAN_POS_SCALE] / p->scale,
    };
    a.part = (ptrdiff_t)a.npos * a.width;
    return a;
}

/* How many places the total has: one per head if e has heads; else one per batch entry and kv head
 * if the gates have keys of their own; else one.  scan_part_at() is where head h adds. */
static inline int scan_abreast(const struct call *c, const struct scan *a)
{
    return a->per_head ? c->plan->heads : a->gates == GATES_GIVEN ? c->plan->kv_heads : 1;
}
static inline ptrdiff_t scan_places(const struct call *c, const struct scan *a)
{
    return (a->gates == GATES_GIVEN ? c->B : 1) * scan_abreast(c, a);
}
static inline ptrdiff_t scan_part_at(const struct call *c, const struct scan *a, ptrdiff_t b, int h)
{
    const int n = scan_abreast(c, a);
    return ((a->gates == GATES_GIVEN ? b * n : 0) + h * n / c->plan->heads) * a->part;
}
/* scan_keys(): where the total has the keys of a kv head.  scan_total(): all its numbers. */
static inline ptrdiff_t scan_keys(const struct call *c, const struct scan *a, ptrdiff_t b, int kvh)
{
    return scan_places(c, a) * a->part + (b * c->plan->kv_heads + kvh) * c->Lk * c->plan->dim;
}
static inline ptrdiff_t scan_total(const struct call *c, const struct scan *a)
{
    return a->gates == GATES_GIVEN ? scan_keys(c, a, c->B, 0) : scan_places(c, a) * a->part;
}

#endif
