/* SPDX-License-Identifier: MIT */
/* problem.h -- the timed work of `loci bench`: a pass at one shape, an encoding prepared for it,
 * and the limit of the machine meanwhile. */
#ifndef LOCI_CLI_PROBLEM_H
#define LOCI_CLI_PROBLEM_H

#include "cli/rounds.h"
#include "cli/task.h"
#include "loci/cache.h"

enum pass { FORWARD, BACKWARD, BOTH, DECODE, CHUNK, ROTATE };
extern const char *const pass_names[], *const dtype_names[];

struct problem {
    enum pass pass;
    int dim, heads, kv_heads, batch, dtype, kv_dtype, threads, full;
    int values_in_keys; /* channels of the keys that are values; 0: values are apart */
    bool cached, fast, lasting;
    double dropout; /* of every contender's weights */
    bool dots;      /* the limit is that of bf16 dot products */
    const char *isa;
    /* rows: queries per sequence, its last ones */
    ptrdiff_t len, rows;
    const loci_host *host;
    float *stream;           /* for decode: larger than every CPU cache */
    size_t stream_bytes, at; /* at: where the next probe reads */
    /* decode, chunk: K and V alternate between copies, so they come from memory */
    int copies, turn;
    void **k, **v;
};

/* The stored type of keys and values. */
const char *kv_dtype_name(const struct problem *);
/* Are there gradients? */
bool goes_back(const struct problem *);
/* New tokens against existing keys. */
bool inference(const struct problem *);
/* Limited by memory traffic, not by arithmetic. */
bool by_memory(const struct problem *);
/* Per step.  Visible pairs times heads and batch cost 4 D flops each forward, 10 D backward.
 * moved_bytes: the minimum of bytes to move, even with ideal caches. */
double useful_flops(const struct problem *), moved_bytes(const struct problem *);
size_t keys_bytes(const struct problem *); /* of K, or of V */
/* The usual number of heads, or fewer, so that a call fits an undisturbed moment. */
int usual_heads(const struct problem *);

/* The attention, or the rotation, of an encoding at this shape.  Existing keys were rotated in
 * advance if a plan with such keys can be created. */
loci_desc problem_desc(const struct problem *, const char *encoding);
/* Fills a task: with the same seeds, so that all contenders attend to the same numbers. */
void problem_fill(const struct problem *, struct task *);

/* An object with the encoding, the pass and the shape.  It is one of jansson. */
struct json_t *problem_json(const struct problem *, const char *encoding);

/* The data of decode and prefill-chunk, shared by all contenders at this shape. */
void problem_open(struct problem *);
void problem_close(struct problem *);

/* The timed work: one task, or an embedding followed by plain attention. */
struct contender {
    struct task main, embed;
    bool embeds;
    int steps; /* steps per call */
    /* with --cache: its copies of K and V; the task has the new tokens alone */
    loci_cache **cache, *current;
};

/* Opens it and warms it up.  Both print their error and return false.  You may close it either
 * way. */
bool contender_open(struct problem *, struct contender *, const char *encoding);
void contender_close(struct contender *);
/* Runs a call of `steps` steps between two probes. *probe is the probe right before, or 0 if there
 * is none, and then the one right after. */
bool contender_call(struct problem *, struct contender *, int steps, double *probe, struct call *);

#endif
