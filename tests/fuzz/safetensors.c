/* SPDX-License-Identifier: MIT */
/* safetensors.c -- safetensors files.  An accepted file has tensors of the size of their shapes,
 * contiguous up to the end. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"
#include "models/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    static char path[32];
    struct safetensors f;
    loci_error e = { 0 };
    if (fd < 0) {
        fd = memfd_create("fuzz", MFD_CLOEXEC);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    if (fd < 0 || ftruncate(fd, 0) || pwrite(fd, data, size, 0) != (ssize_t)size) exit(2);
    if (loci_safetensors_open(&f, path, &e)) {
        FUZZ_CHECK(f.fd < 0 && !f.text && e.status && e.text[0]);
        return 0;
    }
    uint64_t at = 0;
    for (int i = 0; i < f.count; i++) {
        const struct safetensor *t = &f.tensor[i];
        ptrdiff_t count = 1;
        for (int k = 0; k < t->rank; k++) count *= t->shape[k];
        FUZZ_CHECK(t->offset == at && count == t->count
                   && t->bytes == (uint64_t)count * loci_safetensors_type_size(t->type));
        at += t->bytes;
        char *copy = malloc(t->bytes + 1);
        FUZZ_CHECK(copy && !loci_safetensors_read(&f, t, copy, &e)
                   && !memcmp(copy, data + f.data + t->offset, t->bytes));
        free(copy);
    }
    FUZZ_CHECK(f.data + at == size);
    loci_safetensors_close(&f);
    return 0;
}

void fuzz_seeds(void (*add)(const void *, size_t))
{
    fuzz_add_folder("tests/cases/errors", ".safetensors", add);
    fuzz_add_folder("tests/cases", "-decode.safetensors", add);
    fuzz_add_folder("tests/cases", "-position.safetensors", add);
    fuzz_add_folder("tests/cases", "-token.safetensors", add);
}
