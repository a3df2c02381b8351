/* SPDX-License-Identifier: MIT */
/* papers.c -- every encoding text in the tables of docs/papers.md makes a plan, for attention or
 * for embeddings, at the width of some head.  Texts are in backticks in the second and third
 * column. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "loci/loci.h"

static loci_error error;

static bool accepted(const char *text)
{
    static const int dims[] = { 128, 8, 64, 192, 512 };
    for (int i = 0; i < (int)(sizeof dims / sizeof *dims); i++)
        for (int embed = 0; embed < 2; embed++) {
            loci_plan *p;
            const loci_desc d =
                LOCI_DESC(.encoding = text, .heads = 8, .dim = dims[i], .model_dim = 64,
                          .max_len = 64, .stage = embed ? LOCI_EMBED : LOCI_ATTENTION);
            if (!loci_plan_create(&p, &d, i || embed ? NULL : &error)) {
                loci_plan_destroy(p);
                return true;
            }
        }
    return false;
}

/* Does a word in backticks name an encoding?  Others are options, modules and functions. */
static bool is_text(const char *word)
{
    const size_t n = strcspn(word, ":+");
    const loci_encoding_info *list;
    for (int i = loci_encodings(&list) - 1; i >= 0; i--)
        if (strlen(list[i].name) == n && !memcmp(list[i].name, word, n)) return true;
    return false;
}
/* The words in backticks of a cell.  All of column 2 are texts. */
static int check_cell(const char *row, char *cell, bool all)
{
    int count = 0;
    for (char *from = strchr(cell, '`'), *to; from && (to = strchr(from + 1, '`'));
         from = strchr(to + 1, '`')) {
        *to = 0;
        if (all || is_text(from + 1)) {
            CHECK_THAT(accepted(from + 1), "%s: %s: %s", row, from + 1, error.text);
            count++;
        }
    }
    return count;
}

int main(void)
{
    FILE *f = fopen("docs/papers.md", "r");
    char line[1024];
    int texts = 0, rows = 0;
    bool unmerged = false;
    if (!f) exit(2);
    while (fgets(line, sizeof line, f)) {
        if (strstr(line, "unmerged")) unmerged = !strstr(line, "end ");
        if (unmerged || line[0] != '|' || line[1] == '-' || strstr(line, "| paper |")) continue;
        char *name = line + 1, *text = strchr(name, '|'),
             *note = text ? strchr(text + 1, '|') : NULL;
        if (!CHECK_THAT(note, "a row without three columns: %s", line)) continue;
        *text++ = 0;
        *note++ = 0;
        const int here = check_cell(name, text, true);
        CHECK_THAT(here > 0, "%s: no text", name);
        texts += here + check_cell(name, note, false);
        rows++;
    }
    fclose(f);
    CHECK_THAT(rows >= 50 && texts >= 60, "%d rows with %d texts", rows, texts);
    CHECK_THAT(!accepted("rope:pairing=quarter") && strstr(error.text, "quarter"),
               "a wrong text: was accepted");
    return harness_end();
}
