/* SPDX-License-Identifier: MIT */
/* attention.c -- causal attention with a rotation and a learned bias, from the plan to the
 * result. */
#include <stdio.h>
#include <stdlib.h>

#include <loci/loci.h>

enum { HEADS = 4, LENGTH = 100, DIM = 32, BUCKETS = 16 };
static float q[HEADS][LENGTH][DIM], k[HEADS][LENGTH][DIM], v[HEADS][LENGTH][DIM],
    o[HEADS][LENGTH][DIM];
static float lse[HEADS][LENGTH], bias[BUCKETS][HEADS];

static void fill(float *x, int count)
{
    for (int i = 0; i < count; i++) x[i] = (float)rand() / (float)RAND_MAX - 0.5f;
}

int main(void)
{
    /* 1. The plan: every error of wish shows here, as a sentence. */
    loci_desc d =
        LOCI_DESC(.encoding = "rope:pairing=half+t5:buckets=16", .heads = HEADS, .dim = DIM);
    loci_error e;
    loci_plan *plan;
    if (loci_plan_create(&plan, &d, &e)) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }

    /* 2. What the encoding learns.  rope has no tensors, t5 one; its paper starts it at zero, which
     * would be dull here. */
    loci_tensor wanted;
    if (loci_tensors(plan, &wanted, 1) != 1) {
        fprintf(stderr, "more tensors than expected\n");
        return 1;
    }
    printf("%s.%s is [%td][%td]\n", wanted.encoding, wanted.name, wanted.shape[0], wanted.shape[1]);
    fill(bias[0], BUCKETS * HEADS);
    const void *tensors[] = { bias };

    /* 3. Tables: made once, and again whenever the bias changes. */
    const size_t tables_bytes = loci_tables_size(plan, LENGTH);
    void *tables = aligned_alloc(64, tables_bytes);
    if (!tables || loci_prepare(plan, LENGTH, tensors, tables)) {
        fprintf(stderr, "no tables\n");
        return 1;
    }

    /* 4. The call: shapes, buffers, and a workspace for them. */
    fill(q[0][0], HEADS * LENGTH * DIM);
    fill(k[0][0], HEADS * LENGTH * DIM);
    fill(v[0][0], HEADS * LENGTH * DIM);
    loci_call call = LOCI_CALL(.batch = 1, .q_len = LENGTH, .k_len = LENGTH, .q.data = q,
                               .k.data = k, .v.data = v, .o.data = o, .lse = lse,
                               .tensors = tensors, .error = &e, .tables_bytes = tables_bytes);
    call.work_bytes = loci_workspace(plan, &call, 0);
    void *work = aligned_alloc(64, call.work_bytes);
    if (!work || loci_forward(plan, tables, work, &call)) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }

    printf("%s\n", loci_plan_text(plan));
    for (int h = 0; h < HEADS; h++)
        printf("head %d: the last row has lse %.6f\n", h, lse[h][LENGTH - 1]);
    free(work);
    free(tables);
    loci_plan_destroy(plan);
    return 0;
}
