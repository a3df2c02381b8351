# SPDX-License-Identifier: MIT
# Cross build for i686 on Debian: gcc-i686-linux-gnu, libc6-dev-i386-cross, and qemu-user to run
# the tests.  The user names the folder of jansson by -DCMAKE_PREFIX_PATH (scripts/platforms builds
# one).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR i686)
set(CMAKE_C_COMPILER i686-linux-gnu-gcc)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH /usr/i686-linux-gnu ${CMAKE_PREFIX_PATH})
set(CMAKE_CROSSCOMPILING_EMULATOR "qemu-i386;-L;/usr/i686-linux-gnu")
