/* SPDX-License-Identifier: MIT */
/* steps.h -- the steps from a public call to the
 * engine's, in the order that the stages take them. */
#ifndef LOCI_API_API_H
#define LOCI_API_API_H

#include "util/arguments.h"
#include "util/overlap.h"
#include "contract/engine.h"

/* The most rows of a call that goes as decode, where all rows share one pass over the keys. */
enum { FEW_ROWS = 4 };

static inline ptrdiff_t tiles(ptrdiff_t n, ptrdiff_t of) { return n / of + (n % of > 0); }

/* ---- What is given: open.c, cache.c */

struct loci_cache;
loci_status loci_cache_check(const loci_plan *, const struct loci_cache *, loci_error *);
size_t loci_cache_bytes(const loci_plan *, const struct loci_cache *);
loci_status loci_copy_grad(loci_grad *to, const loci_call *, bool sized, const loci_grad *from);

/* Takes shapes, positions, cache and host from a call that has been taken; refuses
 * those whose sizes overflow.  wide: all rows go in tiles, however few there are. */
loci_status loci_open_call(struct call *, const loci_plan *, const loci_call *, bool wide);
/* Spells out a view of [B][H][L][width]; `name` is that of the sentence. */
loci_status loci_open_view(const struct call *, loci_view *to, const loci_view *from,
                           const char *name, ptrdiff_t H, ptrdiff_t L, ptrdiff_t width);
loci_status loci_open_grad(struct call *);
/* Refuses NULL for what is not optional. */
loci_status loci_require(const struct call *, const void *, const char *name);
/* Adds what every call reads and writes beside views: tables, workspace,
 * positions, segments; and the tensors, with their gradients `out`. */
void loci_add_call(const struct call *, struct regions *, const void *tables, const void *work);
void loci_add_tensors(const struct call *, struct regions *, void *const *out);
/* Inputs of encoding e must be there.  rows 0: all of them; else only
 * those with a row for each of LOCI_DIM_QUERIES or LOCI_DIM_KEYS. */
loci_status loci_check_inputs(const struct call *, int e, ptrdiff_t rows);
loci_status loci_open_tables(struct call *, const void *tables);
/* Asks encoding e whether it accepts the call: what only a call can do wrong. */
loci_status loci_accept(const struct call *, int e);
/* The workspace is taken in two steps.  take_room() finds where everything is and checks the size,
 * and checks starts and positions; when the caller knows that it overlaps nothing, use_room()
 * writes to it: positions that are counted, and sequences.  lay_out_workspace returns the bytes,
 * SIZE_MAX if there are too many; it writes nothing. */
typedef size_t lay_out_workspace(struct call *, char *base, bool backward);
loci_status loci_lay_out_workspace(struct call *, void *work, lay_out_workspace *, bool backward);
void loci_fill_workspace(struct call *);
/* All that a pass may need. */
lay_out_workspace loci_lay_out;
/* What turning or storing rows needs: positions, the scratch of the rotation, and the engine's
 * workspace for each thread. */
size_t loci_lay_out_rotate(struct call *, char *base, size_t workspace(const struct call *));
/* Bytes of `work` for append and remove of a call with a cache; SIZE_MAX when too many. */
size_t loci_cache_workspace(const loci_plan *, const loci_call *);

/* What a pass has beside its call. */
struct opening {
    loci_stage stage;                    /* ATTENTION or LINEAR_ATTENTION */
    const loci_grad *grad;               /* NULL: a forward pass */
    const struct regions *more;          /* memory, or NULL */
    int64_t from;                        /* position of the first key, where they are counted */
    const struct run *runs;              /* rows that are some of a longer call's, or NULL */
    ptrdiff_t run_count;
    bool tiles;                          /* rows go in tiles, however few there are */
    ptrdiff_t keys, first;               /* not 0: of so many keys, k_len are there at a time, now
                                            those from number `first` on, and the pass goes in parts
                                            */
    bool here;                           /* k_pos has the positions of these alone */
    struct part part;
    struct chain chain;                  /* a backward pass of many processes */
    const bool *apart;                   /* see struct where */
    const struct owned *owned;           /* NULL: the call is as the caller gave it */
};
/* What the caller gave, where a pass has a call of its own. */
struct owned {
    const loci_call *in;
    loci_view k, v, dk, dv;
    const void *work;
    size_t work_bytes;
};
/* All of these steps for a pass of a stage.  attention.c */
loci_status loci_open_attention(struct call *, const loci_plan *, const void *tables, void *work,
                                const loci_call *, const struct opening *);
/* Bytes of `work` for a forward pass of a call that has been taken, 0 where there can be none; and
 * of what goes in parts: a slot of struct part, and what encodings hand on. */
struct measured {
    size_t slot, state[MAX_ENCODINGS];
    struct chain_sizes chain;
    struct call call;                    /* as it was measured */
};
size_t loci_measure_attention(const loci_plan *, const loci_call *, const struct opening *,
                           struct measured *);

/* Has a backward pass what it needs from the forward one?  attention.c */
loci_status loci_check_results(const struct call *, const loci_grad *);
/* dk, or dv, is summed in the workspace, as dense rows; else not at all, but for a rotation that
 * learns. */
void loci_sum_apart(struct call *, bool dk, bool dv);

/* ---- Which rows see which keys: sequences.c */

/* Upper bounds for these shapes, to lay the workspace out before sequences are found. */
size_t loci_most_sequences(const struct call *);
ptrdiff_t loci_most_ktiles(const struct call *);
loci_status loci_check_starts(const struct call *);
/* Positions and coordinates lie within 2^40. */
loci_status loci_check_given(const struct call *);
/* Takes room for positions that are counted from starts, and fills it. */
void loci_carve_positions(struct call *, struct arena *);
void loci_count_positions(struct call *);
void loci_find_sequences(struct call *);
/* Distances that visible pairs can have must lie within what the tables were prepared for. */
loci_status loci_check_positions(const struct call *);

/* ---- Before and after the engine: open.c */

/* begin() of the rotation, then, with `keys`, the keys and
 * begin() of the others, which may read rotated keys. */
void loci_begin(struct call *, bool keys);
void loci_begin_encoding(struct call *, int e);
/* Backward: zeroes the totals and gradients that somebody wants and sets the others to NULL. */
void loci_want(struct call *, void *const *out);
/* Sums of parts become gradients of tensors, are rounded once and written. */
void loci_fold(struct call *, void *const *out);

#endif
