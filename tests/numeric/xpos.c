/* SPDX-License-Identifier: MIT */
/* xpos.c -- fading by distance: far positions, keys from a cache, the limit to rope, invalid
 * gaps. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "contract/plan.h"
#include "harness.h"
#include "mem.h"
#include "walk.h"

enum { H = 2, D = 16, L = 300, N = H * L * D };

struct task {
    float q[N], k[N], v[N], o[N], lse[H * L], dout[N], dq[N], dk[N], dv[N];
    int64_t pos[L];
};

static loci_status run(struct task *t, const char *encoding, const char *isa, bool cache,
                       ptrdiff_t rows)
{
    loci_plan *plan;
    loci_error e;
    if (loci_plan_create(&plan,
                         &(loci_desc)LOCI_DESC(.encoding = encoding, .heads = H, .dim = D,
                                               .isa = isa, .keys_rotated = cache),
                         &e)) {
        printf("%s: %s\n", encoding, e.text);
        exit(1);
    }
    const ptrdiff_t from = L - rows;
    const loci_call call =
        LOCI_CALL(.batch = 1, .q_len = rows, .k_len = L, .q = { t->q + from * D, 0, L * D, D },
                  .k = { t->k, 0, 0, 0 }, .v = { t->v, 0, 0, 0 },
                  .o = { t->o + from * D, 0, L * D, D }, .lse = t->lse, .q_pos = t->pos + from,
                  .k_pos = t->pos, .error = &e);
    const loci_grad grad = LOCI_GRAD(.dout = { t->dout, 0, 0, 0 }, .dq = { t->dq, 0, 0, 0 },
                                     .dk = { t->dk, 0, 0, 0 }, .dv = { t->dv, 0, 0, 0 });
    void *tables = mem_block(loci_tables_size(plan, 1000000)),
         *work = mem_block(loci_workspace(plan, &call, 1));
    loci_status status = loci_prepare(plan, 1000000, NULL, tables);
    if (!status) status = loci_forward(plan, tables, work, &call);
    if (!status && rows == L) status = loci_backward(plan, tables, work, &call, &grad);
    free(tables);
    free(work);
    loci_plan_destroy(plan);
    return status;
}

static struct task *fresh(int64_t from)
{
    struct task *t = mem_block(sizeof *t);
    walk_restart(11);
    for (int i = 0; i < N; i++) {
        t->q[i] = (float)walk_uniform();
        t->k[i] = (float)walk_uniform();
        t->v[i] = (float)walk_uniform();
        t->dout[i] = (float)walk_uniform();
    }
    for (int i = 0; i < L; i++) t->pos[i] = from + i;
    return t;
}
static bool near(const float *a, const float *b, float within)
{
    for (int i = 0; i < N; i++)
        if (!(fabsf(a[i] - b[i]) <= within)) return false;
    return true;
}

/* Keys in the form of a cache. */
static void turn_keys(struct task *t, const char *encoding, const char *isa)
{
    loci_plan *plan;
    if (loci_plan_create(&plan,
                         &(loci_desc)LOCI_DESC(.encoding = encoding, .heads = H, .dim = D,
                                               .isa = isa),
                         NULL))
        exit(1);
    const loci_call call = LOCI_CALL(.batch = 1, .k_len = L, .q_pos = t->pos, .k_pos = t->pos);
    void *tables = mem_block(loci_tables_size(plan, L)),
         *work = mem_block(loci_workspace(plan, &call, 1));
    const loci_view k = { t->k, 0, 0, 0 };
    if (loci_prepare(plan, L, NULL, tables)
        || loci_rotate(plan, tables, work, &call, LOCI_CACHE, k, k))
        exit(1);
    free(tables);
    free(work);
    loci_plan_destroy(plan);
}

static void laws(const char *isa)
{
    struct task *first = fresh(0), *far = fresh(10000000), *cache = fresh(0), *rope = fresh(0);
    CHECK_THAT(!run(first, "xpos", isa, false, L) && !run(far, "xpos", isa, false, L),
               "%s: any positions", isa);
    CHECK_THAT(near(first->o, far->o, 1e-5f) && near(first->dq, far->dq, 1e-5f)
                   && near(first->dk, far->dk, 1e-5f),
               "%s: only differences of positions count, also at 10^7", isa);

    turn_keys(cache, "xpos", isa);
    CHECK_THAT(!run(cache, "xpos", isa, true, L) && !memcmp(cache->o, first->o, sizeof cache->o),
               "%s: keys from a cache give the same bits", isa);
    CHECK_THAT(!memcmp(cache->dq, first->dq, sizeof cache->dq),
               "%s: and the same gradients of queries", isa);
    memset(cache->o, 0, sizeof cache->o);
    CHECK_THAT(!run(cache, "xpos", isa, true, 1)
                   && !memcmp(cache->o + (L - 1) * D, first->o + (L - 1) * D, D * sizeof(float)),
               "%s: and the same last row alone", isa);

    CHECK_THAT(!run(first, "xpos:gamma=1e12", isa, false, L)
                   && !run(rope, "rope:pairing=interleaved", isa, false, L)
                   && near(first->o, rope->o, 1e-5f) && near(first->dk, rope->dk, 1e-5f),
               "%s: without fading it is rope", isa);

    far->pos[L - 1] += 100000;
    CHECK_THAT(run(far, "xpos", isa, false, L) == LOCI_UNSUPPORTED,
               "%s: gaps that a block cannot hold are refused", isa);
    free(first);
    free(far);
    free(cache);
    free(rope);
}

int main(void)
{
    const char *isas[8];
    const int count = loci_isas(isas, 8);
    for (int i = 0; i < count; i++) laws(isas[i]);
    return harness_end();
}
