/* SPDX-License-Identifier: MIT */
/* recall.c -- which value did this key have last?
 *
 *     form=0, a stream:  BOS k v k v ... k      question at every key that occurred before
 *     form=1, a block:   BOS k v k v ... k v    pairs first, half of them overwritten later on,
 *                        k v k v v v k          and then each key once more, as a question
 *
 * In a stream keys and values are uniform, and a repeated key is followed by its new value: our
 * reading of the repeated recall of Tan et al. 2024, arXiv 2410.17980.  (If no key repeats by
 * itself, the last one is drawn among earlier keys, so that every sequence has a question.)  The
 * block is that of zoology's forgetting recall (Arora et al. 2023, arXiv 2312.04927).  The place of
 * a question is drawn with weights 1/gap, its power law of 0.01 but for a factor of gap^0.01.
 * Random values fill the places between questions.
 *
 * A sequence uses `keys` of a pool of twice that size, drawn anew each time, so that the column
 * with twice the keys in use has only trained keys.  n tokens are n/2 pairs, the last without its
 * value.  Training has n in [L/4, L], and so have columns of length L. */
#include "lab/draw.h"

enum { KEYS, VALUES, FORM };
enum { MOST = 256 }; /* keys in use at most, of a pool of twice that */

static int keys(const struct lab_problem *p) { return (int)p->option[KEYS]; }
static int32_t value(const struct lab_problem *p, struct lab_draws *d)
{
    return 1 + 2 * keys(p) + lab_pick(d, (int)p->option[VALUES]);
}

/* A block of fewer than 5 pairs has no place for a question. */
static bool check(const struct lab_problem *p, loci_error *e)
{
    enum { LEAST = 33 };
    if (!lab_check_length(p, e)) return false;
    return p->option[FORM] == 0 || p->length >= LEAST
        || lab_refuse(e, "recall: length %d must be at least %d with form=1", p->length, LEAST);
}

static int vocabulary(const struct lab_problem *p)
{
    return 1 + 2 * keys(p) + (int)p->option[VALUES];
}
static int longest(const struct lab_problem *p) { return p->length / 2 * 2; }

/* value[0]: keys in use.  A block of length L has few keys, so columns with twice the keys are for
 * streams. */
static int columns(const struct lab_problem *p, struct lab_column *list)
{
    int n = 0;
    for (int k = 1; k <= 8; k *= 2, n++) {
        list[n] = lab_column_of(k, k * longest(p), k > 1 ? 64 : 128, LAB_ACCURACY,
                                k > 1 ? "%dL" : "L", k);
        list[n].trained = k == 1;
        list[n].value[0] = keys(p);
    }
    if (p->option[FORM] == 0) {
        list[n] = lab_column_of(1, longest(p), 128, LAB_ACCURACY, "L, %d keys", 2 * keys(p));
        list[n++].value[0] = 2 * keys(p);
    }
    return n;
}

/* The first `use` of a shuffled pool. last[] is by key: its value, or 0. */
struct state {
    int use;
    int32_t key[2 * MOST], last[2 * MOST + 1];
};
static void begin(struct state *s, const struct lab_problem *p, struct lab_draws *d, int use)
{
    const int pool = 2 * keys(p);
    s->use = use;
    for (int i = 0; i < pool; i++) {
        s->key[i] = i + 1;
        s->last[i + 1] = 0;
    }
    for (int i = 0; i < use; i++) {
        const int j = i + lab_pick(d, pool - i);
        const int32_t swap = s->key[i];
        s->key[i] = s->key[j];
        s->key[j] = swap;
    }
}

/* Writes pair number i.  The last pair has no value. */
static void put(int32_t *token, int32_t *target, int n, int pair, int32_t key, int32_t ask,
                int32_t follows)
{
    token[2 * pair + 1] = key;
    target[2 * pair + 1] = ask ? ask : LAB_NOT_ASKED;
    if (2 * pair + 2 == n) return;
    token[2 * pair + 2] = follows;
    target[2 * pair + 2] = LAB_NOT_ASKED;
}

static void stream(const struct lab_problem *p, struct lab_draws *d, struct state *s, int n,
                   int32_t *token, int32_t *target)
{
    bool asked = false;
    for (int i = 0; i < n / 2; i++) {
        int32_t key = s->key[lab_pick(d, s->use)];
        const bool again = i == n / 2 - 1 && !asked;
        if (again && !s->last[key]) key = token[2 * lab_pick(d, i) + 1];
        const int32_t new = value(p, d), old = s->last[key];
        put(token, target, n, i, key, old, new);
        asked |= old != 0;
        s->last[key] = new;
    }
}

/* Of 5 pairs 2 are keys, 1 overwrites, and 2 are for questions.  More questions if keys are few. */
static void block(const struct lab_problem *p, struct lab_draws *d, struct state *s, int n,
                  int32_t *token, int32_t *target)
{
    const int pairs = n / 2, most = pairs * 2 / 5, live = s->use < most ? s->use : most;
    const int written = live + live / 2;
    for (int i = 0; i < written; i++) {
        const int32_t key = s->key[i < live ? i : lab_pick(d, live)];
        put(token, target, n, i, key, 0, s->last[key] = value(p, d));
    }
    for (int i = written; i < pairs; i++) put(token, target, n, i, 0, 0, value(p, d));
    for (int i = 0; i < live; i++) {
        const int at = written + lab_gap(d, token + 2 * written + 1, pairs - written);
        token[2 * at + 1] = s->key[i];
        target[2 * at + 1] = s->last[s->key[i]];
        if (2 * at + 2 < n) token[2 * at + 2] = s->last[s->key[i]];
    }
    for (int i = written; i < pairs; i++)
        if (!token[2 * i + 1]) token[2 * i + 1] = value(p, d);
}

static int draw(const struct lab_problem *p, const struct lab_column *c, uint64_t key, int row,
                int32_t *token, int32_t *target)
{
    (void)row;
    struct lab_draws d = { .key = key };
    struct state s;
    const int n = c && c->times > 1 ? c->length : lab_any_length(&d, p->length, 2);
    begin(&s, p, &d, c ? (int)c->value[0] : keys(p));
    token[0] = LAB_BOS;
    target[0] = LAB_NOT_ASKED;
    if (p->option[FORM] != 0) block(p, &d, &s, n, token, target);
    else stream(p, &d, &s, n, token, target);
    return n;
}

static void show(const struct lab_problem *p, int32_t token, char text[16])
{
    if (token == LAB_BOS) snprintf(text, 16, "BOS");
    else if (token <= 2 * keys(p)) snprintf(text, 16, "k%d", token);
    else snprintf(text, 16, "v%d", token - 2 * keys(p));
}

const struct lab_task lab_task_recall = {
    .name = "recall", .brief = "the latest value of a key that comes back",
    .scored = "values of keys seen before",
    .options = {
        [KEYS] = { "keys", 16, 2, MOST, true, "keys in use, of a pool of twice as many" },
        [VALUES] = { "values", 16, 2, 4096, true, "different values" },
        [FORM] = { "form", 0, 0, 1, true, "0: a stream; 1: a block of pairs, then questions" },
    },
    .chance = 1.0 / 16, .check = check, .vocabulary = vocabulary,
    .longest = longest, .columns = columns, .draw = draw, .show = show,
};
