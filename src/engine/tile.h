/* SPDX-License-Identifier: MIT */
/* tile.h -- the tile that the engine and the hooks of terms (term.h) work on.  Compiled per
 * instruction set and tile width.
 *
 * A tile is KT = 64 keys against QT query rows (64, or 1 for decode), key-major with the rows in
 * the lanes: s[k][r].  All loops are `for k < keys, for r < QT`; with QT = 1 they collapse to a
 * loop over keys.
 *
 * The law of pure rows: the bits of row r depend on its query, the keys it sees and the parameters,
 * on nothing else.  So every shortcut (far tile, spent stick) gives the bits of the long way,
 * and sums over the keys of a tile start at 0, run over ascending keys, and are added
 * to what came before once. */
#ifndef LOCI_ENGINE_TILE_H
#define LOCI_ENGINE_TILE_H

#include "engine/gemm.h"
#include "engine/rotation.h"
#include "contract/call.h"

/* One term's own memory beside a tile.  The engine clears and joins the sums;
 * `mem` it never looks at. */
struct own {
    const void *table;                   /* of its encoding, prepared */
    void *scratch;                       /* of its encoding, made by begin() for this call */
    real *mem;                           /* [mem rows][QT], of this query tile */
    /* [out rows][QT]: sums of weights, of this chunk and in all */
    real *out, *outs;
    real *grad, *grads;                  /* [grad rows][QT]: sums of gradients, likewise */
    /* [carry rows][QT] reals, or doubles in twice the rows: state of a scan, newest to oldest;
     * the backward pass restores it before each tile */
    real *carry;
    real *part;                          /* gradient of tables: this work item's part for this head
                                            and chunk of keys; NULL: not wanted */
    real *fresh;                         /* the first numbers of it, of this query tile alone */
    real *keys;                          /* gradient by key: likewise, from the tile's first key on,
                                            rows of key_row() */
    int outn, gradn, carryn;
};

/* Keys or values of a tile where they are stored: numbers of some form, in rows `stride` numbers
 * apart; or across: [D][KT], key by key in the lanes, as a cache has its keys. */
enum form { REALS, BITS_BF16, BITS_F16 };
struct source {
    const void *at;
    ptrdiff_t stride, rest;              /* rest: rows from the first on that may be read, those of
                                            the next tiles too */
    enum form form;
    bool across, beside;                 /* beside: another stream is read at the same time */
};

/* Rows of queries and gradients are padded to whole vectors of every ISA. */
enum { PAD = 16 };
INLINE int padded(int n) { return (n + PAD - 1) / PAD * PAD; }

/* The queries of a tile, rotated and times scale.  With a rotation that fades, what the products see
 * is faded from the reference of the tile's keys. */
struct queries {
    real *across, *rows;                 /* [D][QT], as products see them; and in rows [QT][Dp] */
    real *faded;                         /* the rows that `across` has; those above, if none fade */
    ptrdiff_t block;                     /* which reference that was; -1: none yet */
    real *norm;                          /* [QT]: |q|, rounded up; bounds scores */
};
/* The keys or the values of a tile as reals: number d of key i is at[i * row + d * step]. */
struct operand {
    const real *at;
    /* step: 1; or KT, and row 1, where keys lie across as in a cache */
    ptrdiff_t row, step;
    /* [KT][width]: where what is stored otherwise becomes rows of reals */
    real *buffer;
};
/* What a row has of some keys: the largest score m, the sum l of e^(s - m), and o, the sum of
 * values with these weights; [QT], [QT], [Dv][QT].  (stick: the stick that is left, nothing, o.) */
struct state { real *m, *l, *o; };
/* The same for bf16 dot products (fast.c), pairs of bf16 in words: q [D / 2 rounded up][QT],
 * p [KT / 2][QT], v [KT / 2][Dv]; and k [KT][D + 1], for keys that are stored
 * otherwise or have an odd width. */
struct bf16_pairs { uint32_t *q, *p, *v; uint16_t *k; };

struct tile {
    const struct call *c;

    /* Which rows and keys. */
    const struct sequence *seq;
    int h, kvh, kh;                      /* head, its kv head, and its keys, which a group need not
                                            share once they are rotated */
    ptrdiff_t i0, j0;                    /* first row and key, counted in the batch entry */
    int rows, keys;                      /* live ones.  Dead rows have q = 0 and are masked; keys
                                            past `keys` are not there */
    /* columns that products and softmax work on: those of live rows in whole vectors of every ISA;
     * in the others p = 0 (backward: all, as sums run over rows) */
    int live;
    /* distance of (key k, row r): d + r - k; else qp[r] - kp[k] */
    bool run;
    int64_t d;
    const int64_t *qp, *kp;              /* positions; only when !run, or with segments */
    const int64_t *qg, *kg;              /* segments, or NULL */
    /* Rows do not see a band of distances: bit r of hidden[k] tells whether row r sees key k.
     * first, last: keys of each row, counted in the tile's sequence, or NULL. */
    bool listed;
    uint64_t *hidden;
    const int64_t *first, *last;
    bool partial;                        /* some score of a live row is masked, or some row among
                                            `live` is dead */

    /* What they hold. */
    struct queries q;
    struct operand k, v;                 /* k has rotated */
    struct next next;                    /* keys or values of the next tile, that products ask for;
                                            its rows are keys */
    struct bf16_pairs fast;
    struct angles *angles;               /* of the rotation */

    /* Scores and weights, [KT][QT]. */
    real *s;                             /* scores, which score hooks add to (with a mix: the sum of
                                            the ADD terms) */
    real *added;                         /* numbers of a mask, which come last; NULL: none are */
    real *a;                             /* with a mix: the scores without that sum */
    real *p;                             /* weights */
    struct state chunk, total;           /* of this chunk, and of all chunks so far */
    real *lost;                          /* [QT]: not 0 where scores are -inf since products left
                                            the reals */
    real *alpha;                         /* [QT]: what the sums so far are multiplied by */

    /* Backward.  A gradient by score is that of the stage whose backward runs. */
    struct { real *across, *rows; } dout;    /* dO: [Dv][QT], and in rows [QT][Dvp] */
    real *dp, *ds;                       /* [KT][QT]: by weight, and by score */
    real *pre;                           /* with a MUL: the scores before it */
    real *da;                            /* with a mix: mix_bwd turns ds into da (scores) and ds
                                            (sum of the ADD terms) */
    real *lse, *delta;                   /* [QT] */
    real *dq, *dqs;                      /* [D][QT]: of the chunk, in all */
    real *dk_part, *dv_part;             /* this item's dK and dV from the tile's first key on, rows
                                            of Dp and Dvp; NULL: not wanted */
    real *scratch;                       /* [QT][widest padded]: rows on their way */
    bool finite;                         /* all of Q, dO and lse */

    struct tile *all;                    /* the tiles of all heads of this work item (mix) */
    int tiles;
    struct own own[MAX_USES];            /* of the plan's uses; last, as those beyond are not set */
};

/* The next tile's first key, from this one's: tiles come newest first, in the backward pass oldest
 * first. */
INLINE ptrdiff_t next_tile(const struct call *c) { return c->backward ? KT : -KT; }

#define S(t, k, r) ((t)->s[(k) * QT + (r)])

/* Distance of a pair, and whether the row sees the key: the mask, pair by pair. */
INLINE int64_t distance(const struct tile *t, int k, int r)
{
    return t->run ? t->d + r - k : t->qp[r] - t->kp[k];
}

INLINE bool visible(const struct tile *t, int k, int r)
{
    const struct loci_plan *p = t->c->plan;
    if (t->listed) return r < t->rows && !(t->hidden[k] >> r & 1);
    int64_t d = t->d + r - k;
    return r < t->rows && (p->full || d >= p->strict) && d <= p->window_left
        && -d <= p->window_right;
}

#endif
