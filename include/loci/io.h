/* SPDX-License-Identifier: MIT */
/* loci/io.h: how a model rotates queries and keys, from the model's own files.
 *
 *     loci_model *model;
 *     loci_rope rope;
 *     if (loci_model_open(&model, "config.json", &e)) ...     // of Hugging Face, or a GGUF file
 *     if (loci_model_rope(model, layer, 0, &rope, &e)) ...    // rope.encoding is for loci_desc
 *     loci_rope_free(&rope);
 *     loci_model_close(model);
 *
 * File contents are not trusted.  Sizes are compared with the size of the file before memory is
 * allocated.  Numbers must be finite and in range.  Duplicate keys, unknown scaling types and
 * unknown keys of a scaling are errors.  If the meaning of a key depends on the model type, an
 * unknown type is an error.
 *
 * Files are read and not mapped; a file that shrinks during the read is an error.  Only regular
 * files are opened.  Link with -lloci-io -lloci. */
#ifndef LOCI_LOCI_IO_H
#define LOCI_LOCI_IO_H

#include "loci/loci.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct loci_model loci_model;

/* On failure *model is NULL; the sentence of loci_model_open() starts with the path.  An open model
 * is constant, and the bytes may be freed.  A NULL model has 0 layers and the type "". */
LOCI_API loci_status loci_model_open(loci_model **model, const char *path, loci_error *);
LOCI_API loci_status loci_model_parse(loci_model **model, const void *bytes, size_t size,
                                      loci_error *);
LOCI_API void loci_model_close(loci_model *);
LOCI_API int loci_model_layers(const loci_model *);
/* The family as the file names it, such as "llama". */
LOCI_API const char *loci_model_type(const loci_model *);

/* The rotation of a layer, and what else its attention needs. */
typedef struct {
    /* The rotation as an encoding text.  "nope" or a bias if the layer does not rotate. */
    char *encoding;
    /* The same with everything else that changes scores and weights, such as
     * "rope:...+softcap:cap=50+sink". */
    char *attention;
    /* 0: the layer does not rotate, and all fields up to `sections` are zero. */
    int rotates;
    /* The pairing.  1: channels 2t and 2t + 1; 0: t and t + dim/2. */
    int interleaved;
    /* Channels of a head, how many of them are rotated, and the first that is. */
    int head_dim, dim, offset;
    /* Query heads; 0 if the file does not state them. */
    int heads;
    /* Of the model, before any scaling. */
    double base;
    /* dim/2 radians per position, after scaling. */
    double *frequency;
    /* Factor of rotated q and k. */
    double attention_factor;
    /* Factor that the scaling puts on scores; `scale` includes it. */
    double softmax_factor;
    /* mrope: pairs of time, height and width (0 0 0: none); spread 1 is order=interleaved. */
    int sections[3], spread;
    /* "full_attention", "sliding_attention", ..., as config.json names them. */
    const char *layer;
    /* The option `scaling` of rope, or "none". */
    const char *scaling;
    /* Context length of the training before scaling; 0 if the file does not state it. */
    double trained_length;
    /* Queries are multiplied by 1 + warmth ln(1 + floor((pos + warm_shift) / warm_length)).
     * warmth 0: they are not. */
    double warmth, warm_length, warm_shift;

    /* Factor of q.k, for loci_desc.scale; 0 if the file does not state it. */
    double scale;
    /* Cap of the scores; 0: none. */
    double softcap;
    /* 1: the softmax has a learned logit per head, the encoding `sink`. */
    int sink;
    /* Keys that a row sees, its own included: |pos_q - pos_k| < window; 0: all.  loci_window()
     * converts it. */
    int64_t window;
    /* A row sees the keys of its own chunk of this many positions; 0: no chunks. */
    int64_t chunk;
    /* 1: values are rotated as keys are.  If outputs are rotated back, the text has values=1; if
     * not, as in RoFormer, it cannot state that. */
    int values;
    /* `heads` numbers for "alibi:slopes=given", else NULL. */
    double *slopes;
    /* One sentence about what no field can state, or NULL. */
    const char *note;
} loci_rope;

/* length: context length for scalings that need one; 0 = the trained one.  loci_rope_free(NULL)
 * does nothing. */
LOCI_API loci_status loci_model_rope(const loci_model *, int layer, double length, loci_rope *,
                                     loci_error *);
LOCI_API void loci_rope_free(loci_rope *);

#ifdef __cplusplus
}
#endif
#endif
