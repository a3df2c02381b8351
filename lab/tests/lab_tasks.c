/* SPDX-License-Identifier: MIT */
/* lab_tasks.c -- the lab's tasks are correct: every sequence is read in readable form, token by
 * token, and solved again here.  Lengths and shares are as documented.  The bits of sequences and
 * of the generated corpus never change. */
#define _DEFAULT_SOURCE
#include <math.h>
#include <string.h>

#include "harness.h"
#include "lab/sha256.h"
#include "lab/task.h"
#include "scratch.h"

enum { UNTOUCHED = -77, GENERATED = 700000 };
static struct lab_corpus stories, bytes;

/* ---- One sequence ---------------------------------------------------------------------------- */

struct sequence {
    const struct lab_problem *p;
    const struct lab_column *column; /* NULL: training */
    int row, n;
    int32_t *token, *target;
    char (*word)[16], (*want)[16]; /* input and output of solvers: "" or a word */
};

static const char *column_name(const struct lab_column *c) { return c ? c->name : "training"; }
#define WHERE "%s, %s, row %d"
#define OF(s) (s)->p->task->name, column_name((s)->column), (s)->row

/* In arrays of the exact length, so that sanitizers report accesses beyond. */
static struct sequence draw(const struct lab_problem *p, const struct lab_column *c, uint64_t key,
                            int row)
{
    const size_t capacity = (size_t)(c ? c->length : p->task->longest(p));
    struct sequence s = { .p = p,
                          .column = c,
                          .row = row,
                          .token = malloc(capacity * 4),
                          .target = malloc(capacity * 4),
                          .word = malloc(capacity * 16),
                          .want = calloc(capacity, 16) };
    for (size_t i = 0; i < capacity; i++) s.token[i] = s.target[i] = UNTOUCHED;
    s.n = p->task->draw(p, c, key, row, s.token, s.target);
    CHECK_THAT(s.n >= 2 && s.n <= (int)capacity, WHERE ": %d of %zu tokens", OF(&s), s.n, capacity);
    for (size_t i = (size_t)s.n; i < capacity; i++)
        if (s.token[i] != UNTOUCHED || s.target[i] != UNTOUCHED)
            CHECK_FAILED(WHERE ": token %zu behind the end is written", OF(&s), i);
    return s;
}

static struct sequence draw_row(const struct lab_problem *p, const struct lab_column *c, int row)
{
    return draw(p, c, c ? lab_test_key(p, c->name, row) : lab_train_key(p, 5, row / 32, row % 32),
                row);
}

static void drop(struct sequence *s)
{
    free(s->token);
    free(s->target);
    free(s->word);
    free(s->want);
}

static bool is(const struct sequence *s, int i, const char *word)
{
    return i < s->n && !strcmp(s->word[i], word);
}
static int find(const struct sequence *s, int from, const char *word)
{
    while (from < s->n && !is(s, from, word)) from++;
    return from;
}
static void want(struct sequence *s, int i, const char *word)
{
    CHECK_THAT(i < s->n, WHERE ": token %d of %d wants %s", OF(s), i, s->n, word);
    if (i < s->n) snprintf(s->want[i], 16, "%s", word);
}
static double option(const struct lab_problem *p, const char *name)
{
    for (int i = 0; p->task->options[i].name; i++)
        if (!strcmp(p->task->options[i].name, name)) return p->option[i];
    CHECK_FAILED("%s has no %s", p->task->name, name);
    return 0;
}

/* ---- Solvers: from words to words ------------------------------------------------------------ */

static void solve_text(struct sequence *s)
{
    for (int i = 0; i + 1 < s->n; i++) want(s, i, s->word[i + 1]);
    /* check_text() looks up the byte behind the window */
    char last[16];
    s->p->task->show(s->p, s->target[s->n - 1], last);
    want(s, s->n - 1, last);
}

static void solve_flipflop(struct sequence *s)
{
    const char *memory = "";
    CHECK_THAT(s->n % 2 == 0 && is(s, 1, "w") && is(s, s->n - 1, "r"), WHERE, OF(s));
    for (int i = 1; i < s->n; i += 2) {
        CHECK_THAT(is(s, i, "w") || is(s, i, "i") || is(s, i, "r"), WHERE ": %d", OF(s), i);
        CHECK_THAT(i + 1 == s->n || is(s, i + 1, "0") || is(s, i + 1, "1"), WHERE, OF(s));
        if (is(s, i, "r")) want(s, i, memory);
        if (is(s, i, "r") && i + 1 < s->n) CHECK_THAT(is(s, i + 1, memory), WHERE, OF(s));
        if (is(s, i, "w")) memory = s->word[i + 1];
    }
}

/* The last value after this key before token `end`, searching backwards. */
static const char *value_before(const struct sequence *s, int end, const char *key)
{
    for (int i = end - 2; i > 0; i -= 2)
        if (is(s, i, key)) return s->word[i + 1];
    return NULL;
}

static void solve_recall(struct sequence *s)
{
    const bool block = option(s->p, "form") == 1;
    const int pairs = s->n / 2, most = pairs * 2 / 5, keys = (int)option(s->p, "keys");
    const int live = keys < most ? keys : most, written = block ? live + live / 2 : 0;
    int asked = 0;
    CHECK_THAT(s->n % 2 == 0, WHERE ": %d tokens", OF(s), s->n);
    for (int i = 1; i < s->n; i += 2) {
        const bool question = i > 2 * written;
        CHECK_THAT(s->word[i][0] == 'k' || (block && question), WHERE ": token %d", OF(s), i);
        CHECK_THAT(i + 1 == s->n || s->word[i + 1][0] == 'v', WHERE ": token %d", OF(s), i);
        if (s->word[i][0] != 'k' || !question) continue;
        const char *value = value_before(s, i, s->word[i]);
        CHECK_THAT(value || !block, WHERE ": %s has no value", OF(s), s->word[i]);
        if (value) {
            want(s, i, value);
            asked++;
        }
        if (block)
            CHECK_THAT(find(s, i + 1, s->word[i]) == s->n, WHERE ": %s twice", OF(s), s->word[i]);
    }
    CHECK_THAT(block ? asked == live : asked > 0, WHERE ": asked %d of %d", OF(s), asked, live);
}

/* As many pairs as questions, on the grid of the task. */
static void solve_mqar(struct sequence *s)
{
    static const int grid[][2] = { { 16, 1 }, { 32, 2 }, { 64, 4 }, { 64, 8 }, { 64, 16 } };
    const int unit = s->p->length / 64;
    int pairs = 0;
    bool known = s->column && s->column->value[0] > 0;
    for (int i = 0; i < s->n; i++) pairs += s->target[i] >= 0;
    if (s->column && s->column->value[0] > 0)
        CHECK_THAT(s->n == (int)s->column->value[0] && pairs == (int)s->column->value[1],
                   WHERE ": %d pairs in %d", OF(s), pairs, s->n);
    for (int i = 0; i < 5; i++) known |= s->n == grid[i][0] * unit && pairs == grid[i][1] * unit;
    CHECK_THAT(known, WHERE ": %d pairs in %d", OF(s), pairs, s->n);
    for (int i = 1; i <= 2 * pairs; i++) {
        CHECK_THAT(s->word[i][0] == (i % 2 ? 'k' : 'v'), WHERE ": token %d", OF(s), i);
        for (int j = 1; j < i; j++)
            if (is(s, i, s->word[j])) CHECK_FAILED(WHERE ": %s twice", OF(s), s->word[i]);
        if (i % 2 == 0) continue;
        const int again = find(s, 2 * pairs + 1, s->word[i]);
        CHECK_THAT(again % 2 == 1 && find(s, again + 1, s->word[i]) == s->n, WHERE ": %s at %d",
                   OF(s), s->word[i], again);
        want(s, again, s->word[i + 1]);
    }
}

/* The last symbol occurs once before, at a distance of the column. */
static void solve_induct(struct sequence *s)
{
    const int before = find(s, 1, s->word[s->n - 1]), distance = s->n - 1 - before;
    CHECK_THAT(before < s->n - 2 && find(s, before + 1, s->word[s->n - 1]) == s->n - 1,
               WHERE ": %s at %d of %d", OF(s), s->word[s->n - 1], before, s->n);
    const double *of = s->column ? s->column->value : (double[4]){ 0 };
    if (of[1] > 0)
        CHECK_THAT(distance >= of[0] && distance <= of[1], WHERE ": %d back", OF(s), distance);
    want(s, s->n - 1, s->word[before + 1]);
}

static void solve_string(struct sequence *s)
{
    const bool once = s->p->task->name[4] == '1', back = !strcmp(s->p->task->name, "reverse");
    const int sep = find(s, 1, "SEP"), n = sep - 1;
    CHECK_THAT(n > 0 && s->n == 2 * n + 2, WHERE ": %d tokens, SEP at %d", OF(s), s->n, sep);
    for (int i = 0; i < n; i++) {
        want(s, sep + i, s->word[back ? n - i : 1 + i]);
        CHECK_THAT(s->word[1 + i][0] == 's', WHERE ": %s", OF(s), s->word[1 + i]);
        if (once) CHECK_THAT(is(s, 1 + i, s->word[1]), WHERE ": %s", OF(s), s->word[1 + i]);
    }
    want(s, sep + n, "EOS"); /* a model that goes on has not copied */
    if (s->column && s->column->value[0] > 0)
        CHECK_THAT(n == (int)s->column->value[0], WHERE ": %d symbols", OF(s), n);
}

/* A number from its digits, the least significant first. */
static unsigned long long number(const struct sequence *s, int from, int to)
{
    unsigned long long x = 0;
    for (int i = to - 1; i >= from; i--) {
        CHECK_THAT(s->word[i][0] >= '0' && s->word[i][0] <= '9', WHERE ": %s", OF(s), s->word[i]);
        x = 10 * x + (unsigned long long)(s->word[i][0] - '0');
    }
    CHECK_THAT(to == from + 1 || !is(s, to - 1, "0"), WHERE ": a zero in front", OF(s));
    return x;
}

static void solve_add(struct sequence *s)
{
    const int plus = find(s, 1, "+"), equals = find(s, plus, "=");
    const int a = plus - 1, b = equals - plus - 1;
    const int most = s->column && s->column->value[0] > 0 ? (int)s->column->value[0]
                                                          : (int)option(s->p, "digits");
    CHECK_THAT(a > 0 && b > 0 && a <= most && b <= most, WHERE ": %d, %d digits", OF(s), a, b);
    if (s->column && !s->column->trained)
        CHECK_THAT(a == most || b == most, WHERE ": %d, %d digits", OF(s), a, b);
    char sum[32];
    const int n =
        snprintf(sum, sizeof sum, "%llu", number(s, 1, plus) + number(s, plus + 1, equals));
    for (int i = 0; i < n; i++) want(s, equals + i, (char[2]){ sum[n - 1 - i] });
    want(s, equals + n, "EOS");
    CHECK_THAT(s->n == equals + n + 1, WHERE ": %d tokens", OF(s), s->n);
}

/* A number from digits behind hints that count up from *hint on; 0: the first says so. */
static unsigned long long hinted(const struct sequence *s, int from, int to, int *hint)
{
    const int hints = 2 * (int)option(s->p, "digits") + 1;
    unsigned long long x = 0, ten = 1;
    CHECK_THAT(to > from && (to - from) % 2 == 0, WHERE ": %d to %d", OF(s), from, to);
    if (!*hint) *hint = atoi(s->word[from] + 1);
    for (int i = from; i + 1 < to; i += 2, ten *= 10) {
        CHECK_THAT(s->word[i][0] == 'h'
                       && atoi(s->word[i] + 1) - 1 == (*hint - 1 + (i - from) / 2) % hints,
                   WHERE, OF(s));
        x += ten * (unsigned long long)(s->word[i + 1][0] - '0');
    }
    CHECK_THAT(to == from + 2 || !is(s, to - 1, "0"), WHERE ": a zero in front", OF(s));
    return x;
}

static void solve_addhint(struct sequence *s)
{
    const int plus = find(s, 1, "+"), equals = find(s, plus, "=");
    int hint = 0;
    const unsigned long long a = hinted(s, 1, plus, &hint), b = hinted(s, plus + 1, equals, &hint);
    char sum[32], text[16];
    const int n = snprintf(sum, sizeof sum, "%llu", a + b);
    for (int i = 0; i < n; i++) {
        snprintf(text, sizeof text, "h%d",
                 1 + (hint - 1 + i) % (2 * (int)option(s->p, "digits") + 1));
        want(s, equals + 2 * i, text);
        want(s, equals + 2 * i + 1, (char[2]){ sum[n - 1 - i] });
    }
    want(s, equals + 2 * n, "EOS");
    CHECK_THAT(s->n == equals + 2 * n + 1, WHERE ": %d tokens", OF(s), s->n);
    const int digits = s->column ? (int)s->column->value[0] : 0;
    if (digits) CHECK_THAT(plus - 1 == 2 * digits || equals - plus - 1 == 2 * digits, WHERE, OF(s));
}

static void solve_count(struct sequence *s)
{
    int value[26];
    for (int v = 0; v < 26; v++) value[v] = -1;
    int i = 1;
    while (i < s->n && !is(s, i, "print")) {
        const int v = i + 1 < s->n ? s->word[i + 1][0] - 'a' : 0;
        if (is(s, i, "pass")) {
            i++;
        } else if (is(s, i, "set")) {
            CHECK_THAT(is(s, i + 2, "0"), WHERE ": token %d", OF(s), i);
            value[v] = 0;
            i += 3;
        } else {
            CHECK_THAT(is(s, i, "inc") && value[v] >= 0, WHERE ": token %d", OF(s), i);
            CHECK_THAT(++value[v] <= 10, WHERE ": %d", OF(s), value[v]);
            i += 2;
        }
    }
    CHECK_THAT(i == s->n - 2, WHERE ": print at %d of %d", OF(s), i, s->n);
    const int asked = value[s->word[s->n - 1][0] - 'a'];
    CHECK_THAT(asked >= 0, WHERE ": %s was never set", OF(s), s->word[s->n - 1]);
    char text[16];
    snprintf(text, sizeof text, "%d", asked);
    want(s, s->n - 1, text);
}

static void solve_selcopy(struct sequence *s)
{
    const int sep = find(s, 1, "SEP"), n = (int)option(s->p, "symbols");
    int at = sep, blanks = 0;
    for (int i = 1; i < sep; i++)
        if (is(s, i, "_")) blanks++;
        else want(s, at++, s->word[i]);
    const int m = s->column ? (int)s->column->value[0] : (int)option(s->p, "blanks");
    CHECK_THAT(at - sep == n && blanks == m && s->n == at, WHERE ": %d symbols, %d blanks", OF(s),
               at - sep, blanks);
}

static int find_key(const struct sequence *s)
{
    for (int i = 1; i + 8 < s->n; i++)
        if (is(s, i, "#") && is(s, i + 1, "k") && is(s, i + 2, "=") && is(s, i + 8, "#")) return i;
    return -1;
}

static void solve_passkey(struct sequence *s)
{
    const int key = find_key(s), words = s->n - 17;
    CHECK_THAT(key > 0, WHERE ": no key", OF(s));
    if (key < 0) return;
    CHECK_THAT(is(s, s->n - 7, "?") && is(s, s->n - 6, "k") && is(s, s->n - 5, "="), WHERE, OF(s));
    for (int i = 0; i < 5; i++) want(s, s->n - 5 + i, s->word[key + 3 + i]);
    if (s->column)
        CHECK_THAT(key - 1 == words * (s->row % 11) / 10, WHERE ": key at %d", OF(s), key);
}

static void solve_parity(struct sequence *s)
{
    int ones = 0;
    for (int i = 1; i < s->n - 1; i++) {
        CHECK_THAT(is(s, i, "0") || is(s, i, "1"), WHERE ": %s", OF(s), s->word[i]);
        ones += is(s, i, "1");
    }
    CHECK_THAT(is(s, s->n - 1, "="), WHERE, OF(s));
    want(s, s->n - 1, ones % 2 ? "1" : "0");
}

/* Neighbours differ in an odd number of places if the ends do. */
static void solve_evenpairs(struct sequence *s)
{
    CHECK_THAT(is(s, s->n - 1, "="), WHERE, OF(s));
    want(s, s->n - 1, strcmp(s->word[1], s->word[s->n - 2]) ? "1" : "0");
}

static void solve_modular(struct sequence *s)
{
    const int modulus = (int)option(s->p, "modulus");
    long sum = 0;
    for (int i = 1; i < s->n;) { /* products, of numbers at odd places */
        long product = is(s, i - 1, "-") ? -atol(s->word[i]) : atol(s->word[i]);
        for (; is(s, i + 1, "*"); i += 2) product = product * atol(s->word[i + 2]) % modulus;
        CHECK_THAT(is(s, i + 1, i + 2 == s->n ? "=" : is(s, i + 1, "+") ? "+" : "-"), WHERE, OF(s));
        sum += product;
        i += 2;
    }
    char text[16];
    snprintf(text, sizeof text, "%ld", (sum % modulus + modulus) % modulus);
    want(s, s->n - 1, text);
}

/* Each word acts on the string that the last one has left. */
static void solve_permute(struct sequence *s)
{
    char now[16] = "12345", next[16] = "";
    const int k = (int)option(s->p, "elements");
    now[k] = 0;
    for (int i = 1; i < s->n; i++) {
        CHECK_THAT((int)strlen(s->word[i]) == k, WHERE ": %s", OF(s), s->word[i]);
        for (int j = 0; j < k; j++) next[j] = now[s->word[i][j] - '1'];
        strcpy(now, next);
        if (!s->column || i == s->n - 1) want(s, i, now);
    }
}

static const struct solver {
    const char *task;
    void (*solve)(struct sequence *);
} solvers[] = {
    { "text", solve_text },       { "flipflop", solve_flipflop }, { "recall", solve_recall },
    { "mqar", solve_mqar },       { "induct", solve_induct },     { "copy", solve_string },
    { "copy1", solve_string },    { "reverse", solve_string },    { "add", solve_add },
    { "addhint", solve_addhint }, { "count", solve_count },       { "selcopy", solve_selcopy },
    { "passkey", solve_passkey }, { "parity", solve_parity },     { "evenpairs", solve_evenpairs },
    { "modular", solve_modular }, { "permute", solve_permute },
};
enum { SOLVERS = sizeof solvers / sizeof *solvers };

/* ---- Every task, every column ---------------------------------------------------------------- */

static void check_sequence(struct sequence *s)
{
    const struct lab_task *t = s->p->task;
    const int tokens = t->vocabulary(s->p);
    const bool stream = (!strcmp(t->name, "recall") && option(s->p, "form") == 0)
                     || !strcmp(t->name, "mqar") || !strcmp(t->name, "permute");
    int asked = 0, bad = 0;
    for (int i = 0; i < s->n; i++) {
        const int32_t x = s->token[i], y = s->target[i];
        bad += x < 0 || x >= tokens || (x == LAB_BOS) != (i == 0);
        bad += y < -1 || y >= tokens || y == LAB_BOS;
        /* the answer to the question comes next, except where a key gets a new value, and where
         * answers are not part of the input */
        if (y >= 0 && i + 1 < s->n && !stream) bad += s->token[i + 1] != y;
        asked += y >= 0;
    }
    CHECK_THAT(!bad && asked, WHERE ": %d tokens out of place, %d asked", OF(s), bad, asked);
    if (bad) return;
    for (int i = 0; i < s->n; i++) t->show(s->p, s->token[i], s->word[i]);
    for (int i = 0; i < SOLVERS; i++)
        if (!strcmp(solvers[i].task, t->name)) solvers[i].solve(s);
    for (int i = 0; i < s->n; i++) {
        char text[16] = "";
        if (s->target[i] >= 0) t->show(s->p, s->target[i], text);
        if (strcmp(text, s->want[i]))
            CHECK_FAILED(WHERE ": target %d is '%s', wanted '%s'", OF(s), i, text, s->want[i]);
    }
}

static void check_again(const struct lab_problem *p, const struct lab_column *c, int row)
{
    struct sequence a = draw_row(p, c, row), b = draw_row(p, c, row);
    const size_t size = (size_t)a.n * sizeof *a.token;
    CHECK_THAT(a.n == b.n && !memcmp(a.token, b.token, size) && !memcmp(a.target, b.target, size),
               WHERE ": not the same again", OF(&a));
    check_sequence(&a);
    drop(&a);
    drop(&b);
}

/* Words distinguish all tokens. */
static void check_words(const struct lab_problem *p)
{
    const int n = p->task->vocabulary(p);
    char(*word)[16] = malloc((size_t)n * 16);
    for (int i = 0; i < n; i++) {
        memset(word[i], 'x', 16);
        p->task->show(p, i, word[i]);
        CHECK_THAT(memchr(word[i], 0, 16) && word[i][0], "%s: word %d", p->task->name, i);
        for (int j = 0; j < i; j++)
            if (!strcmp(word[i], word[j])) CHECK_FAILED("%s: %s twice", p->task->name, word[i]);
    }
    free(word);
}

static int list_columns(const struct lab_problem *p, struct lab_column *list)
{
    struct lab_column beyond[LAB_COLUMNS + 1];
    const int n = p->task->columns(p, beyond);
    CHECK_THAT(n > 0 && n <= LAB_COLUMNS, "%s: %d columns", p->task->name, n);
    memcpy(list, beyond, (size_t)n * sizeof *list);
    return n;
}

/* Is a sequence of the tests one right or wrong answer?  Then there must be many of them. */
static bool one_answer(const struct lab_task *t)
{
    static const char *const names[] = { "induct",    "count",   "parity",
                                         "evenpairs", "modular", "permute" };
    bool is_one = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) is_one |= !strcmp(t->name, names[i]);
    return is_one;
}

/* Names exist and differ, at least one is trained, and times and lengths agree. */
static void check_columns(const struct lab_problem *p)
{
    struct lab_column c[LAB_COLUMNS];
    const int n = list_columns(p, c);
    int trained = 0;
    for (int i = 0; i < n; i++) {
        const char *task = p->task->name, *name = c[i].name;
        CHECK_THAT(name[0] && strlen(name) < LAB_NAME - 1, "%s: '%s'", task, name);
        for (int j = 0; j < i; j++) CHECK_THAT(strcmp(name, c[j].name), "%s: %s twice", task, name);
        trained += c[i].trained;
        if (c[i].trained)
            CHECK_THAT(c[i].times == 1 && c[i].length == p->task->longest(p), "%s: %s", task, name);
        CHECK_THAT(c[i].count >= 64 && c[i].count <= 2048, "%s: %s has %d", task, name, c[i].count);
        if (one_answer(p->task))
            CHECK_THAT(c[i].count >= 2000, "%s: %s has only %d", task, name, c[i].count);
    }
    const bool two = !strcmp(p->task->name, "count") && option(p, "variables") > 1;
    CHECK_THAT(trained == 1 + two, "%s: %d trained columns", p->task->name, trained);
}

static void check_problem(const struct lab_problem *p, int rows)
{
    struct lab_column c[LAB_COLUMNS];
    loci_error e = { 0 };
    const int n = list_columns(p, c);
    CHECK_THAT(!p->task->check || p->task->check(p, &e), "%s: %s", p->task->name, e.text);
    check_columns(p);
    check_words(p);
    for (int row = 0; row < rows; row++) check_again(p, NULL, row);
    for (int i = 0; i < n; i++)
        for (int row = 0; row < c[i].count && row < rows; row++) check_again(p, &c[i], row);
}

static struct lab_problem problem(const char *task, int length)
{
    return lab_problem(lab_task(task), length, &stories);
}
static struct lab_problem problem_with(const char *task, int length, const char *name, double value)
{
    struct lab_problem p = problem(task, length);
    loci_error e = { 0 };
    CHECK_THAT(!lab_problem_set(&p, name, value, &e), "%s", e.text);
    return p;
}

static void check_all(void)
{
    static const struct {
        const char *task;
        int length;
        const char *name;
        double value;
    } more[] = {
        { "flipflop", 16, "p_ignore", 0 }, { "flipflop", 17, "p_ignore", 0.98 },
        { "flipflop", 31, "p_ignore", 1 }, { "recall", 17, "keys", 2 },
        { "recall", 16, "keys", 256 },     { "recall", 64, "values", 2 },
        { "recall", 64, "form", 1 },       { "recall", 33, "form", 1 },
        { "copy", 0, "most", 4 },          { "copy", 0, "symbols", 2 },
        { "copy1", 0, "most", 5 },         { "copy1", 0, "symbols", 2 },
        { "reverse", 0, "most", 31 },      { "add", 0, "digits", 4 },
        { "add", 0, "digits", 9 },         { "count", 21, "variables", 1 },
        { "count", 64, "variables", 2 },   { "count", 321, "variables", 26 },
        { "selcopy", 0, "blanks", 2 },     { "selcopy", 0, "symbols", 2 },
        { "selcopy", 0, "kinds", 2 },      { "mqar", 64, "symbols", 128 },
        { "mqar", 256, "symbols", 8192 },  { "mqar", 128, "symbols", 257 },
        { "induct", 16, "symbols", 3 },    { "induct", 37, "symbols", 16 },
        { "addhint", 0, "digits", 4 },     { "addhint", 0, "digits", 9 },
        { "modular", 0, "modulus", 2 },    { "modular", 0, "most", 4 },
        { "permute", 0, "elements", 2 },   { "permute", 0, "elements", 4 },
        { "evenpairs", 0, "most", 4 },
    };
    const struct lab_task *const *task;
    const int tasks = lab_tasks(&task);
    CHECK_THAT(tasks == SOLVERS, "%d tasks, %d solvers", tasks, SOLVERS);
    for (int i = 0; i < tasks && i < SOLVERS; i++) {
        CHECK_THAT(!strcmp(task[i]->name, solvers[i].task), "task %d is %s", i, task[i]->name);
        CHECK_THAT(lab_task(task[i]->name) == task[i], "%s", task[i]->name);
        CHECK_THAT(task[i]->brief && task[i]->scored, "%s", task[i]->name);
        const struct lab_problem p = problem(task[i]->name, 64);
        check_problem(&p, 150);
        if (!task[i]->corpus) continue;
        const struct lab_problem own = lab_problem(task[i], i ? 40 : 16, &bytes);
        check_problem(&own, 60);
    }
    CHECK_THAT(!lab_task("texts"), "an unknown task");
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        const struct lab_problem p =
            problem_with(more[i].task, more[i].length, more[i].name, more[i].value);
        check_problem(&p, 40);
    }
}

/* ---- Shares and lengths ---------------------------------------------------------------------- */

/* Counts that should be equal, within six standard deviations. */
static void check_even(const char *what, const int *times, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += times[i];
    const double mean = sum / n;
    for (int i = 0; i < n; i++)
        CHECK_CLOSE(times[i], mean, 6 * sqrt(mean), "%s: %d of %d", what, i, n);
}
static void check_share(const char *what, int times, int of, double share)
{
    CHECK_CLOSE(times, of * share, 6 * sqrt(of * share * (1 - share)) + 1e-9, "%s of %d", what, of);
}

static struct sequence words(const struct lab_problem *p, const struct lab_column *c, int row)
{
    struct sequence s = draw_row(p, c, row);
    for (int i = 0; i < s.n; i++) p->task->show(p, s.token[i], s.word[i]);
    return s;
}

enum { MANY = 4000 };

/* Instructions except the first and the last, and the bits that are not read. */
static void check_flipflop(const struct lab_column *c, double ignore)
{
    const struct lab_problem p = problem("flipflop", 64);
    int length[25] = { 0 }, what[3] = { 0 }, ones = 0, bits = 0, all = 0;
    for (int row = 0; row < MANY; row++) {
        struct sequence s = words(&p, c, row);
        const bool any = !c || c->times == 1;
        if (any) CHECK_THAT(s.n >= 16 && s.n <= 64, "%d tokens", s.n);
        if (any) length[s.n / 2 - 8]++;
        for (int i = 3; i < s.n - 1; i += 2, all++) {
            what[strchr("wir", s.word[i][0]) - "wir"]++;
            if (!is(&s, i, "r")) {
                bits++;
                ones += is(&s, i + 1, "1");
            }
        }
        if (c && c->times > 1) CHECK_THAT(s.n == c->length, "%s: %d tokens", c->name, s.n);
        drop(&s);
    }
    if (!c || c->times == 1) check_even("flipflop: lengths", length, 25);
    check_share("i", what[1], all, ignore);
    check_share("w", what[0], all, (1 - ignore) / 2);
    check_share("r", what[2], all, (1 - ignore) / 2);
    check_share("ones", ones, bits, 0.5);
}

/* A sequence has few keys.  Many sequences together use the whole pool. */
static void check_recall(const struct lab_column *c, int in_use)
{
    const struct lab_problem p = problem("recall", 64);
    int length[25] = { 0 }, key[32] = { 0 }, value[16] = { 0 }, most = 0, longest = 0;
    for (int row = 0; row < MANY; row++) {
        struct sequence s = words(&p, c, row);
        bool there[32] = { false };
        int live = 0;
        if (!c || c->times == 1) length[s.n / 2 - 8]++;
        for (int i = 1; i < s.n; i += 2) {
            const int k = atoi(s.word[i] + 1) - 1;
            if (i + 2 < s.n) {
                key[k]++;
                value[atoi(s.word[i + 1] + 1) - 1]++;
            }
            live += !there[k];
            there[k] = true;
        }
        most = live > most ? live : most;
        longest = s.n > longest ? s.n : longest;
        drop(&s);
    }
    if (!c || c->times == 1) check_even("recall: lengths", length, 25);
    else CHECK_THAT(longest == c->length, "recall: %d tokens", longest);
    CHECK_THAT(most <= in_use && most > in_use - 8, "recall: %d keys of %d", most, in_use);
    check_even("recall: values", value, 16);
    /* keys of one sequence are dependent: 32 of the pool, in_use at a time */
    for (int k = 0; k < 32; k++)
        CHECK_THAT(key[k] > MANY / 4, "recall: key %d %d times", k, key[k]);
}

static void check_strings(const char *task)
{
    const struct lab_problem p = problem(task, 0);
    int length[20] = { 0 }, symbol[32] = { 0 };
    for (int row = 0; row < MANY; row++) {
        struct sequence s = words(&p, NULL, row);
        const int sep = find(&s, 1, "SEP");
        CHECK_THAT(sep <= 21, "%s: %d symbols", task, sep - 1);
        length[sep - 2]++;
        for (int i = 1; i < sep && (i == 1 || strcmp(task, "copy1")); i++)
            symbol[atoi(s.word[i] + 1) - 1]++;
        drop(&s);
    }
    check_even(task, length, 20);
    check_even(task, symbol, 32);
}

static void check_add(const struct lab_column *c, int most)
{
    const struct lab_problem p = problem("add", 0);
    int a[16] = { 0 }, b[16] = { 0 }, digit[10] = { 0 }, first = 0;
    for (int row = 0; row < MANY; row++) {
        struct sequence s = words(&p, c, row);
        const int plus = find(&s, 1, "+"), equals = find(&s, plus, "=");
        a[plus - 2]++;
        b[equals - plus - 2]++;
        first += plus - 1 == most;
        if (plus > 2) digit[s.word[1][0] - '0']++;
        drop(&s);
    }
    check_even("add: digits", digit, 10);
    if (!c) {
        check_even("add: lengths of a", a, most);
        check_even("add: lengths of b", b, most);
    }
    /* it is the first, or the second and the first by chance */
    else
        check_share("first", first, MANY, 0.5 + 0.5 / most);
}

static void check_count(void)
{
    const struct lab_problem p = problem("count", 64);
    int length[49] = { 0 }, in_use[3] = { 0 }, what[3] = { 0 }, all = 0, value[11] = { 0 };
    for (int row = 0; row < MANY; row++) {
        struct sequence s = words(&p, NULL, row);
        length[s.n - 16]++;
        int i = 1, used = 0;
        for (; is(&s, i, "set") && s.word[i + 1][0] == 'a' + used; i += 3) used++;
        in_use[used - 1]++;
        while (i < s.n - 8) { /* where every statement still fits */
            const int w = is(&s, i, "set") ? 0 : is(&s, i, "inc") ? 1 : 2;
            what[w]++;
            all++;
            i += 3 - w;
        }
        drop(&s);
    }
    check_even("count: lengths", length, 49);
    check_even("count: variables", in_use, 3);
    check_share("count: set", what[0], all, 1 / 58.0);
    check_share("count: inc", what[1], all, 7 / 58.0);
    check_share("count: pass", what[2], all, 50 / 58.0);

    struct lab_column c[LAB_COLUMNS];
    const int n = list_columns(&p, c);
    for (int row = 0; row < 400; row++) {
        struct sequence s = words(&p, &c[n - 1], row);
        char text[16];
        p.task->show(&p, s.target[s.n - 1], text);
        value[atoi(text)]++;
        CHECK_THAT(s.n == 256, "count: %d tokens of %s", s.n, c[n - 1].name);
        drop(&s);
    }
    for (int v = 0; v <= 10; v++) CHECK_THAT(value[v] > 0, "count: never %d", v);
}

static void check_selcopy(void)
{
    const struct lab_problem p = problem("selcopy", 0);
    int at[32] = { 0 }, kind[16] = { 0 };
    for (int row = 0; row < MANY; row++) {
        struct sequence s = words(&p, NULL, row);
        for (int i = 1; i <= 32; i++)
            if (!is(&s, i, "_")) {
                at[i - 1]++;
                kind[atoi(s.word[i] + 1) - 1]++;
            }
        drop(&s);
    }
    check_even("selcopy: places", at, 32);
    check_even("selcopy: kinds", kind, 16);
}

static void check_passkey(void)
{
    const struct lab_problem p = problem("passkey", 64);
    int place[48] = { 0 }, digit[5][10] = { { 0 } };
    for (int row = 0; row < MANY; row++) {
        struct sequence s = words(&p, NULL, row);
        const int key = find_key(&s);
        place[key - 1]++;
        for (int i = 0; i < 5; i++) digit[i][s.word[key + 3 + i][0] - '0']++;
        drop(&s);
    }
    check_even("passkey: places", place, 48);
    for (int i = 0; i < 5; i++) check_even("passkey: digits", digit[i], 10);
}

static void check_parity(void)
{
    const struct lab_problem p = problem("parity", 0);
    int length[20] = { 0 }, ones = 0, all = 0;
    for (int row = 0; row < MANY; row++) {
        struct sequence s = words(&p, NULL, row);
        length[s.n - 3]++;
        for (int i = 1; i < s.n - 1; i++, all++) ones += is(&s, i, "1");
        drop(&s);
    }
    check_even("parity: lengths", length, 20);
    check_share("parity: ones", ones, all, 0.5);
}

/* Products of random permutations, results modulo 5, and ends of random bits are as even as their
 * parts. */
static void check_states(void)
{
    static const char *const tasks[] = { "evenpairs", "modular", "permute" };
    for (int t = 0; t < 3; t++) {
        const struct lab_problem p = problem(tasks[t], 0);
        const int tokens = p.task->vocabulary(&p);
        int *part = calloc((size_t)tokens, sizeof *part), length[20] = { 0 }, last = 0, all = 0;
        for (int row = 0; row < MANY; row++) {
            struct sequence s = draw_row(&p, NULL, row);
            length[(t == 0 ? s.n - 3 : t == 1 ? s.n / 2 - 1 : s.n - 2)]++;
            for (int i = 1; i < s.n; i++) part[s.token[i]]++;
            p.task->show(&p, s.target[s.n - 1], s.word[0]);
            all++;
            last += t == 0 ? is(&s, 0, "1") : t == 1 ? is(&s, 0, "3") : s.word[0][4] == '2';
            drop(&s);
        }
        check_even(tasks[t], length, t == 1 ? 16 : 20);
        if (t == 0) check_even("evenpairs: bits", part + 1, 2);
        if (t == 1) check_even("modular: signs", part + 1, 3);
        if (t == 1) check_even("modular: numbers", part + 5, 5);
        if (t == 2) check_even("permute: parts", part + 1, 120);
        /* a string of one bit has no neighbours; a product with a 0 is 0 */
        if (t == 2) check_share("permute: products", last, all, 0.2);
        else CHECK_THAT(last > all * (t ? 0.14 : 0.45) && last < all * (t ? 0.2 : 0.5), "%d", last);
        free(part);
    }
}

static void check_induct(void)
{
    const struct lab_problem p = problem("induct", 64);
    struct lab_column c[LAB_COLUMNS];
    int distance[5][256] = { { 0 } };
    const int n = list_columns(&p, c);
    CHECK_THAT(n == 5, "induct: %d columns", n);
    for (int i = 0; i < n; i++)
        for (int row = 0; row < MANY; row++) {
            struct sequence s = words(&p, &c[i], row);
            distance[i][s.n - 1 - find(&s, 1, s.word[s.n - 1])]++;
            CHECK_THAT(i == 0 || s.n == c[i].length, "induct: %d tokens", s.n);
            drop(&s);
        }
    for (int i = 1; i < n; i++)
        check_even(c[i].name, distance[i] + (i < 3 ? 2 : 63), i < 3 ? 61 : i == 3 ? 64 : 192);
    for (int d = 2; d < 63; d++) CHECK_THAT(distance[0][d] > 0, "induct: never %d back", d);
}

/* Places of the first key, whose draw finds all of them free, follow 1/gap. */
static void check_mqar(void)
{
    const struct lab_problem p = problem("mqar", 256);
    struct lab_column c[LAB_COLUMNS];
    CHECK_THAT(list_columns(&p, c) == 8, "columns of mqar");
    static const char *const names[] = { "as trained",
                                         "64 tokens, 4 pairs",
                                         "64 tokens, 8 pairs",
                                         "64 tokens, 16 pairs",
                                         "128 tokens, 32 pairs",
                                         "256 tokens, 64 pairs",
                                         "512 tokens, 128 pairs",
                                         "1024 tokens, 256 pairs" };
    for (int i = 0; i < 8; i++) CHECK_THAT(!strcmp(c[i].name, names[i]), "mqar: %s", c[i].name);
    int place[28] = { 0 }, pairs[65] = { 0 };
    double harmonic = 0;
    for (int row = 0; row < MANY; row++) {
        struct sequence s = words(&p, &c[1], row);
        place[(find(&s, 9, s.word[1]) - 9) / 2]++;
        drop(&s);
        s = draw_row(&p, NULL, row);
        int asked = 0;
        for (int i = 0; i < s.n; i++) asked += s.target[i] >= 0;
        pairs[asked]++;
        drop(&s);
    }
    for (int g = 1; g <= 28; g++) harmonic += 1.0 / g;
    for (int g = 1; g <= 28; g++) check_share("mqar: gap", place[g - 1], MANY, 1.0 / g / harmonic);
    check_share("mqar: 4 pairs", pairs[4], MANY, 5 / 9.0);
    for (int i = 8; i <= 64; i *= 2) check_share("mqar: more pairs", pairs[i], MANY, 1 / 9.0);
}

/* Training meets every hint equally often. */
static void check_hints(void)
{
    const struct lab_problem p = problem("addhint", 0);
    int first[17] = { 0 };
    for (int row = 0; row < MANY; row++) {
        struct sequence s = words(&p, NULL, row);
        first[atoi(s.word[1] + 1) - 1]++;
        drop(&s);
    }
    check_even("addhint: first hints", first, 17);
}

static void check_shares(void)
{
    const struct lab_problem flipflop = problem("flipflop", 64), recall = problem("recall", 64);
    const struct lab_problem add = problem("add", 0);
    struct lab_column c[LAB_COLUMNS];
    static const double ignore[] = { 0.8, 0.98, 0.1 };
    check_flipflop(NULL, 0.8);
    CHECK_THAT(list_columns(&flipflop, c) == 9, "columns of flipflop");
    for (int i = 0; i < 9; i++) check_flipflop(&c[i], ignore[i / 3]);
    check_recall(NULL, 16);
    CHECK_THAT(list_columns(&recall, c) == 5, "columns of recall");
    for (int i = 0; i < 5; i++) check_recall(&c[i], i < 4 ? 16 : 32);
    check_strings("copy");
    check_strings("copy1");
    check_strings("reverse");
    check_add(NULL, 8);
    CHECK_THAT(list_columns(&add, c) == 5, "columns of add");
    static const int digits[] = { 9, 10, 12, 16 };
    for (int i = 0; i < 4; i++) check_add(&c[i + 1], digits[i]);
    check_count();
    check_selcopy();
    check_passkey();
    check_parity();
    check_states();
    check_induct();
    check_mqar();
    check_hints();
}

/* ---- Text ------------------------------------------------------------------------------------ */

/* The position of these tokens in the corpus, from `from` on. -1: not found. */
static ptrdiff_t search(const struct lab_corpus *c, ptrdiff_t from, const int32_t *token, int n)
{
    for (; from + n <= c->count; from++)
        if (!memcmp(c->token + from, token, (size_t)n * sizeof *token)) return from;
    return -1;
}

/* Every column scores the same bytes: 64 stretches of the last 5 %, in order, none twice. */
static void check_text(const struct lab_corpus *corpus, int length)
{
    const struct lab_problem p = lab_problem(lab_task("text"), length, corpus);
    struct lab_column c[LAB_COLUMNS];
    const int columns = list_columns(&p, c), all = 64 * 8 * length;
    int32_t *scored[4];
    CHECK_THAT(columns == 4, "%d columns", columns);
    for (int i = 0; i < 4; i++) {
        int n = 0;
        scored[i] = malloc((size_t)all * sizeof *scored[i]);
        CHECK_THAT(c[i].count * c[i].length == all, "%s: %d windows", c[i].name, c[i].count);
        for (int row = 0; row < c[i].count; row++) {
            struct sequence s = draw_row(&p, &c[i], row);
            for (int j = 0; j < s.n && n < all; j++) scored[i][n++] = s.target[j];
            drop(&s);
        }
        CHECK_THAT(n == all && !memcmp(scored[i], scored[0], (size_t)all * 4), "%s", c[i].name);
    }
    ptrdiff_t at = corpus->tests, first = -1;
    for (int i = 0; i < 64 && at >= 0; i++) {
        at = search(corpus, at, scored[0] + 8 * i * length, 8 * length);
        CHECK_THAT(at >= 0, "stretch %d is not in the last 5 %%", i);
        if (i == 0) first = at;
        if (at >= 0) at += 8 * length;
    }
    CHECK_THAT(first == corpus->tests && at == corpus->count, "from %td to %td", first, at);
    for (int i = 0; i < 4; i++) free(scored[i]);
}

/* Windows of training come from all over the first 90 %, those of passkey in two pieces. */
static void check_training_text(void)
{
    const struct lab_problem p = lab_problem(lab_task("text"), 32, &bytes);
    int tenth[10] = { 0 };
    for (int row = 0; row < 500; row++) {
        struct sequence s = draw_row(&p, NULL, row);
        const ptrdiff_t at = search(&bytes, 0, s.target, s.n);
        CHECK_THAT(s.n == 32 && at >= 0 && at + 32 <= bytes.train, "row %d at %td", row, at);
        if (at >= 0 && at < bytes.train) tenth[10 * at / bytes.train]++;
        drop(&s);
    }
    check_even("text: places", tenth, 10);
}

/* Validation has the shape of the trained columns, its text lies between training and tests, and
 * its keys are of its own. */
static void check_validation(void)
{
    const struct lab_task *const *task;
    for (int i = 0, tasks = lab_tasks(&task); i < tasks; i++) {
        const struct lab_problem p = problem(task[i]->name, 64);
        struct lab_column c[LAB_COLUMNS];
        for (int k = list_columns(&p, c) - 1; k >= 0; k--) {
            if (!c[k].trained) continue;
            const struct lab_column v = lab_validation(&c[k]);
            int same = 0;
            CHECK_THAT(v.length == c[k].length && v.count == c[k].count && v.trained, "%s", v.name);
            for (int row = 0; row < 60; row++) {
                struct sequence a = draw_row(&p, &c[k], row), b = draw_row(&p, &v, row);
                check_sequence(&b);
                same += a.n == b.n && !memcmp(a.token, b.token, (size_t)a.n * sizeof *a.token);
                drop(&a);
                drop(&b);
            }
            CHECK_THAT(same < 12, "%s: %d of 60 are those of the test", task[i]->name, same);
        }
    }
    for (int t = 0; t < 2; t++) {
        const struct lab_problem p = lab_problem(lab_task(t ? "passkey" : "text"), 64, &stories);
        struct lab_column c[LAB_COLUMNS];
        list_columns(&p, c);
        const struct lab_column v = lab_validation(&c[0]);
        for (int row = 0; row < v.count; row += 7) {
            struct sequence s = words(&p, &v, row);
            const int key = t ? find_key(&s) : 0, n = t ? s.n - 17 - key : s.n;
            const int32_t *text = t ? s.token + key + 9 : s.target;
            const ptrdiff_t at = n > 8 ? search(&stories, stories.train, text, n) : stories.train;
            CHECK_THAT(at >= stories.train && at + n <= stories.tests, WHERE ": %td", OF(&s), at);
            drop(&s);
        }
    }
}

/* The text around a key comes from the right part of the corpus. */
static void check_passkey_text(void)
{
    const struct lab_problem p = lab_problem(lab_task("passkey"), 64, &bytes);
    struct lab_column c[LAB_COLUMNS];
    const int columns = list_columns(&p, c);
    for (int i = -1; i < columns; i++)
        for (int row = 0; row < 40; row++) {
            struct sequence s = words(&p, i < 0 ? NULL : &c[i], row);
            const int key = find_key(&s), n = s.n - 17;
            if (key < 0) continue;
            memmove(s.token + key, s.token + key + 9, (size_t)(n - key + 1) * sizeof *s.token);
            const ptrdiff_t at = search(&bytes, 0, s.token + 1, n);
            CHECK_THAT(at >= 0 && (i < 0 ? at + n <= bytes.train : at >= bytes.tests),
                       WHERE ": at %td", OF(&s), at);
            drop(&s);
        }
}

/* ---- Keys ------------------------------------------------------------------------------------ */

static int by_key(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Over all tasks: two seeds, some steps, rows, and all rows of all columns. */
static void check_keys(void)
{
    enum { ROOM = 400000 };
    uint64_t *key = malloc(ROOM * sizeof *key);
    const struct lab_task *const *task;
    int n = 0, odd = 0, tests = 0;
    for (int i = 0, tasks = lab_tasks(&task); i < tasks; i++) {
        const struct lab_problem p = problem(task[i]->name, 64);
        struct lab_column c[LAB_COLUMNS];
        for (int j = list_columns(&p, c) - 1; j >= 0; j--)
            for (int row = 0; row < c[j].count; row++, tests++) {
                key[n++] = lab_test_key(&p, c[j].name, row);
                odd += key[n - 1] % 2;
            }
        for (int seed = 0; seed < 2; seed++)
            for (int64_t step = 0; step < 100; step++)
                for (int row = 0; row < 32; row++) key[n++] = lab_train_key(&p, seed, step, row);
    }
    int even = 0;
    for (int i = 0; i < n; i++) even += key[i] % 2 == 0;
    CHECK_THAT(odd == tests && even == n - tests, "%d of %d odd, %d even", odd, tests, even);
    qsort(key, (size_t)n, sizeof *key, by_key);
    for (int i = 1; i < n; i++)
        if (key[i] == key[i - 1]) CHECK_FAILED("one key twice");
    free(key);
    CHECK_THAT(lab_stream(1, "a") != lab_stream(2, "a") && lab_stream(1, "a") != lab_stream(1, "b")
                   && lab_stream(1, "ab") != lab_stream(1, "ba"),
               "streams");
}

/* ---- Bits ------------------------------------------------------------------------------------ */

static void digest(struct sha256 *s, const struct sequence *q)
{
    for (int i = 0; i < q->n; i++) {
        unsigned char four[4];
        for (int j = 0; j < 4; j++)
            four[j] = (unsigned char)((uint32_t)(j < 2 ? q->token : q->target)[i] >> 8 * (j % 2));
        sha256_add(s, four, 4);
    }
}

/* Three hundred sequences of training and ten of each column.  A change of any of them changes
 * published results, and must be announced. */
static void check_bits(void)
{
    static const struct {
        const char *task, *option;
        double value;
        const char *sha;
    } golden[] = {
        { "text", NULL, 0, "0913b5432f6f26d9" },    { "flipflop", NULL, 0, "19db12d675f90f5f" },
        { "recall", NULL, 0, "dfe1eb906df20888" },  { "recall", "form", 1, "90668680d2041828" },
        { "mqar", NULL, 0, "6d93ea34e70ad5cd" },    { "induct", NULL, 0, "8ec4a4f8125f3364" },
        { "addhint", NULL, 0, "f4dc962c5389c3e5" }, { "evenpairs", NULL, 0, "74088ad1bcf7a3a8" },
        { "modular", NULL, 0, "e4e791a10ed70044" }, { "permute", NULL, 0, "3c2feb11f5e9afd9" },
        { "copy", NULL, 0, "dcb3b918a325e953" },    { "copy1", NULL, 0, "884a2562cdbbbf21" },
        { "reverse", NULL, 0, "b6070559796222fe" }, { "add", NULL, 0, "5efe901f9b624d18" },
        { "count", NULL, 0, "593a0587609f5273" },   { "selcopy", NULL, 0, "9f03ab94f44926c9" },
        { "passkey", NULL, 0, "eaa80574510e2c36" }, { "parity", NULL, 0, "b222f151385f9f3c" },
    };
    for (size_t i = 0; i < sizeof golden / sizeof *golden; i++) {
        struct lab_problem p = problem(golden[i].task, 64);
        if (golden[i].option) lab_problem_set(&p, golden[i].option, golden[i].value, NULL);
        struct lab_column c[LAB_COLUMNS];
        struct sha256 sha;
        char hex[65];
        sha256_begin(&sha);
        for (int j = list_columns(&p, c) - 1; j >= -1; j--)
            for (int row = 0; row < (j < 0 ? 300 : 10); row++) {
                struct sequence s = draw_row(&p, j < 0 ? NULL : &c[j], row);
                digest(&sha, &s);
                drop(&s);
            }
        sha256_end(&sha, hex);
        CHECK_THAT(!strncmp(hex, golden[i].sha, 16) && golden[i].sha[0], "%s: %.16s",
                   golden[i].task, hex);
    }
}

/* ---- SHA-256 --------------------------------------------------------------------------------- */

static void check_hash(const char *text, size_t n, int times, size_t piece, const char *want)
{
    struct sha256 s;
    char hex[65];
    sha256_begin(&s);
    for (int i = 0; i < times; i++)
        for (size_t at = 0; at < n; at += piece)
            sha256_add(&s, text + at, n - at < piece ? n - at : piece);
    sha256_end(&s, hex);
    CHECK_THAT(!strcmp(hex, want), "%d times %.20s in pieces of %zu: %s", times, text, piece, hex);
}

/* Vectors of NIST: FIPS 180-2, appendix B, and the empty message. */
static void check_sha256(void)
{
    const char *two = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    check_hash("", 0, 1, 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    check_hash("abc", 3, 1, 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    for (size_t piece = 1; piece < 57; piece += 5)
        check_hash(two, 56, 1, piece,
                   "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    char a[1000];
    memset(a, 'a', sizeof a);
    for (size_t piece = 63; piece < 66; piece++)
        check_hash(a, 1000, 1000, piece,
                   "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

/* ---- The corpus ------------------------------------------------------------------------------ */

static char *text_of(const struct lab_corpus *c)
{
    char *text = malloc((size_t)c->count + 1);
    for (ptrdiff_t i = 0; i < c->count; i++) text[i] = (char)c->byte[c->token[i] - 1];
    text[c->count] = 0;
    return text;
}

/* Sums are right, quotations repeat recent sentences, lists count from 1, and "a" and "an" are
 * right. */
static void check_stories(void)
{
    char *text = text_of(&stories), *at = text;
    int sums = 0, quotes = 0, far = 0, items = 0;
    for (; (at = strchr(at, ':')); at++) {
        int a, b, c;
        char sign;
        if (sscanf(at, ": %d %c %d = %d.", &a, &sign, &b, &c) != 4) continue;
        CHECK_THAT(c == (sign == '+' ? a + b : a - b) && c > 0, "%d %c %d = %d", a, sign, b, c);
        sums++;
    }
    /* quotations contain no quotation marks; the last may be cut off */
    for (at = text; (at = strstr(at, ": \""));) {
        const char *from = at + 3, *end = strchr(from, '"');
        if (!end) break;
        const ptrdiff_t n = end - from;
        ptrdiff_t back = 30;
        while (back <= 500 && back <= from - text && memcmp(from - back, from, (size_t)n)) back++;
        const bool said = back <= 500 && back <= from - text;
        CHECK_THAT(said || !strncmp(from, "It is so.", 9), "quoted: %.60s", from);
        quotes++;
        far += said && back > 128;
        at += n + 4;
    }
    for (at = text; (at = strchr(at, '\n')); at++) {
        if (at[1] < '1' || at[1] > '9' || at[2] != '.') continue;
        const char *line = at - 1;
        while (line > text && line[-1] != '\n') line--;
        CHECK_THAT(at[1] == '1' || line[0] == at[1] - 1, "list: %.30s", line);
        items++;
    }
    for (at = text; (at = strstr(at, " a")); at++) {
        const bool an = at[2] == 'n' && at[3] == ' ', a = at[2] == ' ';
        const char next = at[an ? 4 : 3];
        if (next && (a || an)) CHECK_THAT(an == (strchr("aeiou", next) != NULL), "%.20s", at);
    }
    CHECK_THAT(!strstr(text, "There was two") && !strstr(text, "There were a"), "agreement");
    CHECK_THAT(sums > 500 && quotes > 2000 && items > 500, "%d, %d, %d", sums, quotes, items);
    CHECK_THAT(far > quotes / 2, "%d of %d quotations from further than 128", far, quotes);
    free(text);
}

static void check_corpus(void)
{
    CHECK_THAT(stories.symbols >= 60 && stories.symbols <= 70, "%d symbols", stories.symbols);
    CHECK_THAT(stories.count == GENERATED && stories.train == GENERATED / 20 * 18
                   && stories.tests == GENERATED / 20 * 19,
               "its parts");
    CHECK_THAT(stories.unigram > 2.9 && stories.unigram < 3.4, "%g", stories.unigram);
    CHECK_THAT(!strcmp(stories.name, "generated"), "%s", stories.name);
    CHECK_THAT(!strncmp(stories.sha256, "a82fbbfb1266bf02", 16), "%s", stories.sha256);

    /* a shorter corpus is a prefix of a longer one, and its hash is that of its bytes */
    struct lab_corpus less;
    loci_error e = { 0 };
    CHECK_THAT(!lab_corpus_open(&less, NULL, 10007, &e), "%s", e.text);
    char *a = text_of(&stories), *b = text_of(&less);
    struct sha256 s;
    char hex[65];
    sha256_begin(&s);
    sha256_add(&s, b, 10007);
    sha256_end(&s, hex);
    CHECK_THAT(less.count == 10007 && less.train == 9006 && less.tests == 9506
                   && !memcmp(a, b, 10007),
               "10007 bytes");
    CHECK_THAT(!strcmp(hex, less.sha256), "%s", less.sha256);
    free(a);
    free(b);
    lab_corpus_close(&less);
    lab_corpus_close(&less); /* a second close is harmless */
    check_stories();
}

static void write_file(char name[SCRATCH], const void *from, size_t n)
{
    scratch(name, "corpus");
    const int fd = mkstemp(name);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "wb");
    CHECK_THAT(f && fwrite(from, 1, n, f) == n && !fclose(f), "%s", name);
}

/* Arbitrary bytes; all 256 of them, and the smallest corpus for a length. */
static void check_files(void)
{
    enum { LEAST = 20 * (64 * 8 * 16 - 1) + 1 };
    char name[SCRATCH];
    unsigned char *noise = malloc(LEAST);
    struct lab_corpus c;
    loci_error e = { 0 };
    for (int i = 0; i < LEAST; i++) noise[i] = (unsigned char)(lab_stream((uint64_t)i, "x") >> 9);
    write_file(name, noise, LEAST);
    CHECK_THAT(!lab_corpus_open(&bytes, name, 0, &e), "%s", e.text);
    CHECK_THAT(bytes.symbols == 256 && bytes.count == LEAST, "%d symbols", bytes.symbols);
    CHECK_CLOSE(bytes.unigram, log(256), 0.01, "noise");
    CHECK_THAT(!strncmp(bytes.name, "loci-corpus-", 12), "%s", bytes.name);
    for (int i = 0; i < LEAST; i++)
        if (bytes.byte[bytes.token[i] - 1] != noise[i]) CHECK_FAILED("byte %d", i);
    unlink(name);

    write_file(name, noise, LEAST - 1);
    CHECK_THAT(!lab_corpus_open(&c, name, 0, &e), "%s", e.text);
    struct lab_problem p = lab_problem(lab_task("text"), 16, &bytes);
    CHECK_THAT(p.task->check(&p, &e), "%s", e.text);
    p.corpus = &c;
    CHECK_SAYS(p.task->check(&p, &e) ? LOCI_OK : e.status, LOCI_BAD_ARG, &e,
               "has 163820 bytes, and length 16 needs at least 163821");
    lab_corpus_close(&c);
    unlink(name);

    for (int i = 0; i < 5000; i++) noise[i] = i % 2 ? 'b' : 'a';
    write_file(name, noise, 5000);
    CHECK_THAT(!lab_corpus_open(&c, name, 0, &e), "%s", e.text);
    CHECK_THAT(c.symbols == 2 && c.train == 4500 && c.tests == 4750, "%d symbols, %td to train",
               c.symbols, c.train);
    CHECK_CLOSE(c.unigram, log(2), 1e-12, "a and b");
    lab_corpus_close(&c);
    unlink(name);
    free(noise);
}

static void check_bad_files(void)
{
    struct lab_corpus c;
    loci_error e = { 0 };
    char name[SCRATCH];
    CHECK_SAYS(lab_corpus_open(&c, "no/such/file", 0, &e), LOCI_BAD_ARG, &e,
               "corpus no/such/file: there is no such file");
    CHECK_THAT(!c.token, "a corpus that is not there");
    CHECK_SAYS(lab_corpus_open(&c, "/", 0, &e), LOCI_BAD_ARG, &e, "corpus /: this is a folder");
    CHECK_SAYS(lab_corpus_open(&c, "/dev/null", 0, &e), LOCI_BAD_ARG, &e, "not a regular file");
    write_file(name, "", 0);
    CHECK_SAYS(lab_corpus_open(&c, name, 0, &e), LOCI_BAD_ARG, &e, "the file is empty");
    unlink(name);
    write_file(name, "short", 5);
    CHECK_SAYS(lab_corpus_open(&c, name, 0, &e), LOCI_BAD_ARG, &e,
               "5 bytes are too few, it must have 4096 .. 1073741824");
    unlink(name);
    CHECK_SAYS(lab_corpus_open(&c, NULL, 100, &e), LOCI_BAD_ARG, &e,
               "100 generated bytes must be 4096 .. 1073741824");
    CHECK_SAYS(lab_corpus_open(&c, "a\nb\033", 0, &e), LOCI_BAD_ARG, &e, "corpus a?b?:");
    CHECK_THAT(lab_corpus_open(&c, "no/such/file", 0, NULL) == LOCI_BAD_ARG, "without a sentence");
}

/* ---- Options --------------------------------------------------------------------------------- */

static loci_status set(const char *task, const char *name, double value, loci_error *e)
{
    struct lab_problem p = problem(task, 64);
    return lab_problem_set(&p, name, value, e);
}
static loci_status refused(struct lab_problem p, loci_error *e)
{
    return p.task->check(&p, e) ? LOCI_OK : e->status;
}

static void check_options(void)
{
    loci_error e = { 0 };
    CHECK_SAYS(set("recall", "key", 3, &e), LOCI_BAD_ARG, &e,
               "recall has no option key; it has keys, values, form");
    CHECK_SAYS(set("text", "form", 1, &e), LOCI_BAD_ARG, &e, "text has no option form, nor any");
    CHECK_SAYS(set("recall", "keys", 1, &e), LOCI_BAD_ARG, &e,
               "recall: keys 1 must be a whole number in 2 .. 256");
    CHECK_SAYS(set("recall", "keys", 2.5, &e), LOCI_BAD_ARG, &e, "keys 2.5 must be a whole number");
    CHECK_SAYS(set("flipflop", "p_ignore", 1.5, &e), LOCI_BAD_ARG, &e,
               "flipflop: p_ignore 1.5 must be a number in 0 .. 1");
    CHECK_SAYS(set("flipflop", "p_ignore", NAN, &e), LOCI_BAD_ARG, &e, "p_ignore nan must");
    CHECK_SAYS(set("copy", "most", 1e300, &e), LOCI_BAD_ARG, &e, "most 1e+300 must");
    CHECK_SAYS(refused(problem("flipflop", 15), &e), LOCI_BAD_ARG, &e,
               "flipflop: length 15 must be 16 .. 1000000");
    CHECK_SAYS(refused(problem("recall", 2000000), &e), LOCI_BAD_ARG, &e, "length 2000000 must be");
    CHECK_SAYS(refused(problem_with("recall", 32, "form", 1), &e), LOCI_BAD_ARG, &e,
               "recall: length 32 must be at least 33 with form=1");
    CHECK_SAYS(refused(problem("count", 44), &e), LOCI_BAD_ARG, &e,
               "count: length 44 must be at least 45 with 3 variables");
    CHECK_THAT(!refused(problem("count", 45), &e), "count at 45");
    CHECK_SAYS(refused(problem("mqar", 100), &e), LOCI_BAD_ARG, &e,
               "mqar: length 100 must be a multiple of 64, as its grid has parts of it");
    CHECK_SAYS(refused(problem_with("mqar", 128, "symbols", 255), &e), LOCI_BAD_ARG, &e,
               "mqar: symbols 255 must be at least 256 for length 128");
    CHECK_SAYS(refused(problem("induct", 15), &e), LOCI_BAD_ARG, &e, "induct: length 15 must be");
    CHECK_SAYS(refused(problem("passkey", 33), &e), LOCI_BAD_ARG, &e,
               "passkey: length 33 must be at least 34");
    CHECK_SAYS(refused(problem("text", 128), &e), LOCI_BAD_ARG, &e,
               "text: the corpus generated has 700000 bytes, and length 128 needs at least "
               "1310701");
    CHECK_SAYS(refused(lab_problem(lab_task("text"), 64, NULL), &e), LOCI_BAD_ARG, &e,
               "text: needs a corpus");
}

/* The cost of tests at length 64: no task is out of proportion.  Many sequences of one answer each
 * have their price. */
static void check_cost(void)
{
    const struct lab_task *const *task;
    for (int i = 0, tasks = lab_tasks(&task); i < tasks; i++) {
        const struct lab_problem p = problem(task[i]->name, 64);
        struct lab_column c[LAB_COLUMNS];
        long sum = 0;
        for (int j = list_columns(&p, c) - 1; j >= 0; j--)
            for (int row = 0; row < c[j].count; row++) {
                struct sequence s = draw_row(&p, &c[j], row);
                sum += s.n;
                drop(&s);
            }
        CHECK_THAT(sum <= (one_answer(task[i]) ? 2000000 : 410000), "%s: %ld tokens", task[i]->name,
                   sum);
        if (getenv("LAB_COST")) printf("%-10s %ld\n", task[i]->name, sum);
    }
}

int main(void)
{
    loci_error e = { 0 };
    CHECK_THAT(!lab_corpus_open(&stories, NULL, GENERATED, &e), "%s", e.text);
    check_files();
    check_bad_files();
    check_sha256();
    check_corpus();
    check_all();
    check_shares();
    check_text(&stories, 64);
    check_text(&bytes, 16);
    check_training_text();
    check_passkey_text();
    check_validation();
    check_keys();
    check_bits();
    check_options();
    check_cost();
    lab_corpus_close(&stories);
    lab_corpus_close(&bytes);
    return harness_end();
}
