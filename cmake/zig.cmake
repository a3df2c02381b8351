# SPDX-License-Identifier: MIT
# Cross build by clang of the PyPI package ziglang, which has headers and libraries of many systems.
# The environment says where it is and for what it builds:
#
#     LOCI_ZIG_PYTHON=python3 LOCI_ZIG_TARGET=aarch64-macos cmake -DCMAKE_TOOLCHAIN_FILE=cmake/zig.cmake ...
set(zig_tools ${CMAKE_CURRENT_LIST_DIR}/zig)
if("$ENV{LOCI_ZIG_TARGET}" MATCHES "^([^-]+)-([^-.]+)")
    set(CMAKE_SYSTEM_PROCESSOR ${CMAKE_MATCH_1})
    set(zig_system ${CMAKE_MATCH_2})
else()
    message(FATAL_ERROR "LOCI_ZIG_TARGET names no target, such as aarch64-macos")
endif()
if(zig_system STREQUAL "macos")
    set(CMAKE_SYSTEM_NAME Darwin)
    set(CMAKE_OSX_SYSROOT "" CACHE STRING "zig has its own")
    set(CMAKE_OSX_DEPLOYMENT_TARGET "" CACHE STRING "zig has its own")
    set(CMAKE_INSTALL_NAME_TOOL true)
elseif(zig_system STREQUAL "linux")
    set(CMAKE_SYSTEM_NAME Linux)
else()
    message(FATAL_ERROR "LOCI_ZIG_TARGET: ${zig_system} is neither macos nor linux")
endif()
set(CMAKE_C_COMPILER ${zig_tools}/cc)
set(CMAKE_AR ${zig_tools}/ar CACHE FILEPATH "")
set(CMAKE_RANLIB ${zig_tools}/ranlib CACHE FILEPATH "")
set(CMAKE_FIND_ROOT_PATH ${CMAKE_PREFIX_PATH})
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
