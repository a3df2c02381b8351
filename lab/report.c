/* SPDX-License-Identifier: MIT */
/* report.c -- creates the report's sections from the runs. report_write.c writes them. */
#include "lab/report.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/error.h"

/* Distinguishable lines per picture. */
enum { LINES = 8 };

/* ---- Sections -------------------------------------------------------------------------------- */

static struct report_section *add_section(struct report *r, const char *title)
{
    struct report_section *s = &r->section[r->sections++];
    snprintf(s->title, sizeof s->title, "%s", title);
    return s;
}

static struct report_block *add_block(struct report_section *s)
{
    if (s->blocks == s->capacity) {
        struct report_block *more =
            draw_alloc((size_t)(s->capacity = 2 * s->capacity + 8), sizeof *more);
        if (s->blocks) memcpy(more, s->block, (size_t)s->blocks * sizeof *more);
        free(s->block);
        s->block = more;
    }
    return &s->block[s->blocks++];
}

static void add_words(struct report_section *s, bool item, const char *format, ...)
#if defined __GNUC__
    __attribute__((format(printf, 3, 4)))
#endif
    ;
static void add_words(struct report_section *s, bool item, const char *format, ...)
{
    va_list list, again;
    va_start(list, format);
    va_copy(again, list);
    const int n = vsnprintf(NULL, 0, format, list);
    va_end(list);
    struct report_block *b = add_block(s);
    b->words = draw_alloc((size_t)n + 1, 1);
    b->item = item;
    vsnprintf(b->words, (size_t)n + 1, format, again);
    va_end(again);
}

static struct report_block *add_table(struct report_section *s, const char *what, const char *title,
                                      int rows, int cols)
{
    struct report_block *b = add_block(s);
    figure_table(&b->figure, rows, cols);
    b->figure.what = what;
    b->heads = 1;
    b->mark = draw_alloc((size_t)rows, 1);
    snprintf(b->figure.title, sizeof b->figure.title, "%s", title);
    return b;
}

/* Adds a block with a figure of lines.  The caller fills in the numbers. */
static struct figure *add_lines(struct report_section *s, const char *what, int n, int lines)
{
    struct figure *f = &add_block(s)->figure;
    figure_lines(f, n, lines);
    f->what = what;
    for (int i = 0; i < lines; i++)
        for (int k = 0; k < n; k++) f->line[i].y[k] = NAN;
    return f;
}

/* ---- Runs ------------------------------------------------------------------------------------ */

static const char *const rules[] = {
    "One model and one code path for all arms: the encoding is the only difference, and at its "
    "neutral point every arm has the bits of nope at step 0. Rows marked (layer) differ in more: "
    "nope-pro and rope-pro are the controls of fox-pro, rope that of tape.",
    "Tensors that arms share start from the same numbers, and the data come in the same order: "
    "every number is keyed by seed, name and index, so that no arm changes another's.",
    "Steps and tokens are equal. Time, memory and extra parameters are columns, they are not "
    "equalised.",
    "The learning rate is one for all, or validation has chosen one for each arm, on sequences "
    "of the trained length that no test has. Runs with other rates take part in nothing else. The "
    "ramp of yarn's variant was chosen by results beyond L; nothing else was.",
    "Means are over all seeds, whether they learned the task or not; the column \"learned\" says "
    "how many did. An arm that learned it with no seed speaks neither for nor against its "
    "encoding.",
};

static bool many_seeds(const struct table *t)
{
    for (int i = 0; i < t->rows; i++)
        if (t->row[i].seeds > 1) return true;
    return false;
}

static bool any_foreign(const struct lab_results *all)
{
    for (int i = 0; i < all->count; i++)
        if (lab_result_foreign(&all->list[i])) return true;
    return false;
}

static void what_was_run(struct report *r)
{
    struct report_section *s = add_section(r, "What was run");
    struct text tasks = { 0 };
    int arms = 0, seeds = 0;
    for (int i = 0; i < r->tables.count; i++) {
        const struct table *t = &r->tables.list[i];
        int here = 0;
        for (int k = 0; k < t->rows; k++) {
            here += !t->row[k].variant[0];
            if (t->row[k].seeds > seeds) seeds = t->row[k].seeds;
        }
        if (here > arms) arms = here;
        text_add(&tasks, "%s%s (size %s, L = %d, %d steps, %d arm%s)", i ? ", " : "", t->task,
                 t->size, t->length, t->steps, here, here == 1 ? "" : "s");
    }
    add_words(s, false, "%d run%s of up to %d arms with up to %d seed%s: %s.", r->all->count,
              r->all->count == 1 ? "" : "s", arms, seeds, seeds == 1 ? "" : "s",
              tasks.s ? tasks.s : "nothing yet");
    text_free(&tasks);
    for (int i = 0; i < COUNT(rules); i++) add_words(s, true, "%s", rules[i]);
    if (any_foreign(r->all))
        add_words(s, true,
                  "Arms that end in @torch: torch, bits not repeatable. loci.lab.train() "
                  "has trained them with the same model, start and sequences.");
    add_words(s, false,
              "Behind +- is half of an interval of 95 %% of the mean over seeds, by Student's t "
              "with the arm's own variance; below it stand the least and the most of the seeds. "
              "Differences are paired by seed, and their intervals also count the choice of the "
              "test sequences. One seed has no interval.");
}

/* ---- Claims ---------------------------------------------------------------------------------- */

static const unsigned char mark_of_verdict[VERDICTS] = { [CLAIM_REPRODUCED] = MARK_GOOD,
                                                         [CLAIM_NOT_REPRODUCED] = MARK_BAD,
                                                         [CLAIM_MIXED] = MARK_BAD,
                                                         [CLAIM_UNDECIDED] = MARK_OFF,
                                                         [CLAIM_NOT_RUN] = MARK_OFF };
static const unsigned char mark_of_part[PART_STATES] = { [PART_HOLDS] = MARK_GOOD,
                                                         [PART_FAILS] = MARK_BAD,
                                                         [PART_UNCLEAR] = MARK_OFF,
                                                         [PART_ONE_SEED] = MARK_OFF,
                                                         [PART_NOT_RUN] = MARK_OFF };

/* A row for each claim, followed by one for each of its parts. */
static void verdicts(struct report *r)
{
    static const char *const heads[] = { "id", "verdict", "claim", "setting", "source" };
    struct report_section *s = add_section(r, "Published claims");
    int rows = 1;
    for (int i = 0; i < r->claims; i++)
        rows += 1 + (r->claim[i].verdict == CLAIM_NOT_RUN ? 0 : r->claim[i].findings);
    struct report_block *b = add_table(s, "claims", "Verdicts", rows, COUNT(heads));
    b->records = true;
    for (int i = 0; i < COUNT(heads); i++) figure_cell(&b->figure, 0, i, "%s", heads[i]);
    for (int i = 0, row = 1; i < r->claims; i++) {
        const struct judged *j = &r->claim[i];
        const char *const cells[] = { j->claim->id, verdict_name(j->verdict), j->claim->sentence,
                                      j->sentence, j->claim->source };
        for (int k = 0; k < COUNT(cells); k++) figure_cell(&b->figure, row, k, "%s", cells[k]);
        b->mark[row++] = mark_of_verdict[j->verdict];
        for (int k = 0; k < j->findings && j->verdict != CLAIM_NOT_RUN; k++) {
            const struct finding *f = &j->finding[k];
            figure_cell(&b->figure, row, 0, "%s.%d", j->claim->id, k + 1);
            figure_cell(&b->figure, row, 1, "%s", part_state_name(f->state));
            figure_cell(&b->figure, row, 2, "%s: %s", f->task, f->words);
            b->mark[row++] = (unsigned char)(MARK_INDENT | mark_of_part[f->state]);
        }
    }
    snprintf(
        b->figure.about, sizeof b->figure.about,
        "A part holds where its interval of 95 %%, paired by seed, lies on its side, and fails "
        "where it lies on the other side even after Holm's correction over the parts of its "
        "claim. A claim is reproduced here if all parts hold, not reproduced here if parts "
        "fail and none holds, mixed if some hold and some fail, and undecided otherwise. "
        "Nothing corrects for the number of claims. One seed is no evidence.");
}

/* ---- A task's table -------------------------------------------------------------------------- */

static bool is_loss(const struct lab_measured *head) { return head->metric == LAB_LOSS; }

/* Nats with three digits, shares in percent with one. */
static void value_text(char to[32], const struct lab_measured *head, double x, bool sign)
{
    if (isnan(x)) snprintf(to, 32, "-");
    else if (is_loss(head)) snprintf(to, 32, sign ? "%+.3f" : "%.3f", x);
    else snprintf(to, 32, sign ? "%+.1f" : "%.1f", 100 * x);
}

static void value_cell(struct figure *f, int row, int col, const struct table *t,
                       const struct cell *c, int k)
{
    char mean[32], half[32], least[32], most[32];
    value_text(mean, t->head[k], c->of.mean, false);
    if (c->n < 2) {
        const bool said = c->n == 1 && many_seeds(t);
        figure_cell(f, row, col, said ? "%s\tone seed" : "%s", mean);
        return;
    }
    value_text(half, t->head[k], c->mean.high - c->mean.mean, false);
    value_text(least, t->head[k], c->of.least, false);
    value_text(most, t->head[k], c->of.most, false);
    figure_cell(f, row, col, "%s +-%s\t%s to %s", mean, half, least, most);
}

/* "=": no difference larger than seeds make. */
static void versus_cell(struct figure *f, int row, int col, const struct table *t,
                        const struct versus *v)
{
    const struct lab_measured *head = t->head[t->far];
    char by[32], low[32], high[32];
    value_text(by, head, v->by.mean, true);
    value_text(low, head, v->by.low, true);
    value_text(high, head, v->by.high, true);
    if (v->by.n == 0) figure_cell(f, row, col, "-");
    else if (v->by.n == 1) figure_cell(f, row, col, "%s\tone seed", by);
    else figure_cell(f, row, col, "%s\t%s to %s", v->holm >= 0.05 ? "=" : by, low, high);
}

static double mean_over(const struct table_row *r, double (*of)(const struct lab_result *))
{
    double sum = 0;
    for (int s = 0; s < r->seeds; s++) sum += of(r->run[s]);
    return sum / r->seeds;
}
static double step_of(const struct lab_result *r) { return 1000 * r->seconds_per_step; }
static double peak_of(const struct lab_result *r) { return r->peak_bytes / 1e6; }
static double state_of(const struct lab_result *r) { return r->cache_bytes_per_token; }

static void cost_cells(struct figure *f, int row, int col, const struct table_row *r)
{
    static double (*const of[])(const struct lab_result *) = { step_of, peak_of, state_of };
    static const char *const form[] = { "%.3g", "%.4g", "%.6g" };
    if (r->variant[0]) { /* the same model, without training of its own */
        for (int i = 0; i < 4; i++) figure_cell(f, row, col + i, "-");
        return;
    }
    figure_cell(f, row, col, "%lld", (long long)r->run[0]->params_encoding);
    for (int i = 0; i < 3; i++) {
        const double x = mean_over(r, of[i]);
        char text[32];
        snprintf(text, sizeof text, form[i], x);
        figure_cell(f, row, col + 1 + i, "%s", isnan(x) ? "-" : text);
    }
}

static void learned_cell(struct figure *f, int row, int col, const struct table_row *r)
{
    if (r->learned == 0) figure_cell(f, row, col, "not learned\t0 of %d", r->seeds);
    else figure_cell(f, row, col, "%d of %d", r->learned, r->seeds);
}

static unsigned char mark_of(const struct table_row *r)
{
    return (unsigned char)((r->variant[0] ? MARK_INDENT : 0) | (r->learned ? 0 : MARK_OFF));
}

static void metric_words(char *to, size_t capacity, const struct table *t)
{
    const char *const words[] = { [LAB_LOSS] = "Loss in nats per token: less is better.",
                                  [LAB_ACCURACY] = "Scored tokens that are right, in %.",
                                  [LAB_EXACT] = "Sequences that are right as a whole, in %." };
    double most = 0;
    for (int i = 0; i < t->rows; i++)
        if (!isnan(t->row[i].cell[t->far].sampling))
            most = fmax(most, t->row[i].cell[t->far].sampling);
    char error[32];
    value_text(error, t->head[t->far], most, false);
    snprintf(to, capacity,
             "%s %sThe choice of test sequences alone gives a standard error of up to "
             "%s at %s; all arms see the same ones, so that it cancels in differences. \"Better "
             "than\" is the difference by seed at %s, \"=\" where it is none after Holm's "
             "correction.",
             words[t->head[t->far]->metric], many_seeds(t) ? "" : "One seed: no intervals. ", error,
             t->head[t->far]->name, t->head[t->far]->name);
    const size_t n = strlen(to);
    if (!is_loss(t->head[t->far]))
        snprintf(
            to + n, capacity - n,
            " \"%.0f %% up to\" is the longest length, in tokens, such that all columns up to "
            "it have that share; 0 where the shortest has not.%s \"Steps to %.0f %%\" is when a "
            "small test as in training, made %d times, first had that share.",
            100 * GOOD, many_seeds(t) ? " It is the median of the seeds." : "", 100 * CRITERION,
            LAB_GLANCES);
}

/* The median over seeds, in tokens. */
static void reach_cell(struct figure *f, int row, int col, const struct table_row *r)
{
    const struct summary *s = &r->reach_of;
    if (!r->reach) figure_cell(f, row, col, "-");
    else if (r->seeds < 2 || s->least == s->most) figure_cell(f, row, col, "%.0f", s->median);
    else figure_cell(f, row, col, "%.0f\t%.0f to %.0f", s->median, s->least, s->most);
}

/* The median of the seeds that came there, and how many those are. */
static void criterion_cell(struct figure *f, int row, int col, const struct table_row *r)
{
    const struct summary *s = &r->criterion_of;
    if (!r->criterion) figure_cell(f, row, col, "-");
    else if (!s->n) figure_cell(f, row, col, "never");
    else if (s->n == r->seeds) figure_cell(f, row, col, "%.0f", s->median);
    else figure_cell(f, row, col, "%.0f\t%d of %d", s->median, s->n, r->seeds);
}

static void main_table(struct report_section *s, const struct table *t)
{
    static const char *const costs[] = { "extra parameters", "ms per step", "peak MB",
                                         "state, bytes per token" };
    const bool loss = is_loss(t->head[t->far]);
    const int from = 2, reach = from + t->columns, versus = reach + (loss ? 0 : 2),
              cost = versus + REFERENCES;
    struct report_block *b = add_table(s, "table", t->task, t->rows + 1, cost + COUNT(costs));
    struct figure *f = &b->figure;
    b->heads = 2;
    figure_cell(f, 0, 0, "arm");
    figure_cell(f, 0, 1, "learned");
    for (int k = 0; k < t->columns; k++)
        figure_cell(f, 0, from + k, t->head[k]->trained ? "%s (trained)" : "%s", t->head[k]->name);
    if (!loss) {
        figure_cell(f, 0, reach, "%.0f %% up to", 100 * GOOD);
        figure_cell(f, 0, reach + 1, "steps to %.0f %%", 100 * CRITERION);
    }
    for (int k = 0; k < REFERENCES; k++)
        figure_cell(f, 0, versus + k, "better than %s", reference_name(k));
    for (int k = 0; k < COUNT(costs); k++) figure_cell(f, 0, cost + k, "%s", costs[k]);
    for (int i = 0; i < t->rows; i++) {
        const struct table_row *r = &t->row[i];
        b->mark[i + 1] = mark_of(r);
        figure_cell(f, i + 1, 0, "%s", r->label);
        learned_cell(f, i + 1, 1, r);
        for (int k = 0; k < t->columns; k++) value_cell(f, i + 1, from + k, t, &r->cell[k], k);
        if (!loss) {
            reach_cell(f, i + 1, reach, r);
            criterion_cell(f, i + 1, reach + 1, r);
        }
        for (int k = 0; k < REFERENCES; k++) versus_cell(f, i + 1, versus + k, t, &r->versus[k]);
        cost_cells(f, i + 1, cost, r);
    }
    metric_words(f->about, sizeof f->about, t);
}

/* Results often form two clusters.  Then a mean says little. */
static void heaps_table(struct report_section *s, const struct table *t)
{
    if (!many_seeds(t) || is_loss(t->head[t->far])) return;
    struct report_block *b =
        add_table(s, "heaps", "Medians, and seeds that generalise", t->rows + 1, t->columns + 1);
    figure_cell(&b->figure, 0, 0, "arm");
    for (int k = 0; k < t->columns; k++) figure_cell(&b->figure, 0, k + 1, "%s", t->head[k]->name);
    for (int i = 0; i < t->rows; i++) {
        const struct table_row *r = &t->row[i];
        b->mark[i + 1] = mark_of(r);
        figure_cell(&b->figure, i + 1, 0, "%s", r->label);
        for (int k = 0; k < t->columns; k++) {
            const struct cell *c = &r->cell[k];
            char median[32];
            value_text(median, t->head[k], c->of.median, false);
            if (c->n == 0) figure_cell(&b->figure, i + 1, k + 1, "%s\t-", median);
            else
                figure_cell(&b->figure, i + 1, k + 1, "%s\t%d of %d, %.0f to %.0f %%", median,
                            c->good, c->n, 100 * c->good_low, 100 * c->good_high);
        }
    }
    snprintf(b->figure.about, sizeof b->figure.about,
             "Below the median: the seeds with at least 90 %% here, and Wilson's interval of 95 %% "
             "for that share.");
}

/* ---- Pictures of a task ---------------------------------------------------------------------- */

/* The names of an arm if they are unique in this table, else its text. */
static void short_name(char to[FIGURE_NAME], const struct table *t, const struct table_row *r)
{
    const struct arm_name a = arm_name(r->arm);
    bool own = true;
    for (int i = 0; i < t->rows; i++) {
        const struct table_row *o = &t->row[i];
        const struct arm_name b = arm_name(o->arm);
        if (o == r || o->variant[0] || strcmp(a.names, b.names) || strcmp(a.how, b.how)) continue;
        own &= !strcmp(o->arm, r->arm) && r->variant[0];
    }
    if (own) snprintf(to, FIGURE_NAME, "%.22s%s%.12s", a.names, a.how[0] ? "@" : "", a.how);
    else snprintf(to, FIGURE_NAME, "%.30s", r->label);
}

static void line_name(struct line *l, const struct table *t, const struct table_row *r,
                      const char *more)
{
    char name[FIGURE_NAME];
    short_name(name, t, r);
    snprintf(l->name, sizeof l->name, "%.38s%s%s", name, more, r->learned ? "" : ", not learned");
}

static const char *seeds_words(const struct table *t)
{
    return many_seeds(t) ? " Means over seeds, and where they lie." : " One seed.";
}

/* The trained arms, in the order of the table.  Returns their number. */
static int arms_of(const struct table *t, const struct table_row **list)
{
    int n = 0;
    for (int i = 0; i < t->rows; i++)
        if (!t->row[i].variant[0]) list[n++] = &t->row[i];
    return n;
}

static const struct table_row *variant_of(const struct table *t, const struct table_row *arm,
                                          const char *name)
{
    const ptrdiff_t from = arm - t->row;
    for (ptrdiff_t i = from + 1; i < t->rows && t->row[i].variant[0]; i++)
        if (!strcmp(t->row[i].arm, arm->arm) && !strcmp(t->row[i].variant, name)) return &t->row[i];
    return NULL;
}

/* The number of n lines per picture, at most `most`, so that all pictures have about the same
 * number. */
static int even_share(int n, int most)
{
    const int pictures = (n + most - 1) / most;
    return pictures ? (n + pictures - 1) / pictures : most;
}

/* The mean and the range of the seeds at one point of a line. */
static void put_seeds(struct line *l, int at, const double *x, int n)
{
    const struct summary s = summary_of(x, n);
    l->y[at] = s.mean;
    if (l->low) {
        l->low[at] = s.least;
        l->high[at] = s.most;
    }
}

static void span_line(struct figure *f, int line, const struct table_row *r,
                      const struct lab_row *like)
{
    struct line *l = &f->line[line];
    double *x = draw_alloc((size_t)r->seeds, sizeof *x);
    if (r->seeds > 1) figure_band(f, line);
    for (int k = 0; k < like->spans; k++) {
        int n = 0;
        for (int s = 0; s < r->seeds; s++) {
            const double loss = loss_between(r->row[s], like->span[k].from, like->span[k].to);
            if (!isnan(loss)) x[n++] = loss;
        }
        put_seeds(l, k, x, n);
    }
    free(x);
}

/* The result of an arm within a window of L, if it was measured by position. */
static const struct table_row *control_of(const struct table *t, const struct table_row *arm)
{
    const struct table_row *window = variant_of(t, arm, "window");
    return window && window->row[0]->spans ? window : NULL;
}

/* Arms, each followed by its control. */
static void position_pictures(struct report_section *s, const struct table *t)
{
    const struct table_row **arm = draw_alloc((size_t)t->rows, sizeof *arm), *shown[LINES];
    const int arms = arms_of(t, arm);
    int all = 0;
    for (int i = 0; i < arms; i++)
        if (arm[i]->row[0]->spans) all += 1 + (control_of(t, arm[i]) != NULL);
    const int share = even_share(all, LINES - 1); /* leaves a line for the last control */
    for (int i = 0; i < arms;) {
        int lines = 0;
        bool control[LINES] = { false };
        for (; i < arms && lines < share; i++) {
            const struct table_row *window = control_of(t, arm[i]);
            if (arm[i]->row[0]->spans == 0) continue;
            shown[lines++] = arm[i];
            if (window) {
                control[lines] = true;
                shown[lines++] = window;
            }
        }
        if (!lines) continue;
        const struct lab_row *like = shown[0]->row[0];
        struct figure *f = add_lines(s, "positions", like->spans, lines);
        for (int k = 0; k < like->spans; k++) /* positions from 1, for the logarithm */
            f->at[k] = sqrt((like->span[k].from + 1.0) * (like->span[k].to + 1.0));
        for (int l = 0; l < lines; l++) {
            line_name(&f->line[l], t, shown[l], control[l] ? " in a window" : "");
            span_line(f, l, shown[l], like);
        }
        f->x.log = true;
        f->marks = 1;
        f->mark[0] = (struct mark){ "L", false, t->length };
        snprintf(f->x.label, FIGURE_NAME, "position");
        snprintf(f->y.label, FIGURE_NAME, "loss, nats per token");
        snprintf(f->title, sizeof f->title, "%s: loss against position", t->task);
        snprintf(f->about, sizeof f->about,
                 "In the longest test sequences. In a window: the same weights, which see the last "
                 "%d tokens alone. No worse than this beyond L: it extrapolates; better: it uses "
                 "the longer context.%s",
                 t->length, seeds_words(t));
    }
    free(arm);
}

/* A column's name without its length.  Columns with equal results are one series. */
static void series_of(const struct lab_measured *c, char to[LAB_NAME])
{
    size_t n = 0;
    to[0] = 0;
    if (!strcmp(c->name, "as trained")) return;
    for (const char *p = c->name; *p;) {
        const size_t word = strcspn(p, " ");
        const size_t digits = strspn(p, "0123456789");
        const bool length = (digits + 1 == word && p[digits] == 'L') || !strncmp(p, "n=", 2)
                         || (word == 2 && !strncmp(p, "at", 2));
        const bool sized = digits == word && !strncmp(p + word, " digit", 6);
        if (sized) return;
        if (!length) {
            if (n) to[n++] = ' ';
            memcpy(to + n, p, word);
            to[n += word] = 0;
        }
        p += word + (p[word] == ' ');
    }
}

/* The columns of a series by length.  Returns their number. */
static int columns_of(const struct table *t, const char *series, int *column)
{
    int n = 0;
    for (int k = 0; k < t->columns; k++) {
        char name[LAB_NAME];
        series_of(t->head[k], name);
        if (strcmp(name, series)) continue;
        int at = n;
        while (at > 0 && t->head[column[at - 1]]->length >= t->head[k]->length) at--;
        if (at < n && t->head[column[at]]->length == t->head[k]->length) continue;
        memmove(column + at + 1, column + at, (size_t)(n - at) * sizeof *column);
        column[at] = k;
        n++;
    }
    return n;
}

static void cell_line(struct figure *f, int line, const struct table *t, const struct table_row *r,
                      const int *column, int n)
{
    const double scale = is_loss(t->head[column[0]]) ? 1 : 100;
    if (r->seeds > 1) figure_band(f, line);
    for (int k = 0; k < n; k++) {
        const struct summary *s = &r->cell[column[k]].of;
        struct line *l = &f->line[line];
        l->y[k] = scale * s->mean;
        if (l->low) {
            l->low[k] = scale * s->least;
            l->high[k] = scale * s->most;
        }
    }
}

static void length_picture(struct report_section *s, const struct table *t, const char *series,
                           const int *column, int n, const struct table_row *const *row, int lines,
                           bool variants)
{
    struct figure *f = add_lines(s, "lengths", n, lines);
    const struct lab_measured *head = t->head[column[0]];
    for (int k = 0; k < n; k++) f->at[k] = t->head[column[k]]->length;
    for (int l = 0; l < lines; l++) {
        if (variants && l) snprintf(f->line[l].name, FIGURE_NAME, "%s", row[l]->variant);
        else line_name(&f->line[l], t, row[l], "");
        cell_line(f, l, t, row[l], column, n);
    }
    f->x.log = true;
    snprintf(f->x.label, FIGURE_NAME, "tokens");
    snprintf(f->y.label, FIGURE_NAME,
             is_loss(head)               ? "loss, nats per token"
             : head->metric == LAB_EXACT ? "sequences right, %%"
                                         : "tokens right, %%");
    snprintf(f->title, sizeof f->title, "%s%s%s: %s against length%s", t->task, *series ? ", " : "",
             series, metric_name(head->metric), variants ? ", one model in several ways" : "");
    snprintf(f->about, sizeof f->about, "Trained with up to %d tokens.%s",
             t->head[column[0]]->length, seeds_words(t));
    for (int k = 0; k < n; k++)
        if (t->head[column[k]]->trained)
            snprintf(f->about, sizeof f->about, "Trained with up to %d tokens.%s",
                     t->head[column[k]]->length, seeds_words(t));
}

static void length_pictures(struct report_section *s, const struct table *t)
{
    const struct table_row **row = draw_alloc((size_t)t->rows, sizeof *row);
    for (int k = 0; k < t->columns; k++) {
        char series[LAB_NAME], other[LAB_NAME];
        int column[LAB_COLUMNS];
        bool first = true;
        series_of(t->head[k], series);
        for (int j = 0; j < k; j++) {
            series_of(t->head[j], other);
            first &= strcmp(series, other) != 0;
        }
        const int n = columns_of(t, series, column);
        if (!first || n < 2) continue; /* one point is no line; the table has it */
        const int arms = arms_of(t, row);
        const int share = even_share(arms, LINES);
        for (int i = 0; i < arms; i += share)
            length_picture(s, t, series, column, n, row + i, arms - i < share ? arms - i : share,
                           false);
        for (int i = 0; i < t->rows; i++) {
            int lines = 0;
            if (t->row[i].variant[0]) continue;
            do row[lines] = &t->row[i + lines];
            while (++lines < LINES && i + lines < t->rows && t->row[i + lines].variant[0]);
            if (lines > 2) length_picture(s, t, series, column, n, row, lines, true);
        }
    }
    free(row);
}

/* The steps at which any run measured.  Returns their number. */
static int steps_of(const struct table_row *const *arm, int arms, double *step)
{
    int n = 0;
    for (int i = 0; i < arms; i++)
        for (int s = 0; s < arm[i]->seeds; s++)
            for (int k = 0; k < arm[i]->run[s]->logs; k++) {
                const struct lab_logged *l = &arm[i]->run[s]->log[k];
                if (isnan(l->trained) && isnan(l->far)) continue;
                int at = n;
                while (at > 0 && step[at - 1] >= l->step) at--;
                if (at < n && step[at] == l->step) continue;
                memmove(step + at + 1, step + at, (size_t)(n - at) * sizeof *step);
                step[at] = l->step;
                n++;
            }
    return n;
}

static void curve_line(struct line *l, const struct table_row *r, const struct figure *f, bool far,
                       double scale)
{
    double *x = draw_alloc((size_t)r->seeds, sizeof *x);
    for (ptrdiff_t i = 0; i < f->n; i++) {
        int n = 0;
        for (int s = 0; s < r->seeds; s++)
            for (int k = 0; k < r->run[s]->logs; k++) {
                const struct lab_logged *g = &r->run[s]->log[k];
                const double y = far ? g->far : g->trained;
                if (g->step == f->at[i] && !isnan(y)) x[n++] = scale * y;
            }
        put_seeds(l, (int)i, x, n);
    }
    free(x);
}

/* Results far out often rise early and fall later, so both are shown together. */
static void curve_pictures(struct report_section *s, const struct table *t)
{
    const struct table_row **arm = draw_alloc((size_t)t->rows, sizeof *arm);
    const int all = arms_of(t, arm);
    int arms = 0, most = 0;
    for (int i = 0; i < all; i++) {
        int logs = 0;
        for (int k = 0; k < arm[i]->seeds; k++) logs += arm[i]->run[k]->logs;
        if (logs) arm[arms++] = arm[i];
        most += logs;
    }
    double *step = draw_alloc((size_t)most, sizeof *step);
    const int share = even_share(arms, LINES / 2);
    for (int i = 0; i < arms; i += share) {
        const int here = arms - i < share ? arms - i : share;
        const int n = steps_of(arm + i, here, step);
        if (!n) continue;
        struct figure *f = add_lines(s, "learning", n, 2 * here);
        memcpy(f->at, step, (size_t)n * sizeof *step);
        for (int l = 0; l < 2 * here; l++) {
            line_name(&f->line[l], t, arm[i + l / 2], l % 2 ? " far" : "");
            curve_line(&f->line[l], arm[i + l / 2], f, l % 2, is_loss(t->head[0]) ? 1 : 100);
        }
        snprintf(f->x.label, FIGURE_NAME, "step");
        snprintf(f->y.label, FIGURE_NAME,
                 is_loss(t->head[0]) ? "loss, nats per token" : "right, %%");
        snprintf(f->title, sizeof f->title, "%s: learning", t->task);
        snprintf(f->about, sizeof f->about, "As trained, and far beyond.%s",
                 many_seeds(t) ? " Means over seeds." : " One seed.");
    }
    free(step);
    free(arm);
}

/* Tokens of a text are its bytes, so that its loss says how well it is compressed, which can be
 * compared from text to text. */
static void bits_table(struct report_section *s, const struct table *t)
{
    const struct lab_task *task = lab_task(t->task);
    if (!task || !task->corpus || !is_loss(t->head[t->far])) return;
    struct report_block *b = add_table(s, "bits", "Bits per byte", t->rows + 1, t->columns + 1);
    figure_cell(&b->figure, 0, 0, "arm");
    for (int k = 0; k < t->columns; k++) figure_cell(&b->figure, 0, k + 1, "%s", t->head[k]->name);
    for (int i = 0; i < t->rows; i++) {
        const struct table_row *r = &t->row[i];
        b->mark[i + 1] = mark_of(r);
        figure_cell(&b->figure, i + 1, 0, "%s", r->label);
        for (int k = 0; k < t->columns; k++) {
            const double mean = r->cell[k].of.mean;
            if (isnan(mean)) figure_cell(&b->figure, i + 1, k + 1, "-");
            else figure_cell(&b->figure, i + 1, k + 1, "%.3f", mean / log(2));
        }
    }
    snprintf(
        b->figure.about, sizeof b->figure.about,
        "The loss in other units: nats over ln 2.%s Loss by position is in the pictures below.",
        many_seeds(t) ? " Means over seeds." : "");
}

/* The rates of arms that have several, and what validation says of them. */
static void rates_table(struct report_section *s, const struct table *t)
{
    static const char *const heads[] = { "arm", "learning rate", "seeds", "validation loss",
                                         "chosen" };
    if (!t->tries) return;
    struct report_block *b = add_table(s, "rates", "Learning rates", t->tries + 1, COUNT(heads));
    for (int i = 0; i < COUNT(heads); i++) figure_cell(&b->figure, 0, i, "%s", heads[i]);
    for (int i = 0; i < t->tries; i++) {
        const struct tried *x = &t->tried[i];
        char loss[32];
        snprintf(loss, sizeof loss, "%.4f", x->validation);
        figure_cell(&b->figure, i + 1, 0, "%s", x->arm);
        figure_cell(&b->figure, i + 1, 1, "%.3g", x->rate);
        figure_cell(&b->figure, i + 1, 2, "%d", x->seeds);
        figure_cell(&b->figure, i + 1, 3, "%s", isnan(x->validation) ? "-" : loss);
        figure_cell(&b->figure, i + 1, 4, "%s",
                    !x->chosen ? ""
                    : x->edge  ? "yes, at the edge"
                               : "yes");
        b->mark[i + 1] = x->chosen ? 0 : MARK_OFF;
    }
    snprintf(b->figure.about, sizeof b->figure.about,
             "Nats per scored token on sequences as in training that neither training nor a test "
             "has. The least loss chooses. Nothing else here knows of the other runs.");
}

static void task_section(struct report *r, const struct table *t)
{
    char title[200];
    snprintf(title, sizeof title, "%s: size %s, L = %d, %d steps%s%.100s", t->task, t->size,
             t->length, t->steps, t->settings[0] ? ", " : "", t->settings);
    struct report_section *s = add_section(r, title);
    main_table(s, t);
    bits_table(s, t);
    rates_table(s, t);
    heaps_table(s, t);
    position_pictures(s, t);
    length_pictures(s, t);
    curve_pictures(s, t);
}

/* ---- Ranks ----------------------------------------------------------------------------------- */

static const struct table_row *arm_in(const struct table *t, const char *arm)
{
    for (int i = 0; i < t->rows; i++)
        if (!t->row[i].variant[0] && !strcmp(t->row[i].arm, arm)) return &t->row[i];
    return NULL;
}

/* All arms of all tables, once each. */
static int all_arms(const struct tables *all, const char **list)
{
    int n = 0;
    for (int i = 0; i < all->count; i++)
        for (int k = 0; k < all->list[i].rows; k++) {
            const char *arm = all->list[i].row[k].arm;
            int at = 0;
            while (at < n && strcmp(list[at], arm)) at++;
            if (at == n) list[n++] = arm;
        }
    return n;
}

static void rank_cell(struct figure *f, int row, int col, const struct table_row *r)
{
    if (!r) figure_cell(f, row, col, "-");
    else if (isnan(r->rank)) figure_cell(f, row, col, "-");
    else if (r->seeds < 2) figure_cell(f, row, col, "%.3g", r->rank);
    else figure_cell(f, row, col, "%.3g\t%.3g to %.3g", r->rank, r->rank_low, r->rank_high);
}

struct ranked {
    const char *arm;
    double mean;
    int tasks;
};

static int by_mean(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (isnan(x->mean) || isnan(y->mean)) return isnan(x->mean) - isnan(y->mean);
    return (x->mean < y->mean) - (x->mean > y->mean);
}

/* Best first.  The caller frees it. */
static struct ranked *rank_arms(const struct tables *all, int *count)
{
    int rows = 0;
    for (int i = 0; i < all->count; i++) rows += all->list[i].rows;
    const char **arm = draw_alloc((size_t)rows, sizeof *arm);
    double *rank = draw_alloc((size_t)all->count, sizeof *rank);
    struct ranked *list = draw_alloc((size_t)rows, sizeof *list);
    *count = all_arms(all, arm);
    for (int i = 0; i < *count; i++) {
        list[i] = (struct ranked){ .arm = arm[i] };
        for (int k = 0; k < all->count; k++) {
            const struct table_row *r = arm_in(&all->list[k], arm[i]);
            rank[k] = r ? r->rank : NAN;
            list[i].tasks += !isnan(rank[k]);
        }
        list[i].mean = mean_reciprocal_rank(rank, all->count);
    }
    if (*count) qsort(list, (size_t)*count, sizeof *list, by_mean);
    free(arm);
    free(rank);
    return list;
}

static void ranks(struct report *r)
{
    int arms;
    struct ranked *list = rank_arms(&r->tables, &arms);
    struct report_section *s = add_section(r, "Ranks");
    struct report_block *b =
        add_table(s, "ranks", "Ranks beyond the trained length", arms + 1, r->tables.count + 3);
    struct figure *f = &b->figure;
    figure_cell(f, 0, 0, "arm");
    figure_cell(f, 0, 1, "mean reciprocal rank");
    figure_cell(f, 0, 2, "tasks");
    for (int k = 0; k < r->tables.count; k++) {
        const struct table *t = &r->tables.list[k];
        bool twice = false; /* the same task with other options */
        for (int o = 0; o < r->tables.count; o++)
            twice |= o != k && !strcmp(r->tables.list[o].task, t->task);
        if (twice)
            figure_cell(f, 0, k + 3, "%s %s %d %d (%d)", t->task, t->size, t->length, t->steps,
                        k + 1);
        else figure_cell(f, 0, k + 3, "%s", t->task);
    }
    for (int i = 0; i < arms; i++) {
        char mean[32];
        snprintf(mean, sizeof mean, "%.3f", list[i].mean);
        figure_cell(f, i + 1, 0, "%s", list[i].arm);
        figure_cell(f, i + 1, 1, "%s", isnan(list[i].mean) ? "-" : mean);
        figure_cell(f, i + 1, 2, "%d", list[i].tasks);
        for (int k = 0; k < r->tables.count; k++)
            rank_cell(f, i + 1, k + 3, arm_in(&r->tables.list[k], list[i].arm));
    }
    snprintf(
        f->about, sizeof f->about,
        "By the mean of all columns longer than trained, learned or not; ties share their mean "
        "rank. An arm has no rank where it was not run, so compare the numbers of tasks, too. "
        "Below a rank: the least and the most of single seeds.");
    int known = 0;
    while (known < arms && !isnan(list[known].mean)) known++;
    if (known) {
        struct figure *bars = &add_block(s)->figure;
        figure_bars(bars, known, 1);
        bars->what = "ranks";
        for (int i = 0; i < known; i++) {
            figure_cell(bars, i, 0, "%.26s", list[i].arm);
            bars->line[0].y[i] = list[i].mean;
        }
        snprintf(bars->title, sizeof bars->title, "Mean reciprocal rank over tasks");
        snprintf(bars->y.label, FIGURE_NAME, "1 / rank");
        snprintf(bars->about, sizeof bars->about, "1: the first on every task.");
    }
    free(list);
}

/* ---- Warnings and provenance ----------------------------------------------------------------- */

/* Each sentence once, with the runs that it applies to. */
static void add_warnings(struct report *r, struct report_section *s)
{
    for (int i = 0; i < r->all->count; i++)
        for (int k = 0; k < r->all->list[i].warnings; k++) {
            const char *sentence = r->all->list[i].warning[k];
            struct text of = { 0 };
            int runs = 0;
            bool said = false;
            for (int j = 0; j < r->all->count; j++) {
                const struct lab_result *o = &r->all->list[j];
                int at = 0;
                while (at < o->warnings && strcmp(o->warning[at], sentence)) at++;
                if (at == o->warnings) continue;
                said |= j < i || (j == i && at < k);
                if (runs++ < 4) text_add(&of, "%s%s on %s", runs > 1 ? ", " : "", o->arm, o->task);
            }
            if (!said && runs > 4) add_words(s, true, "%s (%d runs: %s ...)", sentence, runs, of.s);
            else if (!said) add_words(s, true, "%s (%s)", sentence, of.s);
            text_free(&of);
        }
}

static void warnings(struct report *r)
{
    struct report_section *s = add_section(r, "Warnings");
    add_warnings(r, s);
    for (int i = 0; i < r->tables.count; i++) {
        const struct table *t = &r->tables.list[i];
        for (int k = 0; k < t->tries; k++)
            if (t->tried[k].edge)
                add_words(s, true,
                          "%s: the chosen learning rate of %s, %.3g, is the last of its grid, and "
                          "one beyond it may be better.",
                          t->task, t->tried[k].arm, t->tried[k].rate);
        if (t->twice)
            add_words(s, true, "%s: %d run%s left out, as the same arm and seed is there already.",
                      t->task, t->twice, t->twice == 1 ? " was" : "s were");
    }
    for (int i = 0; i < r->all->skips; i++) add_words(s, true, "%s", r->all->skipped[i]);
    if (!s->blocks) add_words(s, false, "None.");
}

/* Every value once, separated by commas. */
static void add_values(struct report *r, struct report_section *s, const char *what, size_t field)
{
    struct text t = { 0 };
    for (int i = 0; i < r->all->count; i++) {
        const char *value = (const char *)&r->all->list[i] + field;
        int first = 0;
        while (strcmp((const char *)&r->all->list[first] + field, value)) first++;
        if (first == i) text_add(&t, "%s%s", t.n ? ", " : "", *value ? value : "not said");
    }
    add_words(s, true, "%s: %s", what, t.s ? t.s : "none");
    text_free(&t);
}

static void provenance(struct report *r, const char *dir)
{
    struct report_section *s = add_section(r, "Provenance");
    loci_error e = { 0 };
    if (dir && lab_command_read(&r->command, dir, &e)) {
        add_words(s, true, "Command: not known, lab.json is left out: %s", e.text);
        fprintf(stderr, "loci: %s/lab.json is left out: %s\n", dir, e.text);
    } else add_words(s, true, "Command: %s", r->command ? r->command : "not known");
    add_values(r, s, "Version", offsetof(struct lab_result, version));
    add_values(r, s, "Compiler", offsetof(struct lab_result, compiler));
    add_values(r, s, "Processor", offsetof(struct lab_result, cpu));
    add_values(r, s, "Instruction set", offsetof(struct lab_result, isa));
    for (int i = 0; i < r->all->count; i++) {
        const struct lab_result *o = &r->all->list[i];
        const double hours = o->seconds_per_step * o->steps / 3600;
        if (!isnan(o->teraflops)) r->teraflops += o->teraflops;
        if (!isnan(hours)) r->hours += hours;
    }
    add_words(s, true, "Work: %.4g TFLOP in %.3g hours of training", r->teraflops, r->hours);
    static const char *const heads[] = { "run", "task", "arm", "seed", "SHA-256 of its weights" };
    struct report_block *b = add_table(s, "runs", "Runs", r->all->count + 1, COUNT(heads));
    b->records = true;
    for (int i = 0; i < COUNT(heads); i++) figure_cell(&b->figure, 0, i, "%s", heads[i]);
    for (int i = 0; i < r->all->count; i++) {
        const struct lab_result *o = &r->all->list[i];
        figure_cell(&b->figure, i + 1, 0, "%s", o->id);
        figure_cell(&b->figure, i + 1, 1, "%s", o->task);
        figure_cell(&b->figure, i + 1, 2, "%s", o->arm);
        figure_cell(&b->figure, i + 1, 3, "seed %d", o->seed);
        figure_cell(&b->figure, i + 1, 4, "%s", o->weights_sha256);
    }
    snprintf(b->figure.about, sizeof b->figure.about,
             "The same run has the same hash on every machine%s.",
             any_foreign(r->all) ? ", but for @torch" : "");
}

/* ---- All of it ------------------------------------------------------------------------------- */

void report_make(struct report *r, const struct lab_results *all, const char *dir,
                 const struct report_pictures *pictures)
{
    *r = (struct report){ .all = all, .tables = tables_of(all) };
    r->claim = judge_claims(&r->tables, &r->claims);
    r->section = draw_alloc((size_t)r->tables.count + 8, sizeof *r->section);
    what_was_run(r);
    verdicts(r);
    for (int i = 0; i < r->tables.count; i++) task_section(r, &r->tables.list[i]);
    if (r->tables.count) ranks(r);
    if (pictures && pictures->count) {
        struct report_section *s = add_section(r, "What the encodings learned");
        for (int i = 0; i < pictures->count; i++) add_block(s)->lent = &pictures->list[i];
    }
    warnings(r);
    provenance(r, dir);
}

void report_free(struct report *r)
{
    for (int i = 0; i < r->sections; i++) {
        struct report_section *s = &r->section[i];
        for (int k = 0; k < s->blocks; k++) {
            free(s->block[k].words);
            free(s->block[k].mark);
            figure_free(&s->block[k].figure);
        }
        free(s->block);
    }
    judged_free(r->claim, r->claims);
    free(r->section);
    free(r->command);
    tables_free(&r->tables);
    *r = (struct report){ 0 };
}
