/* SPDX-License-Identifier: MIT */
/* sums.c -- a module for tests: vf_fma() of simd128, all lanes of which must have the bits of
 * fmaf_by_double().  Most sums are those of tests/support/halfway.h. */
#include "halfway.h"

#include LOCI_VEC

static void draw_sum(float *a, float *b, float *c)
{
    const uint32_t kind = draw() % 4;
    if (kind == 0) {
        *a = float_of(draw());
        *b = float_of(draw());
        *c = float_of(draw());
        return;
    }
    draw_halfway(kind == 1, a, b, c);
}

/* Of n vectors, the lanes that differ. */
__attribute__((export_name("differ"))) int differ(int n)
{
    int count = 0;
    for (int i = 0; i < n; i++) {
        float a[VL], b[VL], c[VL], got[VL];
        /* lanes that are right at once next to others */
        for (int k = 0; k < VL; k++)
            if (draw() % 3) draw_sum(&a[k], &b[k], &c[k]);
            else a[k] = b[k] = c[k] = with_sign(draw() % 8);
        vf_store(got, vf_fma(vf_load(a), vf_load(b), vf_load(c)));
        for (int k = 0; k < VL; k++) {
            const float want = fmaf_by_double(a[k], b[k], c[k]);
            count += bits_of(got[k]) != bits_of(want) && !(got[k] != got[k] && want != want);
        }
    }
    return count;
}
