/* SPDX-License-Identifier: MIT */
/* vec.h for AVX-512: 16 floats.  The vocabulary is the same in every folder of src/simd and is
 * explained here; simd/num.h builds on it.  All instruction sets must round alike: fma is fused
 * everywhere, and no word uses an approximate instruction. */
#include <immintrin.h>

typedef float real;
typedef __m512 vf;
#define VL 16
/* The register block of a product: MR rows x NR vectors of sums, NR vectors of one side and a
 * number of the other fit into the registers; KR steps at a time.  Two multiply-adds a cycle
 * with a latency of five cycles need at least ten sums, and more rows mean fewer loads. */
#define MR 6
#define NR 4
#define KR 4

static inline vf vf_load(const real *p) { return _mm512_loadu_ps(p); }
static inline void vf_store(real *p, vf x) { _mm512_storeu_ps(p, x); }
/* VL numbers of 16 bits as floats, see math/half.h: a bf16 is the upper half of a float. */
static inline vf vf_load_bf16(const uint16_t *p)
{
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
/* 2 VL numbers at once, the even and the odd ones apart, which needs no widening; vf_zip()
 * restores the order of two such vectors. */
static inline void vf_load2_bf16(const uint16_t *p, vf *even, vf *odd)
{
    const __m512i x = _mm512_loadu_si512(p);
    *even = _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
    *odd = _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32((int)0xffff0000)));
}
static inline void vf_zip(vf even, vf odd, vf *low, vf *high)
{
    /* Indices from 16 on mean the second operand, odd. */
    const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    *low = _mm512_permutex2var_ps(even, first, odd);
    *high = _mm512_permutex2var_ps(even, _mm512_add_epi32(first, _mm512_set1_epi32(8)), odd);
}
/* The even lanes twice each, and the odd ones twice each: for pairs of channels that rotate. */
static inline vf vf_evens(vf x) { return _mm512_moveldup_ps(x); }
static inline vf vf_odds(vf x) { return _mm512_movehdup_ps(x); }
static inline vf vf_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
/* VL whole numbers of 8 bits as floats. */
static inline vf vf_load_s8(const int8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
/* Rounds to nearest, ties to even, as to_bf16(); NaN becomes quiet instead of being rounded. */
static inline void vf_store_bf16(uint16_t *p, vf x)
{
    const __m512i bits = _mm512_castps_si512(x),
                  odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i all = _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), bits,
                                             _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(all, 16)));
}
static inline void vf_store_f16(uint16_t *p, vf x)
{
    _mm256_storeu_si256((__m256i *)p,
                        _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
/* Stores past the caches what is not read again soon; p must be a multiple of a vector's size.
 * vf_streamed() ends a series of such stores, before other threads read them. */
static inline void vf_stream(real *p, vf x) { _mm512_stream_ps(p, x); }
static inline void vf_streamed(void) { _mm_sfence(); }
static inline vf vf_set1(real x) { return _mm512_set1_ps(x); }
static inline vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
/* The same with one number for a. */
static inline vf vf_fma1(real a, vf b, vf c) { return vf_fma(vf_set1(a), b, c); }
/* Four consecutive numbers, of which number i multiplies a vector:  c + a[i] b */
typedef const real *four;
static inline four four_at(const real *p) { return p; }
static inline vf vf_fma4(four a, int i, vf b, vf c) { return vf_fma1(a[i], b, c); }
static inline vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
static inline vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
static inline vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
static inline vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
/* a > b ? a : b, so b where a is NaN */
static inline vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
static inline vf vf_minus_abs(vf x) { return _mm512_or_ps(x, _mm512_set1_ps(-0.0f)); }

/* x < 0 ? a : b, so b where x is NaN. */
static inline vf vf_negative(vf x, vf a, vf b)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ), b, a);
}
/* x < limit ? 0 : y; NaN keeps y. */
static inline vf vf_zero_below(vf x, real limit, vf y)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_NLT_UQ), y);
}
/* x >= limit ? a : b, so b where x is NaN */
static inline vf vf_from(vf x, real limit, vf a, vf b)
{
    return _mm512_mask_mov_ps(b, _mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_GE_OQ), a);
}
/* x < limit ? 0 : y times 2^n, where t contains n in its low bits, limit is below 0 and the
 * result no less than the normal floats.  NaN if x and y are NaN, whatever their other bits. */
static inline vf vf_scale_from(vf x, real limit, vf y, vf t, vf n)
{
    (void)t;
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_NLT_UQ), y, n);
}
/* y times 2 to the power in the low bits of t. */
static inline vf vf_scale2(vf y, vf t)
{
    return _mm512_castsi512_ps(
        _mm512_add_epi32(_mm512_castps_si512(y), _mm512_slli_epi32(_mm512_castps_si512(t), 23)));
}
/* VL whole numbers of 32 bits, whose sums and products wrap. */
typedef __m512i vu;
static inline vu vu_load(const uint32_t *p) { return _mm512_loadu_si512(p); }
static inline vu vu_set1(uint32_t x) { return _mm512_set1_epi32((int)x); }
static inline vu vu_add(vu a, vu b) { return _mm512_add_epi32(a, b); }
static inline vu vu_mul(vu a, vu b) { return _mm512_mullo_epi32(a, b); }
static inline vu vu_xor(vu a, vu b) { return _mm512_xor_si512(a, b); }
static inline vu vu_shift(vu x, int by) { return _mm512_srli_epi32(x, (unsigned)by); } /* right */
/* 0 where x, as a number with a sign, is below the limit, else y */
static inline vf vf_not_below(vu x, vu limit, vf y)
{
    return _mm512_maskz_mov_ps(_mm512_cmpge_epi32_mask(x, limit), y);
}
/* Lanes whose number has the bit set come from hi, the others from lo. */
static inline vf vf_pick(int bit, vf lo, vf hi)
{
    /* Lanes whose number has bit 0, 1, 2 or 3 set. */
    static const unsigned short mask[4] = { 0xaaaa, 0xcccc, 0xf0f0, 0xff00 };
    return _mm512_mask_blend_ps(mask[bit], lo, hi);
}
/* Swaps lane n with lane n ^ 2^bit. */
static inline vf vf_swap(int bit, vf x)
{
    switch (bit) {
    case 0:
        return _mm512_permute_ps(x, 0xb1);
    case 1:
        return _mm512_permute_ps(x, 0x4e);
    case 2:
        return _mm512_shuffle_f32x4(x, x, 0xb1);
    default:
        return _mm512_shuffle_f32x4(x, x, 0x4e);
    }
}
enum { VBITS = 4 };
/* A block of VL x VL numbers whose rows are `stride` apart, transposed: lane i of x[d] is number
 * d of row i.  Loads put parts of four rows into one vector, which saves half of the rounds. */
static inline __m512 vf_load_parts(const real *p, ptrdiff_t rows)
{
    __m512 x = _mm512_castps128_ps512(_mm_loadu_ps(p));
    x = _mm512_insertf32x4(x, _mm_loadu_ps(p + rows), 1);
    x = _mm512_insertf32x4(x, _mm_loadu_ps(p + 2 * rows), 2);
    return _mm512_insertf32x4(x, _mm_loadu_ps(p + 3 * rows), 3);
}
static inline void vf_load_columns(const real *p, ptrdiff_t stride, vf *x)
{
    for (int d = 0; d < VL; d += 4) {
        const __m512 a = vf_load_parts(p + d, 4 * stride),
                     b = vf_load_parts(p + stride + d, 4 * stride),
                     c = vf_load_parts(p + 2 * stride + d, 4 * stride),
                     e = vf_load_parts(p + 3 * stride + d, 4 * stride);
        const __m512d ab = _mm512_castps_pd(_mm512_unpacklo_ps(a, b)),
                      ce = _mm512_castps_pd(_mm512_unpacklo_ps(c, e)),
                      ab2 = _mm512_castps_pd(_mm512_unpackhi_ps(a, b)),
                      ce2 = _mm512_castps_pd(_mm512_unpackhi_ps(c, e));
        x[d] = _mm512_castpd_ps(_mm512_unpacklo_pd(ab, ce));
        x[d + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(ab, ce));
        x[d + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(ab2, ce2));
        x[d + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(ab2, ce2));
    }
}
