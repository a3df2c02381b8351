/* SPDX-License-Identifier: MIT */
/* xl.c -- sinusoids of the distance, projected per head, with two learned
 * queries.  Dai et al., ACL 2019.
 *
 *     S_ij = scale (q_i.k_j + u.k_j + (q_i + v).(W R_d))        d = i - j
 *     R_d = [sin(d w[0]) .. | cos(d w[0]) ..], [Dm]
 *     w[t] = base^(-2t/Dm), sines first: ceil(Dm/2) of them
 *
 * W is [H][D][Dm], u and v are [H][D].  With clamp=C distances beyond C count as C.  The
 * authors' code has keys behind the query only (its shift is undefined ahead).  For keys ahead d
 * is negative here, in sine and cosine alike. */
#include "util/arena.h"
#include "math/trig.h"
#include "contract/encoding.h"
#include "contract/engine.h"
#include "layout/roll.h"
#include "layout/band_k.h"

enum { CLAMP, BASE };
static const loci_option opts[] = {
    [CLAMP] = { "clamp", LOCI_WHOLE, 0, -1, -1, 1e9, NULL,
                "larger distances count as this one; -1 or 0: no limit" },
    [BASE] = { "base", LOCI_NUMBER, 0, 10000, 1, 1e18, NULL,
               "the longest wavelength is about 2 pi base positions" },
    { 0 }
};

/* Dm: the model's width, unless the caller's W has another. */
static int waves(const struct config *c)
{
    const loci_tensor *w = loci_have(c, "w");
    if (w && w->rank == 3) return (int)w->shape[2];
    return c->model_dim ? c->model_dim : c->heads * c->dim;
}

enum { PROJECTION, CONTENT, POSITION };
static void tensors(const struct config *c, struct tensors *t)
{
    loci_add_tensor(t, c, "w", LOCI_LEARNED, INIT_NORMAL, 0.02, 0,
                    SHAPE(c->heads, c->dim, waves(c)));
    loci_add_tensor(t, c, "u", LOCI_LEARNED, INIT_NORMAL, 0.02, 0, SHAPE(c->heads, c->dim));
    loci_add_tensor(t, c, "v", LOCI_LEARNED, INIT_NORMAL, 0.02, 0, SHAPE(c->heads, c->dim));
}

/* ---- Tables: a header, u for band_k, v and W R_d of each head, R_d --------------------------- */

/* u.k_j is a product of keys with one vector for all distances: a table of a single distance. */
static const struct key_vectors everywhere = { .lo = 0, .hi = 0, .at = ROLL_HEADER };
static void terms(const struct config *c, struct termlist *t)
{
    const struct waves w = { waves(c) };
    loci_add_term_layout(t, TERM_roll, GROUP_RAW, &w, sizeof w);
    loci_add_term_layout(t, TERM_band_k, GROUP_RAW, &everywhere, sizeof everywhere);
}

/* The layout of the table; false if it is larger than memory can be. */
static bool layout(const struct config *c, ptrdiff_t range, size_t real, struct roll *v,
                   size_t *bytes)
{
    const double clamp = c->opt[CLAMP];
    const int64_t far = clamp > 0 && clamp < (double)range ? (int64_t)clamp : range;
    *v = (struct roll){ .lo = c->full ? -far : 0,
                        .hi = far,
                        .width = (ptrdiff_t)vectors_padded(c->dim),
                        .waves_width = (ptrdiff_t)vectors_padded(waves(c)) };
    v->heads = round_up(ROLL_HEADER + (size_t)c->heads * key_table(&everywhere, c->dim) * real);
    const size_t each = (size_t)(c->heads * v->width + v->waves_width) * real;
    /* Half of it is for the vectors of the heads and the waves, so no sum below overflows. */
    if ((size_t)(v->hi - v->lo + 2) > (PTRDIFF_MAX - v->heads) / 2 / each) return false;
    v->waves = v->heads + (size_t)c->heads * (size_t)roll_head(v) * real;
    *bytes = v->waves + (size_t)(v->hi - v->lo + 1) * (size_t)v->waves_width * real;
    return true;
}
static size_t size(const struct config *c, ptrdiff_t range, size_t real)
{
    struct roll v;
    size_t bytes;
    return layout(c, range, real, &v, &bytes) ? bytes : SIZE_MAX;
}

/* State shared by the threads of prepare().  A job is a few waves, or one head
 * and a range of distances. */
enum { DISTANCES = 18, STEPS = 64, WAVES = 8 };
struct xl_work {
    const struct prep *p;
    struct roll v;
};
/* Distances of a job: sums that fit the stack, in doubles or in twice as many floats. */
union sums {
    double f64[DISTANCES * PROJECTED];
    float f32[2 * DISTANCES * PROJECTED];
};
static int at_once(const struct prep *p) { return p->f64 ? DISTANCES : 2 * DISTANCES; }

/* Some waves at all distances, as one wave after the other would visit each line of the table
 * anew.  d = 64 n + m rotates by the angle of 64 n and by that of m: few cosines, and two products
 * in double for each distance.  An odd width has one cosine less. */
static void waves_job(void *arg, int index)
{
    const struct xl_work *a = arg;
    const struct prep *p = a->p;
    const struct roll *v = &a->v;
    const int Dm = waves(p->cfg), half = (Dm + 1) / 2, t0 = index * WAVES,
              n = half - t0 < WAVES ? half - t0 : WAVES;
    void *to = (char *)p->table + v->waves;
    double w[WAVES], rest[WAVES], small[WAVES][STEPS][2], c[WAVES] = { 0 }, s[WAVES] = { 0 };
    for (int t = 0; t < n; t++) {
        loci_pow_dd(p->cfg->opt[BASE], 2 * (t0 + t), Dm, &w[t], &rest[t]);
        for (int m = 0; m < STEPS; m++)
            loci_sincos(m, w[t], rest[t], &small[t][m][0], &small[t][m][1]);
    }
    for (int64_t d = v->lo; d <= v->hi; d++) {
        const int64_t m = d & (STEPS - 1);
        const ptrdiff_t at = (ptrdiff_t)(d - v->lo) * v->waves_width + t0;
        for (int t = 0; t < n; t++) {
            const double *rotate = small[t][m];
            if (d == v->lo || m == 0) loci_sincos((double)(d - m), w[t], rest[t], &c[t], &s[t]);
            store_real(to, p->f64, at + t, s[t] * rotate[0] + c[t] * rotate[1]);
            if (half + t0 + t < Dm)
                store_real(to, p->f64, at + half + t, c[t] * rotate[0] - s[t] * rotate[1]);
        }
    }
}

/* W R_d of a head for some distances that are not negative, and for those of the other sign, where
 * sines change theirs: both are made of two sums.  Largest distance first, like the oldest keys, as
 * the term reads them. */
static void project(const struct xl_work *a, int h, ptrdiff_t first, int n)
{
    const struct prep *p = a->p;
    const struct roll *v = &a->v;
    const int D = p->cfg->dim, Dm = waves(p->cfg), half = (Dm + 1) / 2;
    const size_t real = p->f64 ? sizeof(double) : sizeof(float);
    char *to =
        (char *)p->table + v->heads + (size_t)((ptrdiff_t)h * roll_head(v) + v->width) * real;
    const char *from =
        (char *)p->table + v->waves + (size_t)((first - (ptrdiff_t)v->lo) * v->waves_width) * real;
    for (int d0 = 0; d0 < D; d0 += PROJECTED) {
        const int rows = D - d0 < PROJECTED ? D - d0 : PROJECTED;
        const char *w =
            (const char *)p->data[PROJECTION] + (size_t)(h * D + d0) * (size_t)Dm * real;
        union sums sines = { .f64 = { 0 } }, cosines = { .f64 = { 0 } };
        p->engine->add_projected(n, half, rows, from, v->waves_width, w, Dm, &sines);
        p->engine->add_projected(n, Dm - half, rows, from + (size_t)half * real, v->waves_width,
                                 w + (size_t)half * real, Dm, &cosines);
        for (int i = 0; i < n; i++) {
            const ptrdiff_t behind = (ptrdiff_t)v->hi - (first + i),
                            ahead = (ptrdiff_t)v->hi + (first + i);
            for (int d = 0; d < rows; d++) {
                const double s = load_real(&sines, p->f64, i * PROJECTED + d),
                             c = load_real(&cosines, p->f64, i * PROJECTED + d);
                store_real(to, p->f64, behind * v->width + d0 + d, c + s);
                if (v->lo < 0) store_real(to, p->f64, ahead * v->width + d0 + d, c - s);
            }
        }
    }
}
static void vectors_job(void *arg, int index)
{
    const struct xl_work *a = arg;
    const ptrdiff_t count = (ptrdiff_t)a->v.hi + 1;
    const int heads = a->p->cfg->heads, n = at_once(a->p);
    const ptrdiff_t first = (ptrdiff_t)(index / heads) * n;
    project(a, index % heads, first, count - first < n ? (int)(count - first) : n);
}

/* u goes into every column of its table, as band_k reads it.  The waves come before the
 * vectors computed from them. */
static void prepare(const struct prep *p)
{
    const struct config *c = p->cfg;
    const size_t real = p->f64 ? sizeof(double) : sizeof(float);
    struct xl_work a = { .p = p };
    struct roll *v = &a.v;
    size_t bytes;
    if (!layout(c, p->range, real, v, &bytes)) return;
    const ptrdiff_t columns = (ptrdiff_t)key_columns(&everywhere),
                    width = (ptrdiff_t)vectors_width(c->dim), count = (ptrdiff_t)v->hi + 1;
    char *table = p->table;
    memcpy(table, v, sizeof *v);
    for (int h = 0; h < c->heads; h++) {
        char *across = table + everywhere.at + (size_t)h * key_table(&everywhere, c->dim) * real,
             *rows = across + (size_t)(c->dim * columns) * real;
        for (ptrdiff_t n = 0; n < columns; n++)
            for (int d = 0; d < c->dim; d++) {
                const double u = param(p, CONTENT, (ptrdiff_t)h * c->dim + d);
                store_real(across, p->f64, d * columns + n, u);
                store_real(rows, p->f64, n * width + d, u);
            }
        char *head = table + v->heads + (size_t)(h * roll_head(v)) * real;
        for (int d = 0; d < c->dim; d++)
            store_real(head, p->f64, d, param(p, POSITION, (ptrdiff_t)h * c->dim + d));
    }
    prepare_each(p, ((waves(c) + 1) / 2 + WAVES - 1) / WAVES, waves_job, &a);
    prepare_each(p, (int)((count + at_once(p) - 1) / at_once(p)) * c->heads, vectors_job, &a);
}

/* ---- Gradients ------------------------------------------------------------------------------- */

/* dW and dv come from the term roll by head, du from band_k: its columns,
 * and the pairs beyond both ends, which all have the same vector. */
static void fold(const struct prep *p)
{
    const struct config *c = p->cfg;
    const int D = c->dim, Dm = waves(c);
    const ptrdiff_t Dp = (ptrdiff_t)vectors_padded(D), Dmp = (ptrdiff_t)vectors_padded(Dm);
    const ptrdiff_t columns = (ptrdiff_t)key_columns(&everywhere);
    double *dw = p->dtensor[PROJECTION], *du = p->dtensor[CONTENT], *dv = p->dtensor[POSITION];
    for (int h = 0; h < c->heads && p->dtable[0]; h++) {
        const double *part = p->dtable[0] + h * (D * Dmp + Dp);
        for (int d = 0; d < D; d++) {
            for (int m = 0; m < Dm && dw; m++)
                dw[((ptrdiff_t)h * D + d) * Dm + m] += part[d * Dmp + m];
            if (dv) dv[(ptrdiff_t)h * D + d] += part[D * Dmp + d];
        }
    }
    for (int h = 0; h < c->heads && p->dtable[1] && du; h++) {
        const double *ends = p->dtable[1] + (size_t)h * key_part(&everywhere, D),
                     *part = ends + key_ends(D);
        for (int d = 0; d < D; d++) {
            for (ptrdiff_t n = 0; n < columns; n++)
                du[(ptrdiff_t)h * D + d] += part[d * columns + n];
            du[(ptrdiff_t)h * D + d] += ends[d] + ends[Dp + d];
        }
    }
}

const struct loci_pe loci_pe_xl = {
    .name = "xl",
    .cite = "Dai et al., ACL 2019",
    .family = FAMILY_VECTORS,
    .brief = "S += scale (u.k_j + (q_i + v).(W R)), R the waves of i - j",
    .example = "xl",
    .places = LOCI_PLACE_SCORE,
    .tol = 8e-6,
    .opts = opts,
    .tensors = tensors,
    .terms = terms,
    .size = size,
    .prepare = prepare,
    .fold = fold,
};
