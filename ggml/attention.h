/* SPDX-License-Identifier: MIT */
/* attention.h -- flash attention of a ggml graph (GGML_OP_FLASH_ATTN_EXT) by loci. */
#ifndef LOCI_GGML_ATTENTION_H
#define LOCI_GGML_ATTENTION_H

#include <stdbool.h>

struct ggml_tensor;

/* Plans, threads and memory that calls share.  One thread at a time may use it. */
struct attention;
struct attention *loci_attention_create(void); /* NULL: out of memory */
void loci_attention_destroy(struct attention *);
/* The number of threads of the next calls. */
void loci_attention_threads(struct attention *, int threads);

/* True if loci computes this operation; ggml's CPU backend computes the others. */
bool loci_attention_takes(const struct ggml_tensor *op);
/* Computes it.  On failure it writes one sentence to ggml's log, and false is returned. */
bool loci_attention_run(struct attention *, struct ggml_tensor *op);

#endif
