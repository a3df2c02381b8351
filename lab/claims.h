/* SPDX-License-Identifier: MIT */
/* claims.h -- claims of papers about encodings, and the verdict of the runs.
 *
 * A claim has parts: "kerple at 4L is at least as good as alibi".  Each part is a number by seed
 * that should be above 0, and its interval of 95 % decides.  A claim holds if all of its parts do.
 * A part that fails significantly, even after Holm's correction over the parts, contradicts it. */
#ifndef LOCI_LAB_CLAIMS_H
#define LOCI_LAB_CLAIMS_H

#include "lab/tables.h"

enum verdict { CLAIM_HOLDS, CLAIM_CONTRADICTED, CLAIM_INCONCLUSIVE, CLAIM_NOT_RUN };
enum part_state {
    PART_HOLDS,
    PART_FAILS,
    PART_UNCLEAR,
    PART_ONE_SEED,
    PART_NOT_LEARNED,
    PART_NOT_RUN
};

/* One side of a part.  `arm`: names as of arm_name(), with an optional "@how" behind them; "a|b" is
 * the first that was run.  NULL is the number 0.  `column` as of find_column(), or "out": the mean
 * of all columns longer than trained; ">L": positions beyond L of the longest test.  `from`: minus
 * that column. */
struct side {
    const char *arm, *variant, *column, *from;
};
enum part_kind {
    PART_MARGIN, /* goodness of left - of right - need > 0 */
    PART_SPREAD  /* most - least of left over seeds > need */
};
/* In `arm` of a side "*" represents every trained arm in turn, except those of `but`, which are
 * separated by commas.  "*@how" represents every arm that was run both with that @how and without.
 * The other side's "=" is then the same arm without it. */
struct part {
    const char *task;
    struct side left, right;
    double need;
    const char *says; /* the expectation in a few words */
    const char *but;
    enum part_kind kind;
    bool exact;    /* goodness is the share of sequences that are right */
    bool optional; /* if it was not run, nothing is missing */
};
struct claim {
    const char *id, *sentence, *source;
    int parts;
    const struct part *part;
};
int lab_claims(const struct claim **list); /* E1 .. E20 */

/* A part with its result.  `words` has its figures. */
struct finding {
    enum part_state state;
    char task[LAB_NAME], words[300];
    struct interval margin;
    bool aside; /* of an arm in a part over all arms: it has not learned */
};
struct judged {
    const struct claim *claim;
    enum verdict verdict;
    char sentence[700];  /* the figures that decided */
    int findings, aside; /* aside: left out, not having learned the task */
    struct finding *finding;
};
const char *verdict_name(enum verdict);
const char *part_state_name(enum part_state);
/* One for each claim.  The caller passes each to judged_free(). */
void judge_claims(const struct tables *, struct judged *list);
void judged_free(struct judged *);

#endif
