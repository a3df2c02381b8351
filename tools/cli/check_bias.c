/* SPDX-License-Identifier: MIT */
/* check_bias.c -- ALiBi's slopes, and T5's bias or bucket numbers.
 *
 * The library supplies the exact numbers: with q and k zero and one key, lse is the bias at that
 * distance. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/check.h"

/* every candidate rule needs a plan with this number of heads */
enum { MAX_HEADS = 4096 };

/* ---- Biases from the library ----------------------------------------------------------------- */

/* A plan of one query and one key, prepared for distances up to `reach`. */
struct biases {
    loci_plan *plan;
    int heads;
    void *tables, *work;
    const void *tensors[1];
    double *lse, *zero;
    loci_call call;
};

/* One block of zeros serves as query, key and value.  Its second half receives the output. */
static bool biases_open(struct biases *b, const char *text, int heads, const double *table,
                        ptrdiff_t reach, loci_error *e)
{
    const loci_desc d = LOCI_DESC(.encoding = text, .heads = heads, .kv_heads = heads, .dim = 2,
                                  .dtype = LOCI_F64, .full = 1);
    *b = (struct biases){ .heads = heads, .tensors = { table } };
    if (loci_plan_create(&b->plan, &d, e)) return false;
    b->tables = alloc(loci_tables_size(b->plan, reach), 1);
    b->zero = alloc((size_t)heads * 8, sizeof(double));
    b->lse = alloc((size_t)heads, sizeof(double));
    const loci_view zero = { b->zero, 0, 0, 0 }, out = { b->zero + heads * 4, 0, 0, 0 };
    b->call = (loci_call)LOCI_CALL(.batch = 1, .q_len = 1, .k_len = 1, .q = zero, .k = zero,
                                   .v = zero, .o = out, .lse = b->lse, .error = e);
    b->work = alloc(loci_workspace(b->plan, &b->call, 0), 1);
    return !loci_prepare(b->plan, reach, table ? b->tensors : NULL, b->tables);
}
static void biases_close(struct biases *b)
{
    free(b->tables);
    free(b->work);
    free(b->zero);
    free(b->lse);
    loci_plan_destroy(b->plan);
}
/* Computes the biases of all heads at query - key = distance into b->lse. */
static bool biases_at(struct biases *b, int64_t distance)
{
    const int64_t q = distance > 0 ? distance : 0, k = distance > 0 ? 0 : -distance;
    b->call.q_pos = &q;
    b->call.k_pos = &k;
    return !loci_forward(b->plan, b->tables, b->work, &b->call);
}

/* ---- Slopes ---------------------------------------------------------------------------------- */

/* A slope is the change of the bias per step back. */
static bool slopes_of(const char *text, int heads, double *m)
{
    struct biases b;
    loci_error e;
    const bool done = biases_open(&b, text, heads, NULL, 2, &e) && biases_at(&b, 1);
    for (int h = 0; h < heads && done; h++) m[h] = -b.lse[h];
    if (b.plan) biases_close(&b);
    return done;
}

/* For qsort: the largest first, the usual order of slopes. */
static int falling(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* Covers rounding of the type and, for each head, a float32 multiplication by the ratio. */
static double slope_tolerance(const struct check *c, int h, double m)
{
    if (c->tolerance >= 0) return c->tolerance * fabs(m);
    return fabs(m) * (c->slopes.unit + (h + 3) * fmin(c->slopes.unit, 0x1p-24));
}

/* Tries the rule asked for, the other one, and known mistakes of other programs, until one explains
 * every head.  `low` and `high` are the powers of two around the number of heads.  If that number
 * is not itself a power of two, rules differ behind head `low`. */
bool check_slopes(const struct check *c, struct finding *f)
{
    if (c->slopes.tensor->count > MAX_HEADS || !c->slopes.unit)
        return refuse("%s: '%s' must be up to %d slopes, as floating-point numbers", c->path,
                      c->slopes.name, MAX_HEADS);
    const int H = (int)c->slopes.tensor->count;
    char *part = part_of(c->encoding ? c->encoding : "alibi", "alibi");
    if (!part)
        return refuse("check: slopes are compared with alibi, which '%s' does not have",
                      c->encoding);
    const bool geometric = strstr(part, "slopes=geometric"), given = strstr(part, "slopes=given");
    if (given) {
        free(part);
        return refuse("check: slopes=given has no rule to compare with");
    }
    int low = 1;
    while (2 * low <= H) low *= 2;
    const int high = low < H ? 2 * low : H;
    double *m = alloc((size_t)high * 2, sizeof *m), *base = m + high;
    const char *const rules[] = { "alibi", "alibi:slopes=geometric" };
    const char *const right = rules[geometric], *const other = rules[!geometric];
    static const char *const kinds[] = {
        "",
        "the other rule for a number of heads that is not a power of two",
        "slopes of the next power of two, truncated",
        "the ratio of the previous power of two, used for all heads",
        "heads are counted from 0, not from 1",
        "the sign is reversed",
        "slopes are sorted",
        "heads are in reverse order",
    };
    bool done = slopes_of(part, H, base);
    free(part);
    if (!done) {
        free(m);
        return refuse("check: the encoding '%s' is invalid with %d heads",
                      c->encoding ? c->encoding : "alibi", H);
    }
    for (int k = 0; k < COUNT(kinds) && !f->explains; k++) {
        struct score s = { 0 };
        bool made = true;
        if (k == 1) made = slopes_of(other, H, m);
        else if (k == 2 || k == 3) made = slopes_of("alibi", k == 2 ? high : low, m);
        else memcpy(m, base, sizeof *m * (size_t)H);
        for (int h = low; h < H && k == 3; h++) m[h] = m[h - 1] * m[0];
        if (k == 4) { /* exact if the ratio is: one slope further */
            for (int h = H - 1; h > 0; h--) m[h] = m[h - 1];
            m[0] = 1;
        }
        for (int h = 0; h < H && k == 5; h++) m[h] = -base[h];
        if (k == 6) qsort(m, (size_t)H, sizeof *m, falling);
        for (int h = 0; h < H && k == 7; h++) m[h] = base[H - 1 - h];
        for (int h = 0; h < H && made; h++) {
            const double tolerance = slope_tolerance(c, h, m[h]);
            score_add(&s, (struct place){ h, 0, h }, c->slopes.x[h], m[h], tolerance, tolerance);
        }
        /* the nearest rule so far explains more heads, then has the smaller errors */
        const bool nearer = s.within > f->score.within
                         || (s.within == f->score.within && s.squares < f->score.squares);
        if (!made || (k && !nearer)) continue;
        f->score = s;
        f->explains = s.within == s.total;
        snprintf(f->rule, sizeof f->rule, "%s", k == 1 ? other : right);
        snprintf(f->mistake, sizeof f->mistake, "%s", k == 1 && !c->encoding ? "" : kinds[k]);
    }
    free(m);
    f->what = "slopes";
    if (c->encoding) snprintf(f->wanted, sizeof f->wanted, "%s", right);
    snprintf(f->tolerance, sizeof f->tolerance,
             c->tolerance >= 0 ? "%g m" : "m (u + (h + 3) min(u, 2^-24)) for head h, u = %.3g",
             c->tolerance >= 0 ? c->tolerance : c->slopes.unit);
    snprintf(f->where, sizeof f->where, "head %td", f->score.first.head);
    return true;
}

/* ---- Buckets --------------------------------------------------------------------------------- */

/* A bias [heads][queries][keys].  The last query is at the last key, as in decoding. */
struct bias_problem {
    const struct check *check;
    ptrdiff_t heads, queries, keys, buckets;
    bool numbers; /* the bias contains bucket numbers */
    double scale;
};

/* Buckets by distance for a text, or NULL if the text is invalid.  A table that contains the number
 * of each bucket makes the bias equal to that number.  Covers one distance more than occurs, to
 * detect off-by-one mistakes. */
static int *buckets_of(const struct bias_problem *p, const char *text, loci_error *e)
{
    const ptrdiff_t back = p->queries + p->keys + 1;
    double *identity = alloc((size_t)p->buckets, sizeof *identity);
    for (ptrdiff_t b = 0; b < p->buckets; b++) identity[b] = (double)b;
    struct biases t;
    int *bucket = alloc((size_t)(2 * back + 1), sizeof *bucket);
    bool done = biases_open(&t, text, 1, identity, back, e);
    for (ptrdiff_t d = -back; d <= back && done; d++) {
        done = biases_at(&t, d);
        bucket[d + back] = (int)rint(t.lse[0]);
    }
    if (t.plan) biases_close(&t);
    free(identity);
    if (done) return bucket;
    free(bucket);
    return NULL;
}

/* Known mistakes in a bucket number. */
enum slip { RIGHT, NEARER, FARTHER, MIRRORED, LOWER, HIGHER, SLIPS };
static const char *const slip_names[] = {
    [RIGHT] = "",
    [NEARER] = "distances are one too small",
    [FARTHER] = "distances are one too large",
    [MIRRORED] = "distances have the other sign: key - query instead of query - key",
    [LOWER] = "buckets are one too low",
    [HIGHER] = "buckets are one too high",
};

static void score_buckets(const struct bias_problem *p, const int *bucket, enum slip slip,
                          struct score *s)
{
    const struct check *c = p->check;
    const ptrdiff_t back = p->queries + p->keys + 1;
    /* one rounding of the product with the scale, and one of storing it */
    const double unit = c->tolerance >= 0 ? c->tolerance : 2 * c->bias.unit;
    for (ptrdiff_t h = 0; h < p->heads; h++)
        for (ptrdiff_t i = 0; i < p->queries; i++)
            for (ptrdiff_t j = 0; j < p->keys; j++) {
                const ptrdiff_t d = i + p->keys - p->queries - j;
                const ptrdiff_t far =
                    slip == MIRRORED ? -d : d + (slip == FARTHER) - (slip == NEARER);
                ptrdiff_t b = bucket[far + back] + (slip == HIGHER) - (slip == LOWER);
                b = b < 0 ? 0 : b < p->buckets ? b : p->buckets - 1;
                const double want =
                    p->numbers ? (double)b : p->scale * c->table.x[b * p->heads + h];
                score_add(s, (struct place){ h, i, j },
                          c->bias.x[(h * p->queries + i) * p->keys + j], want, unit * fabs(want),
                          unit * fabs(want));
            }
}

/* The number of buckets comes from the text, else from the table, else it is the default 32. */
static bool shape_bias(struct bias_problem *p, const char *text)
{
    const struct check *c = p->check;
    const struct safetensor *t = c->bias.tensor;
    if (t->rank < 2 || t->rank > 4 || (t->rank == 4 && t->shape[0] != 1))
        return refuse("%s: '%s' must be [heads][queries][keys]", c->path, c->bias.name);
    p->keys = t->shape[t->rank - 1];
    p->queries = t->shape[t->rank - 2];
    p->heads = t->count / (p->keys * p->queries);
    p->numbers = c->bias.unit == 0;
    const char *said = strstr(text, "buckets=");
    p->buckets = 32;
    if (said) p->buckets = (ptrdiff_t)strtod(said + 8, NULL);
    else if (c->table.x && c->table.tensor->rank == 2) p->buckets = c->table.tensor->shape[0];
    if (p->buckets < 2 || p->buckets > 65536)
        return refuse("check: the table has %td buckets, but must have 2 to 65536", p->buckets);
    if (!p->numbers && !c->table.x)
        return refuse("%s: '%s' contains biases, so the learned table is needed: --table", c->path,
                      c->bias.name);
    if (!p->numbers
        && (c->table.tensor->rank != 2 || c->table.tensor->shape[0] != p->buckets
            || c->table.tensor->shape[1] != p->heads))
        return refuse("%s: '%s' must be [%td buckets][%td heads]", c->path, c->table.name,
                      p->buckets, p->heads);
    return true;
}

/* Tries the forms of T5's rule with every slip, until one explains all.  The scale is removed from
 * the text and applied here, since buckets are computed as plain numbers. */
bool check_buckets(const struct check *c, struct finding *f)
{
    struct bias_problem p = { .check = c, .scale = 1 };
    char *part = part_of(c->encoding ? c->encoding : "t5", "t5"), text[512], number[40];
    if (!part)
        return refuse("check: a bias is compared with t5, which '%s' does not have", c->encoding);
    const bool fits = snprintf(text, sizeof text, "%s", part) < 400;
    free(part);
    if (!fits) return refuse("check: the encoding's text is too long");
    if (!shape_bias(&p, text)) return false;
    snprintf(number, sizeof number, "%td", p.buckets);
    const char *scale = strstr(text, "bias_scale=");
    if (scale) p.scale = strtod(scale + 11, NULL);
    if (!text_with(text, sizeof text, "bias_scale", NULL)
        || !text_with(text, sizeof text, "buckets", number))
        return refuse("check: the encoding's text is too long");
    if (!strstr(text, "bidirectional=")) text_with(text, sizeof text, "bidirectional", "0");
    const bool two = strstr(text, "bidirectional=1");
    /* Forms: as given, with the other direction, and both with the default distance. */
    for (int form = 0; form < 4 && !f->explains; form++) {
        char other[512];
        loci_error e;
        snprintf(other, sizeof other, "%s", text);
        if (form % 2) text_with(other, sizeof other, "bidirectional", two ? "0" : "1");
        if (form / 2) text_with(other, sizeof other, "max_distance", NULL);
        int *bucket = buckets_of(&p, other, &e);
        if (!bucket && form == 0) return refuse("%s", e.text);
        for (enum slip slip = RIGHT; slip < SLIPS && bucket && !f->explains; slip++) {
            struct score s = { 0 };
            score_buckets(&p, bucket, slip, &s);
            if ((form || slip) && s.within <= f->score.within) continue;
            f->score = s;
            f->explains = s.within == s.total;
            const char *a = two ? "buckets are one-sided, not two-sided"
                                : "buckets are two-sided, not one-sided";
            const char *b = form / 2 ? "max_distance is 128" : "";
            /* no option was given to depart from */
            if (form % 2 == 0 || !c->encoding) a = "";
            snprintf(f->rule, sizeof f->rule, "%s", other);
            snprintf(f->mistake, sizeof f->mistake, "%s%s%s%s%s", a, *a && *b ? "; " : "", b,
                     (*a || *b) && slip ? "; " : "", slip_names[slip]);
        }
        free(bucket);
    }
    f->what = "buckets";
    if (c->encoding) snprintf(f->wanted, sizeof f->wanted, "%s", text);
    if (p.numbers && c->tolerance < 0)
        snprintf(f->tolerance, sizeof f->tolerance, "none, bucket numbers are integers");
    else
        snprintf(f->tolerance, sizeof f->tolerance, "%.3g |value|",
                 c->tolerance >= 0 ? c->tolerance : 2 * c->bias.unit);
    const struct place *at = &f->score.first;
    snprintf(f->where, sizeof f->where, "head %td, query %td, key %td (distance %td)", at->head,
             at->row, at->column, at->row + p.keys - p.queries - at->column);
    return true;
}
