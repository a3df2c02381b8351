/* SPDX-License-Identifier: MIT */
/* sha256.h -- SHA-256 (FIPS 180-4), piece by piece.
 *
 *     struct sha256 s;
 *     char hex[65];
 *     sha256_begin(&s);
 *     sha256_add(&s, bytes, count);
 *     sha256_end(&s, hex); */
#ifndef LOCI_LAB_SHA256_H
#define LOCI_LAB_SHA256_H

#include <stddef.h>
#include <stdint.h>

struct sha256 {
    uint32_t h[8];
    uint64_t count; /* bytes so far; the last count % 64 of them are pending */
    unsigned char block[64];
};

void sha256_begin(struct sha256 *);
void sha256_add(struct sha256 *, const void *bytes, size_t count);
void sha256_end(struct sha256 *, char hex[65]);

/* All at once. */
static inline void sha256_of(const void *bytes, size_t count, char hex[65])
{
    struct sha256 s;
    sha256_begin(&s);
    sha256_add(&s, bytes, count);
    sha256_end(&s, hex);
}

#endif
