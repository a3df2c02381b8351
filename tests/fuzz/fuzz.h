/* SPDX-License-Identifier: MIT */
/* fuzz.h -- the interface of a fuzz target. config.c, gguf.c, safetensors.c, case.c and encoding.c
 * pass bytes to a reader, check.c and convert.c to a command, and call.c makes a call of them.
 * FUZZ_CHECK is an invariant of all accepted inputs. main.c drives the targets for a short fixed
 * time with any compiler.  With clang and LOCI_FUZZ=ON libFuzzer does, without a time limit
 * (scripts/fuzz). */
#ifndef LOCI_TESTS_FUZZ_FUZZ_H
#define LOCI_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Passes sound inputs to add(), which copies them. */
void fuzz_seeds(void (*add)(const void *data, size_t size));
void fuzz_add_folder(const char *folder, const char *suffix,
                     void (*add)(const void *data, size_t size));

#ifndef FUZZ_CHECK
#define FUZZ_CHECK(rule) \
    do { \
        if (!(rule)) fprintf(stderr, "does not hold: %s\n", #rule), abort(); \
    } while (0)
#endif

#endif
