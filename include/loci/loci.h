/* SPDX-License-Identifier: MIT */
/* loci: every positional encoding for Transformers, fused into attention, forward and backward.
 *
 *     loci_desc d = LOCI_DESC(.encoding = "rope:pairing=half+fox", .heads = 8, .kv_heads = 2,
 *                             .dim = 64);
 *     loci_error e;
 *     loci_plan *plan;
 *     if (loci_plan_create(&plan, &d, &e)) { fprintf(stderr, "%s\n", e.text); return 1; }
 *
 *     loci_call call = LOCI_CALL(.batch = 1, .q_len = L, .k_len = L, .tensors = tensors,
 *                                .q = { q }, .k = { k }, .v = { v }, .o = { o }, .error = &e);
 *     call.tables_bytes = loci_tables_size(plan, L);
 *     void *tables = aligned_alloc(64, call.tables_bytes);
 *     loci_prepare(plan, L, tensors, tables);              // again when a learned tensor changes
 *
 *     call.work_bytes = loci_workspace(plan, &call, 0);    // enough for fewer rows and keys, too
 *     void *work = aligned_alloc(64, call.work_bytes);
 *     if (loci_forward(plan, tables, work, &call))         // training, prefill and decode alike
 *         fprintf(stderr, "%s\n", e.text);
 *
 * Who owns what.  You own every buffer; loci allocates plans and thread pools only, and keeps no
 * pointer of yours.  Plans and prepared tables are read-only afterwards: any number of threads
 * share them, each call with its own workspace.  Nothing in a workspace outlives the call.  Buffers
 * named `tables` and `work` are aligned to 64 bytes, and their sizes are multiples of 64.
 *
 * Failure.  A function that can fail returns a loci_status.  What is wrong is found before anything
 * is written: then nothing but the error changes, and perhaps `work`.  A call that its host cancels
 * has begun: what it writes is then neither old nor new, unless it says otherwise, and the same
 * call may be made again.  The library prints nothing, never exits, and keeps nothing between calls
 * but the list of encodings, which is the same for all.
 *
 * Lifetimes.  A plan, tables, a pool or a cache may go when no call has them any more: destroying
 * one during a call is the host's mistake, which nobody finds.  A call takes at most 64 KB of the
 * stack of its thread, and so does each thread of its host that helps; so threads of 128 KB will
 * do.  After fork() the child may use plans and tables, and destroy them, and make pools of its
 * own; a pool that it has inherited runs all jobs in the calling thread, and may be destroyed or
 * left alone.  Calls that other threads were in do not go on in the child.
 *
 * The process.  A call takes no memory, starts no thread and touches no file, and leaves as they
 * were: handlers and masks of signals, the state of floating point (but for its sticky flags),
 * locale, working folder, umask, environment and limits.  Threads of a pool block all signals.
 *
 * Memory.  Whatever a call writes must share no byte with anything else that it reads or writes,
 * and not with itself; where an output may be an input in place, it is exactly that array, with the
 * same strides.  Views may interleave: q, k and v in one buffer, or their gradients.  Pointers are
 * multiples of the size of their numbers.
 *
 * Positions lie within 2^40 on either side of 0, coordinates too.
 *
 * Sizes.  Structs that may grow begin with their size, which tells the library what fields your
 * program knows.  Initialise them by their macros, which set it: LOCI_DESC(...), LOCI_CALL(...),
 * LOCI_GRAD(...) here, and those of the other headers.  Zero means "the usual" in all other fields,
 * so name only those that are special; in C++ that needs C++20.  A size of 0 is an error, because
 * fields that came after 0.1 would be ignored.  (loci_layer and loci_channels accept 0: nothing has
 * come.)  A smaller size lacks fields, and they are zero.  A larger size is accepted if all that
 * this library does not know is zero.  Programs that were linked with a library before 0.3 still
 * run: for them 0 means the fields of 0.1, as it did. */
#ifndef LOCI_LOCI_LOCI_H
#define LOCI_LOCI_LOCI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined _WIN32
#define LOCI_API
#else
#define LOCI_API __attribute__((visibility("default")))
#endif

#define LOCI_VERSION 300                 /* 10000 major + 100 minor + patch */
#define LOCI_NONE (-1)
#define LOCI_BROADCAST PTRDIFF_MIN       /* as a stride of an input: the same numbers again and
                                            again */

typedef enum {
    LOCI_OK,
    LOCI_BAD_ARG,
    LOCI_UNSUPPORTED,
    LOCI_NO_MEMORY,
    LOCI_CANCELLED,
    LOCI_TRANSPORT                       /* between processes, see loci/parallel.h */
} loci_status;
typedef enum { LOCI_F32, LOCI_F64, LOCI_BF16, LOCI_F16 } loci_dtype;
/* one sentence: value, rule, hint */
typedef struct { loci_status status; char text[512]; } loci_error;

/* ---- Describe -------------------------------------------------------------------------------- */

/* A tensor that an encoding wants.  LEARNED and FIXED ones are the same for all calls; an INPUT
 * comes with each call, has the batch in front, and has a gradient like a LEARNED one. */
typedef enum { LOCI_LEARNED, LOCI_FIXED, LOCI_INPUT } loci_role;
/* in a shape: known at the call */
enum { LOCI_DIM_BATCH = -1, LOCI_DIM_QUERIES = -2, LOCI_DIM_KEYS = -3 };
typedef struct {
    const char *encoding, *name;
    loci_role role;
    int rank;
    ptrdiff_t shape[5];
} loci_tensor;

/* Which stage of a Transformer the plan serves.  An encoding works in some of them only. */
typedef enum { LOCI_ATTENTION, LOCI_ROTATE, LOCI_EMBED, LOCI_LINEAR_ATTENTION } loci_stage;

typedef struct {
    size_t size;                         /* sizeof(loci_desc) */
    const char *encoding;                /* "name:option=value,...+name..."; NULL = "nope" */
    loci_stage stage;
    int heads, kv_heads;                 /* kv_heads 0 = heads; query head h reads kv head h /
                                            (heads / kv_heads) */
    int dim, value_dim, model_dim;       /* head width of q and k, of v (0 = dim); model width, for
                                            embeddings */
    loci_dtype dtype;                    /* of q, k, v, o (x, y) and their gradients.  BF16 and F16
                                            only store, unless `fast`: numbers are computed in f32,
                                            bit for bit as an F32 call would, and rounded once */
    int fast;                            /* BF16 only: loci_forward() by the CPU's bf16 dot products
                                            where it has them, see there; bits may differ then */
    int full;                            /* 0: a key is seen when pos_k <= pos_q; 1: no order */
    int64_t window_left, window_right;   /* seen only when pos_q - pos_k <= left, pos_k - pos_q <=
                                            right; 0 = open; LOCI_NONE = nothing on that side.
                                            Models count keys, the row's own included: for them
                                            there is loci_window() */
    double scale;                        /* of q.k; 0 = the encoding's rule, usually 1/sqrt(dim) */
    ptrdiff_t max_len;                   /* for rules that depend on a context length; decided once,
                                            here */
    int keys_rotated;                    /* k comes from a cache that loci_rotate(LOCI_CACHE)
                                            filled */
    const char *isa;                     /* NULL = the best this CPU runs; else a name of
                                            loci_isas */
    const loci_tensor *tensors;          /* the tensors you hold, where an encoding knows more than
                                            one form (a table */
    int tensor_count;                    /* per head or shared, an optional second one); INPUT ones
                                            may be left out; NULL = the usual form */
} loci_desc;
/* loci_desc d = LOCI_DESC(.encoding = "alibi", .heads = 8, .dim = 64); */
#define LOCI_DESC(...) { .size = sizeof(loci_desc), __VA_ARGS__ }

/* window_left, and where a mask is full window_right, too, for a model whose rows see `keys` keys,
 * their own included (the sliding_window of a config.json): 1 is the row alone, and 0 all keys.
 * What is negative is left so, and refused by the plan. */
static inline int64_t loci_window(int64_t keys)
{
    return keys == 1 ? LOCI_NONE : keys > 1 ? keys - 1 : keys < 0 ? INT64_MIN : 0;
}

typedef struct loci_plan loci_plan;

/* Every decision and every error of wish happens here.  On failure *plan is NULL. */
LOCI_API loci_status loci_plan_create(loci_plan **plan, const loci_desc *, loci_error *);
LOCI_API void        loci_plan_destroy(loci_plan *);
LOCI_API const char *loci_plan_text(const loci_plan *);  /* encoding with all options, scale, ISA:
                                                            for logs */
LOCI_API int         loci_axes(const loci_plan *);       /* coordinates per position that it wants;
                                                            1: positions do */

/* How fast the pairs of rope or mrope turn per position, after any scaling, in radians; *factor is
 * their attention_factor.  Returns how many pairs there are and fills at most `room`; 0: the plan
 * has no such rotation, or its frequencies are learned. */
LOCI_API int loci_frequencies(const loci_plan *, double *list, int room, double *factor);

/* The tensors of a plan in a fixed order.  Everywhere below, `tensors` and `dtensors` are lists of
 * pointers in this order (double when dtype is F64, else float, as are lse, rem and ae).  Returns
 * how many there are; fills at most `room`. */
LOCI_API int  loci_tensors(const loci_plan *, loci_tensor *list, int room);
/* as the paper starts it */
LOCI_API void loci_tensor_init(const loci_plan *, int which, uint64_t seed, void *data);

/* ---- Plan's tables: what learned and fixed tensors become ------------------------------------ */

/* max_distance bounds |pos_q - pos_k| in later calls.  Pure functions of the tensors: prepare again
 * when they change. */
/* 0 = too large */
LOCI_API size_t      loci_tables_size(const loci_plan *, ptrdiff_t max_distance);
LOCI_API loci_status loci_prepare(const loci_plan *, ptrdiff_t max_distance,
                                  const void *const *tensors, void *tables);

/* ---- Execute --------------------------------------------------------------------------------- */

/* Threads and cancelling are the host's.  run() must call job(arg, 0) ... job(arg, n - 1), in any
 * order, overlapping as it likes, and return when all are done; `threads` is how many may
 * overlap.  A job may wait for others that have begun, so whatever has begun must go on. */
typedef struct {
    void (*run)(void *user, int n, void (*job)(void *arg, int index), void *arg);
    int  (*cancelled)(void *user);       /* asked before each work item; NULL = never */
    void *user;
    int   threads;
} loci_host;
/* A host with threads of its own.  Where memory or a thread cannot be had the status is
 * LOCI_NO_MEMORY, no thread is left, and *host is as it was.  A library that was built without
 * threads (LOCI_THREADS=OFF) has pools of one thread only; more are LOCI_UNSUPPORTED. */
LOCI_API loci_status loci_pool_create(loci_host *, int threads);
LOCI_API void        loci_pool_destroy(loci_host *);
/* loci_prepare() on the threads of a host, which is not asked whether to cancel, and with a
 * sentence where it fails.  Either may be NULL; the tables have the same bits. */
LOCI_API loci_status loci_prepare_on(const loci_host *, const loci_plan *, ptrdiff_t max_distance,
                                     const void *const *tensors, void *tables, loci_error *);

/* A tensor [batch][head][row][width].  Strides count elements; the last dimension is contiguous.
 * All strides zero = dense.  Of an input a stride may be LOCI_BROADCAST, and then the same numbers
 * are read for each step; so they are with 0, unless all three are 0.  Who passes on strides of
 * another library writes LOCI_BROADCAST for each 0 there (torch.expand makes them), or { x, 0, 0, 0
 * } of one row would be read as all rows, dense.  Covers bhld, blhd, packed qkv and token-major. */
typedef struct { void *data; ptrdiff_t batch, head, row; } loci_view;

/* Keys and values in pages, of `length` keys each: key j of entry b is row j % length of page
 * table[b * entry + j / length].  The batch stride of the views k and v is then that from page to
 * page. */
typedef struct { const int32_t *table; ptrdiff_t length, entry; } loci_pages;

/* What a mask has for every pair of a row and a key: a byte, 0 where the row does not see the key;
 * or a number that is added to the score last of all, after biases and caps, -INFINITY where the
 * row does not see the key.  Numbers are double when dtype is F64, else float. */
typedef enum { LOCI_NO_MASK, LOCI_MASK_SEEN, LOCI_MASK_ADDED } loci_mask;
typedef struct loci_cache loci_cache;    /* see loci/cache.h */

typedef struct {
    size_t size;                         /* sizeof(loci_call) */
    ptrdiff_t batch, q_len, k_len;
    loci_view q, k, v, o;                /* o is written, and so are lse, rem and ae where given */
    void *lse, *rem;                     /* [batch][heads][q_len]: log of the sum of weights; sba's
                                            remainder */
    void *ae;                            /* [batch][heads][q_len][dim]: tape's average of the states
                                            of the keys */
    const int64_t *q_pos, *k_pos;        /* both or neither; NULL: keys 0..k_len-1, queries the last
                                            q_len of them */
    const double *q_coord, *k_coord;     /* [axes][len], for encodings with several axes; turn
                                            vectors, nothing else */
    const int64_t *q_seg, *k_seg;        /* both or neither; rows see keys of their own segment;
                                            negative = padding */
    int per_batch;                       /* positions, coordinates and segments have the batch in
                                            front */
    const int64_t *k_lens;               /* [batch]: keys of each entry, the first of its k_len, and
                                            queries the last of them; NULL: all */
    const loci_pages *pages;             /* forward only; NULL: keys and values in one piece */
    const loci_cache *cache;             /* keys, values and INPUT tensors by key are there; see
                                            loci/cache.h */
    const int64_t *q_starts, *k_starts;  /* both or neither; [sequences + 1], from 0 to q_len and
                                            k_len, never falling: with batch 1, rows starts[s] ..
                                            starts[s + 1] - 1 are a sequence with default positions
                                            of its own */
    ptrdiff_t sequences;
    const void *const *tensors;          /* only INPUT entries are read here */
    const loci_host *host;               /* NULL = the calling thread */
    loci_error *error;                   /* where a failing call puts its sentence; NULL =
                                            nowhere */
    /* Since 0.2: */
    size_t work_bytes, tables_bytes;     /* of `work` and `tables`, which are then checked, so set
                                            them; 0: not told */
    /* Who sees whom, beside order, window and segments: a key must be seen by all of them.  Keys
     * and rows are counted in their batch entry, from 0.  Not for linear attention, nor for keys in
     * a ring; rows that mix heads (cape) see the same keys in all of them. */
    const int64_t *k_first, *k_last;     /* both or neither; [q_len], with per_batch [batch][q_len]:
                                            the first and the last key that a row sees; none, where
                                            the last is before the first */
    loci_mask mask_kind;
    loci_view mask;                      /* [batch][heads][q_len][k_len] */
} loci_call;
#define LOCI_CALL(...) { .size = sizeof(loci_call), __VA_ARGS__ }

/* Bytes of `work`, with backward 1 for all passes of such a call, else for all but the backward
 * ones.  Shapes, which pointers are NULL, sequences and host->threads matter; contents do not.  0 =
 * impossible.
 *
 * What is enough for a call is enough for every call of the plan that has no more entries, rows,
 * keys, sequences or threads, and the same pointers; rotations alone may have positions of their
 * own.  So one workspace serves a whole generation: ask with its largest q_len and its largest
 * k_len. */
LOCI_API size_t loci_workspace(const loci_plan *, const loci_call *, int backward);

/* One function for training, prefill and decode.  The bits of a row depend on its query, the keys
 * it sees and the parameters: not on the number of threads, the instruction set, the chunking of a
 * prefill, or its neighbours.
 *
 * With `fast`, weights, and queries and keys that were turned, are rounded to bf16 before they are
 * multiplied, where ISA avx512 is used on a CPU that has AVX512-BF16; loci_plan_text() then says
 * fast=.  Bits differ from those without, and depend neither on threads nor on neighbours.  Passes
 * of few rows (decode), gradients and all else, and other CPUs, give the bits they give without the
 * flag; so prefill and decode agree to bf16 only. */
LOCI_API loci_status loci_forward(const loci_plan *, const void *tables, void *work,
                                  const loci_call *);

/* Gradients of sum(dout * o) + sum(dlse * lse) + sum(drem * rem) + sum(dae * ae).  The call is that
 * of the forward pass; its o and lse (sba: rem) are read, and with dae its ae.  Outputs are
 * written, never added to; those that are NULL are not wanted. */
typedef struct {
    size_t size;                         /* sizeof(loci_grad) */
    loci_view dout;                      /* data NULL = zero */
    const void *dlse, *drem, *dae;       /* NULL = zero */
    loci_view dq, dk, dv;
    void *const *dtensors;               /* NULL, or a list with NULL where a gradient is not
                                            wanted */
    /* Since 0.2: */
    loci_view dmask;                     /* of numbers that were added; who gave the same numbers to
                                            several batches, heads or rows adds theirs up */
} loci_grad;
#define LOCI_GRAD(...) { .size = sizeof(loci_grad), __VA_ARGS__ }

LOCI_API loci_status loci_backward(const loci_plan *, const void *tables, void *work,
                                   const loci_call *, const loci_grad *);

/* What rows give to keys, [batch][heads][q_len][k_len], in double when dtype is F64, else float:
 * for pictures and probes, as it takes the memory that attention saves.  The call is that of the
 * forward pass, whose lse (sba: rem) is read, without pages or a cache; work is that of a backward
 * pass.  Rows sum up to 1 but for what a sink takes and a stick leaves. */
LOCI_API loci_status loci_weights(const loci_plan *, const void *tables, void *work,
                                  const loci_call *, loci_view weights);

/* Rotation alone (stages ATTENTION and ROTATE): inspect it, fill a cache, shift a cache.  QUERY
 * reads q_len, q_pos and q_coord of the call, the others k_len, k_pos, k_coord; CACHE is the key as
 * a cache keeps it.  y may be x, and dx may be x or dy, in place. */
typedef enum { LOCI_QUERY, LOCI_KEY, LOCI_CACHE } loci_which;
LOCI_API loci_status loci_rotate(const loci_plan *, const void *tables, void *work,
                                 const loci_call *, loci_which, loci_view x, loci_view y);
LOCI_API loci_status loci_rotate_backward(const loci_plan *, const void *tables, void *work,
                                          const loci_call *, loci_which, loci_view x, loci_view dy,
                                          loci_view dx, void *const *dtensors);

/* Linear attention (stage LINEAR_ATTENTION, with nope or one rotation R): a feature f = elu + 1 in
 * the place of the softmax.
 *
 *     o_i = sum_j (R f(q_i)).(R f(k_j)) v_j / sum_j f(q_i).f(k_j)
 *
 * with sums over the keys that row i sees.
 *
 * The call is that of loci_forward, with lse and rem NULL; there are no windows, as sums do not
 * forget, and with a causal mask positions must not fall.  A state is what later rows have to know
 * of all keys so far, in as many bytes whatever their number: rows see every key of `before` (NULL:
 * there are none) and the call's own, default positions go on from there, and `after` (NULL: not
 * wanted) holds both; a call that is cancelled leaves no state in it.  The two may be one buffer,
 * which saves a copy; states start on 64 bytes.  Rows and states have the same bits in one call, in
 * chunks and token by token.  Gradients are those of a call without states. */
/* bytes of a state; 0 = impossible */
LOCI_API size_t      loci_linear_state(const loci_plan *, ptrdiff_t batch);
LOCI_API loci_status loci_linear_forward(const loci_plan *, const void *tables, void *work,
                                         const loci_call *, const void *before, void *after);
LOCI_API loci_status loci_linear_backward(const loci_plan *, const void *tables, void *work,
                                          const loci_call *, const loci_grad *);

/* y = x + p(pos) for q_len rows of width model_dim (stage EMBED); y may be x, in place.  dx is dy;
 * dtensors get the rest. */
LOCI_API loci_status loci_embed(const loci_plan *, const void *tables, const loci_call *,
                                loci_view x, loci_view y);
LOCI_API loci_status loci_embed_backward(const loci_plan *, const void *tables, void *work,
                                         const loci_call *, loci_view dy, void *const *dtensors);

/* ---- What is there --------------------------------------------------------------------------- */

typedef enum { LOCI_NUMBER, LOCI_WHOLE, LOCI_WORD, LOCI_LIST } loci_option_kind;
typedef struct {
    const char *name;
    loci_option_kind kind;
    /* 1: no default; a text without it is an error. */
    int required;
    /* NaN in default_value: a rule that `help` states.  WORD: an index into words. */
    double default_value, min, max;
    const char *words;                   /* "half|interleaved" */
    const char *help;
} loci_option;
enum {
    LOCI_PLACE_EMBED = 1,
    LOCI_PLACE_ROTATE = 2,
    LOCI_PLACE_SCORE = 4,
    LOCI_PLACE_MIX = 8,
    LOCI_PLACE_WEIGHT = 16,
    LOCI_PLACE_VALUE = 32,
    LOCI_PLACE_STATE = 64, /* states of the tokens turn q and k, and there is ae */
    LOCI_PLACE_SUM = 128
}; /* the softmax sums up more than keys */
typedef struct {
    const char *name, *cite, *brief;     /* brief: the formula or the idea in one line */
    int places;                          /* where it enters, LOCI_PLACE_... */
    int causal_only;
    int option_count;
    const loci_option *options;
    double tolerance;                    /* the file's claim: error of the f32 pass relative to 1 +
                                            max|exact| */
    const char *example;                 /* an encoding text that works with any head width in
                                            fours, from 8 */
} loci_encoding_info;
/* one array, in list order */
LOCI_API int         loci_encodings(const loci_encoding_info **list);
/* what this CPU runs, worst first */
LOCI_API int         loci_isas(const char **names, int room);
LOCI_API int         loci_version(void);
LOCI_API const char *loci_version_text(void);

#ifdef __cplusplus
}
#endif
#endif
