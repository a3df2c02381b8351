/* SPDX-License-Identifier: MIT */
/* vec.h for AArch64: 4 floats.  See isa/avx512/vec.h for the meaning of each word. */
#include <arm_neon.h>

typedef float real;
typedef float32x4_t vf;
#define VL 4
enum { MR = 4, NR = 4 };

static inline vf vf_load(const real *p) { return vld1q_f32(p); }
static inline void vf_store(real *p, vf x) { vst1q_f32(p, x); }
static inline void vf_stream(real *p, vf x) { vf_store(p, x); }
static inline void vf_streamed(void) {}
static inline vf vf_set1(real x) { return vdupq_n_f32(x); }
static inline vf vf_fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
static inline vf vf_add(vf a, vf b) { return vaddq_f32(a, b); }
static inline vf vf_sub(vf a, vf b) { return vsubq_f32(a, b); }
static inline vf vf_mul(vf a, vf b) { return vmulq_f32(a, b); }
static inline vf vf_div(vf a, vf b) { return vdivq_f32(a, b); }
static inline vf vf_max(vf a, vf b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
static inline vf vf_negative(vf x, vf a, vf b) { return vbslq_f32(vcltq_f32(x, vdupq_n_f32(0)), a, b); }
static inline vf vf_zero_below(vf x, real limit, vf y)
{
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(y), vcltq_f32(x, vdupq_n_f32(limit))));
}
static inline vf vf_scale2(vf y, vf t)
{
    return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(y), vshlq_n_s32(vreinterpretq_s32_f32(t), 23)));
}
static inline vf vf_pick(int bit, vf lo, vf hi)
{
    static const uint32_t mask[2][4] = { { 0, ~0u, 0, ~0u }, { 0, 0, ~0u, ~0u } };
    return vbslq_f32(vld1q_u32(mask[bit]), hi, lo);
}
static inline vf vf_swap(int bit, vf x)
{
    return bit == 0 ? vrev64q_f32(x) : vextq_f32(x, x, 2);
}
enum { VBITS = 2 };
