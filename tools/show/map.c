/* SPDX-License-Identifier: MIT */
/* map.c -- two pictures of all pairs: the effect of the encoding on scores, and the attention
 * weights. */
#include <stdlib.h>
#include <string.h>

#include "show/subject.h"

/* Random tokens at 0, 1, 2, ... */
struct made {
    struct tokens t;
    double *q, *k, *v, *at;
};
static struct made make_tokens(const struct show *s, ptrdiff_t n)
{
    const ptrdiff_t count = n * s->heads * s->dim;
    struct made m = { .q = draw_alloc((size_t)count, sizeof(double)),
                      .k = draw_alloc((size_t)count, sizeof(double)),
                      .v = draw_alloc((size_t)count, sizeof(double)),
                      .at = draw_alloc((size_t)(n * s->axes), sizeof(double)) };
    show_normal(s, STREAM_Q, m.q, count);
    show_normal(s, STREAM_K, m.k, count);
    show_normal(s, STREAM_V, m.v, count);
    show_places(s, n, 0, m.at);
    m.t = (struct tokens){ .n = n, .q = m.q, .k = m.k, .v = m.v, .at = m.at };
    return m;
}
static void free_tokens(struct made *m)
{
    free(m->q);
    free(m->k);
    free(m->v);
    free(m->at);
}

/* ---- Map ------------------------------------------------------------------------------------- */

/* Uses queries and keys that are 0.  If the encoding then adds the same to all, uses random ones
 * and subtracts their plain product. */
loci_status show_map(struct show *s, struct figure *f, int *count, loci_error *e)
{
    const ptrdiff_t n = s->len, pairs = n * n;
    double *bias = draw_alloc((size_t)(n * s->heads), sizeof *bias);
    double *with = draw_alloc((size_t)(pairs * s->heads), sizeof *with);
    double *without = draw_alloc((size_t)(pairs * s->heads), sizeof *without);
    struct made m = make_tokens(s, n);
    bool nothing;
    loci_status status = show_bias(s, n, bias, &nothing, e);
    const struct tokens zero = { .n = n, .at = m.at };
    if (!status) status = show_scores(s, nothing ? &m.t : &zero, false, with, e);
    if (!status && nothing) status = show_scores(s, &m.t, true, without, e);
    figure_heat(f, n, n);
    for (ptrdiff_t i = 0; !status && i < pairs; i++) {
        const ptrdiff_t at = s->head * pairs + i;
        f->z[i] = with[at] - without[at];
    }
    snprintf(f->title, sizeof f->title, "%s: what it adds to a score, head %d of %d", s->name,
             s->head, s->heads);
    snprintf(f->about, sizeof f->about,
             "Row i is a query, column j a key, at positions 0 to %td. %s%s", n - 1,
             nothing ? "Queries and keys are random, and their plain product is taken away."
                     : "Queries and keys are 0, so position is all there is.",
             s->causal_only ? " Keys ahead of the query are not seen." : "");
    snprintf(f->x.label, sizeof f->x.label, "key j");
    snprintf(f->y.label, sizeof f->y.label, "query i");
    snprintf(f->scale.label, sizeof f->scale.label, "added to the score");
    *count = 1;
    free(bias);
    free(with);
    free(without);
    free_tokens(&m);
    return status;
}

/* ---- Attention ------------------------------------------------------------------------------- */

/* For the rows of one head: the mean weight per distance, the entropy, the mean distance. */
struct habit {
    double *share, entropy, distance, near;
};
static struct habit habit_of(const double *weights, ptrdiff_t n)
{
    struct habit h = { .share = draw_alloc((size_t)n, sizeof(double)) };
    for (ptrdiff_t i = 0; i < n; i++)
        for (ptrdiff_t j = 0; j <= i; j++) {
            const double w = weights[i * n + j];
            h.share[i - j] += w / (double)(n - (i - j));
            if (w > 0) h.entropy -= w * log(w) / (double)n;
            h.distance += w * (double)(i - j) / (double)n;
            if (i - j < 8) h.near += w / (double)n;
        }
    return h;
}

static void habit_table(struct figure *f, const struct show *s, const struct habit *with,
                        const struct habit *without)
{
    figure_table(f, 4, 3);
    snprintf(f->title, sizeof f->title, "%s: what attention looks at", s->name);
    snprintf(f->about, sizeof f->about, "Means over %td causal rows of random tokens, head %d.",
             s->len, s->head);
    const struct {
        const char *name;
        double with, without;
    } rows[] = {
        { "entropy, nats", with->entropy, without->entropy },
        { "mean distance", with->distance, without->distance },
        { "share of the nearest 8", with->near, without->near },
    };
    figure_cell(f, 0, 0, "measure");
    figure_cell(f, 0, 1, "with it");
    figure_cell(f, 0, 2, "without");
    for (int i = 0; i < 3; i++) {
        figure_cell(f, i + 1, 0, "%s", rows[i].name);
        figure_cell(f, i + 1, 1, "%.4g", rows[i].with);
        figure_cell(f, i + 1, 2, "%.4g", rows[i].without);
    }
}

/* The remainder of each row for a stick, or the gate of each key. */
static bool extra_line(struct figure *f, struct show *s, const double *rem)
{
    const ptrdiff_t n = s->len;
    double *gate = NULL;
    for (int i = 0; i < s->tensors; i++)
        if (!s->data[i] && !strncmp(s->tensor[i].name, "log_", 4))
            gate = draw_alloc((size_t)(s->heads * n), sizeof *gate);
    if (!gate && !s->remainder) return false;
    if (gate) show_gates(s, gate, s->heads * n);
    figure_lines(f, n, 1);
    for (ptrdiff_t i = 0; i < n; i++) {
        f->at[i] = (double)i;
        f->line[0].y[i] = gate ? exp(gate[s->head * n + i]) : rem[s->head * n + i];
    }
    free(gate);
    snprintf(f->title, sizeof f->title, "%s: %s", s->name,
             gate ? "the gates of the keys" : "what is left of the stick");
    snprintf(f->about, sizeof f->about, "%s",
             gate ? "A gate of 1 forgets nothing; what lies before a key is multiplied by its gate."
                  : "The share of a row that no key got, by random tokens.");
    snprintf(f->x.label, sizeof f->x.label, gate ? "key" : "query");
    snprintf(f->y.label, sizeof f->y.label, gate ? "gate" : "remainder");
    f->y.low = 0;
    f->y.high = 1;
    return true;
}

loci_status show_attention(struct show *s, struct figure *f, int *count, loci_error *e)
{
    const ptrdiff_t n = s->len, pairs = n * n;
    double *with = draw_alloc((size_t)(pairs * s->heads), sizeof *with);
    double *without = draw_alloc((size_t)(pairs * s->heads), sizeof *without);
    double *rem = draw_alloc((size_t)(n * s->heads), sizeof *rem);
    struct made m = make_tokens(s, n);
    loci_status status = show_weights(s, &m.t, false, with, rem, e);
    if (!status) status = show_weights(s, &m.t, true, without, NULL, e);
    free_tokens(&m);
    if (!status) {
        const double *mine = with + s->head * pairs, *plain = without + s->head * pairs;
        figure_heat(&f[0], n, n);
        for (ptrdiff_t i = 0; i < n; i++)
            for (ptrdiff_t j = 0; j < n; j++) f[0].z[i * n + j] = j <= i ? mine[i * n + j] : NAN;
        snprintf(f[0].title, sizeof f[0].title, "%s: what rows give to keys, head %d of %d",
                 s->name, s->head, s->heads);
        snprintf(f[0].about, sizeof f[0].about,
                 "Causal attention over random queries and keys, N(0, 1), of width %d. A row sums "
                 "up to 1%s.",
                 s->dim, s->remainder || s->sinks ? " at most" : "");
        snprintf(f[0].x.label, sizeof f[0].x.label, "key j");
        snprintf(f[0].y.label, sizeof f[0].y.label, "query i");
        snprintf(f[0].scale.label, sizeof f[0].scale.label, "weight");

        const struct habit a = habit_of(mine, n), b = habit_of(plain, n);
        figure_lines(&f[1], n, 2);
        for (ptrdiff_t d = 0; d < n; d++) {
            f[1].at[d] = (double)d;
            f[1].line[0].y[d] = a.share[d];
            f[1].line[1].y[d] = b.share[d];
        }
        snprintf(f[1].line[0].name, FIGURE_NAME, "with it");
        snprintf(f[1].line[1].name, FIGURE_NAME, "without");
        snprintf(f[1].title, sizeof f[1].title, "%s: how much each distance gets", s->name);
        snprintf(f[1].about, sizeof f[1].about,
                 "The mean weight of keys so far behind, over the rows that have one, with the "
                 "encoding and without any, on the same tokens.");
        snprintf(f[1].x.label, sizeof f[1].x.label, "distance i - j");
        snprintf(f[1].y.label, sizeof f[1].y.label, "mean weight");
        habit_table(&f[2], s, &a, &b);
        free(a.share);
        free(b.share);
        *count = 3 + extra_line(&f[3], s, rem);
    }
    free(with);
    free(without);
    free(rem);
    return status;
}
