/* SPDX-License-Identifier: MIT */
/* printable.h -- makes text from outside safe to print: it stays on one line and cannot control a
 * terminal. */
#ifndef LOCI_UTIL_PRINTABLE_H
#define LOCI_UTIL_PRINTABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Returns how many bytes the character at `text` has, and its code.  0: not UTF-8.  -1: the text
 * ends within the character. */
static inline int read_utf8(const char *text, uint32_t *code)
{
    /* a character with more bytes than it needs is not UTF-8 */
    static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    const unsigned char *s = (const unsigned char *)text;
    /* 0x80 .. 0xbf continue a character.  0xc0, 0xc1 and 0xf5 on begin no valid one. */
    const int n = s[0] < 0x80 ? 1
                : s[0] < 0xc2 ? 0
                : s[0] < 0xe0 ? 2
                : s[0] < 0xf0 ? 3
                : s[0] < 0xf5 ? 4
                              : 0;
    *code = n > 1 ? s[0] & (0x7fu >> n) : s[0];
    for (int i = 1; i < n; i++) {
        if (!s[i]) return -1;
        if ((s[i] & 0xc0) != 0x80) return 0;
        *code = *code << 6 | (s[i] & 0x3f);
    }
    const bool surrogate = *code >= 0xd800 && *code < 0xe000;
    return n && *code >= least[n] && *code <= 0x10ffff && !surrogate ? n : 0;
}

static inline bool is_utf8(const char *text)
{
    uint32_t code;
    for (int n; *text; text += n)
        if ((n = read_utf8(text, &code)) <= 0) return false;
    return true;
}

/* False for controls (C0, DEL, C1), for marks that change the direction of writing, for ends of
 * lines and paragraphs, and for the byte order mark.  A name with these could move the cursor, hide
 * what follows or look like another name. */
static inline bool is_plain(uint32_t c)
{
    return c >= 0x20 && !(c >= 0x7f && c < 0xa0) && c != 0x61c && c != 0x200e && c != 0x200f
        && !(c >= 0x2028 && c <= 0x202e) && !(c >= 0x2066 && c <= 0x2069) && c != 0xfeff;
}

/* Replaces bytes that are not plain, or not UTF-8, by "?".  Drops a character that is cut off at
 * the end.  The text never becomes longer, so it works in place. */
static inline void make_plain(char *text)
{
    char *to = text;
    for (const char *from = text; *from;) {
        uint32_t code;
        const int n = read_utf8(from, &code);
        if (n < 0) break;
        if (n > 0 && is_plain(code)) {
            memmove(to, from, (size_t)n);
            to += n;
        } else *to++ = '?';
        from += n ? n : 1;
    }
    *to = 0;
}

#endif
