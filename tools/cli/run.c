/* SPDX-License-Identifier: MIT */
/* run.c -- `loci run`: computes case files, writes the results, compares them with the expected
 * ones. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/case.h"
#include "cli/device.h"

enum { OUTPUT, DTYPE, FAST, ISA, THREADS, ENGINE, DEVICE, TOL };
static const struct flag flags[] = {
    [OUTPUT] = { "output", "o", "FILE:@file",
                 "write the results to FILE, as safetensors (one case only)" },
    [DTYPE] = { "dtype", NULL, "TYPE:f32|f64|bf16|f16",
                "f32 (default), f64, or bf16 or f16 for storage" },
    [FAST] = { "fast", NULL, NULL,
               "with bf16: use the CPU's bf16 dot products, if 'loci info' lists them" },
    [ISA] = { "isa", NULL, "NAME:@isa", "an instruction set of 'loci info' (default: the best)" },
    [THREADS] = { "threads", NULL, "N", "threads (default 1; results do not depend on them)" },
    [ENGINE] = { "engine", NULL, "NAME:fused|reference",
                 "fused (default), or reference: the definition in float64" },
    [DEVICE] = { "device", NULL, "NAME", "compute on a device of 'loci info', such as cuda:0" },
    [TOL] = { "tol", NULL, "F,G", "bounds for results and for gradients, instead of loci.tol" },
    { NULL, NULL, NULL, NULL }
};

/* Prints the line of one result.  Returns false if it exceeds its bound.  Where infinity or NaN is
 * expected, the result must be exactly that, and the element counts for nothing else. */
static bool compare(const struct output *o, double factor)
{
    double largest = 0, error = 0;
    bool finite = true;
    ptrdiff_t n = shape_count(o->rank, o->shape);
    for (ptrdiff_t i = 0; i < n; i++)
        if (isfinite(o->expect[i])) largest = fmax(largest, fabs(o->expect[i]));
    for (ptrdiff_t i = 0; i < n; i++) {
        double got = load_stored(o->data, o->dtype, i), want = o->expect[i];
        if (!isfinite(want)) finite = finite && (isnan(want) ? isnan(got) : got == want);
        else if (!isfinite(got)) finite = false;
        else error = fmax(error, fabs(got - want));
    }
    double bound = factor * (1 + largest);
    bool ok = finite && error <= bound;
    printf("  %-28s max abs %8.2e  max rel %8.2e  bound %8.2e  %s%s\n", o->name, error,
           largest > 0 ? error / largest : error, bound, ok ? "ok" : "FAIL",
           finite ? "" : " (infinite or NaN where it should not be, or the other way round)");
    return ok;
}

/* Prints a result without an expected value. */
static void summarize(const struct output *o)
{
    double low = INFINITY, high = -INFINITY;
    ptrdiff_t n = shape_count(o->rank, o->shape);
    for (ptrdiff_t i = 0; i < n; i++) {
        low = fmin(low, load_stored(o->data, o->dtype, i));
        high = fmax(high, load_stored(o->data, o->dtype, i));
    }
    printf("  %-28s [", o->name);
    for (int k = 0; k < o->rank; k++) printf("%s%td", k ? "," : "", o->shape[k]);
    printf("]  from %.6g to %.6g\n", low, high);
}

/* The file names the problem, not the instruction set: its bytes are the same for all of them. */
static bool write_output(const struct case_file *c, const char *path)
{
    struct safetensor tensor[COUNT(c->output)];
    const void *data[COUNT(c->output)];
    for (int i = 0; i < c->outputs; i++) {
        const struct output *o = &c->output[i];
        const enum safetensors_type type = loci_safetensors_type_of(o->dtype);
        tensor[i] = (struct safetensor){ .name = o->name, .type = type, .rank = o->rank };
        memcpy(tensor[i].shape, o->shape, sizeof o->shape);
        data[i] = o->data;
    }
    const char *text = loci_plan_text(c->task.plan), *end = strstr(text, " isa=");
    char *plan = alloc(strlen(text) + 1, 1);
    memcpy(plan, text, end ? (size_t)(end - text) : strlen(text));
    struct safetensors_meta meta = { "loci.plan", plan };
    loci_error e;
    loci_status status = loci_safetensors_write(path, c->outputs, tensor, data, 1, &meta, &e);
    free(plan);
    return !status || refuse("%s: %s", path, e.text);
}

/* The options of the command line. */
struct wish {
    loci_dtype dtype;
    const char *isa, *output;
    bool reference, fast;
    double tol[2]; /* negative: as in the case */
    const loci_host *host;
    loci_gpu *gpu; /* NULL: the CPU */
};

/* The fallback sentence is for failures without their own: those of the reference. */
static loci_status compute(struct case_file *c, const struct wish *w)
{
    struct task *t = &c->task;
    t->call.host = w->host;
    t->error = (loci_error){ .text = "this call is too large" };
    if (w->reference) return task_reference(t, c->backward);
    if (w->gpu) return device_compute(w->gpu, t, c->max_distance, c->backward);
    loci_status status = task_prepare(t, c->max_distance, c->backward);
    if (!status) status = task_forward(t);
    return !status && c->backward ? task_backward(t) : status;
}

/* quiet: the results go to a file, so only expected results get a line. */
static int report(const struct case_file *c, bool quiet)
{
    bool expected = false, ok = true;
    for (int i = 0; i < c->outputs; i++) expected = expected || c->output[i].expect;
    if (!expected && quiet) return EXIT_DONE;
    print_plain(stdout, c->path);
    printf(": %s\n", loci_plan_text(c->task.plan));
    for (int i = 0; i < c->outputs; i++) {
        const struct output *o = &c->output[i];
        if (o->expect) ok &= compare(o, c->tol[!strncmp(o->name, "d.", 2)]);
        else if (!expected) summarize(o);
    }
    return ok ? EXIT_DONE : EXIT_BROKEN;
}

/* Bounds for rounding inputs to 16 bits, for results and gradients: 8 and 64 halves of a last
 * place.  Rounding the weights as well doubles them. */
static void allow_storage(loci_dtype dtype, bool fast, double tol[2])
{
    double half = dtype == LOCI_BF16 ? 0x1p-9 : dtype == LOCI_F16 ? 0x1p-12 : 0;
    if (fast) half *= 2;
    tol[0] += 8 * half;
    tol[1] += 64 * half;
}

/* Results that exceed a bound are written all the same, for inspection. */
static int run_case(const char *path, const struct wish *w)
{
    struct case_file c;
    int code = EXIT_ERROR;
    if (case_open(&c, path, w->dtype, w->fast, w->isa, w->reference)) {
        if (w->tol[0] >= 0) memcpy(c.tol, w->tol, sizeof c.tol);
        else allow_storage(w->dtype, w->fast, c.tol);
        if (compute(&c, w)) fail("%s: %s", path, c.task.error.text);
        else if (!w->output || write_output(&c, w->output)) code = report(&c, w->output != NULL);
    }
    case_close(&c);
    return code;
}

static bool parse_tol(const char *text, double tol[2])
{
    char f[64], g[64], more;
    if (!text) return true;
    if (sscanf(text, "%63[^,],%63[^,]%c", f, g, &more) == 2 && parse_number(f, &tol[0])
        && parse_number(g, &tol[1]) && tol[0] >= 0 && tol[1] >= 0)
        return true;
    return refuse("run: --tol must be two non-negative numbers such as 1e-5,1e-4, not '%s'", text);
}

/* A broken case does not stop later ones.  The program returns the worst of their codes. */
static int run(const struct args *a)
{
    static const loci_dtype dtypes[] = { LOCI_F32, LOCI_F64, LOCI_BF16, LOCI_F16 };
    struct wish w = { .fast = a->value[FAST] != NULL,
                      .isa = a->value[ISA],
                      .output = a->value[OUTPUT],
                      .tol = { -1, -1 } };
    int dtype = 0, threads = 1, reference = 0, code = EXIT_DONE;
    if (!args_word(a, DTYPE, &dtype) || !args_whole(a, THREADS, 1, 256, &threads)
        || !args_word(a, ENGINE, &reference) || !parse_tol(a->value[TOL], w.tol))
        return EXIT_ERROR;
    if (a->rest_count == 0) return fail("run: no case given; 'loci run --help' shows how");
    if (a->rest_count > 1 && a->value[OUTPUT])
        return fail("run: -o needs exactly one case, not %d", a->rest_count);
    if (!args_output(a, OUTPUT)) return EXIT_ERROR;
    if (reference && a->value[DTYPE] && dtypes[dtype] != LOCI_F64)
        return fail("run: the reference computes in f64 only, not in %s", a->value[DTYPE]);
    if (a->value[DEVICE] && (a->value[ENGINE] || w.fast || w.isa))
        return fail("run: --device excludes --engine, --fast and --isa");
    w.dtype = reference ? LOCI_F64 : dtypes[dtype];
    w.reference = reference;

    loci_host pool;
    if (a->value[DEVICE] && !device_open(a, DEVICE, &w.gpu)) return EXIT_ERROR;
    if (!start_threads(a, threads, &pool, &w.host)) return EXIT_ERROR;
    for (int i = 0; i < a->rest_count; i++) {
        int one = run_case(a->rest[i], &w);
        if (one > code) code = one;
    }
    if (w.host) loci_pool_destroy(&pool);
    device_close(w.gpu);
    return code;
}

const struct command cmd_run = {
    .name = "run",
    .brief = "compute case files and compare with the expected results",
    .synopsis = "loci run CASE... [-o FILE] [--dtype TYPE] [--fast] [--isa NAME] [--threads N]\n"
                "             [--engine NAME] [--device NAME] [--tol F,G]",
    .about =
        "    A case is a safetensors file that contains a complete problem.  Its metadata has\n"
        "    loci.case = 1, loci.encoding and, if needed, loci.stage, loci.mask,\n"
        "    loci.window_left, loci.window_right, loci.scale, loci.role, loci.tol,\n"
        "    loci.dropout, loci.seed and loci.offset.  Its tensors are q, k, v (or x); those\n"
        "    of the encoding as param.ENCODING.NAME; and optionally positions (q_pos, k_pos;\n"
        "    pos), segments (q_seg, k_seg) and cotangents (dout, dlse, drem, dae).  With a\n"
        "    cotangent, all gradients are computed too.\n"
        "\n"
        "    Results are out, lse (or rem), ae (tape), and d.NAME for each input.  If the case\n"
        "    has expect.NAME, a line shows the largest difference from it, the same relative\n"
        "    to the largest expected value, and the bound f (1 + largest expected value).  f\n"
        "    is the first number of loci.tol for results and the second one for gradients\n"
        "    (default 2e-5 and 2e-4).  With --dtype bf16 or f16 the inputs are rounded first,\n"
        "    and f is larger by 2^-6 or 2^-9 for results, by 2^-3 or 2^-6 for gradients;\n"
        "    --fast doubles that.  The file of -o has the results under their names, without\n"
        "    expect.  Its bytes do not depend on the instruction set or the number of\n"
        "    threads, except with --fast.  --device computes on a GPU, with the same bytes.\n"
        "    What does not run there is an error.\n",
    .examples = "    loci run case.safetensors\n"
                "    loci run case.safetensors -o result.safetensors --threads 2\n"
                "    loci run tests/cases/*.safetensors --engine reference --tol 1e-12,1e-11\n"
                "    loci run case.safetensors --device cuda:0\n",
    .operand_text = "@file...",
    .flags = flags,
    .run = run,
};
