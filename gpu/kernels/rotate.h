/* SPDX-License-Identifier: MIT */
/* rotate.h -- rotates pairs of channels of all rows of a view into another, or back.  A group has
 * 16 rows of a batch entry in all heads, which share cos and sin.  See docs/bits.md, Rotating. */
#ifndef LOCI_GPU_KERNELS_ROTATE_H
#define LOCI_GPU_KERNELS_ROTATE_H

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

/* The place of a row that comes with the call: [B][heads][q_len]. */
DEV double given_place(struct block b, int64_t batch, int h, int row)
{
    const GLOBAL char *at = b.p->given == 0 ? b.at.in0 : b.p->given == 1 ? b.at.in1 : b.at.in2;
    return (double)((const GLOBAL float *)at)[(batch * b.p->heads + h) * b.p->q_len + row];
}
/* Gradients of zeros stay zeros, whatever their place, as those of padding need not be numbers. */
DEV int stays_zero(struct block b, const GLOBAL struct pairs_table *t, int64_t from)
{
    int zero = b.p->given >= 0 && b.p->back;
    for (int i = 0; zero && i < 2 * t->count; i++)
        zero = load_number(b.at.q, b.p->q_type, from + t->offset + i) == 0;
    return zero;
}
/* From q to o, both of q_len rows and `heads` heads: stored as `q_type` and as `o_type`.  Without
 * pairs rows are copied, which rounds sums to how they are stored. */
DEV void rotate_rows(struct block b)
{
    const int tiles = (b.p->q_len + ROTATED_ROWS - 1) / ROTATED_ROWS;
    const int batch = b.x / tiles, row0 = b.x % tiles * ROTATED_ROWS,
              rows = least(b.p->q_len - row0, ROTATED_ROWS);
    const int turns = b.p->pairs >= 0;
    const GLOBAL struct pairs_table *t =
        (const GLOBAL struct pairs_table *)(b.at.tables + (turns ? b.p->pairs : 0));
    const int count = turns ? t->count : 0, offset = turns ? t->offset : 0,
              inside = turns ? t->interleaved : 0;
    /* heads with the same angles, of several groups */
    const int share = b.p->heads / b.p->kv_heads;
    SHARED float *angles = b.room;
    for (int h = 0; h < b.p->heads; h++) {
        if (turns && (h == 0 || b.p->given >= 0 || (t->groups > 1 && h % share == 0))) {
            PHASE(tid)
                for (int i = tid; i < rows * count; i += THREADS) {
                    const int r = i / count, pair = i % count;
                    const GLOBAL double *x = (const GLOBAL double *)(b.at.lists + b.p->where);
                    double counted = 0;
                    if (b.p->counted)
                        counted = (double)(((const GLOBAL int64_t *)x)[batch] + row0 + r);
                    if (b.p->given >= 0) counted = given_place(b, batch, h, row0 + r);
                    angle_of(t, t->groups > 1 ? h / share : 0,
                             b.p->counted || b.p->given >= 0
                                 ? (const GLOBAL double *)0
                                          : x + (int64_t)batch * t->axes * b.p->q_len + row0 + r,
                             b.p->q_len, counted, pair, b.p->plain, angles + 2 * r * count + pair,
                             angles + (2 * r + 1) * count + pair);
                }
            END
        }
        PHASE(tid)
            const int dim = b.p->dim, units = dim - count; /* pairs, and channels that stay */
            for (int i = tid; i < rows * units; i += THREADS) {
                const int r = i / units, n = i % units;
                const int64_t to = (int64_t)batch * b.p->o.batch + h * b.p->o.head
                                 + (int64_t)(row0 + r) * b.p->o.row;
                if (b.p->used >= 0
                    && !b.at.lists[b.p->used + (int64_t)batch * b.p->q_len + row0 + r])
                    continue; /* the caller has cleared it, or nobody reads it */
                int64_t from = (int64_t)batch * b.p->q.batch + h * b.p->q.head
                             + (int64_t)(row0 + r) * b.p->q.row;
                if (b.p->q_paged) {
                    const GLOBAL int32_t *pages = (const GLOBAL int32_t *)(b.at.lists + b.p->pages)
                                                + (int64_t)batch * b.p->page_entry;
                    from = pages[(row0 + r) / b.p->page_keys] * b.p->q.batch + h * b.p->q.head
                         + (int64_t)((row0 + r) % b.p->page_keys) * b.p->q.row;
                }
                const float factor =
                    b.p->factors < 0
                        ? 1.0f
                        : ((const GLOBAL float *)(b.at.lists + b.p->factors))
                            [((int64_t)batch * b.p->heads + h) * b.p->q_len + row0 + r];
                if (n >= count) { /* channels before the pairs, then those after them */
                    const int d = n - count < offset ? n - count : n + count;
                    float x = load_number(b.at.q, b.p->q_type, from + d);
                    if (b.p->finish) x = x * b.p->scale * factor;
                    store_number(b.at.o, b.p->o_type, to + d, x);
                    continue;
                }
                const int a = offset + (inside ? 2 * n : n), c = a + (inside ? 1 : count);
                const float cosine = angles[2 * r * count + n], s = angles[(2 * r + 1) * count + n],
                            sine = b.p->back ? -s : s;
                const float x = load_number(b.at.q, b.p->q_type, from + a),
                            y = load_number(b.at.q, b.p->q_type, from + c);
                float u = fma_(x, cosine, -(y * sine)), v = fma_(x, sine, y * cosine);
                if (stays_zero(b, t, from)) {
                    u = x;
                    v = y;
                }
                if (b.p->finish) {
                    u = u * b.p->scale * factor;
                    v = v * b.p->scale * factor;
                }
                store_number(b.at.o, b.p->o_type, to + a, u);
                store_number(b.at.o, b.p->o_type, to + c, v);
            }
        END
    }
}

#endif
