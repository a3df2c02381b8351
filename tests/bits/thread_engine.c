/* SPDX-License-Identifier: MIT */
/* thread_engine.c -- one plan and one set of tables, many threads: inside a call, and many calls at
 * once.  Meant for the thread sanitizer.  The results must be the same each time. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "contract/plan.h"
#include "harness.h"
#include "walk.h"

enum { CALLERS = 3, H = 4, G = 2, L = 200, D = 24, N = H * L * D };

/* Shared by all callers, read only. */
struct shared {
    const loci_plan *plan;
    const void *tables, *const *tensors;
    const size_t *size;
    int count;
    const float *q, *k, *v, *dout;
    const double *coord;
    const loci_host *host;
    bool stick, states;
};
struct caller {
    const struct shared *s;
    pthread_t thread;
    loci_error error;
    loci_status status;
    float o[N], rows[H * L], ae[N], dq[N], dk[N], dv[N], *dtensor[WALK_TENSORS];
};

static void *call(void *arg)
{
    struct caller *c = arg;
    const struct shared *s = c->s;
    loci_call a = LOCI_CALL(.batch = 1, .q_len = L, .k_len = L, .q = { (void *)s->q, 0, 0, 0 },
                            .k = { (void *)s->k, 0, 0, 0 }, .v = { (void *)s->v, 0, 0, 0 },
                            .o = { c->o, 0, 0, 0 }, .q_coord = s->coord, .k_coord = s->coord,
                            .tensors = s->tensors, .host = s->host, .error = &c->error);
    if (s->stick) a.rem = c->rows;
    else a.lse = c->rows;
    if (s->states) a.ae = c->ae;
    const loci_grad g =
        LOCI_GRAD(.dout = { (void *)s->dout, 0, 0, 0 }, .dae = s->states ? s->dout : NULL,
                  .dq = { c->dq, 0, 0, 0 }, .dk = { c->dk, 0, 0, 0 }, .dv = { c->dv, 0, 0, 0 },
                  .dtensors = (void *const *)c->dtensor);
    void *work = aligned_alloc(64, loci_workspace(s->plan, &a, 1));
    if (!work) exit(2);
    c->status = loci_forward(s->plan, s->tables, work, &a);
    if (!c->status) c->status = loci_backward(s->plan, s->tables, work, &a, &g);
    free(work);
    return NULL;
}

static float *numbers(size_t n, double size)
{
    float *x = malloc(n * sizeof *x);
    if (!x) exit(2);
    for (size_t i = 0; i < n; i++) x[i] = (float)(size * walk_uniform());
    return x;
}
static bool equal(const struct caller *a, const struct caller *b)
{
    bool same = !memcmp(a->o, b->o, sizeof a->o) && !memcmp(a->rows, b->rows, sizeof a->rows)
             && !memcmp(a->ae, b->ae, sizeof a->ae) && !memcmp(a->dq, b->dq, sizeof a->dq)
             && !memcmp(a->dk, b->dk, sizeof(float) * G * L * D)
             && !memcmp(a->dv, b->dv, sizeof(float) * G * L * D);
    for (int i = 0; i < a->s->count; i++)
        if (a->dtensor[i])
            same &= !memcmp(a->dtensor[i], b->dtensor[i], a->s->size[i] * sizeof(float));
    return same;
}

static void encoding(const char *text, const loci_host *host)
{
    loci_error e = { 0 };
    loci_plan *plan;
    if (loci_plan_create(&plan,
                         &(loci_desc)LOCI_DESC(.encoding = text, .heads = H, .kv_heads = G,
                                               .dim = D),
                         &e)) {
        CHECK_FAILED("%s: %s", text, e.text);
        return;
    }
    loci_tensor list[WALK_TENSORS];
    size_t size[WALK_TENSORS];
    float *tensor[WALK_TENSORS] = { 0 };
    struct shared s = { .plan = plan,
                        .count = loci_tensors(plan, list, WALK_TENSORS),
                        .size = size,
                        .host = host,
                        .stick = plan->weight >= 0,
                        .states = plan->states };
    static struct caller callers[CALLERS + 1];
    memset(callers, 0, sizeof callers);
    for (int i = 0; i < s.count; i++) {
        size[i] = walk_count(&list[i], 1, L, L);
        tensor[i] = numbers(size[i], 0.1);
        for (size_t n = 0; n < size[i]; n++)
            tensor[i][n] += list[i].role == LOCI_INPUT ? -0.2f : 0.3f;
        for (int n = 0; n <= CALLERS && list[i].role != LOCI_FIXED; n++)
            callers[n].dtensor[i] = numbers(size[i], 0);
    }
    const size_t bytes = loci_tables_size(plan, L);
    void *tables = aligned_alloc(64, bytes), *shared_tables = aligned_alloc(64, bytes);
    if (!tables || !shared_tables || loci_prepare(plan, L, (const void *const *)tensor, tables))
        exit(2);
    CHECK_THAT(!loci_prepare_on(host, plan, L, (const void *const *)tensor, shared_tables, &e),
               "%s: %s", text, e.text);
    s.tables = shared_tables;
    s.tensors = (const void *const *)tensor;
    const int axes = loci_axes(plan);
    double coord[4 * L];
    for (int i = 0; i < axes * L; i++) coord[i] = walk_coordinate(100);
    s.coord = axes > 1 ? coord : NULL;
    float *x[4];
    for (int i = 0; i < 4; i++) x[i] = numbers(N, 1);
    s.q = x[0];
    s.k = x[1];
    s.v = x[2];
    s.dout = x[3];

    struct shared alone = s;
    alone.host = NULL;
    alone.tables = tables;
    callers[CALLERS].s = &alone;
    call(&callers[CALLERS]);
    for (int i = 0; i < CALLERS; i++) {
        callers[i].s = &s;
        if (pthread_create(&callers[i].thread, NULL, call, &callers[i])) exit(2);
    }
    for (int i = 0; i < CALLERS; i++) {
        pthread_join(callers[i].thread, NULL);
        CHECK_THAT(!callers[i].status && equal(&callers[i], &callers[CALLERS]),
                   "%s: caller %d differs from a call alone %s", text, i, callers[i].error.text);
    }
    for (int i = 0; i < s.count; i++) {
        free(tensor[i]);
        for (int n = 0; n <= CALLERS; n++) free(callers[n].dtensor[i]);
    }
    for (int i = 0; i < 4; i++) free(x[i]);
    free(tables);
    free(shared_tables);
    loci_plan_destroy(plan);
}

int main(void)
{
    loci_host host;
    if (loci_pool_create(&host, 3)) return 2;
    for (struct walk_text t = { 0 }; walk_next(&t);)
        if (t.example || !LOCI_SLOW) encoding(t.text, &host);
    loci_pool_destroy(&host);
    return harness_end();
}
