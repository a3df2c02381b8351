/* SPDX-License-Identifier: MIT */
/* file.h -- files and folders.  Paths are UTF-8 on Windows, and bytes elsewhere.
 *
 * Functions that fail return false, -1 or NULL, and errno says why. */
#ifndef LOCI_PLATFORM_FILE_H
#define LOCI_PLATFORM_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum file_kind { FILE_PLAIN = 1, FILE_FOLDER, FILE_OTHER };
struct file_info {
    enum file_kind kind; /* 0 in a struct that no file has filled */
    uint64_t size;
    double changed;          /* seconds since 1970 */
    uint64_t device, number; /* the same file under two names has the same two */
    unsigned mode, owner, group;
};
/* What a path is, or the target of the link that it is. */
bool loci_path_info(const char *path, struct file_info *);
bool loci_link_info(const char *path, struct file_info *); /* of the link itself */
bool loci_file_info(int file, struct file_info *);

/* Opens for reading.  Never waits, whatever the path is. */
int loci_file_open(const char *path);
/* The path is no link either. */
int loci_file_open_here(const char *path);
/* Creates a file that is not there yet, for reading and writing.  secret: for its owner alone. */
int loci_file_create(const char *path, bool secret);
void loci_file_close(int file);
/* One attempt: it may read or write fewer bytes, and return -1 with EINTR. */
ptrdiff_t loci_file_read(int file, void *to, size_t bytes, uint64_t at);
ptrdiff_t loci_file_write(int file, const void *data, size_t bytes);
ptrdiff_t loci_file_write_at(int file, const void *data, size_t bytes, uint64_t at);
/* All that was written is on the disk. */
bool loci_file_sync(int file);
/* Gives an open file the mode, owner and group of another one, as far as the system allows. */
bool loci_file_inherit(int file, const struct file_info *from);

/* The length of a path's folder, with its slash. */
size_t loci_path_folder(const char *path);
bool loci_path_absolute(const char *path);
/* The target of a link, even if it does not exist, or a copy of any other path.  The caller frees
 * it. */
char *loci_path_target(const char *path);
bool loci_path_writable(const char *path);   /* an existing file */
bool loci_folder_writable(const char *path); /* new files can be created in it */
/* Replaces the file `to`, at once. */
bool loci_path_rename(const char *from, const char *to);
bool loci_path_remove(const char *path);

bool loci_folder_make(const char *path);
bool loci_folder_remove(const char *path);
/* The names in it are on the disk. */
void loci_folder_sync(const char *path);
struct folder;
struct folder *loci_folder_open(const char *path);
const char *loci_folder_next(struct folder *); /* a name, "." and ".." too; NULL: no more */
void loci_folder_close(struct folder *);

/* Numbers that nobody can foresee. */
bool loci_random(uint64_t *);

#endif
