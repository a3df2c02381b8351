/* SPDX-License-Identifier: MIT */
/* embed.c -- the public calls of stage EMBED, which add encodings of positions to rows. */
#include <stdatomic.h>

#include "api/api.h"
#include "api/tables.h"

/* Rows of a work item, and columns that are computed at a time on the stack. */
enum { EMBED_ROWS = 64, EMBED_COLUMNS = 256 };

/* What all work items of a call share. */
struct embedding {
    const loci_plan *plan;
    const void *table;
    const loci_call *call;
    loci_view x, y;
    atomic_bool cancelled;
};

/* Positions are given or counted.  With k_len, the rows are the last of k_len positions. */
int64_t loci_embed_pos(const loci_call *c, ptrdiff_t b, ptrdiff_t i)
{
    if (c->q_pos) return c->q_pos[(c->per_batch ? b * c->q_len : 0) + i];
    return (c->k_len ? c->k_len - c->q_len : 0) + i;
}

/* Opens a view of [B][L][Dm].  This stage has no heads. */
static loci_status embed_view(const loci_plan *p, const loci_call *c, loci_view *v,
                              const char *name)
{
    CHECK(c->error, v->data || c->batch == 0 || c->q_len == 0, LOCI_BAD_ARG, "%s is NULL", name);
    return loci_spell_out(v, name, c->batch, 1, c->q_len, p->model_dim, c->error);
}

/* y is NULL in the backward pass.  Then x is a gradient, and work and dtensors are written.  In the
 * forward pass y may be x, in place. */
loci_status loci_check_embed_memory(const loci_plan *p, const loci_call *c, const void *tables,
                                    const void *work, const loci_view *x, const loci_view *y,
                                    void *const *dtensors)
{
    struct regions r;
    r.n = 0;
    loci_add_view(&r, y ? "x" : "dy", x, c->batch, 1, c->q_len, p->model_dim, p->stored,
                  y ? REPLACED : READ);
    if (y) loci_add_view(&r, "y", y, c->batch, 1, c->q_len, p->model_dim, p->stored, WRITTEN);
    if (y)
        loci_add_list(&r, "tables", tables, loci_tables_size(p, loci_table_range(tables)), 1, READ);
    loci_add_list(&r, "work", work, loci_embed_workspace(p, c), 1, WRITTEN);
    loci_add_list(&r, "q_pos", c->q_pos, (size_t)((c->per_batch ? c->batch : 1) * c->q_len),
                  sizeof *c->q_pos, READ);
    for (int i = 0; i < p->tensors.n && dtensors; i++)
        loci_add_list(&r, p->tensors.list[i].name, dtensors[i],
                      (size_t)tensor_count(&p->tensors.list[i]), p->real, WRITTEN);
    return loci_check_regions(&r, c->error);
}

/* Shapes and positions.  16 times the number of elements must fit into a ptrdiff_t.  This covers 8
 * bytes each and the rounding of workspaces. */
static loci_status check_embed_call(const loci_plan *p, const loci_call *c)
{
    CHECK(c->error, p && p->magic == PLAN_MAGIC, LOCI_BAD_ARG,
          "plan was not made by loci_plan_create()");
    CHECK(c->error, p->stage == LOCI_EMBED, LOCI_BAD_ARG, "the plan must be one for stage EMBED");
    CHECK(c->error, c->batch >= 0 && c->q_len >= 0, LOCI_BAD_ARG,
          "batch %td and q_len %td must not be negative", c->batch, c->q_len);
    CHECK(c->error,
          c->q_len <= PTRDIFF_MAX / 16 / p->model_dim
              && (c->q_len == 0 || c->batch <= PTRDIFF_MAX / 16 / p->model_dim / c->q_len)
              && c->q_len / EMBED_ROWS < INT32_MAX,
          LOCI_BAD_ARG, "batch %td times q_len %td is too large", c->batch, c->q_len);
    CHECK(c->error, !c->q_starts && !c->k_starts, LOCI_BAD_ARG,
          "q_starts and k_starts must be NULL: embeddings read q_pos");
    CHECK(c->error, c->k_len == 0 || c->k_len >= c->q_len, LOCI_BAD_ARG,
          "k_len %td must be 0, or the number of positions so far, at least q_len %td", c->k_len,
          c->q_len);
    TRY(loci_check_near(c->q_pos, (c->per_batch ? c->batch : 1) * c->q_len, "q_pos", c->error));
    CHECK(c->error, c->q_pos || (c->q_len <= MOST_DISTANCE && c->k_len <= MOST_DISTANCE),
          LOCI_BAD_ARG, "q_len %td and k_len %td: positions must lie within " MOST_DISTANCE_TEXT,
          c->q_len, c->k_len);
    /* A plan of stage EMBED has one encoding.  If its table or code has a limited number of
     * positions, larger ones would read beyond it. */
    const struct loci_pe *pe = p->enc[0].pe;
    const bool ends = pe->embed->positions != NULL;
    const ptrdiff_t positions = ends ? pe->embed->positions(&p->enc[0]) : 0;
    for (ptrdiff_t b = 0; ends && b < c->batch; b++)
        for (ptrdiff_t i = 0; i < c->q_len; i++) {
            int64_t pos = loci_embed_pos(c, b, i);
            CHECK(c->error, pos >= 0 && pos < positions, LOCI_BAD_ARG,
                  "%s: position %lld of row %td must be from 0 to %td", pe->name, (long long)pos, i,
                  positions - 1);
        }
    return LOCI_OK;
}
loci_status loci_open_embed(const loci_plan *p, const loci_call *c, const void *tables,
                            loci_view *x, loci_view *y)
{
    TRY(check_embed_call(p, c));
    if (y) TRY(loci_check_tables(p, tables, c->tables_bytes, c->error));
    TRY(embed_view(p, c, x, y ? "x" : "dy"));
    return y ? embed_view(p, c, y, "y") : LOCI_OK;
}

/* Adds columns from .. from + n - 1 of row i in every batch entry.  They are computed once if the
 * entries share their positions.  The sum is in double and is rounded once. */
static void embed_row(const struct embedding *e, ptrdiff_t i, int from, int n)
{
    const loci_plan *p = e->plan;
    const struct config *cfg = &p->enc[0];
    double row[EMBED_COLUMNS];
    for (ptrdiff_t b = 0; b < e->call->batch; b++) {
        /* Positions that are counted, or given once, are the same in all entries. */
        if (b == 0 || (e->call->q_pos && e->call->per_batch))
            cfg->pe->embed->row(cfg, e->table, p->f64, loci_embed_pos(e->call, b, i), from, n, row);
        ptrdiff_t x = b * e->x.batch + i * e->x.row + from,
                  y = b * e->y.batch + i * e->y.row + from;
        for (int c = 0; c < n; c++)
            store_stored(e->y.data, p->dtype, y + c,
                         load_stored(e->x.data, p->dtype, x + c) + row[c]);
    }
}

/* Rows are independent, so items need no order.  Every item checks whether the host has cancelled.
 * Completed rows stay written. */
static void embed_item(void *arg, int item)
{
    struct embedding *e = arg;
    const loci_host *host = e->call->host;
    if (host && host->cancelled && host->cancelled(host->user)) e->cancelled = true;
    if (e->cancelled) return;
    int width = e->plan->model_dim;
    ptrdiff_t first = (ptrdiff_t)item * EMBED_ROWS, left = e->call->q_len - first;
    for (ptrdiff_t i = first; i < first + (left < EMBED_ROWS ? left : EMBED_ROWS); i++)
        for (int from = 0; from < width; from += EMBED_COLUMNS)
            embed_row(e, i, from, width - from < EMBED_COLUMNS ? width - from : EMBED_COLUMNS);
}

loci_status loci_embed(const loci_plan *p, const void *tables, const loci_call *given, loci_view x,
                       loci_view y)
{
    loci_call now, *const c = &now;
    TRY(loci_copy_call(c, wants_sizes(p), given));
    TRY(loci_open_embed(p, c, tables, &x, &y));
    TRY(loci_check_embed_memory(p, c, tables, NULL, &x, &y, NULL));
    struct embedding e = {
        .plan = p,
        .table = loci_table_of(tables, p, 0),
        .call = c,
        .x = x,
        .y = y,
    };
    /* check_embed_call() limits the number of items to an int. */
    int items = (int)((c->q_len + EMBED_ROWS - 1) / EMBED_ROWS);
    if (c->host && c->host->run && items > 1) c->host->run(c->host->user, items, embed_item, &e);
    else
        for (int i = 0; i < items; i++) embed_item(&e, i);
    return e.cancelled ? loci_fail(c->error, LOCI_CANCELLED, "cancelled by the host") : LOCI_OK;
}

/* The workspace of the backward pass: a row, then the gradients of the tensors, all in double. */
size_t loci_embed_workspace(const loci_plan *p, const loci_call *c)
{
    struct arena a = { 0 };
    (void)c;
    carve_bytes(&a, (size_t)p->model_dim, sizeof(double));
    for (int i = 0; i < p->tensors.n; i++)
        carve_bytes(&a, (size_t)tensor_count(&p->tensors.list[i]), sizeof(double));
    return a.full || a.used > PTRDIFF_MAX ? 0 : a.used;
}

/* One thread processes rows in order.  Positions may repeat, so sums need a fixed order. */
loci_status loci_embed_backward(const loci_plan *p, const void *tables, void *work,
                                const loci_call *given, loci_view dy, void *const *dtensors)
{
    loci_call now, *const c = &now;
    TRY(loci_copy_call(c, wants_sizes(p), given));
    TRY(loci_open_embed(p, c, tables, &dy, NULL));
    const struct config *cfg = &p->enc[0];
    if (!dtensors || !cfg->pe->embed->row_bwd) return LOCI_OK;
    CHECK(c->error, aligned(work), LOCI_BAD_ARG,
          "work must not be NULL and must be aligned to %d bytes", ALIGN);
    const size_t need = loci_embed_workspace(p, c);
    CHECK(c->error, !c->work_bytes || c->work_bytes >= need, LOCI_BAD_ARG,
          "work has %zu bytes, but this call needs %zu; loci_workspace() returns the size",
          c->work_bytes, need);
    TRY(loci_check_embed_memory(p, c, tables, work, &dy, NULL, dtensors));

    /* Sums are in double and start at 0.  They are written to the caller's tensors at the end, so a
     * cancelled call writes none. */
    double *row = work, *dtensor[MAX_TENSORS] = { 0 };
    char *at = (char *)work + round_up((size_t)p->model_dim * sizeof(double));
    for (int i = 0; i < p->tensors.n; i++) {
        size_t bytes = (size_t)tensor_count(&p->tensors.list[i]) * sizeof(double);
        dtensor[i] = memset(at, 0, bytes);
        at += round_up(bytes);
    }
    for (ptrdiff_t b = 0; b < c->batch; b++)
        for (ptrdiff_t i = 0; i < c->q_len; i++) {
            /* As often as in the forward pass. */
            if (c->host && i % EMBED_ROWS == 0 && c->host->cancelled
                && c->host->cancelled(c->host->user))
                return loci_fail(c->error, LOCI_CANCELLED, "cancelled by the host");
            for (int k = 0; k < p->model_dim; k++)
                row[k] = load_stored(dy.data, p->dtype, b * dy.batch + i * dy.row + k);
            cfg->pe->embed->row_bwd(cfg, loci_embed_pos(c, b, i), row, dtensor);
        }
    for (int i = 0; i < p->tensors.n; i++)
        for (ptrdiff_t k = 0; dtensors[i] && k < tensor_count(&p->tensors.list[i]); k++)
            store_real(dtensors[i], p->f64, k, dtensor[i][k]);
    return LOCI_OK;
}
