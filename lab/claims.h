/* SPDX-License-Identifier: MIT */
/* claims.h -- claims of papers about encodings, and what the runs say of them.
 *
 * A claim has parts: "kerple at 4L is at least as good as alibi".  Each part is a number by seed
 * that should be above 0, and its interval of 95 % decides.  A part fails only if that stays
 * significant after Holm's correction over the parts of the claim.  Every part is reported. */
#ifndef LOCI_LAB_CLAIMS_H
#define LOCI_LAB_CLAIMS_H

#include "lab/tables.h"

/* Reproduced: all parts hold.  Not reproduced: a part fails and none holds.  Mixed: some hold and
 * some fail.  Otherwise undecided. */
enum verdict {
    CLAIM_REPRODUCED,
    CLAIM_NOT_REPRODUCED,
    CLAIM_MIXED,
    CLAIM_UNDECIDED,
    CLAIM_NOT_RUN,
    VERDICTS
};
enum part_state { PART_HOLDS, PART_FAILS, PART_UNCLEAR, PART_ONE_SEED, PART_NOT_RUN, PART_STATES };

/* One side of a part.  `arm`: names as of arm_name(), with an optional "@how" behind them; "a|b" is
 * the first that was run.  NULL is the number 0.  `column` as of find_column(), or "trained" and
 * "out": the mean of all columns as trained, and of all longer ones; "<L" and ">L": positions of
 * the longest test in the last quarter of L, and beyond L.  `from`: minus that column. */
struct side {
    const char *arm, *variant, *column, *from;
};
enum part_kind {
    PART_MARGIN, /* goodness of left - of right - need > 0 */
    PART_SPREAD  /* most - least of left over seeds > need */
};
/* In `arm` of a side "*" represents every trained arm in turn, except those of `but`, which are
 * separated by commas, and those that have learned the task with no seed.  "*@how" represents every
 * arm that was run both with that @how and without.  The other side's "=" is the same arm without
 * it.  `need` is our threshold; papers publish none. */
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
};
/* A claim on the runs of one size. */
struct judged {
    const struct claim *claim;
    const char *size;
    enum verdict verdict;
    char sentence[400];     /* size, lengths, corpus, seeds, and how many parts came out how */
    int findings, aside;    /* aside: arms that have not learned the task, and are left out */
    int count[PART_STATES]; /* of the findings */
    struct finding *finding;
};
const char *verdict_name(enum verdict);
const char *part_state_name(enum part_state);
/* Each claim on each size that was run; with no run at all, on none.  The caller passes the list to
 * judged_free(). */
struct judged *judge_claims(const struct tables *, int *count);
void judged_free(struct judged *, int count);

#endif
