/* SPDX-License-Identifier: MIT */
/* add.c -- sums of two numbers, the least significant digit first.
 *
 *     BOS 7 2 + 5 = 2 3        27 + 5 = 32; targets 2 3 EOS, from = on
 *
 * Each number has 1 .. `digits` digits, drawn independently, without leading zeros.  Columns beyond
 * training have one number, the first or the second, with exactly that many digits.  The other has
 * at most as many digits. */
#include "lab/draw.h"

enum { DIGITS };
enum { MOST = 64 };
enum { ZERO = 1, PLUS = 11, EQUALS, EOS, TOKENS };

static int vocabulary(const struct lab_problem *p)
{
    (void)p;
    return TOKENS;
}

/* BOS a + b = and a sum with at most one digit more. */
static int tokens(int digits) { return 3 * digits + 4; }
static int longest(const struct lab_problem *p) { return tokens((int)p->option[DIGITS]); }

/* 9, 10, 12 and 16 for 8. value[0] is the number of digits, 0 as trained. */
static int columns(const struct lab_problem *p, struct lab_column *list)
{
    enum { COUNT = 256 };
    const int most = (int)p->option[DIGITS];
    const int digits[] = { most + 1, most + 2, most * 3 / 2, 2 * most };
    int columns = 0, n = most;
    list[columns] = lab_column_of(1, longest(p), COUNT, LAB_EXACT, "as trained");
    list[columns++].trained = true;
    for (int i = 0; i < 4; i++) {
        n = digits[i] > n ? digits[i] : n + 1;
        list[columns] =
            lab_column_of((double)n / most, tokens(n), COUNT, LAB_EXACT, "%d digits", n);
        list[columns++].value[0] = n;
    }
    return columns;
}

/* Digits of a number, the least significant first, as tokens. */
static int32_t *number(struct lab_draws *d, int digits, int32_t *to)
{
    for (int i = 0; i < digits; i++)
        *to++ = ZERO + (i == digits - 1 && i ? lab_between(d, 1, 9) : lab_pick(d, 10));
    return to;
}

static int draw(const struct lab_problem *p, const struct lab_column *c, uint64_t key, int row,
                int32_t *token, int32_t *target)
{
    (void)row;
    struct lab_draws d = { .key = key };
    const int given = c ? (int)c->value[0] : 0, most = given ? given : (int)p->option[DIGITS];
    int a = lab_between(&d, 1, most), b = lab_between(&d, 1, most);
    if (given) *(lab_pick(&d, 2) ? &a : &b) = given;

    int32_t *at = token;
    *at++ = LAB_BOS;
    const int32_t *x = at;
    at = number(&d, a, at);
    *at++ = PLUS;
    const int32_t *y = at;
    at = number(&d, b, at);
    *at++ = EQUALS;

    int32_t *to = target;
    while (to < target + (at - token) - 1) *to++ = LAB_NOT_ASKED;
    for (int i = 0, carry = 0; i < a || i < b || carry; i++) {
        const int sum = carry + (i < a ? x[i] - ZERO : 0) + (i < b ? y[i] - ZERO : 0);
        *to++ = *at++ = ZERO + sum % 10;
        carry = sum / 10;
    }
    *to = EOS;
    return (int)(at - token);
}

static void show(const struct lab_problem *p, int32_t token, char text[16])
{
    static const char *const names[TOKENS] = { "BOS", "0", "1", "2", "3", "4", "5",
                                               "6",   "7", "8", "9", "+", "=", "EOS" };
    (void)p;
    snprintf(text, 16, "%s", names[token]);
}

const struct lab_task lab_task_add = {
    .name = "add",
    .brief = "sums, the least significant digit first",
    .scored = "the sum and its end",
    .options = { [DIGITS] = { "digits", 8, 4, MOST, true, "of the longest number in training" } },
    .learned = 0.9,
    .chance = 0.1,
    .vocabulary = vocabulary,
    .longest = longest,
    .columns = columns,
    .draw = draw,
    .show = show,
};
