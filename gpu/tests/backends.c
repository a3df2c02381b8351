/* SPDX-License-Identifier: MIT */
/* backends.c -- every failure of a driver or compiler is one sentence with the right status, and
 * the cache of programs costs time alone.
 *
 * The drivers are gpu/tests/fake_driver.c, whose path is the argument.  A library is opened once
 * per process, so each trial is a process of its own. */
#define _DEFAULT_SOURCE
#include "device.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "library.h"
#include "program_cache.h"
#include "platform/system.h"
#include "tests/support/harness.h"
#include "tests/support/scratch.h"
#include "util/error.h"

static const char *fake; /* the path of the driver */
static char cache[SCRATCH];

enum step { OPEN, ADOPT, ALLOC, UPLOAD, DOWNLOAD, MOVE, CLEAR, WAIT, BUILD, LAUNCH, MARK, ELAPSED };
static const char *const step_names[] = {
    "open",  "adopt", "alloc", "upload", "download", "move",
    "clear", "wait",  "build", "launch", "mark",     "elapsed"
};

static const struct backend *const backends[] = { &loci_gpu_opencl, &loci_gpu_cuda };
enum { CL, CU };

/* A function of the fake driver that no real one has. */
static void *of_fake(const char *name) { return loci_library_find(loci_library_open(fake), name); }

/* ---- One call after the other ---------------------------------------------------------------- */

/* What the calls work with.  `asks` is what the driver is asked before the step `at`. */
struct session {
    const struct backend *b;
    void *state;
    struct program *program;
    char *memory;
    double seconds;
    loci_error error;
};

static loci_status launch_with(struct session *s, const char *kernel, size_t shared, char *lse)
{
    struct arrays arrays = { .q = s->memory, .lse = lse };
    struct params params = { .dim = 64 };
    const struct launch l = {
        .kernel = kernel,
        .groups = { 3, 2 },
        .threads = THREADS,
        .shared = shared,
        .arrays = &arrays,
        .params = &params,
    };
    return s->b->launch(s->state, s->program, &l, &s->error);
}
static loci_status launch(struct session *s, const char *kernel, size_t shared)
{
    return launch_with(s, kernel, shared, NULL);
}
static loci_status adopt(struct session *s)
{
    struct device_facts facts;
    void *address = of_fake("fake_handle"), *state = NULL;
    void *(*handle)(void);
    memcpy(&handle, &address, sizeof handle);
    const loci_status status = s->b->adopt(handle(), handle(), &state, &facts, &s->error);
    if (!status) s->b->close(state);
    return status;
}

static loci_status take(struct session *s, enum step step)
{
    char data[64] = "some bytes of the host";
    loci_error *e = &s->error;
    void *to = NULL;
    loci_status status;
    switch (step) {
    case OPEN:
        return s->b->open(0, &s->state, e);
    case ADOPT:
        return adopt(s);
    case ALLOC:
        status = s->b->alloc(s->state, sizeof data, &to, e);
        s->memory = to;
        return status;
    case UPLOAD:
        return s->b->copy(s->state, s->memory, data, 32, TO_DEVICE, e);
    case DOWNLOAD:
        return s->b->copy(s->state, data, s->memory, 32, FROM_DEVICE, e);
    case MOVE:
        return s->b->copy(s->state, s->memory + 32, s->memory, 32, ON_DEVICE, e);
    case CLEAR:
        return s->b->clear(s->state, s->memory, 16, e);
    case WAIT:
        return s->b->wait(s->state, e);
    case BUILD:
        return s->b->build(s->state, "#define LINES\n", &s->program, e);
    case LAUNCH:
        return launch(s, "forward", 1000);
    case MARK:
        return s->b->mark(s->state, e);
    case ELAPSED:
        return s->b->elapsed(s->state, &s->seconds, e);
    }
    return LOCI_BAD_ARG;
}
static void finish(struct session *s)
{
    unsetenv("LOCI_FAKE");
    if (s->program) s->b->unload(s->state, s->program);
    if (s->memory) s->b->free(s->state, s->memory);
    if (s->state) s->b->close(s->state);
}

/* A backend that leaves a context behind changes what its host's next call does. */
static void check_contexts(const char *when)
{
    void *address = of_fake("fake_contexts");
    int (*contexts)(void);
    memcpy(&contexts, &address, sizeof contexts);
    CHECK_THAT(contexts() == 0, "%s: %d contexts are left", when, contexts());
}

/* ---- Trials ---------------------------------------------------------------------------------- */

struct trial {
    int backend;
    enum step at;
    const char *asks; /* of the driver from this step on */
    loci_status status;
    const char *says;
};

static const struct trial trials[] = {
    { CL, OPEN, "no-fp64", LOCI_UNSUPPORTED, "lacks double precision" },
    { CL, OPEN, "no-svm", LOCI_UNSUPPORTED, "lacks coarse-grained shared virtual memory" },
    { CL, OPEN, "no-division", LOCI_UNSUPPORTED, "lacks correctly rounded division" },
    { CL, OPEN, "no-denormals,no-fma", LOCI_UNSUPPORTED,
      "opencl:0 (Fake OpenCL device) cannot give the CPU's bits: it lacks denormal numbers, fused "
      "multiply-add" },
    { CL, OPEN, "no-compiler", LOCI_UNSUPPORTED, "lacks a compiler" },
    { CL, OPEN, "clCreateContext=-6", LOCI_NO_MEMORY,
      "clCreateContext() failed with CL_OUT_OF_HO" },
    { CL, OPEN, "clCreateCommandQueue=-5", LOCI_DEVICE,
      "clCreateCommandQueue() failed with CL_OUT" },
    { CL, ADOPT, "out-of-order", LOCI_BAD_ARG, "the queue runs out of order" },
    { CL, ADOPT, "clGetCommandQueueInfo=-36", LOCI_DEVICE, "CL_INVALID_COMMAND_QUEUE (-36)" },
    { CL, ADOPT, "no-fp64", LOCI_UNSUPPORTED, "lacks double precision" },
    { CL, ALLOC, "clSVMAlloc", LOCI_NO_MEMORY, "has no memory for 64 bytes" },
    { CL, UPLOAD, "clEnqueueSVMMemcpy=-5", LOCI_DEVICE, "clEnqueueSVMMemcpy() failed" },
    { CL, DOWNLOAD, "clEnqueueSVMMemcpy=-14", LOCI_DEVICE, "CL_EXEC_STATUS_ERROR" },
    { CL, MOVE, "clEnqueueSVMMemcpy=-4", LOCI_NO_MEMORY, "CL_MEM_OBJECT_ALLOCATION_FAILURE (-4)" },
    { CL, CLEAR, "clEnqueueSVMMemFill=-9999", LOCI_DEVICE, "an error of its own (-9999)" },
    { CL, WAIT, "clFinish=-5", LOCI_DEVICE, "opencl:0 (Fake OpenCL device): clFinish() failed" },
    { CL, BUILD, "clBuildProgram=-11", LOCI_DEVICE,
      "kernels/forward.h(12): error: \"x\" is unknown" },
    { CL, BUILD, "clCreateProgramWithSource=-6", LOCI_NO_MEMORY, "clCreateProgramWithSource()" },
    { CL, LAUNCH, "clCreateKernel=-47", LOCI_DEVICE,
      "clCreateKernel() failed with CL_INVALID_KER" },
    { CL, LAUNCH, "clSetKernelArgSVMPointer=-50", LOCI_DEVICE,
      "clSetKernelArgSVMPointer() returned" },
    { CL, LAUNCH, "clSetKernelArg=-51", LOCI_DEVICE,
      "clSetKernelArg() returned CL_INVALID_ARG_SIZE" },
    { CL, LAUNCH, "clEnqueueNDRangeKernel=-5", LOCI_DEVICE,
      "the launch of loci_forward failed: cl" },
    { CL, LAUNCH, "clFlush=-36", LOCI_DEVICE, "clFlush() returned" },
    { CL, MARK, "clEnqueueMarkerWithWaitList=-5", LOCI_DEVICE, "clEnqueueMarkerWithWaitList()" },
    { CL, ELAPSED, "clWaitForEvents=-14", LOCI_DEVICE, "clWaitForEvents() failed" },
    { CL, ELAPSED, "clGetEventProfilingInfo=-7", LOCI_DEVICE, "CL_PROFILING_INFO_NOT_AVAILABLE" },

    { CU, OPEN, "cuDeviceGet=101", LOCI_DEVICE,
      "cuda:0: cuDeviceGet() failed with CUDA_ERROR_FAKE" },
    { CU, OPEN, "cuDevicePrimaryCtxRetain=2", LOCI_NO_MEMORY,
      "CUDA_ERROR_OUT_OF_MEMORY (2, as the" },
    { CU, OPEN, "cuStreamCreate=46", LOCI_DEVICE, "cuStreamCreate() failed" },
    { CU, OPEN, "cuEventCreate=46", LOCI_DEVICE, "cuEventCreate() failed" },
    { CU, ADOPT, "cuCtxPushCurrent=201", LOCI_DEVICE, "cuCtxPushCurrent() failed" },
    { CU, ADOPT, "cuCtxGetDevice=201", LOCI_DEVICE, "cuCtxGetDevice() failed" },
    { CU, ALLOC, "cuMemAlloc=2", LOCI_NO_MEMORY, "(Fake CUDA device) has no memory for 64 bytes" },
    { CU, ALLOC, "cuMemAlloc=719", LOCI_DEVICE, "cuMemAlloc() failed" },
    { CU, UPLOAD, "cuMemcpyHtoDAsync=719", LOCI_DEVICE, "cuMemcpyHtoDAsync() failed" },
    { CU, DOWNLOAD, "cuMemcpyDtoHAsync=719", LOCI_DEVICE, "cuMemcpyDtoHAsync() failed" },
    { CU, DOWNLOAD, "cuStreamSynchronize=700", LOCI_DEVICE, "cuStreamSynchronize() failed" },
    { CU, MOVE, "cuMemcpyDtoDAsync=719", LOCI_DEVICE, "cuMemcpyDtoDAsync() failed" },
    { CU, CLEAR, "cuMemsetD8Async=719", LOCI_DEVICE, "cuMemsetD8Async() failed" },
    { CU, WAIT, "cuStreamSynchronize=700", LOCI_DEVICE,
      "cuda:0 (Fake CUDA device): cuStreamSynchronize() failed with CUDA_ERROR_FAKE (700, as the "
      "test asked)" },
    { CU, WAIT, "cuCtxPushCurrent=709", LOCI_DEVICE, "cuCtxPushCurrent() failed" },
    { CU, BUILD, "compute=61", LOCI_OK, "" }, /* the device was learnt before */
    { CU, BUILD, "nvrtcCreateProgram=1", LOCI_DEVICE, "NVRTC 13.0 failed with NVRTC_ERROR_FAKE" },
    { CU, BUILD, "nvrtcCompileProgram=6", LOCI_DEVICE,
      "kernels/forward.h(12): error: \"x\" is unkn" },
    { CU, BUILD, "nvrtcGetCUBIN=1", LOCI_DEVICE, "NVRTC_ERROR_FAKE" },
    { CU, BUILD, "cuModuleLoadDataEx=218", LOCI_DEVICE,
      "the driver refuses the program with CUDA_ERROR_FAKE (218, as the test asked): error: no "
      "such "
      "instruction" },
    { CU, BUILD, "cuModuleLoadDataEx=2", LOCI_NO_MEMORY, "cuModuleLoadDataEx() failed" },
    { CU, LAUNCH, "cuModuleGetFunction=999", LOCI_DEVICE, "cuModuleGetFunction() returned" },
    { CU, LAUNCH, "cuFuncGetAttribute=999", LOCI_DEVICE, "cuFuncGetAttribute() returned" },
    { CU, LAUNCH, "cuFuncSetAttribute=999", LOCI_DEVICE, "cuFuncSetAttribute() returned" },
    { CU, LAUNCH, "cuLaunchKernel=701", LOCI_DEVICE,
      "the launch of loci_forward failed: cuLaunchKernel() returned CUDA_ERROR_FAKE (701" },
    { CU, MARK, "cuEventRecord=999", LOCI_DEVICE, "cuEventRecord() failed" },
    { CU, ELAPSED, "cuEventCreate=999", LOCI_DEVICE, "cuEventCreate() failed" },
    { CU, ELAPSED, "cuEventSynchronize=719", LOCI_DEVICE, "cuEventSynchronize() failed" },
    { CU, ELAPSED, "cuEventElapsedTime=999", LOCI_DEVICE, "cuEventElapsedTime() failed" },

    /* Devices that NVRTC does not know. */
    { CU, OPEN, "compute=61", LOCI_OK, "" },
    { CU, OPEN, "compute=121", LOCI_OK, "" },
};

/* Steps before a trial's own one succeed, and so do those after it once the driver works again. */
static void run_trial(const void *arg)
{
    const struct trial *t = arg;
    struct session s = { .b = backends[t->backend] };
    char what[256];
    setenv("LOCI_GPU_CACHE", "off", 1);
    for (int step = OPEN; step <= ELAPSED; step++) {
        snprintf(what, sizeof what, "%s, %s at %s", s.b->name, t->asks, step_names[step]);
        s.error.text[0] = 0;
        if (step == (int)t->at) {
            setenv("LOCI_FAKE", t->asks, 1);
            if (t->status) {
                CHECK_SAYS(take(&s, step), t->status, &s.error, t->says, what);
                CHECK_THAT(strlen(s.error.text) < sizeof s.error.text - 1, "%s: cut", what);
                unsetenv("LOCI_FAKE");
            }
        }
        const loci_status status = take(&s, step);
        if (strstr(t->asks, "compute=61") && t->at == OPEN && step == BUILD) {
            CHECK_SAYS(status, LOCI_UNSUPPORTED, &s.error, "an older NVRTC is needed", what);
            break;
        }
        if (!CHECK_THAT(!status, "%s: %s", what, s.error.text)) break;
    }
    finish(&s);
    check_contexts(t->asks);
}

/* What the driver's library says when it is opened first. */
struct opening {
    int backend;
    const char *library; /* NULL: the fake one */
    const char *asks;
    loci_status status;
    const char *says;
};
static const struct opening openings[] = {
    { CL, "none", "", LOCI_UNSUPPORTED, "OpenCL is switched off by LOCI_OPENCL=none" },
    { CL, "/nowhere/libOpenCL.so", "", LOCI_UNSUPPORTED,
      "LOCI_OPENCL=/nowhere/libOpenCL.so cannot be opened: " },
    { CL, NULL, "clGetPlatformIDs=-6", LOCI_DEVICE,
      "clGetPlatformIDs() failed with CL_OUT_OF_HOST" },
    { CL, NULL, "clGetPlatformIDs=-1001", LOCI_UNSUPPORTED, "OpenCL finds no device" },
    { CL, NULL, "clGetDeviceIDs=-30", LOCI_DEVICE,
      "clGetDeviceIDs() failed with CL_INVALID_VALUE" },
    { CL, NULL, "no-devices", LOCI_UNSUPPORTED, "OpenCL finds no device" },
    { CU, "none", "", LOCI_UNSUPPORTED, "CUDA is switched off by LOCI_CUDA=none" },
    { CU, "/nowhere/libcuda.so", "", LOCI_UNSUPPORTED, "LOCI_CUDA=/nowhere/libcuda.so cannot be" },
    { CU, NULL, "cuInit=803", LOCI_DEVICE, "CUDA: cuInit() failed with CUDA_ERROR_FAKE (803" },
    { CU, NULL, "cuDeviceGetCount=3", LOCI_DEVICE, "cuDeviceGetCount() failed" },
    { CU, NULL, "no-devices", LOCI_UNSUPPORTED, "CUDA finds no device" },
};
static void run_opening(const void *arg)
{
    const struct opening *o = arg;
    const struct backend *b = backends[o->backend];
    struct device_facts facts;
    loci_error e = { 0 };
    void *state = NULL;
    if (o->library) setenv(o->backend == CL ? "LOCI_OPENCL" : "LOCI_CUDA", o->library, 1);
    setenv("LOCI_FAKE", o->asks, 1);
    CHECK_THAT(b->count(&e) == 0, "%s, %s: there is a device", b->name, o->asks);
    CHECK_SAYS(e.status, o->status, &e, o->says, o->asks);
    CHECK_SAYS(b->open(0, &state, &e), o->status, &e, o->says, o->asks);
    CHECK_SAYS(b->facts(0, &facts, &e), o->status, &e, o->says, o->asks);
    if (o->library)
        CHECK_SAYS(b->adopt(&e, &e, &state, &facts, &e), o->status, &e, o->says, o->asks);
}

/* ---- What works ------------------------------------------------------------------------------ */

static void work(const void *arg)
{
    struct session s = { .b = arg };
    struct device_facts facts;
    loci_error *e = &s.error;
    char there[64] = "0123456789 abcdefghijklmnopqrstuvwxyz", back[64];
    CHECK_THAT(s.b->count(e) == 1, "%s: %s", s.b->name, e->text);
    CHECK_THAT(!s.b->facts(0, &facts, e) && strstr(facts.name, "Fake") && *facts.driver
                   && facts.shared && facts.units && facts.memory,
               "%s: %s", s.b->name, facts.name);
    CHECK_SAYS(s.b->open(1, &s.state, e), LOCI_BAD_ARG, e, ":1: ", s.b->name);
    CHECK_SAYS(s.b->open(-1, &s.state, e), LOCI_BAD_ARG, e, ":-1: ", s.b->name);
    for (int step = OPEN; step <= LAUNCH; step++)
        CHECK_THAT(!take(&s, step), "%s at %s: %s", s.b->name, step_names[step], e->text);

    CHECK_THAT(!s.b->copy(s.state, s.memory, there, 32, TO_DEVICE, e), "%s", e->text);
    CHECK_THAT(!s.b->copy(s.state, s.memory + 32, s.memory, 32, ON_DEVICE, e), "%s", e->text);
    CHECK_THAT(!s.b->clear(s.state, s.memory, 8, e), "%s", e->text);
    CHECK_THAT(!s.b->copy(s.state, back, s.memory, 64, FROM_DEVICE, e), "%s", e->text);
    CHECK_THAT(!memcmp(back, "\0\0\0\0\0\0\0\0", 8) && !memcmp(back + 8, there + 8, 24)
                   && !memcmp(back + 32, there, 32),
               "%s: the bytes differ", s.b->name);
    CHECK_THAT(!s.b->copy(s.state, NULL, NULL, 0, TO_DEVICE, e), "nothing to copy: %s", e->text);

    CHECK_THAT(!s.b->mark(s.state, e) && !s.b->elapsed(s.state, &s.seconds, e), "%s", e->text);
    CHECK_THAT(s.seconds > 0.0009 && s.seconds < 0.0021, "%s: %g s", s.b->name, s.seconds);
    for (int i = 0; i < 4; i++)
        CHECK_SAYS(launch_with(&s, "forward", 0, i & 1 ? s.memory : NULL), LOCI_OK, e, "",
                   s.b->name);
    CHECK_SAYS(launch(&s, "row_sums", 0), LOCI_BAD_ARG, e, "no kernel loci_row_sums", s.b->name);
    CHECK_SAYS(launch(&s, "nothing", 0), LOCI_BAD_ARG, e, "no kernel loci_nothing", s.b->name);
    CHECK_SAYS(launch(&s, "forward", 1 << 20), LOCI_UNSUPPORTED, e, "needs 1048576 bytes of ",
               s.b->name);
    finish(&s);
    check_contexts(s.b->name);
}

static void no_compiler(const void *arg)
{
    struct session s = { .b = &loci_gpu_cuda };
    setenv("LOCI_NVRTC", arg, 1);
    setenv("LOCI_GPU_CACHE", "off", 1);
    CHECK_THAT(!take(&s, OPEN), "%s", s.error.text);
    CHECK_SAYS(take(&s, BUILD), LOCI_UNSUPPORTED, &s.error,
               strcmp(arg, "none") ? "LOCI_NVRTC=/nowhere cannot be opened" : "LOCI_NVRTC=none");
    finish(&s);
}
static void adopt_nothing(const void *arg)
{
    struct device_facts facts;
    loci_error e = { 0 };
    void *state = NULL;
    (void)arg;
    CHECK_SAYS(loci_gpu_cuda.adopt(NULL, NULL, &state, &facts, &e), LOCI_BAD_ARG, &e,
               "no context is current");
    CHECK_SAYS(loci_gpu_opencl.adopt(NULL, NULL, &state, &facts, &e), LOCI_BAD_ARG, &e, "not NULL");
}

static void read_logs(void)
{
    static const struct {
        const char *log, *line;
    } list[] = {
        { "", "the compiler's log is empty" },
        { "\n\r\n  ", "the compiler's log is empty" },
        { "one\ntwo\n", "one" },
        { "warning: a\n  b.h(3): Error: c\nerror: d", "b.h(3): Error: c" },
        { "fatal ERROR", "fatal ERROR" },
    };
    char line[32];
    for (int i = 0; i < COUNT(list); i++) {
        loci_log_error(list[i].log, line, sizeof line);
        CHECK_THAT(!strcmp(line, list[i].line), "'%s', not '%s'", line, list[i].line);
    }
    loci_log_error("an error that is longer than the line has room for", line, sizeof line);
    CHECK_THAT(strlen(line) == sizeof line - 1, "'%s'", line);
}

/* ---- The cache ------------------------------------------------------------------------------- */

/* The only program in the cache.  False: there is none, or more. */
static bool only_file(char *path, size_t capacity)
{
    char folder[SCRATCH + 8];
    int n = 0;
    snprintf(folder, sizeof folder, "%s/loci", cache);
    DIR *d = opendir(folder);
    for (const struct dirent *f; d && (f = readdir(d));)
        if (f->d_name[0] != '.') n++, snprintf(path, capacity, "%s/%s", folder, f->d_name);
    if (d) closedir(d);
    return n == 1;
}
static void change_byte(const char *path, long at)
{
    FILE *f = fopen(path, "r+b");
    if (!CHECK_THAT(f, "%s", path)) return;
    fseek(f, at, SEEK_SET);
    const int c = getc(f);
    fseek(f, at, SEEK_SET);
    putc(c ^ 0x10, f);
    fclose(f);
}

/* A file that was changed or cut anywhere is as none. */
static void damage(const void *arg)
{
    const char *const texts[] = { "a", "key" }, *const others[] = { "ak", "ey" };
    const struct program_key key = loci_program_key(texts, 2), other = loci_program_key(others, 2);
    const char data[] = "a program";
    char path[SCRATCH + 300] = "";
    struct stat st;
    size_t bytes = 0;
    (void)arg;
    CHECK_THAT(!loci_program_read(&key, &bytes), "a new cache is not empty");
    loci_program_write(&key, data, sizeof data);
    if (!CHECK_THAT(only_file(path, sizeof path) && !stat(path, &st), "%s", path)) return;
    CHECK_THAT(!loci_program_read(&other, &bytes), "another key");
    for (long at = 0; at < st.st_size; at++) {
        change_byte(path, at);
        CHECK_THAT(!loci_program_read(&key, &bytes), "byte %ld", at);
        change_byte(path, at);
    }
    char *same = loci_program_read(&key, &bytes);
    CHECK_THAT(same && bytes == sizeof data && !memcmp(same, data, bytes), "%zu bytes", bytes);
    free(same);
    for (long n = st.st_size - 1; n >= 0; n--) {
        CHECK_THAT(!truncate(path, n) && !loci_program_read(&key, &bytes), "cut to %ld bytes", n);
    }
    loci_program_write(&key, data, sizeof data);
    free(same = loci_program_read(&key, &bytes));
    CHECK_THAT(same, "it was not replaced");
    setenv("LOCI_GPU_CACHE", "off", 1);
    CHECK_THAT(!loci_program_read(&key, &bytes), "off: read");
    CHECK_THAT(!unlink(path), "%s", path);
    loci_program_write(&key, data, sizeof data);
    CHECK_THAT(!only_file(path, sizeof path), "off: written");
}

/* Builds a program with a compiler that works, or that fails. */
static bool builds(struct session *s, bool compiler, bool stale)
{
    char asks[200];
    snprintf(asks, sizeof asks, "%s%s", compiler ? "" : "clBuildProgram=-11,nvrtcCompileProgram=6",
             stale ? ",stale" : "");
    setenv("LOCI_FAKE", asks, 1);
    const bool good = !take(s, BUILD);
    if (good) s->b->unload(s->state, s->program);
    s->program = NULL;
    return good;
}
static void use_cache(const void *arg)
{
    struct session s = { .b = arg };
    char path[SCRATCH + 300] = "";
    if (!CHECK_THAT(!take(&s, OPEN), "%s", s.error.text)) return;
    CHECK_THAT(!builds(&s, false, false), "%s: without a compiler", s.b->name);
    CHECK_THAT(builds(&s, true, false), "%s: %s", s.b->name, s.error.text);
    CHECK_THAT(builds(&s, false, false), "%s, from the cache: %s", s.b->name, s.error.text);
    if (CHECK_THAT(only_file(path, sizeof path), "%s", path)) change_byte(path, 100);
    CHECK_THAT(!builds(&s, false, false), "%s: from a damaged cache", s.b->name);
    CHECK_THAT(builds(&s, true, false), "%s, damaged: %s", s.b->name, s.error.text);
    CHECK_THAT(builds(&s, false, false), "%s, repaired: %s", s.b->name, s.error.text);
    finish(&s);
}
/* The cache has a program that the driver does not want. */
static void stale_cache(const void *arg)
{
    struct session s = { .b = arg };
    if (!CHECK_THAT(!take(&s, OPEN), "%s", s.error.text)) return;
    CHECK_THAT(builds(&s, true, true), "%s, stale: %s", s.b->name, s.error.text);
    finish(&s);
}
static void bad_folder(const void *arg)
{
    struct session s = { .b = &loci_gpu_cuda };
    setenv("XDG_CACHE_HOME", arg, 1);
    setenv("HOME", "/dev/null", 1);
    if (!CHECK_THAT(!take(&s, OPEN), "%s", s.error.text)) return;
    CHECK_THAT(builds(&s, true, false), "cache at '%s': %s", (const char *)arg, s.error.text);
    CHECK_THAT(!builds(&s, false, false), "cache at '%s'", (const char *)arg);
    finish(&s);
}
/* Writes a program again and again, and never reads anything but it. */
static void share(const void *arg)
{
    const char *const texts[] = { "shared" };
    const struct program_key key = loci_program_key(texts, 1);
    static char data[100000];
    (void)arg;
    for (size_t i = 0; i < sizeof data; i++) data[i] = (char)(i * i >> 7);
    for (int i = 0; i < 100; i++) {
        size_t bytes = 0;
        loci_program_write(&key, data, sizeof data);
        char *read = loci_program_read(&key, &bytes);
        CHECK_THAT(read && bytes == sizeof data && !memcmp(read, data, bytes), "round %d", i);
        free(read);
    }
}

/* ---- Processes ------------------------------------------------------------------------------- */

static void end_in(pid_t child, const char *what)
{
    int code = 0;
    CHECK_THAT(waitpid(child, &code, 0) == child && !code, "%s: exit code %d", what, code);
}
static pid_t start(void (*body)(const void *), const void *arg)
{
    fflush(stdout);
    const pid_t child = fork();
    if (child) return child;
    body(arg);
    /* failures are printed already */
    if (!freopen("/dev/null", "w", stdout)) exit(2);
    exit(harness_end());
}
static void in_child(void (*body)(const void *), const void *arg, const char *what)
{
    end_in(start(body, arg), what);
}
/* An empty cache. */
static void empty_cache(void)
{
    char path[SCRATCH + 300];
    while (only_file(path, sizeof path)) unlink(path);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        printf("usage: backends FAKE_DRIVER\n");
        return 2;
    }
    fake = argv[1];
    scratch(cache, "programs");
    if (!CHECK_THAT(mkdtemp(cache), "%s", cache)) return harness_end();
    setenv("LOCI_OPENCL", fake, 1);
    setenv("LOCI_CUDA", fake, 1);
    setenv("LOCI_NVRTC", fake, 1);
    setenv("XDG_CACHE_HOME", cache, 1);
    unsetenv("LOCI_GPU_CACHE");
    unsetenv("LOCI_FAKE");

    read_logs();
    for (int i = 0; i < COUNT(openings); i++) in_child(run_opening, &openings[i], openings[i].says);
    for (int i = 0; i < COUNT(trials); i++) in_child(run_trial, &trials[i], trials[i].asks);
    in_child(no_compiler, "none", "no compiler");
    in_child(no_compiler, "/nowhere", "no compiler");
    in_child(adopt_nothing, NULL, "adopt");
    in_child(damage, NULL, "damage");
    for (int i = 0; i < COUNT(backends); i++) {
        empty_cache();
        in_child(work, backends[i], backends[i]->name);
        empty_cache();
        in_child(use_cache, backends[i], "cache");
        in_child(stale_cache, backends[i], "stale");
    }
    in_child(bad_folder, "/dev/null", "a cache that is no folder");
    in_child(bad_folder, "relative", "a relative cache");
    empty_cache();
    pid_t children[4];
    for (int i = 0; i < COUNT(children); i++) children[i] = start(share, NULL);
    for (int i = 0; i < COUNT(children); i++) end_in(children[i], "share");

    char path[SCRATCH + 300];
    CHECK_THAT(only_file(path, sizeof path), "files are left aside");
    empty_cache();
    snprintf(path, sizeof path, "%s/loci", cache);
    CHECK_THAT(!rmdir(path) && !rmdir(cache), "%s", cache);
    return harness_end();
}
