/* SPDX-License-Identifier: MIT */
/* axis.c -- see axis.h. */
#include "draw/axis.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* 1e+06 is 1e6, and -0 is 0. */
void short_number(char *text, size_t capacity, double x)
{
    snprintf(text, capacity, fabs(x) >= 1e5 || (x != 0 && fabs(x) < 1e-3) ? "%.3g" : "%.4g",
             x + 0.0);
    char *e = strchr(text, 'e');
    if (!e) return;
    char *digits = e + 1 + (e[1] == '+' || e[1] == '-');
    const bool minus = e[1] == '-';
    while (*digits == '0' && digits[1]) digits++;
    e[1] = '-';
    memmove(e + 1 + minus, digits, strlen(digits) + 1);
}

double along(const struct axis *a, double x)
{
    if (isnan(x) || (a->log && x <= 0)) return NAN;
    if (a->low == a->high) return 0.5;
    if (!a->log) return (x - a->low) / (a->high - a->low);
    return (log(x) - log(a->low)) / (log(a->high) - log(a->low));
}

static void tick(struct ticks *t, double x)
{
    if (t->n == MAX_TICKS) return;
    short_number(t->text[t->n], TICK_ROOM, x);
    t->at[t->n++] = x;
}

/* Powers of ten, spaced so that they fit.  Within one power, 1, 2 and 5. */
static void log_ticks(struct ticks *t, const struct axis *a, int about)
{
    const int from = (int)floor(log10(a->low) + 1e-9), to = (int)ceil(log10(a->high) - 1e-9);
    int step = 1;
    while ((to - from) / step + 1 > about + 1) step++;
    for (int e = from; e <= to; e += step)
        for (int k = 0; k < 3; k++) {
            const double x = (double[]){ 1, 2, 5 }[k] * pow(10, e);
            if (k && to - from > 2) continue;
            if (x >= a->low * (1 - 1e-9) && x <= a->high * (1 + 1e-9)) tick(t, x);
        }
}

/* The smallest of 1, 2, 2.5 and 5 times a power of ten that gives at most `about` steps. */
static double round_step(double width, int about)
{
    const double least = width / about, power = pow(10, floor(log10(least)));
    const double steps[] = { 1, 2, 2.5, 5, 10 };
    for (int i = 0; i < 5; i++)
        if (steps[i] * power >= least * (1 - 1e-9)) return steps[i] * power;
    return 10 * power;
}

void ticks_of(struct ticks *t, const struct axis *a, int about)
{
    t->n = 0;
    if (!(a->low < a->high)) {
        tick(t, a->low);
        return;
    }
    if (a->log) {
        log_ticks(t, a, about);
        return;
    }
    const double step = round_step(a->high - a->low, about);
    for (double k = ceil(a->low / step - 1e-9); k * step <= a->high + 1e-9 * step; k++)
        tick(t, k * step);
}

/* ---- Colours --------------------------------------------------------------------------------- */

/* From dark blue over green to light yellow.  Brightness rises throughout, so that the scale reads
 * in grey.  Blue against yellow is visible with every kind of colour blindness. */
struct colour heat_colour(double share)
{
    static const struct colour stops[] = {
        { 18, 22, 72 },    { 30, 52, 116 },   { 36, 86, 140 },   { 42, 118, 146 }, { 62, 150, 142 },
        { 104, 180, 130 }, { 158, 206, 118 }, { 212, 228, 124 }, { 252, 246, 168 }
    };
    const int last = sizeof stops / sizeof *stops - 1;
    const double at = fmin(fmax(share, 0), 1) * last;
    const int i = at < last ? (int)at : last - 1;
    const double f = at - i;
    const struct colour a = stops[i], b = stops[i + 1];
    /* a byte halfway between two numbers must not depend on a last bit */
    return (struct colour){ (unsigned char)(a.r + f * (b.r - a.r) + 0.5 + 1e-6),
                            (unsigned char)(a.g + f * (b.g - a.g) + 0.5 + 1e-6),
                            (unsigned char)(a.b + f * (b.b - a.b) + 0.5 + 1e-6) };
}

/* Distinguishable by hue with every kind of colour blindness, by brightness in print, and by
 * dashes. */
const struct line_colour line_colours[LINE_COLOURS] = {
    { { 0, 90, 160 }, { 88, 166, 255 }, "" },
    { { 200, 80, 0 }, { 255, 150, 60 }, "6 3" },
    { { 0, 130, 95 }, { 63, 200, 150 }, "2 3" },
    { { 150, 50, 120 }, { 225, 130, 200 }, "9 3 2 3" },
    { { 120, 95, 0 }, { 222, 195, 70 }, "12 4" },
    { { 70, 70, 70 }, { 200, 200, 200 }, "4 2" },
    { { 190, 30, 60 }, { 255, 120, 130 }, "1 2" },
    { { 60, 150, 190 }, { 130, 215, 240 }, "7 2 1 2 1 2" },
};
