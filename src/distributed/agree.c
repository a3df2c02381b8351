/* SPDX-License-Identifier: MIT */
/* agree.c -- ranks agree before they send anything, and share the outcome of a call: all return the
 * same status and the same error text. */
#include "distributed/rank_context.h"

#include <stdio.h>

enum { MAX_FACTS = 40, WORDS = sizeof(loci_error){ 0 }.text / sizeof(int64_t) };

loci_status loci_break(struct rank_ctx *a)
{
    a->broken = true;
    return loci_fail(a->error, LOCI_TRANSPORT,
                     "parallel: the transport of rank %d failed, so no rank can continue",
                     a->via.rank);
}

bool loci_highest(struct rank_ctx *a, int64_t *list, int n)
{
    const double start = loci_clock_steady();
    if (a->via.highest(a->via.user, list, n)) a->broken = true;
    a->waited += loci_clock_steady() - start;
    return !a->broken;
}

/* The rank that failed sends its error to all others.  These have no error of their own. */
static loci_status pass_on(struct rank_ctx *a, int failed, loci_status own)
{
    int64_t list[1 + WORDS];
    loci_error said;
    for (int i = 0; i < 1 + WORDS; i++) list[i] = INT64_MIN;
    if (failed == a->via.rank) {
        memset(said.text, 0, sizeof said.text);
        snprintf(said.text, sizeof said.text, "parallel: rank %d: %.480s", failed, a->said.text);
        list[0] = own;
        memcpy(list + 1, said.text, sizeof said.text);
    }
    if (!loci_highest(a, list, 1 + WORDS)) return loci_break(a);
    memcpy(said.text, list + 1, sizeof said.text);
    said.text[sizeof said.text - 1] = 0;
    return loci_fail(a->error, (loci_status)list[0], "%s", said.text);
}

loci_status loci_agree(struct rank_ctx *a, loci_status own, struct fact *facts, int n)
{
    int64_t list[1 + 2 * MAX_FACTS];
    list[0] = own ? a->via.rank + 1 : 0;
    for (int i = 0; i < n; i++) {
        /* facts of a failed rank do not matter */
        const int64_t value = own ? 0 : facts[i].value;
        list[1 + 2 * i] = value;
        list[2 + 2 * i] = value == ANY ? ANY : -value;
    }
    if (!loci_highest(a, list, 1 + 2 * n)) return loci_break(a);
    if (list[0]) return pass_on(a, (int)list[0] - 1, own);
    for (int i = 0; i < n; i++) {
        const int64_t most = list[1 + 2 * i];
        facts[i].value = most;
        if (most == ANY || most == -list[2 + 2 * i]) continue;
        const int64_t least = -list[2 + 2 * i];
        return facts[i].hash
                 ? loci_fail(a->error, LOCI_BAD_ARG,
                             "parallel: ranks differ in %s; pass the same on every rank",
                             facts[i].name)
                 : loci_fail(a->error, LOCI_BAD_ARG,
                             "parallel: ranks differ in %s, from %lld to %lld; pass the same on "
                             "every rank",
                             facts[i].name, (long long)least, (long long)most);
    }
    return LOCI_OK;
}

/* FNV-1a in 62 bits, so that its negative value also fits. */
int64_t loci_hash(int64_t so_far, const void *data, size_t bytes)
{
    uint64_t h = (uint64_t)so_far ^ UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < bytes; i++)
        h = (h ^ ((const unsigned char *)data)[i]) * UINT64_C(0x100000001b3);
    return (int64_t)((h ^ h >> 62) & (((uint64_t)1 << 62) - 1));
}
