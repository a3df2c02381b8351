/* SPDX-License-Identifier: MIT */
/* totals.c -- gradients of tables.  They pass from rank to rank once, after all rows are summed. */
#include "distributed/sums.h"

static void copy_totals(struct backward *w, bool back)
{
    const struct call *c = &w->w.open;
    char *at = w->totals;
    for (int x = 0; x < c->plan->uses; x++) {
        ptrdiff_t first, count;
        if (!c->g.total[x]) continue;
        c->plan->engine->chained->keyed(c, x, &first, &count);
        const size_t bytes = (size_t)first * sizeof(double);
        if (back) memcpy(c->g.total[x], at, bytes);
        else memcpy(at, c->g.total[x], bytes);
        at += bytes;
    }
}
/* The order in which one process adds.  Entries go from the last to the first.  Within an entry
 * come the items of all rows, latest first, then the tiles of all keys, oldest first. */
struct visit {
    int rank, share;
    ptrdiff_t b;
    bool tiles;
};
/* filled() counts the shares that are not empty.  find_filled() returns number `which` of them. */
static int filled(const loci_share *list, int n)
{
    int all = 0;
    for (int s = 0; s < n; s++) all += list[s].count > 0;
    return all;
}
static int find_filled(const loci_share *list, int which)
{
    int s = 0;
    while (!list[s].count || which-- > 0) s++;
    return s;
}
static struct visit visit_at(const struct rank_ctx *a, ptrdiff_t v)
{
    const int rows = filled(a->all.shares, a->all.count),
              keys = filled(a->key_shares, a->key_count);
    const ptrdiff_t B = a->call.batch, items = B * rows;
    if (v < items) {
        const int s = find_filled(a->all.shares, rows - 1 - (int)(v % rows));
        return (struct visit){ a->all.shares[s].rank, s, B - 1 - v / rows, false };
    }
    const int s = find_filled(a->key_shares, (int)((v - items) % keys));
    return (struct visit){ a->key_shares[s].rank, s, (v - items) / keys, true };
}
static ptrdiff_t visits(const struct rank_ctx *a, const struct backward *w)
{
    const ptrdiff_t rows = filled(a->all.shares, a->all.count),
                    keys = filled(a->key_shares, a->key_count);
    return a->call.batch * (rows + (w->tiles ? keys : 0));
}
/* How many of the rank's own runs, or tiles, come before those of a share. */
static ptrdiff_t before(const loci_share *list, int share, int rank, bool count_tiles)
{
    ptrdiff_t n = 0;
    for (int s = 0; s < share; s++)
        if (list[s].rank == rank && list[s].count)
            n += count_tiles ? tiles((ptrdiff_t)list[s].count, KT) : 1;
    return n;
}
static void visit(const struct rank_ctx *a, struct call *c, const struct visit *v)
{
    const struct chained *engine = a->plan->engine->chained;
    if (!v->tiles) engine->add_parts(c, before(a->all.shares, v->share, v->rank, false), v->b);
    else
        engine->add_tiles(c, v->b, before(a->key_shares, v->share, v->rank, true),
                          tiles((ptrdiff_t)a->key_shares[v->share].count, KT));
}
static void pass_totals(struct rank_ctx *a, struct backward *w, int rank, bool recv)
{
    if (rank == a->via.rank || a->broken) return;
    if (!recv) copy_totals(w, false);
    if (recv)
        loci_receive_from(a, &w->in.requests[w->in.n++], rank, TAG_TOTALS, w->totals,
                          w->total_bytes);
    else loci_send_to(a, &w->in, rank, TAG_TOTALS, w->totals, w->total_bytes);
    loci_end_sends(a, &w->in);
    if (recv && !a->broken) copy_totals(w, true);
}
void loci_sum_totals(struct rank_ctx *a, struct backward *w, bool works)
{
    const ptrdiff_t n = visits(a, w);
    if (!w->total_bytes || !n) return;
    const struct visit last = visit_at(a, n - 1);
    for (ptrdiff_t v = 0; v < n && !a->broken; v++) {
        const struct visit at = visit_at(a, v);
        if (at.rank != a->via.rank) continue;
        if (v > 0) pass_totals(a, w, visit_at(a, v - 1).rank, true);
        if (works && !a->broken) visit(a, &w->w.open, &at);
        if (v < n - 1) pass_totals(a, w, visit_at(a, v + 1).rank, false);
    }
    if (last.rank != a->via.rank) pass_totals(a, w, last.rank, true);
    else
        for (int r = 0; r < a->via.ranks; r++) pass_totals(a, w, r, false);
}
