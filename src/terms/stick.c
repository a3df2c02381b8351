/* SPDX-License-Identifier: MIT */
/* stick.c -- weights that break a stick: each key, newest first, gets the share
 * sigmoid(z) of the rest of it.
 *
 *     e = exp(-|z|)   w = e / (1 + e)   small = f w   big = f - small     f: the rest
 *     z < 0:  p = small, f = big        else:  p = big, f = small        so p + f is the old f
 *
 * Neither sigmoid(z) nor 1 - sigmoid(z) cancels, and there is no log.  A chunk of keys breaks a
 * stick of length 1: r is the rest of it, R the rest of the row's own stick before the chunk,
 * both double from tile to tile.  Inside a tile f is a real, and the shares of the tile are
 * subtracted from r.  So small shares lose nothing in a long row, and only a tile that uses more
 * than half passes its f on.
 *
 * A row ends at the first tile border where less than `stop` remains, and in any case below
 * SPENT: its weights from there on are 0, and rem is the rest.  Inside a tile a `small` below
 * LEAST is 0, and so is w for -|z| below LOW: then f, unless it is 0, stays at LEAST / 2 or
 * above, and no product is subnormal.  Backward, from the oldest key on, with dw = do.v:
 *
 *     h = w dw    H += h, starting at rem drem    ds = h - sigmoid(z) H */
#include "engine/visible.h"
#include "engine/keys.h"
#include "layout/stick.h"

#define SPENT 0x1p-64
#define LEAST ((real)0x1p-75)
#define LOW ((real)-34.5) /* -|z| below which w, less than 2^-49, is 0 */

enum { DOUBLE = sizeof(double) / sizeof(real) }; /* rows of reals that store a row of doubles */
/* vectors of rows processed together: their chains overlap */
enum { BLOCK = QT > 1 ? 4 : 1 };

static int carry(const struct call *c, int x)
{
    (void)c;
    (void)x;
    return 2 * DOUBLE;
}
static double *whole_stick(const struct tile *t, int x) { return (double *)t->own[x].carry; }
static double *stick_of_chunk(const struct tile *t, int x)
{
    return (double *)t->own[x].carry + QT;
}

/* The sum of h, in double, which rows save from chunk to chunk, and the stick of each row at the
 * start of the tile: 0 for rows that ended. */
static ptrdiff_t mem(const struct call *c, int x)
{
    (void)c;
    (void)x;
    return DOUBLE + 1;
}
static ptrdiff_t chunk_state(const struct call *c, int x)
{
    (void)c;
    (void)x;
    return DOUBLE;
}
static real *begun(const struct tile *t, int x) { return t->own[x].mem + DOUBLE * QT; }

/* The smallest rest with which a row goes on. */
static double shortest(const struct tile *t, int x)
{
    const double stop = stick_config(t->c, x)->opt[STICK_STOP];
    return stop > SPENT ? stop : SPENT;
}
/* A stick as a real: 0 if no product with it would be worth adding. */
static real rest(double stick) { return stick < (double)LEAST ? 0 : (real)stick; }
static bool exhausted(const struct tile *t, int x)
{
    const double *R = whole_stick(t, x), *r = stick_of_chunk(t, x), least = shortest(t, x);
    for (int i = 0; i < t->rows; i++)
        if (!(R[i] * r[i] < least)) return false;
    return true;
}

static void open(struct tile *t, int x)
{
    double *R = whole_stick(t, x), *r = stick_of_chunk(t, x);
    for (int i = 0; i < QT; i++) R[i] = r[i] = 1;
}
/* Called before each chunk: the rest of the last chunk becomes the row's own stick. */
static void chunk(struct tile *t, int x)
{
    double *R = whole_stick(t, x), *r = stick_of_chunk(t, x);
    for (int i = 0; i < QT; i++) {
        R[i] *= r[i];
        r[i] = 1;
    }
}

/* ---- Weights --------------------------------------------------------------------------------- */

/* e / (1 + e), e = exp(-|z|): the smaller of sigmoid(z) and sigmoid(-z). */
INLINE vf smaller(vf z)
{
    const vf e = vf_exp_from(LOW, vf_minus_abs(z));
    return vf_div(e, vf_add(vf_set1(1), e));
}

/* Weights of the tile from the sticks f, newest key first, and their sum in `used`.  Backward:
 * sigmoid(z) is stored in ds. */
#if QT == 1
static void break_sticks(struct tile *t, real *f, real *used)
{
    /* With one row the shares are computed for VL keys at once; only the
     * stick goes from key to key. */
    for (int k = 0; k < t->keys; k += VL) vf_store(t->p + k, smaller(vf_load(t->s + k)));
    for (int k = t->keys - 1; k >= 0; k--) {
        const real share = *f * t->p[k], small = share < LEAST ? 0 : share, big = *f - small;
        t->p[k] = t->s[k] < 0 ? small : big;
        *f = t->s[k] < 0 ? big : small;
        *used += t->p[k];
    }
}
#else
/* BLOCK vectors of rows from r on: each row is a chain from key to key, so
 * several are processed together. */
INLINE void break_block(struct tile *t, int r, const bool backward, real *f, real *used)
{
    vf left[BLOCK], sum[BLOCK];
    UNROLL_FOR(int i = 0; i < BLOCK; i++) {
        left[i] = vf_load(f + r + i * VL);
        sum[i] = vf_set1(0);
    }
    for (int k = t->keys - 1; k >= 0; k--)
        UNROLL_FOR(int i = 0; i < BLOCK; i++) {
            const ptrdiff_t at = (ptrdiff_t)k * QT + r + i * VL;
            const vf z = vf_load(t->s + at), w = smaller(z);
            const vf share = vf_mul(left[i], w), small = vf_zero_below(share, LEAST, share),
                     big = vf_sub(left[i], small), p = vf_negative(z, small, big);
            left[i] = vf_negative(z, big, small);
            sum[i] = vf_add(sum[i], p);
            vf_store(t->p + at, p);
            if (backward) {
                /* no weight, no gradient */
                const vf taken = vf_zero_below(share, LEAST, w);
                vf_store(t->ds + at, vf_negative(z, taken, vf_sub(vf_set1(1), taken)));
            }
        }
    UNROLL_FOR(int i = 0; i < BLOCK; i++) {
        vf_store(f + r + i * VL, left[i]);
        vf_store(used + r + i * VL, sum[i]);
    }
}
static void break_sticks(struct tile *t, real *f, real *used)
{
    if (t->ds)
        for (int r = 0; r < QT; r += BLOCK * VL) break_block(t, r, true, f, used);
    else
        for (int r = 0; r < QT; r += BLOCK * VL) break_block(t, r, false, f, used);
}
#endif

/* The tile_weights hook: rows that have ended have a stick of length 0 and so weights of 0. */
static void tile_weights(struct tile *t, int x)
{
    const double *R = whole_stick(t, x), least = shortest(t, x);
    double *r = stick_of_chunk(t, x);
    real *first = begun(t, x), f[QT], used[QT];
    for (int i = 0; i < QT; i++) {
        first[i] = R[i] * r[i] < least ? 0 : (real)r[i];
        f[i] = first[i];
        used[i] = 0;
    }
    break_sticks(t, f, used);
    for (int i = 0; i < QT; i++)
        if (first[i] != 0) r[i] = f[i] < first[i] / 2 ? (double)f[i] : r[i] - (double)used[i];
}

/* Joins the chunk to the total: its sums are of a stick of length 1, and
 * the row's own was R long. */
static void join(struct tile *t, int x)
{
    const double *R = whole_stick(t, x);
    real left[QT];
    for (int i = 0; i < QT; i++) left[i] = rest(R[i]);
    for (int n = 0; n < t->c->plan->value_dim; n++)
        for (int i = 0; i < QT; i++)
            t->total.o[n * QT + i] = fma_(t->chunk.o[n * QT + i], left[i], t->total.o[n * QT + i]);
    EACH_USE(t->c, y, term) {
        real *outs = t->own[y].outs;
        const real *out = t->own[y].out;
        for (int n = 0; n < t->own[y].outn; n++)
            for (int i = 0; i < QT; i++)
                outs[n * QT + i] = fma_(out[n * QT + i], left[i], outs[n * QT + i]);
    }
}

/* ---- The remainder --------------------------------------------------------------------------- */

static ptrdiff_t part(const struct call *c, int x)
{
    return stick_remainder(c, x) == REMAINDER_VECTOR ? c->plan->value_dim : 0;
}
static ptrdiff_t part_at(const struct call *c, int x, ptrdiff_t b, int h)
{
    (void)x;
    (void)b;
    return (ptrdiff_t)h * c->plan->value_dim;
}
static ptrdiff_t total(const struct call *c, int x) { return part(c, x) * c->plan->heads; }

/* Padding rows see no key; all of their stick remains, without an heir. */
static bool padding(const struct tile *t, int row)
{
    return seg_q(t->c, t->seq->b, t->i0 + row) < 0;
}

/* The factor of a row's remainder: the value of its own key as it is summed, the head's vector, or,
 * in padding too, NULL.  buffer: memory for a value. */
static const real *heir(const struct tile *t, int x, int row, real *buffer)
{
    const struct call *c = t->c;
    const int remainder = stick_remainder(c, x);
    if (padding(t, row)) return NULL;
    if (remainder == REMAINDER_VECTOR)
        return (const real *)t->own[x].table + (ptrdiff_t)t->h * c->plan->value_dim;
    if (remainder == REMAINDER_NONE) return NULL;
    if (row_values(c)) {
        to_reals(c->plan->dtype, stored_row(c, row_values(c), t->seq->b, t->kvh, t->i0 + row),
                 c->plan->value_dim, buffer);
        /* the own key has the position of the row, and so its angles */
        if (c->mem.turned)
            turn_outputs(c, t->angles, t->seq->b, t->h, 1, t->i0 + row, 1, buffer,
                         c->plan->value_dim);
        return buffer;
    }
    const ptrdiff_t key = ((const ptrdiff_t *)t->own[x].scratch)[t->seq->b * c->Lq + t->i0 + row];
    return key < 0 ? NULL : find_row(c, VALUES, t->seq->b, t->kvh, key, buffer);
}

/* Where the tile's first row is in [B][H][Lq]. */
static ptrdiff_t first_row(const struct tile *t)
{
    return (t->seq->b * t->c->plan->heads + t->h) * t->c->Lq + t->i0;
}

/* Writes the remainder, and adds it times the heir to o. */
static void close(struct tile *t, int x)
{
    const struct call *c = t->c;
    const double *R = whole_stick(t, x), *r = stick_of_chunk(t, x);
    real *rem = c->in->rem ? (real *)c->in->rem + first_row(t) : NULL, buffer[MAX_DIM];
    for (int i = 0; i < t->rows; i++) {
        const real left = rest(R[i] * r[i]), *to = heir(t, x, i, buffer);
        if (rem) rem[i] = left;
        for (int n = 0; to && n < c->plan->value_dim; n++)
            t->total.o[n * QT + i] = fma_(left, to[n], t->total.o[n * QT + i]);
    }
}

/* ---- Backward -------------------------------------------------------------------------------- */

#if QT > 1
static double *older(const struct tile *t, int x) { return (double *)t->own[x].mem; }

/* H starts with the remainder, in which every key has a share: rem times its
 * gradient, drem + dO.heir. */
static void open_bwd(struct tile *t, int x)
{
    const struct call *c = t->c;
    const int Dv = c->plan->value_dim;
    const real *rem = (const real *)c->in->rem + first_row(t), *drem = c->grad->drem;
    double *H = older(t, x);
    real buffer[MAX_DIM];
    for (int i = 0; i < QT; i++) H[i] = 0;
    for (int i = 0; i < t->rows; i++) {
        const real *to = heir(t, x, i, buffer), *dorow = t->dout.rows + (ptrdiff_t)i * padded(Dv);
        real sum = drem ? drem[first_row(t) + i] : 0;
        for (int n = 0; to && n < Dv; n++) sum = fma_(dorow[n], to[n], sum);
        H[i] = (double)rem[i] * (double)sum;
    }
}

/* From weights of the chunk's stick to those of the row's: times R, which is 1 in the newest
 * chunk.  Those that would be below LEAST are 0, and so are their sigmoids. */
static void whole(struct tile *t, int x)
{
    const double *R = whole_stick(t, x);
    real left[QT], least[QT];
    bool one = true;
    for (int i = 0; i < QT; i++) {
        left[i] = rest(R[i]);
        least[i] = LEAST / left[i];
        one &= left[i] == 1;
    }
    for (int k = 0; k < t->keys && !one; k++)
        for (int i = 0; i < QT; i += VL) {
            const ptrdiff_t at = (ptrdiff_t)k * QT + i;
            const vf p = vf_load(t->p + at), above = vf_sub(p, vf_load(least + i)),
                     chunk_state = vf_negative(above, vf_set1(0), p);
            vf_store(t->p + at, vf_mul(chunk_state, vf_load(left + i)));
            vf_store(t->ds + at, vf_negative(above, vf_set1(0), vf_load(t->ds + at)));
        }
    mask(t, t->p, 0); /* in a row that met NaN, 0 times the rest is NaN */
}

/* ds = h - sigmoid(z) H with H over this key and all older ones; sigmoid(z) is in ds. */
INLINE void tile_weights_bwd_block(struct tile *t, int r, const real *before, real *gained)
{
    vf H[BLOCK], sum[BLOCK];
    UNROLL_FOR(int i = 0; i < BLOCK; i++) {
        H[i] = vf_load(before + r + i * VL);
        sum[i] = vf_set1(0);
    }
    for (int k = 0; k < t->keys; k++)
        UNROLL_FOR(int i = 0; i < BLOCK; i++) {
            const ptrdiff_t at = (ptrdiff_t)k * QT + r + i * VL;
            const vf h = vf_mul(vf_load(t->p + at), vf_load(t->dp + at));
            sum[i] = vf_add(sum[i], h);
            vf_store(t->ds + at, vf_sub(h, vf_mul(vf_load(t->ds + at), vf_add(H[i], sum[i]))));
        }
    UNROLL_FOR(int i = 0; i < BLOCK; i++) vf_store(gained + r + i * VL, sum[i]);
}
static void tile_weights_bwd(struct tile *t, int x)
{
    const real *first = begun(t, x);
    double *H = older(t, x);
    real before[QT], gained[QT];
    /* dP of keys that the row does not see may be NaN, and NaN times a weight of 0 as well */
    mask(t, t->dp, 0);
    /* Weights of a row that had ended are 0 for any scores. */
    for (int i = 0; i < QT; i++) before[i] = first[i] == 0 ? 0 : (real)H[i];
    for (int r = 0; r < QT; r += BLOCK * VL) tile_weights_bwd_block(t, r, before, gained);
    for (int i = 0; i < QT; i++) H[i] += (double)gained[i];
}

/* The vector is the heir of all rows of its head: dr += rem dO. */
static void close_bwd(struct tile *t, int x)
{
    const struct call *c = t->c;
    real *dr = t->own[x].part;
    if (!dr) return;
    const real *rem = (const real *)c->in->rem + first_row(t);
    for (int n = 0; n < c->plan->value_dim; n++) {
        real sum = 0;
        for (int i = 0; i < t->rows; i++)
            if (!padding(t, i)) sum = fma_(rem[i], t->dout.across[n * QT + i], sum);
        dr[n] += sum;
    }
}
#endif

static const struct weights weights = {
    .chunk = chunk,
    .tile_weights = tile_weights,
    .join = join,
#if QT > 1
    .whole = whole,
    .tile_weights_bwd = tile_weights_bwd,
#endif
};
const struct term N(term_stick) = {
    .name = "stick",
    .weights = &weights,
    .carry = carry,
    .mem = mem,
    .chunk_state = chunk_state,
    .open = open,
    .exhausted = exhausted,
    .close = close,
    .part = part,
    .part_at = part_at,
    .total = total,
#if QT > 1
    .open_bwd = open_bwd,
    .close_bwd = close_bwd,
#endif
};
