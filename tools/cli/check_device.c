/* SPDX-License-Identifier: MIT */
/* check_device.c -- `loci check --device`: the bits of a device against those of the CPU, in this
 * process.  Problems are small, and on both sides of the borders of tiles, items and chunks. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/device.h"
#include "cli/json.h"

/* What a call has besides q, k and v.  KEYS: a rotation of keys, not of queries. */
enum { PLAIN, LENGTHS, MASK, BROKEN, KEYS };
static const struct trial {
    const char *encoding;
    int batch, heads, kv_heads, dim, value_dim;
    ptrdiff_t q_len, k_len;
    bool full;
    int64_t left; /* of the window; 0: open */
    loci_dtype dtype;
    int extra;
    loci_stage stage;
} trials[] = {
    { "nope", 1, 2, 1, 64, 64, 300, 300, false, 0, LOCI_F32, PLAIN, LOCI_ATTENTION },
    { "nope", 1, 1, 1, 128, 128, 130, 200, false, 0, LOCI_F32, PLAIN, LOCI_ATTENTION },
    { "nope", 2, 4, 2, 32, 48, 65, 129, true, 0, LOCI_F32, PLAIN, LOCI_ATTENTION },
    { "nope", 1, 2, 2, 80, 20, 70, 4200, false, 0, LOCI_F32, PLAIN, LOCI_ATTENTION },
    { "nope", 1, 1, 1, 256, 192, 64, 128, false, 0, LOCI_F32, PLAIN, LOCI_ATTENTION },
    { "nope", 1, 2, 1, 16, 16, 1100, 1100, false, 100, LOCI_F32, PLAIN, LOCI_ATTENTION },
    { "nope", 1, 2, 1, 64, 64, 100, 130, true, 0, LOCI_F32, MASK, LOCI_ATTENTION },
    { "nope", 3, 2, 1, 24, 24, 100, 150, false, 0, LOCI_F32, LENGTHS, LOCI_ATTENTION },
    { "nope", 1, 2, 1, 32, 32, 200, 200, false, 0, LOCI_F32, BROKEN, LOCI_ATTENTION },
    { "nope", 1, 2, 1, 64, 64, 150, 150, false, 0, LOCI_BF16, PLAIN, LOCI_ATTENTION },
    { "nope", 1, 2, 1, 64, 32, 70, 150, false, 0, LOCI_F16, PLAIN, LOCI_ATTENTION },
    { "alibi", 1, 2, 1, 64, 64, 300, 300, false, 0, LOCI_F32, PLAIN, LOCI_ATTENTION },
    { "alibi", 2, 2, 1, 64, 64, 1, 200, false, 0, LOCI_F32, LENGTHS, LOCI_ATTENTION },
    { "t5", 1, 2, 1, 64, 64, 300, 300, false, 0, LOCI_F32, PLAIN, LOCI_ATTENTION },
    { "t5:bidirectional=1", 1, 2, 2, 80, 20, 70, 4200, true, 0, LOCI_F32, PLAIN, LOCI_ATTENTION },
    { "rope:pairing=half", 1, 2, 1, 64, 64, 300, 300, false, 0, LOCI_F32, PLAIN, LOCI_ATTENTION },
    { "rope:pairing=half", 1, 2, 1, 64, 64, 150, 150, false, 0, LOCI_BF16, PLAIN, LOCI_ATTENTION },
    { "rope:pairing=interleaved,scaling=linear,factor=4+t5", 1, 1, 1, 128, 128, 130, 200, false, 0,
      LOCI_F32, PLAIN, LOCI_ATTENTION },
    { "kerple+sink", 1, 2, 1, 64, 64, 130, 200, false, 0, LOCI_F32, PLAIN, LOCI_ATTENTION },
    { "kerple:weight=1+softcap:cap=3", 2, 4, 2, 32, 48, 65, 129, false, 0, LOCI_F32, PLAIN,
      LOCI_ATTENTION },
    { "logn:length=20+clip:max=9", 1, 2, 1, 64, 64, 130, 200, false, 0, LOCI_F32, PLAIN,
      LOCI_ATTENTION },
    { "rope:pairing=half", 2, 4, 2, 64, 64, 70, 130, false, 0, LOCI_F32, PLAIN, LOCI_ROTATE },
    { "rope:pairing=half", 2, 4, 2, 64, 64, 70, 130, false, 0, LOCI_BF16, KEYS, LOCI_ROTATE },
    { "xpos", 1, 2, 2, 48, 48, 70, 130, false, 0, LOCI_F32, KEYS, LOCI_ROTATE },
    { "liere:block=8", 1, 2, 2, 32, 32, 70, 70, false, 0, LOCI_F32, PLAIN, LOCI_ROTATE },
    { "sinusoidal", 2, 4, 4, 32, 32, 100, 100, false, 0, LOCI_F32, PLAIN, LOCI_EMBED },
    { "learned", 2, 4, 4, 32, 32, 100, 100, false, 0, LOCI_F32, PLAIN, LOCI_EMBED },
    { "nope", 1, 2, 2, 32, 32, 200, 200, false, 0, LOCI_F32, PLAIN, LOCI_LINEAR_ATTENTION },
    { "rope:pairing=half", 2, 4, 2, 32, 32, 90, 90, false, 0, LOCI_F32, PLAIN,
      LOCI_LINEAR_ATTENTION },
    { "fire", 1, 2, 2, 32, 32, 100, 100, false, 0, LOCI_F32, PLAIN, LOCI_ATTENTION },
    { "shaw", 1, 2, 2, 32, 32, 100, 100, false, 0, LOCI_F32, PLAIN, LOCI_ATTENTION },
    { "xl", 1, 2, 2, 32, 32, 100, 100, false, 0, LOCI_F32, PLAIN, LOCI_ATTENTION },
    { "deberta", 1, 2, 2, 32, 32, 100, 100, false, 0, LOCI_F32, PLAIN, LOCI_ATTENTION },
    { "cape", 1, 2, 2, 32, 32, 100, 100, false, 0, LOCI_F32, PLAIN, LOCI_ATTENTION },
    { "fox", 1, 2, 2, 32, 32, 100, 100, false, 0, LOCI_F32, PLAIN, LOCI_ATTENTION },
    { "cope", 1, 2, 2, 32, 32, 100, 100, false, 0, LOCI_F32, PLAIN, LOCI_ATTENTION },
    { "sba", 1, 2, 2, 32, 32, 100, 100, false, 0, LOCI_F32, PLAIN, LOCI_ATTENTION },
    { "wall", 1, 2, 2, 32, 32, 100, 100, false, 0, LOCI_F32, PLAIN, LOCI_ATTENTION },
    { "path", 1, 2, 2, 32, 32, 100, 100, false, 0, LOCI_F32, PLAIN, LOCI_ATTENTION },
    { "tape", 1, 2, 2, 32, 32, 100, 100, false, 0, LOCI_F32, PLAIN, LOCI_ATTENTION },
};

struct tally {
    loci_gpu *gpu;
    bool json;
    long long compared, differ; /* numbers */
    int ran, wrong, refused;    /* problems */
    struct task task;
    char about[192];
};

/* ---- A problem ------------------------------------------------------------------------------- */

static void add_lengths(struct task *t)
{
    int64_t *lens = task_alloc(t, (size_t)t->batch, sizeof *lens);
    for (ptrdiff_t b = 0; b < t->batch; b++) lens[b] = t->k_len - 40 * b;
    t->call.k_lens = lens;
}
/* A third of the keys is not seen. */
static void add_mask(struct task *t)
{
    const ptrdiff_t n = t->batch * t->desc.heads * t->q_len * t->k_len;
    float *mask = task_alloc(t, (size_t)n, sizeof *mask);
    fill_normal(mask, LOCI_F32, n, 9, 1);
    for (ptrdiff_t i = 0; i < n; i++)
        if (mask[i] < -0.43f) mask[i] = -INFINITY;
    t->call.mask_kind = LOCI_MASK_ADDED;
    t->call.mask.data = mask;
}
/* The newest keys and rows have numbers that early rows must not meet. */
static void break_numbers(struct task *t)
{
    const ptrdiff_t width = t->desc.dim;
    ((float *)t->call.k.data)[(t->k_len - 30) * width] = INFINITY;
    ((float *)t->call.v.data)[(t->k_len - 20) * width + 3] = NAN;
    ((float *)t->call.q.data)[(t->q_len - 1) * width + 1] = NAN;
}
/* The gradient of lse or of rem: an encoding has one of them. */
static void add_row_gradient(struct task *t)
{
    const ptrdiff_t rows = t->batch * t->desc.heads * t->q_len;
    float *given = task_alloc(t, (size_t)rows, sizeof *given);
    fill_normal(given, LOCI_F32, rows, 3, 1);
    if (t->call.lse) t->grad.dlse = given;
    if (t->call.rem) t->grad.drem = given;
}
static loci_desc desc_of(const struct trial *r)
{
    const loci_desc d =
        LOCI_DESC(.encoding = r->encoding, .stage = r->stage, .heads = r->heads,
                  .kv_heads = r->kv_heads, .dim = r->dim, .value_dim = r->value_dim,
                  .full = r->full, .window_left = r->left, .dtype = r->dtype, .max_len = r->k_len);
    return r->stage == LOCI_EMBED ? task_embedding(&d, r->encoding) : d;
}
/* Such as "t5, 300 x 300, width 64/64, f32" or "xpos, rotated keys, 130, width 48, f32". */
static void describe(struct tally *y, const struct trial *r)
{
    static const char *const extras[] = { "", ", lengths", ", a mask", ", NaN and infinities", "" };
    char form[64];
    if (r->stage == LOCI_EMBED)
        snprintf(form, sizeof form, "embedding, %td, width %d", r->q_len, r->heads * r->dim);
    else if (r->stage == LOCI_ROTATE)
        snprintf(form, sizeof form, "rotated %s, %td, width %d",
                 r->extra == KEYS ? "keys" : "queries", r->extra == KEYS ? r->k_len : r->q_len,
                 r->dim);
    else
        snprintf(form, sizeof form, "%s%td x %td, width %d/%d",
                 r->stage == LOCI_LINEAR_ATTENTION ? "linear attention, " : "", r->q_len, r->k_len,
                 r->dim, r->value_dim);
    snprintf(y->about, sizeof y->about, "%s, %s, %s%s%s%s", r->encoding, form,
             r->dtype == LOCI_BF16  ? "bf16"
             : r->dtype == LOCI_F16 ? "f16"
                                    : "f32",
             r->full ? ", full" : "", r->left ? ", a window" : "", extras[r->extra]);
}
static bool open_trial(struct tally *y, const struct trial *r)
{
    struct task *t = &y->task;
    const loci_desc d = desc_of(r);
    describe(y, r);
    if (!task_open(t, &d, r->batch, r->q_len, r->k_len, r->encoding)) return false;
    t->which = r->extra == KEYS ? LOCI_KEY : LOCI_QUERY;
    task_random_tensors(t, 1);
    task_random_inputs(t, 2);
    task_gradients(t);
    if (r->stage == LOCI_ATTENTION) add_row_gradient(t);
    if (r->extra == LENGTHS) add_lengths(t);
    if (r->extra == MASK) add_mask(t);
    if (r->extra == BROKEN) break_numbers(t);
    loci_status status = task_prepare(t, r->q_len + r->k_len, true);
    if (!status) status = task_forward(t);
    if (!status) status = task_backward(t);
    return !status || refuse("%s: %s", r->encoding, t->error.text);
}

/* ---- Comparing ------------------------------------------------------------------------------- */

/* NaN equals NaN.  Returns how many differ, and says so. */
static long long compare(struct tally *y, const char *name, loci_dtype dtype, const void *cpu,
                         const void *device, size_t bytes)
{
    const size_t each = stored_size(dtype), n = bytes / each;
    size_t differ = 0, first = 0;
    for (size_t i = 0; i < n; i++) {
        const char *a = (const char *)cpu + i * each, *b = (const char *)device + i * each;
        if (!memcmp(a, b, each)) continue;
        if (isnan(load_stored(a, dtype, 0)) && isnan(load_stored(b, dtype, 0))) continue;
        if (!differ++) first = i;
    }
    y->compared += (long long)n;
    y->differ += (long long)differ;
    if (differ && !y->json)
        printf("%s: %s differs in %zu of %zu numbers; number %zu is %.9g, but %.9g on the CPU\n",
               y->about, name, differ, n, first, load_stored(device, dtype, (ptrdiff_t)first),
               load_stored(cpu, dtype, (ptrdiff_t)first));
    return (long long)differ;
}
static loci_status compare_outputs(struct tally *y, const struct there *h, long long *differ)
{
    loci_status status = LOCI_OK;
    for (int i = 0; i < h->outputs && !status; i++) {
        const struct device_output *o = &h->output[i];
        void *back = alloc(o->bytes, 1);
        status = there_fetch(h, o, back);
        if (!status) *differ += compare(y, o->name, o->dtype, o->home, back, o->bytes);
        free(back);
    }
    return status;
}

/* Runs both passes on the device.  What is learned goes to arrays of its own. */
static loci_status run_there(struct tally *y, struct there *h, void **sums)
{
    const struct task *t = &y->task;
    long long differ = 0;
    loci_status status = there_forward(h);
    for (int i = 0; i < t->tensors; i++)
        if (t->tensor[i].role != LOCI_INPUT) h->gradients[i] = sums[i];
    if (!status) status = there_backward(h);
    if (status) return status;
    status = compare_outputs(y, h, &differ);
    for (int i = 0; i < t->tensors && !status; i++) {
        const ptrdiff_t n = shape_count(t->tensor[i].rank, t->tensor[i].shape);
        if (sums[i] && t->tensor[i].role != LOCI_INPUT)
            differ += compare(y, t->tensor[i].name, LOCI_F32, t->ddata[i], sums[i],
                              (size_t)n * sizeof(float));
    }
    y->wrong += differ > 0;
    return status;
}
static bool try_trial(struct tally *y, const struct trial *r)
{
    struct there h = { 0 };
    struct task *t = &y->task;
    const long long before = y->compared, wrong = y->wrong;
    bool ok = open_trial(y, r);
    if (!ok) return false;
    void **sums = task_alloc(t, (size_t)t->tensors, sizeof *sums);
    for (int i = 0; i < t->tensors; i++)
        if (t->ddata[i])
            sums[i] = task_alloc(t, (size_t)shape_count(t->tensor[i].rank, t->tensor[i].shape),
                                 sizeof(float));
    loci_status status = there_open(&h, y->gpu, t, 0, true);
    if (!status) status = run_there(y, &h, sums);
    there_close(&h);
    if (status == LOCI_UNSUPPORTED) {
        y->refused++;
        if (!y->json) printf("%s: left out: %s\n", y->about, t->error.text);
    } else if (status) ok = refuse("check: %s: %s", y->about, t->error.text);
    else {
        y->ran++;
        if (!y->json && y->wrong == wrong)
            printf("%s: %lld numbers\n", y->about, y->compared - before);
    }
    fflush(stdout);
    return ok;
}

/* ---- All of it ------------------------------------------------------------------------------- */

static void print_json(const struct tally *y, const loci_gpu_info *info)
{
    json_t *j = json_object();
    json_object_set_new(j, "device", json_text(info->id));
    json_object_set_new(j, "name", json_text(info->name));
    json_object_set_new(j, "driver", json_text(info->driver));
    json_object_set_new(j, "same", json_boolean(y->ran && !y->differ));
    json_object_set_new(j, "numbers", json_integer(y->compared));
    json_object_set_new(j, "differ", json_integer(y->differ));
    json_object_set_new(j, "problems", json_integer(y->ran));
    json_object_set_new(j, "wrong", json_integer(y->wrong));
    json_object_set_new(j, "left_out", json_integer(y->refused));
    json_print(j);
}
static void print_text(const struct tally *y)
{
    static const char what[] = "numbers of outputs and gradients";
    if (!y->differ)
        printf("%lld %s are those of the CPU, in %d problems", y->compared, what, y->ran);
    else
        printf("%lld of %lld %s differ from those of the CPU, in %d of %d problems", y->differ,
               y->compared, what, y->wrong, y->ran);
    if (y->refused) printf("; %d were left out", y->refused);
    printf("\n");
}
int device_check(loci_gpu *gpu, bool json)
{
    struct tally y = { .gpu = gpu, .json = json };
    const loci_gpu_info info = loci_gpu_describe(gpu);
    bool ok = true;
    if (!json) {
        printf("%s: ", info.id);
        device_print(&info);
        printf("\n");
    }
    for (int i = 0; i < COUNT(trials) && ok; i++) {
        ok = try_trial(&y, &trials[i]);
        task_close(&y.task);
    }
    if (!ok) return EXIT_ERROR;
    if (!y.ran) return fail("check: --device: %s runs none of the problems", info.id);
    if (json) print_json(&y, &info);
    else print_text(&y);
    return y.differ ? EXIT_BROKEN : EXIT_DONE;
}
