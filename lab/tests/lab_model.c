/* SPDX-License-Identifier: MIT */
/* lab_model.c -- the lab's model: every tensor's gradient by differences, the same bits for all
 * threads and instruction sets, the same model for all arms, and steps that lower the loss. */
#define _DEFAULT_SOURCE /* mkdtemp */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "math/random.h"
#include "harness.h"
#include "lab/config.h"
#include "lab/decode.h"
#include "models/safetensors.h"
#include "scratch.h"

enum { WORDS = 11, LONGEST = 48, LENGTH = 12 };

static struct lab_shape layout_of(const char *arm, bool f64)
{
    return (struct lab_shape){ .arm = arm,
                               .layers = 2,
                               .dim = 32,
                               .heads = 4,
                               .kv_heads = 0,
                               .vocabulary = WORDS,
                               .length = LENGTH,
                               .longest = LONGEST,
                               .learned = LAB_RANDOM,
                               .f64 = f64 };
}

/* Sequences of several lengths, one of them a single token, and some rows that are not scored. */
static void fill_batch(struct lab_batch *b, const struct lab_arm *a, uint64_t seed, int most)
{
    const int lengths[] = { most, 1, most / 2 + 1, most - 3 };
    enum { SEQUENCES = 4 };
    ptrdiff_t rows = 0;
    for (int s = 0; s < SEQUENCES; s++) rows += lengths[s];
    lab_batch_reserve(b, SEQUENCES, rows);
    b->sequences = SEQUENCES;
    b->rows = rows;
    b->scored = 0;
    ptrdiff_t r = 0;
    for (int s = 0; s < SEQUENCES; s++) {
        b->starts[s] = r;
        for (int i = 0; i < lengths[s]; i++, r++) {
            b->token[r] = (int32_t)(loci_uniform(seed, 2 * (uint64_t)r) * WORDS);
            b->target[r] = (int32_t)(loci_uniform(seed, 2 * (uint64_t)r + 1) * (WORDS + 3)) - 3;
            if (b->target[r] < 0) b->target[r] = -1;
            b->pos[r] = a->random ? 3 * i + s : i;
            b->seg[r] = s;
            b->scored += b->target[r] >= 0;
        }
    }
    b->starts[SEQUENCES] = r;
}

static double loss_of(struct lab_model *m, const struct lab_batch *b)
{
    double *loss = malloc((size_t)b->rows * sizeof *loss), sum = 0;
    loci_error e = { .text = "" };
    CHECK_THAT(!lab_model_forward(m, b, false, loss, NULL, &e), "%s", e.text);
    for (ptrdiff_t r = 0; r < b->rows; r++) sum += loss[r];
    free(loss);
    return sum / (double)b->scored;
}

/* Moves away from the initial point, where many parameters are 0 and have no slope. */
static void stir(struct lab_model *m)
{
    const struct lab_tensor *t;
    const int n = lab_model_tensors(m, &t);
    double *w = lab_model_list(m, LAB_WEIGHTS);
    for (int i = 0; i < n; i++)
        for (ptrdiff_t r = 0; r < t[i].rows && !t[i].fixed; r++)
            for (ptrdiff_t c = 0; c < t[i].cols; c++)
                w[t[i].at + r * t[i].stride + c] +=
                    0.1 * loci_normal((uint64_t)i, (uint64_t)(r * t[i].cols + c));
}

/* Each tensor along a random direction. */
static void check_gradients(const char *arm, int kv_heads)
{
    struct lab_shape s = layout_of(arm, true);
    struct lab_model *m;
    struct lab_batch b = { .sequences = 0 };
    loci_error e = { .text = "" };
    s.kv_heads = kv_heads;
    if (!CHECK_THAT(!lab_model_open(&m, &s, NULL, &e), "%s: %s", arm, e.text)) return;
    lab_model_init(m, 7);
    stir(m);
    fill_batch(&b, lab_model_arm(m), 3, LENGTH);
    double mean;
    if (!CHECK_THAT(!lab_model_backward(m, &b, &mean, &e), "%s: %s", arm, e.text)) return;
    CHECK_CLOSE(loss_of(m, &b), mean, 1e-12, "%s: the loss of both passes", arm);

    const struct lab_tensor *t;
    const int n = lab_model_tensors(m, &t);
    double *w = lab_model_list(m, LAB_WEIGHTS), *g = lab_model_list(m, LAB_GRADIENTS);
    for (int i = 0; i < n; i++) {
        if (t[i].fixed) continue;
        const ptrdiff_t count = t[i].rows * t[i].stride;
        double *old = malloc((size_t)count * sizeof *old),
               *way = malloc((size_t)count * sizeof *way);
        double slope = 0, size = 0, f[2];
        bool nothing = true; /* are all elements padding? */
        memcpy(old, w + t[i].at, (size_t)count * sizeof *old);
        for (ptrdiff_t k = 0; k < count; k++) {
            way[k] = k % t[i].stride < t[i].cols ? loci_normal(99 + (uint64_t)i, (uint64_t)k) : 0;
            slope += way[k] * g[t[i].at + k];
            size += fabs(g[t[i].at + k]);
            nothing &= k % t[i].stride < t[i].cols || g[t[i].at + k] == 0;
        }
        /* Hidden layers with a kink at 0 have different slopes on each side.  If the kink lies
         * within the step, a shorter step is tried. */
        double slopes = 0;
        for (double h = 1e-5; h > 1e-8; h /= 10) {
            for (int side = 0; side < 2; side++) {
                for (ptrdiff_t k = 0; k < count; k++)
                    w[t[i].at + k] = old[k] + (side ? -h : h) * way[k];
                f[side] = loss_of(m, &b);
            }
            slopes = (f[0] - f[1]) / (2 * h);
            if (fabs(slope - slopes) <= 2e-8 + 1e-6 * fabs(slope)) break;
        }
        memcpy(w + t[i].at, old, (size_t)count * sizeof *old);
        CHECK_THAT(nothing, "%s: %s: a gradient behind the columns", arm, t[i].name);
        CHECK_CLOSE(slope, slopes, 2e-8 + 1e-6 * fabs(slope), "%s: %s", arm, t[i].name);
        /* Every learned tensor has an effect, except for states that no later layer reads, keys of
         * a row alone and the like. */
        CHECK_THAT(size > 0 || strstr(t[i].name, "layers.1.tape") || strstr(t[i].name, "pe."),
                   "%s: %s has no gradient", arm, t[i].name);
        free(old);
        free(way);
    }
    lab_batch_free(&b);
    lab_model_close(m);
}

/* ---- Bits ------------------------------------------------------------------------------------ */

/* Trains a few steps.  Returns all weights in a row. */
static void *train(const char *arm, const char *isa, int threads, ptrdiff_t *numbers)
{
    struct lab_shape s = layout_of(arm, false);
    struct lab_model *m;
    struct lab_batch b = { .sequences = 0 };
    loci_error e = { .text = "" };
    loci_host host;
    s.isa = isa;
    if (threads > 1 && !CHECK_THAT(!loci_pool_create(&host, threads), "a pool")) return NULL;
    if (!CHECK_THAT(!lab_model_open(&m, &s, threads > 1 ? &host : NULL, &e), "%s: %s", arm, e.text))
        return NULL;
    lab_model_init(m, 7);
    for (int step = 1; step <= 3; step++) {
        double mean;
        fill_batch(&b, lab_model_arm(m), (uint64_t)step, step == 2 ? 40 : LENGTH);
        CHECK_THAT(!lab_model_backward(m, &b, &mean, &e), "%s: %s", arm, e.text);
        lab_model_step(m, step, 3e-3);
    }
    *numbers = lab_model_numbers(m);
    float *w = malloc((size_t)*numbers * sizeof *w);
    memcpy(w, lab_model_list(m, LAB_WEIGHTS), (size_t)*numbers * sizeof *w);
    bool finite = true;
    for (ptrdiff_t i = 0; i < *numbers; i++) finite &= isfinite(w[i]) != 0;
    CHECK_THAT(finite, "%s: all weights are finite", arm);
    lab_batch_free(&b);
    lab_model_close(m);
    if (threads > 1) loci_pool_destroy(&host);
    return w;
}

static void check_bits(const char *arm)
{
    const char *isas[8];
    const int n = loci_isas(isas, 8);
    ptrdiff_t numbers, others;
    void *w = train(arm, isas[0], 1, &numbers);
    for (int i = 1; i < n + 1 && w; i++) {
        void *v = train(arm, isas[i < n ? i : n - 1], i < n ? 1 : 3, &others);
        CHECK_THAT(v && others == numbers && !memcmp(w, v, (size_t)numbers * sizeof(float)),
                   "%s: %s with %d threads has the bits of %s", arm, isas[i < n ? i : n - 1],
                   i < n ? 1 : 3, isas[0]);
        free(v);
    }
    free(w);
}

/* ---- The same model -------------------------------------------------------------------------- */

/* With its encoding made neutral, every arm has the bits of nope.  Returns false for arms that have
 * no neutral point. */
static bool make_neutral(struct lab_model *m)
{
    const struct lab_tensor *t;
    const int n = lab_model_tensors(m, &t);
    const char *arm = lab_model_arm(m)->text;
    float *w = lab_model_list(m, LAB_WEIGHTS);
    bool any = false;
    for (int i = 0; i < n; i++) {
        const char *name = strstr(t[i].name, "pe.");
        if (!t[i].encoding) continue;
        float value = 0;
        if (strstr(t[i].name, ".bf")) value = INFINITY; /* log f = 0 */
        else if (!name) {
            if (strstr(t[i].name, ".wf")) value = 0;
            else continue;
        }
        for (ptrdiff_t k = 0; k < t[i].rows * t[i].stride; k++)
            if (k % t[i].stride < t[i].cols) w[t[i].at + k] = value;
        any = true;
    }
    return any || !strcmp(arm, "nope");
}

static void check_neutral(const char *arm)
{
    double mean[2];
    for (int i = 0; i < 2; i++) {
        struct lab_shape s = layout_of(i ? arm : "nope", false);
        struct lab_model *m;
        struct lab_batch b = { .sequences = 0 };
        loci_error e = { .text = "" };
        if (!CHECK_THAT(!lab_model_open(&m, &s, NULL, &e), "%s: %s", arm, e.text)) return;
        lab_model_init(m, 7);
        CHECK_THAT(make_neutral(m), "%s has a neutral point", arm);
        fill_batch(&b, lab_model_arm(m), 5, LENGTH);
        mean[i] = loss_of(m, &b);
        lab_batch_free(&b);
        lab_model_close(m);
    }
    CHECK_THAT(mean[0] == mean[1], "%s: %.17g is not nope's %.17g", arm, mean[1], mean[0]);
}

/* ---- Decode ---------------------------------------------------------------------------------- */

/* Token by token from a cache: the same bits as a pass over all of them. */
static void check_decode(const char *arm)
{
    struct lab_shape s = layout_of(arm, false);
    struct lab_model *m;
    struct lab_batch b = { .sequences = 0 };
    loci_error e = { .text = "" };
    ptrdiff_t stride;
    if (!CHECK_THAT(!lab_model_open(&m, &s, NULL, &e), "%s: %s", arm, e.text)) return;
    lab_model_init(m, 7);
    fill_batch(&b, lab_model_arm(m), 3, LENGTH);
    double mean; /* a step, so that nothing is 0 */
    CHECK_THAT(!lab_model_backward(m, &b, &mean, &e), "%s: %s", arm, e.text);
    lab_model_step(m, 1, 1e-2);
    CHECK_THAT(!lab_model_forward(m, &b, true, NULL, NULL, &e), "%s: %s", arm, e.text);
    const float *logits = lab_model_logits(m, &stride);
    float *all = malloc((size_t)(b.rows * stride) * sizeof *all);
    memcpy(all, logits, (size_t)(b.rows * stride) * sizeof *all);
    for (int s2 = 0; s2 < b.sequences; s2++) {
        if (!CHECK_THAT(!lab_decode_begin(m, LONGEST, &e), "%s: %s", arm, e.text)) break;
        bool same = true;
        for (ptrdiff_t r = b.starts[s2]; r < b.starts[s2 + 1]; r++) {
            const void *row;
            if (!CHECK_THAT(!lab_decode(m, b.token[r], b.pos[r], &row, NULL, &e), "%s: %s", arm,
                            e.text))
                break;
            same &= !memcmp(row, all + r * stride, WORDS * sizeof(float));
        }
        CHECK_THAT(same, "%s: a decode has the bits of the whole pass", arm);
        lab_decode_end(m);
    }
    free(all);
    lab_batch_free(&b);
    lab_model_close(m);
}

/* ---- Variants -------------------------------------------------------------------------------- */

/* Training after a change of the encoding: the same tensors as the arm, wherever it adds or draws
 * its positions, and the same bits as the arm in this view. */
static void check_changed(const char *arm, enum lab_change change)
{
    struct lab_shape s = layout_of(arm, false);
    struct lab_model *m, *changed;
    struct lab_batch b = { .sequences = 0 };
    loci_error e = { .text = "" };
    if (!CHECK_THAT(!lab_model_open(&m, &s, NULL, &e), "%s: %s", arm, e.text)) return;
    s.change = change;
    s.times = 2;
    if (!CHECK_THAT(!lab_model_open(&changed, &s, NULL, &e), "%s: %s", arm, e.text)) return;
    const ptrdiff_t n = lab_model_numbers(m);
    lab_model_init(m, 7);
    if (CHECK_THAT(lab_model_numbers(changed) == n, "%s: the same tensors", arm)) {
        memcpy(lab_model_list(changed, LAB_WEIGHTS), lab_model_list(m, LAB_WEIGHTS),
               (size_t)n * sizeof(float));
        fill_batch(&b, lab_model_arm(m), 3, 2 * LENGTH);
        const double as_trained = loss_of(m, &b), own = loss_of(changed, &b);
        const struct lab_view view = { change, 2, false };
        CHECK_THAT(!lab_model_view(m, view, &e), "%s: %s", arm, e.text);
        CHECK_THAT(loss_of(m, &b) == own && own != as_trained, "%s: %.17g viewed, %.17g opened so",
                   arm, loss_of(m, &b), own);
    }
    lab_batch_free(&b);
    lab_model_close(m);
    lab_model_close(changed);
}

/* ---- Biases of a file ------------------------------------------------------------------------ */

enum { HEADS = 4 };
/* alibi's biases, by distance or by row and key, for `reach` positions. */
static void write_bias(const char *path, const char *name, int heads, int reach, bool by_distance,
                       bool wide)
{
    const ptrdiff_t count = (ptrdiff_t)heads * reach * (by_distance ? 1 : reach);
    struct safetensor t = { .name = name,
                            .type = wide ? ST_F64 : ST_F32,
                            .rank = 2 + !by_distance };
    double *x = calloc((size_t)count, sizeof *x);
    float *f = calloc((size_t)count, sizeof *f);
    loci_error e = { .text = "" };
    t.shape[0] = heads;
    t.shape[1] = t.shape[2] = reach;
    for (ptrdiff_t i = 0; i < count; i++) {
        const ptrdiff_t row = i / reach % reach, key = i % reach;
        const double slope = exp2(-8.0 * (double)(i / (count / heads) + 1) / heads),
                     apart = (double)(by_distance ? key
                                      : row > key ? row - key
                                                  : 0);
        x[i] = -slope * apart;
        f[i] = (float)x[i];
    }
    const void *const data[] = { wide ? (void *)x : (void *)f };
    CHECK_THAT(!loci_safetensors_write(path, 1, &t, data, 0, NULL, &e), "%s: %s", path, e.text);
    free(x);
    free(f);
}

static double first_loss(const char *arm)
{
    struct lab_shape s = layout_of(arm, true);
    struct lab_model *m;
    struct lab_batch b = { .sequences = 0 };
    loci_error e = { .text = "" };
    if (!CHECK_THAT(!lab_model_open(&m, &s, NULL, &e), "%s: %s", arm, e.text)) return NAN;
    lab_model_init(m, 7);
    fill_batch(&b, lab_model_arm(m), 5, LENGTH);
    const double loss = loss_of(m, &b);
    lab_batch_free(&b);
    lab_model_close(m);
    return loss;
}
static void check_refused(const char *arm, const char *said)
{
    struct lab_shape s = layout_of(arm, false);
    struct lab_model *m;
    loci_error e = { .text = "" };
    const loci_status status = lab_model_open(&m, &s, NULL, &e);
    CHECK_THAT(status && strstr(e.text, said), "%s: '%s', wanted '%s'", arm, e.text, said);
    if (!status) lab_model_close(m);
}
static void id_of(const char *arm, char id[33])
{
    struct lab_config c = { .steps = 9, .learned = LAB_RANDOM, .variants = 1 };
    strcpy(c.arm, arm);
    lab_config_size(&c, "XS", NULL);
    lab_config_task(&c, "copy", NULL);
    lab_config_id(&c, id);
}

/* The files are in the working folder: a path has no + or comma, which the folder may have. */
static void check_biases(void)
{
    static const char *const arms[] = {
        "bias:file=distance.st",
        "bias:file=distance.st,learn=1",
        "bias:file=pairs.st",
        "bias:file=pairs.st,learn=1",
        "rope+bias:file=pairs.st,learn=1",
        "bias:learn=1,file=pairs.st",
        "fox+bias:file=distance.st",
        "t5+bias:file=distance.st,learn=1",
    };
    char folder[SCRATCH], id[3][33];
    scratch(folder, "bias");
    if (!CHECK_THAT(mkdtemp(folder) && !chdir(folder), "%s", folder)) return;
    write_bias("distance.st", "bias", HEADS, LONGEST, true, false);
    write_bias("pairs.st", "bias", HEADS, LONGEST, false, true);
    write_bias("name.st", "bais", HEADS, LONGEST, true, false);
    write_bias("heads.st", "bias", 2, LONGEST, true, false);
    write_bias("short.st", "bias", HEADS, LENGTH - 1, false, false);
    for (size_t i = 0; i < sizeof arms / sizeof *arms; i++) {
        check_gradients(arms[i], 0);
        check_bits(arms[i]);
        check_decode(arms[i]);
    }
    check_gradients("bias:file=pairs.st,learn=1", 2);
    const double alibi = first_loss("alibi"), nope = first_loss("nope");
    CHECK_THAT(fabs(alibi - nope) > 1e-5, "biases matter");
    for (int i = 0; i < 4; i++) CHECK_CLOSE(first_loss(arms[i]), alibi, 1e-9, "%s", arms[i]);

    check_refused("bias", "needs its table");
    check_refused("bias:learn=1", "needs its table");
    check_refused("bias:file=none.st", "none.st: ");
    check_refused("bias:file=distance.st,lern=1", "'lern=1' is no option");
    check_refused("bias:file=distance.st,learn=2", "'learn=2' is no option");
    check_refused("bias:file=name.st", "name.st: it has no tensor 'bias'");
    check_refused("bias:file=heads.st", "has 2 heads, and the model 4");
    check_refused("bias:file=short.st", "for 11 positions, and training has 12 tokens");
    check_refused("clip+bias:file=distance.st", "takes the place of clip");
    check_refused("bias:file=pairs.st+bias:file=pairs.st", "has two biases");
    check_refused("bias:file=pairs.st@random", "needs positions 0, 1, 2");
    check_refused("fox+bias:file=pairs.st", "goes with encodings that learn nothing");
    check_refused("t5+bias:file=pairs.st", "goes with encodings that learn nothing");
    check_refused("sba+bias:file=pairs.st", "goes with encodings that learn nothing");

    /* what is in the file belongs to a run's identity, and so does learn */
    id_of("bias:file=distance.st", id[0]);
    id_of("bias:file=distance.st,learn=1", id[1]);
    write_bias("distance.st", "bias", HEADS, LONGEST, true, true);
    id_of("bias:file=distance.st", id[2]);
    CHECK_THAT(strcmp(id[0], id[1]) && strcmp(id[0], id[2]), "three runs");
    static const char *const files[] = { "distance.st", "pairs.st", "name.st", "heads.st",
                                         "short.st" };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) unlink(files[i]);
    CHECK_THAT(!chdir("/") && !rmdir(folder), "%s", folder);
}

/* What files call the weights of inputs, in order, and what a cache keeps of inputs per token. */
static void check_inputs(const char *arm, const char *wanted, int kept)
{
    struct lab_shape s = layout_of(arm, false), plain = layout_of("nope", false);
    struct lab_model *m, *nope;
    const struct lab_tensor *list;
    char names[128] = "";
    loci_error e = { .text = "" };
    if (!CHECK_THAT(!lab_model_open(&m, &s, NULL, &e), "%s: %s", arm, e.text)) return;
    if (CHECK_THAT(!lab_model_open(&nope, &plain, NULL, &e), "nope: %s", e.text)) {
        const double more = lab_model_cache_bytes(m) - lab_model_cache_bytes(nope);
        CHECK_CLOSE(more, 4.0 * plain.layers * kept, 0, "%s: its cache", arm);
        lab_model_close(nope);
    }
    const int n = lab_model_tensors(m, &list);
    for (int t = 0; t < n; t++) {
        const char *name = strncmp(list[t].name, "layers.0.", 9) ? "" : list[t].name + 9;
        if (name[0] && strchr("wb", name[0]) && name[1] && strchr("fgi", name[1]))
            snprintf(names + strlen(names), sizeof names - strlen(names), "%s ", name);
    }
    CHECK_THAT(!strcmp(names, wanted), "%s: '%s', wanted '%s'", arm, names, wanted);
    lab_model_close(m);
}

int main(void)
{
    static const char *const more[] = { "rope+fox",
                                        "rope@random",
                                        "sinusoidal+alibi+sink",
                                        "cope:gates=given,npos=9",
                                        "angles:pairing=half",
                                        "angles:pairing=interleaved+alibi",
                                        "rope:positions=given",
                                        "rope:positions=given",
                                        "alibi:slopes=keys",
                                        "alibi:slopes=queries",
                                        "alibi:slopes=both+fox",
                                        "path+alibi:slopes=both" };
    static const int more_kv[] = { 2, 0, 1, 2, 0, 2, 1, 0, 0, 0, 2, 2 };
    static const char *const neutral[] = { "learned", "alibi:slopes=given",
                                           "t5",      "clip",
                                           "kerple",  "fire",
                                           "shaw",    "cope",
                                           "deberta", "fox",
                                           "mixed",   "liere",
                                           "comrope", "rope:freq=given" };
    const struct lab_known *list;
    const int n = lab_known_arms(&list);
    for (int i = 0; i < n; i++) {
        check_gradients(list[i].text, 0);
        check_bits(list[i].text);
        check_decode(list[i].text);
    }
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        check_gradients(more[i], more_kv[i]);
        check_bits(more[i]);
        check_decode(more[i]);
    }
    for (size_t i = 0; i < sizeof neutral / sizeof *neutral; i++) check_neutral(neutral[i]);
    static const char *const turning[] = { "rope", "learned+rope", "rope@random", "rope+fox",
                                           "rope+t5:buckets=8" };
    for (size_t i = 0; i < sizeof turning / sizeof *turning; i++) {
        check_changed(turning[i], LAB_PI);
        check_changed(turning[i], LAB_YARN);
    }
    check_biases();
    const int width = layout_of("nope", false).dim;
    check_inputs("nope", "", 0);
    check_inputs("fox", "wf bf ", HEADS);
    check_inputs("fox-pro", "wf bf wg ", HEADS);
    check_inputs("path+fox", "wf bf wi1 wi2 bi2 ", width + 2 * HEADS);
    check_inputs("cope:gates=given,npos=9+fox", "wf bf wg ", width + HEADS);
    check_inputs("rope:positions=given", "wi1 ", 0);
    check_refused("rope@open", "has no forget gates that could start open");
    return harness_end();
}
