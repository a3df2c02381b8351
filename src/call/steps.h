/* SPDX-License-Identifier: MIT */
/* steps.h -- the steps from a public call to the engine's, in the order that the stages take
 * them. */
#ifndef LOCI_CALL_STEPS_H
#define LOCI_CALL_STEPS_H

#include "base/given.h"
#include "plan/engine.h"

static inline ptrdiff_t tiles(ptrdiff_t n, ptrdiff_t of) { return n / of + (n % of > 0); }

/* ---- What is given: open.c, cache.c */

struct loci_cache;
loci_status loci_cache_check(const loci_plan *, const struct loci_cache *, loci_error *);
size_t loci_cache_bytes(const loci_plan *, const struct loci_cache *);
loci_status loci_take_grad(loci_grad *to, const loci_call *, const loci_grad *from);

/* Shapes; wide: not row by row, however few there are. */
loci_status loci_open_call(struct call *, const loci_plan *, const loci_call *, bool wide);
/* A view's strides. */
loci_status loci_open_view(const struct call *, loci_view *to, const loci_view *from,
                           const char *name, ptrdiff_t H, ptrdiff_t L, ptrdiff_t width);
loci_status loci_open_grad(struct call *);
loci_status loci_need(const struct call *, const void *, const char *name);
/* What every call reads and writes beside views: tables, work, positions and the like; and tensors,
 * with their gradients `out`. */
void loci_add_call(const struct call *, struct regions *, const void *tables, const void *work);
void loci_add_tensors(const struct call *, struct regions *, void *const *out);
/* Those of encoding e that have a row for each of LOCI_DIM_QUERIES, or LOCI_DIM_KEYS, are wanted;
 * 0: all. */
loci_status loci_check_inputs(const struct call *, int e, ptrdiff_t rows);
loci_status loci_open_tables(struct call *, const void *tables);
/* What an encoding says of the call. */
loci_status loci_accept(const struct call *, int e);
/* The workspace in two steps: its size is found and checked, with all that is read on the way; and
 * when it is sure that it overlaps nothing, it is used.  lay_out() says its bytes, or SIZE_MAX, and
 * with base NULL does nothing else. */
typedef size_t lay_out_room(struct call *, char *base, bool backward);
loci_status loci_measure_room(struct call *, const void *work, lay_out_room *, bool backward);
void loci_use_room(struct call *, void *work, lay_out_room *, bool backward);
lay_out_room loci_lay_out;               /* with all that a pass may need; sequences are found on
                                            the way */

/* Of stage ATTENTION, or of LINEAR_ATTENTION with a state that holds `past` keys: all of these;
 * grad NULL: a forward pass; `more`: memory beside that of the call, or NULL.  attention.c */
loci_status loci_open_attention(struct call *, const loci_plan *, loci_stage, const void *tables,
                                void *work, const loci_call *, const loci_grad *, ptrdiff_t past,
                                const struct regions *more);

/* ---- Which rows see which keys: sequences.c */

/* At most, for what these shapes can hold. */
size_t loci_most_sequences(const struct call *);
ptrdiff_t loci_most_ktiles(const struct call *);
loci_status loci_check_starts(const struct call *);
/* Positions and coordinates lie within 2^40. */
loci_status loci_check_given(const struct call *);
/* Room for positions that are counted from starts; with memory there they are, too. */
void loci_take_positions(struct call *, struct arena *);
void loci_find_sequences(struct call *);
/* Distances that visible pairs can have must lie within what the tables were prepared for. */
loci_status loci_check_positions(const struct call *);

/* ---- Before and after the engine: open.c */

/* begin() of the rotation, then, with `keys`, the keys and begin() of the others, which may read
 * turned keys. */
void loci_begin(struct call *, bool keys);
/* Backward: keeps the totals and gradients that somebody wants, zeroed; NULL for the others. */
void loci_want(struct call *, void *const *out);
/* Sums of parts become gradients of tensors, are rounded once and written. */
void loci_fold(struct call *, void *const *out);

#endif
