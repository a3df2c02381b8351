/* SPDX-License-Identifier: MIT */
/* pe.h -- what an encoding is (struct loci_pe), and what a plan and a call are made of.
 *
 * An encoding's file is plain C in double, compiled once: it turns options and tensors into the data of a few
 * shared terms (prepare, begin), and the terms' gradients into gradients of its tensors (fold, end).  The tile
 * code of the terms is in terms/, compiled per instruction set; attn/tile.h is their contract. */
#ifndef LOCI_PE_H
#define LOCI_PE_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "half.h"

enum { MAX_OPTIONS = 28, MAX_ENCODINGS = 8, MAX_TENSORS = 32, MAX_USES = 16, MAX_AXES = 3, MAX_THREADS = 256, MAX_DIM = 1024 };
enum { KT = 64, CHUNK = 4096 };          /* keys of a tile and of a chunk: part of the numeric contract */
enum { ROWS = 64, ROW_CHUNK = 1024 };    /* query rows of a wide tile and of a backward work item: likewise */

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))
#define BY_RULE NAN                      /* as an option's usual value: check() or the file's own rule decides */

/* `CHECK(e, d > n, LOCI_BAD_ARG, "t5: ...", ...)` returns from the function when the rule does not hold. */
loci_status loci_fail(loci_error *e, loci_status status, const char *format, ...)
#if defined __GNUC__
    __attribute__((format(printf, 3, 4)))
#endif
    ;
#define CHECK(e, rule, status, ...) do { if (!(rule)) return loci_fail(e, status, __VA_ARGS__); } while (0)
#define TRY(x) do { const loci_status status_ = (x); if (status_) return status_; } while (0)

/* ---- One encoding of the text, with the problem it meets ---------------------------------------------- */

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
    bool alone;                          /* the only encoding of the text */
    int adds;                            /* how many ADD terms the other encodings bring (cape) */
    const loci_tensor *have;             /* forms of the tensors that the caller holds; see have() */
    int have_count;
};

/* The caller's form of a tensor of this encoding, or NULL. */
const loci_tensor *loci_have(const struct config *, const char *name);

/* ---- Tensors ------------------------------------------------------------------------------------------ */

enum init { INIT_ZERO, INIT_CONSTANT, INIT_NORMAL, INIT_UNIFORM };   /* a; N(0, a); U(-a, a) unless b: U(a, b) */
struct tensors {
    int n;
    loci_tensor list[MAX_TENSORS];
    struct { enum init kind; double a, b; } init[MAX_TENSORS];
    double (*fill[MAX_TENSORS])(const struct config *, ptrdiff_t i);   /* element i, instead of init */
    double (*draw[MAX_TENSORS])(const struct config *, uint64_t stream, ptrdiff_t i);   /* the same, from random numbers */
};
/* Adds a tensor; its number is the order of adding, counted from 0 in each encoding. */
loci_tensor *loci_add_tensor(struct tensors *, const struct config *, const char *name, loci_role,
                             enum init, double a, double b, int rank, const ptrdiff_t *shape);
double loci_uniform(uint64_t stream, uint64_t i);      /* in (0, 1): number i of a stream, for draw() */
#define SHAPE(...) (int)(sizeof((ptrdiff_t[]){ __VA_ARGS__ }) / sizeof(ptrdiff_t)), (ptrdiff_t[]){ __VA_ARGS__ }

static inline ptrdiff_t tensor_count(const loci_tensor *t)   /* of LEARNED and FIXED ones */
{
    ptrdiff_t n = 1;
    for (int i = 0; i < t->rank; i++) n *= t->shape[i];
    return n;
}

/* ---- Terms -------------------------------------------------------------------------------------------- */

enum term_id {
#define TERM(name) TERM_##name,
#include "terms/list.h"
#undef TERM
    TERM_COUNT
};
/* When a term's score() runs.  RAW adds inside the scale, MUL multiplies, CAP bends what is there then, ADD
 * adds last.  A SINK leaves scores alone and joins the sum of the softmax. */
enum group { GROUP_NONE, GROUP_RAW, GROUP_MUL, GROUP_CAP, GROUP_ADD, GROUP_MIX, GROUP_WEIGHT, GROUP_SINK, GROUP_ROTATE };

struct use { enum term_id term; enum group group; int enc; };        /* one term of a plan, and whose it is */
struct termlist { int n; struct use use[MAX_USES]; int enc; };
void loci_add_term(struct termlist *, enum term_id, enum group);

/* ---- Tables ------------------------------------------------------------------------------------------- */

/* What prepare() and fold() see: one encoding's tensors and table.  Tables hold `real`s (float, or double for an
 * f64 plan), so they are written with put().  Gradients are summed in double on both sides. */
struct prep {
    const struct config *cfg;
    const loci_tensor *tensor;           /* this encoding's, and their data */
    const void *const *data;
    bool f64;
    ptrdiff_t range;                     /* distances -range .. range can occur (0 .. range unless cfg->full) */
    void *table;                         /* starts on 64 bytes */
    const double *const *dtable;         /* fold: per term of this encoding, in the order of terms(): sums of its parts */
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
static inline double param(const struct prep *p, int which, ptrdiff_t i) { return load_real(p->data[which], p->f64, i); }
static inline void put(const struct prep *p, ptrdiff_t i, double x) { store_real(p->table, p->f64, i, x); }

/* ---- The encoding ------------------------------------------------------------------------------------- */

struct call;
struct vectors;
struct key_vectors;
struct blocks;
struct fourier;
struct loci_pe {
    const char *name, *cite, *brief, *example;
    int places;                          /* LOCI_PLACE_... */
    bool causal_only, rotates;           /* rotates: works in stage ROTATE too */
    bool states;                         /* turns by states of each query head, and fills ae */
    bool beside;                         /* says nothing of positions: next to it another encoding is still alone */
    double tol;
    const loci_option *opts;             /* ends with a NULL name; indexed by the file's own enum */

    /* Plan: NULL where an encoding has nothing to say. */
    loci_status (*check)(struct config *, loci_error *);              /* what ranges cannot say; fills options by rule */
    int       (*axes)(const struct config *);                         /* coordinates per position; NULL: 1, from pos */
    double    (*scale)(const struct config *);                        /* default scale when alone; NULL: 1/sqrt(dim) */
    void      (*tensors)(const struct config *, struct tensors *);
    void      (*terms)(const struct config *, struct termlist *);
    struct vectors (*vectors)(const struct config *);                 /* of those whose term is band_q: terms/vectors.h */
    struct key_vectors (*key_vectors)(const struct config *, size_t real);    /* band_k, likewise */
    struct blocks (*blocks)(const struct config *);                   /* of those whose term is blocks: blocks.h */
    struct fourier (*fourier)(const struct config *);                 /* fourier, likewise: fourier.h */
    int       (*waves)(const struct config *);                        /* roll: numbers of a wave; its table is in terms/roll.h */

    /* Tables */
    size_t    (*size)(const struct config *, ptrdiff_t range, size_t real);   /* bytes; real = sizeof of one */
    void      (*prepare)(const struct prep *), (*fold)(const struct prep *);

    /* Call: what only a call can do wrong, before anything is written; inputs and positions -> scratch (bytes), and the
     * adjoint after the backward pass. */
    loci_status (*accept)(const struct call *, int enc);
    size_t    (*scratch)(const struct call *, int enc);
    void      (*begin)(struct call *, int enc), (*end)(struct call *, int enc);
    /* In a cache: bytes of what is made once of inputs by key, and how that goes on, of entry b from key from[b] on. */
    size_t    (*kept)(const struct call *, int enc);
    void      (*keep)(const struct call *, int enc, const int64_t *from);

    /* Stage EMBED */
    ptrdiff_t (*positions)(const struct config *);                    /* 0 .. positions - 1 are legal; NULL: any */
    /* Columns from .. from + n - 1 of the row of a position. */
    void      (*embed)(const struct config *, const void *table, bool f64, int64_t pos, int from, int n, double *row);
    void      (*embed_bwd)(const struct config *, int64_t pos, const double *dy, double *const *dtensor);
};

#define PE(name) extern const struct loci_pe loci_pe_##name;
#include "pe/list.h"
#undef PE

/* ---- The plan ----------------------------------------------------------------------------------------- */

struct engine;
struct loci_plan {
    unsigned magic;
    loci_stage stage;
    int heads, kv_heads, group, dim, value_dim, model_dim;
    int key_heads;                       /* of keys as scores read them: heads where each turns them its own way, else kv_heads */
    loci_dtype dtype;
    size_t real;                         /* sizeof of a number in the engine: 4 or 8 */
    size_t stored;                       /* of q, k, v, o and their gradients: the same, or 2 */
    bool fast;                           /* wide forward passes multiply by bf16 dot products */
    bool f64, full, strict, keys_rotated;      /* strict: pos_k < pos_q (sba without its own key) */
    bool states;                         /* one of the encodings has them */
    int64_t window_left, window_right;   /* INT64_MAX = open; nothing on that side = 0 or, strict, as it falls */
    double scale;
    int encs;
    struct config enc[MAX_ENCODINGS];
    int uses;
    struct use use[MAX_USES];
    int rotate, mix, weight;             /* index into use, or -1 (weight -1: softmax) */
    int axes;                            /* of the encoding that has coordinates; 1 otherwise */
    struct tensors tensors;
    int first_tensor[MAX_ENCODINGS + 1]; /* encoding e owns tensors first[e] .. first[e+1]-1 */
    const struct engine *engine;         /* of the ISA */
    char *text;
};

/* ---- The call ----------------------------------------------------------------------------------------- */

/* Rows and keys that attend to each other alone: a whole batch entry, or one packed segment.  The tile grid starts at
 * its first key.  run: positions are consecutive on both sides, so distance(key k, row r) = d0 + r - k. */
struct sequence {
    ptrdiff_t b, q0, nq, k0, nk;
    ptrdiff_t first_row, first_tile, first_chunk, first_ktile;   /* query rows, their tiles and chunks, and key tiles of all
                                            sequences before it */
    int64_t d0;
    bool run;
    bool segments;                       /* ids must be compared: segments here are no runs of neighbours */
};

struct call {
    const struct loci_plan *plan;
    const loci_call *in;
    const loci_grad *grad;               /* NULL in the forward pass */
    ptrdiff_t B, Lq, Lk;
    int threads;
    bool backward;                       /* there is room for gradients */
    bool narrow;                         /* few rows: they are walked one by one */
    bool fast, packed;                   /* bf16 dot products; turned keys are bf16, each in the first half of its row */
    const struct loci_cache *cache;
    const int64_t *lens, *firsts;        /* [B]: keys of an entry, position of its first key; NULL: Lk, and 0 */
    const int64_t *k_pos;                /* of the keys, NULL: they are counted; those of entry b are at b k_pos_entry */
    ptrdiff_t k_pos_entry;
    const double *k_coord;
    const void *input[MAX_TENSORS];      /* INPUT tensors; those by key have room for Lk keys */
    loci_view q, k, v, o, dout, dq, dk, dv;    /* strides resolved; dk has key_heads */
    loci_view dk_out, dv_out;            /* the caller's, where dk and dv are summed elsewhere: stored in 16 bits, or dk for
                                            kv_heads that are fewer than key_heads */
    const void *table[MAX_ENCODINGS];    /* prepared */
    ptrdiff_t range;                     /* that they were prepared for */
    void *scratch[MAX_ENCODINGS];        /* made by begin() */
    double *total[MAX_USES];             /* backward: sums of a term's parts over all work items, in item order */
    double *dtensor[MAX_TENSORS];        /* backward: gradients in double, zeroed; NULL where not wanted */
    ptrdiff_t dtensor_count[MAX_TENSORS];
    const int64_t *q_pos;                /* of the queries: the caller's, or, as k_pos then, made from starts; NULL: the last of the keys */
    ptrdiff_t sequences;
    struct sequence *seq;
    ptrdiff_t rows, tiles, chunks, ktiles;     /* query rows, their tiles and chunks, and key tiles of all sequences */
    void *turned;                        /* keys after rotation, [B][key_heads][Lk][D] reals; NULL: k is read in place */
    float *knorm;                        /* [key_heads][ktiles]: largest |k| of a tile, rounded up, NaN where k or v are not
                                            all finite; NULL: nobody asks */
    void *kept;                          /* few rows: what is kept of every chunk until they join */
    size_t work_bytes;                   /* of the workspace, as this call needs it */
    char *desks;                         /* one per thread: tiles and parts; `desk` bytes each */
    size_t desk;
    ptrdiff_t longest;                   /* most keys of a sequence */
    void *dk_sum, *dv_sum;               /* dense [B][key_heads][Lk][D], [B][kv_heads][Lk][Dv] reals: where they are summed then, and
                                            dk also when a rotation learns and nobody wants dk */
    struct {                             /* stage LINEAR_ATTENTION */
        ptrdiff_t past;                  /* keys in the state that was given; default positions go on from there */
        ptrdiff_t *seen;                 /* [B][Lq]: keys of its sequence that a row sees: the first ones, never fewer than
                                            the row before it */
        void *den;                       /* [B][H][Lq] reals (backward) */
        const char *before;              /* states [B][Hkv], or NULL */
        char *after;
    } linear;
};

/* Sequences are counted through in rows, query tiles, query chunks or key tiles: the first of a sequence, and the
 * sequence that number i belongs to. */
enum count { BY_ROW, BY_TILE, BY_CHUNK, BY_KTILE };
static inline ptrdiff_t first_of(const struct sequence *q, enum count by)
{
    return by == BY_ROW ? q->first_row : by == BY_TILE ? q->first_tile : by == BY_CHUNK ? q->first_chunk : q->first_ktile;
}
static inline const struct sequence *find_sequence(const struct call *c, enum count by, ptrdiff_t i)
{
    ptrdiff_t low = 0, high = c->sequences;          /* first_of(low) <= i < first_of(high); empty ones share a first */
    while (high - low > 1) {
        const ptrdiff_t middle = low + (high - low) / 2;
        if (first_of(&c->seq[middle], by) <= i) low = middle;
        else high = middle;
    }
    return &c->seq[low];
}

/* May a batch entry be more than one sequence? */
static inline bool packed(const struct call *c) { return c->in->q_seg || c->in->q_starts; }

/* Which of the keys, as scores read them, a head reads; and of which kv head they are. */
static inline int key_head(const struct loci_plan *p, int h) { return h / (p->heads / p->key_heads); }
static inline int kv_head_of(const struct loci_plan *p, int kh) { return kh / (p->key_heads / p->kv_heads); }

/* Memory for blocks that start on 64 bytes.  With base NULL it only measures; `used` grows either way. */
struct arena { char *base; size_t used; bool full; };
static inline void *take_bytes(struct arena *a, size_t count, size_t each)
{
    size_t n;
    if (__builtin_mul_overflow(count, each, &n) || n > SIZE_MAX / 2 - a->used) {
        a->full = true;
        return NULL;
    }
    void *p = a->base ? a->base + a->used : NULL;
    a->used += (n + 63) & ~(size_t)63;
    return p;
}

static inline ptrdiff_t keys_in(const struct call *c, ptrdiff_t b) { return c->lens ? (ptrdiff_t)c->lens[b] : c->Lk; }
static inline int64_t first_pos(const struct call *c, ptrdiff_t b) { return c->firsts ? c->firsts[b] : c->linear.past; }
static inline int64_t pos_q(const struct call *c, ptrdiff_t b, ptrdiff_t i)
{
    if (c->q_pos) return c->q_pos[(c->in->per_batch ? b * c->Lq : 0) + i];
    /* Without keys, as in a rotation of queries alone, rows count from 0. */
    return first_pos(c, b) + (c->Lk ? keys_in(c, b) - c->Lq + i : i);
}
static inline int64_t pos_k(const struct call *c, ptrdiff_t b, ptrdiff_t j)
{
    return c->k_pos ? c->k_pos[b * c->k_pos_entry + j] : first_pos(c, b) + j;
}
static inline int64_t seg_q(const struct call *c, ptrdiff_t b, ptrdiff_t i)
{
    return c->in->q_seg ? c->in->q_seg[(c->in->per_batch ? b * c->Lq : 0) + i] : 0;
}
static inline int64_t seg_k(const struct call *c, ptrdiff_t b, ptrdiff_t j)
{
    return c->in->k_seg ? c->in->k_seg[(c->in->per_batch ? b * c->Lk : 0) + j] : 0;
}
/* Coordinate of a row or key on one axis: coordinates if the encoding has axes, else the position. */
static inline double coord_q(const struct call *c, ptrdiff_t b, int axis, ptrdiff_t i)
{
    const loci_call *in = c->in;
    return in->q_coord ? in->q_coord[((in->per_batch ? b * c->plan->axes : 0) + axis) * c->Lq + i] : (double)pos_q(c, b, i);
}
static inline double coord_k(const struct call *c, ptrdiff_t b, int axis, ptrdiff_t j)
{
    return c->k_coord ? c->k_coord[((c->in->per_batch ? b * c->plan->axes : 0) + axis) * c->Lk + j] : (double)pos_k(c, b, j);
}
static inline const void *input(const struct call *c, int enc, int which)   /* an INPUT tensor of an encoding */
{
    return c->input[c->plan->first_tensor[enc] + which];
}

#endif
