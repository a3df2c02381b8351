/* SPDX-License-Identifier: MIT */
/* mask.c -- visibility of keys, pair by pair: masks of bytes, masks of numbers that are added,
 * first and last keys.  Every encoding is compared with the reference in double, gradients of added
 * masks with differences, and bits with equivalent calls. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "loci/cache.h"
#include "reference/reference.h"
#include "harness.h"
#include "mem.h"
#include "walk.h"

enum { B = 2, H = 4, G = 2, WANTED = 12 };
enum kind { SEEN, ADDED, RANGES, ALL_OF_IT, KINDS };
static const char *const kinds[] = { "seen", "added", "ranges", "added, ranges and segments" };

/* A problem in double, exact in float; and its visible pairs as bytes, as numbers and as first and
 * last keys. */
struct problem {
    const char *text;
    bool causal, mixes;
    int D, axes, tensors;
    ptrdiff_t rows, keys, range;
    loci_tensor tensor[WALK_TENSORS];
    size_t size[WALK_TENSORS];
    double *q, *k, *v, *dout, *drow, *coord_q, *coord_k, *data[WALK_TENSORS];
    unsigned char *seen; /* [B][H][rows][keys] */
    double *added;
    int64_t *first, *last, *q_seg, *k_seg; /* [B][rows], [B][keys] */
    struct mem mem;
};
/* The results: o, lse or rem, dq, dk, dv, dmask, and the tensors' gradients. */
struct results {
    int n;
    struct {
        const char *name;
        void *at;
        size_t count;
    } of[WANTED + WALK_TENSORS];
};

static double *numbers(struct problem *p, size_t n, double size)
{
    double *x = mem_alloc(&p->mem, n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = (float)(size * walk_uniform());
    return x;
}
static bool heads_mix(const char *text) { return strstr(text, "cape") != NULL; }

static void open_masks(struct problem *p)
{
    const size_t pairs = (size_t)(B * H * p->rows * p->keys);
    p->seen = mem_alloc(&p->mem, pairs);
    p->added = numbers(p, pairs, 2);
    p->first = mem_alloc(&p->mem, sizeof(int64_t) * (size_t)(B * p->rows));
    p->last = mem_alloc(&p->mem, sizeof(int64_t) * (size_t)(B * p->rows));
    p->q_seg = mem_alloc(&p->mem, sizeof(int64_t) * (size_t)(B * p->rows));
    p->k_seg = mem_alloc(&p->mem, sizeof(int64_t) * (size_t)(B * p->keys));
}
/* Rows that see little, nothing, all, and whole tiles that no row sees. */
static void draw_masks(struct problem *p)
{
    for (ptrdiff_t b = 0; b < B; b++)
        for (ptrdiff_t j = 0; j < p->keys; j++) p->k_seg[b * p->keys + j] = j * 3 / p->keys - b;
    for (ptrdiff_t b = 0; b < B; b++)
        for (ptrdiff_t i = 0; i < p->rows; i++) {
            const ptrdiff_t at = b * p->rows + i, own = p->keys - p->rows + i;
            const ptrdiff_t back = (ptrdiff_t)((1 + walk_uniform()) * (double)p->keys / 2);
            p->first[at] = own - back;
            p->last[at] = i % 5 == 4 ? own + 3 : i % 7 == 6 ? own - back - 1 : own;
            p->q_seg[at] = p->k_seg[b * p->keys + (own < 0 ? 0 : own)];
        }
    for (ptrdiff_t h = 0; h < B * H; h++)
        for (ptrdiff_t i = 0; i < p->rows; i++)
            for (ptrdiff_t j = 0; j < p->keys; j++) {
                const bool apart = p->keys > 128 && j / 64 == 1 && i < 64;
                const ptrdiff_t at = (h * p->rows + i) * p->keys + j;
                p->seen[at] = i % 11 != 3 && !apart && (i % 11 == 5 || walk_uniform() < 0.4);
                p->added[at] = (float)(2 * walk_uniform());
                if (!p->seen[at]) p->added[at] = -INFINITY;
                else p->seen[at] = (unsigned char)(1 + j % 200);
            }
}

/* The plan in a type and for an instruction set.  NULL, and a failed check, if it cannot be
 * created. */
static loci_plan *plan_of(const struct problem *p, loci_dtype dtype, const char *isa, bool full,
                          int64_t window)
{
    loci_error e;
    loci_plan *plan;
    const loci_desc d =
        LOCI_DESC(.encoding = p->text, .heads = H, .kv_heads = G, .dim = p->D, .dtype = dtype,
                  .max_len = p->range, .full = full, .isa = isa, .window_left = window);
    if (loci_plan_create(&plan, &d, &e)) CHECK_FAILED("%s: %s", p->text, e.text);
    return plan;
}

static bool open_problem(struct problem *p, const char *text, ptrdiff_t rows, ptrdiff_t keys)
{
    *p = (struct problem){ .text = text,
                           .rows = rows,
                           .keys = keys,
                           .range = keys + 64,
                           .D = walk_dim(text, 6),
                           .causal = true,
                           .mixes = heads_mix(text) };
    loci_plan *plan = plan_of(p, LOCI_F64, NULL, false, 0);
    if (!plan) return false;
    const size_t D = (size_t)p->D, qs = B * H * (size_t)rows * D, ks = B * G * (size_t)keys * D;
    p->tensors = loci_tensors(plan, p->tensor, WALK_TENSORS);
    for (int i = 0; i < p->tensors; i++) {
        p->size[i] = walk_count(&p->tensor[i], B, rows, keys);
        double *x = p->data[i] = numbers(p, p->size[i], 0.3);
        if (p->tensor[i].role == LOCI_INPUT) continue;
        double *start = numbers(p, p->size[i], 0);
        loci_tensor_init(plan, i, 1, start);
        for (size_t n = 0; n < p->size[i]; n++) x[n] = (float)(start[n] + 0.2 + 0.3 * x[n]);
    }
    p->q = numbers(p, qs, 1);
    p->k = numbers(p, ks, 1);
    p->v = numbers(p, ks, 1);
    p->dout = numbers(p, qs, 1);
    p->drow = numbers(p, B * H * (size_t)rows, 1);
    const size_t axes = (size_t)(p->axes = loci_axes(plan));
    if (axes > 1) {
        p->coord_q = numbers(p, axes * (size_t)rows, 9);
        p->coord_k = numbers(p, axes * (size_t)keys, 9);
    }
    loci_plan_destroy(plan);
    open_masks(p);
    draw_masks(p);
    return true;
}

/* Doubles in the type of the plan. */
static void *as(struct problem *p, const double *x, size_t n, bool f64)
{
    if (!x || f64) return (void *)x;
    float *y = mem_alloc(&p->mem, n * sizeof *y);
    for (size_t i = 0; i < n; i++) y[i] = (float)x[i];
    return y;
}
static void *result(struct problem *p, struct results *r, const char *name, size_t n, bool f64)
{
    r->of[r->n].name = name;
    r->of[r->n].count = n;
    return r->of[r->n++].at = memset(mem_alloc(&p->mem, n * (f64 ? 8 : 4)), 0, n * (f64 ? 8 : 4));
}

/* The form of a call: its type, its instruction set, and the masks that it has. */
struct way {
    bool f64, reference, full, forward;
    const char *isa;
    int64_t window;
    enum kind kind;
    bool plain, bytes_of_ranges;               /* only order and window; ranges given as bytes */
    enum { WRITTEN_OUT, TURNED, BY_ROW } laid; /* masks: keys apart, or a number for all keys */
    const loci_host *host;
};

/* The same mask with the keys before the rows, or with the first number of each row. */
static void lay_otherwise(struct problem *p, const struct way *w, loci_call *c)
{
    const size_t each = c->mask_kind == LOCI_MASK_SEEN ? 1 : w->f64 ? 8 : 4;
    const ptrdiff_t rows = p->rows, keys = p->keys, width = w->laid == TURNED ? keys : 1;
    char *to = mem_alloc(&p->mem, B * H * (size_t)(rows * width) * each);
    for (ptrdiff_t h = 0; h < B * H; h++)
        for (ptrdiff_t i = 0; i < rows; i++)
            for (ptrdiff_t j = 0; j < width; j++)
                memcpy(to + (size_t)((h * width + j) * rows + i) * each,
                       (char *)c->mask.data + (size_t)((h * rows + i) * keys + j) * each, each);
    const ptrdiff_t head = p->mixes ? LOCI_BROADCAST : rows * width;
    c->mask = (loci_view){ to, H * rows * width, head, 1 };
    c->mask_key = w->laid == TURNED ? rows : LOCI_BROADCAST;
    if (w->laid == BY_ROW && !p->mixes) c->mask = (loci_view){ .data = to };
}
static void say_who(struct problem *p, const struct way *w, loci_call *c)
{
    const ptrdiff_t broadcast = p->mixes ? LOCI_BROADCAST : p->rows * p->keys;
    const loci_view view = { NULL, H * p->rows * p->keys, broadcast, p->keys };
    if (w->plain) return;
    if (w->kind == SEEN || w->bytes_of_ranges) {
        c->mask_kind = LOCI_MASK_SEEN;
        c->mask = view;
        c->mask.data = p->seen;
    } else if (w->kind != RANGES) {
        c->mask_kind = LOCI_MASK_ADDED;
        c->mask = view;
        c->mask.data = as(p, p->added, B * H * (size_t)(p->rows * p->keys), w->f64);
    }
    if (w->laid && c->mask_kind) lay_otherwise(p, w, c);
    if (w->kind >= RANGES && !w->bytes_of_ranges) {
        c->k_first = p->first;
        c->k_last = p->last;
    }
    if (w->kind == ALL_OF_IT) {
        c->q_seg = p->q_seg;
        c->k_seg = p->k_seg;
    }
    c->per_batch = c->k_first || c->q_seg;
    if (c->per_batch && c->q_coord) { /* then coordinates are per batch too */
        const size_t q = (size_t)(p->rows * p->axes), k = (size_t)(p->keys * p->axes);
        double *cq = numbers(p, B * q, 0), *ck = numbers(p, B * k, 0);
        for (size_t b = 0; b < B; b++) {
            memcpy(cq + b * q, p->coord_q, q * sizeof *cq);
            memcpy(ck + b * k, p->coord_k, k * sizeof *ck);
        }
        c->q_coord = cq;
        c->k_coord = ck;
    }
}

static bool run(struct problem *p, struct way w, struct results *r)
{
    *r = (struct results){ .n = 0 };
    loci_error e = { 0 };
    loci_plan *plan = plan_of(p, w.f64 ? LOCI_F64 : LOCI_F32, w.isa, w.full, w.window);
    if (!plan) return false;
    const size_t D = (size_t)p->D, rows = B * H * (size_t)p->rows, ks = B * G * (size_t)p->keys * D,
                 pairs = rows * (size_t)p->keys;
    const void *tensors[WALK_TENSORS];
    void *dtensors[WALK_TENSORS] = { NULL };
    for (int i = 0; i < p->tensors; i++) tensors[i] = as(p, p->data[i], p->size[i], w.f64);
    walk_restart(3);
    loci_call c = LOCI_CALL(.batch = B, .q_len = p->rows, .k_len = p->keys, .error = &e,
                            .q = { as(p, p->q, rows * D, w.f64), 0, 0, 0 },
                            .k = { as(p, p->k, ks, w.f64), 0, 0, 0 },
                            .v = { as(p, p->v, ks, w.f64), 0, 0, 0 }, .q_coord = p->coord_q,
                            .k_coord = p->coord_k, .tensors = tensors, .host = w.host);
    c.o.data = result(p, r, "o", rows * D, w.f64);
    const bool stick = strstr(p->text, "sba") != NULL;
    void *row = result(p, r, stick ? "rem" : "lse", rows, w.f64);
    *(stick ? &c.rem : &c.lse) = row;
    if (walk_states(p->text)) c.ae = result(p, r, "ae", rows * D, w.f64);
    say_who(p, &w, &c);
    loci_grad g =
        LOCI_GRAD(.dout = { as(p, p->dout, rows * D, w.f64), 0, 0, 0 }, .dtensors = dtensors);
    if (!w.forward) {
        *(stick ? &g.drem : &g.dlse) = as(p, p->drow, rows, w.f64);
        g.dq.data = result(p, r, "dq", rows * D, w.f64);
        g.dk.data = result(p, r, "dk", ks, w.f64);
        g.dv.data = result(p, r, "dv", ks, w.f64);
        if (c.mask_kind == LOCI_MASK_ADDED) g.dmask.data = result(p, r, "dmask", pairs, w.f64);
        for (int i = 0; i < p->tensors; i++)
            if (p->tensor[i].role != LOCI_FIXED)
                dtensors[i] = result(p, r, p->tensor[i].name, p->size[i], w.f64);
    }
    bool ok;
    if (w.reference) {
        ok = !loci_reference(plan, tensors, &c, w.forward ? NULL : &g);
    } else {
        void *tables = mem_alloc(&p->mem, loci_tables_size(plan, p->range)),
             *work = mem_alloc(&p->mem, loci_workspace(plan, &c, 1));
        ok = !loci_prepare(plan, p->range, tensors, tables) && !loci_forward(plan, tables, work, &c)
          && (w.forward || !loci_backward(plan, tables, work, &c, &g));
    }
    if (!ok) CHECK_FAILED("%s: %s", p->text, e.text);
    loci_plan_destroy(plan);
    return ok;
}

static double at(const struct results *r, int i, size_t n, bool f64)
{
    return f64 ? ((const double *)r->of[i].at)[n] : (double)((const float *)r->of[i].at)[n];
}
/* Numbers of two ways are close.  Infinities are the same. */
static void compare(const char *text, const char *how, const struct results *a, bool f64,
                    const struct results *b, double bound)
{
    for (int i = 0; i < b->n; i++) {
        double most = 0, off = 0;
        for (size_t n = 0; n < b->of[i].count; n++) {
            const double x = at(a, i, n, f64), y = at(b, i, n, true);
            if (isfinite(y)) most = fmax(most, fabs(y));
            if (x == y || (isnan(x) && isnan(y))) continue;
            off = fmax(off, isfinite(x - y) ? fabs(x - y) : INFINITY);
        }
        CHECK_THAT(off <= bound * (1 + most), "%s, %s: %s is off by %g of %g", text, how,
                   b->of[i].name, off, most);
    }
}
static void same(const char *text, const char *how, const struct results *a,
                 const struct results *b, bool tensors)
{
    for (int i = 0; i < a->n && i < b->n; i++) {
        const bool whole = strcmp(a->of[i].name, b->of[i].name) == 0;
        if (!whole || (!tensors && i >= 5)) break;
        CHECK_THAT(!memcmp(a->of[i].at, b->of[i].at, a->of[i].count * sizeof(float)),
                   "%s, %s: other bits of %s", text, how, a->of[i].name);
    }
}

/* ---- Every encoding -------------------------------------------------------------------------- */

static void against_reference(struct problem *p)
{
    const char *isas[8];
    const int count = loci_isas(isas, 8);
    struct results want, got, first;
    for (enum kind kind = 0; kind < KINDS; kind++) {
        const int mem = p->mem.blocks;
        if (kind == ALL_OF_IT && strstr(p->text, "remainder=value")) continue;
        if (run(p, (struct way){ .f64 = true, .reference = true, .kind = kind }, &want)
            && run(p, (struct way){ .f64 = true, .kind = kind }, &got))
            compare(p->text, kinds[kind], &got, true, &want, 1e-10);
        for (int i = LOCI_EMULATED ? count - 1 : 0; i < count; i++) {
            if (!run(p, (struct way){ .isa = isas[i], .kind = kind }, &got)) continue;
            if (i == 0 || LOCI_EMULATED) {
                first = got;
                compare(p->text, kinds[kind], &got, false, &want, 5e-4);
            } else {
                same(p->text, isas[i], &got, &first, true);
            }
        }
        mem_release(&p->mem, mem);
    }
}

/* Ranges that equal a window, bytes that equal ranges, an added -inf that hides: the same bits.
 * The exception is gradients of learned tensors, which fox and cape sum in another order where rows
 * see intervals. */
static void in_other_words(struct problem *p)
{
    struct results a, b;
    const size_t pairs = B * H * (size_t)(p->rows * p->keys);
    const int mem = p->mem.blocks;
    const ptrdiff_t window = p->keys / 3 + 1;
    for (ptrdiff_t i = 0; i < B * p->rows; i++) {
        p->last[i] = p->keys - p->rows + i % p->rows;
        p->first[i] = p->last[i] - window;
    }
    /* also gates of keys before the window */
    const bool counts = strstr(p->text, "fox") != NULL;
    if (run(p, (struct way){ .kind = RANGES }, &a) && !counts
        && run(p, (struct way){ .plain = true, .window = window }, &b))
        same(p->text, "ranges that are a window", &a, &b, false);
    for (size_t n = 0; n < pairs; n++) {
        const ptrdiff_t j = (ptrdiff_t)n % p->keys, i = (ptrdiff_t)n / p->keys % p->rows;
        p->seen[n] = j >= p->first[i] && j <= p->last[i];
        p->added[n] = p->seen[n] ? 0 : -INFINITY;
    }
    if (run(p, (struct way){ .kind = SEEN }, &b))
        same(p->text, "bytes that are ranges", &a, &b, true);
    if (run(p, (struct way){ .kind = ADDED }, &b))
        same(p->text, "zeros that are added", &a, &b, false);
    draw_masks(p);
    loci_host pool;
    if (loci_pool_create(&pool, 3)) exit(2);
    if (run(p, (struct way){ .kind = ALL_OF_IT }, &a)
        && run(p, (struct way){ .kind = ALL_OF_IT, .host = &pool }, &b))
        same(p->text, "three threads", &a, &b, true);
    loci_pool_destroy(&pool);
    mem_release(&p->mem, mem);
}
/* Masks whose keys are apart, or that have one number for all keys of a row, are those that are
 * written out: the same bits. */
static void laid_otherwise(struct problem *p)
{
    struct results a, b;
    const int mem = p->mem.blocks;
    for (enum kind kind = SEEN; kind <= ADDED; kind++) {
        if (run(p, (struct way){ .kind = kind }, &a)
            && run(p, (struct way){ .kind = kind, .laid = TURNED }, &b))
            same(p->text, "keys before rows", &a, &b, true);
        for (ptrdiff_t n = 0; n < B * H * p->rows * p->keys; n++) {
            const ptrdiff_t row = n / p->keys;
            p->seen[n] = row % 3 != 1;
            p->added[n] = row % 3 == 1 ? -INFINITY : (float)(row % 5) - 2;
        }
        if (run(p, (struct way){ .kind = kind }, &a)
            && run(p, (struct way){ .kind = kind, .laid = BY_ROW }, &b))
            same(p->text, "a number for all keys", &a, &b, true);
        draw_masks(p);
        mem_release(&p->mem, mem);
    }
}

/* The last rows alone, as in decode: the same bits as among all rows. */
static void few_rows(struct problem *p, ptrdiff_t few)
{
    const ptrdiff_t left = p->rows - few;
    const size_t D = (size_t)p->D;
    struct problem part = *p;
    struct results whole, some;
    for (int i = 0; i < p->tensors; i++)
        for (int k = 0; k < p->tensor[i].rank; k++)
            if (p->tensor[i].shape[k] == LOCI_DIM_QUERIES) return;
    if (p->coord_q) return;
    const int mem = p->mem.blocks;
    part.rows = few;
    part.mem = (struct mem){ .blocks = 0 };
    part.q = mem_alloc(&part.mem, B * H * (size_t)few * D * sizeof(double));
    part.seen = mem_alloc(&part.mem, B * H * (size_t)(few * p->keys));
    part.added = mem_alloc(&part.mem, B * H * (size_t)(few * p->keys) * sizeof(double));
    part.first = mem_alloc(&part.mem, B * (size_t)few * sizeof(int64_t));
    part.last = mem_alloc(&part.mem, B * (size_t)few * sizeof(int64_t));
    part.q_seg = mem_alloc(&part.mem, B * (size_t)few * sizeof(int64_t));
    for (ptrdiff_t h = 0; h < B * H; h++)
        for (ptrdiff_t i = 0; i < few; i++) {
            const ptrdiff_t to = h * few + i, from = h * p->rows + left + i;
            memcpy(part.q + to * p->D, p->q + from * p->D, D * sizeof(double));
            memcpy(part.seen + to * p->keys, p->seen + from * p->keys, (size_t)p->keys);
            memcpy(part.added + to * p->keys, p->added + from * p->keys,
                   (size_t)p->keys * sizeof(double));
        }
    for (ptrdiff_t b = 0; b < B; b++)
        for (ptrdiff_t i = 0; i < few; i++) {
            part.first[b * few + i] = p->first[b * p->rows + left + i];
            part.last[b * few + i] = p->last[b * p->rows + left + i];
            part.q_seg[b * few + i] = p->q_seg[b * p->rows + left + i];
        }
    for (enum kind kind = 0; kind < KINDS; kind++) {
        if (!run(p, (struct way){ .kind = kind, .forward = true }, &whole)
            || !run(&part, (struct way){ .kind = kind, .forward = true }, &some))
            continue;
        for (int n = 0; n < some.n; n++) {
            const size_t width = some.of[n].count / (size_t)(B * H * few);
            bool equal = true;
            for (ptrdiff_t h = 0; h < B * H; h++)
                equal &= !memcmp((float *)some.of[n].at + (size_t)(h * few) * width,
                                 (float *)whole.of[n].at + (size_t)(h * p->rows + left) * width,
                                 (size_t)few * width * sizeof(float));
            CHECK_THAT(equal, "%s, %s: %s of %td rows alone", p->text, kinds[kind], some.of[n].name,
                       few);
        }
    }
    mem_release(&part.mem, 0);
    mem_release(&p->mem, mem);
}

static void every_encoding(void)
{
    static struct problem p;
    int number = 0;
    for (struct walk_text t = { 0 }; walk_next(&t); number++) {
        const int often = LOCI_EMULATED ? 60 : LOCI_SLOW ? 7 : 4;
        if (number % often && (LOCI_SLOW || !t.example) && !walk_whole()) continue;
        walk_restart(number);
        if (!open_problem(&p, t.text, 70, 150)) continue;
        against_reference(&p);
        in_other_words(&p);
        if (t.example) laid_otherwise(&p);
        few_rows(&p, 1);
        few_rows(&p, 3);
        mem_release(&p.mem, 0);
    }
}

/* ---- The gradient of an added mask ----------------------------------------------------------- */

static double loss(struct problem *p)
{
    struct results r;
    const int mem = p->mem.blocks;
    const bool ok = run(p, (struct way){ .f64 = true, .forward = true, .kind = ADDED }, &r);
    double sum = 0;
    for (size_t n = 0; ok && n < r.of[0].count; n++) sum += at(&r, 0, n, true) * p->dout[n];
    for (size_t n = 0; ok && n < r.of[1].count; n++)
        if (isfinite(at(&r, 1, n, true))) sum += at(&r, 1, n, true) * p->drow[n];
    mem_release(&p->mem, mem);
    return sum;
}
static void differences(const char *text)
{
    static struct problem p;
    struct results r;
    walk_restart(77);
    if (!open_problem(&p, text, 5, 9)) return;
    if (run(&p, (struct way){ .f64 = true, .kind = ADDED }, &r)) {
        int mask = 0;
        while (strcmp(r.of[mask].name, "dmask")) mask++;
        const size_t heads = p.mixes ? 1 : H;
        for (size_t b = 0; b < B; b++)
            for (size_t n = 0; n < heads * 5 * 9; n += 3) {
                double *x = &p.added[b * H * 45 + n], kept = *x, got = 0;
                for (size_t h = 0; h < (p.mixes ? H : 1); h++)
                    got += at(&r, mask, b * H * 45 + n + h * 45, true);
                if (kept == -INFINITY) {
                    CHECK_THAT(got == 0, "%s: hidden pairs have no gradient", text);
                    continue;
                }
                *x = kept + 1e-5;
                const double above = loss(&p);
                *x = kept - 1e-5;
                const double below = loss(&p);
                *x = kept;
                CHECK_CLOSE(got, (above - below) / 2e-5, 1e-8, "%s: number %zu of batch %zu", text,
                            n, b);
            }
    }
    mem_release(&p.mem, 0);
}

/* ---- Weights --------------------------------------------------------------------------------- */

/* Times the values they give o. */
static void weights(const char *text)
{
    static struct problem p;
    walk_restart(5);
    if (strstr(text, "shaw") || strstr(text, "remainder") || !open_problem(&p, text, 70, 150))
        return;
    loci_plan *plan = plan_of(&p, LOCI_F64, NULL, false, 0);
    loci_error e = { 0 };
    const size_t D = (size_t)p.D, rows = B * H * 70;
    double *o = numbers(&p, rows * D, 0), *row = numbers(&p, rows, 0);
    double *w = mem_alloc(&p.mem, rows * 150 * sizeof *w);
    const void *tensors[WALK_TENSORS];
    for (int i = 0; i < p.tensors; i++) tensors[i] = p.data[i];
    loci_call c =
        LOCI_CALL(.batch = B, .q_len = 70, .k_len = 150, .q = { p.q, 0, 0, 0 },
                  .k = { p.k, 0, 0, 0 }, .v = { p.v, 0, 0, 0 }, .o = { o, 0, 0, 0 },
                  .q_coord = p.coord_q, .k_coord = p.coord_k, .tensors = tensors, .error = &e);
    *(strstr(text, "sba") ? &c.rem : &c.lse) = row;
    say_who(&p, &(struct way){ .f64 = true, .kind = SEEN }, &c);
    void *tables = mem_alloc(&p.mem, loci_tables_size(plan, p.range)),
         *work = mem_alloc(&p.mem, loci_workspace(plan, &c, 1));
    const bool ok = !loci_prepare(plan, p.range, tensors, tables)
                 && !loci_forward(plan, tables, work, &c)
                 && !loci_weights(plan, tables, work, &c, (loci_view){ w, 0, 0, 0 });
    CHECK_THAT(ok, "%s: %s", text, e.text);
    double off = 0;
    for (size_t r = 0; ok && r < rows; r++)
        for (size_t d = 0; d < D; d++) {
            const double *v = p.v + (r / 70 / H * G + r / 70 % H / (H / G)) * 150 * D + d;
            double sum = 0;
            for (size_t j = 0; j < 150; j++) sum += w[r * 150 + j] * v[j * D];
            off = fmax(off, fabs(sum - o[r * D + d]));
        }
    CHECK_THAT(off < 1e-12, "%s: weights times values differ from o by %g", text, off);
    CHECK_SAYS(loci_weights(plan, tables, work, &c, (loci_view){ o, 0, 0, 0 }), LOCI_BAD_ARG, &e,
               "overlap", text);
    CHECK_SAYS(loci_weights(plan, tables, work, &c, (loci_view){ NULL, 0, 0, 0 }), LOCI_BAD_ARG, &e,
               "weights must not be NULL", text);
    loci_plan_destroy(plan);
    mem_release(&p.mem, 0);
}

/* ---- Chunks, a cache, and errors ------------------------------------------------------------- */

static void chunks(void)
{
    static struct problem p;
    for (int i = 0; i < 2; i++) {
        const char *const text = i ? "t5:buckets=6,max_distance=10,bidirectional=1" : "alibi";
        walk_restart(9);
        if (!open_problem(&p, text, 6, 4300)) continue;
        against_reference(&p);
        in_other_words(&p);
        few_rows(&p, 2);
        mem_release(&p.mem, 0);
    }
}

/* Rows of a mask cover the keys of a cache, first to last; by_row: with one number each. */
static void cached(bool by_row)
{
    static struct problem p;
    struct results want;
    walk_restart(21);
    if (!open_problem(&p, "t5", 100, 100)) return;
    for (ptrdiff_t n = 0; by_row && n < B * H * 100 * 100; n++) p.seen[n] = n / 100 % 3 != 1;
    if (!run(&p, (struct way){ .kind = SEEN, .forward = true }, &want)) return;
    loci_plan *plan = plan_of(&p, LOCI_F32, NULL, false, 0);
    loci_cache *cache;
    loci_error e = { 0 };
    const size_t D = (size_t)p.D;
    const void *const tensors[] = { as(&p, p.data[0], p.size[0], false) };
    float *q = as(&p, p.q, B * H * 100 * D, false), *k = as(&p, p.k, B * G * 100 * D, false),
          *v = as(&p, p.v, B * G * 100 * D, false),
          *o = mem_alloc(&p.mem, B * H * 100 * D * sizeof(float));
    void *memory = mem_alloc(&p.mem, loci_cache_size(plan, B, 100)),
         *tables = mem_alloc(&p.mem, loci_tables_size(plan, p.range));
    loci_prepare(plan, p.range, tensors, tables);
    CHECK_THAT(!loci_cache_create(&cache, plan, B, 100, 0, memory, &e), "%s", e.text);
    for (ptrdiff_t i = 0, n; i < 100; i += n) {
        n = i ? 1 + i % 30 : 60;
        if (i + n > 100) n = 100 - i;
        loci_call c =
            LOCI_CALL(.batch = B, .q_len = n, .k_len = n, .cache = cache, .tensors = tensors,
                      .error = &e, .q = { q + (size_t)i * D, H * 100 * p.D, 100 * p.D, p.D },
                      .k = { k + (size_t)i * D, G * 100 * p.D, 100 * p.D, p.D },
                      .v = { v + (size_t)i * D, G * 100 * p.D, 100 * p.D, p.D },
                      .o = { o + (size_t)i * D, H * 100 * p.D, 100 * p.D, p.D },
                      .mask_kind = LOCI_MASK_SEEN,
                      .mask = { p.seen + i * 100, H * 100 * 100, 100 * 100, 100 },
                      .mask_key = by_row ? LOCI_BROADCAST : 0);
        void *work = mem_block(loci_workspace(plan, &c, 0));
        CHECK_THAT(!loci_cache_append(plan, tables, work, cache, &c)
                       && !loci_forward(plan, tables, work, &c),
                   "row %td: %s", i, e.text);
        free(work);
    }
    CHECK_THAT(!memcmp(o, want.of[0].at, B * H * 100 * D * sizeof(float)),
               "a mask beside a cache: other bits");
    loci_plan_destroy(plan);
    mem_release(&p.mem, 0);
}

static void refused(void)
{
    enum { L = 8, D = 8 };
    static float x[H * L * D], o[H * L * D], lse[H * L], dmask[H * L * L];
    static unsigned char seen[H * L * L];
    static int64_t first[L], last[L];
    loci_error e;
    loci_plan *plan, *mixed, *linear;
    loci_desc d = LOCI_DESC(.heads = H, .dim = D);
    CHECK_THAT(!loci_plan_create(&plan, &d, &e), "%s", e.text);
    d.encoding = "cape";
    CHECK_THAT(!loci_plan_create(&mixed, &d, &e), "%s", e.text);
    d.encoding = "nope";
    d.stage = LOCI_LINEAR_ATTENTION;
    CHECK_THAT(!loci_plan_create(&linear, &d, &e), "%s", e.text);
    const loci_call good =
        LOCI_CALL(.batch = 1, .q_len = L, .k_len = L, .lse = lse, .q = { x, 0, 0, 0 },
                  .k = { x, 0, 0, 0 }, .v = { x, 0, 0, 0 }, .o = { o, 0, 0, 0 }, .error = &e);
    void *work = mem_block(1 << 22), *tables = mem_block(loci_tables_size(plan, L));
    loci_prepare(plan, L, NULL, tables);
#define WRONG(plan_, status, words, ...) \
    do { \
        loci_call c = good; \
        __VA_ARGS__; \
        CHECK_SAYS(loci_forward(plan_, tables, work, &c), status, &e, words); \
    } while (0)
    WRONG(plan, LOCI_BAD_ARG, "mask_kind 7 must be", c.mask_kind = (loci_mask)7);
    WRONG(plan, LOCI_BAD_ARG, "so mask_kind must be", c.mask.data = seen);
    WRONG(plan, LOCI_BAD_ARG, "mask must not be NULL", c.mask_kind = LOCI_MASK_SEEN);
    WRONG(plan, LOCI_BAD_ARG, "k_first and k_last must be given together", c.k_first = first);
    WRONG(plan, LOCI_BAD_ARG, "k_last[2] is", c.k_first = first; c.k_last = last;
          last[2] = INT64_MAX);
    last[2] = 0;
    WRONG(plan, LOCI_BAD_ARG, "mask_key 1 must be 0 unless", c.mask_key = 1);
    WRONG(plan, LOCI_BAD_ARG, "mask_key -1 must be 0 or more, or LOCI_BROADCAST",
          c.mask_kind = LOCI_MASK_SEEN;
          c.mask.data = seen; c.mask_key = -1);
    WRONG(plan, LOCI_BAD_ARG, "with mask_key 8 the strides of", c.mask_kind = LOCI_MASK_SEEN;
          c.mask.data = seen; c.mask_key = 8);
    WRONG(plan, LOCI_BAD_ARG, "is too large for 8 keys", c.mask_kind = LOCI_MASK_SEEN;
          c.mask = (loci_view){ seen, L, L, L }; c.mask_key = PTRDIFF_MAX / 2);
    WRONG(plan, LOCI_BAD_ARG, "mask: strides", c.mask_kind = LOCI_MASK_SEEN;
          c.mask = (loci_view){ seen, L, L, L }; c.mask_key = PTRDIFF_MAX / 16);
    WRONG(plan, LOCI_BAD_ARG, "o overlaps mask", c.mask_kind = LOCI_MASK_ADDED;
          c.mask = (loci_view){ o, LOCI_BROADCAST, LOCI_BROADCAST, 1 }; c.mask_key = L);
    WRONG(plan, LOCI_BAD_ARG, "o overlaps mask", c.mask_kind = LOCI_MASK_ADDED; c.mask.data = o;
          c.mask_key = LOCI_BROADCAST);
    WRONG(plan, LOCI_BAD_ARG, "mask: strides", c.mask_kind = LOCI_MASK_SEEN;
          c.mask = (loci_view){ seen, 1, 1, -1 });
    WRONG(plan, LOCI_BAD_ARG, "mask must be aligned to 4", c.mask_kind = LOCI_MASK_ADDED;
          c.mask = (loci_view){ (char *)dmask + 1, L, L, LOCI_BROADCAST });
    WRONG(plan, LOCI_BAD_ARG, "o overlaps mask", c.mask_kind = LOCI_MASK_ADDED;
          c.mask = (loci_view){ o, LOCI_BROADCAST, LOCI_BROADCAST, L });
    void *others = mem_block(loci_tables_size(mixed, L));
    float *numbers = calloc(1 << 16, sizeof *numbers);
    const void *tensors[WALK_TENSORS];
    for (int i = 0; i < WALK_TENSORS; i++) tensors[i] = numbers;
    loci_prepare(mixed, L, tensors, others);
    loci_call c = good;
    c.mask_kind = LOCI_MASK_SEEN;
    c.mask.data = seen;
    CHECK_SAYS(loci_forward(mixed, others, work, &c), LOCI_UNSUPPORTED, &e,
               "the encoding mixes heads");
    CHECK_SAYS(loci_linear_forward(linear, tables, work, &c, NULL, NULL), LOCI_UNSUPPORTED, &e,
               "linear attention");
    CHECK_THAT(!loci_forward(plan, tables, work, &c), "%s", e.text);
    loci_grad g = LOCI_GRAD(.dmask = { dmask, 0, 0, 0 });
    CHECK_SAYS(loci_backward(plan, tables, work, &c, &g), LOCI_BAD_ARG, &e, "dmask must be NULL");
    free(numbers);
    free(work);
    free(tables);
    free(others);
    loci_plan_destroy(plan);
    loci_plan_destroy(mixed);
    loci_plan_destroy(linear);
}

int main(int argc, char **argv)
{
    walk_only(argc, argv);
    every_encoding();
    for (struct walk_text t = { 0 }; walk_next(&t);)
        if (t.example && !LOCI_EMULATED) {
            weights(t.text);
            differences(t.text);
        }
    if (!LOCI_EMULATED) {
        differences("softcap:cap=0.7+alibi");
        differences("alibi+softcap:cap=0.7");
    }
    if (!walk_limited()) {
        if (!LOCI_EMULATED) chunks();
        cached(false);
        cached(true);
        refused();
    }
    return harness_end();
}
