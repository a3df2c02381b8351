# SPDX-License-Identifier: MIT
# Cross build for armv7 with VFPv4 on Debian: gcc-arm-linux-gnueabihf, libc6-dev-armhf-cross, and
# qemu-user to run the tests.  The user names the folder of jansson by -DCMAKE_PREFIX_PATH
# (scripts/platforms builds one).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR armv7l)
set(CMAKE_C_COMPILER arm-linux-gnueabihf-gcc)
# VFPv4 has the fused multiply-add that all arithmetic is made of.
set(CMAKE_C_FLAGS_INIT -mfpu=vfpv4)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH /usr/arm-linux-gnueabihf ${CMAKE_PREFIX_PATH})
set(CMAKE_CROSSCOMPILING_EMULATOR "qemu-arm;-L;/usr/arm-linux-gnueabihf")
