/* SPDX-License-Identifier: MIT */
/* words.h -- the words that differ between C17, OpenCL C and CUDA C.  No other file of the kernels
 * knows its compiler.
 *
 * A kernel is a sequence of phases.  PHASE(tid) .. END is run by all threads of a group, and ends
 * with a barrier.  On the host it is a loop over the threads.  Numbers that a thread keeps from
 * phase to phase are in a struct of its own, MINE. */
#ifndef LOCI_GPU_KERNELS_WORDS_H
#define LOCI_GPU_KERNELS_WORDS_H

#if defined __OPENCL_VERSION__

#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#pragma OPENCL FP_CONTRACT OFF
#define GLOBAL __global
#define SHARED __local
#define DEV static inline
#define PHASE(tid) { const int tid = (int)get_local_id(0);
#define END } barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
#define PRIVATE(type) type mine_
#define MINE mine_
typedef char int8_t;
typedef uchar uint8_t;
typedef ushort uint16_t;
typedef int int32_t;
typedef uint uint32_t;
typedef long int64_t;
typedef ulong uint64_t;
typedef float4 four;
DEV four four_of(float a, float b, float c, float d) { return (float4)(a, b, c, d); }
DEV float fma_(float a, float b, float c) { return fma(a, b, c); }
DEV double fmad_(double a, double b, double c) { return fma(a, b, c); }
DEV uint32_t to_bits(float x) { return as_uint(x); }
DEV float from_bits(uint32_t x) { return as_float(x); }
DEV uint64_t double_to_bits(double x) { return as_ulong(x); }
DEV double bits_to_double(uint64_t x) { return as_double(x); }
#define UNROLL_ _Pragma("unroll")
#define ROLLED _Pragma("unroll 1")
#define UNROLL2_ _Pragma("unroll 2")
#define UNROLL4_ _Pragma("unroll 4")
/* Sixteen bytes from memory to shared memory, which arrive at COPIES_DONE. */
DEV void copy_four(SHARED float *to, const GLOBAL float *from)
{
    *(SHARED four *)to = *(const GLOBAL four *)from;
}
#define COPIES_DONE
#define HERE(x)
/* NaN if one of them is. */
DEV float max_nan(float a, float b) { return a > b || a != a ? a : b; }


#elif defined __CUDACC__

#define GLOBAL
#define SHARED
#define DEV static __device__ __forceinline__
#define PHASE(tid) { const int tid = (int)threadIdx.x;
#define END } __syncthreads();
#define PRIVATE(type) type mine_
#define MINE mine_
#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#else
#include <stdint.h>
#endif
#ifdef INFINITY
#undef INFINITY
#endif
#define INFINITY __int_as_float(0x7f800000)
#ifdef NAN
#undef NAN
#endif
#define NAN __int_as_float(0x7fc00000)
typedef float4 four;
DEV four four_of(float a, float b, float c, float d) { return make_float4(a, b, c, d); }
DEV float fma_(float a, float b, float c) { return __fmaf_rn(a, b, c); }
DEV double fmad_(double a, double b, double c) { return __fma_rn(a, b, c); }
DEV uint32_t to_bits(float x) { return __float_as_uint(x); }
DEV float from_bits(uint32_t x) { return __uint_as_float(x); }
DEV uint64_t double_to_bits(double x) { return (uint64_t)__double_as_longlong(x); }
DEV double bits_to_double(uint64_t x) { return __longlong_as_double((long long)x); }
#define UNROLL_ _Pragma("unroll")
#define ROLLED _Pragma("unroll 1")
#define UNROLL2_ _Pragma("unroll 2")
#define UNROLL4_ _Pragma("unroll 4")
DEV void copy_four(SHARED float *to, const GLOBAL float *from)
{
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}
#define COPIES_DONE asm volatile("cp.async.wait_all;" ::: "memory");
/* What follows from a number of 64 bits is computed here, and not kept in registers from before. */
#define HERE(x) asm volatile("" : "+l"(x))
DEV float max_nan(float a, float b)
{
    float c;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}

#else

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "platform/fma.h"
#include "platform/fmaf.h"

#define GLOBAL
#define SHARED
#define DEV static inline
/* The order in which the threads of a phase run: a race would show. */
extern _Thread_local const int *loci_host_order;
#define PHASE(tid)                                                                                 \
    for (int nth_ = 0; nth_ < THREADS; nth_++) {                                                   \
        const int tid = loci_host_order[nth_];
#define END }
#define PRIVATE(type) static _Thread_local type mine_[THREADS]
#define MINE mine_[tid]
typedef struct {
    float x, y, z, w;
} four;
DEV four four_of(float a, float b, float c, float d) { return (four){ a, b, c, d }; }
DEV float fma_(float a, float b, float c) { return exact_fmaf(a, b, c); }
DEV double fmad_(double a, double b, double c) { return exact_fma(a, b, c); }
DEV uint32_t to_bits(float x)
{
    uint32_t b;
    memcpy(&b, &x, sizeof b);
    return b;
}
DEV float from_bits(uint32_t b)
{
    float x;
    memcpy(&x, &b, sizeof x);
    return x;
}
DEV uint64_t double_to_bits(double x)
{
    uint64_t b;
    memcpy(&b, &x, sizeof b);
    return b;
}
DEV double bits_to_double(uint64_t b)
{
    double x;
    memcpy(&x, &b, sizeof x);
    return x;
}
#define UNROLL_
#define ROLLED
#define UNROLL2_
#define UNROLL4_
DEV void copy_four(SHARED float *to, const GLOBAL float *from)
{
    *(SHARED four *)to = *(const GLOBAL four *)from;
}
#define COPIES_DONE
#define HERE(x)
/* NaN if one of them is. */
DEV float max_nan(float a, float b) { return a > b || a != a ? a : b; }

#endif

#define NULL_AT 0
/* A phase under a condition that a program for one plan knows.  Elsewhere only its body is under
 * the condition: PoCL copies what follows a barrier that may be left out.  Where few threads have
 * work that is a loop itself, it is a loop from tid on in steps of THREADS: under `if (tid < n)`
 * some programs had wrong numbers on PoCL 3.1.  A loop over phases that may run no iteration
 * is such a condition, too, and copies multiply: so inner loops are do-while, and their phases test
 * whether there is work.  MAYBE() is 0 only in a program for one plan that never has the work. */
#ifdef LOCI_DIM
#define PHASE_IF(tid, condition) if (condition) { PHASE(tid)
#define END_IF END }
#define MAYBE(condition) (condition)
#else
#define PHASE_IF(tid, condition) PHASE(tid) if (condition) {
#define END_IF } END
#define MAYBE(condition) 1
#endif
/* A program that is not for one plan has no constants to unroll for, and processors gain nothing.
 */
#if defined LOCI_DIM && !defined LOCI_LOOPS
#define UNROLL UNROLL_
#define UNROLL2 UNROLL2_
#define UNROLL4 UNROLL4_
#else
#define UNROLL
#define UNROLL2
#define UNROLL4
#endif

#endif
