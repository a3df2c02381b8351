/* SPDX-License-Identifier: MIT */
/* extremes.c -- numbers at the ends of their ranges: gates that a finite number shuts, learned
 * biases of mask constants, products that overflow the floats.  Each result is right, equal to the
 * reference's, or visibly not finite. */
#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "attend.h"
#include "reference/reference.h"
#include "harness.h"
#include "walk.h"

enum { H = 2, D = 8 };

/* The largest difference of two lists, relative to the larger number or 1.  Infinite if only one is
 * finite, or if they are different infinities. */
static double apart(const double *a, const double *b, ptrdiff_t n)
{
    double off = 0, most = 1;
    for (ptrdiff_t i = 0; i < n; i++)
        if (isfinite(b[i])) most = fmax(most, fabs(b[i]));
    for (ptrdiff_t i = 0; i < n; i++) {
        if (isnan(a[i]) && isnan(b[i])) continue;
        const double d = isfinite(a[i]) && isfinite(b[i]) ? fabs(a[i] - b[i])
                       : a[i] == b[i]                     ? 0
                                                          : INFINITY;
        off = fmax(off, isnan(d) ? INFINITY : d);
    }
    return off / most;
}
/* The same over all results of two calls. */
static double differ(const struct attend *a, const struct attend *b, ptrdiff_t inputs)
{
    const int heads = a->desc.heads, dim = a->desc.dim;
    double off =
        fmax(apart(a->o, b->o, heads * a->q_len * dim), apart(a->rows, b->rows, heads * a->q_len));
    off = fmax(off, apart(a->dq, b->dq, heads * a->q_len * dim));
    off = fmax(off, fmax(apart(a->dk, b->dk, heads * a->k_len * dim),
                         apart(a->dv, b->dv, heads * a->k_len * dim)));
    return inputs ? fmax(off, apart(a->dtensor[0], b->dtensor[0], inputs)) : off;
}

/* ---- Gates ----------------------------------------------------------------------------------- */

/* sums of gates are computed by 16 tiles of 64, and then tile by tile: LONG crosses both */
enum { LONG = 1300 };
/* the gates at two keys; the others are moderate */
static double gate;

static double gates(const char *encoding, const loci_tensor *t, ptrdiff_t i)
{
    (void)encoding;
    (void)t;
    return i % LONG == 500 || i % LONG == 1290 ? gate : -0.02 * (double)(i % 7);
}
static double strong(const char *encoding, const loci_tensor *t, ptrdiff_t i)
{
    (void)encoding;
    (void)t;
    return i % LONG < 1000 ? -9999 : -0.02 * (double)(i % 7);
}

static void fox_with(const char *encoding, ptrdiff_t rows, const int64_t *k_pos)
{
    struct attend call = {
        .desc = LOCI_DESC(.encoding = encoding, .heads = H, .dim = D),
        .q_len = rows,
        .k_len = LONG,
        .seed = 3,
        .k_pos = k_pos,
        .q_pos = k_pos ? k_pos + LONG - rows : NULL,
        .fill = gates,
    };
    const double shut[] = { -1e4, -65504, -1e12, -1e30, -FLT_MAX };
    for (int f64 = 0; f64 < 2; f64++) {
        struct attend want = call, says = call;
        want.desc.dtype = f64 ? LOCI_F64 : LOCI_F32;
        says.desc.dtype = LOCI_F64;
        says.reference = true;
        gate = -INFINITY;
        attend(&want);
        attend(&says);
        const double off = differ(&want, &says, H * LONG);
        CHECK_THAT(off < (strstr(encoding, "stop") ? 1e-3
                          : f64                    ? 1e-11
                                                   : 5e-5),
                   "%s, %td rows: with a gate of -inf the reference is %.1e away", encoding, rows,
                   off);
        for (int i = 0; i < (int)(sizeof shut / sizeof *shut); i++) {
            struct attend got = want, also = says;
            got.mem.blocks = also.mem.blocks = 0;
            gate = shut[i];
            attend(&got);
            CHECK_THAT(differ(&got, &want, H * LONG) == 0,
                       "%s, %td rows, %s: a gate of %g is not shut", encoding, rows,
                       f64 ? "f64" : "f32", gate);
            attend_free(&got);
            if (LOCI_EMULATED) continue; /* the reference is tested without emulation */
            attend(&also);
            CHECK_THAT(differ(&also, &says, H * LONG) == 0,
                       "%s, %td rows: in the reference a gate of %g is not shut", encoding, rows,
                       gate);
            attend_free(&also);
        }
        attend_free(&want);
        attend_free(&says);
    }
}

static void fox(void)
{
    int64_t gaps[LONG];
    for (int j = 0; j < LONG; j++) gaps[j] = 2 * j;
    fox_with("fox", 70, NULL);
    fox_with("fox", 1, NULL);
    fox_with("fox", 70, gaps);
    fox_with("fox", 1, gaps);
    fox_with("fox:stop=0.001", 70, NULL);

    for (int f64 = 0; f64 < 2; f64++) {
        struct attend got = { .desc = LOCI_DESC(.encoding = "fox", .heads = H, .dim = D,
                                                .dtype = f64 ? LOCI_F64 : LOCI_F32),
                              .q_len = 70,
                              .k_len = LONG,
                              .seed = 3,
                              .fill = strong },
                      says = got;
        says.desc.dtype = LOCI_F64;
        says.reference = true;
        attend(&got);
        attend(&says);
        const double off = differ(&got, &says, H * LONG);
        CHECK_THAT(off < (f64 ? 1e-8 : 5e-5),
                   "fox: after 1000 gates of -9999 the reference is %.1e away", off);
        attend_free(&got);
        attend_free(&says);

        const double open[] = { 9999, 1e4, 1e30, INFINITY, NAN };
        for (int i = 0; i < 5; i++) {
            got.mem.blocks = says.mem.blocks = 0;
            got.fill = says.fill = gates;
            gate = open[i];
            attend(&got);
            attend(&says);
            bool same = true;
            for (int r = 0; r < H * 70; r++)
                same &= !isnan(got.rows[r]) == !i && !isnan(says.rows[r]) == !i;
            CHECK_THAT(same, "fox: a gate of %g %s", gate, i ? "must show" : "is a number");
            attend_free(&got);
            attend_free(&says);
        }
    }
}

/* With a window: rows that see a key before the gate, and that gate, are NaN; others are not, even
 * if they share a tile with such rows. */
static void fox_in_windows(void)
{
    const int window = 130;
    struct attend a = { .desc = LOCI_DESC(.encoding = "fox", .heads = H, .dim = D,
                                          .window_left = window),
                        .q_len = LONG,
                        .k_len = LONG,
                        .seed = 3,
                        .fill = gates };
    int wrong = 0;
    gate = NAN;
    attend(&a);
    for (int r = 0; r < H * LONG; r++) {
        const int i = r % LONG, oldest = i - window;
        const bool across = (i >= 500 && oldest < 500) || (i >= 1290 && oldest < 1290);
        wrong += !isnan(a.rows[r]) == across || !isnan(a.o[r * D]) == across;
    }
    CHECK_THAT(!wrong, "fox, window %d: a gate of NaN reaches %d rows too many or too few", window,
               wrong);
    attend_free(&a);
}

/* ---- Products that overflow the floats ------------------------------------------------------- */

/* One query, at row `row` of both heads, whose products with all visible keys are below
 * -FLT_MAX. */
static void overflow(const char *encoding, ptrdiff_t rows, ptrdiff_t keys, ptrdiff_t row,
                     bool shows)
{
    double *q = calloc((size_t)(H * rows * D), sizeof *q),
           *k = calloc((size_t)(H * keys * D), sizeof *k);
    if (!q || !k) exit(2);
    for (ptrdiff_t i = 0; i < H * rows * D; i++) q[i] = (float)(1e-20 * sin((double)i));
    for (ptrdiff_t i = 0; i < H * keys; i++) k[i * D + D - 1] = -1e20;
    struct attend got = { .desc = LOCI_DESC(.encoding = encoding, .heads = H, .dim = D),
                          .q_len = rows,
                          .k_len = keys,
                          .seed = 3,
                          .q = q,
                          .k = k },
                  calm = got;
    attend(&calm);
    for (int h = 0; h < H; h++) q[(h * rows + row) * D + D - 1] = 1e20;
    attend(&got);
    bool loud = true, others = true, unseen = true;
    for (ptrdiff_t i = 0; i < H * rows; i++) {
        const double *o = got.o + i * D, *same = calm.o + i * D;
        for (int d = 0; d < D; d++) {
            if (i % rows == row)
                loud &= !isnan(o[d]) != shows && !isnan(got.rows[i]) != shows
                     && !isnan(got.dq[i * D + d]) != shows;
            else others &= o[d] == same[d] && got.dq[i * D + d] == calm.dq[i * D + d];
        }
    }
    for (ptrdiff_t i = 0; i < H * keys * D; i++)
        if (i / D % keys > keys - rows + row)
            unseen &= got.dv[i] == calm.dv[i] && got.dk[i] == calm.dk[i];
    CHECK_THAT(loud, "%s, %td rows: a row whose products overflow %s", encoding, rows,
               shows ? "must be NaN" : "has a weight elsewhere and is none");
    CHECK_THAT(others, "%s, %td rows: a row whose products overflow reaches other rows", encoding,
               rows);
    CHECK_THAT(unseen,
               "%s, %td rows: a row whose products overflow reaches keys that it does not "
               "see",
               encoding, rows);
    attend_free(&got);
    attend_free(&calm);
    free(q);
    free(k);
}

/* The same in double, where the reference must agree; and a query that is NaN. */
static void overflow_in_double(double with)
{
    enum { ROWS = 5 };
    double q[H * ROWS * D] = { 0 }, k[H * ROWS * D] = { 0 };
    for (int i = 0; i < H * ROWS; i++) {
        q[i * D] = i == 2 ? with : 1e-200;
        k[i * D] = -1e200;
    }
    struct attend got = { .desc = LOCI_DESC(.encoding = "rope:pairing=half", .heads = H, .dim = D,
                                            .dtype = LOCI_F64),
                          .q_len = ROWS,
                          .k_len = ROWS,
                          .q = q,
                          .k = k },
                  says = got;
    says.reference = true;
    attend(&got);
    attend(&says);
    CHECK_CLOSE(differ(&got, &says, 0), 0, 1e-11,
                "in double: a query of %g differs from the reference", with);
    CHECK_THAT(isnan(says.rows[2]) && isnan(says.o[2 * D]) && isnan(says.dq[2 * D]),
               "the reference takes a query of %g for one that sees nothing", with);
    attend_free(&got);
    attend_free(&says);
}

/* Biases of -inf hide keys.  A row without any other key has weight 0, however large its products
 * are. */
static double hidden(const char *encoding, const loci_tensor *t, ptrdiff_t i)
{
    (void)encoding;
    (void)t;
    (void)i;
    return -INFINITY;
}
static void all_hidden(void)
{
    double q[H * 70 * D], k[H * 70 * D];
    for (int i = 0; i < H * 70 * D; i++) {
        q[i] = -1e18;
        k[i] = 1e18;
    }
    for (ptrdiff_t rows = 1; rows <= 70; rows += 69)
        for (int reference = 0; reference < 2; reference++) {
            struct attend a = {
                .desc = LOCI_DESC(.encoding = "clip", .heads = H, .dim = D,
                                  .dtype = reference ? LOCI_F64 : LOCI_F32),
                .q_len = rows,
                .k_len = 70,
                .q = q,
                .k = k,
                .fill = hidden,
                .reference = reference,
            };
            attend(&a);
            bool none = true;
            for (int i = 0; i < H * rows * D; i++)
                none &= a.o[i] == 0 && a.dq[i] == 0 && a.rows[i / D] == -INFINITY;
            CHECK_THAT(none, "%td rows: where all biases are -inf, rows are 0", rows);
            attend_free(&a);
        }
}

/* Rows that change from key to key, in a workspace of zeros: nothing is read that nobody wrote. */
static void moved(const char *encoding, ptrdiff_t rows)
{
    enum { KEYS = 70 };
    static float q[H * KEYS * D], k[H * KEYS * D], v[H * KEYS * D], o[H * KEYS * D],
        inputs[2][H * KEYS * D];
    const void *const tensors[] = { inputs[0], inputs[1] };
    struct mem mem = { 0 };
    loci_error e = { 0 };
    loci_plan *plan;
    const loci_desc d = LOCI_DESC(.encoding = encoding, .heads = H, .dim = D);
    for (int i = 0; i < H * KEYS * D; i++) {
        q[i] = 1e20f;
        k[i] = -1e20f;
    }
    loci_call c = LOCI_CALL(.batch = 1, .q_len = rows, .k_len = KEYS, .q.data = q, .k.data = k,
                            .v.data = v, .o.data = o, .tensors = tensors, .error = &e);
    bool loud = !loci_plan_create(&plan, &d, &e);
    if (loud) {
        const size_t bytes = loci_workspace(plan, &c, 0);
        void *tables = mem_alloc(&mem, loci_tables_size(plan, KEYS)),
             *work = memset(mem_alloc(&mem, bytes), 0, bytes);
        loud = !loci_prepare(plan, KEYS, tensors, tables) && !loci_forward(plan, tables, work, &c);
        for (ptrdiff_t i = 0; i < H * rows * D; i++) loud &= isnan(o[i]);
        loci_plan_destroy(plan);
    }
    CHECK_THAT(loud, "%s, %td rows: rows whose products overflow must be NaN", encoding, rows);
    mem_release(&mem, 0);
}

static void overflows(void)
{
    const char *const texts[] = { "nope", "alibi", "rope:pairing=half+alibi",
                                  "fox",  "t5",    "kerple:weight=1" };
    for (int i = 0; i < (int)(sizeof texts / sizeof *texts); i++) {
        overflow(texts[i], 70, 200, 30, true);
        overflow(texts[i], 1, 200, 0, true);
        overflow(texts[i], 2, 4300, 0, true);
    }
    for (ptrdiff_t rows = 1; rows <= 70; rows += 69) {
        moved("path", rows);
        moved("wall", rows);
    }
    overflow("sink", 70, 200, 30, false);
    overflow("sba", 70, 200, 30, false);
    overflow("softcap:cap=30", 70, 200, 30, false);
    overflow("sink", 1, 200, 0, false);
    overflow("sba", 1, 200, 0, false);
    overflow_in_double(1e200);
    overflow_in_double(NAN);
    all_hidden();
}

/* ---- The scale ------------------------------------------------------------------------------- */

static void scales(void)
{
    static const struct {
        loci_dtype dtype;
        double scale;
        bool fits;
    } cases[] = {
        { LOCI_F32, 1e30, true },    { LOCI_F32, -1e-30, true }, { LOCI_F32, 1e39, false },
        { LOCI_F32, -1e39, false },  { LOCI_F32, 2e30, false },  { LOCI_F32, 1e-40, false },
        { LOCI_F32, 1e-60, false },  { LOCI_BF16, 1e39, false }, { LOCI_F16, -1e-46, false },
        { LOCI_F64, 1e39, true },    { LOCI_F64, 1e-60, true },  { LOCI_F64, 1e308, false },
        { LOCI_F64, 4e-320, false }, { LOCI_F32, NAN, false },   { LOCI_F64, INFINITY, false },
    };
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++) {
        loci_plan *plan;
        loci_error e = { 0 };
        const loci_desc d =
            LOCI_DESC(.heads = 1, .dim = 8, .dtype = cases[i].dtype, .scale = cases[i].scale);
        const loci_status status = loci_plan_create(&plan, &d, &e);
        CHECK_THAT(status == (cases[i].fits ? LOCI_OK : LOCI_BAD_ARG),
                   "scale %g, dtype %d: status %d", cases[i].scale, (int)cases[i].dtype,
                   (int)status);
        CHECK_THAT(cases[i].fits || !strncmp(e.text, "scale ", 6), "scale %g is refused with: %s",
                   cases[i].scale, e.text);
        loci_plan_destroy(plan);
    }
}

/* ---- Biases ---------------------------------------------------------------------------------- */

/* All numbers of the tensor `which` are `value`, or every third from the second on.  Others are
 * moderate. */
static const char *which;
static double value;
static bool all;
static double learned(const char *encoding, const loci_tensor *t, ptrdiff_t i)
{
    (void)encoding;
    return !strcmp(t->name, which) && (all || i % 3 == 1) ? value
                                                          : 0.3 * sin(1.7 * (double)i + t->name[0]);
}
/* Pairs that no row sees have distances whose bias is not finite. */
static double unseen(const char *encoding, const loci_tensor *t, ptrdiff_t i)
{
    (void)encoding;
    if (!strcmp(t->encoding, "clip"))
        return i / t->shape[1] == t->shape[0] - 1 ? INFINITY : 0.1 * (double)i;
    return strcmp(t->name, which) ? 1 : value;
}

static void hidden_distances(void)
{
    static const struct {
        const char *text, *tensor;
        double value;
        int64_t window;
    } cases[] = {
        { "kerple", "r2", -0.01, 50 },
        { "kerple:kernel=log3", "r2", -0.01, 50 },
        { "kerple:kernel=log3", "r3", 200, 3 },
        { "kerple:weight=1", "w1", -1, 5 },
        { "kerple:kernel=power", "r1", -1e37, 2 },
        { "clip:max=16", "table", 0, 10 },
        { "alibi:slopes=given", "slopes", -1e37, 2 },
        { "kerple+alibi", "r2", -0.01, 50 },
    };
    enum { KEYS = 200 };
    int64_t gaps[KEYS];
    for (int j = 0; j < KEYS; j++) gaps[j] = j + j / 90;
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++)
        for (int way = 0; way < 8; way += LOCI_EMULATED ? 3 : 1) {
            const ptrdiff_t rows = way & 1 ? 1 : 150;
            struct attend got = { .desc = LOCI_DESC(.encoding = cases[i].text, .heads = H, .dim = D,
                                                    .dtype = way & 2 ? LOCI_F64 : LOCI_F32,
                                                    .window_left = cases[i].window),
                                  .q_len = rows,
                                  .k_len = KEYS,
                                  .seed = 3,
                                  .fill = unseen },
                          says = got;
            which = cases[i].tensor;
            value = cases[i].value;
            if (way & 4) {
                got.k_pos = says.k_pos = gaps;
                got.q_pos = says.q_pos = gaps + KEYS - rows;
            }
            says.desc.dtype = LOCI_F64;
            says.reference = true;
            attend(&got);
            attend(&says);
            bool finite = true;
            for (int n = 0; n < H * rows * D; n++)
                finite &= isfinite(got.o[n]) && isfinite(got.dq[n]);
            for (int n = 0; n < H; n++)
                finite &= isfinite(got.dtensor[0][n]) && isfinite(got.rows[n * rows]);
            for (int n = 0; n < H * KEYS * D; n++)
                finite &= isfinite(got.dk[n]) && isfinite(got.dv[n]);
            const double off =
                fmax(apart(got.o, says.o, H * rows * D), apart(got.rows, says.rows, H * rows));
            CHECK_THAT(finite, "%s, %td rows%s: a distance that no row sees makes rows NaN",
                       cases[i].text, rows, way & 4 ? ", gaps" : "");
            CHECK_THAT(off < (way & 2 ? 1e-9 : 1e-3), "%s, %td rows%s: %.1e from the reference",
                       cases[i].text, rows, way & 4 ? ", gaps" : "", off);
            attend_free(&got);
            attend_free(&says);
        }
}

/* Mask constants and infinities among learned numbers: outputs are the reference's, or both are
 * NaN.  Less than 2^-64 of a stick counts as nothing, but not next to 10^30, so sticks have 15
 * keys. */
static bool sticks(const char *text) { return !strncmp(text, "sba", 3); }
static void biases(void)
{
    static const struct {
        const char *text, *tensor;
    } cases[] = {
        { "alibi:slopes=given", "slopes" },
        { "t5", "table" },
        { "clip", "table" },
        { "kerple", "r1" },
        { "kerple", "r2" },
        { "kerple:kernel=power", "r2" },
        { "kerple:weight=1", "w1" },
        { "fire:hidden=4", "w1" },
        { "fire:hidden=4", "b2" },
        { "fire:hidden=4", "w3" },
        { "fire:hidden=4", "b3" },
        { "fire:hidden=4", "c" },
        { "fire:hidden=4", "l" },
        { "sink", "logit" },
        { "shaw:left=2,right=2", "k" },
        { "sba:remainder=vector", "r" },
        { "xl", "u" },
    };
    static const double values[] = { -1e30, 1e30, -INFINITY, INFINITY };
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++)
        for (int way = 0; way < 16; way += LOCI_EMULATED ? 5 : 1)
            for (ptrdiff_t rows = 1; rows <= 70; rows += 69) {
                const loci_desc d = LOCI_DESC(.encoding = cases[i].text, .heads = H, .dim = D,
                                              .dtype = way & 1 ? LOCI_F64 : LOCI_F32,
                                              .window_left = sticks(cases[i].text) ? 15 : 0);
                struct attend got = { .desc = d,
                                      .q_len = rows,
                                      .k_len = 70,
                                      .seed = 2,
                                      .fill = learned },
                              says = got;
                which = cases[i].tensor;
                all = way & 2;
                value = values[way / 4];
                says.desc.dtype = LOCI_F64;
                says.reference = true;
                attend(&got);
                attend(&says);
                const double off =
                    fmax(apart(got.o, says.o, H * rows * D), apart(got.rows, says.rows, H * rows));
                CHECK_THAT(off < (way & 1 ? 1e-10 : 1e-4),
                           "%s, %td rows: with %s%s = %g, %.1e from the reference", cases[i].text,
                           rows, which, all ? "" : " (some)", value, off);
                attend_free(&got);
                attend_free(&says);
            }
}

/* ---- Far positions --------------------------------------------------------------------------- */

/* S rotates about (1, 2, 3), by w = sqrt(14), so that exp(x S) = 1 + sin(x w)/w S + (1 - cos(x
 * w))/14 S^2. */
static const double spin[3][3] = { { 0, -3, 2 }, { 3, 0, -1 }, { -2, 1, 0 } };
static double spinning(const char *encoding, const loci_tensor *t, ptrdiff_t i)
{
    (void)encoding;
    (void)t;
    return i % 9 / 3 < i % 3 ? spin[i % 9 / 3][i % 3] : 0;
}
static void far_blocks(const char *encoding)
{
    const int64_t at[] = {
        0, 1, 1000003, 999999999989, ((int64_t)1 << 40) - 1, -(((int64_t)1 << 40) - 1)
    };
    for (int i = 0; i < (int)(sizeof at / sizeof *at); i++) {
        const int64_t zero = 0;
        const double q[3] = { 0.3, -0.8, 0.5 }, k[3] = { -0.6, 0.1, 0.7 };
        struct attend a = {
            .desc = LOCI_DESC(.encoding = encoding, .heads = 1, .dim = 3, .dtype = LOCI_F64,
                              .scale = 1, .full = 1),
            .q_len = 1,
            .k_len = 1,
            .q = q,
            .k = k,
            .q_pos = &at[i],
            .k_pos = &zero,
            .fill = spinning,
        };
        attend(&a);
        const long double w = sqrtl(14);
        const double s = (double)(sinl(at[i] * w) / w), c = (double)((1 - cosl(at[i] * w)) / 14);
        double want = 0;
        for (int r = 0; r < 3; r++) {
            double turned = q[r];
            for (int n = 0; n < 3; n++) {
                turned += s * spin[r][n] * q[n];
                for (int m = 0; m < 3; m++) turned += c * spin[r][m] * spin[m][n] * q[n];
            }
            want += turned * k[r];
        }
        CHECK_THAT(fabs(a.rows[0] - want) < 1e-14 + fabs((double)at[i]) * (double)LDBL_EPSILON,
                   "%s at %lld: score %.17g, exactly %.17g", encoding, (long long)at[i], a.rows[0],
                   want);
        attend_free(&a);
    }
}

/* Rotations about several axes fail if rounding their exponents would be visible. */
static double ones(const char *encoding, const loci_tensor *t, ptrdiff_t i)
{
    (void)encoding;
    (void)t;
    (void)i;
    return 1;
}
static void far_matrices(void)
{
    enum { W = 5 };
    /* the contribution of each axis per coordinate */
    const double limit = 0x1p28 / (2 * (W - 1));
    const double reach[] = { 0.99, 1.01, 1e4 };
    for (int i = 0; i < 3; i++) {
        double coord[2] = { limit * reach[i], -limit * reach[i] }, zero[2] = { 0 },
               x[W] = { 1, 2, 3, 4, 5 }, y[W] = { 0 };
        float raw[2 * W * W], xf[W] = { 1, 2, 3, 4, 5 }, yf[W] = { 0 };
        for (int n = 0; n < 2 * W * W; n++) raw[n] = (float)ones(NULL, NULL, n);
        const void *tensors[] = { raw };
        loci_error e = { 0 };
        loci_plan *plan;
        if (loci_plan_create(&plan,
                             &(loci_desc)LOCI_DESC(.encoding = "liere:block=5", .heads = 1,
                                                   .dim = W, .stage = LOCI_ROTATE),
                             &e))
            exit(2);
        loci_call c = LOCI_CALL(.batch = 1, .q_len = 1, .k_len = 1, .q_coord = coord,
                                .k_coord = zero, .tensors = tensors, .error = &e);
        struct mem mem = { .blocks = 0 };
        void *tables = mem_alloc(&mem, loci_tables_size(plan, 1)),
             *work = mem_alloc(&mem, loci_workspace(plan, &c, 0));
        if (loci_prepare(plan, 1, tensors, tables)) exit(2);
        const loci_status status =
            loci_rotate(plan, tables, work, &c, LOCI_QUERY, (loci_view){ xf, 0, 0, 0 },
                        (loci_view){ yf, 0, 0, 0 });
        double before = 0, after = 0;
        for (int n = 0; n < W; n++) {
            before += x[n] * x[n];
            after += (double)yf[n] * (double)yf[n];
            y[n] = (double)yf[n];
        }
        if (i == 0)
            CHECK_THAT(!status && fabs(after / before - 1) < 1e-6,
                       "liere below its limit loses %.1e of the norm", fabs(after / before - 1));
        else
            CHECK_THAT(status == LOCI_UNSUPPORTED && y[0] == 0
                           && !strncmp(e.text, "liere: the coordinates of query 0", 33),
                       "liere beyond its limit: %s", e.text);
        mem_release(&mem, 0);
        loci_plan_destroy(plan);
    }
}

/* Angles of the reference at far positions, against the engine's, which are exact. */
static void far_references(void)
{
    static const char *const texts[] = {
        "rope:pairing=half", "fope", "xpos", "rope:pairing=half,scaling=linear,factor=3",
        "sandwich",          "xl"
    };
    enum { ROWS = 9, W = 16 };
    const double bound = LDBL_MANT_DIG > 60 ? 1e-7 : 1e-2;
    int64_t pos[ROWS], by[ROWS];
    for (int i = 0; i < ROWS; i++) {
        pos[i] = 1000000000000 + i;
        by[i] = 1000 * i;
    }
    for (int i = 0; i < (int)(sizeof texts / sizeof *texts); i++) {
        const bool ordered_sum = i < 4; /* others have tables by distance */
        struct attend got = { .desc = LOCI_DESC(.encoding = texts[i], .heads = H, .dim = W,
                                                .dtype = LOCI_F64),
                              .q_len = ROWS,
                              .k_len = ROWS,
                              .seed = 4,
                              .q_pos = ordered_sum ? pos : by,
                              .k_pos = ordered_sum ? pos : by },
                      says = got;
        says.reference = true;
        attend(&got);
        attend(&says);
        const double off = differ(&got, &says, 0);
        CHECK_THAT(off < bound, "%s: at 10^12 the reference is %.1e away", texts[i], off);
        attend_free(&got);
        attend_free(&says);
    }
}

/* The reference rejects what every call rejects. */
static void too_far(void)
{
    const int64_t bad[] = { INT64_MIN, INT64_MAX, ((int64_t)1 << 40) + 1, -((int64_t)1 << 40) - 1 };
    const double x[4] = { 1, 2, 3, 4 }, far[2] = { 0x1p41, 0 }, none[2] = { NAN, 0 };
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < 6; i++) {
            const int64_t zero = 0;
            const double at[2] = { 0 }, *coord = i == 4 ? far : none;
            double o[4] = { 0 };
            loci_plan *plan;
            loci_error e = { 0 };
            const loci_desc d = LOCI_DESC(.encoding = i < 4 ? "alibi" : "rope2d", .heads = 1,
                                          .dim = 4, .dtype = LOCI_F64, .full = 1);
            if (loci_plan_create(&plan, &d, &e)) exit(2);
            loci_call c = LOCI_CALL(.batch = 1, .q_len = 1, .k_len = 1,
                                    .q = { (double *)(uintptr_t)x, 0, 0, 0 },
                                    .k = { (double *)(uintptr_t)x, 0, 0, 0 },
                                    .v = { (double *)(uintptr_t)x, 0, 0, 0 }, .o = { o, 0, 0, 0 },
                                    .error = &e);
            if (i < 4) {
                c.q_pos = side ? &zero : &bad[i];
                c.k_pos = side ? &bad[i] : &zero;
            } else {
                c.q_coord = side ? at : coord;
                c.k_coord = side ? coord : at;
            }
            CHECK_THAT(loci_reference(plan, NULL, &c, NULL) == LOCI_BAD_ARG
                           && strstr(e.text, "must lie within 2^40") && o[0] == 0,
                       "the reference takes %s %d of side %d: %s",
                       i < 4 ? "position" : "coordinate", i, side, e.text);
            loci_plan_destroy(plan);
        }
}

int main(void)
{
    fox();
    fox_in_windows();
    far_blocks("comrope:block=3,axes=1");
    far_blocks("liere:block=3,axes=1");
    far_matrices();
    far_references();
    too_far();
    hidden_distances();
    biases();
    scales();
    overflows();
    return harness_end();
}
