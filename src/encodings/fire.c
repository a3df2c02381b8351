/* SPDX-License-Identifier: MIT */
/* fire.c -- a small network of the distance, relative to the length so
 * far.  Li et al., ICLR 2024.
 *
 *     S_ij = scale q_i.k_j + f_h(x_ij)      x_ij = psi(|i - j|) / N_i      psi(d) = log(|c| d + 1)
 *     N_i = psi(max(T, i)) + 10^-6          T = |l| threshold
 *     f = w3 relu(w2 relu(w1 x + b1) + b2) + b3, or with layers=1 w3 relu(w1 x + b1) + b3
 *     the heads share all but w3 and b3
 *
 * i is the query's position itself, so beyond T the bias does not depend on i - j alone.  The
 * paper's text has two hidden layers, the listing in its appendix one.  c starts at 0.1, l at 1.
 * One set of tensors may serve all layers of a model.
 *
 * f is a network of one number, so it is linear between finitely many ends: roots of units,
 * which depend on the hidden layers alone.  prepare() walks from 0 upwards, and each piece
 * becomes two numbers per head.  Within a piece every unit is linear too.  So fold() needs only
 * sums of dS and of dS x by piece for the gradients of the network. */
#include "contract/call.h"
#include "layout/pieces.h"

/* Bounds the pieces, whose number is about its square, and the stack of walk(). */
enum { MAX_HIDDEN = 256 };
static const loci_option opts[] = {
    [PIECES_LAYERS] = { "layers", LOCI_WHOLE, 0, 2, 1, 2, NULL, "number of hidden layers" },
    [PIECES_HIDDEN] = { "hidden", LOCI_WHOLE, 0, 32, 1, MAX_HIDDEN, NULL,
                        "width of the hidden layers" },
    [PIECES_THRESHOLD] = { "threshold", LOCI_NUMBER, 0, 512, 0, 1e12, NULL,
                           "T / |l|: rows up to T do not normalise distances by their position" },
    { 0 }
};

/* tensors; with one hidden layer there are no W2 and B2, and the last two are ONE_W3 and ONE_B3 */
enum { C, L, W1, B1, W2, B2, W3, B3 };
enum { ONE_W3 = W2, ONE_B3 };
static void tensors(const struct config *c, struct tensors *t)
{
    const ptrdiff_t n = (ptrdiff_t)c->opt[PIECES_HIDDEN];
    const double a = 1 / sqrt((double)n);
    loci_add_tensor(t, c, "c", LOCI_LEARNED, INIT_CONSTANT, 0.1, 0, SHAPE(1));
    loci_add_tensor(t, c, "l", LOCI_LEARNED, INIT_CONSTANT, 1, 0, SHAPE(1));
    loci_add_tensor(t, c, "w1", LOCI_LEARNED, INIT_UNIFORM, 1, 0, SHAPE(n, 1));
    loci_add_tensor(t, c, "b1", LOCI_LEARNED, INIT_UNIFORM, 1, 0, SHAPE(n));
    if (c->opt[PIECES_LAYERS] == 2) {
        loci_add_tensor(t, c, "w2", LOCI_LEARNED, INIT_UNIFORM, a, 0, SHAPE(n, n));
        loci_add_tensor(t, c, "b2", LOCI_LEARNED, INIT_UNIFORM, a, 0, SHAPE(n));
    }
    loci_add_tensor(t, c, "w3", LOCI_LEARNED, INIT_UNIFORM, a, 0, SHAPE(c->heads, n));
    loci_add_tensor(t, c, "b3", LOCI_LEARNED, INIT_UNIFORM, a, 0, SHAPE(c->heads));
}

static void terms(const struct config *c, struct termlist *t)
{
    (void)c;
    loci_add_term(t, TERM_pieces, GROUP_ADD);
}

/* ---- From one piece to the next -------------------------------------------------------------- */

/* The network in double.  fold() has no tensors, so the table has a copy.  w2 is
 * NULL with one hidden layer. */
struct network {
    int hidden, heads;
    const double *w1, *b1, *w2, *b2, *w3, *b3;
};

/* Open units, and the last hidden layer before relu: slope x + offset. */
struct line_piece {
    int i;
    double from;
    bool open1[MAX_HIDDEN], open2[MAX_HIDDEN];
    double slope[MAX_HIDDEN], offset[MAX_HIDDEN];
};
/* Called for each piece, in ascending order. */
typedef void visit(void *arg, const struct network *, const struct line_piece *);

/* Less than any x but 0, and still a float: where x = 0 is a separate piece,
 * the next one starts here. */
static const double tiny = 1e-37;

/* True if slope x + offset is positive for from < x < to, where it has no root; for the single
 * point x = from = to = 0, if offset is.  The root decides and not the value at a point between,
 * which rounding could put on the wrong side. */
static bool positive(double slope, double offset, double from, double to)
{
    if (slope == 0 || to == 0) return offset > 0;
    const double root = -offset / slope;
    return slope > 0 ? root <= from : root >= to;
}
/* Finds the roots between from and to, in ascending order, by insertion: there are at most 256. */
static int find_roots(int n, const double *slope, const double *offset, double from, double to,
                      double *roots)
{
    int count = 0;
    for (int i = 0; i < n; i++) {
        const double root = slope[i] != 0 ? -offset[i] / slope[i] : from;
        if (!(root > from && root < to)) continue;
        int at = count++;
        for (; at > 0 && roots[at - 1] > root; at--) roots[at] = roots[at - 1];
        roots[at] = root;
    }
    return count;
}

/* Visits the pieces between two neighbouring roots of the first layer.  There its units are open or
 * closed throughout, so the units of the second are linear in x and their roots end the pieces. */
static void walk_second(const struct network *f, struct line_piece *p, double from, double to,
                        visit *seen, void *arg)
{
    const int n = f->hidden;
    double roots[MAX_HIDDEN];
    for (int i = 0; i < n; i++) p->open1[i] = positive(f->w1[i], f->b1[i], from, to);
    for (int i = 0; i < n; i++) {
        p->slope[i] = f->w2 ? 0 : f->w1[i];
        p->offset[i] = f->w2 ? f->b2[i] : f->b1[i];
        for (int m = 0; m < n && f->w2; m++)
            if (p->open1[m]) {
                p->slope[i] += f->w2[i * n + m] * f->w1[m];
                p->offset[i] += f->w2[i * n + m] * f->b1[m];
            }
    }
    const int count = find_roots(n, p->slope, p->offset, from, to, roots);
    for (int k = 0; k <= count; k++) {
        const double low = k > 0 ? roots[k - 1] : from, high = k < count ? roots[k] : to;
        for (int i = 0; i < n; i++) p->open2[i] = positive(p->slope[i], p->offset[i], low, high);
        p->from = p->i && low == 0 ? tiny : low;
        seen(arg, f, p);
        p->i++;
    }
}

/* Units that are exactly 0 at x = 0 are closed there, as relu's derivative is 0 at 0: then that
 * point is a separate piece. */
static bool closed_at_0(const struct network *f)
{
    bool any = false;
    for (int i = 0; i < f->hidden; i++) {
        double y = f->w2 ? f->b2[i] : 1;
        for (int m = 0; m < f->hidden && f->w2; m++)
            y += f->b1[m] > 0 ? f->w2[i * f->hidden + m] * f->b1[m] : 0;
        any |= f->b1[i] == 0 || y == 0;
    }
    return any;
}

/* Visits the pieces from x = 0 on, at most pieces_capacity() of them. */
static void walk(const struct network *f, visit *seen, void *arg)
{
    struct line_piece p = { .i = 0 };
    double roots[MAX_HIDDEN];
    const int count = find_roots(f->hidden, f->w1, f->b1, 0, INFINITY, roots);
    if (closed_at_0(f)) walk_second(f, &p, 0, 0, seen, arg);
    for (int k = 0; k <= count; k++)
        walk_second(f, &p, k > 0 ? roots[k - 1] : 0, k < count ? roots[k] : INFINITY, seen, arg);
}

/* ---- Table: that of the term, then the tensors from W1 on as doubles ------------------------- */

/* Doubles after the table of the term. */
static ptrdiff_t weights(const struct config *c)
{
    const ptrdiff_t n = (ptrdiff_t)c->opt[PIECES_HIDDEN];
    return 2 * n + (c->opt[PIECES_LAYERS] == 2 ? n * n + n : 0) + c->heads * (n + 1);
}
static size_t size(const struct config *c, ptrdiff_t range, size_t real)
{
    const uint64_t bytes =
        pieces_layout(c, range, real).bytes + (uint64_t)weights(c) * sizeof(double);
    return bytes > PTRDIFF_MAX ? SIZE_MAX : (size_t)bytes;
}
/* Where the copy has each tensor. */
static struct network network_of(const struct config *c, const struct pieces *t)
{
    const ptrdiff_t n = (ptrdiff_t)c->opt[PIECES_HIDDEN];
    const double *w = pieces_at(t, t->bytes);
    const bool two = c->opt[PIECES_LAYERS] == 2;
    const double *w3 = w + 2 * n + (two ? n * n + n : 0);
    return (struct network){
        .hidden = (int)n,
        .heads = c->heads,
        .w1 = w,
        .b1 = w + n,
        .w2 = two ? w + 2 * n : NULL,
        .b2 = two ? w + 2 * n + n * n : NULL,
        .w3 = w3,
        .b3 = w3 + c->heads * n,
    };
}

/* Arguments of write_piece(). */
struct writing {
    const struct prep *p;
    struct pieces *t;
};

/* The output of each head in a piece: the sum over open units of w3 (slope x + offset), plus b3. */
static void write_piece(void *arg, const struct network *f, const struct line_piece *x)
{
    const struct writing *w = arg;
    const bool f64 = w->p->f64;
    const size_t real = f64 ? sizeof(double) : sizeof(float);
    store_real(pieces_ends(w->t), f64, x->i, x->from);
    for (int h = 0; h < f->heads; h++) {
        double a = 0, b = f->b3[h];
        for (int i = 0; i < f->hidden; i++)
            if (x->open2[i]) {
                a += f->w3[h * f->hidden + i] * x->slope[i];
                b += f->w3[h * f->hidden + i] * x->offset[i];
            }
        store_real(pieces_lines(w->t, h, false, real), f64, x->i, a);
        store_real(pieces_lines(w->t, h, true, real), f64, x->i, b);
    }
    w->t->count = x->i + 1;
}

static void prepare(const struct prep *p)
{
    const struct config *c = p->cfg;
    const size_t real = p->f64 ? sizeof(double) : sizeof(float);
    struct writing w = { p, p->table };
    *w.t = pieces_layout(c, p->range, real);
    w.t->c = param(p, C, 0);
    w.t->far = param(p, L, 0) * c->opt[PIECES_THRESHOLD];
    /* The copy of the tensors from W1 on, in the order of network_of(). */
    double *to = pieces_at(w.t, w.t->bytes);
    for (int i = W1; i <= (c->opt[PIECES_LAYERS] == 2 ? B3 : ONE_B3); i++)
        for (ptrdiff_t n = 0; n < tensor_count(&p->tensor[i]); n++) *to++ = param(p, i, n);
    /* inf - inf is NaN or never happens, depending on which units are open; by definition every
     * bias is NaN then.  A NaN in b3 makes it so in every piece.  0 times all numbers is 0
     * unless one of them is not finite. */
    const double *first = pieces_at(w.t, w.t->bytes);
    double zero = (w.t->c + w.t->far) * 0;
    for (const double *x = first; x < to; x++) zero += *x * 0;
    for (int h = 1; h <= c->heads && zero != 0; h++) to[-h] = NAN; /* b3 is the last */
    const struct network f = network_of(c, w.t);
    walk(&f, write_piece, &w);
    /* log1p(y) is precise for small |c| d as well; its derivative by |c| is d / (y + 1). */
    for (int64_t d = w.t->lo; d <= w.t->hi; d++) {
        const double a = fabs((double)d), y = fabs(w.t->c) * a;
        store_real(pieces_psi(w.t, false, real), p->f64, d - w.t->lo, log1p(y));
        store_real(pieces_psi(w.t, true, real), p->f64, d - w.t->lo, a / (y + 1));
    }
}

struct folding {
    const double *sums;
    int32_t capacity;
    double *const *to;
};

/* Passes the sums of dS (s0) and of dS x (s1) over a piece back through the network.  In a piece
 * f is linear in x, so a unit with output slope x + offset gets s0 by its offset and s1 by its
 * slope, and each weight the sum of both. */
static void fold_piece(void *arg, const struct network *f, const struct line_piece *x)
{
    const struct folding *w = arg;
    const int n = f->hidden;
    double *const *to = w->to, *dw3 = to[f->w2 ? W3 : ONE_W3], *db3 = to[f->w2 ? B3 : ONE_B3];
    /* by the offset and by the slope of the last hidden layer */
    double d0[MAX_HIDDEN] = { 0 }, d1[MAX_HIDDEN] = { 0 };
    bool any = false;
    for (int h = 0; h < f->heads; h++) {
        const double *of_head = w->sums + h * pieces_part(w->capacity), s0 = of_head[x->i],
                     s1 = of_head[w->capacity + x->i];
        if (s0 == 0 && s1 == 0) continue;
        any = true;
        if (db3) db3[h] += s0;
        for (int i = 0; i < n; i++) {
            if (!x->open2[i]) continue;
            if (dw3) dw3[h * n + i] += s0 * x->offset[i] + s1 * x->slope[i];
            d0[i] += f->w3[h * n + i] * s0;
            d1[i] += f->w3[h * n + i] * s1;
        }
    }
    if (!any) return;
    /* With one hidden layer the last one is the first. */
    double e0[MAX_HIDDEN] = { 0 }, e1[MAX_HIDDEN] = { 0 }; /* likewise, of the first */
    for (int i = 0; i < n && f->w2; i++) {
        if (to[B2]) to[B2][i] += d0[i];
        for (int m = 0; m < n; m++) {
            if (!x->open1[m]) continue;
            if (to[W2]) to[W2][i * n + m] += d0[i] * f->b1[m] + d1[i] * f->w1[m];
            e0[m] += f->w2[i * n + m] * d0[i];
            e1[m] += f->w2[i * n + m] * d1[i];
        }
    }
    for (int m = 0; m < n; m++) {
        if (to[B1]) to[B1][m] += f->w2 ? e0[m] : d0[m];
        if (to[W1]) to[W1][m] += f->w2 ? e1[m] : d1[m];
    }
}

/* The derivative of |x|, 0 at 0. */
static double sign(double x) { return (x > 0) - (x < 0); }

/* The term computes dc and dT as if c and T were positive; |c| and |l| threshold give the signs. */
static void fold(const struct prep *p)
{
    const struct config *c = p->cfg;
    const struct pieces *t = p->table;
    if (!p->dtable[0]) return;
    const struct network f = network_of(c, t);
    struct folding w = { p->dtable[0], t->capacity, p->dtensor };
    walk(&f, fold_piece, &w);
    for (int h = 0; h < c->heads; h++) {
        const double *d = p->dtable[0] + h * pieces_part(t->capacity) + 2 * (ptrdiff_t)t->capacity;
        if (p->dtensor[C]) p->dtensor[C][0] += sign(t->c) * d[0];
        if (p->dtensor[L]) p->dtensor[L][0] += sign(t->far) * c->opt[PIECES_THRESHOLD] * d[1];
    }
}

/* ---- Call: 1 / N of every row ---------------------------------------------------------------- */

static size_t scratch(const struct call *c, int enc)
{
    (void)enc;
    return (size_t)(c->B * c->Lq) * sizeof(double);
}
/* In double, as are the positions, which may be beyond all tables. */
static void begin(struct call *c, int enc)
{
    const struct pieces *t = c->table[enc];
    double *inverse = c->mem.scratch[enc];
    for (ptrdiff_t i = 0; i < c->B * c->Lq; i++)
        inverse[i] = 1
                   / (log1p(fabs(t->c) * fmax(fabs(t->far), (double)pos_q(c, i / c->Lq, i % c->Lq)))
                      + 1e-6);
}

const struct loci_pe loci_pe_fire = {
    .name = "fire",
    .cite = "Li et al., ICLR 2024",
    .family = FAMILY_DISTANCE,
    .brief = "S += MLP_h(log(c |i - j| + 1) / log(c max(T, i) + 1))",
    .example = "fire",
    .places = LOCI_PLACE_SCORE,
    .tol = 4e-6,
    .opts = opts,
    .tensors = tensors,
    .terms = terms,
    .size = size,
    .prepare = prepare,
    .fold = fold,
    .scratch = scratch,
    .begin = begin,
};
