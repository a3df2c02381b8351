/* SPDX-License-Identifier: MIT */
/* loci: positional encodings for Transformers, fused into attention, forward and backward.
 *
 * Prefill, all rows of a prompt in one call:
 *
 *     loci_error e;
 *     loci_plan *plan;
 *     loci_desc d = LOCI_DESC(.encoding = "rope:pairing=half", .heads = 32, .kv_heads = 8,
 *                             .dim = 128);
 *     if (loci_plan_create(&plan, &d, &e)) return fprintf(stderr, "%s\n", e.text), 1;
 *
 *     void *tables = aligned_alloc(64, loci_tables_size(plan, L));
 *     loci_prepare(plan, L, NULL, tables);            // NULL: rope has no tensors
 *
 *     loci_call call = LOCI_CALL(.batch = 1, .q_len = L, .k_len = L, .error = &e,
 *                                .q = { q },          // [heads][L][dim]
 *                                .k = { k }, .v = { v },  // [kv_heads][L][dim]
 *                                .o = { o });         // [heads][L][dim], written
 *     call.work_bytes = loci_workspace(plan, &call, 0);
 *     void *work = aligned_alloc(64, call.work_bytes);
 *     if (loci_forward(plan, tables, work, &call)) return fprintf(stderr, "%s\n", e.text), 1;
 *
 *     loci_plan_destroy(plan), free(tables), free(work);
 *
 * Decode.  loci_forward() with q_len = 1 and all keys works, but it rotates every key in every
 * call.  A cache of loci/cache.h stores rotated keys; with rope, decode is then 2 to 4 times as
 * fast (8 heads of 64, 128 to 16384 keys, one thread of a Zen 4).
 *
 * Training.  Set call.lse, ask loci_workspace() with backward = 1, and after loci_forward():
 *
 *     loci_grad g = LOCI_GRAD(.dout = { dout }, .dq = { dq }, .dk = { dk }, .dv = { dv });
 *     loci_backward(plan, tables, work, &call, &g);
 *
 * ---- Rotations -------------------------------------------------------------------------------
 *
 * Pass q and k as the projections leave them: the call rotates both.  v is not rotated.  The
 * position of a key is its index, and the queries are the last q_len positions; q_pos and k_pos
 * override that.
 *
 * A rotation combines pairs of channels.  The pairing of the weights decides which:
 *
 *     pairing=half           channels t and t + dim/2      GPT-NeoX, most Hugging Face files
 *     pairing=interleaved    channels 2t and 2t + 1        GPT-J, GGUF files of the llama family
 *
 * The wrong pairing gives no error and wrong results, so `pairing` has no default.  `loci rope
 * FILE` prints the encoding text for a config.json or a GGUF file, with base, scaling and partial
 * rotation; loci_model_rope() of loci/io.h returns it.
 *
 * ---- Memory ----------------------------------------------------------------------------------
 *
 * You own every buffer.  loci allocates plans and thread pools only, and stores no pointer of
 * yours beyond a call.  `tables` and `work` are aligned to 64 bytes; their sizes are multiples of
 * 64.  All other pointers are aligned as the compiler aligns their numbers.
 *
 * Plans and prepared tables are read-only.  Any number of threads may share them, each call with
 * its own workspace.  Nothing in a workspace outlives the call.
 *
 * An output may share no byte with another output or with an input.  Views may interleave: q, k
 * and v in one buffer, or their gradients.  Where an output may replace an input in place, it is
 * exactly that array, with the same strides.
 *
 * A call allocates no memory, starts no thread and opens no file.  It uses at most 64 KB of stack
 * in each thread, so threads with 128 KB of stack are enough.
 *
 * ---- Failure ---------------------------------------------------------------------------------
 *
 * A function that can fail returns a loci_status.  Arguments are validated before any output is
 * written.  A failed call modifies only `*error` and the workspace.  A call that its host cancels
 * may have written parts of its outputs; make the same call again, or discard them.
 *
 * The library prints nothing and never exits.
 *
 * ---- Lifetimes, processes --------------------------------------------------------------------
 *
 * Destroying a plan, tables, a pool or a cache during a call that uses it is undefined.
 *
 * After fork() the child may use and destroy inherited plans and tables, and create pools.  An
 * inherited pool runs all jobs in the calling thread; it may be destroyed or left alone.  Calls in
 * other threads of the parent do not continue in the child.
 *
 * A call leaves unchanged: signal handlers and masks, the floating-point environment except its
 * sticky flags, locale, working folder, umask, environment and limits.  Threads of a pool block
 * all signals.  The only state between calls is the constant list of encodings.
 *
 * ---- Structs ---------------------------------------------------------------------------------
 *
 * Structs that may grow begin with `size`, which tells the library the fields that your program
 * knows.  Initialise them by their macros, such as LOCI_DESC(...) and LOCI_CALL(...), which set
 * it; in C++ the macros need C++20.  In every other field 0 means the default, so name only the
 * fields that you need.
 *
 * A size of 0 is an error (loci_layer and loci_channels accept it).  Fields beyond a smaller size
 * are 0.  A larger size is accepted if the fields that this library does not know are 0.  Programs
 * linked with a library before 0.3 still run: for them a size of 0 means the fields of 0.1. */
#ifndef LOCI_LOCI_LOCI_H
#define LOCI_LOCI_LOCI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined _WIN32 && defined LOCI_EXPORTS /* while the DLL is built */
#define LOCI_API __declspec(dllexport)
#elif defined _WIN32
#define LOCI_API
#else
#define LOCI_API __attribute__((visibility("default")))
#endif

/* The initialiser of a struct that begins with its size. */
#define LOCI_SIZED(type, ...) \
    { \
        .size = sizeof(type), __VA_ARGS__ \
    }

/* ---- Version and errors ---------------------------------------------------------------------- */

/* 10000 major + 100 minor + patch */
#define LOCI_VERSION 300
/* The version of the library that runs. */
LOCI_API int loci_version(void);
LOCI_API const char *loci_version_text(void);

typedef enum {
    LOCI_OK,
    LOCI_BAD_ARG,
    LOCI_UNSUPPORTED,
    LOCI_NO_MEMORY,
    LOCI_CANCELLED,
    /* The transport between processes failed, see loci/parallel.h. */
    LOCI_TRANSPORT,
    /* A GPU's driver or compiler failed. */
    LOCI_DEVICE
} loci_status;
/* text is one sentence: what was wrong and what would be right. */
typedef struct {
    loci_status status;
    char text[512];
} loci_error;

/* No key on that side of a window, see loci_desc.  loci_cache_length(): no such entry. */
#define LOCI_NONE (-1)
/* A stride of an input view that repeats the same numbers. */
#define LOCI_BROADCAST PTRDIFF_MIN

/* Q8_0 is for keys and values alone, see loci_desc.k_dtype. */
typedef enum { LOCI_F32, LOCI_F64, LOCI_BF16, LOCI_F16, LOCI_Q8_0 } loci_dtype;

/* ---- Describe and plan ----------------------------------------------------------------------- */

/* A tensor of an encoding.  LEARNED and FIXED tensors are read by loci_prepare().  An INPUT comes
 * with each call, has the batch as its first dimension, and has a gradient like a LEARNED one. */
typedef enum { LOCI_LEARNED, LOCI_FIXED, LOCI_INPUT } loci_role;
/* Extents in a shape that the call determines. */
enum { LOCI_DIM_BATCH = -1, LOCI_DIM_QUERIES = -2, LOCI_DIM_KEYS = -3 };
typedef struct {
    const char *encoding, *name;
    loci_role role;
    int rank;
    ptrdiff_t shape[5];
} loci_tensor;

/* The part of a Transformer that a plan serves.  Each encoding supports some of them. */
typedef enum { LOCI_ATTENTION, LOCI_ROTATE, LOCI_EMBED, LOCI_LINEAR_ATTENTION } loci_stage;

typedef struct {
    /* sizeof(loci_desc) */
    size_t size;
    /* "name:option=value,...+name..."; NULL = "nope", no encoding. */
    const char *encoding;
    loci_stage stage;
    /* Query head h reads kv head h / (heads / kv_heads).  kv_heads 0 = heads. */
    int heads, kv_heads;
    /* Head width of q and k; of v and o (0 = dim); width of the model, for stage EMBED. */
    int dim, value_dim, model_dim;
    /* Stored type of q, k, v, o (x, y) and their gradients.  BF16 and F16 are for storage only:
     * the call computes what an F32 call computes, bit for bit, and rounds once.  `fast` is the
     * exception. */
    loci_dtype dtype;
    /* BF16 only.  1: loci_forward() may use the bf16 dot products of the CPU; see there. */
    int fast;
    /* 0: causal, a row sees a key if pos_k <= pos_q.  1: full, order does not matter. */
    int full;
    /* Windows as distances: a row sees a key if pos_q - pos_k <= window_left and pos_k - pos_q <=
     * window_right.  0 = open; LOCI_NONE = no key on that side.  For a model that counts keys, use
     * loci_window(). */
    int64_t window_left, window_right;
    /* Factor of q.k; 0 = the encoding's rule, usually 1/sqrt(dim). */
    double scale;
    /* Context length, for encodings whose rule depends on one.  Fixed when the plan is created. */
    ptrdiff_t max_len;
    /* 1: k is already rotated, by loci_rotate(LOCI_CACHE) or in a loci_cache.  So is v if the
     * encoding rotates values, by loci_rotate(LOCI_VALUE): in 16 bits it is then rounded once
     * more.  pope: rotated keys have 2 dim channels, and such a view k must have its strides. */
    int keys_rotated;
    /* Instruction set, a name from loci_isas(); NULL = the best that this CPU runs. */
    const char *isa;
    /* The tensors that you have, if an encoding accepts several forms (one table per head or a
     * shared one, an optional tensor).  INPUT tensors may be left out.  NULL = the default form. */
    const loci_tensor *tensors;
    int tensor_count;
    /* Ignored.  Programs of 0.2 end here. */
    int padding;
    /* Since 0.3: stored types of keys and of values, if they are not `dtype` (0): BF16, F16 or
     * Q8_0.  The views k and v of a call have them, and so does a loci_cache; loci_cache_append()
     * reads k and v in `dtype` and rounds them.  A call computes what a call on the same numbers
     * in F32 computes, bit for bit.  Only loci_forward() supports them.
     *
     * Q8_0: each 32 consecutive numbers of a row are a block of 34 bytes, an f16 scale and then 32
     * whole numbers of 8 bits; a number is their product.  Widths and strides are multiples of 32
     * numbers.  loci_round() of loci/convert.h makes blocks. */
    loci_dtype k_dtype, v_dtype;
    /* Since 0.3.  1: values are the first value_dim channels of the keys, as in the latent
     * attention of DeepSeek: v of a call is NULL, and a loci_cache stores keys alone.  A rotation
     * leaves these channels as they are (rope:offset=...).  Only loci_forward() supports it; for
     * training let the view v point to k. */
    int values_in_keys;
} loci_desc;
#define LOCI_DESC(...) LOCI_SIZED(loci_desc, __VA_ARGS__)

/* The window_left of a model that counts keys, such as sliding_window in a config.json: `keys`
 * includes the row's own key, and 0 means all keys.  With `full` it is the window_right too.  A
 * negative count gives a window that loci_plan_create() refuses. */
static inline int64_t loci_window(int64_t keys)
{
    return keys == 1 ? LOCI_NONE : keys > 1 ? keys - 1 : keys < 0 ? INT64_MIN : 0;
}

typedef struct loci_plan loci_plan;

/* Parses and validates the description.  On failure *plan is NULL. */
LOCI_API loci_status loci_plan_create(loci_plan **plan, const loci_desc *, loci_error *);
LOCI_API void loci_plan_destroy(loci_plan *);
/* The encoding with all options, the scale and the instruction set, for logs. */
LOCI_API const char *loci_plan_text(const loci_plan *);
/* Coordinates per position in q_coord and k_coord.  1: positions are enough. */
LOCI_API int loci_axes(const loci_plan *);

/* Radians per position of each pair of rope or mrope, after scaling; *factor is the
 * attention_factor.  Returns the number of pairs and fills at most `room` of the list.  Returns 0
 * if the plan has no such rotation, or if its frequencies are learned. */
LOCI_API int loci_frequencies(const loci_plan *, double *list, int room, double *factor);

/* ---- Tensors and tables ---------------------------------------------------------------------- */

/* The tensors of a plan.  Every `tensors` and `dtensors` below is a list of pointers in this
 * order.  Their numbers are double if dtype is F64, else float; so are lse, rem and ae.  Returns
 * the number of tensors and fills at most `room` of the list. */
LOCI_API int loci_tensors(const loci_plan *, loci_tensor *list, int room);
/* Fills tensor `which` with its initial values, as its paper defines them. */
LOCI_API void loci_tensor_init(const loci_plan *, int which, uint64_t seed, void *data);
/* What a layer makes an input of; LOCI_SOURCE_OTHER for tensors that are no input. */
typedef enum {
    LOCI_SOURCE_OTHER,    /* the encoding's page says what */
    LOCI_SOURCE_LOG_GATE, /* log sigmoid of a number per head and key */
    LOCI_SOURCE_KEYS,     /* a projection of its own, in the shape of keys */
    LOCI_SOURCE_STATES,   /* states that go from layer to layer */
    LOCI_SOURCE_UNIT,     /* rows of length 1: a projection of its own, in the shape of keys */
    LOCI_SOURCE_STRENGTH  /* 2 sigmoid of a number per kv head and key */
} loci_source;
LOCI_API loci_source loci_tensor_source(const loci_plan *, int which);
/* The least value that training keeps a learned tensor at, by clamping after each step;
 * -INFINITY: any value is allowed. */
LOCI_API double loci_tensor_low(const loci_plan *, int which);

/* Tables are what learned and fixed tensors become before a call.  Prepare them once, and again
 * after a tensor changes.  max_distance is an upper bound of |pos_q - pos_k| in later calls. */
/* Bytes of `tables`; 0 if they would be too large. */
LOCI_API size_t loci_tables_size(const loci_plan *, ptrdiff_t max_distance);
LOCI_API loci_status loci_prepare(const loci_plan *, ptrdiff_t max_distance,
                                  const void *const *tensors, void *tables);

/* ---- Threads --------------------------------------------------------------------------------- */

/* The caller's threads and cancel function.  A call without a host runs in the calling thread. */
typedef struct {
    /* Calls job(arg, 0) ... job(arg, n - 1) in any order and returns after all have ended.  A job
     * that has started must be able to continue: others may wait for it. */
    void (*run)(void *user, int n, void (*job)(void *arg, int index), void *arg);
    /* Called before each work item; not 0 cancels the call.  NULL = never. */
    int (*cancelled)(void *user);
    void *user;
    /* The largest number of jobs that run at the same time. */
    int threads;
} loci_host;
/* Creates a host with its own threads.  On failure it leaves no thread and does not change *host;
 * the status is LOCI_NO_MEMORY if memory or a thread is missing.  A library built with
 * LOCI_THREADS=OFF supports one thread only, and returns LOCI_UNSUPPORTED for more. */
LOCI_API loci_status loci_pool_create(loci_host *, int threads);
/* The same on the threads of an OpenMP runtime, for programs whose other work runs there: its idle
 * threads spin for a while, and would compete with those of a pool.  `parallel` is GOMP_parallel(),
 * which libgomp and LLVM's libomp export. */
LOCI_API loci_status loci_pool_create_openmp(loci_host *, int threads,
                                             void (*parallel)(void (*body)(void *arg), void *arg,
                                                              unsigned threads, unsigned flags));
LOCI_API void loci_pool_destroy(loci_host *);
/* loci_prepare() on the threads of a host, with an error sentence.  It cannot be cancelled.  The
 * host and the error may be NULL.  The tables have the same bits. */
LOCI_API loci_status loci_prepare_on(const loci_host *, const loci_plan *, ptrdiff_t max_distance,
                                     const void *const *tensors, void *tables, loci_error *);

/* ---- Call: prefill, decode, train ------------------------------------------------------------ */

/* A tensor [batch][head][row][width].  Strides count elements; the width is contiguous.
 *
 *     [batch][heads][rows][dim], dense            { x }
 *     [batch][rows][heads][dim]                   { x, rows * heads * dim, dim, heads * dim }
 *     q of [batch][rows][3][heads][dim]           { x, rows * n, dim, n }, n = 3 * heads * dim
 *
 * All strides 0 = dense.  A stride of an input may be LOCI_BROADCAST: each step reads the same
 * numbers.  A stride of 0 means the same unless all three are 0.  If you pass on the strides of
 * another library, replace each 0 by LOCI_BROADCAST, because { x, 0, 0, 0 } means dense. */
typedef struct {
    void *data;
    ptrdiff_t batch, head, row;
} loci_view;

/* Keys and values in pages of `length` keys: key j of batch entry b is row j % length of page
 * table[b * entry + j / length].  The batch strides of the views k and v are then the strides from
 * page to page. */
typedef struct {
    const int32_t *table;
    ptrdiff_t length, entry;
} loci_pages;

/* A mask has an element for each pair of a row and a key.
 *
 *     SEEN     a byte; 0 hides the key
 *     ADDED    a number that is added to the score, after biases and caps; -INFINITY hides the key.
 *              double if dtype is F64, else float */
typedef enum { LOCI_NO_MASK, LOCI_MASK_SEEN, LOCI_MASK_ADDED } loci_mask;
/* see loci/cache.h */
typedef struct loci_cache loci_cache;

/* Positions and coordinates lie within 2^40 on either side of 0. */
typedef struct {
    /* sizeof(loci_call) */
    size_t size;
    ptrdiff_t batch, q_len, k_len;
    /* Inputs q, k, v; output o. */
    loci_view q, k, v, o;
    /* Outputs, or NULL.  [batch][heads][q_len].  lse is the log of the sum of exponentials of a
     * row's scores; the backward pass reads it.  rem is the remainder of sba, which has no lse. */
    void *lse, *rem;
    /* Output, or NULL.  [batch][heads][q_len][dim]: the average of the keys' states, tape only. */
    void *ae;
    /* Positions: both or neither.  NULL: keys are 0 .. k_len - 1, queries the last q_len of
     * them.  Order, windows, biases and rotations read positions. */
    const int64_t *q_pos, *k_pos;
    /* [axes][len]: coordinates for rotations with several axes, see loci_axes().  Only rotations
     * read coordinates. */
    const double *q_coord, *k_coord;
    /* Segments: both or neither.  A row sees the keys of its own segment.  Negative = padding. */
    const int64_t *q_seg, *k_seg;
    /* 1: positions, coordinates and segments have the batch as their first dimension. */
    int per_batch;
    /* [batch]: entry b has the first k_lens[b] of its k_len keys, and its queries are the last of
     * them.  NULL: all. */
    const int64_t *k_lens;
    /* Forward only.  NULL: keys and values are not in pages. */
    const loci_pages *pages;
    /* Holds the keys, the values and the INPUT tensors by key, see loci/cache.h. */
    const loci_cache *cache;
    /* Packed sequences: both or neither, batch 1.  [sequences + 1], from 0 to q_len and k_len,
     * never falling.  Rows starts[s] .. starts[s + 1] - 1 are sequence s, with its own default
     * positions. */
    const int64_t *q_starts, *k_starts;
    ptrdiff_t sequences;
    /* The list of loci_tensors().  Only the INPUT entries are read. */
    const void *const *tensors;
    /* NULL = the calling thread. */
    const loci_host *host;
    /* Receives the sentence of a failed call, or NULL. */
    loci_error *error;
    /* Since 0.2: bytes of `work` and `tables`.  The call validates them; 0 = not validated. */
    size_t work_bytes, tables_bytes;
    /* Since 0.2: the first and the last key that each row sees, both or neither, [q_len], with
     * per_batch [batch][q_len].  Keys are counted from 0 in their batch entry.  A last key before
     * the first: the row sees none.
     *
     * A row sees a key only if order, window, segment, first, last and mask all allow it.  Linear
     * attention and rings support neither these fields nor masks.  With cape all heads must see
     * the same keys. */
    const int64_t *k_first, *k_last;
    /* Since 0.2: a mask [batch][heads][q_len][k_len].  See mask_key for its stride over keys. */
    loci_mask mask_kind;
    loci_view mask;
    /* Since 0.3: dropout of weights, for training; 0 = none, else below 1.  Each weight is 0 with
     * this probability, and divided by 1 - dropout otherwise; lse, rem and the sum of the softmax
     * are those without.  loci_backward() drops the same weights for the same three numbers, and
     * loci_weights() returns them dropped.  A cache, linear attention and loci_parallel_decode() do
     * not support it.  `fast` has no effect with it.
     *
     * A weight is dropped by its seed, offset + batch entry, head, row and key alone, so neither
     * threads nor chunks of a prefill matter.  Entry b of a call drops what a call of that entry
     * alone drops with offset + b; packed sequences count as entries.  Another call needs another
     * seed, or an offset larger by the number of entries. */
    double dropout;
    uint64_t dropout_seed, dropout_offset;
    /* Since 0.3: the mask's stride from key to key; 0 = 1.  LOCI_BROADCAST: a row has one number
     * for all keys, and a dense mask is [batch][heads][q_len].  Other strides need those of batch,
     * head and row as well.  dmask has a number for each key all the same. */
    ptrdiff_t mask_key;
    /* Since 0.3: [batch]: entry b has the last q_lens[b] of its q_len rows; its other rows are
     * neither read nor written.  NULL: all.  Forward passes of attention only. */
    const int64_t *q_lens;
} loci_call;
#define LOCI_CALL(...) LOCI_SIZED(loci_call, __VA_ARGS__)

/* Bytes of `work`, 0 if the call is invalid.  backward 0: for every pass but the backward ones; 1:
 * for all passes.  The size depends on the shapes, on the sequences, on host->threads and on which
 * pointers are NULL.  It does not depend on contents.
 *
 * The size for a call is enough for every call of the plan with no more batch entries, rows, keys,
 * sequences and threads, and with the same pointers set.  (loci_rotate() may add positions.)  Ask
 * once, with the largest q_len and k_len, and use one workspace for a whole generation. */
LOCI_API size_t loci_workspace(const loci_plan *, const loci_call *, int backward);

/* Attention for training, prefill and decode.  The bits of a row depend on its query, the keys
 * that it sees and the parameters.  They do not depend on threads, on the instruction set, on the
 * chunks of a prefill or on neighbouring rows.
 *
 * With `fast`, on an AVX512-BF16 CPU with isa avx512, weights and rotated queries and keys are
 * rounded to bf16 before they are multiplied; loci_plan_text() then contains "fast=".  Bits differ
 * from those without `fast`, but do not depend on threads or neighbours.  Calls with few rows
 * (decode), gradients and other CPUs give the bits of a plan without `fast`, so prefill and decode
 * agree to bf16 only. */
LOCI_API loci_status loci_forward(const loci_plan *, const void *tables, void *work,
                                  const loci_call *);

/* Gradients of sum(dout * o) + sum(dlse * lse) + sum(drem * rem) + sum(dae * ae).  Outputs are
 * overwritten, not added to.  Gradients that are NULL are not computed. */
typedef struct {
    /* sizeof(loci_grad) */
    size_t size;
    /* Inputs.  data NULL = zero. */
    loci_view dout;
    const void *dlse, *drem, *dae;
    /* Outputs. */
    loci_view dq, dk, dv;
    /* Outputs by tensor: NULL, or a list in which entries may be NULL. */
    void *const *dtensors;
    /* Since 0.2: output, the gradient of an ADDED mask, for every batch entry, head and row.  If
     * the mask repeats numbers by LOCI_BROADCAST, add up their gradients. */
    loci_view dmask;
} loci_grad;
#define LOCI_GRAD(...) LOCI_SIZED(loci_grad, __VA_ARGS__)

/* The call is that of the forward pass.  Its o and lse are read (sba: rem), with dae also its
 * ae.  The workspace is one of loci_workspace() with backward = 1. */
LOCI_API loci_status loci_backward(const loci_plan *, const void *tables, void *work,
                                   const loci_call *, const loci_grad *);

/* The weights of rows and keys, [batch][heads][q_len][k_len], double if dtype is F64, else float.
 * For figures and probes: they need the memory that attention saves.  The call is that of the
 * forward pass, without pages or a cache; its lse is read (sba: rem).  The workspace is one for
 * backward = 1.  A row sums to 1, less the share of a sink or the remainder of sba. */
LOCI_API loci_status loci_weights(const loci_plan *, const void *tables, void *work,
                                  const loci_call *, loci_view weights);

/* ---- Rotate ---------------------------------------------------------------------------------- */

/* Rotates vectors without attention, to inspect a rotation or to fill or shift a cache of your own
 * (stages ATTENTION and ROTATE).  QUERY reads q_len, q_pos and q_coord of the call; KEY and CACHE
 * read k_len, k_pos and k_coord.  CACHE is the key as a cache stores it (pope: y has 2 dim channels
 * and must have its strides; it rotates nothing else).  VALUE is the value as a cache stores it, of
 * width value_dim, in a plan of stage ATTENTION whose values rotate (values=1); it reads what KEY
 * reads.  y may be x in place; dx may be x or dy. */
typedef enum { LOCI_QUERY, LOCI_KEY, LOCI_CACHE, LOCI_VALUE } loci_which;
LOCI_API loci_status loci_rotate(const loci_plan *, const void *tables, void *work,
                                 const loci_call *, loci_which, loci_view x, loci_view y);
LOCI_API loci_status loci_rotate_backward(const loci_plan *, const void *tables, void *work,
                                          const loci_call *, loci_which, loci_view x, loci_view dy,
                                          loci_view dx, void *const *dtensors);

/* ---- Embed ----------------------------------------------------------------------------------- */

/* y = x + p(pos) for q_len rows of width model_dim (stage EMBED).  y may be x in place.  dx equals
 * dy; loci_embed_backward() computes dtensors. */
LOCI_API loci_status loci_embed(const loci_plan *, const void *tables, const loci_call *,
                                loci_view x, loci_view y);
LOCI_API loci_status loci_embed_backward(const loci_plan *, const void *tables, void *work,
                                         const loci_call *, loci_view dy, void *const *dtensors);

/* ---- Linear attention ------------------------------------------------------------------------ */

/* Stage LINEAR_ATTENTION, with nope or one rotation R.  The feature f = elu + 1 replaces the
 * softmax; sums are over the keys that row i sees:
 *
 *     o_i = sum_j (R f(q_i)).(R f(k_j)) v_j / sum_j f(q_i).f(k_j)
 *
 * The call is that of loci_forward() with lse and rem NULL and without windows.  With a causal
 * plan, positions must not fall.
 *
 * A state is what later rows need of all earlier keys.  Its size does not depend on their number.
 * Rows see every key of `before` (NULL: none) and those of the call; default positions continue
 * from there.  `after` (NULL: not written) receives both.  The two may be one buffer, which saves a
 * copy.  States are aligned to 64 bytes.  A cancelled call leaves no valid state in `after`.
 *
 * Rows and states have the same bits in one call, in chunks and token by token.  Gradients are
 * those of a call without states. */
/* Bytes of a state, 0 if the plan or the batch is invalid. */
LOCI_API size_t loci_linear_state(const loci_plan *, ptrdiff_t batch);
LOCI_API loci_status loci_linear_forward(const loci_plan *, const void *tables, void *work,
                                         const loci_call *, const void *before, void *after);
LOCI_API loci_status loci_linear_backward(const loci_plan *, const void *tables, void *work,
                                          const loci_call *, const loci_grad *);

/* ---- Listing encodings ----------------------------------------------------------------------- */

typedef enum { LOCI_NUMBER, LOCI_WHOLE, LOCI_WORD, LOCI_LIST } loci_option_kind;
typedef struct {
    const char *name;
    loci_option_kind kind;
    /* 1: it has no default, and a text without it is an error. */
    int required;
    /* NaN in default_value: a rule that `help` states.  WORD: default_value is an index into
     * `words`. */
    double default_value, min, max;
    /* "half|interleaved" */
    const char *words;
    /* One sentence. */
    const char *help;
} loci_option;
/* Where an encoding enters attention. */
enum {
    LOCI_PLACE_EMBED = 1,
    LOCI_PLACE_ROTATE = 2,
    LOCI_PLACE_SCORE = 4,
    LOCI_PLACE_MIX = 8,
    LOCI_PLACE_WEIGHT = 16,
    LOCI_PLACE_VALUE = 32,
    /* States of the tokens rotate q and k, and the call has ae. */
    LOCI_PLACE_STATE = 64,
    /* The softmax sums over more than the keys. */
    LOCI_PLACE_SUM = 128
};
typedef struct {
    /* brief: the formula or the idea in one line. */
    const char *name, *cite, *brief;
    /* LOCI_PLACE_..., added. */
    int places;
    int causal_only;
    int option_count;
    const loci_option *options;
    /* Upper bound of the error of the f32 forward pass, relative to 1 + max|exact|. */
    double tolerance;
    /* An encoding text that works with every head width that is a multiple of 4, from 8. */
    const char *example;
} loci_encoding_info;
/* Sets *list to an array of all encodings and returns its length. */
LOCI_API int loci_encodings(const loci_encoding_info **list);
/* The instruction sets that this CPU runs, the default last.  Returns their number and fills at
 * most `room` of the names. */
LOCI_API int loci_isas(const char **names, int room);

#ifdef __cplusplus
}
#endif
#endif
