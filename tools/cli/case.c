/* SPDX-License-Identifier: MIT */
/* case.c -- reads a case file into a task that can be run.  Every tensor of the file must have a
 * use and its exact shape.  Otherwise a misread tensor would give wrong results without an
 * error. */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "util/shape_text.h"
#include "loci/convert.h"
#include "math/q8.h"
#include "cli/case.h"

/* ---- Metadata -------------------------------------------------------------------------------- */

static const char *const keys[] = { "loci.case",   "loci.encoding",    "loci.stage",
                                    "loci.mask",   "loci.window_left", "loci.window_right",
                                    "loci.scale",  "loci.role",        "loci.tol",
                                    "loci.source", "loci.note",        "loci.dropout",
                                    "loci.seed",   "loci.offset",      "loci.k_dtype",
                                    "loci.v_dtype" };
static const char *key_name(int i) { return keys[i]; }

/* Rejects unknown keys that begin with "loci.": a typo would silently select the default. */
static bool check_keys(const struct case_file *c)
{
    for (int i = 0; i < c->file.meta_count; i++) {
        const char *key = c->file.meta[i].key;
        /* keys of other programs are ignored */
        bool known = strncmp(key, "loci.", 5) != 0;
        for (int k = 0; k < COUNT(keys); k++) known = known || !strcmp(key, keys[k]);
        if (known) continue;
        const char *hint = nearest(key, key_name, COUNT(keys));
        return refuse("%s: unknown metadata key '%.64s'%s%s%s", c->path, key,
                      hint ? "; did you mean " : "", hint ? hint : "", hint ? "?" : "");
    }
    return true;
}

/* Returns the value of a key, or its default value. */
static const char *meta(const struct case_file *c, const char *key, const char *usual)
{
    const char *value = loci_safetensors_meta(&c->file, key);
    return value ? value : usual;
}

/* Prints what a key must be.  Returns false. */
static bool bad_meta(const struct case_file *c, const char *key, const char *wanted)
{
    fail("%s: %s must be %s, not '%.64s'", c->path, key, wanted, meta(c, key, ""));
    return false;
}

/* A case has -1 where the library has 0 (open), and 0 where it has LOCI_NONE. */
static bool parse_window(const struct case_file *c, const char *key, int64_t *window)
{
    int64_t w;
    if (!parse_whole(meta(c, key, "-1"), &w) || w < -1)
        return bad_meta(c, key, "a whole number, -1 for an open side");
    *window = w == -1 ? 0 : w == 0 ? LOCI_NONE : w;
    return true;
}

/* Digits alone: strtoull() would accept blanks and signs. */
static bool parse_unsigned(const char *text, uint64_t *value)
{
    const size_t digits = strspn(text, "0123456789");
    errno = 0;
    *value = strtoull(text, NULL, 10);
    return digits && !text[digits] && !errno;
}

/* Which weights are dropped, see loci_call. */
static bool parse_dropout(struct case_file *c)
{
    const char *const names[] = { "loci.seed", "loci.offset" };
    uint64_t *const n[COUNT(names)] = { &c->seed, &c->offset };
    if (!parse_number(meta(c, "loci.dropout", "0"), &c->dropout) || c->dropout < 0
        || c->dropout >= 1)
        return bad_meta(c, "loci.dropout", "a number from 0 and below 1");
    for (int i = 0; i < COUNT(names); i++)
        if (!parse_unsigned(meta(c, names[i], "0"), n[i]))
            return bad_meta(c, names[i], "a whole number from 0 to 2^64 - 1");
    if (c->dropout > 0 && c->stage != LOCI_ATTENTION)
        return refuse("%s: loci.dropout belongs to stage attention only", c->path);
    return true;
}

/* The stored type of keys or values, 0 if it is that of queries. */
static bool parse_stored(const struct case_file *c, const char *key, loci_dtype *dtype)
{
    static const struct {
        const char *name;
        loci_dtype dtype;
    } names[] = { { "bf16", LOCI_BF16 }, { "f16", LOCI_F16 }, { "q8_0", LOCI_Q8_0 } };
    const char *name = meta(c, key, NULL);
    for (int i = 0; i < COUNT(names) && name; i++)
        if (!strcmp(name, names[i].name)) *dtype = names[i].dtype;
    return !name || *dtype || bad_meta(c, key, "bf16, f16 or q8_0");
}

/* The first bound is for results, the second for gradients. */
static bool parse_tol(struct case_file *c)
{
    char f[64], g[64], more;
    if (sscanf(meta(c, "loci.tol", "2e-5 2e-4"), "%63s %63s %c", f, g, &more) != 2
        || !parse_number(f, &c->tol[0]) || !parse_number(g, &c->tol[1]) || c->tol[0] < 0
        || c->tol[1] < 0)
        return bad_meta(c, "loci.tol", "two non-negative numbers");
    return true;
}

/* Reads the problem from the metadata into the plan's description.  Missing keys select the
 * defaults. */
static bool parse_meta(struct case_file *c, loci_desc *d)
{
    if (!check_keys(c)) return false;
    /* checked first: without it this is some other safetensors file */
    const char *version = meta(c, "loci.case", NULL);
    const char *stage = meta(c, "loci.stage", "attention"), *mask = meta(c, "loci.mask", "causal");
    if (!version)
        return refuse("%s: this is not a case file: its metadata lacks loci.case", c->path);
    if (strcmp(version, "1")) return bad_meta(c, "loci.case", "1, the only version");
    d->encoding = meta(c, "loci.encoding", NULL);
    if (!d->encoding)
        return refuse("%s: its metadata lacks loci.encoding, for example nope", c->path);

    static const struct {
        const char *name;
        loci_stage stage;
    } stages[] = {
        { "attention", LOCI_ATTENTION },
        { "rotate", LOCI_ROTATE },
        { "embed", LOCI_EMBED },
        { "linear_attention", LOCI_LINEAR_ATTENTION },
    };
    int at = 0;
    while (at < COUNT(stages) && strcmp(stage, stages[at].name)) at++;
    if (at == COUNT(stages))
        return bad_meta(c, "loci.stage", "attention, rotate, embed or linear_attention");
    d->stage = c->stage = stages[at].stage;

    if (strcmp(mask, "causal") && strcmp(mask, "full"))
        return bad_meta(c, "loci.mask", "causal or full");
    d->full = *mask == 'f';
    if (!parse_window(c, "loci.window_left", &d->window_left)
        || !parse_window(c, "loci.window_right", &d->window_right))
        return false;
    const char *scale = meta(c, "loci.scale", NULL), *role = meta(c, "loci.role", "query");
    if (scale && (!parse_number(scale, &d->scale) || d->scale == 0))
        return bad_meta(c, "loci.scale", "a finite number other than 0");
    if (strcmp(role, "query") && strcmp(role, "key"))
        return bad_meta(c, "loci.role", "query or key");
    if (meta(c, "loci.role", NULL) && c->stage != LOCI_ROTATE)
        return refuse("%s: loci.role belongs to stage rotate only", c->path);
    if (!parse_stored(c, "loci.k_dtype", &d->k_dtype)
        || !parse_stored(c, "loci.v_dtype", &d->v_dtype))
        return false;
    c->k_dtype = d->k_dtype;
    c->v_dtype = d->v_dtype;
    /* The reference has no stored types: it reads the numbers that rounded ones stand for. */
    if (c->reference) d->k_dtype = d->v_dtype = 0;
    return parse_dropout(c) && parse_tol(c);
}

/* ---- Tensors of the file --------------------------------------------------------------------- */

/* Finds a tensor and marks it as used.  NULL: no tensor has this name. */
static const struct safetensor *find(struct case_file *c, const char *name)
{
    for (int i = 0; i < c->file.count; i++) {
        if (strcmp(c->file.tensor[i].name, name)) continue;
        c->used[i] = true;
        return &c->file.tensor[i];
    }
    return NULL;
}

static bool check_type(const struct case_file *c, const struct safetensor *t,
                       enum safetensors_type type)
{
    if (t->type == type) return true;
    fail("%s: tensor '%.64s' must be %s, not %s", c->path, t->name,
         loci_safetensors_type_name(type), loci_safetensors_type_name(t->type));
    return false;
}

static bool check_shape(const struct case_file *c, const struct safetensor *t, int rank,
                        const ptrdiff_t *shape)
{
    char have[200], want[200];
    if (t->rank == rank && (rank == 0 || !memcmp(t->shape, shape, (size_t)rank * sizeof *shape)))
        return true;
    fail("%s: tensor '%.64s' has shape %s, but must have %s", c->path, t->name,
         shape_text(t->rank, t->shape, have, sizeof have),
         shape_text(rank, shape, want, sizeof want));
    return false;
}

/* Finds a required tensor that has `rank` dimensions, none empty. */
static const struct safetensor *required(struct case_file *c, const char *name, int rank)
{
    const struct safetensor *t = find(c, name);
    char have[200];
    if (!t) {
        fail("%s: tensor '%s' is missing", c->path, name);
        return NULL;
    }
    if (!check_type(c, t, ST_F32)) return NULL;
    if (t->rank != rank || t->count == 0) {
        fail("%s: tensor '%s' has shape %s, but must have %d dimensions, none of them 0", c->path,
             name, shape_text(t->rank, t->shape, have, sizeof have), rank);
        return NULL;
    }
    return t;
}

static bool read_raw(struct case_file *c, const struct safetensor *t, void *data)
{
    loci_error e;
    return !loci_safetensors_read(&c->file, t, data, &e) || refuse("%s: %s", c->path, e.text);
}

/* Reads F32 data as numbers of the given type.  NULL after an error. */
static void *load(struct case_file *c, const struct safetensor *t, loci_dtype dtype)
{
    if (!check_type(c, t, ST_F32)) return NULL;
    float *f = task_alloc(&c->task, (size_t)t->count, sizeof *f);
    if (!read_raw(c, t, f)) return NULL;
    if (dtype == LOCI_F32) return f;
    void *to = task_alloc(&c->task, (size_t)t->count, stored_size(dtype));
    for (ptrdiff_t i = 0; i < t->count; i++) store_stored(to, dtype, i, f[i]);
    return to;
}

/* Reads keys or values as numbers of `dtype`, or rounded to `stored` if that is not 0. */
static void *load_stored_as(struct case_file *c, const struct safetensor *t, loci_dtype dtype,
                            loci_dtype stored)
{
    if (!stored) return load(c, t, dtype);
    double *x = load(c, t, LOCI_F64);
    if (!x) return NULL;
    char *to = task_alloc(&c->task, (size_t)stored_bytes(stored, t->count), 1);
    if (loci_round(stored, t->count, x, to)) {
        fail("%s: tensor '%.64s' has %td numbers, which are no multiple of the %d of a block",
             c->path, t->name, t->count, Q8_BLOCK);
        return NULL;
    }
    for (ptrdiff_t i = 0; i < t->count && c->reference; i++) x[i] = stored_number(to, stored, i);
    return c->reference ? (void *)x : to;
}

/* ---- The problem ----------------------------------------------------------------------------- */

/* Heads and widths are ints of a plan. */
static bool fits_int(const struct case_file *c, const struct safetensor *t)
{
    for (int i = 0; i < t->rank; i++)
        if (t->shape[i] > INT_MAX)
            return refuse("%s: tensor '%s' has a dimension of %td, which is too large", c->path,
                          t->name, t->shape[i]);
    return true;
}

/* Collects every param.<encoding>.<name> of the file in the form that a plan expects.  The task
 * owns the strings. */
static bool gather_params(struct case_file *c, loci_tensor **list, int *count, char **names)
{
    *list = alloc((size_t)c->file.count, sizeof **list);
    size_t capacity = 1;
    for (int i = 0; i < c->file.count; i++) capacity += strlen(c->file.tensor[i].name) + 1;
    char *text = *names = alloc(capacity, 1);
    for (int i = 0; i < c->file.count; i++) {
        const struct safetensor *t = &c->file.tensor[i];
        const char *dot = strncmp(t->name, "param.", 6) ? NULL : strchr(t->name + 6, '.');
        if (!dot) continue;
        loci_tensor *p = &(*list)[(*count)++];
        if (t->rank > COUNT(p->shape))
            return refuse("%s: tensor '%.64s' has %d dimensions, but at most %d are allowed",
                          c->path, t->name, t->rank, COUNT(p->shape));
        *p = (loci_tensor){ .encoding = text, .role = LOCI_LEARNED, .rank = t->rank };
        text += sprintf(text, "%.*s", (int)(dot - t->name) - 6, t->name + 6) + 1;
        p->name = text;
        text += sprintf(text, "%s", dot + 1) + 1;
        memcpy(p->shape, t->shape, (size_t)t->rank * sizeof *p->shape);
        c->used[i] = true;
    }
    return true;
}

/* An option that a case omits has its default value, even where a plan with a full mask requires
 * it.  The text of the causal plan spells out all options. */
static void say_all(struct case_file *c, loci_desc *d)
{
    loci_desc causal = *d;
    loci_plan *plan = NULL;
    causal.full = 0;
    if (!d->full || !loci_plan_create(&plan, d, NULL) || loci_plan_create(&plan, &causal, NULL)) {
        loci_plan_destroy(plan);
        return;
    }
    const char *text = loci_plan_text(plan), *end = strstr(text, " scale=");
    if (end && (size_t)(end - text) < sizeof c->text) {
        snprintf(c->text, sizeof c->text, "%.*s", (int)(end - text), text);
        d->encoding = c->text;
    }
    loci_plan_destroy(plan);
}

/* Stage rotate: does the rotation of these rows not read input i?  That of keys reads none by
 * query, and the reverse. */
static bool of_other_role(struct case_file *c, int i)
{
    const bool key = !strcmp(meta(c, "loci.role", "query"), "key");
    loci_tensor *list = task_alloc(&c->task, (size_t)c->task.tensors, sizeof *list);
    bool has = false;
    loci_tensors(c->task.plan, list, c->task.tensors); /* with unresolved shapes */
    for (int d = 0; d < list[i].rank; d++)
        has |= list[i].shape[d] == (key ? LOCI_DIM_QUERIES : LOCI_DIM_KEYS);
    return c->stage == LOCI_ROTATE && has;
}

/* Opens the plan with the learned tensors of the file, and reads the tensors that it needs. */
static bool open_task(struct case_file *c, loci_desc *d, ptrdiff_t batch, ptrdiff_t q_len,
                      ptrdiff_t k_len)
{
    loci_tensor *list;
    char *names, name[ST_MAX_NAME + 1];
    bool ok = gather_params(c, &list, &d->tensor_count, &names);
    d->tensors = list;
    if (ok) say_all(c, d);
    ok = ok && task_open(&c->task, d, batch, q_len, k_len, c->path);
    c->task.desc.tensors = NULL; /* the plan has its own copy now */
    c->task.desc.tensor_count = 0;
    free(list);
    free(names);
    for (int i = 0; ok && i < c->task.tensors; i++) {
        const loci_tensor *want = &c->task.tensor[i];
        snprintf(name, sizeof name, "param.%s.%s", want->encoding, want->name);
        const struct safetensor *t = find(c, name);
        if (!t && of_other_role(c, i)) continue;
        if (!t) return refuse("%s: tensor '%s' is missing", c->path, name);
        ok = check_shape(c, t, want->rank, want->shape)
          && (c->task.data[i] = load(c, t, c->task.reals)) != NULL;
    }
    return ok;
}

static struct output *add_output(struct case_file *c, const char *name, int rank,
                                 const ptrdiff_t *shape, loci_dtype dtype)
{
    struct output *o = &c->output[c->outputs++];
    *o = (struct output){ .rank = rank, .dtype = dtype };
    snprintf(o->name, sizeof o->name, "%s", name);
    memcpy(o->shape, shape, (size_t)rank * sizeof *shape);
    return o;
}

/* Allocates a result, which becomes an output of the case. */
static void *result(struct case_file *c, const char *name, int rank, const ptrdiff_t *shape,
                    loci_dtype dtype)
{
    ptrdiff_t n = shape_count(rank, shape);
    if (n == 0) exit(fail("%s: '%s' would be too large", c->path, name));
    void *data = task_alloc(&c->task, (size_t)n, stored_size(dtype));
    add_output(c, name, rank, shape, dtype)->data = data;
    return data;
}

/* Reads a cotangent if the file has it.  Sets *data and c->backward. */
static bool cotangent(struct case_file *c, const char *name, int rank, const ptrdiff_t *shape,
                      loci_dtype dtype, const void **data)
{
    const struct safetensor *t = find(c, name);
    if (!t) return true;
    c->backward = true;
    return check_shape(c, t, rank, shape) && (*data = load(c, t, dtype)) != NULL;
}

/* Allocates gradients of all tensors that are not fixed. */
static void param_results(struct case_file *c)
{
    struct task *t = &c->task;
    char name[192];
    task_gradients(t);
    for (int i = 0; i < t->tensors; i++) {
        if (!t->data[i]) t->ddata[i] = NULL; /* of the other role */
        if (!t->ddata[i]) continue;
        snprintf(name, sizeof name, "d.param.%s.%s", t->tensor[i].encoding, t->tensor[i].name);
        add_output(c, name, t->tensor[i].rank, t->tensor[i].shape, t->reals)->data = t->ddata[i];
    }
}

static bool attends(const struct case_file *c)
{
    return c->stage == LOCI_ATTENTION || c->stage == LOCI_LINEAR_ATTENTION;
}

/* Stages attention and linear_attention: inputs and results, and gradients if there is a cotangent.
 * A stick has its remainder in place of lse, states have averages of their own, and linear
 * attention has no sum of weights. */
static bool open_attention(struct case_file *c, loci_desc *d)
{
    const struct safetensor *q = required(c, "q", 4), *k = q ? required(c, "k", 4) : NULL,
                            *v = k ? required(c, "v", 4) : NULL;
    if (!v || !fits_int(c, q) || !fits_int(c, k) || !fits_int(c, v)) return false;
    ptrdiff_t B = q->shape[0], H = q->shape[1], Lq = q->shape[2], D = q->shape[3];
    ptrdiff_t Lk = k->shape[2], Dv = v->shape[3];
    if (!check_shape(c, k, 4, (ptrdiff_t[]){ B, k->shape[1], Lk, D })
        || !check_shape(c, v, 4, (ptrdiff_t[]){ B, k->shape[1], Lk, Dv }))
        return false;
    d->heads = (int)H;
    d->kv_heads = (int)k->shape[1];
    d->dim = (int)D;
    d->value_dim = (int)Dv;
    if (!open_task(c, d, B, Lq, Lk)) return false;

    struct task *t = &c->task;
    const loci_dtype stored = d->dtype, reals = t->reals;
    t->call.dropout = c->dropout;
    t->call.dropout_seed = c->seed;
    t->call.dropout_offset = c->offset;
    if (!(t->call.q.data = load(c, q, stored))
        || !(t->call.k.data = load_stored_as(c, k, stored, c->k_dtype))
        || !(t->call.v.data = load_stored_as(c, v, stored, c->v_dtype)))
        return false;
    ptrdiff_t out[] = { B, H, Lq, Dv }, ae[] = { B, H, Lq, D / 2, 2 };
    bool stick = text_places(d->encoding) & LOCI_PLACE_WEIGHT;
    bool states = text_places(d->encoding) & LOCI_PLACE_STATE;
    bool linear = c->stage == LOCI_LINEAR_ATTENTION;
    t->call.o.data = result(c, "out", 4, out, stored);
    if (!linear)
        *(stick ? &t->call.rem : &t->call.lse) = result(c, stick ? "rem" : "lse", 3, out, reals);
    if (states) t->call.ae = result(c, "ae", 5, ae, reals);
    const void *dout = NULL, **drow = stick ? &t->grad.drem : &t->grad.dlse;
    if (!cotangent(c, "dout", 4, out, stored, &dout)
        || (!linear && !cotangent(c, stick ? "drem" : "dlse", 3, out, reals, drow))
        || (states && !cotangent(c, "dae", 5, ae, reals, &t->grad.dae)))
        return false;
    t->grad.dout.data = (void *)dout;
    if (!c->backward) return true;
    t->grad.dq.data = result(c, "d.q", 4, q->shape, stored);
    t->grad.dk.data = result(c, "d.k", 4, k->shape, stored);
    t->grad.dv.data = result(c, "d.v", 4, v->shape, stored);
    param_results(c);
    return true;
}

/* Stages rotate and embed. */
static bool open_rows(struct case_file *c, loci_desc *d)
{
    bool embed = c->stage == LOCI_EMBED;
    int rank = embed ? 3 : 4;
    const struct safetensor *x = required(c, "x", rank);
    if (!x || !fits_int(c, x)) return false;
    if (embed) d->model_dim = (int)x->shape[2];
    else {
        d->heads = (int)x->shape[1];
        d->dim = (int)x->shape[3];
    }
    if (!open_task(c, d, x->shape[0], x->shape[rank - 2], x->shape[rank - 2])) return false;

    struct task *t = &c->task;
    t->which = strcmp(meta(c, "loci.role", "query"), "key") ? LOCI_QUERY : LOCI_KEY;
    const void *dy = NULL;
    if (!(t->x.data = load(c, x, d->dtype)) || !cotangent(c, "dout", rank, x->shape, d->dtype, &dy))
        return false;
    t->y.data = result(c, "out", rank, x->shape, d->dtype);
    t->dy.data = (void *)dy;
    if (!c->backward) return true;
    t->dx.data = result(c, "d.x", rank, x->shape, d->dtype);
    param_results(c);
    return true;
}

/* ---- Positions and segments ------------------------------------------------------------------ */

/* Finds I64 [L] or [B,L], or F64 [N,L] or [B,N,L].  The batch comes first if the rank is one
 * higher.  `axes`: these are positions, so F64 coordinates are allowed.  Segments are always
 * I64. */
static const struct safetensor *find_places(struct case_file *c, const char *name, ptrdiff_t length,
                                            bool axes, bool *ok)
{
    const struct safetensor *t = find(c, name);
    if (!t) return NULL;
    int rank = t->type == ST_F64 ? 2 : 1, wanted = loci_axes(c->task.plan);
    char have[200];
    if (t->type != ST_I64 && !(axes && t->type == ST_F64)) {
        *ok = check_type(c, t, ST_I64);
    } else if (!(t->rank == rank || t->rank == rank + 1) || t->shape[t->rank - 1] != length
               || (t->rank > rank && t->shape[0] != c->task.batch)) {
        fail("%s: tensor '%s' has shape %s, which matches neither the length %td nor the batch "
             "size %td",
             c->path, name, shape_text(t->rank, t->shape, have, sizeof have), length,
             c->task.batch);
        *ok = false;
    } else if (rank == 2 && !(text_places(c->task.desc.encoding) & LOCI_PLACE_ROTATE)) {
        fail("%s: tensor '%s' must be I64: F64 coordinates are for rotations, and this encoding "
             "has none",
             c->path, name);
        *ok = false;
    } else if (rank == 2 && t->shape[t->rank - 2] != wanted) {
        fail("%s: tensor '%s' has %td coordinates per position, but this encoding needs %d",
             c->path, name, t->shape[t->rank - 2], wanted);
        *ok = false;
    } else if (axes && rank == 1 && wanted > 1) {
        fail("%s: tensor '%s' must be F64 [%d,%td]: this encoding needs %d coordinates per "
             "position",
             c->path, name, wanted, length, wanted);
        *ok = false;
    }
    c->batched = c->batched || t->rank > rank;
    return t;
}

/* Reads the numbers (8 bytes each).  Repeats them for each batch entry if other numbers differ
 * between entries. */
static void *load_places(struct case_file *c, const struct safetensor *t, bool *ok)
{
    bool repeat = c->batched && t->rank == (t->type == ST_F64 ? 2 : 1);
    size_t copies = repeat ? (size_t)c->task.batch : 1, bytes = (size_t)t->bytes;
    char *data = task_alloc(&c->task, copies, bytes);
    *ok = *ok && read_raw(c, t, data);
    for (size_t b = 1; b < copies; b++) memcpy(data + b * bytes, data, bytes);
    return data;
}

/* Queries and keys must both have positions, or neither: else distances are undefined. */
static bool both(const struct case_file *c, const struct safetensor *q, const struct safetensor *k,
                 const char *what)
{
    if (!q == !k && (!q || q->type == k->type)) return true;
    fail("%s: %s must both be given, with the same dtype, or neither", c->path, what);
    return false;
}

static bool open_places(struct case_file *c)
{
    struct task *t = &c->task;
    bool ok = true, attention = attends(c);
    const struct safetensor *qp = find_places(c, attention ? "q_pos" : "pos", t->q_len, true, &ok);
    /* qp: the only list, of rows */
    const struct safetensor *kp = qp, *qs = NULL, *ks = NULL;
    if (ok && attention) kp = find_places(c, "k_pos", t->k_len, true, &ok);
    if (ok && attention) qs = find_places(c, "q_seg", t->q_len, false, &ok);
    if (ok && attention) ks = find_places(c, "k_seg", t->k_len, false, &ok);
    if (!ok || !both(c, qp, kp, "q_pos and k_pos") || !both(c, qs, ks, "q_seg and k_seg"))
        return false;
    t->call.per_batch = c->batched;
    if (qp && qp->type == ST_I64) {
        t->call.q_pos = load_places(c, qp, &ok);
        t->call.k_pos = load_places(c, kp, &ok);
    } else if (qp) {
        t->call.q_coord = load_places(c, qp, &ok);
        t->call.k_coord = load_places(c, kp, &ok);
    }
    if (qs) {
        t->call.q_seg = load_places(c, qs, &ok);
        t->call.k_seg = load_places(c, ks, &ok);
    }
    return ok;
}

/* Finds the smallest and the largest of n positions. */
static void range_of(const int64_t *pos, ptrdiff_t n, int64_t *low, int64_t *high)
{
    *low = *high = pos[0];
    for (ptrdiff_t i = 1; i < n; i++) {
        if (pos[i] < *low) *low = pos[i];
        if (pos[i] > *high) *high = pos[i];
    }
}

/* Positions are arbitrary 64-bit numbers, so their distance may overflow. */
static ptrdiff_t distance(int64_t a, int64_t b)
{
    ptrdiff_t d;
    return __builtin_sub_overflow(a, b, &d) ? PTRDIFF_MAX : d;
}

/* The largest |pos_q - pos_k| of the call.  Tables are prepared for it.  Without positions the last
 * query is at the last key. */
static ptrdiff_t max_distance(const struct task *t)
{
    ptrdiff_t most = 0, entries = t->call.q_pos && t->call.per_batch ? t->batch : 1;
    for (ptrdiff_t b = 0; b < entries; b++) {
        int64_t q0 = t->k_len - t->q_len, q1 = t->k_len - 1, k0 = 0, k1 = t->k_len - 1;
        if (t->call.q_pos) {
            range_of(t->call.q_pos + b * t->q_len, t->q_len, &q0, &q1);
            range_of(t->call.k_pos + b * t->k_len, t->k_len, &k0, &k1);
        }
        if (distance(q1, k0) > most) most = distance(q1, k0);
        if (distance(k1, q0) > most) most = distance(k1, q0);
    }
    return most;
}

/* ---- Expectations ---------------------------------------------------------------------------- */

/* expect.NAME is the expected value of the result NAME, as F32 or F64. */
static bool load_expectation(struct case_file *c, const struct safetensor *t)
{
    int k = 0;
    while (k < c->outputs && strcmp(c->output[k].name, t->name + 7)) k++;
    const bool gradient = !strncmp(t->name + 7, "d.", 2) && !c->backward;
    if (k == c->outputs)
        return refuse("%s: tensor '%.64s' expects a result that this case does not compute%s",
                      c->path, t->name,
                      gradient ? "; gradients need a cotangent, for example dout" : "");
    struct output *o = &c->output[k];
    if (t->type != ST_F32 && t->type != ST_F64) return check_type(c, t, ST_F64);
    if (!check_shape(c, t, o->rank, o->shape)) return false;
    o->expect = task_alloc(&c->task, (size_t)t->count, sizeof *o->expect);
    if (!read_raw(c, t, o->expect)) return false;
    if (t->type == ST_F32) { /* widen in place, from the end */
        const float *f = (const float *)o->expect;
        for (ptrdiff_t i = t->count - 1; i >= 0; i--) {
            float x;
            memcpy(&x, f + i, sizeof x);
            o->expect[i] = x;
        }
    }
    return true;
}

/* Runs last, when every tensor with another use is marked. */
static bool open_expectations(struct case_file *c)
{
    for (int i = 0; i < c->file.count; i++) {
        const struct safetensor *t = &c->file.tensor[i];
        if (c->used[i]) continue;
        if (strncmp(t->name, "expect.", 7))
            return refuse("%s: tensor '%.64s' is not used in this case", c->path, t->name);
        if (!load_expectation(c, t)) return false;
    }
    return true;
}

/* ---- The case -------------------------------------------------------------------------------- */

/* Each step needs the ones before it: metadata, plan and tensors, positions.  Every tensor that is
 * still unused must be an expectation. */
bool case_open(struct case_file *c, const char *path, loci_dtype dtype, bool fast, const char *isa,
               bool reference)
{
    *c = (struct case_file){ .path = path, .reference = reference };
    loci_desc d = LOCI_DESC(.dtype = dtype, .fast = fast, .isa = isa);
    loci_error e;
    if (loci_safetensors_open(&c->file, path, &e)) return refuse("%s: %s", path, e.text);
    c->used = alloc((size_t)c->file.count, sizeof *c->used);
    if (!parse_meta(c, &d) || !(attends(c) ? open_attention(c, &d) : open_rows(c, &d))
        || !open_places(c))
        return false;
    c->max_distance = max_distance(&c->task);
    return open_expectations(c);
}

void case_close(struct case_file *c)
{
    task_close(&c->task);
    loci_safetensors_close(&c->file);
    free(c->used);
}
