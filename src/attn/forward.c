/* SPDX-License-Identifier: MIT */
/* forward.c -- the fused pass: a query tile meets its keys, newest first, in chunks of 4096 and tiles of 64.
 *
 *     chunk:  m' = max(m, s)   p = e^(s - m')   l = l e^(m - m') + sum p   o = o e^(m - m') + sum p v
 *     total:  the same with the chunk's m, l, o in the place of s, p and p v
 *
 * Every chunk starts from nothing: that makes skipping exact and lets decode split its keys. */
#include "desk.h"

/* Softmax of one tile against the chunk's running max. */
static void softmax(struct tile *t)
{
#if QT == 1
    real m = *t->m, sum = 0;
    for (int k = 0; k < t->keys; k++) m = max_(m, t->s[k]);
    const real base = m == -INFINITY ? 0 : m;
    *t->alpha = exp_(*t->m - base);
    for (int k = 0; k < t->keys; k++) t->p[k] = exp_(t->s[k] - base);
    for (int k = 0; k < t->keys; k++) sum += t->p[k];
    *t->l = fma_(*t->l, *t->alpha, sum);
    *t->m = m;
#else
    for (int r = 0; r < QT; r += VL) {
        vf m = vf_load(t->m + r), sum = vf_set1(0);
        for (int k = 0; k < t->keys; k++) m = vf_max(m, vf_load(t->s + k * QT + r));
        real base[VL], old[VL];
        vf_store(base, m);
        vf_store(old, vf_load(t->m + r));
        vf_store(t->m + r, m);
        for (int i = 0; i < VL; i++) base[i] = base[i] == -INFINITY ? 0 : base[i];
        m = vf_load(base);
        const vf alpha = vf_exp(vf_sub(vf_load(old), m));
        for (int k = 0; k < t->keys; k++) {
            vf p = vf_exp(vf_sub(vf_load(t->s + k * QT + r), m));
            vf_store(t->p + k * QT + r, p);
            sum = vf_add(sum, p);
        }
        vf_store(t->l + r, vf_fma(vf_load(t->l + r), alpha, sum));
        vf_store(t->alpha + r, alpha);
    }
#endif
}

/* Rows x[n][QT] that were summed under an older max. */
static void fade_rows(real *x, int n, const real *alpha)
{
    bool same = true;
    for (int r = 0; r < QT; r++) same &= alpha[r] == 1;
    if (same) return;
    for (int i = 0; i < n; i++)
        for (int r = 0; r < QT; r++) x[i * QT + r] *= alpha[r];
}

/* total = total * a + chunk * b, rows of QT. */
static void join_rows(real *total, const real *chunk, int n, const real *a, const real *b)
{
    for (int i = 0; i < n; i++)
        for (int r = 0; r < QT; r++) total[i * QT + r] = fma_(chunk[i * QT + r], b[r], total[i * QT + r] * a[r]);
}
static void softmax_join(struct tile *t)
{
    real a[QT], b[QT];
    for (int r = 0; r < QT; r++) {
        const real m = max_(t->M[r], t->m[r]), base = m == -INFINITY ? 0 : m;
        a[r] = exp_(t->M[r] - base), b[r] = exp_(t->m[r] - base);
        t->M[r] = m;
    }
    join_rows(t->L, t->l, 1, a, b);
    join_rows(t->O, t->o, t->c->plan->value_dim, a, b);
    EACH_USE(t->c, x, term) join_rows(t->own[x].outs, t->own[x].out, t->own[x].outn, a, b);
}

static void fill(real *x, ptrdiff_t n, real with)
{
    for (ptrdiff_t i = 0; i < n; i++) x[i] = with;
}
static void open_total(struct tile *t)
{
    fill(t->M, QT, -INFINITY), fill(t->L, QT, 0);
    fill(t->O, (ptrdiff_t)t->c->plan->value_dim * QT, 0);
    EACH_USE(t->c, x, term) {
        fill(t->own[x].outs, (ptrdiff_t)t->own[x].outn * QT, 0);
        if (term->open) term->open(t, x);
    }
}
static void open_chunk(struct tile *t)
{
    fill(t->m, QT, -INFINITY), fill(t->l, QT, 0), fill(t->alpha, QT, 1);
    fill(t->o, (ptrdiff_t)t->c->plan->value_dim * QT, 0);
    EACH_USE(t->c, x, term) {
        fill(t->own[x].out, (ptrdiff_t)t->own[x].outn * QT, 0);
        if (term->chunk) term->chunk(t, x);
    }
}

/* Weighs the tile and sums its values. */
static void take(struct tile *t)
{
    const struct loci_plan *p = t->c->plan;
    if (p->weight >= 0) term_of(t->c, p->weight)->weigh(t, p->weight);
    else softmax(t);
    EACH_USE(t->c, x, term) {
        if (t->own[x].outn) fade_rows(t->own[x].out, t->own[x].outn, t->alpha);
        if (term->value) term->value(t, x);
    }
    mix_safe(t, t->v, t->vs, p->value_dim, t->p, t->o, t->alpha);
}

/* o, lse and rem of the finished rows. */
static void close_rows(struct tile *t)
{
    const struct call *c = t->c;
    const struct loci_plan *p = c->plan;
    const ptrdiff_t at = (t->seq->b * p->heads + t->h) * c->Lq + t->i0;
    EACH_USE(c, x, term) if (term->close && x != p->weight) term->close(t, x);
    if (p->weight >= 0) {
        term_of(c, p->weight)->close(t, p->weight);
    } else {
        real inverse[QT];
        for (int r = 0; r < QT; r++) inverse[r] = t->L[r] == 0 ? 0 : 1 / t->L[r];
        for (int n = 0; n < p->value_dim; n++)
            for (int r = 0; r < QT; r++) t->O[n * QT + r] *= inverse[r];
        if (c->in->lse)
            for (int r = 0; r < t->rows; r++)
                ((real *)c->in->lse)[at + r] = t->L[r] == 0 ? -INFINITY : (real)(t->M[r] + log_((double)t->L[r]));
    }
    transpose(t->O, QT, p->value_dim, t->rows, (real *)c->o.data + t->seq->b * c->o.batch + t->h * c->o.head + t->i0 * c->o.row, c->o.row);
}

/* Is every tile first .. end of a chunk so far below the total that the chunk's sums would join it as exact zeros? */
static bool negligible_chunk(struct tile *t, ptrdiff_t first, ptrdiff_t end, ptrdiff_t last)
{
    for (ptrdiff_t j = end; j >= first; j--)
        if (place(t, j * KT, last) && !negligible(t, t->M)) return false;
    return true;
}

/* One work item: QT rows of one head, or of all heads when a term mixes them. */
static void forward_item(struct call *c, struct tile *t, int n, const struct sequence *q, int h, ptrdiff_t row)
{
    const struct loci_plan *p = c->plan;
    const int rows = q->nq - row < QT ? (int)(q->nq - row) : QT;
    const struct keyrange range = keys_of(c, q, row, rows);
    const bool skip = skips(c);

    for (int i = 0; i < n; i++) {
        open_rows(&t[i], q, h + i, row, rows);
        if (skip) measure_rows(&t[i]);
        open_total(&t[i]);
    }
    const struct term *weight = p->weight >= 0 ? term_of(c, p->weight) : NULL;
    for (ptrdiff_t chunk = range.last >= range.first ? range.last / CHUNK : -1; chunk >= range.first / CHUNK && chunk >= 0; chunk--) {
        const ptrdiff_t end = range.last / KT < chunk * (CHUNK / KT) + CHUNK / KT - 1 ? range.last / KT : chunk * (CHUNK / KT) + CHUNK / KT - 1;
        const ptrdiff_t start = range.first / KT > chunk * (CHUNK / KT) ? range.first / KT : chunk * (CHUNK / KT);
        if (skip && negligible_chunk(t, start, end, range.last)) continue;
        for (int i = 0; i < n; i++) open_chunk(&t[i]);
        for (ptrdiff_t j = end; j >= start; j--) {
            bool seen = true;
            for (int i = 0; i < n; i++) seen &= place(&t[i], j * KT, range.last);
            if (!seen) continue;
            if (skip && negligible(t, t->m)) continue;
            if (all_spent(t, n)) break;
            for (int i = 0; i < n; i++) find_keys(&t[i]), score_tile(&t[i]);
            if (p->mix >= 0) term_of(c, p->mix)->mix(t, p->mix);
            for (int i = 0; i < n; i++) take(&t[i]);
        }
        for (int i = 0; i < n; i++) {
            if (weight) weight->join(&t[i], p->weight);
            else softmax_join(&t[i]);
        }
    }
    for (int i = 0; i < n; i++) close_rows(&t[i]);
}

/* ---- All of them ------------------------------------------------------------------------------------------- */

struct pass { struct call *c; ptrdiff_t items, groups; int locked; atomic_llong next; atomic_bool stop; };

/* Items go from the rows that see most keys to those that see fewest. */
static void forward_job(void *arg, int index)
{
    struct pass *a = arg;
    struct call *c = a->c;
    struct tile *t = N(open_desk)(c, index, false).tile;
    const enum count by = QT == 1 ? BY_ROW : BY_TILE;
    for (;;) {
        const ptrdiff_t item = (ptrdiff_t)atomic_fetch_add(&a->next, 1);
        if (item >= a->items || atomic_load(&a->stop)) return;
        if (c->in->host && c->in->host->cancelled && c->in->host->cancelled(c->in->host->user)) {
            atomic_store(&a->stop, true);
            return;
        }
        const ptrdiff_t tile = a->items / a->groups - 1 - item / a->groups;
        const struct sequence *q = find_sequence(c, by, tile);
        forward_item(c, t, a->locked, q, (int)(item % a->groups) * a->locked, (tile - first_of(q, by)) * QT);
    }
}

loci_status N(forward)(struct call *c)
{
    struct pass a = { .c = c, .locked = locked(c->plan), .groups = c->plan->heads / locked(c->plan) };
    a.items = (QT == 1 ? c->rows : c->tiles) * a.groups;
    atomic_init(&a.next, 0);
    atomic_init(&a.stop, false);
    N(run)(c, c->threads, forward_job, &a);
    return atomic_load(&a.stop) ? LOCI_CANCELLED : LOCI_OK;
}
