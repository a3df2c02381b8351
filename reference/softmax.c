/* SPDX-License-Identifier: MIT */
/* softmax.c -- encodings of the softmax that do not depend on positions. */
#include "reference/problem.h"

/* ---- softcap: C tanh(a / C) instead of a ----------------------------------------------------- */

/* The slope of C tanh(x / C) is 1 - tanh^2. */
static double softcap(const struct problem *p, int e, int h, double x, double *slope)
{
    double cap = option(p, e, "cap", NAN), y = tanh(x / cap);
    (void)h;
    *slope = 1 - y * y;
    return cap * y;
}
const struct definition loci_define_softcap = { .name = "softcap", .bend = softcap };

/* ---- ssmax, logn: a factor of the number of keys --------------------------------------------- */

enum { COUNT_KEYS, COUNT_POSITION };
/* The number of keys that row i of head h sees, or its position + 1; at least 1. */
static double count(const struct problem *p, int e, int h)
{
    const bool by_position = option(p, e, "count", COUNT_KEYS) == COUNT_POSITION;
    const double n = by_position ? (double)q_position(p, p->i) + 1 : p->keys_seen[h];
    return n < 1 ? 1 : n;
}

static double ssmax(const struct problem *p, int e, int h, double x, double *slope)
{
    const double *b = tensor(p, e, "b");
    *slope = tensor(p, e, "s")[h] * log(count(p, e, h)) + (b ? b[h] : 0);
    return *slope * x;
}
static void ssmax_backward(const struct problem *p, int e, int h, double x, double dy)
{
    double *db = dtensor(p, e, "b");
    dtensor(p, e, "s")[h] += dy * x * log(count(p, e, h));
    if (db) db[h] += dy * x;
}
const struct definition loci_define_ssmax = {
    .name = "ssmax",
    .bend = ssmax,
    .bend_backward = ssmax_backward,
};

static double logn(const struct problem *p, int e, int h, double x, double *slope)
{
    const double length = option(p, e, "length", NAN), n = count(p, e, h);
    const bool added = option(p, e, "rule", 0) != 0;
    *slope = n <= length ? 1
           : added       ? 1 + option(p, e, "beta", NAN) * log(n / length)
                         : log(n) / log(length);
    return *slope * x;
}
const struct definition loci_define_logn = { .name = "logn", .bend = logn };

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
