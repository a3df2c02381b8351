/* SPDX-License-Identifier: MIT */
/* The safetensors reader and writer: what is written comes back, and no damaged file is taken or does harm. */
#define _DEFAULT_SOURCE
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/safetensors.h"
#include "scratch.h"

static int passed, failed;
static char path[SCRATCH + 8], temp[SCRATCH + 24];

static bool check(bool ok, const char *what, const char *which)
{
    ok ? passed++ : failed++;
    if (!ok) printf("safetensors: %s: %s\n", what, which);
    return ok;
}

static void put_file(const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, n, f) != n || fclose(f)) exit(1);
}

/* Opens the file, reads every tensor that it promises, closes it. */
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

/* ---- Round trip --------------------------------------------------------------------------------------- */

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
    check(!loci_safetensors_write(path, 4, t, (const void *const[]){ b, c, a, a }, 1, meta, &e), "write", "sample");
    check(access(temp, F_OK) != 0, "nothing is left beside the file", "sample");
    struct stat st;
    return stat(path, &st) ? 0 : (size_t)st.st_size;
}

static void test_round_trip(void)
{
    struct safetensors f;
    loci_error e;
    write_sample();
    if (!check(!loci_safetensors_open(&f, path, &e), "open", "sample")) return;
    check(f.count == 4 && f.meta_count == 1 && !strcmp(loci_safetensors_meta(&f, "key"), "a \"value\"\n"), "metadata", "sample");
    check(!loci_safetensors_meta(&f, "other"), "absent metadata", "sample");
    for (int i = 0; i < f.count; i++) {
        const struct safetensor *t = &f.tensor[i];
        char data[sizeof a + sizeof b];
        const void *want = *t->name == 'a' ? (const void *)a : *t->name == 'b' ? (const void *)b : (const void *)c;
        check(!loci_safetensors_read(&f, t, data, &e) && !memcmp(data, want, (size_t)t->bytes), "data", t->name);
    }
    check(f.tensor[0].rank == 1 && f.tensor[1].shape[0] == 2 && f.tensor[1].type == ST_I64, "order and shapes", "sample");
    loci_safetensors_close(&f);
}

/* ---- Damage ------------------------------------------------------------------------------------------- */

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
    check(taken == 0, "no truncated file is taken", "sample");
    data[n] = 0;
    put_file(data, n + 1);
    check(take_all(&e) != LOCI_OK, "no file with something at its end is taken", "sample");
    for (size_t bit = 0; bit < 8 * n; bit++) {           /* many of these files are sound, but none may do harm */
        data[bit / 8] ^= (unsigned char)(1u << bit % 8);
        put_file(data, n);
        take_all(&e);
        data[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    check(true, "flipped bits", "sample");
    free(data);
}

/* Headers for eight bytes of data. */
static const char *const good[] = {
    "{\"x\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]}}",
    "{\"x\":{\"data_offsets\":[0,8],\"shape\":[2,1],\"dtype\":\"F32\"}}   ",
    "{\"y\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[3,8]},\"x\":{\"dtype\":\"BOOL\",\"shape\":[3],\"data_offsets\":[0,3]}}",
    "{\"e\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[8,8]},\"x\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[0,8]}}",
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
    "{\"x\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]},\"y\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]}}",
    "{\"x\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]},\"x\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]}}",
    "{\"__metadata__\":{\"a\":1},\"x\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]}}",
    "{\"__metadata__\":[],\"x\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]}}",
    "{\"x\\u0000\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]}}",
    "{\"x\xff\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]}}",
    "{\"x\":[[[[[[[[[[]]]]]]]]]]}",
};

static void put_header(const char *text, uint64_t claim)
{
    char file[4096];
    size_t n = strlen(text);
    memcpy(file, &claim, 8);
    memcpy(file + 8, text, n);
    memset(file + 8 + n, 0, 8);
    put_file(file, n + 16);
}

static void test_headers(void)
{
    static const uint64_t claims[] = { 0, 1, 1u << 31, UINT32_MAX, (uint64_t)1 << 62, (uint64_t)1 << 63, UINT64_MAX - 8, UINT64_MAX };
    loci_error e;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        put_header(good[i], strlen(good[i]));
        check(take_all(&e) == LOCI_OK, "a sound file is taken", good[i]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put_header(bad[i], strlen(bad[i]));
        e.text[0] = 0;
        check(take_all(&e) != LOCI_OK && e.text[0], "a bad file is refused with a sentence", bad[i]);
    }
    for (size_t i = 0; i < sizeof claims / sizeof *claims; i++) {
        put_header(good[0], claims[i]);
        check(take_all(&e) != LOCI_OK, "a wrong length of the header is refused", good[0]);
    }
}

/* ---- Writing where one cannot --------------------------------------------------------------------------- */

static void test_writing(void)
{
    static const struct safetensor t = { .name = "b", .type = ST_F64, .rank = 1, .shape = { 2 } };
    const void *data = b;
    loci_error e;
    check(loci_safetensors_write("/nowhere/at/all", 1, &t, &data, 0, NULL, &e) != LOCI_OK, "no such folder", e.text);
    check(loci_safetensors_write("/dev/null", 1, &t, &data, 0, NULL, &e) != LOCI_OK, "a device stays a device", e.text);
    FILE *stray = fopen(temp, "wb");                     /* as a killed program leaves it */
    if (!stray || fputs("stray", stray) < 0 || fclose(stray)) exit(1);
    check(!loci_safetensors_write(path, 1, &t, &data, 0, NULL, &e) && !take_all(&e), "a stray is taken over", path);
    check(access(temp, F_OK) != 0, "and gone", temp);
}

int main(void)
{
    char folder[SCRATCH];
    scratch(folder, "test");
    if (!mkdtemp(folder)) return 1;
    snprintf(path, sizeof path, "%s/file", folder);
    snprintf(temp, sizeof temp, "%s.loci-tmp", path);
    test_round_trip();
    test_damage();
    test_headers();
    test_writing();
    unlink(path);
    check(rmdir(folder) == 0, "the folder is empty", folder);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
