/* SPDX-License-Identifier: MIT */
/* bench.c -- `loci bench`: each encoding against plain attention and against the limits of this
 * machine, or this build against another one.
 *
 * The speed of a machine changes from second to second, so no comparison spans rounds.  Every round
 * calls plain attention and the encoding, with a probe before, between and after.  Ratios are
 * computed within the round.  Rounds with a disturbed probe do not count and are repeated.  Medians
 * are over the rounds that count (rounds.h).
 *
 * Read and copy speed vary by a tenth and more even on an idle machine, with the placement of
 * memory and its other users.  So those probes may be further below the best one, but still far
 * above the speed of half a machine.  Such a call is judged by the mean of its two probes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "contract/encoding.h"
#include "cli/bench_parallel.h"
#include "cli/device.h"
#include "cli/json.h"
#include "cli/ranks.h"
#include "cli/rounds.h"
#include "cli/serve.h"

enum {
    PASS,
    LEN,
    ROWS,
    CACHE,
    DIM,
    HEADS,
    KV_HEADS,
    BATCH,
    DTYPE,
    KV_DTYPE,
    VALUES_IN_KEYS,
    FAST,
    THREADS,
    ISA,
    FULL,
    LASTING,
    DROPOUT,
    REPEAT,
    AGAINST,
    SERVE,
    PARALLEL,
    RANKS,
    DEVICE,
    JSON
};
enum { SITTINGS = 4 };      /* processes of --against */
enum { DEVICE_HEADS = 16 }; /* enough to fill one */
static const struct flag flags[] = {
    [PASS] = { "pass", NULL, "PASS:forward|backward|both|decode|prefill-chunk|rotate",
               "forward (default), backward, both, decode, prefill-chunk or rotate" },
    [LEN] = { "len", NULL, "N[,N...]",
              "tokens, with the new ones of decode and prefill-chunk (default 4096)" },
    [ROWS] = { "rows", NULL, "N",
               "prefill-chunk: new tokens, the last ones of --len (default 512)" },
    [CACHE] = { "cache", NULL, NULL,
                "decode, prefill-chunk: keys are in a loci_cache; append the new tokens" },
    [DIM] = { "dim", NULL, "D", "width of a head (default 64)" },
    [HEADS] = { "heads", NULL, "H",
                "query heads (default 8, or fewer if calls would be long; --device: 16)" },
    [KV_HEADS] = { "kv-heads", NULL, "K",
                   "key and value heads (default: all; sets --heads to 8 unless given)" },
    [BATCH] = { "batch", NULL, "B", "batch entries (default 1)" },
    [DTYPE] = { "dtype", NULL, "TYPE:f32|bf16|f16",
                "stored type of q, k, v and o: f32 (default), bf16 or f16" },
    [KV_DTYPE] = { "kv-dtype", NULL, "TYPE:same|bf16|f16|q8_0",
                   "stored type of k and v: same (as q, default), bf16, f16 or q8_0" },
    [VALUES_IN_KEYS] = { "values-in-keys", NULL, "N",
                         "decode, prefill-chunk: values are the first N channels of the keys" },
    [FAST] = { "fast", NULL, NULL,
               "with bf16: use the CPU's bf16 dot products, if 'loci info' lists them" },
    [THREADS] = { "threads", NULL, "N", "threads (default 1)" },
    [ISA] = { "isa", NULL, "NAME:@isa", "an instruction set of 'loci info' (default: the best)" },
    [FULL] = { "full", NULL, NULL, "every query sees every key (default: causal)" },
    [LASTING] = { "lasting", NULL, NULL, "fox, sba: inputs for which no key can be skipped" },
    [DROPOUT] = { "dropout", NULL, "P",
                  "drop weights with this probability, below 1; nope is measured without" },
    [REPEAT] = { "repeat", NULL, "R",
                 "quiet rounds, at least 5 (default 7); at most 10 R rounds are run" },
    [AGAINST] = { "against", NULL, "PROGRAM:@file",
                  "compare with another build of loci instead of nope, interleaved" },
    [SERVE] = { "serve", NULL, NULL,
                "run calls on request from stdin, for the --against of another build" },
    [PARALLEL] = { "parallel", NULL, "SHARES:zigzag|contiguous|zigzag,gather|contiguous,gather",
                   "one attention over ranks: zigzag or contiguous, optionally with ,gather" },
    [RANKS] = { "ranks", NULL, "N",
                "--parallel: N threads as ranks (default: the processes of an MPI job)" },
    [DEVICE] = { "device", NULL, "NAME", "measure on a device of 'loci info', such as cuda:0" },
    [JSON] = { "json", NULL, NULL, "one JSON object per line" },
    { NULL, NULL, NULL, NULL }
};

enum { MAX_ROUNDS = 1000, MAX_LENS = 32 };

struct bench {
    struct problem problem;
    struct rounds rounds;
    const char *against; /* a program, or NULL */
    char version[32];    /* version of `against` */
    bool json;
    int rows, judged; /* rows: printed; judged: reviewed after later probes */
    /* best probe so far, at each row */
    double *best;
};

/* NaN means that the pass does not have the figure.  All are NaN if no round counts. */
struct row {
    const char *encoding;
    int counted;
    double seconds, gflops, peak, percent, gbytes, percent_bytes, to_nope;
    double other, ratio, low, high; /* --against */
    size_t workspace;
};

/* ---- Figures of a round ---------------------------------------------------------------------- */

static double seconds_of(const struct pair *r, const void *p)
{
    (void)p;
    return r->mine.seconds;
}
static double other_of(const struct pair *r, const void *p)
{
    (void)p;
    return r->other.seconds;
}
static double flops_of(const struct pair *r, const void *p)
{
    (void)p;
    return r->mine.flops;
}

static double ratio_of(const struct pair *r, const void *p)
{
    (void)p;
    return r->mine.seconds / r->other.seconds;
}

static double percent_of(const struct pair *r, const void *p)
{
    return 100 * useful_flops(p) / r->mine.seconds / r->mine.flops;
}

static double percent_of_bytes(const struct pair *r, const void *p)
{
    return 100 * moved_bytes(p) / r->mine.seconds / ((r->mine.before + r->mine.after) / 2);
}

static struct row summary(const struct bench *b, const char *encoding, size_t workspace)
{
    const struct rounds *r = &b->rounds;
    const struct problem *p = &b->problem;
    struct row row = { encoding,
                       rounds_counted(r),
                       rounds_at(r, seconds_of, p, 0.5),
                       NAN,
                       NAN,
                       NAN,
                       NAN,
                       NAN,
                       NAN,
                       NAN,
                       NAN,
                       NAN,
                       NAN,
                       workspace };
    if (p->pass != ROTATE) {
        row.gflops = 1e-9 * useful_flops(p) / row.seconds;
        row.peak = 1e-9 * rounds_at(r, flops_of, p, 0.5);
        row.percent = rounds_at(r, percent_of, p, 0.5);
    }
    if (by_memory(p)) {
        row.gbytes = 1e-9 * moved_bytes(p) / row.seconds;
        row.percent_bytes = rounds_at(r, percent_of_bytes, p, 0.5);
    }
    if (b->against) {
        row.other = rounds_at(r, other_of, p, 0.5);
        row.ratio = rounds_at(r, ratio_of, p, 0.5);
        row.low = rounds_at(r, ratio_of, p, 0.25);
        row.high = rounds_at(r, ratio_of, p, 0.75);
    } else row.to_nope = rounds_at(r, ratio_of, p, 0.5);
    return row;
}

/* ---- Rows ------------------------------------------------------------------------------------ */

static void print_json(const struct bench *b, const struct row *r)
{
    const struct problem *p = &b->problem;
    json_t *j = problem_json(p, r->encoding);
    json_object_set_new(j, "fast", json_boolean(p->dots));
    json_object_set_new(j, "isa", json_string(p->isa));
    json_object_set_new(j, "threads", json_integer(p->threads));
    json_object_set_new(j, "seconds", json_number_or_null(r->seconds));
    json_object_set_new(j, "gflops", json_number_or_null(r->gflops));
    json_object_set_new(j, "peak_gflops", json_number_or_null(r->peak));
    json_object_set_new(j, "percent_of_peak", json_number_or_null(r->percent));
    json_object_set_new(j, "gbytes_per_s", json_number_or_null(r->gbytes));
    json_object_set_new(j, "percent_of_stream", json_number_or_null(r->percent_bytes));
    json_object_set_new(j, "ratio_to_nope", json_number_or_null(r->to_nope));
    json_object_set_new(j, "workspace_bytes", json_integer((json_int_t)r->workspace));
    json_object_set_new(j, "counted", json_integer(r->counted));
    json_object_set_new(j, "made", json_integer(b->rounds.made));
    json_object_set_new(j, "best_probe", json_real(1e-9 * b->rounds.best[0]));
    if (b->against) {
        json_object_set_new(j, "against", json_text(b->against));
        json_object_set_new(j, "against_version", json_string(b->version));
        json_object_set_new(j, "against_seconds", json_number_or_null(r->other));
        json_object_set_new(j, "ratio", json_number_or_null(r->ratio));
        json_object_set_new(j, "ratio_low", json_number_or_null(r->low));
        json_object_set_new(j, "ratio_high", json_number_or_null(r->high));
    }
    json_print(j);
}

static const char *unit(const struct problem *p) { return by_memory(p) ? "GB/s" : "GFLOP/s"; }
static const char *limit_name(const struct problem *p)
{
    return !by_memory(p) ? "peak" : p->pass == DECODE ? "read" : "copy";
}

/* Prints everything that is the same in all rows. */
static void print_title(const struct bench *b)
{
    const struct problem *p = &b->problem;
    char rows[32] = "", kv[32] = "", of[16], cpu[48];
    if (p->pass == CHUNK) snprintf(rows, sizeof rows, " of %td rows", p->rows);
    snprintf(of, sizeof of, "%% of %s", limit_name(p));
    if (p->kv_dtype) snprintf(kv, sizeof kv, " with k and v in %s", kv_dtype_name(p));
    printf("loci %s  %s, %s%s%s, %d thread%s, %s%s%s, batch %d, heads %d/%d, width %d, %s\n",
           loci_version_text(), p->isa, dtype_names[p->dtype], kv, p->dots ? " dot products" : "",
           p->threads, p->threads > 1 ? "s" : "", pass_names[p->pass], rows,
           p->cached ? " with a cache" : "", p->batch, p->heads, p->kv_heads, p->dim,
           p->full ? "full" : "causal");
    if (p->values_in_keys)
        printf("values are the first %d channels of the keys\n", p->values_in_keys);
    if (p->dropout > 0) printf("dropout %g, which nope is measured without\n", p->dropout);
    printf("%s, %s %.1f %s at best; quiet: rounds whose probes are within %.0f %%\n",
           cpu_name(cpu, sizeof cpu), limit_name(p), 1e-9 * b->rounds.best[0], unit(p),
           100 * b->rounds.tolerance);
    if (b->against) {
        printf("against ");
        print_plain(stdout, b->against);
        printf(" (loci %s): x is our time to its time, with the quartiles\n", b->version);
        printf("%s%-28s %7s %9s %9s %9s %8s %13s %9s%s\n", PAINT("1"), "encoding", "len", "ms", of,
               "its ms", "x", "25-75 %", "quiet", PAINT("0"));
    } else {
        printf("%s%-28s %7s %9s %9s %9s %8s %13s %9s%s\n", PAINT("1"), "encoding", "len", "ms",
               unit(p), of, "x nope", "workspace", "quiet", PAINT("0"));
    }
}

/* Prints a figure, or a dash if there is none. */
static const char *cell(char text[16], double x, int digits)
{
    if (isfinite(x)) snprintf(text, 16, "%.*f", digits, x);
    else snprintf(text, 16, "-");
    return text;
}

/* Printed with the first row, so that an error comes without a table. */
static void print_row(const struct bench *b, const struct row *r)
{
    const struct problem *p = &b->problem;
    const bool bytes = by_memory(p);
    char ms[16], rate[16], percent[16], ratio[16], other[16], range[32] = "-", quiet[32];
    if (!b->rows) print_title(b);
    cell(ms, 1e3 * r->seconds, 3);
    cell(rate, bytes ? r->gbytes : r->gflops, 1);
    cell(percent, bytes ? r->percent_bytes : r->percent, 1);
    if (isfinite(r->low)) snprintf(range, sizeof range, "%.3f-%.3f", r->low, r->high);
    cell(ratio, b->against ? r->ratio : r->to_nope, 3);
    snprintf(quiet, sizeof quiet, "%d of %d", r->counted, b->rounds.made);
    printf("%-28.28s %7td %9s ", r->encoding, p->len, r->counted ? ms : "busy");
    if (b->against)
        printf("%9s %9s %8s %13s %9s\n", percent, cell(other, 1e3 * r->other, 3), ratio, range,
               quiet);
    else
        printf("%9s %9s %8s %9.1f KiB %9s\n", rate, percent, ratio, (double)r->workspace / 1024,
               quiet);
    fflush(stdout);
}

/* Rows measured while the machine was constantly slower looked undisturbed at the time.  Judges the
 * rows since the last review, all of which had the same limit. */
static void judge_rows(struct bench *b)
{
    const double best = b->rounds.best[0], near = (1 - b->rounds.tolerance) * best;
    int early = 0;
    while (b->judged + early < b->rows && b->best[b->judged + early] < near) early++;
    if (early && !b->json)
        printf("%sbusy%s: %d row%s above %s from before the machine did %.1f %s\n", PAINT("1"),
               PAINT("0"), early, early > 1 ? "s" : "", early > 1 ? "are" : "is", 1e-9 * best,
               unit(&b->problem));
    b->judged = b->rows;
}

/* ---- Rounds ---------------------------------------------------------------------------------- */

/* Alternates plain attention and the encoding.  A rotation has no plain counterpart.  The probe
 * after a call is also the probe before the next one. */
static bool measure(struct bench *b, const char *encoding, size_t *workspace)
{
    struct problem *p = &b->problem;
    struct contender plain = { 0 }, c = { 0 };
    const bool alone = p->pass == ROTATE;
    double probe = 0;
    problem_open(p);
    bool ok = alone || contender_open(p, &plain, loci_pe_plain());
    plain.main.call.dropout = 0;
    ok = ok && contender_open(p, &c, encoding);
    while (ok && rounds_due(&b->rounds)) {
        struct pair r;
        ok = (alone || contender_call(p, &plain, plain.steps, &probe, &r.other))
          && contender_call(p, &c, c.steps, &probe, &r.mine);
        if (!ok) break;
        if (alone) {
            r.other = r.mine;
            r.other.seconds = NAN;
        }
        rounds_add(&b->rounds, r);
    }
    *workspace = c.main.work_bytes;
    contender_close(&plain);
    contender_close(&c);
    problem_close(p);
    return ok;
}

/* Alternates both builds until another `counting` rounds count.  The order changes from round to
 * round.  A process keeps the memory that it got when it was opened.  This placement makes
 * memory-bound passes a tenth faster or slower for its lifetime, and usually slower for the process
 * opened first.  So processes are opened SITTINGS times, in alternating order. */
static bool sitting(struct bench *b, const char *encoding, bool turned, int counting, int *steps,
                    size_t *workspace)
{
    const char *const program[2] = { NULL, b->against };
    const int until = rounds_counted(&b->rounds) + counting,
              most = b->rounds.made + PATIENCE * counting;
    struct server server[2] = { 0 };
    bool ok = server_open(&server[turned], &b->problem, encoding, program[turned])
           && server_open(&server[!turned], &b->problem, encoding, program[!turned]);
    snprintf(b->version, sizeof b->version, "%s", server[1].version);
    *workspace = server[0].workspace;
    for (int i = 0; ok && i < 2; i++)
        if (*steps == 0 || server[i].steps < *steps) *steps = server[i].steps;
    while (ok && rounds_due(&b->rounds) && b->rounds.made < most
           && rounds_counted(&b->rounds) < until) {
        struct pair r;
        struct call *const call[2] = { &r.mine, &r.other };
        const bool first = b->rounds.made % 2;
        ok = server_call(&server[first], *steps, call[first])
          && server_call(&server[!first], *steps, call[!first]);
        if (ok) rounds_add(&b->rounds, r);
    }
    server_close(&server[0]);
    server_close(&server[1]);
    return ok;
}

static bool measure_against(struct bench *b, const char *encoding, size_t *workspace)
{
    const int counting = (b->rounds.wanted + SITTINGS - 1) / SITTINGS;
    int steps = 0; /* both use the same number of steps in all rounds */
    bool ok = true;
    for (bool turned = false; ok && rounds_due(&b->rounds); turned = !turned)
        ok = sitting(b, encoding, turned, counting, &steps, workspace);
    return ok;
}

static bool bench_one(struct bench *b, const char *encoding)
{
    size_t workspace;
    rounds_row(&b->rounds);
    if (!(b->against ? measure_against : measure)(b, encoding, &workspace)) return false;
    const struct row row = summary(b, encoding, workspace);
    if (b->json) print_json(b, &row);
    else print_row(b, &row);
    b->best[b->rows++] = b->rounds.best[0];
    return true;
}

/* ---- The command ----------------------------------------------------------------------------- */

/* Returns the number of lengths, or 0 if the text is no such list. */
static int parse_lens(const char *text, ptrdiff_t *len)
{
    int n = 0;
    for (const char *p = text; *p; p += strcspn(p, ","), p += *p == ',') {
        char one[16];
        int64_t value;
        snprintf(one, sizeof one, "%.*s", (int)strcspn(p, ","), p);
        if (n == MAX_LENS || strcspn(p, ",") >= sizeof one || !parse_whole(one, &value) || value < 1
            || value > 1 << 24)
            return 0;
        len[n++] = (ptrdiff_t)value;
    }
    return n;
}

/* The default selection: encodings that suit this pass and mask. */
static bool fits(const struct problem *p, const loci_encoding_info *e)
{
    const bool rotates = loci_pe_find(e->name, strlen(e->name))->rotates;
    return (p->pass != ROTATE || rotates) && !(p->full && e->causal_only);
}

/* Reads all numbers of the command line before anything is allocated from them. */
static bool parse(const struct args *a, struct bench *b, int *pass, int *rows)
{
    struct problem *p = &b->problem;
    return args_word(a, PASS, pass) && args_whole(a, ROWS, 1, 1 << 24, rows)
        && args_whole(a, DIM, 1, 1024, &p->dim) && args_whole(a, HEADS, 1, 1024, &p->heads)
        && args_whole(a, KV_HEADS, 1, 1024, &p->kv_heads)
        && args_whole(a, BATCH, 1, 4096, &p->batch) && args_word(a, DTYPE, &p->dtype)
        && args_word(a, KV_DTYPE, &p->kv_dtype)
        && args_whole(a, VALUES_IN_KEYS, 1, 1024, &p->values_in_keys)
        && args_whole(a, THREADS, 1, 256, &p->threads)
        && args_whole(a, REPEAT, 5, MAX_ROUNDS, &b->rounds.wanted);
}

static void set_len(struct problem *p, ptrdiff_t len, int rows)
{
    p->len = len;
    p->rows = p->pass == DECODE ? 1 : p->pass == CHUNK ? rows : len;
}

/* Sized for the longest length, so that all rows of a table have one shape. */
static void choose_heads(const struct args *a, struct problem *p, const ptrdiff_t *len, int lens,
                         int rows)
{
    ptrdiff_t longest = 0;
    for (int i = 0; i < lens; i++)
        if (len[i] > longest) longest = len[i];
    set_len(p, longest, rows);
    if (!a->value[HEADS] && !a->value[KV_HEADS])
        p->heads = a->value[DEVICE] ? DEVICE_HEADS : usual_heads(p);
    /* a rotation rotates queries and has no keys to share */
    if (!a->value[KV_HEADS] || p->pass == ROTATE) p->kv_heads = p->heads;
}

/* Runs every encoding at every length.  The bytes to copy depend on the length, and so does the
 * limit. */
static bool bench_all(const struct args *a, struct bench *b, const ptrdiff_t *len, int lens,
                      int rows)
{
    const loci_encoding_info *list;
    struct problem *p = &b->problem;
    int known = loci_encodings(&list), count = a->rest_count ? a->rest_count : known;
    bool ok = true;
    b->best = alloc((size_t)(lens * count), sizeof *b->best);
    rounds_open(&b->rounds);
    for (int i = 0; i < lens && ok; i++) {
        set_len(p, len[i], rows);
        for (int k = 0; k < count && ok; k++)
            if (a->rest_count || fits(p, &list[k]))
                ok = bench_one(b, a->rest_count ? runnable_text(a->rest[k]) : list[k].example);
        if (p->pass != ROTATE && i < lens - 1) continue;
        if (ok) judge_rows(b);
        rounds_forget(&b->rounds);
    }
    rounds_close(&b->rounds);
    free(b->best);
    return ok;
}

/* One attention over ranks: each encoding in turn, at every length. */
static int run_parallel(const struct args *a, struct problem *p, bool json, int repeat,
                        const ptrdiff_t *len, int lens)
{
    struct spread s = { .json = json, .repeat = repeat < 60 ? repeat : 60 };
    if ((p->pass != FORWARD && p->pass != BACKWARD) || p->fast || a->value[AGAINST]
        || a->value[SERVE] || p->cached || p->dropout > 0)
        return fail("bench: --parallel supports --pass forward and backward, without --fast, "
                    "--cache, --dropout, --against and --serve");
    if (!spread_parse(&s, a->value[PARALLEL])
        || (a->value[RANKS] && !args_whole(a, RANKS, 1, MOST_RANKS, &s.ranks)))
        return EXIT_ERROR;
    if (!s.ranks && !ranks_in_job())
        return fail("bench: --parallel needs --ranks N for threads as ranks, or mpirun, where each "
                    "process is a rank");
    if (!a->rest_count) return fail("bench: --parallel needs the names of encodings");
    for (int i = 0; i < lens; i++)
        for (int k = 0; k < a->rest_count; k++) {
            set_len(p, len[i], 0);
            if (!bench_parallel(&s, p, runnable_text(a->rest[k]))) return EXIT_ERROR;
        }
    return EXIT_DONE;
}

/* The passes on a device, at every length.  Its multiply-adds and copies are probed first. */
static int run_on_device(const struct args *a, struct problem *p, bool json, int repeat,
                         const ptrdiff_t *len, int lens, int rows)
{
    static const int not_there[] = { CACHE,   FAST,  THREADS,  ISA,  DROPOUT,
                                     AGAINST, SERVE, PARALLEL, RANKS };
    const loci_encoding_info *list;
    const int known = loci_encodings(&list), count = a->rest_count ? a->rest_count : known;
    struct device_bench b = { .repeat = repeat, .json = json, .all = !a->rest_count };
    for (int i = 0; i < COUNT(not_there); i++)
        if (a->value[not_there[i]])
            return fail("bench: --device does not support --%s", flags[not_there[i]].name);
    if (!device_open(a, DEVICE, &b.gpu)) return EXIT_ERROR;
    bool ok = device_bench_open(&b);
    for (int i = 0; i < lens; i++)
        for (int k = 0; k < count && ok; k++) {
            set_len(p, len[i], rows);
            if (a->rest_count || fits(p, &list[k]))
                ok = device_bench_one(&b, p,
                                      a->rest_count ? runnable_text(a->rest[k]) : list[k].example);
        }
    device_bench_close(&b, ok);
    device_close(b.gpu);
    return ok ? EXIT_DONE : EXIT_ERROR;
}

static int run(const struct args *a)
{
    struct bench b = { .problem = { .dim = 64,
                                    .heads = 8,
                                    .batch = 1,
                                    .threads = 1,
                                    .full = a->value[FULL] != NULL,
                                    .cached = a->value[CACHE] != NULL,
                                    .lasting = a->value[LASTING] != NULL,
                                    .fast = a->value[FAST] != NULL,
                                    .isa = a->value[ISA] ? a->value[ISA] : best_isa() },
                       .rounds = { .wanted = 7, .apart = a->value[AGAINST] != NULL },
                       .against = a->value[AGAINST],
                       .json = a->value[JSON] != NULL };
    struct problem *p = &b.problem;
    int pass = FORWARD, rows = 512;
    ptrdiff_t len[MAX_LENS];
    if (!parse(a, &b, &pass, &rows)) return EXIT_ERROR;
    p->pass = (enum pass)pass;
    if (a->value[DROPOUT]
        && (!parse_number(a->value[DROPOUT], &p->dropout) || p->dropout < 0 || p->dropout >= 1))
        return fail("bench: --dropout must be a number from 0 and below 1, not '%s'",
                    a->value[DROPOUT]);
    if (p->dropout > 0 && p->pass > BOTH)
        return fail("bench: --dropout needs --pass forward, backward or both");
    b.rounds.tolerance = by_memory(p) ? 0.25 : 0.04;
    /* Only forward passes have bf16 dot products, and only some CPUs. */
    p->dots = p->fast && (p->pass == FORWARD || p->pass == CHUNK) && runs_fast(p->isa);
    if (a->value[ROWS] && p->pass != CHUNK) return fail("bench: --rows needs --pass prefill-chunk");
    if (p->kv_dtype && p->pass != FORWARD && !inference(p))
        return fail("bench: --kv-dtype needs --pass forward, decode or prefill-chunk");
    if (strcmp(kv_dtype_name(p), "q8_0") == 0 && p->dim % 32)
        return fail("bench: --kv-dtype q8_0 needs a --dim that is a multiple of 32, not %d",
                    p->dim);
    if (p->values_in_keys && !inference(p))
        return fail("bench: --values-in-keys needs --pass decode or prefill-chunk");
    if (p->values_in_keys > p->dim)
        return fail("bench: --values-in-keys %d must be at most --dim, which is %d",
                    p->values_in_keys, p->dim);
    if (p->kv_dtype && p->lasting) return fail("bench: --kv-dtype does not support --lasting");
    if (p->cached && !inference(p))
        return fail("bench: --cache needs --pass decode or prefill-chunk");
    int lens = parse_lens(a->value[LEN] ? a->value[LEN] : "4096", len);
    if (!lens)
        return fail("bench: --len must be up to %d whole numbers from 1 to %d, "
                    "as in 1024,4096, not '%s'",
                    MAX_LENS, 1 << 24, a->value[LEN]);
    for (int i = 0; i < lens && p->pass == CHUNK; i++)
        if (rows > len[i])
            return fail("bench: --rows %d must be at most --len, which is %td", rows, len[i]);
    if (a->value[SERVE] && (a->rest_count != 1 || lens != 1 || b.against))
        return fail("bench: --serve needs exactly one encoding and one length, and no --against");
    choose_heads(a, p, len, lens, rows);
    if (a->value[DEVICE]) return run_on_device(a, p, b.json, b.rounds.wanted, len, lens, rows);
    if (a->value[PARALLEL]) return run_parallel(a, p, b.json, b.rounds.wanted, len, lens);
    if (a->value[RANKS]) return fail("bench: --ranks needs --parallel");

    loci_host pool; /* serving processes have their own */
    if (!b.against && !start_threads(a, p->threads, &pool, &p->host)) return EXIT_ERROR;
    int code;
    if (a->value[SERVE]) code = serve(p, runnable_text(a->rest[0]));
    else code = bench_all(a, &b, len, lens, rows) ? EXIT_DONE : EXIT_ERROR;
    if (p->host) loci_pool_destroy(&pool);
    return code;
}

const struct command cmd_bench = {
    .name = "bench",
    .brief = "measure encodings against plain attention and the machine's limits",
    .synopsis =
        "loci bench [ENCODING...] [--pass PASS] [--len N[,N...]] [--rows N] [--cache] [--dim D]\n"
        "               [--heads H] [--kv-heads K] [--batch B] [--dtype TYPE]\n"
        "               [--kv-dtype TYPE] [--values-in-keys N] [--fast] [--threads N]\n"
        "               [--isa NAME] [--full] [--lasting] [--dropout P] [--repeat R]\n"
        "               [--against PROGRAM] [--serve] [--parallel SHARES] [--ranks N]\n"
        "               [--device NAME] [--json]",
    .about =
        "    Without names: every encoding that the pass and the mask allow.  Rounds of each\n"
        "    encoding are interleaved with nope at the same shape and with probes of this\n"
        "    machine (multiply-adds, reading, copying).  Ratios are computed within a round;\n"
        "    the table shows medians.  Flops count visible pairs only: 4 D forward, 10 D\n"
        "    backward, 14 D both.  The time includes everything that the encoding does in a\n"
        "    call.  An encoding of embeddings is measured as its embedding plus plain\n"
        "    attention.  With --fast, forward passes are compared with the bf16 dot products\n"
        "    of this CPU, if it has them.\n"
        "\n"
        "    decode is one query against --len keys from memory, rotated in advance if\n"
        "    possible.  GB/s counts K and V once and is compared with reading.  prefill-chunk\n"
        "    is the last --rows queries against such keys.  With --cache, a step appends its\n"
        "    new tokens to a cache and then attends.  With --values-in-keys, as in latent\n"
        "    attention, decode is compared with multiply-adds.  rotate rotates [batch, heads,\n"
        "    len, dim] and is compared with copying.\n"
        "\n"
        "    Other programs on the machine disturb measurements for seconds at a time.  So\n"
        "    calls are short, with a probe of a millisecond before and after each.  A round\n"
        "    counts only if all its probes are within 4 % of the best one of the run (25 % for\n"
        "    reading and copying, which vary more) and other processes had the core for at\n"
        "    most 2 % of a call.  'quiet 7 of 12' means that 7 of 12 rounds counted.  If none\n"
        "    did, the row says busy and has no figures.  JSON then has null for them; it also\n"
        "    has counted, made and best_probe (in units of 1e9 per second).\n"
        "\n"
        "    --against measures another build, interleaved with this one, instead of nope.  It\n"
        "    shows the ratio of our time to its time, median and quartiles.  PROGRAM must\n"
        "    support --serve: 'loci bench t5 --serve' prepares a call and prints a line of\n"
        "    JSON.  For each line on stdin, a number of steps, it runs the call and prints\n"
        "    the time of a step.\n"
        "\n"
        "    --parallel divides the rows of each problem among ranks and compares them with\n"
        "    one process that has the same number of threads in all: bits, time, traffic and\n"
        "    memory, with the values of the model.  zigzag gives each rank an early and a\n"
        "    late piece, contiguous gives it one.  Keys are streamed in chunks; with\n"
        "    zigzag,gather or contiguous,gather they are collected.  Figures are medians of\n"
        "    --repeat rounds; 100 % is the time of one process.  Under mpirun each process is\n"
        "    a rank, and libloci-mpi is loaded.\n"
        "\n"
        "    --device measures a pass on a GPU, by its own clock, without --cache.  Its\n"
        "    multiply-adds and copies are probed in the same run; 100 % is the probed rate of\n"
        "    float32, or of copies where the columns have GB/s.  Figures are medians of\n"
        "    --repeat rounds, interleaved with nope, which rotate is not.\n"
        "    Without names: every encoding that runs there.\n",
    .examples =
        "    loci bench\n"
        "    loci bench alibi t5 --len 1024,4096 --pass backward\n"
        "    loci bench rope:pairing=half --pass rotate --threads 2\n"
        "    loci bench --pass decode --len 16384 --kv-heads 2 --json\n"
        "    loci bench nope --pass decode --dim 576 --values-in-keys 512 --heads 128 \\\n"
        "        --kv-heads 1 --cache\n"
        "    loci bench rope --pass prefill-chunk --rows 16 --len 8192 --cache --dtype bf16\n"
        "    loci bench nope --len 1024 --repeat 30 --against ../before/build/loci\n"
        "    loci bench t5 --parallel zigzag --ranks 2 --len 16384 --heads 8 --kv-heads 2\n"
        "    mpirun -n 4 loci bench t5 --parallel zigzag,gather --len 65536\n"
        "    loci bench alibi t5 --device cuda:0 --len 8192 --pass backward\n",
    .operand_text = "@encoding...",
    .flags = flags,
    .run = run,
};
