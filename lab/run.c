/* SPDX-License-Identifier: MIT */
/* run.c -- see run.h. */
#include "lab/run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/error.h"
#include "lab/clock.h"
#include "lab/store.h"
#include "lab/train.h"

/* ---- One run --------------------------------------------------------------------------------- */

enum {
    LOGGED = 100,
    GLANCE_TOKENS = 8192
    /* lines of a log; size of the small tests */
};

/* The capacity of a log from a checkpoint is unknown, so every line reallocates. */
static void add_log(struct lab_result *r, const struct lab_logged *l)
{
    struct lab_logged *more = draw_alloc((size_t)r->logs + 1, sizeof *more);
    if (r->logs) memcpy(more, r->log, (size_t)r->logs * sizeof *more);
    free(r->log);
    r->log = more;
    r->log[r->logs++] = *l;
}

/* Is an event due that happens `times` times over the steps, always at the last one? */
static bool due(int step, int steps, int times)
{
    return step == steps || (int64_t)step * times / steps != (int64_t)(step - 1) * times / steps;
}

/* A small intermediate test: of the first trained column, or of the farthest one. */
static double glance(const struct lab_config *c, struct lab_model *m, bool far, loci_error *e)
{
    const struct lab_problem p = lab_config_problem(c);
    struct lab_column list[LAB_COLUMNS];
    struct lab_measured got;
    const int n = p.task->columns(&p, list);
    int at = 0;
    for (int i = 1; i < n; i++)
        if (far ? list[i].times > list[at].times : list[i].trained && !list[at].trained) at = i;
    const int most = GLANCE_TOKENS / list[at].length > 0 ? GLANCE_TOKENS / list[at].length : 1;
    if (lab_test(c, m, &list[at], most, &got, NULL, e)) return NAN;
    free(got.each);
    return got.metric == LAB_LOSS ? got.loss : got.metric == LAB_EXACT ? got.exact : got.accuracy;
}

struct training {
    struct training *next; /* of the runs that the work owns */
    struct lab_work *work;
    const struct lab_config *config;
    struct lab_progress *progress;
    struct lab_claim claim;
    struct lab_model *model;
    struct lab_result result;
    double seconds;     /* of the steps made here */
    int made, diverged; /* diverged: the step with a loss that was not finite; 0: none */
};

static loci_status train(struct training *t, loci_error *e)
{
    const struct lab_config *c = t->config;
    struct lab_batch b = { .sequences = 0 };
    int step;
    loci_status status = lab_state_read(t->claim.folder, c, t->model, &step, &t->result, e);
    if (status) { /* unusable: restart from step 0 */
        fprintf(stderr, "loci: %s/state.safetensors is left aside: %s\n", t->claim.folder,
                e ? e->text : "");
        status = LOCI_OK;
        step = 0;
        t->result.logs = 0;
    }
    if (step == 0) lab_model_init(t->model, (uint64_t)c->seed);
    double saved = lab_seconds();
    for (; step < c->steps && !status; step++) {
        const double began = lab_seconds();
        struct lab_logged line = {
            .step = step + 1, .rate = lab_rate(c, step), .trained = NAN, .far = NAN
        };
        lab_train_batch(c, t->model, step, &b);
        status = lab_model_backward(t->model, &b, &line.loss, e);
        if (status) break;
        if (!isfinite(line.loss)) { /* also a result: it has learned nothing */
            t->diverged = step + 1;
            break;
        }
        line.norm = lab_model_step(t->model, step + 1, line.rate);
        t->seconds += lab_seconds() - began;
        t->made++;
        if (due(step + 1, c->steps, LAB_GLANCES)) {
            line.trained = glance(c, t->model, false, e);
            line.far = glance(c, t->model, true, e);
        }
        if (due(step + 1, c->steps, LOGGED) || isfinite(line.trained)) add_log(&t->result, &line);
        atomic_store(&t->progress->step, step + 1);
        atomic_store(&t->progress->loss, (float)line.loss);
        lab_claim_tell(&t->claim, step + 1, c->steps, line.loss);
        const bool stop = atomic_load(t->work->stop) != 0;
        if (stop || lab_seconds() - saved >= t->work->checkpoint) {
            status = lab_state_write(t->claim.folder, c, t->model, step + 1, &t->result, e);
            saved = lab_seconds();
        }
        if (stop) {
            lab_batch_free(&b);
            return status ? status : LOCI_CANCELLED;
        }
    }
    lab_batch_free(&b);
    return status;
}

static void describe(struct training *t, const char *id)
{
    const struct lab_config *c = t->config;
    struct lab_result *r = &t->result;
    snprintf(r->id, sizeof r->id, "%s", id);
    snprintf(r->arm, sizeof r->arm, "%s", c->arm);
    snprintf(r->task, sizeof r->task, "%s", c->task);
    snprintf(r->size, sizeof r->size, "%s", c->size);
    lab_config_settings(c, r->settings, sizeof r->settings);
    r->seed = c->seed;
    r->length = lab_model_shape(t->model)->length;
    r->steps = c->steps;
    r->params = lab_model_params(t->model, false);
    r->params_encoding = lab_model_params(t->model, true);
    r->seconds_per_step = t->made ? t->seconds / t->made : NAN;
    r->peak_bytes = (double)lab_model_bytes(t->model);
    r->cache_bytes_per_token = lab_model_cache_bytes(t->model);
    const struct lab_work_done done = lab_config_work(c);
    r->teraflops = (done.trained_flops + done.tested_flops) * 1e-12;
    snprintf(r->version, sizeof r->version, "%s", loci_version_text());
    snprintf(r->compiler, sizeof r->compiler, "%s", lab_compiler());
    snprintf(r->cpu, sizeof r->cpu, "%s", t->work->cpu ? t->work->cpu : "");
    snprintf(r->isa, sizeof r->isa, "%s", lab_model_engine(t->model)->isa);
}

static loci_status finish(struct training *t, const char *id, loci_error *e)
{
    atomic_store(&t->progress->stage, LAB_TESTS);
    describe(t, id);
    TRY(lab_test_all(t->config, t->model, &t->result, e));
    lab_warn(t->config, t->model, &t->result);
    if (t->diverged)
        lab_add_warning(&t->result,
                        "diverged: the loss of step %d was not finite, and training "
                        "ended there; a lower learning rate would be needed",
                        t->diverged);
    TRY(lab_weights_write(t->claim.folder, t->config, t->model, t->result.weights_sha256, e));
    lab_write_begin();
    const loci_status status = lab_result_write(&t->result, t->claim.folder, e);
    lab_write_end();
    if (!status) lab_state_remove(t->claim.folder);
    return status;
}

static struct mutex holding = MUTEX_INIT;

static void block_signals(struct training *t)
{
    mutex_lock(&holding);
    t->next = t->work->held;
    t->work->held = t;
    mutex_unlock(&holding);
}
static void let_go(struct training *t)
{
    mutex_lock(&holding);
    struct training **p = &t->work->held;
    while (*p != t) p = &(*p)->next;
    *p = t->next;
    mutex_unlock(&holding);
    lab_claim_drop(&t->claim);
}
/* Updates the claim during tests; training does so at every step. */
static void tell_of_tests(struct lab_work *w)
{
    mutex_lock(&holding);
    for (struct training *t = w->held; t; t = t->next)
        if (atomic_load(&t->progress->stage) == LAB_TESTS)
            lab_claim_tell(&t->claim, t->config->steps, t->config->steps,
                           atomic_load(&t->progress->loss));
    mutex_unlock(&holding);
}

loci_status lab_run_one(struct lab_work *w, int index, const loci_host *host, loci_error *e)
{
    struct training t = { .work = w,
                          .config = &w->runs->list[index],
                          .progress = &w->progress[index] };
    struct lab_shape s = lab_config_shape(t.config);
    enum lab_claimed what;
    char id[33];
    s.isa = w->isa;
    TRY(lab_claim_acquire(&t.claim, w->dir, t.config, &what, e));
    if (what != LAB_MINE) {
        atomic_store(&t.progress->stage, what == LAB_DONE ? LAB_READY : LAB_ELSEWHERE);
        return LOCI_OK;
    }
    atomic_store(&t.progress->stage, LAB_TRAINS);
    block_signals(&t);
    lab_config_id(t.config, id);
    loci_status status = lab_model_open(&t.model, &s, host, e);
    if (!status) status = train(&t, e);
    if (!status) status = finish(&t, id, e);
    lab_model_close(t.model);
    lab_result_free(&t.result);
    let_go(&t);
    atomic_store(&t.progress->stage, status == LOCI_CANCELLED ? LAB_STOPPED
                                     : status                 ? LAB_BROKEN
                                                              : LAB_READY);
    return status == LOCI_CANCELLED ? LOCI_OK : status;
}

/* ---- Learning rates -------------------------------------------------------------------------- */

/* False: the run is not done. */
static bool read_validation(const struct lab_config *c, const char *dir, double *validation)
{
    char id[33], folder[LAB_PATH];
    struct lab_result r;
    loci_error e;
    lab_config_id(c, id);
    snprintf(folder, sizeof folder, "%.4000s/runs/%s", dir, id);
    if (!lab_run_done(dir, id) || lab_result_read(&r, folder, &e)) return false;
    *validation = r.validation;
    lab_result_free(&r);
    return true;
}

int lab_choose_rates(struct lab_runs *runs, const char *dir)
{
    int waiting = 0;
    for (int i = 0; i < runs->groups; i++) {
        const struct lab_group *g = &runs->group[i];
        struct lab_config *run = runs->list + g->first;
        double least = NAN, x;
        int best = 0, done = 0;
        if (g->count == g->tried || !run[g->tried].waits) continue;
        while (done < g->tried && read_validation(&run[done], dir, &x)) {
            if (x < least || isnan(least)) { /* as in the report: NaN is the worst */
                least = x;
                best = done;
            }
            done++;
        }
        for (int k = g->tried; k < g->count; k++) {
            run[k].waits = done < g->tried;
            if (done == g->tried) run[k].rate = run[best].rate;
            waiting += run[k].waits;
        }
    }
    return waiting;
}

/* ---- All runs -------------------------------------------------------------------------------- */

static struct mutex failing = MUTEX_INIT;

/* Processes run after run.  The first failure stops all: the disk is full, or a folder is not
 * writable. */
static void *worker(void *arg)
{
    struct lab_work *w = arg;
    loci_host pool;
    const loci_host *host = NULL;
    loci_error e = { .status = LOCI_OK };
    loci_status status = LOCI_OK;
    if (w->each > 1 && !loci_pool_create(&pool, w->each)) host = &pool;
    while (!status && !atomic_load(w->stop) && !atomic_load(&w->failed)) {
        const int i = atomic_fetch_add(&w->next, 1);
        if (i >= w->runs->count) break;
        if (i % w->shards == w->shard && !w->runs->list[i].waits)
            status = lab_run_one(w, i, host, &e);
    }
    if (host) loci_pool_destroy(&pool);
    if (status) {
        mutex_lock(&failing);
        if (!atomic_exchange(&w->failed, 1)) {
            w->error = e;
            w->error.status = status;
        }
        mutex_unlock(&failing);
    }
    atomic_fetch_sub(&w->active, 1);
    return NULL;
}

loci_status lab_work_begin(struct lab_work *w, loci_error *e)
{
    int left = 0;
    for (int i = w->shard; i < w->runs->count; i += w->shards) {
        char id[33];
        lab_config_id(&w->runs->list[i], id);
        left += !w->runs->list[i].waits && !lab_run_done(w->dir, id);
    }
    const int wanted = left < 1 ? 1 : left < w->threads ? left : w->threads;
    w->each = w->threads / wanted;
    w->workers = 0;
    w->worker = draw_alloc((size_t)wanted, sizeof *w->worker);
    w->error = (loci_error){ .status = LOCI_OK };
    w->held = NULL;
    atomic_store(&w->next, 0);
    atomic_store(&w->failed, 0);
    atomic_store(&w->active, wanted);
    while (w->workers < wanted && loci_thread_start(&w->worker[w->workers], worker, w))
        w->workers++;
    atomic_fetch_sub(&w->active, wanted - w->workers);
    if (w->workers) return LOCI_OK;
    free(w->worker);
    return loci_fail(e, LOCI_NO_MEMORY, "no thread can be made");
}
bool lab_work_ended(struct lab_work *w)
{
    tell_of_tests(w);
    return atomic_load(&w->active) == 0;
}
loci_status lab_work_end(struct lab_work *w, loci_error *e)
{
    for (int i = 0; i < w->workers; i++) loci_thread_join(&w->worker[i]);
    free(w->worker);
    if (!atomic_load(&w->failed)) return LOCI_OK;
    if (e) *e = w->error;
    return w->error.status;
}
