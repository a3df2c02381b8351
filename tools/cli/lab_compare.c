/* SPDX-License-Identifier: MIT */
/* lab_compare.c -- `loci lab compare`: two arms side by side, with paired differences. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/lab.h"
#include "draw/text.h"
#include "lab/compare.h"
#include "lab/tables.h"

enum { COMPARE_DIR, COMPARE_TASK, COMPARE_JSON };
static const struct flag compare_flags[] = {
    [COMPARE_DIR] = { "dir", "d", "DIR:@folder", "folder of the runs (default lab-out)" },
    [COMPARE_TASK] = { "task", NULL, "NAME:@task", "this task alone (default: all)" },
    [COMPARE_JSON] = { "json", NULL, NULL, "one JSON object" },
    { NULL, NULL, NULL, NULL }
};

/* Shares are printed in percent, and their differences in points. */
static double unit_of(const struct lab_measured *c) { return c->metric == LAB_LOSS ? 1 : 100; }

/* Is the difference surely on one side?  1: a is better, -1: b is, 0: undecided. */
static int better(const struct lab_difference *d)
{
    if (!(d->low > 0 || d->high < 0)) return 0;
    return (d->mean > 0) == (d->head->metric != LAB_LOSS) ? 1 : -1;
}

static void print_one(const struct lab_compared *c, const char *a, const char *b)
{
    printf("%s%s: size %s, L = %d, %d steps, %d seed%s%s\n", PAINT("1"), c->a->task, c->a->size,
           c->a->length, c->a->steps, c->seeds, c->seeds == 1 ? "" : "s", PAINT("0"));
    if (*c->a->settings || *c->b->settings) {
        printf("    settings: ");
        print_plain(stdout, *c->a->settings ? c->a->settings : "the usual");
        if (strcmp(c->a->settings, c->b->settings) != 0) {
            printf("; of %s: ", b);
            print_plain(stdout, *c->b->settings ? c->b->settings : "the usual");
        }
        putchar('\n');
    }
    printf("    learned: %s %d of %d, %s %d of %d\n\n", a, c->learned_a, c->seeds, b, c->learned_b,
           c->seeds);
    printf("    %-16s %9s %9s %10s   %-22s %7s  %s\n", "column", "A", "B", "A - B",
           "interval of 95 %", "p", "better");
    for (int i = 0; i < c->columns; i++) {
        const struct lab_difference *d = &c->column[i];
        const double unit = unit_of(d->head);
        const int digits = unit == 1 ? 3 : 1;
        char interval[48] = "-", p[16] = "-";
        if (d->n > 1) {
            snprintf(interval, sizeof interval, "%+.*f to %+.*f", digits, unit * d->low, digits,
                     unit * d->high);
            snprintf(p, sizeof p, d->p < 0.001 ? "<0.001" : "%.3f", d->p);
        }
        printf("    %-16s %9.*f %9.*f %+10.*f   %-22s %7s  %s", d->head->name, digits, unit * d->a,
               digits, unit * d->b, digits, unit * d->mean, interval, p,
               d->n < 2        ? "one seed"
               : better(d) > 0 ? "A"
               : better(d) < 0 ? "B"
                               : "=");
        if (d->n != c->seeds && d->n > 1) printf(" (%d seeds)", d->n);
        putchar('\n');
    }
    putchar('\n');
}

static void add_number(struct text *t, const char *key, double value)
{
    text_add(t, "\"%s\": ", key);
    text_json_number(t, value);
}
static void add_one(struct text *t, const struct lab_compared *c)
{
    text_add(t, "{\"task\": ");
    text_json(t, c->a->task);
    text_add(t, ", \"size\": ");
    text_json(t, c->a->size);
    text_add(t, ", \"length\": %d, \"steps\": %d, \"seeds\": %d, \"settings_a\": ", c->a->length,
             c->a->steps, c->seeds);
    text_json(t, c->a->settings);
    text_add(t, ", \"settings_b\": ");
    text_json(t, c->b->settings);
    text_add(t, ", \"learned_a\": %d, \"learned_b\": %d, \"columns\": [", c->learned_a,
             c->learned_b);
    for (int i = 0; i < c->columns; i++) {
        const struct lab_difference *d = &c->column[i];
        text_add(t, "%s\n  {\"name\": ", i ? "," : "");
        text_json(t, d->head->name);
        text_add(t, ", \"metric\": \"%s\", \"n\": %d, ", metric_name(d->head->metric), d->n);
        const struct {
            const char *key;
            double value;
        } numbers[] = { { "a", d->a },     { "b", d->b },       { "mean", d->mean },
                        { "low", d->low }, { "high", d->high }, { "p", d->p } };
        for (int k = 0; k < COUNT(numbers); k++) {
            if (k) text_add(t, ", ");
            add_number(t, numbers[k].key, numbers[k].value);
        }
        text_add(t, "}");
    }
    text_add(t, "]}");
}

static void print_json(const struct lab_comparison *all, const char *a, const char *b)
{
    struct text t = { .s = NULL };
    text_add(&t, "{\"a\": ");
    text_json(&t, a);
    text_add(&t, ", \"b\": ");
    text_json(&t, b);
    text_add(&t, ", \"tasks\": [");
    for (int i = 0; i < all->count; i++) {
        text_add(&t, i ? ",\n " : "\n ");
        add_one(&t, &all->list[i]);
    }
    text_add(&t, "]}\n");
    fwrite(t.s, 1, t.n, stdout);
    text_free(&t);
}

static int run_compare(const struct args *a)
{
    const char *dir = a->value[COMPARE_DIR] ? a->value[COMPARE_DIR] : "lab-out";
    struct lab_results all;
    struct lab_comparison c;
    loci_error e = { .text = "" };
    if (!args_rest(a, 2)) return EXIT_ERROR;
    if (a->rest_count < 2)
        return fail("lab compare: give two arms, as 'loci lab report' names them");
    const char *x = a->rest[0], *y = a->rest[1];
    if (lab_results_read(&all, dir, &e)) return fail("lab compare: %s", e.text);
    for (int i = 0; i < all.skips; i++) fail("%s", all.skipped[i]);
    if (lab_compare(&c, &all, x, y, a->value[COMPARE_TASK], &e)) {
        lab_results_free(&all);
        return fail("lab compare: %s: %s", dir, e.text);
    }
    if (a->value[COMPARE_JSON]) print_json(&c, x, y);
    else {
        printf("A is %s, B is %s.  Differences are paired by seed; shares are in %%.\n\n", x, y);
        for (int i = 0; i < c.count; i++) print_one(&c.list[i], x, y);
    }
    lab_comparison_free(&c);
    lab_results_free(&all);
    return EXIT_DONE;
}

const struct command cmd_lab_compare = {
    .name = "lab compare",
    .brief = "two arms side by side: paired differences with intervals",
    .synopsis = "loci lab compare A B [-d DIR] [--task NAME] [--json]",
    .about =
        "    A and B are arms of a report, or variants: rope@ntk.  Each difference is a mean over\n"
        "    the seeds that both have, with its interval of 95 % by Student's t from these\n"
        "    differences alone.  Nothing is corrected for the number of columns.\n",
    .examples = "    loci lab compare alibi rope -d lab-out\n"
                "    loci lab compare rope rope@ntk --task text\n",
    .operand_text = "@arm @arm",
    .flags = compare_flags,
    .run = run_compare,
};
