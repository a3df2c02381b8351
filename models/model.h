/* SPDX-License-Identifier: MIT */
/* model.h -- between the formats and loci_rope: the settings of one layer in a file. */
#ifndef LOCI_MODELS_MODEL_H
#define LOCI_MODELS_MODEL_H

#include "models/io.h"
#include "loci/io.h"

enum {
    MAX_LAYERS = 4096,
    MAX_HEAD = 1024,
    MAX_PAIRS_READ = MAX_HEAD / 2,
    MAX_SETTINGS = 16,
    MAX_TYPE = 64
};

struct settings {
    const char *instead; /* without rotation: the encoding, "nope" or a bias */
    double slope_scale;  /* ALiBi's slopes in bfloat16 times this; 0: not listed */
    const char *layer;   /* its kind, in the words of config.json */
    bool interleaved, spread;
    int heads, head_dim, dim, offset, sections[3];
    double base;
    const char *scaling; /* a name of the grammar; NULL: none */
    /* of the scaling, in the order of the text */
    struct {
        const char *name;
        double value;
    } option[MAX_SETTINGS];
    int options;
    int factors; /* longrope: numbers in each list */
    double short_factor[MAX_PAIRS_READ], long_factor[MAX_PAIRS_READ];
    /* factor of the attention factor that the scaling's rule gives */
    double times;
    double stretch; /* ratio of dim to the divisor of the exponents */
    double softmax_factor, trained_length, warmth, warm_length, warm_shift;
    double scale, cap; /* of q.k without softmax_factor; 0: unknown, none */
    int window, chunk;
    int dual_chunk, dual_local; /* dca: its options; 0: none */
    /* values: they rotate; turns_back: and outputs rotate back */
    bool sink, values, turns_back;
    const char *note;
};

struct loci_model {
    int layers;
    char type[MAX_TYPE];
    loci_status (*read)(const struct loci_model *, int layer, double length, struct settings *,
                        loci_error *);
    void (*close)(struct loci_model *);
    void *file; /* the format's own */
};

/* Fill all of a model.  A failed call stores nothing. */
loci_status loci_config_open(struct loci_model *, const struct source *, loci_error *);
loci_status loci_gguf_open(struct loci_model *, const struct source *, loci_error *);

static inline void set_option(struct settings *s, const char *name, double value)
{
    s->option[s->options].name = name;
    s->option[s->options++].value = value;
}

/* Rejects a head that is wider than this reader and the lists of settings allow. */
loci_status loci_check_head(const struct settings *, loci_error *);

/* YaRN's growth of the scores with the logarithm of the factor. */
double loci_yarn_mscale(double factor, double c);

#endif
