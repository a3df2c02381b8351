/* SPDX-License-Identifier: MIT */
/* thread_turns.c -- sums of many threads that are added in order: util/ordered_sum.h and
 * util/pipeline.h alone, and backward passes, on hosts of every kind: fast, slow, cancelled or not.
 * Also meant for the thread sanitizer. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "util/ordered_sum.h"
#include "util/pipeline.h"
#include "util/error.h"
#include "harness.h"
#include "walk.h"

#ifndef LOCI_SLOW
#define LOCI_SLOW 0
#endif
#ifndef LOCI_EMULATED
#define LOCI_EMULATED 0
#endif
enum { FEW_RUNS = LOCI_SLOW || LOCI_EMULATED };

static void pause_for(int microseconds)
{
    nanosleep(&(struct timespec){ .tv_nsec = 1000L * microseconds }, NULL);
}

/* ---- Hosts ----------------------------------------------------------------------------------- */

enum order { POOL, ONE_BY_ONE, BACKWARDS };
static const struct kind {
    const char *name;
    enum order order;
    int threads, real;
} kinds[] = {
    { "1 thread", POOL, 1, 1 },         { "2 threads", POOL, 2, 2 },
    { "3 threads", POOL, 3, 3 },        { "4 threads", POOL, 4, 4 },
    { "5 threads", POOL, 5, 5 },        { "5 jobs on 2 threads", POOL, 5, 2 },
    { "one by one", ONE_BY_ONE, 4, 1 }, { "backwards", BACKWARDS, 4, 1 },
};

/* A host whose job number `slow` pauses at every query.  From query number `patience` on, all
 * queries report that the host has cancelled. */
struct host {
    loci_host host, pool;
    enum order order;
    int slow, patience;
    atomic_int asked;
};
struct jobs {
    void (*job)(void *, int);
    void *arg;
    int n;
    bool backwards;
};
static _Thread_local int job_number;
static void one_job(void *arg, int i)
{
    const struct jobs *a = arg;
    job_number = a->backwards ? a->n - 1 - i : i;
    a->job(a->arg, job_number);
}
static void run(void *user, int n, void (*job)(void *, int), void *arg)
{
    struct host *h = user;
    struct jobs a = { .job = job, .arg = arg, .n = n, .backwards = h->order == BACKWARDS };
    if (h->order == POOL) h->pool.run(h->pool.user, n, one_job, &a);
    else
        for (int i = 0; i < n; i++) one_job(&a, i);
}
static int cancelled(void *user)
{
    struct host *h = user;
    if (job_number == h->slow) pause_for(300);
    return atomic_fetch_add(&h->asked, 1) >= h->patience;
}
static void open_host(struct host *h, const struct kind *kind)
{
    *h = (struct host){ .order = kind->order, .slow = -1, .patience = 1 << 30 };
    if (loci_pool_create(&h->pool, kind->real)) exit(2);
    h->host =
        (loci_host){ .run = run, .cancelled = cancelled, .user = h, .threads = kind->threads };
}

/* ---- Ordered sums alone ---------------------------------------------------------------------- */

enum { PLACES = 3, ITEMS = 60, CHUNKS = 4 };

struct numbers {
    struct ordered_item item;
    int pause;
};
struct field {
    struct ordered_sum ordered_sum;
    struct numbers of[ITEMS];
    struct {
        ptrdiff_t item, chunk;
    } block[MOST_BLOCKS]; /* sums of that item and chunk */
    /* the item that was added last, and the count */
    ptrdiff_t last[PLACES][CHUNKS], last_shared;
    int added[PLACES][CHUNKS], shared;
    /* items with all chunks summed, and the last one added */
    atomic_int summed, ended;
    int stop_at; /* an item that stops all while others wait for it */
};
static struct ordered_item find(void *arg, ptrdiff_t i)
{
    return ((struct field *)arg)->of[i].item;
}
/* Additions to one place must not overlap, so `last` needs no lock.  The sanitizer checks this. */
static void add(void *arg, int block, ptrdiff_t item, ptrdiff_t chunk, bool shared)
{
    struct field *f = arg;
    const ptrdiff_t place = f->of[item].item.place;
    ptrdiff_t *last = shared ? &f->last_shared : &f->last[place][chunk];
    const bool right = f->block[block].item == item && f->block[block].chunk == chunk
                    && *last < item && (!shared || chunk == f->of[item].item.last);
    *last = item;
    if (shared) f->shared++;
    else f->added[place][chunk]++;
    pause_for(20);
    if (!shared && chunk == f->of[item].item.last) f->ended++;
    CHECK_THAT(right, "item %td, chunk %td: added out of turn or not as it was summed", item,
               chunk);
}
static void job(void *arg, int index)
{
    struct field *f = arg;
    int block = index;
    for (ptrdiff_t i; block >= 0 && (i = loci_ordered_sum_next(&f->ordered_sum, block)) >= 0;) {
        const struct ordered_item item = f->of[i].item;
        for (ptrdiff_t k = item.first; k <= item.last && block >= 0; k++) {
            f->block[block].item = f->block[block].chunk = -1;
            if (f->of[i].pause) pause_for(f->of[i].pause);
            if (i == f->stop_at) {
                /* the other jobs have summed an item each, and have no block left */
                const int others = f->ordered_sum.blocks - 1;
                const ptrdiff_t most = f->ordered_sum.items - i - 1;
                while (f->ended < i || f->summed < i + (others < most ? others : most))
                    pause_for(10);
                pause_for(100);
                loci_ordered_sum_stop(&f->ordered_sum);
                return;
            }
            f->block[block].item = i;
            f->block[block].chunk = k;
            if (k == item.last) f->summed++;
            block = loci_ordered_sum_submit(&f->ordered_sum, block);
        }
    }
}
static void open_field(struct field *f, int items, int jobs, int spare, bool shares)
{
    memset(f, 0, sizeof *f);
    f->stop_at = -1;
    f->last_shared = -1;
    for (int p = 0; p < PLACES; p++)
        for (int k = 0; k < CHUNKS; k++) f->last[p][k] = -1;
    f->ordered_sum.find = find;
    f->ordered_sum.add = add;
    f->ordered_sum.arg = f;
    f->ordered_sum.items = items;
    f->ordered_sum.blocks = jobs + spare;
    f->ordered_sum.shares = shares;
    loci_ordered_sum_open(&f->ordered_sum, jobs);
}

/* Items of several places, chunks and costs, on every host: each is added once, in order. */
static void check_order(int seed)
{
    static struct field f;
    walk_restart(seed);
    for (int h = 0; h < COUNT(kinds); h++) {
        struct host host;
        open_host(&host, &kinds[h]);
        const int jobs = kinds[h].threads;
        open_field(&f, ITEMS, jobs, seed % 2 ? spare_blocks(jobs) : 0, seed % 3);
        int chunks = 0, added = 0;
        for (int i = 0; i < ITEMS; i++) {
            struct ordered_item *item = &f.of[i].item;
            const int a = (int)(CHUNKS * (1 + walk_uniform()) / 2) % CHUNKS,
                      b = (int)(CHUNKS * (1 + walk_uniform()) / 2) % CHUNKS;
            *item = (struct ordered_item){ i % PLACES, a < b ? a : b, a < b ? b : a };
            f.of[i].pause = walk_uniform() < -0.5 ? 400 : 20;
            chunks += 1 + (int)(item->last - item->first);
        }
        host.host.run(host.host.user, jobs, job, &f);
        for (int p = 0; p < PLACES; p++)
            for (int k = 0; k < CHUNKS; k++) added += f.added[p][k];
        CHECK_THAT(added == chunks && f.shared == (f.ordered_sum.shares ? ITEMS : 0)
                       && !f.ordered_sum.stop,
                   "%s, seed %d: %d of %d chunks were added, %d items joined", kinds[h].name, seed,
                   added, chunks, f.shared);
        loci_ordered_sum_close(&f.ordered_sum);
        loci_pool_destroy(&host.pool);
    }
}

/* A job whose block must wait continues: the first item ends only when all others are summed. */
static void last_of_all(void *arg, int index)
{
    struct field *f = arg;
    int block = index;
    for (ptrdiff_t i; block >= 0 && (i = loci_ordered_sum_next(&f->ordered_sum, block)) >= 0;) {
        f->block[block].item = i;
        f->block[block].chunk = 0;
        for (int n = 0; i == 0 && f->summed < (int)f->ordered_sum.items - 1 && n < 200000; n++)
            pause_for(50);
        CHECK_THAT(i || f->summed == (int)f->ordered_sum.items - 1,
                   "a job waits that has a spare block");
        f->summed++;
        block = loci_ordered_sum_submit(&f->ordered_sum, block);
    }
}
static void check_spare(void)
{
    static struct field f;
    struct host host;
    open_host(&host, &kinds[1]);
    /* the second job leaves two blocks behind, and ends with a third one that no job waits for */
    open_field(&f, 4, 2, 2, true);
    host.host.run(host.host.user, 2, last_of_all, &f);
    CHECK_THAT(f.added[0][0] == 4 && f.shared == 4 && f.last_shared == 3,
               "blocks that were left behind were not added: %d, %d", f.added[0][0], f.shared);
    loci_ordered_sum_close(&f.ordered_sum);
    loci_pool_destroy(&host.pool);
}

/* An item stops all while all other jobs wait for it.  They end, and neither it nor any later item
 * is added. */
static void check_stop(void)
{
    static struct field f;
    enum { FEW = 12 };
    for (int i = 0; i < FEW; i++) {
        struct host host;
        open_host(&host, &kinds[4]);
        open_field(&f, FEW, 5, i % 3, false);
        f.stop_at = i;
        host.host.run(host.host.user, 5, job, &f);
        CHECK_THAT(f.ordered_sum.stop && f.added[0][0] == i, "stopped at item %d: %d were added", i,
                   f.added[0][0]);
        loci_ordered_sum_close(&f.ordered_sum);
        loci_pool_destroy(&host.pool);
    }
}

/* ---- Pipelines alone ------------------------------------------------------------------------- */

enum { UNITS = 40, STEPS = 6, OWNED = 5 };

/* Items that jobs own, one after the other.  Unit u leaves out the first u % 3 stages. */
struct line {
    struct pipelines all;
    struct owned {
        struct pipeline pipeline; /* the first member */
        ptrdiff_t units;
        /* units whose adding has begun and ended, and the last one, by stage; none of them needs
         * a lock */
        ptrdiff_t begun[STEPS + 1], ended[STEPS + 1], last[STEPS + 1];
        atomic_int helped; /* units that other jobs drew */
    } item[OWNED];
    atomic_int next;
    int stop_item, stop_unit; /* or -1 */
    bool slow_owner;          /* owners begin late, so that helpers have to wait for pipelines */
};
/* Additions to one stage must not overlap, and are in the order of the units. */
static void enter_stage(struct owned *o, ptrdiff_t unit, int stage)
{
    const bool right = o->begun[stage] == o->ended[stage] && o->last[stage] < unit;
    o->begun[stage]++;
    o->last[stage] = unit;
    if ((unit + stage) % 11 == 0) pause_for(20);
    o->ended[stage]++;
    CHECK_THAT(right, "unit %td entered stage %d out of turn", unit, stage);
}
static bool run_unit(struct line *l, struct owned *o, ptrdiff_t unit)
{
    for (int stage = (int)(unit % 3); stage < STEPS; stage++) {
        if (!loci_pipeline_wait(&l->all, &o->pipeline, unit, stage)) return false;
        enter_stage(o, unit, stage);
        if (o == &l->item[l->stop_item < 0 ? 0 : l->stop_item] && unit == l->stop_unit) {
            pause_for(300); /* others wait by now */
            loci_pipelines_stop(&l->all);
            return false;
        }
        loci_pipeline_pass(&l->all, &o->pipeline, unit, stage);
    }
    if (!loci_pipeline_wait(&l->all, &o->pipeline, unit, LAST_STAGE)) return false;
    enter_stage(o, unit, STEPS);
    loci_pipeline_pass(&l->all, &o->pipeline, unit, LAST_STAGE);
    return true;
}
static void line_job(void *arg, int index)
{
    struct line *l = arg;
    ptrdiff_t unit;
    (void)index;
    loci_pipelines_enter(&l->all);
    for (int i; !atomic_load(&l->all.stop) && (i = atomic_fetch_add(&l->next, 1)) < OWNED;) {
        struct owned *o = &l->item[i];
        if (l->slow_owner) pause_for(400);
        loci_pipeline_begin(&l->all, &o->pipeline, o->units);
        while ((unit = loci_pipeline_next(&o->pipeline)) >= 0)
            if (!run_unit(l, o, unit)) break;
        loci_pipeline_end(&l->all, &o->pipeline);
    }
    loci_pipelines_retire(&l->all);
    for (struct pipeline *p; (p = loci_pipeline_join(&l->all));) {
        struct owned *o = (struct owned *)p;
        while ((unit = loci_pipeline_next(p)) >= 0) {
            atomic_fetch_add(&o->helped, 1);
            if (!run_unit(l, o, unit)) break;
        }
        loci_pipeline_leave(&l->all, p);
    }
}
static void run_line(struct line *l, const struct kind *kind, int seed, int stop_unit)
{
    struct host host;
    open_host(&host, kind);
    memset(l, 0, sizeof *l);
    l->stop_unit = stop_unit;
    l->stop_item = stop_unit < 0 ? -1 : seed % OWNED;
    l->slow_owner = seed % 2;
    for (int i = 0; i < OWNED; i++) {
        l->item[i].units = i == (seed + 1) % OWNED ? 1 + seed % 4 : UNITS;
        for (int k = 0; k <= STEPS; k++) l->item[i].last[k] = -1;
    }
    loci_pipelines_open(&l->all);
    host.host.run(host.host.user, kind->threads, line_job, l);
    loci_pipelines_close(&l->all);
    loci_pool_destroy(&host.pool);
}
/* Every unit passes its stages once, in turn, whichever jobs help. */
static void check_pipelines(int seed)
{
    static struct line l;
    for (int h = 0; h < COUNT(kinds); h++) {
        run_line(&l, &kinds[h], seed, -1);
        for (int i = 0; i < OWNED; i++) {
            const struct owned *o = &l.item[i];
            bool whole = true;
            for (int k = 0; k <= STEPS; k++) {
                ptrdiff_t units = 0;
                for (ptrdiff_t u = 0; u < o->units; u++) units += u % 3 <= k;
                whole &= o->ended[k] == units;
            }
            CHECK_THAT(whole, "%s, seed %d: item %d lacks units", kinds[h].name, seed, i);
            CHECK_THAT(kinds[h].real > 1 || !o->helped, "%s: a job that began too late helped",
                       kinds[h].name);
        }
    }
}
/* A unit stops all while others wait for it, for an item, or for helpers.  All jobs end, and no
 * later unit has entered its stage. */
static void check_stopped_pipelines(void)
{
    static struct line l;
    for (int seed = 0; seed < 8; seed++) {
        const int unit = seed * 5;
        run_line(&l, &kinds[4], seed, unit);
        const struct owned *o = &l.item[l.stop_item];
        CHECK_THAT(l.all.stop || o->units <= unit, "unit %d did not stop the pipelines", unit);
        CHECK_THAT(o->ended[STEPS] <= unit, "unit %d stopped all, but %td have passed", unit,
                   o->ended[STEPS]);
    }
}

/* ---- The backward pass ----------------------------------------------------------------------- */

/* Five items of one head, or of two heads that share items, and two chunks of keys. */
enum { L = 4400, D = 8, MOST_HEADS = 2, N = MOST_HEADS * L * D };

struct results {
    float dq[N], dk[N], dv[N], *dtensor[WALK_TENSORS];
};
struct task {
    loci_plan *plan;
    void *tables;
    int heads, count;
    loci_tensor list[WALK_TENSORS];
    float q[N], k[N], v[N], dout[N], o[N], rows[MOST_HEADS * L], *tensor[WALK_TENSORS];
    size_t size[WALK_TENSORS];
    int64_t *pos; /* of rows and keys; NULL: 0, 1, .. */
};

static float *numbers(size_t n, double size, double from)
{
    float *x = malloc(n * sizeof *x);
    if (!x) exit(2);
    for (size_t i = 0; i < n; i++) x[i] = (float)(from + size * walk_uniform());
    return x;
}
static void fill(float *x)
{
    for (int i = 0; i < N; i++) x[i] = (float)walk_uniform();
}

static loci_status backward(const struct task *t, const loci_host *host, struct results *r)
{
    loci_call c = LOCI_CALL(.batch = 1, .q_len = L, .k_len = L, .q = { (void *)t->q, 0, 0, 0 },
                            .k = { (void *)t->k, 0, 0, 0 }, .v = { (void *)t->v, 0, 0, 0 },
                            .o = { (void *)t->o, 0, 0, 0 }, .lse = (void *)t->rows,
                            .tensors = (const void *const *)t->tensor, .q_pos = t->pos,
                            .k_pos = t->pos, .host = host);
    const loci_grad g = LOCI_GRAD(.dout = { (void *)t->dout, 0, 0, 0 }, .dq = { r->dq, 0, 0, 0 },
                                  .dk = { r->dk, 0, 0, 0 }, .dv = { r->dv, 0, 0, 0 },
                                  .dtensors = (void *const *)r->dtensor);
    c.work_bytes = loci_workspace(t->plan, &c, 1);
    void *work = aligned_alloc(64, c.work_bytes);
    if (!work) exit(2);
    loci_status status = LOCI_OK;
    if (!host) status = loci_forward(t->plan, t->tables, work, &c);
    if (!status) status = loci_backward(t->plan, t->tables, work, &c, &g);
    free(work);
    return status;
}
static void open_results(const struct task *t, struct results *r)
{
    for (int i = 0; i < t->count; i++)
        r->dtensor[i] = t->list[i].role == LOCI_FIXED ? NULL : numbers(t->size[i], 0, 7);
}
static void free_results(const struct task *t, struct results *r)
{
    for (int i = 0; i < t->count; i++) free(r->dtensor[i]);
}
static bool equal(const struct task *t, const struct results *a, const struct results *b)
{
    const size_t bytes = sizeof(float) * (size_t)(t->heads * L * D);
    bool same = !memcmp(a->dq, b->dq, bytes) && !memcmp(a->dk, b->dk, bytes)
             && !memcmp(a->dv, b->dv, bytes);
    for (int i = 0; i < t->count; i++)
        if (a->dtensor[i])
            same &= !memcmp(a->dtensor[i], b->dtensor[i], t->size[i] * sizeof(float));
    return same;
}

/* Cancelled after some queries, on a pool whose first job is slow, so that others wait. */
static void check_cancelled(const struct task *t, const char *text, int asked)
{
    static struct results r;
    struct host host;
    open_results(t, &r);
    open_host(&host, &kinds[4]);
    for (int n = 0; n < asked; n += LOCI_SLOW ? 97 : 9) {
        host.slow = 0;
        host.patience = n;
        atomic_store(&host.asked, 0);
        CHECK_THAT(backward(t, &host.host, &r) == LOCI_CANCELLED,
                   "%s: cancelled at question %d of %d, but ran on", text, n, asked);
    }
    loci_pool_destroy(&host.pool);
    free_results(t, &r);
}
static void check_hosts(const char *text, int heads, int window, int64_t *pos)
{
    static struct task t;
    static struct results alone, r;
    memset(&t, 0, sizeof t);
    t.pos = pos;
    t.heads = heads;
    loci_error e = { 0 };
    if (loci_plan_create(&t.plan,
                         &(loci_desc)LOCI_DESC(.encoding = text, .heads = heads, .dim = D,
                                               .window_left = window),
                         &e)) {
        CHECK_FAILED("%s: %s", text, e.text);
        return;
    }
    t.count = loci_tensors(t.plan, t.list, WALK_TENSORS);
    for (int i = 0; i < t.count; i++) {
        t.size[i] = walk_count(&t.list[i], 1, L, L);
        t.tensor[i] = numbers(t.size[i], 0.1, t.list[i].role == LOCI_INPUT ? -0.2 : 0.3);
    }
    t.tables = aligned_alloc(64, loci_tables_size(t.plan, L));
    if (!t.tables || loci_prepare(t.plan, L, (const void *const *)t.tensor, t.tables)) exit(2);
    fill(t.q);
    fill(t.k);
    fill(t.v);
    fill(t.dout);
    open_results(&t, &alone);
    open_results(&t, &r);
    CHECK_THAT(!backward(&t, NULL, &alone), "%s: alone", text);
    int asked = 0;
    for (int h = 0; h < COUNT(kinds); h += LOCI_EMULATED ? 3 : 1)
        for (int slow = -1; slow < (FEW_RUNS ? 1 : 2); slow++) {
            struct host host;
            open_host(&host, &kinds[h]);
            host.slow = slow;
            memset(r.dq, 0, sizeof r.dq);
            memset(r.dk, 0, sizeof r.dk);
            CHECK_THAT(!backward(&t, &host.host, &r) && equal(&t, &r, &alone),
                       "%s, %s, job %d is slow: differs from a call alone", text, kinds[h].name,
                       slow);
            asked = host.asked;
            loci_pool_destroy(&host.pool);
        }
    check_cancelled(&t, text, asked);
    free_results(&t, &alone);
    free_results(&t, &r);
    for (int i = 0; i < t.count; i++) free(t.tensor[i]);
    free(t.tables);
    loci_plan_destroy(t.plan);
}

int main(void)
{
    for (int seed = 0; seed < 6; seed++) check_order(seed);
    check_spare();
    check_stop();
    for (int seed = 0; seed < 6; seed++) check_pipelines(seed);
    check_stopped_pipelines();
    /* nothing learned; sums by head, by key, with a state of rows, of heads that mix */
    check_hosts("nope", 1, FEW_RUNS ? 500 : 0, NULL);
    check_hosts("t5", 1, FEW_RUNS ? 500 : 0, NULL);
    check_hosts("fox", 2, 300, NULL);
    check_hosts("cope", 1, 300, NULL);
    check_hosts("cape", 2, 300, NULL);
    /* parts that rows add to while they walk, at any distance in any tile; sums by tile */
    static int64_t pos[L];
    for (int i = 0; i < L; i++) pos[i] = i / 2 + i % 2 * 40;
    check_hosts("deberta", 1, 300, pos);
    if (!FEW_RUNS) {
        check_hosts("xl", 1, 300, pos);
        check_hosts("path", 1, 300, NULL);
    }
    return harness_end();
}
