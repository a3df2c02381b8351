/* SPDX-License-Identifier: MIT */
/* polar.c -- rows in polar coordinates: pope against plain attention on rows that this file widens,
 * its phases, its softplus, and what is refused because rows are wide. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "loci/cache.h"
#include "attend.h"
#include "harness.h"

enum { H = 4, G = 2, D = 6, L = 70, BASE = 50 };
static const char text[] = "pope:base=50";
static const double full_circle = 6.28318530717958648;

static double apart(const double *a, const double *b, ptrdiff_t n)
{
    return attend_apart(a, b, n, true);
}
static double softplus(double x) { return (x > 0 ? x : 0) + log1p(exp(-fabs(x))); }
static double slope_of(double x) { return 1 / (1 + exp(-x)); }

/* Phases from beyond 0 to beyond -2 pi. */
static double delta_of(ptrdiff_t i) { return 0.5 - 0.65 * (double)i; }
static double phase_of(ptrdiff_t i) { return fmax(-full_circle, fmin(0, delta_of(i))); }
static double phases(const char *encoding, const loci_tensor *t, ptrdiff_t i)
{
    (void)encoding;
    (void)t;
    return delta_of(i);
}
static struct attend made(const char *encoding, loci_dtype dtype, attend_fill *fill)
{
    return (struct attend){ .desc = LOCI_DESC(.encoding = encoding, .heads = H, .kv_heads = G,
                                              .dim = D, .dtype = dtype),
                            .q_len = L,
                            .k_len = L,
                            .seed = 3,
                            .fill = fill };
}

/* ---- Plain attention on wide rows ------------------------------------------------------------ */

static double angle_of(bool query, ptrdiff_t head, ptrdiff_t row, ptrdiff_t t)
{
    return (double)row * pow(BASE, -(double)t / D) + (query ? 0 : phase_of(head * D + t));
}
static double *widened(const double *x, ptrdiff_t heads, bool query)
{
    double *y = malloc((size_t)(heads * L * 2 * D) * sizeof *y);
    if (!y) exit(2);
    for (ptrdiff_t i = 0; i < heads * L; i++)
        for (ptrdiff_t t = 0; t < D; t++) {
            const double phi = angle_of(query, i / L, i % L, t), size = softplus(x[i * D + t]);
            y[i * 2 * D + t] = size * cos(phi);
            y[i * 2 * D + D + t] = size * sin(phi);
        }
    return y;
}
/* The largest difference of d from the gradient dy of the wide rows, brought back. */
static double back(const double *d, const double *dy, const double *x, ptrdiff_t heads, bool query)
{
    double most = 0;
    for (ptrdiff_t i = 0; i < heads * L; i++)
        for (ptrdiff_t t = 0; t < D; t++) {
            const double phi = angle_of(query, i / L, i % L, t),
                         want = slope_of(x[i * D + t])
                              * (dy[i * 2 * D + t] * cos(phi) + dy[i * 2 * D + D + t] * sin(phi));
            most = fmax(most, fabs(d[i * D + t] - want) / (1 + fabs(want)));
        }
    return most;
}
static void wide_rows(loci_dtype dtype, double bound)
{
    static double q[H * L * D], k[G * L * D], v[G * L * D];
    walk_restart(8);
    for (int i = 0; i < H * L * D; i++) q[i] = (float)(3 * walk_uniform());
    for (int i = 0; i < G * L * D; i++) k[i] = (float)(3 * walk_uniform());
    for (int i = 0; i < G * L * D; i++) v[i] = (float)walk_uniform();
    double *wide_q = widened(q, H, true), *wide_k = widened(k, G, false);
    struct attend a = made(text, dtype, phases), b = made("nope", LOCI_F64, NULL);
    a.q = q;
    a.k = k;
    a.v = b.v = v;
    b.q = wide_q;
    b.k = wide_k;
    b.desc.dim = 2 * D;
    b.desc.value_dim = D;
    b.desc.scale = 1 / sqrt(D);
    attend(&a);
    attend(&b);
    CHECK_THAT(apart(a.o, b.o, H * L * D) <= bound, "outputs");
    CHECK_THAT(apart(a.rows, b.rows, H * L) <= bound, "lse");
    CHECK_THAT(apart(a.dv, b.dv, G * L * D) <= bound, "dv");
    CHECK_THAT(back(a.dq, b.dq, q, H, true) <= bound, "dq");
    CHECK_THAT(back(a.dk, b.dk, k, G, false) <= bound, "dk");
    for (ptrdiff_t n = 0; n < (ptrdiff_t)G * D; n++) {
        double want = 0, size = 1;
        for (ptrdiff_t i = n / D * L; i < (n / D + 1) * L; i++) {
            const double *y = wide_k + i * 2 * D + n % D, *dy = b.dk + i * 2 * D + n % D;
            want += dy[D] * y[0] - dy[0] * y[D];
            size += fabs(dy[D] * y[0]) + fabs(dy[0] * y[D]);
        }
        if (phase_of(n) != delta_of(n)) want = 0;
        CHECK_CLOSE(a.dtensor[0][n], want, bound * size, "phase %td at %g", n, delta_of(n));
    }
    free(wide_q);
    free(wide_k);
    attend_free(&a);
    attend_free(&b);
}

/* Without phases, constant rows: S = scale softplus(c)^2 sum of cos(d w). */
static double none(const char *encoding, const loci_tensor *t, ptrdiff_t i)
{
    (void)encoding;
    (void)t;
    (void)i;
    return 0;
}
static void constant_rows(void)
{
    static double rows[H * L * D];
    const double c = 0.75;
    for (int i = 0; i < H * L * D; i++) rows[i] = c;
    struct attend a = made(text, LOCI_F64, none);
    a.q = a.k = rows;
    attend(&a);
    for (ptrdiff_t i = 0; i < L; i++) {
        double sum = 0;
        for (ptrdiff_t d = 0; d <= i; d++) {
            double cosines = 0;
            for (ptrdiff_t t = 0; t < D; t++) cosines += cos((double)d * pow(BASE, -(double)t / D));
            sum += exp(softplus(c) * softplus(c) * cosines / sqrt(D));
        }
        CHECK_CLOSE(a.rows[i], log(sum), 1e-12, "row %td", i);
    }
    attend_free(&a);
}

static void shifts(void)
{
    static int64_t pos[L], far[L];
    for (int i = 0; i < L; i++) far[i] = (pos[i] = i) + ((int64_t)1 << 39);
    struct attend a = made(text, LOCI_F64, phases), b = made(text, LOCI_F64, phases);
    a.q_pos = a.k_pos = pos;
    b.q_pos = b.k_pos = far;
    attend(&a);
    attend(&b);
    CHECK_THAT(apart(a.o, b.o, H * L * D) <= 1e-12 && apart(a.dk, b.dk, G * L * D) <= 1e-12,
               "positions 2^39 further on change nothing");
    attend_free(&a);
    attend_free(&b);
}

/* Both ends of the range of phases have gradients, the nearest numbers beyond them none. */
static double at_ends(const char *encoding, const loci_tensor *t, ptrdiff_t i)
{
    static const float ends[] = { 0, 1e-30f, -6.283185307f, -6.2831855f, -6.283187f, -3 };
    (void)encoding;
    (void)t;
    return (double)ends[i % 6];
}
static void ends(loci_dtype dtype)
{
    struct attend a = made(text, dtype, at_ends);
    attend(&a);
    for (int n = 0; n < G * D; n++) {
        const bool inside = n % 6 != 1 && n % 6 != 4;
        CHECK_THAT((a.dtensor[0][n] != 0) == inside, "phase %d has gradient %g", n,
                   a.dtensor[0][n]);
    }
    attend_free(&a);
}

/* ---- Rows alone ------------------------------------------------------------------------------ */

struct rows {
    loci_plan *plan;
    loci_error e;
    void *tables, *work;
    loci_call call;
    struct mem mem;
};
static void open(struct rows *r, const char *isa, loci_dtype dtype, ptrdiff_t n, int dim)
{
    const loci_desc d = LOCI_DESC(.encoding = "pope", .heads = 1, .dim = dim, .dtype = dtype,
                                  .isa = isa, .keys_rotated = 1);
    *r = (struct rows){ .plan = NULL };
    if (!CHECK_THAT(!loci_plan_create(&r->plan, &d, &r->e), "%s", r->e.text)) exit(2);
    double *zeros = mem_alloc(&r->mem, (size_t)dim * sizeof *zeros);
    memset(zeros, 0, (size_t)dim * sizeof *zeros);
    const void *tensors[] = { zeros };
    r->call = (loci_call)LOCI_CALL(.batch = 1, .q_len = n, .k_len = n, .error = &r->e);
    r->tables = mem_alloc(&r->mem, loci_tables_size(r->plan, n));
    r->work = mem_alloc(&r->mem, loci_workspace(r->plan, &r->call, 1));
    CHECK_THAT(!loci_prepare(r->plan, n, tensors, r->tables), "tables");
}
static void drop(struct rows *r)
{
    mem_release(&r->mem, 0);
    loci_plan_destroy(r->plan);
}

/* A key at position 0 has the softplus of its channels, and sines 0.  Every instruction set has the
 * same bits, in vectors and behind them. */
static void magnitudes(void)
{
    enum { WIDE = 500 };
    static float x[WIDE], y[2 * WIDE], first[2 * WIDE];
    static int64_t pos[1];
    const char *isas[8];
    const int count = loci_isas(isas, 8);
    for (int i = 0; i < WIDE; i++) x[i] = (float)(i - 300) / (i % 7 ? 4.1f : 40);
    x[0] = -60;
    x[1] = -INFINITY;
    x[2] = INFINITY;
    x[3] = -0.0f;
    x[4] = -60.01f;
    for (int n = 0; n < count; n++) {
        struct rows r;
        open(&r, isas[n], LOCI_F32, 1, WIDE);
        r.call.q_pos = r.call.k_pos = pos;
        CHECK_THAT(!loci_rotate(r.plan, r.tables, r.work, &r.call, LOCI_CACHE,
                                (loci_view){ .data = x },
                                (loci_view){ y, 2 * WIDE, 2 * WIDE, 2 * WIDE }),
                   "%s: %s", isas[n], r.e.text);
        if (!n) memcpy(first, y, sizeof y);
        CHECK_THAT(!memcmp(first, y, sizeof y), "%s and %s have different bits", isas[n], isas[0]);
        for (int i = 0; i < WIDE && !n; i++) {
            const double want = x[i] < -60 ? 0 : softplus((double)x[i]);
            const double ulp = ldexp(1, (int)floor(log2(want > 0 && want < 1e9 ? want : 1)) - 23);
            /* and x 2^-28 relative, from ln 2 as a float */
            const double bound = 3 * ulp + (x[i] < 0 ? -(double)x[i] * 0x1p-28 * want : 0);
            CHECK_CLOSE((double)y[i], want, i == 2 ? 0 : bound, "softplus of %g", (double)x[i]);
            if (i != 2) CHECK_THAT(y[WIDE + i] == 0, "the sine of %g", (double)x[i]);
        }
        drop(&r);
    }
}

static void refusals(void)
{
    static double x[4 * D], y[8 * D];
    const loci_view given = { .data = x }, wide = { y, 8 * D, 8 * D, 2 * D };
    struct rows r;
    open(&r, NULL, LOCI_F64, 4, D);
    static const char only[] = "only keys for a cache can be rotated alone, without gradients";
    CHECK_SAYS(loci_rotate(r.plan, r.tables, r.work, &r.call, LOCI_QUERY, given, wide),
               LOCI_BAD_ARG, &r.e, only);
    CHECK_SAYS(loci_rotate(r.plan, r.tables, r.work, &r.call, LOCI_KEY, given, wide), LOCI_BAD_ARG,
               &r.e, only);
    CHECK_SAYS(loci_rotate_backward(r.plan, r.tables, r.work, &r.call, LOCI_CACHE, given, wide,
                                    given, NULL),
               LOCI_BAD_ARG, &r.e, only);
    static const char strides[] = "rotated keys of pope have 12 channels, not 6; give strides";
    const loci_view narrow[] = { { .data = y }, { y, 4 * D, 4 * D, D }, { y, 8 * D, D, 2 * D } };
    for (int i = 0; i < 3; i++) {
        CHECK_SAYS(loci_rotate(r.plan, r.tables, r.work, &r.call, LOCI_CACHE, given, narrow[i]),
                   LOCI_BAD_ARG, &r.e, strides, "y");
        loci_call c = r.call;
        c.q = c.v = c.o = given;
        c.k = narrow[i];
        CHECK_SAYS(loci_forward(r.plan, r.tables, r.work, &c), LOCI_BAD_ARG, &r.e, strides, "k");
    }
    CHECK_THAT(!loci_rotate(r.plan, r.tables, r.work, &r.call, LOCI_CACHE, given, wide), "%s",
               r.e.text);
    /* in place there is no room */
    CHECK_SAYS(loci_rotate(r.plan, r.tables, r.work, &r.call, LOCI_CACHE,
                           (loci_view){ y, 8 * D, 8 * D, 2 * D }, wide),
               LOCI_BAD_ARG, &r.e, "overlap");
    drop(&r);
}

int main(void)
{
    wide_rows(LOCI_F64, 1e-12);
    wide_rows(LOCI_F32, 2e-5);
    constant_rows();
    shifts();
    ends(LOCI_F64);
    ends(LOCI_F32);
    magnitudes();
    refusals();
    return harness_end();
}
