/* SPDX-License-Identifier: MIT */
/* gpu.h -- devices, plans on them, and calls in progress. */
#ifndef LOCI_GPU_GPU_H
#define LOCI_GPU_GPU_H

#include "api/cached.h"
#include "device.h"
#include "util/lock.h"

/* Programs differ by pass, by plan and by what a call has.  They are compiled when they are first
 * needed, and live as long as their device. */
enum pass {
    PASS_FORWARD,
    PASS_BACKWARD,
    PASS_PROBES,
    PASS_FORWARD_GATES,   /* with sums of gates */
    PASS_BACKWARD_INPUTS, /* with gradients of inputs, or sums of gates */
    PASS_DECODE,
    PASS_VECTORS,
    PASS_VECTORS_BACK,
    PASS_CACHE,
    PASS_ROWS, /* rotations and embeddings alone */
    PASS_LINEAR
};
struct compiled {
    struct compiled *next;
    struct program *program;
    char lines[];
};
struct loci_gpu {
    const struct backend *backend;
    void *state;
    loci_gpu_info info;
    struct device_facts facts;
    struct lock lock; /* of the programs */
    struct compiled *programs;
};
struct loci_gpu_plan {
    loci_gpu *gpu;
    const struct loci_plan *plan;
    int rows;                              /* of a query tile of the forward pass */
    int forward_threads, backward_threads; /* of a group */
    int roomy;                             /* passes that hold both sides of a tile */
    bool general;                          /* programs are those for every plan */
};

/* States of a call of linear attention, in memory of the device; NULL: none. */
struct linear_states {
    const char *before;
    char *after;
    ptrdiff_t keys; /* that `before` has */
    struct regions memory;
};

/* How a call runs, found by loci_gpu_open_call(). */
struct gpu_call {
    const loci_gpu_plan *plan;
    struct call call;
    loci_call in;
    bool backward, rotated, decode, measured; /* measured: nothing but sizes */
    loci_pages pages;                         /* a cache is read in pages: `in` has these */
    /* Changes of a cache: the caller's call, as `in` has nothing but keys; and where rows go, in
     * `lists`.  A removal has two lists each, to the workspace and from there. */
    loci_call given;
    struct cache_update update;
    int64_t moves, input_moves;
    struct params params;
    struct gpu_use use[GPU_USES]; /* copied into the lists */
    int plan_use[GPU_USES];       /* which of the plan's uses they are */
    struct gpu_turn turn;         /* likewise */
    struct gpu_stick stick;       /* likewise */
    struct gpu_mix mix;           /* likewise, once for each strip and pass */
    int strips;
    bool passes_states; /* this is one of the passes over the keys of tape */
    bool fetches_rows;  /* rows and their gradients go to the host, for what matrices learn */
    bool alone;         /* a rotation of one side, without attention */
    /* Linear attention: what the lists have, too, its states, and how many tiles there are.  states
     * NULL: the call is one of attention. */
    struct gpu_linear linear;
    const struct linear_states *states;
    int64_t key_tiles, row_tiles;
    struct arrays arrays;
    /* Memory of the host: sequences, positions, and what encodings compute of them; and the lists
     * that kernels read. */
    void *scratch;
    char *lists;
    size_t list_bytes;
    /* In `lists`: places of rows and keys for rotations, and which keys and rows are in a sequence;
     * below 0: all. */
    int64_t q_where, k_where, used, used_rows; /* places of several forms, one after the other */
    /* Uses of factors that the device counts: numbers by count. */
    int64_t counts[MAX_USES];
    /* Memory of the device, in the workspace; NULL: not needed. */
    struct {
        char *lists, *q, *k, *delta, *dq, *dk, *dv, *sums, *parts, *totals, *apart;
        char *head_values; /* of each query head, where states rotate keys for each */
        /* Backward, with ae: values and states side by side, and dO and dae; sums for the gradients
         * of states, doubles. */
        char *wide_v, *wide_dout, *states;
        char *v, *o; /* values that turned; outputs before they turn back, or dO turned */
        char *scores, *tops, *weights; /* decode */
        char *vectors;
    } at;
    /* Bytes of `apart`, and of the sums by key and by row in it, which begin at 0. */
    size_t apart_bytes, cleared;
    int8_t key_sums, row_sums;
    /* Totals that no part has; ds in `vectors`, which begin at 0. */
    int64_t direct;
    size_t ds_from, ds_bytes;
    int items; /* of all sequences */
    int64_t roll_blocks;
    /* Gradients of what is learned, memory of the host; of inputs, memory of the device. */
    void *learned[MAX_TENSORS], *inputs[GPU_INPUTS];
};

static inline bool is_linear(const struct loci_plan *p)
{
    return p->stage == LOCI_LINEAR_ATTENTION;
}
/* Does the device count the keys that rows see, for use x?  It has the mask. */
bool loci_gpu_counts(const struct gpu_call *, int x);
/* plan.c: does the plan run, and which uses are which of the kernels' terms? */
loci_status loci_gpu_check_plan(const struct loci_plan *, const struct device_facts *,
                                loci_error *);
bool loci_gpu_term_of(enum term_id, int32_t *term);
/* Can few rows of the plan be split over keys, with how many bytes of shared memory?  Wide heads,
 * those of latents, run in no other way. */
bool loci_gpu_splits(const struct loci_plan *);
size_t loci_gpu_decode_shared(const struct loci_plan *);
bool loci_gpu_has_wide_heads(const struct loci_plan *);
/* Rows of an entry in a call. */
ptrdiff_t loci_gpu_most_rows(const struct loci_plan *);
/* How a term rotates, and do its places or angles come with the call? */
int32_t loci_gpu_rotation_of(enum term_id);
bool loci_gpu_given(enum term_id);
/* Are products with vectors looked up?  They are computed first: kernels/vectors.h. */
static inline bool is_of_vectors(int32_t term)
{
    return term == GPU_ROW_VECTORS || term == GPU_KEY_VECTORS || term == GPU_ROLL
        || term == GPU_SCAN;
}
/* Rows that change on their walk over the keys: they fade (kernels/channel_gates.h), or keys
 * reflect them (kernels/reflections.h). */
static inline bool fades_rows(const struct loci_plan *p)
{
    return p->moves >= 0 && p->use[p->moves].term == TERM_channel_gates;
}
static inline bool reflects_rows(const struct loci_plan *p)
{
    return p->moves >= 0 && p->use[p->moves].term == TERM_reflect;
}
/* Floats of shared memory that they need in a forward pass. */
int loci_gpu_moves_room(const struct loci_plan *, int rows);
/* Does the term sum its gradient by key, for a tensor that comes with the call? */
bool loci_gpu_by_key(enum term_id);
bool loci_gpu_has_inputs(const struct loci_plan *, int enc);
/* The program for a pass of this call. */
loci_status loci_gpu_program(loci_gpu *, enum pass, const loci_gpu_plan *, const struct params *,
                             const struct gpu_use *, struct program **, loci_error *);
static inline int loci_gpu_threads(const loci_gpu_plan *g, enum pass pass)
{
    if (pass == PASS_DECODE) return 128;
    const bool forward = pass == PASS_FORWARD || pass == PASS_FORWARD_GATES;
    return forward ? g->forward_threads : g->backward_threads;
}
void loci_gpu_unload_programs(loci_gpu *);

/* call.c: validates a call, and makes lists and parameters.  `grad` NULL: forward. */
loci_status loci_gpu_open_call(struct gpu_call *, const loci_gpu_plan *, const loci_gpu_tables *,
                               void *work, const loci_call *, const loci_grad *);
/* The same for linear attention. */
loci_status loci_gpu_open_linear(struct gpu_call *, const loci_gpu_plan *, const loci_gpu_tables *,
                                 void *work, const loci_call *, const loci_grad *,
                                 const struct linear_states *);
void loci_gpu_close_call(struct gpu_call *);
/* Is a workspace aligned, and large enough? */
loci_status loci_gpu_check_work(const void *work, size_t given, size_t needed, loci_error *);
/* The same for an append.  Without keys it has no lists. */
loci_status loci_gpu_open_append(struct gpu_call *, const loci_gpu_plan *, const loci_gpu_tables *,
                                 void *work, loci_cache *, const loci_call *);
/* And for a removal, which moves MOVED_ROWS keys of an entry at a time; `shift` has that many
 * positions. */
enum { MOVED_ROWS = 1024 };
loci_status loci_gpu_open_remove(struct gpu_call *, const loci_gpu_plan *, const loci_gpu_tables *,
                                 void *work, loci_cache *, ptrdiff_t entry, int64_t first,
                                 int64_t count, const int64_t *shift, const loci_call *);
/* The same for a rotation of one side.  dx NULL: y is x rotated; else y stands for dy. */
loci_status loci_gpu_open_rotation(struct gpu_call *, const loci_gpu_plan *,
                                   const loci_gpu_tables *, void *work, const loci_call *,
                                   loci_which, loci_view *x, loci_view *y, loci_view *dx,
                                   void *const *dtensors);
/* Bytes of `work` for such a call of either side. */
size_t loci_gpu_rotation_workspace(const loci_gpu_plan *, const loci_call *, bool backward);
/* rows.c: for one of stage EMBED. */
size_t loci_gpu_embed_workspace(const loci_plan *, const loci_call *, bool backward);
/* linear.c: lists, memory of the device, and bytes of shared memory of a group. */
void loci_gpu_list_linear(struct gpu_call *, struct arena *);
size_t loci_gpu_lay_out_linear(struct gpu_call *, char *base);
void loci_gpu_fill_linear(struct gpu_call *);
size_t loci_gpu_linear_shared(void);
/* attention.c: rotates the keys of an append and puts all rows into the cache; moves the keys that
 * stay up over those that are removed. */
loci_status loci_gpu_store_rows(struct gpu_call *);
loci_status loci_gpu_move_rows(struct gpu_call *);
/* Where the learned numbers of use x begin in the parts of a head, and how many there are. */
int loci_gpu_part_of(const struct gpu_call *, int x, int *count);
/* Totals of a term that come from the device; those of given gates of cope by key stay there, and
 * are there if their gradient is wanted. */
ptrdiff_t loci_gpu_total(const struct call *, int x);
bool loci_gpu_gives_gates(const struct gpu_call *);
/* The number of tensor `which` of an encoding among the input tensors of the plan. */
int8_t loci_gpu_input_number(const struct loci_plan *, int enc, int which);
/* States of queries or keys, of tape: the number of the tensor among the inputs. */
int8_t loci_gpu_states(const struct loci_plan *, bool query);
/* The size of an input tensor in this call. */
size_t loci_gpu_input_bytes(const struct call *, int tensor);

/* Rows of a view rotated into another, or back; without a rotation they are copied. */
struct turned {
    const void *from;
    void *to;
    struct strides at, at_to;
    int32_t type, to_type, heads;
    int dim, form;
    enum gpu_adds adds;
    bool query, turns, back, finish, factors, plain;
};
/* attention.c */
loci_status loci_gpu_run(const struct gpu_call *, enum pass, const char *kernel, int64_t groups,
                         int floats, const struct arrays *, const struct params *);
loci_status loci_gpu_turn(const struct gpu_call *, enum pass, struct turned);
/* The input that has the places of queries or keys, among those of the plan; -1: none. */
int32_t loci_gpu_places(const struct gpu_call *, bool query);
/* Do places follow from the numbers of rows, or of keys? */
bool loci_gpu_counts_places(const struct gpu_call *, bool query);
/* Floats of the kernels that compute what a rotation learns. */
int loci_gpu_frequency_room(const struct gpu_call *);
loci_status loci_gpu_upload_lists(const struct gpu_call *);
/* Clear a gradient, and those of inputs. */
loci_status loci_gpu_clear_inputs(const struct gpu_call *);
loci_status loci_gpu_clear_view(const struct gpu_call *, char *at, struct strides, int heads,
                                ptrdiff_t rows, int width, size_t each);

static inline struct strides dense(int heads, ptrdiff_t rows, int width)
{
    return (struct strides){ (int64_t)heads * rows * width, (int64_t)rows * width, width };
}
static inline struct strides of_view(loci_view v)
{
    return (struct strides){ v.batch, v.head, v.row };
}
static inline int32_t stored_as(loci_dtype t)
{
    return t == LOCI_BF16 ? GPU_BF16 : t == LOCI_F16 ? GPU_F16 : t == LOCI_Q8_0 ? GPU_Q8 : GPU_F32;
}

#endif
