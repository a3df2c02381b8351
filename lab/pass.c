/* SPDX-License-Identifier: MIT */
/* pass.c -- forward and backward passes of a model.
 *
 * Each part of a layer processes rows in pieces of LAB_ROWS, which threads share.  Sums over all
 * rows, the gradients of matrices, run in the order of the rows, and threads share the elements of
 * the sums.  So neither the thread count nor the instruction set changes a bit. */
#include "lab/inside.h"

#include <stdlib.h>
#include <string.h>

/* ---- Forward --------------------------------------------------------------------------------- */

struct pass {
    struct lab_model *m;
    const struct lab_batch *b;
    int layer;
    char *next;      /* destination of the layer's output */
    ptrdiff_t asked; /* rows with logits */
    double share;    /* of each in the mean loss */
};

/* The rows of a piece. */
static ptrdiff_t piece(ptrdiff_t rows, int index, ptrdiff_t *from)
{
    *from = (ptrdiff_t)index * LAB_ROWS;
    return rows - *from < LAB_ROWS ? rows - *from : LAB_ROWS;
}
static int pieces(ptrdiff_t rows) { return (int)((rows + LAB_ROWS - 1) / LAB_ROWS); }

/* y [n][cols of t] = or += x [n][rows of t] W, for rows from `from` on. */
static void apply(const struct lab_model *m, bool add, int t, ptrdiff_t from, ptrdiff_t n, char *x,
                  char *y)
{
    const struct lab_tensor *w = &m->tensor[t];
    m->engine->product(add, n, w->stride, w->rows, lab_at(m, x, from * w->rows), w->rows, 1,
                       lab_weight(m, t), w->stride, lab_at(m, y, from * w->stride), w->stride);
}
/* dx = or += dy W^T */
static void apply_back(const struct lab_model *m, bool add, int t, ptrdiff_t from, ptrdiff_t n,
                       char *dy, char *dx)
{
    const struct lab_tensor *w = &m->tensor[t];
    m->engine->product(add, n, w->rows, w->cols, lab_at(m, dy, from * w->stride), w->stride, 1,
                       lab_at(m, m->transposed, w->at), w->rows, lab_at(m, dx, from * w->rows),
                       w->rows);
}

static void before_mixing(void *arg, int index)
{
    const struct pass *p = arg;
    struct lab_model *m = p->m;
    struct lab_saved *k = &m->saved[p->layer];
    const ptrdiff_t d = m->shape.dim;
    ptrdiff_t from, n = piece(p->b->rows, index, &from);
    m->engine->norm(n, d, lab_at(m, k->x, from * d), lab_weight(m, m->own[p->layer][OWN_NORM1]),
                    lab_at(m, k->a, from * d), lab_at(m, k->scale1, from));
    for (int i = 0; i < MAPS; i++)
        if (m->map[p->layer][i] >= 0)
            apply(m, false, m->map[p->layer][i], from, n, k->a, k->map[i]);
}

static void after_mixing(void *arg, int index)
{
    const struct pass *p = arg;
    struct lab_model *m = p->m;
    struct lab_saved *k = &m->saved[p->layer];
    const int *own = m->own[p->layer];
    const ptrdiff_t d = m->shape.dim, wide = m->shape.ffn;
    ptrdiff_t from, n = piece(p->b->rows, index, &from);
    const size_t bytes = (size_t)(n * d) * m->real;
    char *y = lab_at(m, k->y, from * d), *next = lab_at(m, p->next, from * d);
    memcpy(y, lab_at(m, k->x, from * d), bytes);
    apply(m, true, own[OWN_WO], from, n, k->o, k->y);
    m->engine->norm(n, d, y, lab_weight(m, own[OWN_NORM2]), lab_at(m, k->b, from * d),
                    lab_at(m, k->scale2, from));
    apply(m, false, own[OWN_W1], from, n, k->b, k->h);
    m->engine->gelu(n * wide, lab_at(m, k->h, from * wide), lab_at(m, k->u, from * wide));
    memcpy(next, y, bytes);
    if (!k->m) apply(m, true, own[OWN_W2], from, n, k->u, p->next);
    else { /* tape reads what the MLP says */ apply(m, false, own[OWN_W2], from, n, k->u, k->m);
        m->engine->add(n * d, lab_at(m, k->m, from * d), next);
    }
}

static void to_logits(void *arg, int index)
{
    const struct pass *p = arg;
    struct lab_model *m = p->m;
    const ptrdiff_t d = m->shape.dim;
    ptrdiff_t from, n = piece(p->asked, index, &from);
    m->engine->norm(n, d, lab_at(m, m->picked, from * d), lab_weight(m, m->norm),
                    lab_at(m, m->ys, from * d), lab_at(m, m->top_scale, from));
    apply(m, false, m->unembed, from, n, m->ys, m->logits);
}
static void to_loss(void *arg, int index)
{
    const struct pass *p = arg;
    struct lab_model *m = p->m;
    ptrdiff_t from, n = piece(p->asked, index, &from);
    m->engine->cross_entropy(n, m->stride, m->shape.vocabulary, m->asked + from, p->share,
                             lab_at(m, m->logits, from * m->stride), m->cost + from,
                             m->said + from);
}

static void embed_rows(struct lab_model *m, const struct lab_batch *b)
{
    const size_t bytes = (size_t)m->shape.dim * m->real;
    const char *table = lab_weight(m, m->embed);
    for (ptrdiff_t r = 0; r < b->rows; r++)
        memcpy(m->saved[0].x + (size_t)r * bytes, table + (size_t)b->token[r] * bytes, bytes);
}

/* Gathers the rows with logits into `picked`: those with a question, or all. */
static ptrdiff_t pick(struct lab_model *m, const struct lab_batch *b, bool all)
{
    const size_t bytes = (size_t)m->shape.dim * m->real;
    ptrdiff_t n = 0;
    for (ptrdiff_t r = 0; r < b->rows; r++)
        if (all || b->target[r] >= 0) {
            m->where[n] = r;
            m->asked[n++] = b->target[r];
        }
    for (ptrdiff_t i = 0; i < n; i++)
        memcpy(m->picked + (size_t)i * bytes, m->top + (size_t)m->where[i] * bytes, bytes);
    return n;
}

static ptrdiff_t furthest(const struct lab_batch *b)
{
    int64_t most = 0;
    for (ptrdiff_t r = 0; r < b->rows; r++)
        if (b->pos[r] > most) most = b->pos[r];
    return (ptrdiff_t)most;
}

static loci_status check_batch(const struct lab_model *m, const struct lab_batch *b, loci_error *e)
{
    for (ptrdiff_t r = 0; r < b->rows; r++) {
        CHECK(e, b->token[r] >= 0 && b->token[r] < m->shape.vocabulary, LOCI_BAD_ARG,
              "token %d of row %td must be below %d", (int)b->token[r], r, m->shape.vocabulary);
        CHECK(e, b->target[r] < m->shape.vocabulary, LOCI_BAD_ARG,
              "target %d of row %td must be below %d", (int)b->target[r], r, m->shape.vocabulary);
    }
    const ptrdiff_t most = furthest(b);
    CHECK(e, most < (m->arm.random ? m->arm.range : m->shape.longest), LOCI_BAD_ARG,
          "position %td is beyond the longest test, %d tokens", most, m->shape.longest);
    CHECK(e, most < lab_arm_reach(&m->arm), LOCI_UNSUPPORTED,
          "%s: its bias has rows and keys for %td positions, and position %td is asked for",
          m->arm.bias.path, lab_arm_reach(&m->arm), most);
    CHECK(e,
          !m->added_count || m->shape.learned != LAB_REFUSE || m->arm.random
              || most < m->shape.length,
          LOCI_UNSUPPORTED,
          "'%s' has learned %d positions and is asked for position %td; learned=clamp, wrap or "
          "random says "
          "what should be there",
          m->arm.text, m->shape.length, most);
    return LOCI_OK;
}

/* Starts a pass over a batch: tables for its positions. */
static loci_status begin(struct lab_model *m, const struct lab_batch *b, loci_error *e)
{
    TRY(check_batch(m, b, e));
    return lab_encoding_prepare(m, furthest(b) + 1, e);
}

/* The number of sequences that pass through the model together: those whose working set fits the
 * caches, but at least one.  It affects the bits.  `from` is the first sequence.  False: no
 * more. */
enum { PORTION = 6 }; /* rows for each column of the model */
static bool portion(const struct lab_model *m, const struct lab_batch *b, int from,
                    struct lab_batch *to)
{
    const ptrdiff_t most = (ptrdiff_t)PORTION * m->shape.dim;
    if (from >= b->sequences) return false;
    const ptrdiff_t first = (ptrdiff_t)b->starts[from];
    int n = 1;
    while (from + n < b->sequences && b->starts[from + n + 1] - first <= most) n++;
    lab_batch_reserve(to, n, 0);
    for (int s = 0; s <= n; s++) to->starts[s] = b->starts[from + s] - first;
    to->sequences = n;
    to->rows = (ptrdiff_t)to->starts[n];
    to->scored = 0;
    to->token = b->token + first;
    to->target = b->target + first;
    to->pos = b->pos + first;
    to->seg = b->seg + first;
    for (ptrdiff_t r = 0; r < to->rows; r++) to->scored += to->target[r] >= 0;
    return true;
}

/* Runs to the logits of rows with a question, or of all. */
static loci_status forward(struct lab_model *m, const struct lab_batch *b, bool all, struct pass *p,
                           loci_error *e)
{
    lab_spend(m, LAB_PARTS);
    *p = (struct pass){ .m = m, .b = b };
    embed_rows(m, b);
    TRY(lab_encoding_embed(m, b, m->saved[0].x, e));
    for (int l = 0; l < m->shape.layers; l++) {
        p->layer = l;
        p->next = l + 1 < m->shape.layers ? m->saved[l + 1].x : m->top;
        lab_share(m, pieces(b->rows), before_mixing, p);
        lab_spend(m, LAB_LAYERS);
        TRY(lab_mix(m, b, l, e));
        lab_spend(m, LAB_MIXING);
        lab_share(m, pieces(b->rows), after_mixing, p);
        TRY(lab_mix_after(m, b, l, e));
        lab_spend(m, LAB_LAYERS);
    }
    p->asked = pick(m, b, all);
    lab_share(m, pieces(p->asked), to_logits, p);
    lab_spend(m, LAB_LOSSES);
    return LOCI_OK;
}

/* Losses and answers of a portion with computed logits. */
static void tell(struct lab_model *m, struct pass *p, double *loss, int32_t *best)
{
    lab_share(m, pieces(p->asked), to_loss, p);
    for (ptrdiff_t r = 0; r < p->b->rows; r++) {
        if (loss) loss[r] = 0;
        if (best) best[r] = -1;
    }
    for (ptrdiff_t i = 0; i < p->asked; i++) {
        if (loss) loss[m->where[i]] = m->cost[i];
        if (best) best[m->where[i]] = m->said[i];
    }
}

loci_status lab_model_forward(struct lab_model *m, const struct lab_batch *b, bool all,
                              double *loss, int32_t *best, loci_error *e)
{
    struct pass p;
    struct lab_batch part = { .sequences = 0 };
    loci_status status = begin(m, b, e);
    if (!status && !loss && !best) { /* logits of all at once */
        lab_make_rows(m, b->rows, false);
        return forward(m, b, all, &p, e);
    }
    for (int s = 0; !status && portion(m, b, s, &part); s += part.sequences) {
        const ptrdiff_t first = (ptrdiff_t)b->starts[s];
        lab_make_rows(m, part.rows, false);
        status = forward(m, &part, all, &p, e);
        if (!status) tell(m, &p, loss ? loss + first : NULL, best ? best + first : NULL);
    }
    free(part.starts);
    return status;
}
const void *lab_model_logits(const struct lab_model *m, ptrdiff_t *stride)
{
    *stride = m->stride;
    return m->logits;
}

/* ---- Backward -------------------------------------------------------------------------------- */

static void transpose_matrices(void *arg, int t)
{
    const struct pass *p = arg;
    struct lab_model *m = p->m;
    const struct lab_tensor *x = &m->tensor[t];
    if (x->decays && t != m->embed)
        m->engine->transpose(x->rows, x->stride, lab_weight(m, t), lab_at(m, m->transposed, x->at));
}

/* Gradients of matrices, x^T dy over all rows: each job computes some rows of one matrix. */
enum { OUTER_ROWS = 48, OUTERS = MAPS };
struct outer {
    int tensor;
    char *x, *dy;
};
struct outers {
    struct lab_model *m;
    ptrdiff_t rows;
    int count, blocks;
    struct outer list[OUTERS];
};

static void outer_block(void *arg, int index)
{
    const struct outers *o = arg;
    struct lab_model *m = o->m;
    const struct outer *x = &o->list[index / o->blocks];
    const struct lab_tensor *t = &m->tensor[x->tensor];
    const ptrdiff_t from = (ptrdiff_t)(index % o->blocks) * OUTER_ROWS,
                    n = t->rows - from < OUTER_ROWS ? t->rows - from : OUTER_ROWS;
    if (n <= 0) return;
    m->engine->product(false, n, t->stride, o->rows, lab_at(m, x->x, from), 1, t->rows, x->dy,
                       t->stride, lab_at(m, lab_gradient(m, x->tensor), from * t->stride),
                       t->stride);
}
static void add_outer(struct outers *o, int tensor, char *x, char *dy)
{
    const int blocks = (int)((o->m->tensor[tensor].rows + OUTER_ROWS - 1) / OUTER_ROWS);
    o->list[o->count++] = (struct outer){ tensor, x, dy };
    if (blocks > o->blocks) o->blocks = blocks;
}
static void make_outers(struct outers *o) { lab_share(o->m, o->count * o->blocks, outer_block, o); }

/* Sums the gradient of a gain from the partial sums of all pieces. */
static void add_parts(struct lab_model *m, int tensor, ptrdiff_t rows)
{
    const ptrdiff_t d = m->shape.dim;
    memcpy(lab_gradient(m, tensor), m->parts, (size_t)d * m->real);
    for (int i = 1; i < pieces(rows); i++)
        m->engine->add(d, lab_at(m, m->parts, i * d), lab_gradient(m, tensor));
}

static void logits_back(void *arg, int index)
{
    const struct pass *p = arg;
    struct lab_model *m = p->m;
    const ptrdiff_t d = m->shape.dim;
    ptrdiff_t from, n = piece(p->asked, index, &from);
    char *dy = lab_at(m, m->dy, from * d);
    apply_back(m, false, m->unembed, from, n, m->logits, m->db);
    memset(dy, 0, (size_t)(n * d) * m->real);
    m->engine->norm_backward(n, d, lab_at(m, m->picked, from * d), lab_weight(m, m->norm),
                             lab_at(m, m->top_scale, from), lab_at(m, m->db, from * d), dy,
                             lab_at(m, m->parts, index * d));
}

/* From dx, the gradient by a layer's output, to d_o, the gradient by attention's output, and dy,
 * the gradient by the layer's input to the residual sum. */
static void mlp_back(void *arg, int index)
{
    const struct pass *p = arg;
    struct lab_model *m = p->m;
    struct lab_saved *k = &m->saved[p->layer];
    const int *own = m->own[p->layer];
    const ptrdiff_t d = m->shape.dim, wide = m->shape.ffn;
    ptrdiff_t from, n = piece(p->b->rows, index, &from);
    apply_back(m, false, own[OWN_W2], from, n, m->dm ? m->dm : m->dx, m->dh);
    m->engine->gelu_backward(n * wide, lab_at(m, k->h, from * wide), lab_at(m, m->dh, from * wide));
    apply_back(m, false, own[OWN_W1], from, n, m->dh, m->db);
    memcpy(lab_at(m, m->dy, from * d), lab_at(m, m->dx, from * d), (size_t)(n * d) * m->real);
    m->engine->norm_backward(n, d, lab_at(m, k->y, from * d), lab_weight(m, own[OWN_NORM2]),
                             lab_at(m, k->scale2, from), lab_at(m, m->db, from * d),
                             lab_at(m, m->dy, from * d), lab_at(m, m->parts, index * d));
    apply_back(m, false, own[OWN_WO], from, n, m->dy, m->d_o);
}

/* From dy and the gradients by the maps to dx, the gradient by the layer's input. */
static void maps_back(void *arg, int index)
{
    const struct pass *p = arg;
    struct lab_model *m = p->m;
    struct lab_saved *k = &m->saved[p->layer];
    const ptrdiff_t d = m->shape.dim;
    ptrdiff_t from, n = piece(p->b->rows, index, &from);
    for (int i = 0; i < MAPS; i++)
        if (m->map[p->layer][i] >= 0)
            apply_back(m, i > 0, m->map[p->layer][i], from, n, m->dmap[i], m->db);
    memcpy(lab_at(m, m->dx, from * d), lab_at(m, m->dy, from * d), (size_t)(n * d) * m->real);
    m->engine->norm_backward(n, d, lab_at(m, k->x, from * d),
                             lab_weight(m, m->own[p->layer][OWN_NORM1]), lab_at(m, k->scale1, from),
                             lab_at(m, m->db, from * d), lab_at(m, m->dx, from * d),
                             lab_at(m, m->parts, index * d));
}

static loci_status layer_back(struct lab_model *m, const struct lab_batch *b, int l, struct pass *p,
                              loci_error *e)
{
    struct lab_saved *k = &m->saved[l];
    const int *own = m->own[l];
    struct outers mlp = { m, b->rows, 0, 0, { { 0 } } }, maps = mlp;
    p->layer = l;
    if (m->dm) memcpy(m->dm, m->dx, (size_t)(b->rows * m->shape.dim) * m->real);
    TRY(lab_mix_after_backward(m, b, l, e));
    lab_share(m, pieces(b->rows), mlp_back, p);
    add_parts(m, own[OWN_NORM2], b->rows);
    add_outer(&mlp, own[OWN_W2], k->u, m->dm ? m->dm : m->dx);
    add_outer(&mlp, own[OWN_W1], k->b, m->dh);
    add_outer(&mlp, own[OWN_WO], k->o, m->dy);
    make_outers(&mlp);
    lab_spend(m, LAB_LAYERS);
    TRY(lab_mix_backward(m, b, l, e));
    lab_spend(m, LAB_MIXING);
    lab_share(m, pieces(b->rows), maps_back, p);
    add_parts(m, own[OWN_NORM1], b->rows);
    for (int i = 0; i < MAPS; i++)
        if (m->map[l][i] >= 0) add_outer(&maps, m->map[l][i], k->a, m->dmap[i]);
    make_outers(&maps);
    return LOCI_OK;
}

static void embed_back(struct lab_model *m, const struct lab_batch *b)
{
    const ptrdiff_t d = m->shape.dim;
    char *table = lab_gradient(m, m->embed);
    memset(table, 0, (size_t)(m->shape.vocabulary * d) * m->real);
    for (ptrdiff_t r = 0; r < b->rows; r++)
        m->engine->add(d, lab_at(m, m->dx, r * d), lab_at(m, table, b->token[r] * d));
}

/* The gradients of a portion, whose rows have this share in the mean.  Adds its losses to *sum. */
static loci_status portion_back(struct lab_model *m, const struct lab_batch *b, double share,
                                double *sum, loci_error *e)
{
    const size_t row = (size_t)m->shape.dim * m->real;
    struct pass p;
    lab_make_rows(m, b->rows, true);
    TRY(forward(m, b, false, &p, e));
    p.share = share;
    lab_share(m, pieces(p.asked), to_loss, &p);
    for (ptrdiff_t i = 0; i < p.asked; i++) *sum += m->cost[i];

    struct outers top = { m, p.asked, 0, 0, { { 0 } } };
    lab_share(m, pieces(p.asked), logits_back, &p);
    add_parts(m, m->norm, p.asked);
    add_outer(&top, m->unembed, m->ys, m->logits);
    make_outers(&top);
    memset(m->dx, 0, (size_t)b->rows * row);
    for (ptrdiff_t i = 0; i < p.asked; i++)
        memcpy(m->dx + (size_t)m->where[i] * row, m->dy + (size_t)i * row, row);
    lab_spend(m, LAB_LOSSES);
    for (int l = m->shape.layers - 1; l >= 0; l--) TRY(layer_back(m, b, l, &p, e));
    TRY(lab_encoding_embed_backward(m, b, m->dx, e));
    embed_back(m, b);
    lab_spend(m, LAB_LAYERS);
    return LOCI_OK;
}

/* Gradients of portions overwrite the last step's gradients, and are added up in `sums`.  At the
 * end the two are swapped. */
loci_status lab_model_backward(struct lab_model *m, const struct lab_batch *b, double *mean,
                               loci_error *e)
{
    struct pass p = { .m = m };
    struct lab_batch part = { .sequences = 0 };
    double sum = 0;
    CHECK(e, m->view == &m->trained, LOCI_BAD_ARG, "a variant is not trained");
    CHECK(e, b->scored > 0, LOCI_BAD_ARG, "nothing in the batch is asked");
    TRY(begin(m, b, e));
    lab_share(m, m->tensors, transpose_matrices, &p);
    memset(m->sums, 0, (size_t)m->numbers * m->real);
    loci_status status = LOCI_OK;
    for (int s = 0; !status && portion(m, b, s, &part); s += part.sequences) {
        if (part.scored == 0) continue;
        status = portion_back(m, &part, 1 / (double)b->scored, &sum, e);
        if (!status) m->engine->add(m->numbers, m->list[LAB_GRADIENTS], m->sums);
        lab_spend(m, LAB_UPDATE);
    }
    free(part.starts);
    char *made = m->list[LAB_GRADIENTS];
    m->list[LAB_GRADIENTS] = m->sums;
    m->sums = made;
    *mean = sum / (double)b->scored;
    return status;
}
