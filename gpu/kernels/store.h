/* SPDX-License-Identifier: MIT */
/* store.h -- puts rows of all heads into a cache, or takes them from there: each row from one place
 * to another.  A group has 16 rows of a batch entry.  See docs/bits.md, Stored types. */
#ifndef LOCI_GPU_KERNELS_STORE_H
#define LOCI_GPU_KERNELS_STORE_H

#include "kernels/visible.h"

/* Channel d of a row that begins at `from`. */
DEV float moved_number(struct block b, int64_t from, int d)
{
    const float x = load_number(b.at.q, b.p->q_type, from + d);
    const int again = b.p->finish && d >= TURN.undo_from && d < TURN.undo_from + TURN.undo_count;
    return again ? x * TURN.undo : x;
}
/* Rounds the 32 channels of a row from channel d on to a block of q8_0. */
DEV void store_q8_block(struct block b, int64_t from, int64_t to, int d)
{
    GLOBAL uint16_t *block = (GLOBAL uint16_t *)b.at.o + (to + d) / Q8_NUMBERS * Q8_WORDS;
    float top = 0;
    for (int i = 0; i < Q8_NUMBERS; i++) {
        const float x = moved_number(b, from, d + i), size = x < 0 ? -x : x;
        top = size > top || size != size ? size : top; /* NaN stays to the end */
    }
    uint32_t bits = to_half(GPU_F16, top / 127.0f);
    if ((bits & 0x7c00) == 0x7c00) bits = 0x7e00;
    const float scale = from_half(GPU_F16, bits);
    block[0] = (uint16_t)bits;
    for (int i = 0; i < Q8_NUMBERS; i += 2) {
        uint32_t word = 0;
        for (int e = 0; e < 2; e++) {
            const float x = moved_number(b, from, d + i + e),
                        n = scale > 0 ? (x / scale + 12582912.0f) - 12582912.0f : 0.0f;
            const int whole = (int)(n > 127.0f ? 127.0f : n < -127.0f ? -127.0f : n);
            word |= ((uint32_t)whole & 0xff) << 8 * e;
        }
        block[1 + i / 2] = (uint16_t)word;
    }
}
/* From q, of q_len rows and `heads` heads, to o.  If both are stored alike rows are copied as they
 * are, 16 bits at a time. */
DEV void store_rows(struct block b)
{
    const int tiles = (b.p->q_len + ROTATED_ROWS - 1) / ROTATED_ROWS, type = b.p->o_type;
    const int batch = b.x / tiles, row0 = b.x % tiles * ROTATED_ROWS,
              rows = least(b.p->q_len - row0, ROTATED_ROWS), dim = b.p->dim;
    const int alike = b.p->q_type == type && !b.p->finish, q8 = type == GPU_Q8;
    const int units = !alike          ? q8 ? dim / Q8_NUMBERS : dim
                    : q8              ? dim / Q8_NUMBERS * Q8_WORDS
                    : type == GPU_F32 ? 2 * dim
                                      : dim;
    const GLOBAL struct row_move *moves =
        (const GLOBAL struct row_move *)(b.at.lists + b.p->where) + (int64_t)batch * b.p->q_len
        + row0;
    PHASE(tid)
        for (int i = tid; i < b.p->heads * rows * units; i += THREADS) {
            const int d = i % units, h = i / units % b.p->heads, r = i / units / b.p->heads;
            const struct row_move m = moves[r];
            if (m.to < 0) continue;
            const int64_t from = (int64_t)batch * b.p->q.batch + h * b.p->q.head
                               + m.from * b.p->q.row,
                          to = (int64_t)batch * b.p->o.batch + h * b.p->o.head
                             + m.to * b.p->o.row;
            if (alike) {
                const int64_t words = type == GPU_F32 ? 2 : 1;
                const int64_t x = q8 ? from / Q8_NUMBERS * Q8_WORDS : from * words,
                              y = q8 ? to / Q8_NUMBERS * Q8_WORDS : to * words;
                ((GLOBAL uint16_t *)b.at.o)[y + d] = ((const GLOBAL uint16_t *)b.at.q)[x + d];
            } else if (q8) {
                store_q8_block(b, from, to, d * Q8_NUMBERS);
            } else {
                store_number(b.at.o, type, to + d, moved_number(b, from, d));
            }
        }
    END
}

#endif
