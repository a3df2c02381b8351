/* SPDX-License-Identifier: MIT */
/* rotation.h -- the hooks of a rotation: it rotates rows of queries and keys by their positions
 * before their dot products, and rotates gradients back.  It works on rows only, not on tiles. */
#ifndef LOCI_ENGINE_ROTATION_H
#define LOCI_ENGINE_ROTATION_H

#include "simd/num.h"
#include "contract/call.h"

/* Cos and sin of the rows that a thread rotated last, so that heads with
 * the same angles share them. */
struct angles {
    /* plain: without the factor of the rotation, if it has one */
    bool set, query, plain;
    int group, rows;
    ptrdiff_t b, i0;
    real *buffer; /* scratch of the size that the rotation asked for */
};

/* Rows of several heads, and the strides of rows and heads. */
struct rows_at {
    real *first;
    ptrdiff_t row, head;
};

/* The hooks get rows x[n][stride] of positions i0 .. of batch entry b and head h, a key head
 * for keys, and work in place.  If rows widen, from dim to score_dim of the plan, the stride leaves
 * room: rotate() reads the first dim numbers, and rotate_bwd() returns as many. */
struct rotation {
    ptrdiff_t (*buffer)(const struct call *, int x); /* reals of its angles; NULL: none */
    void (*rotate)(const struct call *, int x, struct angles *, ptrdiff_t b, int h, bool query,
                   ptrdiff_t i0, int n, real *rows, ptrdiff_t stride);
    /* The same for `heads` heads from h on, from one place to another, which is disjoint from
     * the first or equal to it.  `back`: the rotation of gradients by rotate_bwd().  NULL, as in
     * all rotations that fade: rows are copied first. */
    void (*move)(const struct call *, int x, struct angles *, ptrdiff_t b, int h, int heads,
                 bool query, bool back, ptrdiff_t i0, int n, struct rows_at from,
                 struct rows_at to);
    /* rows: the output of rotate(), or with of_input its input (read only for a part or
     * for gradients of inputs, if the term has parts).  d: the gradient by the output, which
     * becomes the gradient by the input. */
    bool of_input;
    /* It is not linear: the rows of queries that rotate_bwd() reads are not times scale. */
    bool bends;
    void (*rotate_bwd)(const struct call *, int x, struct angles *, ptrdiff_t b, int h, bool query,
                       ptrdiff_t i0, int n, const real *rows, real *d, ptrdiff_t stride,
                       real *part);
    /* If values turn: rotates rows of values, or of outputs with `query`, in place by the angles
     * of rotate() without its factor; sign -1: back.  h is a kv head for values.
     * turn_bwd() adds the gradients of the angles, x[a] d[b] - x[b] d[a] of each pair, from rows x
     * and their gradients d; they are the same after both have turned. */
    void (*turn)(const struct call *, int x, struct angles *, ptrdiff_t b, int h, bool query,
                 real sign, ptrdiff_t i0, int n, real *rows, ptrdiff_t stride);
    void (*turn_bwd)(const struct call *, int x, ptrdiff_t b, int h, bool query, ptrdiff_t i0,
                     int n, const real *rows, const real *d, ptrdiff_t stride, real *part);
    /* A rotation by distance has several forms of each row, and one or several of each key
     * (row_forms and key_forms of the plan).  Every pair of a row and a key has a class, from the
     * positions of both: its score is the product of the row's form of that number with the key's,
     * or with the only one.  The class never falls as q rises or k falls, for k <= q.  The hooks
     * above then get h = head * forms + form.  still(): keys of that form are not rotated. */
    int (*class_of)(const struct call *, int x, int64_t q, int64_t k);
    bool (*still)(const struct call *, int x, int form);
    /* A rotation may also fade: queries are multiplied by z^(pos - ref), keys by z^(ref - pos),
     * and so are gradients.  ref is shared by `span` key tiles, a power of two up to a chunk.
     * run: the keys of these tiles have consecutive positions from ref on, so a power may become
     * 0 if no product with any of them is worth adding. */
    int (*span)(const struct call *, int x);
    void (*fade)(const struct call *, int x, ptrdiff_t b, bool query, bool run, int64_t ref,
                 ptrdiff_t i0, int n, real *rows, ptrdiff_t stride);
};

/* The kv head of a query head or of a key head: a group shares rates that are learned by head. */
INLINE int kv_head(const struct call *c, int h, bool query)
{
    return query ? h / c->plan->group : h;
}

#endif
