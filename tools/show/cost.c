/* SPDX-License-Identifier: MIT */
/* cost.c -- the cost of an encoding: parameters, arithmetic, memory of a decode, tables. */
#include "loci/cache.h"
#include "show/measure.h"

/* Arithmetic per pair besides the 4 D of attention: a constant, and a multiple of D.  Work done
 * once per row or distance, such as rotated keys and tables, is not counted. */
static double pair_flops(const struct show *s)
{
    static const struct {
        double each, by_dim;
    } flops[TERM_COUNT] = {
        [TERM_affine] = { 2, 0 },   [TERM_distance] = { 1, 0 }, [TERM_pieces] = { 4, 0 },
        [TERM_gate] = { 2, 0 },     [TERM_band_q] = { 1, 0 },   [TERM_band_k] = { 1, 0 },
        [TERM_roll] = { 1, 2 },     [TERM_scan] = { 25, 0 },    [TERM_stick] = { 40, 0 },
        [TERM_softcap] = { 20, 0 }, [TERM_states] = { 0, 2 },   [TERM_polar] = { 0, 2 }
    };
    const struct loci_plan *p = s->all.plan;
    double sum = 0;
    for (int x = 0; p && x < p->uses; x++) {
        sum += flops[p->use[x].term].each + flops[p->use[x].term].by_dim * s->dim;
        if (p->use[x].term != TERM_mix) continue;
        const double hidden = show_option(&p->enc[p->use[x].enc], "hidden");
        sum += 6 * (hidden > 0 ? hidden : 32); /* 2 H x hidden and hidden x H, by head */
    }
    return sum;
}

static loci_status decode_bytes(const struct show *s, double *bytes, loci_error *e)
{
    *bytes = s->embeds ? 8.0 * s->dim : NAN;
    if (s->embeds) return LOCI_OK;
    loci_plan *plan;
    loci_desc d = LOCI_DESC(.encoding = s->encoding, .heads = s->heads, .dim = s->dim,
                            .max_len = s->len, .keys_rotated = 1);
    loci_status status = loci_plan_create(&plan, &d, e);
    if (status) {
        d.keys_rotated = 0;
        status = status == LOCI_NO_MEMORY ? status : loci_plan_create(&plan, &d, e);
    }
    if (status) return status == LOCI_NO_MEMORY ? status : LOCI_OK;
    enum { SOME = 4096 };
    const size_t one = loci_cache_size(plan, 1, SOME), two = loci_cache_size(plan, 1, 2 * SOME);
    loci_plan_destroy(plan);
    if (one && two) *bytes = (double)(two - one) / SOME / s->heads;
    return LOCI_OK;
}

loci_status ask_cost(struct show *s, struct finding *f, loci_error *e)
{
    ptrdiff_t learned = 0;
    for (int i = 0; i < s->tensors; i++)
        if (s->tensor[i].role == LOCI_LEARNED) learned += tensor_count(&s->tensor[i]);
    const loci_plan *p = s->embeds ? s->table.plan : s->all.plan;
    char brief[sizeof f->brief];
    f->parameters = learned;
    f->flops = pair_flops(s);
    TRY(decode_bytes(s, &f->bytes, e));
    snprintf(brief, sizeof brief, "%td", learned);
    say(f, NAN, 0, brief,
        "%td parameters; %g flops per pair in addition to the %d of attention; %.0f bytes per "
        "token and "
        "head in a decode (f32); tables of %.3g kB for %td tokens (f64)",
        learned, f->flops, 4 * s->dim, f->bytes, 1e-3 * (double)loci_tables_size(p, s->len),
        s->len);
    return LOCI_OK;
}
