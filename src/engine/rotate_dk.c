/* SPDX-License-Identifier: MIT */
/* rotate_dk.c -- the last steps of a backward pass.  dK, summed by keys as scores read them, is
 * rotated back, and dV of values that have turned.  Sums in a separate buffer are then stored at
 * their destination. */
#include <stdatomic.h>

#include "engine/backward.h"

#if QT > 1

/* Turns dV of n values back, and adds the gradients of their angles. */
static void unturn_values(const struct call *c, const struct workspace *d, ptrdiff_t b, int kvh,
                          ptrdiff_t j, int n, real *part)
{
    const struct loci_plan *p = c->plan;
    const struct rotation *rotation = rotation_of(c);
    const int Dv = p->value_dim, Dvp = padded(Dv);
    real *dv = (real *)c->g.dv.data + b * c->g.dv.batch + kvh * c->g.dv.head + j * c->g.dv.row;
    rotation->turn(c, p->rotate, d->tile->angles, b, kvh, false, -1, j, n, dv, c->g.dv.row);
    if (!rotation_learns(c)) return;
    real *g = d->tile->scratch, *x = d->tile->dout.rows;
    for (int k = 0; k < n; k++) {
        memcpy(g + (ptrdiff_t)k * Dvp, dv + k * c->g.dv.row, sizeof(real) * (size_t)Dv);
        to_reals(c->plan->dtype, stored_row(c, &c->v, b, kvh, j + k), Dv, x + (ptrdiff_t)k * Dvp);
    }
    rotation->turn_bwd(c, p->rotate, b, kvh, false, j, n, x, g, Dvp, part);
}
void N(unrotate_tile)(struct call *c, const struct workspace *d, const struct sequence *q,
                      ptrdiff_t tile, int kh, real *part)
{
    const struct loci_plan *p = c->plan;
    const struct rotation *rotation = rotation_of(c);
    const ptrdiff_t j = q->k0 + tile * KT;
    const int n = q->k0 + q->nk - j < KT ? (int)(q->k0 + q->nk - j) : KT;
    if (part) memset(part, 0, sizeof(real) * (size_t)rotation_part(c));
    if (c->mem.turned && c->g.dv.data) unturn_values(c, d, q->b, kv_head_of(p, kh), j, n, part);
    if (!c->g.dk.data) return;
    /* Rows that move: the keys of a group are those of its first head by now. */
    const int head = p->moves >= 0 ? kv_head_of(p, kh) : kh;
    real *dk = (real *)c->g.dk.data + q->b * c->g.dk.batch + kh * c->g.dk.head + j * c->g.dk.row;
    const int Dp = padded(p->score_dim);
    real *g = d->tile->scratch, *x = d->tile->q.rows;
    const real *rotated =
        c->mem.unmoved
            ? unmoved_key(c, q->b, head, j)
            : (real *)c->mem.rotated + ((q->b * p->key_heads + kh) * c->Lk + j) * p->score_dim;
    /* x: the keys as rotate_bwd() reads them, original or rotated */
    for (int k = 0; k < n; k++) {
        memcpy(g + (ptrdiff_t)k * Dp, dk + k * c->g.dk.row, sizeof(real) * (size_t)p->score_dim);
        if (wants_input(c, part))
            to_reals(c->plan->dtype, stored_row(c, &c->k, q->b, kv_head_of(p, kh), j + k), p->dim,
                     x + (ptrdiff_t)k * Dp);
        else
            memcpy(x + (ptrdiff_t)k * Dp, rotated + (ptrdiff_t)k * p->score_dim,
                   sizeof(real) * (size_t)p->score_dim);
    }
    if (rotation->fade)
        rotation->fade(c, p->rotate, q->b, false, q->run, fade_from(c, q, tile), j, n, g, Dp);
    if (!p->keys_rotated)
        rotation->rotate_bwd(c, p->rotate, d->tile->angles, q->b, head, false, j, n, x, g, Dp,
                             part);
    for (int k = 0; k < n; k++)
        memcpy(dk + k * c->g.dk.row, g + (ptrdiff_t)k * Dp, sizeof(real) * (size_t)p->dim);
}
void N(add_tile_part)(const struct call *c, ptrdiff_t b, int kh, const real *part)
{
    const struct loci_plan *p = c->plan;
    const struct term *term = term_of(c, p->rotate);
    /* part_at() counts query heads */
    double *to = c->g.total[p->rotate] + term->part_at(c, p->rotate, b, reader_of(p, kh));
    for (ptrdiff_t k = 0; k < term->part(c, p->rotate); k++) to[k] += (double)part[k];
}

/* Key heads that are rotated back by themselves: those of a group that rows move over are summed
 * before.  first_apart(): the number of the one of an item. */
static int heads_apart(const struct loci_plan *p)
{
    return p->moves >= 0 ? p->kv_heads : p->key_heads;
}
static int first_apart(const struct loci_plan *p, ptrdiff_t item)
{
    return (int)(item % heads_apart(p)) * (p->key_heads / heads_apart(p));
}
static bool learns_rotation(const struct call *c)
{
    return c->plan->rotate >= 0 && rotation_part(c) && c->g.total[c->plan->rotate];
}

/* Tiles of keys that are rotated back at the same time, one per thread. */
struct dk_wave {
    struct call *c;
    ptrdiff_t first;
};
static void unrotate_job(void *arg, int index)
{
    const struct dk_wave *a = arg;
    struct call *c = a->c;
    const struct loci_plan *p = c->plan;
    struct sums sums;
    const struct workspace d = N(workspace_of)(c, index, &sums);
    const ptrdiff_t i = a->first + index, tile = i / heads_apart(p);
    const struct sequence *q = find_sequence(c, BY_KTILE, tile);
    real *part = learns_rotation(c) ? sums.part[p->rotate] : NULL;
    N(unrotate_tile)(c, &d, q, tile - q->first_ktile, first_apart(p, i), part);
}
/* Runs in waves of one tile per thread. */
void N(unrotate_keys)(struct call *c)
{
    const struct loci_plan *p = c->plan;
    if (!unrotates(c)) return;
    const ptrdiff_t items = c->seqs.ktiles * heads_apart(p);
    for (ptrdiff_t first = 0; first < items; first += c->threads) {
        const int n = items - first < c->threads ? (int)(items - first) : c->threads;
        N(run)(c, n, unrotate_job, &(struct dk_wave){ .c = c, .first = first });
        for (int i = 0; i < n && learns_rotation(c); i++) {
            const struct sequence *q = find_sequence(c, BY_KTILE, (first + i) / heads_apart(p));
            const struct sums sums = N(sums_of)(c, i);
            N(add_tile_part)(c, q->b, first_apart(p, first + i), sums.part[p->rotate]);
        }
    }
}

/* ---- Keys that rows move over ---------------------------------------------------------------- */

struct unmove {
    struct call *c;
    atomic_llong next;
};
/* Gradients of the keys that rows move over become those of the keys before, in all heads that read
 * the same ones, and their sum is stored with the first of these, number kh. */
static void sum_moved(const struct call *c, const struct sequence *q, ptrdiff_t tile, int kh, int n)
{
    const struct loci_plan *p = c->plan;
    const int heads = p->key_heads / p->kv_heads;
    const loci_view *v = &c->g.dk;
    real *first = (real *)v->data + q->b * v->batch + kh * v->head + (q->k0 + tile * KT) * v->row;
    for (int h = 0; h < heads; h++) {
        real *d = first + h * v->head;
        moves_of(c)->keys_bwd(c, p->moves, q, tile, kh + h, n, d, v->row);
        for (int k = 0; k < n && h; k++)
            for (int i = 0; i < p->dim; i++) {
                first[k * v->row + i] += d[k * v->row + i];
                d[k * v->row + i] = 0;
            }
    }
}
static void unmove_job(void *arg, int index)
{
    struct unmove *a = arg;
    struct call *c = a->c;
    const struct loci_plan *p = c->plan;
    (void)index;
    for (ptrdiff_t i;
         (i = (ptrdiff_t)atomic_fetch_add(&a->next, 1)) < c->seqs.ktiles * heads_apart(p);) {
        const ptrdiff_t tile = i / heads_apart(p);
        const struct sequence *q = find_sequence(c, BY_KTILE, tile);
        const ptrdiff_t j = (tile - q->first_ktile) * KT;
        const int n = q->nk - j < KT ? (int)(q->nk - j) : KT;
        sum_moved(c, q, tile - q->first_ktile, first_apart(p, i), n);
    }
}
/* A block of tiles at a time. */
static void unmove_block_job(void *arg, int index)
{
    struct unmove *a = arg;
    struct call *c = a->c;
    const int heads = c->plan->key_heads;
    for (ptrdiff_t s; (s = (ptrdiff_t)atomic_fetch_add(&a->next, 1)) < c->seqs.ktiles * heads;) {
        const struct sequence *q = find_sequence(c, BY_KTILE, s / heads);
        const ptrdiff_t tile = s / heads - q->first_ktile;
        if (tile % moves_of(c)->span) continue;
        moves_of(c)->blocks_bwd(c, c->plan->moves, q, tile, (int)(s % heads),
                                block_memory(c, index));
    }
}
/* Once dk is summed over all rows, and before it is rotated back. */
void N(unmove_keys)(struct call *c)
{
    const struct moves *moves = moves_of(c);
    struct unmove a = { .c = c };
    if (!moves || !c->g.dk.data) return;
    atomic_init(&a.next, 0);
    if (!moves->blocks_bwd) N(run)(c, c->threads, unmove_job, &a);
    else if (c->g.total[c->plan->moves]) N(run)(c, c->threads, unmove_block_job, &a);
}

/* For an encoding whose end_keys() adds to dv of turned values. */
void N(turn_output)(const struct call *c, ptrdiff_t b, int h, ptrdiff_t i, void *row)
{
    turn_outputs(c, N(angles_of)(c, 0), b, h, 1, i, 1, row, c->plan->value_dim);
}

/* ---- Destinations ---------------------------------------------------------------------------- */

/* Stores gradients that were summed in a separate buffer, of keys first .. end - 1.
 * The destination numbers them differently, by `shift`.  If each head of a group has
 * keys of its own, rotated by its own states, the group's gradients are added up here,
 * once each is rotated back. */
static void store_sums(const struct call *c, const loci_view *from, const loci_view *to, int heads,
                       int each, int width, ptrdiff_t first, ptrdiff_t end, ptrdiff_t shift)
{
    real sum[MAX_DIM];
    for (ptrdiff_t b = 0; b < c->B && to->data; b++)
        for (int h = 0; h < heads; h++)
            for (ptrdiff_t j = first; j < end; j++) {
                for (int i = 0; i < each; i++) {
                    const real *row = (const real *)from->data + b * from->batch
                                    + (h * each + i) * from->head + j * from->row;
                    for (int n = 0; n < width; n++) sum[n] = i ? sum[n] + row[n] : row[n];
                }
                from_reals(c->plan->dtype, sum, width, stored_row(c, to, b, h, j + shift));
            }
}
struct stored {
    struct call *c;
    ptrdiff_t first, count, shift;
};
static void store_job(void *arg, int index)
{
    const struct stored *a = arg;
    struct call *c = a->c;
    const struct loci_plan *p = c->plan;
    const ptrdiff_t first = a->first + a->count * index / c->threads,
                    end = a->first + a->count * (index + 1) / c->threads;
    store_sums(c, &c->g.dk, &c->g.dk_out, p->kv_heads, p->key_heads / p->kv_heads, key_dim(p),
               first, end, a->shift);
    store_sums(c, &c->g.dv, &c->g.dv_out, p->kv_heads, 1, p->value_dim, first, end, a->shift);
}
void N(store_gradients)(struct call *c, ptrdiff_t first, ptrdiff_t count, ptrdiff_t to)
{
    struct stored a = { c, first, count, to - first };
    if (c->g.dk_out.data || c->g.dv_out.data) N(run)(c, c->threads, store_job, &a);
}
#endif
