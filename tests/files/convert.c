/* SPDX-License-Identifier: MIT */
/* convert.c -- loci/convert.h: weights return bitwise and preserve their scores, tables are what
 * the library rotates by, rounding is right at its edges, and a cache can be moved. */
#include <stdio.h>
#include <stdlib.h>

#include "loci/convert.h"
#include "contract/plan.h"
#include "harness.h"
#include "mem.h"
#include "walk.h"

static loci_plan *plan_of(const char *encoding, int heads, int kv_heads, int dim, loci_dtype dtype)
{
    const loci_desc d = LOCI_DESC(.encoding = encoding, .heads = heads, .kv_heads = kv_heads,
                                  .dim = dim, .dtype = dtype);
    loci_error e;
    loci_plan *plan;
    if (loci_plan_create(&plan, &d, &e)) {
        printf("%s: %s\n", encoding, e.text);
        exit(1);
    }
    return plan;
}
static void *tables_of(const loci_plan *plan, ptrdiff_t reach)
{
    void *tables = mem_block(loci_tables_size(plan, reach));
    if (loci_prepare(plan, reach, NULL, tables)) exit(1);
    return tables;
}

/* ---- Weights --------------------------------------------------------------------------------- */

/* The position of channel i of `from` in `to`, by plain arithmetic. */
static int moved(int i, int turned, loci_pairing from)
{
    const int half = turned / 2, t = from == LOCI_HALF ? i % half : i / 2,
              second = from == LOCI_HALF ? i / half : i % 2;
    return from == LOCI_HALF ? 2 * t + second : t + second * half;
}

static void channels(loci_channels c, loci_pairing from)
{
    const loci_pairing to = from == LOCI_HALF ? LOCI_INTERLEAVED : LOCI_HALF;
    const int turned = c.turned ? c.turned : c.dim - c.offset;
    const ptrdiff_t outer = c.outer ? c.outer : 1, inner = c.inner ? c.inner : 1,
                    block = c.heads * c.dim * inner;
    const ptrdiff_t stride = c.stride ? c.stride : block;
    const size_t bytes = c.element * (size_t)(outer * stride);
    unsigned char *x = mem_block(bytes), *y = mem_block(bytes), *z = mem_block(bytes);
    for (size_t i = 0; i < bytes; i++) x[i] = (unsigned char)(255 * fabs(walk_uniform()));
    bool right = !loci_convert_channels(&c, from, to, x, y, NULL);
    const size_t piece = c.element * (size_t)inner;
    for (ptrdiff_t o = 0; o < outer; o++)
        for (int h = 0; h < c.heads; h++)
            for (int i = 0; i < c.dim; i++) {
                const bool ordered_sum = i >= c.offset && i < c.offset + turned;
                const int k = ordered_sum ? c.offset + moved(i - c.offset, turned, from) : i;
                const size_t at = c.element * (size_t)(o * stride) + (size_t)(h * c.dim) * piece;
                right &= !memcmp(x + at + (size_t)i * piece, y + at + (size_t)k * piece, piece);
            }
    CHECK_THAT(right, "channels go where their pair is");
    memcpy(z, x, bytes);
    right = !loci_convert_channels(&c, from, to, z, z, NULL);
    for (ptrdiff_t o = 0; o < outer; o++) {
        const size_t at = c.element * (size_t)(o * stride), n = c.element * (size_t)block,
                     gap = c.element * (size_t)(stride - block);
        right &= !memcmp(y + at, z + at, n);
        right &= o + 1 == outer || !memcmp(x + at + n, z + at + n, gap);
    }
    CHECK_THAT(right, "in place, and with what lies between left alone");
    right = !loci_convert_channels(&c, to, from, z, z, NULL);
    CHECK_THAT(right && !memcmp(x, z, bytes), "there and back is bitwise the same");
    free(x);
    free(y);
    free(z);
}

static void refusals(void)
{
    static float x[64], y[64];
    loci_error e;
    loci_channels c = LOCI_CHANNELS(.element = 4, .heads = 2, .dim = 8);
    CHECK_THAT(!loci_convert_channels(&c, LOCI_HALF, LOCI_HALF, x, y, &e),
               "the same pairing is a copy");
    CHECK_SAYS(loci_convert_channels(&c, LOCI_HALF, LOCI_INTERLEAVED, x, x + 1, &e), LOCI_BAD_ARG,
               &e, "overlap", "overlap");
    c.element = 9;
    CHECK_THAT(loci_convert_channels(&c, LOCI_HALF, LOCI_INTERLEAVED, x, y, &e) == LOCI_BAD_ARG,
               "nine bytes");
    c.element = 4;
    c.turned = 3;
    CHECK_THAT(loci_convert_channels(&c, LOCI_HALF, LOCI_INTERLEAVED, x, y, &e) == LOCI_BAD_ARG,
               "odd");
    c.turned = 6;
    c.offset = 4;
    CHECK_THAT(loci_convert_channels(&c, LOCI_HALF, LOCI_INTERLEAVED, x, y, &e) == LOCI_BAD_ARG,
               "beyond the head");
    c = (loci_channels)LOCI_CHANNELS(.element = 4, .heads = 2, .dim = 8, .stride = 15, .outer = 2);
    CHECK_THAT(loci_convert_channels(&c, LOCI_HALF, LOCI_INTERLEAVED, x, y, &e) == LOCI_BAD_ARG,
               "blocks that overlap");
    c = (loci_channels)LOCI_CHANNELS(.element = 4, .heads = 65536, .dim = 65536,
                                     .inner = POWER(40));
    CHECK_THAT(loci_convert_channels(&c, LOCI_HALF, LOCI_INTERLEAVED, x, y, &e) == LOCI_BAD_ARG,
               "too large");
    CHECK_THAT(loci_convert_channels(&c, (loci_pairing)2, LOCI_HALF, x, y, &e) == LOCI_BAD_ARG,
               "an unknown pairing");
}

/* Converted weights under the other pairing give the same attention: q = W x, and only W's rows
 * change. */
enum { D = 16, H = 4, KV = 2, L = 40, MODEL = 24 };
static void project(const float *w, int heads, const float *x, float *q)
{
    for (int h = 0; h < heads; h++)
        for (int i = 0; i < L; i++)
            for (int d = 0; d < D; d++) {
                double sum = 0;
                for (int m = 0; m < MODEL; m++)
                    sum += (double)w[(h * D + d) * MODEL + m] * (double)x[i * MODEL + m];
                q[(h * L + i) * D + d] = (float)sum;
            }
}
static void attend(const char *encoding, const float *wq, const float *wk, const float *x, float *o)
{
    static float q[H * L * D], k[KV * L * D], v[KV * L * D];
    project(wq, H, x, q);
    project(wk, KV, x, k);
    for (int i = 0; i < KV * L * D; i++) v[i] = (float)(i % 17) - 8;
    loci_plan *plan = plan_of(encoding, H, KV, D, LOCI_F32);
    void *tables = tables_of(plan, L);
    loci_call call = LOCI_CALL(.batch = 1, .q_len = L, .k_len = L, .q = { q, 0, 0, 0 },
                               .k = { k, 0, 0, 0 }, .v = { v, 0, 0, 0 }, .o = { o, 0, 0, 0 });
    void *work = mem_block(loci_workspace(plan, &call, 0));
    if (loci_forward(plan, tables, work, &call)) exit(1);
    free(work);
    free(tables);
    loci_plan_destroy(plan);
}
static void attention(void)
{
    static float wq[H * D * MODEL], wk[KV * D * MODEL], x[L * MODEL], a[H * L * D], b[H * L * D];
    for (int i = 0; i < H * D * MODEL; i++) wq[i] = (float)walk_uniform();
    for (int i = 0; i < KV * D * MODEL; i++) wk[i] = (float)walk_uniform();
    for (int i = 0; i < L * MODEL; i++) x[i] = (float)walk_uniform();
    attend("rope:pairing=half,dim=12,offset=2", wq, wk, x, a);
    loci_channels c = LOCI_CHANNELS(.element = 4, .heads = H, .dim = D, .turned = 12, .offset = 2,
                                    .inner = MODEL);
    bool done = !loci_convert_channels(&c, LOCI_HALF, LOCI_INTERLEAVED, wq, wq, NULL);
    c.heads = KV;
    done &= !loci_convert_channels(&c, LOCI_HALF, LOCI_INTERLEAVED, wk, wk, NULL);
    attend("rope:pairing=interleaved,dim=12,offset=2", wq, wk, x, b);
    double error = 0;
    for (int i = 0; i < H * L * D; i++) error = fmax(error, fabs((double)a[i] - (double)b[i]));
    CHECK_THAT(done && error < 2e-5, "attention stays what it was");
}

/* ---- Tables ---------------------------------------------------------------------------------- */

static double wide(loci_dtype dtype, const void *p, ptrdiff_t i)
{
    if (dtype == LOCI_F64) return ((const double *)p)[i];
    if (dtype == LOCI_F32) return (double)((const float *)p)[i];
    const int bits = ((const uint16_t *)p)[i], fraction = dtype == LOCI_BF16 ? 7 : 10,
              step = dtype == LOCI_BF16 ? -133 : -24;
    const int power = (bits & 0x7fff) >> fraction, n = bits & ((1 << fraction) - 1);
    const double x = power == 0x7fff >> fraction ? (n ? NAN : INFINITY)
                   : power                       ? ldexp(n + (1 << fraction), power - 1 + step)
                                                 : ldexp(n, step);
    return bits & 0x8000 ? -x : x;
}

static const char *const texts[] = {
    "rope:pairing=half",
    "rope:pairing=interleaved,dim=12,offset=2,base=500000",
    "rope:pairing=half,scaling=yarn,factor=4,original_length=64+alibi",
    "alibi+rope:pairing=half,scaling=llama3,factor=8,original_length=64",
};

/* Rows (1, 0) in every pair, rotated by the library in double, are cos and sin. */
static void tables(const char *text, int64_t far)
{
    enum { POINTS = 70 };
    static double cos[POINTS * D / 2], sin[POINTS * D / 2], x[POINTS * D];
    static int64_t pos[POINTS];
    loci_plan *plan = plan_of(text, 1, 1, D, LOCI_F64);
    void *prepared = tables_of(plan, 1);
    const bool inter = strstr(text, "interleaved");
    const int dim = strstr(text, "dim=12") ? 12 : D, offset = dim == D ? 0 : 2, pairs = dim / 2;
    for (int i = 0; i < POINTS; i++) pos[i] = i * far;
    for (int i = 0; i < POINTS * D; i++) {
        const int c = i % D - offset;
        x[i] = c >= 0 && c < dim && (inter ? c % 2 == 0 : c < pairs);
    }
    loci_rope_table t = LOCI_ROPE_TABLE(.layout = LOCI_TABLE_SPLIT, .dtype = LOCI_F64,
                                        .count = POINTS, .pos = pos, .cos = cos, .sin = sin);
    loci_error e;
    bool right = !loci_export_rope(plan, NULL, &t, &e);
    loci_call call = LOCI_CALL(.batch = 1, .k_len = POINTS, .k_pos = pos, .q_pos = pos);
    void *work = mem_block(loci_workspace(plan, &call, 0));
    const loci_view rows = { x, 0, 0, 0 };
    right &= !loci_rotate(plan, prepared, work, &call, LOCI_KEY, rows, rows);
    for (int i = 0; i < POINTS; i++)
        for (int p = 0; p < pairs; p++) {
            const double *row = x + i * D + offset;
            right &= fabs(row[inter ? 2 * p : p] - cos[i * pairs + p]) <= 0x1p-50;
            right &= fabs(row[inter ? 2 * p + 1 : p + pairs] - sin[i * pairs + p]) <= 0x1p-50;
        }
    CHECK_THAT(right, "a table is what the library turns by");

    /* the layouts, and cos next to sin in one buffer */
    for (loci_dtype dtype = LOCI_F32; dtype <= LOCI_F16; dtype++) {
        static double half[POINTS * D * 2], full[POINTS * D], once[1];
        t = (loci_rope_table)LOCI_ROPE_TABLE(.layout = LOCI_TABLE_HALF, .dtype = dtype,
                                             .count = POINTS, .pos = pos, .row = 2 * dim,
                                             .cos = half);
        t.sin = (char *)half + (size_t)dim * (dtype == LOCI_F64 ? 8 : dtype == LOCI_F32 ? 4 : 2);
        right = !loci_export_rope(plan, NULL, &t, &e);
        t = (loci_rope_table)LOCI_ROPE_TABLE(.layout = LOCI_TABLE_INTERLEAVED, .dtype = dtype,
                                             .count = POINTS, .pos = pos, .sin = full);
        right &= !loci_export_rope(plan, NULL, &t, &e);
        for (int i = 0; i < POINTS; i++)
            for (int c = 0; c < dim; c++) {
                right &= !loci_round(dtype, 1, &cos[i * pairs + c % pairs], once);
                right &= wide(dtype, half, i * 2 * dim + c) == wide(dtype, once, 0);
                right &= !loci_round(dtype, 1, &sin[i * pairs + c % pairs], once);
                right &= wide(dtype, half, i * 2 * dim + dim + c) == wide(dtype, once, 0);
                right &= !loci_round(dtype, 1, &sin[i * pairs + c / 2], once);
                right &= wide(dtype, full, i * dim + c) == wide(dtype, once, 0);
            }
        CHECK_THAT(right, "the layouts hold the same numbers, rounded");
    }
    pos[3] = ((int64_t)1 << 40) + 1;
    CHECK_SAYS(loci_export_rope(plan, NULL, &t, &e), LOCI_BAD_ARG, &e, "pos[3]",
               "a position too far");
    free(work);
    free(prepared);
    loci_plan_destroy(plan);
}

static void other_plans(void)
{
    static float cos[8];
    loci_error e;
    loci_plan *plan = plan_of("alibi", 1, 1, D, LOCI_F32);
    const loci_rope_table t = LOCI_ROPE_TABLE(.dtype = LOCI_F32, .count = 1, .cos = cos);
    CHECK_SAYS(loci_export_rope(plan, NULL, &t, &e), LOCI_BAD_ARG, &e, "have the encoding rope",
               "a plan without rope");
    loci_plan_destroy(plan);
    plan = plan_of("rope:pairing=half,freq=given", 1, 1, D, LOCI_F32);
    CHECK_SAYS(loci_export_rope(plan, NULL, &t, &e), LOCI_BAD_ARG, &e, "freq",
               "frequencies that are missing");
    const float freq[D / 2] = { 0 };
    const void *tensors[] = { freq };
    CHECK_THAT(!loci_export_rope(plan, tensors, &t, &e) && cos[0] == 1 && cos[7] == 1,
               "frequencies that are given");
    loci_plan_destroy(plan);
}

/* ---- Rounding -------------------------------------------------------------------------------- */

/* Every 16-bit number stays.  Numbers between two are rounded to the nearer one, and ties to
 * even. */
static void rounding(loci_dtype dtype, int infinite)
{
    bool same = true, nearest = true;
    for (int bits = 0; bits < infinite; bits++) {
        const uint16_t low = (uint16_t)bits, high = (uint16_t)(bits + 1);
        const double a = wide(dtype, &low, 0);
        const double b = high == infinite
                           ? 2 * a - wide(dtype, &(uint16_t){ (uint16_t)(bits - 1) }, 0)
                           : wide(dtype, &high, 0);
        const double middle = a + (b - a) / 2;
        const double x[] = { a,      -a, middle, nextafter(middle, 0), nextafter(middle, INFINITY),
                             -middle };
        const int even = bits % 2 ? bits + 1 : bits,
                  want[] = { bits, 0x8000 | bits, even, bits, bits + 1, 0x8000 | even };
        uint16_t y[6];
        if (loci_round(dtype, 6, x, y)) exit(1);
        for (int i = 0; i < 2; i++) same &= y[i] == want[i];
        for (int i = 2; i < 6; i++) nearest &= y[i] == want[i];
    }
    CHECK_THAT(same, "every number of 16 bits stays what it is");
    CHECK_THAT(nearest, "to nearest, ties to even, subnormal numbers and the step to infinity "
                        "included");
    const double x[] = { INFINITY, -INFINITY, 1e300, -1e300, 1e-300, -0.0, 0x1p-1074 };
    const int want[] = { infinite, 0x8000 | infinite, infinite, 0x8000 | infinite, 0, 0x8000, 0 };
    uint16_t y[7], nan;
    if (loci_round(dtype, 7, x, y) || loci_round(dtype, 1, &(double){ NAN }, &nan)) exit(1);
    for (int i = 0; i < 7; i++) CHECK_THAT(y[i] == want[i], "the far ends");
    CHECK_THAT((nan & 0x7fff) > infinite, "NaN stays NaN");
}

/* ---- A moved cache --------------------------------------------------------------------------- */

static void cache(const char *text, const char *mover, int64_t by)
{
    static float x[L * D], here[L * D], there[L * D];
    static int64_t pos[L], to[L], shift[L];
    for (int i = 0; i < L * D; i++) x[i] = (float)walk_uniform();
    for (int i = 0; i < L; i++) {
        pos[i] = 1000 + i;
        to[i] = pos[i] + by;
        shift[i] = by;
    }
    loci_plan *plan = plan_of(text, 1, 1, D, LOCI_F32), *move = plan_of(mover, 1, 1, D, LOCI_F32);
    void *t = tables_of(plan, 1), *u = tables_of(move, 1);
    const loci_view from = { x, 0, 0, 0 }, a = { here, 0, 0, 0 }, b = { there, 0, 0, 0 };
    loci_call call = LOCI_CALL(.batch = 1, .k_len = L, .q_pos = pos, .k_pos = pos);
    void *work = mem_block(loci_workspace(plan, &call, 0));
    bool done = !loci_rotate(plan, t, work, &call, LOCI_CACHE, from, a);
    call.q_pos = call.k_pos = shift;
    done &= !loci_rotate(move, u, work, &call, LOCI_CACHE, a, a);
    call.q_pos = call.k_pos = to;
    done &= !loci_rotate(plan, t, work, &call, LOCI_CACHE, from, b);
    double error = 0, largest = 0;
    for (int i = 0; i < L * D; i++) {
        error = fmax(error, fabs((double)here[i] - (double)there[i]));
        largest = fmax(largest, fabs((double)there[i]));
    }
    CHECK_THAT(done && error <= 4 * 0x1p-24 * 2 * largest,
               "a turned cache moves by being turned again");
    free(work);
    free(t);
    free(u);
    loci_plan_destroy(plan);
    loci_plan_destroy(move);
}

int main(void)
{
    static const loci_channels forms[] = {
        LOCI_CHANNELS(.element = 4, .heads = 2, .dim = 8, .inner = 5),
        LOCI_CHANNELS(.element = 2, .heads = 3, .dim = 10, .turned = 6, .offset = 3, .inner = 7),
        LOCI_CHANNELS(.element = 1, .heads = 1, .dim = 2),
        LOCI_CHANNELS(.element = 8, .heads = 2, .dim = 64, .outer = 3, .inner = 40),
        LOCI_CHANNELS(.element = 3, .heads = 4, .dim = 6, .outer = 5, .stride = 30),
        LOCI_CHANNELS(.element = 4, .heads = 1, .dim = 1000, .inner = 300),
        LOCI_CHANNELS(.element = 2, .heads = 1, .dim = 9, .offset = 1, .inner = 129),
    };
    for (int i = 0; i < COUNT(forms); i++) {
        channels(forms[i], LOCI_HALF);
        channels(forms[i], LOCI_INTERLEAVED);
    }
    refusals();
    attention();
    for (int i = 0; i < COUNT(texts); i++) {
        tables(texts[i], 1);
        tables(texts[i], 1000003);
    }
    other_plans();
    rounding(LOCI_BF16, 0x7f80);
    rounding(LOCI_F16, 0x7c00);
    cache("rope:pairing=half", "rope:pairing=half", -900);
    cache("rope:pairing=interleaved,scaling=linear,factor=3",
          "rope:pairing=interleaved,scaling=linear,factor=3", (int64_t)1 << 30);
    cache("rope:pairing=half,attention_factor=1.3", "rope:pairing=half,attention_factor=1", 77);
    return harness_end();
}
