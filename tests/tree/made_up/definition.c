/* SPDX-License-Identifier: MIT */
/* definition.c -- the definition of smooth.c: tests/tree/made_up.sh adds it to reference/bias.c. */

static double smooth_line(struct problem *p, int e, ptrdiff_t j)
{
    return 1 - sqrt(1 + pow((double)distance(p, j) / option(p, e, "width", 4), 2));
}
static void smooth(struct problem *p, int e, int h)
{
    for (ptrdiff_t j = 0; j < p->Lk; j++)
        if (p->seen[j]) of_head(p, p->add, h)[j] += tensor(p, e, "r")[h] * smooth_line(p, e, j);
}
static void smooth_backward(struct problem *p, int e, int h)
{
    for (ptrdiff_t j = 0; j < p->Lk; j++)
        if (p->seen[j]) dtensor(p, e, "r")[h] += of_head(p, p->dadd, h)[j] * smooth_line(p, e, j);
}
const struct definition loci_define_smooth = {
    .name = "smooth",
    .score = smooth,
    .score_backward = smooth_backward,
};
