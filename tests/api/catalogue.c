/* SPDX-License-Identifier: MIT */
/* catalogue.c -- properties of encodings, initial tensors and memory sizes of calls, against
 * tests/api/catalogue.txt.  A default, a range, a shape, an initial value or a size changes only on
 * purpose, by `test_catalogue write`. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loci/cache.h"
#include "harness.h"
#include "walk.h"

static const char *const kinds[] = { "number", "whole", "word", "list" };
static const char *const roles[] = { "learned", "fixed", "input" };

static FILE *record;
static bool writing;

/* Writes or compares one line. */
static void line(const char *said)
{
    char wanted[512] = "";
    if (writing) {
        fprintf(record, "%s\n", said);
        return;
    }
    if (fgets(wanted, sizeof wanted, record)) wanted[strcspn(wanted, "\n")] = 0;
    CHECK_THAT(!strcmp(said, wanted), "'%s', but the record has '%s'", said, wanted);
}

static void options(const loci_encoding_info *info)
{
    char said[512];
    snprintf(said, sizeof said, "%s: places %d%s, tolerance %g, %d options", info->name,
             info->places, info->causal_only ? ", causal only" : "", info->tolerance,
             info->option_count);
    line(said);
    for (int i = 0; i < info->option_count; i++) {
        const loci_option *o = &info->options[i];
        char usual[32];
        snprintf(usual, sizeof usual, "%.17g", o->default_value);
        if (isnan(o->default_value)) strcpy(usual, "by a rule");
        snprintf(said, sizeof said, "    %s: %s%s, usual %s, %.17g to %.17g, %s", o->name,
                 kinds[o->kind], o->required ? " that must be given" : "", usual, o->min, o->max,
                 o->words ? o->words : "no words");
        line(said);
    }
}

static void tensors(const char *text, loci_stage stage)
{
    const loci_desc d =
        LOCI_DESC(.encoding = text, .stage = stage, .heads = 6, .kv_heads = 3,
                  .dim = stage == LOCI_EMBED ? 0 : walk_dim(text, 16),
                  .model_dim = stage == LOCI_EMBED ? 96 : 0, .max_len = 50, .dtype = LOCI_F64);
    loci_plan *p;
    loci_error e = { 0 };
    loci_tensor list[WALK_TENSORS];
    if (!CHECK_THAT(!loci_plan_create(&p, &d, &e), "%s: %s", text, e.text)) return;
    const int count = loci_tensors(p, list, WALK_TENSORS);
    for (int i = 0; i < count; i++) {
        char said[512];
        int at = snprintf(said, sizeof said, "%s %s: %s", text, list[i].name, roles[list[i].role]);
        for (int k = 0; k < list[i].rank; k++)
            at += snprintf(said + at, sizeof said - (size_t)at, "%s%td", k ? "," : " [",
                           list[i].shape[k]);
        at += snprintf(said + at, sizeof said - (size_t)at, "]");
        if (list[i].role != LOCI_INPUT) {
            const size_t n = walk_count(&list[i], 1, 1, 1);
            double *x = calloc(n + 1, sizeof *x), sum = 0, square = 0;
            if (!x) exit(2);
            loci_tensor_init(p, i, 1, x);
            for (size_t k = 0; k < n; k++) {
                sum += x[k];
                square += x[k] * x[k];
            }
            snprintf(said + at, sizeof said - (size_t)at,
                     " starts with mean %.6g, size %.6g, "
                     "%.6g first",
                     sum / (double)n, sqrt(square / (double)n), x[0]);
            free(x);
        }
        line(said);
    }
    loci_plan_destroy(p);
}

/* Bytes of calls in double, which have one engine everywhere: of whole tiles, of one key more, in
 * segments, and of one row with a cache. */
static void memory(const char *text, bool square)
{
    enum { KEYS = 1024, MORE = KEYS + 1 };
    static int64_t segments[2 * MORE];
    loci_desc d = LOCI_DESC(.encoding = text, .heads = 6, .kv_heads = 3, .dim = walk_dim(text, 16),
                            .dtype = LOCI_F64);
    loci_plan *p, *turned;
    loci_error e = { 0 };
    d.value_dim = square ? d.dim : 24;
    if (!CHECK_THAT(!loci_plan_create(&p, &d, &e), "%s: %s", text, e.text)) return;
    d.keys_rotated = 1;
    const loci_plan *caches = loci_plan_create(&turned, &d, NULL) ? p : turned;
    const loci_call call = LOCI_CALL(.batch = 2, .q_len = KEYS, .k_len = KEYS),
                    apart = LOCI_CALL(.batch = 2, .q_len = MORE, .k_len = MORE, .q_seg = segments,
                                      .k_seg = segments),
                    decode = LOCI_CALL(.batch = 2, .q_len = 1, .k_len = KEYS);
    char said[512];
    snprintf(said, sizeof said,
             "%s: tables %zu, cache %zu, forward %zu and %zu, backward %zu and "
             "%zu, decode %zu",
             text, loci_tables_size(p, KEYS), loci_cache_size(caches, 2, KEYS),
             loci_workspace(p, &call, 0), loci_workspace(p, &apart, 0), loci_workspace(p, &call, 1),
             loci_workspace(p, &apart, 1), loci_workspace(caches, &decode, 0));
    line(said);
    if (caches != p) loci_plan_destroy(turned);
    loci_plan_destroy(p);
}

int main(int argc, char **argv)
{
    writing = argc > 1 && !strcmp(argv[1], "write");
    record = fopen("tests/api/catalogue.txt", writing ? "w" : "r");
    if (!CHECK_THAT(record != NULL, "tests/api/catalogue.txt is not here")) return harness_end();
    const loci_encoding_info *list;
    const int count = loci_encodings(&list);
    for (int i = 0; i < count; i++) {
        options(&list[i]);
        if (list[i].places & LOCI_PLACE_EMBED) tensors(list[i].example, LOCI_EMBED);
    }
    for (struct walk_text t = { 0 }; walk_next(&t);)
        if (!t.drawn && !strchr(t.text, '+')) tensors(t.text, LOCI_ATTENTION);
    /* the bytes are those of 64-bit pointers */
    const bool known = sizeof(void *) == sizeof(int64_t);
    for (struct walk_text t = { 0 }; known && walk_next(&t);)
        if (!t.drawn) memory(t.text, t.square);
    if (!writing && known) CHECK_THAT(fgetc(record) == EOF, "the record has more lines");
    CHECK_THAT(!fclose(record), "tests/api/catalogue.txt could not be written");
    return harness_end();
}
