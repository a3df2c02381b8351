/* SPDX-License-Identifier: MIT */
/* scan.c -- adds z_i(p_ij), where p_ij counts the gates from the row's newest key back to j;
 * encodings/cope.c has the formula.
 *
 * Rows carry p as a whole number and a fraction.  So positions stay exact for any number of
 * keys, and floor(p) costs nothing.  A gate is at most 1, so from key to key floor(p) stays or
 * moves by one.  Then the value at the next position becomes the value at this one, and one
 * number is looked up.  At npos - 1 a row stays, with fraction 0: its carry changes no more, and
 * a tile whose rows are all there needs no gates.
 *
 * Backward, oldest key first: a gate moves the positions of its own key and all older ones, so
 * its gradient is the running sum of theirs. */
#include "engine/tile_gemm.h"
#include "engine/keys.h"

#include "layout/scan.h"

/* Rows of own.mem.  SUM, of the gradient by p over older keys, is saved from chunk to chunk.  Z
 * has npos + 1 rows, the last one twice, so that every position has a next one. */
#if QT > 1
enum {
    SUM,
    GATE,
    FRACTION = GATE + KT,
    WHOLE = FRACTION + KT,
    SLOPE = WHOLE + KT,
    STILL = SLOPE + KT,
    Z
};
enum { KEPT = SUM + 1 };
#else
enum { GATE, STILL = GATE + KT, Z };
#endif

/* Rows whose next values are looked up together, if one of them moved. */
enum { LANES = QT < 16 ? QT : 16 };

static real *rows_at(const struct tile *t, int x, int row)
{
    return t->own[x].mem + (ptrdiff_t)row * QT;
}
static struct scan scan_at(const struct tile *t, int x)
{
    return scan_of(t->c, t->c->plan->use[x].enc);
}

static ptrdiff_t mem(const struct call *c, int x)
{
    return Z + scan_of(c, c->plan->use[x].enc).npos + 1;
}
static int carry(const struct call *c, int x)
{
    (void)c;
    (void)x;
    return 2; /* whole, fraction */
}

static const real *positions(const struct tile *t, int x, const struct scan *a)
{
    return (const real *)t->own[x].table
         + (ptrdiff_t)(a->per_head ? t->h : 0) * a->npos * t->c->plan->dim;
}

/* z of every position, from positions as keys: a tile of npos of them. */
static void open(struct tile *t, int x)
{
    const struct scan a = scan_at(t, x);
    const int D = t->c->plan->dim;
    const struct tile all = { .keys = a.npos, .live = QT };
    const real factor = (real)a.pos;
    real *z = rows_at(t, x, Z);
    dot(&all, positions(t, x, &a), D, D, t->q.across, z, all.next);
    for (int i = 0; i < a.npos * QT; i++) z[i] *= factor;
    memcpy(z + (ptrdiff_t)a.npos * QT, z + (ptrdiff_t)(a.npos - 1) * QT, sizeof(real) * QT);
    memset(t->own[x].carry, 0, sizeof(real) * 2 * QT);
}

/* True if all rows are at npos - 1. */
static bool fixed(const struct tile *t, int x)
{
    const int last = scan_at(t, x).npos - 1;
    bool all = true;
    for (int r = 0; r < t->rows; r++) all &= t->own[x].carry[r] == last;
    return all;
}

/* The vectors that gates multiply the queries by, if these are not the keys: values, or
 * keys that come with the call. */
static const real *gate_keys(const struct tile *t, int x, enum gates gates, ptrdiff_t *stride)
{
    const struct call *c = t->c;
    if (gates == GATES_V)
        return find_rows(c, VALUES, t->seq->b, t->kvh, t->j0, t->keys, t->v.buffer, stride);
    *stride = c->plan->dim;
    return (const real *)input(c, c->plan->use[x].enc, SCAN_GATE_K)
         + ((t->seq->b * c->plan->kv_heads + t->kvh) * c->Lk + t->j0) * c->plan->dim;
}
static struct next next_gate_keys(const struct tile *t, const real *k, enum gates gates)
{
    return gates == GATES_V ? to_next(t, VALUES, t->next.first) : next_rows(t, k, t->c->plan->dim);
}

/* Gates of the tile; of masked pairs, 0.  Logits other than those of q.k use p as
 * scratch, which is not needed yet. */
static void read(struct tile *t, int x)
{
    const struct scan a = scan_at(t, x);
    const bool still = fixed(t, x);
    *rows_at(t, x, STILL) = still;
    if (still) return;
    if (a.gates != GATES_K) {
        ptrdiff_t stride;
        const real *k = gate_keys(t, x, a.gates, &stride);
        dot(t, k, stride, t->c->plan->dim, t->q.across, t->p, next_gate_keys(t, k, a.gates));
    }
    const real *s = t->s, *logit = a.gates == GATES_K ? t->s : t->p;
    const vf factor = vf_set1((real)a.gate), one = vf_set1(1);
    real *gate = rows_at(t, x, GATE);
    /* The sigmoid from e^-|y|, which cannot overflow.  A tile has memory for whole vectors. */
    for (int n = 0; n < t->keys * QT; n += VL) {
        const vf y = vf_mul(vf_load(logit + n), factor), e = vf_exp(vf_minus_abs(y)),
                 g = vf_div(vf_negative(y, e, one), vf_add(one, e));
        vf_store(gate + n, vf_zero_below(vf_load(s + n), -FLT_MAX, g));
    }
}

/* Newest key first, all rows of a key at once: they do not depend on each other.  It stores what
 * the backward pass needs of each pair. */
static void add(struct tile *t, int x)
{
    const int end = (scan_at(t, x).npos - 1) * QT;
    const real *restrict z = rows_at(t, x, Z), *restrict gate = rows_at(t, x, GATE);
    real *restrict s = t->s;
    if (*rows_at(t, x, STILL) != 0) {
        for (int k = 0; k < t->keys; k++)
            for (int r = 0; r < QT; r++) s[k * QT + r] += z[end + r];
        return;
    }
    real *whole = t->own[x].carry, *fraction = whole + QT;
    real f[QT], low[QT], high[QT]; /* z at floor(p) and at the next position */
    int at[QT], up[QT];            /* floor(p) QT; whether it moved */
    for (int r = 0; r < QT; r++) {
        at[r] = (int)whole[r] * QT;
        f[r] = fraction[r];
        low[r] = z[at[r] + r];
        high[r] = z[at[r] + QT + r];
    }
#if QT > 1
    real *restrict fractions = rows_at(t, x, FRACTION), *restrict wholes = rows_at(t, x, WHOLE);
    real *restrict slopes = rows_at(t, x, SLOPE);
#endif
    for (int k = t->keys - 1; k >= 0; k--) {
        /* selects instead of branches, and `high` only if some row has moved */
        for (int r = 0; r < QT; r++) {
            const real sum = f[r] + gate[k * QT + r], rest = sum >= 1 ? sum - 1 : sum;
            const int next = sum >= 1 && at[r] < end ? at[r] + QT : at[r];
            up[r] = next != at[r];
            low[r] = up[r] ? high[r] : low[r];
            at[r] = next;
            f[r] = next == end ? 0 : rest;
        }
        for (int r0 = 0; r0 < QT; r0 += LANES) {
            int moved = 0;
            for (int r = r0; r < r0 + LANES; r++) moved |= up[r];
            if (!moved) continue;
            for (int r = r0; r < r0 + LANES; r++) high[r] = z[at[r] + QT + r];
        }
        /* At a whole number the two sides have different slopes, and 0 is used;
         * at the end p does not move. */
        for (int r = 0; r < QT; r++) {
            const real slope = high[r] - low[r];
            s[k * QT + r] += fma_(f[r], slope, low[r]);
#if QT > 1
            fractions[k * QT + r] = f[r];
            wholes[k * QT + r] = (real)at[r];
            slopes[k * QT + r] = f[r] > 0 ? slope : 0;
#endif
        }
    }
    for (int r = 0; r < QT; r++) {
        whole[r] = (real)(at[r] / QT);
        fraction[r] = f[r];
    }
}

/* Padding rows among segments may contain NaN, and pairs that they do not see must stay masked.
 * A mix masks its own input. */
static void score(struct tile *t, int x)
{
    add(t, x);
    if (t->listed && t->c->plan->mix < 0) mask(t, t->s, -INFINITY);
}

#if QT > 1
static ptrdiff_t grad(const struct call *c, int x)
{
    return scan_of(c, c->plan->use[x].enc).npos + 1;
}
static ptrdiff_t chunk_state(const struct call *c, int x)
{
    (void)c;
    (void)x;
    return KEPT;
}
static ptrdiff_t part(const struct call *c, int x) { return scan_of(c, c->plan->use[x].enc).part; }
static ptrdiff_t part_at(const struct call *c, int x, ptrdiff_t b, int h)
{
    const struct scan a = scan_of(c, c->plan->use[x].enc);
    return scan_part_at(c, &a, b, h);
}
static int keyed(const struct call *c, int x)
{
    return scan_of(c, c->plan->use[x].enc).gates == GATES_GIVEN ? c->plan->dim : 0;
}
static ptrdiff_t keys_at(const struct call *c, int x, ptrdiff_t b, int h)
{
    const struct scan a = scan_of(c, c->plan->use[x].enc);
    return scan_keys(c, &a, b, h / c->plan->group);
}
static ptrdiff_t total(const struct call *c, int x)
{
    const struct scan a = scan_of(c, c->plan->use[x].enc);
    return scan_total(c, &a);
}

static void open_bwd(struct tile *t, int x) { memset(rows_at(t, x, SUM), 0, sizeof(real) * QT); }

/* dz, and instead of the gates the gradient of their logits, as a factor of scale q.k.  With
 * z(p) = (1 - f) z[w] + f z[w + 1] the slope by p is z[w + 1] - z[w].  Where a row is at a whole
 * number or at the end it is 0.  Keys come oldest first, so `before` is the sum over this key
 * and all older ones, whose p contains the gate. */
static void add_bwd(struct tile *t, int x)
{
    const struct scan a = scan_at(t, x);
    const real *restrict ds = t->ds, factor = (real)a.gate;
    real *restrict dz = t->own[x].grad;
    if (*rows_at(t, x, STILL) != 0) {
        real sum[QT] = { 0 };
        for (int k = 0; k < t->keys; k++)
            for (int r = 0; r < QT; r++) sum[r] += ds[k * QT + r];
        for (int r = 0; r < QT; r++) dz[(a.npos - 1) * QT + r] += sum[r];
        return;
    }
    const real *restrict fractions = rows_at(t, x, FRACTION);
    const real *restrict wholes = rows_at(t, x, WHOLE), *restrict slopes = rows_at(t, x, SLOPE);
    real *restrict gate = rows_at(t, x, GATE), *restrict before = rows_at(t, x, SUM);
    /* of dz at floor(p) and the next position, of this tile */
    real low[QT] = { 0 }, high[QT] = { 0 };
    int at[QT];
    for (int r = 0; r < QT; r++) at[r] = (int)wholes[r];
    /* The sums of a position are written when the row leaves it.  floor(p) falls by one at a
     * time, so the sum for floor(p) then becomes that for the next position. */
    for (int k = 0; k < t->keys; k++) {
        for (int r0 = 0; r0 < QT; r0 += LANES) {
            int moved = 0;
            for (int r = r0; r < r0 + LANES; r++) moved |= (int)wholes[k * QT + r] != at[r];
            if (!moved) continue;
            for (int r = r0; r < r0 + LANES; r++) {
                const int now = (int)wholes[k * QT + r];
                if (now == at[r]) continue;
                dz[at[r] + QT + r] += high[r];
                high[r] = low[r];
                low[r] = 0;
                at[r] = now;
            }
        }
        for (int r = 0; r < QT; r++) {
            const real w = fractions[k * QT + r], d = ds[k * QT + r], g = gate[k * QT + r];
            high[r] = fma_(w, d, high[r]);
            low[r] = fma_(1 - w, d, low[r]);
            before[r] = fma_(d, slopes[k * QT + r], before[r]);
            gate[k * QT + r] = g == 0 ? 0 : before[r] * factor * (g * (1 - g));
        }
    }
    for (int r = 0; r < QT; r++) {
        dz[at[r] + QT + r] += high[r];
        dz[at[r] + r] += low[r];
    }
}

/* Gates of q.k add to ds.  Other gates are separate dot products, with gradients of queries,
 * and of values or given keys. */
static void read_bwd(struct tile *t, int x)
{
    const struct scan a = scan_at(t, x);
    const real *restrict dlogit = rows_at(t, x, GATE);
    const int n = t->keys * QT, D = t->c->plan->dim;
    if (*rows_at(t, x, STILL) != 0) return;
    if (a.gates == GATES_K) {
        real *restrict ds = t->ds;
        for (int i = 0; i < n; i++) ds[i] += dlogit[i];
        return;
    }
    ptrdiff_t stride;
    const real *k = gate_keys(t, x, a.gates, &stride);
    mix_safe(t, k, stride, D, dlogit, t->dq, t->alpha, t->next);
    if (a.gates == GATES_V && t->dv_part) outer_safe(t, dlogit, t->q.rows, a.width, t->dv_part);
    if (a.gates == GATES_GIVEN && t->own[x].keys)
        outer_safe(t, dlogit, t->q.rows, a.width, t->own[x].keys);
}

/* z = pos e.q: dq += e^T dz, de += dz q^T. */
static void close_bwd(struct tile *t, int x)
{
    const struct scan a = scan_at(t, x);
    const int D = t->c->plan->dim;
    const real factor = (real)a.pos;
    real *dz = t->own[x].grads;
    for (int i = 0; i < a.npos * QT; i++) dz[i] *= factor;
    product(ADD, D, QT, a.npos, positions(t, x, &a), 1, D, dz, QT, t->dqs, QT, NULL);
    if (t->own[x].part) add_outer(t, a.npos, dz, t->q.rows, a.width, t->own[x].part);
}
#endif

const struct term N(term_scan) = {
    .name = "scan",
    .mem = mem,
    .carry = carry,
    .open = open,
    .read = read,
    .score = score,
    .fixed = fixed,
#if QT > 1
    .grad = grad,
    .chunk_state = chunk_state,
    .part = part,
    .part_at = part_at,
    .keyed = keyed,
    .keys_at = keys_at,
    .total = total,
    .open_bwd = open_bwd,
    .score_bwd = add_bwd,
    .read_bwd = read_bwd,
    .close_bwd = close_bwd,
#endif
};
