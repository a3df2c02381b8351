/* SPDX-License-Identifier: MIT */
/* ggml-check.c -- attention with the masks that engines write, by the backend LOCI and by ggml's
 * CPU backend.  scripts/ggml builds and runs it; GGML_BACKEND_PATH names the backend.
 * test-backend-ops has random masks only, which are never ranges. */
#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_KEYS = 600 };
enum mask { NONE, CAUSAL, WINDOW, EMPTY_ROWS, SEQUENCES, TOKENS, APART, DISTANCES, MASKS };
static const char *const masks[] = { "no mask",         "causal",        "window",
                                     "empty rows",      "two sequences", "a token of each sequence",
                                     "the same, apart", "distances" };

struct form {
    enum mask mask;
    enum ggml_type k, v;
    int rows, keys, heads, kv_heads, dim, value_dim, batch;
    int mask_heads, mask_batch; /* extents of the mask */
    float scale, max_bias, cap;
    bool sinks;
};

static uint64_t state = 1;
static float draw(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (float)(state >> 40) / (1 << 23) - 1;
}
static void fill(struct ggml_tensor *t)
{
    const int64_t n = ggml_nelements(t);
    float *x = malloc((size_t)n * sizeof *x);
    void *stored = malloc(ggml_nbytes(t));
    for (int64_t i = 0; i < n; i++) x[i] = draw();
    ggml_quantize_chunk(t->type, x, stored, 0, n / t->ne[0], t->ne[0], NULL);
    if (t->type == GGML_TYPE_F32) ggml_backend_tensor_set(t, x, 0, ggml_nbytes(t));
    else ggml_backend_tensor_set(t, stored, 0, ggml_nbytes(t));
    free(x);
    free(stored);
}

/* The number of a mask for row i (of the last rows of the keys) and key j. */
static float number(const struct form *f, int i, int j)
{
    const int at = f->keys - f->rows - 3 + i; /* the last three keys are empty cells */
    switch (f->mask) {
    case WINDOW:
        return j <= at && at - j < 70 ? 0 : -INFINITY;
    case EMPTY_ROWS:
        return i % 3 && j <= at ? 0 : -INFINITY;
    case SEQUENCES:
        return j <= at && j / 5 % 2 == i % 2 ? 0 : -INFINITY;
    case DISTANCES:
        return j <= at ? (float)(j - at) : -INFINITY;
    default:
        return j <= at ? 0 : -INFINITY;
    }
}
static void fill_mask(const struct form *f, struct ggml_tensor *m)
{
    ggml_fp16_t *x = malloc(ggml_nbytes(m));
    for (int64_t c = 0; c < m->ne[2] * m->ne[3]; c++)
        for (int i = 0; i < f->rows; i++)
            for (int j = 0; j < f->keys; j++)
                x[(c * f->rows + i) * f->keys + j] =
                    ggml_fp32_to_fp16(number(f, i, j + (int)c < f->keys ? j + (int)c : j));
    ggml_backend_tensor_set(m, x, 0, ggml_nbytes(m));
    free(x);
}

/* Both backends compute the form.  1: their results differ. */
static int check(const struct form *f, ggml_backend_t loci, ggml_backend_t cpu)
{
    struct ggml_init_params params = { ggml_tensor_overhead() * 32 + ggml_graph_overhead(), NULL,
                                       true };
    struct ggml_context *ctx = ggml_init(params);
    const int B = f->batch;
    struct ggml_tensor *t[5] = {
        ggml_new_tensor_4d(ctx, GGML_TYPE_F32, f->dim, f->rows, f->heads, B),
        ggml_new_tensor_4d(ctx, f->k, f->dim, f->kv_heads, f->keys, B),
        ggml_new_tensor_4d(ctx, f->v, f->value_dim, f->kv_heads, f->keys, B)
    };
    if (f->mask)
        t[3] =
            ggml_new_tensor_4d(ctx, GGML_TYPE_F16, f->keys, f->rows, f->mask_heads, f->mask_batch);
    if (f->sinks) t[4] = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, f->heads);
    struct ggml_tensor *out = ggml_flash_attn_ext(ctx, t[0], ggml_permute(ctx, t[1], 0, 2, 1, 3),
                                                  ggml_permute(ctx, t[2], 0, 2, 1, 3), t[3],
                                                  f->scale, f->max_bias, f->cap);
    ggml_flash_attn_ext_add_sinks(out, t[4]);
    struct ggml_cgraph *graph = ggml_new_graph(ctx);
    ggml_build_forward_expand(graph, out);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, cpu);
    for (int i = 0; i < 5; i++) {
        if (!t[i]) continue;
        if (i == 3) fill_mask(f, t[i]);
        else fill(t[i]);
    }

    double error = NAN;
    if (!ggml_backend_supports_op(loci, out)) puts("the backend does not take this form");
    else if (ggml_backend_graph_compute(cpu, graph) == GGML_STATUS_SUCCESS) {
        const int64_t n = ggml_nelements(out);
        float *want = malloc(ggml_nbytes(out)), *got = malloc(ggml_nbytes(out));
        double far = 0, all = 0;
        ggml_backend_tensor_get(out, want, 0, ggml_nbytes(out));
        ggml_backend_tensor_memset(out, 0xff, 0, ggml_nbytes(out));
        if (ggml_backend_graph_compute(loci, graph) == GGML_STATUS_SUCCESS) {
            ggml_backend_tensor_get(out, got, 0, ggml_nbytes(out));
            for (int64_t i = 0; i < n; i++) {
                far += pow((double)got[i] - want[i], 2);
                all += pow(want[i], 2);
            }
            error = all > 0 ? far / all : far; /* no row sees a key: all 0 */
        }
        free(want);
        free(got);
    }
    ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
    if (error < 1e-4) return 0;
    printf(
        "%s, k %s, v %s, %d rows, %d keys, %d/%d heads of %d/%d, batch %d, mask of %d heads and %d "
        "entries, scale %g, max_bias %g, cap %g, sinks %d: error %g\n",
        masks[f->mask], ggml_type_name(f->k), ggml_type_name(f->v), f->rows, f->keys, f->heads,
        f->kv_heads, f->dim, f->value_dim, B, f->mask_heads, f->mask_batch, (double)f->scale,
        (double)f->max_bias, (double)f->cap, f->sinks, error);
    return 1;
}

int main(void)
{
    ggml_backend_load_all();
    ggml_backend_dev_t device = ggml_backend_dev_by_name("LOCI");
    ggml_backend_t loci = device ? ggml_backend_dev_init(device, NULL) : NULL,
                   cpu = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, NULL);
    if (!loci || !cpu) {
        fprintf(stderr, "ggml-check: there is no backend LOCI; GGML_BACKEND_PATH must name it\n");
        return 1;
    }
    void *at = ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device),
                                                 "ggml_backend_set_n_threads");
    const ggml_backend_set_n_threads_t set_threads = *(ggml_backend_set_n_threads_t *)&at;
    static const enum ggml_type types[] = { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16,
                                            GGML_TYPE_Q8_0 };
    static const int rows[] = { 1, 2, 5, 64, 70, 130 };
    int passed = 0, failed = 0;
    for (int n = 0; n < 800; n++) {
        const int kv_heads = 1 + n % 3, batch = 1 + n % 2, heads = kv_heads * (1 + n / 3 % 4);
        struct form f = { .mask = (enum mask)(n % MASKS),
                          .k = types[n / MASKS % 4],
                          .v = types[n / MASKS / 4 % 4],
                          .rows = rows[n / 5 % 6],
                          .kv_heads = kv_heads,
                          .heads = heads,
                          .dim = 32 + 32 * (n / 7 % 3),
                          .value_dim = 32 + 32 * (n / 11 % 2),
                          .batch = batch,
                          .mask_heads = n / 13 % 4 ? 1 : heads,
                          .mask_batch = n / 2 % 2 ? 1 : batch,
                          .scale = 0.2f,
                          .cap = n / 17 % 3 ? 0 : 5,
                          .sinks = n / 19 % 2 };
        f.keys = f.rows + 3 + (int)((draw() + 1) / 2 * (MOST_KEYS - 140));
        f.max_bias = f.mask && n / 23 % 3 == 0 ? 8 : 0;
        set_threads(loci, 1 + n % 3);
        if (check(&f, loci, cpu)) failed++;
        else passed++;
    }
    ggml_backend_free(loci);
    ggml_backend_free(cpu);
    printf("%d passed, %d failed\n", passed, failed);
    return failed > 0;
}
