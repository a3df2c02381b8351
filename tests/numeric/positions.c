/* SPDX-License-Identifier: MIT */
/* positions.c -- coordinates of text, pictures and videos against examples made by hand. */
#include "loci/positions.h"

#include <stdbool.h>
#include <string.h>

#include "harness.h"

enum { MAX = 32 };
struct example {
    const char *name;
    int count;
    loci_segment segment[6];
    double start, next;
    ptrdiff_t len;
    double coord[3][MAX];
};

static const struct example examples[] = {
    { "nothing", 0, { { 0 } }, 7, 7, 0, { { 0 } } },
    { "text",
      2,
      { { .tokens = 2 }, { .tokens = 3 } },
      10,
      15,
      5,
      { { 10, 11, 12, 13, 14 }, { 10, 11, 12, 13, 14 }, { 10, 11, 12, 13, 14 } } },
    { "a picture between text",
      3,
      { { .tokens = 3 }, { .t = 1, .h = 2, .w = 3 }, { .tokens = 2 } },
      0,
      8,
      11,
      { { 0, 1, 2, 3, 3, 3, 3, 3, 3, 6, 7 },
        { 0, 1, 2, 3, 3, 3, 4, 4, 4, 6, 7 },
        { 0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7 } } },
    { "a film of Qwen2-VL",
      3,
      { { .tokens = 1 }, { .t = 3, .h = 2, .w = 2 }, { .tokens = 1 } },
      0,
      4,
      14,
      { { 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3 },
        { 0, 1, 1, 2, 2, 1, 1, 2, 2, 1, 1, 2, 2, 3 },
        { 0, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 3 } } },
    { "a long film and text",
      3,
      { { .t = 5, .h = 1, .w = 2 }, { .tokens = 1 }, { .t = 1, .h = 2, .w = 1 } },
      10,
      15,
      13,
      { { 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 12, 13, 13 },
        { 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 12, 13, 14 },
        { 10, 11, 10, 11, 10, 11, 10, 11, 10, 11, 12, 13, 13 } } },
    { "a film of Qwen2.5-VL, 2 tokens per second, 1.25 seconds per grid",
      3,
      { { .tokens = 2 }, { .t = 3, .h = 1, .w = 2, .step = 2 * 1.25 }, { .tokens = 1 } },
      0,
      8,
      9,
      { { 0, 1, 2, 2, 4, 4, 7, 7, 4 },
        { 0, 1, 2, 2, 2, 2, 2, 2, 4 },
        { 0, 1, 2, 3, 2, 3, 2, 3, 4 } } },
    { "a film of Qwen3-VL: frames with their times",
      5,
      { { .tokens = 2 },
        { .t = 1, .h = 2, .w = 2 },
        { .tokens = 2 },
        { .t = 1, .h = 2, .w = 2 },
        { .tokens = 1 } },
      0,
      9,
      13,
      { { 0, 1, 2, 2, 2, 2, 4, 5, 6, 6, 6, 6, 8 },
        { 0, 1, 2, 2, 3, 3, 4, 5, 6, 6, 7, 7, 8 },
        { 0, 1, 2, 3, 2, 3, 4, 5, 6, 7, 6, 7, 8 } } },
    { "slow time",
      2,
      { { .t = 4, .h = 1, .w = 1, .step = 0.5 }, { .tokens = 1 } },
      3,
      5,
      5,
      { { 3, 3, 4, 4, 4 }, { 3, 3, 3, 3, 4 }, { 3, 3, 3, 3, 4 } } },
};

static void refused(const char *says, int count, const loci_segment *s, double start, ptrdiff_t len)
{
    double coord[3 * MAX], next = -1;
    loci_error e = { 0 };
    memset(coord, 0x5a, sizeof coord);
    const loci_status status = loci_segments_place(count, s, start, len, coord, &next, &e);
    bool untouched = next == -1;
    for (size_t i = 0; i < sizeof coord; i++) untouched &= ((unsigned char *)coord)[i] == 0x5a;
    CHECK_SAYS(status, LOCI_BAD_ARG, &e, says);
    CHECK_THAT(untouched, "%s: something was written", says);
}

/* Times are products in float: 39 times 2 * 2/1.3 is 120 there, and 119.99999999999999 in
 * double. */
static void rounding(void)
{
    const loci_segment film = { .t = 41, .h = 1, .w = 1, .step = 2 * (2 / 1.3) };
    double coord[3 * 41], next;
    CHECK_THAT(!loci_segments_place(1, &film, 0, 41, coord, &next, NULL) && coord[39] == 120
                   && next == 124,
               "a film: times are not those of a product in float");
}

int main(void)
{
    rounding();
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++) {
        const struct example *x = &examples[i];
        double coord[3 * MAX + 1] = { 0 }, next = -1;
        coord[3 * x->len] = -1;
        CHECK_THAT(loci_segments_len(x->count, x->segment) == x->len, "%s: length", x->name);
        bool same = !loci_segments_place(x->count, x->segment, x->start, x->len, coord, &next, NULL)
                 && next == x->next;
        for (int axis = 0; axis < 3; axis++)
            for (ptrdiff_t k = 0; k < x->len; k++)
                same &= coord[axis * x->len + k] == x->coord[axis][k];
        CHECK_THAT(same && coord[3 * x->len] == -1, "%s: coordinates", x->name);
    }
    const loci_segment text = { .tokens = 4 }, both = { .tokens = 4, .t = 1, .h = 1, .w = 1 },
                       flat = { .t = 1, .h = 0, .w = 3 };
    const loci_segment back = { .t = 2, .h = 1, .w = 1, .step = -1 },
                       huge = { .t = PTRDIFF_MAX, .h = 2, .w = 2 }, long_ago = { .tokens = -1 };
    refused("len 5 must be 4", 1, &text, 0, 5);
    refused("4 tokens and a grid of 1 x 1 x 1", 1, &both, 0, 4);
    refused("a grid of 1 x 0 x 3", 1, &flat, 0, 0);
    refused("step -1", 1, &back, 0, 2);
    refused("segment 0 has", 1, &huge, 0, 0);
    refused("-1 tokens", 1, &long_ago, 0, -1);
    refused("within 2^40", 1, &text, 0x1p41, 4);
    refused("must not be NULL", 1, NULL, 0, 4);
    CHECK_THAT(loci_segments_len(1, &huge) == -1 && loci_segments_len(1, NULL) == -1
                   && loci_segments_len(0, NULL) == 0,
               "length: of what cannot be");
    const loci_segment many[2] = { { .tokens = PTRDIFF_MAX }, { .tokens = 1 } };
    CHECK_THAT(loci_segments_len(2, many) == -1, "length: of too many");
    CHECK_THAT(loci_segments_place(1, &text, 0, 4, NULL, NULL, NULL) == LOCI_BAD_ARG,
               "coord: NULL was taken");
    return harness_end();
}
