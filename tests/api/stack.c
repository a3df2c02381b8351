/* SPDX-License-Identifier: MIT */
/* stack.c -- the stack usage of a call: at most 64 KB of the calling thread, and of each helping
 * thread, for every encoding, pass and instruction set.  With the argument `all` every shape of the
 * walk runs on every instruction set.
 *
 * Each call runs in a thread with a painted stack of 128 KB, the default of musl.  Sanitizers use
 * much more stack, so with them the test only checks that everything runs. */
#define _DEFAULT_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "loci/parallel.h"
#include "harness.h"
#include "play.h"

#ifndef LOCI_SANITIZED
#define LOCI_SANITIZED 0
#endif
/* With sanitizers a thread has its default size. */
enum { PROMISED = 64 << 10, STACK = LOCI_SANITIZED ? 8 << 20 : 128 << 10, PAINT = 0xa5 };

/* ---- A thread with a known stack ------------------------------------------------------------- */

struct errand {
    void (*run)(void *);
    void *arg;
    uintptr_t from;
};
static unsigned char *stack; /* with a guard page below */
static pthread_attr_t on_it;

static void open_stack(void)
{
    enum { GUARD = 64 << 10 };
    unsigned char *all =
        mmap(NULL, GUARD + STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED || mprotect(all, GUARD, PROT_NONE)) exit(2);
    stack = all + GUARD;
    if (pthread_attr_init(&on_it) || pthread_attr_setstack(&on_it, stack, STACK)) exit(2);
}
static void *start(void *arg)
{
    struct errand *e = arg;
    e->from = (uintptr_t)__builtin_frame_address(0);
    e->run(e->arg);
    return NULL;
}
/* Bytes below the thread's own first function. */
static size_t stack_of(void (*run)(void *), void *arg)
{
    struct errand e = { run, arg, 0 };
    pthread_t thread;
    size_t low = 0;
    memset(stack, PAINT, STACK);
    if (pthread_create(&thread, &on_it, start, &e) || pthread_join(thread, NULL)) exit(2);
    while (low < STACK && stack[low] == PAINT) low++;
    return e.from - (uintptr_t)stack - low;
}

/* ---- Maximum of each kind -------------------------------------------------------------------- */

struct most {
    const char *what;
    size_t bytes;
    char where[256];
};
enum { PLAN = PLAY_PASSES, OTHERS, RANKS, WORKER, KINDS };
static struct most most[KINDS] = { [PLAN] = { .what = "a plan" },
                                   [OTHERS] = { .what = "a layer or a conversion" },
                                   [RANKS] = { .what = "a rank" },
                                   [WORKER] = { .what = "a thread of a host" } };

static void note(int kind, size_t bytes, const char *text, const char *shape, const char *isa)
{
    struct most *m = &most[kind];
    CHECK_THAT(LOCI_SANITIZED || bytes <= PROMISED, "%s, %s (%s) on %s: %zu bytes of stack",
               m->what, text, shape, isa, bytes);
    if (bytes > m->bytes) {
        m->bytes = bytes;
        snprintf(m->where, sizeof m->where, "%.120s (%s) on %s", text, shape, isa);
    }
}

/* ---- Calls ----------------------------------------------------------------------------------- */

struct call {
    struct play *p;
    enum play_pass pass;
    loci_status status;
};
static void make_call(void *arg)
{
    struct call *c = arg;
    c->status = play_pass(c->p, c->pass);
}

/* A host with one thread for all jobs, besides the calling one. */
struct errands {
    void (*job)(void *, int);
    void *arg;
    int n;
};
static void run_errands(void *arg)
{
    const struct errands *e = arg;
    for (int i = 0; i < e->n; i++) e->job(e->arg, i);
}
static size_t helper;
static void run(void *user, int n, void (*job)(void *, int), void *arg)
{
    struct errands e = { job, arg, n };
    (void)user;
    const size_t bytes = stack_of(run_errands, &e);
    if (bytes > helper) helper = bytes;
}
static const loci_host aside = { .run = run, .threads = 2 };

static void plan_made(void *arg)
{
    const struct play *p = arg;
    loci_desc d = p->w->desc;
    loci_plan *plan;
    d.isa = p->f64 ? NULL : p->isa;
    d.dtype = p->f64 ? LOCI_F64 : LOCI_F32;
    if (!loci_plan_create(&plan, &d, NULL)) loci_plan_destroy(plan);
}

/* Shapes and instruction sets differ little.  Without `all`, some of each encoding run. */
static bool whole;
static bool left_out(void)
{
    static int turn;
    return !whole && turn++ % (LOCI_SLOW || LOCI_EMULATED ? 97 : 23);
}

static void on_isa(struct walk *w, const char *isa, bool f64)
{
    static struct play p;
    if (left_out() || !play_open(&p, w, isa, f64, NULL)) return;
    note(PLAN, stack_of(plan_made, &p), w->encoding, w->shape, p.isa);
    for (int pass = 0; pass < PLAY_PASSES; pass++) {
        struct call c = { .p = &p, .pass = (enum play_pass)pass };
        note(pass, stack_of(make_call, &c), w->encoding, w->shape, p.isa);
        CHECK_THAT(!c.status, "%s, %s (%s) on %s: %s", play_names[pass], w->encoding, w->shape,
                   p.isa, p.error.text);
    }
    play_close(&p);
    if (!play_open(&p, w, isa, f64, &aside)) return;
    helper = 0;
    for (int pass = 0; pass < PLAY_PASSES; pass++)
        CHECK_THAT(!play_pass(&p, (enum play_pass)pass), "%s aside, %s (%s) on %s: %s",
                   play_names[pass], w->encoding, w->shape, p.isa, p.error.text);
    note(WORKER, helper, w->encoding, w->shape, p.isa);
    play_close(&p);
}

static void check(struct walk *w)
{
    const char *isas[8];
    const int count = loci_isas(isas, 8);
    on_isa(w, NULL, true);
    for (int i = LOCI_SLOW || LOCI_EMULATED ? count - 1 : 0; i < count; i++)
        on_isa(w, isas[i], false);
}

/* ---- Functions with no plan, or one ---------------------------------------------------------- */

static int refused; /* calls with invalid arguments */
static void well(loci_status status) { refused += status != LOCI_OK; }
static void others(void *arg) { refused += play_others(arg); }

/* A single rank, which sends nothing, executes the same code as many. */
static int nobody(void *user, int rank, int tag, void *data, size_t bytes, void **request)
{
    (void)user;
    (void)rank;
    (void)tag;
    (void)data;
    (void)bytes;
    (void)request;
    return 1;
}
static int to_nobody(void *user, int rank, int tag, const void *data, size_t bytes, void **request)
{
    return nobody(user, rank, tag, (void *)data, bytes, request);
}
static int ended(void *user, void **request)
{
    (void)user;
    (void)request;
    return 0;
}
static int alone(void *user, int64_t *list, int n)
{
    (void)user;
    (void)list;
    (void)n;
    return 0;
}

static void rank_calls(void *arg)
{
    struct play *p = arg;
    const loci_transport t = LOCI_TRANSPORT_INIT(.ranks = 1, .send = to_nobody, .receive = nobody,
                                                 .wait = ended, .highest = alone);
    const ptrdiff_t L = p->call.q_len;
    const loci_share share = { 0, L, 0 };
    for (int gather = 0; gather < 2; gather++) {
        const loci_parallel all =
            LOCI_PARALLEL(.transport = &t, .shares = &share, .count = 1, .gather = gather);
        const size_t bytes = loci_parallel_workspace(p->plan, &p->call, &all, 1),
                     decode = loci_parallel_decode_workspace(p->plan, &p->call, &all);
        void *work = mem_alloc(&p->mem, bytes > decode ? bytes : decode);
        well(loci_parallel_forward(p->plan, p->tables, work, &p->call, &all));
        well(loci_parallel_backward(p->plan, p->tables, work, &p->call, &p->grad, &all));
        well(loci_parallel_decode(p->plan, p->tables, work, &p->call, &all));
    }
}
static void check_rank(struct walk *w)
{
    static struct play p;
    const loci_call *c = &w->call;
    if (c->q_starts || c->q_seg || c->q_len != c->k_len || w->stage != LOCI_ATTENTION
        || walk_moves(w->encoding))
        return;
    /* streamed, such values need positions that are counted */
    if (strstr(w->encoding, "remainder=value")) return;
    if (left_out() || !play_open(&p, w, NULL, false, NULL)) return;
    p.isa = "the best";
    if (play_pass(&p, PLAY_PREPARE)) exit(2);
    const int before = refused;
    note(RANKS, stack_of(rank_calls, &p), w->encoding, w->shape, p.isa);
    CHECK_THAT(refused == before, "%s (%s) over one rank: %s", w->encoding, w->shape, p.error.text);
    play_close(&p);
}

int main(int argc, char **argv)
{
    whole = argc > 1 && !strcmp(argv[1], "all");
    walk_only(whole ? argc - 1 : argc, whole ? argv + 1 : argv);
    for (int i = 0; i < PLAY_PASSES; i++) most[i].what = play_names[i];
    open_stack();
    walk_all(WALK_SMALL, check);
    walk_all(WALK_TILES, check);
    walk_all(WALK_SMALL, check_rank);
    note(OTHERS, stack_of(others, NULL), "all", "layers, conversions", "any");
    CHECK_THAT(!refused, "%d layers or conversions were refused", refused);
    for (int i = 0; i < KINDS; i++)
        printf("%-24s %6zu bytes: %s\n", most[i].what, most[i].bytes, most[i].where);
    return harness_end();
}
