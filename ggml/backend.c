/* SPDX-License-Identifier: MIT */
/* backend.c -- what ggml asks of a backend that it loads: one device of type ACCEL, which works in
 * the memory of the CPU and takes attention alone.  ggml's scheduler gives all other operations to
 * its CPU backend. */
#define GGML_BACKEND_DL
#define GGML_BACKEND_SHARED
#define GGML_BACKEND_BUILD
#define GGML_SHARED
#include <ggml-backend-impl.h>

#include <stdlib.h>
#include <string.h>

#include "ggml/attention.h"
#include "loci/loci.h"

#if GGML_BACKEND_API_VERSION != 2
#error "these headers of ggml have another GGML_BACKEND_API_VERSION than 2, which loci knows"
#endif

#define UNUSED(x) ((void)(x))

/* ---- The backend: a device that computes ----------------------------------------------------- */

static const char *backend_name(ggml_backend_t backend)
{
    UNUSED(backend);
    return "LOCI";
}
static void backend_free(ggml_backend_t backend)
{
    loci_attention_destroy(backend->context);
    free(backend);
}
static enum ggml_status backend_compute(ggml_backend_t backend, struct ggml_cgraph *graph)
{
    for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
        struct ggml_tensor *node = ggml_graph_node(graph, i);
        if (node->op == GGML_OP_FLASH_ATTN_EXT && !loci_attention_run(backend->context, node))
            return GGML_STATUS_FAILED;
    }
    return GGML_STATUS_SUCCESS;
}
static void set_threads(ggml_backend_t backend, int threads)
{
    loci_attention_threads(backend->context, threads);
}

static ggml_backend_t device_backend(ggml_backend_dev_t device, const char *parameters)
{
    static ggml_guid guid = { 0x6c, 0x6f, 0x63, 0x69, 0x2d, 0x61, 0x74, 0x74,
                              0x65, 0x6e, 0x74, 0x69, 0x6f, 0x6e, 0x00, 0x01 };
    UNUSED(parameters);
    ggml_backend_t backend = calloc(1, sizeof *backend);
    struct attention *attention = loci_attention_create();
    if (!backend || !attention) {
        free(backend);
        loci_attention_destroy(attention);
        return NULL;
    }
    backend->guid = &guid;
    backend->iface.get_name = backend_name;
    backend->iface.free = backend_free;
    backend->iface.graph_compute = backend_compute;
    backend->device = device;
    backend->context = attention;
    return backend;
}

/* ---- The device ------------------------------------------------------------------------------ */

static const char *device_name(ggml_backend_dev_t device)
{
    UNUSED(device);
    return "LOCI";
}
static const char *device_description(ggml_backend_dev_t device)
{
    UNUSED(device);
    return "attention by loci";
}
/* The memory is that of the CPU, which reports it. */
static void device_memory(ggml_backend_dev_t device, size_t *unused, size_t *all)
{
    UNUSED(device);
    *unused = *all = 0;
}
static enum ggml_backend_dev_type device_type(ggml_backend_dev_t device)
{
    UNUSED(device);
    return GGML_BACKEND_DEVICE_TYPE_ACCEL;
}
static void device_properties(ggml_backend_dev_t device, struct ggml_backend_dev_props *p)
{
    p->name = device_name(device);
    p->description = device_description(device);
    p->type = device_type(device);
    device_memory(device, &p->memory_free, &p->memory_total);
    memset(&p->caps, 0, sizeof p->caps);
    p->caps.buffer_from_host_ptr = true;
}
static ggml_backend_buffer_type_t device_buffers(ggml_backend_dev_t device)
{
    UNUSED(device);
    return ggml_backend_cpu_buffer_type();
}
static ggml_backend_buffer_t device_buffer_at(ggml_backend_dev_t device, void *at, size_t size,
                                              size_t largest)
{
    UNUSED(device);
    UNUSED(largest);
    return ggml_backend_cpu_buffer_from_ptr(at, size);
}
static bool device_takes(ggml_backend_dev_t device, const struct ggml_tensor *op)
{
    UNUSED(device);
    switch (op->op) {
    case GGML_OP_NONE:
    case GGML_OP_RESHAPE:
    case GGML_OP_VIEW:
    case GGML_OP_PERMUTE:
    case GGML_OP_TRANSPOSE:
        return true; /* nothing to compute */
    case GGML_OP_FLASH_ATTN_EXT:
        return loci_attention_takes(op);
    default:
        return false;
    }
}
static bool device_reads(ggml_backend_dev_t device, ggml_backend_buffer_type_t type)
{
    UNUSED(device);
    return ggml_backend_buft_is_host(type);
}

/* ---- The registration ------------------------------------------------------------------------ */

static const char *registration_name(ggml_backend_reg_t reg)
{
    UNUSED(reg);
    return "LOCI";
}
static size_t registration_devices(ggml_backend_reg_t reg)
{
    UNUSED(reg);
    return 1;
}
static ggml_backend_dev_t registration_device(ggml_backend_reg_t reg, size_t index)
{
    static struct ggml_backend_device device = {
        .iface = { .get_name = device_name,
                   .get_description = device_description,
                   .get_memory = device_memory,
                   .get_type = device_type,
                   .get_props = device_properties,
                   .init_backend = device_backend,
                   .get_buffer_type = device_buffers,
                   .buffer_from_host_ptr = device_buffer_at,
                   .supports_op = device_takes,
                   .supports_buft = device_reads },
    };
    device.reg = reg;
    return index == 0 ? &device : NULL;
}
static void *registration_function(ggml_backend_reg_t reg, const char *name)
{
    UNUSED(reg);
    if (strcmp(name, "ggml_backend_set_n_threads")) return NULL;
    ggml_backend_set_n_threads_t set = set_threads;
    void *at;
    memcpy(&at, &set, sizeof at);
    return at;
}
static ggml_backend_reg_t registration(void)
{
    static struct ggml_backend_reg reg = {
        .api_version = GGML_BACKEND_API_VERSION,
        .iface = { .get_name = registration_name,
                   .get_device_count = registration_devices,
                   .get_device = registration_device,
                   .get_proc_address = registration_function },
    };
    return &reg;
}
GGML_BACKEND_DL_IMPL(registration)
