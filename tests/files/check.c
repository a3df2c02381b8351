/* SPDX-License-Identifier: MIT */
/* check.c -- `loci check` names the rule and the common mistakes of data that this file generates
 * by plain formulas. */
#define _DEFAULT_SOURCE

#include <fcntl.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/check.h"
#include "harness.h"
#include "scratch.h"
#include "walk.h"

static bool says(const char *text, const char *part)
{
    return part ? strstr(text, part) != NULL : !text[0];
}
/* mistake NULL: none; rule NULL: nothing explains it. */
static void expect(const char *name, const struct finding *f, const char *rule, const char *mistake)
{
    const bool right =
        rule ? f->explains && says(f->rule, rule) && says(f->mistake, mistake) : !f->explains;
    CHECK_THAT(right, "%s: explains %d, rule %s, mistake '%s', within %td of %td", name,
               f->explains, f->rule, f->mistake, f->score.within, f->score.total);
}

static struct safetensor shape(int rank, ptrdiff_t a, ptrdiff_t b, ptrdiff_t c)
{
    return (struct safetensor){ .name = "x",
                                .type = ST_F32,
                                .rank = rank,
                                .shape = { a, b, c },
                                .count = a * (rank > 1 ? b : 1) * (rank > 2 ? c : 1) };
}

/* ---- Rotations ------------------------------------------------------------------------------- */

enum { H = 2, L = 200, D = 32 };
struct engine { /* the steps of an engine; zeros are right */
    bool interleaved, permuted, float_angles, bfloat;
    double base, linear, factor;
    int dim, offset, shift, sign;
    ptrdiff_t bad_row;
};
static double x[H * L * D], y[H * L * D];

static double angle_of(const struct engine *g, int dim, int row, int t)
{
    double pos = row + g->shift;
    if (g->bfloat && pos > 256) pos = rint(pos / 2) * 2;
    const double base = g->base > 0 ? g->base : 10000,
                 w = pow(base, -2.0 * t / dim) / (g->linear > 0 ? g->linear : 1);
    if (g->float_angles)
        return (double)((float)pos * (1.0f / powf((float)base, 2.0f * (float)t / (float)dim)));
    return pos * w * (g->sign ? -1 : 1);
}

static void turn(const struct engine *g)
{
    const int dim = g->dim ? g->dim : D, pairs = dim / 2;
    const double m = g->factor > 0 ? g->factor : 1;
    for (int i = 0; i < H * L * D; i++) x[i] = (double)(float)walk_uniform();
    for (int r = 0; r < H * L; r++) {
        double *to = y + r * D;
        const double *from = x + r * D;
        memcpy(to, from, D * sizeof *to);
        for (int t = 0; t < pairs; t++) {
            const int a = g->offset + (g->interleaved ? 2 * t : t),
                      b = a + (g->interleaved ? 1 : pairs);
            const double phi = angle_of(g, dim, r % L, t), c = (double)(float)(m * cos(phi)),
                         s = (double)(float)(m * sin(phi));
            const int ya = g->permuted ? g->offset + 2 * t : a, yb = g->permuted ? ya + 1 : b;
            to[ya] = (double)((float)(from[a] * c) - (float)(from[b] * s));
            to[yb] = (double)((float)(from[a] * s) + (float)(from[b] * c));
            to[ya] = (double)(float)to[ya];
            to[yb] = (double)(float)to[yb];
        }
    }
    if (g->bad_row) y[g->bad_row * D + 5] += 0.25;
}

static void rotation(const char *name, const char *encoding, struct engine g, const char *rule,
                     const char *mistake)
{
    turn(&g);
    const struct safetensor t = shape(3, H, L, D);
    const struct check c = {
        .path = name,
        .encoding = encoding,
        .tolerance = -1,
        .before = { "x", &t, x, 0x1p-24 },
        .after = { "y", &t, y, 0x1p-24 },
    };
    struct finding f = { .what = "" };
    if (!check_rotation(&c, &f)) CHECK_FAILED("%s was refused", name);
    else expect(name, &f, rule, mistake);
}

static void rotations(void)
{
    const char *const half = "rope:pairing=half", *const inter = "rope:pairing=interleaved";
    const char *const yarn = "rope:pairing=half,scaling=yarn,factor=4,original_length=64";
    rotation("half", half, (struct engine){ 0 }, half, NULL);
    rotation("half, unasked", NULL, (struct engine){ .base = 500000 },
             "rope:pairing=half,base=500000", NULL);
    rotation("interleaved, unasked", NULL, (struct engine){ .interleaved = true }, inter, NULL);
    rotation("a base of no catalogue", NULL, (struct engine){ .base = 12345 }, "base=12345", NULL);
    rotation("interleaved for half", half, (struct engine){ .interleaved = true }, inter,
             "the pairing is interleaved, not half");
    rotation("half for interleaved", inter, (struct engine){ 0 }, half,
             "the pairing is half, not interleaved");
    rotation("permuted", half, (struct engine){ .permuted = true }, half, "permuted");
    rotation("another base", half, (struct engine){ .base = 1e6 }, "base=1000000",
             "the base is 1000000, not 10000");
    rotation("pairing and base", half, (struct engine){ .interleaved = true, .base = 1e6 },
             "base=1000000", "interleaved, not half; the base is 1000000");
    rotation("linear", "rope:pairing=half,scaling=linear,factor=4", (struct engine){ .linear = 4 },
             "scaling=linear", NULL);
    rotation("scaling ignored", "rope:pairing=half,scaling=linear,factor=4", (struct engine){ 0 },
             half, "the scaling is ignored");
    rotation("yarn ignored, factor kept", yarn, (struct engine){ .factor = 1 + 0.1 * log(4) }, half,
             "the scaling is ignored except for its attention factor");
    rotation("factor missing", "rope:pairing=half,attention_factor=1.25", (struct engine){ 0 },
             half, "the attention factor is missing");
    rotation("factor twice", "rope:pairing=half,attention_factor=1.25",
             (struct engine){ .factor = 1.5625 }, half, "the attention factor is applied twice");
    rotation("one late", half, (struct engine){ .shift = 1 }, half, "one too large");
    rotation("one early", half, (struct engine){ .shift = -1 }, half, "one too small");
    rotation("sign", half, (struct engine){ .sign = 1 }, half, "sin has the other sign");
    rotation("partial", "rope:pairing=half,dim=16", (struct engine){ .dim = 16 }, "dim=16", NULL);
    rotation("partial with offset", "rope:pairing=interleaved,dim=16,offset=8",
             (struct engine){ .dim = 16, .offset = 8, .interleaved = true }, "offset=8", NULL);
    rotation("partial ignored", "rope:pairing=half,dim=16", (struct engine){ 0 }, "dim=32",
             "32 channels are rotated, not 16");
    rotation("partial for all", half, (struct engine){ .dim = 8 }, "dim=8",
             "8 channels are rotated, not 32");
    rotation("spread over the head", "rope:pairing=half,dim=16",
             (struct engine){ .dim = 16, .base = 100 }, "dim=16", "spread over the whole head");
    rotation("float32 angles", half, (struct engine){ .float_angles = true }, half, "float32");
    rotation("bfloat16 positions", half, (struct engine){ .bfloat = true, .shift = 300 }, NULL,
             NULL);
    rotation("nothing", half, (struct engine){ .base = 10001, .shift = 7 }, NULL, NULL);

    turn(&(struct engine){ .bad_row = L + 17 });
    const struct safetensor t = shape(3, H, L, D);
    struct check c = { .path = "bad",
                       .encoding = half,
                       .tolerance = -1,
                       .before = { "x", &t, x, 0x1p-24 },
                       .after = { "y", &t, y, 0x1p-24 } };
    struct finding f = { .what = "" };
    if (!check_rotation(&c, &f)) CHECK_FAILED("%s was refused", c.path);
    expect("one number off", &f, NULL, NULL);
    CHECK_THAT(strstr(f.where, "head 1, position 17, pair 5 (channel 5)")
                   && f.score.within == H * L * D - 1 && !f.mistake[0],
               "the place was said to be %s, with '%s'", f.where, f.mistake);
    c.tolerance = 1;
    f = (struct finding){ .what = "" };
    if (!check_rotation(&c, &f)) CHECK_FAILED("%s was refused", c.path);
    expect("a tolerance of one's own", &f, half, NULL);

    for (int i = 0; i < H * L * D; i++) y[i] = NAN;
    c.tolerance = DBL_MAX; /* times a pair's size it is infinite */
    f = (struct finding){ .what = "" };
    if (!check_rotation(&c, &f)) CHECK_FAILED("%s was refused", c.path);
    CHECK_THAT(!f.explains && f.score.within == 0, "%td numbers that are none are explained",
               f.score.within);
}

/* Given positions that are far away, or rounded to bfloat16. */
static void far_positions(bool rounded)
{
    static double pos[L];
    for (int i = 0; i < H * L * D; i++) x[i] = (double)(float)walk_uniform();
    for (int r = 0; r < H * L; r++) {
        pos[r % L] = 100003 + 13 * (r % L);
        const double p = rounded ? rint(pos[r % L] / 512) * 512 : pos[r % L];
        for (int t = 0; t < D / 2; t++) {
            const double phi = p * pow(10000, -2.0 * t / D), a = x[r * D + t],
                         b = x[r * D + t + D / 2];
            y[r * D + t] = (double)(float)(a * cos(phi) - b * sin(phi));
            y[r * D + t + D / 2] = (double)(float)(a * sin(phi) + b * cos(phi));
        }
    }
    const struct safetensor t = shape(3, H, L, D), n = shape(1, L, 0, 0);
    const struct check c = {
        .path = "far",
        .encoding = "rope:pairing=half",
        .tolerance = -1,
        .before = { "x", &t, x, 0x1p-24 },
        .after = { "y", &t, y, 0x1p-24 },
        .pos = { "pos", &n, pos, 0 },
    };
    struct finding f = { .what = "" };
    if (!check_rotation(&c, &f)) CHECK_FAILED("%s was refused", c.path);
    expect("far positions", &f, "rope:pairing=half", rounded ? "rounded to bfloat16" : NULL);
}

static void table(int layout, const char *encoding, double base, int shift, double sign,
                  const char *rule, const char *mistake)
{
    enum { P = D / 2 };
    const int width = layout ? D : P;
    for (int r = 0; r < L; r++)
        for (int i = 0; i < width; i++) {
            const double phi = (r + shift) * pow(base, -2.0 * (layout == 2 ? i / 2 : i % P) / D);
            x[r * width + i] = (double)(float)cos(phi);
            y[r * width + i] = (double)(float)(sign * sin(phi));
        }
    const struct safetensor t = shape(2, L, width, 0);
    const struct check c = {
        .path = "table",
        .encoding = encoding,
        .tolerance = -1,
        .cos = { "cos", &t, x, 0x1p-24 },
        .sin = { "sin", &t, y, 0x1p-24 },
    };
    struct finding f = { .what = "" };
    if (!check_rotation(&c, &f)) CHECK_FAILED("%s was refused", c.path);
    static const char *const names[] = { "split", "half", "interleaved" };
    expect(names[layout], &f, rule, mistake);
    CHECK_THAT(strstr(f.what, names[layout]), "a %s table was called %s", names[layout], f.what);
}

/* ---- Slopes and buckets ---------------------------------------------------------------------- */

static void slopes(const char *name, const double *m, int heads, const char *encoding,
                   const char *rule, const char *mistake)
{
    double rounded[16];
    for (int h = 0; h < heads; h++) rounded[h] = (double)(float)m[h];
    const struct safetensor t = shape(1, heads, 0, 0);
    const struct check c = {
        .path = name,
        .encoding = encoding,
        .tolerance = -1,
        .slopes = { "slopes", &t, rounded, 0x1p-24 },
    };
    struct finding f = { .what = "" };
    if (!check_slopes(&c, &f)) CHECK_FAILED("%s was refused", name);
    expect(name, &f, rule, mistake);
}
static void all_slopes(void)
{
    double eight[8], official[12], geometric[12], cut[12], on[12], zero[12], minus[8], random[12];
    for (int h = 0; h < 12; h++) {
        official[h] = exp2(h < 8 ? -(h + 1) : -0.5 * (2 * (h - 8) + 1));
        geometric[h] = exp2(-8.0 * (h + 1) / 12);
        cut[h] = exp2(-0.5 * (h + 1));
        on[h] = exp2(-(h + 1));
        zero[h] = exp2(-h);
        random[h] = walk_uniform();
    }
    for (int h = 0; h < 8; h++) {
        eight[h] = exp2(-(h + 1));
        minus[h] = -eight[h];
    }
    slopes("8 heads", eight, 8, "alibi", "alibi", NULL);
    slopes("12 heads", official, 12, NULL, "alibi", NULL);
    slopes("12 geometric", geometric, 12, NULL, "geometric", NULL);
    slopes("12 geometric for official", geometric, 12, "alibi", "geometric", "not a power of two");
    slopes("12 of 16", cut, 12, "alibi", "alibi", "next power of two");
    slopes("12 with the ratio of 8", on, 12, "alibi", "alibi", "previous power of two");
    slopes("from 0", zero, 8, "alibi", "alibi", "counted from 0");
    slopes("sign", minus, 8, "alibi", "alibi", "sign");
    slopes("random", random, 12, "alibi", NULL, NULL);
}

/* The official code, in double. */
static int bucket(int distance, bool two, int buckets, int most)
{
    int first = 0;
    if (two) {
        buckets /= 2;
        first = distance < 0 ? buckets : 0;
        distance = abs(distance);
    } else if (distance < 0) distance = 0;
    const int exact = buckets / 2;
    if (distance < exact) return first + distance;
    const double widths = log((double)distance / exact) / log((double)most / exact);
    const int b = exact + (int)(widths * (buckets - exact) + 1e-9);
    return first + (b < buckets ? b : buckets - 1);
}
static void buckets(const char *name, const char *encoding, bool two, int shift, int sign, int slip,
                    bool biases, const char *rule, const char *mistake)
{
    enum { Q = 60, K = 150, HEADS = 3 };
    static double bias[HEADS * Q * K], learned[32 * HEADS];
    const int heads = biases ? HEADS : 1;
    for (int i = 0; i < 32 * HEADS; i++) learned[i] = (double)(float)walk_uniform();
    for (int h = 0; h < heads; h++)
        for (int i = 0; i < Q; i++)
            for (int j = 0; j < K; j++) {
                int b = bucket(sign * (i + K - Q - j) + shift, two, 32, 128) + slip;
                b = b < 0 ? 0 : b > 31 ? 31 : b;
                bias[(h * Q + i) * K + j] = biases ? learned[b * HEADS + h] : b;
            }
    const struct safetensor t = shape(3, heads, Q, K), l = shape(2, 32, HEADS, 0);
    const struct check c = {
        .path = name,
        .encoding = encoding,
        .tolerance = -1,
        .bias = { "bias", &t, bias, biases ? 0x1p-24 : 0 },
        .table = { "table", &l, learned, 0x1p-24 },
    };
    struct finding f = { .what = "" };
    if (!check_buckets(&c, &f)) CHECK_FAILED("%s was refused", name);
    expect(name, &f, rule, mistake);
}
static void all_buckets(void)
{
    const char *const one = "t5", *const two = "t5:bidirectional=1";
    for (int biases = 0; biases < 2; biases++) {
        buckets("one-sided", one, false, 0, 1, 0, biases, "t5", NULL);
        buckets("two-sided", two, true, 0, 1, 0, biases, "bidirectional=1", NULL);
        buckets("two-sided, unasked", NULL, true, 0, 1, 0, biases, "bidirectional=1", NULL);
        buckets("two-sided for one-sided", one, true, 0, 1, 0, biases, "bidirectional=1",
                "two-sided, not one-sided");
        buckets("one-sided for two-sided", two, false, 0, 1, 0, biases, "bidirectional=0",
                "one-sided, not two-sided");
        buckets("one late", one, false, 1, 1, 0, biases, "t5", "distances are one too large");
        buckets("one early", two, true, -1, 1, 0, biases, "t5", "distances are one too small");
        buckets("mirrored", two, true, 0, -1, 0, biases, "t5", "other sign");
        buckets("bucket high", one, false, 0, 1, 1, biases, "t5", "buckets are one too high");
        buckets("max_distance", "t5:max_distance=512", false, 0, 1, 0, biases, "t5",
                "max_distance is 128");
    }
}

/* ---- The command ----------------------------------------------------------------------------- */

static int command(int argc, char **argv)
{
    struct args a;
    fflush(stdout);
    const int kept = dup(1), kept_errors = dup(2), null = open("/dev/null", O_WRONLY);
    dup2(null, 1);
    dup2(null, 2);
    const int code = args_parse(&a, &cmd_check, argc, argv) ? cmd_check.run(&a) : EXIT_ERROR;
    fflush(stdout);
    dup2(kept, 1);
    dup2(kept_errors, 2);
    close(kept);
    close(kept_errors);
    close(null);
    return code;
}
static void exit_code(const char *name, int want, const char *a, const char *b, const char *c)
{
    char words[3][SCRATCH];
    snprintf(words[0], SCRATCH, "%s", a);
    snprintf(words[1], SCRATCH, "%s", b ? b : "");
    snprintf(words[2], SCRATCH, "%s", c ? c : "");
    char *argv[] = { words[0], words[1], words[2], NULL };
    const int code = command(1 + (b != NULL) + (c != NULL), argv);
    CHECK_THAT(code == want, "%s: exit code %d, not %d", name, code, want);
}
static void files(void)
{
    static float before[L * D], after[L * D];
    turn(&(struct engine){ 0 });
    for (int i = 0; i < L * D; i++) {
        before[i] = (float)x[i];
        after[i] = (float)y[i];
    }
    struct safetensor t[] = { shape(2, L, D, 0), shape(2, L, D, 0) };
    t[0].name = "before";
    t[1].name = "after";
    const void *data[] = { before, after };
    char path[SCRATCH];
    scratch(path, "check");
    const int fd = mkstemp(path);
    loci_error e;
    if (fd < 0 || loci_safetensors_write(path, 2, t, data, 0, NULL, &e)) exit(2);
    close(fd);
    exit_code("right", 0, path, "-erope:pairing=half", NULL);
    exit_code("json", 0, path, "--json", NULL);
    exit_code("wrong", 1, path, "-erope:pairing=interleaved", "--json");
    exit_code("no tensor", 2, path, "--after=none", NULL);
    exit_code("no rope", 2, path, "-ealibi", NULL);
    exit_code("no encoding", 2, path, "-erope:pairing=half,scaling=yarn", NULL);
    exit_code("two things", 2, path, "--slopes=before", NULL);
    exit_code("positions", 2, path, "--pos=before", NULL);
    exit_code("no such layout", 2, path, "--layout=x", NULL);
    exit_code("a dim too wide", 2, path, "-erope:pairing=half,dim=64", NULL);
    exit_code("no file", 2, "/nonexistent", NULL, NULL);
    char config[SCRATCH];
    scratch(config, "check");
    const int out = mkstemp(config);
    const char text[] = "{\"model_type\":\"llama\",\"hidden_size\":64,\"num_attention_heads\":2,"
                        "\"num_hidden_layers\":1,"
                        "\"max_position_embeddings\":512,\"rope_theta\":10000.0}";
    if (out < 0 || write(out, text, sizeof text - 1) < 0) exit(2);
    exit_code("a model that fits", 0, path, config, NULL);
    exit_code("a layer too many", 2, path, config, "--layer=7");
    exit_code("two wishes", 2, path, config, "-erope:pairing=half");
    exit_code("a layer of nothing", 2, path, "--layer=0", NULL);
    exit_code("no model", 2, path, path, NULL);
    if (ftruncate(out, 0) || pwrite(out, text, sizeof text - 1, 0) < 0
        || pwrite(out, "96", 2, (off_t)(strstr(text, "64") - text)) < 0)
        exit(2);
    exit_code("heads of another width", 2, path, config, NULL);
    close(out);
    unlink(config);
    unlink(path);
}

int main(void)
{
    rotations();
    far_positions(false);
    far_positions(true);
    for (int layout = 0; layout < 3; layout++) {
        table(layout, "rope:pairing=half", 10000, 0, 1, "rope:pairing=half", NULL);
        table(layout, NULL, 500000, 0, 1, "base=500000", NULL);
        table(layout, "rope:pairing=half", 1e6, 0, 1, "base=1000000", "the base is 1000000");
        table(layout, "rope:pairing=half", 10000, 1, 1, "rope", "one too large");
        table(layout, "rope:pairing=half", 10000, 0, -1, "rope", "sin has the other sign");
    }
    all_slopes();
    all_buckets();
    files();
    return harness_end();
}
