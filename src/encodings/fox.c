/* SPDX-License-Identifier: MIT */
/* fox.c -- forgetting attention: gates in [0, 1] decide how much of the past
 * remains.  Lin et al., ICLR 2025.
 *
 *     S_ij = scale q_i.k_j + sum of log_f[b][h][l] over the keys l after j, up to the last key
 *            that row i sees
 *
 * The layer computes log_f = log sigmoid(gate).  It comes with each call, [B][H][Lk] by
 * query head.  The gate of the key itself does not count, that of the newest key does.
 * Keys are counted in index order, so the mask is causal.  With a constant gate this is
 * alibi with slope -log f.  If a gate is shut (log_f at or below -10^4, including -inf),
 * the keys before it get weight 0. */
#include "contract/cache.h"
#include "contract/engine.h"
#include "encodings/streams.h"
#include "layout/gate.h"

static const loci_option opts[] = {
    [GATE_STOP] = { "stop", LOCI_NUMBER, 0, 0, 0, 1, NULL,
                    "share of a row's weight that may be skipped; 0 is exact" },
    { 0 }
};

static void tensors(const struct config *c, struct tensors *t)
{
    loci_add_input(t, c, "log_f", LOCI_SOURCE_LOG_GATE,
                   SHAPE(LOCI_DIM_BATCH, c->heads, LOCI_DIM_KEYS));
}

static void terms(const struct config *c, struct termlist *t)
{
    (void)c;
    loci_add_term(t, TERM_gate, GROUP_ADD);
}

/* ---- Sums of log_f --------------------------------------------------------------------------- */

/* Lays out the sums; the same in the scratch of a call and in a cache. */
static void lay_out_sums(const struct call *c, struct arena *a, struct gate_sums *to)
{
    const struct loci_plan *p = c->plan;
    const size_t tiles = (size_t)p->heads * (size_t)c->seqs.ktiles;
    to->sum = carve_bytes(a, tiles, sizeof *to->sum);
    to->marks = carve_bytes(a, tiles, sizeof *to->marks);
    to->top = carve_bytes(a, tiles, p->real);
    to->later = carve_bytes(a, (size_t)(c->B * p->heads) * (size_t)gate_keys(c), p->real);
}
/* The sums that a cache computed when keys were added, or NULL.  They have no
 * bounds for rows that end early. */
static void *made(const struct call *c, int enc)
{
    return c->cache ? cache_made(c->cache, enc) : NULL;
}
/* Lays out the scratch: the struct, then its arrays; with base NULL it only measures.
 * If the cache has the sums, the struct points there, and the arrays are unused. */
static struct gate_sums *lay_out(const struct call *c, int enc, struct arena *a)
{
    const struct loci_plan *p = c->plan;
    const size_t tiles = (size_t)p->heads * (size_t)c->seqs.ktiles;
    struct gate_sums *g = carve_bytes(a, 1, sizeof *g), spare, *to = a->base ? g : &spare;
    *to = (struct gate_sums){ .stops = gate_stops(c, enc) };
    lay_out_sums(c, a, to);
    if (a->base && made(c, enc)) lay_out_sums(c, &(struct arena){ .base = made(c, enc) }, to);
    if (to->stops) {
        to->rise = carve_bytes(a, tiles, sizeof *to->rise);
        to->knorm =
            carve_bytes(a, (size_t)p->key_heads * (size_t)c->seqs.ktiles, sizeof *to->knorm);
    }
    return g;
}
static size_t scratch(const struct call *c, int enc)
{
    struct arena a = { 0 };
    lay_out(c, enc, &a);
    return a.full ? SIZE_MAX : a.used;
}

/* Writes `later` of a tile of n keys from key `at` on, newest first, and returns the sum of
 * all and the largest `later`. */
static void sum_tile(const struct gate_sums *g, const void *log_f, const bool f64, ptrdiff_t at,
                     int n, double *sum, double *top)
{
    *sum = *top = 0;
    for (int k = n - 1; k >= 0; k--) {
        store_real(g->later, f64, at + k, *sum);
        *top = *sum > *top ? *sum : *top;
        *sum += gate_value(load_real(log_f, f64, at + k));
    }
}
/* The sum of a tile with gates that are shut or NaN: those count in `marks` and not in the sum. */
static double sum_finite(const void *log_f, const bool f64, ptrdiff_t at, int n, int64_t *marks)
{
    double sum = 0;
    for (int k = n - 1; k >= 0; k--) {
        const double x = load_real(log_f, f64, at + k);
        if (gate_mark(x)) *marks += gate_mark(x);
        else sum += x;
    }
    return sum;
}
static double higher(double a, double b) { return a > b || a != a ? a : b; } /* NaN wins */

/* Computes the sums of one head in one sequence from tile J0 on, where a cache continues.  f64
 * is constant in each of the two calls, so that loads have one form. */
static inline void sum_keys(const struct call *c, const struct gate_sums *g,
                            const struct sequence *q, int h, ptrdiff_t J0, const void *log_f,
                            const bool f64)
{
    const int64_t most_keys = input_keys(c).end;
    const ptrdiff_t first = gate_at(c, q->b, h) + q->k0, slot = h * c->seqs.ktiles + q->first_ktile,
                    end = most_keys < q->nk ? (ptrdiff_t)most_keys : q->nk;
    double C = J0 ? g->sum[slot + J0 - 1] : 0, rise = -INFINITY, sum[LATER_TILES], top[LATER_TILES];
    int64_t marks = J0 ? g->marks[slot + J0 - 1] : 0;
    /* 64 (J + 1) keys are at most 2^doublings, which bounds the log of their number. */
    int doublings = 6;
    for (ptrdiff_t J = J0, tiles; J * KT < end; J += tiles) {
        const ptrdiff_t left = end - J * KT, at = first + J * KT,
                        bytes = at * (ptrdiff_t)c->plan->real;
        const int n = left < KT ? (int)left : KT;
        /* The engine has a vector loop for LATER_TILES whole tiles; the rest goes tile by tile. */
        tiles = left < LATER_TILES * KT ? 1 : LATER_TILES;
        if (tiles == 1) sum_tile(g, log_f, f64, at, n, sum, top);
        else
            c->plan->engine->sum_later((const char *)log_f + bytes, (char *)g->later + bytes, sum,
                                       top);
        for (int i = 0; i < tiles; i++) {
            if (sum[i] != sum[i]) top[i] = NAN; /* a gate is NaN */
            /* inf - inf is NaN: only finite sums are added directly. */
            C += sum[i] - sum[i] == 0 ? sum[i] : sum_finite(log_f, f64, at + i * KT, n, &marks);
            g->sum[slot + J + i] = C;
            g->marks[slot + J + i] = marks;
            store_real(g->top, f64, slot + J + i, top[i]);
            if (!g->stops) continue;
            while (J + i + 1 > (ptrdiff_t)1 << (doublings - 6)) doublings++;
            /* `rise` is relative to the last key of its tile, so the rise of older tiles
             * falls by this tile's sum. */
            rise = higher(top[i], sum[i] + rise);
            g->rise[slot + J + i] = rise + doublings * 0.69314718055994531;
        }
    }
}

/* The square of |x| of D numbers: doubles, or floats in 16 parallel sums, which vectorise.  Not
 * finite if x is not. */
static inline double square_of_doubles(const double *x, ptrdiff_t step, int D)
{
    double all = 0;
    for (int d = 0; d < D; d++) all += x[d * step] * x[d * step];
    return all;
}
static inline double square_of_floats(const float *x, int D)
{
    double all = 0;
    float sum[16] = { 0 };
    int d = 0;
    for (; d + 16 <= D; d += 16)
        for (int n = 0; n < 16; n++) sum[n] += x[d + n] * x[d + n];
    for (; d < D; d++) sum[0] += x[d] * x[d];
    for (int n = 0; n < 16; n++) all += (double)sum[n];
    return all;
}
/* D stored numbers, `step` apart, as floats.  Each type has a loop of its own. */
static void load_floats(const void *p, loci_dtype dtype, ptrdiff_t step, int D, float *to)
{
    const uint16_t *bits = p;
    for (int d = 0; d < D && dtype == LOCI_F32; d++) to[d] = ((const float *)p)[d * step];
    for (int d = 0; d < D && dtype == LOCI_BF16; d++) to[d] = from_bf16(bits[d * step]);
    for (int d = 0; d < D && dtype == LOCI_F16; d++) to[d] = from_f16(bits[d * step]);
}
static void load_block(float scale, const int8_t *x, ptrdiff_t step, float *to)
{
    for (int i = 0; i < Q8_BLOCK; i++) to[i] = scale * (float)x[i * step];
}
static double square_of_cached(const struct call *c, ptrdiff_t b, int h, ptrdiff_t j)
{
    const loci_dtype dtype = c->plan->k_dtype;
    const int D = c->plan->score_dim;
    const ptrdiff_t width = cached_row_width(c->cache), step = keys_across(c) ? KT : 1;
    ptrdiff_t n;
    char *tile = cached_tile(c, b, h, j, &n);
    const ptrdiff_t first = keys_across(c) ? n : n * width;
    float x[MAX_DIM];
    if (dtype == LOCI_F64) return square_of_doubles((const double *)(void *)tile + first, step, D);
    if (dtype != LOCI_Q8_0) load_floats(tile + stored_bytes(dtype, first), dtype, step, D, x);
    for (int d = 0; d < D && dtype == LOCI_Q8_0; d += Q8_BLOCK)
        load_block(from_f16(cached_scales(tile, d)[n]),
                   cached_whole(tile, width) + first + d * step, step, x + d);
    return square_of_floats(x, D);
}
/* |k|^2 of key j of a head.  Always inline: what does not depend on j is computed once. */
static inline __attribute__((always_inline)) double
square_of_key(const struct call *c, const struct sequence *q, int kh, ptrdiff_t j)
{
    const struct loci_plan *p = c->plan;
    const int D = p->score_dim, h = kv_head_of(p, kh);
    const char *rotated = c->mem.rotated;
    if (!rotated && c->cache) return square_of_cached(c, q->b, h, j);
    const loci_dtype dtype = !rotated ? p->k_dtype : p->f64 ? LOCI_F64 : LOCI_F32;
    const char *k = rotated
                      ? rotated + ((q->b * p->key_heads + kh) * c->Lk + j) * D * (ptrdiff_t)p->real
                      : view_key(c, q->b, h, j);
    float x[MAX_DIM];
    if (dtype == LOCI_F64) return square_of_doubles((const void *)k, 1, D);
    if (dtype == LOCI_F32) return square_of_floats((const void *)k, D);
    if (dtype != LOCI_Q8_0) load_floats(k, dtype, 1, D, x);
    for (int d = 0; d < D && dtype == LOCI_Q8_0; d += Q8_BLOCK, k += Q8_BYTES)
        load_block(from_f16(q8_scale_bits(k)), q8_numbers(k), 1, x + d);
    return square_of_floats(x, D);
}
/* knorm: the largest |k| up to each tile's end, rounded up a little, as the sums
 * are rounded.  From a key that is not finite on, it is not finite. */
static void measure_keys(const struct call *c, const struct gate_sums *g, const struct sequence *q,
                         int kh)
{
    double most = 0;
    for (ptrdiff_t j = 0; j < q->nk; j++) {
        most = higher(square_of_key(c, q, kh, q->k0 + j), most);
        if (j % KT == KT - 1 || j == q->nk - 1)
            g->knorm[kh * c->seqs.ktiles + q->first_ktile + j / KT] = sqrt(most) * 1.0001;
    }
}

/* If inputs begin at a later key, restores the sum of the keys before it.  Returns the first tile
 * to sum. */
static ptrdiff_t restore(const struct call *c, int enc, const struct gate_sums *g,
                         const struct sequence *q, int h)
{
    const ptrdiff_t J = (ptrdiff_t)input_keys(c).first / KT,
                    slot = h * c->seqs.ktiles + q->first_ktile;
    if (!J) return 0;
    const struct gate_state *state = restored_state(c, enc);
    state += q->b * c->plan->heads + h;
    g->sum[slot + J - 1] = state->sum;
    g->marks[slot + J - 1] = state->marks;
    return J;
}
/* Heads are divided among the host's threads where that is worth it: job i has
 * the heads i, i + jobs, ... */
struct gate_job {
    const struct call *c;
    const struct gate_sums *g;
    const void *log_f;
    int enc, jobs;
};
/* Two calls with a constant, so that each is compiled for its dtype. */
static void head_job(void *arg, int index)
{
    const struct gate_job *a = arg;
    const struct loci_plan *p = a->c->plan;
    for (ptrdiff_t s = 0; s < a->c->seqs.n; s++) {
        const struct sequence *q = &a->c->seqs.list[s];
        /* otherwise the term itself counts the gates of the keys that a row sees */
        if (!sees_intervals(a->c, q) || !q->nq) continue;
        /* they are those of the keys, for whichever sequence has them first */
        if (q->keys < s && sees_intervals(a->c, q - 1) && q[-1].nq) continue;
        for (int h = index; h < p->heads; h += a->jobs) {
            const ptrdiff_t J = restore(a->c, a->enc, a->g, q, h);
            if (p->f64) sum_keys(a->c, a->g, q, h, J, a->log_f, true);
            else sum_keys(a->c, a->g, q, h, J, a->log_f, false);
        }
        for (int h = index; a->g->stops && h < p->key_heads; h += a->jobs)
            measure_keys(a->c, a->g, q, h);
    }
}
static void begin(struct call *c, int enc)
{
    struct arena a = { .base = c->mem.scratch[enc] };
    const loci_host *host = c->in->host;
    /* gates; below this, summing is faster than waking threads */
    const ptrdiff_t few = 1 << 15;
    struct gate_job job = {
        .c = c, .g = lay_out(c, enc, &a), .log_f = input(c, enc, GATE_LOG_F), .enc = enc, .jobs = 1
    };
    if (made(c, enc)) return; /* a cache has the sums of these keys */
    if (host && host->run && c->threads > 1 && c->B * gate_keys(c) * c->plan->heads > few) {
        job.jobs = c->threads;
        host->run(host->user, job.jobs, head_job, &job);
    } else {
        head_job(&job, 0);
    }
}

/* ---- In a cache ------------------------------------------------------------------------------ */

/* The memory that a cache needs.  With `stop` that is nothing, as the bounds
 * are computed for each call. */
static size_t cache_size(const struct call *c, int enc)
{
    struct gate_sums g;
    struct arena a = { 0 };
    if (gate_stops(c, enc)) return 0;
    lay_out_sums(c, &a, &g);
    return a.full ? SIZE_MAX : a.used;
}
/* Continues the sums of every entry, from the tile of key from[b] on,
 * which may not have been full. */
static void cache_update(const struct call *c, int enc, const int64_t *from)
{
    const struct loci_plan *p = c->plan;
    const struct loci_cache *cache = c->cache;
    const int tensor = p->first_tensor[enc] + GATE_LOG_F;
    const void *log_f = (const char *)cache + cache->input[tensor].at;
    struct gate_sums g = { .stops = false };
    lay_out_sums(c, &(struct arena){ .base = (char *)cache + cache->made[enc] }, &g);
    for (ptrdiff_t b = 0; b < c->B; b++) {
        const struct sequence q = {
            .b = b,
            .nk = (ptrdiff_t)cache_list(cache, cache->len)[b],
            .first_ktile = b * (ptrdiff_t)cache->form.tiles,
        };
        for (int h = 0; h < p->heads; h++)
            sum_keys(c, &g, &q, h, (ptrdiff_t)from[b] / KT, log_f, p->f64);
    }
}

/* ---- Gradient -------------------------------------------------------------------------------- */

/* Keys that no row sees have no gradient. */
static void end_keys(struct call *c, int enc)
{
    const struct loci_plan *p = c->plan;
    double *dlog_f = c->g.dtensor[p->first_tensor[enc] + GATE_LOG_F];
    const double *total = gate_total(c, enc);
    if (!dlog_f || !total) return;
    for (ptrdiff_t s = 0; s < c->seqs.n; s++) {
        const struct sequence *q = &c->seqs.list[s];
        const bool sums = sees_intervals(c, q);
        const ptrdiff_t seen = sums ? gate_newest(c, q, q->nq - 1) + 1 : q->nk;
        for (int h = 0; h < p->heads && q->nq; h++) {
            const ptrdiff_t first = (q->b * p->heads + h) * c->Lk + q->k0;
            double older = 0;
            gate_end_keys(total + first, dlog_f + first, seen, sums, &older);
        }
    }
}

const struct loci_pe loci_pe_fox = {
    .name = "fox",
    .cite = "Lin et al., ICLR 2025",
    .family = FAMILY_CONTENT,
    .brief = "S += sum of log f over the keys after j",
    .example = "fox",
    .places = LOCI_PLACE_SCORE,
    .causal_only = true,
    .tol = 5e-6,
    .opts = opts,
    .tensors = tensors,
    .terms = terms,
    .scratch = scratch,
    .begin = begin,
    .end_keys = end_keys,
    .cache = &(const struct encoding_cache){ cache_size, cache_update },
    .stream = &loci_fox_stream,
};
