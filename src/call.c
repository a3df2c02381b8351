/* SPDX-License-Identifier: MIT */
/* call.c -- from a public call to the engine's: everything is checked, sequences are found and the workspace is laid
 * out before anything is written. */
#include "cache.h"
#include "call.h"
#include "engine.h"
#include "tables.h"

static const int64_t far = (int64_t)1 << 40;      /* positions beyond are refused: differences stay exact */
enum { FEW_ROWS = 4, FEW_HEADS = 64 };            /* up to here, rows share one pass over the keys (one row always does) */

/* ---- Views --------------------------------------------------------------------------------------------- */

/* Largest offset that a view reaches, or -1 when it is not a legal view of that shape. */
static ptrdiff_t reach(const loci_view *v, ptrdiff_t B, ptrdiff_t H, ptrdiff_t L, ptrdiff_t width)
{
    ptrdiff_t a, b, c, sum;
    if (v->batch < 0 || v->head < 0 || v->row < 0) return -1;
    if (B == 0 || L == 0) return 0;
    if (__builtin_mul_overflow(B - 1, v->batch, &a) || __builtin_mul_overflow(H - 1, v->head, &b)
        || __builtin_mul_overflow(L - 1, v->row, &c) || __builtin_add_overflow(a, b, &sum)
        || __builtin_add_overflow(sum, c, &sum) || __builtin_add_overflow(sum, width, &sum) || sum > PTRDIFF_MAX / 8)
        return -1;
    return sum;
}

/* Resolves strides; an output must not meet itself, so that its rows can be written in any order. */
loci_status loci_open_view(const struct call *c, loci_view *to, const loci_view *from, const char *name, ptrdiff_t H,
                        ptrdiff_t L, ptrdiff_t width, bool output)
{
    loci_error *e = c->in->error;
    *to = *from;
    const bool dense = !to->batch && !to->head && !to->row;
    if (dense) {
        if (__builtin_mul_overflow(L, width, &to->head) || __builtin_mul_overflow(to->head, H, &to->batch))
            return loci_fail(e, LOCI_BAD_ARG, "%s: %td rows of %td in %td heads are too many numbers", name, L, width, H);
        to->row = width;
    }
    if (!to->data) return LOCI_OK;
    CHECK(e, (uintptr_t)to->data % c->plan->stored == 0, LOCI_BAD_ARG, "%s must start on a multiple of %zu bytes", name, c->plan->stored);
    CHECK(e, reach(to, c->B, H, L, width) >= 0, LOCI_BAD_ARG,
          "%s: strides %td, %td, %td are negative or reach too far", name, to->batch, to->head, to->row);
    if (output && !dense)
        CHECK(e, (c->B < 2 || to->batch >= width) && (H < 2 || to->head >= width) && (L < 2 || to->row >= width), LOCI_BAD_ARG,
              "%s: strides %td, %td, %td let rows of an output overlap", name, to->batch, to->head, to->row);
    return LOCI_OK;
}
/* One of reals, in the workspace. */
static loci_view dense(void *data, ptrdiff_t H, ptrdiff_t L, ptrdiff_t width)
{
    return (loci_view){ .data = data, .batch = H * L * width, .head = L * width, .row = width };
}
static loci_status need(const struct call *c, const void *p, const char *name)
{
    CHECK(c->in->error, p, LOCI_BAD_ARG, "%s must not be NULL", name);
    return LOCI_OK;
}
/* Do the bytes of two views meet?  An output, of numbers of `size` bytes, must not change what is still read. */
static bool meet(const struct call *c, const loci_view *a, ptrdiff_t Ha, ptrdiff_t La, ptrdiff_t wa, size_t size,
                 const loci_view *b, ptrdiff_t Bb, ptrdiff_t Hb, ptrdiff_t Lb, ptrdiff_t wb)
{
    if (!a->data || !b->data || !La || !Lb || !c->B) return false;
    const uintptr_t a0 = (uintptr_t)a->data, b0 = (uintptr_t)b->data;
    return a0 < b0 + (uintptr_t)reach(b, Bb, Hb, Lb, wb) * c->plan->stored
        && b0 < a0 + (uintptr_t)reach(a, c->B, Ha, La, wa) * size;
}

/* ---- Sequences ------------------------------------------------------------------------------------------- */

static bool consecutive_q(const struct call *c, ptrdiff_t b, ptrdiff_t i, ptrdiff_t n)
{
    if (!c->in->q_pos) return true;
    for (ptrdiff_t k = 1; k < n; k++)
        if ((uint64_t)pos_q(c, b, i + k) != (uint64_t)pos_q(c, b, i) + (uint64_t)k) return false;
    return true;
}
static bool consecutive_k(const struct call *c, ptrdiff_t b, ptrdiff_t j, ptrdiff_t n)
{
    if (!c->k_pos) return true;
    for (ptrdiff_t k = 1; k < n; k++)
        if ((uint64_t)pos_k(c, b, j + k) != (uint64_t)pos_k(c, b, j) + (uint64_t)k) return false;
    return true;
}

static ptrdiff_t tiles(ptrdiff_t n, ptrdiff_t of) { return n / of + (n % of > 0); }

static void add_sequence(struct call *c, ptrdiff_t b, ptrdiff_t q0, ptrdiff_t nq, ptrdiff_t k0, ptrdiff_t nk, bool segments)
{
    struct sequence *s = &c->seq[c->sequences++];
    *s = (struct sequence){ .b = b, .q0 = q0, .nq = nq, .k0 = k0, .nk = nk, .segments = segments,
                            .first_row = c->rows, .first_tile = c->tiles, .first_chunk = c->chunks, .first_ktile = c->ktiles };
    s->run = consecutive_q(c, b, q0, nq) && consecutive_k(c, b, k0, nk);
    if (s->run && nq && nk) s->d0 = (int64_t)((uint64_t)pos_q(c, b, q0) - (uint64_t)pos_k(c, b, k0));   /* checked later */
    c->rows += nq, c->tiles += tiles(nq, ROWS), c->chunks += tiles(nq, ROW_CHUNK), c->ktiles += tiles(c->cache ? c->Lk : nk, KT);      /* in a cache, places stay */
    if (nk > c->longest) c->longest = nk;
}

/* First and count of the neighbours from `i` on that share a segment. */
static ptrdiff_t run_q(const struct call *c, ptrdiff_t b, ptrdiff_t i)
{
    ptrdiff_t n = 1;
    while (i + n < c->Lq && seg_q(c, b, i + n) == seg_q(c, b, i)) n++;
    return n;
}
static ptrdiff_t run_k(const struct call *c, ptrdiff_t b, ptrdiff_t j)
{
    ptrdiff_t n = 1;
    while (j + n < c->Lk && seg_k(c, b, j + n) == seg_k(c, b, j)) n++;
    return n;
}

/* Segments that come as runs of neighbours, in the same order among rows and keys, are sequences of their own: their
 * tile grid starts at their first key, so a packed row has the bits it has alone.  False for any other segments.
 * With `add` false it only looks. */
static bool walk_runs(struct call *c, ptrdiff_t b, bool add)
{
    ptrdiff_t i = 0, j = 0;
    while (i < c->Lq || j < c->Lk) {
        while (j < c->Lk && seg_k(c, b, j) < 0) j += run_k(c, b, j);
        const bool padding = i < c->Lq && seg_q(c, b, i) < 0;
        const ptrdiff_t nq = i < c->Lq ? run_q(c, b, i) : 0;
        if (padding) {
            if (add) add_sequence(c, b, i, nq, 0, 0, false);
            i += nq;
            continue;
        }
        const ptrdiff_t nk = j < c->Lk ? run_k(c, b, j) : 0;
        if (nq && nk && seg_q(c, b, i) == seg_k(c, b, j)) {
            if (add) add_sequence(c, b, i, nq, j, nk, false);
            i += nq, j += nk;
        } else if (nk && (!nq || seg_k(c, b, j) < seg_q(c, b, i))) {
            if (add) add_sequence(c, b, c->Lq, 0, j, nk, false);      /* keys that no row asks for */
            j += nk;
        } else {
            if (add) add_sequence(c, b, i, nq, 0, 0, false);
            i += nq;
        }
    }
    return true;
}
/* Do the runs come with rising ids on both sides (padding aside)?  Then equal ids meet once and nothing is missed. */
static bool rising(const struct call *c, ptrdiff_t b)
{
    int64_t last = -1;
    for (ptrdiff_t i = 0; i < c->Lq; i += run_q(c, b, i))
        if (seg_q(c, b, i) >= 0) {
            if (seg_q(c, b, i) <= last) return false;
            last = seg_q(c, b, i);
        }
    last = -1;
    for (ptrdiff_t j = 0; j < c->Lk; j += run_k(c, b, j))
        if (seg_k(c, b, j) >= 0) {
            if (seg_k(c, b, j) <= last) return false;
            last = seg_k(c, b, j);
        }
    return true;
}
static void find_sequences(struct call *c)
{
    const int64_t *qs = c->in->q_starts, *ks = c->in->k_starts;
    c->sequences = c->rows = c->tiles = c->chunks = c->ktiles = c->longest = 0;
    for (ptrdiff_t s = 0; qs && s < c->in->sequences; s++) add_sequence(c, 0, qs[s], qs[s + 1] - qs[s], ks[s], ks[s + 1] - ks[s], false);
    if (qs) return;
    for (ptrdiff_t b = 0; b < c->B; b++) {
        if (!c->in->q_seg) add_sequence(c, b, 0, c->Lq, 0, keys_in(c, b), false);
        else if (rising(c, b)) walk_runs(c, b, true);
        else add_sequence(c, b, 0, c->Lq, 0, c->Lk, true);
    }
}

static loci_status check_starts(const struct call *c, const int64_t *starts, ptrdiff_t len, const char *name)
{
    const ptrdiff_t n = c->in->sequences;
    loci_error *e = c->in->error;
    if (!starts) return LOCI_OK;
    CHECK(e, starts[0] == 0, LOCI_BAD_ARG, "%s: the first start is %lld, but must be 0", name, (long long)starts[0]);
    for (ptrdiff_t s = 0; s < n; s++)
        CHECK(e, starts[s + 1] >= starts[s], LOCI_BAD_ARG, "%s: start %td is %lld, below the %lld before it; starts must not fall", name, s + 1,
              (long long)starts[s + 1], (long long)starts[s]);
    CHECK(e, starts[n] == len, LOCI_BAD_ARG, "%s: the last start, number %td, is %lld, but must be the number of rows, %td", name, n,
          (long long)starts[n], len);
    return LOCI_OK;
}
/* Each sequence has keys 0 .. and the last of them as queries; without keys its rows count from 0. */
static void fill_positions(const struct call *c, int64_t *q_pos, int64_t *k_pos)
{
    const int64_t *qs = c->in->q_starts, *ks = c->in->k_starts;
    for (ptrdiff_t s = 0; s < c->in->sequences; s++) {
        const int64_t nq = qs[s + 1] - qs[s], nk = ks[s + 1] - ks[s];
        for (int64_t i = 0; i < nq; i++) q_pos[qs[s] + i] = nk ? nk - nq + i : i;
        for (int64_t j = 0; j < nk; j++) k_pos[ks[s] + j] = j;
    }
}

/* Distances that visible pairs can have must lie within what the tables were prepared for. */
static loci_status check_positions(const struct call *c)
{
    const struct loci_plan *p = c->plan;
    loci_error *e = c->in->error;
    for (ptrdiff_t s = 0; s < c->sequences; s++) {
        const struct sequence *q = &c->seq[s];
        int64_t qlow = INT64_MAX, qhigh = INT64_MIN, klow = INT64_MAX, khigh = INT64_MIN;
        if (!q->nq || !q->nk) continue;
        for (ptrdiff_t i = 0; i < q->nq; i += q->run && q->nq > 1 ? q->nq - 1 : 1) {
            const int64_t x = pos_q(c, q->b, q->q0 + i);
            CHECK(e, x >= -far && x <= far, LOCI_BAD_ARG, "q_pos: position %lld must lie within 2^40", (long long)x);
            if (x < qlow) qlow = x;
            if (x > qhigh) qhigh = x;
        }
        for (ptrdiff_t j = 0; j < q->nk; j += q->run && q->nk > 1 ? q->nk - 1 : 1) {
            const int64_t x = pos_k(c, q->b, q->k0 + j);
            CHECK(e, x >= -far && x <= far, LOCI_BAD_ARG, "k_pos: position %lld must lie within 2^40", (long long)x);
            if (x < klow) klow = x;
            if (x > khigh) khigh = x;
        }
        int64_t most = qhigh - klow, ahead = p->full ? khigh - qlow : 0;
        if (most > p->window_left) most = p->window_left;
        if (ahead > p->window_right) ahead = p->window_right;
        if (ahead > most) most = ahead;
        CHECK(e, most <= c->range, LOCI_BAD_ARG, "distances up to %lld occur, but the tables were prepared for %lld",
              (long long)most, (long long)c->range);
    }
    return LOCI_OK;
}

static loci_status check_axis(const struct call *c, const double *x, ptrdiff_t len, const char *name)
{
    const ptrdiff_t n = x ? (c->in->per_batch ? c->B : 1) * c->plan->axes * len : 0;
    for (ptrdiff_t i = 0; i < n; i++)
        CHECK(c->in->error, fabs(x[i]) <= (double)far, LOCI_BAD_ARG, "%s: coordinate %g must lie within 2^40", name, x[i]);
    return LOCI_OK;
}
static loci_status check_coordinates(const struct call *c)
{
    const loci_status status = check_axis(c, c->in->q_coord, c->Lq, "q_coord");
    return status ? status : check_axis(c, c->k_coord, c->Lk, "k_coord");
}

/* ---- Workspace ------------------------------------------------------------------------------------------- */

static size_t most_sequences(const struct call *c)
{
    if (c->in->q_starts) return (size_t)c->in->sequences;
    if (!c->in->q_seg) return (size_t)c->B;
    return (size_t)c->B * (size_t)(c->Lq + c->Lk + 1);       /* runs of one row each */
}
/* And most tiles of keys. */
static ptrdiff_t most_ktiles(const struct call *c)
{
    if (c->in->q_starts) return c->Lk / KT + (c->in->sequences < c->Lk ? c->in->sequences : c->Lk);
    return c->in->q_seg ? c->B * c->Lk : c->B * tiles(c->Lk, KT);
}
/* Lays out the workspace; with base NULL it only measures, for the worst contents that these shapes can have. */
static size_t carve(struct call *c, char *base, bool backward)
{
    const struct loci_plan *p = c->plan;
    const struct engine *engine = p->engine;
    struct arena a = { .base = base };
    const ptrdiff_t rows = c->B * c->Lk;
    c->backward = backward;
    void *seq = take_bytes(&a, most_sequences(c), sizeof(struct sequence));
    if (c->in->q_starts && !c->in->q_pos) {
        int64_t *pos = take_bytes(&a, (size_t)(c->Lq + c->Lk), sizeof *pos);
        if (base) fill_positions(c, pos, pos + c->Lq), c->q_pos = pos, c->k_pos = pos + c->Lq;
    }
    if (base) {
        c->seq = seq;
        find_sequences(c);
    } else {
        c->longest = c->Lk;
        c->ktiles = most_ktiles(c);
    }
    const ptrdiff_t longest = c->longest;
    const bool linear = p->stage == LOCI_LINEAR_ATTENTION;
    for (int e = 0; e < p->encs; e++) {
        const struct loci_pe *pe = p->enc[e].pe;
        c->scratch[e] = pe->scratch ? take_bytes(&a, pe->scratch(c, e), 1) : NULL;
    }
    if (p->rotate >= 0 && !linear && (!p->keys_rotated || p->use[p->rotate].term == TERM_fading_pairs))
        c->turned = take_bytes(&a, (size_t)rows, (size_t)(p->key_heads * p->dim) * p->real);
    if (!linear && engine->skips(c)) c->knorm = take_bytes(&a, (size_t)most_ktiles(c), sizeof(float) * (size_t)p->key_heads);
    if (backward) {
        bool learns = false;
        for (int x = 0; x < p->uses; x++) {
            const ptrdiff_t total = engine->total(c, x);
            if (!total) continue;
            if (x == p->rotate) learns = true;
            c->total[x] = take_bytes(&a, (size_t)total, sizeof(double));
        }
        for (int i = 0; i < p->tensors.n; i++) {
            ptrdiff_t n = 1;
            const loci_tensor *t = &p->tensors.list[i];
            for (int k = 0; k < t->rank; k++)
                n *= t->shape[k] == LOCI_DIM_BATCH ? c->B : t->shape[k] == LOCI_DIM_QUERIES ? c->Lq : t->shape[k] == LOCI_DIM_KEYS ? c->Lk : t->shape[k];
            c->dtensor_count[i] = n;
            c->dtensor[i] = take_bytes(&a, (size_t)n, sizeof(double));
        }
        const bool apart = p->stored != p->real;
        if ((learns || apart) && !linear) c->dk_sum = take_bytes(&a, (size_t)rows, (size_t)(p->key_heads * p->dim) * p->real);
        if (apart && !linear) c->dv_sum = take_bytes(&a, (size_t)rows, (size_t)(p->kv_heads * p->value_dim) * p->real);
    }
    c->longest = c->Lk;                           /* the desk's size depends on shapes only */
    if (linear) {
        c->linear.seen = take_bytes(&a, (size_t)c->B * (size_t)c->Lq, sizeof *c->linear.seen);
        if (backward) c->linear.den = take_bytes(&a, (size_t)(c->B * c->Lq), (size_t)p->heads * p->real);
        c->desk = engine->linear_desk(c, backward);
    } else {
        c->kept = take_bytes(&a, engine->kept(c), p->real);
        c->desk = engine->desk(c, backward);
    }
    if (c->desk == SIZE_MAX) return SIZE_MAX;
    c->desks = take_bytes(&a, (size_t)c->threads, c->desk);
    c->longest = longest;
    return a.full ? SIZE_MAX : a.used ? a.used : 64;
}

/* ---- Checks that all calls share --------------------------------------------------------------------------- */

/* Keys and values in a cache take the place of k, v, k_len and k_lens, which are those of append(). */
static loci_status open_cache(struct call *c)
{
    const loci_call *in = c->in;
    const struct loci_cache *cache = in->cache;
    loci_error *e = in->error;
    const loci_status status = loci_cache_check(c->plan, cache, e);
    if (status) return status;
    CHECK(e, in->batch == cache->form.batch, LOCI_BAD_ARG, "batch %td is not that of the cache, %lld", in->batch, (long long)cache->form.batch);
    CHECK(e, !in->pages, LOCI_BAD_ARG, "pages and a cache exclude each other");
    CHECK(e, !cache->placed || in->q_pos, LOCI_BAD_ARG, "q_pos must be given, as the cache's keys have positions of their own");
    c->cache = cache;
    c->Lk = cache_room(cache);
    c->lens = cache_list(cache, cache->kept), c->firsts = cache_list(cache, cache->base);
    if (cache->placed) c->k_pos = cache_list(cache, cache->pos), c->k_pos_entry = cache_capacity(cache);
    for (int i = 0; i < c->plan->tensors.n; i++)
        if (cache->input[i].at) c->input[i] = (const char *)cache + cache->input[i].at;
    return LOCI_OK;
}
/* Does a ring still hold all that the rows see? */
static loci_status check_ring(const struct call *c)
{
    for (ptrdiff_t b = 0; b < c->B && c->cache && c->cache->form.ring; b++) {
        const int64_t len = cache_list(c->cache, c->cache->len)[b], oldest = cache_oldest(c->cache, b);
        CHECK(c->in->error, oldest == 0 || len - c->Lq - c->plan->window_left >= oldest, LOCI_BAD_ARG,
              "the ring holds keys from %lld on, and the first of %td rows sees one before", (long long)oldest, c->Lq);
    }
    return LOCI_OK;
}

/* wide: not row by row, however few there are. */
loci_status loci_open_call(struct call *c, const loci_plan *p, const loci_call *in, bool wide)
{
    loci_error *e = in->error;
    *c = (struct call){ .plan = p, .in = in, .B = in->batch, .Lq = in->q_len, .Lk = in->k_len, .lens = in->k_lens, .q_pos = in->q_pos, .k_pos = in->k_pos,
                        .k_pos_entry = in->per_batch ? in->k_len : 0, .k_coord = in->cache ? NULL : in->k_coord };
    for (int i = 0; i < p->tensors.n && in->tensors; i++) c->input[i] = in->tensors[i];
    CHECK(e, in->size == 0 || in->size == sizeof(loci_call), LOCI_BAD_ARG, "loci_call: size %zu must be 0 or %zu", in->size, sizeof(loci_call));
    CHECK(e, in->batch >= 0 && in->q_len >= 0 && in->k_len >= 0, LOCI_BAD_ARG, "batch %td, q_len %td and k_len %td must not be negative",
          in->batch, in->q_len, in->k_len);
    const ptrdiff_t most = (ptrdiff_t)1 << 48, longer = in->q_len > in->k_len ? in->q_len : in->k_len;
    ptrdiff_t n = p->heads;
    CHECK(e, !__builtin_mul_overflow(n, in->batch ? in->batch : 1, &n)
             && !__builtin_mul_overflow(n, longer ? longer : 1, &n)
             && !__builtin_mul_overflow(n, p->dim + p->value_dim + 1, &n) && n < most,
          LOCI_BAD_ARG, "batch %td, %d heads and length %td make too many numbers", in->batch, p->heads, longer);
    CHECK(e, in->cache || !in->q_pos == !in->k_pos, LOCI_BAD_ARG, "q_pos and k_pos must be given together");
    CHECK(e, !in->q_seg || (!in->k_lens && !in->cache), LOCI_BAD_ARG, "segments exclude k_lens and a cache");
    for (ptrdiff_t b = 0; b < c->B && c->lens && in->k_len; b++)
        CHECK(e, c->lens[b] >= 0 && c->lens[b] <= in->k_len, LOCI_BAD_ARG, "k_lens: entry %td has %lld keys, and k_len is %td", b,
              (long long)c->lens[b], in->k_len);
    if (in->cache) TRY(open_cache(c));
    CHECK(e, !in->q_seg == !in->k_seg, LOCI_BAD_ARG, "q_seg and k_seg must be given together");
    CHECK(e, !in->q_starts == !in->k_starts, LOCI_BAD_ARG, "q_starts and k_starts must be given together");
    CHECK(e, !in->q_starts || !in->q_seg, LOCI_BAD_ARG, "sequences have q_starts and k_starts or q_seg and k_seg, not both");
    CHECK(e, !in->q_starts || (!in->k_lens && !in->pages && !in->cache), LOCI_BAD_ARG, "q_starts and k_starts exclude k_lens, pages and a cache");
    CHECK(e, !in->q_starts || in->batch == 1, LOCI_BAD_ARG, "batch %td must be 1: with q_starts and k_starts the sequences follow one another", in->batch);
    CHECK(e, in->sequences >= 0 && in->sequences < most, LOCI_BAD_ARG, "sequences %td must be the number of sequences", in->sequences);
    CHECK(e, in->q_starts || !in->sequences, LOCI_BAD_ARG, "sequences is %td, but q_starts and k_starts are NULL", in->sequences);
    c->threads = in->host && in->host->run ? in->host->threads : 1;
    CHECK(e, c->threads >= 1 && c->threads <= MAX_THREADS, LOCI_BAD_ARG, "host: threads %d must be 1 .. %d", c->threads, MAX_THREADS);
    c->narrow = !wide && (in->q_len == 1 || (in->q_len <= FEW_ROWS && in->q_len * (p->mix >= 0 ? p->heads : p->group) <= FEW_HEADS));
    c->fast = p->fast && !wide && !c->narrow;
    return LOCI_OK;
}
/* Those of encoding e that have a row for each of LOCI_DIM_QUERIES, or LOCI_DIM_KEYS, are wanted; 0: all. */
static loci_status check_inputs(const struct call *c, int e, ptrdiff_t rows)
{
    const struct loci_plan *p = c->plan;
    for (int i = p->first_tensor[e]; i < p->first_tensor[e + 1]; i++) {
        const loci_tensor *t = &p->tensors.list[i];
        bool wanted = !rows;
        for (int k = 0; k < t->rank; k++) wanted |= t->shape[k] == rows;
        if (t->role == LOCI_INPUT && wanted)
            CHECK(c->in->error, c->input[i], LOCI_BAD_ARG, "%s: input tensor '%s' must be given with the call",
                  t->encoding, t->name);
    }
    return LOCI_OK;
}
loci_status loci_open_tables(struct call *c, const void *tables)
{
    const loci_status status = loci_check_tables(c->plan, tables, c->in->error);
    if (status) return status;
    for (int e = 0; e < c->plan->encs; e++) c->table[e] = loci_table_of(tables, c->plan, e);
    c->range = loci_table_range(tables);
    return LOCI_OK;
}
loci_status loci_open_work(struct call *c, void *work, bool backward)
{
    CHECK(c->in->error, work && (uintptr_t)work % 64 == 0, LOCI_BAD_ARG, "work must not be NULL and must start on 64 bytes");
    CHECK(c->in->error, carve(c, NULL, backward) != SIZE_MAX, LOCI_BAD_ARG, "the shapes need more memory than there can be");
    TRY(check_starts(c, c->in->q_starts, c->Lq, "q_starts"));
    TRY(check_starts(c, c->in->k_starts, c->Lk, "k_starts"));
    c->knorm = NULL, c->dk_sum = c->dv_sum = NULL;
    carve(c, work, backward);
    return LOCI_OK;
}

static bool plan_ok(const loci_plan *p, loci_stage stage) { return p && p->magic == PLAN_MAGIC && p->stage == stage; }

/* ---- Attention ----------------------------------------------------------------------------------------------- */

static size_t workspace_of(const loci_plan *p, const loci_call *in, int backward)
{
    size_t most = 0;
    /* Every pass that the caller may then make. */
    const struct { bool pass, backward, wide; } passes[] = { { true, false, false }, { p->rotate >= 0 || in->cache, false, true }, { backward, true, true } };
    for (int i = 0; i < COUNT(passes); i++) {
        struct call c;
        if (!passes[i].pass) continue;
        if (loci_open_call(&c, p, in, passes[i].wide)) return 0;
        if (p->stage == LOCI_EMBED) return loci_embed_workspace(p, in);
        const size_t n = carve(&c, NULL, passes[i].backward);
        if (n == SIZE_MAX || n > PTRDIFF_MAX) return 0;
        if (n > most) most = n;
    }
    return most;
}

size_t loci_workspace(const loci_plan *p, const loci_call *in, int backward)
{
    if (!p || !in || p->magic != PLAN_MAGIC) return 0;
    size_t most = workspace_of(p, in, backward);
    if (!in->cache || !most) return most;
    loci_call fewer = *in;               /* with a cache, calls of fewer rows share it; those that go row by row may want more */
    for (fewer.q_len = 1; fewer.q_len < in->q_len && fewer.q_len <= FEW_ROWS; fewer.q_len++) {
        const size_t n = workspace_of(p, &fewer, backward);
        if (n > most) most = n;
    }
    return most;
}

/* Pages that are in use must be numbers of pages: then there are `entries` of `length` keys. */
static loci_status check_pages(const struct call *c, ptrdiff_t *entries, ptrdiff_t *length)
{
    const loci_pages *p = c->in->pages;
    loci_error *e = c->in->error;
    CHECK(e, p->length >= 1, LOCI_BAD_ARG, "pages: length %td must be at least 1", p->length);
    CHECK(e, p->table || !c->B || !c->Lk, LOCI_BAD_ARG, "pages: table must not be NULL");
    *entries = 0, *length = p->length;
    for (ptrdiff_t b = 0; b < c->B; b++) {
        const ptrdiff_t n = tiles(keys_in(c, b), p->length);
        CHECK(e, n == 0 || c->B == 1 || p->entry >= n, LOCI_BAD_ARG, "pages: entry %td is less than the %td pages of batch entry %td", p->entry, n, b);
        for (ptrdiff_t i = 0; i < n; i++) {
            const int32_t page = p->table[b * p->entry + i];
            CHECK(e, page >= 0, LOCI_BAD_ARG, "pages: page %td of batch entry %td is %d, which is no page", i, b, (int)page);
            if (page >= *entries) *entries = (ptrdiff_t)page + 1;
        }
    }
    return LOCI_OK;
}
static loci_status open_keys(struct call *c, loci_view *to, const loci_view *from, const char *name, ptrdiff_t width, ptrdiff_t entries, ptrdiff_t length)
{
    struct call pages = *c;
    pages.B = entries;
    return loci_open_view(&pages, to, from, name, c->plan->kv_heads, length, width, false);
}

/* past: keys that a state holds. */
static loci_status open_attention(struct call *c, const loci_plan *p, loci_stage stage, const void *tables, void *work, const loci_call *in,
                                  bool backward, ptrdiff_t past)
{
    CHECK(in->error, plan_ok(p, stage), LOCI_BAD_ARG, "the plan must be one for stage %s",
          stage == LOCI_ATTENTION ? "ATTENTION" : "LINEAR_ATTENTION");
    TRY(loci_open_call(c, p, in, backward));
    c->linear.past = past;
    TRY(loci_open_view(c, &c->q, &in->q, "q", p->heads, c->Lq, p->dim, false));
    ptrdiff_t entries = c->B, length = c->Lk;                        /* of k and v: as they lie in memory */
    CHECK(in->error, stage == LOCI_ATTENTION || (!in->pages && !in->cache && !in->k_lens), LOCI_BAD_ARG,
          "linear attention keeps a state: it takes no pages, no k_lens and no cache");
    CHECK(in->error, !backward || (!in->pages && !in->cache), LOCI_BAD_ARG, "gradients need keys and values in one piece: no pages and no cache");
    if (in->pages) TRY(check_pages(c, &entries, &length));
    if (!c->cache) {
        TRY(open_keys(c, &c->k, &in->k, "k", p->dim, entries, length));
        TRY(open_keys(c, &c->v, &in->v, "v", p->value_dim, entries, length));
    }
    TRY(check_ring(c));
    TRY(loci_open_view(c, &c->o, &in->o, "o", p->heads, c->Lq, p->value_dim, true));
    const bool rows = c->B && c->Lq, keys = c->B && c->Lk && !c->cache;
    if (rows) { TRY(need(c, c->q.data, "q")); TRY(need(c, c->o.data, "o")); }
    if (keys) { TRY(need(c, c->k.data, "k")); TRY(need(c, c->v.data, "v")); }
    CHECK(in->error, !in->ae || p->states, LOCI_BAD_ARG, "ae: the encoding has no states whose average it could be");
    loci_view ae = { .data = in->ae };
    TRY(loci_open_view(c, &ae, &ae, "ae", p->heads, c->Lq, p->dim, true));
    CHECK(in->error, p->axes == 1 || (in->q_coord && (in->k_coord || c->cache)), LOCI_BAD_ARG, "q_coord and k_coord must be given: the encoding has %d axes", p->axes);
    if (!backward) {
        const loci_view *from[] = { &c->q, &c->k, &c->v };
        const ptrdiff_t B[] = { c->B, entries, entries }, H[] = { p->heads, p->kv_heads, p->kv_heads }, L[] = { c->Lq, length, length };
        const ptrdiff_t W[] = { p->dim, p->dim, p->value_dim };
        for (int i = 0; i < 3; i++) {
            CHECK(in->error, !meet(c, &c->o, p->heads, c->Lq, p->value_dim, p->stored, from[i], B[i], H[i], L[i], W[i]), LOCI_BAD_ARG,
                  "o must not overlap q, k or v");
            CHECK(in->error, !meet(c, &ae, p->heads, c->Lq, p->dim, p->real, from[i], B[i], H[i], L[i], W[i]), LOCI_BAD_ARG,
                  "ae must not overlap q, k or v");
        }
    }
    for (int e = 0; e < p->encs; e++) TRY(check_inputs(c, e, 0));
    if (p->rotate >= 0) TRY(check_coordinates(c));
    TRY(loci_open_tables(c, tables));
    TRY(loci_open_work(c, work, backward));
    TRY(check_positions(c));
    for (int e = 0; e < p->encs; e++)
        if (p->enc[e].pe->accept) TRY(p->enc[e].pe->accept(c, e));
    return LOCI_OK;
}

/* begin() of the rotation, then the keys, then begin() of the others, which may read turned keys. */
void loci_begin(struct call *c, bool keys)
{
    const struct loci_plan *p = c->plan;
    const int rotation = p->rotate >= 0 ? p->use[p->rotate].enc : -1;
    if (rotation >= 0 && p->enc[rotation].pe->begin) p->enc[rotation].pe->begin(c, rotation);
    if (!keys) return;
    p->engine->keys(c);
    for (int e = 0; e < p->encs; e++)
        if (e != rotation && p->enc[e].pe->begin) p->enc[e].pe->begin(c, e);
}
static void end(struct call *c)
{
    for (int e = 0; e < c->plan->encs; e++)
        if (c->plan->enc[e].pe->end) c->plan->enc[e].pe->end(c, e);
}

loci_status loci_forward(const loci_plan *p, const void *tables, void *work, const loci_call *in)
{
    struct call c;
    if (!in) return LOCI_BAD_ARG;
    TRY(open_attention(&c, p, LOCI_ATTENTION, tables, work, in, false, 0));
    if (!c.B || !c.Lq) return LOCI_OK;
    loci_begin(&c, true);
    const loci_status status = c.fast ? p->engine->fast(&c) : p->engine->forward(&c);
    return status ? loci_fail(in->error, status, "cancelled by the host") : LOCI_OK;
}

/* Sums of parts become gradients of tensors, are rounded once and written. */
static void fold(struct call *c, void *const *out)
{
    const struct loci_plan *p = c->plan;
    end(c);
    for (int e = 0; e < p->encs; e++) {
        const int first = p->first_tensor[e], n = p->first_tensor[e + 1] - first;
        const double *totals[MAX_USES];
        const void *data[MAX_TENSORS];
        int uses = 0;
        for (int x = 0; x < p->uses; x++)
            if (p->use[x].enc == e) totals[uses++] = c->total[x];
        for (int i = 0; i < n; i++) data[i] = c->input[first + i];
        const struct prep prep = { .cfg = &p->enc[e], .tensor = p->tensors.list + first, .data = data, .f64 = p->f64, .range = c->range,
                                   .table = (void *)c->table[e], .dtable = totals, .dtensor = c->dtensor + first };
        if (p->enc[e].pe->fold) p->enc[e].pe->fold(&prep);
        for (int i = 0; i < n; i++) {
            if (!out || !out[first + i]) continue;
            for (ptrdiff_t k = 0; k < c->dtensor_count[first + i]; k++) store_real(out[first + i], p->f64, k, c->dtensor[first + i][k]);
        }
    }
}

/* Keeps the totals and gradients that somebody wants, zeroed; NULL for the others. */
static void want(struct call *c, void *const *out)
{
    const struct loci_plan *p = c->plan;
    for (int e = 0; e < p->encs; e++) {
        bool any = false;
        for (int i = p->first_tensor[e]; i < p->first_tensor[e + 1]; i++) {
            if (!out || !out[i]) c->dtensor[i] = NULL;
            else any = true, memset(c->dtensor[i], 0, sizeof(double) * (size_t)c->dtensor_count[i]);
        }
        for (int x = 0; x < p->uses; x++) {
            if (p->use[x].enc != e || !c->total[x]) continue;
            if (!any) c->total[x] = NULL;
            else memset(c->total[x], 0, sizeof(double) * (size_t)p->engine->total(c, x));
        }
    }
}

static loci_status check_grad(const loci_call *in, const loci_grad *grad)
{
    CHECK(in->error, grad, LOCI_BAD_ARG, "grad must not be NULL");
    CHECK(in->error, grad->size == 0 || grad->size == sizeof(loci_grad), LOCI_BAD_ARG, "loci_grad: size %zu must be 0 or %zu", grad->size, sizeof(loci_grad));
    return LOCI_OK;
}
static loci_status grad_views(struct call *c)
{
    const struct loci_plan *p = c->plan;
    const loci_grad *grad = c->grad;
    TRY(loci_open_view(c, &c->dout, &grad->dout, "dout", p->heads, c->Lq, p->value_dim, false));
    TRY(loci_open_view(c, &c->dq, &grad->dq, "dq", p->heads, c->Lq, p->dim, true));
    TRY(loci_open_view(c, &c->dk, &grad->dk, "dk", p->kv_heads, c->Lk, p->dim, true));
    return loci_open_view(c, &c->dv, &grad->dv, "dv", p->kv_heads, c->Lk, p->value_dim, true);
}

loci_status loci_backward(const loci_plan *p, const void *tables, void *work, const loci_call *in, const loci_grad *grad)
{
    struct call c;
    if (!in) return LOCI_BAD_ARG;
    TRY(check_grad(in, grad));
    TRY(open_attention(&c, p, LOCI_ATTENTION, tables, work, in, true, 0));
    c.grad = grad;
    TRY(grad_views(&c));
    const bool stick = p->weight >= 0;
    CHECK(in->error, stick || !c.B || !c.Lq || in->lse, LOCI_BAD_ARG, "lse must be the one that loci_forward wrote");
    CHECK(in->error, !stick || !c.B || !c.Lq || in->rem, LOCI_BAD_ARG, "rem must be the one that loci_forward wrote");
    CHECK(in->error, !grad->dlse || !stick, LOCI_BAD_ARG, "dlse: these weights have no log of a sum");
    CHECK(in->error, !grad->drem || stick, LOCI_BAD_ARG, "drem: a softmax leaves no remainder");
    CHECK(in->error, !grad->dae || p->states, LOCI_BAD_ARG, "dae: the encoding has no states whose average it could be the gradient of");
    CHECK(in->error, !grad->dae || !c.B || !c.Lq || in->ae, LOCI_BAD_ARG, "ae must be the one that loci_forward wrote, as dae is given");
    want(&c, grad->dtensors);
    const bool apart = p->stored != p->real;
    if (apart || p->key_heads != p->kv_heads) c.dk_out = c.dk, c.dk.data = NULL;
    if (!c.dk.data && (c.dk_out.data || (p->rotate >= 0 && c.total[p->rotate])))
        c.dk = dense(c.dk_sum, p->key_heads, c.Lk, p->dim);
    if (apart && c.dv.data) c.dv_out = c.dv, c.dv = dense(c.dv_sum, p->kv_heads, c.Lk, p->value_dim);
    loci_begin(&c, true);
    const loci_status status = p->engine->backward(&c);
    if (status) return loci_fail(in->error, status, "cancelled by the host");
    fold(&c, grad->dtensors);
    p->engine->store_gradients(&c);
    return LOCI_OK;
}

/* ---- Linear attention ------------------------------------------------------------------------------------------ */

/* What a state begins with, on a line of its own. */
struct state { uint64_t magic; int64_t keys, batch, kv_heads, dim, value_dim, real; };
enum { STATE_MAGIC = 0x6c6f7369, STATE_HEAD = 64 };
_Static_assert(sizeof(struct state) <= STATE_HEAD, "the sums start 64 bytes behind");

static struct state state_of(const loci_plan *p, ptrdiff_t batch, int64_t keys)
{
    return (struct state){ STATE_MAGIC, keys, batch, p->kv_heads, p->dim, p->value_dim, (int64_t)p->real };
}

size_t loci_linear_state(const loci_plan *p, ptrdiff_t batch)
{
    size_t n;
    if (!plan_ok(p, LOCI_LINEAR_ATTENTION) || batch < 0) return 0;
    if (__builtin_mul_overflow((size_t)batch, (size_t)p->kv_heads * p->engine->linear_state(p), &n) || n > PTRDIFF_MAX - STATE_HEAD) return 0;
    return STATE_HEAD + n;
}
static loci_status check_states(const loci_plan *p, const loci_call *in, const struct state *before, const void *after)
{
    loci_error *e = in->error;
    CHECK(e, loci_linear_state(p, in->batch), LOCI_BAD_ARG, "batch %td has no state in a plan for stage LINEAR_ATTENTION", in->batch);
    CHECK(e, (uintptr_t)before % STATE_HEAD == 0 && (uintptr_t)after % STATE_HEAD == 0, LOCI_BAD_ARG, "states must start on %d bytes", STATE_HEAD);
    CHECK(e, !before || before->magic == STATE_MAGIC, LOCI_BAD_ARG, "before is no state; loci_linear_forward() fills them");
    if (before) {
        const struct state like = state_of(p, in->batch, before->keys);
        CHECK(e, !memcmp(before, &like, sizeof like) && like.keys >= 0, LOCI_BAD_ARG, "before is the state of another plan or batch");
    }
    CHECK(e, (!before && !after) || (!in->q_seg && !in->k_seg && !in->q_starts && !in->k_starts), LOCI_BAD_ARG,
          "a state is of one sequence: with it q_seg, k_seg, q_starts and k_starts must be NULL");
    CHECK(e, !before || in->k_len <= INT64_MAX / 2 - before->keys, LOCI_BAD_ARG, "k_len %td is too large for this state", in->k_len);
    return LOCI_OK;
}

/* With a causal mask rows see the first keys of their sequence, the later ones no fewer. */
static loci_status check_order(const struct call *c)
{
    loci_error *e = c->in->error;
    for (ptrdiff_t s = 0; s < c->sequences; s++) {
        const struct sequence *q = &c->seq[s];
        CHECK(e, !q->segments, LOCI_BAD_ARG, "linear attention wants segments as runs of neighbours, in rising order on both sides");
        if (q->run || c->plan->full) continue;
        for (ptrdiff_t i = 1; i < q->nq; i++)
            CHECK(e, pos_q(c, q->b, q->q0 + i) >= pos_q(c, q->b, q->q0 + i - 1), LOCI_BAD_ARG,
                  "q_pos: linear attention wants positions that do not fall, and that of row %td does", q->q0 + i);
        for (ptrdiff_t j = 1; j < q->nk; j++)
            CHECK(e, pos_k(c, q->b, q->k0 + j) >= pos_k(c, q->b, q->k0 + j - 1), LOCI_BAD_ARG,
                  "k_pos: linear attention wants positions that do not fall, and that of key %td does", q->k0 + j);
    }
    return LOCI_OK;
}
static void find_seen(struct call *c)
{
    for (ptrdiff_t s = 0; s < c->sequences; s++) {
        const struct sequence *q = &c->seq[s];
        ptrdiff_t j = 0;
        for (ptrdiff_t i = 0; i < q->nq; i++) {
            while (j < q->nk && (c->plan->full || pos_k(c, q->b, q->k0 + j) <= pos_q(c, q->b, q->q0 + i))) j++;
            c->linear.seen[q->b * c->Lq + q->q0 + i] = j;
        }
    }
}
static loci_status open_linear(struct call *c, const loci_plan *p, const void *tables, void *work, const loci_call *in, bool backward, ptrdiff_t past)
{
    TRY(open_attention(c, p, LOCI_LINEAR_ATTENTION, tables, work, in, backward, past));
    CHECK(in->error, !in->lse && !in->rem, LOCI_BAD_ARG, "lse and rem must be NULL: linear attention has neither");
    return check_order(c);
}

loci_status loci_linear_forward(const loci_plan *p, const void *tables, void *work, const loci_call *in, const void *before, void *after)
{
    struct call c;
    const struct state *old = before;
    if (!in) return LOCI_BAD_ARG;
    CHECK(in->error, plan_ok(p, LOCI_LINEAR_ATTENTION), LOCI_BAD_ARG, "the plan must be one for stage LINEAR_ATTENTION");
    TRY(check_states(p, in, old, after));
    const ptrdiff_t past = old ? (ptrdiff_t)old->keys : 0;
    TRY(open_linear(&c, p, tables, work, in, false, past));
    const struct state now = state_of(p, c.B, past + c.Lk);
    c.linear.before = old ? (const char *)before + STATE_HEAD : NULL;
    c.linear.after = after ? (char *)after + STATE_HEAD : NULL;
    find_seen(&c);
    loci_begin(&c, false);
    if (after) memset(after, 0, STATE_HEAD);     /* no state, should the call be cancelled */
    const loci_status status = p->engine->linear(&c);
    if (status) return loci_fail(in->error, status, "cancelled by the host");
    if (after) memcpy(after, &now, sizeof now);
    return LOCI_OK;
}

loci_status loci_linear_backward(const loci_plan *p, const void *tables, void *work, const loci_call *in, const loci_grad *grad)
{
    struct call c;
    if (!in) return LOCI_BAD_ARG;
    TRY(check_grad(in, grad));
    TRY(open_linear(&c, p, tables, work, in, true, 0));
    c.grad = grad;
    TRY(grad_views(&c));
    CHECK(in->error, !grad->dlse && !grad->drem, LOCI_BAD_ARG, "dlse and drem must be NULL: linear attention has neither");
    want(&c, grad->dtensors);
    find_seen(&c);
    loci_begin(&c, false);
    const loci_status status = p->engine->linear_backward(&c);
    if (status) return loci_fail(in->error, status, "cancelled by the host");
    fold(&c, grad->dtensors);
    return LOCI_OK;
}

/* ---- Rotation alone -------------------------------------------------------------------------------------------- */

static loci_status open_rotation(struct call *c, const loci_plan *p, const void *tables, void *work, const loci_call *in, loci_which which,
                                 bool backward)
{
    CHECK(in->error, plan_ok(p, LOCI_ROTATE) || plan_ok(p, LOCI_ATTENTION), LOCI_BAD_ARG, "the plan must be one for stage ROTATE or ATTENTION");
    CHECK(in->error, p->rotate >= 0, LOCI_BAD_ARG, "the encoding does not rotate");
    CHECK(in->error, which >= LOCI_QUERY && which <= LOCI_CACHE, LOCI_BAD_ARG, "which must be LOCI_QUERY, LOCI_KEY or LOCI_CACHE");
    CHECK(in->error, which == LOCI_QUERY || p->key_heads == p->kv_heads, LOCI_BAD_ARG,
          "each of the %d heads turns the keys of its group its own way; only with as many kv_heads can they turn alone", p->heads);
    TRY(loci_open_call(c, p, in, true));
    TRY(check_inputs(c, p->use[p->rotate].enc, which == LOCI_QUERY ? LOCI_DIM_QUERIES : LOCI_DIM_KEYS));
    CHECK(in->error, p->axes == 1 || (which == LOCI_QUERY ? in->q_coord : c->k_coord), LOCI_BAD_ARG,
          "coordinates must be given: the encoding has %d axes", p->axes);
    TRY(which == LOCI_QUERY ? check_axis(c, in->q_coord, c->Lq, "q_coord") : check_axis(c, c->k_coord, c->Lk, "k_coord"));
    TRY(loci_open_tables(c, tables));
    return loci_open_work(c, work, backward);
}
static loci_status rotation_view(struct call *c, loci_view *v, const char *name, loci_which which, bool output, bool optional)
{
    const struct loci_plan *p = c->plan;
    const ptrdiff_t H = which == LOCI_QUERY ? p->heads : p->kv_heads, L = which == LOCI_QUERY ? c->Lq : c->Lk;
    const loci_view from = *v;
    TRY(loci_open_view(c, v, &from, name, H, L, p->dim, output));
    return optional || !c->B || !L ? LOCI_OK : need(c, v->data, name);
}

loci_status loci_rotate(const loci_plan *p, const void *tables, void *work, const loci_call *in, loci_which which, loci_view x, loci_view y)
{
    struct call c;
    if (!in) return LOCI_BAD_ARG;
    TRY(open_rotation(&c, p, tables, work, in, which, false));
    TRY(rotation_view(&c, &x, "x", which, false, false));
    TRY(rotation_view(&c, &y, "y", which, true, false));
    loci_begin(&c, false);
    p->engine->rotate(&c, which, &x, &y);
    return LOCI_OK;
}

loci_status loci_rotate_backward(const loci_plan *p, const void *tables, void *work, const loci_call *in, loci_which which,
                                 loci_view x, loci_view dy, loci_view dx, void *const *dtensors)
{
    struct call c;
    if (!in) return LOCI_BAD_ARG;
    TRY(open_rotation(&c, p, tables, work, in, which, true));
    TRY(rotation_view(&c, &x, "x", which, false, false));
    TRY(rotation_view(&c, &dy, "dy", which, false, false));
    TRY(rotation_view(&c, &dx, "dx", which, true, true));
    want(&c, dtensors);
    loci_begin(&c, false);
    p->engine->rotate_backward(&c, which, &x, &dy, &dx);
    fold(&c, dtensors);
    return LOCI_OK;
}
