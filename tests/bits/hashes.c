/* SPDX-License-Identifier: MIT */
/* hashes.c -- the bits of the golden cases, against tests/bits/hashes.txt: the same on every
 * system, processor and compiler.  A hash covers all results of a case in float32, gradients too.
 * It changes only on purpose, by `test_hashes write`.  The last line printed is a hash of all. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "platform/file.h"
#include "cli/case.h"
#include "lab/sha256.h"
#include "util/byte_order.h"
#include "harness.h"

static const char folder[] = "tests/cases", record_name[] = "tests/bits/hashes.txt";
enum { MOST = 1000, LONGEST = 128 };

static int by_name(const void *a, const void *b) { return strcmp(a, b); }
static int list_cases(char (*names)[LONGEST])
{
    int n = 0;
    struct folder *f = loci_folder_open(folder);
    for (const char *name; f && n < MOST && (name = loci_folder_next(f));) {
        const char *end = strstr(name, ".safetensors");
        if (!end || strlen(name) >= LONGEST) continue;
        snprintf(names[n++], LONGEST, "%.*s", (int)(end - name), name);
    }
    if (f) loci_folder_close(f);
    qsort(names, (size_t)n, sizeof *names, by_name);
    return n;
}

static loci_status compute(struct case_file *c)
{
    struct task *t = &c->task;
    loci_status status = task_prepare(t, c->max_distance, c->backward);
    if (!status) status = task_forward(t);
    return !status && c->backward ? task_backward(t) : status;
}

/* NaN has one hash, whatever its sign and payload: processors choose them. */
static void add_numbers(struct sha256 *s, const struct output *o)
{
    size_t n = 1;
    for (int i = 0; i < o->rank; i++) n *= (size_t)o->shape[i];
    for (size_t i = 0; i < n; i++) {
        double x = o->dtype == LOCI_F64 ? ((const double *)o->data)[i]
                                        : (double)((const float *)o->data)[i];
        uint64_t bits = 0x7ff8000000000000;
        if (x == x) memcpy(&bits, &x, sizeof bits);
        little_endian(&bits, 1, sizeof bits);
        sha256_add(s, &bits, sizeof bits);
    }
}

static bool hash_case(const char *name, char hex[65])
{
    char path[256];
    struct case_file c;
    struct sha256 s;
    snprintf(path, sizeof path, "%s/%s.safetensors", folder, name);
    bool good = case_open(&c, path, LOCI_F32, false, NULL, false) && !compute(&c);
    CHECK_THAT(good, "%s: %s", name, c.task.error.text);
    sha256_begin(&s);
    for (int i = 0; i < c.outputs && good; i++) {
        sha256_add(&s, c.output[i].name, strlen(c.output[i].name) + 1);
        add_numbers(&s, &c.output[i]);
    }
    sha256_end(&s, hex);
    case_close(&c);
    return good;
}

int main(int argc, char **argv)
{
    static char names[MOST][LONGEST];
    const bool writing = argc > 1 && !strcmp(argv[1], "write");
    const int n = list_cases(names);
    struct sha256 all;
    char hex[65], wanted[512], said[512];
    FILE *record = fopen(record_name, writing ? "wb" : "rb");
    CHECK_THAT(record && n > 0, "%s and %s must be there: %d cases", record_name, folder, n);
    if (!record) return harness_end();
    sha256_begin(&all);
    for (int i = 0; i < n; i++) {
        if (!hash_case(names[i], hex)) continue;
        sha256_add(&all, hex, 64);
        snprintf(said, sizeof said, "%.32s %.127s", hex, names[i]);
        if (writing) {
            fprintf(record, "%s\n", said);
            continue;
        }
        if (!fgets(wanted, sizeof wanted, record)) *wanted = 0;
        wanted[strcspn(wanted, "\n")] = 0;
        CHECK_THAT(!strcmp(said, wanted), "'%s', but the record has '%s'", said, wanted);
    }
    fclose(record);
    sha256_end(&all, hex);
    printf("%d cases: %s\n", n, hex);
    return harness_end();
}
