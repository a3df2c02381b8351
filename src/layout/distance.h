/* SPDX-License-Identifier: MIT */
/* distance.h -- the table of the term `distance`: a number for every head and
 * distance.  Encodings fill it in prepare(), the term adds it to the scores or
 * multiplies them by it, and fold() finds one sum per learned number of a head.
 *
 * A table covers the distances lo .. hi; those beyond have the numbers of the nearer
 * end.  There are two ways to say how the numbers depend on what is learned.  Each
 * distance is of a class, whose number is learned as it is (t5, clip); or there are
 * rows of slopes, the derivatives of the numbers by each learned number (kerple). */
#ifndef LOCI_LAYOUT_DISTANCE_H
#define LOCI_LAYOUT_DISTANCE_H

#include "contract/encoding.h"

/* The head of a table.  All blocks start on 64 bytes.  largest: [H]; row: [H][count]; classes:
 * int32_t [count]; slope: [slopes][H][count]. */
struct distances {
    int64_t lo, hi;
    uint64_t largest, row, classes, slope;         /* bytes from here; classes 0: none */
    /* of all; another table of the same encoding follows */
    uint64_t bytes;
    /* slope i is that by learned number first + i of a head */
    int32_t slopes, first;
};
_Static_assert(sizeof(struct distances) == 64, "what follows must start on 64 bytes");

/* Sizes have 64 bits on every machine; distances_size() checks what
 * memory can have.  Rows begin on cache lines, so heads share none. */
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
    if (classes) t.classes = t.bytes, t.bytes += distances_row(&t, sizeof(int32_t));
    return t;
}
/* What size() returns for that many bytes; SIZE_MAX says that memory cannot have them. */
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

/* Starts a table: numbers, classes and slopes are to be filled in, and `largest`
 * follows the numbers from -inf on.  The engine skips tiles that no term can
 * lift to what a row has seen, so `largest` must never be too small. */
static inline struct distances *distances_open(const struct prep *p, void *at,
                                               const struct distances *layout)
{
    struct distances *t = at;
    *t = *layout;
    for (int h = 0; h < p->cfg->heads; h++)
        store_real(distances_at(t, t->largest), p->f64, h, -INFINITY);
    return t;
}
/* Sets the number of a distance.  A NaN makes the largest
 * a NaN, and it stays one: no tile is skipped then. */
static inline void distances_put(const struct prep *p, const struct distances *t, int h,
                                 int64_t d, double x)
{
    void *largest = distances_at(t, t->largest);
    const double before = load_real(largest, p->f64, h);
    store_real(distances_numbers(t, h, p->f64 ? sizeof(double) : sizeof(float)), p->f64,
               d - t->lo, x);
    if (!(x <= before) && before == before) store_real(largest, p->f64, h, x);
}
static inline void distances_put_slope(const struct prep *p, const struct distances *t, int i,
                                       int h, int64_t d, double x)
{
    store_real(distances_slopes(t, p->cfg->heads, i, h, p->f64 ? sizeof(double) : sizeof(float)),
               p->f64, d - t->lo, x);
}

#endif
