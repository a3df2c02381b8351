/* SPDX-License-Identifier: MIT */
/* claims.c -- the claims as data, and one judge for all of them. */
#include "lab/claims.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/error.h"
#include "draw/text.h"

/* ---- The claims ------------------------------------------------------------------------------ */

/* Tables, a part in two lines. */
/* clang-format off */

/* Thresholds are ours: the papers publish curves.  Two hundredths of a nat is about the noise of a
 * seed at size S. */
#define SAME_LOSS -0.02
#define FLAT -0.05
#define SAME_SHARE -0.02

static const struct part e1[] = {
    { "text", { "sinusoidal", "", "L", NULL }, { "sinusoidal", "", "2L", NULL }, 0.5,
      "sinusoidal loses at least 0.5 nats from L to 2L", NULL, 0, false, false },
    { "text", { "learned", "", "L", NULL }, { "learned", "", "2L", NULL }, 0.5,
      "learned loses at least 0.5 nats from L to 2L", NULL, 0, false, false },
};
static const struct part e2[] = {
    { "text", { "rope", "", "L", NULL }, { "rope", "", "2L", NULL }, 0,
      "rope is worse at 2L than at L", NULL, 0, false, false },
    { "text", { "rope", "", "2L", "L" }, { "sinusoidal|learned", "", "2L", "L" }, 0,
      "rope loses less from L to 2L than an absolute encoding", NULL, 0, false, false },
    { "text", { "rope", "", "2L", NULL }, { "rope", "", "4L", NULL }, 0,
      "rope is worse at 4L than at 2L", NULL, 0, false, false },
};
static const struct part e3[] = {
    { "text", { "alibi", "", "8L", NULL }, { "alibi", "", "L", NULL }, FLAT,
      "alibi loses at most 0.05 nats from L to 8L", NULL, 0, false, false },
    { "text", { "alibi", "", "8L", NULL }, { "alibi", "window", "8L", NULL }, FLAT,
      "alibi at 8L is at most 0.05 nats worse than within a window of L", NULL, 0, false, false },
    { "text", { "alibi", "window", "8L", NULL }, { "alibi", "", "8L", NULL }, FLAT,
      "alibi at 8L is at most 0.05 nats better than within a window of L", NULL, 0, false, false },
};
static const struct part e4[] = {
    { "text", { "kerple", "", "4L", NULL }, { "alibi", "", "4L", NULL }, SAME_LOSS,
      "kerple is no worse than alibi at 4L", NULL, 0, false, false },
    { "text", { "kerple", "", "8L", NULL }, { "alibi", "", "8L", NULL }, SAME_LOSS,
      "kerple is no worse than alibi at 8L", NULL, 0, false, false },
};
static const struct part e5[] = {
    { "text", { "alibi", "", "4L", NULL }, { "t5", "", "4L", NULL }, 0,
      "alibi is better than t5 at 4L", NULL, 0, false, false },
    { "text", { "t5", "", "4L", NULL }, { "rope", "", "4L", NULL }, 0,
      "t5 is better than rope at 4L", NULL, 0, false, false },
};
static const struct part e6[] = {
    { "text", { "alibi+cape", "", "8L", NULL }, { "alibi", "", "8L", NULL }, SAME_LOSS,
      "cape+alibi is no worse than alibi at 8L", NULL, 0, false, true },
    { "text", { "cape+kerple", "", "8L", NULL }, { "kerple", "", "8L", NULL }, SAME_LOSS,
      "cape+kerple is no worse than kerple at 8L", NULL, 0, false, true },
    { "text", { "cape+fire", "", "8L", NULL }, { "fire", "", "8L", NULL }, SAME_LOSS,
      "cape+fire is no worse than fire at 8L", NULL, 0, false, true },
};
static const struct part e7[] = {
    { "text", { "*", "", "L", NULL }, { "nope", "", "L", NULL }, 0,
      "it is better than nope at L", "nope,index,normalised,binary", 0, false, false },
    { "text", { "nope", "", "L", NULL }, { "nope", "", "2L", NULL }, 0,
      "nope is worse at 2L than at L", NULL, 0, false, false },
    { "text", { "nope", "", "2L", NULL }, { "nope", "", "4L", NULL }, 0,
      "nope is worse at 4L than at 2L", NULL, 0, false, false },
};
/* Rope in a window of L is what a rescaling must reach, and rope with the same fine-tuning what a
 * rescaling with fine-tuning must surpass.  Ntk with it is a control of yarn, whose authors find it
 * better than all others. */
static const struct part e8[] = {
    { "text", { "rope", "ntk", "2L", NULL }, { "rope", "window", "2L", NULL }, FLAT,
      "ntk at 2L is at most 0.05 nats worse than a window of L", NULL, 0, false, false },
    { "text", { "rope", "ntk", "4L", NULL }, { "rope", "window", "4L", NULL }, FLAT,
      "ntk at 4L is at most 0.05 nats worse than a window of L", NULL, 0, false, false },
    { "text", { "rope", "window", "2L", NULL }, { "rope", "pi", "2L", NULL }, -FLAT,
      "pi without fine-tuning is at least 0.05 nats worse than a window of L", NULL, 0, false,
      false },
    { "text", { "rope", "window", "2L", NULL }, { "rope", "yarn", "2L", NULL }, -FLAT,
      "yarn without fine-tuning is at least 0.05 nats worse than a window of L", NULL, 0, false,
      false },
    { "text", { "rope", "pi+ft", "2L", NULL }, { "rope", "ft", "2L", NULL }, 0,
      "pi with fine-tuning is better than rope with the same fine-tuning", NULL, 0, false, false },
    { "text", { "rope", "yarn+ft", "2L", NULL }, { "rope", "ft", "2L", NULL }, 0,
      "yarn with fine-tuning is better than rope with the same fine-tuning", NULL, 0, false,
      false },
    { "text", { "rope", "yarn+ft", "2L", NULL }, { "rope", "ntk+ft", "2L", NULL }, SAME_LOSS,
      "yarn with fine-tuning is no worse than ntk with the same fine-tuning", NULL, 0, false,
      false },
};
/* A window of L starves its first rows, so what lies beyond L is compared with the last quarter
 * within.  A model that reads nothing beyond L passes that, so its window is the control. */
#define E9(arm) \
    { "text", { arm, "", ">L", NULL }, { arm, "", "<L", NULL }, SAME_LOSS, \
      arm " is no worse beyond L than in the last quarter of L", NULL, 0, false, false }, \
    { "text", { arm, "", "8L", NULL }, { arm, "window", "8L", NULL }, 0.01, \
      arm " at 8L is at least 0.01 nats better than in a window of L", NULL, 0, false, false }
static const struct part e9[] = { E9("fox"), E9("sba") };
/* The same on two tasks, of which one may be missing. */
#define E10(task) \
    { task, { "nope", "", "n=30", NULL }, { "alibi", "", "n=30", NULL }, 0, \
      "nope is better than alibi at n=30", NULL, 0, false, false }, \
    { task, { "t5", "", "n=30", NULL }, { "alibi", "", "n=30", NULL }, 0, \
      "t5 is better than alibi at n=30", NULL, 0, false, false }, \
    { task, { "alibi", "", "n=30", NULL }, { "rope", "", "n=30", NULL }, 0, \
      "alibi is better than rope at n=30", NULL, 0, false, false }, \
    { task, { "rope", "", "n=30", NULL }, { "sinusoidal", "", "n=30", NULL }, SAME_SHARE, \
      "rope is no worse than sinusoidal at n=30", NULL, 0, false, false }
static const struct part e10[] = { E10("copy1"), E10("reverse") };
static const struct part e11[] = {
    { "copy", { "alibi", "", "out", NULL }, { "nope", "", "out", NULL }, SAME_SHARE,
      "alibi is no worse than nope beyond the trained length", NULL, 0, false, false },
    { "copy", { "*", "", "trained", NULL }, { "=", "", "n=40", NULL }, 0,
      "it is right less often at n=40 than within the trained length", "", 0, true, false },
};
static const struct part e12[] = {
    { "count", { "cope", "", "L 3", NULL }, { "shaw|t5", "", "L 3", NULL }, 0,
      "cope is better than a relative encoding with 3 variables", NULL, 0, false, false },
    { "count", { "shaw|t5", "", "L 3", NULL }, { "learned|sinusoidal", "", "L 3", NULL }, 0,
      "a relative encoding is better than an absolute one with 3 variables", NULL, 0, false,
      false },
    { "count", { "cope", "", "L 3", "L 1" }, { "learned|sinusoidal", "", "L 3", "L 1" }, 0,
      "cope loses less from 1 to 3 variables than an absolute encoding", NULL, 0, false, false },
};
static const struct part e13[] = {
    { "flipflop", { "cope", "", "0.98 4L", NULL }, { "*", "", "0.98 4L", NULL }, -0.005,
      "cope errs no more on FFL(0.98) at 4L", "cope", 0, false, false },
};
static const struct part e14[] = {
    { "flipflop", { NULL, "", NULL, NULL }, { "*", "", "0.98 8L", NULL }, -0.995,
      "it errs on more than 0.5 % of FFL(0.98) at 8L", "fox,fox-pro,sba", 0, false, false },
    { "flipflop", { "sba", "", "0.98 8L", NULL }, { NULL, "", NULL, NULL }, 0.99,
      "sba errs on less than 1 % of FFL(0.98) at 8L", NULL, 0, false, false },
    { "flipflop", { "fox", "", "0.98 8L", NULL }, { NULL, "", NULL, NULL }, 0.99,
      "fox errs on less than 1 % of FFL(0.98) at 8L", NULL, 0, false, false },
};
#define E15(column) \
    { "recall", { "sba", "", column, NULL }, { "alibi", "", column, NULL }, 0, \
      "sba is better than alibi at " column, NULL, 0, false, false }, \
    { "recall", { "fox", "", column, NULL }, { "alibi", "", column, NULL }, 0, \
      "fox is better than alibi at " column, NULL, 0, false, false }, \
    { "recall", { "alibi", "", column, NULL }, { "rope", "", column, NULL }, 0, \
      "alibi is better than rope at " column, NULL, 0, false, false }, \
    { "recall", { "rope", "", column, NULL }, { "nope", "", column, NULL }, 0, \
      "rope is better than nope at " column, NULL, 0, false, false }
static const struct part e15[] = { E15("4L"), E15("8L") };
#define E16(task) \
    { task, { "*@random", "", "out", NULL }, { "=", "", "out", NULL }, 0, \
      "random positions help beyond the trained length", NULL, 0, false, true }
static const struct part e16[] = { E16("copy"), E16("reverse"), E16("add") };
static const struct part e17[] = {
    { "add", { "fire@random", "", "out", NULL }, { "rope@random", "", "out", NULL }, 0,
      "fire@random is better than rope@random beyond the trained length", NULL, 0, false, false },
    { "add", { "fire@random", "", "out", NULL }, { NULL, "", NULL, NULL }, 0.2,
      "seeds of fire@random lie more than 20 points apart", NULL, PART_SPREAD, false, false },
};
static const struct part e18[] = {
    { "passkey", { "fope", "", "out", NULL }, { "rope", "", "out", NULL }, SAME_SHARE,
      "fope is no worse than rope beyond L", NULL, 0, false, false },
};
static const struct part e19[] = {
    { "add", { "tape", "", "out", NULL }, { "rope", "", "out", NULL }, SAME_SHARE,
      "tape is no worse than rope beyond the trained length", NULL, 0, false, false },
    { "add", { "tape", "", "out", NULL }, { "fire", "", "out", NULL }, SAME_SHARE,
      "tape is no worse than fire beyond the trained length", NULL, 0, false, false },
};
static const struct part e20[] = {
    { "parity", { NULL, "", NULL, NULL }, { "*", "", "far", NULL }, -0.53,
      "at most 53 % are right at the longest", "", 0, false, false },
    { "parity", { "*", "", "far", NULL }, { NULL, "", NULL, NULL }, 0.47,
      "at least 47 % are right at the longest", "", 0, false, false },
};
static const struct part e21[] = {
    { "permute", { "path", "", "trained", NULL }, { "rope", "", "trained", NULL }, 0,
      "path is better than rope within the trained length", NULL, 0, false, false },
    { "flipflop", { "path", "", "0.98 8L", NULL }, { "rope", "", "0.98 8L", NULL }, 0,
      "path is better than rope on FFL(0.98) at 8L", NULL, 0, false, false },
};
static const struct part e22[] = {
    { "text", { "pope", "", "L", NULL }, { "rope", "", "L", NULL }, SAME_LOSS,
      "pope is no worse than rope at L", NULL, 0, false, false },
    { "text", { "pope", "", "8L", NULL }, { "rope", "", "8L", NULL }, 0,
      "pope is better than rope at 8L", NULL, 0, false, false },
};

#define PARTS(e) COUNT(e), e
static const struct claim claims[] = {
    { "E1", "Sinusoidal and learned positions collapse beyond L.",
      "Press et al. 2022 (ALiBi), figure 1", PARTS(e1) },
    { "E2", "RoPE degrades beyond L, less abruptly than absolute positions, and more with length.",
      "Press et al. 2022; Zheng et al. 2024 (DAPE v2)", PARTS(e2) },
    { "E3", "ALiBi stays flat to 8L and equals its window of L: it uses no longer context.",
      "Press et al. 2022, appendix B", PARTS(e3) },
    { "E4", "KERPLE's loss beyond L is at most ALiBi's.", "Chi et al. 2022 (KERPLE)", PARTS(e4) },
    { "E5", "T5's bias lies between ALiBi and RoPE beyond L.", "Press et al. 2022; Chi et al. 2022",
      PARTS(e5) },
    { "E6", "DAPE (here cape) on top of ALiBi, KERPLE or FIRE is at least as good beyond L.",
      "Zheng et al. 2024 (DAPE)", PARTS(e6) },
    { "E7", "NoPE is the worst within L, and gets worse beyond.", "Zheng et al. 2024 (DAPE v2)",
      PARTS(e7) },
    { "E8", "NTK recovers RoPE at 2L and 4L without training; PI and YaRN need fine-tuning.",
      "Chen et al. 2023 (PI); Peng et al. 2024 (YaRN)", PARTS(e8) },
    { "E9", "FoX and SBA: the loss beyond L is no higher than at L.",
      "Lin et al. 2025 (FoX); Tan et al. 2024 (SBA)", PARTS(e9) },
    { "E10", "NoPE and T5 beat ALiBi, ALiBi beats RoPE, RoPE is no worse than sinusoidal.",
      "Kazemnejad et al. 2023 (NoPE), results/*.jsonl", PARTS(e10) },
    { "E11", "On plain copying ALiBi is no worse than NoPE, and all lose from L to 2L.",
      "Kazemnejad et al. 2023, cmc and cmc2x", PARTS(e11) },
    { "E12", "Counting: CoPE errs less than relative, relative less than absolute positions; the "
      "gap grows with the variables.", "Golovneva et al. 2024 (CoPE), table 3", PARTS(e12) },
    { "E13", "CoPE has the lowest read error on sparse flip-flops.", "Golovneva et al. 2024",
      PARTS(e13) },
    { "E14", "Without a forget gate softmax attention errs on some sparse flip-flops at 8L; SBA "
      "and FoX hardly do.", "Liu et al. 2023 (FFLM) for the first half; ours for the second",
      PARTS(e14) },
    { "E15", "Recall beyond L: SBA and FoX beat ALiBi, ALiBi beats RoPE, RoPE beats NoPE.",
      "Tan et al. 2024 (SBA); ours", PARTS(e15) },
    { "E16", "Random positions help every encoding to copy, reverse and add beyond L.",
      "Ruoss et al. 2023", PARTS(e16) },
    { "E17", "FIRE with random positions adds better than RoPE with them; seeds differ by more "
      "than 20 points.", "Zhou et al. 2024", PARTS(e17) },
    { "E18", "FoPE finds a passkey beyond L at least as well as RoPE.", "Hua et al. 2024 (FoPE)",
      PARTS(e18) },
    { "E19", "TaPE adds at least as well as RoPE and FIRE.", "Zhu et al. 2025 (TaPE)", PARTS(e19) },
    { "E20", "Nothing generalises on parity: within 3 points of one half at twice the length.",
      "Kazemnejad et al. 2023; negative control", PARTS(e20) },
    { "E21", "PaTH tracks states (permutations, sparse flip-flops) better than RoPE.",
      "Yang et al. 2025 (PaTH)", PARTS(e21) },
    { "E22", "PoPE is no worse than RoPE at L and better beyond it, without fine-tuning.",
      "Gopalakrishnan et al. 2025 (PoPE)", PARTS(e22) },
};
/* clang-format on */

int lab_claims(const struct claim **list) { return *list = claims, COUNT(claims); }

const char *verdict_name(enum verdict v)
{
    static const char *const names[VERDICTS] = { "reproduced here", "not reproduced here", "mixed",
                                                 "undecided", "not run" };
    return names[v];
}

const char *part_state_name(enum part_state s)
{
    static const char *const names[PART_STATES] = { "holds", "fails", "unclear", "one seed",
                                                    "not run" };
    return names[s];
}

/* ---- Sides ----------------------------------------------------------------------------------- */

static int runs_of(const struct table *t)
{
    int runs = 0;
    for (int k = 0; k < t->rows; k++) runs += t->row[k].variant[0] ? 0 : t->row[k].seeds;
    return runs;
}
/* Of several tables of a task in this size, the one with the most runs. */
static const struct table *table_for(const struct tables *all, const char *size, const char *task)
{
    const struct table *best = NULL;
    for (int i = 0; i < all->count; i++) {
        const struct table *t = &all->list[i];
        if (strcmp(t->task, task) || strcmp(t->size, size)) continue;
        if (!best || runs_of(t) > runs_of(best)) best = t;
    }
    return best;
}

static const struct table_row *row_of(const struct table *t, const struct side *side)
{
    for (const char *p = side->arm; *p; p += *p == '|') {
        char arm[128];
        const size_t n = strcspn(p, "|");
        snprintf(arm, sizeof arm, "%.*s", (int)n, p);
        const struct arm_name a = arm_name(arm);
        const struct table_row *r = find_row(t, a.names, a.how, side->variant);
        if (r) return r;
        p += n;
    }
    return NULL;
}

struct judge {
    const struct table *t;
    const struct part *part;
};

static double metric_of(const struct judge *j, const struct table_row *r, int seed, int column)
{
    const struct lab_measured *head = j->t->head[column];
    const struct lab_row *row = r->row[seed];
    for (int i = 0; i < row->columns && j->part->exact; i++)
        if (!strcmp(row->column[i].name, head->name)) return row->column[i].exact;
    return goodness(head, r->cell[column].value[seed]);
}

/* Is the column one of those that "trained" or "out" are the mean of? */
static bool among_columns(const struct lab_measured *head, const char *words)
{
    return !strcmp(words, "trained") ? head->trained : !head->trained && head->times > 1;
}
static bool is_mean(const char *words)
{
    return !strcmp(words, "out") || !strcmp(words, "trained");
}
static bool is_span(const char *words) { return *words == '<' || *words == '>'; }

static double column_value(const struct judge *j, const struct table_row *r, int seed,
                           const char *words)
{
    const struct table *t = j->t;
    if (*words == '>') return -loss_between(r->row[seed], t->length, 1 << 30);
    if (*words == '<') return -loss_between(r->row[seed], t->length - t->length / 4, t->length - 1);
    if (!is_mean(words)) {
        const int k = find_column(t, words);
        return k < 0 ? NAN : metric_of(j, r, seed, k);
    }
    double sum = 0;
    int n = 0;
    for (int k = 0; k < t->columns; k++)
        if (among_columns(t->head[k], words)) {
            sum += metric_of(j, r, seed, k);
            n++;
        }
    return n ? sum / n : NAN;
}

static double side_value(const struct judge *j, const struct side *side, const struct table_row *r,
                         int seed)
{
    if (!side->arm) return 0;
    const double x = column_value(j, r, seed, side->column);
    return side->from ? x - column_value(j, r, seed, side->from) : x;
}

/* The error that the choice of test sequences has on a side, squared. */
static double column_error(const struct judge *j, const struct table_row *r, const char *words)
{
    const struct table *t = j->t;
    double sum = 0;
    int n = 0;
    for (int k = 0; k < t->columns; k++) {
        const struct cell *c = &r->cell[k];
        const bool counts = is_span(words) ? k == t->far
                          : is_mean(words) ? among_columns(t->head[k], words)
                                           : k == find_column(t, words);
        if (!counts) continue;
        /* sequences have no other share on record than the one that tables show */
        const bool other = j->part->exact && t->head[k]->metric != LAB_EXACT;
        const double error =
            other ? share_error(metric_of(j, r, 0, k), t->head[k]->count) : c->sampling;
        sum += isfinite(error) ? error * error : 0;
        n++;
    }
    return n ? sum / n / n : 0;
}
static double side_error(const struct judge *j, const struct side *side, const struct table_row *r)
{
    if (!r) return 0;
    const double error = column_error(j, r, side->column);
    return side->from ? error + column_error(j, r, side->from) : error;
}
/* The same of the difference.  Two arms on the same column saw the same sequences. */
static double part_error(const struct judge *j, const struct table_row *left,
                         const struct table_row *right)
{
    const struct part *p = j->part;
    const bool same = left && right && !strcmp(p->left.column, p->right.column) && !p->left.from
                   && !p->right.from && !p->exact && !is_mean(p->left.column)
                   && !is_span(p->left.column);
    const int k = same ? find_column(j->t, p->left.column) : -1;
    if (k >= 0) return sampling_error(left, right, j->t->head[k]);
    return sqrt(side_error(j, &p->left, left) + side_error(j, &p->right, right));
}

/* ---- Parts ----------------------------------------------------------------------------------- */

/* The two rows of a part by seed, whether they learned the task or not: the margins, and each
 * side's mean. */
struct margins {
    int n;
    double *margin, left, right, least, most;
};

static struct margins margins_of(const struct judge *j, const struct table_row *left,
                                 const struct table_row *right)
{
    const struct part *p = j->part;
    const struct table_row *lead = left ? left : right;
    struct margins m = { .least = INFINITY, .most = -INFINITY };
    m.margin = draw_alloc((size_t)lead->seeds, sizeof *m.margin);
    for (int s = 0; s < lead->seeds; s++) {
        const int seed = lead->run[s]->seed;
        const int a = left ? seed_index(left, seed) : 0, b = right ? seed_index(right, seed) : 0;
        if (a < 0 || b < 0) continue;
        const double x = side_value(j, &p->left, left, a), y = side_value(j, &p->right, right, b);
        if (!isfinite(x - y)) continue;
        m.margin[m.n++] = x - y - p->need;
        m.left += x;
        m.right += y;
        m.least = fmin(m.least, x - y);
        m.most = fmax(m.most, x - y);
    }
    m.left /= m.n ? m.n : 1;
    m.right /= m.n ? m.n : 1;
    return m;
}

/* 1.471 nats or 98.4 %. */
static void put_value(struct text *t, const struct judge *j, double good, bool sign)
{
    const bool loss = j->t->head[0]->metric == LAB_LOSS && !j->part->exact;
    if (loss) text_add(t, sign ? "%+.3f" : "%.3f", good);
    else text_add(t, sign ? "%+.1f" : "%.1f", 100 * good);
}

static bool is_loss(const struct judge *j)
{
    return j->t->head[0]->metric == LAB_LOSS && !j->part->exact;
}

static void side_words(struct text *t, const struct judge *j, const struct side *side,
                       const struct table_row *r, double value)
{
    text_add(t, "%s%s%s ", r->arm, r->variant[0] ? "@" : "", r->variant);
    if (!strcmp(side->column, "out")) text_add(t, "beyond L ");
    else if (!strcmp(side->column, "trained")) text_add(t, "as trained ");
    else if (*side->column == '>') text_add(t, "at positions beyond L ");
    else if (*side->column == '<') text_add(t, "in the last quarter of L ");
    else text_add(t, "at %s ", j->t->head[find_column(j->t, side->column)]->name);
    if (side->from) text_add(t, "less at %s ", j->t->head[find_column(j->t, side->from)]->name);
    /* a loss is printed as it is, a change of loss as the loss increase */
    put_value(t, j, is_loss(j) ? -value : value, side->from);
}

static void describe(struct finding *f, const struct judge *j, const struct table_row *left,
                     const struct table_row *right, const struct margins *m)
{
    const struct part *p = j->part;
    struct text t = { 0 };
    if (left) side_words(&t, j, &p->left, left, m->left);
    if (left && right) text_add(&t, ", ");
    if (right) side_words(&t, j, &p->right, right, m->right);
    text_add(&t, is_loss(j) ? " nats" : " %%");
    if (p->kind == PART_SPREAD) {
        text_add(&t, ", from ");
        put_value(&t, j, m->least, false);
        text_add(&t, " to ");
        put_value(&t, j, m->most, false);
    } else if (left && right) {
        text_add(&t, ": ");
        put_value(&t, j, m->left - m->right, true);
    }
    if (m->n == 1) text_add(&t, " (one seed)");
    else if (p->kind == PART_MARGIN) {
        text_add(&t, " (");
        const double sign = left ? 1 : -1; /* a side alone: its own interval */
        const double low = f->margin.low + p->need, high = f->margin.high + p->need;
        const bool turn = (sign < 0) != (is_loss(j) && !(left && right));
        put_value(&t, j, turn ? -high : low, left && right);
        text_add(&t, " to ");
        put_value(&t, j, turn ? -low : high, left && right);
        text_add(&t, ", %d seeds)", m->n);
    } else text_add(&t, " (%d seeds)", m->n);
    if (p->need != 0) {
        text_add(&t, left ? ", our threshold is above " : ", our threshold is below ");
        put_value(&t, j, left ? p->need : -p->need, left && right);
    }
    for (int side = 0; side < 2; side++) {
        const struct table_row *r = side ? right : left;
        if (r && r->learned < r->seeds && !(side && left && !strcmp(left->arm, right->arm)))
            text_add(&t, "; %s learned the task with %d of %d seeds", r->arm, r->learned, r->seeds);
    }
    snprintf(f->words, sizeof f->words, "%s", t.s);
    text_free(&t);
}

enum { SEEDS_FOR_CALM = 5 }; /* fewer seeds cannot show that results never spread */

/* Models that have learned nothing are alike at all lengths. */
static bool has_learned(const struct table_row *left, const struct table_row *right)
{
    return (left && left->learned) || (right && right->learned);
}

static enum part_state state_of(const struct part *p, const struct finding *f,
                                const struct margins *m, bool learned)
{
    if (m->n == 1) return PART_ONE_SEED;
    if (!learned) return PART_UNCLEAR;
    if (p->kind == PART_SPREAD) {
        if (m->most - m->least > p->need) return PART_HOLDS;
        return m->n < SEEDS_FOR_CALM ? PART_UNCLEAR : PART_FAILS;
    }
    return f->margin.low > 0 ? PART_HOLDS : f->margin.high < 0 ? PART_FAILS : PART_UNCLEAR;
}

static struct finding *more(struct judged *to)
{
    struct finding *list = draw_alloc((size_t)to->findings + 1, sizeof *list);
    if (to->findings) memcpy(list, to->finding, (size_t)to->findings * sizeof *list);
    free(to->finding);
    to->finding = list;
    return &list[to->findings++];
}

static void not_run(struct judged *to, const struct part *p, const char *what)
{
    struct finding *f = more(to);
    *f = (struct finding){ .state = PART_NOT_RUN };
    f->margin = (struct interval){ 0, NAN, NAN, NAN, NAN, 0 };
    snprintf(f->task, sizeof f->task, "%s", p->task);
    snprintf(f->words, sizeof f->words, "%s", what);
}

/* One pair of rows.  NULL represents a side that is a number. */
static void judge_rows(const struct judge *j, const struct table_row *left,
                       const struct table_row *right, struct judged *to)
{
    struct margins m = margins_of(j, left, right);
    if (m.n == 0) { /* columns or positions that were not measured, or no seed in common */
        if (!j->part->optional) not_run(to, j->part, j->part->says);
        free(m.margin);
        return;
    }
    struct finding *f = more(to);
    *f = (struct finding){ .margin = interval_of(m.margin, m.n, part_error(j, left, right)) };
    if (j->part->kind == PART_SPREAD) /* no mean to test */
        f->margin = (struct interval){ m.n, m.most - m.least - j->part->need, NAN, NAN, NAN, 0 };
    snprintf(f->task, sizeof f->task, "%s", j->part->task);
    f->state = state_of(j->part, f, &m, has_learned(left, right));
    describe(f, j, left, right, &m);
    free(m.margin);
}

/* Is one of the names "a+b" in a list separated by commas? */
static bool among(const char *list, const char *names)
{
    for (const char *p = list; p && *p; p += strcspn(p, ","), p += *p == ',')
        for (const char *s = names; *s; s += strcspn(s, "+"), s += *s == '+')
            if (strcspn(p, ",") == strcspn(s, "+") && !strncmp(p, s, strcspn(s, "+"))) return true;
    return false;
}

/* The arm itself, without an @how.  Its text, as arms with other options have the same name. */
static const struct table_row *usual_row(const struct table *t, const struct table_row *r)
{
    const size_t n = strcspn(r->arm, "@");
    for (int i = 0; i < t->rows; i++) {
        const struct table_row *o = &t->row[i];
        if (!o->variant[0] && strlen(o->arm) == n && !strncmp(o->arm, r->arm, n)) return o;
    }
    return NULL;
}

/* Substitutes every arm for the side that has a star.  An arm that has learned the task with no
 * seed says nothing about all arms, and neither does a table of a user's own. */
static void judge_all(const struct judge *j, bool left_star, struct judged *to)
{
    const struct part *p = j->part;
    const struct side *star = left_star ? &p->left : &p->right;
    const struct side *other = left_star ? &p->right : &p->left;
    const char *how = star->arm[1] == '@' ? star->arm + 2 : "";
    const bool same_column = other->arm && !strcmp(star->column, other->column);
    int count = 0, aside = 0;
    for (int i = 0; i < j->t->rows; i++) {
        const struct table_row *r = &j->t->row[i], *with = NULL;
        const struct arm_name a = arm_name(r->arm);
        if (strcmp(r->variant, star->variant) || strcmp(a.how, how) || among(p->but, a.names)
            || among("bias", a.names))
            continue;
        if (other->arm) {
            with = !strcmp(other->arm, "=") ? usual_row(j->t, r) : row_of(j->t, other);
            if (!with || (with == r && same_column)) continue;
        }
        if (!r->learned) {
            aside++;
            continue;
        }
        judge_rows(j, left_star ? r : with, left_star ? with : r, to);
        count++;
    }
    if (aside > to->aside) to->aside = aside;
    if (!count && !p->optional) not_run(to, p, p->says);
}

static void judge_part(const struct tables *all, const struct part *p, struct judged *to)
{
    struct judge j = { table_for(all, to->size, p->task), p };
    if (!j.t) return; /* this task was not run at all: see conclude() */
    if (p->left.arm && *p->left.arm == '*') {
        judge_all(&j, true, to);
        return;
    }
    if (p->right.arm && *p->right.arm == '*') {
        judge_all(&j, false, to);
        return;
    }
    const struct table_row *left = p->left.arm ? row_of(j.t, &p->left) : NULL;
    const struct table_row *right = p->right.arm ? row_of(j.t, &p->right) : NULL;
    if ((p->left.arm && !left) || (p->right.arm && !right)) {
        if (!p->optional) not_run(to, p, p->says);
        return;
    }
    judge_rows(&j, left, right, to);
}

/* ---- Claims ---------------------------------------------------------------------------------- */

/* A part contradicts its claim only if that stays significant among all parts. */
static void correct(struct judged *to)
{
    double *p = draw_alloc((size_t)to->findings, sizeof *p);
    for (int i = 0; i < to->findings; i++) p[i] = to->finding[i].margin.p;
    holm(p, to->findings);
    for (int i = 0; i < to->findings; i++) {
        struct finding *f = &to->finding[i];
        if (f->state == PART_FAILS && !isnan(p[i]) && p[i] > 0.05) f->state = PART_UNCLEAR;
    }
    free(p);
}

static void missing_tasks(struct text *t, const struct claim *c, const struct judged *to)
{
    for (int i = 0; i < c->parts; i++) {
        bool seen = false;
        for (int k = 0; k < i; k++) seen |= !strcmp(c->part[k].task, c->part[i].task);
        for (int k = 0; k < to->findings; k++)
            seen |= !strcmp(to->finding[k].task, c->part[i].task);
        if (!seen) text_add(t, "%s%s", t->n ? ", " : "", c->part[i].task);
    }
}

/* Text is generated unless the settings name a corpus. */
static void setting_words(struct text *t, const struct tables *all, const struct judged *to)
{
    const struct claim *c = to->claim;
    text_add(t, "size %s", to->size);
    for (int i = 0; i < c->parts; i++) {
        const struct table *table = table_for(all, to->size, c->part[i].task);
        bool seen = !table;
        for (int k = 0; k < i; k++) seen |= !strcmp(c->part[k].task, c->part[i].task);
        if (seen) continue;
        int least = 0, most = 0;
        for (int k = 0; k < table->rows; k++) {
            const int seeds = table->row[k].seeds;
            if (!least || seeds < least) least = seeds;
            if (seeds > most) most = seeds;
        }
        text_add(t, ", %s (L = %d, ", table->task, table->length);
        const char *corpus = strstr(table->settings, "corpus=");
        if (corpus) text_add(t, "%.*s, ", (int)strcspn(corpus + 7, " "), corpus + 7);
        else if (!strcmp(table->task, "text")) text_add(t, "generated sentences, ");
        if (least != most) text_add(t, "%d to ", least);
        text_add(t, "%d seed%s)", most, most == 1 ? "" : "s");
    }
}

static void conclude(const struct tables *all, struct judged *to)
{
    static const char *const words[PART_STATES] = { "hold", "fail", "unclear", "with one seed",
                                                    "not run" };
    struct text t = { 0 }, tasks = { 0 };
    const int judged = to->findings - to->count[PART_NOT_RUN];
    missing_tasks(&tasks, to->claim, to);
    if (!judged) to->verdict = CLAIM_NOT_RUN;
    else if (to->count[PART_FAILS])
        to->verdict = to->count[PART_HOLDS] ? CLAIM_MIXED : CLAIM_NOT_REPRODUCED;
    else if (to->count[PART_HOLDS] == to->findings) to->verdict = CLAIM_REPRODUCED;
    else to->verdict = CLAIM_UNDECIDED;
    if (!judged) text_add(&t, "no run has the arms and columns that it takes");
    else {
        setting_words(&t, all, to);
        text_add(&t, ": of %d part%s", to->findings, to->findings == 1 ? "" : "s");
        bool first = true;
        for (int i = 0; i < PART_STATES; i++) {
            if (!to->count[i]) continue;
            text_add(&t, "%s %d %s", first ? "" : ",", to->count[i], words[i]);
            first = false;
        }
        if (to->aside)
            text_add(&t, "; %d arm%s not learned it", to->aside, to->aside > 1 ? "s have" : " has");
        if (tasks.n) text_add(&t, "; not run: %s", tasks.s);
    }
    snprintf(to->sentence, sizeof to->sentence, "%s", t.s);
    text_free(&t);
    text_free(&tasks);
}

static void judge_one(const struct tables *all, const struct claim *c, const char *size,
                      struct judged *to)
{
    *to = (struct judged){ .claim = c, .size = size };
    for (int i = 0; i < c->parts; i++) judge_part(all, &c->part[i], to);
    correct(to);
    for (int i = 0; i < to->findings; i++) to->count[to->finding[i].state]++;
    conclude(all, to);
}

struct judged *judge_claims(const struct tables *all, int *count)
{
    struct judged *list = draw_alloc((size_t)(COUNT(claims) * (all->count + 1)), sizeof *list);
    *count = 0;
    for (int c = 0; c < COUNT(claims); c++)
        for (int i = 0; i == 0 || i < all->count; i++) {
            bool seen = false;
            for (int k = 0; k < i; k++) seen |= !strcmp(all->list[k].size, all->list[i].size);
            if (seen) continue;
            judge_one(all, &claims[c], all->count ? all->list[i].size : "", &list[(*count)++]);
        }
    return list;
}

void judged_free(struct judged *list, int count)
{
    for (int i = 0; i < count; i++) free(list[i].finding);
    free(list);
}
