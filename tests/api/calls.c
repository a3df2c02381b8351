/* SPDX-License-Identifier: MIT */
/* calls.c -- what loci/loci.h promises about all calls, for every encoding, stage and pass:
 *
 *     memory       a plan and a pool are created completely or not at all, whichever allocation or
 *                  thread fails, and free all their memory; no other call allocates memory,
 *                  starts a thread, or touches a file
 *     the process  handlers and masks of signals, the state of floating point, locale, folder,
 *                  umask, environment, open files, threads and limits do not change
 *     cancelling   at every query of the host: only outputs and the workspace are written, and the
 *                  same call, made again, has the bits of an undisturbed one
 *
 * With the argument `all`, in every shape on every instruction set, and at each query. */
#define _GNU_SOURCE
#include "inject.h"

#include <fenv.h>
#include <limits.h>
#include <locale.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>

#include "harness.h"
#include "play.h"

extern char **environ;
static bool whole;
/* Without `all`, some shapes of each encoding, each on another instruction set. */
static bool left_out(void)
{
    static int turn;
    return !whole && turn++ % (LOCI_SLOW || LOCI_EMULATED ? 97 : 11);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static void plan_of(const char *text)
{
    bool ran_out = true;
    for (int n = 0; ran_out; n++) {
        const loci_desc d = LOCI_DESC(.encoding = text, .heads = 4, .dim = walk_dim(text, 12));
        loci_error e = { 0 };
        loci_plan *p = (loci_plan *)&e;
        const long live = inject->live;
        inject_arm(INJECT_MEMORY, INJECT_ONCE, ENOMEM, n);
        const loci_status status = loci_plan_create(&p, &d, &e);
        ran_out = inject->fired;
        inject_off();
        const bool ok = ran_out ? status == LOCI_NO_MEMORY && !p && strstr(e.text, "memory")
                                : status == LOCI_OK && p;
        loci_plan_destroy(p);
        CHECK_THAT(ok && inject->live == live, "%s, failing at %d: status %d, %ld blocks left",
                   text, n, status, inject->live - live);
    }
}
static void plans(void)
{
    static const char *const bad[] = { "t5:bucket=3", "rope", "rope:pairing=half+rope:pairing=half",
                                       "alibi+sba+zzz" };
    for (struct walk_text t = { 0 }; walk_next(&t);) plan_of(t.text);
    plan_of("rope:pairing=half,scaling=longrope,factor=2,original_length=64,"
            "short=1/1/1/1/1/1,long=2/2/2/2/2/2+fire");
    for (int i = 0; i < (int)(sizeof bad / sizeof *bad); i++) {
        const long live = inject->live;
        loci_plan *p;
        const loci_desc d = LOCI_DESC(.encoding = bad[i], .heads = 4, .dim = 8);
        const bool ok = loci_plan_create(&p, &d, NULL) == LOCI_BAD_ARG && !p;
        CHECK_THAT(ok && inject->live == live, "%s, %ld blocks left", bad[i], inject->live - live);
    }
}

#ifndef LOCI_NO_THREADS
/* An OpenMP runtime whose team is the caller. */
static void alone(void (*body)(void *), void *arg, unsigned threads, unsigned flags)
{
    (void)threads;
    (void)flags;
    body(arg);
}
#endif
/* Whichever thread cannot be created: none remains, and the host is unchanged. */
static void pools(void)
{
#ifndef LOCI_NO_THREADS
    for (int n = 0; n < 6; n++) {
        loci_host host, before;
        memset(&host, 0x5a, sizeof host);
        before = host;
        const long live = inject->live;
        inject_arm(INJECT_MEMORY | INJECT_THREAD, INJECT_ONCE, EAGAIN, n);
        const loci_status status = loci_pool_create(&host, 4);
        const bool ran_out = inject->fired;
        inject_off();
        CHECK_THAT(status == (ran_out ? LOCI_NO_MEMORY : LOCI_OK),
                   "a pool, failing at %d: status "
                   "%d",
                   n, status);
        CHECK_THAT(ran_out == (n < 4) && (!ran_out || !memcmp(&host, &before, sizeof host)),
                   "a pool, failing at %d: the host has changed", n);
        if (!status) loci_pool_destroy(&host);
        CHECK_THAT(inject->live == live, "a pool, failing at %d: %ld blocks left", n,
                   inject->live - live);
    }
    for (int n = 0; n < 2; n++) {
        loci_host host;
        const long live = inject->live;
        inject_arm(INJECT_MEMORY | INJECT_THREAD, INJECT_ONCE, EAGAIN, n);
        const loci_status status = loci_pool_create_openmp(&host, 4, alone);
        inject_off();
        CHECK_THAT(status == (n ? LOCI_OK : LOCI_NO_MEMORY), "a team, failing at %d: status %d", n,
                   status);
        if (!status) loci_pool_destroy(&host);
        CHECK_THAT(inject->live == live, "a team, failing at %d: %ld blocks left", n,
                   inject->live - live);
    }
#endif
}

/* ---- The process ----------------------------------------------------------------------------- */

#if defined __x86_64__
/* without its flags */
static unsigned arithmetic(void) { return __builtin_ia32_stmxcsr() & ~0x3fu; }
static void odd_arithmetic(bool odd) /* flushes subnormals to zero and rounds up */
{
    __builtin_ia32_ldmxcsr(odd ? 0x1f80 | 0x8040 | 0x4000 : 0x1f80);
}
#else
static unsigned arithmetic(void) { return (unsigned)fegetround(); }
static void odd_arithmetic(bool odd) { fesetround(odd ? FE_UPWARD : FE_TONEAREST); }
#endif

enum { SIGNALS = 65, FILES = 64 };
struct process {
    struct sigaction action[SIGNALS];
    sigset_t mask;
    unsigned arithmetic;
    mode_t umask;
    int threads, files, nice;
    char locale[256], folder[PATH_MAX];
    struct rlimit limit[RLIM_NLIMITS];
    struct itimerval timer;
    stack_t signal_stack;
    char **environment;
    size_t environment_sum;
};
static int entries(const char *path)
{
    DIR *d = __real_opendir(path);
    int n = 0;
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n;
}
static void look(struct process *p)
{
    p->arithmetic = arithmetic();
    const fenv_t *const usual = FE_DFL_ENV;
    fenv_t now;
    fegetenv(&now);
    fesetenv(usual); /* later code must not see it */
    for (int i = 1; i < SIGNALS; i++) sigaction(i, NULL, &p->action[i]);
    pthread_sigmask(SIG_BLOCK, NULL, &p->mask);
    p->umask = umask(0);
    umask(p->umask);
    p->threads = entries("/proc/self/task");
    p->files = entries("/proc/self/fd");
    p->nice = getpriority(PRIO_PROCESS, 0);
    snprintf(p->locale, sizeof p->locale, "%s", setlocale(LC_ALL, NULL));
    if (!getcwd(p->folder, sizeof p->folder)) exit(2);
    for (int i = 0; i < RLIM_NLIMITS; i++) getrlimit(i, &p->limit[i]);
    getitimer(ITIMER_REAL, &p->timer);
    sigaltstack(NULL, &p->signal_stack);
    p->environment = environ;
    p->environment_sum = 0;
    for (char **e = environ; *e; e++)
        for (const char *c = *e; *c; c++)
            p->environment_sum = p->environment_sum * 31 + (unsigned char)*c;
    fesetenv(&now);
}
/* Names what has changed.  NULL: nothing. */
static const char *changed(const struct process *a, const struct process *b)
{
    for (int i = 1; i < SIGNALS; i++)
        if (a->action[i].sa_handler != b->action[i].sa_handler
            || a->action[i].sa_flags != b->action[i].sa_flags)
            return "a handler of signals";
    for (int i = 1; i < SIGNALS; i++)
        if (sigismember(&a->mask, i) != sigismember(&b->mask, i)) return "the mask of signals";
    if (a->arithmetic != b->arithmetic) return "the state of floating point";
    if (a->umask != b->umask) return "umask";
    if (a->threads != b->threads) return "threads";
    if (a->files != b->files) return "open files";
    if (a->nice != b->nice || memcmp(a->limit, b->limit, sizeof a->limit)) return "limits";
    if (strcmp(a->locale, b->locale)) return "locale";
    if (strcmp(a->folder, b->folder)) return "the folder";
    if (memcmp(&a->timer, &b->timer, sizeof a->timer)) return "a timer";
    if (a->signal_stack.ss_sp != b->signal_stack.ss_sp) return "the stack of signals";
    if (a->environment != b->environment || a->environment_sum != b->environment_sum)
        return "the environment";
    return NULL;
}

/* ---- One problem ----------------------------------------------------------------------------- */

/* Memory that a call may write.  All other blocks are read only. */
static bool is_output(const struct play *p, const void *at, enum play_pass pass)
{
    const void *const list[] = {
        p->call.o.data,  p->call.lse,         p->call.rem,
        p->call.ae,      p->grad.dq.data,     p->grad.dk.data,
        p->grad.dv.data, p->weights,          p->state,
        p->work,         p->cached.work,      p->cached.memory,
        p->cached.row,   p->cached.tree_work,
    };
    if (pass == PLAY_PREPARE) return at == p->tables || at == p->cached.tables;
    for (int i = 0; i < (int)(sizeof list / sizeof *list); i++)
        if (at == list[i]) return true;
    for (int i = 0; i < p->w->tensors; i++)
        if (at == p->ddata[i]) return true;
    return false;
}
/* A workspace may contain anything, and a cache more than its keys. */
static bool is_result(const struct play *p, const void *at, enum play_pass pass)
{
    return is_output(p, at, pass) && at != p->work && at != p->cached.work && at != p->cached.memory
        && at != p->cached.tree_work;
}
struct picture {
    unsigned char *block[512];
};
static void copy_picture(const struct play *p, struct picture *to)
{
    for (int i = 0; i < p->mem.blocks; i++) {
        to->block[i] = __real_malloc(p->mem.block[i].bytes + 1);
        if (!to->block[i]) exit(2);
        memcpy(to->block[i], p->mem.block[i].at, p->mem.block[i].bytes);
    }
}
static void drop_picture(const struct play *p, struct picture *of)
{
    for (int i = 0; i < p->mem.blocks; i++) __real_free(of->block[i]);
}
static bool same(const struct play *p, const struct picture *of, enum play_pass pass, bool results)
{
    for (int i = 0; i < p->mem.blocks; i++) {
        const void *at = p->mem.block[i].at;
        if (results ? !is_result(p, at, pass) : is_output(p, at, pass)) continue;
        if (memcmp(at, of->block[i], p->mem.block[i].bytes)) return false;
    }
    return true;
}

static long asked, patience, cancels;
static int cancelled(void *user)
{
    (void)user;
    return asked++ >= patience;
}
static void run(void *user, int n, void (*job)(void *, int), void *arg)
{
    (void)user;
    for (int i = n; i-- > 0;) job(arg, i);
}
static const loci_host host = { .run = run, .cancelled = cancelled, .threads = 2 };

/* Cancels a pass at each query of the host, and makes it again. */
static void cancel(struct play *p, enum play_pass pass, const char *name)
{
    struct picture before, calm;
    copy_picture(p, &before);
    asked = 0;
    patience = LONG_MAX;
    const loci_status status = play_pass(p, pass);
    const long questions = asked;
    CHECK_THAT(!status, "%s: %s", name, p->error.text);
    copy_picture(p, &calm);
    for (long n = 0; n < questions; n += whole ? 1 : 1 + questions / 4) {
        asked = 0;
        patience = n;
        cancels++;
        const loci_status told = play_pass(p, pass);
        CHECK_THAT(told == LOCI_CANCELLED && p->error.text[0],
                   "%s, cancelled at question %ld of %ld: status %d", name, n, questions, told);
        CHECK_THAT(same(p, &before, pass, false),
                   "%s, cancelled at question %ld of %ld: more than outputs was written", name, n,
                   questions);
        patience = LONG_MAX;
        CHECK_THAT(!play_pass(p, pass) && same(p, &calm, pass, true),
                   "%s, cancelled at question %ld of %ld, and made again: %s", name, n, questions,
                   "other bits");
    }
    drop_picture(p, &before);
    drop_picture(p, &calm);
}

static void check(struct walk *w)
{
    static struct play p;
    static struct process before, after;
    static int turn;
    const char *isas[8];
    const int count = loci_isas(isas, 8), one = turn++ % (count + 1);
    if (left_out()) return;
    for (int i = 0; i <= count; i++) {
        if ((!whole && i != one) || !play_open(&p, w, i ? isas[i - 1] : NULL, i == 0, &host))
            continue;
        for (int pass = 0; pass < PLAY_PASSES; pass++) {
            char name[300];
            snprintf(name, sizeof name, "%s of %.120s (%s) on %s", play_names[pass], w->encoding,
                     w->shape, p.isa);
            odd_arithmetic(true);
            look(&before);
            patience = LONG_MAX;
            inject_arm(INT_MAX, INJECT_ON, ENOMEM, 0);
            const loci_status status = play_pass(&p, (enum play_pass)pass);
            const long calls = inject->seen;
            inject_off();
            look(&after);
            odd_arithmetic(false);
            const char *what = changed(&before, &after);
            CHECK_THAT(!status && calls == 0 && !what,
                       "%s: status %d, %ld calls of the system, "
                       "%s has changed",
                       name, status, calls, what ? what : "nothing");
            cancel(&p, (enum play_pass)pass, name);
        }
        play_close(&p);
    }
}

static void others(void)
{
    static struct process before, after;
    if (play_others(NULL)) CHECK_FAILED("a layer or a conversion refuses what it is given");
    odd_arithmetic(true);
    look(&before);
    inject_arm(INT_MAX, INJECT_ON, ENOMEM, 0);
    const int refused = play_others(NULL);
    const long calls = inject->seen;
    inject_off();
    look(&after);
    odd_arithmetic(false);
    const char *what = changed(&before, &after);
    CHECK_THAT(!refused && calls == 0 && !what,
               "layers and conversions: %d refused, %ld calls of "
               "the system, %s has changed",
               refused, calls, what ? what : "nothing");
}

/* Plans and pools also leave a process unchanged once they are destroyed. */
static void plan_and_pool(void)
{
    static struct process before, after;
    loci_plan *plan;
    loci_host pool;
    look(&before);
    if (loci_plan_create(&plan,
                         &(loci_desc)LOCI_DESC(.encoding = "rope:pairing=half+t5", .heads = 2,
                                               .dim = 8),
                         NULL))
        exit(2);
    loci_plan_destroy(plan);
#ifndef LOCI_NO_THREADS
    if (loci_pool_create(&pool, 4)) exit(2);
    loci_pool_destroy(&pool);
#else
    (void)pool;
#endif
    look(&after);
    /* A joined thread may remain visible for a moment. */
    for (int i = 0; i < 1000 && after.threads != before.threads; i++) {
        usleep(1000);
        look(&after);
    }
    const char *what = changed(&before, &after);
    CHECK_THAT(!what, "a plan and a pool: %s has changed", what);
}

/* ---- Coverage -------------------------------------------------------------------------------- */

static char *text_of(const char *path)
{
    FILE *f = __real_fopen(path, "rb");
    char *text = __real_calloc(1, 1 << 18);
    if (!f || !text || fread(text, 1, (1 << 18) - 1, f) < 1) exit(2);
    fclose(f);
    return text;
}
/* Every function of these headers is called here or in play.c. */
static void complete(void)
{
    static const char *const headers[] = { "loci", "cache", "convert", "layers", "positions" };
    char *here = text_of("tests/api/calls.c"), *play = text_of("tests/support/play.c");
    int functions = 0;
    for (int i = 0; i < (int)(sizeof headers / sizeof *headers); i++) {
        char path[64];
        snprintf(path, sizeof path, "include/loci/%s.h", headers[i]);
        char *text = text_of(path);
        for (char *p = text; (p = strstr(p, "\nLOCI_API "));) {
            char *open = strchr(p, '('), *from = open;
            while (from > p && (from[-1] == '_' || (from[-1] >= 'a' && from[-1] <= 'z'))) from--;
            char name[80];
            snprintf(name, sizeof name, "%.*s(", (int)(open - from), from);
            CHECK_THAT(strstr(here, name) || strstr(play, name), "%s): nobody calls it here", name);
            functions++;
            p = open;
        }
        __real_free(text);
    }
    CHECK_THAT(functions > 50, "only %d functions were found", functions);
    __real_free(here);
    __real_free(play);
}

int main(int argc, char **argv)
{
    whole = argc > 1 && !strcmp(argv[1], "all");
    walk_only(whole ? argc - 1 : argc, whole ? argv + 1 : argv);
    inject_open();
    complete();
    plan_and_pool(); /* first: later the state would already exist */
    plans();
    pools();
    others();
    walk_all(WALK_SMALL, check);
    walk_all(WALK_TILES, check);
    CHECK_THAT(cancels > 20 || walk_limited(), "only %ld calls were cancelled", cancels);
    printf("%ld calls were cancelled\n", cancels);
    return harness_end();
}
