/* SPDX-License-Identifier: MIT */
/* claims.c -- claims of papers and textbooks about their encodings, checked on the library, each by
 * name. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attend.h"
#include "harness.h"

/* ---- Sinusoids ------------------------------------------------------------------------------- */

enum { DM = 32, PLACES = 200 };

static void embed(const char *encoding, double (*pe)[DM])
{
    static const double zero[PLACES * DM];
    const loci_desc d = LOCI_DESC(.encoding = encoding, .stage = LOCI_EMBED, .model_dim = DM,
                                  .dtype = LOCI_F64, .max_len = PLACES);
    loci_plan *plan;
    if (loci_plan_create(&plan, &d, NULL)) exit(2);
    void *tables = aligned_alloc(64, loci_tables_size(plan, PLACES));
    const loci_call c = LOCI_CALL(.batch = 1, .q_len = PLACES);
    if (!tables || loci_prepare(plan, PLACES, NULL, tables)
        || loci_embed(plan, tables, &c, (loci_view){ (void *)zero, 0, 0, 0 },
                      (loci_view){ pe, 0, 0, 0 }))
        exit(2);
    free(tables);
    loci_plan_destroy(plan);
}

static void sinusoids(void)
{
    static double pe[PLACES][DM];
    embed("sinusoidal", pe);
    double worked[4][4] = { { 0, 1, 0, 1 }, { sin(1), cos(1), sin(0.01), cos(0.01) } }, off = 0;
    const loci_desc d =
        LOCI_DESC(.encoding = "sinusoidal", .stage = LOCI_EMBED, .model_dim = 4, .dtype = LOCI_F64);
    loci_plan *plan;
    if (loci_plan_create(&plan, &d, NULL)) exit(2);
    double tables[4096], got[8];
    void *at = (void *)(((uintptr_t)tables + 63) / 64 * 64);
    const loci_call c = LOCI_CALL(.batch = 1, .q_len = 2);
    static const double zero[8];
    if (loci_tables_size(plan, 4) > sizeof tables - 64 || loci_prepare(plan, 4, NULL, at)
        || loci_embed(plan, at, &c, (loci_view){ (void *)zero, 0, 0, 0 },
                      (loci_view){ got, 0, 0, 0 }))
        exit(2);
    for (int i = 0; i < 8; i++) off = fmax(off, fabs(got[i] - worked[i / 4][i % 4]));
    loci_plan_destroy(plan);
    CHECK_CLOSE(off, 0, 1e-15,
                "sinusoids of width 4: (0, 1, 0, 1), then (sin 1, cos 1, sin 0.01, "
                "cos 0.01)");

    /* M_k rotates each pair (sin, cos) by k w, whatever the position. */
    double linear = 0, offset = 0, symmetric = 0;
    for (int k = 0; k < 60; k++)
        for (int pos = 0; pos + k < PLACES; pos++) {
            double product = 0, first = 0, back = 0;
            for (int t = 0; t < DM; t += 2) {
                const double w = pow(10000, -(double)t / DM), s = sin(k * w), co = cos(k * w);
                linear =
                    fmax(linear, fabs(pe[pos + k][t] - (co * pe[pos][t] + s * pe[pos][t + 1])));
                linear =
                    fmax(linear, fabs(pe[pos + k][t + 1] - (co * pe[pos][t + 1] - s * pe[pos][t])));
            }
            for (int i = 0; i < DM; i++) {
                product += pe[pos][i] * pe[pos + k][i];
                first += pe[0][i] * pe[k][i];
            }
            for (int i = 0; i < DM && pos >= k; i++) back += pe[pos][i] * pe[pos - k][i];
            offset = fmax(offset, fabs(product - first));
            if (pos >= k) symmetric = fmax(symmetric, fabs(product - back));
        }
    CHECK_CLOSE(linear, 0, 1e-12,
                "sinusoids: PE(pos + k) = M_k PE(pos), with the same M_k at "
                "every "
                "position");
    CHECK_CLOSE(offset, 0, 1e-12,
                "sinusoids: the product of two of them depends on their distance "
                "alone");
    CHECK_CLOSE(symmetric, 0, 1e-12, "sinusoids: and not on which of them comes first");
    double norm = 0;
    for (int i = 0; i < DM; i++) norm += pe[77][i] * pe[77][i];
    CHECK_CLOSE(norm, DM / 2, 1e-12, "sinusoids: every position has the norm sqrt(Dm / 2)");
}

/* ---- Biases by distance ---------------------------------------------------------------------- */

static double by_row(const char *encoding, const loci_tensor *t, ptrdiff_t i)
{
    (void)encoding;
    return (double)(i / t->shape[1]); /* a bias that is its own bucket */
}
static double ones(const char *encoding, const loci_tensor *t, ptrdiff_t i)
{
    (void)encoding;
    (void)t;
    (void)i;
    return 1;
}
static double bucket(int64_t distance, const char *text)
{
    return attend_bias(text, 1, 0, 1000000, 1000000 - distance, by_row);
}

static void alibi(void)
{
    bool powers = true, line = true, between = true;
    for (int h = 0; h < 8; h++) {
        powers &= attend_bias("alibi", 8, h, 1, 0, NULL) == -exp2(-(h + 1));
        for (int64_t d = 0; d < 5000; d += 111)
            line &= attend_bias("alibi", 8, h, d, 0, NULL) == -exp2(-(h + 1)) * (double)d;
    }
    for (int h = 0; h < 12; h++)
        between &= fabs(attend_bias("alibi", 12, h, 1, 0, NULL)
                        + (h < 8 ? exp2(-(h + 1)) : exp2(-(h - 8) - 0.5)))
                 < 1e-15;
    CHECK_THAT(powers, "ALiBi: 8 heads have the slopes 1/2, 1/4 .. 1/256");
    CHECK_THAT(line, "ALiBi: the penalty grows with the distance as a line");
    CHECK_THAT(between, "ALiBi: 12 heads have the 8 slopes of 8 heads and every other one of 16");
}

static void t5(void)
{
    bool exact = true, rising = true;
    double before = 15;
    for (int64_t d = 0; d < 16; d++) exact &= bucket(d, "t5") == (double)d;
    for (int64_t d = 16; d < 128; d++) {
        rising &= bucket(d, "t5") >= before && bucket(d, "t5") <= before + 1;
        before = bucket(d, "t5");
    }
    CHECK_THAT(exact, "T5: distances below 16 have buckets of their own");
    CHECK_THAT(rising && before == 31,
               "T5: from 16 to 128 buckets widen with the logarithm of the distance");
    CHECK_THAT(bucket(128, "t5") == 31 && bucket(1 << 19, "t5") == 31,
               "T5: all distances from 128 share the last bucket");
    CHECK_THAT(attend_bias("t5:bidirectional=0", 1, 0, 5, 9, by_row) == 0,
               "T5: one-sided buckets put all keys ahead into bucket 0");
    CHECK_THAT(attend_bias("t5:bidirectional=1", 1, 0, 5, 4, by_row) == 1
                   && attend_bias("t5:bidirectional=1", 1, 0, 4, 5, by_row) == 17,
               "T5: two-sided buckets keep the second half for keys ahead");
    CHECK_THAT(bucket(7, "t5:bidirectional=1") == 7 && bucket(8, "t5:bidirectional=1") == 8
                   && bucket(9, "t5:bidirectional=1") == 8,
               "T5: two-sided, distances up to 7 are exact, and 8 and 9 share a bucket");
}

static void falling(void)
{
    bool slower = true, bounded = true, sandwich = true;
    double last = 0;
    for (int64_t d = 1; d < 4000; d *= 2) {
        const double now = attend_bias("kerple", 1, 0, d, 0, ones),
                     next = attend_bias("kerple", 1, 0, 2 * d, 0, ones);
        slower &= now < last && next < now && now - next <= log(2) + 1e-12;
        bounded &= fabs(now + log1p((double)d)) < 1e-12;
        last = now;
    }
    CHECK_THAT(slower, "KERPLE's logarithm: doubling the distance costs at most r1 log 2");
    CHECK_THAT(bounded, "KERPLE's logarithm: -r1 log(1 + r2 d)");
    for (int h = 0; h < 8; h++)
        for (int64_t d = 1; d < 3000; d += 7)
            sandwich &= attend_bias("sandwich", 8, h, d, 0, NULL) <= 0;
    CHECK_THAT(sandwich && attend_bias("sandwich", 8, 0, 5, 5, NULL) == 0,
               "Sandwich: the own key has the largest bias, 0");
    CHECK_CLOSE(attend_bias("sandwich", 8, 3, 40, 0, NULL),
                attend_bias("sandwich", 8, 3, 1040, 1000, NULL), 1e-12,
                "Sandwich: depends on the distance alone");
    bool same = true; /* a network of ones gives 2 + its input */
    for (int64_t i = 2; i < 1 << 13; i *= 2)
        for (int64_t j = 0; j <= i; j += (i + 15) / 16) {
            const double input =
                attend_bias("fire:layers=1,hidden=1,threshold=1", 1, 0, i, i - j, ones) - 2;
            same &= input >= 0 && input <= 1
                 && fabs(input - log1p((double)j) / log1p((double)i)) < 1e-6;
        }
    CHECK_THAT(same, "FIRE: whatever the length, its network sees numbers from 0 to 1");
}

/* FIRE uses the magnitudes of c and l: a sign flips their gradients and nothing else, and at 0 the
 * gradient is 0. */
static double fire_c, fire_l;
static double small_network(const char *encoding, const loci_tensor *t, ptrdiff_t i)
{
    (void)encoding;
    if (t->name[0] == 'c') return fire_c;
    if (t->name[0] == 'l') return fire_l;
    return 0.3 + 0.1 * (double)(i % 5);
}
static void fire_signs(void)
{
    struct attend a = { .desc = LOCI_DESC(.encoding = "fire:layers=1,hidden=5,threshold=7",
                                          .heads = 1, .dim = 4, .dtype = LOCI_F64),
                        .q_len = 20,
                        .k_len = 20,
                        .seed = 5,
                        .fill = small_network },
                  b = a;
    fire_c = 0.2;
    fire_l = 1.5;
    attend(&a);
    fire_c = -0.2;
    fire_l = -1.5;
    attend(&b);
    CHECK_THAT(!memcmp(a.o, b.o, 80 * sizeof *a.o) && a.dtensor[0][0] == -b.dtensor[0][0]
                   && a.dtensor[1][0] == -b.dtensor[1][0] && a.dtensor[0][0] && a.dtensor[1][0],
               "FIRE: signs of c and l turn their gradients alone");
    attend_free(&b);
    b.mem.blocks = 0;
    fire_c = 0.2;
    fire_l = 0;
    attend(&b);
    CHECK_THAT(b.dtensor[0][0] && b.dtensor[1][0] == 0, "FIRE: l = 0 has no gradient, but %g",
               b.dtensor[1][0]);
    attend_free(&b);
    b.mem.blocks = 0;
    fire_c = 0;
    fire_l = 1.5;
    attend(&b);
    CHECK_THAT(b.dtensor[0][0] == 0, "FIRE: c = 0 has no gradient, but %g", b.dtensor[0][0]);
    attend_free(&a);
    attend_free(&b);
}

/* ---- Content --------------------------------------------------------------------------------- */

enum { N = 24, D = 8 };

static void rows(double *to, const double *row)
{
    for (int i = 0; i < N; i++) memcpy(to + (ptrdiff_t)i * D, row, D * sizeof *to);
}

static void stick(void)
{
    double q[N * D], k[N * D], v[N * D];
    const double a[D] = { 1 }, b[D] = { -0.7 };
    rows(q, a);
    rows(k, b);
    struct attend all = { .desc = LOCI_DESC(.encoding = "sba", .heads = 1, .dim = D,
                                            .dtype = LOCI_F64, .scale = 1),
                          .q_len = N,
                          .k_len = N,
                          .q = q,
                          .k = k };
    bool geometric = true, whole = true;
    for (int j = 0; j < N; j++) { /* v selects key j */
        memset(v, 0, sizeof v);
        for (int c = 0; c < D; c++) v[j * D + c] = 1;
        all.v = v;
        attend(&all);
        const double beta = 1 / (1 + exp(0.7));
        for (int i = j + 1; i < N; i++)
            geometric &= fabs(all.o[i * D] - beta * pow(1 - beta, i - j - 1)) < 1e-14;
        attend_free(&all);
    }
    for (int i = 0; i < N * D; i++) {
        v[i] = 1;
        q[i] = sin(i);
        k[i] = cos(3.0 * i);
    }
    attend(&all);
    for (int i = 0; i < N; i++) whole &= fabs(all.o[i * D] + all.rows[i] - 1) < 1e-14;
    attend_free(&all);
    CHECK_THAT(geometric, "stick-breaking: equal scores make weights fall as beta (1 - beta)^n, "
                          "recent keys first");
    CHECK_THAT(whole, "stick-breaking: the weights and what remains of the stick are 1");
}

static double logits(const char *encoding, const loci_tensor *t, ptrdiff_t i)
{
    (void)encoding;
    (void)t;
    return i == 0 ? 0 : -0.75;
}
static void sinks(void)
{
    double k[2 * (N + 1) * D], v[2 * (N + 1) * D], ones[2 * N * D], off = 0, rest = 0;
    int64_t pos[N + 1], ahead[N];
    for (int i = 0; i <= N; i++) pos[i] = i - 1;
    for (int i = 0; i < N; i++) ahead[i] = i + N / 2;
    walk_restart(5);
    for (int i = 0; i < 2 * (N + 1) * D; i++) {
        k[i] = i / D % (N + 1) ? walk_uniform() : 0;
        v[i] = i / D % (N + 1) ? walk_uniform() : 0;
    }
    for (int i = 0; i < 2 * N * D; i++) ones[i] = 1;
    struct attend more = {
        .desc = LOCI_DESC(.encoding = "nope", .heads = 2, .dim = D, .dtype = LOCI_F64),
        .q_len = N,
        .k_len = N + 1,
        .k = k,
        .v = v,
        .q_pos = pos + 1,
        .k_pos = pos,
    };
    struct attend sink = more, share = more, none = more;
    double keys[2 * N * D], values[2 * N * D];
    for (int h = 0; h < 2; h++)
        for (int i = 0; i < N * D; i++) {
            keys[h * N * D + i] = k[(h * (N + 1) + 1) * D + i];
            values[h * N * D + i] = v[(h * (N + 1) + 1) * D + i];
        }
    sink.desc.encoding = share.desc.encoding = none.desc.encoding = "sink";
    sink.fill = share.fill = none.fill = logits;
    sink.k_len = share.k_len = none.k_len = N;
    sink.k = keys;
    sink.v = values;
    sink.k_pos = pos + 1;
    share.k = keys;
    share.v = ones;
    share.k_pos = pos + 1;
    none.k = keys;
    none.v = values;
    none.k_pos = ahead;
    attend(&more);
    attend(&sink);
    attend(&share);
    attend(&none);
    for (int i = 0; i < N; i++) off = fmax(off, fabs(more.rows[i] - sink.rows[i]));
    for (int i = 0; i < N * D; i++) off = fmax(off, fabs(more.o[i] - sink.o[i]));
    for (int i = 0; i < 2 * N * D; i++)
        rest =
            fmax(rest, fabs(share.o[i] - (1 - exp((i < N * D ? 0 : -0.75) - share.rows[i / D]))));
    bool empty = true;
    for (int i = 0; i < N / 2; i++)
        for (int h = 0; h < 2; h++) {
            empty &= none.rows[h * N + i] == (h ? -0.75 : 0);
            for (int c = 0; c < D; c++)
                empty &= none.o[(h * N + i) * D + c] == 0 && none.dq[(h * N + i) * D + c] == 0;
        }
    CHECK_CLOSE(off, 0, 1e-14, "sinks: a logit of 0 is one more key of zeros, whose value is 0");
    CHECK_CLOSE(rest, 0, 1e-14, "sinks: what the keys do not get is e^(logit - lse)");
    CHECK_THAT(empty, "sinks: a row without keys has output 0 and the logit as its lse");
    attend_free(&more);
    attend_free(&sink);
    attend_free(&share);
    attend_free(&none);
}

static void caps(void)
{
    enum { ROWS = 5000 };
    static double q[ROWS];
    const double one = 1;
    for (int i = 0; i < ROWS; i++)
        q[i] = (float)(ldexp(1 + walk_uniform(), i % 40 - 30) * (i % 3 ? 1 : -1));
    q[0] = INFINITY;
    q[1] = -INFINITY;
    q[2] = NAN;
    q[3] = 0;
    struct attend a = { .desc = LOCI_DESC(.encoding = "softcap:cap=1", .heads = 1, .dim = 1,
                                          .scale = 1, .full = 1),
                        .q_len = ROWS,
                        .k_len = 1,
                        .q = q,
                        .k = &one,
                        .v = &one };
    attend(&a); /* with one key, the lse is its score */
    double off = 0;
    for (int i = 3; i < ROWS; i++) {
        const float want = (float)tanh(q[i]), next = nextafterf(fabsf(want), INFINITY);
        off = fmax(off, fabs(a.rows[i] - tanh(q[i])) / (double)(next - fabsf(want)));
    }
    const bool ends = a.rows[0] == 1 && a.rows[1] == -1 && isnan(a.rows[2]);
    attend_free(&a);
    a.desc.encoding = "softcap:cap=50";
    attend(&a);
    bool below = true;
    for (int i = 0; i < ROWS; i++) below &= i == 2 || fabs(a.rows[i]) <= 50;
    for (int i = 0; i < ROWS; i++)
        below &= !(fabs(q[i]) < 0.01) || fabs(a.rows[i] - q[i]) <= 3e-7 * fabs(q[i]);
    attend_free(&a);
    CHECK_CLOSE(off, 0, 2.6, "soft-capping: tanh to 2.6 units in the last place, small scores too");
    CHECK_THAT(ends, "soft-capping: infinite scores become the cap, NaN stays NaN");
    CHECK_THAT(below, "soft-capping: no score exceeds the cap, and small ones stay as they are");
    /* models and flash attention cap the product alone; caps of whole scores are also in use */
    CHECK_THAT(attend_bias("softcap:cap=2+alibi", 8, 0, 4000, 0, NULL) == -2000,
               "soft-capping: what is added behind it is not capped");
    CHECK_CLOSE(attend_bias("alibi+softcap:cap=2", 8, 0, 1, 0, NULL), 2 * tanh(-0.5 / 2), 1e-7,
                "soft-capping: what is added before it is capped, too");
}

/* Every third token is marked.  Gates open only there, and e[p] = p, so that scores are counts. */
static double count_vectors(const char *encoding, const loci_tensor *t, ptrdiff_t i)
{
    (void)encoding;
    (void)t;
    return i % D == 1 ? (double)(i / D) : 0;
}
static void counting(void)
{
    double q[N * D], k[N * D];
    for (int i = 0; i < N * D; i++) {
        q[i] = i % D <= 1;
        k[i] = i % D ? 0 : i / D % 3 == 0 ? 800 : -800;
    }
    bool counts = true;
    /* q.k is nearly 0, so the lse gives the counts */
    for (int from = 0; from < N; from++) {
        struct attend a = { .desc =
                                LOCI_DESC(.encoding = "cope:npos=20,gate_scale=1,pos_scale=1",
                                          .heads = 1, .dim = D, .dtype = LOCI_F64, .scale = 1e-9),
                            .q_len = 1,
                            .k_len = N - from,
                            .q = q + (ptrdiff_t)(N - 1) * D,
                            .k = k + (ptrdiff_t)from * D,
                            .fill = count_vectors };
        attend(&a);
        double sum = 0;
        for (int j = from; j < N; j++) {
            int count = 0;
            for (int n = j; n < N; n++) count += n % 3 == 0;
            sum += exp(count + 1e-9 * k[j * D]);
        }
        counts &= fabs(a.rows[0] - log(sum)) < 1e-9;
        attend_free(&a);
    }
    CHECK_THAT(counts, "CoPE: with gates open on marked tokens, a position is the exact count of "
                       "them");
}

/* The last row of an encoding, with the keys before its own in two orders: the difference. */
static double order(const char *encoding)
{
    double q[N * D], k[2][N * D], v[2][N * D], off = 0;
    walk_restart(9);
    for (int i = 0; i < N * D; i++) {
        q[i] = walk_uniform();
        k[0][i] = walk_uniform();
        v[0][i] = walk_uniform();
    }
    for (int j = 0; j < N; j++)
        for (int c = 0; c < D; c++) {
            const int from = j < N - 1 ? (j + 5) % (N - 1) : j;
            k[1][j * D + c] = k[0][from * D + c];
            v[1][j * D + c] = v[0][from * D + c];
        }
    struct attend a[2];
    for (int n = 0; n < 2; n++) {
        a[n] = (struct attend){ .desc = LOCI_DESC(.encoding = encoding, .heads = 1, .dim = D,
                                                  .dtype = LOCI_F64),
                                .q_len = N,
                                .k_len = N,
                                .seed = 5,
                                .q = q,
                                .k = k[n],
                                .v = v[n] };
        attend(&a[n]);
    }
    for (int c = 0; c < D; c++)
        off = fmax(off, fabs(a[0].o[(N - 1) * D + c] - a[1].o[(N - 1) * D + c]));
    attend_free(&a[0]);
    attend_free(&a[1]);
    return off;
}
static void forgetting(void)
{
    CHECK_CLOSE(order("nope"), 0, 1e-14, "NoPE: the last row sees keys in any order alike");
    CHECK_THAT(order("fox") > 1e-3, "FoX: forgetting tells the order of the keys, with no other "
                                    "encoding");
}

/* ---- Rotations ------------------------------------------------------------------------------- */

/* RoFormer 3.4.3: scores of equal vectors fall with the distance, on average, since the sums of
 * e^(i n w) do. */
static void decay(void)
{
    enum { W = 128 };
    double mean[4] = { 0 };
    const int64_t distance[4] = { 0, 16, 64, 256 };
    for (int n = 0; n < 4; n++) {
        double re = 0, im = 0;
        for (int t = 0; t < W / 2; t++) {
            re += cos((double)distance[n] * pow(10000, -2.0 * t / W));
            im += sin((double)distance[n] * pow(10000, -2.0 * t / W));
            mean[n] += hypot(re, im) / (W / 2);
        }
    }
    bool inside = true;
    double q[W], k[W];
    for (int trial = 0; trial < 50; trial++) {
        const int64_t at = distance[trial % 4] + trial, zero = 0;
        double h[W / 2][2], most = 0, bound = 0, re = 0, im = 0;
        for (int i = 0; i < W; i++) {
            q[i] = walk_uniform();
            k[i] = walk_uniform();
        }
        struct attend a = {
            .desc = LOCI_DESC(.encoding = "rope:pairing=interleaved", .heads = 1, .dim = W,
                              .dtype = LOCI_F64, .scale = 1),
            .q_len = 1,
            .k_len = 1,
            .q = q,
            .k = k,
            .q_pos = &at,
            .k_pos = &zero,
        };
        attend(&a);
        for (int t = 0; t < W / 2; t++) { /* q conj(k) as complex numbers */
            h[t][0] = q[2 * t] * k[2 * t] + q[2 * t + 1] * k[2 * t + 1];
            h[t][1] = q[2 * t + 1] * k[2 * t] - q[2 * t] * k[2 * t + 1];
            if (t) most = fmax(most, hypot(h[t][0] - h[t - 1][0], h[t][1] - h[t - 1][1]));
        }
        most = fmax(most, hypot(h[W / 2 - 1][0], h[W / 2 - 1][1]));
        for (int t = 0; t < W / 2; t++) {
            re += cos((double)at * pow(10000, -2.0 * t / W));
            im += sin((double)at * pow(10000, -2.0 * t / W));
            bound += hypot(re, im);
        }
        inside &= fabs(a.rows[0]) <= most * bound;
        attend_free(&a);
    }
    CHECK_THAT(mean[0] > mean[1] && mean[1] > mean[2] && mean[2] > mean[3],
               "RoPE: the decay bound falls with the distance");
    CHECK_THAT(inside, "RoPE: no score exceeds the decay bound");
}

int main(void)
{
    sinusoids();
    alibi();
    t5();
    falling();
    fire_signs();
    stick();
    sinks();
    caps();
    counting();
    forgetting();
    decay();
    return harness_end();
}
