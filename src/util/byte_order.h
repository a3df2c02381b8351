/* SPDX-License-Identifier: MIT */
/* byte_order.h -- numbers of files, whose bytes may be in another order than this machine's. */
#ifndef LOCI_UTIL_BYTE_ORDER_H
#define LOCI_UTIL_BYTE_ORDER_H

#include <stddef.h>

#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
enum { BIG_ENDIAN_HERE = 1 };
#elif __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
enum { BIG_ENDIAN_HERE = 0 };
#else
#error "The bytes of a number must be in order, the least or the most significant one first."
#endif

/* Reverses the bytes of each of `count` numbers. */
static inline void reverse_bytes(void *numbers, size_t count, size_t each)
{
    for (unsigned char *x = numbers; count > 0; count--, x += each)
        for (size_t i = 0; i < each / 2; i++) {
            const unsigned char first = x[i];
            x[i] = x[each - 1 - i];
            x[each - 1 - i] = first;
        }
}

/* From little-endian to the order of this machine, or back. */
static inline void little_endian(void *numbers, size_t count, size_t each)
{
    if (BIG_ENDIAN_HERE) reverse_bytes(numbers, count, each);
}

#endif
