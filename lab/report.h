/* SPDX-License-Identifier: MIT */
/* report.h -- what a folder of runs says: verdicts, tables and pictures, as a page, as text, as
 * lines for a spreadsheet and as JSON.
 *
 *     lab_results_read(&all, dir, &e);
 *     struct report r;
 *     report_make(&r, &all, dir, NULL);
 *     report_html(&text, &r);
 *     report_free(&r);                          // before lab_results_free(&all) */
#ifndef LOCI_LAB_REPORT_H
#define LOCI_LAB_REPORT_H

#include "draw/figure.h"
#include "lab/claims.h"

/* Pictures made from weights by whoever has them, for "What the encodings learned"; they stay the
 * caller's and must outlive the report. */
struct report_pictures {
    int count;
    struct figure *list;
};

/* A piece of a section.  Words: a paragraph, or a line of a list where `item`.  A table's cell may
 * have a second, smaller line behind a tab; a row has marks. */
enum { MARK_INDENT = 1, MARK_OFF = 2, MARK_GOOD = 4, MARK_BAD = 8 };
struct report_block {
    char *words;
    bool item;
    bool records;              /* a table that is read row by row: text lists them */
    int heads;                 /* columns that text repeats before each part of a table */
    unsigned char *mark;       /* [rows] of the table */
    struct figure figure;      /* one that has a title is there */
    const struct figure *lent; /* instead of it: one of the caller */
};
struct report_section {
    char title[200];
    int blocks, capacity;
    struct report_block *block;
};

struct report {
    const struct lab_results *all;
    char *command; /* of DIR/lab.json */
    struct tables tables;
    int claims;
    struct judged *claim;
    double teraflops, hours;
    int sections;
    struct report_section *section;
};

/* dir: where lab.json is; NULL: nowhere. pictures: NULL, or some. */
void report_make(struct report *, const struct lab_results *, const char *dir,
                 const struct report_pictures *pictures);
void report_free(struct report *);

/* A page without scripts that loads nothing; text in so many columns, without pictures; a line for
 * each arm, variant, task, seed and column; every number that the page has. */
void report_html(struct text *, const struct report *);
void report_text(struct text *, const struct report *, int columns);
void report_csv(struct text *, const struct report *);
void report_json(struct text *, const struct report *);

#endif
