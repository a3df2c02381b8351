/* SPDX-License-Identifier: MIT */
/* nearest.h -- suggestions for a misspelt name: the nearest of the known names. */
#ifndef LOCI_UTIL_NEAREST_H
#define LOCI_UTIL_NEAREST_H

#include <stddef.h>
#include <string.h>

/* Letters to insert, delete or change until a, of m letters, is b, of n (Levenshtein).  Words that
 * are longer than any name are far from all. */
static inline int edits(const char *a, int m, const char *b, int n)
{
    enum { ROOM = 48 };
    int row[ROOM + 1];
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

/* A name to suggest, or NULL if more than half of the letters would have to change. */
static inline const char *nearest(const char *word, const char *(*name)(int), int count)
{
    const char *best = NULL;
    const int letters = (int)strlen(word);
    int least = letters / 2 + 1;
    for (int i = 0; i < count; i++) {
        int d = edits(word, letters, name(i), (int)strlen(name(i)));
        if (d < least) {
            least = d;
            best = name(i);
        }
    }
    return best;
}

#endif
