/* SPDX-License-Identifier: MIT */
/* probes.h -- what a device can do at most, measured beside a benchmark: multiply-adds of numbers
 * in registers, and a copy. */
#ifndef LOCI_GPU_KERNELS_PROBES_H
#define LOCI_GPU_KERNELS_PROBES_H

#include "kernels/functions.h"

/* PROBE_ROUNDS * PROBE_CHAINS multiply-adds a thread. */
DEV void fma_rate(struct block b)
{
    PHASE(tid)
        GLOBAL float *to = (GLOBAL float *)b.at.o;
        float x[PROBE_CHAINS];
        const float a = 1.0f - (float)tid * 0x1p-20f;
        UNROLL for (int i = 0; i < PROBE_CHAINS; i++) x[i] = (float)i;
        ROLLED for (int n = 0; n < PROBE_ROUNDS; n += 16)
            UNROLL for (int m = 0; m < 16; m++)
                UNROLL for (int i = 0; i < PROBE_CHAINS; i++) x[i] = fma_(x[i], a, a);
        float sum = 0;
        UNROLL for (int i = 0; i < PROBE_CHAINS; i++) sum = sum + x[i];
        to[b.x * THREADS + tid] = sum;
    END
}
/* PROBE_COPIES * 16 bytes a thread, from q to o. */
DEV void copy_rate(struct block b)
{
    PHASE(tid)
        for (int i = 0; i < PROBE_COPIES; i++) {
            const int64_t at = ((int64_t)b.x * PROBE_COPIES + i) * THREADS + tid;
            ((GLOBAL four *)b.at.o)[at] = ((const GLOBAL four *)b.at.q)[at];
        }
    END
}

#endif
