/* SPDX-License-Identifier: MIT */
/* stream.h -- how a pass is streamed: keys are present a part at a time, and gradients pass from
 * process to process.  Only distributed/ fills in this struct, and only the few files that move
 * state read it.  All others use the functions of call.h.  In a call of one process everything here
 * is 0. */
#ifndef LOCI_CONTRACT_STREAM_H
#define LOCI_CONTRACT_STREAM_H

#include "contract/encoding.h"

/* Rows first .. first + count - 1 of a call.  The first one is at position `at`. */
struct run {
    ptrdiff_t first, count;
    int64_t at;
};

/* A forward pass in parts.  Each part has some chunks of keys, newest first.  Between parts the
 * state of the rows of each query tile is saved.  A pass row by row can do most of a part before
 * that state has arrived: PART_SUM sums chunks where that is possible, PART_JOIN does the rest. */
struct part {
    /* [tiles][heads] slots of `slot` bytes.  NULL: the pass is in one piece. */
    char *state;
    size_t slot;
    ptrdiff_t count;    /* keys that are present */
    bool opens, closes; /* this is the first part; the last part */
    /* INPUT tensors by key cover only the present keys, even if sums run over all keys.  The state
     * of older sums is in `restored`, by encoding (see struct encoding_stream). */
    bool partial_inputs;
    const void *restored[MAX_ENCODINGS];
    enum { PART_WHOLE, PART_SUM, PART_JOIN } step;
    loci_view values; /* of the rows' own keys */
};

/* A backward pass over many processes.  Sums over rows pass from one process to the next.  The pass
 * works on the items of one run of rows at a time and saves their sums until the next chunk
 * arrives.  Keys are present chunk by chunk, as in a part, or all at once. */
struct chain {
    bool on;
    char *items; /* of the current run, `item` bytes each */
    size_t item;
    char *parts; /* gradients of tables, of all items of all runs */
    size_t part;
    /* Gradients of the rotation's tables, of all own key tiles: [B][own_tiles][key_heads] parts, in
     * reals. */
    void *tiles;
    ptrdiff_t own_tiles;
    ptrdiff_t oldest;    /* rows without keys are complete after this chunk */
    const int64_t *last; /* [B]: the position of the last of all rows */
    /* end_keys() is called for `count` present keys, starting at number `own`.  The process owns
     * them, and all their sums are complete. */
    ptrdiff_t own, count;
    void *key_state[MAX_ENCODINGS]; /* what end_keys() passes from older keys to newer ones */
};

struct stream {
    /* If a pass is in parts, Lk of `keys` keys are present, starting at number `first`.  Its
     * sequences cover all keys and begin at key -first.  Otherwise both are 0. */
    ptrdiff_t first, keys;
    /* The rows of an entry are some of the rows that see its keys.  Each run of them is a sequence.
     * NULL: all rows are consecutive. */
    const struct run *runs;
    ptrdiff_t run_count;
    /* [B]: the call's rows do not have consecutive positions.  NULL: they do. */
    const bool *apart;
    bool here; /* where.k_pos covers only the present keys */
    struct part part;
    struct chain chain;
};

/* Hooks that make the calls of an encoding streamable.  Each may be NULL. */
struct encoding_stream {
    /* Validates a call over many processes.  If keys come in parts it replaces accept(). */
    loci_status (*accept)(const struct call *, int enc);
    /* Replaces begin(). */
    void (*begin)(struct call *, int enc);
    /* For sums that continue from the keys of one process to those of the next, oldest first.
     * state_size(): bytes of the state that begin() finds in stream.part.restored.  save_state():
     * saves it after these keys. */
    size_t (*state_size)(const struct call *, int enc);
    void (*save_state)(const struct call *, int enc, void *to);
    /* Replaces end_keys().  A state passes from chunk to chunk; it is 0 before the oldest key. */
    void (*end_keys)(struct call *, int enc);
    size_t (*key_state_size)(const struct call *, int enc);
    /* For an end() that needs rows and keys of all processes.  row_size(): bytes of a row of a
     * head, or 0.  move_rows() copies `count` rows, starting at `first`, of head i of all entries
     * from the scratch.  With `back` it copies into the scratch of a call over all rows, which runs
     * begin() and end(). */
    size_t (*row_size)(const struct call *, int enc);
    void (*move_rows)(const struct call *, int enc, bool query, ptrdiff_t i, ptrdiff_t first,
                      ptrdiff_t count, char *rows, bool back);
};

#endif
