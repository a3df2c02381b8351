/* SPDX-License-Identifier: MIT */
/* model.h -- the one model of the lab; the encoding is the only difference between arms.
 *
 *     x = E[token]                                  rows of an embedding encoding are added here
 *     for each layer: a = norm(x) g1                q, k, v = a Wq, a Wk, a Wv   x += attention Wo
 *                     b = norm(x) g2                x += gelu(b W1) W2
 *     logits = (norm(x) g) U
 *
 * Sequences of a batch follow one another without padding, so a row is a token.  Every tensor has
 * its values, gradients and AdamW's means at the same offset of four lists.  Matrices are
 * [in][out], with rows padded to whole LAB_PADs.  The padding behind `cols` is 0 and stays so. */
#ifndef LOCI_LAB_MODEL_H
#define LOCI_LAB_MODEL_H

#include "lab/arm.h"
#include "lab/engine.h"

enum lab_learned {
    LAB_REFUSE,
    LAB_CLAMP,
    LAB_WRAP,
    LAB_RANDOM
}; /* rows beyond the table of `learned` */

struct lab_shape {
    const char *arm;
    /* ffn 0: 4 dim, or the width that gives fox-pro the same size */
    int layers, dim, heads, kv_heads, ffn;
    int vocabulary, length, longest; /* of training; including tests */
    enum lab_learned learned;
    double std, embed_std; /* initial, of matrices and of embeddings; 0: 0.02 */
    /* trained in the form of this variant, which must not have fewer learned tensors */
    enum lab_change change;
    double times;
    bool f64;
    const char *isa; /* NULL: the best */
};

struct lab_tensor {
    char name[64];
    ptrdiff_t rows, cols, stride; /* stride: numbers from row to row */
    int rank;                     /* as a reader sees it */
    ptrdiff_t shape[5];
    ptrdiff_t at;       /* its first number in the lists */
    bool decays, fixed; /* fixed: not trained */
    bool encoding;      /* belongs to the encoding, not to every arm */
};

/* Concatenated sequences.  Rows without a question have -1 in target. */
struct lab_batch {
    int sequences;
    ptrdiff_t rows;
    int64_t *starts; /* [sequences + 1] */
    int32_t *token, *target;
    int64_t *pos, *seg; /* [rows]; index of the sequence */
    ptrdiff_t scored;
    ptrdiff_t capacity_rows;
    int capacity_sequences;
};
/* Allocates the arrays, or exits. */
void lab_batch_reserve(struct lab_batch *, int sequences, ptrdiff_t rows);
void lab_batch_free(struct lab_batch *);

/* The form in which a trained model runs: as trained, or a variant. */
struct lab_view {
    enum lab_change change;
    double times; /* length over the trained one */
    bool cached;  /* keys are rotated when appended to a cache */
};

struct lab_model;
loci_status lab_model_open(struct lab_model **, const struct lab_shape *, const loci_host *,
                           loci_error *);
void lab_model_close(struct lab_model *);
/* Numbers depend on the seed and the tensor's name. */
void lab_model_init(struct lab_model *, uint64_t seed);

const struct lab_arm *lab_model_arm(const struct lab_model *);
const struct lab_shape *lab_model_shape(const struct lab_model *); /* ffn and kv_heads filled in */
const struct lab_engine *lab_model_engine(const struct lab_model *);
const loci_host *lab_model_host(const struct lab_model *);
int lab_model_tensors(const struct lab_model *, const struct lab_tensor **list);
enum lab_list { LAB_WEIGHTS, LAB_GRADIENTS, LAB_MEANS, LAB_SQUARES };
void *lab_model_list(struct lab_model *, enum lab_list);
ptrdiff_t lab_model_numbers(const struct lab_model *); /* of each list */
/* The count of learned numbers: of all, or of the encoding. */
int64_t lab_model_params(const struct lab_model *, bool encoding);
size_t lab_model_bytes(const struct lab_model *);
/* Bytes per token that a decode stores. */
double lab_model_cache_bytes(const struct lab_model *);

/* Selects the form in which the model runs from now on.  Fails if the arm has no such variant. */
loci_status lab_model_view(struct lab_model *, struct lab_view, loci_error *);

/* Loss of each row in nats, 0 for rows without a question, and the likeliest token (NULL: not
 * needed). all: every row has logits.  If loss and best are NULL, lab_model_logits() has the logits
 * until the next pass, [rows][stride].  Otherwise computing the loss overwrites them. */
loci_status lab_model_forward(struct lab_model *, const struct lab_batch *, bool all, double *loss,
                              int32_t *best, loci_error *);
/* Attention weights of the last forward pass in a layer, [heads][rows][rows], of a batch of one
 * sequence.  In float, or in double for a model of doubles. */
loci_status lab_model_attention(struct lab_model *, const struct lab_batch *, int layer,
                                void *weights, loci_error *);
/* Numbers by head and row of the last forward pass, [heads][rows]: fox's gates, or sba's
 * remainder. */
enum lab_gates { LAB_NO_GATES, LAB_FORGET, LAB_REMAINDER };
enum lab_gates lab_model_has_gates(const struct lab_model *);
void lab_model_gates(const struct lab_model *, const struct lab_batch *, int layer, double *gates);
/* Tensors of the encoding in the attention of one layer. */
int lab_model_encoding(const struct lab_model *, const loci_tensor **list);
/* A forward pass and the gradients of the mean loss, which is returned in *mean. */
loci_status lab_model_backward(struct lab_model *, const struct lab_batch *, double *mean,
                               loci_error *);
const void *lab_model_logits(const struct lab_model *, ptrdiff_t *stride);
/* Seconds of passes and steps so far, by part.  The caller may reset them to 0. */
enum lab_part { LAB_LAYERS, LAB_MIXING, LAB_LOSSES, LAB_UPDATE, LAB_PARTS };
double *lab_model_parts(struct lab_model *);
/* A step of AdamW. step counts from 1.  Returns the norm of the gradients before clipping. */
double lab_model_step(struct lab_model *, int step, double rate);

#endif
