/* SPDX-License-Identifier: MIT */
/* workspace.c -- lays out the workspace.  One function measures and lays out, so that size
 * and layout cannot disagree. */
#include "engine/workspace.h"

/* The result of a hook, 0 if there is none. */
static ptrdiff_t ask(ptrdiff_t (*size)(const struct call *, int), const struct call *c, int x)
{
    return size ? size(c, x) : 0;
}

/* One tile of a work item.  first: the first of them; a mix works in that tile's mem.  keys: the
 * tile whose keys and values it reads too; NULL: it has its own. */
static void lay_out_tile(const struct call *c, struct arena *a, bool backward, bool first,
                         const struct tile *keys, struct tile *t)
{
    const struct loci_plan *p = c->plan;
    const int D = p->score_dim, Dv = p->value_dim, Dp = padded(D), Dvp = padded(Dv);
    bool mul = false;
    for (int x = 0; x < p->uses; x++) mul |= p->use[x].group == GROUP_MUL;

    /* The terms' own memory comes last, and only that of terms in use is set. */
    memset(t, 0, offsetof(struct tile, own));
    t->c = c;
    t->q.rows = carve_reals(a, (ptrdiff_t)p->row_forms * QT * Dp);
    t->q.across = carve_reals(a, (ptrdiff_t)p->row_forms * D * QT);
    t->q.faded = fading(c) || p->moves >= 0 ? carve_reals(a, (ptrdiff_t)QT * Dp) : t->q.rows;
    const bool reals = form_of(p->k_dtype) == REALS && form_of(p->v_dtype) == REALS,
               copies = !reals || c->in->pages || c->cache;
    if (keys) {
        t->k.buffer = keys->k.buffer;
        t->v.buffer = keys->v.buffer;
    } else {
        if (copies || rotates_late(c)) t->k.buffer = carve_reals(a, (ptrdiff_t)KT * D);
        if (copies) t->v.buffer = carve_reals(a, (ptrdiff_t)KT * Dv);
    }
    if (c->fast) {
        t->fast.q = carve_bytes(a, (size_t)((D + 1) / 2) * QT, sizeof *t->fast.q);
        t->fast.p = carve_bytes(a, KT / 2 * QT, sizeof *t->fast.p);
        t->fast.v = carve_bytes(a, KT / 2 * (size_t)Dv, sizeof *t->fast.v);
        t->fast.k = carve_bytes(a, KT * (size_t)(D + 1), sizeof *t->fast.k);
    }
    /* Scores and weights are two arrays, as sticks need a score after its weight is written. */
    t->s = carve_reals(a, KT * QT);
    t->p = carve_reals(a, KT * QT);
    if (p->mix >= 0) t->a = carve_reals(a, KT * QT);
    if (p->row_forms > 1) t->of_class = carve_reals(a, KT * QT);
    t->chunk.m = carve_reals(a, QT);
    t->chunk.l = carve_reals(a, QT);
    t->total.m = carve_reals(a, QT);
    t->total.l = carve_reals(a, QT);
    t->alpha = carve_reals(a, QT);
    t->q.norm = carve_reals(a, QT);
    t->lost = carve_reals(a, QT);
    t->chunk.o = carve_reals(a, (ptrdiff_t)Dv * QT);
    t->total.o = carve_reals(a, (ptrdiff_t)Dv * QT);
    /* positions, followed by segments */
    t->qp = carve_bytes(a, 2 * QT, sizeof(int64_t));
    t->kp = carve_bytes(a, 2 * KT, sizeof(int64_t));
    t->hidden = carve_bytes(a, KT, sizeof *t->hidden);
    if (c->in->k_first) {
        t->first = carve_bytes(a, QT, sizeof(int64_t));
        t->last = carve_bytes(a, QT, sizeof(int64_t));
    }
    if (c->in->mask_kind == LOCI_MASK_ADDED) t->added = carve_reals(a, KT * QT);
    if (c->dropout.on) {
        t->drop.a = carve_bytes(a, QT, sizeof *t->drop.a);
        t->drop.b = carve_bytes(a, QT, sizeof *t->drop.b);
    }
    if (c->dropout.on && backward) {
        t->drop.whole = carve_reals(a, KT * QT);
        t->drop.factor = carve_reals(a, KT * QT);
    }
    if (backward) {
        t->dout.across = carve_reals(a, (ptrdiff_t)Dv * QT);
        t->dout.rows = carve_reals(a, (ptrdiff_t)QT * Dvp);
        t->dp = carve_reals(a, KT * QT);
        t->ds = carve_reals(a, KT * QT);
        if (p->mix >= 0) t->da = carve_reals(a, KT * QT);
        if (mul) t->pre = carve_reals(a, KT * QT);
        t->lse = carve_reals(a, QT);
        t->delta = carve_reals(a, QT);
        t->dq = carve_reals(a, (ptrdiff_t)p->row_forms * D * QT);
        t->dqs = carve_reals(a, (ptrdiff_t)p->row_forms * D * QT);
        if (p->moves >= 0) t->of_class = carve_reals(a, (ptrdiff_t)D * QT);
        t->scratch = carve_reals(a, (ptrdiff_t)QT * (Dp > Dvp ? Dp : Dvp));
    }
    EACH_USE(c, x, term) {
        struct own *w = &t->own[x];
        *w = (struct own){ .table = c->table[p->use[x].enc],
                           .scratch = c->mem.scratch[p->use[x].enc] };
        w->mem = carve_reals(a, x != p->mix || first ? ask(term->mem, c, x) * QT : 0);
        w->outn = (int)ask(term->out, c, x);
        w->out = carve_reals(a, (ptrdiff_t)w->outn * QT);
        w->outs = carve_reals(a, (ptrdiff_t)w->outn * QT);
        w->carryn = term->carry ? term->carry(c, x) : 0;
        w->carry = carve_reals(a, (ptrdiff_t)w->carryn * QT);
        if (!backward) continue;
        w->gradn = (int)ask(term->grad, c, x);
        w->grad = carve_reals(a, (ptrdiff_t)w->gradn * QT);
        w->grads = carve_reals(a, (ptrdiff_t)w->gradn * QT);
    }
}

/* Angles come first, so that engines of both widths, and a rotation alone, find them. */
static struct angles *lay_out_angles(const struct call *c, struct arena *a)
{
    const int x = c->plan->rotate;
    if (x < 0) return NULL;
    struct angles *angles = carve_bytes(a, 1, sizeof *angles);
    real *buffer = carve_reals(a, ask(rotation_of(c)->buffer, c, x));
    if (angles) *angles = (struct angles){ .buffer = buffer };
    return angles;
}

/* Sums of a part over all chunks of an item. */
static void lay_out_all(const struct call *c, struct arena *a, double **all)
{
    EACH_USE(c, x, term)
        if (term->part)
            all[x] =
                carve_bytes(a, (size_t)(item_heads(c->plan) * added_part(c, x)), sizeof(double));
}
/* The sums of a backward item, sized for the longest sequence: it is not
 * known which item a block gets. */
static void lay_out_sums(const struct call *c, struct arena *a, struct sums *w)
{
    const struct loci_plan *p = c->plan;
    const ptrdiff_t keys = part_keys(c), heads = item_heads(p);
    w->dk = carve_bytes(a, (size_t)(item_key_heads(p) * keys),
                        (size_t)padded(p->score_dim) * sizeof(real));
    w->dv = carve_bytes(a, (size_t)(item_kv_heads(p) * keys),
                        (size_t)padded(p->value_dim) * sizeof(real));
    EACH_USE(c, x, term) {
        if (term->part) w->part[x] = carve_reals(a, heads * term->part(c, x));
        if (term->tiled) {
            const ptrdiff_t n = item_kv_heads(p) * part_tiles(c);
            w->tiled[x] = carve_reals(a, n * term->tiled(c, x));
        }
        if (term->keyed && term->keyed(c, x))
            w->keys[x] =
                carve_bytes(a, (size_t)(heads * keys), (size_t)key_row(term, c, x) * sizeof(real));
    }
}
static size_t lay_out_block(const struct call *c, char *base, struct sums *w)
{
    struct arena a = { .base = base };
    lay_out_sums(c, &a, w);
    if (most_chunks(c) > 1) lay_out_all(c, &a, w->all);
    return a.full ? SIZE_MAX : a.used;
}
/* The state that rows save from chunk to chunk. */
static void lay_out_saved(const struct call *c, struct arena *a, struct sums *w)
{
    const size_t chunks = (size_t)most_chunks(c),
                 slots = chunks > 1 ? (size_t)(item_heads(c->plan) * item_tiles(c)) : 0;
    size_t chunk_state = (size_t)(c->plan->row_forms * c->plan->score_dim);
    if (!slots) return;
    EACH_USE(c, x, term) {
        const size_t carry = term->carry ? (size_t)(term->carry(c, x) * QT) * sizeof(real) : 0;
        chunk_state += (size_t)(ask(term->grad, c, x) + ask(term->chunk_state, c, x));
        if (carry) w->border[x] = carve_bytes(a, slots * chunks, carry);
    }
    w->chunk_state = carve_bytes(a, slots, chunk_state * QT * sizeof(real));
}
/* The rest of a thread's memory. */
static void lay_out_thread(const struct call *c, struct arena *a, struct sums *w)
{
    const struct loci_plan *p = c->plan;
    const ptrdiff_t tiles = part_tiles(c);
    *w = (struct sums){ .dk = NULL };
    EACH_USE(c, x, term) {
        const size_t carry = term->carry ? (size_t)(term->carry(c, x) * QT) * sizeof(real) : 0;
        if (term->fresh) w->fresh[x] = carve_reals(a, locked(p) * term->fresh(c, x));
        if (carry) w->carry[x] = carve_bytes(a, (size_t)(locked(p) * tiles), carry);
    }
    if (reuses_scores(c)) w->scores = carve_bytes(a, (size_t)tiles, KT * QT * sizeof(real));
    if (chained(c)) return;
    if (most_chunks(c) > 1) lay_out_all(c, a, w->so_far);
    lay_out_saved(c, a, w);
}

/* Lays out all memory of one thread except its block of sums. */
size_t N(lay_out)(const struct call *c, char *base, struct workspace *d, struct sums *sums)
{
    const struct loci_plan *p = c->plan;
    struct arena a = { .base = base };
    const int n = QT == 1 ? (int)item_rows(c) : locked(p);
    struct angles *angles = lay_out_angles(c, &a);
    struct tile *t = carve_bytes(&a, (size_t)n, sizeof *t), spare[2];
    for (int i = 0; i < n; i++) {
        struct tile *one = base ? &t[i] : &spare[i > 0];
        const bool shares = QT == 1 && i > 0 && one_key_head(p);
        lay_out_tile(c, &a, sums != NULL, i % locked(p) == 0,
                     !shares ? NULL
                     : base  ? t
                             : spare,
                     one);
        one->angles = angles;
    }
    *d = (struct workspace){ .tile = t };
    /* Decode streams a chunk as a whole, for all rows that share its keys. */
    if (QT == 1) {
        d->chunk.s = carve_reals(&a, n * decode_stride(c));
        d->chunk.p = carve_reals(&a, n * decode_stride(c));
        d->chunk.alpha = carve_reals(&a, n * decode_tiles(c));
        d->chunk.sums = carve_reals(&a, n * decode_sums(c) * p->value_dim);
        if (many_rows(c)) d->chunk.lines = carve_reals(&a, (ptrdiff_t)KT * p->score_dim);
    }
    if (sums) lay_out_thread(c, &a, sums);
    return a.full ? SIZE_MAX : a.used;
}

struct workspace N(workspace_of)(const struct call *c, int index, struct sums *sums)
{
    struct workspace d;
    N(lay_out)(c, c->mem.workspaces + (size_t)index * c->mem.workspace, &d, sums);
    if (sums && !chained(c)) N(use_block)(c, index, sums);
    return d;
}
void N(use_block)(const struct call *c, int index, struct sums *w)
{
    lay_out_block(c, c->mem.blocks + (size_t)index * c->mem.block, w);
}
struct sums N(sums_of)(const struct call *c, int index)
{
    struct sums w = { .dk = NULL };
    N(use_block)(c, index, &w);
    return w;
}
size_t N(sums_bytes)(const struct call *c)
{
    struct sums w;
    return lay_out_block(c, NULL, &w);
}

static struct item_bytes lay_out_item(const struct call *c, char *item, char *part, struct sums *w)
{
    struct arena a = { .base = item }, b = { .base = part };
    lay_out_sums(c, &a, w);
    lay_out_saved(c, &a, w);
    lay_out_all(c, &b, w->all);
    EACH_USE(c, x, term) w->so_far[x] = w->all[x];
    return (struct item_bytes){ a.full ? SIZE_MAX : round_up(a.used),
                                b.full ? SIZE_MAX : round_up(b.used) };
}
void N(use_item)(const struct call *c, ptrdiff_t item, ptrdiff_t part, struct sums *w)
{
    lay_out_item(c, chain_item(c, item), chain_part(c, part), w);
}
struct item_bytes N(item_bytes)(const struct call *c)
{
    struct sums w = { .dk = NULL };
    return lay_out_item(c, NULL, NULL, &w);
}

/* Saves rows of QT reals or restores them, and steps on. */
static void copy_state(real *rows, ptrdiff_t n, real **at, bool back)
{
    const size_t bytes = sizeof(real) * (size_t)(n * QT);
    if (back) memcpy(rows, *at, bytes);
    else memcpy(*at, rows, bytes);
    *at += n * QT;
}
void N(save_part)(struct tile *t, char *slot, bool back)
{
    real *at = (real *)slot;
    copy_state(t->total.m, 1, &at, back);
    copy_state(t->total.l, 1, &at, back);
    copy_state(t->lost, 1, &at, back);
    copy_state(t->total.o, t->c->plan->value_dim, &at, back);
    t->total.empty = false;
    EACH_USE(t->c, x, term) {
        struct own *own = &t->own[x];
        ptrdiff_t first = 0;
        const ptrdiff_t n = term->part_state ? term->part_state(t->c, x, &first) : 0;
        copy_state(own->outs, own->outn, &at, back);
        copy_state(own->carry, own->carryn, &at, back);
        copy_state(own->mem + first * QT, n, &at, back);
        if (back && n && term->resume) term->resume(t, x);
    }
}
size_t N(part_slot_bytes)(const struct call *c)
{
    ptrdiff_t n = 3 + c->plan->value_dim, first;
    EACH_USE(c, x, term) {
        n += ask(term->out, c, x) + (term->carry ? term->carry(c, x) : 0);
        n += term->part_state ? term->part_state(c, x, &first) : 0;
    }
    return round_up((size_t)(n * QT) * sizeof(real));
}

size_t N(angles_bytes)(const struct call *c)
{
    struct arena a = { .base = NULL };
    lay_out_angles(c, &a);
    return a.used;
}
struct angles *N(angles_of)(const struct call *c, int index)
{
    struct arena a = { .base = c->mem.workspaces + (size_t)index * c->mem.workspace };
    return lay_out_angles(c, &a);
}

void N(run)(const struct call *c, int n, void (*job)(void *, int), void *arg)
{
    /* One job does not wake another thread. */
    if (c->in->host && c->in->host->run && n > 1) {
        c->in->host->run(c->in->host->user, n, job, arg);
        return;
    }
    for (int i = 0; i < n; i++) job(arg, i);
}
