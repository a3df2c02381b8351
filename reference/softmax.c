/* SPDX-License-Identifier: MIT */
/* softmax.c -- encodings of the softmax that do not depend on positions. */
#include "reference/problem.h"

/* ---- softcap: C tanh(a / C) instead of a ----------------------------------------------------- */

/* The slope of C tanh(x / C) is 1 - tanh^2. */
static double softcap(const struct problem *p, int e, double flat, double *slope)
{
    double cap = option(p, e, "cap", NAN), x = tanh(flat / cap);
    *slope = 1 - x * x;
    return cap * x;
}
const struct definition loci_define_softcap = { .name = "softcap", .bend = softcap };

/* ---- sink: a logit per head in the sum ------------------------------------------------------- */

static double sink(const struct problem *p, int e, int h) { return tensor(p, e, "logit")[h]; }
static void sink_backward(const struct problem *p, int e, int h, double dlogit)
{
    dtensor(p, e, "logit")[h] += dlogit;
}
const struct definition loci_define_sink = {
    .name = "sink",
    .sink = sink,
    .sink_backward = sink_backward,
};
