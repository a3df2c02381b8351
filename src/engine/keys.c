/* SPDX-License-Identifier: MIT */
/* keys.c -- before the pass: rotates and stages keys, and measures their norms,
 * where the plan requires it. */
#include "engine/workspace.h"

struct keys {
    struct call *c;
    atomic_llong next;
};

/* |x|^2.  It serves bounds only, which are rounded up, so the order of its sum may depend on VL. */
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

/* The largest |x|^2 of the keys of a tile in a cache, which are stored
 * across; NaN if any is NaN. */
static double largest_across(const struct call *c, ptrdiff_t b, int h, ptrdiff_t j, int n)
{
    ptrdiff_t first;
    char *tile = cached_tile(c, b, h, j, &first);
    real line[KT], sum[KT] = { 0 };
    double most = 0;
    for (int d = 0; d < key_dim(c->plan); d++) {
        load_line(c, tile, d, 0, KT, line);
        for (int k = 0; k < KT; k++) sum[k] = fma_(line[k], line[k], sum[k]);
    }
    for (int k = 0; k < n; k++)
        most = (double)sum[k] > most || sum[k] != sum[k] ? (double)sum[k] : most;
    return most;
}

/* One tile of keys of one key head.  It is rotated and faded into c->mem.rotated, once for all
 * query tiles and all heads that share it, and values that turn go to c->mem.turned.  The largest
 * norm of its keys goes to c->mem.knorm. */
static void keys_item(struct call *c, struct angles *angles, const struct sequence *q,
                      ptrdiff_t tile, int kh)
{
    const struct loci_plan *p = c->plan;
    const int D = p->score_dim, kvh = kv_head_of(p, kh);
    const ptrdiff_t j = q->k0 + tile * KT;
    const int n = q->k0 + q->nk - j < KT ? (int)(q->k0 + q->nk - j) : KT;
    const struct rotation *rotation = rotation_of(c);
    const int form = kh % p->key_forms;
    const bool first = kh % (p->key_heads / p->kv_heads) == 0; /* of its kv head */
    if (n <= 0 || !is_present(c, j)) return;
    const bool stages =
        c->mem.rotated && !(rotation && rotation->still && rotation->still(c, p->rotate, form));
    real *rotated =
        stages ? (real *)c->mem.rotated + ((q->b * p->key_heads + kh) * c->Lk + j) * D : NULL;
    /* With keys_rotated they are rotated already, and only fading remains. */
    if (rotated && !c->mem.kept) {
        load_keys(c, KEYS, q->b, kvh, j, n, rotated, D);
        if (rotation && !p->keys_rotated)
            rotation->rotate(c, p->rotate, angles, q->b, p->moves >= 0 ? kvh : kh, false, j, n,
                             rotated, D);
        if (p->moves >= 0) {
            if (c->mem.unmoved && first)
                memcpy(unmoved_key(c, q->b, kvh, j), rotated, sizeof(real) * (size_t)(n * D));
            moves_of(c)->keys(c, p->moves, q, tile, kh, n, rotated);
        } else if (rotation->fade)
            rotation->fade(c, p->rotate, q->b, false, q->run, fade_from(c, q, tile), j, n, rotated,
                           D);
    }
    if (c->mem.turned && first) {
        real *values = turned_value(c, q->b, kvh, j);
        load_keys(c, VALUES, q->b, kvh, j, n, values, p->value_dim);
        rotation_of(c)->turn(c, p->rotate, angles, q->b, kvh, false, 1, j, n, values, p->value_dim);
    }
    if (c->mem.knorm) {
        real buffer[MAX_DIM];
        double most = 0;
        bool finite = true;
        if (!rotated && keys_across(c)) most = largest_across(c, q->b, kvh, j, n);
        for (int k = 0; k < n; k++) {
            if (rotated || !keys_across(c)) {
                const double sum = square(rotated ? rotated + (ptrdiff_t)k * D
                                                  : find_row(c, KEYS, q->b, kvh, j + k, buffer),
                                          D);
                most = sum > most || sum != sum ? sum : most; /* NaN stays to the end */
            }
            finite &= finite_rows(find_row(c, VALUES, q->b, kvh, j + k, buffer), p->value_dim, 1,
                                  p->value_dim);
        }
        /* A skipped tile adds nothing, but a tile with inf or NaN must give NaN.  A norm of NaN
         * fails every comparison, so such a tile is never skipped.  The factor covers the
         * rounding of sums and root. */
        if (!finite || !(most < INFINITY)) most = NAN;
        c->mem.knorm[kh * c->seqs.ktiles + q->first_ktile + tile] = (float)(sqrt(most) * 1.0001);
    }
}
/* Threads fetch tiles one after the other.  The heads of a tile follow each other, so that they
 * reuse cos and sin of its positions. */
static void keys_job(void *arg, int index)
{
    struct keys *a = arg;
    struct call *c = a->c;
    struct angles *angles = N(angles_of)(c, index);
    const int heads = c->plan->key_heads;
    for (ptrdiff_t s; (s = (ptrdiff_t)atomic_fetch_add(&a->next, 1)) < c->seqs.ktiles * heads;) {
        const ptrdiff_t tile = s / heads;
        const struct sequence *q = find_sequence(c, BY_KTILE, tile);
        keys_item(c, angles, q, tile - q->first_ktile, (int)(s % heads));
    }
}
/* A block of tiles at a time. */
static void blocks_job(void *arg, int index)
{
    struct keys *a = arg;
    struct call *c = a->c;
    const int heads = c->plan->key_heads;
    for (ptrdiff_t s; (s = (ptrdiff_t)atomic_fetch_add(&a->next, 1)) < c->seqs.ktiles * heads;) {
        const struct sequence *q = find_sequence(c, BY_KTILE, s / heads);
        const ptrdiff_t tile = s / heads - q->first_ktile;
        if (tile % moves_of(c)->span) continue;
        moves_of(c)->blocks(c, c->plan->moves, q, tile, (int)(s % heads), block_memory(c, index));
    }
}
void N(prepare_keys)(struct call *c)
{
    if ((!c->mem.rotated || c->mem.kept) && !c->mem.knorm) return;
    struct keys a = { .c = c };
    atomic_init(&a.next, 0);
    const struct moves *moves = moves_of(c);
    N(run)(c, c->threads, moves && moves->blocks ? blocks_job : keys_job, &a);
}

/* ---- Keys that a cache keeps staged ---------------------------------------------------------- */

#if QT > 1
/* An item is a block of tiles of a key head, of one tile if the term makes keys tile by tile: block
 * number `i % blocks` from the first one of the entry that is staged. */
struct kept {
    struct call *c;
    const int64_t *from;
    ptrdiff_t blocks, span;
    atomic_llong next;
};
/* A tile that was the newest one has another form once it is whole, so the one before key from[b]
 * is staged again. */
static ptrdiff_t first_tile(const struct kept *a, ptrdiff_t b)
{
    return (ptrdiff_t)(a->from[b] > 0 ? a->from[b] - 1 : 0) / KT;
}
static void stage_job(void *arg, int index)
{
    struct kept *a = arg;
    struct call *c = a->c;
    const struct moves *moves = moves_of(c);
    void *memory = c->mem.workspaces + (size_t)index * c->mem.workspace;
    const ptrdiff_t heads = c->plan->key_heads, capacity = c->seqs.ktiles / c->B;
    for (ptrdiff_t i; (i = (ptrdiff_t)atomic_fetch_add(&a->next, 1)) < c->B * heads * a->blocks;) {
        const ptrdiff_t b = i / heads / a->blocks, first = first_tile(a, b),
                        block = (first / a->span + i / heads % a->blocks) * a->span,
                        tile = block < first ? first : block;
        const int kh = (int)(i % heads);
        const struct sequence q = { .b = b,
                                    .nk = (ptrdiff_t)cache_list(c->cache, c->cache->len)[b],
                                    .first_ktile = b * capacity };
        if (tile * KT >= q.nk) continue;
        if (moves->blocks) moves->blocks(c, c->plan->moves, &q, tile, kh, memory);
        else keys_item(c, NULL, &q, tile, kh);
    }
}
void N(stage_cache)(struct call *c, const int64_t *from)
{
    struct kept a = { .c = c, .from = from, .span = moves_of(c)->blocks ? moves_of(c)->span : 1 };
    for (ptrdiff_t b = 0; b < c->B; b++) {
        const ptrdiff_t keys = (ptrdiff_t)cache_list(c->cache, c->cache->len)[b],
                        tiles = (keys + KT - 1) / KT, first = first_tile(&a, b) / a.span,
                        blocks = (tiles + a.span - 1) / a.span - first;
        if (blocks > a.blocks) a.blocks = blocks;
    }
    atomic_init(&a.next, 0);
    N(run)(c, c->threads, stage_job, &a);
}
#endif
