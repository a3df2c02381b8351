/* SPDX-License-Identifier: MIT */
/* layers_angles.c -- loci_running_angles().
 *
 *     far         after 262144 rows, an angle is right to half an ulp of pi
 *     bits        in one call, in chunks, token by token; on threads; in place
 *     segments    packed sequences = each of them alone
 *     gradients   those of a plain sum, of both states too
 *     rope        running sums of constant frequencies, as angles of attention, are rope
 *     misuse      one sentence, and nothing is written */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "loci/layers.h"
#include "contract/plan.h"
#include "harness.h"
#include "mem.h"
#include "reference/angle.h"
#include "walk.h"

static struct mem mem;
/* 2 pi is their sum, to 106 bits. */
static const double TURN = 0x1.921fb54442d18p2, TURN_REST = 2.4492935982947064e-16;

static loci_view at(const void *x) { return (loci_view){ (void *)x, 0, 0, 0 }; }
static void *numbers(size_t n, size_t each) { return mem_alloc(&mem, (n + 1) * each); }

/* ---- Far rows -------------------------------------------------------------------------------- */

static void far(void)
{
    enum { L = 262144, W = 4 };
    float *x = numbers(L * W, sizeof *x), *y = numbers(L * W, sizeof *y);
    double *wide = numbers(L * W, sizeof *wide), *exact = numbers(L * W, sizeof *exact);
    loci_layer l = LOCI_LAYER(.dtype = LOCI_F32, .batch = 1, .rows = L, .heads = 1, .width = W);
    for (int i = 0; i < L * W; i++) {
        x[i] = (float)((walk_uniform() + 1) / 2); /* all of one sign, so sums are large */
        wide[i] = x[i];
    }
    CHECK_THAT(!loci_running_angles(&l, at(x), NULL, 0, NULL, 0, NULL, NULL, at(y)), "far: float");
    l.dtype = LOCI_F64;
    CHECK_THAT(!loci_running_angles(&l, at(wide), NULL, 0, NULL, 0, NULL, NULL, at(exact)),
               "far: double");
    double off = 0, off_wide = 0, most = 0;
    for (int c = 0; c < W; c++) {
        precise sum = 0;
        for (int t = 0; t < L; t++) {
            sum += x[t * W + c];
            const precise turns = rint((double)sum / TURN);
            const double want = (double)(sum - turns * TURN - turns * TURN_REST);
            off = fmax(off, fabs(remainder((double)y[t * W + c] - want, TURN)));
            off_wide = fmax(off_wide, fabs(remainder(exact[t * W + c] - want, TURN)));
            most = fmax(most, fabs(exact[t * W + c]));
        }
    }
    CHECK_THAT(off <= 1.2e-7, "far: an angle in float is off by %.2e", off);
    CHECK_THAT(off_wide <= 1e-11, "far: an angle in double is off by %.2e", off_wide);
    CHECK_THAT(most <= TURN / 2 + 1e-15, "far: the angle %.17g", most);
}

/* ---- Bits ------------------------------------------------------------------------------------ */

enum { B = 2, H = 3, L = 29, W = 261, N = B * H * L * W, SUMS = B * H * W };
struct problem {
    float x[N], y[N], other[N], dy[N], dx[N];
    double rate[H * W], before[SUMS], after[SUMS], dafter[SUMS], drate[H * W], dbefore[SUMS];
};
static struct problem *draw(void)
{
    struct problem *p = numbers(1, sizeof *p);
    for (int i = 0; i < N; i++) {
        p->x[i] = (float)(5 * walk_uniform());
        p->dy[i] = (float)walk_uniform();
    }
    for (int i = 0; i < H * W; i++) p->rate[i] = 3 * walk_uniform();
    for (int i = 0; i < SUMS; i++) {
        p->before[i] = 3 * walk_uniform();
        p->dafter[i] = walk_uniform();
    }
    return p;
}
static loci_layer layer(void)
{
    return (loci_layer)LOCI_LAYER(.dtype = LOCI_F32, .batch = B, .rows = L, .heads = H, .width = W);
}
static loci_view from_row(float *x, int t) { return (loci_view){ x + t * W, H * L * W, L * W, W }; }

static void bits(struct problem *p, int exclusive)
{
    static const int cuts[][4] = { { 1, 1, 1, 1 }, { 4, 7, 2, 3 } };
    loci_layer l = layer();
    CHECK_THAT(!loci_running_angles(&l, at(p->x), p->rate, exclusive, NULL, 0, p->before, p->after,
                                    at(p->y)),
               "bits");
    for (int n = 0; n < COUNT(cuts); n++) {
        double sums[SUMS];
        memcpy(sums, p->before, sizeof sums);
        memset(p->other, 0xff, sizeof p->other);
        for (int t = 0, i = 0; t < L; t += (int)l.rows) {
            l.rows = cuts[n][i++ % 4];
            if (t + l.rows > L) l.rows = L - t;
            loci_running_angles(&l, from_row(p->x, t), p->rate, exclusive, NULL, 0, sums, sums,
                                from_row(p->other, t));
        }
        CHECK_THAT(!memcmp(p->other, p->y, sizeof p->y) && !memcmp(sums, p->after, sizeof sums),
                   "%s, exclusive %d: other bits", n ? "in chunks" : "token by token", exclusive);
    }
    loci_host host;
    if (loci_pool_create(&host, 3)) exit(2);
    l = layer();
    l.host = &host;
    memcpy(p->other, p->x, sizeof p->x);
    loci_running_angles(&l, at(p->other), p->rate, exclusive, NULL, 0, p->before, NULL,
                        at(p->other));
    CHECK_THAT(!memcmp(p->other, p->y, sizeof p->y), "in place, on threads: other bits");
    loci_pool_destroy(&host);

    l.host = NULL;
    l.rows = 0;
    double sums[SUMS];
    CHECK_THAT(!loci_running_angles(&l, at(NULL), NULL, exclusive, NULL, 0, p->before, sums,
                                    at(NULL))
                   && !memcmp(sums, p->before, sizeof sums),
               "no rows: the sum is another one");
}

/* ---- Segments -------------------------------------------------------------------------------- */

static void segments(struct problem *p, int exclusive)
{
    /* of one batch entry each; the second one starts and ends with padding */
    static const int cut[B][5] = { { 0, 6, 7, 20, L }, { 3, 4, 11, 27, 27 } };
    int64_t seg[B * L];
    const loci_layer l = layer();
    for (int i = 0; i < B * L; i++) seg[i] = -1 - i % 2;
    for (int b = 0; b < B; b++)
        for (int s = 0; s < 4; s++)
            for (int t = cut[b][s]; t < cut[b][s + 1]; t++) seg[b * L + t] = s % 2;
    memset(p->y, 0, sizeof p->y);
    memset(p->dx, 0, sizeof p->dx);
    double drate[H * W] = { 0 }, part[H * W], off = 0;
    for (int b = 0; b < B; b++)
        for (int s = 0; s < 4; s++) {
            const int t = cut[b][s];
            const loci_layer one = LOCI_LAYER(.dtype = LOCI_F32, .batch = 1,
                                              .rows = cut[b][s + 1] - t, .heads = H, .width = W);
            const ptrdiff_t entry = (ptrdiff_t)b * H * L * W;
            loci_running_angles(&one, from_row(p->x + entry, t), p->rate, exclusive, NULL, 0, NULL,
                                NULL, from_row(p->y + entry, t));
            loci_running_angles_backward(&one, from_row(p->x + entry, t), p->rate, exclusive, NULL,
                                         0, from_row(p->dy + entry, t), NULL,
                                         from_row(p->dx + entry, t), part, NULL);
            for (int i = 0; i < H * W; i++) drate[i] += part[i];
        }
    for (int b = 0; b < B; b++)
        for (int t = 0; t < L; t++)
            if (seg[b * L + t] < 0)
                for (int h = 0; h < H; h++) p->x[((b * H + h) * L + t) * W] = NAN; /* not read */
    loci_running_angles(&l, at(p->x), p->rate, exclusive, seg, 1, NULL, NULL, at(p->other));
    CHECK_THAT(!memcmp(p->other, p->y, sizeof p->y), "segments, exclusive %d", exclusive);
    loci_running_angles_backward(&l, at(p->x), p->rate, exclusive, seg, 1, at(p->dy), NULL,
                                 at(p->other), p->drate, NULL);
    for (int i = 0; i < H * W; i++) off = fmax(off, fabs(drate[i] - p->drate[i]));
    CHECK_THAT(!memcmp(p->other, p->dx, sizeof p->dx) && off < 1e-12,
               "segments, exclusive %d: gradients", exclusive);
    for (int i = 0; i < N; i++)
        if (isnan(p->x[i])) p->x[i] = 1;
}

/* ---- Gradients ------------------------------------------------------------------------------- */

/* By double loops: each dy_t reaches the increments that its sum contains. */
static void gradients(struct problem *p, int exclusive)
{
    const loci_layer l = layer();
    double off = 0, drate[H * W] = { 0 };
    CHECK_THAT(!loci_running_angles_backward(&l, at(p->x), p->rate, exclusive, NULL, 0, at(p->dy),
                                             p->dafter, at(p->dx), p->drate, p->dbefore),
               "gradients");
    for (int i = 0; i < SUMS; i++) {
        const int channel = i % (H * W);
        const ptrdiff_t first = (ptrdiff_t)(i / W) * L * W + i % W;
        double dbefore = p->dafter[i];
        for (int t = 0; t < L; t++) {
            double reach = p->dafter[i];
            for (int u = t + exclusive; u < L; u++) reach += p->dy[first + (ptrdiff_t)u * W];
            const double x = p->x[first + (ptrdiff_t)t * W], want = p->rate[channel] * reach;
            off = fmax(off, fabs(p->dx[first + (ptrdiff_t)t * W] - want) / (1 + fabs(want)));
            drate[channel] += x * reach;
            dbefore += p->dy[first + (ptrdiff_t)t * W];
        }
        off = fmax(off, fabs(p->dbefore[i] - dbefore));
    }
    CHECK_THAT(off < 1e-7, "gradients, exclusive %d: off by %.1e", exclusive, off);
    for (int i = 0; i < H * W; i++) off = fmax(off, fabs(p->drate[i] - drate[i]));
    CHECK_THAT(off < 1e-7, "gradients, exclusive %d: drate is off by %.1e", exclusive, off);

    double few[H * W];
    CHECK_THAT(!loci_running_angles_backward(&l, at(p->x), p->rate, exclusive, NULL, 0, at(p->dy),
                                             p->dafter, at(NULL), few, NULL)
                   && !memcmp(few, p->drate, sizeof few),
               "gradients: drate alone");
}

/* ---- Rope ------------------------------------------------------------------------------------ */

static void as_rope(void)
{
    enum { HEADS = 2, LEN = 150, DIM = 8, PAIRS = DIM / 2, TOKENS = HEADS * LEN };
    static float q[TOKENS * DIM], k[TOKENS * DIM], v[TOKENS * DIM], o[2][TOKENS * DIM],
        x[TOKENS * PAIRS], phi[TOKENS * PAIRS];
    double rate[HEADS * PAIRS];
    for (int i = 0; i < TOKENS * DIM; i++) {
        q[i] = (float)walk_uniform();
        k[i] = (float)walk_uniform();
        v[i] = (float)walk_uniform();
    }
    for (int i = 0; i < TOKENS * PAIRS; i++) x[i] = 1;
    for (int i = 0; i < HEADS * PAIRS; i++) rate[i] = pow(10000, -2.0 * (i % PAIRS) / DIM);
    const loci_layer l =
        LOCI_LAYER(.dtype = LOCI_F32, .batch = 1, .rows = LEN, .heads = HEADS, .width = PAIRS);
    CHECK_THAT(!loci_running_angles(&l, at(x), rate, 1, NULL, 0, NULL, NULL, at(phi)), "as rope");
    const void *inputs[] = { phi, phi };
    for (int given = 0; given < 2; given++) {
        loci_plan *p;
        const loci_desc d =
            LOCI_DESC(.encoding = given ? "angles:pairing=half" : "rope:pairing=half",
                      .heads = HEADS, .dim = DIM);
        loci_call c = LOCI_CALL(.batch = 1, .q_len = LEN, .k_len = LEN, .q = at(q), .k = at(k),
                                .v = at(v), .o = at(o[given]), .tensors = given ? inputs : NULL);
        if (loci_plan_create(&p, &d, NULL)) exit(2);
        void *tables = aligned_alloc(64, loci_tables_size(p, LEN) + 64);
        void *work = aligned_alloc(64, (loci_workspace(p, &c, 0) + 127) / 64 * 64);
        if (!tables || !work || loci_prepare(p, LEN, NULL, tables)) exit(2);
        CHECK_THAT(!loci_forward(p, tables, work, &c), "as rope: forward");
        free(tables);
        free(work);
        loci_plan_destroy(p);
    }
    double off = 0;
    for (int i = 0; i < TOKENS * DIM; i++) off = fmax(off, fabs((double)o[0][i] - (double)o[1][i]));
    CHECK_THAT(off < 1e-6, "constant frequencies: %.1e off rope", off);
}

/* ---- Misuse ---------------------------------------------------------------------------------- */

static void misuse(struct problem *p)
{
    loci_error e = { 0 };
    loci_layer l = layer();
    static const int64_t seg[L];
    l.error = &e;
    memset(p->y, 0x5a, sizeof p->y);
    memset(p->after, 0x5a, sizeof p->after);
    const loci_view x = at(p->x), y = at(p->y), dy = at(p->dy), dx = at(p->dx), none = at(NULL);
#define REFUSED(call, says) CHECK_SAYS(call, LOCI_BAD_ARG, &e, says)
    REFUSED(loci_running_angles(&l, none, NULL, 0, NULL, 0, NULL, NULL, y), "x must not be NULL");
    REFUSED(loci_running_angles(&l, x, NULL, 0, NULL, 0, NULL, NULL, none), "y must not be NULL");
    REFUSED(loci_running_angles(&l, x, NULL, 0, seg, 0, p->before, NULL, y),
            "seg must be NULL with before, which belongs to one sequence");
    REFUSED(loci_running_angles(&l, x, NULL, 0, seg, 0, NULL, p->after, y),
            "seg must be NULL with after");
    REFUSED(loci_running_angles(&l, x, (const double *)(const void *)p->y, 0, NULL, 0, NULL, NULL,
                                y),
            "y overlaps rate");
    REFUSED(loci_running_angles(&l, x, NULL, 0, NULL, 0, p->after + 1, p->after, y),
            "after overlaps before");
    REFUSED(loci_running_angles(&l, x, (const double *)(const void *)((char *)p->rate + 2), 0, NULL,
                                0, NULL, NULL, y),
            "rate must be aligned to");
    REFUSED(loci_running_angles_backward(&l, x, NULL, 0, NULL, 0, none, NULL, dx, NULL, NULL),
            "dy must not be NULL");
    REFUSED(loci_running_angles_backward(&l, x, NULL, 0, NULL, 0, dy, NULL, dy, NULL, NULL),
            "dx overlaps dy");
    REFUSED(loci_running_angles_backward(&l, x, NULL, 0, NULL, 0, dy, p->dafter, dx, NULL,
                                         p->dafter),
            "dbefore overlaps dafter");
    REFUSED(loci_running_angles_backward(&l, x, p->rate, 0, NULL, 0, dy, NULL, dx, p->rate, NULL),
            "drate overlaps rate");
    REFUSED(loci_running_angles_backward(&l, x, NULL, 0, seg, 0, dy, p->dafter, dx, NULL, NULL),
            "seg must be NULL with dafter");
    REFUSED(loci_running_angles_backward(&l, x, NULL, 0, seg, 0, dy, NULL, dx, NULL, p->dbefore),
            "seg must be NULL with dbefore");
    l.dtype = LOCI_F16;
    CHECK_SAYS(loci_running_angles(&l, x, NULL, 0, NULL, 0, NULL, NULL, y), LOCI_UNSUPPORTED, &e,
               "must be LOCI_F32 or LOCI_F64");
#undef REFUSED
    CHECK_THAT(loci_running_angles(NULL, x, NULL, 0, NULL, 0, NULL, NULL, y) == LOCI_BAD_ARG
                   && loci_running_angles_backward(NULL, x, NULL, 0, NULL, 0, dy, NULL, dx, NULL,
                                                   NULL)
                          == LOCI_BAD_ARG,
               "NULL: was accepted");
    bool untouched = true;
    for (size_t i = 0; i < sizeof p->y; i++)
        untouched = untouched && ((unsigned char *)p->y)[i] == 0x5a;
    for (size_t i = 0; i < sizeof p->after; i++)
        untouched = untouched && ((unsigned char *)p->after)[i] == 0x5a;
    CHECK_THAT(untouched, "a refused call wrote something");
}

int main(void)
{
    struct problem *p = draw();
    far();
    for (int exclusive = 0; exclusive < 2; exclusive++) {
        bits(p, exclusive);
        segments(p, exclusive);
        gradients(p, exclusive);
    }
    as_rope();
    misuse(p);
    mem_release(&mem, 0);
    return harness_end();
}
