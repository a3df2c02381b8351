/* SPDX-License-Identifier: MIT */
/* problem.h -- declarations shared by the files of the reference: the problem, row by row, and
 * how an encoding is defined. */
#ifndef LOCI_REFERENCE_PROBLEM_H
#define LOCI_REFERENCE_PROBLEM_H

#include <float.h>

#include "contract/plan.h"
#include "reference/angle.h"
#include "reference/reference.h"

/* One call.  b and i are the batch entry and the query row of the current contents of
 * the arrays.  Numbers of keys that the row does not see are never read: every loop over
 * keys tests seen[j] first. */
struct problem {
    const loci_plan *plan;
    const loci_call *call;
    const void *const *tensors;
    const struct definition *def[MAX_ENCODINGS];
    ptrdiff_t B, Lq, Lk;
    int H, Hkv, Hk, D, Dv; /* Hk: heads of the rotated keys, of one form */
    int Dr;                /* channels of q and k after rotation */
    int form;              /* the form that a rotation by distance makes */
    bool backward;
    double *dtensor[MAX_TENSORS]; /* sums, for all tensors; NULL in a forward pass */

    ptrdiff_t b;
    /* [forms][H][Lq][Dr] and [forms][Hk][Lk][Dr] after rotation, [Hkv][Lk][Dv], turned if values
     * turn */
    double *q, *k, *v;
    double *dq, *dk, *dv;

    ptrdiff_t i;
    /* [Lk], of the current head; a mix has the same in all */
    bool *seen;
    bool *sees;      /* [H][Lk] */
    double *product; /* [H][Lk]: q.k of rotated rows, or what an encoding makes of them */
    /* [H][Lk], as are the next two lines: score() adds to these */
    double *raw, *log_mul, *add;
    double *before[MAX_ENCODINGS]; /* by encoding that bends: the sum that is added before it */
    /* flat = mul scale (q.k + raw); a, after all bends; s, the final score; w, the weight */
    double *flat, *a, *s, *w;
    /* dropout: 0 or 1 / (1 - p) of each weight, and weights before it; w has those after it */
    double *keep, *whole;
    double *dadd, *draw, *dlog_mul, *da, *ds, *dw;
    double *lse, *rem, *dlse, *drem; /* [H] */
    double *keys_seen;               /* [H]: how many keys the row sees */
    double *o, *dout;                /* [H][Dv]; of turned values, if values turn */
    double *ae, *dae;                /* [H][D] */
    /* as long as the largest of Lk, Dr, Dv and every extent of a tensor */
    double *scratch[3];
    double *rotate_scratch; /* memory that the rotation asked for */
    /* by encoding: numbers of recent distances, and by slot the distance, 1 further from 0 */
    double *wave[MAX_ENCODINGS], *wave_of[MAX_ENCODINGS];
    struct sizes *budget; /* NULL: not wanted */
};

/* An encoding, by the places where it enters attention; NULL elsewhere.  e is its number in the
 * plan.  Each backward function follows its forward and adds to dq, dk, dv and dtensor(). */
struct definition {
    const char *name;
    /* Errors that only a call can have; tested before any output is written. */
    loci_status (*check)(const struct problem *, int e, loci_error *);
    /* One row of q or k: y from x; dx from dy.  y and dy have Dr numbers, x and dx have D. */
    void (*rotate)(const struct problem *, int e, loci_which, int head, ptrdiff_t row,
                   const double *x, double *y);
    void (*rotate_backward)(const struct problem *, int e, loci_which, int head, ptrdiff_t row,
                            const double *x, const double *dy, double *dx);
    /* A rotation by distance makes several forms of rows and keys.  The class of a pair selects
     * the form of the row, and if keys have several, that of the key.  0: one. */
    int row_forms, key_forms;
    int (*class_of)(const struct problem *, int e, int64_t q, int64_t k);
    ptrdiff_t (*scratch_size)(const struct problem *, int e); /* doubles to rotate a row */
    /* Turns a row of values, or with sign -1 back, by the angles of rotate() and without a factor;
     * of outputs, if it is a row of queries.  turn_gradient() adds that of the angles to
     * dtensor(), from a row x and its gradient d: x_a d_b - x_b d_a, the same for turned ones. */
    void (*turn)(const struct problem *, int e, loci_which, int head, ptrdiff_t row, double sign,
                 const double *x, double *y);
    void (*turn_gradient)(const struct problem *, int e, loci_which, int head, ptrdiff_t row,
                          const double *x, const double *d);
    /* The rest of the rotation for a row of keys from a cache, in place; it is its own adjoint. */
    void (*cached)(const struct problem *, int e, ptrdiff_t row, double *x);
    /* Row i of head h: its products with all keys, instead of q.k.  The backward adds to dq, dk
     * and dtensor(), from the gradients of products. */
    void (*products)(struct problem *, int e, int h, double *product);
    void (*products_backward)(struct problem *, int e, int h, const double *dproduct);
    /* Numbers that depend on the distance alone.  waves() returns their count. */
    ptrdiff_t (*waves)(const struct problem *, int e);
    void (*wave)(const struct problem *, int e, double distance, double *numbers);
    /* Row i of head h: adds to raw, log_mul, add.  Backward reads draw, dlog_mul, dadd. */
    void (*score)(struct problem *, int e, int h),
        (*score_backward)(struct problem *, int e, int h);
    /* The score of row i of head h from x, the score before, and the slope there.  The backward
     * adds to dtensor(), from the gradient by the result. */
    double (*bend)(const struct problem *, int e, int h, double x, double *slope);
    void (*bend_backward)(const struct problem *, int e, int h, double x, double dy);
    /* Row i of all heads: s from a and add.  Backward: da and dadd from ds. */
    void (*mix)(struct problem *, int e), (*mix_backward)(struct problem *, int e);
    /* w and rem from s, instead of softmax.  Backward: ds from dw and drem. */
    void (*weights_of_row)(struct problem *, int e, int h),
        (*weigh_backward)(struct problem *, int e, int h);
    /* A logit in the sum of the softmax, without a value; dlogit is its gradient. */
    double (*sink)(const struct problem *, int e, int h);
    void (*sink_backward)(const struct problem *, int e, int h, double dlogit);
    /* Adds to o and ae; backward adds to dw, drem. */
    void (*value)(struct problem *, int e, int h),
        (*value_backward)(struct problem *, int e, int h);
    /* Adds the row of a position to y; backward if something is learned. */
    void (*embed)(const struct problem *, int e, int64_t pos, double *y);
    void (*embed_backward)(const struct problem *, int e, int64_t pos, const double *dy);

    /* Properties that its budget of rounding (budget.h) cannot find by derivatives; most
     * encodings have none.  over_row: a score contains a sum over keys of the row.  matrices:
     * all numbers of a matrix that rotates a block are learned together.  cancels: the factors
     * that rotate a row may be smaller than their summands.  factors: true if there are factors
     * of scores, of which small ones may be 0. */
    bool over_row, matrices, cancels;
    bool (*factors)(const struct problem *, int e);
    /* Instead of derivatives of score(): adds to sizes of scores, or, from sizes of the
     * gradients of the added numbers, to those of gradients. */
    void (*score_sizes)(struct problem *, int e, int h, double *score, double *back);
    /* Sizes of products(), or from sizes of their gradients those of what they are made of. */
    void (*product_sizes)(struct problem *, int e, int h, double *size, const double *by);
    /* Sizes of a learned number of rotate() besides its derivatives, of a row and
     * the sizes of its gradients. */
    void (*turn_sizes)(struct problem *, int e, int kv, const double *x, const double *by);
    /* If rows widen, all that derivatives of a linear rotation would say: the sizes of the numbers
     * of a row, [Dr]; and from those of their gradients the sizes of dx, [D], and of learned
     * numbers. */
    void (*row_sizes)(const struct problem *, int e, loci_which, int head, ptrdiff_t row,
                      const double *x, double *size);
    void (*row_back_sizes)(struct problem *, int e, loci_which, int head, ptrdiff_t row,
                           const double *x, const double *by, double *to);
};

#define DEFINITION(name) extern const struct definition loci_define_##name;
#include "reference/list.h"
#undef DEFINITION

/* Checks the conditions of every call and finds the definitions.  rows: the only symbolic extent
 * of inputs that are needed, or 0, and then all are. */
loci_status loci_reference_open(struct problem *, const loci_plan *, const void *const *tensors,
                                ptrdiff_t rows, const loci_call *);
/* Places dtensor[] at `base`, or with NULL only measures.  Returns the number of doubles. */
ptrdiff_t loci_reference_dtensors(struct problem *, double *base);
/* The encoding that rotates vectors, or -1; and the number of doubles that it needs. */
int loci_reference_rotation(const struct problem *);
/* The encoding that turns values with the keys, or -1. */
int loci_reference_turning(const struct problem *);
/* The encoding that makes products of its own, or -1. */
int loci_reference_walking(const struct problem *);
ptrdiff_t loci_reference_scratch(const struct problem *);
/* What wave() of an encoding says of a distance.  Valid until the next call. */
const double *loci_reference_wave(const struct problem *, int e, double distance);
/* Copies the sums to the pointers that are not NULL. */
void loci_reference_give(const struct problem *, void *const *dtensors);

/* ---- For the budget -------------------------------------------------------------------------- */

/* The encodings that bend a score, in order: what each of them reads, and its slope there. */
struct bends {
    int n, enc[MAX_ENCODINGS];
    double x[MAX_ENCODINGS], slope[MAX_ENCODINGS];
};
/* From attention.c: a from flat and the sums added before each bend; the mask's addend; the
 * encodings with a sink or weight rule, or -1; ds of head h from dw, dlse and drem. */
double loci_reference_bend(const struct problem *, int h, ptrdiff_t j, struct bends *);
double loci_reference_added(const struct problem *, int h, ptrdiff_t j);
int loci_reference_sinking(const struct problem *), loci_reference_weights(const struct problem *);
void loci_reference_weights_backward(struct problem *, int h);

/* From budget.c: called around a call, and in it after the rows of a batch entry are rotated,
 * after row i, and after all rows. */
loci_status loci_budget_open(struct problem *, const struct loci_budget *);
void loci_budget_close(struct problem *);
void loci_budget_begin(struct problem *), loci_budget_row(struct problem *),
    loci_budget_entry(struct problem *);

/* ---- Options and tensors by name ------------------------------------------------------------- */

/* The value of an option by its name; by_rule, if the plan left it to a rule or the
 * encoding has no option of that name.  By name, so that the reference shares no enum
 * with the encodings' files. */
static inline double option(const struct problem *p, int e, const char *name, double by_rule)
{
    const struct config *cfg = &p->plan->enc[e];
    for (int i = 0; cfg->pe->opts[i].name; i++)
        if (strcmp(cfg->pe->opts[i].name, name) == 0)
            return isnan(cfg->opt[i]) ? by_rule : cfg->opt[i];
    return by_rule;
}

/* -1: this plan has none */
static inline int tensor_number(const struct problem *p, int e, const char *name)
{
    for (int t = p->plan->first_tensor[e]; t < p->plan->first_tensor[e + 1]; t++)
        if (strcmp(p->plan->tensors.list[t].name, name) == 0) return t;
    return -1;
}
static inline const loci_tensor *form(const struct problem *p, int e, const char *name)
{
    return &p->plan->tensors.list[tensor_number(p, e, name)];
}
/* NULL: this plan has none */
static inline const double *tensor(const struct problem *p, int e, const char *name)
{
    int t = tensor_number(p, e, name);
    return t < 0 ? NULL : p->tensors[t];
}
static inline double *dtensor(const struct problem *p, int e, const char *name)
{
    int t = tensor_number(p, e, name);
    return t < 0 ? NULL : p->dtensor[t];
}
/* Where head h begins in a tensor that has one table for all heads (rank 2), or
 * a table per head (rank 3). */
static inline ptrdiff_t table_of_head(const loci_tensor *t, int h)
{
    return t->rank == 3 ? h * t->shape[1] * t->shape[2] : 0;
}

/* ---- Positions ------------------------------------------------------------------------------- */

/* The packed sequence that row i belongs to. */
static inline ptrdiff_t sequence_of(const struct problem *p, const int64_t *starts, ptrdiff_t i)
{
    ptrdiff_t s = 0;
    while (s + 1 < p->call->sequences && starts[s + 1] <= i) s++;
    return s;
}
/* Positions as given, or counted: in each packed sequence, or in the batch entry, rows
 * are the last of the keys. */
static inline int64_t q_position(const struct problem *p, ptrdiff_t i)
{
    const loci_call *c = p->call;
    if (c->q_starts && !c->q_pos) {
        ptrdiff_t s = sequence_of(p, c->q_starts, i);
        int64_t keys = c->k_starts[s + 1] - c->k_starts[s];
        return keys ? keys - (c->q_starts[s + 1] - i) : i - c->q_starts[s];
    }
    if (c->q_pos) return c->q_pos[(c->per_batch ? p->b * p->Lq : 0) + i];
    return p->Lk ? p->Lk - p->Lq + i : i; /* stage EMBED: rows count from 0 */
}
static inline int64_t k_position(const struct problem *p, ptrdiff_t j)
{
    if (p->call->k_starts && !p->call->k_pos)
        return j - p->call->k_starts[sequence_of(p, p->call->k_starts, j)];
    return p->call->k_pos ? p->call->k_pos[(p->call->per_batch ? p->b * p->Lk : 0) + j] : j;
}
static inline int64_t q_segment(const struct problem *p, ptrdiff_t i)
{
    if (p->call->q_starts) return sequence_of(p, p->call->q_starts, i);
    return p->call->q_seg ? p->call->q_seg[(p->call->per_batch ? p->b * p->Lq : 0) + i] : 0;
}
static inline int64_t k_segment(const struct problem *p, ptrdiff_t j)
{
    if (p->call->k_starts) return sequence_of(p, p->call->k_starts, j);
    return p->call->k_seg ? p->call->k_seg[(p->call->per_batch ? p->b * p->Lk : 0) + j] : 0;
}
/* The coordinate by which a vector is rotated: the one given for an axis, else its position. */
static inline double coordinate(const struct problem *p, loci_which which, int axis, ptrdiff_t row)
{
    const loci_call *c = p->call;
    ptrdiff_t first = (c->per_batch ? p->b * p->plan->axes : 0) + axis;
    if (which == LOCI_QUERY)
        return c->q_coord ? c->q_coord[first * p->Lq + row] : (double)q_position(p, row);
    return c->k_coord ? c->k_coord[first * p->Lk + row] : (double)k_position(p, row);
}
/* d > 0: the key lies behind the query */
static inline int64_t distance(const struct problem *p, ptrdiff_t j)
{
    return q_position(p, p->i) - k_position(p, j);
}

/* ---- Rows ------------------------------------------------------------------------------------ */

static inline int kv_head(const struct problem *p, int h) { return h / (p->H / p->Hkv); }
/* The numbers of a head in an array [H][Lk]. */
static inline double *of_head(const struct problem *p, double *x, int h) { return x + h * p->Lk; }
/* Where the rows of q, k and v for head h begin. */
static inline ptrdiff_t q_row(const struct problem *p, int h) { return (h * p->Lq + p->i) * p->Dr; }
static inline ptrdiff_t k_row(const struct problem *p, int h, ptrdiff_t j)
{
    return (h / (p->H / p->Hk) * p->Lk + j) * p->Dr;
}
static inline ptrdiff_t v_row(const struct problem *p, int h, ptrdiff_t j)
{
    return (kv_head(p, h) * p->Lk + j) * p->Dv;
}

/* How many forms rows and keys have, and those that row i and key j read: where they begin. */
static inline int forms_of(const struct problem *p, bool query)
{
    const int e = loci_reference_rotation(p), n = e < 0 ? 0
                                                : query ? p->def[e]->row_forms
                                                        : p->def[e]->key_forms;
    return n ? n : 1;
}
static inline int class_of(const struct problem *p, ptrdiff_t j)
{
    const int e = loci_reference_rotation(p);
    return forms_of(p, true) == 1
             ? 0
             : p->def[e]->class_of(p, e, q_position(p, p->i), k_position(p, j));
}
static inline ptrdiff_t q_of(const struct problem *p, int h, ptrdiff_t j)
{
    return class_of(p, j) * p->H * p->Lq * p->Dr + q_row(p, h);
}
static inline ptrdiff_t k_of(const struct problem *p, int h, ptrdiff_t j)
{
    const int form = forms_of(p, false) > 1 ? class_of(p, j) : 0;
    return form * p->Hk * p->Lk * p->Dr + k_row(p, h, j);
}

/* Sums have more digits than their numbers where that is cheap: F64 plans are measured too. */
#if LDBL_MANT_DIG == 64
typedef long double wide;
#else
typedef double wide;
#endif
static inline double dot(const double *x, const double *y, ptrdiff_t n)
{
    wide sum = 0;
    for (ptrdiff_t c = 0; c < n; c++) sum += (wide)x[c] * y[c];
    return (double)sum;
}
/* y += a x, n numbers. */
static inline void add_scaled(double *y, double a, const double *x, ptrdiff_t n)
{
    for (ptrdiff_t c = 0; c < n; c++) y[c] += a * x[c];
}
static inline double clip(double x, double low, double high)
{
    return x < low ? low : x > high ? high : x;
}
/* exp() of a negative number only: it cannot overflow. */
static inline double sigmoid(double x) { return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x)); }

/* ---- Views ----------------------------------------------------------------------------------- */

/* The view with all strides filled in. */
static inline loci_view dense(loci_view x, ptrdiff_t heads, ptrdiff_t rows, ptrdiff_t width)
{
    if (x.batch || x.head || x.row) return x;
    return (loci_view){
        .data = x.data, .batch = heads * rows * width, .head = rows * width, .row = width
    };
}
static inline double *view_row(loci_view x, ptrdiff_t b, int h, ptrdiff_t i)
{
    return (double *)x.data + b * x.batch + h * x.head + i * x.row;
}

#endif
