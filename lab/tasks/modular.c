/* SPDX-License-Identifier: MIT */
/* modular.c -- a sum of products, modulo a small number.  Deletang et al. 2022, arXiv 2207.02098,
 * modular arithmetic without brackets: a regular language, so that a few states suffice.
 *
 *     BOS 3 + 4 * 2 - 1 =        target, at the last token: 3 + 8 - 1 = 10, which is 0 modulo 5
 *
 * Products come before sums.  n numbers, in training uniform in 1 .. most; tests go to twice
 * that. */
#include "lab/draw.h"

enum { MOST, MODULUS };
enum { PLUS = 1, MINUS, TIMES, EQUALS, ZERO };

static int modulus(const struct lab_problem *p) { return (int)p->option[MODULUS]; }
static int vocabulary(const struct lab_problem *p) { return ZERO + modulus(p); }
static int tokens(int n) { return 2 * n + 1; }
static int longest(const struct lab_problem *p) { return tokens((int)p->option[MOST]); }

static int columns(const struct lab_problem *p, struct lab_column *list)
{
    return lab_sizes(list, (int)p->option[MOST], tokens, LAB_ANSWERS, LAB_ACCURACY);
}

static int draw(const struct lab_problem *p, const struct lab_column *c, uint64_t key, int row,
                int32_t *token, int32_t *target)
{
    (void)row;
    struct lab_draws d = { .key = key };
    const int given = c ? (int)c->value[0] : 0, m = modulus(p);
    const int n = given ? given : lab_between(&d, 1, (int)p->option[MOST]);
    int32_t *at = token;
    *at++ = LAB_BOS;
    int sum = 0, product = 0; /* of the products that have ended, and of the current one */
    for (int i = 0; i < n; i++) {
        const int sign = i ? PLUS + lab_pick(&d, 3) : PLUS, x = lab_pick(&d, m);
        if (i) *at++ = sign;
        *at++ = ZERO + x;
        if (sign == TIMES) {
            product = product * x % m;
        } else {
            sum = (sum + product) % m;
            product = sign == PLUS ? x : (m - x) % m;
        }
    }
    *at++ = EQUALS;
    for (int i = 0; i < tokens(n) - 1; i++) target[i] = LAB_NOT_ASKED;
    target[tokens(n) - 1] = ZERO + (sum + product) % m;
    return tokens(n);
}

static void show(const struct lab_problem *p, int32_t token, char text[16])
{
    static const char *const names[ZERO] = { "BOS", "+", "-", "*", "=" };
    (void)p;
    if (token < ZERO) snprintf(text, 16, "%s", names[token]);
    else snprintf(text, 16, "%d", token - ZERO);
}

const struct lab_task lab_task_modular = {
    .name = "modular",
    .brief = "sums and products modulo 5",
    .scored = "the result",
    .options = { [MOST] = { "most", 16, 4, 100000, true, "numbers in training at most" },
                 [MODULUS] = { "modulus", 5, 2, 100, true, "results are 0 .. modulus - 1" } },
    .extended = true,
    .chance = 0.2,
    .vocabulary = vocabulary,
    .longest = longest,
    .columns = columns,
    .draw = draw,
    .show = show,
};
