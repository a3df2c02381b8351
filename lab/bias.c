/* SPDX-License-Identifier: MIT */
/* bias.c -- see bias.h. */
#include "lab/bias.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "draw/text.h"
#include "lab/sha256.h"
#include "models/safetensors.h"
#include "util/error.h"

enum { MOST_DISTANCES = 65537, MOST_NUMBERS = 1 << 26 };

/* ---- Options --------------------------------------------------------------------------------- */

static bool is_option(const char *text, size_t n, const char *name)
{
    return n > strlen(name) && !memcmp(text, name, strlen(name));
}

static loci_status read_options(struct lab_bias *b, const char *part, size_t n, loci_error *e)
{
    const char *end = part + n, *p = memchr(part, ':', n);
    for (p = p ? p + 1 : end; p < end;) {
        const char *comma = memchr(p, ',', (size_t)(end - p));
        const size_t own = (size_t)((comma ? comma : end) - p);
        if (is_option(p, own, "file=")) {
            const int bytes = snprintf(b->path, sizeof b->path, "%.*s", (int)own - 5, p + 5);
            CHECK(e, bytes < (int)sizeof b->path, LOCI_BAD_ARG, "bias: the path is too long");
        } else if (own == 7 && is_option(p, own, "learn=") && (p[6] == '0' || p[6] == '1')) {
            b->learn = p[6] == '1';
        } else
            return loci_fail(e, LOCI_BAD_ARG,
                             "bias: '%.*s' is no option; file=X.safetensors and learn=0 or 1 are",
                             (int)(own < 40 ? own : 40), p);
        p += own + (comma != NULL);
    }
    CHECK(e, b->path[0], LOCI_BAD_ARG,
          "bias needs its table: bias:file=X.safetensors, with a tensor 'bias'");
    return LOCI_OK;
}

/* ---- The file -------------------------------------------------------------------------------- */

/* Adds the path to a sentence about its file. */
static loci_status of_file(const struct lab_bias *b, loci_status status, loci_error *e,
                           const loci_error *why)
{
    return status ? loci_fail(e, status, "%.127s: %.300s", b->path, why->text) : LOCI_OK;
}

static loci_status find(const struct safetensors *file, const struct safetensor **to, loci_error *e)
{
    const struct safetensor *t = NULL;
    for (int i = 0; i < file->count; i++)
        if (!strcmp(file->tensor[i].name, "bias")) t = &file->tensor[i];
    CHECK(e, t, LOCI_BAD_ARG, "it has no tensor 'bias'");
    CHECK(e, t->type == ST_F32 || t->type == ST_F64, LOCI_BAD_ARG,
          "its bias is %s, but must be F32 or F64", loci_safetensors_type_name(t->type));
    CHECK(e, t->rank == 2 || t->rank == 3, LOCI_BAD_ARG,
          "its bias has %d dimensions, but must be [heads, distances] or [heads, rows, keys]",
          t->rank);
    CHECK(e, t->count > 0 && t->count <= MOST_NUMBERS, LOCI_BAD_ARG,
          "its bias has %td numbers, but must have 1 to %d", t->count, MOST_NUMBERS);
    CHECK(e, t->rank == 3 || t->shape[1] <= MOST_DISTANCES, LOCI_BAD_ARG,
          "its bias has %td distances, but at most %d are possible", t->shape[1], MOST_DISTANCES);
    *to = t;
    return LOCI_OK;
}

static loci_status open_file(struct lab_bias *b, loci_error *e)
{
    struct safetensors file;
    const struct safetensor *t = NULL;
    TRY(loci_safetensors_open(&file, b->path, e));
    const loci_status status = find(&file, &t, e);
    if (!status) {
        b->rank = t->rank;
        for (int i = 0; i < t->rank; i++) b->shape[i] = t->shape[i];
    }
    loci_safetensors_close(&file);
    return status;
}

loci_status lab_bias_open(struct lab_bias *b, const char *part, size_t n, loci_error *e)
{
    loci_error why = { .text = "" };
    *b = (struct lab_bias){ .path = "" };
    TRY(read_options(b, part, n, e));
    return of_file(b, open_file(b, &why), e, &why);
}

static loci_status read_file(const struct lab_bias *b, double *to, loci_error *e)
{
    struct safetensors file;
    const struct safetensor *t = NULL;
    TRY(loci_safetensors_open(&file, b->path, e));
    loci_status status = find(&file, &t, e);
    if (!status
        && (t->rank != b->rank || memcmp(t->shape, b->shape, (size_t)b->rank * sizeof *t->shape)))
        status = loci_fail(e, LOCI_BAD_ARG, "its shape has changed");
    if (!status) {
        void *data = draw_alloc((size_t)t->count, sizeof(double));
        status = loci_safetensors_read(&file, t, data, e);
        for (ptrdiff_t i = 0; i < t->count && !status; i++) {
            to[i] = t->type == ST_F64 ? ((double *)data)[i] : ((float *)data)[i];
            if (!isfinite(to[i]))
                status = loci_fail(e, LOCI_BAD_ARG, "number %td of its bias is not finite", i);
        }
        free(data);
    }
    loci_safetensors_close(&file);
    return status;
}
loci_status lab_bias_read(const struct lab_bias *b, double *to, loci_error *e)
{
    loci_error why = { .text = "" };
    return of_file(b, read_file(b, to, &why), e, &why);
}

void lab_bias_hash(const struct lab_bias *b, char sha256[65])
{
    char bytes[4096];
    struct sha256 s;
    FILE *file = b->rank ? fopen(b->path, "rb") : NULL;
    sha256[0] = 0;
    if (!file) return;
    sha256_begin(&s);
    for (size_t n; (n = fread(bytes, 1, sizeof bytes, file)) > 0;) sha256_add(&s, bytes, n);
    if (!ferror(file)) sha256_end(&s, sha256);
    fclose(file);
}
