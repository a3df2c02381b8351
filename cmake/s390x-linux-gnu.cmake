# SPDX-License-Identifier: MIT
# Cross build for s390x on Debian: gcc-s390x-linux-gnu, libc6-dev-s390x-cross, and qemu-user to run
# the tests.  The user names the folder of jansson by -DCMAKE_PREFIX_PATH (scripts/platforms builds
# one).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR s390x)
set(CMAKE_C_COMPILER s390x-linux-gnu-gcc)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH /usr/s390x-linux-gnu ${CMAKE_PREFIX_PATH})
set(CMAKE_CROSSCOMPILING_EMULATOR "qemu-s390x;-L;/usr/s390x-linux-gnu")
