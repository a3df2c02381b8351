/* SPDX-License-Identifier: MIT */
/* linear.c -- linear attention beyond the checks of the walk.
 *
 *     instruction sets, threads   the same bits, forward and all gradients
 *     states                      one call = any chunks = token by token; keys first and rows later
 *                                 = both at once
 *     packing                     sequences side by side = each of them alone
 *     long texts                  the sums' second part, against the reference in double
 *     NaN                         reaches no row that does not see it, and no key that no such row
 *                                 sees
 *     misuse                      one sentence, and nothing is written */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "contract/plan.h"
#include "reference/reference.h"
#include "harness.h"
#include "mem.h"
#include "walk.h"

enum { B = 2, H = 4, G = 2, D = 12, DV = 10, L = 300, TENSORS = 2, NUMBERS = 256 };

static const char *const texts[] = { "nope",
                                     "rope:pairing=half,base=300",
                                     "rope:pairing=interleaved,freq=given",
                                     "mixed:axes=2",
                                     "comrope:kind=ld,block=4",
                                     "liere:block=3",
                                     "fope:train_length=40,learn=1" };
/* ---- A problem in float, always the same one ------------------------------------------------- */

struct problem {
    float q[B * H * L * D], k[B * G * L * D], v[B * G * L * DV], dout[B * H * L * DV],
        tensor[TENSORS][NUMBERS];
    double coord[2 * L];
};
struct answer {
    float o[B * H * L * DV], dq[B * H * L * D], dk[B * G * L * D], dv[B * G * L * DV],
        dtensor[TENSORS][NUMBERS];
};

static struct problem in;
static const void *const tensors[TENSORS] = { in.tensor[0], in.tensor[1] };

static void fill(float *x, size_t n, double size)
{
    for (size_t i = 0; i < n; i++) x[i] = (float)(size * walk_uniform());
}
static void fill_problem(void)
{
    fill(in.q, COUNT(in.q), 1.5);
    fill(in.k, COUNT(in.k), 1.5);
    fill(in.v, COUNT(in.v), 1);
    fill(in.dout, COUNT(in.dout), 1);
    for (int i = 0; i < TENSORS; i++) fill(in.tensor[i], NUMBERS, 0.5);
    for (int i = 0; i < COUNT(in.coord); i++) in.coord[i] = walk_coordinate(40);
}

/* Rows q0 .. q0 + nq and keys k0 .. k0 + nk of the problem, dense views into it. */
static loci_call call_of(const loci_plan *p, struct answer *a, ptrdiff_t q0, ptrdiff_t nq,
                         ptrdiff_t k0, ptrdiff_t nk, double *coord)
{
    loci_call c = LOCI_CALL(.batch = B, .q_len = nq, .k_len = nk, .tensors = tensors,
                            .q = { in.q + q0 * D, H * L * D, L * D, D },
                            .k = { in.k + k0 * D, G * L * D, L * D, D },
                            .v = { in.v + k0 * DV, G * L * DV, L * DV, DV },
                            .o = { a->o + q0 * DV, H * L * DV, L * DV, DV });
    for (int axis = 0; axis < 2 && loci_axes(p) > 1; axis++) {
        memcpy(coord + axis * nq, in.coord + axis * L + q0, (size_t)nq * sizeof *coord);
        memcpy(coord + 2 * L + axis * nk, in.coord + axis * L + k0, (size_t)nk * sizeof *coord);
        c.q_coord = coord;
        c.k_coord = coord + 2 * L;
    }
    return c;
}
static loci_plan *plan_of(const char *text, const char *isa, bool full)
{
    loci_desc d = LOCI_DESC(.encoding = text, .stage = LOCI_LINEAR_ATTENTION, .heads = H,
                            .kv_heads = G, .dim = D, .value_dim = DV, .isa = isa, .full = full);
    loci_plan *p;
    loci_error e;
    if (loci_plan_create(&p, &d, &e)) {
        printf("%s: %s\n", text, e.text);
        exit(2);
    }
    return p;
}
static void *tables_of(const loci_plan *p)
{
    void *tables = mem_block(loci_tables_size(p, 10 * L));
    if (loci_prepare(p, 10 * L, tensors, tables)) exit(2);
    return tables;
}

/* All of it in one call. */
static bool whole(const char *text, const char *isa, int threads, bool full, struct answer *a)
{
    static double coord[4 * L];
    loci_plan *p = plan_of(text, isa, full);
    void *tables = tables_of(p), *dtensors[TENSORS] = { a->dtensor[0], a->dtensor[1] };
    loci_host host = { 0 };
    loci_error e = { 0 };
    loci_call c = call_of(p, a, 0, L, 0, L, coord);
    if (threads > 1 && loci_pool_create(&host, threads)) exit(2);
    c.host = threads > 1 ? &host : NULL;
    c.error = &e;
    const loci_grad g =
        LOCI_GRAD(.dout = { in.dout, 0, 0, 0 }, .dq = { a->dq, 0, 0, 0 }, .dk = { a->dk, 0, 0, 0 },
                  .dv = { a->dv, 0, 0, 0 }, .dtensors = dtensors);
    void *work = mem_block(loci_workspace(p, &c, 1));
    memset(a, 0xff, sizeof *a);
    memset(a->dtensor, 0, sizeof a->dtensor);
    const bool ok = !loci_linear_forward(p, tables, work, &c, NULL, NULL)
                 && !loci_linear_backward(p, tables, work, &c, &g);
    if (threads > 1) loci_pool_destroy(&host);
    free(work);
    free(tables);
    loci_plan_destroy(p);
    return CHECK_THAT(ok, "%s: %s", text, e.text);
}

static struct answer first, other;

static void machines(const char *text, bool full)
{
    const char *isas[8];
    const int count = loci_isas(isas, 8), threads[] = { 2, 3, 7 };
    whole(text, isas[0], 1, full, &first);
    for (int i = 1; i < count; i++)
        if (whole(text, isas[i], 1, full, &other))
            CHECK_THAT(!memcmp(&first, &other, sizeof first), "%s: %s", text, isas[i]);
    for (int i = 0; i < COUNT(threads); i++)
        if (whole(text, NULL, threads[i], full, &other))
            CHECK_THAT(!memcmp(&first, &other, sizeof first), "%s: threads", text);
}

/* ---- States ---------------------------------------------------------------------------------- */

static void chunks(const char *text)
{
    static const int cuts[][6] = { { 1, 1, 1, 1, 1, 1 },
                                   { 5, 1, 70, 3, 64, 1 },
                                   { 64, 64, 1, 63, 2, 62 },
                                   { 0, 250, 0, 0, 7, 43 } };
    static double coord[4 * L];
    whole(text, NULL, 1, false, &first);
    loci_plan *p = plan_of(text, NULL, false);
    void *tables = tables_of(p);
    const size_t bytes = loci_linear_state(p, B);
    void *at_once = mem_block(bytes);
    loci_call all = call_of(p, &first, 0, L, 0, L, coord);
    void *mem = mem_block(loci_workspace(p, &all, 0));
    CHECK_THAT(!loci_linear_forward(p, tables, mem, &all, NULL, at_once),
               "%s: with a state at the end", text);
    free(mem);
    for (int n = 0; n < COUNT(cuts); n++) {
        void *state[2] = { mem_block(bytes), mem_block(bytes) };
        loci_error e = { 0 };
        bool ok = true;
        memset(&other, 0xff, sizeof other);
        void *after = NULL;
        for (ptrdiff_t at = 0, i = 0; ok && at < L; i++) {
            const ptrdiff_t step = cuts[n][i % 6] < L - at ? cuts[n][i % 6] : L - at;
            loci_call c = call_of(p, &other, at, step, at, step, coord);
            void *work = mem_block(loci_workspace(p, &c, 0));
            c.error = &e;
            /* One buffer, or two that alternate. */
            const void *before = after;
            after = state[n % 2 ? 0 : i % 2];
            ok = !loci_linear_forward(p, tables, work, &c, before, after);
            free(work);
            at += step;
        }
        CHECK_THAT(ok, "%s: %s", text, e.text);
        CHECK_THAT(!memcmp(first.o, other.o, sizeof first.o), "%s: %s", text,
                   n ? "in chunks" : "token by token");
        CHECK_THAT(!memcmp(at_once, after, bytes), "%s: the state in the end", text);
        free(state[0]);
        free(state[1]);
    }
    free(at_once);
    free(tables);
    loci_plan_destroy(p);
}

/* With a full mask rows see all keys of the state: first all keys in two parts, then the rows. */
static void keys_first(const char *text)
{
    static double coord[4 * L];
    int64_t pos[L];
    for (int i = 0; i < L; i++) pos[i] = i;
    whole(text, NULL, 1, true, &first);
    loci_plan *p = plan_of(text, NULL, true);
    void *tables = tables_of(p), *state = mem_block(loci_linear_state(p, B));
    loci_error e = { 0 };
    bool ok = true;
    memset(&other, 0xff, sizeof other);
    for (int n = 0; ok && n < 3; n++) {
        loci_call c = call_of(p, &other, 0, n < 2 ? 0 : L, n ? 100 : 0,
                              n == 0   ? 100
                              : n == 1 ? L - 100
                                       : 0,
                              coord);
        void *work = mem_block(loci_workspace(p, &c, 0));
        c.error = &e;
        if (n == 2) c.q_pos = c.k_pos = pos;
        ok = !loci_linear_forward(p, tables, work, &c, n ? state : NULL, n < 2 ? state : NULL);
        free(work);
    }
    CHECK_THAT(ok, "%s: %s", text, e.text);
    CHECK_THAT(!memcmp(first.o, other.o, sizeof first.o), "%s: keys first, rows later", text);
    free(state);
    free(tables);
    loci_plan_destroy(p);
}

/* ---- Packing --------------------------------------------------------------------------------- */

static void packing(void)
{
    const char *text = "rope:pairing=half,base=300";
    /* padding, then three sequences */
    static const ptrdiff_t border[] = { 0, 20, 21, 150, L };
    int64_t seg[L], pos[L];
    for (int n = 0; n < 4; n++)
        for (ptrdiff_t i = border[n]; i < border[n + 1]; i++) {
            seg[i] = n - 1;
            pos[i] = i - border[n];
        }
    loci_plan *p = plan_of(text, NULL, false);
    void *tables = tables_of(p);
    loci_error e = { 0 };
    loci_call c = call_of(p, &first, 0, L, 0, L, NULL);
    c.q_seg = c.k_seg = seg;
    c.q_pos = c.k_pos = pos;
    c.error = &e;
    void *work = mem_block(loci_workspace(p, &c, 0));
    memset(&first, 0xff, sizeof first);
    memset(&other, 0, sizeof other);
    CHECK_THAT(!loci_linear_forward(p, tables, work, &c, NULL, NULL), "%s: %s", text, e.text);
    free(work);
    for (int n = 1; n < 4; n++) {
        loci_call alone = call_of(p, &other, border[n], border[n + 1] - border[n], border[n],
                                  border[n + 1] - border[n], NULL);
        work = mem_block(loci_workspace(p, &alone, 0));
        loci_linear_forward(p, tables, work, &alone, NULL, NULL);
        free(work);
    }
    CHECK_THAT(!memcmp(first.o, other.o, sizeof first.o), "%s: packed", text);
    free(tables);
    loci_plan_destroy(p);
}

/* ---- Long texts ------------------------------------------------------------------------------ */

static void long_text(bool full)
{
    enum { LONG = 2500, W = 6, N = LONG * W };
    static double q[2 * N], k[N], v[N], dout[2 * N], o[2][2 * N], dq[2][2 * N], dk[2][N], dv[2][N];
    for (int i = 0; i < 2 * N; i++) {
        q[i] = walk_uniform();
        dout[i] = walk_uniform();
    }
    for (int i = 0; i < N; i++) {
        k[i] = walk_uniform();
        v[i] = walk_uniform();
    }
    const char *text = "rope:pairing=half,base=500";
    const loci_desc d = LOCI_DESC(.encoding = text, .stage = LOCI_LINEAR_ATTENTION, .heads = 2,
                                  .kv_heads = 1, .dim = W, .dtype = LOCI_F64, .full = full);
    loci_plan *p;
    loci_error e = { 0 };
    if (loci_plan_create(&p, &d, &e)) exit(2);
    void *tables = mem_block(loci_tables_size(p, LONG));
    loci_prepare(p, LONG, NULL, tables);
    for (int n = 0; n < 2; n++) {
        const loci_call c = LOCI_CALL(.batch = 1, .q_len = LONG, .k_len = LONG, .q = { q, 0, 0, 0 },
                                      .k = { k, 0, 0, 0 }, .v = { v, 0, 0, 0 },
                                      .o = { o[n], 0, 0, 0 }, .error = &e);
        const loci_grad g = LOCI_GRAD(.dout = { dout, 0, 0, 0 }, .dq = { dq[n], 0, 0, 0 },
                                      .dk = { dk[n], 0, 0, 0 }, .dv = { dv[n], 0, 0, 0 });
        void *work = mem_block(loci_workspace(p, &c, 1));
        if (n) CHECK_THAT(!loci_reference_linear(p, NULL, &c, &g), "%s: %s", text, e.text);
        else
            CHECK_THAT(!loci_linear_forward(p, tables, work, &c, NULL, NULL)
                           && !loci_linear_backward(p, tables, work, &c, &g),
                       "%s: %s", text, e.text);
        free(work);
    }
    double most = 0;
    for (int i = 0; i < 2 * N; i++)
        most = fmax(most, fmax(fabs(o[0][i] - o[1][i]), fabs(dq[0][i] - dq[1][i])));
    for (int i = 0; i < N; i++)
        most = fmax(most, fmax(fabs(dk[0][i] - dk[1][i]), fabs(dv[0][i] - dv[1][i])));
    CHECK_CLOSE(most, 0, 1e-12, "%s: %s", text, full ? "a long text, full" : "a long text");
    free(tables);
    loci_plan_destroy(p);
}

/* ---- NaN ------------------------------------------------------------------------------------- */

static void not_a_number(void)
{
    const char *text = "rope:pairing=half,base=300";
    const ptrdiff_t at = 100; /* of the first kv head */
    static struct problem sound;
    sound = in;
    whole(text, NULL, 1, false, &first);
    in.v[at * DV] = NAN;
    in.k[at * D + 3] = INFINITY;
    whole(text, NULL, 1, false, &other);
    CHECK_THAT(!memcmp(first.o, other.o, (size_t)at * DV * sizeof(float)), "%s: rows before a NaN",
               text);
    CHECK_THAT(!memcmp(first.dq, other.dq, (size_t)at * D * sizeof(float)),
               "%s: dq of rows before a NaN", text);
    in = sound;
    for (int h = 0; h < 2; h++) in.q[(h * L + at) * D] = NAN;
    whole(text, NULL, 1, false, &other);
    CHECK_THAT(!memcmp(first.dk + (at + 1) * D, other.dk + (at + 1) * D,
                       (size_t)(L - at - 1) * D * sizeof(float)),
               "%s: dk of keys after a NaN", text);
    CHECK_THAT(!memcmp(first.dv + (at + 1) * DV, other.dv + (at + 1) * DV,
                       (size_t)(L - at - 1) * DV * sizeof(float)),
               "%s: dv of keys after a NaN", text);
    in = sound;
}

/* ---- Misuse ---------------------------------------------------------------------------------- */

static void plans(void)
{
    static const struct {
        loci_desc d;
        const char *says;
    } bad[] = {
        { LOCI_DESC(.encoding = "alibi"),
          "alibi does not support stage linear_attention, which accepts "
          "nope "
          "or a rotation" },
        { LOCI_DESC(.encoding = "sinusoidal"), "in stage embed" },
        { LOCI_DESC(.encoding = "xpos"), "a sum over keys cannot fade" },
        { LOCI_DESC(.encoding = "nope+rope:pairing=half"),
          "stage linear_attention accepts one encoding, not 2" },
        { LOCI_DESC(.encoding = "nope", .window_left = 5), "linear attention has no windows" },
        { LOCI_DESC(.encoding = "nope", .window_right = LOCI_NONE),
          "linear attention has no windows" },
        { LOCI_DESC(.encoding = "nope", .scale = 0.5), "has no scale" },
        { LOCI_DESC(.encoding = "rope:pairing=half", .keys_rotated = 1), "keys_rotated must be 0" },
    };
    for (int i = 0; i < COUNT(bad); i++) {
        loci_desc d = bad[i].d;
        loci_plan *p;
        loci_error e = { 0 };
        d.stage = LOCI_LINEAR_ATTENTION;
        d.heads = 2;
        d.dim = 8;
        const loci_status status = loci_plan_create(&p, &d, &e);
        CHECK_SAYS(status, LOCI_BAD_ARG, &e, bad[i].says);
        CHECK_THAT(!p, "%s: and yet there is a plan", bad[i].says);
    }
}
static void calls(void)
{
    loci_plan *p = plan_of("nope", NULL, false), *attention;
    loci_error e = { 0 };
    if (loci_plan_create(&attention,
                         &(loci_desc)LOCI_DESC(.heads = H, .kv_heads = G, .dim = D,
                                               .value_dim = DV),
                         &e))
        exit(2);
    void *tables = tables_of(p), *of_attention = tables_of(attention);
    loci_call c = call_of(p, &first, 0, 5, 0, 5, NULL);
    const size_t bytes = loci_linear_state(p, B);
    void *work = mem_block(loci_workspace(p, &c, 1)), *state = mem_block(bytes);
    loci_grad g = LOCI_GRAD(.dout = { in.dout, 0, 0, 0 });
    int64_t pos[] = { 0, 1, 2, 2, 1 }, good[] = { 0, 1, 2, 3, 4 }, seg[] = { 2, 2, 1, 1, 1 };
    float lse[B * H * 5];
    c.error = &e;
    memset(&first, 0x5a, sizeof first);
    CHECK_SAYS(loci_linear_forward(p, tables, work, &c, state, NULL), LOCI_BAD_ARG, &e,
               "before must be a state");
    CHECK_SAYS(loci_linear_forward(p, tables, work, &c, NULL, (char *)state + 8), LOCI_BAD_ARG, &e,
               "states must be aligned to 64 bytes");
    CHECK_SAYS(loci_linear_forward(attention, of_attention, work, &c, NULL, NULL), LOCI_BAD_ARG, &e,
               "stage LINEAR_ATTENTION");
    CHECK_SAYS(loci_forward(p, tables, work, &c), LOCI_BAD_ARG, &e, "stage ATTENTION");
    c.lse = lse;
    CHECK_SAYS(loci_linear_forward(p, tables, work, &c, NULL, NULL), LOCI_BAD_ARG, &e,
               "lse and rem must be NULL");
    c.lse = NULL;
    c.q_pos = pos;
    c.k_pos = good;
    CHECK_SAYS(loci_linear_forward(p, tables, work, &c, NULL, NULL), LOCI_BAD_ARG, &e,
               "row 4 has a lower one");
    c.q_pos = good;
    c.k_pos = pos;
    CHECK_SAYS(loci_linear_forward(p, tables, work, &c, NULL, NULL), LOCI_BAD_ARG, &e,
               "key 4 has a lower one");
    c.q_pos = c.k_pos = NULL;
    c.q_seg = c.k_seg = seg;
    CHECK_SAYS(loci_linear_forward(p, tables, work, &c, NULL, NULL), LOCI_BAD_ARG, &e,
               "segment numbers that never fall");
    CHECK_SAYS(loci_linear_forward(p, tables, work, &c, NULL, state), LOCI_BAD_ARG, &e,
               "a state belongs to one sequence");
    c.q_seg = c.k_seg = NULL;
    CHECK_SAYS(loci_linear_backward(p, tables, work, &c, NULL), LOCI_BAD_ARG, &e,
               "grad must not be NULL");
    g.dlse = lse;
    CHECK_SAYS(loci_linear_backward(p, tables, work, &c, &g), LOCI_BAD_ARG, &e,
               "dlse and drem must be NULL");
    CHECK_THAT(loci_linear_forward(p, tables, work, NULL, NULL, NULL) == LOCI_BAD_ARG
                   && loci_linear_forward(NULL, tables, work, &c, NULL, NULL) == LOCI_BAD_ARG
                   && loci_linear_backward(p, tables, work, NULL, &g) == LOCI_BAD_ARG,
               "NULL: was taken");
    CHECK_THAT(!loci_linear_state(NULL, 1) && !loci_linear_state(attention, 1)
                   && !loci_linear_state(p, -1) && !loci_linear_state(p, PTRDIFF_MAX),
               "loci_linear_state: of what has none");
    bool untouched = true;
    for (size_t i = 0; i < sizeof first.o; i++)
        untouched = untouched && ((unsigned char *)first.o)[i] == 0x5a;
    CHECK_THAT(untouched, "a refused call: wrote something");

    CHECK_THAT(!loci_linear_forward(p, tables, work, &c, NULL, state), "a good call: %s", e.text);
    c.batch = 1;
    CHECK_SAYS(loci_linear_forward(p, tables, work, &c, state, NULL), LOCI_BAD_ARG, &e,
               "of another plan or batch");
    free(state);
    free(work);
    free(tables);
    free(of_attention);
    loci_plan_destroy(p);
    loci_plan_destroy(attention);
}
static int yes(void *user)
{
    (void)user;
    return 1;
}
static void run_here(void *user, int n, void (*job)(void *, int), void *arg)
{
    (void)user;
    for (int i = 0; i < n; i++) job(arg, i);
}
static void cancelling(void)
{
    loci_plan *p = plan_of("nope", NULL, false);
    loci_error e = { 0 };
    loci_host host = { .run = run_here, .cancelled = yes, .threads = 1 };
    void *tables = tables_of(p), *state = mem_block(loci_linear_state(p, B));
    loci_call c = call_of(p, &first, 0, 5, 0, 5, NULL);
    void *work = mem_block(loci_workspace(p, &c, 1));
    c.host = &host;
    c.error = &e;
    CHECK_THAT(loci_linear_forward(p, tables, work, &c, NULL, state) == LOCI_CANCELLED,
               "cancelled: %s", e.text);
    c.host = NULL;
    CHECK_SAYS(loci_linear_forward(p, tables, work, &c, state, NULL), LOCI_BAD_ARG, &e,
               "before must be a state");
    free(state);
    free(work);
    free(tables);
    loci_plan_destroy(p);
}

int main(void)
{
    fill_problem();
    for (int i = 0; i < COUNT(texts); i++) {
        machines(texts[i], false);
        machines(texts[i], true);
        chunks(texts[i]);
        keys_first(texts[i]);
    }
    packing();
    long_text(false);
    long_text(true);
    not_a_number();
    plans();
    calls();
    cancelling();
    return harness_end();
}
