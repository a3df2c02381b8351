/* SPDX-License-Identifier: MIT */
/* count.c -- variables that are counted up.  Golovneva et al. 2024, arXiv 2405.18719.
 *
 *     BOS set a 0 pass pass inc a pass ... print a        target, at the last token: the value of a
 *
 * Statements of one to three tokens: "pass" with the weight 50, "inc v" 7, "set v 0" 1, which may
 * come at any time; no variable passes 10.  Each variable in use is set at the beginning, since
 * short sequences would otherwise have only one.  The last "print v" is the question.  The length
 * is drawn first, and statements that no longer fit are not drawn.  Training uses 1 .. `variables`
 * variables and n in [L/4, L].  So do columns of length L, with 1 variable and with all, the edges
 * of training. */
#include "lab/draw.h"

enum { VARIABLES };
enum { SET = 1, INC, PASS, PRINT, ZERO, MOST = 10, FIRST = ZERO + MOST + 1, MOST_VARIABLES = 26 };
enum { SET_WEIGHT = 1, INC_WEIGHT = 7, PASS_WEIGHT = 50 };

static int variables(const struct lab_problem *p) { return (int)p->option[VARIABLES]; }
/* BOS, the set statements, and print v. */
static int shortest(int in_use) { return 1 + 3 * in_use + 2; }

static bool check(const struct lab_problem *p, loci_error *e)
{
    const int need = 4 * shortest(variables(p));
    if (!lab_check_length(p, e)) return false;
    return p->length > need - 4
        || lab_refuse(e,
                      "count: length %d must be at least %d with %d variables, as a quarter of "
                      "it sets them all and prints one",
                      p->length, need - 3, variables(p));
}

static int vocabulary(const struct lab_problem *p) { return FIRST + variables(p); }
static int longest(const struct lab_problem *p) { return p->length; }

/* value[0]: variables in use */
static int columns(const struct lab_problem *p, struct lab_column *list)
{
    int n = 0;
    for (int in_use = 1; in_use <= variables(p); in_use += variables(p) > 1 ? variables(p) - 1 : 1)
        for (int k = 1; k <= 4; k *= 2) {
            list[n] = lab_column_of(k, k * p->length, LAB_ANSWERS, LAB_ACCURACY,
                                    k > 1 ? "%d var%s at %dL" : "%d var%s at L", in_use,
                                    in_use > 1 ? "s" : "", k);
            list[n].trained = k == 1;
            list[n++].value[0] = in_use;
        }
    return n;
}

static int32_t *set(int32_t *at, int variable)
{
    *at++ = SET;
    *at++ = FIRST + variable;
    *at++ = ZERO;
    return at;
}

static int draw(const struct lab_problem *p, const struct lab_column *c, uint64_t key, int row,
                int32_t *token, int32_t *target)
{
    (void)row;
    struct lab_draws d = { .key = key };
    int value[MOST_VARIABLES] = { 0 };
    const int in_use = c ? (int)c->value[0] : lab_between(&d, 1, variables(p));
    const int n = c && c->times > 1 ? c->length : lab_any_length(&d, p->length, 1);
    int32_t *at = token;
    const int32_t *const end = token + n - 2;
    *at++ = LAB_BOS;
    for (int v = 0; v < in_use; v++) at = set(at, v);
    while (at < end) {
        const int what = lab_pick(&d, SET_WEIGHT + INC_WEIGHT + PASS_WEIGHT);
        const int v = lab_pick(&d, in_use);
        if (what < SET_WEIGHT && end - at >= 3) {
            at = set(at, v);
            value[v] = 0;
        } else if (what < SET_WEIGHT + INC_WEIGHT && what >= SET_WEIGHT && end - at >= 2
                   && value[v] < MOST) {
            *at++ = INC;
            *at++ = FIRST + v;
            value[v]++;
        } else if (what >= SET_WEIGHT + INC_WEIGHT) {
            *at++ = PASS;
        }
    }
    const int v = lab_pick(&d, in_use);
    *at++ = PRINT;
    *at++ = FIRST + v;
    for (int i = 0; i < n - 1; i++) target[i] = LAB_NOT_ASKED;
    target[n - 1] = ZERO + value[v];
    return n;
}

static void show(const struct lab_problem *p, int32_t token, char text[16])
{
    static const char *const names[] = { "BOS", "set", "inc", "pass", "print" };
    (void)p;
    if (token < ZERO) snprintf(text, 16, "%s", names[token]);
    else if (token < FIRST) snprintf(text, 16, "%d", token - ZERO);
    else snprintf(text, 16, "%c", 'a' + token - FIRST);
}

const struct lab_task lab_task_count = {
    .name = "count", .brief = "variables that are set and counted up",
    .scored = "the printed value",
    .options = {
        [VARIABLES] = { "variables", 3, 1, MOST_VARIABLES, true, "in use at most" },
    },
    .chance = 1.0 / 11, .check = check, .vocabulary = vocabulary,
    .longest = longest, .columns = columns, .draw = draw, .show = show,
};
