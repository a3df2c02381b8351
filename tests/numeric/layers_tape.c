/* SPDX-License-Identifier: MIT */
/* layers_tape.c -- updates of tape's states by layers: formulas, gradients by differences, bits,
 * invalid calls. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loci/layers.h"
#include "harness.h"
#include "mem.h"
#include "walk.h"

enum { B = 2, H = 3, L = 21, D = 10, P = 19, N = B * H * L * D, G = B * L * P };

/* All arrays that either update reads or writes. */
struct numbers {
    double e[N], ae[N], gates[G], w[H * H], up[P * H], down[H * P], dy[N], y[N], de[N], dae[N],
        dgates[G], dw[H * H], dup[P * H], ddown[H * P];
};

static void random(double *x, size_t n)
{
    for (size_t i = 0; i < n; i++) x[i] = (float)walk_uniform();
}
static struct numbers *fresh(void)
{
    struct numbers *t = calloc(1, sizeof *t);
    if (!t) exit(2);
    walk_restart(3);
    random(t->e, N);
    random(t->ae, N);
    random(t->gates, G);
    random(t->w, H * H);
    random(t->up, P * H);
    random(t->down, H * P);
    random(t->dy, N);
    for (int i = 0; i < G; i++) t->gates[i] *= 4;
    return t;
}
static loci_layer layer(void)
{
    return (loci_layer)LOCI_LAYER(.dtype = LOCI_F64, .batch = B, .rows = L, .heads = H, .width = D);
}
static loci_view of(const void *x) { return (loci_view){ (void *)x, 0, 0, 0 }; }
static loci_view gates_of(const void *x) { return (loci_view){ (void *)x, L * P, 0, P }; }

enum kind { ROWSUM, FULL, MLP };
static const char *const names[] = { "attention update, row sums", "attention update, full",
                                     "MLP update" };

static loci_status forward(enum kind kind, struct numbers *t)
{
    const loci_layer l = layer();
    if (kind == MLP)
        return loci_tape_mlp_update(&l, P, of(t->e), gates_of(t->gates), t->up, t->down, of(t->y));
    return loci_tape_attention_update(&l, kind == FULL ? LOCI_TAPE_FULL : LOCI_TAPE_ROWSUM,
                                      of(t->e), of(t->ae), t->w, of(t->y));
}
static loci_status backward(enum kind kind, struct numbers *t)
{
    const loci_layer l = layer();
    if (kind == MLP)
        return loci_tape_mlp_update_backward(&l, P, of(t->e), gates_of(t->gates), t->up, t->down,
                                             of(t->dy), of(t->de), gates_of(t->dgates), t->dup,
                                             t->ddown);
    memcpy(t->de, t->dy, sizeof t->de);
    return loci_tape_attention_update_backward(&l, kind == FULL ? LOCI_TAPE_FULL : LOCI_TAPE_ROWSUM,
                                               of(t->ae), t->w, of(t->dy), of(t->dae), t->dw);
}

/* ---- Formulas, one number at a time ---------------------------------------------------------- */

static double at(const double *x, int b, int h, int t, int d)
{
    return x[((b * H + h) * L + t) * D + d];
}
static double formula(enum kind kind, const struct numbers *n, int b, int h, int t, int d)
{
    double y = at(n->e, b, h, t, d);
    for (int g = 0; g < H && kind != MLP; g++)
        y += n->w[h * H + g] * at(n->ae, b, kind == FULL ? g : h, t, d);
    for (int p = 0; p < P && kind == MLP; p++) {
        const double gate = n->gates[(b * L + t) * P + p], silu = gate / (1 + exp(-gate));
        for (int g = 0; g < H; g++)
            y += n->down[h * P + p] * silu * n->up[p * H + g] * at(n->e, b, g, t, d);
    }
    return y;
}
static void formulas(enum kind kind)
{
    struct numbers *n = fresh();
    double worst = 0;
    CHECK_THAT(!forward(kind, n), "%s", names[kind]);
    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++)
            for (int t = 0; t < L; t++)
                for (int d = 0; d < D; d++)
                    worst = fmax(worst, fabs(at(n->y, b, h, t, d) - formula(kind, n, b, h, t, d)));
    CHECK_CLOSE(worst, 0, 1e-13, "%s", names[kind]);
    memset(n->w, 0, sizeof n->w);
    memset(n->up, 0, sizeof n->up);
    CHECK_THAT(!forward(kind, n) && !memcmp(n->y, n->e, sizeof n->y),
               "at its start an update changes nothing");
    free(n);
}

/* ---- Gradients: 4-point differences along a random direction --------------------------------- */

static double loss(enum kind kind, struct numbers *n)
{
    double sum = 0;
    if (forward(kind, n)) return NAN;
    for (int i = 0; i < N; i++) sum += n->dy[i] * n->y[i];
    return sum;
}
static void gradient(enum kind kind, struct numbers *n, double *x, const double *dx, size_t count,
                     const char *name)
{
    double *x0 = malloc(2 * count * sizeof *x0), *u = x0 + count, got = 0, value[4];
    const double h = 0x1p-12, steps[] = { h, -h, 2 * h, -2 * h };
    if (!x0) exit(2);
    memcpy(x0, x, count * sizeof *x);
    random(u, count);
    for (size_t i = 0; i < count; i++) got += u[i] * dx[i];
    for (int k = 0; k < 4; k++) {
        for (size_t i = 0; i < count; i++) x[i] = x0[i] + steps[k] * u[i];
        value[k] = loss(kind, n);
    }
    memcpy(x, x0, count * sizeof *x);
    const double want = (8 * (value[0] - value[1]) - (value[2] - value[3])) / (12 * h);
    if (fabs(got - want) > 1e-9 * fmax(1, fabs(want)))
        printf("%s: got %.12g, differences say %.12g\n", names[kind], got, want);
    CHECK_CLOSE(got, want, 1e-9 * fmax(1, fabs(want)), "%s", name);
    free(x0);
}
static void gradients(enum kind kind)
{
    struct numbers *n = fresh();
    CHECK_THAT(!backward(kind, n), "%s", names[kind]);
    gradient(kind, n, n->e, n->de, N, "de");
    if (kind == MLP) {
        gradient(kind, n, n->gates, n->dgates, G, "dgates");
        gradient(kind, n, n->up, n->dup, P * H, "dup");
        gradient(kind, n, n->down, n->ddown, H * P, "ddown");
    } else {
        gradient(kind, n, n->ae, n->dae, N, "dae");
        gradient(kind, n, n->w, n->dw, H * H, "dw");
    }
    free(n);
}

/* ---- Bits ------------------------------------------------------------------------------------ */

static void narrow(float *to, const double *from, size_t n)
{
    for (size_t i = 0; i < n; i++) to[i] = (float)from[i];
}
static bool rounded(const float *got, const double *exact, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (got[i] != (float)exact[i]) return false;
    return true;
}
/* In float, on threads, token-major, in place, and one row at a time: the same numbers, rounded
 * once. */
static void bits(void)
{
    struct numbers *mlp = fresh(), *full = fresh();
    static float e[N], ae[N], gates[G], w[H * H], up[P * H], down[H * P], dy[N], y[N], de[N],
        dgates[G], dup[P * H], ddown[H * P], turned[N];
    loci_host host;
    if (loci_pool_create(&host, 3)) exit(2);
    narrow(e, mlp->e, N);
    narrow(ae, mlp->ae, N);
    narrow(gates, mlp->gates, G);
    narrow(w, mlp->w, H * H);
    narrow(up, mlp->up, P * H);
    narrow(down, mlp->down, H * P);
    narrow(dy, mlp->dy, N);
    CHECK_THAT(!forward(MLP, mlp) && !backward(MLP, mlp) && !forward(FULL, full), "in double");

    const loci_layer l = LOCI_LAYER(.batch = B, .rows = L, .heads = H, .width = D, .host = &host);
    CHECK_THAT(!loci_tape_mlp_update(&l, P, of(e), gates_of(gates), up, down, of(y))
                   && rounded(y, mlp->y, N),
               "MLP update in float on threads");
    CHECK_THAT(!loci_tape_mlp_update_backward(&l, P, of(e), gates_of(gates), up, down, of(dy),
                                              of(de), gates_of(dgates), dup, ddown)
                   && rounded(de, mlp->de, N) && rounded(dgates, mlp->dgates, G)
                   && rounded(dup, mlp->dup, P * H) && rounded(ddown, mlp->ddown, H * P),
               "and its gradients");

    const loci_view tokens = { turned, L * H * D, D, H * D };
    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++)
            for (int t = 0; t < L; t++)
                memcpy(turned + ((b * L + t) * H + h) * D, e + ((b * H + h) * L + t) * D,
                       sizeof *e * D);
    CHECK_THAT(!loci_tape_mlp_update(&l, P, tokens, gates_of(gates), up, down, of(de))
                   && !memcmp(de, y, sizeof y),
               "token-major");

    memcpy(y, e, sizeof y);
    CHECK_THAT(!loci_tape_attention_update(&l, LOCI_TAPE_FULL, of(y), of(ae), w, of(y))
                   && rounded(y, full->y, N),
               "attention update in place");
    const loci_layer one = LOCI_LAYER(.batch = B, .rows = 1, .heads = H, .width = D);
    for (int t = 0; t < L; t++) {
        const loci_view row = { e + t * D, H * L * D, L * D, D },
                        to = { de + t * D, H * L * D, L * D, D };
        CHECK_THAT(!loci_tape_mlp_update(&one, P, row, (loci_view){ gates + t * P, L * P, 0, P },
                                         up, down, to),
                   "one row");
    }
    CHECK_THAT(rounded(de, mlp->y, N), "row by row");
    loci_pool_destroy(&host);
    free(mlp);
    free(full);
}

/* ---- The initial state is rope; a common rotation commutes ----------------------------------- */

static void attend(const char *encoding, const float *q, const float *k, const int64_t *pos,
                   const float *e, float *o)
{
    loci_plan *plan;
    if (loci_plan_create(&plan, &(loci_desc)LOCI_DESC(.encoding = encoding, .heads = H, .dim = D),
                         NULL))
        exit(2);
    const void *const tensors[] = { e, e };
    const loci_call call =
        LOCI_CALL(.batch = B, .q_len = L, .k_len = L, .q = of(q), .k = of(k), .v = of(k),
                  .o = of(o), .q_pos = pos, .k_pos = pos, .tensors = tensors);
    void *tables = mem_block(loci_tables_size(plan, L)),
         *work = mem_block(loci_workspace(plan, &call, 0));
    CHECK_THAT(!loci_prepare(plan, L, NULL, tables) && !loci_forward(plan, tables, work, &call),
               "%s", encoding);
    free(tables);
    free(work);
    loci_plan_destroy(plan);
}
static void starts_as_rope(int64_t from)
{
    struct numbers *n = fresh();
    static float q[N], k[N], e[N], o[2][N];
    int64_t pos[L];
    double worst = 0;
    narrow(q, n->e, N);
    narrow(k, n->ae, N);
    for (int i = 0; i < L; i++) pos[i] = from + i;
    const loci_layer l = LOCI_LAYER(.batch = B, .rows = L, .heads = H, .width = D);
    CHECK_THAT(!loci_tape_start(&l, 0, 0, pos, 0, of(e)), "states start");
    attend("rope:pairing=half", q, k, pos, e, o[0]);
    attend("tape", q, k, pos, e, o[1]);
    for (int i = 0; i < N; i++) worst = fmax(worst, fabs((double)o[0][i] - (double)o[1][i]));
    CHECK_CLOSE(worst, 0, 1e-6, "with the states of the start tape is rope");
    if (from == 0) {
        float usual[N], wide[N];
        CHECK_THAT(!loci_tape_start(&l, 10000, 1, NULL, 0, of(usual))
                       && !memcmp(usual, e, sizeof e),
                   "0 is the usual");
        for (int i = 0; i < L; i++) pos[i] *= 4;
        CHECK_THAT(!loci_tape_start(&l, 0, 4, pos, 0, of(wide)), "a factor");
        for (int i = 0; i < N; i++) worst = fmax(worst, fabs((double)wide[i] - (double)e[i]));
        CHECK_CLOSE(worst, 0, 1e-6, "divides positions");
    }
    free(n);
}
static void turn(double *x)
{
    for (int i = 0; i < N; i += 2) {
        const double phi = 0.7 + i % D, c = x[i], s = x[i + 1];
        x[i] = c * cos(phi) - s * sin(phi);
        x[i + 1] = c * sin(phi) + s * cos(phi);
    }
}
static void turned_together(enum kind kind)
{
    struct numbers *n = fresh(), *u = fresh();
    double worst = 0;
    turn(u->e);
    turn(u->ae);
    CHECK_THAT(!forward(kind, n) && !forward(kind, u), "%s", names[kind]);
    turn(n->y);
    for (int i = 0; i < N; i++) worst = fmax(worst, fabs(n->y[i] - u->y[i]));
    CHECK_CLOSE(worst, 0, 1e-12, "a common turn of all states commutes with the update");
    free(n);
    free(u);
}

/* ---- Invalid calls --------------------------------------------------------------------------- */

static void refusals(void)
{
    struct numbers *t = fresh();
    loci_error e = { 0 };
    loci_layer l = layer();
    const loci_view x = of(t->e), y = of(t->y), g = gates_of(t->gates);
    int64_t far[L] = { INT64_MAX };
    l.error = &e;
    CHECK_THAT(loci_tape_start(NULL, 0, 0, NULL, 0, y) == LOCI_BAD_ARG, "no layer");
    CHECK_SAYS(loci_tape_start(&l, 0.5, 0, NULL, 0, y), LOCI_BAD_ARG, &e,
               "base 0.5 must be from 1");
    CHECK_SAYS(loci_tape_start(&l, 0, -1, NULL, 0, y), LOCI_BAD_ARG, &e, "factor -1 must be from");
    CHECK_SAYS(loci_tape_start(&l, 0, 0, far, 0, y), LOCI_BAD_ARG, &e, "must lie within 2^40");
    CHECK_SAYS(loci_tape_start(&l, 0, 0, NULL, 0, of(NULL)), LOCI_BAD_ARG, &e,
               "e must not be NULL");
    CHECK_SAYS(loci_tape_attention_update(&l, (loci_tape_mix)2, x, of(t->ae), t->w, y),
               LOCI_BAD_ARG, &e, "mix 2 must be");
    CHECK_SAYS(loci_tape_attention_update(&l, LOCI_TAPE_FULL, x, of(t->ae), NULL, y), LOCI_BAD_ARG,
               &e, "w must not be NULL");
    CHECK_SAYS(loci_tape_attention_update(&l, LOCI_TAPE_FULL, x, y, t->w, y), LOCI_BAD_ARG, &e,
               "y overlaps ae");
    CHECK_SAYS(loci_tape_mlp_update(&l, 0, x, g, t->up, t->down, y), LOCI_BAD_ARG, &e,
               "units 0 must be from 1 to 4096");
    CHECK_SAYS(loci_tape_mlp_update(&l, P, x, g, NULL, t->down, y), LOCI_BAD_ARG, &e,
               "up must not be NULL");
    CHECK_SAYS(loci_tape_mlp_update(&l, P, x, g, t->up, t->down, x), LOCI_BAD_ARG, &e,
               "y overlaps e");
    CHECK_SAYS(loci_tape_mlp_update_backward(&l, P, x, g, t->up, t->down, of(t->dy), of(t->dy), g,
                                             NULL, NULL),
               LOCI_BAD_ARG, &e, "de overlaps dy");
    l.rows = 0;
    CHECK_THAT(!loci_tape_mlp_update(&l, P, x, g, t->up, t->down, y)
                   && !loci_tape_attention_update(&l, LOCI_TAPE_FULL, x, of(t->ae), t->w, y)
                   && !loci_tape_start(&l, 0, 0, NULL, 0, y),
               "no rows are no error");
    l.width = 9;
    l.rows = L;
    CHECK_SAYS(loci_tape_mlp_update(&l, P, x, g, t->up, t->down, y), LOCI_BAD_ARG, &e,
               "width 9 of states must be even");
    l.width = D;
    l.heads = 257;
    l.rows = 1;
    CHECK_SAYS(loci_tape_mlp_update(&l, P, x, g, t->up, t->down, y), LOCI_BAD_ARG, &e,
               "heads 257 must be at most 256");
    free(t);
}

int main(void)
{
    for (enum kind kind = ROWSUM; kind <= MLP; kind++) {
        formulas(kind);
        gradients(kind);
        turned_together(kind);
    }
    bits();
    starts_as_rope(0);
    starts_as_rope(1000000);
    refusals();
    return harness_end();
}
