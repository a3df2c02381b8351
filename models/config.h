/* SPDX-License-Identifier: MIT */
/* config.h -- shared by the files that read a config.json:
 *
 *     config.c            the file: which part counts, and its settings for all layers
 *     config_dict.c       rope_parameters and rope_scaling: their keys, and which one is a layer's
 *     config_layer.c      one layer: its kind, whether it rotates, its head, window and scale
 *     config_rotation.c   how a layer rotates: base, channels, sections, scaling */
#ifndef LOCI_MODELS_CONFIG_H
#define LOCI_MODELS_CONFIG_H

#include "models/families.h"
#include "models/json.h"
#include "models/model.h"

struct config {
    json_t *root;
    json_t *usual;      /* the class's own rope_parameters, for files without */
    const json_t *text; /* the part about the language model */
    const struct family *family;
    int layers, heads, hidden, head_dim;
    double trained, base;      /* base: of the class, which a file of CHATGLM changes */
    bool alibi, rotates;       /* rotates: some layer may */
    const json_t *layer_types; /* block_types, if shorter, repeat */
    const char *note;
};

/* One layer: its kind, the file's word for it, its object in per_layer_config or NULL. */
struct layer {
    int index;
    enum kind kind;
    const char *word;
    const json_t *over;
};

/* ---- A dictionary ---------------------------------------------------------------------------- */

enum type { DEFAULT, LINEAR, DYNAMIC, NTK, YARN, LONGROPE, LLAMA3, PROPORTIONAL };
enum key {
    K_TYPE,
    K_OLD_TYPE,
    K_THETA,
    K_PARTIAL,
    K_ORIGINAL,
    K_MAX,
    K_FACTOR,
    K_BETA_FAST,
    K_BETA_SLOW,
    K_TRUNCATE,
    K_EXTRAPOLATION,
    K_MSCALE,
    K_MSCALE_ALL,
    K_LOW,
    K_HIGH,
    K_MIXED_B,
    K_ALPHA,
    K_ATTENTION,
    K_SHORT,
    K_LONG,
    K_SHORT_MSCALE,
    K_LONG_MSCALE,
    K_SECTION,
    K_SPREAD,
    K_SPREAD_TOO,
    K_FINETUNED,
    K_BETA,
    KEYS
};
struct dict {
    const char *where;  /* its name, for sentences */
    const json_t *json; /* NULL if the file has no such object */
    enum type type;
    const char *scaling; /* the type in the words of the grammar; NULL: none */
    double value[KEYS];  /* NaN: absent; flags 0 or 1 */
};

/* The dictionary that applies to a layer, read and checked. */
loci_status loci_dict_find(const struct config *, const struct layer *, struct dict *,
                           loci_error *);
/* Removes everything from a dictionary except its base. */
loci_status loci_dict_unscale(struct dict *, loci_error *);
/* True if there is one dictionary per kind of layer instead of one for all. */
bool loci_dict_several(const json_t *);
/* True if a key has a number and the type of this dictionary reads it. */
bool loci_dict_heeds(const struct dict *, enum key);
/* `count` numbers above 0; sections may be 0. */
loci_status loci_dict_list(const struct dict *, enum key, int count, double *to, loci_error *);

/* ---- A layer --------------------------------------------------------------------------------- */

/* The meaning of a word of layer_types, and the current word for an outdated one. */
struct layer_word {
    const char *word;
    enum kind kind;
    const char *now;
};
/* NULL: unknown. */
const struct layer_word *loci_layer_word(const char *word);

/* The functions of struct loci_model. */
loci_status loci_config_layer(const struct loci_model *, int layer, double length,
                              struct settings *, loci_error *);

/* Fills the settings of a layer that rotates, except its head, which is in t->head_dim and
 * t->heads.  own_base is the layer's own base, or 0.  `rope`: the last channels of the head
 * rotate, if the file counts them separately; 0 if it gives a share of the head instead. */
loci_status loci_config_rotation(const struct config *, const struct layer *, const struct dict *,
                                 double own_base, int rope, double length, struct settings *t,
                                 loci_error *);

#endif
