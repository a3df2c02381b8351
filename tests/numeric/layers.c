/* SPDX-License-Identifier: MIT */
/* layers.c -- the functions of loci/layers.h.
 *
 *     one by one     against plain definitions in double, gradients against 4-point central
 *                    differences of them; in float to its precision; with other strides, in place
 *                    and on threads: the same bits
 *     shift          packed sequences = each of them alone; with states, any chunks = the whole
 *     FoX (Pro)      the whole layer: its gradient against differences of definition and reference;
 *                    token by token = the whole
 *     misuse         one sentence, and nothing is written */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "loci/layers.h"
#include "contract/plan.h"
#include "reference/reference.h"
#include "harness.h"
#include "walk.h"

enum { MAX = 2 * 3 * 9 * 300 };
static const double EPS = 1e-5;

/* ---- The functions and their definitions ----------------------------------------------------- */

enum op { NORM, NORM_ONES, SHIFT, SHIFT_PACKED, LOG_GATE, GATE, SILU, OPS };
static const char *const names[] = { "rmsnorm",       "rmsnorm without weight",
                                     "shift",         "shift, packed",
                                     "log gate",      "gate",
                                     "gate with silu" };

struct shape {
    int B, H, L, W;
};
static const struct shape shapes[] = {
    { 1, 1, 1, 1 }, { 2, 3, 9, 5 }, { 1, 2, 4, 300 }, { 2, 1, 8, 64 }
};
static const int64_t seg[] = { -1, 3, 3, 3, 0, 0, 7, 7, 7 };

static int width_of(enum op op, const struct shape *s) { return op == LOG_GATE ? 1 : s->W; }
static size_t rows_of(const struct shape *s) { return (size_t)(s->B * s->H * s->L); }
static size_t first_count(enum op op, const struct shape *s)
{
    return rows_of(s) * (size_t)width_of(op, s);
}
static size_t second_count(enum op op, const struct shape *s)
{
    return op == NORM                        ? (size_t)(s->H * s->W)
         : op == SHIFT || op == SHIFT_PACKED ? rows_of(s)
         : op == GATE || op == SILU          ? first_count(op, s)
                                             : 0;
}
static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* One row of the output. z is the weight, the logits of the shift, or the gate. */
static void define_row(enum op op, const struct shape *s, int h, int t, size_t row, const double *x,
                       const double *z, double *y)
{
    const int W = width_of(op, s);
    const double *in = x + row * (size_t)W;
    double square = 0;
    for (int c = 0; c < W; c++) square += in[c] * in[c];
    const bool packed = op == SHIFT_PACKED, alone = t == 0 || (packed && seg[t] != seg[t - 1]);
    for (int c = 0; c < W; c++) {
        const double gate = op == GATE || op == SILU ? z[row * (size_t)W + (size_t)c] : 0,
                     last = alone ? 0 : in[c - W];
        const double a = op == SHIFT || packed ? sigmoid(z[row]) : 0;
        double out = 0;
        switch (op) {
        case NORM:
            out = z[h * W + c] * in[c] / sqrt(square / W + EPS);
            break;
        case NORM_ONES:
            out = in[c] / sqrt(square / W + EPS);
            break;
        case SHIFT:
            out = a * last + (1 - a) * in[c];
            break;
        case SHIFT_PACKED:
            out = seg[t] < 0 ? 0 : a * last + (1 - a) * in[c];
            break;
        case LOG_GATE:
            out = -log1p(exp(-in[c]));
            break;
        case GATE:
            out = in[c] * sigmoid(gate);
            break;
        default:
            out = in[c] * gate * sigmoid(gate);
        }
        y[row * (size_t)W + (size_t)c] = out;
    }
}
static void define(enum op op, const struct shape *s, const double *x, const double *z, double *y)
{
    size_t row = 0;
    for (int b = 0; b < s->B; b++)
        for (int h = 0; h < s->H; h++)
            for (int t = 0; t < s->L; t++) define_row(op, s, h, t, row++, x, z, y);
}

static loci_status forward(enum op op, const loci_layer *l, loci_view x, loci_view z, loci_view y)
{
    switch (op) {
    case NORM:
    case NORM_ONES:
        return loci_rmsnorm(l, x, z.data, EPS, y);
    case SHIFT:
    case SHIFT_PACKED:
        return loci_shift(l, x, z, op == SHIFT ? NULL : seg, 0, NULL, NULL, y);
    case LOG_GATE:
        return loci_log_gate(l, x, y);
    default:
        return loci_gate(l, op == GATE ? LOCI_SIGMOID : LOCI_SILU, x, z, y);
    }
}
static loci_status backward(enum op op, const loci_layer *l, loci_view x, loci_view z, loci_view dy,
                            loci_view dx, loci_view dz)
{
    switch (op) {
    case NORM:
    case NORM_ONES:
        return loci_rmsnorm_backward(l, x, z.data, EPS, dy, dx, dz.data);
    case SHIFT:
    case SHIFT_PACKED:
        return loci_shift_backward(l, x, z, op == SHIFT ? NULL : seg, 0, dy, dx, dz);
    case LOG_GATE:
        return loci_log_gate_backward(l, x, dy, dx);
    default:
        return loci_gate_backward(l, op == GATE ? LOCI_SIGMOID : LOCI_SILU, x, z, dy, dx, dz);
    }
}

/* ---- One by one ------------------------------------------------------------------------------ */

/* Inputs (exact in float), the cotangent, and the results: y, dx, dz. */
static double x[MAX], z[MAX], dy[MAX], y[MAX], dx[MAX], dz[MAX], other[MAX], moved[MAX];
static float fx[MAX], fz[MAX], fdy[MAX], fy[MAX], fdx[MAX], fdz[MAX], fother[MAX];

static void fill(double *v, size_t n, double size)
{
    for (size_t i = 0; i < n; i++) v[i] = (float)(size * walk_uniform());
}
static void to_float(float *to, const double *from, size_t n)
{
    for (size_t i = 0; i < n; i++) to[i] = (float)from[i];
}
static double loss(enum op op, const struct shape *s, const double *a, const double *b)
{
    double sum = 0;
    define(op, s, a, b, other);
    for (size_t i = 0; i < first_count(op, s); i++) sum += dy[i] * other[i];
    return sum;
}
/* Slope of the loss along a random direction in one input, against the gradient. */
static bool slope_fits(enum op op, const struct shape *s, bool second, const double *gradient)
{
    const size_t n = second ? second_count(op, s) : first_count(op, s);
    const double *from = second ? z : x, h = 0x1p-12;
    static double u[MAX];
    double got = 0, sum = 0;
    for (size_t i = 0; i < n; i++) {
        u[i] = walk_uniform();
        got += u[i] * gradient[i];
    }
    for (int k = -2; k <= 2; k++) {
        const double factor[] = { 1, -8, 0, 8, -1 };
        for (size_t i = 0; i < n; i++) moved[i] = from[i] + k * h * u[i];
        if (k) sum += factor[k + 2] * loss(op, s, second ? x : moved, second ? moved : z);
    }
    return fabs(sum / (12 * h) - got) <= 1e-9 * (1 + fabs(got));
}
static bool near(const double *want, const double *got, const float *rough, size_t n, double bound)
{
    double most = 0, off = 0;
    for (size_t i = 0; i < n; i++) most = fmax(most, fabs(want[i]));
    for (size_t i = 0; i < n; i++) {
        const double d = fabs(want[i] - (rough ? (double)rough[i] : got[i]));
        if (!(d <= off)) off = isnan(d) ? INFINITY : d;
    }
    return off <= bound * (1 + most);
}

static loci_view at(void *data) { return (loci_view){ data, 0, 0, 0 }; }

static void one(enum op op, const struct shape *s)
{
    const size_t n = first_count(op, s), m = second_count(op, s);
    loci_error e = { 0 };
    loci_layer l = LOCI_LAYER(.dtype = LOCI_F64, .batch = s->B, .rows = s->L, .heads = s->H,
                              .width = s->W, .error = &e);
    fill(x, n, 3);
    fill(z, m, 3);
    fill(dy, n, 1);
    memset(y, 0xff, sizeof y);
    memset(dx, 0xff, sizeof dx);
    memset(dz, 0xff, sizeof dz);
    double *const second = m ? z : NULL;
    CHECK_THAT(!forward(op, &l, at(x), at(second), at(y))
                   && !backward(op, &l, at(x), at(second), at(dy), at(dx), at(dz)),
               "%s: %s", names[op], e.text);
    define(op, s, x, z, other);
    CHECK_THAT(near(other, y, NULL, n, 1e-14), "%s: differs from its definition", names[op]);
    CHECK_THAT(slope_fits(op, s, false, dx), "%s: gradient of the first input", names[op]);
    if (m) CHECK_THAT(slope_fits(op, s, true, dz), "%s: gradient of the second input", names[op]);

    to_float(fx, x, n);
    to_float(fz, z, m);
    to_float(fdy, dy, n);
    l.dtype = LOCI_F32;
    CHECK_THAT(!forward(op, &l, at(fx), at(m ? fz : NULL), at(fy))
                   && !backward(op, &l, at(fx), at(m ? fz : NULL), at(fdy), at(fdx), at(fdz)),
               "%s: %s", names[op], e.text);
    CHECK_THAT(near(y, NULL, fy, n, 1e-7) && near(dx, NULL, fdx, n, 1e-7)
                   && near(dz, NULL, fdz, m, 1e-7),
               "%s: in float", names[op]);

    /* Rows of all heads side by side, and on threads. */
    const ptrdiff_t W = width_of(op, s), HW = s->H * W;
    loci_view xt = { fother, s->L * HW, W, HW };
    for (int b = 0; b < s->B; b++)
        for (int h = 0; h < s->H; h++)
            for (int t = 0; t < s->L; t++)
                memcpy(fother + b * s->L * HW + t * HW + h * W,
                       fx + ((b * s->H + h) * s->L + t) * W, (size_t)W * sizeof *fx);
    static float again[MAX], gradient[MAX];
    loci_host host;
    if (loci_pool_create(&host, 3)) exit(2);
    l.host = &host;
    CHECK_THAT(!forward(op, &l, xt, at(m ? fz : NULL), at(again))
                   && !memcmp(again, fy, n * sizeof *fy),
               "%s: with other strides, on threads", names[op]);
    CHECK_THAT(!backward(op, &l, at(fx), at(m ? fz : NULL), at(fdy), at(again), at(gradient))
                   && !memcmp(again, fdx, n * sizeof *fdx)
                   && !memcmp(gradient, fdz, m * sizeof *fdz),
               "%s: backward on threads", names[op]);
    loci_pool_destroy(&host);
    l.host = NULL;
    if (op == SHIFT || op == SHIFT_PACKED) return;
    memcpy(again, fx, n * sizeof *fx);
    CHECK_THAT(!forward(op, &l, at(again), at(m ? fz : NULL), at(again))
                   && !memcmp(again, fy, n * sizeof *fy),
               "%s: in place", names[op]);
}

/* Far out the gates saturate, and logarithms preserve small numbers. */
static void far_out(void)
{
    static const double far[] = { -1e300, -1000, -745, -700, -40,   -1,       -1e-20,    0,
                                  1e-20,  1,     40,   700,  1e300, INFINITY, -INFINITY, NAN };
    const loci_layer l =
        LOCI_LAYER(.dtype = LOCI_F64, .batch = 1, .rows = COUNT(far), .heads = 1, .width = 1);
    double ones[COUNT(far)], got[COUNT(far)], s[COUNT(far)];
    for (int i = 0; i < COUNT(far); i++) ones[i] = 1;
    loci_log_gate(&l, at((void *)far), at(got));
    loci_gate(&l, LOCI_SIGMOID, at(ones), at((void *)far), at(s));
    bool ok = true;
    for (int i = 0; i < COUNT(far); i++) {
        const double p = far[i] < -700 ? 0 : 1 / (1 + exp(-far[i])),
                     log_p = far[i] < 0 ? far[i] - log1p(exp(far[i])) : -log1p(exp(-far[i]));
        ok = ok
          && (isnan(far[i]) ? isnan(got[i]) && isnan(s[i])
                            : (got[i] == log_p || fabs(got[i] - log_p) <= 1e-15 * fabs(log_p))
                                  && fabs(s[i] - p) <= 4e-16 * p + 1e-300);
    }
    CHECK_THAT(ok, "gates: far out");
}

/* ---- Shift ----------------------------------------------------------------------------------- */

static void chunks(void)
{
    enum { B = 2, H = 3, L = 9, W = 5, N = B * H * L * W };
    static const int cuts[][4] = { { 1, 1, 1, 1 }, { 4, 0, 2, 3 } };
    loci_layer l = LOCI_LAYER(.dtype = LOCI_F32, .batch = B, .rows = L, .heads = H, .width = W);
    fill(x, N, 3);
    fill(z, N, 3);
    to_float(fx, x, N);
    to_float(fz, z, N);
    loci_shift(&l, at(fx), at(fz), NULL, 0, NULL, NULL, at(fy));
    for (int n = 0; n < COUNT(cuts); n++) {
        float state[B * H * W];
        memset(fother, 0xff, sizeof fother);
        for (int t = 0, i = 0; t < L; t += cuts[n][i++ % 4]) {
            l.rows = cuts[n][i % 4];
            loci_shift(&l, (loci_view){ fx + t * W, H * L * W, L * W, W },
                       (loci_view){ fz + t, H * L, L, 1 }, NULL, 0, t ? state : NULL, state,
                       (loci_view){ fother + t * W, H * L * W, L * W, W });
        }
        CHECK_THAT(!memcmp(fother, fy, N * sizeof *fy), "shift: %s",
                   n ? "in chunks" : "token by token");
    }
}

/* ---- FoX (Pro) ------------------------------------------------------------------------------- */

enum { H = 4, G = 2, L = 11, D = 6, Q = H * L * D, K = G * L * D };
/* The outputs of the projections, and the weights of the norms; and all gradients, in the same
 * order. */
enum { IN_Q, IN_K, IN_V, IN_AK, IN_AV, IN_F, IN_GATE, IN_NQ, IN_NK, IN_NO, INS };
static const int sizes[INS] = { Q, K, K, G *L, G *L, H *L, Q, H *D, G *D, H *D };
static const char *const inputs[INS] = { "q",          "k",           "v",           "shift of k",
                                         "shift of v", "forget gate", "output gate", "norm of q",
                                         "norm of k",  "norm of o" };

static const struct shape by_head = { 1, H, L, D }, by_kv_head = { 1, G, L, D };

static double layer_loss(const loci_plan *p, double *const *in)
{
    static double q[Q], ks[K], k[K], v[K], log_f[H * L], o[Q], on[Q], out[Q];
    define(SHIFT, &by_kv_head, in[IN_K], in[IN_AK], ks);
    define(SHIFT, &by_kv_head, in[IN_V], in[IN_AV], v);
    define(NORM, &by_head, in[IN_Q], in[IN_NQ], q);
    define(NORM, &by_kv_head, ks, in[IN_NK], k);
    define(LOG_GATE, &by_head, in[IN_F], NULL, log_f);
    const void *tensors[] = { log_f };
    const loci_call c = LOCI_CALL(.batch = 1, .q_len = L, .k_len = L, .q = at(q), .k = at(k),
                                  .v = at(v), .o = at(o), .tensors = tensors);
    if (loci_reference(p, tensors, &c, NULL)) return NAN;
    define(NORM, &by_head, o, in[IN_NO], on);
    define(GATE, &by_head, on, in[IN_GATE], out);
    double sum = 0;
    for (int i = 0; i < Q; i++) sum += dy[i] * out[i];
    return sum;
}

/* The layer by the library, in the type of the plan: rows from .. from + n of buffers for L rows.
 * The cache is k, v, log_f.  The states are those of the shifts. */
struct layer {
    const loci_plan *plan;
    void *tables, *work;
    loci_dtype dtype;
    size_t real;
    void *in[INS];
    void *q, *ks, *k, *v, *log_f, *o, *on, *out, *lse, *state[2];
};
static loci_view part(const struct layer *a, void *data, int width, int from)
{
    return (loci_view){ (char *)data + (size_t)(from * width) * a->real, 0, (ptrdiff_t)L * width,
                        width };
}
static bool layer_forward(const struct layer *a, int from, int n)
{
    const loci_layer heads = LOCI_LAYER(.dtype = a->dtype, .batch = 1, .rows = n, .heads = H,
                                        .width = D),
                     kv = LOCI_LAYER(.dtype = a->dtype, .batch = 1, .rows = n, .heads = G,
                                     .width = D);
    void *const before[] = { from ? a->state[0] : NULL, from ? a->state[1] : NULL };
    /* The gates so far, in the dense form of the cache of `fox`. */
    static char gates[H * L * sizeof(double)];
    bool ok = !loci_shift(&kv, part(a, a->in[IN_K], D, from), part(a, a->in[IN_AK], 1, from), NULL,
                          0, before[0], a->state[0], part(a, a->ks, D, from))
           && !loci_shift(&kv, part(a, a->in[IN_V], D, from), part(a, a->in[IN_AV], 1, from), NULL,
                          0, before[1], a->state[1], part(a, a->v, D, from))
           && !loci_rmsnorm(&heads, part(a, a->in[IN_Q], D, from), a->in[IN_NQ], EPS,
                            part(a, a->q, D, from))
           && !loci_rmsnorm(&kv, part(a, a->ks, D, from), a->in[IN_NK], EPS, part(a, a->k, D, from))
           && !loci_log_gate(&heads, part(a, a->in[IN_F], 1, from), part(a, a->log_f, 1, from));
    for (int h = 0; h < H; h++)
        memcpy(gates + (size_t)(h * (from + n)) * a->real,
               (char *)a->log_f + (size_t)(h * L) * a->real, (size_t)(from + n) * a->real);
    const void *tensors[] = { gates };
    loci_view k = part(a, a->k, D, 0), v = part(a, a->v, D, 0);
    k.batch = v.batch = 0;
    const loci_call c =
        LOCI_CALL(.batch = 1, .q_len = n, .k_len = from + n, .q = part(a, a->q, D, from), .k = k,
                  .v = v, .o = part(a, a->o, D, from), .lse = from || n < L ? NULL : a->lse,
                  .tensors = tensors);
    return ok && !loci_forward(a->plan, a->tables, a->work, &c)
        && !loci_rmsnorm(&heads, part(a, a->o, D, from), a->in[IN_NO], EPS, part(a, a->on, D, from))
        && !loci_gate(&heads, LOCI_SIGMOID, part(a, a->on, D, from),
                      part(a, a->in[IN_GATE], D, from), part(a, a->out, D, from));
}
static bool layer_backward(const struct layer *a, double **d)
{
    static double don[Q], dout_o[Q], dqn[Q], dkn[K], dks[K], dvs[K], dlog_f[H * L];
    const loci_layer heads = LOCI_LAYER(.dtype = LOCI_F64, .batch = 1, .rows = L, .heads = H,
                                        .width = D),
                     kv = LOCI_LAYER(.dtype = LOCI_F64, .batch = 1, .rows = L, .heads = G,
                                     .width = D);
    const void *tensors[] = { a->log_f };
    void *dtensors[] = { dlog_f };
    const loci_call c = LOCI_CALL(.batch = 1, .q_len = L, .k_len = L, .q = at(a->q), .k = at(a->k),
                                  .v = at(a->v), .o = at(a->o), .lse = a->lse, .tensors = tensors);
    const loci_grad g = LOCI_GRAD(.dout = at(dout_o), .dq = at(dqn), .dk = at(dkn), .dv = at(dvs),
                                  .dtensors = dtensors);
    return !loci_gate_backward(&heads, LOCI_SIGMOID, at(a->on), at(a->in[IN_GATE]), at(dy), at(don),
                               at(d[IN_GATE]))
        && !loci_rmsnorm_backward(&heads, at(a->o), a->in[IN_NO], EPS, at(don), at(dout_o),
                                  d[IN_NO])
        && !loci_backward(a->plan, a->tables, a->work, &c, &g)
        && !loci_log_gate_backward(&heads, at(a->in[IN_F]), at(dlog_f), at(d[IN_F]))
        && !loci_rmsnorm_backward(&kv, at(a->ks), a->in[IN_NK], EPS, at(dkn), at(dks), d[IN_NK])
        && !loci_rmsnorm_backward(&heads, at(a->in[IN_Q]), a->in[IN_NQ], EPS, at(dqn), at(d[IN_Q]),
                                  d[IN_NQ])
        && !loci_shift_backward(&kv, at(a->in[IN_V]), at(a->in[IN_AV]), NULL, 0, at(dvs),
                                at(d[IN_V]), at(d[IN_AV]))
        && !loci_shift_backward(&kv, at(a->in[IN_K]), at(a->in[IN_AK]), NULL, 0, at(dks),
                                at(d[IN_K]), at(d[IN_AK]));
}

static void *zeros(size_t n)
{
    void *p = calloc(n + 1, sizeof(double));
    if (!p) exit(2);
    return p;
}
static struct layer open_layer(loci_dtype dtype, double *const *in)
{
    struct layer a = { .dtype = dtype, .real = dtype == LOCI_F64 ? sizeof(double) : sizeof(float) };
    loci_plan *p;
    if (loci_plan_create(&p,
                         &(loci_desc)LOCI_DESC(.encoding = "fox", .heads = H, .kv_heads = G,
                                               .dim = D, .dtype = dtype),
                         NULL))
        exit(2);
    const loci_call c = LOCI_CALL(.batch = 1, .q_len = L, .k_len = L);
    a.plan = p;
    a.tables = aligned_alloc(64, loci_tables_size(p, L));
    a.work = aligned_alloc(64, loci_workspace(p, &c, 1));
    if (!a.tables || !a.work || loci_prepare(p, L, NULL, a.tables)) exit(2);
    for (int i = 0; i < INS; i++) {
        a.in[i] = zeros((size_t)sizes[i]);
        if (dtype == LOCI_F64) memcpy(a.in[i], in[i], (size_t)sizes[i] * sizeof(double));
        else to_float(a.in[i], in[i], (size_t)sizes[i]);
    }
    void **buffers[] = { &a.q,  &a.ks,  &a.k,   &a.v,        &a.log_f,   &a.o,
                         &a.on, &a.out, &a.lse, &a.state[0], &a.state[1] };
    for (int i = 0; i < COUNT(buffers); i++) *buffers[i] = zeros(Q);
    return a;
}
static void close_layer(struct layer *a)
{
    void *buffers[] = { a->q,   a->ks,  a->k,        a->v,        a->log_f,  a->o,   a->on,
                        a->out, a->lse, a->state[0], a->state[1], a->tables, a->work };
    for (int i = 0; i < COUNT(buffers); i++) free(buffers[i]);
    for (int i = 0; i < INS; i++) free(a->in[i]);
    loci_plan_destroy((loci_plan *)a->plan);
}

static void fox_pro(void)
{
    static double buffer[2][INS][Q];
    double *in[INS], *d[INS], *shifted[INS];
    for (int i = 0; i < INS; i++) {
        in[i] = buffer[0][i];
        d[i] = buffer[1][i];
        fill(in[i], (size_t)sizes[i], 1.5);
    }
    fill(dy, Q, 1);
    struct layer a = open_layer(LOCI_F64, in);
    CHECK_THAT(layer_forward(&a, 0, L) && layer_backward(&a, d), "FoX (Pro): does not run");
    const double h = 0x1p-12, factor[] = { 1, -8, 0, 8, -1 };
    for (int i = 0; i < INS; i++) {
        double u[Q], got = 0, sum = 0;
        memcpy(shifted, in, sizeof in);
        shifted[i] = moved;
        for (int n = 0; n < sizes[i]; n++) {
            u[n] = walk_uniform();
            got += u[n] * d[i][n];
        }
        for (int k = -2; k <= 2; k++) {
            for (int n = 0; n < sizes[i]; n++) moved[n] = in[i][n] + k * h * u[n];
            if (k) sum += factor[k + 2] * layer_loss(a.plan, shifted);
        }
        CHECK_CLOSE(sum / (12 * h), got, 1e-9 * (1 + fabs(got)), "FoX (Pro), gradient: %s",
                    inputs[i]);
    }
    close_layer(&a);

    struct layer whole = open_layer(LOCI_F32, in), steps = open_layer(LOCI_F32, in);
    bool ok = layer_forward(&whole, 0, L);
    for (int t = 0; t < L; t++) ok = ok && layer_forward(&steps, t, 1);
    CHECK_THAT(ok && !memcmp(whole.out, steps.out, Q * sizeof(float)), "FoX (Pro): token by token");
    close_layer(&whole);
    close_layer(&steps);
}

/* ---- Misuse ---------------------------------------------------------------------------------- */

static int yes(void *user)
{
    (void)user;
    return 1;
}

static void temperature(void)
{
    enum { BATCH = 2, HEADS = 3, LEN = 5, WIDTH = 300 };
    static const int64_t pos[BATCH * LEN] = { 0,     1,     8190,    8191,   8192,
                                              16382, 16383, 1000000, 131071, 7 };
    static float in[BATCH * HEADS * LEN * WIDTH], out[BATCH * HEADS * LEN * WIDTH];
    static double exact[BATCH * HEADS * LEN * WIDTH];
    static const struct {
        double beta, length;
        int from;
    } models[] = {
        { 0.1, 8192, 1 },
        { 0.3, 16384, 0 },
    };
    loci_error e = { 0 };
    loci_layer l =
        LOCI_LAYER(.batch = BATCH, .rows = LEN, .heads = HEADS, .width = WIDTH, .error = &e);
    for (int i = 0; i < COUNT(in); i++) in[i] = (float)(exact[i] = (float)walk_uniform());
    for (int m = 0; m < COUNT(models); m++)
        for (int wide = 0; wide < 2; wide++) {
            double worst = 0;
            static double copy[BATCH * HEADS * LEN * WIDTH];
            memcpy(copy, exact, sizeof exact);
            l.dtype = wide ? LOCI_F64 : LOCI_F32;
            const loci_status status =
                loci_temperature(&l, models[m].beta, models[m].length, models[m].from, pos, 1,
                                 at(wide ? (void *)copy : in), at(wide ? (void *)copy : out));
            for (int i = 0; i < COUNT(in); i++) {
                const int64_t p = pos[i / (HEADS * LEN * WIDTH) * LEN + i / WIDTH % LEN];
                const double folds = floor((double)(p + models[m].from) / models[m].length);
                const double f = 1 + models[m].beta * log(1 + folds);
                worst = fmax(worst, fabs((wide ? copy[i] : (double)out[i]) - f * exact[i])
                                        / (1 + fabs(f * exact[i])));
            }
            CHECK_THAT(!status && worst <= (wide ? 1e-15 : 6e-8), "temperature: %s",
                       wide ? "in double" : "in float");
        }
    l.dtype = LOCI_F32;
    CHECK_THAT(!loci_temperature(&l, 0.1, 3, 1, NULL, 0, at(in), at(out)) && out[WIDTH] == in[WIDTH]
                   && fabsf(out[2 * WIDTH] - in[2 * WIDTH] * (1 + 0.1f * logf(2))) < 1e-6f,
               "temperature: positions from 0 on");
    CHECK_SAYS(loci_temperature(&l, NAN, 8192, 1, NULL, 0, at(in), at(out)), LOCI_BAD_ARG, &e,
               "beta nan");
    CHECK_SAYS(loci_temperature(&l, 0.1, 0, 1, NULL, 0, at(in), at(out)), LOCI_BAD_ARG, &e,
               "length 0 must be");
    CHECK_SAYS(loci_temperature(&l, 0.1, 8192, 2, NULL, 0, at(in), at(out)), LOCI_BAD_ARG, &e,
               "from 2 must be 0 or 1");
    CHECK_SAYS(loci_temperature(&l, 0.1, 8192, 1, (int64_t[LEN]){ 0, -1 }, 0, at(in), at(out)),
               LOCI_BAD_ARG, &e, "position -1 must be");
    CHECK_SAYS(loci_temperature(&l, 0.1, 8192, 1, NULL, 0, at(NULL), at(out)), LOCI_BAD_ARG, &e,
               "x must not be NULL");
}

static void misuse(void)
{
    static const struct {
        loci_layer layer;
        const char *says;
    } bad[] = {
        { { .size = 8, .dtype = LOCI_F32, .heads = 1, .width = 1 }, "loci_layer: size 8" },
        { { .dtype = LOCI_BF16, .heads = 1, .width = 1 }, "dtype 2 must be" },
        { { .dtype = (loci_dtype)9, .heads = 1, .width = 1 }, "dtype 9 must be" },
        { { .heads = 0, .width = 1 }, "heads 0" },
        { { .heads = 1, .width = 0 }, "width 0" },
        { { .heads = 1, .width = 1, .batch = -1 }, "batch -1" },
        { { .heads = 1, .width = 1, .rows = -1 }, "rows -1" },
        { { .heads = 1, .width = 8, .batch = PTRDIFF_MAX / 2, .rows = 9 }, "too large together" },
        { { .heads = 2, .width = 8, .rows = PTRDIFF_MAX / 4, .batch = 1 }, "too large together" },
    };
    loci_error e = { 0 };
    memset(fy, 0x5a, sizeof fy);
    for (int i = 0; i < COUNT(bad); i++) {
        loci_layer l = bad[i].layer;
        l.error = &e;
        CHECK_SAYS(loci_rmsnorm(&l, at(fx), NULL, 0, at(fy)),
                   l.dtype == LOCI_BF16 ? LOCI_UNSUPPORTED : LOCI_BAD_ARG, &e, bad[i].says);
    }
    loci_layer l =
        LOCI_LAYER(.dtype = LOCI_F32, .batch = 2, .rows = 3, .heads = 2, .width = 4, .error = &e);
    CHECK_SAYS(loci_rmsnorm(&l, at(NULL), NULL, 0, at(fy)), LOCI_BAD_ARG, &e, "x must not be NULL");
    CHECK_SAYS(loci_rmsnorm(&l, at(fx), NULL, 0, at(NULL)), LOCI_BAD_ARG, &e, "y must not be NULL");
    CHECK_SAYS(loci_rmsnorm(&l, at(fx), NULL, -1, at(fy)), LOCI_BAD_ARG, &e, "eps -1");
    CHECK_SAYS(loci_rmsnorm(&l, at(fx), NULL, NAN, at(fy)), LOCI_BAD_ARG, &e, "eps nan");
    CHECK_SAYS(loci_rmsnorm(&l, at((char *)fx + 1), NULL, 0, at(fy)), LOCI_BAD_ARG, &e,
               "x must be aligned to 4 bytes");
    CHECK_SAYS(loci_rmsnorm(&l, at(fx), NULL, 0, (loci_view){ fy, 24, 12, 3 }), LOCI_BAD_ARG, &e,
               "make rows of this output overlap");
    CHECK_SAYS(loci_rmsnorm(&l, (loci_view){ fx, 24, 12, -4 }, NULL, 0, at(fy)), LOCI_BAD_ARG, &e,
               "must not be negative or too large");
    CHECK_SAYS(loci_rmsnorm(&l, (loci_view){ fx, PTRDIFF_MAX, 12, 4 }, NULL, 0, at(fy)),
               LOCI_BAD_ARG, &e, "must not be negative or too large");
    CHECK_SAYS(loci_rmsnorm_backward(&l, at(fx), NULL, 0, at(fy), at(fy), NULL), LOCI_BAD_ARG, &e,
               "dx overlaps dy");
    CHECK_SAYS(loci_shift(&l, at(fy), at(fz), NULL, 0, NULL, NULL, at(fy)), LOCI_BAD_ARG, &e,
               "y overlaps x");
    CHECK_SAYS(loci_shift(&l, at(fx), at(fz), seg, 0, NULL, fdx, at(fy)), LOCI_BAD_ARG, &e,
               "which belong to one sequence");
    CHECK_SAYS(loci_shift_backward(&l, at(fy), at(fz), NULL, 0, at(fdy), at(fy), at(NULL)),
               LOCI_BAD_ARG, &e, "dx overlaps x");
    CHECK_SAYS(loci_log_gate(&l, at(NULL), at(fy)), LOCI_BAD_ARG, &e, "logits must not be NULL");
    CHECK_SAYS(loci_gate(&l, (loci_activation)2, at(fx), at(fz), at(fy)), LOCI_BAD_ARG, &e,
               "activation 2 must be LOCI_SIGMOID or LOCI_SILU");
    CHECK_SAYS(loci_gate_backward(&l, LOCI_SILU, at(fx), at(fz), at(NULL), at(fdx), at(fdz)),
               LOCI_BAD_ARG, &e, "dy must not be NULL");
    CHECK_THAT(loci_rmsnorm(NULL, at(fx), NULL, 0, at(fy)) == LOCI_BAD_ARG
                   && loci_shift(NULL, at(fx), at(fz), NULL, 0, NULL, NULL, at(fy)) == LOCI_BAD_ARG
                   && loci_log_gate(NULL, at(fx), at(fy)) == LOCI_BAD_ARG
                   && loci_gate(NULL, LOCI_SILU, at(fx), at(fz), at(fy)) == LOCI_BAD_ARG,
               "NULL: was taken");
    const loci_host host = { .cancelled = yes };
    l.host = &host;
    CHECK_THAT(loci_rmsnorm(&l, at(fx), NULL, 0, at(fy)) == LOCI_CANCELLED, "cancelled: ran on");
    bool untouched = true;
    for (size_t i = 0; i < sizeof fy; i++)
        untouched = untouched && ((unsigned char *)fy)[i] == 0x5a;
    CHECK_THAT(untouched, "a refused call: wrote something");
    l.host = NULL;
    l.batch = 0;
    CHECK_THAT(!loci_rmsnorm(&l, at(NULL), NULL, 0, at(NULL))
                   && !loci_gate(&l, LOCI_SILU, at(NULL), at(NULL), at(NULL)),
               "an empty batch: was refused");
}

int main(void)
{
    for (int op = 0; op < OPS; op++)
        for (int i = 0; i < COUNT(shapes); i++) one(op, &shapes[i]);
    far_out();
    chunks();
    fox_pro();
    temperature();
    misuse();
    return harness_end();
}
