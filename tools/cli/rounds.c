/* SPDX-License-Identifier: MIT */
/* rounds.c -- see rounds.h. */
#include <math.h>
#include <stdlib.h>

#include "cli/cli.h"
#include "cli/rounds.h"

static const double most_taken = 0.02;

void rounds_open(struct rounds *r)
{
    r->pair = alloc((size_t)(PATIENCE * r->wanted), sizeof *r->pair);
}

void rounds_close(struct rounds *r)
{
    free(r->pair);
    *r = (struct rounds){ 0 };
}

void rounds_row(struct rounds *r) { r->made = 0; }
void rounds_forget(struct rounds *r) { r->best[0] = r->best[1] = 0; }

void rounds_add(struct rounds *r, struct pair p)
{
    double *mine = &r->best[0], *other = &r->best[r->apart];
    *mine = fmax(*mine, fmax(p.mine.before, p.mine.after));
    *other = fmax(*other, fmax(p.other.before, p.other.after));
    r->pair[r->made++] = p;
}

/* Asked anew for every round each time, as a better probe takes earlier rounds away. */
bool rounds_count(const struct rounds *r, int i)
{
    const struct pair *p = &r->pair[i];
    const double near = 1 - r->tolerance;
    return fmax(p->mine.taken, p->other.taken) <= most_taken
        && fmin(p->mine.before, p->mine.after) >= near * r->best[0]
        && fmin(p->other.before, p->other.after) >= near * r->best[r->apart];
}

int rounds_counted(const struct rounds *r)
{
    int n = 0;
    for (int i = 0; i < r->made; i++) n += rounds_count(r, i);
    return n;
}

bool rounds_due(const struct rounds *r)
{
    return r->made < PATIENCE * r->wanted && rounds_counted(r) < r->wanted;
}

double rounds_at(const struct rounds *r, double (*figure)(const struct pair *, const void *),
                 const void *user, double share)
{
    double *x = alloc((size_t)r->made, sizeof *x);
    int n = 0;
    for (int i = 0; i < r->made; i++)
        if (rounds_count(r, i)) x[n++] = figure(&r->pair[i], user);
    const double at = n ? quantile(x, n, share) : NAN;
    free(x);
    return at;
}
