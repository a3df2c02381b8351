/* SPDX-License-Identifier: MIT */
/* ggml_mask.c -- masks of ggml as first and last keys, as bytes and as floats, against a reader
 * that looks at one number after the other. */
#include "ggml/mask.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

enum { ROWS = 5, MOST = 400, STRIDE = MOST + 3, HIDDEN = 0xfc00, NEGATIVE_ZERO = 0x8000 };

static uint64_t state = 1;
static int draw(int n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int)((state >> 33) % (uint64_t)n);
}

static enum mask_form plain_row(const uint16_t *x, ptrdiff_t keys, int64_t *first, int64_t *last)
{
    *first = 0;
    *last = -1;
    for (ptrdiff_t j = 0; j < keys; j++) {
        if (x[j] == HIDDEN) continue;
        if (*last < 0) *first = j;
        *last = j;
    }
    enum mask_form form = MASK_RANGES;
    for (ptrdiff_t j = *first; j <= *last; j++) {
        if (x[j] == HIDDEN && form == MASK_RANGES) form = MASK_HOLES;
        if (x[j] != HIDDEN && x[j] != 0 && x[j] != NEGATIVE_ZERO) form = MASK_NUMBERS;
    }
    return form;
}

static void check_mask(const uint16_t *mask, ptrdiff_t keys, const char *what)
{
    int64_t first[ROWS], last[ROWS], want_first, want_last;
    enum mask_form want = MASK_RANGES;
    const enum mask_form form = loci_mask_read(mask, STRIDE, ROWS, keys, first, last);
    for (ptrdiff_t i = 0; i < ROWS; i++) {
        const enum mask_form row = plain_row(mask + i * STRIDE, keys, &want_first, &want_last);
        if (row > want) want = row;
        CHECK_THAT(first[i] == want_first && last[i] == want_last,
                   "%s, row %td of %td keys: keys %lld to %lld, wanted %lld to %lld", what, i, keys,
                   (long long)first[i], (long long)last[i], (long long)want_first,
                   (long long)want_last);
    }
    for (ptrdiff_t i = 0; i < ROWS; i++) {
        const uint16_t *x = mask + i * STRIDE;
        int32_t list[MOST + 1] = { 0 };
        const ptrdiff_t count = loci_mask_count(x, keys);
        ptrdiff_t seen = 0, wrong = 0;
        list[count] = -7; /* nothing is written behind the list */
        loci_mask_list(x, keys, list);
        for (ptrdiff_t j = 0; j < keys; j++) {
            if (x[j] == HIDDEN) continue;
            wrong += seen >= count || list[seen] != j;
            seen++;
        }
        CHECK_THAT(seen == count && !wrong && list[count] == -7,
                   "%s, row %td of %td keys: %td keys, wanted %td, %td wrong in the list", what, i,
                   keys, count, seen, wrong);
    }
    CHECK_THAT(form == want, "%s, %td keys: form %d, wanted %d", what, keys, (int)form, (int)want);
}

/* Rows that see the keys from a drawn one to another, or none. */
static void draw_ranges(uint16_t *mask, ptrdiff_t keys)
{
    for (ptrdiff_t i = 0; i < ROWS; i++) {
        const int a = draw((int)keys), b = draw((int)keys + 1);
        for (ptrdiff_t j = 0; j < STRIDE; j++)
            mask[i * STRIDE + j] = j >= a && j <= b ? (j % 7 ? 0 : NEGATIVE_ZERO) : HIDDEN;
    }
}

static void check_forms(void)
{
    static const int lengths[] = { 1, 2, 63, 64, 65, 127, 128, 129, 192, 300, MOST };
    uint16_t mask[ROWS * STRIDE];
    for (int n = 0; n < (int)(sizeof lengths / sizeof *lengths); n++)
        for (int times = 0; times < 60; times++) {
            const int keys = lengths[n], row = draw(ROWS), key = draw(keys);
            draw_ranges(mask, keys);
            check_mask(mask, keys, "ranges");
            mask[row * STRIDE + key] = draw(2) ? HIDDEN : 0;
            check_mask(mask, keys, "holes");
            mask[draw(ROWS) * STRIDE + draw(keys)] = (uint16_t)draw(1 << 16);
            check_mask(mask, keys, "numbers");
        }
    for (ptrdiff_t j = 0; j < ROWS * STRIDE; j++) mask[j] = 0;
    check_mask(mask, MOST, "all seen");
    for (ptrdiff_t j = 0; j < ROWS * STRIDE; j++) mask[j] = HIDDEN;
    check_mask(mask, MOST, "none seen");
}

/* Every number of 16 bits, as a float and as a byte. */
static void check_numbers(void)
{
    static uint16_t all[1 << 16];
    static float added[1 << 16];
    static unsigned char seen[1 << 16];
    for (int i = 0; i < 1 << 16; i++) all[i] = (uint16_t)i;
    loci_mask_added(all, 1 << 16, 0.75f, added);
    loci_mask_seen(all, 1 << 16, seen);
    for (int i = 0; i < 1 << 16; i++) {
        const int exponent = i >> 10 & 31, mantissa = i & 1023;
        const float size = exponent == 31 ? (mantissa ? NAN : INFINITY)
                         : exponent       ? ldexpf((float)(1024 + mantissa), exponent - 25)
                                          : ldexpf((float)mantissa, -24),
                    want = 0.75f * (i & NEGATIVE_ZERO ? -size : size);
        CHECK_THAT(isnan(want) ? isnan(added[i]) : added[i] == want, "%04x: %g, wanted %g", i,
                   (double)added[i], (double)want);
        CHECK_THAT(seen[i] == (i != HIDDEN), "%04x: byte %d", i, seen[i]);
    }
}

int main(void)
{
    check_forms();
    check_numbers();
    return harness_end();
}
