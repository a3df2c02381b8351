/* SPDX-License-Identifier: MIT */
/* safetensors.c -- the safetensors reader and writer: written files read back, and damaged files
 * fail without harm. */
#define _DEFAULT_SOURCE
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "models/safetensors.h"
#include "util/byte_order.h"
#include "harness.h"
#include "scratch.h"

#ifdef LOCI_SANITIZED
enum { SANITIZED = 1 }; /* sanitizers change memory usage */
#else
enum { SANITIZED = 0 };
#endif

static char folder[SCRATCH] = "/dev/shm/loci-safetensors-XXXXXX", path[SCRATCH + 8];

static void put_file(const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, n, f) != n || fclose(f)) exit(1);
}

/* Opens the file, reads every promised tensor, closes it. */
static loci_status take_all(loci_error *e)
{
    struct safetensors f;
    loci_status s = loci_safetensors_open(&f, path, e);
    if (s) return s;
    for (int i = 0; i < f.count && !s; i++) {
        void *data = malloc((size_t)f.tensor[i].bytes + 1);
        s = data ? loci_safetensors_read(&f, &f.tensor[i], data, e) : LOCI_NO_MEMORY;
        free(data);
    }
    loci_safetensors_close(&f);
    return s;
}

/* ---- Round trip ------------------------------------------------------------------------------ */

static const float a[] = { 1, -2, 3.5f, 0, 1e30f, -0.f };
static const double b[] = { 0.1, 1 / 3.0 };
static const int64_t c[] = { INT64_MIN, 7 };

static size_t write_sample(void)
{
    static const struct safetensor t[] = {
        { .name = "b", .type = ST_F64, .rank = 1, .shape = { 2 } },
        { .name = "c", .type = ST_I64, .rank = 2, .shape = { 2, 1 } },
        { .name = "a", .type = ST_F32, .rank = 3, .shape = { 1, 2, 3 } },
        { .name = "empty", .type = ST_F32, .rank = 2, .shape = { 0, 3 } },
    };
    static const struct safetensors_meta meta[] = { { "key", "a \"value\"\n" } };
    loci_error e;
    CHECK_THAT(!loci_safetensors_write(path, 4, t, (const void *const[]){ b, c, a, a }, 1, meta,
                                       &e),
               "write: sample");
    struct stat st;
    return stat(path, &st) ? 0 : (size_t)st.st_size;
}

/* In the file every number has its least byte first, on every machine. */
static void test_bytes(void)
{
    static const unsigned char numbers[] = { 0x9a, 0x99, 0x99, 0x99, 0x99, 0x99, 0xb9, 0x3f, /* b */
                                             0x55, 0x55, 0x55, 0x55, 0x55, 0x55, 0xd5, 0x3f, /* b */
                                             0,    0,    0,    0,    0,    0,    0,    0x80, /* c */
                                             7,    0,    0,    0,    0,    0,    0,    0,    /* c */
                                             0,    0,    0x80, 0x3f, 0,    0,    0,    0xc0, /* a */
                                             0,    0,    0x60, 0x40 };
    unsigned char file[1024];
    const size_t size = write_sample(), header = size - sizeof a - sizeof b - sizeof c - 8;
    FILE *f = fopen(path, "rb");
    if (!f || size > sizeof file || fread(file, 1, size, f) != size || fclose(f)) exit(1);
    CHECK_THAT(file[0] == header % 256 && file[1] == header / 256 && !file[2] && !file[7],
               "the length of the header: %d %d %d, not %zu", file[0], file[1], file[7], header);
    CHECK_THAT(!memcmp(file + 8 + header, numbers, sizeof numbers), "the bytes of numbers: sample");
    uint16_t halves[] = { 0x1234, 0xfedc };
    reverse_bytes(halves, 2, 2);
    CHECK_THAT(halves[0] == 0x3412 && halves[1] == 0xdcfe, "reversed: %x %x", halves[0], halves[1]);
}

static void test_round_trip(void)
{
    struct safetensors f;
    loci_error e;
    write_sample();
    if (!CHECK_THAT(!loci_safetensors_open(&f, path, &e), "open: sample")) return;
    CHECK_THAT(f.count == 4 && f.meta_count == 1
                   && !strcmp(loci_safetensors_meta(&f, "key"), "a \"value\"\n"),
               "metadata: sample");
    CHECK_THAT(!loci_safetensors_meta(&f, "other"), "absent metadata: sample");
    for (int i = 0; i < f.count; i++) {
        const struct safetensor *t = &f.tensor[i];
        char data[sizeof a + sizeof b];
        const void *want = *t->name == 'a' ? (const void *)a
                         : *t->name == 'b' ? (const void *)b
                                           : (const void *)c;
        CHECK_THAT(!loci_safetensors_read(&f, t, data, &e) && !memcmp(data, want, (size_t)t->bytes),
                   "data: %s", t->name);
    }
    CHECK_THAT(f.tensor[0].rank == 1 && f.tensor[1].shape[0] == 2 && f.tensor[1].type == ST_I64,
               "order and shapes: sample");
    loci_safetensors_close(&f);
}

/* ---- Damage ---------------------------------------------------------------------------------- */

static void test_damage(void)
{
    size_t n = write_sample();
    unsigned char *data = malloc(n + 1);
    FILE *f = fopen(path, "rb");
    if (!data || !f || fread(data, 1, n, f) != n || fclose(f)) exit(1);
    loci_error e;
    int taken = 0;
    for (size_t k = 0; k < n; k++) {
        put_file(data, k);
        taken += !take_all(&e);
    }
    CHECK_THAT(taken == 0, "no truncated file is taken: sample");
    data[n] = 0;
    put_file(data, n + 1);
    CHECK_THAT(take_all(&e) != LOCI_OK, "no file with something at its end is taken: sample");
    /* many of these files are sound, but none may do harm */
    for (size_t bit = 0; bit < 8 * n; bit++) {
        data[bit / 8] ^= (unsigned char)(1u << bit % 8);
        put_file(data, n);
        take_all(&e);
        data[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    harness_pass();
    free(data);
}

/* Headers for eight bytes of data. */
static const char *const good[] = {
    "{\"x\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]}}",
    "{\"x\":{\"data_offsets\":[0,8],\"shape\":[2,1],\"dtype\":\"F32\"}}   ",
    "{\"y\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[3,8]},\"x\":{\"dtype\":\"BOOL\","
    "\"shape\":[3],\"data_offsets\":[0,3]}}",
    "{ \"x\"\t:\n{\r\"dtype\" : \"F64\" , \"shape\" : [ ] , \"data_offsets\" : [ 0 , 8 ] } }\n",
    "{\"__metadata__\":{},\"x\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]}}",
    "{\"x\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]},"
    "\"__metadata__\":{\"a{:\\\"}\":\"{{{\",\"\":\"\"}}",
    "{\"e\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[8,8]},\"x\":{\"dtype\":\"BF16\","
    "\"shape\":[4],\"data_offsets\":[0,8]}}",
};
static const char *const bad[] = {
    "", " ", "[]", "{", "{}", "null", "{\"x\":8}", "{\"x\":{}}",
    " {\"x\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]}}",
    "{\"x\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]}}x",
    "{\"\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]}}",
    "{\"x\":{\"dtype\":\"F65\",\"shape\":[],\"data_offsets\":[0,8]}}",
    "{\"x\":{\"dtype\":\"F64\",\"shape\":1,\"data_offsets\":[0,8]}}",
    "{\"x\":{\"dtype\":\"F64\",\"shape\":[1.0],\"data_offsets\":[0,8]}}",
    "{\"x\":{\"dtype\":\"F64\",\"shape\":[-1],\"data_offsets\":[0,8]}}",
    "{\"x\":{\"dtype\":\"F64\",\"shape\":[2],\"data_offsets\":[0,8]}}",
    "{\"x\":{\"dtype\":\"F64\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,8]}}",
    "{\"x\":{\"dtype\":\"F64\",\"shape\":[4294967296,4294967296,1],\"data_offsets\":[0,8]}}",
    "{\"x\":{\"dtype\":\"F64\",\"shape\":[99999999999999999999],\"data_offsets\":[0,8]}}",
    "{\"x\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8,9]}}",
    "{\"x\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[8,0]}}",
    "{\"x\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[1,9]}}",
    "{\"x\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8],\"more\":1}}",
    "{\"x\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8],\"dtype\":\"F64\"}}",
    "{\"x\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}",
    "{\"x\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[4,8]}}",
    "{\"x\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]},\"y\":{\"dtype\":\"F64\","
    "\"shape\":[],\"data_offsets\":[0,8]}}",
    "{\"x\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]},\"x\":{\"dtype\":\"F64\","
    "\"shape\":[],\"data_offsets\":[0,8]}}",
    "{\"__metadata__\":{\"a\":1},\"x\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]}}",
    "{\"__metadata__\":[],\"x\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]}}",
    "{\"x\\u0000\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]}}",
    "{\"x\xff\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]}}",
    "{\"x\":[[[[[[[[[[]]]]]]]]]]}",
    "{\"x\":{\"dtype\":\"F64\",\"shape\":[01],\"data_offsets\":[0,8]}}",
    "{\"x\":{\"dtype\":\"F64\",\"shape\":[1,],\"data_offsets\":[0,8]}}",
    "{\"x\":{\"dtype\":\"F64\",\"shape\":[,1],\"data_offsets\":[0,8]}}",
    "{\"x\":{\"dtype\":\"F64\",\"shape\":[1e0],\"data_offsets\":[0,8]}}",
    "{\"x\":{\"dtype\":\"F64\",\"shape\":[+1],\"data_offsets\":[0,8]}}",
    "{\"x\":{\"dtype\":\"F64\",\"shape\":[\"1\"],\"data_offsets\":[0,8]}}",
    "{\"x\":{\"dtype\":\"F64\",\"shape\":[9223372036854775808],\"data_offsets\":[0,8]}}",
    "{\"x\":{\"dtype\":\"F64\",\"shape\":[1] \"data_offsets\":[0,8]}}",
    "{\"x\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8],}}",
    "{\"x\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]},}",
    "{\"x\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0]}}",
    "{\"x\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[]}}",
    "{\"x\":{\"dtype\":F64,\"shape\":[],\"data_offsets\":[0,8]}}",
    "{\"x\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]}",
    "{\"x\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]}}}",
    "{\"x\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]}} {}",
    "{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"},\"x\":{\"dtype\":\"F64\",\"shape\":[],"
    "\"data_offsets\":[0,8]}}",
    "{\"__metadata__\":{},\"__metadata__\":{},\"x\":{\"dtype\":\"F64\",\"shape\":[],"
    "\"data_offsets\":[0,8]}}",
    "{\"__metadata__\":{\"a\":},\"x\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]}}",
    "{\"__metadata__\":{\"a\"},\"x\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]}}",
    "{\"x\",{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]}}",
    "{{\"x\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]}}",
    "{\"x\":{\"dtype\":\"F64\"}}", "{\"x\":{\"dtype\":\"F64\",\"shape\":[]}}",
    "{\"x\":{\"dtype\":\"F64\",\"data_offsets\":[0,8]}}",
    "{\"x\":{\"shape\":[],\"data_offsets\":[0,8]}}",
    "{\"x\":{\"dtype\":\"F64\",\"shape\":[1152921504606846977],\"data_offsets\":[0,8]}}",
    /* a product that is 1 in 64 bits */
    "{\"x\":{\"dtype\":\"F64\",\"shape\":[11,3353953467947191203],\"data_offsets\":[0,8]}}",
    "{\"\\", "{\"\\ud8", /* texts that end in an escape */
};

static void put_header(const char *text, uint64_t claim)
{
    char file[4096];
    size_t n = strlen(text);
    memcpy(file, &claim, 8);
    little_endian(file, 1, 8);
    memcpy(file + 8, text, n);
    memset(file + 8 + n, 0, 8);
    put_file(file, n + 16);
}

static void test_headers(void)
{
    static const uint64_t claims[] = {
        0, 1, 1u << 31, UINT32_MAX, (uint64_t)1 << 62, (uint64_t)1 << 63, UINT64_MAX - 8, UINT64_MAX
    };
    loci_error e;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        put_header(good[i], strlen(good[i]));
        CHECK_THAT(take_all(&e) == LOCI_OK, "a sound file is taken: %s", good[i]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put_header(bad[i], strlen(bad[i]));
        e.text[0] = 0;
        CHECK_THAT(take_all(&e) != LOCI_OK && e.text[0],
                   "a bad file is refused with a sentence: %s", bad[i]);
    }
    for (size_t i = 0; i < sizeof claims / sizeof *claims; i++) {
        put_header(good[0], claims[i]);
        CHECK_THAT(take_all(&e) != LOCI_OK, "a wrong length of the header is refused: %s", good[0]);
    }
}

/* ---- Strings --------------------------------------------------------------------------------- */

/* All JSON forms of strings, in names and metadata: valid and invalid ones. */
static void test_strings(void)
{
    static const struct {
        const char *json, *is;
    } list[] = {
        { "a\\\"\\\\\\/\\b\\f\\n\\r\\t", "a\"\\/\b\f\n\r\t" },
        { "\\u0041\\u00e9\\u20AC\\uD83D\\ude00", "A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80" },
        { "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\x7f", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\x7f" },
        { "\\u007f\\u0080\\u07ff\\u0800\\uffff", "\x7f\xc2\x80\xdf\xbf\xe0\xa0\x80\xef\xbf\xbf" },
        { "", NULL },
        { "\\ud83d\\n", NULL },
        { "\\ud83d\\uf000", NULL },
        { "\\ud83d\\ude0", NULL },
        { "\\ud83d", NULL },
        { "\\ud83dx", NULL },
        { "\\ude00\\ud83d", NULL },
        { "\\ud83d\\ud83d", NULL },
        { "\\u0000", NULL },
        { "\\u00g0", NULL },
        { "\\u00", NULL },
        { "\\x41", NULL },
        { "\\", NULL },
        { "a\nb", NULL },
        { "a\x01", NULL },
        { "\xc0\xaf", NULL },
        { "\xed\xa0\x80", NULL },
        { "\xf4\x90\x80\x80", NULL },
        { "\xe2\x82", NULL },
        { "\xff", NULL },
        { "\x80", NULL },
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        char text[256];
        struct safetensors f;
        loci_error e = { 0 };
        snprintf(text, sizeof text,
                 "{\"__metadata__\":{\"k%s\":\"v%s\"},\"%s\":{\"dtype\":\"F64\",\"shape\":[],"
                 "\"data_offsets\":[0,8]}}",
                 list[i].json, list[i].json, list[i].json);
        put_header(text, strlen(text));
        const loci_status s = loci_safetensors_open(&f, path, &e);
        CHECK_THAT(list[i].is ? !s && !strcmp(f.tensor[0].name, list[i].is)
                                    && !strcmp(f.meta[0].key + 1, list[i].is)
                                    && !strcmp(f.meta[0].value + 1, list[i].is)
                              : s && e.text[0],
                   "a string: %s", list[i].json);
        if (!s) loci_safetensors_close(&f);
    }
    /* our own output reads back, or is rejected */
    for (int i = 1; i < 256; i++) {
        char name[] = { 'x', (char)i, 0 };
        const struct safetensor t = { .name = name, .type = ST_F64, .rank = 1, .shape = { 2 } };
        const struct safetensors_meta meta = { name, name };
        const void *data = b;
        struct safetensors f;
        loci_error e;
        const loci_status s = loci_safetensors_write(path, 1, &t, &data, 1, &meta, &e);
        if (!CHECK_THAT((i >= 0x80) == (s != LOCI_OK), "a name: %s", name) || s) continue;
        if (!CHECK_THAT(!loci_safetensors_open(&f, path, &e), "is read again: %s", e.text))
            continue;
        CHECK_THAT(!strcmp(f.tensor[0].name, name)
                       && !strcmp(loci_safetensors_meta(&f, name), name),
                   "and the same: %s", name);
        loci_safetensors_close(&f);
    }
}

/* ---- Large headers --------------------------------------------------------------------------- */

/* A pattern that contains a number, repeated until the header has `size` bytes.  All tensors are
 * empty. */
static void put_large(uint64_t size, const char *front, const char *pattern, const char *between,
                      const char *back)
{
    FILE *f = fopen(path, "wb");
    uint64_t length = size;
    little_endian(&length, 1, 8);
    if (!f || fwrite(&length, 8, 1, f) != 1) exit(1);
    uint64_t n = (uint64_t)fprintf(f, "%s", front);
    for (unsigned i = 0; n + 200 < size; i++) {
        if (i) n += (uint64_t)fprintf(f, "%s", between);
        n += (uint64_t)fprintf(f, pattern, i);
    }
    n += (uint64_t)fprintf(f, "%s", back);
    if (fprintf(f, "%*s", (int)(size - n), "") < 0 || fclose(f)) exit(1);
}

/* The peak of additional memory in bytes.  A process of its own reads the file. */
static double peak(loci_status *s)
{
    struct {
        loci_status s;
        double bytes;
    } said = { LOCI_NO_MEMORY, 0 };
    int pipes[2];
    if (pipe(pipes)) exit(1);
    const pid_t child = fork();
    if (child == 0) {
        struct rusage before, after;
        struct safetensors f;
        getrusage(RUSAGE_SELF, &before);
        said.s = loci_safetensors_open(&f, path, NULL);
        getrusage(RUSAGE_SELF, &after);
        said.bytes = 1024.0 * (double)(after.ru_maxrss - before.ru_maxrss);
        _exit(write(pipes[1], &said, sizeof said) != sizeof said);
    }
    close(pipes[1]);
    CHECK_THAT(read(pipes[0], &said, sizeof said) == sizeof said,
               "a large header is read at all: %s", path);
    close(pipes[0]);
    waitpid(child, NULL, 0);
    *s = said.s;
    return said.bytes;
}

static void test_large_headers(void)
{
    static const struct {
        const char *what, *front, *pattern, *between, *back;
        bool sound;
    } list[] = {
        { "tensors", "{", "\"%x\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}", ",",
          "}", true },
        { "usual tensors", "{",
          "\"model.layers.%u.self_attn.q_proj.weight\":{\"dtype\":\"BF16\",\"shape\":[0,4096],"
          "\"data_offsets\":[0,0]}",
          ",", "}", true },
        { "one long value", "{\"__metadata__\":{\"k\":\"", "%x", " ", "\"}}", true },
        { "metadata", "{\"__metadata__\":{", "\"%x\":\"\"", ",", "}}", false },
        { "objects", "{", "{", "", "}", false },
        { "lists", "{\"a\":", "[", "", "}", false },
        { "quotes", "{", "\"", "", "}", false },
        { "numbers", "{\"x\":{\"shape\":[", "%u", ",", "]}}", false },
        { "the same tensor", "{", "\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}",
          ",", "}", false },
    };
    const double most = SANITIZED ? INFINITY : 4;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        loci_status s;
        put_large(ST_MAX_HEADER, list[i].front, list[i].pattern, list[i].between, list[i].back);
        const double times = peak(&s) / ST_MAX_HEADER;
        CHECK_THAT((s == LOCI_OK) == list[i].sound && s != LOCI_NO_MEMORY, "a header of 16 MiB: %s",
                   list[i].what);
        CHECK_THAT(times < most, "%s takes %.2f times its size", list[i].what, times);
    }
    loci_status s;
    put_large(100000000, list[0].front, list[0].pattern, list[0].between, list[0].back);
    CHECK_THAT(peak(&s) < 1e6 && s == LOCI_BAD_ARG,
               "a header of 100 MB is refused before it is read: %s", path);
}

/* One more than the limit, of each; and objects that are not files. */
static void test_limits(void)
{
    static char text[2048];
    uint64_t claim = ST_MAX_HEADER + 1;
    little_endian(&claim, 1, 8);
    struct safetensors f;
    loci_error e;
    put_large(1 << 21, "{", "{", "", "}");
    CHECK_SAYS(take_all(&e), LOCI_BAD_ARG, &e, "more than 1048576 tensors");
    put_large(1 << 20, "{\"__metadata__\":{", "\"%x\":\"\"", ",", "}}");
    CHECK_SAYS(take_all(&e), LOCI_BAD_ARG, &e, "entries, but at most 65536");
    put_file(&claim, sizeof claim);
    CHECK_THAT(!truncate(path, 2 * ST_MAX_HEADER), "room for the header: %s", path);
    CHECK_SAYS(take_all(&e), LOCI_BAD_ARG, &e, "16777217 bytes, but at most 16777216");
    for (int n = ST_MAX_NAME; n <= ST_MAX_NAME + 1; n++) {
        snprintf(text, sizeof text,
                 "{\"%0*d\":{\"dtype\":\"F64\",\"shape\":[],"
                 "\"data_offsets\":[0,8]}}",
                 n, 0);
        put_header(text, strlen(text));
        CHECK_THAT(!take_all(&e) == (n == ST_MAX_NAME), "a name of %d bytes", n);
    }
    unlink(path);
    CHECK_SAYS(loci_safetensors_open(&f, path, &e), LOCI_BAD_ARG, &e, "cannot open");
    loci_safetensors_close(&f); /* closing a closed file is valid */
    CHECK_THAT(f.fd == -1 && !f.text, "what is closed: %s", path);
    for (loci_dtype d = LOCI_F32; d <= LOCI_F16; d++) {
        static const char *const names[] = {
            [LOCI_F32] = "F32", [LOCI_F64] = "F64", [LOCI_BF16] = "BF16", [LOCI_F16] = "F16"
        };
        CHECK_THAT(!strcmp(loci_safetensors_type_name(loci_safetensors_type_of(d)), names[d]),
                   "a dtype: %s", names[d]);
    }
}

/* ---- Files that change ----------------------------------------------------------------------- */

static void test_changes(void)
{
    struct safetensors f;
    loci_error e;
    char data[sizeof a + sizeof b];
    const off_t size = (off_t)write_sample();
    if (!CHECK_THAT(!loci_safetensors_open(&f, path, &e), "open: sample")) return;
    CHECK_THAT(!truncate(path, size - 1) && loci_safetensors_read(&f, &f.tensor[2], data, &e)
                   && strstr(e.text, "shrank"),
               "a file that shrinks: %s", e.text);
    CHECK_THAT(!truncate(path, size + 999) && !loci_safetensors_read(&f, &f.tensor[0], data, &e),
               "a file that grows: %s", e.text);
    loci_safetensors_close(&f);
}

/* ---- Wrong calls of the writer --------------------------------------------------------------- */

static void test_writing(void)
{
    static const struct safetensor good_tensor = {
        .name = "b", .type = ST_F64, .rank = 1, .shape = { 2 }
    };
    static const struct safetensor wrong[] = {
        { .name = "", .type = ST_F64 },
        { .name = "\xff", .type = ST_F64 },
        { .name = "b", .type = ST_F64, .rank = ST_MAX_RANK + 1 },
        { .name = "b", .type = ST_F64, .rank = -1 },
        { .name = "b", .type = ST_F64, .rank = 1, .shape = { -1 } },
        { .name = "b", .type = ST_F64, .rank = 2, .shape = { POWER(40), POWER(40) } },
        { .name = "b", .type = ST_F64, .rank = 1, .shape = { POWER(60) } },
    };
    const size_t size = write_sample();
    const void *data = b;
    struct safetensors_writer w;
    struct stat st;
    loci_error e;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        e.text[0] = 0;
        CHECK_THAT(loci_safetensors_write(path, 1, &wrong[i], &data, 0, NULL, &e) == LOCI_BAD_ARG
                       && e.text[0],
                   "a wrong tensor: %s", wrong[i].name);
    }
    const struct safetensors_meta meta = { "key", "\xe2\x82" };
    CHECK_THAT(loci_safetensors_write(path, 1, &good_tensor, &data, 1, &meta, &e) == LOCI_BAD_ARG,
               "metadata that are no UTF-8: %s", e.text);
    CHECK_THAT(!loci_safetensors_begin(&w, path, 1, &good_tensor, 0, NULL, &e), "begin: %s",
               e.text);
    CHECK_SAYS(loci_safetensors_put(&w, b, 17, &e), LOCI_BAD_ARG, &e, "17 bytes",
               "more than the tensors have");
    CHECK_SAYS(loci_safetensors_put(&w, b, 15, &e), LOCI_BAD_ARG, &e, "part of an element",
               "15 bytes of two elements");
    CHECK_THAT(!loci_safetensors_put(&w, b, 8, &e)
                   && loci_safetensors_end(&w, LOCI_OK, &e) == LOCI_BAD_ARG
                   && strstr(e.text, "8 bytes of its"),
               "less than they have: %s", e.text);
    CHECK_THAT(!stat(path, &st) && (size_t)st.st_size == size && !take_all(&e),
               "and the old file is there, whole: %s", path);
}

int main(void)
{
    if (access("/dev/shm", W_OK)) scratch(folder, "safetensors");
    if (!mkdtemp(folder)) return 1;
    snprintf(path, sizeof path, "%s/file", folder);
    test_bytes();
    test_round_trip();
    test_damage();
    test_headers();
    test_strings();
    if (!LOCI_COUNTED) test_large_headers(); /* in children, where nothing is counted */
    test_limits();
    test_changes();
    test_writing();
    unlink(path);
    CHECK_THAT(rmdir(folder) == 0, "the folder is empty: %s", folder);
    return harness_end();
}
