/* SPDX-License-Identifier: MIT */
/* call.c -- bytes become a description, a call and its contents.  Most are valid calls, and in some
 * an option, a list or a stride is arbitrary.
 *
 *     rejected      one sentence gives the reason, and nothing is written
 *     cancelled     outputs are undefined
 *     computed      the numbers are those of the reference, with gradients; another instruction
 *                   set, with other threads, has the same bits; nothing is written behind outputs
 *
 * A stride or a length that the library cannot recognise as invalid is never used: its memory would
 * not exist. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "math/q8.h"
#include "fuzz.h"
#include "loci/cache.h"
#include "loci/convert.h"
#include "reference/reference.h"

enum { MOST_TENSORS = 40, MOST_BLOCKS = 256, MOST_AXES = 3, MOST_RANGE = 4000 };
enum { MOST_PAIRS = 10000 }; /* the reference is slow for each pair */

/* ---- Bytes ----------------------------------------------------------------------------------- */

static const uint8_t *at, *end;
static unsigned below(unsigned n) /* 0 when there are no more */
{
    if (at >= end || n < 2) return 0;
    unsigned x = *at++;
    if (n > 256 && at < end) x |= (unsigned)*at++ << 8;
    return x % n;
}
static bool one_in(unsigned n) { return below(256) >= 256 - 256 / n; }
#define ONE_OF(list) (list)[below(sizeof(list) / sizeof *(list))]

/* Contents are as random as their seed. */
static uint64_t state;
static double uniform(void) /* -1 .. 1, exact in bf16 */
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return ((double)(state >> 58) - 31.5) / 32;
}

static int64_t anything(void)
{
    static const int64_t list[] = { 0,
                                    1,
                                    -1,
                                    2,
                                    63,
                                    64,
                                    65,
                                    4095,
                                    4096,
                                    (int64_t)1 << 31,
                                    -((int64_t)1 << 31),
                                    (int64_t)1 << 40,
                                    -((int64_t)1 << 40),
                                    ((int64_t)1 << 40) + 1,
                                    (int64_t)1 << 62,
                                    -((int64_t)1 << 62),
                                    INT64_MIN,
                                    INT64_MIN + 1,
                                    INT64_MAX };
    return ONE_OF(list);
}

/* ---- Memory with a guard behind its end ------------------------------------------------------ */

static struct {
    unsigned char *p;
    size_t bytes;
} blocks[MOST_BLOCKS];
static int block_count;
static void *alloc(size_t bytes)
{
    unsigned char *p = NULL;
    FUZZ_CHECK(block_count < MOST_BLOCKS);
    p = aligned_alloc(64, (bytes + 127) / 64 * 64);
    FUZZ_CHECK(p != NULL);
    memset(p, 0xff, (bytes + 127) / 64 * 64);
    blocks[block_count].p = p;
    blocks[block_count++].bytes = bytes;
    return p;
}
static void give_back(void)
{
    for (int i = 0; i < block_count; i++) {
        for (size_t k = blocks[i].bytes; k < (blocks[i].bytes + 127) / 64 * 64; k++)
            if (blocks[i].p[k] != 0xff) {
                fprintf(stderr, "byte %zu behind %zu of block %d was written\n", k, blocks[i].bytes,
                        i);
                abort();
            }
        free(blocks[i].p);
    }
    block_count = 0;
}
static void store(void *to, loci_dtype dtype, size_t i, double x)
{
    if (dtype == LOCI_F64) ((double *)to)[i] = x;
    if (dtype == LOCI_F32) ((float *)to)[i] = (float)x;
    if (dtype == LOCI_BF16) ((uint16_t *)to)[i] = to_bf16((float)x);
    if (dtype == LOCI_F16) ((uint16_t *)to)[i] = to_f16((float)x);
}
static double load(const void *from, loci_dtype dtype, size_t i)
{
    return dtype == LOCI_F64  ? ((const double *)from)[i]
         : dtype == LOCI_F32  ? (double)((const float *)from)[i]
         : dtype == LOCI_BF16 ? (double)from_bf16(((const uint16_t *)from)[i])
                              : (double)from_f16(((const uint16_t *)from)[i]);
}
static size_t size_of(loci_dtype d) { return d == LOCI_F64 ? 8 : d == LOCI_F32 ? 4 : 2; }

/* ---- A problem ------------------------------------------------------------------------------- */

/* A tensor [batch][heads][len][width], in double, and in the engine's form. */
struct array {
    ptrdiff_t n[4];
    double *exact;
    loci_view view;
    size_t bytes;
};
struct problem {
    char text[256];
    loci_desc desc;
    ptrdiff_t range;
    loci_call call, exact; /* of the engine, and of the reference */
    loci_grad grad, exact_grad;
    loci_host pool, host;
    long cancel_at, asked;
    struct array q, k, v, o, dout, dq, dk, dv, mask;
    int tensors;
    loci_tensor tensor[MOST_TENSORS];
    size_t count[MOST_TENSORS];
    void *data[MOST_TENSORS], *ddata[MOST_TENSORS];
    double *exact_data[MOST_TENSORS], *exact_ddata[MOST_TENSORS];
    size_t rows;         /* batch, heads and queries */
    bool backward, dull; /* dull: numbers that the reference can judge */
    loci_pages pages;
    bool cached; /* keys are in a cache */
    /* Keys and values of another type are given as a cache wants them, in the type of queries. */
    bool to_cache;
};
/* The type in which keys, or values, are given. */
static loci_dtype given_type(const struct problem *p, loci_dtype own)
{
    return p->to_cache || !own ? p->desc.dtype : own;
}
static bool mixed(const struct problem *p) { return p->desc.k_dtype || p->desc.v_dtype; }
static loci_dtype real_of(const struct problem *p)
{
    return p->desc.dtype == LOCI_F64 ? LOCI_F64 : LOCI_F32;
}

static void choose_text(struct problem *p)
{
    static const char *const more[] = {
        "sink",
        "softcap:cap=3",
        "t5:bidirectional=0",
        "rope:pairing=half",
        "alibi",
        "cope",
        "sba:remainder=vector",
        "sba:remainder=value",
        "fox:stop=0.001",
        "cape",
        "rope2d",
        "fox",
        "wall",
        "ssmax",
        "logn:length=12",
        "alibi:slopes=both",
        "rope:pairing=half,values=1",
        "rope:pairing=half,positions=given",
    };
    const loci_encoding_info *list;
    const unsigned n = (unsigned)loci_encodings(&list);
    snprintf(p->text, sizeof p->text, "%.120s", list[below(n)].example);
    for (unsigned i = one_in(3); i && strlen(p->text) < 130; i--)
        snprintf(p->text + strlen(p->text), sizeof p->text - strlen(p->text), "+%s", ONE_OF(more));
}
static void describe(struct problem *p)
{
    static const int heads[] = { 1, 2, 4, 3, 6 }, dims[] = { 8, 4, 12, 16, 6, 24, 2, 1, 7 };
    static const loci_dtype dtypes[] = { LOCI_F32, LOCI_F32, LOCI_F64, LOCI_BF16, LOCI_F16 };
    loci_desc *d = &p->desc;
    *d = (loci_desc)LOCI_DESC(.encoding = p->text, .heads = ONE_OF(heads), .dim = ONE_OF(dims),
                              .dtype = ONE_OF(dtypes));
    d->kv_heads = one_in(2) ? d->heads : d->heads % 2 ? 1 : d->heads / 2;
    if (one_in(3)) d->value_dim = ONE_OF(dims);
    d->full = one_in(3);
    if (one_in(3)) d->window_left = one_in(4) ? anything() : (int64_t)below(80);
    if (one_in(4)) d->window_right = one_in(4) ? anything() : (int64_t)below(80);
    if (one_in(6)) d->scale = 0.25 * (1 + below(8));
    if (one_in(12)) d->max_len = (ptrdiff_t)(one_in(2) ? anything() : 100);
    if (one_in(8)) d->keys_rotated = 1;
    if (one_in(24)) d->heads = (int)anything();
    if (one_in(24)) d->kv_heads = (int)anything();
    if (one_in(24)) d->dim = (int)anything();
    if (one_in(24)) d->value_dim = (int)anything();
    if (one_in(32)) d->scale = one_in(2) ? NAN : -INFINITY;
    if (one_in(32)) d->stage = (loci_stage)below(6);
    if (one_in(32)) d->dtype = (loci_dtype)below(9);
    if (!one_in(8)) return;
    static const loci_dtype stored[] = { LOCI_Q8_0, LOCI_Q8_0, LOCI_BF16, LOCI_F16, LOCI_F32 };
    d->k_dtype = ONE_OF(stored);
    d->v_dtype = ONE_OF(stored);
    if (!one_in(8)) d->dim = 32 * (1 + (int)below(2));
    if (!one_in(8)) d->value_dim = 32;
    p->to_cache = one_in(2);
    if (one_in(16)) d->k_dtype = (loci_dtype)below(9);
}
/* Rounds rows of an array to blocks of q8_0.  Its exact numbers are then those of the blocks. */
static void store_blocks(const struct array *a, ptrdiff_t row, ptrdiff_t head, ptrdiff_t batch)
{
    const ptrdiff_t H = a->n[1], L = a->n[2], W = a->n[3];
    for (ptrdiff_t n = 0; n < a->n[0] * H * L; n++) {
        char *to = (char *)a->view.data
                 + stored_bytes(LOCI_Q8_0, n / L / H * batch + n / L % H * head + n % L * row);
        FUZZ_CHECK(!loci_round(LOCI_Q8_0, W, a->exact + n * W, to));
        for (ptrdiff_t w = 0; w < W; w++) a->exact[n * W + w] = stored_number(to, LOCI_Q8_0, w);
    }
}

/* Dense, token-major, or with gaps.  Inputs may also have the same numbers for each batch entry. */
static void lay_out(struct problem *p, struct array *a, loci_dtype dtype, bool in)
{
    const ptrdiff_t B = a->n[0], H = a->n[1], L = a->n[2], W = a->n[3];
    const size_t all = (size_t)(B * H * L * W);
    loci_view *v = &a->view;
    unsigned how = below(in ? 5 : 4);
    const bool in_blocks = dtype == LOCI_Q8_0 && W % Q8_BLOCK == 0;
    const ptrdiff_t gap = in_blocks ? Q8_BLOCK : 3, more = in_blocks ? Q8_BLOCK : 5;
    if (how == 0) *v = (loci_view){ .batch = 0 };
    if (how == 1) *v = (loci_view){ .batch = H * L * W, .head = L * W, .row = W };
    if (how == 2) *v = (loci_view){ .batch = L * H * W, .head = W, .row = H * W };
    if (how == 3)
        *v = (loci_view){ .batch = H * (L * (W + gap) + more),
                          .head = L * (W + gap) + more,
                          .row = W + gap };
    if (how == 4) *v = (loci_view){ .batch = LOCI_BROADCAST, .head = L * W, .row = W };
    a->exact = alloc(all * sizeof(double));
    for (size_t i = 0; i < all; i++) a->exact[i] = uniform();
    for (size_t i = (size_t)(H * L * W); i < all && how == 4; i++)
        a->exact[i] = a->exact[i - (size_t)(H * L * W)];
    const ptrdiff_t row = how ? v->row : W, head = how ? v->head : L * W,
                    batch = how == 4 ? 0
                          : how      ? v->batch
                                     : H * L * W;
    const ptrdiff_t last = (B - 1) * batch + (H - 1) * head + (L - 1) * row + W;
    a->bytes = !all      ? 0
             : in_blocks ? (size_t)stored_bytes(dtype, last)
                         : (size_t)last * size_of(dtype);
    v->data = alloc(a->bytes);
    if (in_blocks && all) store_blocks(a, row, head, batch);
    for (ptrdiff_t n = 0; n < B * H * L && in && !in_blocks; n++)
        for (ptrdiff_t w = 0; w < W; w++)
            store(v->data, dtype, (size_t)(n / L / H * batch + n / L % H * head + n % L * row + w),
                  a->exact[n * W + w]);
    if (in && one_in(40)) {
        v->row = -v->row - (v->row == 0);
        p->dull = false;
    }
    if (one_in(60)) {
        v->batch = PTRDIFF_MAX / 2;
        p->dull = false;
    }
    if (one_in(60)) {
        v->data = NULL;
        p->dull = false;
    }
}
static double number(const struct array *a, loci_dtype dtype, ptrdiff_t n, ptrdiff_t w)
{
    const ptrdiff_t H = a->n[1], L = a->n[2], W = a->n[3];
    const loci_view *v = &a->view;
    const bool dense = !v->batch && !v->head && !v->row;
    const ptrdiff_t row = dense ? W : v->row, head = dense ? L * W : v->head,
                    batch = dense ? H * L * W : v->batch;
    return load(v->data, dtype, (size_t)(n / L / H * batch + n / L % H * head + n % L * row + w));
}
static struct array array(ptrdiff_t B, ptrdiff_t H, ptrdiff_t L, ptrdiff_t W)
{
    return (struct array){ .n = { B, H, L, W } };
}

/* A list of n numbers: from a start with a step, or arbitrary. */
static int64_t *list_of(struct problem *p, ptrdiff_t n, int64_t from, int64_t step)
{
    int64_t *list = alloc((size_t)n * sizeof *list);
    for (ptrdiff_t i = 0; i < n; i++) list[i] = from + step * i;
    if (n && one_in(12)) {
        list[below((unsigned)n)] = anything();
        p->dull = false;
    }
    return list;
}
static void choose_places(struct problem *p)
{
    static const int64_t starts[] = {
        0, 0, 7, -50, 100000, ((int64_t)1 << 40) - 200, -((int64_t)1 << 40)
    };
    loci_call *c = &p->call;
    const ptrdiff_t each = c->per_batch ? c->batch : 1, Lq = c->q_len, Lk = c->k_len;
    if (one_in(3)) {
        const int64_t from = ONE_OF(starts), step = 1 + below(3);
        const int64_t own = one_in(2) ? step : 1 + below(3);
        c->q_pos = list_of(p, each * Lq, from + (each > 1 ? 0 : (Lk - Lq) * step), own);
        c->k_pos = list_of(p, each * Lk, from, step);
        p->range = each > 1 ? MOST_RANGE : p->range * 3;
        if (one_in(24)) c->k_pos = NULL;
    }
    if (one_in(5)) {
        int64_t *q = list_of(p, each * Lq, 0, 0), *k = list_of(p, each * Lk, 0, 0);
        const ptrdiff_t unit = 1 + (ptrdiff_t)below(20);
        for (ptrdiff_t i = 0; i < each * Lq; i++) q[i] = i % (Lq ? Lq : 1) / unit - one_in(30);
        for (ptrdiff_t i = 0; i < each * Lk; i++) k[i] = i % (Lk ? Lk : 1) / unit;
        c->q_seg = q;
        c->k_seg = k;
    } else if (one_in(6)) {
        c->k_lens = list_of(p, c->batch, Lk > 2 ? Lk - 2 : Lk, 0);
    } else if (one_in(6) && c->batch == 1) {
        int64_t *q = list_of(p, 3, 0, 0), *k = list_of(p, 3, 0, 0);
        q[1] = Lq / 2;
        q[2] = Lq;
        k[1] = Lk / 3;
        k[2] = Lk;
        c->q_starts = q;
        c->k_starts = k;
        c->sequences = 2;
        if (one_in(12)) q[1] = anything();
    }
    if (one_in(8)) {
        c->k_first = list_of(p, each * Lq, -3, 1);
        c->k_last = list_of(p, each * Lq, (int64_t)below(40), 1);
    }
}
static void choose_mask(struct problem *p)
{
    loci_call *c = &p->call;
    if (!one_in(6)) return;
    p->mask = array(c->batch, p->desc.heads, c->q_len, c->k_len);
    c->mask_kind = one_in(2) ? LOCI_MASK_SEEN : LOCI_MASK_ADDED;
    struct array *m = &p->mask;
    const size_t all = (size_t)(m->n[0] * m->n[1] * m->n[2] * m->n[3]);
    const bool shared = one_in(2), by_row = one_in(4); /* by the heads; by all keys */
    const size_t pairs = (size_t)(m->n[2] * m->n[3]);
    m->exact = alloc(all * sizeof(double));
    for (size_t i = 0; i < all; i++) m->exact[i] = one_in(4) ? -INFINITY : uniform();
    for (size_t i = 0; i < all && shared; i++) m->exact[i] = m->exact[i % pairs];
    for (size_t i = 0; i < all && by_row; i++) m->exact[i] = m->exact[i - i % (size_t)m->n[3]];
    unsigned char *bytes = alloc(all);
    void *numbers = alloc(all * size_of(real_of(p)));
    for (size_t i = 0; i < all; i++) bytes[i] = m->exact[i] != -INFINITY;
    for (size_t i = 0; i < all; i++) store(numbers, real_of(p), i, m->exact[i]);
    c->mask.data = c->mask_kind == LOCI_MASK_SEEN ? (void *)bytes : numbers;
    p->exact.mask.data = c->mask_kind == LOCI_MASK_SEEN ? (void *)bytes : (void *)m->exact;
    if (shared && c->mask.data) {
        c->mask.row = p->exact.mask.row = m->n[3];
        c->mask.head = c->mask.batch = LOCI_BROADCAST;
        p->exact.mask.head = p->exact.mask.batch = LOCI_BROADCAST;
    }
    /* Only the first number of each row is read then. */
    if (by_row && c->mask.data) {
        if (!shared) {
            c->mask.row = m->n[3];
            c->mask.head = m->n[2] * m->n[3];
            c->mask.batch = m->n[1] * m->n[2] * m->n[3];
            p->exact.mask.row = c->mask.row;
            p->exact.mask.head = c->mask.head;
            p->exact.mask.batch = c->mask.batch;
        }
        c->mask_key = LOCI_BROADCAST;
    }
    /* Bytes are no numbers, so never the other kind. */
    if (one_in(24)) c->mask_kind = one_in(3) ? LOCI_NO_MASK : (loci_mask)(3 + below(3));
    if (one_in(48)) c->mask_key = 1 - (ptrdiff_t)below(4);
}

/* The reference drops the same weights. */
static void choose_dropout(struct problem *p)
{
    static const double some[] = { 0.1, 0.5, 0.9, 0.25, 1e-9, 1, -0.5, NAN };
    loci_call *c = &p->call;
    if (!one_in(6)) return;
    c->dropout = ONE_OF(some);
    c->dropout_seed = (uint64_t)anything();
    c->dropout_offset = (uint64_t)anything();
}

/* Keys and values in pages of some length, in reverse order. */
static void choose_pages(struct problem *p)
{
    loci_call *c = &p->call;
    if (p->backward || mixed(p) || !p->dull || !c->k_len || !c->batch || !one_in(8)) return;
    const ptrdiff_t length = 1 + (ptrdiff_t)below(20), n = (c->k_len + length - 1) / length,
                    all = n * c->batch, H = p->k.n[1];
    int32_t *table = alloc((size_t)all * sizeof *table);
    struct array *const from[] = { &p->k, &p->v };
    for (ptrdiff_t i = 0; i < all; i++) table[i] = (int32_t)(all - 1 - i);
    for (int x = 0; x < 2; x++) {
        const ptrdiff_t W = from[x]->n[3];
        void *to = alloc((size_t)(all * H * length * W) * size_of(p->desc.dtype));
        for (ptrdiff_t i = 0; i < c->batch * H * c->k_len * W; i++) {
            const ptrdiff_t w = i % W, j = i / W % c->k_len, h = i / W / c->k_len % H,
                            b = i / W / c->k_len / H, page = table[b * n + j / length];
            store(to, p->desc.dtype, (size_t)(((page * H + h) * length + j % length) * W + w),
                  from[x]->exact[i]);
        }
        *(x ? &c->v : &c->k) = (loci_view){ .data = to };
    }
    p->pages = (loci_pages){ table, length, n };
    if (one_in(16)) table[below((unsigned)all)] = -1;
    const int64_t other = anything();
    if (one_in(16)) {
        p->pages.length = (ptrdiff_t)(other > 0 ? -other : other);
        p->dull = false;
    }
    c->pages = &p->pages;
}

static int asks(void *user)
{
    struct problem *p = user;
    return ++p->asked == p->cancel_at;
}
static void run(void *user, int n, void (*job)(void *arg, int index), void *arg)
{
    const struct problem *p = user;
    p->pool.run(p->pool.user, n, job, arg);
}
static void choose_host(struct problem *p)
{
    loci_call *c = &p->call;
    if (one_in(3) && !loci_pool_create(&p->pool, 2)) {
        p->host = (loci_host){ .run = run, .user = p, .threads = 2 };
        c->host = &p->host;
    }
    if (!one_in(8)) return;
    p->host.cancelled = asks;
    p->host.user = p;
    p->cancel_at = 1 + below(30);
    c->host = &p->host;
}

/* The count of walk_count(). */
static size_t count_of(const loci_tensor *t, const loci_call *c)
{
    size_t n = 1;
    for (int i = 0; i < t->rank; i++)
        n *= (size_t)(t->shape[i] == LOCI_DIM_BATCH     ? c->batch
                      : t->shape[i] == LOCI_DIM_QUERIES ? c->q_len
                      : t->shape[i] == LOCI_DIM_KEYS    ? c->k_len
                                                        : t->shape[i]);
    return n;
}
static void choose_tensors(struct problem *p, const loci_plan *plan)
{
    p->tensors = loci_tensors(plan, p->tensor, MOST_TENSORS);
    FUZZ_CHECK(p->tensors <= MOST_TENSORS);
    for (int i = 0; i < p->tensors; i++) {
        const loci_tensor *t = &p->tensor[i];
        const size_t n = p->count[i] = count_of(t, &p->call);
        const loci_source source = loci_tensor_source(plan, i);
        const loci_dtype real = real_of(p);
        p->data[i] = alloc(n * size_of(real));
        p->ddata[i] = alloc(n * size_of(real));
        p->exact_data[i] = alloc(n * sizeof(double));
        p->exact_ddata[i] = alloc(n * sizeof(double));
        memset(p->data[i], 0, n * size_of(real));
        if (t->role != LOCI_INPUT) loci_tensor_init(plan, i, 1, p->data[i]);
        for (size_t k = 0; k < n; k++) {
            double x = load(p->data[i], real, k);
            if (t->role == LOCI_INPUT)
                x = !strcmp(t->name, "log_f")      ? -0.02 - 0.01 * uniform()
                  : source == LOCI_SOURCE_STRENGTH ? 1 + uniform()
                  : source == LOCI_SOURCE_UNIT     ? uniform() / sqrt(p->desc.dim)
                                                   : 0.5 * uniform();
            else if (t->role == LOCI_LEARNED && x == 0) x = 0.1 * uniform();
            store(p->data[i], real, k, x);
            p->exact_data[i][k] = load(p->data[i], real, k);
        }
    }
}

/* ---- Invariants ------------------------------------------------------------------------------ */

static bool untouched(const void *x, size_t bytes)
{
    for (size_t i = 0; x && i < bytes; i++)
        if (((const unsigned char *)x)[i] != 0xff) return false;
    return true;
}
static void check_sentence(const loci_error *e, loci_status s)
{
    FUZZ_CHECK(e->status == s && strlen(e->text) > 10 && strlen(e->text) < sizeof e->text);
    FUZZ_CHECK(!strchr(e->text, '\n'));
}

/* The largest error claimed by an encoding of the text. */
static double claim(const char *text)
{
    const loci_encoding_info *list;
    double most = 0;
    const int n = loci_encodings(&list);
    for (; text; text = strchr(text, '+') ? strchr(text, '+') + 1 : NULL)
        for (int i = 0; i < n; i++)
            if (strcspn(text, ":+") == strlen(list[i].name)
                && !strncmp(text, list[i].name, strlen(list[i].name)))
                most += list[i].tolerance;
    return most;
}
static double rounding(loci_dtype d)
{
    return d == LOCI_BF16 ? 0x1p-7 : d == LOCI_F16 ? 0x1p-10 : 0;
}
/* bound: relative to the largest number. */
static void compare(const char *name, const double *want, size_t n, double bound,
                    double (*got)(const void *of, size_t i), const void *of)
{
    double most = 0;
    for (size_t i = 0; i < n; i++)
        if (isfinite(want[i]) && fabs(want[i]) > most) most = fabs(want[i]);
    for (size_t i = 0; i < n; i++) {
        const double x = got(of, i);
        const bool good = isfinite(want[i]) ? fabs(x - want[i]) <= bound * (1 + most)
                                            : x == want[i] || (x != x && want[i] != want[i]);
        if (!good) fprintf(stderr, "%s[%zu] is %.9g, wanted %.9g\n", name, i, x, want[i]);
        FUZZ_CHECK(good);
    }
}
struct typed {
    const struct array *a;
    loci_dtype dtype;
    const void *list;
};
static double of_array(const void *of, size_t i)
{
    const struct typed *t = of;
    return number(t->a, t->dtype, (ptrdiff_t)i / t->a->n[3], (ptrdiff_t)i % t->a->n[3]);
}
static double of_list(const void *of, size_t i)
{
    const struct typed *t = of;
    return load(t->list, t->dtype, i);
}
static void compare_array(const struct problem *p, const char *name, const struct array *a,
                          double bound)
{
    if (!a->view.data) return;
    compare(name, a->exact, (size_t)(a->n[0] * a->n[1] * a->n[2] * a->n[3]),
            bound + rounding(p->desc.dtype), of_array,
            &(struct typed){ .a = a, .dtype = p->desc.dtype });
}
static void compare_list(const struct problem *p, const char *name, const void *got,
                         const double *want, size_t n, double bound)
{
    if (got)
        compare(name, want, n, bound, of_list, &(struct typed){ .list = got, .dtype = real_of(p) });
}

/* The reference gets the same positions and masks, and dense arrays of doubles. */
static void judge(struct problem *p)
{
    loci_plan *exact;
    loci_error e = { 0 };
    loci_desc d = p->desc;
    loci_call *c = &p->exact;
    const void *mask = c->mask.data;
    const loci_view m = c->mask;
    d.dtype = LOCI_F64;
    d.k_dtype = d.v_dtype = 0;
    d.isa = NULL;
    if (p->cached) d.keys_rotated = 0;
    FUZZ_CHECK(!loci_plan_create(&exact, &d, &e));
    *c = p->call;
    c->mask = m;
    c->mask.data = (void *)mask;
    c->q = (loci_view){ .data = p->q.exact };
    c->k = (loci_view){ .data = p->k.exact };
    c->v = (loci_view){ .data = p->v.exact };
    c->o = (loci_view){ .data = p->o.exact };
    c->host = NULL;
    c->work_bytes = c->tables_bytes = 0;
    c->pages = NULL;
    c->cache = NULL;
    c->k_len = p->k.n[2];
    double *lse = alloc(p->rows * sizeof *lse), *rem = alloc(p->rows * sizeof *rem);
    c->lse = p->call.lse ? lse : NULL;
    c->rem = p->call.rem ? rem : NULL;
    c->ae = NULL;
    c->tensors = (const void *const *)p->exact_data;
    loci_grad *g = &p->exact_grad;
    *g = (loci_grad)LOCI_GRAD(.dout.data = p->dout.exact, .dq.data = p->dq.exact,
                              .dk.data = p->dk.exact, .dv.data = p->dv.exact,
                              .dtensors = (void *const *)p->exact_ddata);
    FUZZ_CHECK(
        !loci_reference(exact, (const void *const *)p->exact_data, c, p->backward ? g : NULL));
    loci_plan_destroy(exact);
    /* In 16 bits o is rounded before gradients are computed from it. */
    const double bound = p->desc.dtype == LOCI_F64 ? 1e-10 : 4 * claim(p->text) + 2e-6,
                 back = 10 * bound + 4 * rounding(p->desc.dtype);
    compare_array(p, "o", &p->o, bound);
    compare_list(p, "lse", p->call.lse, lse, p->rows, bound);
    compare_list(p, "rem", p->call.rem, rem, p->rows, bound);
    if (!p->backward) return;
    compare_array(p, "dq", &p->dq, back);
    compare_array(p, "dk", &p->dk, back);
    compare_array(p, "dv", &p->dv, back);
    for (int i = 0; i < p->tensors; i++)
        if (p->tensor[i].role != LOCI_FIXED)
            compare_list(p, p->tensor[i].name, p->ddata[i], p->exact_ddata[i], p->count[i],
                         10 * back);
}

/* ---- Calls ----------------------------------------------------------------------------------- */

/* A hash of the outputs' bits only. */
static uint64_t hash_of(const void *x, size_t bytes, uint64_t h)
{
    for (size_t i = 0; x && i < bytes; i++)
        h = (h ^ ((const unsigned char *)x)[i]) * UINT64_C(0x100000001b3);
    return h;
}
static uint64_t hash(const struct problem *p)
{
    const size_t real = size_of(real_of(p));
    uint64_t h = hash_of(p->o.view.data, p->o.bytes, 1);
    h = hash_of(p->call.lse, p->rows * real, h);
    h = hash_of(p->call.rem, p->rows * real, h);
    if (!p->backward) return h;
    h = hash_of(p->dq.view.data, p->dq.bytes, h);
    h = hash_of(p->dk.view.data, p->dk.bytes, h);
    h = hash_of(p->dv.view.data, p->dv.bytes, h);
    for (int i = 0; i < p->tensors; i++) h = hash_of(p->ddata[i], p->count[i] * real, h);
    return h;
}
/* Forward and backward.  LOCI_OK: all requested results are present. */
static loci_status call(struct problem *p, const loci_plan *plan, const void *tables)
{
    loci_error e = { 0 };
    p->call.error = &e;
    const size_t bytes = loci_workspace(plan, &p->call, p->backward);
    FUZZ_CHECK(bytes % 64 == 0);
    void *work = alloc(bytes ? bytes : 64);
    const size_t real = size_of(real_of(p));
    loci_status s = loci_forward(plan, tables, work, &p->call);
    FUZZ_CHECK(bytes || s);
    if (s && s != LOCI_CANCELLED) {
        check_sentence(&e, s);
        FUZZ_CHECK(untouched(p->o.view.data, p->o.bytes) && untouched(p->call.lse, p->rows * real)
                   && untouched(p->call.rem, p->rows * real));
    }
    if (s || !p->backward) return s;
    e = (loci_error){ 0 };
    s = loci_backward(plan, tables, work, &p->call, &p->grad);
    if (s && s != LOCI_CANCELLED) {
        check_sentence(&e, s);
        FUZZ_CHECK(untouched(p->dq.view.data, p->dq.bytes)
                   && untouched(p->dk.view.data, p->dk.bytes)
                   && untouched(p->dv.view.data, p->dv.bytes));
    }
    return s;
}
/* Another instruction set, and one thread, with the same bits. */
static void again(struct problem *p, ptrdiff_t range, uint64_t want)
{
    const char *isas[8];
    const int n = loci_isas(isas, 8);
    loci_desc d = p->desc;
    loci_plan *plan;
    loci_error e = { 0 };
    if (!n || p->desc.dtype == LOCI_F64) return;
    d.isa = isas[below((unsigned)n)];
    FUZZ_CHECK(!loci_plan_create(&plan, &d, &e));
    void *tables = alloc(loci_tables_size(plan, range));
    FUZZ_CHECK(!loci_prepare(plan, range, (const void *const *)p->data, tables));
    p->call.host = NULL;
    FUZZ_CHECK(!call(p, plan, tables));
    FUZZ_CHECK(hash(p) == want);
    loci_plan_destroy(plan);
}

static void print(const struct problem *p)
{
    const loci_desc *d = &p->desc;
    const loci_call *c = &p->call;
    fprintf(stderr,
            "%s: heads %d on %d, dim %d and %d, dtype %d, full %d, window %lld %lld, isa %s; batch "
            "%td, q_len %td, k_len %td, o %p %td %td %td, mask %d, %s\n",
            d->encoding, d->heads, d->kv_heads, d->dim, d->value_dim, (int)d->dtype, d->full,
            (long long)d->window_left, (long long)d->window_right, d->isa ? d->isa : "best",
            c->batch, c->q_len, c->k_len, c->o.data, c->o.batch, c->o.head, c->o.row,
            (int)c->mask_kind, p->backward ? "backward" : "forward");
    const struct {
        const char *name;
        const loci_view *v;
    } views[] = {
        { "q", &c->q },
        { "k", &c->k },
        { "v", &c->v },
    };
    for (size_t i = 0; i < sizeof views / sizeof *views; i++)
        fprintf(stderr, "    %s %p %td %td %td\n", views[i].name, views[i].v->data,
                views[i].v->batch, views[i].v->head, views[i].v->row);
    if (c->pages)
        fprintf(stderr, "    pages of %td, %td in an entry\n", c->pages->length, c->pages->entry);
    if (c->cache) fprintf(stderr, "    keys in a cache\n");
    const struct {
        const char *name;
        const int64_t *list;
    } lists[] = {
        { "q_pos", c->q_pos },       { "k_pos", c->k_pos },     { "q_seg", c->q_seg },
        { "k_seg", c->k_seg },       { "k_lens", c->k_lens },   { "q_starts", c->q_starts },
        { "k_starts", c->k_starts }, { "k_first", c->k_first }, { "k_last", c->k_last },
    };
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (lists[i].list)
            fprintf(stderr, "    %s %lld, %lld%s\n", lists[i].name, (long long)lists[i].list[0],
                    (long long)lists[i].list[1], c->per_batch ? ", per batch" : "");
}
/* Rotated keys of pope are twice as wide.  A cache gets them before that. */
static bool wide_keys(const struct problem *p)
{
    return p->desc.keys_rotated && strstr(p->text, "pope");
}
static void make_call(struct problem *p)
{
    static const unsigned lens[] = { 20, 1, 70, 2, 64, 65, 130, 5, 0 };
    loci_call *c = &p->call;
    const loci_desc *d = &p->desc;
    const loci_dtype dtype = d->dtype;
    const ptrdiff_t value = d->value_dim ? d->value_dim : d->dim;
    *c = (loci_call)LOCI_CALL(.batch = 1 + (ptrdiff_t)below(2), .q_len = (ptrdiff_t)ONE_OF(lens),
                              .per_batch = one_in(4));
    c->k_len = one_in(2) ? c->q_len : (ptrdiff_t)ONE_OF(lens);
    if (one_in(24)) c->batch = 0;
    p->range = (c->q_len > c->k_len ? c->q_len : c->k_len) + 1;
    p->rows = (size_t)(c->batch * d->heads * c->q_len);
    p->backward = one_in(2);
    p->q = array(c->batch, d->heads, c->q_len, d->dim);
    p->k = array(c->batch, d->kv_heads, c->k_len, wide_keys(p) ? 2 * d->dim : d->dim);
    p->v = array(c->batch, d->kv_heads, c->k_len, value);
    p->o = array(c->batch, d->heads, c->q_len, value);
    lay_out(p, &p->q, dtype, true);
    lay_out(p, &p->k, given_type(p, d->k_dtype), true);
    lay_out(p, &p->v, given_type(p, d->v_dtype), true);
    lay_out(p, &p->o, dtype, false);
    c->q = p->q.view;
    c->k = p->k.view;
    c->v = p->v.view;
    c->o = p->o.view;
    if (p->backward || one_in(2)) c->lse = alloc(p->rows * size_of(real_of(p)));
    if (p->backward || one_in(2)) c->rem = alloc(p->rows * size_of(real_of(p)));
    choose_places(p);
    choose_mask(p);
    choose_pages(p);
    choose_host(p);
    choose_dropout(p);
    if (one_in(60)) {
        c->q_len = (ptrdiff_t)anything();
        p->dull = false;
    }
    if (one_in(60)) {
        c->batch = (ptrdiff_t)anything();
        p->dull = false;
    }
    if (!p->backward) return;
    p->dout = array(p->o.n[0], p->o.n[1], p->o.n[2], p->o.n[3]);
    p->dq = p->q;
    p->dk = p->k;
    p->dv = p->v;
    lay_out(p, &p->dout, dtype, true);
    lay_out(p, &p->dq, dtype, false);
    lay_out(p, &p->dk, dtype, false);
    lay_out(p, &p->dv, dtype, false);
    p->grad = (loci_grad)LOCI_GRAD(.dout = p->dout.view, .dq = p->dq.view, .dk = p->dk.view,
                                   .dv = p->dv.view, .dtensors = (void *const *)p->ddata);
}

/* Appends keys to a cache in two parts.  The call is then a call on all keys. */
static bool fill_cache(struct problem *p, const loci_plan *plan, const void *tables)
{
    loci_call *c = &p->call, one = *c;
    loci_cache *cache;
    loci_error e = { 0 };
    const size_t each = size_of(p->desc.dtype);
    const ptrdiff_t Lk = c->k_len, first = Lk ? (ptrdiff_t)below((unsigned)Lk + 1) : 0;
    const size_t bytes = loci_cache_size(plan, c->batch, Lk + 3);
    if (!bytes) return false;
    FUZZ_CHECK(!loci_cache_create(&cache, plan, c->batch, Lk + 3, 0, alloc(bytes), &e));
    one.cache = cache;
    one.host = NULL;
    one.error = &e;
    for (int part = 0; part < 2; part++) {
        const ptrdiff_t from = part ? first : 0, n = part ? Lk - first : first;
        struct array *const of[] = { &p->k, &p->v };
        one.k_len = n;
        for (int x = 0; x < 2; x++) {
            const ptrdiff_t H = of[x]->n[1], W = of[x]->n[3];
            void *to = alloc((size_t)(c->batch * H * n * W) * each);
            for (ptrdiff_t i = 0; i < c->batch * H * n * W; i++)
                store(to, p->desc.dtype, (size_t)i,
                      of[x]->exact[(i / W / n * Lk + from + i / W % n) * W + i % W]);
            *(x ? &one.v : &one.k) = (loci_view){ .data = to };
        }
        const size_t work = loci_workspace(plan, &one, 0);
        if (!work || loci_cache_append(plan, tables, alloc(work), cache, &one)) {
            check_sentence(&e, e.status);
            return false;
        }
    }
    c->cache = cache;
    c->k_len = 0;
    p->cached = true;
    return true;
}
static bool cacheable(const struct problem *p)
{
    const loci_call *c = &p->call;
    for (int i = 0; i < p->tensors; i++)
        if (p->tensor[i].role == LOCI_INPUT) return false;
    return p->dull && !wide_keys(p) && !p->backward && !c->pages && !c->q_pos && !c->q_seg
        && !c->k_lens && !c->q_starts && !c->mask_kind && !c->k_first && c->dropout == 0 && c->batch
        && one_in(4);
}

/* Rows of an array for the first of `entries` entries of a call: row number i is row from + i of
 * entry 0 modulo its rows. */
static void *first_rows(const struct problem *p, const struct array *x, ptrdiff_t entries,
                        ptrdiff_t from, ptrdiff_t n)
{
    const ptrdiff_t H = x->n[1], L = x->n[2], W = x->n[3];
    char *to = alloc((size_t)(entries * H * n * W) * size_of(p->desc.dtype));
    for (ptrdiff_t i = 0; i < H * n * W; i++)
        store(to, p->desc.dtype, (size_t)i,
              x->exact[(i / W / n * L + (from + i / W % n) % L) * W + i % W]);
    return to;
}
/* Appends n tokens from number `from` on to entry 0 of a cache, and computes their last row; NULL
 * if it is refused. */
static void *step(struct problem *p, const loci_plan *plan, const void *tables, loci_cache *cache,
                  ptrdiff_t entries, ptrdiff_t from, ptrdiff_t n)
{
    loci_error e = { 0 };
    int64_t *lens = alloc((size_t)entries * sizeof *lens),
            *rows = alloc((size_t)entries * sizeof *rows);
    const size_t row = (size_t)(p->desc.heads * p->o.n[3]) * size_of(p->desc.dtype);
    memset(lens, 0, (size_t)entries * sizeof *lens);
    memset(rows, 0, (size_t)entries * sizeof *rows);
    lens[0] = n;
    rows[0] = 1;
    loci_call c =
        LOCI_CALL(.batch = entries, .q_len = 1, .k_len = n, .cache = cache, .k_lens = lens,
                  .q_lens = rows, .tensors = (const void *const *)p->data, .error = &e);
    c.k.data = first_rows(p, &p->k, entries, from, n);
    c.v.data = first_rows(p, &p->v, entries, from, n);
    c.o.data = alloc((size_t)entries * row);
    const size_t work = loci_workspace(plan, &c, 0);
    if (!work || loci_cache_append(plan, tables, alloc(work), cache, &c)) {
        check_sentence(&e, e.status);
        return NULL;
    }
    c.q.data = first_rows(p, &p->q, entries, from + n - 1, 1);
    c.k_len = 0;
    c.k_lens = NULL;
    if (loci_forward(plan, tables, alloc(work), &c)) {
        check_sentence(&e, e.status);
        return NULL;
    }
    return c.o.data;
}
/* A tree of tokens after some of the keys.  A node has the bits of decoding its path. */
static void grow_tree(struct problem *p, const loci_plan *plan, const void *tables)
{
    enum { MOST = 6 };
    const ptrdiff_t nodes = 1 + (ptrdiff_t)below(MOST), prefix = (ptrdiff_t)below(80),
                    entries = nodes + 1, each = (ptrdiff_t)size_of(p->desc.dtype);
    const int64_t zero = 0, one = 1, last = (int64_t)below((unsigned)nodes + 1) - 1;
    int64_t parents[MOST];
    ptrdiff_t path[MOST], depth = 0;
    loci_error e = { 0 };
    loci_cache *cache, *plain;
    const size_t bytes = loci_cache_size(plan, entries, prefix + nodes);
    if (!bytes || loci_axes(plan) > 1) return;
    for (ptrdiff_t i = 0; i < nodes; i++) parents[i] = (int64_t)below((unsigned)i + 1) - 1;
    if (one_in(16)) parents[below((unsigned)nodes)] = (int64_t)below(9) - 2;
    FUZZ_CHECK(!loci_cache_create(&cache, plan, entries, prefix + nodes, 0, alloc(bytes), &e));
    FUZZ_CHECK(!loci_cache_create(&plain, plan, 1, prefix + nodes, 0, alloc(bytes), &e));
    if (prefix
        && (!step(p, plan, tables, cache, entries, 0, prefix)
            || !step(p, plan, tables, plain, 1, 0, prefix)))
        return;
    const loci_tree tree =
        LOCI_TREE(.entry = &zero, .branch = &one, .room = nodes, .parents = parents);
    loci_call c = LOCI_CALL(.batch = 1, .q_len = nodes, .k_len = nodes,
                            .tensors = (const void *const *)p->data, .error = &e);
    const ptrdiff_t row = p->o.n[3] * each;
    c.q.data = first_rows(p, &p->q, 1, prefix, nodes);
    c.k.data = first_rows(p, &p->k, 1, prefix, nodes);
    c.v.data = first_rows(p, &p->v, 1, prefix, nodes);
    c.o.data = alloc((size_t)(p->desc.heads * nodes * row));
    const size_t work = loci_tree_workspace(plan, cache, &tree, &c);
    const loci_status s =
        loci_tree_forward(plan, tables, alloc(work ? work : 64), cache, &tree, &c);
    if (s) {
        check_sentence(&e, s);
        return;
    }
    for (int64_t i = last; i >= 0; i = parents[i]) path[depth++] = (ptrdiff_t)i;
    for (ptrdiff_t i = depth - 1; i >= 0; i--) {
        const char *o = step(p, plan, tables, plain, 1, prefix + path[i], 1);
        FUZZ_CHECK(o != NULL);
        for (ptrdiff_t h = 0; h < p->desc.heads; h++)
            FUZZ_CHECK(
                !memcmp(o + h * row, (char *)c.o.data + (h * nodes + path[i]) * row, (size_t)row));
    }
    FUZZ_CHECK(!loci_tree_keep(plan, tables, alloc(work), cache, &tree, &last, &c));
    FUZZ_CHECK(loci_cache_length(cache, 0) == prefix + depth);
}

static void attend(struct problem *p, loci_plan *plan)
{
    make_call(p);
    /* invalid lengths have no memory, and neither do tensors sized by them */
    const loci_call *c = &p->call;
    if (c->q_len != p->q.n[2] || c->batch != p->q.n[0]) {
        loci_call wrong = *c;
        wrong.q_pos = wrong.k_pos = wrong.q_seg = wrong.k_seg = wrong.k_lens = NULL;
        wrong.q_starts = wrong.k_starts = wrong.k_first = wrong.k_last = NULL;
        wrong.pages = NULL;
        wrong.mask_kind = LOCI_NO_MASK;
        wrong.mask_key = 0;
        FUZZ_CHECK(loci_forward(plan, NULL, NULL, &wrong) != LOCI_OK);
        return;
    }
    choose_tensors(p, plan);
    p->call.tensors = (const void *const *)p->data;
    const ptrdiff_t range = p->range < MOST_RANGE ? p->range : MOST_RANGE;
    const size_t bytes = loci_tables_size(plan, range);
    if (!bytes || bytes > (size_t)1 << 24) return;
    void *tables = alloc(bytes);
    loci_error e = { 0 };
    const loci_status ready =
        loci_prepare_on(NULL, plan, range, (const void *const *)p->data, tables, &e);
    if (ready) {
        check_sentence(&e, ready);
        return;
    }
    if (getenv("LOCI_FUZZ_SHOW")) print(p);
    const bool fill = cacheable(p) && p->to_cache == mixed(p);
    if (fill && one_in(2) && c->q_len && c->k_len) {
        grow_tree(p, plan, tables);
        return;
    }
    if (fill && !fill_cache(p, plan, tables)) return;
    const loci_status s = call(p, plan, tables);
    if (s) return;
    const uint64_t bits = hash(p);
    /* The reference handles whole entries only. */
    const bool parts = c->k_lens || c->q_starts;
    /* Only a cache accepts rows before its first key, which have no own one. */
    const bool ownless =
        p->cached && c->q_len > p->k.n[2] && strstr(p->text, "remainder=value") != NULL;
    /* Rotated keys are rounded if a cache has 16 bits, which makes another problem. */
    const bool rounded =
        p->cached ? mixed(p) || (p->desc.keys_rotated && size_of(p->desc.dtype) == 2) : p->to_cache;
    const ptrdiff_t pairs = (ptrdiff_t)p->rows * p->k.n[2];
    if (p->dull && !parts && !ownless && !rounded && pairs <= MOST_PAIRS
        && (p->cached || !p->desc.keys_rotated))
        judge(p);
    if (!p->cached) again(p, range, bits);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct problem *p = calloc(1, sizeof *p);
    FUZZ_CHECK(p != NULL);
    at = data;
    end = data + size;
    state = UINT64_C(0x9e3779b97f4a7c15) ^ (below(65536) + 1);
    p->dull = true;
    choose_text(p);
    describe(p);
    loci_plan *plan;
    loci_error e = { 0 };
    const loci_status s = loci_plan_create(&plan, &p->desc, &e);
    if (s) {
        FUZZ_CHECK(!plan);
        check_sentence(&e, s);
    } else if (p->desc.stage == LOCI_ATTENTION && p->desc.dim <= 64 && p->desc.heads <= 8) {
        if (!p->desc.kv_heads) p->desc.kv_heads = p->desc.heads;
        attend(p, plan);
    }
    if (!s) loci_plan_destroy(plan);
    if (p->pool.run) loci_pool_destroy(&p->pool);
    give_back();
    free(p);
    return 0;
}

/* One for each encoding, and some random starts. */
void fuzz_seeds(void (*add)(const void *, size_t))
{
    unsigned char bytes[96];
    uint64_t dice = 1;
    for (unsigned i = 0; i < 60; i++) {
        for (size_t k = 0; k < sizeof bytes; k++) {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            bytes[k] = (unsigned char)(i < 40 && k > 3 ? (dice >> 20) % 200 : dice >> 20);
        }
        bytes[0] = (unsigned char)i;
        bytes[1] = 0;
        bytes[2] = (unsigned char)i;
        add(bytes, sizeof bytes);
    }
}
