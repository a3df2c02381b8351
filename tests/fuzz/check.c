/* SPDX-License-Identifier: MIT */
/* check.c -- `loci check` on random arguments, configurations and files: gives a finding, as text
 * or as JSON, or a sentence. */
#define _GNU_SOURCE
#include <jansson.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "command.h"
#include "models/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char text[1 << 16];
    struct input in;
    if (!input_open(&in, data, size)) return 0;
    const int code = run_command(&cmd_check, &in);
    bool json = false;
    for (int i = 0; i < in.count; i++) json |= !strcmp(in.word[i], "--json");
    printed(text, sizeof text);
    if (code != EXIT_ERROR && json && *text == '{') {
        json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
        FUZZ_CHECK(root);
        const json_t *follows = json_object_get(root, "follows");
        FUZZ_CHECK(json_is_boolean(follows) && json_is_true(follows) == (code == EXIT_DONE));
        /* NaN follows no rule */
        FUZZ_CHECK(code == EXIT_BROKEN || json_is_number(json_object_get(root, "worst")));
        json_decref(root);
    }
    input_close(&in);
    return 0;
}

/* ---- Seeds ----------------------------------------------------------------------------------- */

enum { HEADS = 2, ROWS = 6, DIM = 8 };
struct tensor {
    const char *name;
    int rank;
    ptrdiff_t shape[3];
    const float *x;
};

static void write_file(const char *path, int count, const struct tensor *from)
{
    struct safetensor t[3] = { 0 };
    struct safetensors_writer w;
    loci_error e;
    size_t bytes[3];
    for (int i = 0; i < count; i++) {
        t[i].name = (char *)from[i].name;
        t[i].type = ST_F32;
        t[i].rank = from[i].rank;
        bytes[i] = sizeof(float);
        for (int k = 0; k < t[i].rank; k++) {
            t[i].shape[k] = from[i].shape[k];
            bytes[i] *= (size_t)from[i].shape[k];
        }
    }
    loci_status s = loci_safetensors_begin(&w, path, count, t, 0, NULL, &e);
    for (int i = 0; i < count && !s; i++) s = loci_safetensors_put(&w, from[i].x, bytes[i], &e);
    if (loci_safetensors_end(&w, s, &e)) exit(2);
}

void fuzz_seeds(void (*add)(const void *, size_t))
{
    static float before[HEADS * ROWS * DIM], after[HEADS * ROWS * DIM], cos_[ROWS * DIM],
        sin_[ROWS * DIM], slopes[8], bias[HEADS * ROWS * ROWS], table[32 * HEADS];
    for (int n = 0; n < HEADS * ROWS * DIM; n++) before[n] = (float)(n * 37 % 64 - 31) / 32;
    for (int n = 0; n < HEADS * ROWS; n++)
        for (int t = 0; t < DIM / 2; t++) {
            const int row = n % ROWS, a = n * DIM + t, b = a + DIM / 2;
            const double phi = row * pow(10000, -2.0 * t / DIM);
            after[a] = (float)(before[a] * cos(phi) - before[b] * sin(phi));
            after[b] = (float)(before[b] * cos(phi) + before[a] * sin(phi));
            for (int half = 0; half < 2; half++) {
                cos_[row * DIM + half * DIM / 2 + t] = (float)cos(phi);
                sin_[row * DIM + half * DIM / 2 + t] = (float)sin(phi);
            }
        }
    for (int h = 0; h < 8; h++) slopes[h] = ldexpf(1, -h - 1);
    for (int n = 0; n < 32 * HEADS; n++) table[n] = (float)n / 8;
    for (int n = 0; n < HEADS * ROWS * ROWS; n++) {
        const int h = n / ROWS / ROWS, back = n / ROWS % ROWS - n % ROWS;
        bias[n] = table[(back > 0 ? back : 0) * HEADS + h];
    }
    const struct tensor rotation[] = { { "after", 3, { HEADS, ROWS, DIM }, after },
                                       { "before", 3, { HEADS, ROWS, DIM }, before } },
                        angles[] = { { "cos", 2, { ROWS, DIM }, cos_ },
                                     { "sin", 2, { ROWS, DIM }, sin_ } },
                        slope[] = { { "slopes", 1, { 8 }, slopes } },
                        biases[] = { { "bias", 3, { HEADS, ROWS, ROWS }, bias },
                                     { "table", 2, { 32, HEADS }, table } };
    static const char *const lines[] = {
        "FILE",
        "FILE --json",
        "FILE -e rope:pairing=half --json",
        "FILE -e alibi",
        "FILE -e t5:bidirectional=0 --tol 1e-3",
        "FILE CONFIG",
        "FILE CONFIG --layer 1 --length 100",
        "FILE --layout blhd --before before --after after",
    };
    const char *const path = fuzz_scratch();
    for (int i = 0; i < COUNT(lines); i++)
        for (int kind = 0; kind < 4; kind++) {
            if (kind == 0) write_file(path, 2, rotation);
            if (kind == 1) write_file(path, 2, angles);
            if (kind == 2) write_file(path, 1, slope);
            if (kind == 3) write_file(path, 2, biases);
            add_input(add, lines[i],
                      kind < 2 ? "tests/cases/models/llama-3.1.json"
                               : "tests/cases/models/bloom.json",
                      path);
        }
    unlink(path);
}
