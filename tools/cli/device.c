/* SPDX-License-Identifier: MIT */
/* device.c -- see device.h. */
#include <stdlib.h>
#include <string.h>

#include "math/q8.h"
#include "cli/device.h"

/* ---- Devices --------------------------------------------------------------------------------- */

static bool has_driver(const struct device_list *l, const char *name)
{
    for (int i = 0; i < l->count; i++)
        if (!strncmp(l->list[i].id, name, strlen(name))) return true;
    return false;
}

/* A driver without a device says why when one is asked for. */
void device_look(struct device_list *l)
{
    static const char *const drivers[MOST_ABSENT] = { "cuda", "opencl" };
    *l = (struct device_list){ 0 };
    l->count = loci_gpu_devices(l->list, MOST_DEVICES);
    if (l->count > MOST_DEVICES) l->count = MOST_DEVICES;
    for (int i = 0; i < MOST_ABSENT; i++) {
        loci_gpu *gpu = NULL;
        if (has_driver(l, drivers[i])) continue;
        const loci_status status = loci_gpu_open(&gpu, drivers[i], &l->why[l->absent]);
        if (status == LOCI_NO_MEMORY) exit(fail("out of memory"));
        l->absent += status != LOCI_OK;
        loci_gpu_close(gpu);
    }
}

bool device_open(const struct args *a, int flag, loci_gpu **gpu)
{
    loci_error e;
    const struct flag *f = &a->command->flags[flag];
    return !loci_gpu_open(gpu, a->value[flag], &e)
        || refuse("%s: --%s: %s", a->command->name, f->name, e.text);
}
void device_close(loci_gpu *gpu) { loci_gpu_close(gpu); }
void device_print(const loci_gpu_info *info)
{
    print_plain(stdout, info->name);
    if (!info->memory) return;
    printf(", ");
    print_plain(stdout, info->driver);
}

/* ---- A task on a device ---------------------------------------------------------------------- */

static loci_status put(struct there *h, const void *from, size_t bytes, void **to)
{
    loci_error *e = h->call.error;
    loci_status status = loci_gpu_alloc(h->gpu, bytes, to, e);
    if (status) return status;
    h->block[h->blocks++] = *to;
    return from ? loci_gpu_copy(h->gpu, *to, from, bytes, LOCI_GPU_UPLOAD, e) : LOCI_OK;
}

/* A pointer of the call that becomes one of the device. */
struct place {
    const char *output; /* NULL: it is an input */
    void **at;
    ptrdiff_t count;
    loci_dtype dtype;
};
static loci_status move(struct there *h, const struct place *p)
{
    void *home = *p->at;
    const size_t bytes = (size_t)stored_bytes(p->dtype, p->count);
    if (!home) return LOCI_OK;
    if (!p->output) return put(h, home, bytes, p->at);
    void *ones = memset(alloc(bytes, 1), 0xff, bytes);
    const loci_status status = put(h, ones, bytes, p->at);
    free(ones);
    h->output[h->outputs++] = (struct device_output){ p->output, *p->at, home, bytes, p->dtype };
    return status;
}
/* Tasks have dense views. */
static loci_status move_all(struct there *h, const struct task *t, bool backward)
{
    const loci_desc *d = &t->desc;
    loci_call *c = &h->call;
    loci_grad *g = &h->grad;
    const ptrdiff_t rows = t->batch * t->q_len * d->heads,
                    keys = t->batch * t->k_len * (d->kv_heads ? d->kv_heads : d->heads),
                    width = d->dim, values = d->value_dim ? d->value_dim : d->dim;
    const loci_dtype type = d->dtype, k_type = d->k_dtype ? d->k_dtype : type,
                     v_type = d->v_dtype ? d->v_dtype : type;
    const bool seen = c->mask_kind == LOCI_MASK_SEEN;
    const struct place places[] = {
        { NULL, &c->q.data, rows * width, type },
        { NULL, &c->k.data, keys * width, k_type },
        { NULL, &c->v.data, keys * values, v_type },
        { NULL, &c->mask.data, seen ? rows * t->k_len / 4 + 1 : rows * t->k_len, LOCI_F32 },
        { "o", &c->o.data, rows * values, type },
        { "lse", (void **)&c->lse, rows, LOCI_F32 },
        { "rem", (void **)&c->rem, rows, LOCI_F32 },
        { "ae", (void **)&c->ae, rows * width, LOCI_F32 },
        /* of a backward pass, from here on */
        { NULL, &g->dout.data, rows * values, type },
        { NULL, (void **)&g->dlse, rows, LOCI_F32 },
        { NULL, (void **)&g->drem, rows, LOCI_F32 },
        { NULL, (void **)&g->dae, rows * width, LOCI_F32 },
        { "dq", &g->dq.data, rows * width, type },
        { "dk", &g->dk.data, keys * width, type },
        { "dv", &g->dv.data, keys * values, type },
    };
    loci_status status = LOCI_OK;
    for (int i = 0; i < (backward ? COUNT(places) : 8) && !status; i++)
        status = move(h, &places[i]);
    return status;
}
static loci_status move_rows(struct there *h, const struct task *t, bool backward)
{
    const loci_desc *d = &t->desc;
    const bool query = t->which == LOCI_QUERY || d->stage == LOCI_EMBED;
    const ptrdiff_t heads = !query && d->kv_heads ? d->kv_heads : d->heads,
                    width = d->stage == LOCI_EMBED ? d->model_dim : heads * d->dim,
                    count = t->batch * (query ? t->q_len : t->k_len) * width;
    const struct place places[] = {
        { NULL, &h->x.data, count, d->dtype },
        { "y", &h->y.data, count, d->dtype },
        { NULL, &h->dy.data, count, d->dtype },
        { "dx", &h->dx.data, count, d->dtype },
    };
    loci_status status = LOCI_OK;
    for (int i = 0; i < (backward ? 4 : 2) && !status; i++) status = move(h, &places[i]);
    return status;
}
/* Inputs of the call, and their gradients. */
static loci_status move_tensors(struct there *h, const struct task *t, bool backward)
{
    loci_status status = LOCI_OK;
    h->data = alloc((size_t)t->tensors + 1, sizeof *h->data);
    h->gradients = alloc((size_t)t->tensors + 1, sizeof *h->gradients);
    for (int i = 0; i < t->tensors && !status; i++) {
        void *data = t->data[i];
        const ptrdiff_t n = shape_count(t->tensor[i].rank, t->tensor[i].shape);
        const struct place places[] = { { NULL, &data, n, LOCI_F32 },
                                        { t->tensor[i].name, &h->gradients[i], n, LOCI_F32 } };
        h->data[i] = NULL;
        h->gradients[i] = t->ddata[i];
        if (t->tensor[i].role != LOCI_INPUT) continue;
        status = move(h, &places[0]);
        h->data[i] = data;
        if (backward && !status) status = move(h, &places[1]);
    }
    h->call.tensors = h->data;
    h->grad.dtensors = h->gradients;
    return status;
}

loci_status there_open(struct there *h, loci_gpu *gpu, struct task *t, ptrdiff_t max_distance,
                       bool backward)
{
    *h = (struct there){ .gpu = gpu,
                         .call = t->call,
                         .grad = t->grad,
                         .stage = t->desc.stage,
                         .x = t->x,
                         .y = t->y,
                         .dy = t->dy,
                         .dx = t->dx,
                         .which = t->which };
    h->call.host = NULL;
    loci_status status = loci_gpu_plan_create(&h->plan, gpu, t->plan, &t->error);
    if (!status && !t->tables) status = task_tables(t, max_distance);
    void *tables = NULL;
    if (!status) status = put(h, t->tables, t->table_bytes, &tables);
    h->tables = (loci_gpu_tables){ t->tables, tables };
    const bool rows = h->stage == LOCI_ROTATE || h->stage == LOCI_EMBED;
    if (!status) status = rows ? move_rows(h, t, backward) : move_all(h, t, backward);
    if (!status) status = move_tensors(h, t, backward);
    if (status) return status;
    /* if the size is 0, the pass says why */
    h->work_bytes = h->call.work_bytes = loci_gpu_workspace(h->plan, &h->call, backward);
    return h->work_bytes ? put(h, NULL, h->work_bytes, &h->work) : LOCI_OK;
}
void there_close(struct there *h)
{
    while (h->blocks) loci_gpu_free(h->gpu, h->block[--h->blocks]);
    loci_gpu_plan_destroy(h->plan);
    free(h->data);
    free(h->gradients);
    *h = (struct there){ 0 };
}

loci_status there_forward(const struct there *h)
{
    if (h->stage == LOCI_EMBED)
        return loci_gpu_embed(h->plan, &h->tables, h->work, &h->call, h->x, h->y);
    if (h->stage == LOCI_ROTATE)
        return loci_gpu_rotate(h->plan, &h->tables, h->work, &h->call, h->which, h->x, h->y);
    if (h->stage == LOCI_LINEAR_ATTENTION)
        return loci_gpu_linear_forward(h->plan, &h->tables, h->work, &h->call, NULL, NULL);
    return loci_gpu_forward(h->plan, &h->tables, h->work, &h->call);
}
loci_status there_backward(const struct there *h)
{
    const struct device_output *dx = &h->output[1];
    if (h->stage == LOCI_EMBED) { /* the gradient of x is that of y */
        const loci_status status =
            loci_gpu_copy(h->gpu, h->dx.data, h->dy.data, dx->bytes, LOCI_GPU_MOVE, h->call.error);
        return status ? status
                      : loci_gpu_embed_backward(h->plan, &h->tables, h->work, &h->call, h->dy,
                                                h->gradients);
    }
    if (h->stage == LOCI_ROTATE)
        return loci_gpu_rotate_backward(h->plan, &h->tables, h->work, &h->call, h->which, h->x,
                                        h->dy, h->dx, h->gradients);
    if (h->stage == LOCI_LINEAR_ATTENTION)
        return loci_gpu_linear_backward(h->plan, &h->tables, h->work, &h->call, &h->grad);
    return loci_gpu_backward(h->plan, &h->tables, h->work, &h->call, &h->grad);
}
loci_status there_fetch(const struct there *h, const struct device_output *o, void *to)
{
    return loci_gpu_copy(h->gpu, to, o->at, o->bytes, LOCI_GPU_DOWNLOAD, h->call.error);
}

loci_status device_compute(loci_gpu *gpu, struct task *t, ptrdiff_t max_distance, bool backward)
{
    struct there h;
    loci_status status = there_open(&h, gpu, t, max_distance, backward);
    if (!status) status = there_forward(&h);
    if (!status && backward) status = there_backward(&h);
    for (int i = 0; i < h.outputs && !status; i++)
        status = there_fetch(&h, &h.output[i], h.output[i].home);
    there_close(&h);
    return status;
}
