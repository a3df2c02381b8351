/* SPDX-License-Identifier: MIT */
/* plan.h -- a plan: every decision about a problem, made once, and constant from then on. */
#ifndef LOCI_CONTRACT_PLAN_H
#define LOCI_CONTRACT_PLAN_H

#include "contract/encoding.h"

enum { PLAN_MAGIC = 0x6c6f7069 };
/* keys of a tile and of a chunk: part of the numeric contract */
enum { KT = 64, CHUNK = 4096 };
/* query rows of a wide tile and of a backward work item: likewise */
enum { ROWS = 64, ROW_CHUNK = 1024 };

struct engine;
struct loci_plan {
    unsigned magic;
    bool sized;                          /* structs of its calls must have their size */
    loci_stage stage;
    int heads, kv_heads, group, dim, value_dim, model_dim;
    int key_heads;                       /* of keys as scores read them: heads where each turns them
                                            its own way, else kv_heads */
    loci_dtype dtype;
    size_t real;                         /* sizeof of a number in the engine: 4 or 8 */
    size_t stored;                       /* of q, k, v, o and their gradients: the same, or 2 */
    bool fast;                           /* wide forward passes multiply by bf16 dot products */
    bool f64, full, strict, keys_rotated;      /* strict: pos_k < pos_q (sba without its own key) */
    bool states;                         /* one of the encodings has them */
    int64_t window_left, window_right;   /* INT64_MAX = open; nothing on that side = 0 or, strict,
                                            as it falls */
    double scale;
    int encs;
    struct config enc[MAX_ENCODINGS];
    int uses;
    struct use use[MAX_USES];
    int rotate, mix, weight;             /* index into use, or -1 (weight -1: softmax) */
    int axes;                            /* of the encoding that has coordinates; 1 otherwise */
    struct tensors tensors;
    int first_tensor[MAX_ENCODINGS + 1]; /* encoding e owns tensors first[e] .. first[e+1]-1 */
    const struct engine *engine;         /* of the ISA */
    char *text;
};

/* Which of the keys, as scores read them, a head reads; and of which kv head they are. */
static inline int key_head(const struct loci_plan *p, int h)
{
    return h / (p->heads / p->key_heads);
}
static inline int kv_head_of(const struct loci_plan *p, int kh)
{
    return kh / (p->key_heads / p->kv_heads);
}

static inline const void *shape_of(const struct loci_plan *p, int x) { return p->use[x].shape; }

/* loci_plan_create().  sized: structs that come with the plan must have their size. */
loci_status loci_make_plan(loci_plan **, const loci_desc *, bool sized, loci_error *);
/* Must structs that come with this plan have their size? */
static inline bool wants_sizes(const struct loci_plan *p)
{
    return p && p->magic == PLAN_MAGIC && p->sized;
}

/* of the encoding's first term; NULL: it has none */
const void *loci_shape_of(const loci_plan *, int enc);
bool loci_plan_is(const loci_plan *, loci_stage);      /* a plan, and of this stage */

#endif
