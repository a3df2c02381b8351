/* SPDX-License-Identifier: MIT */
/* system.c -- see platform/system.h. */
#include "platform/win32/windows.h"
#include "platform/system.h"

#include <fcntl.h>
#include <io.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The console shows what the program writes as UTF-8 from here on. */
bool loci_system_begin(void)
{
    for (int fd = 0; fd <= 2; fd++) {
        if (_get_osfhandle(fd) < 0 && _open("NUL", fd ? _O_RDONLY : _O_WRONLY) != fd) return false;
        _setmode(fd, _O_BINARY);
    }
    if (loci_terminal()) SetConsoleOutputCP(CP_UTF8);
    return true;
}

/* ---- Terminals ------------------------------------------------------------------------------- */

static HANDLE out(void) { return (HANDLE)_get_osfhandle(1); }
bool loci_terminal(void)
{
    DWORD mode;
    return GetConsoleMode(out(), &mode);
}
/* Consoles before Windows 10 refuse the mode. */
bool loci_terminal_colours(void)
{
    DWORD mode;
    return GetConsoleMode(out(), &mode)
        && SetConsoleMode(out(), mode | ENABLE_VIRTUAL_TERMINAL_PROCESSING);
}
bool loci_terminal_unicode(void) { return loci_terminal() && GetConsoleOutputCP() == CP_UTF8; }
int loci_terminal_columns(void)
{
    CONSOLE_SCREEN_BUFFER_INFO i;
    return GetConsoleScreenBufferInfo(out(), &i) ? i.srWindow.Right - i.srWindow.Left + 1 : 0;
}

/* ---- The machine ----------------------------------------------------------------------------- */

void loci_system_names(char *system, char *machine, size_t capacity)
{
    SYSTEM_INFO i;
    GetNativeSystemInfo(&i);
    const WORD kind = i.wProcessorArchitecture;
    snprintf(system, capacity, "Windows");
    snprintf(machine, capacity, "%s",
             kind == PROCESSOR_ARCHITECTURE_AMD64 ? "x86_64"
             : kind == 12 /* ARM64 */             ? "aarch64"
                                                  : "unknown");
}
void loci_host_name(char *name, size_t capacity)
{
    DWORD n = (DWORD)capacity;
    if (!GetComputerNameA(name, &n)) snprintf(name, capacity, "unknown");
    name[capacity - 1] = 0;
}
double loci_system_memory(void)
{
    MEMORYSTATUSEX m = { .dwLength = sizeof m };
    return GlobalMemoryStatusEx(&m) ? (double)m.ullTotalPhys : 0;
}
double loci_system_cache(void)
{
    DWORD bytes = 0, most = 0;
    GetLogicalProcessorInformation(NULL, &bytes);
    SYSTEM_LOGICAL_PROCESSOR_INFORMATION *list = malloc(bytes ? bytes : 1);
    if (!list || !GetLogicalProcessorInformation(list, &bytes)) bytes = 0;
    for (DWORD i = 0; i < bytes / sizeof *list; i++)
        if (list[i].Relationship == RelationCache && list[i].Cache.Size > most)
            most = list[i].Cache.Size;
    free(list);
    return most;
}

/* ---- Processes ------------------------------------------------------------------------------- */

void loci_sleep(double seconds) { Sleep((DWORD)(1000 * seconds)); }
bool loci_process_gone(long process)
{
    const HANDLE h = OpenProcess(SYNCHRONIZE, FALSE, (DWORD)process);
    if (!h) return GetLastError() == ERROR_INVALID_PARAMETER;
    const bool ended = WaitForSingleObject(h, 0) == WAIT_OBJECT_0;
    CloseHandle(h);
    return ended;
}
/* The system does not count them. */
long loci_preemptions(void) { return 0; }
void loci_allow_files(int count) { (void)count; }

/* One character against [...], whose first letter may be '!' or '^'.  *end: behind it. */
static bool in_set(const char *set, char c, const char **end)
{
    const bool not = *set == '!' || *set == '^';
    bool in = false;
    const char *p = set + not ;
    do {
        if (!*p) { /* no set: a bracket by itself */
            *end = NULL;
            return c == '[';
        }
        const char low = *p;
        if (p[1] == '-' && p[2] && p[2] != ']') p += 2;
        if (c >= low && c <= *p) in = true;
        p++;
    } while (*p != ']');
    *end = p + 1;
    return in != not ;
}
bool loci_name_matches(const char *pattern, const char *name)
{
    for (; *pattern; pattern++, name++) {
        const char *end;
        if (*pattern == '*') {
            for (;; name++) {
                if (loci_name_matches(pattern + 1, name)) return true;
                if (!*name) return false;
            }
        }
        if (!*name) return false;
        if (*pattern == '?') continue;
        if (*pattern == '[') {
            if (!in_set(pattern + 1, *name, &end)) return false;
            if (end) pattern = end - 1;
            continue;
        }
        if (*pattern == '\\' && pattern[1]) pattern++;
        if (*pattern != *name) return false;
    }
    return !*name;
}

struct command_output *loci_command_begin(const char *command)
{
    (void)command;
    return NULL;
}
size_t loci_command_read(struct command_output *c, void *to, size_t bytes)
{
    (void)c, (void)to, (void)bytes;
    return 0;
}
int loci_command_end(struct command_output *c)
{
    (void)c;
    return 127;
}

void *loci_library_open(const char *name) { return (void *)LoadLibraryA(name); }
void *loci_library_find(void *library, const char *name)
{
    union {
        FARPROC function;
        void *address;
    } found = { .function = GetProcAddress(library, name) };
    return found.address;
}
const char *loci_library_error(void) { return "the system cannot load it"; }
