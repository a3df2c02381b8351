/* SPDX-License-Identifier: MIT */
/* windows.h -- the system's header, for the files of this folder alone. */
#ifndef LOCI_PLATFORM_WIN32_WINDOWS_H
#define LOCI_PLATFORM_WIN32_WINDOWS_H

#ifndef _WIN32_WINNT
#define _WIN32_WINNT 0x0602 /* Windows 8 */
#endif
#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <windows.h>

#endif
