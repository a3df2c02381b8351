/* SPDX-License-Identifier: MIT */
/* plan.h -- a plan: every decision about a problem.  It is constant after it is created. */
#ifndef LOCI_CONTRACT_PLAN_H
#define LOCI_CONTRACT_PLAN_H

#include "contract/encoding.h"

enum { PLAN_MAGIC = 0x6c6f7069 };
/* Keys of a tile and of a chunk.  They are part of the numeric contract. */
enum { KT = 64, CHUNK = 4096 };
/* Query rows of a wide tile and of a backward work item.  They are part of it, too. */
enum { ROWS = 64, ROW_CHUNK = 1024 };

struct engine;
struct loci_plan {
    unsigned magic;
    bool sized; /* structs of its calls must have their size set */
    loci_stage stage;
    int heads, kv_heads, group, dim, value_dim, model_dim;
    /* Channels of q and k in their products: dim, or more if the rotation widens rows. */
    int score_dim;
    /* Heads of the keys that scores read: heads if each query head rotates keys in its own way,
     * else kv_heads times key_forms. */
    int key_heads;
    /* Forms of a row and of a key that a rotation by distance makes (engine/rotation.h), else 1. */
    int row_forms, key_forms;
    loci_dtype dtype;
    loci_dtype k_dtype, v_dtype;          /* of keys and values where rows read them */
    size_t real;                          /* sizeof of a number in the engine: 4 or 8 */
    size_t stored;                        /* of q, o and all gradients: the same, or 2 */
    bool fast;                            /* wide forward passes use bf16 dot products */
    bool prefetch_streams;                /* decode prefetches rows that adjoin, too */
    bool f64, full, strict, keys_rotated; /* strict: pos_k < pos_q (sba without its own key) */
    bool values_in_keys;                  /* values are the first channels of the keys */
    bool states;                          /* one of the encodings has states */
    /* Values turn by the angles of the keys, without the factor of the rotation, and outputs back
     * by those of the rows.  If keys_rotated, values are given turned. */
    bool turns_values;
    /* INT64_MAX: open.  0: no keys on that side; `strict` also applies. */
    int64_t window_left, window_right;
    double scale;
    int encs;
    struct config enc[MAX_ENCODINGS];
    int uses;
    struct use use[MAX_USES];
    int rotate, mix, weight; /* index into use, or -1 (weight -1: softmax) */
    int moves;               /* likewise: the term whose rows change on their walk */
    int axes;                /* of the encoding that has coordinates, else 1 */
    struct tensors tensors;
    /* Tensors of encoding e: first_tensor[e] .. first_tensor[e + 1] - 1. */
    int first_tensor[MAX_ENCODINGS + 1];
    const struct engine *engine; /* chosen by ISA */
    char *text;
};

/* The number of the key head that query head h reads, the first of its forms; the kv head of key
 * head kh, and the first query head that reads it. */
static inline int key_head(const struct loci_plan *p, int h)
{
    return p->key_forms > 1 ? h / p->group * p->key_forms : h / (p->heads / p->key_heads);
}
static inline int kv_head_of(const struct loci_plan *p, int kh)
{
    return kh / (p->key_heads / p->kv_heads);
}
static inline int reader_of(const struct loci_plan *p, int kh)
{
    return p->key_forms > 1 ? kh / p->key_forms * p->group : kh * (p->heads / p->key_heads);
}
/* The form that a class of pairs reads of a key. */
static inline int key_form(const struct loci_plan *p, int class)
{
    return p->key_forms > 1 ? class : 0;
}

/* Channels of a key as it is stored: widened if it comes rotated. */
static inline int key_dim(const struct loci_plan *p)
{
    return p->keys_rotated ? p->score_dim : p->dim;
}

/* Are keys and values stored like queries? */
static inline bool one_dtype(const struct loci_plan *p)
{
    return p->k_dtype == p->dtype && p->v_dtype == p->dtype;
}
/* Have keys and values gradients, and may a rank pass them on? */
static inline bool plain_keys(const struct loci_plan *p)
{
    return one_dtype(p) && !p->values_in_keys;
}

/* Is dk summed in rows that are not the caller's: of other heads, or of another width? */
static inline bool sums_apart(const struct loci_plan *p)
{
    return p->key_heads != p->kv_heads || p->score_dim != key_dim(p);
}

static inline const void *layout_of(const struct loci_plan *p, int x) { return p->use[x].layout; }

/* Is tensor i an input that the rotation reads? */
static inline bool rotates_by(const struct loci_plan *p, int i)
{
    if (p->rotate < 0 || p->tensors.list[i].role != LOCI_INPUT) return false;
    const int e = p->use[p->rotate].enc;
    return i >= p->first_tensor[e] && i < p->first_tensor[e + 1];
}

/* Is tensor i an input by key, which has a number or more for each key? */
static inline bool is_by_key(const struct loci_plan *p, int i)
{
    const loci_tensor *t = &p->tensors.list[i];
    bool by_key = false;
    for (int k = 0; k < t->rank; k++) by_key |= t->shape[k] == LOCI_DIM_KEYS;
    return by_key && t->role == LOCI_INPUT;
}
/* Is it read only when keys are rotated, and do keys come rotated? */
static inline bool rotated_already(const struct loci_plan *p, int i)
{
    return p->keys_rotated && is_by_key(p, i) && rotates_by(p, i)
        && term_is(p->use[p->rotate].term, BY_INPUT);
}

/* loci_plan_create().  sized: structs passed with the plan must have their size set. */
loci_status loci_make_plan(loci_plan **, const loci_desc *, bool sized, loci_error *);
/* Must structs passed with this plan have their size set? */
static inline bool wants_sizes(const struct loci_plan *p)
{
    return p && p->magic == PLAN_MAGIC && p->sized;
}

/* Layout of the encoding's first term.  NULL: the encoding has no term. */
const void *loci_layout_of(const loci_plan *, int enc);
bool loci_plan_is(const loci_plan *, loci_stage); /* is it a valid plan of this stage? */

#endif
