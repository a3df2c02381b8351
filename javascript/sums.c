/* SPDX-License-Identifier: MIT */
/* sums.c -- a module for tests: vf_fma() of simd128, all lanes of which must have the bits of
 * fmaf_by_double().  Sums are drawn as in tests/bits/fmaf.c: most lie next to a point halfway
 * between two floats, and many of these below 2^-126. */
#include <math.h>
#include <stdint.h>

#include LOCI_VEC

static uint64_t state = 88172645463325252u;
static uint32_t draw(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 16);
}
/* From low to high. */
static int between(int low, int high) { return low + (int)(draw() % (uint32_t)(high - low + 1)); }
static float with_sign(double x) { return (float)(draw() & 1 ? -x : x); }

static void draw_sum(float *a, float *b, float *c)
{
    const uint32_t kind = draw() % 4;
    if (kind == 0) {
        *a = float_of(draw());
        *b = float_of(draw());
        *c = float_of(draw());
        return;
    }
    const int tiny = kind == 1, x = tiny ? between(-78, -71) : between(-20, 20),
              y = tiny ? -150 - x : between(-20, 20), k = between(-2, 2), l = draw() & 1 ? -k : k;
    const double whole = draw() >> 9;
    *a = with_sign(ldexp(1 + k * 0x1p-22, x));
    *b = with_sign(ldexp(1 + l * 0x1p-22, y));
    *c = with_sign(tiny ? ldexp(whole, -149) : ldexp(0x1p23 + whole, x + y + 1));
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
