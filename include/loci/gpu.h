/* SPDX-License-Identifier: MIT */
/* gpu.h -- attention on a GPU, with the bits of the CPU.  Library libloci-gpu.
 *
 *     loci_gpu *gpu;                                     a device
 *     loci_gpu_open(&gpu, "cuda:0", &error);
 *     loci_gpu_plan *plan_there;                         a plan, compiled for it
 *     loci_gpu_plan_create(&plan_there, gpu, plan, &error);
 *     loci_gpu_forward(plan_there, &tables, work, &call);
 *
 * Calls are those of loci.h.  Their views, lse, the mask, input tensors and `work` are memory of
 * the device; lists of positions, segments and lengths are memory of the host, and may be reused
 * when the call returns.  A call is queued: loci_gpu_wait() waits for the results, or the host's
 * own stream does.
 *
 * Plans in F32, BF16 and F16 run, forward also with keys and values in BF16, F16 or Q8_0; which
 * encodings do says docs/gpu.md.  Everything that does not run is refused by LOCI_UNSUPPORTED with
 * a sentence. */
#ifndef LOCI_LOCI_GPU_H
#define LOCI_LOCI_GPU_H

#include "loci/cache.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Devices --------------------------------------------------------------------------------- */

typedef struct {
    char id[32];     /* "cuda:0", "opencl:1", "host" */
    char name[128];  /* as its maker calls it */
    char driver[64]; /* its driver and version */
    uint64_t memory; /* bytes; 0 on the host */
    int units;       /* multiprocessors or compute units */
} loci_gpu_info;
/* Fills at most `room` of the list, and returns how many devices there are.  CUDA's come first, the
 * host last: it runs kernels as loops on the CPU, slowly, to check them without a device. */
LOCI_API int loci_gpu_devices(loci_gpu_info *list, int room);

typedef struct loci_gpu loci_gpu;
/* On failure *gpu is NULL.  id NULL: the first one of the list. */
LOCI_API loci_status loci_gpu_open(loci_gpu **gpu, const char *id, loci_error *);
/* A device in the host's own context and stream: "cuda" with CUcontext and CUstream, "opencl" with
 * cl_context and cl_command_queue.  They must outlive the device. */
LOCI_API loci_status loci_gpu_adopt(loci_gpu **gpu, const char *backend, void *context,
                                    void *stream, loci_error *);
/* Its plans and memory must be gone. */
LOCI_API void loci_gpu_close(loci_gpu *);
LOCI_API loci_gpu_info loci_gpu_describe(const loci_gpu *);

/* Memory for hosts that have none of their own.  Pointers can be offset. */
LOCI_API loci_status loci_gpu_alloc(loci_gpu *, size_t bytes, void **memory, loci_error *);
LOCI_API void loci_gpu_free(loci_gpu *, void *memory);
typedef enum { LOCI_GPU_UPLOAD, LOCI_GPU_DOWNLOAD, LOCI_GPU_MOVE } loci_gpu_copy_kind;
/* In the order of the calls.  A download waits; after an upload the source may be reused. */
LOCI_API loci_status loci_gpu_copy(loci_gpu *, void *to, const void *from, size_t bytes,
                                   loci_gpu_copy_kind, loci_error *);
LOCI_API loci_status loci_gpu_wait(loci_gpu *, loci_error *);
/* Seconds that the device works from start to stop; stop waits. */
LOCI_API loci_status loci_gpu_clock_start(loci_gpu *, loci_error *);
LOCI_API loci_status loci_gpu_clock_stop(loci_gpu *, double *seconds, loci_error *);
/* What the device can do, measured: multiply-adds of 32 bits a second, each counted as two
 * operations, and bytes copied a second, counted once read and once written. */
LOCI_API loci_status loci_gpu_peaks(loci_gpu *, double *flops, double *bytes, loci_error *);

/* ---- Plans and calls ------------------------------------------------------------------------- */

typedef struct loci_gpu_plan loci_gpu_plan;
/* Compiles the kernels, or finds them in the cache of programs.  The device and the plan must
 * outlive it.  Threads may share it; their calls need workspaces of their own. */
LOCI_API loci_status loci_gpu_plan_create(loci_gpu_plan **, loci_gpu *, const loci_plan *,
                                          loci_error *);
LOCI_API void loci_gpu_plan_destroy(loci_gpu_plan *);

/* Tables of loci_prepare(), and a copy of them in memory of the device. */
typedef struct {
    const void *host, *device;
} loci_gpu_tables;

/* Bytes of `work`, memory of the device aligned to 64 bytes; 0 if the call is invalid or does not
 * run.  It holds for smaller calls as loci_workspace() says. */
LOCI_API size_t loci_gpu_workspace(const loci_gpu_plan *, const loci_call *, int backward);
LOCI_API loci_status loci_gpu_forward(const loci_gpu_plan *, const loci_gpu_tables *, void *work,
                                      const loci_call *);
/* Gradients in dtensors: those of learned tensors are memory of the host, and a call that wants
 * them waits; those of input tensors are memory of the device, as the tensors are.  So is dmask. */
LOCI_API loci_status loci_gpu_backward(const loci_gpu_plan *, const loci_gpu_tables *, void *work,
                                       const loci_call *, const loci_grad *);

/* ---- Rotate, embed --------------------------------------------------------------------------- */

/* loci_rotate() and loci_embed() with their gradients.  Views and input tensors are memory of the
 * device, and so is `work`, of loci_gpu_workspace().  An embedding needs it, too.  Gradients are
 * where those of loci_gpu_backward() are. */
LOCI_API loci_status loci_gpu_rotate(const loci_gpu_plan *, const loci_gpu_tables *, void *work,
                                     const loci_call *, loci_which, loci_view x, loci_view y);
LOCI_API loci_status loci_gpu_rotate_backward(const loci_gpu_plan *, const loci_gpu_tables *,
                                              void *work, const loci_call *, loci_which,
                                              loci_view x, loci_view dy, loci_view dx,
                                              void *const *dtensors);
LOCI_API loci_status loci_gpu_embed(const loci_gpu_plan *, const loci_gpu_tables *, void *work,
                                    const loci_call *, loci_view x, loci_view y);
LOCI_API loci_status loci_gpu_embed_backward(const loci_gpu_plan *, const loci_gpu_tables *,
                                             void *work, const loci_call *, loci_view dy,
                                             void *const *dtensors);

/* ---- Linear attention ------------------------------------------------------------------------ */

/* loci_linear_forward() and loci_linear_backward().  States are memory of the device with the bytes
 * that they have on the CPU, loci_linear_state() of them.  A call waits for the head of `before`,
 * which has the number of its keys. */
LOCI_API loci_status loci_gpu_linear_forward(const loci_gpu_plan *, const loci_gpu_tables *,
                                             void *work, const loci_call *, const void *before,
                                             void *after);
LOCI_API loci_status loci_gpu_linear_backward(const loci_gpu_plan *, const loci_gpu_tables *,
                                              void *work, const loci_call *, const loci_grad *);

/* ---- Caches ----------------------------------------------------------------------------------
 *
 * A cache of loci/cache.h whose keys and values are memory of the device:
 *
 *     const loci_gpu_cache_bytes bytes = loci_gpu_cache_size(plan_there, batch, capacity);
 *     loci_gpu_cache_create(&cache, plan_there, batch, capacity, 0, host, device, &error);
 *
 *     loci_call call = LOCI_CALL(.batch = batch, .q_len = n, .k_len = n, .cache = cache, ...);
 *     work_bytes = loci_gpu_workspace(plan_there, &call, 0);    // for all calls of up to n rows
 *     loci_gpu_cache_append(plan_there, &tables, work, cache, &call);
 *     loci_gpu_forward(plan_there, &tables, work, &call);
 *
 * Append and forward read what they read on the CPU, and numbers are rotated and rounded alike.
 * loci_cache_length() and loci_cache_truncate() of loci/cache.h are for these caches, too; its
 * other functions refuse them.  Lengths and positions are on the host and change when a call
 * returns, keys and values in the order of the device's work. */

typedef struct {
    size_t host, device;
} loci_gpu_cache_bytes;
/* Bytes of a cache in memory of the host and of the device; 0 if an argument is invalid. */
LOCI_API loci_gpu_cache_bytes loci_gpu_cache_size(const loci_gpu_plan *, ptrdiff_t batch,
                                                  ptrdiff_t capacity);
/* loci_cache_create() with both memories, each aligned to 64 bytes. */
LOCI_API loci_status loci_gpu_cache_create(loci_cache **, const loci_gpu_plan *, ptrdiff_t batch,
                                           ptrdiff_t capacity, int ring, void *host, void *device,
                                           loci_error *);
/* loci_cache_append().  k, v and input tensors are memory of the device. */
LOCI_API loci_status loci_gpu_cache_append(const loci_gpu_plan *, const loci_gpu_tables *,
                                           void *work, loci_cache *, const loci_call *);
/* loci_cache_remove() and loci_cache_fork().  Nothing has to be computed for a fork. */
LOCI_API loci_status loci_gpu_cache_remove(const loci_gpu_plan *, const loci_gpu_tables *,
                                           void *work, loci_cache *, ptrdiff_t entry, int64_t first,
                                           int64_t count, const loci_call *);
LOCI_API loci_status loci_gpu_cache_fork(const loci_gpu_plan *, loci_cache *, ptrdiff_t from,
                                         ptrdiff_t to, int64_t length, loci_error *);

/* Trees of tokens in such a cache: loci_tree_forward() and loci_tree_keep() of loci/cache.h.
 * Nothing has to be computed to keep nodes; of the call, batch, q_len, k_len and error are read. */
LOCI_API size_t loci_gpu_tree_workspace(const loci_gpu_plan *, const loci_cache *,
                                        const loci_tree *, const loci_call *);
LOCI_API loci_status loci_gpu_tree_forward(const loci_gpu_plan *, const loci_gpu_tables *,
                                           void *work, loci_cache *, const loci_tree *,
                                           const loci_call *);
LOCI_API loci_status loci_gpu_tree_keep(const loci_gpu_plan *, loci_cache *, const loci_tree *,
                                        const int64_t *last, const loci_call *);

#ifdef __cplusplus
}
#endif

#endif
