/* SPDX-License-Identifier: MIT */
/* gemm_bf16.c -- the fused pass with bf16 dot products (AVX512-BF16), for
 * numbers that are stored as bf16.
 *
 *     S^T[k][r] = factor * sum over pairs of channels   K[k][2c] Q[r][2c] + K[k][2c+1] Q[r][2c+1]
 *     O^T[d][r] =          sum over pairs of keys       V[2k][d] p[2k][r] + V[2k+1][d] p[2k+1][r]
 *
 * One instruction does both multiply-adds of a pair in each of 16 lanes.  Rows stay in the
 * lanes: a word of K or V, which contains a pair, is broadcast and multiplied by a vector of
 * pairs of 16 rows.  K is read in place, or packed from a cache, which stores it channel by
 * channel.  V is packed by pairs of keys, tile by tile; Q once; and weights as they are
 * computed.  Sums, scores, max and log of the sum are f32, and terms see f32 only.  Weights are
 * rounded to bf16, and so are rotated queries and keys.
 *
 * A skipped tile has weights of at most e^EXP_LOW of the largest, which do not change the sums. */
#include <immintrin.h>

#include "engine/forward.h"

/* e^x = 2^n 2^f, |f| <= 1/2: a polynomial of degree 4 that is 1 at 0, within 2.9e-6. */
#define POW_C1 0x1.62e12cp-1f
#define POW_C2 0x1.ec0378p-3f
#define POW_C3 0x1.c9fc46p-5f
#define POW_C4 0x1.3a02ccp-7f

INLINE __m512i load_pairs(const uint32_t *p) { return _mm512_loadu_si512(p); }
INLINE uint32_t load_word(const char *p)
{
    uint32_t word;
    memcpy(&word, p, sizeof word);
    return word;
}
/* Words (a, b) of two vectors, each number rounded to bf16, a in the lower half.  The conversion
 * puts b's numbers behind a's; the permutation interleaves them. */
INLINE __m512i round_pairs(vf a, vf b)
{
    static const _Alignas(64)
        uint16_t order[32] = { 0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                               8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31 };
    return _mm512_permutexvar_epi16(_mm512_load_si512(order), (__m512i)_mm512_cvtne2ps_pbh(b, a));
}

/* ---- The product ----------------------------------------------------------------------------- */

/* Unrolls a loop by two: removing every other branch is worth 3 % there. */
#if defined __clang__
#define TWICE _Pragma("clang loop unroll_count(2)")
#else
#define TWICE _Pragma("GCC unroll 2")
#endif

/* C[m][n] = sum * factor, or with fade C[m][n] * fade[n] + sum in one chain.  The sum goes over K
 * words of A, which are at a + m * am + k * ak bytes, and of B[k][n]. */
INLINE void pairs_block(const int mb, const int nb, int K, const char *a, ptrdiff_t am,
                        ptrdiff_t ak, const uint32_t *b, real *c, real factor, const real *fade)
{
    vf acc[4 * NR];
    UNROLL_FOR(int i = 0; i < mb * nb; i++)
        acc[i] = fade ? vf_mul(vf_load(c + i / nb * QT + i % nb * VL), vf_load(fade + i % nb * VL))
                      : vf_set1(0);
    TWICE for (int k = 0; k < K; k++)
    {
        __m512i x[NR];
        UNROLL_FOR(int n = 0; n < nb; n++) x[n] = load_pairs(b + k * QT + n * VL);
        UNROLL_FOR(int m = 0; m < mb; m++) {
            const __m512i y = _mm512_set1_epi32((int)load_word(a + m * am + k * ak));
            UNROLL_FOR(int n = 0; n < nb; n++)
                acc[m * nb + n] = _mm512_dpbf16_ps(acc[m * nb + n], (__m512bh)y, (__m512bh)x[n]);
        }
    }
    UNROLL_FOR(int m = 0; m < mb; m++)
        UNROLL_FOR(int n = 0; n < nb; n++) {
            real *to = c + m * QT + n * VL;
            vf y = acc[m * nb + n];
            if (!fade && factor != 1) y = vf_mul(y, vf_set1(factor));
            vf_store(to, y);
        }
}
INLINE void pairs_columns(const int mb, const int nb, int M, int K, const char *a, ptrdiff_t am,
                          ptrdiff_t ak, const uint32_t *b, real *c, real factor, const real *fade)
{
    int m = 0;
    for (; m + mb <= M; m += mb)
        pairs_block(mb, nb, K, a + m * am, am, ak, b, c + m * QT, factor, fade);
    for (; m < M; m++) pairs_block(1, nb, K, a + m * am, am, ak, b, c + m * QT, factor, fade);
}
/* Blocks have 15 or 16 vectors of sums for any number of columns: that many chains hide the
 * latency of the instruction. */
INLINE void pairs_product(int columns, int M, int K, const char *a, ptrdiff_t am, ptrdiff_t ak,
                          const uint32_t *b, real *c, real factor, const real *fade)
{
    switch (columns / VL) {
    case 4:
        pairs_columns(4, 4, M, K, a, am, ak, b, c, factor, fade);
        break;
    case 3:
        pairs_columns(5, 3, M, K, a, am, ak, b, c, factor, fade);
        break;
    case 2:
        pairs_columns(8, 2, M, K, a, am, ak, b, c, factor, fade);
        break;
    default:
        pairs_columns(16, 1, M, K, a, am, ak, b, c, factor, fade);
    }
}

/* ---- Scores ---------------------------------------------------------------------------------- */

/* The factor of the scores.  Queries that were not rotated are exact in bf16 except for
 * their scale.  Unless the scale is a power of two, it is removed from the queries and
 * multiplied into the scores. */
static real factor_of(const struct loci_plan *p)
{
    int exponent;
    return p->rotate >= 0 || frexp(p->scale, &exponent) == 0.5 ? 1 : (real)p->scale;
}
/* Packs the queries, scaled and faded as they are in q.across. */
static void pack_queries(struct tile *t)
{
    const int D = t->c->plan->score_dim;
    const vf inverse = vf_set1(1 / factor_of(t->c->plan));
    for (int d = 0; d < D; d += 2)
        for (int r = 0; r < QT; r += VL) {
            const vf even = vf_mul(vf_load(t->q.across + d * QT + r), inverse);
            const vf odd =
                d + 1 < D ? vf_mul(vf_load(t->q.across + (d + 1) * QT + r), inverse) : vf_set1(0);
            _mm512_storeu_si512(t->fast.q + d / 2 * QT + r, round_pairs(even, odd));
        }
}

/* True if a term reads the tile's keys or its weights. */
static bool reads_rows(const struct call *c)
{
    EACH_USE(c, x, term)
        if (term->reads_keys) return true;
    return false;
}
static bool reads_weights(const struct call *c)
{
    EACH_USE(c, x, term)
        if (term->value) return true;
    return false;
}

/* If nothing else reads the rotated keys, they become bf16 in place, each in the first half of
 * its row.  That is done once per call, and not once per query tile. */
static bool packs_keys(const struct call *c)
{
    bool others = reads_rows(c) || c->plan->score_dim % 2;
    for (int x = 0; x < c->plan->uses; x++) others |= term_is(c->plan->use[x].term, READS_STAGED);
    return c->mem.rotated && !others;
}
/* Writes follow reads at half the pace, so `to` may be `from`.  Hence memcpy(): a compiler may
 * assume that numbers of two types never share an address. */
static void pairs_to_bf16(const real *from, int n, uint16_t *to)
{
    int d = 0;
    for (; d + 2 * VL <= n; d += 2 * VL)
        _mm512_storeu_si512(to + d, (__m512i)_mm512_cvtne2ps_pbh(vf_load(from + d + VL),
                                                                 vf_load(from + d)));
    for (; d < n; d++) {
        const uint16_t x = to_bf16(from[d]);
        memcpy(to + d, &x, sizeof x);
    }
}
static void pack_job(void *arg, int index)
{
    const struct call *c = arg;
    const ptrdiff_t rows = c->B * c->plan->key_heads * c->Lk, end = rows * (index + 1) / c->threads;
    for (ptrdiff_t i = rows * index / c->threads; i < end; i++) {
        real *row = (real *)c->mem.rotated + i * c->plan->score_dim;
        pairs_to_bf16(row, c->plan->score_dim, (uint16_t *)row);
    }
}

/* Two rows of 16-bit numbers become one row of words, x in the lower halves.  Without y the
 * upper halves are 0.  Indices from 32 on are those of the second vector. */
INLINE void pack_two(const uint16_t *x, const uint16_t *y, int width, uint32_t *to)
{
    static const _Alignas(64)
        uint16_t low[32] = { 0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                             8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47 };
    static const _Alignas(64)
        uint16_t high[32] = { 16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
                              24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63 };
    const __m512i first = _mm512_load_si512(low), second = _mm512_load_si512(high);
    const int whole = y ? width / (2 * VL) * (2 * VL) : 0;
    for (int d = 0; d < whole; d += 2 * VL) {
        const __m512i a = _mm512_loadu_si512(x + d), b = _mm512_loadu_si512(y + d);
        _mm512_storeu_si512(to + d, _mm512_permutex2var_epi16(a, first, b));
        _mm512_storeu_si512(to + d + VL, _mm512_permutex2var_epi16(a, second, b));
    }
    for (int d = whole; d < width; d++) to[d] = x[d] | (uint32_t)(y ? y[d] : 0) << 16;
}

/* Words of two channels: those of key k start at first + k * key bytes
 * and are `word` bytes apart. */
struct key_words {
    const char *first;
    ptrdiff_t key, word;
};
/* The keys of the tile: packed once for all, or from the channels of a cache, or in place, or
 * from the rows of reals that find_keys() makes.  `found`: it has been called. */
static struct key_words find_words(struct tile *t, bool found)
{
    const struct call *c = t->c;
    const ptrdiff_t D = c->plan->score_dim, b = t->seq->b, size = sizeof(uint16_t),
                    word = sizeof(uint32_t), width = D + D % 2;
    /* two bf16 to a word, so a rotated key fills the first half of its row */
    if (c->packed) {
        const real *first =
            (const real *)c->mem.rotated + ((b * c->plan->key_heads + t->kh) * c->Lk + t->j0) * D;
        return (struct key_words){ (const char *)first, D * (ptrdiff_t)sizeof(real), word };
    }
    /* channels in lines: two of them give a line of words, one per key */
    if (!c->mem.rotated && c->cache) {
        ptrdiff_t number;
        const uint16_t *first = (const uint16_t *)cached_tile(c, b, t->kvh, t->j0, &number);
        for (int d = 0; d < D; d += 2)
            pack_two(first + d * KT, d + 1 < D ? first + (d + 1) * KT : NULL, t->keys,
                     (uint32_t *)t->fast.k + d / 2 * KT);
        return (struct key_words){ (const char *)t->fast.k, word, KT * word };
    }
    if (!c->mem.rotated && D % 2 == 0 && in_one_piece(c, t->j0, t->keys))
        return (struct key_words){ stored_key(c, KEYS, b, t->kvh, t->j0), c->k.row * size, word };
    if (!found) find_keys(t);
    for (int i = 0; i < t->keys; i++) {
        pairs_to_bf16(t->k.at + i * t->k.row, (int)D, t->fast.k + i * width);
        if (width > D) t->fast.k[i * width + D] = 0;
    }
    return (struct key_words){ (const char *)t->fast.k, width * size, word };
}
/* All scores of the tile before its terms; on the diagonal in strips, as in tile_gemm.h. */
static void dot_pairs(struct tile *t, struct key_words k)
{
    const struct loci_plan *p = t->c->plan;
    const real factor = factor_of(p);
    const int K = (p->score_dim + 1) / 2;
    if (!t->cut) {
        pairs_product(t->live, t->keys, K, k.first, k.key, k.word, t->fast.q, t->s, factor, NULL);
        return;
    }
    const struct band w = band(p);
    for (int i = 0; i < t->keys; i += STRIP) {
        const int n = t->keys - i < STRIP ? t->keys - i : STRIP,
                  first = rows_of(t, w, i).first / VL * VL;
        if (first < t->live)
            pairs_product(t->live - first, n, K, k.first + i * k.key, k.key, k.word,
                          t->fast.q + first, t->s + i * QT + first, factor, NULL);
    }
}

static void rows(struct tile *t)
{
    open_columns(t);
    pack_queries(t);
}
static void scores(struct tile *t, bool more)
{
    (void)more;
    /* Queries are packed again when their fading has changed. */
    const ptrdiff_t block = t->q.block;
    const bool reads = reads_rows(t->c);
    fade_queries(t);
    if (t->q.block != block) pack_queries(t);
    if (reads) find_keys(t);
    dot_pairs(t, find_words(t, reads));
    add_terms(t);
}

/* ---- Weights --------------------------------------------------------------------------------- */

/* e^(x - base) for four vectors at once, so that their chains overlap.  Below e^EXP_LOW it is
 * exactly 0; NaN stays NaN. */
INLINE void pow_below(vf x[4], const vf base[2])
{
    vf n[4], t[4], f[4], y[4];
    UNROLL_FOR(int i = 0; i < 4; i++) x[i] = vf_sub(x[i], base[i / 2]);
    UNROLL_FOR(int i = 0; i < 4; i++) t[i] = vf_fma(x[i], vf_set1(EXP_LOG2E), vf_set1(EXP_MAGIC));
    UNROLL_FOR(int i = 0; i < 4; i++) n[i] = vf_sub(t[i], vf_set1(EXP_MAGIC));
    UNROLL_FOR(int i = 0; i < 4; i++) f[i] = _mm512_fmsub_ps(x[i], vf_set1(EXP_LOG2E), n[i]);
    UNROLL_FOR(int i = 0; i < 4; i++) y[i] = vf_fma(f[i], vf_set1(POW_C4), vf_set1(POW_C3));
    UNROLL_FOR(int i = 0; i < 4; i++) y[i] = vf_fma(f[i], y[i], vf_set1(POW_C2));
    UNROLL_FOR(int i = 0; i < 4; i++) y[i] = vf_fma(f[i], y[i], vf_set1(POW_C1));
    UNROLL_FOR(int i = 0; i < 4; i++) y[i] = vf_fma(f[i], y[i], vf_set1(1));
    UNROLL_FOR(int i = 0; i < 4; i++)
        x[i] = vf_from(x[i], EXP_LOW, vf_scale2(y[i], t[i]), vf_max(vf_set1(0), x[i]));
}

/* The new max of each row, and alpha, the factor of older sums.  base is the max too,
 * or 0 where no key was seen. */
static void find_max(struct tile *t, real *base)
{
    vf m[QT / VL];
    UNROLL_FOR(int n = 0; n < QT / VL; n++) m[n] = vf_load(t->chunk.m + n * VL);
    for (int k = 0; k < t->keys; k++)
        UNROLL_FOR(int n = 0; n < QT / VL; n++)
            m[n] = vf_max(m[n], vf_load(t->s + k * QT + n * VL));
    UNROLL_FOR(int n = 0; n < QT / VL; n++) {
        const vf b = vf_zero_below(m[n], -FLT_MAX, m[n]);
        vf_store(t->alpha + n * VL, vf_exp(vf_sub(vf_load(t->chunk.m + n * VL), b)));
        vf_store(t->chunk.m + n * VL, m[n]);
        vf_store(base + n * VL, b);
    }
}
/* softmax() that stores weights in fast.p, two keys to a word, and also in p if a term reads
 * them (`whole`).  l sums them before they are rounded. */
INLINE void softmax_pairs(struct tile *t, const bool whole)
{
    real base[QT];
    find_max(t, base);
    /* An odd last key is paired with one that no row sees. */
    if (t->keys % 2)
        for (int r = 0; r < QT; r++) t->s[t->keys * QT + r] = -INFINITY;
    for (int r = 0; r < t->live; r += 2 * VL) {
        vf b[2], sum[2];
        UNROLL_FOR(int i = 0; i < 2; i++) {
            b[i] = vf_load(base + r + i * VL);
            sum[i] = vf_set1(0);
        }
        for (int k = 0; k < t->keys; k += 2) {
            vf x[4]; /* of both keys and both vectors of rows */
            UNROLL_FOR(int i = 0; i < 4; i++)
                x[i] = vf_load(t->s + (k + i % 2) * QT + r + i / 2 * VL);
            pow_below(x, b);
            UNROLL_FOR(int i = 0; i < 2; i++) {
                _mm512_storeu_si512(t->fast.p + k / 2 * QT + r + i * VL,
                                    round_pairs(x[2 * i], x[2 * i + 1]));
                sum[i] = vf_add(sum[i], vf_add(x[2 * i], x[2 * i + 1]));
            }
            if (whole)
                UNROLL_FOR(int i = 0; i < 4; i++)
                    vf_store(t->p + (k + i % 2) * QT + r + i / 2 * VL, x[i]);
        }
        UNROLL_FOR(int i = 0; i < 2; i++)
            vf_store(t->chunk.l + r + i * VL, vf_fma(vf_load(t->chunk.l + r + i * VL),
                                                     vf_load(t->alpha + r + i * VL), sum[i]));
    }
}
/* The same for weights that a term has computed. */
static void pack_weights(struct tile *t)
{
    for (int k = 0; k < t->keys; k += 2)
        for (int r = 0; r < QT; r += VL) {
            const vf odd = k + 1 < t->keys ? vf_load(t->p + (k + 1) * QT + r) : vf_set1(0);
            _mm512_storeu_si512(t->fast.p + k / 2 * QT + r,
                                round_pairs(vf_load(t->p + k * QT + r), odd));
        }
}

/* ---- Values ---------------------------------------------------------------------------------- */

static const uint16_t *value_bits(const struct tile *t, int k)
{
    return stored_key(t->c, VALUES, t->seq->b, t->kvh, t->j0 + k);
}
/* Channel d of the value of key k, rounded to bf16 if it has turned. */
static uint16_t value_at(const struct tile *t, int k, int d)
{
    return t->c->mem.turned ? to_bf16(turned_value(t->c, t->seq->b, t->kvh, t->j0 + k)[d])
                            : value_bits(t, k)[d];
}
/* Words of two rows of reals, or of one and zeros. */
static void round_two(const real *x, const real *y, int width, uint32_t *to)
{
    int d = 0;
    for (; d + VL <= width; d += VL)
        _mm512_storeu_si512(to + d, round_pairs(vf_load(x + d), y ? vf_load(y + d) : vf_set1(0)));
    for (; d < width; d++) to[d] = to_bf16(x[d]) | (uint32_t)(y ? to_bf16(y[d]) : 0) << 16;
}
/* Pairs of keys, channel by channel; a last key without a partner is paired with zeros. */
static void pack_values(struct tile *t)
{
    const struct call *c = t->c;
    const int D = c->plan->value_dim;
    if (c->mem.turned) {
        const real *turned = turned_value(c, t->seq->b, t->kvh, t->j0);
        for (int k = 0; k < t->keys; k += 2, turned += 2 * D)
            round_two(turned, k + 1 < t->keys ? turned + D : NULL, D, t->fast.v + k / 2 * D);
        return;
    }
    const ptrdiff_t stride = c->cache ? D : c->v.row;
    const uint16_t *x = value_bits(t, 0);
    int k = 0;
    if (in_one_piece(c, t->j0, t->keys)) /* worth 1.5 % at width 64 */
        for (; k + 1 < t->keys; k += 2, x += 2 * stride)
            pack_two(x, x + stride, D, t->fast.v + k / 2 * D);
    for (; k + 1 < t->keys; k += 2)
        pack_two(value_bits(t, k), value_bits(t, k + 1), D, t->fast.v + k / 2 * D);
    if (k < t->keys) pack_two(value_bits(t, k), NULL, D, t->fast.v + k / 2 * D);
}

/* True if one half of a word is inf or NaN: its exponent is all ones. */
static bool infinite(uint32_t word)
{
    return (word & 0x7f80) == 0x7f80 || (word & 0x7f800000) == 0x7f800000;
}
/* Numbers that are not finite must not reach rows that do not see their key, as 0 * NaN is
 * NaN.  unpack() sets them to 0, and put_back() adds them to the rows that see them after all
 * sums.  True if there are any. */
static bool unpack(struct tile *t)
{
    const ptrdiff_t n = (ptrdiff_t)((t->keys + 1) / 2) * t->c->plan->value_dim;
    bool some = false;
    for (ptrdiff_t i = 0; i < n; i++) {
        if (!infinite(t->fast.v[i])) continue;
        some = true;
        if ((t->fast.v[i] & 0x7f80) == 0x7f80) t->fast.v[i] &= 0xffff0000;
        if ((t->fast.v[i] & 0x7f800000) == 0x7f800000) t->fast.v[i] &= 0xffff;
    }
    return some;
}
/* Weights as the products use them: rounded to bf16. */
static void put_back(struct tile *t)
{
    for (int k = 0; k < t->keys; k++)
        for (int d = 0; d < t->c->plan->value_dim; d++) {
            const uint16_t v = value_at(t, k, d);
            if (!infinite(v)) continue;
            for (int r = 0; r < QT; r++)
                if (visible(t, k, r))
                    t->chunk.o[d * QT + r] =
                        fma_(from_bf16(v),
                             from_bf16((uint16_t)(t->fast.p[k / 2 * QT + r] >> 16 * (k % 2))),
                             t->chunk.o[d * QT + r]);
        }
}
/* o = o alpha + sum over the keys, in one chain; on the diagonal in strips of rows, each up to
 * the newest key that it sees. */
static void mix_pairs(struct tile *t)
{
    const int D = t->c->plan->value_dim, K = (t->keys + 1) / 2;
    const char *v = (const char *)t->fast.v;
    const ptrdiff_t word = sizeof(uint32_t);
    if (!t->cut) {
        pairs_product(t->live, D, K, v, word, word * D, t->fast.p, t->chunk.o, 1, t->alpha);
        return;
    }
    const struct band w = band(t->c->plan);
    for (int r = 0; r < t->live; r += STRIP) {
        const int64_t last = t->d + r + STRIP - 1 - w.lo;
        const int keys = last + 1 < t->keys ? (int)(last + 1 > 0 ? last + 1 : 0) : t->keys;
        pairs_product(STRIP, D, (keys + 1) / 2, v, word, word * D, t->fast.p + r, t->chunk.o + r, 1,
                      t->alpha + r);
    }
}

/* Weights, the hooks on weights, and the sums of values.  Terms see
 * weights that are not rounded. */
static void sums(struct tile *t, bool more)
{
    (void)more;
    const struct call *c = t->c;
    const int weight = c->plan->weight;
    if (weight >= 0) {
        weights_of(c)->tile_weights(t, weight);
        pack_weights(t);
    } else if (reads_weights(c)) {
        softmax_pairs(t, true);
    } else {
        softmax_pairs(t, false);
    }
    value_tile(t);
    pack_values(t);
    const bool apart = t->partial && unpack(t);
    set_values(t, &t->chunk);
    mix_pairs(t);
    if (apart) put_back(t);
}

static void close(struct tile *t) { close_rows(t); }
static void job(void *arg, int index)
{
    forward_job(arg, index, &(struct products){ rows, scores, sums, close });
}

loci_status N(fast)(struct call *c)
{
    c->packed = packs_keys(c);
    if (c->packed) N(run)(c, c->threads, pack_job, c);
    return forward_all(c, job);
}
