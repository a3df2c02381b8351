/* SPDX-License-Identifier: MIT */
/* overlap.c -- see overlap.h. */
#include "util/overlap.h"

#include <assert.h>
#include <string.h>

/* Bytes from the first to the last. */
static size_t reach_of(const struct region *r) { return r->reach[r->spans]; }

/* Repeats the region `count` times, `step` bytes apart.  Called for the smallest step first, so
 * that a region has as few runs as possible: neighbours without a gap become one run, and spans
 * that continue evenly become one span.  If a step is shorter than what it repeats, elements may
 * share bytes.  Then the region is all bytes in between and cannot be an output. */
static void repeat(struct region *r, size_t step, size_t count)
{
    const int n = r->spans;
    const size_t inner = reach_of(r), all = inner + (count - 1) * step;
    if (count < 2) return;
    if (step < inner) r->itself = true;
    if (step < inner || (step == inner && n == 0)) {
        r->spans = 0;
        r->reach[0] = all;
    } else if (n > 0 && step == r->span[n - 1].step * r->span[n - 1].count) {
        r->span[n - 1].count *= count;
        r->reach[n] = all; /* extends the last span */
    } else {
        r->span[n].step = step;
        r->span[n].count = count;
        r->reach[++r->spans] = all;
    }
}

static struct region *add(struct regions *to, const char *name, const void *p, size_t run,
                          size_t each, enum use_of use)
{
    assert(to->n < MAX_REGIONS);
    struct region *r = &to->list[to->n++];
    r->name = name;
    r->at = (uintptr_t)p;
    r->each = each;
    r->use = use;
    r->spans = 0;
    r->reach[0] = run;
    r->itself = false;
    r->view = (loci_view){ 0 };
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
    /* A stride of an extent of 1 must not make two equal views differ. */
    r->view = (loci_view){ v->data, B > 1 ? v->batch : 0, H > 1 ? v->head : 0, L > 1 ? v->row : 0 };
    for (int i = 0; i < COUNT(dim); i++) { /* the smallest step first */
        int least = i;
        for (int k = i + 1; k < COUNT(dim); k++)
            if (dim[k].step < dim[least].step) least = k;
        const size_t step = dim[least].step, count = dim[least].count;
        dim[least] = dim[i];
        repeat(r, step * each, count);
    }
}

/* One of the pieces of a region: its first `spans` spans, starting at `at`. */
struct memory_piece {
    const struct region *of;
    int spans;
    uintptr_t at;
};
static size_t length(struct memory_piece p) { return p.of->reach[p.spans]; }
static bool apart(struct memory_piece a, struct memory_piece b)
{
    return a.at + length(a) <= b.at || b.at + length(b) <= a.at;
}
static size_t step_of(struct memory_piece p) { return p.spans ? p.of->span[p.spans - 1].step : 0; }
static size_t count_of(struct memory_piece p)
{
    return p.spans ? p.of->span[p.spans - 1].count : 1;
}
static struct memory_piece part(struct memory_piece p, size_t i)
{
    return (struct memory_piece){ p.of, p.spans - 1, p.at + i * step_of(p) };
}

/* Do two pieces share a byte?  The piece with longer steps is split where it reaches the other.
 * Two pieces with the same step are compared at one pair of parts for each distance between parts,
 * because all pairs at one distance lie alike.  Interleaved views can make this slow.  After
 * `patience` comparisons the answer is yes.  This refuses a call, but never lets one write over its
 * inputs. */
static bool overlap(struct memory_piece a, struct memory_piece b, int *patience)
{
    if (apart(a, b)) return false;
    if ((!a.spans && !b.spans) || --*patience < 0) return true;
    if (step_of(a) < step_of(b)) {
        const struct memory_piece c = a;
        a = b;
        b = c;
    }
    const size_t step = step_of(a);
    const bool alike = step == step_of(b);
    const size_t other = alike ? length(part(b, 0)) : length(b), own = length(part(a, 0));
    /* Only parts i of a with a.at + i step < b.at + other and a.at + i step + own > b.at can
     * overlap.  If the steps are alike, i counts the distance from part 0 of a to a part of b,
     * starting at -(parts of b - 1).  `back` shifts it so that it starts at 0. */
    const size_t back = alike ? count_of(b) - 1 : 0;
    /* The start of b, moved by the same number of steps as i. */
    const uintptr_t start = b.at + back * step;
    size_t i = start >= a.at + own ? (start - a.at - own) / step : 0;
    for (; i < count_of(a) + back && a.at + i * step < start + other; i++) {
        if (a.at + i * step + own <= start) continue;
        if (!alike) {
            if (overlap(part(a, i), b, patience)) return true;
        } else {
            const size_t first = i < back ? back - i : 0;
            struct memory_piece x = part(a, i < back ? 0 : i - back), y = part(b, first);
            if (overlap(x, y, patience)) return true;
        }
    }
    return false;
}

/* Are two arguments the same array in the same order?  Then each element is read before it is
 * written. */
static bool same(const struct region *a, const struct region *b)
{
    return a->at == b->at && a->each == b->each && !memcmp(&a->view, &b->view, sizeof a->view)
        && a->spans == b->spans && reach_of(a) == reach_of(b);
}

/* Compares one output with one other argument. */
static loci_status check_pair(const struct region *out, const struct region *in, loci_error *e)
{
    int patience = 1 << 14;
    const struct memory_piece a = { out, out->spans, out->at }, b = { in, in->spans, in->at };
    if (apart(a, b) || (in->use == REPLACED && same(out, in)) || !overlap(a, b, &patience))
        return LOCI_OK;
    CHECK(e, in->use == WRITTEN, LOCI_BAD_ARG,
          "%s overlaps %s%s: an output must not overlap an input", out->name, in->name,
          in->use == REPLACED ? ", and is not the same view" : "");
    return loci_fail(e, LOCI_BAD_ARG, "%s and %s overlap: two outputs must not share memory",
                     out->name, in->name);
}

loci_status loci_check_regions(const struct regions *r, loci_error *e)
{
    for (int i = 0; i < r->n; i++) {
        const struct region *a = &r->list[i];
        CHECK(e, a->at % alignment_of(a->each) == 0, LOCI_BAD_ARG,
              "%s must be aligned to %zu bytes, as its numbers are", a->name,
              alignment_of(a->each));
        if (a->use != WRITTEN) continue;
        CHECK(e, !a->itself, LOCI_BAD_ARG,
              "%s: strides %td, %td, %td make rows of this output overlap", a->name, a->view.batch,
              a->view.head, a->view.row);
        /* Each pair of outputs is compared only once. */
        for (int k = 0; k < r->n; k++) {
            const loci_status status = k == i || (k < i && r->list[k].use == WRITTEN)
                                         ? LOCI_OK
                                         : check_pair(a, &r->list[k], e);
            if (status) return status;
        }
    }
    return LOCI_OK;
}
