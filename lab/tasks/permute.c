/* SPDX-License-Identifier: MIT */
/* permute.c -- the word problem of S5: which permutation is the product of those so far?  No
 * circuit of constant depth is known for it, and so no Transformer of fixed depth for all lengths
 * (Merrill et al. 2024, arXiv 2404.08819).
 *
 *     BOS 21345 13245 ...        targets 21345 23145 ...: each acts on what the last one has left
 *
 * A permutation p turns the string x into x[p1] x[p2] ..., and the string is 12345 at first.  In
 * training every product is asked for, and in tests only the last.  n permutations of `elements`
 * elements, all of them equally likely; in training n is uniform in 1 .. most. */
#include "lab/draw.h"

enum { MOST, ELEMENTS };
enum { FIRST = 1, LARGEST = 5 };

static int elements(const struct lab_problem *p) { return (int)p->option[ELEMENTS]; }
static int vocabulary(const struct lab_problem *p)
{
    int all = 1;
    for (int i = 2; i <= elements(p); i++) all *= i;
    return FIRST + all;
}
static int tokens(int n) { return n + 1; }
static int longest(const struct lab_problem *p) { return tokens((int)p->option[MOST]); }

static int columns(const struct lab_problem *p, struct lab_column *list)
{
    return lab_sizes(list, (int)p->option[MOST], tokens, LAB_ANSWERS, LAB_ACCURACY);
}

/* Permutation number i of k elements, in the order of a dictionary; and back. */
static void permutation(int i, int k, int to[LARGEST])
{
    int left[LARGEST], block = 1;
    for (int j = 0; j < k; j++) left[j] = j;
    for (int j = 2; j < k; j++) block *= j;
    for (int at = 0; at < k; at++) {
        const int which = i / block;
        to[at] = left[which];
        for (int j = which; j + 1 < k; j++) left[j] = left[j + 1];
        i %= block;
        if (at + 2 < k) block /= k - 1 - at;
    }
}
static int number(const int *of, int k)
{
    int i = 0;
    for (int at = 0; at < k; at++) {
        int smaller = 0;
        for (int j = at + 1; j < k; j++) smaller += of[j] < of[at];
        i = i * (k - at) + smaller;
    }
    return i;
}

static int draw(const struct lab_problem *p, const struct lab_column *c, uint64_t key, int row,
                int32_t *token, int32_t *target)
{
    (void)row;
    struct lab_draws d = { .key = key };
    const int given = c ? (int)c->value[0] : 0, k = elements(p), all = vocabulary(p) - FIRST;
    const int n = given ? given : lab_between(&d, 1, (int)p->option[MOST]);
    int product[LARGEST], next[LARGEST], now[LARGEST];
    permutation(0, k, product);
    token[0] = LAB_BOS;
    target[0] = LAB_NOT_ASKED;
    for (int i = 1; i <= n; i++) {
        const int drawn = lab_pick(&d, all);
        permutation(drawn, k, now);
        for (int j = 0; j < k; j++) next[j] = product[now[j]];
        for (int j = 0; j < k; j++) product[j] = next[j];
        token[i] = FIRST + drawn;
        target[i] = c && i < n ? LAB_NOT_ASKED : FIRST + number(product, k);
    }
    return tokens(n);
}

static void show(const struct lab_problem *p, int32_t token, char text[16])
{
    int digit[LARGEST], n = 0;
    if (token < FIRST) {
        snprintf(text, 16, "BOS");
        return;
    }
    permutation(token - FIRST, elements(p), digit);
    for (; n < elements(p); n++) text[n] = (char)('1' + digit[n]);
    text[n] = 0;
}

const struct lab_task lab_task_permute = {
    .name = "permute",
    .brief = "products of permutations: the word problem of S5",
    .scored = "the product so far; in tests that of all",
    .options = { [MOST] = { "most", 20, 4, 100000, true, "permutations in training at most" },
                 [ELEMENTS] = { "elements", LARGEST, 2, LARGEST, true, "that are permuted" } },
    .extended = true,
    .chance = 1.0 / 120,
    .vocabulary = vocabulary,
    .longest = longest,
    .columns = columns,
    .draw = draw,
    .show = show,
};
