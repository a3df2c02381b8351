/* SPDX-License-Identifier: MIT */
/* shape.h -- what a program is compiled for.  On a device these are constants in the lines before
 * the source; on the host they are numbers of the call. */
#ifndef LOCI_GPU_KERNELS_SHAPE_H
#define LOCI_GPU_KERNELS_SHAPE_H

#include "kernels/rooms.h"

enum { CHUNK = 4096 }; /* keys: docs/bits.md */

/* Distances of pairs: of 32 bits where the host has seen that they are small, because conversions
 * of 64 bits are slow. */
#if defined LOCI_NEAR && LOCI_NEAR
typedef int32_t distance_t;
#else
typedef int64_t distance_t;
#endif

/* One group of threads at work: a tile of a head. */
struct block {
    struct arrays at;
    const struct params *p;
    int x; /* the number of the group */
    SHARED float *room;
    /* scan: numbers of the tile's pairs in shared memory, of key scan_key and row scan_row
     * first. */
    SHARED float *scan;
    int scan_key, scan_row, scan_by_key, scan_by_row;
};

/* The rotation of the plan, and term u. */
#define TURN (*(const GLOBAL struct gpu_turn *)(b.at.lists + b.p->turn))
#define USE(u) (((const GLOBAL struct gpu_use *)(b.at.lists + b.p->use))[u])
#define MIX (*(const GLOBAL struct gpu_mix *)(b.at.lists + b.p->mix))
#define STICK_OF (*(const GLOBAL struct gpu_stick *)(b.at.lists + b.p->stick))

#ifdef LOCI_DIM
enum { DIM = LOCI_DIM, VALUE_DIM = LOCI_VALUE_DIM, ROWS = LOCI_ROWS, USES = LOCI_USES };
enum { LISTED = LOCI_LISTED, HAS_SINK = LOCI_SINK, MASK_KIND = LOCI_MASK_KIND };
enum { Q_TYPE = LOCI_Q_TYPE, K_TYPE = LOCI_K_TYPE, V_TYPE = LOCI_V_TYPE, O_TYPE = LOCI_O_TYPE };
enum { PARTS = LOCI_PARTS, DROPOUT = LOCI_DROPOUT, ROTATION = LOCI_ROTATION, FADES = LOCI_FADES };
enum { FORMS = LOCI_FORMS, STICK = LOCI_STICK, SCAN = LOCI_SCAN };
enum { VECTORS = LOCI_VECTORS, VALUES = LOCI_VALUES };
enum { ROOMY = LOCI_ROOMY };
enum { K_PAGED = LOCI_K_PAGED, V_PAGED = LOCI_V_PAGED, LANES = LOCI_LANES };
#define TERM_OF(u) LOCI_TERM(u)
#define MULTIPLIES(u) LOCI_MULTIPLIES(u)
#define MOST_USES (USES > 0 ? USES : 1)
#else
#define DIM (b.p->dim)
#define VALUE_DIM (b.p->value_dim)
#define ROWS (b.p->rows)
#define USES (b.p->uses)
#define LISTED (b.p->listed)
#define HAS_SINK (b.p->has_sink)
#define Q_TYPE (b.p->q_type)
#define O_TYPE (b.p->o_type)
#define PARTS (b.p->parts)
#define ROOMY (b.p->roomy)
#define ROTATION (b.p->rotation)
#define FADES (b.p->fades)
#define FORMS (b.p->forms)
#define STICK (b.p->stick >= 0)
#define SCAN (b.p->scan)
#define VECTORS (b.p->vectors)
#define VALUES (b.p->values)
#define DROPOUT (b.p->dropout)
#define K_PAGED (b.p->k_paged)
#define V_PAGED (b.p->v_paged)
#define LANES (b.p->lanes)
#define K_TYPE (b.p->k_type)
#define V_TYPE (b.p->v_type)
#define MASK_KIND (b.p->mask_kind)
#define TERM_OF(u) (USE(u).term)
#define MULTIPLIES(u) (USE(u).multiplies)
#define MOST_USES GPU_USES
#endif

/* Do states rotate rows? */
#define STATES (ROTATION == TURN_STATES)

/* Wall and path come first and have phases of their own, and cape has passes of its own.  With them
 * a program for all plans would take long to compile, so each has one, and all other plans share
 * one. */
#ifdef LOCI_FIRST_TERM
#define FIRST_TERM LOCI_FIRST_TERM
#else
#define FIRST_TERM (USES > 0 ? TERM_OF(0) : -1)
#endif
#ifdef LOCI_MIXES
#define MIXES LOCI_MIXES
#else
#define MIXES (b.p->mix >= 0)
#endif

#endif
