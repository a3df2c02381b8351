/* SPDX-License-Identifier: MIT */
/* rotate.c -- the rotation alone: rows of one view turned into another, and back. */
#include "desk.h"

#if QT > 1
struct rows {
    struct call *c;
    const loci_view *x, *y, *dx;         /* forward: x to y; back: y is the gradient that becomes dx */
    bool query, back, fades;             /* fades: a cache keeps keys as they were before that */
    ptrdiff_t items, tiles, len, first;
    int heads;
    atomic_llong next;
};

/* Item by item the heads of a tile follow each other, so that they share cos and sin; a thread takes a few at a time. */
enum { TOGETHER = 8 };
struct place { ptrdiff_t b, i; int h; };
static struct place place_of(const struct rows *a, ptrdiff_t item)
{
    const ptrdiff_t tile = item / a->heads;
    return (struct place){ .b = tile / a->tiles, .i = tile % a->tiles * QT, .h = (int)(item % a->heads) };
}

/* Turns the rows on their way, or where they are.  With a tile: its part of the parameters' gradient, too. */
static void rotate_item(const struct rows *a, ptrdiff_t item, struct heading *heading, struct tile *t, real *part)
{
    struct call *c = a->c;
    const struct loci_plan *p = c->plan;
    const struct term *term = term_of(c, p->rotate);
    const int D = p->dim, Dp = padded(D);
    const struct place at = place_of(a, item);
    const int n = a->len - at.i < QT ? (int)(a->len - at.i) : QT;
    const loci_view *from = a->back ? a->y : a->x, *to = a->back ? a->dx : a->y;
    real *g = NULL;
    if (t) {
        real *x = t->qrows;
        g = t->scratch;
        load_rows(a->x, at.b, at.h, at.i, n, D, x);
        load_rows(from, at.b, at.h, at.i, n, D, g);
        if (!term->of_input) term->turn(c, p->rotate, heading, at.b, at.h, a->query, at.i, n, x, Dp);
        term->turn_bwd(c, p->rotate, heading, at.b, at.h, a->query, at.i, n, x, g, Dp, part);
    }
    if (!to->data) return;
    const real *source = t ? g : row_of(from, at.b, at.h, at.i);
    const ptrdiff_t stride = t ? Dp : from->row;
    real *rows = (real *)to->data + at.b * to->batch + at.h * to->head + at.i * to->row;
    if (rows != source && term->move && !t) {
        term->move(c, p->rotate, heading, at.b, at.h, a->query, a->back, at.i, n, source, stride, rows, to->row);
        return;
    }
    for (int r = 0; r < n && rows != source; r++) memcpy(rows + r * to->row, source + r * stride, sizeof(real) * (size_t)D);
    if (t) return;
    if (!a->back) term->turn(c, p->rotate, heading, at.b, at.h, a->query, at.i, n, rows, to->row);
    if (a->fades) term->fade(c, p->rotate, at.b, a->query, 0, at.i, n, rows, to->row);
    if (a->back) term->turn_bwd(c, p->rotate, heading, at.b, at.h, a->query, at.i, n, NULL, rows, to->row, NULL);
}
static void rotate_job(void *arg, int index)
{
    struct rows *a = arg;
    struct heading *heading = N(open_heading)(a->c, index);
    struct tile *t = a->back && wants_input(term_of(a->c, a->c->plan->rotate), NULL) ? N(open_desk)(a->c, index, true).tile : NULL;
    for (ptrdiff_t first; (first = (ptrdiff_t)atomic_fetch_add(&a->next, TOGETHER)) < a->items;)
        for (ptrdiff_t item = first; item < first + TOGETHER && item < a->items; item++) rotate_item(a, item, heading, t, NULL);
}
/* One item of a wave, with its part of the parameters' gradient. */
static void wave_job(void *arg, int index)
{
    struct rows *a = arg;
    const struct desk d = N(open_desk)(a->c, index, true);
    const int x = a->c->plan->rotate;
    real *part = d.bench.part[x];
    memset(part, 0, sizeof(real) * (size_t)term_of(a->c, x)->part(a->c, x));
    rotate_item(a, a->first + index, d.tile->heading, d.tile, part);
}

static struct rows all_rows(struct call *c, loci_which which, const loci_view *x, const loci_view *y, const loci_view *dx)
{
    struct rows a = { .c = c, .x = x, .y = y, .dx = dx, .query = which == LOCI_QUERY, .back = dx != NULL,
                      .fades = which != LOCI_CACHE && fading(c) };
    a.heads = a.query ? c->plan->heads : c->plan->kv_heads;
    a.len = a.query ? c->Lq : c->Lk;
    a.tiles = (a.len + QT - 1) / QT;
    a.items = c->B * a.heads * a.tiles;
    atomic_init(&a.next, 0);
    return a;
}
void N(rotate)(struct call *c, loci_which which, const loci_view *x, const loci_view *y)
{
    struct rows a = all_rows(c, which, x, y, NULL);
    N(run)(c, c->threads, rotate_job, &a);
}
void N(rotate_backward)(struct call *c, loci_which which, const loci_view *x, const loci_view *dy, const loci_view *dx)
{
    struct rows a = all_rows(c, which, x, dy, dx);
    const int u = c->plan->rotate;
    const struct term *term = term_of(c, u);
    double *total = c->total[u];
    if (!total || !term->part) {
        N(run)(c, c->threads, rotate_job, &a);
        return;
    }
    for (; a.first < a.items; a.first += c->threads) {
        const int n = a.items - a.first < c->threads ? (int)(a.items - a.first) : c->threads;
        N(run)(c, n, wave_job, &a);
        for (int i = 0; i < n; i++) {
            const struct place at = place_of(&a, a.first + i);
            double *to = total + term->home(c, u, at.b, at.h * (a.query ? 1 : c->plan->group));
            const struct bench bench = N(find_bench)(c, i);
            for (ptrdiff_t k = 0; k < term->part(c, u); k++) to[k] += (double)bench.part[u][k];
        }
    }
}
#endif
