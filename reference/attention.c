/* SPDX-License-Identifier: MIT */
/* attention.c -- attention with any encoding, row by row, and its whole gradient.
 *
 *     a_ij = mul_ij scale (q_i.k_j + raw_ij)      q, k after rotation; some encodings have other
 *                                                 products of the two, some bend it
 *                                                 and the sums of those before them in the text
 *     s_ij = a_ij + add_ij, or the mix of the two; then plus the mask
 *     w_ij = exp(s_ij - lse_i),  lse_i = log(exp sink + sum_j exp s_ij); without a sink its exp
 *                                is 0; or another weight rule (sba)
 *     then, with dropout, w_ij is 0 or w_ij / (1 - p)
 *     o_i  = sum_j w_ij v_j + what the encodings add; if values turn with the keys, v_j is turned
 *            by the angles of key j, and the sum back by those of row i
 *     ae_i = sum_j w_ij (the state of key j), where keys have states
 *
 * Sums run over the keys that row i sees.  A row that sees none, or none of a score above -inf,
 * has o 0 (and what the encodings add), lse -inf or sink, rem 1.  A row is NaN if one of its
 * scores is, or if all are -inf because its products overflowed. */
#include <stdlib.h>

#include "reference/problem.h"

/* ---- Memory ---------------------------------------------------------------------------------- */

/* n more doubles of `base`; with NULL they are only counted. */
static double *carve(double *base, ptrdiff_t *used, ptrdiff_t n)
{
    double *x = base ? base + *used : NULL;
    *used += n;
    return x;
}

/* Lays everything out at `base`, or with NULL only measures.  Returns the number of doubles. */
static ptrdiff_t lay_out(struct problem *p, double *base)
{
    ptrdiff_t used = p->backward ? loci_reference_dtensors(p, base) : 0;
    ptrdiff_t q = forms_of(p, true) * p->H * p->Lq * p->Dr,
              k = forms_of(p, false) * p->Hk * p->Lk * p->Dr, v = p->Hkv * p->Lk * p->Dv;
    /* For the whole batch entry: rows after rotation, and their gradients. */
    double **whole[] = { &p->q, &p->dq, &p->k, &p->dk, &p->v, &p->dv };
    ptrdiff_t size[] = { q, q, k, k, v, v };
    for (int i = 0; i < COUNT(whole); i++) *whole[i] = carve(base, &used, size[i]);

    p->sees = (bool *)carve(base, &used, p->H * p->Lk); /* a double each is more than enough */
    /* For one row in all heads: a number per key. */
    double **row[] = { &p->product, &p->raw, &p->log_mul, &p->add,  &p->flat,     &p->a,
                       &p->s,       &p->w,   &p->dadd,    &p->draw, &p->dlog_mul, &p->da,
                       &p->ds,      &p->dw,  &p->keep,    &p->whole };
    for (int i = 0; i < COUNT(row); i++) *row[i] = carve(base, &used, p->H * p->Lk);
    for (int e = 0; e < p->plan->encs; e++)
        if (p->def[e]->bend) p->before[e] = carve(base, &used, p->H * p->Lk);
    for (int e = 0; e < p->plan->encs; e++) {
        if (!p->def[e]->waves) continue;
        p->wave[e] = carve(base, &used, (p->Lq + p->Lk) * p->def[e]->waves(p, e));
        p->wave_of[e] = carve(base, &used, p->Lq + p->Lk);
    }
    double **number[] = { &p->lse, &p->rem, &p->dlse, &p->drem, &p->keys_seen };
    for (int i = 0; i < COUNT(number); i++) *number[i] = carve(base, &used, p->H);
    p->o = carve(base, &used, p->H * p->Dv);
    p->dout = carve(base, &used, p->H * p->Dv);
    p->ae = carve(base, &used, p->H * p->D);
    p->dae = carve(base, &used, p->H * p->D);

    /* Encodings use scratch for a row of keys, of channels, or of a tensor. */
    ptrdiff_t longest = p->Lk > p->Dr ? p->Lk : p->Dr;
    if (p->Dv > longest) longest = p->Dv;
    for (int t = 0; t < p->plan->tensors.n; t++)
        for (int i = 0; i < p->plan->tensors.list[t].rank; i++)
            if (p->plan->tensors.list[t].shape[i] > longest)
                longest = p->plan->tensors.list[t].shape[i];
    for (int i = 0; i < COUNT(p->scratch); i++) p->scratch[i] = carve(base, &used, longest);
    p->rotate_scratch = carve(base, &used, loci_reference_scratch(p));
    return used;
}

static void zero(double *x, ptrdiff_t n)
{
    for (ptrdiff_t i = 0; i < n; i++) x[i] = 0;
}

/* ---- Visible keys ---------------------------------------------------------------------------- */

/* The mask for head h and key j: 0 or 1, or the number that is added. */
static double mask_number(const struct problem *p, int h, ptrdiff_t j)
{
    const loci_call *c = p->call;
    loci_view m = dense(c->mask, p->H, p->Lq, c->mask_key == LOCI_BROADCAST ? 1 : p->Lk);
    ptrdiff_t *stride[] = { &m.batch, &m.head, &m.row };
    for (int i = 0; i < COUNT(stride); i++)
        if (*stride[i] == LOCI_BROADCAST) *stride[i] = 0;
    const ptrdiff_t key = !c->mask_key ? 1 : c->mask_key == LOCI_BROADCAST ? 0 : c->mask_key;
    const ptrdiff_t at = p->b * m.batch + h * m.head + p->i * m.row + j * key;
    return c->mask_kind == LOCI_MASK_SEEN ? ((const unsigned char *)m.data)[at] != 0
                                          : ((const double *)m.data)[at];
}
double loci_reference_added(const struct problem *p, int h, ptrdiff_t j)
{
    return p->call->mask_kind == LOCI_MASK_ADDED ? mask_number(p, h, j) : 0;
}
/* True if the mask and the first and last key of row i let head h see key j. */
static bool let_through(const struct problem *p, int h, ptrdiff_t j)
{
    const loci_call *c = p->call;
    const ptrdiff_t i = (c->per_batch ? p->b * p->Lq : 0) + p->i;
    if (c->k_first && (j < c->k_first[i] || j > c->k_last[i])) return false;
    if (c->mask_kind == LOCI_MASK_SEEN) return mask_number(p, h, j) != 0;
    return c->mask_kind != LOCI_MASK_ADDED || mask_number(p, h, j) != -INFINITY;
}

/* The mask: same segment, causal unless the plan is full, and within the window.  Negative
 * segments are padding and see nothing; strict rows do not see their own position. */
static bool visible(const struct problem *p, ptrdiff_t j)
{
    int64_t segment = q_segment(p, p->i), d = distance(p, j);
    if (segment < 0 || segment != k_segment(p, j)) return false;
    /* strict is 1 if a row does not see its own key. */
    if (!p->plan->full && d < p->plan->strict) return false;
    return d <= p->plan->window_left && -d <= p->plan->window_right;
}

/* Selects the visible keys of this head. */
static void look(struct problem *p, int h) { p->seen = p->sees + h * p->Lk; }

/* ---- Rotation of all rows of a batch entry --------------------------------------------------- */

/* Reads rows of one batch entry as a dense array.  Each head of x comes `copies` times, as query
 * heads may each rotate the keys of their group differently. */
static void read_rows(const struct problem *p, loci_view x, int heads, int copies, ptrdiff_t rows,
                      int width, double *y)
{
    x = dense(x, heads, rows, width);
    for (int h = 0; h < heads * copies; h++)
        for (ptrdiff_t i = 0; i < rows; i++, y += width)
            memcpy(y, view_row(x, p->b, h / copies, i), (size_t)width * sizeof *y);
}

/* The adjoint: the sum of its copies goes to each head of x. */
static void write_rows(const struct problem *p, loci_view x, int heads, int copies, ptrdiff_t rows,
                       int width, const double *y)
{
    x = dense(x, heads, rows, width);
    for (int h = 0; h < heads * copies && x.data; h++)
        for (ptrdiff_t i = 0; i < rows; i++, y += width) {
            double *to = view_row(x, p->b, h / copies, i);
            if (h % copies == 0) memcpy(to, y, (size_t)width * sizeof *y);
            else add_scaled(to, 1, y, width);
        }
}

/* Reads rows and rotates them.  Keys that are rotated already, as a cache stores them, get
 * the rest (xpos: the fading). */
static void read_rotated(const struct problem *p, loci_which which, loci_view x, int heads,
                         int copies, ptrdiff_t rows, double *y)
{
    int e = loci_reference_rotation(p);
    bool cached = which == LOCI_KEY && p->plan->keys_rotated;
    if (e < 0 || cached) read_rows(p, x, heads, copies, rows, p->Dr, y);
    x = dense(x, heads, rows, cached ? p->Dr : p->D);
    for (int h = 0; h < heads * copies && e >= 0; h++)
        for (ptrdiff_t i = 0; i < rows; i++) {
            double *row = y + (h * rows + i) * p->Dr;
            if (!cached)
                p->def[e]->rotate(p, e, which, h, i, view_row(x, p->b, h / copies, i), row);
            else if (p->def[e]->cached) p->def[e]->cached(p, e, i, row);
        }
}

/* The adjoint, in place: dy is the gradient by the rotated rows, and on return that by x, whose
 * rows may be shorter. */
static void rotate_back(const struct problem *p, loci_which which, loci_view x, int heads,
                        int copies, ptrdiff_t rows, double *dy)
{
    int e = loci_reference_rotation(p);
    bool cached = which == LOCI_KEY && p->plan->keys_rotated;
    x = dense(x, heads, rows, p->D);
    for (int h = 0; h < heads * copies && e >= 0; h++)
        for (ptrdiff_t i = 0; i < rows; i++) {
            double *row = dy + (h * rows + i) * p->Dr;
            if (cached) {
                if (p->def[e]->cached) p->def[e]->cached(p, e, i, row);
                continue;
            }
            memcpy(p->scratch[0], row, (size_t)p->Dr * sizeof *row);
            p->def[e]->rotate_backward(p, e, which, h, i, view_row(x, p->b, h / copies, i),
                                       p->scratch[0], dy + (h * rows + i) * p->D);
        }
}

/* Turns rows of values in place, or with sign -1 back.  A cache has them turned already. */
static void turn_values(const struct problem *p, double sign, double *v)
{
    const int e = loci_reference_turning(p);
    for (int h = 0; h < p->Hkv && e >= 0 && !p->plan->keys_rotated; h++)
        for (ptrdiff_t j = 0; j < p->Lk; j++, v += p->Dv) {
            memcpy(p->scratch[0], v, (size_t)p->Dv * sizeof *v);
            p->def[e]->turn(p, e, LOCI_KEY, h, j, sign, p->scratch[0], v);
        }
}
/* The same for a row of outputs or their gradient, by the angles of the row. */
static void turn_output(const struct problem *p, int h, double sign, double *row)
{
    const int e = loci_reference_turning(p);
    if (e < 0) return;
    memcpy(p->scratch[0], row, (size_t)p->Dv * sizeof *row);
    p->def[e]->turn(p, e, LOCI_QUERY, h, p->i, sign, p->scratch[0], row);
}
/* Gradients of the angles that turned all values. */
static void give_value_angles(const struct problem *p)
{
    const int e = loci_reference_turning(p);
    for (int h = 0; h < p->Hkv && e >= 0 && !p->plan->keys_rotated; h++)
        for (ptrdiff_t j = 0; j < p->Lk; j++)
            p->def[e]->turn_gradient(p, e, LOCI_KEY, h, j, p->v + (h * p->Lk + j) * p->Dv,
                                     p->dv + (h * p->Lk + j) * p->Dv);
}

/* ---- Scores of row i, all heads -------------------------------------------------------------- */

double loci_reference_bend(const struct problem *p, int h, ptrdiff_t j, struct bends *b)
{
    double x = of_head(p, p->flat, h)[j];
    b->n = 0;
    for (int e = 0; e < p->plan->encs; e++) {
        if (!p->def[e]->bend) continue;
        b->enc[b->n] = e;
        b->x[b->n] = x + of_head(p, p->before[e], h)[j];
        x = p->def[e]->bend(p, e, h, b->x[b->n], &b->slope[b->n]);
        b->n++;
    }
    return x;
}

/* Every encoding adds first.  Then the scores of all heads are computed, as
 * a mix reads across heads. */
static void score(struct problem *p)
{
    struct bends bends;
    for (int h = 0; h < p->H; h++) {
        look(p, h);
        for (int e = 0; e < p->plan->encs; e++) {
            if (p->def[e]->score) p->def[e]->score(p, e, h);
            if (!p->def[e]->bend) continue;
            memcpy(of_head(p, p->before[e], h), of_head(p, p->add, h),
                   (size_t)p->Lk * sizeof *p->add);
            zero(of_head(p, p->add, h), p->Lk);
        }
        const int walking = loci_reference_walking(p);
        if (walking >= 0) p->def[walking]->products(p, walking, h, of_head(p, p->product, h));
        for (ptrdiff_t j = 0; j < p->Lk; j++) {
            if (!p->seen[j]) continue;
            ptrdiff_t hj = h * p->Lk + j;
            if (walking < 0)
                p->product[hj] = dot(p->q + q_of(p, h, j), p->k + k_of(p, h, j), p->Dr);
            /* log_mul is 0 unless an encoding multiplies, so mul is 1. */
            p->flat[hj] = exp(p->log_mul[hj]) * p->plan->scale * (p->product[hj] + p->raw[hj]);
            p->a[hj] = loci_reference_bend(p, h, j, &bends);
            p->s[hj] = p->a[hj] + p->add[hj];
        }
    }
    for (int e = 0; e < p->plan->encs; e++)
        if (p->def[e]->mix) p->def[e]->mix(p, e);
    for (int h = 0; h < p->H; h++)
        for (ptrdiff_t j = 0; j < p->Lk; j++)
            if (p->sees[h * p->Lk + j]) p->s[h * p->Lk + j] += loci_reference_added(p, h, j);
}

static int bend_count(const struct problem *p)
{
    int n = 0;
    for (int e = 0; e < p->plan->encs; e++) n += p->def[e]->bend != NULL;
    return n;
}

/* ds becomes da and dadd, which a mix changes.  Then each factor of flat = mul scale (q.k + raw)
 * gets its derivative: d log mul is flat, d raw is mul scale.  The encodings come last, as they
 * read draw, dlog_mul and dadd. */
static void score_backward(struct problem *p)
{
    memcpy(p->da, p->ds, (size_t)(p->H * p->Lk) * sizeof *p->da);
    memcpy(p->dadd, p->ds, (size_t)(p->H * p->Lk) * sizeof *p->dadd);
    for (int e = 0; e < p->plan->encs; e++)
        if (p->def[e]->mix) p->def[e]->mix_backward(p, e);
    struct bends bends;
    const int walking = loci_reference_walking(p);
    for (int h = 0; h < p->H; h++) {
        look(p, h);
        for (ptrdiff_t j = 0; j < p->Lk; j++) {
            if (!p->seen[j]) continue;
            ptrdiff_t hj = h * p->Lk + j, q = q_of(p, h, j), k = k_of(p, h, j);
            double slope = 1;
            loci_reference_bend(p, h, j, &bends);
            for (int n = 0; n < bends.n; n++) slope *= bends.slope[n];
            /* raw and q.k enter flat in the same way, so draw is the gradient by q.k too. */
            p->draw[hj] = exp(p->log_mul[hj]) * p->plan->scale * slope * p->da[hj];
            p->dlog_mul[hj] = p->flat[hj] * slope * p->da[hj];
            if (walking >= 0) continue;
            add_scaled(p->dq + q, p->draw[hj], p->k + k, p->Dr);
            add_scaled(p->dk + k, p->draw[hj], p->q + q, p->Dr);
        }
        if (walking >= 0) p->def[walking]->products_backward(p, walking, h, of_head(p, p->draw, h));
        for (int e = p->plan->encs - 1, left = bend_count(p); e >= 0; e--) {
            if (p->def[e]->score) p->def[e]->score_backward(p, e, h);
            if (!p->def[e]->bend) continue;
            left--;
            for (ptrdiff_t j = 0; j < p->Lk; j++) {
                if (!p->seen[j]) continue;
                loci_reference_bend(p, h, j, &bends);
                double by = of_head(p, p->da, h)[j];
                for (int n = bends.n - 1; n > left; n--) by *= bends.slope[n];
                if (p->def[e]->bend_backward && by != 0)
                    p->def[e]->bend_backward(p, e, h, bends.x[left], by);
                /* what was added before it */
                of_head(p, p->dadd, h)[j] = by * bends.slope[left];
            }
        }
    }
}

/* ---- Weights of row i, head h ---------------------------------------------------------------- */

/* The encoding with a sink, or -1. */
int loci_reference_sinking(const struct problem *p)
{
    for (int e = 0; e < p->plan->encs; e++)
        if (p->def[e]->sink) return e;
    return -1;
}

/* `top` is NaN if any score is, which makes the whole row NaN.  If all scores are -inf because
 * products overflowed, not because of the encodings, the row is NaN as well and not empty. */
static void softmax(struct problem *p, int h)
{
    const int e = loci_reference_sinking(p);
    const double *s = of_head(p, p->s, h), sink = e < 0 ? -INFINITY : p->def[e]->sink(p, e, h);
    double *w = of_head(p, p->w, h), top = sink;
    wide sum;
    for (ptrdiff_t j = 0; j < p->Lk; j++)
        if (p->seen[j] && (s[j] > top || isnan(s[j]))) top = s[j];
    for (ptrdiff_t j = 0; j < p->Lk && top == -INFINITY; j++)
        if (p->seen[j] && !isfinite(of_head(p, p->product, h)[j])) top = NAN;
    p->lse[h] = -INFINITY;
    if (top == -INFINITY) return;
    /* Without a sink this is exp(-inf) = 0. */
    sum = exp(sink - top);
    for (ptrdiff_t j = 0; j < p->Lk; j++)
        if (p->seen[j]) sum += w[j] = exp(s[j] - top);
    for (ptrdiff_t j = 0; j < p->Lk; j++) w[j] = (double)(w[j] / sum);
    p->lse[h] = top + log((double)sum);
}

/* ds = w (dw - sum of w dw + dlse).  The sink is a key whose value is 0, so its dw is 0.  An
 * empty row has no weights. */
static void softmax_backward(struct problem *p, int h)
{
    const double *w = of_head(p, p->w, h), *dw = of_head(p, p->dw, h);
    double *ds = of_head(p, p->ds, h), mean = dot(w, dw, p->Lk);
    for (ptrdiff_t j = 0; j < p->Lk; j++)
        if (w[j] != 0) ds[j] = w[j] * (dw[j] - mean + p->dlse[h]);
    const int e = loci_reference_sinking(p);
    if (e >= 0 && p->lse[h] != -INFINITY)
        p->def[e]->sink_backward(p, e, h,
                                 exp(p->def[e]->sink(p, e, h) - p->lse[h]) * (p->dlse[h] - mean));
}

/* The encoding with its own weight rule, or -1. */
int loci_reference_weights(const struct problem *p)
{
    for (int e = 0; e < p->plan->encs; e++)
        if (p->def[e]->weights_of_row) return e;
    return -1;
}

/* ds of head h from dw, dlse and drem.  dw becomes the gradient of the weights before dropout. */
void loci_reference_weights_backward(struct problem *p, int h)
{
    const int rule = loci_reference_weights(p);
    double *const w = p->w;
    for (ptrdiff_t j = 0; j < p->Lk && p->call->dropout > 0; j++)
        of_head(p, p->dw, h)[j] *= of_head(p, p->keep, h)[j];
    p->w = p->whole;
    if (rule >= 0) p->def[rule]->weigh_backward(p, rule, h);
    else softmax_backward(p, h);
    p->w = w;
}

/* ---- Dropout --------------------------------------------------------------------------------- */

/* docs/bits.md defines it, number by number. */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}
static bool dropped(const struct problem *p, int h, ptrdiff_t j)
{
    const loci_call *c = p->call;
    uint64_t entry = (uint64_t)p->b, row = (uint64_t)p->i, key = (uint64_t)j;
    if (c->q_starts) {
        const ptrdiff_t s = sequence_of(p, c->q_starts, p->i);
        entry = (uint64_t)s;
        row += (uint64_t)(c->k_starts[s + 1] - c->k_starts[s] - c->q_starts[s + 1]);
        key -= (uint64_t)c->k_starts[s];
    } else row += (uint64_t)((c->k_lens ? c->k_lens[p->b] : p->Lk) - p->Lq);
    const uint64_t head = mix(mix(mix(c->dropout_seed) + c->dropout_offset + entry) + (uint64_t)h),
                   keys = mix(head + row);
    uint32_t u = (uint32_t)keys + (uint32_t)key * 0x9e3779b9;
    u = (u ^ u >> 16) * 0x21f0aaad ^ (uint32_t)(keys >> 32);
    u = (u ^ u >> 15) * 0x735a2d97;
    const double limit = floor(c->dropout * 0x1p32 + 0.5);
    return (double)(int32_t)u < fmin(limit, 0x1p32 - 1) - 0x1p31;
}
static void drop(struct problem *p, int h)
{
    double *w = of_head(p, p->w, h), *keep = of_head(p, p->keep, h);
    memcpy(of_head(p, p->whole, h), w, (size_t)p->Lk * sizeof *w);
    for (ptrdiff_t j = 0; j < p->Lk; j++) {
        keep[j] = 1;
        if (!p->seen[j] || p->call->dropout == 0) continue;
        keep[j] = dropped(p, h, j) ? 0 : 1 / (1 - p->call->dropout);
        w[j] *= keep[j];
    }
}

/* ---- One row --------------------------------------------------------------------------------- */

/* Row i of all heads.  Unseen keys keep weight 0 and are skipped,
 * so that their values, which may be NaN, do not reach o. */
static void forward_row(struct problem *p)
{
    ptrdiff_t n = p->H * p->Lk;
    double *clear[] = { p->raw, p->log_mul, p->add, p->flat, p->a, p->s, p->w };
    for (int i = 0; i < COUNT(clear); i++) zero(clear[i], n);
    for (int h = 0; h < p->H; h++) {
        p->keys_seen[h] = 0;
        for (ptrdiff_t j = 0; j < p->Lk; j++)
            p->keys_seen[h] += p->sees[h * p->Lk + j] = visible(p, j) && let_through(p, h, j);
    }

    score(p);
    int rule = loci_reference_weights(p);
    for (int h = 0; h < p->H; h++) {
        look(p, h);
        p->rem[h] = 0; /* a softmax has no remainder */
        if (rule >= 0) p->def[rule]->weights_of_row(p, rule, h);
        else softmax(p, h);
        drop(p, h);
        double *o = p->o + h * p->Dv;
        zero(o, p->Dv);
        zero(p->ae + h * p->D, p->D);
        for (int c = 0; c < p->Dv; c++) {
            wide sum = 0;
            for (ptrdiff_t j = 0; j < p->Lk; j++)
                if (p->seen[j]) sum += (wide)of_head(p, p->w, h)[j] * p->v[v_row(p, h, j) + c];
            o[c] = (double)sum;
        }
        for (int e = 0; e < p->plan->encs; e++)
            if (p->def[e]->value) p->def[e]->value(p, e, h);
    }
}

/* Reads the cotangents of the row: dout, dlse, drem, dae; 0 if they are not given. */
static void read_cotangents(struct problem *p, const loci_grad *g)
{
    loci_view dout = dense(g->dout, p->H, p->Lq, p->Dv);
    for (int h = 0; h < p->H; h++) {
        ptrdiff_t bhi = (p->b * p->H + h) * p->Lq + p->i;
        double *row = p->dout + h * p->Dv;
        if (dout.data) memcpy(row, view_row(dout, p->b, h, p->i), (size_t)p->Dv * sizeof *row);
        else zero(row, p->Dv);
        turn_output(p, h, 1, row);
        p->dlse[h] = g->dlse ? ((const double *)g->dlse)[bhi] : 0;
        p->drem[h] = g->drem ? ((const double *)g->drem)[bhi] : 0;
        if (g->dae)
            memcpy(p->dae + h * p->D, (const double *)g->dae + bhi * p->D,
                   (size_t)p->D * sizeof *row);
        else zero(p->dae + h * p->D, p->D);
    }
}

/* The forward row in reverse: values, weights, scores.  It reads the arrays
 * that forward_row() filled. */
static void backward_row(struct problem *p, const loci_grad *grad)
{
    ptrdiff_t n = p->H * p->Lk;
    double *clear[] = { p->dadd, p->draw, p->dlog_mul, p->da, p->ds, p->dw };
    for (int i = 0; i < COUNT(clear); i++) zero(clear[i], n);

    for (int h = 0; h < p->H; h++) {
        look(p, h);
        const double *dout = p->dout + h * p->Dv;
        /* The row is turned by minus its angles, so the gradient has the other sign. */
        const int turning = loci_reference_turning(p);
        if (turning >= 0)
            p->def[turning]->turn_gradient(p, turning, LOCI_QUERY, h, p->i, dout, p->o + h * p->Dv);
        for (ptrdiff_t j = 0; j < p->Lk; j++) {
            if (!p->seen[j]) continue;
            /* o = sum of w v, so dw = dout.v and dv = w dout. */
            of_head(p, p->dw, h)[j] = dot(dout, p->v + v_row(p, h, j), p->Dv);
            add_scaled(p->dv + v_row(p, h, j), of_head(p, p->w, h)[j], dout, p->Dv);
        }
        for (int e = 0; e < p->plan->encs; e++)
            if (p->def[e]->value) p->def[e]->value_backward(p, e, h);
        loci_reference_weights_backward(p, h);
    }
    const loci_view to = dense(grad->dmask, p->H, p->Lq, p->Lk);
    for (int h = 0; h < p->H && to.data; h++)
        memcpy(view_row(to, p->b, h, p->i), of_head(p, p->ds, h), (size_t)p->Lk * sizeof *p->ds);
    score_backward(p);
}

/* ---- The call -------------------------------------------------------------------------------- */

/* lse belongs to a softmax, rem to a weight rule, ae to encodings with states. */
static void write_outputs(const struct problem *p)
{
    loci_view o = dense(p->call->o, p->H, p->Lq, p->Dv);
    for (int h = 0; h < p->H; h++) {
        ptrdiff_t bhi = (p->b * p->H + h) * p->Lq + p->i;
        if (o.data) {
            memcpy(view_row(o, p->b, h, p->i), p->o + h * p->Dv, (size_t)p->Dv * sizeof *p->o);
            turn_output(p, h, -1, view_row(o, p->b, h, p->i));
        }
        const bool stick = loci_reference_weights(p) >= 0;
        if (p->call->lse && !stick) ((double *)p->call->lse)[bhi] = p->lse[h];
        if (p->call->rem && stick) ((double *)p->call->rem)[bhi] = p->rem[h];
        if (p->call->ae && p->plan->states)
            memcpy((double *)p->call->ae + bhi * p->D, p->ae + h * p->D,
                   (size_t)p->D * sizeof *p->ae);
    }
}

/* Gradients are summed over the rows in double and rotated back at the end. */
static void batch_entry(struct problem *p, const loci_grad *grad)
{
    const loci_call *c = p->call;
    const int copies = p->Hk / p->Hkv;
    for (p->form = 0; p->form < forms_of(p, true); p->form++)
        read_rotated(p, LOCI_QUERY, c->q, p->H, 1, p->Lq, p->q + p->form * p->H * p->Lq * p->Dr);
    for (p->form = 0; p->form < forms_of(p, false); p->form++)
        read_rotated(p, LOCI_KEY, c->k, p->Hkv, copies, p->Lk,
                     p->k + p->form * p->Hk * p->Lk * p->Dr);
    read_rows(p, c->v, p->Hkv, 1, p->Lk, p->Dv, p->v);
    turn_values(p, 1, p->v);
    zero(p->dq, forms_of(p, true) * p->H * p->Lq * p->Dr);
    zero(p->dk, forms_of(p, false) * p->Hk * p->Lk * p->Dr);
    zero(p->dv, p->Hkv * p->Lk * p->Dv);
    if (p->budget) loci_budget_begin(p);
    /* Backward goes row by row as well, right after the row's forward
     * pass, whose arrays it needs. */
    for (p->i = 0; p->i < p->Lq; p->i++) {
        forward_row(p);
        write_outputs(p);
        if (grad) {
            read_cotangents(p, grad);
            backward_row(p, grad);
        }
        if (p->budget) loci_budget_row(p);
    }
    if (p->budget) loci_budget_entry(p);
    if (!grad) return;
    give_value_angles(p);
    turn_values(p, -1, p->dv);
    const ptrdiff_t q = p->H * p->Lq * p->Dr, k = p->Hk * p->Lk * p->Dr;
    for (p->form = 0; p->form < forms_of(p, true); p->form++) {
        rotate_back(p, LOCI_QUERY, c->q, p->H, 1, p->Lq, p->dq + p->form * q);
        if (p->form) add_scaled(p->dq, 1, p->dq + p->form * q, q);
    }
    for (p->form = 0; p->form < forms_of(p, false); p->form++) {
        rotate_back(p, LOCI_KEY, c->k, p->Hkv, copies, p->Lk, p->dk + p->form * k);
        if (p->form) add_scaled(p->dk, 1, p->dk + p->form * k, k);
    }
    write_rows(p, grad->dq, p->H, 1, p->Lq, p->D, p->dq);
    write_rows(p, grad->dk, p->Hkv, copies, p->Lk, p->plan->keys_rotated ? p->Dr : p->D, p->dk);
    write_rows(p, grad->dv, p->Hkv, 1, p->Lk, p->Dv, p->dv);
}

loci_status loci_reference_budget(const loci_plan *plan, const void *const *tensors,
                                  const loci_call *call, const loci_grad *grad,
                                  const struct loci_budget *budget)
{
    struct problem problem, *p = &problem;
    loci_status status = loci_reference_open(p, plan, tensors, 0, call);
    if (status) return status;
    CHECK(call->error, plan->stage == LOCI_ATTENTION, LOCI_BAD_ARG,
          "the plan is not one of stage attention");
    CHECK(call->error, call->dropout >= 0 && call->dropout < 1, LOCI_BAD_ARG,
          "dropout %g must be at least 0 and below 1", call->dropout);
    for (int e = 0; e < plan->encs; e++)
        if (p->def[e]->check && (status = p->def[e]->check(p, e, call->error))) return status;

    p->backward = grad != NULL || budget;
    /* one more double, as calloc(0) may return NULL; zeros, as gradients are added */
    double *memory = calloc((size_t)lay_out(p, NULL) + 1, sizeof *memory);
    CHECK(call->error, memory, LOCI_NO_MEMORY, "no memory for the reference");
    lay_out(p, memory);
    if (budget && loci_budget_open(p, budget)) {
        free(memory);
        return loci_fail(call->error, LOCI_NO_MEMORY, "no memory for the budget");
    }
    for (p->b = 0; p->b < p->B; p->b++) batch_entry(p, grad);
    if (grad) loci_reference_give(p, grad->dtensors);
    if (budget) loci_budget_close(p);
    free(memory);
    return LOCI_OK;
}

loci_status loci_reference(const loci_plan *plan, const void *const *tensors, const loci_call *call,
                           const loci_grad *grad)
{
    return loci_reference_budget(plan, tensors, call, grad, NULL);
}
