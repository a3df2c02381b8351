/* SPDX-License-Identifier: MIT */
/* misuse.c -- invalid calls return a status and one sentence, and write nothing.
 *
 * Each entry of the table makes a valid call invalid in one way.  Entries are tried alone and in
 * pairs, on every function that has a call. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "contract/plan.h"
#include "util/limits.h"
#include "harness.h"
#include "walk.h"

enum { H = 2, L = 9, D = 4, N = H * L * D };
static float q[N + 1], k[N + 1], v[N + 1], o[N + 1], lse[H * L], dout[N], dq[N], dk[N], dv[N];
static unsigned char raw_work[1 << 20], raw_tables[1 << 12];

/* A valid call, and all its variable parts. */
struct task {
    loci_plan *plan;
    void *tables, *work;
    loci_call call, *callp;
    loci_grad grad, *gradp;
    loci_error error;
};

static const ptrdiff_t sizes[] = { -1, POWER(48), POWER(62), PTRDIFF_MAX };
static int64_t far_pos[L];

/* may return NULL */
static void *shifted(const void *p, size_t bytes) { return (void *)((uintptr_t)p + bytes); }

static void no_plan(struct task *t, int i)
{
    (void)i;
    t->plan = NULL;
}
static void no_tables(struct task *t, int i) { t->tables = i ? shifted(t->tables, 1) : NULL; }
static void raw(struct task *t, int i)
{
    (void)i;
    memset(raw_tables, 0, sizeof raw_tables);
    (void)t;
}
static void no_work(struct task *t, int i) { t->work = i ? shifted(t->work, 1) : NULL; }
static void no_call(struct task *t, int i)
{
    (void)i;
    t->callp = NULL;
}
static void call_size(struct task *t, int i) { t->call.size = i ? 8 : SIZE_MAX; }
static void batch(struct task *t, int i) { t->call.batch = sizes[i]; }
static void q_len(struct task *t, int i) { t->call.q_len = sizes[i]; }
static void k_len(struct task *t, int i) { t->call.k_len = sizes[i]; }
static loci_view *view_of(struct task *t, int i)
{
    return i == 0 ? &t->call.q : i == 1 ? &t->call.k : i == 2 ? &t->call.v : &t->call.o;
}
static void no_data(struct task *t, int i) { view_of(t, i)->data = NULL; }
static void crooked(struct task *t, int i)
{
    view_of(t, i)->data = shifted(view_of(t, i)->data, 1);
}
static void negative(struct task *t, int i)
{
    *view_of(t, i) = (loci_view){ view_of(t, i)->data, 0, 0, -4 };
}
static void giant(struct task *t, int i)
{
    *view_of(t, i) = (loci_view){ view_of(t, i)->data, 1, PTRDIFF_MAX / 2, 4 };
}
static void flat(struct task *t, int i) { t->call.o = (loci_view){ o, N, L * D, i }; }
static void overlap(struct task *t, int i)
{
    t->call.o.data = shifted(view_of(t, i)->data, sizeof(float));
}
static void half_pos(struct task *t, int i)
{
    if (i) t->call.q_pos = far_pos;
    else t->call.k_pos = far_pos;
}
static void half_seg(struct task *t, int i)
{
    if (i) t->call.q_seg = far_pos;
    else t->call.k_seg = far_pos;
}
static void bad_starts(struct task *t, int i)
{
    static int64_t good[] = { 0, 4, L };
    static int64_t bad[][3] = { { 1, 4, L },     { 0, L + 1, L },     { 0, -1, L },
                                { 0, 4, L - 1 }, { INT64_MIN, 0, L }, { 0, 4, INT64_MAX } };
    t->call.q_starts = t->call.k_starts = good;
    t->call.sequences = 2;
    switch (i) {
    case 0:
        t->call.q_starts = NULL;
        break;
    case 1:
        t->call.k_starts = NULL;
        break;
    case 2:
        t->call.q_seg = t->call.k_seg = far_pos;
        break;
    case 3:
        t->call.batch = 2;
        break;
    case 4:
        t->call.sequences = -1;
        break;
    case 5:
        t->call.sequences = PTRDIFF_MAX;
        break;
    case 6:
        t->call.q_starts = t->call.k_starts = NULL;
        break;
    case 7:
        t->call.sequences = 1;
        break;
    default:
        *(i % 2 ? &t->call.q_starts : &t->call.k_starts) = bad[(i - 8) / 2];
    }
}
static void too_far(struct task *t, int i)
{
    for (int n = 0; n < L; n++) far_pos[n] = i == 0 ? n : INT64_MAX - n;
    far_pos[L - 1] = i == 0 ? 1000 : INT64_MIN;
    t->call.q_pos = t->call.k_pos = far_pos;
}
static void nobody(void *user, int n, void (*job)(void *, int), void *arg)
{
    (void)user;
    (void)n;
    (void)job;
    (void)arg;
}
static loci_host host = { .run = nobody };
static void threads(struct task *t, int i)
{
    host.threads = i ? INT_MAX : 0;
    t->call.host = &host;
}
static void no_grad(struct task *t, int i)
{
    (void)i;
    t->gradp = NULL;
}
static void grad_size(struct task *t, int i)
{
    (void)i;
    t->grad.size = 3;
}
static void no_lse(struct task *t, int i)
{
    (void)i;
    t->call.lse = NULL;
}
static void stick(struct task *t, int i)
{
    (void)i;
    t->grad.drem = lse;
}
static void no_states(struct task *t, int i)
{
    (void)i;
    t->call.ae = dout;
}
static void no_ae(struct task *t, int i)
{
    (void)i;
    t->grad.dae = dout;
}
static void grad_view(struct task *t, int i)
{
    loci_view *g = i == 0 ? &t->grad.dq
                 : i == 1 ? &t->grad.dk
                 : i == 2 ? &t->grad.dv
                          : &t->grad.dout;
    *g = (loci_view){ g->data, 0, 0, -1 };
}

static const struct {
    const char *name;
    void (*spoil)(struct task *, int);
    int ways;
    bool backward_only;
} table[] = {
    { "plan NULL", no_plan, 1, false },
    { "tables NULL or crooked", no_tables, 2, false },
    { "tables not prepared", raw, 1, false },
    { "work NULL or crooked", no_work, 2, false },
    { "call NULL", no_call, 1, false },
    { "call.size", call_size, 2, false },
    { "batch", batch, 4, false },
    { "q_len", q_len, 4, false },
    { "k_len", k_len, 4, false },
    { "a view without data", no_data, 4, false },
    { "a crooked pointer", crooked, 4, false },
    { "a negative stride", negative, 4, false },
    { "a stride too large", giant, 4, false },
    { "rows of o that overlap", flat, 4, false },
    { "o over an input", overlap, 3, false },
    { "positions of one side", half_pos, 2, false },
    { "segments of one side", half_seg, 2, false },
    { "starts", bad_starts, 20, false },
    { "positions too far", too_far, 2, false },
    { "threads", threads, 2, false },
    { "grad NULL", no_grad, 1, true },
    { "grad.size", grad_size, 1, true },
    { "lse missing", no_lse, 1, true },
    { "drem of a softmax", stick, 1, true },
    { "ae without states", no_states, 1, false },
    { "dae without states", no_ae, 1, true },
    { "a crooked gradient view", grad_view, 4, true },
};

static loci_plan *plan;
static struct task fresh(void)
{
    struct task t = { .plan = plan };
    t.work = (void *)(((uintptr_t)raw_work + 63) / 64 * 64);
    t.tables = (void *)(((uintptr_t)raw_tables + 63) / 64 * 64);
    if (loci_prepare(plan, 100, NULL, t.tables)) exit(2);
    t.call = (loci_call)LOCI_CALL(.batch = 1, .q_len = L, .k_len = L, .q = { q, 0, 0, 0 },
                                  .k = { k, 0, 0, 0 }, .v = { v, 0, 0, 0 }, .o = { o, 0, 0, 0 },
                                  .lse = lse);
    t.grad = (loci_grad)LOCI_GRAD(.dout = { dout, 0, 0, 0 }, .dq = { dq, 0, 0, 0 },
                                  .dk = { dk, 0, 0, 0 }, .dv = { dv, 0, 0, 0 });
    return t;
}
static bool sentence(const loci_error *e)
{
    const size_t n = strlen(e->text);
    return e->status != LOCI_OK && n > 10 && !strchr(e->text, '\n');
}
static bool untouched(const void *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (((const unsigned char *)p)[i] != 0x5a) return false;
    return true;
}

static void try_one(const char *name, struct task *t, bool backward)
{
    t->call.error = &t->error;
    t->callp = t->callp ? &t->call : NULL;
    memset(o, 0x5a, sizeof o);
    memset(lse, 0x5a, sizeof lse);
    memset(dq, 0x5a, sizeof dq);
    memset(dk, 0x5a, sizeof dk);
    memset(dv, 0x5a, sizeof dv);
    (void)loci_workspace(t->plan, t->callp, backward);
    const loci_status status = backward
                                 ? loci_backward(t->plan, t->tables, t->work, t->callp, t->gradp)
                                 : loci_forward(t->plan, t->tables, t->work, t->callp);
    CHECK_THAT(status != LOCI_OK, "%s: %s", name,
               backward ? "taken by the backward pass" : "taken by the forward pass");
    CHECK_THAT(!t->callp || sentence(&t->error), "%s: no sentence", name);
    CHECK_THAT(untouched(o, sizeof o) && untouched(lse, sizeof lse) && untouched(dq, sizeof dq)
                   && untouched(dk, sizeof dk) && untouched(dv, sizeof dv),
               "%s: something was written", name);
}

static void calls(void)
{
    const int n = COUNT(table);
    for (int a = 0; a < n; a++)
        for (int i = 0; i < table[a].ways; i++)
            for (int b = a; b < n; b++) {
                struct task t = fresh();
                t.callp = &t.call;
                t.gradp = &t.grad;
                table[a].spoil(&t, i);
                if (b != a) table[b].spoil(&t, table[b].ways - 1);
                const bool backward_only = table[a].backward_only && table[b].backward_only;
                const char *name = table[a].name;
                struct task twin = t;
                twin.callp = t.callp ? &twin.call : NULL;
                twin.gradp = t.gradp ? &twin.grad : NULL;
                if (table[a].spoil == overlap || table[b].spoil == overlap || table[a].spoil == flat
                    || table[b].spoil == flat) {
                    /* the backward pass reads o and writes elsewhere */
                    if (a == b) try_one(name, &t, false);
                    continue;
                }
                if (!backward_only) try_one(name, &t, false);
                try_one(name, &twin, true);
            }
}

/* Sentences of loci_prepare_on(), one for each mistake. */
static void prepare_on(void *tables)
{
    loci_plan *learned;
    if (loci_plan_create(&learned, &(loci_desc)LOCI_DESC(.encoding = "t5", .heads = H, .dim = D),
                         NULL))
        exit(2);
    host.threads = 0;
    float *const inside = (float *)tables + 32;
    const struct {
        const loci_host *host;
        const loci_plan *plan;
        ptrdiff_t range;
        const void *tensor;
        void *tables;
        const char *says;
    } wrong[] = {
        { NULL, NULL, 5, q, tables, "plan must not be NULL" },
        { NULL, learned, -1, q, tables, "max_distance -1" },
        { NULL, learned, PTRDIFF_MAX, q, tables, MOST_DISTANCE_TEXT },
        { NULL, learned, 5, q, NULL, "NULL" },
        { NULL, learned, 5, q, (char *)tables + 4, "64 bytes" },
        { NULL, learned, 5, NULL, tables, "table, is missing" },
        { NULL, learned, 5, inside, tables, "overlap" },
        { &host, learned, 5, q, tables, "threads 0" },
    };
    for (int i = 0; i < COUNT(wrong); i++) {
        loci_error e = { 0 };
        CHECK_THAT(loci_prepare_on(wrong[i].host, wrong[i].plan, wrong[i].range, &wrong[i].tensor,
                                   wrong[i].tables, &e)
                           == LOCI_BAD_ARG
                       && sentence(&e) && strstr(e.text, wrong[i].says),
                   "loci_prepare_on: '%s' should say '%s'", e.text, wrong[i].says);
    }
    loci_plan_destroy(learned);
}

/* Functions other than attention, each with each pointer missing. */
static void others(void)
{
    struct task t = fresh();
    const loci_view x = { q, 0, 0, 0 }, y = { o, 0, 0, 0 };
    loci_error e;
    loci_plan *p = (loci_plan *)&e;
    CHECK_THAT(loci_plan_create(NULL, &(loci_desc)LOCI_DESC(.heads = 1, .dim = 1), &e)
                   == LOCI_BAD_ARG,
               "loci_plan_create: no place for the plan");
    CHECK_THAT(loci_plan_create(&p, NULL, &e) == LOCI_BAD_ARG && !p,
               "loci_plan_create: no description");
    CHECK_THAT(loci_plan_create(&p, &(loci_desc)LOCI_DESC(), NULL) == LOCI_BAD_ARG && !p,
               "loci_plan_create: an empty description and no error");
    loci_plan_destroy(NULL);
    CHECK_THAT(!loci_plan_text(NULL) || *loci_plan_text(NULL) == 0, "loci_plan_text: NULL");
    CHECK_THAT(loci_tensors(NULL, NULL, 3) == 0 && loci_tensors(plan, NULL, 0) == 0,
               "loci_tensors: NULL");
    loci_tensor_init(NULL, 0, 0, q);
    loci_tensor_init(plan, 5, 0, q);
    loci_tensor_init(plan, -1, 0, q);
    loci_tensor_init(plan, 0, 0, NULL);
    for (int i = -1; i <= 5; i += 6)
        CHECK_THAT(!loci_tensor_source(plan, i) && !loci_tensor_source(NULL, i)
                       && loci_tensor_low(plan, i) == -INFINITY
                       && loci_tensor_low(NULL, i) == -INFINITY,
                   "loci_tensor_source, loci_tensor_low: %d", i);
    CHECK_THAT(loci_tables_size(NULL, 5) == 0 && loci_tables_size(plan, -1) == 0
                   && loci_tables_size(plan, PTRDIFF_MAX) == 0,
               "loci_tables_size");
    CHECK_THAT(loci_prepare(NULL, 5, NULL, t.tables) && loci_prepare(plan, 5, NULL, NULL)
                   && loci_prepare(plan, -5, NULL, t.tables)
                   && loci_prepare(plan, 5, NULL, (char *)t.tables + 4),
               "loci_prepare");
    prepare_on(t.tables);
    CHECK_THAT(loci_rotate(plan, t.tables, t.work, &t.call, LOCI_QUERY, x, y) == LOCI_BAD_ARG,
               "loci_rotate: without a rotation");
    CHECK_THAT(loci_rotate(plan, t.tables, t.work, NULL, LOCI_QUERY, x, y) == LOCI_BAD_ARG,
               "loci_rotate: call NULL");
    CHECK_THAT(loci_rotate_backward(NULL, t.tables, t.work, &t.call, LOCI_KEY, x, y, x, NULL)
                   == LOCI_BAD_ARG,
               "loci_rotate_backward: plan NULL");
    CHECK_THAT(loci_embed(plan, t.tables, &t.call, x, y) == LOCI_BAD_ARG,
               "loci_embed: without an embedding");
    CHECK_THAT(loci_embed(NULL, NULL, NULL, x, y) == LOCI_BAD_ARG
                   && loci_embed_backward(NULL, NULL, NULL, NULL, x, NULL) == LOCI_BAD_ARG,
               "loci_embed: NULL");
    loci_host h;
    CHECK_THAT(loci_pool_create(NULL, 2) == LOCI_BAD_ARG && loci_pool_create(&h, 0) == LOCI_BAD_ARG
                   && loci_pool_create(&h, INT_MAX) == LOCI_BAD_ARG,
               "loci_pool_create");
    loci_pool_destroy(NULL);
    CHECK_THAT(loci_encodings(NULL) > 0 && loci_isas(NULL, 0) > 0, "lists: NULL");
}

int main(void)
{
    if (loci_plan_create(&plan, &(loci_desc)LOCI_DESC(.heads = H, .dim = D), NULL)) return 2;
    struct task t = fresh();
    CHECK_THAT(loci_workspace(plan, &t.call, 1) <= sizeof raw_work - 64
                   && loci_tables_size(plan, 100) <= sizeof raw_tables - 64,
               "the buffers are large enough");
    CHECK_THAT(!loci_forward(plan, t.tables, t.work, &t.call)
                   && !loci_backward(plan, t.tables, t.work, &t.call, &t.grad),
               "a good call is taken");
    calls();
    others();
    loci_plan_destroy(plan);
    return harness_end();
}
