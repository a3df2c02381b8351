/* SPDX-License-Identifier: MIT */
/* tape.c -- how a layer with the encoding `tape` updates the states of its tokens.
 * Zhu et al., ICML 2025.
 *
 *     start      e = (cos, sin) of pos / factor base^(-2t/D)
 *     attention  y_h = e_h + w_h ae_h, w_h = sum over g of w[h][g];  or
 *                y_h = e_h + sum over g of w[h][g] ae_g
 *     MLP        y_h = e_h + sum over p of down[h][p] silu(gate_p) sum over g of up[p][g] e_g
 *
 * For each token the last is one small matrix between heads, m[h][g] = sum over p of down[h][p]
 * silu(gate_p) up[p][g].  Its gradient is a matrix, too: n[h][g] = dy_h.e_g.  With it
 *
 *     de_g = dy_g + sum over h of m[h][g] dy_h
 *     dup[p][g] += silu(gate_p) a[p][g],   a[p][g] = sum over h of down[h][p] n[h][g]
 *     ddown[h][p] += silu(gate_p) sum over g of n[h][g] up[p][g],
 *     dgate_p = silu'(gate_p) sum over g of a[p][g] up[p][g] */
#include "math/dd.h"
#include "layers/layer.h"

/* Sizes of work items: tokens whose states start, tokens whose states are updated, units whose
 * weights learn.  Sums over tokens stay within one item, so their order does not depend on the
 * threads. */
enum { STARTS = 64, TOKENS = 16, UNITS = 16 };
/* Limits of the arrays that a job has on its stack. */
enum { MAX_STATE_HEADS = 256, MAX_UNITS = 4096 };

/* What the work items of a call share.  Each function uses the fields that it needs. */
struct states {
    const loci_layer *layer;
    loci_view e, ae, gates, y, dy, de, dae, dgates;
    const void *w, *up, *down;
    void *dw, *dup, *ddown;
    bool full;
    int units;
    double base, factor;
    const int64_t *pos;
    bool per_batch;
};

/* The dot product of row t of head g of a with that of head h of b. */
static double dot_rows(const struct states *s, const loci_view *a, int g, const loci_view *b, int h,
                       ptrdiff_t batch, ptrdiff_t t)
{
    const loci_layer *l = s->layer;
    double x[PIECE], y[PIECE], sum = 0;
    for (int from = 0; from < l->width; from += PIECE) {
        const int n = layer_piece(from, l->width);
        layer_read(l, a->data, layer_at(a, batch, g, t) + from, n, x);
        layer_read(l, b->data, layer_at(b, batch, h, t) + from, n, y);
        sum += layer_dot(x, y, n);
    }
    return sum;
}
/* y_h = x_h + sum over g of m[g] z_g for one row.  x.data NULL stands for 0.  A weight of 0 is
 * skipped, so states with weight 0 need not be initialised. */
static void blend(const struct states *s, const loci_view *x, const loci_view *z, const double *m,
                  const loci_view *y, int h, ptrdiff_t b, ptrdiff_t t)
{
    const loci_layer *l = s->layer;
    double sum[PIECE], row[PIECE];
    for (int from = 0; from < l->width; from += PIECE) {
        const int n = layer_piece(from, l->width);
        if (x->data) layer_read(l, x->data, layer_at(x, b, h, t) + from, n, sum);
        else memset(sum, 0, sizeof sum);
        for (int g = 0; g < l->heads; g++) {
            if (m[g] == 0) continue;
            layer_read(l, z->data, layer_at(z, b, g, t) + from, n, row);
            for (int i = 0; i < n; i++) sum[i] += m[g] * row[i];
        }
        layer_write(l, y->data, layer_at(y, b, h, t) + from, n, sum);
    }
}

/* Checks that channels form pairs, and that the heads fit into the arrays of the jobs. */
static loci_status check_states(const loci_layer *l)
{
    CHECK(l->error, l->width % 2 == 0, LOCI_BAD_ARG,
          "tape: the width %d of states must be even: they are pairs", l->width);
    CHECK(l->error, l->heads <= MAX_STATE_HEADS, LOCI_BAD_ARG, "tape: heads %d must be at most %d",
          l->heads, MAX_STATE_HEADS);
    return LOCI_OK;
}
static loci_status needed(const loci_layer *l, const void *p, const char *name)
{
    CHECK(l->error, p, LOCI_BAD_ARG, "%s must not be NULL", name);
    return LOCI_OK;
}

/* How many work items of `of` tokens there are. */
static ptrdiff_t items(const loci_layer *l, int of) { return (l->batch * l->rows + of - 1) / of; }
/* Runs job(s, i) for i = 0 .. n - 1.  loci_layer_run() counts heads of a layer, so items are passed
 * as heads. */
static loci_status run(const struct states *s, ptrdiff_t n, void (*job)(void *, int))
{
    loci_layer l = *s->layer;
    CHECK(l.error, n <= INT32_MAX, LOCI_BAD_ARG, "batch %td and rows %td are too large together",
          l.batch, l.rows);
    l.heads = (int)n;
    return n ? loci_layer_run(&l, job, (void *)s) : LOCI_OK;
}

/* ---- Start ----------------------------------------------------------------------------------- */

/* The states of some tokens: cos and sin of rope's angles, the same for all heads.  Frequencies are
 * computed once per item. */
static void start_job(void *arg, int index)
{
    const struct states *s = arg;
    const loci_layer *l = s->layer;
    const ptrdiff_t first = (ptrdiff_t)index * STARTS, all = l->batch * l->rows;
    for (int from = 0; from < l->width; from += PIECE) {
        const int n = layer_piece(from, l->width);
        struct dd w[PIECE / 2];
        double pairs[PIECE];
        /* Channel 2t has the frequency base^(-2t/D) / factor, to 106 bits. */
        for (int k = 0; k < n; k += 2) {
            loci_pow_dd(s->base, from + k, l->width, &w[k / 2].hi, &w[k / 2].lo);
            if (s->factor != 1) w[k / 2] = dd_div(w[k / 2], s->factor);
        }
        for (ptrdiff_t i = first; i < all && i < first + STARTS; i++) {
            const ptrdiff_t b = i / l->rows, t = i % l->rows;
            const int64_t pos = s->pos ? s->pos[s->per_batch ? i : t] : t;
            for (int k = 0; k < n; k += 2)
                loci_sincos((double)pos, w[k / 2].hi, w[k / 2].lo, &pairs[k], &pairs[k + 1]);
            for (int h = 0; h < l->heads; h++)
                layer_write(l, s->e.data, layer_at(&s->e, b, h, t) + from, n, pairs);
        }
    }
}
loci_status loci_tape_start(const loci_layer *given, double base, double factor, const int64_t *pos,
                            int per_batch, loci_view e)
{
    loci_layer layer, *const l = &layer;
    TRY(loci_layer_open(l, given));
    const struct layer_view views[] = { { "e", &e, l->width, LAYER_OUTPUT, 0 } };
    /* Without pos the rows are at 0, 1, 2, ... */
    const ptrdiff_t count = pos ? (per_batch ? l->batch : 1) * l->rows : 0;
    const struct layer_list lists[] = { { "pos", pos, count, READ, LIST_INT64 } };
    struct states s = {
        .layer = l,
        .e = e,
        .base = base == 0 ? 10000 : base,
        .factor = factor == 0 ? 1 : factor,
        .pos = pos,
        .per_batch = per_batch != 0,
    };
    TRY(loci_layer_check(l, views, COUNT(views), lists, COUNT(lists)));
    TRY(check_states(l));
    CHECK(l->error, s.base >= 1 && s.base <= 1e18, LOCI_BAD_ARG,
          "tape: base %g must be from 1 to 1e18", s.base);
    CHECK(l->error, s.factor >= 1e-6 && s.factor <= 1e18, LOCI_BAD_ARG,
          "tape: factor %g must be from 1e-6 to 1e18", s.factor);
    TRY(loci_check_near(pos, count, "pos", l->error));
    s.e = e; /* its strides are explicit now */
    return run(&s, items(l, STARTS), start_job);
}

/* ---- After attention ------------------------------------------------------------------------- */

/* m[g]: the weight of head g's average in head h.  With `back`, the weight of head h's average in
 * head g, which is the adjoint.  With row sums a head uses only its own average. */
static void shares(const struct states *s, int h, bool back, double *m)
{
    const int H = s->layer->heads;
    /* One weight, in the dtype of the layer. */
    double one;
    memset(m, 0, (size_t)H * sizeof *m);
    for (int g = 0; g < H; g++) {
        layer_read(s->layer, s->w, s->full && back ? (ptrdiff_t)g * H + h : (ptrdiff_t)h * H + g, 1,
                   &one);
        m[s->full ? g : h] += one;
    }
}
static void attention_head(void *arg, int h)
{
    const struct states *s = arg;
    double m[MAX_STATE_HEADS];
    shares(s, h, false, m);
    for (ptrdiff_t b = 0; b < s->layer->batch; b++)
        for (ptrdiff_t t = 0; t < s->layer->rows; t++) blend(s, &s->e, &s->ae, m, &s->y, h, b, t);
}
/* Checks that the forward and the backward update share. */
static loci_status check_mix(const loci_layer *l, loci_tape_mix mix, const void *w)
{
    TRY(check_states(l));
    CHECK(l->error, mix == LOCI_TAPE_ROWSUM || mix == LOCI_TAPE_FULL, LOCI_BAD_ARG,
          "tape: mix %d must be LOCI_TAPE_ROWSUM or LOCI_TAPE_FULL", (int)mix);
    return needed(l, w, "w");
}
loci_status loci_tape_attention_update(const loci_layer *given, loci_tape_mix mix, loci_view e,
                                       loci_view ae, const void *w, loci_view y)
{
    loci_layer layer, *const l = &layer;
    TRY(loci_layer_open(l, given));
    const struct layer_view views[] = { { "e", &e, l->width, LAYER_INPUT, 0 },
                                        { "ae", &ae, l->width, LAYER_SAVED, 0 },
                                        { "y", &y, l->width, LAYER_OUTPUT, 0 } };
    const struct layer_list lists[] = { { "w", w, (ptrdiff_t)l->heads * l->heads, READ,
                                          LIST_REAL } };
    TRY(loci_layer_check(l, views, COUNT(views), lists, COUNT(lists)));
    TRY(check_mix(l, mix, w));
    struct states s = {
        .layer = l, .e = e, .ae = ae, .y = y, .w = w, .full = mix == LOCI_TAPE_FULL
    };
    return loci_layer_run(l, attention_head, &s);
}

/* dae_g = sum over h of w[h][g] dy_h, dw[h][g] = sum over rows of dy_h.ae_g.  With row sums every
 * weight of a row has the gradient of its sum, dy_h.ae_h. */
static void attention_back(void *arg, int h)
{
    const struct states *s = arg;
    const loci_layer *l = s->layer;
    const loci_view none = { 0 };
    double m[MAX_STATE_HEADS], dw[MAX_STATE_HEADS] = { 0 };
    shares(s, h, true, m);
    for (ptrdiff_t b = 0; b < l->batch; b++)
        for (ptrdiff_t t = 0; t < l->rows; t++) {
            /* dae of head h mixes the dy of all heads that used its average. */
            if (s->dae.data) blend(s, &none, &s->dy, m, &s->dae, h, b, t);
            for (int g = 0; g < l->heads && s->dw; g++)
                if (s->full || g == h) dw[g] += dot_rows(s, &s->dy, h, &s->ae, g, b, t);
        }
    for (int g = 0; g < l->heads && s->dw; g++)
        layer_write(l, s->dw, (ptrdiff_t)h * l->heads + g, 1, &dw[s->full ? g : h]);
}
loci_status loci_tape_attention_update_backward(const loci_layer *given, loci_tape_mix mix,
                                                loci_view ae, const void *w, loci_view dy,
                                                loci_view dae, void *dw)
{
    loci_layer layer, *const l = &layer;
    TRY(loci_layer_open(l, given));
    const struct layer_view views[] = { { "ae", &ae, l->width, LAYER_INPUT, 0 },
                                        { "dy", &dy, l->width, LAYER_INPUT, 0 },
                                        { "dae", &dae, l->width, LAYER_GRADIENT, 0 } };
    const struct layer_list lists[] = { { "w", w, (ptrdiff_t)l->heads * l->heads, READ, LIST_REAL },
                                        { "dw", dw, (ptrdiff_t)l->heads * l->heads, WRITTEN,
                                          LIST_REAL } };
    TRY(loci_layer_check(l, views, COUNT(views), lists, COUNT(lists)));
    TRY(check_mix(l, mix, w));
    struct states s = {
        .layer = l, .ae = ae, .dy = dy, .dae = dae, .w = w, .dw = dw, .full = mix == LOCI_TAPE_FULL
    };
    return loci_layer_run(l, attention_back, &s);
}

/* ---- After the MLP --------------------------------------------------------------------------- */

/* silu(x) = x sigmoid(x) of n gates of a token.  If `slope` is given, also the derivative,
 * sigmoid(x) (1 + x sigmoid(-x)). */
static void read_gates(const struct states *s, ptrdiff_t b, ptrdiff_t t, int from, int n,
                       double *silu, double *slope)
{
    double x[UNITS];
    for (int at = 0; at < n; at += UNITS) {
        const int k = n - at < UNITS ? n - at : UNITS;
        layer_read(s->layer, s->gates.data, layer_at(&s->gates, b, 0, t) + from + at, k, x);
        for (int i = 0; i < k; i++) {
            /* silu' = sigmoid + x sigmoid (1 - sigmoid), and 1 - sigmoid(x) = sigmoid(-x). */
            const double sigmoid = layer_sigmoid(x[i]);
            silu[at + i] = x[i] * sigmoid;
            if (slope) slope[at + i] = sigmoid * (1 + x[i] * layer_sigmoid(-x[i]));
        }
    }
}
/* Row h of a token's matrix, m[h][0 .. H - 1].  With `back` its column h, because the adjoint
 * multiplies by the transpose.  Units are processed a few at a time, so that weights of any dtype
 * become doubles on the stack. */
static void matrix_row(const struct states *s, const double *silu, int h, bool back, double *m)
{
    const loci_layer *l = s->layer;
    const int H = l->heads, P = s->units;
    double weight[UNITS], row[MAX_STATE_HEADS];
    memset(m, 0, (size_t)H * sizeof *m);
    for (int from = 0; from < P; from += UNITS) {
        const int n = P - from < UNITS ? P - from : UNITS;
        /* weight[p] = down[h][p] silu_p, or with `back` up[p][h] silu_p.  Then multiplied by the
         * other matrix. */
        if (!back) layer_read(l, s->down, (ptrdiff_t)h * P + from, n, weight);
        for (int p = 0; p < n; p++) {
            if (back) layer_read(l, s->up, (ptrdiff_t)(from + p) * H + h, 1, &weight[p]);
            weight[p] *= silu[from + p];
        }
        for (int p = 0; p < n && !back; p++) {
            layer_read(l, s->up, (ptrdiff_t)(from + p) * H, H, row);
            for (int g = 0; g < H; g++) m[g] += weight[p] * row[g];
        }
        for (int g = 0; g < H && back; g++) {
            layer_read(l, s->down, (ptrdiff_t)g * P + from, n, row);
            m[g] += layer_dot(weight, row, n);
        }
    }
}
/* y_h = e_h + sum over g of m[h][g] e_g for some tokens, or its adjoint, which has the same form
 * with dy and the transposed matrix. */
static void mlp_tokens(const struct states *s, int index, bool back)
{
    const loci_layer *l = s->layer;
    const ptrdiff_t first = (ptrdiff_t)index * TOKENS, all = l->batch * l->rows;
    double silu[MAX_UNITS], m[MAX_STATE_HEADS];
    for (ptrdiff_t i = first; i < all && i < first + TOKENS; i++) {
        const ptrdiff_t b = i / l->rows, t = i % l->rows;
        read_gates(s, b, t, 0, s->units, silu, NULL);
        for (int h = 0; h < l->heads; h++) {
            matrix_row(s, silu, h, back, m);
            if (back) blend(s, &s->dy, &s->dy, m, &s->de, h, b, t);
            else blend(s, &s->e, &s->e, m, &s->y, h, b, t);
        }
    }
}
static void mlp_job(void *arg, int index) { mlp_tokens(arg, index, false); }
static void mlp_back(void *arg, int index) { mlp_tokens(arg, index, true); }

/* Checks that forward and backward share.  Sizes come before pointers, because they define how
 * large the arrays must be. */
static loci_status check_mlp(const loci_layer *l, int units, const void *up, const void *down)
{
    TRY(check_states(l));
    CHECK(l->error, units >= 1 && units <= MAX_UNITS, LOCI_BAD_ARG,
          "tape: units %d must be from 1 to %d", units, MAX_UNITS);
    TRY(needed(l, up, "up"));
    return needed(l, down, "down");
}
loci_status loci_tape_mlp_update(const loci_layer *given, int units, loci_view e, loci_view gates,
                                 const void *up, const void *down, loci_view y)
{
    loci_layer layer, *const l = &layer;
    TRY(loci_layer_open(l, given));
    TRY(check_mlp(l, units, up, down));
    const ptrdiff_t weights = (ptrdiff_t)units * l->heads;
    const struct layer_view views[] = {
        /* every head of y reads all heads of e */
        { "e", &e, l->width, LAYER_SAVED, 0 },
        { "gates", &gates, units, LAYER_INPUT, 1 },
        { "y", &y, l->width, LAYER_OUTPUT, 0 },
    };
    const struct layer_list lists[] = { { "up", up, weights, READ, LIST_REAL },
                                        { "down", down, weights, READ, LIST_REAL } };
    TRY(loci_layer_check(l, views, COUNT(views), lists, COUNT(lists)));
    struct states s = {
        .layer = l, .e = e, .gates = gates, .y = y, .up = up, .down = down, .units = units
    };
    return run(&s, items(l, TOKENS), mlp_job);
}

/* Gradients of the weights and gates of some units, summed over all tokens in order.  One item owns
 * them, so no other item adds to them.  `a` belongs to one token.  With many heads an item has
 * fewer units, because all this is on the stack. */
enum { OWNED = 4 * MAX_STATE_HEADS }; /* weights of an item */
struct learning {
    int first, count;
    double dup[OWNED], ddown[OWNED], a[OWNED]; /* [count][H], [H][count], [count][H] */
};
static int units_of_item(int heads) { return OWNED / heads < UNITS ? OWNED / heads : UNITS; }

/* Adds one token.  Each n[h][g] = dy_h.e_g is computed once per item and used for all its units. */
static void learn_token(const struct states *s, struct learning *u, ptrdiff_t b, ptrdiff_t t)
{
    const int H = s->layer->heads, P = s->units;
    double silu[UNITS], slope[UNITS], n[MAX_STATE_HEADS], up[MAX_STATE_HEADS], dgates[UNITS], down;
    read_gates(s, b, t, u->first, u->count, silu, slope);
    memset(u->a, 0, (size_t)(u->count * H) * sizeof *u->a);
    for (int h = 0; h < H; h++) {
        for (int g = 0; g < H; g++) n[g] = dot_rows(s, &s->dy, h, &s->e, g, b, t);
        for (int p = 0; p < u->count; p++) {
            layer_read(s->layer, s->down, (ptrdiff_t)h * P + u->first + p, 1, &down);
            layer_read(s->layer, s->up, (ptrdiff_t)(u->first + p) * H, H, up);
            for (int g = 0; g < H; g++) u->a[p * H + g] += down * n[g];
            /* ddown by n_h.up_p, while n of this head is available. */
            u->ddown[h * u->count + p] += silu[p] * layer_dot(n, up, H);
        }
    }
    /* a[p][g] is complete now.  The gradients of up and of the gates follow from it. */
    for (int p = 0; p < u->count; p++) {
        layer_read(s->layer, s->up, (ptrdiff_t)(u->first + p) * H, H, up);
        for (int g = 0; g < H; g++) u->dup[p * H + g] += silu[p] * u->a[p * H + g];
        dgates[p] = slope[p] * layer_dot(&u->a[p * H], up, H);
    }
    if (s->dgates.data)
        layer_write(s->layer, s->dgates.data, layer_at(&s->dgates, b, 0, t) + u->first, u->count,
                    dgates);
}
/* Sums first, then writes the gradient of each weight once. */
static void learn_job(void *arg, int index)
{
    const struct states *s = arg;
    const loci_layer *l = s->layer;
    const int most = units_of_item(l->heads), first = index * most, left = s->units - first;
    struct learning u = { .first = first, .count = left < most ? left : most };
    for (ptrdiff_t b = 0; b < l->batch; b++)
        for (ptrdiff_t t = 0; t < l->rows; t++) learn_token(s, &u, b, t);
    for (int p = 0; p < u.count && s->dup; p++)
        layer_write(l, s->dup, (ptrdiff_t)(u.first + p) * l->heads, l->heads, &u.dup[p * l->heads]);
    for (int h = 0; h < l->heads && s->ddown; h++)
        layer_write(l, s->ddown, (ptrdiff_t)h * s->units + u.first, u.count, &u.ddown[h * u.count]);
}
loci_status loci_tape_mlp_update_backward(const loci_layer *given, int units, loci_view e,
                                          loci_view gates, const void *up, const void *down,
                                          loci_view dy, loci_view de, loci_view dgates, void *dup,
                                          void *ddown)
{
    loci_layer layer, *const l = &layer;
    TRY(loci_layer_open(l, given));
    TRY(check_mlp(l, units, up, down));
    const ptrdiff_t weights = (ptrdiff_t)units * l->heads;
    const struct layer_view views[] = {
        { "e", &e, l->width, LAYER_INPUT, 0 },           { "gates", &gates, units, LAYER_INPUT, 1 },
        { "dy", &dy, l->width, LAYER_INPUT, 0 },         { "de", &de, l->width, LAYER_GRADIENT, 0 },
        { "dgates", &dgates, units, LAYER_GRADIENT, 1 },
    };
    const struct layer_list lists[] = { { "up", up, weights, READ, LIST_REAL },
                                        { "down", down, weights, READ, LIST_REAL },
                                        { "dup", dup, weights, WRITTEN, LIST_REAL },
                                        { "ddown", ddown, weights, WRITTEN, LIST_REAL } };
    TRY(loci_layer_check(l, views, COUNT(views), lists, COUNT(lists)));
    struct states s = { .layer = l,
                        .e = e,
                        .gates = gates,
                        .dy = dy,
                        .de = de,
                        .dgates = dgates,
                        .up = up,
                        .down = down,
                        .dup = dup,
                        .ddown = ddown,
                        .units = units };
    /* Two passes: items of the first are tokens with their states, items of the second are units
     * with their weights. */
    if (de.data) TRY(run(&s, items(l, TOKENS), mlp_back));
    const int most = units_of_item(l->heads);
    return dgates.data || dup || ddown ? run(&s, (units + most - 1) / most, learn_job) : LOCI_OK;
}
