/* SPDX-License-Identifier: MIT */
/* thread_rows.c -- decode with fewer kv heads and chunks than threads: several threads share the
 * rows of one kv head.  The results have the bits of one thread. */
#include <string.h>

#include "attend.h"
#include "harness.h"

enum { HEADS = 14, D = 24 };

static void check(const char *text, ptrdiff_t q_len, ptrdiff_t k_len)
{
    const int kinds[] = { 1, 2, 3, 7 };
    struct attend one = { 0 };
    for (int i = 0; i < 4; i++) {
        loci_host host;
        struct attend a = {
            .desc = LOCI_DESC(.encoding = text, .heads = HEADS, .kv_heads = 1, .dim = D),
            .q_len = q_len,
            .k_len = k_len,
            .seed = 5,
            .host = &host,
        };
        if (loci_pool_create(&host, kinds[i])) {
            CHECK_FAILED("no pool of %d threads", kinds[i]);
            attend_free(&one);
            return;
        }
        attend(&a);
        loci_pool_destroy(&host);
        if (!i) {
            one = a;
            continue;
        }
        const bool same = !memcmp(one.o, a.o, sizeof *a.o * (size_t)(HEADS * q_len * D))
                       && !memcmp(one.rows, a.rows, sizeof *a.rows * (size_t)(HEADS * q_len));
        CHECK_THAT(same, "%s: %td rows of %d heads and %td keys differ on %d threads", text, q_len,
                   HEADS, k_len, kinds[i]);
        attend_free(&a);
    }
    attend_free(&one);
}

int main(void)
{
    const char *texts[] = {
        "nope",
        "alibi+sink",
        "rope:pairing=half+softcap:cap=3",
        "rerope:pairing=half,window=50",
        "t5",
        "fox",
        "xpos:scale_base=200",
        "dca:pairing=half,chunk=60,local=9",
        "cope",
        "sba",
        "shaw",
        "pope:base=20",
        "xl",
        "tape",
    };
    for (int i = 0; i < (int)(sizeof texts / sizeof *texts); i++) {
        check(texts[i], 1, 150);
        check(texts[i], 2, LOCI_SLOW ? 70 : 4200);
    }
    return harness_end();
}
