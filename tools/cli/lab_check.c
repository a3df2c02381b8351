/* SPDX-License-Identifier: MIT */
/* lab_check.c -- `loci lab dump`, `loci lab data` and `loci lab bench`: dumps one step for external
 * checks, writes sequences for other trainers, and measures the speed of steps. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/lab.h"
#include "cli/probe.h"
#include "contract/encoding.h"
#include "draw/text.h"
#include "models/safetensors.h"
#include "lab/corpora.h"
#include "lab/data.h"
#include "lab/train.h"

/* ---- dump ------------------------------------------------------------------------------------ */

enum {
    DUMP_ARM,
    DUMP_TASK,
    DUMP_SEED,
    DUMP_SIZE,
    DUMP_LENGTH,
    DUMP_STEP,
    DUMP_SET,
    DUMP_CORPUS,
    DUMP_DTYPE,
    DUMP_ISA,
    DUMP_THREADS,
    DUMP_OUTPUT
};
static const struct flag dump_flags[] = {
    [DUMP_ARM] = { "arm", NULL, "TEXT:@arm", "an encoding text (required)" },
    [DUMP_TASK] = { "task", NULL, "NAME:@task", "a task of 'loci lab list' (required)" },
    [DUMP_SEED] = { "seed", NULL, "N", "(default 0)" },
    [DUMP_SIZE] = { "size", NULL, "SIZE:XS|S|M|L", "XS, S, M or L (default S)" },
    [DUMP_LENGTH] = { "length", NULL, "L", "training length in tokens" },
    [DUMP_STEP] = { "step", NULL, "N",
                    "the step to dump, after training the ones before (default 1)" },
    [DUMP_SET] = { "set", NULL, "KEY=VALUE", "any field of the configuration" },
    [DUMP_CORPUS] = { "corpus", NULL, "TEXT:generated|python|jargon|kjv|@file",
                      "a text of 'loci lab corpus', or a file (default: generated)" },
    [DUMP_DTYPE] = { "dtype", NULL, "TYPE:f32|f64", "f32 (default), or f64 to compute in double" },
    [DUMP_ISA] = { "isa", NULL, "NAME:@isa", "instruction set; the bits are the same" },
    [DUMP_THREADS] = { "threads", "t", "N", "(default 1); the bits are the same" },
    [DUMP_OUTPUT] = { "output", "o", "FILE:@file", "the safetensors file (required)" },
    { NULL, NULL, NULL, NULL }
};

/* Tensors of a file, collected in order. */
struct pile {
    int count, capacity;
    struct safetensor *list;
    void **data;
};

static void *pile_up(struct pile *p, const char *prefix, const char *name,
                     enum safetensors_type type, int rank, const ptrdiff_t *shape)
{
    if (p->count == p->capacity) {
        const int capacity = 2 * p->capacity + 64;
        struct safetensor *list = alloc((size_t)capacity, sizeof *list);
        void **data = alloc((size_t)capacity, sizeof *data);
        if (p->count) {
            memcpy(list, p->list, (size_t)p->count * sizeof *list);
            memcpy(data, p->data, (size_t)p->count * sizeof *data);
        }
        free(p->list);
        free(p->data);
        p->list = list;
        p->data = data;
        p->capacity = capacity;
    }
    char *full = alloc(strlen(prefix) + strlen(name) + 1, 1);
    struct safetensor *t = &p->list[p->count];
    *t = (struct safetensor){
        .name = strcat(strcpy(full, prefix), name), .type = type, .rank = rank, .count = 1
    };
    for (int i = 0; i < rank; i++) {
        t->shape[i] = shape[i];
        t->count *= shape[i];
    }
    return p->data[p->count++] = alloc((size_t)t->count, loci_safetensors_type_size(type));
}
static void free_pile(struct pile *p)
{
    for (int i = 0; i < p->count; i++) {
        free((char *)(uintptr_t)p->list[i].name);
        free(p->data[i]);
    }
    free(p->list);
    free(p->data);
}

/* All tensors of a list, without the padding behind columns. */
static void pile_tensors(struct pile *p, struct lab_model *m, const char *prefix,
                         enum lab_list which)
{
    const struct lab_tensor *t;
    const int n = lab_model_tensors(m, &t);
    const size_t real = lab_model_engine(m)->real;
    for (int i = 0; i < n; i++) {
        if (t[i].fixed && which == LAB_GRADIENTS) continue;
        char *to =
            pile_up(p, prefix, t[i].name, real == 8 ? ST_F64 : ST_F32, t[i].rank, t[i].shape);
        const char *from = (const char *)lab_model_list(m, which) + (size_t)t[i].at * real;
        for (ptrdiff_t r = 0; r < t[i].rows; r++)
            memcpy(to + (size_t)(r * t[i].cols) * real, from + (size_t)(r * t[i].stride) * real,
                   (size_t)t[i].cols * real);
    }
}

/* Stacks sequences, padded to the longest. */
static void pile_batch(struct pile *p, const struct lab_model *m, const struct lab_batch *b,
                       const struct lab_shape *s)
{
    ptrdiff_t longest = 0, stride;
    for (int i = 0; i < b->sequences; i++)
        if (b->starts[i + 1] - b->starts[i] > longest)
            longest = (ptrdiff_t)(b->starts[i + 1] - b->starts[i]);
    const size_t real = lab_model_engine(m)->real, row = (size_t)s->vocabulary * real;
    const ptrdiff_t shape[] = { b->sequences, longest, s->vocabulary };
    int32_t *tokens = pile_up(p, "", "tokens", ST_I32, 2, shape),
            *targets = pile_up(p, "", "targets", ST_I32, 2, shape);
    int64_t *pos = pile_up(p, "", "positions", ST_I64, 2, shape);
    char *to = pile_up(p, "", "logits", real == 8 ? ST_F64 : ST_F32, 3, shape);
    const char *logits = lab_model_logits(m, &stride);
    for (int i = 0; i < b->sequences; i++)
        for (ptrdiff_t k = 0; k < longest; k++) {
            const ptrdiff_t at = i * longest + k, r = (ptrdiff_t)b->starts[i] + k;
            const bool there = r < b->starts[i + 1];
            tokens[at] = there ? b->token[r] : 0;
            targets[at] = there ? b->target[r] : -1;
            pos[at] = there ? b->pos[r] : 0;
            if (there) memcpy(to + (size_t)at * row, logits + (size_t)(r * stride) * real, row);
        }
}

/* The first step of a model checks little: many parameters of encodings start at 0, and AdamW has
 * no history.  So the steps before `last` are trained as in a run, and the AdamW means are dumped
 * as well. */
static bool dump_step(const struct lab_config *c, struct lab_model *m, int last, const char *path)
{
    const struct lab_shape *s = lab_model_shape(m);
    const struct lab_arm *arm = lab_model_arm(m);
    struct lab_batch b = { .sequences = 0 };
    struct pile p = { .count = 0 };
    loci_error e = { .text = "" };
    double mean;
    loci_status status = LOCI_OK;
    lab_model_init(m, (uint64_t)c->seed);
    for (int step = 0; step < last - 1 && !status; step++) {
        lab_train_batch(c, m, step, &b);
        status = lab_model_backward(m, &b, &mean, &e);
        if (!status) lab_model_step(m, step + 1, lab_rate(c, step));
    }
    pile_tensors(&p, m, "w.", LAB_WEIGHTS);
    if (last > 1) {
        pile_tensors(&p, m, "m.", LAB_MEANS);
        pile_tensors(&p, m, "s.", LAB_SQUARES);
    }
    lab_train_batch(c, m, last - 1, &b);
    if (!status) status = lab_model_forward(m, &b, true, NULL, NULL, &e);
    if (!status) {
        pile_batch(&p, m, &b, s);
        status = lab_model_backward(m, &b, &mean, &e);
    }
    if (!status) {
        const ptrdiff_t one = 1;
        void *loss = pile_up(&p, "", "loss", s->f64 ? ST_F64 : ST_F32, 1, &one);
        if (s->f64) *(double *)loss = mean;
        else *(float *)loss = (float)mean;
        pile_tensors(&p, m, "d.", LAB_GRADIENTS);
        const double rate = lab_rate(c, last - 1);
        lab_model_step(m, last, rate);
        pile_tensors(&p, m, "n.", LAB_WEIGHTS);
        struct text t = { .s = NULL };
        text_add(&t, "{\"arm\": ");
        text_json(&t, c->arm);
        text_add(
            &t,
            ", \"layers\": %d, \"dim\": %d, \"heads\": %d, \"kv_heads\": %d, \"ffn\": %d, \"lr\": "
            "%.17g, \"step\": %d, \"task\": \"%s\", "
            "\"seed\": %d, \"length\": %d, \"attention\": ",
            s->layers, s->dim, s->heads, s->kv_heads, s->ffn, rate, last, c->task, c->seed,
            s->length);
        text_json(&t, arm->attention);
        text_add(&t, ", \"embed\": ");
        text_json(&t, arm->embed);
        text_add(&t, "}");
        const struct safetensors_meta meta[] = { { "config", t.s } };
        status =
            loci_safetensors_write(path, p.count, p.list, (const void *const *)p.data, 1, meta, &e);
        text_free(&t);
    }
    free_pile(&p);
    lab_batch_free(&b);
    return !status || refuse("lab dump: %s", e.text);
}

/* The configuration of one run of these flags. */
static bool one_config(const struct args *a, struct lab_config *c, struct lab_shape *s,
                       struct lab_corpus *corpus)
{
    struct lab_wish w = { .arms = a->value[DUMP_ARM],
                          .tasks = a->value[DUMP_TASK],
                          .size = a->value[DUMP_SIZE],
                          .seeds = 1,
                          .corpus = corpus };
    static struct lab_runs runs;
    loci_error e = { .text = "" };
    int seed = 0, length = 0, type = 0;
    if (!w.arms || !w.tasks || !a->value[DUMP_OUTPUT])
        return refuse("lab dump: --arm, --task and --output are required");
    if (!args_whole(a, DUMP_SEED, 0, 1000000000, &seed)
        || !args_whole(a, DUMP_LENGTH, 8, 65536, &length) || !args_word(a, DUMP_DTYPE, &type)
        || !args_output(a, DUMP_OUTPUT))
        return false;
    w.length = length;
    if (a->value[DUMP_SET] && !add_settings(a, a->value[DUMP_SET], &w)) return false;
    if (lab_corpus_find(corpus, a->value[DUMP_CORPUS], lab_corpus_bytes(lab_wish_length(&w)), &e)
        || lab_runs_make(&runs, &w, &e))
        return refuse("lab dump: %s", e.text);
    if (runs.count != 1)
        return refuse("lab dump: give one arm and one task, not %d runs", runs.count);
    *c = runs.list[0];
    c->seed = seed;
    lab_runs_free(&runs);
    *s = lab_config_shape(c);
    s->f64 = type == 1;
    s->isa = a->value[DUMP_ISA];
    return true;
}

static int run_dump(const struct args *a)
{
    static struct lab_corpus corpus;
    static struct lab_config c; /* the shape points into it */
    struct lab_shape s;
    struct lab_model *m;
    loci_host pool;
    const loci_host *host = NULL;
    loci_error e = { .text = "" };
    int threads = 1, step = 1;
    if (!args_rest(a, 0) || !args_whole(a, DUMP_THREADS, 1, 256, &threads)
        || !args_whole(a, DUMP_STEP, 1, 1000000, &step) || !one_config(a, &c, &s, &corpus)
        || !start_threads(a, threads, &pool, &host))
        return EXIT_ERROR;
    if (step > c.steps) c.steps = step; /* so that the rate falls to the last step */
    if (lab_model_open(&m, &s, host, &e)) return fail("lab dump: %s", e.text);
    const bool fine = dump_step(&c, m, step, a->value[DUMP_OUTPUT]);
    lab_model_close(m);
    if (host) loci_pool_destroy(&pool);
    lab_corpus_close(&corpus);
    return fine ? EXIT_DONE : EXIT_ERROR;
}

const struct command cmd_lab_dump = {
    .name = "lab dump",
    .brief = "write all tensors of one training step, for other programs to check",
    .synopsis = "loci lab dump --arm TEXT --task NAME -o FILE [OPTION...]",
    .about =
        "    tokens, targets and positions [B, T] (target -1: not scored), w.NAME all weights\n"
        "    before the step, logits [B, T, V], loss [1], d.NAME gradients before clipping,\n"
        "    n.NAME weights after the step; from step 2 on m.NAME and s.NAME, AdamW's means\n"
        "    of gradients and squares before it; metadata config: JSON.  A model implemented\n"
        "    from lab/README.md must agree, with --dtype f64 to 1e-9.\n",
    .examples =
        "    loci lab dump --arm t5 --task text --size XS --dtype f64 -o step.safetensors\n",
    .flags = dump_flags,
    .run = run_dump,
};

/* ---- data ------------------------------------------------------------------------------------ */

enum {
    DATA_TASK,
    DATA_SPLIT,
    DATA_COLUMN,
    DATA_SEED,
    DATA_STEP,
    DATA_SIZE,
    DATA_LENGTH,
    DATA_SET,
    DATA_CORPUS,
    DATA_OUTPUT
};
static const struct flag data_flags[] = {
    [DATA_TASK] = { "task", NULL, "NAME:@task", "a task of 'loci lab list' (required)" },
    [DATA_SPLIT] = { "split", NULL, "NAME:train|test|validation",
                     "train (default); test (default with --column); or validation" },
    [DATA_COLUMN] = { "column", NULL, "NAME",
                      "the column of a test or validation, such as 4L or n=30" },
    [DATA_SEED] = { "seed", NULL, "N", "of the training (default 0); tests depend on no seed" },
    [DATA_STEP] = { "step", NULL, "N", "the training step, from 1 on (default 1)" },
    [DATA_SIZE] = { "size", NULL, "SIZE:XS|S|M|L", "XS, S, M or L (default S)" },
    [DATA_LENGTH] = { "length", NULL, "L", "training length in tokens" },
    [DATA_SET] = { "set", NULL, "KEY=VALUE", "any field of the configuration" },
    [DATA_CORPUS] = { "corpus", NULL, "TEXT:generated|python|jargon|kjv|@file",
                      "a text of 'loci lab corpus', or a file (default: generated)" },
    [DATA_OUTPUT] = { "output", "o", "FILE:@file", "the safetensors file (required)" },
    { NULL, NULL, NULL, NULL }
};

static void describe_data(struct text *t, const struct lab_config *c, const struct lab_problem *p,
                          const struct lab_column *column, int step)
{
    text_add(t, "{\"task\": \"%s\", \"split\": \"%s\", \"vocabulary\": %d, \"length\": %d, ",
             c->task,
             !column              ? "train"
             : column->validation ? "validation"
                                  : "test",
             p->task->vocabulary(p), p->task->longest(p));
    if (column) {
        text_add(t, "\"column\": ");
        text_json(t, column->name);
        text_add(t, "}");
    } else text_add(t, "\"seed\": %d, \"step\": %d}", c->seed, step);
}

static bool write_data(const struct lab_config *c, const struct lab_column *column, int step,
                       const char *path)
{
    const struct lab_problem p = lab_config_problem(c);
    const int longest = column ? column->length : p.task->longest(&p),
              count = column ? column->count : c->tokens / longest;
    const size_t room = (size_t)count * (size_t)longest;
    int32_t *token = alloc(room, sizeof *token), *target = alloc(room, sizeof *target);
    int64_t *starts = alloc((size_t)count + 1, sizeof *starts);
    struct text about = { .s = NULL };
    loci_error e = { .text = "" };
    const ptrdiff_t rows =
        lab_data_draw(&p, column, (uint64_t)c->seed, step - 1, 0, count, token, target, starts);
    describe_data(&about, c, &p, column, step);
    const struct safetensor list[] = {
        { .name = "tokens", .type = ST_I32, .rank = 1, .shape = { rows } },
        { .name = "targets", .type = ST_I32, .rank = 1, .shape = { rows } },
        { .name = "starts", .type = ST_I64, .rank = 1, .shape = { count + 1 } },
    };
    const void *const data[] = { token, target, starts };
    const struct safetensors_meta meta[] = { { "config", about.s } };
    const loci_status status =
        loci_safetensors_write(path, COUNT(list), list, data, COUNT(meta), meta, &e);
    text_free(&about);
    free(starts);
    free(target);
    free(token);
    return !status || refuse("lab data: %s", e.text);
}

static int run_data(const struct args *a)
{
    struct lab_wish w = { .arms = loci_pe_plain(),
                          .tasks = a->value[DATA_TASK],
                          .size = a->value[DATA_SIZE],
                          .seeds = 1 };
    static struct lab_corpus corpus;
    struct lab_runs runs;
    struct lab_column list[LAB_COLUMNS];
    const struct lab_column *column = NULL;
    loci_error e = { .text = "" };
    int seed = 0, step = 1, length = 0, split = 0;
    const char *name = a->value[DATA_COLUMN];
    if (!args_rest(a, 0)) return EXIT_ERROR;
    if (!w.tasks || !a->value[DATA_OUTPUT])
        return fail("lab data: --task and --output are required");
    if (!args_whole(a, DATA_SEED, 0, 1000000000, &seed)
        || !args_whole(a, DATA_STEP, 1, 1000000000, &step)
        || !args_whole(a, DATA_LENGTH, 8, 65536, &length) || !args_word(a, DATA_SPLIT, &split)
        || !args_output(a, DATA_OUTPUT))
        return EXIT_ERROR;
    w.length = length;
    w.corpus = &corpus;
    if (a->value[DATA_SET] && !add_settings(a, a->value[DATA_SET], &w)) return EXIT_ERROR;
    if (name && a->value[DATA_SPLIT] && split == 0)
        return fail("lab data: --column names a test; --split train has steps instead");
    if (!name && split) return fail("lab data: --split %s needs --column", a->value[DATA_SPLIT]);
    if (name && (a->value[DATA_SEED] || a->value[DATA_STEP]))
        return fail("lab data: tests depend on no seed and no step");
    if (lab_corpus_find(&corpus, a->value[DATA_CORPUS], lab_corpus_bytes(lab_wish_length(&w)), &e)
        || lab_runs_make(&runs, &w, &e))
        return fail("lab data: %s", e.text);
    struct lab_config *c = &runs.list[0];
    const struct lab_problem p = lab_config_problem(c);
    c->seed = seed;
    if (runs.count != 1) fail("lab data: give one task, not %d", runs.count);
    else if (name && !(column = lab_data_column(&p, name, list, &e))) fail("lab data: %s", e.text);
    if (runs.count != 1 || (name && !column)) {
        lab_runs_free(&runs);
        lab_corpus_close(&corpus);
        return EXIT_ERROR;
    }
    const struct lab_column own = split == 2 ? lab_validation(column) : (struct lab_column){ 0 };
    if (split == 2) column = &own;
    const bool fine = write_data(c, column, step, a->value[DATA_OUTPUT]);
    lab_runs_free(&runs);
    lab_corpus_close(&corpus);
    return fine ? EXIT_DONE : EXIT_ERROR;
}

const struct command cmd_lab_data = {
    .name = "lab data",
    .brief = "write the sequences of a step, a test or a validation, for other trainers",
    .synopsis = "loci lab data --task NAME [--column NAME | --step N] -o FILE [OPTION...]",
    .about =
        "    tokens and targets [rows] (target -1: not scored), one sequence after another, and\n"
        "    starts [sequences + 1], where each begins; metadata config: JSON.  These are the\n"
        "    sequences that every arm of the lab is trained with and tested on.\n",
    .examples = "    loci lab data --task copy --column n=30 -o test.safetensors\n"
                "    loci lab data --task recall --seed 1 --step 20 -o step.safetensors\n",
    .flags = data_flags,
    .run = run_data,
};

/* ---- bench ----------------------------------------------------------------------------------- */

enum { BENCH_SIZE, BENCH_ARMS, BENCH_TASK, BENCH_ISA, BENCH_THREADS, BENCH_JSON };
static const struct flag bench_flags[] = {
    [BENCH_SIZE] = { "size", NULL, "SIZE:XS|S|M|L", "XS, S, M or L (default S)" },
    [BENCH_ARMS] = { "arms", NULL, "LIST:@arm,", "encoding texts (default nope,rope,alibi,fox)" },
    [BENCH_TASK] = { "task", NULL, "NAME:@task", "(default text)" },
    [BENCH_ISA] = { "isa", NULL, "NAME:@isa", "instruction set" },
    [BENCH_THREADS] = { "threads", "t", "N", "(default 1)" },
    [BENCH_JSON] = { "json", NULL, NULL, "one JSON object" },
    { NULL, NULL, NULL, NULL }
};

struct timing {
    double step, part[LAB_PARTS], tokens;
};

static int by_step(const void *a, const void *b)
{
    const double x = ((const struct timing *)a)->step, y = ((const struct timing *)b)->step;
    return (x > y) - (x < y);
}

/* Measures the median step time over about a second, with its parts. */
static bool time_steps(const struct lab_config *c, const struct lab_shape *s, const loci_host *host,
                       struct timing *to)
{
    enum { MOST = 400 };
    struct timing *all = alloc(MOST, sizeof *all);
    struct lab_model *m;
    struct lab_batch b = { .sequences = 0 };
    loci_error e = { .text = "" };
    int n = 0;
    if (lab_model_open(&m, s, host, &e)) return refuse("lab bench: %s", e.text);
    lab_model_init(m, 0);
    const double began = now();
    for (int step = 0; n < MOST && (n < 5 || now() - began < 1); step++) {
        double mean;
        memset(lab_model_parts(m), 0, LAB_PARTS * sizeof(double));
        lab_train_batch(c, m, step, &b);
        const double from = now();
        if (lab_model_backward(m, &b, &mean, &e)) return refuse("lab bench: %s", e.text);
        lab_model_step(m, step + 1, 1e-4);
        if (step == 0) continue; /* warm-up: allocates memory */
        all[n].step = now() - from;
        all[n].tokens = (double)b.rows;
        memcpy(all[n++].part, lab_model_parts(m), sizeof all->part);
    }
    qsort(all, (size_t)n, sizeof *all, by_step);
    *to = all[n / 2];
    free(all);
    lab_batch_free(&b);
    lab_model_close(m);
    return true;
}

/* Times only the products of a step at this size: flops per second, a moment per shape. */
static double time_products(const struct lab_config *c, const char *isa)
{
    const struct lab_engine *engine = lab_engine(isa, false);
    const ptrdiff_t n = c->tokens, d = c->dim, w = 4 * d;
    struct {
        ptrdiff_t m, n, k;
        bool columns;
    } shapes[] = {
        { n, d, d, false }, { n, w, d, false }, { n, d, w, false },
        { d, w, n, true },  { w, d, n, true },  { d, d, n, true },
    };
    float *a = alloc((size_t)(n * w), sizeof *a), *b = alloc((size_t)(n * w), sizeof *b),
          *to = alloc((size_t)(n * w), sizeof *to);
    double flops = 0, seconds = 0;
    for (ptrdiff_t i = 0; i < n * w; i++) {
        a[i] = (float)(i % 7) - 3;
        b[i] = (float)(i % 5) - 2;
    }
    for (int i = 0; i < COUNT(shapes); i++) {
        double best = INFINITY;
        for (double began = now(); now() - began < 0.05;) {
            const double from = now();
            const ptrdiff_t rows = shapes[i].columns ? 48 : 96;
            for (ptrdiff_t r = 0; r < shapes[i].m; r += rows) {
                const ptrdiff_t count = shapes[i].m - r < rows ? shapes[i].m - r : rows;
                engine->product(false, count, shapes[i].n, shapes[i].k,
                                shapes[i].columns ? a + r : a + r * shapes[i].k,
                                shapes[i].columns ? 1 : shapes[i].k,
                                shapes[i].columns ? shapes[i].m : 1, b, shapes[i].n,
                                to + r * shapes[i].n, shapes[i].n);
            }
            best = fmin(best, now() - from);
        }
        flops += 2.0 * (double)shapes[i].m * (double)shapes[i].n * (double)shapes[i].k;
        seconds += best;
    }
    free(a);
    free(b);
    free(to);
    return flops / seconds;
}

static int run_bench(const struct args *a)
{
    static const char quick[] =
#define QUICK(text) "," text
#include "lab/list.h"
        ;
    struct lab_wish w = { .arms = a->value[BENCH_ARMS] ? a->value[BENCH_ARMS] : quick + 1,
                          .tasks = a->value[BENCH_TASK] ? a->value[BENCH_TASK] : "text",
                          .size = a->value[BENCH_SIZE],
                          .seeds = 1 };
    struct lab_corpus corpus;
    static struct lab_runs runs;
    loci_host pool;
    const loci_host *host = NULL;
    loci_error e = { .text = "" };
    int threads = 1;
    const char *isa = a->value[BENCH_ISA];
    if (!args_rest(a, 0) || !args_whole(a, BENCH_THREADS, 1, 256, &threads)) return EXIT_ERROR;
    if (isa && !lab_engine(isa, false))
        return fail("lab bench: isa '%s' does not run on this CPU; "
                    "'loci info' lists those that do",
                    isa);
    if (lab_corpus_find(&corpus, NULL, lab_corpus_bytes(lab_wish_length(&w)), &e))
        return fail("lab bench: %s", e.text);
    w.corpus = &corpus;
    if (lab_runs_make(&runs, &w, &e)) return fail("lab bench: %s", e.text);
    if (!start_threads(a, threads, &pool, &host)) return EXIT_ERROR;
    const struct lab_config *first = &runs.list[0];
    const double peak = probe_flops(isa ? isa : best_isa(), NULL, 1),
                 products = time_products(first, isa),
                 peak2 = probe_flops(isa ? isa : best_isa(), NULL, 1),
                 most = peak > peak2 ? peak : peak2;
    struct text t = { .s = NULL };
    if (a->value[BENCH_JSON])
        text_add(
            &t,
            "{\"size\": \"%s\", \"task\": \"%s\", \"threads\": %d, \"peak\": %.6g, \"products\": "
            "%.6g, \"arms\": [",
            first->size, first->task, threads, most, products);
    else {
        printf("size %s, %s, %d tokens in a step, %d thread%s; products alone: %.0f %% of the "
               "multiply-adds probed in the same run\n\n",
               first->size, first->task, first->tokens, threads, threads > 1 ? "s" : "",
               100 * products / most);
        printf("%-16s %10s %9s   share of a step: %8s %9s %6s %7s %6s\n", "arm", "tokens/s",
               "of peak", "layers", "attention", "loss", "update", "other");
    }
    for (int i = 0; i < runs.count; i++) {
        struct timing x;
        struct lab_shape s = lab_config_shape(&runs.list[i]);
        s.isa = isa;
        if (!time_steps(&runs.list[i], &s, host, &x)) return EXIT_ERROR;
        const double flops = lab_config_work(&runs.list[i]).trained_flops / runs.list[i].steps;
        double rest = 1, share[LAB_PARTS];
        for (int k = 0; k < LAB_PARTS; k++) {
            share[k] = x.part[k] / x.step;
            rest -= share[k];
        }
        if (a->value[BENCH_JSON])
            text_add(&t,
                     "%s\n  {\"arm\": \"%s\", \"tokens_per_second\": %.6g, \"of_peak\": %.4g, "
                     "\"layers\": %.4g, \"attention\": %.4g, \"loss\": "
                     "%.4g, \"update\": %.4g}",
                     i ? "," : "", runs.list[i].arm, x.tokens / x.step,
                     flops / x.step / most / threads, share[LAB_LAYERS], share[LAB_MIXING],
                     share[LAB_LOSSES], share[LAB_UPDATE]);
        else {
            printf("%-16s %10.0f %8.0f %%                    %6.0f %% %7.0f %% %4.0f %% %5.0f %% "
                   "%4.0f %%\n",
                   runs.list[i].arm, x.tokens / x.step, 100 * flops / x.step / most / threads,
                   100 * share[LAB_LAYERS], 100 * share[LAB_MIXING], 100 * share[LAB_LOSSES],
                   100 * share[LAB_UPDATE], 100 * rest);
            fflush(stdout);
        }
    }
    if (a->value[BENCH_JSON]) {
        text_add(&t, "]}\n");
        fwrite(t.s, 1, t.n, stdout);
        text_free(&t);
    }
    if (host) loci_pool_destroy(&pool);
    lab_runs_free(&runs);
    lab_corpus_close(&corpus);
    return EXIT_DONE;
}

const struct command cmd_lab_bench = {
    .name = "lab bench",
    .brief = "measure the tokens per second of a training step and its parts",
    .synopsis = "loci lab bench [--size SIZE] [--arms LIST] [--json]",
    .about = "    Medians over a second each.  Layers are products with weights, norms and gelu.\n"
             "    The peak is that of multiply-adds alone, measured in the same run.\n",
    .examples = "    loci lab bench --size M\n",
    .flags = bench_flags,
    .run = run_bench,
};
