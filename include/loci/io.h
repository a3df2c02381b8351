/* SPDX-License-Identifier: MIT */
/* loci-io: what a model's own files say about how it turns queries and keys.
 *
 *     loci_model *model;
 *     loci_rope rope;
 *     if (loci_model_open(&model, "config.json", &e)) ...     // Hugging Face's, or a GGUF file
 *     if (loci_model_rope(model, layer, 0, &rope, &e)) ...    // rope.encoding is for loci_desc
 *     loci_rope_free(&rope);
 *     loci_model_close(model);
 *
 * Nothing in a file is believed: sizes are compared with what is there before anything is
 * allocated, numbers are finite and in range, duplicate keys, unknown scaling types and unknown
 * keys beside them are errors.  Files that a model type decides the meaning of are read only if
 * that type is known.  Files are read, not mapped: one that shrinks meanwhile is an error, and what
 * is no regular file is refused before it is opened.  Link with -lloci-io -lloci. */
#ifndef LOCI_LOCI_IO_H
#define LOCI_LOCI_IO_H

#include "loci/loci.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct loci_model loci_model;

/* On failure *model is NULL, and the error of loci_model_open() begins with the path.  A model is
 * constant once open; its bytes may go.  A NULL model has 0 layers and the type "". */
LOCI_API loci_status loci_model_open(loci_model **model, const char *path, loci_error *);
LOCI_API loci_status loci_model_parse(loci_model **model, const void *bytes, size_t size,
                                      loci_error *);
LOCI_API void        loci_model_close(loci_model *);
LOCI_API int         loci_model_layers(const loci_model *);
/* the file's word for its family: "llama" */
LOCI_API const char *loci_model_type(const loci_model *);

typedef struct {
    char *encoding;                      /* text that rotates exactly so; "nope" or a bias where a
                                            layer does not rotate */
    char *attention;                     /* that and what else scores and weights have:
                                            "rope:...+softcap:cap=50+sink" */
    int rotates;                         /* 0: all up to `sections` is zero */
    int interleaved;                     /* pairs (2t, 2t + 1), else (t, t + dim/2) */
    int head_dim, dim, offset;           /* channels of a head, how many turn, the first of them */
    int heads;                           /* of queries; 0: not in the file */
    double base;                         /* the model's own, before any scaling */
    double *frequency;                   /* dim/2 radians per position, after scaling */
    double attention_factor;             /* on turned q and k */
    double softmax_factor;               /* on the scale of the scores, and part of `scale` */
    int sections[3], spread;             /* mrope: pairs of time, height, width (0 0 0: none),
                                            order=interleaved */
    const char *layer;                   /* "full_attention", "sliding_attention", ... in the words
                                            of config.json */
    const char *scaling;                 /* a name of the grammar, "none" included */
    double trained_length;               /* positions that training had seen before the scaling; 0:
                                            not in the file */
    double warmth, warm_length, warm_shift;  /* queries times 1 + warmth ln(1 + floor((pos + shift)
                                                / length)); 0: not */

    /* What users of the rotation need beside it. */
    double scale;                        /* of q.k, for loci_desc.scale; 0: the file does not
                                            tell */
    double softcap;                      /* scores stay below it; 0: none */
    int sink;                            /* 1: a learned logit per head joins the softmax */
    int64_t window;                      /* keys that a row sees, itself included: |pos_q - pos_k| <
                                            window; 0: all */
    int64_t chunk;                       /* a row sees keys of its own chunk of so many positions;
                                            0: of all */
    int values;                          /* 1: values are turned too, as keys are, which the text
                                            does not say */
    double *slopes;                      /* `heads` numbers for "alibi:slopes=given", else NULL */
    const char *note;                    /* one sentence about what no field says; NULL: nothing */
} loci_rope;

/* `length` is that of the context, for scalings that ask for it; 0: the trained one.
 * loci_rope_free(NULL) does nothing. */
LOCI_API loci_status loci_model_rope(const loci_model *, int layer, double length, loci_rope *,
                                     loci_error *);
LOCI_API void        loci_rope_free(loci_rope *);

#ifdef __cplusplus
}
#endif
#endif
