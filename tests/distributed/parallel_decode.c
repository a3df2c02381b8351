/* SPDX-License-Identifier: MIT */
/* parallel_decode.c -- few rows against keys that are distributed over ranks, which are threads
 * here.  Every rank gets the bits of one process with all keys.
 *
 *     arrays      every encoding's example: ranks in any order, some without keys, and new rows
 *                 whose own keys belong to two ranks
 *     positions   consecutive, with gaps, or given on one rank only
 *     caches      of each rank, appended with positions among all keys
 *     errors      with the same sentence on all ranks
 *
 * The argument, a text of the walk, selects that one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "loci/cache.h"
#include "mailbox.h"
#include "parallel_ranks.h"

enum { BATCH = 2, HEADS = 4, KV_HEADS = 2, PIECE = 4096, MOST_ROWS = 9 };
/* Slow builds have fewer keys, but always more than one chunk. */
enum { MANY_KEYS = LOCI_SLOW || LOCI_EMULATED ? PIECE + 1 : 2 * PIECE + 1 };

/* ---- One process ----------------------------------------------------------------------------- */

struct all {
    const char *text;
    int dim, rotated, tensors;
    ptrdiff_t rows, keys;
    loci_plan *plan[8]; /* for each instruction set */
    void *tables[8];
    int isas;
    loci_tensor tensor[WALK_TENSORS];
    const void *data[WALK_TENSORS];
    float *q, *k, *v, *o, *lse, *ae;
    double *q_coord, *k_coord;
    int64_t *q_pos, *k_pos; /* or NULL */
    bool stick;             /* lse is the remainder */
    struct blocks blocks;
};

static float *numbers(struct all *a, size_t n)
{
    float *x = blocks_alloc(&a->blocks, n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = (float)walk_uniform();
    return x;
}
static loci_call call_of(const struct all *a, loci_error *e)
{
    return (loci_call)LOCI_CALL(.batch = BATCH, .q_len = a->rows, .error = e);
}
static bool make(struct all *a, const char *text, ptrdiff_t rows, ptrdiff_t keys, int rotated,
                 int gap)
{
    const char *isas[8];
    loci_error e = { .status = LOCI_OK };
    *a = (struct all){ .text = text,
                       .dim = walk_dim(text, 8),
                       .rotated = rotated,
                       .rows = rows,
                       .keys = keys,
                       .isas = loci_isas(isas, 8) };
    for (int i = 0; i < a->isas; i++) {
        const loci_desc d =
            LOCI_DESC(.encoding = text, .heads = HEADS, .kv_heads = KV_HEADS, .dim = a->dim,
                      .max_len = keys + 64, .keys_rotated = rotated, .isa = isas[i]);
        if (!CHECK_THAT(!loci_plan_create(&a->plan[i], &d, &e), "%s: %s", text, e.text))
            return false;
    }
    a->tensors = loci_tensors(a->plan[0], a->tensor, WALK_TENSORS);
    for (int i = 0; i < a->tensors; i++) {
        const loci_tensor *t = &a->tensor[i];
        float *x = numbers(a, walk_count(t, BATCH, rows, keys));
        a->data[i] = x;
        if (t->role != LOCI_INPUT) loci_tensor_init(a->plan[0], i, 3, x);
        else if (!strncmp(t->name, "log_", 4))
            for (size_t n = walk_count(t, BATCH, rows, keys); n-- > 0;) x[n] = 1e-3f * (x[n] - 1);
    }
    const size_t D = (size_t)a->dim;
    a->q = numbers(a, BATCH * HEADS * (size_t)rows * D);
    a->k = numbers(a, BATCH * KV_HEADS * (size_t)keys * D);
    a->v = numbers(a, BATCH * KV_HEADS * (size_t)keys * D);
    a->o = blocks_alloc(&a->blocks, BATCH * HEADS * (size_t)rows * D * sizeof(float));
    a->lse = blocks_alloc(&a->blocks, BATCH * HEADS * (size_t)rows * sizeof(float));
    if (walk_states(text))
        a->ae = blocks_alloc(&a->blocks, BATCH * HEADS * (size_t)rows * D * sizeof(float));
    const size_t axes = (size_t)loci_axes(a->plan[0]);
    if (axes > 1) {
        a->q_coord = blocks_alloc(&a->blocks, axes * (size_t)rows * sizeof(double));
        a->k_coord = blocks_alloc(&a->blocks, axes * (size_t)keys * sizeof(double));
        for (size_t i = 0; i < axes * (size_t)rows; i++) a->q_coord[i] = walk_coordinate(40);
        for (size_t i = 0; i < axes * (size_t)keys; i++) a->k_coord[i] = walk_coordinate(40);
    }
    if (gap >= 0) {
        /* keys from number `gap` on are shifted by two positions */
        a->q_pos = blocks_alloc(&a->blocks, (size_t)rows * sizeof *a->q_pos);
        a->k_pos = blocks_alloc(&a->blocks, (size_t)keys * sizeof *a->k_pos);
        for (ptrdiff_t j = 0; j < keys; j++) a->k_pos[j] = j + 3 + 2 * (gap && j >= gap);
        for (ptrdiff_t i = 0; i < rows; i++) a->q_pos[i] = a->k_pos[keys - rows + i];
    }
    a->stick = strstr(text, "sba") != NULL;
    for (int i = 0; i < a->isas; i++) {
        a->tables[i] = blocks_lines(&a->blocks, loci_tables_size(a->plan[i], keys + 64));
        if (!CHECK_THAT(!loci_prepare_on(NULL, a->plan[i], keys + 64, a->data, a->tables[i], &e),
                        "%s: %s", text, e.text))
            return false;
    }
    return true;
}
/* Cached keys are rotated, so one process also gets rotated keys. */
static bool compute(struct all *a)
{
    loci_error e = { .status = LOCI_OK };
    loci_call c = call_of(a, &e);
    c.k_len = a->keys;
    c.tensors = a->data;
    c.q_coord = a->q_coord;
    c.k_coord = a->k_coord;
    c.q_pos = a->q_pos;
    c.k_pos = a->k_pos;
    c.q.data = a->q;
    c.k.data = a->k;
    c.v.data = a->v;
    c.o.data = a->o;
    c.ae = a->ae;
    *(a->stick ? &c.rem : &c.lse) = a->lse;
    loci_plan *plan = a->plan[a->isas - 1];
    void *work = blocks_lines(&a->blocks, loci_workspace(plan, &c, 0));
    if (a->rotated) {
        const loci_desc wide = {
            .encoding = a->text, .kv_heads = KV_HEADS, .dim = a->dim, .keys_rotated = 1
        };
        float *turned = blocks_alloc(&a->blocks, BATCH * KV_HEADS * (size_t)a->keys
                                                     * (size_t)walk_key_dim(&wide) * sizeof(float));
        const loci_view to = walk_wide_keys(&wide, a->keys, turned);
        loci_call keys = c;
        keys.q_len = 0;
        keys.q_pos = keys.k_pos;
        if (!CHECK_THAT(!loci_rotate(plan, a->tables[a->isas - 1], work, &keys, LOCI_CACHE, c.k,
                                     to),
                        "%s: %s", a->text, e.text))
            return false;
        c.k = to;
    }
    return CHECK_THAT(!loci_forward(plan, a->tables[a->isas - 1], work, &c), "%s: %s", a->text,
                      e.text);
}
static void drop(struct all *a)
{
    for (int i = 0; i < a->isas; i++) loci_plan_destroy(a->plan[i]);
    blocks_drop(&a->blocks);
}

/* ---- Ranks ----------------------------------------------------------------------------------- */

struct run {
    const struct all *all;
    loci_share shares[16];
    int count;
    bool cached;
    double dropout;
    loci_status status[MAILBOX_RANKS];
    loci_error said[MAILBOX_RANKS];
    int wrong[MAILBOX_RANKS];
};

/* Rows first .. first + count - 1 of [outer][len][bytes]. */
static void *cut(struct blocks *b, const void *from, size_t outer, ptrdiff_t len, ptrdiff_t first,
                 ptrdiff_t count, size_t bytes)
{
    char *to = blocks_alloc(b, outer * (size_t)count * bytes);
    for (size_t n = 0; n < outer && count; n++)
        memcpy(to + n * (size_t)count * bytes,
               (const char *)from + (n * (size_t)len + (size_t)first) * bytes,
               (size_t)count * bytes);
    return to;
}
static void cut_tensors(struct blocks *b, const struct all *a, const loci_share *own,
                        const void **tensors)
{
    for (int i = 0; i < a->tensors; i++) {
        const loci_tensor *t = &a->tensor[i];
        size_t outer = BATCH, inner = sizeof(float);
        bool keys = false;
        tensors[i] = a->data[i];
        for (int d = 1; d < t->rank && t->role == LOCI_INPUT; d++) {
            if (t->shape[d] == LOCI_DIM_KEYS) keys = true;
            else if (keys) inner *= (size_t)t->shape[d];
            else if (t->shape[d] > 0) outer *= (size_t)t->shape[d];
        }
        if (keys)
            tensors[i] = cut(b, a->data[i], outer, a->keys, (ptrdiff_t)own->first,
                             (ptrdiff_t)own->count, inner);
    }
}
/* Appends the rank's keys to a cache of its own, in two steps. */
static loci_cache *fill(struct blocks *b, const struct all *a, int isa, const loci_share *own,
                        const loci_call *c)
{
    const ptrdiff_t half = (ptrdiff_t)own->count / 2;
    loci_cache *cache = NULL;
    void *memory = blocks_lines(b, loci_cache_size(a->plan[isa], BATCH, own->count + 7));
    int64_t *pos = blocks_alloc(b, (size_t)own->count * sizeof *pos);
    if (loci_cache_create(&cache, a->plan[isa], BATCH, own->count + 7, 0, memory, c->error))
        return NULL;
    for (int64_t j = 0; j < own->count; j++) pos[j] = a->k_pos[own->first + j];
    for (int part = 0; part < 2; part++) {
        const ptrdiff_t first = part ? half : 0, n = part ? (ptrdiff_t)own->count - half : half;
        const ptrdiff_t D = a->dim, len = (ptrdiff_t)own->count;
        const void *tensors[WALK_TENSORS];
        const loci_share some = { own->first + first, n, own->rank };
        loci_call in = *c;
        cut_tensors(b, a, &some, tensors);
        in.cache = cache;
        in.k_len = n;
        in.k_pos = pos + first;
        in.tensors = tensors;
        in.k = (loci_view){ (float *)c->k.data + first * D, KV_HEADS * len * D, len * D, D };
        in.v = (loci_view){ (float *)c->v.data + first * D, KV_HEADS * len * D, len * D, D };
        void *work = blocks_lines(b, loci_workspace(a->plan[isa], &in, 0));
        if (n && loci_cache_append(a->plan[isa], a->tables[isa], work, cache, &in)) return NULL;
    }
    return cache;
}
static void decode(const loci_transport *t, void *arg)
{
    struct run *run = arg;
    const struct all *a = run->all;
    struct blocks b = { .list = NULL };
    const int isa = t->rank % a->isas;
    loci_share own = { .rank = t->rank };
    for (int i = 0; i < run->count; i++)
        if (run->shares[i].rank == t->rank && run->shares[i].count) own = run->shares[i];
    const ptrdiff_t first = (ptrdiff_t)own.first, n = (ptrdiff_t)own.count;
    const size_t D = (size_t)a->dim * sizeof(float), rows = (size_t)a->rows,
                 axes = (size_t)loci_axes(a->plan[isa]);
    const void *tensors[WALK_TENSORS];
    loci_error *e = &run->said[t->rank];
    loci_call c = call_of(a, e);
    cut_tensors(&b, a, &own, tensors);
    c.k_len = n;
    c.dropout = run->dropout;
    c.tensors = tensors;
    c.q_coord = a->q_coord;
    c.q.data = cut(&b, a->q, BATCH * HEADS, a->rows, 0, a->rows, D);
    c.k.data = cut(&b, a->k, BATCH * KV_HEADS, a->keys, first, n, D);
    c.v.data = cut(&b, a->v, BATCH * KV_HEADS, a->keys, first, n, D);
    c.o.data = blocks_alloc(&b, BATCH * HEADS * rows * D);
    void *lse = blocks_alloc(&b, BATCH * HEADS * rows * sizeof(float));
    *(a->stick ? &c.rem : &c.lse) = lse;
    if (a->ae) c.ae = blocks_alloc(&b, BATCH * HEADS * rows * D);
    if (a->k_coord) c.k_coord = cut(&b, a->k_coord, axes, a->keys, first, n, sizeof(double));
    if (a->k_pos) {
        c.q_pos = a->q_pos;
        c.k_pos = cut(&b, a->k_pos, 1, a->keys, first, n, sizeof(int64_t));
    }
    if (run->cached) {
        c.cache = fill(&b, a, isa, &own, &c);
        c.k_len = 0;
        c.k_pos = NULL;
        c.k.data = c.v.data = NULL;
        if (!c.cache) exit((fprintf(stderr, "%s: %s\n", a->text, e->text), 3));
    }
    const loci_parallel all =
        LOCI_PARALLEL(.transport = t, .key_shares = run->shares, .key_count = run->count);
    const size_t bytes = loci_parallel_decode_workspace(a->plan[isa], &c, &all);
    void *work = blocks_lines(&b, bytes ? bytes : 64);
    c.work_bytes = bytes;
    run->status[t->rank] = loci_parallel_decode(a->plan[isa], a->tables[isa], work, &c, &all);
    run->wrong[t->rank] = (memcmp(c.o.data, a->o, BATCH * HEADS * rows * D) != 0)
                        + 2 * (memcmp(lse, a->lse, BATCH * HEADS * rows * sizeof(float)) != 0)
                        + 4 * (a->ae && memcmp(c.ae, a->ae, BATCH * HEADS * rows * D));
    blocks_drop(&b);
}

/* Pieces of whole chunks, except the last ones.  Owners in rising or falling order, from rank
 * `from` on, so that some have nothing. */
static void share_out(struct run *run, int ranks, int owners, bool falling)
{
    const ptrdiff_t chunks = (run->all->keys + PIECE - 1) / PIECE;
    run->count = owners;
    for (int i = 0; i < owners; i++) {
        const int64_t first = chunks * i / owners * PIECE, end = chunks * (i + 1) / owners * PIECE,
                      keys = run->all->keys;
        run->shares[i] =
            (loci_share){ first, (end < keys ? end : keys) - first, falling ? ranks - 1 - i : i };
    }
}
static void go(struct run *run, int ranks, uint64_t seed)
{
    const struct mailbox_wishes wishes = { .seed = seed, .no_test = seed % 2 };
    struct mailbox_story story;
    mailbox_run(ranks, &wishes, decode, run, &story);
    CHECK_THAT(!story.faults, "%s: %s", run->all->text, story.fault);
}
static void same(const struct all *a, int ranks, int owners, bool falling, bool cached)
{
    struct run run = { .all = a, .cached = cached };
    share_out(&run, ranks, owners, falling);
    go(&run, ranks, (uint64_t)(ranks * 31 + owners));
    for (int r = 0; r < ranks; r++)
        CHECK_THAT(!run.status[r] && !run.wrong[r],
                   "%s, %td rows, %td keys, %d ranks, %d own keys%s%s: rank %d: wrong %d, %s",
                   a->text, a->rows, a->keys, ranks, owners, falling ? ", falling" : "",
                   cached ? ", cached" : "", r, run.wrong[r], run.said[r].text);
}

/* ---- Tests ----------------------------------------------------------------------------------- */

static void arrays(const char *text)
{
    static const struct {
        ptrdiff_t rows, keys;
    } shapes[] = {
        { 1, 300 }, { 3, MANY_KEYS }, { MOST_ROWS, MANY_KEYS }, { 2, 1 }, { 1, 0 },
    };
    for (int i = 0; i < (int)(sizeof shapes / sizeof *shapes); i++) {
        struct all a;
        if (make(&a, text, shapes[i].rows, shapes[i].keys, 0, -1) && compute(&a)) {
            const int most = LOCI_EMULATED ? 2 : 4;
            for (int ranks = 1; ranks <= most; ranks++) {
                same(&a, ranks, ranks, false, false);
                if (ranks > 2) same(&a, ranks, 2, true, false);
            }
            if (!LOCI_SLOW) same(&a, 7, 3, true, false);
        }
        drop(&a);
    }
}
static void positions(const char *text)
{
    /* from 3 on; a gap at a border of ranks; one within the first, and one within the last */
    static const int gaps[] = { 0, PIECE, 70, MANY_KEYS - 1 };
    for (int g = 0; g < (int)(sizeof gaps / sizeof *gaps); g++) {
        struct all a;
        if (make(&a, text, 3, MANY_KEYS, 0, gaps[g]) && compute(&a)) same(&a, 3, 3, g % 2, false);
        drop(&a);
    }
}
static void caches(const char *text, int rotated, int gap)
{
    struct all a;
    if (make(&a, text, 2, MANY_KEYS, rotated, gap) && compute(&a))
        for (int ranks = 1; ranks <= 3; ranks++) same(&a, ranks, ranks, ranks == 2, true);
    drop(&a);
}
static void refused(const char *text, bool cached, int64_t second, int last, double dropout,
                    const char *words)
{
    struct all a;
    if (make(&a, text, 1, MANY_KEYS, 0, 0)) {
        struct run run = { .all = &a, .cached = cached, .dropout = dropout, .count = 3 };
        run.shares[0] = (loci_share){ 0, second, 0 };
        run.shares[1] = (loci_share){ second, MANY_KEYS - second - 1, 1 };
        run.shares[2] = (loci_share){ MANY_KEYS - 1, 1, last };
        go(&run, 3, 5);
        for (int r = 0; r < 3; r++)
            CHECK_THAT(run.status[r] && strstr(run.said[r].text, words)
                           && !strcmp(run.said[r].text, run.said[0].text),
                       "%s: rank %d says '%s', wanted '%s'", text, r, run.said[r].text, words);
    }
    drop(&a);
}

/* Every operation of every rank fails in turn: no rank hangs, no request stays open, and every
 * returned result is correct. */
static void failing(const char *text)
{
    struct all a;
    bool more = make(&a, text, 2, MANY_KEYS, 0, -1) && compute(&a);
    for (int rank = 0; rank < 3 && more; rank++)
        for (long n = 1; more; n++) {
            struct run run = { .all = &a };
            const struct mailbox_wishes wishes = {
                .seed = (uint64_t)n,
                .fail_rank = rank,
                .fail_at = n,
            };
            struct mailbox_story story;
            share_out(&run, 3, 3, true);
            mailbox_run(3, &wishes, decode, &run, &story);
            CHECK_THAT(!story.faults, "%s, operation %ld of rank %d: %s", text, n, rank,
                       story.fault);
            for (int r = 0; r < 3; r++)
                CHECK_THAT(story.failed[r] ? run.status[r] == LOCI_TRANSPORT
                                           : !run.status[r] && !run.wrong[r],
                           "%s, operation %ld of rank %d: rank %d has status %d, wrong %d", text, n,
                           rank, r, run.status[r], run.wrong[r]);
            if (story.operations[rank] < n) break;
        }
    drop(&a);
}

int main(int argc, char **argv)
{
    walk_only(argc, argv);
    for (struct walk_text t = { 0 }; walk_next(&t);)
        if (t.example && !walk_moves(t.text)) {
            walk_restart(7);
            arrays(t.text);
        }
    if (!walk_limited()) {
        static const char *const texts[] = { "alibi",
                                             "rope:pairing=half",
                                             "shaw",
                                             "cope",
                                             "sba",
                                             "xl",
                                             "t5:bidirectional=0+sink",
                                             "selfextend:pairing=half,group=8,window=4160",
                                             "dca:pairing=half,chunk=5000,local=900" };
        for (int i = 0; i < (int)(sizeof texts / sizeof *texts); i++) {
            positions(texts[i]);
            /* a cache stores rotated keys */
            const int rotated = !strncmp(texts[i], "rope", 4) || !strncmp(texts[i], "dca", 3);
            for (int gap = 0; gap <= PIECE; gap += PIECE) caches(texts[i], rotated, gap);
        }
        caches("rope:pairing=half+alibi", 1, 70);
        positions("logn:length=200,count=position");
        failing("alibi");
        failing("fox");
        refused("alibi", false, 4000, 2, 0, "multiple of 4096");
        refused("alibi", false, PIECE, 0, 0, "two shares");
        refused("fox", true, PIECE, 2, 0, "neither caches nor k_pos");
        refused("fox", false, PIECE, 2, 0, "neither caches nor k_pos");
        refused("ssmax", false, PIECE, 2, 0, "set count=position");
        refused("ssmax", true, PIECE, 2, 0, "set count=position");
        refused("alibi", false, PIECE, 2, 0.1, "dropout must be 0: decoding is for inference");
    }
    return harness_end();
}
