/* SPDX-License-Identifier: MIT */
/* memory_files.c -- reading and writing a file when memory runs out: every allocation fails once.
 * Nothing leaks, no half of a file is left, and the status says so. */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "scratch.h"
#include "counted.h"
#include "harness.h"

#include <io/safetensors.c>
#include <io/write.c>
#undef _DEFAULT_SOURCE
#include <io/output.c>

enum { MOST = 400, FEWEST = 4 };         /* allocations that one file takes */

int main(void)
{
    int reads = 0, writes = 0;
    char folder[SCRATCH], path[SCRATCH + 8];
    scratch(folder, "memory");
    if (!mkdtemp(folder)) return 2;
    snprintf(path, sizeof path, "%s/file", folder);
    const float numbers[] = { 1, 2, 3, 4, 5, 6 };
    const struct safetensor tensor[] = { { .name = "a", .type = ST_F32, .rank = 2,
                                           .shape = { 2, 3 } }, { .name = "b", .type = ST_F32,
                                                                  .rank = 0 } };
    const struct safetensors_meta meta = { "key", "value" };
    const void *const data[] = { numbers, numbers };
    for (int n = 0; n < MOST && writes == n; n++) {
        struct stat st;
        loci_error e = { 0 };
        unlink(path);
        left = n;
        const loci_status status = loci_safetensors_write(path, 2, tensor, data, 1, &meta, &e);
        const bool ran_out = left < 0, there = !stat(path, &st);
        writes += ran_out;
        /* Without memory for its name the folder is not synced, which is no failure. */
        const bool ok = live == 0 && there == !status && (ran_out ? status == LOCI_NO_MEMORY
                                                          || there : status == LOCI_OK);
        CHECK_THAT(ok, "writing, failing at %d: status %d, %d blocks left", n, status, live);
    }
    for (int n = 0; n < MOST && reads == n; n++) {
        loci_error e = { 0 };
        struct safetensors f;
        left = n;
        const loci_status status = loci_safetensors_open(&f, path, &e);
        const bool ran_out = left < 0;
        reads += ran_out;
        bool ok = ran_out ? status == LOCI_NO_MEMORY && e.text[0] : status == LOCI_OK && f.count
            == 2 && f.meta_count == 1;
        if (!status) loci_safetensors_close(&f);
        ok = ok && live == 0;
        CHECK_THAT(ok, "reading, failing at %d: status %d (%s), %d blocks left", n, status, e.text,
                   live);
    }
    if (reads < FEWEST || writes < FEWEST)
        CHECK_FAILED("only %d and %d allocations failed", reads, writes);
    unlink(path);
    rmdir(folder);
    return harness_end();
}
