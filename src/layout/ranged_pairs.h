/* SPDX-License-Identifier: MIT */
/* ranged_pairs.h -- what the term `ranged_pairs` reads: pairs of channels that rotate by an
 * effective distance.  Each range of distances is a class of pairs of a row and a key, and each
 * class is a rotation of the row and one of the key.
 *
 *     class            0 near                    1 far
 *     rerope           d < window                the others
 *       row at         pos                       window + leak (pos - window)
 *       key at         pos                       leak pos; with leak 0 it does not rotate
 *     selfextend       d < window                the others
 *       row at         pos                       floor(pos / group) + window - window / group
 *       key at         pos                       floor(pos / group)
 *
 *     dca              0 the same chunk   1 the chunk before            2 an older one
 *       row at         pos mod c          min(pos mod c + c, chunk)     min(2c - 1, chunk)
 *       key at         pos mod c, in all classes
 *
 * c = chunk - local, and chunk number C of a position is floor(pos / c).  The table is that of
 * layout/pairs.h.  With a leak between 0 and 1 it has a second group of frequencies, leak w, and
 * after that cos and sin of window (1 - leak) w, [2][width] doubles. */
#ifndef LOCI_LAYOUT_RANGED_PAIRS_H
#define LOCI_LAYOUT_RANGED_PAIRS_H

#include "layout/pairs.h"

enum range_rule { RANGE_REROPE, RANGE_SELFEXTEND, RANGE_DCA };
/* Rows of dca have three forms, those of the others two.  Keys of dca have one. */
enum { RANGE_FORMS = 3 };

struct ranged_pairs {
    enum range_rule rule;
    int64_t window, group; /* dca: chunk, and c */
    double leak;
};
_Static_assert(sizeof(struct ranged_pairs) <= LAYOUT_BYTES, "fits into a use");

/* Quotient and remainder of the floor, also of negative positions. */
static inline int64_t floor_div(int64_t x, int64_t by) { return x / by - (x % by < 0); }
static inline int64_t floor_mod(int64_t x, int64_t by) { return x - floor_div(x, by) * by; }

/* Does a part of the angle follow from the leak alone? */
static inline bool range_leaks(const struct ranged_pairs *p)
{
    return p->rule == RANGE_REROPE && p->leak > 0 && p->leak < 1;
}

/* The class of a row and a key.  Invisible pairs have one too. */
static inline int range_class(const struct ranged_pairs *p, int64_t q, int64_t k)
{
    if (p->rule != RANGE_DCA) return q - k >= p->window;
    const int64_t chunks = floor_div(q, p->group) - floor_div(k, p->group);
    return chunks <= 0 ? 0 : chunks == 1 ? 1 : 2;
}

/* Where a row or a key at pos stands in a form.  If it leaks, x is the position times the second
 * frequencies, and rows have the constant angle added; `at` is the position in full. */
struct range_place {
    bool leaks, still; /* still: the row does not rotate */
    double x, at;
};
static inline struct range_place range_place(const struct ranged_pairs *p, bool query, int form,
                                             int64_t pos)
{
    struct range_place r = { .x = (double)pos };
    if (p->rule == RANGE_DCA) {
        const int64_t c = p->group, in = floor_mod(pos, c);
        r.x = (double)(form == 0                            ? in
                       : form == 1 && in + c < p->window    ? in + c
                       : form == 2 && 2 * c - 1 < p->window ? 2 * c - 1
                                                            : p->window);
    } else if (form && p->rule == RANGE_SELFEXTEND) {
        r.x = (double)(floor_div(pos, p->group) + (query ? p->window - p->window / p->group : 0));
    } else if (form && range_leaks(p)) {
        r.leaks = true;
        r.at =
            query ? (double)p->window + p->leak * (double)(pos - p->window) : p->leak * (double)pos;
        return r;
    } else if (form && p->leak == 0) {
        r.still = !query;
        r.x = query ? (double)p->window : 0;
    }
    r.at = r.x;
    return r;
}

/* The table: bytes, and cos and sin of the constant angle. */
static inline size_t ranged_pairs_size(const struct ranged_pairs *p, int count)
{
    return loci_pairs_size(count, 1, range_leaks(p) ? 2 : 1)
         + (range_leaks(p) ? 2 * (size_t)pairs_width(count) * sizeof(double) : 0);
}
static inline const double *range_constant(const struct pairs *p) { return pairs_rows(p, 2, 0); }

#endif
