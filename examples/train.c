/* SPDX-License-Identifier: MIT */
/* train.c -- a small model learns to repeat what it has read, with the encoding that is given:
 * train [ENCODING [STEPS]]
 *
 * A text is twelve random tokens and the same twelve again; what counts is the loss of the second
 * half.  The model is an embedding, one layer of attention and a projection to tokens, so that only
 * positions can tell which token comes next:
 *
 *     x = E[token]    q, k, v = x Wq, x Wk, x Wv    h = x + attention(q, k, v) Wo    logits = h U
 *
 * All weights, and what the encoding learns, are trained by AdamW from gradients that loci_backward
 * and a few products give.  Ends with 1 when the loss has not fallen to half: nope cannot do it,
 * nor can alibi; t5, shaw, xl, cope and fire can. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <loci/loci.h>

enum {
    TOKENS = 24,
    HALF = 12,
    LENGTH = 2 * HALF,
    BATCH = 16,
    ROWS = BATCH * LENGTH,
    HEADS = 2,
    DIM = 16,
    MODEL = 32,
    WIDE = HEADS * DIM
};
enum { MAX_TENSORS = 32, E = 0, WQ, WK, WV, WO, U, WEIGHTS };

static loci_error e;
static void stop(const char *what)
{
    fprintf(stderr, "train: %s\n", what);
    exit(1);
}
static void *take(size_t bytes)
{
    bytes = (bytes + 63) / 64 * 64;
    void *p = aligned_alloc(64, bytes);
    if (!p) stop("out of memory");
    return memset(p, 0, bytes);
}

/* ---- Numbers that learn ---------------------------------------------------------------------- */

/* the numbers, their gradient, and what AdamW remembers */
struct weight {
    float *x, *d, *m, *v;
    ptrdiff_t count;
};

static struct weight new_weight(ptrdiff_t count, float size)
{
    const size_t bytes = (size_t)count * sizeof(float);
    struct weight w = { take(bytes), take(bytes), take(bytes), take(bytes), count };
    for (ptrdiff_t i = 0; i < count; i++) w.x[i] = size * (2 * (float)rand() / (float)RAND_MAX - 1);
    return w;
}
static void adamw(struct weight *w, int step, float rate)
{
    const float fix_m = 1 - powf(0.9f, (float)step), fix_v = 1 - powf(0.99f, (float)step);
    for (ptrdiff_t i = 0; i < w->count; i++) {
        w->m[i] = 0.9f * w->m[i] + 0.1f * w->d[i];
        w->v[i] = 0.99f * w->v[i] + 0.01f * w->d[i] * w->d[i];
        w->x[i] -= rate * (w->m[i] / fix_m / (sqrtf(w->v[i] / fix_v) + 1e-8f) + 1e-4f * w->x[i]);
        w->d[i] = 0;
    }
}

/* y += x w for rows of m numbers, w [m][n]; and the gradients of both. */
static void product(float *y, const float *x, const float *w, int m, int n)
{
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < m; i++)
            for (int j = 0; j < n; j++) y[r * n + j] += x[r * m + i] * w[i * n + j];
}
static void product_backward(const float *dy, const float *x, const float *w, int m, int n,
                             float *dx, float *dw)
{
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < m; i++)
            for (int j = 0; j < n; j++) {
                dx[r * m + i] += dy[r * n + j] * w[i * n + j];
                dw[i * n + j] += x[r * m + i] * dy[r * n + j];
            }
}

/* ---- The text, and how wrong the model is about it ------------------------------------------- */

static int token[BATCH][LENGTH];
static void new_texts(void)
{
    for (int b = 0; b < BATCH; b++)
        for (int i = 0; i < LENGTH; i++)
            token[b][i] = i < HALF ? rand() % TOKENS : token[b][i - HALF];
}

/* The mean of -log p(next token) over the second half; logits become their gradient. */
static float loss(float *logits)
{
    float sum = 0;
    for (int r = 0; r < ROWS; r++) {
        float *p = logits + r * TOKENS, all = 0, most = p[0];
        const int i = r % LENGTH, counts = i >= HALF - 1 && i < LENGTH - 1,
                  next = counts ? token[r / LENGTH][i + 1] : 0;
        for (int t = 0; t < TOKENS; t++) most = fmaxf(most, p[t]);
        for (int t = 0; t < TOKENS; t++) all += expf(p[t] - most);
        if (counts) sum += logf(all) + most - p[next];
        for (int t = 0; t < TOKENS; t++)
            p[t] = counts ? (expf(p[t] - most) / all - (t == next)) / (BATCH * HALF) : 0;
    }
    return sum / (BATCH * HALF);
}

/* ---- The model ------------------------------------------------------------------------------- */

static struct weight w[WEIGHTS], learned[MAX_TENSORS];
static float x[ROWS * MODEL], q[ROWS * WIDE], k[ROWS * WIDE], v[ROWS * WIDE], o[ROWS * WIDE],
    h[ROWS * MODEL], logits[ROWS * TOKENS];
static float dx[ROWS * MODEL], dq[ROWS * WIDE], dk[ROWS * WIDE], dv[ROWS * WIDE], dout[ROWS * WIDE],
    lse[ROWS * HEADS], rem[ROWS * HEADS];

static float train(const loci_plan *plan, void *tables, void *work, const loci_call *call,
                   const loci_grad *grad)
{
    new_texts();
    for (int r = 0; r < ROWS; r++)
        memcpy(x + r * MODEL, w[E].x + token[r / LENGTH][r % LENGTH] * MODEL, MODEL * sizeof *x);
    memset(q, 0, sizeof q);
    memset(k, 0, sizeof k);
    memset(v, 0, sizeof v);
    memset(logits, 0, sizeof logits);
    product(q, x, w[WQ].x, MODEL, WIDE);
    product(k, x, w[WK].x, MODEL, WIDE);
    product(v, x, w[WV].x, MODEL, WIDE);
    if (loci_prepare(plan, LENGTH, call->tensors, tables) || loci_forward(plan, tables, work, call))
        stop(e.text);
    memcpy(h, x, sizeof h);
    product(h, o, w[WO].x, WIDE, MODEL);
    product(logits, h, w[U].x, MODEL, TOKENS);
    const float wrong = loss(logits);

    memset(dx, 0, sizeof dx);
    memset(dout, 0, sizeof dout);
    /* the gradient of h, which x gets too */
    product_backward(logits, h, w[U].x, MODEL, TOKENS, dx, w[U].d);
    product_backward(dx, o, w[WO].x, WIDE, MODEL, dout, w[WO].d);
    if (loci_backward(plan, tables, work, call, grad)) stop(e.text);
    product_backward(dq, x, w[WQ].x, MODEL, WIDE, dx, w[WQ].d);
    product_backward(dk, x, w[WK].x, MODEL, WIDE, dx, w[WK].d);
    product_backward(dv, x, w[WV].x, MODEL, WIDE, dx, w[WV].d);
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < MODEL; i++)
            w[E].d[token[r / LENGTH][r % LENGTH] * MODEL + i] += dx[r * MODEL + i];
    return wrong;
}

int main(int argc, char **argv)
{
    const int steps = argc > 2 ? atoi(argv[2]) : 200;
    const loci_desc d = LOCI_DESC(.encoding = argc > 1 ? argv[1] : "rope:pairing=half",
                                  .heads = HEADS, .dim = DIM, .max_len = LENGTH);
    loci_plan *plan;
    if (loci_plan_create(&plan, &d, &e)) stop(e.text);
    loci_tensor list[MAX_TENSORS];
    const int count = loci_tensors(plan, list, MAX_TENSORS);
    const void *tensors[MAX_TENSORS];
    void *dtensors[MAX_TENSORS];
    for (int i = 0; i < count; i++) {
        ptrdiff_t n = 1;
        if (list[i].role == LOCI_INPUT)
            stop("this encoding wants an input for every token, which this model does not have");
        for (int a = 0; a < list[i].rank; a++) n *= list[i].shape[a];
        learned[i] = new_weight(n, 0);
        loci_tensor_init(plan, i, 1, learned[i].x);
        tensors[i] = learned[i].x;
        dtensors[i] = list[i].role == LOCI_LEARNED ? learned[i].d : NULL;
    }
    const int sizes[WEIGHTS][2] = { { TOKENS, MODEL }, { MODEL, WIDE }, { MODEL, WIDE },
                                    { MODEL, WIDE },   { WIDE, MODEL }, { MODEL, TOKENS } };
    for (int i = 0; i < WEIGHTS; i++)
        w[i] = new_weight((ptrdiff_t)sizes[i][0] * sizes[i][1], i == E ? 1 : 0.3f);

    /* the same number on every axis, where there are several */
    static double coord[8 * LENGTH];
    for (int i = 0; i < 8 * LENGTH; i++) coord[i] = i % LENGTH;
#define VIEW(x) { x, LENGTH * WIDE, DIM, WIDE }
    loci_call call = LOCI_CALL(.batch = BATCH, .q_len = LENGTH, .k_len = LENGTH, .q = VIEW(q),
                               .k = VIEW(k), .v = VIEW(v), .o = VIEW(o), .lse = lse, .rem = rem,
                               .q_coord = coord, .k_coord = coord, .tensors = tensors, .error = &e);
    const loci_grad grad = LOCI_GRAD(.dout = VIEW(dout), .dq = VIEW(dq), .dk = VIEW(dk),
                                     .dv = VIEW(dv), .dtensors = dtensors);
    call.tables_bytes = loci_tables_size(plan, LENGTH);
    call.work_bytes = loci_workspace(plan, &call, 1);
    void *tables = take(call.tables_bytes), *work = take(call.work_bytes);

    float first = 0, last = 0;
    printf("%s\n", loci_plan_text(plan));
    for (int step = 1; step <= steps; step++) {
        const float now = train(plan, tables, work, &call, &grad);
        for (int i = 0; i < WEIGHTS; i++) adamw(&w[i], step, 0.01f);
        for (int i = 0; i < count; i++)
            if (dtensors[i]) adamw(&learned[i], step, 0.01f);
        if (step <= 10) first += now / 10;
        last = 0.9f * last + 0.1f * now;
        if (step % 25 == 0)
            printf("step %4d   loss %.4f\n", step, last / (1 - powf(0.9f, (float)step)));
    }
    free(tables);
    free(work);
    loci_plan_destroy(plan);
    return last < 0.5f * first ? 0 : 1;
}
