/* SPDX-License-Identifier: MIT */
/* campaign.c -- problems that nobody thought of, one after the other.
 *
 *     compositions   encodings of any texts of the walk, put together; random shapes, windows,
 *                    segments and gradients; positions that repeat, fall, are far or negative:
 *                    as the float64 reference, and the same bits on each instruction set
 *     caches         random operations (append, truncate, remove, copy, move, decode) against
 *                    plain arrays that hold the same keys
 *     linear         states of random chunks, copied and reused, against one call on all keys
 *     sizes          1000 heads, widths from 1 to 1024, 300000 keys
 *
 *     test_campaign [SECONDS [SEED [KIND]]]
 *
 * Without arguments it makes a few rounds of each kind, the same ones every time.  With SECONDS it
 * goes on for so long, and says the seed of what fails: SECONDS 0 repeats that round. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/half.h"
#include "loci/cache.h"
#include "reference/reference.h"
#include "harness.h"
#include "room.h"
#include "walk.h"

enum { PARTS = 4, MOST_TEXTS = 400, MOST_KEYS = 400, MOST_BATCH = 3 };

/* ---- Chance ---------------------------------------------------------------------------------- */

static unsigned long seed;               /* of this round */
static long refused;                     /* problems that the library refused, with a sentence */
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

/* ---- What is wrong --------------------------------------------------------------------------- */

static struct room room;
static bool said(const loci_error *e, loci_status s)
{
    return s != LOCI_OK && e->status == s && e->text[0] && !strchr(e->text, '\n');
}
/* A refusal must have one sentence. */
static bool refuses(const loci_desc *d, loci_status s, const loci_error *e)
{
    if (!s) return false;
    refused++;
    CHECK_THAT(said(e, s), "seed %lu: %s is refused (%d) without a sentence", seed, d->encoding, s);
    return true;
}

static loci_dtype real_of(loci_dtype d) { return d == LOCI_F64 ? LOCI_F64 : LOCI_F32; }

/* ---- Compositions ---------------------------------------------------------------------------- */

/* Positions of one list: counted, repeated, falling, anywhere near, or far from 0. */
static void random_places(int64_t *at, ptrdiff_t n, int64_t base, int how, int reach)
{
    for (ptrdiff_t i = 0; i < n; i++)
        at[i] = base + (how == 0 ? i : how == 1 ? i / 3 : how == 2 ? n - 1 - i : below(reach));
}
struct shape { ptrdiff_t B, Lq, Lk; int H, G, D, Dv; };
static struct shape random_shape(void)
{
    static const int lens[] = { 1, 2, 5, 9, 17, 33, 63, 64, 65, 90, 130 },
        widths[] = { 8, 12, 1, 2, 4, 6, 16, 24, 5, 18, 36, 7 }, groups[] = { 1, 1, 2, 3 };
    struct shape s = { .B = 1 + below(MOST_BATCH), .Lq = ONE_OF(lens), .G = ONE_OF(groups),
                       .D = ONE_OF(widths), .Dv = ONE_OF(widths) };
    s.Lk = one_in(2) ? s.Lq : ONE_OF(lens), s.H = s.G * ONE_OF(groups);
    if (one_in(3)) s.Dv = s.D;
    return s;
}
static loci_desc random_desc(const char *text, struct shape s)
{
    loci_desc d = { .size = sizeof d, .encoding = text, .heads = s.H, .kv_heads = s.G, .dim = s.D,
                    .value_dim = s.Dv, .full = one_in(3) };
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
    double allowed;                      /* of the engine in double against the reference */
    int tensors;
    loci_tensor tensor[WALK_TENSORS];
    double *data[WALK_TENSORS];
    size_t count[WALK_TENSORS];
};
static double *doubles(size_t count, double size)
{
    double *x = room_take(&room, count * sizeof *x);
    for (size_t i = 0; i < count; i++) x[i] = (float)(size * walk_uniform());
    return x;
}
static void choose_places(struct composition *c, const loci_plan *plan)
{
    static const int64_t bases[] = { 0, 0, 0, 1000, -700, ((int64_t)1 << 40) - 600,
                                     -((int64_t)1 << 40), (int64_t)1 << 31 };
    const struct shape *s = &c->s;
    c->range = (s->Lq > s->Lk ? s->Lq : s->Lk) + 1, c->allowed = 1e-7;
    const ptrdiff_t each = (c->call.per_batch = one_in(3)) ? s->B : 1;
    if (one_in(2)) {
        const int reach = 1 + below(500), q_how = below(4), k_how = one_in(2) ? q_how : below(4);
        const int64_t base = ONE_OF(bases);
        int64_t *q = room_take(&room, (size_t)(each * s->Lq) * sizeof *q),
                *k = room_take(&room, (size_t)(each * s->Lk) * sizeof *k);
        for (ptrdiff_t b = 0; b < each; b++) {
            random_places(q + b * s->Lq, s->Lq, base, q_how, reach);
            random_places(k + b * s->Lk, s->Lk, base, k_how, reach);
        }
        c->call.q_pos = q, c->call.k_pos = k, c->range = 700;
        /* gradients of learned frequencies are sums over positions, which cancel */
        c->allowed += 0x1p-50 * fabs((double)base);
    }
    if (one_in(4)) {
        int64_t *q = room_take(&room, (size_t)(each * s->Lq) * sizeof *q),
                *k = room_take(&room, (size_t)(each * s->Lk) * sizeof *k);
        for (ptrdiff_t i = 0; i < each * s->Lq; i++) q[i] = below(4) - 1;
        for (ptrdiff_t i = 0; i < each * s->Lk; i++) k[i] = below(4) - 1;
        c->call.q_seg = q, c->call.k_seg = k;
    }
    const int axes = loci_axes(plan);
    if (axes < 2) return;
    double *q = room_take(&room, (size_t)(each * axes * s->Lq) * sizeof *q),
           *k = room_take(&room, (size_t)(each * axes * s->Lk) * sizeof *k);
    for (ptrdiff_t i = 0; i < each * axes * s->Lq; i++) q[i] = walk_coordinate(100);
    for (ptrdiff_t i = 0; i < each * axes * s->Lk; i++) k[i] = walk_coordinate(100);
    c->call.q_coord = q, c->call.k_coord = k;
}
static void choose_numbers(struct composition *c, const loci_plan *plan)
{
    const struct shape *s = &c->s;
    const size_t rows = (size_t)(s->B * s->H * s->Lq), keys = (size_t)(s->B * s->G * s->Lk);
    const double size = one_in(4) ? 6 : 1;
    c->q = doubles(rows * (size_t)s->D, size), c->k = doubles(keys * (size_t)s->D, size);
    c->v = doubles(keys * (size_t)s->Dv, 1), c->dout = doubles(rows * (size_t)s->Dv, 1);
    c->dlse = doubles(rows, 1), c->drem = doubles(rows, 1);
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
        double *start = room_take(&room, c->count[i] * sizeof *start);
        loci_tensor_init(plan, i, seed, start);
        for (size_t n = 0; n < c->count[i]; n++)
            c->data[i][n] = (float)(start[n] + 0.1 + c->data[i][n]);
    }
}

/* All that a pass gives, one after the other. */
struct results { loci_status status; size_t count; double *x; bool states; loci_error e; };
struct output { void *at; size_t count; };
static void *copy_of(const double *x, size_t count, loci_dtype dtype)
{
    void *to = room_take(&room, count * stored_size(dtype));
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
    d.dtype = dtype, d.isa = isa;
    if ((r.status = loci_plan_create(&plan, &d, &r.e))) return r;
    struct output out[8 + WALK_TENSORS] = {
        { NULL, rows * (size_t)s->Dv }, { NULL, rows }, { NULL, rows }, { NULL, 0 },
        { NULL, rows * (size_t)s->D }, { NULL, keys * (size_t)s->D }, { NULL, keys * (size_t)s->Dv }
    };
    int outs = 7;
    void *data[WALK_TENSORS], *ddata[WALK_TENSORS];
    if (walk_states(d.encoding)) out[3].count = rows * (size_t)s->D;
    for (int i = 0; i < c->tensors; i++) {
        data[i] = copy_of(c->data[i], c->count[i], real), ddata[i] = NULL;
        if (c->tensor[i].role != LOCI_FIXED) out[outs++].count = c->count[i];
    }
    for (int i = 0; i < outs; i++)
        if (out[i].count)
            out[i].at = room_take(&room, out[i].count
                                  * stored_size(i == 1 || i == 2 || i == 3 || i > 6 ? real
                                                                                   : dtype));
    for (int i = 0, at = 7; i < c->tensors; i++)
        if (c->tensor[i].role != LOCI_FIXED) ddata[i] = out[at++].at;
    const bool stick = strstr(d.encoding, "sba") != NULL;
    loci_call call = c->call;
    call.q.data = copy_of(c->q, rows * (size_t)s->D, dtype);
    call.k.data = copy_of(c->k, keys * (size_t)s->D, dtype);
    call.v.data = copy_of(c->v, keys * (size_t)s->Dv, dtype);
    call.o.data = out[0].at, call.ae = out[3].at, call.host = host, call.error = &r.e;
    *(stick ? &call.rem : &call.lse) = out[stick ? 2 : 1].at;
    out[stick ? 1 : 2].count = 0;
    call.tensors = (const void *const *)data;
    loci_grad g = { .size = sizeof g, .dout.data = copy_of(c->dout, rows * (size_t)s->Dv, dtype),
                    .dq.data = out[4].at, .dk.data = out[5].at, .dv.data = out[6].at,
                    .dtensors = ddata };
    if (stick) g.drem = copy_of(c->drem, rows, real);
    else g.dlse = copy_of(c->dlse, rows, real);
    if (out[3].count) g.dae = copy_of(c->dae, rows * (size_t)s->D, real);
    if (reference) r.status = loci_reference(plan, call.tensors, &call, &g);
    else {
        const size_t bytes = loci_tables_size(plan, c->range);
        if (!bytes) r.status = LOCI_BAD_ARG, r.e.status = r.status, strcpy(r.e.text, "tables");
        void *tables = room_take(&room, bytes);
        if (!r.status)
            r.status = loci_prepare_on(host, plan, c->range, call.tensors, tables, &r.e);
        call.tables_bytes = bytes;
        for (int pass = 0; pass < 2 && !r.status; pass++) {
            call.work_bytes = loci_workspace(plan, &call, pass);
            void *work = room_take(&room, call.work_bytes);
            r.status = pass ? loci_backward(plan, tables, work, &call, &g)
                : loci_forward(plan, tables, work, &call);
        }
    }
    loci_plan_destroy(plan);
    for (int i = 0; i < outs; i++) r.count += out[i].count;
    r.x = room_take(&room, r.count * sizeof *r.x);
    for (int i = 0, n = 0; i < outs && !r.status; i++)
        for (size_t k = 0; k < out[i].count; k++)
            r.x[n++] = load_stored(out[i].at, i == 1 || i == 2 || i == 3 || i > 6 ? real : dtype,
                                   (ptrdiff_t)k);
    return r;
}

static double farthest(const struct results *a, const struct results *b, size_t *where)
{
    double most = 0, far = 0;
    for (size_t i = 0; i < a->count; i++)
        if (isfinite(b->x[i])) most = fmax(most, fabs(b->x[i]));
    for (size_t i = 0; i < a->count; i++) {
        const double x = a->x[i], y = b->x[i];
        const double d = x == y || (isnan(x) && isnan(y)) ? 0 : fabs(x - y) / (1 + most);
        if (!(d <= far)) far = isnan(d) ? INFINITY : d, *where = i;
    }
    return far;
}
static void describe(const struct composition *c, const loci_desc *d, char text[400])
{
    const struct shape *s = &c->s;
    snprintf(text, 400, "seed %lu: %.200s, batch %td, heads %d/%d, width %d/%d, %td rows, %td keys, "
             "full %d, window %lld/%lld%s%s", seed, d->encoding, s->B, s->H, s->G, s->D, s->Dv, s->Lq,
             s->Lk, d->full, (long long)d->window_left, (long long)d->window_right,
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
    choose_places(&c, plan), choose_numbers(&c, plan);
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
    const double far = farthest(&a, &b, &at);
    CHECK_THAT(far < c.allowed, "%s: number %zu is off by %.1e: %g for %g", about, at, far, a.x[at],
               b.x[at]);
    const char *isas[8];
    const int n = loci_isas(isas, 8);
    static const loci_dtype dtypes[] = { LOCI_F32, LOCI_F32, LOCI_BF16, LOCI_F16 };
    const loci_dtype dtype = ONE_OF(dtypes);
    const struct results one = compute(&c, d, dtype, isas[0], NULL, false),
        other = compute(&c, d, dtype, isas[below(n)], &pool, false);
    CHECK_THAT(one.status == other.status
               && (one.status || !memcmp(one.x, other.x, one.count * sizeof *one.x)),
               "%s: instruction sets or threads differ", about);
}

static void compositions(void)
{
    char text[2048];
    compose(random_text(text), random_shape());
}
/* Heads of width 1, whose gradients by key are rows of padding almost alone. */
static void narrow(void)
{
    compose("cope:npos=5,gates=given", (struct shape){ 2, 65, 65, 2, 1, 1, 7 });
    compose("cope:npos=5,gates=given+fox", (struct shape){ 1, 9, 130, 4, 2, 1, 1 });
}

/* ---- Rounds ---------------------------------------------------------------------------------- */

static const struct kind {
    const char *name;
    void (*round)(void);
    int few;                             /* rounds without arguments */
} kinds[] = {
    { "compositions", compositions, 60 },
    { "narrow", narrow, 4 },
};
static void round_of(const struct kind *k, unsigned long number)
{
    seed = number;
    walk_restart((int)(number % 1000000007));
    k->round();
    room_leave(&room, 0);
}
/* Rounds of a kind: a few, or for so many seconds, or the one of this seed. */
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
        if (!only || !strcmp(only, kinds[i].name)) run(&kinds[i], only ? seconds : seconds / count,
                                                       first);
    loci_pool_destroy(&pool);
    return harness_end();
}
