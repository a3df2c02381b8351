/* SPDX-License-Identifier: MIT */
/* engine.c -- the engine of this instruction set: the passes of src/engine with the terms of
 * this folder.  For each tile width, the list of terms. */
#include "engine/workspace.h"
#include "contract/engine.h"

const struct term *const N(terms)[TERM_COUNT] = {
#define TERM(name, traits) [TERM_##name] = &N(term_##name),
#include "terms/list.h"
#undef TERM
};

#if QT > 1
/* The wide build defines the table.  Decode is the same sources with tiles one row wide, and its
 * globals are named by that width. */
#define NARROW(name) PASTE(name, LOCI_ISA, 1)
#define ENGINE2(isa) loci_engine_##isa
#define ENGINE(isa) ENGINE2(isa)
#define TEXT2(x) #x
#define TEXT(x) TEXT2(x)

/* Functions of the other files of this build that only the table uses. */
size_t NARROW(lay_out)(const struct call *, char *base, struct workspace *, struct sums *);
loci_status NARROW(forward)(struct call *), N(forward)(struct call *), N(backward)(struct call *),
    N(weights)(struct call *), N(fast)(struct call *);
void N(store_gradients)(struct call *, ptrdiff_t first, ptrdiff_t count, ptrdiff_t to);
void N(unrotate_keys)(struct call *);
void N(turn_output)(const struct call *, ptrdiff_t b, int h, ptrdiff_t i, void *row);
extern const struct chained N(chained);
size_t N(cache_workspace)(const struct call *);
loci_status N(update_cache)(struct call *, const struct cache_update *);
void N(stage_cache)(struct call *, const int64_t *from);
size_t N(rotate_workspace)(const struct call *);
loci_status N(rotate)(struct call *, loci_which, const loci_view *, const loci_view *);
loci_status N(rotate_backward)(struct call *, loci_which, const loci_view *, const loci_view *,
                               const loci_view *);
size_t N(linear_workspace)(const struct call *, bool backward),
    N(linear_state)(const struct loci_plan *);
loci_status N(linear)(struct call *), N(linear_backward)(struct call *);

static size_t workspace(const struct call *c, bool backward)
{
    struct workspace d;
    struct sums sums;
    return c->decode ? NARROW(lay_out)(c, NULL, &d, NULL)
                     : N(lay_out)(c, NULL, &d, backward ? &sums : NULL);
}
ptrdiff_t NARROW(chunk_reals)(const struct call *);
bool NARROW(decode_in_turn)(const struct call *);
/* Reals for the sums of chunks until they join; none if one item walks all chunks of its rows. */
static size_t chunk_sums(const struct call *c)
{
    if (!c->decode || NARROW(decode_in_turn)(c)) return 0;
    const size_t items = (size_t)(c->B * (c->plan->heads / item_heads(c->plan)) * chunks_there(c));
    return items * (size_t)decode_rows(c) * (size_t)NARROW(chunk_reals)(c);
}
static ptrdiff_t total(const struct call *c, int x)
{
    const struct term *term = term_of(c, x);
    return term->total ? term->total(c, x) : 0;
}
static loci_status forward(struct call *c)
{
    return c->decode ? NARROW(forward)(c) : N(forward)(c);
}
size_t NARROW(part_slot_bytes)(const struct call *);
static size_t part_slot(const struct call *c)
{
    return c->decode ? NARROW(part_slot_bytes)(c) : N(part_slot_bytes)(c);
}
static size_t moved(const struct call *c)
{
    return moved_bytes(c) + (size_t)c->threads * block_bytes(c);
}
static bool asks(const struct call *c) { return !c->decode && skips(c); }

/* The only symbol of this build that the rest of the library sees. */
const struct engine ENGINE(LOCI_ISA) = {
    .isa = TEXT(LOCI_ISA),
    .workspace = workspace,
    .block = N(sums_bytes),
    .chunk_sums = chunk_sums,
    .total = total,
    .skips = asks,
    .moved = moved,
    .keys = N(prepare_keys),
    .part_slot = part_slot,
    .forward = forward,
    .backward = N(backward),
    .weights = N(weights),
#ifdef LOCI_FAST
    .fast = N(fast),
#endif
    .store_gradients = N(store_gradients),
    .unrotate = N(unrotate_keys),
    .turn_output = N(turn_output),
    .chained = &N(chained),
    .cache_workspace = N(cache_workspace),
    .update_cache = N(update_cache),
    .stage_cache = N(stage_cache),
    .rotate_workspace = N(rotate_workspace),
    .rotate = N(rotate),
    .rotate_backward = N(rotate_backward),
    .add_product = N(add_product),
    .add_projected = N(add_projected),
    .sum_later = N(sum_later),
    .linear_workspace = N(linear_workspace),
    .linear_state = N(linear_state),
    .linear = N(linear),
    .linear_backward = N(linear_backward),
};
#endif
