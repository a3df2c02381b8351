/* SPDX-License-Identifier: MIT */
/* train.c -- see train.h. */
#include "lab/train.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "contract/encoding.h"
#include "math/random.h"
#include "math/trig.h"
#include "lab/data.h"

/* ---- Batches --------------------------------------------------------------------------------- */

/* Draws n of the numbers below `range` in rising order, each choice equally likely.  Number i is
 * selected with the probability (still wanted) / (numbers left). */
static void draw_positions(uint64_t key, int range, int n, int64_t *pos)
{
    const uint64_t stream = lab_stream(key, "positions");
    for (int i = 0, taken = 0; i < range && taken < n; i++)
        if (loci_uniform(stream, (uint64_t)i) * (range - i) < n - taken) pos[taken++] = i;
}

static void add_sequence(const struct lab_problem *p, const struct lab_model *m,
                         const struct lab_column *c, uint64_t key, int row, struct lab_batch *b)
{
    const struct lab_arm *a = lab_model_arm(m);
    const ptrdiff_t at = b->rows;
    const int n = p->task->draw(p, c, key, row, b->token + at, b->target + at);
    for (int i = 0; i < n; i++) {
        b->pos[at + i] = i;
        b->seg[at + i] = b->sequences;
        b->scored += b->target[at + i] >= 0;
    }
    if (a->random) draw_positions(key, a->range, n, b->pos + at);
    b->rows += n;
    b->starts[++b->sequences] = b->rows;
}
static void empty(struct lab_batch *b, int sequences, int longest)
{
    lab_batch_reserve(b, sequences, (ptrdiff_t)sequences * longest);
    b->sequences = 0;
    b->rows = b->scored = 0;
    b->starts[0] = 0;
}

void lab_train_batch(const struct lab_config *c, const struct lab_model *m, int64_t step,
                     struct lab_batch *b)
{
    const struct lab_problem p = lab_config_problem(c);
    const int longest = p.task->longest(&p), sequences = c->tokens / longest;
    empty(b, sequences, longest);
    for (int row = 0; row < sequences; row++)
        add_sequence(&p, m, NULL, lab_train_key(&p, (uint64_t)c->seed, step, row), row, b);
}
void lab_test_batch(const struct lab_config *c, const struct lab_model *m,
                    const struct lab_column *column, int first, int count, struct lab_batch *b)
{
    const struct lab_problem p = lab_config_problem(c);
    empty(b, count, column->length);
    for (int row = first; row < first + count; row++)
        add_sequence(&p, m, column, lab_test_key(&p, column->name, row), row, b);
}

double lab_rate(const struct lab_config *c, int64_t step)
{
    const double warm = ceil(0.05 * c->steps), i = (double)step;
    if (i < warm) return c->rate * (i + 1) / warm;
    const double share = (i - warm) / fmax(1, c->steps - warm);
    double cosine, sine; /* not libm's, whose bits differ */
    loci_sincos(share, 3.141592653589793, 0, &cosine, &sine);
    return c->rate * (0.1 + 0.9 * 0.5 * (1 + cosine));
}

/* ---- Tests ----------------------------------------------------------------------------------- */

enum { TEST_ROWS = 4096 }; /* tokens per batch, but at least a sequence */

static int make_spans(struct lab_span *s, int length, int trained)
{
    int border[LAB_SPANS];
    const int n = lab_data_spans(border, length, trained);
    for (int i = 0; i < n; i++)
        s[i] = (struct lab_span){ .from = i ? border[i - 1] : 0, .to = border[i] - 1 };
    return n;
}

struct tally {
    double loss;
    int right, asked;
};

static double shown(enum lab_metric metric, const struct tally *t)
{
    if (metric == LAB_LOSS) return t->loss / t->asked;
    return metric == LAB_EXACT ? t->right == t->asked : (double)t->right / t->asked;
}

static void add_spans(struct lab_row *to, int i, double loss)
{
    for (int s = 0; to && s < to->spans; s++)
        if (i >= to->span[s].from && i <= to->span[s].to) {
            to->span[s].loss += loss;
            to->span[s].count++;
        }
}

loci_status lab_test(const struct lab_config *c, struct lab_model *m,
                     const struct lab_column *column, int most, struct lab_measured *to,
                     struct lab_row *spans, loci_error *e)
{
    const int all = column->count < most ? column->count : most;
    const int at_once = column->length < TEST_ROWS ? TEST_ROWS / column->length : 1;
    struct lab_batch b = { .sequences = 0 };
    struct tally sum = { 0, 0, 0 };
    int exact = 0, scored = 0;
    loci_status status = LOCI_OK;
    *to = (struct lab_measured){ .times = column->times,
                                 .length = column->length,
                                 .count = all,
                                 .trained = column->trained,
                                 .metric = column->metric };
    memcpy(to->name, column->name, sizeof to->name);
    to->each = draw_alloc((size_t)all, sizeof *to->each);
    if (spans) {
        spans->span = draw_alloc(LAB_SPANS, sizeof *spans->span);
        spans->spans = make_spans(spans->span, column->length, c->length);
    }
    double *loss = NULL;
    int32_t *best = NULL;
    for (int first = 0; first < all && !status; first += at_once) {
        lab_test_batch(c, m, column, first, all - first < at_once ? all - first : at_once, &b);
        loss = realloc(loss, (size_t)b.rows * sizeof *loss);
        best = realloc(best, (size_t)b.rows * sizeof *best);
        if (!loss || !best) exit((fputs("loci: out of memory\n", stderr), 2));
        status = lab_model_forward(m, &b, false, loss, best, e);
        for (int s = 0; s < b.sequences && !status; s++) {
            struct tally t = { 0, 0, 0 };
            for (ptrdiff_t r = b.starts[s]; r < b.starts[s + 1]; r++) {
                if (b.target[r] < 0) continue;
                t.loss += loss[r];
                t.right += best[r] == b.target[r];
                t.asked++;
                add_spans(spans, (int)(r - b.starts[s]), loss[r]);
            }
            to->each[first + s] = t.asked ? shown(column->metric, &t) : NAN;
            if (!t.asked) continue;
            sum.loss += t.loss;
            sum.right += t.right;
            sum.asked += t.asked;
            exact += t.right == t.asked;
            scored++;
        }
    }
    free(loss);
    free(best);
    lab_batch_free(&b);
    to->loss = sum.loss / sum.asked;
    to->accuracy = (double)sum.right / sum.asked;
    to->exact = (double)exact / scored;
    for (int s = 0; spans && s < spans->spans; s++)
        spans->span[s].loss =
            spans->span[s].count ? spans->span[s].loss / (double)spans->span[s].count : NAN;
    return status;
}

/* ---- All tests ------------------------------------------------------------------------------- */

/* The longest column of the task's first kind, for loss by position. */
static int longest_column(const struct lab_column *list, int n)
{
    int at = 0;
    for (int i = 1; i < n; i++)
        if (list[i].times > list[at].times) at = i;
    return at;
}

static struct lab_row *add_row(struct lab_result *r, const char *name, int columns)
{
    struct lab_row *more = draw_alloc((size_t)r->rows + 1, sizeof *more);
    if (r->rows) memcpy(more, r->row, (size_t)r->rows * sizeof *more);
    free(r->row);
    r->row = more;
    struct lab_row *row = &r->row[r->rows++];
    snprintf(row->name, sizeof row->name, "%s", name);
    row->column = draw_alloc((size_t)columns, sizeof *row->column);
    return row;
}

/* Positions beyond a table of learned positions, or of a file's biases, are not measured. */
static bool refused(const struct lab_config *c, const struct lab_model *m,
                    const struct lab_column *column)
{
    const struct lab_tensor *t;
    const int n = lab_model_tensors(m, &t);
    bool table = false;
    for (int i = 0; i < n; i++) table |= t[i].encoding && !strncmp(t[i].name, "pe.", 3);
    if (column->length > lab_arm_reach(lab_model_arm(m))) return true;
    return table && c->learned == LAB_REFUSE && column->length > lab_model_shape(m)->length;
}

static loci_status test_row(const struct lab_config *c, struct lab_model *m,
                            const struct lab_column *list, int n, struct lab_row *row,
                            loci_error *e)
{
    const int far = longest_column(list, n);
    for (int i = 0; i < n; i++) {
        if (refused(c, m, &list[i])) continue;
        TRY(lab_test(c, m, &list[i], list[i].count, &row->column[row->columns],
                     i == far ? row : NULL, e));
        row->columns++;
    }
    return LOCI_OK;
}

static bool is_learned(const struct lab_problem *p, const struct lab_row *row)
{
    double sum = 0;
    int n = 0;
    for (int i = 0; i < row->columns; i++) {
        const struct lab_measured *c = &row->column[i];
        if (!c->trained) continue;
        sum += c->metric == LAB_LOSS ? c->loss : c->metric == LAB_EXACT ? c->exact : c->accuracy;
        n++;
    }
    if (n == 0) return false;
    const enum lab_metric m = row->column[0].metric;
    const double bound = lab_learned_bound(m);
    return m == LAB_LOSS ? sum / n <= bound * p->corpus->unigram : sum / n >= bound;
}

/* Variants without training, on sequences longer than in training. */
static loci_status test_variants(const struct lab_config *c, struct lab_model *m,
                                 const struct lab_column *list, int n, struct lab_result *r,
                                 loci_error *e)
{
    const struct lab_problem p = lab_config_problem(c);
    for (enum lab_change change = LAB_PI; change < LAB_CHANGES; change++) {
        struct lab_row *row = NULL;
        const int far = longest_column(list, n);
        if (!lab_change_tested(change, c, lab_model_arm(m))) continue;
        for (int i = 0; i < n; i++) {
            if (list[i].times <= 1 || refused(c, m, &list[i])) continue;
            if (!row) row = add_row(r, lab_change_name(change), n);
            const double times = (double)list[i].length / p.task->longest(&p);
            TRY(lab_model_view(m, (struct lab_view){ change, times, false }, e));
            TRY(lab_test(c, m, &list[i], list[i].count, &row->column[row->columns],
                         i == far ? row : NULL, e));
            row->columns++;
        }
    }
    return lab_model_view(m, (struct lab_view){ LAB_AS_TRAINED, 1, false }, e);
}

/* Continues training for a twentieth of the steps at twice the length, with the changed encoding.
 * AdamW starts anew, at a tenth of the rate, and the data are those of the first steps. */
static loci_status finetune(const struct lab_config *c, struct lab_model *from,
                            enum lab_change change, const struct lab_column *list, int n,
                            struct lab_result *r, loci_error *e)
{
    struct lab_config longer = *c;
    struct lab_shape s = lab_config_shape(c);
    struct lab_model *m;
    struct lab_batch b = { .sequences = 0 };
    char name[LAB_NAME];
    longer.length = 2 * c->length;
    longer.steps = (c->steps + 19) / 20;
    longer.rate = 0.1 * c->rate;
    s.change = change;
    s.times = 2;
    TRY(lab_model_open(&m, &s, lab_model_host(from), e));
    lab_model_init(m, 0);
    memcpy(lab_model_list(m, LAB_WEIGHTS), lab_model_list(from, LAB_WEIGHTS),
           (size_t)lab_model_numbers(m) * lab_model_engine(m)->real);
    loci_status status = LOCI_OK;
    for (int step = 0; step < longer.steps && !status; step++) {
        double mean;
        lab_train_batch(&longer, m, step, &b);
        status = lab_model_backward(m, &b, &mean, e);
        if (!status) lab_model_step(m, step + 1, lab_rate(&longer, step));
    }
    snprintf(name, sizeof name, "%s%sft", lab_change_name(change),
             change == LAB_AS_TRAINED ? "" : "+");
    struct lab_row *row = status ? NULL : add_row(r, name, n);
    for (int i = 0; i < n && !status; i++)
        if (list[i].times == 2)
            status = lab_test(c, m, &list[i], list[i].count, &row->column[row->columns++], NULL, e);
    lab_batch_free(&b);
    lab_model_close(m);
    return status;
}

/* The mean loss of the columns as trained, on sequences of their own. */
static loci_status validate(const struct lab_config *c, struct lab_model *m,
                            const struct lab_column *list, int n, double *loss, loci_error *e)
{
    int columns = 0;
    double sum = 0;
    for (int i = 0; i < n; i++) {
        const struct lab_column own = lab_validation(&list[i]);
        struct lab_measured got;
        if (!list[i].trained) continue;
        TRY(lab_test(c, m, &own, own.count, &got, NULL, e));
        free(got.each);
        sum += got.loss;
        columns++;
    }
    *loss = columns ? sum / columns : NAN;
    return LOCI_OK;
}

loci_status lab_test_all(const struct lab_config *c, struct lab_model *m, struct lab_result *r,
                         loci_error *e)
{
    const struct lab_problem p = lab_config_problem(c);
    struct lab_column list[LAB_COLUMNS];
    const int n = p.task->columns(&p, list);
    TRY(test_row(c, m, list, n, add_row(r, "", n), e));
    r->learned = is_learned(&p, &r->row[0]);
    TRY(validate(c, m, list, n, &r->validation, e));
    TRY(test_variants(c, m, list, n, r, e));
    for (enum lab_change change = LAB_AS_TRAINED; change < LAB_CHANGES; change++)
        if (lab_change_finetuned(change, c, lab_model_arm(m)))
            TRY(finetune(c, m, change, list, n, r, e));
    return LOCI_OK;
}

/* ---- Traps ----------------------------------------------------------------------------------- */

void lab_add_warning(struct lab_result *r, const char *format, ...)
{
    char text[600];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    char **more = draw_alloc((size_t)r->warnings + 1, sizeof *more);
    if (r->warnings) memcpy(more, r->warning, (size_t)r->warnings * sizeof *more);
    free(r->warning);
    r->warning = more;
    r->warning[r->warnings] = draw_alloc(strlen(text) + 1, 1);
    strcpy(r->warning[r->warnings++], text);
}

/* Do all training sequences have the same number of tokens? */
static bool fixed_length(const struct lab_config *c)
{
    const struct lab_problem p = lab_config_problem(c);
    const size_t most = (size_t)p.task->longest(&p);
    int32_t *token = draw_alloc(2 * most, sizeof *token);
    bool same = true;
    for (int row = 0, first = 0; row < 32 && same; row++) {
        const uint64_t key = lab_train_key(&p, (uint64_t)c->seed, 0, row);
        const int n = p.task->draw(&p, NULL, key, row, token, token + most);
        if (row == 0) first = n;
        same = n == first;
    }
    free(token);
    return same;
}

static bool has_row(const struct lab_result *r, const char *name)
{
    for (int i = 0; i < r->rows; i++)
        if (!strcmp(r->row[i].name, name)) return true;
    return false;
}

/* Parts of tables that no training sequence reaches. */
static void warn_of_tables(const struct lab_config *c, const struct lab_shape *s,
                           const struct lab_arm *a, struct lab_result *r)
{
    static const char *const beyond[] = {
        [LAB_REFUSE] = "have no row, so tests with them are left out",
        [LAB_CLAMP] = "read the last row",
        [LAB_WRAP] = "begin again at the first row",
        [LAB_RANDOM] = "have rows that keep the random numbers of the start",
    };
    const struct lab_usual *u;
    for (int i = 0, count = lab_usuals(&u); i < count; i++, u++) {
        const bool given = a->bias.rank == 2 && !a->bias.learn; /* its numbers are not trained */
        if (given && !strcmp(u->encoding, lab_bias_encoding)) continue;
        const double most = u->rows ? lab_arm_option(a->attention, u->encoding, u->option) : NAN;
        if (most > s->length + u->plus)
            lab_add_warning(r, "%s: %s=%g, but training has %d tokens: %s beyond are never trained",
                            u->encoding, u->option, most, s->length, u->rows);
    }
    const struct loci_pe *pe = loci_pe_find(a->embed, strcspn(a->embed, ":"));
    if (pe && pe->tensors && !a->random && s->longest > s->length)
        lab_add_warning(r, "%s: positions beyond the %d trained ones %s (--set learned=...)",
                        pe->name, s->length, beyond[c->learned]);
}

void lab_warn(const struct lab_config *c, const struct lab_model *m, struct lab_result *r)
{
    const struct lab_shape *s = lab_model_shape(m);
    const struct lab_arm *a = lab_model_arm(m);
    const bool longer = s->longest > s->length;
    char family[LAB_NAME * 2];
    lab_arm_family(a, family);
    warn_of_tables(c, s, a, r);
    const double fast = lab_arm_option(a->attention, NULL, "beta_fast");
    if (strstr(a->attention, "scaling=yarn")
        && (isnan(fast) ? 32 : fast) > s->length / 6.283185307179586)
        lab_add_warning(r,
                        "yarn: no pair turns beta_fast = %g times within %d tokens, so every pair "
                        "is rescaled; beta_fast must be below %d tokens / 2 pi = %.3g",
                        isnan(fast) ? 32 : fast, s->length, s->length,
                        s->length / 6.283185307179586);
    size_t n;
    const char *part = lab_arm_with(a->attention, "slopes", &n);
    if (part && !strstr(a->attention, "slopes=given") && s->heads != 8) {
        int below = 1;
        while (2 * below <= s->heads) below *= 2;
        lab_add_warning(r,
                        "%.*s: its slopes depend on the number of heads; with %d they go from "
                        "%.3g to 1/256, with its authors' 8 from 0.5",
                        (int)strcspn(part, ":+"), part, s->heads,
                        exp2(-8.0 / (s->heads > below ? 2 * below : below)));
    }
    int width;
    const char *narrow = lab_arm_narrow(a, s->dim / s->heads, &width);
    if (narrow)
        lab_add_warning(r,
                        "%s: heads are %d wide, its authors' %d: of their few frequencies those "
                        "are cut that do not turn once within %d tokens",
                        narrow, s->dim / s->heads, width, s->length);
    const char *sticks = lab_arm_at(a->attention, LOCI_PLACE_WEIGHT, &n);
    if (sticks)
        lab_add_warning(r,
                        "%.*s: a token does not see itself, and the first ones see next to "
                        "nothing, so their loss says nothing of the encoding",
                        (int)strcspn(sticks, ":+"), sticks);
    if (!strcmp(family, "nothing") && has_row(r, lab_change_name(LAB_WINDOW)))
        lab_add_warning(r,
                        "%s: it counts from the BOS token, which rows beyond the first %d do "
                        "not see in the row 'window'",
                        a->attention, s->length);
    if (strstr(family, "embed") && !a->random && longer && fixed_length(c))
        lab_add_warning(r,
                        "all training sequences have %d tokens: what is added to embeddings may "
                        "look perfect there and nowhere else",
                        s->length);
    if (longer && !sticks && !has_row(r, lab_change_name(LAB_LOGN)))
        lab_add_warning(r, "a softmax over more keys is flatter, whatever the encoding, and no row "
                           "'logn' was tested here, which tells what that costs at longer lengths");
    if (!r->learned)
        lab_add_warning(
            r, "not learned: what it does at other lengths says nothing about its encoding");
}
