/* SPDX-License-Identifier: MIT */
/* walk.c -- the problems of walk.h: every encoding with its example text, and compositions, in
 * several shapes. */
#include "walk.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

/* Options that examples do not set, and combined encodings. square: value width must be the head
 * width. */
static const struct {
    const char *encoding;
    bool square;
} texts[] = {
    { "alibi:slopes=geometric", false },
    { "alibi:slopes=given", false },
    { "t5:buckets=8,max_distance=9,bidirectional=1,bias_scale=0.5", false },
    { "clip:max=3,sided=2", false },
    { "kerple:kernel=power", false },
    { "kerple:kernel=log3", false },
    { "kerple:kernel=power,weight=1", false },
    { "sandwich:dim=6,first=0,centre=0", false },
    { "fire:hidden=5,threshold=7", false },
    { "fire:layers=1,hidden=6,threshold=90", false },
    { "rope:pairing=half,freq=given,attention_factor=1.2", false },
    { "rope:pairing=interleaved,dim=4,offset=2", false },
    { "rope:pairing=half,scaling=linear,factor=4", false },
    { "rope:pairing=half,scaling=ntk,factor=8", false },
    { "rope:pairing=interleaved,scaling=ntk_fixed,factor=3", false },
    { "rope:pairing=half,scaling=ntk_fixed,factor=3,mixed_b=0.6", false },
    { "rope:pairing=half,scaling=dynamic,factor=2,original_length=64,length=200", false },
    { "rope:pairing=half,base=500,scaling=yarn,factor=4,original_length=60,beta_fast=8", false },
    { "rope:pairing=half,base=500,scaling=yarn,factor=4,original_length=60,truncate=0,"
      "extrapolation_factor=0.5,mscale=2,mscale_all_dim=1",
      false },
    { "rope:pairing=half,dim=4,offset=1,scaling=longrope,factor=8,original_length=32,length=33,"
      "short=1/1.5,long=2/7",
      false },
    { "rope:pairing=half,base=100,scaling=llama3,factor=8,original_length=40", false },
    { "rope:pairing=half,scaling=proportional,partial=0.7,factor=2", false },
    { "rope:pairing=half,angles=f32", false },
    { "rope:pairing=interleaved,base=500,angles=f32,scaling=yarn,factor=4,original_length=60",
      false },
    { "mrope:sections=0/2/1,dim=6,base=20,angles=f32", false },
    { "rope2d:pairing=half,base=10,layout=alternate", false },
    { "mrope:sections=0/2/1,dim=6,pairing=interleaved,base=20", false },
    { "mrope:sections=1/1/1,dim=6,order=interleaved,freq=given,attention_factor=1.1", false },
    { "mrope:sections=1/0/2,dim=6,scaling=yarn,factor=4,original_length=60,base=50+alibi", false },
    { "xpos:scale_base=12,gamma=0.7,base=1000", false },
    { "xpos:dim=4,scale_base=2000+t5:buckets=6,max_distance=10+fox", false },
    { "xpos:scale_base=100+alibi+sba", false },
    { "xpos:scale_base=30+alibi+cape:hidden=4", false },
    { "mixed:axes=3,pairing=half", false },
    { "mixed:axes=1", false },
    { "comrope:kind=ld", false },
    { "comrope:block=3", false },
    { "comrope:kind=ld,block=4,axes=3+alibi", false },
    { "comrope:kind=ld,block=6,axes=1+shaw:left=2,right=2+fox", false },
    { "liere:block=2", false },
    { "liere:block=4,axes=3", false },
    { "liere:block=5,axes=1+alibi", false },
    { "liere:block=6+shaw:left=2,right=2+fox", false },
    { "fope:train_length=40,learn=1", false },
    { "fope:train_length=30,floor_ratio=0.7,base=500,fourier_dim=90,norm=1,learn=1,pad_sin=0",
      false },
    { "fope:clamp=0,ignore_zero=0,learn=1+alibi", false },
    { "fope:train_length=200,ignore_zero=0+cope:npos=5", false },
    { "tape+alibi+fox", false },
    { "tape+cope:npos=5", false },
    { "tape+shaw:left=3,right=2+sba:remainder=value", false },
    { "tape+t5:buckets=6,max_distance=10,bidirectional=1+cape:hidden=4", false },
    { "tape+xl", false },
    { "shaw:left=3,right=2,sign=ij", false },
    { "shaw:left=0,right=4,values=0", false },
    { "xl:clamp=5,base=300", false },
    { "xl:clamp=70", false },
    { "deberta:span=6,max_distance=20", false },
    { "deberta:kind=v1,span=9,p2c=ji", false },
    { "deberta:span=6,max_distance=14,saturate=0,p2c=ji,terms=p2c", false },
    { "deberta:kind=v1,span=50,terms=c2p", false },
    { "cope:npos=4,gate_scale=0.7,pos_scale=0.6", false },
    { "cope:npos=5,gates=given", false },
    { "cope:npos=6,gates=v", true },
    { "rope:pairing=half,values=1,attention_factor=1.3", true },
    { "rope:pairing=interleaved,dim=2,offset=1,values=1,freq=given+sink+alibi", false },
    { "rope:pairing=half,positions=given,freq=given,values=1,attention_factor=0.8", true },
    { "mrope:sections=0/2/1,dim=6,freq=given,values=1", true },
    { "angles:pairing=half,dim=2,values=1+fox", false },
    { "angles:pairing=interleaved,values=1+sba:remainder=value", true },
    { "rope:pairing=half,freq=given,values=1+sba:remainder=value", true },
    { "rope:pairing=half,values=1+cope:npos=5,gates=v", true },
    { "rope:pairing=half,values=1+alibi+cape:hidden=4", true },
    { "rope:pairing=half,values=1,angles=f32,attention_factor=1.2+shaw:left=3,right=2,values=0",
      true },
    { "angles:pairing=interleaved", false },
    { "rope:pairing=half,positions=given", false },
    { "rope:pairing=interleaved,positions=given,freq=given,dim=4,offset=2+alibi", false },
    { "angles:pairing=half,dim=4,offset=2+alibi", false },
    { "rerope:pairing=half,window=5", false },
    { "rerope:pairing=interleaved,window=70,leak=0.25,freq=given,attention_factor=1.2", false },
    { "rerope:pairing=half,window=3,dim=4,offset=2,attention_factor=1.3+fox+sink", false },
    { "rerope:pairing=half,window=4,leak=0.3+ssmax:bias=1+alibi", false },
    { "rerope:pairing=half,window=6+sba", false },
    { "selfextend:pairing=half,group=2,window=4", false },
    { "selfextend:pairing=interleaved,group=7,window=42,freq=given", false },
    { "selfextend:pairing=half,group=3,window=6,scaling=linear,factor=2+alibi+logn:length=9",
      false },
    { "selfextend:pairing=half,group=4,window=4+t5:buckets=6,max_distance=10+cape:hidden=4",
      false },
    { "dca:pairing=half,chunk=6,local=2", false },
    { "dca:pairing=interleaved,chunk=60,local=25,freq=given,attention_factor=1.1", false },
    { "dca:pairing=half,chunk=5,local=4,dim=4+alibi+ssmax", false },
    { "dca:pairing=half,chunk=40,local=9+fox+sba", false },
    { "rope:pairing=half+wall", false },
    { "rope:pairing=interleaved,freq=given,dim=4,offset=2+wall+fox", false },
    { "rope:pairing=half,freq=given,values=1+wall", true },
    { "angles:pairing=half+wall+cape:hidden=4", false },
    { "mixed+wall+logn:length=9+sink", false },
    { "liere:block=2+kerple:weight=1+wall", false },
    { "wall+softcap:cap=2+alibi", false },
    { "wall+ssmax:bias=1+sba", false },
    { "wall+sba:remainder=value", false },
    { "pope:base=20+alibi", false },
    { "pope:base=300+fox+sink", false },
    { "pope+ssmax:bias=1+kerple+cape:hidden=4", false },
    { "pope:base=2+sba:remainder=value", false },
    { "angles:pairing=half+shaw:left=3,right=2+ssmax", false },
    { "alibi:slopes=keys", false },
    { "alibi:slopes=queries+rope:pairing=half", false },
    { "alibi:slopes=both+ssmax", false },
    { "alibi:slopes=both+cape:hidden=4", false },
    { "path+fox", false },
    { "path+alibi+sink", false },
    { "ssmax:bias=1+path+sba", false },
    { "path+t5:buckets=6,max_distance=10+cape:hidden=4", false },
    { "ssmax:bias=1", false },
    { "ssmax:count=position+rope:pairing=half,freq=given", false },
    { "alibi+ssmax:bias=1", false },
    { "kerple:weight=1+shaw:left=3,right=2+ssmax+sink", false },
    { "xpos+ssmax+fox", false },
    { "tape+ssmax+alibi", false },
    { "ssmax:bias=1+cape:hidden=4", false },
    { "ssmax+sba", false },
    { "logn:length=9", false },
    { "alibi+logn:length=9,rule=added,beta=0.3", false },
    { "logn:length=7,count=position+deberta:span=6,max_distance=20", false },
    { "softcap:cap=2+logn:length=5+ssmax+cope:npos=5", false },
    { "rope:pairing=half+softcap:cap=2", false },
    { "alibi+softcap:cap=0.7", false },
    { "kerple:weight=1+shaw:left=3,right=2+softcap:cap=1.5+sink", false },
    { "softcap:cap=3+sba", false },
    { "softcap:cap=0.7+alibi", false },
    { "t5:buckets=6,max_distance=10,bidirectional=1+softcap:cap=1+cope:npos=5", false },
    { "softcap:cap=1+cope:npos=5+cape:hidden=4", false },
    { "rope:pairing=half+sink", false },
    { "alibi+sink", false },
    { "tape+shaw:left=3,right=2+sink", false },
    { "deberta:span=6,max_distance=20+sink", false },
    { "t5:buckets=6,max_distance=10+fox+cape:hidden=4+sink", false },
    { "sba:current=1", false },
    { "sba:remainder=value", false },
    { "sba:current=1,remainder=vector", false },
    { "cape:hidden=5,leak=0.2", false },
    { "rope:pairing=half,base=500+fox", false },
    { "alibi:slopes=given+cape:hidden=6", false },
    { "t5:buckets=6,max_distance=10,bidirectional=0+cape:hidden=6,add_bias=0", false },
    { "rope:pairing=interleaved,freq=given+sba", false },
    { "rope:pairing=half+alibi+cope:npos=5", false },
    { "rope2d:base=20+alibi+fox", false },
    { "mixed+t5:buckets=6,max_distance=10,bidirectional=1+sba", false },
    { "cope:npos=5+t5:buckets=6,max_distance=10+fox", false },
    { "alibi:slopes=given+shaw:left=4,right=4", false },
    { "alibi+kerple:weight=1+t5:buckets=6,max_distance=10,bidirectional=0", false },
    { "clip:max=4+sandwich:dim=6+fox", false },
    { "fire:hidden=4,threshold=6+cape:hidden=4", false },
    { "rope:pairing=half+deberta:span=7,max_distance=40,saturate=0+fox", false },
    { "rope:pairing=half+xl+fox", false },
    { "xl+alibi+cape:hidden=4", false },
    { "xl:clamp=9+sba", false },
    { "deberta:kind=v1,span=5+alibi+cape:hidden=4", false },
    { "shaw:left=2,right=2+fox+cape:hidden=4+sba:remainder=vector", false },
};

/* Random compositions: an optional rotation, one to three encodings of scores, optionally a mix of
 * heads, optionally a stick or a sink.  Compositions that a plan rejects are drawn again. */
static const char *const rotations[] = { "rope:pairing=half",
                                         "rope:pairing=interleaved,base=500,dim=4,offset=2",
                                         "rope2d",
                                         "mixed",
                                         "xpos:scale_base=30",
                                         "mrope:sections=1/1/1,dim=6" };
static const char *const scores[] = { "alibi",
                                      "t5:buckets=6,max_distance=10,bidirectional=1",
                                      "clip:max=5",
                                      "kerple",
                                      "kerple:kernel=log3",
                                      "kerple:weight=1",
                                      "sandwich:dim=6",
                                      "fire:hidden=4,threshold=6",
                                      "shaw:left=3,right=2",
                                      "xl:clamp=5",
                                      "deberta:span=6,max_distance=20",
                                      "cope:npos=5",
                                      "fox",
                                      "softcap:cap=2" };
static const char *const weights[] = { "sba", "sba:current=1,remainder=vector", "sink" };
enum { COMPOSITIONS = 40 };
static char compositions[COMPOSITIONS][256];

/* Encodings of linear attention. */
static const char *const linear[] = {
    "nope",
    "rope:pairing=interleaved",
    "rope:pairing=half,freq=given,attention_factor=1.2",
    "rope2d:base=20",
    "mixed:axes=3,pairing=half",
    "comrope:kind=ld",
    "comrope:block=3",
    "liere:block=2",
    "liere:block=4,axes=3",
    "fope:train_length=40,learn=1",
};

enum places { CONSECUTIVE, SPREAD, PACKED, STARTS };

struct shape {
    const char *name;
    int batch, heads, kv_heads, q_len, k_len, dim, value_dim;
    bool full;
    int64_t left, right;
    enum places places;
    bool keys_rotated;
};
static const struct shape small[] = {
    { "causal, grouped",        2, 4, 2,  9,  9, 6, 5, false, 0, 0,         CONSECUTIVE, false },
    { "chunk in a window",      1, 3, 1,  7, 12, 6, 3, false, 5, 0,         CONSECUTIVE, false },
    { "spread positions",       2, 2, 1,  6, 10, 6, 6, false, 0, 0,         SPREAD,      false },
    { "packed, padded",         1, 2, 2, 12, 12, 8, 4, false, 4, 0,         PACKED,      false },
    { "decode, turned keys",    2, 4, 1,  1, 11, 6, 6, false, 0, 0,         CONSECUTIVE, true  },
    { "full, two-sided window", 1, 4, 2,  8, 11, 6, 7, true,  6, 4,         SPREAD,      false },
    { "full, keys behind",      1, 2, 1,  9,  9, 6, 4, true,  0, LOCI_NONE, CONSECUTIVE, false },
    { "full, grouped",          1, 4, 2,  5,  8, 6, 4, true,  0, 0,         CONSECUTIVE, false },
    { "one token",              1, 2, 2,  1,  1, 6, 6, false, 0, 0,         CONSECUTIVE, false },
    { "sequences, some empty",  1, 2, 1,  9, 14, 6, 4, false, 0, 0,         STARTS,      false },
    { "cross, more queries",    2, 2, 1, 11,  6, 6, 4, true,  0, 0,         CONSECUTIVE, false },
    { "dropout, grouped",       2, 4, 2,  6,  8, 6, 5, false, 0, 0,         CONSECUTIVE, false },
    { "dropout, sequences",     1, 2, 1,  9, 14, 6, 4, false, 0, 0,         STARTS,      false },
}, tiles[] = {
    { "three tiles",            1, 2, 1, 130, 130,  34, 18, false, 0, 0,    CONSECUTIVE, false },
    { "whole tiles",            1, 2, 2,  64, 128,  64, 64, false, 0, 0,    CONSECUTIVE, false },
    { "window over a border",   2, 2, 1,  65, 129,  16, 33, false, 40, 0,   CONSECUTIVE, false },
    { "gaps over a border",     1, 2, 1,  70, 135,  10, 10, false, 0, 0,    SPREAD,      false },
    { "packed tiles",           1, 2, 1, 200, 200,   6,  6, false, 0, 0,    PACKED,      false },
    { "full tiles",             1, 2, 1,  66,  97,  48,  7, true,  0, 0,    CONSECUTIVE, false },
    { "sequences of tiles",     1, 2, 1, 180, 210,  6,  6, false, 90, 0,   STARTS,      false },
    { "cross, tiles of queries", 1, 2, 1, 131, 70,  6, 10, true,  0, 0,    CONSECUTIVE, false },
    { "far decode",             1, 4, 2,   3, 190,  80, 80, false, 0, 0,    CONSECUTIVE, false },
    { "dropout over a border",  2, 2, 1,  70, 131,   6, 10, false, 90, 0,   CONSECUTIVE, false },
}, chunks[] = {
    { "three chunks",           1, 2, 1,   5, 8200,  6,  5, false, 0, 0,    CONSECUTIVE, false },
    { "window over chunks",     1, 2, 2,   5, 4200,  6,  6, false, 4140, 0, CONSECUTIVE, false },
    { "gaps over chunks",       1, 1, 1,   5, 4110,  6,  5, false, 0, 0,    SPREAD,      false },
    { "dropout over chunks",    1, 1, 1,   5, 4110,  6,  5, false, 0, 0,    CONSECUTIVE, false },
};
/* Gates hardly close and sticks hardly break: they still matter in the last of many keys. */
static bool lasting(const struct shape *s) { return s->k_len > 4096; }

/* ---- Random numbers: xorshift64* ------------------------------------------------------------- */

static uint64_t state = 0x9e3779b97f4a7c15u;

double walk_uniform(void)
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (double)(int64_t)(state * 0x2545f4914f6cdd1du) * 0x1p-63;
}

double walk_coordinate(double reach)
{
    const double x = reach * walk_uniform();
    return walk_uniform() < 0 ? floor(x) : x;
}

void walk_restart(int seed) { state = 0x9e3779b97f4a7c15u * (2 * (uint64_t)seed + 1); }

/* ---- Making a problem ------------------------------------------------------------------------ */

static void *alloc(struct walk *w, size_t bytes)
{
    void *p = calloc(bytes + 1, 1);
    if (!p) {
        fprintf(stderr, "walk: no memory\n");
        exit(2);
    }
    return w->block[w->blocks++] = p;
}
static double *numbers(struct walk *w, size_t count, double size)
{
    double *x = alloc(w, count * sizeof *x);
    for (size_t i = 0; i < count; i++) x[i] = (float)(size * walk_uniform());
    return x;
}
static void scale(double *x, size_t count, double by, double plus)
{
    for (size_t i = 0; i < count; i++) x[i] = (float)(x[i] * by + plus);
}

static double *add_input(struct walk *w, const char *owner, const char *name, size_t count)
{
    int i = w->inputs++;
    w->input[i].owner = owner;
    w->input[i].name = name;
    w->input[i].count = count;
    w->input[i].x = numbers(w, count, 1);
    w->input[i].dx = numbers(w, count, 0);
    return w->input[i].x;
}

/* Rows of length 1, as the layer of path makes them: products of reflections do not grow. */
static void normalise(double *x, size_t count, int width)
{
    for (size_t i = 0; i < count; i += (size_t)width) {
        double sum = 1e-30;
        for (int d = 0; d < width; d++) sum += x[i + (size_t)d] * x[i + (size_t)d];
        for (int d = 0; d < width; d++) x[i + (size_t)d] = (float)(x[i + (size_t)d] / sqrt(sum));
    }
}
static void add_tensors(struct walk *w, const struct shape *s)
{
    w->tensors = loci_tensors(w->plan, w->tensor, WALK_TENSORS);
    for (int t = 0; t < w->tensors; t++) {
        const loci_tensor *f = &w->tensor[t];
        const size_t count = walk_count(f, s->batch, s->q_len, s->k_len);
        double *x = add_input(w, f->encoding, f->name, count);
        /* As the paper initialises it, plus a small change: zeros would hide mistakes, and signs
         * matter to some. */
        if (f->role != LOCI_INPUT) {
            double *start = numbers(w, count, 0);
            loci_tensor_init(w->plan, t, 1, start);
            for (size_t i = 0; i < count; i++)
                x[i] = (float)(start[i] + walk_learned(f, 0.1 + 0.2 * (1 + x[i])));
        }
        /* gates that multiply scores: few of them above 0 */
        if (!strcmp(f->encoding, "wall")) scale(x, count, 0.5, -0.45);
        if (lasting(s) && !strcmp(f->name, "log_f")) scale(x, count, 0.0005, -0.0005);
        if (lasting(s) && !strcmp(f->name, "gate_k")) scale(x, count, 0.3, -3);
        const loci_source source = loci_tensor_source(w->plan, t);
        if (source == LOCI_SOURCE_UNIT) normalise(x, count, s->dim);
        if (source == LOCI_SOURCE_STRENGTH) scale(x, count, 1, 1);
        /* Larger ones times a distance are scores of hundreds, whose last place exceeds bounds. */
        if (!strncmp(f->name, "slope_", 6)) scale(x, count, 0.05, 0.04);
        w->data[t] = x;
        w->ddata[t] = w->input[w->inputs - 1].dx;
    }
}

/* Every query is at the position of a key, so that each has its own. */
static void place(struct walk *w, const struct shape *s)
{
    int64_t *at = alloc(w, 2 * (size_t)(s->q_len + s->k_len) * sizeof *at);
    w->q_pos = at;
    w->q_seg = at + s->q_len;
    w->k_pos = at + 2 * s->q_len;
    w->k_seg = w->k_pos + s->k_len;
    for (int j = 0; j < s->k_len; j++) {
        w->k_pos[j] = s->places == SPREAD ? 3 + 2 * j + (j % 3 == 2) : j;
        w->k_seg[j] = 0;
        if (s->places == PACKED) {
            /* Padding, then three segments, the middle one of a single token. ids rise only among
             * many keys. */
            const int first = s->k_len / 6, second = s->k_len * 7 / 12, few = s->k_len < 64;
            w->k_seg[j] = j < first      ? -1
                        : j < second     ? 4
                        : j < second + 1 ? few ? 9 : 5
                        : few            ? 5
                                         : 6;
            w->k_pos[j] = j < first      ? 0
                        : j < second     ? j - first
                        : j < second + 1 ? 0
                                         : j - second - 1;
        }
    }
    for (int i = 0; i < s->q_len; i++) {
        const int j = s->k_len - s->q_len + i < 0 ? 0 : s->k_len - s->q_len + i;
        w->q_pos[i] = w->k_pos[j];
        w->q_seg[i] = w->k_seg[j];
    }
    /* an empty one, one of a row, one whose keys no row attends to */
    if (s->places == STARTS) {
        const int nq = s->q_len, nk = s->k_len, few = nq / 3;
        const int64_t q_starts[] = { 0, few, few, few + 1, few + 1, nq },
                      k_starts[] = { 0, few, few, few + 3, few + 5, nk };
        memcpy(w->q_starts, q_starts, sizeof q_starts);
        memcpy(w->k_starts, k_starts, sizeof k_starts);
        w->call.q_starts = w->q_starts;
        w->call.k_starts = w->k_starts;
        w->call.sequences = 5;
    } else if (s->places != CONSECUTIVE) {
        w->call.q_pos = w->q_pos;
        w->call.k_pos = w->k_pos;
    }
    if (s->places == PACKED) {
        w->call.q_seg = w->q_seg;
        w->call.k_seg = w->k_seg;
    }

    /* Coordinates as well, in any order. */
    const int axes = loci_axes(w->plan);
    if (axes < 2) return;
    const ptrdiff_t q_len = w->call.q_len, k_len = w->call.k_len;
    double *q = alloc(w, (size_t)(axes * (q_len + k_len)) * sizeof *q), *k = q + axes * q_len;
    for (ptrdiff_t a = 0; a < axes; a++) {
        for (ptrdiff_t j = 0; j < k_len; j++)
            k[a * k_len + j] = walk_coordinate(k_len < 64 ? 9 : 150);
        for (ptrdiff_t i = 0; i < q_len; i++)
            q[a * q_len + i] = k[a * k_len + (k_len < q_len ? i % k_len : k_len - q_len + i)];
    }
    w->call.q_coord = q;
    w->call.k_coord = k;
}

static void fill_attention(struct walk *w, const struct shape *s, int value_dim)
{
    size_t q_rows = (size_t)(s->batch * s->heads * s->q_len),
           k_rows = (size_t)(s->batch * s->kv_heads * s->k_len);
    w->call.q.data = add_input(w, "call", "q", q_rows * (size_t)s->dim);
    w->call.k.data = add_input(w, "call", "k", k_rows * (size_t)walk_key_dim(&w->desc));
    if (walk_key_dim(&w->desc) > s->dim) {
        w->call.k = w->grad.dk = walk_wide_keys(&w->desc, s->k_len, w->call.k.data);
    }
    w->call.v.data = add_input(w, "call", "v", k_rows * (size_t)value_dim);
    if (lasting(s)) {
        scale(w->input[0].x, w->input[0].count, 0.3, 1);
        scale(w->input[1].x, w->input[1].count, 0.3, -3);
    }
    w->grad.dq.data = w->input[0].dx;
    w->grad.dk.data = w->input[1].dx;
    w->grad.dv.data = w->input[2].dx;
    w->out_count = q_rows * (size_t)value_dim;
    w->row_count = w->stage == LOCI_ATTENTION ? q_rows : 0;
    w->state_count = walk_states(w->encoding) ? q_rows * (size_t)s->dim : 0;
}

/* Stages ROTATE and EMBED: x is q, y is o. */
static void fill_rows(struct walk *w, const struct shape *s)
{
    w->out_count = (size_t)(s->batch * (w->stage == LOCI_EMBED ? 1 : s->heads) * s->q_len * s->dim);
    w->row_count = 0;
    w->call.q.data = add_input(w, "call", "x", w->out_count);
    w->grad.dq.data = w->input[0].dx;
}

static bool attends(loci_stage stage)
{
    return stage == LOCI_ATTENTION || stage == LOCI_LINEAR_ATTENTION;
}

static void fill(struct walk *w, const struct shape *s, int value_dim)
{
    w->call.size = sizeof w->call;
    w->grad.size = sizeof w->grad;
    w->call.batch = s->batch;
    w->call.q_len = s->q_len;
    w->call.k_len = s->k_len;
    if (!attends(w->stage)) w->call.k_len = s->q_len;
    if (attends(w->stage)) fill_attention(w, s, value_dim);
    else fill_rows(w, s);
    w->call.o.data = numbers(w, w->out_count, 0);
    w->grad.dout.data = numbers(w, w->out_count, 1);
    if (w->row_count) {
        w->call.lse = numbers(w, w->row_count, 0);
        w->call.rem = numbers(w, w->row_count, 0);
        w->grad.dlse = numbers(w, w->row_count, 1);
        w->grad.drem = numbers(w, w->row_count, 1);
    }
    if (w->state_count) {
        w->call.ae = numbers(w, w->state_count, 0);
        w->grad.dae = numbers(w, w->state_count, 1);
    }
    add_tensors(w, s);
    if (w->stage == LOCI_ATTENTION && !strncmp(s->name, "dropout", 7)) {
        w->call.dropout = 0.3;
        w->call.dropout_seed = 0xfedcba9876543210u;
        w->call.dropout_offset = 3;
    }
    w->call.tensors = w->data;
    w->grad.dtensors = w->ddata;
    place(w, s);
}

static void release(struct walk *w)
{
    for (int i = 0; i < w->blocks; i++) free(w->block[i]);
    loci_plan_destroy(w->plan);
}

/* ---- The walk -------------------------------------------------------------------------------- */

/* Is one of the encodings of the text for a causal mask only, or does it have one of the places? */
static bool some(const char *text, bool causal_only, int places)
{
    const loci_encoding_info *list;
    int count = loci_encodings(&list);
    for (; text; text = strchr(text, '+') ? strchr(text, '+') + 1 : NULL)
        for (int i = 0; i < count; i++)
            if (strcspn(text, ":+") == strlen(list[i].name)
                && !strncmp(text, list[i].name, strlen(list[i].name))
                && ((causal_only && list[i].causal_only) || list[i].places & places))
                return true;
    return false;
}
bool walk_causal_only(const char *text) { return some(text, true, 0); }
bool walk_key_forms(const char *text)
{
    return strstr(text, "rerope") || strstr(text, "selfextend");
}
bool walk_moves(const char *text) { return strstr(text, "wall") || strstr(text, "path"); }
double walk_learned(const loci_tensor *t, double x)
{
    return strcmp(t->encoding, "pope") ? x : 2.2 - 18 * x;
}
int walk_key_dim(const loci_desc *d)
{
    return d->keys_rotated && strstr(d->encoding, "pope") ? 2 * d->dim : d->dim;
}
loci_view walk_wide_keys(const loci_desc *d, ptrdiff_t k_len, void *data)
{
    const ptrdiff_t width = walk_key_dim(d), heads = d->kv_heads ? d->kv_heads : d->heads;
    return (loci_view){ data, heads * k_len * width, k_len * width, width };
}
bool walk_states(const char *text) { return some(text, false, LOCI_PLACE_STATE); }

size_t walk_count(const loci_tensor *t, ptrdiff_t batch, ptrdiff_t q_len, ptrdiff_t k_len)
{
    size_t count = 1;
    for (int i = 0; i < t->rank; i++) {
        const ptrdiff_t n = t->shape[i];
        count *= (size_t)(n == LOCI_DIM_BATCH     ? batch
                          : n == LOCI_DIM_QUERIES ? q_len
                          : n == LOCI_DIM_KEYS    ? k_len
                                                  : n);
    }
    return count;
}

int walk_dim(const char *text, int dim)
{
    if (strstr(text, "rope2d")) return (dim + 3) / 4 * 4;
    if (strstr(text, "comrope")) return (dim + 11) / 12 * 12;
    if (strstr(text, "binary") && dim < 9) return 9; /* bits for every position of the walk */
    return (strstr(text, "mrope") || strstr(text, "liere")) && dim < 6 ? 6 : dim;
}

/* A problem has its own numbers, independent of the problems before it in the list. */
static int seed_of(const char *encoding, const char *shape)
{
    unsigned seed = 7;
    for (; *encoding; encoding++) seed = seed * 31 + (unsigned char)*encoding;
    for (; *shape; shape++) seed = seed * 31 + (unsigned char)*shape;
    return (int)(seed >> 1);
}

static void walk_one(void (*check)(struct walk *), const char *encoding, loci_stage stage,
                     const struct shape *s, int value_dim)
{
    struct walk w = { .encoding = encoding,
                      .shape = s->name,
                      .stage = stage,
                      .range = 2 * (s->k_len > WALK_LENGTH ? s->k_len + 4 : WALK_LENGTH) };
    loci_desc d = LOCI_DESC(.encoding = encoding, .stage = stage, .heads = s->heads,
                            .kv_heads = attends(stage) ? s->kv_heads : 0, .dim = s->dim,
                            .value_dim = value_dim, .model_dim = s->dim, .dtype = LOCI_F64,
                            .full = s->full, .window_left = s->left, .window_right = s->right,
                            .keys_rotated = s->keys_rotated, .max_len = w.range);
    loci_error error;
    if (loci_plan_create(&w.plan, &d, &error)) {
        CHECK_FAILED("%s (%s): %s", encoding, s->name, error.text);
        return;
    }
    w.desc = d;
    walk_restart(seed_of(encoding, s->name));
    fill(&w, s, value_dim);
    check(&w);
    release(&w);
}

static uint64_t dice = 88172645463325252u;
static int roll(int sides)
{
    dice ^= dice << 13;
    dice ^= dice >> 7;
    dice ^= dice << 17;
    return (int)(dice % (uint64_t)sides);
}
static void add(char *text, const char *one)
{
    const size_t named = strcspn(one, ":");
    for (const char *at = text; *at; at += strcspn(at, "+"), at += *at == '+')
        if (strcspn(at, ":+") == named && !strncmp(at, one, named)) return;
    if (*text) strcat(text, "+");
    strcat(text, one);
}
static void draw(char *text)
{
    loci_plan *plan;
    do {
        text[0] = 0;
        if (roll(2)) add(text, rotations[roll(sizeof rotations / sizeof *rotations)]);
        for (int n = 1 + roll(3); n; n--) add(text, scores[roll(sizeof scores / sizeof *scores)]);
        if (roll(3) == 0) add(text, "cape:hidden=4");
        if (roll(3) == 0) add(text, weights[roll(3)]);
    } while (loci_plan_create(&plan,
                              &(loci_desc)LOCI_DESC(.encoding = text, .heads = 4, .kv_heads = 2,
                                                    .dim = 12),
                              NULL));
    loci_plan_destroy(plan);
}

static const char *only;
void walk_only(int argc, char **argv) { only = argc > 1 ? argv[1] : NULL; }
bool walk_limited(void) { return only; }
bool walk_whole(void) { return only || getenv("LOCI_WALK"); }

bool walk_next(struct walk_text *t)
{
    const loci_encoding_info *list;
    const int count = loci_encodings(&list), more = (int)(sizeof texts / sizeof *texts),
              drawn = walk_whole()  ? COMPOSITIONS
                    : LOCI_EMULATED ? 2
                    : LOCI_SLOW     ? 4
                                    : 16;
    do {
        const int i = t->next++;
        if (i >= count + more + drawn) return false;
        t->example = i < count;
        t->drawn = i >= count + more;
        t->square = i >= count && i < count + more && texts[i - count].square;
        if (t->example && list[i].places == LOCI_PLACE_EMBED) continue;
        t->text = i < count        ? list[i].example
                : i < count + more ? texts[i - count].encoding
                                   : compositions[i - count - more];
        if (t->drawn && !*t->text) draw(compositions[i - count - more]);
        if (!only || !strcmp(only, t->text)) return true;
    } while (true);
}

struct walker {
    enum walk_size size;
    void (*check)(struct walk *);
};

static bool is_example(const char *encoding)
{
    const loci_encoding_info *list;
    for (int i = loci_encodings(&list) - 1; i >= 0; i--)
        if (!strcmp(list[i].example, encoding)) return true;
    return false;
}
static void walk_shapes(struct walker w, const char *encoding, loci_stage stage, bool square)
{
    static const struct {
        const struct shape *list;
        size_t count;
    } sizes[] = {
        [WALK_SMALL] = { small, sizeof small / sizeof *small },
        [WALK_TILES] = { tiles, sizeof tiles / sizeof *tiles },
        [WALK_CHUNKS] = { chunks, sizeof chunks / sizeof *chunks },
    };
    const struct shape *shapes = sizes[w.size].list;
    const size_t count = sizes[w.size].count;
    if (only && strcmp(only, encoding) != 0) return;
    const bool example = is_example(encoding);
    const size_t often = walk_whole()  ? 1
                       : LOCI_EMULATED ? 12
                       : LOCI_SLOW     ? (example ? 3 : 9)
                                       : (example ? 1 : 2);
    for (size_t i = 0; i < count; i++) {
        const struct shape *s = &shapes[i];
        /* one encoding gets some of the shapes, the next one others */
        if ((i + (size_t)seed_of(encoding, "")) % often) continue;
        if (s->full && walk_causal_only(encoding)) continue;
        /* a cache stores one form of a key */
        if (s->keys_rotated && walk_key_forms(encoding)) continue;
        /* these stages have no masks */
        if ((s->full || s->places == STARTS) && !attends(stage)) continue;
        if (stage == LOCI_LINEAR_ATTENTION
            && (s->left || s->right || s->keys_rotated || (s->places == PACKED && s->k_len < 64)))
            /* no windows, no cache of keys, segments in rising order */
            continue;
        struct shape fitting = *s;
        fitting.dim = walk_dim(encoding, s->dim);
        /* a group needs one rotation per key */
        if (s->keys_rotated && walk_states(encoding)) fitting.kv_heads = s->heads;
        walk_one(w.check, encoding, stage, &fitting, square ? fitting.dim : s->value_dim);
    }
}

void walk_all(enum walk_size size, void (*check)(struct walk *))
{
    const struct walker w = { size, check };
    const loci_encoding_info *list;
    const int count = loci_encodings(&list);
    if (size == WALK_CHUNKS) {
        for (struct walk_text t = { 0 }; walk_next(&t);)
            if (t.example) walk_shapes(w, t.text, LOCI_ATTENTION, t.square);
        return;
    }
    for (int i = 0; i < count; i++) {
        if (list[i].places == LOCI_PLACE_EMBED) walk_shapes(w, list[i].example, LOCI_EMBED, false);
        /* a rotation by distance, which is causal, has no rotated rows by themselves, and wider
         * rows have no stage */
        if (list[i].places & LOCI_PLACE_ROTATE && !list[i].causal_only
            && strcmp(list[i].name, "pope"))
            walk_shapes(w, list[i].example, LOCI_ROTATE, false);
    }
    for (struct walk_text t = { 0 }; walk_next(&t);)
        walk_shapes(w, t.text, LOCI_ATTENTION, t.square);
    for (size_t i = 0; i < sizeof linear / sizeof *linear; i++)
        walk_shapes(w, linear[i], LOCI_LINEAR_ATTENTION, false);
    walk_shapes(w, "rope:pairing=half,freq=given,attention_factor=1.2", LOCI_ROTATE, false);
}
