/* SPDX-License-Identifier: MIT */
/* file.c -- see platform/file.h.  Open files have numbers of the C library, and share their names:
 * another process may rename or remove an open file, as elsewhere. */
#define _CRT_RAND_S
#include "platform/win32/windows.h"
#include "platform/win32/text.h"
#include "platform/file.h"

#include <errno.h>
#include <fcntl.h>
#include <io.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Errors and names ------------------------------------------------------------------------ */

/* errno for what the system says. */
static void set_errno(void)
{
    static const struct {
        DWORD system;
        int c;
    } list[] = {
        { ERROR_FILE_NOT_FOUND, ENOENT },    { ERROR_PATH_NOT_FOUND, ENOENT },
        { ERROR_INVALID_NAME, ENOENT },      { ERROR_BAD_PATHNAME, ENOENT },
        { ERROR_BAD_NETPATH, ENOENT },       { ERROR_INVALID_DRIVE, ENOENT },
        { ERROR_ACCESS_DENIED, EACCES },     { ERROR_SHARING_VIOLATION, EACCES },
        { ERROR_LOCK_VIOLATION, EACCES },    { ERROR_WRITE_PROTECT, EROFS },
        { ERROR_FILE_EXISTS, EEXIST },       { ERROR_ALREADY_EXISTS, EEXIST },
        { ERROR_DIR_NOT_EMPTY, ENOTEMPTY },  { ERROR_DISK_FULL, ENOSPC },
        { ERROR_HANDLE_DISK_FULL, ENOSPC },  { ERROR_NOT_ENOUGH_MEMORY, ENOMEM },
        { ERROR_OUTOFMEMORY, ENOMEM },       { ERROR_TOO_MANY_OPEN_FILES, EMFILE },
        { ERROR_DIRECTORY, ENOTDIR },        { ERROR_FILENAME_EXCED_RANGE, ENAMETOOLONG },
        { ERROR_INVALID_PARAMETER, EINVAL }, { ERROR_INVALID_HANDLE, EBADF },
    };
    const DWORD why = GetLastError();
    errno = EIO;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (list[i].system == why) errno = list[i].c;
}
static bool failed(void)
{
    set_errno();
    return false;
}

wchar_t *loci_win32_wide(const char *text)
{
    const int n = MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, text, -1, NULL, 0);
    wchar_t *to = n > 0 ? malloc((size_t)n * sizeof *to) : NULL;
    if (to) MultiByteToWideChar(CP_UTF8, 0, text, -1, to, n);
    else errno = n > 0 ? ENOMEM : ENOENT; /* no file has a name that is not UTF-8 */
    return to;
}
char *loci_win32_utf8(const wchar_t *text)
{
    const int n = WideCharToMultiByte(CP_UTF8, 0, text, -1, NULL, 0, NULL, NULL);
    char *to = n > 0 ? malloc((size_t)n) : NULL;
    if (to) WideCharToMultiByte(CP_UTF8, 0, text, -1, to, n, NULL, NULL);
    else errno = ENOMEM;
    return to;
}

/* ---- What a path is -------------------------------------------------------------------------- */

static bool fill(HANDLE h, struct file_info *to)
{
    BY_HANDLE_FILE_INFORMATION i;
    *to = (struct file_info){ .kind = FILE_OTHER, .mode = 0666 };
    if (GetFileType(h) != FILE_TYPE_DISK) return true;
    if (!GetFileInformationByHandle(h, &i)) return failed();
    const uint64_t ticks =
        (uint64_t)i.ftLastWriteTime.dwHighDateTime << 32 | i.ftLastWriteTime.dwLowDateTime;
    to->kind = i.dwFileAttributes & FILE_ATTRIBUTE_DIRECTORY ? FILE_FOLDER : FILE_PLAIN;
    to->size = (uint64_t)i.nFileSizeHigh << 32 | i.nFileSizeLow;
    to->changed = 1e-7 * ((double)ticks - 116444736e9);
    to->device = i.dwVolumeSerialNumber;
    to->number = (uint64_t)i.nFileIndexHigh << 32 | i.nFileIndexLow;
    return true;
}
/* Opens a file or folder to look at it, without access to its data. */
static bool look(const char *path, DWORD flags, struct file_info *to)
{
    wchar_t *wide = loci_win32_wide(path);
    if (!wide) return false;
    const HANDLE h = CreateFileW(wide, FILE_READ_ATTRIBUTES,
                                 FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, NULL,
                                 OPEN_EXISTING, FILE_FLAG_BACKUP_SEMANTICS | flags, NULL);
    free(wide);
    if (h == INVALID_HANDLE_VALUE) return failed();
    const bool good = fill(h, to);
    CloseHandle(h);
    return good;
}
bool loci_path_info(const char *path, struct file_info *to) { return look(path, 0, to); }
bool loci_link_info(const char *path, struct file_info *to)
{
    return look(path, FILE_FLAG_OPEN_REPARSE_POINT, to);
}
bool loci_file_info(int file, struct file_info *to)
{
    return fill((HANDLE)_get_osfhandle(file), to);
}

/* ---- Open files ------------------------------------------------------------------------------ */

static int open_as(const char *path, DWORD access, DWORD how, DWORD flags, int mode)
{
    wchar_t *wide = loci_win32_wide(path);
    if (!wide) return -1;
    const HANDLE h =
        CreateFileW(wide, access, FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, NULL, how,
                    FILE_ATTRIBUTE_NORMAL | flags, NULL);
    free(wide);
    if (h == INVALID_HANDLE_VALUE) return set_errno(), -1;
    const int file = _open_osfhandle((intptr_t)h, mode | _O_BINARY | _O_NOINHERIT);
    if (file < 0) CloseHandle(h);
    return file;
}
int loci_file_open(const char *path)
{
    return open_as(path, GENERIC_READ, OPEN_EXISTING, 0, _O_RDONLY);
}
int loci_file_open_here(const char *path)
{
    return open_as(path, GENERIC_READ, OPEN_EXISTING, FILE_FLAG_OPEN_REPARSE_POINT, _O_RDONLY);
}
/* A folder's access list says who may read its files, so nothing is secret. */
int loci_file_create(const char *path, bool secret)
{
    (void)secret;
    return open_as(path, GENERIC_READ | GENERIC_WRITE | DELETE, CREATE_NEW, 0, _O_RDWR);
}
void loci_file_close(int file) { _close(file); }

/* With a position of its own, a call needs no seek. */
static ptrdiff_t transfer(int file, bool read, void *data, size_t bytes, uint64_t at)
{
    const HANDLE h = (HANDLE)_get_osfhandle(file);
    OVERLAPPED place = { .Offset = (DWORD)at, .OffsetHigh = (DWORD)(at >> 32) };
    const DWORD part = bytes < 1 << 30 ? (DWORD)bytes : 1 << 30;
    DWORD n = 0;
    const BOOL good =
        read ? ReadFile(h, data, part, &n, &place) : WriteFile(h, data, part, &n, &place);
    if (good || (read && GetLastError() == ERROR_HANDLE_EOF)) return (ptrdiff_t)n;
    set_errno();
    return -1;
}
ptrdiff_t loci_file_read(int file, void *to, size_t bytes, uint64_t at)
{
    return transfer(file, true, to, bytes, at);
}
ptrdiff_t loci_file_write_at(int file, const void *data, size_t bytes, uint64_t at)
{
    return transfer(file, false, (void *)data, bytes, at);
}
ptrdiff_t loci_file_write(int file, const void *data, size_t bytes)
{
    return _write(file, data, bytes < 1 << 30 ? (unsigned)bytes : 1 << 30);
}
bool loci_file_sync(int file) { return !_commit(file); }
bool loci_file_inherit(int file, const struct file_info *from)
{
    (void)file, (void)from;
    return true; /* access comes from the folder */
}

/* ---- Paths ----------------------------------------------------------------------------------- */

static bool is_slash(char c) { return c == '/' || c == '\\'; }
size_t loci_path_folder(const char *path)
{
    size_t n = strlen(path);
    while (n && !is_slash(path[n - 1]) && path[n - 1] != ':') n--;
    return n;
}
bool loci_path_absolute(const char *path)
{
    return is_slash(path[0]) || (path[0] && path[1] == ':');
}
/* Links are rare here, and replacing one is what its other programs do. */
char *loci_path_target(const char *path)
{
    char *to = malloc(strlen(path) + 1);
    return to ? strcpy(to, path) : NULL;
}
static bool has_attributes(const char *path, DWORD unwanted)
{
    wchar_t *wide = loci_win32_wide(path);
    if (!wide) return false;
    const DWORD found = GetFileAttributesW(wide);
    free(wide);
    if (found == INVALID_FILE_ATTRIBUTES) return failed();
    errno = EACCES;
    return !(found & unwanted);
}
bool loci_path_writable(const char *path) { return has_attributes(path, FILE_ATTRIBUTE_READONLY); }
/* The attribute of a folder means something else, so only creating a file will tell. */
bool loci_folder_writable(const char *path) { return has_attributes(path, 0); }

static bool with_wide(const char *path, BOOL(WINAPI *call)(const wchar_t *))
{
    wchar_t *wide = loci_win32_wide(path);
    if (!wide) return false;
    const bool good = call(wide) || failed();
    const int why = errno;
    free(wide);
    errno = why;
    return good;
}
bool loci_path_rename(const char *from, const char *to)
{
    wchar_t *a = loci_win32_wide(from), *b = loci_win32_wide(to);
    const bool good =
        a && b
        && (MoveFileExW(a, b, MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH) || failed());
    free(a);
    free(b);
    return good;
}
bool loci_path_remove(const char *path) { return with_wide(path, DeleteFileW); }

/* ---- Folders --------------------------------------------------------------------------------- */

static BOOL WINAPI make(const wchar_t *path) { return CreateDirectoryW(path, NULL); }
bool loci_folder_make(const char *path) { return with_wide(path, make); }
bool loci_folder_remove(const char *path) { return with_wide(path, RemoveDirectoryW); }
void loci_folder_sync(const char *path) { (void)path; } /* MOVEFILE_WRITE_THROUGH has done it */

struct folder {
    HANDLE search;
    WIN32_FIND_DATAW next;
    bool more;
    char *name;
};
struct folder *loci_folder_open(const char *path)
{
    const size_t n = strlen(path);
    char *all = malloc(n + 3);
    struct folder *f = calloc(1, sizeof *f);
    wchar_t *wide = NULL;
    if (all && f) {
        snprintf(all, n + 3, "%s%s*", path, n && is_slash(path[n - 1]) ? "" : "/");
        wide = loci_win32_wide(all);
    }
    free(all);
    if (wide) {
        f->search = FindFirstFileW(wide, &f->next);
        f->more = f->search != INVALID_HANDLE_VALUE;
        if (!f->more) set_errno();
    }
    free(wide);
    if (f && f->more) return f;
    free(f);
    return NULL;
}
const char *loci_folder_next(struct folder *f)
{
    free(f->name);
    f->name = f->more ? loci_win32_utf8(f->next.cFileName) : NULL;
    f->more = f->more && FindNextFileW(f->search, &f->next);
    return f->name;
}
void loci_folder_close(struct folder *f)
{
    FindClose(f->search);
    free(f->name);
    free(f);
}

bool loci_random(uint64_t *to)
{
    unsigned low, high;
    if (rand_s(&low) || rand_s(&high)) return false;
    *to = (uint64_t)high << 32 | low;
    return true;
}
