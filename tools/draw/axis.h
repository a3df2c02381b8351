/* SPDX-License-Identifier: MIT */
/* axis.h -- ticks of an axis, and the format of their numbers. */
#ifndef LOCI_DRAW_AXIS_H
#define LOCI_DRAW_AXIS_H

#include "draw/figure.h"

enum { MAX_TICKS = 16, TICK_ROOM = 24 };
struct ticks {
    int n;
    double at[MAX_TICKS];
    char text[MAX_TICKS][TICK_ROOM];
};

/* Round numbers within the axis, `about` of them. */
void ticks_of(struct ticks *, const struct axis *, int about);
/* 0 at the low end, 1 at the high end.  NaN if the axis has no place for x. */
double along(const struct axis *, double x);
/* A number in few characters: 1000000 is 1e6. */
void short_number(char *text, size_t capacity, double x);

/* Colours: of a share from 0 to 1, dark to light in equally bright steps; and of lines. */
struct colour {
    unsigned char r, g, b;
};
struct colour heat_colour(double share);
enum { LINE_COLOURS = 8 };
struct line_colour {
    struct colour light, dark;
    const char *dash;
};
extern const struct line_colour line_colours[LINE_COLOURS];

#endif
