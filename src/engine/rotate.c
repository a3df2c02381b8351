/* SPDX-License-Identifier: MIT */
/* rotate.c -- the rotation alone: rows of one view rotated into another, and back. */
#include "engine/workspace.h"

#if QT > 1
/* State shared by all threads: which rows, and the next item. */
struct rotated_rows {
    struct call *c;
    /* forward: x to y; back: y is the gradient that becomes dx */
    const loci_view *x, *y, *dx;
    bool query, back;
    bool values;                        /* they turn with the keys, and have another width */
    bool fades;                         /* a cache stores keys that are rotated but not faded */
    ptrdiff_t items, tiles, len, first; /* first: of the items of a wave */
    int heads;
    atomic_llong next;
    atomic_bool stop; /* the host cancelled */
};

static int width(const struct rotated_rows *a)
{
    return a->values ? a->c->plan->value_dim : a->c->plan->dim;
}
/* The width of a rotated row. */
static int width_after(const struct rotated_rows *a)
{
    return a->values ? a->c->plan->value_dim : a->c->plan->score_dim;
}

/* An item is a few heads of a tile of rows, or all heads with one thread.  They follow each
 * other, so that they share cos and sin. */
enum { TOGETHER = 8 };
static int together(const struct rotated_rows *a)
{
    return a->c->threads == 1 || a->heads < TOGETHER ? a->heads : TOGETHER;
}
/* The rows i .. i + n - 1 of some heads of a batch entry: those of item number `item`. */
struct row_block {
    ptrdiff_t b, i;
    int h, heads, n;
};
static struct row_block block_of(const struct rotated_rows *a, ptrdiff_t item, int heads)
{
    const ptrdiff_t each = (a->heads + heads - 1) / heads, tile = item / each;
    struct row_block at = {
        .b = tile / a->tiles,
        .i = tile % a->tiles * QT,
        .h = (int)(item % each) * heads,
    };
    at.heads = a->heads - at.h < heads ? a->heads - at.h : heads;
    at.n = a->len - at.i < QT ? (int)(a->len - at.i) : QT;
    return at;
}
static ptrdiff_t items(const struct rotated_rows *a, int heads)
{
    return a->c->B * a->tiles * ((a->heads + heads - 1) / heads);
}

/* One head's rows, in place.  Fading is diagonal and its own adjoint, so it comes last in the
 * forward direction and first on the way back. */
static void rotate_rows(const struct rotated_rows *a, const struct row_block at, int h,
                        struct angles *angles, real *rows, ptrdiff_t stride)
{
    struct call *c = a->c;
    const int x = c->plan->rotate;
    const struct rotation *rotation = rotation_of(c);
    if (a->values) {
        rotation->turn(c, x, angles, at.b, h, false, a->back ? -1 : 1, at.i, at.n, rows, stride);
        return;
    }
    if (!a->back) rotation->rotate(c, x, angles, at.b, h, a->query, at.i, at.n, rows, stride);
    if (a->fades) rotation->fade(c, x, at.b, a->query, false, 0, at.i, at.n, rows, stride);
    if (a->back)
        rotation->rotate_bwd(c, x, angles, at.b, h, a->query, at.i, at.n, NULL, rows, stride, NULL);
}
/* Rotates the rows of a block on their way from one view to the other, or in place.  Rows that
 * are stored in 16 bits are rotated in the scratch of t. */
static void rotate_block(const struct rotated_rows *a, const struct row_block at,
                         struct angles *angles, struct tile *t)
{
    struct call *c = a->c;
    const struct rotation *rotation = rotation_of(c);
    const int D = width(a), after = width_after(a), Dp = padded(after);
    const loci_view *from = a->back ? a->y : a->x, *to = a->back ? a->dx : a->y;
    if (!to->data) return;
    for (int h = at.h; h < at.h + at.heads; h++) {
        if (!in_place(c)) {
            real *staged = a->values ? t->v.buffer : t->q.rows;
            const ptrdiff_t stride = a->values ? after : Dp;
            for (int r = 0; r < at.n; r++)
                to_reals(c->plan->dtype, stored_row(c, from, at.b, h, at.i + r), D,
                         staged + r * stride);
            rotate_rows(a, at, h, angles, staged, stride);
            store_rows(c, staged, stride, to, at.b, h, at.i, at.n, after);
            continue;
        }
        real *source = stored_row(c, from, at.b, h, at.i), *rows = stored_row(c, to, at.b, h, at.i);
        if (rotation->move && !a->values) {
            const struct rows_at here = { source, from->row, from->head },
                                 there = { rows, to->row, to->head };
            /* all heads at once, so the loop ends here */
            rotation->move(c, c->plan->rotate, angles, at.b, h, at.heads, a->query, a->back, at.i,
                           at.n, here, there);
            return;
        }
        for (int r = 0; r < at.n && rows != source; r++)
            memcpy(rows + r * to->row, source + r * from->row, sizeof(real) * (size_t)D);
        rotate_rows(a, at, h, angles, rows, to->row);
    }
}
/* Rotates one head back where that needs the rows themselves: for its part of the
 * parameters' gradient, or as input of rotate_bwd().  If the hook needs the results of
 * rotate(), the rows are rotated once more. */
static void unrotate_block(const struct rotated_rows *a, const struct row_block at,
                           struct angles *angles, struct tile *t, real *part)
{
    struct call *c = a->c;
    const int D = width(a), Dp = padded(D), u = c->plan->rotate;
    const struct rotation *rotation = rotation_of(c);
    real *x = a->values ? t->dout.rows : t->q.rows, *g = t->scratch;
    load_rows(c, a->x, at.b, at.h, at.i, at.n, D, x);
    load_rows(c, a->y, at.b, at.h, at.i, at.n, D, g);
    if (a->values) {
        rotation->turn(c, u, angles, at.b, at.h, false, -1, at.i, at.n, g, Dp);
        rotation->turn_bwd(c, u, at.b, at.h, false, at.i, at.n, x, g, Dp, part);
    } else {
        if (!rotation->of_input)
            rotation->rotate(c, u, angles, at.b, at.h, a->query, at.i, at.n, x, Dp);
        rotation->rotate_bwd(c, u, angles, at.b, at.h, a->query, at.i, at.n, x, g, Dp, part);
    }
    if (a->dx->data) store_rows(c, g, Dp, a->dx, at.b, at.h, at.i, at.n, D);
}
/* Threads fetch items one after the other.  No item writes what another reads or writes. */
static void rotate_job(void *arg, int index)
{
    struct rotated_rows *a = arg;
    struct call *c = a->c;
    struct angles *angles = N(angles_of)(c, index);
    const bool input = a->back && wants_input(c, NULL);
    const int heads = input ? 1 : together(a);
    struct sums sums;
    struct tile *t =
        input || !in_place(c) ? N(workspace_of)(c, index, a->back ? &sums : NULL).tile : NULL;
    for (ptrdiff_t i, n = items(a, heads); (i = (ptrdiff_t)atomic_fetch_add(&a->next, 1)) < n;) {
        if (cancelled(c)) {
            a->stop = true;
            return;
        }
        if (input) unrotate_block(a, block_of(a, i, heads), angles, t, NULL);
        else rotate_block(a, block_of(a, i, heads), angles, t);
    }
}
/* One item of a wave, with its part of the parameters' gradient. */
static void wave_job(void *arg, int index)
{
    struct rotated_rows *a = arg;
    struct sums sums;
    const struct workspace d = N(workspace_of)(a->c, index, &sums);
    const int x = a->c->plan->rotate;
    real *part = sums.part[x];
    memset(part, 0, sizeof(real) * (size_t)rotation_part(a->c));
    unrotate_block(a, block_of(a, a->first + index, 1), d.tile->angles, d.tile, part);
}

/* All rows of a call.  Keys always rotate by kv head. */
static struct rotated_rows all_rows(struct call *c, loci_which which, const loci_view *x,
                                    const loci_view *y, const loci_view *dx)
{
    struct rotated_rows a = {
        .c = c,
        .x = x,
        .y = y,
        .dx = dx,
        .query = which == LOCI_QUERY,
        .back = dx != NULL,
        .values = which == LOCI_VALUE,
        .fades = which != LOCI_CACHE && fading(c),
    };
    a.heads = a.query ? c->plan->heads : c->plan->kv_heads;
    a.len = a.query ? c->Lq : c->Lk;
    a.tiles = (a.len + QT - 1) / QT;
    a.items = items(&a, 1);
    atomic_init(&a.next, 0);
    atomic_init(&a.stop, false);
    return a;
}
size_t N(rotate_workspace)(const struct call *c)
{
    struct workspace d;
    return in_place(c) ? N(angles_bytes)(c) : N(lay_out)(c, NULL, &d, NULL);
}
loci_status N(rotate)(struct call *c, loci_which which, const loci_view *x, const loci_view *y)
{
    struct rotated_rows a = all_rows(c, which, x, y, NULL);
    N(run)(c, c->threads, rotate_job, &a);
    return a.stop ? LOCI_CANCELLED : LOCI_OK;
}
loci_status N(rotate_backward)(struct call *c, loci_which which, const loci_view *x,
                               const loci_view *dy, const loci_view *dx)
{
    struct rotated_rows a = all_rows(c, which, x, dy, dx);
    const int u = c->plan->rotate;
    const struct term *term = term_of(c, u);
    double *total = c->g.total[u];
    /* Without learned parameters rows do not depend on each other.  Otherwise
     * items run in waves, and parts are added in the order of the items: the sums
     * do not depend on the threads. */
    if (!total || !term->part) {
        N(run)(c, c->threads, rotate_job, &a);
        return a.stop ? LOCI_CANCELLED : LOCI_OK;
    }
    /* An item has one head here: a part is that of a kv head. */
    for (; a.first < a.items; a.first += c->threads) {
        if (cancelled(c)) return LOCI_CANCELLED;
        const int n = a.items - a.first < c->threads ? (int)(a.items - a.first) : c->threads;
        N(run)(c, n, wave_job, &a);
        for (int i = 0; i < n; i++) {
            const struct row_block at = block_of(&a, a.first + i, 1);
            double *to = total + term->part_at(c, u, at.b, at.h * (a.query ? 1 : c->plan->group));
            const struct sums sums = N(sums_of)(c, i);
            for (ptrdiff_t k = 0; k < term->part(c, u); k++) to[k] += (double)sums.part[u][k];
        }
    }
    return LOCI_OK;
}
#endif
