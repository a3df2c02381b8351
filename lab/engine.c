/* SPDX-License-Identifier: MIT */
/* engine.c -- maps each of the library's engines to a build of the lab's arithmetic. */
#include "lab/engine.h"

#include <string.h>

#include "contract/engine.h"

#define ENGINE(isa) extern const struct lab_engine loci_lab_engine_##isa##_64;
ENGINE(scalar)
ENGINE(avx2)
ENGINE(avx512)
ENGINE(neon)
ENGINE(f64)

static const struct lab_engine *const engines[] = {
#ifdef LOCI_HAVE_SCALAR
    &loci_lab_engine_scalar_64,
#endif
#ifdef LOCI_HAVE_AVX2
    &loci_lab_engine_avx2_64,
#endif
#ifdef LOCI_HAVE_AVX512
    &loci_lab_engine_avx512_64,
#endif
#ifdef LOCI_HAVE_NEON
    &loci_lab_engine_neon_64,
#endif
    &loci_lab_engine_f64_64,
};

const struct lab_engine *lab_engine(const char *isa, bool f64)
{
    const struct engine *own = loci_engine(isa, f64);
    for (size_t i = 0; own && i < sizeof engines / sizeof *engines; i++)
        if (!strcmp(engines[i]->isa, own->isa)) return engines[i];
    return NULL;
}
