/* SPDX-License-Identifier: MIT */
/* ranged.c -- rotations by distance: rerope, selfextend and dca against their effective distance
 * pair by pair, their limits to rope, far positions, and shifts. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attend.h"
#include "contract/plan.h"
#include "harness.h"

enum { H = 2, D = 8, L = 150, N = H * L * D };
static double q[N], k[N], v[N];

static void draw(void)
{
    walk_restart(5);
    for (int i = 0; i < N; i++) {
        q[i] = (float)(2 * walk_uniform());
        k[i] = (float)(2 * walk_uniform());
        v[i] = (float)walk_uniform();
    }
}
static struct attend made(const char *text, loci_dtype dtype, const int64_t *pos)
{
    struct attend a = { .desc = LOCI_DESC(.encoding = text, .heads = H, .dim = D, .dtype = dtype),
                        .q_len = L,
                        .k_len = L,
                        .q = q,
                        .k = k,
                        .v = v,
                        .q_pos = pos,
                        .k_pos = pos };
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

/* ---- Pair by pair ---------------------------------------------------------------------------- */

struct rule {
    const char *text;
    enum { REROPE, SELFEXTEND, DCA } kind;
    int64_t a, b; /* window; group, window; chunk, local */
    double leak;
};
static int64_t below(int64_t x, int64_t by) /* floor(x / by) */
{
    return (int64_t)floor((double)x / (double)by);
}
static double effective(const struct rule *r, int64_t i, int64_t j)
{
    const int64_t d = i - j;
    if (r->kind == REROPE)
        return d < r->a ? (double)d : (double)r->a + r->leak * (double)(d - r->a);
    if (r->kind == SELFEXTEND)
        return (double)(d < r->b ? d : below(i, r->a) - below(j, r->a) + r->b - r->b / r->a);
    const int64_t c = r->a - r->b, apart = below(i, c) - below(j, c), qi = i - c * below(i, c),
                  kj = j - c * below(j, c);
    const int64_t succ = qi + c < r->a ? qi + c : r->a, inter = 2 * c - 1 < r->a ? 2 * c - 1 : r->a;
    return (double)((apart == 0 ? qi : apart == 1 ? succ : inter) - kj);
}
/* lse and o of a row, from scores of whole pairs rotated by r w. */
static double direct(const struct rule *r, const int64_t *pos, int h, int i, double *o)
{
    static double s[L];
    double top = -INFINITY, sum = 0;
    for (int j = 0; j < L; j++) {
        if (pos[j] > pos[i]) continue;
        const double *x = q + (h * L + i) * D, *y = k + (h * L + j) * D;
        s[j] = 0;
        for (int t = 0; t < D / 2; t++) {
            const double phi = effective(r, pos[i], pos[j]) * pow(100, -2.0 * t / D);
            s[j] += (x[t] * y[t] + x[t + D / 2] * y[t + D / 2]) * cos(phi)
                  + (x[t] * y[t + D / 2] - x[t + D / 2] * y[t]) * sin(phi);
        }
        s[j] *= 1.21 / sqrt(D);
        top = fmax(top, s[j]);
    }
    memset(o, 0, D * sizeof *o);
    for (int j = 0; j < L; j++) {
        if (pos[j] > pos[i]) continue;
        const double w = exp(s[j] - top);
        sum += w;
        for (int d = 0; d < D; d++) o[d] += w * v[(h * L + j) * D + d];
    }
    for (int d = 0; d < D; d++) o[d] /= sum;
    return top + log(sum);
}
static void pair_by_pair(const struct rule *r, const char *where, const int64_t *pos)
{
    struct attend a = made(r->text, LOCI_F64, pos);
    double off = 0, o[D];
    for (int h = 0; h < H; h++)
        for (int i = 0; i < L; i++) {
            off = fmax(off, fabs(direct(r, pos, h, i, o) - a.rows[h * L + i]));
            off = fmax(off, apart(o, a.o + (h * L + i) * D, D));
        }
    CHECK_CLOSE(off, 0, 1e-12, "%s, %s positions: the effective distance", r->text, where);
    attend_free(&a);
}
static void distances(void)
{
    static const struct rule rules[] = {
        { "rerope:pairing=half,base=100,attention_factor=1.1,window=1", REROPE, 1, 0, 0 },
        { "rerope:pairing=half,base=100,attention_factor=1.1,window=40", REROPE, 40, 0, 0 },
        { "rerope:pairing=half,base=100,attention_factor=1.1,window=9,leak=0.3", REROPE, 9, 0,
          0.3 },
        { "selfextend:pairing=half,base=100,attention_factor=1.1,group=7,window=21", SELFEXTEND, 7,
          21, 0 },
        { "selfextend:pairing=half,base=100,attention_factor=1.1,group=4,window=80", SELFEXTEND, 4,
          80, 0 },
        { "dca:pairing=half,base=100,attention_factor=1.1,chunk=20,local=5", DCA, 20, 5, 0 },
        { "dca:pairing=half,base=100,attention_factor=1.1,chunk=20,local=15", DCA, 20, 15, 0 },
        { "dca:pairing=half,base=100,attention_factor=1.1,chunk=100,local=20", DCA, 100, 20, 0 },
    };
    static int64_t counted[L], spread[L], mixed[L];
    for (int i = 0; i < L; i++) {
        counted[i] = i;
        spread[i] = 3 * i - 200 + i % 3;
        mixed[i] = i * 37 % L; /* in no order */
    }
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        pair_by_pair(&rules[i], "counted", counted);
        pair_by_pair(&rules[i], "spread", spread);
        pair_by_pair(&rules[i], "mixed", mixed);
    }
}

/* ---- Limits ---------------------------------------------------------------------------------- */

static void limits(void)
{
    static const struct {
        const char *text;
        double within;
    } same[] = {
        { "rerope:pairing=half,window=150", 0 },
        { "selfextend:pairing=half,group=5,window=150", 0 },
        { "dca:pairing=half,chunk=200,local=50", 0 },
        /* gradients of two forms are added */
        { "rerope:pairing=half,window=30,leak=1", 3e-6 },
        { "selfextend:pairing=half,group=1,window=20", 3e-6 },
    };
    struct attend rope = made("rope:pairing=half", LOCI_F32, NULL);
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        struct attend a = made(same[i].text, LOCI_F32, NULL);
        CHECK_CLOSE(all_apart(&a, &rope), 0, same[i].within, "%s is rope", same[i].text);
        CHECK_THAT(apart(a.o, rope.o, N) == 0, "%s: outputs have rope's bits", same[i].text);
        attend_free(&a);
    }
    attend_free(&rope);
}

/* ---- Shifts and far positions ---------------------------------------------------------------- */

static void shifts(void)
{
    static const struct {
        const char *text;
        int64_t by;
        bool same;
    } list[] = {
        { "rerope:pairing=half,window=9", (int64_t)1 << 39, true },
        { "rerope:pairing=half,window=9,leak=0.3", (int64_t)1 << 39, true },
        { "selfextend:pairing=half,group=7,window=21", 7 * ((int64_t)1 << 36), true },
        { "selfextend:pairing=half,group=7,window=21", 3, false },
        { "dca:pairing=half,chunk=20,local=5", 15 * ((int64_t)1 << 35), true },
        { "dca:pairing=half,chunk=20,local=5", -15 * ((int64_t)1 << 35), true },
        { "dca:pairing=half,chunk=20,local=5", 4, false },
    };
    static int64_t pos[L], moved[L];
    for (size_t n = 0; n < sizeof list / sizeof *list; n++) {
        for (int i = 0; i < L; i++) {
            pos[i] = i;
            moved[i] = i + list[n].by;
        }
        struct attend a = made(list[n].text, LOCI_F64, pos),
                      b = made(list[n].text, LOCI_F64, moved);
        const double off = all_apart(&a, &b);
        CHECK_THAT(list[n].same ? off < 1e-12 : off > 1e-3, "%s, moved by %lld: off by %g",
                   list[n].text, (long long)list[n].by, off);
        attend_free(&a);
        attend_free(&b);
    }
}

/* ---- Rows and keys alone --------------------------------------------------------------------- */

static void alone(void)
{
    static const struct {
        const char *text;
        loci_which which;
        loci_status status;
        const char *says; /* part of the sentence */
    } list[] = {
        { "rerope:pairing=half,window=9", LOCI_QUERY, LOCI_BAD_ARG,
          "rerope rotates queries differently for near and far keys, so they cannot be rotated "
          "alone" },
        { "selfextend:pairing=half,group=2,window=8", LOCI_CACHE, LOCI_BAD_ARG,
          "selfextend rotates keys differently for near and far rows" },
        { "dca:pairing=half,chunk=20,local=5", LOCI_QUERY, LOCI_BAD_ARG, "dca rotates queries" },
        { "dca:pairing=half,chunk=20,local=5", LOCI_CACHE, LOCI_OK, "" },
    };
    for (size_t n = 0; n < sizeof list / sizeof *list; n++) {
        loci_plan *plan;
        loci_error e = { 0 };
        if (!CHECK_THAT(!loci_plan_create(&plan,
                                          &(loci_desc)LOCI_DESC(.encoding = list[n].text,
                                                                .heads = H, .dim = D,
                                                                .dtype = LOCI_F64),
                                          &e),
                        "%s: %s", list[n].text, e.text))
            continue;
        struct mem mem = { 0 };
        double *y = mem_alloc(&mem, sizeof k);
        memset(y, 0, sizeof k);
        const loci_call c = LOCI_CALL(.batch = 1, .q_len = L, .k_len = L, .error = &e);
        void *tables = mem_alloc(&mem, loci_tables_size(plan, L)),
             *work = mem_alloc(&mem, loci_workspace(plan, &c, 1));
        CHECK_THAT(!loci_prepare(plan, L, NULL, tables), "%s: tables", list[n].text);
        const loci_status status = loci_rotate(plan, tables, work, &c, list[n].which,
                                               (loci_view){ .data = k }, (loci_view){ .data = y });
        CHECK_THAT(status == list[n].status && strstr(e.text, list[n].says), "%s: status %d, '%s'",
                   list[n].text, (int)status, e.text);
        /* the place of a key: its position in the chunk */
        for (int j = 0; j < L && !list[n].status; j++)
            CHECK_CLOSE(y[j * D], k[j * D] * cos(j % 15) - k[j * D + D / 2] * sin(j % 15), 1e-14,
                        "%s: key %d", list[n].text, j);
        mem_release(&mem, 0);
        loci_plan_destroy(plan);
    }
}

int main(void)
{
    draw();
    distances();
    limits();
    shifts();
    alone();
    return harness_end();
}
