/* SPDX-License-Identifier: MIT */
/* temperature.c -- queries that grow with their positions, in loci/layers.h.
 *
 *     y = x (1 + beta log(1 + floor((pos + from) / length)))
 *
 * The factor is 1 up to `length`.  Beyond, it makes the softmax sharper, which would otherwise
 * flatten over so many keys.  It is the factor of Llama 4 (from 1), Ministral 3 and Mistral 4
 * (from 0). */
#include "layers/layer.h"
#include "math/log.h"

struct scaled_rows {
    const loci_layer *layer;
    double beta, length;
    int from, per_batch;
    const int64_t *pos;
    loci_view x, y;
};

/* The factor of a row, the same for all heads. */
static double factor(const struct scaled_rows *a, ptrdiff_t b, ptrdiff_t t)
{
    const int64_t pos = a->pos ? a->pos[(a->per_batch ? b * a->layer->rows : 0) + t] : t;
    return 1 + a->beta * plain_log(1 + floor((double)(pos + a->from) / a->length));
}
static void temperature_head(void *arg, int h)
{
    const struct scaled_rows *a = arg;
    const loci_layer *l = a->layer;
    double x[PIECE];
    for (ptrdiff_t b = 0; b < l->batch; b++)
        for (ptrdiff_t t = 0; t < l->rows; t++) {
            const double f = factor(a, b, t);
            /* Each piece is read, multiplied and written before the next, so y may be x. */
            for (int from = 0; from < l->width; from += PIECE) {
                const int n = layer_piece(from, l->width);
                layer_read(l, a->x.data, layer_at(&a->x, b, h, t) + from, n, x);
                for (int i = 0; i < n; i++) x[i] *= f;
                layer_write(l, a->y.data, layer_at(&a->y, b, h, t) + from, n, x);
            }
        }
}
loci_status loci_temperature(const loci_layer *given, double beta, double length, int from,
                             const int64_t *pos, int per_batch, loci_view x, loci_view y)
{
    loci_layer layer, *const l = &layer;
    TRY(loci_layer_open(l, given));
    const struct layer_view views[] = { { "x", &x, l->width, LAYER_INPUT, 0 },
                                        { "y", &y, l->width, LAYER_OUTPUT, 0 } };
    const ptrdiff_t count = pos ? (per_batch ? l->batch : 1) * l->rows : 0;
    const struct layer_list lists[] = { { "pos", pos, count, READ, LIST_INT64 } };
    TRY(loci_layer_check(l, views, COUNT(views), lists, COUNT(lists)));
    CHECK(l->error, isfinite(beta), LOCI_BAD_ARG, "temperature: beta %g must be a finite number",
          beta);
    CHECK(l->error, length > 0 && isfinite(length), LOCI_BAD_ARG,
          "temperature: length %g must be a finite number above 0", length);
    CHECK(l->error, from == 0 || from == 1, LOCI_BAD_ARG, "temperature: from %d must be 0 or 1",
          from);
    /* Negative positions would take the logarithm of 0 or less. */
    for (ptrdiff_t i = 0; i < count; i++)
        CHECK(l->error, pos[i] >= 0 && pos[i] <= FAR, LOCI_BAD_ARG,
              "temperature: position %lld must be from 0 to 2^40", (long long)pos[i]);
    struct scaled_rows a = {
        .layer = l,
        .beta = beta,
        .length = length,
        .from = from,
        .per_batch = per_batch,
        .pos = pos,
        .x = x,
        .y = y,
    };
    return loci_layer_run(l, temperature_head, &a);
}
