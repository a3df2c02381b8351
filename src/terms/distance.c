/* SPDX-License-Identifier: MIT */
/* distance.c -- a number b[h][d] for every head and distance, added to the score or, in the group
 * MUL, multiplied with it.
 *
 *     s[k][r] += b[d + r - k]          or      s[k][r] *= b[d + r - k]
 *
 * With the rows in the lanes that is one contiguous load per key, or one constant where the table
 * has ended.
 *
 * Backward: sums of dS (times the score before it was multiplied) by distance,
 * then by learned number. */
#include "engine/visible.h"
#include "layout/distance.h"
#include "terms/diagonals.h"

/* Tables of an encoding follow one another in the order of its terms. */
static const struct distances *table_of(const struct tile *t, int x)
{
    const struct loci_plan *p = t->c->plan;
    const struct distances *b = t->own[x].table;
    for (int y = 0; y < x; y++)
        if (p->use[y].enc == p->use[x].enc) b = distances_at(b, b->bytes);
    return b;
}

static int64_t clamp(const struct distances *b, int64_t d)
{
    return d < b->lo ? b->lo : d > b->hi ? b->hi : d;
}

/* The numbers at the distances d - (keys - 1) .. d + QT - 1 of a run's tile: in place, or copied
 * if the table ends there, so that the loop over pairs has no clamp. */
enum { WINDOW = KT + QT - 1 };
static const real *window(const struct distances *b, const real *row, int64_t d, int keys,
                          real *copy)
{
    const int64_t first = d - (keys - 1);
    if (first >= b->lo && d + QT - 1 <= b->hi) return row + (first - b->lo);
    for (int n = 0; n < keys + QT - 1; n++) copy[n] = row[clamp(b, first + n) - b->lo];
    return copy;
}

/* True if all pairs of a run's tile have the number of one end.  Then *d is that distance. */
static bool beyond(const struct distances *b, const struct tile *t, int64_t *d)
{
    *d = t->d - (t->keys - 1) >= b->hi ? b->hi : b->lo;
    return *d == b->hi || t->d + QT - 1 <= b->lo;
}

INLINE real with_bias(bool mul, real s, real b) { return mul ? s * b : s + b; }

/* Adds the number of its distance to every s[k][r], or multiplies by it.  The three ways have
 * the same bits: one operation per pair, on the same two numbers. */
INLINE void apply(const struct tile *t, int x, const bool mul, real *restrict s)
{
    const struct distances *b = table_of(t, x);
    const real *row = distances_numbers(b, t->h, sizeof(real));
    const int keys = t->keys;
    int64_t end;
    if (!t->run) {
        for (int k = 0; k < keys; k++)
            for (int r = 0; r < t->rows; r++)
                s[k * QT + r] =
                    with_bias(mul, s[k * QT + r], row[clamp(b, distance(t, k, r)) - b->lo]);
    } else if (beyond(b, t, &end)) {
        const real same = row[end - b->lo];
        for (int n = 0; n < keys * QT; n++) s[n] = with_bias(mul, s[n], same);
    } else {
        real copy[WINDOW];
        const real *restrict w = window(b, row, t->d, keys, copy);
        for (int k = 0; k < keys; k++)
            for (int r = 0; r < QT; r++)
                s[k * QT + r] = with_bias(mul, s[k * QT + r], w[keys - 1 - k + r]);
    }
}

/* A table may contain inf or NaN for pairs that a row does not see.  Such a head is masked again
 * after the sum: masked scores must stay -inf, and a mix needs a number there.  Groups that
 * multiply are masked by the engine. */
static real largest_of(const struct tile *t, int x)
{
    const struct distances *b = table_of(t, x);
    return ((const real *)distances_at(b, b->largest))[t->h];
}
static bool all_numbers(const struct tile *t, int x) { return largest_of(t, x) < INFINITY; }

static bool multiplies(const struct tile *t, int x)
{
    return t->c->plan->use[x].group == GROUP_MUL;
}

static void score(struct tile *t, int x)
{
    if (multiplies(t, x)) {
        apply(t, x, true, t->s);
        return;
    }
    apply(t, x, false, t->s);
    if (!all_numbers(t, x)) mask(t, t->s, t->c->plan->mix < 0 ? -INFINITY : 0);
}

static real ceiling(const struct tile *t, int x) { return largest_of(t, x); }

/* A part has one sum for each learned number of a head, in the order of the encoding's tensors. */
static ptrdiff_t part(const struct call *c, int x)
{
    const struct loci_plan *p = c->plan;
    const int e = p->use[x].enc;
    ptrdiff_t n = 0;
    for (int i = p->first_tensor[e]; i < p->first_tensor[e + 1]; i++)
        n += tensor_count(&p->tensors.list[i]);
    return n / p->heads;
}
/* Batch entries share the learned numbers of a head. */
static ptrdiff_t part_at(const struct call *c, int x, ptrdiff_t b, int h)
{
    (void)b;
    return h * part(c, x);
}
static ptrdiff_t total(const struct call *c, int x) { return c->plan->heads * part(c, x); }

#if QT > 1
/* Adds the sum of dS at distance d, which the table contains, to its class, and times each
 * slope to the numbers that the slope multiplies.  If no pair is visible the sum is 0, and
 * the slope may be anything. */
static void give(const struct distances *b, const struct tile *t, real *to, int64_t d, real sum)
{
    const int32_t *class_of = distances_classes(b);
    if (sum == 0) return;
    if (class_of) to[class_of[d - b->lo]] += sum;
    for (int i = 0; i < b->slopes; i++) {
        const real *slope = distances_slopes(b, t->c->plan->heads, i, t->h, sizeof(real));
        to[b->first + i] += sum * slope[d - b->lo];
    }
}

/* The same for the sums[n] of a run's tile at the distances t->d - (KT - 1) + n. */
static void give_diagonals(const struct distances *b, const struct tile *t, real *to,
                           const real *sums)
{
    const int32_t *class_of = distances_classes(b);
    const int64_t first = t->d - (KT - 1);
    for (int n = 0; n < WINDOW && class_of; n++)
        to[class_of[clamp(b, first + n) - b->lo]] += sums[n];
    for (int i = 0; i < b->slopes; i++) {
        real copy[WINDOW], product[DIAGONALS];
        const real *slope = window(b, distances_slopes(b, t->c->plan->heads, i, t->h, sizeof(real)),
                                   t->d, KT, copy);
        for (int n = 0; n < WINDOW; n++) product[n] = sums[n] == 0 ? 0 : sums[n] * slope[n];
        product[WINDOW] = 0; /* fold_halves() needs a power of two */
        to[b->first + i] += fold_halves(product, DIAGONALS);
    }
}

/* Adds a tile's ds to the part, the same way in which the scores were computed.  Rows of ds from
 * `keys` on may be overwritten. */
static void give_tile(const struct distances *b, const struct tile *t, real *to, real *ds)
{
    real sums[DIAGONALS];
    int64_t end;
    if (!t->run) {
        for (int k = 0; k < t->keys; k++)
            for (int r = 0; r < t->rows; r++)
                give(b, t, to, clamp(b, distance(t, k, r)), ds[k * QT + r]);
    } else if (beyond(b, t, &end)) {
        give(b, t, to, end, tile_sum(t->keys, ds));
    } else {
        diagonals(t->keys, ds, sums);
        give_diagonals(b, t, to, sums);
    }
}

/* Sets to 0 gradients so small that their products would be subnormal. */
static void drop_small(struct tile *t)
{
    const real low = sizeof(real) == sizeof(float) ? (real)-0x1p-60 : (real)-0x1p-500;
    const vf zero = vf_set1(0);
    for (int n = 0; n < t->keys * QT; n += VL) {
        const vf ds = vf_load(t->ds + n);
        vf_store(t->ds + n, vf_from(vf_minus_abs(ds), low, zero, ds));
    }
}
/* A sum passes ds on unchanged.  A product s b adds ds s to b, from the scores
 * before it, and ds b to s. */
static void score_bwd(struct tile *t, int x)
{
    real *to = t->own[x].fresh;
    if (!multiplies(t, x)) {
        if (to) give_tile(table_of(t, x), t, to, t->ds);
        return;
    }
    drop_small(t);
    if (to) {
        mask(t, t->pre, 0);
        for (int n = 0; n < t->keys * QT; n++) t->pre[n] *= t->ds[n];
        give_tile(table_of(t, x), t, to, t->pre);
    }
    apply(t, x, true, t->ds);
    if (!all_numbers(t, x)) mask(t, t->ds, 0);
}
#endif

const struct term N(term_distance) = {
    .name = "distance",
    .part = part,
    .fresh = part,
    .part_at = part_at,
    .total = total,
    .score = score,
    .ceiling = ceiling,
#if QT > 1
    .score_bwd = score_bwd,
#endif
};
