/* SPDX-License-Identifier: MIT */
/* stream.h -- how a pass is streamed: keys that are present a part at a time, and gradients that
 * go from process to process.  Only distributed/ fills this in, and the few files that move state
 * read it; all others ask the functions of call.h.  A call of one process has zeros here. */
#ifndef LOCI_CONTRACT_STREAM_H
#define LOCI_CONTRACT_STREAM_H

#include "contract/encoding.h"

/* Rows first .. first + count - 1 of a call.  The first one is at position `at`. */
struct run { ptrdiff_t first, count; int64_t at; };

/* A forward pass in parts.  Each part has some chunks of keys, newest first.  The state of the rows
 * of each query tile is saved between parts.  A pass row by row can do most of a part before that
 * state has arrived: PART_SUM sums chunks where that is possible, PART_JOIN does the rest. */
struct part {
    /* [tiles][heads] slots of `slot` bytes; NULL: the pass is in one piece */
    char *state;
    size_t slot;
    ptrdiff_t count;                     /* keys that are present */
    bool opens, closes;                  /* the first part; the last one */
    /* INPUT tensors by key have the present keys only, even if sums run over all keys.  The state
     * of older sums is in `restored`, by encoding (see struct encoding_stream). */
    bool partial_inputs;
    const void *restored[MAX_ENCODINGS];
    enum { PART_WHOLE, PART_SUM, PART_JOIN } step;
    loci_view values;                    /* of the rows' own keys */
};

/* A backward pass of many processes.  Its sums over rows go from one process to the next.  It works
 * on the items of one run of rows at a time and keeps their sums until the next chunk arrives.
 * Keys are present chunk by chunk, as in a part, or all of them. */
struct chain {
    bool on;
    char *items;                         /* of the current run, `item` bytes each */
    size_t item;
    char *parts;                         /* gradients of tables, of all items of all runs */
    size_t part;
    /* the same of the rotation, of all own key tiles: [B][own_tiles][key_heads] parts, in reals */
    void *tiles;
    ptrdiff_t own_tiles;
    ptrdiff_t oldest;                    /* the chunk after which rows without keys are complete */
    const int64_t *last;                 /* [B]: the position of the last of all rows */
    /* end_keys() is called for `count` present keys from number `own` on.  The process owns them,
     * and all their sums are complete. */
    ptrdiff_t own, count;
    void *key_state[MAX_ENCODINGS];      /* what end_keys() passes from older keys to newer ones */
};

struct stream {
    /* Where a pass goes in parts, Lk keys are present, from number `first` on of `keys`.  Its
     * sequences have all of them and begin at key -first.  Otherwise both are 0. */
    ptrdiff_t first, keys;
    /* The rows of an entry are some of those that see its keys: each run of them is a sequence.
     * NULL: rows follow one another. */
    const struct run *runs;
    ptrdiff_t run_count;
    const bool *apart;                   /* [B]: these runs are not runs of one call; NULL: none */
    bool here;                           /* where.k_pos has positions of the present keys only */
    struct part part;
    struct chain chain;
};

/* What an encoding adds so that its calls can be streamed.  Each hook may be NULL. */
struct encoding_stream {
    /* Validates a call over many processes; if keys come in parts, in place of accept(). */
    loci_status (*accept)(const struct call *, int enc);
    /* In place of begin(). */
    void (*begin)(struct call *, int enc);
    /* Sums that continue from the keys of one process to those of the next, oldest first: the bytes
     * of that state, which begin() finds in stream.part.restored; and saving it after these keys. */
    size_t (*state_size)(const struct call *, int enc);
    void   (*save_state)(const struct call *, int enc, void *to);
    /* In place of end_keys(), with a state from chunk to chunk; it is 0 before the oldest key. */
    void   (*end_keys)(struct call *, int enc);
    size_t (*key_state_size)(const struct call *, int enc);
    /* end() needs rows and keys of all processes: bytes by row of a head, or 0.  move_rows() copies
     * rows first .. of head number i of all entries from the scratch, or back into the scratch of a
     * call over all of them, which has a begin() and an end(). */
    size_t (*row_size)(const struct call *, int enc);
    void   (*move_rows)(const struct call *, int enc, bool query, ptrdiff_t i, ptrdiff_t first,
                        ptrdiff_t count, char *rows, bool back);
};

#endif
