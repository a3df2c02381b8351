/* SPDX-License-Identifier: MIT */
/* gguf.h -- shared by the files that read a GGUF file:
 *
 *     gguf.c           the container: keys, values, tensors' entries, all within the file's bounds
 *     gguf_model.c     decisions of the architecture, and what is read when a file is opened
 *     gguf_layer.c     one layer: the meaning of the keys for it */
#ifndef LOCI_MODELS_GGUF_H
#define LOCI_MODELS_GGUF_H

#include "models/model.h"

/* ---- The container --------------------------------------------------------------------------- */

/* The format's numbers for types of values. */
enum type { U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64, TYPES };

struct entry {
    char *name;
    enum type type; /* of an array: its values' */
    bool array;
    char *text;    /* a string that is not in an array */
    double *value; /* numbers */
    int count;     /* of stored numbers: a long array has none */
};
struct place {
    char *name;
    uint64_t count, at;
    uint32_t type;
}; /* at: in the file */

struct gguf {
    bool reversed; /* numbers are not in this machine's order */
    int entries, places;
    struct entry *entry;
    struct place *place;
}; /* by name */

/* Reads all but the tensors' data.  After a failure too, the caller frees what was read. */
loci_status loci_gguf_read(struct gguf *, const struct source *, loci_error *);
void loci_gguf_free_places(struct gguf *);
void loci_gguf_free(struct gguf *);

/* NULL: absent. */
const struct entry *loci_gguf_find(const struct gguf *, const char *key);
const struct place *loci_gguf_tensor(const struct gguf *, const char *name);

/* The numbers of a tensor that is stored as F32; the caller's buffer has
 * capacity for all of them. */
loci_status loci_gguf_floats(const struct gguf *, const struct source *, const struct place *,
                             float *to, loci_error *);

/* ---- The model ------------------------------------------------------------------------------- */

/* What layers do if they differ. */
enum layers {
    ALIKE,
    LOCAL_BASE,      /* sliding ones have their own base and no scaling */
    SLIDING_ROTATES, /* only sliding ones rotate, if there is a window */
    SOME_ROTATE,     /* all but the last of a period, or its first, rotate */
    FULL_SCALED,     /* the scaling is for full ones only */
    SOME_RECUR,
    SOME_CONVOLVE /* the others do not attend */
};

struct arch {
    const char *name;
    bool interleaved, spread; /* spread: sections interleaved */
    enum layers layers;
    int period;          /* the last of every period is full, or does not rotate */
    bool first;          /* the first of the period instead */
    bool last;           /* the last channels of the head rotate */
    const char *instead; /* no rotation: the encoding */
    bool alibi_key;      /* attention.max_alibi_bias, or none */
    bool finetuned;      /* rope.scaling.finetuned says if layers rotate */
    bool both;           /* half of the window is ahead */
    int window;          /* attention.sliding_window of a file without it */
    double scale;        /* of q.k, if the head does not decide it */
    double cap;          /* attn_logit_softcapping of a file without it */
};

/* Divisors of the pairs' frequencies, in files that do not leave them to a rule. */
enum factors { FREQS, SHORT, LONG, FACTORS };
#define STILL (double)1e30f /* divides the frequency of a pair that must not rotate */
extern const char *const loci_gguf_factor_names[FACTORS];

struct gguf_model {
    struct gguf file;
    const struct arch *arch;
    int layers;
    double factors[FACTORS][MAX_PAIRS_READ];
    int factor_count[FACTORS]; /* 0: no such tensor */
    bool sinks[MAX_LAYERS];    /* layers with a tensor blk.N.attn_sinks.weight */
};

/* "ARCHITECTURE.name"; NULL: absent. */
const struct entry *loci_gguf_setting(const struct gguf_model *, const char *name);
/* The number of a setting, or of one layer if it is a list; if absent, *to is unchanged. */
loci_status loci_gguf_number(const struct gguf_model *, const char *name, int layer, double low,
                             double high, double *to, loci_error *);
loci_status loci_gguf_whole(const struct gguf_model *, const char *name, int layer, int low,
                            int high, int *to, loci_error *);

/* The functions of struct loci_model. */
loci_status loci_gguf_layer(const struct loci_model *, int layer, double length, struct settings *,
                            loci_error *);

#endif
