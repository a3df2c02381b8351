/* SPDX-License-Identifier: MIT */
/* sba_stream.c -- remainder=value over many ranks: each rank owns its rows with their keys, so a
 * row's own key is the one at its position. */
#include "encodings/streams.h"
#include "layout/stick.h"

static loci_status accept(const struct call *c, int enc)
{
    if (c->plan->enc[enc].opt[STICK_REMAINDER] != REMAINDER_VALUE) return LOCI_OK;
    const bool owns = c->stream.part.values.data || !c->Lq;
    /* The own key's angles are those of the row if they follow from positions. */
    for (int i = 0; i < c->plan->tensors.n; i++)
        CHECK(c->in->error, !streamed(c) || !c->plan->turns_values || !rotates_by(c->plan, i),
              LOCI_UNSUPPORTED,
              "sba: remainder=value of values that rotate by inputs of the call needs all keys; "
              "gather them");
    CHECK(c->in->error, !chained(c) || owns, LOCI_UNSUPPORTED,
          "sba: gradients of remainder=value over several processes need a key for every row, at "
          "the same counted position and with the same owner");
    CHECK(c->in->error, !streamed(c) || owns, LOCI_UNSUPPORTED,
          "sba: remainder=value needs a key for every row, at the same position; if keys "
          "have shares or positions of their own, gather them");
    return LOCI_OK;
}

/* While keys are streamed, the term reads the values of own keys from the rank's own. */
static void begin(struct call *c, int enc)
{
    if (!streamed(c)) loci_sba_begin(c, enc);
}

/* The key at the row's position.  -1: it is not among the present ones that the rank owns. */
static ptrdiff_t own_key(const struct call *c, int enc, ptrdiff_t b, ptrdiff_t row)
{
    (void)enc;
    const int64_t key = pos_q(c, b, row) - pos_k(c, b, 0), first = c->stream.chain.own;
    return key >= first && key < first + c->stream.chain.count ? (ptrdiff_t)key : -1;
}
static void end_keys(struct call *c, int enc) { loci_sba_end_keys(c, enc, own_key); }

const struct encoding_stream loci_sba_stream = {
    .accept = accept,
    .begin = begin,
    .end_keys = end_keys,
};
