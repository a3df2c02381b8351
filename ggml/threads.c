/* SPDX-License-Identifier: MIT */
#include "ggml/threads.h"

#include <ggml-backend.h>

#include <string.h>

enum { MOST_THREADS = 256 }; /* of a host */

#ifdef _OPENMP

/* True if the CPU backend of this program says that it runs on OpenMP. */
static bool ggml_uses_openmp(void)
{
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (!cpu) return false;
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(cpu);
    ggml_backend_get_features_t features;
    void *at = ggml_backend_reg_get_proc_address(reg, "ggml_backend_get_features");
    if (!at) return false;
    memcpy(&features, &at, sizeof features);
    for (struct ggml_backend_feature *f = features(reg); f && f->name; f++)
        if (!strcmp(f->name, "OPENMP")) return strcmp(f->value, "0") != 0;
    return false;
}

/* The team has the size of ggml's, so OpenMP keeps its threads. */
static void run_openmp(void *user, int n, void (*job)(void *arg, int index), void *arg)
{
    const struct threads *t = user;
#pragma omp parallel for num_threads(t->wanted) schedule(dynamic, 1)
    for (int i = 0; i < n; i++) job(arg, i);
}

#endif

void loci_threads_set(struct threads *t, int wanted)
{
    t->wanted = wanted < 1 ? 1 : wanted > MOST_THREADS ? MOST_THREADS : wanted;
}

const loci_host *loci_threads_host(struct threads *t, loci_host *host)
{
    if (t->wanted == 1) return NULL;
#ifdef _OPENMP
    if (!t->asked) t->openmp = ggml_uses_openmp();
    t->asked = true;
    if (t->openmp) {
        *host = (loci_host){ .run = run_openmp, .user = t, .threads = t->wanted };
        return host;
    }
#endif
    /* A prompt and its tokens may want different numbers: the pool only grows. */
    if (t->pool.threads < t->wanted) {
        loci_pool_destroy(&t->pool);
        if (loci_pool_create(&t->pool, t->wanted)) {
            t->pool = (loci_host){ 0 };
            return NULL; /* slower, and the same bits */
        }
    }
    *host = t->pool;
    host->threads = t->wanted;
    return host;
}

void loci_threads_end(struct threads *t) { loci_pool_destroy(&t->pool); }
