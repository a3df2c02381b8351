/* SPDX-License-Identifier: MIT */
/* text.c -- the next byte of a text.
 *
 *     BOS b0 b1 ... b(n-2)        targets b0 b1 ... b(n-1): a window of n bytes, all of them scored
 *
 * Training uses windows of L bytes anywhere in the first 90 % of the corpus, validation such that
 * are spread over the next 5 %.  Tests score the same bytes in every column: 64 stretches of 8L
 * bytes, spread over the last 5 %, each cut into windows of L, 2L, 4L or 8L.  So columns can be
 * compared, and the gain of a longer window comes from context. */
#include "lab/draw.h"

enum { STRETCHES = 64, LONGEST = 8 };

static bool check(const struct lab_problem *p, loci_error *e)
{
    return lab_check_corpus(p, (ptrdiff_t)STRETCHES * LONGEST * p->length, e);
}

static int vocabulary(const struct lab_problem *p) { return p->corpus->symbols + 1; }
static int longest(const struct lab_problem *p) { return p->length; }

/* value[0]: the number of windows per stretch. */
static int columns(const struct lab_problem *p, struct lab_column *list)
{
    int n = 0;
    for (int k = 1; k <= LONGEST; k *= 2) {
        const int windows = LONGEST / k;
        list[n] =
            lab_column_of(k, k * p->length, STRETCHES * windows, LAB_LOSS, k > 1 ? "%dL" : "L", k);
        list[n].trained = k == 1;
        list[n++].value[0] = windows;
    }
    return n;
}

/* The row of a test gives the place: all windows of the first stretch, then those of the second
 * ... */
static ptrdiff_t place(const struct lab_problem *p, const struct lab_column *c, uint64_t key,
                       int row)
{
    const struct lab_corpus *text = p->corpus;
    if (!c) {
        struct lab_draws d = { .key = key };
        return (ptrdiff_t)(lab_next(&d) * (double)(text->train - p->length + 1));
    }
    if (c->validation)
        return text->train + row * (text->tests - text->train - c->length) / (c->count - 1);
    const int windows = (int)c->value[0];
    const ptrdiff_t capacity = text->count - text->tests - (ptrdiff_t)LONGEST * p->length;
    return text->tests + row / windows * capacity / (STRETCHES - 1)
         + (ptrdiff_t)(row % windows) * c->length;
}

static int draw(const struct lab_problem *p, const struct lab_column *c, uint64_t key, int row,
                int32_t *token, int32_t *target)
{
    const int n = c ? c->length : p->length;
    const int32_t *from = p->corpus->token + place(p, c, key, row);
    for (int i = 0; i < n; i++) {
        token[i] = i ? from[i - 1] : LAB_BOS;
        target[i] = from[i];
    }
    return n;
}

static void show(const struct lab_problem *p, int32_t token, char text[16])
{
    if (token == LAB_BOS) snprintf(text, 16, "BOS");
    else lab_show_byte(p->corpus->byte[token - 1], text);
}

const struct lab_task lab_task_text = {
    .name = "text",
    .brief = "the next byte of a text",
    .scored = "every byte",
    .corpus = true,
    .chance = -1,
    .check = check,
    .vocabulary = vocabulary,
    .longest = longest,
    .columns = columns,
    .draw = draw,
    .show = show,
};
