/* SPDX-License-Identifier: MIT */
/* angles.h -- cos and sin of the angles of a row, in double.  See docs/bits.md, Rotating. */
#ifndef LOCI_GPU_KERNELS_ANGLES_H
#define LOCI_GPU_KERNELS_ANGLES_H

#include "kernels/functions.h"

enum { PAIR_STEPS = 64 };

/* The head of a table of pairs: see struct pairs of src/layout/pairs.h. */
struct pairs_table {
    int32_t count, offset, interleaved, axes, groups, width;
    double factor;
    int32_t angles_f32, span;
    double least;
};

/* ---- cos and sin in double: src/math/trig.h says why it is so -------------------------------- */

struct two {
    double hi, lo; /* a sum and its error, or cos and sin */
};
DEV struct two two_sum(double a, double b)
{
    struct two r;
    r.hi = a + b;
    const double t = r.hi - a;
    r.lo = (a - (r.hi - t)) + (b - t);
    return r;
}
DEV struct two fast_two_sum(double a, double b)
{
    struct two r;
    r.hi = a + b;
    r.lo = b - (r.hi - a);
    return r;
}
DEV double trig_sin(double r, double t)
{
    const double z = r * r, ze = fmad_(r, r, -z) + 2 * r * t;
    double q = 1 / 355687428096000.0;
    q = fmad_(z, q, -1 / 1307674368000.0);
    q = fmad_(z, q, 1 / 6227020800.0);
    q = fmad_(z, q, -1 / 39916800.0);
    q = fmad_(z, q, 1 / 362880.0);
    q = fmad_(z, q, -1 / 5040.0);
    q = fmad_(z, q, 1 / 120.0);
    const struct two k = fast_two_sum(-0x1.5555555555555p-3, z * q);
    const double ke = k.lo - 0x1.5555555555555p-57;
    const double y = z * r, ye = fmad_(z, r, -y) + fmad_(ze, r, z * t);
    const double v = y * k.hi, ve = fmad_(y, k.hi, -v) + fmad_(y, ke, ye * k.hi);
    const struct two s = fast_two_sum(r, v);
    return s.hi + (s.lo + (ve + t));
}
DEV double trig_cos(double r, double t)
{
    const double z = r * r, ze = fmad_(r, r, -z) + 2 * r * t;
    double q = -1 / 6402373705728000.0;
    q = fmad_(z, q, 1 / 20922789888000.0);
    q = fmad_(z, q, -1 / 87178291200.0);
    q = fmad_(z, q, 1 / 479001600.0);
    q = fmad_(z, q, -1 / 3628800.0);
    q = fmad_(z, q, 1 / 40320.0);
    q = fmad_(z, q, -1 / 720.0);
    const struct two k = fast_two_sum(0x1.5555555555555p-5, z * q);
    const double ke = k.lo + 0x1.5555555555555p-59;
    const double y = z * z, ye = fmad_(z, z, -y) + 2 * z * ze;
    const double v = y * k.hi, ve = fmad_(y, k.hi, -v) + fmad_(y, ke, ye * k.hi);
    const struct two a = fast_two_sum(1, -0.5 * z), c = fast_two_sum(a.hi, v);
    return c.hi + ((a.lo + c.lo) + fmad_(-0.5, ze, ve));
}
/* cos and sin of x (w_hi + w_lo). */
DEV struct two sincos_of(double x, double w_hi, double w_lo)
{
    const double p1 = 0x1.921fb54442d18p+0, p2 = 0x1.1a62633145c07p-54,
                 p3 = -0x1.f1976b7ed8fbcp-110, two_over_pi = 0x1.45f306dc9c883p-1,
                 whole = 6755399441055744.0;
    const double h = x * w_hi, he = fmad_(x, w_hi, -h), l = x * w_lo, le = fmad_(x, w_lo, -l);
    const double turns = fmad_(h, two_over_pi, whole), n = turns - whole;
    const double n1 = n * p1, n1e = fmad_(n, p1, -n1), n2 = n * p2, n2e = fmad_(n, p2, -n2);
    const struct two a = two_sum(he, -n1e), c = two_sum(l, -n2), ab = two_sum(a.hi, c.hi),
                     sum = two_sum(h - n1, ab.hi);
    const struct two r =
        two_sum(sum.hi, sum.lo + (ab.lo + (a.lo + c.lo + ((le - n2e) - n * p3))));
    const double cosine = trig_cos(r.hi, r.lo), sine = trig_sin(r.hi, r.lo);
    const uint32_t quarter = (uint32_t)double_to_bits(turns);
    struct two to;
    to.hi = quarter & 1 ? sine : cosine;
    to.lo = quarter & 1 ? cosine : sine;
    if ((quarter + 1) & 2) to.hi = -to.hi;
    if (quarter & 2) to.lo = -to.lo;
    if (!(h <= 0x1p50 && h >= -0x1p50)) to.hi = to.lo = (double)NAN;
    return to;
}

/* ---- Angles of a row ------------------------------------------------------------------------- */

DEV const GLOBAL double *pairs_row(const GLOBAL struct pairs_table *t, int group, int axis)
{
    return (const GLOBAL double *)((const GLOBAL char *)t + 64)
         + (int64_t)(group * t->axes + axis) * (2 + 2 * PAIR_STEPS) * t->width;
}
/* Of pair i at coordinate x of an axis: a whole coordinate is joined from its anchor, a multiple of
 * 64, and the table's step from there. */
DEV struct two angle_on_axis(const GLOBAL struct pairs_table *t, int group, int axis, double x,
                             int i)
{
    const GLOBAL double *hi = pairs_row(t, group, axis) + i;
    const double anchor = floor(x / PAIR_STEPS) * PAIR_STEPS, rest = x - anchor;
    const int step = rest > 0 && rest < PAIR_STEPS ? (int)rest : 0;
    if (rest != step) {
        struct two c = sincos_of(x, hi[0], hi[t->width]);
        const double m = axis == 0 ? t->factor : 1.0;
        c.hi = c.hi * m;
        c.lo = c.lo * m;
        return c;
    }
    const struct two a = sincos_of(anchor, hi[0], hi[t->width]);
    const GLOBAL double *c = hi + (2 + 2 * step) * t->width;
    const double sc = c[0], ss = c[t->width];
    struct two to;
    to.hi = a.hi * sc - a.lo * ss;
    to.lo = a.lo * sc + a.hi * ss;
    return to;
}
/* x: coordinates, `apart` numbers from axis to axis. */
DEV void angle_of(const GLOBAL struct pairs_table *t, int group, const GLOBAL double *x,
                  int64_t apart, double counted, int i, int plain, SHARED float *cosine,
                  SHARED float *sine)
{
    const double undo = plain && t->factor != 1 ? 1 / t->factor : 1.0;
    if (t->angles_f32) {
        const float m = undo == 1 ? (float)t->factor : 1.0f;
        float phi = 0;
        for (int axis = 0; axis < t->axes; axis++)
            phi = phi
                + (x ? (float)x[axis * apart] : (float)counted)
                      * (float)pairs_row(t, group, axis)[i];
        const struct two c = sincos_of((double)phi, 1.0, 0.0);
        *cosine = (float)c.hi * m;
        *sine = (float)c.lo * m;
        return;
    }
    struct two all = angle_on_axis(t, group, 0, x ? x[0] : counted, i);
    for (int axis = 1; axis < t->axes; axis++) {
        const struct two c = angle_on_axis(t, group, axis, x ? x[axis * apart] : counted, i);
        const double a = all.hi, s = all.lo;
        all.hi = a * c.hi - s * c.lo;
        all.lo = s * c.hi + a * c.lo;
    }
    *cosine = (float)(all.hi * undo);
    *sine = (float)(all.lo * undo);
}

#endif
