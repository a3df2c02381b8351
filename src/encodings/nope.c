/* SPDX-License-Identifier: MIT */
/* nope.c -- no positional encoding: plain attention.  Kazemnejad et al., NeurIPS 2023.
 *
 *     S_ij = scale q_i.k_j
 *
 * Under a causal mask the order can still be learned.  Without a mask the output
 * permutes with its inputs. */
#include "contract/encoding.h"

const struct loci_pe loci_pe_nope = {
    .name = "nope",
    .cite = "Kazemnejad et al., NeurIPS 2023",
    .family = FAMILY_NONE,
    .brief = "S = scale q.k, nothing else",
    .example = "nope",
    .tol = 2e-6,
};
