/* SPDX-License-Identifier: MIT */
/* induct.c -- what followed the last token when it came before?  An induction head answers it
 * (Olsson et al. 2022, arXiv 2209.11895).
 *
 *     BOS c a b d d c a        target, at the last token: b
 *
 * The last symbol occurs once before, `distance` tokens back, and the others are drawn from all
 * other symbols.  Training has n in [L/4, L] tokens and every distance that fits, all equally
 * likely; so has the column of length L.  Longer columns have their full length only, and either
 * distances of training (near), or such that no training sequence has (beyond): longer texts and
 * longer distances are different demands. */
#include "lab/draw.h"

enum { SYMBOLS };
enum { FIRST = 1 };

static int vocabulary(const struct lab_problem *p) { return FIRST + (int)p->option[SYMBOLS]; }
static int longest(const struct lab_problem *p) { return p->length; }

/* value[0], value[1]: the least and the greatest distance, 0 as trained. */
static int columns(const struct lab_problem *p, struct lab_column *list)
{
    int n = 0;
    for (int k = 1; k <= 4; k *= 2, n++) {
        list[n] = lab_column_of(k, k * p->length, LAB_ANSWERS, LAB_ACCURACY,
                                k > 1 ? "near at %dL" : "near at L", k);
        list[n].trained = k == 1;
        list[n].value[0] = k > 1 ? 2 : 0;
        list[n].value[1] = k > 1 ? p->length - 2 : 0;
    }
    for (int k = 2; k <= 4; k *= 2, n++) {
        list[n] = lab_column_of(k, k * p->length, LAB_ANSWERS, LAB_ACCURACY, "beyond at %dL", k);
        list[n].value[0] = p->length - 1;
        list[n].value[1] = k * p->length - 2;
    }
    return n;
}

static int draw(const struct lab_problem *p, const struct lab_column *c, uint64_t key, int row,
                int32_t *token, int32_t *target)
{
    (void)row;
    struct lab_draws d = { .key = key };
    const int symbols = (int)p->option[SYMBOLS];
    const int n = c && c->times > 1 ? c->length : lab_any_length(&d, p->length, 1);
    const bool given = c && c->value[1] > 0;
    const int distance =
        lab_between(&d, given ? (int)c->value[0] : 2, given ? (int)c->value[1] : n - 2);
    const int32_t asked = FIRST + lab_pick(&d, symbols);
    token[0] = LAB_BOS;
    for (int i = 1; i < n - 1; i++) {
        const int32_t other = FIRST + lab_pick(&d, symbols - 1);
        token[i] = i == n - 1 - distance ? asked : other + (other >= asked);
    }
    token[n - 1] = asked;
    for (int i = 0; i < n - 1; i++) target[i] = LAB_NOT_ASKED;
    target[n - 1] = token[n - distance];
    return n;
}

static void show(const struct lab_problem *p, int32_t token, char text[16])
{
    (void)p;
    if (token < FIRST) snprintf(text, 16, "BOS");
    else snprintf(text, 16, "s%d", token);
}

const struct lab_task lab_task_induct = {
    .name = "induct",
    .brief = "what followed the last symbol before, at a distance",
    .scored = "one symbol",
    .options = { [SYMBOLS] = { "symbols", 16, 3, 4096, true, "different symbols" } },
    .extended = true,
    .chance = 1.0 / 15,
    .check = lab_check_length,
    .vocabulary = vocabulary,
    .longest = longest,
    .columns = columns,
    .draw = draw,
    .show = show,
};
