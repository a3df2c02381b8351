/* SPDX-License-Identifier: MIT */
/* reflect.h -- the forms of keys of the term `reflect`, shared by the walk and by the code that
 * makes them. */
#ifndef LOCI_TERMS_REFLECT_H
#define LOCI_TERMS_REFLECT_H

#include "engine/workspace.h"
#include "layout/reflect.h"

/* Keys of a tile that a row meets together: their products with the row are computed at once, and
 * then corrected by matrices of these few keys, of which each key stores its rows.  With G_jm =
 * w_j.w_m, B = diag(beta) and U, L the triangles of a matrix above and below its diagonal,
 *
 *     KEYS   U(k_j.w_m)               what newer keys take from a row, in scores of older ones
 *     DOTS   (I + U(G) B)^-1          from w_j.u of the row before these keys to that at each key
 *     TURNS  (I + L(G) B)^-1          the same for its gradient, which comes from the other end
 *
 * Where rows meet keys one by one, KEYS is k_j.w_m and DOTS is G. */
enum { FEW = 16, KEYS_BY = 0, DOTS_BY = FEW, TURNS_BY = 2 * FEW, BY = 3 * FEW };

/* Numbers of matrices below this are 0: see the floor of a row in reflect.c. */
#define LEAST (sizeof(real) == sizeof(float) ? 0x1p-40 : 0x1p-500)

/* All forms of a key head.  Keys are counted in the batch entry.  Only whole tiles are carried, and
 * have an M: tiles of all sequences that are one after another without a gap.  M of a left child or
 * a block is found by its last tile, that of a right child by its first one: no two share it. */
struct forms {
    real *keys;  /* [rows_of_forms()][D] */
    real *few;   /* [Lk][BY] */
    real *left;  /* [whole tiles][D][D] */
    real *right; /* [whole tiles][D][D]; only in a backward pass */
};
/* A whole block has LEVELS / 2 forms of a key, and tiles behind the last one half a form more. */
INLINE ptrdiff_t rows_of_forms(ptrdiff_t keys) { return (LEVELS + 1) * keys / 2; }
INLINE ptrdiff_t forms_reals(const struct call *c)
{
    const ptrdiff_t D = c->plan->dim, keys = c->B * c->Lk, squares = c->backward ? 2 : 1;
    return keys * BY + rows_of_forms(keys) * D + squares * (keys / KT) * D * D;
}
INLINE struct forms forms_of(const struct call *c, ptrdiff_t b, int kvh)
{
    const ptrdiff_t D = c->plan->dim, keys = c->B * c->Lk;
    real *at = (real *)c->mem.moved + kvh * forms_reals(c);
    struct forms f = { .keys = at };
    at += rows_of_forms(keys) * D;
    f.few = at + b * c->Lk * BY;
    at += keys * BY;
    f.left = at;
    f.right = c->backward ? at + keys / KT * D * D : NULL;
    return f;
}
/* The first key of a sequence, counted in all batch entries. */
INLINE ptrdiff_t first_key_in(const struct call *c, const struct sequence *q)
{
    return q->b * c->Lk + q->k0;
}
/* Where a tile's keys are carried to the end of its node of this level, a left child.  The forms
 * that rows read from tile `reader` on come after those that older tiles read. */
INLINE real *form_keys(const struct call *c, const struct forms *f, const struct sequence *q,
                       ptrdiff_t tile, int level)
{
    const int in = (int)(tile % SPAN), reader = ((in >> level) + 1) << level;
    ptrdiff_t before = LEVELS * (tile - in) / 2 + in - (reader - (1 << level));
    for (int i = 1; i < reader; i++) before += i & -i;
    return f->keys + (rows_of_forms(first_key_in(c, q)) + before * KT) * c->plan->dim;
}
/* M of the left child or block of this level that begins with a tile. */
INLINE real *left_matrix(const struct call *c, const struct forms *f, const struct sequence *q,
                         ptrdiff_t tile, int level)
{
    const ptrdiff_t D = c->plan->dim;
    return f->left + (first_key_in(c, q) / KT + tile + (1 << level) - 1) * D * D;
}
INLINE real *right_matrix(const struct call *c, const struct forms *f, const struct sequence *q,
                          ptrdiff_t tile)
{
    const ptrdiff_t D = c->plan->dim;
    return f->right + (first_key_in(c, q) / KT + tile) * D * D;
}
INLINE ptrdiff_t tiles_in(const struct sequence *q) { return (q->nk + KT - 1) / KT; }
/* w and beta of the keys from j on. */
INLINE const real *w_of(const struct call *c, int x, ptrdiff_t b, int kvh, ptrdiff_t j)
{
    const struct loci_plan *p = c->plan;
    return (const real *)input(c, p->use[x].enc, REFLECT_W)
         + ((b * p->kv_heads + kvh) * c->Lk + j) * p->dim;
}
INLINE const real *beta_of(const struct call *c, int x, ptrdiff_t b, int kvh, ptrdiff_t j)
{
    const struct loci_plan *p = c->plan;
    return (const real *)input(c, p->use[x].enc, REFLECT_BETA) + (b * p->kv_heads + kvh) * c->Lk
         + j;
}

/* What rows of a tile of keys sum for its gradients, reals: those of its forms by level, the sums
 * of the rows' own tile by k, w and beta, and dM of the left child or block that ends with it. */
struct sums_at {
    ptrdiff_t own_k, own_w, own_beta, node, begun, end;
};
INLINE struct sums_at sums_in(int D)
{
    const ptrdiff_t rows = (ptrdiff_t)KT * padded(D);
    struct sums_at a = { .own_k = LEVELS * rows };
    a.own_w = a.own_k + rows;
    a.own_beta = a.own_w + rows;
    a.node = a.own_beta + KT;
    a.begun = a.node + (ptrdiff_t)D * padded(D);
    a.end = a.begun + 1;
    return a;
}

/* Bytes of the memory that the next two functions need. */
size_t WIDE(reflect_bytes)(const struct call *);
/* Makes the forms of this tile and the later ones of its block, from those of the older ones. */
void WIDE(reflect_block)(const struct call *, int x, const struct sequence *, ptrdiff_t tile,
                         int kvh, void *memory);
/* From the sums over all rows: the gradient of staged keys becomes that of k, and those of w and
 * beta are written. */
void WIDE(reflect_block_bwd)(const struct call *, int x, const struct sequence *, ptrdiff_t tile,
                             int kvh, void *memory);

#endif
