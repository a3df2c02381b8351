/* SPDX-License-Identifier: MIT */
/* open.c -- from a text to an encoding that can be queried: plans, tensors, and its available
 * figures. */
#include <stdlib.h>
#include <string.h>

#include "math/random.h"
#include "util/shape_text.h"
#include "show/subject.h"

const char *const show_names[SHOW_COUNT] = { [SHOW_MAP] = "map",
                                             [SHOW_CURVE] = "curve",
                                             [SHOW_SPECTRUM] = "spectrum",
                                             [SHOW_ANGLES] = "angles",
                                             [SHOW_EMBEDDING] = "embedding",
                                             [SHOW_SIMILARITY] = "similarity",
                                             [SHOW_ATTENTION] = "attention",
                                             [SHOW_PROPERTIES] = "properties" };

/* ---- Random numbers -------------------------------------------------------------------------- */

static uint64_t stream_of(const struct show *s, int stream)
{
    return loci_scramble(loci_scramble(s->seed) + (uint64_t)stream);
}

void show_normal(const struct show *s, int stream, double *to, ptrdiff_t n)
{
    /* Sums of twelve uniform numbers have no tails, and the same bits with every libm. */
    for (ptrdiff_t i = 0; i < n; i++) {
        double sum = -6;
        for (int k = 0; k < 12; k++)
            sum += loci_uniform(stream_of(s, stream), 12 * (uint64_t)i + (uint64_t)k);
        to[i] = sum;
    }
}

void show_unit(double *rows, ptrdiff_t n, int width)
{
    for (ptrdiff_t i = 0; i < n; i++) {
        double *x = rows + i * width, sum = 0;
        for (int c = 0; c < width; c++) sum += x[c] * x[c];
        for (int c = 0; c < width && sum > 0; c++) x[c] /= sqrt(sum);
    }
}

void show_gates(const struct show *s, double *to, ptrdiff_t n)
{
    show_normal(s, STREAM_GATE, to, n);
    for (ptrdiff_t i = 0; i < n; i++) to[i] = -log1p(exp(-3 - to[i]));
}

/* ---- Tensors --------------------------------------------------------------------------------- */

static bool all_zero(const double *x, ptrdiff_t n)
{
    while (n > 0 && x[n - 1] == 0) n--;
    return n == 0;
}

static bool is_named(const loci_tensor *t, const char *name)
{
    const size_t n = strlen(t->encoding);
    return !strncmp(name, t->encoding, n) && name[n] == '.' && !strcmp(name + n + 1, t->name);
}

/* Copies a tensor of the caller if it has the plan's shape. */
static loci_status from_caller(const struct wish *w, const loci_tensor *t, double *data,
                               bool *found, loci_error *e)
{
    char wanted[96], got[96];
    *found = false;
    for (int g = 0; g < w->given_count; g++) {
        const struct given *have = &w->given[g];
        if (!is_named(t, have->name)) continue;
        bool same = have->rank == t->rank;
        for (int k = 0; same && k < t->rank; k++) same = have->shape[k] == t->shape[k];
        CHECK(e, same, LOCI_BAD_ARG, "tensor %s.%s must have the shape %s here, not %s",
              t->encoding, t->name, shape_text(t->rank, t->shape, wanted, sizeof wanted),
              shape_text(have->rank, have->shape, got, sizeof got));
        memcpy(data, have->data, (size_t)tensor_count(t) * sizeof *data);
        *found = true;
    }
    return LOCI_OK;
}

/* Every given tensor must be one of the plan's. */
static loci_status all_known(const struct show *s, const struct wish *w, loci_error *e)
{
    for (int g = 0; g < w->given_count; g++) {
        bool known = false;
        for (int i = 0; i < s->tensors; i++)
            known = known || (s->data[i] && is_named(&s->tensor[i], w->given[g].name));
        CHECK(e, known, LOCI_BAD_ARG, "%s has no learned tensor '%.80s'", s->encoding,
              w->given[g].name);
    }
    return LOCI_OK;
}

static void add_note(struct show *s, const char *text)
{
    const size_t n = strlen(s->note);
    snprintf(s->note + n, sizeof s->note - n, "%s%s", n ? "; " : "", text);
}

/* Options allow tensors that no picture needs, and whose size overflows 32 bits. */
static loci_status check_count(const loci_tensor *t, loci_error *e)
{
    enum { MOST = 1 << 24 };
    double n = 1;
    for (int k = 0; k < t->rank; k++) n *= (double)t->shape[k];
    CHECK(e, n <= MOST, LOCI_UNSUPPORTED,
          "tensor %s.%s has %.0f numbers, but at most %d are supported", t->encoding, t->name, n,
          MOST);
    return LOCI_OK;
}

/* Fills tensors from the caller, else by the paper's initialisation.  Tensors that start as zeros
 * would show nothing, so they are random. */
static loci_status fill_tensors(struct show *s, const loci_plan *p, const struct wish *w,
                                loci_error *e)
{
    char text[160];
    s->tensors = loci_tensors(p, NULL, 0);
    s->tensor = draw_alloc((size_t)s->tensors, sizeof *s->tensor);
    s->data = draw_alloc((size_t)s->tensors, sizeof *s->data);
    loci_tensors(p, s->tensor, s->tensors);
    for (int i = 0; i < s->tensors; i++) {
        const loci_tensor *t = &s->tensor[i];
        bool found;
        if (t->role == LOCI_INPUT) continue;
        TRY(check_count(t, e));
        s->data[i] = draw_alloc((size_t)tensor_count(t), sizeof(double));
        TRY(from_caller(w, t, s->data[i], &found, e));
        if (found) continue;
        loci_tensor_init(p, i, s->seed, s->data[i]);
        if (!all_zero(s->data[i], tensor_count(t))) continue;
        const uint64_t stream = loci_scramble(stream_of(s, STREAM_TENSOR) + (uint64_t)i);
        for (ptrdiff_t k = 0; k < tensor_count(t); k++)
            s->data[i][k] = 0.5 * loci_normal(stream, (uint64_t)k);
        snprintf(text, sizeof text, "%s.%s starts at zero and is drawn from N(0, 0.5)", t->encoding,
                 t->name);
        add_note(s, text);
    }
    for (int i = 0; i < s->tensors; i++) {
        if (s->tensor[i].role != LOCI_INPUT) continue;
        const bool state = s->tensor[i].rank == 5, gate = !strncmp(s->tensor[i].name, "log_", 4);
        snprintf(text, sizeof text, "%s.%s is %s", s->tensor[i].encoding, s->tensor[i].name,
                 state  ? "that of the first layer"
                 : gate ? "log sigmoid of N(3, 1)"
                        : "drawn from N(0, 1)");
        add_note(s, text);
    }
    return all_known(s, w, e);
}

/* ---- Plans ----------------------------------------------------------------------------------- */

/* Sets the places of the text's encodings.  The plan rejects unknown names. */
static void look_at(struct show *s)
{
    const loci_encoding_info *list;
    const int n = loci_encodings(&list);
    for (const char *text = s->encoding; *text;) {
        const size_t name = strcspn(text, ":+");
        for (int i = 0; i < n; i++) {
            if (strlen(list[i].name) != name || strncmp(list[i].name, text, name)) continue;
            s->places |= list[i].places;
            s->causal_only = s->causal_only || list[i].causal_only;
            s->remainder = s->remainder || (list[i].places & LOCI_PLACE_WEIGHT);
            s->sinks = s->sinks || (list[i].places & LOCI_PLACE_SUM);
        }
        text += strcspn(text, "+");
        text += *text == '+';
    }
}

/* The caller's tensors in the form that a plan reads.  Names point into the wish's. */
struct held {
    loci_tensor *list;
    char *names;
    int count;
};
static struct held held_of(const struct wish *w)
{
    size_t capacity = 1;
    for (int g = 0; g < w->given_count; g++) capacity += strlen(w->given[g].name) + 1;
    struct held h = { draw_alloc((size_t)w->given_count, sizeof *h.list), draw_alloc(capacity, 1),
                      0 };
    for (char *text = h.names; h.count < w->given_count; h.count++) {
        const struct given *g = &w->given[h.count];
        loci_tensor *t = &h.list[h.count];
        char *dot = strchr(strcpy(text, g->name), '.');
        *t = (loci_tensor){ .encoding = text, .name = text, .role = LOCI_LEARNED, .rank = g->rank };
        if (dot) {
            *dot = 0;
            t->name = dot + 1;
        }
        memcpy(t->shape, g->shape, sizeof t->shape);
        text += strlen(g->name) + 1;
    }
    return h;
}

/* Uses the caller's tensor form if all tensors are given, and the default form if some are. */
static loci_status plan_of(struct side *side, loci_desc *d, const struct held *h, loci_error *e)
{
    if (h && h->count) {
        d->tensors = h->list;
        d->tensor_count = h->count;
        const loci_status status = loci_plan_create(&side->plan, d, e);
        if (!status || status == LOCI_NO_MEMORY) return status;
        d->tensors = NULL;
        d->tensor_count = 0;
    }
    return loci_plan_create(&side->plan, d, e);
}

static loci_status make(struct side *side, const struct show *s, const struct held *h,
                        const char *encoding, bool full, double scale, loci_error *e)
{
    loci_desc d = LOCI_DESC(.encoding = encoding, .heads = s->heads, .dim = s->dim,
                            .dtype = LOCI_F64, .full = full, .max_len = s->len, .scale = scale);
    return plan_of(side, &d, h, e);
}

/* A plan with all keys visible, if the encoding permits it.  Some encodings require their default
 * options to be explicit then, and the causal plan's text spells out all of them. */
static loci_status make_both(struct show *s, const struct held *h, loci_error *e)
{
    TRY(make(&s->causal, s, h, s->encoding, false, 0, e));
    if (s->causal_only) return make(&s->all, s, h, s->encoding, false, 0, e);
    loci_status status = make(&s->all, s, h, s->encoding, true, 0, e);
    if (!status || status == LOCI_NO_MEMORY) return status;
    const char *text = loci_plan_text(s->causal.plan), *end = strstr(text, " scale=");
    const size_t n = end ? (size_t)(end - text) : strlen(text);
    char *spelt = draw_alloc(n + 1, 1);
    memcpy(spelt, text, n);
    status = make(&s->all, s, h, spelt, true, 0, e);
    free(spelt);
    if (!status || status == LOCI_NO_MEMORY) return status;
    s->causal_only = true;
    return make(&s->all, s, h, s->encoding, false, 0, e);
}

/* The rotating encoding of the text, by itself.  Not for states, which belong to a call. */
static loci_status make_rotate(struct show *s, loci_error *e)
{
    const struct loci_plan *p = s->all.plan;
    if (p->rotate < 0 || !p->enc[p->use[p->rotate].enc].pe->rotates) return LOCI_OK;
    const int enc = p->use[p->rotate].enc;
    const char *text = s->encoding;
    for (int i = 0; i < enc; i++) text += strcspn(text, "+") + 1;
    const size_t n = strcspn(text, "+");
    char *alone = draw_alloc(n + 1, 1);
    memcpy(alone, text, n);
    const loci_desc d = LOCI_DESC(.encoding = alone, .stage = LOCI_ROTATE, .heads = s->heads,
                                  .dim = s->dim, .dtype = LOCI_F64, .max_len = s->len);
    const loci_status status = loci_plan_create(&s->turn.plan, &d, e);
    free(alone);
    s->turn_tensor = p->first_tensor[enc];
    return status;
}

static loci_status make_plans(struct show *s, const struct held *h, const struct wish *w,
                              loci_error *e)
{
    if (s->embeds) {
        loci_desc d =
            LOCI_DESC(.encoding = s->encoding, .stage = LOCI_EMBED, .model_dim = s->heads * s->dim,
                      .dtype = LOCI_F64, .max_len = s->len);
        TRY(plan_of(&s->table, &d, h, e));
        TRY(fill_tensors(s, s->table.plan, w, e));
    } else {
        TRY(make_both(s, h, e));
        TRY(fill_tensors(s, s->all.plan, w, e));
        const struct loci_plan *p = s->all.plan;
        for (int x = 0; x < p->uses; x++)
            s->in_order = s->in_order || term_is(p->use[x].term, IN_ORDER);
        s->causal_only = s->causal_only || s->in_order;
        s->axes = loci_axes(s->all.plan);
        TRY(make_rotate(s, e));
    }
    return make(&s->plain, s, NULL, NULL, true, s->embeds ? 0 : s->all.plan->scale, e);
}

loci_status show_open(struct show **to, const struct wish *w, loci_error *e)
{
    *to = NULL;
    const int heads = w->heads ? w->heads : 8, dim = w->dim ? w->dim : 64;
    const ptrdiff_t len = w->len ? w->len : 64;
    CHECK(e, heads >= 1 && heads <= 64, LOCI_BAD_ARG, "heads must be from 1 to 64, not %d", heads);
    CHECK(e, dim >= 1 && dim <= 512, LOCI_BAD_ARG, "the head's width must be from 1 to 512, not %d",
          dim);
    CHECK(e, len >= 2 && len <= 1024, LOCI_BAD_ARG, "len must be from 2 to 1024, not %td", len);
    CHECK(e, w->head >= 0 && w->head < heads, LOCI_BAD_ARG, "head must be from 0 to %d, not %d",
          heads - 1, w->head);
    struct show *s = *to = draw_alloc(1, sizeof *s);
    const char *text = w->encoding ? w->encoding : loci_pe_plain();
    s->encoding = strcpy(draw_alloc(strlen(text) + 1, 1), text);
    snprintf(s->name, sizeof s->name, strlen(text) < sizeof s->name ? "%s" : "%.48s...", text);
    s->heads = heads;
    s->dim = dim;
    s->head = w->head;
    s->len = len;
    s->axes = 1;
    s->seed = w->seed ? w->seed : 1;
    look_at(s);
    s->embeds = s->places == LOCI_PLACE_EMBED;
    if (s->embeds) {
        s->heads = 1;
        s->head = 0;
    } /* the embedding has no heads */
    s->trained = w->trained > 0 ? w->trained : (double)len;
    const struct held h = held_of(w);
    const loci_status status = make_plans(s, &h, w, e);
    free(h.list);
    free(h.names);
    if (!status) return LOCI_OK;
    show_close(s);
    *to = NULL;
    return status;
}

void show_close(struct show *s)
{
    if (!s) return;
    struct side *const sides[] = { &s->table, &s->all, &s->causal, &s->plain, &s->turn };
    for (int i = 0; i < COUNT(sides); i++) {
        loci_plan_destroy(sides[i]->plan);
        free(sides[i]->tables);
    }
    for (int i = 0; s->data && i < s->tensors; i++) free(s->data[i]);
    free(s->data);
    free(s->tensor);
    free(s->encoding);
    free(s);
}

const char *show_text(const struct show *s)
{
    return loci_plan_text(s->embeds ? s->table.plan : s->all.plan);
}
const char *show_tensors(const struct show *s) { return s->note; }

/* ---- Figures --------------------------------------------------------------------------------- */

bool show_bends(const struct show *s)
{
    const struct loci_plan *p = s->all.plan;
    bool bends = false;
    for (int x = 0; p && x < p->uses; x++) {
        if (p->use[x].group == GROUP_SINK) continue;
        if (!term_is(p->use[x].term, BENDS)) return false;
        bends = true;
    }
    return bends;
}

unsigned show_has(const struct show *s)
{
    unsigned has = 1u << SHOW_ATTENTION | 1u << SHOW_PROPERTIES;
    if (show_adds(s) && s->axes == 1 && !show_bends(s)) has |= 1u << SHOW_MAP;
    if (show_adds(s) || show_rotates(s)) has |= 1u << SHOW_CURVE;
    if (show_turns(s)) has |= 1u << SHOW_SPECTRUM | 1u << SHOW_ANGLES;
    if (s->embeds) has |= 1u << SHOW_EMBEDDING | 1u << SHOW_SIMILARITY;
    return has;
}

loci_status show_figures(struct show *s, enum show_what what, struct figure *f, int *count,
                         loci_error *e)
{
    static loci_status (*const all[SHOW_COUNT])(struct show *, struct figure *, int *,
                                                loci_error *) = { [SHOW_MAP] = show_map,
                                                                  [SHOW_CURVE] = show_curve,
                                                                  [SHOW_SPECTRUM] = show_spectrum,
                                                                  [SHOW_ANGLES] = show_angles,
                                                                  [SHOW_EMBEDDING] = show_embedding,
                                                                  [SHOW_SIMILARITY] =
                                                                      show_similarity,
                                                                  [SHOW_ATTENTION] = show_attention,
                                                                  [SHOW_PROPERTIES] =
                                                                      show_properties };
    *count = 0;
    if (!(show_has(s) & 1u << what)) {
        char list[200] = "";
        for (int i = 0; i < SHOW_COUNT; i++)
            if (show_has(s) & 1u << i)
                snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", *list ? ", " : "",
                         show_names[i]);
        return loci_fail(e, LOCI_BAD_ARG, "%s has no %s; it has %s", s->encoding, show_names[what],
                         list);
    }
    memset(f, 0, MAX_FIGURES * sizeof *f);
    const loci_status status = all[what](s, f, count, e);
    for (int i = 0; i < MAX_FIGURES; i++) {
        if (status || i >= *count) figure_free(&f[i]);
        else f[i].what = show_names[what];
    }
    if (status) *count = 0;
    return status;
}
