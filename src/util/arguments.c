/* SPDX-License-Identifier: MIT */
/* arguments.c -- see arguments.h. */
#include "util/arguments.h"

#include <math.h>
#include <string.h>

/* ---- Structs that grow ----------------------------------------------------------------------- */

loci_status loci_copy_struct(void *to, size_t now, size_t frozen, bool sized, const void *from,
                             const char *name, loci_error *e)
{
    size_t size;
    /* The size is the first field of every such struct.  How much may be read is known only after
     * this. */
    memcpy(&size, from, sizeof size);
    /* No later header will add more.  A larger value is uninitialised memory, not a size. */
    const size_t most = now + 4096;
    CHECK(e, size || !sized, LOCI_BAD_ARG,
          "%s: size is 0 and must be sizeof(%s); initialise structs by their macros, as in "
          "loci_call call = LOCI_CALL(.batch = 1)",
          name, name);
    if (size == 0) size = frozen;
    CHECK(e, size >= frozen && size <= most, LOCI_BAD_ARG,
          "%s: size %zu must be sizeof(%s), at least %zu", name, size, name, frozen);
    /* Fields of a newer header.  As long as they are 0 they need nothing that this library
     * lacks. */
    for (size_t i = now; i < size; i++)
        CHECK(e, !((const unsigned char *)from)[i], LOCI_UNSUPPORTED,
              "%s: size %zu includes fields that version %s does not know; they must be zero", name,
              size, loci_version_text());
    const size_t part = size < now ? size : now;
    memcpy(to, from, part);
    memset((char *)to + part, 0, now - part);
    return LOCI_OK;
}
loci_status loci_copy_call(loci_call *to, bool sized, const loci_call *from)
{
    return from ? COPY_STRUCT(loci_call, to, from, error, sized, from->error) : LOCI_BAD_ARG;
}

/* ---- Positions ------------------------------------------------------------------------------- */

loci_status loci_check_near(const int64_t *pos, ptrdiff_t n, const char *name, loci_error *e)
{
    for (ptrdiff_t i = 0; pos && i < n; i++)
        CHECK(e, pos[i] >= -FAR && pos[i] <= FAR, LOCI_BAD_ARG,
              "%s[%td] is %lld, but positions must lie within 2^40", name, i, (long long)pos[i]);
    return LOCI_OK;
}
/* fabs() <= FAR is also false for NaN, so coordinates are never NaN. */
loci_status loci_check_near_axes(const double *x, ptrdiff_t n, const char *name, loci_error *e)
{
    for (ptrdiff_t i = 0; x && i < n; i++)
        CHECK(e, fabs(x[i]) <= (double)FAR, LOCI_BAD_ARG,
              "%s[%td] is %g, but coordinates must lie within 2^40", name, i, x[i]);
    return LOCI_OK;
}

/* ---- Views ----------------------------------------------------------------------------------- */

loci_status loci_spell_out(loci_view *v, const char *name, ptrdiff_t B, ptrdiff_t H, ptrdiff_t L,
                           ptrdiff_t width, loci_error *e)
{
    /* `last` counts the elements up to the last one.  8 bytes each must still fit into a ptrdiff_t,
     * so that no later product of indices and strides overflows. */
    ptrdiff_t *const strides[] = { &v->batch, &v->head, &v->row };
    const ptrdiff_t counts[] = { B, H, L };
    ptrdiff_t last = width, step;
    if (!v->batch && !v->head && !v->row) {
        CHECK(e,
              !__builtin_mul_overflow(L, width, &v->head)
                  && !__builtin_mul_overflow(v->head, H, &v->batch),
              LOCI_BAD_ARG, "%s: %td rows of width %td in %td heads are too many numbers", name, L,
              width, H);
        v->row = width;
    }
    for (int i = 0; i < COUNT(strides); i++)
        if (*strides[i] == LOCI_BROADCAST) *strides[i] = 0;
    bool fits = v->batch >= 0 && v->head >= 0 && v->row >= 0;
    for (int i = 0; i < COUNT(strides) && v->data && B && H && L; i++)
        fits = fits && !__builtin_mul_overflow(counts[i] - 1, *strides[i], &step)
            && !__builtin_add_overflow(last, step, &last);
    CHECK(e, fits && last <= PTRDIFF_MAX / 8, LOCI_BAD_ARG,
          "%s: strides %td, %td, %td must not be negative or too large", name, v->batch, v->head,
          v->row);
    return LOCI_OK;
}
