/* SPDX-License-Identifier: MIT */
/* gemv_stream.c -- see gemv_stream.h. */
#include "engine/gemv_stream.h"
#include "engine/stored.h"

#if QT == 1

/* Keys and values are processed in blocks of BLOCK keys, LINE bytes of one row after those of
 * another.  Hardware prefetchers do not recognise that as a stream, so rows are fetched AHEAD of
 * the work in the order in which they are stored, some at each step.  With little work per row
 * and no other stream besides it, it is better (`light`) to load one number of each line of the
 * next block: that is a plain stream. */
enum { BLOCK = 16, AHEAD = 64, LINE = 64 };
/* Bytes of n numbers, of whole blocks in q8_0; and the row that begins with number i. */
INLINE ptrdiff_t bytes_of(const enum form f, ptrdiff_t n)
{
    return f == BLOCKS_Q8 ? n / Q8_BLOCK * Q8_BYTES
         : f == WHOLE_Q8  ? n
         : f == REALS     ? n * (ptrdiff_t)sizeof(real)
                          : n * (ptrdiff_t)sizeof(uint16_t);
}
INLINE const void *row_at(const enum form f, const void *p, ptrdiff_t i)
{
    return (const char *)p + bytes_of(f, i);
}
INLINE bool is_q8(const enum form f) { return f == BLOCKS_Q8 || f == WHOLE_Q8; }
/* Number d of a row; of q8_0 its whole number. */
INLINE const void *number_at(const enum form f, const void *row, ptrdiff_t d)
{
    if (f == BLOCKS_Q8)
        return q8_numbers((const char *)row + d / Q8_BLOCK * Q8_BYTES) + d % Q8_BLOCK;
    return (const char *)row + bytes_of(f, d);
}
INLINE const real *scale_at(const enum form f, const real *scales, ptrdiff_t i)
{
    return is_q8(f) ? scales + i : scales; /* other forms have none */
}
/* VL numbers from an address on, and one.  `scale` is that of their block in q8_0. */
INLINE vf vf_load_as(const enum form f, const void *at, const real *scale)
{
    return f == REALS     ? vf_load(at)
         : f == BITS_BF16 ? vf_load_bf16(at)
         : f == BITS_F16  ? vf_load_f16(at)
                          : vf_mul(vf_load_s8(at), vf_set1(*scale));
}
INLINE real load_as(const enum form f, const void *at, const real *scale)
{
    return f == REALS     ? *(const real *)at
         : f == BITS_BF16 ? (real)from_bf16(*(const uint16_t *)at)
         : f == BITS_F16  ? (real)from_f16(*(const uint16_t *)at)
                          : *scale * (real) * (const int8_t *)at;
}
/* Fetches a row by a load of one number per line, or by prefetches, which do not wait. */
INLINE void touch(const void *row, ptrdiff_t bytes)
{
    for (ptrdiff_t i = 0; i < bytes; i += LINE) (void)*((const volatile char *)row + i);
}
INLINE void fetch(const void *row, ptrdiff_t bytes)
{
    for (ptrdiff_t i = 0; i < bytes; i += LINE) __builtin_prefetch((const char *)row + i, 0, 2);
}

/* Tiles of a cache lie one after another.  Hardware prefetchers stop at the end of a page, so work
 * on a tile fetches the same place in a later one: about 16 KB ahead, at least in the next.  If a
 * visit reads all that adjoins, they find most of it, and only some processors gain.  But where
 * reading and multiplying take the same time, nothing makes up for the ends of pages. */
INLINE bool prefetches(const enum form f, const struct source *a, bool adjoins, int rows)
{
    return a->prefetch_streams || !adjoins || (f != REALS && rows >= 4);
}
INLINE ptrdiff_t tile_bytes(const enum form f, int D)
{
    return bytes_of(is_q8(f) ? BLOCKS_Q8 : f, (ptrdiff_t)D * KT);
}
INLINE ptrdiff_t tiles_ahead(const enum form f, int D)
{
    return tile_bytes(f, D) < 16384 ? 16384 / tile_bytes(f, D) : 1;
}
INLINE ptrdiff_t bytes_ahead(const enum form f, int D)
{
    return tiles_ahead(f, D) * tile_bytes(f, D);
}

/* The scales of n rows of q8_0 from row k of a tile on, [D / 32][n]. */
INLINE void load_scales(const enum form f, const struct source *a, int k, int n, int D, real *to)
{
    for (int d = 0; d < D; d += Q8_BLOCK, to += n) {
        uint16_t bits[KT];
        const char *block = (const char *)a->at + bytes_of(f, d);
        for (int i = 0; i < n && f == BLOCKS_Q8; i++)
            bits[i] = q8_scale_bits(block + bytes_of(f, (k + i) * a->stride));
        const uint16_t *scales = f == BLOCKS_Q8 ? bits : a->scales + d / Q8_BLOCK * KT + k;
        if (f == WHOLE_Q8) fetch((const char *)scales + bytes_ahead(f, D), bytes_of(BITS_F16, n));
        reals_of_16(false, scales, n, to);
    }
}
/* n vectors of a row from number i on; in q8_0 the scales of its blocks are `scales` numbers apart.
 * Those of bf16 come in pairs, even numbers before odd ones, which
 * saves half of the work.  line_up() then puts results that were computed in pairs into order. */
INLINE bool pairs_up(const enum form f, const int n) { return f == BITS_BF16 && n % 2 == 0; }
INLINE void load_vectors(const enum form f, const int n, const void *p, ptrdiff_t i,
                         const real *scale, ptrdiff_t scales, vf *x)
{
    if (!pairs_up(f, n)) {
        UNROLL_FOR(int v = 0; v < n; v++)
            x[v] = vf_load_as(f, number_at(f, p, i + v * VL),
                              scale_at(f, scale, (i + v * VL) / Q8_BLOCK * scales));
        return;
    }
    UNROLL_FOR(int v = 0; v < n / 2; v++)
        vf_load2_bf16((const uint16_t *)p + i + 2 * v * VL, &x[2 * v], &x[2 * v + 1]);
}
INLINE void line_up(const enum form f, const int n, vf *x)
{
    if (!pairs_up(f, n)) return;
    UNROLL_FOR(int v = 0; v < n / 2; v++) {
        const vf even = x[2 * v], odd = x[2 * v + 1];
        vf_zip(even, odd, &x[2 * v], &x[2 * v + 1]);
    }
}

/* A transposed block of VL x VL numbers from channel d of VL rows on.  vf_load_columns() issues
 * four times the number of loads, and these delay the loads that prefetch from memory.  So it
 * serves only the last NEAR rows of a single stream, and hence few keys, which are cached.  Rows
 * `ahead` bytes from here are fetched, unless it is 0. */
enum { NEAR = 256 };
INLINE void load_columns(const enum form f, const bool near, const void *p, ptrdiff_t stride, int d,
                         const real *scale, ptrdiff_t ahead, vf *x)
{
    if (f == REALS && near) {
        vf_load_columns((const real *)p + d, stride, x);
        return;
    }
    const char *row = number_at(f, p, d);
    const bool fetches = ahead && bytes_of(f, d) % LINE == 0;
    UNROLL_FOR(int i = 0; i < VL; i++) {
        const char *at = row_at(f, row, i % 4 * stride);
        if (fetches) fetch(at + ahead, 1);
        x[i] = vf_load_as(f, at, scale_at(f, scale, i));
        if (i % 4 == 3) {
            row = row_at(f, row, 4 * stride);
            HIDE(row);
        }
    }
    vf_transpose(x);
}

/* Fetches the rows ahead that belong to the step at channel d of subs * VL rows from a on, from row
 * number `row` of them on.  Returns the number of the next one. */
INLINE ptrdiff_t fetch_share(const enum form f, const bool light, const void *a, ptrdiff_t as,
                             int D, ptrdiff_t row, const int subs, int d, ptrdiff_t rest)
{
    const ptrdiff_t ahead = light ? BLOCK : AHEAD;
    for (; ahead + row < rest && row * (D / VL) < subs * VL * (d / VL + 1); row++) {
        if (light) touch(row_at(f, a, (ahead + row) * as), bytes_of(f, D));
        else fetch(row_at(f, a, (ahead + row) * as), bytes_of(f, D));
    }
    return row;
}

/* C[s][k] = sum over d of a[k][d] q[s][d] for n rows and subs * VL keys, in n * subs chains.  In
 * q8_0, whose rows are whole blocks, `per` scales belong to 32 channels.
 * `rest` rows may be read from a on, and fetches stay within them.  With `lines` A is left there
 * transposed, and the tile before is fetched. */
INLINE void dot_block(const int n, const int subs, const enum form form, const bool light,
                      const bool near, const void *a, ptrdiff_t as, int D, const real *scales,
                      int per, const real *const *q, real *const *c, ptrdiff_t rest, real *lines)
{
    const ptrdiff_t ahead = lines ? -KT * bytes_of(form, as) : 0;
    vf acc[4][MOST];
    ptrdiff_t row = 0;
    int d = 0;
    UNROLL_FOR(int b = 0; b < subs; b++)
        UNROLL_FOR(int s = 0; s < n; s++) acc[b][s] = vf_set1(0);
    for (; d + VL <= D; d += VL) {
        row = fetch_share(form, light, a, as, D, row, subs, d, rest);
        UNROLL_FOR(int b = 0; b < subs; b++) {
            vf x[VL];
            load_columns(form, near, row_at(form, a, b * VL * as), as, d,
                         scale_at(form, scales, d / Q8_BLOCK * per + b * VL), ahead, x);
            if (lines) {
                real *line = lines + (ptrdiff_t)d * KT + b * VL;
                UNROLL_FOR(int i = 0; i < VL; i++) vf_store(line + i * KT, x[i]);
            }
            UNROLL_FOR(int i = 0; i < VL; i++)
                UNROLL_FOR(int s = 0; s < n; s++)
                    acc[b][s] = vf_fma(x[i], vf_set1(q[s][d + i]), acc[b][s]);
        }
    }
    for (; d < D; d++)
        UNROLL_FOR(int b = 0; b < subs; b++) {
            real x[VL];
            for (int i = 0; i < VL; i++)
                x[i] =
                    load_as(form, number_at(form, row_at(form, a, (b * VL + i) * as), d), scales);
            if (lines) vf_store(lines + d * KT + b * VL, vf_load(x));
            UNROLL_FOR(int s = 0; s < n; s++)
                acc[b][s] = vf_fma(vf_load(x), vf_set1(q[s][d]), acc[b][s]);
        }
    UNROLL_FOR(int b = 0; b < subs; b++)
        UNROLL_FOR(int s = 0; s < n; s++) vf_store(c[s] + b * VL, acc[b][s]);
}

/* n such vectors, and a block of keys from k on.  Fewer than four vectors use more keys at once:
 * four chains are the fewest that keep an fma busy. */
INLINE void dots_block(const int n, const enum form form, const bool light, const bool near,
                       const struct dot *list, const struct source *key, int D, int k,
                       const real *scales, ptrdiff_t rest, real *lines)
{
    const int chains = n < 4 ? 4 / n : 1, subs = chains * VL < BLOCK ? chains : BLOCK / VL;
    for (int b = 0; b < BLOCK; b += subs * VL) {
        const real *q[MOST];
        real *c[MOST];
        UNROLL_FOR(int s = 0; s < n; s++) {
            q[s] = list[s].with;
            c[s] = list[s].to + k + b;
        }
        dot_block(n, subs, form, light, near, row_at(form, key->at, (k + b) * key->stride),
                  key->stride, D, scale_at(form, scales, b), BLOCK, q, c, rest - k - b,
                  lines ? lines + k + b : NULL);
    }
}
/* All keys of a tile, as rows.  Only the first visit to a block fetches ahead.  The last keys of
 * a tile, fewer than a block, go one by one. */
INLINE void dots_rows(const enum form form, const struct dot *list, int n, const struct source *key,
                      int D, int keys, ptrdiff_t rest, real *lines)
{
    real scales[is_q8(form) ? MAX_DIM / Q8_BLOCK * BLOCK : 1];
    scales[0] = 0;
    int k = 0;
    for (; k + BLOCK <= keys; k += BLOCK) {
        if (is_q8(form)) load_scales(form, key, k, BLOCK, D, scales);
        for (int i = 0, m; i < n; i += m) {
            const struct dot *to = list + i;
            const ptrdiff_t more = i ? 0 : rest;
            real *keep = lines && !i ? lines : NULL;
            m = n - i >= MOST ? MOST : n - i >= 4 ? 4 : n - i >= 2 ? 2 : 1;
            if (m == MOST) dots_block(MOST, form, false, false, to, key, D, k, scales, more, keep);
            else if (m == 4) dots_block(4, form, false, false, to, key, D, k, scales, more, keep);
            else if (m == 2) dots_block(2, form, false, false, to, key, D, k, scales, more, keep);
            else if (key->concurrent || VL < BLOCK || lines)
                dots_block(1, form, false, false, to, key, D, k, scales, more, keep);
            else if (rest - k > NEAR)
                dots_block(1, form, true, false, to, key, D, k, scales, more, NULL);
            else dots_block(1, form, true, true, to, key, D, k, scales, more, NULL);
        }
    }
    for (; k < keys; k++) {
        if (is_q8(form)) load_scales(form, key, k, 1, D, scales);
        const void *row = row_at(form, key->at, k * key->stride);
        for (int i = 0; i < n; i++) {
            real sum = 0;
            for (int d = 0; d < D; d++) {
                const real x =
                    load_as(form, number_at(form, row, d), scale_at(form, scales, d / Q8_BLOCK));
                if (lines) lines[d * KT + k] = x;
                sum = fma_(x, list[i].with[d], sum);
            }
            list[i].to[k] = sum;
        }
    }
}
/* Keys that are stored across, in the lanes already: n vectors against nv vectors of
 * keys.  Numbers just past the last key are computed too, as the whole tile is in
 * memory; they are never read. */
INLINE void dots_lanes(const int n, const int nv, const enum form form, const struct dot *list,
                       const struct source *keys, int D, int k)
{
    const ptrdiff_t ahead = keys->next * bytes_ahead(form, D),
                    steps = (ptrdiff_t)D * KT / (nv * VL);
    const ptrdiff_t share = keys->bytes / steps;
    /* scales interrupt the stream, and a tile of one page ends it */
    const bool adjoins = nv * VL == KT && !is_q8(form) && tile_bytes(form, D) > 4096;
    const bool fetches = prefetches(form, keys, adjoins, n);
    const char *beside = keys->beside ? keys->beside + k / (nv * VL) * D * share : NULL;
    real scale[8 * VL] = { 0 };
    vf acc[MOST][8];
    UNROLL_FOR(int s = 0; s < n; s++)
        UNROLL_FOR(int v = 0; v < nv; v++) acc[s][v] = vf_set1(0);
    for (int d = 0; d < D; d++) {
        const char *line = (const char *)keys->at + bytes_of(form, (ptrdiff_t)d * KT + k);
        vf x[8];
        if (beside) fetch(beside + d * share, share);
        else if (fetches) fetch(line + ahead, bytes_of(form, nv * VL));
        if (is_q8(form) && d % Q8_BLOCK == 0) {
            const uint16_t *scales = keys->scales + d / Q8_BLOCK * KT + k;
            fetch((const char *)scales + ahead, bytes_of(BITS_F16, nv * VL));
            UNROLL_FOR(int v = 0; v < nv; v++)
                vf_store(scale + v * VL, vf_load_f16(scales + v * VL));
        }
        if (is_q8(form))
            UNROLL_FOR(int v = 0; v < nv; v++)
                x[v] = vf_mul(vf_load_s8((const int8_t *)line + v * VL), vf_load(scale + v * VL));
        else load_vectors(form, nv, line, 0, scale, 0, x);
        UNROLL_FOR(int s = 0; s < n; s++) {
            const vf q = vf_set1(list[s].with[d]);
            UNROLL_FOR(int v = 0; v < nv; v++) acc[s][v] = vf_fma(x[v], q, acc[s][v]);
        }
    }
    UNROLL_FOR(int s = 0; s < n; s++) {
        line_up(form, nv, acc[s]);
        UNROLL_FOR(int v = 0; v < nv; v++) vf_store(list[s].to + k + v * VL, acc[s][v]);
    }
}
INLINE void dots_across(const enum form form, const struct dot *list, int n,
                        const struct source *at, int D, int keys)
{
    /* vectors of keys at a time: fewer if more rows share them, by the number of registers */
    enum { ALL = KT / VL < 8 ? KT / VL : 8, SOME = VL == 8 ? 2 : 4, FEW = 2 };
    for (int i = 0, m; i < n; i += m) {
        m = n - i >= MOST ? MOST : n - i >= 4 ? 4 : n - i >= 2 ? 2 : 1;
        if (m == 1 && keys <= VL) dots_lanes(1, 1, form, list + i, at, D, 0);
        else if (m == 1)
            for (int k = 0; k < keys; k += ALL * VL) dots_lanes(1, ALL, form, list + i, at, D, k);
        else if (m == 2)
            for (int k = 0; k < keys; k += 4 * VL) dots_lanes(2, 4, form, list + i, at, D, k);
        else if (m == 4)
            for (int k = 0; k < keys; k += SOME * VL) dots_lanes(4, SOME, form, list + i, at, D, k);
        else
            for (int k = 0; k < keys; k += FEW * VL)
                dots_lanes(MOST, FEW, form, list + i, at, D, k);
    }
}
/* A function for each form and layout: registers are allocated for each of them apart.  All of
 * them in one function made the loops over rows of reals 1.4 times as long. */
#define ROWS(form) \
    static void rows_of_##form(const struct dot *list, int n, const struct source *key, int D, \
                               int keys, ptrdiff_t rest) \
    { \
        dots_rows(form, list, n, key, D, keys, rest, NULL); \
    } \
    static void lines_of_##form(const struct dot *list, int n, const struct source *key, int D, \
                                int keys, real *lines) \
    { \
        dots_rows(form, list, n, key, D, keys, 0, lines); \
    }
#define ACROSS(form) \
    static void across_of_##form(const struct dot *list, int n, const struct source *key, int D, \
                                 int keys) \
    { \
        dots_across(form, list, n, key, D, keys); \
    }
ROWS(REALS)
ROWS(BITS_BF16)
ROWS(BITS_F16)
ROWS(BLOCKS_Q8)
ROWS(WHOLE_Q8)
ACROSS(REALS)
ACROSS(BITS_BF16)
ACROSS(BITS_F16)
ACROSS(WHOLE_Q8)

void N(dots)(const struct dot *list, int n, const struct source *key, int D, int keys, bool first)
{
    static void (*const rows[])(const struct dot *, int, const struct source *, int, int,
                                ptrdiff_t) = { [REALS] = rows_of_REALS,
                                               [BITS_BF16] = rows_of_BITS_BF16,
                                               [BITS_F16] = rows_of_BITS_F16,
                                               [BLOCKS_Q8] = rows_of_BLOCKS_Q8,
                                               [WHOLE_Q8] = rows_of_WHOLE_Q8 };
    static void (*const across[])(const struct dot *, int, const struct source *, int, int) = {
        [REALS] = across_of_REALS,
        [BITS_BF16] = across_of_BITS_BF16,
        [BITS_F16] = across_of_BITS_F16,
        [WHOLE_Q8] = across_of_WHOLE_Q8, /* caches have no blocks across */
    };
    if (key->across) across[key->form](list, n, key, D, keys);
    else rows[key->form](list, n, key, D, keys, first ? key->rest : 0);
}

struct source N(dots_to_lines)(const struct dot *list, int n, const struct source *key, int D,
                               int keys, real *lines)
{
    static void (*const of[])(const struct dot *, int, const struct source *, int, int, real *) = {
        [REALS] = lines_of_REALS,       [BITS_BF16] = lines_of_BITS_BF16,
        [BITS_F16] = lines_of_BITS_F16, [BLOCKS_Q8] = lines_of_BLOCKS_Q8,
        [WHOLE_Q8] = lines_of_WHOLE_Q8,
    };
    const ptrdiff_t bytes = bytes_of(key->form, KT * key->stride);
    of[key->form](list, n, key, D, keys, lines);
    struct source a = { .at = lines, .across = true };
    if (key->form != REALS) {
        a.beside = (const char *)key->at - 2 * bytes;
        a.bytes = bytes;
    }
    return a;
}

/* What is fetched next of rows that are read in strips: strips of the same width, in the order
 * in which they are stored. */
struct ahead {
    const void *row;
    int d;
    bool none; /* nothing is fetched */
};

INLINE void fetch_strip(const enum form form, struct ahead *a, ptrdiff_t stride, int width, int n)
{
    if (a->none) return;
    /* in blocks of q8_0 about there */
    fetch((const char *)a->row + (form == BLOCKS_Q8 ? a->d : bytes_of(form, a->d)),
          form == BLOCKS_Q8 ? n : bytes_of(form, n));
    a->d += n;
    if (a->d + VL > width) {
        a->d = 0;
        a->row = row_at(form, a->row, stride);
    }
}

/* Sums of values in registers at a time.  Eight of them hide the latency of a multiply-add. */
enum { SUMS = VL == 8 ? 8 : 16 };

/* C[s][d] += sum over k of v[k][d] p[s][k] for nv vectors of d and a block of keys; = with
 * `first`.  Until the `last` block C is in the order in which vectors are loaded.  Between
 * blocks the sum is in memory, and its chain continues from there. */
INLINE void sum_block(const int n, const int nv, const enum form form, bool first, bool last,
                      int keys, const void *v, ptrdiff_t vs, int D, const real *scales, int per,
                      const real *const *p, real *const *c, int d, struct ahead *ahead)
{
    vf acc[4][8];
    UNROLL_FOR(int s = 0; s < n; s++)
        UNROLL_FOR(int i = 0; i < nv; i++)
            acc[s][i] = first ? vf_set1(0) : vf_load(c[s] + d + i * VL);
    for (int k = 0; k < keys; k++) {
        vf x[8];
        fetch_strip(form, ahead, vs, D, nv * VL);
        load_vectors(form, nv, row_at(form, v, k * vs), d, scale_at(form, scales, k), per, x);
        UNROLL_FOR(int s = 0; s < n; s++) {
            const vf w = vf_set1(p[s][k]);
            UNROLL_FOR(int i = 0; i < nv; i++) acc[s][i] = vf_fma(x[i], w, acc[s][i]);
        }
    }
    UNROLL_FOR(int s = 0; s < n; s++) {
        if (last) line_up(form, nv, acc[s]);
        UNROLL_FOR(int i = 0; i < nv; i++) vf_store(c[s] + d + i * VL, acc[s][i]);
    }
}
/* The same for n rows from `row` on and all channels, for a block from key k on. */
INLINE void sum_rows(const int n, const enum form form, const struct summing *a, int row, int k,
                     int block, const real *scales)
{
    const ptrdiff_t vs = a->value->stride;
    const int D = a->D, keys = a->keys - k < block ? a->keys - k : block;
    const void *v = row_at(form, a->value->at, k * vs);
    const real *p[4];
    real *c[4];
    const int widest = 8 * n <= SUMS && D >= 8 * VL ? 8 * VL : 4 * VL;
    struct ahead ahead = { .row = row_at(form, v, tiles_ahead(form, D) * a->value->next * KT * vs),
                           .none = !prefetches(form, a->value, D == widest && vs == D, n) };
    const bool last = k + block >= a->keys;
    int d = 0;
    UNROLL_FOR(int s = 0; s < n; s++) {
        p[s] = a->p + (row + s) * a->weights + k;
        c[s] = a->sums + (row + s) * a->apart;
    }
    for (; 8 * n <= SUMS && d + 8 * VL <= D; d += 8 * VL)
        sum_block(n, 8, form, k == 0, last, keys, v, vs, D, scales, keys, p, c, d, &ahead);
    for (; d + 4 * VL <= D; d += 4 * VL)
        sum_block(n, 4, form, k == 0, last, keys, v, vs, D, scales, keys, p, c, d, &ahead);
    for (; d + VL <= D; d += VL)
        sum_block(n, 1, form, k == 0, last, keys, v, vs, D, scales, keys, p, c, d, &ahead);
    for (; d < D; d++)
        for (int s = 0; s < n; s++) {
            real sum = k == 0 ? 0 : c[s][d];
            for (int i = 0; i < keys; i++)
                sum = fma_(load_as(form, number_at(form, row_at(form, v, i * vs), d), scales),
                           p[s][i], sum);
            c[s][d] = sum;
        }
}
/* Many rows: the first four leave STRIP channels of all values of a tile as reals, and four rows at
 * a time read them from the first level. */
enum { VECTORS = VL == 8 ? 2 : 4, STRIP = VECTORS * VL };
INLINE void leave_strip(const enum form form, const struct summing *a, const real *scales, int d,
                        int k, vf *x, real *strip)
{
    const void *row = row_at(form, a->value->at, k * a->value->stride);
    fetch(row_at(form, number_at(form, row, d), a->value->next * KT * a->value->stride),
          bytes_of(form == BLOCKS_Q8 ? WHOLE_Q8 : form, STRIP));
    load_vectors(form, VECTORS, row, d, scale_at(form, scales, k), a->keys, x);
    line_up(form, VECTORS, x);
    UNROLL_FOR(int i = 0; i < VECTORS; i++) vf_store(strip + k * STRIP + i * VL, x[i]);
}
INLINE void sum_strip(const int n, const bool first, const enum form form, const struct summing *a,
                      const real *scales, real *strip, int row, int d)
{
    const real *p[4];
    vf acc[4][VECTORS];
    UNROLL_FOR(int s = 0; s < n; s++) {
        p[s] = a->p + (row + s) * a->weights;
        UNROLL_FOR(int i = 0; i < VECTORS; i++) acc[s][i] = vf_set1(0);
    }
    for (int k = 0; k < a->keys; k++) {
        vf x[VECTORS];
        if (first) leave_strip(form, a, scales, d, k, x, strip);
        else
            UNROLL_FOR(int i = 0; i < VECTORS; i++) x[i] = vf_load(strip + k * STRIP + i * VL);
        UNROLL_FOR(int s = 0; s < n; s++) {
            const vf w = vf_set1(p[s][k]);
            UNROLL_FOR(int i = 0; i < VECTORS; i++) acc[s][i] = vf_fma(x[i], w, acc[s][i]);
        }
    }
    UNROLL_FOR(int s = 0; s < n; s++)
        UNROLL_FOR(int i = 0; i < VECTORS; i++)
            vf_store(a->sums + (row + s) * a->apart + d + i * VL, acc[s][i]);
}
INLINE void sum_many(const enum form form, const struct summing *a, int n, const real *scales)
{
    real strip[KT * STRIP];
    for (int d = 0; d < a->D; d += STRIP) {
        sum_strip(4, true, form, a, scales, strip, 0, d);
        for (int i = 4, m; i < n; i += m) {
            m = n - i >= 4 ? 4 : n - i >= 2 ? 2 : 1;
            if (m == 4) sum_strip(4, false, form, a, scales, strip, i, d);
            else if (m == 2) sum_strip(2, false, form, a, scales, strip, i, d);
            else sum_strip(1, false, form, a, scales, strip, i, d);
        }
    }
}
typedef void sum_function(const struct summing *, int row, int k, int block, const real *scales);
INLINE void sum_values_as(const enum form form, sum_function *const *of, const struct summing *a,
                          int n)
{
    /* If all rows fit in one visit, a tile is one block.  Otherwise later
     * visits should find it cached. */
    const bool many = n > MOST && a->D % STRIP == 0;
    const int block = many || n == 1 || n == 2 || n == 4 ? KT : BLOCK;
    real scales[is_q8(form) ? MAX_DIM / Q8_BLOCK * KT : 1];
    scales[0] = 0;
    for (int k = 0; k < a->keys; k += block) {
        if (is_q8(form))
            load_scales(form, a->value, k, a->keys - k < block ? a->keys - k : block, a->D, scales);
        if (many) sum_many(form, a, n, scales);
        for (int i = 0, m; i < n && !many; i += m) {
            m = n - i >= 4 ? 4 : n - i >= 2 ? 2 : 1;
            of[m](a, i, k, block, scales);
        }
    }
}
/* A function for each number of rows: in one function some sums of four rows were in memory. */
#define SUM_ROWS(n, form) \
    static void sum_##n##_of_##form(const struct summing *a, int row, int k, int block, \
                                    const real *scales) \
    { \
        sum_rows(n, form, a, row, k, block, scales); \
    }
#define SUM(form) \
    SUM_ROWS(1, form) \
    SUM_ROWS(2, form) \
    SUM_ROWS(4, form) \
    static void sum_of_##form(const struct summing *a, int n) \
    { \
        static sum_function *const of[] = { \
            [1] = sum_1_of_##form, [2] = sum_2_of_##form, [4] = sum_4_of_##form \
        }; \
        sum_values_as(form, of, a, n); \
    }
SUM(REALS)
SUM(BITS_BF16)
SUM(BITS_F16)
SUM(BLOCKS_Q8)
SUM(WHOLE_Q8)

void N(sum_values)(const struct summing *a, int n)
{
    static void (*const of[])(const struct summing *, int) = {
        [REALS] = sum_of_REALS,       [BITS_BF16] = sum_of_BITS_BF16,
        [BITS_F16] = sum_of_BITS_F16, [BLOCKS_Q8] = sum_of_BLOCKS_Q8,
        [WHOLE_Q8] = sum_of_WHOLE_Q8,
    };
    of[a->value->form](a, n);
}
#endif
