/* SPDX-License-Identifier: MIT */
/* angles.c -- running sums of angles, in loci/layers.h.
 *
 *     c_t = reduce(c_(t-1) + rate x_t)       y_t = c_t, or c_(t-1) if exclusive
 *
 * A sum of floats loses the angle as it grows: with increments from 0 to 1, cosines are off by more
 * than 0.2 after 65536 rows.  Here the sum is a double that every step reduces, so its error does
 * not depend on its size.  A step adds at most 2^-53 (pi + |rate x|).
 *
 * Reduction has the slope 1, so gradients are those of a plain sum:
 *
 *     s_t = dafter + sum of dy_l over rows l >= t (exclusive: l > t)
 *     dx_t = rate s_t       drate = sum of x_t s_t       dbefore = dafter + sum of all dy_l */
#include "layers/layer.h"

struct sums {
    const loci_layer *layer;
    loci_view x, y, dy, dx;
    const double *rate, *before, *dafter;
    double *after, *drate, *dbefore;
    const int64_t *seg;
    bool per_batch, exclusive;
};

/* c - 2 pi n for the nearest n, within pi of 0.  2 pi is subtracted in two parts.  n is rounded by
 * adding a large number, which has the same bits on every processor. */
static inline double reduced(double c)
{
    const double magic = 0x1.8p52, n = c * 0x1.45f306dc9c883p-3 + magic - magic;
    return (c - n * 0x1.921fb54442d18p2) - n * 0x1.1a62633145c07p-52;
}
static int64_t segment(const struct sums *a, ptrdiff_t b, ptrdiff_t t)
{
    return a->seg ? a->seg[(a->per_batch ? b * a->layer->rows : 0) + t] : 0;
}
/* Are rows t and t + 1 of different segments?  Padding counts as a segment. */
static bool ends(const struct sums *a, ptrdiff_t b, ptrdiff_t t)
{
    return t + 1 < a->layer->rows && segment(a, b, t) != segment(a, b, t + 1);
}
static void read_rate(const struct sums *a, int h, int from, int n, double *rate)
{
    for (int i = 0; i < n; i++)
        rate[i] = a->rate ? a->rate[(ptrdiff_t)h * a->layer->width + from + i] : 1;
}
/* Where the sums of some channels of a head are, in `before` and the others of its shape. */
static ptrdiff_t sums_at(const struct sums *a, ptrdiff_t b, int h, int from)
{
    return (b * a->layer->heads + h) * a->layer->width + from;
}

/* Some channels of all rows.  Each row is read before it is written, so y may be x. */
static void sum_piece(const struct sums *a, ptrdiff_t b, int h, int from, int n)
{
    const loci_layer *l = a->layer;
    double x[PIECE], y[PIECE], rate[PIECE], c[PIECE] = { 0 };
    const ptrdiff_t state = sums_at(a, b, h, from);
    read_rate(a, h, from, n, rate);
    if (a->before) memcpy(c, a->before + state, (size_t)n * sizeof *c);
    for (ptrdiff_t t = 0; t < l->rows; t++) {
        const bool padding = segment(a, b, t) < 0;
        layer_read(l, a->x.data, layer_at(&a->x, b, h, t) + from, n, x);
        for (int i = 0; i < n; i++) {
            const double step = rate[i] * x[i], next = padding ? 0 : reduced(c[i] + step);
            y[i] = a->exclusive ? c[i] : next;
            c[i] = next;
        }
        layer_write(l, a->y.data, layer_at(&a->y, b, h, t) + from, n, y);
        if (ends(a, b, t)) memset(c, 0, sizeof c);
    }
    if (a->after) memcpy(a->after + state, c, (size_t)n * sizeof *c);
}
static void sum_head(void *arg, int h)
{
    const struct sums *a = arg;
    const int width = a->layer->width;
    for (ptrdiff_t b = 0; b < a->layer->batch; b++)
        for (int from = 0; from < width; from += PIECE)
            sum_piece(a, b, h, from, layer_piece(from, width));
}
/* The sums of one call belong to one sequence. */
static loci_status check_segments(const loci_layer *l, const int64_t *seg, const char *given)
{
    CHECK(l->error, !seg || !given, LOCI_BAD_ARG,
          "running_angles: seg must be NULL with %s, which belongs to one sequence", given);
    return LOCI_OK;
}
loci_status loci_running_angles(const loci_layer *given, loci_view x, const double *rate,
                                int exclusive, const int64_t *seg, int per_batch,
                                const double *before, double *after, loci_view y)
{
    loci_layer layer, *const l = &layer;
    TRY(loci_layer_open(l, given));
    const struct layer_view views[] = { { "x", &x, l->width, LAYER_INPUT, 0 },
                                        { "y", &y, l->width, LAYER_OUTPUT, 0 } };
    const ptrdiff_t channels = (ptrdiff_t)l->heads * l->width;
    const struct layer_list lists[] = {
        { "rate", rate, channels, READ, LIST_DOUBLE },
        { "seg", seg, (per_batch ? l->batch : 1) * l->rows, READ, LIST_INT64 },
        { "before", before, l->batch * channels, REPLACED, LIST_DOUBLE },
        { "after", after, l->batch * channels, WRITTEN, LIST_DOUBLE },
    };
    TRY(loci_layer_check(l, views, COUNT(views), lists, COUNT(lists)));
    TRY(check_segments(l, seg, before ? "before" : after ? "after" : NULL));
    struct sums a = { .layer = l,
                      .x = x,
                      .y = y,
                      .rate = rate,
                      .exclusive = exclusive != 0,
                      .seg = seg,
                      .per_batch = per_batch != 0,
                      .before = before,
                      .after = after };
    return loci_layer_run(l, sum_head, &a);
}

/* dx and dbefore of some channels of a sequence, and its part of drate.  Rows from the last. */
static void back_rows(const struct sums *a, ptrdiff_t b, int h, int from, int n, const double *rate,
                      double *drate)
{
    const loci_layer *l = a->layer;
    double x[PIECE], dy[PIECE], dx[PIECE], s[PIECE] = { 0 };
    const ptrdiff_t state = sums_at(a, b, h, from);
    if (a->dafter) memcpy(s, a->dafter + state, (size_t)n * sizeof *s);
    for (ptrdiff_t t = l->rows - 1; t >= 0; t--) {
        const bool padding = segment(a, b, t) < 0;
        if (ends(a, b, t)) memset(s, 0, sizeof s);
        layer_read(l, a->x.data, layer_at(&a->x, b, h, t) + from, n, x);
        layer_read(l, a->dy.data, layer_at(&a->dy, b, h, t) + from, n, dy);
        for (int i = 0; i < n; i++) {
            const double with = s[i] + dy[i], sum = a->exclusive ? s[i] : with;
            dx[i] = padding ? 0 : rate[i] * sum;
            drate[i] += padding ? 0 : x[i] * sum;
            s[i] = with;
        }
        if (a->dx.data) layer_write(l, a->dx.data, layer_at(&a->dx, b, h, t) + from, n, dx);
    }
    if (a->dbefore) memcpy(a->dbefore + state, s, (size_t)n * sizeof *s);
}
static void back_head(void *arg, int h)
{
    const struct sums *a = arg;
    const int width = a->layer->width;
    double rate[PIECE];
    for (int from = 0; from < width; from += PIECE) {
        const int n = layer_piece(from, width);
        double drate[PIECE] = { 0 };
        read_rate(a, h, from, n, rate);
        for (ptrdiff_t b = 0; b < a->layer->batch; b++) back_rows(a, b, h, from, n, rate, drate);
        if (a->drate)
            memcpy(a->drate + (ptrdiff_t)h * width + from, drate, (size_t)n * sizeof *drate);
    }
}
loci_status loci_running_angles_backward(const loci_layer *given, loci_view x, const double *rate,
                                         int exclusive, const int64_t *seg, int per_batch,
                                         loci_view dy, const double *dafter, loci_view dx,
                                         double *drate, double *dbefore)
{
    loci_layer layer, *const l = &layer;
    TRY(loci_layer_open(l, given));
    const struct layer_view views[] = {
        { "x", &x, l->width, LAYER_INPUT, 0 },
        { "dy", &dy, l->width, LAYER_INPUT, 0 },
        { "dx", &dx, l->width, LAYER_GRADIENT, 0 },
    };
    const ptrdiff_t channels = (ptrdiff_t)l->heads * l->width;
    const struct layer_list lists[] = {
        { "rate", rate, channels, READ, LIST_DOUBLE },
        { "seg", seg, (per_batch ? l->batch : 1) * l->rows, READ, LIST_INT64 },
        { "dafter", dafter, l->batch * channels, READ, LIST_DOUBLE },
        { "drate", drate, channels, WRITTEN, LIST_DOUBLE },
        { "dbefore", dbefore, l->batch * channels, WRITTEN, LIST_DOUBLE },
    };
    TRY(loci_layer_check(l, views, COUNT(views), lists, COUNT(lists)));
    TRY(check_segments(l, seg, dafter ? "dafter" : dbefore ? "dbefore" : NULL));
    struct sums a = { .layer = l,
                      .x = x,
                      .dy = dy,
                      .dx = dx,
                      .rate = rate,
                      .exclusive = exclusive != 0,
                      .seg = seg,
                      .per_batch = per_batch != 0,
                      .dafter = dafter,
                      .drate = drate,
                      .dbefore = dbefore };
    return loci_layer_run(l, back_head, &a);
}
