/* SPDX-License-Identifier: MIT */
/* tables.c -- tables of learned and fixed tensors: prepare() of each encoding, and the checks of a
 * call.
 *
 * The block records its size and the distances that it covers.  Its layout follows from the plan
 * and that range only, so there are no stored offsets that could be wrong. */
#include "api/tables.h"
#include "util/arena.h"
#include "util/arguments.h"
#include "util/overlap.h"

struct tables_header {
    uint64_t magic, bytes;
    int64_t range;
};

static size_t table_size(const loci_plan *p, int enc, ptrdiff_t range)
{
    const struct loci_pe *pe = p->enc[enc].pe;
    return pe->size ? pe->size(&p->enc[enc], range, p->real) : 0;
}

/* Returns 0 if such tables cannot exist: they would exceed memory, or max_distance is out of
 * range. */
size_t loci_tables_size(const loci_plan *p, ptrdiff_t max_distance)
{
    if (!p || max_distance < 0 || max_distance > MOST_DISTANCE) return 0;
    size_t bytes = ALIGN;
    for (int e = 0; e < p->encs; e++) {
        size_t n = table_size(p, e, max_distance);
        if (n > PTRDIFF_MAX - ALIGN || round_up(n) > PTRDIFF_MAX - bytes) return 0;
        bytes += round_up(n);
    }
    return bytes;
}

/* loci_check_tables() detects a damaged range, because it compares the size that follows from
 * it. */
ptrdiff_t loci_table_range(const void *tables)
{
    const struct tables_header *head = tables;
    return aligned(tables) && head->magic == TABLES_MAGIC ? (ptrdiff_t)head->range : -1;
}

const void *loci_table_of(const void *tables, const loci_plan *p, int enc)
{
    const char *at = (const char *)tables + ALIGN;
    for (int e = 0; e < enc; e++) at += round_up(table_size(p, e, loci_table_range(tables)));
    return at;
}

/* The size distinguishes most other plans, but not all.  Two plans of equal layout could use each
 * other's tables, and only the caller can know. */
loci_status loci_check_tables(const loci_plan *p, const void *tables, size_t capacity,
                              loci_error *e)
{
    CHECK(e, aligned(tables), LOCI_BAD_ARG,
          "tables must not be NULL and must be aligned to %d bytes", ALIGN);
    CHECK(e, capacity == 0 || capacity >= ALIGN, LOCI_BAD_ARG,
          "tables_bytes is %zu, but tables have at least %d bytes", capacity, ALIGN);
    /* The range is read before the size is checked: it
     * lies in the first 64 bytes, which are there. */
    ptrdiff_t range = loci_table_range(tables);
    CHECK(e, range >= 0, LOCI_BAD_ARG, "tables are not prepared; call loci_prepare() first");
    const size_t bytes = loci_tables_size(p, range);
    CHECK(e, ((const struct tables_header *)tables)->bytes == bytes, LOCI_BAD_ARG,
          "tables were prepared for another plan; call loci_prepare() with this one");
    CHECK(e, capacity == 0 || capacity >= bytes, LOCI_BAD_ARG,
          "tables_bytes is %zu, but the tables were prepared for max_distance %td and have %zu "
          "bytes",
          capacity, range, bytes);
    return LOCI_OK;
}

/* Tensors must not be NULL, tables must be writable, and they must not overlap. */
static loci_status check_prepare(const loci_plan *p, ptrdiff_t max_distance,
                                 const void *const *tensors, void *tables, const loci_host *host,
                                 loci_error *e)
{
    CHECK(e, p, LOCI_BAD_ARG, "the plan must not be NULL");
    CHECK(e, max_distance >= 0 && max_distance <= MOST_DISTANCE, LOCI_BAD_ARG,
          "max_distance %td must be 0 .. " MOST_DISTANCE_TEXT, max_distance);
    const size_t bytes = loci_tables_size(p, max_distance);
    CHECK(e, bytes > 0, LOCI_BAD_ARG,
          "tables for max_distance %td need more bytes than size_t can count", max_distance);
    CHECK(e, aligned(tables), LOCI_BAD_ARG,
          "tables must not be NULL and must be aligned to %d bytes", ALIGN);
    CHECK(e, !host || !host->run || (host->threads >= 1 && host->threads <= MAX_THREADS),
          LOCI_BAD_ARG, "host: threads %d must be 1 .. %d", host->threads, MAX_THREADS);
    struct regions r;
    r.n = 0;
    loci_add_list(&r, "tables", tables, bytes, 1, WRITTEN);
    for (int i = 0; i < p->tensors.n; i++) {
        const loci_tensor *t = &p->tensors.list[i];
        /* Inputs come with the calls. */
        if (t->role == LOCI_INPUT) continue;
        CHECK(e, tensors && tensors[i], LOCI_BAD_ARG, "tensor %d, %s, is missing", i, t->name);
        loci_add_list(&r, t->name, tensors[i], (size_t)tensor_count(t), p->real, READ);
    }
    return loci_check_regions(&r, e);
}

loci_status loci_prepare(const loci_plan *p, ptrdiff_t max_distance, const void *const *tensors,
                         void *tables)
{
    return loci_prepare_on(NULL, p, max_distance, tensors, tables, NULL);
}
loci_status loci_prepare_on(const loci_host *host, const loci_plan *p, ptrdiff_t max_distance,
                            const void *const *tensors, void *tables, loci_error *e)
{
    const loci_status status = check_prepare(p, max_distance, tensors, tables, host, e);
    if (status) return status;
    const size_t bytes = loci_tables_size(p, max_distance);

    /* The magic is written last.  So tables that are read meanwhile, or left incomplete, are
     * refused.  Bytes that no encoding fills are 0. */
    memset(tables, 0, bytes);
    char *at = (char *)tables + ALIGN;
    for (int x = 0; x < p->encs; x++) {
        int first = p->first_tensor[x];
        size_t n = table_size(p, x, max_distance);
        struct prep prep = {
            .cfg = &p->enc[x],
            .tensor = p->tensors.list + first,
            .data = tensors ? tensors + first : NULL,
            .f64 = p->f64,
            .range = max_distance,
            .layout = loci_layout_of(p, x),
            .table = at,
            .engine = p->engine,
            .host = host,
        };
        if (p->enc[x].pe->prepare) p->enc[x].pe->prepare(&prep);
        at += round_up(n);
    }
    *(struct tables_header *)tables = (struct tables_header){ TABLES_MAGIC, bytes, max_distance };
    return LOCI_OK;
}
