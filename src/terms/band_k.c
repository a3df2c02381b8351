/* SPDX-License-Identifier: MIT */
/* band_k.c -- vectors by distance, multiplied by the keys.
 *
 *     s[k][r] += scale K[k] . V[d + r - k]
 *
 * The distances of a few keys to all rows of the tile are neighbours, and so are their vectors.
 * One product makes a line per key, with its number for each of these vectors.  Key k reads its
 * own QT numbers from its line: 80 columns serve 16 keys and 64 rows.  Where all distances of
 * these keys are beyond lo or hi, each key has one number.
 *
 * Backward, dS of a key is stored at its place in such a line.  The product of the lines with
 * the vectors is then a gradient of keys, and that with the keys a gradient of vectors. */
#include "engine/tile_gemm.h"
#include "layout/band_k.h"

enum { BAND = 16, LINE = BAND + QT }; /* keys that share a product; distances of a line */
_Static_assert((int)LINE <= (int)KEY_MARGIN,
               "a product reaches beyond the ends by less than a line");

/* State of the hooks of a query tile, in their memory. */
struct key_reach {
    struct key_vectors of;
    ptrdiff_t columns, width;
    /* the table of the head: transposed, and as rows; both point to distance 0 */
    const real *across, *rows;
};
enum { REACH_ROWS = (sizeof(struct key_reach) + sizeof(real) * QT - 1) / (sizeof(real) * QT) };
static struct key_vectors vectors_of(const struct call *c, int x)
{
    return *(const struct key_vectors *)layout_of(c->plan, x);
}
/* This is followed in decode by a number per key of a chunk, and in the backward
 * pass by a line of a part. */
static ptrdiff_t mem(const struct call *c, int x)
{
    const struct key_vectors v = vectors_of(c, x);
    return REACH_ROWS
         + (QT == 1       ? CHUNK
            : c->backward ? ((ptrdiff_t)key_columns(&v) + QT - 1) / QT
                          : 0);
}
static const struct key_reach *reach_of(const struct tile *t, int x)
{
    return (const void *)t->own[x].mem;
}

/* across and rows point to the vectors of distance 0; those of negative distances come before. */
static void open(struct tile *t, int x)
{
    const int D = t->c->plan->dim;
    struct key_reach b = { .of = vectors_of(t->c, x) };
    b.columns = (ptrdiff_t)key_columns(&b.of);
    b.width = (ptrdiff_t)vectors_width(D);
    const real *table = (const real *)((const char *)t->own[x].table + b.of.at)
                      + (size_t)t->h * key_table(&b.of, D);
    const ptrdiff_t zero = KEY_MARGIN - b.of.lo;
    b.across = table + zero;
    b.rows = table + D * b.columns + zero * b.width;
    memcpy(t->own[x].mem, &b, sizeof b);
}

static int clip(int64_t d, int lo, int hi) { return d < lo ? lo : d > hi ? hi : (int)d; }

/* Returns the end's vector if n keys from k on have all their distances at one end, else NULL. */
static const real *end_of(const struct tile *t, const struct key_reach *b, int k, int n)
{
    if (b->of.lo == b->of.hi || t->d - (k + n - 1) >= b->of.hi)
        return b->rows + b->of.hi * b->width;
    if (t->d - k + QT - 1 <= b->of.lo) return b->rows + b->of.lo * b->width;
    return NULL;
}

/* ---- Scores ---------------------------------------------------------------------------------- */

#if QT == 1
/* Channels d .. d + VL - 1 of VL keys from k on, keys in the lanes. */
INLINE void load_channels(const struct tile *t, int k, int d, vf *y)
{
    const real *from = t->k.at + k * t->k.row + d * t->k.step;
    UNROLL_FOR(int i = 0; i < VL; i++)
        y[i] = vf_load(from + i * (t->k.step == 1 ? t->k.row : t->k.step));
    if (t->k.step == 1) vf_transpose(y);
}
/* Numbers of n keys from k on, each with the vector of its own distance.  Vectors come as rows,
 * which are a stream, and are transposed, so that keys are in the lanes.  The vectors of the
 * next keys come before these, and are prefetched. */
static void score_band(const struct tile *t, const struct key_reach *b, int k, int n, real scale,
                       real *s)
{
    enum { NEXT = 2 * BAND };
    const int D = t->c->plan->dim, whole = D / VL * VL;
    const real *v = b->rows + ((ptrdiff_t)t->d - k) * b->width;
    /* one line at a time, two blocks ahead */
    for (int i = 0; i < n; i++)
        for (int d = 0; d < D; d += 64 / (int)sizeof(real))
            __builtin_prefetch(v - (NEXT + i) * b->width + d, 0, 2);
    int i = 0;
    for (; i + VL <= n; i += VL, v -= VL * b->width) {
        vf sum = vf_set1(0);
        for (int d = 0; d < whole; d += VL) {
            vf x[VL], y[VL];
            UNROLL_FOR(int j = 0; j < VL; j++) x[j] = vf_load(v - j * b->width + d);
            vf_transpose(x);
            load_channels(t, k + i, d, y);
            UNROLL_FOR(int j = 0; j < VL; j++) sum = vf_fma(y[j], x[j], sum);
        }
        /* the channels that do not fill a vector, in the same chain */
        real number[VL];
        vf_store(number, sum);
        for (int j = 0; j < VL; j++) {
            for (int d = whole; d < D; d++)
                number[j] = fma_(t->k.at[(k + i + j) * t->k.row + d * t->k.step],
                                 v[d - j * b->width], number[j]);
            s[i + j] = fma_(scale, number[j], s[i + j]);
        }
    }
    for (; i < n; i++, v -= b->width) {
        real sum = 0;
        for (int d = 0; d < D; d++)
            sum = fma_(t->k.at[(k + i) * t->k.row + d * t->k.step], v[d], sum);
        s[i] = fma_(scale, sum, s[i]);
    }
}

/* Numbers of keys whose tile is entirely beyond an end, for all tiles of a chunk. */
static real *numbers_of(const struct tile *t, int x)
{
    return t->own[x].mem + REACH_ROWS + (t->j0 - t->seq->k0) % CHUNK;
}
/* In a tile beyond an end all keys are multiplied by one vector, as they are by the query: so
 * that happens during the read of the keys. */
static const real *extra_query(struct tile *t, int x, struct source *keys, real **numbers)
{
    (void)keys;
    *numbers = numbers_of(t, x);
    return t->run ? end_of(t, reach_of(t, x), 0, t->keys) : NULL;
}
#else
/* Line i has the numbers of key k + i by distance, starting with that of key k +
 * BAND - 1 to the first row. */
static void score_band(const struct tile *t, const struct key_reach *b, int k, int n, real scale,
                       real *restrict s)
{
    const ptrdiff_t from = (ptrdiff_t)t->d - (k + BAND - 1);
    real lines[BAND * LINE];
    product(SET, n, LINE, t->c->plan->dim, t->k.at + k * t->k.row, t->k.row, t->k.step,
            b->across + from, b->columns, lines, LINE, NULL);
    for (int i = 0; i < n; i++)
        for (int r = 0; r < QT; r++)
            s[i * QT + r] = fma_(scale, lines[i * LINE + BAND - 1 - i + r], s[i * QT + r]);
}
#endif

/* n keys from k on, for which all rows have the vector of one end: one number per key. */
static void score_end(const struct tile *t, int k, int n, const real *end, real scale,
                      real *restrict s)
{
    real numbers[KT];
    if (t->k.step == 1)
        dot_keys(n, t->k.at + k * t->k.row, t->k.row, t->c->plan->dim, end, numbers);
    else dot_across(n, t->k.at + k, t->k.step, t->c->plan->dim, end, numbers);
    for (int i = 0; i < n; i++)
        for (int r = 0; r < QT; r++) s[i * QT + r] = fma_(scale, numbers[i], s[i * QT + r]);
}
/* Blocks of keys, oldest first, until all remaining keys are beyond an end.  Both ways to
 * compute a block give the same bits: a number is one chain over the channels in each. */
static void score_run(const struct tile *t, const struct key_reach *b)
{
    const real scale = (real)t->c->plan->scale;
    for (int k = 0, n; k < t->keys; k += n) {
        const real *end = end_of(t, b, k, t->keys - k);
        n = end || t->keys - k < BAND ? t->keys - k : BAND;
        if (!end) end = end_of(t, b, k, n);
        if (end) score_end(t, k, n, end, scale, t->s + k * QT);
        else score_band(t, b, k, n, scale, t->s + k * QT);
    }
}

/* Positions that are not a run: pair by pair. */
static void score_pairs(const struct tile *t, const struct key_reach *b)
{
    const real scale = (real)t->c->plan->scale;
    for (int k = 0; k < t->keys; k++)
        for (int r = 0; r < t->rows; r++) {
            const real *v = b->rows + clip(distance(t, k, r), b->of.lo, b->of.hi) * b->width;
            real sum = 0;
            for (int d = 0; d < t->c->plan->dim; d++)
                sum = fma_(t->k.at[k * t->k.row + d * t->k.step], v[d], sum);
            t->s[k * QT + r] = fma_(scale, sum, t->s[k * QT + r]);
        }
}

/* A number that is not finite must not leave a masked pair unmasked. */
static void score(struct tile *t, int x)
{
    const struct key_reach *b = reach_of(t, x);
    bool done = false;
#if QT == 1
    /* extra_query() has been answered already */
    done = t->run && end_of(t, b, 0, t->keys);
    for (int k = 0; k < t->keys && done; k++)
        t->s[k] = fma_((real)t->c->plan->scale, numbers_of(t, x)[k], t->s[k]);
#endif
    if (!t->run) score_pairs(t, b);
    else if (!done) score_run(t, b);
    mask(t, t->s, -INFINITY);
}

/* ---- Gradients ------------------------------------------------------------------------------- */

static ptrdiff_t part(const struct call *c, int x)
{
    const struct key_vectors v = vectors_of(c, x);
    return (ptrdiff_t)key_part(&v, c->plan->dim);
}
static ptrdiff_t fresh(const struct call *c, int x)
{
    (void)x;
    return (ptrdiff_t)key_ends(c->plan->dim);
}
static ptrdiff_t part_at(const struct call *c, int x, ptrdiff_t b, int h)
{
    (void)b;
    return h * part(c, x);
}
static ptrdiff_t total(const struct call *c, int x) { return c->plan->heads * part(c, x); }

#if QT > 1
/* Sums of n <= BAND lines, by halves: lane r and lane QT/2 + r first, so that every
 * width of vectors has the same order.  Lines are read in whole vectors: the last one
 * replaces those that do not exist. */
static void sum_lines(const real *x, int n, real *sums)
{
    for (int k = 0; k < n; k += VL) {
        vf y[VL];
        UNROLL_FOR(int i = 0; i < VL; i++) {
            const real *line = x + (ptrdiff_t)(k + i < n ? k + i : n - 1) * QT;
            vf half[QT / VL];
            UNROLL_FOR(int v = 0; v < QT / VL; v++) half[v] = vf_load(line + v * VL);
            UNROLL_FOR(int m = QT / VL / 2; m; m /= 2)
                UNROLL_FOR(int v = 0; v < m; v++) half[v] = vf_add(half[v], half[m + v]);
            y[i] = half[0];
        }
#if VL > 1
        vf_transpose(y);
        UNROLL_FOR(int m = VL / 2; m; m /= 2)
            UNROLL_FOR(int v = 0; v < m; v++) y[v] = vf_add(y[v], y[m + v]);
#endif
        vf_store(sums + k, y[0]);
    }
}

/* y += g x */
INLINE void add_times(int n, real g, const real *x, real *y)
{
    int i = 0;
    for (; i + VL <= n; i += VL)
        vf_store(y + i, vf_fma(vf_set1(g), vf_load(x + i), vf_load(y + i)));
    for (; i < n; i++) y[i] = fma_(g, x[i], y[i]);
}
/* The same for some rows, one after the other; rows with g = 0 are skipped. */
INLINE void add_rows(int rows, int n, const real *g, const real *x, ptrdiff_t stride, real *y)
{
    enum { WIDE = 4 * VL };
    int i = 0;
    for (; i + WIDE <= n; i += WIDE) {
        vf sum[4];
        UNROLL_FOR(int v = 0; v < 4; v++) sum[v] = vf_load(y + i + v * VL);
        for (int r = 0; r < rows; r++) {
            if (g[r] == 0) continue;
            UNROLL_FOR(int v = 0; v < 4; v++)
                sum[v] = vf_fma(vf_set1(g[r]), vf_load(x + r * stride + i + v * VL), sum[v]);
        }
        UNROLL_FOR(int v = 0; v < 4; v++) vf_store(y + i + v * VL, sum[v]);
    }
    for (int r = 0; r < rows && i < n; r++)
        if (g[r] != 0) add_times(n - i, g[r], x + r * stride + i, y + i);
}

/* Gradients of n keys at an end, and of the end's vector, which has a separate sum: one number g
 * per key.  Keys that no row sees may contain inf or NaN; there g is 0, and they are skipped. */
static void give_end(const struct tile *t, const struct key_reach *b, int k, int n, const real *end,
                     real *ends)
{
    const int D = t->c->plan->dim, Dp = padded(D);
    const real scale = (real)t->c->plan->scale;
    real g[BAND + VL];
    sum_lines(t->ds + k * QT, n, g);
    for (int i = 0; i < n; i++) {
        g[i] *= scale;
        if (t->dk_part && g[i] != 0) add_times(D, g[i], end, t->dk_part + (ptrdiff_t)(k + i) * Dp);
    }
    if (ends)
        add_rows(n, D, g, t->k.at + k * t->k.row, t->k.row,
                 ends + (end == b->rows + b->of.hi * b->width ? Dp : 0));
}

/* Gradients of n keys whose rows have different vectors, from lines as in score_band(); `table`
 * is the gradient of the vectors. */
static void give_band(const struct tile *t, const struct key_reach *b, int k, int n, real *table)
{
    const int D = t->c->plan->dim, Dp = padded(D);
    const real scale = (real)t->c->plan->scale, *keys = t->k.at + k * t->k.row;
    const ptrdiff_t from = (ptrdiff_t)t->d - (k + BAND - 1);
    real lines[BAND * LINE] = { 0 };
    for (int i = 0; i < n; i++)
        for (int r = 0; r < QT; r++)
            lines[i * LINE + BAND - 1 - i + r] = scale * t->ds[(k + i) * QT + r];
    if (t->dk_part)
        product(ADD, n, Dp, LINE, lines, LINE, 1, b->rows + from * b->width, b->width,
                t->dk_part + (ptrdiff_t)k * Dp, Dp, NULL);
    if (!table) return;
    /* Keys that no row sees have dS = 0.  If they contain inf or NaN a product would turn that
     * into NaN, so then only pairs with a gradient are summed. */
    real *to = table + (from + KEY_MARGIN - b->of.lo);
    if (!t->partial || finite_rows(keys, t->k.row, n, D)) {
        product(ADD, D, LINE, n, keys, 1, t->k.row, lines, LINE, to, b->columns, NULL);
        return;
    }
    for (int c = 0; c < LINE; c++)
        for (int d = 0; d < D; d++) {
            real sum = 0;
            for (int i = 0; i < n; i++)
                if (lines[i * LINE + c] != 0)
                    sum = fma_(keys[i * t->k.row + d], lines[i * LINE + c], sum);
            to[d * b->columns + c] += sum;
        }
}

/* The same pair by pair: the tile's contribution to a channel of the
 * vectors is summed in `line`. */
static void give_pairs(const struct tile *t, const struct key_reach *b, real *table, real *line)
{
    const int D = t->c->plan->dim, Dp = padded(D);
    const real scale = (real)t->c->plan->scale;
    for (int d = 0; d < D; d++) {
        if (table) memset(line, 0, sizeof(real) * (size_t)b->columns);
        for (int k = 0; k < t->keys; k++)
            for (int r = 0; r < t->rows; r++) {
                const int n = clip(distance(t, k, r), b->of.lo, b->of.hi);
                const real g = scale * t->ds[k * QT + r];
                real *dk = t->dk_part ? t->dk_part + (ptrdiff_t)k * Dp + d : NULL,
                     *to = line + (n + KEY_MARGIN - b->of.lo);
                if (g == 0) continue;
                if (dk) *dk = fma_(g, b->rows[n * b->width + d], *dk);
                if (table) *to = fma_(g, t->k.at[k * t->k.row + d], *to);
            }
        for (ptrdiff_t n = 0; table && n < b->columns; n++) table[d * b->columns + n] += line[n];
    }
}

/* Adds to dK of the tile and to the part; blocks of keys as in score_run(). */
static void score_bwd(struct tile *t, int x)
{
    const struct key_reach *b = reach_of(t, x);
    real *ends = t->own[x].fresh,
         *table = t->own[x].part ? t->own[x].part + key_ends(t->c->plan->dim) : NULL;
    if (!t->dk_part && !table) return;
    if (!t->run) give_pairs(t, b, table, t->own[x].mem + REACH_ROWS * QT);
    for (int k = 0; k < t->keys && t->run; k += BAND) {
        const int n = t->keys - k < BAND ? t->keys - k : BAND;
        const real *end = end_of(t, b, k, n);
        if (end) give_end(t, b, k, n, end, ends);
        else give_band(t, b, k, n, table);
    }
}
#endif

const struct term N(term_band_k) = {
    .name = "band_k",
    .reads_keys = true,
    .mem = mem,
    .part = part,
    .part_by_tile = true,
    .fresh = fresh,
    .part_at = part_at,
    .total = total,
    .open = open,
    .score = score,
#if QT > 1
    .score_bwd = score_bwd,
#else
    .extra_query = extra_query,
#endif
};
