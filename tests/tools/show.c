/* SPDX-License-Identifier: MIT */
/* show.c -- figures contain the numbers of the float64 reference: maps, weights, rotated vectors,
 * rows of embeddings, and quantities derived from them.  Drawings are complete. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "reference/reference.h"
#include "show/example.h"
#include "show/properties.h"
#include "show/subject.h"

/* with LOCI_SLOW, a few of each kind */
static const char *const compositions[] = {
    "alibi+cape", "rope:pairing=half+fox",        "rope:pairing=half+t5:bidirectional=0",
    "alibi+sink", "softcap:cap=2+alibi",          "alibi+softcap:cap=2",
    "fox+cope",   "rope:pairing=interleaved+sba", "rope:pairing=half+xl"
};
/* value_dim is dim, and a value identifies its key, so there are at most that many tokens. */
enum { HEADS = 3, DIM = 24, LEN = 20 };
static const double bound = 1e-9; /* scores come from logarithms of weights of up to e^-20 */

/* ---- The reference --------------------------------------------------------------------------- */

struct truth {
    double *q, *k, *at, *weights, *lse, *rem;
};

/* INPUT tensors as the figures have them: gates, states of the first layer. */
static double *input_of(const struct show *s, const loci_tensor *t)
{
    ptrdiff_t n = 1;
    for (int i = 0; i < t->rank; i++)
        n *= t->shape[i] == LOCI_DIM_BATCH ? 1 : t->shape[i] < 0 ? LEN : t->shape[i];
    double *x = draw_alloc((size_t)n, sizeof *x);
    if (t->rank < 5) {
        if (!strncmp(t->name, "log_", 4)) show_gates(s, x, n);
        else show_normal(s, STREAM_GATE, x, n);
        for (ptrdiff_t i = 0; i < n && !strcmp(t->name, "beta"); i++) x[i] = 2 / (1 + exp(-x[i]));
        for (ptrdiff_t i = 0; i < n && !strcmp(t->name, "w"); i += DIM) {
            double sum = 0;
            for (int d = 0; d < DIM; d++) sum += x[i + d] * x[i + d];
            for (int d = 0; d < DIM; d++) x[i + d] /= sqrt(sum);
        }
        return x;
    }
    for (ptrdiff_t i = 0; i < n / 2; i++) {
        const ptrdiff_t pair = i % (DIM / 2), row = i / (DIM / 2) % LEN;
        const double angle = (double)row * pow(10000, -2.0 * (double)pair / DIM);
        x[2 * i] = cos(angle);
        x[2 * i + 1] = sin(angle);
    }
    return x;
}

/* Weights of whole rows.  Values are unit vectors, which identify the keys. */
static struct truth attend(struct show *s, const struct side *side, bool zero)
{
    const size_t count = (size_t)HEADS * LEN * DIM, rows = (size_t)HEADS * LEN;
    struct truth t = { .q = draw_alloc(count, 8),
                       .k = draw_alloc(count, 8),
                       .at = draw_alloc((size_t)(LEN * s->axes), 8),
                       .weights = draw_alloc(rows * LEN, 8),
                       .lse = draw_alloc(rows, 8),
                       .rem = draw_alloc(rows, 8) };
    double *v = draw_alloc(count, 8), *o = draw_alloc(count, 8), *ae = draw_alloc(count, 8);
    void **data = draw_alloc((size_t)s->tensors + 1, sizeof *data);
    int64_t pos[LEN];
    if (!zero) show_normal(s, STREAM_Q, t.q, (ptrdiff_t)count);
    if (!zero) show_normal(s, STREAM_K, t.k, (ptrdiff_t)count);
    show_places(s, LEN, 0, t.at);
    for (int h = 0; h < HEADS; h++)
        for (int j = 0; j < LEN; j++) v[(h * LEN + j) * DIM + j] = 1;
    for (int i = 0; i < LEN; i++) pos[i] = i;
    for (int i = 0; i < s->tensors; i++)
        data[i] = s->data[i] ? s->data[i] : input_of(s, &s->tensor[i]);
    loci_error e = { 0 };
    const bool stick = s->remainder && side != &s->plain;
    loci_call c = LOCI_CALL(.batch = 1, .q_len = LEN, .k_len = LEN, .q = { .data = t.q },
                            .k = { .data = t.k }, .v = { .data = v }, .o = { .data = o },
                            .error = &e, .tensors = (const void *const *)data);
    if (stick) c.rem = t.rem;
    else c.lse = t.lse;
    if (s->places & LOCI_PLACE_STATE && side != &s->plain) c.ae = ae;
    if (s->axes > 1 && side != &s->plain) c.q_coord = c.k_coord = t.at;
    else c.q_pos = c.k_pos = pos;
    CHECK_THAT(!loci_reference(side->plan, (const void *const *)data, &c, NULL), "%s: %s",
               s->encoding, e.text);
    for (size_t i = 0; i < rows; i++)
        for (int j = 0; j < LEN; j++) t.weights[i * LEN + (size_t)j] = o[i * DIM + (size_t)j];
    for (int i = 0; i < s->tensors; i++)
        if (!s->data[i]) free(data[i]);
    free(v);
    free(o);
    free(ae);
    free(data);
    return t;
}

static void free_truth(struct truth *t)
{
    free(t->q);
    free(t->k);
    free(t->at);
    free(t->weights);
    free(t->lse);
    free(t->rem);
}

static double product(const struct truth *t, int h, int i, int j)
{
    double sum = 0;
    for (int c = 0; c < DIM; c++)
        sum += t->q[(h * LEN + i) * DIM + c] * t->k[(h * LEN + j) * DIM + c];
    return sum;
}

/* ---- Figures --------------------------------------------------------------------------------- */

/* The added bias is the logarithm of the weight plus the lse of the row, minus the plain
 * product. */
static void check_map(struct show *s, int h)
{
    struct figure f[MAX_FIGURES];
    loci_error e = { 0 };
    int count;
    bool nothing;
    double *bias = draw_alloc(LEN * HEADS, sizeof *bias);
    CHECK_THAT(!show_figures(s, SHOW_MAP, f, &count, &e), "%s: %s", s->encoding, e.text);
    CHECK_THAT(!show_bias(s, LEN, bias, &nothing, &e), "%s: %s", s->encoding, e.text);
    struct truth t = attend(s, s->in_order ? &s->causal : &s->all, !nothing);
    for (int i = 0; i < LEN; i++)
        for (int j = 0; j < LEN; j++) {
            const double w = t.weights[(h * LEN + i) * LEN + j], got = f->z[i * LEN + j];
            if (s->causal_only && j > i) {
                CHECK_THAT(isnan(got), "%s: %d, %d", s->encoding, i, j);
                continue;
            }
            const double want =
                log(w) + t.lse[h * LEN + i] - s->all.plan->scale * product(&t, h, i, j);
            CHECK_CLOSE(got, want, bound, "%s: map %d, %d", s->encoding, i, j);
        }
    for (int d = 0; d < LEN && !nothing; d++)
        CHECK_CLOSE(bias[d * HEADS + h], f->z[(LEN - 1) * LEN + LEN - 1 - d], 1e-12,
                    "%s: distance %d", s->encoding, d);
    free(bias);
    free_truth(&t);
    for (int i = 0; i < count; i++) figure_free(&f[i]);
}

/* Rows of attention, the remainder of a stick, and the table's entropy. */
static void check_attention(struct show *s, int h)
{
    struct figure f[MAX_FIGURES];
    loci_error e = { 0 };
    int count;
    if (s->embeds) return; /* its rows are checked, and plain attention elsewhere */
    CHECK_THAT(!show_figures(s, SHOW_ATTENTION, f, &count, &e), "%s: %s", s->encoding, e.text);
    struct truth t = attend(s, &s->causal, false);
    double entropy = 0;
    for (int i = 0; i < LEN; i++)
        for (int j = 0; j <= i; j++) {
            double w = t.weights[(h * LEN + i) * LEN + j];
            /* values of shaw and tape do not depend on the keys alone */
            if (!(s->places & LOCI_PLACE_VALUE))
                CHECK_CLOSE(f->z[i * LEN + j], w, 1e-12, "%s: weight %d, %d", s->encoding, i, j);
            w = f->z[i * LEN + j];
            if (w > 0) entropy -= w * log(w) / LEN;
        }
    CHECK_CLOSE(atof(f[2].cell[1 * 3 + 1]), entropy, 1e-3 * (1 + entropy), "%s", s->encoding);
    for (int i = 0; i < LEN && s->remainder; i++)
        CHECK_CLOSE(f[3].line[0].y[i], t.rem[h * LEN + i], 1e-12, "%s: row %d", s->encoding, i);
    free_truth(&t);
    for (int i = 0; i < count; i++) figure_free(&f[i]);
}

/* A vector of ones, rotated, or its length if the angles come with the call; what remains of q.q
 * over the plane if there are several axes. */
static void check_angles(struct show *s, int h)
{
    struct figure f[MAX_FIGURES];
    loci_error e = { 0 };
    int count;
    CHECK_THAT(!show_figures(s, SHOW_ANGLES, f, &count, &e), "%s: %s", s->encoding, e.text);
    bool given = false; /* angles that come with a call, and are drawn here */
    for (int i = 0; i < s->tensors; i++)
        given |= s->tensor[i].role == LOCI_INPUT && rotates_by(s->all.plan, i);
    for (int i = 0; i < LEN && given && s->axes == 1; i++) {
        double sum = 0;
        for (int k = 0; k < DIM; k++) sum += f->z[i * DIM + k] * f->z[i * DIM + k];
        CHECK_CLOSE(sum, DIM, 1e-12 * DIM, "%s: |q|^2 of row %d", s->encoding, i);
    }
    if (s->axes == 1 && !given && !(s->places & LOCI_PLACE_STATE)) {
        enum { WIDTH = HEADS * DIM };
        double *x = draw_alloc(LEN * WIDTH, sizeof *x), *y = draw_alloc(LEN * WIDTH, sizeof *y);
        int64_t pos[LEN];
        for (int i = 0; i < LEN * WIDTH; i++) x[i] = 1;
        for (int i = 0; i < LEN; i++) pos[i] = i;
        const loci_call c = LOCI_CALL(.batch = LEN, .q_len = 1, .k_len = 1, .q_pos = pos,
                                      .k_pos = pos, .per_batch = 1);
        const loci_view none = { 0 };
        const void *const *data = (const void *const *)s->data + s->turn_tensor;
        const loci_view from = { .data = x }, to = { .data = y };
        CHECK_THAT(!loci_reference_rotate(s->turn.plan, data, &c, LOCI_QUERY, from, to, none, none,
                                          NULL),
                   "%s", s->encoding);
        for (int i = 0; i < LEN; i++)
            for (int k = 0; k < DIM; k++)
                CHECK_CLOSE(f->z[i * DIM + k], y[i * WIDTH + h * DIM + k], 1e-12, "%s: %d, %d",
                            s->encoding, i, k);
        free(x);
        free(y);
    }
    if (s->axes > 1) {
        const ptrdiff_t middle = f->rows / 2 * f->cols + f->cols / 2;
        CHECK_CLOSE(f->z[middle], 1, 1e-12, "%s: nothing turns in the middle", s->encoding);
    }
    for (int i = 0; i < count; i++) figure_free(&f[i]);
}

static void check_embedding(struct show *s)
{
    struct figure f[MAX_FIGURES], like[MAX_FIGURES];
    loci_error e = { 0 };
    int count, more;
    double *rows = draw_alloc(LEN * DIM, sizeof *rows);
    int64_t pos[LEN];
    for (int i = 0; i < LEN; i++) pos[i] = i;
    CHECK_THAT(!show_figures(s, SHOW_EMBEDDING, f, &count, &e), "%s: %s", s->encoding, e.text);
    CHECK_THAT(!show_figures(s, SHOW_SIMILARITY, like, &more, &e), "%s: %s", s->encoding, e.text);
    const loci_call c =
        LOCI_CALL(.batch = 1, .q_len = LEN, .k_len = LEN, .q_pos = pos, .k_pos = pos);
    const loci_view both = { .data = rows }, none = { .data = NULL };
    CHECK_THAT(!loci_reference_embed(s->table.plan, (const void *const *)s->data, &c, both, both,
                                     none, NULL),
               "%s", s->encoding);
    for (int i = 0; i < LEN * DIM; i++)
        CHECK_CLOSE(f->z[i], rows[i], 1e-12, "%s: %d", s->encoding, i);
    for (int i = 0; i < LEN; i++)
        for (int j = 0; j < LEN; j++) {
            double sum = 0;
            for (int k = 0; k < DIM; k++) sum += rows[i * DIM + k] * rows[j * DIM + k];
            CHECK_CLOSE(like->z[i * LEN + j], sum, 1e-9 * (1 + fabs(sum)), "%s: %d.%d", s->encoding,
                        i, j);
        }
    free(rows);
    for (int i = 0; i < count; i++) figure_free(&f[i]);
    for (int i = 0; i < more; i++) figure_free(&like[i]);
}

/* Every available figure, drawn in every form. */
static void check_drawings(struct show *s)
{
    static const struct terminal forms[] = { { 40, NO_COLOURS, false },
                                             { 80, COLOURS_TRUE, true },
                                             { 200, COLOURS_256, false } };
    for (int what = 0; what < SHOW_COUNT; what++) {
        struct figure f[MAX_FIGURES];
        loci_error e = { 0 };
        int count;
        const bool has = show_has(s) & 1u << what;
        const loci_status status = show_figures(s, (enum show_what)what, f, &count, &e);
        CHECK_THAT(has == !status, "%s: %s: %s", s->encoding, show_names[what], e.text);
        CHECK_THAT(!status || strstr(e.text, "it has "), "%s: %s", s->encoding, e.text);
        for (int i = 0; i < count; i++) {
            struct text t = { 0 };
            figure_json(&t, &f[i]);
            CHECK_THAT(t.s[0] == '{' && t.s[t.n - 1] == '}', "%s", s->encoding);
            CHECK_THAT(!strstr(t.s, "nan") && !strstr(t.s, "inf,"), "%s: %s", s->encoding,
                       show_names[what]);
            figure_svg(&t, &f[i]);
            figure_html(&t, &f[i]);
            figure_markdown(&t, &f[i]);
            for (int k = 0; k < 3; k++) figure_print(&t, &f[i], &forms[k]);
            CHECK_THAT(strlen(t.s) == t.n, "%s: a text of one piece", s->encoding);
            text_free(&t);
            figure_free(&f[i]);
        }
    }
}

static void check_encoding(const char *text)
{
    struct wish w = { .encoding = text, .heads = HEADS, .dim = DIM, .len = LEN, .head = 1 };
    struct show *s;
    loci_error e = { 0 };
    CHECK_THAT(!show_open(&s, &w, &e), "%s: %s", text, e.text);
    if (!s) return;
    /* if weights are not of keys alone, values cannot show the remainder */
    const bool told = !(s->places & LOCI_PLACE_VALUE);
    if (told && show_has(s) & 1u << SHOW_MAP) check_map(s, s->head);
    check_attention(s, s->head);
    if (show_turns(s)) check_angles(s, s->head);
    if (s->embeds) check_embedding(s);
    check_drawings(s);
    show_close(s);
}

/* ---- The documentation's pictures ------------------------------------------------------------ */

/* Byte for byte, for all compilers and machines. tests/tools/pictures.sh has all of them. */
static void check_pictures(void)
{
    static const struct {
        const char *text, *file;
        enum show_what what;
    } few[] = {
        { "alibi", "alibi-map", SHOW_MAP },
        { "kerple", "kerple-curve", SHOW_CURVE },
        { "fox", "fox-curve", SHOW_CURVE },
        { "rope:pairing=half", "rope-angles", SHOW_ANGLES },
        { "sinusoidal", "sinusoidal-similarity", SHOW_SIMILARITY },
        { "sba", "sba-attention", SHOW_ATTENTION },
    };
    for (int i = 0; i < COUNT(few); i++) {
        char path[80], *said = draw_alloc(1 << 16, 1);
        struct figure f[MAX_FIGURES];
        struct text t = { 0 };
        struct show *s;
        loci_error e = { 0 };
        int count;
        snprintf(path, sizeof path, "docs/pictures/%s.svg", few[i].file);
        FILE *file = fopen(path, "rb");
        const size_t bytes = file ? fread(said, 1, 1 << 16, file) : 0;
        if (file) fclose(file);
        CHECK_THAT(!show_open(&s, &(struct wish){ .encoding = few[i].text }, &e), "%s", e.text);
        CHECK_THAT(!show_figures(s, few[i].what, f, &count, &e), "%s", e.text);
        figures_svg(&t, f, count);
        CHECK_THAT(t.n == bytes && !memcmp(t.s, said, bytes), "%s is another one", path);
        for (int k = 0; k < count; k++) figure_free(&f[k]);
        text_free(&t);
        show_close(s);
        free(said);
    }
}

/* ---- Properties ------------------------------------------------------------------------------ */

/* Well-known properties of some of them. */
static void check_properties(void)
{
    static const struct {
        const char *text;
        enum property which;
        const char *brief;
    } known[] = {
        { "alibi", PROPERTY_TRANSLATION, "exact" },
        { "alibi", PROPERTY_MONOTONE, "yes" },
        { "alibi", PROPERTY_SYMMETRY, "yes" },
        { "alibi", PROPERTY_CONTENT, "no" },
        { "kerple", PROPERTY_MONOTONE, "yes" },
        { "rope:pairing=half", PROPERTY_TRANSLATION, "to rounding" },
        { "rope:pairing=half", PROPERTY_NORM, "kept" },
        { "rope:pairing=half", PROPERTY_CONTENT, "yes" },
        { "xpos", PROPERTY_NORM, "changed" },
        { "sinusoidal", PROPERTY_TRANSLATION, "no" },
        { "fire", PROPERTY_TRANSLATION, "no" },
        { "learned", PROPERTY_BEYOND, "refused" },
        { "sinusoidal", PROPERTY_BEYOND, "continued" },
        { "clip", PROPERTY_BEYOND, "clamped" },
        { "clip", PROPERTY_APART, "no" },
        { "t5:bidirectional=0", PROPERTY_TRANSLATION, "exact" },
        { "fox", PROPERTY_SYMMETRY, "ordered" },
    };
    for (int i = 0; i < COUNT(known); i++) {
        struct wish w = { .encoding = known[i].text, .heads = HEADS, .dim = DIM, .len = 32 };
        struct finding all[PROPERTY_COUNT];
        struct show *s;
        loci_error e = { 0 };
        if (!CHECK_THAT(!show_open(&s, &w, &e), "%s: %s", known[i].text, e.text)) continue;
        CHECK_THAT(!show_measure(s, all, &e), "%s: %s", known[i].text, e.text);
        const struct finding *f = &all[known[i].which];
        CHECK_THAT(!strcmp(f->brief, known[i].brief), "%s: %s: %s", known[i].text, f->name,
                   f->text);
        show_close(s);
    }
}

/* ---- Invalid arguments ----------------------------------------------------------------------- */

static void check_errors(void)
{
    struct show *s;
    loci_error e = { 0 };
    double numbers[8] = { 0 };
    const struct given wrong = { "t5.table", 2, { 4, 2 }, numbers };
    const struct given unknown = { "t5.tables", 2, { 32, 8 }, numbers };
    struct wish w = { .encoding = "t5:bidirectional=0", .given = &wrong, .given_count = 1 };
    CHECK_SAYS(show_open(&s, &w, &e), LOCI_BAD_ARG, &e, "t5.table must have the shape [32,8]");
    w.given = &unknown;
    CHECK_SAYS(show_open(&s, &w, &e), LOCI_BAD_ARG, &e, "no learned tensor 't5.tables'");
    CHECK_SAYS(show_open(&s, &(struct wish){ .encoding = "ropes" }, &e), LOCI_BAD_ARG, &e, "rope");
    CHECK_SAYS(show_open(&s, &(struct wish){ .len = 5000 }, &e), LOCI_BAD_ARG, &e, "len must be");
    CHECK_SAYS(show_open(&s, &(struct wish){ .heads = 99 }, &e), LOCI_BAD_ARG, &e, "heads must be");
    CHECK_SAYS(show_open(&s, &(struct wish){ .head = 8 }, &e), LOCI_BAD_ARG, &e, "head must be");
    struct text t = { 0 };
    CHECK_SAYS(example_print(&t, "xl", &e), LOCI_BAD_ARG, &e, "these have one:");
    CHECK_THAT(t.n == 0, "nothing is printed");
}

int main(void)
{
    const loci_encoding_info *list;
    const int n = loci_encodings(&list);
#ifdef LOCI_SLOW
    const int step = 4;
#else
    const int step = 1;
#endif
    for (int i = 0; i < n; i += step) check_encoding(list[i].example);
    for (int i = 0; i < COUNT(compositions); i += step) check_encoding(compositions[i]);
    check_pictures();
    check_properties();
    check_errors();
    return harness_end();
}
