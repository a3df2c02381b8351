/* SPDX-License-Identifier: MIT */
/* race.c -- `loci race`: every encoding, fused, against textbook attention without an encoding, in
 * one table. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "contract/encoding.h"
#include "cli/naive.h"
#include "cli/probe.h"
#include "cli/rounds.h"
#include "cli/terminal.h"
#include "cli/task.h"

enum { LEN, DIM, HEADS, FAST, THREADS, ISA, SVG, HTML };
static const struct flag flags[] = {
    [LEN] = { "len", NULL, "N", "tokens (default 2048)" },
    [DIM] = { "dim", NULL, "D", "width of a head, even (default 64)" },
    [HEADS] = { "heads", NULL, "H", "heads (default 2)" },
    [FAST] = { "fast", NULL, NULL,
               "run the fused side in bf16, with dot products if 'loci info' lists them" },
    [THREADS] = { "threads", NULL, "N",
                  "threads of the fused side (default 1; the naive side has one)" },
    [ISA] = { "isa", NULL, "NAME:@isa", "an instruction set of 'loci info' (default: the best)" },
    [SVG] = { "svg", NULL, "FILE:@file", "also write a picture of the times" },
    [HTML] = { "html", NULL, "FILE:@file", "also write a page with the picture and the table" },
    { NULL, NULL, NULL, NULL }
};

struct race {
    int len, dim, heads, threads;
    bool fast;
    const char *isa;
    const loci_host *host;
    struct rounds *rounds; /* a round is a try between two probes of this machine */
};
/* Milliseconds of the fastest try that counts. busy: no try counted for one of the two, and its
 * time is that of its fastest try. best: the best probe so far. */
struct score {
    double forward, step, megabytes, error, best;
    bool busy;
};

/* Seconds for the tries of one pass, and the limit if fewer than WANTED of them count.  At least
 * two tries are made. */
static const double patience = 0.2, most_patience = 1;
enum { SEED = 7, WANTED = 2 };
enum { JUDGED = 256 }; /* errors are measured on at most this number of tokens */

/* ---- The exact result ------------------------------------------------------------------------ */

/* The largest difference, relative to 1 + the largest exact value. */
static double error_of(const void *results, loci_dtype dtype, const double *exact, ptrdiff_t n)
{
    double most = 0, worst = 0;
    for (ptrdiff_t i = 0; i < n; i++)
        if (isfinite(exact[i])) most = fmax(most, fabs(exact[i]));
    for (ptrdiff_t i = 0; i < n; i++) {
        const double got = load_stored(results, dtype, i);
        /* equal infinities have no error; NaN is the largest error */
        double d = got == exact[i] ? 0 : fabs(got - exact[i]);
        if (!(d <= worst)) worst = d;
    }
    return worst / (1 + most);
}

/* Learned tensors are the same numbers for both. */
static double *widen(struct task *t, const void *from, ptrdiff_t n)
{
    double *d = task_alloc(t, (size_t)n, sizeof *d);
    for (ptrdiff_t i = 0; i < n; i++) d[i] = ((const float *)from)[i];
    return d;
}

/* Solves the same problem in float64 with the reference, then finds the largest error of the
 * results in t. */
static bool judge(const struct task *t, double *error)
{
    struct task e;
    loci_desc d = t->desc;
    d.dtype = LOCI_F64;
    d.fast = 0;
    bool ok = task_open(&e, &d, t->batch, t->q_len, t->k_len, NULL);
    if (ok) {
        const ptrdiff_t width = d.stage == LOCI_EMBED ? d.model_dim : (ptrdiff_t)d.heads * d.dim;
        const ptrdiff_t wide = t->batch * t->q_len * width, rows = t->batch * t->q_len * d.heads;
        task_random_inputs(&e, SEED);
        task_gradients(&e);
        /* Uses the stored numbers: rounding the inputs is no error of the encoding. */
        void *const numbers[][2] = {
            { t->x.data, e.x.data },           { t->dy.data, e.dy.data },
            { t->call.q.data, e.call.q.data }, { t->call.k.data, e.call.k.data },
            { t->call.v.data, e.call.v.data }, { t->grad.dout.data, e.grad.dout.data }
        };
        for (int i = 0; i < COUNT(numbers); i++)
            for (ptrdiff_t k = 0; numbers[i][0] && k < wide; k++)
                ((double *)numbers[i][1])[k] = load_stored(numbers[i][0], t->desc.dtype, k);
        for (int i = 0; i < t->tensors; i++)
            e.data[i] = widen(&e, t->data[i], shape_count(t->tensor[i].rank, t->tensor[i].shape));
        ok = !task_reference(&e, true) || refuse("%s: %s", d.encoding, e.error.text);
        struct {
            const void *got, *exact;
            ptrdiff_t n;
            loci_dtype dtype;
        } pairs[] = {
            { t->y.data, e.y.data, wide, t->desc.dtype },
            { t->call.o.data, e.call.o.data, wide, t->desc.dtype },
            { t->call.lse, e.call.lse, rows, t->reals },
            { t->call.rem, e.call.rem, rows, t->reals },
            { t->call.ae, e.call.ae, wide, t->reals },
            { t->grad.dq.data, e.grad.dq.data, wide, t->desc.dtype },
            { t->grad.dk.data, e.grad.dk.data, wide, t->desc.dtype },
            { t->grad.dv.data, e.grad.dv.data, wide, t->desc.dtype },
        };
        for (int i = 0; i < COUNT(pairs); i++) {
            if (!ok || !pairs[i].got) continue;
            const double x = error_of(pairs[i].got, pairs[i].dtype, pairs[i].exact, pairs[i].n);
            *error = fmax(*error, x);
        }
        for (int i = 0; ok && i < t->tensors; i++) {
            if (!t->ddata[i]) continue;
            const ptrdiff_t n = shape_count(t->tensor[i].rank, t->tensor[i].shape);
            *error = fmax(*error, error_of(t->ddata[i], t->reals, e.ddata[i], n));
        }
    }
    task_close(&e);
    return ok;
}

/* ---- The runners ----------------------------------------------------------------------------- */

/* The fused runner: attention, after an embedding if the encoding is one. */
struct fused {
    struct task main, embed;
    bool embeds;
    loci_status status;
};

static void fused_pass(void *arg, bool backward)
{
    struct fused *f = arg;
    if (f->embeds && !f->status) f->status = task_forward(&f->embed);
    if (!f->status) f->status = task_forward(&f->main);
    if (backward && !f->status) f->status = task_backward(&f->main);
    if (backward && f->embeds && !f->status) f->status = task_backward(&f->embed);
}

static void naive_pass(void *arg, bool backward)
{
    naive_forward(arg);
    if (backward) naive_backward(arg);
}

static double probe(const struct race *r) { return probe_flops(r->isa, r->host, r->threads); }

static struct call run_once(const struct race *r, void (*pass)(void *, bool), void *runner,
                            bool backward)
{
    struct call c = { .before = probe(r) };
    const struct spent from = spent_now();
    const double start = now();
    pass(runner, backward);
    c.seconds = now() - start;
    c.taken = taken_between(from, spent_now());
    c.after = probe(r);
    return c;
}

static double seconds_of(const struct pair *p, const void *user)
{
    (void)user;
    return p->mine.seconds;
}

/* Milliseconds of the fastest try that counts: disturbances only slow a try down. */
static double run_fastest(const struct race *r, struct score *s, void (*pass)(void *, bool),
                          void *runner, bool backward)
{
    struct rounds *tries = r->rounds;
    const double start = now();
    double fastest = INFINITY, spent = 0;
    rounds_row(tries);
    while (tries->made < 2
           || (tries->made < PATIENCE * WANTED
               && spent < (rounds_counted(tries) < WANTED ? most_patience : patience))) {
        const struct call c = run_once(r, pass, runner, backward);
        rounds_add(tries, (struct pair){ c, c });
        fastest = fmin(fastest, c.seconds);
        spent = now() - start;
    }
    s->best = tries->best[0];
    const double quiet = rounds_at(tries, seconds_of, NULL, 0);
    if (isnan(quiet)) s->busy = true;
    return 1e3 * (isnan(quiet) ? fastest : quiet);
}

static bool ready(const struct race *r, struct task *t)
{
    task_random_tensors(t, SEED);
    task_random_inputs(t, SEED);
    task_gradients(t);
    t->call.host = r->host;
    return !task_prepare(t, r->len, true) || refuse("%s: %s", t->desc.encoding, t->error.text);
}

/* A training step needs the whole task: tensors, inputs, cotangents and gradient buffers. */
static bool open_fused(const struct race *r, struct fused *f, const char *encoding)
{
    *f = (struct fused){ .embeds = text_places(encoding) == LOCI_PLACE_EMBED };
    const loci_dtype dtype = r->fast ? LOCI_BF16 : LOCI_F32;
    loci_desc d =
        LOCI_DESC(.encoding = f->embeds ? loci_pe_plain() : encoding, .heads = r->heads,
                  .dim = r->dim, .dtype = dtype, .fast = r->fast, .max_len = r->len, .isa = r->isa);
    const loci_desc e = task_embedding(&d, encoding);
    if (!task_open(&f->main, &d, 1, r->len, r->len, NULL) || !ready(r, &f->main)) return false;
    return !f->embeds || (task_open(&f->embed, &e, 1, r->len, r->len, NULL) && ready(r, &f->embed));
}

static void close_fused(struct fused *f)
{
    task_close(&f->main);
    task_close(&f->embed);
}

static bool fine(const struct fused *f)
{
    return !f->status
        || refuse("%s: %s", f->main.desc.encoding,
                  f->main.error.text[0] ? f->main.error.text : f->embed.error.text);
}

/* Errors are measured on the first tokens only, since the reference is slow. */
static struct race shorter(const struct race *r)
{
    struct race few = *r;
    few.len = r->len < JUDGED ? r->len : JUDGED;
    return few;
}

/* Times the full length, then measures errors at a shorter one. */
static bool run_fused(const struct race *r, const char *encoding, struct score *s)
{
    struct fused f;
    bool ok = open_fused(r, &f, encoding);
    *s = (struct score){ 0 };
    if (ok) {
        s->forward = run_fastest(r, s, fused_pass, &f, false);
        s->step = run_fastest(r, s, fused_pass, &f, true);
        s->megabytes = 1e-6
                     * (double)(f.main.table_bytes + f.main.work_bytes + f.embed.table_bytes
                                + f.embed.work_bytes);
        ok = fine(&f);
    }
    close_fused(&f);
    if (!ok) return false;

    const struct race few = shorter(r);
    ok = open_fused(&few, &f, encoding);
    if (ok) {
        fused_pass(&f, true);
        ok = fine(&f) && judge(&f.main, &s->error) && (!f.embeds || judge(&f.embed, &s->error));
    }
    close_fused(&f);
    return ok;
}

/* A runner on the buffers of a plain task.  The task then has its results and is judged like a
 * fused one. */
static bool open_naive(const struct race *r, struct task *t, struct naive *n)
{
    loci_desc d =
        LOCI_DESC(.encoding = loci_pe_plain(), .heads = r->heads, .dim = r->dim, .isa = r->isa);
    if (!task_open(t, &d, 1, r->len, r->len, NULL)) return false;
    task_random_inputs(t, SEED);
    naive_open(n, r->heads, r->len, r->dim);
    n->q = t->call.q.data;
    n->k = t->call.k.data;
    n->v = t->call.v.data;
    n->dout = t->grad.dout.data;
    n->o = t->call.o.data;
    n->lse = t->call.lse;
    n->dq = t->grad.dq.data;
    n->dk = t->grad.dk.data;
    n->dv = t->grad.dv.data;
    return true;
}

/* As run_fused(), with the textbook runner. */
static bool run_naive(const struct race *r, struct score *s)
{
    struct task t;
    struct naive n;
    *s = (struct score){ 0 };
    if (!open_naive(r, &t, &n)) return false;
    s->forward = run_fastest(r, s, naive_pass, &n, false);
    s->step = run_fastest(r, s, naive_pass, &n, true);
    s->megabytes = 1e-6 * (double)n.bytes;
    naive_close(&n);
    task_close(&t);

    const struct race few = shorter(r);
    if (!open_naive(&few, &t, &n)) return false;
    naive_pass(&n, true);
    naive_close(&n);
    const bool ok = judge(&t, &s->error);
    task_close(&t);
    return ok;
}

/* ---- The table ------------------------------------------------------------------------------- */

static void print_line(void)
{
    for (int i = 0; i < 98; i++) putchar('-');
    putchar('\n');
}

static void print_header(const struct race *r)
{
    char cpu[86]; /* with the label, fills 100 columns */
    const char *numbers = "float32";
    if (r->fast) numbers = runs_fast(r->isa) ? "bf16, by dot products" : "bf16";
    printf("%sloci race%s  what fusing the position encoding into attention buys\n\n", PAINT("1"),
           PAINT("0"));
    printf("  the task   %d tokens, %d heads of width %d, causal: "
           "attention, and a training step (forward and\n"
           "             backward with the gradients of q, k, v "
           "and of everything the encoding learns)\n"
           "  naive      textbook attention in float32, one thread, "
           "and %sno encoding at all%s: all scores in\n"
           "             memory, softmax, product; whatever an encoding costs would come on top\n"
           "  fused      loci %s in %s, %s, %d thread%s, %swith the encoding%s\n"
           "  processor  %s\n\n",
           r->len, r->heads, r->dim, PAINT("1"), PAINT("0"), loci_version_text(), numbers, r->isa,
           r->threads, r->threads > 1 ? "s" : "", PAINT("1"), PAINT("0"),
           cpu_name(cpu, sizeof cpu));
    printf("%-26s  %18s  %20s  %17s  %8s\n", "", "forward    ", "training step    ", "memory    ",
           "error");
    printf("%s%-26s  %9s %8s  %11s %8s  %8s %8s  %8s%s\n", PAINT("1"), "", "ms", "faster", "ms",
           "faster", "MB", "less", "to f64", PAINT("0"));
    print_line();
}

static void print_row(const char *name, const struct score *s, const struct score *naive,
                      const char *paint)
{
    const char mark = s->busy || naive->busy ? '?' : 'x';
    printf("%-26.26s  %9.2f %s%7.1f%c%s  %11.2f %s%7.1f%c%s  %8.2f %s%7.0fx%s  %8.1e\n", name,
           s->forward, paint, naive->forward / s->forward, mark, *paint ? PAINT("0") : "", s->step,
           paint, naive->step / s->step, mark, *paint ? PAINT("0") : "", s->megabytes, paint,
           naive->megabytes / s->megabytes, *paint ? PAINT("0") : "", s->error);
    fflush(stdout);
}

/* A row is doubtful if its own times or those of the naive row are: no try counted, or later probes
 * showed a faster machine. */
static int doubtful_rows(const struct race *r, const struct score *s, int rows)
{
    const double near = (1 - r->rounds->tolerance) * r->rounds->best[0];
    int doubtful = 0;
    for (int i = 1; i < rows; i++)
        doubtful += s[i].busy || s[0].busy || s[i].best < near || s[0].best < near;
    return doubtful;
}

static void print_closing(int doubtful, int rows)
{
    print_line();
    if (doubtful)
        printf("%sbusy%s: do not rely on the times of %d of %d rows.  The machine did other work "
               "during them, or\nduring the naive row, which all are compared with (marked ? where "
               "every try was disturbed).\n",
               PAINT("1"), PAINT("0"), doubtful, rows);
    printf("How to read it: a row is one encoding, fused; "
           "'faster' and 'less' compare it with the naive row on\n"
           "top.  Memory is what a training step allocates besides its inputs and results.  "
           "The error is the\n"
           "largest difference from the same computation in float64, "
           "over all results and gradients of the\n"
           "first %d tokens, relative to 1 + the largest value; "
           "float32 itself resolves 6e-08.  Next:\n"
           "'loci list' explains the encodings, 'loci bench' measures them in earnest.\n",
           JUDGED);
}

/* ---- Output files ---------------------------------------------------------------------------- */

enum { ROW_CELLS = 6 };
/* Two figures: the speed ratios, and all numbers. */
static void open_figures(const struct race *r, struct figure *f, int count)
{
    static const char *const head[ROW_CELLS] = { "encoding",   "forward, ms", "training step, ms",
                                                 "memory, MB", "less memory", "error" };
    char cpu[86];
    figure_bars(&f[0], count, 2);
    f[0].what = "race";
    snprintf(f[0].line[0].name, FIGURE_NAME, "forward");
    snprintf(f[0].line[1].name, FIGURE_NAME, "training step");
    snprintf(f[0].y.label, FIGURE_NAME, "times as fast as naive attention without encoding");
    snprintf(f[0].title, sizeof f[0].title, "loci race: %d tokens, %d heads of %d, %d thread%s",
             r->len, r->heads, r->dim, r->threads, r->threads > 1 ? "s" : "");
    snprintf(f[0].about, sizeof f[0].about,
             "Each encoding, fused, against textbook attention in float32 without any, on %s; %s.",
             cpu_name(cpu, sizeof cpu), r->isa);
    figure_table(&f[1], count + 2, ROW_CELLS);
    f[1].what = "race";
    snprintf(f[1].title, sizeof f[1].title, "The numbers");
    for (int i = 0; i < ROW_CELLS; i++) figure_cell(&f[1], 0, i, "%s", head[i]);
}

/* row 0 is the naive one. */
static void put_figures(struct figure *f, int row, const char *name, const struct score *s,
                        const struct score *naive)
{
    if (row > 0) {
        figure_cell(&f[0], row - 1, 0, "%s", name);
        f[0].line[0].y[row - 1] = naive->forward / s->forward;
        f[0].line[1].y[row - 1] = naive->step / s->step;
    }
    figure_cell(&f[1], row + 1, 0, "%s", name);
    figure_cell(&f[1], row + 1, 1, "%.2f", s->forward);
    figure_cell(&f[1], row + 1, 2, "%.2f", s->step);
    figure_cell(&f[1], row + 1, 3, "%.2f", s->megabytes);
    figure_cell(&f[1], row + 1, 4, "%.0fx", naive->megabytes / s->megabytes);
    figure_cell(&f[1], row + 1, 5, "%.1e", s->error);
}

static void say_busy(struct figure *f, int doubtful, int rows)
{
    const size_t used = strlen(f->about);
    snprintf(f->about + used, sizeof f->about - used,
             "  The machine was busy: do not rely on the times of %d of %d encodings.", doubtful,
             rows);
}

static int write_figures(const struct args *a, const struct figure *f)
{
    struct text t = { 0 };
    int code = EXIT_DONE;
    if (a->value[SVG]) {
        figure_svg(&t, f);
        code = write_text(&t, a->value[SVG]);
    }
    if (!code && a->value[HTML]) {
        figures_html(&t, "loci race", "What fusing the position encoding into attention buys.", f,
                     2, false);
        code = write_text(&t, a->value[HTML]);
    }
    return code;
}

/* The naive row comes first, since all others are compared with it. */
static int run_all(const struct race *r, const struct args *a)
{
    const loci_encoding_info *list;
    int known = loci_encodings(&list), count = a->rest_count ? a->rest_count : known;
    struct figure f[2] = { 0 };
    struct score *s = alloc((size_t)count + 1, sizeof *s);
    print_header(r);
    int code = run_naive(r, &s[0]) ? EXIT_DONE : EXIT_ERROR;
    if (!code) print_row("naive, no encoding", &s[0], &s[0], "");
    if (!code) print_line();
    open_figures(r, f, count);
    put_figures(f, 0, "naive, no encoding", &s[0], &s[0]);
    for (int i = 0; i < count && !code; i++) {
        const char *encoding = a->rest_count ? runnable_text(a->rest[i]) : list[i].example;
        if (!run_fused(r, encoding, &s[i + 1])) code = EXIT_ERROR;
        else print_row(encoding, &s[i + 1], &s[0], PAINT("32"));
        put_figures(f, i + 1, encoding, &s[i + 1], &s[0]);
    }
    const int doubtful = doubtful_rows(r, s, count + 1);
    if (!code) print_closing(doubtful, count);
    if (doubtful) say_busy(&f[0], doubtful, count);
    if (!code) code = write_figures(a, f);
    figure_free(&f[0]);
    figure_free(&f[1]);
    free(s);
    return code;
}

static int run(const struct args *a)
{
    const char *isa = a->value[ISA] ? a->value[ISA] : best_isa();
    struct rounds rounds = { .wanted = WANTED, .tolerance = 0.04 };
    struct race r = { .len = 2048,
                      .dim = 64,
                      .heads = 2,
                      .threads = 1,
                      .fast = a->value[FAST] != NULL,
                      .isa = isa,
                      .rounds = &rounds };
    loci_host pool;
    /* the naive runner stores [heads][len][len] weights */
    if (!args_whole(a, LEN, 1, 16384, &r.len) || !args_whole(a, DIM, 1, 1024, &r.dim)
        || !args_whole(a, HEADS, 1, 256, &r.heads) || !args_whole(a, THREADS, 1, 256, &r.threads)
        || !args_output(a, SVG) || !args_output(a, HTML))
        return EXIT_ERROR;
    if (!start_threads(a, r.threads, &pool, &r.host)) return EXIT_ERROR;
    rounds_open(&rounds);
    int code = run_all(&r, a);
    rounds_close(&rounds);
    if (r.host) loci_pool_destroy(&pool);
    return code;
}

const struct command cmd_race = {
    .name = "race",
    .brief = "compare every encoding, fused, with naive attention: time, memory, error",
    .synopsis = "loci race [ENCODING...] [--len N] [--dim D] [--heads H] [--fast] "
                "[--threads N] [--isa NAME]\n         [--svg FILE] [--html FILE]",
    .about = "    Runs each encoding (without names: all of them) forward, and forward with\n"
             "    backward.  Time and memory are compared with textbook attention without any\n"
             "    encoding; all results and gradients are compared with the float64 reference.\n"
             "    It takes less than a minute.  As in 'loci bench', a try counts only if nothing\n"
             "    else disturbs the machine.  If none counts, the row has ? for x, and the last\n"
             "    lines say busy.  For reliable figures, use 'loci bench'.\n",
    .examples = "    loci race\n"
                "    loci race t5 alibi rope:pairing=interleaved+fox --len 4096 --threads 2\n",
    .operand_text = "@encoding...",
    .flags = flags,
    .run = run,
};
