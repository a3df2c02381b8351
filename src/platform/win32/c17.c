/* SPDX-License-Identifier: MIT */
/* c17.c -- see c17.h.  A table has the address of every block of aligned_alloc(), so that free()
 * knows them.  It is hashed, with open addressing, and at most half full. */
#include "platform/clock.h"
#include "platform/thread.h"

#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void *loci_win32_aligned(size_t alignment, size_t bytes);
void loci_win32_free(void *);
int loci_win32_timespec(struct timespec *, int base);

static struct mutex using = MUTEX_INIT;
static void **table;
static size_t capacity, used; /* capacity: a power of 2 */

static size_t slot_of(const void *p)
{
    size_t i = (size_t)((uintptr_t)p / 64 * 0x9e3779b97f4a7c15u >> 20) & (capacity - 1);
    while (table[i] && table[i] != p) i = (i + 1) & (capacity - 1);
    return i;
}
static bool add(void *p)
{
    if (2 * used >= capacity) {
        void **old = table;
        const size_t n = capacity, more = n ? 2 * n : 256;
        void **bigger = calloc(more, sizeof *bigger);
        if (!bigger) return false;
        table = bigger;
        capacity = more;
        for (size_t i = 0; i < n; i++)
            if (old[i]) table[slot_of(old[i])] = old[i];
        free(old);
    }
    table[slot_of(p)] = p;
    used++;
    return true;
}
/* Blocks behind the gap are entered again, so that none is lost. */
static bool remove_block(const void *p)
{
    if (!capacity) return false;
    size_t i = slot_of(p);
    if (!table[i]) return false;
    table[i] = NULL;
    used--;
    while (table[i = (i + 1) & (capacity - 1)]) {
        void *moved = table[i];
        table[i] = NULL;
        table[slot_of(moved)] = moved;
    }
    return true;
}

void *loci_win32_aligned(size_t alignment, size_t bytes)
{
    void *p = _aligned_malloc(bytes, alignment);
    if (!p) return NULL;
    mutex_lock(&using);
    const bool known = add(p);
    mutex_unlock(&using);
    if (known) return p;
    _aligned_free(p);
    errno = ENOMEM;
    return NULL;
}
void loci_win32_free(void *p)
{
    bool ours = false;
    if (p && (uintptr_t)p % 16 == 0) {
        mutex_lock(&using);
        ours = remove_block(p);
        mutex_unlock(&using);
    }
    if (ours) _aligned_free(p);
    else free(p);
}

int loci_win32_timespec(struct timespec *to, int base)
{
    const double now = loci_clock_utc();
    to->tv_sec = (time_t)now;
    to->tv_nsec = (long)(1e9 * (now - (double)to->tv_sec));
    return base;
}
