/* SPDX-License-Identifier: MIT */
/* rope.c -- properties of a rotation, whatever its arithmetic: the worked example, norms, shifts,
 * both pairings, keys from a cache, and cos and sin at any position. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "contract/plan.h"
#include "harness.h"
#include "mem.h"
#include "encodings/rope_scaling.h"
#include "math/trig.h"
#include "walk.h"

struct rotation {
    loci_plan *plan;
    void *tables;
};

static struct rotation prepare(const loci_desc *d)
{
    struct rotation r;
    loci_error e;
    if (loci_plan_create(&r.plan, d, &e)) {
        printf("%s: %s\n", d->encoding, e.text);
        exit(1);
    }
    r.tables = mem_block(loci_tables_size(r.plan, 4096));
    if (loci_prepare(r.plan, 4096, NULL, r.tables)) exit(1);
    return r;
}
static void release(struct rotation *r)
{
    free(r->tables);
    loci_plan_destroy(r->plan);
}

/* Rotates rows of a dense x as keys at these positions, in place. */
static void turn(const struct rotation *r, loci_which which, ptrdiff_t len, const int64_t *pos,
                 const double *coord, void *x)
{
    loci_call call = LOCI_CALL(.batch = 1, .q_len = which == LOCI_QUERY ? len : 0,
                               .k_len = which == LOCI_QUERY ? 0 : len, .q_pos = pos, .k_pos = pos,
                               .q_coord = coord, .k_coord = coord);
    void *work = mem_block(loci_workspace(r->plan, &call, 0));
    const loci_view rows = { x, 0, 0, 0 };
    if (loci_rotate(r->plan, r->tables, work, &call, which, rows, rows)) exit(1);
    free(work);
}

/* ---- Properties ------------------------------------------------------------------------------ */

static void worked_example(const char *isa)
{
    const loci_desc d = LOCI_DESC(.encoding = "rope:pairing=interleaved,base=100",
                                  .stage = LOCI_ROTATE, .heads = 1, .dim = 4, .isa = isa);
    struct rotation r = prepare(&d);
    float x[4] = { 1, 0, 1, 0 }, first[3][4] = { { 1, 0, 1, 0 }, { 1, 0, 1, 0 }, { 1, 0, 1, 0 } };
    const float want[4] = { -0.416147f, 0.909297f, 0.980067f, 0.198669f };
    const int64_t two = 2;
    turn(&r, LOCI_KEY, 1, &two, NULL, x);
    bool near = true;
    for (int i = 0; i < 4; i++) near &= fabsf(x[i] - want[i]) < 1e-6f;
    CHECK_THAT(near, "%s: (1, 0, 1, 0) at 2 with w = (1, 0.1)", isa ? isa : "best");
    turn(&r, LOCI_QUERY, 3, NULL, NULL, first);
    CHECK_THAT(!memcmp(first[2], x, sizeof x) && first[0][0] == 1 && first[0][1] == 0,
               "%s: queries without keys count from 0", isa ? isa : "best");
    release(&r);
}

enum { D = 24, L = 150 };

static void fill(float *x, int n)
{
    for (int i = 0; i < n; i++) x[i] = (float)walk_uniform();
}
static double dot(const float *x, const float *y)
{
    double sum = 0;
    for (int i = 0; i < D; i++) sum += (double)x[i] * (double)y[i];
    return sum;
}

/* |x| stays; the product of two rows depends on the distance alone; rotating again moves a key. */
static void properties(const char *isa, const char *encoding, int64_t far)
{
    const loci_desc d =
        LOCI_DESC(.encoding = encoding, .stage = LOCI_ROTATE, .heads = 1, .dim = D, .isa = isa);
    struct rotation r = prepare(&d);
    static float x[L * D], here[L * D], there[L * D];
    int64_t pos[L], moved[L], by[L];
    fill(x, L * D);
    for (int i = 0; i < L; i++) {
        by[i] = far;
        pos[i] = i * i % 197 - 60;
        moved[i] = pos[i] + far;
    }
    memcpy(here, x, sizeof x);
    memcpy(there, x, sizeof x);
    turn(&r, LOCI_CACHE, L, pos, NULL, here);
    turn(&r, LOCI_KEY, L, moved, NULL, there);
    bool norms = true, shifts = true, moves = true;
    for (int i = 0; i < L; i++) {
        norms &=
            fabs(sqrt(dot(here + i * D, here + i * D)) - sqrt(dot(x + i * D, x + i * D))) < 1e-6;
        shifts &= fabs(dot(here + i * D, here + (L - 1 - i) * D)
                       - dot(there + i * D, there + (L - 1 - i) * D))
                < 4e-6;
    }
    turn(&r, LOCI_CACHE, L, by, NULL, here);
    for (int i = 0; i < L * D; i++) moves &= fabsf(here[i] - there[i]) < 1e-6f;
    CHECK_THAT(norms, "%s: norms stay", isa ? isa : "best");
    CHECK_THAT(shifts, "%s: scores depend on distances alone", isa ? isa : "best");
    CHECK_THAT(moves, "%s: a turned key is moved by turning it again", isa ? isa : "best");
    release(&r);
}

/* Half style is interleaved style with permuted channels. */
static void pairings(const char *isa)
{
    const loci_desc a = LOCI_DESC(.encoding = "rope:pairing=half", .stage = LOCI_ROTATE, .heads = 1,
                                  .dim = D, .isa = isa);
    const loci_desc b = LOCI_DESC(.encoding = "rope:pairing=interleaved", .stage = LOCI_ROTATE,
                                  .heads = 1, .dim = D, .isa = isa);
    struct rotation half = prepare(&a), interleaved = prepare(&b);
    static float x[L * D], y[L * D];
    fill(x, L * D);
    for (int i = 0; i < L; i++)
        for (int c = 0; c < D; c++) y[i * D + c % 2 * (D / 2) + c / 2] = x[i * D + c];
    turn(&interleaved, LOCI_KEY, L, NULL, NULL, x);
    turn(&half, LOCI_KEY, L, NULL, NULL, y);
    bool same = true;
    for (int i = 0; i < L; i++)
        for (int c = 0; c < D; c++) same &= y[i * D + c % 2 * (D / 2) + c / 2] == x[i * D + c];
    CHECK_THAT(same, "%s: the pairings differ by the order of channels", isa ? isa : "best");
    release(&half);
    release(&interleaved);
}

/* In place, into another buffer, and there with larger row strides: the same bits, also
 * backward. */
static void places(const char *isa, const char *encoding)
{
    enum { APART = D + 3 };
    const loci_desc d =
        LOCI_DESC(.encoding = encoding, .stage = LOCI_ROTATE, .heads = 1, .dim = D, .isa = isa);
    struct rotation r = prepare(&d);
    static float x[L * D], here[L * D], there[L * D], apart[L * APART];
    fill(x, L * D);
    const loci_call call = LOCI_CALL(.batch = 1, .k_len = L);
    const loci_view from = { x, 0, 0, 0 }, to[] = { { here, 0, 0, 0 },
                                                    { there, 0, 0, 0 },
                                                    { apart, L * APART, L * APART, APART } };
    void *work = mem_block(loci_workspace(r.plan, &call, 1));
    for (int back = 0; back < 2; back++) {
        bool done = true, same = true;
        memcpy(here, x, sizeof x);
        memset(apart, 0, sizeof apart);
        for (int i = 0; i < 3; i++) {
            const loci_view rows = i == 0 ? to[0] : from;
            done &= !(back ? loci_rotate_backward(r.plan, r.tables, work, &call, LOCI_KEY, rows,
                                                  rows, to[i], NULL)
                           : loci_rotate(r.plan, r.tables, work, &call, LOCI_KEY, rows, to[i]));
        }
        for (int i = 0; i < L; i++) {
            same &= !memcmp(here + i * D, apart + i * APART, D * sizeof *x);
            for (int c = D; c < APART; c++) same &= apart[i * APART + c] == 0;
        }
        CHECK_THAT(done && same && !memcmp(here, there, sizeof x), "%s: %s", isa ? isa : "best",
                   back ? "turned back elsewhere" : "turned elsewhere");
    }
    free(work);
    release(&r);
}

/* The same with more rows than the caches store, or would with rows padded to whole vectors. */
static void many(const char *isa, const char *encoding, bool back)
{
    enum { WIDTH = 64, ROWS_MANY = 1801, HEADS = 10 };
    const loci_desc d = LOCI_DESC(.encoding = encoding, .stage = LOCI_ROTATE, .heads = HEADS,
                                  .dim = WIDTH, .isa = isa);
    struct rotation r = prepare(&d);
    const int count = HEADS * ROWS_MANY * WIDTH;
    float *x = mem_block(sizeof *x * (size_t)count), *here = mem_block(sizeof *x * (size_t)count),
          *there = mem_block(sizeof *x * ((size_t)count + 1));
    const loci_call call = LOCI_CALL(.batch = 1, .k_len = ROWS_MANY);
    void *work = mem_block(loci_workspace(r.plan, &call, 1));
    const loci_view from = { x, 0, 0, 0 }, to = { here, 0, 0, 0 };
    fill(x, count);
    memcpy(here, x, sizeof *x * (size_t)count);
    bool same =
        !(back ? loci_rotate_backward(r.plan, r.tables, work, &call, LOCI_KEY, to, to, to, NULL)
               : loci_rotate(r.plan, r.tables, work, &call, LOCI_KEY, to, to));
    for (int shift = 0; shift < 2; shift++) {
        const loci_view away = { there + shift, 0, 0, 0 };
        same &= !(back ? loci_rotate_backward(r.plan, r.tables, work, &call, LOCI_KEY, from, from,
                                              away, NULL)
                       : loci_rotate(r.plan, r.tables, work, &call, LOCI_KEY, from, away));
        same &= !memcmp(here, there + shift, sizeof *x * (size_t)count);
    }
    CHECK_THAT(same, "%s: %s", isa ? isa : "best",
               back ? "many rows turned back elsewhere" : "many rows turned elsewhere");
    free(x);
    free(here);
    free(there);
    free(work);
    release(&r);
}

/* Heads are rotated together: the same bits as one by one, for few rows and many, in place and
 * elsewhere. */
static void abreast(const char *isa, const char *encoding)
{
    enum { HEADS = 19, WIDTH = 72, ROWS_MOST = 131 };
    static const ptrdiff_t rows[] = { 1, 3, 5, ROWS_MOST };
    static float x[HEADS * ROWS_MOST * WIDTH], here[HEADS * ROWS_MOST * WIDTH],
        there[HEADS * ROWS_MOST * WIDTH], one[ROWS_MOST * WIDTH];
    const loci_desc all = LOCI_DESC(.encoding = encoding, .stage = LOCI_ROTATE, .heads = HEADS,
                                    .dim = WIDTH, .isa = isa);
    const loci_desc single =
        LOCI_DESC(.encoding = encoding, .stage = LOCI_ROTATE, .heads = 1, .dim = WIDTH, .isa = isa);
    struct rotation r = prepare(&all), alone = prepare(&single);
    int64_t pos[ROWS_MOST];
    fill(x, HEADS * ROWS_MOST * WIDTH);
    for (int i = 0; i < ROWS_MOST; i++) pos[i] = 1000 + i;
    for (int k = 0; k < 4; k++) {
        const ptrdiff_t n = rows[k], each = n * WIDTH;
        const loci_call call = LOCI_CALL(.batch = 1, .q_len = n, .q_pos = pos, .k_pos = pos);
        void *work = mem_block(loci_workspace(r.plan, &call, 0));
        memcpy(here, x, sizeof x);
        turn(&r, LOCI_QUERY, n, pos, NULL, here);
        bool same = !loci_rotate(r.plan, r.tables, work, &call, LOCI_QUERY,
                                 (loci_view){ x, 0, 0, 0 }, (loci_view){ there, 0, 0, 0 });
        for (int h = 0; h < HEADS; h++) {
            memcpy(one, x + h * each, sizeof *x * (size_t)each);
            turn(&alone, LOCI_QUERY, n, pos, NULL, one);
            same &= !memcmp(one, here + h * each, sizeof *x * (size_t)each)
                 && !memcmp(one, there + h * each, sizeof *x * (size_t)each);
        }
        CHECK_THAT(same, "%s: heads side by side", isa ? isa : "best");
        free(work);
    }
    release(&r);
    release(&alone);
}

/* Positions that are counted from starts. */
static void from_starts(const char *isa)
{
    enum { PACKED = 20 };
    const loci_desc d = LOCI_DESC(.encoding = "rope:pairing=half", .stage = LOCI_ROTATE, .heads = 1,
                                  .dim = D, .isa = isa);
    struct rotation r = prepare(&d);
    static const int64_t starts[] = { 0, 5, 5, PACKED };
    const loci_call call = LOCI_CALL(.batch = 1, .q_len = PACKED, .k_len = PACKED,
                                     .q_starts = starts, .k_starts = starts, .sequences = 3);
    static float x[PACKED * D], want[PACKED * D], got[PACKED * D];
    int64_t pos[PACKED];
    void *work = mem_block(loci_workspace(r.plan, &call, 0));
    fill(x, PACKED * D);
    memcpy(want, x, sizeof x);
    for (int i = 0; i < PACKED; i++) pos[i] = i < 5 ? i : i - 5;
    turn(&r, LOCI_KEY, PACKED, pos, NULL, want);
    for (int which = LOCI_QUERY; which <= LOCI_CACHE; which++) {
        const bool done = !loci_rotate(r.plan, r.tables, work, &call, (loci_which)which,
                                       (loci_view){ x, 0, 0, 0 }, (loci_view){ got, 0, 0, 0 });
        CHECK_THAT(done && !memcmp(want, got, sizeof want), "%s: positions counted from starts",
                   isa ? isa : "best");
    }
    free(work);
    release(&r);
}

/* ---- Keys from a cache ----------------------------------------------------------------------- */

static void cached_keys(const char *isa)
{
    loci_desc d = LOCI_DESC(.encoding = "rope:pairing=half,dim=16,offset=5", .heads = 4,
                            .kv_heads = 2, .dim = D, .isa = isa);
    struct rotation raw = prepare(&d);
    d.keys_rotated = 1;
    struct rotation turned = prepare(&d);
    static float q[4 * L * D], k[2 * L * D], v[2 * L * D], o[4 * L * D], o2[4 * L * D];
    fill(q, 4 * L * D);
    fill(k, 2 * L * D);
    fill(v, 2 * L * D);
    loci_call call = LOCI_CALL(.batch = 1, .q_len = L, .k_len = L, .q = { q, 0, 0, 0 },
                               .k = { k, 0, 0, 0 }, .v = { v, 0, 0, 0 }, .o = { o, 0, 0, 0 });
    /* enough to attend and to rotate */
    void *work = mem_block(loci_workspace(raw.plan, &call, 0));
    bool done = !loci_forward(raw.plan, raw.tables, work, &call);
    done &= !loci_rotate(raw.plan, raw.tables, work, &call, LOCI_CACHE, call.k, call.k);
    call.o.data = o2;
    done &= !loci_forward(turned.plan, turned.tables, work, &call);
    CHECK_THAT(done && !memcmp(o, o2, sizeof o), "%s: keys from a cache give the bits of raw keys",
               isa ? isa : "best");
    free(work);
    release(&raw);
    release(&turned);
}

/* ---- cos and sin ----------------------------------------------------------------------------- */

enum { ROWS_TRIED = 2000 };

/* Rounded once: half an ulp of a float if the value is not tiny, 2^-51 besides. */
static void angles(const char *isa, double base, double reach, bool whole)
{
    char encoding[64];
    snprintf(encoding, sizeof encoding, "rope:pairing=interleaved,base=%g", base);
    const loci_desc d =
        LOCI_DESC(.encoding = encoding, .stage = LOCI_ROTATE, .heads = 1, .dim = D, .isa = isa);
    struct rotation r = prepare(&d);
    static float x[ROWS_TRIED * D];
    static int64_t pos[ROWS_TRIED];
    static double coord[ROWS_TRIED];
    for (int i = 0; i < ROWS_TRIED; i++) {
        coord[i] = reach * walk_uniform();
        pos[i] = (int64_t)coord[i];
        if (whole) coord[i] = (double)pos[i];
        for (int c = 0; c < D; c++) x[i * D + c] = c % 2 == 0;
    }
    turn(&r, LOCI_KEY, ROWS_TRIED, pos, whole ? NULL : coord, x);
    bool close = true;
    for (int i = 0; i < ROWS_TRIED; i++)
        for (int t = 0; t < D / 2; t++) {
            double hi, lo, want[2];
            loci_pow_dd(base, 2 * t, D, &hi, &lo);
            loci_sincos(coord[i], hi, lo, &want[0], &want[1]);
            for (int n = 0; n < 2; n++) {
                int e;
                frexp(want[n], &e);
                close &= fabs((double)x[i * D + 2 * t + n] - want[n])
                      <= 0.5 * ldexp(1, e - 24) + 0x1p-51;
            }
        }
    CHECK_THAT(close, "%s: %s", isa ? isa : "best",
               whole ? "cos and sin at whole positions" : "cos and sin between positions");
    release(&r);
}

enum { WIDE = 128, FAR = 31, LISTED = 2 * (3 * FAR + 3) };

/* 0, the powers of two, the numbers next to them and all their negatives, up to 2^31. */
static void list_positions(int64_t *pos)
{
    int n = 0;
    for (int k = 0; k <= FAR; k++)
        for (int d = -1; d <= 1; d++) {
            const int64_t p = ((int64_t)1 << k) + (k < FAR || d < 1 ? d : 0);
            pos[n++] = p;
            pos[n++] = -p;
        }
}

/* cos and sin of every pair at the listed positions, as the library applies them: (1, 0)
 * rotated. */
static void cos_and_sin(const loci_desc *d, const int64_t *pos, float *x)
{
    struct rotation r = prepare(d);
    for (int i = 0; i < LISTED * WIDE; i++) x[i] = i % 2 == 0;
    turn(&r, LOCI_KEY, LISTED, pos, NULL, x);
    release(&r);
}

/* Within 0.51 ulp of a float everywhere, including near the zeros. */
static void listed(const char *isa, double base)
{
    char encoding[64];
    snprintf(encoding, sizeof encoding, "rope:pairing=interleaved,base=%g", base);
    const loci_desc d =
        LOCI_DESC(.encoding = encoding, .stage = LOCI_ROTATE, .heads = 1, .dim = WIDE, .isa = isa);
    static float x[LISTED * WIDE];
    int64_t pos[LISTED];
    double worst = 0;
    list_positions(pos);
    cos_and_sin(&d, pos, x);
    for (int i = 0; i < LISTED; i++)
        for (int t = 0; t < WIDE / 2; t++) {
            double hi, lo, want[2];
            loci_pow_dd(base, 2 * t, WIDE, &hi, &lo);
            loci_sincos((double)pos[i], hi, lo, &want[0], &want[1]);
            for (int n = 0; n < 2; n++) {
                int e;
                frexp(want[n], &e);
                worst =
                    fmax(worst, fabs((double)x[i * WIDE + 2 * t + n] - want[n]) / ldexp(1, e - 24));
            }
        }
    if (worst > 0.51) printf("%s: %.4f ulp\n", encoding, worst);
    CHECK_CLOSE(worst, 0, 0.51, "%s: cos and sin at powers of two, and beside them",
                isa ? isa : "best");
}

/* angles=f32: float32(position) times float32(frequency) is a float.  Its cos and sin are rounded
 * once, then multiplied by m as a float. */
static void float_angles(const char *isa, const char *options)
{
    char encoding[128];
    snprintf(encoding, sizeof encoding, "rope:pairing=interleaved%s", options);
    loci_desc d =
        LOCI_DESC(.encoding = encoding, .stage = LOCI_ROTATE, .heads = 1, .dim = WIDE, .isa = isa);
    loci_plan *plan;
    static float x[LISTED * WIDE], far[LISTED * WIDE];
    int64_t pos[LISTED];
    double hi[WIDE / 2], lo;
    list_positions(pos);
    cos_and_sin(&d, pos, far);
    strcat(encoding, ",angles=f32");
    cos_and_sin(&d, pos, x);
    if (loci_plan_create(&plan, &d, NULL)) exit(1);
    const struct prep prep = { .cfg = &plan->enc[0] };
    const float m = (float)plan->enc[0].opt[ROPE_ATTENTION_FACTOR];
    for (int t = 0; t < WIDE / 2; t++) loci_rope_frequency(&prep, t, &hi[t], &lo);
    loci_plan_destroy(plan);
    bool same = true, wrong = false;
    for (int i = 0; i < LISTED; i++)
        for (int t = 0; t < WIDE / 2; t++) {
            const float angle = (float)pos[i] * (float)hi[t], *got = x + i * WIDE + 2 * t;
            double cos, sin;
            loci_sincos(angle, 1, 0, &cos, &sin);
            same &= got[0] == (float)cos * m && got[1] == (float)sin * m;
            wrong |= fabsf(got[0] - far[i * WIDE + 2 * t]) > 0.5f;
        }
    CHECK_THAT(same, "%s: float32 angles", isa ? isa : "best");
    CHECK_THAT(wrong, "%s: float32 angles wear out", isa ? isa : "best");
}

/* A row's bits do not depend on the rows around it. */
static void alone(const char *isa)
{
    const loci_desc d = LOCI_DESC(.encoding = "rope:pairing=half", .stage = LOCI_ROTATE, .heads = 1,
                                  .dim = D, .isa = isa);
    struct rotation r = prepare(&d);
    static float x[L * D], y[L * D];
    int64_t pos[L];
    fill(x, L * D);
    memcpy(y, x, sizeof x);
    for (int i = 0; i < L; i++) pos[i] = i % 3 ? 1000 - i : -(int64_t)i * 1234567;
    turn(&r, LOCI_KEY, L, pos, NULL, x);
    for (int i = 0; i < L; i++) turn(&r, LOCI_KEY, 1, &pos[i], NULL, y + i * D);
    CHECK_THAT(!memcmp(x, y, sizeof x), "%s: rows turned alone", isa ? isa : "best");
    release(&r);
}

int main(void)
{
    const char *isa[8];
    const int count = loci_isas(isa, 8);
    for (int i = 0; i < count; i++) {
        worked_example(isa[i]);
        properties(isa[i], "rope:pairing=half", 100);
        properties(isa[i], "rope:pairing=interleaved,base=500000", (int64_t)1 << 31);
        properties(isa[i], "rope:pairing=half,dim=10,offset=6", -((int64_t)1 << 39));
        pairings(isa[i]);
        from_starts(isa[i]);
        cached_keys(isa[i]);
        alone(isa[i]);
        angles(isa[i], 10000, 4096, true);
        angles(isa[i], 500000, 0x1p31, true);
        angles(isa[i], 10000, 0x1p40, true);
        angles(isa[i], 10000, 100, false);
        listed(isa[i], 10000);
        listed(isa[i], 500000);
        listed(isa[i], 1e7);
        float_angles(isa[i], ",base=500000");
        float_angles(isa[i], ",scaling=yarn,factor=32,original_length=4096");
        float_angles(isa[i], ",scaling=llama3,factor=8,original_length=8192");
        places(isa[i], "rope:pairing=half");
        places(isa[i], "rope:pairing=interleaved,dim=14,offset=3");
        places(isa[i], "xpos");
        for (int back = 0; back < 2; back++) {
            many(isa[i], "rope:pairing=half", back);
            many(isa[i], "rope:pairing=interleaved", back);
            many(isa[i], "rope:pairing=half,dim=32,offset=16", back);
            many(isa[i], "rope:pairing=interleaved,dim=50,offset=6", back);
        }
        abreast(isa[i], "rope:pairing=half");
        abreast(isa[i], "rope:pairing=interleaved");
        abreast(isa[i], "rope:pairing=half,dim=34,offset=5");
    }
    return harness_end();
}
