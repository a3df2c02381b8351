/* SPDX-License-Identifier: MIT */
/* text.c -- see text.h. */
#include "draw/text.h"

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/printable.h"

_Noreturn void draw_no_memory(void)
{
    fputs("loci: out of memory\n", stderr);
    exit(2);
}

void *draw_alloc(size_t count, size_t each)
{
    void *p = calloc(count ? count : 1, each ? each : 1);
    if (!p) draw_no_memory();
    return p;
}

/* Room for n more and the 0 behind them. */
static char *more(struct text *t, size_t n)
{
    if (n >= SIZE_MAX / 4 - t->n) draw_no_memory();
    if (t->n + n + 1 > t->capacity) {
        t->capacity = 2 * (t->n + n + 1);
        char *s = realloc(t->s, t->capacity);
        if (!s) draw_no_memory();
        t->s = s;
    }
    return t->s + t->n;
}

void text_put(struct text *t, const char *bytes, size_t n)
{
    char *to = more(t, n);
    if (n) memcpy(to, bytes, n);
    to[n] = 0;
    t->n += n;
}

void text_add(struct text *t, const char *format, ...)
{
    va_list list, again;
    va_start(list, format);
    va_copy(again, list);
    const int n = vsnprintf(NULL, 0, format, list);
    va_end(list);
    if (n > 0) {
        vsnprintf(more(t, (size_t)n), (size_t)n + 1, format, again);
        t->n += (size_t)n;
    }
    va_end(again);
}

/* One character at `s`; what is not UTF-8, or would steer somebody, is a "?". */
static int read_plain(const char *s, uint32_t *code)
{
    const int n = read_utf8(s, code);
    if (n > 0 && is_plain(*code)) return n;
    *code = '?';
    return n > 0 ? n : 1;
}

void text_xml(struct text *t, const char *s)
{
    for (uint32_t code; *s;) {
        const int n = read_plain(s, &code);
        if (code == '&') text_add(t, "&amp;");
        else if (code == '<') text_add(t, "&lt;");
        else if (code == '>') text_add(t, "&gt;");
        else if (code == '"') text_add(t, "&quot;");
        else if (n > 1 && code != '?') text_put(t, s, (size_t)n);
        else text_add(t, "%c", (int)code);
        s += n;
    }
}

void text_json(struct text *t, const char *s)
{
    text_add(t, "\"");
    for (uint32_t code; *s;) {
        const int n = read_plain(s, &code);
        s += n;
        if (code == '"' || code == '\\') text_add(t, "\\%c", (int)code);
        else if (code < 0x80) text_add(t, "%c", (int)code);
        else if (code < 0x10000) text_add(t, "\\u%04x", (unsigned)code);
        else
            text_add(t, "\\u%04x\\u%04x", (unsigned)(0xd7c0 + (code >> 10)),
                     (unsigned)(0xdc00 + (code & 0x3ff)));
    }
    text_add(t, "\"");
}

void text_json_number(struct text *t, double x)
{
    char short_form[40];
    if (!isfinite(x)) {
        text_add(t, "null");
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(short_form, sizeof short_form, "%.*g", digits, x);
        if (strtod(short_form, NULL) == x) break;
    }
    text_add(t, "%s", short_form);
}

void text_free(struct text *t)
{
    free(t->s);
    *t = (struct text){ 0 };
}
