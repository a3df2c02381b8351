/* SPDX-License-Identifier: MIT */
/* laws.c -- laws of every encoding, whatever it computes: shifting all positions, values that are
 * all 1 or all larger, and biases whose gradients cancel. */
#include <math.h>
#include <string.h>

#include "attend.h"
#include "harness.h"

enum { H = 2, D = 12, L = 140 };

/* The places of a text's encodings, and whether one of them has this name. */
static int places(const char *text)
{
    const loci_encoding_info *list;
    int all = 0;
    const int count = loci_encodings(&list);
    for (; text; text = strchr(text, '+') ? strchr(text, '+') + 1 : NULL)
        for (int i = 0; i < count; i++)
            if (strcspn(text, ":+") == strlen(list[i].name)
                && !strncmp(text, list[i].name, strlen(list[i].name)))
                all |= list[i].places;
    return all;
}

static struct attend task(const char *text)
{
    static double coord[3 * L];
    for (int i = 0; i < 3 * L; i++) coord[i] = i % 23;
    const double *where = strstr(text, "rope2d") || strstr(text, "mixed") || strstr(text, "mrope")
                               || strstr(text, "liere")
                            ? coord
                            : NULL;
    return (struct attend){ .q_coord = where,
                            .k_coord = where,
                            .desc = LOCI_DESC(.encoding = text, .heads = H,
                                              .dim = walk_dim(text, D), .max_len = L),
                            .q_len = L,
                            .k_len = L,
                            .seed = 2 };
}
static double apart(const double *a, const double *b, double times, ptrdiff_t n)
{
    double most = 0;
    for (ptrdiff_t i = 0; i < n; i++) {
        const double d = times * a[i] == b[i] ? 0 : fabs(times * a[i] - b[i]) / (1 + fabs(b[i]));
        if (isnan(d)) return INFINITY;
        most = fmax(most, d);
    }
    return most;
}

/* Tables of distances are shift invariant. fire and tables of positions are not, and a rotation
 * uses larger angles. */
static void moved(const char *text)
{
    static int64_t pos[L], later[L];
    static double later_coord[3 * L];
    for (int i = 0; i < L; i++) {
        pos[i] = i;
        later[i] = i + (1 << 20);
    }
    for (int i = 0; i < 3 * L; i++) later_coord[i] = i % 23 + 4096;
    struct attend a = task(text), b = task(text);
    const bool ordered_sum = places(text) & LOCI_PLACE_ROTATE;
    a.q_pos = a.k_pos = pos;
    b.q_pos = b.k_pos = later;
    if (b.q_coord) b.q_coord = b.k_coord = later_coord;
    attend(&a);
    attend(&b);
    const ptrdiff_t n = (ptrdiff_t)H * L * a.desc.dim;
    const double off =
        fmax(apart(a.o, b.o, 1, n), fmax(apart(a.dq, b.dq, 1, n), apart(a.dk, b.dk, 1, n)));
    CHECK_THAT(off <= (ordered_sum ? 3e-5 : 0), "%s: moving all positions changes nothing", text);
    attend_free(&a);
    attend_free(&b);
}

static void values(const char *text)
{
    static double one[H * L * 2 * D], v[H * L * 2 * D], larger[H * L * 2 * D];
    walk_restart(8);
    for (int i = 0; i < H * L * 2 * D; i++) {
        one[i] = 1;
        v[i] = (float)walk_uniform();
        larger[i] = 32 * v[i];
    }
    struct attend a = task(text), b = task(text), c = task(text);
    a.v = v;
    b.v = larger;
    c.v = one;
    attend(&a);
    attend(&b);
    attend(&c);
    const ptrdiff_t n = (ptrdiff_t)H * L * a.desc.dim;
    CHECK_THAT(apart(a.o, b.o, 32, n) == 0 && apart(a.dv, b.dv, 1, n) == 0,
               "%s: values 32 times as large give outputs 32 times as large, bit by bit", text);
    if (!(places(text) & (LOCI_PLACE_WEIGHT | LOCI_PLACE_SUM)) && !strstr(text, "values=1")) {
        double off = 0;
        for (ptrdiff_t i = 0; i < n; i++) off = fmax(off, fabs(c.o[i] - 1));
        CHECK_CLOSE(off, 0, 1e-6, "%s: values that are all 1 give 1", text);
    }
    attend_free(&a);
    attend_free(&b);
    attend_free(&c);
}

int main(void)
{
    for (struct walk_text t = { 0 }; walk_next(&t);) {
        const char *text = t.text;
        const int where = places(text);
        /* Terms that read queries or keys alone read them rotated, if there is a rotation; so do
         * gates, which may differ in the two channels of a pair. */
        const bool alone = strstr(text, "cope") || strstr(text, "shaw") || strstr(text, "xl")
                        || strstr(text, "deberta") || walk_moves(text);
        /* Generators that do not commute, sums of waves, and counts of positions are absolute. */
        const bool absolute = strstr(text, "fire") || strstr(text, "fope") || strstr(text, "liere")
                           || strstr(text, "count=position") || strstr(text, "selfextend")
                           || strstr(text, "dca:");
        /* these depend on absolute positions by rounding */
        const bool rounded = strstr(text, "angles=f32");
        if (!absolute && !rounded && !(alone && where & LOCI_PLACE_ROTATE)) moved(text);
        if (!t.square && !(where & LOCI_PLACE_VALUE) && !strstr(text, "vector")
            && !strstr(text, "remainder=value"))
            values(text);
    }
    return harness_end();
}
