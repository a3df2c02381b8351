/* SPDX-License-Identifier: MIT */
/* axis.h -- where the numbers of an axis stand, and how they are written. */
#ifndef LOCI_DRAW_AXIS_H
#define LOCI_DRAW_AXIS_H

#include "draw/figure.h"

enum { MAX_TICKS = 16, TICK_ROOM = 24 };
struct ticks { int n; double at[MAX_TICKS]; char text[MAX_TICKS][TICK_ROOM]; };

/* Round numbers within the axis, about so many. */
void ticks_of(struct ticks *, const struct axis *, int about);
/* 0 at its low end, 1 at its high end; NaN for what has no place on it. */
double along(const struct axis *, double x);
/* A number in few characters: 1000000 is 1e6. */
void short_number(char *text, size_t capacity, double x);

/* Colours: of a share from 0 to 1, dark to light, equally bright steps; and of lines. */
struct colour { unsigned char r, g, b; };
struct colour heat_colour(double share);
enum { LINE_COLOURS = 8 };
struct line_colour { struct colour light, dark; const char *dash; };
extern const struct line_colour line_colours[LINE_COLOURS];

#endif
