/* SPDX-License-Identifier: MIT */
/* infer.c -- a model of random weights reads a prompt in chunks and goes on token by token.
 *
 *     infer [ENCODING [f32|bf16]]
 *
 *     x = E[token]    in each layer: n = x / rms(x)    q, k, v = n Wq, n Wk, n Wv
 *     x += attention(q, k, v) Wo
 *     logits = x / rms(x) U
 *
 * Each layer has a cache.  A chunk's keys and values, and what the encoding wants with every token,
 * are appended; then its queries see all keys so far.  The next token is the one with the highest
 * logit.  In the end all tokens run again, in one pass: ends with 1 when a single bit of a logit
 * differs. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <loci/cache.h>

enum {
    TOKENS = 96,
    LAYERS = 3,
    HEADS = 4,
    KV_HEADS = 2,
    DIM = 16,
    MODEL = 48,
    WIDE = HEADS * DIM,
    NARROW = KV_HEADS * DIM
};
enum { PROMPT = 150, CHUNK = 64, STEPS = 50, ALL = PROMPT + STEPS, MAX_TENSORS = 32 };

static loci_error e;
static void stop(const char *what)
{
    fprintf(stderr, "infer: %s\n", what);
    exit(1);
}
static void *take(size_t bytes)
{
    void *p = bytes ? aligned_alloc(64, (bytes + 63) / 64 * 64) : NULL;
    if (!p) stop(e.text[0] ? e.text : "out of memory");
    return p;
}

/* ---- Numbers, stored in 32 or 16 bits -------------------------------------------------------- */

static loci_dtype dtype = LOCI_F32;

static void put(void *to, ptrdiff_t i, float number)
{
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    if (dtype == LOCI_F32) ((uint32_t *)to)[i] = bits;
    /* the nearest one, of two the even one */
    else ((uint16_t *)to)[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static float get(const void *from, ptrdiff_t i)
{
    const uint32_t bits = dtype == LOCI_F32 ? ((const uint32_t *)from)[i]
                                            : (uint32_t)((const uint16_t *)from)[i] << 16;
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

static float *new_weights(ptrdiff_t count, float size)
{
    float *w = take((size_t)count * sizeof *w);
    for (ptrdiff_t i = 0; i < count; i++) w[i] = size * (2 * (float)rand() / (float)RAND_MAX - 1);
    return w;
}

/* y = x w for one row x of m numbers, w [m][n]. */
static void product(float *y, const float *x, const float *w, ptrdiff_t m, ptrdiff_t n)
{
    memset(y, 0, (size_t)n * sizeof *y);
    for (ptrdiff_t i = 0; i < m; i++)
        for (ptrdiff_t j = 0; j < n; j++) y[j] += x[i] * w[i * n + j];
}
static void normalise(float *y, const float *x)
{
    float sum = 1e-6f;
    for (int i = 0; i < MODEL; i++) sum += x[i] * x[i];
    for (int i = 0; i < MODEL; i++) y[i] = x[i] * sqrtf(MODEL / sum);
}

/* ---- The model ------------------------------------------------------------------------------- */

struct layer {
    /* input: the projection that makes this INPUT tensor */
    float *wq, *wk, *wv, *wo, *input[MAX_TENSORS];
    float *data[MAX_TENSORS];
    void *tables;
    loci_cache *cache;
};
static loci_plan *plan;
static struct layer layers[LAYERS];
static loci_tensor list[MAX_TENSORS];
static int tensors;
static float *embedding, *unembedding, x[ALL][MODEL], n[ALL][MODEL], logits[ALL][TOKENS];
static double coord[8 * ALL];
static void *q, *k, *v, *o, *work;
static size_t tables_bytes, work_bytes;

/* An INPUT tensor is [batch][heads][tokens], perhaps with more numbers for each. */
static ptrdiff_t width(const loci_tensor *t)
{
    ptrdiff_t count = 1;
    for (int i = 3; i < t->rank; i++) count *= t->shape[i];
    return count;
}
static void make_input(const loci_tensor *t, const float *w, float *to, int rows)
{
    const ptrdiff_t heads = t->shape[1], each = width(t);
    /* its logarithm: gates are sigmoids, mostly near 1 */
    const bool gate = !strncmp(t->name, "log_", 4);
    for (int r = 0; r < rows; r++) {
        float *row = take((size_t)(heads * each) * sizeof *row);
        product(row, n[r], w, MODEL, heads * each);
        for (ptrdiff_t i = 0; i < heads * each; i++)
            to[(i / each * rows + r) * each + i % each] =
                gate ? -log1pf(expf(-3 - row[i])) : row[i];
        free(row);
    }
}

static void new_layer(struct layer *l)
{
    l->wq = new_weights(MODEL * WIDE, 0.4f);
    l->wk = new_weights(MODEL * NARROW, 0.4f);
    l->wv = new_weights(MODEL * NARROW, 0.4f);
    l->wo = new_weights(WIDE * MODEL, 0.4f);
    for (int i = 0; i < tensors; i++) {
        const bool input = list[i].role == LOCI_INPUT;
        ptrdiff_t count = input ? list[i].shape[1] * width(&list[i]) : 1;
        for (int a = 0; a < list[i].rank && !input; a++) count *= list[i].shape[a];
        float *data = take((size_t)(input ? count * ALL : count) * sizeof *data);
        if (input) l->input[i] = new_weights(MODEL * count, 0.3f);
        else loci_tensor_init(plan, i, 1, data);
        l->data[i] = data;
    }
    tables_bytes = loci_tables_size(plan, ALL);
    l->tables = take(tables_bytes);
    if (loci_prepare(plan, ALL, (const void *const *)l->data, l->tables))
        stop("the encoding's tables cannot be prepared");
    if (loci_cache_create(&l->cache, plan, 1, ALL, 0, take(loci_cache_size(plan, 1, ALL)), &e))
        stop(e.text);
}

static loci_call call_of(const struct layer *l, int from, int rows)
{
    /* the same on every axis, where there are several */
    for (int i = 0; i < 8 * rows; i++) coord[i] = from + i % rows;
    return (loci_call)LOCI_CALL(.batch = 1, .q_len = rows, .k_len = rows, .q = { q, 0, DIM, WIDE },
                                .k = { k, 0, DIM, NARROW }, .v = { v, 0, DIM, NARROW },
                                .o = { o, 0, DIM, WIDE }, .cache = l->cache, .q_coord = coord,
                                .k_coord = coord, .tensors = (const void *const *)l->data,
                                .error = &e, .tables_bytes = tables_bytes,
                                .work_bytes = work_bytes);
}
/* Row r of q, k or v. */
static void project(void *to, int r, const float *w, int count)
{
    float row[WIDE];
    product(row, n[r], w, MODEL, count);
    for (int i = 0; i < count; i++) put(to, r * count + i, row[i]);
}

/* The logits of tokens from .. from + rows - 1, which enter the caches. */
static void run(const int *token, int from, int rows)
{
    for (int r = 0; r < rows; r++) memcpy(x[r], embedding + token[from + r] * MODEL, sizeof x[r]);
    for (const struct layer *l = layers; l < layers + LAYERS; l++) {
        for (int r = 0; r < rows; r++) {
            normalise(n[r], x[r]);
            project(q, r, l->wq, WIDE);
            project(k, r, l->wk, NARROW);
            project(v, r, l->wv, NARROW);
        }
        for (int i = 0; i < tensors; i++)
            if (l->input[i]) make_input(&list[i], l->input[i], l->data[i], rows);
        const loci_call c = call_of(l, from, rows);
        if (loci_cache_append(plan, l->tables, work, l->cache, &c)
            || loci_forward(plan, l->tables, work, &c))
            stop(e.text);
        for (int r = 0; r < rows; r++) {
            float row[WIDE], sum[MODEL];
            for (int i = 0; i < WIDE; i++) row[i] = get(o, r * WIDE + i);
            product(sum, row, l->wo, WIDE, MODEL);
            for (int i = 0; i < MODEL; i++) x[r][i] += sum[i];
        }
    }
    for (int r = 0; r < rows; r++) {
        normalise(n[r], x[r]);
        product(logits[from + r], n[r], unembedding, MODEL, TOKENS);
    }
}

static int best(const float *p)
{
    int t = 0;
    for (int i = 1; i < TOKENS; i++)
        if (p[i] > p[t]) t = i;
    return t;
}

int main(int argc, char **argv)
{
    static float said[ALL][TOKENS];
    int token[ALL], wrong = 0;
    if (argc > 2 && strcmp(argv[2], "f32") != 0 && strcmp(argv[2], "bf16") != 0)
        stop("the storage is f32 or bf16");
    if (argc > 2 && !strcmp(argv[2], "bf16")) dtype = LOCI_BF16;
    const loci_desc d = LOCI_DESC(.encoding = argc > 1 ? argv[1] : "rope:pairing=half+fox",
                                  .heads = HEADS, .kv_heads = KV_HEADS, .dim = DIM, .dtype = dtype,
                                  .max_len = ALL, .keys_rotated = 1);
    if (loci_plan_create(&plan, &d, &e)) stop(e.text);
    tensors = loci_tensors(plan, list, MAX_TENSORS);
    embedding = new_weights(TOKENS * MODEL, 1);
    unembedding = new_weights(MODEL * TOKENS, 1);
    for (int l = 0; l < LAYERS; l++) new_layer(&layers[l]);
    /* room for either storage */
    q = take(ALL * WIDE * sizeof(float));
    o = take(ALL * WIDE * sizeof(float));
    k = take(ALL * NARROW * sizeof(float));
    v = take(ALL * NARROW * sizeof(float));
    const loci_call most = call_of(&layers[0], 0, ALL);
    work_bytes = loci_workspace(plan, &most, 0);
    work = take(work_bytes);

    for (int i = 0; i < PROMPT; i++) token[i] = rand() % TOKENS;
    for (int i = 0; i < PROMPT; i += CHUNK) run(token, i, PROMPT - i < CHUNK ? PROMPT - i : CHUNK);
    printf("%s\n", loci_plan_text(plan));
    for (int i = PROMPT; i < ALL; i++) {
        token[i] = best(logits[i - 1]);
        printf("%d%c", token[i], i + 1 < ALL ? ' ' : '\n');
        run(token, i, 1);
    }

    memcpy(said, logits, sizeof said);
    for (int l = 0; l < LAYERS; l++)
        if (loci_cache_truncate(layers[l].cache, 0, 0, &e)) stop(e.text);
    run(token, 0, ALL);
    for (int i = 0; i < ALL; i++) wrong += memcmp(said[i], logits[i], sizeof logits[i]) != 0;
    printf("%d tokens, in chunks of %d and one by one: %d have other logits than in one pass\n",
           ALL, CHUNK, wrong);
    return wrong != 0;
}
