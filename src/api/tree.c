/* SPDX-License-Identifier: MIT */
/* tree.c -- trees of tokens, by forks of a cache: see loci/cache.h.
 *
 * Every path from the sequence to a leaf is a fork of the sequence that all its nodes are appended
 * to.  A node that several paths contain is computed in the first of them only.  So a tree is an
 * append and a forward pass over the whole cache, in which entry e has the nodes of a path as its
 * last rows.  Rows are gathered for them, and outputs go back to the nodes. */
#include "api/trees.h"

static const int64_t *parents_of(const loci_tree *t, const loci_call *in, ptrdiff_t b)
{
    return t->parents + b * in->q_len;
}
static ptrdiff_t nodes_of(const loci_tree *t, const loci_call *in, ptrdiff_t b)
{
    return t->nodes ? (ptrdiff_t)t->nodes[b] : in->q_len;
}
static bool is_leaf(const int64_t *parents, ptrdiff_t nodes, ptrdiff_t i)
{
    for (ptrdiff_t k = i + 1; k < nodes; k++)
        if (parents[k] == i) return false;
    return true;
}
/* Nodes from the root to a node. */
static ptrdiff_t depth_of(const int64_t *parents, ptrdiff_t i)
{
    ptrdiff_t n = 0;
    for (; i >= 0; i = (ptrdiff_t)parents[i]) n++;
    return n;
}
ptrdiff_t loci_tree_paths(const int64_t *parents, ptrdiff_t nodes)
{
    ptrdiff_t leaves = 0;
    for (ptrdiff_t i = 0; i < nodes; i++)
        if (!parents || parents[i] < -1 || parents[i] >= i) return LOCI_NONE;
    for (ptrdiff_t i = 0; i < nodes; i++) leaves += is_leaf(parents, nodes, i);
    return nodes < 0 ? LOCI_NONE : leaves;
}

/* ---- The trees of a call --------------------------------------------------------------------- */

/* A path: its nodes from the root on, of which the last `fresh` are in no earlier path. */
struct path {
    ptrdiff_t tree, entry, length, fresh, *node;
};
/* The trees of a call, and the memory of their rows.  Buffers have `longest` rows for each entry of
 * the cache. */
struct trees {
    struct tree_backend *backend;
    const loci_plan *plan;
    const loci_tree *tree;
    const loci_call *in;
    ptrdiff_t entries, paths, longest;
    loci_view q, k, v, o; /* of the caller */

    struct path *path;
    ptrdiff_t *nodes; /* [paths][longest] */
    bool *taken;      /* [nodes of a tree]: is it in an earlier path? */
    int64_t *counts, *q_counts, *q_pos, *k_pos;
    double *q_coord, *k_coord;
    const void **tensors;
    struct tree_move *move; /* of the copies that come next */

    /* Memory of the backend. */
    struct tree_move *move_there;
    char *rows[4];  /* q, k, v, o */
    void *row, *ae; /* lse or rem */
    void *tensor[MAX_TENSORS];
    void *work; /* of the calls that are made */
    size_t work_bytes;
};

/* Rows must not see the nodes below them, whose keys are there already: positions that are given
 * rise along every path. */
static loci_status check_positions(const struct trees *t, ptrdiff_t b)
{
    const loci_call *in = t->in;
    const ptrdiff_t first = in->per_batch ? b * in->q_len : 0;
    const int64_t *parents = parents_of(t->tree, in, b), *q = in->q_pos + first,
                  *k = in->k_pos + first;
    for (ptrdiff_t i = 0; i < nodes_of(t->tree, in, b); i++)
        CHECK(in->error, parents[i] < 0 || (q[parents[i]] < k[i] && k[parents[i]] < k[i]),
              LOCI_BAD_ARG,
              "node %td of tree %td is at position %lld, and the node before it at %lld: positions "
              "must rise along a path",
              i, b, (long long)k[i], (long long)k[parents[i]]);
    return LOCI_OK;
}
/* Validates trees and finds how many paths they have and how long these are. */
static loci_status measure_trees(struct trees *t)
{
    const loci_tree *tree = t->tree;
    const loci_call *in = t->in;
    loci_error *e = in->error;
    const struct loci_cache *c = t->backend->cache;
    CHECK(e, !c->form.ring, LOCI_BAD_ARG, "trees do not support rings");
    CHECK(e, !t->plan->full, LOCI_BAD_ARG,
          "trees need a causal plan: with full = 1 a row would see the nodes below it");
    CHECK(e, in->q_len == in->k_len, LOCI_BAD_ARG,
          "k_len %td must be q_len %td: a node is a row and a key", in->k_len, in->q_len);
    CHECK(e, in->batch == 0 || (tree->entry && tree->branch && (tree->parents || !in->q_len)),
          LOCI_BAD_ARG, "entry, branch and parents of a tree must not be NULL");
    t->entries = (ptrdiff_t)c->form.batch;
    for (ptrdiff_t b = 0; b < in->batch; b++) {
        const ptrdiff_t nodes = nodes_of(tree, in, b);
        CHECK(e, nodes >= 0 && nodes <= in->q_len, LOCI_BAD_ARG,
              "nodes: tree %td has %td nodes, and q_len is %td", b, nodes, in->q_len);
        const int64_t *parents = parents_of(tree, in, b), entry = tree->entry[b],
                      first = tree->branch[b];
        CHECK(e, entry >= 0 && entry < t->entries, LOCI_BAD_ARG,
              "entry %lld of tree %td must be from 0 to %td", (long long)entry, b, t->entries - 1);
        CHECK(e, first >= 0 && tree->room >= 0 && first <= t->entries - tree->room, LOCI_BAD_ARG,
              "tree %td: %td entries from %lld on must be entries of the cache, which has %td", b,
              tree->room, (long long)first, t->entries);
        for (ptrdiff_t a = 0; a <= b; a++) {
            const int64_t other = tree->entry[a], start = tree->branch[a];
            CHECK(e, a == b || other != entry, LOCI_BAD_ARG,
                  "trees %td and %td continue the same entry %lld", a, b, (long long)entry);
            CHECK(e, a == b || start >= first + tree->room || first >= start + tree->room,
                  LOCI_BAD_ARG, "trees %td and %td have the same entries for their paths", a, b);
            CHECK(e,
                  (entry < start || entry >= start + tree->room)
                      && (other < first || other >= first + tree->room),
                  LOCI_BAD_ARG, "a tree continues an entry that paths may take: %lld",
                  (long long)(entry < start || entry >= start + tree->room ? other : entry));
        }
        const ptrdiff_t paths = loci_tree_paths(parents, nodes);
        CHECK(e, paths >= 0, LOCI_BAD_ARG,
              "parents of tree %td: each must be the number of an earlier node, or -1", b);
        if (in->k_pos) TRY(check_positions(t, b));
        CHECK(e, paths <= tree->room, LOCI_BAD_ARG,
              "tree %td has %td paths, and room for %td: each leaf takes an entry", b, paths,
              tree->room);
        for (ptrdiff_t i = 0; i < nodes; i++) {
            if (!is_leaf(parents, nodes, i)) continue;
            const ptrdiff_t depth = depth_of(parents, i);
            CHECK(e, depth <= cache_capacity(c) - lengths(c)[entry], LOCI_BAD_ARG,
                  "tree %td: %td keys after the %lld of entry %lld do not fit into the cache's %td",
                  b, depth, (long long)lengths(c)[entry], (long long)entry, cache_capacity(c));
            if (depth > t->longest) t->longest = depth;
        }
        t->paths += paths;
    }
    const ptrdiff_t most = t->backend->longest;
    CHECK(e, !most || t->longest <= most, LOCI_UNSUPPORTED,
          "a path of %td nodes does not run on a GPU in such wide heads: it may have %td",
          t->longest, most);
    return LOCI_OK;
}
/* A tensor that has rows of its own for rows or for keys: [batch][outer][rows][inner] numbers. */
struct by_row {
    bool query;
    size_t outer, inner;
};
static bool has_rows(const loci_tensor *t, struct by_row *a)
{
    bool rows = false;
    *a = (struct by_row){ false, 1, 1 };
    for (int i = 1; i < t->rank && t->role == LOCI_INPUT; i++) {
        a->query |= t->shape[i] == LOCI_DIM_QUERIES;
        if (t->shape[i] == LOCI_DIM_QUERIES || t->shape[i] == LOCI_DIM_KEYS) rows = true;
        else if (rows) a->inner *= (size_t)t->shape[i];
        else a->outer *= (size_t)t->shape[i];
    }
    return rows;
}
/* The calls on the whole cache: an append of keys, and a pass over rows. */
static loci_call call_of(const struct trees *t, ptrdiff_t rows)
{
    const loci_call *in = t->in;
    loci_call c = LOCI_CALL(.batch = t->entries, .q_len = rows, .k_len = rows,
                            .cache = t->backend->cache, .host = in->host, .error = in->error,
                            .work_bytes = t->work_bytes, .tables_bytes = in->tables_bytes,
                            .per_batch = in->k_pos || in->k_coord, .tensors = t->tensors);
    *(t->plan->weight < 0 ? &c.lse : &c.rem) = t->row;
    c.ae = t->ae;
    c.o.data = t->rows[3];
    return c;
}
/* Lists of the host. */
static void lay_out_lists(struct trees *t, struct arena *a)
{
    const loci_call *in = t->in;
    const size_t rows = (size_t)(t->entries * t->longest), axes = (size_t)t->plan->axes;
    t->path = carve_bytes(a, (size_t)t->paths, sizeof *t->path);
    t->nodes = carve_bytes(a, (size_t)(t->paths * t->longest), sizeof *t->nodes);
    t->taken = carve_bytes(a, (size_t)in->q_len, sizeof *t->taken);
    t->counts = carve_bytes(a, (size_t)t->entries, sizeof *t->counts);
    t->q_counts = carve_bytes(a, (size_t)t->entries, sizeof *t->q_counts);
    if (in->k_pos) {
        t->q_pos = carve_bytes(a, rows, sizeof *t->q_pos);
        t->k_pos = carve_bytes(a, rows, sizeof *t->k_pos);
    }
    if (in->k_coord) {
        t->q_coord = carve_bytes(a, rows * axes, sizeof *t->q_coord);
        t->k_coord = carve_bytes(a, rows * axes, sizeof *t->k_coord);
    }
    t->tensors = carve_bytes(a, MAX_TENSORS, sizeof *t->tensors);
    t->move = carve_bytes(a, rows, sizeof *t->move);
}
/* Rows, and the workspace of the calls that are made. */
static void lay_out_rows(struct trees *t, struct arena *a)
{
    const loci_plan *p = t->plan;
    const loci_call *in = t->in;
    const size_t rows = (size_t)(t->entries * t->longest),
                 numbers[] = { (size_t)(p->heads * p->dim), (size_t)(p->kv_heads * p->dim),
                               p->values_in_keys ? 0 : (size_t)(p->kv_heads * p->value_dim),
                               (size_t)(p->heads * p->value_dim) };
    if (t->backend->upload) t->move_there = carve_bytes(a, rows, sizeof *t->move);
    for (int i = 0; i < COUNT(numbers); i++)
        t->rows[i] = carve_bytes(a, rows * numbers[i], p->stored);
    t->row = carve_bytes(a, rows * (size_t)p->heads, p->real);
    if (in->ae) t->ae = carve_bytes(a, rows * (size_t)(p->heads * p->dim), p->real);
    for (int i = 0; i < p->tensors.n; i++) {
        struct by_row r;
        if (!has_rows(&p->tensors.list[i], &r)) continue;
        t->tensor[i] = carve_bytes(a, rows * r.outer * r.inner, p->real);
    }
    t->work = a->base ? a->base + a->used : NULL;
    /* Which pointers are NULL matters, and nothing else about them. */
    loci_call most = call_of(t, t->longest);
    most.q_pos = in->q_pos;
    most.k_pos = in->k_pos;
    most.q_coord = in->q_coord;
    most.k_coord = in->k_coord;
    *(p->weight < 0 ? &most.lse : &most.rem) = t->backend->cache;
    most.ae = in->ae;
    t->work_bytes = t->longest ? t->backend->workspace(t->backend, &most) : 1;
    if (!t->work_bytes) a->full = true;
    else carve_bytes(a, t->work_bytes, 1);
}
/* The bytes of `work`. */
static size_t measure_work(struct trees *t)
{
    struct arena all = { 0 };
    if (!t->backend->lists) lay_out_lists(t, &all);
    lay_out_rows(t, &all);
    return all.full ? SIZE_MAX : all.used;
}

/* ---- Rows of paths --------------------------------------------------------------------------- */

/* Finds the paths: leaf by leaf, in the order of their numbers. */
static void find_paths(struct trees *t)
{
    struct path *path = t->path;
    for (ptrdiff_t b = 0; b < t->in->batch; b++) {
        const int64_t *parents = parents_of(t->tree, t->in, b);
        const ptrdiff_t nodes = nodes_of(t->tree, t->in, b);
        ptrdiff_t entry = (ptrdiff_t)t->tree->branch[b];
        memset(t->taken, 0, (size_t)nodes * sizeof *t->taken);
        for (ptrdiff_t i = 0; i < nodes; i++) {
            if (!is_leaf(parents, nodes, i)) continue;
            *path = (struct path){ .tree = b,
                                   .entry = entry++,
                                   .length = depth_of(parents, i),
                                   .node = t->nodes + (path - t->path) * t->longest };
            ptrdiff_t at = path->length;
            for (ptrdiff_t k = i; k >= 0; k = (ptrdiff_t)parents[k]) {
                path->node[--at] = k;
                path->fresh += !t->taken[k];
                t->taken[k] = true;
            }
            path++;
        }
    }
}
/* Rows of a call: the last `count` nodes of each path come last of `rows`. */
struct rows_of {
    ptrdiff_t rows;
    bool fresh; /* only nodes that are in no earlier path */
    bool back;  /* from these rows to those of the caller */
};
/* Lists where they are, for the copies that come next. */
static loci_status list_moves(struct trees *t, struct rows_of r)
{
    const ptrdiff_t all = t->entries * r.rows;
    for (ptrdiff_t i = 0; i < all; i++) t->move[i] = (struct tree_move){ 0, -1 };
    for (const struct path *path = t->path; path < t->path + t->paths; path++) {
        const ptrdiff_t n = r.fresh ? path->fresh : path->length;
        struct tree_move *move = t->move + path->entry * r.rows;
        for (ptrdiff_t i = r.rows - n; i < r.rows; i++) {
            const ptrdiff_t node = path->node[path->length - r.rows + i];
            move[i] = r.back ? (struct tree_move){ i, node } : (struct tree_move){ node, i };
        }
    }
    if (!t->backend->upload) return LOCI_OK;
    return t->backend->upload(t->backend, t->move_there, t->move, (size_t)all * sizeof *t->move);
}
/* Copies rows of all trees from a view of the caller to [entries][outer][rows][inner], or back, as
 * the list of moves says.  Strides are in numbers of `each` bytes. */
static loci_status copy_rows(const struct trees *t, struct rows_of r, void *rows,
                             const loci_view *view, size_t outer, size_t inner, size_t each,
                             copy_tree *copy)
{
    const ptrdiff_t head = r.rows * (ptrdiff_t)inner, entry = (ptrdiff_t)outer * head;
    for (ptrdiff_t b = 0; b < t->in->batch && view->data; b++) {
        const ptrdiff_t first = (ptrdiff_t)t->tree->branch[b], size = (ptrdiff_t)each;
        const loci_view theirs = { (char *)view->data + b * view->batch * size, 0, view->head,
                                   view->row },
                        ours = { (char *)rows + first * entry * size, entry, head,
                                 (ptrdiff_t)inner };
        TRY(copy(t->backend,
                 &(struct tree_copy){ .from = r.back ? ours : theirs,
                                      .to = r.back ? theirs : ours,
                                      .entries = t->tree->room,
                                      .rows = r.rows,
                                      .outer = outer,
                                      .inner = inner,
                                      .each = each,
                                      .move = t->move + first * r.rows,
                                      .move_there =
                                          t->move_there ? t->move_there + first * r.rows : NULL }));
    }
    return LOCI_OK;
}
loci_status loci_tree_copy(struct tree_backend *backend, const struct tree_copy *c)
{
    (void)backend;
    const size_t bytes = c->inner * c->each;
    for (ptrdiff_t e = 0; e < c->entries; e++)
        for (ptrdiff_t o = 0; o < (ptrdiff_t)c->outer; o++)
            for (ptrdiff_t i = 0; i < c->rows; i++) {
                const struct tree_move m = c->move[e * c->rows + i];
                const ptrdiff_t from = e * c->from.batch + o * c->from.head + m.from * c->from.row,
                                to = e * c->to.batch + o * c->to.head + m.to * c->to.row;
                if (m.to >= 0)
                    memcpy((char *)c->to.data + to * (ptrdiff_t)c->each,
                           (const char *)c->from.data + from * (ptrdiff_t)c->each, bytes);
            }
    return LOCI_OK;
}
/* A dense array of the caller, [batch][outer][q_len][inner]. */
static loci_view dense(const struct trees *t, const void *x, size_t outer, size_t inner, bool each)
{
    const ptrdiff_t row = (ptrdiff_t)inner, head = t->in->q_len * row;
    return (loci_view){ (void *)(uintptr_t)x, each ? (ptrdiff_t)outer * head : 0, head, row };
}
/* A list of the host, by row.  Rows that no node has are 0, as all are validated. */
static void copy_list(const struct trees *t, struct rows_of r, void *to, const void *from,
                      size_t outer)
{
    const loci_view view = dense(t, from, outer, 1, t->in->per_batch);
    memset(to, 0, (size_t)(t->entries * r.rows) * outer * 8);
    copy_rows(t, r, to, &view, outer, 1, 8, loci_tree_copy);
}
/* Positions, coordinates and tensors for such a call.  An append reads tensors by key, a pass over
 * rows those by row. */
static loci_status gather(const struct trees *t, struct rows_of r, loci_call *c)
{
    const loci_plan *p = t->plan;
    const loci_call *in = t->in;
    if (t->k_pos) {
        int64_t *to = r.fresh ? t->q_pos : t->k_pos;
        copy_list(t, r, to, r.fresh ? in->q_pos : in->k_pos, 1);
        *(r.fresh ? &c->q_pos : &c->k_pos) = to;
    }
    if (t->k_coord) {
        double *to = r.fresh ? t->q_coord : t->k_coord;
        copy_list(t, r, to, r.fresh ? in->q_coord : in->k_coord, (size_t)p->axes);
        *(r.fresh ? &c->q_coord : &c->k_coord) = to;
    }
    for (int i = 0; i < p->tensors.n; i++) {
        struct by_row a;
        t->tensors[i] = in->tensors ? in->tensors[i] : NULL;
        if (!t->tensors[i] || !has_rows(&p->tensors.list[i], &a)) continue;
        const loci_view view = dense(t, t->tensors[i], a.outer, a.inner, true);
        t->tensors[i] = t->tensor[i];
        if (a.query != r.fresh) continue;
        TRY(t->backend->clear(t->backend, t->tensor[i],
                              (size_t)(t->entries * r.rows) * a.outer * a.inner * p->real));
        TRY(copy_rows(t, r, t->tensor[i], &view, a.outer, a.inner, p->real, t->backend->copy));
    }
    return LOCI_OK;
}

/* ---- The two functions ----------------------------------------------------------------------- */

static loci_status check_call(const struct trees *t)
{
    const loci_call *in = t->in;
    loci_error *e = in->error;
    const struct {
        const char *name;
        bool given;
    } fields[] = {
        { "q_seg and k_seg", in->q_seg || in->k_seg },
        { "q_starts and k_starts", in->q_starts || in->k_starts },
        { "k_lens and q_lens", in->k_lens || in->q_lens },
        { "pages", in->pages },
        { "a mask", in->mask_kind != LOCI_NO_MASK || in->mask.data },
        { "k_first and k_last", in->k_first || in->k_last },
    };
    for (int i = 0; i < COUNT(fields); i++)
        CHECK(e, !fields[i].given, LOCI_UNSUPPORTED,
              "%s must be NULL: nodes of a tree see what comes before them, and nothing else",
              fields[i].name);
    CHECK(e, in->batch >= 0 && in->q_len >= 0 && in->q_len <= MOST_DISTANCE, LOCI_BAD_ARG,
          "batch %td and q_len %td must not be negative", in->batch, in->q_len);
    CHECK(e, !in->q_pos == !in->k_pos && !in->q_coord == !in->k_coord, LOCI_BAD_ARG,
          "positions and coordinates of rows and of keys must be given together");
    return LOCI_OK;
}
/* Reads and validates all but the numbers. */
static loci_status open_trees(struct trees *t, struct tree_backend *backend, loci_call *now,
                              loci_tree *tree, const loci_cache *cache, const loci_tree *given_tree,
                              const loci_call *given)
{
    const loci_plan *p = backend->plan;
    TRY(loci_copy_call(now, true, given));
    loci_error *e = backend->error = now->error;
    backend->cache = (loci_cache *)(uintptr_t)cache;
    TRY(loci_cache_check_plan(p, 0, 1, e));
    TRY(loci_cache_check(p, cache, backend->there, e));
    CHECK(e, given_tree, LOCI_BAD_ARG, "the tree must not be NULL");
    TRY(COPY_STRUCT(loci_tree, tree, given_tree, parents, true, e));
    *t = (struct trees){ .backend = backend,
                         .plan = p,
                         .tree = tree,
                         .in = now,
                         .q = now->q,
                         .k = now->k,
                         .v = now->v,
                         .o = now->o };
    TRY(check_call(t));
    TRY(measure_trees(t));
    const ptrdiff_t B = now->batch, L = now->q_len;
    TRY(loci_spell_out(&t->q, "q", B, p->heads, L, p->dim, e));
    TRY(loci_spell_out(&t->k, "k", B, p->kv_heads, L, p->dim, e));
    TRY(loci_spell_out(&t->o, "o", B, p->heads, L, p->value_dim, e));
    if (p->values_in_keys) return loci_check_values(p, now);
    return loci_spell_out(&t->v, "v", B, p->kv_heads, L, p->value_dim, e);
}
size_t loci_tree_workspace_on(struct tree_backend *backend, const loci_cache *cache,
                              const loci_tree *tree, const loci_call *given)
{
    struct trees t;
    loci_call now;
    loci_tree copy;
    loci_call quiet;
    if (loci_copy_call(&quiet, true, given)) return 0;
    quiet.error = NULL;
    if (open_trees(&t, backend, &now, &copy, cache, tree, &quiet)) return 0;
    const size_t bytes = measure_work(&t);
    return bytes == SIZE_MAX ? 0 : bytes;
}
/* Places lists that have memory of their own. */
static loci_status open_lists(struct trees *t)
{
    struct arena size = { 0 }, own = { 0 };
    lay_out_lists(t, &size);
    if (!size.full) own.base = t->backend->lists(t->backend, size.used);
    CHECK(t->in->error, own.base, LOCI_NO_MEMORY, "no memory for the lists of trees");
    lay_out_lists(t, &own);
    return LOCI_OK;
}
/* Places the rows in the workspace.  What is written may overlap nothing. */
static loci_status open_work(struct trees *t, void *work)
{
    const loci_plan *p = t->plan;
    const loci_call *in = t->in;
    loci_error *e = in->error;
    const size_t bytes = measure_work(t);
    const ptrdiff_t B = in->batch, L = in->q_len;
    CHECK(e, bytes != SIZE_MAX, LOCI_BAD_ARG, "these trees need more bytes than size_t can count");
    CHECK(e, work && (uintptr_t)work % 64 == 0, LOCI_BAD_ARG,
          "work must not be NULL and must be aligned to 64 bytes");
    CHECK(e, !in->work_bytes || in->work_bytes >= bytes, LOCI_BAD_ARG,
          "work has %zu bytes, and these trees need %zu", in->work_bytes, bytes);
    const struct {
        const char *name;
        const void *data;
    } wanted[] = { { "q", in->q.data },
                   { "k", in->k.data },
                   { "v", p->values_in_keys ? work : in->v.data },
                   { "o", in->o.data } };
    for (int i = 0; i < COUNT(wanted) && B && L; i++)
        CHECK(e, wanted[i].data, LOCI_BAD_ARG, "%s must not be NULL", wanted[i].name);
    struct regions r;
    r.n = 0;
    const size_t heads = (size_t)(B * p->heads * L);
    loci_add_list(&r, "cache", t->backend->cache, loci_cache_bytes(p, t->backend->cache), 1,
                  WRITTEN);
    loci_cache_add_there(p, t->backend->cache, &r, WRITTEN);
    loci_add_list(&r, "work", work, bytes, 1, WRITTEN);
    loci_add_list(&r, "tables", t->backend->tables, 64, 1, READ);
    loci_add_view(&r, "q", &t->q, B, p->heads, L, p->dim, p->stored, READ);
    loci_add_view(&r, "k", &t->k, B, p->kv_heads, L, p->dim, p->stored, READ);
    loci_add_view(&r, "v", &t->v, B, p->kv_heads, L, p->value_dim, p->stored, READ);
    loci_add_view(&r, "o", &t->o, B, p->heads, L, p->value_dim, p->stored, WRITTEN);
    loci_add_list(&r, "lse", in->lse, heads, p->real, WRITTEN);
    loci_add_list(&r, "rem", in->rem, heads, p->real, WRITTEN);
    loci_add_list(&r, "ae", in->ae, heads * (size_t)p->dim, p->real, WRITTEN);
    TRY(loci_check_regions(&r, e));
    struct arena all = { .base = work };
    if (t->backend->lists) TRY(open_lists(t));
    else lay_out_lists(t, &all);
    lay_out_rows(t, &all);
    return LOCI_OK;
}

loci_status loci_tree_forward_on(struct tree_backend *backend, void *work, loci_cache *cache,
                                 const loci_tree *given_tree, const loci_call *given)
{
    struct trees t;
    loci_call now;
    loci_tree tree;
    const loci_plan *p = backend->plan;
    TRY(open_trees(&t, backend, &now, &tree, cache, given_tree, given));
    CHECK(now.error, (p->weight < 0 ? !now.rem : !now.lse), LOCI_BAD_ARG, "%s must be NULL: %s",
          p->weight < 0 ? "rem" : "lse",
          p->weight < 0 ? "only sba has a remainder" : "sba has a remainder instead");
    TRY(open_work(&t, work));
    if (!t.paths) return LOCI_OK;
    find_paths(&t);
    struct rows_of keys = { t.longest, false, false }, rows = { 0, true, false };
    memset(t.counts, 0, (size_t)t.entries * sizeof *t.counts);
    memset(t.q_counts, 0, (size_t)t.entries * sizeof *t.q_counts);
    for (ptrdiff_t i = 0; i < t.paths; i++) {
        const struct path *path = &t.path[i];
        t.counts[path->entry] = path->length;
        t.q_counts[path->entry] = path->fresh;
        if (path->fresh > rows.rows) rows.rows = path->fresh;
    }
    loci_call c = call_of(&t, keys.rows);
    for (ptrdiff_t i = 0; i < t.paths; i++) {
        const ptrdiff_t from = (ptrdiff_t)tree.entry[t.path[i].tree];
        TRY(backend->fork(backend, t.work, from, t.path[i].entry, lengths(cache)[from], &c));
    }
    const size_t H = (size_t)p->heads, G = (size_t)p->kv_heads, D = (size_t)p->dim,
                 Dv = (size_t)p->value_dim;
    TRY(list_moves(&t, keys));
    TRY(copy_rows(&t, keys, t.rows[1], &t.k, G, D, p->stored, backend->copy));
    if (!p->values_in_keys)
        TRY(copy_rows(&t, keys, t.rows[2], &t.v, G, Dv, p->stored, backend->copy));
    TRY(gather(&t, keys, &c));
    c.k.data = t.rows[1];
    c.v.data = p->values_in_keys ? NULL : t.rows[2];
    c.k_lens = t.counts;
    TRY(backend->append(backend, t.work, &c));

    c = call_of(&t, rows.rows);
    TRY(list_moves(&t, rows));
    TRY(copy_rows(&t, rows, t.rows[0], &t.q, H, D, p->stored, backend->copy));
    TRY(gather(&t, rows, &c));
    c.q.data = t.rows[0];
    c.q_lens = t.q_counts;
    TRY(backend->forward(backend, t.work, &c));
    const loci_view row = dense(&t, p->weight < 0 ? now.lse : now.rem, H, 1, true),
                    ae = dense(&t, now.ae, H, D, true);
    rows.back = true;
    TRY(list_moves(&t, rows));
    TRY(copy_rows(&t, rows, t.rows[3], &t.o, H, Dv, p->stored, backend->copy));
    TRY(copy_rows(&t, rows, t.row, &row, H, 1, p->real, backend->copy));
    return copy_rows(&t, rows, t.ae, &ae, H, D, p->real, backend->copy);
}

loci_status loci_tree_keep_on(struct tree_backend *backend, void *work, loci_cache *cache,
                              const loci_tree *given_tree, const int64_t *last,
                              const loci_call *given)
{
    struct trees t;
    loci_call now;
    loci_tree tree;
    TRY(open_trees(&t, backend, &now, &tree, cache, given_tree, given));
    loci_error *e = now.error;
    CHECK(e, last || !now.batch, LOCI_BAD_ARG, "last must not be NULL");
    for (ptrdiff_t b = 0; b < now.batch; b++)
        CHECK(e, last[b] >= -1 && last[b] < nodes_of(&tree, &now, b), LOCI_BAD_ARG,
              "last: node %lld of tree %td must be from -1 to %td", (long long)last[b], b,
              nodes_of(&tree, &now, b) - 1);
    TRY(backend->lists ? open_lists(&t) : open_work(&t, work));
    find_paths(&t);
    for (ptrdiff_t i = 0; i < t.paths; i++) {
        const struct path *path = &t.path[i];
        const ptrdiff_t entry = (ptrdiff_t)tree.entry[path->tree];
        CHECK(e, lengths(cache)[path->entry] == lengths(cache)[entry] + path->length, LOCI_BAD_ARG,
              "entry %td has %lld keys, and not the %lld of a path of tree %td: keep the trees of "
              "the last loci_tree_forward()",
              path->entry, (long long)lengths(cache)[path->entry],
              (long long)lengths(cache)[entry] + path->length, path->tree);
    }
    loci_call c = call_of(&t, t.longest);
    for (ptrdiff_t i = 0; i < t.paths; i++) {
        const struct path *path = &t.path[i];
        const ptrdiff_t entry = (ptrdiff_t)tree.entry[path->tree];
        for (ptrdiff_t k = 0; k < path->length; k++) {
            if (path->node[k] != last[path->tree]) continue;
            const int64_t length = lengths(cache)[path->entry] - path->length + k + 1;
            if (lengths(cache)[entry] >= length) break; /* an earlier path has the node, too */
            TRY(backend->fork(backend, t.work, path->entry, entry, length, &c));
        }
    }
    return LOCI_OK;
}

/* ---- The CPU --------------------------------------------------------------------------------- */

static size_t workspace_here(const struct tree_backend *m, const loci_call *c)
{
    return loci_workspace(m->plan, c, 0);
}
static loci_status fork_here(struct tree_backend *m, void *work, ptrdiff_t from, ptrdiff_t to,
                             int64_t length, const loci_call *c)
{
    return loci_cache_fork(m->plan, m->tables, work, m->cache, from, to, length, c);
}
static loci_status append_here(struct tree_backend *m, void *work, const loci_call *c)
{
    return loci_cache_append(m->plan, m->tables, work, m->cache, c);
}
static loci_status forward_here(struct tree_backend *m, void *work, const loci_call *c)
{
    return loci_forward(m->plan, m->tables, work, c);
}
static loci_status clear_here(struct tree_backend *m, void *at, size_t bytes)
{
    (void)m;
    memset(at, 0, bytes);
    return LOCI_OK;
}
static struct tree_backend cpu_backend(const loci_plan *p, const void *tables)
{
    return (struct tree_backend){ .plan = p,
                                  .tables = tables,
                                  .workspace = workspace_here,
                                  .fork = fork_here,
                                  .append = append_here,
                                  .forward = forward_here,
                                  .clear = clear_here,
                                  .copy = loci_tree_copy };
}
size_t loci_tree_workspace(const loci_plan *p, const loci_cache *cache, const loci_tree *tree,
                           const loci_call *call)
{
    struct tree_backend m = cpu_backend(p, NULL);
    return loci_tree_workspace_on(&m, cache, tree, call);
}
loci_status loci_tree_forward(const loci_plan *p, const void *tables, void *work, loci_cache *cache,
                              const loci_tree *tree, const loci_call *call)
{
    struct tree_backend m = cpu_backend(p, tables);
    return loci_tree_forward_on(&m, work, cache, tree, call);
}
loci_status loci_tree_keep(const loci_plan *p, const void *tables, void *work, loci_cache *cache,
                           const loci_tree *tree, const int64_t *last, const loci_call *call)
{
    struct tree_backend m = cpu_backend(p, tables);
    return loci_tree_keep_on(&m, work, cache, tree, last, call);
}
