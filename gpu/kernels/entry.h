/* SPDX-License-Identifier: MIT */
/* entry.h -- the kernels of a program as a device sees them.  On the host the kernels are plain
 * functions. */
#ifndef LOCI_GPU_KERNELS_ENTRY_H
#define LOCI_GPU_KERNELS_ENTRY_H

#include "kernels/backward.h"
#include "kernels/counts.h"
#include "kernels/decode.h"
#include "kernels/embed.h"
#include "kernels/linear.h"
#include "kernels/mix_back.h"
#include "kernels/polar.h"
#include "kernels/probes.h"
#include "kernels/reflection_sums.h"
#include "kernels/states.h"
#include "kernels/store.h"
#include "kernels/vectors_back.h"

#if defined __OPENCL_VERSION__

#define ARGUMENT(name) __global char *name##_,
#define MEMBER(name) b.at.name = name##_;
#define ENTRY(kernel_name)                                                                         \
    __kernel __attribute__((reqd_work_group_size(THREADS, 1, 1))) void loci_##kernel_name(         \
        ARRAYS(ARGUMENT) struct params p, __local float4 *room)                                    \
    {                                                                                              \
        struct block b;                                                                            \
        ARRAYS(MEMBER)                                                                             \
        b.p = &p;                                                                                  \
        b.x = (int)get_group_id(0);                                                                \
        b.room = b.scan = (__local float *)room;                                                   \
        kernel_name(b);                                                                            \
    }
LOCI_KERNELS(ENTRY)

#elif defined __CUDACC__

/* One group per multiprocessor will do: for two, NVRTC may take half of the registers and spill. */
#define ENTRY(kernel_name)                                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) loci_##kernel_name(                   \
        const struct arrays at, const struct params p)                                             \
    {                                                                                              \
        extern __shared__ float4 room[];                                                           \
        struct block b;                                                                            \
        b.at = at;                                                                                 \
        b.p = &p;                                                                                  \
        b.x = (int)blockIdx.x;                                                                     \
        b.room = b.scan = (float *)room;                                                           \
        kernel_name(b);                                                                            \
    }
LOCI_KERNELS(ENTRY)

#endif
#endif
