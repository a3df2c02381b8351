/* SPDX-License-Identifier: MIT */
/* check_rotation.c -- rotated rows, and tables of cos and sin.
 *
 * A candidate is an encoding text, optionally with wrong positions.  Its cos and sin come from
 * loci_export_rope, so the comparison uses the angles that the library rotates by. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/check.h"
#include "loci/convert.h"

/* A sample of rows selects the best candidate, which is then compared with all rows. */
enum { SAMPLE = 96, MAX_CANDIDATES = 256, TEXT = RULE_TEXT };
enum shift { AS_GIVEN, ONE_LESS, ONE_MORE, NEGATIVE, ZERO, BFLOAT, HALF_FLOAT, SHIFTS };
static const char *const shift_names[] = {
    [AS_GIVEN] = "",
    [ONE_LESS] = "positions are one too small",
    [ONE_MORE] = "positions are one too large",
    [NEGATIVE] = "sin has the other sign",
    [ZERO] = "every row is at position 0",
    [BFLOAT] = "positions are rounded to bfloat16",
    [HALF_FLOAT] = "positions are rounded to float16",
};
/* channel order of `after` */
enum order { SAME, TO_INTERLEAVED, TO_HALF };

struct candidate {
    char text[TEXT], mistake[256];
    enum shift shift;
    enum order order;
};

/* The data under test: `rows` positions of `heads` heads (over all batch entries), of `width`
 * channels. */
struct problem {
    const struct check *check;
    bool table;
    ptrdiff_t heads, rows;
    /* dim: of a head; for a table, of the heads that it serves */
    int width, dim;
    int layout; /* of a table */
    double unit;
    double *pos; /* [rows] */
    struct candidate *list;
    int count;
};

/* ---- The table of a candidate, for some rows ------------------------------------------------- */

struct turns {
    int pairs, offset;
    bool interleaved;
    double m;
    double *cos, *sin, *slack;
};

/* Programs that store positions in the type of the model round them: bfloat16 is wrong from 257 on,
 * float16 from 2049 on. */
static double moved(double pos, enum shift shift)
{
    uint16_t h;
    switch (shift) {
    case ONE_LESS:
        return pos - 1;
    case ONE_MORE:
        return pos + 1;
    case NEGATIVE:
        return -pos;
    case ZERO:
        return 0;
    case BFLOAT: {
        union {
            uint32_t u;
            float f;
        } v;
        loci_round(LOCI_BF16, 1, &pos, &h);
        v.u = (uint32_t)h << 16;
        return v.f;
    }
    case HALF_FLOAT: { /* whole numbers: 11 bits, ties to even */
        if (fabs(pos) > 65519) return pos;
        const double step = fabs(pos) < 2048 ? 1 : ldexp(1, ilogb(pos) - 10);
        return rint(pos / step) * step;
    }
    default:
        return pos;
    }
}

/* The number after "key=", or the default. */
static double option(const char *text, const char *key, double usual)
{
    char find[32];
    snprintf(find, sizeof find, "%s=", key);
    for (const char *p = strchr(text, ':'); p; p = strchr(p + 1, ','))
        if (!strncmp(p + 1, find, strlen(find))) return strtod(p + 1 + strlen(find), NULL);
    return usual;
}

static loci_plan *plan_of(const struct problem *p, const char *text, loci_error *e)
{
    const loci_desc d = LOCI_DESC(.encoding = text, .stage = LOCI_ROTATE, .heads = 1, .dim = p->dim,
                                  .dtype = LOCI_F64);
    loci_plan *plan;
    const loci_status status = loci_plan_create(&plan, &d, e);
    if (status == LOCI_NO_MEMORY) exit(fail("out of memory"));
    return status ? NULL : plan;
}

/* Computes cos and sin of some rows (`row` NULL: of the first n), and the possible error of an
 * angle in float32.  Reads the rule's own w off position 1. */
static bool rotations_of(const struct problem *p, const struct candidate *c, const ptrdiff_t *row,
                         ptrdiff_t n, struct turns *t, loci_error *e)
{
    loci_plan *plan = plan_of(p, c->text, e);
    if (!plan) return false;
    *t = (struct turns){ .pairs = (int)option(c->text, "dim", p->dim) / 2,
                         .offset = (int)option(c->text, "offset", 0),
                         .interleaved = strstr(c->text, "pairing=interleaved") != NULL };
    const size_t size = (size_t)(n * t->pairs);
    int64_t *pos = alloc((size_t)n, sizeof *pos), ends[] = { 0, 1 };
    double *rates = alloc((size_t)t->pairs * 4, sizeof(double)), *sin = rates + 2 * t->pairs;
    t->cos = alloc(size, sizeof(double));
    t->sin = alloc(size, sizeof(double));
    t->slack = alloc(size, sizeof(double));
    for (ptrdiff_t r = 0; r < n; r++) pos[r] = (int64_t)moved(p->pos[row ? row[r] : r], c->shift);
    loci_rope_table table =
        LOCI_ROPE_TABLE(.dtype = LOCI_F64, .count = n, .pos = pos, .cos = t->cos, .sin = t->sin);
    bool done = !loci_export_rope(plan, NULL, &table, e);
    table.count = 2;
    table.pos = ends;
    table.cos = rates;
    table.sin = sin;
    done = done && !loci_export_rope(plan, NULL, &table, e);
    t->m = rates[0]; /* cos 0, times the attention factor */
    /* w from position 1, for the error of a float32 angle */
    for (int i = 0; i < t->pairs && done; i++) {
        const double w = atan2(sin[t->pairs + i], rates[t->pairs + i]);
        for (ptrdiff_t r = 0; r < n && w > 0; r++)
            t->slack[r * t->pairs + i] = fabs((double)pos[r]) * w * (4 + fabs(log(w))) * 0x1p-24;
    }
    free(pos);
    free(rates);
    loci_plan_destroy(plan);
    return done;
}
static void release(struct turns *t)
{
    free(t->cos);
    free(t->sin);
    free(t->slack);
}

/* ---- Scores ---------------------------------------------------------------------------------- */

/* The index of an element of `before` or `after`, in either layout. */
static ptrdiff_t index_of(const struct problem *p, ptrdiff_t head, ptrdiff_t row, int channel)
{
    const struct safetensor *t = p->check->before.tensor;
    if (!p->check->rows_first) return (head * p->rows + row) * p->width + channel;
    /* heads of a batch entry */
    const ptrdiff_t per = t->rank >= 2 ? t->shape[t->rank - 2] : 1;
    return ((head / per * p->rows + row) * per + head % per) * p->width + channel;
}

/* The channel of `after` that corresponds to channel i of the exact row. */
static int ordered(const struct turns *t, enum order order, int i)
{
    const int k = i - t->offset;
    if (order == SAME || k < 0 || k >= 2 * t->pairs) return i;
    return t->offset
         + (order == TO_INTERLEAVED ? k % t->pairs * 2 + k / t->pairs : k / 2 + k % 2 * t->pairs);
}

/* Each number has two tolerances: one for exact angles, and a looser one for float32 angles. */
static void score_row(const struct problem *p, const struct candidate *c, const struct turns *t,
                      ptrdiff_t head, ptrdiff_t row, ptrdiff_t at, struct score *s)
{
    const double *x = p->check->before.x, *y = p->check->after.x, tol = p->check->tolerance;
    const double unit = tol >= 0 ? tol : 6 * p->unit;
    for (int i = 0; i < p->width; i++) {
        const int k = i - t->offset;
        const struct place here = { head, row, ordered(t, c->order, i) };
        const double got = y[index_of(p, head, row, (int)here.column)];
        if (k < 0 || k >= 2 * t->pairs) { /* a channel that is not rotated */
            const double want = x[index_of(p, head, row, i)];
            score_add(s, here, got, want, unit * fabs(want), unit * fabs(want));
            continue;
        }
        const int pair = t->interleaved ? k / 2 : k % t->pairs;
        const bool second = t->interleaved ? k % 2 : k / t->pairs;
        const int first = t->offset + (t->interleaved ? 2 * pair : pair);
        const double a = x[index_of(p, head, row, first)];
        const double b = x[index_of(p, head, row, first + (t->interleaved ? 1 : t->pairs))];
        const double cos = t->cos[at * t->pairs + pair], sin = t->sin[at * t->pairs + pair];
        const double reach = (fabs(a) + fabs(b)) * t->m, angle = t->slack[at * t->pairs + pair];
        score_add(s, here, got, second ? a * sin + b * cos : a * cos - b * sin, unit * reach,
                  (unit + angle) * reach);
    }
}

/* cos is place 0, sin is place 1.  The layout maps a pair to its column of the table. */
static void score_table_row(const struct problem *p, const struct turns *t, ptrdiff_t row,
                            ptrdiff_t at, struct score *s)
{
    const double tol = p->check->tolerance, unit = (tol >= 0 ? tol : 4 * p->unit) * t->m;
    const double *const data[] = { p->check->cos.x, p->check->sin.x };
    const double *const exact[] = { t->cos, t->sin };
    for (int which = 0; which < 2; which++)
        for (int i = 0; i < p->width && data[which]; i++) {
            const int pair = p->layout == LOCI_TABLE_INTERLEAVED ? i / 2 : i % t->pairs;
            score_add(s, (struct place){ which, row, i }, data[which][row * p->width + i],
                      exact[which][at * t->pairs + pair], unit,
                      unit + t->slack[at * t->pairs + pair] * t->m);
        }
}

/* Scores the given rows and one head of them, or all if row is NULL. */
static bool score_candidate(const struct problem *p, const struct candidate *c,
                            const ptrdiff_t *row, ptrdiff_t n, struct score *s, loci_error *e)
{
    struct turns t = { 0 };
    *s = (struct score){ 0 };
    const bool made = rotations_of(p, c, row, n, &t, e);
    for (ptrdiff_t h = 0; h < (row || p->table ? 1 : p->heads) && made; h++)
        for (ptrdiff_t r = 0; r < n; r++) {
            if (p->table) score_table_row(p, &t, row ? row[r] : r, r, s);
            else score_row(p, c, &t, h, row ? row[r] : r, r, s);
        }
    release(&t);
    return made;
}

/* ---- Candidates ------------------------------------------------------------------------------ */

/* Adds a candidate unless the list already has it: its first description is the simplest.  `a` and
 * `b` are joined. */
static void add(struct problem *p, const char *text, enum shift shift, enum order order,
                const char *a, const char *b)
{
    for (int i = 0; i < p->count; i++)
        if (!strcmp(p->list[i].text, text) && p->list[i].shift == shift
            && p->list[i].order == order)
            return;
    if (p->count == MAX_CANDIDATES) return;
    struct candidate *c = &p->list[p->count++];
    snprintf(c->text, sizeof c->text, "%s", text);
    snprintf(c->mistake, sizeof c->mistake, "%s%s%s", a, *a && *b ? "; " : "", b);
    c->shift = shift;
    c->order = order;
}

/* The text with one option changed, printed with few digits where they give the same number. */
static void add_with(struct problem *p, const char *text, const char *key, double value,
                     const char *a, const char *b)
{
    char changed[TEXT], number[40];
    snprintf(changed, sizeof changed, "%s", text);
    snprintf(number, sizeof number, "%.17g", value);
    if (strtod(number, NULL) == rint(value * 1e6) / 1e6)
        snprintf(number, sizeof number, "%.15g", value);
    if (text_with(changed, sizeof changed, key, number)) add(p, changed, AS_GIVEN, SAME, a, b);
}

/* Keeps only the options that select the rotated channels and their speed, without scaling. */
static void plain_text(const char *text, char *plain)
{
    static const char *const keys[] = { "base", "dim", "offset" };
    snprintf(plain, TEXT, "rope:pairing=%s",
             strstr(text, "pairing=interleaved") ? "interleaved" : "half");
    for (int i = 0; i < COUNT(keys); i++) {
        char number[40];
        const double value = option(text, keys[i], NAN);
        snprintf(number, sizeof number, "%.17g", value);
        if (!isnan(value)) text_with(plain, TEXT, keys[i], number);
    }
}

/* Estimates the base from the row nearest to position 0, in the given pairing.  Returns NaN if no
 * pair gives one.  Each pair's angle gives an estimate, and the median counts.  Pairs near zero,
 * angles near half a turn and very slow pairs are skipped: their w would be arbitrary. */
static double guess_base(const struct problem *p, bool interleaved, int offset, int pairs)
{
    ptrdiff_t row = -1;
    for (ptrdiff_t r = 0; r < p->rows; r++)
        if (p->pos[r] != 0 && (row < 0 || fabs(p->pos[r]) < fabs(p->pos[row]))) row = r;
    double *base = alloc((size_t)pairs, sizeof *base);
    int n = 0;
    for (int t = 1; t < pairs && row >= 0; t++) {
        double angle;
        if (p->table) {
            const ptrdiff_t at = row * p->width + (p->layout == LOCI_TABLE_INTERLEAVED ? 2 * t : t);
            if (!p->check->cos.x || !p->check->sin.x) break;
            angle = atan2(p->check->sin.x[at], p->check->cos.x[at]);
        } else {
            const int first = offset + (interleaved ? 2 * t : t);
            const int second = first + (interleaved ? 1 : pairs);
            const double *x = p->check->before.x, *y = p->check->after.x;
            const ptrdiff_t a = index_of(p, 0, row, first), b = index_of(p, 0, row, second);
            angle = atan2(x[a] * y[b] - x[b] * y[a], x[a] * y[a] + x[b] * y[b]);
        }
        const double w = fabs(angle / p->pos[row]);
        /* w = base^(-t/pairs) */
        if (w > 1e-3 && w < 1 && fabs(angle) < 3) base[n++] = pow(w, -(double)pairs / t);
    }
    const double found = n ? median(base, n) : NAN;
    free(base);
    return found;
}

/* Rounds x to n digits: a guess of 9999.7 becomes 10000. */
static double digits(double x, int n)
{
    char text[40];
    snprintf(text, sizeof text, "%.*g", n, x);
    return strtod(text, NULL);
}

/* Adds the text in one pairing with its possible mistakes, the likeliest first.  If no encoding was
 * given, another base or width is the rule, not a mistake. */
static void add_family(struct problem *p, const char *text, const char *said)
{
    static const double bases[] = { 1e4,   5e5,   1e6, 1e5, 2.5e4, 4e4, 5e4,
                                    1.5e5, 1.6e5, 2e5, 5e6, 1e7,   8e6 };
    static const double widths[] = { 1, 0.5, 0.25, 0.75, 0.4 };
    char plain[TEXT], what[128];
    const bool wanted = p->check->encoding != NULL;
    plain_text(text, plain);
    add(p, text, AS_GIVEN, SAME, said, "");
    for (enum shift s = ONE_LESS; s < SHIFTS; s++) add(p, text, s, SAME, said, shift_names[s]);
    if (!p->table) {
        const bool inter = strstr(text, "pairing=interleaved");
        if (inter)
            add(p, text, AS_GIVEN, TO_HALF, said,
                "channels of after are in the order of half pairing, as with permuted weights");
        else
            add(p, text, AS_GIVEN, TO_INTERLEAVED, said,
                "channels of after are in the order of interleaved pairing, as with permuted "
                "weights");
    }
    const bool scaled = strstr(text, "scaling=") && !strstr(text, "scaling=none");
    if (scaled) add(p, plain, AS_GIVEN, SAME, said, "the scaling is ignored");
    struct candidate one = { .shift = ZERO }; /* serves only to read the attention factor */
    struct turns t = { 0 };
    loci_error e;
    snprintf(one.text, sizeof one.text, "%s", text);
    if (rotations_of(p, &one, NULL, 1, &t, &e) && t.m != 1) {
        add_with(p, text, "attention_factor", 1, said, "the attention factor is missing");
        add_with(p, text, "attention_factor", t.m * t.m, said,
                 "the attention factor is applied twice");
        if (scaled)
            add_with(p, plain, "attention_factor", t.m, said,
                     "the scaling is ignored except for its attention factor");
    }
    release(&t);
    const int dim = (int)option(text, "dim", p->dim), offset = (int)option(text, "offset", 0);
    for (int i = 0; i < COUNT(widths) && !p->table; i++) {
        const int width = (int)(widths[i] * p->dim) / 2 * 2;
        if (width < 2 || width == dim || offset + width > p->dim) continue;
        snprintf(what, sizeof what, "%d channels are rotated, not %d", width, dim);
        add_with(p, text, "dim", width, said, wanted ? what : "");
    }
    /* the right number of channels, with exponents divided by the head's width */
    if (dim < p->dim && !scaled)
        add_with(p, text, "base", pow(option(text, "base", 10000), (double)dim / p->dim), said,
                 "frequencies are spread over the whole head, not over the rotated channels");
    double guesses[COUNT(bases) + 4];
    memcpy(guesses, bases, sizeof bases);
    const double guess = guess_base(p, strstr(text, "pairing=interleaved"), offset, dim / 2);
    const bool guessed = isfinite(guess) && guess >= 1 && guess < 1e18;
    for (int i = 0; i < 4; i++) guesses[COUNT(bases) + i] = guessed ? digits(guess, i + 2) : 1e4;
    for (int i = 0; i < COUNT(guesses); i++) {
        if (guesses[i] == option(text, "base", 10000)) continue;
        snprintf(what, sizeof what, "the base is %.10g, not %.10g", guesses[i],
                 option(text, "base", 10000));
        add_with(p, text, "base", guesses[i], said, wanted ? what : "");
        if (scaled) {
            snprintf(what, sizeof what, "the base is %.10g, not %.10g, and the scaling is ignored",
                     guesses[i], option(text, "base", 10000));
            add_with(p, plain, "base", guesses[i], said, what);
        }
    }
}

static void add_candidates(struct problem *p, const char *text)
{
    char other[TEXT];
    const bool inter = strstr(text, "pairing=interleaved");
    add_family(p, text, "");
    if (p->table) return; /* its layout determines the pairs */
    snprintf(other, sizeof other, "%s", text);
    if (!text_with(other, sizeof other, "pairing", inter ? "half" : "interleaved")) return;
    const char *said =
        inter ? "the pairing is half, not interleaved" : "the pairing is interleaved, not half";
    add_family(p, other, p->check->encoding ? said : "");
}

/* ---- The search ------------------------------------------------------------------------------ */

/* Finds the candidate that explains the most numbers, then the one with the smallest errors.  Tries
 * exact angles first. */
static bool search(struct problem *p, struct finding *f, loci_error *e)
{
    /* samples all rows, or the first ones, which show fast pairs, and others evenly up to the
     * last */
    ptrdiff_t row[SAMPLE], n = p->rows < SAMPLE ? p->rows : SAMPLE;
    for (ptrdiff_t i = 0; i < n; i++) {
        const ptrdiff_t later = i - SAMPLE / 2 + 1;
        row[i] = n < p->rows && later > 0 ? i + (p->rows - SAMPLE) * later / (SAMPLE / 2) : i;
    }
    struct score *score = alloc((size_t)p->count, sizeof *score), all;
    const struct candidate *best = NULL;
    int nearest = -1;
    /* the first candidate is the given encoding and must be valid; others may fail */
    bool made = score_candidate(p, &p->list[0], row, n, &score[0], e);
    for (int i = 0; i < p->count && made; i++) {
        loci_error ignored;
        if (i && !score_candidate(p, &p->list[i], row, n, &score[i], &ignored)) continue;
        const struct score *s = &score[i], *than = nearest < 0 ? NULL : &score[nearest];
        if (!than || s->within > than->within
            || (s->within == than->within && s->squares < than->squares && s->within < s->total))
            nearest = i;
    }
    /* exact angles first, then float32 angles */
    for (int pass = 0; pass < 2 && made && !best; pass++)
        for (int i = 0; i < p->count && !best; i++) {
            if (!score[i].total || (pass ? score[i].loose : score[i].within) < score[i].total)
                continue;
            /* it explains the sample; check it on all rows */
            if (!score_candidate(p, &p->list[i], NULL, p->rows, &all, e)) continue;
            if ((pass ? all.loose : all.within) < all.total) continue;
            best = &p->list[i];
            snprintf(f->mistake, sizeof f->mistake, "%s%s%s", best->mistake,
                     best->mistake[0] && pass ? "; " : "",
                     pass ? "angles are computed in float32" : "");
        }
    for (int i = 0; i < p->count && best; i++)
        f->others += &p->list[i] != best && score[i].total && score[i].within == score[i].total;
    f->explains = best != NULL;
    if (!best && made) {
        best = &p->list[nearest];
        snprintf(f->mistake, sizeof f->mistake, "%s", best->mistake);
    }
    made = made && score_candidate(p, best, NULL, p->rows, &f->score, e);
    if (made) snprintf(f->rule, sizeof f->rule, "%s", best->text);
    free(score);
    return made;
}

/* Describes the first difference in terms of the dump: the pair and the channel. */
static void describe_place(const struct problem *p, struct finding *f)
{
    const struct place *at = &f->score.first;
    const int dim = (int)option(f->rule, "dim", p->dim);
    const int k = (int)at->column - (int)option(f->rule, "offset", 0);
    const bool inter = p->table ? p->layout == LOCI_TABLE_INTERLEAVED
                                : strstr(f->rule, "pairing=interleaved") != NULL;
    char pair[64] = "no pair";
    if (p->table || (k >= 0 && k < dim))
        snprintf(pair, sizeof pair, "pair %d", inter ? k / 2 : k % (dim / 2));
    if (p->table)
        snprintf(f->where, sizeof f->where, "%s at position %.0f, %s (column %td)",
                 at->head || !p->check->cos.x ? "sin" : "cos", p->pos[at->row], pair, at->column);
    else
        snprintf(f->where, sizeof f->where, "head %td, position %.0f, %s (channel %td)", at->head,
                 p->pos[at->row], pair, at->column);
}

/* ---- Reading the problem --------------------------------------------------------------------- */

/* Reads the positions of the rows, or sets 0, 1, 2 and so on.  The bound leaves margin for shifted
 * positions within the library's limit, 2^40. */
static bool read_positions(struct problem *p)
{
    const struct numbers *n = &p->check->pos;
    if (n->x && n->tensor->count != p->rows)
        return refuse("%s: '%s' has %td positions, but there are %td rows", p->check->path, n->name,
                      n->tensor->count, p->rows);
    p->pos = alloc((size_t)p->rows, sizeof(double));
    for (ptrdiff_t r = 0; r < p->rows; r++) {
        p->pos[r] = n->x ? n->x[r] : (double)r;
        if (!(fabs(p->pos[r]) <= 0x1p39) || p->pos[r] != rint(p->pos[r]))
            return refuse("%s: '%s' [%td] is %g, but positions must be whole numbers up to 2^39",
                          p->check->path, n->name, r, p->pos[r]);
    }
    return true;
}

/* before and after are [rows][channels], with heads and batch in front.  With rows_first, heads
 * follow the rows. */
static bool shape_rotation(struct problem *p)
{
    const struct check *c = p->check;
    const struct safetensor *x = c->before.tensor, *y = c->after.tensor;
    bool same = x->rank == y->rank;
    for (int k = 0; k < x->rank && same; k++) same = x->shape[k] == y->shape[k];
    if (!same)
        return refuse("%s: '%s' and '%s' must have the same shape", c->path, c->before.name,
                      c->after.name);
    if (x->rank < 2 || x->rank > 4 || (c->rows_first && x->rank < 3))
        return refuse("%s: '%s' has %d dimensions, but must be [rows][channels], "
                      "[heads][rows][channels] or [batch][heads][rows][channels]",
                      c->path, c->before.name, x->rank);
    const ptrdiff_t width = x->shape[x->rank - 1];
    if (width < 2 || width > 65536)
        return refuse("%s: '%s' has %td channels, but must have 2 to 65536", c->path,
                      c->before.name, width);
    if (c->head_dim && c->head_dim != width)
        return refuse("%s: '%s' has %td channels, but the model's heads have %d", c->path,
                      c->before.name, width, c->head_dim);
    p->width = p->dim = (int)width;
    p->rows = x->shape[x->rank - (c->rows_first ? 3 : 2)];
    p->heads = x->count / (p->rows * width);
    p->unit = fmax(c->before.unit, c->after.unit);
    if (!c->before.unit || !c->after.unit)
        return refuse("%s: '%s' and '%s' must contain floating-point numbers", c->path,
                      c->before.name, c->after.name);
    return true;
}

/* Infers the layout of a table from its numbers: repeated halves, repeated neighbours, or neither.
 * All pairs of a table are rotated, so width and offset of the head do not matter. */
static bool shape_table(struct problem *p, char *text)
{
    const struct check *c = p->check;
    const struct numbers *one = c->cos.x ? &c->cos : &c->sin;
    const struct safetensor *t = one->tensor, *s = c->sin.tensor;
    const ptrdiff_t width = t->rank ? t->shape[t->rank - 1] : 0;
    if (width < 1 || width > 65536)
        return refuse("%s: '%s' must be [positions][dim or dim/2]", c->path, one->name);
    if (c->cos.x && c->sin.x
        && (t->count != s->count || s->rank < 1 || s->shape[s->rank - 1] != width))
        return refuse("%s: '%s' and '%s' must have the same shape", c->path, c->cos.name,
                      c->sin.name);
    if (!one->unit || (c->sin.x && !c->sin.unit))
        return refuse("%s: '%s' must contain floating-point numbers", c->path, one->name);
    bool half = width % 2 == 0, neighbours = half;
    for (ptrdiff_t i = 0; i < t->count; i++) {
        const ptrdiff_t k = i % width;
        half = half && (k >= width / 2 || one->x[i] == one->x[i + width / 2]);
        neighbours = neighbours && (k % 2 || one->x[i] == one->x[i + 1]);
    }
    p->layout = half ? LOCI_TABLE_HALF : neighbours ? LOCI_TABLE_INTERLEAVED : LOCI_TABLE_SPLIT;
    p->width = (int)width;
    p->dim = p->layout == LOCI_TABLE_SPLIT ? 2 * (int)width : (int)width;
    p->rows = t->count / width;
    p->heads = 1;
    p->table = true;
    if (c->head_dim && !text_has(text, "dim") && c->head_dim != p->dim)
        return refuse("%s: the table has %d pairs, but the model's heads have %d rotated channels",
                      c->path, p->dim / 2, c->head_dim);
    p->unit = fmax(c->cos.unit, c->sin.unit);
    const double turned = option(text, "dim", p->dim);
    if (turned != p->dim)
        return refuse("%s: the table has %d pairs, but the encoding rotates %g channels, %g pairs",
                      c->path, p->dim / 2, turned, turned / 2);
    return text_with(text, TEXT, "dim", NULL) && text_with(text, TEXT, "offset", NULL);
}

/* Creates the plan only for its error: the given encoding may be invalid. */
static bool solve(struct problem *p, char *text, struct finding *f)
{
    const struct check *c = p->check;
    loci_error e;
    if (!(c->before.x ? shape_rotation(p) : shape_table(p, text)) || !read_positions(p))
        return false;
    loci_plan *plan = plan_of(p, text, &e); /* candidates fail without an error */
    if (!plan) return refuse("%s", e.text);
    loci_plan_destroy(plan);
    if (strstr(text, "freq=given")) return refuse("check: freq=given has no rule to compare with");
    p->list = alloc(MAX_CANDIDATES, sizeof *p->list);
    add_candidates(p, text);
    if (!search(p, f, &e)) return refuse("%s: %s", c->path, e.text);
    if (f->score.within < f->score.total) describe_place(p, f);
    if (c->tolerance >= 0)
        snprintf(f->tolerance, sizeof f->tolerance, "%g %s", c->tolerance,
                 p->table ? "m" : "(|a| + |b|) m");
    else
        snprintf(f->tolerance, sizeof f->tolerance, "%s with u = %.3g",
                 p->table ? "4u m" : "6u (|a| + |b|) m", p->unit);
    static const char *const tables[] = {
        [LOCI_TABLE_SPLIT] = "split table",
        [LOCI_TABLE_HALF] = "half-duplicated table",
        [LOCI_TABLE_INTERLEAVED] = "interleaved table",
    };
    f->what = p->table ? tables[p->layout] : "rotation";
    if (c->encoding) snprintf(f->wanted, sizeof f->wanted, "%s", text);
    return true;
}

/* Without an encoding the search starts from plain rope, and finds pairing and base itself. */
bool check_rotation(const struct check *c, struct finding *f)
{
    char *part = part_of(c->encoding ? c->encoding : "rope:pairing=half", "rope"), text[TEXT];
    if (!part)
        return refuse("check: rotations and tables are compared with rope, which '%s' does not "
                      "have",
                      c->encoding);
    /* leaves space for one more option of a candidate */
    const bool fits = snprintf(text, sizeof text, "%s", part) < (int)sizeof text - 128;
    free(part);
    if (!fits) return refuse("check: the encoding's text is too long");
    struct problem p = { .check = c };
    const bool done = solve(&p, text, f);
    free(p.pos);
    free(p.list);
    return done;
}
