/* SPDX-License-Identifier: MIT */
/* fmaf.c -- a * b + c by doubles, as WebAssembly and Windows make it (platform/fmaf.h): it has the
 * bits of the system's fmaf().  Most sums are drawn next to a point halfway between two floats,
 * where rounding twice is wrong, and many of these below 2^-126, where halfway points lie
 * elsewhere. */
#include <math.h>

#include "math/half.h"
#include "platform/fmaf.h"
#include "harness.h"

#if defined _WIN32 || defined __wasm__
int main(void) { return harness_that(true), harness_end(); } /* their fmaf() is this one */
#else
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

static void check(float a, float b, float c)
{
    const float got = fmaf_by_double(a, b, c), want = fmaf(a, b, c);
    CHECK_THAT(bits_of(got) == bits_of(want) || (got != got && want != want),
               "%a * %a + %a is %a, not %a", (double)a, (double)b, (double)c, (double)want,
               (double)got);
}

int main(void)
{
    const float some[] = { 0.0f,      -0.0f,    1.0f,     -1.0f,   0x1p-149f, -0x1p-149f,
                           0x1p-126f, 0x1p-74f, 0x1p-75f, 0x1p64f, 0x1p63f,   0x1.fffffep127f,
                           -INFINITY, INFINITY, NAN,      1.5f,    0x1p-64f,  0x1.000002p0f };
    const int n = sizeof some / sizeof *some;
    for (int i = 0; i < n * n * n; i++) check(some[i / n / n], some[i / n % n], some[i % n]);
    for (int i = 0; i < 200000; i++) check(float_of(draw()), float_of(draw()), float_of(draw()));
    /* a * b is a power of two, but for a last digit far away, and half of the last place of c. */
    for (int i = 0; i < 400000; i++) {
        const bool tiny = i % 2;
        const int x = tiny ? between(-78, -71) : between(-20, 20), k = between(-2, 2),
                  y = (tiny ? -150 : between(-20, 20)) - (tiny ? x : 0), l = i % 4 < 2 ? -k : k;
        const float a = with_sign(ldexp(1 + k * 0x1p-22, x)),
                    b = with_sign(ldexp(1 + l * 0x1p-22, y));
        const double whole = draw() >> 9;
        check(a, b, with_sign(tiny ? ldexp(whole, -149) : ldexp(0x1p23 + whole, x + y + 1)));
    }
    return harness_end();
}
#endif
