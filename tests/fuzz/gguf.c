/* SPDX-License-Identifier: MIT */
/* gguf.c -- GGUF files. */
#include <string.h>

#include "layers.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    loci_model *m;
    loci_error e = { 0 };
    if (size < 4 || memcmp(data, "GGUF", 4)) return 0;
    if (loci_model_parse(&m, data, size, &e)) {
        FUZZ_CHECK(!m && e.status && e.text[0]);
        return 0;
    }
    check_layers(m);
    loci_model_close(m);
    return 0;
}

void fuzz_seeds(void (*add)(const void *, size_t))
{
    fuzz_add_folder("tests/cases/rope", ".gguf", add);
}
