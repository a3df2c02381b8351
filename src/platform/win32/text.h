/* SPDX-License-Identifier: MIT */
/* text.h -- texts of Windows and ours.  NULL and errno: no memory, or not UTF-8. */
#ifndef LOCI_PLATFORM_WIN32_TEXT_H
#define LOCI_PLATFORM_WIN32_TEXT_H

#include <wchar.h>

wchar_t *loci_win32_wide(const char *utf8);
char *loci_win32_utf8(const wchar_t *text);

#endif
