/* SPDX-License-Identifier: MIT */
/* wall.c -- gates per channel: no gates are nope, one gate for all channels is a factor of the
 * score, what a shut gate and NaN reach, and the gradient of the first gate. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attend.h"
#include "harness.h"

enum { H = 2, D = 8, L = 150, N = H * L * D };
static double q[N], k[N], v[N], gates[N];

static void draw(void)
{
    walk_restart(5);
    for (int i = 0; i < N; i++) {
        q[i] = (float)(2 * walk_uniform());
        k[i] = (float)(2 * walk_uniform());
        v[i] = (float)walk_uniform();
    }
}
static double fill(const char *encoding, const loci_tensor *t, ptrdiff_t i)
{
    (void)t;
    /* fox has one per head and key */
    return strcmp(encoding, "wall") ? -0.03 * (double)(i % 5) : gates[i];
}
static struct attend made(const char *text, loci_dtype dtype, int64_t window)
{
    struct attend a = { .desc = LOCI_DESC(.encoding = text, .heads = H, .dim = D, .dtype = dtype,
                                          .window_left = window),
                        .q_len = L,
                        .k_len = L,
                        .q = q,
                        .k = k,
                        .v = v,
                        .fill = fill };
    attend(&a);
    return a;
}
static double apart(const double *a, const double *b, ptrdiff_t n)
{
    return attend_apart(a, b, n, false);
}
static ptrdiff_t at(int h, ptrdiff_t j) { return (h * L + j) * D; }

/* ---- Gates of 0, and one gate for all channels ----------------------------------------------- */

static void open_gates(void)
{
    memset(gates, 0, sizeof gates);
    struct attend a = made("wall", LOCI_F32, 0), b = made("nope", LOCI_F32, 0);
    CHECK_THAT(!memcmp(a.o, b.o, N * sizeof(double)), "gates of 0: the o of nope");
    CHECK_THAT(!memcmp(a.rows, b.rows, H * L * sizeof(double)), "gates of 0: the lse of nope");
    CHECK_CLOSE(fmax(apart(a.dq, b.dq, N), apart(a.dk, b.dk, N)), 0, 1e-5,
                "gates of 0: the gradients of nope");
    attend_free(&a);
    attend_free(&b);
}

/* lse and o of a row, from scores of whole pairs. */
static double direct(int h, int i, bool fox, double *o)
{
    static double s[L];
    double top = -INFINITY, sum = 0;
    for (int j = 0; j <= i; j++) {
        s[j] = 0;
        for (int n = 0; n < D; n++) {
            double gate = 0;
            for (int l = j + 1; l <= i; l++) gate += gates[at(h, l) + n];
            s[j] += q[at(h, i) + n] * k[at(h, j) + n] * exp(gate);
        }
        s[j] /= sqrt(D);
        for (int l = j + 1; l <= i && fox; l++) s[j] += fill("fox", NULL, h * L + l);
        top = fmax(top, s[j]);
    }
    memset(o, 0, D * sizeof *o);
    for (int j = 0; j <= i; j++) {
        sum += exp(s[j] - top);
        for (int n = 0; n < D; n++) o[n] += exp(s[j] - top) * v[at(h, j) + n];
    }
    for (int n = 0; n < D; n++) o[n] /= sum;
    return top + log(sum);
}
static void pair_by_pair(const char *text, const char *what)
{
    struct attend a = made(text, LOCI_F64, 0);
    double off = 0, o[D];
    for (int h = 0; h < H; h++)
        for (int i = 0; i < L; i++) {
            off = fmax(off, fabs(direct(h, i, strstr(text, "fox") != NULL, o) - a.rows[h * L + i]));
            off = fmax(off, apart(o, a.o + at(h, i), D));
        }
    CHECK_CLOSE(off, 0, 1e-12, "%s, %s: pair by pair", text, what);
    for (int h = 0; h < H; h++)
        for (int n = 0; n < D; n++)
            CHECK_THAT(a.dtensor[0][at(h, 0) + n] == 0, "%s, %s: no key is before key 0", text,
                       what);
    attend_free(&a);
}
static void pairs(void)
{
    for (int i = 0; i < N; i++) gates[i] = -0.05 * (double)(i / D % 7);
    pair_by_pair("wall", "one gate for all channels");
    for (int i = 0; i < N; i++) gates[i] = 0.3 * walk_uniform() - 0.25;
    pair_by_pair("wall", "gates");
    pair_by_pair("wall+fox", "gates");
    for (int i = 0; i < N; i++)
        gates[i] = i % 3 ? -80 * (1 + walk_uniform()) : 0.02 * walk_uniform();
    pair_by_pair("wall", "strong gates");
    for (int n = 0; n < D; n++) gates[at(0, 70) + n] = gates[at(1, 97) + n] = -INFINITY;
    pair_by_pair("wall", "shut gates");
    for (int n = 0; n < D; n++) gates[at(0, 70) + n] = -1e30;
    struct attend a = made("wall", LOCI_F64, 0);
    for (int n = 0; n < D; n++)
        CHECK_THAT(a.dtensor[0][at(0, 70) + n] == 0, "a shut gate has no gradient");
    attend_free(&a);
}

/* ---- What NaN reaches ------------------------------------------------------------------------ */

static bool same(const double *a, const double *b) { return !memcmp(a, b, D * sizeof *a); }
/* Gate `bad` of key l of head 0 in one channel: rows that see across it are NaN, others keep their
 * bits. */
static void spoil(int l, int64_t window, double bad)
{
    for (int i = 0; i < N; i++) gates[i] = (float)(0.1 * walk_uniform() - 0.1);
    struct attend a = made("wall", LOCI_F32, window);
    gates[at(0, l) + 3] = bad;
    struct attend b = made("wall", LOCI_F32, window);
    int wrong = 0;
    for (int h = 0; h < H; h++)
        for (int i = 0; i < L; i++) {
            const bool across = !h && i >= l && l > 0 && (!window || i - window < l);
            wrong += across ? !isnan(b.o[at(h, i)])
                            : !same(a.o + at(h, i), b.o + at(h, i))
                                  || !same(a.dq + at(h, i), b.dq + at(h, i));
        }
    CHECK_THAT(!wrong, "a gate of %g at key %d, window %lld: %d rows", bad, l, (long long)window,
               wrong);
    /* keys that only other rows see */
    int keys = 0;
    for (int j = 0; j < L; j++) {
        bool seen = false;
        for (int i = j; i < L; i++)
            seen |= (!window || i - j <= window) && i >= l && l > 0 && (!window || i - window < l);
        keys +=
            !seen
            && (!same(a.dk + at(0, j), b.dk + at(0, j)) || !same(a.dv + at(0, j), b.dv + at(0, j)));
        keys += !same(a.dk + at(1, j), b.dk + at(1, j));
    }
    CHECK_THAT(!keys, "a gate of %g at key %d, window %lld: gradients of %d keys", bad, l,
               (long long)window, keys);
    int lost = 0;
    for (int j = 0; j < L; j++) {
        bool crossed = false;
        for (int i = j; i < L; i++)
            crossed |= i >= l && l > 0 && (!window || i - window < l)
                    && (window && i > window ? i - window : 0) < j;
        for (int n = 0; n < D; n++) {
            const double x = a.dtensor[0][at(0, j) + n], y = b.dtensor[0][at(0, j) + n];
            lost += crossed ? !isnan(y) : !(fabs(x - y) < 1e-4);
        }
    }
    CHECK_THAT(!lost, "a gate of %g at key %d, window %lld: %d gradients of gates", bad, l,
               (long long)window, lost);
    attend_free(&a);
    attend_free(&b);
}

int main(void)
{
    draw();
    open_gates();
    pairs();
    const int places[] = { 0, 1, 31, 32, 63, 64, 65, 100, 127, 128, L - 1 };
    for (int p = 0; p < (int)(sizeof places / sizeof *places); p++)
        for (int64_t window = 0; window < 50; window += 20) spoil(places[p], window, NAN);
    spoil(70, 0, 1e4);
    spoil(70, 20, INFINITY);
    return harness_end();
}
