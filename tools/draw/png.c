/* SPDX-License-Identifier: MIT */
/* png.c -- see png.h.  The format is that of RFC 2083, its stream a zlib one (RFC 1950) of stored
 * blocks (RFC 1951). */
#include "draw/png.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "draw/axis.h"

static void be32(struct text *t, uint32_t x)
{
    const char b[] = { (char)(x >> 24), (char)(x >> 16), (char)(x >> 8), (char)x };
    text_put(t, b, 4);
}

static uint32_t crc32_of(const char *s, size_t n)
{
    uint32_t c = ~UINT32_C(0);
    for (size_t i = 0; i < n; i++) {
        c ^= (unsigned char)s[i];
        for (int k = 0; k < 8; k++) c = c >> 1 ^ (c & 1 ? UINT32_C(0xedb88320) : 0);
    }
    return ~c;
}

/* Length, kind, bytes, and a checksum of the last two. */
static void chunk(struct text *t, const char *kind, const char *bytes, size_t n)
{
    be32(t, (uint32_t)n);
    const size_t from = t->n;
    text_put(t, kind, 4);
    text_put(t, bytes, n);
    be32(t, crc32_of(t->s + from, n + 4));
}

/* Blocks of at most 65535 bytes, each with its length and the complement of it. */
static void stored(struct text *t, const char *bytes, size_t n)
{
    uint32_t a = 1, b = 0;
    text_put(t, "\x78\x01", 2);
    for (size_t at = 0; at < n || at == 0;) {
        const size_t some = n - at < 65535 ? n - at : 65535;
        const char head[] = { at + some == n, (char)some, (char)(some >> 8), (char)~some,
                              (char)(~some >> 8) };
        text_put(t, head, sizeof head);
        text_put(t, bytes + at, some);
        at += some;
        if (at == n) break;
    }
    for (size_t i = 0; i < n; i++) {
        a = (a + (unsigned char)bytes[i]) % 65521;
        b = (b + a) % 65521;
    }
    be32(t, b << 16 | a);
}

static void base64(struct text *t, const char *bytes, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        uint32_t x = 0;
        char four[4];
        for (size_t k = 0; k < 3; k++) x = x << 8 | (i + k < n ? (unsigned char)bytes[i + k] : 0);
        for (int k = 0; k < 4; k++) four[k] = digits[x >> (18 - 6 * k) & 63];
        if (i + 1 >= n) four[2] = '=';
        if (i + 2 >= n) four[3] = '=';
        text_put(t, four, 4);
    }
}

void png_data(struct text *t, const unsigned char *cells, int rows, int cols)
{
    struct text png = { 0 }, part = { 0 };
    char palette[256][3];
    for (int i = 0; i < 256; i++) {
        const struct colour c = heat_colour((i - 1) / 254.0);
        palette[i][0] = (char)c.r;
        palette[i][1] = (char)c.g;
        palette[i][2] = (char)c.b;
    }
    text_put(&png, "\x89PNG\r\n\x1a\n", 8);
    be32(&part, (uint32_t)cols);
    be32(&part, (uint32_t)rows);
    text_put(&part, "\x08\x03\0\0\0", 5); /* 8 bits, with a palette */
    chunk(&png, "IHDR", part.s, part.n);
    chunk(&png, "PLTE", palette[0], sizeof palette);
    chunk(&png, "tRNS", "\0", 1);
    text_free(&part);

    struct text lines = { 0 };
    for (int i = 0; i < rows; i++) {
        text_put(&lines, "\0", 1); /* unfiltered */
        text_put(&lines, (const char *)cells + (ptrdiff_t)i * cols, (size_t)cols);
    }
    stored(&part, lines.s ? lines.s : "", lines.n);
    chunk(&png, "IDAT", part.s, part.n);
    chunk(&png, "IEND", "", 0);
    text_add(t, "data:image/png;base64,");
    base64(t, png.s, png.n);
    text_free(&part);
    text_free(&lines);
    text_free(&png);
}
