/* SPDX-License-Identifier: MIT */
/* given.c -- valid and invalid arguments of every public function: positions, overlapping or
 * unaligned memory, structs of other versions, sizes of buffers, foreign caches, cancelling, and
 * NULL pointers. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "contract/cache.h"
#include "util/arguments.h"
#include "loci/convert.h"
#include "loci/layers.h"
#include "harness.h"
#include "mem.h"
#include "walk.h"

/* Did a call fail with a sentence that contains this text? */

/* ---- A problem ------------------------------------------------------------------------------- */

enum { B = 2, H = 2, L = 10, D = 8, N = B * H * L * D };

struct problem {
    loci_plan *plan;
    loci_error e;
    loci_call call;
    loci_grad grad;
    float *q, *k, *v, *o, *lse, *dout, *dq, *dk, *dv;
    void *tables, *work;
    const void *tensors[WALK_TENSORS];
    size_t bytes;
    struct mem mem;
};
static float *numbers(struct problem *p, size_t n)
{
    float *x = mem_alloc(&p->mem, n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = (float)walk_uniform();
    return x;
}
static void make(struct problem *p, loci_desc d)
{
    *p = (struct problem){ 0 };
    if (!d.heads) d.heads = H;
    if (!d.dim) d.dim = D;
    if (loci_plan_create(&p->plan, &d, &p->e)) {
        printf("%s: %s\n", d.encoding, p->e.text);
        exit(2);
    }
    p->q = numbers(p, N);
    p->k = numbers(p, N);
    p->v = numbers(p, N);
    p->o = numbers(p, N);
    p->lse = numbers(p, B * H * L);
    p->dout = numbers(p, N);
    p->dq = numbers(p, N);
    p->dk = numbers(p, N);
    p->dv = numbers(p, N);
    loci_tensor list[WALK_TENSORS];
    const int n = loci_tensors(p->plan, list, WALK_TENSORS);
    for (int i = 0; i < n; i++) p->tensors[i] = numbers(p, 4096);
    p->tables = mem_alloc(&p->mem, loci_tables_size(p->plan, 100));
    if (loci_prepare(p->plan, 100, p->tensors, p->tables)) exit(2);
    p->call =
        (loci_call)LOCI_CALL(.batch = B, .q_len = L, .k_len = L, .q = { p->q, 0, 0, 0 },
                             .k = { p->k, 0, 0, 0 }, .v = { p->v, 0, 0, 0 }, .o = { p->o, 0, 0, 0 },
                             .lse = p->lse, .tensors = p->tensors, .error = &p->e);
    p->grad = (loci_grad)LOCI_GRAD(.dout = { p->dout, 0, 0, 0 }, .dq = { p->dq, 0, 0, 0 },
                                   .dk = { p->dk, 0, 0, 0 }, .dv = { p->dv, 0, 0, 0 });
    if (d.stage == LOCI_EMBED) {
        p->call.k_len = 0;
        p->call.batch = 1;
        p->call.q_len = 4;
    }
    p->bytes = loci_workspace(p->plan, &p->call, 1);
    p->work = mem_alloc(&p->mem, p->bytes);
}
static void drop(struct problem *p)
{
    mem_release(&p->mem, 0);
    loci_plan_destroy(p->plan);
}
static loci_status forward(struct problem *p)
{
    return loci_forward(p->plan, p->tables, p->work, &p->call);
}
static loci_status backward(struct problem *p)
{
    return loci_backward(p->plan, p->tables, p->work, &p->call, &p->grad);
}
static loci_view dense(void *data) { return (loci_view){ data, 0, 0, 0 }; }

/* ---- Positions ------------------------------------------------------------------------------- */

static const int64_t beyond[] = { ((int64_t)1 << 40) + 1,
                                  -((int64_t)1 << 40) - 1,
                                  (int64_t)1 << 42,
                                  (int64_t)1 << 62,
                                  INT64_MAX,
                                  INT64_MIN };
static const char within[] = "must lie within 2^40";

static void far_positions(const char *text)
{
    struct problem p;
    int64_t pos[L];
    make(&p, (loci_desc)LOCI_DESC(.encoding = text, .keys_rotated = 0));
    p.call.q_pos = p.call.k_pos = pos;
    for (int n = 0; n < COUNT(beyond); n++)
        for (int at = 0; at < L; at += L - 1) {
            for (int i = 0; i < L; i++) pos[i] = i;
            pos[at] = beyond[n];
            CHECK_SAYS(forward(&p), LOCI_BAD_ARG, &p.e, within, "forward");
            CHECK_SAYS(backward(&p), LOCI_BAD_ARG, &p.e, within, "backward");
            if (strcmp(text, "nope")) {
                CHECK_SAYS(loci_rotate(p.plan, p.tables, p.work, &p.call, LOCI_QUERY, dense(p.q),
                                       dense(p.o)),
                           LOCI_BAD_ARG, &p.e, within, "rotate queries");
                CHECK_SAYS(loci_rotate(p.plan, p.tables, p.work, &p.call, LOCI_CACHE, dense(p.k),
                                       dense(p.o)),
                           LOCI_BAD_ARG, &p.e, within, "rotate keys");
                CHECK_SAYS(loci_rotate_backward(p.plan, p.tables, p.work, &p.call, LOCI_KEY,
                                                dense(p.k), dense(p.dk), dense(p.o), NULL),
                           LOCI_BAD_ARG, &p.e, within, "rotate backward");
            }
        }
    drop(&p);
}
static void far_rows(void)
{
    static const char *const texts[] = { "sinusoidal", "index", "learned", "binary", "normalised" };
    for (int t = 0; t < COUNT(texts); t++) {
        struct problem p;
        int64_t pos[4] = { 0, 1, 2, 3 };
        loci_tensor table = { "learned", "table", LOCI_LEARNED, 2, { 100, D } };
        const loci_desc d =
            LOCI_DESC(.encoding = texts[t], .stage = LOCI_EMBED, .model_dim = D,
                      .tensors = t == 2 ? &table : NULL, .tensor_count = t == 2, .max_len = 100);
        make(&p, d);
        p.call.q_pos = pos;
        for (int n = 0; n < COUNT(beyond); n++) {
            pos[3] = beyond[n];
            CHECK_THAT(loci_embed(p.plan, p.tables, &p.call, dense(p.q), dense(p.o))
                           == LOCI_BAD_ARG,
                       "%s: embed, a position beyond", texts[t]);
            CHECK_THAT(loci_embed_backward(p.plan, p.tables, p.work, &p.call, dense(p.q), NULL)
                           == LOCI_BAD_ARG,
                       "%s: its gradient, a position beyond", texts[t]);
        }
        drop(&p);
    }
}
static void far_elsewhere(void)
{
    struct problem p;
    int64_t pos[L] = { 0 };
    double coord[2 * L] = { 0 };
    float out[2 * L * D];
    make(&p, (loci_desc)LOCI_DESC(.encoding = "rope:pairing=half"));
    const loci_layer l = LOCI_LAYER(.batch = 1, .rows = L, .heads = 1, .width = D, .error = &p.e);
    for (int n = 0; n < COUNT(beyond); n++) {
        pos[L - 1] = beyond[n];
        CHECK_SAYS(loci_tape_start(&l, 0, 0, pos, 0, dense(out)), LOCI_BAD_ARG, &p.e, within,
                   "tape_start");
        CHECK_THAT(loci_temperature(&l, 0.1, 10, 0, pos, 0, dense(p.q), dense(out)) == LOCI_BAD_ARG,
                   "temperature: a position beyond");
        CHECK_SAYS(loci_export_rope(p.plan, NULL,
                                    &(loci_rope_table)LOCI_ROPE_TABLE(.count = L, .pos = pos,
                                                                      .cos = out),
                                    &p.e),
                   LOCI_BAD_ARG, &p.e, within, "export_rope");
    }
    drop(&p);
    make(&p, (loci_desc)LOCI_DESC(.encoding = "rope2d"));
    p.call.q_coord = p.call.k_coord = coord;
    static const double wild[] = { NAN, INFINITY, -0x1.1p40, 1e300 };
    for (int n = 0; n < COUNT(wild); n++) {
        coord[2 * L - 1] = wild[n];
        CHECK_SAYS(forward(&p), LOCI_BAD_ARG, &p.e, "must lie within 2^40", "coordinates");
        CHECK_SAYS(loci_rotate(p.plan, p.tables, p.work, &p.call, LOCI_KEY, dense(p.k), dense(p.o)),
                   LOCI_BAD_ARG, &p.e, within, "rotate, coordinates");
    }
    drop(&p);
}
/* Keys of a cache: appended keys, moved keys, and keys that continue others. */
static void far_keys(void)
{
    struct problem p;
    int64_t pos[L];
    make(&p, (loci_desc)LOCI_DESC(.encoding = "rope:pairing=half", .keys_rotated = 1));
    const size_t bytes = loci_cache_size(p.plan, B, 100);
    loci_cache *c;
    void *memory = mem_alloc(&p.mem, bytes);
    for (int n = 0; n < COUNT(beyond); n++) {
        if (loci_cache_create(&c, p.plan, B, 100, 0, memory, &p.e)) exit(2);
        for (int i = 0; i < L; i++) pos[i] = i;
        pos[L - 1] = beyond[n];
        p.call.q_pos = p.call.k_pos = pos;
        p.call.cache = c;
        CHECK_SAYS(loci_cache_append(p.plan, p.tables, p.work, c, &p.call), LOCI_BAD_ARG, &p.e,
                   within, "append");
        CHECK_THAT(loci_cache_length(c, 0) == 0, "append: keys came in all the same");
    }
    for (int i = 0; i < L; i++) pos[i] = i < 3 ? i : i - 3 - ((int64_t)1 << 40);
    CHECK_THAT(!loci_cache_append(p.plan, p.tables, p.work, c, &p.call), "append: %s", p.e.text);
    CHECK_SAYS(loci_cache_remove(p.plan, p.tables, p.work, c, 0, 0, 3, &p.call), LOCI_BAD_ARG, &p.e,
               "below position -2^40", "remove");
    CHECK_THAT(!loci_cache_remove(p.plan, p.tables, p.work, c, 0, L - 2, 2, &p.call)
                   && loci_cache_length(c, 0) == L - 2,
               "remove: the last ones");
    CHECK_SAYS(loci_cache_remove(p.plan, p.tables, p.work, c, 0, 1, INT64_MAX, &p.call),
               LOCI_BAD_ARG, &p.e, "beyond the end", "remove");
    drop(&p);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

/* Places every output of a pass at each other argument: the call fails, and writes nothing. */
static void everywhere(void)
{
    struct problem p;
    make(&p, (loci_desc)LOCI_DESC(.encoding = "fox"));
    void *dlse = numbers(&p, B * H * L), *dgate = numbers(&p, B * H * L);
    void *dtensors[] = { dgate };
    p.grad.dlse = dlse;
    p.grad.dtensors = dtensors;
    CHECK_THAT(!forward(&p) && !backward(&p), "fox: %s", p.e.text);
    struct {
        const char *name;
        void **data;
        bool rows;
    } inputs[] = {
        { "q", &p.call.q.data, true }, { "k", &p.call.k.data, true }, { "v", &p.call.v.data, true },
        { "log_f", (void **)&p.tensors[0], false },
        { "o", &p.call.o.data, true }, { "lse", &p.call.lse, false },
        { "dout", &p.grad.dout.data, true }, { "dlse", (void **)&p.grad.dlse, false },
        { "tables", &p.tables, false }, { "work", &p.work, false },
    }, outputs[] = {
        { "o", &p.call.o.data, true }, { "lse", &p.call.lse, false },
        { "dq", &p.grad.dq.data, true }, { "dk", &p.grad.dk.data, true },
        { "dv", &p.grad.dv.data, true }, { "dlog_f", &dtensors[0], false },
        { "work", &p.work, false },
    };
    const int forward_outputs = 2, forward_inputs = 6;
    for (int o = 0; o < COUNT(outputs); o++)
        for (int i = 0; i < COUNT(inputs); i++) {
            void *const kept = *outputs[o].data;
            const bool of_forward =
                o < forward_outputs || (o == COUNT(outputs) - 1 && i < forward_inputs);
            if (inputs[i].data == outputs[o].data
                || (o < forward_outputs && i >= forward_inputs && i < COUNT(inputs) - 2))
                continue;
            for (int by = 0; by < 2; by++) {
                /* the workspace is 64-byte aligned */
                if (o == COUNT(outputs) - 1 && by) continue;
                *outputs[o].data = (char *)*inputs[i].data + (by ? sizeof(float) : 0);
                const loci_status status = of_forward ? forward(&p) : backward(&p);
                CHECK_THAT(status == LOCI_BAD_ARG
                               && (strstr(p.e.text, "overlap") || strstr(p.e.text, "not prepared")),
                           "%s: %s", outputs[o].name, inputs[i].name);
                *outputs[o].data = kept;
            }
        }
    CHECK_THAT(!forward(&p) && !backward(&p), "fox, at the end: %s", p.e.text);
    /* Rows of an output that overlap each other. */
    p.call.o = (loci_view){ p.o, 8, 8, 8 };
    CHECK_SAYS(forward(&p), LOCI_BAD_ARG, &p.e, "make rows of this output overlap",
               "o with strides of 8, 8, 8");
    p.call.o = (loci_view){ p.o, LOCI_BROADCAST, 0, 0 };
    CHECK_SAYS(forward(&p), LOCI_BAD_ARG, &p.e, "make rows of this output overlap",
               "o by broadcast");
    p.call.o = dense(p.o);
    p.grad.dk = (loci_view){ p.dk, 8, 8, 8 };
    CHECK_SAYS(backward(&p), LOCI_BAD_ARG, &p.e, "dk: strides 8, 8, 8",
               "dk with strides of 8, 8, 8");
    drop(&p);
}
/* Pointers that are not aligned to their type. */
static void crooked(void)
{
    struct problem p;
    static _Alignas(16) char raw[16 * L * B * H];
    make(&p, (loci_desc)LOCI_DESC(.encoding = "fox"));
    memset(raw, 0, sizeof raw);
    int64_t *const at = (int64_t *)(raw + 4);
    const void **const tensor = &p.tensors[0];
    const struct {
        const char *name;
        const void **field;
        size_t by;
    } fields[] = {
        { "lse", (const void **)&p.call.lse, 2 },
        { "q", (const void **)&p.call.q.data, 2 },
        { "log_f", tensor, 1 },
        { "k_lens", (const void **)&p.call.k_lens, 4 },
        { "q_seg", (const void **)&p.call.q_seg, 4 },
        { "q_pos", (const void **)&p.call.q_pos, 4 },
    };
    for (int i = 0; i < COUNT(fields); i++) {
        const void *const kept = *fields[i].field;
        if (i >= 3) *fields[i].field = at;
        else *fields[i].field = raw + fields[i].by;
        if (i == 4) p.call.k_seg = at;
        if (i == 5) p.call.k_pos = at;
        CHECK_SAYS(forward(&p), LOCI_BAD_ARG, &p.e, "must be aligned to", fields[i].name);
        *fields[i].field = kept;
        p.call.k_seg = p.call.k_pos = NULL;
    }
    CHECK_THAT(!forward(&p), "straight again: %s", p.e.text);
    drop(&p);
}

/* Rotations and embeddings in place, and slightly shifted. */
static void in_place(void)
{
    struct problem p;
    make(&p, (loci_desc)LOCI_DESC(.encoding = "rope:pairing=half"));
    float *apart = numbers(&p, N + D), *both = numbers(&p, N + D);
    memcpy(both, p.q, N * sizeof *both);
    CHECK_THAT(!loci_rotate(p.plan, p.tables, p.work, &p.call, LOCI_QUERY, dense(p.q), dense(apart))
                   && !loci_rotate(p.plan, p.tables, p.work, &p.call, LOCI_QUERY, dense(both),
                                   dense(both))
                   && !memcmp(apart, both, N * sizeof *both),
               "rotate: in place it is not what it is apart");
    CHECK_SAYS(loci_rotate(p.plan, p.tables, p.work, &p.call, LOCI_QUERY, dense(both),
                           dense(both + D)),
               LOCI_BAD_ARG, &p.e, "y overlaps x, and is not the same view", "a row on");
    CHECK_SAYS(loci_rotate(p.plan, p.tables, p.work, &p.call, LOCI_QUERY, dense(both),
                           (loci_view){ both, H * L * D, D, H * D }),
               LOCI_BAD_ARG, &p.e, "not the same view", "in another order");
    CHECK_SAYS(loci_rotate(p.plan, p.tables, p.work, &p.call, LOCI_QUERY, dense(both),
                           (loci_view){ apart, D, D, D }),
               LOCI_BAD_ARG, &p.e, "make rows of this output overlap", "y in itself");
    CHECK_SAYS(loci_rotate_backward(p.plan, p.tables, p.work, &p.call, LOCI_QUERY, dense(both),
                                    dense(apart), dense(apart + D), NULL),
               LOCI_BAD_ARG, &p.e, "dx overlaps dy", "a row on");
    drop(&p);
    make(&p, (loci_desc)LOCI_DESC(.encoding = "sinusoidal", .stage = LOCI_EMBED, .model_dim = D));
    CHECK_THAT(!loci_embed(p.plan, p.tables, &p.call, dense(p.q), dense(p.o))
                   && !loci_embed(p.plan, p.tables, &p.call, dense(p.q), dense(p.q))
                   && !memcmp(p.q, p.o, 4 * D * sizeof *p.q),
               "embed: in place it is not what it is apart");
    CHECK_SAYS(loci_embed(p.plan, p.tables, &p.call, dense(p.q), dense(p.q + D)), LOCI_BAD_ARG,
               &p.e, "y overlaps x", "embed, a row on");
    CHECK_SAYS(loci_embed(p.plan, p.tables, &p.call, dense(p.q), (loci_view){ p.q + 1, 0, 0, D }),
               LOCI_BAD_ARG, &p.e, "y overlaps x", "embed, a number on");
    drop(&p);
}
/* q, k and v in one buffer, and their gradients in another, interleaved by strides. */
static void packed_gradients(void)
{
    struct problem p;
    make(&p, (loci_desc)LOCI_DESC(.encoding = "alibi"));
    enum { W = 3 * H * D };
    float *one = numbers(&p, B * L * W), *d = numbers(&p, B * L * W);
    float *const from[] = { p.q, p.k, p.v }, *const to[] = { p.dq, p.dk, p.dv };
    for (int x = 0; x < 3; x++)
        for (int i = 0; i < N; i++) {
            const int c = i % D, t = i / D % L, h = i / D / L % H, b = i / D / L / H;
            one[(b * L + t) * W + x * H * D + h * D + c] = from[x][i];
        }
    CHECK_THAT(!forward(&p) && !backward(&p), "apart: %s", p.e.text);
    loci_view *const views[] = { &p.call.q, &p.call.k, &p.call.v }, *const dviews[] = {
        &p.grad.dq, &p.grad.dk, &p.grad.dv
    };
    for (int x = 0; x < 3; x++) {
        *views[x] = (loci_view){ one + x * H * D, L * W, D, W };
        *dviews[x] = (loci_view){ d + x * H * D, L * W, D, W };
    }
    CHECK_THAT(!forward(&p) && !backward(&p), "packed: %s", p.e.text);
    for (int x = 0; x < 3; x++) {
        bool same = true;
        for (int i = 0; i < N; i++)
            same &= to[x][i]
                 == d[(i / D / L / H * L + i / D % L) * W + x * H * D + i / D / L % H * D + i % D];
        CHECK_THAT(same, "packed: other gradients");
    }
    drop(&p);
}

/* ---- Broadcast ------------------------------------------------------------------------------- */

static void broadcast(void)
{
    struct problem p;
    make(&p, (loci_desc)LOCI_DESC(.encoding = "alibi"));
    float *o = numbers(&p, N);
    static const struct {
        const char *name;
        ptrdiff_t batch, head, row;
    } ways[] = {
        { "batch", LOCI_BROADCAST, L * D, D },
        { "heads", H * L * D, LOCI_BROADCAST, D },
        { "rows", H * L * D, L * D, LOCI_BROADCAST },
        { "all", LOCI_BROADCAST, LOCI_BROADCAST, LOCI_BROADCAST },
        { "all, said once", 0, 0, LOCI_BROADCAST },
    };
    for (int n = 0; n < COUNT(ways); n++) {
        const loci_view v = { p.k, ways[n].batch, ways[n].head, ways[n].row };
        const ptrdiff_t step[] = { n == 0 || n > 2 ? 0 : H * L * D, n == 1 || n > 2 ? 0 : L * D,
                                   n >= 2 ? 0 : D };
        float *copy = numbers(&p, N);
        for (int i = 0; i < N; i++)
            copy[i] = p.k[i / D / L / H * step[0] + i / D / L % H * step[1] + i / D % L * step[2]
                          + i % D];
        p.call.k = dense(copy);
        p.call.o = dense(o);
        CHECK_THAT(!forward(&p), "%s: %s", ways[n].name, p.e.text);
        p.call.k = v;
        p.call.o = dense(p.o);
        CHECK_THAT(!forward(&p) && !memcmp(o, p.o, N * sizeof *o), "%s: is not what copies give",
                   ways[n].name);
    }
    p.call.k = (loci_view){ p.k, LOCI_BROADCAST, -1, D };
    CHECK_SAYS(forward(&p), LOCI_BAD_ARG, &p.e, "must not be negative or too large",
               "a negative stride beside");
    const loci_layer l = LOCI_LAYER(.batch = 1, .rows = L, .heads = H, .width = D, .error = &p.e);
    float twice[H * L * D];
    for (int i = 0; i < H * L * D; i++) twice[i] = p.q[i % (L * D)];
    CHECK_THAT(!loci_gate(&l, LOCI_SILU, dense(p.v), dense(twice), dense(p.o))
                   && !loci_gate(&l, LOCI_SILU, dense(p.v),
                                 (loci_view){ p.q, 0, LOCI_BROADCAST, D }, dense(o))
                   && !memcmp(p.o, o, sizeof twice),
               "layers: broadcast");
    CHECK_SAYS(loci_gate(&l, LOCI_SILU, dense(p.v), dense(twice),
                         (loci_view){ o, 0, LOCI_BROADCAST, D }),
               LOCI_BAD_ARG, &p.e, "make rows of this output overlap", "layers, an output");
    drop(&p);
}

/* ---- Windows in the convention of models ----------------------------------------------------- */

static void windows(void)
{
    struct problem p, q;
    loci_plan *none = NULL;
    loci_error e;
    static const int keys[] = { 1, 2, 5, 0 };
    for (int n = 0; n < COUNT(keys); n++) {
        make(&p, (loci_desc)LOCI_DESC(.encoding = "nope", .window_left = loci_window(keys[n])));
        /* each row gives the mean of the rows it sees */
        for (int i = 0; i < N; i++) {
            p.q[i] = 0;
            p.v[i] = (float)(i / D % L);
        }
        CHECK_THAT(!forward(&p), "a window: %s", p.e.text);
        bool right = true;
        for (int i = 0; i < N; i++) {
            const int row = i / D % L, first = keys[n] && row >= keys[n] ? row - keys[n] + 1 : 0;
            right &= fabsf(p.o[i] - (float)(first + row) / 2) < 1e-5f;
        }
        CHECK_THAT(right, "loci_window: %s", keys[n] == 1 ? "the row alone" : "so many keys");
        drop(&p);
    }
    make(&q, (loci_desc)LOCI_DESC(.encoding = "nope", .full = 1, .window_left = loci_window(1),
                                  .window_right = loci_window(1)));
    CHECK_THAT(!forward(&q) && !memcmp(q.o, q.v, N * sizeof *q.o),
               "loci_window: a full mask of one");
    drop(&q);
    const loci_desc negative = LOCI_DESC(.heads = 1, .dim = 4, .window_left = loci_window(-1));
    CHECK_SAYS(loci_plan_create(&none, &negative, &e), LOCI_BAD_ARG, &e, "window_left",
               "a negative window");
}

/* ---- Structs of other versions --------------------------------------------------------------- */

/* The struct of a program of another version: `size` bytes, of which the first `part` are ours and
 * the others are `rest`. */
static void *other_version(struct mem *mem, const void *ours, size_t part, size_t size, int rest)
{
    const size_t bytes = (size > part ? size : part) + 64;
    char *p = mem_alloc(mem, bytes);
    memset(p, rest, bytes);
    memcpy(p, ours, part);
    memcpy(p, &size, sizeof size);
    return p;
}
typedef loci_status try_struct(struct problem *, const void *);
static loci_status try_desc(struct problem *p, const void *s)
{
    loci_plan *plan;
    const loci_status status = loci_make_plan(&plan, s, wants_sizes(p->plan), &p->e);
    loci_plan_destroy(plan);
    return status;
}
static loci_status try_call(struct problem *p, const void *s)
{
    return loci_forward(p->plan, p->tables, p->work, s);
}
static loci_status try_grad(struct problem *p, const void *s)
{
    return loci_backward(p->plan, p->tables, p->work, &p->call, s);
}
static loci_status try_layer(struct problem *p, const void *s)
{
    return loci_gate(s, LOCI_SILU, dense(p->q), dense(p->k), dense(p->o));
}
static loci_status try_channels(struct problem *p, const void *s)
{
    return loci_convert_channels(s, LOCI_HALF, LOCI_INTERLEAVED, p->q, p->q, &p->e);
}
static loci_status try_table(struct problem *p, const void *s)
{
    return loci_export_rope(p->plan, NULL, s, &p->e);
}

/* sized: the plan is that of a program of 0.3, which sets sizes.  Otherwise of an older one. */
static void versions(bool sized)
{
    struct problem p;
    make(&p, (loci_desc)LOCI_DESC(.encoding = "rope:pairing=half"));
    p.plan->sized = sized;
    const loci_desc desc = LOCI_DESC(.heads = 2, .dim = 8);
    const loci_layer layer =
        LOCI_LAYER(.batch = 1, .rows = L, .heads = H, .width = D, .error = &p.e);
    const loci_channels channels = LOCI_CHANNELS(.element = 4, .heads = H, .dim = D);
    const loci_rope_table table = LOCI_ROPE_TABLE(.count = 4, .cos = p.o);
    if (forward(&p)) exit(2);
    const struct {
        const char *name;
        const void *ours;
        size_t now, first;
        try_struct *try;
        bool alone;
    } structs[] = {
        { "loci_desc", &desc, sizeof desc, UP_TO(loci_desc, tensor_count), try_desc, false },
        { "loci_call", &p.call, sizeof p.call, UP_TO(loci_call, error), try_call, false },
        { "loci_grad", &p.grad, sizeof p.grad, UP_TO(loci_grad, dtensors), try_grad, false },
        { "loci_layer", &layer, sizeof layer, UP_TO(loci_layer, error), try_layer, true },
        { "loci_channels", &channels, sizeof channels, UP_TO(loci_channels, stride), try_channels,
          true },
        { "loci_rope_table", &table, sizeof table, UP_TO(loci_rope_table, sin), try_table, false },
    };
    for (int n = 0; n < COUNT(structs); n++) {
        const size_t now = structs[n].now, first = structs[n].first, zero = 0;
        /* the bytes after its part are not its own */
        char *old = other_version(&p.mem, structs[n].ours, first, first, 0xff);
        memcpy(old, &zero, sizeof zero);
        if (sized && !structs[n].alone)
            CHECK_SAYS(structs[n].try(&p, old), LOCI_BAD_ARG, &p.e, "size is 0 and must be",
                       structs[n].name);
        else
            CHECK_THAT(!structs[n].try(&p, old), "%s: size 0 reads more than the struct of 0.1",
                       structs[n].name);
        CHECK_THAT(!structs[n].try(&p, other_version(&p.mem, structs[n].ours, first, first, 0xff)),
                   "%s: the size of 0.1 reads more than that", structs[n].name);
        CHECK_THAT(!structs[n].try(&p, other_version(&p.mem, structs[n].ours, now, now + 48, 0)),
                   "%s: a later one, nothing said", structs[n].name);
        CHECK_SAYS(structs[n].try(&p, other_version(&p.mem, structs[n].ours, now, now + 48, 1)),
                   LOCI_UNSUPPORTED, &p.e, "they must be zero", structs[n].name);
        CHECK_SAYS(structs[n].try(&p, other_version(&p.mem, structs[n].ours, now, first - 8, 0)),
                   LOCI_BAD_ARG, &p.e, "at least", structs[n].name);
        CHECK_SAYS(structs[n].try(&p, other_version(&p.mem, structs[n].ours, now, 9, 0)),
                   LOCI_BAD_ARG, &p.e, "at least", structs[n].name);
        CHECK_THAT(structs[n].try(&p, NULL) == LOCI_BAD_ARG, "%s: NULL", structs[n].name);
    }
    drop(&p);
}

/* ---- Sizes of buffers ------------------------------------------------------------------------ */

static void sizes(void)
{
    struct problem p;
    make(&p, (loci_desc)LOCI_DESC(.encoding = "rope:pairing=half+t5"));
    const size_t tables = loci_tables_size(p.plan, 100),
                 forward_bytes = loci_workspace(p.plan, &p.call, 0);
    p.call.work_bytes = forward_bytes;
    p.call.tables_bytes = tables;
    CHECK_THAT(!forward(&p), "sizes that fit: %s", p.e.text);
    p.call.work_bytes = p.bytes - 1;
    CHECK_SAYS(backward(&p), LOCI_BAD_ARG, &p.e, "loci_workspace() returns", "a byte less");
    p.call.work_bytes = p.bytes;
    CHECK_THAT(!backward(&p), "sizes that fit: %s", p.e.text);
    p.call.work_bytes = 64;
    CHECK_SAYS(forward(&p), LOCI_BAD_ARG, &p.e, "work has 64 bytes, but this call needs", "work");
    CHECK_SAYS(loci_rotate(p.plan, p.tables, p.work, &p.call, LOCI_QUERY, dense(p.q), dense(p.o)),
               LOCI_BAD_ARG, &p.e, "work has 64 bytes", "work of a rotation");
    p.call.work_bytes = 0;
    for (int n = 0; n < 2; n++) {
        p.call.tables_bytes = n ? tables - 1 : 8;
        CHECK_SAYS(forward(&p), LOCI_BAD_ARG, &p.e, n ? "and have" : "have at least", "tables");
    }
    p.call.size = 0;
    p.plan->sized = false; /* 0.1 had neither */
    CHECK_THAT(!forward(&p), "sizes that are not read: %s", p.e.text);
    drop(&p);
    const loci_tensor table = { "learned", "table", LOCI_LEARNED, 2, { 9, D } };
    make(&p, (loci_desc)LOCI_DESC(.encoding = "learned", .stage = LOCI_EMBED, .model_dim = D,
                                  .tensors = &table, .tensor_count = 1));
    void *dtensors[] = { p.o };
    p.call.work_bytes = 64;
    CHECK_SAYS(loci_embed_backward(p.plan, p.tables, p.work, &p.call, dense(p.q), dtensors),
               LOCI_BAD_ARG, &p.e, "work has 64 bytes", "work of an embedding");
    p.call.tables_bytes = 64;
    CHECK_SAYS(loci_embed(p.plan, p.tables, &p.call, dense(p.q), dense(p.o)), LOCI_BAD_ARG, &p.e,
               "tables_bytes is 64", "tables of an embedding");
    drop(&p);
}

/* ---- Foreign caches -------------------------------------------------------------------------- */

/* Changes some bytes of a saved cache.  If it opens at all, calls on it fail cleanly or stay within
 * it. */
static void damaged_caches(void)
{
    struct problem p;
    int64_t pos[L];
    make(&p, (loci_desc)LOCI_DESC(.encoding = "rope:pairing=half+fox", .keys_rotated = 1));
    const size_t bytes = loci_cache_size(p.plan, B, 70), lists = sizeof(struct loci_cache) + 1024;
    char *saved = mem_alloc(&p.mem, bytes), *memory = mem_alloc(&p.mem, bytes);
    loci_cache *c;
    for (int i = 0; i < L; i++) pos[i] = i;
    if (loci_cache_create(&c, p.plan, B, 70, 0, saved, &p.e)) exit(2);
    p.call.cache = c;
    p.call.q_pos = p.call.k_pos = pos;
    void *work = mem_alloc(&p.mem, loci_workspace(p.plan, &p.call, 0));
    CHECK_THAT(!loci_cache_append(p.plan, p.tables, work, c, &p.call)
                   && !loci_forward(p.plan, p.tables, work, &p.call),
               "a cache: %s", p.e.text);
    memcpy(memory, saved, bytes);
    CHECK_THAT(!loci_cache_open(&c, p.plan, memory, bytes, &p.e) && c == (void *)memory
                   && loci_cache_length(c, 1) == L,
               "open: %s", p.e.text);
    CHECK_SAYS(loci_cache_open(&c, p.plan, memory, bytes - 64, &p.e), LOCI_BAD_ARG, &p.e,
               "memory has", "a cache cut short");
    CHECK_SAYS(loci_cache_open(&c, p.plan, memory + 8, bytes - 8, &p.e), LOCI_BAD_ARG, &p.e,
               "aligned to 64 bytes", "askew");
    CHECK_SAYS(loci_cache_open(&c, p.plan, memory, 8, &p.e), LOCI_BAD_ARG, &p.e, "contain a cache",
               "nothing there");
    CHECK_SAYS(loci_cache_open(NULL, p.plan, memory, bytes, &p.e), LOCI_BAD_ARG, &p.e,
               "cache must not be NULL", "NULL");
    int taken = 0, said = 0;
    const size_t step = LOCI_EMULATED ? 7 : 1;
    for (size_t at = 0; at < (bytes < lists ? bytes : lists); at += step)
        for (int n = 0; n < 3; n++) {
            static const unsigned char values[] = { 0x01, 0x80, 0xff };
            memcpy(memory, saved, bytes);
            memory[at] = (char)(memory[at] ^ values[n]);
            c = (void *)memory;
            (void)loci_cache_length(c, 0);
            (void)loci_cache_truncate(c, 1, 5, &p.e);
            memcpy(memory, saved, bytes);
            memory[at] = (char)(memory[at] ^ values[n]);
            if (loci_cache_open(&c, p.plan, memory, bytes, &p.e)) {
                said++;
                c = (void *)memory;
            } else {
                taken++;
            }
            p.call.cache = c;
            (void)loci_forward(p.plan, p.tables, work, &p.call);
            (void)loci_cache_append(p.plan, p.tables, work, c, &p.call);
            (void)loci_cache_remove(p.plan, p.tables, work, c, 0, 1, 2, &p.call);
        }
    CHECK_THAT(said > 100 && taken > 100, "damaged caches: nothing was tried");
    drop(&p);
}
/* Counted positions must equal the numbers of the keys, or the cache does not open.  Removal leaves
 * it unchanged. */
static void damaged_counts(void)
{
    struct problem p;
    static const int64_t values[] = { INT64_MIN, INT64_MAX, -1, 2 };
    make(&p, (loci_desc)LOCI_DESC(.encoding = "rope:pairing=half", .keys_rotated = 1));
    const size_t bytes = loci_cache_size(p.plan, B, 70);
    char *memory = mem_alloc(&p.mem, bytes), *before = mem_alloc(&p.mem, bytes);
    loci_cache *c, *opened;
    if (loci_cache_create(&c, p.plan, B, 70, 0, memory, &p.e)) exit(2);
    p.call.cache = c;
    void *work = mem_alloc(&p.mem, loci_workspace(p.plan, &p.call, 0));
    CHECK_THAT(!loci_cache_append(p.plan, p.tables, work, c, &p.call), "append: %s", p.e.text);
    int64_t *pos = cache_list(c, c->pos) + cache_capacity(c); /* of the second entry */
    for (int i = 0; i < (int)(sizeof values / sizeof *values); i++) {
        pos[1] = values[i];
        memcpy(before, memory, bytes);
        CHECK_SAYS(loci_cache_open(&opened, p.plan, memory, bytes, &p.e), LOCI_BAD_ARG, &p.e,
                   "key 1 of entry 1 has position", "counted positions");
        CHECK_SAYS(loci_cache_remove(p.plan, p.tables, work, c, 1, 0, 1, &p.call), LOCI_BAD_ARG,
                   &p.e, "key 1 of entry 1 has position", "counted positions");
        CHECK_THAT(!opened && !memcmp(before, memory, bytes), "a cache that was damaged changed");
    }
    pos[1] = 1;
    CHECK_THAT(!loci_cache_open(&opened, p.plan, memory, bytes, &p.e), "open: %s", p.e.text);
    drop(&p);
}
/* No sequences and no keys: nothing to do. */
static void empty_cache(void)
{
    struct problem p;
    loci_cache *c;
    make(&p, (loci_desc)LOCI_DESC(.encoding = "nope"));
    void *memory = mem_alloc(&p.mem, loci_cache_size(p.plan, 0, 64));
    CHECK_THAT(!loci_cache_create(&c, p.plan, 0, 64, 0, memory, &p.e)
                   && loci_cache_length(c, 0) == LOCI_NONE,
               "a cache of no sequences: %s", p.e.text);
    p.call.batch = 0;
    p.call.cache = c;
    CHECK_THAT(!loci_cache_append(p.plan, p.tables, p.work, c, &p.call) && !forward(&p),
               "a cache of no sequences: %s", p.e.text);
    drop(&p);
}

/* ---- Cancelling ------------------------------------------------------------------------------ */

static int patience;
static int out_of_patience(void *user)
{
    (void)user;
    return patience-- <= 0;
}

static void cancelling(void)
{
    enum { LONG = 300 };
    struct problem p;
    make(&p, (loci_desc)LOCI_DESC(.encoding = "rope:pairing=half", .keys_rotated = 1,
                                  .window_left = 20));
    loci_host host = { .cancelled = out_of_patience };
    float *x = numbers(&p, B * H * LONG * D), *y = numbers(&p, B * H * LONG * D);
    p.call = (loci_call)LOCI_CALL(.batch = B, .q_len = LONG, .k_len = LONG, .host = &host,
                                  .error = &p.e, .q = dense(x), .k = dense(x), .v = dense(x));
    void *work = mem_alloc(&p.mem, loci_workspace(p.plan, &p.call, 1));
    for (int n = 0; n < 2; n++) {
        patience = n;
        CHECK_SAYS(loci_rotate(p.plan, p.tables, work, &p.call, LOCI_QUERY, dense(x), dense(y)),
                   LOCI_CANCELLED, &p.e, "cancelled", "rotate");
        patience = n;
        CHECK_SAYS(loci_rotate_backward(p.plan, p.tables, work, &p.call, LOCI_QUERY, dense(x),
                                        dense(x), dense(y), NULL),
                   LOCI_CANCELLED, &p.e, "cancelled", "rotate backward");
    }
    /* A cancelled append keeps the earlier keys.  Made again, it gives the cache of an append that
     * was not cancelled. */
    for (int ring = 0; ring < 2; ring++) {
        const size_t bytes = loci_cache_size(p.plan, B, 2 * LONG);
        loci_cache *c, *d;
        void *memory = mem_alloc(&p.mem, bytes), *twin = mem_alloc(&p.mem, bytes);
        memset(memory, 0, bytes);
        memset(twin, 0, bytes);
        if (loci_cache_create(&c, p.plan, B, 2 * LONG, ring, memory, &p.e)
            || loci_cache_create(&d, p.plan, B, 2 * LONG, ring, twin, &p.e))
            exit(2);
        for (int n = 0; n < 3; n++) {
            if (n == 2 && !ring) break;
            patience = 3;
            CHECK_SAYS(loci_cache_append(p.plan, p.tables, work, c, &p.call), LOCI_CANCELLED, &p.e,
                       "cancelled", "append");
            CHECK_THAT(loci_cache_length(c, 0) == n * LONG && loci_cache_length(c, 1) == n * LONG,
                       "a cancelled append: changed a length");
            patience = INT_MAX;
            CHECK_THAT(!loci_cache_append(p.plan, p.tables, work, c, &p.call)
                           && !loci_cache_append(p.plan, p.tables, work, d, &p.call),
                       "append: %s", p.e.text);
            CHECK_THAT(!memcmp(cache_keys(c, 1, 1, n * LONG), cache_keys(d, 1, 1, n * LONG),
                               64 * D * sizeof(float)),
                       "a cancelled append: left other keys");
        }
        patience = 0;
        if (!ring) {
            CHECK_SAYS(loci_cache_remove(p.plan, p.tables, work, c, 0, 0, 5, &p.call),
                       LOCI_CANCELLED, &p.e, "cancelled", "remove");
            CHECK_THAT(!memcmp(memory, twin, bytes), "a cancelled removal: changed the cache");
        }
    }
    drop(&p);
    const loci_tensor table = { "learned", "table", LOCI_LEARNED, 2, { 9, D } };
    make(&p, (loci_desc)LOCI_DESC(.encoding = "learned", .stage = LOCI_EMBED, .model_dim = D,
                                  .tensors = &table, .tensor_count = 1));
    void *dtensors[] = { p.o };
    p.call.host = &host;
    patience = 0;
    CHECK_SAYS(loci_embed(p.plan, p.tables, &p.call, dense(p.q), dense(p.o)), LOCI_CANCELLED, &p.e,
               "cancelled", "embed");
    CHECK_SAYS(loci_embed_backward(p.plan, p.tables, p.work, &p.call, dense(p.q), dtensors),
               LOCI_CANCELLED, &p.e, "cancelled", "embed backward");
    drop(&p);
}

/* ---- NULL pointers --------------------------------------------------------------------------- */

static void nowhere(void)
{
    struct problem p;
    double factor;
    make(&p, (loci_desc)LOCI_DESC(.encoding = "rope:pairing=half"));
    CHECK_THAT(loci_isas(NULL, 5) > 0, "loci_isas: NULL");
    CHECK_THAT(loci_frequencies(p.plan, NULL, 100, &factor) == D / 2
                   && loci_frequencies(p.plan, NULL, 0, NULL) == D / 2
                   && !loci_frequencies(NULL, NULL, 9, NULL),
               "loci_frequencies: NULL");
    CHECK_THAT(loci_linear_forward(NULL, NULL, NULL, NULL, NULL, NULL)
                   && loci_linear_backward(NULL, NULL, NULL, NULL, NULL),
               "linear: NULL");
    CHECK_THAT(loci_cache_append(NULL, NULL, NULL, NULL, &p.call)
                   && loci_cache_append(p.plan, NULL, NULL, NULL, NULL),
               "append: NULL");
    CHECK_THAT(loci_cache_remove(NULL, NULL, NULL, NULL, 0, 0, 0, &p.call)
                   && loci_cache_truncate(NULL, 0, 0, &p.e),
               "NULL");
    CHECK_THAT(loci_cache_length(NULL, 0) == LOCI_NONE && !loci_cache_size(NULL, 1, 1), "NULL");
    drop(&p);
}

int main(void)
{
    walk_restart(7);
    far_positions("rope:pairing=half");
    far_positions("xpos");
    far_positions("nope");
    far_rows();
    far_elsewhere();
    far_keys();
    everywhere();
    crooked();
    in_place();
    packed_gradients();
    broadcast();
    windows();
    versions(false);
    versions(true);
    sizes();
    damaged_caches();
    damaged_counts();
    empty_cache();
    cancelling();
    nowhere();
    return harness_end();
}
