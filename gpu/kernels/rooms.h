/* SPDX-License-Identifier: MIT */
/* rooms.h -- sizes that host and device share: tiles, and what is where in shared memory. */
#ifndef LOCI_GPU_KERNELS_ROOMS_H
#define LOCI_GPU_KERNELS_ROOMS_H

#include "kernels/arguments.h"

/* Keys of a tile, rows of a tile in the backward pass, rows that are rotated together. */
enum { KEYS = 64, TILE_ROWS = 64, ROTATED_ROWS = 16, VECTOR_ROWS = 16 };
/* Rows whose keys the threads of a group count together. */
enum { COUNTED_ROWS = 16 };
/* The probes: PROBE_ROUNDS * PROBE_CHAINS multiply-adds, and PROBE_COPIES * 16 bytes a thread. */
enum { PROBE_ROUNDS = 1024, PROBE_CHAINS = 16, PROBE_COPIES = 16 };

/* Rows of channels in shared memory are padded to fours; where they are read by fours down a
 * column, by four more, so that keys next to each other are in different banks. */
#define FOURS(n) (((n) + 3) / 4 * 4)
#define WIDER(n) (FOURS(n) + 4)
DEV int most(int a, int b) { return a > b ? a : b; }
DEV int least(int a, int b) { return a < b ? a : b; }

/* Shared memory of a group, in floats: host and device compute it alike.  Where there is room for
 * both, one side of a tile is copied while the other one is multiplied.  roomy: which passes have
 * the memory for that.  A tight backward pass does not hold the side that it stays with, either:
 * keys and values share a place, or rows and dO, and are loaded again for each tile of the other
 * side. */
enum { ROOMY_FORWARD = 1, ROOMY_BACKWARD = 2, TIGHT_BACKWARD = 4 };
DEV int both_fit(int roomy, int dim, int value_dim, int most_width)
{
    return roomy && dim <= most_width && value_dim <= most_width;
}
struct forward_room {
    int q, k, v, s, m, l, alpha, tops, all_m, all_l, a, c, seen, flag, size;
};
DEV struct forward_room forward_room(int rows, int dim, int value_dim, int roomy)
{
    struct forward_room r;
    const int k = KEYS * WIDER(dim), v = KEYS * FOURS(value_dim);
    r.q = 0;
    r.k = r.q + FOURS(dim) * rows;
    r.v = both_fit(roomy & ROOMY_FORWARD, dim, value_dim, 64) ? r.k + k : r.k;
    r.s = both_fit(roomy & ROOMY_FORWARD, dim, value_dim, 64) ? r.v + v : r.k + most(k, v);
    r.m = r.s + KEYS * rows;
    r.l = r.m + rows;
    r.alpha = r.l + rows;
    r.tops = r.alpha + rows; /* the largest scores of the parts of a row */
    r.all_m = r.tops + 4 * rows;
    r.all_l = r.all_m + rows;
    r.a = r.all_l + rows;
    r.c = r.a + rows;
    r.seen = r.c + rows; /* bits of 16 keys in each of 4 words */
    r.flag = r.seen + 4 * rows;
    r.size = r.flag + 4;
    return r;
}

/* Linear attention: chains of sums over channels, and shared memory of a group of rows, or of keys,
 * with two numbers for each pair; keys after which a sum is no longer recent. */
enum { CHAINS = 16, LINEAR_SPAN = 1024 };
struct linear_room {
    int p, dp, den, flag, size;
};
DEV struct linear_room linear_room(void)
{
    struct linear_room r;
    r.p = 0;
    r.dp = r.p + KEYS * TILE_ROWS;
    r.den = r.dp + KEYS * TILE_ROWS;
    r.flag = r.den + TILE_ROWS;
    r.size = r.flag + 4;
    return r;
}

/* decode_scores and decode_values: lanes are rows of heads that share keys; decode_join: channels,
 * and chunks side by side.  Of rows that are wider than MOST_WHOLE a slice is in shared memory at a
 * time. */
enum { MOST_LANES = 16, JOIN_WIDTH = 32, JOIN_CHUNKS = 4, MOST_WHOLE = 256, SLICE = 128 };
DEV int slice_of(int width) { return width <= MOST_WHOLE ? width : SLICE; }
DEV int slices_of(int width) { return width <= MOST_WHOLE ? 1 : (width + SLICE - 1) / SLICE; }
struct decode_room {
    int q, x, s, m, base, flag, size;
};
DEV struct decode_room decode_room(int lanes, int dim, int value_dim)
{
    struct decode_room r;
    r.q = 0;
    r.x = r.q + lanes * FOURS(dim);
    r.s = r.x + KEYS * most(WIDER(slice_of(dim)), FOURS(slice_of(value_dim)));
    r.m = r.s + FOURS(lanes * (KEYS + 1));
    r.base = r.m + 128;
    r.flag = r.base + MOST_LANES;
    r.size = r.flag + 4;
    return r;
}
struct join_room {
    int o, all_o, m, l, next_m, next_l, all_m, all_l, size;
};
DEV struct join_room join_room(void)
{
    struct join_room r;
    r.o = 0;
    r.all_o = r.o + JOIN_CHUNKS * JOIN_WIDTH;
    r.m = r.all_o + JOIN_WIDTH;
    r.l = r.m + JOIN_CHUNKS;
    r.next_m = r.l + JOIN_CHUNKS;
    r.next_l = r.next_m + JOIN_WIDTH;
    r.all_m = r.next_l + JOIN_WIDTH;
    r.all_l = r.all_m + 4;
    r.size = r.all_l + 4;
    return r;
}

/* backward_keys */
struct keys_room {
    int k, v, q, dout, p, ds, lse, delta, flag, size;
};
DEV struct keys_room keys_room(int dim, int value_dim, int roomy)
{
    struct keys_room r;
    const int q = TILE_ROWS * WIDER(dim), dout = TILE_ROWS * WIDER(value_dim),
              both = both_fit(roomy & ROOMY_BACKWARD, dim, value_dim, 128);
    r.k = 0;
    r.v = roomy & TIGHT_BACKWARD ? r.k : r.k + FOURS(dim) * KEYS;
    r.q = (roomy & TIGHT_BACKWARD ? r.k + FOURS(most(dim, value_dim)) * KEYS
                                  : r.v + FOURS(value_dim) * KEYS);
    r.dout = both ? r.q + q : r.q;
    r.p = both ? r.dout + dout : r.q + most(q, dout);
    r.ds = both ? r.p + TILE_ROWS * KEYS : r.p;
    r.lse = r.ds + TILE_ROWS * KEYS;
    r.delta = r.lse + TILE_ROWS;
    r.flag = r.delta + TILE_ROWS;
    r.size = r.flag + 4;
    return r;
}
/* backward_inputs; part: of each use and key */
struct inputs_room {
    int k, v, q, dout, g, lse, delta, part, size;
};
DEV struct inputs_room inputs_room(int dim, int value_dim, int roomy)
{
    struct inputs_room r;
    const int q = TILE_ROWS * WIDER(dim), dout = TILE_ROWS * WIDER(value_dim),
              both = both_fit(roomy & ROOMY_BACKWARD, dim, value_dim, 128);
    r.k = 0;
    r.v = roomy & TIGHT_BACKWARD ? r.k : r.k + FOURS(dim) * KEYS;
    r.q = (roomy & TIGHT_BACKWARD ? r.k + FOURS(most(dim, value_dim)) * KEYS
                                  : r.v + FOURS(value_dim) * KEYS);
    r.dout = both ? r.q + q : r.q;
    r.g = both ? r.dout + dout : r.q + most(q, dout);
    r.lse = r.g + TILE_ROWS * KEYS;
    r.delta = r.lse + TILE_ROWS;
    r.part = r.delta + TILE_ROWS;
    r.size = r.part + GPU_USES * KEYS;
    return r;
}

/* Backward, behind the others: tiles of a stick (dp, which becomes ds, and sigmoids), then those of
 * a scan.  Forward, a scan has its tiles there, too. */
enum { STICK_ROOM = 2 * KEYS * TILE_ROWS, SCAN_TILES = 3 };
DEV int scan_room(int rows) { return SCAN_TILES * KEYS * most(rows, TILE_ROWS); }
/* What rows that fade carry from tile to tile, behind a stick. */
DEV int carry_room(int rows, int dim) { return FOURS(dim) * rows; }
/* path: keys that rows meet together.  Floats of rows that walk, and of the kernel that makes what
 * they read of a tile: kernels/reflections.h. */
enum { REFLECTED_TOGETHER = 16 };
DEV int walk_room_size(int rows, int dim)
{
    return (FOURS(dim) + 2 * REFLECTED_TOGETHER + 1) * rows;
}
/* reflect_rows: rows, keys, scores, then those of rows that walk. */
struct reflected_room {
    int k, s, walk, size;
};
DEV struct reflected_room reflected_room(int rows, int dim)
{
    struct reflected_room r;
    r.k = FOURS(dim) * rows;
    r.s = r.k + KEYS * WIDER(dim);
    r.walk = r.s + KEYS * rows;
    r.size = r.walk + walk_room_size(rows, dim);
    return r;
}
DEV int reflect_room_size(int dim)
{
    const int few = REFLECTED_TOGETHER;
    return 2 * (few * (KEYS + few + dim) + KEYS * dim) + few * KEYS + KEYS;
}

/* sum_own_tiles: products of pairs, and keys that act on rows.  sum_matrices: rows and gradients.
 * unreflect_nodes: gradients of keys.  unreflect_tiles: products of keys, doubles of a strip. */
DEV int own_room_size(void) { return 2 * KEYS * KEYS + TILE_ROWS; }
DEV int matrix_room_size(int dim)
{
    return TILE_ROWS * KEYS + (TILE_ROWS + 1) * WIDER(dim) + 4;
}
DEV int unreflect_room_size(int dim)
{
    return KEYS * KEYS + 4 * REFLECTED_TOGETHER * dim + 4 * KEYS;
}

/* cape: a number of each head for each thread, and what unmix_pairs keeps of the pairs of a key. */
enum { MIX_PASSING = 16, MIX_SPREAD = 128 };
DEV int mix_room(int heads, int threads) { return heads * threads; }
DEV int unmix_room(int inputs) { return (2 * MIX_PASSING + inputs) * TILE_ROWS; }

/* backward_rows */
struct rows_room {
    int q, dout, k, v, s, lse, delta, sums, folds, slopes, flag, size;
};
DEV struct rows_room rows_room(int dim, int value_dim, int roomy)
{
    struct rows_room r;
    const int k = KEYS * WIDER(dim), v = KEYS * WIDER(value_dim),
              both = both_fit(roomy & ROOMY_BACKWARD, dim, value_dim, 128);
    r.q = 0;
    r.dout = roomy & TIGHT_BACKWARD ? r.q : r.q + FOURS(dim) * TILE_ROWS;
    r.k = (roomy & TIGHT_BACKWARD ? r.q + FOURS(most(dim, value_dim)) * TILE_ROWS
                                  : r.dout + FOURS(value_dim) * TILE_ROWS);
    r.v = both ? r.k + k : r.k;
    r.s = both ? r.v + v : r.k + most(k, v);
    r.lse = r.s + KEYS * TILE_ROWS;
    r.delta = r.lse + TILE_ROWS;
    r.sums = r.delta + TILE_ROWS; /* by distance */
    r.folds = r.sums + 128;
    r.slopes = r.folds + 128; /* of the chunk and of all: behind, ahead */
    r.flag = r.slopes + 4 * TILE_ROWS;
    r.size = r.flag + 4;
    return r;
}

enum { ITEM = 1024 }; /* rows: docs/bits.md */
/* Chunks of keys of a sequence, and blocks of 64 distances that an item of its rows can have in
 * one. */
#define ROLL_CHUNKS(nk) (((nk) + CHUNK - 1) / CHUNK)
#define ROLL_BLOCKS(nq, nk)                                                                        \
    ((((nq) < ITEM ? (nq) : ITEM) + ((nk) < CHUNK ? (nk) : CHUNK) + 4 * KEYS - 1) / KEYS)

#endif
