/* SPDX-License-Identifier: MIT */
/* fma.c -- a * b + c in double by integers, as Windows makes it (platform/fma.h): it has the bits
 * of the system's fma(). */
#include "platform/fma.h"
#include "halfway.h"
#include "harness.h"

#if defined _WIN32 || !defined __SIZEOF_INT128__ /* fma() is no reference there; trig.c tests it */
int main(void) { return harness_that(true), harness_end(); }
#else
static double of_bits(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static void check(double a, double b, double c)
{
    const double got = fma_by_integers(a, b, c), want = fma(a, b, c);
    CHECK_THAT(memcmp(&got, &want, sizeof got) == 0 || (got != got && want != want),
               "%a * %a + %a is %a, not %a", a, b, c, want, got);
}
static uint64_t draw_bits(void)
{
    const uint64_t high = draw();
    return high << 32 | draw();
}
/* Between 2^low and 2^(high + 1), with few bits in every other number. */
static double draw_double(int low, int high)
{
    uint64_t bits = draw_bits() & 0x800fffffffffffff;
    if (draw() % 2) bits &= ~(uint64_t)0 << draw() % 53;
    return of_bits(bits | (uint64_t)(1023 + between(low, high)) << 52);
}

int main(void)
{
    const double some[] = {
        0.0,       -0.0,       1.0,      -1.0,    0x1p-1074, -0x1p-1074,
        0x1p-1022, 0x1p-537,   0x1p-538, 0x1p512, 0x1p511,   0x1.fffffffffffffp1023,
        -INFINITY, INFINITY,   NAN,      1.5,     0x1p-512,  0x1.0000000000001p0,
        0x1p53,    -0x1p-1023, 0x1p970,  0x1p-53, 3.0,       -0x1.8p-1073
    };
    const int n = sizeof some / sizeof *some;
    for (int i = 0; i < n * n * n; i++) check(some[i / n / n], some[i / n % n], some[i % n]);
    for (int i = 0; i < 200000; i++)
        check(of_bits(draw_bits()), of_bits(draw_bits()), of_bits(draw_bits()));
    for (int i = 0; i < 400000; i++) {
        const double a = draw_double(-40, 40), b = draw_double(-40, 40);
        check(a, b, draw_double(-200, 200));
        check(a, b, -(a * b));                     /* what the product rounds away */
        check(a, b, a * b * draw_double(-60, 60)); /* next to half of a last bit */
        check(a * 0x1p-530, b * 0x1p-530, draw_double(-1021, -980)); /* below 2^-1022 */
        check(a * 0x1p500, b * 0x1p500, -draw_double(900, 1020));
    }
    return harness_end();
}
#endif
