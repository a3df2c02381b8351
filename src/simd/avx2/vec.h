/* SPDX-License-Identifier: MIT */
/* vec.h for AVX2 with FMA: 8 floats.  simd/avx512/vec.h defines the meaning of each word. */
#include <immintrin.h>

typedef float real;
typedef __m256 vf;
#define VL 8
#define MR 6
#define NR 2
#define KR 2

static inline vf vf_load(const real *p) { return _mm256_loadu_ps(p); }
static inline void vf_store(real *p, vf x) { _mm256_storeu_ps(p, x); }
static inline vf vf_load_bf16(const uint16_t *p)
{
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
static inline void vf_load2_bf16(const uint16_t *p, vf *even, vf *odd)
{
    const __m256i x = _mm256_loadu_si256((const __m256i *)p);
    *even = _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
    *odd = _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32((int)0xffff0000)));
}
static inline void vf_zip(vf even, vf odd, vf *low, vf *high)
{
    /* Unpacking works within halves of 128 bits too. */
    const vf a = _mm256_unpacklo_ps(even, odd), b = _mm256_unpackhi_ps(even, odd);
    *low = _mm256_permute2f128_ps(a, b, 0x20);
    *high = _mm256_permute2f128_ps(a, b, 0x31);
}
static inline vf vf_evens(vf x) { return _mm256_moveldup_ps(x); }
static inline vf vf_odds(vf x) { return _mm256_movehdup_ps(x); }
static inline vf vf_load_f16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
static inline vf vf_load_s8(const int8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
static inline void vf_store_bf16(uint16_t *p, vf x)
{
    const __m256i bits = _mm256_castps_si256(x),
                  odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    /* See to_bf16() in math/half.h. */
    const __m256i rounded =
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i all =
        _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
    /* Packing works within halves of 128 bits; the permutation brings the two results together. */
    const __m256i high = _mm256_srli_epi32(all, 16), pairs = _mm256_packus_epi32(high, high);
    _mm_storeu_si128((__m128i *)p, _mm256_castsi256_si128(_mm256_permute4x64_epi64(pairs, 0x08)));
}
static inline void vf_store_f16(uint16_t *p, vf x)
{
    _mm_storeu_si128((__m128i *)p,
                     _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static inline void vf_stream(real *p, vf x) { _mm256_stream_ps(p, x); }
static inline void vf_streamed(void) { _mm_sfence(); }
static inline vf vf_set1(real x) { return _mm256_set1_ps(x); }
static inline vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline vf vf_fma1(real a, vf b, vf c) { return vf_fma(vf_set1(a), b, c); }
typedef const real *four;
static inline four four_at(const real *p) { return p; }
static inline vf vf_fma4(four a, int i, vf b, vf c) { return vf_fma1(a[i], b, c); }
static inline vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
static inline vf vf_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
static inline vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
static inline vf vf_div(vf a, vf b) { return _mm256_div_ps(a, b); }
static inline vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
static inline vf vf_minus_abs(vf x) { return _mm256_or_ps(x, _mm256_set1_ps(-0.0f)); }
static inline vf vf_negative(vf x, vf a, vf b)
{
    return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_LT_OQ));
}
static inline vf vf_zero_below(vf x, real limit, vf y)
{
    return _mm256_and_ps(_mm256_cmp_ps(x, _mm256_set1_ps(limit), _CMP_NLT_UQ), y);
}
static inline vf vf_from(vf x, real limit, vf a, vf b)
{
    return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, _mm256_set1_ps(limit), _CMP_GE_OQ));
}
static inline vf vf_scale2(vf y, vf t)
{
    return _mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_castps_si256(y), _mm256_slli_epi32(_mm256_castps_si256(t), 23)));
}
static inline vf vf_scale_from(vf x, real limit, vf y, vf t, vf n)
{
    (void)n;
    /* the larger of 0 and x is 0 or NaN */
    return vf_from(x, limit, vf_scale2(y, t), vf_max(_mm256_setzero_ps(), x));
}
typedef __m256i vu;
static inline vu vu_load(const uint32_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
static inline vu vu_set1(uint32_t x) { return _mm256_set1_epi32((int)x); }
static inline vu vu_add(vu a, vu b) { return _mm256_add_epi32(a, b); }
static inline vu vu_mul(vu a, vu b) { return _mm256_mullo_epi32(a, b); }
static inline vu vu_xor(vu a, vu b) { return _mm256_xor_si256(a, b); }
static inline vu vu_shift(vu x, int by) { return _mm256_srli_epi32(x, by); }
static inline vf vf_not_below(vu x, vu limit, vf y)
{
    return _mm256_andnot_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(limit, x)), y);
}
static inline vf vf_pick(int bit, vf lo, vf hi)
{
    switch (bit) {
    case 0:
        return _mm256_blend_ps(lo, hi, 0xaa);
    case 1:
        return _mm256_blend_ps(lo, hi, 0xcc);
    default:
        return _mm256_blend_ps(lo, hi, 0xf0);
    }
}
/* bit 0 and 1 stay within halves of 128 bits, bit 2 swaps these. */
static inline vf vf_swap(int bit, vf x)
{
    switch (bit) {
    case 0:
        return _mm256_permute_ps(x, 0xb1);
    case 1:
        return _mm256_permute_ps(x, 0x4e);
    default:
        return _mm256_permute2f128_ps(x, x, 0x01);
    }
}
enum { VBITS = 3 };
static inline __m256 vf_load_parts(const real *p, ptrdiff_t rows)
{
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), _mm_loadu_ps(p + rows), 1);
}
static inline void vf_load_columns(const real *p, ptrdiff_t stride, vf *x)
{
    for (int d = 0; d < VL; d += 4) {
        const __m256 a = vf_load_parts(p + d, 4 * stride),
                     b = vf_load_parts(p + stride + d, 4 * stride),
                     c = vf_load_parts(p + 2 * stride + d, 4 * stride),
                     e = vf_load_parts(p + 3 * stride + d, 4 * stride);
        const __m256d ab = _mm256_castps_pd(_mm256_unpacklo_ps(a, b)),
                      ce = _mm256_castps_pd(_mm256_unpacklo_ps(c, e)),
                      ab2 = _mm256_castps_pd(_mm256_unpackhi_ps(a, b)),
                      ce2 = _mm256_castps_pd(_mm256_unpackhi_ps(c, e));
        x[d] = _mm256_castpd_ps(_mm256_unpacklo_pd(ab, ce));
        x[d + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(ab, ce));
        x[d + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(ab2, ce2));
        x[d + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(ab2, ce2));
    }
}
