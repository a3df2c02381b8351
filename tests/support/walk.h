/* SPDX-License-Identifier: MIT */
/* walk.h -- small problems with every encoding, for tests that treat all encodings alike. */
#ifndef LOCI_TESTS_SUPPORT_WALK_H
#define LOCI_TESTS_SUPPORT_WALK_H

#include <stdbool.h>
#include <stdint.h>

#include "loci/loci.h"

enum { WALK_TENSORS = 32, WALK_LENGTH = 256, WALK_AXES = 3 };
/* Slow builds, with sanitizers or for an emulated CPU, run fewer. */
#ifndef LOCI_SLOW
#define LOCI_SLOW 0
#endif
#ifndef LOCI_EMULATED
#define LOCI_EMULATED 0
#endif

/* A problem with random contents, all of it in double and exact in float.  The buffers of outputs
 * and gradients are allocated and zeroed. */
struct walk {
    const char *encoding, *shape; /* printed on failure */
    loci_stage stage;
    loci_desc desc;
    loci_plan *plan;
    /* q, k, v, o, lse, rem, ae, positions, segments, tensors; x = q, y = o elsewhere */
    loci_call call;
    loci_grad grad; /* dout, dlse, drem, dae; dq, dk, dv, dtensors */
    int tensors;
    loci_tensor tensor[WALK_TENSORS];

    /* All tensors with a gradient: first the inputs of the stage, then the tensors. */
    int inputs;
    struct {
        const char *owner, *name;
        size_t count;
        double *x, *dx;
    } input[3 + WALK_TENSORS];
    /* of o; of lse and rem; of ae, 0 if the encoding has none */
    size_t out_count, row_count, state_count;
    void *block[64]; /* everything allocated */
    int blocks;
    const void *data[WALK_TENSORS];
    void *ddata[WALK_TENSORS];
    int64_t *q_pos, *k_pos, *q_seg, *k_seg, q_starts[8], k_starts[8];
    ptrdiff_t range; /* distances to prepare tables for */
};

/* Calls check() with one problem after the other.  SMALL: a few rows.  TILES: on both sides of the
 * borders of tiles.  CHUNKS: few rows that see several chunks of keys, where every key still
 * matters, and only encodings' own examples.  Texts other than examples get every second shape,
 * slow builds fewer.  Plans that cannot be created are failed checks. */
enum walk_size { WALK_SMALL, WALK_TILES, WALK_CHUNKS };
void walk_all(enum walk_size, void (*check)(struct walk *));

/* The program's argument, if there is one, is a text: only its problems and texts are used. */
void walk_only(int argc, char **argv);
bool walk_limited(void);
/* True if nothing may be left out to save time: the walk is limited, or $LOCI_WALK is set. */
bool walk_whole(void);

/* The texts of the walk that are valid for attention, one after the other, the same in every run:
 * every encoding's example, then options and compositions.
 *     for (struct walk_text t = { 0 }; walk_next(&t);) ... t.text ... */
struct walk_text {
    const char *text;
    bool example; /* an encoding's own */
    bool square;  /* the value width must be the head width */
    bool drawn;   /* random; there are 40 in the whole walk, elsewhere fewer */
    int next;
};
bool walk_next(struct walk_text *);
bool walk_causal_only(const char *text);
bool walk_states(const char *text); /* does it fill ae? */
/* Do queries change from key to key?  Ranks refuse it. */
bool walk_moves(const char *text);
/* Do keys have several forms, of which a cache can store none? */
bool walk_key_forms(const char *text);
/* x, what tests add to the initial value of a learned number, or where pope's phases are instead:
 * a few of them beyond the ends of their range. */
double walk_learned(const loci_tensor *, double x);
/* The width of the keys of a call: rotated keys may be wider. */
int walk_key_dim(const loci_desc *);
/* A dense view of them. */
loci_view walk_wide_keys(const loci_desc *, ptrdiff_t k_len, void *data);
/* the least valid head width for the text, from `dim` on */
int walk_dim(const char *text, int dim);

/* The size of a tensor in a call of this number of entries, rows and keys. */
size_t walk_count(const loci_tensor *, ptrdiff_t batch, ptrdiff_t q_len, ptrdiff_t k_len);

/* Random numbers: the same everywhere and every time. */
double walk_uniform(void);            /* -1 .. 1 */
double walk_coordinate(double reach); /* within reach of 0, and whole every other time */
void walk_restart(int seed);

#endif
