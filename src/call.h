/* SPDX-License-Identifier: MIT */
/* call.h -- the steps from a public call to the engine's, for those that make such calls. */
#ifndef LOCI_CALL_H
#define LOCI_CALL_H

#include "engine.h"

#define TRY(x) do { const loci_status status_ = (x); if (status_) return status_; } while (0)

/* Shapes; wide: not row by row, however few there are. */
loci_status loci_open_call(struct call *, const loci_plan *, const loci_call *, bool wide);
loci_status loci_open_tables(struct call *, const void *tables);
loci_status loci_open_work(struct call *, void *work, bool backward);
/* A view's strides; `output`: its rows must not overlap. */
loci_status loci_open_view(const struct call *, loci_view *to, const loci_view *from, const char *name, ptrdiff_t H, ptrdiff_t L,
                           ptrdiff_t width, bool output);
/* begin() of the rotation, then, with `keys`, the keys and begin() of the others. */
void loci_begin(struct call *, bool keys);

/* Is it a cache, and one of such a plan? */
struct loci_cache;
loci_status loci_cache_check(const loci_plan *, const struct loci_cache *, loci_error *);

#endif
