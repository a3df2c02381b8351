/* SPDX-License-Identifier: MIT */
/* latent.c -- the latent attention of DeepSeek V2 and V3, decoded two ways.
 *
 * Each token leaves one latent of 512 numbers and one key of 64 that rotates, for all heads.  A
 * head's own key and value are products of the latent with its matrices UK and UV:
 *
 *     materialised   k = [UK c | rotated], v = UV c, for each head: what models are trained with
 *     absorbed       q becomes [UK^T q | rotated], and all heads read the latents:
 *                    k = [c | rotated], v = c, o = UV (weighted sum of latents)
 *
 * Both give the same outputs, to rounding.  The absorbed cache has 576 numbers a token instead of
 * 320 for each head.  values_in_keys tells loci that values are the first 512 channels of the keys,
 * so the cache has no second copy of them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <loci/cache.h>

enum { HEADS = 16, NOPE = 128, ROPE = 64, LATENT = 512, TOKENS = 70 };
static float q[HEADS][NOPE + ROPE], c[TOKENS][LATENT], turned[TOKENS][ROPE];
static float up_k[HEADS][NOPE][LATENT], up_v[HEADS][NOPE][LATENT];
static float k[HEADS][TOKENS][NOPE + ROPE], v[HEADS][TOKENS][NOPE], o[HEADS][NOPE];
static float absorbed_q[HEADS][LATENT + ROPE], absorbed_k[TOKENS][LATENT + ROPE];
static float sums[HEADS][LATENT], absorbed_o[HEADS][NOPE];

static void fill(float *x, int count, float size)
{
    for (int i = 0; i < count; i++) x[i] = size * ((float)rand() / (float)RAND_MAX - 0.5f);
}

static loci_error e;
static void stop(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, e.text);
    exit(1);
}

/* A cache with all tokens, and the last token's row.  Returns the bytes of the cache. */
static size_t attend(const loci_desc *d, loci_call *call)
{
    loci_plan *plan;
    loci_cache *cache = NULL;
    if (loci_plan_create(&plan, d, &e)) stop("plan");
    const size_t bytes = loci_cache_size(plan, 1, TOKENS);
    void *memory = aligned_alloc(64, bytes),
         *tables = aligned_alloc(64, loci_tables_size(plan, TOKENS));
    if (!memory || loci_cache_create(&cache, plan, 1, TOKENS, 0, memory, &e)) stop("cache");
    if (!tables || loci_prepare(plan, TOKENS, NULL, tables)) stop("tables");
    call->batch = 1;
    call->q_len = 1;
    call->k_len = TOKENS;
    call->cache = cache;
    call->error = &e;
    void *work = aligned_alloc(64, loci_workspace(plan, call, 0));
    if (!work || loci_cache_append(plan, tables, work, cache, call)) stop("append");
    if (loci_forward(plan, tables, work, call)) stop("forward");
    loci_plan_destroy(plan);
    free(memory);
    free(tables);
    free(work);
    return bytes;
}

/* Each head has its own keys and values. */
static size_t materialised(double scale)
{
    for (int h = 0; h < HEADS; h++)
        for (int j = 0; j < TOKENS; j++) {
            for (int i = 0; i < NOPE; i++) {
                float key = 0, value = 0;
                for (int l = 0; l < LATENT; l++) {
                    key += up_k[h][i][l] * c[j][l];
                    value += up_v[h][i][l] * c[j][l];
                }
                k[h][j][i] = key;
                v[h][j][i] = value;
            }
            for (int i = 0; i < ROPE; i++) k[h][j][NOPE + i] = turned[j][i];
        }
    const loci_desc d =
        LOCI_DESC(.encoding = "rope:pairing=interleaved,dim=64,offset=128", .heads = HEADS,
                  .dim = NOPE + ROPE, .value_dim = NOPE, .scale = scale, .keys_rotated = 1);
    loci_call call = LOCI_CALL(.q.data = q, .k.data = k, .v.data = v, .o.data = o);
    return attend(&d, &call);
}

/* All heads share the latents. */
static size_t absorbed(double scale)
{
    for (int h = 0; h < HEADS; h++) {
        for (int l = 0; l < LATENT; l++) {
            float sum = 0;
            for (int i = 0; i < NOPE; i++) sum += up_k[h][i][l] * q[h][i];
            absorbed_q[h][l] = sum;
        }
        for (int i = 0; i < ROPE; i++) absorbed_q[h][LATENT + i] = q[h][NOPE + i];
    }
    for (int j = 0; j < TOKENS; j++) {
        for (int l = 0; l < LATENT; l++) absorbed_k[j][l] = c[j][l];
        for (int i = 0; i < ROPE; i++) absorbed_k[j][LATENT + i] = turned[j][i];
    }
    const loci_desc d =
        LOCI_DESC(.encoding = "rope:pairing=interleaved,dim=64,offset=512", .heads = HEADS,
                  .kv_heads = 1, .dim = LATENT + ROPE, .value_dim = LATENT, .values_in_keys = 1,
                  .scale = scale, .keys_rotated = 1);
    loci_call call = LOCI_CALL(.q.data = absorbed_q, .k.data = absorbed_k, .o.data = sums);
    const size_t bytes = attend(&d, &call);
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < NOPE; i++) {
            float sum = 0;
            for (int l = 0; l < LATENT; l++) sum += up_v[h][i][l] * sums[h][l];
            absorbed_o[h][i] = sum;
        }
    return bytes;
}

int main(void)
{
    srand(1);
    fill(q[0], HEADS * (NOPE + ROPE), 2);
    fill(c[0], TOKENS * LATENT, 2);
    fill(turned[0], TOKENS * ROPE, 2); /* before it turns: append() does that */
    fill(up_k[0][0], HEADS * NOPE * LATENT, 0.2f);
    fill(up_v[0][0], HEADS * NOPE * LATENT, 0.2f);
    const double scale = 1 / sqrt(NOPE + ROPE); /* of the materialised heads, in both */
    const size_t own = materialised(scale), shared = absorbed(scale);
    double apart = 0, most = 0;
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < NOPE; i++) {
            const double size = fabs((double)o[h][i]),
                         error = fabs((double)o[h][i] - (double)absorbed_o[h][i]);
            most = size > most ? size : most;
            apart = error > apart ? error : apart;
        }
    printf("caches of %zu and %zu bytes; outputs up to %.2f differ by %.1e\n", own, shared, most,
           apart);
    return !(apart <= 1e-4 * (1 + most));
}
