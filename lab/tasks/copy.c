/* SPDX-License-Identifier: MIT */
/* copy.c -- copying strings: as they are, of one symbol only, and reversed.  Kazemnejad et al.
 * 2023, arXiv 2305.19466: copy, "repeat one symbol" and reverse of their tables.
 *
 *     copy      BOS a b c SEP a b c       targets a b c EOS, from SEP on
 *     copy1     BOS a a a SEP a a a       targets a a a EOS: only the end requires counting
 *     reverse   BOS a b c SEP c b a       targets c b a EOS
 *
 * A model that does not know where to stop has not copied: the end counts like any symbol.  n
 * symbols, in training uniform in 1 .. most; tests go to twice that. */
#include "lab/draw.h"

enum { SYMBOLS, MOST };
enum { SEP = 1, FIRST }; /* symbols from FIRST on, and EOS after them */

extern const struct lab_task lab_task_copy1, lab_task_reverse;
static bool one(const struct lab_problem *p) { return p->task == &lab_task_copy1; }
static bool reversed(const struct lab_problem *p) { return p->task == &lab_task_reverse; }

static int vocabulary(const struct lab_problem *p) { return FIRST + (int)p->option[SYMBOLS] + 1; }
static int tokens(int n) { return 2 * n + 2; }
static int longest(const struct lab_problem *p) { return tokens((int)p->option[MOST]); }

static int columns(const struct lab_problem *p, struct lab_column *list)
{
    return lab_sizes(list, (int)p->option[MOST], tokens, LAB_STRINGS, LAB_EXACT);
}

static int draw(const struct lab_problem *p, const struct lab_column *c, uint64_t key, int row,
                int32_t *token, int32_t *target)
{
    (void)row;
    struct lab_draws d = { .key = key };
    const int symbols = (int)p->option[SYMBOLS];
    const int given = c ? (int)c->value[0] : 0;
    const int n = given ? given : lab_between(&d, 1, (int)p->option[MOST]);
    int32_t *string = token + 1, *copy = target + n + 1;
    token[0] = LAB_BOS;
    token[n + 1] = SEP;
    for (int i = 0; i < n; i++) string[i] = one(p) && i ? string[0] : FIRST + lab_pick(&d, symbols);
    for (int i = 0; i <= n; i++) target[i] = LAB_NOT_ASKED;
    for (int i = 0; i < n; i++) copy[i] = string[reversed(p) ? n - 1 - i : i];
    copy[n] = FIRST + symbols;
    for (int i = n + 2; i < tokens(n); i++) token[i] = target[i - 1];
    return tokens(n);
}

static void show(const struct lab_problem *p, int32_t token, char text[16])
{
    const int symbol = token - FIRST;
    if (token < FIRST) snprintf(text, 16, "%s", token == SEP ? "SEP" : "BOS");
    else if (symbol == (int)p->option[SYMBOLS]) snprintf(text, 16, "EOS");
    else snprintf(text, 16, "s%d", symbol + 1);
}

#define STRINGS \
    { \
        [SYMBOLS] = { "symbols", 32, 2, 4096, true, "different symbols" }, [MOST] = { \
            "most", \
            20, \
            4, \
            100000, \
            true, \
            "the longest string in training" \
        } \
    }

const struct lab_task lab_task_copy = {
    .name = "copy",
    .brief = "a string again",
    .scored = "the copy and its end",
    .options = STRINGS,
    .chance = 1.0 / 33,
    .vocabulary = vocabulary,
    .longest = longest,
    .columns = columns,
    .draw = draw,
    .show = show,
};
const struct lab_task lab_task_copy1 = {
    .name = "copy1",
    .brief = "one symbol as often again",
    .scored = "the copy and its end",
    .options = STRINGS,
    .extended = true,
    .chance = 1.0 / 33,
    .vocabulary = vocabulary,
    .longest = longest,
    .columns = columns,
    .draw = draw,
    .show = show,
};
const struct lab_task lab_task_reverse = {
    .name = "reverse",
    .brief = "a string backwards",
    .scored = "the reversed string and its end",
    .options = STRINGS,
    .extended = true,
    .chance = 1.0 / 33,
    .vocabulary = vocabulary,
    .longest = longest,
    .columns = columns,
    .draw = draw,
    .show = show,
};
