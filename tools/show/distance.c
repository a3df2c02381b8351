/* SPDX-License-Identifier: MIT */
/* distance.c -- questions about distance: does the score fall with it, is it bounded, can distances
 * be told apart, and what happens beyond the length? */
#include <stdlib.h>

#include "show/measure.h"

/* ---- Curves ---------------------------------------------------------------------------------- */

/* TURNED: vectors per head at a distance, since some rotations are slow.  MOST_TABLE: bytes of
 * tables that may be created to find how far float32 distinguishes distances. */
enum { TURNED = 16, MOST_TABLE = 1 << 22 };

static bool only_rotates(const struct show *s)
{
    return show_rotates(s) && !show_adds(s) && !s->in_order;
}

/* What a rotation leaves of q.q for random unit vectors, on average, by head, at distances first,
 * first + step, ... */
static loci_status rotated_at(struct show *s, double first, double step, ptrdiff_t n, double *out,
                              loci_error *e)
{
    struct draws d = show_make_draws(s, TURNED, true);
    loci_status status = LOCI_OK;
    for (ptrdiff_t i = 0; i < n && !status; i++) {
        status = show_draw(s, &d, true, -1, first + step * (double)i, 0, e);
        for (int h = 0; h < s->heads; h++) {
            out[i * s->heads + h] = 0;
            for (int k = 0; k < TURNED; k++)
                out[i * s->heads + h] += d.score[k * s->heads + h] / TURNED / s->all.plan->scale;
        }
    }
    show_free_draws(&d);
    return status;
}

/* The effect of each distance, by head: the added bias, or what the rotation leaves. */
static loci_status curve_of(struct show *s, ptrdiff_t n, double *out, bool *nothing, loci_error *e)
{
    *nothing = !only_rotates(s);
    if (only_rotates(s)) return rotated_at(s, 0, 1, n, out, e);
    return show_adds(s) && !show_bends(s) ? show_bias(s, n, out, nothing, e) : LOCI_OK;
}

loci_status ask_monotone(struct show *s, struct finding *f, loci_error *e)
{
    const ptrdiff_t n = s->len + 1;
    double *curve = draw_alloc((size_t)(n * s->heads), sizeof *curve), most = 0;
    bool nothing = true;
    const loci_status status = s->embeds ? LOCI_OK : curve_of(s, n, curve, &nothing, e);
    ptrdiff_t first = 0;
    int head = 0;
    for (ptrdiff_t d = 1; d < n && !nothing; d++)
        for (int h = 0; h < s->heads; h++) {
            const double rise = curve[d * s->heads + h] - curve[(d - 1) * s->heads + h];
            const double size = 1 + fabs(curve[d * s->heads + h]);
            if (!(rise > 1e-12 * size)) continue;
            if (!first) {
                first = d;
                head = h;
            }
            most = fmax(most, rise);
        }
    const int tried = (int)(s->len * s->heads);
    if (nothing)
        say(f, NAN, 0, "-", "%s",
            s->embeds || !(show_adds(s) || show_rotates(s)) ? "nothing is said of a distance"
                                                            : "no function of the distance alone");
    else if (first)
        say(f, most, tried, "no", "no: rises first from distance %td to %td, head %d", first - 1,
            first, head);
    else say(f, 0, tried, "yes", "never rises up to distance %td, in no head", s->len);
    free(curve);
    return status;
}

/* ---- Decay ----------------------------------------------------------------------------------- */

/* The mean of |partial sums of e^(i d w)| over the pairs, which bounds what a rotation leaves of
 * q.k.  The engine supplies cos and sin, from channels rotated alone. */
static loci_status bound_at(struct show *s, double d, double *bound, loci_error *e)
{
    const int dim = s->dim;
    const ptrdiff_t width = (ptrdiff_t)s->heads * dim;
    double *x = draw_alloc((size_t)(dim * width), sizeof *x);
    double *y = draw_alloc((size_t)(dim * width), sizeof *y);
    double *at = draw_alloc((size_t)dim, sizeof *at), re = 0, im = 0;
    int pairs = 0;
    for (int c = 0; c < dim; c++) {
        x[c * width + c] = 1;
        at[c] = d;
    }
    const loci_status status = show_rotate(s, dim, x, at, y, e);
    double factor;
    const int known = loci_frequencies(s->all.plan, NULL, 0, &factor);
    *bound = 0;
    for (int c = 0; c < dim && pairs < known; c++) {
        double sine = 0;
        /* nothing is rotated yet: either half will do */
        bool first = d == 0 && c < known;
        for (int k = c + 1; k < dim; k++)
            if (y[c * width + k] != 0) {
                sine = y[c * width + k];
                first = true;
            }
        if (!first) continue;
        re += y[c * width + c] / factor;
        im += sine / factor;
        *bound += hypot(re, im);
        pairs++;
    }
    if (pairs) *bound /= pairs;
    free(x);
    free(y);
    free(at);
    return status;
}

/* The loss from distance 0 to 1, 4 and 32 times the length, by the head that loses most. -inf:
 * below e^-60. */
static const int times[] = { 1, 4, FAR };
static loci_status drops(struct show *s, double *drop, bool *nothing, loci_error *e)
{
    const ptrdiff_t n = only_rotates(s) ? 4 : FAR * s->len + 1;
    double *curve = draw_alloc((size_t)(n * s->heads), sizeof *curve);
    loci_status status = LOCI_OK;
    *nothing = false;
    if (only_rotates(s)) {
        status = rotated_at(s, 0, 1, 1, curve, e);
        for (int i = 0; i < COUNT(times) && !status; i++)
            status = rotated_at(s, times[i] * s->trained, 1, 1, curve + (i + 1) * s->heads, e);
    } else status = curve_of(s, n, curve, nothing, e);
    for (int i = 0; i < COUNT(times) && !status && !*nothing; i++) {
        const double *far = curve + (only_rotates(s) ? i + 1 : times[i] * s->len) * s->heads;
        drop[i] = -INFINITY;
        for (int h = 0; h < s->heads; h++)
            if (!isnan(far[h]))
                drop[i] = fmax(drop[i], isinf(far[h]) ? INFINITY : curve[h] - far[h]);
    }
    free(curve);
    return status;
}

loci_status ask_decay(struct show *s, struct finding *f, loci_error *e)
{
    char words[COUNT(times)][24], bounds[160] = "";
    double drop[COUNT(times)], b[COUNT(times) + 1];
    bool nothing = true;
    loci_error refused;
    /* tables may not reach that far, which `beyond` reports */
    if (s->embeds || drops(s, drop, &nothing, &refused) || nothing) {
        say(f, NAN, 0, "-", "nothing that falls with the distance alone");
        return LOCI_OK;
    }
    for (int i = 0; i < COUNT(times); i++)
        if (isinf(drop[i])) snprintf(words[i], sizeof words[i], "more than 60");
        else snprintf(words[i], sizeof words[i], "%.3g", drop[i]);
    const double length = only_rotates(s) ? s->trained : (double)s->len;
    if (only_rotates(s) && show_turns(s) && s->axes == 1
        && loci_frequencies(s->all.plan, NULL, 0, NULL)) {
        for (int i = 0; i <= COUNT(times); i++)
            TRY(bound_at(s, i ? times[i - 1] * length : 0, &b[i], e));
        snprintf(bounds, sizeof bounds,
                 "; the mean of |partial sums| is %.3g, %.3g, %.3g of that at 0", b[1] / b[0],
                 b[2] / b[0], b[3] / b[0]);
    }
    say(f, drop[COUNT(times) - 1], COUNT(times) * s->heads, words[COUNT(times) - 1],
        "%s by %s, %s, %s at distance %.0f, %.0f, %.0f%s%s",
        only_rotates(s) ? "of q.R(d)q the mean falls" : "falls", words[0], words[1], words[2],
        length, 4 * length, FAR * length, only_rotates(s) ? "" : " in the steepest head", bounds);
    return LOCI_OK;
}

/* ---- Codes ----------------------------------------------------------------------------------- */

/* Codes of n positions or distances from `first` on, [n][width]: added rows, rotated rows, or
 * scores of the same few queries and keys by distance. */
static ptrdiff_t code_width(const struct show *s)
{
    return s->embeds || (show_turns(s) && !show_adds(s)) ? (ptrdiff_t)s->heads * s->dim : s->heads;
}
static loci_status codes(struct show *s, double first, ptrdiff_t n, double *out, loci_error *e)
{
    const ptrdiff_t width = (ptrdiff_t)s->heads * s->dim;
    double *q_at = draw_alloc((size_t)(n * s->axes), sizeof *q_at);
    double *k_at = draw_alloc((size_t)(n * s->axes), sizeof *k_at);
    double *q = draw_alloc((size_t)(n * width), sizeof *q);
    loci_status status;
    for (ptrdiff_t i = 0; i < n * s->axes; i++) q_at[i] = first + (double)(i / s->axes);
    if (s->embeds) {
        int64_t *at = draw_alloc((size_t)n, sizeof *at);
        for (ptrdiff_t i = 0; i < n; i++) at[i] = (int64_t)first + i;
        status = show_embed(s, n, NULL, at, out, e);
        free(at);
    } else if (code_width(s) == width && !show_adds(s)) {
        for (ptrdiff_t i = 0; i < n * width; i++) q[i] = 1;
        status = show_rotate(s, n, q, q_at, out, e);
    } else {
        double *k = draw_alloc((size_t)(n * width), sizeof *k);
        for (ptrdiff_t i = 0; i < n; i++) {
            show_normal(s, STREAM_Q, q + i * width, width);
            show_normal(s, STREAM_K, k + i * width, width);
        }
        const struct pairs p = { n, q, k, q_at, k_at };
        status = show_pairs(s, &p, out, e);
        free(k);
    }
    free(q_at);
    free(k_at);
    free(q);
    return status;
}

/* Rows: the difference relative to their length.  Scores: the absolute difference in the head that
 * differs most. */
static double apart(const double *a, const double *b, ptrdiff_t width, bool rows)
{
    double sum = 0, size = 0;
    for (ptrdiff_t c = 0; c < width; c++) {
        sum += (a[c] - b[c]) * (a[c] - b[c]);
        size += a[c] * a[c];
    }
    if (!rows) return largest(a, b, width);
    return size > 0 ? sqrt(sum / size) : sqrt(sum);
}
static bool same_floats(const double *a, const double *b, ptrdiff_t width)
{
    for (ptrdiff_t c = 0; c < width; c++)
        if ((float)a[c] != (float)b[c]) return false;
    return true;
}

loci_status ask_apart(struct show *s, struct finding *f, loci_error *e)
{
    const ptrdiff_t n = s->len, width = code_width(s);
    const bool rows = s->embeds || !show_adds(s);
    if (s->in_order || !(s->embeds || show_adds(s) || show_rotates(s)) || show_bends(s)) {
        say(f, NAN, 0, "-", "%s",
            s->in_order ? "positions are what the tokens make of them" : "it knows no positions");
        return LOCI_OK;
    }
    double *code = draw_alloc((size_t)(n * width), sizeof *code), least = INFINITY, blur = -1;
    ptrdiff_t one = 0, other = 0;
    const loci_status status = codes(s, 0, n, code, e);
    for (ptrdiff_t i = 0; i < n && !status; i++) {
        if (blur < 0 && i && same_floats(code + (i - 1) * width, code + i * width, width))
            blur = (double)(i - 1);
        for (ptrdiff_t j = 0; j < i; j++) {
            const double d = apart(code + i * width, code + j * width, width, rows);
            if (d < least) {
                least = d;
                one = j;
                other = i;
            }
        }
    }
    loci_error refused;
    double far = (double)n;
    for (double p = (double)n; blur < 0 && p < 0x1p39 && n >= 2; p *= 2, far = p) {
        /* tables of every distance have an end */
        if (!rows && loci_tables_size(s->all.plan, (ptrdiff_t)p) > MOST_TABLE) break;
        if (codes(s, p, 2, code, &refused)) break;
        if (same_floats(code, code + width, width)) blur = p;
    }
    char beyond[80];
    if (blur >= 0)
        snprintf(beyond, sizeof beyond, "float32 cannot tell %.0f from %.0f", blur, blur + 1);
    else snprintf(beyond, sizeof beyond, "float32 tells neighbours apart up to %.3g", far);
    say(f, least, (int)(n * (n - 1) / 2), least == 0 ? "no" : "yes",
        "the closest up to %td are %td and %td, %.2g%s apart; %s", n, one, other, least,
        rows ? " of their size" : " in score", beyond);
    free(code);
    return status;
}

/* ---- Beyond ---------------------------------------------------------------------------------- */

/* Scores at distances beyond the length, against those within. */
loci_status ask_beyond(struct show *s, struct finding *f, loci_error *e)
{
    ptrdiff_t n = FAR * s->len;
    (void)e;
    if (s->embeds) {
        double row[1024];
        loci_error refused;
        const int64_t at[] = { s->len, 4 * s->len, n };
        double *rows = draw_alloc((size_t)(s->len * s->dim), sizeof *rows), within = 0, out = 0;
        bool ok = s->dim <= 1024;
        for (int i = 0; i < 3 && ok; i++) {
            ok = !show_embed(s, 1, NULL, &at[i], row, &refused);
            out = fmax(out, ok ? largest(row, NULL, s->dim) : 0);
        }
        if (ok) {
            int64_t *all = draw_alloc((size_t)s->len, sizeof *all);
            for (ptrdiff_t i = 0; i < s->len; i++) all[i] = i;
            ok = !show_embed(s, s->len, NULL, all, rows, &refused);
            within = largest(rows, NULL, s->len * s->dim);
            free(all);
        }
        free(rows);
        if (ok)
            say(f, out / within, 3, "continued",
                "continued: rows there are at most %.3g times as "
                "large as within",
                out / within);
        else say(f, NAN, 3, "refused", "refused: %.100s", refused.text);
        return LOCI_OK;
    }
    double *curve = draw_alloc((size_t)((n + 1) * s->heads), sizeof *curve);
    bool nothing = true;
    loci_error refused;
    /* for rotated rows a few far distances represent all */
    if (only_rotates(s)) n = 2 * s->len;
    loci_status status = curve_of(s, only_rotates(s) ? s->len : n + 1, curve, &nothing, &refused);
    if (only_rotates(s) && !status)
        status =
            rotated_at(s, (double)s->len, FAR - 1, s->len, curve + s->len * s->heads, &refused);
    if (status) {
        say(f, NAN, 1, "refused", "refused: %.100s", refused.text);
    } else if (nothing) {
        say(f, NAN, 0, "-", "no score hangs on the distance alone");
    } else {
        const double *far = curve + s->len * s->heads;
        /* the last distance whose value differs from that at the end */
        ptrdiff_t last = n * s->heads - 1;
        while (last >= s->heads && curve[last] == curve[last - s->heads]) last--;
        last /= s->heads;
        const double within = largest(curve, NULL, s->len * s->heads);
        const double out = largest(far, NULL, (n - s->len) * s->heads);
        const bool gone = !isfinite(curve[n * s->heads]);
        const bool clamped = last < n / 2 && !only_rotates(s) && !gone;
        char words[64] = "continued";
        if (gone) snprintf(words, sizeof words, "nothing that shows is left from %td on", last);
        if (clamped) snprintf(words, sizeof words, "the same from distance %td on", last);
        say(f, out / within, (int)(n - s->len) * s->heads,
            gone      ? "nothing left"
            : clamped ? "clamped"
                      : "continued",
            "%s: the largest at %td to %td is %.3g times that within", words, s->len, FAR * s->len,
            out / within);
    }
    free(curve);
    return LOCI_OK;
}
