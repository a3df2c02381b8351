/* SPDX-License-Identifier: MIT */
/* api.h -- the steps from a public call to the engine's, in the order of execution. */
#ifndef LOCI_API_API_H
#define LOCI_API_API_H

#include "util/arguments.h"
#include "util/overlap.h"
#include "contract/engine.h"

/* The most rows of a call that is computed as decode.  All rows share one pass over the keys
 * there. */
enum { FEW_ROWS = 4 };

static inline ptrdiff_t tiles(ptrdiff_t n, ptrdiff_t of) { return n / of + (n % of > 0); }

/* ---- Arguments: validate.c, cache.c ---------------------------------------------------------- */

struct loci_cache;
/* there: it must be in memory of a device, else in that of the host. */
loci_status loci_cache_check(const loci_plan *, const struct loci_cache *, bool there,
                             loci_error *);
/* Bytes of the host; and what is in memory of a device, if it is. */
size_t loci_cache_bytes(const loci_plan *, const struct loci_cache *);
void loci_cache_add_there(const loci_plan *, const struct loci_cache *, struct regions *,
                          enum use_of);
loci_status loci_copy_grad(loci_grad *to, const loci_call *, bool sized, const loci_grad *from);

/* Reads shapes, positions, cache and host of a call that is copied already.  Refuses shapes whose
 * sizes overflow.  wide: all rows are computed in tiles, even few of them. */
loci_status loci_open_call(struct call *, const loci_plan *, const loci_call *, bool wide);
/* Makes the strides of a view of [B][H][L][width] explicit; `name` is its name in errors. */
loci_status loci_open_view(const struct call *, loci_view *to, const loci_view *from,
                           const char *name, ptrdiff_t H, ptrdiff_t L, ptrdiff_t width);
loci_status loci_open_grad(struct call *);
/* Rotated keys may be wider than dim, in `numbers` rows of a head, and then have their strides. */
loci_status loci_check_wide(const loci_plan *, const loci_view *, const char *name,
                            ptrdiff_t numbers, ptrdiff_t width, loci_error *);
/* Refuses values that come with a call although they are channels of the keys. */
loci_status loci_check_values(const loci_plan *, const loci_call *);
/* Refuses NULL for a required argument. */
loci_status loci_require(const struct call *, const void *, const char *name);
/* loci_add_call() adds what every call reads and writes besides views: tables, workspace,
 * positions, segments.  loci_add_tensors() adds the tensors, and their gradients `out`. */
void loci_add_call(const struct call *, struct regions *, const void *tables, const void *work);
void loci_add_tensors(const struct call *, struct regions *, void *const *out);
/* Inputs of encoding e must not be NULL.  rows 0: all of them.  Otherwise only those with a row for
 * each of LOCI_DIM_QUERIES or LOCI_DIM_KEYS. */
loci_status loci_check_inputs(const struct call *, int e, ptrdiff_t rows);
loci_status loci_open_tables(struct call *, const void *tables);
/* Calls accept() of encoding e: checks that only a call can fail. */
loci_status loci_accept(const struct call *, int e);
/* The workspace is prepared in two steps.  loci_lay_out_workspace() finds where everything is, and
 * checks the size, starts and positions.  When the caller knows that the workspace overlaps
 * nothing, loci_fill_workspace() writes counted positions and sequences to it.  A lay_out_workspace
 * returns the bytes, SIZE_MAX if there are too many, and writes nothing. */
typedef size_t lay_out_workspace(struct call *, char *base, bool backward);
loci_status loci_lay_out_workspace(struct call *, void *work, lay_out_workspace *, bool backward);
void loci_fill_workspace(struct call *);
/* For any pass of attention. */
lay_out_workspace loci_lay_out;
/* For rotating or storing rows: positions, the scratch of the rotation, and the engine's workspace
 * of each thread. */
size_t loci_lay_out_rotate(struct call *, char *base, size_t workspace(const struct call *));
/* Bytes of `work` for append and remove of a call with a cache.  SIZE_MAX: too many. */
size_t loci_cache_workspace(const loci_plan *, const loci_call *);

/* What a pass has in addition to its call. */
struct opening {
    loci_stage stage;           /* ATTENTION or LINEAR_ATTENTION */
    const loci_grad *grad;      /* NULL: a forward pass */
    const struct regions *more; /* memory to check for overlap, or NULL */
    int64_t from;               /* position of the first key if positions are counted */
    const struct run *runs;     /* rows are a part of a longer call's, or NULL */
    ptrdiff_t run_count;
    bool tiles; /* rows are computed in tiles, even few of them */
    bool there; /* keys of a cache are in memory of a device */
    /* If not 0, the pass is in parts: k_len of `keys` keys are present at a time, currently from
     * number `first` on. */
    ptrdiff_t keys, first;
    bool here; /* k_pos has the positions of the present keys only */
    struct part part;
    struct chain chain;         /* a backward pass over many processes */
    const bool *apart;          /* see struct stream */
    const struct owned *owned;  /* NULL: the call is as the caller gave it */
    lay_out_workspace *lay_out; /* NULL: loci_lay_out */
};
/* The caller's call, if a pass has a call of its own. */
struct owned {
    const loci_call *in;
    loci_view k, v, dk, dv;
    const void *work;
    size_t work_bytes;
};
/* All of these steps for a pass of a stage: attention.c. */
loci_status loci_open_attention(struct call *, const loci_plan *, const void *tables, void *work,
                                const loci_call *, const struct opening *);
/* Bytes of `work` for a forward pass of a copied call, 0 if the call is invalid.  For a pass in
 * parts also: the slot of struct part, and the states that encodings pass on. */
struct measured {
    size_t slot, state[MAX_ENCODINGS];
    struct chain_sizes chain;
    struct call call; /* the call as it was measured */
};
size_t loci_measure_attention(const loci_plan *, const loci_call *, const struct opening *,
                              struct measured *);

/* Checks that a backward pass has what it needs from the forward pass: attention.c. */
loci_status loci_check_results(const struct call *, const loci_grad *);
/* dk or dv is summed in the workspace, as dense rows.  Otherwise it is not summed at all, except
 * for a rotation that learns. */
void loci_sum_apart(struct call *, bool dk, bool dv);

/* ---- Rotations and embeddings alone: rotate.c, embed.c --------------------------------------- */

/* Validates a rotation of one side, and lays out `work`; lay_out NULL: as the engine needs it. */
loci_status loci_open_rotation(struct call *, const loci_plan *, const void *tables, void *work,
                               const loci_call *, loci_which, bool backward, lay_out_workspace *);
/* Its views, and what overlaps.  dx NULL: y is x rotated; else y stands for dy. */
loci_status loci_open_rotated(struct call *, loci_which, const void *tables, const void *work,
                              loci_view *x, loci_view *y, loci_view *dx, void *const *dtensors);
/* Validates a call of stage EMBED and opens its views.  y NULL: a backward pass, whose dy is x. */
loci_status loci_open_embed(const loci_plan *, const loci_call *, const void *tables, loci_view *x,
                            loci_view *y);
loci_status loci_check_embed_memory(const loci_plan *, const loci_call *, const void *tables,
                                    const void *work, const loci_view *x, const loci_view *y,
                                    void *const *dtensors);
/* The position of row i of entry b. */
int64_t loci_embed_pos(const loci_call *, ptrdiff_t b, ptrdiff_t i);

/* ---- Which rows see which keys: sequences.c */

/* Upper bounds for these shapes.  They lay out the workspace before sequences are found. */
size_t loci_most_sequences(const struct call *);
ptrdiff_t loci_most_ktiles(const struct call *);
loci_status loci_check_starts(const struct call *);
/* Positions and coordinates lie within 2^40. */
loci_status loci_check_given(const struct call *);
/* loci_carve_positions() carves memory for positions that are counted from starts.
 * loci_count_positions() fills it. */
void loci_carve_positions(struct call *, struct arena *);
void loci_count_positions(struct call *);
void loci_find_sequences(struct call *);
/* Distances of visible pairs must lie within what the tables were prepared for. */
loci_status loci_check_positions(const struct call *);

/* ---- Before and after the engine: validate.c ------------------------------------------------- */

/* Calls begin() of the rotation.  With `keys` it then rotates the keys and calls begin() of the
 * other encodings, which may read rotated keys. */
void loci_begin(struct call *, bool keys);
void loci_begin_encoding(struct call *, int e);
/* Backward: zeroes the totals and gradients that are wanted, and sets the others to NULL. */
void loci_want(struct call *, void *const *out);
/* Turns sums of parts into gradients of tensors, rounds them once and writes them. */
void loci_fold(struct call *, void *const *out);

#endif
