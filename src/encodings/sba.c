/* SPDX-License-Identifier: MIT */
/* sba.c -- stick-breaking attention: each key, newest first, gets its share of the
 * rest.  Tan et al., ICLR 2025.
 *
 *     A_ij = sigmoid(S_ij) prod over visible keys l after j of (1 - sigmoid(S_il))
 *     rem_i = 1 - sum_j A_ij
 *
 * instead of the softmax.  As in the paper a row does not see its own key, unless current=1.
 * The paper drops the remainder of the stick.  The authors' tests give it to the row's own value
 * (remainder=value), their trained models to a learned vector per head (remainder=vector, r
 * [H][Dv], 0 at the start). */
#include "encodings/streams.h"
#include "contract/engine.h"
#include "layout/stick.h"

static const loci_option opts[] = {
    [STICK_CURRENT] = { "current", LOCI_WORD, 0, 0, 0, 0, "0|1", "1: a row sees its own key" },
    [STICK_REMAINDER] = { "remainder", LOCI_WORD, 0, REMAINDER_NONE, 0, 0, "none|value|vector",
                          "where the remainder of the stick goes" },
    [STICK_STOP] = { "stop", LOCI_NUMBER, 0, 0, 0, 1, NULL,
                     "remainder below which a row may stop; 0 is exact" },
    { 0 }
};
enum { VECTOR }; /* the tensor */

/* The receiver of the remainder. */
static bool to_vector(const struct config *c)
{
    return c->opt[STICK_REMAINDER] == REMAINDER_VECTOR;
}
static bool to_value(const struct call *c, int enc)
{
    return c->plan->enc[enc].opt[STICK_REMAINDER] == REMAINDER_VALUE;
}

static void tensors(const struct config *c, struct tensors *t)
{
    if (to_vector(c))
        loci_add_tensor(t, c, "r", LOCI_LEARNED, INIT_ZERO, 0, 0, SHAPE(c->heads, c->value_dim));
}

/* Without its own key a row sees only earlier ones. */
static bool strict(const struct config *c) { return c->opt[STICK_CURRENT] == 0; }
static void terms(const struct config *c, struct termlist *t)
{
    (void)c;
    loci_add_term(t, TERM_stick, GROUP_WEIGHT);
}

/* ---- The vector of each head ----------------------------------------------------------------- */

/* Numbers of the learned vectors; the other kinds of remainder have no table. */
static ptrdiff_t numbers(const struct config *c)
{
    return to_vector(c) ? (ptrdiff_t)c->heads * c->value_dim : 0;
}
static size_t size(const struct config *c, ptrdiff_t range, size_t real)
{
    (void)range;
    return (size_t)numbers(c) * real;
}
static void prepare(const struct prep *p)
{
    for (ptrdiff_t i = 0; i < numbers(p->cfg); i++) put(p, i, param(p, VECTOR, i));
}
static void fold(const struct prep *p)
{
    if (!to_vector(p->cfg) || !p->dtensor[VECTOR]) return;
    for (ptrdiff_t i = 0; i < numbers(p->cfg); i++) p->dtensor[VECTOR][i] += p->dtable[0][i];
}

/* ---- The row's own key ----------------------------------------------------------------------- */

/* Ascending keys can be searched by bisection; any others are tested one by one. */
static bool rising_keys(const struct call *c, const struct sequence *q)
{
    for (ptrdiff_t j = 1; j < q->nk; j++)
        if (pos_k(c, q->b, q->k0 + j) <= pos_k(c, q->b, q->k0 + j - 1)) return false;
    return true;
}
/* The first key of the row's sequence and segment that has its position, or -1. */
static ptrdiff_t own_key(const struct call *c, const struct sequence *q, bool rising, ptrdiff_t row)
{
    const int64_t pos = pos_q(c, q->b, row);
    /* Bisection ends at the last key at or before the position; other
     * keys are tested one by one. */
    ptrdiff_t low = q->k0, end = q->k0 + q->nk;
    while (rising && end - low > 1) {
        const ptrdiff_t middle = low + (end - low) / 2;
        if (pos_k(c, q->b, middle) <= pos) low = middle;
        else end = middle;
    }
    for (; low < end; low++)
        if (pos_k(c, q->b, low) == pos && seg_k(c, q->b, low) == seg_q(c, q->b, row)
            && seg_k(c, q->b, low) >= 0)
            return low;
    return -1;
}

/* Rows before the first key of an entry exist only because other entries are longer.  If k_len
 * is 0, default positions count from 0, but every row is before the first key. */
static bool before_first(const struct call *c, ptrdiff_t b, ptrdiff_t i)
{
    return c->where.lens && !c->in->q_pos && (!c->Lk || pos_q(c, b, i) < first_pos(c, b));
}
/* With remainder=value every row needs a key of its own, or its remainder would be lost.
 * Padding has no output and needs none. */
static loci_status accept(const struct call *c, int enc)
{
    if (!to_value(c, enc)) return LOCI_OK;
    for (ptrdiff_t s = 0; s < c->seqs.n; s++) {
        const struct sequence *q = &c->seqs.list[s];
        const bool rising = rising_keys(c, q);
        for (ptrdiff_t i = q->q0; i < q->q0 + q->nq; i++)
            CHECK(c->in->error,
                  seg_q(c, q->b, i) < 0 || before_first(c, q->b, i)
                      || own_key(c, q, rising, i) >= 0,
                  LOCI_BAD_ARG,
                  "sba: remainder=value requires a key at position %lld, that of query %td",
                  (long long)pos_q(c, q->b, i), i);
    }
    return LOCI_OK;
}

static size_t scratch(const struct call *c, int enc)
{
    return to_value(c, enc) ? (size_t)(c->B * c->Lq) * sizeof(ptrdiff_t) : 0;
}
/* The own key of each row, [B][Lq], to whose value the term gives the remainder. */
void loci_sba_begin(struct call *c, int enc)
{
    if (!to_value(c, enc)) return;
    ptrdiff_t *own = c->mem.scratch[enc];
    for (ptrdiff_t s = 0; s < c->seqs.n; s++) {
        const struct sequence *q = &c->seqs.list[s];
        const bool rising = rising_keys(c, q);
        for (ptrdiff_t i = q->q0; i < q->q0 + q->nq; i++)
            own[q->b * c->Lq + i] = own_key(c, q, rising, i);
    }
}
static ptrdiff_t found_key(const struct call *c, int enc, ptrdiff_t b, ptrdiff_t row)
{
    return ((const ptrdiff_t *)c->mem.scratch[enc])[b * c->Lq + row];
}
/* The gradient of an output as it is added to dv: of turned values, it has turned as well. */
static void load_dout(const struct call *c, ptrdiff_t b, int h, ptrdiff_t row, void *to)
{
    const struct loci_plan *p = c->plan;
    const ptrdiff_t at = b * c->g.dout.batch + h * c->g.dout.head + row * c->g.dout.row;
    for (int n = 0; n < p->value_dim; n++)
        store_real(to, p->f64, n, load_stored(c->g.dout.data, p->dtype, at + n));
    if (p->turns_values) p->engine->turn_output(c, b, h, row, to);
}
/* dv of the own key += rem do, heads and rows ascending, so that sums have one order.  It runs
 * after the backward pass has written dv. */
void loci_sba_end_keys(struct call *c, int enc, sba_own_key *own_key_of)
{
    const struct loci_plan *p = c->plan;
    if (!to_value(c, enc) || !c->g.dv.data || !c->g.dout.data) return;
    for (ptrdiff_t i = 0; i < c->B * p->heads * c->Lq; i++) {
        const ptrdiff_t b = i / c->Lq / p->heads, h = i / c->Lq % p->heads, row = i % c->Lq,
                        key = own_key_of(c, enc, b, row);
        const ptrdiff_t dv = b * c->g.dv.batch + h / p->group * c->g.dv.head + key * c->g.dv.row;
        const double rem = load_real(c->in->rem, p->f64, i);
        union {
            float f32[MAX_DIM];
            double f64[MAX_DIM];
        } dout;
        if (key >= 0) load_dout(c, b, (int)h, row, &dout);
        for (int n = 0; key >= 0 && n < p->value_dim; n++)
            store_real(c->g.dv.data, p->f64, dv + n,
                       load_real(c->g.dv.data, p->f64, dv + n) + rem * load_real(&dout, p->f64, n));
    }
}

static void end_keys(struct call *c, int enc) { loci_sba_end_keys(c, enc, found_key); }

const struct loci_pe loci_pe_sba = {
    .name = "sba",
    .cite = "Tan et al., ICLR 2025",
    .family = FAMILY_CONTENT,
    .brief = "stick-breaking weights from the newest key on, no softmax",
    .example = "sba",
    .places = LOCI_PLACE_WEIGHT,
    .causal_only = true,
    .tol = 4e-6,
    .opts = opts,
    .adds_vectors = to_vector,
    .strict = strict,
    .tensors = tensors,
    .terms = terms,
    .size = size,
    .prepare = prepare,
    .fold = fold,
    .accept = accept,
    .scratch = scratch,
    .begin = loci_sba_begin,
    .end_keys = end_keys,
    .stream = &loci_sba_stream,
};
