/* SPDX-License-Identifier: MIT */
/* inside.h -- shared by model.c and pass.c (the Transformer and its passes), mix.c (attention and
 * its surroundings), encoding.c (plans and their tables) and decode.c. */
#ifndef LOCI_LAB_INSIDE_H
#define LOCI_LAB_INSIDE_H

#include "lab/model.h"
#include "loci/layers.h"

#include "util/error.h"

enum {
    LAB_ROWS = 96, /* rows per job: affects the bits */
    LAB_PE_TENSORS = 16,
    LAB_TAPE_UNITS = 16, /* units of the MLP that updates tape's states */
};

/* Linear maps of a layer's normed rows: queries, keys, values, inputs of the encoding, and in FoX
 * (Pro) the output's gate and shifts. */
enum { LAB_INPUTS = 12 }; /* at least the rules INPUT of list.h */
enum lab_map { MAP_Q, MAP_K, MAP_V, MAP_I, MAP_G = MAP_I + LAB_INPUTS, MAP_SK, MAP_SV, MAPS };
/* Other tensors of a layer.  The encoding's follow PE. */
enum lab_own {
    OWN_NORM1,
    OWN_NQ,
    OWN_NK,
    OWN_NO,
    OWN_WO,
    OWN_NORM2,
    OWN_W1,
    OWN_W2,
    OWN_BIAS, /* a bias by row and key */
    OWN_BI,
    OWN_TW = OWN_BI + LAB_INPUTS,
    OWN_TX,
    OWN_TUP,
    OWN_TDOWN,
    OWNS
};

/* How the model makes an input of an encoding; see inputs.c. */
enum lab_made {
    LAB_PROJECTION,
    LAB_SOFTPLUS,
    LAB_LOG_SIGMOID,
    LAB_STRENGTH,
    LAB_UNIT,
    LAB_POSITION,
    LAB_RUNNING
};
struct lab_rule {
    const char *encoding, *tensor;
    enum lab_made made;
    double start;      /* of b */
    double open;       /* of b in the arm's variant @open; 0: the rule has no such variant */
    const char *like;  /* the tensor that this one repeats, or NULL */
    const char *named; /* "f": the names are wf and bf; NULL: wi1 and bi1, wi2 ... */
};
struct lab_input {
    const struct lab_rule *rule;
    int heads, width;
    double *rate; /* [heads][width], of running sums */
    char *ones;   /* [heads][width]: what makes a norm one of length 1 */
};

/* Active plans, and the model tensors that they read. */
struct lab_encoding {
    loci_plan *attention, *embed; /* embed NULL: nothing is added */
    int tensors;                  /* of the attention plan */
    loci_tensor tensor[LAB_PE_TENSORS], added[LAB_PE_TENSORS];
    int input[LAB_PE_TENSORS]; /* tensor t is made by this rule of the model; -1: by none */
    int place[LAB_PE_TENSORS]; /* tensor t is the model's pe[place[t]], -1 an input, -2 extra[t] */
    void *extra[LAB_PE_TENSORS]; /* additional numbers of a variant */
    bool learns, sticks;         /* learns: has learned tensors; sticks: weights are sba's */
    int axes;
    ptrdiff_t reach;              /* largest distance of the tables */
    void **tables, *embed_tables; /* [layers], or one shared by all */
    bool ready;                   /* tables of fixed tensors are made only once */
    double *logn;                 /* [longest]: factors of queries; NULL: none */
};

/* A layer's saved values of a forward pass, up to the row capacity. */
struct lab_saved {
    char *x, *a, *map[MAPS], *o, *y, *b, *h, *u, *scale1, *scale2;
    char *lse; /* [heads][rows]; sba: the remainder */
    /* inputs by rules, [heads][rows][width]: projected, made, and repeated for more heads */
    char *projected[LAB_INPUTS], *made[LAB_INPUTS], *repeated[LAB_INPUTS];
    /* fox-pro: k shifted, and normed; v shifted, q normed; o before and after its norm */
    char *k, *kn, *v, *q, *o1, *o2;
    /* tape: states, their average, updated; the MLP; its gates */
    char *e, *ae, *e1, *m, *t;
};

/* decode.c: caches by layer, and the last keys and values that a shift has read. */
struct lab_decoder {
    struct loci_cache **cache;
    void **memory;
    char *last_k, *last_v;  /* [layers][dim] */
    double *sums;           /* [layers][LAB_INPUTS][dim]: running sums of inputs */
    struct lab_batch batch; /* of one row */
};

struct lab_model {
    struct lab_shape shape;
    struct lab_arm arm;
    const struct lab_engine *engine;
    const loci_host *host;
    loci_dtype dtype;
    size_t real;
    int head;         /* width of a head */
    ptrdiff_t stride; /* of logits */

    int tensors, tensor_capacity;
    struct lab_tensor *tensor;
    int embed, unembed, norm;               /* indices */
    int added[LAB_PE_TENSORS], added_count; /* of the encoding of embeddings */
    /* by layer; -1 if a layer has none */
    int (*map)[MAPS], (*own)[OWNS], (*pe)[LAB_PE_TENSORS];
    int pe_count;
    loci_tensor pe_tensor[LAB_PE_TENSORS]; /* as trained */
    double pe_low[LAB_PE_TENSORS];         /* what their numbers are kept at, at least */
    int inputs;
    struct lab_input input[LAB_INPUTS];
    double *bias; /* the table of a file, as it is there, or NULL */
    ptrdiff_t numbers;
    char *list[4];
    char *transposed; /* transposed matrices, at the same offsets */
    char *sums;       /* of the gradients of the portions so far */

    struct lab_encoding trained, changed;
    struct lab_encoding *view; /* one of the two */
    struct lab_view as;

    ptrdiff_t capacity, seq_capacity; /* allocated rows and sequences */
    bool saved_all;                   /* buffers of a backward pass are allocated */
    struct lab_saved *saved;          /* [layers] */
    /* rows after the layers; the scored ones, normed, and their logits */
    char *top, *picked, *top_scale, *ys, *logits;
    char *dx, *dy, *db, *dh, *d_o, *dmap[MAPS], *parts;
    /* inputs by rules: gradients by tensor, by input, and by the projection of one */
    char *dgiven[LAB_PE_TENSORS], *dmade[LAB_INPUTS], *dprojected;
    char *d1, *d2, *d3, *dv;              /* fox-pro: intermediate gradients */
    char *de, *de1, *de2, *dae, *dm, *dt; /* tape: likewise */
    ptrdiff_t *where;                     /* [rows]: row of the n-th logits */
    int32_t *asked, *said;
    int64_t *rows_asked; /* of a table that is added to embeddings */
    double *cost;
    double *coord, *factor;
    /* [longest][dim]: added rows, if none of them is learned */
    char *position_rows;
    void *work;
    size_t work_bytes, bytes;
    struct lab_decoder *decoder;   /* NULL: passes over whole sequences */
    double part[LAB_PARTS], since; /* seconds by part; start of the current part */
};

static inline char *lab_at(const struct lab_model *m, char *list, ptrdiff_t number)
{
    return list + (size_t)number * m->real;
}
static inline void *lab_weight(const struct lab_model *m, int tensor)
{
    return lab_at(m, m->list[LAB_WEIGHTS], m->tensor[tensor].at);
}
static inline void *lab_gradient(const struct lab_model *m, int tensor)
{
    return lab_at(m, m->list[LAB_GRADIENTS], m->tensor[tensor].at);
}

/* Element i of a list of the model's numbers. */
static inline double lab_get(const struct lab_model *m, const char *x, ptrdiff_t i)
{
    return m->shape.f64 ? ((const double *)x)[i] : (double)((const float *)x)[i];
}
static inline void lab_put(const struct lab_model *m, char *x, ptrdiff_t i, double value)
{
    if (m->shape.f64) ((double *)x)[i] = value;
    else ((float *)x)[i] = (float)value;
}
/* Number of elements of a tensor that is not an input of a call. */
static inline ptrdiff_t lab_count(const loci_tensor *t)
{
    ptrdiff_t n = 1;
    for (int i = 0; i < t->rank; i++) n *= t->shape[i];
    return n;
}

/* 64-byte aligned, zeroed; exits if out of memory */
void *lab_alloc(size_t count, size_t each);
void *lab_grow(struct lab_model *, void **block, size_t *bytes, size_t wanted);

/* Runs job(arg, 0 .. n - 1) on the host's threads. */
void lab_share(const struct lab_model *, int n, void (*job)(void *arg, int index), void *arg);

/* Allocates buffers for this number of rows, with gradients or without. */
void lab_make_rows(struct lab_model *, ptrdiff_t rows, bool backward);
/* Adds the time since the last call to this part.  LAB_PARTS: to none. */
void lab_spend(struct lab_model *, enum lab_part);

/* The table of a bias by row and key in a layer, from a row on, for a call. */
void lab_add_bias(const struct lab_model *, int layer, ptrdiff_t row, loci_call *);

/* ---- encoding.c ------------------------------------------------------------------------------ */

/* Opens the plans of a view, and binds their tensors to the model's by name. */
loci_status lab_encoding_open(struct lab_model *, struct lab_encoding *, struct lab_view,
                              loci_error *);
void lab_encoding_close(struct lab_model *, struct lab_encoding *);
/* Sets pointers in the order of the plan's tensors.  Inputs stay NULL. */
void lab_encoding_tensors(const struct lab_model *, const struct lab_encoding *, int layer,
                          enum lab_list, void **list);
/* Tables for distances up to `reach`, recomputed if tensors are learned. */
loci_status lab_encoding_prepare(struct lab_model *, ptrdiff_t reach, loci_error *);
/* x += p(pos) */
loci_status lab_encoding_embed(struct lab_model *, const struct lab_batch *, void *x, loci_error *);
loci_status lab_encoding_embed_backward(struct lab_model *, const struct lab_batch *, void *dx,
                                        loci_error *);

/* ---- inputs.c -------------------------------------------------------------------------------- */

/* Lists the inputs that the trained plan reads, as far as there are rules for them. */
void lab_inputs_open(struct lab_model *, const struct lab_encoding *);
/* The model's input that a tensor of a plan reads.  -1: there is no rule. */
int lab_input_of(const struct lab_model *, const loci_tensor *);
bool lab_input_shifts(const struct lab_input *); /* has a b */
/* The names of its W and b, such as "wf" and "bf". */
void lab_input_names(const struct lab_model *, int i, char w[16], char b[16]);
void lab_inputs_start(struct lab_model *); /* when their heads are known */
/* The input with a gate per head, or -1. */
int lab_input_gates(const struct lab_model *);
/* Numbers per token that a cache keeps of inputs. */
int lab_inputs_kept(const struct lab_model *);
/* From the maps of a layer to its inputs, and back from m->dgiven to the maps. */
loci_status lab_make_inputs(struct lab_model *, const struct lab_batch *, int layer, loci_error *);
loci_status lab_make_inputs_backward(struct lab_model *, const struct lab_batch *, int layer,
                                     loci_error *);
/* The numbers of a tensor in a layer that reads input i. */
void *lab_input(const struct lab_model *, int layer, const loci_tensor *, int i);
/* decode.c: the running sums of an input in a layer. */
double *lab_decode_sums(const struct lab_model *, int layer, int i);

/* ---- mix.c ----------------------------------------------------------------------------------- */

/* From the maps of a layer to o, and back from do (m->d_o) to the maps (m->dmap). */
loci_status lab_mix(struct lab_model *, const struct lab_batch *, int layer, loci_error *);
loci_status lab_mix_backward(struct lab_model *, const struct lab_batch *, int layer, loci_error *);
loci_status lab_decode_attend(struct lab_model *, int layer, loci_call *);
/* tape, after the MLP: the states of the next layer.  Backward, it adds to m->dm. */
loci_status lab_mix_after(struct lab_model *, const struct lab_batch *, int layer, loci_error *);
loci_status lab_mix_after_backward(struct lab_model *, const struct lab_batch *, int layer,
                                   loci_error *);

#endif
