/* SPDX-License-Identifier: MIT */
/* scaling.c -- laws of rope's scaling rules, whatever their arithmetic, and published
 * magnitudes. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "contract/plan.h"
#include "encodings/rope_scaling.h"
#include "harness.h"

enum { DIM = 32, PAIRS = DIM / 2 };

struct rule {
    double hi[PAIRS], lo[PAIRS], factor;
};

static struct rule rule_of(const char *options)
{
    char text[512];
    struct rule r = { .factor = NAN };
    loci_error e;
    loci_plan *plan;
    snprintf(text, sizeof text, "rope:pairing=half%s", options);
    if (loci_plan_create(&plan, &(loci_desc)LOCI_DESC(.encoding = text, .heads = 1, .dim = DIM),
                         &e)) {
        CHECK_FAILED("%s: %s", text, e.text);
        return r;
    }
    const struct prep prep = { .cfg = &plan->enc[0] };
    for (int t = 0; t < PAIRS; t++) loci_rope_frequency(&prep, t, &r.hi[t], &r.lo[t]);
    r.factor = plan->enc[0].opt[ROPE_ATTENTION_FACTOR];
    loci_plan_destroy(plan);
    return r;
}

/* a = b / by, to the 106 bits that both have. */
static bool is_quotient(const struct rule *a, const struct rule *b, double by, int t)
{
    const double product = a->hi[t] * by, rest = fma(a->hi[t], by, -product);
    return fabs((product - b->hi[t]) + (rest + a->lo[t] * by - b->lo[t])) <= 1e-30 * b->hi[t];
}
static void all_quotients(const char *options, double by, const char *what)
{
    const struct rule a = rule_of(options), none = rule_of("");
    bool holds = true;
    for (int t = 0; t < PAIRS; t++) holds &= is_quotient(&a, &none, by, t);
    CHECK_THAT(holds, "%s: %s", options, what);
}

static void magnitude(const char *options, double want)
{
    CHECK_CLOSE(rule_of(options).factor, want, 1e-6, "%s: attention_factor", options);
}

int main(void)
{
    const struct rule none = rule_of("");
    all_quotients(",scaling=linear,factor=7", 7, "every frequency divided");
    all_quotients(",scaling=yarn,factor=1,original_length=4096", 1,
                  "a factor of 1 changes nothing");
    all_quotients(",scaling=dynamic,factor=4,original_length=512,length=300", 1,
                  "short contexts stay");
    all_quotients(",scaling=llama3,factor=1,original_length=512", 1,
                  "a factor of 1 changes nothing");
    all_quotients(",scaling=llama3,factor=8,original_length=1e9,low_freq_factor=1,"
                  "high_freq_factor=1",
                  1, "long enough for all pairs");
    all_quotients(",scaling=proportional,partial=1,factor=5", 5, "every pair turns");

    const struct rule ntk = rule_of(",scaling=ntk,factor=9"),
                      dynamic = rule_of(",scaling=dynamic,factor=2,original_length=100,length=500");
    CHECK_THAT(is_quotient(&ntk, &none, 1, 0) && is_quotient(&ntk, &none, 9, PAIRS - 1),
               "ntk: first pair kept, last divided");
    CHECK_THAT(!memcmp(&ntk, &dynamic, sizeof ntk),
               "dynamic: that of ntk by 1 + 2 (500 - 100)/100");

    const struct rule yarn = rule_of(",scaling=yarn,factor=16,original_length=4096,beta_fast=32");
    bool falls = true;
    for (int t = 0; t < PAIRS; t++)
        falls &= yarn.hi[t] <= none.hi[t] && yarn.hi[t] >= none.hi[t] / 16.000001
              && (t == 0 || yarn.hi[t] < yarn.hi[t - 1]);
    CHECK_THAT(falls && is_quotient(&yarn, &none, 1, 0) && is_quotient(&yarn, &none, 16, PAIRS - 1),
               "yarn: fast pairs stay, slow ones stretch");

    const struct rule half = rule_of(",scaling=proportional,partial=0.5");
    bool still = true;
    for (int t = 0; t < PAIRS; t++)
        still &=
            t < PAIRS / 2 ? half.hi[t] == none.hi[t] && half.lo[t] == none.lo[t] : half.hi[t] == 0;
    CHECK_THAT(still, "proportional: half of the pairs turn, with the frequencies of the whole "
                      "head");

    const struct rule fixed = rule_of(",scaling=ntk_fixed,factor=6"),
                      mixed = rule_of(",scaling=ntk_fixed,factor=6,mixed_b=1");
    CHECK_THAT(is_quotient(&fixed, &none, 6, PAIRS - 1), "ntk_fixed: the last pair divided");
    bool equal = true;
    for (int t = 0; t < PAIRS; t++) equal &= fabs(fixed.hi[t] - mixed.hi[t]) <= 1e-15 * fixed.hi[t];
    CHECK_THAT(equal, "ntk_fixed: mixed_b=1 is the rule without it");

    magnitude(",scaling=linear,factor=4", 1);
    magnitude(",scaling=yarn,factor=4,original_length=4096", 1.138629);
    magnitude(",scaling=yarn,factor=32,original_length=4096", 1.346574);
    magnitude(",scaling=yarn,factor=40,original_length=4096,mscale=0.707,mscale_all_dim=0.707", 1);
    magnitude(",scaling=yarn,factor=40,original_length=4096,attention_factor=1.5", 1.5);
    magnitude(",scaling=longrope,factor=32,original_length=4096,"
              "short=1/1/1/1/1/1/1/1/1/1/1/1/1/1/1/1,"
              "long=1/1/1/1/1/1/1/1/1/1/1/1/1/1/1/1",
              1.190238);
    return harness_end();
}
