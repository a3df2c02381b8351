/* SPDX-License-Identifier: MIT */
/* bench_device.c -- `loci bench --device`: the passes on a device, by its own clock, against plain
 * attention and against what its multiply-adds or its copies reach.  Rounds alternate between the
 * encoding and plain attention. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "contract/encoding.h"
#include "cli/device.h"
#include "cli/json.h"

enum { MOST_STEPS = 1000, MOST_COPIES = 1000 };
static const double atom = 0.002; /* seconds that a measurement lasts at least */
/* No GPU has that much cache. */
static const size_t beyond_cache = 512 << 20;

/* A task on the device, and what a round runs of it. */
struct rival {
    struct task task;
    struct there there;
    int steps;
    /* of plain attention, for decode and prefill-chunk: K and V of every contender's steps, one
     * after the other, so that they come from memory; no V: values are in K */
    void **k, **v;
    int copies, turn;
};
struct figures {
    double seconds, ratio, gflops, percent, gbytes, percent_bytes;
    size_t workspace;
};

/* ---- Measuring ------------------------------------------------------------------------------- */

static loci_status run_pass(const struct rival *r, enum pass pass)
{
    loci_status status = LOCI_OK;
    if (pass != BACKWARD) status = there_forward(&r->there);
    if (!status && (pass == BACKWARD || pass == BOTH)) status = there_backward(&r->there);
    return status;
}
static void next_copy(struct rival *plain, struct rival *r)
{
    const int i = plain->turn++ % plain->copies;
    r->there.call.k.data = plain->k[i];
    if (plain->v) r->there.call.v.data = plain->v[i];
}
/* Seconds of a step, by the clock of the device. */
static loci_status time_steps(const struct device_bench *b, struct rival *r, enum pass pass,
                              int steps, loci_error *e, double *seconds)
{
    loci_gpu *gpu = r->there.gpu;
    loci_status status = loci_gpu_clock_start(gpu, e);
    if (status) return status;
    for (int i = 0; i < steps && !status; i++) {
        if (b->plain && b->plain->copies) next_copy(b->plain, r);
        status = run_pass(r, pass);
    }
    if (status) *e = *r->there.call.error;
    else status = loci_gpu_clock_stop(gpu, seconds, e);
    *seconds /= steps;
    return status;
}
/* The first run compiles, and a backward pass reads what a forward pass wrote. */
static loci_status warm_up(const struct device_bench *b, struct rival *r, enum pass pass)
{
    double t = 0;
    loci_status status = run_pass(r, pass == BACKWARD ? BOTH : pass);
    if (!status) status = time_steps(b, r, pass, 1, r->there.call.error, &t);
    r->steps = t >= atom ? 1 : t > atom / MOST_STEPS ? (int)(atom / t) + 1 : MOST_STEPS;
    return status;
}
/* Copies of K or V.  *to has all that exist, after an error too. */
static loci_status copy_keys(const struct problem *p, const struct rival *r, const void *from,
                             void ***to)
{
    const size_t bytes = keys_bytes(p);
    loci_gpu *gpu = r->there.gpu;
    loci_error *e = r->there.call.error;
    loci_status status = LOCI_OK;
    *to = alloc((size_t)r->copies, sizeof **to);
    for (int i = 0; i < r->copies && !status; i++) {
        status = loci_gpu_alloc(gpu, bytes, &(*to)[i], e);
        if (!status) status = loci_gpu_copy(gpu, (*to)[i], from, bytes, LOCI_GPU_MOVE, e);
    }
    return status;
}
static loci_status open_copies(const struct problem *p, struct rival *r, const loci_gpu_info *info)
{
    const loci_call *c = &r->there.call;
    const size_t all = beyond_cache / (keys_bytes(p) * (c->v.data ? 2 : 1)) + 1;
    if (all == 1) return LOCI_OK; /* the keys of a contender are more than that */
    r->copies = !info->memory ? 2 : all < MOST_COPIES ? (int)all : MOST_COPIES;
    const loci_status status = copy_keys(p, r, c->k.data, &r->k);
    return status || !c->v.data ? status : copy_keys(p, r, c->v.data, &r->v);
}
static void close_copies(const struct rival *r, void **of)
{
    for (int i = 0; i < r->copies && of; i++)
        if (of[i]) loci_gpu_free(r->there.gpu, of[i]);
    free(of);
}
/* Returns the status of what does not run, for which *open is true. */
static loci_status open_rival(const struct device_bench *b, const struct problem *p,
                              struct rival *r, const char *encoding, bool *open)
{
    const loci_desc d = problem_desc(p, encoding);
    *open = task_open(&r->task, &d, p->batch, p->rows, p->len, NULL);
    if (!*open) return LOCI_BAD_ARG;
    problem_fill(p, &r->task);
    loci_status status = there_open(&r->there, b->gpu, &r->task, p->len, goes_back(p));
    if (!status && inference(p) && r == b->plain) status = open_copies(p, r, &b->info);
    return status ? status : warm_up(b, r, p->pass);
}
static void close_rival(struct rival *r)
{
    close_copies(r, r->k);
    close_copies(r, r->v);
    there_close(&r->there);
    task_close(&r->task);
}

static loci_status measure(const struct device_bench *b, const struct problem *p, struct rival *r,
                           struct figures *f)
{
    double *mine = alloc((size_t)b->repeat, sizeof *mine);
    double *ratio = alloc((size_t)b->repeat, sizeof *ratio);
    loci_status status = LOCI_OK;
    for (int i = 0; i < b->repeat && !status; i++) {
        double other = NAN;
        if (b->plain)
            status = time_steps(b, b->plain, p->pass, b->plain->steps, r->there.call.error, &other);
        if (!status) status = time_steps(b, r, p->pass, r->steps, r->there.call.error, &mine[i]);
        ratio[i] = mine[i] / other;
    }
    f->seconds = median(mine, b->repeat);
    f->ratio = b->plain ? median(ratio, b->repeat) : NAN;
    f->gflops = p->pass == ROTATE ? NAN : 1e-9 * useful_flops(p) / f->seconds;
    f->percent = 100e9 * f->gflops / b->flops;
    f->gbytes = by_memory(p) ? 1e-9 * moved_bytes(p) / f->seconds : NAN;
    f->percent_bytes = 100e9 * f->gbytes / b->bytes;
    f->workspace = r->there.work_bytes;
    free(mine);
    free(ratio);
    return status;
}

/* ---- Rows ------------------------------------------------------------------------------------ */

static void print_json(const struct device_bench *b, const struct problem *p, const char *encoding,
                       const struct figures *f)
{
    json_t *j = problem_json(p, encoding);
    json_object_set_new(j, "device", json_text(b->info.id));
    json_object_set_new(j, "name", json_text(b->info.name));
    json_object_set_new(j, "driver", json_text(b->info.driver));
    json_object_set_new(j, "seconds", json_number_or_null(f->seconds));
    json_object_set_new(j, "gflops", json_number_or_null(f->gflops));
    json_object_set_new(j, "peak_gflops", json_number_or_null(1e-9 * b->flops));
    json_object_set_new(j, "percent_of_peak", json_number_or_null(f->percent));
    json_object_set_new(j, "gbytes_per_s", json_number_or_null(f->gbytes));
    json_object_set_new(j, "peak_gbytes_per_s", json_number_or_null(1e-9 * b->bytes));
    json_object_set_new(j, "percent_of_stream", json_number_or_null(f->percent_bytes));
    json_object_set_new(j, "ratio_to_nope", json_number_or_null(f->ratio));
    json_object_set_new(j, "workspace_bytes", json_integer((json_int_t)f->workspace));
    json_object_set_new(j, "rounds", json_integer(b->repeat));
    json_print(j);
}
static void print_title(const struct device_bench *b, const struct problem *p)
{
    char kv[32] = "", rows[32] = "";
    if (p->pass == CHUNK) snprintf(rows, sizeof rows, " of %td rows", p->rows);
    if (p->kv_dtype) snprintf(kv, sizeof kv, " with k and v in %s", kv_dtype_name(p));
    printf("loci %s  %s: ", loci_version_text(), b->info.id);
    device_print(&b->info);
    printf("\n%s%s, %s%s, batch %d, heads %d/%d, width %d, %s\n", dtype_names[p->dtype], kv,
           pass_names[p->pass], rows, p->batch, p->heads, p->kv_heads, p->dim,
           p->full ? "full" : "causal");
    if (p->values_in_keys)
        printf("values are the first %d channels of the keys\n", p->values_in_keys);
    printf("probed: peak %.1f GFLOP/s of multiply-adds in f32, %.1f GB/s copied; medians of %d "
           "rounds\n",
           1e-9 * b->flops, 1e-9 * b->bytes, b->repeat);
    printf("%s%-28s %7s %9s %9s %9s %8s %13s%s\n", PAINT("1"), "encoding", "len", "ms",
           by_memory(p) ? "GB/s" : "GFLOP/s", by_memory(p) ? "% of copy" : "% of peak", "x nope",
           "workspace", PAINT("0"));
}
static void print_row(const struct device_bench *b, const struct problem *p, const char *encoding,
                      const struct figures *f)
{
    const bool bytes = by_memory(p);
    char ratio[16] = "-";
    if (!b->rows) print_title(b, p);
    if (isfinite(f->ratio)) snprintf(ratio, sizeof ratio, "%.3f", f->ratio);
    printf("%-28.28s %7td %9.3f %9.1f %9.1f %8s %9.1f KiB\n", encoding, p->len, 1e3 * f->seconds,
           bytes ? f->gbytes : f->gflops, bytes ? f->percent_bytes : f->percent, ratio,
           (double)f->workspace / 1024);
    fflush(stdout);
}

/* ---- The bench ------------------------------------------------------------------------------- */

bool device_bench_open(struct device_bench *b)
{
    loci_error e;
    b->info = loci_gpu_describe(b->gpu);
    return !loci_gpu_peaks(b->gpu, &b->flops, &b->bytes, &e) || refuse("bench: %s", e.text);
}
/* Names each once, however many lengths there are: ", a, b, ". */
static bool leave_out(struct device_bench *b, const char *encoding)
{
    char name[64];
    snprintf(name, sizeof name, ", %.*s, ", (int)strcspn(encoding, ":+"), encoding);
    const size_t used = strlen(b->names);
    if (!strstr(b->names, name) && used + strlen(name) < sizeof b->names)
        strcpy(b->names + (used ? used - 2 : 0), name);
    return true;
}
/* Plain attention serves all encodings of a length. */
static void close_plain(struct device_bench *b)
{
    if (b->plain) close_rival(b->plain);
    free(b->plain);
    b->plain = NULL;
}
static bool need_plain(struct device_bench *b, const struct problem *p)
{
    bool open = true;
    /* a rotation has no plain counterpart */
    if (p->pass == ROTATE || (b->plain && b->len == p->len)) return true;
    close_plain(b);
    b->plain = alloc(1, sizeof *b->plain);
    b->len = p->len;
    const loci_status status = open_rival(b, p, b->plain, loci_pe_plain(), &open);
    if (status && open) fail("bench: %s: %s", loci_pe_plain(), b->plain->task.error.text);
    return !status;
}

bool device_bench_one(struct device_bench *b, const struct problem *p, const char *encoding)
{
    struct rival r = { 0 };
    struct figures f;
    bool open = true;
    if (text_places(encoding) == LOCI_PLACE_EMBED) {
        if (b->all) return leave_out(b, encoding);
        return refuse("bench: %s is added to embeddings, which attention on a device does not "
                      "see; leave it out",
                      encoding);
    }
    if (!need_plain(b, p)) return false;
    loci_status status = open_rival(b, p, &r, encoding, &open);
    const bool left = status == LOCI_UNSUPPORTED && b->all;
    if (!status) status = measure(b, p, &r, &f);
    if (left) leave_out(b, encoding);
    else if (status && open) fail("bench: %s: %s", encoding, r.task.error.text);
    if (!status && b->json) print_json(b, p, encoding, &f);
    else if (!status) print_row(b, p, encoding, &f);
    b->rows += !status;
    close_rival(&r);
    return !status || left;
}
void device_bench_close(struct device_bench *b, bool done)
{
    const size_t used = strlen(b->names);
    if (done && used && !b->json)
        printf("left out, as they do not run there: %.*s\n", (int)used - 4, b->names + 2);
    close_plain(b);
}
