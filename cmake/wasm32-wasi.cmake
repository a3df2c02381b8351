# SPDX-License-Identifier: MIT
# WebAssembly with Debian's clang, lld, wasi-libc and libclang-rt-NN-dev-wasm32, for the explorer.
set(CMAKE_SYSTEM_NAME Generic)
set(CMAKE_SYSTEM_PROCESSOR wasm32)
set(CMAKE_C_COMPILER clang CACHE STRING "C compiler")
set(CMAKE_C_COMPILER_TARGET wasm32-wasi)
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
set(CMAKE_POSITION_INDEPENDENT_CODE OFF)
# Kernels are not unrolled: the module stays small, and browser engines unroll where it pays.
set(CMAKE_C_FLAGS_INIT -DLOCI_ROLLED)
set(CMAKE_C_FLAGS_RELEASE_INIT "-O2 -DNDEBUG")
