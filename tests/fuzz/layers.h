/* SPDX-License-Identifier: MIT */
/* layers.h -- invariants of the layers of any accepted model. */
#ifndef LOCI_TESTS_FUZZ_LAYERS_H
#define LOCI_TESTS_FUZZ_LAYERS_H

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "fuzz.h"
#include "loci/io.h"

/* Does any of the checked layers rotate? */
static bool check_layers(const loci_model *m)
{
    const int layers = loci_model_layers(m), look[] = { 0, 1, 5, layers - 1 };
    bool turned = false;
    FUZZ_CHECK(layers >= 1 && layers <= 4096);
    for (int i = 0; i < 4; i++) {
        loci_rope r;
        loci_error e = { 0 };
        const loci_status s = loci_model_rope(m, look[i], i == 3 ? 9000 : 0, &r, &e);
        FUZZ_CHECK(s == 0 ? r.encoding != NULL : e.text[0] && !r.encoding && !r.frequency);
        if (!s) {
            FUZZ_CHECK(r.attention && !strncmp(r.attention, r.encoding, strlen(r.encoding))
                       && r.window >= 0 && r.chunk >= 0);
            FUZZ_CHECK(isfinite(r.scale) && r.scale >= 0 && isfinite(r.softcap) && r.softcap >= 0
                       && isfinite(r.warmth));
        }
        if (s || !r.rotates) {
            loci_rope_free(&r);
            continue;
        }
        turned = true;
        FUZZ_CHECK(r.dim >= 2 && r.dim % 2 == 0 && r.offset >= 0 && r.offset + r.dim <= r.head_dim
                   && r.head_dim <= 1024);
        FUZZ_CHECK(r.base >= 1 && isfinite(r.base) && r.attention_factor > 0
                   && isfinite(r.attention_factor));
        FUZZ_CHECK(r.softmax_factor > 0 && isfinite(r.softmax_factor));
        for (int t = 0; t < r.dim / 2; t++)
            FUZZ_CHECK(r.frequency[t] >= 0 && isfinite(r.frequency[t]));
        const int pairs = r.sections[0] + r.sections[1] + r.sections[2];
        FUZZ_CHECK(pairs == 0 || pairs == r.dim / 2);
        loci_rope_free(&r);
    }
    return turned;
}

#endif
