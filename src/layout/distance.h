/* SPDX-License-Identifier: MIT */
/* distance.h -- the table of the term `distance`: a number for every head and distance.  Encodings
 * fill it in prepare().  The term adds it to the scores or multiplies them by it.  fold() gets one
 * sum per learned number of a head.
 *
 * A table covers the distances lo .. hi.  Distances beyond have the numbers of the nearer end.
 * There are two ways to describe how the numbers depend on what is learned.  Either each distance
 * belongs to a class, whose number is learned directly (t5, clip).  Or there are rows of slopes,
 * the derivatives of the numbers by each learned number (kerple). */
#ifndef LOCI_LAYOUT_DISTANCE_H
#define LOCI_LAYOUT_DISTANCE_H

#include "contract/encoding.h"

/* The head of a table.  All blocks are aligned to 64 bytes.  largest: [H]; row: [H][count];
 * classes: int32_t [count]; slope: [slopes][H][count]. */
struct distances {
    int64_t lo, hi;
    uint64_t largest, row, classes, slope; /* byte offsets from here; classes 0: none */
    /* Total. Another table of the same encoding may follow. */
    uint64_t bytes;
    /* Slope i is the derivative by learned number first + i of a head. */
    int32_t slopes, first;
};
_Static_assert(sizeof(struct distances) == 64, "what follows must start on 64 bytes");

/* Sizes have 64 bits on every machine.  distances_size() checks whether they fit into memory.  Rows
 * begin on cache lines, so heads share no lines. */
static inline uint64_t distances_line(uint64_t bytes) { return (bytes + 63) & ~(uint64_t)63; }
static inline uint64_t distances_row(const struct distances *t, size_t each)
{
    return distances_line((uint64_t)(t->hi - t->lo + 1) * each);
}
static inline struct distances distances_layout(int heads, int64_t lo, int64_t hi, bool classes,
                                                int slopes, int first, size_t each)
{
    struct distances t = { .lo = lo, .hi = hi, .slopes = slopes, .first = first };
    const uint64_t row = distances_row(&t, each);
    t.largest = sizeof t;
    t.row = t.largest + distances_line((uint64_t)heads * each);
    t.slope = t.row + (uint64_t)heads * row;
    t.bytes = t.slope + (uint64_t)slopes * (uint64_t)heads * row;
    if (classes) {
        t.classes = t.bytes;
        t.bytes += distances_row(&t, sizeof(int32_t));
    }
    return t;
}
/* The return value of size() for that many bytes.  SIZE_MAX: too large for memory. */
static inline size_t distances_size(uint64_t bytes)
{
    return bytes > PTRDIFF_MAX ? SIZE_MAX : (size_t)bytes;
}

static inline void *distances_at(const struct distances *t, uint64_t bytes)
{
    return (char *)(uintptr_t)t + bytes;
}
static inline int32_t *distances_classes(const struct distances *t)
{
    return t->classes ? distances_at(t, t->classes) : NULL;
}
static inline void *distances_numbers(const struct distances *t, int h, size_t each)
{
    return distances_at(t, t->row + (uint64_t)h * distances_row(t, each));
}
static inline void *distances_slopes(const struct distances *t, int heads, int i, int h,
                                     size_t each)
{
    return distances_at(t, t->slope
                               + ((uint64_t)i * (uint64_t)heads + (uint64_t)h)
                                     * distances_row(t, each));
}

/* ---- For prepare() --------------------------------------------------------------------------- */

/* Starts a table.  Its numbers, classes and slopes are filled in later.  `largest` starts at -inf
 * and follows the numbers.  The engine skips tiles that no term can raise to the scores of a row.
 * So `largest` must never be too small. */
static inline struct distances *distances_open(const struct prep *p, void *at,
                                               const struct distances *layout)
{
    struct distances *t = at;
    *t = *layout;
    for (int h = 0; h < p->cfg->heads; h++)
        store_real(distances_at(t, t->largest), p->f64, h, -INFINITY);
    return t;
}
/* Sets the number of a distance.  A NaN makes `largest` NaN for good, and then no tile is
 * skipped. */
static inline void distances_put(const struct prep *p, const struct distances *t, int h, int64_t d,
                                 double x)
{
    void *largest = distances_at(t, t->largest);
    const double before = load_real(largest, p->f64, h);
    store_real(distances_numbers(t, h, p->f64 ? sizeof(double) : sizeof(float)), p->f64, d - t->lo,
               x);
    if (!(x <= before) && before == before) store_real(largest, p->f64, h, x);
}
static inline void distances_put_slope(const struct prep *p, const struct distances *t, int i,
                                       int h, int64_t d, double x)
{
    store_real(distances_slopes(t, p->cfg->heads, i, h, p->f64 ? sizeof(double) : sizeof(float)),
               p->f64, d - t->lo, x);
}

#endif
