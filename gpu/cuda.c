/* SPDX-License-Identifier: MIT */
/* cuda.c -- the backend of CUDA's driver; see device.h.
 *
 * Each call makes the device's context current and restores the thread's own one, so any thread may
 * call.  A kernel gets `struct arrays` and `struct params` by value.
 *
 * NVRTC compiles for the device at hand.  If it is older than the device, it compiles for the
 * newest architecture that it knows, and the driver translates that. */
#include "device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_api.h"
#include "library.h"
#include "program_cache.h"
#include "util/error.h"
#include "util/lock.h"

enum { NOT_NUMBERED = -1, MOST_ARCHITECTURES = 64 };

/* Results are the CPU's bits. */
static const char *const exact[] = { "--fmad=false", "--prec-div=true", "--prec-sqrt=true",
                                     "--ftz=false" };

struct cuda {
    CUdevice device;
    CUcontext context;
    CUstream stream;
    bool adopted; /* context and stream are the host's */
    bool staged;  /* a copy from pageable memory has read it when the driver's call returns */
    struct device_facts facts;
    char label[192];  /* for sentences: "cuda:0 (NAME)" */
    struct lock lock; /* for kernels and the mark */
    CUevent mark;
};

/* Kernels are found by name when they are first launched. */
struct kernel {
    char name[32];
    CUfunction own;
    size_t shared; /* bytes that a launch may ask for */
};
struct program {
    CUmodule own;
    int count;
    struct kernel kernels[MOST_KERNELS];
};

/* ---- The libraries --------------------------------------------------------------------------- */

static struct cuda_api cuda;
static struct once opened = ONCE_INIT;
static struct {
    bool loaded;
    loci_status status; /* why there are no devices */
    char why[400];
    int count;
} found;

static struct nvrtc_api nvrtc;
static struct once compiler_opened = ONCE_INIT;
static struct {
    bool loaded;
    char why[400];
    int major, minor;
    int architectures[MOST_ARCHITECTURES]; /* 90 for sm_90, rising */
    int count;
} compiler;

#if defined _WIN32
static const char *const cuda_files[] = { "nvcuda.dll", NULL };
static const char *const nvrtc_files[] = { "nvrtc64_130_0.dll", "nvrtc64_120_0.dll", NULL };
#else
static const char *const cuda_files[] = { "libcuda.so.1", NULL };
static const char *const nvrtc_files[] = { "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so",
                                           NULL };
#endif
static const struct library_function cuda_functions[] = {
#define ENTRY(name, symbol, parameters) { symbol, offsetof(struct cuda_api, name) },
    CUDA_FUNCTIONS(ENTRY)
#undef ENTRY
};
static const struct library_function nvrtc_functions[] = {
#define ENTRY(name, parameters) { #name, offsetof(struct nvrtc_api, name) },
    NVRTC_FUNCTIONS(ENTRY)
#undef ENTRY
        { "nvrtcGetErrorString", offsetof(struct nvrtc_api, nvrtcGetErrorString) },
};

/* "CUDA_ERROR_LAUNCH_FAILED (719, unspecified launch failure)" */
struct words {
    char text[200];
};
static struct words words_of(CUresult code)
{
    struct words w;
    const char *name = NULL, *says = NULL;
    if (cuda.cuGetErrorName(code, &name) || !name) name = "an error of its own";
    if (cuda.cuGetErrorString(code, &says) || !says) says = "no words";
    snprintf(w.text, sizeof w.text, "%s (%d, %s)", name, (int)code, says);
    return w;
}

static void find_devices(void)
{
    static const struct library library = {
        .what = "CUDA",
        .variable = "LOCI_CUDA",
        .files = cuda_files,
        .hint = "install NVIDIA's driver",
        .functions = cuda_functions,
        .count = COUNT(cuda_functions),
    };
    found.status = LOCI_UNSUPPORTED;
    if (sizeof(void *) != 8) {
        snprintf(found.why, sizeof found.why, "CUDA needs a program of 64 bits");
        return;
    }
    found.loaded = loci_library_load(&library, &cuda, found.why, sizeof found.why);
    if (!found.loaded) return;
    const char *function = "cuInit";
    CUresult code = cuda.cuInit(0);
    if (!code) function = "cuDeviceGetCount", code = cuda.cuDeviceGetCount(&found.count);
    if (code) found.count = 0;
    if (code && code != CUDA_ERROR_NO_DEVICE) {
        found.loaded = false;
        found.status = LOCI_DEVICE;
        snprintf(found.why, sizeof found.why, "CUDA: %s() failed with %s", function,
                 words_of(code).text);
    } else if (!found.count) {
        snprintf(found.why, sizeof found.why,
                 "CUDA finds no device; CUDA_VISIBLE_DEVICES may hide one");
    }
}

static int cuda_count(loci_error *why)
{
    once_run(&opened, find_devices);
    if (!found.count) loci_fail(why, found.status, "%s", found.why);
    return found.count;
}

static void find_compiler(void)
{
    static const struct library library = {
        .what = "NVRTC, the compiler of CUDA",
        .variable = "LOCI_NVRTC",
        .files = nvrtc_files,
        .hint = "pip install nvidia-cuda-nvrtc, and set LOCI_NVRTC to its file",
        .functions = nvrtc_functions,
        .count = COUNT(nvrtc_functions),
    };
    int n = 0;
    if (!loci_library_load(&library, &nvrtc, compiler.why, sizeof compiler.why)) return;
    compiler.loaded = true;
    nvrtc.nvrtcVersion(&compiler.major, &compiler.minor);
    if (!nvrtc.nvrtcGetNumSupportedArchs(&n) && n > 0 && n <= MOST_ARCHITECTURES
        && !nvrtc.nvrtcGetSupportedArchs(compiler.architectures))
        compiler.count = n;
}

/* ---- Calls in the device's context ----------------------------------------------------------- */

static loci_status failed(const struct cuda *c, const char *function, CUresult code, loci_error *e)
{
    return loci_fail(e, code == CUDA_ERROR_OUT_OF_MEMORY ? LOCI_NO_MEMORY : LOCI_DEVICE,
                     "%s: %s() failed with %s", c->label, function, words_of(code).text);
}
static loci_status enter(const struct cuda *c, loci_error *e)
{
    const CUresult code = cuda.cuCtxPushCurrent(c->context);
    return code ? failed(c, "cuCtxPushCurrent", code, e) : LOCI_OK;
}
/* The thread's own context again, and the sentence of a call that failed. */
static loci_status leave(const struct cuda *c, const char *function, CUresult code, loci_error *e)
{
    CUcontext ignored;
    cuda.cuCtxPopCurrent(&ignored);
    return code ? failed(c, function, code, e) : LOCI_OK;
}

/* ---- What a device is ------------------------------------------------------------------------ */

static int attribute(const struct cuda *c, CUdevice_attribute what)
{
    int x = 0;
    return cuda.cuDeviceGetAttribute(&x, what, c->device) ? 0 : x;
}

static void learn(struct cuda *c, int number)
{
    struct device_facts *f = &c->facts;
    int version = 0;
    size_t memory = 0;
    if (cuda.cuDeviceGetName(f->name, (int)sizeof f->name, c->device))
        snprintf(f->name, sizeof f->name, "unknown");
    f->name[sizeof f->name - 1] = 0;
    cuda.cuDriverGetVersion(&version);
    snprintf(f->driver, sizeof f->driver, "CUDA %d.%d", version / 1000, version % 1000 / 10);
    cuda.cuDeviceTotalMem(&memory, c->device);
    f->memory = memory;
    f->units = attribute(c, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    f->shared = (size_t)attribute(c, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    f->compute = 10 * attribute(c, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
               + attribute(c, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    c->staged = !attribute(c, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES);
    if (number == NOT_NUMBERED) snprintf(c->label, sizeof c->label, "cuda (%s)", f->name);
    else snprintf(c->label, sizeof c->label, "cuda:%d (%s)", number, f->name);
}

static loci_status numbered(int number, struct cuda *c, loci_error *e)
{
    const int n = cuda_count(e);
    if (!n) return found.status;
    CHECK(e, number >= 0 && number < n, LOCI_BAD_ARG,
          "there is no cuda:%d: CUDA devices are cuda:0 to cuda:%d", number, n - 1);
    *c = (struct cuda){ 0 };
    snprintf(c->label, sizeof c->label, "cuda:%d", number);
    const CUresult code = cuda.cuDeviceGet(&c->device, number);
    if (code) return failed(c, "cuDeviceGet", code, e);
    learn(c, number);
    return LOCI_OK;
}

static loci_status cuda_facts(int number, struct device_facts *to, loci_error *e)
{
    struct cuda c;
    *to = (struct device_facts){ 0 };
    TRY(numbered(number, &c, e));
    *to = c.facts;
    return LOCI_OK;
}

/* ---- Opening --------------------------------------------------------------------------------- */

static void cuda_close(void *state)
{
    struct cuda *c = state;
    if (!c) return;
    if (c->context && !enter(c, NULL)) {
        if (c->mark) cuda.cuEventDestroy(c->mark);
        if (c->stream && !c->adopted) {
            cuda.cuStreamSynchronize(c->stream);
            cuda.cuStreamDestroy(c->stream);
        }
        leave(c, "", CUDA_SUCCESS, NULL);
    }
    if (c->context && !c->adopted) cuda.cuDevicePrimaryCtxRelease(c->device);
    lock_close(&c->lock);
    free(c);
}

static loci_status make_event(struct cuda *c, loci_error *e)
{
    TRY(enter(c, e));
    return leave(c, "cuEventCreate", cuda.cuEventCreate(&c->mark, CU_EVENT_DEFAULT), e);
}
/* The stream waits for the default stream of a host, and that one for it. */
static loci_status make_stream(struct cuda *c, loci_error *e)
{
    TRY(enter(c, e));
    return leave(c, "cuStreamCreate", cuda.cuStreamCreate(&c->stream, CU_STREAM_DEFAULT), e);
}
static loci_status keep(const struct cuda *c, struct cuda **to, loci_error *e)
{
    *to = malloc(sizeof **to);
    CHECK(e, *to, LOCI_NO_MEMORY, "%s: no memory for its state", c->label);
    **to = *c;
    lock_open(&(*to)->lock);
    return LOCI_OK;
}

static loci_status cuda_open(int number, void **state, loci_error *e)
{
    struct cuda known, *c;
    TRY(numbered(number, &known, e));
    TRY(keep(&known, &c, e));
    const CUresult code = cuda.cuDevicePrimaryCtxRetain(&c->context, c->device);
    loci_status status = LOCI_OK;
    if (code) {
        c->context = NULL;
        status = failed(c, "cuDevicePrimaryCtxRetain", code, e);
    }
    if (!status) status = make_stream(c, e);
    if (!status) status = make_event(c, e);
    if (status) cuda_close(c);
    else *state = c;
    return status;
}

/* A context of NULL is the one that is current, and a stream of NULL the default stream. */
static loci_status cuda_adopt(void *context, void *stream, void **state, struct device_facts *to,
                              loci_error *e)
{
    struct cuda known = { .context = context, .stream = stream, .adopted = true, .label = "cuda" };
    struct cuda *c;
    once_run(&opened, find_devices);
    CHECK(e, found.loaded, found.status, "%s", found.why);
    if (!context) {
        const CUresult code = cuda.cuCtxGetCurrent(&known.context);
        if (code) return failed(&known, "cuCtxGetCurrent", code, e);
        CHECK(e, known.context, LOCI_BAD_ARG,
              "cuda: no context is current in this thread, and none was given");
    }
    TRY(enter(&known, e));
    TRY(leave(&known, "cuCtxGetDevice", cuda.cuCtxGetDevice(&known.device), e));
    learn(&known, NOT_NUMBERED);
    TRY(keep(&known, &c, e));
    const loci_status status = make_event(c, e);
    if (status) {
        cuda_close(c);
        return status;
    }
    *to = c->facts;
    *state = c;
    return LOCI_OK;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static CUdeviceptr on_device(const void *at) { return (CUdeviceptr)(uintptr_t)at; }

static loci_status cuda_alloc(void *state, size_t bytes, void **to, loci_error *e)
{
    struct cuda *c = state;
    CUdeviceptr at = 0;
    TRY(enter(c, e));
    const CUresult code = cuda.cuMemAlloc(&at, bytes ? bytes : 1);
    const loci_status status = leave(c, "cuMemAlloc", code, e);
    CHECK(e, code != CUDA_ERROR_OUT_OF_MEMORY, LOCI_NO_MEMORY, "%s has no memory for %zu bytes",
          c->label, bytes);
    *to = (void *)(uintptr_t)at;
    return status;
}
/* The driver waits for what may use the memory. */
static void cuda_free(void *state, void *at)
{
    struct cuda *c = state;
    if (!at || enter(c, NULL)) return;
    leave(c, "cuMemFree", cuda.cuMemFree(on_device(at)), NULL);
}

/* The driver copies pageable memory before it returns, but a device may read pinned memory later.
 * The driver knows only the addresses of memory that is not pageable. */
static bool reads_later(const struct cuda *c, const void *from)
{
    unsigned type = 0;
    return !c->staged
        || !cuda.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, on_device(from));
}
static loci_status cuda_copy(void *state, void *to, const void *from, size_t bytes,
                             enum direction d, loci_error *e)
{
    struct cuda *c = state;
    const char *function = NULL;
    CUresult code = CUDA_SUCCESS;
    bool wait = false;
    if (!bytes) return LOCI_OK;
    TRY(enter(c, e));
    switch (d) {
    case TO_DEVICE:
        function = "cuMemcpyHtoDAsync";
        code = cuda.cuMemcpyHtoDAsync(on_device(to), from, bytes, c->stream);
        wait = !code && reads_later(c, from);
        break;
    case FROM_DEVICE:
        function = "cuMemcpyDtoHAsync";
        code = cuda.cuMemcpyDtoHAsync(to, on_device(from), bytes, c->stream);
        wait = true;
        break;
    case ON_DEVICE:
        function = "cuMemcpyDtoDAsync";
        code = cuda.cuMemcpyDtoDAsync(on_device(to), on_device(from), bytes, c->stream);
        break;
    }
    if (!code && wait) function = "cuStreamSynchronize", code = cuda.cuStreamSynchronize(c->stream);
    return leave(c, function, code, e);
}

static loci_status cuda_clear(void *state, void *at, size_t bytes, loci_error *e)
{
    struct cuda *c = state;
    if (!bytes) return LOCI_OK;
    TRY(enter(c, e));
    return leave(c, "cuMemsetD8Async", cuda.cuMemsetD8Async(on_device(at), 0, bytes, c->stream), e);
}

static loci_status cuda_wait(void *state, loci_error *e)
{
    struct cuda *c = state;
    TRY(enter(c, e));
    return leave(c, "cuStreamSynchronize", cuda.cuStreamSynchronize(c->stream), e);
}

/* ---- The compiler ---------------------------------------------------------------------------- */

struct image {
    void *data;
    size_t bytes;
};

/* The option for a device: its own architecture, or the newest that the compiler knows. */
static loci_status architecture(const struct cuda *c, char *option, size_t capacity, bool *own,
                                loci_error *e)
{
    const int wanted = c->facts.compute;
    int best = compiler.count ? 0 : wanted; /* it does not say: it is asked */
    for (int i = 0; i < compiler.count; i++)
        if (compiler.architectures[i] <= wanted && compiler.architectures[i] > best)
            best = compiler.architectures[i];
    CHECK(e, best, LOCI_UNSUPPORTED,
          "%s has the architecture sm_%d, and NVRTC %d.%d compiles for sm_%d and newer: an older "
          "NVRTC is needed",
          c->label, wanted, compiler.major, compiler.minor, compiler.architectures[0]);
    *own = best == wanted;
    snprintf(option, capacity, "--gpu-architecture=%s_%d", *own ? "sm" : "compute", best);
    return LOCI_OK;
}

static loci_status not_compiled(const struct cuda *c, nvrtcProgram p, nvrtcResult code,
                                loci_error *e)
{
    size_t bytes = 0;
    char line[300] = "", *log = NULL;
    if (!nvrtc.nvrtcGetProgramLogSize(p, &bytes) && (log = calloc(bytes + 1, 1)))
        nvrtc.nvrtcGetProgramLog(p, log);
    loci_log_error(log ? log : "", line, sizeof line);
    free(log);
    return loci_fail(e, LOCI_DEVICE, "%s: NVRTC %d.%d failed with %s: %s", c->label, compiler.major,
                     compiler.minor, nvrtc.nvrtcGetErrorString(code), line);
}

/* What the compiler made: a cubin, or text that the driver translates. */
static nvrtcResult take_image(nvrtcProgram p, bool own, struct image *to)
{
    nvrtcResult code =
        own ? nvrtc.nvrtcGetCUBINSize(p, &to->bytes) : nvrtc.nvrtcGetPTXSize(p, &to->bytes);
    if (code) return code;
    to->data = malloc(to->bytes + 1);
    if (!to->data) return NVRTC_ERROR_OUT_OF_MEMORY;
    ((char *)to->data)[to->bytes] = 0;
    code = own ? nvrtc.nvrtcGetCUBIN(p, to->data) : nvrtc.nvrtcGetPTX(p, to->data);
    return code;
}

static loci_status compile(const struct cuda *c, const char *lines, struct image *to, loci_error *e)
{
    char option[64];
    bool own = false;
    once_run(&compiler_opened, find_compiler);
    CHECK(e, compiler.loaded, LOCI_UNSUPPORTED, "%s: %s", c->label, compiler.why);
    TRY(architecture(c, option, sizeof option, &own, e));
    const char *options[COUNT(exact) + 1] = { option };
    for (int i = 0; i < COUNT(exact); i++) options[i + 1] = exact[i];

    const size_t before = strlen(lines), after = strlen(loci_gpu_source);
    char *source = malloc(before + after + 1);
    CHECK(e, source, LOCI_NO_MEMORY, "%s: no memory for a program's source", c->label);
    memcpy(source, lines, before);
    memcpy(source + before, loci_gpu_source, after + 1);

    nvrtcProgram p = NULL;
    nvrtcResult code = nvrtc.nvrtcCreateProgram(&p, source, "loci.cu", 0, NULL, NULL);
    if (!code) code = nvrtc.nvrtcCompileProgram(p, COUNT(options), options);
    if (!code) code = take_image(p, own, to);
    const loci_status status = code ? not_compiled(c, p, code, e) : LOCI_OK;
    if (p) nvrtc.nvrtcDestroyProgram(&p);
    free(source);
    return status;
}

/* ---- Programs -------------------------------------------------------------------------------- */

static struct program_key key_of(const struct cuda *c, const char *lines)
{
    char number[32];
    snprintf(number, sizeof number, "sm_%d", c->facts.compute);
    const char *const texts[] = {
        "cuda", exact[0],      exact[1],        exact[2], exact[3],
        number, c->facts.name, c->facts.driver, lines,    loci_gpu_source
    };
    return loci_program_key(texts, COUNT(texts));
}

static loci_status load(const struct cuda *c, const struct image *image, CUmodule *to,
                        loci_error *e)
{
    char log[2048] = "", line[200];
    CUjit_option options[] = { CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES };
    void *values[] = { log, (void *)(uintptr_t)(sizeof log - 1) };
    TRY(enter(c, e));
    const CUresult code = cuda.cuModuleLoadDataEx(to, image->data, COUNT(options), options, values);
    const loci_status status = leave(c, "cuModuleLoadDataEx", code, e);
    if (status == LOCI_DEVICE && *log) {
        loci_log_error(log, line, sizeof line);
        loci_fail(e, status, "%s: the driver refuses the program with %s: %s", c->label,
                  words_of(code).text, line);
    }
    return status;
}

static void cuda_unload(void *state, struct program *p)
{
    struct cuda *c = state;
    if (!p) return;
    if (p->own && !enter(c, NULL)) {
        cuda.cuStreamSynchronize(c->stream);
        leave(c, "cuModuleUnload", cuda.cuModuleUnload(p->own), NULL);
    }
    free(p);
}

/* Loads the program from the cache, or compiles it.  A program of the cache that the driver does
 * not want is compiled again. */
static loci_status get_module(const struct cuda *c, const char *lines, CUmodule *to, loci_error *e)
{
    const struct program_key key = key_of(c, lines);
    struct image image = { 0 };
    image.data = loci_program_read(&key, &image.bytes);
    const bool recalled = image.data && !load(c, &image, to, NULL);
    if (!recalled) {
        free(image.data);
        image = (struct image){ 0 };
        loci_status status = compile(c, lines, &image, e);
        if (!status) status = load(c, &image, to, e);
        if (!status) loci_program_write(&key, image.data, image.bytes);
        free(image.data);
        return status;
    }
    free(image.data);
    return LOCI_OK;
}

static loci_status cuda_build(void *state, const char *lines, struct program **to, loci_error *e)
{
    struct cuda *c = state;
    struct program *p = calloc(1, sizeof *p);
    CHECK(e, p, LOCI_NO_MEMORY, "%s: no memory for a program", c->label);
    const loci_status status = get_module(c, lines, &p->own, e);
    if (status) free(p);
    else *to = p;
    return status;
}

/* ---- Launches -------------------------------------------------------------------------------- */

/* Looks for a kernel in the program, and lets it use all the shared memory of a block. */
static CUresult prepare(const struct cuda *c, const struct program *p, struct kernel *k,
                        const char *whole, const char **function)
{
    int fixed = 0;
    *function = "cuModuleGetFunction";
    CUresult code = cuda.cuModuleGetFunction(&k->own, p->own, whole);
    if (code) return code;
    *function = "cuFuncGetAttribute";
    code = cuda.cuFuncGetAttribute(&fixed, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, k->own);
    if (code) return code;
    const int most = (int)c->facts.shared - fixed;
    k->shared = (size_t)most;
    *function = "cuFuncSetAttribute";
    return cuda.cuFuncSetAttribute(k->own, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most);
}
/* The caller has the lock, and the context is current. */
static CUresult find_kernel(const struct cuda *c, struct program *p, const char *name,
                            const struct kernel **to, const char **function)
{
    char whole[64];
    for (int i = 0; i < p->count; i++)
        if (!strcmp(p->kernels[i].name, name)) {
            *to = &p->kernels[i];
            return CUDA_SUCCESS;
        }
    if (p->count == MOST_KERNELS) return CUDA_ERROR_NOT_FOUND;
    struct kernel *k = &p->kernels[p->count];
    snprintf(k->name, sizeof k->name, "%s", name);
    snprintf(whole, sizeof whole, "loci_%s", name);
    const CUresult code = prepare(c, p, k, whole, function);
    if (code) return code;
    p->count++;
    *to = k;
    return CUDA_SUCCESS;
}

static CUresult start(const struct cuda *c, const struct kernel *k, const struct launch *l)
{
    void *parameters[] = { (void *)l->arrays, (void *)l->params };
    return cuda.cuLaunchKernel(k->own, (unsigned)l->groups[0], (unsigned)l->groups[1], 1,
                               (unsigned)l->threads, 1, 1, (unsigned)l->shared, c->stream,
                               parameters, NULL);
}

static loci_status cuda_launch(void *state, struct program *p, const struct launch *l,
                               loci_error *e)
{
    struct cuda *c = state;
    const struct kernel *k = NULL;
    const char *function = "";
    TRY(enter(c, e));
    lock_acquire(&c->lock);
    CUresult code = find_kernel(c, p, l->kernel, &k, &function);
    lock_release(&c->lock);
    const bool fits = !code && l->shared <= k->shared;
    if (fits && l->groups[0] > 0 && l->groups[1] > 0)
        function = "cuLaunchKernel", code = start(c, k, l);
    leave(c, function, CUDA_SUCCESS, NULL);

    CHECK(e, code != CUDA_ERROR_NOT_FOUND, LOCI_BAD_ARG, "%s: the program has no kernel loci_%s",
          c->label, l->kernel);
    CHECK(e, !code, code == CUDA_ERROR_OUT_OF_MEMORY ? LOCI_NO_MEMORY : LOCI_DEVICE,
          "%s: the launch of loci_%s failed: %s() returned %s", c->label, l->kernel, function,
          words_of(code).text);
    CHECK(e, fits, LOCI_UNSUPPORTED,
          "%s: loci_%s needs %zu bytes of shared memory, and a block has at most %zu", c->label,
          l->kernel, l->shared, k->shared);
    return LOCI_OK;
}

/* ---- Times ----------------------------------------------------------------------------------- */

static loci_status cuda_mark(void *state, loci_error *e)
{
    struct cuda *c = state;
    TRY(enter(c, e));
    lock_acquire(&c->lock);
    const CUresult code = cuda.cuEventRecord(c->mark, c->stream);
    lock_release(&c->lock);
    return leave(c, "cuEventRecord", code, e);
}

static loci_status cuda_elapsed(void *state, double *seconds, loci_error *e)
{
    struct cuda *c = state;
    CUevent now = NULL;
    float milliseconds = 0;
    TRY(enter(c, e));
    const char *function = "cuEventCreate";
    CUresult code = cuda.cuEventCreate(&now, CU_EVENT_DEFAULT);
    if (!code) function = "cuEventRecord", code = cuda.cuEventRecord(now, c->stream);
    if (!code) function = "cuEventSynchronize", code = cuda.cuEventSynchronize(now);
    lock_acquire(&c->lock);
    if (!code) {
        function = "cuEventElapsedTime";
        code = cuda.cuEventElapsedTime(&milliseconds, c->mark, now);
    }
    lock_release(&c->lock);
    if (now) cuda.cuEventDestroy(now);
    *seconds = 1e-3 * (double)milliseconds;
    return leave(c, function, code, e);
}

const struct backend loci_gpu_cuda = {
    .name = "cuda",
    .count = cuda_count,
    .facts = cuda_facts,
    .open = cuda_open,
    .adopt = cuda_adopt,
    .close = cuda_close,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .copy = cuda_copy,
    .clear = cuda_clear,
    .wait = cuda_wait,
    .build = cuda_build,
    .unload = cuda_unload,
    .launch = cuda_launch,
    .mark = cuda_mark,
    .elapsed = cuda_elapsed,
};
