/* SPDX-License-Identifier: MIT */
/* given.c -- see given.h. */
#include "base/given.h"

#include <assert.h>

/* ---- Structs that grow ----------------------------------------------------------------------- */

loci_status loci_take_struct(void *to, size_t now, size_t frozen, bool sized, const void *from,
                             const char *name, loci_error *e)
{
    size_t size;
    /* The size is the first field of every such struct;
     * only then is it known how much may be read. */
    memcpy(&size, from, sizeof size);
    /* No later header will have more; what is larger was never a size but memory not set. */
    const size_t most = now + 4096;
    CHECK(e, size || !sized, LOCI_BAD_ARG,
          "%s: size is 0 and must be sizeof(%s); initialise structs by their macros, as in "
          "loci_call call = LOCI_CALL(.batch = 1)",
          name, name);
    if (size == 0) size = frozen;
    CHECK(e, size >= frozen && size <= most, LOCI_BAD_ARG,
          "%s: size %zu must be sizeof(%s), at least %zu", name, size, name, frozen);
    /* Fields that a newer header has: as long as they
     * are 0 they ask for nothing this library lacks. */
    for (size_t i = now; i < size; i++)
        CHECK(e, !((const unsigned char *)from)[i], LOCI_UNSUPPORTED,
              "%s: size %zu has fields that version %s does not know, and they are not zero",
              name, size, loci_version_text());
    const size_t part = size < now ? size : now;
    memcpy(to, from, part);
    memset((char *)to + part, 0, now - part);
    return LOCI_OK;
}
loci_status loci_take_call(loci_call *to, bool sized, const loci_call *from)
{
    return from ? TAKE(loci_call, to, from, error, sized, from->error) : LOCI_BAD_ARG;
}

/* ---- Positions ------------------------------------------------------------------------------- */

loci_status loci_check_near(const int64_t *pos, ptrdiff_t n, const char *name, loci_error *e)
{
    for (ptrdiff_t i = 0; pos && i < n; i++)
        CHECK(e, pos[i] >= -FAR && pos[i] <= FAR, LOCI_BAD_ARG,
              "%s[%td] is %lld, and positions must lie within 2^40", name, i, (long long)pos[i]);
    return LOCI_OK;
}
/* fabs() <= FAR is also false for NaN, so no coordinate is one. */
loci_status loci_check_near_axes(const double *x, ptrdiff_t n, const char *name, loci_error *e)
{
    for (ptrdiff_t i = 0; x && i < n; i++)
        CHECK(e, fabs(x[i]) <= (double)FAR, LOCI_BAD_ARG,
              "%s[%td] is %g, and coordinates must lie within 2^40", name, i, x[i]);
    return LOCI_OK;
}

/* ---- Views ----------------------------------------------------------------------------------- */

loci_status loci_spell_out(loci_view *v, const char *name, ptrdiff_t B, ptrdiff_t H, ptrdiff_t L,
                           ptrdiff_t width, loci_error *e)
{
    /* `last` counts the numbers up to the furthest one.  8 bytes each must still be
     * a ptrdiff_t, so that no later product of indices and strides overflows. */
    ptrdiff_t *const strides[] = { &v->batch, &v->head, &v->row };
    const ptrdiff_t counts[] = { B, H, L };
    ptrdiff_t last = width, step;
    if (!v->batch && !v->head && !v->row) {
        CHECK(e,
              !__builtin_mul_overflow(L, width, &v->head)
                  && !__builtin_mul_overflow(v->head, H, &v->batch),
              LOCI_BAD_ARG, "%s: %td rows of %td in %td heads are too many numbers", name, L,
              width, H);
        v->row = width;
    }
    for (int i = 0; i < COUNT(strides); i++)
        if (*strides[i] == LOCI_BROADCAST) *strides[i] = 0;
    bool fits = v->batch >= 0 && v->head >= 0 && v->row >= 0;
    for (int i = 0; i < COUNT(strides) && v->data && B && H && L; i++)
        fits = fits && !__builtin_mul_overflow(counts[i] - 1, *strides[i], &step)
            && !__builtin_add_overflow(last, step, &last);
    CHECK(e, fits && last <= PTRDIFF_MAX / 8, LOCI_BAD_ARG,
          "%s: strides %td, %td, %td are negative or reach too far", name, v->batch, v->head,
          v->row);
    return LOCI_OK;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

/* Bytes from the first to the last. */
static size_t reach_of(const struct region *r) { return r->reach[r->spans]; }

/* Repeats what the region holds so far `count` times, `step` bytes apart.  Called for the
 * smallest step first, so a region stays as few runs as it can: neighbours without a gap become
 * one run, and spans that go on evenly become one span.  With a step that is shorter than what
 * it repeats numbers may share bytes; then the region is all bytes in between and no output. */
static void repeat(struct region *r, size_t step, size_t count)
{
    const int n = r->spans;
    const size_t inner = reach_of(r), all = inner + (count - 1) * step;
    if (count < 2) return;
    if (step < inner) r->itself = true;
    if (step < inner || (step == inner && n == 0)) {
        r->spans = 0, r->reach[0] = all;
    } else if (n > 0 && step == r->span[n - 1].step * r->span[n - 1].count) {
        r->span[n - 1].count *= count, r->reach[n] = all;          /* the last span goes on */
    } else {
        r->span[n].step = step, r->span[n].count = count;
        r->reach[++r->spans] = all;
    }
}

static struct region *add(struct regions *to, const char *name, const void *p, size_t run,
                          size_t each, enum use_of use)
{
    assert(to->n < MAX_REGIONS);
    struct region *r = &to->list[to->n++];
    r->name = name, r->at = (uintptr_t)p, r->each = each, r->use = use;
    r->spans = 0, r->reach[0] = run, r->itself = false, r->view = (loci_view){ 0 };
    return r;
}
void loci_add_list(struct regions *to, const char *name, const void *p, size_t count, size_t each,
                   enum use_of use)
{
    if (p && count) add(to, name, p, count * each, each, use);
}
void loci_add_view(struct regions *to, const char *name, const loci_view *v, ptrdiff_t B,
                   ptrdiff_t H, ptrdiff_t L, ptrdiff_t width, size_t each, enum use_of use)
{
    struct {
        size_t step, count;
    } dim[] = { { (size_t)v->row, (size_t)L },
                { (size_t)v->head, (size_t)H },
                { (size_t)v->batch, (size_t)B } };
    if (!v->data || !B || !H || !L || !width) return;
    struct region *r = add(to, name, v->data, (size_t)width * each, each, use);
    /* A stride that nobody takes must not make two equal views differ. */
    r->view = (loci_view){ v->data, B > 1 ? v->batch : 0, H > 1 ? v->head : 0, L > 1 ? v->row : 0 };
    for (int i = 0; i < COUNT(dim); i++) {                           /* the smallest step first */
        int least = i;
        for (int k = i + 1; k < COUNT(dim); k++)
            if (dim[k].step < dim[least].step) least = k;
        const size_t step = dim[least].step, count = dim[least].count;
        dim[least] = dim[i];
        repeat(r, step * each, count);
    }
}

/* One of the pieces of a region: its first `spans` spans from `at` on. */
struct piece { const struct region *of; int spans; uintptr_t at; };
static size_t length(struct piece p) { return p.of->reach[p.spans]; }
static bool apart(struct piece a, struct piece b)
{
    return a.at + length(a) <= b.at || b.at + length(b) <= a.at;
}
static size_t step_of(struct piece p) { return p.spans ? p.of->span[p.spans - 1].step : 0; }
static size_t count_of(struct piece p) { return p.spans ? p.of->span[p.spans - 1].count : 1; }
static struct piece part(struct piece p, size_t i)
{
    return (struct piece){ p.of, p.spans - 1, p.at + i * step_of(p) };
}

/* Do two pieces share a byte?  The piece of longer steps is taken apart where it reaches the other;
 * two of the same step are compared at one pair of parts for each distance between parts, as all
 * pairs at one distance lie alike.  Interleaved views can make this take long; when `patience` is
 * spent the answer is yes, which refuses a call but never lets one write over its inputs. */
static bool overlap(struct piece a, struct piece b, int *patience)
{
    if (apart(a, b)) return false;
    if ((!a.spans && !b.spans) || --*patience < 0) return true;
    if (step_of(a) < step_of(b)) { const struct piece c = a; a = b; b = c; }
    const size_t step = step_of(a);
    const bool alike = step == step_of(b);
    const size_t other = alike ? length(part(b, 0)) : length(b), own = length(part(a, 0));
    /* Only parts i of a with a.at + i step < b.at + other and a.at + i step + own > b.at
     * can overlap.  If the steps are alike, i counts the distance from part 0 of a to a
     * part of b, from -(parts of b - 1) on; `back` shifts it so that it starts at 0. */
    const size_t back = alike ? count_of(b) - 1 : 0;
    /* Where b begins, moved by as many steps as i is. */
    const uintptr_t start = b.at + back * step;
    size_t i = start >= a.at + own ? (start - a.at - own) / step : 0;
    for (; i < count_of(a) + back && a.at + i * step < start + other; i++) {
        if (a.at + i * step + own <= start) continue;
        if (!alike) {
            if (overlap(part(a, i), b, patience)) return true;
        } else {
            const size_t first = i < back ? back - i : 0;
            struct piece x = part(a, i < back ? 0 : i - back), y = part(b, first);
            if (overlap(x, y, patience)) return true;
        }
    }
    return false;
}

/* Two arguments that are the same array in the same order:
 * then each number is read before it is written. */
static bool same(const struct region *a, const struct region *b)
{
    return a->at == b->at && a->each == b->each && !memcmp(&a->view, &b->view, sizeof a->view)
        && a->spans == b->spans && reach_of(a) == reach_of(b);
}

/* One output against one other argument. */
static loci_status check_pair(const struct region *out, const struct region *in, loci_error *e)
{
    int patience = 1 << 14;
    const struct piece a = { out, out->spans, out->at }, b = { in, in->spans, in->at };
    if (apart(a, b) || (in->use == REPLACED && same(out, in)) || !overlap(a, b, &patience))
        return LOCI_OK;
    CHECK(e, in->use == WRITTEN, LOCI_BAD_ARG,
          "%s overlaps %s%s: it would be written while that is still read", out->name, in->name,
          in->use == REPLACED ? ", and is not the same view of it" : "");
    return loci_fail(e, LOCI_BAD_ARG, "%s and %s overlap, and both are written",
                     out->name, in->name);
}

loci_status loci_check_regions(const struct regions *r, loci_error *e)
{
    for (int i = 0; i < r->n; i++) {
        const struct region *a = &r->list[i];
        CHECK(e, a->at % a->each == 0, LOCI_BAD_ARG,
              "%s must start on a multiple of %zu bytes, the size of its numbers",
              a->name, a->each);
        if (a->use != WRITTEN) continue;
        CHECK(e, !a->itself, LOCI_BAD_ARG,
              "%s: strides %td, %td, %td let its rows overlap, and they are written", a->name,
              a->view.batch, a->view.head, a->view.row);
        /* Each pair of outputs is compared only once. */
        for (int k = 0; k < r->n; k++) {
            const loci_status status =
                k == i || (k < i && r->list[k].use == WRITTEN) ? LOCI_OK
                                                               : check_pair(a, &r->list[k], e);
            if (status) return status;
        }
    }
    return LOCI_OK;
}
