/* SPDX-License-Identifier: MIT */
/* thread_soak.c -- eight threads on one plan, one set of tables and one pool: forward, backward,
 * weights and, each with a cache of its own, append and decode, of random encodings.  The bits must
 * be those of a single call.  Meant for the thread sanitizer.
 *
 * Runs a few encodings.  With a number as argument, runs for that many minutes (scripts/faults tsan
 * MINUTES). */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "loci/cache.h"
#include "contract/plan.h"
#include "harness.h"
#include "mem.h"
#include "walk.h"

enum { CALLERS = 8, H = 4, L = 130, TURNS = LOCI_SLOW ? 2 : 4, TEXTS = LOCI_EMULATED ? 2 : 12 };

/* ---- One problem ----------------------------------------------------------------------------- */

struct shared {
    const char *text;
    loci_plan *plan, *cached; /* cached NULL: a cache cannot store its keys */
    void *tables, *cached_tables;
    int count, dim;
    size_t size[WALK_TENSORS];
    loci_tensor list[WALK_TENSORS];
    const void *tensor[WALK_TENSORS];
    float *q, *k, *v, *dout;
    double *coord;
    loci_host host;
};
/* The results of a caller, in one block for comparison. */
struct results {
    size_t bytes;
    float *o, *rows, *ae, *dq, *dk, *dv, *weights, *decoded;
    float *all;
    float *dtensor[WALK_TENSORS];
};
struct caller {
    const struct shared *s;
    const struct results *right;
    pthread_t thread;
    int wrong;
};

static size_t numbers_of(const struct shared *s) { return (size_t)H * L * (size_t)s->dim; }

static void open_results(const struct shared *s, struct results *r)
{
    const size_t n = numbers_of(s), pairs = (size_t)H * L * L;
    size_t all = 6 * n + H * L + pairs;
    for (int i = 0; i < s->count; i++) all += s->size[i];
    r->bytes = all * sizeof(float);
    r->all = calloc(all, sizeof(float));
    if (!r->all) exit(2);
    float *at = r->all;
    float **const lists[] = { &r->o, &r->ae, &r->dq, &r->dk, &r->dv, &r->decoded };
    for (int i = 0; i < 6; i++) {
        *lists[i] = at;
        at += n;
    }
    r->rows = at;
    r->weights = at + H * L;
    at += H * L + pairs;
    for (int i = 0; i < s->count; i++) {
        r->dtensor[i] = s->list[i].role == LOCI_FIXED ? NULL : at;
        at += s->size[i];
    }
}

static loci_call call_of(const struct shared *s, struct results *r, const loci_host *host)
{
    loci_call c =
        LOCI_CALL(.batch = 1, .q_len = L, .k_len = L, .q = { s->q, 0, 0, 0 },
                  .k = { s->k, 0, 0, 0 }, .v = { s->v, 0, 0, 0 }, .o = { r->o, 0, 0, 0 },
                  .q_coord = s->coord, .k_coord = s->coord, .tensors = s->tensor, .host = host);
    if (s->plan->weight >= 0) c.rem = r->rows;
    else c.lse = r->rows;
    if (s->plan->states) c.ae = r->ae;
    return c;
}

/* Appends keys in two steps, and computes the rows of the second one. */
static bool decode(const struct shared *s, struct results *r, const loci_host *host)
{
    const size_t bytes = loci_cache_size(s->cached, 1, L);
    void *memory = mem_block(bytes);
    loci_cache *cache;
    loci_call c = call_of(s, r, host);
    c.lse = c.rem = c.ae = NULL;
    c.o.data = r->decoded;
    bool ok = !loci_cache_create(&cache, s->cached, 1, L, 0, memory, NULL);
    c.cache = cache;
    void *work = ok ? mem_block(loci_workspace(s->cached, &c, 0)) : NULL;
    ok = ok && !loci_cache_append(s->cached, s->cached_tables, work, cache, &c)
      && !loci_forward(s->cached, s->cached_tables, work, &c);
    free(work);
    free(memory);
    return ok;
}

static bool compute(const struct shared *s, struct results *r, const loci_host *host)
{
    const loci_call c = call_of(s, r, host);
    const loci_grad g =
        LOCI_GRAD(.dout = { s->dout, 0, 0, 0 }, .dae = s->plan->states ? s->dout : NULL,
                  .dq = { r->dq, 0, 0, 0 }, .dk = { r->dk, 0, 0, 0 }, .dv = { r->dv, 0, 0, 0 },
                  .dtensors = (void *const *)r->dtensor);
    void *work = mem_block(loci_workspace(s->plan, &c, 1));
    const bool ok = !loci_forward(s->plan, s->tables, work, &c)
                 && !loci_backward(s->plan, s->tables, work, &c, &g)
                 && !loci_weights(s->plan, s->tables, work, &c, (loci_view){ r->weights, 0, 0, 0 });
    free(work);
    return ok && (!s->cached || decode(s, r, host));
}

static atomic_long calls;
static void *caller(void *arg)
{
    struct caller *c = arg;
    for (int i = 0; i < TURNS; i++) {
        struct results r;
        open_results(c->s, &r);
        c->wrong += !compute(c->s, &r, &c->s->host) || memcmp(r.all, c->right->all, r.bytes) != 0;
        free(r.all);
        atomic_fetch_add(&calls, 1);
    }
    return NULL;
}

/* ---- All of it ------------------------------------------------------------------------------- */

static float *numbers(size_t n, double size, double from)
{
    float *x = malloc((n + 1) * sizeof *x);
    if (!x) exit(2);
    for (size_t i = 0; i < n; i++) x[i] = (float)(from + size * walk_uniform());
    return x;
}
static void *prepared(const struct shared *s, const loci_plan *plan)
{
    void *tables = mem_block(loci_tables_size(plan, L));
    if (loci_prepare_on(&s->host, plan, L, s->tensor, tables, NULL)) exit(2);
    return tables;
}

static void soak(const char *text, const loci_host *host)
{
    struct shared s = { .text = text, .dim = walk_dim(text, 16), .host = *host };
    struct caller callers[CALLERS];
    struct results right;
    loci_desc d = LOCI_DESC(.encoding = text, .heads = H, .dim = s.dim, .max_len = L);
    loci_error e;
    if (loci_plan_create(&s.plan, &d, &e)) {
        CHECK_FAILED("%s: %s", text, e.text);
        return;
    }
    d.keys_rotated = 1;
    if (loci_plan_create(&s.cached, &d, NULL)) {
        d.keys_rotated = 0;
        if (loci_plan_create(&s.cached, &d, NULL)) s.cached = NULL;
    }
    if (s.cached && !loci_cache_size(s.cached, 1, L)) {
        loci_plan_destroy(s.cached);
        s.cached = NULL;
    }
    s.count = loci_tensors(s.plan, s.list, WALK_TENSORS);
    for (int i = 0; i < s.count; i++) {
        s.size[i] = walk_count(&s.list[i], 1, L, L);
        s.tensor[i] = numbers(s.size[i], 0.1, s.list[i].role == LOCI_INPUT ? -0.2 : 0.3);
    }
    float **const lists[] = { &s.q, &s.k, &s.v, &s.dout };
    for (int i = 0; i < 4; i++) *lists[i] = numbers(numbers_of(&s), 1, 0);
    double coord[4 * L];
    for (int i = 0; i < loci_axes(s.plan) * L; i++) coord[i] = walk_coordinate(100);
    s.coord = loci_axes(s.plan) > 1 ? coord : NULL;
    s.tables = prepared(&s, s.plan);
    s.cached_tables = s.cached ? prepared(&s, s.cached) : NULL;
    open_results(&s, &right);
    if (!compute(&s, &right, NULL)) CHECK_FAILED("%s: a call alone", text);
    for (int i = 0; i < CALLERS; i++) {
        callers[i] = (struct caller){ .s = &s, .right = &right };
        if (pthread_create(&callers[i].thread, NULL, caller, &callers[i])) exit(2);
    }
    for (int i = 0; i < CALLERS; i++) {
        pthread_join(callers[i].thread, NULL);
        CHECK_THAT(!callers[i].wrong, "%s: %d calls of thread %d differ from a call alone", text,
                   callers[i].wrong, i);
    }
    for (int i = 0; i < s.count; i++) free((void *)s.tensor[i]);
    for (int i = 0; i < 4; i++) free(*lists[i]);
    free(s.tables);
    free(s.cached_tables);
    free(right.all);
    loci_plan_destroy(s.plan);
    loci_plan_destroy(s.cached);
}

/* The texts of the walk in a shuffled order, repeatedly. */
int main(int argc, char **argv)
{
    const double minutes = argc > 1 ? atof(argv[1]) : 0;
    struct timespec began, now;
    static char list[400][256];
    int texts = 0, done = 0;
    loci_host host;
    if (loci_pool_create(&host, 3)) return 2;
    for (struct walk_text t = { 0 }; walk_next(&t) && texts < 400;)
        snprintf(list[texts++], sizeof *list, "%s", t.text);
    clock_gettime(CLOCK_MONOTONIC, &began);
    do {
        for (int i = 0; i < (minutes > 0 ? 1 : TEXTS); i++, done++)
            soak(list[(done * 37 + done / texts) % texts], &host);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((double)(now.tv_sec - began.tv_sec) < 60 * minutes);
    loci_pool_destroy(&host);
    printf("%d encodings, %ld turns of eight threads\n", done, (long)calls);
    return harness_end();
}
