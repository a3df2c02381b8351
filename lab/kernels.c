/* SPDX-License-Identifier: MIT */
/* kernels.c -- see engine.h.
 *
 * Numbers that are nearly nothing become 0, so that no mean of gradients fades into subnormals,
 * which some processors compute a hundred times as slowly. */
#include "lab/engine.h"

#include "engine/gemm.h"

enum { PAD = LAB_PAD };

/* ---- Products -------------------------------------------------------------------------------- */

/* Long sums run over pieces of K, so that a piece of B stays in a near cache while all rows of A
 * meet it.  The pieces are part of the bits. */
enum { PIECE = 256 };

static void multiply(bool add, ptrdiff_t m, ptrdiff_t n, ptrdiff_t k, const void *a, ptrdiff_t am,
                     ptrdiff_t ak, const void *b, ptrdiff_t bk, void *c, ptrdiff_t cm)
{
    for (ptrdiff_t k0 = 0; k0 < k; k0 += PIECE, add = true)
        product(add ? ADD : SET, (int)m, (int)n, (int)(k - k0 < PIECE ? k - k0 : PIECE),
                (const real *)a + k0 * ak, am, ak, (const real *)b + k0 * bk, bk, c, cm, NULL);
}

static void transpose_block(ptrdiff_t rows, ptrdiff_t cols, const void *from, void *to)
{
    transpose(from, cols, (int)rows, (int)cols, to, rows);
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/* The lanes of a sum, in halves. */
INLINE real sum_lanes(real lane[PAD])
{
    for (int half = PAD / 2; half; half /= 2)
        for (int i = 0; i < half; i++) lane[i] += lane[i + half];
    return lane[0];
}
INLINE real sum_products(ptrdiff_t width, const real *restrict x, const real *restrict y)
{
    real lane[PAD] = { 0 };
    for (ptrdiff_t d = 0; d < width; d += PAD)
        for (int i = 0; i < PAD; i++) lane[i] = fma_(x[d + i], y[d + i], lane[i]);
    return sum_lanes(lane);
}

static void norm(ptrdiff_t rows, ptrdiff_t width, const void *from, const void *by, void *to,
                 void *scales)
{
    const real *restrict gain = by, eps = (real)1e-6;
    for (ptrdiff_t r = 0; r < rows; r++) {
        const real *restrict x = (const real *)from + r * width;
        real *restrict y = (real *)to + r * width;
        const real mean = sum_products(width, x, x) / (real)width,
                   scale = 1 / (real)sqrt((double)(mean + eps));
        ((real *)scales)[r] = scale;
        for (ptrdiff_t d = 0; d < width; d++) y[d] = x[d] * scale * gain[d];
    }
}

/* With n = x scale and g = dy gain:  dx = scale (g - n mean(g n)),  dgain = sum of dy n. */
static void norm_backward(ptrdiff_t rows, ptrdiff_t width, const void *from, const void *by,
                          const void *scales, const void *dys, void *dxs, void *dgains)
{
    const real *restrict gain = by;
    real *restrict dgain = dgains;
    memset(dgain, 0, sizeof(real) * (size_t)width);
    for (ptrdiff_t r = 0; r < rows; r++) {
        const real *restrict x = (const real *)from + r * width, *restrict dy =
                                                                     (const real *)dys + r * width;
        real *restrict dx = (real *)dxs + r * width, lane[PAD] = { 0 };
        const real scale = ((const real *)scales)[r];
        for (ptrdiff_t d = 0; d < width; d += PAD)
            for (int i = 0; i < PAD; i++)
                lane[i] = fma_(dy[d + i] * gain[d + i], x[d + i], lane[i]);
        const real mean = sum_lanes(lane) * scale / (real)width;
        for (ptrdiff_t d = 0; d < width; d++) {
            const real n = x[d] * scale;
            dx[d] += (dy[d] * gain[d] - n * mean) * scale;
            dgain[d] += dy[d] * n;
        }
    }
}

/* ---- Activation ------------------------------------------------------------------------------ */

#define GELU_A ((real)0.7978845608028654) /* sqrt(2 / pi) */
#define GELU_B ((real)0.044715)

/* n counts whole vectors. */
static void gelu(ptrdiff_t n, const void *from, void *to)
{
    const real *x = from;
    real *u = to;
    const vf one = vf_set1(1), half = vf_set1((real)0.5);
    for (ptrdiff_t i = 0; i < n; i += VL) {
        const vf y = vf_load(x + i), cube = vf_mul(vf_mul(y, y), y);
        const vf t = vf_tanh(vf_mul(vf_set1(GELU_A), vf_fma(vf_set1(GELU_B), cube, y)));
        vf_store(u + i, vf_mul(vf_mul(half, y), vf_add(one, t)));
    }
}

/* With t as above:  (1 + t) / 2 + x / 2 (1 - t^2) a (1 + 3 b x^2) */
static void gelu_backward(ptrdiff_t n, const void *from, void *to)
{
    const real *x = from;
    real *du = to;
    const vf one = vf_set1(1), half = vf_set1((real)0.5);
    for (ptrdiff_t i = 0; i < n; i += VL) {
        const vf y = vf_load(x + i), square = vf_mul(y, y), cube = vf_mul(square, y);
        const vf t = vf_tanh(vf_mul(vf_set1(GELU_A), vf_fma(vf_set1(GELU_B), cube, y)));
        const vf inner = vf_mul(vf_set1(GELU_A), vf_fma(vf_set1(3 * GELU_B), square, one));
        const vf slope = vf_mul(vf_mul(half, y), vf_mul(vf_sub(one, vf_mul(t, t)), inner));
        const vf d = vf_fma(half, vf_add(one, t), slope);
        vf_store(du + i, vf_mul(vf_load(du + i), d));
    }
}

/* ---- Loss ------------------------------------------------------------------------------------ */

/* Columns behind `width` weigh nothing. */
static void cross_entropy(ptrdiff_t rows, ptrdiff_t stride, ptrdiff_t width, const int32_t *target,
                          double share, void *logits, double *loss, int32_t *best)
{
    for (ptrdiff_t r = 0; r < rows; r++) {
        real *x = (real *)logits + r * stride;
        int32_t first = 0;
        for (ptrdiff_t d = 1; d < width; d++)
            if (x[d] > x[first]) first = (int32_t)d;
        const real top = x[first], right = target[r] < 0 ? 0 : x[target[r]];
        for (ptrdiff_t d = width; d < stride; d++) x[d] = LOWEST;
        real lane[PAD] = { 0 };
        for (ptrdiff_t d = 0; d < stride; d += VL)
            vf_store(x + d, vf_exp(vf_sub(vf_load(x + d), vf_set1(top))));
        for (ptrdiff_t d = 0; d < stride; d += PAD)
            for (int i = 0; i < PAD; i++) lane[i] += x[d + i];
        const real sum = sum_lanes(lane);
        best[r] = first;
        loss[r] = target[r] < 0 ? 0 : log_((double)sum) - ((double)right - (double)top);
        if (share == 0) continue;
        const real each = target[r] < 0 ? 0 : (real)share / sum;
        for (ptrdiff_t d = 0; d < stride; d++) x[d] *= each;
        if (target[r] >= 0) x[target[r]] -= (real)share;
    }
}

/* ---- Lists ----------------------------------------------------------------------------------- */

static void add(ptrdiff_t n, const void *from, void *to)
{
    const real *restrict x = from;
    real *restrict y = to;
    for (ptrdiff_t i = 0; i < n; i++) y[i] += x[i];
}

static void scale_rows(ptrdiff_t rows, ptrdiff_t width, const double *factor, void *to)
{
    for (ptrdiff_t r = 0; r < rows; r++) {
        real *x = (real *)to + r * width;
        const real f = (real)factor[r];
        for (ptrdiff_t d = 0; d < width; d++) x[d] *= f;
    }
}

static double squares(ptrdiff_t n, const void *from)
{
    const real *x = from;
    double lane[PAD] = { 0 };
    ptrdiff_t i = 0;
    for (; i + PAD <= n; i += PAD)
        for (int k = 0; k < PAD; k++) lane[k] += (double)x[i + k] * (double)x[i + k];
    for (int k = 0; i < n; i++, k++) lane[k] += (double)x[i] * (double)x[i];
    for (int half = PAD / 2; half; half /= 2)
        for (int k = 0; k < half; k++) lane[k] += lane[k + half];
    return lane[0];
}

/* The least that a mean keeps. */
#define LEAST ((real)1e-30)

static void adam(ptrdiff_t n, const struct lab_adam *a, const void *gs, void *ms, void *vs,
                 void *ws)
{
    const real *restrict g = gs;
    real *restrict m = ms, *restrict v = vs, *restrict w = ws;
    const real clip = (real)a->clip, keep1 = (real)a->beta1, take1 = (real)(1 - a->beta1),
               keep2 = (real)a->beta2, take2 = (real)(1 - a->beta2), fix1 = (real)a->fix1,
               fix2 = (real)a->fix2, eps = (real)a->eps, rate = (real)a->rate,
               decay = (real)a->decay;
    for (ptrdiff_t i = 0; i < n; i++) {
        real x = g[i] * clip;
        x = abs_(x) < (real)1e-15 ? 0 : x;
        const real mean = m[i] * keep1 + x * take1, square = v[i] * keep2 + x * x * take2;
        m[i] = abs_(mean) < LEAST ? 0 : mean;
        v[i] = square < LEAST ? 0 : square;
#if LOCI_DOUBLE
        const real root = sqrt(v[i] * fix2);
#else
        const real root = __builtin_sqrtf(v[i] * fix2);
#endif
        w[i] -= rate * (m[i] * fix1 / (root + eps)) + decay * w[i];
    }
}

const struct lab_engine N(lab_engine) = {
#define WORD_(isa) #isa
#define WORD(isa) WORD_(isa)
    .isa = WORD(LOCI_ISA),
    .real = sizeof(real),
    .product = multiply,
    .transpose = transpose_block,
    .norm = norm,
    .norm_backward = norm_backward,
    .gelu = gelu,
    .gelu_backward = gelu_backward,
    .cross_entropy = cross_entropy,
    .add = add,
    .scale_rows = scale_rows,
    .squares = squares,
    .adam = adam,
};
