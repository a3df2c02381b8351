/* SPDX-License-Identifier: MIT */
/* pipeline.c -- see pipeline.h. */
#include "util/pipeline.h"

/* Polls before sleeping, some 100 microseconds on a Zen 4: a unit mostly waits for less than the
 * time of a stage. */
enum { POLLS = 4000 };

void loci_pipelines_open(struct pipelines *a)
{
    a->first = NULL;
    a->owners = 0;
    atomic_init(&a->events, 0);
    atomic_init(&a->waiting, 0);
    atomic_init(&a->stop, false);
    lock_open(&a->lock);
}
void loci_pipelines_close(struct pipelines *a) { lock_close(&a->lock); }
/* Tells jobs that look for a pipeline.  Called with the lock. */
static void note(struct pipelines *a)
{
    atomic_fetch_add(&a->events, 1);
    lock_wake(&a->lock);
}
void loci_pipelines_enter(struct pipelines *a)
{
    lock_acquire(&a->lock);
    a->owners++;
    lock_release(&a->lock);
}
void loci_pipelines_retire(struct pipelines *a)
{
    lock_acquire(&a->lock);
    a->owners--;
    note(a);
    lock_release(&a->lock);
}
void loci_pipelines_stop(struct pipelines *a)
{
    lock_acquire(&a->lock);
    atomic_store(&a->stop, true);
    note(a);
    lock_release(&a->lock);
}

static bool joinable(const struct pipeline *p) { return p->units >= LEAST_UNITS; }

void loci_pipeline_begin(struct pipelines *a, struct pipeline *p, ptrdiff_t units)
{
    p->units = units;
    p->helpers = 0;
    atomic_init(&p->next, 0);
    for (int i = 0; i < PIPELINE_JOBS; i++) atomic_init(&p->passed[i], 0);
    if (!joinable(p)) return;
    lock_acquire(&a->lock);
    p->later = a->first;
    a->first = p;
    note(a);
    lock_release(&a->lock);
}
void loci_pipeline_end(struct pipelines *a, struct pipeline *p)
{
    if (!joinable(p)) return;
    lock_acquire(&a->lock);
    struct pipeline **at = &a->first;
    while (*at != p) at = &(*at)->later;
    *at = p->later;
    while (p->helpers) lock_wait(&a->lock);
    lock_release(&a->lock);
}

/* Called with the lock. */
static struct pipeline *find_longest(struct pipelines *a)
{
    struct pipeline *longest = NULL;
    long long most = 0;
    for (struct pipeline *p = a->first; p; p = p->later) {
        const long long left = p->units - atomic_load(&p->next);
        if (left <= 0 || p->helpers + 1 == PIPELINE_JOBS) continue;
        /* the owner, those who have joined, and the job that asks */
        const long long each = (left * PIPELINE_JOBS) / (p->helpers + 2);
        if (each > most) {
            most = each;
            longest = p;
        }
    }
    return longest;
}
struct pipeline *loci_pipeline_join(struct pipelines *a)
{
    struct pipeline *p = NULL;
    lock_acquire(&a->lock);
    while (!atomic_load(&a->stop)) {
        p = find_longest(a);
        if (p || !a->owners) break;
        const unsigned seen = atomic_load(&a->events);
        lock_release(&a->lock);
        for (int i = 0; i < POLLS && atomic_load(&a->events) == seen; i++) cpu_relax();
        lock_acquire(&a->lock);
        if (atomic_load(&a->events) == seen) lock_wait(&a->lock);
    }
    if (p) p->helpers++;
    lock_release(&a->lock);
    return p;
}
void loci_pipeline_leave(struct pipelines *a, struct pipeline *p)
{
    lock_acquire(&a->lock);
    p->helpers--;
    lock_wake(&a->lock);
    lock_release(&a->lock);
}

ptrdiff_t loci_pipeline_next(struct pipeline *p)
{
    const long long unit = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
    return unit < p->units ? (ptrdiff_t)unit : -1;
}
bool loci_pipeline_wait(struct pipelines *a, struct pipeline *p, ptrdiff_t unit, int stage)
{
    if (!unit) return true;
    atomic_llong *before = &p->passed[(unit - 1) % PIPELINE_JOBS];
    const long long enough = (long long)(unit - 1) * STAGES + stage + 1;
    for (int i = 0; i < POLLS; i++) {
        if (atomic_load_explicit(before, memory_order_acquire) >= enough) return true;
        cpu_relax();
    }
    lock_acquire(&a->lock);
    atomic_fetch_add(&a->waiting, 1);
    while (!atomic_load(&a->stop) && atomic_load(before) < enough) lock_wait(&a->lock);
    atomic_fetch_sub(&a->waiting, 1);
    lock_release(&a->lock);
    return atomic_load(before) >= enough;
}
void loci_pipeline_pass(struct pipelines *a, struct pipeline *p, ptrdiff_t unit, int stage)
{
    /* Sequentially consistent, like the count of those that wait: either this sees them, or they
     * see this. */
    atomic_store(&p->passed[unit % PIPELINE_JOBS], (long long)unit * STAGES + stage + 1);
    if (!atomic_load(&a->waiting)) return;
    lock_acquire(&a->lock);
    lock_wake(&a->lock);
    lock_release(&a->lock);
}
