/* SPDX-License-Identifier: MIT */
/* lattice_given.c -- with certain inputs of the call, encodings that read inputs equal those that
 * do not; and factors of rows equal scales.
 *
 *     angles, positions   phi = pos w and z = pos are rope; a common angle changes nothing
 *     slopes              those of keys and queries that depend on the head are alibi
 *     ssmax, logn         a row equals plain attention with its factor in the scale
 *     missing inputs      a sentence that names them */
#include <math.h>
#include <string.h>

#include "attend.h"
#include "harness.h"

enum { H = 4, G = 2, D = 12, P = D / 2, L = 150 };

static bool is(const char *a, const char *b) { return !strcmp(a, b); }
static double apart(const double *a, const double *b, ptrdiff_t n)
{
    return attend_apart(a, b, n, true);
}

/* ---- Inputs ---------------------------------------------------------------------------------- */

/* An angle or position of row i / width % L.  `turn` is added to the angles of a kv head. */
static double turn;
static double frequency(ptrdiff_t t, ptrdiff_t pairs)
{
    return pow(10000, -(double)t / (double)pairs);
}
static double at_positions(const char *encoding, const loci_tensor *t, ptrdiff_t i)
{
    if (is(encoding, "rope")) return is(t->name, "freq") ? frequency(i, P) : (double)(i % L);
    const ptrdiff_t pairs = t->shape[3], row = i / pairs % L, head = i / pairs / L;
    const ptrdiff_t group = is(t->name, "phi_q") ? head / (H / G) : head;
    return (double)row * frequency(i % pairs, pairs) + turn * (double)(1 + group + 3 * (i % pairs));
}
static double slope(ptrdiff_t h) { return h % 2 ? 0.125 / (double)h : 0; }
static double share = 1; /* of a slope that the keys have; the queries have the rest */
static double by_head(const char *encoding, const loci_tensor *t, ptrdiff_t i)
{
    (void)encoding;
    if (is(t->name, "slope_k")) return share * slope(i / L);
    if (is(t->name, "slope_q")) return (1 - share) * slope(i / L);
    return slope(i);
}
static double slope_of_log, constant; /* s and b of ssmax, for all heads */
static double factors(const char *encoding, const loci_tensor *t, ptrdiff_t i)
{
    (void)encoding;
    (void)i;
    return is(t->name, "s") ? slope_of_log : constant;
}
static double slope_factor;
static double with_slopes(const char *encoding, const loci_tensor *t, ptrdiff_t i)
{
    return is(encoding, "alibi") ? slope_factor * slope(i) : factors(encoding, t, i);
}

/* ---- Calls ----------------------------------------------------------------------------------- */

struct setup {
    loci_dtype dtype;
    attend_fill *fill;
    int rows; /* the last ones; 0: all */
    double scale;
    int full;
};
static void run(struct attend *a, const char *text, struct setup setup)
{
    static double q[H * L * D], k[G * L * D], v[G * L * D];
    const ptrdiff_t rows = setup.rows ? setup.rows : L;
    *a = (struct attend){ .desc = LOCI_DESC(.encoding = text, .heads = H, .kv_heads = G, .dim = D,
                                            .max_len = L, .dtype = setup.dtype,
                                            .scale = setup.scale, .full = setup.full),
                          .q_len = rows,
                          .k_len = L,
                          .seed = 9,
                          .fill = setup.fill,
                          .q = q,
                          .k = k,
                          .v = v };
    walk_restart(5);
    for (int i = 0; i < H * L * D; i++) q[i] = (float)walk_uniform();
    for (int i = 0; i < G * L * D; i++) {
        k[i] = (float)walk_uniform();
        v[i] = (float)walk_uniform();
    }
    attend(a);
}
static double between(const struct attend *a, const struct attend *b)
{
    const ptrdiff_t rows = H * a->q_len * D, keys = (ptrdiff_t)G * L * D;
    return fmax(fmax(apart(a->o, b->o, rows), apart(a->dq, b->dq, rows)),
                fmax(apart(a->dk, b->dk, keys), apart(a->dv, b->dv, keys)));
}
static void same(const char *law, const char *one, struct setup first, const char *other,
                 struct setup second, double bound)
{
    struct attend a, c;
    run(&a, one, first);
    run(&c, other, second);
    const double off = between(&a, &c);
    CHECK_THAT(off <= bound, "%s: %s and %s are %.1e apart, where %.1e is allowed", law, one, other,
               off, bound);
    attend_free(&a);
    attend_free(&c);
}

/* ---- Angles and positions -------------------------------------------------------------------- */

static void angles(void)
{
    static const char *const texts[][3] = {
        { "angles:pairing=half", "rope:pairing=half", "rope:pairing=half,positions=given" },
        { "angles:pairing=interleaved,dim=8,offset=4", "rope:pairing=interleaved,dim=8,offset=4",
          "rope:pairing=interleaved,dim=8,offset=4,positions=given" },
        { "angles:pairing=half+alibi", "rope:pairing=half+alibi",
          "rope:pairing=half,positions=given+alibi" },
        { NULL, "rope:pairing=half,freq=given", "rope:pairing=half,freq=given,positions=given" },
    };
    const struct setup wide = { .dtype = LOCI_F64, .fill = at_positions },
                       narrow = { .dtype = LOCI_F32, .fill = at_positions };
    for (int i = 0; i < 4; i++) {
        const char *const *t = texts[i];
        if (t[0]) {
            same("angles at positions are rope", t[0], wide, t[1], wide, 1e-12);
            /* an angle of 149 has a resolution of 1.5e-5 */
            same("angles at positions are rope", t[0], narrow, t[1], narrow, 3e-5);
        }
        same("real positions that are the positions are rope", t[2], wide, t[1], wide, 1e-13);
        same("real positions that are the positions are rope", t[2], narrow, t[1], narrow, 1e-6);
    }

    /* One more angle for all rows and keys of a group. */
    struct attend a, c;
    turn = 0;
    run(&a, "angles:pairing=half", wide);
    turn = 0.7;
    run(&c, "angles:pairing=half", wide);
    turn = 0;
    const double off = between(&a, &c);
    CHECK_THAT(off <= 1e-12, "a common angle: outputs are %.1e apart", off);
    for (int g = 0; g < G; g++)
        for (int t = 0; t < P; t++) {
            double sum = 0, most = 0;
            for (int row = 0; row < L; row++) {
                for (int h = g * (H / G); h < (g + 1) * (H / G); h++)
                    sum += a.dtensor[0][(h * L + row) * P + t];
                sum += a.dtensor[1][(g * L + row) * P + t];
                most = fmax(most, fabs(a.dtensor[1][(g * L + row) * P + t]));
            }
            CHECK_THAT(most > 1e-3, "kv head %d, pair %d: no gradient", g, t);
            CHECK_CLOSE(sum, 0, 1e-11, "kv head %d, pair %d: gradients of angles", g, t);
        }
    attend_free(&a);
    attend_free(&c);
}

/* ---- Slopes ---------------------------------------------------------------------------------- */

static void slopes(void)
{
    static const struct {
        const char *text;
        double share;
    } kinds[] = { { "alibi:slopes=keys", 1 },
                  { "alibi:slopes=queries", 0 },
                  { "alibi:slopes=both", 0.25 } };
    for (int full = 0; full < 2; full++)
        for (int i = 0; i < 3; i++) {
            share = kinds[i].share;
            const struct setup narrow = { .dtype = LOCI_F32, .fill = by_head, .full = full },
                               wide = { .dtype = LOCI_F64, .fill = by_head, .full = full };
            same("a slope per head is ALiBi", kinds[i].text, wide, "alibi:slopes=given", wide,
                 1e-13);
            same("a slope per head is ALiBi", kinds[i].text, narrow, "alibi:slopes=given", narrow,
                 1e-6);
            struct attend a, c;
            run(&a, kinds[i].text, wide);
            run(&c, "alibi:slopes=given", wide);
            for (int h = 0; h < H && !full; h++) {
                double sum = 0;
                for (int j = 0; j < L; j++) sum += a.dtensor[0][h * L + j];
                CHECK_CLOSE(sum, c.dtensor[0][h], 1e-9 * (1 + fabs(sum)), "%s: sum of gradients",
                            kinds[i].text);
            }
            attend_free(&a);
            attend_free(&c);
        }
}

/* ---- Factors of rows ------------------------------------------------------------------------- */

static void row_factors(void)
{
    const struct setup all = { .dtype = LOCI_F64, .fill = factors },
                       last = { .dtype = LOCI_F64, .fill = factors, .rows = 1 };
    slope_of_log = 1 / log(L);
    constant = 0;
    same("ssmax with s = 1/ln n is plain", "ssmax", last, "nope", last, 1e-13);
    same("ssmax behind rope", "rope:pairing=half+ssmax", last, "rope:pairing=half", last, 1e-13);
    slope_of_log = 0;
    constant = 1;
    same("ssmax with b alone is plain", "ssmax:bias=1", all, "nope", all, 0);
    same("logn within its length", "logn:length=150", all, "nope", all, 0);
    same("logn within its length", "logn:length=150,rule=added,beta=0.5", all, "nope", all, 0);
    slope_of_log = 0.43;
    constant = 0.1;
    same("positions that count from 0", "ssmax:bias=1,count=position", all, "ssmax:bias=1", all, 0);
    same("positions that count from 0", "logn:length=9,count=position", all, "logn:length=9", all,
         0);

    /* Row by row: the factor is a scale.  What stands before is multiplied, what follows is not. */
    const double scale = 1 / sqrt(D), f = 0.43 * log(L) + 0.1, g = log(L) / log(9),
                 added = 1 + 0.5 * log(L / 9.0);
    struct setup scaled = last;
    scaled.scale = scale * f;
    same("a factor is a scale", "ssmax:bias=1", last, "nope", scaled, 1e-12);
    slope_factor = 1;
    scaled.fill = with_slopes;
    struct setup plain = last;
    plain.fill = with_slopes;
    same("a factor before slopes", "ssmax:bias=1+alibi:slopes=given", plain, "alibi:slopes=given",
         scaled, 1e-12);
    struct attend a, c;
    run(&a, "alibi:slopes=given+ssmax:bias=1", plain);
    slope_factor = f;
    run(&c, "alibi:slopes=given", scaled);
    CHECK_THAT(between(&a, &c) <= 1e-12, "a factor behind slopes: %.1e apart", between(&a, &c));
    attend_free(&a);
    attend_free(&c);
    scaled.fill = factors;
    scaled.scale = scale * g;
    same("logn, ratio", "logn:length=9", last, "nope", scaled, 1e-12);
    scaled.scale = scale * added;
    same("logn, added", "logn:length=9,rule=added,beta=0.5", last, "nope", scaled, 1e-12);
}

/* ---- Missing inputs -------------------------------------------------------------------------- */

static void missing(void)
{
    static const struct {
        const char *text, *says[2];
    } wants[] = {
        { "angles:pairing=half",
          { "angles: input tensor 'phi_q' must be given",
            "angles: input tensor 'phi_k' must be given" } },
        { "rope:pairing=half,positions=given",
          { "rope: input tensor 'z_q' must be given", "rope: input tensor 'z_k' must be given" } },
        { "alibi:slopes=both",
          { "alibi: input tensor 'slope_k' must be given",
            "alibi: input tensor 'slope_q' must be given" } },
    };
    static float rows[H * D * 64], work[1 << 18];
    for (int i = 0; i < 3; i++)
        for (int which = 0; which < 2; which++) {
            loci_plan *p;
            loci_error e = { 0 };
            const loci_desc d =
                LOCI_DESC(.encoding = wants[i].text, .heads = H, .kv_heads = G, .dim = D);
            const loci_view at = { rows, 0, 0, 0 }, o = { rows + H * D * 32, 0, 0, 0 };
            const void *tensors[] = { which ? rows : NULL, which ? NULL : rows };
            const loci_call c = LOCI_CALL(.batch = 1, .q_len = 2, .k_len = 2, .q = at, .k = at,
                                          .v = at, .o = o, .tensors = tensors, .error = &e);
            static _Alignas(64) char tables[1 << 16];
            if (loci_plan_create(&p, &d, &e) || loci_tables_size(p, 2) > sizeof tables
                || loci_workspace(p, &c, 0) + 64 > sizeof work
                || loci_prepare(p, 2, NULL, tables)) {
                CHECK_THAT(false, "%s: %s", wants[i].text, e.text);
                continue;
            }
            char *aligned = (char *)work + (64 - (uintptr_t)work % 64) % 64;
            CHECK_SAYS(loci_forward(p, tables, aligned, &c), LOCI_BAD_ARG, &e,
                       wants[i].says[which]);
            loci_plan_destroy(p);
        }
}

int main(void)
{
    missing();
    angles();
    slopes();
    row_factors();
    return harness_end();
}
