/* SPDX-License-Identifier: MIT */
/* fmaf.c -- a * b + c by doubles, where code may not use an instruction (platform/fmaf.h): it has
 * the bits of the system's fmaf().  Most sums are those of halfway.h. */
#include "math/half.h"
#include "platform/fmaf.h"
#include "halfway.h"
#include "harness.h"

#if defined _WIN32 || defined __wasm__
int main(void) { return harness_that(true), harness_end(); } /* their fmaf() is this one */
#else
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
    for (int i = 0; i < 400000; i++) {
        float a, b, c;
        draw_halfway(i % 2, &a, &b, &c);
        check(a, b, c);
    }
    return harness_end();
}
#endif
