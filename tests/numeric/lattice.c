/* SPDX-License-Identifier: MIT */
/* lattice.c -- with certain parameters one encoding equals another one: outputs and the gradients
 * of q, k and v.  With the same bits where no rounding differs, else within a bound. */
#include <math.h>
#include <string.h>

#include "attend.h"
#include "harness.h"

enum { H = 2, D = 16, L = 150 };

static bool is(const char *a, const char *b) { return !strcmp(a, b); }

static double zero(const char *encoding, const loci_tensor *t, ptrdiff_t i)
{
    (void)encoding;
    (void)t;
    (void)i;
    return 0;
}
static double nothing(const char *encoding, const loci_tensor *t, ptrdiff_t i)
{
    (void)encoding;
    (void)t;
    (void)i;
    return -INFINITY;
}
/* As zero(), but factors of zeros are not 0. */
static double last_zero(const char *encoding, const loci_tensor *t, ptrdiff_t i)
{
    (void)encoding;
    return is(t->name, "w3") || is(t->name, "b3") || is(t->name, "w2") || is(t->name, "b2")
                || is(t->name, "r1") || is(t->name, "w")
             ? 0
         : is(t->name, "slopes")                ? 0.1 * (double)(i + 1)
         : is(t->name, "u") || is(t->name, "v") ? 0
                                                : 0.5 + 0.1 * (double)(i % 3);
}

/* A slope m[h] in the form of every encoding. */
static double slope(ptrdiff_t h) { return h == 0 ? 0.125 : 0.03125; }
static const double fire_threshold = 1000, kerple_rate = 0.5;
static double slopes(const char *encoding, const loci_tensor *t, ptrdiff_t i)
{
    if (is(encoding, "alibi")) return slope(i);
    if (is(encoding, "fox")) return -slope(i / L);
    if (is(encoding, "clip")) return -slope(i % H) * (double)(i / H);
    if (is(encoding, "t5")) return -slope(i % H) * (double)(i / H);
    if (is(encoding, "kerple")) return is(t->name, "r1") ? slope(i) : 1;
    return NAN;
}
/* -r1 log(1 + r2 d) of kerple, and as a network of one hidden unit: fire's input is log(1 + c d) /
 * log(1 + c threshold). */
static double logs(const char *encoding, const loci_tensor *t, ptrdiff_t i)
{
    if (is(encoding, "kerple")) return is(t->name, "r1") ? slope(i) : kerple_rate;
    const double whole = log1p(kerple_rate * fire_threshold);
    return is(t->name, "c")  ? kerple_rate
         : is(t->name, "l")  ? 1
         : is(t->name, "w1") ? 1
         : is(t->name, "w3") ? -slope(i) * whole
                             : 0;
}
/* Vectors by distance: shaw's rows count from the farthest, cope's from the query's own key at
 * 1. */
static double by_distance(const char *encoding, const loci_tensor *t, ptrdiff_t i)
{
    if (is(t->name, "gate_k")) return i % D == 0 ? 300 : 0;
    const int npos = 20, row = (int)(i / D), channel = (int)(i % D);
    const int distance = is(encoding, "shaw") ? npos - 2 - row : row - 1;
    return sin(1.7 * distance + 0.9 * channel);
}
static double rope_frequencies(const char *encoding, const loci_tensor *t, ptrdiff_t i)
{
    (void)encoding;
    (void)t;
    return (float)pow(10000, -2.0 * (double)(i % (D / 2)) / D);
}

/* Inputs: random ones, or q with a 1 in front, so that a gate on it is always open. */
enum inputs { RANDOM, OPEN };
/* Positions along one axis.  With several axes all the same, or the first one alone. */
enum places { ROW, SAME, FIRST };

static void run(struct attend *a, const char *encoding, attend_fill *fill, enum inputs inputs,
                enum places places)
{
    static double q[H * L * D], coord[3 * L];
    *a = (struct attend){ .desc = LOCI_DESC(.encoding = encoding, .heads = H, .dim = D,
                                            .scale = 0.25, .max_len = L),
                          .q_len = L,
                          .k_len = L,
                          .seed = 3,
                          .fill = fill };
    walk_restart(4);
    for (int i = 0; i < H * L * D; i++)
        q[i] = inputs == OPEN && i % D == 0 ? 1 : (float)walk_uniform();
    a->q = q;
    for (int i = 0; i < 3 * L; i++) coord[i] = places == FIRST && i >= L ? 0 : i % L;
    if (places != ROW) a->q_coord = a->k_coord = coord;
    attend(a);
}

static double apart(const double *a, const double *b, int n) { return attend_apart(a, b, n, true); }

static void same(const char *law, const char *one, attend_fill *fill_one, enum places places,
                 const char *other, attend_fill *fill_other, enum inputs inputs, double bound)
{
    struct attend a, b;
    run(&a, one, fill_one, inputs, places);
    run(&b, other, fill_other, inputs, ROW);
    const double off = fmax(fmax(apart(a.o, b.o, H * L * D), apart(a.dq, b.dq, H * L * D)),
                            fmax(apart(a.dk, b.dk, H * L * D), apart(a.dv, b.dv, H * L * D)));
    CHECK_THAT(off <= bound, "%s: %s and %s are %.1e apart, where %.1e is allowed", law, one, other,
               off, bound);
    attend_free(&a);
    attend_free(&b);
}
static void is_nope(const char *law, const char *text, attend_fill *fill)
{
    same(law, text, fill, ROW, "nope", NULL, RANDOM, 0);
}

int main(void)
{
    is_nope("ALiBi with slope 0 is NoPE", "alibi:slopes=given", zero);
    is_nope("T5 with a table of zeros is NoPE", "t5", zero);
    is_nope("clip with a table of zeros is NoPE", "clip", zero);
    is_nope("KERPLE with r1 = 0 is NoPE", "kerple", last_zero);
    is_nope("KERPLE's power with r1 = 0 is NoPE", "kerple:kernel=power", last_zero);
    is_nope("FIRE with a last layer of zeros is NoPE", "fire", last_zero);
    is_nope("Shaw with tables of zeros is NoPE", "shaw", zero);
    is_nope("Transformer-XL with zeros is NoPE", "xl", zero);
    is_nope("DeBERTa with zeros is NoPE", "deberta", zero);
    is_nope("FoX with open gates is NoPE", "fox", zero);
    is_nope("CoPE with vectors of zeros is NoPE", "cope", zero);
    is_nope("CAPE with a last layer of zeros is NoPE", "cape", last_zero);
    is_nope("a sink of -inf is NoPE", "sink", nothing);
    same("a cap far above all scores is NoPE", "softcap:cap=1e5", NULL, ROW, "nope", NULL, RANDOM,
         2e-6);
    is_nope("RoPE with frequencies 0 is NoPE", "rope:pairing=half,freq=given", zero);
    same("CAPE over ALiBi with a last layer of zeros is ALiBi", "alibi:slopes=given+cape",
         last_zero, ROW, "alibi:slopes=given", last_zero, RANDOM, 1e-6);

    same("FoX with a constant gate is ALiBi", "fox", slopes, ROW, "alibi:slopes=given", slopes,
         RANDOM, 2e-6);
    same("clip with a line for a table is ALiBi", "clip:max=200", slopes, ROW, "alibi:slopes=given",
         slopes, RANDOM, 1e-6);
    same("T5 with a bucket for each distance and a line is ALiBi",
         "t5:buckets=400,max_distance=1000", slopes, ROW, "alibi:slopes=given", slopes, RANDOM,
         1e-6);
    same("KERPLE's power 1 is ALiBi", "kerple:kernel=power", slopes, ROW, "alibi:slopes=given",
         slopes, RANDOM, 1e-6);
    same("FIRE can be KERPLE's logarithm", "fire:layers=1,hidden=1,threshold=1000", logs, ROW,
         "kerple", logs, RANDOM, 2e-6);
    same("CoPE with all gates one is a clipped distance",
         "cope:gates=given,npos=20,gate_scale=1,pos_scale=0.25", by_distance, ROW,
         "shaw:left=18,right=0,values=0", by_distance, OPEN, 2e-6);

    same("RoPE with its own frequencies given is RoPE", "rope:pairing=half,freq=given",
         rope_frequencies, ROW, "rope:pairing=half", NULL, RANDOM, 1e-5);
    same("2-D RoPE with y = 0 is RoPE on half of the channels", "rope2d:base=100", NULL, FIRST,
         "rope:pairing=interleaved,base=100,dim=8", NULL, RANDOM, 0);
    same("M-RoPE of a text is RoPE", "mrope:sections=3/3/2", NULL, SAME, "rope:pairing=half", NULL,
         RANDOM, 0);
    same("interleaved M-RoPE of a text is RoPE", "mrope:sections=3/3/2,order=interleaved", NULL,
         SAME, "rope:pairing=half", NULL, RANDOM, 0);
    same("mixed on one axis with RoPE's frequencies is RoPE", "mixed:axes=1", rope_frequencies, ROW,
         "rope:pairing=interleaved,freq=given", rope_frequencies, RANDOM, 0);
    same("xPos that does not fade is RoPE", "xpos:gamma=1e15", NULL, ROW,
         "rope:pairing=interleaved", NULL, RANDOM, 2e-6);
    same("linear scaling by 1 is RoPE", "rope:pairing=half,scaling=linear,factor=1", NULL, ROW,
         "rope:pairing=half", NULL, RANDOM, 0);
    same("NTK scaling by 1 is RoPE", "rope:pairing=half,scaling=ntk,factor=1", NULL, ROW,
         "rope:pairing=half", NULL, RANDOM, 0);
    same("YaRN by 1 is RoPE", "rope:pairing=half,scaling=yarn,factor=1,original_length=100", NULL,
         ROW, "rope:pairing=half", NULL, RANDOM, 0);
    same("dynamic scaling within the trained length is RoPE",
         "rope:pairing=half,scaling=dynamic,factor=4,original_length=150,length=150", NULL, ROW,
         "rope:pairing=half", NULL, RANDOM, 0);
    return harness_end();
}
