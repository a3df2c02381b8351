/* SPDX-License-Identifier: MIT */
/* convert.c -- see loci/convert.h: reorders channels of weights, rounds numbers, and writes tables
 * of cos and sin. */
#include "loci/convert.h"
#include "contract/plan.h"

#include "util/arguments.h"
#include "util/overlap.h"
#include "math/q8.h"
#include "math/trig.h"
#include "encodings/rope_scaling.h"

/* ---- Weights --------------------------------------------------------------------------------- */

/* Heads and widths of any existing model.  reorder() has a bit per channel on the stack. */
enum { MAX_CHANNELS = 65536 };

/* Checks the description and replaces fields that are 0: all channels from `offset` on are rotated,
 * there is one block, and blocks are contiguous.  Products stay below MOST_NUMBERS, so 8 bytes each
 * never overflow. */
static loci_status check_channels(loci_channels *c, const void *x, const void *y, loci_error *e)
{
    const ptrdiff_t most = MOST_NUMBERS;
    CHECK(e, c->element >= 1 && c->element <= 8, LOCI_BAD_ARG,
          "element %zu must be from 1 to 8 bytes", c->element);
    CHECK(e, c->heads >= 1 && c->heads <= MAX_CHANNELS, LOCI_BAD_ARG,
          "heads %d must be from 1 to %d", c->heads, MAX_CHANNELS);
    CHECK(e, c->dim >= 2 && c->dim <= MAX_CHANNELS, LOCI_BAD_ARG, "dim %d must be from 2 to %d",
          c->dim, MAX_CHANNELS);
    CHECK(e, c->offset >= 0 && c->offset < c->dim, LOCI_BAD_ARG, "offset %d must be from 0 to %d",
          c->offset, c->dim - 1);
    if (!c->turned) c->turned = c->dim - c->offset;
    CHECK(e, c->turned >= 2 && c->turned % 2 == 0, LOCI_BAD_ARG,
          "the number of rotated channels, %d, must be even", c->turned);
    CHECK(e, c->turned <= c->dim - c->offset, LOCI_BAD_ARG,
          "offset %d + turned %d must not exceed the head's %d channels", c->offset, c->turned,
          c->dim);
    CHECK(e, c->outer >= 0 && c->inner >= 0 && c->stride >= 0, LOCI_BAD_ARG,
          "outer %td, inner %td and stride %td must not be negative", c->outer, c->inner,
          c->stride);
    if (!c->outer) c->outer = 1;
    if (!c->inner) c->inner = 1;
    ptrdiff_t dense, last;
    CHECK(e, !__builtin_mul_overflow((int64_t)c->heads * c->dim, c->inner, &dense) && dense < most,
          LOCI_BAD_ARG, "heads %d, dim %d and inner %td are too large together", c->heads, c->dim,
          c->inner);
    if (!c->stride) c->stride = dense;
    CHECK(e, c->stride >= dense, LOCI_BAD_ARG,
          "stride %td must be at least %td, or the blocks overlap", c->stride, dense);
    CHECK(e, !__builtin_mul_overflow(c->outer - 1, c->stride, &last) && last < most, LOCI_BAD_ARG,
          "outer %td and stride %td are too large together", c->outer, c->stride);
    CHECK(e, x && y, LOCI_BAD_ARG, "x and y must not be NULL");
    /* Views of bytes, because weights in a file need not be aligned to their size. */
    const ptrdiff_t each = (ptrdiff_t)c->element;
    const loci_view from = { (void *)x, c->stride * each, 0, 0 },
                    to = { (void *)y, c->stride * each, 0, 0 };
    struct regions r;
    r.n = 0;
    loci_add_view(&r, "x", &from, c->outer, 1, 1, dense * each, 1, REPLACED);
    loci_add_view(&r, "y", &to, c->outer, 1, 1, dense * each, 1, WRITTEN);
    return loci_check_regions(&r, e);
}

/* Which of the rotated channels moves to place i.  Interleaved pairs are (2t, 2t + 1), those of
 * half style (t, t + pairs). */
static int source(int i, int turned, loci_pairing to)
{
    const int pairs = turned / 2;
    return to == LOCI_INTERLEAVED ? i / 2 + i % 2 * pairs : i < pairs ? 2 * i : 2 * (i - pairs) + 1;
}

/* Swaps in pieces, because a channel of a weight may be as long as the model is wide. */
static void swap(char *a, char *b, size_t bytes)
{
    char piece[256];
    for (size_t n; bytes; a += n, b += n, bytes -= n) {
        n = bytes < sizeof piece ? bytes : sizeof piece;
        memcpy(piece, a, n);
        memcpy(a, b, n);
        memcpy(b, piece, n);
    }
}

/* Reorders in place, because x may be the only copy of a large weight.  The permutation consists of
 * cycles.  Along each cycle every swap moves one channel to its place, and the last one is then in
 * place, too. */
static void reorder(char *x, int turned, loci_pairing to, size_t bytes)
{
    unsigned char done[MAX_CHANNELS / 8] = { 0 };
    for (int first = 0; first < turned; first++) {
        int i = first;
        while (!(done[i / 8] >> i % 8 & 1)) {
            const int from = source(i, turned, to);
            done[i / 8] |= (unsigned char)(1 << i % 8);
            if (from != first) swap(x + (size_t)i * bytes, x + (size_t)from * bytes, bytes);
            i = from;
        }
    }
}

loci_status loci_convert_channels(const loci_channels *given, loci_pairing from, loci_pairing to,
                                  const void *x, void *y, loci_error *e)
{
    CHECK(e, given, LOCI_BAD_ARG, "loci_channels must not be NULL");
    CHECK(e,
          (from == LOCI_HALF || from == LOCI_INTERLEAVED)
              && (to == LOCI_HALF || to == LOCI_INTERLEAVED),
          LOCI_BAD_ARG, "pairings %d and %d must be LOCI_HALF or LOCI_INTERLEAVED", (int)from,
          (int)to);
    loci_channels c;
    TRY(COPY_STRUCT(loci_channels, &c, given, stride, false, e));
    TRY(check_channels(&c, x, y, e));
    const size_t bytes = c.element * (size_t)c.inner, head = bytes * (size_t)c.dim,
                 block = head * (size_t)c.heads;
    for (ptrdiff_t o = 0; o < c.outer; o++) {
        const size_t at = (size_t)o * (size_t)c.stride * c.element;
        if (x != y) memcpy((char *)y + at, (const char *)x + at, block);
        /* Copied first, then reordered in place.  This serves both cases.  Equal pairings are a
         * copy. */
        for (int h = 0; h < c.heads && from != to; h++)
            reorder((char *)y + at + (size_t)h * head + (size_t)c.offset * bytes, c.turned, to,
                    bytes);
    }
    return LOCI_OK;
}

/* ---- Rounding -------------------------------------------------------------------------------- */

/* Rounds a double to 16 bits, to nearest, ties to even, with `fraction` bits of fraction and no
 * number finer than 2^step.  It rounds once, unlike half.h, which rounds a float, because weights
 * may be doubles. */
static uint16_t narrow(double x, int fraction, int step)
{
    const int infinite = (0x7fff >> fraction) << fraction, sign = signbit(x) ? 0x8000 : 0;
    /* A quiet NaN of the same sign. */
    if (isnan(x)) return (uint16_t)(sign | infinite | 1 << (fraction - 1));
    int exponent = 0, bits = infinite;
    if (isfinite(x)) {
        frexp(x, &exponent);
        /* The last bit is 2^q.  Below the normal numbers, and for 0, it is 2^step. */
        const int q = x == 0 || exponent - 1 - fraction < step ? step : exponent - 1 - fraction;
        const int n = (int)rint(ldexp(fabs(x), -q)); /* at most 2^(fraction + 1) */
        /* n includes the implicit bit of normal numbers, which adds one to the exponent.  A carry
         * of rint() does so as well.  Exponents that are too large become `infinite`. */
        if (q - step < 1 << (15 - fraction)) bits = ((q - step) << fraction) + n;
    }
    return (uint16_t)(sign | (bits < infinite ? bits : infinite));
}

/* Stores number i of a list.  The finest numbers are 2^-133 for bf16 (2^-126 with 7 bits of
 * fraction) and 2^-24 for f16 (2^-14 with 10). */
static void store(loci_dtype dtype, void *y, ptrdiff_t i, double x)
{
    if (dtype == LOCI_F64) ((double *)y)[i] = x;
    else if (dtype == LOCI_F32) ((float *)y)[i] = (float)x;
    else ((uint16_t *)y)[i] = dtype == LOCI_BF16 ? narrow(x, 7, -133) : narrow(x, 10, -24);
}
static bool known(loci_dtype dtype)
{
    return dtype == LOCI_F32 || dtype == LOCI_F64 || dtype == LOCI_BF16 || dtype == LOCI_F16;
}

loci_status loci_round(loci_dtype dtype, ptrdiff_t count, const double *x, void *y)
{
    struct regions r;
    r.n = 0;
    const bool q8 = dtype == LOCI_Q8_0;
    if ((!known(dtype) && !q8) || count < 0 || count > MOST_DISTANCE || (count && (!x || !y))
        || (q8 && count % Q8_BLOCK))
        return LOCI_BAD_ARG;
    /* Blocks of q8_0 are words of 16 bits. */
    const size_t each = q8 ? sizeof(uint16_t) : stored_size(dtype);
    loci_add_list(&r, "x", x, (size_t)count, sizeof *x, READ);
    loci_add_list(&r, "y", y, (size_t)stored_bytes(dtype, count) / each, each, WRITTEN);
    /* In place each number is read before it is overwritten, because outputs are no larger than
     * inputs. */
    if ((const void *)x != y) TRY(loci_check_regions(&r, NULL));
    for (ptrdiff_t i = 0; i < count && !q8; i++) store(dtype, y, i, x[i]);
    for (ptrdiff_t i = 0; i < count && q8; i += Q8_BLOCK) {
        float block[Q8_BLOCK];
        for (int k = 0; k < Q8_BLOCK; k++) block[k] = (float)x[i + k];
        q8_round_block(block, (char *)y + stored_bytes(dtype, i));
    }
    return LOCI_OK;
}

/* ---- Tables of cos and sin ------------------------------------------------------------------- */

/* Writes the number of pair i into row r: once, or for both channels of the pair. */
static void store_row(const loci_rope_table *t, void *to, ptrdiff_t r, int pairs, int i, double x)
{
    if (!to) return;
    const ptrdiff_t at = r * t->row;
    if (t->layout == LOCI_TABLE_INTERLEAVED) {
        store(t->dtype, to, at + 2 * i, x);
        store(t->dtype, to, at + 2 * i + 1, x);
    } else {
        store(t->dtype, to, at + i, x);
        if (t->layout == LOCI_TABLE_HALF) store(t->dtype, to, at + pairs + i, x);
    }
}

/* Checks the arguments and finds the plan's rope.  Learned frequencies are the caller's tensors, so
 * they must not be NULL. */
static loci_status check_table(const loci_plan *p, const void *const *tensors, loci_rope_table *t,
                               int *rope, loci_error *e)
{
    for (int i = 0; i < p->encs; i++)
        if (p->enc[i].pe == &loci_pe_rope) *rope = i;
    CHECK(e, *rope >= 0, LOCI_BAD_ARG, "the plan must have the encoding rope, but is %.120s",
          p->text);
    CHECK(e, known(t->dtype), LOCI_BAD_ARG,
          "dtype %d must be LOCI_F32, LOCI_F64, LOCI_BF16 or LOCI_F16", (int)t->dtype);
    CHECK(e,
          t->layout == LOCI_TABLE_SPLIT || t->layout == LOCI_TABLE_HALF
              || t->layout == LOCI_TABLE_INTERLEAVED,
          LOCI_BAD_ARG,
          "layout %d must be LOCI_TABLE_SPLIT, LOCI_TABLE_HALF or LOCI_TABLE_INTERLEAVED",
          (int)t->layout);
    const ptrdiff_t width = (ptrdiff_t)p->enc[*rope].opt[ROPE_DIM]
                          / (t->layout == LOCI_TABLE_SPLIT ? 2 : 1),
                    most = MOST_NUMBERS < FAR ? MOST_NUMBERS : (ptrdiff_t)FAR;
    if (!t->row) t->row = width;
    /* A limit on the total that prevents overflows of the products below. */
    CHECK(e, t->row >= width && t->row < most, LOCI_BAD_ARG,
          "row %td must be at least the %td numbers of a row", t->row, width);
    CHECK(e, t->count >= 0 && t->count <= most / t->row, LOCI_BAD_ARG,
          "count %td must not be negative, nor too large", t->count);
    TRY(loci_check_near(t->pos, t->count, "pos", e));
    const loci_view cos = { t->cos, 0, 0, t->row }, sin = { t->sin, 0, 0, t->row };
    struct regions r;
    r.n = 0;
    loci_add_view(&r, "cos", &cos, 1, 1, t->count, width, stored_size(t->dtype), WRITTEN);
    loci_add_view(&r, "sin", &sin, 1, 1, t->count, width, stored_size(t->dtype), WRITTEN);
    loci_add_list(&r, "pos", t->pos, (size_t)t->count, sizeof *t->pos, READ);
    for (int i = p->first_tensor[*rope]; i < p->first_tensor[*rope + 1]; i++) {
        const loci_tensor *tensor = &p->tensors.list[i];
        CHECK(e, tensors && tensors[i], LOCI_BAD_ARG, "tensor '%s' of rope must not be NULL",
              tensor->name);
        loci_add_list(&r, tensor->name, tensors[i], (size_t)tensor_count(tensor), p->real, READ);
    }
    return loci_check_regions(&r, e);
}

/* Tables for other engines, with the exact numbers that this one rotates by: frequencies to 106
 * bits, cos and sin within 0.51 ulp of a double, times the attention factor, rounded once to their
 * dtype.  The outer loop is over pairs, because their frequency is the costly part. */
loci_status loci_export_rope(const loci_plan *p, const void *const *tensors,
                             const loci_rope_table *given, loci_error *e)
{
    CHECK(e, p && given, LOCI_BAD_ARG, "the plan and the loci_rope_table must not be NULL");
    loci_rope_table t;
    int rope = -1;
    TRY(COPY_STRUCT(loci_rope_table, &t, given, sin, wants_sizes(p), e));
    TRY(check_table(p, tensors, &t, &rope, e));
    const struct config *c = &p->enc[rope];
    /* A prep without a table, because loci_rope_frequency() reads only options and tensors. */
    const struct prep prep = {
        .cfg = c,
        .data = tensors ? tensors + p->first_tensor[rope] : NULL,
        .f64 = p->f64,
    };
    const int pairs = (int)c->opt[ROPE_DIM] / 2;
    const double m = c->opt[ROPE_ATTENTION_FACTOR];
    for (int i = 0; i < pairs; i++) {
        double hi, lo;
        loci_rope_frequency(&prep, i, &hi, &lo);
        for (ptrdiff_t r = 0; r < t.count; r++) {
            /* without positions row r is position r */
            double cos, sin;
            loci_sincos(t.pos ? (double)t.pos[r] : (double)r, hi, lo, &cos, &sin);
            store_row(&t, t.cos, r, pairs, i, m * cos);
            store_row(&t, t.sin, r, pairs, i, m * sin);
        }
    }
    return LOCI_OK;
}
