/* SPDX-License-Identifier: MIT */
/* bench.c -- `loci bench`: each encoding against plain attention and against the limits of this
 * machine.
 *
 * Machines change speed from second to second, so nothing is compared across time: every round
 * measures a probe, plain attention, the encoding, and the probe again, the ratios are taken within
 * the round, and the median over the rounds is reported.  Of the two probes of a round the faster
 * one counts: a disturbed probe flatters nobody. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "cli/json.h"
#include "loci/cache.h"
#include "cli/probe.h"
#include "cli/task.h"

enum {
    PASS, LEN, ROWS, CACHE, DIM, HEADS, KV_HEADS, BATCH, DTYPE, FAST, THREADS, ISA, FULL, LASTING,
    REPEAT, JSON
};
static const struct flag flags[] = {
    [PASS]     = { "pass", NULL, "PASS",
                   "forward (default), backward, both, decode, prefill-chunk or rotate" },
    [LEN]      = { "len", NULL, "N[,N...]",
                   "tokens, new ones of decode and prefill-chunk included (default 4096)" },
    [ROWS]     = { "rows", NULL, "N",
                   "prefill-chunk: new tokens, the last ones of --len (default 512)" },
    [CACHE]    = { "cache", NULL, NULL,
                   "decode, prefill-chunk: new tokens enter a loci_cache that holds all keys" },
    [DIM]      = { "dim", NULL, "D", "width of a head (default 64)" },
    [HEADS]    = { "heads", NULL, "H", "query heads (default 8)" },
    [KV_HEADS] = { "kv-heads", NULL, "K", "key and value heads (default: as many)" },
    [BATCH]    = { "batch", NULL, "B", "batch entries (default 1)" },
    [DTYPE]    = { "dtype", NULL, "TYPE", "of q, k, v and the result: f32 (default), bf16 or f16" },
    [FAST]     = { "fast", NULL, NULL,
                   "with bf16: the CPU's bf16 dot products, where 'loci info' lists them" },
    [THREADS]  = { "threads", NULL, "N", "threads (default 1)" },
    [ISA]      = { "isa", NULL, "NAME",
                   "an instruction set that 'loci info' lists (default: the best)" },
    [FULL]     = { "full", NULL, NULL, "every query sees every key (default: causal)" },
    [LASTING]  = { "lasting", NULL, NULL,
                   "gates hardly forget and sticks last: no key is skipped for them" },
    [REPEAT]   = { "repeat", NULL, "R", "rounds, at least 5 (default 7)" },
    [JSON]     = { "json", NULL, NULL, "one JSON object per line" },
    { NULL, NULL, NULL, NULL }
};

enum pass { FORWARD, BACKWARD, BOTH, DECODE, CHUNK, ROTATE };
static const char pass_words[] = "forward|backward|both|decode|prefill-chunk|rotate";
static const char *const pass_names[] = {
    "forward", "backward", "both", "decode", "prefill-chunk", "rotate"
};
static const char *const dtype_names[] = { "f32", "bf16", "f16" };
/* Seconds: a step is repeated until one measurement takes about this long. */
static const double atom = 0.01;
enum { MAX_ROUNDS = 1000, MAX_LENS = 32 };

struct bench {
    enum pass pass;
    int dim, heads, kv_heads, batch, dtype, threads, full, rounds;
    bool cached, fast, lasting, json, titled;
    bool dots;                           /* it is the bf16 dot products that count */
    const char *isa;
    ptrdiff_t len, rows;                 /* rows: queries per sequence, its last ones */
    loci_host pool;
    const loci_host *host;
    float *stream;                       /* decode: beyond every cache of the processor */
    size_t stream_bytes;
    int copies, turn;                    /* decode, chunk: K and V, in turn, come from memory */
    void **k, **v;
};

/* What is timed: one task, or an embedding and plain attention after it. */
struct contender {
    struct task main, embed;
    bool embeds;
    /* with --cache: its copies of K and V; the task has the new tokens alone */
    loci_cache **cache, *current;
};

static void close_contender(struct contender *c)
{
    task_close(&c->main);
    task_close(&c->embed);
}

/* The same seeds for every contender, so that they attend to the same numbers. */
static bool ready(const struct bench *b, struct task *t, bool backward)
{
    task_random_tensors(t, 1);
    task_random_inputs(t, 2);
    if (b->lasting) task_lasting(t);
    if (backward) task_gradients(t);
    t->call.host = b->host;
    if (!task_prepare(t, b->len, backward)) return true;
    return refuse("%s: %s", t->desc.encoding, t->error.text);
}

static loci_dtype dtype_of(const struct bench *b)
{
    static const loci_dtype dtypes[] = { LOCI_F32, LOCI_BF16, LOCI_F16 };
    return dtypes[b->dtype];
}
/* New tokens against keys that are there. */
static bool inference(const struct bench *b) { return b->pass == DECODE || b->pass == CHUNK; }
/* Limited by what is read and written, not by arithmetic. */
static bool by_memory(const struct bench *b) { return b->pass == DECODE || b->pass == ROTATE; }

/* Caches with all keys in each; what else belongs to a token is random too.  They are filled by a
 * task of one query that has every key, since the contender's own has the new ones only. */
static bool open_caches(const struct bench *b, struct contender *c)
{
    struct task all, *t = &c->main;
    const size_t bytes = loci_cache_size(t->plan, b->batch, b->len);
    if (!bytes) return refuse("%s: a cache of %td keys is impossible", t->desc.encoding, b->len);
    bool ok = task_open(&all, &t->desc, b->batch, 1, b->len, NULL);
    c->cache = task_take(t, (size_t)b->copies, sizeof(loci_cache *));
    for (int i = 0; i < b->copies && ok; i++)
        if (loci_cache_create(&c->cache[i], t->plan, b->batch, b->len, 0, task_take(t, bytes, 1),
                              &all.error))
            ok = refuse("%s: %s", t->desc.encoding, all.error.text);
    all.call.cache = t->call.cache = c->cache[0];        /* a workspace depends on it */
    ok = ok && ready(b, &all, false);
    for (int i = 0; i < b->copies && ok; i++)
        if (loci_cache_append(all.plan, all.tables, all.work, c->cache[i], &all.call))
            ok = refuse("%s: %s", t->desc.encoding, all.error.text);
    task_close(&all);
    return ok;
}

/* An encoding of embeddings is measured as its embedding, and plain attention after it. */
static bool open_contender(const struct bench *b, struct contender *c, const char *encoding)
{
    const bool backward = b->pass == BACKWARD || b->pass == BOTH;
    const bool embeds = b->pass != ROTATE && text_places(encoding) == LOCI_PLACE_EMBED;
    *c = (struct contender){ .embeds = embeds };
    loci_desc d = { .size = sizeof d,
                    .encoding = c->embeds ? "nope" : encoding,
                    .heads = b->heads,
                    .dim = b->dim,
                    .kv_heads = b->kv_heads,
                    .stage = b->pass == ROTATE ? LOCI_ROTATE : LOCI_ATTENTION,
                    .dtype = dtype_of(b),
                    .fast = b->fast,
                    .full = b->full,
                    .max_len = b->len,
                    .isa = b->isa };
    /* Keys that are there were turned when they came; by states only where no heads share them. */
    int turned = LOCI_PLACE_ROTATE;
    if (b->kv_heads == b->heads) turned |= LOCI_PLACE_STATE;
    d.keys_rotated = inference(b) && text_places(encoding) & turned;
    if (!task_open(&c->main, &d, b->batch, b->rows, b->cached ? b->rows : b->len, NULL))
        return false;
    if (b->cached && !open_caches(b, c)) return false;
    if (!ready(b, &c->main, backward)) return false;
    if (!c->embeds) return true;
    const loci_desc e = task_embedding(&d, encoding);
    return task_open(&c->embed, &e, b->batch, b->rows, b->len, NULL)
        && ready(b, &c->embed, backward);
}

/* The next copy of the keys; a cache forgets the last tokens, which are about to come. */
static loci_status turn_to_next(struct bench *b, struct contender *c)
{
    loci_call *call = &c->main.call;
    int i = b->turn++ % b->copies;
    if (!b->cached) {
        call->k.data = b->k[i];
        call->v.data = b->v[i];
        return LOCI_OK;
    }
    loci_status s = LOCI_OK;
    call->cache = c->current = c->cache[i];
    for (int entry = 0; entry < b->batch && !s; entry++)
        s = loci_cache_truncate(c->current, entry, b->len - b->rows, &c->main.error);
    return s;
}

/* The step of a decode with a cache: new tokens enter it, and then attend to all. */
static loci_status append(struct task *t, loci_cache *to)
{
    return loci_cache_append(t->plan, t->tables, t->work, to, &t->call);
}

/* What is timed: a forward pass, but where only the backward one is asked for. */
static loci_status step(const struct bench *b, struct contender *c)
{
    loci_status s = LOCI_OK;
    if (b->pass != BACKWARD) {
        if (c->embeds) s = task_forward(&c->embed);
        if (!s && b->cached) s = append(&c->main, c->current);
        if (!s) s = task_forward(&c->main);
    }
    if (!s && (b->pass == BACKWARD || b->pass == BOTH)) {
        s = task_backward(&c->main);
        if (!s && c->embeds) s = task_backward(&c->embed);
    }
    return s;
}

/* Seconds of one step, over `times` of them; negative after an error.  Turning to the next copy of
 * the keys is no part of a step, and its time is taken off. */
static double time_steps(struct bench *b, struct contender *c, int times)
{
    double start = now(), aside = 0;
    for (int i = 0; i < times; i++) {
        loci_status s = LOCI_OK;
        if (inference(b)) {
            double began = now();
            s = turn_to_next(b, c);
            aside += now() - began;
        }
        if (s || step(b, c))
            return fail("%s: %s", c->main.desc.encoding,
                        c->main.error.text[0] ? c->main.error.text : c->embed.error.text),
                   -1;
    }
    return (now() - start - aside) / times;
}

/* Runs each a few times, and says how many steps make a measurement; 0 after an error. */
static int warm_up(struct bench *b, struct contender *c)
{
    enum pass pass = b->pass;
    if (pass == BACKWARD) {              /* which reads what a forward pass wrote */
        b->pass = FORWARD;
        double t = time_steps(b, c, 1);
        b->pass = pass;
        if (t < 0) return 0;
    }
    double t = time_steps(b, c, 1);
    if (t >= 0 && t < atom) t = time_steps(b, c, 2);
    if (t < 0) return 0;
    return t >= atom ? 1 : t < atom / 10000 ? 10000 : (int)(atom / t) + 1;
}

/* ---- Limits of the machine ------------------------------------------------------------------- */

/* What the machine can do at most, in the unit that counts: bytes or flops per second. */
static double limit(struct bench *b, const struct contender *c, int times)
{
    if (b->pass == DECODE)
        return probe_read(b->isa, b->stream, b->stream_bytes, b->host, b->threads);
    if (b->pass == ROTATE) {             /* at the same footprint, hence with the same caches */
        size_t bytes = (size_t)b->batch * (size_t)b->heads * (size_t)b->len * (size_t)b->dim
                     * stored_size(dtype_of(b));
        double sum = 0;
        for (int i = 0; i < times; i++)
            sum += 1 / probe_copy(c->main.dx.data, c->main.dy.data, bytes, b->host, b->threads);
        return times / sum;
    }
    return b->dots ? probe_dots(b->host, b->threads) : probe_flops(b->isa, b->host, b->threads);
}

/* Of K, or of V. */
static size_t keys_bytes(const struct bench *b)
{
    return (size_t)b->batch * (size_t)b->kv_heads * (size_t)b->len * (size_t)b->dim
         * stored_size(dtype_of(b));
}

/* How many copies of K and V there must be, and what is read beside them. */
static void open_stream(struct bench *b)
{
    b->stream_bytes = beyond_caches();
    b->copies = (int)(b->stream_bytes / (2 * keys_bytes(b))) + 1;
    if (b->pass == DECODE) b->stream = take(b->stream_bytes, 1);
}

/* Of the keys and values of a task. */
static void open_copies(struct bench *b, const struct task *t)
{
    const size_t bytes = keys_bytes(b);
    b->k = take((size_t)b->copies, sizeof *b->k);
    b->v = take((size_t)b->copies, sizeof *b->v);
    for (int i = 0; i < b->copies; i++) {
        b->k[i] = memcpy(take(bytes, 1), t->call.k.data, bytes);
        b->v[i] = memcpy(take(bytes, 1), t->call.v.data, bytes);
    }
}

/* May be called twice, or with none open. */
static void close_copies(struct bench *b)
{
    for (int i = 0; i < b->copies && b->k; i++) free(b->k[i]), free(b->v[i]);
    free(b->k);
    free(b->v);
    free(b->stream);
    b->copies = 0;
    b->k = b->v = NULL;
    b->stream = NULL;
}

/* ---- Rounds and rows ------------------------------------------------------------------------- */

struct row {
    double seconds, gflops, peak, percent, gbytes, percent_bytes, ratio;
    size_t workspace;
};

/* Visible pairs times heads and batch: 4 D flops each forward, 10 D backward. */
static double useful_flops(const struct bench *b)
{
    double keys = (double)b->len, rows = (double)b->rows,
           pairs = rows * keys - (b->full ? 0 : rows * (rows - 1) / 2);
    double each = b->pass == BACKWARD ? 10 : b->pass == BOTH ? 14 : 4;
    return pairs * each * b->dim * b->heads * b->batch;
}

/* What must be moved at least, however often a cache helps. */
static double moved_bytes(const struct bench *b)
{
    double rows = (double)b->batch * (double)b->len * b->dim * (double)stored_size(dtype_of(b)) * 2;
    /* K and V; or x read and y written */
    return rows * (b->pass == DECODE ? b->kv_heads : b->heads);
}

/* The rounds; see the top.  NaN stands for what a pass does not have. */
static bool measure(struct bench *b, struct contender *plain, struct contender *c, struct row *r)
{
    double seconds[MAX_ROUNDS], gflops[MAX_ROUNDS], peak[MAX_ROUNDS], percent[MAX_ROUNDS],
        gbytes[MAX_ROUNDS], percent_bytes[MAX_ROUNDS], ratio[MAX_ROUNDS];
    bool bytes = by_memory(b), flops = b->pass != ROTATE;
    int plain_times = flops ? warm_up(b, plain) : 1, times = plain_times ? warm_up(b, c) : 0;
    if (!times) return false;
    for (int i = 0; i < b->rounds; i++) {
        double before = limit(b, c, times);
        double base = flops ? time_steps(b, plain, plain_times) : 1;
        double mine = time_steps(b, c, times);
        if (base < 0 || mine < 0) return false;
        double most = fmax(before, limit(b, c, times));
        double fma = b->pass == DECODE ? probe_flops(b->isa, b->host, b->threads) : most;
        seconds[i] = mine;
        ratio[i] = mine / base;
        gflops[i] = useful_flops(b) / mine * 1e-9;
        peak[i] = fma * 1e-9;
        percent[i] = 100 * gflops[i] / peak[i];
        gbytes[i] = moved_bytes(b) / mine * 1e-9;
        percent_bytes[i] = 100 * moved_bytes(b) / mine / most;
    }
    *r = (struct row){ median(seconds, b->rounds), NAN, NAN, NAN, NAN, NAN, NAN,
                       c->main.work_bytes };
    if (flops) {
        r->gflops = median(gflops, b->rounds);
        r->peak = median(peak, b->rounds);
        r->percent = median(percent, b->rounds);
        r->ratio = median(ratio, b->rounds);
    }
    if (bytes) {
        r->gbytes = median(gbytes, b->rounds);
        r->percent_bytes = median(percent_bytes, b->rounds);
    }
    return true;
}

static void print_json(const struct bench *b, const char *encoding, const struct row *r)
{
    json_t *j = json_object();
    json_object_set_new(j, "encoding", json_string(encoding));
    json_object_set_new(j, "pass", json_string(pass_names[b->pass]));
    json_object_set_new(j, "dtype", json_string(dtype_names[b->dtype]));
    json_object_set_new(j, "fast", json_boolean(b->dots));
    json_object_set_new(j, "isa", json_string(b->isa));
    json_object_set_new(j, "threads", json_integer(b->threads));
    json_object_set_new(j, "batch", json_integer(b->batch));
    json_object_set_new(j, "heads", json_integer(b->heads));
    json_object_set_new(j, "kv_heads", json_integer(b->kv_heads));
    json_object_set_new(j, "q_len", json_integer(b->rows));
    json_object_set_new(j, "k_len", json_integer(b->len));
    json_object_set_new(j, "dim", json_integer(b->dim));
    json_object_set_new(j, "mask", json_string(b->full ? "full" : "causal"));
    json_object_set_new(j, "seconds", json_number_or_null(r->seconds));
    json_object_set_new(j, "gflops", json_number_or_null(r->gflops));
    json_object_set_new(j, "peak_gflops", json_number_or_null(r->peak));
    json_object_set_new(j, "percent_of_peak", json_number_or_null(r->percent));
    json_object_set_new(j, "gbytes_per_s", json_number_or_null(r->gbytes));
    json_object_set_new(j, "percent_of_stream", json_number_or_null(r->percent_bytes));
    json_object_set_new(j, "ratio_to_nope", json_number_or_null(r->ratio));
    json_object_set_new(j, "workspace_bytes", json_integer((json_int_t)r->workspace));
    json_print(j);
}

/* Everything that is the same in all rows stands above them. */
static void print_title(const struct bench *b)
{
    bool bytes = by_memory(b);
    const char *of = !bytes ? "% of peak" : b->pass == DECODE ? "% of read" : "% of copy";
    char rows[32] = "";
    if (b->pass == CHUNK) snprintf(rows, sizeof rows, " of %td rows", b->rows);
    printf("loci %s  %s, %s%s, %d thread%s, %s%s%s, batch %d, heads %d/%d, width %d, %s\n",
           loci_version_text(), b->isa, dtype_names[b->dtype], b->dots ? " dot products" : "",
           b->threads, b->threads > 1 ? "s" : "", pass_names[b->pass], rows,
           b->cached ? " with a cache" : "", b->batch, b->heads, b->kv_heads, b->dim,
           b->full ? "full" : "causal");
    printf("%s%-34s %8s %10s %9s %10s %8s %12s%s\n", PAINT("1"), "encoding", "len", "ms",
           bytes ? "GB/s" : "GFLOP/s", of, "x nope", "workspace", PAINT("0"));
    fflush(stdout);
}

/* The title waits for the first row, so that an error comes without a table. */
static void print_row(struct bench *b, const char *encoding, const struct row *r)
{
    if (!b->titled) print_title(b);
    b->titled = true;
    bool bytes = by_memory(b);
    char ratio[16] = "-";
    if (isfinite(r->ratio)) snprintf(ratio, sizeof ratio, "%.3f", r->ratio);
    printf("%-34.34s %8td %10.3f %9.1f %10.1f %8s %8.1f KiB\n", encoding, b->len, 1e3 * r->seconds,
           bytes ? r->gbytes : r->gflops, bytes ? r->percent_bytes : r->percent, ratio,
           (double)r->workspace / 1024);
    fflush(stdout);
}

/* Plain attention is opened anew beside every encoding: a rotation has none to be compared with. */
static bool bench_one(struct bench *b, const char *encoding)
{
    struct contender plain = { 0 }, c = { 0 };
    struct row r;
    if (inference(b)) open_stream(b);
    bool ok = (b->pass == ROTATE || open_contender(b, &plain, "nope"))
           && open_contender(b, &c, encoding);
    if (ok && inference(b) && !b->cached) open_copies(b, &plain.main);
    ok = ok && measure(b, &plain, &c, &r);
    if (ok && b->json) print_json(b, encoding, &r);
    else if (ok) print_row(b, encoding, &r);
    close_contender(&plain);
    close_contender(&c);
    close_copies(b);
    return ok;
}

/* ---- The command ----------------------------------------------------------------------------- */

/* How many lengths there are, 0: the text is no such list. */
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

/* With no names given: what makes sense for this pass and mask. */
static bool fits(const struct bench *b, const loci_encoding_info *e)
{
    return (b->pass != ROTATE || e->places & LOCI_PLACE_ROTATE) && !(b->full && e->causal_only);
}

/* All numbers of the command line, before anything is allocated by them. */
static bool parse(const struct args *a, struct bench *b, int *pass, int *rows)
{
    return args_word(a, PASS, pass_words, pass) && args_whole(a, ROWS, 1, 1 << 24, rows)
        && args_whole(a, DIM, 1, 1024, &b->dim) && args_whole(a, HEADS, 1, 1024, &b->heads)
        && args_whole(a, KV_HEADS, 1, 1024, &b->kv_heads)
        && args_whole(a, BATCH, 1, 4096, &b->batch)
        && args_word(a, DTYPE, "f32|bf16|f16", &b->dtype)
        && args_whole(a, THREADS, 1, 256, &b->threads)
        && args_whole(a, REPEAT, 5, MAX_ROUNDS, &b->rounds);
}

static int run(const struct args *a)
{
    struct bench b = { .dim = 64, .heads = 8, .batch = 1, .threads = 1, .rounds = 7,
                       .full = a->value[FULL] != NULL,
                       .cached = a->value[CACHE] != NULL,
                       .lasting = a->value[LASTING] != NULL,
                       .fast = a->value[FAST] != NULL,
                       .json = a->value[JSON] != NULL,
                       .isa = a->value[ISA] ? a->value[ISA] : best_isa() };
    int pass = FORWARD, rows = 512, code = EXIT_DONE;
    ptrdiff_t len[MAX_LENS];
    if (!parse(a, &b, &pass, &rows)) return EXIT_ERROR;
    b.pass = (enum pass)pass;
    /* only forward passes have dot products of bf16, and only some processors */
    b.dots = b.fast && (b.pass == FORWARD || b.pass == CHUNK) && runs_fast(b.isa);
    if (a->value[ROWS] && b.pass != CHUNK) return fail("bench: --rows is for --pass prefill-chunk");
    if (b.cached && !inference(&b))
        return fail("bench: --cache is for --pass decode and prefill-chunk");
    /* a rotation turns queries, and has no keys to share */
    if (!a->value[KV_HEADS] || b.pass == ROTATE) b.kv_heads = b.heads;
    int lens = parse_lens(a->value[LEN] ? a->value[LEN] : "4096", len);
    if (!lens)
        return fail("bench: --len must be up to %d whole numbers from 1 to %d, "
                    "as in 1024,4096, not '%s'",
                    MAX_LENS, 1 << 24, a->value[LEN]);
    for (int i = 0; i < lens && b.pass == CHUNK; i++)
        if (rows > len[i])
            return fail("bench: --rows %d must be at most --len, which is %td", rows, len[i]);
    if (!start_threads(a, b.threads, &b.pool, &b.host)) return EXIT_ERROR;

    const loci_encoding_info *list;
    int known = loci_encodings(&list), count = a->rest_count ? a->rest_count : known;
    for (int i = 0; i < lens && !code; i++)
        for (int k = 0; k < count && !code; k++) {
            if (!a->rest_count && !fits(&b, &list[k])) continue;
            b.len = len[i];
            b.rows = b.pass == DECODE ? 1 : b.pass == CHUNK ? rows : b.len;
            if (!bench_one(&b, a->rest_count ? runnable_text(a->rest[k]) : list[k].example))
                code = EXIT_ERROR;
        }
    if (b.host) loci_pool_destroy(&b.pool);
    return code;
}

const struct command cmd_bench = {
    .name = "bench", .brief = "measure encodings against plain attention and this machine's limits",
    .synopsis =
        "loci bench [ENCODING...] [--pass PASS] [--len N[,N...]] [--rows N] [--cache] [--dim D]\n"
        "               [--heads H] [--kv-heads K] [--batch B] [--dtype TYPE] [--fast] "
        "[--threads N]\n"
        "               [--isa NAME] [--full] [--lasting] [--repeat R] [--json]",
    .about =
        "    Without names: every encoding that the pass and the mask allow.  Each is\n"
        "    measured in rounds, interleaved with nope at the same shape and with probes of\n"
        "    this machine (multiply-adds, reading, copying); ratios are taken within a round,\n"
        "    and the table shows medians.  Flops are those of visible pairs only: 4 D\n"
        "    forward, 10 D backward, both 14 D.  The time holds all that the encoding does in\n"
        "    a call; one that works on embeddings is measured as its embedding with plain\n"
        "    attention.  With --fast forward passes are compared with the bf16 dot products\n"
        "    of this CPU, if it has them. decode is one query against --len keys, turned\n"
        "    where that can be, taken from memory: GB/s counts K and V once, and is compared\n"
        "    with reading.  prefill-chunk is the last --rows queries against such keys.  With\n"
        "    --cache, a step appends its new tokens to a cache and then attends. rotate turns\n"
        "    [batch, heads, len, dim], compared with copying.\n",
    .examples =
        "    loci bench\n"
        "    loci bench alibi t5 --len 1024,4096 --pass backward\n"
        "    loci bench rope:pairing=half --pass rotate --threads 2\n"
        "    loci bench --pass decode --len 16384 --kv-heads 2 --json\n"
        "    loci bench rope --pass prefill-chunk --rows 16 --len 8192 --cache --dtype bf16\n",
    .flags = flags, .run = run,
};
