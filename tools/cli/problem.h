/* SPDX-License-Identifier: MIT */
/* problem.h -- what `loci bench` times: a pass at one shape, an encoding that is ready to make it,
 * and what the machine could do at most meanwhile. */
#ifndef LOCI_CLI_PROBLEM_H
#define LOCI_CLI_PROBLEM_H

#include "cli/rounds.h"
#include "cli/task.h"
#include "loci/cache.h"

enum pass { FORWARD, BACKWARD, BOTH, DECODE, CHUNK, ROTATE };
extern const char *const pass_names[], *const dtype_names[];

struct problem {
    enum pass pass;
    int dim, heads, kv_heads, batch, dtype, threads, full;
    bool cached, fast, lasting;
    bool dots;                           /* it is the bf16 dot products that count */
    const char *isa;
    ptrdiff_t len, rows;                 /* rows: queries per sequence, its last ones */
    const loci_host *host;
    float *stream;                       /* decode: beyond every cache of the processor */
    size_t stream_bytes, at;             /* at: where the next probe reads */
    int copies, turn;                    /* decode, chunk: K and V, in turn, come from memory */
    void **k, **v;
};

/* New tokens against keys that are there. */
bool inference(const struct problem *);
/* Limited by what is read and written, not by arithmetic. */
bool by_memory(const struct problem *);
/* Of a step.  Visible pairs times heads and batch: 4 D flops each forward, 10 D backward; and what
 * must be moved at least, however often a cache helps. */
double useful_flops(const struct problem *), moved_bytes(const struct problem *);
/* As many heads as there usually are, or fewer, lest a call be longer than a quiet moment. */
int usual_heads(const struct problem *);

/* What decode and prefill-chunk read, for all contenders at this shape. */
void problem_open(struct problem *);
void problem_close(struct problem *);

/* What is timed: one task, or an embedding and plain attention after it. */
struct contender {
    struct task main, embed;
    bool embeds;
    int steps;                           /* that make a call */
    /* with --cache: its copies of K and V; the task has the new tokens alone */
    loci_cache **cache, *current;
};

/* Opens it and warms it up.  They print their error and return false; it may be closed either
 * way. */
bool contender_open(struct problem *, struct contender *, const char *encoding);
void contender_close(struct contender *);
/* A call of so many steps between two probes.  *probe is the one right before, where there is one,
 * or 0; and then the one right after. */
bool contender_call(struct problem *, struct contender *, int steps, double *probe, struct call *);

#endif
