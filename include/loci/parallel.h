/* SPDX-License-Identifier: MIT */
/* loci/parallel.h: one attention over many processes, each of which owns some rows and keys.
 *
 *     loci_share shares[2 * RANKS];
 *     loci_parallel all = LOCI_PARALLEL(.transport = &transport, .shares = shares);
 *     all.count = loci_share_out(LOCI_ZIGZAG, rows, ranks, shares, 2 * RANKS);
 *
 *     loci_call call = LOCI_CALL(.batch = 1, .q_len = mine, .k_len = mine, ...);  // of this rank
 *     call.work_bytes = loci_parallel_workspace(plan, &call, &all, 0);
 *     void *work = aligned_alloc(64, call.work_bytes);
 *     loci_parallel_forward(plan, tables, work, &call, &all);
 *
 * loci_parallel_backward() trains, loci_parallel_decode() decodes.
 *
 * Every result has the bits of one process.  They do not depend on the number of ranks, the
 * shares, the transport, or the threads and instruction set of each rank.
 *
 * loci has no network code.  The transport is a table of functions over a network of yours;
 * loci/mpi.h fills it for MPI.  Nothing here starts a process or a thread. */
#ifndef LOCI_LOCI_PARALLEL_H
#define LOCI_LOCI_PARALLEL_H

#include "loci/loci.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Carries bytes between ranks 0 .. ranks - 1.  Only the thread that called loci calls these
 * functions.  Each returns 0, or something else if the transport is broken for good.  wait() is
 * then still called for every open request, and must end it. */
typedef struct {
    /* sizeof(loci_transport) */
    size_t size;
    /* The number of this rank, and the number of ranks. */
    int rank, ranks;
    /* Begin a message and return without waiting for the other side.  They store a request; `data`
     * belongs to it until it has ended.  After both sides have begun a message it must complete
     * even if neither of them waits yet.  Messages from one rank to another with one tag arrive in
     * the order of sending, with the size that was sent. */
    int (*send)(void *user, int to, int tag, const void *data, size_t bytes, void **request);
    int (*receive)(void *user, int from, int tag, void *data, size_t bytes, void **request);
    /* Ends a request and sets it to NULL.  A NULL request has ended. */
    int (*wait)(void *user, void **request);
    /* Like wait(), but only if the request is complete; lets the transport progress.  NULL: the
     * transport progresses by itself. */
    int (*test)(void *user, void **request);
    /* Replaces each number by the largest that any rank has in its place.  All ranks call it with
     * the same number of numbers, and it returns when the results are known. */
    int (*highest)(void *user, int64_t *list, int n);
    void *user;
} loci_transport;
/* The macro of loci_transport; LOCI_TRANSPORT is a status. */
#define LOCI_TRANSPORT_INIT(...) LOCI_SIZED(loci_transport, __VA_ARGS__)

/* Rank `rank` owns rows, or keys, first .. first + count - 1. */
typedef struct {
    int64_t first, count;
    int rank;
} loci_share;

/* Divides the rows of a sequence among ranks, in equal pieces:
 *
 *     CONTIGUOUS    rank r has piece r of `ranks`
 *     ZIGZAG        rank r has pieces r and 2 ranks - 1 - r of 2 ranks: equal work with a causal
 *                   mask, because later rows see more keys
 *
 * Pieces start at multiples of 4096 rows if each of 2 ranks pieces can have that many; else of
 * 1024, which a backward pass requires; else of 64.  Any other list is valid if it contains rows 0
 * to the last, each in one share, in rising order.
 *
 * Returns the number of shares, empty ones included, and fills at most `room` of the list.  Returns
 * 0 if rows or ranks are invalid. */
typedef enum { LOCI_CONTIGUOUS, LOCI_ZIGZAG } loci_layout;
LOCI_API int loci_share_out(loci_layout, int64_t rows, int ranks, loci_share *list, int room);

/* Statistics of a call on this rank. */
typedef struct {
    /* sizeof(loci_parallel_report) */
    size_t size;
    /* Seconds of work, and seconds of waiting for other ranks. */
    double attention, waited;
    /* Bytes of keys, values, and what belongs to them. */
    uint64_t sent, received;
} loci_parallel_report;
#define LOCI_PARALLEL_REPORT(...) LOCI_SIZED(loci_parallel_report, __VA_ARGS__)

typedef struct {
    /* sizeof(loci_parallel) */
    size_t size;
    const loci_transport *transport;
    /* The owner of each row and of each key, the same lists on every rank.  key_shares NULL: a rank
     * owns the keys of its rows.  Set it for cross attention. */
    const loci_share *shares, *key_shares;
    int count, key_count;
    /* 0: keys pass through in chunks of 4096 and are not stored.  1: a rank collects all keys that
     * its rows may see. */
    int gather;
    /* The number of messages requested in advance; 0 = 2. */
    int ahead;
    /* 1: compare the tables of all ranks by a hash of their bytes. */
    int check_tables;
    /* Output, or NULL. */
    loci_parallel_report *report;
} loci_parallel;
#define LOCI_PARALLEL(...) LOCI_SIZED(loci_parallel, __VA_ARGS__)

/* A call describes what this rank owns: q_len rows and k_len keys, those of its shares in order,
 * in each batch entry; and their o, lse, rem, ae, positions, coordinates and INPUT tensors.
 * Default positions count over all ranks: keys from 0, and rows are the last of them.  Tables are
 * the same on every rank, and so is dropout: a rank drops what one process drops of its rows and
 * keys.  Segments, starts, k_lens, pages, caches and masks are not supported.
 *
 * All ranks call, in the same order.  They agree before anything is sent: if a call is invalid on
 * one rank, or ranks differ, all return the same error and write nothing.  A rank whose host
 * cancels continues to serve the others; then all return LOCI_CANCELLED.  Ranks whose transport
 * fails return LOCI_TRANSPORT.
 *
 * loci_parallel_workspace() returns the bytes of `work`, 0 if the call or the shares are invalid;
 * loci_parallel_forward() then says what is wrong.  backward 1: the size is for both passes.  With
 * the same shares, the size is enough for calls with fewer batch entries or threads.  It does not
 * grow steadily with the length of the sequence: the borders of shares and of chunks move, and a
 * rank may own fewer rows of a longer sequence.  So ask for every list of shares that you will use,
 * and give each rank its largest result.
 *
 * In the backward pass, gradients of rows, keys and INPUT tensors are those that this rank owns.
 * Gradients of LEARNED and FIXED tensors are complete and equal on every rank: do not add them up.
 * All ranks must ask for the same gradients.  Shares of rows must start at multiples of 1024 (those
 * of loci_share_out() do if there are enough rows), and shares of keys at multiples of 64. */
LOCI_API size_t loci_parallel_workspace(const loci_plan *, const loci_call *, const loci_parallel *,
                                        int backward);
LOCI_API loci_status loci_parallel_forward(const loci_plan *, const void *tables, void *work,
                                           const loci_call *, const loci_parallel *);
LOCI_API loci_status loci_parallel_backward(const loci_plan *, const void *tables, void *work,
                                            const loci_call *, const loci_grad *,
                                            const loci_parallel *);

/* Decode: q_len new rows, the same on every rank, against keys that ranks share.  k and v, or a
 * cache, hold the keys that this rank owns by key_shares (or shares): one piece for each rank that
 * owns any, starting at a multiple of 4096 keys.  New keys go to the last owner, and to the next
 * rank when it is full.  o, lse, rem and ae are written on every rank.  Append keys to a cache with
 * the positions that they have among all keys.
 *
 * The size of loci_parallel_decode_workspace() is enough for calls with fewer batch entries, rows,
 * keys (of the rank and of all ranks) or threads.  For a generation, ask with the largest q_len and
 * with the shares that have the largest number of keys. */
LOCI_API size_t loci_parallel_decode_workspace(const loci_plan *, const loci_call *,
                                               const loci_parallel *);
LOCI_API loci_status loci_parallel_decode(const loci_plan *, const void *tables, void *work,
                                          const loci_call *, const loci_parallel *);

#ifdef __cplusplus
}
#endif
#endif
