/* SPDX-License-Identifier: MIT */
/* opencl_api.h -- what loci uses of OpenCL: names, numbers and types are those of the
 * specification.  Calls have no convention of their own, because programs of 32 bits are
 * refused. */
#ifndef LOCI_GPU_OPENCL_API_H
#define LOCI_GPU_OPENCL_API_H

#include <stddef.h>
#include <stdint.h>

typedef int32_t cl_int;
typedef uint32_t cl_uint, cl_bool;
typedef uint64_t cl_ulong, cl_bitfield;
typedef struct _cl_platform_id *cl_platform_id;
typedef struct _cl_device_id *cl_device_id;
typedef struct _cl_context *cl_context;
typedef struct _cl_command_queue *cl_command_queue;
typedef struct _cl_mem *cl_mem;
typedef struct _cl_program *cl_program;
typedef struct _cl_kernel *cl_kernel;
typedef struct _cl_event *cl_event;

#define CL_TRUE 1
#define CL_FALSE 0

#define CL_DEVICE_TYPE_ALL 0xFFFFFFFF
#define CL_DEVICE_TYPE_CPU 2
#define CL_PLATFORM_VERSION 0x0901
#define CL_DEVICE_TYPE 0x1000
#define CL_DEVICE_MAX_COMPUTE_UNITS 0x1002
#define CL_DEVICE_MAX_WORK_GROUP_SIZE 0x1004
#define CL_DEVICE_ADDRESS_BITS 0x100D
#define CL_DEVICE_MAX_MEM_ALLOC_SIZE 0x1010
#define CL_DEVICE_SINGLE_FP_CONFIG 0x101B
#define CL_DEVICE_GLOBAL_MEM_SIZE 0x101F
#define CL_DEVICE_LOCAL_MEM_SIZE 0x1023
#define CL_DEVICE_COMPILER_AVAILABLE 0x1028
#define CL_DEVICE_NAME 0x102B
#define CL_DRIVER_VERSION 0x102D
#define CL_DEVICE_VERSION 0x102F
#define CL_DEVICE_PLATFORM 0x1031
#define CL_DEVICE_DOUBLE_FP_CONFIG 0x1032
#define CL_DEVICE_SVM_CAPABILITIES 0x1053

#define CL_FP_DENORM (1u << 0)
#define CL_FP_FMA (1u << 5)
#define CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT (1u << 7)
#define CL_DEVICE_SVM_COARSE_GRAIN_BUFFER (1u << 0)

#define CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE (1u << 0)
#define CL_QUEUE_PROFILING_ENABLE (1u << 1)
#define CL_QUEUE_CONTEXT 0x1090
#define CL_QUEUE_DEVICE 0x1091
#define CL_QUEUE_PROPERTIES 0x1093
#define CL_MEM_READ_WRITE (1u << 0)
#define CL_PROGRAM_BINARY_SIZES 0x1165
#define CL_PROGRAM_BINARIES 0x1166
#define CL_PROGRAM_BUILD_LOG 0x1183
#define CL_PROFILING_COMMAND_END 0x1283

/* Every error of a function below. */
#define OPENCL_ERRORS(E) \
    E(CL_DEVICE_NOT_FOUND, -1) \
    E(CL_DEVICE_NOT_AVAILABLE, -2) \
    E(CL_COMPILER_NOT_AVAILABLE, -3) \
    E(CL_MEM_OBJECT_ALLOCATION_FAILURE, -4) \
    E(CL_OUT_OF_RESOURCES, -5) \
    E(CL_OUT_OF_HOST_MEMORY, -6) \
    E(CL_PROFILING_INFO_NOT_AVAILABLE, -7) \
    E(CL_MEM_COPY_OVERLAP, -8) \
    E(CL_BUILD_PROGRAM_FAILURE, -11) \
    E(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST, -14) \
    E(CL_INVALID_VALUE, -30) \
    E(CL_INVALID_DEVICE_TYPE, -31) \
    E(CL_INVALID_PLATFORM, -32) \
    E(CL_INVALID_DEVICE, -33) \
    E(CL_INVALID_CONTEXT, -34) \
    E(CL_INVALID_QUEUE_PROPERTIES, -35) \
    E(CL_INVALID_COMMAND_QUEUE, -36) \
    E(CL_INVALID_MEM_OBJECT, -38) \
    E(CL_INVALID_BINARY, -42) \
    E(CL_INVALID_BUILD_OPTIONS, -43) \
    E(CL_INVALID_PROGRAM, -44) \
    E(CL_INVALID_PROGRAM_EXECUTABLE, -45) \
    E(CL_INVALID_KERNEL_NAME, -46) \
    E(CL_INVALID_KERNEL_DEFINITION, -47) \
    E(CL_INVALID_KERNEL, -48) \
    E(CL_INVALID_ARG_INDEX, -49) \
    E(CL_INVALID_ARG_VALUE, -50) \
    E(CL_INVALID_ARG_SIZE, -51) \
    E(CL_INVALID_KERNEL_ARGS, -52) \
    E(CL_INVALID_WORK_DIMENSION, -53) \
    E(CL_INVALID_WORK_GROUP_SIZE, -54) \
    E(CL_INVALID_WORK_ITEM_SIZE, -55) \
    E(CL_INVALID_GLOBAL_OFFSET, -56) \
    E(CL_INVALID_EVENT_WAIT_LIST, -57) \
    E(CL_INVALID_EVENT, -58) \
    E(CL_INVALID_OPERATION, -59) \
    E(CL_INVALID_BUFFER_SIZE, -61) \
    E(CL_INVALID_GLOBAL_WORK_SIZE, -63) \
    E(CL_PLATFORM_NOT_FOUND_KHR, -1001)
enum {
    CL_SUCCESS = 0,
#define OPENCL_NUMBER(name, number) name = number,
    OPENCL_ERRORS(OPENCL_NUMBER)
#undef OPENCL_NUMBER
};

/* Every function: F(result, name, parameters). */
#define OPENCL_FUNCTIONS(F) \
    F(cl_int, clGetPlatformIDs, (cl_uint, cl_platform_id *, cl_uint *)) \
    F(cl_int, clGetPlatformInfo, (cl_platform_id, cl_uint, size_t, void *, size_t *)) \
    F(cl_int, clGetDeviceIDs, (cl_platform_id, cl_bitfield, cl_uint, cl_device_id *, cl_uint *)) \
    F(cl_int, clGetDeviceInfo, (cl_device_id, cl_uint, size_t, void *, size_t *)) \
    F(cl_context, clCreateContext, \
      (const intptr_t *, cl_uint, const cl_device_id *, \
       void (*)(const char *, const void *, size_t, void *), void *, cl_int *)) \
    F(cl_int, clRetainContext, (cl_context)) \
    F(cl_int, clReleaseContext, (cl_context)) \
    F(cl_command_queue, clCreateCommandQueue, (cl_context, cl_device_id, cl_bitfield, cl_int *)) \
    F(cl_int, clRetainCommandQueue, (cl_command_queue)) \
    F(cl_int, clReleaseCommandQueue, (cl_command_queue)) \
    F(cl_int, clGetCommandQueueInfo, (cl_command_queue, cl_uint, size_t, void *, size_t *)) \
    F(void *, clSVMAlloc, (cl_context, cl_bitfield, size_t, cl_uint)) \
    F(void, clSVMFree, (cl_context, void *)) \
    F(cl_int, clEnqueueSVMMemcpy, \
      (cl_command_queue, cl_bool, void *, const void *, size_t, cl_uint, const cl_event *, \
       cl_event *)) \
    F(cl_int, clEnqueueSVMMemFill, \
      (cl_command_queue, void *, const void *, size_t, size_t, cl_uint, const cl_event *, \
       cl_event *)) \
    F(cl_int, clFinish, (cl_command_queue)) \
    F(cl_int, clFlush, (cl_command_queue)) \
    F(cl_program, clCreateProgramWithSource, \
      (cl_context, cl_uint, const char **, const size_t *, cl_int *)) \
    F(cl_program, clCreateProgramWithBinary, \
      (cl_context, cl_uint, const cl_device_id *, const size_t *, const unsigned char **, \
       cl_int *, cl_int *)) \
    F(cl_int, clBuildProgram, \
      (cl_program, cl_uint, const cl_device_id *, const char *, void (*)(cl_program, void *), \
       void *)) \
    F(cl_int, clGetProgramBuildInfo, \
      (cl_program, cl_device_id, cl_uint, size_t, void *, size_t *)) \
    F(cl_int, clGetProgramInfo, (cl_program, cl_uint, size_t, void *, size_t *)) \
    F(cl_int, clReleaseProgram, (cl_program)) \
    F(cl_kernel, clCreateKernel, (cl_program, const char *, cl_int *)) \
    F(cl_int, clReleaseKernel, (cl_kernel)) \
    F(cl_int, clSetKernelArg, (cl_kernel, cl_uint, size_t, const void *)) \
    F(cl_int, clSetKernelArgSVMPointer, (cl_kernel, cl_uint, const void *)) \
    F(cl_int, clEnqueueNDRangeKernel, \
      (cl_command_queue, cl_kernel, cl_uint, const size_t *, const size_t *, const size_t *, \
       cl_uint, const cl_event *, cl_event *)) \
    F(cl_int, clEnqueueMarkerWithWaitList, \
      (cl_command_queue, cl_uint, const cl_event *, cl_event *)) \
    F(cl_int, clWaitForEvents, (cl_uint, const cl_event *)) \
    F(cl_int, clGetEventProfilingInfo, (cl_event, cl_uint, size_t, void *, size_t *)) \
    F(cl_int, clRetainEvent, (cl_event)) \
    F(cl_int, clReleaseEvent, (cl_event))

/* The same functions as pointers. */
struct opencl_api {
#define OPENCL_POINTER(result, name, parameters) result(*name) parameters;
    OPENCL_FUNCTIONS(OPENCL_POINTER)
#undef OPENCL_POINTER
};

#endif
