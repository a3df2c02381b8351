/* SPDX-License-Identifier: MIT */
/* linear.c -- the public calls of linear attention, and its states.
 *
 * A state has the sums over the keys of all calls so far.  Its head has the plan's shapes, the
 * batch size and the number of keys.  So positions continue, and a wrong state is refused. */
#include "api/linear.h"

struct linear_state loci_linear_head(const loci_plan *p, ptrdiff_t batch, int64_t keys)
{
    return (struct linear_state){ STATE_MAGIC, keys,         batch,           p->kv_heads,
                                  p->dim,      p->value_dim, (int64_t)p->real };
}

size_t loci_linear_state(const loci_plan *p, ptrdiff_t batch)
{
    size_t n;
    if (!loci_plan_is(p, LOCI_LINEAR_ATTENTION) || batch < 0) return 0;
    if (__builtin_mul_overflow((size_t)batch, (size_t)p->kv_heads * p->engine->linear_state(p), &n)
        || n > PTRDIFF_MAX - STATE_HEAD)
        return 0;
    return STATE_HEAD + n;
}
/* A state belongs to whole sequences, one per batch entry.  It cannot record at which segment of a
 * packed entry it stands. */
loci_status loci_linear_check_states(const loci_plan *p, const loci_call *in, const void *before,
                                     const void *after, const struct linear_state *head)
{
    loci_error *e = in->error;
    CHECK(e, loci_linear_state(p, in->batch), LOCI_BAD_ARG,
          "batch %td must not be negative or too large for a state", in->batch);
    CHECK(e, (uintptr_t)before % STATE_HEAD == 0 && (uintptr_t)after % STATE_HEAD == 0,
          LOCI_BAD_ARG, "states must be aligned to %d bytes", STATE_HEAD);
    CHECK(e, !before || head->magic == STATE_MAGIC, LOCI_BAD_ARG,
          "before must be a state that loci_linear_forward() wrote to `after`");
    if (before) {
        /* All fields but the number of keys must be what this plan would write. */
        const struct linear_state like = loci_linear_head(p, in->batch, head->keys);
        CHECK(e, !memcmp(head, &like, sizeof like) && like.keys >= 0, LOCI_BAD_ARG,
              "before is the state of another plan or batch size");
    }
    CHECK(e, (!before && !after) || (!in->q_seg && !in->k_seg && !in->q_starts && !in->k_starts),
          LOCI_BAD_ARG,
          "a state belongs to one sequence per batch entry: q_seg, k_seg, q_starts and k_starts "
          "must be NULL");
    CHECK(e, !before || (head->keys <= FAR && in->k_len <= FAR - head->keys), LOCI_BAD_ARG,
          "k_len %td: positions must lie within 2^40, but the state already has %lld keys",
          in->k_len, (long long)(before ? head->keys : 0));
    return LOCI_OK;
}
void loci_linear_add_states(struct regions *to, const loci_plan *p, const loci_call *in,
                            const void *before, const void *after)
{
    const size_t bytes = loci_linear_state(p, in->batch);
    to->n = 0;
    loci_add_list(to, "before", before, bytes, 1, REPLACED); /* `after` may be the same */
    loci_add_list(to, "after", after, bytes, 1, WRITTEN);
}

/* With a causal mask a row must see the first keys of its sequence, and later rows no fewer.  Only
 * then is one running sum enough.  Runs satisfy this by themselves. */
static loci_status check_order(const struct call *c)
{
    loci_error *e = c->in->error;
    for (ptrdiff_t s = 0; s < c->seqs.n; s++) {
        const struct sequence *q = &c->seqs.list[s];
        CHECK(e, !q->segments, LOCI_BAD_ARG,
              "linear attention requires segment numbers that never fall, for rows and for keys");
        /* Consecutive positions rise, and without a mask every row sees all keys. */
        if (q->run || c->plan->full) continue;
        for (ptrdiff_t i = 1; i < q->nq; i++)
            CHECK(e, pos_q(c, q->b, q->q0 + i) >= pos_q(c, q->b, q->q0 + i - 1), LOCI_BAD_ARG,
                  "q_pos: linear attention requires positions that never fall, but row %td has a "
                  "lower one than the row before it",
                  q->q0 + i);
        for (ptrdiff_t j = 1; j < q->nk; j++)
            CHECK(e, pos_k(c, q->b, q->k0 + j) >= pos_k(c, q->b, q->k0 + j - 1), LOCI_BAD_ARG,
                  "k_pos: linear attention requires positions that never fall, but key %td has a "
                  "lower one than the key before it",
                  q->k0 + j);
    }
    return LOCI_OK;
}
/* How many keys of its sequence each row sees.  Both sides rise, so one pass over the keys is
 * enough for all rows. */
void loci_linear_find_seen(struct call *c)
{
    for (ptrdiff_t s = 0; s < c->seqs.n; s++) {
        const struct sequence *q = &c->seqs.list[s];
        ptrdiff_t j = 0;
        for (ptrdiff_t i = 0; i < q->nq; i++) {
            while (j < q->nk
                   && (c->plan->full || pos_k(c, q->b, q->k0 + j) <= pos_q(c, q->b, q->q0 + i)))
                j++;
            c->linear.seen[q->b * c->Lq + q->q0 + i] = j;
        }
    }
}
/* The checks of attention, and those that differ. */
loci_status loci_linear_open(struct call *c, const loci_plan *p, const void *tables, void *work,
                             const loci_call *in, const struct opening *o)
{
    TRY(loci_open_attention(c, p, tables, work, in, o));
    /* Results of a softmax or a stick. */
    CHECK(in->error, !in->lse && !in->rem, LOCI_BAD_ARG,
          "lse and rem must be NULL: linear attention does not have them");
    CHECK(in->error, !o->grad || (!o->grad->dlse && !o->grad->drem), LOCI_BAD_ARG,
          "dlse and drem must be NULL: linear attention does not have them");
    return check_order(c);
}

loci_status loci_linear_forward(const loci_plan *p, const void *tables, void *work,
                                const loci_call *given, const void *before, void *after)
{
    struct call c;
    const struct linear_state *old = before;
    loci_call now, *const in = &now;
    TRY(loci_copy_call(in, wants_sizes(p), given));
    CHECK(in->error, loci_plan_is(p, LOCI_LINEAR_ATTENTION), LOCI_BAD_ARG,
          "the plan must be one for stage LINEAR_ATTENTION");
    TRY(loci_linear_check_states(p, in, before, after, old));
    const ptrdiff_t past = old ? (ptrdiff_t)old->keys : 0;
    struct regions states;
    loci_linear_add_states(&states, p, in, before, after);
    TRY(loci_linear_open(&c, p, tables, work, in,
                         &(struct opening){
                             .stage = LOCI_LINEAR_ATTENTION, .from = past, .more = &states }));
    /* Computed before `after` is written, because it may be `before`. */
    const struct linear_state left = loci_linear_head(p, c.B, past + c.Lk);
    c.linear.before = old ? (const char *)before + STATE_HEAD : NULL;
    c.linear.after = after ? (char *)after + STATE_HEAD : NULL;
    loci_linear_find_seen(&c);
    loci_begin(&c, false);
    /* If the call is cancelled, `after` is not a valid state and its head is 0. */
    if (after) memset(after, 0, STATE_HEAD);
    const loci_status status = p->engine->linear(&c);
    if (status) return loci_fail(in->error, status, "cancelled by the host");
    if (after) memcpy(after, &left, sizeof left);
    return LOCI_OK;
}

/* A backward pass has no state, because gradients need all keys of a sequence. */
loci_status loci_linear_backward(const loci_plan *p, const void *tables, void *work,
                                 const loci_call *given, const loci_grad *given_grad)
{
    struct call c;
    loci_call now, *const in = &now;
    loci_grad wanted, *const grad = &wanted;
    TRY(loci_copy_call(in, wants_sizes(p), given));
    TRY(loci_copy_grad(grad, in, wants_sizes(p), given_grad));
    TRY(loci_linear_open(&c, p, tables, work, in,
                         &(struct opening){ .stage = LOCI_LINEAR_ATTENTION, .grad = grad }));
    loci_want(&c, grad->dtensors);
    loci_linear_find_seen(&c);
    loci_begin(&c, false);
    const loci_status status = p->engine->linear_backward(&c);
    if (status) return loci_fail(in->error, status, "cancelled by the host");
    loci_fold(&c, grad->dtensors);
    return LOCI_OK;
}
