/* SPDX-License-Identifier: MIT */
/* safetensors.c -- the reader; the writer is in write.c. */
#define _POSIX_C_SOURCE 200809L

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "io.h"
#include "safetensors.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensors are stored little-endian and read as they are");
_Static_assert(sizeof(ptrdiff_t) == 8, "sizes of tensors need 64 bits");

static const struct { const char *name; size_t size; } types[] = {
    [ST_BOOL] = { "BOOL", 1 }, [ST_U8] = { "U8", 1 }, [ST_I8] = { "I8", 1 },
    [ST_F8_E4M3] = { "F8_E4M3", 1 }, [ST_F8_E5M2] = { "F8_E5M2", 1 }, [ST_F8_E8M0] = { "F8_E8M0", 1 },
    [ST_U16] = { "U16", 2 }, [ST_I16] = { "I16", 2 }, [ST_F16] = { "F16", 2 }, [ST_BF16] = { "BF16", 2 },
    [ST_U32] = { "U32", 4 }, [ST_I32] = { "I32", 4 }, [ST_F32] = { "F32", 4 },
    [ST_U64] = { "U64", 8 }, [ST_I64] = { "I64", 8 }, [ST_F64] = { "F64", 8 },
};
enum { TYPES = sizeof types / sizeof *types };

const char *loci_safetensors_type_name(enum safetensors_type type) { return types[type].name; }
size_t loci_safetensors_type_size(enum safetensors_type type) { return types[type].size; }

static bool whole(const json_t *v, ptrdiff_t *out)
{
    if (!json_is_integer(v) || json_integer_value(v) < 0) return false;
    *out = (ptrdiff_t)json_integer_value(v);
    return true;
}

/* One entry of the header; `room` is the size of the data part. */
static loci_status parse_tensor(struct safetensor *t, const char *name, const json_t *entry, uint64_t room,
                                loci_error *e)
{
    IO_CHECK(e, *name && strlen(name) <= ST_MAX_NAME, "a tensor's name is empty or longer than %d bytes", ST_MAX_NAME);
    IO_CHECK(e, json_is_object(entry) && json_object_size(entry) == 3,
             "the entry of tensor '%.64s' must hold dtype, shape and data_offsets, nothing else", name);
    const char *type = json_string_value(json_object_get(entry, "dtype"));
    const json_t *shape = json_object_get(entry, "shape"), *range = json_object_get(entry, "data_offsets");
    IO_CHECK(e, type && json_is_array(shape) && json_is_array(range) && json_array_size(range) == 2,
             "the entry of tensor '%.64s' must hold dtype, shape and data_offsets of two numbers", name);

    int k = 0;
    while (k < TYPES && strcmp(types[k].name, type)) k++;
    IO_CHECK(e, k < TYPES, "tensor '%.64s' has the unknown dtype '%.16s'", name, type);
    *t = (struct safetensor){ .name = name, .type = (enum safetensors_type)k, .count = 1 };

    IO_CHECK(e, json_array_size(shape) <= ST_MAX_RANK, "tensor '%.64s' has %zu dimensions, more than %d", name,
             json_array_size(shape), ST_MAX_RANK);
    t->rank = (int)json_array_size(shape);
    bool fits = true;
    for (int i = 0; i < t->rank; i++) {
        IO_CHECK(e, whole(json_array_get(shape, (size_t)i), &t->shape[i]),
                 "the shape of tensor '%.64s' must be whole numbers, none negative", name);
        fits = fits && !__builtin_mul_overflow(t->count, t->shape[i], &t->count);
    }
    ptrdiff_t bytes = 0, from, to;
    fits = fits && !__builtin_mul_overflow(t->count, (ptrdiff_t)types[k].size, &bytes);
    IO_CHECK(e, whole(json_array_get(range, 0), &from) && whole(json_array_get(range, 1), &to) && from <= to &&
                (uint64_t)to <= room,
             "the data_offsets of tensor '%.64s' do not lie in the data of %llu bytes", name, (unsigned long long)room);
    IO_CHECK(e, fits && bytes == to - from, "tensor '%.64s' has %lld bytes of data, but its shape says otherwise", name,
             (long long)(to - from));
    t->offset = (uint64_t)from;
    t->bytes = (uint64_t)bytes;
    return LOCI_OK;
}

static int by_offset(const void *a, const void *b)
{
    const struct safetensor *s = a, *t = b;
    if (s->offset != t->offset) return s->offset < t->offset ? -1 : 1;
    return (s->bytes > t->bytes) - (s->bytes < t->bytes);          /* empty ones first */
}

static loci_status parse_meta(struct safetensors *f, json_t *meta, loci_error *e)
{
    IO_CHECK(e, json_is_object(meta), "__metadata__ must be an object of strings");
    f->meta = calloc(json_object_size(meta) + 1, sizeof *f->meta);
    if (!f->meta) return loci_io_fail(e, LOCI_NO_MEMORY, "out of memory");
    const char *key;
    json_t *value;
    json_object_foreach(meta, key, value) {
        IO_CHECK(e, json_is_string(value), "__metadata__ must be an object of strings, and '%.64s' is none", key);
        f->meta[f->meta_count++] = (struct safetensors_meta){ key, json_string_value(value) };
    }
    return LOCI_OK;
}

static loci_status parse_header(struct safetensors *f, uint64_t room, loci_error *e)
{
    IO_CHECK(e, json_object_size(f->json) <= 1 << 20, "the file has more than %d tensors", 1 << 20);
    f->tensor = calloc(json_object_size(f->json) + 1, sizeof *f->tensor);
    if (!f->tensor) return loci_io_fail(e, LOCI_NO_MEMORY, "out of memory");
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)f->json, key, value) {
        loci_status s = strcmp(key, "__metadata__") ? parse_tensor(&f->tensor[f->count++], key, value, room, e)
                                                    : parse_meta(f, value, e);
        if (s) return s;
    }
    qsort(f->tensor, (size_t)f->count, sizeof *f->tensor, by_offset);
    uint64_t at = 0;
    for (int i = 0; i < f->count; at += f->tensor[i++].bytes)
        IO_CHECK(e, SOUND(2, f->tensor[i].offset == at), "the data of tensor '%.64s' %s", f->tensor[i].name,
                 f->tensor[i].offset < at ? "overlaps another tensor" : "does not follow that of the tensor before it");
    IO_CHECK(e, SOUND(1, at == room), "%llu bytes at the end of the file belong to no tensor", (unsigned long long)(room - at));
    return LOCI_OK;
}

static loci_status read_header(struct safetensors *f, const struct source *from, loci_error *e)
{
    const uint64_t size = from->size;
    uint64_t n;
    IO_CHECK(e, size >= 8, "the file has %llu bytes: too short for a safetensors file", (unsigned long long)size);
    loci_status s = loci_io_read(from, &n, 8, 0, e);
    if (s) return s;
    IO_CHECK(e, n <= size - 8, "the header claims %llu bytes, but %llu are there: truncated, or no safetensors file",
             (unsigned long long)n, (unsigned long long)size - 8);
    IO_CHECK(e, n <= ST_MAX_HEADER, "the header claims %llu bytes, more than %d", (unsigned long long)n, ST_MAX_HEADER);

    char *text = malloc((size_t)n + 1);
    if (!text) return loci_io_fail(e, LOCI_NO_MEMORY, "out of memory");
    s = loci_io_read(from, text, n, 8, e);
    if (!s && (n == 0 || text[0] != '{')) s = loci_io_fail(e, LOCI_BAD_ARG, "the header does not start with '{'");
    if (!s && loci_io_too_deep(text, (size_t)n, 3)) s = loci_io_fail(e, LOCI_BAD_ARG, "the header is nested too deeply");
    if (!s) {
        json_error_t why;
        f->json = json_loadb(text, (size_t)n, JSON_REJECT_DUPLICATES, &why);
        if (!f->json && (!why.text[0] || json_error_code(&why) == json_error_out_of_memory))
            s = loci_io_fail(e, LOCI_NO_MEMORY, "out of memory");
        else if (!f->json)
            s = loci_io_fail(e, LOCI_BAD_ARG, "the header is not sound JSON: %s (byte %d)", why.text, why.position);
    }
    free(text);
    f->data = 8 + n;
    return s ? s : parse_header(f, size - 8 - n, e);
}

loci_status loci_safetensors_open(struct safetensors *f, const char *path, loci_error *e)
{
    struct source from;
    *f = (struct safetensors){ .fd = -1 };
    loci_status s = loci_io_open(&from, path, e);
    if (s) return s;
    f->fd = from.fd;
    s = read_header(f, &from, e);
    if (s) loci_safetensors_close(f);
    return s;
}

void loci_safetensors_close(struct safetensors *f)
{
    if (f->fd >= 0) close(f->fd);
    free(f->tensor);
    free(f->meta);
    json_decref(f->json);
    *f = (struct safetensors){ .fd = -1 };
}

const char *loci_safetensors_meta(const struct safetensors *f, const char *key)
{
    for (int i = 0; i < f->meta_count; i++)
        if (!strcmp(f->meta[i].key, key)) return f->meta[i].value;
    return NULL;
}

loci_status loci_safetensors_read(const struct safetensors *f, const struct safetensor *t, void *data, loci_error *e)
{
    return loci_io_read(&(struct source){ .fd = f->fd }, data, t->bytes, f->data + t->offset, e);
}
