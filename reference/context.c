/* SPDX-License-Identifier: MIT */
/* context.c -- encodings that read the content: they depend on the keys between key and query,
 * not on the distance.  fox, cope and sba count the keys that the row sees, in index order; `the
 * last` is the last of these. */
#include "reference/budget.h"

/* ---- fox: add_ij = sum of log_f over the keys after j up to the last ----------------------------
 *
 * A log_f at or below -10^4, including -inf, means a shut gate.  One at or above 10^4 counts as
 * NaN. */

/* Where the gates of a head begin. */
static ptrdiff_t fox_gates(const struct problem *p, int h) { return (p->b * p->H + h) * p->Lk; }

static double fox_gate(double log_f)
{
    return log_f <= -1e4 ? -INFINITY : log_f >= 1e4 ? NAN : log_f;
}

/* From the newest key on: `after` is the sum of the gates of the keys after j. */
static void fox(struct problem *p, int e, int h)
{
    const double *log_f = tensor(p, e, "log_f") + fox_gates(p, h);
    double *add = of_head(p, p->add, h), after = 0;
    for (ptrdiff_t j = p->Lk; j-- > 0;) {
        if (!p->seen[j]) continue;
        add[j] += after;
        after += fox_gate(log_f[j]);
    }
}
/* Gate j is part of add of all seen keys before it, so its gradient is the sum of their dadd. */
static void fox_backward(struct problem *p, int e, int h)
{
    double *dlog_f = dtensor(p, e, "log_f") + fox_gates(p, h), before = 0;
    const double *dadd = of_head(p, p->dadd, h);
    for (ptrdiff_t j = 0; j < p->Lk; j++) {
        if (!p->seen[j]) continue;
        dlog_f[j] += before;
        before += dadd[j];
    }
}
const struct definition loci_define_fox = {
    .name = "fox", .score = fox, .score_backward = fox_backward, .over_row = true
};

/* ---- cope ---------------------------------------------------------------------------------------
 *
 *     add_ij = pos_scale z_i(p_ij)
 *     p_ij = min(sum of the gates of the keys from j to the last, npos - 1)
 *     gate_ij = sigmoid(gate_scale q_i.g_j)     g: keys, values, or an input
 *     z_i(p) = q_i.e[p], in between on the straight line of its neighbours */

enum { GATES_K, GATES_V, GATES_GIVEN };

struct cope {
    double npos, gate_scale, pos_scale;
    const double *e, *g; /* [npos][D]; row j of g at j * D */
    double *de, *dg;
};
/* The inputs of head h of the batch entry and, backward, their gradients.  Gates by k or v share
 * their gradients with keys or values. */
static struct cope cope_of(const struct problem *p, int e, int h)
{
    ptrdiff_t table = table_of_head(form(p, e, "e"), h), keys = k_row(p, h, 0),
              values = kv_head(p, h) * p->Lk * p->D;
    int gates = (int)option(p, e, "gates", GATES_K);
    struct cope c = {
        .npos = option(p, e, "npos", 64),
        .gate_scale = option(p, e, "gate_scale", 1 / sqrt(p->D)),
        .pos_scale = option(p, e, "pos_scale", 1),
        .e = tensor(p, e, "e") + table,
        .g = gates == GATES_K ? p->k + keys : p->v + values,
        .dg = gates == GATES_K ? p->dk + keys : p->dv + values,
    };
    ptrdiff_t batch = p->b * p->Hkv * p->Lk * p->D;
    /* gate_k is [B][Hkv][Lk][D], laid out like keys of the call. */
    if (gates == GATES_GIVEN) c.g = tensor(p, e, "gate_k") + batch + values;
    if (!p->backward) return c;
    c.de = dtensor(p, e, "e") + table;
    if (gates == GATES_GIVEN) c.dg = dtensor(p, e, "gate_k") + batch + values;
    return c;
}
/* scratch[0] = the gates, scratch[1] = the sums of gates, unbounded. */
static void cope_count(struct problem *p, const struct cope *c, int h)
{
    double sum = 0;
    for (ptrdiff_t j = p->Lk; j-- > 0;) {
        if (!p->seen[j]) continue;
        p->scratch[0][j] = sigmoid(c->gate_scale * dot(p->q + q_row(p, h), c->g + j * p->D, p->D));
        /* From the newest key on, so sum is over the gates from j on. */
        p->scratch[1][j] = sum += p->scratch[0][j];
    }
}

/* On the straight line between the rows of e on either side; a whole position has one row. */
static void cope(struct problem *p, int e, int h)
{
    struct cope c = cope_of(p, e, h);
    const double *q = p->q + q_row(p, h);
    cope_count(p, &c, h);
    for (ptrdiff_t j = 0; j < p->Lk; j++) {
        if (!p->seen[j]) continue;
        double at = fmin(p->scratch[1][j], c.npos - 1), low = floor(at), high = ceil(at),
               t = at - low;
        double z = (1 - t) * dot(q, c.e + (ptrdiff_t)low * p->D, p->D)
                 + t * dot(q, c.e + (ptrdiff_t)high * p->D, p->D);
        of_head(p, p->add, h)[j] += c.pos_scale * z;
    }
}
/* A gate moves the positions of all keys up to its own, so its gradient is summed from
 * the oldest key on.  Where the position is clipped, low and high are the same row and
 * no gradient flows to gates. */
static void cope_backward(struct problem *p, int e, int h)
{
    struct cope c = cope_of(p, e, h);
    const double *q = p->q + q_row(p, h);
    double *dq = p->dq + q_row(p, h), dgate = 0;
    cope_count(p, &c, h);
    for (ptrdiff_t j = 0; j < p->Lk; j++) {
        if (!p->seen[j]) continue;
        double at = fmin(p->scratch[1][j], c.npos - 1), low = floor(at), high = ceil(at),
               t = at - low;
        double dz = c.pos_scale * of_head(p, p->dadd, h)[j];
        ptrdiff_t l = (ptrdiff_t)low * p->D, u = (ptrdiff_t)high * p->D;
        /* z by q and by e. */
        add_scaled(dq, dz * (1 - t), c.e + l, p->D);
        add_scaled(dq, dz * t, c.e + u, p->D);
        add_scaled(c.de + l, dz * (1 - t), q, p->D);
        add_scaled(c.de + u, dz * t, q, p->D);

        /* z by the position is the slope of the line, and the position by each gate is 1. */
        dgate += dz * (dot(q, c.e + u, p->D) - dot(q, c.e + l, p->D));
        double gate = p->scratch[0][j], dlogit = c.gate_scale * dgate * gate * (1 - gate);
        add_scaled(dq, dlogit, c.g + j * p->D, p->D);
        add_scaled(c.dg + j * p->D, dlogit, q, p->D);
    }
}
/* cope: the error of a position decides which rows of its table a key may use, and the error of
 * its gates' derivatives; so its sizes are computed explicitly.  Adds to sizes of scores, or,
 * from sizes of the gradients of the added numbers, to those of gradients. */
static void cope_sizes(struct problem *p, int e, int h, double *score, double *back)
{
    struct sizes *z = p->budget;
    const ptrdiff_t q = q_row(p, h), D = p->D, given = tensor_number(p, e, "gate_k"),
                    te = tensor_number(p, e, "e"), first = table_of_head(form(p, e, "e"), h);
    const double npos = option(p, e, "npos", 64), *table = tensor(p, e, "e") + first,
                 gate_scale = option(p, e, "gate_scale", 1 / sqrt(p->D)),
                 pos_scale = option(p, e, "pos_scale", 1), *g, *eg = NULL;
    double *dg, *de = z->dtensor[te] + first, *const at = z->cope, *const off = at + p->Lk,
                *const slopes = off + p->Lk, sum = 0, off_sum = 0, dgate = 0;
    const ptrdiff_t values = kv_head(p, h) * p->Lk * D, batch = p->b * p->Hkv * p->Lk * D;
    if (given >= 0) {
        g = tensor(p, e, "gate_k") + batch + values;
        dg = z->dtensor[given] + batch + values;
    } else if (option(p, e, "gates", 0) == 0) {
        g = p->k + k_row(p, h, 0);
        eg = z->ek + k_row(p, h, 0);
        dg = z->dk + k_row(p, h, 0);
    } else {
        g = p->v + values;
        dg = z->dv + values;
    }
    for (ptrdiff_t j = p->Lk; j-- > 0;) {
        if (!p->seen[j]) continue;
        double size = 1;
        for (int c = 0; c < D; c++)
            size += gate_scale
                  * (fabs(p->q[q + c] * g[j * D + c]) + z->eq[q + c] * fabs(g[j * D + c])
                     + (eg ? eg[j * D + c] * fabs(p->q[q + c]) : 0));
        const double y = gate_scale * dot(p->q + q, g + j * D, D), gate = sigmoid(y);
        sum += gate;
        off_sum += gate * sigmoid(-y) * size + gate;
        at[j] = sum;
        off[j] = off_sum;
        slopes[j] = gate * sigmoid(-y) * size;
    }
    for (ptrdiff_t j = 0; j < p->Lk; j++) {
        if (!p->seen[j]) continue;
        /* the rows that p may be between, with its error, and the sizes of their products */
        const double margin = 64 * z->to->unit * off[j];
        const ptrdiff_t low = (ptrdiff_t)fmax(0, floor(fmin(at[j] - margin, npos - 1))),
                        high = (ptrdiff_t)ceil(fmin(at[j] + margin, npos - 1)),
                        on = (ptrdiff_t)fmin(at[j], npos - 1);
        double most = 0, steep = 0;
        for (ptrdiff_t r = low; r <= high; r++) {
            double product = 0;
            for (int c = 0; c < D; c++)
                product += (fabs(p->q[q + c]) + z->eq[q + c]) * fabs(table[r * D + c]);
            most = fmax(most, product);
            if (r == high) break;
            const double step =
                dot(p->q + q, table + (r + 1) * D, D) - dot(p->q + q, table + r * D, D);
            steep = fmax(steep, fabs(step));
        }
        if (score && counts(p, h, j))
            of_head(p, score, h)[j] += pos_scale * (2 * most + steep * off[j]);
        if (!back) continue;
        const double dz = pos_scale * (counts(p, h, j) ? of_head(p, back, h)[j] : 0),
                     t = at[j] < npos - 1 ? at[j] - (double)on : 0;
        for (ptrdiff_t r = low; r <= high; r++) {
            double share = r == on ? 1 - t : r == on + 1 ? t : 0;
            share += off[j];
            for (int c = 0; c < D; c++) {
                z->dq[q + c] += dz * share * fabs(table[r * D + c]) + z->to->least;
                de[r * D + c] += dz * share * (fabs(p->q[q + c]) + z->eq[q + c]) + z->to->least;
            }
        }
        /* next to a whole position the slope of either side is correct */
        dgate += dz
               * (2 * most
                  + (high - low > 1 || at[j] + margin >= npos - 1 ? 2 * steep / z->to->unit : 0));
        const double dlogit = gate_scale * dgate * slopes[j];
        for (int c = 0; c < D; c++) {
            z->dq[q + c] += dlogit * (fabs(g[j * D + c]) + (eg ? eg[j * D + c] : 0)) + z->to->least;
            dg[j * D + c] += dlogit * (fabs(p->q[q + c]) + z->eq[q + c]) + z->to->least;
        }
    }
}
const struct definition loci_define_cope = {
    .name = "cope", .score = cope, .score_backward = cope_backward, .score_sizes = cope_sizes
};

/* ---- sba: w_ij = beta_ij prod of (1 - beta) over the keys after j, beta = sigmoid(s) ------------
 *
 * rem_i, the rest of the stick, is the product over all of them.  The option `remainder` adds
 * rem_i times the row's own value or a learned vector to o_i, but not in padding. */

enum { REMAINDER_NONE, REMAINDER_VALUE, REMAINDER_VECTOR };

/* `left` is the rest of the stick; 1 - beta is computed as sigmoid(-s), which is precise. */
static void sba(struct problem *p, int e, int h)
{
    const double *s = of_head(p, p->s, h);
    double *w = of_head(p, p->w, h), left = 1;
    (void)e;
    for (ptrdiff_t j = p->Lk; j-- > 0;) {
        if (!p->seen[j]) continue;
        w[j] = left * sigmoid(s[j]);
        left *= sigmoid(-s[j]);
    }
    p->rem[h] = left;
}
/* d log w_j / d s_j = 1 - beta_j, and -beta_j for the weights of the keys before j and for rem. */
static void sba_backward(struct problem *p, int e, int h)
{
    const double *s = of_head(p, p->s, h), *w = of_head(p, p->w, h), *dw = of_head(p, p->dw, h);
    /* Like the weight of an older key, rem has the factor 1 - beta of every key. */
    double *ds = of_head(p, p->ds, h), before = p->rem[h] * p->drem[h];
    (void)e;
    for (ptrdiff_t j = 0; j < p->Lk; j++) {
        if (!p->seen[j]) continue;
        ds[j] = w[j] * dw[j] * sigmoid(-s[j]) - sigmoid(s[j]) * before;
        before += w[j] * dw[j];
    }
}

/* The row's own key: the first with its position, in its segment. -1: none.
 * Padding has none and needs none. */
static ptrdiff_t sba_own(const struct problem *p)
{
    for (ptrdiff_t j = 0; j < p->Lk; j++)
        if (distance(p, j) == 0 && q_segment(p, p->i) == k_segment(p, j) && k_segment(p, j) >= 0)
            return j;
    return -1;
}
/* Tested for all rows before any is written. */
static loci_status sba_check(const struct problem *p, int e, loci_error *error)
{
    struct problem at = *p;
    if (option(p, e, "remainder", REMAINDER_NONE) != REMAINDER_VALUE) return LOCI_OK;
    for (at.b = 0; at.b < at.B; at.b++)
        for (at.i = 0; at.i < at.Lq; at.i++)
            CHECK(error, q_segment(&at, at.i) < 0 || sba_own(&at) >= 0, LOCI_BAD_ARG,
                  "sba: remainder=value needs a key at the position %lld of query %td",
                  (long long)q_position(&at, at.i), at.i);
    return LOCI_OK;
}
/* The remainder times the own value or the vector of the head. */
static void sba_value(struct problem *p, int e, int h)
{
    double remainder = option(p, e, "remainder", REMAINDER_NONE), *o = p->o + h * p->Dv;
    ptrdiff_t own = sba_own(p);
    if (remainder == REMAINDER_VALUE && own >= 0)
        add_scaled(o, p->rem[h], p->v + v_row(p, h, own), p->Dv);
    if (remainder == REMAINDER_VECTOR && q_segment(p, p->i) >= 0)
        add_scaled(o, p->rem[h], tensor(p, e, "r") + h * p->Dv, p->Dv);
}
/* Adds to drem, which sba_backward() reads: so values go first. */
static void sba_value_backward(struct problem *p, int e, int h)
{
    double remainder = option(p, e, "remainder", REMAINDER_NONE);
    const double *dout = p->dout + h * p->Dv;
    ptrdiff_t own = sba_own(p);
    if (remainder == REMAINDER_VALUE && own >= 0) {
        p->drem[h] += dot(dout, p->v + v_row(p, h, own), p->Dv);
        add_scaled(p->dv + v_row(p, h, own), p->rem[h], dout, p->Dv);
    }
    if (remainder == REMAINDER_VECTOR && q_segment(p, p->i) >= 0) {
        p->drem[h] += dot(dout, tensor(p, e, "r") + h * p->Dv, p->Dv);
        add_scaled(dtensor(p, e, "r") + h * p->Dv, p->rem[h], dout, p->Dv);
    }
}
const struct definition loci_define_sba = {
    .name = "sba",
    .check = sba_check,
    .weights_of_row = sba,
    .weigh_backward = sba_backward,
    .value = sba_value,
    .value_backward = sba_value_backward,
};

/* ---- cape: s = a + add + W2 leaky(W1 [a; add] + b1) + b2, across the heads of a pair --------- */

/* The numbers that all pairs of a call share. */
struct cape {
    int hidden, H, width; /* width 2H, or H if no encoding adds anything */
    bool add_bias;
    double leak;
    const double *w1, *b1, *w2, *b2;
};
static struct cape cape_of(const struct problem *p, int e)
{
    return (struct cape){
        .hidden = (int)form(p, e, "w1")->shape[0],
        .H = p->H,
        .width = (int)form(p, e, "w1")->shape[1],
        .add_bias = option(p, e, "add_bias", 1) == 1,
        .leak = option(p, e, "leak", 0.01),
        .w1 = tensor(p, e, "w1"),
        .b1 = tensor(p, e, "b1"),
        .w2 = tensor(p, e, "w2"),
        .b2 = tensor(p, e, "b2"),
    };
}
/* Input x of the network at key j. */
static double cape_input(const struct problem *p, int x, ptrdiff_t j)
{
    return x < p->H ? of_head(p, p->a, x)[j] : of_head(p, p->add, x - p->H)[j];
}
/* A hidden unit before its activation. */
static double cape_unit(const struct problem *p, const struct cape *c, int u, ptrdiff_t j)
{
    double t = c->b1[u];
    for (int x = 0; x < c->width; x++) t += c->w1[u * c->width + x] * cape_input(p, x, j);
    return t;
}

/* The network runs per pair, over all heads at once. */
static void cape(struct problem *p, int e)
{
    struct cape c = cape_of(p, e);
    for (ptrdiff_t j = 0; j < p->Lk; j++) {
        if (!p->seen[j]) continue;
        for (int h = 0; h < c.H; h++)
            of_head(p, p->s, h)[j] =
                of_head(p, p->a, h)[j] + (c.add_bias ? of_head(p, p->add, h)[j] : 0) + c.b2[h];
        for (int u = 0; u < c.hidden; u++) {
            double t = cape_unit(p, &c, u, j), g = t > 0 ? t : c.leak * t;
            for (int h = 0; h < c.H; h++) of_head(p, p->s, h)[j] += c.w2[h * c.hidden + u] * g;
        }
    }
}
/* da and dadd equal ds on entry, the part that does not go through the network.  Without
 * add_bias add enters through the network alone. */
static void cape_backward(struct problem *p, int e)
{
    struct cape c = cape_of(p, e);
    double *dw1 = dtensor(p, e, "w1"), *db1 = dtensor(p, e, "b1"), *dw2 = dtensor(p, e, "w2"),
           *db2 = dtensor(p, e, "b2");
    for (ptrdiff_t j = 0; j < p->Lk; j++) {
        if (!p->seen[j]) continue;
        for (int h = 0; h < c.H; h++) {
            db2[h] += of_head(p, p->ds, h)[j];
            if (!c.add_bias) of_head(p, p->dadd, h)[j] = 0;
        }
        for (int u = 0; u < c.hidden; u++) {
            double t = cape_unit(p, &c, u, j), g = t > 0 ? t : c.leak * t, dg = 0;
            for (int h = 0; h < c.H; h++) {
                dg += c.w2[h * c.hidden + u] * of_head(p, p->ds, h)[j];
                dw2[h * c.hidden + u] += g * of_head(p, p->ds, h)[j];
            }
            /* Back through leaky and the first layer, to a of each head and to add. */
            double dt = t > 0 ? dg : c.leak * dg;
            db1[u] += dt;
            for (int x = 0; x < c.width; x++) {
                double *dx = x < c.H ? of_head(p, p->da, x) : of_head(p, p->dadd, x - c.H);
                dw1[u * c.width + x] += dt * cape_input(p, x, j);
                dx[j] += dt * c.w1[u * c.width + x];
            }
        }
    }
}
const struct definition loci_define_cape = {
    .name = "cape",
    .mix = cape,
    .mix_backward = cape_backward,
};
