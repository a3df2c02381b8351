/* SPDX-License-Identifier: MIT */
/* parallel_fail.c -- failures on one of many ranks.
 *
 *     the transport      each operation of each rank fails once: a rank with a failed operation
 *                        returns LOCI_TRANSPORT, the others the right result, and no request stays
 *                        open
 *     the host           cancels at each work item of each rank: all return LOCI_CANCELLED
 *     disagreements      and any mistake on one rank, or on all: all return the same status with
 *                        the same sentence, nothing is written, and the next call is not affected
 *
 * With LOCI_SENTENCES in the environment it prints the sentence of each case. */
#include <limits.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "parallel_ranks.h"

enum { RANKS = 3 };
static const int forms[] = { 1, 0 };
enum { FORMS = sizeof forms / sizeof *forms };
static const char *const form_names[] = { "gathered", "streamed" };

/* The results of a rank. */
struct outcome {
    loci_status status;
    char text[512];
    bool same, untouched;
};
static void note(struct outcome *o, const struct part *p, loci_status status)
{
    o->status = status;
    o->untouched = part_untouched(p);
    snprintf(o->text, sizeof o->text, "%s", p->error.text);
}
static bool alike(const struct outcome *o)
{
    for (int i = 1; i < RANKS; i++)
        if (o[i].status != o[0].status || strcmp(o[i].text, o[0].text) != 0) return false;
    return true;
}

/* ---- The transport fails --------------------------------------------------------------------- */

struct failing {
    const struct whole_call *whole;
    const struct split *split;
    int gather, ahead, turn;
    struct outcome out[RANKS];
};
static void fail_body(const loci_transport *t, void *arg)
{
    struct failing *f = arg;
    struct outcome *o = &f->out[t->rank];
    struct part p;
    part_make(&p, f->whole, f->split, t, f->turn);
    p.all.gather = f->gather;
    p.all.ahead = f->ahead;
    note(o, &p, part_call(&p));
    if (!o->status) part_same(&p, "others' transport fails");
    part_drop(&p);
}
static void fail_at_each(const struct whole_call *w, const struct split *s, int form)
{
    for (int rank = 0; rank < RANKS; rank++)
        for (long n = 1, more = true; more; n++) {
            struct failing f = {
                .whole = w,
                .split = s,
                .gather = forms[form],
                .turn = (int)n,
                .ahead = 1 + (int)n % 3,
            };
            const struct mailbox_wishes wishes = {
                .seed = (uint64_t)(97 * n + rank),
                .fail_rank = rank,
                .fail_at = n,
                .no_test = n % 4 == 3,
            };
            struct mailbox_story story;
            mailbox_run(RANKS, &wishes, fail_body, &f, &story);
            more = story.operations[rank] >= n;
            CHECK_THAT(!story.faults, "%s (%s), %s, operation %ld of rank %d fails: %s",
                       w->form.text, w->form.name, form_names[form], n, rank, story.fault);
            for (int i = 0; i < RANKS; i++) {
                const struct outcome *o = &f.out[i];
                const loci_status want = story.failed[i] ? LOCI_TRANSPORT : LOCI_OK;
                char name[24];
                snprintf(name, sizeof name, "rank %d", i);
                CHECK_THAT(o->status == want && (!want || strstr(o->text, name)),
                           "%s (%s), %s, operation %ld of rank %d fails: rank %d has status %d, "
                           "wanted %d, and says '%s'",
                           w->form.text, w->form.name, form_names[form], n, rank, i, o->status,
                           want, o->text);
            }
            if (!more)
                CHECK_THAT(n > 2, "%s (%s), %s: rank %d had %ld operations", w->form.text,
                           w->form.name, form_names[form], rank, story.operations[rank]);
        }
}
/* Adjacent shares of one rank, between which sums wait at their owner; and keys of all ranks. */
static void split_for_gradients(struct split *s, int64_t rows, int64_t keys)
{
    *s = (struct split){
        .name = "one rank's shares side by side",
        .ranks = RANKS,
        .count = 4,
        .rows = { { 0, 1024, 0 }, { 1024, 1024, 1 }, { 2048, 1024, 1 }, { 3072, rows - 3072, 2 } }
    };
    if (rows == keys) return;
    s->rows[0].rank = 1;
    s->rows[1] = (loci_share){ 1024, rows - 1024, 1 };
    s->count = 2;
    s->key_count = 3;
    s->keys[0] = (loci_share){ 0, 64, 2 };
    s->keys[1] = (loci_share){ 64, 0, 0 };
    s->keys[2] = (loci_share){ 64, keys - 64, 0 };
}
static void transports(void)
{
    const ptrdiff_t keys = LOCI_SLOW ? 4200 : 8300;
    const struct form list[] = {
        { .text = "rope:pairing=half+fox",
          .name = "few rows, many keys",
          .batch = 1,
          .heads = 2,
          .kv_heads = 1,
          .dim = 4,
          .value_dim = 4,
          .q_len = 40,
          .k_len = keys },
        { .text = "alibi+shaw:left=3,right=2",
          .name = "positions",
          .batch = 2,
          .heads = 2,
          .kv_heads = 2,
          .dim = 4,
          .value_dim = 4,
          .q_len = 100,
          .k_len = 100,
          .places = SPREAD },
        { .text = "rope:pairing=half+fox",
          .name = "gradients",
          .batch = 1,
          .heads = 2,
          .kv_heads = 1,
          .dim = 4,
          .value_dim = 4,
          .q_len = 3100,
          .k_len = 3100,
          .left = 60,
          .grads = true },
        { .text = "liere:block=3+alibi",
          .name = "gradients, coordinates",
          .batch = 1,
          .heads = 1,
          .kv_heads = 1,
          .dim = 6,
          .value_dim = 4,
          .q_len = 1030,
          .k_len = 130,
          .full = true,
          .grads = true },
    };
    for (int i = 0; i < 4; i++)
        for (int form = 0; form < FORMS; form++) {
            struct whole_call w;
            struct split s;
            if (LOCI_EMULATED && i != 1) continue;
            if (LOCI_SLOW && list[i].grads && form != i % 2) continue;
            if (!whole_make(&w, &list[i], 6)) continue;
            split_make(&s, i ? RANDOM : ZIGZAG, RANKS, list[i].q_len, list[i].k_len, !i, false, 3);
            if (list[i].grads) split_for_gradients(&s, list[i].q_len, list[i].k_len);
            fail_at_each(&w, &s, form);
            whole_drop(&w);
        }
}

/* ---- The host cancels ------------------------------------------------------------------------ */

/* A host around a rank's own.  It cancels at query n, either permanently or only once. */
struct canceller {
    const loci_host *pool;
    atomic_long asked;
    long at;
    bool once;
};
static void run_pool(void *user, int n, void (*job)(void *arg, int index), void *arg)
{
    const struct canceller *c = user;
    c->pool->run(c->pool->user, n, job, arg);
}
static int asked(void *user)
{
    struct canceller *c = user;
    const long n = atomic_fetch_add(&c->asked, 1) + 1;
    return c->once ? n == c->at : n >= c->at;
}

struct cancelling {
    const struct whole_call *whole;
    const struct split *split;
    int gather, rank, turn; /* rank RANKS: all of them */
    long at;
    bool more; /* number of queries so far */
    struct outcome out[RANKS];
};
static void cancel_body(const loci_transport *t, void *arg)
{
    struct cancelling *f = arg;
    struct part p;
    part_make(&p, f->whole, f->split, t, f->turn);
    struct canceller c = { .pool = &p.host, .at = f->at, .once = f->turn % 2 };
    const loci_host host = {
        .run = run_pool, .cancelled = asked, .user = &c, .threads = p.host.threads
    };
    const bool mine = f->rank == t->rank || f->rank == RANKS;
    p.all.gather = f->gather;
    if (mine) p.call.host = &host;
    note(&f->out[t->rank], &p, part_call(&p));
    if (mine && atomic_load(&c.asked) >= f->at) f->more = true;
    if (!f->out[t->rank].status) part_same(&p, "nobody cancels");
    part_drop(&p);
}
static void cancel_at_each(const struct whole_call *w, const struct split *s, int form)
{
    for (int rank = 0; rank <= RANKS; rank++) {
        bool more = true;
        for (long n = 1; more; n++) {
            struct cancelling f = {
                .whole = w, .split = s, .gather = forms[form], .rank = rank, .turn = (int)n, .at = n
            };
            const struct mailbox_wishes wishes = { .seed = (uint64_t)(31 * n + rank) };
            struct mailbox_story story;
            mailbox_run(RANKS, &wishes, cancel_body, &f, &story);
            more = f.more;
            const loci_status want = more ? LOCI_CANCELLED : LOCI_OK;
            CHECK_THAT(!story.faults, "%s, rank %d cancels at item %ld: %s", form_names[form], rank,
                       n, story.fault);
            CHECK_THAT(alike(f.out) && f.out[0].status == want && (!more || *f.out[0].text),
                       "%s, rank %d cancels at item %ld: status %d, %d, %d, wanted %d; '%s'",
                       form_names[form], rank, n, f.out[0].status, f.out[1].status, f.out[2].status,
                       want, f.out[0].text);
            if (!more) CHECK_THAT(n > 1, "%s: rank %d was never asked", form_names[form], rank);
            if (n == 1 && rank == 1 && getenv("LOCI_SENTENCES"))
                printf("cancelled: %s\n", f.out[0].text);
        }
    }
}
static void hosts(void)
{
    const ptrdiff_t rows = LOCI_SLOW ? 1100 : 4300;
    const struct form f = {
        .text = "alibi+fox",
        .name = "cancelled",
        .batch = 1,
        .heads = 1,
        .kv_heads = 1,
        .dim = 4,
        .value_dim = 4,
        .q_len = rows,
        .k_len = rows,
    };
    struct form back = f;
    struct whole_call w;
    struct split s;
    if (whole_make(&w, &f, 5)) {
        split_make(&s, ZIGZAG, RANKS, rows, rows, false, false, 0);
        for (int form = 0; form < FORMS; form++) cancel_at_each(&w, &s, form);
        whole_drop(&w);
    }
    back.name = "cancelled, gradients";
    back.grads = true;
    back.q_len = back.k_len = 3100;
    back.text = "alibi:slopes=given+sba";
    back.left = 60;
    if (LOCI_EMULATED || !whole_make(&w, &back, 6)) return;
    split_for_gradients(&s, 3100, 3100);
    for (int form = LOCI_SLOW; form < FORMS; form++) cancel_at_each(&w, &s, form);
    whole_drop(&w);
}

/* ---- Mistakes -------------------------------------------------------------------------------- */

/* A plan of the part's own, and tables: with other tensors if `more` is not 0. */
static loci_plan *made[MAILBOX_RANKS];
static void prepare(struct part *p, ptrdiff_t range, double more)
{
    loci_tensor list[WALK_TENSORS];
    const void *data[WALK_TENSORS];
    const int n = loci_tensors(p->plan, list, WALK_TENSORS);
    for (int i = 0; i < n; i++) {
        const size_t count = walk_count(&list[i], 2, 1, 1);
        void *x = blocks_alloc(&p->blocks, count * sizeof(double));
        memset(x, 0, count * sizeof(double));
        if (list[i].role != LOCI_INPUT) loci_tensor_init(p->plan, i, 1, x);
        if (count) *(float *)x += (float)more;
        data[i] = x;
    }
    p->tables_bytes = loci_tables_size(p->plan, range);
    void *tables = blocks_lines(&p->blocks, p->tables_bytes);
    if (loci_prepare(p->plan, range, data, tables)) exit(2);
    p->tables = tables;
    p->hash = part_hash(p);
}
static void replan(struct part *p, const loci_desc *d)
{
    loci_error e;
    loci_desc desc = *d;
    const struct form *f = &p->whole->form;
    if (!desc.encoding) desc.encoding = f->text;
    if (!desc.heads) {
        desc.heads = f->heads;
        desc.kv_heads = f->kv_heads;
    }
    if (!desc.dim) {
        desc.dim = f->dim;
        desc.value_dim = f->value_dim;
    }
    if (!desc.dtype) desc.dtype = f->dtype;
    if (loci_plan_create(&made[p->rank], &desc, &e)) {
        CHECK_FAILED("%s", e.text);
        exit(1);
    }
    p->plan = made[p->rank];
    if (desc.stage == LOCI_ATTENTION) prepare(p, p->whole->range, 0);
}
static loci_share *rows_of(struct part *p) { return (loci_share *)p->all.shares; }
static loci_share *keys_of(struct part *p) { return (loci_share *)p->all.key_shares; }

/* Disagreements: rank 0 of those with contiguous shares. */
static void batch(struct part *p, int i)
{
    (void)i;
    p->call.batch = 1;
}
static void more_rows(struct part *p, int i) { (i ? keys_of(p) : rows_of(p))[2].count += 5; }
static void border(struct part *p, int i)
{
    loci_share *s = i ? keys_of(p) : rows_of(p);
    s[1].count--;
    s[2].first--;
    s[2].count++;
}
static void owner(struct part *p, int i)
{
    loci_share *s = i ? keys_of(p) : rows_of(p);
    s[1].rank = 2;
    s[2].rank = 1;
}
static void another_share(struct part *p, int i)
{
    const loci_share *from = i ? p->all.key_shares : p->all.shares;
    loci_share *list = blocks_alloc(&p->blocks, 4 * sizeof *list);
    memcpy(list, from, 3 * sizeof *list);
    list[3] = (loci_share){ list[2].first + list[2].count, 0, 1 };
    if (i) {
        p->all.key_shares = list;
        p->all.key_count = 4;
    } else {
        p->all.shares = list;
        p->all.count = 4;
    }
}
static void plan_of_its_own(struct part *p, int i)
{
    static const loci_desc list[] = {
        LOCI_DESC(.encoding = "t5:buckets=8,max_distance=21,bidirectional=1+fox"),
        LOCI_DESC(.encoding = "t5:buckets=8,max_distance=20,bidirectional=1"),
        LOCI_DESC(.dtype = LOCI_BF16),
        LOCI_DESC(.heads = 2, .kv_heads = 2),
        LOCI_DESC(.heads = 4, .kv_heads = 1),
        LOCI_DESC(.dim = 4, .value_dim = 8),
        LOCI_DESC(.dim = 8, .value_dim = 4),
        LOCI_DESC(.window_left = 9),
        LOCI_DESC(.full = 1, .encoding = "t5:buckets=8,max_distance=20,bidirectional=1"),
        LOCI_DESC(.scale = 0.5),
        LOCI_DESC(.keys_rotated = 1),
    };
    replan(p, &list[i]);
}
static void gather(struct part *p, int i)
{
    (void)i;
    p->all.gather = 1 - p->all.gather;
}
static void positions(struct part *p, int i)
{
    (void)i;
    const size_t each = sizeof(int64_t);
    int64_t *q = blocks_alloc(&p->blocks, (size_t)p->nq * each),
            *k = blocks_alloc(&p->blocks, (size_t)p->nk * each);
    for (ptrdiff_t n = 0; n < p->nq; n++) q[n] = n;
    for (ptrdiff_t n = 0; n < p->nk; n++) k[n] = n;
    p->call.q_pos = q;
    p->call.k_pos = k;
}
static void no_positions(struct part *p, int i)
{
    (void)i;
    p->call.q_pos = p->call.k_pos = NULL;
}
static void coordinates(struct part *p, int i)
{
    (void)i;
    const size_t each = sizeof(double);
    double *q = blocks_alloc(&p->blocks, (size_t)p->nq * each),
           *k = blocks_alloc(&p->blocks, (size_t)p->nk * each);
    for (ptrdiff_t n = 0; n < p->nq; n++) q[n] = 0;
    for (ptrdiff_t n = 0; n < p->nk; n++) k[n] = 0;
    p->call.q_coord = q;
    p->call.k_coord = k;
}
static void range(struct part *p, int i) { prepare(p, p->whole->range + (i ? 64 : 1), 0); }
/* The same tensors on all ranks but one. */
static void tensors(struct part *p, int i)
{
    p->all.check_tables = 1;
    prepare(p, p->whole->range, p->rank == i ? 1 : 0);
}

/* One rank is wrong. */
static loci_view *view_of(struct part *p, int i)
{
    return i == 0 ? &p->call.q : i == 1 ? &p->call.k : i == 2 ? &p->call.v : &p->call.o;
}
static void no_data(struct part *p, int i) { view_of(p, i)->data = NULL; }
static void crooked(struct part *p, int i)
{
    view_of(p, i)->data = (char *)view_of(p, i)->data + 1;
}
static void strides(struct part *p, int i)
{
    *view_of(p, i) = (loci_view){ view_of(p, i)->data, 0, 0, -4 };
}
static void giant(struct part *p, int i)
{
    *view_of(p, i) = (loci_view){ view_of(p, i)->data, 1, PTRDIFF_MAX / 2, 4 };
}
static const ptrdiff_t wrong_lengths[] = { 1, -1, -1000, PTRDIFF_MAX / 2 };
static void q_len(struct part *p, int i) { p->call.q_len += wrong_lengths[i]; }
static void k_len(struct part *p, int i) { p->call.k_len += wrong_lengths[i]; }
static void batches(struct part *p, int i)
{
    static const ptrdiff_t list[] = { -1, POWER(48), PTRDIFF_MAX };
    p->call.batch = list[i];
}
static void work_bytes(struct part *p, int i) { p->call.work_bytes = i ? 1 : p->work_bytes - 64; }
static void work(struct part *p, int i) { p->work = i ? p->memory + 8 : NULL; }
static void tables(struct part *p, int i)
{
    static const _Alignas(64) unsigned char raw[1 << 14];
    static unsigned char shifted[1 << 14];
    p->tables = i == 0 ? NULL : i == 1 ? raw : shifted + 65 - (uintptr_t)shifted % 64;
    p->tables_bytes = 0;
    p->call.tables_bytes = 0;
    p->hash = part_hash(p);
}
static void tables_bytes(struct part *p, int i)
{
    (void)i;
    p->call.tables_bytes = 64;
}
static void inputs(struct part *p, int i)
{
    if (i) p->call.tensors = NULL;
    for (int n = 0; n < WALK_TENSORS; n++) p->data[n] = NULL;
}
static void overlap(struct part *p, int i)
{
    if (i == 0) p->call.o = p->call.q;
    if (i == 1) p->call.lse = p->call.o.data;
    if (i == 2) p->call.o.data = p->memory;
    if (i == 3) p->call.rem = p->call.lse;
    if (i == 4) p->call.o.data = (void *)p->tables;
    if (i == 5) p->call.lse = (void *)p->data[1];
    if (i == 6) p->call.o = (loci_view){ p->call.o.data, 0, 0, 1 };
}
/* None of these changes the rank's number of rows or keys. */
static void list_of(struct part *p, int i)
{
    loci_share *s = rows_of(p);
    switch (i) {
    case 0:
        p->all.shares = NULL;
        break;
    case 1:
        p->all.count = 0;
        break;
    case 2:
        p->all.count = -1;
        break;
    case 3:
        s[2].first++;
        break; /* a gap */
    case 4:
        s[2].first--;
        break; /* an overlap */
    case 5:
        s[0].first = 1;
        break;
    case 6:
        s[2].rank = RANKS;
        break;
    case 7:
        s[0].rank = -1;
        break;
    case 8:
        s[2].count = -1;
        break;
    case 9:
        s[2].count = INT64_MAX;
        break;
    case 10:
        s[2].count = (int64_t)1 << 41;
        break;
    case 11:
        s[0].count = INT64_MIN;
        break;
    }
}
static void key_list(struct part *p, int i)
{
    loci_share *s = keys_of(p);
    switch (i) {
    case 0:
        p->all.key_shares = NULL;
        break; /* then keys would be shared as rows */
    case 1:
        p->all.key_count = 0;
        break;
    case 2:
        s[2].first++;
        break;
    case 3:
        s[2].rank = RANKS;
        break;
    case 4:
        s[2].count = INT64_MAX;
        break;
    }
}
static void far(struct part *p, int i)
{
    int64_t *at = (int64_t *)(i % 2 ? p->call.k_pos : p->call.q_pos);
    at[3] = i < 2 ? ((int64_t)1 << 40) + 1 : INT64_MIN;
}
static void too_short(struct part *p, int i)
{
    (void)i;
    prepare(p, 20, 0);
}
static void pairs(struct part *p, int i)
{
    static const int64_t list[4096];
    static const double numbers[4096];
    switch (i) {
    case 0:
        p->call.q_pos = list;
        break;
    case 1:
        p->call.k_pos = list;
        break;
    case 2:
        p->call.q_coord = numbers;
        break;
    case 3:
        p->call.k_coord = numbers;
        break;
    }
}
static void dropping(struct part *p, int i)
{
    if (i == 0) p->call.dropout = 0.4;
    if (i == 1) p->call.dropout_seed++;
    if (i == 2) p->call.dropout_offset++;
}
static void rates(struct part *p, int i)
{
    static const double bad[] = { 1, -0.5, NAN };
    p->call.dropout = bad[i];
}
static void unsupported(struct part *p, int i)
{
    static const int64_t list[4096];
    static const int32_t table[4096];
    static const loci_pages pages = { table, 64, 8 };
    static const double cache[512];
    switch (i) {
    case 0:
        p->call.q_seg = p->call.k_seg = list;
        break;
    case 1:
        p->call.q_starts = p->call.k_starts = list;
        p->call.sequences = 1;
        break;
    case 2:
        p->call.k_lens = list;
        break;
    case 3:
        p->call.pages = &pages;
        break;
    case 4:
        p->call.cache = (const loci_cache *)cache;
        break;
    case 5:
        p->call.mask_kind = LOCI_MASK_SEEN;
        p->call.mask.data = (void *)list;
        break;
    case 6:
        p->call.mask_kind = LOCI_MASK_ADDED;
        p->call.mask.data = (void *)list;
        break;
    case 7:
        p->call.k_first = p->call.k_last = list;
        break;
    case 8:
        p->call.q_seg = list;
        break;
    case 9:
        p->call.k_first = list;
        break;
    case 10:
        p->call.mask.data = (void *)list;
        break;
    case 11:
        p->call.mask_kind = LOCI_MASK_SEEN;
        break;
    }
}
static void numbers(struct part *p, int i)
{
    if (i == 0) p->all.gather = 2;
    if (i == 1) p->all.gather = -1;
    if (i == 2) p->all.ahead = -1;
    if (i == 3) p->all.ahead = INT_MAX;
}
static void nobody(void *user, int n, void (*job)(void *, int), void *arg)
{
    (void)user;
    (void)n;
    (void)job;
    (void)arg;
}
static void threads(struct part *p, int i)
{
    static const loci_host list[] = { { .run = nobody }, { .run = nobody, .threads = INT_MAX } };
    p->call.host = &list[i];
}
static void states(struct part *p, int i)
{
    (void)i;
    p->call.ae = blocks_alloc(&p->blocks, 1 << 16);
}
static void stage(struct part *p, int i)
{
    if (i == 0) p->plan = NULL;
    if (i == 1)
        replan(p, &(loci_desc)LOCI_DESC(.encoding = "nope", .stage = LOCI_LINEAR_ATTENTION));
    if (i == 2)
        replan(p, &(loci_desc)LOCI_DESC(.encoding = "rope:pairing=half", .stage = LOCI_ROTATE));
}
/* A struct of a later version, with a field set that this version does not know. */
static void *later(struct part *p, const void *from, size_t bytes)
{
    unsigned char *to = blocks_alloc(&p->blocks, bytes + 16);
    const size_t size = bytes + 16;
    memcpy(to, from, bytes);
    memcpy(to, &size, sizeof size);
    return to;
}
static void call_size(struct part *p, int i)
{
    if (i == 0) p->call.size = 8;
    if (i == 1) p->call.size = SIZE_MAX;
    if (i == 2) p->callp = later(p, &p->call, sizeof p->call);
}
static void no_call(struct part *p, int i)
{
    (void)i;
    p->callp = NULL;
}

/* No rank has a transport, so all ranks must be wrong. */
static void no_transport(struct part *p, int i)
{
    loci_transport *t = &p->transport;
    switch (i) {
    case 0:
        p->allp = NULL;
        break;
    case 1:
        p->all.transport = NULL;
        break;
    case 2:
        t->send = NULL;
        break;
    case 3:
        t->receive = NULL;
        break;
    case 4:
        t->wait = NULL;
        break;
    case 5:
        t->highest = NULL;
        break;
    case 6:
        t->rank = -1;
        break;
    case 7:
        t->rank = RANKS;
        break;
    case 8:
        t->ranks = 0;
        break;
    case 9:
        t->size = 8;
        break;
    case 10:
        t->size = SIZE_MAX;
        break;
    case 11:
        p->all.transport = later(p, t, sizeof *t);
        break;
    case 12:
        p->all.size = 8;
        break;
    case 13:
        p->all.size = SIZE_MAX;
        break;
    case 14:
        p->allp = later(p, &p->all, sizeof p->all);
        break;
    }
}

/* Gradients: a mistake in them, while the call itself is valid. */
static void no_grad(struct part *p, int i)
{
    (void)i;
    p->gradp = NULL;
}
static void wishes(struct part *p, int i)
{
    if (i == 0) p->grad.dk.data = NULL;
    if (i == 1) p->grad.dv.data = NULL;
    if (i == 2) p->grad.dtensors = NULL;
    if (i == 3) p->dtensor[0] = NULL;
}
static void wrong_grad(struct part *p, int i)
{
    static double numbers[64];
    switch (i) {
    case 0:
        p->grad.dq.data = p->grad.dk.data;
        break;
    case 1:
        p->grad.dv.data = (void *)p->call.k.data;
        break;
    case 2:
        p->grad.dk.row = -1;
        break;
    case 3:
        p->grad.dout.data = (char *)p->grad.dout.data + 1;
        break;
    case 4:
        p->grad.size = 8;
        break;
    case 5:
        p->dtensor[0] = p->dq.data;
        break;
    case 6:
        p->grad.dae = numbers;
        break;
    case 7:
        p->grad.drem = numbers;
        break;
    }
}
static void no_mask(struct part *p, int i)
{
    (void)i;
    p->grad.dmask.data = p->memory;
}

/* DIFFERS: rank 0 differs from the others, and none is at fault.  ONE: rank 1 is at fault.  EACH:
 * once rank 1, once all.  ALL: all ranks, and the sentence names none or any.  SILENT: all, each
 * for itself. */
enum who { DIFFERS, ONE, EACH, ALL, SILENT };
enum base { PLAIN, PLACED, DROPPING, GRADS, BASES };
static const struct wrong {
    const char *name;
    void (*spoil)(struct part *, int way);
    int ways;
    enum who who;
    enum base base;
    loci_status status;
    const char *says;
} wrongs[] = {
    { "batch", batch, 1, DIFFERS, PLAIN, LOCI_BAD_ARG, "batch, from 1 to 2" },
    { "rows, keys", more_rows, 2, DIFFERS, PLAIN, LOCI_BAD_ARG, ", from 2" },
    { "shares", border, 2, DIFFERS, PLAIN, LOCI_BAD_ARG, "shares" },
    { "owners", owner, 2, DIFFERS, PLAIN, LOCI_BAD_ARG, "shares" },
    { "another share", another_share, 2, DIFFERS, PLAIN, LOCI_BAD_ARG, "shares" },
    { "plan", plan_of_its_own, 11, DIFFERS, PLAIN, LOCI_BAD_ARG, "plan" },
    { "gather", gather, 1, DIFFERS, PLAIN, LOCI_BAD_ARG, "gather, from 0 to 1" },
    { "positions on one", positions, 1, DIFFERS, PLAIN, LOCI_BAD_ARG, "positions" },
    { "positions on all but one", no_positions, 1, DIFFERS, PLACED, LOCI_BAD_ARG, "positions" },
    { "coordinates on one", coordinates, 1, DIFFERS, PLAIN, LOCI_BAD_ARG, "coordinates" },
    { "tables' range", range, 2, DIFFERS, PLAIN, LOCI_BAD_ARG, "tables" },
    { "learned tensors", tensors, 3, ALL, PLAIN, LOCI_BAD_ARG, "tables" },
    { "a view without data", no_data, 4, EACH, PLAIN, LOCI_BAD_ARG, "NULL" },
    { "a crooked pointer", crooked, 4, EACH, PLAIN, LOCI_BAD_ARG, "" },
    { "a negative stride", strides, 4, EACH, PLAIN, LOCI_BAD_ARG, "strides" },
    { "a stride too large", giant, 4, EACH, PLAIN, LOCI_BAD_ARG, "strides" },
    { "q_len", q_len, 4, EACH, PLAIN, LOCI_BAD_ARG, "q_len" },
    { "k_len", k_len, 4, EACH, PLAIN, LOCI_BAD_ARG, "k_len" },
    { "batch", batches, 3, EACH, PLAIN, LOCI_BAD_ARG, "batch" },
    { "work_bytes", work_bytes, 2, EACH, PLAIN, LOCI_BAD_ARG, "work" },
    { "work", work, 2, EACH, PLAIN, LOCI_BAD_ARG, "work" },
    { "tables", tables, 3, EACH, PLAIN, LOCI_BAD_ARG, "tables" },
    { "tables_bytes", tables_bytes, 1, EACH, PLAIN, LOCI_BAD_ARG, "tables" },
    { "INPUT tensors", inputs, 2, EACH, PLAIN, LOCI_BAD_ARG, "log_f" },
    { "overlaps", overlap, 7, EACH, PLAIN, LOCI_BAD_ARG, "" },
    { "list of shares", list_of, 12, EACH, PLAIN, LOCI_BAD_ARG, "shares" },
    { "list of key shares", key_list, 5, EACH, PLAIN, LOCI_BAD_ARG, "" },
    { "far positions", far, 4, EACH, PLACED, LOCI_BAD_ARG, "2^40" },
    { "tables too short", too_short, 1, ALL, PLAIN, LOCI_BAD_ARG, "tables" },
    { "tables too short", too_short, 1, ALL, PLACED, LOCI_BAD_ARG, "tables" },
    { "halves of pairs", pairs, 4, EACH, PLAIN, LOCI_BAD_ARG, "together" },
    { "rates", rates, 3, EACH, PLAIN, LOCI_BAD_ARG, "must be at least 0 and below 1" },
    { "rates", rates, 3, EACH, PLACED, LOCI_BAD_ARG, "must be at least 0 and below 1" },
    { "dropout", dropping, 3, DIFFERS, DROPPING, LOCI_BAD_ARG, "ranks differ in dropout" },
    { "not supported", unsupported, 8, EACH, PLAIN, LOCI_UNSUPPORTED, "" },
    { "gather and ahead", numbers, 4, EACH, PLAIN, LOCI_BAD_ARG, "" },
    { "host", threads, 2, EACH, PLAIN, LOCI_BAD_ARG, "host" },
    { "ae without states", states, 1, EACH, PLAIN, LOCI_BAD_ARG, "ae" },
    { "a plan of another stage", stage, 3, EACH, PLAIN, LOCI_BAD_ARG, "plan" },
    { "call.size", call_size, 2, EACH, PLAIN, LOCI_BAD_ARG, "size" },
    { "no call", no_call, 1, EACH, PLAIN, LOCI_BAD_ARG, "" },
    { "no transport", no_transport, 15, SILENT, PLAIN, LOCI_BAD_ARG, "" },
    { "no grad", no_grad, 1, EACH, GRADS, LOCI_BAD_ARG, "grad" },
    { "wishes", wishes, 4, DIFFERS, GRADS, LOCI_BAD_ARG, "given" },
    { "gradients", wrong_grad, 8, EACH, GRADS, LOCI_BAD_ARG, "" },
    { "dmask", no_mask, 1, EACH, GRADS, LOCI_UNSUPPORTED, "mask" },
};
enum { WRONGS = sizeof wrongs / sizeof *wrongs };

struct spoiling {
    const struct whole_call *whole;
    const struct split *split;
    const struct wrong *wrong;
    int way, gather, who; /* who: a rank, or RANKS for all of them */
    struct outcome out[RANKS];
};
static void spoil_body(const loci_transport *t, void *arg)
{
    struct spoiling *f = arg;
    struct part p;
    part_make(&p, f->whole, f->split, t, f->way);
    p.call.tables_bytes = 0;
    p.all.gather = f->gather;
    part_take_work(&p);
    if (f->who == t->rank || f->who == RANKS) f->wrong->spoil(&p, f->way);
    /* the mistake may require a larger workspace */
    const size_t bytes = loci_parallel_workspace(p.plan, p.callp, p.allp, 0);
    if (bytes > p.work_bytes && p.work == p.memory) part_take_work(&p);
    note(&f->out[t->rank], &p, part_call(&p));
    loci_plan_destroy(made[t->rank]);
    made[t->rank] = NULL;
    part_drop(&p);
    /* After that the ranks work again. */
    part_make(&p, f->whole, f->split, t, f->way);
    p.all.gather = f->gather;
    const loci_status status = part_call(&p);
    if (CHECK_THAT(!status, "after %s: %s", f->wrong->name, p.error.text))
        part_same(&p, f->wrong->name);
    part_drop(&p);
}
static void spoil(const struct whole_call *w, const struct split *s, const struct wrong *x, int way,
                  int who, int form)
{
    struct spoiling f = {
        .whole = w, .split = s, .wrong = x, .way = way, .who = who, .gather = forms[form]
    };
    const struct mailbox_wishes wishes = { .seed = (uint64_t)way };
    struct mailbox_story story;
    char context[160];
    snprintf(context, sizeof context, "%s, way %d, %s, %s", x->name, way,
             who == RANKS ? "all ranks"
             : who        ? "rank 1"
                          : "rank 0",
             form_names[form]);
    mailbox_run(RANKS, &wishes, spoil_body, &f, &story);
    if (getenv("LOCI_SENTENCES") && form == 0) printf("%s: %s\n", context, f.out[0].text);
    CHECK_THAT(!story.faults, "%s: %s", context, story.fault);
    /* A rank without a call, or without a usable one, has no error to write to. */
    const bool deaf = x->spoil == no_call;
    const struct outcome *first = &f.out[deaf && who != RANKS ? 2 : 0];
    for (int i = 0; i < RANKS; i++) {
        const struct outcome *o = &f.out[i];
        const bool mute = deaf && (who == RANKS || who == i);
        CHECK_THAT(o->untouched, "%s: rank %d wrote something", context, i);
        CHECK_THAT(o->status == first->status
                       && (o->status == x->status
                           || (x->who == SILENT && o->status == LOCI_UNSUPPORTED)),
                   "%s: rank %d has status %d, wanted %d; it says '%s'", context, i, o->status,
                   x->status, o->text);
        CHECK_THAT(mute
                       || (strlen(o->text) > 10 && !strchr(o->text, '\n')
                           && (x->who == SILENT || !strcmp(o->text, first->text))),
                   "%s: rank %d says '%s', rank %d '%s'", context, i, o->text, (int)(first - f.out),
                   first->text);
        CHECK_THAT(mute || strstr(o->text, x->says), "%s: '%s' does not say '%s'", context, o->text,
                   x->says);
        CHECK_THAT(mute || who != 1 || strstr(o->text, "rank 1"), "%s: '%s' does not name rank 1",
                   context, o->text);
    }
}
static void everything(void)
{
    const struct form list[BASES] = {
        [PLAIN] = { .text = "t5:buckets=8,max_distance=20,bidirectional=1+fox",
                    .name = "plain",
                    .batch = 2,
                    .heads = 4,
                    .kv_heads = 2,
                    .dim = 8,
                    .value_dim = 8,
                    .q_len = 200,
                    .k_len = 200 },
        [PLACED] = { .text = "t5:buckets=8,max_distance=20,bidirectional=1+fox",
                     .name = "placed",
                     .batch = 2,
                     .heads = 4,
                     .kv_heads = 2,
                     .dim = 8,
                     .value_dim = 8,
                     .q_len = 200,
                     .k_len = 200,
                     .places = SPREAD },
        [DROPPING] = { .text = "alibi",
                       .name = "dropout",
                       .batch = 1,
                       .heads = 2,
                       .kv_heads = 1,
                       .dim = 8,
                       .value_dim = 8,
                       .q_len = 200,
                       .k_len = 200,
                       .drops = true },
        [GRADS] = { .text = "t5:buckets=8,max_distance=20,bidirectional=1+fox",
                    .name = "gradients",
                    .batch = 1,
                    .heads = 2,
                    .kv_heads = 1,
                    .dim = 8,
                    .value_dim = 8,
                    .q_len = 2060,
                    .k_len = 2060,
                    .left = 60,
                    .grads = true },
    };
    for (int base = 0; base < BASES; base++) {
        struct whole_call w;
        struct split s;
        if (!whole_make(&w, &list[base], 6)) continue;
        split_make(&s, CONTIGUOUS, RANKS, 200, 200, true, false, 0);
        s.keys[0] = (loci_share){ 0, 50, 0 }; /* other keys than rows */
        s.keys[1] = (loci_share){ 50, 100, 1 };
        s.keys[2] = (loci_share){ 150, 50, 2 };
        if (base == GRADS)
            s = (struct split){ .name = "gradients",
                                .ranks = RANKS,
                                .count = 3,
                                .rows = { { 0, 1024, 0 }, { 1024, 1024, 1 }, { 2048, 12, 2 } } };
        for (int i = 0; i < WRONGS; i++)
            for (int way = 0; way < wrongs[i].ways; way++)
                for (int form = 0; form < FORMS; form++) {
                    const struct wrong *x = &wrongs[i];
                    if (x->base != (enum base)base) continue;
                    if (LOCI_EMULATED && (i + way) % 4) continue;
                    if (x->who == DIFFERS) spoil(&w, &s, x, way, 0, form);
                    if (x->who == ONE || x->who == EACH) spoil(&w, &s, x, way, 1, form);
                    if (x->who >= EACH) spoil(&w, &s, x, way, RANKS, form);
                }
        whole_drop(&w);
    }
}

int main(void)
{
    everything();
    transports();
    hosts();
    return harness_end();
}
