/* SPDX-License-Identifier: MIT */
/* regions.c -- overlap of memory: what given.c tests by strides, against a map of every byte. */
#include <stdio.h>

#include "util/overlap.h"
#include <string.h>
#include "harness.h"
#include "walk.h"

enum { SPACE = 16384 };
struct shape {
    loci_view view;
    ptrdiff_t B, H, L, width;
    size_t each;
};

static int below(int n) { return (int)((walk_uniform() + 1) / 2 * n) % n; }

/* Strides in random order: dense, with gaps, or random. */
static struct shape any_shape(char *space)
{
    struct shape s = { .B = 1 + below(3),
                       .H = 1 + below(4),
                       .L = 1 + below(5),
                       .width = 1 + below(4),
                       .each = (size_t)1 << below(4) };
    ptrdiff_t *stride[] = { &s.view.batch, &s.view.head, &s.view.row }, count[] = { s.B, s.H, s.L },
              step = s.width;
    const int order = below(6), kind = below(4);
    static const int orders[6][3] = { { 2, 1, 0 }, { 1, 2, 0 }, { 2, 0, 1 },
                                      { 0, 2, 1 }, { 1, 0, 2 }, { 0, 1, 2 } };
    for (int i = 0; i < 3; i++) {
        const int n = orders[order][i];
        *stride[n] = kind == 3
                       ? below(12)
                       : step + (kind ? below(3) * below(2) : 0) + (kind == 2 ? s.width : 0);
        step = *stride[n] * count[n];
    }
    s.view.data = space + (size_t)below(40) * s.each;
    return s;
}
/* Marks its bytes.  False: one was already marked. */
static bool mark(const struct shape *s, const char *space, unsigned char *map, unsigned char bit)
{
    bool fresh = true;
    for (ptrdiff_t b = 0; b < s->B; b++)
        for (ptrdiff_t h = 0; h < s->H; h++)
            for (ptrdiff_t t = 0; t < s->L; t++)
                for (size_t i = 0; i < (size_t)s->width * s->each; i++) {
                    const size_t at =
                        (size_t)((char *)s->view.data - space)
                        + (size_t)(b * s->view.batch + h * s->view.head + t * s->view.row) * s->each
                        + i;
                    fresh &= !(map[at] & bit);
                    map[at] |= bit;
                }
    return fresh;
}
static void add(struct regions *r, const char *name, const struct shape *s, enum use_of use)
{
    loci_add_view(r, name, &s->view, s->B, s->H, s->L, s->width, s->each, use);
}

static void by_chance(void)
{
    static _Alignas(64) char space[SPACE];
    static unsigned char map[SPACE];
    int refused = 0, needlessly = 0;
    for (int n = 0; n < 8000; n++) {
        struct shape a = any_shape(space), b = any_shape(space);
        if (below(2)) {
            b.view.batch = a.view.batch;
            b.view.head = a.view.head;
            b.view.row = a.view.row;
            b.each = a.each;
        }
        b.view.data = space + (size_t)below(60) * b.each;
        struct regions r = { .n = 0 };
        memset(map, 0, sizeof map);
        const bool alone = mark(&a, space, map, 1);
        mark(&b, space, map, 2);
        bool shared = false;
        for (int i = 0; i < SPACE; i++) shared |= map[i] == 3;
        add(&r, "a", &a, WRITTEN);
        add(&r, "b", &b, READ);
        const bool right = alone && !shared, taken = loci_check_regions(&r, NULL) == LOCI_OK;
        refused += right;
        needlessly += right && !taken;
        CHECK_THAT(right || !taken,
                   "memory that overlaps is taken: a %td %td %td of %td %td %td x "
                   "%td, "
                   "b %td %td %td of %td %td %td x %td",
                   a.view.batch, a.view.head, a.view.row, a.B, a.H, a.L, a.width, b.view.batch,
                   b.view.head, b.view.row, b.B, b.H, b.L, b.width);
    }
    /* Random strides may interleave without meeting.  That case is treated as an overlap. */
    CHECK_THAT(needlessly * 20 < refused, "%d of %d that are refused do not overlap", needlessly,
               refused);
}

/* Common layouts: all of them disjoint, and each with one row too many. */
static void layouts(void)
{
    enum { B = 3, L = 70, H = 4, G = 2, D = 16, W = (H + 2 * G) * D };
    static float buffer[B * L * W + L * W];
    const loci_view q = { buffer, L * W, D, W }, k = { buffer + H * D, L * W, D, W },
                    v = { buffer + (H + G) * D, L * W, D, W };
    struct regions r = { .n = 0 };
    loci_add_view(&r, "q", &q, B, H, L, D, 4, WRITTEN);
    loci_add_view(&r, "k", &k, B, G, L, D, 4, WRITTEN);
    loci_add_view(&r, "v", &v, B, G, L, D, 4, WRITTEN);
    CHECK_THAT(!loci_check_regions(&r, NULL), "q, k and v in one buffer by tokens");
    const loci_view late = { buffer + H * D + 1, L * W, D, W };
    r.n = 1;
    loci_add_view(&r, "k", &k, B, G, L, D, 4, WRITTEN);
    loci_add_view(&r, "late", &late, B, G, L, D, 4, READ);
    CHECK_THAT(loci_check_regions(&r, NULL), "one number too late");
    /* By heads: rows of q followed by those of k. */
    const loci_view qh = { buffer, 2 * H * L * D, 2 * L * D, D },
                    kh = { buffer + L * D, 2 * H * L * D, 2 * L * D, D };
    r.n = 0;
    loci_add_view(&r, "q", &qh, 1, H, L, D, 4, WRITTEN);
    loci_add_view(&r, "k", &kh, 1, H, L, D, 4, WRITTEN);
    CHECK_THAT(!loci_check_regions(&r, NULL), "heads by turns");
    r.n = 1;
    loci_add_view(&r, "k", &kh, 1, H, L + 1, D, 4, WRITTEN);
    CHECK_THAT(loci_check_regions(&r, NULL), "heads by turns, and one row more");
    /* A list that begins in a gap of a view, and extends past it. */
    r.n = 1;
    loci_add_list(&r, "list", buffer + L * D, L * D, 4, READ);
    CHECK_THAT(!loci_check_regions(&r, NULL), "a list in the gap");
    r.n = 1;
    loci_add_list(&r, "list", buffer + L * D, L * D + 1, 4, READ);
    CHECK_THAT(loci_check_regions(&r, NULL), "a list longer than the gap");
    /* In place, and in place in another order. */
    const loci_view x = { buffer, H * L * D, L * D, D }, turned = { buffer, H * L * D, D, H * D };
    r.n = 0;
    loci_add_view(&r, "x", &x, B, H, L, D, 4, REPLACED);
    loci_add_view(&r, "y", &x, B, H, L, D, 4, WRITTEN);
    CHECK_THAT(!loci_check_regions(&r, NULL), "in place");
    r.n = 1;
    loci_add_view(&r, "y", &turned, B, H, L, D, 4, WRITTEN);
    CHECK_THAT(loci_check_regions(&r, NULL), "in place, transposed");
}

/* Many rows each, with strides that never agree: the answer must come at once. */
static void many_rows(void)
{
    const bool wide = PTRDIFF_MAX > INT32_MAX; /* else fewer, since no address is above 2^32 */
    const loci_view a = { (void *)4096, 0, 0, 7 }, b = { (void *)4112, 0, 0, 1001 };
    struct regions r = { .n = 0 };
    loci_add_view(&r, "a", &a, 1, 1, wide ? 1 << 30 : 1 << 26, 4, 4, WRITTEN);
    loci_add_view(&r, "b", &b, 1, 1, wide ? 1 << 24 : 1 << 18, 3, 4, READ);
    CHECK_THAT(loci_check_regions(&r, NULL), "endless rows");
}

int main(void)
{
    walk_restart(1);
    by_chance();
    layouts();
    many_rows();
    return harness_end();
}
