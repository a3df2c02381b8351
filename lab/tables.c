/* SPDX-License-Identifier: MIT */
/* tables.c -- see tables.h. */
#include "lab/tables.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "contract/encoding.h"
#include "lab/arm.h"
#include "lab/config.h"
#include "draw/text.h"

/* ---- Arms ------------------------------------------------------------------------------------ */

struct arm_name arm_name(const char *arm)
{
    enum { MOST = 8 };
    struct arm_name a = { .names = "" };
    const char *part[MOST];
    int length[MOST], parts = 0;
    const char *at = strrchr(arm, '@');
    if (at) snprintf(a.how, sizeof a.how, "%s", at + 1);
    for (const char *p = arm; parts < MOST;) {
        const int n = (int)strcspn(p, ":+@");
        int k = parts++;
        for (; k > 0; k--) { /* sorted: the order of parts is arbitrary */
            const int least = n < length[k - 1] ? n : length[k - 1];
            const int order = strncmp(part[k - 1], p, (size_t)least);
            if (order < 0 || (order == 0 && length[k - 1] <= n)) break;
            part[k] = part[k - 1];
            length[k] = length[k - 1];
        }
        part[k] = p;
        length[k] = n;
        p += strcspn(p, "+@");
        if (*p++ != '+') break;
    }
    for (int i = 0; i < parts; i++) {
        const size_t n = strlen(a.names);
        snprintf(a.names + n, sizeof a.names - n, "%s%.*s", i ? "+" : "", length[i], part[i]);
    }
    return a;
}

static const char *const families[] = { "no position", "absolute",         "bias by distance",
                                        "rotation",    "relative vectors", "by content",
                                        "other" };
/* The place of each in `families`. */
static const int shelves[] = {
    [FAMILY_NONE] = 0,    [FAMILY_ABSOLUTE] = 1, [FAMILY_DISTANCE] = 2, [FAMILY_ROTATION] = 3,
    [FAMILY_VECTORS] = 4, [FAMILY_CONTENT] = 5,  [FAMILY_OTHER] = 6
};

const char *family_name(int family) { return families[family]; }

/* By the first of its parts. */
int arm_family(const char *arm)
{
    const size_t n = strcspn(arm, ":+@");
    const struct loci_pe *pe = lab_arm_pe(arm, n);
    return shelves[pe ? pe->family : FAMILY_OTHER];
}

/* ---- Columns --------------------------------------------------------------------------------- */

const char *metric_name(enum lab_metric m)
{
    return m == LAB_LOSS ? "loss" : m == LAB_EXACT ? "exact" : "accuracy";
}

double shown_value(const struct lab_measured *c)
{
    return c->metric == LAB_LOSS ? c->loss : c->metric == LAB_EXACT ? c->exact : c->accuracy;
}

double goodness(const struct lab_measured *head, double value)
{
    return head->metric == LAB_LOSS ? -value : value;
}

static bool is_word(int c) { return isalnum(c) || c == '.' || c == '='; }

/* The next word from *s on.  False: none. */
static bool next_word(const char **s, const char **word, size_t *n)
{
    while (**s && !is_word((unsigned char)**s)) ++*s;
    *word = *s;
    while (is_word((unsigned char)**s)) ++*s;
    return (*n = (size_t)(*s - *word)) > 0;
}

static bool has_words(const char *name, const char *words)
{
    const char *word, *other;
    size_t n, m;
    while (next_word(&words, &word, &n)) {
        bool found = false;
        for (const char *s = name; !found && next_word(&s, &other, &m);)
            found = n == m && !strncmp(word, other, n);
        if (!found) return false;
    }
    return true;
}

int find_column(const struct table *t, const char *words)
{
    int best = -1;
    if (!strcmp(words, "far")) return t->far;
    for (int i = 0; i < t->columns; i++) {
        const char *name = t->head[i]->name;
        if (has_words(name, words) && (best < 0 || strlen(name) < strlen(t->head[best]->name)))
            best = i;
    }
    return best;
}

static const struct lab_measured *column_of(const struct lab_row *r, const struct lab_measured *c)
{
    for (int i = 0; i < r->columns; i++)
        if (!strcmp(r->column[i].name, c->name) && r->column[i].metric == c->metric)
            return &r->column[i];
    return NULL;
}

double loss_between(const struct lab_row *r, int from, int to)
{
    double sum = 0, count = 0;
    for (int i = 0; i < r->spans; i++) {
        const struct lab_span *s = &r->span[i];
        if (s->from < from || s->to > to || s->count == 0) continue;
        sum += s->loss * (double)s->count;
        count += (double)s->count;
    }
    return count > 0 ? sum / count : NAN;
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/* Of the "key=value" words, two are the arm's own: the learning rate may have been chosen per arm,
 * and so may the width of the MLP that matches parameter counts.  The others decide which table a
 * run belongs to. */
enum { SETTINGS = sizeof((struct lab_result *)0)->settings };
struct settings {
    char own[SETTINGS], rest[SETTINGS];
};
static struct settings split_settings(const char *s)
{
    struct settings to = { "", "" };
    for (size_t n; *s; s += n, s += *s == ' ') {
        char *part = !strncmp(s, "rate=", 5) || !strncmp(s, "ffn=", 4) ? to.own : to.rest;
        n = strcspn(s, " ");
        const size_t at = strlen(part);
        snprintf(part + at, SETTINGS - at, "%s%.*s", at ? " " : "", (int)n, s);
    }
    return to;
}

static bool same_rest(const char *a, const char *b)
{
    const struct settings x = split_settings(a), y = split_settings(b);
    return !strcmp(x.rest, y.rest);
}

static bool same_own(const char *a, const char *b)
{
    const struct settings x = split_settings(a), y = split_settings(b);
    return !strcmp(x.own, y.own);
}

static bool belongs(const struct table *t, const struct lab_result *r)
{
    return !strcmp(t->task, r->task) && !strcmp(t->size, r->size) && t->length == r->length
        && t->steps == r->steps && same_rest(t->settings, r->settings);
}

static void add_column(struct table *t, const struct lab_measured *c)
{
    for (int i = 0; i < t->columns; i++)
        if (!strcmp(t->head[i]->name, c->name)) return;
    if (t->columns < LAB_COLUMNS) t->head[t->columns++] = c;
}

static struct table_row *row_for(struct table *t, const struct lab_result *r, const char *variant,
                                 int most)
{
    for (int i = 0; i < t->rows; i++) {
        struct table_row *row = &t->row[i];
        if (!strcmp(row->arm, r->arm) && !strcmp(row->variant, variant)
            && same_own(row->run[0]->settings, r->settings))
            return row;
    }
    struct table_row *row = &t->row[t->rows++];
    *row = (struct table_row){ .arm = r->arm, .variant = variant, .family = arm_family(r->arm) };
    row->run = draw_alloc((size_t)most, sizeof *row->run);
    row->row = draw_alloc((size_t)most, sizeof *row->row);
    return row;
}

/* Runs are ordered by arm and seed, so the seeds of a row ascend. */
static void add_run(struct table *t, const struct lab_result *r, int most)
{
    for (int i = 0; i < r->rows; i++) {
        struct table_row *row = row_for(t, r, r->row[i].name, most);
        if (row->seeds && row->run[row->seeds - 1]->seed == r->seed) {
            t->twice += i == 0;
            continue;
        }
        row->run[row->seeds] = r;
        row->row[row->seeds++] = &r->row[i];
        row->learned += r->learned;
        for (int k = 0; k < r->row[i].columns; k++) add_column(t, &r->row[i].column[k]);
    }
}

static int by_family(const void *a, const void *b)
{
    const struct table_row *x = a, *y = b;
    if (x->family != y->family) return x->family < y->family ? -1 : 1;
    const struct arm_name m = arm_name(x->arm), n = arm_name(y->arm);
    int order = strcmp(m.names, n.names);
    if (!order) order = strcmp(m.how, n.how);
    if (!order) order = strcmp(x->arm, y->arm);
    if (!order) order = strcmp(x->run[0]->settings, y->run[0]->settings);
    return order ? order : strcmp(x->variant, y->variant);
}

static void label_rows(struct table *t)
{
    bool differ = false;
    for (int i = 1; i < t->rows; i++)
        differ |= !same_own(t->row[0].run[0]->settings, t->row[i].run[0]->settings);
    for (int i = 0; i < t->rows; i++) {
        struct table_row *r = &t->row[i];
        const struct settings s = split_settings(r->run[0]->settings);
        const bool layer = !r->variant[0] && lab_is_layer(r->arm);
        snprintf(r->label, sizeof r->label, "%s%s%.60s%s", r->variant[0] ? r->variant : r->arm,
                 differ && s.own[0] ? " " : "", differ ? s.own : "", layer ? " (layer)" : "");
    }
}

const struct table_row *find_row(const struct table *t, const char *names, const char *how,
                                 const char *variant)
{
    const struct table_row *best = NULL;
    for (int i = 0; i < t->rows; i++) {
        const struct table_row *r = &t->row[i];
        const struct arm_name a = arm_name(r->arm);
        if (strcmp(a.names, names) || strcmp(a.how, how)) continue;
        /* among several with other options, the one with the shortest text */
        if (!strcmp(r->variant, variant) && (!best || strlen(r->arm) < strlen(best->arm))) best = r;
    }
    return best;
}

/* ---- Cells ----------------------------------------------------------------------------------- */

int seed_index(const struct table_row *r, int seed)
{
    for (int i = 0; i < r->seeds; i++)
        if (r->run[i]->seed == seed) return i;
    return -1;
}

/* Adds the results of a row by test sequence, averaged over its seeds.  Returns whether any were
 * recorded. */
static bool add_sequences(const struct table_row *r, const struct lab_measured *head, double sign,
                          double *sum)
{
    int seeds = 0;
    for (int s = 0; s < r->seeds; s++) {
        const struct lab_measured *c = column_of(r->row[s], head);
        seeds += c && c->each && c->count == head->count;
    }
    for (int s = 0; s < r->seeds; s++) {
        const struct lab_measured *c = column_of(r->row[s], head);
        if (!c || !c->each || c->count != head->count) continue;
        for (int i = 0; i < c->count; i++) sum[i] += sign * c->each[i] / seeds;
    }
    return seeds > 0;
}

/* All seeds see the same sequences, so these are counted once, by their means over the seeds.  If a
 * row has the same share in every sequence, that says less: see share_error(). */
double sampling_error(const struct table_row *a, const struct table_row *b,
                      const struct lab_measured *head)
{
    double *mean = draw_alloc((size_t)head->count, sizeof *mean), error = NAN;
    if (add_sequences(a, head, 1, mean) && (!b || add_sequences(b, head, -1, mean)))
        error = mean_error(mean, head->count);
    if (error == 0 && !b && head->metric != LAB_LOSS) error = share_error(mean[0], head->count);
    free(mean);
    return error;
}

static void fill_cell(struct table_row *r, struct cell *c, const struct lab_measured *head)
{
    double *there = draw_alloc((size_t)r->seeds, sizeof *there);
    c->value = draw_alloc((size_t)r->seeds, sizeof *c->value);
    for (int s = 0; s < r->seeds; s++) {
        const struct lab_measured *m = column_of(r->row[s], head);
        c->value[s] = m ? shown_value(m) : NAN;
        if (isnan(c->value[s])) continue;
        there[c->n++] = c->value[s];
        c->good += head->metric != LAB_LOSS && c->value[s] >= GOOD;
    }
    c->of = summary_of(there, c->n);
    c->mean = interval_of(there, c->n, 0);
    wilson(c->good, c->n, &c->good_low, &c->good_high);
    c->sampling = sampling_error(r, NULL, head);
    free(there);
}

/* Columns that were not measured do not count. */
static double reach_of(const struct table *t, const struct table_row *r, int seed)
{
    double reach = 0;
    for (int k = 0; k < t->columns; k++) {
        bool good = r->cell[k].value[seed] >= GOOD;
        for (int j = 0; j < t->columns && good; j++)
            good = t->head[j]->length > t->head[k]->length || !(r->cell[j].value[seed] < GOOD);
        if (good) reach = fmax(reach, t->head[k]->length);
    }
    return reach;
}

static void fill_reach(struct table *t)
{
    for (int i = 0; i < t->rows; i++) {
        struct table_row *r = &t->row[i];
        if (r->variant[0] || t->head[t->far]->metric == LAB_LOSS) continue;
        r->reach = draw_alloc((size_t)r->seeds, sizeof *r->reach);
        for (int s = 0; s < r->seeds; s++) r->reach[s] = reach_of(t, r, s);
        r->reach_of = summary_of(r->reach, r->seeds);
    }
}

double steps_to_criterion(const struct lab_result *r)
{
    for (int i = 0; i < r->logs; i++)
        if (r->log[i].trained >= CRITERION) return r->log[i].step;
    return NAN;
}

static void fill_criterion(struct table *t)
{
    for (int i = 0; i < t->rows; i++) {
        struct table_row *r = &t->row[i];
        double *there;
        int n = 0;
        if (r->variant[0] || t->head[t->far]->metric == LAB_LOSS) continue;
        r->criterion = draw_alloc((size_t)r->seeds, sizeof *r->criterion);
        there = draw_alloc((size_t)r->seeds, sizeof *there);
        for (int s = 0; s < r->seeds; s++) {
            r->criterion[s] = steps_to_criterion(r->run[s]);
            if (!isnan(r->criterion[s])) there[n++] = r->criterion[s];
        }
        r->criterion_of = summary_of(there, n);
        free(there);
    }
}

/* ---- Learning rates -------------------------------------------------------------------------- */

/* The setting, or that of the size. */
static double rate_of(const struct table *t, const char *own)
{
    struct lab_config c;
    const char *rate = strstr(own, "rate=");
    if (rate) return atof(rate + 5);
    return lab_config_size(&c, t->size, NULL) ? NAN : c.rate;
}

static bool is_tried_twice(const struct table *t, const struct table_row *r)
{
    int rows = 0;
    for (int i = 0; i < t->rows; i++)
        rows += !t->row[i].variant[0] && !strcmp(t->row[i].arm, r->arm);
    return rows > 1;
}

static int by_rate(const void *a, const void *b)
{
    const struct tried *x = a, *y = b;
    const int order = strcmp(x->arm, y->arm);
    if (order) return order;
    if (x->rate != y->rate) return x->rate < y->rate ? -1 : 1;
    return strcmp(x->own, y->own);
}

static bool has_seed(const struct tried *x, int seed)
{
    for (int s = 0; s < x->seeds; s++)
        if (x->run[s]->seed == seed) return true;
    return false;
}

/* The mean over the seeds that every rate of the arm has, list[0 .. n - 1]; if there is none, over
 * its own.  Further seeds have the chosen rate alone. */
static double mean_validation(const struct tried *x, const struct tried *list, int n)
{
    double sum = 0, all = 0;
    int seeds = 0;
    for (int s = 0; s < x->seeds; s++) {
        bool every = true;
        for (int i = 0; i < n; i++) every &= has_seed(&list[i], x->run[s]->seed);
        all += x->run[s]->validation;
        sum += every ? x->run[s]->validation : 0;
        seeds += every;
    }
    return seeds ? sum / seeds : all / x->seeds;
}

/* Among the tried ones of an arm, list[0 .. n - 1]. */
static void choose(struct tried *list, int n)
{
    int best = 0;
    for (int i = 0; i < n; i++) list[i].validation = mean_validation(&list[i], list, n);
    for (int i = 1; i < n; i++) /* not <: NaN is never better, and all else is better than NaN */
        if (list[i].validation < list[best].validation || isnan(list[best].validation)) best = i;
    list[best].chosen = true;
    list[best].edge = list[best].rate == list[0].rate || list[best].rate == list[n - 1].rate;
}

static bool drops(const struct table *t, const struct table_row *r)
{
    const struct settings s = split_settings(r->run[0]->settings);
    for (int i = 0; i < t->tries; i++)
        if (!strcmp(t->tried[i].arm, r->arm) && !strcmp(t->tried[i].own, s.own))
            return !t->tried[i].chosen;
    return false;
}

/* Validation chooses one of the rates of an arm.  Rows with the others leave the table, so that no
 * mean, variance, rank or picture knows of them. */
static void choose_rows(struct table *t)
{
    t->tried = draw_alloc((size_t)t->rows + 1, sizeof *t->tried);
    for (int i = 0; i < t->rows; i++) {
        const struct table_row *r = &t->row[i];
        if (r->variant[0] || !is_tried_twice(t, r)) continue;
        struct tried *x = &t->tried[t->tries++];
        const struct settings s = split_settings(r->run[0]->settings);
        *x = (struct tried){ .arm = r->arm, .seeds = r->seeds };
        snprintf(x->own, sizeof x->own, "%.63s", s.own);
        x->rate = rate_of(t, s.own);
        x->run = draw_alloc((size_t)r->seeds, sizeof *x->run);
        memcpy(x->run, r->run, (size_t)r->seeds * sizeof *x->run);
    }
    if (t->tries) qsort(t->tried, (size_t)t->tries, sizeof *t->tried, by_rate);
    for (int i = 0, n; i < t->tries; i += n) {
        for (n = 1; i + n < t->tries && !strcmp(t->tried[i].arm, t->tried[i + n].arm);) n++;
        choose(t->tried + i, n);
    }
    int rows = 0;
    for (int i = 0; i < t->rows; i++) {
        struct table_row *r = &t->row[i];
        if (!drops(t, r)) {
            t->row[rows++] = *r;
            continue;
        }
        free(r->run);
        free(r->row);
    }
    t->rows = rows;
}

bool is_chosen(const struct tables *all, const struct lab_result *r)
{
    for (int i = 0; i < all->count; i++)
        for (int k = 0; k < all->list[i].tries; k++) {
            const struct tried *x = &all->list[i].tried[k];
            for (int s = 0; s < x->seeds; s++)
                if (x->run[s] == r) return x->chosen;
        }
    return true;
}

/* ---- Ranks, and differences to a reference --------------------------------------------------- */

/* Mean goodness of the columns longer than trained, in one run. */
static double beyond(const struct table *t, const struct table_row *r, int seed)
{
    double sum = 0;
    int n = 0;
    for (int k = 0; k < t->columns; k++) {
        if (t->head[k]->trained || t->head[k]->times <= 1) continue;
        sum += goodness(t->head[k], r->cell[k].value[seed]);
        n++;
    }
    return n ? sum / n : NAN;
}

/* Ranks all trained arms by one number each.  NaN has no rank. */
static void rank_rows(const struct table *t, const double *x, double *rank)
{
    double *of_arms = draw_alloc((size_t)t->rows, sizeof *of_arms);
    for (int i = 0; i < t->rows; i++) of_arms[i] = t->row[i].variant[0] ? NAN : x[i];
    ranks_of(of_arms, t->rows, true, rank);
    free(of_arms);
}

static void fill_ranks(struct table *t)
{
    double *x = draw_alloc((size_t)t->rows, sizeof *x),
           *rank = draw_alloc((size_t)t->rows, sizeof *rank);
    int most = 0;
    for (int i = 0; i < t->rows; i++) {
        struct table_row *r = &t->row[i];
        double sum = 0;
        int n = 0;
        for (int s = 0; s < r->seeds; s++) {
            const double y = beyond(t, r, s);
            if (!isnan(y)) {
                sum += y;
                n++;
            }
        }
        x[i] = r->beyond = n ? sum / n : NAN;
        r->rank_low = r->rank_high = NAN;
        if (r->seeds > most) most = r->seeds;
    }
    rank_rows(t, x, rank);
    for (int i = 0; i < t->rows; i++) t->row[i].rank = rank[i];
    for (int s = 0; s < most; s++) { /* by the first, second, third ... seed */
        for (int i = 0; i < t->rows; i++)
            x[i] = s < t->row[i].seeds ? beyond(t, &t->row[i], s) : NAN;
        rank_rows(t, x, rank);
        for (int i = 0; i < t->rows; i++) {
            t->row[i].rank_low = fmin(t->row[i].rank_low, rank[i]);
            t->row[i].rank_high = fmax(t->row[i].rank_high, rank[i]);
        }
    }
    free(x);
    free(rank);
}

static void fill_versus(struct table *t, int which, const struct table_row *ref)
{
    double *p = draw_alloc((size_t)t->rows, sizeof *p);
    for (int i = 0; i < t->rows; i++) {
        struct table_row *r = &t->row[i];
        struct versus *v = &r->versus[which];
        *v = (struct versus){ ref ? ref->arm : NULL, { 0, NAN, NAN, NAN, NAN, 0 }, NAN };
        double *d = draw_alloc((size_t)r->seeds, sizeof *d);
        int n = 0;
        for (int s = 0; s < r->seeds && ref && r != ref; s++) {
            const int at = seed_index(ref, r->run[s]->seed);
            const double by = at < 0 ? NAN
                                     : goodness(t->head[t->far], r->cell[t->far].value[s])
                                           - goodness(t->head[t->far], ref->cell[t->far].value[at]);
            if (!isnan(by)) d[n++] = by;
        }
        if (n) v->by = interval_of(d, n, sampling_error(r, ref, t->head[t->far]));
        p[i] = r->variant[0] ? NAN : v->by.p; /* variants are no further comparisons */
        free(d);
    }
    holm(p, t->rows);
    for (int i = 0; i < t->rows; i++) t->row[i].versus[which].holm = p[i];
    free(p);
}

static void find_far(struct table *t)
{
    for (int k = 1; k < t->columns; k++) {
        const struct lab_measured *c = t->head[k], *far = t->head[t->far];
        if ((!c->trained && c->times > far->times) || (far->trained && !c->trained)) t->far = k;
    }
}

static const char *const references[REFERENCES] = {
#define REFERENCE(text) text,
#include "lab/list.h"
};
const char *reference_name(int i) { return references[i]; }

static void fill(struct table *t)
{
    qsort(t->row, (size_t)t->rows, sizeof *t->row, by_family);
    choose_rows(t);
    label_rows(t);
    find_far(t);
    for (int i = 0; i < t->rows; i++)
        t->row[i].cell = draw_alloc((size_t)t->columns, sizeof *t->row[i].cell);
    for (int i = 0; i < t->rows * t->columns; i++)
        fill_cell(&t->row[i / t->columns], &t->row[i / t->columns].cell[i % t->columns],
                  t->head[i % t->columns]);
    fill_reach(t);
    fill_criterion(t);
    fill_ranks(t);
    for (int i = 0; i < REFERENCES; i++) fill_versus(t, i, find_row(t, references[i], "", ""));
}

/* ---- Tables ---------------------------------------------------------------------------------- */

/* In the order of the lab's list of tasks.  Others come after them. */
static int task_order(const char *task)
{
    const struct lab_task *const *list;
    const int n = lab_tasks(&list);
    int i = 0;
    while (i < n && strcmp(task, list[i]->name)) i++;
    return i;
}

static int by_task(const void *a, const void *b)
{
    const struct table *x = a, *y = b;
    int order = task_order(x->task) - task_order(y->task);
    if (!order) order = strcmp(x->task, y->task);
    if (!order) order = strcmp(x->size, y->size);
    if (!order) order = (x->length > y->length) - (x->length < y->length);
    if (!order) order = (x->steps > y->steps) - (x->steps < y->steps);
    return order ? order : strcmp(x->settings, y->settings);
}

struct tables tables_of(const struct lab_results *all)
{
    struct tables to = { 0, draw_alloc((size_t)all->count, sizeof *to.list) };
    for (int i = 0; i < all->count; i++) {
        const struct lab_result *r = &all->list[i];
        int k = 0;
        while (k < to.count && !belongs(&to.list[k], r)) k++;
        struct table *t = &to.list[k];
        if (k == to.count) {
            int rows = 0;
            for (int j = i; j < all->count; j++) rows += all->list[j].rows;
            *t = (struct table){ .task = r->task,
                                 .size = r->size,
                                 .settings = r->settings,
                                 .length = r->length,
                                 .steps = r->steps };
            t->row = draw_alloc((size_t)rows, sizeof *t->row);
            to.count++;
        }
        add_run(t, r, all->count);
    }
    for (int i = 0; i < to.count; i++) fill(&to.list[i]);
    if (to.count) qsort(to.list, (size_t)to.count, sizeof *to.list, by_task);
    return to;
}

void tables_free(struct tables *all)
{
    for (int i = 0; i < all->count; i++) {
        struct table *t = &all->list[i];
        for (int k = 0; k < t->rows; k++) {
            struct table_row *r = &t->row[k];
            for (int c = 0; c < t->columns; c++) free(r->cell[c].value);
            free(r->cell);
            free(r->reach);
            free(r->criterion);
            free(r->run);
            free(r->row);
        }
        for (int k = 0; k < t->tries; k++) free(t->tried[k].run);
        free(t->tried);
        free(t->row);
    }
    free(all->list);
    *all = (struct tables){ 0, NULL };
}
