/* SPDX-License-Identifier: MIT */
/* bench_parallel.c -- see bench_parallel.h.
 *
 * Every rank creates the whole problem from the same seeds and cuts its share out of it, so that it
 * can compare its rows with those of one process.  Rounds alternate: first one process with the
 * total thread count of all ranks, then the ranks. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "platform/clock.h"
#include "cli/bench_parallel.h"
#include "cli/json.h"
#include "cli/ranks.h"

enum {
    MOST_ROUNDS = 64,
    MOST_OWNED = 64,
    MOST_BUFFERS = 2 * MOST_OWNED + 16,
    TAG_RESULT = 32000,
    CHUNK_OF_KEYS = 4096
};

bool spread_parse(struct spread *s, const char *text)
{
    char layout[16];
    const char *comma = strchr(text, ',');
    snprintf(layout, sizeof layout, "%.*s", (int)strcspn(text, ","), text);
    s->layout = strcmp(layout, "zigzag") ? LOCI_CONTIGUOUS : LOCI_ZIGZAG;
    s->gather = comma != NULL;
    if ((strcmp(layout, "zigzag") && strcmp(layout, "contiguous"))
        || (comma && strcmp(comma, ",gather")))
        return refuse("bench: --parallel must be zigzag, contiguous, zigzag,gather or "
                      "contiguous,gather, not '%s'",
                      text);
    return true;
}

/* ---- A share --------------------------------------------------------------------------------- */

/* A result of a rank and of one process: [outer][rows][bytes], or the same numbers on all ranks. */
struct output {
    const void *whole;
    void *own;
    ptrdiff_t outer;
    size_t bytes;
    bool rows;
};

/* The share of a rank, cut out of the whole problem. */
struct cut {
    const struct task *whole;
    ptrdiff_t len, rows; /* of all ranks; of this one */
    loci_share list[2 * MOST_RANKS];
    int shares, rank;
    loci_call call;
    loci_parallel all;
    loci_parallel_report report;
    loci_grad grad;
    const void *tensors[MOST_OWNED];
    void *dtensors[MOST_OWNED], *own[MOST_BUFFERS], *work;
    int owned, outputs;
    struct output output[MOST_BUFFERS];
    /* key_bytes: K, V and inputs per key, over all batch entries. sum_bytes: the sums of their
     * gradients. */
    size_t work_bytes, key_bytes, sum_bytes;
};

/* Copies the rank's part of [outer][rows][bytes]. cut_close() frees it. */
static void *cut_out(struct cut *c, const void *from, ptrdiff_t outer, size_t bytes)
{
    const size_t mine = (size_t)c->rows * bytes, all = (size_t)c->len * bytes;
    char *to = alloc((size_t)outer * (size_t)c->rows + 1, bytes), *at = to;
    for (ptrdiff_t n = 0; n < outer; n++, at = to + (size_t)n * mine)
        for (int i = 0; i < c->shares; i++) {
            const loci_share *s = &c->list[i];
            if (s->rank != c->rank) continue;
            memcpy(at, (const char *)from + (size_t)n * all + (size_t)s->first * bytes,
                   (size_t)s->count * bytes);
            at += (size_t)s->count * bytes;
        }
    return c->own[c->owned++] = to;
}
/* Finds which dimension of an INPUT tensor counts rows or keys, and the sizes before and behind
 * it. */
static bool by_row(const struct cut *c, const loci_tensor *plan, ptrdiff_t *outer, size_t *bytes,
                   bool *keys)
{
    bool found = false;
    *outer = 1;
    *bytes = c->whole->real;
    *keys = false;
    for (int d = 0; d < plan->rank; d++) {
        const ptrdiff_t n = plan->shape[d];
        if (n == LOCI_DIM_QUERIES || n == LOCI_DIM_KEYS) {
            found = true;
            *keys = n == LOCI_DIM_KEYS;
        } else if (found) *bytes *= (size_t)n;
        else *outer *= n == LOCI_DIM_BATCH ? c->whole->batch : n;
    }
    return found && plan->role == LOCI_INPUT;
}
/* The same for a result. */
static void *cut_output(struct cut *c, const void *whole, ptrdiff_t outer, size_t bytes)
{
    if (!whole) return NULL;
    void *own = cut_out(c, whole, outer, bytes);
    c->output[c->outputs++] = (struct output){ whole, own, outer, bytes, true };
    return own;
}
static void cut_gradients(struct cut *c, const struct problem *p, const loci_tensor *list,
                          int tensors)
{
    const struct task *whole = c->whole;
    const size_t stored = stored_size(whole->desc.dtype), row = (size_t)p->dim * stored,
                 real = whole->real;
    const ptrdiff_t heads = p->batch * p->heads, kv_heads = p->batch * p->kv_heads;
    const loci_call *call = &whole->call;
    const loci_grad *grad = &whole->grad;
    c->call.lse = call->lse ? cut_out(c, call->lse, heads, real) : NULL;
    c->call.rem = call->rem ? cut_out(c, call->rem, heads, real) : NULL;
    c->call.ae = call->ae ? cut_out(c, call->ae, heads, (size_t)p->dim * real) : NULL;
    c->grad = (loci_grad)LOCI_GRAD(.dtensors = c->dtensors);
    c->grad.dout.data = cut_out(c, grad->dout.data, heads, row);
    if (grad->dlse) c->grad.dlse = cut_out(c, grad->dlse, heads, real);
    if (grad->drem) c->grad.drem = cut_out(c, grad->drem, heads, real);
    if (grad->dae) c->grad.dae = cut_out(c, grad->dae, heads, (size_t)p->dim * real);
    c->grad.dq.data = cut_output(c, grad->dq.data, heads, row);
    c->grad.dk.data = cut_output(c, grad->dk.data, kv_heads, row);
    c->grad.dv.data = cut_output(c, grad->dv.data, kv_heads, row);
    c->sum_bytes = 2 * (size_t)(kv_heads * p->dim) * real;
    for (int i = 0; i < tensors; i++) {
        const void *d = grad->dtensors ? grad->dtensors[i] : NULL;
        ptrdiff_t outer;
        size_t bytes;
        bool keys;
        if (!d) continue;
        if (by_row(c, &list[i], &outer, &bytes, &keys)) {
            c->dtensors[i] = cut_output(c, d, outer, bytes);
            if (keys) c->sum_bytes += (size_t)outer * bytes / real * sizeof(double);
            continue;
        }
        const size_t all = (size_t)shape_count(list[i].rank, list[i].shape) * real;
        c->dtensors[i] = c->own[c->owned++] = alloc(all + 1, 1);
        c->output[c->outputs++] = (struct output){ d, c->dtensors[i], 1, all, false };
    }
}
static void cut_open(struct cut *c, const struct problem *p, const struct spread *s,
                     const struct task *whole, const loci_transport *t)
{
    const ptrdiff_t B = p->batch;
    const size_t row = (size_t)p->dim * stored_size(whole->desc.dtype);
    loci_tensor list[MOST_OWNED];
    const int tensors = loci_tensors(whole->plan, list, MOST_OWNED);
    *c = (struct cut){ .whole = whole, .len = p->len, .rank = t->rank };
    c->shares = loci_share_out(s->layout, p->len, t->ranks, c->list, COUNT(c->list));
    for (int i = 0; i < c->shares; i++)
        c->rows += c->list[i].rank == t->rank ? (ptrdiff_t)c->list[i].count : 0;
    c->call = (loci_call)LOCI_CALL(.batch = B, .q_len = c->rows, .k_len = c->rows, .host = p->host);
    c->call.q.data = cut_out(c, whole->call.q.data, B * p->heads, row);
    c->call.k.data = cut_out(c, whole->call.k.data, B * p->kv_heads, row);
    c->call.v.data = cut_out(c, whole->call.v.data, B * p->kv_heads, row);
    c->call.o.data = p->pass == BACKWARD ? cut_out(c, whole->call.o.data, B * p->heads, row)
                                         : cut_output(c, whole->call.o.data, B * p->heads, row);
    c->key_bytes = 2 * (size_t)(B * p->kv_heads) * row;
    if (whole->call.q_coord) {
        const int axes = loci_axes(whole->plan);
        c->call.q_coord = cut_out(c, whole->call.q_coord, axes, sizeof(double));
        c->call.k_coord = cut_out(c, whole->call.k_coord, axes, sizeof(double));
        c->key_bytes += (size_t)axes * sizeof(double);
    }
    for (int i = 0; i < tensors; i++) {
        ptrdiff_t outer;
        size_t bytes;
        bool keys;
        c->tensors[i] = whole->data[i];
        if (!by_row(c, &list[i], &outer, &bytes, &keys)) continue;
        c->tensors[i] = cut_out(c, whole->data[i], outer, bytes);
        if (keys) c->key_bytes += (size_t)outer * bytes;
    }
    c->call.tensors = c->tensors;
    c->report.size = sizeof c->report;
    c->all = (loci_parallel)LOCI_PARALLEL(.transport = t, .shares = c->list, .count = c->shares,
                                          .gather = s->gather, .report = &c->report);
    if (p->pass == BACKWARD) cut_gradients(c, p, list, tensors);
    c->work_bytes = loci_parallel_workspace(whole->plan, &c->call, &c->all, p->pass == BACKWARD);
    c->work = alloc(c->work_bytes + 1, 1);
}
static void cut_close(struct cut *c)
{
    for (int i = 0; i < c->owned; i++) free(c->own[i]);
    free(c->work);
}
/* Counts the rank's rows whose bits differ from those of one process. */
static int64_t cut_compare(const struct cut *c)
{
    int64_t wrong = 0;
    for (int k = 0; k < c->outputs; k++) {
        const struct output *x = &c->output[k];
        const char *mine = x->own, *all = x->whole;
        if (!x->rows) wrong += memcmp(mine, all, x->bytes) != 0;
        for (ptrdiff_t n = 0; n < x->outer && x->rows; n++)
            for (int i = 0; i < c->shares; i++)
                for (int64_t r = 0; c->list[i].rank == c->rank && r < c->list[i].count; r++) {
                    const size_t at = (size_t)(n * c->len + c->list[i].first + r) * x->bytes;
                    wrong += memcmp(mine, all + at, x->bytes) != 0;
                    mine += x->bytes;
                }
    }
    return wrong;
}

/* ---- Expected figures ------------------------------------------------------------------------ */

/* Keys that the rank's rows see by order, minus its own keys. */
static int64_t keys_of_others(const struct cut *c, const struct problem *p)
{
    int64_t end = 0;
    for (int i = 0; i < c->shares; i++)
        if (c->list[i].rank == c->rank && c->list[i].count)
            end = p->full ? p->len : c->list[i].first + c->list[i].count;
    return end ? end - c->rows : 0;
}
/* Bytes that a backward pass should receive.  Each share of rows receives the keys that it sees.
 * Sums of a chunk go from shares of later rows to earlier ones, and then to their owner. */
static int64_t backward_bytes(const struct cut *c, const struct problem *p, bool gather)
{
    int64_t keys = 0, sums = 0;
    for (int64_t at = 0; at < p->len; at += CHUNK_OF_KEYS) {
        const int64_t end = at + CHUNK_OF_KEYS < p->len ? at + CHUNK_OF_KEYS : p->len;
        int64_t own = 0;
        int before = -1;
        for (int i = 0; i < c->shares; i++) {
            const int64_t low = c->list[i].first > at ? c->list[i].first : at,
                          last = c->list[i].first + c->list[i].count,
                          high = last < end ? last : end;
            if (c->list[i].rank == c->rank && high > low) own += high - low;
        }
        for (int i = c->shares - 1; i >= 0; i--) {
            const loci_share *s = &c->list[i];
            if (!s->count || (!p->full && s->first + s->count <= at)) continue;
            if (s->rank == c->rank) keys += end - at - own;
            if (before == s->rank) sums += s->rank == c->rank ? end - at - own : own;
            else if (before >= 0 && s->rank == c->rank) sums += end - at;
            before = s->rank;
        }
        if (before != c->rank) sums += own;
    }
    if (gather) keys = keys_of_others(c, p);
    return keys * (int64_t)c->key_bytes + sums * (int64_t)c->sum_bytes;
}
static double backward_memory(const struct cut *c, const struct problem *p, const struct spread *s)
{
    const double most = p->len < CHUNK_OF_KEYS ? (double)p->len : CHUNK_OF_KEYS, ahead = 2,
                 real = (double)c->whole->real;
    double rows = 0, parked = 0;
    for (int i = 0; i < c->shares; i++) {
        const loci_share *x = &c->list[i];
        if (x->rank == c->rank && (double)x->count > rows) rows = (double)x->count;
        /* early pieces of a zig-zag layout wait for the rank that has the middle */
        if (x->rank == c->rank && s->layout == LOCI_ZIGZAG && i < c->shares / 2)
            parked = (double)x->count;
    }
    const double held = s->gather ? (double)(keys_of_others(c, p) + c->rows) : most,
                 items = rows / 1024 * most * (double)c->sum_bytes,
                 state = p->len > CHUNK_OF_KEYS ? (double)p->batch * rows * p->heads * p->dim * real
                                                : 0,
                 sums = ((double)c->rows + parked + 3 * most + held) * (double)c->sum_bytes;
    return ((double)c->rows + ahead * most + held) * (double)c->key_bytes + items + state + sums;
}
/* Bytes beyond the rank's own data: copies of its keys to send, keys in transit, keys that it
 * stores, partial results of rows, and the workspace of a call with that number of keys. */
static double model_memory(const struct cut *c, const struct problem *p, const struct spread *s)
{
    const int64_t most = p->len < CHUNK_OF_KEYS ? p->len : CHUNK_OF_KEYS,
                  held = s->gather ? keys_of_others(c, p) + c->rows : most, ahead = 2;
    loci_call one = c->call;
    one.k_len = (ptrdiff_t)held;
    const double work = (double)loci_workspace(c->whole->plan, &one, 0),
                 rows = (double)p->batch * (double)c->rows * p->heads,
                 state = s->gather ? 0 : rows * (p->dim + 3) * (double)c->whole->real;
    return (double)(c->rows + ahead * most + held) * (double)c->key_bytes + state + work;
}

/* ---- Rounds ---------------------------------------------------------------------------------- */

/* Findings of a rank, as sent to rank 0. */
struct result {
    int64_t rows, sent, received, model_received, memory, model_memory, wrong;
    double attention, waited;
};
/* Totals over all ranks, on rank 0. */
struct figures {
    double wall, alone, share, cpu;
};

struct bench_ranks {
    const struct spread *spread;
    const struct problem *problem;
    const char *encoding;
    bool ok;
};

static bool meet(const loci_transport *t)
{
    int64_t nothing = 0;
    return t->highest(t->user, &nothing, 1) == 0;
}
/* Sends to rank 0, or receives from there. */
static bool tell(const loci_transport *t, int from, int to, void *data, size_t bytes)
{
    void *request = NULL;
    if (t->rank == from && t->send(t->user, to, TAG_RESULT, data, bytes, &request)) return false;
    if (t->rank == to && t->receive(t->user, from, TAG_RESULT, data, bytes, &request)) return false;
    return t->wait(t->user, &request) == 0;
}

static void print_spread_json(const struct bench_ranks *b, const struct result *r, int rank,
                              int ranks, const struct figures *f)
{
    const struct problem *p = b->problem;
    json_t *j = json_object();
    json_object_set_new(j, "encoding", json_string(b->encoding));
    json_object_set_new(j, "pass", json_string(pass_names[p->pass]));
    json_object_set_new(j, "layout",
                        json_string(b->spread->layout == LOCI_ZIGZAG ? "zigzag" : "contiguous"));
    json_object_set_new(j, "form", json_string(b->spread->gather ? "gathered" : "streamed"));
    json_object_set_new(j, "ranks", json_integer(ranks));
    json_object_set_new(j, "threads", json_integer(p->threads));
    json_object_set_new(j, "dtype", json_string(dtype_names[p->dtype]));
    json_object_set_new(j, "batch", json_integer(p->batch));
    json_object_set_new(j, "heads", json_integer(p->heads));
    json_object_set_new(j, "kv_heads", json_integer(p->kv_heads));
    json_object_set_new(j, "dim", json_integer(p->dim));
    json_object_set_new(j, "len", json_integer(p->len));
    json_object_set_new(j, "rank", rank < 0 ? json_null() : json_integer(rank));
    json_object_set_new(j, "rows", json_integer(r->rows));
    json_object_set_new(j, "attention_s", json_real(r->attention));
    json_object_set_new(j, "waited_s", json_real(r->waited));
    json_object_set_new(j, "sent_bytes", json_integer(r->sent));
    json_object_set_new(j, "received_bytes", json_integer(r->received));
    json_object_set_new(j, "model_bytes", json_integer(r->model_received));
    json_object_set_new(j, "memory_bytes", json_integer(r->memory));
    json_object_set_new(j, "model_memory_bytes", json_integer(r->model_memory));
    json_object_set_new(j, "same_bits", json_boolean(!r->wrong));
    if (rank < 0) {
        json_object_set_new(j, "seconds", json_real(f->wall));
        json_object_set_new(j, "one_process_seconds", json_real(f->alone));
        json_object_set_new(j, "percent", json_real(100 * f->share));
        json_object_set_new(j, "processor_ratio", json_number_or_null(f->cpu));
    }
    json_print(j);
}
static void print_spread(const struct bench_ranks *b, const struct result *list, int ranks,
                         const struct figures *f)
{
    const struct problem *p = b->problem;
    struct result all = { 0 };
    for (int r = 0; r < ranks; r++) {
        const struct result *x = &list[r];
        all.rows += x->rows;
        all.sent += x->sent;
        all.received += x->received;
        all.model_received += x->model_received;
        all.wrong += x->wrong;
        all.waited += x->waited / ranks;
        if (x->attention > all.attention) all.attention = x->attention;
        if (x->memory > all.memory) {
            all.memory = x->memory;
            all.model_memory = x->model_memory;
        }
    }
    if (b->spread->json) {
        for (int r = 0; r < ranks; r++) print_spread_json(b, &list[r], r, ranks, f);
        print_spread_json(b, &all, -1, ranks, f);
        return;
    }
    printf("%s, %s, %s, L %td, %d heads on %d, width %d, %s: %d rank%s of %d thread%s, %s "
           "shares, %s\n",
           b->encoding, pass_names[p->pass], p->full ? "full" : "causal", p->len, p->heads,
           p->kv_heads, p->dim, dtype_names[p->dtype], ranks, ranks > 1 ? "s" : "", p->threads,
           p->threads > 1 ? "s" : "", b->spread->layout == LOCI_ZIGZAG ? "zigzag" : "contiguous",
           b->spread->gather ? "gathered" : "streamed");
    printf("%s%4s %9s %13s %10s %10s %13s %20s%s\n", PAINT("1"), "rank", "rows", "attention s",
           "waited s", "sent MB", "received MB", "beyond own rows MB", PAINT("0"));
    for (int r = 0; r < ranks; r++)
        printf("%4d %9lld %13.3f %10.3f %10.1f %13.1f %20.1f\n", r, (long long)list[r].rows,
               list[r].attention, list[r].waited, 1e-6 * (double)list[r].sent,
               1e-6 * (double)list[r].received, 1e-6 * (double)list[r].memory);
    char cpu[48] = "";
    if (isfinite(f->cpu)) snprintf(cpu, sizeof cpu, " processor time %.2f of its;", f->cpu);
    printf("all: %.3f s; one process with %d thread%s: %.3f s, %.0f %%;%s bits: %s;\n"
           "received %.1f MB, by the model %.1f; memory %.1f MB, by the model %.1f\n",
           f->wall, ranks * p->threads, ranks * p->threads > 1 ? "s" : "", f->alone, 100 * f->share,
           cpu, all.wrong ? "OTHERS" : "the same", 1e-6 * (double)all.received,
           1e-6 * (double)all.model_received, 1e-6 * (double)all.memory,
           1e-6 * (double)all.model_memory);
    fflush(stdout);
}

/* Times one process on rank 0 while the others wait, then all ranks.  Both keep the memory that
 * they allocated. */
static bool one_round(const struct bench_ranks *b, const loci_transport *t, struct task *whole,
                      struct cut *c, struct figures *f)
{
    double begun = now(), cpu = loci_clock_process();
    const bool back = b->problem->pass == BACKWARD;
    if (t->rank == 0 && (back ? task_backward(whole) : task_forward(whole)))
        return refuse("bench: %s", whole->error.text);
    f->alone = now() - begun;
    const double alone = loci_clock_process() - cpu;
    if (!meet(t)) return refuse("bench: the transport failed");
    begun = now();
    cpu = loci_clock_process();
    loci_error e = { .status = LOCI_OK };
    c->call.error = &e;
    if (back ? loci_parallel_backward(whole->plan, whole->tables, c->work, &c->call, &c->grad,
                                      &c->all)
             : loci_parallel_forward(whole->plan, whole->tables, c->work, &c->call, &c->all))
        return refuse("bench: %s: %s", b->encoding, e.text);
    if (!meet(t)) return refuse("bench: the transport failed");
    f->wall = now() - begun;
    f->share = f->alone / f->wall;
    /* threads share the CPU time of this process */
    f->cpu = b->spread->ranks ? (loci_clock_process() - cpu) / alone : NAN;
    return true;
}
static double middle(const double *list, int n)
{
    double copy[MOST_ROUNDS];
    memcpy(copy, list, sizeof *list * (size_t)n);
    return median(copy, n);
}
static void body(const loci_transport *t, void *arg)
{
    struct bench_ranks *b = arg;
    struct problem p = *b->problem;
    const int n = b->spread->repeat, all_threads = t->ranks * p.threads;
    double attention[MOST_ROUNDS], waited[MOST_ROUNDS], wall[MOST_ROUNDS], alone[MOST_ROUNDS],
        share[MOST_ROUNDS], cpu[MOST_ROUNDS];
    struct contender whole = { 0 };
    loci_host mine = { 0 }, big = { 0 };
    struct cut *c = alloc(1, sizeof *c);
    if ((p.threads > 1 && loci_pool_create(&mine, p.threads))
        || (t->rank == 0 && all_threads > 1 && loci_pool_create(&big, all_threads)))
        exit(fail("bench: cannot start more threads"));
    p.host = t->rank == 0 && big.run ? &big : mine.run ? &mine : NULL;
    bool ok = contender_open(&p, &whole, b->encoding);
    p.host = mine.run ? &mine : NULL;
    const bool back = p.pass == BACKWARD;
    if (ok && back && task_forward(&whole.main)) exit(fail("bench: %s", whole.main.error.text));
    if (ok) cut_open(c, &p, b->spread, &whole.main, t);
    /* The first round is a warm-up: it touches all memory once. */
    struct figures f;
    for (int i = -1; i < n && ok; i++) {
        ok = one_round(b, t, &whole.main, c, &f);
        if (i < 0) continue;
        attention[i] = c->report.attention;
        waited[i] = c->report.waited;
        wall[i] = f.wall;
        alone[i] = f.alone;
        share[i] = f.share;
        cpu[i] = f.cpu;
    }
    if (!ok) exit(EXIT_ERROR); /* otherwise the other ranks wait for ever */
    if (t->rank && (back ? task_backward(&whole.main) : task_forward(&whole.main)))
        exit(fail("bench: %s", whole.main.error.text));
    struct result r = { .rows = c->rows,
                        .sent = (int64_t)c->report.sent,
                        .received = (int64_t)c->report.received,
                        .model_received = back ? backward_bytes(c, &p, b->spread->gather)
                                               : keys_of_others(c, &p) * (int64_t)c->key_bytes,
                        .memory = (int64_t)c->work_bytes,
                        .model_memory = (int64_t)(back ? backward_memory(c, &p, b->spread)
                                                       : model_memory(c, &p, b->spread)),
                        .wrong = cut_compare(c),
                        .attention = middle(attention, n),
                        .waited = middle(waited, n) };
    struct result *list = alloc((size_t)t->ranks, sizeof *list);
    list[0] = r;
    for (int from = 1; from < t->ranks && ok; from++)
        ok = tell(t, from, 0, t->rank == from ? &r : &list[from], sizeof r);
    if (!ok) exit(fail("bench: the transport failed"));
    if (t->rank == 0) {
        f = (struct figures){ middle(wall, n), middle(alone, n), middle(share, n), middle(cpu, n) };
        print_spread(b, list, t->ranks, &f);
        for (int i = 0; i < t->ranks; i++) b->ok = b->ok && !list[i].wrong;
    }
    free(list);
    cut_close(c);
    free(c);
    contender_close(&whole);
    if (mine.run) loci_pool_destroy(&mine);
    if (big.run) loci_pool_destroy(&big);
}

bool bench_parallel(const struct spread *s, struct problem *p, const char *encoding)
{
    struct bench_ranks b = { .spread = s, .problem = p, .encoding = encoding, .ok = true };
    if (text_places(encoding) == LOCI_PLACE_EMBED)
        return refuse("bench: %s is added to embeddings, which needs no communication between "
                      "ranks; leave it out",
                      encoding);
    if (s->ranks) return ranks_as_threads(s->ranks, body, &b) && b.ok;
    return ranks_of_job(body, &b) && b.ok;
}
