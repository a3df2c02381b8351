/* SPDX-License-Identifier: MIT */
/* lattice_rotary.c -- with certain parameters, rotation blocks and sums of waves equal rope, and
 * each other. */
#include <math.h>
#include <string.h>

#include "attend.h"
#include "harness.h"

enum { H = 2, D = 24, L = 140, N = H * L * D };

static bool is(const char *a, const char *b) { return !strcmp(a, b); }

static double frequency(ptrdiff_t t) { return (float)pow(10000, -2.0 * (double)t / D); }

/* A generator is [..][block][block], element i: block j of the head, row and column in it. */
struct place {
    int j, row, column, block;
};
static struct place place(const loci_tensor *t, ptrdiff_t i)
{
    const int block = (int)t->shape[t->rank - 1], count = (int)t->shape[t->rank - 3];
    return (struct place){ .j = (int)(i / (block * block) % count),
                           .row = (int)(i / block % block),
                           .column = (int)(i % block),
                           .block = block };
}
/* The first axis rotates each pair of channels as rope does.  Others rotate nothing. */
static double as_rope(const char *encoding, const loci_tensor *t, ptrdiff_t i)
{
    if (is(encoding, "rope")) return frequency(i);
    if (is(t->name, "theta")) return i < t->shape[1];
    const struct place at = place(t, i);
    const double w = frequency((at.j * at.block + at.row) / 2);
    if (is(encoding, "comrope"))
        return at.row == at.column + 1 && at.row % 2 ? frequency((at.j * at.block + at.column) / 2)
                                                     : 0;
    return at.column == at.row + 1 && at.column % 2
                && i < t->shape[t->rank - 3] * at.block * at.block
             ? -w
             : 0;
}
/* Generators that rotate all channels, on the first axis. comrope has the same as liere. */
static double any_generator(const char *encoding, const loci_tensor *t, ptrdiff_t i)
{
    if (is(t->name, "theta")) return 1;
    const struct place at = place(t, i);
    const bool first = is(encoding, "comrope") || i < t->shape[t->rank - 3] * at.block * at.block;
    return first && at.row < at.column ? sin(1.3 * at.j + 2.1 * at.row + 0.7 * at.column) : 0;
}
/* theta[a][j] lambda[h][j]: one number per axis, pair and head. */
static double theta(int axis, int j) { return axis ? 0.5 : j % 3 - 1; }
static double lambda(int j) { return 0.25 * (j % 5); }
static double products(const char *encoding, const loci_tensor *t, ptrdiff_t i)
{
    (void)encoding;
    if (is(t->name, "freq"))
        return theta((int)(i / (H * D / 2)), (int)(i % (D / 2))) * lambda((int)(i % (D / 2)));
    if (is(t->name, "theta")) return theta((int)(i / (D / 2)), (int)(i % (D / 2)));
    return place(t, i).row ? lambda(place(t, i).j) : 0;
}
/* Each pair uses its own wave, or with few pairs the first ones. */
static double unit(const char *encoding, const loci_tensor *t, ptrdiff_t i)
{
    if (is(encoding, "rope")) return i < D / 4 ? frequency(i) : 0;
    const ptrdiff_t sums = t->shape[t->rank - 1], waves = t->shape[t->rank - 2];
    return i % sums == i / sums % waves;
}

static void run(struct attend *a, const char *encoding, attend_fill *fill, bool coordinates,
                bool first)
{
    static double coord[3 * L];
    *a = (struct attend){ .desc =
                              LOCI_DESC(.encoding = encoding, .heads = H, .dim = D, .max_len = L),
                          .q_len = L,
                          .k_len = L,
                          .seed = 6,
                          .fill = fill };
    for (int i = 0; i < 3 * L; i++) coord[i] = i < L ? i % L : first ? 0 : i % 9;
    if (coordinates) a->q_coord = a->k_coord = coord;
    attend(a);
}
static double apart(const double *a, const double *b) { return attend_apart(a, b, N, true); }
static void same(const char *law, const char *one, const char *other, attend_fill *fill, bool first,
                 double bound)
{
    struct attend a, b;
    run(&a, one, fill, true, first);
    run(&b, other, fill, !strstr(other, "rope:pairing"), first);
    const double off =
        fmax(fmax(apart(a.o, b.o), apart(a.dq, b.dq)), fmax(apart(a.dk, b.dk), apart(a.dv, b.dv)));
    CHECK_THAT(off <= bound, "%s: %s and %s are %.1e apart, where %.1e is allowed", law, one, other,
               off, bound);
    attend_free(&a);
    attend_free(&b);
}

int main(void)
{
    const char *given = "rope:pairing=interleaved,freq=given";
    same("LieRE of pairs with RoPE's generators is RoPE", "liere:axes=1,block=2", given, as_rope,
         true, 0);
    same("LieRE of one block with RoPE's generators is RoPE", "liere:axes=1,block=24", given,
         as_rope, true, 2e-6);
    same("LieRE of pairs on two axes with RoPE's generators is RoPE", "liere:block=2", given,
         as_rope, true, 0);
    same("LieRE by quaternions with RoPE's generators is RoPE", "liere:block=4", given, as_rope,
         true, 4e-6);
    same("LieRE by a series with RoPE's generators is RoPE", "liere:block=12", given, as_rope, true,
         4e-6);
    same("ComRoPE of pairs with RoPE's generators is RoPE", "comrope:axes=1", given, as_rope, true,
         0);
    same("ComRoPE by thetas with RoPE's generators is RoPE", "comrope:kind=ld", given, as_rope,
         true, 0);
    same("ComRoPE of blocks with RoPE's generators is RoPE", "comrope:kind=ld,block=8", given,
         as_rope, true, 2e-6);
    same("ComRoPE of pairs is mixed RoPE", "comrope:kind=ld", "mixed", products, false, 0);
    same("LieRE on one axis is ComRoPE", "liere:axes=1,block=6", "comrope:axes=1,block=6",
         any_generator, true, 0);
    same("three channels turn alike by quaternions and in a basis", "liere:axes=2,block=3",
         "liere:axes=1,block=3", any_generator, true, 4e-6);
    same("four channels turn alike by quaternions and in a basis", "liere:axes=2,block=4",
         "liere:axes=1,block=4", any_generator, true, 4e-6);
    same("eight channels turn alike by a series and in a basis", "liere:axes=2,block=8",
         "liere:axes=1,block=8", any_generator, true, 4e-6);
    same("FoPE with unit coefficients is RoPE", "fope:clamp=0,ignore_zero=0", "rope:pairing=half",
         unit, true, 0);
    same("FoPE with few unit coefficients is RoPE on few pairs", "fope:clamp=0,pad_sin=0",
         "rope:pairing=half,freq=given", unit, true, 1e-5);
    return harness_end();
}
