/* SPDX-License-Identifier: MIT */
/* gaps.c -- a mask that hides tiles of keys across borders of chunks: outputs and all gradients are
 * those of a call that has only the visible keys, at their positions.  The first call has a run of
 * positions, so terms go from tile to tile and from chunk to chunk and meet gaps; the second goes
 * pair by pair. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "mem.h"
#include "walk.h"

enum { H = 2, ROWS = 70, KEYS = 8300, MOST_RESULTS = 8 + WALK_TENSORS };

/* Of three chunks of keys, rows see some of each; none of the second; none of the last. */
enum gap { BORDERS, SECOND, LAST, GAPS };
static bool is_visible(enum gap gap, int key)
{
    const bool first = key < 41, second = key >= 4200 && key < 4231 && gap != SECOND,
               last = key >= 8225 && gap != LAST;
    return (first || second || last) && key % 7 != 3;
}

/* Results of a call, by key, by row or learned. */
struct results {
    int n;
    struct {
        const char *name;
        double *at;
        ptrdiff_t outer, inner; /* [outer][keys][inner], or outer numbers if inner is 0 */
    } of[MOST_RESULTS];
};
static double *result(struct mem *m, struct results *r, const char *name, ptrdiff_t outer,
                      ptrdiff_t inner, ptrdiff_t keys)
{
    const size_t n = (size_t)(inner ? outer * keys * inner : outer);
    double *at = memset(mem_alloc(m, n * sizeof *at), 0, n * sizeof *at);
    r->of[r->n].name = name;
    r->of[r->n].at = at;
    r->of[r->n].outer = outer;
    r->of[r->n++].inner = inner;
    return at;
}

static double *numbers(struct mem *m, ptrdiff_t n, double size)
{
    double *x = mem_alloc(m, (size_t)n * sizeof *x);
    for (ptrdiff_t i = 0; i < n; i++) x[i] = size * walk_uniform();
    return x;
}
/* The visible keys of [outer][KEYS][inner]. */
static double *gather(struct mem *m, const double *x, ptrdiff_t outer, ptrdiff_t inner,
                      const int64_t *keys, ptrdiff_t n)
{
    double *to = mem_alloc(m, (size_t)(outer * n * inner) * sizeof *to);
    for (ptrdiff_t o = 0; o < outer; o++)
        for (ptrdiff_t i = 0; i < n; i++)
            memcpy(to + (o * n + i) * inner, x + (o * KEYS + keys[i]) * inner,
                   (size_t)inner * sizeof *to);
    return to;
}
/* What comes before and after the keys in the shape of a tensor; inner 0: it has no keys. */
static void split(const loci_tensor *t, ptrdiff_t *outer, ptrdiff_t *inner)
{
    bool met = false;
    *outer = *inner = 1;
    for (int i = 0; i < t->rank; i++) {
        const ptrdiff_t n = t->shape[i] == LOCI_DIM_BATCH   ? 1
                          : t->shape[i] == LOCI_DIM_QUERIES ? ROWS
                                                            : t->shape[i];
        if (n == LOCI_DIM_KEYS) met = true;
        else if (met) *inner *= n;
        else *outer *= n;
    }
    if (!met) *inner = 0;
}

struct problem {
    const char *text;
    loci_plan *plan;
    int D, axes, tensors;
    loci_tensor tensor[WALK_TENSORS];
    const void *data[WALK_TENSORS];
    double *q, *k, *v, *dout, *coord_q, *coord_k; /* coordinates: [axes][len] */
    int64_t place[KEYS], rows[ROWS];              /* positions of visible keys, and of rows */
    unsigned char seen[KEYS];
    ptrdiff_t n; /* visible keys */
};

/* All keys and a mask, or visible keys alone. */
static loci_status compute(struct mem *m, const struct problem *p, bool all, struct results *r,
                           loci_error *e)
{
    const ptrdiff_t keys = all ? KEYS : p->n, D = p->D;
    const void *data[WALK_TENSORS];
    void *ddata[WALK_TENSORS];
    loci_call c = LOCI_CALL(.batch = 1, .q_len = ROWS, .k_len = keys, .q.data = p->q,
                            .k.data = p->k, .v.data = p->v, .tensors = data, .error = e);
    loci_grad g = LOCI_GRAD(.dout.data = p->dout, .dtensors = ddata);
    *r = (struct results){ 0 };
    c.o.data = result(m, r, "o", H * ROWS * D, 0, 0);
    *(strstr(p->text, "sba") ? &c.rem : &c.lse) = result(m, r, "lse or rem", H * ROWS, 0, 0);
    g.dq.data = result(m, r, "dq", H * ROWS * D, 0, 0);
    g.dk.data = result(m, r, "dk", 1, D, keys);
    g.dv.data = result(m, r, "dv", 1, D, keys);
    for (int i = 0; i < p->tensors; i++) {
        ptrdiff_t outer, inner;
        split(&p->tensor[i], &outer, &inner);
        data[i] = p->data[i];
        if (inner && !all) data[i] = gather(m, data[i], outer, inner, p->place, p->n);
        ddata[i] = result(m, r, p->tensor[i].name, outer, inner, keys);
    }
    if (p->axes > 1) {
        c.q_coord = p->coord_q;
        c.k_coord = all ? p->coord_k : gather(m, p->coord_k, p->axes, 1, p->place, p->n);
    }
    if (all) {
        c.mask_kind = LOCI_MASK_SEEN;
        c.mask = (loci_view){ (void *)p->seen, LOCI_BROADCAST, LOCI_BROADCAST, LOCI_BROADCAST };
    } else {
        c.k.data = gather(m, p->k, 1, D, p->place, p->n);
        c.v.data = gather(m, p->v, 1, D, p->place, p->n);
        c.q_pos = p->rows;
        c.k_pos = p->place;
    }
    const size_t tables = loci_tables_size(p->plan, KEYS + ROWS),
                 work = loci_workspace(p->plan, &c, 1);
    void *table = mem_alloc(m, tables);
    loci_status status = loci_prepare(p->plan, KEYS + ROWS, data, table);
    void *at = mem_alloc(m, work);
    if (!status) status = loci_forward(p->plan, table, at, &c);
    if (!status) status = loci_backward(p->plan, table, at, &c, &g);
    return status;
}
/* The largest difference, against the largest number.  Keys that are hidden have gradient 0. */
static void compare(const struct problem *p, const struct results *a, const struct results *b)
{
    for (int x = 0; x < a->n; x++) {
        const ptrdiff_t outer = a->of[x].outer, inner = a->of[x].inner;
        const double *masked = a->of[x].at, *alone = b->of[x].at;
        double most = 0, off = 0, hidden = 0;
        ptrdiff_t next = 0;
        for (ptrdiff_t i = 0; i < (inner ? outer * KEYS * inner : outer); i++) {
            if (inner && !p->seen[i / inner % KEYS]) {
                hidden = fmax(hidden, fabs(masked[i]));
                continue;
            }
            most = fmax(most, fabs(alone[next]));
            off = fmax(off, fabs(masked[i] - alone[next]));
            if (masked[i] - alone[next] != masked[i] - alone[next]) off = INFINITY;
            next++;
        }
        CHECK_THAT(off <= 1e-9 * (most + 1e-3), "%s: %s is off by %.3g of %.3g", p->text,
                   a->of[x].name, off, most);
        CHECK_THAT(hidden == 0, "%s: %s of hidden keys is %.3g", p->text, a->of[x].name, hidden);
    }
}
/* False: the second call is refused. */
static bool check(const char *text, enum gap gap)
{
    struct mem m = { 0 };
    loci_error e = { 0 };
    struct problem *p = memset(mem_alloc(&m, sizeof *p), 0, sizeof *p);
    p->text = text;
    p->D = walk_dim(text, 6);
    const loci_desc d = LOCI_DESC(.encoding = text, .heads = H, .kv_heads = 1, .dim = p->D,
                                  .dtype = LOCI_F64, .max_len = KEYS + ROWS);
    struct results masked, alone;
    bool runs = true;
    if (loci_plan_create(&p->plan, &d, &e)) {
        CHECK_FAILED("%s: %s", text, e.text);
        mem_release(&m, 0);
        return true;
    }
    for (int i = 0; i < ROWS; i++) p->rows[i] = KEYS - ROWS + i;
    for (int j = 0; j < KEYS; j++)
        if ((p->seen[j] = is_visible(gap, j))) p->place[p->n++] = j;
    p->q = numbers(&m, H * ROWS * p->D, 1);
    p->k = numbers(&m, KEYS * p->D, 1);
    p->v = numbers(&m, KEYS * p->D, 1);
    p->dout = numbers(&m, H * ROWS * p->D, 1);
    p->axes = loci_axes(p->plan);
    p->coord_q = numbers(&m, p->axes * ROWS, 9);
    p->coord_k = numbers(&m, p->axes * KEYS, 9);
    p->tensors = loci_tensors(p->plan, p->tensor, WALK_TENSORS);
    for (int i = 0; i < p->tensors; i++) {
        const ptrdiff_t n = (ptrdiff_t)walk_count(&p->tensor[i], 1, ROWS, KEYS);
        double *x = numbers(&m, n, 0.1);
        if (p->tensor[i].role != LOCI_INPUT) {
            double *start = numbers(&m, n, 0);
            loci_tensor_init(p->plan, i, 1, start);
            for (ptrdiff_t j = 0; j < n; j++) x[j] = start[j] + 0.2 + x[j];
        }
        p->data[i] = x;
    }
    loci_status status = compute(&m, p, true, &masked, &e);
    if (CHECK_THAT(!status, "%s with a mask: %s", text, e.text)) {
        status = compute(&m, p, false, &alone, &e);
        runs = !status;
        if (runs) compare(p, &masked, &alone);
        else printf("%s: left out: %s\n", text, e.text);
    }
    loci_plan_destroy(p->plan);
    mem_release(&m, 0);
    return runs;
}

int main(int argc, char **argv)
{
    int texts = 0, all = 0, refused = 0;
    walk_only(argc, argv);
    for (struct walk_text t = { 0 }; walk_next(&t);) {
        /* hidden keys act on the rows of path and wall, too */
        if (walk_moves(t.text) || (texts++ % (LOCI_EMULATED ? 16 : 8) && LOCI_SLOW)) continue;
        for (enum gap gap = BORDERS; gap < GAPS; gap++) {
            refused += !check(t.text, gap);
            all++;
        }
    }
    CHECK_THAT(refused * 4 < all, "%d of %d calls are left out", refused, all);
    return harness_end();
}
