/* SPDX-License-Identifier: MIT */
/* positions.c -- see loci/positions.h: coordinates of sequences of text and grids of pictures or
 * films, as models like those with mrope count them.
 *
 * A text token has the same number on all axes.  A grid begins where the text before it ends.  Its
 * patches count time, height and width from there.  The next segment begins after the longer
 * spatial side, even if time extends further. */
#include "loci/positions.h"

#include <math.h>
#include <stdbool.h>

#include "util/error.h"

static const double far = 0x1p40; /* calls refuse larger coordinates */

/* A segment with only zeros is empty text. */
static bool is_text(const loci_segment *s)
{
    return s->tokens >= 0 && !s->t && !s->h && !s->w && s->step == 0;
}

/* Tokens of a segment.  -1 if it is neither text nor a grid, or is too large. */
static ptrdiff_t tokens_of(const loci_segment *s)
{
    ptrdiff_t n;
    if (is_text(s)) return s->tokens;
    if (s->tokens || s->t < 1 || s->h < 1 || s->w < 1 || !(s->step >= 0 && s->step <= far))
        return -1;
    return __builtin_mul_overflow(s->t, s->h, &n) || __builtin_mul_overflow(n, s->w, &n) ? -1 : n;
}
ptrdiff_t loci_segments_len(int count, const loci_segment *s)
{
    ptrdiff_t len = count < 0 || (count && !s) ? -1 : 0;
    for (int i = 0; i < count && len >= 0; i++) {
        const ptrdiff_t n = tokens_of(&s[i]);
        if (n < 0 || __builtin_add_overflow(len, n, &len)) return -1;
    }
    return len;
}

/* The time of frame i.  The models' code multiplies in float and truncates: 39 times 2 * 2/1.3 is
 * 120 there and slightly less in double.  So double would give another position than in
 * training. */
static double time_of(const loci_segment *s, ptrdiff_t i)
{
    return s->step == 0 ? (double)i : floor((double)((float)i * (float)s->step));
}

/* extent: distance to the start of the next segment.  reach: the end of all its numbers.  Time can
 * extend it beyond the extent. */
static double extent(const loci_segment *s)
{
    return (double)(is_text(s) ? s->tokens : s->h > s->w ? s->h : s->w);
}
static double reach(const loci_segment *s)
{
    return is_text(s) ? extent(s) : fmax(1 + time_of(s, s->t - 1), extent(s));
}
/* Writes time, height and width of a segment's tokens: three rows of `len` numbers.  The order is
 * frames, then rows of a frame, then columns of a row. */
static void write_coordinates(const loci_segment *s, double start, ptrdiff_t len, double *coord)
{
    const ptrdiff_t n = tokens_of(s);
    for (ptrdiff_t i = 0; i < n; i++) {
        const bool text = is_text(s);
        coord[i] = start + (text ? (double)i : time_of(s, i / (s->h * s->w)));
        coord[len + i] = start + (double)(text ? i : i / s->w % s->h);
        coord[2 * len + i] = start + (double)(text ? i : i % s->w);
    }
}

/* Everything is validated before the first number is written. */
loci_status loci_segments_place(int count, const loci_segment *s, double start, ptrdiff_t len,
                                double *coord, double *next, loci_error *e)
{
    double at = start, end = start;
    CHECK(e, count >= 0 && (count == 0 || s), LOCI_BAD_ARG,
          "positions: the list of %d segments must not be NULL, and the count not negative", count);
    for (int i = 0; i < count; i++)
        CHECK(e, tokens_of(&s[i]) >= 0, LOCI_BAD_ARG,
              "positions: segment %d has %td tokens and a grid of %td x %td x %td, step %g; text "
              "has tokens only, a grid only sizes of at least 1",
              i, s[i].tokens, s[i].t, s[i].h, s[i].w, s[i].step);
    CHECK(e, loci_segments_len(count, s) == len, LOCI_BAD_ARG,
          "positions: len %td must be %td, the tokens of all segments", len,
          loci_segments_len(count, s));
    CHECK(e, coord || len == 0, LOCI_BAD_ARG, "positions: coord must not be NULL");
    for (int i = 0; i < count; i++) {
        end = fmax(end, at + reach(&s[i]));
        at += extent(&s[i]);
    }
    CHECK(e, fabs(start) <= far && fabs(end) <= far, LOCI_BAD_ARG,
          "positions: coordinates go from %g to %g, but must lie within 2^40", start, end);
    at = start; /* once more, now writing */
    ptrdiff_t done = 0;
    for (int i = 0; i < count; i++) {
        if (tokens_of(&s[i])) write_coordinates(&s[i], at, len, coord + done);
        at += extent(&s[i]);
        done += tokens_of(&s[i]);
    }
    if (next) *next = end;
    return LOCI_OK;
}
