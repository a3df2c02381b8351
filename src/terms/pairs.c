/* SPDX-License-Identifier: MIT */
/* pairs.c -- rotates pairs of channels by their coordinates; the table is
 * described in layout/pairs.h. */
#include "terms/angles.h"

/* Rotates the pairs of one row in place; sign -1 rotates back. */
INLINE void turn_row(const struct angles *at, const struct pairs *p, int r, const real sign,
                     real *row)
{
    const real *cos = cos_of(at, p, r), *sin = cos + p->width;
    real *a = row + p->offset;
    if (p->interleaved) rotate_interleaved(cos, sin, sign, p->count, a);
    else rotate_half(cos, sin, sign, p->count, a, a + p->count);
}

static const struct pairs *table_of(const struct call *c, int x)
{
    return c->table[c->plan->use[x].enc];
}

static void rotate(const struct call *c, int x, struct angles *at, ptrdiff_t b, int h, bool query,
                   ptrdiff_t i0, int n, real *rows, ptrdiff_t stride)
{
    const struct pairs *p = table_of(c, x);
    make_angles(c, p, at, b, h, query, i0, n);
    for (int r = 0; r < n; r++) turn_row(at, p, r, 1, rows + r * stride);
}

/* Values and outputs turn by the same angles without the factor. */
static void turn(const struct call *c, int x, struct angles *at, ptrdiff_t b, int h, bool query,
                 real sign, ptrdiff_t i0, int n, real *rows, ptrdiff_t stride)
{
    const struct pairs *p = table_of(c, x);
    make_angles_of(c, p, at, b, h, query, true, i0, n);
    for (int r = 0; r < n; r++) turn_row(at, p, r, sign, rows + r * stride);
}

/* ---- From one place to another, or in place -------------------------------------------------- */

/* ABREAST heads rotate together, unless rows are few: each vector of cos and sin is loaded
 * once for them.  Rows are prefetched AHEAD of the work.  From PAST_CACHES bytes on, rows
 * are written past the caches. */
enum { ABREAST = 8, AHEAD = 4, PAST_CACHES = 4 << 20 };

/* n rows with the same angles, in the same number of heads, and how far behind each of them the
 * row to prefetch begins.  Numbers are read before they are written: the two places may be one. */
struct alike {
    int n;
    const real *from;
    ptrdiff_t from_step;
    real *to;
    ptrdiff_t to_step, ahead;
};

INLINE void put_down(const bool past, real *to, vf x)
{
    if (past) vf_stream(to, x);
    else vf_store(to, x);
}
/* Prefetches n vectors, once per line, but only if stores pass the caches too: rows that fit
 * into them need no prefetch. */
INLINE void ask_for(const bool past, const int n, const real *row)
{
    enum { LINE = 64 / sizeof(real) };
    UNROLL_FOR(int i = 0; past && i < n; i++)
        if (VL >= LINE || i % (LINE / VL) == 0) __builtin_prefetch(row + i * VL, 0, 2);
}
/* Pairs t .. t + n VL - 1: cos and sin stay in registers. */
INLINE void move_half(const int n, const bool past, const struct alike a, const real *cos,
                      const real *sin, const real sign, int t, int count)
{
    /* the sign is exact, so rotating back has the same roundings */
    vf c[NR], s[NR], x[NR], y[NR];
    UNROLL_FOR(int i = 0; i < n; i++) {
        c[i] = vf_load(cos + t + i * VL);
        s[i] = vf_mul(vf_load(sin + t + i * VL), vf_set1(sign));
    }
    const real *from = a.from + t;
    real *to = a.to + t;
    for (int r = 0; r < a.n; r++, from += a.from_step, to += a.to_step) {
        ask_for(past, n, from + a.ahead);
        ask_for(past, n, from + a.ahead + count);
        UNROLL_FOR(int i = 0; i < n; i++) {
            x[i] = vf_load(from + i * VL);
            y[i] = vf_load(from + count + i * VL);
        }
        UNROLL_FOR(int i = 0; i < n; i++)
            put_down(past, to + i * VL, vf_fma(x[i], c[i], -vf_mul(y[i], s[i])));
        UNROLL_FOR(int i = 0; i < n; i++)
            put_down(past, to + count + i * VL, vf_fma(x[i], s[i], vf_mul(y[i], c[i])));
    }
}
#if VL > 1
/* Even lanes become x cos - y sin, odd ones x sin + y cos: x and y are doubled into
 * both lanes of a pair, and multiplied by (cos, sin) and (-sin, cos).  The roundings
 * are those of rotate_pair(). */
INLINE void move_interleaved(const int n, const bool past, const struct alike a, const real *cos,
                             const real *sin, const real sign, int t)
{
    vf by_x[2 * NR], by_y[2 * NR], z[2 * NR];
    UNROLL_FOR(int i = 0; i < n; i++) {
        const vf c = vf_load(cos + t + i * VL),
                 s = vf_mul(vf_load(sin + t + i * VL), vf_set1(sign));
        vf_zip(c, s, &by_x[2 * i], &by_x[2 * i + 1]);
        vf_zip(-s, c, &by_y[2 * i], &by_y[2 * i + 1]);
    }
    const real *from = a.from + 2 * t;
    real *to = a.to + 2 * t;
    for (int r = 0; r < a.n; r++, from += a.from_step, to += a.to_step) {
        ask_for(past, 2 * n, from + a.ahead);
        UNROLL_FOR(int i = 0; i < 2 * n; i++) z[i] = vf_load(from + i * VL);
        UNROLL_FOR(int i = 0; i < 2 * n; i++)
            put_down(past, to + i * VL,
                     vf_fma(vf_evens(z[i]), by_x[i], vf_mul(vf_odds(z[i]), by_y[i])));
    }
}
#else
INLINE void move_interleaved(const int n, const bool past, const struct alike a, const real *cos,
                             const real *sin, const real sign, int t)
{
    (void)past;
    for (int r = 0; r < a.n; r++) {
        const real *from = a.from + r * a.from_step + 2 * t;
        real *to = a.to + r * a.to_step + 2 * t;
        for (int i = 0; i < n; i++)
            rotate_pair(from[2 * i], from[2 * i + 1], cos[t + i], sign * sin[t + i], &to[2 * i],
                        &to[2 * i + 1]);
    }
}
#endif
/* All pairs: the number of vectors at once that registers allow, then
 * single ones, then pair by pair. */
INLINE void move_pairs(const bool interleaved, const bool past, int count, const struct alike a,
                       const real *cos, const real *sin, const real sign)
{
    const int apart = interleaved ? 1 : count, each = interleaved ? 2 : 1;
    int t = 0;
    for (; t + NR * VL <= count; t += NR * VL) {
        if (interleaved) move_interleaved(NR, past, a, cos, sin, sign, t);
        else move_half(NR, past, a, cos, sin, sign, t, count);
    }
    for (; t + VL <= count; t += VL) {
        if (interleaved) move_interleaved(1, past, a, cos, sin, sign, t);
        else move_half(1, past, a, cos, sin, sign, t, count);
    }
    for (int r = 0; t < count && r < a.n; r++) {
        const real *from = a.from + r * a.from_step;
        real *to = a.to + r * a.to_step;
        for (int i = t; i < count; i++)
            rotate_pair(from[each * i], from[each * i + apart], cos[i], sign * sin[i],
                        &to[each * i], &to[each * i + apart]);
    }
}
INLINE void copy(const bool past, int n, const real *from, real *to)
{
    if (!past) memcpy(to, from, sizeof(real) * (size_t)n);
    for (int t = 0; past && t < n; t += VL) vf_stream(to + t, vf_load(from + t));
}
/* The same for whole rows: channels that do not rotate are copied, unless they are in place. */
INLINE void move_all(const bool interleaved, const bool past, const struct pairs *p, int D,
                     struct alike a, const real *cos, const real sign)
{
    const int first = p->offset, end = first + 2 * p->count;
    for (int r = 0; r < a.n && end - first < D && a.from != a.to; r++) {
        const real *from = a.from + r * a.from_step;
        real *to = a.to + r * a.to_step;
        copy(past, first, from, to);
        copy(past, D - end, from + end, to + end);
    }
    a.from += first;
    a.to += first;
    move_pairs(interleaved, past, p->count, a, cos, cos + p->width, sign);
}

/* The rows to move: n rows of each of `heads` heads with the same angles.  next: the row of the
 * first head that comes after these n, or NULL. */
struct moving {
    const struct pairs *p;
    const real *cos;
    real sign;
    int D, n, heads;
    struct rows_at from, to;
    const real *next;
};

/* Row r of all heads.  The row to prefetch may be among the rows that come next. */
INLINE struct alike row_of(const struct moving *m, int r)
{
    const real *from = m->from.first + r * m->from.row;
    const ptrdiff_t ahead = r + AHEAD < m->n ? AHEAD * m->from.row
                          : m->next          ? m->next + (r + AHEAD - m->n) * m->from.row - from
                                             : 0;
    return (struct alike){ m->heads,   from, m->from.head, m->to.first + r * m->to.row,
                           m->to.head, ahead };
}
/* Past the caches: a store that misses them reads its line first, and a copy of many
 * rows would be half as fast. */
INLINE void move_rows(const bool interleaved, const bool past, const struct moving m)
{
    const struct pairs p = *m.p;
    for (int r = 0; r < m.n; r++)
        move_all(interleaved, past, &p, m.D, row_of(&m, r), m.cos + (ptrdiff_t)2 * r * p.width,
                 m.sign);
    if (past) vf_streamed();
}
/* Likewise for rows whose pairs do not fill whole vectors.  A store past the caches must be
 * whole and aligned, so each row is assembled in `hand` first. */
INLINE void move_in_hand(const bool interleaved, const struct moving m)
{
    real hand[2 * MAX_PAIRS];
    for (int r = 0; r < m.n; r++)
        for (int h = 0; h < m.heads; h++) {
            const struct alike a = row_of(&m, r);
            move_all(interleaved, false, m.p, m.D,
                     (struct alike){ 1, a.from + h * a.from_step, 0, hand, 0, 0 },
                     m.cos + (ptrdiff_t)2 * r * m.p->width, m.sign);
            for (int t = 0; t < m.D; t += VL)
                vf_stream(a.to + h * a.to_step + t, vf_load(hand + t));
        }
    vf_streamed();
}
/* Each path is a separate function, compiled for its constants. */
enum path { NEAR, PAST, IN_HAND };
static void half_near(const struct moving *m) { move_rows(false, false, *m); }
static void half_past(const struct moving *m) { move_rows(false, true, *m); }
static void half_in_hand(const struct moving *m) { move_in_hand(false, *m); }
static void interleaved_near(const struct moving *m) { move_rows(true, false, *m); }
static void interleaved_past(const struct moving *m) { move_rows(true, true, *m); }
static void interleaved_in_hand(const struct moving *m) { move_in_hand(true, *m); }

/* Rows go past the caches if they are larger than the caches, move to another place, and begin
 * there on whole vectors in every row and head. */
static enum path path_of(const struct call *c, bool query, const struct moving *m)
{
    const struct loci_plan *p = c->plan;
    const double rows = (double)c->B * (double)(query ? c->Lq * p->heads : c->Lk * p->kv_heads);
    if (rows * m->D * (double)sizeof(real) < PAST_CACHES || m->from.first == m->to.first
        || m->D > 2 * MAX_PAIRS || m->D % VL || m->to.row % VL || m->to.head % VL
        || (uintptr_t)m->to.first % (VL * sizeof(real)))
        return NEAR;
    return m->p->count % VL == 0 && m->p->offset % VL == 0 ? PAST : IN_HAND;
}
static void move(const struct call *c, int x, struct angles *at, ptrdiff_t b, int h, int heads,
                 bool query, bool back, ptrdiff_t i0, int n, struct rows_at from, struct rows_at to)
{
    static void (*const how[2][3])(const struct moving *) = {
        { half_near, half_past, half_in_hand },
        { interleaved_near, interleaved_past, interleaved_in_hand },
    };
    const struct pairs *p = table_of(c, x);
    struct moving m = { .p = p,
                        .cos = cos_of(at, p, 0),
                        .sign = back ? -1 : 1,
                        .D = c->plan->dim,
                        .n = n,
                        .from = from,
                        .to = to };
    const enum path path = path_of(c, query, &m);
    const int all = query ? c->plan->heads : c->plan->kv_heads;
    /* A single thread continues with the next heads of this tile, then with the next tile.  With
     * several threads it is not known which fetches the next item. */
    const real *tile =
        i0 + 2 * n <= (query ? c->Lq : c->Lk) ? from.first - h * from.head + n * from.row : NULL;
    /* Heads with rates of their own go one by one, with angles of their own. */
    for (int i = 0; i < heads;
         i += m.heads, m.from.first += m.heads * from.head, m.to.first += m.heads * to.head) {
        m.heads = p->groups > 1 ? 1 : heads - i < ABREAST || n < AHEAD ? heads - i : ABREAST;
        m.next = c->threads > 1        ? NULL
               : h + i + m.heads < all ? m.from.first + m.heads * from.head
                                       : tile;
        make_angles(c, p, at, b, h + i, query, i0, n);
        how[p->interleaved][path](&m);
    }
}

/* ---- Back ------------------------------------------------------------------------------------ */

/* dw[axis][t] += x[axis] dphi, dphi = row[a] d[b] - row[b] d[a] from the output of rotate() and
 * its gradient.  Rows without a gradient may contain anything. */
static void gather(const struct pairs *p, const double *x, const real *row, const real *d,
                   double (*dw)[MAX_PAIRS])
{
    for (int t = 0; t < p->count; t++) {
        const int a = p->offset + (p->interleaved ? 2 * t : t),
                  b = a + (p->interleaved ? 1 : p->count);
        const double dphi = d[a] == 0 && d[b] == 0
                              ? 0
                              : (double)row[a] * (double)d[b] - (double)row[b] * (double)d[a];
        for (int axis = 0; axis < p->axes; axis++) dw[axis][t] += x[axis] * dphi;
    }
}

/* In double over the rows of a tile, then into the part, if there is one. */
static void gather_rows(const struct call *c, int x, ptrdiff_t b, int h, bool query, ptrdiff_t i0,
                        int n, const real *rows, const real *d, ptrdiff_t stride, real *part)
{
    const struct pairs *p = table_of(c, x);
    double dw[MAX_AXES][MAX_PAIRS] = { { 0 } };
    (void)h;
    if (!part) return;
    for (int r = 0; r < n; r++) {
        double from[MAX_AXES];
        coordinates(c, p, b, query, i0 + r, from);
        gather(p, from, rows + r * stride, d + r * stride, dw);
    }
    for (int axis = 0; axis < p->axes; axis++)
        for (int t = 0; t < p->count; t++) part[axis * (c->plan->dim / 2) + t] += (real)dw[axis][t];
}
static void rotate_bwd(const struct call *c, int x, struct angles *at, ptrdiff_t b, int h,
                       bool query, ptrdiff_t i0, int n, const real *rows, real *d, ptrdiff_t stride,
                       real *part)
{
    const struct pairs *p = table_of(c, x);
    gather_rows(c, x, b, h, query, i0, n, rows, d, stride, part);
    make_angles(c, p, at, b, h, query, i0, n);
    for (int r = 0; r < n; r++) turn_row(at, p, r, -1, d + r * stride);
}

/* Sized for the largest possible number of pairs: tables are not known when
 * the workspace is measured. */
static ptrdiff_t buffer(const struct call *c, int x)
{
    (void)x;
    return angles_size(c->plan->dim / 2);
}

/* ---- Parts of learned frequencies ------------------------------------------------------------ */

/* None if nothing is learned: rotations then need no waves. */
static ptrdiff_t part(const struct call *c, int x)
{
    const struct loci_plan *p = c->plan;
    const int e = p->use[x].enc;
    for (int i = p->first_tensor[e]; i < p->first_tensor[e + 1]; i++)
        if (p->tensors.list[i].role == LOCI_LEARNED) return pairs_part(p->dim, p->axes);
    return 0;
}
static ptrdiff_t part_at(const struct call *c, int x, ptrdiff_t b, int h)
{
    (void)b;
    return h / c->plan->group * part(c, x);
}
static ptrdiff_t total(const struct call *c, int x) { return c->plan->kv_heads * part(c, x); }

static const struct rotation rotation = {
    .buffer = buffer,
    .rotate = rotate,
    .move = move,
    .rotate_bwd = rotate_bwd,
    .turn = turn,
    .turn_bwd = gather_rows,
};
const struct term N(term_pairs) = {
    .name = "pairs",
    .part = part,
    .part_at = part_at,
    .total = total,
    .rotation = &rotation,
};

/* ---- Pairs at positions that come with the call ---------------------------------------------- */

/* phi = z w: z is a real number of each row of a head.  The tensors z_q and z_k are the encoding's
 * last ones. */
static int position_tensor(const struct call *c, int x, bool query)
{
    return c->plan->first_tensor[c->plan->use[x].enc + 1] - (query ? 2 : 1);
}
static ptrdiff_t position_at(const struct call *c, bool query, ptrdiff_t b, int h, ptrdiff_t i)
{
    const struct loci_plan *p = c->plan;
    return (b * (query ? p->heads : p->kv_heads) + h) * (query ? c->Lq : c->Lk) + i;
}
static const real *positions(const struct call *c, int x, bool query, ptrdiff_t b, int h,
                             ptrdiff_t i)
{
    return (const real *)c->input[position_tensor(c, x, query)] + position_at(c, query, b, h, i);
}
/* Each head has positions of its own, and so angles of its own. */
static void make_at_positions(const struct call *c, int x, struct angles *at, ptrdiff_t b, int h,
                              bool query, bool plain, ptrdiff_t i0, int n)
{
    const struct pairs *p = table_of(c, x);
    plain &= p->factor != 1;
    if (at->set && at->b == b && at->group == h && at->query == query && at->plain == plain
        && at->i0 == i0 && at->rows >= n)
        return;
    *at = (struct angles){ .set = true,
                           .query = query,
                           .plain = plain,
                           .group = h,
                           .rows = n,
                           .b = b,
                           .i0 = i0,
                           .buffer = at->buffer };
    double z[KT];
    const real *from = positions(c, x, query, b, h, i0);
    for (int r = 0; r < n; r++) z[r] = (double)from[r];
    for (int t0 = 0; t0 < p->width; t0 += SLICE) {
        struct slice k;
        open_slice(&k, p, p->groups > 1 ? kv_head(c, h, query) : 0, t0, plain);
        angles_on_line(&k, n, z, at->buffer + t0);
    }
}
static void rotate_at_positions(const struct call *c, int x, struct angles *at, ptrdiff_t b, int h,
                                bool query, ptrdiff_t i0, int n, real *rows, ptrdiff_t stride)
{
    make_at_positions(c, x, at, b, h, query, false, i0, n);
    for (int r = 0; r < n; r++) turn_row(at, table_of(c, x), r, 1, rows + r * stride);
}
static void turn_all(const struct angles *at, const struct pairs *p, int n, real sign, real *rows,
                     ptrdiff_t stride)
{
    for (int r = 0; r < n; r++)
        if (!all_zero(rows + r * stride + p->offset, 2 * p->count))
            turn_row(at, p, r, sign, rows + r * stride);
}
static void turn_at_positions(const struct call *c, int x, struct angles *at, ptrdiff_t b, int h,
                              bool query, real sign, ptrdiff_t i0, int n, real *rows,
                              ptrdiff_t stride)
{
    make_at_positions(c, x, at, b, h, query, true, i0, n);
    turn_all(at, table_of(c, x), n, sign, rows, stride);
}
/* dz = sum of w dphi, dw = sum of z dphi.  From rows before rotation and their gradient dphi is the
 * same as from the rows after it. */
static void gather_at_positions(const struct call *c, int x, ptrdiff_t b, int h, bool query,
                                ptrdiff_t i0, int n, const real *rows, const real *d,
                                ptrdiff_t stride, real *part)
{
    const struct pairs *p = table_of(c, x);
    double *dz = c->g.dtensor[position_tensor(c, x, query)];
    const real *z = positions(c, x, query, b, h, i0);
    double dw[1][MAX_PAIRS] = { { 0 } };
    for (int r = 0; r < n && (dz || part); r++) {
        double dphi[1][MAX_PAIRS] = { { 0 } };
        const double one = 1, *w = pairs_rows(p, p->groups > 1 ? kv_head(c, h, query) : 0, 0);
        gather(p, &one, rows + r * stride, d + r * stride, dphi);
        double sum = 0;
        for (int t = 0; t < p->count; t++) {
            sum += w[t] * dphi[0][t];
            if (dphi[0][t] != 0) dw[0][t] += (double)z[r] * dphi[0][t];
        }
        if (dz) dz[position_at(c, query, b, h, i0 + r)] += sum;
    }
    for (int t = 0; part && t < p->count; t++) part[t] += (real)dw[0][t];
}
static void rotate_back_at_positions(const struct call *c, int x, struct angles *at, ptrdiff_t b,
                                     int h, bool query, ptrdiff_t i0, int n, const real *rows,
                                     real *d, ptrdiff_t stride, real *part)
{
    make_at_positions(c, x, at, b, h, query, false, i0, n);
    turn_all(at, table_of(c, x), n, -1, d, stride);
    gather_at_positions(c, x, b, h, query, i0, n, rows, d, stride, part);
}

static const struct rotation rotation_at_positions = {
    .buffer = buffer,
    .rotate = rotate_at_positions,
    .of_input = true,
    .rotate_bwd = rotate_back_at_positions,
    .turn = turn_at_positions,
    .turn_bwd = gather_at_positions,
};
const struct term N(term_positioned_pairs) = {
    .name = "positioned pairs",
    .part = part,
    .part_at = part_at,
    .total = total,
    .rotation = &rotation_at_positions,
};

/* ---- Pairs that fade ------------------------------------------------------------------------- */

static int span(const struct call *c, int x) { return table_of(c, x)->span; }

/* z^power from its digits to base 64, each a row of the table: a few products in double and no
 * pow().  The engine's references are so near that z^power stays in the range of float, or is
 * negligible for keys of a run; loci_rotate() counts from position 0. */
static void fade(const struct call *c, int x, ptrdiff_t b, bool query, bool run, int64_t ref,
                 ptrdiff_t i0, int n, real *rows, ptrdiff_t stride)
{
    const struct pairs *p = table_of(c, x);
    const int W = p->width;
    const double smallest = sizeof(real) == sizeof(float) ? (double)FLT_MIN : DBL_MIN,
                 forgotten = run ? p->least : smallest;
    for (int r = 0; r < n; r++) {
        const int64_t power = query ? pos_q(c, b, i0 + r) - ref : ref - pos_k(c, b, i0 + r);
        const double *digit = pairs_rows(p, 1, 0);
        double z[MAX_PAIRS];
        for (int t = 0; t < W; t++) z[t] = 1;
        for (int64_t left = power < 0 ? -power : power; left;
             left /= PAIR_STEPS, digit += PAIR_STEPS * W) {
            const double *row = digit + left % PAIR_STEPS * W;
            for (int t = 0; t < W; t++) z[t] *= row[t];
        }
        real *to = rows + r * stride + p->offset;
        const double least = power < 0 ? 0 : forgotten;
        for (int t = 0; t < W; t++) z[t] = z[t] < least ? 0 : z[t];
        for (int t = 0; t < p->count; t++) {
            const real f = (real)(power < 0 ? 1 / z[t] : z[t]);
            to[p->interleaved ? 2 * t : t] *= f;
            to[p->interleaved ? 2 * t + 1 : t + p->count] *= f;
        }
    }
}

static const struct rotation fading_rotation = {
    .buffer = buffer,
    .rotate = rotate,
    .rotate_bwd = rotate_bwd,
    .span = span,
    .fade = fade,
};
const struct term N(term_fading_pairs) = {
    .name = "fading pairs",
    .part = part,
    .part_at = part_at,
    .total = total,
    .rotation = &fading_rotation,
};
