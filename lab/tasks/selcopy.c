/* SPDX-License-Identifier: MIT */
/* selcopy.c -- copying the symbols that are not blank.  Golovneva et al. 2024, arXiv 2405.18719.
 *
 *     BOS a _ b _ _ c SEP a b        targets a b c, from SEP on
 *
 * `symbols` symbols of `kinds` kinds with `blanks` blanks between them, shuffled.  Training always
 * has this number.  Tests have half the blanks (dense), twice (sparse) or seven times that
 * (long). */
#include "lab/draw.h"

enum { SYMBOLS, BLANKS, KINDS };
enum { SEP = 1, BLANK, FIRST };

static int symbols(const struct lab_problem *p) { return (int)p->option[SYMBOLS]; }

static int vocabulary(const struct lab_problem *p) { return FIRST + (int)p->option[KINDS]; }
static int tokens(const struct lab_problem *p, int blanks) { return 2 * symbols(p) + blanks + 1; }
static int longest(const struct lab_problem *p) { return tokens(p, (int)p->option[BLANKS]); }

/* value[0]: blanks */
static int columns(const struct lab_problem *p, struct lab_column *list)
{
    const int m = (int)p->option[BLANKS];
    const struct {
        const char *name;
        int blanks;
    } kinds[] = {
        { "as trained", m },
        { "dense", m / 2 },
        { "sparse", 2 * m },
        { "long", 7 * m },
    };
    int n = 0;
    for (; n < 4; n++) {
        const int length = tokens(p, kinds[n].blanks);
        list[n] = lab_column_of((double)length / longest(p), length, LAB_STRINGS, LAB_EXACT,
                                n ? "%s, %d blanks" : "%s", kinds[n].name, kinds[n].blanks);
        list[n].trained = n == 0;
        list[n].value[0] = kinds[n].blanks;
    }
    return n;
}

/* The next token is a symbol with the probability that a shuffled rest begins with one. */
static int draw(const struct lab_problem *p, const struct lab_column *c, uint64_t key, int row,
                int32_t *token, int32_t *target)
{
    (void)row;
    struct lab_draws d = { .key = key };
    const int n = symbols(p), m = c ? (int)c->value[0] : (int)p->option[BLANKS];
    int32_t *at = token, *to = target + n + m + 1;
    *at++ = LAB_BOS;
    for (int left = n + m, more = n; left > 0; left--) {
        if (lab_pick(&d, left) < more) {
            *at++ = *to++ = FIRST + lab_pick(&d, (int)p->option[KINDS]);
            more--;
        } else {
            *at++ = BLANK;
        }
    }
    *at = SEP;
    const int all = tokens(p, m);
    for (int i = 0; i <= n + m; i++) target[i] = LAB_NOT_ASKED;
    for (int i = n + m + 2; i < all; i++) token[i] = target[i - 1];
    return all;
}

static void show(const struct lab_problem *p, int32_t token, char text[16])
{
    static const char *const names[] = { "BOS", "SEP", "_" };
    (void)p;
    if (token < FIRST) snprintf(text, 16, "%s", names[token]);
    else snprintf(text, 16, "s%d", token - FIRST + 1);
}

const struct lab_task lab_task_selcopy = {
    .name = "selcopy", .brief = "the symbols between blanks", .scored = "the symbols",
    .options = {
        [SYMBOLS] = { "symbols", 16, 2, 10000, true, "symbols in a sequence" },
        [BLANKS] = { "blanks", 16, 2, 10000, true, "blanks in a sequence of training" },
        [KINDS] = { "kinds", 16, 2, 4096, true, "different symbols" },
    },
    .extended = true, .chance = 1.0 / 16, .vocabulary = vocabulary,
    .longest = longest, .columns = columns, .draw = draw, .show = show,
};
