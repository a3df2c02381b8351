/* SPDX-License-Identifier: MIT */
/* subject.h -- shared by the files of this folder: an encoding ready for queries, and the functions
 * that query the engine. */
#ifndef LOCI_SHOW_SUBJECT_H
#define LOCI_SHOW_SUBJECT_H

#include <stdbool.h>
#include <stdio.h>

#include "contract/plan.h"
#include "show/show.h"

/* A plan with tables up to the largest distance requested so far. */
struct side {
    loci_plan *plan;
    void *tables;
    ptrdiff_t reach;
};

struct show {
    int heads, dim, head, axes;
    ptrdiff_t len;
    double trained; /* length that far distances are multiples of */
    uint64_t seed;
    /* name: for titles, cut if long */
    char *encoding, name[52];
    char note[400]; /* origin of the tensors */
    int places;     /* of all encodings of the text */
    /* added to the tokens; attention itself is plain */
    bool embeds;
    bool causal_only;
    /* a score depends on the keys in between (fox, cope, sba) */
    bool in_order;
    bool remainder; /* sba: no softmax, so no lse */
    bool sinks;
    struct side table; /* the embedding's, stage EMBED */
    /* all: with every key visible (causal_only: the same as causal). causal: without later keys.
     * plain: without an encoding, with the scale of the encoding. */
    struct side all, causal, plain;
    struct side turn; /* the rotation alone, if it has a stage of its own */
    int turn_tensor;  /* index of its first tensor */
    int tensors;
    loci_tensor *tensor;
    double **data; /* NULL: an INPUT, made for each call */
};

/* Random numbers distributed like N(0, 1), from a stream for each use.  The same seed gives the
 * same numbers on every machine. */
enum { STREAM_Q = 1, STREAM_K, STREAM_V, STREAM_AT, STREAM_GATE, STREAM_TENSOR };
void show_normal(const struct show *, int stream, double *to, ptrdiff_t n);
void show_unit(double *rows, ptrdiff_t n, int width); /* each of length 1 */
/* gates that open and shut: log sigmoid of N(3, 1) */
void show_gates(const struct show *, double *to, ptrdiff_t n);

/* One query and one key each, at places of their own: q, k [n][heads][dim], q_at, k_at [n][axes].
 * out [n][heads] receives the scores, including the scale and all that the encoding adds.  NULL of
 * q or k: zeros.  Not for encodings whose scores depend on the keys in between. */
struct pairs {
    ptrdiff_t n;
    const double *q, *k, *q_at, *k_at;
};
loci_status show_pairs(struct show *, const struct pairs *, double *out, loci_error *);
/* the same without the encoding */
loci_status show_plain(struct show *, const struct pairs *, double *out, loci_error *);

/* n queries and keys per head, N(0, 1) or of length 1, and buffers for their scores. show_draw()
 * scores all of them: the query at `query` on one axis (-1: on all), keys at `key`. same: each
 * query is its own key. */
struct draws {
    ptrdiff_t n;
    double *q, *k, *q_at, *k_at, *score, *plain;
};
struct draws show_make_draws(const struct show *, ptrdiff_t n, bool unit);
void show_free_draws(struct draws *);
loci_status show_draw(struct show *, struct draws *, bool same, int axis, double query, double key,
                      loci_error *);

/* n tokens: q, k, v [heads][n][dim] (NULL: zeros), at [axes][n]. last: rows are those of the last
 * token alone, and so is q. */
struct tokens {
    ptrdiff_t n;
    const double *q, *k, *v, *at;
    bool last;
};
/* Scores of all pairs, [heads][rows][n].  NaN where a row does not see a key.  For a stick, the
 * logarithms of its weights.  All rows see keys that the encoding has no order for. */
loci_status show_scores(struct show *, const struct tokens *, bool plain, double *out,
                        loci_error *);
/* Causal attention weights, [heads][n][n]; with plain, those without the encoding. rem (may be
 * NULL) [heads][n] is a stick's remainder. */
loci_status show_weights(struct show *, const struct tokens *, bool plain, double *out, double *rem,
                         loci_error *);
/* x [n][heads * dim] plus the encoding's row of each position.  NULL: rows alone. */
loci_status show_embed(struct show *, ptrdiff_t n, const double *x, const int64_t *at, double *out,
                       loci_error *);
/* y [n][heads][dim] are x rotated as queries at their places. */
loci_status show_rotate(struct show *, ptrdiff_t n, const double *x, const double *at, double *y,
                        loci_error *);

/* Positions first, first + 1, ... on every axis. */
void show_places(const struct show *, ptrdiff_t n, double first, double *at);
static inline bool show_rotates(const struct show *s)
{
    return s->places & (LOCI_PLACE_ROTATE | LOCI_PLACE_STATE);
}
/* Can rows be rotated alone?  Not if they have several forms, or become wider. */
static inline bool show_turns(const struct show *s)
{
    return show_rotates(s) && s->all.plan->row_forms == 1
        && s->all.plan->score_dim == s->all.plan->dim;
}
static inline bool show_adds(const struct show *s)
{
    return s->places & (LOCI_PLACE_SCORE | LOCI_PLACE_MIX);
}
/* Does it only transform scores, and add nothing to them? */
bool show_bends(const struct show *);

/* The bias of keys 0 .. n - 1 behind, [n][heads], with queries and keys that are 0.  For in_order
 * encodings, in the last row. *nothing: it adds the same to all. */
loci_status show_bias(struct show *, ptrdiff_t n, double *out, bool *nothing, loci_error *);

/* An option of an encoding.  NaN: no option of that name, or not set. */
double show_option(const struct config *, const char *name);

/* The figures. */
loci_status show_map(struct show *, struct figure *, int *count, loci_error *);
loci_status show_curve(struct show *, struct figure *, int *count, loci_error *);
loci_status show_spectrum(struct show *, struct figure *, int *count, loci_error *);
loci_status show_angles(struct show *, struct figure *, int *count, loci_error *);
loci_status show_embedding(struct show *, struct figure *, int *count, loci_error *);
loci_status show_similarity(struct show *, struct figure *, int *count, loci_error *);
loci_status show_attention(struct show *, struct figure *, int *count, loci_error *);
loci_status show_properties(struct show *, struct figure *, int *count, loci_error *);

#endif
