/* SPDX-License-Identifier: MIT */
/* vec.h for AArch64: 4 floats.  simd/avx512/vec.h defines the meaning of each word. */
#include <arm_neon.h>

typedef float real;
typedef float32x4_t vf;
#define VL 4
#define MR 4
#define NR 4
#define KR 4

static inline vf vf_load(const real *p) { return vld1q_f32(p); }
static inline void vf_store(real *p, vf x) { vst1q_f32(p, x); }
/* A bf16 is the upper half of a float. */
static inline vf vf_load_bf16(const uint16_t *p)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}
static inline void vf_load2_bf16(const uint16_t *p, vf *even, vf *odd)
{
    const uint32x4_t x = vreinterpretq_u32_u16(vld1q_u16(p));
    *even = vreinterpretq_f32_u32(vshlq_n_u32(x, 16));
    *odd = vreinterpretq_f32_u32(vandq_u32(x, vdupq_n_u32(0xffff0000)));
}
static inline void vf_zip(vf even, vf odd, vf *low, vf *high)
{
    *low = vzip1q_f32(even, odd);
    *high = vzip2q_f32(even, odd);
}
static inline vf vf_evens(vf x) { return vtrn1q_f32(x, x); }
static inline vf vf_odds(vf x) { return vtrn2q_f32(x, x); }
static inline vf vf_load_f16(const uint16_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
static inline vf vf_load_s8(const int8_t *p)
{
    uint32_t four;
    memcpy(&four, p, sizeof four);
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(four))))));
}
static inline void vf_store_bf16(uint16_t *p, vf x)
{
    const uint32x4_t bits = vreinterpretq_u32_f32(x),
                     odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    /* only NaN differs from itself */
    const uint32x4_t all =
        vbslq_u32(vceqq_f32(x, x), rounded, vorrq_u32(bits, vdupq_n_u32(0x400000)));
    vst1_u16(p, vshrn_n_u32(all, 16));
}
static inline void vf_store_f16(uint16_t *p, vf x)
{
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x)));
}
/* C has no stores past the caches for this CPU. */
static inline void vf_stream(real *p, vf x) { vf_store(p, x); }
static inline void vf_streamed(void) {}
static inline vf vf_set1(real x) { return vdupq_n_f32(x); }
static inline vf vf_fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
static inline vf vf_fma1(real a, vf b, vf c) { return vfmaq_n_f32(c, b, a); }
typedef float32x4_t four;
static inline four four_at(const real *p) { return vld1q_f32(p); }
static inline vf vf_fma4(four a, int i, vf b, vf c)
{
    switch (i) {
    case 0:
        return vfmaq_laneq_f32(c, b, a, 0);
    case 1:
        return vfmaq_laneq_f32(c, b, a, 1);
    case 2:
        return vfmaq_laneq_f32(c, b, a, 2);
    default:
        return vfmaq_laneq_f32(c, b, a, 3);
    }
}
static inline vf vf_add(vf a, vf b) { return vaddq_f32(a, b); }
static inline vf vf_sub(vf a, vf b) { return vsubq_f32(a, b); }
static inline vf vf_mul(vf a, vf b) { return vmulq_f32(a, b); }
static inline vf vf_div(vf a, vf b) { return vdivq_f32(a, b); }
/* vmaxq_f32() would return NaN where either is; all sets must agree on a > b ? a : b. */
static inline vf vf_max(vf a, vf b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
static inline vf vf_minus_abs(vf x) { return vnegq_f32(vabsq_f32(x)); }
static inline vf vf_negative(vf x, vf a, vf b)
{
    return vbslq_f32(vcltq_f32(x, vdupq_n_f32(0)), a, b);
}
static inline vf vf_zero_below(vf x, real limit, vf y)
{
    return vreinterpretq_f32_u32(
        vbicq_u32(vreinterpretq_u32_f32(y), vcltq_f32(x, vdupq_n_f32(limit))));
}
static inline vf vf_from(vf x, real limit, vf a, vf b)
{
    return vbslq_f32(vcgeq_f32(x, vdupq_n_f32(limit)), a, b);
}
static inline vf vf_scale2(vf y, vf t)
{
    return vreinterpretq_f32_s32(
        vaddq_s32(vreinterpretq_s32_f32(y), vshlq_n_s32(vreinterpretq_s32_f32(t), 23)));
}
static inline vf vf_scale_from(vf x, real limit, vf y, vf t, vf n)
{
    (void)n;
    /* the larger of 0 and x is 0 or NaN */
    return vf_from(x, limit, vf_scale2(y, t), vmaxq_f32(vdupq_n_f32(0), x));
}
typedef uint32x4_t vu;
static inline vu vu_load(const uint32_t *p) { return vld1q_u32(p); }
static inline vu vu_set1(uint32_t x) { return vdupq_n_u32(x); }
static inline vu vu_add(vu a, vu b) { return vaddq_u32(a, b); }
static inline vu vu_mul(vu a, vu b) { return vmulq_u32(a, b); }
static inline vu vu_xor(vu a, vu b) { return veorq_u32(a, b); }
static inline vu vu_shift(vu x, int by) { return vshlq_u32(x, vdupq_n_s32(-by)); }
static inline vf vf_not_below(vu x, vu limit, vf y)
{
    return vreinterpretq_f32_u32(
        vandq_u32(vcgeq_s32(vreinterpretq_s32_u32(x), vreinterpretq_s32_u32(limit)),
                  vreinterpretq_u32_f32(y)));
}
static inline vf vf_pick(int bit, vf lo, vf hi)
{
    static const uint32_t mask[2][4] = { { 0, ~0u, 0, ~0u }, { 0, 0, ~0u, ~0u } };
    return vbslq_f32(vld1q_u32(mask[bit]), hi, lo);
}
static inline vf vf_swap(int bit, vf x) { return bit == 0 ? vrev64q_f32(x) : vextq_f32(x, x, 2); }
enum { VBITS = 2 };
static inline void vf_load_columns(const real *p, ptrdiff_t stride, vf *x)
{
    const float32x4_t a = vld1q_f32(p), b = vld1q_f32(p + stride), c = vld1q_f32(p + 2 * stride),
                      e = vld1q_f32(p + 3 * stride);
    const float64x2_t ab = vreinterpretq_f64_f32(vzip1q_f32(a, b)),
                      ce = vreinterpretq_f64_f32(vzip1q_f32(c, e)),
                      ab2 = vreinterpretq_f64_f32(vzip2q_f32(a, b)),
                      ce2 = vreinterpretq_f64_f32(vzip2q_f32(c, e));
    x[0] = vreinterpretq_f32_f64(vzip1q_f64(ab, ce));
    x[1] = vreinterpretq_f32_f64(vzip2q_f64(ab, ce));
    x[2] = vreinterpretq_f32_f64(vzip1q_f64(ab2, ce2));
    x[3] = vreinterpretq_f32_f64(vzip2q_f64(ab2, ce2));
}
