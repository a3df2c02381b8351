/* SPDX-License-Identifier: MIT */
/* workspace.c -- lays out the workspace.  One function measures and lays out, so that size and
 * layout cannot disagree. */
#include "attn/workspace.h"

static real *reals(struct arena *a, ptrdiff_t n) { return take_bytes(a, (size_t)n, sizeof(real)); }

static ptrdiff_t ask(ptrdiff_t (*size)(const struct call *, int), const struct call *c, int x)
{
    return size ? size(c, x) : 0;
}

/* first: of its work item; a mix works in the first tile's mem. */
static void carve_tile(const struct call *c, struct arena *a, bool backward, bool first,
                       struct tile *t)
{
    const struct loci_plan *p = c->plan;
    const int D = p->dim, Dv = p->value_dim, Dp = padded(D), Dvp = padded(Dv);
    bool mul = false;
    for (int x = 0; x < p->uses; x++) mul |= p->use[x].group == GROUP_MUL;

    *t = (struct tile){ .c = c };
    t->qrows = reals(a, (ptrdiff_t)QT * Dp), t->qt = reals(a, (ptrdiff_t)D * QT);
    t->qf = fading(c) ? reals(a, (ptrdiff_t)QT * Dp) : t->qrows;
    if (!in_place(c) || c->in->pages || c->cache)
        t->keys_room = reals(a, (ptrdiff_t)KT * D), t->values_room = reals(a, (ptrdiff_t)KT * Dv);
    if (c->fast) {
        t->q2 = take_bytes(a, (size_t)((D + 1) / 2) * QT, sizeof *t->q2),
        t->p2 = take_bytes(a, KT / 2 * QT, sizeof *t->p2);
        t->v2 = take_bytes(a, KT / 2 * (size_t)Dv, sizeof *t->v2),
        t->k2 = take_bytes(a, KT * (size_t)(D + 1), sizeof *t->k2);
    }
    t->s = reals(a, KT * QT), t->p = reals(a, KT * QT);
    if (p->mix >= 0) t->a = reals(a, KT * QT);
    t->m = reals(a, QT), t->l = reals(a, QT), t->M = reals(a, QT), t->L = reals(a, QT);
    t->alpha = reals(a, QT), t->qnorm = reals(a, QT);
    t->o = reals(a, (ptrdiff_t)Dv * QT), t->O = reals(a, (ptrdiff_t)Dv * QT);
    t->qp = take_bytes(a, 2 * QT, sizeof(int64_t)), t->kp = take_bytes(a, 2 * KT, sizeof(int64_t));
    if (backward) {
        t->dot = reals(a, (ptrdiff_t)Dv * QT), t->dorows = reals(a, (ptrdiff_t)QT * Dvp);
        t->dp = reals(a, KT * QT), t->ds = reals(a, KT * QT);
        if (p->mix >= 0) t->da = reals(a, KT * QT);
        if (mul) t->pre = reals(a, KT * QT);
        t->lse = reals(a, QT), t->delta = reals(a, QT);
        t->dq = reals(a, (ptrdiff_t)D * QT), t->dqs = reals(a, (ptrdiff_t)D * QT);
        t->scratch = reals(a, (ptrdiff_t)QT * (Dp > Dvp ? Dp : Dvp));
    }
    EACH_USE(c, x, term) {
        struct own *w = &t->own[x];
        w->table = c->table[p->use[x].enc], w->scratch = c->scratch[p->use[x].enc];
        w->mem = reals(a, x != p->mix || first ? ask(term->mem, c, x) * QT : 0);
        w->outn = (int)ask(term->out, c, x);
        w->out = reals(a, (ptrdiff_t)w->outn * QT), w->outs = reals(a, (ptrdiff_t)w->outn * QT);
        w->carryn = term->carry ? term->carry(c, x) : 0;
        w->carry = reals(a, (ptrdiff_t)w->carryn * QT);
        if (!backward) continue;
        w->gradn = (int)ask(term->grad, c, x);
        w->grad = reals(a, (ptrdiff_t)w->gradn * QT), w->grads = reals(a, (ptrdiff_t)w->gradn * QT);
    }
}

static struct angles *carve_angles(const struct call *c, struct arena *a, bool write)
{
    const int x = c->plan->rotate;
    if (x < 0) return NULL;
    struct angles *angles = take_bytes(a, 1, sizeof *angles);
    real *room = reals(a, ask(rotation_of(c)->room, c, x));
    if (angles && write) *angles = (struct angles){ .room = room };
    return angles;
}

/* With a desk that another thread may be looking at, too, nothing is written: `write` false finds
 * what is there. */
static size_t carve(const struct call *c, char *base, bool backward, bool write, struct desk *d)
{
    const struct loci_plan *p = c->plan;
    struct arena a = { .base = base };
    const int n = QT == 1 ? (int)few_rows(c) : locked(p);
    struct angles *angles = carve_angles(c, &a, write);
    struct tile *t = take_bytes(&a, (size_t)n, sizeof *t), spare;
    for (int i = 0; i < n; i++) {
        struct tile *one = base && write ? &t[i] : &spare;
        carve_tile(c, &a, backward, i % locked(p) == 0, one);
        one->all = t, one->tiles = n, one->angles = angles;
    }
    *d = (struct desk){ .tile = t };
    if (QT == 1) {
        d->few.s = take_bytes(&a, (size_t)n, CHUNK * sizeof(real)),
        d->few.p = take_bytes(&a, (size_t)n, CHUNK * sizeof(real));
        d->few.alpha = take_bytes(&a, (size_t)n, CHUNK / KT * sizeof(real));
        d->few.sums = take_bytes(&a, (size_t)n, CHUNK / KT * (size_t)p->value_dim * sizeof(real));
    }
    if (backward) {
        const ptrdiff_t tiles = (c->longest + KT - 1) / KT;
        d->bench.dk = take_bytes(&a, (size_t)(item_key_heads(p) * c->longest),
                                 (size_t)padded(p->dim) * sizeof(real));
        d->bench.dv = take_bytes(&a, (size_t)(item_kv_heads(p) * c->longest),
                                 (size_t)padded(p->value_dim) * sizeof(real));
        EACH_USE(c, x, term) {
            d->bench.part[x] = reals(&a, item_heads(p) * ask(term->part, c, x));
            if (term->keyed)
                d->bench.keys[x] = take_bytes(&a, (size_t)(item_heads(p) * c->longest),
                                              (size_t)padded(term->keyed(c, x)) * sizeof(real));
            if (term->carry)
                d->bench.carry[x] = take_bytes(&a, (size_t)(n * tiles),
                                               (size_t)(term->carry(c, x) * QT) * sizeof(real));
        }
        if (keeps_scores(c))
            d->bench.scores = take_bytes(&a, (size_t)tiles, KT * QT * sizeof(real));
    }
    return a.full ? SIZE_MAX : a.used;
}

size_t N(carve_desk)(const struct call *c, char *base, bool backward, struct desk *d)
{
    return carve(c, base, backward, true, d);
}
struct desk N(open_desk)(const struct call *c, int index, bool backward)
{
    struct desk d;
    carve(c, c->desks + (size_t)index * c->desk, backward, true, &d);
    return d;
}
struct bench N(find_bench)(const struct call *c, int index)
{
    struct desk d;
    carve(c, c->desks + (size_t)index * c->desk, true, false, &d);
    return d.bench;
}

size_t N(carve_angles)(const struct call *c)
{
    struct arena a = { .base = NULL };
    carve_angles(c, &a, false);
    return a.used;
}
struct angles *N(open_angles)(const struct call *c, int index)
{
    struct arena a = { .base = c->desks + (size_t)index * c->desk };
    return carve_angles(c, &a, true);
}

void N(run)(const struct call *c, int n, void (*job)(void *, int), void *arg)
{
    if (c->in->host && c->in->host->run && n > 1) {
        c->in->host->run(c->in->host->user, n, job, arg);
        return;
    }
    for (int i = 0; i < n; i++) job(arg, i);
}

/* ---- Keys ------------------------------------------------------------------------------------ */

struct keys { struct call *c; atomic_llong next; };

/* |x|^2, for bounds: in any order of sums. */
static double square(const real *x, int n)
{
    vf sum = vf_set1(0);
    real lanes[VL];
    double all = 0;
    int i = 0;
    for (; i + VL <= n; i += VL) sum = vf_fma(vf_load(x + i), vf_load(x + i), sum);
    vf_store(lanes, sum);
    for (int v = 0; v < VL; v++) all += (double)lanes[v];
    for (; i < n; i++) all += (double)x[i] * (double)x[i];
    return all;
}

/* The largest |x|^2 of the keys of a tile in a cache, which lie across. */
static double largest_across(const struct call *c, ptrdiff_t b, int h, ptrdiff_t j, int n)
{
    ptrdiff_t step;
    const char *tile = key_place(c, b, h, j, &step);
    real line[KT], sum[KT] = { 0 };
    double most = 0;
    for (int d = 0; d < c->plan->dim; d++) {
        widen_row(c, tile + d * step * (ptrdiff_t)c->plan->stored, KT, line);
        for (int k = 0; k < KT; k++) sum[k] = fma_(line[k], line[k], sum[k]);
    }
    for (int k = 0; k < n; k++)
        most = (double)sum[k] > most || sum[k] != sum[k] ? (double)sum[k] : most;
    return most;
}

static void keys_item(struct call *c, struct angles *angles, const struct sequence *q,
                      ptrdiff_t tile, int kh)
{
    const struct loci_plan *p = c->plan;
    const int D = p->dim, kvh = kv_head_of(p, kh);
    const ptrdiff_t j = q->k0 + tile * KT;
    const int n = q->k0 + q->nk - j < KT ? (int)(q->k0 + q->nk - j) : KT;
    if (n <= 0) return;
    real *turned = c->turned ? (real *)c->turned + ((q->b * p->key_heads + kh) * c->Lk + j) * D
                             : NULL;
    if (turned) {
        load_keys(c, KEYS, q->b, kvh, j, n, turned);
        const struct rotation *rotation = rotation_of(c);
        if (!p->keys_rotated)
            rotation->turn(c, p->rotate, angles, q->b, kh, false, j, n, turned, D);
        if (rotation->fade)
            rotation->fade(c, p->rotate, q->b, false, fade_from(c, q, tile), j, n, turned, D);
    }
    if (c->knorm) {
        real room[MAX_DIM];
        double most = 0;
        bool finite = true;
        if (!turned && c->cache) most = largest_across(c, q->b, kvh, j, n);
        for (int k = 0; k < n; k++) {
            if (turned || !c->cache) {
                const double sum = square(turned ? turned + (ptrdiff_t)k * D
                                                 : find_row(c, KEYS, q->b, kvh, j + k, room),
                                          D);
                most = sum > most || sum != sum ? sum : most;
            }
            finite &= finite_rows(find_row(c, VALUES, q->b, kvh, j + k, room), p->value_dim, 1,
                                  p->value_dim);
        }
        if (!finite || !(most < INFINITY)) most = NAN;
        c->knorm[kh * c->ktiles + q->first_ktile + tile] = (float)(sqrt(most) * 1.0001);
    }
}
static void keys_job(void *arg, int index)
{
    struct keys *a = arg;
    struct call *c = a->c;
    struct angles *angles = N(open_angles)(c, index);
    const int heads = c->plan->key_heads;
    for (ptrdiff_t s; (s = (ptrdiff_t)atomic_fetch_add(&a->next, 1)) < c->ktiles * heads;) {
        const ptrdiff_t tile = s / heads;
        const struct sequence *q = find_sequence(c, BY_KTILE, tile);
        keys_item(c, angles, q, tile - q->first_ktile, (int)(s % heads));
    }
}
void N(prepare_keys)(struct call *c)
{
    if (!c->turned && !c->knorm) return;
    struct keys a = { .c = c };
    atomic_init(&a.next, 0);
    N(run)(c, c->threads, keys_job, &a);
}
