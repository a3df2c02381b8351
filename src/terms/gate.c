/* SPDX-License-Identifier: MIT */
/* gate.c -- forget gates: s += D_ij, the sum of log_f over the keys after j up to the
 * newest key n that row i sees.
 *
 *     C(k) = sum of log_f up to key k, in double; per tile from the oldest key on
 *     j in an older tile than n:    D = c + later[j]
 *     c = C(n) - C(end of the tile of j), rounded once
 *     j in the tile of n:           D = C(n) - C(j), rounded once
 *
 * Gates before both keys cost neither form any precision.  If the keys that a row sees are
 * not an interval of the index, C counts visible keys only, per row, and so does the rest:
 * the same sums, key by key.
 *
 * Backward, on a run: dC(j) = -sum over rows of dS_ij, dC(n) += sum over keys of dS_ij, which is
 * 0 except with dlse, a mix or a stick; fox.c turns dC into dlog_f.  Otherwise dlog_f(l) = sum
 * over rows that see l of the sum of dS over the visible keys before l.
 *
 * stop: row i ends at the first tile border where all older keys together can have at most
 * that share of its weight,
 *
 *     |q_i| max |k_j| + max D_ij + log(number of these keys) - s_in <= log stop
 *
 * with s_in the score of its newest key, where D = 0.  This is a function of the row
 * alone, the same in every pass. */
#include "engine/scores.h"
#include "engine/tile_sums.h"
#include "layout/gate.h"

/* True if rows see intervals of the keys. */
static bool whole(const struct tile *t) { return !t->listed; }
static ptrdiff_t tile_number(const struct tile *t) { return (t->j0 - t->seq->k0) / KT; }

/* State of a query tile per row.  If rows do not see intervals, it is followed by sums
 * and marks of every key tile. */
struct gate {
    /* Backward, not whole: sum of dS of the older keys; saved from chunk to chunk. */
    double before[QT];
    double C[QT];  /* of the newest key */
    double most_C; /* of all live rows */
    /* how many gates up to there are shut or NaN (layout/gate.h) */
    int64_t mark[QT];
    int64_t first_mark, last_mark; /* smallest and largest of the live rows */
    ptrdiff_t newest[QT];          /* counted in the sequence; negative: none */
    ptrdiff_t end[QT];             /* first tile that counts */
    ptrdiff_t first_end, last_end; /* smallest and largest of the live rows */
};
/* True if rows may see keys that are not intervals.  Memory is laid out before that is known. */
static bool can_scatter(const struct call *c)
{
    return c->in->q_pos || c->in->q_seg || c->in->mask_kind || c->in->k_first;
}
static ptrdiff_t key_tiles(const struct call *c) { return (all_keys(c) + KT - 1) / KT; }
static ptrdiff_t mem(const struct call *c, int x)
{
    (void)x;
    const ptrdiff_t row = QT * sizeof(real), tiles = can_scatter(c) ? key_tiles(c) : 0;
    return ((ptrdiff_t)sizeof(struct gate) + row - 1) / row
         + tiles * 2 * (ptrdiff_t)(sizeof(double) / sizeof(real));
}
static ptrdiff_t chunk_state(const struct call *c, int x)
{
    (void)x;
    return can_scatter(c) ? (ptrdiff_t)(sizeof(double) / sizeof(real)) : 0;
}
static struct gate *gate_of(const struct tile *t, int x) { return (struct gate *)t->own[x].mem; }
static double *row_sums(const struct tile *t, int x) { return (double *)(gate_of(t, x) + 1); }
static int64_t *row_marks(const struct tile *t, int x)
{
    return (int64_t *)(row_sums(t, x) + key_tiles(t->c) * QT);
}

static const struct gate_sums *sums_of(const struct tile *t, int x) { return t->own[x].scratch; }
/* Where the call's sums store tile J of this head, and where log_f stores the head's keys. */
static ptrdiff_t slot(const struct tile *t, ptrdiff_t J)
{
    return t->h * t->c->seqs.ktiles + t->seq->first_ktile + J;
}
static ptrdiff_t key_slot(const struct tile *t) { return gate_at(t->c, t->seq->b, t->h); }
static const real *log_f(const struct tile *t, int x)
{
    return (const real *)input(t->c, t->c->plan->use[x].enc, 0) + key_slot(t);
}

/* C at the end of tile J as row r counts it, J >= -1, and the marks. */
struct point {
    double C;
    int64_t mark;
};
static struct point end_of(const struct tile *t, int x, ptrdiff_t J, int r)
{
    if (J < 0) return (struct point){ 0, 0 };
    if (whole(t))
        return (struct point){ sums_of(t, x)->sum[slot(t, J)], sums_of(t, x)->marks[slot(t, J)] };
    return (struct point){ row_sums(t, x)[J * QT + r], row_marks(t, x)[J * QT + r] };
}

/* C and marks of keys 0 .. n - 1 of tile J, on a run.  It is one sum from the tile's border
 * on, so that each key's C has the same bits for every caller.  Gates that are shut or NaN
 * are not summed but marked. */
static void count(const struct tile *t, int x, ptrdiff_t J, int n, double *C, int64_t *marks)
{
    const real *f = log_f(t, x) + t->seq->k0 + J * KT;
    const struct point start = end_of(t, x, J - 1, 0);
    double sum = 0;
    int64_t mark = start.mark;
    for (int k = 0; k < n; k++) {
        const int64_t more = gate_mark((double)f[k]);
        if (more) mark += more;
        else sum += (double)f[k];
        C[k] = start.C + sum;
        marks[k] = mark;
    }
}
/* D over marks that differ: a gate in between is shut or NaN.  A negative number of
 * marks belongs to masked pairs. */
static double across(int64_t marks) { return marks < NOT_A_GATE ? -INFINITY : NAN; }

/* ---- Rows ------------------------------------------------------------------------------------ */

/* Where keys are linked, a row whose newest key belongs to another rank comes with its C. */
static bool is_here(const struct call *c, ptrdiff_t key)
{
    return key >= input_keys(c).first && key < input_keys(c).end;
}
/* C and mark of every row's newest key.  Neighbouring rows mostly share a
 * tile, which is counted once. */
static void open_whole(struct tile *t, int x)
{
    struct gate *g = gate_of(t, x);
    double C[KT];
    int64_t marks[KT];
    ptrdiff_t counted = -1;
    for (int r = 0; r < t->rows; r++) {
        g->newest[r] = gate_newest(t->c, t->seq, t->i0 - t->seq->q0 + r);
        if (g->newest[r] < 0 || !is_here(t->c, g->newest[r])) continue;
        const ptrdiff_t J = g->newest[r] / KT, n = t->seq->nk - J * KT;
        /* a single row needs no key after its own */
        if (J != counted)
            count(t, x, J, QT == 1 ? (int)(g->newest[r] % KT) + 1 : n < KT ? (int)n : KT, C, marks);
        counted = J;
        g->C[r] = C[g->newest[r] % KT];
        g->mark[r] = marks[g->newest[r] % KT];
    }
}
/* The same for rows that do not see intervals, key by key, with the sums up to every tile's end.
 * The order is that of a run: up to the newest key oldest first, whole tiles newest first. */
static void open_scattered(struct tile *t, int x)
{
    struct gate *g = gate_of(t, x);
    double *sums = row_sums(t, x);
    int64_t *marks = row_marks(t, x);
    for (ptrdiff_t J = 0; J * KT < t->seq->nk; J++, sums += QT, marks += QT) {
        const bool seen = set_keys(t, J * KT, t->seq->nk - 1);
        const real *f = log_f(t, x) + t->j0;
        for (int r = 0; r < t->rows; r++) {
            const double start = J ? sums[r - QT] : 0;
            double up = 0, down = 0;
            for (int k = 0; seen && k < t->keys; k++) {
                if (!visible(t, k, r)) continue;
                const int64_t more = gate_mark((double)f[k]);
                if (more) g->mark[r] += more;
                else up += (double)f[k];
                g->newest[r] = J * KT + k;
                g->C[r] = start + up;
            }
            for (int k = t->keys - 1; seen && k >= 0; k--)
                if (visible(t, k, r) && !gate_mark((double)f[k])) down += (double)f[k];
            sums[r] = start + down;
            marks[r] = g->mark[r];
        }
    }
}

/* The first tile of row r whose keys count: the first that breaks the rule above.  The left side
 * never falls from older to newer tiles, so bisection finds it. */
static ptrdiff_t end_of_row(const struct tile *t, int x, int r, double log_stop)
{
    const struct call *c = t->c;
    const struct gate *g = gate_of(t, x);
    const struct gate_sums *a = sums_of(t, x);
    const struct sequence *q = t->seq;
    /* its tile is the first */
    if (g->newest[r] < KT) return 0;
    const ptrdiff_t j = q->k0 + g->newest[r];
    real buffer[MAX_DIM];
    const real *key = c->mem.rotated ? (const real *)c->mem.rotated
                                           + ((q->b * c->plan->key_heads + t->kh) * c->Lk + j)
                                                 * c->plan->score_dim
                                     : find_row(c, KEYS, q->b, t->kvh, j, buffer);
    /* s_in, as the products of the tile compute it */
    real newest = 0;
    for (int d = 0; d < c->plan->score_dim; d++)
        newest = fma_(key[d], t->q.across[d * QT + r], newest);
    const double *knorm = a->knorm + t->kh * c->seqs.ktiles + q->first_ktile;
    /* tiles before low are forgotten, high is not */
    ptrdiff_t low = 0, high = g->newest[r] / KT;
    while (low < high) {
        const ptrdiff_t J = low + (high - low) / 2;
        const struct point at = end_of(t, x, J, r);
        const double D = g->mark[r] == at.mark ? g->C[r] - at.C : across(g->mark[r] - at.mark);
        if ((double)t->q.norm[r] * knorm[J] + a->rise[slot(t, J)] + D - (double)newest <= log_stop)
            low = J + 1;
        else high = J;
    }
    return low;
}

/* The largest C, and the smallest and the largest mark. */
static void bound_rows(struct gate *g, int rows)
{
    g->most_C = g->C[0];
    g->first_mark = g->last_mark = g->mark[0];
    for (int r = 1; r < rows && r < QT; r++) { /* gcc 14 sees no end without QT */
        if (g->C[r] > g->most_C) g->most_C = g->C[r];
        if (g->mark[r] < g->first_mark) g->first_mark = g->mark[r];
        if (g->mark[r] > g->last_mark) g->last_mark = g->mark[r];
    }
}
static ptrdiff_t part_state(const struct call *c, int x, ptrdiff_t *first)
{
    const ptrdiff_t row = QT * sizeof(real);
    (void)x;
    *first = 0;
    return partial_inputs(c) ? ((ptrdiff_t)sizeof(struct gate) + row - 1) / row : 0;
}
/* mem already contains the C that came with a row; it is computed here if
 * its newest key is present. */
static void resume(struct tile *t, int x)
{
    struct gate *g = gate_of(t, x);
    open_whole(t, x);
    bound_rows(g, t->rows);
}

/* Finds every row's newest key and its C, and with stop= where the row ends. */
static void open(struct tile *t, int x)
{
    struct gate *g = gate_of(t, x);
    memset(g, 0, sizeof *g);
    for (int r = 0; r < QT; r++) g->newest[r] = -1;
    if (whole(t)) open_whole(t, x);
    else open_scattered(t, x);
    bound_rows(g, t->rows);
    if (!sums_of(t, x)->stops || !whole(t)) return;
    const double log_stop = log_(t->c->plan->enc[t->c->plan->use[x].enc].opt[GATE_STOP]);
    measure_rows(t);
    for (int r = 0; r < t->rows; r++) {
        g->end[r] = end_of_row(t, x, r, log_stop);
        if (r == 0 || g->end[r] < g->first_end) g->first_end = g->end[r];
        if (r == 0 || g->end[r] > g->last_end) g->last_end = g->end[r];
    }
}
/* All rows have ended: no older tile counts. */
static bool exhausted(const struct tile *t, int x)
{
    return tile_number(t) < gate_of(t, x)->first_end;
}

static bool ends(const struct call *c, int x)
{
    return ((const struct gate_sums *)c->mem.scratch[c->plan->use[x].enc])->stops;
}

/* ---- Scores ---------------------------------------------------------------------------------- */

/* Rows of a run whose newest key is in this tile or an older one: they are the first. */
static int near_rows(const struct tile *t)
{
    const struct sequence *q = t->seq;
    const ptrdiff_t j = t->j0 - q->k0 + KT;
    if (j >= q->nk) return QT;
    const ptrdiff_t rows = j - gate_newest(t->c, q, t->i0 - q->q0);
    return rows < 0 ? 0 : rows < QT ? (int)rows : QT;
}

/* c of every row, for the keys of this tile, if the row's newest key is in a newer one.  Where
 * marks differ, a gate in between is shut or NaN. */
static void gaps(const struct tile *t, int x, real *c)
{
    const struct gate *g = gate_of(t, x);
    const struct point end = end_of(t, x, tile_number(t), 0);
    for (int r = 0; r < QT; r++) c[r] = (real)(g->C[r] - end.C);
    if (g->last_mark == end.mark) return;
    for (int r = 0; r < QT; r++)
        if (g->mark[r] != end.mark) c[r] = (real)across(g->mark[r] - end.mark);
}

/* D of a run's tile without marks.  Only the first `near` rows have their newest key in it or in
 * an older one; in an older one all these keys are masked. */
static void add_run(struct tile *t, int x)
{
    const struct gate *g = gate_of(t, x);
    const real *later = (const real *)sums_of(t, x)->later + key_slot(t) + t->j0;
    const int near = near_rows(t);
    real *restrict s = t->s, c[QT];
    double C[KT];
    int64_t marks[KT];
    gaps(t, x, c);
    if (!near) {
        for (int k = 0; k < t->keys; k++)
            for (int r = 0; r < QT; r++) s[k * QT + r] += c[r] + later[k];
        return;
    }
    count(t, x, tile_number(t), t->keys, C, marks);
    for (int k = 0; k < t->keys; k++) {
        for (int r = 0; r < near; r++) s[k * QT + r] += (real)(g->C[r] - C[k]);
        for (int r = near; QT > 1 && r < QT; r++) s[k * QT + r] += c[r] + later[k];
    }
}

/* The same for one row, pair by pair: where rows do not see intervals, and in tiles
 * with a gate that is shut or NaN.  The sums are those of add_run(), from the tile's
 * border up or from its end down. */
static void add_row(struct tile *t, int x, int r)
{
    const struct gate *g = gate_of(t, x);
    const ptrdiff_t J = tile_number(t);
    const real *f = log_f(t, x) + t->j0;
    const ptrdiff_t newest = g->newest[r] - J * KT;
    const struct point start = end_of(t, x, J - 1, r), end = end_of(t, x, J, r);
    double sum = 0;
    if (newest < 0) return;
    if (newest < KT) {
        /* the tile of the newest key, or one that contains no key after it */
        int64_t mark = start.mark;
        for (int k = 0; k <= newest; k++) {
            const bool sees = visible(t, k, r);
            if (!sees && !whole(t)) continue;
            const int64_t more = gate_mark((double)f[k]);
            if (more) mark += more;
            else sum += (double)f[k];
            if (sees)
                S(t, k, r) += (real)(g->mark[r] == mark ? g->C[r] - (start.C + sum)
                                                        : across(g->mark[r] - mark));
        }
    } else {
        const real c =
            (real)(g->mark[r] == end.mark ? g->C[r] - end.C : across(g->mark[r] - end.mark));
        for (int k = t->keys - 1; k >= 0; k--) {
            const bool sees = visible(t, k, r);
            if (sees) S(t, k, r) += c + (real)sum;
            if (sees || whole(t)) sum += gate_value((double)f[k]);
        }
    }
}

/* The score hook.  Rows that have ended get -inf in this tile.  A gate that is NaN must not reach
 * masked pairs. */
static void add_gates(struct tile *t, int x)
{
    const struct gate *g = gate_of(t, x);
    const ptrdiff_t J = tile_number(t);
    const int64_t mark = end_of(t, x, J, 0).mark;
    const bool spoilt = t->partial && g->last_mark - mark >= NOT_A_GATE;
    if (whole(t) && mark == end_of(t, x, J - 1, 0).mark && !spoilt) add_run(t, x);
    else
        for (int r = 0; r < t->rows; r++) add_row(t, x, r);
    for (int r = 0; J < g->last_end && r < t->rows; r++)
        for (int k = 0; J < g->end[r] && k < t->keys; k++) S(t, k, r) = -INFINITY;
}

/* The most that D can be in this tile: the largest c and the largest sum of later keys.  Where
 * rows forget all keys it is low but finite, so that sums of ceilings stay numbers. */
static real ceiling(const struct tile *t, int x)
{
    const struct gate *g = gate_of(t, x);
    const real low = -FLT_MAX / 8;
    if (!whole(t) || near_rows(t) > 0) return INFINITY;
    const struct point end = end_of(t, x, tile_number(t), 0);
    if (g->last_mark - end.mark >= NOT_A_GATE) return INFINITY;
    if (g->first_mark > end.mark) return low;
    return max_((real)(g->most_C - end.C), low)
         + ((const real *)sums_of(t, x)->top)[slot(t, tile_number(t))];
}

/* ---- Backward -------------------------------------------------------------------------------- */

/* By key: dC or, where rows do not see intervals, dlog_f.  A row of
 * gradient is the sum of its dS. */
static int keyed(const struct call *c, int x)
{
    (void)c;
    (void)x;
    return 1;
}
static ptrdiff_t keys_at(const struct call *c, int x, ptrdiff_t b, int h)
{
    (void)x;
    return (b * c->plan->heads + h) * c->Lk;
}
static ptrdiff_t total(const struct call *c, int x)
{
    (void)x;
    return c->B * c->plan->heads * c->Lk;
}
static ptrdiff_t grad(const struct call *c, int x)
{
    (void)c;
    (void)x;
    return 1;
}

#if QT > 1
/* dC(n) of the rows whose newest key is in this tile: the sum over all their keys, as newer ones
 * are masked.  Rows that share their newest key are neighbours. */
static void give_rows(const struct tile *t, int x)
{
    const ptrdiff_t *newest = gate_of(t, x)->newest, first = t->j0 - t->seq->k0;
    const real *before = t->own[x].grads, *chunk = t->own[x].grad;
    for (int r = 0; r < t->rows;) {
        const ptrdiff_t key = newest[r] - first;
        real sum = 0;
        for (; r < t->rows && newest[r] - first == key; r++) sum += before[r] + chunk[r];
        if (key >= 0 && key < t->keys) t->own[x].keys[key] += sum;
    }
}
/* Keys come oldest first, so before[r] is the sum over the older keys that the row sees: each
 * key's gate affects all of them. */
static void score_bwd(struct tile *t, int x)
{
    real *keys = t->own[x].keys;
    if (!keys) return;
    if (whole(t)) {
        sum_tile(t->ds, t->keys, keys, t->own[x].grad);
        give_rows(t, x);
        return;
    }
    double *before = gate_of(t, x)->before;
    for (int k = 0; k < t->keys; k++) {
        double sum = 0;
        for (int r = 0; r < t->rows; r++) {
            if (!visible(t, k, r)) continue;
            sum += before[r];
            before[r] += (double)t->ds[k * QT + r];
        }
        keys[k] += (real)sum;
    }
}
#endif

const struct term N(term_gate) = {
    .name = "gate",
    .mem = mem,
    .chunk_state = chunk_state,
    .part_state = part_state,
    .resume = resume,
    .keyed = keyed,
    .keyed_alone = true,
    .keys_at = keys_at,
    .total = total,
    .grad = grad,
    .open = open,
    .score = add_gates,
    .ceiling = ceiling,
    .fades = true,
    .exhausted = exhausted,
    .ends = ends,
#if QT > 1
    .score_bwd = score_bwd,
#endif
};
