/* SPDX-License-Identifier: MIT */
/* encoding.h -- what an encoding is: its options, tensors and terms, and the hooks that make tables
 * of tensors.
 *
 * An encoding's file is plain C in double, compiled once: it turns options and tensors into the
 * data of a few shared terms (prepare, begin), and the terms' gradients into gradients of its
 * tensors (fold, end).  The tile code of the terms is in terms/, compiled per instruction set;
 * engine/term.h is their contract. */
#ifndef LOCI_CONTRACT_ENCODING_H
#define LOCI_CONTRACT_ENCODING_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "util/error.h"
#include "math/half.h"

enum {
    MAX_OPTIONS = 28, MAX_ENCODINGS = 8, MAX_TENSORS = 32, MAX_USES = 16, MAX_AXES = 3,
    MAX_DIM = 1024
};

#define BY_RULE NAN                      /* as an option's usual value: check() or the file's own
                                            rule decides */

/* ---- One encoding of the text, with the problem it meets ------------------------------------- */

struct config {
    const struct loci_pe *pe;
    double opt[MAX_OPTIONS];             /* NaN: by rule, and nobody filled it in */
    bool given[MAX_OPTIONS];
    double *list[MAX_OPTIONS];           /* LIST options: count numbers; owned by the plan */
    int count[MAX_OPTIONS];

    loci_stage stage;
    int heads, kv_heads, dim, value_dim, model_dim;
    bool full;
    ptrdiff_t max_len;
    size_t real;                         /* bytes of a number in tables: 4 or 8 */
    bool alone;                          /* the only encoding of the text */
    int adds;                            /* how many ADD terms the other encodings bring (cape) */
    const loci_tensor *have;             /* forms of the tensors that the caller holds; see
                                            have() */
    int have_count;
};

/* The caller's form of a tensor of this encoding, or NULL. */
const loci_tensor *loci_have(const struct config *, const char *name);

/* ---- Tensors --------------------------------------------------------------------------------- */

/* a; N(0, a); U(-a, a) unless b: U(a, b) */
enum init { INIT_ZERO, INIT_CONSTANT, INIT_NORMAL, INIT_UNIFORM };
struct tensors {
    int n;
    loci_tensor list[MAX_TENSORS];
    struct { enum init kind; double a, b; } init[MAX_TENSORS];
    /* element i, instead of init */
    double (*fill[MAX_TENSORS])(const struct config *, ptrdiff_t i);
    /* the same, from random numbers */
    double (*draw[MAX_TENSORS])(const struct config *, uint64_t stream, ptrdiff_t i);
};
/* Adds a tensor; its number is the order of adding, counted from 0 in each encoding. */
loci_tensor *loci_add_tensor(struct tensors *, const struct config *, const char *name, loci_role,
                             enum init, double a, double b, int rank, const ptrdiff_t *shape);
#define SHAPE(...) \
    (int)(sizeof((ptrdiff_t[]){ __VA_ARGS__ }) / sizeof(ptrdiff_t)), (ptrdiff_t[]) \
    { \
        __VA_ARGS__ \
    }

static inline ptrdiff_t tensor_count(const loci_tensor *t)   /* of LEARNED and FIXED ones */
{
    ptrdiff_t n = 1;
    for (int i = 0; i < t->rank; i++) n *= t->shape[i];
    return n;
}

/* ---- Terms ----------------------------------------------------------------------------------- */

enum term_id {
#define TERM(name, traits) TERM_##name,
#include "terms/list.h"
#undef TERM
    TERM_COUNT
};
/* What the plan, the calls and the engine must know of a term, without knowing which it is. */
enum trait {
    FADES = 1,                           /* a rotation that makes queries and keys larger or smaller
                                            with their position */
    NOT_AGAIN = 2,                       /* a rotation whose rotated keys cannot be rotated on to
                                            another position */
    READS_ALONE = 4,                     /* reads queries or keys beside their products, which
                                            fading would spoil */
    READS_STAGED = 8,                    /* its encoding reads rotated keys where they are staged */
    BENDS = 16,                          /* makes something else of the scores than adding to them
                                            */
    IN_ORDER = 32,                       /* a score hangs on the keys between it and the row, too */
    FROM_FIRST = 64,                     /* sums run over all keys from the first one on, seen or
                                            not */
};
static inline bool term_is(enum term_id term, enum trait trait)
{
    static const unsigned char traits[] = {
#define TERM(name, traits) [TERM_##name] = traits,
#include "terms/list.h"
#undef TERM
    };
    return traits[term] & trait;
}
/* When a term's score() runs.  RAW adds inside the scale, MUL multiplies, CAP bends what is there
 * then, ADD adds last, or bends what the ones before it in the text have added.  A SINK leaves
 * scores alone and joins the sum of the softmax. */
enum group {
    GROUP_NONE, GROUP_RAW, GROUP_MUL, GROUP_CAP, GROUP_ADD, GROUP_MIX, GROUP_WEIGHT, GROUP_SINK,
    GROUP_ROTATE
};

/* One term of a plan, whose it is, and the shape that its encoding gave it: a struct of shape/,
 * which only the two know. */
enum { SHAPE_BYTES = 48 };
struct use {
    enum term_id term;
    enum group group;
    int enc;
    _Alignas(8) unsigned char shape[SHAPE_BYTES];
};
struct termlist { int n; struct use use[MAX_USES]; int enc; };
void loci_add_term(struct termlist *, enum term_id, enum group);
void loci_add_shaped(struct termlist *, enum term_id, enum group, const void *shape, size_t bytes);

/* ---- Tables ---------------------------------------------------------------------------------- */

/* What prepare() and fold() see: one encoding's tensors and table.  Tables hold `real`s (float, or
 * double for an f64 plan), so they are written with put().  Gradients are summed in double on both
 * sides. */
struct prep {
    const struct config *cfg;
    const loci_tensor *tensor;           /* this encoding's, and their data */
    const void *const *data;
    bool f64;
    ptrdiff_t range;                     /* distances -range .. range can occur (0 .. range unless
                                            cfg->full) */
    const void *shape;                   /* of its first term */
    void *table;                         /* starts on 64 bytes */
    const struct engine *engine;         /* prepare */
    const loci_host *host;               /* prepare; NULL: this thread alone */
    const double *const *dtable;         /* fold: per term of this encoding, in the order of
                                            terms(): sums of its parts */
    double *const *dtensor;              /* fold: per tensor, zeroed; NULL where not wanted */
};
static inline double load_real(const void *p, bool f64, ptrdiff_t i)
{
    return f64 ? ((const double *)p)[i] : (double)((const float *)p)[i];
}
static inline void store_real(void *p, bool f64, ptrdiff_t i, double x)
{
    if (f64) ((double *)p)[i] = x;
    else ((float *)p)[i] = (float)x;
}
static inline double param(const struct prep *p, int which, ptrdiff_t i)
{
    return load_real(p->data[which], p->f64, i);
}
static inline void put(const struct prep *p, ptrdiff_t i, double x)
{
    store_real(p->table, p->f64, i, x);
}
/* Runs job(arg, 0) .. job(arg, n - 1) on the threads that prepare() has. */
static inline void prepare_each(const struct prep *p, int n, void (*job)(void *, int), void *arg)
{
    if (p->host && p->host->run && n > 1) {
        p->host->run(p->host->user, n, job, arg);
        return;
    }
    for (int i = 0; i < n; i++) job(arg, i);
}

/* ---- The encoding ---------------------------------------------------------------------------- */

struct call;

/* Stage EMBED. */
struct encoding_embed {
    /* 0 .. positions - 1 are legal; NULL: any */
    ptrdiff_t (*positions)(const struct config *);
    /* Columns from .. from + n - 1 of the row of a position, and the gradient of a row. */
    void (*row)(const struct config *, const void *table, bool f64, int64_t pos, int from, int n,
                double *row);
    void (*row_bwd)(const struct config *, int64_t pos, const double *dy, double *const *dtensor);
};
/* What a cache stores of inputs by key: its bytes, and its update for entry b from key from[b] on. */
struct encoding_cache {
    size_t (*size)(const struct call *, int enc);
    void   (*update)(const struct call *, int enc, const int64_t *from);
};

struct encoding_stream;
struct loci_pe {
    const char *name, *cite, *brief, *example;
    int places;                          /* LOCI_PLACE_... */
    bool causal_only, rotates;           /* rotates: works in stage ROTATE too */
    bool states;                         /* turns by states of each query head, and fills ae */
    bool beside;                         /* says nothing of positions: next to it another encoding
                                            is still alone */
    double tol;
    const loci_option *opts;             /* ends with a NULL name; indexed by the file's own enum */

    /* Plan: NULL where an encoding has nothing to say. */
    /* what ranges cannot say; fills options by rule */
    loci_status (*check)(struct config *, loci_error *);
    /* coordinates per position; NULL: 1, from pos */
    int       (*axes)(const struct config *);
    /* default scale when alone; NULL: 1/sqrt(dim) */
    double    (*scale)(const struct config *);
    /* weights: are rows blind to the key at their own position?  NULL: no */
    bool      (*strict)(const struct config *);
    void      (*tensors)(const struct config *, struct tensors *);
    void      (*terms)(const struct config *, struct termlist *);

    /* Tables */
    /* bytes; real = sizeof of one */
    size_t    (*size)(const struct config *, ptrdiff_t range, size_t real);
    void      (*prepare)(const struct prep *), (*fold)(const struct prep *);
    /* rotations: what channels, so many of them from one on, are multiplied by as they turn; NULL:
     * by 1 */
    double    (*multiplies)(const void *table, int *channel, int *channels);

    /* Call: what only a call can do wrong, before anything is written; inputs and positions ->
     * scratch (bytes), and the adjoint after the backward pass. */
    loci_status (*accept)(const struct call *, int enc);
    size_t    (*scratch)(const struct call *, int enc);
    void      (*begin)(struct call *, int enc);
    /* After the backward pass: gradients of what comes by key; then all other gradients. */
    void      (*end_keys)(struct call *, int enc), (*end)(struct call *, int enc);

    /* NULL where an encoding has nothing to add */
    const struct encoding_embed *embed;
    const struct encoding_cache *cache;
    const struct encoding_stream *stream;    /* contract/stream.h */
};

#define PE(name) extern const struct loci_pe loci_pe_##name;
#include "encodings/list.h"
#undef PE

#endif
