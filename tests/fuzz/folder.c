/* SPDX-License-Identifier: MIT */
/* folder.c -- files as seeds. */
#define _DEFAULT_SOURCE
#include <dirent.h>
#include <stdbool.h>
#include <string.h>

#include "fuzz.h"

void fuzz_add_folder(const char *folder, const char *suffix, void (*to)(const void *, size_t))
{
    static unsigned char data[1 << 15];
    struct dirent **list;
    /* sorted, so that a run can be repeated */
    const int n = scandir(folder, &list, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        char path[512];
        const size_t length = strlen(list[i]->d_name), tail = strlen(suffix);
        snprintf(path, sizeof path, "%s/%s", folder, list[i]->d_name);
        const bool fits = list[i]->d_name[0] != '.' && length > tail
                       && !strcmp(list[i]->d_name + length - tail, suffix);
        FILE *f = fits ? fopen(path, "rb") : NULL;
        if (f) {
            to(data, fread(data, 1, sizeof data, f));
            fclose(f);
        }
        free(list[i]);
    }
    if (n >= 0) free(list);
}
