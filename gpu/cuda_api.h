/* SPDX-License-Identifier: MIT */
/* cuda_api.h -- what loci uses of CUDA's driver and of its compiler NVRTC: names, numbers and types
 * are theirs.  A function of the driver may have a version in its symbol; the symbols here are in
 * every driver since CUDA 11.2.  Calls have no convention of their own, because programs of 32 bits
 * are refused. */
#ifndef LOCI_GPU_CUDA_API_H
#define LOCI_GPU_CUDA_API_H

#include <stddef.h>

/* begin of types */
typedef int CUresult, CUdevice;
typedef int CUdevice_attribute, CUfunction_attribute, CUpointer_attribute, CUjit_option;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef int nvrtcResult;
typedef struct _nvrtcProgram *nvrtcProgram;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_NOT_FOUND = 500,
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
    CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES = 100,
    CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1,
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
    CU_JIT_ERROR_LOG_BUFFER = 5,
    CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6,
    CU_STREAM_DEFAULT = 0,
    CU_EVENT_DEFAULT = 0,
    NVRTC_SUCCESS = 0,
    NVRTC_ERROR_OUT_OF_MEMORY = 1
};
/* end of types */

/* Every function of the driver: F(name, symbol, parameters).  The result is a CUresult. */
#define CUDA_FUNCTIONS(F) \
    F(cuInit, "cuInit", (unsigned)) \
    F(cuDriverGetVersion, "cuDriverGetVersion", (int *)) \
    F(cuGetErrorName, "cuGetErrorName", (CUresult, const char **)) \
    F(cuGetErrorString, "cuGetErrorString", (CUresult, const char **)) \
    F(cuDeviceGetCount, "cuDeviceGetCount", (int *)) \
    F(cuDeviceGet, "cuDeviceGet", (CUdevice *, int)) \
    F(cuDeviceGetName, "cuDeviceGetName", (char *, int, CUdevice)) \
    F(cuDeviceTotalMem, "cuDeviceTotalMem_v2", (size_t *, CUdevice)) \
    F(cuDeviceGetAttribute, "cuDeviceGetAttribute", (int *, CUdevice_attribute, CUdevice)) \
    F(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (CUcontext *, CUdevice)) \
    F(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (CUdevice)) \
    F(cuCtxGetCurrent, "cuCtxGetCurrent", (CUcontext *)) \
    F(cuCtxPushCurrent, "cuCtxPushCurrent_v2", (CUcontext)) \
    F(cuCtxPopCurrent, "cuCtxPopCurrent_v2", (CUcontext *)) \
    F(cuCtxGetDevice, "cuCtxGetDevice", (CUdevice *)) \
    F(cuStreamCreate, "cuStreamCreate", (CUstream *, unsigned)) \
    F(cuStreamDestroy, "cuStreamDestroy_v2", (CUstream)) \
    F(cuStreamSynchronize, "cuStreamSynchronize", (CUstream)) \
    F(cuMemAlloc, "cuMemAlloc_v2", (CUdeviceptr *, size_t)) \
    F(cuMemFree, "cuMemFree_v2", (CUdeviceptr)) \
    F(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", (CUdeviceptr, const void *, size_t, CUstream)) \
    F(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", (void *, CUdeviceptr, size_t, CUstream)) \
    F(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2", (CUdeviceptr, CUdeviceptr, size_t, CUstream)) \
    F(cuMemsetD8Async, "cuMemsetD8Async", (CUdeviceptr, unsigned char, size_t, CUstream)) \
    F(cuPointerGetAttribute, "cuPointerGetAttribute", (void *, CUpointer_attribute, CUdeviceptr)) \
    F(cuModuleLoadDataEx, "cuModuleLoadDataEx", \
      (CUmodule *, const void *, unsigned, CUjit_option *, void **)) \
    F(cuModuleUnload, "cuModuleUnload", (CUmodule)) \
    F(cuModuleGetFunction, "cuModuleGetFunction", (CUfunction *, CUmodule, const char *)) \
    F(cuFuncGetAttribute, "cuFuncGetAttribute", (int *, CUfunction_attribute, CUfunction)) \
    F(cuFuncSetAttribute, "cuFuncSetAttribute", (CUfunction, CUfunction_attribute, int)) \
    F(cuLaunchKernel, "cuLaunchKernel", \
      (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, \
       void **, void **)) \
    F(cuEventCreate, "cuEventCreate", (CUevent *, unsigned)) \
    F(cuEventDestroy, "cuEventDestroy_v2", (CUevent)) \
    F(cuEventRecord, "cuEventRecord", (CUevent, CUstream)) \
    F(cuEventSynchronize, "cuEventSynchronize", (CUevent)) \
    F(cuEventElapsedTime, "cuEventElapsedTime", (float *, CUevent, CUevent))

/* Every function of NVRTC: F(name, parameters).  The result is an nvrtcResult. */
#define NVRTC_FUNCTIONS(F) \
    F(nvrtcVersion, (int *, int *)) \
    F(nvrtcGetNumSupportedArchs, (int *)) \
    F(nvrtcGetSupportedArchs, (int *)) \
    F(nvrtcCreateProgram, \
      (nvrtcProgram *, const char *, const char *, int, const char *const *, const char *const *)) \
    F(nvrtcDestroyProgram, (nvrtcProgram *)) \
    F(nvrtcCompileProgram, (nvrtcProgram, int, const char *const *)) \
    F(nvrtcGetProgramLogSize, (nvrtcProgram, size_t *)) \
    F(nvrtcGetProgramLog, (nvrtcProgram, char *)) \
    F(nvrtcGetCUBINSize, (nvrtcProgram, size_t *)) \
    F(nvrtcGetCUBIN, (nvrtcProgram, char *)) \
    F(nvrtcGetPTXSize, (nvrtcProgram, size_t *)) \
    F(nvrtcGetPTX, (nvrtcProgram, char *))

/* The same functions as pointers. */
struct cuda_api {
#define CUDA_POINTER(name, symbol, parameters) CUresult(*name) parameters;
    CUDA_FUNCTIONS(CUDA_POINTER)
#undef CUDA_POINTER
};
struct nvrtc_api {
#define NVRTC_POINTER(name, parameters) nvrtcResult(*name) parameters;
    NVRTC_FUNCTIONS(NVRTC_POINTER)
#undef NVRTC_POINTER
    const char *(*nvrtcGetErrorString)(nvrtcResult);
};

#endif
