/* SPDX-License-Identifier: MIT */
/* loci/parallel.h: one attention over many processes, each with some of its rows and keys.
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
 * loci_parallel_backward() and loci_parallel_decode() go with it.
 *
 * The bits of every result are those of one process, whatever the number of ranks, the shares, the
 * transport, and the threads and instruction set of each rank.
 *
 * loci has no network of its own: the transport is a table of functions over one that the host has.
 * loci/mpi.h fills it for MPI.  Nothing here starts a process or a thread. */
#ifndef LOCI_LOCI_PARALLEL_H
#define LOCI_LOCI_PARALLEL_H

#include "loci/loci.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What carries bytes between ranks 0 .. ranks - 1.  send() and receive() begin a message, and
 * return without waiting for the other side; what they begin is a request, and `data` belongs to it
 * until it has ended.  Once both sides have begun one, neither has to wait for the other to wait.
 * Messages from one rank to another with the same tag arrive in the order in
 * which they were sent, with the size that they were sent with.  wait() ends a request; test() ends
 * it if it is done, and lets the transport go on with others meanwhile.  Both leave NULL in it when
 * it has ended, and take NULL for none.
 *
 * All return 0, or something else when the transport is broken for good.  Then wait() is still
 * called for every request that is open, and must end it, one way or the other.
 *
 * Only the thread that called loci calls these functions. */
typedef struct {
    size_t size;                         /* sizeof(loci_transport) */
    int rank, ranks;                     /* its own number, and how many there are */
    int (*send)(void *user, int to, int tag, const void *data, size_t bytes, void **request);
    int (*receive)(void *user, int from, int tag, void *data, size_t bytes, void **request);
    int (*wait)(void *user, void **request);
    int (*test)(void *user, void **request);         /* NULL: the transport goes on by itself */
    /* Each number becomes the highest that any rank has there.  All ranks call it with as many
     * numbers, and it returns when they are known. */
    int (*highest)(void *user, int64_t *list, int n);
    void *user;
} loci_transport;
/* LOCI_TRANSPORT is a status. */
#define LOCI_TRANSPORT_INIT(...) { .size = sizeof(loci_transport), __VA_ARGS__ }

/* Rows, or keys, first .. first + count - 1 are a rank's. */
typedef struct { int64_t first, count; int rank; } loci_share;

/* Shares the rows of a sequence out among ranks, in equal pieces:
 *
 *     CONTIGUOUS    rank r has piece r of `ranks`
 *     ZIGZAG        rank r has pieces r and 2 ranks - 1 - r of 2 ranks: equal work with a causal
 *                   mask, where later rows see more keys
 *
 * Pieces begin at multiples of 4096 rows where each of 2 ranks pieces can have so many, else of
 * 1024, which a backward pass wants, and where there are too few rows for that, of 64.  Any other
 * list of shares will do as well: rows 0 to the last, each in one share, in rising order.  Returns
 * how many shares there are, empty ones included, and fills at most `room`; 0: rows or ranks are
 * not such as there can be. */
typedef enum { LOCI_CONTIGUOUS, LOCI_ZIGZAG } loci_layout;
LOCI_API int loci_share_out(loci_layout, int64_t rows, int ranks, loci_share *list, int room);

/* What a call did on this rank. */
typedef struct {
    size_t size;                         /* sizeof(loci_parallel_report) */
    double attention, waited;            /* seconds of work, and of waiting for other ranks */
    uint64_t sent, received;             /* bytes of keys, values, and what belongs to them */
} loci_parallel_report;
#define LOCI_PARALLEL_REPORT(...) { .size = sizeof(loci_parallel_report), __VA_ARGS__ }

typedef struct {
    size_t size;                         /* sizeof(loci_parallel) */
    const loci_transport *transport;
    /* Who owns which rows, and, where keys are others than the rows (cross attention), which keys;
     * NULL: those of the rows.  The same lists on every rank. */
    const loci_share *shares, *key_shares;
    int count, key_count;
    int gather;                          /* 0: keys come by in chunks of 4096, and none is kept;
                                            1: a rank collects all that its rows may see */
    int ahead;                           /* messages it asks for before it needs them; 0 = 2 */
    int check_tables;                    /* 1: tables are compared, too, by a hash of all their
                                            bytes */
    loci_parallel_report *report;        /* or NULL */
} loci_parallel;
#define LOCI_PARALLEL(...) { .size = sizeof(loci_parallel), __VA_ARGS__ }

/* A call describes what this rank owns: q_len rows and k_len keys, those of its shares one after
 * the other, in each batch entry; and o, lse, rem, ae, positions, coordinates and INPUT tensors of
 * these.  By default rows and keys are numbered over all ranks: keys from 0, and rows are the last
 * of them.  Tables are the same on every rank.  There are no segments, starts, k_lens, pages,
 * caches or masks.
 *
 * All ranks call, in the same order.  They agree before anything is sent: whatever is wrong on one
 * of them, and whatever they differ in, is returned by all, in the same words, and nothing is
 * written.  A rank whose host cancels goes on serving the others, and then all return
 * LOCI_CANCELLED.  LOCI_TRANSPORT is returned by those whose transport fails.
 *
 * loci_parallel_workspace() returns the bytes of `work`, 0 if the call or the shares are invalid;
 * loci_parallel_forward() says why.  backward: it serves both passes.  With the same shares it
 * serves calls of fewer entries or threads.  It does not rise with the length of the sequence: the
 * borders of shares and of chunks move, and a rank can own fewer rows of a longer sequence.  So ask
 * for every list of shares, and give each rank the largest result.
 *
 * Gradients of rows, keys and INPUT tensors by row or key are the rank's own, too; those of LEARNED
 * and FIXED tensors are whole, and the same on every rank: they are not to be added up.  All ranks
 * want the same gradients.  There, shares of rows begin at multiples of 1024, as those of
 * loci_share_out() do where there are enough rows, and shares of keys at multiples of 64. */
LOCI_API size_t      loci_parallel_workspace(const loci_plan *, const loci_call *,
                                             const loci_parallel *, int backward);
LOCI_API loci_status loci_parallel_forward(const loci_plan *, const void *tables, void *work,
                                           const loci_call *, const loci_parallel *);
LOCI_API loci_status loci_parallel_backward(const loci_plan *, const void *tables, void *work,
                                            const loci_call *, const loci_grad *,
                                            const loci_parallel *);

/* New rows, the same on every rank, against keys that are spread: q_len rows, and k and v or a
 * cache of those keys that are the rank's by key_shares (or shares): one piece for each rank that
 * has any, from a multiple of 4096 keys on.  New keys go to the last owner, and to the next one
 * when it is full.  o, lse, rem and ae are written on every rank.  Keys in a cache are appended
 * with the positions that they have among all keys.
 *
 * What loci_parallel_decode_workspace() returns is enough for calls of fewer entries, rows, keys
 * (of the rank and of all) or threads.  For a generation, ask with the largest q_len, and with
 * shares that have the largest number of keys. */
LOCI_API size_t      loci_parallel_decode_workspace(const loci_plan *, const loci_call *,
                                                    const loci_parallel *);
LOCI_API loci_status loci_parallel_decode(const loci_plan *, const void *tables, void *work,
                                          const loci_call *, const loci_parallel *);

#ifdef __cplusplus
}
#endif
#endif
