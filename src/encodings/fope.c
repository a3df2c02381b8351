/* SPDX-License-Identifier: MIT */
/* fope.c -- rope whose cos and sin are sums of several frequencies.  Hua et al.,
 * ICML 2025 (arXiv 2412.17739).
 *
 *     c[h][t] = sum over l of cos(pos w[l]) C[h][l][t],
 *     s[h][t] = sum over l of sin(pos w[l]) S[h][l][t]
 *     (x[t], x[t + D/2]) <- (x[t] c[t] - x[t + D/2] s[t], x[t] s[t] + x[t + D/2] c[t])
 *
 * w[l] = base^(-2l/n), n = max(fourier_dim, D), l < n/2.  With clamp, frequencies below
 * floor_ratio 2 pi/train_length, which never complete a turn in training, are 0.  ignore_zero
 * drops them: K frequencies remain, and Dout = min(K, D/4) pairs are sums.  Otherwise all n/2
 * remain and Dout = D/2.  Pairs from Dout on have c = 1 and s = pad_sin.  The authors' code has
 * 1 there, which doubles the contribution of these pairs to a score; other engines and the
 * paper's zero frequency have 0.
 *
 * C and S have a head axis, that of the kv heads, or none.  Without C, S serves for both.  norm
 * divides each column of them by its sum.  In the authors' runs they are fixed random numbers
 * near a step matrix: data of the model.  learn=1 trains them. */
#include "math/random.h"
#include "math/trig.h"
#include "layout/fourier.h"

enum {
    BASE,
    TRAIN_LENGTH,
    FLOOR_RATIO,
    FOURIER_DIM,
    CLAMP,
    IGNORE_ZERO,
    NORM,
    PAD_SIN,
    LEARN,
    OPTIONS
};
/* check() counts K and stores it after the options, where every hook finds it. */
enum { WAVES = OPTIONS };
_Static_assert((int)WAVES < (int)MAX_OPTIONS, "a config has room for it");
enum { SIN, COS }; /* tensors; in tables cos comes first */
/* gain: the share of random numbers in the authors' initial values. */
static const double pi = 3.14159265358979312, gain = 0.3;
static const loci_option opts[] = {
    [BASE] = { "base", LOCI_NUMBER, 0, 10000, 1, 1e18, NULL,
               "frequencies fall from 1 to about 1/base" },
    [TRAIN_LENGTH] = { "train_length", LOCI_NUMBER, 0, 512, 1, 1e18, NULL,
                       "length of the training context" },
    [FLOOR_RATIO] = { "floor_ratio", LOCI_NUMBER, 0, 1, 0, 1e6, NULL,
                      "turns that a frequency must make in train_length" },
    [FOURIER_DIM] = { "fourier_dim", LOCI_WHOLE, 0, 0, 0, 2048, NULL,
                      "twice the number of frequencies; at least D" },
    [CLAMP] = { "clamp", LOCI_WORD, 0, 1, 0, 0, "0|1", "1: frequencies with fewer turns become 0" },
    [IGNORE_ZERO] = { "ignore_zero", LOCI_WORD, 0, 1, 0, 0, "0|1",
                      "1: these frequencies are left out" },
    [NORM] = { "norm", LOCI_WORD, 0, 0, 0, 0, "0|1",
               "1: coefficients of a pair are divided by their sum" },
    [PAD_SIN] = { "pad_sin", LOCI_WORD, 0, 1, 0, 0, "0|1",
                  "sin of the pairs that are not sums; their cos is 1" },
    [LEARN] = { "learn", LOCI_WORD, 0, 0, 0, 0, "0|1", "1: coefficients are learned" },
    { 0 }
};

/* ---- Frequencies ----------------------------------------------------------------------------- */

/* n/2 of the file comment. */
static int all_waves(const struct config *c)
{
    const int dim = (int)c->opt[FOURIER_DIM] > c->dim ? (int)c->opt[FOURIER_DIM] : c->dim;
    return dim / 2;
}
/* w[l], or 0 below the floor: a wave that never completed a turn in training has
 * learned nothing of longer texts. */
static void wave(const struct config *c, int l, double *hi, double *lo)
{
    loci_pow_dd(c->opt[BASE], 2.0 * l, 2.0 * all_waves(c), hi, lo);
    if (c->opt[CLAMP] && *hi < 2 * pi / c->opt[TRAIN_LENGTH] * c->opt[FLOOR_RATIO]) *hi = *lo = 0;
}
/* Frequencies fall, so those that remain are the first. */
static int count_waves(const struct config *c)
{
    int n = all_waves(c);
    for (double hi = 0, lo; c->opt[IGNORE_ZERO] && n > 0; n--) {
        wave(c, n - 1, &hi, &lo);
        if (hi != 0) break;
    }
    return n;
}
static int waves(const struct config *c) { return (int)c->opt[WAVES]; }
/* Dout of the file comment. */
static int sums(const struct config *c)
{
    const int K = waves(c);
    if (!c->opt[IGNORE_ZERO]) return c->dim / 2;
    return K < c->dim / 4 ? K : c->dim / 4;
}

/* The number of remaining waves decides the shapes of the tensors, so it is counted here, once. */
static loci_status check(struct config *c, loci_error *e)
{
    CHECK(e, c->dim % 2 == 0, LOCI_BAD_ARG,
          "fope: dim %d must be even: channels are rotated in pairs", c->dim);
    CHECK(e, fmod(c->opt[FOURIER_DIM], 2) == 0, LOCI_BAD_ARG, "fope: fourier_dim %g must be even",
          c->opt[FOURIER_DIM]);
    c->opt[WAVES] = count_waves(c);
    CHECK(e, waves(c) > 0, LOCI_BAD_ARG,
          "fope: no frequency makes %g turns in train_length %g; use a smaller floor_ratio or a "
          "longer train_length",
          c->opt[FLOOR_RATIO], c->opt[TRAIN_LENGTH]);
    CHECK(e, sums(c) > 0, LOCI_BAD_ARG,
          "fope: with ignore_zero=1 the head must have at least 4 channels, not %d", c->dim);
    return LOCI_OK;
}

/* ---- Tensors --------------------------------------------------------------------------------- */

/* C exists unless the caller describes its tensors without it; then S serves for both. */
static bool has_cos(const struct config *c) { return !c->have || loci_have(c, "cos"); }
/* True if the caller has one table for all heads. */
static bool shared(const struct config *c, const char *name)
{
    const loci_tensor *t = loci_have(c, name);
    return t && t->rank == 2;
}
/* The authors' initial values: pair t has frequency t ceil(K/Dout), and a little of all. */
static double start(const struct config *c, uint64_t stream, ptrdiff_t i)
{
    const int K = waves(c), n = sums(c), l = (int)(i / n % K), t = (int)(i % n),
              step = (K + n - 1) / n;
    /* Xavier's variance, 2 / (inputs + outputs), of the tensor as it is stored. */
    const double fans = shared(c, "sin") ? K + n : (double)(K + c->kv_heads) * n;
    const double normal = sqrt(-2 * log(loci_uniform(stream, 2 * (uint64_t)i)))
                        * cos(2 * pi * loci_uniform(stream, 2 * (uint64_t)i + 1));
    return (l == t * step) + gain * sqrt(2 / fans) * normal;
}
static void add_coefficients(const struct config *c, struct tensors *t, const char *name)
{
    const loci_role role = c->opt[LEARN] ? LOCI_LEARNED : LOCI_FIXED;
    if (shared(c, name))
        loci_add_tensor(t, c, name, role, INIT_ZERO, 0, 0, SHAPE(waves(c), sums(c)));
    else loci_add_tensor(t, c, name, role, INIT_ZERO, 0, 0, SHAPE(c->kv_heads, waves(c), sums(c)));
    t->draw[t->n - 1] = start;
}
static void tensors(const struct config *c, struct tensors *t)
{
    const bool both = has_cos(c);
    add_coefficients(c, t, "sin");
    if (both) add_coefficients(c, t, "cos");
}
/* If either tensor has a head axis, the table has one. */
static struct fourier fourier(const struct config *c)
{
    const bool one = shared(c, "sin") && (!has_cos(c) || shared(c, "cos"));
    return (struct fourier){ .waves = waves(c),
                             .sums = sums(c),
                             .groups = one ? 1 : c->kv_heads,
                             .learned = c->opt[LEARN],
                             .rest = c->opt[PAD_SIN] };
}

static void terms(const struct config *c, struct termlist *t)
{
    const struct fourier f = fourier(c);
    loci_add_term_layout(t, TERM_fourier, GROUP_ROTATE, &f, sizeof f);
}

/* The tensor of C (which = 0) or S (1), and where its numbers for a group are. */
static int tensor_of(const struct prep *p, int which)
{
    return which == 0 && has_cos(p->cfg) ? COS : SIN;
}
static ptrdiff_t first_of_group(const struct prep *p, const struct fourier *f, int which, int group)
{
    return p->tensor[tensor_of(p, which)].rank == 3 ? (ptrdiff_t)group * f->waves * f->sums : 0;
}

/* ---- Tables ---------------------------------------------------------------------------------- */

static size_t size(const struct config *c, ptrdiff_t range, size_t real)
{
    const struct fourier f = fourier(c);
    (void)range;
    return fourier_at(&f) + (size_t)(2 * f.groups) * (size_t)fourier_table(&f) * real;
}
static void frequency(const struct prep *p, int axis, int group, int t, double *hi, double *lo)
{
    (void)axis;
    (void)group;
    wave(p->cfg, t, hi, lo);
}
/* The term multiplies rows of waves by these matrices, so they are padded to whole
 * lanes with zeros.  Under norm a column is divided by its sum, in double, and the
 * factor is stored for fold(). */
static void prepare(const struct prep *p)
{
    const struct fourier f = fourier(p->cfg);
    const int lanes = fourier_lanes(f.sums);
    char *reals = (char *)p->table + fourier_at(&f);
    for (int g = 0; g < f.groups; g++)
        for (int which = 0; which < 2; which++) {
            const ptrdiff_t from = first_of_group(p, &f, which, g),
                            to = (2 * g + which) * fourier_table(&f);
            double *factor = (double *)fourier_factors(&f, p->table, g, which);
            for (int t = 0; t < lanes; t++) {
                double all = 0;
                for (int l = 0; l < f.waves && t < f.sums; l++)
                    all += param(p, tensor_of(p, which), from + l * f.sums + t);
                const double times = p->cfg->opt[NORM] ? 1 / all : 1;
                if (t < f.sums) factor[t] = times;
                for (int l = 0; l < f.waves; l++) {
                    const ptrdiff_t at = from + l * f.sums + t;
                    const double x = t < f.sums ? param(p, tensor_of(p, which), at) * times : 0;
                    store_real(reals, p->f64, to + l * lanes + t, x);
                }
            }
        }
    loci_pairs_prepare(p, (struct pairs){ .count = f.waves, .axes = 1, .groups = 1, .factor = 1 },
                       frequency);
}

/* With norm, C' = C/n and n = sum over l of C[l], so dC[l] = (dC'[l] - sum over m of dC'[m]
 * C'[m]) / n.  Without it n is 1 and there is no sum. */
static void fold(const struct prep *p)
{
    const struct fourier f = fourier(p->cfg);
    const int lanes = fourier_lanes(f.sums);
    const char *reals = (const char *)p->table + fourier_at(&f);
    for (int h = 0; h < p->cfg->kv_heads && f.learned && p->dtable[0]; h++)
        for (int which = 0; which < 2; which++) {
            const int g = f.groups > 1 ? h : 0;
            const ptrdiff_t at = (2 * g + which) * fourier_table(&f);
            const double *part = p->dtable[0] + h * fourier_part(&f) + which * fourier_table(&f);
            double *to = p->dtensor[tensor_of(p, which)];
            if (!to) continue; /* without C, both are added to S */
            to += first_of_group(p, &f, which, g);
            for (int t = 0; t < f.sums; t++) {
                double all = 0;
                for (int l = 0; l < f.waves && p->cfg->opt[NORM]; l++)
                    all += part[l * lanes + t] * load_real(reals, p->f64, at + l * lanes + t);
                for (int l = 0; l < f.waves; l++)
                    to[l * f.sums + t] +=
                        (part[l * lanes + t] - all) * fourier_factors(&f, p->table, g, which)[t];
            }
        }
}

const struct loci_pe loci_pe_fope = {
    .name = "fope",
    .cite = "Hua et al., ICML 2025",
    .family = FAMILY_ROTATION,
    .brief = "rope whose cos and sin are sums over several frequencies",
    .example = "fope",
    .places = LOCI_PLACE_ROTATE,
    .rotates = true,
    .tol = 4e-6,
    .opts = opts,
    .check = check,
    .tensors = tensors,
    .terms = terms,
    .size = size,
    .prepare = prepare,
    .fold = fold,
};
