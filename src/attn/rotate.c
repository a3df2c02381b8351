/* SPDX-License-Identifier: MIT */
/* rotate.c -- the rotation alone: rows of one view turned into another, and back. */
#include "desk.h"

#if QT > 1
struct rows { struct call *c; const loci_view *x, *y, *dx; bool query, back; ptrdiff_t items, tiles, len, first; int heads; atomic_llong next; };

static void rotate_item(const struct rows *a, ptrdiff_t item, const struct desk *d, real *part)
{
    struct call *c = a->c;
    const struct loci_plan *p = c->plan;
    const struct term *term = term_of(c, p->rotate);
    const int D = p->dim, Dp = padded(D);
    const ptrdiff_t b = item / (a->heads * a->tiles), i = item % a->tiles * QT;
    const int h = (int)(item / a->tiles % a->heads), kvh = a->query ? h / p->group : h;
    const int n = a->len - i < QT ? (int)(a->len - i) : QT;
    real *rows = d->tile->qrows, *g = d->tile->scratch;
    load_rows(a->x, b, h, i, n, D, rows);
    term->turn(c, p->rotate, b, kvh, a->query, i, n, rows, Dp);
    const loci_view *to = a->back ? a->dx : a->y;
    if (a->back) {
        load_rows(a->y, b, h, i, n, D, g);
        term->turn_bwd(c, p->rotate, b, kvh, a->query, i, n, rows, g, Dp, part);
        rows = g;
    }
    if (!to->data) return;
    for (int r = 0; r < n; r++)
        memcpy((real *)to->data + b * to->batch + h * to->head + (i + r) * to->row, rows + (ptrdiff_t)r * Dp, sizeof(real) * (size_t)D);
}
static void rotate_job(void *arg, int index)
{
    struct rows *a = arg;
    const struct desk d = N(open_desk)(a->c, index, true);
    for (ptrdiff_t item; (item = (ptrdiff_t)atomic_fetch_add(&a->next, 1)) < a->items;) rotate_item(a, item, &d, NULL);
}
/* One item of a wave, with its part of the parameters' gradient. */
static void wave_job(void *arg, int index)
{
    struct rows *a = arg;
    const struct desk d = N(open_desk)(a->c, index, true);
    const int x = a->c->plan->rotate;
    real *part = d.bench.part[x];
    memset(part, 0, sizeof(real) * (size_t)term_of(a->c, x)->part(a->c, x));
    rotate_item(a, a->first + index, &d, part);
}

static struct rows all_rows(struct call *c, loci_which which, const loci_view *x, const loci_view *y, const loci_view *dx)
{
    struct rows a = { .c = c, .x = x, .y = y, .dx = dx, .query = which == LOCI_QUERY, .back = dx != NULL };
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
    if (!total) {
        N(run)(c, c->threads, rotate_job, &a);
        return;
    }
    for (; a.first < a.items; a.first += c->threads) {
        const int n = a.items - a.first < c->threads ? (int)(a.items - a.first) : c->threads;
        N(run)(c, n, wave_job, &a);
        for (int i = 0; i < n; i++) {
            const ptrdiff_t item = a.first + i;
            const int h = (int)(item / a.tiles % a.heads) * (a.query ? 1 : c->plan->group);
            double *to = total + term->home(c, u, item / (a.heads * a.tiles), h);
            const struct desk d = N(open_desk)(c, i, true);
            for (ptrdiff_t k = 0; k < term->part(c, u); k++) to[k] += (double)d.bench.part[u][k];
        }
    }
}
#endif
