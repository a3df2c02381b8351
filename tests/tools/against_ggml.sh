#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# scripts/ggml-serve.c follows the protocol of `loci bench --against`.  Headers that compute nothing
# replace ggml.
. tests/support/harness.sh
cc=${CC:-cc}
mkdir "$work/include"
cat >"$work/include/ggml.h" <<'END'
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
enum ggml_type { GGML_TYPE_F32, GGML_TYPE_F16 };
enum ggml_prec { GGML_PREC_F32 };
typedef uint16_t ggml_fp16_t;
struct ggml_context { int none; };
struct ggml_init_params { size_t mem_size; void *mem_buffer; bool no_alloc; };
struct ggml_tensor { void *data; int64_t n; };
struct ggml_cgraph { struct ggml_tensor *o; };
static struct ggml_context *ggml_init(struct ggml_init_params p) { (void)p; return calloc(1, sizeof(struct ggml_context)); }
static struct ggml_tensor *ggml_new_tensor_3d(struct ggml_context *c, enum ggml_type type, int64_t x, int64_t y, int64_t z)
{
    struct ggml_tensor *t = calloc(1, sizeof *t);
    (void)c, (void)type;
    t->n = x * y * z, t->data = calloc((size_t)t->n, 4);
    return t;
}
static struct ggml_tensor *ggml_new_tensor_2d(struct ggml_context *c, enum ggml_type type, int64_t x, int64_t y)
{
    return ggml_new_tensor_3d(c, type, x, y, 1);
}
static int64_t ggml_nelements(const struct ggml_tensor *t) { return t->n; }
static ggml_fp16_t ggml_fp32_to_fp16(float x) { return (ggml_fp16_t)(x != 0); }
static struct ggml_tensor *ggml_flash_attn_ext(struct ggml_context *c, struct ggml_tensor *q, struct ggml_tensor *k,
                                               struct ggml_tensor *v, struct ggml_tensor *m, float scale, float bias, float cap)
{
    (void)c, (void)k, (void)v, (void)m, (void)scale, (void)bias, (void)cap;
    return q;
}
static void ggml_flash_attn_ext_set_prec(struct ggml_tensor *t, enum ggml_prec p) { (void)t, (void)p; }
static struct ggml_cgraph *ggml_new_graph(struct ggml_context *c) { (void)c; return calloc(1, sizeof(struct ggml_cgraph)); }
static void ggml_build_forward_expand(struct ggml_cgraph *g, struct ggml_tensor *t) { g->o = t; }
END
cat >"$work/include/ggml-cpu.h" <<'END'
#include <stddef.h>
struct ggml_cgraph;
struct ggml_cplan { size_t work_size; void *work_data; };
static inline struct ggml_cplan ggml_graph_plan(struct ggml_cgraph *g, int threads, void *pool)
{
    (void)g, (void)threads, (void)pool;
    return (struct ggml_cplan){ 64, NULL };
}
static inline int ggml_graph_compute(struct ggml_cgraph *g, struct ggml_cplan *p)
{
    volatile float x = 0;
    (void)g, (void)p;
    for (int i = 0; i < 100000; i++) x = x + 1;
    return 0;
}
END
check "it compiles" "$cc" -std=c17 -O1 -Wall -Wextra -Werror -I "$work/include" scripts/ggml-serve.c -o "$work/serve" -lm
ask() { "$LOCI" bench "$@" --against "$work/serve" >"$work/out" 2>"$work/err"; }
check "loci measures it" ask nope --len 64 --dim 16 --heads 2 --repeat 5
check "and has a row" grep -Eq '^nope +64 ' "$work/out"
check "in f16" ask nope --len 64 --dim 16 --heads 2 --repeat 5 --dtype f16
refused() { ! ask "${@:2}" && grep -Fq "$1" "$work/err"; }
check "no encodings" refused 'ggml-serve knows nope alone' t5 --len 64 --repeat 5
check "no gradients" refused 'not --pass backward' nope --pass backward --len 64 --repeat 5
check "no sources" bash -c '! scripts/against-ggml /nowhere 2>"$0/err" && grep -q ^usage "$0/err"' "$work"
harness_end
