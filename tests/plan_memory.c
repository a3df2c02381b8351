/* SPDX-License-Identifier: MIT */
/* A plan when memory runs out: every allocation fails once, nothing leaks, and the sentence says so.  The sources are
 * compiled into this test with an allocator that counts. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int left, live;                   /* allocations until the failing one; blocks not yet freed */

static void *counted(void *block)
{
    live += block != NULL;
    return block;
}
static void *counted_malloc(size_t n) { return left-- == 0 ? NULL : counted(malloc(n)); }
static void *counted_calloc(size_t n, size_t size) { return left-- == 0 ? NULL : counted(calloc(n, size)); }
static void counted_free(void *block)
{
    live -= block != NULL;
    free(block);
}
#define malloc counted_malloc
#define calloc counted_calloc
#define free counted_free
#include <parse.c>
#include <plan.c>

int main(void)
{
    static const char *const good[] = { "nope", "rope:pairing=half+t5+alibi+cape", "shaw+sba" };
    static const char *const bad[] = { "t5:bucket=3", "rope", "rope:pairing=half+rope:pairing=half", "alibi+sba+zzz" };
    int passed = 0, failed = 0;
    for (int i = 0; i < COUNT(good); i++)
        for (int n = 0; n < 20; n++) {
            loci_desc d = { .encoding = good[i], .heads = 4, .dim = 8, .isa = "scalar" };
            loci_error e = { 0 };
            loci_plan *p = (loci_plan *)&d;
            left = n;
            loci_status status = loci_plan_create(&p, &d, &e);
            bool ran_out = left < 0;
            bool ok = ran_out ? status == LOCI_NO_MEMORY && !p && strstr(e.text, "memory") : status == LOCI_OK && p;
            loci_plan_destroy(p);
            ok = ok && live == 0;
            ok ? passed++ : failed++;
            if (!ok) printf("plan_memory: %s, failing at %d: status %d, %d blocks left\n", good[i], n, status, live);
        }
    for (int i = 0; i < COUNT(bad); i++) {
        loci_desc d = { .encoding = bad[i], .heads = 4, .dim = 8, .isa = "scalar" };
        loci_plan *p;
        left = -1;
        bool ok = loci_plan_create(&p, &d, NULL) == LOCI_BAD_ARG && !p && live == 0;
        ok ? passed++ : failed++;
        if (!ok) printf("plan_memory: %s, %d blocks left\n", bad[i], live);
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
