/* SPDX-License-Identifier: MIT */
/* fused.c -- the engine against the reference: every encoding, in double and in float on the best
 * instruction set, outputs and all gradients.
 *
 * In double the two agree to rounding.  In float, an output may be off by the tolerance that its
 * encodings claim times 1 + max|exact|, and a gradient by ten times that.  Workspaces and outputs
 * start as NaN, so code that reads before writing is detected. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reference/reference.h"
#include "harness.h"
#include "play.h"
#include "walk.h"

static double claim(const char *text)
{
    const loci_encoding_info *list;
    double most = 0;
    const int count = loci_encodings(&list);
    for (; text; text = strchr(text, '+') ? strchr(text, '+') + 1 : NULL)
        for (int i = 0; i < count; i++)
            if (strcspn(text, ":+") == strlen(list[i].name)
                && !strncmp(text, list[i].name, strlen(list[i].name)))
                most += list[i].tolerance;
    return most;
}

static void compare(const struct play *r, const char *owner, const char *name, const void *got,
                    const double *want, size_t count, double bound)
{
    double most = 0, off = 0;
    size_t at = 0;
    for (size_t i = 0; i < count; i++)
        if (isfinite(want[i]) && fabs(want[i]) > most) most = fabs(want[i]);
    for (size_t i = 0; i < count; i++) {
        const double x = r->f64 ? ((const double *)got)[i] : (double)((const float *)got)[i];
        const double d = isfinite(want[i]) ? fabs(x - want[i]) : x == want[i] ? 0 : INFINITY;
        if (!(d <= off)) {
            off = isnan(d) ? INFINITY : d;
            at = i;
        }
    }
    CHECK_THAT(off <= bound * (1 + most),
               "%s (%s) on %s: %s%s%s[%zu] is %.9g, the reference says %.9g, off by %.1e where "
               "%.1e "
               "is allowed",
               r->w->encoding, r->w->shape, r->isa, owner, *owner ? "." : "", name, at,
               r->f64 ? ((const double *)got)[at] : (double)((const float *)got)[at], want[at], off,
               bound * (1 + most));
}

static bool has_keys(const loci_tensor *t)
{
    for (int i = 0; i < t->rank; i++)
        if (t->shape[i] == LOCI_DIM_KEYS) return true;
    return false;
}

/* Runs the walk's problem on one engine and compares all results. */
static void run(struct walk *w, const char *isa, bool f64)
{
    static struct play p;
    const double tolerance = f64 ? 1e-11 : claim(w->encoding);
    if (!play_open(&p, w, isa, f64, NULL)) return;
    if (play_pass(&p, PLAY_PREPARE) || play_pass(&p, PLAY_FORWARD)
        || play_pass(&p, PLAY_BACKWARD)) {
        CHECK_FAILED("%s (%s) on %s: %s", w->encoding, w->shape, p.isa, p.error.text);
    } else {
        compare(&p, "", "o", p.call.o.data, w->call.o.data, w->out_count, tolerance);
        if (p.call.lse) compare(&p, "", "lse", p.call.lse, w->call.lse, w->row_count, tolerance);
        if (p.call.rem) compare(&p, "", "rem", p.call.rem, w->call.rem, w->row_count, tolerance);
        if (p.call.ae) compare(&p, "", "ae", p.call.ae, w->call.ae, w->state_count, tolerance);
        for (int i = w->stage == LOCI_EMBED; i < w->inputs; i++) {
            const int t = i - (w->inputs - w->tensors);
            if (t >= 0 && w->tensor[t].role == LOCI_FIXED) continue;
            /* queries are rotated here, and no keys */
            if (t >= 0 && w->stage == LOCI_ROTATE && has_keys(&w->tensor[t])) continue;
            const void *got = t >= 0 ? p.ddata[t]
                            : i == 0 ? p.grad.dq.data
                            : i == 1 ? p.grad.dk.data
                                     : p.grad.dv.data;
            compare(&p, w->input[i].owner, w->input[i].name, got, w->input[i].dx, w->input[i].count,
                    tolerance * 10);
        }
    }
    play_close(&p);
}

static void check(struct walk *w)
{
    static int turn;
    const int often = LOCI_EMULATED ? 5 : LOCI_SLOW ? 2 : 1;
    if (turn++ % often && !walk_whole()) return;
    /* a minute in the reference, whose long double is computed by software on aarch64 */
    if (LOCI_EMULATED && !walk_whole() && strstr(w->encoding, "liere") && w->desc.dim > 64) return;
    loci_error error = { 0 };
    loci_status status;
    w->call.error = &error;
    if (w->stage == LOCI_ATTENTION) status = loci_reference(w->plan, w->data, &w->call, &w->grad);
    else if (w->stage == LOCI_LINEAR_ATTENTION)
        status = loci_reference_linear(w->plan, w->data, &w->call, &w->grad);
    else if (w->stage == LOCI_ROTATE)
        status = loci_reference_rotate(w->plan, w->data, &w->call, LOCI_QUERY, w->call.q, w->call.o,
                                       w->grad.dout, w->grad.dq, w->ddata);
    else
        status = loci_reference_embed(w->plan, w->data, &w->call, w->call.q, w->call.o,
                                      w->grad.dout, w->ddata);
    if (status) {
        CHECK_FAILED("%s (%s), reference: %s", w->encoding, w->shape, error.text);
        return;
    }
    const char *isas[8];
    const int count = loci_isas(isas, 8);
    if (!LOCI_EMULATED) run(w, NULL, true); /* it is tested without emulation */
    run(w, isas[count - 1], false);         /* the other instruction sets have its bits (bits.c) */
}

int main(int argc, char **argv)
{
    walk_only(argc, argv);
    walk_all(WALK_SMALL, check);
    walk_all(WALK_TILES, check);
    if (!LOCI_SLOW) walk_all(WALK_CHUNKS, check);
    return harness_end();
}
