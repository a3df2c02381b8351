/* SPDX-License-Identifier: MIT */
/* few.c -- the fused pass for a few rows: decode.  The bits are those of forward.c; the order of reading is another.
 *
 * What costs is to read the keys and values, so they are streamed, oldest first, once for all rows that share a kv head:
 *
 *     scores of a whole chunk        K ascending, each 16 x 16 block turned in registers once for all rows
 *     terms and weights              tile by tile, newest first; scores are in cache
 *     sums of values of every tile   V ascending; a tile's sum is a chain of its own, so their order is free
 *     o = o alpha + sum              newest first
 *
 * Where no term carries anything from key to key, chunks are work items of their own, and their sums join newest first. */
#include "desk.h"
#include "weigh.h"

#if QT == 1

/* ---- Products for several rows at once ----------------------------------------------------------------------- */

enum { AHEAD = 32 };                     /* keys that are fetched ahead: the order of reading is no plain stream */

/* C[s][k] = sum over d of a[k][d] q[s][d] for VL keys. */
INLINE void dot_block(const int n, const real *a, ptrdiff_t as, int D, const real *const *q, real *const *c)
{
    vf acc[4];
    int d = 0;
    UNROLL for (int s = 0; s < n; s++) acc[s] = vf_set1(0);
    for (; d + VL <= D; d += VL) {
        vf x[VL];
        UNROLL for (int i = 0; i < VL; i++) x[i] = vf_load(a + i * as + d), __builtin_prefetch(a + (i + AHEAD) * as + d);
        vf_transpose(x);
        UNROLL for (int i = 0; i < VL; i++)
            UNROLL for (int s = 0; s < n; s++) acc[s] = vf_fma(x[i], vf_set1(q[s][d + i]), acc[s]);
    }
    for (; d < D; d++) {
        real x[VL];
        for (int i = 0; i < VL; i++) x[i] = a[i * as + d];
        UNROLL for (int s = 0; s < n; s++) acc[s] = vf_fma(vf_load(x), vf_set1(q[s][d]), acc[s]);
    }
    UNROLL for (int s = 0; s < n; s++) vf_store(c[s], acc[s]);
}
INLINE void dot_rows(const int n, int keys, const real *a, ptrdiff_t as, int D, const real *const *q, real *const *c)
{
    int k = 0;
    for (; k + VL <= keys; k += VL) {
        real *to[4];
        UNROLL for (int s = 0; s < n; s++) to[s] = c[s] + k;
        dot_block(n, a + k * as, as, D, q, to);
    }
    for (; k < keys; k++)
        for (int s = 0; s < n; s++) {
            real sum = 0;
            for (int d = 0; d < D; d++) sum = fma_(a[k * as + d], q[s][d], sum);
            c[s][k] = sum;
        }
}

/* C[s][d] = sum over k of v[k][d] p[s][k] for nv vectors of d. */
INLINE void sum_block(const int n, const int nv, int keys, const real *v, ptrdiff_t vs, const real *const *p, real *const *c, int d)
{
    vf acc[4][4];
    UNROLL for (int s = 0; s < n; s++)
        UNROLL for (int i = 0; i < nv; i++) acc[s][i] = vf_set1(0);
    for (int k = 0; k < keys; k++) {
        vf x[4];
        UNROLL for (int i = 0; i < nv; i++) x[i] = vf_load(v + k * vs + d + i * VL), __builtin_prefetch(v + (k + AHEAD) * vs + d + i * VL);
        UNROLL for (int s = 0; s < n; s++) {
            const vf w = vf_set1(p[s][k]);
            UNROLL for (int i = 0; i < nv; i++) acc[s][i] = vf_fma(x[i], w, acc[s][i]);
        }
    }
    UNROLL for (int s = 0; s < n; s++)
        UNROLL for (int i = 0; i < nv; i++) vf_store(c[s] + d + i * VL, acc[s][i]);
}
INLINE void sum_rows(const int n, int keys, const real *v, ptrdiff_t vs, int D, const real *const *p, real *const *c)
{
    int d = 0;
    for (; d + 4 * VL <= D; d += 4 * VL) sum_block(n, 4, keys, v, vs, p, c, d);
    for (; d + VL <= D; d += VL) sum_block(n, 1, keys, v, vs, p, c, d);
    for (; d < D; d++)
        for (int s = 0; s < n; s++) {
            real sum = 0;
            for (int k = 0; k < keys; k++) sum = fma_(v[k * vs + d], p[s][k], sum);
            c[s][d] = sum;
        }
}
/* The same over visible keys only, where hidden ones hold what is no number. */
static void sum_visible(const struct tile *t, int D, real *c)
{
    for (int d = 0; d < D; d++) {
        real sum = 0;
        for (int k = 0; k < t->keys; k++)
            if (visible(t, k, 0)) sum = fma_(t->v[k * t->vs + d], t->p[k], sum);
        c[d] = sum;
    }
}

/* ---- One chunk of keys, all rows of an item -------------------------------------------------------------------- */

/* Scores, weights and sums of values by tile, of every row of the item. */
struct rows {
    struct tile *t;
    int n;                               /* rows: those of a kv head's group, or of all heads, row by row */
    real *s, *p;                         /* [n][CHUNK] */
    real *alpha, *sums;                  /* [n][tiles of a chunk], [n][tiles of a chunk][Dv] */
};
enum { TILES = CHUNK / KT };

static void place_row(const struct rows *w, int i, ptrdiff_t j, ptrdiff_t last)
{
    struct tile *t = &w->t[i];
    const ptrdiff_t at = (ptrdiff_t)i * CHUNK + j % TILES * KT;
    place(t, j * KT, last);
    find_keys(t);
    t->s = w->s + at, t->p = w->p + at;
}
/* Does any row see a key of tile j?  Positions that do not run may leave tiles out. */
static bool seen(const struct rows *w, ptrdiff_t j, ptrdiff_t last)
{
    for (int i = 0; i < w->n; i++)
        if (place(&w->t[i], j * KT, last)) return true;
    return false;
}

static void score_tiles(const struct rows *w, ptrdiff_t j, ptrdiff_t last)
{
    const int D = w->t->c->plan->dim;
    for (int i = 0; i < w->n; i++) place_row(w, i, j, last), fade_queries(&w->t[i]);
    for (int i = 0; i < w->n;) {
        int n = 1;                       /* neighbours with the same kv head */
        while (i + n < w->n && n < 4 && w->t[i + n].k == w->t[i].k) n++;
        if (n == 3) n = 2;
        const real *q[4];
        real *c[4];
        for (int s = 0; s < n; s++) q[s] = w->t[i + s].qt, c[s] = w->t[i + s].s;
        const struct tile *t = &w->t[i];
        if (n == 4) dot_rows(4, t->keys, t->k, t->ks, D, q, c);
        else if (n == 2) dot_rows(2, t->keys, t->k, t->ks, D, q, c);
        else dot_rows(1, t->keys, t->k, t->ks, D, q, c);
        i += n;
    }
}
static void weigh_tiles(const struct rows *w, ptrdiff_t j, ptrdiff_t last)
{
    const struct loci_plan *p = w->t->c->plan;
    for (int i = 0; i < w->n; i++) {
        place_row(w, i, j, last);
        add_terms(&w->t[i]);
    }
    for (int i = 0; p->mix >= 0 && i < w->n; i += p->heads) term_of(w->t->c, p->mix)->mix(&w->t[i], p->mix);
    for (int i = 0; i < w->n; i++) {
        weigh_tile(&w->t[i]);
        if (p->mix >= 0) w->t[i].a = w->t[i].s;      /* the two changed places */
        w->alpha[i * TILES + j % TILES] = *w->t[i].alpha;
    }
}
static void sum_tiles(const struct rows *w, ptrdiff_t j, ptrdiff_t last)
{
    const int Dv = w->t->c->plan->value_dim;
    for (int i = 0; i < w->n; i++) place_row(w, i, j, last);
    for (int i = 0; i < w->n;) {
        int n = 1;
        while (i + n < w->n && n < 4 && w->t[i + n].v == w->t[i].v) n++;
        if (n == 3) n = 2;
        const struct tile *t = &w->t[i];
        const real *p[4];
        real *c[4];
        for (int s = 0; s < n; s++) p[s] = w->t[i + s].p, c[s] = w->sums + ((ptrdiff_t)(i + s) * TILES + j % TILES) * Dv;
        bool safe = true;
        for (int s = 0; s < n; s++) safe &= !t[s].partial;
        if (!safe && !finite_rows(t->v, t->vs, t->keys, Dv))
            for (int s = 0; s < n; s++) sum_visible(&t[s], Dv, c[s]);
        else if (n == 4) sum_rows(4, t->keys, t->v, t->vs, Dv, p, c);
        else if (n == 2) sum_rows(2, t->keys, t->v, t->vs, Dv, p, c);
        else sum_rows(1, t->keys, t->v, t->vs, Dv, p, c);
        i += n;
    }
}

/* Rows of one item may end at different keys: each takes part up to its own last one. */
static void chunk_rows(const struct rows *w, const struct keyrange range, ptrdiff_t chunk)
{
    const int Dv = w->t->c->plan->value_dim, n = w->n;
    const ptrdiff_t end = range.last / KT < (chunk + 1) * TILES - 1 ? range.last / KT : (chunk + 1) * TILES - 1;
    const ptrdiff_t start = range.first / KT > chunk * TILES ? range.first / KT : chunk * TILES;
    bool ends = false;                   /* may rows end before their oldest key? */
    EACH_USE(w->t->c, x, term) ends |= term->spent && (!term->ends || term->ends(w->t->c, x));
    ptrdiff_t oldest = end + 1;
    for (int i = 0; i < n; i++) open_chunk(&w->t[i]);
    for (ptrdiff_t j = start; j <= end && !ends; j++)
        if (seen(w, j, range.last)) score_tiles(w, j, range.last);
    for (ptrdiff_t j = end; j >= start; j--) {
        if (!seen(w, j, range.last)) continue;
        if (all_spent(w->t, n)) break;
        if (ends) score_tiles(w, j, range.last);
        weigh_tiles(w, j, range.last);
        oldest = j;
    }
    for (ptrdiff_t j = oldest; j <= end; j++)
        if (seen(w, j, range.last)) sum_tiles(w, j, range.last);
    for (ptrdiff_t j = end; j >= oldest; j--) {
        if (!seen(w, j, range.last)) continue;
        for (int i = 0; i < n; i++) {
            const real alpha = w->alpha[i * TILES + j % TILES], *sum = w->sums + ((ptrdiff_t)i * TILES + j % TILES) * Dv;
            for (int d = 0; d < Dv; d++) w->t[i].o[d] = fma_(w->t[i].o[d], alpha, sum[d]);
        }
    }
}

/* ---- Work items ------------------------------------------------------------------------------------------------------ */

/* An item has the rows of one sequence and one kv head (or, with a mix, all heads), and one chunk of keys or all.  What is
 * kept of a chunk for the join: m, l, o and the terms' sums. */
struct pass {
    struct call *c;
    ptrdiff_t items, chunks;             /* chunks > 1: items are chunks, joined in a second round */
    int groups;
    bool joining;
    atomic_llong next;
    atomic_bool stop;
};

ptrdiff_t N(few_kept)(const struct call *c)
{
    ptrdiff_t n = 2 + c->plan->value_dim;
    EACH_USE(c, x, term) n += term->out ? term->out(c, x) : 0;
    return n;
}
/* Does a row have to meet its chunks one after the other? */
bool N(few_in_turn)(const struct call *c)
{
    if (c->longest <= CHUNK || c->in->q_seg) return true;
    EACH_USE(c, x, term) {
        if (term->carry && term->carry(c, x)) return true;
        if (term->value && term->mem) return true;       /* what it saw of the weights may be there until close() */
    }
    return false;
}

static void keep(struct tile *t, real *to, bool back)
{
    real *block[3 + MAX_USES] = { t->m, t->l, t->o };
    int size[3 + MAX_USES] = { 1, 1, t->c->plan->value_dim }, n = 3;
    for (int x = 0; x < t->c->plan->uses; x++) block[n] = t->own[x].out, size[n++] = t->own[x].outn;
    for (int i = 0; i < n; to += size[i++]) {
        if (back) memcpy(block[i], to, sizeof(real) * (size_t)size[i]);
        else memcpy(to, block[i], sizeof(real) * (size_t)size[i]);
    }
}

static void few_item(const struct pass *a, const struct desk *d, const struct sequence *q, int group, ptrdiff_t item, ptrdiff_t chunk)
{
    struct call *c = a->c;
    const struct loci_plan *p = c->plan;
    const int heads = item_heads(p), first = group * heads, n = (int)q->nq * heads;
    const struct keyrange range = keys_of(c, q, 0, (int)q->nq);
    const struct rows w = { .t = d->tile, .n = n, .s = d->few.s, .p = d->few.p, .alpha = d->few.alpha, .sums = d->few.sums };
    const ptrdiff_t newest = range.last >= range.first ? range.last / CHUNK : -1, oldest = range.first / CHUNK;
    const ptrdiff_t kept = N(few_kept)(c);
    if (a->chunks > 1 && !a->joining && (chunk > newest || chunk < oldest)) return;
    for (int i = 0; i < n; i++) {
        struct tile *t = &w.t[i];
        open_rows(t, q, first + i % heads, i / heads, 1);
        t->all = &w.t[i / heads * heads], t->tiles = locked(p);
        open_total(t);
    }
    for (ptrdiff_t k = newest; k >= oldest && k >= 0; k--) {
        if (a->chunks > 1 && !a->joining) k = chunk;
        if (!a->joining) chunk_rows(&w, range, k);
        for (int i = 0; i < n; i++) {
            real *place = a->chunks > 1 ? (real *)c->kept + ((item * a->chunks + k) * few_rows(c) + i) * kept : NULL;
            if (a->chunks > 1) keep(&w.t[i], place, a->joining);
            if (a->chunks > 1 && !a->joining) continue;
            if (p->weight >= 0) term_of(c, p->weight)->join(&w.t[i], p->weight);
            else softmax_join(&w.t[i]);
        }
        if (a->chunks > 1 && !a->joining) return;
    }
    for (int i = 0; i < n; i++) close_rows(&w.t[i]);
}

static void few_job(void *arg, int index)
{
    struct pass *a = arg;
    struct call *c = a->c;
    const struct desk d = N(open_desk)(c, index, false);
    const ptrdiff_t per = a->joining ? 1 : a->chunks;
    for (ptrdiff_t i; (i = (ptrdiff_t)atomic_fetch_add(&a->next, 1)) < a->items * per && !atomic_load(&a->stop);) {
        if (c->in->host && c->in->host->cancelled && c->in->host->cancelled(c->in->host->user)) {
            atomic_store(&a->stop, true);
            return;
        }
        const ptrdiff_t item = i / per;
        const struct sequence *q = &c->seq[item / a->groups];
        if (q->nq) few_item(a, &d, q, (int)(item % a->groups), item, i % per);
    }
}

loci_status N(forward)(struct call *c)
{
    struct pass a = { .c = c, .groups = c->plan->heads / item_heads(c->plan), .chunks = 1 };
    a.items = c->sequences * a.groups;
    if (!N(few_in_turn)(c)) a.chunks = (c->longest + CHUNK - 1) / CHUNK;
    atomic_init(&a.next, 0);
    atomic_init(&a.stop, false);
    N(run)(c, c->threads, few_job, &a);
    if (a.chunks > 1) {
        a.joining = true;
        atomic_store(&a.next, 0);
        N(run)(c, c->threads, few_job, &a);
    }
    return atomic_load(&a.stop) ? LOCI_CANCELLED : LOCI_OK;
}
#endif
