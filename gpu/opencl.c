/* SPDX-License-Identifier: MIT */
/* opencl.c -- the backend of OpenCL; see device.h.
 *
 * Devices are numbered through all platforms in the driver's order.  Memory is coarse-grained
 * shared virtual memory, so a pointer and its offsets mean the same on host and device.  A kernel
 * gets the pointers of ARRAYS one by one, then `struct params` by value, then its local memory.
 *
 * Arguments are set on a kernel object before a launch, so launches of several threads take
 * turns. */
#include "device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "library.h"
#include "opencl_api.h"
#include "program_cache.h"
#include "platform/clock.h"
#include "util/error.h"
#include "util/lock.h"

/* Never a relaxed flag: results are the CPU's bits. */
#define OPTIONS "-cl-std=CL1.2 -cl-fp32-correctly-rounded-divide-sqrt"

enum { MOST_PLATFORMS = 16, MOST_DEVICES = 64, NOT_NUMBERED = -1 };

struct opencl {
    cl_device_id device;
    cl_context context;
    cl_command_queue queue;
    struct device_facts facts;
    char label[192];     /* for sentences: "opencl:0 (NAME)" */
    uint64_t most_bytes; /* of one allocation */
    bool profiles;       /* the queue takes times */
    struct lock lock;    /* for kernels, their arguments and the mark */
    cl_event mark;       /* if the queue takes times; else: */
    double marked;
};

/* Kernels are made when they are first launched.  A driver may refuse a pointer where the launch
 * before had NULL, so there is one kernel per set of arrays that a launch lacks. */
struct kernel {
    char name[32];
    uint32_t lacks; /* bits: arrays that are NULL */
    cl_kernel own;
    struct kernel *next;
};
struct program {
    cl_program own;
    struct kernel *kernels;
};

/* ---- The driver ------------------------------------------------------------------------------ */

static struct opencl_api cl;
static struct once opened = ONCE_INIT;
static struct {
    bool loaded;
    loci_status status; /* why there are no devices */
    char why[400];
    int count;
    cl_device_id device[MOST_DEVICES];
} found;

static const char *error_name(cl_int code)
{
    switch (code) {
#define CASE(name, number) \
    case number: \
        return #name;
        OPENCL_ERRORS(CASE)
#undef CASE
    }
    return "an error of its own";
}

static bool load(void)
{
#if defined _WIN32
    static const char *const files[] = { "OpenCL.dll", NULL };
#else
    static const char *const files[] = { "libOpenCL.so.1", NULL };
#endif
    static const struct library_function functions[] = {
#define ENTRY(result, name, parameters) { #name, offsetof(struct opencl_api, name) },
        OPENCL_FUNCTIONS(ENTRY)
#undef ENTRY
    };
    static const struct library opencl = {
        .what = "OpenCL",
        .variable = "LOCI_OPENCL",
        .files = files,
        .hint = "install the driver of the device, or PoCL for the processor",
        .functions = functions,
        .count = COUNT(functions),
    };
    found.status = LOCI_UNSUPPORTED;
    if (sizeof(void *) != 8) {
        snprintf(found.why, sizeof found.why, "OpenCL needs a program of 64 bits");
        return false;
    }
    return loci_library_load(&opencl, &cl, found.why, sizeof found.why);
}
static void no_devices(const char *function, cl_int code)
{
    found.status = LOCI_DEVICE;
    snprintf(found.why, sizeof found.why, "OpenCL: %s() failed with %s (%d)", function,
             error_name(code), code);
}

static void find_devices(void)
{
    found.loaded = load();
    if (!found.loaded) return;
    cl_platform_id platforms[MOST_PLATFORMS];
    cl_uint n = 0;
    cl_int code = cl.clGetPlatformIDs(MOST_PLATFORMS, platforms, &n);
    if (code == CL_PLATFORM_NOT_FOUND_KHR) n = 0;
    else if (code) {
        no_devices("clGetPlatformIDs", code);
        return;
    }
    snprintf(found.why, sizeof found.why,
             "OpenCL finds no device: install the driver of one, or PoCL for the processor");
    for (cl_uint p = 0; p < n && p < MOST_PLATFORMS; p++) {
        cl_uint here = 0, room = (cl_uint)(MOST_DEVICES - found.count);
        if (!room) break;
        code = cl.clGetDeviceIDs(platforms[p], CL_DEVICE_TYPE_ALL, room, found.device + found.count,
                                 &here);
        if (code == CL_DEVICE_NOT_FOUND) continue;
        /* a platform that fails does not hide the devices of others */
        if (code) no_devices("clGetDeviceIDs", code);
        else found.count += (int)(here < room ? here : room);
    }
}

static int opencl_count(loci_error *why)
{
    once_run(&opened, find_devices);
    if (!found.count) loci_fail(why, found.status, "%s", found.why);
    return found.count;
}

/* The sentence of a call that failed. */
static loci_status failed(const struct opencl *c, const char *function, cl_int code, loci_error *e)
{
    const bool memory = code == CL_MEM_OBJECT_ALLOCATION_FAILURE || code == CL_OUT_OF_HOST_MEMORY;
    return loci_fail(e, memory ? LOCI_NO_MEMORY : LOCI_DEVICE, "%s: %s() failed with %s (%d)",
                     c->label, function, error_name(code), code);
}

/* ---- What a device is ------------------------------------------------------------------------ */

/* A number of a device that is 0 where the driver does not know the question. */
static uint64_t number_of(cl_device_id d, cl_uint what)
{
    uint64_t x = 0;
    uint32_t small = 0;
    size_t bytes = 0;
    if (cl.clGetDeviceInfo(d, what, sizeof x, &x, &bytes)) return 0;
    if (bytes != sizeof small) return x;
    memcpy(&small, &x, sizeof small);
    return small;
}
static void text_of(cl_device_id d, cl_uint what, char *to, size_t capacity)
{
    char text[1024] = "";
    if (cl.clGetDeviceInfo(d, what, sizeof text, text, NULL)) *text = 0;
    text[sizeof text - 1] = 0;
    snprintf(to, capacity, "%s", text);
}
static void platform_of(cl_device_id d, char *to, size_t capacity)
{
    cl_platform_id p = NULL;
    char text[1024] = "";
    if (cl.clGetDeviceInfo(d, CL_DEVICE_PLATFORM, sizeof p, &p, NULL)
        || cl.clGetPlatformInfo(p, CL_PLATFORM_VERSION, sizeof text, text, NULL))
        snprintf(text, sizeof text, "OpenCL");
    text[sizeof text - 1] = 0;
    snprintf(to, capacity, "%s", text);
}

static void learn(struct opencl *c, int number)
{
    struct device_facts *f = &c->facts;
    char platform[256];
    text_of(c->device, CL_DEVICE_NAME, f->name, sizeof f->name);
    platform_of(c->device, platform, sizeof platform);
    char *rest = strstr(platform, "  "); /* PoCL adds how it was built */
    if (rest) *rest = 0;
    snprintf(f->driver, sizeof f->driver, "%.*s", (int)sizeof f->driver - 1, platform);
    f->shared = (size_t)number_of(c->device, CL_DEVICE_LOCAL_MEM_SIZE);
    f->units = (int)number_of(c->device, CL_DEVICE_MAX_COMPUTE_UNITS);
    f->processor = number_of(c->device, CL_DEVICE_TYPE) & CL_DEVICE_TYPE_CPU;
    f->memory = number_of(c->device, CL_DEVICE_GLOBAL_MEM_SIZE);
    c->most_bytes = number_of(c->device, CL_DEVICE_MAX_MEM_ALLOC_SIZE);
    if (number == NOT_NUMBERED) snprintf(c->label, sizeof c->label, "opencl (%s)", f->name);
    else snprintf(c->label, sizeof c->label, "opencl:%d (%s)", number, f->name);
}

/* Refuses a device that cannot run every kernel, or not with the CPU's bits. */
static loci_status check_able(const struct opencl *c, loci_error *e)
{
    const uint64_t single = number_of(c->device, CL_DEVICE_SINGLE_FP_CONFIG);
    const uint64_t svm = number_of(c->device, CL_DEVICE_SVM_CAPABILITIES);
    const struct {
        bool there;
        const char *what;
    } needs[] = {
        { svm & CL_DEVICE_SVM_COARSE_GRAIN_BUFFER, "coarse-grained shared virtual memory" },
        { number_of(c->device, CL_DEVICE_DOUBLE_FP_CONFIG), "double precision (cl_khr_fp64)" },
        { single & CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT, "correctly rounded division" },
        { single & CL_FP_DENORM, "denormal numbers" },
        { single & CL_FP_FMA, "fused multiply-add" },
        { number_of(c->device, CL_DEVICE_ADDRESS_BITS) == 64, "addresses of 64 bits" },
        { number_of(c->device, CL_DEVICE_MAX_WORK_GROUP_SIZE) >= THREADS,
          "work-groups of 128 threads" },
        { number_of(c->device, CL_DEVICE_COMPILER_AVAILABLE), "a compiler" },
    };
    char missing[300] = "";
    for (int i = 0; i < COUNT(needs); i++) {
        const size_t n = strlen(missing);
        if (!needs[i].there)
            snprintf(missing + n, sizeof missing - n, "%s%s", n ? ", " : "", needs[i].what);
    }
    CHECK(e, !*missing, LOCI_UNSUPPORTED, "%s cannot give the CPU's bits: it lacks %s", c->label,
          missing);
    return LOCI_OK;
}

static loci_status numbered(int number, struct opencl *c, loci_error *e)
{
    const int n = opencl_count(e);
    if (!n) return found.status;
    CHECK(e, number >= 0 && number < n, LOCI_BAD_ARG,
          "there is no opencl:%d: OpenCL devices are opencl:0 to opencl:%d", number, n - 1);
    *c = (struct opencl){ .device = found.device[number] };
    learn(c, number);
    return LOCI_OK;
}

/* The facts are there even if the device is refused. */
static loci_status opencl_facts(int number, struct device_facts *to, loci_error *e)
{
    struct opencl c;
    *to = (struct device_facts){ 0 };
    TRY(numbered(number, &c, e));
    *to = c.facts;
    return check_able(&c, e);
}

/* ---- Opening --------------------------------------------------------------------------------- */

static void opencl_close(void *state)
{
    struct opencl *c = state;
    if (!c) return;
    if (c->queue) cl.clFinish(c->queue);
    if (c->mark) cl.clReleaseEvent(c->mark);
    if (c->queue) cl.clReleaseCommandQueue(c->queue);
    if (c->context) cl.clReleaseContext(c->context);
    lock_close(&c->lock);
    free(c);
}

/* A state on the heap that owns what `c` has. */
static loci_status keep(const struct opencl *c, void **state, loci_error *e)
{
    struct opencl *to = malloc(sizeof *to);
    CHECK(e, to, LOCI_NO_MEMORY, "%s: no memory for its state", c->label);
    *to = *c;
    lock_open(&to->lock);
    *state = to;
    return LOCI_OK;
}

static loci_status opencl_open(int number, void **state, loci_error *e)
{
    struct opencl known, *c;
    cl_int code = 0;
    TRY(numbered(number, &known, e));
    TRY(check_able(&known, e));
    known.profiles = true;
    TRY(keep(&known, state, e));
    c = *state;
    const char *function = "clCreateContext";
    c->context = cl.clCreateContext(NULL, 1, &c->device, NULL, NULL, &code);
    if (!code) {
        function = "clCreateCommandQueue";
        c->queue = cl.clCreateCommandQueue(c->context, c->device, CL_QUEUE_PROFILING_ENABLE, &code);
    }
    if (!code) return LOCI_OK;
    const loci_status status = failed(c, function, code, e);
    opencl_close(c);
    *state = NULL;
    return status;
}

static loci_status opencl_adopt(void *context, void *stream, void **state, struct device_facts *to,
                                loci_error *e)
{
    struct opencl c = { .context = context, .queue = stream, .label = "opencl" };
    cl_context of_queue = NULL;
    cl_bitfield properties = 0;
    once_run(&opened, find_devices);
    CHECK(e, found.loaded, found.status, "%s", found.why);
    CHECK(e, context && stream, LOCI_BAD_ARG, "opencl: a context and a queue are needed, not NULL");
    cl_int code =
        cl.clGetCommandQueueInfo(c.queue, CL_QUEUE_DEVICE, sizeof c.device, &c.device, NULL);
    if (!code)
        code =
            cl.clGetCommandQueueInfo(c.queue, CL_QUEUE_CONTEXT, sizeof of_queue, &of_queue, NULL);
    if (!code)
        code = cl.clGetCommandQueueInfo(c.queue, CL_QUEUE_PROPERTIES, sizeof properties,
                                        &properties, NULL);
    if (code) return failed(&c, "clGetCommandQueueInfo", code, e);
    learn(&c, NOT_NUMBERED);
    CHECK(e, of_queue == c.context, LOCI_BAD_ARG, "%s: the queue is of another context", c.label);
    CHECK(e, !(properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE), LOCI_BAD_ARG,
          "%s: the queue runs out of order; it must be in order", c.label);
    TRY(check_able(&c, e));
    c.profiles = properties & CL_QUEUE_PROFILING_ENABLE;
    TRY(keep(&c, state, e));
    cl.clRetainContext(c.context);
    cl.clRetainCommandQueue(c.queue);
    *to = c.facts;
    return LOCI_OK;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static loci_status opencl_alloc(void *state, size_t bytes, void **to, loci_error *e)
{
    struct opencl *c = state;
    CHECK(e, bytes <= c->most_bytes, LOCI_NO_MEMORY,
          "%s has no memory for %zu bytes: one allocation has at most %llu", c->label, bytes,
          (unsigned long long)c->most_bytes);
    *to = cl.clSVMAlloc(c->context, CL_MEM_READ_WRITE, bytes ? bytes : 1, 0);
    CHECK(e, *to, LOCI_NO_MEMORY, "%s has no memory for %zu bytes", c->label, bytes);
    return LOCI_OK;
}

/* What was queued may use the memory. */
static void opencl_free(void *state, void *at)
{
    struct opencl *c = state;
    if (!at) return;
    cl.clFinish(c->queue);
    cl.clSVMFree(c->context, at);
}

static loci_status opencl_copy(void *state, void *to, const void *from, size_t bytes,
                               enum direction d, loci_error *e)
{
    struct opencl *c = state;
    if (!bytes) return LOCI_OK;
    const cl_int code = cl.clEnqueueSVMMemcpy(c->queue, d == ON_DEVICE ? CL_FALSE : CL_TRUE, to,
                                              from, bytes, 0, NULL, NULL);
    return code ? failed(c, "clEnqueueSVMMemcpy", code, e) : LOCI_OK;
}

static loci_status opencl_clear(void *state, void *at, size_t bytes, loci_error *e)
{
    struct opencl *c = state;
    const char zero = 0;
    if (!bytes) return LOCI_OK;
    const cl_int code =
        cl.clEnqueueSVMMemFill(c->queue, at, &zero, sizeof zero, bytes, 0, NULL, NULL);
    return code ? failed(c, "clEnqueueSVMMemFill", code, e) : LOCI_OK;
}

static loci_status opencl_wait(void *state, loci_error *e)
{
    struct opencl *c = state;
    const cl_int code = cl.clFinish(c->queue);
    return code ? failed(c, "clFinish", code, e) : LOCI_OK;
}

/* ---- Programs -------------------------------------------------------------------------------- */

static struct program_key key_of(const struct opencl *c, const char *lines)
{
    char device[256], version[256], driver[256], platform[256];
    text_of(c->device, CL_DEVICE_NAME, device, sizeof device);
    text_of(c->device, CL_DEVICE_VERSION, version, sizeof version);
    text_of(c->device, CL_DRIVER_VERSION, driver, sizeof driver);
    platform_of(c->device, platform, sizeof platform);
    const char *const texts[] = { "opencl", OPTIONS,  device, version,
                                  driver,   platform, lines,  loci_gpu_source };
    return loci_program_key(texts, COUNT(texts));
}

/* PoCL keeps compiled kernels itself, each when it is first launched.  Asked for a binary it
 * compiles all of them. */
static bool keeps_programs(const struct opencl *c)
{
    char platform[256];
    platform_of(c->device, platform, sizeof platform);
    return strstr(platform, "PoCL") || strstr(platform, "pocl");
}
/* A program of an earlier process.  NULL: none, or one that this driver does not want. */
static cl_program recall(const struct opencl *c, const struct program_key *key)
{
    size_t bytes = 0;
    cl_int code = 0, good = 0;
    void *data = loci_program_read(key, &bytes);
    if (!data) return NULL;
    const unsigned char *binary = data;
    cl_program p =
        cl.clCreateProgramWithBinary(c->context, 1, &c->device, &bytes, &binary, &good, &code);
    free(data);
    if (code || !p) return NULL;
    if (!good && !cl.clBuildProgram(p, 1, &c->device, OPTIONS, NULL, NULL)) return p;
    cl.clReleaseProgram(p);
    return NULL;
}
static void remember(cl_program p, const struct program_key *key)
{
    size_t bytes = 0;
    if (cl.clGetProgramInfo(p, CL_PROGRAM_BINARY_SIZES, sizeof bytes, &bytes, NULL) || !bytes)
        return;
    unsigned char *data = malloc(bytes);
    if (data && !cl.clGetProgramInfo(p, CL_PROGRAM_BINARIES, sizeof data, &data, NULL))
        loci_program_write(key, data, bytes);
    free(data);
}

/* Quotes what the compiler says. */
static loci_status not_compiled(const struct opencl *c, cl_program p, cl_int code, loci_error *e)
{
    size_t bytes = 0;
    char line[280] = "", *log = NULL;
    if (!cl.clGetProgramBuildInfo(p, c->device, CL_PROGRAM_BUILD_LOG, 0, NULL, &bytes)
        && (log = calloc(bytes + 1, 1)))
        cl.clGetProgramBuildInfo(p, c->device, CL_PROGRAM_BUILD_LOG, bytes, log, NULL);
    loci_log_error(log ? log : "", line, sizeof line);
    free(log);
    return loci_fail(e, LOCI_DEVICE, "%s: the driver's compiler failed with %s (%d): %s", c->label,
                     error_name(code), code, line);
}
static loci_status compile(const struct opencl *c, const char *lines, cl_program *to, loci_error *e)
{
    const char *texts[] = { lines, loci_gpu_source };
    cl_int code = 0;
    cl_program p = cl.clCreateProgramWithSource(c->context, COUNT(texts), texts, NULL, &code);
    if (code) return failed(c, "clCreateProgramWithSource", code, e);
    code = cl.clBuildProgram(p, 1, &c->device, OPTIONS, NULL, NULL);
    if (!code) {
        *to = p;
        return LOCI_OK;
    }
    const loci_status status = not_compiled(c, p, code, e);
    cl.clReleaseProgram(p);
    return status;
}

static void opencl_unload(void *state, struct program *p)
{
    struct opencl *c = state;
    if (!p) return;
    cl.clFinish(c->queue);
    for (struct kernel *k = p->kernels, *next; k; k = next) {
        next = k->next;
        cl.clReleaseKernel(k->own);
        free(k);
    }
    if (p->own) cl.clReleaseProgram(p->own);
    free(p);
}

static loci_status opencl_build(void *state, const char *lines, struct program **to, loci_error *e)
{
    struct opencl *c = state;
    const struct program_key key = key_of(c, lines);
    const bool keeps = keeps_programs(c);
    struct program *p = calloc(1, sizeof *p);
    CHECK(e, p, LOCI_NO_MEMORY, "%s: no memory for a program", c->label);
    loci_status status = LOCI_OK;
    if (!keeps) p->own = recall(c, &key);
    const bool recalled = p->own;
    if (!recalled) status = compile(c, lines, &p->own, e);
    if (status) {
        opencl_unload(c, p);
        return status;
    }
    if (!recalled && !keeps) remember(p->own, &key);
    *to = p;
    return LOCI_OK;
}

/* ---- Launches -------------------------------------------------------------------------------- */

/* The caller has the lock. */
static loci_status find_kernel(const struct opencl *c, struct program *p, const char *name,
                               uint32_t lacks, cl_kernel *to, loci_error *e)
{
    char whole[64];
    cl_int code = 0;
    struct kernel *k = p->kernels;
    while (k && (k->lacks != lacks || strcmp(k->name, name) != 0)) k = k->next;
    if (!k) {
        CHECK(e, strlen(name) < sizeof k->name, LOCI_BAD_ARG,
              "%s: the program has no kernel loci_%s", c->label, name);
        snprintf(whole, sizeof whole, "loci_%s", name);
        const cl_kernel own = cl.clCreateKernel(p->own, whole, &code);
        CHECK(e, code != CL_INVALID_KERNEL_NAME, LOCI_BAD_ARG, "%s: the program has no kernel %s",
              c->label, whole);
        if (code) return failed(c, "clCreateKernel", code, e);
        k = calloc(1, sizeof *k);
        if (!k) cl.clReleaseKernel(own);
        CHECK(e, k, LOCI_NO_MEMORY, "%s: no memory for a kernel", c->label);
        *k = (struct kernel){ .lacks = lacks, .own = own, .next = p->kernels };
        snprintf(k->name, sizeof k->name, "%s", name);
        p->kernels = k;
    }
    *to = k->own;
    return LOCI_OK;
}

/* A pointer that a call does not have is NULL on the device, too. */
static cl_int set_arguments(cl_kernel k, const struct launch *l, const void *const *arrays,
                            size_t count, const char **function)
{
    cl_uint i = 0;
    cl_int code = 0;
    for (; i < count && !code; i++) {
        *function = arrays[i] ? "clSetKernelArgSVMPointer" : "clSetKernelArg";
        code = arrays[i] ? cl.clSetKernelArgSVMPointer(k, i, arrays[i])
                         : cl.clSetKernelArg(k, i, sizeof(cl_mem), NULL);
    }
    if (code) return code;
    *function = "clSetKernelArg";
    code = cl.clSetKernelArg(k, i++, sizeof *l->params, l->params);
    /* OpenCL has no local array of 0 bytes */
    if (!code) code = cl.clSetKernelArg(k, i++, l->shared ? l->shared : 16, NULL);
    return code;
}

/* The caller has the lock. */
static loci_status enqueue(struct opencl *c, struct program *p, const struct launch *l,
                           loci_error *e)
{
    const size_t group[2] = { (size_t)l->threads, 1 };
    const size_t all[2] = { (size_t)(l->groups[0] * (ptrdiff_t)l->threads), (size_t)l->groups[1] };
    const void *const arrays[] = {
#define AT(name) l->arrays->name,
        ARRAYS(AT)
#undef AT
    };
    _Static_assert(COUNT(arrays) <= 32, "struct kernel has a bit for each");
    uint32_t lacks = 0;
    for (size_t i = 0; i < COUNT(arrays); i++) lacks |= (uint32_t)!arrays[i] << i;
    const char *function = NULL;
    cl_kernel k = NULL;
    TRY(find_kernel(c, p, l->kernel, lacks, &k, e));
    cl_int code = set_arguments(k, l, arrays, COUNT(arrays), &function);
    if (!code) {
        function = "clEnqueueNDRangeKernel";
        code = cl.clEnqueueNDRangeKernel(c->queue, k, 2, NULL, all, group, 0, NULL, NULL);
    }
    if (!code) function = "clFlush", code = cl.clFlush(c->queue);
    const bool memory = code == CL_MEM_OBJECT_ALLOCATION_FAILURE || code == CL_OUT_OF_HOST_MEMORY;
    CHECK(e, !code, memory ? LOCI_NO_MEMORY : LOCI_DEVICE,
          "%s: the launch of loci_%s failed: %s() returned %s (%d)", c->label, l->kernel, function,
          error_name(code), code);
    return LOCI_OK;
}
static loci_status opencl_launch(void *state, struct program *p, const struct launch *l,
                                 loci_error *e)
{
    struct opencl *c = state;
    CHECK(e, l->shared <= c->facts.shared, LOCI_UNSUPPORTED,
          "%s: loci_%s needs %zu bytes of local memory, and a work-group has at most %zu", c->label,
          l->kernel, l->shared, c->facts.shared);
    if (l->groups[0] <= 0 || l->groups[1] <= 0) return LOCI_OK;
    lock_acquire(&c->lock);
    const loci_status status = enqueue(c, p, l, e);
    lock_release(&c->lock);
    return status;
}

/* ---- Times ----------------------------------------------------------------------------------- */

/* A queue of a host may take no times.  Then it is waited for, and the host's clock is read. */
static loci_status opencl_mark(void *state, loci_error *e)
{
    struct opencl *c = state;
    if (!c->profiles) {
        TRY(opencl_wait(c, e));
        lock_acquire(&c->lock);
        c->marked = loci_clock_steady();
        lock_release(&c->lock);
        return LOCI_OK;
    }
    cl_event now = NULL;
    const cl_int code = cl.clEnqueueMarkerWithWaitList(c->queue, 0, NULL, &now);
    if (code) return failed(c, "clEnqueueMarkerWithWaitList", code, e);
    lock_acquire(&c->lock);
    const cl_event before = c->mark;
    c->mark = now;
    lock_release(&c->lock);
    if (before) cl.clReleaseEvent(before);
    return LOCI_OK;
}

static cl_int end_of(cl_event event, cl_ulong *nanoseconds)
{
    return cl.clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_END, sizeof *nanoseconds,
                                      nanoseconds, NULL);
}
static loci_status between_events(struct opencl *c, cl_event first, double *seconds, loci_error *e)
{
    cl_event last = NULL;
    cl_ulong from = 0, to = 0;
    const char *function = "clEnqueueMarkerWithWaitList";
    cl_int code = cl.clEnqueueMarkerWithWaitList(c->queue, 0, NULL, &last);
    if (!code) function = "clWaitForEvents", code = cl.clWaitForEvents(1, &last);
    if (!code) function = "clGetEventProfilingInfo", code = end_of(first, &from);
    if (!code) code = end_of(last, &to);
    if (last) cl.clReleaseEvent(last);
    if (code) return failed(c, function, code, e);
    *seconds = to > from ? 1e-9 * (double)(to - from) : 0;
    return LOCI_OK;
}
static loci_status opencl_elapsed(void *state, double *seconds, loci_error *e)
{
    struct opencl *c = state;
    if (!c->profiles) {
        TRY(opencl_wait(c, e));
        lock_acquire(&c->lock);
        *seconds = loci_clock_steady() - c->marked;
        lock_release(&c->lock);
        return LOCI_OK;
    }
    lock_acquire(&c->lock);
    const cl_event first = c->mark;
    if (first) cl.clRetainEvent(first);
    lock_release(&c->lock);
    CHECK(e, first, LOCI_BAD_ARG, "%s: no time was marked", c->label);
    const loci_status status = between_events(c, first, seconds, e);
    cl.clReleaseEvent(first);
    return status;
}

const struct backend loci_gpu_opencl = {
    .name = "opencl",
    .count = opencl_count,
    .facts = opencl_facts,
    .open = opencl_open,
    .adopt = opencl_adopt,
    .close = opencl_close,
    .alloc = opencl_alloc,
    .free = opencl_free,
    .copy = opencl_copy,
    .clear = opencl_clear,
    .wait = opencl_wait,
    .build = opencl_build,
    .unload = opencl_unload,
    .launch = opencl_launch,
    .mark = opencl_mark,
    .elapsed = opencl_elapsed,
};
