/* SPDX-License-Identifier: MIT */
/* edges.c -- edge cases: rows that see nothing, NaN and infinity, huge logits, odd strides, a host
 * that cancels, memory that grows with the length. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "contract/plan.h"
#include "attend.h"
#include "harness.h"
#include "walk.h"

enum { H = 2, L = 130, D = 20, N = H * L * D };

struct task {
    float q[N], k[N], v[N], o[N], lse[H * L], dout[N], dq[N], dk[N], dv[N];
    loci_call call;
    loci_grad grad;
    loci_error error;
};

static struct task *fresh(void)
{
    struct task *t = calloc(1, sizeof *t);
    if (!t) exit(2);
    walk_restart(3);
    for (int i = 0; i < N; i++) {
        t->q[i] = (float)walk_uniform();
        t->k[i] = (float)walk_uniform();
        t->v[i] = (float)walk_uniform();
        t->dout[i] = (float)walk_uniform();
    }
    t->call = (loci_call)LOCI_CALL(.batch = 1, .q_len = L, .k_len = L, .q = { t->q, 0, 0, 0 },
                                   .k = { t->k, 0, 0, 0 }, .v = { t->v, 0, 0, 0 },
                                   .o = { t->o, 0, 0, 0 }, .lse = t->lse, .error = &t->error);
    t->grad = (loci_grad)LOCI_GRAD(.dout = { t->dout, 0, 0, 0 }, .dq = { t->dq, 0, 0, 0 },
                                   .dk = { t->dk, 0, 0, 0 }, .dv = { t->dv, 0, 0, 0 });
    return t;
}

/* Both passes on the best engine.  Returns the status of the first that fails. */
static loci_status run(struct task *t, const loci_desc *like)
{
    loci_desc d = *like;
    loci_plan *plan;
    d.heads = H;
    d.dim = D;
    loci_status status = loci_plan_create(&plan, &d, &t->error);
    if (status) return status;
    void *tables = aligned_alloc(64, loci_tables_size(plan, 4096)),
         *work = aligned_alloc(64, loci_workspace(plan, &t->call, 1));
    if (!tables || !work) exit(2);
    memset(work, 0xff, loci_workspace(plan, &t->call, 1));
    status = loci_prepare(plan, 4096, NULL, tables);
    if (!status) status = loci_forward(plan, tables, work, &t->call);
    if (!status) status = loci_backward(plan, tables, work, &t->call, &t->grad);
    if (status) printf("%s: %s\n", d.encoding ? d.encoding : "nope", t->error.text);
    free(tables);
    free(work);
    loci_plan_destroy(plan);
    return status;
}
static bool same(const float *a, const float *b, size_t n)
{
    return memcmp(a, b, n * sizeof *a) == 0;
}
static bool zero(const float *a, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (a[i] != 0) return false;
    return true;
}
static bool finite_all(const float *a, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(a[i])) return false;
    return true;
}

/* ---- Rows that see no key -------------------------------------------------------------------- */

static void empty_rows(const char *encoding)
{
    struct task *t = fresh();
    int64_t q_pos[L], k_pos[L];
    /* rows before 66 see nothing */
    for (int i = 0; i < L; i++) {
        q_pos[i] = i;
        k_pos[i] = i + 66;
    }
    t->call.q_pos = q_pos;
    t->call.k_pos = k_pos;
    memset(t->o, 0xff, sizeof t->o);
    memset(t->dq, 0xff, sizeof t->dq);
    CHECK_THAT(!run(t, &(loci_desc)LOCI_DESC(.encoding = encoding)),
               "rows that see nothing are no error");
    CHECK_THAT(zero(t->o, 66 * D) && zero(t->o + L * D, 66 * D), "rows that see nothing give 0");
    CHECK_THAT(zero(t->dq, 66 * D), "rows that see nothing have no gradient");
    CHECK_THAT(t->lse[0] == -INFINITY && t->lse[65] == -INFINITY && isfinite(t->lse[66]),
               "their lse is -inf");
    CHECK_THAT(zero(t->dk + 64 * D, 66 * D) && zero(t->dv + 64 * D, 66 * D),
               "keys that nobody sees have no gradient");
    CHECK_THAT(finite_all(t->o, N) && finite_all(t->dq, N) && finite_all(t->dk, N)
                   && finite_all(t->dv, N),
               "nothing becomes NaN");
    free(t);
}

/* No queries, no keys, one of each. */
static void no_rows(void)
{
    struct task *t = fresh();
    t->call.k_len = 0;
    t->call.k.data = t->call.v.data = NULL;
    memset(t->o, 0xff, sizeof t->o);
    CHECK_THAT(!run(t, &(loci_desc)LOCI_DESC()) && zero(t->o, N) && t->lse[7] == -INFINITY,
               "no keys: outputs are 0");
    t->call.q_len = 0;
    t->call.k_len = L;
    t->call.k.data = t->k;
    t->call.v.data = t->v;
    memset(t->dk, 0xff, sizeof t->dk);
    CHECK_THAT(!run(t, &(loci_desc)LOCI_DESC()) && zero(t->dk, N),
               "no queries: gradients of keys are 0");
    t->call.batch = 0;
    t->call.q_len = L;
    CHECK_THAT(!run(t, &(loci_desc)LOCI_DESC()), "an empty batch is no error");
    t->call.batch = 1;
    t->call.q_len = t->call.k_len = 1;
    CHECK_THAT(!run(t, &(loci_desc)LOCI_DESC()) && same(t->o, t->v, D),
               "one key gets all the weight");
    free(t);
}

/* Without keys, or without rows, the inputs that have no numbers may be NULL. */
static void no_inputs(const char *text, ptrdiff_t rows, ptrdiff_t keys)
{
    static float room[4096], o[8192], lse[512], ae[8192], grads[3][8192];
    loci_error e = { 0 };
    loci_plan *plan;
    loci_tensor list[WALK_TENSORS];
    const void *tensors[WALK_TENSORS];
    void *dtensors[WALK_TENSORS] = { NULL };
    const int dim = walk_dim(text, 8);
    const loci_desc d = LOCI_DESC(.encoding = text, .heads = H, .dim = dim, .max_len = 64);
    CHECK_THAT(!loci_plan_create(&plan, &d, &e), "%s", e.text);
    if (!plan) return;
    const int n = loci_tensors(plan, list, WALK_TENSORS);
    for (int i = 0; i < n; i++) {
        const size_t count = walk_count(&list[i], 1, rows, keys);
        tensors[i] = count ? calloc(count, sizeof(float)) : NULL;
        if (tensors[i] && list[i].role != LOCI_INPUT)
            loci_tensor_init(plan, i, 1, (void *)tensors[i]);
    }
    double coords[512] = { 0 };
    loci_call c =
        LOCI_CALL(.batch = 1, .q_len = rows, .k_len = keys, .q = { .data = room },
                  .k = { .data = keys ? room : NULL }, .v = { .data = keys ? room : NULL },
                  .o = { .data = o }, .tensors = tensors, .error = &e);
    if (loci_axes(plan) > 1) c.q_coord = c.k_coord = coords;
    *(strstr(text, "sba") ? &c.rem : &c.lse) = lse;
    if (walk_states(text)) c.ae = ae;
    loci_grad g =
        LOCI_GRAD(.dout = { .data = room }, .dq = { .data = grads[0] }, .dk = { .data = grads[1] },
                  .dv = { .data = grads[2] }, .dtensors = dtensors);
    memset(o, 0xff, sizeof o);
    void *tables = aligned_alloc(64, loci_tables_size(plan, 64)),
         *work = aligned_alloc(64, loci_workspace(plan, &c, 1));
    if (!tables || !work) exit(2);
    CHECK_THAT(!loci_prepare(plan, 64, tensors, tables) && !loci_forward(plan, tables, work, &c)
                   && !loci_backward(plan, tables, work, &c, &g),
               "%s, %td rows, %td keys: %s", text, rows, keys, e.text);
    CHECK_THAT(zero(o, (size_t)(H * rows * dim)), "%s, %td rows, %td keys: outputs are 0", text,
               rows, keys);
    free(tables);
    free(work);
    for (int i = 0; i < n; i++) free((void *)tensors[i]);
    loci_plan_destroy(plan);
}

/* Entries of length 0 behave the same whether or not others have keys: their rows see none. */
static void no_length(const char *encoding, ptrdiff_t rows)
{
    static const int64_t lens[] = { 0, 0 };
    for (ptrdiff_t keys = 0; keys < 2; keys++) {
        struct task *t = fresh();
        t->call.batch = 2;
        t->call.q_len = rows;
        t->call.k_len = keys;
        t->call.k_lens = lens;
        t->call.lse = NULL;
        t->call.rem = t->lse;
        memset(t->o, 0xff, sizeof t->o);
        memset(t->dq, 0xff, sizeof t->dq);
        memset(t->dv, 0xff, sizeof t->dv);
        CHECK_THAT(!run(t, &(loci_desc)LOCI_DESC(.encoding = encoding)),
                   "%s: %td rows and k_len %td, both entries without keys", encoding, rows, keys);
        const size_t n = (size_t)(2 * H * rows * D);
        CHECK_THAT(zero(t->o, n) && zero(t->dq, n) && zero(t->dv, (size_t)(2 * H * keys * D)),
                   "%s: rows without keys give 0", encoding);
        for (ptrdiff_t i = 0; i < 2 * H * rows; i++)
            CHECK_THAT(t->lse[i] == 1, "%s: the remainder of a row without keys is 1", encoding);
        free(t);
    }
}

/* ---- NaN and infinity ------------------------------------------------------------------------ */

/* NaN in keys and values reaches the rows that see them and no others, whatever tile they share. */
static void poison(const char *encoding, float with, const char *what)
{
    enum { KEY = 75 };
    struct task *clean = fresh(), *t = fresh();
    loci_desc d = LOCI_DESC(.encoding = encoding);
    for (int i = 0; i < D; i++) t->k[KEY * D + i] = t->v[KEY * D + i] = with;
    CHECK_THAT(!run(clean, &d) && !run(t, &d), "%s", what);
    CHECK_THAT(same(t->o, clean->o, KEY * D) && same(t->o + L * D, clean->o + L * D, L * D),
               "rows before a bad key are untouched");
    CHECK_THAT(same(t->lse, clean->lse, KEY), "and so is their lse");
    CHECK_THAT(!isfinite(t->o[KEY * D]) && !isfinite(t->o[(L - 1) * D]),
               "rows that see a bad key show it");
    CHECK_THAT(same(t->dq, clean->dq, KEY * D), "gradients of rows before a bad key are untouched");
    free(clean);
    free(t);
}
/* The same in decode: behind a window, in the tile where it begins and in those before. */
static void poison_behind(const char *encoding)
{
    const int seen = 20, first = L - 3 - seen;
    for (int rows = 1; rows <= 3; rows++) {
        struct task *clean = fresh(), *t = fresh();
        const loci_desc d = LOCI_DESC(.encoding = encoding, .window_left = seen);
        for (int i = 0; i < H * first * D; i++) {
            const int at = i / (first * D) * L * D + i % (first * D);
            t->k[at] = i % 2 ? NAN : INFINITY;
            t->v[at] = i % 2 ? INFINITY : NAN;
        }
        clean->call.q_len = t->call.q_len = rows;
        if (!strcmp(encoding, "sba")) {
            clean->call.rem = clean->lse;
            t->call.rem = t->lse;
            clean->call.lse = t->call.lse = NULL;
        }
        CHECK_THAT(!run(clean, &d) && !run(t, &d), "keys behind a window are no error");
        CHECK_THAT(same(t->o, clean->o, (size_t)(rows * H * D)) && finite_all(t->o, N)
                       && same(t->dq, clean->dq, (size_t)(rows * H * D))
                       && same(t->dk, clean->dk, N) && same(t->dv, clean->dv, N),
                   "%s, %d rows: keys that nobody sees change nothing", encoding, rows);
        free(clean);
        free(t);
    }
}
/* A bad query or cotangent affects its own row only. */
static void bad_query(void)
{
    enum { ROW = 70 };
    struct task *clean = fresh(), *t = fresh();
    t->q[ROW * D] = NAN;
    t->dout[(ROW + 1) * D] = INFINITY;
    CHECK_THAT(!run(clean, &(loci_desc)LOCI_DESC()) && !run(t, &(loci_desc)LOCI_DESC()),
               "a bad query is no error");
    CHECK_THAT(same(t->o, clean->o, ROW * D)
                   && same(t->o + (ROW + 1) * D, clean->o + (ROW + 1) * D, (L - ROW - 1) * D),
               "other rows are untouched");
    CHECK_THAT(isnan(t->o[ROW * D]), "its own row is NaN");
    CHECK_THAT(same(t->dk + (ROW + 2) * D, clean->dk + (ROW + 2) * D, (L - ROW - 2) * D),
               "keys that it does not see keep their gradient");
    free(clean);
    free(t);
}
/* Any NaN among the keys, whatever its bits, makes weights NaN. */
static void every_nan(const char *encoding)
{
    static const uint32_t nans[] = { 0x7fc00000, 0x7fc00001, 0xffc00155, 0xffffffff };
    enum { KEY = 75 };
    const char *isas[8];
    const int count = loci_isas(isas, 8), bits = (int)(sizeof nans / sizeof *nans);
    for (int i = 0; i < count * bits * 2; i++) {
        struct task *t = fresh();
        memcpy(&t->k[KEY * D], &nans[i / 2 % bits], sizeof *nans);
        const int rows = i % 2 ? 1 : L;
        t->call.q_len = rows;
        if (encoding && !strcmp(encoding, "sba")) {
            t->call.lse = NULL;
            t->call.rem = t->lse;
        }
        CHECK_THAT(!run(t, &(loci_desc)LOCI_DESC(.encoding = encoding, .isa = isas[i / 2 / bits])),
                   "a NaN is no error");
        CHECK_THAT(isnan(t->o[(rows - 1) * D]), "%s on %s, %d rows: NaN %08x became %g",
                   encoding ? encoding : "nope", isas[i / 2 / bits], rows,
                   (unsigned)nans[i / 2 % bits], (double)t->o[(rows - 1) * D]);
        free(t);
    }
}

static void huge_logits(void)
{
    struct task *t = fresh();
    for (int i = 0; i < N; i++) t->q[i] *= 3e4f;
    CHECK_THAT(!run(t, &(loci_desc)LOCI_DESC()) && finite_all(t->o, N) && finite_all(t->lse, H * L),
               "logits of 1e5 are fine");
    CHECK_THAT(finite_all(t->dq, N) && finite_all(t->dk, N) && finite_all(t->dv, N),
               "and their gradients");
    for (int i = 0; i < N; i++) t->q[i] = 0;
    CHECK_THAT(!run(t, &(loci_desc)LOCI_DESC()) && fabsf(t->lse[L - 1] - logf(L)) < 1e-5f,
               "equal logits count the keys");
    free(t);
}

/* ---- Views ----------------------------------------------------------------------------------- */

static void strides(void)
{
    struct task *dense = fresh(), *t = fresh();
    CHECK_THAT(!run(dense, &(loci_desc)LOCI_DESC()), "dense runs");
    /* [L][3][H][D]: packed, token-major */
    float *wide = calloc(3 * N + 8, sizeof *wide), *out = calloc(2 * N + 8, sizeof *out);
    if (!wide || !out) exit(2);
    for (int h = 0; h < H; h++)
        for (int i = 0; i < L; i++)
            for (int d = 0; d < D; d++) {
                wide[1 + ((i * 3 + 0) * H + h) * D + d] = dense->q[(h * L + i) * D + d];
                wide[1 + ((i * 3 + 1) * H + h) * D + d] = dense->k[(h * L + i) * D + d];
                wide[1 + ((i * 3 + 2) * H + h) * D + d] = dense->v[(h * L + i) * D + d];
            }
    t->call.q = (loci_view){ wide + 1, 0, D, 3 * H * D };
    t->call.k = (loci_view){ wide + 1 + H * D, 0, D, 3 * H * D };
    t->call.v = (loci_view){ wide + 1 + 2 * H * D, 0, D, 3 * H * D };
    t->call.o = (loci_view){ out + 3, 0, D, 2 * H * D };
    CHECK_THAT(!run(t, &(loci_desc)LOCI_DESC()), "packed qkv runs");
    bool equal = true, untouched = true;
    for (int h = 0; h < H; h++)
        for (int i = 0; i < L; i++) {
            equal &= same(out + 3 + (i * 2 * H + h) * D, dense->o + (h * L + i) * D, D);
            untouched &= zero(out + 3 + (i * 2 * H + H + h) * D, i < L - 1 ? D : 0);
        }
    CHECK_THAT(equal, "packed qkv gives the same bits");
    CHECK_THAT(untouched, "nothing is written between the rows of an output");
    CHECK_THAT(same(t->dq, dense->dq, N) && same(t->dk, dense->dk, N) && same(t->dv, dense->dv, N),
               "and the same gradients");
    t->call = dense->call;
    t->call.o.data = t->o;
    /* one head's keys broadcast */
    t->call.k = t->call.v = (loci_view){ dense->k, L * D, 0, D };
    CHECK_THAT(!run(t, &(loci_desc)LOCI_DESC()) && finite_all(t->o, N),
               "a stride of 0 broadcasts an input");
    free(wide);
    free(out);
    free(dense);
    free(t);
}

/* ---- Cancelling ------------------------------------------------------------------------------ */

static int countdown, asked;
static int stop_later(void *user)
{
    (void)user;
    asked++;
    return countdown-- <= 0;
}
static void cancelling(void)
{
    struct task *t = fresh();
    loci_host host = { .cancelled = stop_later };
    t->call.host = &host;
    countdown = 1;
    loci_plan *plan;
    if (loci_plan_create(&plan, &(loci_desc)LOCI_DESC(.heads = H, .dim = D), NULL)) exit(2);
    void *tables = aligned_alloc(64, loci_tables_size(plan, L)),
         *work = aligned_alloc(64, loci_workspace(plan, &t->call, 1));
    if (!tables || !work || loci_prepare(plan, L, NULL, tables)) exit(2);
    CHECK_THAT(loci_forward(plan, tables, work, &t->call) == LOCI_CANCELLED,
               "a host can cancel the forward pass");
    countdown = 1000;
    CHECK_THAT(loci_forward(plan, tables, work, &t->call) == LOCI_OK, "or let it finish");
    countdown = 1;
    CHECK_THAT(loci_backward(plan, tables, work, &t->call, &t->grad) == LOCI_CANCELLED,
               "a host can cancel the backward pass");
    const int rows = H * ((L + 63) / 64);
    countdown = 1000;
    asked = 0;
    CHECK_THAT(!loci_forward(plan, tables, work, &t->call) && asked >= rows,
               "it is asked at every tile of rows");
    asked = 0;
    CHECK_THAT(!loci_backward(plan, tables, work, &t->call, &t->grad) && asked >= rows,
               "and so in the backward pass");
    free(tables);
    free(work);
    loci_plan_destroy(plan);
    free(t);
}

/* ---- Few rows -------------------------------------------------------------------------------- */

/* Rows that use the decode path and are before, within or behind their keys. */
static void few_rows(const char *encoding, int64_t first)
{
    enum { KEYS = 200 };
    int64_t q_pos[3], k_pos[KEYS];
    for (int i = 0; i < 3; i++) q_pos[i] = first + i;
    for (int j = 0; j < KEYS; j++) k_pos[j] = j;
    for (int rows = 1; rows <= 3; rows += 2)
        for (int f64 = 0; f64 < 2; f64++) {
            struct attend got = { .desc = LOCI_DESC(.encoding = encoding, .heads = 2, .full = 1,
                                                    .dim = walk_dim(encoding, 8),
                                                    .dtype = f64 ? LOCI_F64 : LOCI_F32),
                                  .q_len = rows,
                                  .k_len = KEYS,
                                  .seed = 3,
                                  .q_pos = q_pos,
                                  .k_pos = k_pos },
                          want = got;
            want.desc.dtype = LOCI_F64;
            want.reference = true;
            attend(&got);
            attend(&want);
            double worst = 0;
            for (int i = 0; i < 2 * rows * got.desc.dim; i++)
                worst = fmax(worst, fabs(got.o[i] - want.o[i]));
            CHECK_THAT(worst < (f64 ? 1e-13 : 1e-5), "%s, %d rows at %d, %s: %g", encoding, rows,
                       (int)first, f64 ? "f64" : "f32", worst);
            attend_free(&got);
            attend_free(&want);
        }
}

/* ---- Small gradients ------------------------------------------------------------------------- */

/* docs/accuracy.md on scores that have factors: gradients below 2^-60 are 0, and larger ones
 * propagate, whichever pair they belong to. */
static void small_gradients(void)
{
    for (int keys = 1; keys <= 70; keys += 23)
        for (int size = -70; size <= -50; size += 20) {
            loci_plan *plan;
            float q[4] = { 1, 1, 1, 1 }, k[280], v[280], o[4], lse, dout[4] = { 0 }, dq[4], dk[280],
                  dv[280], learned[5] = { 0.01f, 0.01f, 1, 0.01f, 0.01f }, dlearned[5];
            const float dlse = (float)ldexp(keys, size);
            loci_error e = { 0 };
            for (int i = 0; i < 280; i++) k[i] = v[i] = 1;
            const void *tensors[5];
            void *grads[5];
            for (int i = 0; i < 5; i++) {
                tensors[i] = &learned[i];
                grads[i] = &dlearned[i];
            }
            const loci_desc d =
                LOCI_DESC(.encoding = "kerple:kernel=power,weight=1", .heads = 1, .dim = 4);
            if (loci_plan_create(&plan, &d, NULL)) exit(2);
            const loci_call c =
                LOCI_CALL(.batch = 1, .q_len = 1, .k_len = keys, .q.data = q, .k.data = k,
                          .v.data = v, .o.data = o, .lse = &lse, .tensors = tensors, .error = &e);
            const loci_grad g = LOCI_GRAD(.dout.data = dout, .dlse = &dlse, .dq.data = dq,
                                          .dk.data = dk, .dv.data = dv, .dtensors = grads);
            void *tables = aligned_alloc(64, loci_tables_size(plan, L)),
                 *work = aligned_alloc(64, loci_workspace(plan, &c, 1));
            if (!tables || !work || loci_prepare(plan, L, tensors, tables)) exit(2);
            CHECK_THAT(!loci_forward(plan, tables, work, &c)
                           && !loci_backward(plan, tables, work, &c, &g),
                       "%s", e.text);
            bool right = (dq[0] != 0) == (size > -60);
            for (int i = 0; i < 4 * keys; i++) right &= (dk[i] != 0) == (size > -60);
            CHECK_THAT(right, "%d keys: a gradient of about 2^%d is %s", keys, size,
                       size > -60 ? "lost" : "kept");
            free(tables);
            free(work);
            loci_plan_destroy(plan);
        }
}

/* ---- Memory ---------------------------------------------------------------------------------- */

/* The workspace grows at most with the length: the exponent of a fit over 1k .. 64k. */
static void growth(const char *encoding)
{
    loci_plan *plan;
    loci_error e;
    if (loci_plan_create(&plan,
                         &(loci_desc)LOCI_DESC(.encoding = encoding, .heads = 4,
                                               .dim = walk_dim(encoding, 64)),
                         &e)) {
        CHECK_FAILED("%s: %s", encoding, e.text);
        return;
    }
    for (int backward = 0; backward < 2; backward++) {
        double sx = 0, sy = 0, sxx = 0, sxy = 0;
        int n = 0;
        for (ptrdiff_t length = 1024; length <= 65536; length *= 2, n++) {
            const loci_call call = LOCI_CALL(.batch = 1, .q_len = length, .k_len = length);
            const double bytes = (double)loci_workspace(plan, &call, backward)
                               + (double)loci_tables_size(plan, length);
            const double x = log((double)length), y = log(bytes);
            sx += x;
            sy += y;
            sxx += x * x;
            sxy += x * y;
        }
        const double exponent = (n * sxy - sx * sy) / (n * sxx - sx * sx);
        CHECK_THAT(exponent <= 1.0, "%s: memory of %s grows with L^%.3f", encoding,
                   backward ? "backward" : "forward", exponent);
    }
    loci_plan_destroy(plan);
}

int main(void)
{
    empty_rows(NULL);
    no_rows();
    static const char *const sticks[] = { "sba", "sba:remainder=value" };
    for (int i = 0; i < 2; i++) {
        no_length(sticks[i], 1);
        no_length(sticks[i], 65);
    }
    poison(NULL, NAN, "a NaN among the keys is no error");
    poison(NULL, INFINITY, "an infinity among the keys is no error");
    static const char *const behind[] = { "nope", "alibi",    "rope:pairing=half",
                                          "sba",  "sandwich", "softcap:cap=3" };
    for (int i = 0; i < 6; i++) poison_behind(behind[i]);
    bad_query();
    every_nan(NULL);
    every_nan("sba");
    every_nan("softcap:cap=3");
    huge_logits();
    strides();
    cancelling();
    small_gradients();
    static const char *const by_distance[] = { "shaw:left=30,right=50", "shaw:left=3,right=2",
                                               "clip:max=40", "deberta:span=40,max_distance=90",
                                               "xl" };
    for (int i = 0; i < 5; i++)
        for (int64_t first = -20; first < 240; first += 30) few_rows(by_distance[i], first);
    for (struct walk_text t = { 0 }; walk_next(&t);) {
        growth(t.text);
        if (strstr(t.text, "remainder=value")) continue; /* rows need a key of their own */
        no_inputs(t.text, 1, 0);
        no_inputs(t.text, 70, 0);
        no_inputs(t.text, 0, 5);
    }
    return harness_end();
}
