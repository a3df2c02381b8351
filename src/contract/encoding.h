/* SPDX-License-Identifier: MIT */
/* encoding.h -- what an encoding is: its options, tensors and terms, and the hooks that compute
 * tables from tensors.
 *
 * An encoding's file is plain C in double, compiled once.  prepare() and begin() turn options and
 * tensors into the data of a few shared terms.  fold() and end() turn the terms' gradients into
 * gradients of the tensors.  The tile code of the terms is in terms/ and is compiled for each
 * instruction set.  engine/term.h is their contract. */
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
    MAX_OPTIONS = 28,
    MAX_ENCODINGS = 8,
    MAX_TENSORS = 32,
    MAX_USES = 16,
    MAX_AXES = 3,
    MAX_DIM = 1024
};

/* Default value of an option that check() or a rule of the encoding's file sets. */
#define BY_RULE NAN

/* ---- One encoding of the text, with its problem ---------------------------------------------- */

struct config {
    const struct loci_pe *pe;
    double opt[MAX_OPTIONS]; /* NaN: left to a rule, not given */
    bool given[MAX_OPTIONS];
    double *list[MAX_OPTIONS]; /* LIST options: `count` numbers; owned by the plan */
    int count[MAX_OPTIONS];

    loci_stage stage;
    int heads, kv_heads, dim, value_dim, model_dim;
    bool full;
    ptrdiff_t max_len;
    size_t real; /* bytes of a number in tables: 4 or 8 */
    bool alone;  /* the only encoding of the text */
    int adds;    /* number of ADD terms of the other encodings (cape) */
    /* Forms of the tensors that the caller has.  See loci_have(). */
    const loci_tensor *have;
    int have_count;
};

/* The caller's form of a tensor of this encoding, or NULL. */
const loci_tensor *loci_have(const struct config *, const char *name);

/* ---- Tensors --------------------------------------------------------------------------------- */

/* a; N(0, a); U(-a, a), or U(a, b) if b is not 0 */
enum init { INIT_ZERO, INIT_CONSTANT, INIT_NORMAL, INIT_UNIFORM };
struct tensors {
    int n;
    loci_tensor list[MAX_TENSORS];
    struct {
        enum init kind;
        double a, b;
    } init[MAX_TENSORS];
    /* Computes element i in place of `init`. */
    double (*fill[MAX_TENSORS])(const struct config *, ptrdiff_t i);
    /* The same, from random numbers. */
    double (*draw[MAX_TENSORS])(const struct config *, uint64_t stream, ptrdiff_t i);
    loci_source source[MAX_TENSORS]; /* of inputs */
    double low[MAX_TENSORS];         /* of learned ones; -INFINITY where nothing is set */
};
/* Adds a tensor.  Tensors of an encoding are numbered from 0 in the order of adding. */
loci_tensor *loci_add_tensor(struct tensors *, const struct config *, const char *name, loci_role,
                             enum init, double a, double b, int rank, const ptrdiff_t *shape);
/* The same for an input, which a layer makes of `source`. */
loci_tensor *loci_add_input(struct tensors *, const struct config *, const char *name, loci_source,
                            int rank, const ptrdiff_t *shape);
#define SHAPE(...) \
    (int)(sizeof((ptrdiff_t[]){ __VA_ARGS__ }) / sizeof(ptrdiff_t)), (ptrdiff_t[]) { __VA_ARGS__ }

static inline ptrdiff_t tensor_count(const loci_tensor *t) /* of LEARNED and FIXED tensors */
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
/* Properties of a term that the plan, the calls and the engine need without knowing the term. */
enum trait {
    /* A rotation that scales queries and keys by their position. */
    FADES = 1,
    /* A rotation whose rotated keys cannot be rotated further to another position. */
    NOT_AGAIN = 2,
    /* Reads queries or keys apart from their products.  Fading would give it wrong numbers. */
    READS_ALONE = 4,
    READS_STAGED = 8, /* its encoding reads rotated keys where they are staged */
    BENDS = 16,       /* transforms scores instead of adding to them */
    /* A score also depends on the keys between its key and the row. */
    IN_ORDER = 32,
    /* Sums run over all keys from the first one on, visible or not. */
    FROM_FIRST = 64,
    /* A rotation by inputs of the call.  Positions do not matter. */
    BY_INPUT = 128,
    /* Every query head has keys of its own. */
    BY_HEAD = 256,
    /* Rows that it changes, and its keys, are read as they are: no rotation can precede it. */
    UNROTATED = 512,
    /* A cache keeps the keys as the term stages them, and what it stages besides. */
    KEPT_STAGED = 1024,
};
static inline bool term_is(enum term_id term, enum trait trait)
{
    static const unsigned short traits[] = {
#define TERM(name, traits) [TERM_##name] = traits,
#include "terms/list.h"
#undef TERM
    };
    return traits[term] & trait;
}
/* When a term's score() runs.  RAW adds inside the scale.  MUL multiplies.  CAP transforms the
 * result so far.  ADD runs last: it adds, or transforms what earlier ADD terms in the text have
 * added.  A SINK does not change scores; it joins the sum of the softmax.  A MOVE changes rows on
 * their walk over the keys (engine/moves.h). */
enum group {
    GROUP_NONE,
    GROUP_RAW,
    GROUP_MUL,
    GROUP_CAP,
    GROUP_ADD,
    GROUP_MIX,
    GROUP_WEIGHT,
    GROUP_SINK,
    GROUP_ROTATE,
    GROUP_MOVE
};

/* One term of a plan, its encoding, and the layout that the encoding gave it: a struct of layout/,
 * which only the encoding and the term know. */
enum { LAYOUT_BYTES = 48 };
struct use {
    enum term_id term;
    enum group group;
    int enc;
    _Alignas(8) unsigned char layout[LAYOUT_BYTES];
};
struct termlist {
    int n;
    struct use use[MAX_USES];
    int enc;
};
void loci_add_term(struct termlist *, enum term_id, enum group);
void loci_add_term_layout(struct termlist *, enum term_id, enum group, const void *layout,
                          size_t bytes);

/* ---- Tables ---------------------------------------------------------------------------------- */

/* What prepare() and fold() see: tensors and table of one encoding.  Tables hold `real`s (float, or
 * double in an f64 plan), so they are written with put().  Gradients are summed in double on both
 * sides. */
struct prep {
    const struct config *cfg;
    const loci_tensor *tensor; /* tensors of this encoding, and their data */
    const void *const *data;
    bool f64;
    /* Distances from -range to range can occur; from 0 to range unless cfg->full. */
    ptrdiff_t range;
    const void *layout;          /* layout of the first term */
    void *table;                 /* aligned to 64 bytes */
    const struct engine *engine; /* prepare */
    const loci_host *host;       /* prepare; NULL: the calling thread only */
    /* fold: sums of the parts of each term of this encoding, in the order of terms(). */
    const double *const *dtable;
    double *const *dtensor; /* fold: per tensor, zeroed; NULL if not wanted */
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
/* Runs job(arg, 0) .. job(arg, n - 1) on the threads of prepare(). */
static inline void prepare_each(const struct prep *p, int n, void (*job)(void *, int), void *arg)
{
    if (p->host && p->host->run && n > 1) {
        p->host->run(p->host->user, n, job, arg);
        return;
    }
    for (int i = 0; i < n; i++) job(arg, i);
}

/* ---- The encoding ---------------------------------------------------------------------------- */

/* What reports put side by side. */
enum family {
    FAMILY_OTHER,
    FAMILY_NONE,
    FAMILY_ABSOLUTE,
    FAMILY_DISTANCE,
    FAMILY_ROTATION,
    FAMILY_VECTORS,
    FAMILY_CONTENT
};

struct call;

/* How a device computes rows of stage EMBED: from waves, position / divisor, bits of the position
 * or a table of vectors. */
struct embed_shape {
    enum { EMBED_WAVES, EMBED_POSITION, EMBED_BITS, EMBED_VECTORS } kind;
    int waves;
    bool halves; /* all sines come first */
    double divisor;
};
/* Stage EMBED. */
struct encoding_embed {
    /* Positions 0 .. positions - 1 are valid.  NULL: any. */
    ptrdiff_t (*positions)(const struct config *);
    /* Columns from .. from + n - 1 of the row of a position, and the gradient of a row. */
    void (*row)(const struct config *, const void *table, bool f64, int64_t pos, int from, int n,
                double *row);
    void (*row_bwd)(const struct config *, int64_t pos, const double *dy, double *const *dtensor);
    struct embed_shape (*shape)(const struct config *); /* NULL: no device does */
};
/* What a cache stores for inputs by key: its size in bytes, and its update for entry b, starting at
 * key from[b]. */
struct encoding_cache {
    size_t (*size)(const struct call *, int enc);
    void (*update)(const struct call *, int enc, const int64_t *from);
};

struct encoding_stream;
struct loci_pe {
    const char *name, *cite, *brief, *example;
    enum family family;
    int places;                /* LOCI_PLACE_... */
    bool causal_only, rotates; /* rotates: also works in stage ROTATE */
    int row_forms, key_forms;  /* of a rotation by distance (engine/rotation.h); 0: one */
    int widens;                /* rotations: rows become so many times as wide; 0: once */
    bool states;               /* rotates by states of each query head, and fills ae */
    /* Has no effect on positions: an encoding next to it still counts as alone. */
    bool neutral;
    double tol;
    /* Ends with a NULL name; indexed by the file's enum.  NULL: no options. */
    const loci_option *opts;

    /* Plan.  A hook is NULL if an encoding does not need it. */
    /* Checks what ranges cannot express, and fills options by rule. */
    loci_status (*check)(struct config *, loci_error *);
    /* Coordinates per position.  NULL: 1, the position. */
    int (*axes)(const struct config *);
    /* Default scale if alone.  NULL: 1/sqrt(dim). */
    double (*scale)(const struct config *);
    /* Rotations: loci_frequencies(), 0 if none follow from options.  NULL: never. */
    int (*frequencies)(const struct config *, double *list, int room, double *factor);
    /* Rotations: the first channel that is rotated.  NULL: 0. */
    int (*first_rotated)(const struct config *);
    /* Rotations: do values turn with the keys, and outputs back with the rows?  NULL: no. */
    bool (*turns_values)(const struct config *);
    /* Does it add vectors to the outputs that are not values?  NULL: no. */
    bool (*adds_vectors)(const struct config *);
    /* Weights: is the key at a row's own position invisible?  NULL: no. */
    bool (*strict)(const struct config *);
    void (*tensors)(const struct config *, struct tensors *);
    void (*terms)(const struct config *, struct termlist *);

    /* Tables */
    /* Bytes; `real` is the size of a number. */
    size_t (*size)(const struct config *, ptrdiff_t range, size_t real);
    void (*prepare)(const struct prep *), (*fold)(const struct prep *);
    /* Rotations: the factor that rotating multiplies channels by.  It applies to *channels channels
     * from *channel on.  NULL: 1. */
    double (*multiplies)(const void *table, int *channel, int *channels);

    /* Call.  accept() checks what only a call can get wrong, before any output is written.  begin()
     * computes the scratch (in bytes) from inputs and positions.  The hooks below are its
     * adjoint. */
    loci_status (*accept)(const struct call *, int enc);
    size_t (*scratch)(const struct call *, int enc);
    void (*begin)(struct call *, int enc);
    /* The term `factor`: c of a row that counts n, at least 1, and the option that says what is
     * counted (layout/factor.h). */
    double (*factor_of_count)(const struct config *, double n);
    int count_option;
    /* After the backward pass: gradients of inputs by key, then all other gradients. */
    void (*end_keys)(struct call *, int enc), (*end)(struct call *, int enc);

    /* NULL if the encoding has none. */
    const struct encoding_embed *embed;
    const struct encoding_cache *cache;
    const struct encoding_stream *stream; /* contract/stream.h */
};

/* The options of an encoding; an empty list if it has none. */
static inline const loci_option *encoding_options(const struct loci_pe *pe)
{
    static const loci_option none[] = { { 0 } };
    return pe->opts ? pe->opts : none;
}

/* The list of encodings in order; *count of them. */
const struct loci_pe *const *loci_pe_list(int *count);
/* The first name of the list: attention without positions, which a plan without text has. */
const char *loci_pe_plain(void);
/* The one whose name is these n characters, or NULL. */
const struct loci_pe *loci_pe_find(const char *name, size_t n);

#endif
