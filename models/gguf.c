/* SPDX-License-Identifier: MIT */
/* gguf.c -- the container of a GGUF file.
 *
 * Numbers are little-endian, or big-endian in files of version 3 whose version is (from_big).
 * Sizes: "GGUF", version (u32), tensors (u64), keys (u64).  A key is a string
 * (u64 length, bytes), a type (u32) and a value; an array is a type, a count (u64) and values.
 * A tensor's entry is a name, a rank (u32), its shape (u64 each), a type (u32) and an offset
 * (u64) into the data, which start on the next multiple of the alignment.
 *
 * No number of the file is trusted.  Each is compared with the remaining bytes before
 * anything of that size is allocated, skipped or read, so that memory and time stay
 * in proportion to the file. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "models/gguf.h"
#include "util/byte_order.h"

/* MAX_ARRAY suffices for the words of a tokeniser.  Only lists with a number per layer are used,
 * so longer ones are skipped. */
enum {
    MAX_STRING = 1 << 20,
    MAX_ARRAY = 1 << 20,
    MAX_NAME = 1024,
    MAX_RANK = 8,
    KEPT_NUMBERS = MAX_LAYERS,
    MAX_ENTRIES = 1 << 20
};

/* ---- Reading, bounded by the remaining bytes ------------------------------------------------- */

static const int sizes[TYPES] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };

/* Most reads are of 4 or 8 bytes, so the file is read in larger pieces. */
struct reader {
    const struct source *from;
    uint64_t at;
    unsigned char ahead[1 << 14]; /* bytes of the file from `first` on */
    uint64_t first, have;
    bool reversed; /* numbers are not in this machine's order */
    loci_error *e;
};

static uint64_t left(const struct reader *r) { return r->from->size - r->at; }

static loci_status check_end(const struct source *from, uint64_t at, uint64_t n, loci_error *e)
{
    IO_CHECK(e, PLANTED_BUG(1, n <= from->size - at),
             "the file ends early: byte %" PRIu64 " and %" PRIu64 " more were to follow", at, n);
    return LOCI_OK;
}

/* n is compared before the first byte is read, so that no value is half read. */
static loci_status read_bytes(struct reader *r, void *to, uint64_t n)
{
    loci_status s = check_end(r->from, r->at, n, r->e);
    if (s) return s;
    while (n > 0) {
        if (r->at >= r->first + r->have) { /* reading only moves forward */
            r->first = r->at;
            r->have = left(r) < sizeof r->ahead ? left(r) : sizeof r->ahead;
            if ((s = loci_io_read(r->from, r->ahead, r->have, r->first, r->e))) return s;
        }
        const uint64_t from = r->at - r->first, part = r->have - from < n ? r->have - from : n;
        memcpy(to, r->ahead + from, part);
        to = (char *)to + part;
        r->at += part;
        n -= part;
    }
    return LOCI_OK;
}
static loci_status read_number(struct reader *r, void *to, size_t bytes)
{
    const loci_status s = read_bytes(r, to, bytes);
    if (!s && r->reversed) reverse_bytes(to, 1, bytes);
    return s;
}
/* The caller has compared n with the remaining bytes. */
static loci_status skip(struct reader *r, uint64_t n)
{
    r->at += n;
    return LOCI_OK;
}

/* A string of at most `most` bytes; the caller frees *to; NULL skips it. */
static loci_status string(struct reader *r, uint64_t most, const char *what, char **to)
{
    uint64_t n;
    loci_status s = read_number(r, &n, 8);
    if (s) return s;
    IO_CHECK(r->e, n <= left(r),
             "a %s claims %" PRIu64 " bytes, but %" PRIu64 " are left in the file", what, n,
             left(r));
    IO_CHECK(r->e, n <= most, "a %s has %" PRIu64 " bytes; the limit is %" PRIu64, what, n, most);
    if (!to) return skip(r, n);
    *to = malloc(n + 1);
    if (!*to) return loci_io_fail(r->e, LOCI_NO_MEMORY, "out of memory");
    (*to)[n] = 0;
    s = read_bytes(r, *to, n);
    if (!s && strlen(*to) != n) /* names that differ behind it would be one */
        s = loci_io_fail(r->e, LOCI_BAD_ARG, "a %s contains a zero byte", what);
    if (s) {
        free(*to);
        *to = NULL;
    }
    return s;
}

/* Of bytes in this machine's order.  Whole numbers beyond 2^53 are rounded; no key that is read
 * here has such a number. */
static double value_of(enum type type, const unsigned char *b)
{
    union {
        uint64_t u;
        int64_t i;
        uint32_t u4;
        int32_t i4;
        uint16_t u2;
        int16_t i2;
        int8_t i1;
        float f;
        double d;
    } v = { 0 };
    memcpy(&v, b, (size_t)sizes[type]);
    switch (type) {
    case U8:
    case BOOL:
        return b[0];
    case I8:
        return v.i1;
    case U16:
        return v.u2;
    case I16:
        return v.i2;
    case U32:
        return v.u4;
    case I32:
        return v.i4;
    case F32:
        return v.f;
    case U64:
        return (double)v.u;
    case I64:
        return (double)v.i;
    default:
        return v.d;
    }
}

/* ---- Keys ------------------------------------------------------------------------------------ */

/* The file's count of some items, each of which occupies at least `least` bytes. */
static loci_status check_count(const struct reader *r, uint64_t count, uint64_t least,
                               const char *what)
{
    IO_CHECK(r->e, count <= left(r) / least,
             "the file claims %" PRIu64 " %s, more than its %" PRIu64 " bytes can hold", count,
             what, r->from->size);
    IO_CHECK(r->e, count <= MAX_ENTRIES, "the file has %" PRIu64 " %s; the limit is %d", count,
             what, MAX_ENTRIES);
    return LOCI_OK;
}

/* The name is the first member of an entry and of a place. */
static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}
_Static_assert(offsetof(struct entry, name) == 0 && offsetof(struct place, name) == 0,
               "by_name() finds names");

/* Sorted by name, duplicates are neighbours: which of them counts is
 * undefined, so they are an error. */
static loci_status sort(const struct reader *r, void *list, int n, size_t size, const char *what)
{
    qsort(list, (size_t)n, size, by_name);
    for (const char *at = list; n > 1; at += size, n--)
        IO_CHECK(r->e, by_name(at, at + size), "the %s '%.64s' occurs twice", what,
                 *(char *const *)at);
    return LOCI_OK;
}

/* The caller has checked that the file can contain all of them. */
static loci_status numbers(struct reader *r, enum type type, uint64_t count, struct entry *to)
{
    if (count > KEPT_NUMBERS) return skip(r, count * (uint64_t)sizes[type]);
    to->value = calloc((size_t)count + 1, sizeof *to->value);
    if (!to->value) return loci_io_fail(r->e, LOCI_NO_MEMORY, "out of memory");
    for (; to->count < (int)count; to->count++) {
        unsigned char b[8];
        loci_status s = read_number(r, b, (size_t)sizes[type]);
        if (s) return s;
        IO_CHECK(r->e, type != BOOL || b[0] <= 1, "the boolean '%.64s' is %d, but must be 0 or 1",
                 to->name, b[0]);
        to->value[to->count] = value_of(type, b);
    }
    return LOCI_OK;
}

/* The format has no arrays of arrays, and a file could nest them to any depth. */
static loci_status array(struct reader *r, struct entry *to)
{
    uint32_t type;
    uint64_t count;
    loci_status s;
    if ((s = read_number(r, &type, 4)) || (s = read_number(r, &count, 8))) return s;
    IO_CHECK(r->e, PLANTED_BUG(3, type < TYPES && type != ARRAY),
             "'%.64s' is an array of type %u, but must contain numbers or strings", to->name,
             (unsigned)type);
    to->array = true;
    to->type = type;
    IO_CHECK(r->e, count <= left(r) / (type == STRING ? 8 : (uint64_t)sizes[type]),
             "'%.64s' claims %" PRIu64 " values, more than the %" PRIu64 " bytes left can hold",
             to->name, count, left(r));
    IO_CHECK(r->e, count <= MAX_ARRAY, "'%.64s' has %" PRIu64 " values; the limit is %d", to->name,
             count, MAX_ARRAY);
    if (type != STRING) return numbers(r, type, count, to);
    for (uint64_t i = 0; i < count; i++)
        if ((s = string(r, MAX_STRING, "string", NULL))) return s;
    return LOCI_OK;
}

/* The name first: error sentences about the value contain it. */
static loci_status read_entry(struct reader *r, struct entry *to)
{
    uint32_t type;
    loci_status s;
    if ((s = string(r, MAX_NAME, "key", &to->name)) || (s = read_number(r, &type, 4))) return s;
    IO_CHECK(r->e, *to->name, "a key is empty");
    IO_CHECK(r->e, type < TYPES, "'%.64s' has the unknown type %u; known types are 0 to %d",
             to->name, (unsigned)type, TYPES - 1);
    to->type = type;
    if (type == ARRAY) return array(r, to);
    if (type != STRING) return numbers(r, type, 1, to);
    return string(r, MAX_STRING, "string", &to->text);
}

static loci_status read_entries(struct reader *r, struct gguf *g, uint64_t count)
{
    /* A key has 8 bytes of length, 1 of name, 4 of type and 1 of value, or more. */
    loci_status s = check_count(r, count, 14, "keys");
    if (s) return s;
    g->entry = calloc((size_t)count + 1, sizeof *g->entry);
    if (!g->entry) return loci_io_fail(r->e, LOCI_NO_MEMORY, "out of memory");
    while (g->entries < (int)count) /* counted first: half an entry is freed, too */
        if ((s = read_entry(r, &g->entry[g->entries++]))) return s;
    return sort(r, g->entry, g->entries, sizeof *g->entry, "key");
}

const struct entry *loci_gguf_find(const struct gguf *g, const char *name)
{
    const struct entry key = { .name = (char *)name };
    return bsearch(&key, g->entry, (size_t)g->entries, sizeof key, by_name);
}

/* ---- Tensors --------------------------------------------------------------------------------- */

/* p->at is the file's offset, from the start of the data. */
static loci_status read_place(struct reader *r, uint64_t alignment, struct place *p)
{
    uint32_t rank;
    loci_status s;
    if ((s = string(r, MAX_NAME, "tensor's name", &p->name)) || (s = read_number(r, &rank, 4)))
        return s;
    IO_CHECK(r->e, rank <= MAX_RANK, "tensor '%.64s' has %u dimensions, but at most %d are allowed",
             p->name, (unsigned)rank, MAX_RANK);
    p->count = 1;
    for (uint32_t i = 0; i < rank; i++) {
        uint64_t n;
        if ((s = read_number(r, &n, 8))) return s;
        IO_CHECK(r->e, !__builtin_mul_overflow(p->count, n, &p->count) && p->count <= INT64_MAX,
                 "the shape of tensor '%.64s' is too large", p->name);
    }
    if ((s = read_number(r, &p->type, 4)) || (s = read_number(r, &p->at, 8))) return s;
    IO_CHECK(r->e, p->at % alignment == 0,
             "the data of tensor '%.64s' start at %" PRIu64 ", not a multiple of %" PRIu64, p->name,
             p->at, alignment);
    return LOCI_OK;
}

static loci_status find_alignment(const struct reader *r, const struct gguf *g, uint64_t *to)
{
    const struct entry *v = loci_gguf_find(g, "general.alignment");
    if (!v) return LOCI_OK;
    const double x = v->type == U32 && !v->array ? v->value[0] : 0;
    IO_CHECK(r->e, x >= 1 && fmod(log2(x), 1) == 0,
             "general.alignment must be a power of two, stored as U32");
    *to = (uint64_t)x;
    return LOCI_OK;
}

/* Places are compared with the size after all entries are read: the data start after them. */
static loci_status read_places(struct reader *r, struct gguf *g, uint64_t count)
{
    uint64_t alignment = 32; /* of files that do not give it */
    loci_status s = find_alignment(r, g, &alignment);
    /* A tensor has 8 bytes of length, 1 of name, 4 of rank, 4 of type and 8 of offset, or more. */
    if (s || (s = check_count(r, count, 25, "tensors"))) return s;
    g->place = calloc((size_t)count + 1, sizeof *g->place);
    if (!g->place) return loci_io_fail(r->e, LOCI_NO_MEMORY, "out of memory");
    while (g->places < (int)count)
        if ((s = read_place(r, alignment, &g->place[g->places++]))) return s;
    if ((s = sort(r, g->place, g->places, sizeof *g->place, "tensor"))) return s;
    const uint64_t size = r->from->size, data = (r->at + alignment - 1) / alignment * alignment;
    for (struct place *p = g->place; p < g->place + g->places; p++) {
        IO_CHECK(r->e, PLANTED_BUG(2, data <= size && p->at <= size - data),
                 "the data of tensor '%.64s' start after the end of the file", p->name);
        p->at += data;
    }
    return LOCI_OK;
}

const struct place *loci_gguf_tensor(const struct gguf *g, const char *name)
{
    const struct place key = { .name = (char *)name };
    return bsearch(&key, g->place, (size_t)g->places, sizeof key, by_name);
}

loci_status loci_gguf_floats(const struct gguf *g, const struct source *from, const struct place *p,
                             float *to, loci_error *e)
{
    const uint64_t bytes = p->count * sizeof *to;
    loci_status s = check_end(from, p->at, bytes, e);
    if (!s) s = loci_io_read(from, to, bytes, p->at, e);
    if (!s && g->reversed) reverse_bytes(to, (size_t)p->count, sizeof *to);
    return s;
}

/* ---- The file -------------------------------------------------------------------------------- */

/* In the order of the file. */
static loci_status read_file(struct reader *r, struct gguf *g)
{
    uint32_t magic, version;
    uint64_t tensors, keys;
    loci_status s;
    if ((s = read_bytes(r, &magic, 4)) || (s = read_number(r, &version, 4))) return s;
    /* Only its version says in which order a file is. */
    r->reversed = version && !(version & 0xffff);
    if (r->reversed) reverse_bytes(&version, 1, sizeof version);
    g->reversed = r->reversed;
    const bool from_big = version && r->reversed != BIG_ENDIAN_HERE;
    /* The first version counts in 32 bits. */
    IO_CHECK(r->e, (version == 2 && !from_big) || version == 3,
             "GGUF version %u%s is not supported; 2 and 3, and 3 in big-endian, are",
             (unsigned)version, from_big ? " in big-endian" : "");
    if ((s = read_number(r, &tensors, 8)) || (s = read_number(r, &keys, 8))
        || (s = read_entries(r, g, keys)))
        return s;
    return read_places(r, g, tensors);
}

loci_status loci_gguf_read(struct gguf *g, const struct source *from, loci_error *e)
{
    struct reader *r = calloc(1, sizeof *r);
    if (!r) return loci_io_fail(e, LOCI_NO_MEMORY, "out of memory");
    r->from = from;
    r->e = e;
    const loci_status s = read_file(r, g);
    free(r);
    return s;
}

void loci_gguf_free_places(struct gguf *g)
{
    for (int i = 0; i < g->places; i++) free(g->place[i].name);
    free(g->place);
    g->place = NULL;
    g->places = 0;
}

void loci_gguf_free(struct gguf *g)
{
    for (int i = 0; i < g->entries; i++) {
        free(g->entry[i].name);
        free(g->entry[i].text);
        free(g->entry[i].value);
    }
    free(g->entry);
    loci_gguf_free_places(g);
}
