/* SPDX-License-Identifier: MIT */
/* old.c -- a program linked with 0.2: bound to that version of loci_plan_create(), and with structs
 * whose size is 0.  Fields of 0.1 count, and later ones are ignored. */
#include <loci/loci.h>
#include <stdio.h>
#include <stdlib.h>

#ifndef LINKED_TODAY
__asm__(".symver loci_plan_create, loci_plan_create@LOCI_0.2");
#endif

int main(void)
{
    enum { DIM = 4 };
    loci_plan *plan;
    loci_error e;
    const loci_desc d = { .encoding = "alibi", .heads = 1, .dim = DIM };
    if (loci_plan_create(&plan, &d, &e)) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    float q[DIM] = { 0 }, k[DIM] = { 0 }, v[DIM] = { 1, 2, 3, 4 }, o[DIM] = { 0 };
    const loci_call call = {
        .batch = 1,
        .q_len = 1,
        .k_len = 1,
        .q = { .data = q },
        .k = { .data = k },
        .v = { .data = v },
        .o = { .data = o },
        .error = &e,
        .work_bytes = 1,
        .mask_kind = LOCI_MASK_SEEN,
    };
    void *tables = aligned_alloc(64, loci_tables_size(plan, 1));
    void *work = aligned_alloc(64, loci_workspace(plan, &call, 0));
    if (loci_prepare(plan, 1, NULL, tables) || loci_forward(plan, tables, work, &call)) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    free(work);
    free(tables);
    loci_plan_destroy(plan);
    return o[DIM - 1] != v[DIM - 1];
}
