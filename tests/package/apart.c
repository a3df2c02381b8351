/* SPDX-License-Identifier: MIT */
/* apart.c -- a program outside the tree, in several processes: each has a row, and gets the average
 * of all values up to it. */
#include <loci/mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    enum { DIM = 8, MOST = 16 };
    int level, wrong = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
    loci_transport t;
    loci_error e;
    loci_plan *plan;
    const loci_desc d = LOCI_DESC(.heads = 1, .dim = DIM);
    if (loci_mpi_create(&t, MPI_COMM_WORLD, 60, &e) || loci_plan_create(&plan, &d, &e)) {
        fprintf(stderr, "%s\n", e.text);
        return MPI_Abort(MPI_COMM_WORLD, 1);
    }

    loci_share shares[MOST];
    for (int r = 0; r < t.ranks && r < MOST; r++) shares[r] = (loci_share){ r, 1, r };
    const loci_parallel all =
        LOCI_PARALLEL(.transport = &t, .shares = shares, .count = t.ranks, .gather = 1);
    float q[DIM] = { 0 }, k[DIM] = { 0 }, v[DIM], o[DIM];
    for (int i = 0; i < DIM; i++) v[i] = (float)t.rank;
    loci_call call =
        LOCI_CALL(.batch = 1, .q_len = 1, .k_len = 1, .q = { .data = q }, .k = { .data = k },
                  .v = { .data = v }, .o = { .data = o }, .error = &e);
    call.tables_bytes = loci_tables_size(plan, MOST);
    call.work_bytes = loci_parallel_workspace(plan, &call, &all, 0);
    void *tables = aligned_alloc(64, call.tables_bytes);
    void *work = aligned_alloc(64, call.work_bytes);
    if (loci_prepare(plan, MOST, NULL, tables)
        || loci_parallel_forward(plan, tables, work, &call, &all)) {
        fprintf(stderr, "%s\n", e.text);
        return MPI_Abort(MPI_COMM_WORLD, 1);
    }
    for (int i = 0; i < DIM; i++) wrong |= o[i] != (float)t.rank / 2;
    printf("rank %d of %d: %g\n", t.rank, t.ranks, (double)o[0]);
    free(work);
    free(tables);
    loci_plan_destroy(plan);
    loci_mpi_destroy(&t);
    MPI_Finalize();
    return wrong;
}
