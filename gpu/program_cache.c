/* SPDX-License-Identifier: MIT */
/* program_cache.c -- see program_cache.h. */
#include "program_cache.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "platform/file.h"

enum { PATH_BYTES = 4096 };
#define MOST_BYTES ((uint64_t)1 << 30) /* of a program; more is damage */

/* Before the program.  The key is that of the file's name. */
struct header {
    char magic[8];
    uint64_t key[2], bytes, sum;
};
static const char magic[8] = { 'l', 'o', 'c', 'i', 'G', 'P', 'U', '1' };

/* ---- Keys ------------------------------------------------------------------------------------ */

static uint64_t mixed(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ x >> 31;
}
/* Of bytes and what came before them: FNV-1a with another factor for each half. */
static void digest(struct program_key *k, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++) {
        k->half[0] = (k->half[0] ^ at[i]) * 0x100000001b3u;
        k->half[1] = (k->half[1] ^ at[i]) * 0x9e3779b97f4a7c15u;
        k->half[1] ^= k->half[1] >> 29;
    }
}
static struct program_key digest_begin(void)
{
    return (struct program_key){ { 0xcbf29ce484222325u, 0x6a09e667f3bcc909u } };
}
static struct program_key digest_end(struct program_key k)
{
    return (struct program_key){ { mixed(k.half[0]), mixed(k.half[1]) } };
}

struct program_key loci_program_key(const char *const *texts, int count)
{
    struct program_key k = digest_begin();
    /* with its final 0: "ab", "c" and "a", "bc" are different */
    for (int i = 0; i < count; i++) digest(&k, texts[i], strlen(texts[i]) + 1);
    return digest_end(k);
}
static uint64_t sum_of(const void *data, size_t bytes)
{
    struct program_key k = digest_begin();
    digest(&k, data, bytes);
    return digest_end(k).half[0];
}

/* ---- Names ----------------------------------------------------------------------------------- */

static bool switched_off(void)
{
    const char *says = getenv("LOCI_GPU_CACHE");
    return says && !strcmp(says, "off");
}
/* The folder without a slash at its end.  False: there is no home. */
static bool folder_of(char *to, size_t capacity)
{
#if defined _WIN32
    const char *home = getenv("LOCALAPPDATA"), *below = "";
#else
    const char *home = getenv("XDG_CACHE_HOME"), *below = "";
    if (!home || !loci_path_absolute(home)) home = getenv("HOME"), below = "/.cache";
#endif
    if (!home || !*home) return false;
    return snprintf(to, capacity, "%s%s/loci", home, below) < (int)capacity;
}
static bool path_of(const struct program_key *k, const char *folder, char *to, size_t capacity)
{
    return snprintf(to, capacity, "%s/%016" PRIx64 "%016" PRIx64 ".program", folder, k->half[0],
                    k->half[1])
         < (int)capacity;
}
/* Makes the folder and the one that it is in. */
static void make_folder(char *folder)
{
    if (loci_folder_make(folder) || errno != ENOENT) return;
    char *slash = strrchr(folder, '/');
    *slash = 0;
    loci_folder_make(folder);
    *slash = '/';
    loci_folder_make(folder);
}

/* ---- Files ----------------------------------------------------------------------------------- */

static bool read_all(int file, void *to, size_t bytes, uint64_t at)
{
    for (size_t done = 0; done < bytes;) {
        const ptrdiff_t n = loci_file_read(file, (char *)to + done, bytes - done, at + done);
        if (n > 0) done += (size_t)n;
        else if (n == 0 || errno != EINTR) return false;
    }
    return true;
}
static bool write_all(int file, const void *data, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        const ptrdiff_t n = loci_file_write(file, (const char *)data + done, bytes - done);
        if (n > 0) done += (size_t)n;
        else if (n == 0 || errno != EINTR) return false;
    }
    return true;
}

static void *read_program(int file, const struct program_key *k, size_t *bytes)
{
    struct file_info info;
    struct header h;
    if (!loci_file_info(file, &info) || info.kind != FILE_PLAIN || !read_all(file, &h, sizeof h, 0))
        return NULL;
    if (memcmp(h.magic, magic, sizeof magic) || memcmp(h.key, k->half, sizeof h.key) || !h.bytes
        || h.bytes > MOST_BYTES || info.size != sizeof h + h.bytes)
        return NULL;
    void *data = malloc((size_t)h.bytes);
    if (data && read_all(file, data, (size_t)h.bytes, sizeof h)
        && sum_of(data, (size_t)h.bytes) == h.sum) {
        *bytes = (size_t)h.bytes;
        return data;
    }
    free(data);
    return NULL;
}

void *loci_program_read(const struct program_key *k, size_t *bytes)
{
    char folder[PATH_BYTES], path[PATH_BYTES + 64];
    if (switched_off() || !folder_of(folder, sizeof folder)
        || !path_of(k, folder, path, sizeof path))
        return NULL;
    const int file = loci_file_open(path);
    if (file < 0) return NULL;
    void *data = read_program(file, k, bytes);
    loci_file_close(file);
    return data;
}

void loci_program_write(const struct program_key *k, const void *data, size_t bytes)
{
    char folder[PATH_BYTES], path[PATH_BYTES + 64], aside[PATH_BYTES + 128];
    uint64_t unique;
    if (switched_off() || !bytes || !folder_of(folder, sizeof folder)
        || !path_of(k, folder, path, sizeof path) || !loci_random(&unique))
        return;
    snprintf(aside, sizeof aside, "%s.%016" PRIx64 ".part", path, unique);
    make_folder(folder);
    const int file = loci_file_create(aside, true);
    if (file < 0) return;
    struct header h = { .key = { k->half[0], k->half[1] },
                        .bytes = bytes,
                        .sum = sum_of(data, bytes) };
    memcpy(h.magic, magic, sizeof magic);
    const bool written = write_all(file, &h, sizeof h) && write_all(file, data, bytes);
    loci_file_close(file);
    if (!written || !loci_path_rename(aside, path)) loci_path_remove(aside);
}
