# SPDX-License-Identifier: MIT
# Cross build by clang of the PyPI package ziglang, which has headers and libraries of many systems.
# LOCI_ZIG_TARGET says for what it builds, LOCI_ZIG_PYTHON which Python has the package:
#
#     cmake -DCMAKE_TOOLCHAIN_FILE=cmake/zig.cmake -DLOCI_ZIG_TARGET=aarch64-macos.11.0 ...
#
# The user names the folder of jansson by -DCMAKE_PREFIX_PATH (scripts/jansson builds one).
set(LOCI_ZIG_PYTHON python3 CACHE STRING "The Python that has the package ziglang")
if("${LOCI_ZIG_TARGET}" MATCHES "^(x86_64|aarch64)-(macos|linux|windows)")
    set(CMAKE_SYSTEM_PROCESSOR ${CMAKE_MATCH_1})
    set(zig_system ${CMAKE_MATCH_2})
else()
    message(FATAL_ERROR "LOCI_ZIG_TARGET is '${LOCI_ZIG_TARGET}'. It starts with x86_64 or aarch64, then macos, linux or "
        "windows, such as aarch64-macos.11.0.")
endif()

# A small program for each tool, in the build's folder: CMake's tools have no arguments.  Builds
# that only try something use the same ones.
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES LOCI_ZIG_TARGET LOCI_ZIG_PYTHON LOCI_ZIG_TOOLS)
if(NOT LOCI_ZIG_TOOLS)
    execute_process(COMMAND ${LOCI_ZIG_PYTHON} -c "import os, ziglang; print(os.path.dirname(ziglang.__file__), end='/zig')"
        OUTPUT_VARIABLE zig RESULT_VARIABLE zig_missing ERROR_QUIET)
    if(zig_missing)
        message(FATAL_ERROR "${LOCI_ZIG_PYTHON} has no package ziglang. -DLOCI_ZIG_PYTHON names a Python that has it.")
    endif()
    set(zig_tools ${CMAKE_BINARY_DIR}/zig)
    set(zig_cc "cc -target ${LOCI_ZIG_TARGET} \"$@\"")
    set(zig_ar "ar \"$@\"")
    set(zig_ranlib "ranlib \"$@\"")
    # CMake writes the command line of windres or that of rc, by its version.  The result is an object
    # file, because Makefiles put objects into an archive, and the linker takes no other files there.
    set(zig_rc "rc /:output-format coff /:target ${CMAKE_SYSTEM_PROCESSOR} /fo \"$object\" \"$source\"")
    foreach(tool cc ar ranlib rc)
        set(before "")
        if(tool STREQUAL "rc")
            set(before "for a in \"$@\"; do case $a in *.rc) source=$a ;; *) object=$a ;; esac; done\n")
        endif()
        file(WRITE ${zig_tools}/${tool} "#!/bin/sh\n${before}exec \"${zig}\" ${zig_${tool}}\n")
        file(CHMOD ${zig_tools}/${tool} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
    endforeach()
    set(LOCI_ZIG_TOOLS ${zig_tools} CACHE INTERNAL "Where the tools of zig are")
endif()

if(zig_system STREQUAL "macos")
    set(CMAKE_SYSTEM_NAME Darwin)
    set(CMAKE_OSX_SYSROOT "" CACHE STRING "zig has its own")
    set(CMAKE_OSX_DEPLOYMENT_TARGET "" CACHE STRING "LOCI_ZIG_TARGET has it")
    # Names and paths are those of installed files, since no tool here can change them later.
    set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
    set(CMAKE_INSTALL_NAME_TOOL true)
elseif(zig_system STREQUAL "windows")
    set(CMAKE_SYSTEM_NAME Windows)
    set(CMAKE_RC_COMPILER ${LOCI_ZIG_TOOLS}/rc)
else()
    set(CMAKE_SYSTEM_NAME Linux)
    if(LOCI_ZIG_TARGET MATCHES "musl")
        # else a program is static, and cannot load libraries
        set(CMAKE_EXE_LINKER_FLAGS_INIT -dynamic)
    endif()
endif()
set(CMAKE_C_COMPILER ${LOCI_ZIG_TOOLS}/cc)
# Without symbols for debuggers, which name the build's folder: no tool here removes them later.
set(CMAKE_C_FLAGS_RELEASE_INIT -g0)
foreach(kind SHARED EXE)
    set(CMAKE_${kind}_LINKER_FLAGS_RELEASE_INIT -s)
endforeach()
set(CMAKE_STRIP true)
set(CMAKE_AR ${LOCI_ZIG_TOOLS}/ar CACHE FILEPATH "")
set(CMAKE_RANLIB ${LOCI_ZIG_TOOLS}/ranlib CACHE FILEPATH "")
set(CMAKE_FIND_ROOT_PATH ${CMAKE_PREFIX_PATH})
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
