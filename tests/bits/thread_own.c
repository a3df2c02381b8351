/* SPDX-License-Identifier: MIT */
/* thread_own.c -- a host that starts threads of its own, in every build.  With LOCI_THREADS=OFF the
 * library's only pool has one thread, and it uses its own locks. */
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "loci/loci.h"
#include "harness.h"

#ifdef LOCI_NO_THREADS
enum { POOLS = 0 };
#else
enum { POOLS = 1 };
#endif

/* ---- Hosts ----------------------------------------------------------------------------------- */

enum { THREADS = 4 };
struct one {
    void (*job)(void *, int);
    void *arg;
    int index;
};
static void *start(void *arg)
{
    const struct one *o = arg;
    o->job(o->arg, o->index);
    return NULL;
}
/* Each job has a thread.  Their number is at most that of the threads that the host promises. */
static void run(void *user, int n, void (*job)(void *arg, int index), void *arg)
{
    pthread_t thread[THREADS];
    struct one one[THREADS];
    for (int from = 0; from < n; from += THREADS) {
        const int now = n - from < THREADS ? n - from : THREADS;
        for (int i = 0; i < now; i++) {
            one[i] = (struct one){ job, arg, from + i };
            if (pthread_create(&thread[i], NULL, start, &one[i])) exit(2);
        }
        for (int i = 0; i < now; i++) pthread_join(thread[i], NULL);
    }
    ++*(int *)user;
}

static void count_job(void *arg, int i) { *(int *)arg += i; }
static void check_pools(void)
{
    loci_host host, before;
    memset(&host, 0x5a, sizeof host);
    before = host;
    const loci_status status = loci_pool_create(&host, 2);
    if (POOLS) {
        CHECK_THAT(!status && host.threads == 2, "a pool of two: status %d", (int)status);
        loci_pool_destroy(&host);
    } else {
        CHECK_THAT(status == LOCI_UNSUPPORTED && !memcmp(&host, &before, sizeof host),
                   "a pool of two without threads: status %d, or a host that changed", (int)status);
    }
    int sum = 0;
    CHECK_THAT(!loci_pool_create(&host, 1) && host.threads == 1, "a pool of one");
    host.run(host.user, 10, count_job, &sum);
    CHECK_THAT(sum == 45, "a pool of one ran other jobs: %d", sum);
    loci_pool_destroy(&host);
    CHECK_THAT(!host.run && !host.user, "destroy left the host standing");
    loci_pool_destroy(&host);
}

/* ---- Attention ------------------------------------------------------------------------------- */

/* Items of one head that add to the same keys, so they wait for each other. */
enum { L = 2500, D = 8, N = L * D };
struct pass {
    double q[N], k[N], v[N], dout[N], o[N], lse[L], dq[N], dk[N], dv[N], dtable[32];
};

static void fill(double *x, unsigned seed)
{
    for (int i = 0; i < N; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = seed / 2147483648.0 - 1;
    }
}
static void *alloc(size_t bytes)
{
    void *buffer = aligned_alloc(64, bytes);
    if (!buffer) exit(2);
    return buffer;
}
/* Forward and backward with t5's biases. */
static void attend(struct pass *p, const loci_host *host)
{
    loci_error e = { 0 };
    loci_plan *plan;
    const loci_desc d =
        LOCI_DESC(.encoding = "t5:bidirectional=0", .heads = 1, .dim = D, .dtype = LOCI_F64);
    if (loci_plan_create(&plan, &d, &e)) {
        CHECK_FAILED("plan: %s", e.text);
        return;
    }
    double table[32];
    loci_tensor_init(plan, 0, 1, table);
    for (int i = 0; i < 32; i++) table[i] += 0.1 * i;
    const void *tensors[] = { table };
    void *dtensors[] = { p->dtable }, *tables = alloc(loci_tables_size(plan, L));
    CHECK_THAT(!loci_prepare(plan, L, tensors, tables), "prepare");
    fill(p->q, 1);
    fill(p->k, 2);
    fill(p->v, 3);
    fill(p->dout, 4);
    const loci_call call =
        LOCI_CALL(.batch = 1, .q_len = L, .k_len = L, .q = { p->q, 0, 0, 0 },
                  .k = { p->k, 0, 0, 0 }, .v = { p->v, 0, 0, 0 }, .o = { p->o, 0, 0, 0 },
                  .lse = p->lse, .host = host, .error = &e);
    const loci_grad grad =
        LOCI_GRAD(.dout = { p->dout, 0, 0, 0 }, .dq = { p->dq, 0, 0, 0 }, .dk = { p->dk, 0, 0, 0 },
                  .dv = { p->dv, 0, 0, 0 }, .dtensors = dtensors);
    void *work = alloc(loci_workspace(plan, &call, 1));
    CHECK_THAT(!loci_forward(plan, tables, work, &call)
                   && !loci_backward(plan, tables, work, &call, &grad),
               "%s", e.text);
    free(work);
    free(tables);
    loci_plan_destroy(plan);
}

int main(void)
{
    check_pools();
    static struct pass alone, many;
    int runs = 0;
    attend(&alone, NULL);
    attend(&many, &(loci_host){ .run = run, .user = &runs, .threads = THREADS });
    CHECK_THAT(runs > 0, "the host was never asked");
    CHECK_THAT(!memcmp(&alone, &many, sizeof alone), "threads of the host change bits");
    return harness_end();
}
