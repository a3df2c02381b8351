/* SPDX-License-Identifier: MIT */
/* isa.c -- which engines were built, and which of them this processor and operating system can
 * run. */
#include "contract/engine.h"

extern const struct engine loci_engine_scalar, loci_engine_f64;
extern const struct engine loci_engine_avx2, loci_engine_avx512, loci_engine_neon;
extern const struct engine loci_engine_simd128;

enum { MAX_ENGINES = 3 }; /* scalar, and at most two for one kind of processor */

/* What this processor and operating system can do. */
enum { CPU_AVX2 = 1, CPU_AVX512 = 2, CPU_BF16 = 4, CPU_STREAMS = 8, CPU_KNOWN = 16 };

#if defined LOCI_HAVE_AVX2 || defined LOCI_HAVE_AVX512
#include <cpuid.h>
#include <stdatomic.h>

/* Registers that the operating system saves on a context switch (XCR0).  Using any others destroys
 * state. */
static uint32_t saved_registers(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static bool has_all(uint32_t word, uint32_t bits) { return (word & bits) == bits; }

/* The bits are those of CPUID leaves 1 (ecx) and 7 (ebx; in subleaf 1, eax). */
static int instruction_sets(void)
{
    /* XCR0: xmm and ymm; and additionally k0-k7, upper zmm halves, zmm16-31 */
    const uint32_t ymm = 0x6, zmm = 0xe6;
    const uint32_t fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29;
    const uint32_t avx2 = 1u << 5, f = 1u << 16, dq = 1u << 17, bw = 1u << 30, vl = 1u << 31;
    const uint32_t bf16 = 1u << 5;
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !has_all(c, fma | osxsave | avx | f16c)) return 0;
    /* xgetbv exists only if osxsave is set */
    const uint32_t saved = saved_registers();
    if (!has_all(saved, ymm) || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !has_all(b, avx2))
        return 0;
    if (!has_all(saved, zmm) || !has_all(b, f | dq | bw | vl)) return CPU_AVX2;
    const bool dots = __get_cpuid_count(7, 1, &a, &b, &c, &d) && has_all(a, bf16);
    return CPU_AVX2 | CPU_AVX512 | (dots ? CPU_BF16 : 0);
}

/* Rows that adjoin are a stream that hardware prefetchers find, page by page.  Zen 5 (AMD's family
 * 26) gains if software prefetches all of it; on Zen 4 that costs up to a quarter. */
static bool gains_by_prefetch(void)
{
    uint32_t a, b, c, d;
    const bool amd = __get_cpuid(0, &a, &b, &c, &d) && b == signature_AMD_ebx;
    if (!amd || !__get_cpuid(1, &a, &b, &c, &d)) return false;
    return (a >> 8 & 0xf) + (a >> 20 & 0xff) == 26;
}

/* Asked once, as CPUID takes microseconds in a virtual machine.  Threads that ask at the same time
 * store the same bits. */
static bool cpu_has(int what)
{
    static _Atomic int known;
    int bits = atomic_load_explicit(&known, memory_order_relaxed);
    if (!bits) {
        bits = CPU_KNOWN | instruction_sets() | (gains_by_prefetch() ? CPU_STREAMS : 0);
        atomic_store_explicit(&known, bits, memory_order_relaxed);
    }
    return (bits & what) != 0;
}
#else
static bool cpu_has(int what)
{
    (void)what;
    return false;
}
#endif

bool loci_dots_bf16(void) { return cpu_has(CPU_BF16); }
bool loci_prefetch_streams(void) { return cpu_has(CPU_STREAMS); }

/* Engines in float32 that can run here, worst first.  There may be none: LOCI_ISAS=none. */
static int runnable(const struct engine *list[MAX_ENGINES])
{
    int n = 0;
    (void)list;
#ifdef LOCI_HAVE_SCALAR
    list[n++] = &loci_engine_scalar;
#endif
#ifdef LOCI_HAVE_AVX2
    if (cpu_has(CPU_AVX2)) list[n++] = &loci_engine_avx2;
#endif
#ifdef LOCI_HAVE_AVX512
    if (cpu_has(CPU_AVX512)) list[n++] = &loci_engine_avx512;
#endif
#ifdef LOCI_HAVE_NEON
    list[n++] = &loci_engine_neon;
#endif
#ifdef LOCI_HAVE_SIMD128
    list[n++] = &loci_engine_simd128;
#endif
    return n;
}

/* A name that cannot run here is also refused for f64, although that engine is portable. */
const struct engine *loci_engine(const char *isa, bool f64)
{
    const struct engine *list[MAX_ENGINES];
    int n = runnable(list), i = n - 1;
    if (f64 && !isa) return &loci_engine_f64;
    while (isa && i >= 0 && strcmp(isa, list[i]->isa) != 0) i--;
    if (i < 0) return NULL;
    return f64 ? &loci_engine_f64 : list[i];
}

int loci_isas(const char **names, int capacity)
{
    const struct engine *list[MAX_ENGINES];
    int n = runnable(list);
    for (int i = 0; names && i < n && i < capacity; i++) names[i] = list[i]->isa;
    return n;
}
