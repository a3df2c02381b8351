/* SPDX-License-Identifier: MIT */
/* call.h -- the steps from a public call to the engine's, in the order that the stages take them. */
#ifndef LOCI_CALL_H
#define LOCI_CALL_H

#include "engine.h"

#define TRY(x) do { const loci_status status_ = (x); if (status_) return status_; } while (0)

static inline ptrdiff_t tiles(ptrdiff_t n, ptrdiff_t of) { return n / of + (n % of > 0); }

/* ---- What is given: call.c, cache.c */

bool loci_plan_is(const loci_plan *, loci_stage);
struct loci_cache;
loci_status loci_cache_check(const loci_plan *, const struct loci_cache *, loci_error *);
loci_status loci_check_grad(const loci_call *, const loci_grad *);

/* Shapes; wide: not row by row, however few there are. */
loci_status loci_open_call(struct call *, const loci_plan *, const loci_call *, bool wide);
/* A view's strides; `output`: its rows must not overlap. */
loci_status loci_open_view(const struct call *, loci_view *to, const loci_view *from, const char *name, ptrdiff_t H, ptrdiff_t L,
                           ptrdiff_t width, bool output);
loci_status loci_open_grad(struct call *);
loci_status loci_need(const struct call *, const void *, const char *name);
/* Do the bytes of two views meet?  Numbers of `a`, an output, have `size` bytes; `b` is as it was given, of Bb entries. */
bool loci_meet(const struct call *, const loci_view *a, ptrdiff_t Ha, ptrdiff_t La, ptrdiff_t wa, size_t size,
               const loci_view *b, ptrdiff_t Bb, ptrdiff_t Hb, ptrdiff_t Lb, ptrdiff_t wb);
/* Those of encoding e that have a row for each of LOCI_DIM_QUERIES, or LOCI_DIM_KEYS, are wanted; 0: all. */
loci_status loci_check_inputs(const struct call *, int e, ptrdiff_t rows);
loci_status loci_open_tables(struct call *, const void *tables);
/* Checks the workspace and lays it out; lay_out() says its bytes, or SIZE_MAX, and with base NULL nothing else. */
loci_status loci_open_room(struct call *, void *work, size_t (*lay_out)(struct call *, char *base, bool backward), bool backward);
/* With all that a pass may need.  Sequences are found on the way. */
loci_status loci_open_work(struct call *, void *work, bool backward);

/* Of stage ATTENTION, or of LINEAR_ATTENTION with a state that holds `past` keys: all of these.  attention.c */
loci_status loci_open_attention(struct call *, const loci_plan *, loci_stage, const void *tables, void *work, const loci_call *, bool backward,
                                ptrdiff_t past);

/* ---- Which rows see which keys: sequences.c */

/* At most, for what these shapes can hold. */
size_t loci_most_sequences(const struct call *);
ptrdiff_t loci_most_ktiles(const struct call *);
loci_status loci_check_starts(const struct call *);
/* Room for positions that are counted from starts; with memory there they are, too. */
void loci_take_positions(struct call *, struct arena *);
void loci_find_sequences(struct call *);
/* Distances that visible pairs can have must lie within what the tables were prepared for. */
loci_status loci_check_positions(const struct call *);
loci_status loci_check_axis(const struct call *, const double *x, ptrdiff_t len, const char *name);
loci_status loci_check_coordinates(const struct call *);

/* ---- Before and after the engine: call.c */

/* begin() of the rotation, then, with `keys`, the keys and begin() of the others, which may read turned keys. */
void loci_begin(struct call *, bool keys);
/* Backward: keeps the totals and gradients that somebody wants, zeroed; NULL for the others. */
void loci_want(struct call *, void *const *out);
/* Sums of parts become gradients of tensors, are rounded once and written. */
void loci_fold(struct call *, void *const *out);

#endif
