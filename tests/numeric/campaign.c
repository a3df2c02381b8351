/* SPDX-License-Identifier: MIT */
/* campaign.c -- random problems, one after the other.
 *
 *     compositions   encodings of any texts of the walk, combined; random shapes, windows, segments
 *                    and gradients; positions that repeat, fall, are far or negative: equal to the
 *                    float64 reference, and the same bits on each instruction set
 *     caches         random operations (append, truncate, remove, copy, move, decode) against plain
 *                    arrays with the same keys
 *     matrices       rotation blocks at positions from -2^40 to 2^40, as compositions
 *     linear         states of random chunks, copied and reused, against one call on all keys
 *     layers         the functions of loci/layers.h, in chunks with states, against definitions
 *     sizes          1000 heads, widths from 1 to 1024, 300000 keys
 *
 *     test_campaign [SECONDS [SEED [KIND]]]
 *
 * Without arguments it makes a few rounds of each kind, the same ones every time.  With SECONDS it
 * continues for that time, and prints the seed of each failure: SECONDS 0 repeats that round. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "math/half.h"
#include "loci/cache.h"
#include "contract/plan.h"
#include "reference/reference.h"
#include "harness.h"
#include "layers_round.h"
#include "mem.h"
#include "walk.h"

enum { PARTS = 4, MOST_TEXTS = 400, MOST_KEYS = 400, MOST_BATCH = 3 };

/* ---- Random numbers -------------------------------------------------------------------------- */

static unsigned long seed; /* of this round */
static long refused;       /* problems that the library rejected with a sentence */
static int below(int n) { return n < 2 ? 0 : (int)((walk_uniform() + 1) / 2 * n) % n; }
static bool one_in(int n) { return below(n) == 0; }
#define ONE_OF(list) (list)[below((int)(sizeof(list) / sizeof *(list)))]

static char texts[MOST_TEXTS][256];
static int text_count;
static void collect_texts(void)
{
    for (struct walk_text t = { 0 }; walk_next(&t) && text_count < MOST_TEXTS;)
        if (!t.drawn) snprintf(texts[text_count++], sizeof *texts, "%s", t.text);
}
/* One encoding of a random text. */
static const char *random_part(char part[256])
{
    const char *text = texts[below(text_count)], *at = text;
    int parts = 1;
    for (const char *p = text; *p; p++) parts += *p == '+';
    for (int n = below(parts); n; n--) at = strchr(at, '+') + 1;
    snprintf(part, 256, "%.*s", (int)strcspn(at, "+"), at);
    return part;
}
static const char *random_text(char text[2048])
{
    char part[256];
    text[0] = 0;
    for (int n = 1 + below(PARTS); n; n--) {
        if (*text) strcat(text, "+");
        strcat(text, random_part(part));
    }
    return text;
}

/* ---- Failures -------------------------------------------------------------------------------- */

static struct mem mem;
static bool said(const loci_error *e, loci_status s)
{
    return s != LOCI_OK && e->status == s && e->text[0] && !strchr(e->text, '\n');
}
/* A rejection must have one sentence. */
static bool refuses(const loci_desc *d, loci_status s, const loci_error *e)
{
    if (!s) return false;
    refused++;
    if (strstr(e->text, "work has")) CHECK_FAILED("seed %lu: %s: %s", seed, d->encoding, e->text);
    CHECK_THAT(said(e, s), "seed %lu: %s is refused (%d) without a sentence", seed, d->encoding, s);
    return true;
}

static loci_dtype real_of(loci_dtype d) { return d == LOCI_F64 ? LOCI_F64 : LOCI_F32; }

/* ---- Compositions ---------------------------------------------------------------------------- */

/* Positions of one list: counted, repeated, falling, random nearby, or far from 0. */
static void random_places(int64_t *at, ptrdiff_t n, int64_t base, int how, int reach)
{
    for (ptrdiff_t i = 0; i < n; i++)
        at[i] = base + (how == 0 ? i : how == 1 ? i / 3 : how == 2 ? n - 1 - i : below(reach));
}
struct shape {
    ptrdiff_t B, Lq, Lk;
    int H, G, D, Dv;
};
static struct shape random_shape(void)
{
    static const int lens[] = { 1, 2, 5, 9, 17, 33, 63, 64, 65, 90, 130 },
                     widths[] = { 8, 12, 1, 2, 4, 6, 16, 24, 5, 18, 36, 7 },
                     groups[] = { 1, 1, 2, 3 };
    struct shape s = { .B = 1 + below(MOST_BATCH),
                       .Lq = ONE_OF(lens),
                       .G = ONE_OF(groups),
                       .D = ONE_OF(widths),
                       .Dv = ONE_OF(widths) };
    s.Lk = one_in(2) ? s.Lq : ONE_OF(lens);
    s.H = s.G * ONE_OF(groups);
    if (one_in(3)) s.Dv = s.D;
    return s;
}
static loci_desc random_desc(const char *text, struct shape s)
{
    loci_desc d = { .size = sizeof d,
                    .encoding = text,
                    .heads = s.H,
                    .kv_heads = s.G,
                    .dim = s.D,
                    .value_dim = s.Dv,
                    .full = one_in(3) };
    if (one_in(3)) d.window_left = one_in(5) ? LOCI_NONE : 1 + below(70);
    if (one_in(4)) d.window_right = one_in(5) ? LOCI_NONE : 1 + below(70);
    if (one_in(5)) d.scale = 0.1 * (1 + below(20));
    if (one_in(4)) d.max_len = 1 + below(500);
    return d;
}

/* The same problem for any dtype: inputs in double, which are exact in float. */
struct composition {
    struct shape s;
    loci_call call;
    double *q, *k, *v, *dout, *dlse, *drem, *dae;
    int64_t range;
    double allowed; /* error of tensor gradients against the reference */
    int tensors;
    loci_tensor tensor[WALK_TENSORS];
    double *data[WALK_TENSORS];
    size_t count[WALK_TENSORS];
};
static double *doubles(size_t count, double size)
{
    double *x = mem_alloc(&mem, count * sizeof *x);
    for (size_t i = 0; i < count; i++) x[i] = (float)(size * walk_uniform());
    return x;
}
static void choose_places(struct composition *c, const loci_plan *plan, const char *text)
{
    static const int64_t bases[] = {
        0, 0, 0, 1000, -700, ((int64_t)1 << 40) - 600, -((int64_t)1 << 40), (int64_t)1 << 31
    };
    const struct shape *s = &c->s;
    c->range = (s->Lq > s->Lk ? s->Lq : s->Lk) + 1;
    c->allowed = 1e-7;
    const ptrdiff_t each = (c->call.per_batch = one_in(3)) ? s->B : 1;
    if (one_in(2)) {
        const int reach = 1 + below(500), q_how = below(4), k_how = one_in(2) ? q_how : below(4);
        /* far from 0 the reference needs milliseconds for every row of blocks */
        const bool blocks = strstr(text, "liere") || strstr(text, "comrope");
        const int64_t far = ONE_OF(bases),
                      base = blocks && s->B * s->H * (s->Lq + s->Lk) > 400 ? far % 1000 : far;
        int64_t *q = mem_alloc(&mem, (size_t)(each * s->Lq) * sizeof *q),
                *k = mem_alloc(&mem, (size_t)(each * s->Lk) * sizeof *k);
        for (ptrdiff_t b = 0; b < each; b++) {
            random_places(q + b * s->Lq, s->Lq, base, q_how, reach);
            random_places(k + b * s->Lk, s->Lk, base, k_how, reach);
        }
        c->call.q_pos = q;
        c->call.k_pos = k;
        c->range = 700;
        /* gradients of learned rates are sums over positions, which cancel; for matrices they have
         * many terms */
        c->allowed += (blocks ? 0x1p-47 : 0x1p-50) * fabs((double)base);
    }
    if (one_in(4)) {
        int64_t *q = mem_alloc(&mem, (size_t)(each * s->Lq) * sizeof *q),
                *k = mem_alloc(&mem, (size_t)(each * s->Lk) * sizeof *k);
        for (ptrdiff_t i = 0; i < each * s->Lq; i++) q[i] = below(4) - 1;
        for (ptrdiff_t i = 0; i < each * s->Lk; i++) k[i] = below(4) - 1;
        c->call.q_seg = q;
        c->call.k_seg = k;
    }
    const int axes = loci_axes(plan);
    if (axes < 2) return;
    double *q = mem_alloc(&mem, (size_t)(each * axes * s->Lq) * sizeof *q),
           *k = mem_alloc(&mem, (size_t)(each * axes * s->Lk) * sizeof *k);
    for (ptrdiff_t i = 0; i < each * axes * s->Lq; i++) q[i] = walk_coordinate(100);
    for (ptrdiff_t i = 0; i < each * axes * s->Lk; i++) k[i] = walk_coordinate(100);
    c->call.q_coord = q;
    c->call.k_coord = k;
}
static void choose_numbers(struct composition *c, const loci_plan *plan)
{
    const struct shape *s = &c->s;
    const size_t rows = (size_t)(s->B * s->H * s->Lq), keys = (size_t)(s->B * s->G * s->Lk);
    const double size = one_in(4) ? 6 : 1;
    c->q = doubles(rows * (size_t)s->D, size);
    c->k = doubles(keys * (size_t)s->D, size);
    c->v = doubles(keys * (size_t)s->Dv, 1);
    c->dout = doubles(rows * (size_t)s->Dv, 1);
    c->dlse = doubles(rows, 1);
    c->drem = doubles(rows, 1);
    c->dae = doubles(rows * (size_t)s->D, 1);
    c->tensors = loci_tensors(plan, c->tensor, WALK_TENSORS);
    for (int i = 0; i < c->tensors && i < WALK_TENSORS; i++) {
        const loci_tensor *t = &c->tensor[i];
        c->count[i] = walk_count(t, s->B, s->Lq, s->Lk);
        c->data[i] = doubles(c->count[i], t->role == LOCI_INPUT ? 1 : 0.3);
        if (t->role == LOCI_INPUT) {
            if (!strncmp(t->name, "log_", 4))
                for (size_t n = 0; n < c->count[i]; n++) c->data[i][n] = -fabs(c->data[i][n]);
            continue;
        }
        double *start = mem_alloc(&mem, c->count[i] * sizeof *start);
        loci_tensor_init(plan, i, seed, start);
        for (size_t n = 0; n < c->count[i]; n++)
            c->data[i][n] = (float)(start[n] + 0.1 + c->data[i][n]);
    }
}

/* All results of a pass, concatenated. */
struct results {
    loci_status status;
    size_t count, before; /* before: numbers in front of the gradients of tensors */
    double *x;
    loci_error e;
};
struct output {
    void *at;
    size_t count;
};
static void *copy_of(const double *x, size_t count, loci_dtype dtype)
{
    void *to = mem_alloc(&mem, count * stored_size(dtype));
    for (size_t i = 0; i < count; i++) store_stored(to, dtype, (ptrdiff_t)i, x[i]);
    return to;
}
static struct results compute(const struct composition *c, loci_desc d, loci_dtype dtype,
                              const char *isa, const loci_host *host, bool reference)
{
    struct results r = { .status = LOCI_OK };
    const struct shape *s = &c->s;
    const loci_dtype real = real_of(dtype);
    const size_t rows = (size_t)(s->B * s->H * s->Lq), keys = (size_t)(s->B * s->G * s->Lk);
    loci_plan *plan;
    d.dtype = dtype;
    d.isa = isa;
    if ((r.status = loci_plan_create(&plan, &d, &r.e))) return r;
    struct output out[8 + WALK_TENSORS] = { { NULL, rows * (size_t)s->Dv },
                                            { NULL, rows },
                                            { NULL, rows },
                                            { NULL, 0 },
                                            { NULL, rows * (size_t)s->D },
                                            { NULL, keys * (size_t)s->D },
                                            { NULL, keys * (size_t)s->Dv } };
    int outs = 7;
    void *data[WALK_TENSORS], *ddata[WALK_TENSORS];
    if (walk_states(d.encoding)) out[3].count = rows * (size_t)s->D;
    for (int i = 0; i < c->tensors; i++) {
        data[i] = copy_of(c->data[i], c->count[i], real);
        ddata[i] = NULL;
        if (c->tensor[i].role != LOCI_FIXED) out[outs++].count = c->count[i];
    }
    for (int i = 0; i < outs; i++)
        if (out[i].count)
            out[i].at =
                mem_alloc(&mem,
                          out[i].count
                              * stored_size(i == 1 || i == 2 || i == 3 || i > 6 ? real : dtype));
    for (int i = 0, at = 7; i < c->tensors; i++)
        if (c->tensor[i].role != LOCI_FIXED) ddata[i] = out[at++].at;
    const bool stick = strstr(d.encoding, "sba") != NULL;
    loci_call call = c->call;
    call.q.data = copy_of(c->q, rows * (size_t)s->D, dtype);
    call.k.data = copy_of(c->k, keys * (size_t)s->D, dtype);
    call.v.data = copy_of(c->v, keys * (size_t)s->Dv, dtype);
    call.o.data = out[0].at;
    call.ae = out[3].at;
    call.host = host;
    call.error = &r.e;
    *(stick ? &call.rem : &call.lse) = out[stick ? 2 : 1].at;
    out[stick ? 1 : 2].count = 0;
    call.tensors = (const void *const *)data;
    loci_grad g = { .size = sizeof g,
                    .dout.data = copy_of(c->dout, rows * (size_t)s->Dv, dtype),
                    .dq.data = out[4].at,
                    .dk.data = out[5].at,
                    .dv.data = out[6].at,
                    .dtensors = ddata };
    if (stick) g.drem = copy_of(c->drem, rows, real);
    else g.dlse = copy_of(c->dlse, rows, real);
    if (out[3].count) g.dae = copy_of(c->dae, rows * (size_t)s->D, real);
    if (reference) r.status = loci_reference(plan, call.tensors, &call, &g);
    else {
        const size_t bytes = loci_tables_size(plan, c->range);
        if (!bytes) {
            r.status = LOCI_BAD_ARG;
            r.e.status = r.status;
            strcpy(r.e.text, "tables");
        }
        void *tables = mem_alloc(&mem, bytes);
        if (!r.status) r.status = loci_prepare_on(host, plan, c->range, call.tensors, tables, &r.e);
        call.tables_bytes = bytes;
        for (int pass = 0; pass < 2 && !r.status; pass++) {
            call.work_bytes = loci_workspace(plan, &call, pass);
            void *work = mem_alloc(&mem, call.work_bytes);
            r.status = pass ? loci_backward(plan, tables, work, &call, &g)
                            : loci_forward(plan, tables, work, &call);
        }
    }
    loci_plan_destroy(plan);
    for (int i = 0; i < outs; i++) r.count += out[i].count;
    for (int i = 0; i < 7; i++) r.before += out[i].count;
    r.x = mem_alloc(&mem, r.count * sizeof *r.x);
    for (int i = 0, n = 0; i < outs && !r.status; i++)
        for (size_t k = 0; k < out[i].count; k++)
            r.x[n++] = load_stored(out[i].at, i == 1 || i == 2 || i == 3 || i > 6 ? real : dtype,
                                   (ptrdiff_t)k);
    return r;
}

/* All NaN are equal. */
static bool same_bits(const struct results *a, const struct results *b)
{
    for (size_t i = 0; i < a->count; i++)
        if (memcmp(&a->x[i], &b->x[i], sizeof *a->x) && !(isnan(a->x[i]) && isnan(b->x[i])))
            return false;
    return true;
}

/* Of numbers from .. to - 1. */
static double farthest(const struct results *a, const struct results *b, size_t from, size_t to,
                       size_t *where)
{
    double most = 0, far = 0;
    /* Powers that overflow, and learned numbers outside their domain, are not judged. */
    for (size_t i = 0; i < a->count; i++) {
        if (isnan(b->x[i])) return 0;
        if (isfinite(b->x[i])) most = fmax(most, fabs(b->x[i]));
    }
    if (most > 1e6) return 0;
    for (size_t i = from; i < to; i++) {
        const double x = a->x[i], y = b->x[i];
        const double d = x == y || (isnan(x) && isnan(y)) ? 0 : fabs(x - y) / (1 + most);
        if (!(d <= far)) {
            far = isnan(d) ? INFINITY : d;
            *where = i;
        }
    }
    return far;
}
static void describe(const struct composition *c, const loci_desc *d, char text[400])
{
    const struct shape *s = &c->s;
    snprintf(text, 400,
             "seed %lu: %.200s, batch %td, heads %d/%d, width %d/%d, %td rows, %td "
             "keys, full %d, window %lld/%lld%s%s",
             seed, d->encoding, s->B, s->H, s->G, s->D, s->Dv, s->Lq, s->Lk, d->full,
             (long long)d->window_left, (long long)d->window_right,
             c->call.q_pos ? ", positions" : "", c->call.q_seg ? ", segments" : "");
}
static loci_host pool;
static void compose(const char *text, struct shape shape)
{
    char about[400];
    struct composition c = { .s = shape };
    const struct shape *s = &c.s;
    loci_desc d = random_desc(text, *s);
    loci_error e = { 0 };
    loci_plan *plan;
    d.dtype = LOCI_F64;
    if (refuses(&d, loci_plan_create(&plan, &d, &e), &e)) return;
    c.call = (loci_call){ .size = sizeof c.call, .batch = s->B, .q_len = s->Lq, .k_len = s->Lk };
    choose_places(&c, plan, text);
    choose_numbers(&c, plan);
    loci_plan_destroy(plan);
    describe(&c, &d, about);
    if (getenv("CAMPAIGN_SHOW")) fprintf(stderr, "%s\n", about);
    size_t at = 0;
    const struct results a = compute(&c, d, LOCI_F64, NULL, NULL, false),
                         b = a.status ? a : compute(&c, d, LOCI_F64, NULL, NULL, true);
    if (refuses(&d, a.status, &a.e)) return;
    if (b.status) {
        CHECK_FAILED("%s: the reference says %s", about, b.e.text);
        return;
    }
    for (int tensors = 0; tensors < 2; tensors++) {
        const double far = farthest(&a, &b, tensors ? a.before : 0, tensors ? a.count : a.before,
                                    &at),
                     allowed = tensors ? c.allowed : 1e-7;
        CHECK_THAT(far < allowed, "%s: number %zu is off by %.1e: %g for %g%s", about, at, far,
                   a.x[at], b.x[at], tensors ? ", a tensor's gradient" : "");
    }
    const char *isas[8];
    const int n = loci_isas(isas, 8);
    static const loci_dtype dtypes[] = { LOCI_F32, LOCI_F32, LOCI_BF16, LOCI_F16 };
    const loci_dtype dtype = ONE_OF(dtypes);
    const struct results one = compute(&c, d, dtype, isas[0], NULL, false),
                         other = compute(&c, d, dtype, isas[below(n)], &pool, false);
    CHECK_THAT(one.status == other.status && (one.status || same_bits(&one, &other)),
               "%s: instruction sets or threads differ", about);
}

static void compositions(void)
{
    char text[2048];
    const struct shape s = random_shape();
    compose(random_text(text), s);
}
/* Heads of width 1, whose gradients by key are rows that consist almost only of padding. */
static void narrow(void)
{
    compose("cope:npos=5,gates=given", (struct shape){ 2, 65, 65, 2, 1, 1, 7 });
    compose("cope:npos=5,gates=given+fox", (struct shape){ 1, 9, 130, 4, 2, 1, 1 });
}

/* Rotation blocks on one axis, whose angles are positions times learned rates. */
static void matrices(void)
{
    static const char *const list[] = {
        "liere:block=2,axes=1",   "liere:block=3,axes=1",
        "liere:block=6,axes=1",   "liere:block=4,axes=1+alibi",
        "comrope:axes=1",         "comrope:block=3,axes=1",
        "comrope:kind=ld,axes=1", "comrope:kind=ld,block=4,axes=1+fox",
    };
    struct shape s = random_shape();
    if (s.Lq > 17) s.Lq = 17; /* few rows may be far from 0 */
    if (s.Lk > 17) s.Lk = 17;
    s.D = 12 * (1 + below(2));
    compose(ONE_OF(list), s);
}

/* ---- Caches ---------------------------------------------------------------------------------- */

/* Tokens are drawn from a bag.  A sequence is a list of them with their positions. */
enum { BAG = 64, REACH = 2000 };
struct key {
    int token;
    int64_t pos;
};
struct sequences {
    int64_t len[MOST_BATCH];
    struct key key[MOST_BATCH][MOST_KEYS];
    bool placed, cut;        /* with positions; a ring that was truncated */
    bool turned[MOST_BATCH]; /* keys were rotated again, so their bits differ */
};
struct caches {
    loci_desc desc;
    struct shape s;
    loci_plan *plan;
    void *tables;
    int capacity, ring, axes, tensors;
    loci_tensor tensor[WALK_TENSORS];
    void *data[WALK_TENSORS]; /* LEARNED ones; for INPUT ones by key the bag's */
    char *k, *v;              /* [BAG][G][D], [BAG][G][Dv] */
    double *coord;            /* [BAG][axes] */
    loci_cache *cache;
    void *memory;
    size_t bytes;
    loci_error e;
};

static bool ordered_sum(const struct caches *c)
{
    return c->desc.keys_rotated && c->plan->rotate >= 0;
}

/* A tensor around the axis that a call fills in: keys, or queries. */
struct axes {
    size_t outer, inner;
    bool by_key;
};
static struct axes axes_of(const loci_tensor *t)
{
    struct axes a = { 1, 1, false };
    bool behind = false;
    for (int i = 1; i < t->rank; i++) {
        if (t->shape[i] == LOCI_DIM_KEYS) a.by_key = behind = true;
        else if (t->shape[i] == LOCI_DIM_QUERIES) behind = true;
        else *(behind ? &a.inner : &a.outer) *= (size_t)t->shape[i];
    }
    return a;
}
/* Numbers of keys, [entries][heads][n][width], of a list for each entry, aligned at their ends. */
static void *gather(const struct key *const *list, const int64_t *counts, ptrdiff_t entries,
                    size_t heads, ptrdiff_t n, size_t bytes, const char *bag)
{
    char *to = mem_alloc(&mem, (size_t)(entries * n) * heads * bytes);
    for (ptrdiff_t b = 0; b < entries; b++)
        for (size_t h = 0; h < heads; h++)
            for (ptrdiff_t j = 0; j < counts[b]; j++)
                memcpy(to
                           + (((size_t)b * heads + h) * (size_t)n + (size_t)(n - counts[b] + j))
                                 * bytes,
                       bag + ((size_t)list[b][j].token * heads + h) * bytes, bytes);
    return to;
}
/* A call's k, v, coordinates, positions and inputs by key. */
static void give_keys(struct caches *c, loci_call *call, const struct key *const *list,
                      const int64_t *counts, ptrdiff_t entries, ptrdiff_t n, bool placed,
                      void **data)
{
    const size_t size = stored_size(c->desc.dtype), real = stored_size(real_of(c->desc.dtype));
    const struct shape *s = &c->s;
    call->k.data = gather(list, counts, entries, (size_t)s->G, n, (size_t)s->D * size, c->k);
    call->v.data = gather(list, counts, entries, (size_t)s->G, n, (size_t)s->Dv * size, c->v);
    call->k_len = n;
    call->per_batch = 1;
    for (int i = 0; i < c->tensors; i++) {
        const struct axes a = axes_of(&c->tensor[i]);
        data[i] = c->data[i];
        if (c->tensor[i].role == LOCI_INPUT && a.by_key)
            data[i] = gather(list, counts, entries, a.outer, n, a.inner * real, c->data[i]);
    }
    call->tensors = (const void *const *)data;
    int64_t *pos = mem_alloc(&mem, (size_t)(entries * n) * sizeof *pos);
    double *coord = mem_alloc(&mem, (size_t)(entries * n * c->axes) * sizeof *coord);
    for (ptrdiff_t b = 0; b < entries; b++)
        for (ptrdiff_t j = 0; j < n; j++) {
            const ptrdiff_t own = j - (n - counts[b]);
            pos[b * n + j] = own < 0 ? 0 : list[b][own].pos;
            for (int a = 0; a < c->axes; a++)
                coord[(b * c->axes + a) * n + j] =
                    own < 0 ? 0 : c->coord[list[b][own].token * c->axes + a];
        }
    if (placed) call->k_pos = pos;
    if (c->axes > 1) call->k_coord = coord;
}
static void open_memory(struct caches *c, const void *from)
{
    void *memory = mem_alloc(&mem, c->bytes);
    if (from) memcpy(memory, from, c->bytes);
    const loci_status status =
        from ? loci_cache_open(&c->cache, c->plan, memory, c->bytes, &c->e)
             : loci_cache_create(&c->cache, c->plan, c->s.B, c->capacity, c->ring, memory, &c->e);
    CHECK_THAT(!status, "seed %lu: %s: a cache cannot be opened: %s", seed, c->desc.encoding,
               c->e.text);
    c->memory = memory;
}
static bool open_caches(struct caches *c, const char *text)
{
    static const loci_dtype dtypes[] = { LOCI_F32, LOCI_F64, LOCI_BF16, LOCI_F16 };
    c->s = random_shape();
    c->desc = random_desc(text, c->s);
    c->desc.dtype = ONE_OF(dtypes);
    c->desc.keys_rotated = below(2);
    c->ring = one_in(3);
    c->capacity = 1 + below(MOST_KEYS);
    if (c->ring) {
        c->desc.window_left = 1 + below(60);
        c->capacity = 150 + below(100);
    }
    loci_status status = loci_plan_create(&c->plan, &c->desc, &c->e);
    if (refuses(&c->desc, status, &c->e)) return false;
    c->bytes = loci_cache_size(c->plan, c->s.B, c->capacity);
    void *memory = mem_alloc(&mem, c->bytes);
    status = loci_cache_create(&c->cache, c->plan, c->s.B, c->capacity, c->ring, memory, &c->e);
    if (refuses(&c->desc, status, &c->e)) return false;
    const loci_dtype real = real_of(c->desc.dtype);
    const struct shape *s = &c->s;
    c->axes = loci_axes(c->plan);
    c->tensors = loci_tensors(c->plan, c->tensor, WALK_TENSORS);
    c->k = copy_of(doubles((size_t)(BAG * s->G * s->D), 1), (size_t)(BAG * s->G * s->D),
                   c->desc.dtype);
    c->v = copy_of(doubles((size_t)(BAG * s->G * s->Dv), 1), (size_t)(BAG * s->G * s->Dv),
                   c->desc.dtype);
    c->coord = mem_alloc(&mem, (size_t)(BAG * c->axes) * sizeof *c->coord);
    for (int i = 0; i < BAG * c->axes; i++) c->coord[i] = walk_coordinate(90);
    for (int i = 0; i < c->tensors; i++) {
        const size_t count = walk_count(&c->tensor[i], BAG, MOST_KEYS, 1);
        double *x = doubles(count, 0.4);
        for (size_t n = 0; n < count; n++) x[n] -= 0.5;
        if (c->tensor[i].role != LOCI_INPUT) loci_tensor_init(c->plan, i, 1, x);
        c->data[i] = mem_alloc(&mem, count * stored_size(real));
        if (c->tensor[i].role != LOCI_INPUT) loci_tensor_init(c->plan, i, 1, c->data[i]);
        else
            for (size_t n = 0; n < count; n++) store_stored(c->data[i], real, (ptrdiff_t)n, x[n]);
    }
    c->tables = mem_alloc(&mem, loci_tables_size(c->plan, REACH));
    status = loci_prepare_on(NULL, c->plan, REACH, (const void *const *)c->data, c->tables, &c->e);
    return !refuses(&c->desc, status, &c->e);
}
/* Exactly the size from loci_workspace(). 64 bytes for an invalid call. */
static void *work_for(const struct caches *c, loci_call *call)
{
    const size_t bytes = loci_workspace(c->plan, call, 0);
    call->work_bytes = bytes ? bytes : 64;
    return mem_alloc(&mem, call->work_bytes);
}

static bool append_some(struct caches *c, struct sequences *m)
{
    const ptrdiff_t n = 1 + below(one_in(3) ? 100 : 6);
    const struct key *list[MOST_BATCH];
    int64_t counts[MOST_BATCH];
    struct sequences after = *m;
    bool empty = true;
    for (ptrdiff_t b = 0; b < c->s.B; b++) empty &= m->len[b] == 0;
    if (empty) after.placed = !c->ring && one_in(3);
    for (ptrdiff_t b = 0; b < c->s.B; b++) {
        counts[b] = one_in(2) ? n : below((int)n + 1);
        if (m->len[b] + counts[b] > MOST_KEYS) return true;
        for (int64_t j = 0; j < counts[b]; j++)
            after.key[b][after.len[b]++] =
                (struct key){ below(BAG), after.placed ? below(800) - 300 : m->len[b] + j };
        list[b] = after.key[b] + m->len[b];
    }
    loci_call call = { .size = sizeof call,
                       .batch = c->s.B,
                       .q_len = n,
                       .cache = c->cache,
                       .k_lens = counts,
                       .error = &c->e,
                       .host = one_in(2) ? &pool : NULL };
    void *data[WALK_TENSORS];
    give_keys(c, &call, list, counts, c->s.B, n, after.placed, data);
    const loci_status status =
        loci_cache_append(c->plan, c->tables, work_for(c, &call), c->cache, &call);
    if (refuses(&c->desc, status, &c->e)) return strstr(c->e.text, "fit") != NULL;
    *m = after;
    return true;
}
static bool decode_some(struct caches *c, const struct sequences *m)
{
    const struct shape *s = &c->s;
    const size_t size = stored_size(c->desc.dtype), real = stored_size(real_of(c->desc.dtype));
    int64_t shortest = m->len[0];
    for (ptrdiff_t b = 1; b < s->B; b++) shortest = m->len[b] < shortest ? m->len[b] : shortest;
    const int most = shortest < 20 ? (int)shortest : 20;
    const ptrdiff_t n = 1 + below(most);
    const size_t rows = (size_t)(s->B * s->H * n), q_row = (size_t)(s->H * n * s->D) * size,
                 o_row = (size_t)(s->H * n * s->Dv) * size;
    loci_call call = { .size = sizeof call,
                       .batch = s->B,
                       .q_len = n,
                       .cache = c->cache,
                       .per_batch = 1,
                       .error = &c->e,
                       .host = one_in(2) ? &pool : NULL };
    call.q.data = copy_of(doubles(rows * (size_t)s->D, 1), rows * (size_t)s->D, c->desc.dtype);
    call.o.data = mem_alloc(&mem, rows * (size_t)s->Dv * size);
    int64_t *pos = mem_alloc(&mem, (size_t)(s->B * n) * sizeof *pos);
    double *coord = mem_alloc(&mem, (size_t)(s->B * n * c->axes) * sizeof *coord);
    for (ptrdiff_t i = 0; i < s->B * n; i++) pos[i] = below(800) - 300;
    for (ptrdiff_t i = 0; i < s->B * n * c->axes; i++) coord[i] = walk_coordinate(90);
    if (m->placed) call.q_pos = pos;
    if (c->axes > 1) call.q_coord = coord;
    call.tensors = (const void *const *)c->data;
    const loci_status status = loci_forward(c->plan, c->tables, work_for(c, &call), &call);
    if (refuses(&c->desc, status, &c->e)) return m->cut;
    for (ptrdiff_t b = 0; b < s->B; b++) {
        const struct key *const list = m->key[b];
        void *data[WALK_TENSORS];
        loci_call one = call;
        one.batch = 1;
        one.cache = NULL;
        one.host = NULL;
        one.k_lens = &m->len[b];
        give_keys(c, &one, &list, &m->len[b], 1, m->len[b], m->placed, data);
        for (int i = 0; i < c->tensors; i++) {
            const struct axes a = axes_of(&c->tensor[i]);
            if (c->tensor[i].role == LOCI_INPUT && !a.by_key)
                data[i] = (char *)c->data[i] + (size_t)b * a.outer * (size_t)n * a.inner * real;
        }
        one.q.data = (char *)call.q.data + (size_t)b * q_row;
        one.o.data = mem_alloc(&mem, o_row);
        if (m->placed) one.q_pos = pos + b * n;
        if (c->axes > 1) one.q_coord = coord + b * n * c->axes;
        loci_status plain = LOCI_OK;
        if (ordered_sum(c)) {
            const size_t wide = (size_t)(s->G * m->len[b] * walk_key_dim(&c->desc));
            const loci_view to =
                walk_wide_keys(&c->desc, (ptrdiff_t)m->len[b], mem_alloc(&mem, wide * size));
            plain = loci_rotate(c->plan, c->tables, work_for(c, &one), &one, LOCI_CACHE, one.k, to);
            one.k = to;
        }
        if (!plain) plain = loci_forward(c->plan, c->tables, work_for(c, &one), &one);
        /* An entry without keys has none for a row of its own.  Next to longer entries it needs
         * none. */
        if (plain && !m->len[b]) continue;
        if (plain) {
            CHECK_FAILED("seed %lu: %s: arrays are refused where a cache is not: %s", seed,
                         c->desc.encoding, c->e.text);
            return false;
        }
        const char *got = (char *)call.o.data + (size_t)b * o_row;
        double far = memcmp(got, one.o.data, o_row) ? INFINITY : 0;
        if (far > 0 && m->turned[b]) {
            far = 0;
            for (ptrdiff_t i = 0; i < s->H * n * s->Dv; i++)
                far = fmax(far, fabs(load_stored(got, c->desc.dtype, i)
                                     - load_stored(one.o.data, c->desc.dtype, i)));
        }
        const double allowed = m->turned[b] ? size == 2 ? 0.1 : 1e-3 : 0;
        if (!CHECK_THAT(far <= allowed,
                        "seed %lu: %s, dtype %d, %td rows, %lld keys of entry "
                        "%td%s%s: a cache is off by %.1e",
                        seed, c->desc.encoding, (int)c->desc.dtype, n, (long long)m->len[b], b,
                        m->placed ? ", placed" : "", c->ring ? ", a ring" : "", far))
            return false;
    }
    return true;
}
static bool remove_some(struct caches *c, struct sequences *m)
{
    const int b = below((int)c->s.B);
    const int64_t first = below((int)m->len[b] + 1), count = below((int)(m->len[b] - first) + 1);
    loci_call call = {
        .size = sizeof call, .batch = c->s.B, .q_len = 1, .cache = c->cache, .error = &c->e
    };
    void *work = work_for(c, &call);
    const loci_status status =
        loci_cache_remove(c->plan, c->tables, work, c->cache, b, first, count, &call);
    if (refuses(&c->desc, status, &c->e)) return true;
    if (!count) return true;
    for (int64_t j = first; j < m->len[b] - count; j++) {
        m->key[b][j] = m->key[b][j + count];
        m->key[b][j].pos -= count;
    }
    m->len[b] -= count;
    m->turned[b] |= ordered_sum(c);
    return true;
}
static bool truncate_some(struct caches *c, struct sequences *m)
{
    const int b = below((int)c->s.B);
    const int64_t length = one_in(6) ? 0 : m->len[b] - below((int)m->len[b] / 3 + 1);
    if (refuses(&c->desc, loci_cache_truncate(c->cache, b, length, &c->e), &c->e)) return c->ring;
    m->len[b] = length;
    m->cut |= c->ring;
    if (!length) m->turned[b] = false;
    return true;
}
static long operations;
static void caches(void)
{
    char text[2048];
    struct caches c[2] = { { .ring = 0 } };
    static struct sequences model[2];
    memset(model, 0, sizeof model);
    if (!open_caches(&c[0], random_text(text))) {
        loci_plan_destroy(c[0].plan);
        return;
    }
    c[1] = c[0];
    open_memory(&c[0], NULL);
    open_memory(&c[1], NULL);
    bool ok = true;
    if (getenv("CAMPAIGN_SHOW"))
        fprintf(stderr,
                "seed %lu: %s, batch %td, heads %d/%d, width %d/%d, dtype %d, rotated "
                "%d, ring %d, capacity %d\n",
                seed, text, c[0].s.B, c[0].s.H, c[0].s.G, c[0].s.D, c[0].s.Dv, (int)c[0].desc.dtype,
                c[0].desc.keys_rotated, c[0].ring, c[0].capacity);
    const int mine = mem.blocks;
    for (int i = 0; i < 40 && ok; i++, operations++) {
        const int x = below(2), what = below(10);
        if (what < 4) ok = append_some(&c[x], &model[x]);
        else if (what < 7) ok = decode_some(&c[x], &model[x]);
        else if (what == 7) ok = remove_some(&c[x], &model[x]);
        else if (what == 8) ok = truncate_some(&c[x], &model[x]);
        else { /* a copy of the other, opened in place of this one */
            memcpy(c[x].memory, c[!x].memory, c[x].bytes);
            ok = CHECK_THAT(!loci_cache_open(&c[x].cache, c[x].plan, c[x].memory, c[x].bytes,
                                             &c[x].e),
                            "seed %lu: %s: a copy: %s", seed, text, c[x].e.text);
            model[x] = model[!x];
        }
        for (ptrdiff_t b = 0; b < c[x].s.B && ok; b++)
            ok =
                CHECK_THAT(loci_cache_length(c[x].cache, b) == model[x].len[b],
                           "seed %lu: %s: entry %td has %lld keys of %lld", seed, text, b,
                           (long long)loci_cache_length(c[x].cache, b), (long long)model[x].len[b]);
        mem_release(&mem, mine);
    }
    loci_plan_destroy(c[0].plan);
}

/* ---- Linear attention ------------------------------------------------------------------------ */

/* Rows and keys from .. from + n of a whole call.  All entries are dense in their own call. */
static void *slice(const char *x, ptrdiff_t outer, ptrdiff_t len, ptrdiff_t from, ptrdiff_t n,
                   size_t bytes)
{
    char *to = mem_alloc(&mem, (size_t)(outer * n) * bytes);
    for (ptrdiff_t o = 0; o < outer; o++)
        memcpy(to + (size_t)(o * n) * bytes, x + (size_t)(o * len + from) * bytes,
               (size_t)n * bytes);
    return to;
}
static void linear(void)
{
    static const char *const list[] = {
        "nope",
        "rope:pairing=interleaved",
        "rope:pairing=half,base=50",
        "rope:pairing=half,freq=given,attention_factor=1.2",
        "liere:block=2,axes=1",
        "liere:block=5,axes=1",
        "fope:train_length=40,learn=1",
    };
    static const loci_dtype dtypes[] = { LOCI_F32, LOCI_F64, LOCI_BF16, LOCI_F16 };
    struct shape s = random_shape();
    s.Lk = s.Lq = 1 + below(200);
    loci_desc d = { .size = sizeof d,
                    .encoding = ONE_OF(list),
                    .stage = LOCI_LINEAR_ATTENTION,
                    .heads = s.H,
                    .kv_heads = s.G,
                    .dim = s.D,
                    .value_dim = s.Dv,
                    .dtype = ONE_OF(dtypes) };
    loci_error e = { 0 };
    loci_plan *plan;
    if (refuses(&d, loci_plan_create(&plan, &d, &e), &e)) return;
    const ptrdiff_t L = s.Lk;
    const size_t size = stored_size(d.dtype), rows = (size_t)(s.B * s.H * L),
                 keys = (size_t)(s.B * s.G * L), state = loci_linear_state(plan, s.B),
                 tables = loci_tables_size(plan, 2 * L);
    loci_tensor tensor[WALK_TENSORS];
    void *data[WALK_TENSORS];
    const int tensors = loci_tensors(plan, tensor, WALK_TENSORS);
    for (int i = 0; i < tensors; i++) {
        data[i] =
            mem_alloc(&mem, walk_count(&tensor[i], s.B, L, L) * stored_size(real_of(d.dtype)));
        loci_tensor_init(plan, i, seed, data[i]);
    }
    void *table = mem_alloc(&mem, tables);
    loci_call call = { .size = sizeof call,
                       .batch = s.B,
                       .q_len = L,
                       .k_len = L,
                       .error = &e,
                       .tensors = (const void *const *)data };
    call.q.data = copy_of(doubles(rows * (size_t)s.D, 1), rows * (size_t)s.D, d.dtype);
    call.k.data = copy_of(doubles(keys * (size_t)s.D, 1), keys * (size_t)s.D, d.dtype);
    call.v.data = copy_of(doubles(keys * (size_t)s.Dv, 1), keys * (size_t)s.Dv, d.dtype);
    call.o.data = mem_alloc(&mem, rows * (size_t)s.Dv * size);
    loci_status status = loci_prepare(plan, 2 * L, call.tensors, table);
    char *own = mem_alloc(&mem, state), *spare = mem_alloc(&mem, state);
    if (!status)
        status = loci_linear_forward(plan, table, mem_alloc(&mem, loci_workspace(plan, &call, 0)),
                                     &call, NULL, NULL);
    CHECK_THAT(!status, "seed %lu: linear %s: %s", seed, d.encoding, e.text);
    const int mine = mem.blocks;
    for (ptrdiff_t at = 0, n; at < L && !status; at += n, mem_release(&mem, mine)) {
        n = 1 + below((int)(L - at < 70 ? L - at : 70));
        loci_call part = call;
        part.q_len = part.k_len = n;
        part.host = one_in(2) ? &pool : NULL;
        part.q.data = slice(call.q.data, s.B * s.H, L, at, n, (size_t)s.D * size);
        part.k.data = slice(call.k.data, s.B * s.G, L, at, n, (size_t)s.D * size);
        part.v.data = slice(call.v.data, s.B * s.G, L, at, n, (size_t)s.Dv * size);
        part.o.data = mem_alloc(&mem, (size_t)(s.B * s.H * n * s.Dv) * size);
        const bool in_place = one_in(2);
        status = loci_linear_forward(plan, table, mem_alloc(&mem, loci_workspace(plan, &part, 0)),
                                     &part, at ? own : NULL, in_place ? own : spare);
        if (!in_place) memcpy(own, spare, state);
        const void *want = slice(call.o.data, s.B * s.H, L, at, n, (size_t)s.Dv * size);
        CHECK_THAT(!status && !memcmp(want, part.o.data, (size_t)(s.B * s.H * n * s.Dv) * size),
                   "seed %lu: linear %s, %td of %td from %td on: %s", seed, d.encoding, n, L, at,
                   status ? e.text : "other bits");
    }
    loci_plan_destroy(plan);
}

/* ---- Sizes ----------------------------------------------------------------------------------- */

static void sizes(void)
{
    char part[256];
    const char *text = random_part(part);
    struct shape s = { 1, 1 + below(3), 1 + below(5), 2, 1, 4, 4 };
    const int what = below(3);
    if (what == 0) {
        s.H = 1000;
        s.G = one_in(2) ? 1000 : 8;
    }
    if (what == 1) {
        s.D = 1 + below(1024);
        s.Dv = 1 + below(1024);
    }
    if (what == 2) {
        s.Lk = LOCI_SLOW || LOCI_EMULATED ? 9000 : 300000;
        s.H = 1;
    }
    if (one_in(3)) s.Dv = s.D;
    compose(text, s);
}

/* ---- Layers ---------------------------------------------------------------------------------- */

static void layers(void) { layers_round(seed, one_in(2) ? &pool : NULL, &mem); }

/* ---- Rounds ---------------------------------------------------------------------------------- */

static const struct kind {
    const char *name;
    void (*round)(void);
    int few; /* rounds without arguments */
} kinds[] = {
    { "compositions", compositions, 60 },
    { "narrow", narrow, 4 },
    { "matrices", matrices, 12 },
    { "caches", caches, 60 },
    { "linear", linear, 40 },
    { "layers", layers, 100 },
    { "sizes", sizes, 5 },
};
static void round_of(const struct kind *k, unsigned long number)
{
    seed = number;
    walk_restart((int)(number % 1000000007));
    k->round();
    mem_release(&mem, 0);
}
/* Rounds of a kind: a few, or for the given seconds, or the one of this seed. */
static void run(const struct kind *k, double seconds, unsigned long first)
{
    const time_t end = time(NULL) + (time_t)seconds;
    const bool forever = seconds > 0, one = seconds == 0;
    const int few = LOCI_SLOW || LOCI_EMULATED ? k->few / 4 + 1 : k->few;
    long rounds = 0;
    refused = 0;
    const int before = harness_checks();
    while (forever ? time(NULL) < end : rounds < (one ? 1 : few))
        round_of(k, first + (unsigned long)rounds++);
    printf("%s: %ld rounds, %d checks, %ld problems refused with a sentence\n", k->name, rounds,
           harness_checks() - before, refused);
    if (operations) printf("%s: %ld operations\n", k->name, operations);
    operations = 0;
    fflush(stdout);
}

int main(int argc, char **argv)
{
    const double seconds = argc > 1 ? atof(argv[1]) : -1;
    const unsigned long first = argc > 2 ? strtoul(argv[2], NULL, 10) : 1;
    const char *only = argc > 3 ? argv[3] : NULL;
    const int count = sizeof kinds / sizeof *kinds;
#ifdef LOCI_NO_THREADS
    if (loci_pool_create(&pool, 1)) return 2;
#else
    if (loci_pool_create(&pool, 2)) return 2;
#endif
    collect_texts();
    for (int i = 0; i < count; i++)
        if (!only || !strcmp(only, kinds[i].name))
            run(&kinds[i], only ? seconds : seconds / count, first);
    loci_pool_destroy(&pool);
    return harness_end();
}
