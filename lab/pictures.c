/* SPDX-License-Identifier: MIT */
/* pictures.c -- see pictures.h. */
#include "lab/pictures.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lab/store.h"
#include "lab/train.h"
#include "show/show.h"

/* ---- Figures --------------------------------------------------------------------------------- */

static struct figure *add_figure(struct report_pictures *p)
{
    if (p->count % 16 == 0) {
        struct figure *more = draw_alloc((size_t)p->count + 16, sizeof *more);
        if (p->count) memcpy(more, p->list, (size_t)p->count * sizeof *more);
        free(p->list);
        p->list = more;
    }
    return &p->list[p->count++];
}

/* ---- By distance ----------------------------------------------------------------------------- */

/* A layer's tensors under the names that `loci show` uses: "t5.table". */
static int given_tensors(struct lab_model *m, int layer, struct given *given, char (*name)[96])
{
    const struct lab_tensor *t;
    const loci_tensor *own;
    const int n = lab_model_tensors(m, &t), count = lab_model_encoding(m, &own);
    const float *w = lab_model_list(m, LAB_WEIGHTS);
    int found = 0;
    for (int i = 0; i < count; i++) {
        char full[96], both[96];
        snprintf(full, sizeof full, "layers.%d.pe.%.32s", layer, own[i].name);
        snprintf(both, sizeof both, "layers.%d.pe.%.16s.%.32s", layer, own[i].encoding,
                 own[i].name);
        for (int k = 0; k < n; k++) {
            if (strcmp(t[k].name, full) != 0 && strcmp(t[k].name, both) != 0) continue;
            double *x = draw_alloc((size_t)t[k].cols, sizeof *x);
            for (ptrdiff_t c = 0; c < t[k].cols; c++) x[c] = (double)w[t[k].at + c];
            snprintf(name[found], 96, "%.32s.%.32s", own[i].encoding, own[i].name);
            given[found] = (struct given){ .name = name[found], .rank = t[k].rank, .data = x };
            memcpy(given[found++].shape, t[k].shape, sizeof t[k].shape);
            break;
        }
    }
    return found;
}

/* Biases of the last layer by distance, up to 4 times the trained length. */
static void add_curve(struct report_pictures *p, const struct lab_config *c, struct lab_model *m)
{
    enum { MOST = 16 };
    const struct lab_shape *s = lab_model_shape(m);
    struct given given[MOST];
    char name[MOST][96];
    struct show *show;
    loci_error e;
    const int layer = s->layers - 1, count = given_tensors(m, layer, given, name);
    const struct wish w = {
        .encoding = lab_model_arm(m)->attention,
        .heads = s->heads,
        .dim = s->dim / s->heads,
        .len = 4 * s->length < 1024 ? 4 * s->length : 1024,
        .trained = s->length,
        .given_count = count,
        .given = given,
    };
    if (count && !show_open(&show, &w, &e)) {
        struct figure list[MAX_FIGURES];
        int figures = 0;
        if (show_has(show) & 1u << SHOW_CURVE
            && !show_figures(show, SHOW_CURVE, list, &figures, &e))
            for (int i = 0; i < figures; i++) {
                snprintf(list[i].title, sizeof list[i].title,
                         "%.60s after %d steps of %s, layer %d, by distance", c->arm, c->steps,
                         c->task, layer + 1);
                *add_figure(p) = list[i];
            }
        show_close(show);
    }
    for (int i = 0; i < count; i++) free((double *)(uintptr_t)given[i].data);
}

/* ---- Maps ------------------------------------------------------------------------------------ */

struct looked {
    double *weights, *gates;
    ptrdiff_t n;
}; /* mean over heads [n][n]; [heads][n] */

/* Runs a sequence of n tokens, from the task's first column of that length. */
static bool look(const struct lab_config *c, struct lab_model *m, int layer,
                 const struct lab_column *column, struct looked *to)
{
    struct lab_batch b = { .sequences = 0 };
    const int H = lab_model_shape(m)->heads;
    lab_test_batch(c, m, column, 0, 1, &b);
    to->n = b.rows;
    to->weights = draw_alloc((size_t)(b.rows * b.rows), sizeof *to->weights);
    to->gates = draw_alloc((size_t)(H * b.rows), sizeof *to->gates);
    float *all = draw_alloc((size_t)(H * b.rows * b.rows), sizeof *all);
    const bool fine = !lab_model_forward(m, &b, false, NULL, NULL, NULL)
                   && !lab_model_attention(m, &b, layer, all, NULL);
    for (ptrdiff_t i = 0; i < b.rows * b.rows && fine; i++)
        for (int h = 0; h < H; h++) to->weights[i] += (double)all[h * b.rows * b.rows + i] / H;
    if (fine) lab_model_gates(m, &b, layer, to->gates);
    free(all);
    lab_batch_free(&b);
    return fine;
}
static void free_looked(struct looked *l)
{
    free(l->weights);
    free(l->gates);
}

/* By square roots, so that small weights of long rows are visible. */
static void add_map(struct report_pictures *p, const struct lab_config *c,
                    const struct lab_column *column, int layer, const struct looked *l)
{
    struct figure *f = add_figure(p);
    *f = (struct figure){ .kind = FIGURE_HEAT,
                          .what = "attention",
                          .x.label = "key",
                          .y.label = "row",
                          .scale.label = "square root of the weight" };
    figure_heat(f, l->n, l->n);
    snprintf(f->title, sizeof f->title, "%.60s on %s, %s: attention of layer %d", c->arm, c->task,
             column->name, layer + 1);
    snprintf(f->about, sizeof f->about,
             "Mean over heads, of one sequence of %td tokens that every arm is shown.", l->n);
    for (ptrdiff_t i = 0; i < l->n; i++)
        for (ptrdiff_t j = 0; j < l->n; j++)
            f->z[i * l->n + j] =
                j <= i ? sqrt(l->weights[i * l->n + j] > 0 ? l->weights[i * l->n + j] : 0) : NAN;
}

static void add_gates(struct report_pictures *p, const struct lab_config *c, struct lab_model *m,
                      const struct lab_column *column, int layer, const struct looked *l)
{
    const enum lab_gates kind = lab_model_has_gates(m);
    const int H = lab_model_shape(m)->heads, lines = H < MAX_LINES ? H : MAX_LINES;
    if (kind == LAB_NO_GATES) return;
    struct figure *f = add_figure(p);
    *f = (struct figure){
        .kind = FIGURE_LINES, .what = "gates", .x.label = "token", .y = { .low = 0, .high = 1 }
    };
    snprintf(f->y.label, sizeof f->y.label, "%s",
             kind == LAB_FORGET ? "forget gate" : "remaining stick");
    figure_lines(f, l->n, lines);
    snprintf(f->title, sizeof f->title, "%.60s on %s, %s: %s of layer %d", c->arm, c->task,
             column->name, kind == LAB_FORGET ? "forget gates" : "what is left of the stick",
             layer + 1);
    snprintf(
        f->about, sizeof f->about,
        kind == LAB_FORGET
            ? "1 keeps all that was before, 0 forgets it; by head, along one sequence."
            : "The part of each row's stick that no key has taken; by head, along one sequence.");
    for (ptrdiff_t i = 0; i < l->n; i++) f->at[i] = (double)i;
    for (int h = 0; h < lines; h++) {
        snprintf(f->line[h].name, sizeof f->line[h].name, "head %d", h + 1);
        memcpy(f->line[h].y, l->gates + h * l->n, (size_t)l->n * sizeof(double));
    }
}

/* ---- Mean distances -------------------------------------------------------------------------- */

/* The mean distance that rows look back, and the effective number of keys: e to the entropy. */
static void measure(const struct looked *l, double *distance, double *keys)
{
    double far = 0, spread = 0;
    for (ptrdiff_t i = l->n / 2; i < l->n; i++) {
        double sum = 0, d = 0, h = 0;
        for (ptrdiff_t j = 0; j <= i; j++) {
            const double w = l->weights[i * l->n + j];
            sum += w;
            d += w * (double)(i - j);
            h -= w > 0 ? w * log(w) : 0;
        }
        if (sum > 0) {
            far += d / sum;
            spread += exp(h / sum + log(sum));
        }
    }
    *distance = far / (double)(l->n - l->n / 2);
    *keys = spread / (double)(l->n - l->n / 2);
}

/* ---- All of them ----------------------------------------------------------------------------- */

static const struct lab_column *column_of(const struct lab_column *list, int n, double times)
{
    for (int i = 0; i < n; i++)
        if (list[i].times == times) return &list[i];
    return NULL;
}

static bool is_chief(const char *arm)
{
    const struct lab_known *known;
    for (int i = 0, n = lab_known_arms(&known); i < n; i++)
        if (known[i].chief && !strcmp(known[i].text, arm)) return true;
    return false;
}

struct spread {
    char arm[LAB_ARM];
    double distance[2], keys[2];
};

static void add_spreads(struct report_pictures *p, const char *task, const struct spread *list,
                        int n)
{
    if (n == 0) return;
    struct figure *f = add_figure(p);
    *f = (struct figure){ .kind = FIGURE_TABLE, .what = "spread" };
    figure_table(f, n + 1, 5);
    snprintf(f->title, sizeof f->title, "How far attention reaches on %s", task);
    snprintf(
        f->about, sizeof f->about,
        "Of the last layer, mean over heads and the second half of the rows of one sequence: the "
        "distance "
        "between a row and what it looks at, and over how many keys it spreads (e to the "
        "entropy).");
    static const char *const head[] = { "arm", "distance at L", "at 4L", "keys at L", "at 4L" };
    for (int i = 0; i < 5; i++) figure_cell(f, 0, i, "%s", head[i]);
    for (int i = 0; i < n; i++) {
        figure_cell(f, i + 1, 0, "%s", list[i].arm);
        for (int k = 0; k < 2; k++) {
            figure_cell(f, i + 1, 1 + k, "%.1f", list[i].distance[k]);
            figure_cell(f, i + 1, 3 + k, "%.1f", list[i].keys[k]);
        }
    }
}

static void of_run(struct report_pictures *p, const struct lab_config *c, struct lab_model *m,
                   struct spread *spread)
{
    const struct lab_problem problem = lab_config_problem(c);
    struct lab_column list[LAB_COLUMNS];
    const int n = problem.task->columns(&problem, list), layer = c->layers - 1;
    add_curve(p, c, m);
    snprintf(spread->arm, sizeof spread->arm, "%s", c->arm);
    for (int k = 0; k < 2; k++) {
        const struct lab_column *column = column_of(list, n, k ? 4 : 1);
        struct looked l;
        spread->distance[k] = spread->keys[k] = NAN;
        if (!column) continue;
        if (look(c, m, layer, column, &l)) {
            measure(&l, &spread->distance[k], &spread->keys[k]);
            if (is_chief(c->arm)) add_map(p, c, column, layer, &l);
            if (k == 1) add_gates(p, c, m, column, layer, &l);
        }
        free_looked(&l);
    }
}

void lab_pictures(struct report_pictures *p, const char *dir, const struct lab_results *all,
                  const struct lab_corpus *corpus)
{
    struct spread *spread = draw_alloc((size_t)all->count + 1, sizeof *spread);
    int spreads = 0;
    *p = (struct report_pictures){ .count = 0 };
    for (int i = 0; i < all->count; i++) {
        const struct lab_result *r = &all->list[i];
        struct lab_config c;
        struct lab_model *m;
        char folder[LAB_PATH];
        if (strcmp(r->task, all->list[0].task) || r->seed != all->list[0].seed) continue;
        if (lab_result_foreign(r)) continue;
        snprintf(folder, sizeof folder, "%.4000s/runs/%s", dir, r->id);
        loci_error e = { .text = "" };
        if (!lab_config_read(&c, folder, corpus, &e)) {
            const struct lab_shape s = lab_config_shape(&c);
            if (!lab_model_open(&m, &s, NULL, &e)) {
                if (!lab_weights_read(folder, m, &e)) of_run(p, &c, m, &spread[spreads++]);
                lab_model_close(m);
            }
        }
        if (e.text[0]) fprintf(stderr, "loci: %s: its pictures are left out: %s\n", folder, e.text);
    }
    if (spreads) add_spreads(p, all->list[0].task, spread, spreads);
    free(spread);
}
