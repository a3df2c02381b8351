/* SPDX-License-Identifier: MIT */
/* passkey.c -- five digits hidden in a text.
 *
 *     BOS ...text #k=40718#text... ?k= 4 0 7 1        targets 4 0 7 1 8, from the last = on
 *
 * Training puts the key anywhere in a window of the first 95 % of the corpus, all n = L.  Tests use
 * windows of the last 5 %, and row r of a column has the key at r % 11 tenths of the text. */
#include <string.h>

#include "lab/draw.h"

enum { DIGITS = 5, DEPTHS = 11, PER_DEPTH = 18, LONGEST = 8 };
static const char marks[] = "#k=?0123456789";
enum {
    MARKS = sizeof marks - 1,
    KEY = 3 + DIGITS + 1,
    QUESTION = 3,
    BESIDE = 1 + KEY + QUESTION + DIGITS - 1
};
enum { LEAST = 2 * BESIDE };

static bool check(const struct lab_problem *p, loci_error *e)
{
    if (!lab_check_corpus(p, (ptrdiff_t)LONGEST * p->length, e)) return false;
    return p->length >= LEAST
        || lab_refuse(e,
                      "passkey: length %d must be at least %d, as the key and the question take "
                      "%d",
                      p->length, LEAST, BESIDE);
}

/* Tokens of the marks.  Marks that occur in the corpus use its tokens, the others get new ones.
 * Returns the total number of tokens. */
static int find_marks(const struct lab_corpus *c, int32_t token[MARKS])
{
    int n = c->symbols + 1;
    for (int m = 0; m < MARKS; m++) {
        token[m] = 0;
        for (int t = 1; t <= c->symbols; t++)
            if (c->byte[t - 1] == (unsigned char)marks[m]) token[m] = t;
        if (!token[m]) token[m] = n++;
    }
    return n;
}

static int vocabulary(const struct lab_problem *p)
{
    int32_t token[MARKS];
    return find_marks(p->corpus, token);
}
static int longest(const struct lab_problem *p) { return p->length; }

static int columns(const struct lab_problem *p, struct lab_column *list)
{
    int n = 0;
    for (int k = 1; k <= LONGEST; k *= 2, n++) {
        list[n] =
            lab_column_of(k, k * p->length, DEPTHS * PER_DEPTH, LAB_EXACT, k > 1 ? "%dL" : "L", k);
        list[n].trained = k == 1;
    }
    return n;
}

static int32_t *put(const int32_t *mark, const char *text, int32_t *to)
{
    for (; *text; text++) *to++ = mark[strchr(marks, *text) - marks];
    return to;
}

static int draw(const struct lab_problem *p, const struct lab_column *c, uint64_t key, int row,
                int32_t *token, int32_t *target)
{
    struct lab_draws d = { .key = key };
    const struct lab_corpus *text = p->corpus;
    const int n = c ? c->length : p->length, words = n - BESIDE;
    const bool tested = c && !c->validation;
    const ptrdiff_t first = tested ? text->tests
                          : c      ? text->train
                                   : 0,
                    end = tested ? text->count
                        : c      ? text->tests
                                 : text->train;
    const int32_t *from =
        text->token + first + (ptrdiff_t)(lab_next(&d) * (double)(end - first - words + 1));
    const int depth =
        c ? (int)((int64_t)words * (row % DEPTHS) / (DEPTHS - 1)) : lab_between(&d, 0, words);
    int32_t mark[MARKS], *at = token;
    char digits[DIGITS + 1] = { 0 };
    find_marks(text, mark);
    for (int i = 0; i < DIGITS; i++) digits[i] = (char)('0' + lab_pick(&d, 10));

    *at++ = LAB_BOS;
    for (int i = 0; i < depth; i++) *at++ = *from++;
    at = put(mark, digits, put(mark, "#k=", at));
    at = put(mark, "#", at);
    for (int i = depth; i < words; i++) *at++ = *from++;
    at = put(mark, "?k=", at);
    int32_t *to = target;
    while (to < target + (at - token) - 1) *to++ = LAB_NOT_ASKED;
    put(mark, digits, to);
    digits[DIGITS - 1] = 0;
    put(mark, digits, at);
    return n;
}

static void show(const struct lab_problem *p, int32_t token, char text[16])
{
    int32_t mark[MARKS];
    if (token == LAB_BOS) snprintf(text, 16, "BOS");
    else if (token <= p->corpus->symbols) lab_show_byte(p->corpus->byte[token - 1], text);
    find_marks(p->corpus, mark);
    for (int m = 0; m < MARKS; m++)
        if (mark[m] == token) snprintf(text, 16, "%c", marks[m]);
}

const struct lab_task lab_task_passkey = {
    .name = "passkey",
    .brief = "five digits that lie somewhere in a text",
    .scored = "the five digits",
    .extended = true,
    .corpus = true,
    .chance = 0.1,
    .check = check,
    .vocabulary = vocabulary,
    .longest = longest,
    .columns = columns,
    .draw = draw,
    .show = show,
};
