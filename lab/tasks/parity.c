/* SPDX-License-Identifier: MIT */
/* parity.c -- one bit about a string of bits.
 *
 *     parity       BOS 1 0 1 1 =      target, at the last token: 1, as the number of ones is odd
 *     evenpairs    BOS 1 0 1 1 =      target: 0, as neighbours differ in 2 places, an even number
 *
 * parity is a control: no encoding is known to generalise beyond the lengths of training
 * (Kazemnejad et al. 2023, arXiv 2305.19466).  evenpairs is the easiest of the tasks of Deletang et
 * al. 2022, arXiv 2207.02098: the number of places where neighbours differ is odd if the first and
 * the last bit differ.
 *
 * n bits, in training uniform in 1 .. most. */
#include "lab/draw.h"

enum { MOST };
enum { ZERO = 1, ONE, EQUALS, TOKENS };

extern const struct lab_task lab_task_evenpairs;

static int vocabulary(const struct lab_problem *p)
{
    (void)p;
    return TOKENS;
}
static int tokens(int n) { return n + 2; }
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
    const bool pairs = p->task == &lab_task_evenpairs;
    const int given = c ? (int)c->value[0] : 0;
    const int n = given ? given : lab_between(&d, 1, (int)p->option[MOST]);
    int odd = 0;
    token[0] = LAB_BOS;
    token[n + 1] = EQUALS;
    for (int i = 1; i <= n; i++) {
        const int bit = lab_pick(&d, 2);
        token[i] = ZERO + bit;
        odd ^= pairs ? i > 1 && token[i] != token[i - 1] : bit;
    }
    for (int i = 0; i <= n; i++) target[i] = LAB_NOT_ASKED;
    target[n + 1] = ZERO + odd;
    return tokens(n);
}

static void show(const struct lab_problem *p, int32_t token, char text[16])
{
    static const char *const names[TOKENS] = { "BOS", "0", "1", "=" };
    (void)p;
    snprintf(text, 16, "%s", names[token]);
}

/* clang-format off */
#define BITS { [MOST] = { "most", 20, 4, 100000, true, "bits in training at most" } }
/* clang-format on */

const struct lab_task lab_task_parity = {
    .name = "parity",
    .brief = "is the number of ones odd? a control that nothing extrapolates",
    .scored = "one bit",
    .options = BITS,
    .extended = true,
    .chance = 0.5,
    .vocabulary = vocabulary,
    .longest = longest,
    .columns = columns,
    .draw = draw,
    .show = show,
};
const struct lab_task lab_task_evenpairs = {
    .name = "evenpairs",
    .brief = "do neighbouring bits differ an odd number of times?",
    .scored = "one bit",
    .options = BITS,
    .extended = true,
    .chance = 0.5,
    .vocabulary = vocabulary,
    .longest = longest,
    .columns = columns,
    .draw = draw,
    .show = show,
};
