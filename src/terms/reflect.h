/* SPDX-License-Identifier: MIT */
/* reflect.h -- the forms of keys of the term `reflect`, shared by the walk and by the code that
 * makes them. */
#ifndef LOCI_TERMS_REFLECT_H
#define LOCI_TERMS_REFLECT_H

#include "engine/workspace.h"
#include "layout/reflect.h"

/* Keys of a tile that a row meets together: their products with the row are computed at once, and
 * then corrected by products among these few keys. */
enum { FEW = 4 };

/* Numbers of matrices below this are 0: see the floor of a row in reflect.c. */
#define LEAST 0x1p-40

/* All forms of a key head.  Keys are counted in the batch entry, tiles and blocks in all
 * sequences. */
struct forms {
    real *keys;   /* [Lk][D]: k' */
    real *gram;   /* [Lk][2][FEW]: k_j.w_m and w_j.w_m of the FEW keys around j */
    real *tiles;  /* [ktiles][D][D]: M */
    real *blocks; /* [..][D][D]: MB */
};
/* Numbers of blocks that rows step over, all but the newest of a sequence: no two share one. */
INLINE ptrdiff_t block_count(const struct call *c) { return c->seqs.ktiles / SPAN; }
INLINE ptrdiff_t block_number(const struct sequence *q, ptrdiff_t tile)
{
    return q->first_ktile / SPAN + tile / SPAN;
}
INLINE ptrdiff_t forms_reals(const struct call *c)
{
    const ptrdiff_t D = c->plan->dim;
    return c->B * c->Lk * (D + 2 * FEW) + (c->seqs.ktiles + block_count(c)) * D * D;
}
INLINE struct forms forms_of(const struct call *c, ptrdiff_t b, int kvh)
{
    const ptrdiff_t D = c->plan->dim;
    real *at = (real *)c->mem.moved + kvh * forms_reals(c);
    struct forms f = { .keys = at + b * c->Lk * D };
    at += c->B * c->Lk * D;
    f.gram = at + b * c->Lk * 2 * FEW;
    at += c->B * c->Lk * 2 * FEW;
    f.tiles = at;
    f.blocks = at + c->seqs.ktiles * D * D;
    return f;
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

/* What rows of a tile of keys sum for its gradients, reals: dk', the sums of the rows' own tile by
 * k, w and beta, dM, and dMB in the first tile of a block. */
struct sums_at {
    ptrdiff_t keys, own_k, own_w, own_beta, tile, block, begun, end;
};
INLINE struct sums_at sums_in(int D)
{
    const ptrdiff_t rows = (ptrdiff_t)KT * padded(D), square = (ptrdiff_t)D * padded(D);
    struct sums_at a = { .own_k = rows, .own_w = 2 * rows, .own_beta = 3 * rows };
    a.tile = a.own_beta + KT;
    a.block = a.tile + square;
    a.begun = a.block + square;
    a.end = a.begun + 1;
    return a;
}

/* Bytes of the memory that the next two functions need. */
size_t WIDE(reflect_bytes)(int D);
/* Makes all forms of the block that begins with this tile, and stages k^. */
void WIDE(reflect_block)(const struct call *, int x, const struct sequence *, ptrdiff_t tile,
                         int kvh, void *memory);
/* From the sums over all rows: the gradient of staged keys becomes that of k, and those of w and
 * beta are written. */
void WIDE(reflect_block_bwd)(const struct call *, int x, const struct sequence *, ptrdiff_t tile,
                             int kvh, void *memory);

#endif
