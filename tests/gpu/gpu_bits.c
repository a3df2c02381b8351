/* SPDX-License-Identifier: MIT */
/* gpu_bits.c -- a device has the bits of the CPU: every text of the walk that runs there, and
 * shapes on both sides of the borders of tiles, items and chunks; o, lse and all gradients.
 *
 * Devices are the host's loops, with the threads of a phase shuffled, and the first OpenCL device
 * if there is one, on a few shapes.  A small shape has all texts (slow builds: every tenth), each
 * other shape every tenth, those of many keys every twentieth, and one gradient at a time every
 * sixth.  $LOCI_DEVICES names other devices, "cuda:0 host host:1", and tries all texts.  $LOCI_WALK
 * takes the whole walk, not its small problems alone; $LOCI_SHAPES=n only the first n shapes;
 * $LOCI_PART=i/n every n-th problem, from the i-th one on.  $LOCI_LEFT_OUT prints why problems do
 * not run.  The argument, if there is one, is a text: only its problems are tried.  scripts/gpu
 * runs all of it.
 */
#define _XOPEN_SOURCE 600 /* putenv() */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loci/gpu.h"
#include "contract/plan.h"
#include "devices.h"
#include "mem.h"
#include "play.h"

/* Numbers compared, texts that run and texts that do not, on the device that is tried. */
static long long compared;
static int ran, left_out;

/* What the texts and shapes of this file may be refused for where there is enough memory. */
static const char *const refusals[] = {
    "together are at most 256",
    "on a GPU in heads wider than",
    "segments are ranges of keys",
};
/* With $LOCI_GPU_SHARED=bytes: heads up to this width must run, but for these. */
static bool wants_shared(const char *name, const char *why)
{
    static const char *const large[] = { "sba",  "cope",   "cape",       "wall", "path", "tape",
                                         "xpos", "rerope", "selfextend", "dca",  "pope" };
    const char *given = getenv("LOCI_GPU_SHARED"), *dim = strstr(why, "but dim ");
    const long bytes = given ? strtol(given, NULL, 10) : 0;
    const int widest = bytes >= 86016 ? 128 : bytes >= 53248 ? 64 : 16;
    bool may = dim && strtol(dim + 8, NULL, 10) > widest;
    for (int i = 0; i < COUNT(large); i++) may |= strstr(name, large[i]) != NULL;
    return given && dim && may;
}
/* on: the device; NULL: a problem of the walk, which may be refused for more. */
static void leave_out(const char *name, const char *on, const char *why)
{
    bool known = !on || strncmp(on, "host", 4) != 0 || wants_shared(name, why);
    for (int i = 0; i < COUNT(refusals); i++) known |= strstr(why, refusals[i]) != NULL;
    left_out++;
    if (getenv("LOCI_LEFT_OUT")) printf("left out: %s: %s\n", name, why);
    if (!known) CHECK_FAILED("%s is refused: %s", name, why);
}
static void *there_copy(struct there *t, const void *from, size_t bytes)
{
    return from ? copy_there(t, from, bytes) : NULL;
}

/* $LOCI_PART: is the next problem one of this part? */
static bool is_mine(void)
{
    static int next;
    int part = 0, parts = 1;
    const char *given = getenv("LOCI_PART");
    if (given && (sscanf(given, "%d/%d", &part, &parts) != 2 || parts < 1)) {
        fprintf(stderr, "LOCI_PART must be like 0/4, not %s\n", given);
        exit(1);
    }
    return next++ % parts == part;
}

/* ---- A problem, on the CPU and on a device --------------------------------------------------- */

/* Outputs of a call, in the order in which they are compared. */
enum out { OUT_O, OUT_LSE, OUT_REM, OUT_AE, OUT_DQ, OUT_DK, OUT_DV, OUT_DMASK, OUTS };
static const char *const out_names[OUTS] = { "o", "lse", "rem", "ae", "dq", "dk", "dv", "dmask" };
struct outs {
    void *at[OUTS];
    size_t bytes[OUTS];
    int each[OUTS]; /* bytes of a number */
};

static bool same(const char *name, const char *what, const void *a, const void *b, size_t bytes,
                 int each)
{
    const size_t n = bytes / (size_t)each;
    size_t differ = 0, first = 0;
    for (size_t i = 0; i < n; i++) {
        const char *x = (const char *)a + i * (size_t)each, *y = (const char *)b + i * (size_t)each;
        bool equal = memcmp(x, y, (size_t)each) == 0;
        if (each == 4 && !equal) {
            float u, v;
            memcpy(&u, x, sizeof u);
            memcpy(&v, y, sizeof v);
            equal = u != u && v != v;
        }
        if (!equal && !differ++) first = i;
    }
    compared += (long long)n;
    if (!differ) return harness_pass();
    float u = 0, v = 0;
    if (each == 4) {
        memcpy(&u, (const float *)a + first, sizeof u);
        memcpy(&v, (const float *)b + first, sizeof v);
    }
    return CHECK_FAILED("%s: %s differs in %zu of %zu numbers, first %zu: %.9g, not %.9g", name,
                        what, differ, n, first, (double)v, (double)u);
}

/* Bytes that the views of a call span. */
static size_t view_bytes(const loci_view *v, ptrdiff_t B, int H, ptrdiff_t L, int width, int each)
{
    if (!v->batch && !v->head && !v->row) return (size_t)(B * H * L) * (size_t)(width * each);
    const ptrdiff_t batch = v->batch == LOCI_BROADCAST ? 0 : v->batch,
                    head = v->head == LOCI_BROADCAST ? 0 : v->head,
                    row = v->row == LOCI_BROADCAST ? 0 : v->row;
    if (!B || !L) return 0;
    return (size_t)((B - 1) * batch + (H - 1) * head + (L - 1) * row + width) * (size_t)each;
}

/* Runs a call on a device and compares.  `expected` has the results of the CPU; `on` is for
 * leave_out(). */
static void compare(const char *name, loci_gpu *gpu, const char *on, const loci_plan *plan,
                    ptrdiff_t range, const void *tables, const loci_call *call,
                    const loci_grad *grad, const struct outs *expected, void *const *dtensors,
                    const size_t *dcounts, int tensors)
{
    struct there t = { .gpu = gpu };
    struct mem mem = { 0 };
    loci_error e = { 0 };
    loci_gpu_plan *there = NULL;
    loci_status status = loci_gpu_plan_create(&there, gpu, plan, &e);
    if (status == LOCI_UNSUPPORTED) {
        leave_out(name, on, e.text);
        return;
    }
    ran++;
    if (status) {
        CHECK_FAILED("%s: %s", name, e.text);
        return;
    }
    const struct loci_plan *p = plan;
    const int each = (int)p->stored;
    loci_call c = *call;
    c.error = &e;
    c.host = NULL;
    const loci_gpu_tables both = { tables, there_copy(&t, tables, loci_tables_size(plan, range)) };
    c.q.data = there_copy(&t, call->q.data,
                          view_bytes(&call->q, c.batch, p->heads, c.q_len, p->dim, each));
    c.k.data = there_copy(&t, call->k.data,
                          view_bytes(&call->k, c.batch, p->kv_heads, c.k_len, key_dim(p),
                                     (int)stored_size(p->k_dtype)));
    c.v.data = there_copy(&t, call->v.data,
                          view_bytes(&call->v, c.batch, p->kv_heads, c.k_len, p->value_dim,
                                     (int)stored_size(p->v_dtype)));
    if (c.mask_kind)
        c.mask.data = there_copy(&t, call->mask.data,
                                 view_bytes(&call->mask, c.batch, p->heads, c.q_len, (int)c.k_len,
                                            c.mask_kind == LOCI_MASK_SEEN ? 1 : 4));
    /* inputs are memory of the device, and so are their gradients */
    loci_tensor list[WALK_TENSORS];
    const void *given[WALK_TENSORS] = { 0 };
    loci_tensors(plan, list, WALK_TENSORS);
    for (int i = 0; i < tensors; i++)
        given[i] = list[i].role == LOCI_INPUT ? there_copy(&t, call->tensors[i], dcounts[i] * 4)
                                              : call->tensors[i];
    c.tensors = call->tensors ? given : NULL;
    /* outputs begin as the CPU's did: all bits set */
    void *out[OUTS] = { 0 };
    for (int i = 0; i < OUTS; i++) {
        if (!expected->at[i]) continue;
        void *ones = mem_alloc(&mem, expected->bytes[i]);
        out[i] = there_copy(&t, ones, expected->bytes[i]);
    }
    c.o.data = out[OUT_O];
    c.lse = out[OUT_LSE];
    c.rem = out[OUT_REM];
    c.ae = out[OUT_AE];
    const size_t bytes = loci_gpu_workspace(there, &c, grad != NULL);
    void *work = copy_there(&t, NULL, bytes);
    c.work_bytes = bytes;
    status = loci_gpu_forward(there, &both, work, &c);
    if (status == LOCI_UNSUPPORTED) leave_out(name, on, e.text);
    else if (status || !bytes) CHECK_FAILED("%s: forward: %s", name, status ? e.text : "0 bytes");
    loci_grad g = { 0 };
    void *sums[WALK_TENSORS] = { 0 };
    if (grad && !status) {
        g = *grad;
        g.dout.data =
            there_copy(&t, grad->dout.data,
                       view_bytes(&grad->dout, c.batch, p->heads, c.q_len, p->value_dim, each));
        g.dlse = there_copy(&t, grad->dlse, (size_t)(c.batch * p->heads * c.q_len) * 4);
        g.drem = there_copy(&t, grad->drem, (size_t)(c.batch * p->heads * c.q_len) * 4);
        g.dae = there_copy(&t, grad->dae, expected->bytes[OUT_AE]);
        g.dq.data = out[OUT_DQ];
        g.dk.data = out[OUT_DK];
        g.dv.data = out[OUT_DV];
        g.dmask.data = out[OUT_DMASK];
        for (int i = 0; i < tensors; i++)
            if (dtensors && dtensors[i]) {
                sums[i] = mem_alloc(&mem, dcounts[i] * sizeof(float));
                if (list[i].role == LOCI_INPUT)
                    sums[i] = there_copy(&t, sums[i], dcounts[i] * sizeof(float));
            }
        g.dtensors = dtensors ? sums : NULL;
        status = loci_gpu_backward(there, &both, work, &c, &g);
        if (status == LOCI_UNSUPPORTED && dtensors) { /* without what is learned */
            leave_out(name, on, e.text);
            g.dtensors = NULL;
            status = loci_gpu_backward(there, &both, work, &c, &g);
        }
        if (status == LOCI_UNSUPPORTED) { /* the forward pass alone */
            leave_out(name, on, e.text);
            grad = NULL;
            status = LOCI_OK;
        }
        if (status) CHECK_FAILED("%s: backward: %s", name, e.text);
    }
    for (int i = 0; i < OUTS && !status; i++) {
        if (!out[i] || (i >= OUT_DQ && !grad)) continue;
        void *back = mem_alloc(&mem, expected->bytes[i]);
        status = loci_gpu_copy(gpu, back, out[i], expected->bytes[i], LOCI_GPU_DOWNLOAD, &e);
        if (status) CHECK_FAILED("%s: download: %s", name, e.text);
        else same(name, out_names[i], expected->at[i], back, expected->bytes[i], expected->each[i]);
    }
    for (int i = 0; i < tensors && !status && g.dtensors; i++)
        if (sums[i]) {
            void *back = mem_alloc(&mem, dcounts[i] * 4);
            if (list[i].role != LOCI_INPUT) back = sums[i];
            else if (loci_gpu_copy(gpu, back, sums[i], dcounts[i] * 4, LOCI_GPU_DOWNLOAD, &e))
                CHECK_FAILED("%s: download: %s", name, e.text);
            same(name, list[i].name, dtensors[i], back, dcounts[i] * 4, 4);
        }
    loci_gpu_plan_destroy(there);
    release(&t);
    mem_release(&mem, 0);
}

/* ---- The walk -------------------------------------------------------------------------------- */

static void check_walk(struct walk *w)
{
    struct play p;
    char name[512];
    if (w->stage != LOCI_ATTENTION || !is_mine()) return;
    if (!play_open(&p, w, NULL, false, NULL)) return;
    if (play_pass(&p, PLAY_PREPARE) || play_pass(&p, PLAY_FORWARD)
        || play_pass(&p, PLAY_BACKWARD)) {
        CHECK_FAILED("%s (%s): %s", w->encoding, w->shape, p.error.text);
        play_close(&p);
        return;
    }
    struct outs outs = {
        .at = { p.call.o.data, p.call.lse, p.call.rem, p.call.ae, p.grad.dq.data, p.grad.dk.data,
                p.grad.dv.data },
        .bytes = { w->out_count * 4, w->row_count * 4, w->row_count * 4, w->state_count * 4,
                   w->input[0].count * 4, w->input[1].count * 4, w->input[2].count * 4 },
        .each = { 4, 4, 4, 4, 4, 4, 4 },
    };
    size_t counts[WALK_TENSORS] = { 0 };
    for (int i = 0; i < w->tensors; i++) counts[i] = w->input[w->inputs - w->tensors + i].count;
    for (int i = 0; i < device_count; i++) {
        snprintf(name, sizeof name, "%s (%s) on %s", w->encoding, w->shape, devices[i]);
        compare(name, gpus[i], NULL, p.plan, w->range, p.tables, &p.call, &p.grad, &outs, p.ddata,
                counts, w->tensors);
    }
    play_close(&p);
}

/* ---- Shapes ---------------------------------------------------------------------------------- */

struct shape {
    int batch, heads, kv_heads, dim, value_dim;
    ptrdiff_t q_len, k_len;
    bool full;
    int64_t left;
    loci_dtype dtype;
    bool lens, mask; /* entries of different length; a mask of numbers */
    bool broken;     /* some numbers are NaN or infinite, where rows must not read them */
    /* each row has a first and a last key; tiles are hidden; segments mix */
    enum { ALL_KEYS, RANGES, GAPS, SEGMENTS } rows;
};
static const struct shape shapes[] = {
    { 1, 2, 1, 64, 64, 300, 300, false, 0, LOCI_F32, false, false, false, ALL_KEYS },
    { 1, 1, 1, 128, 128, 130, 200, false, 0, LOCI_F32, false, false, false, ALL_KEYS },
    { 2, 4, 2, 32, 48, 65, 129, true, 0, LOCI_F32, false, false, false, ALL_KEYS },
    { 1, 2, 2, 40, 20, 70, 4200, false, 0, LOCI_F32, false, false, false, ALL_KEYS },
    { 1, 2, 1, 16, 16, 1100, 1100, false, 100, LOCI_F32, false, false, false, ALL_KEYS },
    { 1, 1, 1, 256, 192, 64, 128, false, 0, LOCI_F32, false, false, false, ALL_KEYS },
    { 2, 2, 1, 64, 64, 1, 200, false, 0, LOCI_F32, true, false, false, ALL_KEYS },
    { 3, 2, 1, 24, 24, 100, 150, false, 0, LOCI_F32, true, false, false, ALL_KEYS },
    { 1, 2, 1, 64, 64, 100, 130, true, 0, LOCI_F32, false, true, false, ALL_KEYS },
    { 1, 2, 1, 64, 64, 150, 150, false, 0, LOCI_BF16, false, false, false, ALL_KEYS },
    { 1, 2, 1, 64, 32, 70, 150, false, 0, LOCI_F16, false, false, false, ALL_KEYS },
    { 1, 2, 1, 32, 32, 200, 200, false, 0, LOCI_F32, false, false, true, ALL_KEYS },
    { 1, 2, 1, 32, 32, 180, 200, false, 10, LOCI_F32, false, false, true, ALL_KEYS },
    { 2, 4, 1, 4, 4, 70, 140, false, 0, LOCI_F32, false, false, false, ALL_KEYS },
    { 2, 2, 1, 16, 16, 150, 300, true, 0, LOCI_F32, false, false, false, RANGES },
    { 1, 2, 1, 16, 16, 80, 8300, false, 0, LOCI_F32, false, true, false, GAPS },
    { 1, 2, 1, 16, 20, 150, 300, false, 0, LOCI_F32, false, false, false, SEGMENTS },
    { 1, 2, 1, 16, 16, 20, 0, true, 0, LOCI_F32, false, false, false, ALL_KEYS },
    { 1, 2, 1, 16, 16, 80, 4300, true, 0, LOCI_F32, false, false, false, RANGES },
    { 1, 2, 1, 16, 16, 80, 4300, false, 0, LOCI_F32, false, false, false, SEGMENTS },
};
/* In place of the first one where all texts run in little time. */
static const struct shape small = { 1,     2, 1,        32,    32,    140,   200,
                                    false, 0, LOCI_F32, false, false, false, ALL_KEYS };
/* Several items of rows and blocks of tiles, for path: gradients go down the trees of its keys. */
static const struct shape tall = { 2,     2, 1,        20,   12,    1300,  2300,
                                   false, 0, LOCI_F32, true, false, false, ALL_KEYS };
/* Rows of a tile go over the end of a block, and w of a key in it is NaN. */
static const struct shape over = { 1,     2, 1,        20,    12,    230,  1150,
                                   false, 0, LOCI_F32, false, false, true, ALL_KEYS };
/* For one gradient at a time, and for all texts in slow builds. */
static const struct shape some = { 2,     4, 2,        16,    16,    70,    140,
                                   false, 0, LOCI_F32, false, false, false, ALL_KEYS },
                          brief = { 1,     4, 2,        16,    16,    66,    70,
                                    false, 0, LOCI_F32, false, false, false, ALL_KEYS };
/* Much is left of sticks where a chunk ends. */
static const struct shape border = { 1,     2, 1,        16,    16,    20,    4110,
                                     false, 0, LOCI_F32, false, false, false, ALL_KEYS };
/* Positions repeat: keys that are equally far from a row are in every tile and in both chunks. */
static const struct shape repeated = { 1,     2, 1,        16,    16,    70,    4200,
                                       false, 0, LOCI_F32, false, false, false, ALL_KEYS };
static const char *const of_distances[] = {
    "shaw:left=9,right=7+alibi",
    "shaw:left=9,right=7+sba:remainder=value",
    "shaw:left=9,right=7+cape:hidden=4",
    "tape+shaw:left=9,right=7",
};
static const char *const texts[] = {
    "nope",
    "alibi",
    "alibi:slopes=given",
    "alibi:slopes=both",
    "fire",
    "rope:pairing=half+fox",
    "fox+softcap:cap=3+kerple:weight=1",
    "t5:bidirectional=1",
    "rope:pairing=half",
    "rope:pairing=interleaved,scaling=yarn,factor=4,original_length=60+t5:bidirectional=1",
    "kerple+sink",
    "kerple:weight=1+softcap:cap=3",
    "logn:length=20+clip:max=9",
    "rope:pairing=half+ssmax:bias=1",
    "rope:pairing=half,freq=given",
    "pope:base=20+ssmax",
    "rope:pairing=half,dim=16,values=1,attention_factor=1.3+alibi",
    "rope:pairing=interleaved,dim=4,offset=2,freq=given+ssmax",
    "alibi+ssmax:bias=1",
    "angles:pairing=half+ssmax",
    "angles:pairing=interleaved,dim=4,offset=2,values=1",
    "angles:pairing=half,dim=8,values=1+fox+sba:remainder=value",
    "rope:pairing=interleaved,dim=4,offset=2,values=1,freq=given,attention_factor=0.7+alibi",
    "rope:pairing=half,dim=8,positions=given,freq=given,values=1+ssmax:bias=1",
    "mrope:sections=0/2/2,dim=8,freq=given,values=1+t5:bidirectional=1",
    "rope:pairing=half,dim=16,freq=given,values=1+sba:remainder=value",
    "rope:pairing=half,dim=16,freq=given,values=1+wall+sink",
    "rope:pairing=half,dim=8,positions=given,values=1+kerple+cape:hidden=4",
    "xpos:scale_base=40+fox",
    "rope:pairing=half+ssmax+fox",
    "xpos:dim=4,scale_base=4000+ssmax:bias=1",
    "shaw:left=70,right=9,values=0+alibi",
    "deberta:span=40,max_distance=200",
    "deberta:kind=v1,span=9,p2c=ji+rope:pairing=half",
    "shaw:left=20,right=70+t5:bidirectional=1",
    "rerope:pairing=half,window=70,leak=0.25+fox",
    "selfextend:pairing=interleaved,group=7,window=42+alibi",
    "dca:pairing=half,chunk=90,local=20+ssmax",
    "rerope:pairing=half,window=70,leak=0.25,freq=given,attention_factor=1.2+ssmax:bias=1",
    "rerope:pairing=half,window=40,dim=4,freq=given+cape:hidden=4",
    "selfextend:pairing=interleaved,group=7,window=42,freq=given+ssmax+kerple",
    "dca:pairing=half,chunk=90,local=20,freq=given+ssmax:bias=1+sba",
    "xl:clamp=200+sba",
    "xl:clamp=90",
    "xl+alibi",
    "fope:learn=1,norm=1,train_length=60+fox",
    "comrope:kind=ld,block=4,axes=1+t5:bidirectional=1",
    "liere:block=5,axes=1+ssmax:bias=1",
    "sba",
    "sba:current=1,remainder=vector,stop=0.01",
    "sba:remainder=value+alibi:slopes=both",
    "t5:bidirectional=1+sba:remainder=value",
    "dca:pairing=half,chunk=90,local=20+fox+sba",
    "softcap:cap=1+t5:bidirectional=1+sba:remainder=vector",
    "cope",
    "cope:npos=300+alibi:slopes=both+softcap:cap=3",
    "rope:pairing=half+cope:npos=9,pos_scale=0.3+ssmax:bias=1+fox",
    "cope:npos=40+t5:bidirectional=1+sba",
    "rope:pairing=half+cope:npos=20,gates=given",
    "cope:gates=v,npos=20+fox",
    "cope:gates=given,npos=20+fox+cape:hidden=4",
    "rope:pairing=half+t5:bidirectional=1+cope:gates=v,npos=9+cape:hidden=4",
    "wall",
    "rope:pairing=half,freq=given+wall+fox",
    "wall+ssmax:bias=1+sba",
    "rope:pairing=half,dim=16,values=1+wall+logn:length=20+sink",
    "kerple:weight=1+wall+softcap:cap=3",
    "cape",
    "rope:pairing=half+alibi+cape:hidden=5,leak=0.3",
    "kerple+t5:bidirectional=1+cape:hidden=20,add_bias=0",
    "softcap:cap=3+alibi:slopes=both+fox+cape:hidden=4+sink",
    "shaw:left=20,right=70+ssmax:bias=1+fire+cape:hidden=4",
    "rerope:pairing=half,window=70,leak=0.25+t5+cape:hidden=6",
    "xl+cope:npos=40+cape:hidden=4",
    "rope:pairing=half+wall+alibi+cape:hidden=4",
    "alibi+cape:hidden=4+sba:remainder=value,stop=0.01",
    "tape",
    "tape+t5:bidirectional=1+sink",
    "tape+ssmax+fox",
    "tape+alibi+cape:hidden=4",
    "tape+sba:remainder=value",
    "shaw:left=20,right=70,values=0+tape",
    "shaw:left=20,right=70+sba",
    "alibi+shaw:left=9,right=30+sba:remainder=value",
    "shaw:left=20,right=70+cape:hidden=4+sba:remainder=vector,stop=0.01",
    "shaw:left=20,right=70+cope:npos=40",
    "tape+shaw:left=20,right=70+sba:remainder=value",
    "shaw:left=20,right=70+tape",
    "tape+shaw:left=9,right=30+ssmax:bias=1",
    "shaw:left=20,right=70+tape+alibi+cape:hidden=4",
    "tape+cope:npos=40",
    "path",
    "path+alibi+cape:hidden=4",
    "path+fox+ssmax:bias=1",
    "softcap:cap=2+path+sba:remainder=value",
    "path+alibi:slopes=keys+sink",
    "t5:bidirectional=1+path+fire",
};

static void *random_numbers(struct mem *m, size_t count, loci_dtype dtype, double size)
{
    char *x = mem_alloc(m, count * stored_size(dtype));
    for (size_t i = 0; i < count; i++) store_stored(x, dtype, (ptrdiff_t)i, size * walk_uniform());
    return x;
}
/* Gates of keys: those of some channels of wall are strong.  Broken ones are shut, open too wide,
 * or no numbers. */
static void make_gates(const loci_tensor *t, const struct shape *s, float *x, size_t count)
{
    static const float odd[] = { -INFINITY, -2e4f, NAN, 2e4f, 90, 4 };
    const bool wall = strcmp(t->encoding, "wall") == 0;
    const size_t each = wall ? (size_t)s->dim : 1, keys = (size_t)s->k_len;
    for (size_t i = 0; i < count; i++)
        x[i] = (wall && i % each % 5 == 2 ? -7 : -1) * (float)(0.1 + 0.1 * walk_uniform());
    for (size_t i = 0; s->broken && i < COUNT(odd); i++)
        x[(i % 2 * keys + keys - 25 - 20 * i) * each + (wall ? i + 1 : 0)] = odd[i];
}
/* What queries meet for cope's gates.  An old key of which gates have no gradient is infinite, as
 * rows that are at the last position must not read it; a new one is NaN. */
static void make_gate_keys(const struct shape *s, float *x, size_t count)
{
    for (size_t i = 0; i < count; i++) x[i] = (float)walk_uniform();
    if (!s->broken) return;
    x[5 * s->dim] = INFINITY;
    x[(s->k_len - 5) * s->dim + 1] = NAN;
}
/* w of path has about the length 1, beta is from 0 to 2.  A broken w begins a tile, and with a
 * window a broken beta is near the end of one. */
static void make_reflections(const loci_tensor *t, const struct shape *s, float *x, size_t count)
{
    const bool w = t->rank == 4;
    const double size = w ? sqrt(3.0 / s->dim) : 1;
    const size_t each = w ? (size_t)s->dim : 1;
    for (size_t i = 0; i < count; i++) x[i] = (float)(size * walk_uniform() + !w);
    if (s->broken && w == !s->left)
        x[((size_t)s->k_len - (w ? 136 : 12)) * each] = w ? NAN : INFINITY;
}
/* Tiles that no row sees: a few, and many over a border of chunks. */
static bool is_in_gap(ptrdiff_t key)
{
    const ptrdiff_t tile = key / 64;
    return tile % 5 == 3 || (tile > 40 && tile < 72);
}
/* only: the one gradient that is wanted, of enum out, or OUTS + the number of a tensor; OUT_O: all.
 * Returns how many tensors there are. */
static int check_shape(const char *text, const struct shape *given, double dropout, int only)
{
    struct shape own = *given;
    const struct shape *s = &own;
    if (strstr(text, "gates=v")) own.value_dim = own.dim;        /* queries meet values */
    if (!own.k_len && strstr(text, "remainder=value")) return 0; /* which wants a key */
    struct mem mem = { 0 };
    loci_error e = { 0 };
    loci_plan *plan;
    char name[512];
    const loci_desc d =
        LOCI_DESC(.encoding = text, .heads = s->heads, .kv_heads = s->kv_heads, .dim = s->dim,
                  .value_dim = s->value_dim, .full = s->full && !walk_causal_only(text),
                  .window_left = s->left, .dtype = s->dtype);
    if (loci_plan_create(&plan, &d, &e)) {
        /* some texts want wider heads than the narrowest ones */
        if (s->dim >= 16) CHECK_FAILED("%s: %s", text, e.text);
        return 0;
    }
    loci_tensor list[WALK_TENSORS];
    const int tensors = loci_tensors(plan, list, WALK_TENSORS);
    if (!is_mine()) {
        loci_plan_destroy(plan);
        return tensors;
    }
    const size_t each = stored_size(s->dtype),
                 rows = (size_t)(s->batch * s->heads) * (size_t)s->q_len,
                 keys = (size_t)(s->batch * s->kv_heads) * (size_t)s->k_len;
    struct outs outs = {
        .bytes = { rows * (size_t)s->value_dim * each, rows * 4, rows * 4,
                   rows * (size_t)s->dim * 4, rows * (size_t)s->dim * each,
                   keys * (size_t)s->dim * each, keys * (size_t)s->value_dim * each },
        .each = { (int)each, 4, 4, 4, (int)each, (int)each, (int)each },
    };
    for (int i = 0; i < OUT_DMASK; i++)
        if (i != (plan->weight < 0 ? OUT_REM : OUT_LSE) && (i != OUT_AE || plan->states)
            && (!only || i < OUT_DQ || i == only))
            outs.at[i] = mem_alloc(&mem, outs.bytes[i]);
    loci_call c =
        LOCI_CALL(.batch = s->batch, .q_len = s->q_len, .k_len = s->k_len, .o.data = outs.at[OUT_O],
                  .lse = outs.at[OUT_LSE], .rem = outs.at[OUT_REM], .ae = outs.at[OUT_AE],
                  .error = &e, .dropout = dropout, .dropout_seed = 12345, .dropout_offset = 7);
    loci_grad g = LOCI_GRAD(.dq.data = outs.at[OUT_DQ], .dk.data = outs.at[OUT_DK],
                            .dv.data = outs.at[OUT_DV]);
    c.q.data = random_numbers(&mem, rows * (size_t)s->dim, s->dtype, 2);
    c.k.data = random_numbers(&mem, keys * (size_t)s->dim, s->dtype, 2);
    c.v.data = random_numbers(&mem, keys * (size_t)s->value_dim, s->dtype, 1);
    g.dout.data = random_numbers(&mem, rows * (size_t)s->value_dim, s->dtype, 1);
    if (plan->states) g.dae = random_numbers(&mem, rows * (size_t)s->dim, LOCI_F32, 1);
    *(plan->weight < 0 ? &g.dlse : &g.drem) = random_numbers(&mem, rows, LOCI_F32, 1);
    int64_t *lens = mem_alloc(&mem, sizeof *lens * (size_t)s->batch);
    for (int b = 0; b < s->batch; b++) lens[b] = s->k_len - 40 * b;
    if (s->lens) c.k_lens = lens;
    if (s->mask) {
        float *mask = random_numbers(&mem, rows * (size_t)s->k_len, LOCI_F32, 1);
        for (size_t i = 0; i < rows * (size_t)s->k_len; i++)
            if (s->rows == GAPS ? is_in_gap((ptrdiff_t)i % s->k_len) : walk_uniform() < -0.3)
                mask[i] = -INFINITY;
        c.mask_kind = LOCI_MASK_ADDED;
        c.mask.data = mask;
        if (plan->mix >= 0) { /* heads that mix see the same keys */
            c.mask.batch = s->q_len * s->k_len;
            c.mask.head = LOCI_BROADCAST;
            c.mask.row = s->k_len;
        }
        outs.bytes[OUT_DMASK] = rows * (size_t)s->k_len * 4;
        outs.each[OUT_DMASK] = 4;
        g.dmask.data = outs.at[OUT_DMASK] = mem_alloc(&mem, outs.bytes[OUT_DMASK]);
    }
    if (s->broken) { /* the newest keys and rows */
        float *k = c.k.data, *v = c.v.data, *q = c.q.data;
        v[(s->k_len - 20) * s->value_dim + 3] = NAN;
        k[(s->k_len - 30) * s->dim] = INFINITY;
        /* on the CPU a row of NaN reaches gradients of slopes of keys beyond its window */
        if (!s->left) q[(s->q_len - 1) * s->dim + 1] = NAN;
    }
    void *data[WALK_TENSORS] = { 0 }, *ddata[WALK_TENSORS] = { 0 };
    size_t counts[WALK_TENSORS] = { 0 };
    for (int i = 0; i < tensors; i++) {
        counts[i] = walk_count(&list[i], s->batch, s->q_len, s->k_len);
        float *x = data[i] = mem_alloc(&mem, counts[i] * sizeof(float));
        loci_tensor_init(plan, i, 1, x);
        for (size_t n = 0; n < counts[i]; n++) {
            const float more = (float)(0.1 + 0.1 * walk_uniform());
            if (list[i].role != LOCI_INPUT) x[n] += more;
            else x[n] = more;
        }
        if (strcmp(list[i].name, "log_f") == 0) make_gates(&list[i], s, x, counts[i]);
        if (strcmp(list[i].name, "gate_k") == 0) make_gate_keys(s, x, counts[i]);
        if (strcmp(list[i].encoding, "path") == 0) make_reflections(&list[i], s, x, counts[i]);
        if (!only || only == OUTS + i) ddata[i] = mem_alloc(&mem, counts[i] * sizeof(float));
    }
    g.dtensors = ddata;
    c.tensors = (const void *const *)data;
    if (plan->axes > 1) {
        double *x = mem_alloc(&mem, sizeof(double) * (size_t)(plan->axes * (s->q_len + s->k_len)));
        for (ptrdiff_t i = 0; i < plan->axes * (s->q_len + s->k_len); i++)
            x[i] = (double)(i * 7 % 50) - (i % 5 ? 0 : 0.5);
        c.q_coord = x;
        c.k_coord = x + plan->axes * s->q_len;
    }
    int64_t *pos = mem_alloc(&mem, sizeof *pos * (size_t)s->k_len);
    for (ptrdiff_t i = 0; i < s->k_len; i++) pos[i] = i < 4096 + 40 ? i / 2 % 40 : i / 2 - 2040;
    if (given == &repeated) {
        c.k_pos = pos;
        c.q_pos = pos + s->k_len - s->q_len;
    }
    int64_t *ranges = mem_alloc(&mem, 2 * sizeof *ranges * (size_t)s->q_len);
    for (ptrdiff_t i = 0; i < s->q_len; i++) { /* some rows see no key */
        ranges[i] = i * 7 % 60 + (i >= 64 ? s->k_len - 210 : i > 32 ? s->k_len / 3 : 0);
        ranges[s->q_len + i] = ranges[i] + i * 11 % 130 - 2;
    }
    int64_t *segments = mem_alloc(&mem, sizeof *segments * (size_t)(s->batch * s->k_len));
    for (ptrdiff_t i = 0; i < s->batch * s->k_len; i++) segments[i] = i / 5 % 4 - (i > 200);
    if (s->rows == SEGMENTS) {
        c.k_seg = segments;
        c.q_seg = segments + s->k_len - s->q_len;
    }
    if (s->rows == RANGES) {
        c.k_first = ranges;
        c.k_last = ranges + s->q_len;
    }
    const ptrdiff_t range = s->k_len + s->q_len;
    void *tables = mem_alloc(&mem, loci_tables_size(plan, range)),
         *work = mem_alloc(&mem, loci_workspace(plan, &c, 1));
    loci_status status = loci_prepare(plan, range, (const void *const *)data, tables);
    if (!status) status = loci_forward(plan, tables, work, &c);
    if (!status) status = loci_backward(plan, tables, work, &c, &g);
    if (status) CHECK_FAILED("%s on the CPU: %s", text, e.text);
    for (int i = 0; i < device_count && !status; i++) {
        snprintf(name, sizeof name, "%s, %d x %td rows, %td keys, width %d, on %s", text, s->batch,
                 s->q_len, s->k_len, s->dim, devices[i]);
        compare(name, gpus[i], devices[i], plan, range, tables, &c, &g, &outs, ddata, counts,
                tensors);
    }
    mem_release(&mem, 0);
    loci_plan_destroy(plan);
    return tensors;
}

/* An OpenCL device that nobody named runs the first shape of these texts, by programs of their own:
 * the one for all plans takes PoCL ten times as long to compile. */
static bool is_quick(const char *text)
{
    static const char *const quick[] = { "nope", "alibi", "rope:pairing=half",
                                         "t5:bidirectional=1" };
    for (int i = 0; i < (int)(sizeof quick / sizeof *quick); i++)
        if (strcmp(text, quick[i]) == 0) return true;
    return false;
}

/* ---- All of it ------------------------------------------------------------------------------- */

/* For the next plans. */
static void choose_program(const char *text)
{
    static char own[] = "LOCI_GPU_PROGRAMS=special", any[] = "LOCI_GPU_PROGRAMS=";
    putenv(is_quick(text) ? own : any);
}
int main(int argc, char **argv)
{
    const char *given = getenv("LOCI_DEVICES"), *few = getenv("LOCI_SHAPES");
    const int all = (int)(sizeof shapes / sizeof *shapes), most = LOCI_EMULATED ? 1
                                                                : LOCI_SLOW     ? 3
                                                                                : all;
    walk_only(argc, argv);
    open_devices("host:2", !LOCI_SLOW);
    const int devices_of_all = given || device_count < 2 ? device_count : 1;
    for (int i = 0; i < (few && atoi(few) < most ? atoi(few) : most); i++) {
        const int often = given                           ? 1
                        : i > 0 && shapes[i].k_len > 4000 ? 20
                        : i || LOCI_SLOW                  ? 10
                                                          : 1;
        for (int k = 0; k < (int)(sizeof texts / sizeof *texts); k++)
            if (argc < 2 ? (k + i) % often == 0 : strstr(texts[k], argv[1]) != NULL) {
                const int opened = device_count;
                if (!given) choose_program(texts[k]);
                if (i > 0 || !is_quick(texts[k])) device_count = devices_of_all;
                check_shape(texts[k], i || given ? &shapes[i] : &small, 0, OUT_O);
                device_count = opened;
            }
    }
    while (device_count > devices_of_all) loci_gpu_close(gpus[--device_count]);
    for (int k = 0; k < COUNT(of_distances); k += LOCI_SLOW ? 2 : 1)
        for (int i = 0; i < (LOCI_SLOW ? 1 : 2) && (argc < 2 || strstr(of_distances[k], argv[1]));
             i++)
            check_shape(of_distances[k], &repeated, i ? 0.3 : 0, OUT_O);
    for (int k = 0; k < (int)(sizeof texts / sizeof *texts) && !LOCI_SLOW; k++)
        if ((argc < 2 ? given || k % 3 == 0 : strstr(texts[k], argv[1]) != NULL)
            && strstr(texts[k], "sba") && (!few || atoi(few) > 3))
            check_shape(texts[k], &border, 0, OUT_O);
    for (int i = 2; i < 10 && i < (few ? atoi(few) : most); i++) /* weights are dropped */
        for (int k = 0; k < (int)(sizeof texts / sizeof *texts); k += 4)
            if (argc < 2 ? given || (k / 4 + i) % 4 == 0 : strstr(texts[k], argv[1]) != NULL)
                check_shape(texts[k], &shapes[i], 0.3, OUT_O);
    for (int k = 0; k < (int)(sizeof texts / sizeof *texts) && !LOCI_SLOW && !few; k++)
        if (argc < 2 && !given
                ? strcmp(texts[k], "path") == 0
                : strstr(texts[k], "path") && (argc < 2 || strstr(texts[k], argv[1]))) {
            check_shape(texts[k], &over, 0, OUT_O);
            check_shape(texts[k], &tall, 0, OUT_O);
        }
    for (int k = 0; k < (int)(sizeof texts / sizeof *texts) && !LOCI_EMULATED && !few; k++) {
        if (argc < 2 ? !given && k % 6 : !strstr(texts[k], argv[1])) continue;
        if (LOCI_SLOW) {
            check_shape(texts[k], &brief, 0, OUT_O);
            continue;
        }
        int tensors = 0;
        for (int only = OUT_DQ; only < OUTS + tensors; only++)
            if (only != OUT_DMASK) tensors = check_shape(texts[k], &some, 0, only);
    }
    if (!few && !LOCI_SLOW) walk_all(WALK_SMALL, check_walk);
    if (getenv("LOCI_WALK")) {
        walk_all(WALK_TILES, check_walk);
        walk_all(WALK_CHUNKS, check_walk);
    }
    printf("%lld numbers compared in %d problems; %d do not run on a device\n", compared, ran,
           left_out);
    CHECK_THAT(ran > 0 || few || argc > 1, "no problem ran on a device");
    close_devices();
    return harness_end();
}
