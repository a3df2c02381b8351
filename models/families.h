/* SPDX-License-Identifier: MIT */
/* families.h -- settings that a config.json leaves to the class of its model_type. */
#ifndef LOCI_MODELS_FAMILIES_H
#define LOCI_MODELS_FAMILIES_H

#include <stdbool.h>

/* The kind of a layer.  Files name more kinds, whose words come first in config_layer.c. */
enum kind { FULL, SLIDING, CHUNKED, WITHOUT };

/* The kind of each layer if the file has no list; n is the family's period. */
enum pattern {
    ALL_FULL,
    LAST_FULL,      /* the last of every n is full, the others slide */
    FIRST_FULL,     /* the first */
    LATE_FULL,      /* the last, counted from the model's end */
    LAST_CHUNKLESS, /* the last is full, the others see chunks */
    LAST_ATTENDS,   /* the last is full, the others have linear attention */
    LISTED_ATTEND,  /* those in a list of the file are full; others only mix */
    ONLY_LISTED     /* no rule: the file must list them */
};

/* Which layers rotate. */
enum rotates {
    ALL_ROTATE,
    SLIDING_ROTATES, /* only sliding layers */
    /* only sliding layers, but all if the file has no window */
    SLIDING_OR_OPEN,
    /* no_rope_layers: 1 rotates, 0 does not; without it the last of every n does not */
    LISTED_ROTATE,
    /* layer_rope_theta: a base for each layer, 0 does not rotate; without it all do */
    BASES_ROTATE,
    /* of that list only zeros count; without it the last of n, counted from the end, does not */
    LATE_ZEROS_STILL,
    /* sliding layers, and a dense prefix without a pattern of its own (cohere2_moe) */
    PREFIX_ROTATES,
    /* all; rope_scaling_layers lists those that are scaled */
    SCALED_ROTATE,
    NULL_STILL,     /* kinds whose dictionary is null do not */
    NULL_BASE_STILL /* none where the base is null */
};

/* Where sliding layers find their own base in files without a dictionary for each kind of layer:
 * nowhere; rope_local_base_freq; local_rope_theta next to global_rope_theta; nowhere, but the
 * scaling is for full layers only. */
enum local { SAME_BASE, LOCAL_FREQ, GLOBAL_LOCAL, FULL_SCALED };

/* The factor of q.k. */
enum scale {
    ROOT, /* 1/sqrt(head_dim) */
    ONE,
    PRE_ATTENTION, /* 1/sqrt(query_pre_attn_scalar) */
    MULTIPLIER,    /* attention_multiplier */
    QK_FACTOR,     /* qk_scale_factor/sqrt(head_dim) */
    HALF_HEAD      /* 1/sqrt(head_dim/2) */
};

enum sinks { NO_SINKS, SINKS, SLIDING_SINKS };
/* IF_ASKED: use_sliding_window; HALVED: of local_attention */
enum windowed { BY_KIND, EVERYWHERE, IF_ASKED, HALVED };
enum own { COMMON, BLOOM, MPT, CHATGLM, FALCON, DBRX, ROFORMER, DEEPSEEK_V4 };

/* Numbers and words that a file may give have these defaults. */
struct family {
    const char *type;                /* "_text" at the end of the file's word is ignored */
    const char *instead;             /* this family never rotates: its encoding */
    const char *only_if, *only_word; /* it rotates only if this key is true, or this word */
    bool interleaved;
    double base;                 /* 0: 10000 */
    double partial;              /* share that rotates, for any file; 0: all */
    int head_dim, full_head_dim; /* 0: hidden_size / heads; of full layers, if wider */
    const char *rope;            /* rope_parameters */
    enum pattern pattern;
    int period;
    enum rotates rotates;
    enum local local;
    double original;   /* original_max_position_embeddings; 0: none */
    bool mla_scale;    /* mscale_all_dim multiplies the scores' scale, squared */
    bool rotary_dim;   /* that key applies */
    bool rotary_words; /* of words next to the dictionary only rotary_... apply */
    bool width_rules;  /* head_dim is hidden_size / heads, for any file */
    bool head_end;     /* the last channels of the head rotate */
    int window;        /* sliding_window */
    enum windowed windowed;
    bool both; /* keys ahead are visible: the window counts one side's */
    enum scale scale;
    double scale_of; /* the number that `scale` refers to */
    double cap;      /* attn_logit_softcapping */
    enum sinks sinks;
    int sections[3];  /* mrope_section */
    bool spread;      /* sections interleaved, for any file */
    enum own own;     /* own words, see read_own() in config.c */
    const char *note; /* a note on what the encoding cannot express */
};

/* NULL: unknown. */
const struct family *loci_find_family(const char *type);

#endif
