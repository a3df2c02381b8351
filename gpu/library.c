/* SPDX-License-Identifier: MIT */
/* library.c -- see library.h. */
#include "library.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "platform/system.h"

/* Opens one of the files in a folder, which ends with its slash, or where the system looks.  `why`
 * is what it says of the first. */
static void *open_first(const char *const *files, const char *folder, const char **name, char *why,
                        size_t capacity)
{
    char path[4096];
    *why = 0;
    for (int i = 0; files[i]; i++) {
        *name = files[i];
        if (snprintf(path, sizeof path, "%s%s", folder, files[i]) >= (int)sizeof path) break;
        void *library = loci_library_open(path);
        if (library) return library;
        if (!*why) snprintf(why, capacity, "%s", loci_library_error());
    }
    return NULL;
}

/* The file or folder that the environment names. */
static void *open_given(const struct library *l, const char *given, const char **name, char *why,
                        size_t capacity)
{
    char folder[4096], ignored[256];
    void *library = loci_library_open(given);
    *name = given;
    if (library) return library;
    snprintf(why, capacity, "%s", loci_library_error());
    if (snprintf(folder, sizeof folder, "%s/", given) >= (int)sizeof folder) return NULL;
    return open_first(l->files, folder, name, ignored, sizeof ignored);
}

bool loci_library_load(const struct library *l, void *table, char *why, size_t capacity)
{
    const char *given = getenv(l->variable), *name = "";
    char told[256];
    if (given && !strcmp(given, "none")) {
        snprintf(why, capacity, "%s is switched off by %s=none", l->what, l->variable);
        return false;
    }
    const bool named = given && *given;
    void *library = named ? open_given(l, given, &name, told, sizeof told)
                          : open_first(l->files, "", &name, told, sizeof told);
    if (!library) {
        if (named)
            snprintf(why, capacity, "%s=%.160s cannot be opened: %s", l->variable, given, told);
        else snprintf(why, capacity, "there is no %s (%s): %s", l->what, told, l->hint);
        return false;
    }
    for (int i = 0; i < l->count; i++) {
        void *address = loci_library_find(library, l->functions[i].name);
        if (!address) {
            snprintf(why, capacity, "%s is too old: %.160s has no %s()", l->what, name,
                     l->functions[i].name);
            return false;
        }
        /* C has no cast from data to functions. */
        memcpy((char *)table + l->functions[i].at, &address, sizeof address);
    }
    return true;
}

/* Does the line have the word "error" in any case? */
static bool tells_error(const char *line, size_t length)
{
    static const char word[] = "error";
    const size_t n = sizeof word - 1;
    for (size_t i = 0; i + n <= length; i++) {
        size_t same = 0;
        while (same < n && tolower((unsigned char)line[i + same]) == word[same]) same++;
        if (same == n) return true;
    }
    return false;
}

void loci_log_error(const char *log, char *line, size_t capacity)
{
    const char *best = "the compiler's log is empty";
    size_t length = strlen(best);
    bool any = false;
    for (const char *at = log; *at;) {
        at += strspn(at, " \t\r\n");
        const size_t n = strcspn(at, "\r\n");
        const bool error = tells_error(at, n);
        if (error || (n && !any)) best = at, length = n, any = true;
        if (error) break;
        at += n;
    }
    snprintf(line, capacity, "%.*s", (int)(length < 1000 ? length : 1000), best);
}
