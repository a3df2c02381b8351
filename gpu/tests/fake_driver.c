/* SPDX-License-Identifier: MIT */
/* fake_driver.c -- a library that acts as the drivers of OpenCL and CUDA and as NVRTC, with one
 * device each, and fails on demand.  Device memory is that of the host, launches do nothing, and a
 * compiled program is its source.
 *
 * The environment variable LOCI_FAKE has words with commas between them:
 *
 *     FUNCTION=CODE   that function fails with that number
 *     no-devices      the driver has none
 *     no-fp64  no-svm  no-division  no-denormals  no-fma  no-compiler
 *                     the OpenCL device lacks it
 *     compute=NN      the CUDA device is sm_NN; else sm_90
 *     stale           the driver refuses programs of a cache
 *     loops           launches of CUDA run: the C compiler translates the program (loops.h)
 *     out-of-order    a queue of OpenCL is */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aligned.h"
#include "cuda_api.h"
#include "loops.h"
#include "opencl_api.h"

#if defined _WIN32
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

/* The words of LOCI_FAKE: is this one there?  *code: the number behind it. */
static bool asked(const char *word, int *code)
{
    const char *at = getenv("LOCI_FAKE");
    const size_t n = strlen(word);
    while (at && *at) {
        const size_t all = strcspn(at, ",");
        if (!strncmp(at, word, n) && (n == all || at[n] == '=')) {
            *code = n == all ? 1 : atoi(at + n + 1);
            return true;
        }
        at += all + (at[all] == ',');
    }
    return false;
}
static bool lacks(const char *word)
{
    int ignored;
    return asked(word, &ignored);
}
/* The first line of each function that can fail. */
#define MAY_FAIL(function) \
    do { \
        int code_; \
        if (asked(function, &code_)) return code_; \
    } while (0)

/* Some object that a handle points to. */
static int object;
#define HANDLE(type) ((type)(void *)&object)
EXPORT void *fake_handle(void);
void *fake_handle(void) { return &object; }

static const char build_log[] = "in the kernels:\nkernels/forward.h(12): error: \"x\" is unknown\n"
                                "1 error detected\n";

/* The source of the program that was compiled last. */
static char *program;
static size_t program_bytes;
static bool keep_program(const char *first, const char *second)
{
    free(program);
    program_bytes = strlen(first) + strlen(second) + 1;
    program = malloc(program_bytes);
    if (program) snprintf(program, program_bytes, "%s%s", first, second);
    return program;
}

/* ---- CUDA ------------------------------------------------------------------------------------ */

/* Prototypes of all functions, so that none differs from what the backend expects. */
#define PROTOTYPE(name, symbol, parameters) EXPORT CUresult name parameters;
#define cuDeviceTotalMem cuDeviceTotalMem_v2
#define cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2
#define cuCtxPushCurrent cuCtxPushCurrent_v2
#define cuCtxPopCurrent cuCtxPopCurrent_v2
#define cuStreamDestroy cuStreamDestroy_v2
#define cuMemAlloc cuMemAlloc_v2
#define cuMemFree cuMemFree_v2
#define cuMemcpyHtoDAsync cuMemcpyHtoDAsync_v2
#define cuMemcpyDtoHAsync cuMemcpyDtoHAsync_v2
#define cuMemcpyDtoDAsync cuMemcpyDtoDAsync_v2
#define cuEventDestroy cuEventDestroy_v2
CUDA_FUNCTIONS(PROTOTYPE)
#undef PROTOTYPE

/* Contexts that this library's calls made current.  A backend leaves none behind. */
static _Thread_local int current;
EXPORT int fake_contexts(void);
int fake_contexts(void) { return current; }

CUresult cuInit(unsigned flags)
{
    (void)flags;
    MAY_FAIL("cuInit");
    return lacks("no-devices") ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}
CUresult cuDriverGetVersion(int *version)
{
    *version = 13000;
    return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult code, const char **name)
{
    *name = code == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE";
    return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult code, const char **words)
{
    (void)code;
    *words = "as the test asked";
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int *count)
{
    MAY_FAIL("cuDeviceGetCount");
    *count = 1;
    return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice *device, int number)
{
    MAY_FAIL("cuDeviceGet");
    *device = number;
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char *name, int capacity, CUdevice device)
{
    (void)device;
    snprintf(name, (size_t)capacity, "Fake CUDA device");
    return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device)
{
    (void)device;
    *bytes = (size_t)1 << 30;
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int *x, CUdevice_attribute what, CUdevice device)
{
    int compute = 90;
    (void)device;
    asked("compute", &compute);
    *x = what == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR          ? compute / 10
       : what == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR          ? compute % 10
       : what == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT              ? 132
       : what == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN ? 227 << 10
                                                                       : 0;
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    (void)device;
    MAY_FAIL("cuDevicePrimaryCtxRetain");
    *context = HANDLE(CUcontext);
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    (void)device;
    return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext *context)
{
    MAY_FAIL("cuCtxGetCurrent");
    *context = current ? HANDLE(CUcontext) : NULL;
    return CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent(CUcontext context)
{
    (void)context;
    MAY_FAIL("cuCtxPushCurrent");
    current++;
    return CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent(CUcontext *context)
{
    current--;
    *context = HANDLE(CUcontext);
    return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice *device)
{
    MAY_FAIL("cuCtxGetDevice");
    *device = 0;
    return CUDA_SUCCESS;
}
CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    (void)flags;
    MAY_FAIL("cuStreamCreate");
    *stream = HANDLE(CUstream);
    return CUDA_SUCCESS;
}
CUresult cuStreamDestroy(CUstream stream)
{
    (void)stream;
    return CUDA_SUCCESS;
}
CUresult cuStreamSynchronize(CUstream stream)
{
    (void)stream;
    MAY_FAIL("cuStreamSynchronize");
    return CUDA_SUCCESS;
}
static void *host(CUdeviceptr at) { return (void *)(uintptr_t)at; }
CUresult cuMemAlloc(CUdeviceptr *to, size_t bytes)
{
    MAY_FAIL("cuMemAlloc");
    *to = (CUdeviceptr)(uintptr_t)aligned_new(bytes);
    return *to ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuMemFree(CUdeviceptr at)
{
    aligned_free(host(at));
    return CUDA_SUCCESS;
}
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    (void)stream;
    MAY_FAIL("cuMemcpyHtoDAsync");
    memcpy(host(to), from, bytes);
    return CUDA_SUCCESS;
}
CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    (void)stream;
    MAY_FAIL("cuMemcpyDtoHAsync");
    memcpy(to, host(from), bytes);
    return CUDA_SUCCESS;
}
CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    (void)stream;
    MAY_FAIL("cuMemcpyDtoDAsync");
    memcpy(host(to), host(from), bytes);
    return CUDA_SUCCESS;
}
CUresult cuMemsetD8Async(CUdeviceptr at, unsigned char byte, size_t bytes, CUstream stream)
{
    (void)stream;
    MAY_FAIL("cuMemsetD8Async");
    memset(host(at), byte, bytes);
    return CUDA_SUCCESS;
}
/* All memory is pageable. */
CUresult cuPointerGetAttribute(void *to, CUpointer_attribute what, CUdeviceptr at)
{
    (void)to, (void)what, (void)at;
    return 1;
}
CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned n, CUjit_option *options,
                            void **values)
{
    static const char log[] = "error: no such instruction\n";
    int code = 200;
    if (asked("cuModuleLoadDataEx", &code) || (lacks("stale") && !program)) {
        for (unsigned i = 0; i < n; i++)
            if (options[i] == CU_JIT_ERROR_LOG_BUFFER) memcpy(values[i], log, sizeof log);
        return code;
    }
    *module = lacks("loops") ? (CUmodule)loops_compile(image) : HANDLE(CUmodule);
    return image && *module ? CUDA_SUCCESS : 1;
}
CUresult cuModuleUnload(CUmodule module)
{
    if (lacks("loops")) loops_close((struct loops *)module);
    return CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction *kernel, CUmodule module, const char *name)
{
    MAY_FAIL("cuModuleGetFunction");
    if (lacks("loops")) {
        *kernel = (CUfunction)loops_kernel((struct loops *)module, name);
        return *kernel ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
    }
    if (strcmp(name, "loci_forward")) return CUDA_ERROR_NOT_FOUND;
    *kernel = HANDLE(CUfunction);
    return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int *x, CUfunction_attribute what, CUfunction kernel)
{
    (void)what, (void)kernel;
    MAY_FAIL("cuFuncGetAttribute");
    *x = 1024;
    return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction kernel, CUfunction_attribute what, int x)
{
    (void)kernel, (void)what, (void)x;
    MAY_FAIL("cuFuncSetAttribute");
    return CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned x, unsigned y, unsigned z, unsigned shared, CUstream stream,
                        void **parameters, void **extra)
{
    (void)grid_y, (void)grid_z, (void)x, (void)y, (void)z, (void)stream, (void)extra;
    MAY_FAIL("cuLaunchKernel");
    if (!lacks("loops")) return CUDA_SUCCESS;
    return loops_run((const struct loops_kernel *)kernel, (int)grid_x, shared, parameters[0],
                     parameters[1])
             ? CUDA_SUCCESS
             : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    (void)flags;
    MAY_FAIL("cuEventCreate");
    *event = HANDLE(CUevent);
    return CUDA_SUCCESS;
}
CUresult cuEventDestroy(CUevent event)
{
    (void)event;
    return CUDA_SUCCESS;
}
CUresult cuEventRecord(CUevent event, CUstream stream)
{
    (void)event, (void)stream;
    MAY_FAIL("cuEventRecord");
    return CUDA_SUCCESS;
}
CUresult cuEventSynchronize(CUevent event)
{
    (void)event;
    MAY_FAIL("cuEventSynchronize");
    return CUDA_SUCCESS;
}
CUresult cuEventElapsedTime(float *milliseconds, CUevent first, CUevent last)
{
    (void)first, (void)last;
    MAY_FAIL("cuEventElapsedTime");
    *milliseconds = 2;
    return CUDA_SUCCESS;
}

/* ---- NVRTC ----------------------------------------------------------------------------------- */

#define PROTOTYPE(name, parameters) EXPORT nvrtcResult name parameters;
NVRTC_FUNCTIONS(PROTOTYPE)
#undef PROTOTYPE
EXPORT const char *nvrtcGetErrorString(nvrtcResult code);

const char *nvrtcGetErrorString(nvrtcResult code)
{
    (void)code;
    return "NVRTC_ERROR_FAKE";
}
nvrtcResult nvrtcVersion(int *major, int *minor)
{
    *major = 13, *minor = 0;
    return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetNumSupportedArchs(int *count)
{
    *count = 3;
    return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetSupportedArchs(int *list)
{
    list[0] = 75, list[1] = 90, list[2] = 100;
    return NVRTC_SUCCESS;
}
nvrtcResult nvrtcCreateProgram(nvrtcProgram *to, const char *source, const char *name, int headers,
                               const char *const *texts, const char *const *names)
{
    (void)name, (void)headers, (void)texts, (void)names;
    MAY_FAIL("nvrtcCreateProgram");
    *to = HANDLE(nvrtcProgram);
    return keep_program("", source) ? NVRTC_SUCCESS : NVRTC_ERROR_OUT_OF_MEMORY;
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram *p)
{
    *p = NULL;
    return NVRTC_SUCCESS;
}
nvrtcResult nvrtcCompileProgram(nvrtcProgram p, int n, const char *const *options)
{
    (void)p, (void)n, (void)options;
    MAY_FAIL("nvrtcCompileProgram");
    return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram p, size_t *bytes)
{
    (void)p;
    *bytes = sizeof build_log;
    return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetProgramLog(nvrtcProgram p, char *to)
{
    (void)p;
    memcpy(to, build_log, sizeof build_log);
    return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram p, size_t *bytes)
{
    (void)p;
    *bytes = program_bytes;
    return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetCUBIN(nvrtcProgram p, char *to)
{
    (void)p;
    MAY_FAIL("nvrtcGetCUBIN");
    memcpy(to, program, program_bytes);
    return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetPTXSize(nvrtcProgram p, size_t *bytes) { return nvrtcGetCUBINSize(p, bytes); }
nvrtcResult nvrtcGetPTX(nvrtcProgram p, char *to)
{
    MAY_FAIL("nvrtcGetPTX");
    return nvrtcGetCUBIN(p, to);
}

/* ---- OpenCL ---------------------------------------------------------------------------------- */

#define PROTOTYPE(result, name, parameters) EXPORT result name parameters;
OPENCL_FUNCTIONS(PROTOTYPE)
#undef PROTOTYPE

/* Answers a question with a number or a text. */
static cl_int answer(const void *data, size_t bytes, size_t capacity, void *to, size_t *needed)
{
    if (needed) *needed = bytes;
    if (to && capacity < bytes) return CL_INVALID_VALUE;
    if (to) memcpy(to, data, bytes);
    return CL_SUCCESS;
}
static cl_int answer_text(const char *text, size_t capacity, void *to, size_t *needed)
{
    return answer(text, strlen(text) + 1, capacity, to, needed);
}
static cl_int answer_number(uint64_t x, size_t capacity, void *to, size_t *needed)
{
    return answer(&x, sizeof x, capacity, to, needed);
}

cl_int clGetPlatformIDs(cl_uint capacity, cl_platform_id *to, cl_uint *count)
{
    MAY_FAIL("clGetPlatformIDs");
    *count = 1;
    if (capacity) *to = HANDLE(cl_platform_id);
    return CL_SUCCESS;
}
cl_int clGetPlatformInfo(cl_platform_id p, cl_uint what, size_t capacity, void *to, size_t *needed)
{
    (void)p, (void)what;
    return answer_text("OpenCL 3.0 fake", capacity, to, needed);
}
cl_int clGetDeviceIDs(cl_platform_id p, cl_bitfield type, cl_uint capacity, cl_device_id *to,
                      cl_uint *count)
{
    (void)p, (void)type;
    MAY_FAIL("clGetDeviceIDs");
    if (lacks("no-devices")) return CL_DEVICE_NOT_FOUND;
    *count = 1;
    if (capacity) *to = HANDLE(cl_device_id);
    return CL_SUCCESS;
}
cl_int clGetDeviceInfo(cl_device_id d, cl_uint what, size_t capacity, void *to, size_t *needed)
{
    const cl_platform_id platform = HANDLE(cl_platform_id);
    uint64_t single = CL_FP_DENORM | CL_FP_FMA | CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT;
    (void)d;
    if (lacks("no-division")) single &= ~(uint64_t)CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT;
    if (lacks("no-denormals")) single &= ~(uint64_t)CL_FP_DENORM;
    if (lacks("no-fma")) single &= ~(uint64_t)CL_FP_FMA;
    switch (what) {
    case CL_DEVICE_NAME:
        return answer_text("Fake OpenCL device", capacity, to, needed);
    case CL_DRIVER_VERSION:
        return answer_text("1", capacity, to, needed);
    case CL_DEVICE_VERSION:
        return answer_text("OpenCL 3.0 fake", capacity, to, needed);
    case CL_DEVICE_PLATFORM:
        return answer(&platform, sizeof platform, capacity, to, needed);
    case CL_DEVICE_MAX_COMPUTE_UNITS:
        return answer_number(4, capacity, to, needed);
    case CL_DEVICE_MAX_WORK_GROUP_SIZE:
        return answer_number(1024, capacity, to, needed);
    case CL_DEVICE_ADDRESS_BITS:
        return answer_number(64, capacity, to, needed);
    case CL_DEVICE_MAX_MEM_ALLOC_SIZE:
        return answer_number(1 << 28, capacity, to, needed);
    case CL_DEVICE_GLOBAL_MEM_SIZE:
        return answer_number(1 << 30, capacity, to, needed);
    case CL_DEVICE_LOCAL_MEM_SIZE:
        return answer_number(48 << 10, capacity, to, needed);
    case CL_DEVICE_COMPILER_AVAILABLE:
        return answer_number(!lacks("no-compiler"), capacity, to, needed);
    case CL_DEVICE_SINGLE_FP_CONFIG:
        return answer_number(single, capacity, to, needed);
    case CL_DEVICE_DOUBLE_FP_CONFIG:
        return answer_number(lacks("no-fp64") ? 0 : CL_FP_FMA, capacity, to, needed);
    case CL_DEVICE_SVM_CAPABILITIES: /* a driver of 1.2 does not know the question */
        if (lacks("no-svm")) return CL_INVALID_VALUE;
        return answer_number(CL_DEVICE_SVM_COARSE_GRAIN_BUFFER, capacity, to, needed);
    default:
        return CL_INVALID_VALUE;
    }
}
cl_context clCreateContext(const intptr_t *properties, cl_uint n, const cl_device_id *devices,
                           void (*notify)(const char *, const void *, size_t, void *), void *user,
                           cl_int *code)
{
    (void)properties, (void)n, (void)devices, (void)notify, (void)user;
    *code = CL_SUCCESS;
    return asked("clCreateContext", code) ? NULL : HANDLE(cl_context);
}
cl_int clRetainContext(cl_context c)
{
    (void)c;
    return CL_SUCCESS;
}
cl_int clReleaseContext(cl_context c)
{
    (void)c;
    return CL_SUCCESS;
}
cl_command_queue clCreateCommandQueue(cl_context c, cl_device_id d, cl_bitfield properties,
                                      cl_int *code)
{
    (void)c, (void)d, (void)properties;
    *code = CL_SUCCESS;
    return asked("clCreateCommandQueue", code) ? NULL : HANDLE(cl_command_queue);
}
cl_int clRetainCommandQueue(cl_command_queue q)
{
    (void)q;
    return CL_SUCCESS;
}
cl_int clReleaseCommandQueue(cl_command_queue q)
{
    (void)q;
    return CL_SUCCESS;
}
cl_int clGetCommandQueueInfo(cl_command_queue q, cl_uint what, size_t capacity, void *to,
                             size_t *needed)
{
    void *const handle = &object;
    (void)q;
    MAY_FAIL("clGetCommandQueueInfo");
    if (what == CL_QUEUE_PROPERTIES)
        return answer_number(lacks("out-of-order") ? CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE : 0,
                             capacity, to, needed);
    return answer(&handle, sizeof handle, capacity, to, needed);
}
void *clSVMAlloc(cl_context c, cl_bitfield flags, size_t bytes, cl_uint alignment)
{
    (void)c, (void)flags, (void)alignment;
    return lacks("clSVMAlloc") ? NULL : malloc(bytes);
}
void clSVMFree(cl_context c, void *at)
{
    (void)c;
    free(at);
}
cl_int clEnqueueSVMMemcpy(cl_command_queue q, cl_bool blocking, void *to, const void *from,
                          size_t bytes, cl_uint n, const cl_event *events, cl_event *event)
{
    (void)q, (void)blocking, (void)n, (void)events, (void)event;
    MAY_FAIL("clEnqueueSVMMemcpy");
    memcpy(to, from, bytes);
    return CL_SUCCESS;
}
cl_int clEnqueueSVMMemFill(cl_command_queue q, void *at, const void *pattern, size_t each,
                           size_t bytes, cl_uint n, const cl_event *events, cl_event *event)
{
    (void)q, (void)each, (void)n, (void)events, (void)event;
    MAY_FAIL("clEnqueueSVMMemFill");
    memset(at, *(const unsigned char *)pattern, bytes);
    return CL_SUCCESS;
}
cl_int clFinish(cl_command_queue q)
{
    (void)q;
    MAY_FAIL("clFinish");
    return CL_SUCCESS;
}
cl_int clFlush(cl_command_queue q)
{
    (void)q;
    MAY_FAIL("clFlush");
    return CL_SUCCESS;
}
cl_program clCreateProgramWithSource(cl_context c, cl_uint n, const char **texts,
                                     const size_t *lengths, cl_int *code)
{
    (void)c, (void)lengths;
    *code = CL_SUCCESS;
    if (asked("clCreateProgramWithSource", code)) return NULL;
    return keep_program(texts[0], n > 1 ? texts[1] : "") ? HANDLE(cl_program) : NULL;
}
cl_program clCreateProgramWithBinary(cl_context c, cl_uint n, const cl_device_id *devices,
                                     const size_t *bytes, const unsigned char **binaries,
                                     cl_int *good, cl_int *code)
{
    (void)c, (void)n, (void)devices, (void)bytes, (void)binaries;
    *good = *code = lacks("stale") ? CL_INVALID_BINARY : CL_SUCCESS;
    return *code ? NULL : HANDLE(cl_program);
}
/* It fails for sources alone. */
cl_int clBuildProgram(cl_program p, cl_uint n, const cl_device_id *devices, const char *options,
                      void (*notify)(cl_program, void *), void *user)
{
    (void)p, (void)n, (void)devices, (void)options, (void)notify, (void)user;
    if (program) MAY_FAIL("clBuildProgram");
    return CL_SUCCESS;
}
cl_int clGetProgramBuildInfo(cl_program p, cl_device_id d, cl_uint what, size_t capacity, void *to,
                             size_t *needed)
{
    (void)p, (void)d, (void)what;
    return answer_text(build_log, capacity, to, needed);
}
cl_int clGetProgramInfo(cl_program p, cl_uint what, size_t capacity, void *to, size_t *needed)
{
    (void)p;
    if (what == CL_PROGRAM_BINARY_SIZES)
        return answer(&program_bytes, sizeof program_bytes, capacity, to, needed);
    memcpy(*(void **)to, program, program_bytes);
    return CL_SUCCESS;
}
cl_int clReleaseProgram(cl_program p)
{
    (void)p;
    free(program);
    program = NULL;
    return CL_SUCCESS;
}
/* Arguments of a kernel, as bits.  A launch is refused if one was both a pointer and NULL. */
struct fake_kernel {
    uint64_t pointers, nulls;
};
cl_kernel clCreateKernel(cl_program p, const char *name, cl_int *code)
{
    (void)p;
    *code = CL_SUCCESS;
    if (asked("clCreateKernel", code)) return NULL;
    if (!strcmp(name, "loci_forward")) return calloc(1, sizeof(struct fake_kernel));
    *code = CL_INVALID_KERNEL_NAME;
    return NULL;
}
cl_int clReleaseKernel(cl_kernel k)
{
    free(k);
    return CL_SUCCESS;
}
cl_int clSetKernelArg(cl_kernel k, cl_uint i, size_t bytes, const void *value)
{
    MAY_FAIL("clSetKernelArg");
    if (!value && bytes == sizeof(cl_mem)) ((struct fake_kernel *)k)->nulls |= UINT64_C(1) << i;
    return CL_SUCCESS;
}
cl_int clSetKernelArgSVMPointer(cl_kernel k, cl_uint i, const void *value)
{
    (void)value;
    MAY_FAIL("clSetKernelArgSVMPointer");
    ((struct fake_kernel *)k)->pointers |= UINT64_C(1) << i;
    return CL_SUCCESS;
}
cl_int clEnqueueNDRangeKernel(cl_command_queue q, cl_kernel k, cl_uint dimensions,
                              const size_t *offset, const size_t *all, const size_t *group,
                              cl_uint n, const cl_event *events, cl_event *event)
{
    (void)q, (void)dimensions, (void)offset, (void)all, (void)group, (void)n, (void)events;
    (void)event;
    MAY_FAIL("clEnqueueNDRangeKernel");
    const struct fake_kernel *own = (const void *)k;
    return own->pointers & own->nulls ? CL_INVALID_KERNEL_ARGS : CL_SUCCESS;
}
cl_int clEnqueueMarkerWithWaitList(cl_command_queue q, cl_uint n, const cl_event *events,
                                   cl_event *event)
{
    (void)q, (void)n, (void)events;
    MAY_FAIL("clEnqueueMarkerWithWaitList");
    *event = HANDLE(cl_event);
    return CL_SUCCESS;
}
cl_int clWaitForEvents(cl_uint n, const cl_event *events)
{
    (void)n, (void)events;
    MAY_FAIL("clWaitForEvents");
    return CL_SUCCESS;
}
/* The clock of the device: a millisecond between two questions. */
cl_int clGetEventProfilingInfo(cl_event event, cl_uint what, size_t capacity, void *to,
                               size_t *needed)
{
    static uint64_t now;
    (void)event, (void)what;
    MAY_FAIL("clGetEventProfilingInfo");
    now += 1000000;
    return answer_number(now, capacity, to, needed);
}
cl_int clRetainEvent(cl_event event)
{
    (void)event;
    return CL_SUCCESS;
}
cl_int clReleaseEvent(cl_event event)
{
    (void)event;
    return CL_SUCCESS;
}
