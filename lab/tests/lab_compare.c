/* SPDX-License-Identifier: MIT */
/* lab_compare.c -- paired differences of two arms: which runs are pairs, means, intervals. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "lab/compare.h"

enum { MOST = 32 };
static struct lab_result list[MOST];
static struct lab_results all = { .list = list };

/* A run with one column on text, of this loss, and a variant of half of it. */
static struct lab_result *add(const char *arm, int seed, double loss, const char *settings)
{
    struct lab_result *r = &list[all.count++];
    *r = (struct lab_result){ .seed = seed, .length = 64, .steps = 100, .learned = loss < 5 };
    snprintf(r->arm, sizeof r->arm, "%s", arm);
    snprintf(r->settings, sizeof r->settings, "%s", settings);
    strcpy(r->task, "text");
    strcpy(r->size, "S");
    r->row = calloc(2, sizeof *r->row);
    r->rows = 2;
    for (int i = 0; i < 2; i++) {
        strcpy(r->row[i].name, i ? "half" : "");
        r->row[i].columns = 1;
        r->row[i].column = calloc(1, sizeof *r->row[i].column);
        *r->row[i].column = (struct lab_measured){
            .times = 1, .length = 64, .count = 8, .metric = LAB_LOSS, .loss = i ? loss / 2 : loss
        };
        strcpy(r->row[i].column->name, "L");
    }
    return r;
}
static void clear(void)
{
    for (int i = 0; i < all.count; i++) {
        for (int k = 0; k < 2; k++) {
            free(list[i].row[k].column->each);
            free(list[i].row[k].column);
        }
        free(list[i].row);
    }
    all.count = 0;
}

static struct lab_comparison compare(const char *a, const char *b)
{
    struct lab_comparison c;
    loci_error e = { .text = "" };
    CHECK_THAT(!lab_compare(&c, &all, a, b, NULL, &e), "%s", e.text);
    return c;
}

static void check_numbers(void)
{
    const double x[] = { 3, 5, 4, 9 }, y[] = { 2, 2, 2, 1 }; /* seed 3 is in x alone */
    for (int i = 0; i < 4; i++) add("alibi", i, x[i], "");
    for (int i = 0; i < 3; i++) add("rope", i, y[i], "");
    add("rope", 7, y[3], "");
    struct lab_comparison c = compare("alibi", "rope");
    CHECK_THAT(c.count == 1 && c.list->seeds == 3 && c.list->columns == 1, "one task, 3 seeds");
    CHECK_THAT(c.list->learned_a == 2 && c.list->learned_b == 3, "a loss of 5 is not learned");
    const struct lab_difference *d = c.list->column;
    CHECK_CLOSE(d->a, 4, 1e-12, "mean of a");
    CHECK_CLOSE(d->b, 2, 1e-12, "mean of b");
    CHECK_CLOSE(d->mean, 2, 1e-12, "of 1, 3 and 2");
    CHECK_CLOSE(d->low, 2 - 4.302652729911275 / sqrt(3), 1e-8, "t of 2 degrees");
    CHECK_CLOSE(d->high, 2 + 4.302652729911275 / sqrt(3), 1e-8, "t of 2 degrees");
    CHECK_CLOSE(d->p, 0.0741799, 1e-6, "two-sided");
    lab_comparison_free(&c);

    c = compare("rope", "alibi@half");
    CHECK_CLOSE(c.list->column->mean, 0, 1e-12, "2 against 3/2, 5/2 and 4/2");
    lab_comparison_free(&c);
    c = compare("alibi", "alibi@half");
    CHECK_THAT(c.list->seeds == 4, "an arm and its variant share all runs");
    lab_comparison_free(&c);
    clear();
}

/* Seeds that agree, on eight sequences that differ: the interval is that of the sequences. */
static void check_sequences(void)
{
    const double apart[] = { 1, -1, 2, 0, 3, 1, 0, 2 };
    for (int seed = 0; seed < 2; seed++)
        for (int a = 0; a < 2; a++) {
            struct lab_measured *c = add(a ? "alibi" : "rope", seed, 3 + a, "")->row[0].column;
            c->each = calloc(8, sizeof *c->each);
            for (int k = 0; k < 8; k++) c->each[k] = a * apart[k] + seed;
        }
    struct lab_comparison c = compare("alibi", "rope");
    CHECK_CLOSE(c.list->column->mean, 1, 1e-12, "the same with each seed");
    CHECK_CLOSE(c.list->column->high, 1 + 1.95996398454 * sqrt(12 / 7.0 / 8), 1e-6, "sequences");
    lab_comparison_free(&c);
    clear();
}

/* Only runs of the same settings are pairs; the rate and the MLP's width are an arm's own. */
static void check_settings(void)
{
    loci_error e;
    struct lab_comparison c;
    add("alibi", 0, 1, "layers=3 rate=0.01 most=5");
    add("alibi", 0, 2, "layers=3 rate=0.02 most=5");
    add("rope", 0, 4, "layers=3 ffn=112 most=5");
    add("rope", 0, 8, "layers=4 most=5");
    c = compare("alibi", "rope");
    CHECK_THAT(c.count == 2, "each rate by itself");
    for (int i = 0; i < 2; i++) {
        CHECK_CLOSE(c.list[i].column->mean, i - 3, 1e-12, "rate %d", i);
        CHECK_THAT(isnan(c.list[i].column->low) && isnan(c.list[i].column->p), "one seed");
    }
    lab_comparison_free(&c);
    clear();
    add("alibi", 0, 1, "");
    add("rope", 1, 4, "");
    CHECK_SAYS(lab_compare(&c, &all, "alibi", "rope", NULL, &e), LOCI_BAD_ARG, &e,
               "share no task with the same size");
    CHECK_SAYS(lab_compare(&c, &all, "alibi", "rop", NULL, &e), LOCI_BAD_ARG, &e,
               "no completed run of arm 'rop'; those of this folder are alibi, rope");
    CHECK_SAYS(lab_compare(&c, &all, "alibi@third", "rope", NULL, &e), LOCI_BAD_ARG, &e,
               "'alibi@third'");
    CHECK_SAYS(lab_compare(&c, &all, "alibi", "rope", "copy", &e), LOCI_BAD_ARG, &e,
               "on task copy; there is no other");
    clear();
    for (int seed = 0; seed < 2; seed++) {
        add("alibi", seed, 3, "");
        add("rope", seed, 3, "")->row[0].column->loss = seed ? NAN : 3;
    }
    c = compare("alibi", "rope");
    CHECK_THAT(c.list->seeds == 2 && c.list->column->n == 1, "what was not measured is no pair");
    lab_comparison_free(&c);
    clear();
}

int main(void)
{
    check_numbers();
    check_sequences();
    check_settings();
    return harness_end();
}
