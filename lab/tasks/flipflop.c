/* SPDX-License-Identifier: MIT */
/* flipflop.c -- one bit of memory.  Liu et al. 2023, arXiv 2306.00946.
 *
 *     BOS w 1 i 0 i 1 r 1 w 0 ... r        targets: at each r the bit that was written last
 *
 * Pairs of an instruction and a bit: w writes its bit, r reads, and the bit of i is noise.  The
 * first instruction is w and the last is r, whose bit is only a target.  Of the others i has the
 * probability p_ignore, w and r half of the rest each.  Fewer w mean that r must look further back.
 * More w mean that more is overwritten.  Tests have p_ignore as trained, 0.98 (sparse) and 0.1
 * (dense).  n tokens are n/2 pairs.  Training has n in [L/4, L], and so have columns of length L.
 * Longer columns have their full length only. */
#include "lab/draw.h"

enum { P_IGNORE };
enum { WRITE = 1, IGNORE, READ, ZERO, ONE, TOKENS };

static int vocabulary(const struct lab_problem *p)
{
    (void)p;
    return TOKENS;
}
static int longest(const struct lab_problem *p) { return p->length / 2 * 2; }

/* value[0] is p_ignore.  Sparse sequences have 1 to 4 reads each, so there are more of them. */
static int columns(const struct lab_problem *p, struct lab_column *list)
{
    const double ignore[] = { p->option[P_IGNORE], 0.98, 0.1 };
    static const int times[] = { 1, 4, 8 };
    static const int count[3][3] = { { 128, 64, 64 }, { 256, 128, 88 }, { 64, 64, 64 } };
    int n = 0;
    for (int i = 0; i < 3; i++) {
        if (i > 0 && ignore[i] == ignore[0]) continue; /* equal to the trained value */
        for (int t = 0; t < 3; t++) {
            list[n] =
                lab_column_of(times[t], longest(p) * times[t], count[i][t], LAB_ACCURACY,
                              times[t] > 1 ? "%.9g at %dL" : "%.9g at L", ignore[i], times[t]);
            list[n].trained = i == 0 && t == 0;
            list[n++].value[0] = ignore[i];
        }
    }
    return n;
}

static int draw(const struct lab_problem *p, const struct lab_column *c, uint64_t key, int row,
                int32_t *token, int32_t *target)
{
    (void)row;
    struct lab_draws d = { .key = key };
    const double ignore = c ? c->value[0] : p->option[P_IGNORE], write = (1 - ignore) / 2;
    const int n = c && c->times > 1 ? c->length : lab_any_length(&d, p->length, 2);
    int memory = ZERO;
    token[0] = LAB_BOS;
    target[0] = LAB_NOT_ASKED;
    for (int i = 1; i < n; i += 2) {
        const double u = lab_next(&d);
        int what = u < ignore ? IGNORE : u < ignore + write ? WRITE : READ;
        if (i == 1) what = WRITE;
        if (i == n - 1) what = READ;
        const int bit = what == READ ? memory : lab_pick(&d, 2) ? ONE : ZERO;
        if (what == WRITE) memory = bit;
        token[i] = what;
        target[i] = what == READ ? bit : LAB_NOT_ASKED;
        if (i + 1 < n) {
            token[i + 1] = bit;
            target[i + 1] = LAB_NOT_ASKED;
        }
    }
    return n;
}

static void show(const struct lab_problem *p, int32_t token, char text[16])
{
    static const char *const names[TOKENS] = { "BOS", "w", "i", "r", "0", "1" };
    (void)p;
    snprintf(text, 16, "%s", names[token]);
}

const struct lab_task lab_task_flipflop = {
    .name = "flipflop",
    .brief = "one bit of memory: written, read, and noise between",
    .scored = "bits that are read",
    .options = { [P_IGNORE] = { "p_ignore", 0.8, 0, 1, false, "share of noise in training" } },
    .chance = 0.5,
    .check = lab_check_length,
    .vocabulary = vocabulary,
    .longest = longest,
    .columns = columns,
    .draw = draw,
    .show = show,
};
