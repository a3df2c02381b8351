/* SPDX-License-Identifier: MIT */
/* safetensors.c -- the reader; the writer is in write.c. */

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "models/safetensors.h"
#include "util/byte_order.h"
#include "util/printable.h"
#include "models/io.h"

static const struct {
    const char *name;
    size_t size;
} types[] = {
    [ST_BOOL] = { "BOOL", 1 },       [ST_U8] = { "U8", 1 },
    [ST_I8] = { "I8", 1 },           [ST_F8_E4M3] = { "F8_E4M3", 1 },
    [ST_F8_E5M2] = { "F8_E5M2", 1 }, [ST_F8_E8M0] = { "F8_E8M0", 1 },
    [ST_U16] = { "U16", 2 },         [ST_I16] = { "I16", 2 },
    [ST_F16] = { "F16", 2 },         [ST_BF16] = { "BF16", 2 },
    [ST_U32] = { "U32", 4 },         [ST_I32] = { "I32", 4 },
    [ST_F32] = { "F32", 4 },         [ST_U64] = { "U64", 8 },
    [ST_I64] = { "I64", 8 },         [ST_F64] = { "F64", 8 },
};
enum { TYPES = sizeof types / sizeof *types };

const char *loci_safetensors_type_name(enum safetensors_type type) { return types[type].name; }
size_t loci_safetensors_type_size(enum safetensors_type type) { return types[type].size; }

enum safetensors_type loci_safetensors_type_of(loci_dtype dtype)
{
    static const enum safetensors_type of[] = {
        [LOCI_F32] = ST_F32, [LOCI_F64] = ST_F64, [LOCI_BF16] = ST_BF16, [LOCI_F16] = ST_F16
    };
    return of[dtype];
}

/* ---- The subset of JSON that a header needs -------------------------------------------------- */

/* Strings are converted in place to their final form, which is never longer, so that a
 * header needs no other memory. */
struct parser {
    char *text, *at;
    loci_error *e;
};

/* A sentence with the place where reading stopped. */
static loci_status expected(const struct parser *p, const char *what)
{
    return loci_io_fail(p->e, LOCI_BAD_ARG,
                        "the header is invalid: at its byte %td %s was expected", p->at - p->text,
                        what);
}

static void skip_space(struct parser *p) { p->at += strspn(p->at, " \t\r\n"); }
/* Blanks before a character are skipped. */
static bool accept(struct parser *p, char c)
{
    skip_space(p);
    if (*p->at != c) return false;
    p->at++;
    return true;
}

/* \uXXXX or two of them at `s`, after the first backslash; returns its number of
 * bytes, 0: not a character. */
static int read_escape(const char *s, uint32_t *code)
{
    uint32_t unit[2] = { 0, 0 };
    for (int k = 0; k < 2; k++) {
        const char *u = s + 6 * k;
        if (k && !(u[-1] == '\\' && *u == 'u')) return 0;
        for (int i = 1; i <= 4; i++) {
            const char *digits = "0123456789abcdef0123456789ABCDEF",
                       *d = u[i] ? strchr(digits, u[i]) : NULL;
            if (!d) return 0;
            unit[k] = unit[k] << 4 | (uint32_t)((d - digits) & 15);
        }
        if (k == 0 && (unit[0] < 0xd800 || unit[0] >= 0xe000))
            return *code = unit[0], *code ? 5 : 0; /* zero would end the string */
    }
    /* a pair of surrogates; alone, or in the wrong order, they are invalid */
    *code = 0x10000 + ((unit[0] & 0x3ff) << 10) + (unit[1] & 0x3ff);
    return unit[0] < 0xdc00 && unit[1] >= 0xdc00 && unit[1] < 0xe000 ? 11 : 0;
}

/* Never longer than its escape: \uXXXX has 6 bytes, and a character of it 3. */
static char *put_utf8(char *to, uint32_t c)
{
    if (c < 0x80) return *to++ = (char)c, to;
    const int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    *to++ = (char)((0xff00u >> (more + 1) & 0xff) | c >> 6 * more);
    for (int i = more; i-- > 0;) *to++ = (char)(0x80 | (c >> 6 * i & 0x3f));
    return to;
}

/* A string, or NULL: there is none, or it is invalid at p->at. */
static const char *read_string(struct parser *p)
{
    static const char escapes[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    if (!accept(p, '"')) return NULL;
    char *const text = p->at, *to = text;
    while (*p->at != '"') {
        uint32_t code;
        int n = read_utf8(p->at, &code);
        if (n <= 0 || code < 0x20) return NULL; /* including the end of the header */
        if (code == '\\') {
            const char *escape = p->at[1] ? strchr(escapes, p->at[1]) : NULL;
            n = escape ? 2 : p->at[1] == 'u' ? 1 + read_escape(p->at + 1, &code) : 1;
            if (n == 1) return NULL;
            if (escape) code = (uint32_t)meant[escape - escapes];
        }
        p->at += n;
        to = put_utf8(to, code);
    }
    p->at++;
    *to = 0;
    return text;
}

/* A whole number as JSON writes it, without a sign or a leading zero; false if it does not fit. */
static bool read_whole(struct parser *p, int64_t *x)
{
    skip_space(p);
    const char *first = p->at;
    for (*x = 0; *p->at >= '0' && *p->at <= '9'; p->at++)
        if (__builtin_mul_overflow(*x, 10, x) || __builtin_add_overflow(*x, *p->at - '0', x))
            return false;
    return p->at > first && (*first != '0' || p->at == first + 1);
}

/* A list of whole numbers; returns their number, `most` + 1: there are
 * more, -1: not such a list. */
static int read_list(struct parser *p, int64_t *to, int most)
{
    int n = 0;
    if (!accept(p, '[')) return -1;
    if (accept(p, ']')) return 0;
    do {
        if (n == most) return most + 1;
        if (!read_whole(p, &to[n++])) return -1;
    } while (accept(p, ','));
    return accept(p, ']') ? n : -1;
}

/* The number of occurrences of `what` outside of strings, before `end` or the end of the text.
 * It bounds the number of tensors or entries, and memory is allocated for no more. */
static size_t count_outside(const char *s, char what, char end)
{
    size_t count = 0;
    for (bool string = false; *s && (string || *s != end); s++) {
        if (*s == '"') string = !string;
        else if (string && *s == '\\' && s[1]) s++;
        else if (!string && *s == what) count++;
    }
    return count;
}

/* ---- The header ------------------------------------------------------------------------------ */

enum { DTYPE, SHAPE, OFFSETS, KEYS };
static const char *const keys[KEYS] = { "dtype", "shape", "data_offsets" };

/* The value of one key of an entry; the data's range is compared later, when the shape is known. */
static loci_status parse_value(struct parser *p, struct safetensor *t, int key, int64_t *shape,
                               int64_t *range)
{
    if (key == DTYPE) {
        const char *type = read_string(p);
        int k = 0;
        if (!type) return expected(p, "the name of a dtype");
        while (k < TYPES && strcmp(types[k].name, type)) k++;
        IO_CHECK(p->e, k < TYPES, "tensor '%.64s' has the unknown dtype '%.16s'", t->name, type);
        t->type = (enum safetensors_type)k;
    } else if (key == SHAPE) {
        t->rank = read_list(p, shape, ST_MAX_RANK);
        IO_CHECK(p->e, t->rank >= 0,
                 "the shape of tensor '%.64s' must be a list of non-negative whole numbers",
                 t->name);
        IO_CHECK(p->e, t->rank <= ST_MAX_RANK, "tensor '%.64s' has more than %d dimensions",
                 t->name, ST_MAX_RANK);
    } else {
        IO_CHECK(p->e, read_list(p, range, 2) == 2,
                 "the data_offsets of tensor '%.64s' must be two non-negative whole numbers",
                 t->name);
    }
    return LOCI_OK;
}

/* One entry of the header; `capacity` is the size of the data part. */
static loci_status parse_tensor(struct parser *p, struct safetensor *t, const char *name,
                                uint64_t capacity)
{
    bool seen[KEYS] = { false };
    int64_t shape[ST_MAX_RANK], range[2], count = 1, bytes = 0;
    *t = (struct safetensor){ .name = name, .count = 1 };
    IO_CHECK(p->e, *name && strlen(name) <= ST_MAX_NAME,
             "a tensor's name is empty or longer than %d bytes", ST_MAX_NAME);
    if (!accept(p, '{')) return expected(p, "the '{' of a tensor's entry");
    do {
        const char *key = read_string(p);
        int k = 0;
        if (!key || !accept(p, ':')) return expected(p, "a key and a colon");
        while (k < KEYS && strcmp(keys[k], key)) k++;
        IO_CHECK(p->e, k < KEYS && !seen[k],
                 "the entry of tensor '%.64s' must contain dtype, shape and data_offsets, each "
                 "once, and nothing else",
                 name);
        seen[k] = true;
        const loci_status s = parse_value(p, t, k, shape, range);
        if (s) return s;
    } while (accept(p, ','));
    if (!accept(p, '}')) return expected(p, "',' or '}'");
    IO_CHECK(p->e, seen[DTYPE] && seen[SHAPE] && seen[OFFSETS],
             "the entry of tensor '%.64s' must contain dtype, shape and data_offsets", name);

    bool fits = true;
    for (int i = 0; i < t->rank; i++)
        fits = fits && !__builtin_mul_overflow(count, shape[i], &count);
    fits = fits && !__builtin_mul_overflow(count, (int64_t)types[t->type].size, &bytes);
    IO_CHECK(p->e, range[0] <= range[1] && (uint64_t)range[1] <= capacity,
             "the data_offsets of tensor '%.64s' must lie within the %llu bytes of data", name,
             (unsigned long long)capacity);
    /* a shape whose product does not fit has no data of that size either */
    IO_CHECK(p->e, fits && bytes == range[1] - range[0],
             "tensor '%.64s' has %lld bytes of data, which does not match its shape", name,
             (long long)(range[1] - range[0]));
    for (int i = 0; i < t->rank; i++) {
        t->shape[i] = (ptrdiff_t)shape[i];
        fits = fits && t->shape[i] == shape[i];
    }
    IO_CHECK(p->e, fits && bytes <= PTRDIFF_MAX,
             "tensor '%.64s' is larger than the memory of a program on this system", name);
    t->count = (ptrdiff_t)count;
    t->offset = (uint64_t)range[0];
    t->bytes = (uint64_t)bytes;
    return LOCI_OK;
}

/* Strings only: the format has no other values in __metadata__. */
static loci_status parse_meta(struct parser *p, struct safetensors *f)
{
    IO_CHECK(p->e, !f->meta, "__metadata__ occurs twice");
    if (!accept(p, '{')) return expected(p, "the '{' of __metadata__");
    const size_t count = count_outside(p->at, ':', '}'); /* one per entry */
    IO_CHECK(p->e, count <= ST_MAX_META, "__metadata__ has %zu entries, but at most %d are allowed",
             count, ST_MAX_META);
    f->meta = calloc(count + 1, sizeof *f->meta);
    if (!f->meta) return loci_io_fail(p->e, LOCI_NO_MEMORY, "out of memory");
    if (accept(p, '}')) return LOCI_OK;
    do {
        const char *key = read_string(p);
        if (!key || !accept(p, ':')) return expected(p, "a key of __metadata__ and a colon");
        const char *value = read_string(p);
        if (!value) return expected(p, "a string of __metadata__");
        f->meta[f->meta_count++] = (struct safetensors_meta){ key, value };
    } while (accept(p, ','));
    return accept(p, '}') ? LOCI_OK : expected(p, "',' or '}'");
}

static int by_offset(const void *a, const void *b)
{
    const struct safetensor *s = a, *t = b;
    if (s->offset != t->offset) return s->offset < t->offset ? -1 : 1;
    return (s->bytes > t->bytes) - (s->bytes < t->bytes); /* empty ones first */
}
static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* A duplicate name, or NULL. */
static const char *find_twin(const char **name, int count)
{
    qsort(name, (size_t)count, sizeof *name, by_name);
    for (int i = 1; i < count; i++)
        if (!strcmp(name[i - 1], name[i])) return name[i];
    return NULL;
}

/* Duplicates are found by sorting: comparing all pairs would let a header run for hours. */
static loci_status check_names(const struct safetensors *f, loci_error *e)
{
    loci_status s = LOCI_OK;
    const char **name = malloc(((size_t)f->count + (size_t)f->meta_count + 1) * sizeof *name);
    if (!name) return loci_io_fail(e, LOCI_NO_MEMORY, "out of memory");
    const char **key = name + f->count;
    for (int i = 0; i < f->count; i++) name[i] = f->tensor[i].name;
    for (int i = 0; i < f->meta_count; i++) key[i] = f->meta[i].key;
    const char *tensor = find_twin(name, f->count), *meta = find_twin(key, f->meta_count);
    if (tensor) s = loci_io_fail(e, LOCI_BAD_ARG, "tensor '%.64s' occurs twice", tensor);
    else if (meta) s = loci_io_fail(e, LOCI_BAD_ARG, "'%.64s' occurs twice in __metadata__", meta);
    free(name);
    return s;
}

/* Tensors are contiguous, in the order of the data: every byte belongs to exactly one. */
static loci_status check_data(struct safetensors *f, uint64_t capacity, loci_error *e)
{
    qsort(f->tensor, (size_t)f->count, sizeof *f->tensor, by_offset);
    uint64_t at = 0;
    for (int i = 0; i < f->count; at += f->tensor[i++].bytes)
        IO_CHECK(e, PLANTED_BUG(2, f->tensor[i].offset == at), "the data of tensor '%.64s' %s",
                 f->tensor[i].name,
                 f->tensor[i].offset < at ? "overlaps another tensor"
                                          : "does not follow that of the tensor before it");
    IO_CHECK(e, PLANTED_BUG(1, at == capacity),
             "the last %llu bytes of the file belong to no tensor",
             (unsigned long long)(capacity - at));
    return LOCI_OK;
}

/* f->text has `length` bytes and a zero. */
static loci_status parse_header(struct safetensors *f, size_t length, uint64_t capacity,
                                loci_error *e)
{
    struct parser p = { f->text, f->text, e };
    IO_CHECK(e, f->text[0] == '{', "the header does not start with '{'");
    /* one object per tensor, and perhaps that of the metadata, inside the header's own */
    const size_t count = count_outside(f->text, '{', 0) - 1;
    IO_CHECK(e, count <= ST_MAX_TENSORS, "the file has more than %d tensors", ST_MAX_TENSORS);
    f->tensor = malloc((count + 1) * sizeof *f->tensor);
    if (!f->tensor) return loci_io_fail(e, LOCI_NO_MEMORY, "out of memory");
    accept(&p, '{'); /* already tested */
    if (!accept(&p, '}')) {
        do {
            const char *name = read_string(&p);
            if (!name || !accept(&p, ':')) return expected(&p, "the name of a tensor and a colon");
            const bool meta = !strcmp(name, "__metadata__");
            const loci_status s =
                meta ? parse_meta(&p, f) : parse_tensor(&p, &f->tensor[f->count], name, capacity);
            if (s) return s;
            f->count += !meta;
        } while (accept(&p, ','));
        if (!accept(&p, '}')) return expected(&p, "',' or '}'");
    }
    skip_space(&p);
    /* a zero inside the header ends the text, but not the header */
    if (p.at != f->text + length) return expected(&p, "the end");
    const loci_status s = check_names(f, e);
    return s ? s : check_data(f, capacity, e);
}

/* The length is compared with the file before anything of that size is allocated. */
static loci_status read_header(struct safetensors *f, const struct source *from, loci_error *e)
{
    const uint64_t size = from->size;
    uint64_t n;
    IO_CHECK(e, size >= 8, "the file has %llu bytes, which is too short for a safetensors file",
             (unsigned long long)size);
    loci_status s = loci_io_read(from, &n, 8, 0, e);
    if (s) return s;
    little_endian(&n, 1, 8);
    IO_CHECK(e, n <= size - 8,
             "the header claims %llu bytes, but the file has only %llu: it is truncated or not a "
             "safetensors file",
             (unsigned long long)n, (unsigned long long)size - 8);
    IO_CHECK(e, n <= ST_MAX_HEADER, "the header claims %llu bytes, but at most %d are allowed",
             (unsigned long long)n, ST_MAX_HEADER);
    f->data = 8 + n;
    f->text = malloc((size_t)n + 1);
    if (!f->text) return loci_io_fail(e, LOCI_NO_MEMORY, "out of memory");
    f->text[n] = 0;
    s = loci_io_read(from, f->text, n, 8, e);
    return s ? s : parse_header(f, (size_t)n, size - 8 - n, e);
}

loci_status loci_safetensors_open(struct safetensors *f, const char *path, loci_error *e)
{
    struct source from;
    *f = (struct safetensors){ .fd = -1 };
    loci_status s = loci_io_open(&from, path, e);
    if (s) return s;
    f->fd = from.fd; /* stays open: tensors are read on request */
    s = read_header(f, &from, e);
    if (s) loci_safetensors_close(f);
    return s;
}

void loci_safetensors_close(struct safetensors *f)
{
    if (f->fd >= 0) loci_io_close(&(struct source){ .fd = f->fd });
    free(f->tensor);
    free(f->meta);
    free(f->text);
    *f = (struct safetensors){ .fd = -1 };
}

const char *loci_safetensors_meta(const struct safetensors *f, const char *key)
{
    for (int i = 0; i < f->meta_count; i++)
        if (!strcmp(f->meta[i].key, key)) return f->meta[i].value;
    return NULL;
}

loci_status loci_safetensors_read(const struct safetensors *f, const struct safetensor *t,
                                  void *data, loci_error *e)
{
    const size_t each = types[t->type].size;
    const loci_status s =
        loci_io_read(&(struct source){ .fd = f->fd }, data, t->bytes, f->data + t->offset, e);
    if (!s) little_endian(data, (size_t)t->bytes / each, each);
    return s;
}
