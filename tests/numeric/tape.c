/* SPDX-License-Identifier: MIT */
/* tape.c -- states that rotate and are averaged: initially they are rope, a common rotation of all
 * of them has no effect, rotated keys can come from a cache, and each gradient can be requested
 * alone. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reference/reference.h"
#include "harness.h"
#include "mem.h"
#include "walk.h"

enum { H = 4, D = 16, L = 150, ROWS = H * L, N = ROWS * D };

/* Results first, so that two tasks can be compared in one step. */
struct results {
    float o[N], lse[ROWS], ae[N], dq[N], dk[N], dv[N], deq[N], dek[N];
};
struct task {
    struct results r;
    float q[N], k[N], v[N], dout[N], dae[N], eq[N], ek[N];
    loci_call call;
    loci_grad grad;
    const void *tensors[2];
    void *dtensors[2];
    loci_error error;
};

static struct task *fresh(void)
{
    struct task *t = mem_block(sizeof *t);
    memset(&t->r, 0, sizeof t->r);
    walk_restart(5);
    for (int i = 0; i < N; i++) {
        t->q[i] = (float)walk_uniform();
        t->k[i] = (float)walk_uniform();
        t->v[i] = (float)walk_uniform();
        t->dout[i] = (float)walk_uniform();
        t->dae[i] = (float)walk_uniform();
        t->eq[i] = (float)walk_uniform();
        t->ek[i] = (float)walk_uniform();
    }
    t->error = (loci_error){ 0 };
    t->tensors[0] = t->eq;
    t->tensors[1] = t->ek;
    t->dtensors[0] = t->r.deq;
    t->dtensors[1] = t->r.dek;
    t->call = (loci_call)LOCI_CALL(.batch = 1, .q_len = L, .k_len = L, .q = { t->q, 0, 0, 0 },
                                   .k = { t->k, 0, 0, 0 }, .v = { t->v, 0, 0, 0 },
                                   .o = { t->r.o, 0, 0, 0 }, .lse = t->r.lse, .ae = t->r.ae,
                                   .tensors = t->tensors, .error = &t->error);
    t->grad = (loci_grad)LOCI_GRAD(.dout = { t->dout, 0, 0, 0 }, .dae = t->dae,
                                   .dq = { t->r.dq, 0, 0, 0 }, .dk = { t->r.dk, 0, 0, 0 },
                                   .dv = { t->r.dv, 0, 0, 0 }, .dtensors = t->dtensors);
    return t;
}

static loci_plan *plan_of(loci_desc d)
{
    loci_plan *plan;
    loci_error e;
    d.heads = H;
    d.dim = D;
    if (!loci_plan_create(&plan, &d, &e)) return plan;
    printf("%s: %s\n", d.encoding, e.text);
    exit(1);
}

static loci_status run(struct task *t, loci_desc d, bool backward)
{
    loci_plan *plan = plan_of(d);
    void *tables = mem_block(loci_tables_size(plan, L)),
         *work = mem_block(loci_workspace(plan, &t->call, backward));
    loci_status status = loci_prepare(plan, L, NULL, tables);
    if (!status) status = loci_forward(plan, tables, work, &t->call);
    if (!status && backward) status = loci_backward(plan, tables, work, &t->call, &t->grad);
    free(tables);
    free(work);
    loci_plan_destroy(plan);
    return status;
}
static bool same(const float *a, const float *b, size_t n)
{
    return memcmp(a, b, n * sizeof *a) == 0;
}
static double apart(const float *a, const float *b)
{
    double most = 0;
    for (int i = 0; i < N; i++) most = fmax(most, fabs((double)a[i] - (double)b[i]));
    return most;
}

/* Rotates the rows of x, or applies the inverse rotation. */
static loci_status turn(struct task *t, loci_desc d, loci_which which, const float *x, float *y)
{
    loci_plan *plan = plan_of(d);
    void *tables = mem_block(loci_tables_size(plan, L)),
         *work = mem_block(loci_workspace(plan, &t->call, 1));
    loci_status status = loci_prepare(plan, L, NULL, tables);
    if (!status)
        status = loci_rotate(plan, tables, work, &t->call, which, (loci_view){ (void *)x, 0, 0, 0 },
                             (loci_view){ y, 0, 0, 0 });
    free(tables);
    free(work);
    loci_plan_destroy(plan);
    return status;
}

/* ---- Initial states -------------------------------------------------------------------------- */

/* With (cos, sin) of rope's angles as states, tape is rope, bit for bit, and ae is the average of
 * those. */
static void starts_as_rope(const char *isa)
{
    static float one[N], angles[N];
    struct task *rope = fresh(), *tape = fresh();
    const loci_desc r = LOCI_DESC(.encoding = "rope:pairing=half", .isa = isa),
                    d = LOCI_DESC(.encoding = "tape", .isa = isa);
    for (int i = 0; i < N; i++) one[i] = i % D < D / 2;
    rope->call.ae = NULL;
    rope->grad.dae = NULL;
    rope->call.tensors = NULL;
    rope->grad.dtensors = NULL;
    CHECK_THAT(!turn(rope, r, LOCI_KEY, one, angles), "%s: rope turns", isa);
    for (int i = 0; i < ROWS; i++)
        for (int n = 0; n < D; n++)
            tape->eq[i * D + n] = tape->ek[i * D + n] = angles[i * D + n / 2 + n % 2 * (D / 2)];
    tape->grad.dae = NULL;
    CHECK_THAT(!run(rope, r, true) && !run(tape, d, true), "%s: both run", isa);
    CHECK_THAT(same(tape->r.o, rope->r.o, N) && same(tape->r.lse, rope->r.lse, ROWS),
               "%s: at its start tape is rope", isa);
    CHECK_THAT(same(tape->r.dq, rope->r.dq, N) && same(tape->r.dk, rope->r.dk, N)
                   && same(tape->r.dv, rope->r.dv, N),
               "%s: at its start tape has the gradients of rope", isa);
    CHECK_THAT(same(tape->r.ae, tape->ek, D), "%s: a row that sees one key has its state", isa);

    /* The states as values: attention then computes their average. */
    memcpy(rope->v, tape->ek, sizeof rope->v);
    CHECK_THAT(!run(rope, r, false) && apart(tape->r.ae, rope->r.o) < 1e-6,
               "%s: ae is attention to the states", isa);
    free(rope);
    free(tape);
}

/* ---- A common rotation of all states --------------------------------------------------------- */

static void turn_states(float *e, int sign)
{
    for (int i = 0; i < N; i += 2) {
        const double phi = 0.3 + i % D, c = e[i], s = e[i + 1];
        e[i] = (float)(c * cos(phi) - sign * s * sin(phi));
        e[i + 1] = (float)(sign * c * sin(phi) + s * cos(phi));
    }
}
static void turned_together(void)
{
    struct task *t = fresh(), *u = fresh();
    turn_states(u->eq, 1);
    turn_states(u->ek, 1);
    CHECK_THAT(!run(t, (loci_desc)LOCI_DESC(.encoding = "tape"), false)
                   && !run(u, (loci_desc)LOCI_DESC(.encoding = "tape"), false),
               "both run");
    CHECK_CLOSE(apart(t->r.o, u->r.o), 0, 1e-5, "a common turn of all states leaves o alone");
    CHECK_THAT(apart(t->r.ae, u->r.ae) > 0.1, "and turns ae");
    turn_states(u->r.ae, -1);
    CHECK_CLOSE(apart(t->r.ae, u->r.ae), 0, 1e-5, "by the same angle");
    free(t);
    free(u);
}

/* ---- Keys from a cache ----------------------------------------------------------------------- */

static void cache(const char *isa)
{
    struct task *t = fresh(), *c = fresh();
    const loci_desc raw = LOCI_DESC(.encoding = "tape", .isa = isa),
                    turned = LOCI_DESC(.encoding = "tape", .isa = isa, .keys_rotated = 1);
    CHECK_THAT(!run(t, raw, true), "%s: a whole pass", isa);
    CHECK_THAT(!turn(c, raw, LOCI_CACHE, t->k, c->k), "%s: keys can be turned alone", isa);
    CHECK_THAT(!run(c, turned, true) && same(c->r.o, t->r.o, N) && same(c->r.ae, t->r.ae, N)
                   && same(c->r.dq, t->r.dq, N) && same(c->r.deq, t->r.deq, N),
               "%s: turned keys give the same", isa);
    float o[H * D], ae[H * D], eq[H * D];
    for (int i = 0; i < L; i += 37) { /* one query against the cache so far */
        for (int h = 0; h < H; h++) memcpy(eq + h * D, t->eq + (h * L + i) * D, sizeof *eq * D);
        float ek[N];
        for (int h = 0; h < H; h++)
            memcpy(ek + h * (i + 1) * D, t->ek + h * L * D, sizeof *ek * (size_t)((i + 1) * D));
        const void *tensors[] = { eq, ek };
        c->call.tensors = tensors;
        c->call.q_len = 1;
        c->call.k_len = i + 1;
        c->call.q = (loci_view){ t->q + i * D, 0, L * D, D };
        c->call.k = (loci_view){ c->k, 0, L * D, D };
        c->call.v = (loci_view){ c->v, 0, L * D, D };
        c->call.o = (loci_view){ o, 0, 0, 0 };
        c->call.ae = ae;
        bool equal = !run(c, turned, false);
        for (int h = 0; h < H; h++)
            equal &= same(o + h * D, t->r.o + (h * L + i) * D, D)
                  && same(ae + h * D, t->r.ae + (h * L + i) * D, D);
        CHECK_THAT(equal, "%s: decode from the cache has the bits of the whole pass", isa);
    }
    free(t);
    free(c);
}

/* ---- Single gradients ------------------------------------------------------------------------ */

static void wanted(int kv_heads)
{
    struct task *all = fresh();
    const loci_desc d = LOCI_DESC(.encoding = "tape", .kv_heads = kv_heads);
    CHECK_THAT(!run(all, d, true), "all gradients");
    for (int set = 0; set < 16; set++) {
        struct task *t = fresh();
        if (!(set & 1)) t->grad.dk.data = NULL;
        if (!(set & 2)) t->dtensors[0] = NULL;
        if (!(set & 4)) t->dtensors[1] = NULL;
        if (!(set & 8)) t->grad.dq.data = NULL;
        bool equal = !run(t, d, true) && same(t->r.dv, all->r.dv, N);
        equal &= !(set & 1) || same(t->r.dk, all->r.dk, N);
        equal &= !(set & 2) || same(t->r.deq, all->r.deq, N);
        equal &= !(set & 4) || same(t->r.dek, all->r.dek, N);
        equal &= !(set & 8) || same(t->r.dq, all->r.dq, N);
        CHECK_THAT(equal, "gradients do not depend on which others are wanted");
        free(t);
    }
    struct task *t = fresh();
    t->call.ae = NULL;
    t->grad.dae = NULL;
    CHECK_THAT(!run(t, d, true) && same(t->r.o, all->r.o, N), "ae need not be wanted");
    free(t);
    free(all);
}

/* ---- Rotation alone -------------------------------------------------------------------------- */

static void turned_back(loci_which which)
{
    static double x[N], dy[N], eq[N], ek[N], got[3][N], want[3][N];
    loci_plan *plan = plan_of((loci_desc)LOCI_DESC(.encoding = "tape", .dtype = LOCI_F64));
    for (int i = 0; i < N; i++) {
        x[i] = walk_uniform();
        dy[i] = walk_uniform();
        eq[i] = walk_uniform();
        ek[i] = walk_uniform();
    }
    const void *const tensors[] = { eq, ek };
    const loci_call call = LOCI_CALL(.batch = 1, .q_len = L, .k_len = L, .tensors = tensors);
    void *tables = mem_block(loci_tables_size(plan, L)),
         *work = mem_block(loci_workspace(plan, &call, 1));
    const loci_view rows = { x, 0, 0, 0 }, back = { dy, 0, 0, 0 };
    bool goes =
        !loci_prepare(plan, L, NULL, tables)
        && !loci_rotate_backward(plan, tables, work, &call, which, rows, back,
                                 (loci_view){ got[0], 0, 0, 0 }, (void *[]){ got[1], got[2] })
        && !loci_reference_rotate(plan, tensors, &call, which, rows, (loci_view){ 0 }, back,
                                  (loci_view){ want[0], 0, 0, 0 }, (void *[]){ want[1], want[2] });
    CHECK_THAT(goes, "rotation alone: goes back");
    double most = 0;
    for (int n = 0; n < 3; n++)
        for (int i = 0; i < N; i++) most = fmax(most, fabs(got[n][i] - want[n][i]));
    CHECK_CLOSE(most, 0, 1e-14, "rotation alone: and has the gradients of the reference");
    free(tables);
    free(work);
    loci_plan_destroy(plan);
}

/* ---- Invalid calls --------------------------------------------------------------------------- */

/* Padding may contain anything: its states have no gradient, and the gradients of others do not
 * change. */
static void padded(const char *isa)
{
    static int64_t segments[L];
    const loci_desc d = LOCI_DESC(.encoding = "tape", .isa = isa);
    struct task *t = fresh(), *u = fresh();
    for (int i = 0; i < L; i++) segments[i] = i % 7 == 3 ? -1 : 0;
    for (int i = 0; i < N; i++)
        if (i / D % L % 7 == 3)
            u->q[i] = u->k[i] = u->v[i] = u->dout[i] = u->eq[i] = u->ek[i] = NAN;
    t->call.q_seg = t->call.k_seg = u->call.q_seg = u->call.k_seg = segments;
    t->call.ae = u->call.ae = NULL;
    t->grad.dae = u->grad.dae = NULL;
    CHECK_THAT(!run(t, d, true) && !run(u, d, true), "%s: %s", isa, u->error.text);
    CHECK_THAT(!memcmp(&t->r, &u->r, sizeof t->r), "%s: NaN in padding is seen", isa);
    free(t);
    free(u);
}

static void refused(loci_status status, struct task *t, const char *says)
{
    CHECK_SAYS(status, LOCI_BAD_ARG, &t->error, says);
    free(t);
}
static void refusals(void)
{
    const loci_desc d = LOCI_DESC(.encoding = "tape"),
                    groups = LOCI_DESC(.encoding = "tape", .kv_heads = 2);
    struct task *t = fresh();
    t->tensors[1] = NULL;
    refused(run(t, d, false), t, "input tensor 'ek' must be given");
    t = fresh();
    t->tensors[0] = NULL;
    refused(turn(t, d, LOCI_QUERY, t->q, t->r.o), t, "input tensor 'eq' must be given");
    t = fresh();
    t->tensors[0] = NULL;
    CHECK_THAT(!turn(t, d, LOCI_KEY, t->k, t->r.o), "keys turn without the states of queries");
    refused(turn(t, groups, LOCI_KEY, t->k, t->r.o), t,
            "each of the 4 heads rotates keys differently");
    t = fresh();
    t->call.ae = t->k;
    refused(run(t, d, false), t, "ae overlaps k");
    t = fresh();
    t->call.ae = (char *)t->r.ae + 1;
    refused(run(t, d, false), t, "ae must be aligned to 4 bytes");
    t = fresh();
    t->call.ae = NULL;
    refused(run(t, d, true), t, "ae must not be NULL if dae is given");
}

int main(void)
{
    const char *isas[8];
    const int count = loci_isas(isas, 8);
    for (int i = 0; i < count && i < 8; i++) {
        starts_as_rope(isas[i]);
        cache(isas[i]);
        padded(isas[i]);
    }
    turned_together();
    wanted(H);
    wanted(2);
    turned_back(LOCI_QUERY);
    turned_back(LOCI_KEY);
    refusals();
    return harness_end();
}
