/* SPDX-License-Identifier: MIT */
/* rope.c -- `loci rope`: how a model rotates queries and keys, read from its config.json or GGUF
 * file. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "draw/figure.h"
#include "cli/terminal.h"
#include "loci/io.h"

static const double two_pi = 6.28318530717958648;

/* ---- For scripts ----------------------------------------------------------------------------- */

/* The properties of the layer besides its rotation. */
static void print_company(const loci_rope *r)
{
    printf("\"layer\":\"%s\",\"attention\":\"%s\",\"scale\":%.17g,\"softcap\":%.17g,\"sink\":%s,",
           r->layer, r->attention, r->scale, r->softcap, r->sink ? "true" : "false");
    printf("\"window\":%lld,\"chunk\":%lld,\"values\":%s,", (long long)r->window,
           (long long)r->chunk, r->values ? "true" : "false");
    if (r->warmth > 0)
        printf("\"temperature\":{\"beta\":%.17g,\"length\":%.17g,\"shift\":%.17g},", r->warmth,
               r->warm_length, r->warm_shift);
    else printf("\"temperature\":null,");
    printf("\"slopes\":%s", r->slopes ? "[" : "null");
    for (int h = 0; r->slopes && h < r->heads; h++) printf("%s%.17g", h ? "," : "", r->slopes[h]);
    printf("%s,\"note\":", r->slopes ? "]" : "");
    if (r->note) printf("\"%s\"}\n", r->note);
    else printf("null}\n");
}

/* 17 digits, so that a reader gets the same double.  These words need no JSON escapes. */
static void print_json(const loci_rope *r)
{
    if (!r->rotates) {
        printf("{\"rope\":false,\"encoding\":\"%s\",", r->encoding);
        print_company(r);
        return;
    }
    printf("{\"rope\":true,\"pairing\":\"%s\",\"head_dim\":%d,\"dim\":%d,\"offset\":%d,"
           "\"base\":%.17g,\"inv_freq\":[",
           r->interleaved ? "interleaved" : "half", r->head_dim, r->dim, r->offset, r->base);
    for (int t = 0; t < r->dim / 2; t++) printf("%s%.17g", t ? "," : "", r->frequency[t]);
    printf("],\"attention_factor\":%.17g,\"softmax_factor\":%.17g,", r->attention_factor,
           r->softmax_factor);
    if (strncmp(r->encoding, "mrope", 5)) printf("\"sections\":null,\"order\":null,");
    else
        printf("\"sections\":[%d,%d,%d],\"order\":\"%s\",", r->sections[0], r->sections[1],
               r->sections[2], r->spread ? "interleaved" : "chunked");
    printf("\"encoding\":\"%s\",", r->encoding);
    print_company(r);
}

/* ---- For people ------------------------------------------------------------------------------ */

/* A kind of layer for people.  Other words are printed as they are. */
static const char *layer_words(const loci_rope *r)
{
    static const char *const words[][2] = {
        { "full_attention", "full attention" },
        { "sliding_attention", "sliding window" },
        { "chunked_attention", "chunked attention" },
        { "linear_attention", "linear attention" },
        { "conv", "convolution" },
        { "indexed_attention", "indexed attention" },
        { "hybrid", "attention and a state" },
        { "hybrid_sliding", "sliding window, and a state" },
    };
    for (int i = 0; i < COUNT(words); i++)
        if (!strcmp(words[i][0], r->layer)) return words[i][1];
    return r->layer;
}

/* Tests the encoding's text, which keeps this file free of rules. */
static bool has(const loci_rope *r, const char *text) { return strstr(r->encoding, text) != NULL; }

/* The frequencies without the scaling: the library's rule with the base of the text, which follows
 * its pairing. */
static bool unscaled(const loci_rope *r, double *list)
{
    char text[128];
    loci_plan *plan;
    loci_error e;
    const char *base = strstr(r->encoding, "base=");
    snprintf(text, sizeof text, "rope:pairing=half,%.*s,dim=%d", (int)strcspn(base, ","), base,
             r->dim);
    const loci_desc d =
        LOCI_DESC(.encoding = text, .stage = LOCI_ROTATE, .heads = 1, .dim = r->dim);
    if (loci_plan_create(&plan, &d, &e)) return refuse("%s", e.text);
    loci_frequencies(plan, list, r->dim / 2, NULL);
    loci_plan_destroy(plan);
    return true;
}

/* A range of pairs, a single pair, or none. */
static void print_pairs(const char *what, int first, int last, int pairs, const char *note)
{
    printf("    %-20s", what);
    if (first > last) printf("none\n");
    else if (first == last) printf("pair %d of 0-%d%s\n", first, pairs - 1, note);
    else printf("pairs %d-%d of 0-%d%s\n", first, last, pairs - 1, note);
}

/* A wavelength in positions. */
static void put_wavelength(struct figure *f, int row, int col, double w)
{
    if (w > 0) figure_cell(f, row, col, "%.6g", two_pi / w);
    else figure_cell(f, row, col, "-");
}

/* Pairs at even steps, including the first and the last. */
static void print_table(const loci_rope *r, const double *before)
{
    enum { ROWS = 8 };
    const int pairs = r->dim / 2, rows = pairs < ROWS ? pairs : ROWS;
    const bool scaled = strcmp(r->scaling, "none") != 0, trained = r->trained_length > 0;
    const int last = scaled ? 4 : 2;
    struct figure f = { 0 };
    struct text t = { 0 };
    const struct terminal m = terminal();
    figure_table(&f, rows + 1, last + trained + 1);
    figure_cell(&f, 0, 0, "  pair");
    figure_cell(&f, 0, 1, "wavelength");
    if (scaled) {
        figure_cell(&f, 0, 2, "unscaled wave");
        figure_cell(&f, 0, 3, "slower by");
    }
    if (trained) figure_cell(&f, 0, last, "turns in %.0f", r->trained_length);
    for (int i = 0; i < rows; i++) {
        const int k = rows > 1 ? i * (pairs - 1) / (rows - 1) : 0;
        figure_cell(&f, i + 1, 0, "  %4d", k);
        put_wavelength(&f, i + 1, 1, r->frequency[k]);
        if (scaled) {
            put_wavelength(&f, i + 1, 2, before[k]);
            if (r->frequency[k] > 0) figure_cell(&f, i + 1, 3, "%.4g", before[k] / r->frequency[k]);
            else figure_cell(&f, i + 1, 3, "-");
        }
        if (trained)
            figure_cell(&f, i + 1, last, "%.4g", r->trained_length * r->frequency[k] / two_pi);
    }
    printf("\n");
    figure_print(&t, &f, &m);
    fwrite(t.s, 1, t.n, stdout);
    text_free(&t);
    figure_free(&f);
}

/* Are there pairs that spread sections do not reach? */
static bool leftovers(const loci_rope *r)
{
    for (int t = 0; t < r->dim / 2; t++)
        if (t >= 3 * r->sections[t % 3]) return true;
    return false;
}

/* Known differences in other engines, from each engine's sources. */
static void print_differences(const loci_rope *r)
{
    const struct {
        bool holds;
        const char *text;
    } notes[] = {
        { r->spread && leftovers(r),
          "ggml does not rotate pairs beyond the interleaved sections; loci and transformers "
          "rotate them by time" },
        { has(r, "scaling=dynamic"),
          "transformers follows the growing context, so cached keys have other frequencies; loci "
          "uses --length" },
        { has(r, "scaling=longrope"),
          "transformers changes lists during generation, vLLM uses the longest context; loci uses "
          "--length" },
        { has(r, "scaling=yarn") && has(r, "truncate=0"),
          "llama.cpp rounds the ends of yarn's ramp, but this model was trained without rounding "
          "(truncate=0)" },
        { has(r, "scaling=yarn"), "yarn's ramp is linear in the pair, as in all code; "
                                  "the paper's text is linear in turns" },
        { has(r, "dca:"),
          "vLLM's keys and scale follow the growing context, so cached keys have other factors; "
          "loci uses --length" },
        { r->interleaved && r->offset == 0,
          "files for engines with the other pairing have the channels of q and k permuted" },
        { has(r, "scaling=proportional"),
          "with proportional, partial rotary rotates pairs of the whole head; elsewhere it rotates "
          "the first channels" },
    };
    const char *label = "engines differ";
    for (int i = 0; i < COUNT(notes); i++) {
        if (!notes[i].holds) continue;
        printf("    %-20s%s\n", label, notes[i].text);
        label = "";
    }
}

/* The properties of a layer besides its rotation. */
static void print_beside(const loci_rope *r)
{
    const bool factor = r->rotates && r->softmax_factor != 1;
    if (r->scale > 0)
        printf("    %-20s%.10g on q.k%s\n", "scale", r->scale,
               factor ? ", including the softmax factor" : "");
    if (r->softcap > 0) printf("    %-20sscores stay below %g\n", "softcap", r->softcap);
    if (r->sink) printf("    %-20sa learned logit per head joins the softmax\n", "sink");
    if (r->window > 0)
        printf("    %-20s%lld keys, the row's own included\n", "window", (long long)r->window);
    if (r->chunk > 0)
        printf("    %-20sof %lld positions; a row sees its own\n", "chunks", (long long)r->chunk);
    if (r->warmth > 0)
        printf("    %-20stimes 1 + %g ln(1 + floor(%s / %.0f))\n", "queries", r->warmth,
               r->warm_shift > 0 ? "(position + 1)" : "position", r->warm_length);
    if (r->note) printf("    %-20s%s\n", "note", r->note);
}

/* slow: pairs from there on complete no turn within the trained length. moved to stays: pairs whose
 * frequency the scaling changed, which are contiguous in every rule. */
static bool print_rotation(const loci_rope *r)
{
    const int pairs = r->dim / 2;
    double *before = alloc((size_t)pairs, sizeof *before);
    if (!unscaled(r, before)) {
        free(before);
        return false;
    }
    int slow = 0, moved = 0;
    while (slow < pairs && r->frequency[slow] * r->trained_length >= two_pi) slow++;
    while (moved < pairs && fabs(before[moved] / r->frequency[moved] - 1) < 1e-9) moved++;
    int stays = pairs;
    while (stays > moved && fabs(before[stays - 1] / r->frequency[stays - 1] - 1) < 1e-9) stays--;

    printf("    %-20s%s, ", "pairs of channels",
           r->interleaved ? "interleaved (2t, 2t + 1)" : "half (t, t + dim/2)");
    printf("channels %d-%d of 0-%d\n", r->offset, r->offset + r->dim - 1, r->head_dim - 1);
    printf("    %-20s%.17g\n    %-20s%s\n", "base", r->base, "scaling", r->scaling);
    if (strcmp(r->scaling, "none")) print_pairs("changed by it", moved, stays - 1, pairs, "");
    if (has(r, "mrope:"))
        printf("    %-20s%d time, %d height, %d width, %s\n", "sections", r->sections[0],
               r->sections[1], r->sections[2], r->spread ? "interleaved" : "chunked");
    printf("    %-20s%.10g on queries and keys, so %.10g on their scores\n", "attention factor",
           r->attention_factor, r->attention_factor * r->attention_factor);
    if (r->softmax_factor != 1)
        printf("    %-20s%.10g on the scale of all scores\n", "softmax factor", r->softmax_factor);
    print_beside(r);
    if (r->trained_length > 0)
        print_pairs("less than one turn", slow, pairs - 1, pairs, " in the trained length");
    print_differences(r);
    print_table(r, before);
    free(before);
    return true;
}

/* Do both print the same? */
static bool alike(const loci_rope *a, const loci_rope *b)
{
    return !strcmp(a->attention, b->attention) && !strcmp(a->layer, b->layer)
        && a->window == b->window && a->chunk == b->chunk && a->scale == b->scale;
}

static bool print_layer(const loci_rope *r)
{
    if (r->rotates) return print_rotation(r);
    const bool nothing = !strncmp(r->encoding, "nope", 4);
    printf("    %-20s%s\n", "no rotation", nothing ? "positions have no effect here" : r->encoding);
    print_beside(r);
    return true;
}

/* Describes equal layers once, in the order in which their kinds appear. of[l] is the kind of layer
 * l.  The list of layers has at most 12 ranges, and their number behind it. */
static bool print_all(const loci_model *m, const char *path, double length)
{
    enum { MAX_KINDS = 8 };
    const int layers = loci_model_layers(m);
    loci_rope kind[MAX_KINDS];
    int *of = alloc((size_t)layers, sizeof *of), kinds = 0;
    loci_error e = { 0 };
    bool ok = true;
    for (int l = 0; l < layers && ok; l++) {
        loci_rope r;
        ok = !loci_model_rope(m, l, length, &r, &e) || refuse("%s: layer %d: %s", path, l, e.text);
        if (!ok) break;
        for (of[l] = 0; of[l] < kinds; of[l]++)
            if (alike(&kind[of[l]], &r)) break;
        if (of[l] < kinds) loci_rope_free(&r);
        else if (kinds < MAX_KINDS) kind[kinds++] = r;
        else {
            loci_rope_free(&r);
            ok = refuse("%s: more than %d kinds of layers; use --layer to show one", path,
                        MAX_KINDS);
        }
    }
    if (ok) printf("%s%s%s  %d layers", PAINT("1"), loci_model_type(m), PAINT("0"), layers);
    if (ok && kind[0].trained_length > 0)
        printf(", trained on %.0f positions", kind[0].trained_length);
    if (ok) printf("\n");
    for (int k = 0; k < kinds && ok; k++) {
        printf("\n%s%s%s, layers", PAINT("1"), layer_words(&kind[k]), PAINT("0"));
        int shown = 0, count = 0;
        for (int l = 0; l < layers; l++) count += of[l] == k;
        for (int l = 0; l < layers && shown < 12; l++) {
            if (of[l] != k || (l > 0 && of[l - 1] == k)) continue;
            int last = l;
            while (last + 1 < layers && of[last + 1] == k) last++;
            printf(last > l ? " %d-%d" : " %d", l, last);
            shown++;
        }
        printf(" (%d)\n", count);
        ok = print_layer(&kind[k]);
    }
    for (int k = 0; k < kinds; k++) loci_rope_free(&kind[k]);
    free(of);
    return ok;
}

/* ---- The command ----------------------------------------------------------------------------- */

enum { ROPE_LAYER, ROPE_LENGTH, ROPE_JSON, ROPE_ENCODING };
static const struct flag rope_flags[] = {
    [ROPE_LAYER] = { "layer", NULL, "N", "layer for --json and --encoding (default 0)" },
    [ROPE_LENGTH] = { "length", NULL, "L",
                      "context length, for dynamic and longrope (default: the trained one)" },
    [ROPE_JSON] = { "json", NULL, NULL, "one JSON object for the layer" },
    [ROPE_ENCODING] = { "encoding", NULL, NULL, "the encoding text of the layer's attention" },
    { NULL, NULL, NULL, NULL }
};

/* The model is closed: a loci_rope owns its contents. */
bool read_rope(const char *path, int layer, double length, loci_rope *r)
{
    loci_error e;
    loci_model *m;
    if (loci_model_open(&m, path, &e)) return refuse("%s", e.text);
    const loci_status s = loci_model_rope(m, layer, length, r, &e);
    loci_model_close(m);
    return !s || refuse("%s: %s", path, e.text);
}

/* --layer alone describes one layer for people.  Without it, all kinds of layers are described. */
static int rope_run(const struct args *a)
{
    int64_t length = 0;
    int layer = 0;
    loci_error e;
    loci_model *m;
    loci_rope r;
    if (a->rest_count != 1)
        return fail("rope: give one config.json or GGUF file, not %d", a->rest_count);
    if (!args_whole(a, ROPE_LAYER, 0, 1 << 20, &layer)) return EXIT_ERROR;
    const char *given = a->value[ROPE_LENGTH];
    if (given && (!parse_whole(given, &length) || length < 1 || length > INT64_C(1000000000000)))
        return fail("rope: --length must be a whole number from 1 to 1000000000000, not '%s'",
                    given);
    const char *path = a->rest[0];
    if (loci_model_open(&m, path, &e)) return fail("%s", e.text);
    const bool all = !a->value[ROPE_JSON] && !a->value[ROPE_ENCODING];
    int code = EXIT_DONE;
    if (all && !a->value[ROPE_LAYER]) {
        code = print_all(m, path, (double)length) ? EXIT_DONE : EXIT_ERROR;
    } else if (loci_model_rope(m, layer, (double)length, &r, &e)) {
        code = fail("%s: %s", path, e.text);
    } else {
        if (a->value[ROPE_ENCODING]) printf("%s\n", r.attention);
        else if (a->value[ROPE_JSON]) print_json(&r);
        else {
            printf("%s%s%s  layer %d, %s\n", PAINT("1"), loci_model_type(m), PAINT("0"), layer,
                   layer_words(&r));
            if (!print_layer(&r)) code = EXIT_ERROR;
        }
        loci_rope_free(&r);
    }
    loci_model_close(m);
    return code;
}

const struct command cmd_rope = {
    .name = "rope",
    .brief = "show how a model rotates queries and keys, from its files",
    .synopsis = "loci rope PATH [--layer N] [--length L] [--json | --encoding]",
    .about = "    PATH is a Hugging Face config.json or a GGUF file.  For every kind of layer it\n"
             "    prints the pairing of channels, the wavelengths in positions, the pairs that\n"
             "    never complete a turn within the trained length, the changes by the scaling,\n"
             "    everything else that affects scores and weights, and known differences between\n"
             "    engines.  Unknown scaling types, unknown keys of a scaling, and model types\n"
             "    whose pairing would be a guess are errors.\n",
    .examples = "    loci rope config.json\n    loci rope model.gguf --layer 5 --json\n"
                "    loci bench \"$(loci rope config.json --encoding)\"\n",
    .operand_text = "@file",
    .flags = rope_flags,
    .run = rope_run,
};
