/* SPDX-License-Identifier: MIT */
/* write.c -- writes safetensors files. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/byte_order.h"
#include "util/printable.h"
#include "models/io.h"
#include "models/safetensors.h"

/* ---- The header's text ----------------------------------------------------------------------- */

struct text {
    char *to;
    size_t length;
}; /* `to` NULL: only measured */

static void put_bytes(struct text *t, const char *bytes, size_t n)
{
    if (t->to) memcpy(t->to + t->length, bytes, n);
    t->length += n;
}
static void put_text(struct text *t, const char *text) { put_bytes(t, text, strlen(text)); }

/* JSON's escapes; everything else is UTF-8 already (check_all). */
static void put_string(struct text *t, const char *string)
{
    put_text(t, "\"");
    for (const char *s = string; *s; s++) {
        char escape[8];
        const unsigned char c = (unsigned char)*s;
        if (c >= 0x20 && c != '"' && c != '\\') put_bytes(t, s, 1);
        else {
            const int n = snprintf(escape, sizeof escape, c < 0x20 ? "\\u%04x" : "\\%c", c);
            put_bytes(t, escape, (size_t)n);
        }
    }
    put_text(t, "\"");
}

static void put_numbers(struct text *t, int n, const uint64_t *x)
{
    char number[24];
    for (int i = 0; i < n; i++) {
        const int length = snprintf(number, sizeof number, "%s%" PRIu64, i ? "," : "", x[i]);
        put_bytes(t, number, (size_t)length);
    }
}

/* The type and shape must be valid (check_tensor). */
static uint64_t data_bytes(const struct safetensor *t)
{
    uint64_t bytes = loci_safetensors_type_size(t->type);
    for (int k = 0; k < t->rank; k++) bytes *= (uint64_t)t->shape[k];
    return bytes;
}

/* `at`: where its data begin, in the data part. */
static void put_entry(struct text *to, const struct safetensor *t, uint64_t at)
{
    uint64_t shape[ST_MAX_RANK];
    for (int k = 0; k < t->rank; k++) shape[k] = (uint64_t)t->shape[k];
    put_string(to, t->name);
    put_text(to, ":{\"dtype\":");
    put_string(to, loci_safetensors_type_name(t->type));
    put_text(to, ",\"shape\":[");
    put_numbers(to, t->rank, shape);
    put_text(to, "],\"data_offsets\":[");
    put_numbers(to, 2, (const uint64_t[]){ at, at + data_bytes(t) });
    put_text(to, "]}");
}

/* Written twice, first without a destination, so that size and text cannot disagree. */
static void put_header(struct text *to, int count, const struct safetensor *t, int meta_count,
                       const struct safetensors_meta *meta)
{
    uint64_t at = 0;
    put_text(to, "{");
    if (meta_count) put_text(to, "\"__metadata__\":{");
    for (int i = 0; i < meta_count; i++) {
        if (i) put_text(to, ",");
        put_string(to, meta[i].key);
        put_text(to, ":");
        put_string(to, meta[i].value);
    }
    if (meta_count) put_text(to, count ? "}," : "}");
    for (int i = 0; i < count; at += data_bytes(&t[i++])) {
        if (i) put_text(to, ",");
        put_entry(to, &t[i], at);
    }
    put_text(to, "}");
    while (to->length % 8) put_text(to, " "); /* the data starts on 8 bytes */
}

/* ---- The file -------------------------------------------------------------------------------- */

/* Rejects what the reader would reject. */
static loci_status check_tensor(const struct safetensor *t, uint64_t *total, loci_error *e)
{
    IO_CHECK(e, *t->name && strlen(t->name) <= ST_MAX_NAME && is_utf8(t->name),
             "cannot write: the name of tensor '%.64s' must be UTF-8 of 1 to %d bytes", t->name,
             ST_MAX_NAME);
    IO_CHECK(e, t->rank >= 0 && t->rank <= ST_MAX_RANK,
             "cannot write: tensor '%.64s' has %d dimensions, but must have 0 to %d", t->name,
             t->rank, ST_MAX_RANK);
    int64_t bytes = (int64_t)loci_safetensors_type_size(t->type), sum;
    bool fits = true;
    for (int k = 0; k < t->rank; k++)
        fits = fits && t->shape[k] >= 0 && !__builtin_mul_overflow(bytes, t->shape[k], &bytes);
    IO_CHECK(e, fits && !__builtin_add_overflow((int64_t)*total, bytes, &sum),
             "cannot write: the shape of tensor '%.64s' is negative or too large", t->name);
    *total = (uint64_t)sum;
    return LOCI_OK;
}

/* *total: bytes of all data. */
static loci_status check_all(int count, const struct safetensor *t, int meta_count,
                             const struct safetensors_meta *meta, uint64_t *total, loci_error *e)
{
    *total = 0;
    for (int i = 0; i < meta_count; i++)
        IO_CHECK(e, is_utf8(meta[i].key) && is_utf8(meta[i].value),
                 "cannot write: the metadata '%.64s' must be UTF-8", meta[i].key);
    for (int i = 0; i < count; i++) {
        const loci_status s = check_tensor(&t[i], total, e);
        if (s) return s;
    }
    return LOCI_OK;
}

/* The length, then the header; a failure removes the new file too. */
static loci_status begin(struct safetensors_writer *w, const char *path, const struct text *head,
                         loci_error *e)
{
    uint64_t n = head->length;
    loci_status s = loci_output_begin(&w->out, path, e);
    if (s) return s;
    little_endian(&n, 1, sizeof n);
    s = loci_output_put(&w->out, &n, 8, e);
    if (!s) s = loci_output_put(&w->out, head->to, head->length, e);
    return s ? loci_output_end(&w->out, s, e) : LOCI_OK;
}

/* Everything is checked, and the header built, before a file is created. */
loci_status loci_safetensors_begin(struct safetensors_writer *w, const char *path, int count,
                                   const struct safetensor *t, int meta_count,
                                   const struct safetensors_meta *meta, loci_error *e)
{
    struct text head = { 0 };
    loci_status s = check_all(count, t, meta_count, meta, &w->left, e);
    if (s) return s;
    w->tensor = t;
    w->tensor_left = count ? data_bytes(t) : 0;
    put_header(&head, count, t, meta_count, meta);
    IO_CHECK(e, head.length <= ST_MAX_HEADER,
             "cannot write: the header would have %zu bytes, but at most %d are allowed",
             head.length, ST_MAX_HEADER);
    head = (struct text){ .to = malloc(head.length) };
    if (!head.to) return loci_io_fail(e, LOCI_NO_MEMORY, "out of memory");
    put_header(&head, count, t, meta_count, meta);
    s = begin(w, path, &head, e);
    free(head.to);
    return s;
}

/* Whole elements of one tensor. */
static loci_status put_elements(struct new_file *out, const char *data, uint64_t bytes, size_t each,
                                loci_error *e)
{
    char some[1 << 12];
    if (!BIG_ENDIAN_HERE || each == 1) return loci_output_put(out, data, (size_t)bytes, e);
    loci_status s = LOCI_OK;
    for (size_t n; bytes > 0 && !s; bytes -= n, data += n) {
        n = bytes < sizeof some ? (size_t)bytes : sizeof some;
        little_endian(memcpy(some, data, n), n / each, each);
        s = loci_output_put(out, some, n, e);
    }
    return s;
}

/* More or fewer bytes than the shapes say would make a file that no reader accepts. */
loci_status loci_safetensors_put(struct safetensors_writer *w, const void *data, uint64_t bytes,
                                 loci_error *e)
{
    loci_status s = LOCI_OK;
    IO_CHECK(e, bytes <= w->left,
             "cannot write %" PRIu64 " bytes: the tensors have only %" PRIu64 " left", bytes,
             w->left);
    IO_CHECK(e, bytes <= PTRDIFF_MAX, "cannot write %" PRIu64 " bytes at once", bytes);
    for (const char *from = data; bytes > 0 && !s;) {
        while (!w->tensor_left) w->tensor_left = data_bytes(++w->tensor);
        const uint64_t n = bytes < w->tensor_left ? bytes : w->tensor_left;
        const size_t each = loci_safetensors_type_size(w->tensor->type);
        IO_CHECK(e, n % each == 0, "cannot write part of an element: %" PRIu64 " bytes of %s", n,
                 loci_safetensors_type_name(w->tensor->type));
        s = put_elements(&w->out, from, n, each, e);
        from += n;
        bytes -= n;
        w->left -= n;
        w->tensor_left -= n;
    }
    return s;
}

loci_status loci_safetensors_end(struct safetensors_writer *w, loci_status so_far, loci_error *e)
{
    if (!so_far && w->left)
        so_far = loci_io_fail(e, LOCI_BAD_ARG,
                              "cannot end the file: %" PRIu64 " bytes of its tensors are missing",
                              w->left);
    return loci_output_end(&w->out, so_far, e);
}

loci_status loci_safetensors_write(const char *path, int count, const struct safetensor *t,
                                   const void *const *data, int meta_count,
                                   const struct safetensors_meta *meta, loci_error *e)
{
    struct safetensors_writer w;
    loci_status s = loci_safetensors_begin(&w, path, count, t, meta_count, meta, e);
    if (s) return s;
    for (int i = 0; i < count && !s; i++)
        s = loci_safetensors_put(&w, data[i], data_bytes(&t[i]), e);
    return loci_safetensors_end(&w, s, e);
}
