/* SPDX-License-Identifier: MIT */
/* problem.c -- see problem.h. */
#define _DEFAULT_SOURCE

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "contract/encoding.h"
#include "math/q8.h"
#include "cli/json.h"
#include "cli/probe.h"
#include "cli/problem.h"

const char *const pass_names[] = { "forward", "backward",      "both",
                                   "decode",  "prefill-chunk", "rotate" };
const char *const dtype_names[] = { "f32", "bf16", "f16" };

/* Seconds.  Steps are repeated until a call lasts about this long.  Systems with more processes
 * than cores give each a slice of about 3 milliseconds. */
static const double atom = 0.002;
/* The work of a call that lasts a few milliseconds on one thread, for choosing the number of
 * heads. */
static const double usual_flops = 3e8, usual_bytes = 2e8;
/* The bytes that a probe reads or copies per thread, in about a millisecond. */
static const size_t probe_bytes = 16 << 20;

static loci_dtype dtype_of(const struct problem *p)
{
    static const loci_dtype dtypes[] = { LOCI_F32, LOCI_BF16, LOCI_F16 };
    return dtypes[p->dtype];
}
/* Of keys and values; F32: that of the problem. */
static const loci_dtype kv_dtypes[] = { LOCI_F32, LOCI_BF16, LOCI_F16, LOCI_Q8_0 };
const char *kv_dtype_name(const struct problem *p)
{
    return kv_dtypes[p->kv_dtype] == LOCI_Q8_0 ? "q8_0"
                                               : dtype_names[p->kv_dtype ? p->kv_dtype : p->dtype];
}
/* Bytes of n numbers of keys or values. */
static size_t kv_bytes(const struct problem *p, ptrdiff_t n)
{
    return (size_t)stored_bytes(p->kv_dtype ? kv_dtypes[p->kv_dtype] : dtype_of(p), n);
}

bool goes_back(const struct problem *p) { return p->pass == BACKWARD || p->pass == BOTH; }
bool inference(const struct problem *p) { return p->pass == DECODE || p->pass == CHUNK; }
/* All heads read the same latents, so arithmetic is their limit. */
bool by_memory(const struct problem *p)
{
    return (p->pass == DECODE && !p->values_in_keys) || p->pass == ROTATE;
}
static int value_dim(const struct problem *p)
{
    return p->values_in_keys ? p->values_in_keys : p->dim;
}

double useful_flops(const struct problem *p)
{
    double keys = (double)p->len, rows = (double)p->rows,
           pairs = rows * keys - (p->full ? 0 : rows * (rows - 1) / 2);
    double each = p->pass == BACKWARD ? 5 : p->pass == BOTH ? 7 : 2;
    return pairs * each * (p->dim + value_dim(p)) * p->heads * p->batch;
}

double moved_bytes(const struct problem *p)
{
    const double rows = (double)p->batch * (double)p->len;
    /* K and V, or x that is read and y that is written */
    return p->pass == DECODE ? 2 * rows * p->kv_heads * (double)kv_bytes(p, p->dim)
                             : 2 * rows * p->heads * p->dim * (double)stored_size(dtype_of(p));
}

/* Depends on sizes only, so that the same arguments give the same problem on every machine.  Each
 * thread gets at least one head. */
int usual_heads(const struct problem *asked)
{
    struct problem p = *asked;
    for (p.heads = 8; p.heads > 1 && p.heads / 2 >= p.threads; p.heads /= 2) {
        p.kv_heads = p.heads;
        const double most = by_memory(&p) ? usual_bytes : usual_flops * p.threads;
        if ((by_memory(&p) ? moved_bytes(&p) : useful_flops(&p)) <= most) break;
    }
    return p.heads;
}

struct json_t *problem_json(const struct problem *p, const char *encoding)
{
    json_t *j = json_object();
    json_object_set_new(j, "encoding", json_string(encoding));
    json_object_set_new(j, "pass", json_string(pass_names[p->pass]));
    json_object_set_new(j, "dtype", json_string(dtype_names[p->dtype]));
    json_object_set_new(j, "kv_dtype", json_string(kv_dtype_name(p)));
    json_object_set_new(j, "batch", json_integer(p->batch));
    json_object_set_new(j, "heads", json_integer(p->heads));
    json_object_set_new(j, "kv_heads", json_integer(p->kv_heads));
    json_object_set_new(j, "q_len", json_integer(p->rows));
    json_object_set_new(j, "k_len", json_integer(p->len));
    json_object_set_new(j, "dim", json_integer(p->dim));
    json_object_set_new(j, "values_in_keys", json_integer(p->values_in_keys));
    json_object_set_new(j, "mask", json_string(p->full ? "full" : "causal"));
    json_object_set_new(j, "dropout", json_real(p->dropout));
    return j;
}

/* ---- Keys and values from memory ------------------------------------------------------------- */

size_t keys_bytes(const struct problem *p)
{
    return (size_t)p->batch * (size_t)p->kv_heads * (size_t)p->len * kv_bytes(p, p->dim);
}

/* Computes the number of copies of K and V, and the bytes that are read besides them. */
void problem_open(struct problem *p)
{
    if (!inference(p)) return;
    p->stream_bytes = beyond_caches();
    p->copies = (int)(p->stream_bytes / (2 * keys_bytes(p))) + 1;
    if (p->pass == DECODE && by_memory(p)) p->stream = alloc(p->stream_bytes, 1);
}

/* Copies the keys and values of a task, which are the same for all tasks of this shape. */
static void open_copies(struct problem *p, const struct task *t)
{
    const size_t bytes = keys_bytes(p);
    p->k = alloc((size_t)p->copies, sizeof *p->k);
    p->v = alloc((size_t)p->copies, sizeof *p->v);
    for (int i = 0; i < p->copies; i++) {
        p->k[i] = memcpy(alloc(bytes, 1), t->call.k.data, bytes);
        if (!p->values_in_keys) p->v[i] = memcpy(alloc(bytes, 1), t->call.v.data, bytes);
    }
}

/* May be called twice, or with none open. */
void problem_close(struct problem *p)
{
    for (int i = 0; i < p->copies && p->k; i++) {
        free(p->k[i]);
        free(p->v[i]);
    }
    free(p->k);
    free(p->v);
    free(p->stream);
    p->copies = 0;
    p->k = p->v = NULL;
    p->stream = NULL;
    p->at = 0;
}

/* ---- Opening --------------------------------------------------------------------------------- */

loci_desc problem_desc(const struct problem *p, const char *encoding)
{
    loci_desc d =
        LOCI_DESC(.encoding = encoding, .heads = p->heads, .dim = p->dim, .kv_heads = p->kv_heads,
                  .stage = p->pass == ROTATE ? LOCI_ROTATE : LOCI_ATTENTION, .dtype = dtype_of(p),
                  .fast = p->fast, .full = p->full, .max_len = p->len, .isa = p->isa,
                  .k_dtype = kv_dtypes[p->kv_dtype], .v_dtype = kv_dtypes[p->kv_dtype],
                  .value_dim = p->values_in_keys, .values_in_keys = p->values_in_keys > 0);
    /* Cached keys were rotated when they were appended.  Rotations by states do so only if heads do
     * not share keys.  Other plans refuse rotated keys if keys rotate differently for near and far
     * rows.  Without a cache, keys that would be wider come as they are. */
    int turned = LOCI_PLACE_ROTATE;
    if (p->kv_heads == p->heads) turned |= LOCI_PLACE_STATE;
    d.keys_rotated = inference(p) && text_places(encoding) & turned;
    loci_plan *plan = NULL;
    if (d.keys_rotated
        && (loci_plan_create(&plan, &d, NULL) || (!p->cached && task_has_wide_keys(plan))))
        d.keys_rotated = 0;
    loci_plan_destroy(plan);
    return d;
}

void problem_fill(const struct problem *p, struct task *t)
{
    task_random_tensors(t, 1);
    task_random_inputs(t, 2);
    if (p->lasting) task_lasting(t);
    if (goes_back(p)) task_gradients(t);
    t->call.host = p->host;
    t->call.dropout = p->dropout;
}

static bool ready(const struct problem *p, struct task *t)
{
    problem_fill(p, t);
    if (!task_prepare(t, p->len, goes_back(p))) return true;
    return refuse("%s: %s", t->desc.encoding, t->error.text);
}

/* Caches that contain all keys.  Other inputs of a token are random too.  A task of one query and
 * all keys fills them, since the contender's own task has only the new ones. */
static bool open_caches(const struct problem *p, struct contender *c)
{
    struct task all, *t = &c->main;
    const size_t bytes = loci_cache_size(t->plan, p->batch, p->len);
    if (!bytes) return refuse("%s: a cache of %td keys is too large", t->desc.encoding, p->len);
    bool ok = task_open(&all, &t->desc, p->batch, 1, p->len, NULL);
    c->cache = task_alloc(t, (size_t)p->copies, sizeof(loci_cache *));
    for (int i = 0; i < p->copies && ok; i++)
        if (loci_cache_create(&c->cache[i], t->plan, p->batch, p->len, 0, task_alloc(t, bytes, 1),
                              &all.error))
            ok = refuse("%s: %s", t->desc.encoding, all.error.text);
    /* the size of a workspace depends on it */
    all.call.cache = t->call.cache = c->cache[0];
    ok = ok && ready(p, &all);
    for (int i = 0; i < p->copies && ok; i++)
        if (loci_cache_append(all.plan, all.tables, all.work, c->cache[i], &all.call))
            ok = refuse("%s: %s", t->desc.encoding, all.error.text);
    task_close(&all);
    return ok;
}

/* An encoding of embeddings is measured as its embedding followed by plain attention. */
static bool open_tasks(struct problem *p, struct contender *c, const char *encoding)
{
    const bool embeds = p->pass != ROTATE && text_places(encoding) == LOCI_PLACE_EMBED;
    *c = (struct contender){ .embeds = embeds };
    const loci_desc d = problem_desc(p, embeds ? loci_pe_plain() : encoding);
    if (!task_open(&c->main, &d, p->batch, p->rows, p->cached ? p->rows : p->len, NULL))
        return false;
    if (p->cached && !open_caches(p, c)) return false;
    if (!ready(p, &c->main)) return false;
    if (inference(p) && !p->cached && !p->k) open_copies(p, &c->main);
    if (!c->embeds) return true;
    const loci_desc e = task_embedding(&d, encoding);
    return task_open(&c->embed, &e, p->batch, p->rows, p->len, NULL) && ready(p, &c->embed);
}

void contender_close(struct contender *c)
{
    task_close(&c->main);
    task_close(&c->embed);
}

/* ---- Running --------------------------------------------------------------------------------- */

/* Selects the next copy of the keys.  A cache drops its last tokens, which the step appends
 * again. */
static loci_status rotate_to_next(struct problem *p, struct contender *c)
{
    loci_call *call = &c->main.call;
    int i = p->turn++ % p->copies;
    if (!p->cached) {
        call->k.data = p->k[i];
        call->v.data = p->v[i];
        return LOCI_OK;
    }
    loci_status s = LOCI_OK;
    call->cache = c->current = c->cache[i];
    for (int entry = 0; entry < p->batch && !s; entry++)
        s = loci_cache_truncate(c->current, entry, p->len - p->rows, &c->main.error);
    return s;
}

/* The step of a decode with a cache: appends new tokens, then attends to all. */
static loci_status append(struct task *t, loci_cache *to)
{
    return loci_cache_append(t->plan, t->tables, t->work, to, &t->call);
}

/* The timed work: a forward pass, unless only the backward pass is asked for. */
static loci_status step(const struct problem *p, struct contender *c, enum pass pass)
{
    loci_status s = LOCI_OK;
    if (pass != BACKWARD) {
        if (c->embeds) s = task_forward(&c->embed);
        if (!s && p->cached) s = append(&c->main, c->current);
        if (!s) s = task_forward(&c->main);
    }
    if (!s && (pass == BACKWARD || pass == BOTH)) {
        s = task_backward(&c->main);
        if (!s && c->embeds) s = task_backward(&c->embed);
    }
    return s;
}

/* Seconds per step over `steps` steps; negative after an error.  Selecting the next copy of the
 * keys does not belong to a step, and its time is subtracted. */
static double time_steps(struct problem *p, struct contender *c, enum pass pass, int steps)
{
    double start = now(), aside = 0;
    for (int i = 0; i < steps; i++) {
        loci_status s = LOCI_OK;
        if (inference(p)) {
            double began = now();
            s = rotate_to_next(p, c);
            aside += now() - began;
        }
        if (s || step(p, c, pass)) {
            fail("%s: %s", c->main.desc.encoding,
                 c->main.error.text[0] ? c->main.error.text : c->embed.error.text);
            return -1;
        }
    }
    return fmax(0, now() - start - aside) / steps;
}

/* Runs a few steps and finds how many make a call.  A backward pass reads the output of a forward
 * pass. */
static bool warm_up(struct problem *p, struct contender *c)
{
    if (p->pass == BACKWARD && time_steps(p, c, FORWARD, 1) < 0) return false;
    double t = time_steps(p, c, p->pass, 1);
    if (t >= 0 && t < atom) t = time_steps(p, c, p->pass, 2);
    c->steps = t >= atom ? 1 : t < atom / 10000 ? 10000 : (int)(atom / t) + 1;
    return t >= 0;
}

bool contender_open(struct problem *p, struct contender *c, const char *encoding)
{
    return open_tasks(p, c, encoding) && warm_up(p, c);
}

/* ---- Probes around a call -------------------------------------------------------------------- */

/* Reading continues where it stopped, so that it reads memory and not a cache. */
static double read_limit(struct problem *p)
{
    size_t bytes = probe_bytes * (size_t)p->threads;
    if (bytes > p->stream_bytes) bytes = p->stream_bytes;
    if (p->at + bytes > p->stream_bytes) p->at = 0;
    const float *from = p->stream + p->at / sizeof *from;
    p->at += bytes;
    return probe_read(p->isa, from, bytes, p->host, p->threads);
}

/* Copies the same footprint, hence with the same caches.  Small footprints repeat. */
static double copy_limit(const struct problem *p, const struct contender *c)
{
    const size_t bytes = (size_t)p->batch * (size_t)p->heads * (size_t)p->len * (size_t)p->dim
                       * stored_size(dtype_of(p));
    const int times = (int)(probe_bytes / (2 * bytes)) + 1;
    double sum = 0;
    for (int i = 0; i < times; i++)
        sum += 1 / probe_copy(c->main.dx.data, c->main.dy.data, bytes, p->host, p->threads);
    return times / sum;
}

static double flops_limit(const struct problem *p)
{
    return p->dots ? probe_dots(p->host, p->threads) : probe_flops(p->isa, p->host, p->threads);
}

/* The limit of the machine in the unit that applies: bytes or flops per second. */
static double limit(struct problem *p, const struct contender *c)
{
    return !by_memory(p) ? flops_limit(p) : p->pass == DECODE ? read_limit(p) : copy_limit(p, c);
}

bool contender_call(struct problem *p, struct contender *c, int steps, double *probe,
                    struct call *call)
{
    call->before = *probe > 0 ? *probe : limit(p, c);
    const struct spent from = spent_now();
    call->seconds = time_steps(p, c, p->pass, steps);
    call->taken = taken_between(from, spent_now());
    call->after = *probe = limit(p, c);
    call->flops =
        p->pass == DECODE && by_memory(p) ? flops_limit(p) : fmax(call->before, call->after);
    return call->seconds >= 0;
}
