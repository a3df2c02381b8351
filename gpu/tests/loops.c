/* SPDX-License-Identifier: MIT */
/* loops.c -- see loops.h. */
#define _DEFAULT_SOURCE
#include "loops.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "aligned.h"
#include "scratch.h"

/* without it each fma of doubles is a call */
#if defined __x86_64__
static const char native[] = "-march=native ";
#else
static const char native[] = "";
#endif

/* What follows the kernels of a program. */
static const char entry[] =
    "\n#line 1 \"loops\"\n"
    "static int order[THREADS];\n"
    "_Thread_local const int *loci_host_order = order;\n"
    "#define START(kernel) \\\n"
    "    static void start_##kernel(const struct arrays *at, const struct params *p, \\\n"
    "                               int groups, float *room) \\\n"
    "    { \\\n"
    "        for (int i = 0; i < THREADS; i++) order[i] = (i * 37 + 11) % THREADS; \\\n"
    "        for (int x = groups - 1; x >= 0; x--) \\\n"
    "            kernel((struct block){ *at, p, .x = x, .room = room, .scan = room }); \\\n"
    "    }\n"
    "LOCI_KERNELS(START)\n"
    "#define ENTRY(kernel) { \"loci_\" #kernel, start_##kernel },\n"
    "const struct {\n"
    "    const char *name;\n"
    "    void (*start)(const struct arrays *, const struct params *, int, float *);\n"
    "} loops_kernels[] = { LOCI_KERNELS(ENTRY) { 0, 0 } };\n";

struct loops {
    void *library;
    const struct loops_kernel *kernels; /* the last one has no name */
};

static bool write_file(const char *path, const char *source)
{
    FILE *f = fopen(path, "w");
    if (!f) return false;
    const bool written = fputs(source, f) >= 0 && fputs(entry, f) >= 0;
    return !fclose(f) && written;
}
struct loops *loops_compile(const char *source)
{
    enum { PATH = SCRATCH + 16 };
    char folder[SCRATCH], c[PATH], so[PATH], command[4 * PATH];
    const char *cc = getenv("CC");
    struct loops *l = calloc(1, sizeof *l);
    scratch(folder, "loops");
    if (!l || !mkdtemp(folder)) {
        free(l);
        return NULL;
    }
    snprintf(c, sizeof c, "%s/program.c", folder);
    snprintf(so, sizeof so, "%s/program.so", folder);
    snprintf(command, sizeof command,
             "%s -std=gnu17 -w -Og %s-ffp-contract=off -fno-math-errno -fPIC -shared -I'%s' "
             "-o '%s' '%s' -lm",
             cc && *cc ? cc : "cc", native, LOCI_SOURCES, so, c);
    if (write_file(c, source) && system(command) == 0) {
        l->library = dlopen(so, RTLD_NOW | RTLD_LOCAL);
        if (l->library) l->kernels = dlsym(l->library, "loops_kernels");
        else fprintf(stderr, "%s\n", dlerror());
    }
    unlink(c);
    unlink(so);
    rmdir(folder);
    if (l->kernels) return l;
    loops_close(l);
    return NULL;
}
void loops_close(struct loops *l)
{
    if (l->library) dlclose(l->library);
    free(l);
}
const struct loops_kernel *loops_kernel(const struct loops *l, const char *name)
{
    const struct loops_kernel *k = l->kernels;
    while (k->name && strcmp(k->name, name) != 0) k++;
    return k->name ? k : NULL;
}
bool loops_run(const struct loops_kernel *k, int groups, size_t shared, const struct arrays *at,
               const struct params *p)
{
    float *room = aligned_new(shared);
    if (!room) return false;
    k->start(at, p, groups, room);
    aligned_free(room);
    return true;
}
