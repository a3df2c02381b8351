/* SPDX-License-Identifier: MIT */
/* order.c -- docs/bits.md as a program: loops over single numbers that follow its rules for tiles,
 * chunks and items.  The engine's outputs and gradients must have the same bits.
 *
 * There are enough rows and keys for two chunks, three items, and partial tiles. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loci/loci.h"
#include "harness.h"
#include "mem.h"
#include "walk.h"

enum { TILE = 64, CHUNK = 4096, ITEM = 1024, D = 8, H = 2 };

/* ---- Functions ------------------------------------------------------------------------------- */

static float e_to(float x)
{
    if (x != x) return x;
    if (x < -60) return 0;
    const float t = fmaf(x, 1.44269504f, 12582912.0f), r = fmaf(t - 12582912.0f, -0.693147182f, x);
    float y = fmaf(r, 0x1.0fa6c4p-7f, 0x1.573c42p-5f);
    y = fmaf(r, y, 0x1.555a76p-3f);
    y = fmaf(r, y, 0x1.fffdc0p-2f);
    y = fmaf(r, y, 0x1.fffff6p-1f);
    y = fmaf(r, y, 1.0f);
    uint32_t bits, more;
    memcpy(&bits, &y, 4);
    memcpy(&more, &t, 4);
    bits += more << 23;
    memcpy(&y, &bits, 4);
    return y;
}
static double log_of(double x)
{
    int e;
    double m = frexp(x, &e), s = 0;
    if (m < 0.70710678118654752) {
        m *= 2;
        e--;
    }
    const double f = (m - 1) / (m + 1), g = f * f;
    for (int n = 23; n >= 3; n -= 2) s = (s + 1.0 / n) * g;
    return 2 * f + 2 * f * s + e * 0.69314718055994530942;
}
static float larger(float a, float b) { return a > b ? a : b; }

/* ---- A problem ------------------------------------------------------------------------------- */

struct problem {
    const char *text;
    ptrdiff_t rows, keys;
    loci_plan *plan;
    loci_call call;
    loci_grad grad;
    void *tables, *work;
    float *q, *k, *v, *o, *lse, *rem, *dout, *dlse, *drem, *dq, *dk, *dv;
    /* q rotated and scaled, k rotated */
    float *tq, *tk;
    float scale, learned[3 * H], dlearned[3 * H];
    const void *data[1];
    void *ddata[1];
    struct mem mem;
    loci_error e;
};

static float *numbers(struct problem *p, ptrdiff_t n, bool drawn)
{
    float *x = mem_alloc(&p->mem, (size_t)n * sizeof *x);
    for (ptrdiff_t i = 0; i < n && drawn; i++) x[i] = (float)(2 * walk_uniform());
    return x;
}
static bool is(const struct problem *p, const char *name)
{
    return !strncmp(p->text, name, strlen(name));
}
static void tables(struct problem *p)
{
    p->tables = mem_alloc(&p->mem, loci_tables_size(p->plan, p->keys));
    CHECK_THAT(!loci_prepare_on(NULL, p->plan, p->keys, p->data, p->tables, &p->e), "%s: %s",
               p->text, p->e.text);
    p->work = mem_alloc(&p->mem, loci_workspace(p->plan, &p->call, 1));
}
static bool open(struct problem *p, const char *text, ptrdiff_t rows, ptrdiff_t keys)
{
    *p = (struct problem){ .text = text, .rows = rows, .keys = keys };
    const loci_desc desc = LOCI_DESC(.encoding = text, .heads = H, .kv_heads = 1, .dim = D,
                                     .dtype = LOCI_F32, .max_len = keys);
    if (loci_plan_create(&p->plan, &desc, &p->e)) {
        CHECK_FAILED("%s: %s", text, p->e.text);
        return false;
    }
    walk_restart(5);
    p->q = numbers(p, H * rows * D, true);
    p->k = numbers(p, keys * D, true);
    p->v = numbers(p, keys * D, true);
    p->dout = numbers(p, H * rows * D, true);
    p->dlse = numbers(p, H * rows, true);
    p->drem = numbers(p, H * rows, true);
    p->o = numbers(p, H * rows * D, false);
    p->dq = numbers(p, H * rows * D, false);
    p->lse = numbers(p, H * rows, false);
    p->rem = numbers(p, H * rows, false);
    p->dk = numbers(p, keys * D, false);
    p->dv = numbers(p, keys * D, false);
    p->tq = numbers(p, H * rows * D, false);
    p->tk = numbers(p, keys * D, false);
    p->scale = is(p, "t5") ? 1 : (float)(1 / sqrt(D));
    for (int i = 0; i < H; i++) p->learned[i] = (float)walk_uniform();
    p->data[0] = p->learned;
    p->ddata[0] = p->dlearned;
    p->call = (loci_call)LOCI_CALL(.batch = 1, .q_len = rows, .k_len = keys, .q.data = p->q,
                                   .k.data = p->k, .v.data = p->v, .o.data = p->o, .error = &p->e);
    p->grad = (loci_grad)LOCI_GRAD(.dout.data = p->dout, .dq.data = p->dq, .dk.data = p->dk,
                                   .dv.data = p->dv);
    if (is(p, "sba")) {
        p->call.rem = p->rem;
        p->grad.drem = p->drem;
    } else {
        p->call.lse = p->lse;
        p->grad.dlse = p->dlse;
    }
    if (is(p, "sink")) p->grad.dtensors = p->ddata;
    tables(p);
    return true;
}
static void drop(struct problem *p)
{
    loci_plan_destroy(p->plan);
    mem_release(&p->mem, 0);
}

/* Rows as products read them.  Angles are the engine's own; their use is not. */
static void turn(struct problem *p)
{
    memcpy(p->tq, p->q, sizeof *p->q * (size_t)(H * p->rows * D));
    memcpy(p->tk, p->k, sizeof *p->k * (size_t)(p->keys * D));
    if (is(p, "rope")) {
        float ones[D], angles[D];
        const int64_t offset = p->keys - p->rows;
        for (ptrdiff_t i = 0; i < p->keys; i++) {
            for (int d = 0; d < D; d++) ones[d] = d < D / 2;
            const loci_call c =
                LOCI_CALL(.batch = 1, .q_len = 1, .k_len = 1, .q_pos = (int64_t[]){ i },
                          .k_pos = (int64_t[]){ i }, .error = &p->e);
            const loci_view from = { ones, 0, D, D }, to = { angles, 0, D, D };
            if (loci_rotate(p->plan, p->tables, p->work, &c, LOCI_KEY, from, to))
                CHECK_FAILED("%s: %s", p->text, p->e.text);
            /* (1, 0) becomes (cos, sin) */
            for (int h = -1; h < H; h++) {
                float *x = h < 0 ? p->tk + i * D : p->tq + (h * p->rows + i - offset) * D;
                for (int t = 0; t < D / 2 && (h < 0 || i >= offset); t++) {
                    const float a = x[t], b = x[t + D / 2], cos = angles[t],
                                sin = angles[t + D / 2];
                    x[t] = fmaf(a, cos, -(b * sin));
                    x[t + D / 2] = fmaf(a, sin, b * cos);
                }
            }
        }
    }
    for (ptrdiff_t i = 0; i < H * p->rows * D; i++) p->tq[i] *= p->scale;
}

/* ---- Scores ---------------------------------------------------------------------------------- */

/* The score of row i of head h and key j, -inf if the row does not see the key.  ALiBi's slopes of
 * two heads are 2^-4 and 2^-8.  T5's buckets are logarithmic from 16 on, and its biases here 0. */
static float score(const struct problem *p, int h, ptrdiff_t i, ptrdiff_t j)
{
    const ptrdiff_t d = i + p->keys - p->rows - j;
    const float *q = p->tq + (h * p->rows + i) * D, *k = p->tk + j * D;
    float s = 0;
    if (d < 0 || (d == 0 && is(p, "sba"))) return -INFINITY;
    for (int x = 0; x < D; x++) s = fmaf(k[x], q[x], s);
    if (is(p, "alibi")) s = fmaf(h ? -0x1p-8f : -0x1p-4f, (float)d, s);
    return s;
}

/* ---- Forward --------------------------------------------------------------------------------- */

static ptrdiff_t last_key(const struct problem *p, ptrdiff_t i) { return i + p->keys - p->rows; }
static ptrdiff_t smaller(ptrdiff_t a, ptrdiff_t b) { return a < b ? a : b; }

/* Softmax over one chunk of a row: m, l and o. */
static void soften_chunk(const struct problem *p, int h, ptrdiff_t i, ptrdiff_t chunk, float *m,
                         float *l, float *o)
{
    const ptrdiff_t end = smaller(last_key(p, i) + 1, (chunk + 1) * CHUNK);
    *m = -INFINITY;
    *l = 0;
    for (int n = 0; n < D; n++) o[n] = 0;
    for (ptrdiff_t tile = (end - 1) / TILE; tile >= chunk * (CHUNK / TILE); tile--) {
        const ptrdiff_t first = tile * TILE, keys = smaller(end - first, TILE);
        float s[TILE], top = *m, sum = 0;
        for (ptrdiff_t k = 0; k < keys; k++) {
            s[k] = score(p, h, i, first + k);
            top = larger(top, s[k]);
        }
        const float base = top == -INFINITY ? 0 : top, a = e_to(*m - base);
        for (ptrdiff_t k = 0; k < keys; k++) {
            s[k] = e_to(s[k] - base);
            sum += s[k];
        }
        *m = top;
        *l = fmaf(*l, a, sum);
        for (int n = 0; n < D; n++) {
            float x = 0;
            for (ptrdiff_t k = 0; k < keys; k++) x = fmaf(p->v[(first + k) * D + n], s[k], x);
            o[n] = fmaf(o[n], a, x);
        }
    }
}
static void soften(const struct problem *p, int h, ptrdiff_t i, float *o, float *lse)
{
    float M = -INFINITY, L = 0, O[D] = { 0 };
    if (is(p, "sink")) {
        M = p->learned[h];
        L = 1;
    }
    for (ptrdiff_t chunk = last_key(p, i) / CHUNK; chunk >= 0; chunk--) {
        float m, l, x[D];
        soften_chunk(p, h, i, chunk, &m, &l, x);
        const float top = larger(M, m), base = top == -INFINITY ? 0 : top, a = e_to(M - base),
                    b = e_to(m - base);
        M = top;
        L = fmaf(l, b, L * a);
        for (int n = 0; n < D; n++) O[n] = fmaf(x[n], b, O[n] * a);
    }
    for (int n = 0; n < D; n++) o[n] = O[n] * (1 / L);
    *lse = (float)((double)M + log_of((double)L));
}

/* One tile's part of a stick of length f, newest key first: p, and sigmoid(z).  Returns the new
 * f. */
static float break_stick(const struct problem *p, int h, ptrdiff_t i, ptrdiff_t first,
                         ptrdiff_t keys, float f, float *weight, float *sigmoid, float *used)
{
    *used = 0;
    for (ptrdiff_t k = keys - 1; k >= 0; k--) {
        const float z = score(p, h, i, first + k), e = -fabsf(z) < -34.5f ? 0 : e_to(-fabsf(z)),
                    w = e / (1 + e), share = f * w, small = share < 0x1p-75f ? 0 : share,
                    big = f - small, taken = share < 0x1p-75f ? 0 : w;
        weight[k] = z < 0 ? small : big;
        sigmoid[k] = z < 0 ? taken : 1 - taken;
        f = z < 0 ? big : small;
        *used += weight[k];
    }
    return f;
}
/* The state of a stick before each tile: R r, of the row and of the chunk. */
struct stick {
    double R, r;
};
static float begins(struct stick s) { return s.R * s.r < 0x1p-64 ? 0 : (float)s.r; }
static double goes_on(struct stick s, float left, float used)
{
    const float first = begins(s);
    return first == 0 ? s.r : left < first / 2 ? (double)left : s.r - (double)used;
}
static float rest(double stick) { return stick < 0x1p-75 ? 0 : (float)stick; }

static void break_sticks(const struct problem *p, int h, ptrdiff_t i, float *o, float *rem)
{
    struct stick s = { 1, 1 };
    for (int n = 0; n < D; n++) o[n] = 0;
    for (ptrdiff_t chunk = last_key(p, i) / CHUNK; chunk >= 0; chunk--) {
        const ptrdiff_t end = smaller(last_key(p, i) + 1, (chunk + 1) * CHUNK);
        float sums[D] = { 0 }, w[TILE], sigmoid[TILE], used;
        s = (struct stick){ s.R * s.r, 1 };
        for (ptrdiff_t tile = (end - 1) / TILE; tile >= chunk * (CHUNK / TILE); tile--) {
            const ptrdiff_t first = tile * TILE, keys = smaller(end - first, TILE);
            const float left = break_stick(p, h, i, first, keys, begins(s), w, sigmoid, &used);
            s.r = goes_on(s, left, used);
            for (int n = 0; n < D; n++) {
                float x = 0;
                for (ptrdiff_t k = 0; k < keys; k++) x = fmaf(p->v[(first + k) * D + n], w[k], x);
                sums[n] += x;
            }
        }
        for (int n = 0; n < D; n++) o[n] = fmaf(sums[n], rest(s.R), o[n]);
    }
    *rem = rest(s.R * s.r);
}

/* ---- Backward -------------------------------------------------------------------------------- */

/* Weights and gradients of 64 rows and 64 keys. */
struct pairs {
    float p[TILE][TILE], ds[TILE][TILE];
};

static float dot_values(const struct problem *p, int h, ptrdiff_t i, ptrdiff_t j)
{
    float dp = 0;
    for (int n = 0; n < D; n++) dp = fmaf(p->v[j * D + n], p->dout[(h * p->rows + i) * D + n], dp);
    return dp;
}
static float delta_of(const struct problem *p, int h, ptrdiff_t i)
{
    const ptrdiff_t at = h * p->rows + i;
    float delta = 0;
    for (int n = 0; n < D; n++) delta = fmaf(p->dout[at * D + n], p->o[at * D + n], delta);
    return delta - p->dlse[at];
}
static void weigh(const struct problem *p, int h, ptrdiff_t i, ptrdiff_t first, ptrdiff_t keys,
                  float *w, float *ds)
{
    const float delta = delta_of(p, h, i);
    for (ptrdiff_t k = 0; k < keys; k++) {
        const float s = score(p, h, i, first + k);
        w[k] = s == -INFINITY ? 0 : e_to(s - p->lse[h * p->rows + i]);
        ds[k] = s == -INFINITY ? 0 : w[k] * (dot_values(p, h, i, first + k) - delta);
    }
}

struct sums {
    float *dk, *dv, *dq;
}; /* of an item and a chunk; of the row's chunks */

/* A tile of rows and a chunk of keys. */
static void walk_keys(const struct problem *p, int h, ptrdiff_t row, ptrdiff_t rows,
                      ptrdiff_t chunk, const struct sums *to)
{
    static struct pairs x;
    static float dq[TILE][D];
    const ptrdiff_t end = smaller(last_key(p, row + rows - 1) + 1, (chunk + 1) * CHUNK);
    memset(dq, 0, sizeof dq);
    for (ptrdiff_t first = chunk * CHUNK; first < end; first += TILE) {
        const ptrdiff_t keys = smaller(end - first, TILE);
        for (ptrdiff_t r = 0; r < rows; r++) weigh(p, h, row + r, first, keys, x.p[r], x.ds[r]);
        for (ptrdiff_t k = 0; k < keys; k++)
            for (int n = 0; n < D; n++) {
                float dk = 0, dv = 0;
                for (ptrdiff_t r = 0; r < rows; r++) {
                    const ptrdiff_t at = (h * p->rows + row + r) * D + n;
                    dv = fmaf(x.p[r][k], p->dout[at], dv);
                    dk = fmaf(x.ds[r][k], p->tq[at], dk);
                }
                to->dk[(first + k) * D + n] += dk;
                to->dv[(first + k) * D + n] += dv;
            }
        for (ptrdiff_t r = 0; r < rows; r++)
            for (int n = 0; n < D; n++) {
                float sum = 0;
                for (ptrdiff_t k = 0; k < keys; k++)
                    sum = fmaf(p->tk[(first + k) * D + n], x.ds[r][k], sum);
                dq[r][n] += sum;
            }
    }
    for (ptrdiff_t r = 0; r < rows; r++)
        for (int n = 0; n < D; n++) to->dq[(h * p->rows + row + r) * D + n] += dq[r][n];
}

/* dL by the logit of a sink: rows of a tile in double, tiles into the part of the newest chunk that
 * they see, chunks and items in double. */
static void add_sinks(const struct problem *p, ptrdiff_t item, ptrdiff_t rows, double *total)
{
    for (int h = 0; h < H; h++) {
        double all = 0;
        for (ptrdiff_t chunk = 0; chunk <= last_key(p, item + rows - 1) / CHUNK; chunk++) {
            float part = 0;
            for (ptrdiff_t row = item; row < item + rows; row += TILE) {
                const ptrdiff_t end = smaller(row + TILE, item + rows);
                double sum = 0;
                if (last_key(p, end - 1) / CHUNK != chunk) continue;
                for (ptrdiff_t i = row; i < end; i++)
                    sum +=
                        (double)(e_to(p->learned[h] - p->lse[h * p->rows + i]) * delta_of(p, h, i));
                part -= (float)sum;
            }
            all += (double)part;
        }
        total[h] += all;
    }
}

/* All gradients.  Items do not overlap in dq, so they may run one after the other. */
static void gradients(struct problem *p, float *dq, float *dk, float *dv, double *sinks)
{
    const ptrdiff_t n = p->keys * D;
    float *part = numbers(p, 2 * n, false);
    memset(dq, 0, sizeof *dq * (size_t)(H * p->rows * D));
    memset(dk, 0, sizeof *dk * (size_t)n);
    memset(dv, 0, sizeof *dv * (size_t)n);
    for (ptrdiff_t item = (p->rows - 1) / ITEM * ITEM; item >= 0; item -= ITEM) {
        const ptrdiff_t rows = smaller(p->rows - item, ITEM);
        const struct sums to = { part, part + n, dq };
        for (ptrdiff_t chunk = 0; chunk <= last_key(p, item + rows - 1) / CHUNK; chunk++) {
            memset(part, 0, sizeof *part * (size_t)(2 * n));
            for (int h = 0; h < H; h++)
                for (ptrdiff_t row = item; row < item + rows; row += TILE)
                    walk_keys(p, h, row, smaller(TILE, item + rows - row), chunk, &to);
            for (ptrdiff_t i = 0; i < n; i++) {
                dk[i] += part[i];
                dv[i] += part[n + i];
            }
        }
        if (is(p, "sink")) add_sinks(p, item, rows, sinks);
    }
}

/* Applies the inverse rotation to dq and dk. */
static void turn_back(struct problem *p, float *dq, float *dk)
{
    if (is(p, "rope")) {
        const loci_view k = { p->k, 0, 0, 0 }, g = { dk, 0, 0, 0 };
        const loci_view q = { p->q, 0, 0, 0 }, f = { dq, 0, 0, 0 };
        CHECK_THAT(!loci_rotate_backward(p->plan, p->tables, p->work, &p->call, LOCI_KEY, k, g, g,
                                         NULL),
                   "%s", p->e.text);
        CHECK_THAT(!loci_rotate_backward(p->plan, p->tables, p->work, &p->call, LOCI_QUERY, q, f, f,
                                         NULL),
                   "%s", p->e.text);
    }
    for (ptrdiff_t i = 0; i < H * p->rows * D; i++) dq[i] *= p->scale;
}

/* ---- Comparison ------------------------------------------------------------------------------ */

static void same(const struct problem *p, const char *name, const float *got, const float *want,
                 ptrdiff_t n)
{
    ptrdiff_t differ = 0, first = -1;
    for (ptrdiff_t i = 0; i < n; i++)
        if (memcmp(got + i, want + i, sizeof *got)) {
            differ++;
            first = first < 0 ? i : first;
        }
    CHECK_THAT(!differ, "%s: %td of %td numbers of %s; number %td is %.9g, by the page %.9g",
               p->text, differ, n, name, first, (double)got[first], (double)want[first]);
}

static void compare_forward(struct problem *p)
{
    const ptrdiff_t rows = H * p->rows;
    float *o = numbers(p, rows * D, false), *row = numbers(p, rows, false);
    CHECK_THAT(!loci_forward(p->plan, p->tables, p->work, &p->call), "%s: %s", p->text, p->e.text);
    for (int h = 0; h < H; h++)
        for (ptrdiff_t i = 0; i < p->rows; i++) {
            const ptrdiff_t at = h * p->rows + i;
            if (is(p, "sba")) break_sticks(p, h, i, o + at * D, row + at);
            else soften(p, h, i, o + at * D, row + at);
        }
    same(p, "o", p->o, o, rows * D);
    same(p, is(p, "sba") ? "rem" : "lse", is(p, "sba") ? p->rem : p->lse, row, rows);
}
static void compare_backward(struct problem *p)
{
    const ptrdiff_t rows = H * p->rows;
    float *dq = numbers(p, rows * D, false), *dk = numbers(p, p->keys * D, false),
          *dv = numbers(p, p->keys * D, false);
    double sinks[H] = { 0 };
    CHECK_THAT(!loci_backward(p->plan, p->tables, p->work, &p->call, &p->grad), "%s: %s", p->text,
               p->e.text);
    gradients(p, dq, dk, dv, sinks);
    turn_back(p, dq, dk);
    same(p, "dq", p->dq, dq, rows * D);
    same(p, "dk", p->dk, dk, p->keys * D);
    same(p, "dv", p->dv, dv, p->keys * D);
    if (!is(p, "sink")) return;
    const float by_page[H] = { (float)sinks[0], (float)sinks[1] };
    same(p, "dlogit", p->dlearned, by_page, H);
}
static void compare(const char *text, ptrdiff_t rows, ptrdiff_t keys)
{
    struct problem p;
    if (!open(&p, text, rows, keys)) return;
    turn(&p);
    compare_forward(&p);
    if (!is(&p, "sba")) compare_backward(&p);
    drop(&p);
}

int main(void)
{
    static const char *const texts[] = { "nope", "alibi", "rope:pairing=half", "sink", "sba" };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        compare(texts[i], 150, 171);
        compare(texts[i], 3, LOCI_SLOW ? 700 : 4300); /* decode */
        if (!LOCI_SLOW) compare(texts[i], 1090, 4250);
    }
    if (!LOCI_SLOW) compare("sink", 2100, 4250); /* three items */
    return harness_end();
}
