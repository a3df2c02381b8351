/* SPDX-License-Identifier: MIT */
/* naive.h -- textbook attention without an encoding, the other runner of `loci race`. */
#ifndef LOCI_CLI_NAIVE_H
#define LOCI_CLI_NAIVE_H

#include <stddef.h>

/* Causal, [heads][len][dim] throughout, no encoding.  The backward pass needs all weights. */
struct naive {
    int heads, dim;
    ptrdiff_t len;
    const float *q, *k, *v, *dout;
    float *o, *lse, *dq, *dk, *dv;
    float *weights, *scores, *turned; /* [heads][len][len], [len][len], [dim][len] */
    size_t bytes;                     /* bytes of the three */
};

void naive_open(struct naive *, int heads, ptrdiff_t len, int dim); /* allocates the three */
void naive_close(struct naive *);
void naive_forward(struct naive *), naive_backward(struct naive *);

#endif
