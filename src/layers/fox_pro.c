/* SPDX-License-Identifier: MIT */
/* fox_pro.c -- the layers around the attention of FoX (Pro).
 * Lin et al., Forgetting Transformer, ICLR 2025.
 *
 *     shift     y_t = a_t x_(t-1) + (1 - a_t) x_t
 *               a = sigmoid(logit), one per head and token; x_(t-1) is not shifted
 *     rmsnorm   y = w n,  n = x / sqrt(mean(x^2) + eps)
 *     log gate  y = log sigmoid(x)
 *     gate      y = x sigmoid(g), or x g sigmoid(g)
 *
 * Work items are heads.  So sums over rows (the gradient of w) have one order for any number of
 * threads. */
#include "layers/layer.h"

/* What the heads of a call share.  Each function uses the fields that it needs. */
struct heads {
    const loci_layer *layer;
    loci_view x, y, logits, g, dy, dx, dg;
    const void *weight, *before;
    void *dweight, *after;
    double eps;
    const int64_t *seg;
    bool per_batch, silu;
};

/* ---- RMS norm -------------------------------------------------------------------------------- */

/* The weights of some channels of a head.  A layer without weights has ones. */
static void read_weight(const struct heads *a, int h, int from, int n, double *w)
{
    if (a->weight) layer_read(a->layer, a->weight, (ptrdiff_t)h * a->layer->width + from, n, w);
    else
        for (int i = 0; i < n; i++) w[i] = 1;
}
/* 1 / sqrt(mean(x^2) + eps) of a row. */
static double root(const struct heads *a, ptrdiff_t at)
{
    const int width = a->layer->width;
    double x[PIECE], sum = 0;
    for (int from = 0; from < width; from += PIECE) {
        const int n = layer_piece(from, width);
        layer_read(a->layer, a->x.data, at + from, n, x);
        sum += layer_dot(x, x, n);
    }
    return 1 / sqrt(sum / width + a->eps);
}
/* Reads each row twice, first for its norm, so y may be x. */
static void norm_head(void *arg, int h)
{
    const struct heads *a = arg;
    const loci_layer *l = a->layer;
    double x[PIECE], w[PIECE];
    for (ptrdiff_t b = 0; b < l->batch; b++)
        for (ptrdiff_t t = 0; t < l->rows; t++) {
            const ptrdiff_t at = layer_at(&a->x, b, h, t), to = layer_at(&a->y, b, h, t);
            const double r = root(a, at);
            for (int from = 0; from < l->width; from += PIECE) {
                const int n = layer_piece(from, l->width);
                layer_read(l, a->x.data, at + from, n, x);
                read_weight(a, h, from, n, w);
                for (int i = 0; i < n; i++) x[i] = x[i] * r * w[i];
                layer_write(l, a->y.data, to + from, n, x);
            }
        }
}
/* eps 0 is valid.  A row of zeros then becomes NaN, as in the formula. */
static loci_status check_norm(const loci_layer *l, double eps)
{
    CHECK(l->error, eps >= 0 && isfinite(eps), LOCI_BAD_ARG,
          "rmsnorm: eps %g must be finite and not negative", eps);
    return LOCI_OK;
}
loci_status loci_rmsnorm(const loci_layer *given, loci_view x, const void *weight, double eps,
                         loci_view y)
{
    loci_layer layer, *const l = &layer;
    TRY(loci_layer_open(l, given));
    const struct layer_view views[] = { { "x", &x, l->width, LAYER_INPUT, 0 },
                                        { "y", &y, l->width, LAYER_OUTPUT, 0 } };
    const struct layer_list lists[] = { { "weight", weight, (ptrdiff_t)l->heads * l->width, READ,
                                          LIST_REAL } };
    TRY(loci_layer_check(l, views, COUNT(views), lists, COUNT(lists)));
    TRY(check_norm(l, eps));
    struct heads a = { .layer = l, .x = x, .y = y, .weight = weight, .eps = eps };
    return loci_layer_run(l, norm_head, &a);
}

/* mean(n dn) of a row, with n = x r and dn = w dy.  Then dx = r (dn - n mean(n dn)), which removes
 * the part of dn along n, and dw = the sum of n dy over all rows. */
static double mean(const struct heads *a, int h, ptrdiff_t at, ptrdiff_t dat, double r)
{
    const int width = a->layer->width;
    double x[PIECE], dy[PIECE], w[PIECE], sum = 0;
    for (int from = 0; from < width; from += PIECE) {
        const int n = layer_piece(from, width);
        layer_read(a->layer, a->x.data, at + from, n, x);
        layer_read(a->layer, a->dy.data, dat + from, n, dy);
        read_weight(a, h, from, n, w);
        for (int i = 0; i < n; i++) x[i] *= w[i];
        sum += layer_dot(x, dy, n);
    }
    return sum * r / width;
}
/* dx and dw of some channels, over all rows.  The outer loop is over channels, so dw of a piece
 * stays on the stack.  The norm of each row is recomputed for each piece. */
static void norm_piece(const struct heads *a, int h, int from, int n)
{
    const loci_layer *l = a->layer;
    double x[PIECE], dy[PIECE], w[PIECE], dw[PIECE] = { 0 };
    read_weight(a, h, from, n, w);
    for (ptrdiff_t b = 0; b < l->batch; b++)
        for (ptrdiff_t t = 0; t < l->rows; t++) {
            const ptrdiff_t at = layer_at(&a->x, b, h, t), dat = layer_at(&a->dy, b, h, t);
            const double r = root(a, at), m = mean(a, h, at, dat, r);
            /* x becomes dx */
            layer_read(l, a->x.data, at + from, n, x);
            layer_read(l, a->dy.data, dat + from, n, dy);
            for (int i = 0; i < n; i++) {
                const double unit = x[i] * r; /* n of the formula */
                dw[i] += unit * dy[i];
                x[i] = r * (w[i] * dy[i] - unit * m);
            }
            if (a->dx.data) layer_write(l, a->dx.data, layer_at(&a->dx, b, h, t) + from, n, x);
        }
    if (a->dweight) layer_write(l, a->dweight, (ptrdiff_t)h * l->width + from, n, dw);
}
static void norm_back(void *arg, int h)
{
    const struct heads *a = arg;
    const int width = a->layer->width;
    for (int from = 0; from < width; from += PIECE)
        norm_piece(a, h, from, layer_piece(from, width));
}
/* x and dy are read more than once per piece, so dx has a buffer of its own. */
loci_status loci_rmsnorm_backward(const loci_layer *given, loci_view x, const void *weight,
                                  double eps, loci_view dy, loci_view dx, void *dweight)
{
    loci_layer layer, *const l = &layer;
    TRY(loci_layer_open(l, given));
    const struct layer_view views[] = {
        { "x", &x, l->width, LAYER_INPUT, 0 },
        { "dy", &dy, l->width, LAYER_INPUT, 0 },
        { "dx", &dx, l->width, LAYER_GRADIENT, 0 },
    };
    const struct layer_list lists[] = {
        { "weight", weight, (ptrdiff_t)l->heads * l->width, READ, LIST_REAL },
        { "dweight", dweight, (ptrdiff_t)l->heads * l->width, WRITTEN, LIST_REAL },
    };
    TRY(loci_layer_check(l, views, COUNT(views), lists, COUNT(lists)));
    TRY(check_norm(l, eps));
    struct heads a = {
        .layer = l, .x = x, .dy = dy, .dx = dx, .weight = weight, .dweight = dweight, .eps = eps
    };
    return loci_layer_run(l, norm_back, &a);
}

/* ---- Shift ----------------------------------------------------------------------------------- */

/* The logit of a row: its view has width 1. */
static double logit(const struct heads *a, ptrdiff_t b, int h, ptrdiff_t t)
{
    double x;
    layer_read(a->layer, a->logits.data, layer_at(&a->logits, b, h, t), 1, &x);
    return x;
}
/* The segment of a row.  Negative: padding. */
static int64_t segment(const struct heads *a, ptrdiff_t b, ptrdiff_t t)
{
    return a->seg ? a->seg[(a->per_batch ? b * a->layer->rows : 0) + t] : 0;
}
/* Does row t follow row t - 1 in one sequence?  False for padding and beyond the last row. */
static bool follows(const struct heads *a, ptrdiff_t b, ptrdiff_t t)
{
    return t > 0 && t < a->layer->rows && segment(a, b, t) >= 0
        && segment(a, b, t) == segment(a, b, t - 1);
}
/* The row before row t: of x; of the state, for the first row of a call; 0 at the start of a
 * sequence. */
static void read_last(const struct heads *a, ptrdiff_t b, int h, ptrdiff_t t, int from, int n,
                      double *x)
{
    const loci_layer *l = a->layer;
    if (follows(a, b, t)) layer_read(l, a->x.data, layer_at(&a->x, b, h, t - 1) + from, n, x);
    else if (t == 0 && a->before)
        layer_read(l, a->before, (b * l->heads + h) * l->width + from, n, x);
    else memset(x, 0, (size_t)n * sizeof *x);
}
/* Padding becomes 0 and does not affect other rows.  So whatever it contains, even NaN, does not
 * reach y.  The new state is the last x as given, not shifted. */
static void shift_head(void *arg, int h)
{
    const struct heads *a = arg;
    const loci_layer *l = a->layer;
    double x[PIECE], last[PIECE];
    for (ptrdiff_t b = 0; b < l->batch; b++) {
        for (ptrdiff_t t = 0; t < l->rows; t++) {
            const bool padding = segment(a, b, t) < 0;
            const double share = layer_sigmoid(logit(a, b, h, t));
            for (int from = 0; from < l->width; from += PIECE) {
                const int n = layer_piece(from, l->width);
                layer_read(l, a->x.data, layer_at(&a->x, b, h, t) + from, n, x);
                read_last(a, b, h, t, from, n, last);
                for (int i = 0; i < n; i++)
                    x[i] = padding ? 0 : share * last[i] + (1 - share) * x[i];
                layer_write(l, a->y.data, layer_at(&a->y, b, h, t) + from, n, x);
            }
        }
        /* The state: the last x of this call.  Without rows, the previous state. */
        for (int from = 0; a->after && from < l->width; from += PIECE) {
            const int n = layer_piece(from, l->width);
            const ptrdiff_t at = (b * l->heads + h) * l->width + from;
            if (l->rows)
                layer_read(l, a->x.data, layer_at(&a->x, b, h, l->rows - 1) + from, n, last);
            else if (a->before) layer_read(l, a->before, at, n, last);
            else memset(last, 0, sizeof last);
            layer_write(l, a->after, at, n, last);
        }
    }
}
loci_status loci_shift(const loci_layer *given, loci_view x, loci_view logits, const int64_t *seg,
                       int per_batch, const void *before, void *after, loci_view y)
{
    loci_layer layer, *const l = &layer;
    TRY(loci_layer_open(l, given));
    const struct layer_view views[] = {
        { "x", &x, l->width, LAYER_SAVED, 0 },
        { "logits", &logits, 1, LAYER_INPUT, 0 },
        { "y", &y, l->width, LAYER_OUTPUT, 0 },
    };
    const ptrdiff_t state = l->batch * l->heads * l->width;
    /* x is read again for the next row, so y must not be x.  The two states may be the same. */
    const struct layer_list lists[] = {
        { "seg", seg, (per_batch ? l->batch : 1) * l->rows, READ, LIST_INT64 },
        { "before", before, state, REPLACED, LIST_REAL },
        { "after", after, state, WRITTEN, LIST_REAL },
    };
    TRY(loci_layer_check(l, views, COUNT(views), lists, COUNT(lists)));
    CHECK(l->error, (!before && !after) || !seg, LOCI_BAD_ARG,
          "shift: seg must be NULL with before or after, which belong to one sequence");
    struct heads a = { .layer = l,
                       .x = x,
                       .logits = logits,
                       .y = y,
                       .seg = seg,
                       .per_batch = per_batch != 0,
                       .before = before,
                       .after = after };
    return loci_layer_run(l, shift_head, &a);
}

/* dx_t = (1 - a_t) dy_t + a_(t+1) dy_(t+1), dlogit_t = a_t (1 - a_t) dy_t.(x_(t-1) - x_t).  A row
 * gets a gradient from itself and from the next row, if that is in its sequence. */
static void shift_back(void *arg, int h)
{
    const struct heads *a = arg;
    const loci_layer *l = a->layer;
    double x[PIECE], last[PIECE], dy[PIECE], next[PIECE];
    for (ptrdiff_t b = 0; b < l->batch; b++)
        for (ptrdiff_t t = 0; t < l->rows; t++) {
            const bool padding = segment(a, b, t) < 0, more = follows(a, b, t + 1);
            const double share = layer_sigmoid(logit(a, b, h, t)),
                         lent = more ? layer_sigmoid(logit(a, b, h, t + 1)) : 0;
            /* `share` is a_t and `lent` is a_(t+1).  x becomes dx; `sum` is the dot product in
             * dlogit. */
            double sum = 0;
            for (int from = 0; from < l->width; from += PIECE) {
                const int n = layer_piece(from, l->width);
                layer_read(l, a->x.data, layer_at(&a->x, b, h, t) + from, n, x);
                layer_read(l, a->dy.data, layer_at(&a->dy, b, h, t) + from, n, dy);
                read_last(a, b, h, t, from, n, last);
                for (int i = 0; i < n; i++) last[i] -= x[i]; /* dy_t/da_t */
                sum += layer_dot(dy, last, n);
                for (int i = 0; i < n; i++) x[i] = padding ? 0 : (1 - share) * dy[i];
                if (more) {
                    layer_read(l, a->dy.data, layer_at(&a->dy, b, h, t + 1) + from, n, next);
                    for (int i = 0; i < n; i++) x[i] += lent * next[i];
                }
                if (a->dx.data) layer_write(l, a->dx.data, layer_at(&a->dx, b, h, t) + from, n, x);
            }
            /* da/dlogit = a (1 - a); padding has no gradient. */
            const double dlogit = padding ? 0 : share * (1 - share) * sum;
            if (a->dg.data) layer_write(l, a->dg.data, layer_at(&a->dg, b, h, t), 1, &dlogit);
        }
}
loci_status loci_shift_backward(const loci_layer *given, loci_view x, loci_view logits,
                                const int64_t *seg, int per_batch, loci_view dy, loci_view dx,
                                loci_view dlogits)
{
    loci_layer layer, *const l = &layer;
    TRY(loci_layer_open(l, given));
    const struct layer_view views[] = {
        { "x", &x, l->width, LAYER_INPUT, 0 },         { "logits", &logits, 1, LAYER_INPUT, 0 },
        { "dy", &dy, l->width, LAYER_INPUT, 0 },       { "dx", &dx, l->width, LAYER_GRADIENT, 0 },
        { "dlogits", &dlogits, 1, LAYER_GRADIENT, 0 },
    };
    const struct layer_list lists[] = { { "seg", seg, (per_batch ? l->batch : 1) * l->rows, READ,
                                          LIST_INT64 } };
    TRY(loci_layer_check(l, views, COUNT(views), lists, COUNT(lists)));
    struct heads a = { .layer = l,
                       .x = x,
                       .logits = logits,
                       .dy = dy,
                       .dx = dx,
                       .dg = dlogits,
                       .seg = seg,
                       .per_batch = per_batch != 0 };
    return loci_layer_run(l, shift_back, &a);
}

/* ---- Forget gate ----------------------------------------------------------------------------- */

static void log_gate_head(void *arg, int h)
{
    const struct heads *a = arg;
    const loci_layer *l = a->layer;
    for (ptrdiff_t b = 0; b < l->batch; b++)
        for (ptrdiff_t t = 0; t < l->rows; t++) {
            const double y = layer_log_sigmoid(logit(a, b, h, t));
            layer_write(l, a->y.data, layer_at(&a->y, b, h, t), 1, &y);
        }
}
loci_status loci_log_gate(const loci_layer *given, loci_view logits, loci_view log_f)
{
    loci_layer layer, *const l = &layer;
    TRY(loci_layer_open(l, given));
    const struct layer_view views[] = { { "logits", &logits, 1, LAYER_INPUT, 0 },
                                        { "log_f", &log_f, 1, LAYER_OUTPUT, 0 } };
    TRY(loci_layer_check(l, views, COUNT(views), NULL, 0));
    struct heads a = { .layer = l, .logits = logits, .y = log_f };
    return loci_layer_run(l, log_gate_head, &a);
}

/* The derivative of log sigmoid(x) is sigmoid(-x).  1 - sigmoid(x) would lose its digits. */
static void log_gate_back(void *arg, int h)
{
    const struct heads *a = arg;
    const loci_layer *l = a->layer;
    for (ptrdiff_t b = 0; b < l->batch; b++)
        for (ptrdiff_t t = 0; t < l->rows; t++) {
            double dx;
            layer_read(l, a->dy.data, layer_at(&a->dy, b, h, t), 1, &dx);
            dx *= layer_sigmoid(-logit(a, b, h, t));
            if (a->dg.data) layer_write(l, a->dg.data, layer_at(&a->dg, b, h, t), 1, &dx);
        }
}
loci_status loci_log_gate_backward(const loci_layer *given, loci_view logits, loci_view dlog_f,
                                   loci_view dlogits)
{
    loci_layer layer, *const l = &layer;
    TRY(loci_layer_open(l, given));
    const struct layer_view views[] = {
        { "logits", &logits, 1, LAYER_INPUT, 0 },
        { "dlog_f", &dlog_f, 1, LAYER_INPUT, 0 },
        { "dlogits", &dlogits, 1, LAYER_GRADIENT, 0 },
    };
    TRY(loci_layer_check(l, views, COUNT(views), NULL, 0));
    struct heads a = { .layer = l, .logits = logits, .dy = dlog_f, .dg = dlogits };
    return loci_layer_run(l, log_gate_back, &a);
}

/* ---- Output gate ----------------------------------------------------------------------------- */

/* With silu the result is also multiplied by g. */
static void gate_head(void *arg, int h)
{
    const struct heads *a = arg;
    const loci_layer *l = a->layer;
    double x[PIECE], g[PIECE];
    for (ptrdiff_t b = 0; b < l->batch; b++)
        for (ptrdiff_t t = 0; t < l->rows; t++)
            for (int from = 0; from < l->width; from += PIECE) {
                const int n = layer_piece(from, l->width);
                layer_read(l, a->x.data, layer_at(&a->x, b, h, t) + from, n, x);
                layer_read(l, a->g.data, layer_at(&a->g, b, h, t) + from, n, g);
                for (int i = 0; i < n; i++) x[i] *= layer_sigmoid(g[i]) * (a->silu ? g[i] : 1);
                layer_write(l, a->y.data, layer_at(&a->y, b, h, t) + from, n, x);
            }
}
/* In another language an enum may have any int value. */
static loci_status check_activation(const loci_layer *l, loci_activation activation)
{
    CHECK(l->error, activation == LOCI_SIGMOID || activation == LOCI_SILU, LOCI_BAD_ARG,
          "gate: activation %d must be LOCI_SIGMOID or LOCI_SILU", (int)activation);
    return LOCI_OK;
}
loci_status loci_gate(const loci_layer *given, loci_activation activation, loci_view x, loci_view g,
                      loci_view y)
{
    loci_layer layer, *const l = &layer;
    TRY(loci_layer_open(l, given));
    const struct layer_view views[] = {
        { "x", &x, l->width, LAYER_INPUT, 0 },
        { "g", &g, l->width, LAYER_INPUT, 0 },
        { "y", &y, l->width, LAYER_OUTPUT, 0 },
    };
    TRY(loci_layer_check(l, views, COUNT(views), NULL, 0));
    TRY(check_activation(l, activation));
    struct heads a = { .layer = l, .x = x, .g = g, .y = y, .silu = activation == LOCI_SILU };
    return loci_layer_run(l, gate_head, &a);
}

/* dx = dy s and dg = dy x s' with s = sigmoid(g), s' = s (1 - s).  With silu, dx = dy g s and dg =
 * dy x s (1 + g (1 - s)).  1 - s is computed as sigmoid(-g), which keeps its digits.  x and dy are
 * overwritten by dg and dx. */
static void gate_back(void *arg, int h)
{
    const struct heads *a = arg;
    const loci_layer *l = a->layer;
    double x[PIECE], g[PIECE], dy[PIECE];
    for (ptrdiff_t b = 0; b < l->batch; b++)
        for (ptrdiff_t t = 0; t < l->rows; t++)
            for (int from = 0; from < l->width; from += PIECE) {
                const int n = layer_piece(from, l->width);
                layer_read(l, a->x.data, layer_at(&a->x, b, h, t) + from, n, x);
                layer_read(l, a->g.data, layer_at(&a->g, b, h, t) + from, n, g);
                layer_read(l, a->dy.data, layer_at(&a->dy, b, h, t) + from, n, dy);
                for (int i = 0; i < n; i++) {
                    const double s = layer_sigmoid(g[i]), rest = layer_sigmoid(-g[i]);
                    x[i] *= dy[i] * (a->silu ? s * (1 + g[i] * rest) : s * rest);
                    dy[i] *= s * (a->silu ? g[i] : 1);
                }
                if (a->dx.data) layer_write(l, a->dx.data, layer_at(&a->dx, b, h, t) + from, n, dy);
                if (a->dg.data) layer_write(l, a->dg.data, layer_at(&a->dg, b, h, t) + from, n, x);
            }
}
loci_status loci_gate_backward(const loci_layer *given, loci_activation activation, loci_view x,
                               loci_view g, loci_view dy, loci_view dx, loci_view dg)
{
    loci_layer layer, *const l = &layer;
    TRY(loci_layer_open(l, given));
    const struct layer_view views[] = {
        { "x", &x, l->width, LAYER_INPUT, 0 },      { "g", &g, l->width, LAYER_INPUT, 0 },
        { "dy", &dy, l->width, LAYER_INPUT, 0 },    { "dx", &dx, l->width, LAYER_GRADIENT, 0 },
        { "dg", &dg, l->width, LAYER_GRADIENT, 0 },
    };
    TRY(loci_layer_check(l, views, COUNT(views), NULL, 0));
    TRY(check_activation(l, activation));
    struct heads a = {
        .layer = l, .x = x, .g = g, .dy = dy, .dx = dx, .dg = dg, .silu = activation == LOCI_SILU
    };
    return loci_layer_run(l, gate_back, &a);
}
