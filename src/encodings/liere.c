/* SPDX-License-Identifier: MIT */
/* liere.c -- blocks of channels rotated by learned generators.  Ostmeier et al.,
 * ICML 2025 (arXiv 2406.10322).
 *
 *     x[block j] <- exp(sum over axes a of coordinate[a] A[a][j]) x[block j],
 *     A = U - U^T, U the upper triangle of raw[a][j]
 *
 * raw is [axes][G][block][block] with G = D / block rounded down, shared by the heads.  With H
 * after the axes, generators are per kv head.  Its diagonal and lower triangle are not read.
 * Channels after the last block are unchanged.
 *
 * Generators of several axes do not commute, so scores depend on more than differences
 * of coordinates, the more the larger the block.  Blocks of 2 commute, and rotate as
 * pairs.  With one axis all generators commute, and a block is pairs in the basis of
 * its generator (layout/blocks.h).  All others need one exponential per distinct
 * coordinate (layout/matrices.h). */
#include "math/expm.h"
#include "contract/engine.h"
#include "layout/blocks.h"
#include "encodings/streams.h"
#include "layout/matrices.h"

#include <stdatomic.h>

enum { AXES, BLOCK };
static const loci_option opts[] = {
    [AXES] = { "axes", LOCI_WHOLE, 0, 2, 1, MAX_AXES, NULL, "coordinates per position" },
    [BLOCK] = { "block", LOCI_WHOLE, 0, 64, 2, MAX_BLOCK, NULL,
                "channels that are rotated together" },
    { 0 },
};
/* raw starts uniformly distributed in 0 .. 2 pi */
static const double turn_around = 6.28318530717958623;

static int axes(const struct config *c) { return (int)c->opt[AXES]; }
static struct blocks blocks(const struct config *c)
{
    const int block = (int)c->opt[BLOCK];
    const loci_tensor *raw = loci_have(c, "raw");
    return (struct blocks){ .block = block,
                            .count = c->dim / block,
                            .axes = axes(c),
                            .groups = raw && raw->rank == 5 ? c->kv_heads : 1 };
}
static loci_status check(struct config *c, loci_error *e)
{
    CHECK(e, c->opt[BLOCK] <= c->dim, LOCI_BAD_ARG,
          "liere: block %g must not exceed the head's %d channels", c->opt[BLOCK], c->dim);
    return LOCI_OK;
}

/* The shape of the caller's tensor decides if generators have a head axis. */
static void tensors(const struct config *c, struct tensors *t)
{
    const loci_tensor *raw = loci_have(c, "raw");
    const struct blocks b = blocks(c);
    if (raw && raw->rank == 5)
        loci_add_tensor(t, c, "raw", LOCI_LEARNED, INIT_UNIFORM, 0, turn_around,
                        SHAPE(b.axes, c->kv_heads, b.count, b.block, b.block));
    else
        loci_add_tensor(t, c, "raw", LOCI_LEARNED, INIT_UNIFORM, 0, turn_around,
                        SHAPE(b.axes, b.count, b.block, b.block));
}

/* Which of the three ways a plan uses; see the file comment. */
static enum term_id way(const struct config *c)
{
    return c->opt[BLOCK] == 2 ? TERM_pairs : axes(c) == 1 ? TERM_blocks : TERM_matrices;
}
static void terms(const struct config *c, struct termlist *t)
{
    const struct blocks b = blocks(c);
    loci_add_term_layout(t, way(c), GROUP_ROTATE, &b, sizeof b);
}

/* Numbers of a generator, and where that of an axis and a block of a group begins: in raw and in
 * the table of matrices alike. */
static ptrdiff_t square(const struct blocks *b) { return (ptrdiff_t)b->block * b->block; }
static ptrdiff_t raw_at(const struct blocks *b, int axis, int group, int j)
{
    return (((ptrdiff_t)axis * b->groups + group) * b->count + j) * square(b);
}

/* ---- Tables ---------------------------------------------------------------------------------- */

/* One axis: the generator is scaled by the coordinate alone, so its weight is 1. */
static double generator(const struct prep *p, int group, int j, int row, int column)
{
    const struct blocks b = blocks(p->cfg);
    return param(p, 0, raw_at(&b, 0, group, j) + row * b.block + column);
}
static double weight(const struct prep *p, int axis, int j)
{
    (void)p;
    (void)axis;
    (void)j;
    return 1;
}
/* A[0][1] rotates the pair backwards. */
static void frequency(const struct prep *p, int axis, int group, int j, double *hi, double *lo)
{
    const struct blocks b = blocks(p->cfg);
    *hi = -param(p, 0, raw_at(&b, axis, group, j) + 1);
    *lo = 0;
}

/* The table of matrices: the generators in double, followed for each axis by the largest sum of
 * absolute values in a row.  This bounds the effect of rounding on a rotation; see accept(). */
static ptrdiff_t generators(const struct blocks *b)
{
    return b->axes * b->groups * b->count * square(b);
}
static size_t size(const struct config *c, ptrdiff_t range, size_t real)
{
    const struct blocks b = blocks(c);
    (void)range;
    switch (way(c)) {
    case TERM_pairs:
        return loci_pairs_size(b.count, b.axes, b.groups);
    case TERM_blocks:
        return loci_blocks_size(&b, real);
    default:
        return (size_t)(generators(&b) + b.axes) * sizeof(double);
    }
}
/* Computes A = U - U^T of each block, and the row sums that bound it. */
static void prepare_matrices(const struct prep *p)
{
    const struct blocks b = blocks(p->cfg);
    double *a = p->table, *largest = a + generators(&b);
    for (int axis = 0; axis < b.axes; axis++) largest[axis] = 0;
    for (ptrdiff_t first = 0; first < generators(&b); first += square(&b)) {
        for (int r = 0; r < b.block; r++) {
            a[first + r * b.block + r] = 0;
            for (int c = r + 1; c < b.block; c++) {
                const double x = param(p, 0, first + r * b.block + c);
                a[first + r * b.block + c] = x;
                a[first + c * b.block + r] = -x;
            }
        }
        double *most = &largest[first / (generators(&b) / b.axes)];
        for (int r = 0; r < b.block; r++) {
            double sum = 0;
            for (int c = 0; c < b.block; c++) sum += fabs(a[first + r * b.block + c]);
            *most = sum > *most ? sum : *most;
        }
    }
}
static void prepare(const struct prep *p)
{
    const struct blocks b = blocks(p->cfg);
    switch (way(p->cfg)) {
    case TERM_pairs: {
        const struct pairs form = {
            .count = b.count,
            .interleaved = true,
            .axes = b.axes,
            .groups = b.groups,
            .factor = 1,
        };
        loci_pairs_prepare(p, form, frequency);
        break;
    }
    case TERM_blocks:
        loci_blocks_prepare(p, generator, weight);
        break;
    default:
        prepare_matrices(p);
    }
}

/* The frequency of a pair is -A[0][1], hence the minus. */
static void fold_pairs(const struct prep *p)
{
    const struct blocks b = blocks(p->cfg);
    for (int h = 0; h < p->cfg->kv_heads; h++)
        for (int a = 0; a < b.axes; a++)
            for (int j = 0; j < b.count; j++)
                p->dtensor[0][raw_at(&b, a, b.groups > 1 ? h : 0, j) + 1] -=
                    p->dtable[0][h * pairs_part(p->cfg->dim, b.axes) + a * (p->cfg->dim / 2) + j];
}
/* A = U - U^T: an entry above the diagonal gets the skew gradient, the rest of raw gets none. */
static void fold_blocks(const struct prep *p)
{
    const struct blocks b = blocks(p->cfg);
    for (int g = 0; g < b.groups; g++)
        for (int j = 0; j < b.count; j++)
            for (int r = 0; r < b.block; r++) {
                double row[MAX_BLOCK] = { 0 };
                loci_blocks_gradient(p, g, j, r, row);
                for (int c = r + 1; c < b.block; c++)
                    p->dtensor[0][raw_at(&b, 0, g, j) + r * b.block + c] += row[c];
            }
}
/* Matrices have their gradient in end(), as they are computed per call. */
static void fold(const struct prep *p)
{
    if (!p->dtensor[0] || !p->dtable[0]) return;
    if (way(p->cfg) == TERM_pairs) fold_pairs(p);
    if (way(p->cfg) == TERM_blocks) fold_blocks(p);
}

/* ---- Matrices: the scratch of a call --------------------------------------------------------- */

/* Slots whose gradients a thread sums before they are added to those of others.  The number is
 * fixed, so that the order of additions does not depend on the number of threads. */
enum { SLOTS_ABREAST = 32 };

/* Rows of coordinates: all batch entries share those of one, unless each has its own. */
static int64_t rows_of(const struct call *c, bool query)
{
    return (c->in->per_batch ? c->B : 1) * (query ? c->Lq : c->Lk);
}
/* Lays out the scratch: the struct, then its arrays; with no base it only measures.  There are
 * no more slots than rows.  The hash has twice as many places plus one: searches stay short, and
 * one place is always empty. */
static struct matrices *lay_out(const struct call *c, int enc, struct arena *a)
{
    const struct blocks b = blocks(&c->plan->enc[enc]);
    const int64_t rows = rows_of(c, true) + rows_of(c, false);
    const size_t one = (size_t)square(&b), all = (size_t)(b.groups * b.count) * one,
                 real = c->plan->real;
    struct matrices *w = carve_bytes(a, 1, sizeof *w), spare, *to = w ? w : &spare;
    *to = (struct matrices){
        .block = b.block, .count = b.count, .groups = b.groups, .hashes = 2 * rows + 1
    };
    int64_t **lists[] = { &to->slot[0], &to->slot[1], &to->first, &to->next, &to->hash };
    const int64_t lengths[] = { rows_of(c, true), rows_of(c, false), rows, rows, to->hashes };
    for (int i = 0; i < COUNT(lists); i++)
        *lists[i] = carve_bytes(a, (size_t)lengths[i], sizeof(int64_t));
    to->into = carve_bytes(a, (size_t)rows, all * real);
    to->each = 3 * one + loci_exponential_work(b.block);
    if (c->backward) {
        to->back = carve_bytes(a, (size_t)rows, all * real);
        for (int k = 0; k < 2; k++) {
            const size_t count =
                (size_t)c->B * (size_t)(k ? c->plan->kv_heads * c->Lk : c->plan->heads * c->Lq);
            to->x[k] = carve_bytes(a, count, (size_t)c->plan->dim * real);
            to->g[k] = carve_bytes(a, count, (size_t)c->plan->dim * real);
        }
        to->each += (size_t)b.axes * all;
    }
    to->work = carve_bytes(a, (size_t)c->threads, to->each * sizeof(double));
    return w;
}
static size_t scratch(const struct call *c, int enc)
{
    struct arena a = { 0 };
    if (way(&c->plan->enc[enc]) != TERM_matrices) return 0;
    lay_out(c, enc, &a);
    return a.full ? SIZE_MAX : a.used;
}

/* The coordinate of row number `row`: queries, then keys. */
static double coordinate(const struct call *c, int64_t row, int axis)
{
    const bool query = row < rows_of(c, true);
    const ptrdiff_t at = query ? row : row - rows_of(c, true), length = query ? c->Lq : c->Lk;
    /* Adding 0 turns -0 into 0: -0 would have other bits and so another slot. */
    return (query ? coord_q(c, at / length, axis, at % length)
                  : coord_k(c, at / length, axis, at % length))
         + 0.0;
}
static bool same_place(const struct call *c, int64_t one, int64_t other)
{
    for (int a = 0; a < c->plan->axes; a++)
        if (coordinate(c, one, a) != coordinate(c, other, a)) return false;
    return true;
}
/* Rounding the exponent X changes the rotation by |X| 2^-53 or more: at 2^28 by half an ulp of a
 * float.  NaN passes and shows in the result. */
static loci_status accept(const struct call *c, int enc)
{
    const double most = 0x1p28;
    if (way(&c->plan->enc[enc]) != TERM_matrices) return LOCI_OK;
    const struct blocks b = blocks(&c->plan->enc[enc]);
    const double *largest = (const double *)c->table[enc] + generators(&b);
    const int64_t queries = rows_of(c, true), rows = queries + rows_of(c, false);
    for (int64_t row = c->in->q_coord ? 0 : queries; row < (c->where.k_coord ? rows : queries);
         row++) {
        double reach = 0;
        for (int a = 0; a < b.axes; a++) reach += fabs(coordinate(c, row, a)) * largest[a];
        CHECK(c->in->error, !(reach > most), LOCI_UNSUPPORTED,
              "liere: the coordinates of %s %lld give exponents of %g; blocks of %d with several "
              "axes are exact up to 2^28",
              row < queries ? "query" : "key", (long long)(row < queries ? row : row - queries),
              reach, b.block);
    }
    return LOCI_OK;
}
/* Gives a row its slot: that of earlier rows with the same coordinates, or a new one.  A slot's
 * rows are a list through `next`, which end() walks.  Open addressing: tries the next place
 * until the coordinates agree or one is empty. */
static int64_t find_slot(const struct call *c, struct matrices *w, int64_t row)
{
    uint64_t key = 0x9e3779b97f4a7c15u;
    for (int a = 0; a < c->plan->axes; a++) {
        const double x = coordinate(c, row, a);
        uint64_t bits;
        memcpy(&bits, &x, sizeof bits);
        key = (key ^ bits ^ (bits >> 29)) * 0xbf58476d1ce4e5b9u;
        key ^= key >> 32;
    }
    /* Any hash would do: coordinates are compared directly. */
    int64_t at = (int64_t)(key % (uint64_t)w->hashes);
    while (w->hash[at] >= 0 && !same_place(c, w->first[w->hash[at]], row))
        at = (at + 1) % w->hashes;
    if (w->hash[at] < 0) {
        w->hash[at] = w->slots++;
        w->first[w->hash[at]] = -1;
    }
    const int64_t slot = w->hash[at];
    w->next[row] = w->first[slot];
    w->first[slot] = row;
    return slot;
}

/* The exponent of a slot: x = the sum over axes of its coordinate times the generator. */
static void add_generators(const struct call *c, int enc, const struct matrices *w, int64_t slot,
                           ptrdiff_t at, double *x)
{
    const struct blocks b = blocks(&c->plan->enc[enc]);
    for (ptrdiff_t i = 0; i < square(&b); i++) x[i] = 0;
    for (int a = 0; a < b.axes; a++) {
        const double *generators =
            (const double *)c->table[enc] + raw_at(&b, a, 0, 0) + at * square(&b);
        const double along = coordinate(c, w->first[slot], a);
        for (ptrdiff_t i = 0; i < square(&b); i++) x[i] += along * generators[i];
    }
}

/* State shared by all threads; `next` is the next free slot. */
struct slot_job {
    struct call *c;
    int enc;
    struct matrices *w;
    int64_t from;
    atomic_llong next;
};

static void run(struct slot_job *job, void (*work)(void *, int), int64_t jobs)
{
    const loci_host *host = job->c->in->host;
    const int n = jobs < job->c->threads ? (int)jobs : job->c->threads;
    if (n > 1) host->run(host->user, n, work, job);
    else if (n == 1) work(job, 0);
}

/* Of the plan's engine.  The engines for float32 multiply matrices of doubles in vectors, to the
 * same bits, so plans in double borrow the best one's. */
static add_product *add_product_of(const struct call *c)
{
    const struct engine *engine = c->plan->f64 ? loci_engine(NULL, false) : NULL;
    return (engine ? engine : c->plan->engine)->add_product;
}

/* Computes the matrices of slots until none remain.  `into` is transposed, as rows are
 * multiplied from the left; gradients go back through the matrix as it is. */
static void exponential_job(void *arg, int index)
{
    struct slot_job *job = arg;
    const struct call *c = job->c;
    struct matrices *w = job->w;
    const int n = w->block;
    double *x = w->work + (size_t)index * w->each, *r = x + n * n, *work = r + 2 * n * n;
    for (int64_t i; (i = atomic_fetch_add(&job->next, 1)) < w->slots;)
        for (ptrdiff_t at = 0; at < w->groups * w->count; at++) {
            const ptrdiff_t to = (i * w->groups * w->count + at) * n * n;
            add_generators(c, job->enc, w, i, at, x);
            loci_exponential(n, x, r, work, add_product_of(c));
            for (int o = 0; o < n; o++)
                for (int k = 0; k < n; k++) {
                    store_real(w->into, c->plan->f64, to + k * n + o, r[o * n + k]);
                    if (w->back) store_real(w->back, c->plan->f64, to + o * n + k, r[o * n + k]);
                }
        }
}

/* Finds the slots and computes their matrices.  Keys from a cache, which are rotated
 * already, need none for scores. */
void loci_liere_begin(struct call *c, int enc, bool keep_rows)
{
    struct arena a = { .base = c->mem.scratch[enc] };
    if (way(&c->plan->enc[enc]) != TERM_matrices) return;
    struct matrices *w = lay_out(c, enc, &a);
    for (int64_t i = 0; i < w->hashes; i++) w->hash[i] = -1;
    for (int64_t i = 0; c->in->q_coord && i < rows_of(c, true); i++)
        w->slot[0][i] = find_slot(c, w, i);
    for (int64_t i = 0;
         c->where.k_coord && (!c->plan->keys_rotated || !c->k.data) && i < rows_of(c, false); i++)
        w->slot[1][i] = find_slot(c, w, rows_of(c, true) + i);
    struct slot_job job = { .c = c, .enc = enc, .w = w };
    atomic_init(&job.next, 0);
    run(&job, exponential_job, w->slots);
    /* Rows that do not rotate, such as padding, keep gradient 0. */
    for (int k = keep_rows; k < 2 && c->backward; k++) {
        const ptrdiff_t count =
            c->B * (k ? c->plan->kv_heads * c->Lk : c->plan->heads * c->Lq) * c->plan->dim;
        memset(w->g[k], 0, (size_t)count * c->plan->real);
    }
}

static void begin(struct call *c, int enc) { loci_liere_begin(c, enc, false); }

/* ---- Matrices: their gradient ---------------------------------------------------------------- */

/* g += gradient times row, of block j of one row: the derivative of y = R x by R. */
static void add_row(const struct call *c, const struct matrices *w, bool query, ptrdiff_t b, int h,
                    ptrdiff_t i, int j, double *g)
{
    const int n = w->block;
    const ptrdiff_t at = matrices_at(c, query, b, h, i) + j * n;
    for (int r = 0; r < n; r++) {
        const double d = load_real(w->g[!query], c->plan->f64, at + r);
        if (d == 0) continue; /* padding may contain anything, even NaN */
        for (int k = 0; k < n; k++)
            g[r * n + k] += d * load_real(w->x[!query], c->plan->f64, at + k);
    }
}
/* The gradient by the matrix of block j, group `group` of a slot: summed over its
 * rows, over the batch entries that share them and over the heads of the group. */
static void sum_rows(const struct call *c, const struct matrices *w, int64_t slot, int group, int j,
                     double *g)
{
    for (int i = 0; i < w->block * w->block; i++) g[i] = 0;
    for (int64_t row = w->first[slot]; row >= 0; row = w->next[row]) {
        const bool query = row < rows_of(c, true);
        const ptrdiff_t at = query ? row : row - rows_of(c, true), length = query ? c->Lq : c->Lk;
        const int heads = query ? c->plan->heads : c->plan->kv_heads, each = heads / w->groups;
        for (ptrdiff_t b = c->in->per_batch ? at / length : 0;
             b < (c->in->per_batch ? at / length + 1 : c->B); b++)
            for (int h = group * each; h < (group + 1) * each; h++)
                add_row(c, w, query, b, h, at % length, j, g);
    }
}
/* From matrices to generators for SLOTS_ABREAST slots: the adjoint of the exponential, times
 * each coordinate.  A slot without gradient is skipped, as the adjoint is the costly part. */
static void gradient_job(void *arg, int index)
{
    struct slot_job *job = arg;
    const struct call *c = job->c;
    const struct matrices *w = job->w;
    const int n = w->block, blocks_of_all = w->groups * w->count;
    const int64_t first = job->from + index * SLOTS_ABREAST;
    double *x = w->work + (size_t)index * w->each, *g = x + n * n, *d = g + n * n, *sum = d + n * n;
    double *work = sum + (ptrdiff_t)c->plan->axes * blocks_of_all * n * n;
    memset(sum, 0, sizeof *sum * (size_t)(c->plan->axes * blocks_of_all) * (size_t)(n * n));
    for (int64_t slot = first; slot < first + SLOTS_ABREAST && slot < w->slots; slot++)
        for (int at = 0; at < blocks_of_all; at++) {
            bool any = false;
            sum_rows(c, w, slot, at / w->count, at % w->count, g);
            for (int i = 0; i < n * n; i++) any |= g[i] != 0;
            if (!any) continue;
            add_generators(c, job->enc, w, slot, at, x);
            loci_exponential_adjoint(n, x, g, d, work, add_product_of(c));
            for (int a = 0; a < c->plan->axes; a++) {
                const double along = coordinate(c, w->first[slot], a);
                double *to = sum + ((ptrdiff_t)a * blocks_of_all + at) * n * n;
                for (int r = 0; r < n; r++)
                    for (int k = r + 1; k < n; k++) to[r * n + k] += along * d[r * n + k];
            }
        }
}
/* Rounds of one job per thread: within a round each job writes separate sums.  They are then
 * added in the order of the slots, so the bits do not depend on the threads. */
static void end(struct call *c, int enc)
{
    double *draw = c->g.dtensor[c->plan->first_tensor[enc]];
    if (way(&c->plan->enc[enc]) != TERM_matrices || !draw) return;
    struct matrices *w = c->mem.scratch[enc];
    const ptrdiff_t count = (ptrdiff_t)c->plan->axes * w->groups * w->count * w->block * w->block;
    struct slot_job job = { .c = c, .enc = enc, .w = w };
    for (; job.from < w->slots; job.from += (int64_t)c->threads * SLOTS_ABREAST) {
        const int64_t left = (w->slots - job.from + SLOTS_ABREAST - 1) / SLOTS_ABREAST,
                      jobs = left < c->threads ? left : c->threads;
        run(&job, gradient_job, jobs);
        for (int64_t k = 0; k < jobs; k++) {
            const double *sum = w->work + (size_t)k * w->each + 3 * (ptrdiff_t)w->block * w->block;
            for (ptrdiff_t i = 0; i < count; i++) draw[i] += sum[i];
        }
    }
}

const struct loci_pe loci_pe_liere = {
    .name = "liere",
    .cite = "Ostmeier et al., ICML 2025",
    .family = FAMILY_ROTATION,
    .brief = "blocks of channels are rotated by the exponential of learned generators",
    .example = "liere:block=3",
    .places = LOCI_PLACE_ROTATE,
    .rotates = true,
    .tol = 4e-6,
    .opts = opts,
    .check = check,
    .axes = axes,
    .tensors = tensors,
    .terms = terms,
    .size = size,
    .prepare = prepare,
    .fold = fold,
    .accept = accept,
    .scratch = scratch,
    .begin = begin,
    .end = end,
    .stream = &loci_liere_stream,
};
