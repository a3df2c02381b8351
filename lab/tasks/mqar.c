/* SPDX-License-Identifier: MIT */
/* mqar.c -- recall of many pairs, on the published grid.  Multi-query associative recall of Arora
 * et al. 2023 (zoology), arXiv 2312.04927, with the lengths and pairs of 2024, arXiv 2402.18668.
 *
 *     BOS k v k v k v x k x x k k x        targets: at each k that comes again its value
 *
 * Pairs first, all keys and all values different; then each key once more, at every second place
 * from the pairs on.  The place is drawn with weights 1/gap, its power law of 0.01 but for a factor
 * of gap^0.01.  All other tokens x are drawn from all symbols but the keys of the sequence, so that
 * no question is asked that is not scored; an answer does not follow its question.  The first half
 * of the symbols are keys, the others values.  Published are 8192 symbols, of which a small model
 * has learned nothing after 1200 steps, so there are fewer here.
 *
 * With L = 256 the grid is the published one, and otherwise in proportion to it.
 *
 *     training     64 tokens, 4 pairs (five sequences of nine); 128, 8; 256, 16; 256, 32; 256, 64
 *     tests        64, 4; 64, 8; 64, 16; 128, 32; 256, 64; 512, 128; 1024, 256
 *
 * The column "as trained" has sequences like those of training. */
#include "lab/draw.h"

enum { SYMBOLS };
enum { UNIT = 64, TRAINED = 5, TESTED = 7 };

/* In units of L / 64. */
static const struct grid {
    int tokens, pairs;
} trained[TRAINED] = { { 16, 1 }, { 32, 2 }, { 64, 4 }, { 64, 8 }, { 64, 16 } },
  tested[TESTED] = { { 16, 1 },  { 16, 2 },   { 16, 4 },  { 32, 8 },
                     { 64, 16 }, { 128, 32 }, { 256, 64 } };

static int unit(const struct lab_problem *p) { return p->length / UNIT; }
static int most_pairs(const struct lab_problem *p) { return tested[TESTED - 1].pairs * unit(p); }

static bool check(const struct lab_problem *p, loci_error *e)
{
    if (!lab_check_length(p, e)) return false;
    if (p->length % UNIT)
        return lab_refuse(e,
                          "mqar: length %d must be a multiple of %d, as its grid has parts of it",
                          p->length, UNIT);
    return (int)p->option[SYMBOLS] / 2 >= most_pairs(p)
        || lab_refuse(e,
                      "mqar: symbols %.0f must be at least %d for length %d: half of them are "
                      "keys, and the longest test has %d pairs",
                      p->option[SYMBOLS], 2 * most_pairs(p), p->length, most_pairs(p));
}

static int vocabulary(const struct lab_problem *p) { return 1 + (int)p->option[SYMBOLS]; }
static int longest(const struct lab_problem *p) { return trained[TRAINED - 1].tokens * unit(p); }

/* value[0]: tokens, 0 as trained; value[1]: pairs.  About as many questions in each. */
static int columns(const struct lab_problem *p, struct lab_column *list)
{
    int n = 0;
    list[n] = lab_column_of(1, longest(p), LAB_ANSWERS / 8, LAB_ACCURACY, "as trained");
    list[n++].trained = true;
    for (int i = 0; i < TESTED; i++, n++) {
        const int length = tested[i].tokens * unit(p), pairs = tested[i].pairs * unit(p);
        const int count = LAB_ANSWERS / pairs;
        list[n] = lab_column_of((double)length / longest(p), length, count < 64 ? 64 : count,
                                LAB_ACCURACY, "%d tokens, %d pair%s", length, pairs,
                                pairs > 1 ? "s" : "");
        list[n].value[0] = length;
        list[n].value[1] = pairs;
    }
    return n;
}

/* `n` different ones of `symbols` from `first` on, to[0], to[2] ...: draws again what is there
 * already, which `seen` marks. */
static void choose(struct lab_draws *d, int first, int symbols, int n, bool *seen, int32_t *to)
{
    for (int i = 0; i < n; i++) {
        int x;
        do x = first + lab_pick(d, symbols);
        while (seen[x]);
        seen[x] = true;
        to[2 * i] = x;
    }
}

static int draw(const struct lab_problem *p, const struct lab_column *c, uint64_t key, int row,
                int32_t *token, int32_t *target)
{
    enum { MOST_SYMBOLS = 65536 };
    (void)row;
    struct lab_draws d = { .key = key };
    const int symbols = (int)p->option[SYMBOLS], half = symbols / 2;
    int tokens = c ? (int)c->value[0] : 0, pairs = c ? (int)c->value[1] : 0;
    if (!tokens) {
        const int which = lab_pick(&d, 9), i = which < 5 ? 0 : which - 4;
        tokens = trained[i].tokens * unit(p);
        pairs = trained[i].pairs * unit(p);
    }
    static _Thread_local bool seen[1 + MOST_SYMBOLS];
    const int from = 1 + 2 * pairs, places = (tokens - 2 * pairs) / 2;
    for (int i = 0; i < tokens; i++) {
        token[i] = LAB_BOS; /* 0, which is a free place */
        target[i] = LAB_NOT_ASKED;
    }
    choose(&d, 1, half, pairs, seen, token + 1);
    choose(&d, 1 + half, symbols - half, pairs, seen, token + 2);
    for (int i = 1; i < from; i += 2) {
        const int at = from + 2 * lab_gap(&d, token + from, places);
        token[at] = token[i];
        target[at] = token[i + 1];
        seen[token[i + 1]] = false; /* values may fill places, keys may not */
    }
    for (int i = from; i < tokens; i++) {
        if (token[i]) continue;
        int x;
        do x = 1 + lab_pick(&d, symbols);
        while (seen[x]);
        token[i] = x;
    }
    for (int i = 1; i < from; i += 2) seen[token[i]] = false;
    return tokens;
}

static void show(const struct lab_problem *p, int32_t token, char text[16])
{
    const int half = (int)p->option[SYMBOLS] / 2;
    if (token == LAB_BOS) snprintf(text, 16, "BOS");
    else if (token <= half) snprintf(text, 16, "k%d", token);
    else snprintf(text, 16, "v%d", token - half);
}

const struct lab_task lab_task_mqar = {
    .name = "mqar",
    .brief = "the values of many keys: zoology's grid of lengths and pairs",
    .scored = "the value of each key",
    .options = { [SYMBOLS] = { "symbols", 512, 128, 65536, true, "half keys, half values" } },
    .extended = true,
    .chance = 1.0 / 256,
    .check = check,
    .vocabulary = vocabulary,
    .longest = longest,
    .columns = columns,
    .draw = draw,
    .show = show,
};
