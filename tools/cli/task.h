/* SPDX-License-Identifier: MIT */
/* task.h -- a plan with all data to run it: tensors, tables, workspace, a call, gradients. */
#ifndef LOCI_CLI_TASK_H
#define LOCI_CLI_TASK_H

#include "cli/cli.h"
#include "math/half.h"

struct task {
    loci_desc desc;
    loci_plan *plan;
    /* type of tensors and rows, F32 or F64; desc.dtype is that of q */
    loci_dtype reals;
    size_t real; /* bytes of one */
    ptrdiff_t batch, q_len, k_len;

    int tensors; /* of the plan, in its order */
    /* shapes are those of this call, nothing negative */
    loci_tensor *tensor;
    void **data, **ddata; /* ddata[i] NULL: fixed, or before task_gradients() */

    loci_call call;
    loci_grad grad;
    loci_view x, y, dy, dx; /* stages ROTATE and EMBED */
    loci_which which;

    void *tables, *work;
    size_t table_bytes, work_bytes;
    loci_error error;
    int owned, capacity; /* buffers that task_close() frees */
    void **own;
};

/* Creates the plan and sizes its tensors.  Prints its error, after `about` and a colon unless that
 * is NULL, and returns false.  You may close a task that failed to open, or one that is all
 * zero. */
bool task_open(struct task *, const loci_desc *, ptrdiff_t batch, ptrdiff_t q_len, ptrdiff_t k_len,
               const char *about);
void task_close(struct task *);
/* Are rotated keys of this plan wider than those of a call? */
bool task_has_wide_keys(const loci_plan *);
/* Describes the embedding of an encoding that works on embeddings, for an attention of this
 * form. */
loci_desc task_embedding(const loci_desc *attention, const char *encoding);

/* Zeroed, freed by task_close(). */
void *task_alloc(struct task *, size_t count, size_t each);
ptrdiff_t shape_count(int rank, const ptrdiff_t *shape); /* 0 on overflow */
/* Allocates ddata for all tensors that are not fixed. */
void task_gradients(struct task *);
void task_random_tensors(struct task *, uint64_t seed); /* fills data */
/* Fills q, k, v or x, outputs and cotangents. */
void task_random_inputs(struct task *, uint64_t seed);
/* Call it last: sets gates that hardly forget, and scores at which a stick lasts.  For f32. */
void task_lasting(struct task *);

/* Allocates tables and prepares them from data. */
loci_status task_tables(struct task *, ptrdiff_t max_distance);
/* The same, and allocates a workspace, the larger one of both passes if backward. */
loci_status task_prepare(struct task *, ptrdiff_t max_distance, bool backward);
loci_status task_forward(struct task *), task_backward(struct task *);
/* Runs forward, and backward if asked, by the float64 reference.  The task's dtype is F64. */
loci_status task_reference(struct task *, bool backward);

/* Numbers distributed like N(0, 1), times scale.  The same seed gives the same numbers. */
void fill_normal(void *data, loci_dtype, ptrdiff_t count, uint64_t seed, double scale);

#endif
