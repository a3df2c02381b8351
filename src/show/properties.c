/* SPDX-License-Identifier: MIT */
/* properties.c -- what textbooks ask of an encoding, measured: each answer with the largest
 * deviation that was found, and over how many cases. */
#include "show/properties.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "loci/cache.h"
#include "show/subject.h"

enum { CASES = 64, FAR = 32 };           /* FAR: so many times the length */

static void say(struct finding *f, double largest, int tried, const char *brief, const char *format,
                ...)
#if defined __GNUC__
    __attribute__((format(printf, 5, 6)))
#endif
    ;
static void say(struct finding *f, double largest, int tried, const char *brief, const char *format,
                ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(f->text, sizeof f->text, format, list);
    va_end(list);
    snprintf(f->brief, sizeof f->brief, "%s", brief);
    f->largest = largest, f->tried = tried;
}

/* A deviation in words: none at all, that of rounding, or more. */
static const char *grade(double x) { return x == 0 ? "exact" : x < 1e-9 ? "to rounding" : "no"; }

/* ---- Cases ----------------------------------------------------------------------------------- */

/* Random queries and keys at random places below the length; of encodings in order a sequence. */
struct cases { double *q, *k, *q_at, *k_at; ptrdiff_t n, scores; };
static struct cases make_cases(const struct show *s)
{
    struct cases c = { .n = s->in_order && s->len < CASES ? s->len : CASES };
    const ptrdiff_t count = c.n * s->heads * s->dim;
    c.q = draw_take((size_t)count, sizeof(double));
    c.k = draw_take((size_t)count, sizeof(double));
    c.q_at = draw_take((size_t)(c.n * s->axes), sizeof(double));
    c.k_at = draw_take((size_t)(c.n * s->axes), sizeof(double));
    show_normal(s, STREAM_Q, c.q, count);
    show_normal(s, STREAM_K, c.k, count);
    show_normal(s, STREAM_AT, c.q_at, c.n * s->axes);
    show_normal(s, STREAM_AT + 100, c.k_at, c.n * s->axes);
    for (ptrdiff_t i = 0; i < c.n * s->axes; i++) {
        const double span = (double)(s->len - 1);
        c.q_at[i] = floor(fmin(fabs(c.q_at[i]) / 3, 1) * span);
        c.k_at[i] = floor(fmin(fabs(c.k_at[i]) / 3, 1) * span);
    }
    c.scores = s->in_order ? s->heads * c.n * c.n : s->heads * c.n;
    return c;
}
static void free_cases(struct cases *c) { free(c->q), free(c->k), free(c->q_at), free(c->k_at); }

/* Their scores with all places moved by as much. */
static loci_status moved(struct show *s, const struct cases *c, double shift, double *out,
                         loci_error *e)
{
    const ptrdiff_t n = c->n * s->axes;
    double *q_at = draw_take((size_t)n, sizeof *q_at), *k_at = draw_take((size_t)n, sizeof *k_at);
    loci_status status;
    for (ptrdiff_t i = 0; i < n; i++) q_at[i] = c->q_at[i] + shift, k_at[i] = c->k_at[i] + shift;
    if (s->in_order) {
        show_places(s, c->n, shift, k_at);
        const struct tokens t = { .n = c->n, .q = c->q, .k = c->k, .at = k_at };
        status = show_scores(s, &t, false, out, e);
    } else {
        const struct pairs p = { c->n, c->q, c->k, q_at, k_at };
        status = show_pairs(s, &p, out, e);
    }
    free(q_at);
    free(k_at);
    return status;
}

/* Largest difference of finite numbers, and the largest number. */
static double largest(const double *a, const double *b, ptrdiff_t n)
{
    double most = 0;
    for (ptrdiff_t i = 0; i < n; i++) {
        const double d = fabs(a[i] - (b ? b[i] : 0));
        if (isfinite(d)) most = fmax(most, d);
    }
    return most;
}

/* ---- The questions --------------------------------------------------------------------------- */

static loci_status translation(struct show *s, struct finding *f, loci_error *e)
{
    static const double shifts[] = { 1, 10, 100, 1e3, 1e4, 1e5, 1e6 };
    struct cases c = make_cases(s);
    double *here = draw_take((size_t)c.scores, sizeof *here);
    double *there = draw_take((size_t)c.scores, sizeof *there);
    double worst = 0, at = 0, refused = 0;
    const loci_status status = moved(s, &c, 0, here, e);
    const double size = largest(here, NULL, c.scores);
    for (int i = 0; i < COUNT(shifts) && !status && !refused; i++) {
        loci_error error;
        if (moved(s, &c, shifts[i], there, &error)) {
            refused = shifts[i];
            break;
        }
        const double d = largest(here, there, c.scores) / (size > 0 ? size : 1);
        if (d > worst) worst = d, at = shifts[i];
    }
    const int tried = COUNT(shifts) * (int)c.scores;
    if (refused)
        say(f, worst, tried, "refused",
            "refused from a shift of %g on; scores change by up to %.2g of the largest before",
            refused, worst);
    else if (worst < 1e-9)
        say(f, worst, tried, grade(worst), "%s: shifts of 1 to 10^6 change no score by more",
            worst == 0 ? "exact" : "to rounding");
    else
        say(f, worst, tried, "no", "no: a shift of %g changes scores by %.2g of the largest", at,
            worst);
    free(here);
    free(there);
    free_cases(&c);
    return status;
}

/* Queries and keys change places, and the numbers with them or not. */
static loci_status symmetry(struct show *s, struct finding *f, loci_error *e)
{
    if (s->causal_only || s->in_order) {
        say(f, NAN, 0, "ordered", "%s", s->causal_only ? "a row sees no key ahead of it"
                                                       : "a row counts the keys in between");
        return LOCI_OK;
    }
    struct cases c = make_cases(s);
    const size_t n = (size_t)c.scores;
    double *a = draw_take(n, sizeof *a), *b = draw_take(n, sizeof *b);
    const struct pairs ways[] = { { c.n, c.q, c.k, c.q_at, c.k_at },
                                  { c.n, c.k, c.q, c.k_at, c.q_at },
                                  { c.n, NULL, NULL, c.q_at, c.k_at },
                                  { c.n, NULL, NULL, c.k_at, c.q_at } };
    loci_status status = show_pairs(s, &ways[0], a, e);
    if (!status) status = show_pairs(s, &ways[1], b, e);
    const double size = largest(a, NULL, c.scores);
    const double scores = largest(a, b, c.scores) / (size > 0 ? size : 1);
    if (!status) status = show_pairs(s, &ways[2], a, e);
    if (!status) status = show_pairs(s, &ways[3], b, e);
    const double bias = largest(a, b, c.scores);
    say(f, fmax(scores, bias), 2 * (int)n, scores < 1e-9 && bias < 1e-9 ? "yes" : "no",
        "q and k exchanged with their places: scores %s (%.2g of the largest); positions alone: "
        "%s (%.2g)", scores < 1e-9 ? "stay" : "change", scores, bias < 1e-9 ? "stay" : "change",
        bias);
    free(a), free(b);
    free_cases(&c);
    return status;
}

/* What turning leaves of q.q, of random units, in the mean, by head: at distances first, first +
 * step, ... */
static bool only_turns(const struct show *s)
{
    return show_turns(s) && !show_adds(s) && !s->in_order;
}
static loci_status turned_at(struct show *s, double first, double step, ptrdiff_t n, double *out,
                             loci_error *e)
{
    const ptrdiff_t width = (ptrdiff_t)s->heads * s->dim;
    double *q = draw_take((size_t)(CASES * width), sizeof *q);
    double *q_at = draw_take((size_t)(CASES * s->axes), sizeof *q_at);
    double *k_at = draw_take((size_t)(CASES * s->axes), sizeof *k_at);
    double *score = draw_take((size_t)(CASES * s->heads), sizeof *score);
    loci_status status = LOCI_OK;
    show_normal(s, STREAM_Q, q, CASES * width);
    show_unit(q, (ptrdiff_t)CASES * s->heads, s->dim);
    for (ptrdiff_t d = 0; d < n && !status; d++) {
        for (ptrdiff_t i = 0; i < (ptrdiff_t)CASES * s->axes; i++)
            q_at[i] = first + step * (double)d;
        const struct pairs p = { CASES, q, q, q_at, k_at };
        status = show_pairs(s, &p, score, e);
        for (int h = 0; h < s->heads; h++) {
            out[d * s->heads + h] = 0;
            for (int i = 0; i < CASES; i++)
                out[d * s->heads + h] += score[i * s->heads + h] / CASES / s->all.plan->scale;
        }
    }
    free(q), free(q_at), free(k_at), free(score);
    return status;
}

/* What each distance counts for, by head: what is added, or what is left by turning. */
static loci_status curve_of(struct show *s, ptrdiff_t n, double *out, bool *nothing, loci_error *e)
{
    *nothing = !only_turns(s);
    if (only_turns(s)) return turned_at(s, 0, 1, n, out, e);
    return show_adds(s) && !show_bends(s) ? show_bias(s, n, out, nothing, e) : LOCI_OK;
}

/* The mean of |partial sums of e^(i d w)| over the pairs, which bounds what turning can leave of
 * q.k: cos and sin are those of the engine, from channels turned alone. */
static loci_status bound_at(struct show *s, double d, double *bound, loci_error *e)
{
    const int dim = s->dim;
    const ptrdiff_t width = (ptrdiff_t)s->heads * dim;
    double *x = draw_take((size_t)(dim * width), sizeof *x);
    double *y = draw_take((size_t)(dim * width), sizeof *y);
    double *at = draw_take((size_t)dim, sizeof *at), re = 0, im = 0;
    int pairs = 0;
    for (int c = 0; c < dim; c++) x[c * width + c] = 1, at[c] = d;
    const loci_status status = show_turn(s, dim, x, at, y, e);
    double factor;
    const int known = loci_frequencies(s->all.plan, NULL, 0, &factor);
    *bound = 0;
    for (int c = 0; c < dim && pairs < known; c++) {
        double sine = 0;
        bool first = d == 0 && c < known;                /* nothing has turned: any half will do */
        for (int k = c + 1; k < dim; k++)
            if (y[c * width + k] != 0) sine = y[c * width + k], first = true;
        if (!first) continue;
        re += y[c * width + c] / factor, im += sine / factor;
        *bound += hypot(re, im);
        pairs++;
    }
    if (pairs) *bound /= pairs;
    free(x), free(y), free(at);
    return status;
}

static loci_status monotone(struct show *s, struct finding *f, loci_error *e)
{
    const ptrdiff_t n = s->len + 1;
    double *curve = draw_take((size_t)(n * s->heads), sizeof *curve), most = 0;
    bool nothing = true;
    const loci_status status = s->embeds ? LOCI_OK : curve_of(s, n, curve, &nothing, e);
    ptrdiff_t first = 0;
    int head = 0;
    for (ptrdiff_t d = 1; d < n && !nothing; d++)
        for (int h = 0; h < s->heads; h++) {
            const double rise = curve[d * s->heads + h] - curve[(d - 1) * s->heads + h];
            const double size = 1 + fabs(curve[d * s->heads + h]);
            if (!(rise > 1e-12 * size)) continue;
            if (!first) first = d, head = h;
            most = fmax(most, rise);
        }
    const int tried = (int)(s->len * s->heads);
    if (nothing)
        say(f, NAN, 0, "-", "%s", s->embeds || !(show_adds(s) || show_turns(s))
            ? "nothing is said of a distance" : "no function of the distance alone");
    else if (first)
        say(f, most, tried, "no", "no: rises first from distance %td to %td, head %d", first - 1,
            first, head);
    else say(f, 0, tried, "yes", "never rises up to distance %td, in no head", s->len);
    free(curve);
    return status;
}

/* What is lost from distance 0 to 1, 4 and 32 times the length, by the head that loses most; -inf:
 * more than e^-60 shows. */
static const int times[] = { 1, 4, FAR };
static loci_status drops(struct show *s, double *drop, bool *nothing, loci_error *e)
{
    const ptrdiff_t n = only_turns(s) ? 4 : FAR * s->len + 1;
    double *curve = draw_take((size_t)(n * s->heads), sizeof *curve);
    loci_status status = LOCI_OK;
    *nothing = false;
    if (only_turns(s)) {
        status = turned_at(s, 0, 1, 1, curve, e);
        for (int i = 0; i < COUNT(times) && !status; i++)
            status = turned_at(s, times[i] * s->trained, 1, 1, curve + (i + 1) * s->heads, e);
    } else status = curve_of(s, n, curve, nothing, e);
    for (int i = 0; i < COUNT(times) && !status && !*nothing; i++) {
        const double *far = curve + (only_turns(s) ? i + 1 : times[i] * s->len) * s->heads;
        drop[i] = -INFINITY;
        for (int h = 0; h < s->heads; h++)
            if (!isnan(far[h]))
                drop[i] = fmax(drop[i], isinf(far[h]) ? INFINITY : curve[h] - far[h]);
    }
    free(curve);
    return status;
}

static loci_status decay(struct show *s, struct finding *f, loci_error *e)
{
    char words[COUNT(times)][24], bounds[160] = "";
    double drop[COUNT(times)], b[COUNT(times) + 1];
    bool nothing = true;
    loci_error refused;
    /* tables may not reach so far, which `beyond` tells */
    if (s->embeds || drops(s, drop, &nothing, &refused) || nothing) {
        say(f, NAN, 0, "-", "nothing that falls with the distance alone");
        return LOCI_OK;
    }
    for (int i = 0; i < COUNT(times); i++)
        if (isinf(drop[i])) snprintf(words[i], sizeof words[i], "more than 60");
        else snprintf(words[i], sizeof words[i], "%.3g", drop[i]);
    const double length = only_turns(s) ? s->trained : (double)s->len;
    if (only_turns(s) && s->axes == 1 && loci_frequencies(s->all.plan, NULL, 0, NULL)) {
        for (int i = 0; i <= COUNT(times); i++)
            TRY(bound_at(s, i ? times[i - 1] * length : 0, &b[i], e));
        snprintf(bounds, sizeof bounds,
                 "; the mean of |partial sums| is %.3g, %.3g, %.3g of that at 0", b[1] / b[0],
                 b[2] / b[0], b[3] / b[0]);
    }
    say(f, drop[COUNT(times) - 1], COUNT(times) * s->heads, words[COUNT(times) - 1],
        "%s by %s, %s, %s at distance %.0f, %.0f, %.0f%s%s",
        only_turns(s) ? "of q.R(d)q the mean falls" : "falls", words[0], words[1], words[2], length,
        4 * length, FAR * length, only_turns(s) ? "" : " in the steepest head", bounds);
    return LOCI_OK;
}

/* Codes of so many positions or distances from `first` on, [n][width]: rows that are added, ones
 * that were turned, or scores of the same few queries and keys, by distance. */
static ptrdiff_t code_width(const struct show *s)
{
    return s->embeds || (show_turns(s) && !show_adds(s)) ? (ptrdiff_t)s->heads * s->dim : s->heads;
}
static loci_status codes(struct show *s, double first, ptrdiff_t n, double *out, loci_error *e)
{
    const ptrdiff_t width = (ptrdiff_t)s->heads * s->dim;
    double *q_at = draw_take((size_t)(n * s->axes), sizeof *q_at);
    double *k_at = draw_take((size_t)(n * s->axes), sizeof *k_at);
    double *q = draw_take((size_t)(n * width), sizeof *q);
    loci_status status;
    for (ptrdiff_t i = 0; i < n * s->axes; i++) q_at[i] = first + (double)(i / s->axes);
    if (s->embeds) {
        int64_t *at = draw_take((size_t)n, sizeof *at);
        for (ptrdiff_t i = 0; i < n; i++) at[i] = (int64_t)first + i;
        status = show_embed(s, n, NULL, at, out, e);
        free(at);
    } else if (code_width(s) == width && !show_adds(s)) {
        for (ptrdiff_t i = 0; i < n * width; i++) q[i] = 1;
        status = show_turn(s, n, q, q_at, out, e);
    } else {
        double *k = draw_take((size_t)(n * width), sizeof *k);
        for (ptrdiff_t i = 0; i < n; i++) {
            show_normal(s, STREAM_Q, q + i * width, width);
            show_normal(s, STREAM_K, k + i * width, width);
        }
        const struct pairs p = { n, q, k, q_at, k_at };
        status = show_pairs(s, &p, out, e);
        free(k);
    }
    free(q_at), free(k_at), free(q);
    return status;
}

/* Of rows as a share of their length; of scores as they are, in the head that tells most. */
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

static loci_status told_apart(struct show *s, struct finding *f, loci_error *e)
{
    const ptrdiff_t n = s->len, width = code_width(s);
    const bool rows = s->embeds || !show_adds(s);
    if (s->in_order || !(s->embeds || show_adds(s) || show_turns(s)) || show_bends(s)) {
        say(f, NAN, 0, "-", "%s", s->in_order ? "positions are what the tokens make of them"
                                              : "it knows no positions");
        return LOCI_OK;
    }
    double *code = draw_take((size_t)(n * width), sizeof *code), least = INFINITY, blur = -1;
    ptrdiff_t one = 0, other = 0;
    const loci_status status = codes(s, 0, n, code, e);
    for (ptrdiff_t i = 0; i < n && !status; i++) {
        if (blur < 0 && i && same_floats(code + (i - 1) * width, code + i * width, width))
            blur = (double)(i - 1);
        for (ptrdiff_t j = 0; j < i; j++) {
            const double d = apart(code + i * width, code + j * width, width, rows);
            if (d < least) least = d, one = j, other = i;
        }
    }
    loci_error refused;
    double far = (double)n;
    for (double p = (double)n; blur < 0 && p < 0x1p39 && n >= 2; p *= 2, far = p) {
        if (codes(s, p, 2, code, &refused)) break;
        if (same_floats(code, code + width, width)) blur = p;
    }
    char beyond[80];
    if (blur >= 0)
        snprintf(beyond, sizeof beyond, "float32 cannot tell %.0f from %.0f", blur, blur + 1);
    else
        snprintf(beyond, sizeof beyond, "float32 tells neighbours apart up to %.3g", far);
    say(f, least, (int)(n * (n - 1) / 2), least == 0 ? "no" : "yes",
        "the closest up to %td are %td and %td, %.2g%s apart; %s", n, one, other, least,
        rows ? " of their size" : " in score", beyond);
    free(code);
    return status;
}

static loci_status norm(struct show *s, struct finding *f, loci_error *e)
{
    if (!show_turns(s)) {
        say(f, NAN, 0, "-", "nothing is turned");
        return LOCI_OK;
    }
    struct cases c = make_cases(s);
    const ptrdiff_t rows = c.n * s->heads;
    double *y = draw_take((size_t)(rows * s->dim), sizeof *y), worst = 0;
    for (ptrdiff_t i = 0; i < c.n * s->axes; i++)
        c.q_at[i] = floor(c.q_at[i] * 1e6 / (double)s->len);
    const loci_status status = show_turn(s, c.n, c.q, c.q_at, y, e);
    for (ptrdiff_t i = 0; i < rows && !status; i++) {
        double before = 0, after = 0;
        for (int k = 0; k < s->dim; k++) {
            before += c.q[i * s->dim + k] * c.q[i * s->dim + k];
            after += y[i * s->dim + k] * y[i * s->dim + k];
        }
        worst = fmax(worst, fabs(sqrt(after / before) - 1));
    }
    say(f, worst, (int)rows, worst < 1e-9 ? "kept" : "changed",
        "%s: | |Rx| / |x| - 1 | is at most %.2g, at positions up to 10^6",
        worst < 1e-9 ? "kept" : "changed", worst);
    free(y);
    free_cases(&c);
    return status;
}

/* Scores at distances beyond the length against those within. */
static loci_status beyond(struct show *s, struct finding *f, loci_error *e)
{
    ptrdiff_t n = FAR * s->len;
    (void)e;
    if (s->embeds) {
        double row[1024];
        loci_error refused;
        const int64_t at[] = { s->len, 4 * s->len, n };
        double *rows = draw_take((size_t)(s->len * s->dim), sizeof *rows), within = 0, out = 0;
        bool ok = s->dim <= 1024;
        for (int i = 0; i < 3 && ok; i++) {
            ok = !show_embed(s, 1, NULL, &at[i], row, &refused);
            out = fmax(out, ok ? largest(row, NULL, s->dim) : 0);
        }
        if (ok) {
            int64_t *all = draw_take((size_t)s->len, sizeof *all);
            for (ptrdiff_t i = 0; i < s->len; i++) all[i] = i;
            ok = !show_embed(s, s->len, NULL, all, rows, &refused);
            within = largest(rows, NULL, s->len * s->dim);
            free(all);
        }
        free(rows);
        if (ok)
            say(f, out / within, 3, "continued", "continued: rows there are at most %.3g times as "
                "large as within", out / within);
        else say(f, NAN, 3, "refused", "refused: %.100s", refused.text);
        return LOCI_OK;
    }
    double *curve = draw_take((size_t)((n + 1) * s->heads), sizeof *curve);
    bool nothing = true;
    loci_error refused;
    /* of turned ones a few far distances stand for all */
    if (only_turns(s)) n = 2 * s->len;
    loci_status status = curve_of(s, only_turns(s) ? s->len : n + 1, curve, &nothing, &refused);
    if (only_turns(s) && !status)
        status = turned_at(s, (double)s->len, FAR - 1, s->len, curve + s->len * s->heads, &refused);
    if (status) {
        say(f, NAN, 1, "refused", "refused: %.100s", refused.text);
    } else if (nothing) {
        say(f, NAN, 0, "-", "no score hangs on the distance alone");
    } else {
        const double *far = curve + s->len * s->heads;
        ptrdiff_t last = n * s->heads - 1;         /* where it is still another than at the end */
        while (last >= s->heads && curve[last] == curve[last - s->heads]) last--;
        last /= s->heads;
        const double within = largest(curve, NULL, s->len * s->heads);
        const double out = largest(far, NULL, (n - s->len) * s->heads);
        const bool clamped = last < n / 2 && !only_turns(s);
        char words[48] = "continued";
        if (clamped) snprintf(words, sizeof words, "the same from distance %td on", last);
        say(f, out / within, (int)(n - s->len) * s->heads, clamped ? "clamped" : "continued",
            "%s: the largest at %td to %td is %.3g times that within", words, s->len,
            FAR * s->len, out / within);
    }
    free(curve);
    return LOCI_OK;
}

/* Does what positions do to a pair hang on the pair's numbers? */
static loci_status content(struct show *s, struct finding *f, loci_error *e)
{
    if (s->in_order || s->embeds || show_bends(s) || !(show_adds(s) || show_turns(s))) {
        const char *why = s->embeds    ? "yes: it meets the other token in the product"
                        : s->in_order  ? "yes: by the keys in between"
                        : show_bends(s) ? "yes: by the score"
                                        : "no: nothing is said";
        say(f, NAN, 0, *why == 'y' ? "yes" : "no", "%s", why);
        return LOCI_OK;
    }
    struct cases c = make_cases(s);
    double *with = draw_take((size_t)c.scores, sizeof *with);
    double *without = draw_take((size_t)c.scores, sizeof *without), spread = 0;
    for (ptrdiff_t i = 0; i < c.n * s->axes; i++)
        c.q_at[i] = (double)(s->len / 2), c.k_at[i] = (double)(s->len / 4);
    const struct pairs p = { c.n, c.q, c.k, c.q_at, c.k_at };
    loci_status status = show_pairs(s, &p, with, e);
    if (!status) status = show_plain(s, &p, without, e);
    for (ptrdiff_t i = s->heads; i < c.scores && !status; i++) {
        const ptrdiff_t h = i % s->heads;
        spread = fmax(spread, fabs(with[i] - without[i] - (with[h] - without[h])));
    }
    say(f, spread, (int)c.scores, spread < 1e-9 ? "no" : "yes",
        "%s: over random q and k, at one distance, it varies by %.2g", spread < 1e-9 ? "no" : "yes",
        spread);
    free(with), free(without);
    free_cases(&c);
    return status;
}

/* ---- Cost ------------------------------------------------------------------------------------ */

/* Arithmetic of a pair beside the 4 D of attention: so many, and so many times D.  What is made
 * once for a row or a distance, as turned keys and tables, is not counted. */
static double pair_flops(const struct show *s)
{
    static const struct { double each, by_dim; } flops[TERM_COUNT] = {
        [TERM_affine] = { 2, 0 }, [TERM_distance] = { 1, 0 }, [TERM_pieces] = { 4, 0 },
        [TERM_gate] = { 2, 0 }, [TERM_band_q] = { 1, 0 }, [TERM_band_k] = { 1, 0 },
        [TERM_roll] = { 1, 2 }, [TERM_scan] = { 25, 0 }, [TERM_stick] = { 40, 0 },
        [TERM_softcap] = { 20, 0 }, [TERM_states] = { 0, 2 }
    };
    const struct loci_plan *p = s->all.plan;
    double sum = 0;
    for (int x = 0; p && x < p->uses; x++) {
        sum += flops[p->use[x].term].each + flops[p->use[x].term].by_dim * s->dim;
        if (p->use[x].term != TERM_mix) continue;
        const double hidden = show_option(&p->enc[p->use[x].enc], "hidden");
        sum += 6 * (hidden > 0 ? hidden : 32);           /* 2 H x hidden and hidden x H, by head */
    }
    return sum;
}

static double decode_bytes(const struct show *s)
{
    if (s->embeds) return 8.0 * s->dim;
    loci_plan *plan;
    loci_error e;
    loci_desc d = { .size = sizeof d, .encoding = s->encoding, .heads = s->heads, .dim = s->dim,
                    .max_len = s->len, .keys_rotated = 1 };
    if (loci_plan_create(&plan, &d, &e)) {
        d.keys_rotated = 0;
        if (loci_plan_create(&plan, &d, &e)) return NAN;
    }
    enum { SOME = 4096 };
    const size_t one = loci_cache_size(plan, 1, SOME), two = loci_cache_size(plan, 1, 2 * SOME);
    loci_plan_destroy(plan);
    return one && two ? (double)(two - one) / SOME / s->heads : NAN;
}

static loci_status cost(struct show *s, struct finding *f, loci_error *e)
{
    ptrdiff_t learned = 0;
    (void)e;
    for (int i = 0; i < s->tensors; i++)
        if (s->tensor[i].role == LOCI_LEARNED) learned += tensor_count(&s->tensor[i]);
    const loci_plan *p = s->embeds ? s->table.plan : s->all.plan;
    char brief[sizeof f->brief];
    f->parameters = learned, f->flops = pair_flops(s), f->bytes = decode_bytes(s);
    snprintf(brief, sizeof brief, "%td", learned);
    say(f, NAN, 0, brief,
        "%td parameters; %g flops per pair beside the %d of attention; %.0f bytes per token and "
        "head in a decode (f32); tables of %.3g kB for %td tokens (f64)", learned, f->flops,
        4 * s->dim, f->bytes, 1e-3 * (double)loci_tables_size(p, s->len), s->len);
    return LOCI_OK;
}

/* ---- All of them ----------------------------------------------------------------------------- */

static const struct {
    const char *name;
    loci_status (*ask)(struct show *, struct finding *, loci_error *);
} questions[PROPERTY_COUNT] = {
    [PROPERTY_TRANSLATION] = { "invariant to translation", translation },
    [PROPERTY_SYMMETRY] = { "symmetric", symmetry },
    [PROPERTY_MONOTONE] = { "never rises", monotone },
    [PROPERTY_DECAY] = { "decays", decay },
    [PROPERTY_APART] = { "tells positions apart", told_apart },
    [PROPERTY_NORM] = { "keeps norms", norm },
    [PROPERTY_BEYOND] = { "beyond its length", beyond },
    [PROPERTY_CONTENT] = { "hangs on content", content },
    [PROPERTY_COST] = { "cost", cost },
};

loci_status show_measure(struct show *s, struct finding all[PROPERTY_COUNT], loci_error *e)
{
    for (int i = 0; i < PROPERTY_COUNT; i++) {
        all[i] = (struct finding){ .name = questions[i].name };
        TRY(questions[i].ask(s, &all[i], e));
    }
    return LOCI_OK;
}

loci_status show_properties(struct show *s, struct figure *f, int *count, loci_error *e)
{
    struct finding all[PROPERTY_COUNT];
    TRY(show_measure(s, all, e));
    figure_table(f, PROPERTY_COUNT + 1, 4);
    static const char *const head[] = { "property", "largest", "cases", "finding" };
    for (int j = 0; j < COUNT(head); j++) figure_cell(f, 0, j, "%s", head[j]);
    for (int i = 0; i < PROPERTY_COUNT; i++) {
        figure_cell(f, i + 1, 0, "%s", all[i].name);
        figure_cell(f, i + 1, 1, isnan(all[i].largest) ? "-" : "%.2g", all[i].largest);
        figure_cell(f, i + 1, 2, all[i].tried ? "%d" : "-", all[i].tried);
        figure_cell(f, i + 1, 3, "%s", all[i].text);
    }
    snprintf(f->title, sizeof f->title, "%.120s: properties, measured", s->encoding);
    snprintf(f->about, sizeof f->about,
             "In float64, %d heads of %d, length %td. 'largest' is the largest deviation that was "
             "found, 'cases' over how many scores.%s%s", s->heads, s->dim, s->len,
             *s->note ? " " : "", s->note);
    *count = 1;
    return LOCI_OK;
}
