/* SPDX-License-Identifier: MIT */
/* bench.c -- `loci bench`: each encoding against plain attention and against the limits of this machine.
 *
 * Machines change speed from second to second, so nothing is compared across time: every round measures a probe,
 * plain attention, the encoding, and the probe again, the ratios are taken within the round, and the median over the
 * rounds is reported.  Of the two probes of a round the faster one counts: a disturbed probe flatters nobody. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "json.h"
#include "probe.h"
#include "task.h"

enum { PASS, LEN, DIM, HEADS, KV_HEADS, BATCH, DTYPE, THREADS, ISA, FULL, LASTING, REPEAT, JSON };
static const struct flag flags[] = {
    [PASS]     = { "pass", NULL, "PASS", "forward (default), backward, both, decode or rotate" },
    [LEN]      = { "len", NULL, "N[,N...]", "tokens; for decode, those in the cache (default 4096)" },
    [DIM]      = { "dim", NULL, "D", "width of a head (default 64)" },
    [HEADS]    = { "heads", NULL, "H", "query heads (default 8)" },
    [KV_HEADS] = { "kv-heads", NULL, "K", "key and value heads (default: as many)" },
    [BATCH]    = { "batch", NULL, "B", "batch entries (default 1)" },
    [DTYPE]    = { "dtype", NULL, "TYPE", "of q, k, v and the result: f32 (default), bf16 or f16" },
    [THREADS]  = { "threads", NULL, "N", "threads (default 1)" },
    [ISA]      = { "isa", NULL, "NAME", "an instruction set that 'loci info' lists (default: the best)" },
    [FULL]     = { "full", NULL, NULL, "every query sees every key (default: causal)" },
    [LASTING]  = { "lasting", NULL, NULL, "gates hardly forget and sticks last: no key is skipped for them" },
    [REPEAT]   = { "repeat", NULL, "R", "rounds, at least 5 (default 7)" },
    [JSON]     = { "json", NULL, NULL, "one JSON object per line" },
    { NULL, NULL, NULL, NULL }
};

enum pass { FORWARD, BACKWARD, BOTH, DECODE, ROTATE };
static const char pass_words[] = "forward|backward|both|decode|rotate";
static const char *const pass_names[] = { "forward", "backward", "both", "decode", "rotate" };
static const char *const dtype_names[] = { "f32", "bf16", "f16" };
static const double atom = 0.01;         /* seconds: a step is repeated until one measurement takes about this long */
enum { MAX_ROUNDS = 1000, MAX_LENS = 32 };

struct bench {
    enum pass pass;
    int dim, heads, kv_heads, batch, dtype, threads, full, rounds;
    bool lasting, json, titled;
    const char *isa;
    ptrdiff_t len;
    loci_host pool, *host;
    float *stream;                       /* decode: beyond every cache */
    size_t stream_bytes;
    int caches, turn;                    /* decode: copies of K and V, used in turn, so that they come from memory */
    void **k, **v;
};

/* What is timed: one task, or an embedding and plain attention after it. */
struct contender { struct task main, embed; bool embeds; };

static void close_contender(struct contender *c)
{
    task_close(&c->main);
    task_close(&c->embed);
}

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
static bool open_contender(const struct bench *b, struct contender *c, const char *encoding)
{
    ptrdiff_t q_len = b->pass == DECODE ? 1 : b->len;
    bool backward = b->pass == BACKWARD || b->pass == BOTH;
    *c = (struct contender){ .embeds = b->pass != ROTATE && text_places(encoding) == LOCI_PLACE_EMBED };
    loci_desc d = { .size = sizeof d, .encoding = c->embeds ? "nope" : encoding, .heads = b->heads, .dim = b->dim,
                    .kv_heads = b->kv_heads, .stage = b->pass == ROTATE ? LOCI_ROTATE : LOCI_ATTENTION,
                    .dtype = dtype_of(b), .full = b->full, .max_len = b->len, .isa = b->isa };
    const int turned = b->kv_heads == b->heads ? LOCI_PLACE_ROTATE | LOCI_PLACE_STATE : LOCI_PLACE_ROTATE;
    d.keys_rotated = b->pass == DECODE && text_places(encoding) & turned;
    if (!task_open(&c->main, &d, b->batch, q_len, b->len, NULL) || !ready(b, &c->main, backward)) return false;
    if (!c->embeds) return true;
    loci_desc e = { .size = sizeof e, .encoding = encoding, .stage = LOCI_EMBED, .model_dim = b->heads * b->dim,
                    .dtype = d.dtype, .max_len = b->len, .isa = b->isa };
    return task_open(&c->embed, &e, b->batch, q_len, b->len, NULL) && ready(b, &c->embed, backward);
}

static loci_status step(struct bench *b, struct contender *c)
{
    loci_status s = LOCI_OK;
    if (b->pass == DECODE) {
        int i = b->turn++ % b->caches;
        c->main.call.k.data = b->k[i];
        c->main.call.v.data = b->v[i];
    }
    if (b->pass != BACKWARD) {
        if (c->embeds) s = task_forward(&c->embed);
        if (!s) s = task_forward(&c->main);
    }
    if (!s && (b->pass == BACKWARD || b->pass == BOTH)) {
        s = task_backward(&c->main);
        if (!s && c->embeds) s = task_backward(&c->embed);
    }
    return s;
}

/* Seconds of one step, over `times` of them; negative after an error. */
static double time_steps(struct bench *b, struct contender *c, int times)
{
    double start = now();
    for (int i = 0; i < times; i++)
        if (step(b, c))
            return fail("%s: %s", c->main.desc.encoding,
                        c->main.error.text[0] ? c->main.error.text : c->embed.error.text),
                   -1;
    return (now() - start) / times;
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

/* ---- Limits of the machine ----------------------------------------------------------------------------------- */

static double limit(struct bench *b, const struct contender *c, int times)
{
    if (b->pass == DECODE) return probe_read(b->isa, b->stream, b->stream_bytes, b->host, b->threads);
    if (b->pass == ROTATE) {             /* at the same footprint, hence with the same caches */
        size_t bytes = (size_t)b->batch * (size_t)b->heads * (size_t)b->len * (size_t)b->dim * stored_size(dtype_of(b));
        double sum = 0;
        for (int i = 0; i < times; i++)
            sum += 1 / probe_copy(c->main.dx.data, c->main.dy.data, bytes, b->host, b->threads);
        return times / sum;
    }
    return probe_flops(b->isa, b->host, b->threads);
}

/* With the keys and values of a task. */
static void open_caches(struct bench *b, const struct task *t)
{
    size_t keys = (size_t)b->batch * (size_t)b->kv_heads * (size_t)b->len * (size_t)b->dim,
           each = stored_size(dtype_of(b)), bytes = 2 * keys * each;
    b->stream_bytes = 4 * last_cache_bytes() < (size_t)1 << 30 ? 4 * last_cache_bytes() : (size_t)1 << 30;
    b->stream = take(b->stream_bytes, 1);
    b->caches = (int)(b->stream_bytes / bytes) + 1;
    b->k = take((size_t)b->caches, sizeof *b->k);
    b->v = take((size_t)b->caches, sizeof *b->v);
    for (int i = 0; i < b->caches; i++) {
        b->k[i] = take(keys, each);
        b->v[i] = take(keys, each);
        memcpy(b->k[i], t->call.k.data, bytes / 2);
        memcpy(b->v[i], t->call.v.data, bytes / 2);
    }
}

static void close_caches(struct bench *b)
{
    for (int i = 0; i < b->caches; i++) free(b->k[i]), free(b->v[i]);
    free(b->k);
    free(b->v);
    free(b->stream);
    b->caches = 0;
    b->k = b->v = NULL;
    b->stream = NULL;
}

/* ---- Rounds and rows ----------------------------------------------------------------------------------------- */

struct row { double seconds, gflops, peak, percent, gbytes, percent_bytes, ratio; size_t workspace; };

/* Visible pairs times heads and batch: 4 D flops each forward, 10 D backward. */
static double useful_flops(const struct bench *b)
{
    double n = (double)b->len, pairs = b->pass == DECODE ? n : b->full ? n * n : n * (n + 1) / 2;
    double each = b->pass == BACKWARD ? 10 : b->pass == BOTH ? 14 : 4;
    return pairs * each * b->dim * b->heads * b->batch;
}

static double moved_bytes(const struct bench *b)
{
    double rows = (double)b->batch * (double)b->len * b->dim * (double)stored_size(dtype_of(b)) * 2;
    return rows * (b->pass == DECODE ? b->kv_heads : b->heads);        /* K and V; or x read and y written */
}

static bool measure(struct bench *b, struct contender *plain, struct contender *c, struct row *r)
{
    double seconds[MAX_ROUNDS], gflops[MAX_ROUNDS], peak[MAX_ROUNDS], percent[MAX_ROUNDS], gbytes[MAX_ROUNDS],
        percent_bytes[MAX_ROUNDS], ratio[MAX_ROUNDS];
    bool bytes = b->pass == DECODE || b->pass == ROTATE, flops = b->pass != ROTATE;
    int plain_times = flops ? warm_up(b, plain) : 1, times = plain_times ? warm_up(b, c) : 0;
    if (!times) return false;
    for (int i = 0; i < b->rounds; i++) {
        double before = limit(b, c, times), base = flops ? time_steps(b, plain, plain_times) : 1,
               mine = time_steps(b, c, times);
        if (base < 0 || mine < 0) return false;
        double most = fmax(before, limit(b, c, times)),
               fma = b->pass == DECODE ? probe_flops(b->isa, b->host, b->threads) : most;
        seconds[i] = mine;
        ratio[i] = mine / base;
        gflops[i] = useful_flops(b) / mine * 1e-9;
        peak[i] = fma * 1e-9;
        percent[i] = 100 * gflops[i] / peak[i];
        gbytes[i] = moved_bytes(b) / mine * 1e-9;
        percent_bytes[i] = 100 * moved_bytes(b) / mine / most;
    }
    *r = (struct row){ .seconds = median(seconds, b->rounds), .gflops = NAN, .peak = NAN, .percent = NAN, .gbytes = NAN,
                       .percent_bytes = NAN, .ratio = NAN, .workspace = c->main.work_bytes };
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
    json_object_set_new(j, "isa", json_string(b->isa));
    json_object_set_new(j, "threads", json_integer(b->threads));
    json_object_set_new(j, "batch", json_integer(b->batch));
    json_object_set_new(j, "heads", json_integer(b->heads));
    json_object_set_new(j, "kv_heads", json_integer(b->kv_heads));
    json_object_set_new(j, "q_len", json_integer(b->pass == DECODE ? 1 : b->len));
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

static void print_title(const struct bench *b)
{
    bool bytes = b->pass == DECODE || b->pass == ROTATE;
    printf("loci %s  %s, %s, %d thread%s, %s, batch %d, heads %d/%d, width %d, %s\n", loci_version_text(), b->isa,
           dtype_names[b->dtype], b->threads, b->threads > 1 ? "s" : "", pass_names[b->pass], b->batch, b->heads,
           b->kv_heads, b->dim, b->full ? "full" : "causal");
    printf("%s%-34s %8s %10s %9s %10s %8s %12s%s\n", PAINT("1"), "encoding", "len", "ms",
           bytes ? "GB/s" : "GFLOP/s",
           !bytes              ? "% of peak"
           : b->pass == DECODE ? "% of read"
                               : "% of copy",
           "x nope", "workspace", PAINT("0"));
    fflush(stdout);
}

static void print_row(struct bench *b, const char *encoding, const struct row *r)
{
    if (!b->titled) print_title(b);
    b->titled = true;
    bool bytes = b->pass == DECODE || b->pass == ROTATE;
    char ratio[16] = "-";
    if (isfinite(r->ratio)) snprintf(ratio, sizeof ratio, "%.3f", r->ratio);
    printf("%-34.34s %8td %10.3f %9.1f %10.1f %8s %8.1f KiB\n", encoding, b->len, 1e3 * r->seconds,
           bytes ? r->gbytes : r->gflops, bytes ? r->percent_bytes : r->percent, ratio,
           (double)r->workspace / 1024);
    fflush(stdout);
}

static bool bench_one(struct bench *b, const char *encoding)
{
    struct contender plain = { 0 }, c = { 0 };
    struct row r;
    bool ok = (b->pass == ROTATE || open_contender(b, &plain, "nope")) && open_contender(b, &c, encoding);
    if (ok && b->pass == DECODE) open_caches(b, &plain.main);
    ok = ok && measure(b, &plain, &c, &r);
    if (ok && b->json) print_json(b, encoding, &r);
    else if (ok) print_row(b, encoding, &r);
    close_contender(&plain);
    close_contender(&c);
    close_caches(b);
    return ok;
}

/* ---- The command --------------------------------------------------------------------------------------------- */

static int parse_lens(const char *text, ptrdiff_t *len)
{
    int n = 0;
    for (const char *p = text; *p; p += strcspn(p, ","), p += *p == ',') {
        char one[16];
        int64_t value;
        snprintf(one, sizeof one, "%.*s", (int)strcspn(p, ","), p);
        if (n == MAX_LENS || strcspn(p, ",") >= sizeof one || !parse_whole(one, &value) || value < 1 ||
            value > 1 << 24)
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

static bool parse(const struct args *a, struct bench *b, int *pass)
{
    return args_word(a, PASS, pass_words, pass) && args_whole(a, DIM, 1, 1024, &b->dim) &&
           args_whole(a, HEADS, 1, 1024, &b->heads) && args_whole(a, KV_HEADS, 1, 1024, &b->kv_heads) &&
           args_whole(a, BATCH, 1, 4096, &b->batch) && args_word(a, DTYPE, "f32|bf16|f16", &b->dtype) &&
           args_whole(a, THREADS, 1, 256, &b->threads) && args_whole(a, REPEAT, 5, MAX_ROUNDS, &b->rounds);
}

static int run(const struct args *a)
{
    struct bench b = { .dim = 64, .heads = 8, .batch = 1, .threads = 1, .rounds = 7, .full = a->value[FULL] != NULL,
                       .lasting = a->value[LASTING] != NULL, .json = a->value[JSON] != NULL,
                       .isa = a->value[ISA] ? a->value[ISA] : best_isa() };
    int pass = FORWARD, code = EXIT_DONE;
    ptrdiff_t len[MAX_LENS];
    if (!parse(a, &b, &pass)) return EXIT_ERROR;
    b.pass = (enum pass)pass;
    if (!a->value[KV_HEADS] || b.pass == ROTATE) b.kv_heads = b.heads;
    int lens = parse_lens(a->value[LEN] ? a->value[LEN] : "4096", len);
    if (!lens)
        return fail("bench: --len must be up to %d whole numbers from 1 to %d, as in 1024,4096, not '%s'", MAX_LENS,
                    1 << 24, a->value[LEN]);
    if (b.threads > 1) {
        if (loci_pool_create(&b.pool, b.threads)) return fail("bench: %d threads cannot be started", b.threads);
        b.host = &b.pool;
    }

    const loci_encoding_info *list;
    int known = loci_encodings(&list), count = a->rest_count ? a->rest_count : known;
    for (int i = 0; i < lens && !code; i++)
        for (int k = 0; k < count && !code; k++) {
            if (!a->rest_count && !fits(&b, &list[k])) continue;
            b.len = len[i];
            if (!bench_one(&b, a->rest_count ? runnable_text(a->rest[k]) : list[k].example)) code = EXIT_ERROR;
        }
    if (b.host) loci_pool_destroy(b.host);
    return code;
}

const struct command cmd_bench = {
    .name = "bench", .brief = "measure encodings against plain attention and this machine's limits",
    .synopsis = "loci bench [ENCODING...] [--pass PASS] [--len N[,N...]] [--dim D] [--heads H] [--kv-heads K]\n"
                "               [--batch B] [--dtype TYPE] [--threads N] [--isa NAME] [--full] [--lasting]\n"
                "               [--repeat R] [--json]",
    .about =
        "    Without names: every encoding that the pass and the mask allow.  Each is measured in rounds,\n"
        "    interleaved with nope at the same shape and with probes of this machine (multiply-adds, reading,\n"
        "    copying); ratios are taken within a round, and the table shows medians.  Flops are those of\n"
        "    visible pairs only: 4 D forward, 10 D backward, both 14 D.  The time holds all that the encoding\n"
        "    does in a call; one that works on embeddings is measured as its embedding with plain attention.\n"
        "    decode is one query against a cache of --len keys, turned where that can be, taken from memory:\n"
        "    GB/s counts K and V once, and is compared with reading.  rotate turns [batch, heads, len, dim],\n"
        "    compared with copying.\n",
    .examples = "    loci bench\n    loci bench alibi t5 --len 1024,4096 --pass backward\n"
                "    loci bench rope:pairing=half --pass rotate --threads 2\n"
                "    loci bench --pass decode --len 16384 --kv-heads 2 --json\n",
    .flags = flags, .run = run,
};
