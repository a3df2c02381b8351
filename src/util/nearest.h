/* SPDX-License-Identifier: MIT */
/* nearest.h -- suggestions for a misspelt name: the nearest of the known names. */
#ifndef LOCI_UTIL_NEAREST_H
#define LOCI_UTIL_NEAREST_H

#include <stddef.h>
#include <string.h>

/* How many letters must change to turn a into b (Levenshtein), for words of ordinary length. */
static inline int edits(const char *a, const char *b)
{
    enum { ROOM = 32 };
    int row[ROOM + 1];
    int m = (int)strlen(a), n = (int)strlen(b);
    if (m > ROOM || n > ROOM) return ROOM;
    for (int j = 0; j <= n; j++) row[j] = j;
    for (int i = 1; i <= m; i++) {
        int corner = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int best = corner + (a[i - 1] != b[j - 1]);
            corner = row[j];
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[n];
}

/* A name to suggest.  NULL if more than half of the letters would have to change. */
static inline const char *nearest(const char *word, const char *(*name)(int), int count)
{
    const char *best = NULL;
    int least = (int)strlen(word) / 2 + 1;
    for (int i = 0; i < count; i++) {
        int d = edits(word, name(i));
        if (d < least) least = d, best = name(i);
    }
    return best;
}

#endif
