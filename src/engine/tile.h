/* SPDX-License-Identifier: MIT */
/* tile.h -- the tile that the engine and the hooks of terms (term.h) work on.  Compiled per
 * instruction set and tile width.
 *
 * A tile is KT = 64 keys against QT query rows (64, or 1 for decode), key-major with the
 * rows in the lanes: s[k][r].  All loops are `for k < keys, for r < QT`; with QT = 1 they
 * collapse to a loop over keys.
 *
 * The law of pure rows: the bits of row r depend on its query, the keys it sees and the
 * parameters, on nothing else.  So every shortcut (far tile, exhausted stick) gives the bits of
 * the full computation.  Sums over the keys of a tile start at 0, run over ascending keys, and
 * are added once to the earlier sums. */
#ifndef LOCI_ENGINE_TILE_H
#define LOCI_ENGINE_TILE_H

#include "engine/gemm.h"
#include "engine/rotation.h"
#include "contract/call.h"

/* The memory of one term for a tile.  The engine clears and joins the
 * sums; it never reads `mem`. */
struct own {
    const void *table; /* of its encoding, prepared */
    void *scratch;     /* of its encoding, from begin() of this call */
    real *mem;         /* [mem rows][QT], of this query tile */
    /* [out rows][QT]: sums of weights, of this chunk and in all */
    real *out, *outs;
    real *grad, *grads; /* [grad rows][QT]: sums of gradients, likewise */
    /* [carry rows][QT] reals, or doubles in twice the rows: state of a scan, newest to oldest.
     * The backward pass restores it before each tile. */
    real *carry;
    /* gradient of tables: this work item's part for this head and chunk
     * of keys; NULL: not wanted */
    real *part;
    real *fresh; /* its first numbers, of this query tile alone */
    /* gradient by key: likewise, from the tile's first key on, rows of key_row(); or sums of this
     * tile of keys and kv head (tiled_sums_of()) */
    real *keys;
    int outn, gradn, carryn;
};

/* Keys or values of a tile where they are stored: numbers of some form, in rows `stride` numbers
 * apart; or across: [D][KT], with the keys in the lanes, as a cache stores its keys.  Numbers of
 * q8_0 are blocks, or whole numbers with the scales apart, [D / 32][KT], as in a cache. */
enum form { REALS, BITS_BF16, BITS_F16, BLOCKS_Q8, WHOLE_Q8 };
struct source {
    const void *at;
    /* rest: the number of rows from the first on that may be read,
     * including those of the next tiles */
    ptrdiff_t stride, rest;
    enum form form;
    int next;                /* what is read next: 1 the tile after this one, -1 the one before */
    bool prefetch_streams;   /* what is read next is prefetched even if it adjoins */
    const uint16_t *scales;  /* of WHOLE_Q8 */
    bool across, concurrent; /* concurrent: another stream is read at the same time */
    /* across: memory of some bytes that is fetched, step by step, while these are read; or NULL */
    const char *beside;
    ptrdiff_t bytes;
};

/* Rows of queries and gradients are padded to whole vectors of every ISA. */
enum { PAD = 16 };
INLINE int padded(int n) { return (n + PAD - 1) / PAD * PAD; }

/* The queries of a tile, rotated and times scale.  With a rotation that fades, the products read
 * queries that are faded from the reference of the tile's keys. */
struct queries {
    real *across, *rows; /* [D][QT], as products read them; and in rows [QT][Dp] */
    /* the rows that `across` contains; equal to `rows` if none fade or move */
    real *faded;
    /* Which of the forms of the rows these are: the arrays have one behind the other.  It is 0
     * except while products of a class are computed (scores.h). */
    int form;
    ptrdiff_t block; /* the number of that reference; -1: none yet */
    real *norm;      /* [QT]: |q|, rounded up; bounds scores */
};
/* The keys or the values of a tile as reals: number d of key i is at[i * row + d * step]. */
struct operand {
    const real *at;
    /* step: 1; or KT, and row 1, if keys are stored across as in a cache */
    ptrdiff_t row, step;
    /* [KT][width]: scratch in which other stored forms become rows of reals */
    real *buffer;
};
/* The state of a row over some keys: the largest score m, the sum l of e^(s - m),
 * and o, the sum of values with these weights; [QT], [QT], [Dv][QT].  (stick: the
 * rest of the stick, nothing, o.)  empty: o is 0, but its memory is not set. */
struct state {
    real *m, *l, *o;
    bool empty;
};
/* The same for bf16 dot products (gemm_bf16.c), pairs of bf16 in words: q [D / 2 rounded
 * up][QT], p [KT / 2][QT], v [KT / 2][Dv]; and k [KT][D + 1], for keys that are stored in
 * another form or have an odd width. */
struct bf16_pairs {
    uint32_t *q, *p, *v;
    uint16_t *k;
};

/* Dropout: the keys of the rows (dropout.h), [QT]; backward the weights before any are dropped, and
 * the factors of all pairs, 0 or 1 / (1 - p), [KT][QT]. */
struct dropped {
    uint32_t *a, *b;
    real *whole, *factor;
};

struct tile {
    const struct call *c;

    /* Which rows and keys. */
    const struct sequence *seq;
    /* head, its kv head, and its key head: once rotated, keys need not be shared in a group */
    int h, kvh, kh;
    ptrdiff_t i0, j0; /* first row and key, counted in the batch entry */
    ptrdiff_t until;  /* decode: the last key that rows of its sequence may see */
    /* live ones.  Dead rows have q = 0 and are masked; keys from `keys` on do not exist. */
    int rows, keys;
    /* columns that products and softmax work on: those of live rows in whole vectors of every
     * ISA.  In the others p = 0 (backward: all columns, as sums run over rows). */
    int live;
    /* distance of (key k, row r): d + r - k; else qp[r] - kp[k] */
    bool run;
    int64_t d;
    const int64_t *qp, *kp; /* positions; only when !run, or with segments */
    const int64_t *qg, *kg; /* segments, or NULL */
    /* listed: the keys that rows see are not a band of distances.  Bit r of hidden[k] is
     * set if row r does not see key k.  first, last: keys of each row, counted in the
     * tile's sequence, or NULL. */
    bool listed;
    uint64_t *hidden;
    const int64_t *first, *last;
    /* some score of a live row is masked, or some row among `live` is dead */
    bool partial;
    bool cut; /* not listed, and an edge of the band crosses the tile */

    /* Data. */
    struct queries q;
    struct operand k, v; /* k is rotated */
    /* keys or values of the next tile, which products prefetch; its rows are keys */
    struct next next;
    struct bf16_pairs fast;
    struct angles *angles; /* of the rotation */

    /* Scores and weights, [KT][QT]. */
    /* scores, which score hooks add to (with a mix: the sum of the ADD terms) */
    real *s;
    /* numbers of a mask, which are added last; NULL: no mask */
    real *added;
    real *a; /* with a mix: the scores without that sum */
    /* with several forms: numbers of one class; if rows move: [D][QT], dq of this tile alone */
    real *of_class;
    real *p;                   /* weights */
    struct state chunk, total; /* of this chunk, and of all chunks so far */
    /* [QT]: not 0 where scores are -inf because products overflowed the reals */
    real *lost;
    real *alpha; /* [QT]: the factor of the sums so far */
    struct dropped drop;

    /* Backward.  A gradient by score is that of the stage whose backward runs. */
    struct {
        real *across, *rows;
    } dout;        /* dO: [Dv][QT], and in rows [QT][Dvp] */
    real *dp, *ds; /* [KT][QT]: by weight, and by score */
    real *pre;     /* with a MUL: the scores before it */
    /* with a mix: mix_bwd turns ds into da (scores) and ds (sum of the ADD terms) */
    real *da;
    real *lse, *delta; /* [QT] */
    real *dq, *dqs;    /* [forms][D][QT]: of the chunk, in all */
    /* this item's dK and dV from the tile's first key on, rows of Dp and Dvp; NULL: not wanted */
    real *dk_part, *dv_part;
    real *scratch; /* [QT][widest padded]: rows during load and store */
    bool finite;   /* all of Q, dO and lse */

    struct own own[MAX_USES]; /* of the plan's uses; last, as those beyond are not set */
};

/* Offset from this tile's first key to the next tile's: tiles come newest first, in the
 * backward pass oldest first. */
INLINE ptrdiff_t next_tile(const struct call *c) { return c->backward ? KT : -KT; }

#define S(t, k, r) ((t)->s[(k)*QT + (r)])

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
