/* SPDX-License-Identifier: MIT */
/* vec.h for plain C: one float at a time, for CPUs without their own set and as a baseline for the
 * others. */
#include "platform/fmaf.h"
#include "math/half.h"

typedef float real;
typedef real vf;
#define VL 1
#define MR 4
#define NR 4
#define KR 4

static inline vf vf_load(const real *p) { return *p; }
static inline void vf_store(real *p, vf x) { *p = x; }
static inline vf vf_load_bf16(const uint16_t *p) { return from_bf16(*p); }
static inline void vf_load2_bf16(const uint16_t *p, vf *even, vf *odd)
{
    *even = from_bf16(p[0]);
    *odd = from_bf16(p[1]);
}
static inline void vf_zip(vf even, vf odd, vf *low, vf *high)
{
    *low = even;
    *high = odd;
}
static inline vf vf_load_f16(const uint16_t *p) { return from_f16(*p); }
static inline vf vf_load_s8(const int8_t *p) { return *p; }
static inline void vf_store_bf16(uint16_t *p, vf x) { *p = to_bf16(x); }
static inline void vf_store_f16(uint16_t *p, vf x) { *p = to_f16(x); }
static inline void vf_stream(real *p, vf x) { vf_store(p, x); }
static inline void vf_streamed(void) {}
static inline vf vf_set1(real x) { return x; }
static inline vf vf_fma(vf a, vf b, vf c) { return exact_fmaf(a, b, c); }
static inline vf vf_fma1(real a, vf b, vf c) { return vf_fma(vf_set1(a), b, c); }
typedef const real *four;
static inline four four_at(const real *p) { return p; }
static inline vf vf_fma4(four a, int i, vf b, vf c) { return vf_fma1(a[i], b, c); }
static inline vf vf_add(vf a, vf b) { return a + b; }
static inline vf vf_sub(vf a, vf b) { return a - b; }
static inline vf vf_mul(vf a, vf b) { return a * b; }
static inline vf vf_div(vf a, vf b) { return a / b; }
static inline vf vf_max(vf a, vf b) { return a > b ? a : b; }
static inline vf vf_minus_abs(vf x) { return -__builtin_fabsf(x); }
static inline vf vf_negative(vf x, vf a, vf b) { return x < 0 ? a : b; }
static inline vf vf_zero_below(vf x, real limit, vf y) { return x < limit ? 0 : y; }
static inline vf vf_from(vf x, real limit, vf a, vf b) { return x >= limit ? a : b; }
enum { VBITS = 0 };
static inline void vf_load_columns(const real *p, ptrdiff_t stride, vf *x)
{
    (void)stride;
    *x = *p;
}
