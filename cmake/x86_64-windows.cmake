# SPDX-License-Identifier: MIT
# Cross build for Windows on Debian: gcc-mingw-w64-x86-64-win32, with wine64 to run the tests.
# The user names the folder of jansson by -DCMAKE_PREFIX_PATH (scripts/platforms builds one).
set(CMAKE_SYSTEM_NAME Windows)
set(CMAKE_SYSTEM_PROCESSOR AMD64)
set(CMAKE_C_COMPILER x86_64-w64-mingw32-gcc)
set(CMAKE_RC_COMPILER x86_64-w64-mingw32-windres)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH /usr/x86_64-w64-mingw32 ${CMAKE_PREFIX_PATH})
find_program(LOCI_WINE NAMES wine64 wine PATHS /usr/lib/wine)
if(LOCI_WINE)
    set(CMAKE_CROSSCOMPILING_EMULATOR ${LOCI_WINE})
endif()
