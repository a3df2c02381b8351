/* SPDX-License-Identifier: MIT */
/* dropout.c -- which weights are dropped: as many as asked for, and as if by chance.  With queries
 * of zeros all weights of a row are equal, so loci_weights() shows them pair by pair.  Counts are
 * in units of their standard deviation; everything here is the same in every run.
 *
 * numeric/fused.c compares numbers and gradients with the definition, bits/bits.c tests bits. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "mem.h"
#include "walk.h"
#include "loci/cache.h"

enum { HEADS = 2, LENGTH = 1024, DIM = 4 };
static struct mem mem;

/* ---- Which are dropped ----------------------------------------------------------------------- */

/* 1 or 0 of all pairs, [HEADS][LENGTH][LENGTH]. */
static unsigned char *dropped(double p, uint64_t seed, uint64_t offset)
{
    const size_t pairs = (size_t)HEADS * LENGTH * LENGTH;
    float *zero = mem_alloc(&mem, HEADS * LENGTH * DIM * sizeof *zero),
          *o = mem_alloc(&mem, HEADS * LENGTH * DIM * sizeof *o),
          *lse = mem_alloc(&mem, HEADS * LENGTH * sizeof *lse),
          *w = mem_alloc(&mem, pairs * sizeof *w);
    unsigned char *made = mem_alloc(&mem, pairs);
    loci_error e = { 0 };
    loci_plan *plan;
    const loci_desc d = LOCI_DESC(.heads = HEADS, .dim = DIM, .full = 1);
    memset(zero, 0, HEADS * LENGTH * DIM * sizeof *zero);
    if (loci_plan_create(&plan, &d, &e)) exit(2);
    void *tables = mem_alloc(&mem, loci_tables_size(plan, LENGTH));
    const loci_call call =
        LOCI_CALL(.batch = 1, .q_len = LENGTH, .k_len = LENGTH, .q = { .data = zero },
                  .k = { .data = zero }, .v = { .data = zero }, .o = { .data = o }, .lse = lse,
                  .error = &e, .dropout = p, .dropout_seed = seed, .dropout_offset = offset);
    void *work = mem_alloc(&mem, loci_workspace(plan, &call, 1));
    if (loci_prepare(plan, LENGTH, NULL, tables) || loci_forward(plan, tables, work, &call)
        || loci_weights(plan, tables, work, &call, (loci_view){ .data = w }))
        CHECK_FAILED("dropout %g: %s", p, e.text);
    bool kept = true;
    for (size_t i = 0; i < pairs; i++) {
        made[i] = w[i] == 0;
        kept &= made[i] || fabs((double)w[i] * LENGTH * (1 - p) - 1) < 1e-6;
    }
    CHECK_THAT(kept, "dropout %g: weights that are kept are not divided by 1 - p", p);
    loci_plan_destroy(plan);
    return made;
}

/* ---- Statistics ------------------------------------------------------------------------------ */

enum { MOST = 5 }; /* standard deviations that a count may be off by */
static void expect(double p, const char *what, int at, double count, double n, double share)
{
    const double off = (count - n * share) / sqrt(n * share * (1 - share));
    CHECK_THAT(fabs(off) <= MOST, "dropout %g, %s %d: %g of %g, %.1f standard deviations off", p,
               what, at, count, n, off);
}
/* Pairs that are both dropped, of a and of b `rows` and `keys` further on. */
static void expect_apart(double p, const char *what, int at, const unsigned char *a,
                         const unsigned char *b, ptrdiff_t rows, ptrdiff_t keys)
{
    double both = 0, n = 0;
    for (ptrdiff_t i = 0; i + rows < LENGTH; i++)
        for (ptrdiff_t j = keys < 0 ? -keys : 0; j < LENGTH - (keys > 0 ? keys : 0); j++, n++)
            both += a[i * LENGTH + j] & b[(i + rows) * LENGTH + j + keys];
    expect(p, what, at, both, n, p * p);
}
/* How often each pattern of eight neighbouring keys occurs: chi squared. */
static void expect_patterns(double p, const unsigned char *x)
{
    double count[256] = { 0 }, n = 0, sum = 0;
    int classes = 0;
    for (ptrdiff_t i = 0; i < HEADS * LENGTH * LENGTH; i += 8, n++) {
        unsigned bits = 0;
        for (int k = 0; k < 8; k++) bits |= (unsigned)x[i + k] << k;
        count[bits]++;
    }
    for (unsigned bits = 0; bits < 256; bits++) {
        double want = n;
        for (int k = 0; k < 8; k++) want *= bits >> k & 1 ? p : 1 - p;
        if (want < 5) continue;
        sum += (count[bits] - want) * (count[bits] - want) / want;
        classes++;
    }
    CHECK_THAT(fabs(sum - classes) <= MOST * sqrt(2 * classes),
               "dropout %g: patterns of 8 keys have chi squared %.1f of %d classes", p, sum,
               classes);
}
static void statistics(double p)
{
    const unsigned char *x = dropped(p, 1, 0), *head = x + (ptrdiff_t)LENGTH * LENGTH;
    double rows[LENGTH] = { 0 }, keys[LENGTH] = { 0 }, all = 0;
    for (ptrdiff_t i = 0; i < LENGTH; i++)
        for (ptrdiff_t j = 0; j < LENGTH; j++) {
            rows[i] += x[i * LENGTH + j];
            keys[j] += x[i * LENGTH + j];
            all += x[i * LENGTH + j];
        }
    expect(p, "all pairs", 0, all, (double)LENGTH * LENGTH, p);
    for (int i = 0; i < LENGTH; i++) {
        expect(p, "row", i, rows[i], LENGTH, p);
        expect(p, "key", i, keys[i], LENGTH, p);
    }
    for (int by = 1; by <= 70; by++) {
        expect_apart(p, "keys apart", by, x, x, 0, by);
        expect_apart(p, "rows apart", by, x, x, by, 0);
        expect_apart(p, "diagonals apart", by, x, x, by, by);
        expect_apart(p, "other diagonals apart", by, x, x, by, -by);
    }
    expect_apart(p, "heads apart", 1, x, head, 0, 0);
    expect_apart(p, "seeds apart", 1, x, dropped(p, 2, 0), 0, 0);
    expect_apart(p, "offsets apart", 1, x, dropped(p, 1, 1), 0, 0);
    expect_patterns(p, x);
    mem_release(&mem, 0);
}

/* ---- Calls ----------------------------------------------------------------------------------- */

static void refuse(const loci_plan *plan, loci_call call, const char *sentence)
{
    _Alignas(64) static char work[1 << 16];
    _Alignas(64) static char tables[4096];
    loci_error e = { 0 };
    call.error = &e;
    const bool linear = strstr(sentence, "linear") != NULL;
    if (loci_prepare(plan, 8, NULL, tables)) exit(2);
    const loci_status status = linear ? loci_linear_forward(plan, tables, work, &call, NULL, NULL)
                                      : loci_forward(plan, tables, work, &call);
    CHECK_THAT(status && !strncmp(e.text, sentence, strlen(sentence)), "%g: %d '%s', not '%s'",
               call.dropout, (int)status, e.text, sentence);
    CHECK_THAT(!loci_workspace(plan, &call, 1), "dropout %g: it has a workspace", call.dropout);
}
static void refusals(void)
{
    static float x[64], o[64];
    const double wrong[] = { -0.1, 1, 1.5, NAN, INFINITY };
    const char *const sentence[] = { "dropout -0.1 must be at least 0 and below", "dropout 1 must",
                                     "dropout 1.5 must", "dropout nan must", "dropout inf must" };
    loci_call call = LOCI_CALL(.batch = 1, .q_len = 4, .k_len = 4, .q = { .data = x },
                               .k = { .data = x }, .v = { .data = x }, .o = { .data = o });
    loci_plan *plan, *linear;
    const loci_desc d = LOCI_DESC(.heads = 1, .dim = 4),
                    of = LOCI_DESC(.heads = 1, .dim = 4, .stage = LOCI_LINEAR_ATTENTION);
    if (loci_plan_create(&plan, &d, NULL) || loci_plan_create(&linear, &of, NULL)) exit(2);
    for (int i = 0; i < 5; i++) {
        call.dropout = wrong[i];
        refuse(plan, call, sentence[i]);
    }
    call.dropout = 0.5;
    refuse(linear, call, "dropout must be 0 in linear attention");
    loci_cache *cache;
    if (loci_cache_create(&cache, plan, 1, 8, 0, mem_alloc(&mem, loci_cache_size(plan, 1, 8)),
                          NULL))
        exit(2);
    call.cache = cache;
    call.k_len = 0;
    refuse(plan, call, "dropout must be 0 with a cache");
    loci_plan_destroy(plan);
    loci_plan_destroy(linear);
    mem_release(&mem, 0);
}

int main(void)
{
    static const double p[] = { 0.5, 0.1, 1.0 / 3, 0.9, 0.02 };
    for (int i = 0; i < (LOCI_SLOW ? 1 : 5); i++) statistics(p[i]);
    refusals();
    return harness_end();
}
