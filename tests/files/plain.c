/* SPDX-License-Identifier: MIT */
/* plain.c -- text from outside is made safe to print: every code point, every pair of bytes, every
 * cut.  So are the sentences of loci_fail() and loci_io_fail(). */
#include <stdio.h>
#include <stdlib.h>

#include "models/io.h"
#include "contract/encoding.h"
#include "util/printable.h"
#include "harness.h"

/* Written independently of plain.h. */
static bool harmful(uint32_t c)
{
    static const uint32_t singles[] = { 0x7f,   0x61c,  0x200e, 0x200f, 0x2028, 0x2029,
                                        0x202a, 0x202b, 0x202c, 0x202d, 0x202e, 0x2066,
                                        0x2067, 0x2068, 0x2069, 0xfeff };
    for (size_t i = 0; i < sizeof singles / sizeof *singles; i++)
        if (c == singles[i]) return true;
    return c < 0x20 || (c >= 0x80 && c <= 0x9f);
}

static size_t encode(uint32_t c, char *to)
{
    const size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char first[] = { 0, 0, 0xc0, 0xe0, 0xf0 };
    for (size_t i = n; i-- > 0; c >>= 6) to[i] = (char)(i ? 0x80 | (c & 0x3f) : first[n] | c);
    to[n] = 0;
    return n;
}

static void code_points(void)
{
    int wrong = 0, cuts = 0;
    for (uint32_t c = 1; c <= 0x10ffff; c++) {
        char code[8], text[32], want[32];
        if (c >= 0xd800 && c < 0xe000) continue;
        const size_t n = encode(c, code);
        snprintf(text, sizeof text, "a%sb", code);
        snprintf(want, sizeof want, "a%sb", harmful(c) ? "?" : code);
        make_plain(text);
        wrong += strcmp(text, want) != 0;
        for (size_t k = 1; k < n; k++) {
            snprintf(text, sizeof text, "a%.*s", (int)k, code);
            make_plain(text);
            cuts += strcmp(text, "a") != 0;
        }
    }
    CHECK_THAT(wrong == 0, "code points that are kept or lost wrongly: %d", wrong);
    CHECK_THAT(cuts == 0, "a cut character stays: %d", cuts);
}

/* Any two bytes give plain text. */
static void pairs_of_bytes(void)
{
    int wrong = 0;
    for (int a = 1; a < 256; a++)
        for (int b = 1; b < 256; b++) {
            char text[] = { (char)a, (char)b, 'z', 0 };
            make_plain(text);
            const bool both = a >= 0xc2 && a < 0xe0 && b >= 0x80 && b < 0xc0;
            const uint32_t code = (uint32_t)(a & 0x1f) << 6 | (b & 0x3f);
            const char want[] = { a >= 0x20 && a < 0x7f ? (char)a : '?',
                                  b >= 0x20 && b < 0x7f ? (char)b : '?', 'z', 0 };
            wrong += both ? harmful(code) ? strcmp(text, "?z") != 0 : (unsigned char)*text != a
                          : strcmp(text, want) != 0;
        }
    CHECK_THAT(wrong == 0, "pairs of bytes: %d", wrong);
}

static void texts(void)
{
    static const struct {
        const char *text, *want;
    } list[] = {
        { "", "" },
        { "caf\xc3\xa9", "caf\xc3\xa9" },
        { "\xe6\xa8\xa1\xe5\x9e\x8b.json", "\xe6\xa8\xa1\xe5\x9e\x8b.json" },
        { "\x1b[2Jx\n", "?[2Jx?" },
        { "\x9b"
          "31m",
          "?31m" },
        { "a\xe2\x80\xae"
          "b",
          "a?b" },
        { "\xc0\x80", "??" },
        { "\xed\xa0\x80", "???" },
        { "\xf4\x90\x80\x80", "????" },
        { "\xe2\x82 x", "?? x" },
        { "x\xf0\x9f\x98", "x" },
        { "\x80", "?" },
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        char text[64];
        snprintf(text, sizeof text, "%s", list[i].text);
        make_plain(text);
        CHECK_THAT(!strcmp(text, list[i].want), "text %zu is '%s', wanted '%s'", i, text,
                   list[i].want);
    }
}

static void sentences(void)
{
    loci_error e;
    char name[800];
    loci_io_fail(&e, LOCI_BAD_ARG, "tensor '%s'",
                 "\x1b\n\x7f\x9b\xe2\x80\xae\xc2\x9b"
                 "e");
    CHECK_THAT(e.status == LOCI_BAD_ARG && !strcmp(e.text, "tensor '??????e'"), "loci_io_fail: %s",
               e.text);
    loci_fail(&e, LOCI_BAD_ARG, "tensor '%s'",
              "\x1b\n\x7f\x9b\xe2\x80\xae\xc2\x9b"
              "e");
    CHECK_THAT(e.status == LOCI_BAD_ARG && !strcmp(e.text, "tensor '??????e'"), "loci_fail: %s",
               e.text);
    for (size_t at = 0; at < 4; at++) { /* the buffer ends inside a character */
        for (size_t i = 0; i + 4 < sizeof name; i += 3) memcpy(name + i, "\xe2\x82\xac", 4);
        loci_io_fail(&e, LOCI_BAD_ARG, "%.*s%s", (int)at, "xxxx", name);
        CHECK_THAT(strlen(e.text) == at + (sizeof e.text - 1 - at) / 3 * 3 && !strchr(e.text, '?'),
                   "loci_io_fail at the end: %zu bytes", at);
        loci_fail(&e, LOCI_BAD_ARG, "%.*s%s", (int)at, "xxxx", name);
        CHECK_THAT(strlen(e.text) == at + (sizeof e.text - 1 - at) / 3 * 3 && !strchr(e.text, '?'),
                   "loci_fail at the end: %zu bytes", at);
    }
}

int main(void)
{
    code_points();
    pairs_of_bytes();
    texts();
    sentences();
    return harness_end();
}
