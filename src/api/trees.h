/* SPDX-License-Identifier: MIT */
/* trees.h -- trees of tokens (tree.c) on any backend that has the cache: the CPU, or a device. */
#ifndef LOCI_API_TREES_H
#define LOCI_API_TREES_H

#include "api/api.h"
#include "api/cached.h"

/* A row is copied from one place to another; to < 0: it is not. */
struct tree_move {
    int64_t from, to;
};
/* Rows of the entries of one tree: [entries][rows] moves, for `outer` heads of `inner` numbers of
 * `each` bytes. */
struct tree_copy {
    loci_view from, to;
    ptrdiff_t entries, rows;
    size_t outer, inner, each;
    const struct tree_move *move;
    const struct tree_move *move_there; /* the same list where it was uploaded */
};

struct tree_backend;
typedef loci_status copy_tree(struct tree_backend *, const struct tree_copy *);
struct tree_backend {
    const loci_plan *plan;
    const void *tables; /* of the host */
    bool there;         /* rows, `work` and the keys of the cache are memory of a device */
    ptrdiff_t longest;  /* nodes of a path; 0: any number */
    loci_cache *cache;  /* of the call, and its error: set by tree.c */
    loci_error *error;
    /* Memory of the host for lists; NULL: they are in `work`. */
    void *(*lists)(struct tree_backend *, size_t bytes);
    /* loci_workspace(), loci_cache_fork(), loci_cache_append() and loci_forward(). */
    size_t (*workspace)(const struct tree_backend *, const loci_call *);
    loci_status (*fork)(struct tree_backend *, void *work, ptrdiff_t from, ptrdiff_t to,
                        int64_t length, const loci_call *);
    loci_status (*append)(struct tree_backend *, void *work, const loci_call *);
    loci_status (*forward)(struct tree_backend *, void *work, const loci_call *);
    /* Lists of moves go there before copies read them; NULL: copies read those of the host. */
    loci_status (*upload)(struct tree_backend *, void *to, const void *from, size_t bytes);
    loci_status (*clear)(struct tree_backend *, void *at, size_t bytes); /* to 0 */
    copy_tree *copy;
};
/* That of the CPU. */
copy_tree loci_tree_copy;

/* loci_tree_workspace(), loci_tree_forward() and loci_tree_keep().  If lists have memory of their
 * own, keeping nodes needs no `work`. */
size_t loci_tree_workspace_on(struct tree_backend *, const loci_cache *, const loci_tree *,
                              const loci_call *);
loci_status loci_tree_forward_on(struct tree_backend *, void *work, loci_cache *, const loci_tree *,
                                 const loci_call *);
loci_status loci_tree_keep_on(struct tree_backend *, void *work, loci_cache *, const loci_tree *,
                              const int64_t *last, const loci_call *);

#endif
