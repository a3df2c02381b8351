/* SPDX-License-Identifier: MIT */
/* example.c -- see example.h.  Some texts explain an intermediate value that the engine does not
 * return (a bucket, a normalised distance, a count).  Their tensors are chosen so that the result
 * equals it: a table that contains its own row numbers returns the number of the bucket. */
#include "show/example.h"

#include <stdlib.h>
#include <string.h>

#include "show/subject.h"

static void step(struct text *t, int number, const char *words)
{
    text_add(t, "  %d  %s\n", number, words);
}

static void row(struct text *t, const char *name, const double *x, ptrdiff_t n)
{
    text_add(t, "       %-18s", name);
    for (ptrdiff_t i = 0; i < n; i++) text_add(t, " %9.6f", fabs(x[i]) < 5e-7 ? 0.0 : x[i]);
    text_add(t, "\n");
}

/* ---- Rotations and embeddings ---------------------------------------------------------------- */

static loci_status rope(struct text *t, loci_error *e)
{
    const struct wish w = { .encoding = "rope:pairing=interleaved,base=100", .heads = 1, .dim = 4 };
    const double q[] = { 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0 };
    const double at[] = { 2, 5, 102, 105 };
    double freq[2], angle[2], turned[16], score[2];
    struct show *s;
    TRY(show_open(&s, &w, e));
    loci_frequencies(s->all.plan, freq, 2, NULL);
    for (int i = 0; i < 2; i++) angle[i] = 2 * freq[i];
    loci_status status = show_rotate(s, 4, q, at, turned, e);
    const double m[] = { 2, 102 }, n[] = { 5, 105 };
    const struct pairs p = { 2, q, q, m, n };
    if (!status) status = show_pairs(s, &p, score, e);
    for (int i = 0; i < 2; i++) score[i] /= s->all.plan->scale;
    show_close(s);
    text_add(t, "rope: a query of 4 channels at position m = 2, base 100, pairs (0, 1) (2, 3)\n");
    step(t, 1, "each pair has a frequency, w[t] = base^(-2t/d)");
    row(t, "w", freq, 2);
    step(t, 2, "at position m it has turned by the angle m w");
    row(t, "2 w", angle, 2);
    step(t, 3, "turn q = [1, 0, 1, 0]: cos and sin of both angles are what is left");
    row(t, "R(2) q", turned, 4);
    step(t, 4, "a key with the same numbers at position n = 5");
    row(t, "R(5) k", turned + 4, 4);
    step(t, 5, "their product knows n - m = 3 alone: cos 3 + cos 0.3, here and 100 positions on");
    row(t, "m = 2, n = 5", &score[0], 1);
    row(t, "m = 102, n = 105", &score[1], 1);
    return status;
}

static loci_status sinusoidal(struct text *t, loci_error *e)
{
    enum { LINES = 4 };
    const int64_t at[] = { 0, 1, 2, 3 };
    loci_status status = LOCI_OK;
    int number = 1;
    for (int d = 4; d <= 8 && !status; d += 4) {
        const struct wish w = { .encoding = "sinusoidal", .heads = 1, .dim = d };
        double rows[LINES * 8], dot[LINES];
        char words[80], name[24];
        struct show *s;
        TRY(show_open(&s, &w, e));
        status = show_embed(s, LINES, NULL, at, rows, e);
        show_close(s);
        if (d == 4)
            text_add(t, "sinusoidal: rows of d channels, sin and cos of pos / 10000^(2t/d)\n");
        snprintf(words, sizeof words,
                 d == 4 ? "d = 4: sin p, cos p, sin p/100, cos p/100"
                        : "d = 8: the same of p, p/10, p/100, p/1000");
        step(t, number++, words);
        for (int i = 0; i < LINES; i++) {
            snprintf(name, sizeof name, "p = %d", i);
            row(t, name, rows + i * d, d);
            dot[i] = 0;
            for (int c = 0; c < d; c++) dot[i] += rows[c] * rows[i * d + c];
        }
        step(t, number++, "p(0).p(f), the sum of cos(f w), falls as f grows, f = 0 to 3");
        row(t, "p(0).p(f)", dot, LINES);
    }
    return status;
}

/* ---- Biases ---------------------------------------------------------------------------------- */

/* Biases at the distances 0 .. n - 1, behind or ahead, [n][heads]. */
static loci_status bias(const struct wish *w, ptrdiff_t n, const double *q_at, const double *k_at,
                        double *out, loci_error *e)
{
    struct show *s;
    TRY(show_open(&s, w, e));
    const struct pairs p = { .n = n, .q_at = q_at, .k_at = k_at };
    const loci_status status = show_pairs(s, &p, out, e);
    show_close(s);
    return status;
}

static loci_status alibi(struct text *t, loci_error *e)
{
    enum { HEADS = 8, ROW = 5 };
    const struct wish w = { .encoding = "alibi", .heads = HEADS, .dim = 4 };
    const double at[] = { 4, 4, 4, 4, 4 }, key[] = { 0, 1, 2, 3, 4 };
    double added[ROW * HEADS], slope[HEADS];
    char name[40];
    TRY(bias(&w, ROW, at, key, added, e));
    for (int h = 0; h < HEADS; h++) slope[h] = -added[3 * HEADS + h];
    text_add(t, "alibi: 8 heads, and what the query at position 4 adds to its keys\n");
    step(t, 1, "slopes m = 2^-1, 2^-2, ... 2^-8: half of the one before");
    row(t, "m", slope, HEADS);
    step(t, 2, "-m |i - j| for i = 4 and j = 0 to 4: a straight line in each head");
    for (int h = 0; h < HEADS; h += h ? 4 : 3) {
        double line[ROW];
        for (int j = 0; j < ROW; j++) line[j] = added[j * HEADS + h];
        snprintf(name, sizeof name, "head %d, m = 1/%d", h + 1, 2 << h);
        row(t, name, line, ROW);
    }
    return LOCI_OK;
}

/* A table that contains its row numbers shows which row was read. */
static loci_status t5(struct text *t, loci_error *e)
{
    enum { N = 33 };
    static const double distance[N] = { 0,  1,  2,  3,  4,  5,  6,  7,   8,   9,   10,
                                        11, 12, 13, 14, 15, 16, 17, 18,  19,  20,  24,
                                        28, 32, 40, 48, 64, 80, 96, 112, 127, 128, 1000 };
    double table[32], at[N], key[N] = { 0 }, one_side[N], behind[N], ahead[N];
    for (int i = 0; i < 32; i++) table[i] = i;
    for (int i = 0; i < N; i++) at[i] = distance[i];
    const struct given g = { "t5.table", 2, { 32, 1 }, table };
    struct wish w = {
        .encoding = "t5:bidirectional=0", .heads = 1, .dim = 4, .given = &g, .given_count = 1
    };
    TRY(bias(&w, N, at, key, one_side, e));
    w.encoding = "t5:bidirectional=1";
    TRY(bias(&w, N, at, key, behind, e));
    TRY(bias(&w, N, key, at, ahead, e));
    text_add(t, "t5: 32 buckets, the last one from distance 128 on\n");
    step(t, 1, "looking back only: 16 buckets of one distance each, 16 that widen");
    text_add(t, "  2  both ways: 16 for keys behind, of which 8 are exact, and 16 for keys ahead\n"
                "       distance   looking back   both ways, behind   ahead\n");
    for (int i = 0; i < N; i++)
        text_add(t, "       %8.0f   %12.0f   %17.0f   %5.0f\n", distance[i], one_side[i], behind[i],
                 ahead[i]);
    return LOCI_OK;
}

/* A network of one unit that passes its input through: the bias is the normalised distance. */
static loci_status fire(struct text *t, loci_error *e)
{
    enum { N = 9 };
    double c = 0.1, one = 1, zero = 0, near[N], far[N], at[N], key[N];
    const struct given g[] = {
        { "fire.c", 1, { 1 }, &c },       { "fire.l", 1, { 1 }, &one },
        { "fire.w1", 2, { 1, 1 }, &one }, { "fire.b1", 1, { 1 }, &zero },
        { "fire.w3", 2, { 1, 1 }, &one }, { "fire.b3", 1, { 1 }, &zero },
    };
    const struct wish w = {
        .encoding = "fire:layers=1,hidden=1,threshold=4",
        .heads = 1,
        .dim = 4,
        .given = g,
        .given_count = COUNT(g),
    };
    for (int i = 0; i < N; i++) {
        at[i] = 8;
        key[i] = 8 - i;
    }
    TRY(bias(&w, N, at, key, far, e));
    for (int i = 0; i < 3; i++) {
        at[i] = 2;
        key[i] = 2 - i;
    }
    TRY(bias(&w, 3, at, key, near, e));
    text_add(t, "fire: the normalised distance, c = 0.1, threshold T = 4\n");
    step(t, 1, "x = log(c d + 1) / log(c max(T, i) + 1) is what the network sees of d = i - j");
    step(t, 2, "the query at i = 8, beyond T: d = 0 to 8 fills the range from 0 to 1");
    row(t, "x", far, N);
    step(t, 3, "the query at i = 2, before T: distances alone, as log(c T + 1) divides them all");
    row(t, "x", near, 3);
    return LOCI_OK;
}

/* ---- Counting -------------------------------------------------------------------------------- */

/* Gates open for marked tokens and shut for others. e[p] = p along a channel of which every query
 * has 1, so that the bias is the position. */
static loci_status cope(struct text *t, loci_error *e)
{
    enum { N = 8, D = 4 };
    static const char marked[N + 1] = "-*--*-*-";
    double q[N * D] = { 0 }, k[N * D] = { 0 }, at[N], table[8 * D] = { 0 };
    double with[N * N], without[N * N], count[N];
    for (int i = 0; i < N; i++) {
        at[i] = i;
        q[i * D] = 1;
        q[i * D + 1] = 40;
        k[i * D + 1] = marked[i] == '*' ? 1 : -1;
        table[i * D] = i;
    }
    const struct given g = { "cope.e", 2, { 8, D }, table };
    const struct wish w = {
        .encoding = "cope:npos=8,gate_scale=1", .heads = 1, .dim = D, .given = &g, .given_count = 1
    };
    struct show *s;
    TRY(show_open(&s, &w, e));
    const struct tokens tokens = { .n = N, .q = q, .k = k, .at = at };
    loci_status status = show_scores(s, &tokens, false, with, e);
    if (!status) status = show_scores(s, &tokens, true, without, e);
    show_close(s);
    text_add(t, "cope: positions that count tokens of one kind, * among -\n"
                "       tokens             ");
    for (int i = 0; i < N; i++) text_add(t, " %9c", marked[i]);
    text_add(t, "\n");
    step(t, 1, "a gate is open (1) where q.k = 40, at a *, and shut (0) where q.k = -40");
    step(t, 2, "the position of key j for row i is the sum of the gates from j to i");
    for (int i = N - 1; i >= N - 4; i -= 3) {
        char name[24];
        for (int j = 0; j <= i; j++) count[j] = with[i * N + j] - without[i * N + j];
        snprintf(name, sizeof name, "row %d", i);
        row(t, name, count, i + 1);
    }
    step(t, 3, "so e[1] means 'since the last *', however many tokens ago that was");
    return status;
}

static const struct {
    const char *name;
    loci_status (*print)(struct text *, loci_error *);
} all[] = {
    { "sinusoidal", sinusoidal },
    { "alibi", alibi },
    { "t5", t5 },
    { "fire", fire },
    { "rope", rope },
    { "cope", cope },
};

loci_status example_print(struct text *t, const char *name, loci_error *e)
{
    char list[80] = "";
    for (int i = 0; i < COUNT(all); i++) {
        if (!strcmp(all[i].name, name)) return all[i].print(t, e);
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "",
                 all[i].name);
    }
    return loci_fail(e, LOCI_BAD_ARG, "'%.80s' has no worked example; these have one: %s", name,
                     list);
}
