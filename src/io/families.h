/* SPDX-License-Identifier: MIT */
/* families.h -- what a config.json leaves to the class of its model_type. */
#ifndef LOCI_IO_FAMILIES_H
#define LOCI_IO_FAMILIES_H

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
    LAST_ATTENDS,                        /* the last is full, the others have linear attention and
                                            no positions */
    LISTED_ATTEND,                       /* those in a list of the file are full, the others mix
                                            without attention */
    ONLY_LISTED                          /* no rule: the file must list them */
};

/* Which layers rotate. */
enum turns {
    ALL_TURN,
    SLIDING_TURN,                        /* only sliding layers */
    SLIDING_OR_OPEN,                     /* only sliding layers, but all of them where the file has
                                            no window */
    LISTED_TURN,                         /* no_rope_layers: 1 rotates, 0 does not; else the last of
                                            n does not */
    BASES_TURN,                          /* layer_rope_theta: a base for each layer, 0 does not
                                            rotate; else all do */
    LATE_ZEROS_STILL,                    /* of that list only zeros count; else the last of n,
                                            counted from the end, does not */
    PREFIX_TURN,                         /* sliding layers, and a dense prefix without a pattern of
                                            its own (cohere2_moe) */
    SCALED_TURN,                         /* all; rope_scaling_layers lists those whose scaling
                                            counts */
    NULL_STILL,                          /* kinds whose dictionary is null do not */
    NULL_BASE_STILL                      /* none where the base is null */
};

/* Where sliding layers find a base of their own in files without a dictionary for each kind of
 * layer. */
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

struct family {
    const char *type;                    /* a "_text" at the end of the file's word does not
                                            count */
    const char *instead;                 /* this family never rotates: the encoding that it has */
    const char *only_if, *only_word;     /* it rotates only if this key is true, or this word */
    bool interleaved;
    double base;                         /* 0: 10000 */
    double partial;                      /* share of a head that turns; 0: all of it, whatever the
                                            file says */
    int head_dim, full_head_dim;         /* 0: hidden_size / heads; of full layers, if theirs is
                                            wider */
    const char *rope;                    /* rope_parameters of a file that has none */
    enum pattern pattern;
    int period;
    enum turns turns;
    enum local local;
    double original;                     /* original_max_position_embeddings of a file that has
                                            none; 0: no default */
    bool mla_scale;                      /* mscale_all_dim multiplies the scale of the scores,
                                            squared */
    bool rotary_dim;                     /* that key counts */
    bool rotary_words;                   /* beside the dictionary only rotary_pct and
                                            rotary_emb_base count */
    bool width_rules;                    /* head_dim is hidden_size / heads, whatever the file
                                            says */
    bool head_end;                       /* the channels that turn are the head's last */
    int window;                          /* sliding_window of a file that has none */
    enum windowed windowed;
    bool both;                           /* keys ahead are seen: sliding_window counts the
                                            neighbours on one side */
    enum scale scale;
    double scale_of;                     /* the number that `scale` asks for, if the file has
                                            none */
    double cap;                          /* attn_logit_softcapping of a file that has none */
    enum sinks sinks;
    int sections[3];                     /* mrope_section of a file that has none */
    bool spread;                         /* sections interleaved, whatever the file says */
    enum own own;                        /* files in words of their own, see read_own() */
    const char *note;                    /* what the encoding cannot say */
};

/* NULL: not known here. */
const struct family *loci_find_family(const char *type);

#endif
