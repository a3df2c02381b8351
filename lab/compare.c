/* SPDX-License-Identifier: MIT */
/* compare.c -- see compare.h. */
#include "lab/compare.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "draw/text.h"
#include "lab/statistics.h"
#include "lab/tables.h"
#include "util/error.h"

/* The row of this name: the arm's own, or a variant.  NULL: the run is of another arm. */
static const struct lab_row *row_of(const struct lab_result *r, const char *name)
{
    const size_t n = strlen(r->arm);
    if (!strcmp(r->arm, name)) return &r->row[0];
    if (strncmp(r->arm, name, n) != 0 || name[n] != '@') return NULL;
    for (int i = 1; i < r->rows; i++)
        if (!strcmp(r->row[i].name, name + n + 1)) return &r->row[i];
    return NULL;
}

/* The next word of the settings that both arms must share: the rate, and the width of an MLP that
 * matches the numbers of another arm, are an arm's own. */
static size_t next_setting(const char **s)
{
    for (;;) {
        *s += strspn(*s, " ");
        const size_t n = strcspn(*s, " ");
        if (strncmp(*s, "rate=", 5) != 0 && strncmp(*s, "ffn=", 4) != 0) return n;
        *s += n;
    }
}
static bool same_settings(const char *a, const char *b)
{
    for (;;) {
        const size_t n = next_setting(&a), m = next_setting(&b);
        if (n != m || memcmp(a, b, n) != 0) return false;
        if (n == 0) return true;
        a += n;
        b += m;
    }
}
static bool alike(const struct lab_result *a, const struct lab_result *b)
{
    return !strcmp(a->task, b->task) && !strcmp(a->size, b->size) && a->length == b->length
        && a->steps == b->steps;
}

/* The runs of a pair that belong together: those of one seed after another. */
struct pairs {
    const struct lab_result *a, *b; /* whose settings all have */
    int count, capacity;
    const struct lab_result **run_a, **run_b;
    const struct lab_row **row_a, **row_b;
};

static void *grow(void *old, size_t count, size_t capacity, size_t each)
{
    void *more = draw_alloc(capacity, each);
    if (count) memcpy(more, old, count * each);
    free(old);
    return more;
}
static void add_pair(struct pairs *p, const struct lab_result *a, const struct lab_row *x,
                     const struct lab_result *b, const struct lab_row *y)
{
    if (p->count == p->capacity) {
        const size_t n = (size_t)p->count, wanted = 2 * n + 8, each = sizeof(void *);
        p->run_a = grow(p->run_a, n, wanted, each);
        p->run_b = grow(p->run_b, n, wanted, each);
        p->row_a = grow(p->row_a, n, wanted, each);
        p->row_b = grow(p->row_b, n, wanted, each);
        p->capacity = (int)wanted;
    }
    p->run_a[p->count] = a;
    p->run_b[p->count] = b;
    p->row_a[p->count] = x;
    p->row_b[p->count++] = y;
}

static const struct lab_measured *column_of(const struct lab_row *r, const struct lab_measured *c)
{
    for (int i = 0; i < r->columns; i++)
        if (!strcmp(r->column[i].name, c->name) && r->column[i].metric == c->metric
            && r->column[i].length == c->length && r->column[i].count == c->count)
            return &r->column[i];
    return NULL;
}

/* The error that the choice of the test sequences has on the mean difference.  All seeds see the
 * same ones, so each sequence counts once, by its mean over the pairs.  NaN: they are not on
 * record. */
static double sampling_of(const struct pairs *p, const struct lab_measured *head)
{
    double *apart = draw_alloc((size_t)head->count, sizeof *apart), error = NAN;
    int n = 0;
    for (int i = 0; i < p->count; i++) {
        const struct lab_measured *x = column_of(p->row_a[i], head),
                                  *y = column_of(p->row_b[i], head);
        if (!x || !y || !x->each || !y->each) continue;
        for (int k = 0; k < head->count; k++) apart[k] += x->each[k] - y->each[k];
        n++;
    }
    if (n) error = mean_error(apart, head->count) / n;
    free(apart);
    return error;
}

static struct lab_difference compare_column(const struct pairs *p, const struct lab_measured *head)
{
    struct lab_difference d = { .head = head, .low = NAN, .high = NAN, .p = NAN };
    double *apart = draw_alloc((size_t)p->count, sizeof *apart);
    for (int i = 0; i < p->count; i++) {
        const struct lab_measured *x = column_of(p->row_a[i], head),
                                  *y = column_of(p->row_b[i], head);
        if (!x || !y || isnan(shown_value(x)) || isnan(shown_value(y))) continue;
        d.a += shown_value(x);
        d.b += shown_value(y);
        apart[d.n++] = shown_value(x) - shown_value(y);
    }
    d.a /= d.n;
    d.b /= d.n;
    d.mean = d.n ? summary_of(apart, d.n).mean : NAN;
    if (d.n > 1) {
        const struct interval by = interval_of(apart, d.n, sampling_of(p, head));
        d.low = by.low;
        d.high = by.high;
        d.p = by.p;
    }
    free(apart);
    return d;
}

static void compare_pairs(struct lab_compared *to, const struct pairs *p)
{
    *to = (struct lab_compared){ .a = p->a, .b = p->b, .seeds = p->count };
    for (int i = 0; i < p->count; i++) {
        to->learned_a += p->run_a[i]->learned;
        to->learned_b += p->run_b[i]->learned;
    }
    for (int i = 0; i < p->row_a[0]->columns; i++) {
        const struct lab_difference d = compare_column(p, &p->row_a[0]->column[i]);
        if (d.n) to->column[to->columns++] = d;
    }
}

static loci_status check_arm(const struct lab_results *all, const char *name, const char *task,
                             loci_error *e)
{
    struct text names = { .s = NULL };
    const char *last = "";
    bool found = false;
    for (int i = 0; i < all->count && !found; i++) {
        const struct lab_result *r = &all->list[i];
        if (task && strcmp(r->task, task) != 0) continue;
        found = row_of(r, name) != NULL;
        /* results are ordered by task, then by arm */
        if (strcmp(last, r->arm) != 0 && (!names.s || !strstr(names.s, r->arm)))
            text_add(&names, "%s%s", names.s ? ", " : "", r->arm);
        last = r->arm;
    }
    const loci_status status =
        found ? LOCI_OK
              : loci_fail(e, LOCI_BAD_ARG,
                          "there is no completed run of arm '%.80s'%s%.32s; %s%.300s", name,
                          task ? " on task " : "", task ? task : "",
                          names.s ? "those of this folder are " : "there is no other either",
                          names.s ? names.s : "");
    text_free(&names);
    return status;
}

loci_status lab_compare(struct lab_comparison *to, const struct lab_results *all, const char *a,
                        const char *b, const char *task, loci_error *e)
{
    *to = (struct lab_comparison){ .count = 0 };
    TRY(check_arm(all, a, task, e));
    TRY(check_arm(all, b, task, e));
    struct pairs *list = draw_alloc((size_t)all->count * (size_t)all->count + 1, sizeof *list);
    int groups = 0;
    for (int i = 0; i < all->count; i++) {
        const struct lab_result *r = &all->list[i];
        const struct lab_row *x = row_of(r, a);
        if (!x || (task && strcmp(r->task, task) != 0)) continue;
        for (int k = 0; k < all->count; k++) {
            const struct lab_result *s = &all->list[k];
            const struct lab_row *y = row_of(s, b);
            if (!y || !alike(r, s) || r->seed != s->seed
                || !same_settings(r->settings, s->settings))
                continue;
            int g = 0;
            while (g < groups
                   && (!alike(list[g].a, r) || strcmp(list[g].a->settings, r->settings) != 0
                       || strcmp(list[g].b->settings, s->settings) != 0))
                g++;
            if (g == groups) {
                list[groups].a = r;
                list[groups++].b = s;
            }
            struct pairs *p = &list[g];
            if (!p->count || p->run_a[p->count - 1]->seed != r->seed) add_pair(p, r, x, s, y);
        }
    }
    to->list = draw_alloc((size_t)groups + 1, sizeof *to->list);
    for (int g = 0; g < groups; g++) {
        compare_pairs(&to->list[to->count++], &list[g]);
        free(list[g].run_a);
        free(list[g].run_b);
        free(list[g].row_a);
        free(list[g].row_b);
    }
    free(list);
    if (groups) return LOCI_OK;
    lab_comparison_free(to);
    return loci_fail(e, LOCI_BAD_ARG,
                     "'%.80s' and '%.80s' share no task with the same size, length, steps, "
                     "settings and seed",
                     a, b);
}

void lab_comparison_free(struct lab_comparison *c)
{
    free(c->list);
    *c = (struct lab_comparison){ .count = 0 };
}
