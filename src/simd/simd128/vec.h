/* SPDX-License-Identifier: MIT */
/* vec.h for WebAssembly: 4 floats.  simd/avx512/vec.h defines the meaning of each word.
 *
 * There is no fma with one result on all machines, so vf_fma() adds in double, as fmaf_by_double()
 * of platform/fmaf.h, which explains it: all lanes are right at once unless a sum lies halfway
 * between two floats. */
#include <wasm_simd128.h>

#include "platform/fmaf.h"
#include "math/half.h"

typedef float real;
typedef float vf __attribute__((vector_size(16)));
#define VL 4
/* A sum takes more registers than elsewhere, so a row of a block is one vector. */
#define MR 4
#define NR 1
#define KR 4

static inline vf vf_load(const real *p) { return wasm_v128_load(p); }
static inline void vf_store(real *p, vf x) { wasm_v128_store(p, x); }
/* A bf16 is the upper half of a float. */
static inline vf vf_load_bf16(const uint16_t *p)
{
    return wasm_i32x4_shl(wasm_u32x4_load16x4(p), 16);
}
static inline void vf_load2_bf16(const uint16_t *p, vf *even, vf *odd)
{
    const v128_t x = wasm_v128_load(p);
    *even = wasm_i32x4_shl(x, 16);
    *odd = wasm_v128_and(x, wasm_i32x4_splat((int)0xffff0000));
}
static inline void vf_zip(vf even, vf odd, vf *low, vf *high)
{
    *low = wasm_i32x4_shuffle(even, odd, 0, 4, 1, 5);
    *high = wasm_i32x4_shuffle(even, odd, 2, 6, 3, 7);
}
static inline vf vf_evens(vf x) { return wasm_i32x4_shuffle(x, x, 0, 0, 2, 2); }
static inline vf vf_odds(vf x) { return wasm_i32x4_shuffle(x, x, 1, 1, 3, 3); }
static inline vf vf_load_f16(const uint16_t *p)
{
    return wasm_f32x4_make(from_f16(p[0]), from_f16(p[1]), from_f16(p[2]), from_f16(p[3]));
}
static inline vf vf_load_s8(const int8_t *p)
{
    return wasm_f32x4_convert_i32x4(wasm_i32x4_make(p[0], p[1], p[2], p[3]));
}
static inline void vf_store_bf16(uint16_t *p, vf x)
{
    float y[4];
    vf_store(y, x);
    for (int i = 0; i < 4; i++) p[i] = to_bf16(y[i]);
}
static inline void vf_store_f16(uint16_t *p, vf x)
{
    float y[4];
    vf_store(y, x);
    for (int i = 0; i < 4; i++) p[i] = to_f16(y[i]);
}
static inline void vf_stream(real *p, vf x) { vf_store(p, x); }
static inline void vf_streamed(void) {}
static inline vf vf_set1(real x) { return wasm_f32x4_splat(x); }
static inline v128_t vf_low(vf x) { return wasm_f64x2_promote_low_f32x4(x); }
static inline v128_t vf_high(vf x)
{
    return wasm_f64x2_promote_low_f32x4(wasm_i32x4_shuffle(x, x, 2, 3, 2, 3));
}
/* Products and sums, lane by lane. */
static __attribute__((noinline, unused)) vf vf_fma_lanes(vf a, vf b, vf c)
{
    float x[4], y[4], z[4];
    vf_store(x, a);
    vf_store(y, b);
    vf_store(z, c);
    for (int i = 0; i < 4; i++) z[i] = fmaf_by_double(x[i], y[i], z[i]);
    return vf_load(z);
}
static inline vf vf_fma(vf a, vf b, vf c)
{
    const v128_t s = wasm_f64x2_add(wasm_f64x2_mul(vf_low(a), vf_low(b)), vf_low(c)),
                 t = wasm_f64x2_add(wasm_f64x2_mul(vf_high(a), vf_high(b)), vf_high(c));
    /* halves of 32 bits of all sums */
    const v128_t low = wasm_i32x4_shuffle(s, t, 0, 2, 4, 6),
                 high = wasm_i32x4_shuffle(s, t, 1, 3, 5, 7);
    const v128_t halfway = wasm_i32x4_eq(wasm_v128_and(low, wasm_i32x4_splat(0x1fffffff)),
                                         wasm_i32x4_splat(0x10000000));
    /* from 0, but not 0, up to 2^-126 */
    const v128_t size = wasm_i32x4_add(wasm_v128_and(high, wasm_i32x4_splat(0x7fffffff)),
                                       wasm_i32x4_splat(0x7fffffff));
    const v128_t small = wasm_i32x4_lt(size, wasm_i32x4_splat((int)(0x80000000u + 0x38100000 - 1)));
    if (__builtin_expect(wasm_v128_any_true(wasm_v128_or(halfway, small)), 0))
        return vf_fma_lanes(a, b, c);
    return wasm_i32x4_shuffle(wasm_f32x4_demote_f64x2_zero(s), wasm_f32x4_demote_f64x2_zero(t), 0,
                              1, 4, 5);
}
static inline vf vf_fma1(real a, vf b, vf c) { return vf_fma(vf_set1(a), b, c); }
typedef const real *four;
static inline four four_at(const real *p) { return p; }
static inline vf vf_fma4(four a, int i, vf b, vf c) { return vf_fma1(a[i], b, c); }
static inline vf vf_add(vf a, vf b) { return wasm_f32x4_add(a, b); }
static inline vf vf_sub(vf a, vf b) { return wasm_f32x4_sub(a, b); }
static inline vf vf_mul(vf a, vf b) { return wasm_f32x4_mul(a, b); }
static inline vf vf_div(vf a, vf b) { return wasm_f32x4_div(a, b); }
/* b < a ? a : b */
static inline vf vf_max(vf a, vf b) { return wasm_f32x4_pmax(b, a); }
static inline vf vf_minus_abs(vf x) { return wasm_v128_or(x, wasm_f32x4_splat(-0.0f)); }
static inline vf vf_negative(vf x, vf a, vf b)
{
    return wasm_v128_bitselect(a, b, wasm_f32x4_lt(x, wasm_f32x4_splat(0)));
}
static inline vf vf_zero_below(vf x, real limit, vf y)
{
    return wasm_v128_andnot(y, wasm_f32x4_lt(x, wasm_f32x4_splat(limit)));
}
static inline vf vf_from(vf x, real limit, vf a, vf b)
{
    return wasm_v128_bitselect(a, b, wasm_f32x4_ge(x, wasm_f32x4_splat(limit)));
}
static inline vf vf_scale2(vf y, vf t) { return wasm_i32x4_add(y, wasm_i32x4_shl(t, 23)); }
static inline vf vf_scale_from(vf x, real limit, vf y, vf t, vf n)
{
    (void)n;
    /* the larger of 0 and x is 0 or NaN */
    return vf_from(x, limit, vf_scale2(y, t), vf_max(wasm_f32x4_splat(0), x));
}
typedef v128_t vu;
static inline vu vu_load(const uint32_t *p) { return wasm_v128_load(p); }
static inline vu vu_set1(uint32_t x) { return wasm_i32x4_splat((int)x); }
static inline vu vu_add(vu a, vu b) { return wasm_i32x4_add(a, b); }
static inline vu vu_mul(vu a, vu b) { return wasm_i32x4_mul(a, b); }
static inline vu vu_xor(vu a, vu b) { return wasm_v128_xor(a, b); }
static inline vu vu_shift(vu x, int by) { return wasm_u32x4_shr(x, (uint32_t)by); }
static inline vf vf_not_below(vu x, vu limit, vf y)
{
    return wasm_v128_and(wasm_i32x4_ge(x, limit), y);
}
static inline vf vf_pick(int bit, vf lo, vf hi)
{
    return bit == 0 ? wasm_i32x4_shuffle(lo, hi, 0, 5, 2, 7)
                    : wasm_i32x4_shuffle(lo, hi, 0, 1, 6, 7);
}
static inline vf vf_swap(int bit, vf x)
{
    return bit == 0 ? wasm_i32x4_shuffle(x, x, 1, 0, 3, 2) : wasm_i32x4_shuffle(x, x, 2, 3, 0, 1);
}
enum { VBITS = 2 };
static inline void vf_load_columns(const real *p, ptrdiff_t stride, vf *x)
{
    const v128_t a = vf_load(p), b = vf_load(p + stride), c = vf_load(p + 2 * stride),
                 e = vf_load(p + 3 * stride);
    const v128_t ab = wasm_i32x4_shuffle(a, b, 0, 4, 1, 5),
                 ce = wasm_i32x4_shuffle(c, e, 0, 4, 1, 5),
                 ab2 = wasm_i32x4_shuffle(a, b, 2, 6, 3, 7),
                 ce2 = wasm_i32x4_shuffle(c, e, 2, 6, 3, 7);
    x[0] = wasm_i32x4_shuffle(ab, ce, 0, 1, 4, 5);
    x[1] = wasm_i32x4_shuffle(ab, ce, 2, 3, 6, 7);
    x[2] = wasm_i32x4_shuffle(ab2, ce2, 0, 1, 4, 5);
    x[3] = wasm_i32x4_shuffle(ab2, ce2, 2, 3, 6, 7);
}
