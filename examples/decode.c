/* SPDX-License-Identifier: MIT */
/* decode.c -- a prompt, then token by token with a cache: every row has the bits that one pass over
 * all tokens gives it.
 *
 * The cache has room for all tokens and keeps rotated keys, so that each key is rotated once.
 * Strides say where a token's neighbours are, whatever the number of tokens so far. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <loci/loci.h>

enum { HEADS = 8, KV_HEADS = 2, DIM = 64, PROMPT = 120, STEPS = 8, ALL = PROMPT + STEPS };
static float q[HEADS][ALL][DIM], k[KV_HEADS][ALL][DIM], v[KV_HEADS][ALL][DIM], o[HEADS][ALL][DIM];
static float k_cache[KV_HEADS][ALL][DIM], v_cache[KV_HEADS][ALL][DIM], row[HEADS][PROMPT][DIM];

static void fill(float *x, int count)
{
    for (int i = 0; i < count; i++) x[i] = (float)rand() / (float)RAND_MAX - 0.5f;
}

static loci_error e;
static void stop(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, e.text);
    exit(1);
}

struct layer {
    loci_plan *plan;
    void *tables, *work;
    size_t tables_bytes, work_bytes;
};
static struct layer make(int keys_rotated)
{
    loci_desc d = LOCI_DESC(.encoding = "rope:pairing=half,base=500000+alibi", .heads = HEADS,
                            .kv_heads = KV_HEADS, .dim = DIM, .keys_rotated = keys_rotated);
    struct layer l;
    if (loci_plan_create(&l.plan, &d, &e)) stop("plan");
    l.tables_bytes = loci_tables_size(l.plan, ALL);
    l.tables = aligned_alloc(64, l.tables_bytes);
    if (!l.tables || loci_prepare(l.plan, ALL, NULL, l.tables)) stop("tables");
    /* The workspace of the most rows and keys serves the whole generation. */
    const loci_call most = LOCI_CALL(.batch = 1, .q_len = ALL, .k_len = ALL, .error = &e);
    l.work_bytes = loci_workspace(l.plan, &most, 0);
    l.work = aligned_alloc(64, l.work_bytes);
    if (!l.work) stop("workspace");
    return l;
}

static void attend(const struct layer *l, loci_call *call)
{
    call->error = &e;
    call->tables_bytes = l->tables_bytes;
    call->work_bytes = l->work_bytes;
    if (loci_forward(l->plan, l->tables, l->work, call)) stop("forward");
}

/* Tokens from .. from + n - 1 enter the cache, then their queries see all tokens so far. */
static void step(const struct layer *l, int from, int n)
{
    int64_t places[ALL];
    for (int i = 0; i < n; i++) places[i] = from + i;
    const loci_view keys = { &k[0][from], 0, ALL * DIM, DIM },
                    cached = { &k_cache[0][from], 0, ALL * DIM, DIM };
    loci_call turn =
        LOCI_CALL(.batch = 1, .q_len = n, .k_len = n, .q_pos = places, .k_pos = places, .error = &e,
                  .tables_bytes = l->tables_bytes, .work_bytes = l->work_bytes);
    if (loci_rotate(l->plan, l->tables, l->work, &turn, LOCI_CACHE, keys, cached)) stop("rotate");
    for (int h = 0; h < KV_HEADS; h++)
        memcpy(v_cache[h][from], v[h][from], (size_t)n * sizeof v[h][from]);

    loci_call call =
        LOCI_CALL(.batch = 1, .q_len = n, .k_len = from + n,
                  .q = { &q[0][from], 0, ALL * DIM, DIM }, .o = { row, 0, PROMPT * DIM, DIM },
                  .k = { k_cache, 0, ALL * DIM, DIM }, .v = { v_cache, 0, ALL * DIM, DIM });
    attend(l, &call);
}

/* How many of the rows that step() left in `row` differ from those of the pass over all tokens. */
static int differing(int from, int n)
{
    int count = 0;
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < n; i++)
            count += memcmp(row[h][i], o[h][from + i], sizeof row[h][i]) != 0;
    return count;
}

int main(void)
{
    fill(q[0][0], HEADS * ALL * DIM);
    fill(k[0][0], KV_HEADS * ALL * DIM);
    fill(v[0][0], KV_HEADS * ALL * DIM);
    struct layer whole = make(0), cached = make(1);
    loci_call call = LOCI_CALL(.batch = 1, .q_len = ALL, .k_len = ALL, .q.data = q, .k.data = k,
                               .v.data = v, .o.data = o);
    attend(&whole, &call);

    step(&cached, 0, PROMPT);
    int wrong = differing(0, PROMPT);
    printf("prompt of %d tokens: %d rows differ\n", PROMPT, wrong);
    for (int t = PROMPT; t < ALL; t++) {
        step(&cached, t, 1);
        const int w = differing(t, 1);
        printf("token %d: %d rows differ\n", t, w);
        wrong += w;
    }
    free(whole.tables);
    free(cached.tables);
    free(whole.work);
    free(cached.work);
    loci_plan_destroy(whole.plan);
    loci_plan_destroy(cached.plan);
    return wrong != 0;
}
