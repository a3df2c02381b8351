/* SPDX-License-Identifier: MIT */
/* model.c -- from settings to an encoding text, and from that, through a plan, to frequencies:
 * the library defines their rules. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "platform/numbers.h"
#include "models/model.h"

double loci_yarn_mscale(double factor, double c)
{
    return factor <= 1 ? 1 : 1 + 0.1 * c * log(factor);
}

loci_status loci_check_head(const struct settings *s, loci_error *e)
{
    IO_CHECK(e, s->head_dim <= MAX_HEAD, "the head has %d channels, but must have 1 to %d",
             s->head_dim, MAX_HEAD);
    return LOCI_OK;
}

/* ---- Opening --------------------------------------------------------------------------------- */

/* By its first bytes, for any file name. */
static loci_status open_source(loci_model **to, const struct source *from, loci_error *e)
{
    char magic[4] = "";
    loci_model *m = calloc(1, sizeof *m);
    if (!m) return loci_io_fail(e, LOCI_NO_MEMORY, "out of memory");
    loci_status s = from->size >= 4 ? loci_io_read(from, magic, 4, 0, e) : LOCI_OK;
    if (!s)
        s = memcmp(magic, "GGUF", 4) ? loci_config_open(m, from, e) : loci_gguf_open(m, from, e);
    if (s) free(m);
    else *to = m;
    return s;
}

/* Puts the path before the sentence: only its end if both do not fit. */
static void name_path(loci_error *e, const char *path)
{
    const loci_error told = *e;
    const size_t used = strlen(told.text) + sizeof "...: ", length = strlen(path);
    const size_t capacity = used < sizeof e->text ? sizeof e->text - used : 0;
    const size_t cut = length > capacity ? length - capacity : 0;
    loci_io_fail(e, told.status, "%s%s: %s", cut ? "..." : "", path + cut, told.text);
}

/* The file is closed again: a model stores what it needs of it. */
loci_status loci_model_open(loci_model **m, const char *path, loci_error *e)
{
    struct source from;
    IO_CHECK(e, m, "loci_model_open: model must not be NULL; it receives the model");
    *m = NULL;
    IO_CHECK(e, path,
             "loci_model_open: path must not be NULL; it names a config.json or a GGUF file");
    loci_status s = loci_io_open(&from, path, e);
    if (!s) {
        s = open_source(m, &from, e);
        loci_io_close(&from);
    }
    if (s && e) name_path(e, path);
    return s;
}

loci_status loci_model_parse(loci_model **m, const void *bytes, size_t size, loci_error *e)
{
    IO_CHECK(e, m, "loci_model_parse: model must not be NULL; it receives the model");
    *m = NULL;
    IO_CHECK(e, bytes || size == 0, "loci_model_parse: bytes must not be NULL; size is %zu", size);
    return open_source(m, &(struct source){ .fd = -1, .bytes = bytes, .size = size }, e);
}

void loci_model_close(loci_model *m)
{
    if (!m) return;
    m->close(m);
    free(m);
}

int loci_model_layers(const loci_model *m) { return m ? m->layers : 0; }
const char *loci_model_type(const loci_model *m) { return m ? m->type : ""; }

/* ---- The text -------------------------------------------------------------------------------- */

/* A double has at most 24 characters in %.17g; everything but lists needs far less than 1024. */
enum { NUMBER_ROOM = 32, TEXT_ROOM = 1024 + 2 * MAX_PAIRS_READ * NUMBER_ROOM };

/* With the fewest digits that read back to the same double. */
static void add_number(char **at, double x)
{
    char text[NUMBER_ROOM];
    int digits = 0;
    do snprintf(text, sizeof text, "%.*g", ++digits, x);
    while (islessgreater(strtod(text, NULL), x)); /* 17 are enough */
    /* 500000, not 5e+05 */
    if (x == floor(x) && fabs(x) < 1e15) snprintf(text, sizeof text, "%.0f", x);
    *at += sprintf(*at, "%s", text);
}
static void add_option(char **at, const char *name, double x)
{
    *at += sprintf(*at, ",%s=", name);
    add_number(at, x);
}
/* Numbers with slashes between them; nothing for none. */
static void add_list(char **at, const char *name, const double *x, int n)
{
    for (int i = 0; i < n; i++) {
        *at += i ? sprintf(*at, "/") : sprintf(*at, ",%s=", name);
        add_number(at, x[i]);
    }
}

/* The options always have the same order, so that equal layers have equal texts.  A length is
 * written only if the rule needs it; attention_factor 0 leaves that to the rule. */
static void write_text(const struct settings *s, double length, double attention_factor, char *at)
{
    const bool sections = s->sections[0] + s->sections[1] + s->sections[2] > 0;
    at += sprintf(at, "%s:pairing=%s",
                  sections        ? "mrope"
                  : s->dual_chunk ? "dca"
                                  : "rope",
                  s->interleaved ? "interleaved" : "half");
    /* exponents that divide by fewer channels than rotate: base^(dim/fewer) over dim is the same */
    add_option(&at, "base", s->stretch > 1 ? pow(s->base, s->stretch) : s->base);
    add_option(&at, "dim", s->dim);
    if (s->offset) add_option(&at, "offset", s->offset);
    if (s->scaling) at += sprintf(at, ",scaling=%s", s->scaling);
    for (int i = 0; i < s->options; i++) add_option(&at, s->option[i].name, s->option[i].value);
    add_list(&at, "short", s->short_factor, s->factors);
    add_list(&at, "long", s->long_factor, s->factors);
    if (length > 0 && s->scaling
        && (!strcmp(s->scaling, "dynamic") || !strcmp(s->scaling, "longrope")))
        add_option(&at, "length", length);
    if (attention_factor > 0) add_option(&at, "attention_factor", attention_factor);
    if (s->dual_chunk) at += sprintf(at, ",chunk=%d,local=%d", s->dual_chunk, s->dual_local);
    if (sections)
        at += sprintf(at, ",sections=%d/%d/%d", s->sections[0], s->sections[1], s->sections[2]);
    if (sections && s->spread) at += sprintf(at, ",order=interleaved");
    if (s->turns_back) sprintf(at, ",values=1");
}

/* The encoding, and the encodings next to it. */
static void write_attention(const struct settings *s, const char *encoding, char *at)
{
    at += sprintf(at, "%s", encoding);
    if (s->cap > 0) {
        at += sprintf(at, "+softcap:cap=");
        add_number(&at, s->cap);
    }
    if (s->sink) sprintf(at, "+sink");
}

/* ---- One layer ------------------------------------------------------------------------------- */

/* A plan checks the text, and its frequencies are those of the library. */
static loci_status read_plan(const struct settings *s, loci_rope *r, loci_error *e)
{
    const loci_desc d =
        LOCI_DESC(.encoding = r->encoding, .stage = s->dual_chunk ? LOCI_ATTENTION : LOCI_ROTATE,
                  .heads = 1, .dim = s->head_dim);
    loci_plan *plan;
    loci_status status = loci_plan_create(&plan, &d, e);
    if (status) return status;
    free(r->frequency);
    r->frequency = calloc((size_t)s->dim / 2, sizeof *r->frequency);
    if (r->frequency) loci_frequencies(plan, r->frequency, s->dim / 2, &r->attention_factor);
    else status = loci_io_fail(e, LOCI_NO_MEMORY, "out of memory");
    loci_plan_destroy(plan);
    return status;
}

/* A factor on the attention factor needs a second plan: only the first one
 * gives the factor of the rule. */
static loci_status rotation(const struct settings *s, double length, loci_rope *r, loci_error *e)
{
    IO_CHECK(e, s->dim >= 2 && s->dim <= s->head_dim,
             "%d of %d channels rotate, but the number must be even", s->dim, s->head_dim);
    write_text(s, length, 0, r->encoding);
    loci_status status = read_plan(s, r, e);
    if (status || s->times == 1) return status;
    write_text(s, length, r->attention_factor * s->times, r->encoding);
    return read_plan(s, r, e);
}

/* To the 8 significant bits of bfloat16, ties to even. */
static double to_bf16(double x)
{
    int exponent;
    const double fraction = frexp(x, &exponent);
    return ldexp(nearbyint(ldexp(fraction, 8)), exponent - 8);
}

/* ALiBi's slopes for any number of heads: powers of two for the largest power of two below it,
 * and every other one of the next power. */
static loci_status write_slopes(const struct settings *s, loci_rope *r, loci_error *e)
{
    int low = 1;
    while (low * 2 <= s->heads) low *= 2;
    r->slopes = calloc((size_t)s->heads, sizeof *r->slopes);
    if (!r->slopes) return loci_io_fail(e, LOCI_NO_MEMORY, "out of memory");
    for (int h = 0; h < s->heads; h++) {
        const double power = h < low ? 8.0 * (h + 1) / low : 8.0 * (2 * (h - low) + 1) / (2 * low);
        r->slopes[h] = to_bf16((float)exp2(-power)) * s->slope_scale;
    }
    return LOCI_OK;
}

/* All but the text and the frequencies, which rotation() has computed. */
static loci_status fill(const struct settings *s, loci_rope *r, loci_error *e)
{
    r->layer = s->layer;
    r->trained_length = s->trained_length;
    r->warmth = s->warmth;
    r->warm_length = s->warm_length;
    r->warm_shift = s->warm_shift;
    r->rotates = !s->instead;
    r->heads = s->heads;
    r->scale = s->scale * s->softmax_factor;
    r->softcap = s->cap;
    r->sink = s->sink;
    r->window = s->window;
    r->chunk = s->chunk;
    r->values = s->values && r->rotates;
    r->note = s->note;
    r->attention = malloc(strlen(r->encoding) + 64); /* softcap with a number, and sink */
    if (!r->attention) return loci_io_fail(e, LOCI_NO_MEMORY, "out of memory");
    write_attention(s, r->encoding, r->attention);
    if (s->slope_scale > 0) return write_slopes(s, r, e);
    if (!r->rotates) return LOCI_OK;
    r->interleaved = s->interleaved;
    r->spread = s->spread;
    r->head_dim = s->head_dim;
    r->dim = s->dim;
    r->offset = s->offset;
    r->base = s->base;
    r->softmax_factor = s->softmax_factor;
    r->scaling = s->scaling ? s->scaling : "none";
    memcpy(r->sections, s->sections, sizeof r->sections);
    return LOCI_OK;
}

/* The locale is this thread's alone, and it is restored. */
loci_status loci_model_rope(const loci_model *m, int layer, double length, loci_rope *r,
                            loci_error *e)
{
    IO_CHECK(e, r,
             "loci_model_rope: there is no place for the result; give the address of a loci_rope");
    memset(r, 0, sizeof *r);
    IO_CHECK(e, m,
             "loci_model_rope: model must not be NULL; loci_model_open() or loci_model_parse() "
             "makes one");
    IO_CHECK(e, layer >= 0 && layer < m->layers, "layer %d must be from 0 to %d", layer,
             m->layers - 1);
    IO_CHECK(e, length >= 0 && length <= 1e18,
             "the context length %g must be from 1 to 1e18, or 0 for the trained one", length);
    struct settings *s = calloc(1, sizeof *s);
    char *text = calloc(1, TEXT_ROOM);
    /* numbers in texts have a decimal point */
    struct numbers numbers;
    const bool pointed = loci_numbers_begin(&numbers);
    loci_status status =
        s && text && pointed ? LOCI_OK : loci_io_fail(e, LOCI_NO_MEMORY, "out of memory");
    r->encoding = text;
    if (!status) {
        *s = (struct settings){ .layer = "full_attention", .times = 1, .softmax_factor = 1 };
        status = m->read(m, layer, length, s, e);
        if (!status && s->instead) strcpy(text, s->instead);
        else if (!status) status = rotation(s, length, r, e);
        if (!status) status = fill(s, r, e);
    }
    if (pointed) loci_numbers_end(&numbers);
    if (status) loci_rope_free(r);
    free(s);
    return status;
}

void loci_rope_free(loci_rope *r)
{
    if (!r) return;
    free(r->encoding);
    free(r->attention);
    free(r->frequency);
    free(r->slopes);
    memset(r, 0, sizeof *r);
}
