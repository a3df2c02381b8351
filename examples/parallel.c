/* SPDX-License-Identifier: MIT */
/* parallel.c -- a prompt of 20000 tokens over the processes of an MPI job, its gradients as a
 * training step has them, then one more token against all of them.  The same hashes for any number
 * of processes:
 *
 *     mpirun -n 4 ./example_parallel          (alone: one process) */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <loci/mpi.h>
#include <loci/parallel.h>

enum { ROWS = 20000, HEADS = 4, KV_HEADS = 2, DIM = 64, CHUNK = 4096, MOST_RANKS = 64 };

static void stop(const char *why)
{
    fprintf(stderr, "%s\n", why);
    MPI_Abort(MPI_COMM_WORLD, 1);
}
/* Numbers that depend on where they are alone, as a model's would on its tokens. */
static float number(int what, int head, int64_t row, int d)
{
    uint64_t x = (uint64_t)row * 1000003 + (uint64_t)(what * 10007 + head * 101 + d);
    x = (x ^ x >> 31) * UINT64_C(0x9e3779b97f4a7c15);
    return (float)((double)(x >> 40) / (1 << 23) - 1);
}
/* [heads][count][DIM] of rows first .. first + count - 1, the at-th ones of `all` in x. */
static void fill(float *x, int what, int heads, int64_t first, int64_t count, int64_t at,
                 int64_t all)
{
    for (int h = 0; h < heads; h++)
        for (int64_t i = 0; i < count; i++)
            for (int d = 0; d < DIM; d++)
                x[(h * all + at + i) * DIM + d] = number(what, h, first + i, d);
}
static float *take(int64_t heads, int64_t rows)
{
    return malloc((size_t)(heads * rows + 1) * DIM * sizeof(float));
}
/* The sum of a hash of each row: no order of rows, so that ranks can add up theirs. */
static uint64_t hash(const float *o, int64_t rows)
{
    uint64_t sum = 0;
    for (int64_t i = 0; i < rows; i++) {
        uint64_t h = UINT64_C(0xcbf29ce484222325);
        for (size_t k = 0; k < DIM * sizeof *o; k++)
            h = (h ^ ((const unsigned char *)(o + i * DIM))[k]) * UINT64_C(0x100000001b3);
        sum += h;
    }
    return sum;
}

/* Of all ranks, on rank 0. */
static void print_sum(const char *what, const loci_transport *t, uint64_t mine)
{
    uint64_t sum = 0;
    MPI_Reduce(&mine, &sum, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (t->rank == 0) printf("%-10s %016llx\n", what, (unsigned long long)sum);
}

int main(int argc, char **argv)
{
    loci_error e = { .status = LOCI_OK };
    loci_transport transport;
    int level;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
    if (loci_mpi_create(&transport, MPI_COMM_WORLD, 600, &e)) stop(e.text);

    loci_desc desc = LOCI_DESC(.encoding = "t5:bidirectional=0+sink", .heads = HEADS,
                               .kv_heads = KV_HEADS, .dim = DIM);
    loci_plan *plan;
    if (loci_plan_create(&plan, &desc, &e)) stop(e.text);
    loci_tensor list[8];
    const void *tensors[8];
    void *dtensors[8];
    size_t counts[8];
    const int n = loci_tensors(plan, list, 8);
    for (int i = 0; i < n; i++) {
        size_t numbers = 1;
        for (int d = 0; d < list[i].rank; d++) numbers *= (size_t)list[i].shape[d];
        float *x = malloc(numbers * sizeof *x);
        loci_tensor_init(plan, i, 1, x);
        tensors[i] = x;
        dtensors[i] = malloc(numbers * sizeof *x);
        counts[i] = numbers;
    }
    const size_t tables_bytes = loci_tables_size(plan, ROWS);
    void *tables = aligned_alloc(64, tables_bytes);
    if (loci_prepare(plan, ROWS, tensors, tables)) stop("the tables cannot be prepared");

    /* The prompt: each process has two pieces of it. */
    loci_share shares[2 * MOST_RANKS];
    loci_parallel all = LOCI_PARALLEL(.transport = &transport, .shares = shares);
    all.count = loci_share_out(LOCI_ZIGZAG, ROWS, transport.ranks, shares, 2 * MOST_RANKS);
    if (all.count > 2 * MOST_RANKS) stop("too many processes for this example");
    int64_t mine = 0, at = 0;
    for (int i = 0; i < all.count; i++)
        mine += shares[i].rank == transport.rank ? shares[i].count : 0;
    float *q = take(HEADS, mine), *k = take(KV_HEADS, mine), *v = take(KV_HEADS, mine),
          *o = take(HEADS, mine), *lse = malloc((size_t)(HEADS * mine + 1) * sizeof *lse);
    float *dq = take(HEADS, mine), *dk = take(KV_HEADS, mine), *dv = take(KV_HEADS, mine),
          *dout = take(HEADS, mine);
    for (int i = 0; i < all.count; i++) {
        const loci_share *s = &shares[i];
        if (s->rank != transport.rank) continue;
        fill(q, 0, HEADS, s->first, s->count, at, mine);
        fill(k, 1, KV_HEADS, s->first, s->count, at, mine);
        fill(v, 2, KV_HEADS, s->first, s->count, at, mine);
        fill(dout, 3, HEADS, s->first, s->count, at, mine);
        at += s->count;
    }
    loci_call call = LOCI_CALL(.batch = 1, .q_len = (ptrdiff_t)mine, .k_len = (ptrdiff_t)mine,
                               .error = &e, .tables_bytes = tables_bytes);
    call.q.data = q;
    call.k.data = k;
    call.v.data = v;
    call.o.data = o;
    call.lse = lse;
    call.work_bytes = loci_parallel_workspace(plan, &call, &all, 1);
    void *work = aligned_alloc(64, call.work_bytes);
    if (!work || loci_parallel_forward(plan, tables, work, &call, &all)) stop(e.text);
    print_sum("prompt", &transport, hash(o, HEADS * mine));

    /* Gradients: those of rows and keys stay with their owners, those of tables all ranks have. */
    loci_grad grad = LOCI_GRAD(.dtensors = dtensors);
    grad.dout.data = dout;
    grad.dq.data = dq;
    grad.dk.data = dk;
    grad.dv.data = dv;
    if (loci_parallel_backward(plan, tables, work, &call, &grad, &all)) stop(e.text);
    print_sum("dq", &transport, hash(dq, HEADS * mine));
    print_sum("dk and dv", &transport, hash(dk, KV_HEADS * mine) + hash(dv, KV_HEADS * mine));
    double norm = 0;
    for (int i = 0; i < n; i++)
        for (size_t c = 0; c < counts[i]; c++)
            norm += ((float *)dtensors[i])[c] * ((float *)dtensors[i])[c];
    if (transport.rank == 0) printf("%-10s %.17g\n", "tables", norm);
    free(work);
    free(q);
    free(k);
    free(v);
    free(o);
    free(lse);
    free(dq);
    free(dk);
    free(dv);
    free(dout);

    /* One more token: its key goes to the last owner, and its row is the same everywhere. */
    const int64_t keys = ROWS + 1, each = (keys / CHUNK / transport.ranks + 1) * CHUNK;
    for (int r = 0; r < transport.ranks; r++) {
        const int64_t first = r * each < keys ? r * each : keys,
                      end = first + each < keys ? first + each : keys;
        shares[r] = (loci_share){ first, end - first, r };
    }
    all.count = transport.ranks;
    const loci_share *own = &shares[transport.rank];
    q = take(HEADS, 1);
    k = take(KV_HEADS, own->count);
    v = take(KV_HEADS, own->count);
    o = take(HEADS, 1);
    fill(q, 0, HEADS, ROWS, 1, 0, 1);
    fill(k, 1, KV_HEADS, own->first, own->count, 0, own->count);
    fill(v, 2, KV_HEADS, own->first, own->count, 0, own->count);
    call.q_len = 1;
    call.k_len = (ptrdiff_t)own->count;
    call.q.data = q;
    call.k.data = k;
    call.v.data = v;
    call.o.data = o;
    call.lse = NULL;
    call.work_bytes = loci_parallel_decode_workspace(plan, &call, &all);
    work = aligned_alloc(64, call.work_bytes);
    if (!work || loci_parallel_decode(plan, tables, work, &call, &all)) stop(e.text);
    if (transport.rank == 0) printf("%-10s %016llx\n", "token", (unsigned long long)hash(o, HEADS));

    free(work);
    free(q);
    free(k);
    free(v);
    free(o);
    free(tables);
    for (int i = 0; i < n; i++) {
        free((void *)tensors[i]);
        free(dtensors[i]);
    }
    loci_plan_destroy(plan);
    loci_mpi_destroy(&transport);
    MPI_Finalize();
    return 0;
}
