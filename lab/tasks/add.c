/* SPDX-License-Identifier: MIT */
/* add.c -- sums of two numbers, the least significant digit first.
 *
 *     add        BOS 7 2 + 5 = 2 3                   27 + 5 = 32; targets 2 3 EOS, from = on
 *     addhint    BOS h4 7 h5 2 + h4 5 = h4 2 h5 3    targets h4 2 h5 3 EOS
 *
 * Each number has 1 .. `digits` digits, drawn independently, without leading zeros.  Columns beyond
 * training have one number, the first or the second, with exactly that many digits.  The other has
 * at most as many digits.
 *
 * Hints mark digits of equal weight (Zhou et al. 2023, arXiv 2310.16028).  They count up from a
 * random one, and the first follows the last.  There are as many as the longest test needs, so that
 * training meets all of them equally often. */
#include "lab/draw.h"

enum { DIGITS };
enum { MOST = 64 };
enum { ZERO = 1, PLUS = 11, EQUALS, EOS, HINT };

extern const struct lab_task lab_task_addhint;
static bool hinted(const struct lab_problem *p) { return p->task == &lab_task_addhint; }
/* A sum of two numbers of twice the digits may have one digit more. */
static int hints(const struct lab_problem *p)
{
    return hinted(p) ? 2 * (int)p->option[DIGITS] + 1 : 0;
}
static int vocabulary(const struct lab_problem *p) { return HINT + hints(p); }

/* BOS a + b = and a sum with at most one digit more. */
static int tokens(const struct lab_problem *p, int digits)
{
    return 3 + (3 * digits + 1) * (hinted(p) ? 2 : 1);
}
static int longest(const struct lab_problem *p) { return tokens(p, (int)p->option[DIGITS]); }

/* 9, 10, 12 and 16 for 8. value[0] is the number of digits, 0 as trained. */
static int columns(const struct lab_problem *p, struct lab_column *list)
{
    const int most = (int)p->option[DIGITS];
    const int digits[] = { most + 1, most + 2, most * 3 / 2, 2 * most };
    int columns = 0, n = most;
    list[columns] = lab_column_of(1, longest(p), LAB_STRINGS, LAB_EXACT, "as trained");
    list[columns++].trained = true;
    for (int i = 0; i < 4; i++) {
        n = digits[i] > n ? digits[i] : n + 1;
        list[columns] =
            lab_column_of((double)n / most, tokens(p, n), LAB_STRINGS, LAB_EXACT, "%d digits", n);
        list[columns++].value[0] = n;
    }
    return columns;
}

/* Hint number i, counted from the first one of the sequence. */
static int32_t hint(const struct lab_problem *p, int first, int i)
{
    return HINT + (first + i) % hints(p);
}

/* Digits of a number, the least significant first, as tokens. */
static int32_t *number(const struct lab_problem *p, struct lab_draws *d, int digits, int first,
                       int32_t *to)
{
    for (int i = 0; i < digits; i++) {
        if (hinted(p)) *to++ = hint(p, first, i);
        *to++ = ZERO + (i == digits - 1 && i ? lab_between(d, 1, 9) : lab_pick(d, 10));
    }
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
    const int first = hinted(p) ? lab_pick(&d, hints(p)) : 0;
    const int each = hinted(p) ? 2 : 1; /* tokens of a digit, which is the last of them */

    int32_t *at = token;
    *at++ = LAB_BOS;
    const int32_t *x = at + each - 1;
    at = number(p, &d, a, first, at);
    *at++ = PLUS;
    const int32_t *y = at + each - 1;
    at = number(p, &d, b, first, at);
    *at++ = EQUALS;

    int32_t *to = target;
    while (to < target + (at - token) - 1) *to++ = LAB_NOT_ASKED;
    for (int i = 0, carry = 0; i < a || i < b || carry; i++) {
        const int sum = carry + (i < a ? x[each * i] - ZERO : 0) + (i < b ? y[each * i] - ZERO : 0);
        if (hinted(p)) *to++ = *at++ = hint(p, first, i);
        *to++ = *at++ = ZERO + sum % 10;
        carry = sum / 10;
    }
    *to = EOS;
    return (int)(at - token);
}

static void show(const struct lab_problem *p, int32_t token, char text[16])
{
    static const char *const names[HINT] = { "BOS", "0", "1", "2", "3", "4", "5",
                                             "6",   "7", "8", "9", "+", "=", "EOS" };
    (void)p;
    if (token < HINT) snprintf(text, 16, "%s", names[token]);
    else snprintf(text, 16, "h%d", token - HINT + 1);
}

#define DIGITS_OPTION \
    { \
        [DIGITS] = { "digits", 8, 4, MOST, true, "of the longest number in training" } \
    }

const struct lab_task lab_task_add = {
    .name = "add",
    .brief = "sums, the least significant digit first",
    .scored = "the sum and its end",
    .options = DIGITS_OPTION,
    .chance = 0.1,
    .vocabulary = vocabulary,
    .longest = longest,
    .columns = columns,
    .draw = draw,
    .show = show,
};
const struct lab_task lab_task_addhint = {
    .name = "addhint",
    .brief = "sums whose digits of equal weight bear the same hint",
    .scored = "the sum with its hints, and its end",
    .options = DIGITS_OPTION,
    .extended = true,
    .chance = 0.1,
    .vocabulary = vocabulary,
    .longest = longest,
    .columns = columns,
    .draw = draw,
    .show = show,
};
