/* SPDX-License-Identifier: MIT */
/* families.h -- what a config.json leaves to the class of its model_type. */
#ifndef LOCI_MODELS_FAMILIES_H
#define LOCI_MODELS_FAMILIES_H

#include <stdbool.h>

/* What a layer does.  Files name more kinds, whose words come first in config_layer.c. */
enum kind { FULL, SLIDING, CHUNKED, WITHOUT };

/* Of which kind layers are where the file has no list of them; n is the family's period. */
enum pattern {
    ALL_FULL,
    LAST_FULL,                           /* the last of every n is full, the others slide */
    FIRST_FULL,                          /* the first */
    LATE_FULL,                           /* the last, counted from the model's end */
    LAST_CHUNKLESS,                      /* the last is full, the others see chunks */
    LAST_ATTENDS,                        /* the last is full, the others have linear attention */
    LISTED_ATTEND,                       /* those in a list of the file are full, others mix only */
    ONLY_LISTED                          /* no rule: the file must list them */
};

/* Which layers rotate. */
enum rotates {
    ALL_ROTATE,
    SLIDING_ROTATES,                        /* only sliding layers */
    SLIDING_OR_OPEN,                     /* only those, but all where the file has no window */
    /* no_rope_layers: 1 rotates, 0 does not; without it the last of every n does not */
    LISTED_ROTATE,
    /* layer_rope_theta: a base for each layer, 0 does not rotate; without it all do */
    BASES_ROTATE,
    /* of that list only zeros count; without it the last of n, counted from the end, does not */
    LATE_ZEROS_STILL,
    /* sliding layers, and a dense prefix without a pattern of its own (cohere2_moe) */
    PREFIX_ROTATES,
    SCALED_ROTATE,                         /* all; rope_scaling_layers lists those that are scaled */
    NULL_STILL,                          /* kinds whose dictionary is null do not */
    NULL_BASE_STILL                      /* none where the base is null */
};

/* Where sliding layers find a base of their own in files without a dictionary for each kind of
 * layer: nowhere; rope_local_base_freq; local_rope_theta beside global_rope_theta; nowhere, but the
 * scaling is for full layers only. */
enum local { SAME_BASE, LOCAL_FREQ, GLOBAL_LOCAL, FULL_SCALED };

/* What multiplies q.k. */
enum scale {
    ROOT,                                /* 1/sqrt(head_dim) */
    ONE,
    PRE_ATTENTION,                       /* 1/sqrt(query_pre_attn_scalar) */
    MULTIPLIER,                          /* attention_multiplier */
    QK_FACTOR,                           /* qk_scale_factor/sqrt(head_dim) */
    HALF_HEAD                            /* 1/sqrt(head_dim/2) */
};

enum sinks { NO_SINKS, SINKS, SLIDING_SINKS };
/* IF_ASKED: use_sliding_window; HALVED: of local_attention */
enum windowed { BY_KIND, EVERYWHERE, IF_ASKED, HALVED };
enum own { COMMON, BLOOM, MPT, CHATGLM, FALCON, DBRX, ROFORMER, DEEPSEEK_V4 };

/* Of numbers and words that a file may state, these are those of a file that does not. */
struct family {
    const char *type;                    /* "_text" at the end of the file's word does not count */
    const char *instead;                 /* this family never rotates: its encoding */
    const char *only_if, *only_word;     /* it rotates only if this key is true, or this word */
    bool interleaved;
    double base;                         /* 0: 10000 */
    double partial;                      /* share that turns; 0: all, whatever files say */
    int head_dim, full_head_dim;         /* 0: hidden_size / heads; of full layers, if wider */
    const char *rope;                    /* rope_parameters */
    enum pattern pattern;
    int period;
    enum rotates rotates;
    enum local local;
    double original;                     /* original_max_position_embeddings; 0: none */
    bool mla_scale;                      /* mscale_all_dim multiplies the scores' scale, squared */
    bool rotary_dim;                     /* that key counts */
    bool rotary_words;                   /* of words beside the dictionary rotary_... count only */
    bool width_rules;                    /* head_dim is hidden_size / heads, whatever files say */
    bool head_end;                       /* the channels that turn are the head's last */
    int window;                          /* sliding_window */
    enum windowed windowed;
    bool both;                           /* keys ahead are seen: the window counts one side's */
    enum scale scale;
    double scale_of;                     /* the number that `scale` asks for */
    double cap;                          /* attn_logit_softcapping */
    enum sinks sinks;
    int sections[3];                     /* mrope_section */
    bool spread;                         /* sections interleaved, whatever files say */
    enum own own;                        /* words of their own, see read_own() in config.c */
    const char *note;                    /* what the encoding cannot say */
};

/* NULL: not known here. */
const struct family *loci_find_family(const char *type);

#endif
