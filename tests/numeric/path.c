/* SPDX-License-Identifier: MIT */
/* path.c -- reflections: identities of single reflections and of many, over the borders of tiles
 * and blocks; the definition over several blocks; chunks of rows; rows that fade; NaN. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attend.h"
#include "harness.h"
#include "walk.h"

enum { H = 2, D = 8, L = 700, N = H * L * D };
static double q[N], k[N], v[N], w[N], beta[H * L];

/* Rows of length 1, and beta from 0 to 2. */
static void draw(int seed)
{
    walk_restart(seed);
    for (int i = 0; i < N; i++) {
        q[i] = (float)(2 * walk_uniform());
        k[i] = (float)(2 * walk_uniform());
        v[i] = (float)walk_uniform();
        w[i] = walk_uniform();
    }
    for (int j = 0; j < H * L; j++) {
        double sum = 0;
        for (int d = 0; d < D; d++) sum += w[j * D + d] * w[j * D + d];
        for (int d = 0; d < D; d++) w[j * D + d] = (float)(w[j * D + d] / sqrt(sum));
        beta[j] = (float)(1 + walk_uniform());
    }
}
/* Tensors of the last `len` keys. */
static int len;
static int64_t window; /* 0: none */
static double fill(const char *encoding, const loci_tensor *t, ptrdiff_t i)
{
    const ptrdiff_t each = strcmp(t->name, "w") ? 1 : D, head = i / (len * each),
                    at = head * L * each + i % (len * each);
    if (!strcmp(encoding, "fox")) return -0.02 * (double)(i % 4);
    return strcmp(t->name, "w") ? beta[at] : w[at];
}
static struct attend made(const char *text, loci_dtype dtype, bool reference)
{
    struct attend a = { .desc = LOCI_DESC(.encoding = text, .heads = H, .dim = D, .dtype = dtype,
                                          .window_left = window),
                        .q_len = L,
                        .k_len = L,
                        .q = q,
                        .k = k,
                        .v = v,
                        .fill = fill,
                        .reference = reference };
    len = L;
    attend(&a);
    return a;
}
static double apart(const double *a, const double *b, ptrdiff_t n)
{
    return attend_apart(a, b, n, false);
}
static double all_apart(const struct attend *a, const struct attend *b)
{
    return fmax(fmax(apart(a->o, b->o, N), apart(a->rows, b->rows, (ptrdiff_t)H * L)),
                fmax(fmax(apart(a->dq, b->dq, N), apart(a->dk, b->dk, N)), apart(a->dv, b->dv, N)));
}

/* ---- Identities ------------------------------------------------------------------------------ */

static void nothing(void)
{
    draw(5);
    memset(beta, 0, sizeof beta);
    struct attend a = made("path", LOCI_F64, false), b = made("nope", LOCI_F64, false);
    CHECK_CLOSE(all_apart(&a, &b), 0, 1e-12, "beta = 0: nope");
    attend_free(&a);
    attend_free(&b);
}
/* The score of a pair by hand, for the identities below. */
static double lse_of(int h, int i, double (*score)(int h, int i, int j))
{
    double top = -INFINITY, sum = 0;
    for (int j = 0; j <= i; j++) top = fmax(top, score(h, i, j) / sqrt(D));
    for (int j = 0; j <= i; j++) sum += exp(score(h, i, j) / sqrt(D) - top);
    return top + log(sum);
}
static double channels(int h, int i, int j, double first)
{
    double sum = 0;
    for (int d = 0; d < D; d++)
        sum += (d ? 1 : first) * q[(h * L + i) * D + d] * k[(h * L + j) * D + d];
    return sum;
}
static double turning(int h, int i, int j) { return channels(h, i, j, (i - j) % 2 ? -1 : 1); }
static double once(int h, int i, int j) { return channels(h, i, j, i == j); }
/* w is the first channel at every key. */
static void one_channel(double b, double (*score)(int, int, int), const char *what)
{
    draw(6);
    double off = 0;
    for (int j = 0; j < H * L; j++) {
        beta[j] = b;
        for (int d = 0; d < D; d++) w[j * D + d] = d == 0;
    }
    struct attend a = made("path", LOCI_F64, false);
    for (int h = 0; h < H; h++)
        for (int i = 0; i < L; i++) off = fmax(off, fabs(lse_of(h, i, score) - a.rows[h * L + i]));
    CHECK_CLOSE(off, 0, 1e-12, "%s", what);
    attend_free(&a);
}
/* w r and beta / r^2 are the same reflections; r is a power of two. */
static void scaled(void)
{
    draw(7);
    struct attend a = made("path", LOCI_F32, false);
    for (int i = 0; i < N; i++) w[i] *= 0x1p12;
    for (int j = 0; j < H * L; j++) beta[j] *= 0x1p-24;
    struct attend b = made("path", LOCI_F32, false);
    CHECK_CLOSE(all_apart(&a, &b), 0, 2e-6, "w r, beta / r^2");
    attend_free(&a);
    attend_free(&b);
}
/* q, k and w in another orthonormal basis: pairs of channels rotated. */
static void rotated(void)
{
    draw(8);
    struct attend a = made("path", LOCI_F64, false);
    double *const rows[] = { q, k, w };
    for (int x = 0; x < 3; x++)
        for (int i = 0; i < N; i += 2) {
            const double s = 0.6 * rows[x][i] - 0.8 * rows[x][i + 1],
                         t = 0.8 * rows[x][i] + 0.6 * rows[x][i + 1];
            rows[x][i] = s;
            rows[x][i + 1] = t;
        }
    struct attend b = made("path", LOCI_F64, false);
    CHECK_CLOSE(fmax(apart(a.o, b.o, N), apart(a.rows, b.rows, H * L)), 0, 1e-11,
                "another orthonormal basis");
    attend_free(&a);
    attend_free(&b);
}

/* ---- The definition, over blocks ------------------------------------------------------------- */

/* No reflection precedes key 0. */
static void definition(const char *text, loci_dtype dtype, double bound)
{
    struct attend a = made(text, dtype, false), b = made(text, LOCI_F64, true);
    CHECK_CLOSE(all_apart(&a, &b), 0, bound, "%s: outputs", text);
    CHECK_CLOSE(apart(a.dtensor[0], b.dtensor[0], N), 0, 4 * bound, "%s: dw", text);
    CHECK_CLOSE(apart(a.dtensor[1], b.dtensor[1], H * L), 0, 4 * bound, "%s: dbeta", text);
    for (int h = 0; h < H; h++) {
        CHECK_CLOSE(a.dtensor[1][h * L], 0, 0, "%s: dbeta of key 0", text);
        for (int d = 0; d < D; d++)
            CHECK_CLOSE(a.dtensor[0][h * L * D + d], 0, 0, "%s: dw of key 0", text);
    }
    attend_free(&a);
    attend_free(&b);
}
static void definitions(void)
{
    draw(9);
    if (!LOCI_EMULATED) definition("path", LOCI_F64, 1e-11);
    if (!LOCI_EMULATED) definition("path+fox", LOCI_F64, 1e-11);
    definition("path", LOCI_F32, 2e-5);
    /* nothing fades, and neighbours' w agree: a closed form would lose three more digits */
    for (int j = 0; j < H * L; j++) {
        double sum = 0;
        beta[j] = 2;
        for (int d = 0; d < D; d++) {
            w[j * D + d] = (d == 3) + 0.03 * w[j * D + d];
            sum += w[j * D + d] * w[j * D + d];
        }
        for (int d = 0; d < D; d++) w[j * D + d] = (float)(w[j * D + d] / sqrt(sum));
    }
    definition("path", LOCI_F32, 3e-5);
    if (!LOCI_EMULATED) definition("path", LOCI_F64, 1e-11);
}

/* Rows that see a few keys of the newest chunk, with sticks that last for hundreds of keys: what is
 * left of them in an older chunk is computed again from scores. */
static double fill_lasting(const char *encoding, const loci_tensor *t, ptrdiff_t i)
{
    const double spread = (double)(i * 7 % 23) / 23 - 0.5;
    (void)encoding;
    if (!strcmp(t->name, "log_f")) return 0.0001 * spread - 0.0001;
    return strcmp(t->name, "w") ? 0.5 + 0.2 * spread : 0.25 * spread;
}
static void over_chunks(const char *text)
{
    enum { ROWS = 30, KEYS = 4116 };
    static double rows[H * ROWS * D], keys[H * KEYS * D];
    struct attend a[2];
    walk_restart(12);
    for (int i = 0; i < H * ROWS * D; i++) rows[i] = 1.3 + 0.5 * walk_uniform();
    for (int i = 0; i < H * KEYS * D; i++) keys[i] = 0.5 * walk_uniform() - 1.3;
    for (int s = 0; s < 2; s++) {
        a[s] = (struct attend){ .desc = LOCI_DESC(.encoding = text, .heads = H, .dim = D,
                                                  .dtype = s ? LOCI_F64 : LOCI_F32),
                                .q_len = ROWS,
                                .k_len = KEYS,
                                .q = rows,
                                .k = keys,
                                .fill = fill_lasting,
                                .reference = s };
        attend(&a[s]);
    }
    CHECK_CLOSE(apart(a[0].o, a[1].o, H * ROWS * D), 0, 2e-7, "%s: o", text);
    CHECK_CLOSE(apart(a[0].dq, a[1].dq, H * ROWS * D), 0, 2e-7, "%s: dq", text);
    CHECK_CLOSE(apart(a[0].dk, a[1].dk, H * KEYS * D), 0, 2e-7, "%s: dk", text);
    CHECK_CLOSE(apart(a[0].dv, a[1].dv, H * KEYS * D), 0, 2e-7, "%s: dv", text);
    for (int s = 0; s < 2; s++) attend_free(&a[s]);
}

/* ---- Chunks and decode ----------------------------------------------------------------------- */

/* The last rows in calls of their own. */
static void chunks(void)
{
    draw(10);
    struct attend a = made("path", LOCI_F32, false);
    static const int rows[] = { 1, 3, 64, 100, 530 };
    for (size_t s = 0; s < sizeof rows / sizeof *rows; s++) {
        static double part[N];
        const int n = rows[s];
        for (int h = 0; h < H; h++)
            memcpy(part + h * n * D, q + (h * L + L - n) * D, sizeof(double) * (size_t)(n * D));
        struct attend b = made("path", LOCI_F32, false);
        attend_free(&b);
        b = (struct attend){ .desc = LOCI_DESC(.encoding = "path", .heads = H, .dim = D),
                             .q_len = n,
                             .k_len = L,
                             .q = part,
                             .k = k,
                             .v = v,
                             .fill = fill };
        attend(&b);
        bool same = true;
        for (int h = 0; h < H; h++)
            same &= !memcmp(b.o + h * n * D, a.o + (h * L + L - n) * D,
                            sizeof(double) * (size_t)(n * D));
        CHECK_THAT(same, "the last %d rows: the bits of all rows", n);
        attend_free(&b);
    }
    attend_free(&a);
}

/* ---- NaN ------------------------------------------------------------------------------------- */

/* NaN in x of key at[s] reaches the rows that may have it, and no others. */
static void spoil(const char *name, double *x, int64_t left)
{
    static const int at[] = { 0, 30, 64, 300, 511, 512, 699 };
    window = left;
    draw(11);
    struct attend a = made("path", LOCI_F32, false);
    for (size_t s = LOCI_EMULATED ? 3 : 0; s < sizeof at / sizeof *at; s += LOCI_EMULATED ? 3 : 1) {
        const double before = x[at[s] * D + 2];
        x[at[s] * D + 2] = NAN;
        struct attend b = made("path", LOCI_F32, false);
        int wrong = 0;
        for (int i = 0; i < L; i++) {
            const int oldest = left && i > left ? i - (int)left : 0;
            const bool sees = i >= at[s] && oldest <= at[s], across = sees && oldest < at[s],
                       hit = x == q ? i == at[s]
                           : x == w ? across
                                    : sees;
            for (int d = 0; d < D; d++) {
                const double y = a.o[i * D + d], z = b.o[i * D + d];
                wrong += hit && x != v ? !isnan(z) : !hit && y != z;
            }
        }
        CHECK_THAT(!wrong, "NaN in %s of key %d, window %d: %d numbers", name, at[s], (int)left,
                   wrong);
        CHECK_THAT(!memcmp(a.o + L * D, b.o + L * D, sizeof(double) * L * D),
                   "NaN in %s of key %d: not the other head", name, at[s]);
        x[at[s] * D + 2] = before;
        attend_free(&b);
    }
    attend_free(&a);
    window = 0;
}
/* Rows of a tile that goes over the end of a block of keys, at 1024: dq of the rows before a NaN in
 * w of the last key of the block. */
enum { LAST = 1023, KEYS = 1100 };
static bool broken;
static double fill_wide(const char *encoding, const loci_tensor *t, ptrdiff_t i)
{
    (void)encoding;
    if (strcmp(t->name, "w")) return 0.1 * (double)(i % 19);
    return broken && i == LAST * D + 2 ? NAN : 0.1 * (double)(i % 11) - 0.5;
}
static void spoil_gradient(int rows)
{
    struct attend a[2];
    for (int s = 0; s < 2; s++) {
        broken = s;
        a[s] = (struct attend){ .desc = LOCI_DESC(.encoding = "path", .heads = H, .dim = D),
                                .q_len = rows,
                                .k_len = KEYS,
                                .fill = fill_wide };
        attend(&a[s]);
    }
    const int before = LAST - (KEYS - rows);
    CHECK_THAT(!memcmp(a[0].dq, a[1].dq, sizeof(double) * (size_t)(before * D)),
               "NaN in w of key %d: dq of the %d rows before it, of %d", LAST, before, rows);
    CHECK_THAT(isnan(a[1].dq[(before + 1) * D]), "NaN in w of key %d: dq of a row after it", LAST);
    for (int s = 0; s < 2; s++) attend_free(&a[s]);
}
static void nan_reaches(void)
{
    const int64_t most = LOCI_EMULATED ? 0 : 130;
    for (int64_t left = 0; left <= most; left = left ? left + 30 : 100) {
        spoil("w", w, left);
        spoil("q", q, left);
        spoil("k", k, left);
        spoil("v", v, left);
    }
    spoil_gradient(230);
    if (!LOCI_EMULATED) spoil_gradient(130);
}

int main(void)
{
    nothing();
    one_channel(2, turning, "beta = 2, w one channel: it changes its sign from key to key");
    one_channel(1, once, "beta = 1, w one channel: it is seen at the row's own key");
    scaled();
    rotated();
    definitions();
    if (!LOCI_EMULATED) {
        over_chunks("path+sba");
        over_chunks("wall+sba");
    }
    chunks();
    nan_reaches();
    return harness_end();
}
