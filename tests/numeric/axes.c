/* SPDX-License-Identifier: MIT */
/* axes.c -- encodings with several coordinates, against rope: if only one axis is used, or all have
 * the same value, the result is rope's.  To the bit, since the angles are computed in the same
 * way. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "contract/plan.h"
#include "harness.h"
#include "mem.h"
#include "walk.h"

enum { D = 24, L = 70, N = L * D };

/* One head of L rows at coord [axes][L]. freq is the learned tensor, if the text has one. */
static void turn(const char *encoding, const char *isa, const double *coord, const float *freq,
                 const float *x, float *y)
{
    loci_error e;
    loci_plan *plan;
    const void *tensors[] = { freq };
    if (loci_plan_create(&plan,
                         &(loci_desc)LOCI_DESC(.encoding = encoding, .stage = LOCI_ROTATE,
                                               .heads = 1, .dim = D, .isa = isa),
                         &e)) {
        printf("%s: %s\n", encoding, e.text);
        exit(1);
    }
    const loci_call call = LOCI_CALL(.batch = 1, .k_len = L, .k_coord = coord, .error = &e);
    void *tables = mem_block(loci_tables_size(plan, L)),
         *work = mem_block(loci_workspace(plan, &call, 0));
    if (loci_prepare(plan, L, tensors, tables)
        || loci_rotate(plan, tables, work, &call, LOCI_KEY, (loci_view){ (void *)x, 0, 0, 0 },
                       (loci_view){ y, 0, 0, 0 })) {
        printf("%s: %s\n", encoding, e.text);
        exit(1);
    }
    free(tables);
    free(work);
    loci_plan_destroy(plan);
}
static bool same(const float *a, const float *b) { return memcmp(a, b, N * sizeof *a) == 0; }
static bool near(const float *a, const float *b)
{
    for (int i = 0; i < N; i++)
        if (!(fabsf(a[i] - b[i]) < 1e-5f)) return false;
    return true;
}

static void laws(const char *isa)
{
    static float x[N], y[N], want[N], moved[N];
    static double coord[3 * L], at[L];
    static float freq[3 * (D / 2)];
    walk_restart(5);
    for (int i = 0; i < N; i++) x[i] = (float)walk_uniform();
    for (int i = 0; i < L; i++) at[i] = walk_coordinate(500);

    for (int i = 0; i < L; i++) {
        coord[i] = at[i];
        coord[L + i] = 0;
    }
    turn("rope2d", isa, coord, NULL, x, y);
    turn("rope:pairing=interleaved,dim=12,base=100", isa, at, NULL, x, want);
    CHECK_THAT(same(y, want), "%s: rope2d with y = 0 is rope on the first half", isa);
    for (int i = 0; i < L; i++) {
        coord[i] = 0;
        coord[L + i] = at[i];
    }
    turn("rope2d", isa, coord, NULL, x, y);
    turn("rope:pairing=interleaved,dim=12,offset=12,base=100", isa, at, NULL, x, want);
    CHECK_THAT(same(y, want), "%s: rope2d with x = 0 is rope on the second half", isa);

    for (int i = 0; i < 2 * L; i++) coord[i] = walk_coordinate(300);
    turn("rope2d", isa, coord, NULL, x, want);
    /* pair (axis, n) -> pair 2n + axis */
    for (int i = 0; i < L; i++)
        for (int c = 0; c < D; c++)
            moved[i * D + 4 * (c % 12 / 2) + 2 * (c / 12) + c % 2] = x[i * D + c];
    turn("rope2d:layout=alternate", isa, coord, NULL, moved, y);
    for (int i = 0; i < L; i++)
        for (int c = 0; c < D; c++)
            moved[i * D + c] = y[i * D + 4 * (c % 12 / 2) + 2 * (c / 12) + c % 2];
    CHECK_THAT(same(moved, want), "%s: layouts of rope2d differ by an order of pairs", isa);
    memset(freq, 0, sizeof freq);
    for (int n = 0; n < D / 4; n++)
        freq[n] = freq[D / 2 + D / 4 + n] = (float)pow(100, -4.0 * n / D);
    turn("mixed", isa, coord, freq, x, y);
    /* frequencies were rounded to float */
    for (int i = 0; i < N; i++) y[i] -= want[i];
    bool small = true;
    for (int i = 0; i < N; i++) small &= fabsf(y[i]) < 1e-4f;
    CHECK_THAT(small, "%s: mixed can be rope2d", isa);

    for (int a = 0; a < 3; a++)
        for (int i = 0; i < L; i++) coord[a * L + i] = at[i];
    turn("rope:pairing=half", isa, at, NULL, x, want);
    turn("mrope:sections=4/5/3", isa, coord, NULL, x, y);
    CHECK_THAT(same(y, want), "%s: mrope with t = h = w is rope", isa);
    turn("mrope:sections=4/5/3,order=interleaved", isa, coord, NULL, x, y);
    CHECK_THAT(same(y, want), "%s: in either order", isa);
    turn("rope:pairing=half,scaling=yarn,factor=4,original_length=60", isa, at, NULL, x, want);
    turn("mrope:sections=4/5/3,scaling=yarn,factor=4,original_length=60", isa, coord, NULL, x, y);
    CHECK_THAT(near(y, want), "%s: and scaled", isa);

    for (int i = 0; i < 3 * L; i++) coord[i] = i < L ? 3.5 : i < 2 * L ? 7 : 1000;
    turn("mrope:sections=12/0/0", isa, coord, NULL, x, y);
    turn("rope:pairing=half", isa, coord, NULL, x, want);
    CHECK_THAT(same(y, want), "%s: mrope can listen to time alone", isa);
}

/* Half of a head's pairs point along its angle, half across it. */
static void start(void)
{
    loci_plan *plan;
    enum { HEADS = 40, P = D / 2 };
    static double f[2][HEADS][P], other[2][HEADS][P];
    if (loci_plan_create(&plan,
                         &(loci_desc)LOCI_DESC(.encoding = "mixed", .heads = HEADS, .dim = D,
                                               .dtype = LOCI_F64),
                         NULL))
        exit(1);
    loci_tensor_init(plan, 0, 1, f);
    loci_tensor_init(plan, 0, 2, other);
    loci_plan_destroy(plan);
    bool lengths = true, across = true;
    double sum = 0;
    for (int h = 0; h < HEADS; h++)
        for (int t = 0; t < P; t++) {
            const double length = pow(10, -4.0 * (t % (P / 2)) / D);
            lengths &= fabs(hypot(f[0][h][t], f[1][h][t]) - length) < 1e-14;
            if (t < P / 2)
                across &=
                    fabs(f[0][h][t] * f[0][h][t + P / 2] + f[1][h][t] * f[1][h][t + P / 2]) < 1e-14;
            if (t == 0) sum += f[0][h][t];
        }
    CHECK_THAT(lengths, "start: lengths are 10^(-4n/D)");
    CHECK_THAT(across, "start: the two halves are at a right angle");
    CHECK_THAT(fabs(sum) < 0.4 * HEADS && memcmp(f, other, sizeof f) != 0,
               "start: angles differ between heads and seeds");
}

int main(void)
{
    const char *isas[8];
    const int count = loci_isas(isas, 8);
    for (int i = 0; i < count; i++) laws(isas[i]);
    start();
    return harness_end();
}
