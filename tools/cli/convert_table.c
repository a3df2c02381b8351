/* SPDX-License-Identifier: MIT */
/* convert_table.c -- `loci convert --table`: cos and sin of a rope, in the form that other engines
 * read. */
#include <stdlib.h>
#include <string.h>

#include "math/half.h"
#include "cli/convert.h"
#include "loci/convert.h"

struct table {
    const char *path, *encoding;
    int head_dim, dim; /* dim: rotated channels */
    int64_t rows;
    loci_rope_table form;
};

/* Reads the rotation of one layer.  A layer without a rotation has no table. */
static bool read_config(const struct args *a, int64_t length, loci_rope *r)
{
    int layer = 0;
    const char *path = a->rest[0];
    if (!args_whole(a, CONVERT_LAYER, 0, 1 << 20, &layer)) return false;
    if (!read_rope(path, layer, (double)length, r)) return false;
    if (r->rotates) return true;
    loci_rope_free(r);
    return refuse("%s: layer %d does not rotate, so it has no table", path, layer);
}

/* Columns of a table.  A split table has each pair once. */
static int width_of(const struct table *t)
{
    return t->form.layout == LOCI_TABLE_SPLIT ? t->dim / 2 : t->dim;
}

/* Writes cos or sin of all rows in pieces, since a table may be larger than memory. */
static loci_status write_part(const loci_plan *plan, const struct table *t, bool sin, int64_t piece,
                              int64_t *pos, void *buffer, struct safetensors_writer *w,
                              loci_error *e)
{
    const size_t row = (size_t)width_of(t) * stored_size(t->form.dtype);
    loci_status s = LOCI_OK;
    for (int64_t first = 0; first < t->rows && !s; first += piece) {
        loci_rope_table part = t->form;
        part.count = t->rows - first < piece ? t->rows - first : piece;
        part.pos = pos;
        for (ptrdiff_t i = 0; i < part.count; i++) pos[i] = first + i;
        *(sin ? &part.sin : &part.cos) = buffer;
        s = loci_export_rope(plan, NULL, &part, e);
        if (!s) s = loci_safetensors_put(w, buffer, (uint64_t)part.count * row, e);
    }
    return s;
}

/* Pieces have about 2^16 numbers, and at least one row.  The metadata describe the table. */
static int write_table(const loci_plan *plan, const struct table *t)
{
    const enum safetensors_type type = loci_safetensors_type_of(t->form.dtype);
    static const char *const layouts[] = {
        [LOCI_TABLE_SPLIT] = "split",
        [LOCI_TABLE_HALF] = "half",
        [LOCI_TABLE_INTERLEAVED] = "interleaved",
    };
    const int width = width_of(t), piece = 1 + (1 << 16) / width;
    const struct safetensor tensor[] = {
        { .name = "cos", .type = type, .rank = 2, .shape = { t->rows, width } },
        { .name = "sin", .type = type, .rank = 2, .shape = { t->rows, width } },
    };
    const struct safetensors_meta meta[] = { { "loci.encoding", t->encoding },
                                             { "loci.layout", layouts[t->form.layout] } };
    int64_t *pos = alloc((size_t)piece, sizeof *pos);
    void *buffer = alloc((size_t)piece * (size_t)width, sizeof(double));
    struct safetensors_writer w;
    loci_error e;
    loci_status s = loci_safetensors_begin(&w, t->path, 2, tensor, 2, meta, &e);
    if (!s) {
        for (int sin = 0; sin < 2 && !s; sin++)
            s = write_part(plan, t, sin, piece, pos, buffer, &w, &e);
        s = loci_safetensors_end(&w, s, &e);
    }
    free(buffer);
    free(pos);
    return s ? fail("%s: %s", t->path, e.text) : EXIT_DONE;
}

static int plan_table(const struct args *a, struct table *t)
{
    loci_error e;
    loci_plan *plan;
    const loci_desc d =
        LOCI_DESC(.encoding = t->encoding, .stage = LOCI_ROTATE, .heads = 1, .dim = t->head_dim);
    if (loci_plan_create(&plan, &d, &e)) return fail("%s", e.text);
    /* a table of no rows, so that errors of the plan are reported before any file is opened */
    loci_rope_table none = t->form;
    const double nothing[1] = { 0 };
    none.cos = (void *)nothing;
    int code = EXIT_ERROR;
    t->dim = 2 * loci_frequencies(plan, NULL, 0, NULL);
    if (loci_tensors(plan, NULL, 0) > 0)
        fail("convert: the frequencies of '%.200s' are learned tensors, which --table does not "
             "read",
             t->encoding);
    else if (loci_export_rope(plan, NULL, &none, &e)) fail("%s", e.text);
    else if (t->rows != (ptrdiff_t)t->rows)
        fail("convert: %lld rows are more than this system can count", (long long)t->rows);
    else if (a->value[CONVERT_DRY_RUN])
        code = printf("cos, sin  [%lld,%d]  %s\n", (long long)t->rows, width_of(t),
                      loci_plan_text(plan))
             < 0;
    else code = write_table(plan, t);
    loci_plan_destroy(plan);
    return code;
}

/* Rows and lengths may exceed an int.  The library's bound on positions is 2^40. */
static bool parse_count(const struct args *a, int flag, int64_t *to)
{
    const int64_t most = (int64_t)1 << 40;
    const char *given = a->value[flag];
    return !given || (parse_whole(given, to) && *to >= 1 && *to <= most)
        || refuse("convert: --%s must be a whole number from 1 to %lld, not '%s'",
                  a->command->flags[flag].name, (long long)most, given);
}

/* Without --rows, the table has the rows of the model's trained length. */
int convert_table(const struct args *a)
{
    static const loci_rope_table forms[] = {
        LOCI_ROPE_TABLE(.layout = LOCI_TABLE_HALF),
        LOCI_ROPE_TABLE(.layout = LOCI_TABLE_INTERLEAVED),
        LOCI_ROPE_TABLE(.layout = LOCI_TABLE_SPLIT),
    };
    static const loci_dtype dtypes[] = { LOCI_F32, LOCI_F64, LOCI_BF16, LOCI_F16 };
    struct table t = { .path = a->value[CONVERT_OUTPUT], .encoding = a->value[CONVERT_ENCODING] };
    int layout = 0, dtype = 0;
    int64_t length = 0;
    if (!args_word(a, CONVERT_TABLE, &layout) || !args_word(a, CONVERT_DTYPE, &dtype)
        || !args_whole(a, CONVERT_DIM, 2, 65536, &t.head_dim)
        || !parse_count(a, CONVERT_ROWS, &t.rows) || !parse_count(a, CONVERT_LENGTH, &length))
        return EXIT_ERROR;
    t.form = forms[layout];
    t.form.dtype = dtypes[dtype];
    if (!t.path && !a->value[CONVERT_DRY_RUN])
        return fail("convert: the output is missing: -o FILE");
    if (a->rest_count + (t.encoding != NULL) != 1)
        return fail("convert: --table needs one config.json or GGUF file, or --encoding TEXT");
    if (!args_output(a, CONVERT_OUTPUT)) return EXIT_ERROR;
    if (t.encoding) {
        if (!t.head_dim || !t.rows)
            return fail("convert: --encoding needs --dim, the width of a head, and --rows");
        if (a->value[CONVERT_LAYER] || length)
            return fail("convert: --layer and --length need a CONFIG");
        return plan_table(a, &t);
    }
    if (t.head_dim) return fail("convert: --dim excludes CONFIG, which states the head width");
    loci_rope r;
    if (!read_config(a, length, &r)) return EXIT_ERROR;
    int code = EXIT_ERROR;
    if (!t.rows && r.trained_length >= 1 && r.trained_length <= 1e12)
        t.rows = (int64_t)r.trained_length;
    t.encoding = r.encoding;
    t.head_dim = r.head_dim;
    if (!t.rows)
        fail("%s: the file does not state the trained context length; give --rows N", a->rest[0]);
    else code = plan_table(a, &t);
    loci_rope_free(&r);
    return code;
}
