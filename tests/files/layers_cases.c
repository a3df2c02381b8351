/* SPDX-License-Identifier: MIT */
/* layers_cases.c -- golden numbers of the functions of loci/layers.h, tests/cases/layers.  They
 * come from a float64 oracle.  A file has x, dy and optional rate, before and dafter, and
 * expect.NAME for each result. */
#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "loci/layers.h"
#include "models/safetensors.h"
#include "harness.h"
#include "mem.h"

static struct mem mem;
static struct safetensors file;

static const struct safetensor *entry(const char *name)
{
    for (int i = 0; i < file.count; i++)
        if (!strcmp(file.tensor[i].name, name)) return &file.tensor[i];
    return NULL;
}
/* Its numbers as doubles, NULL if absent. */
static double *numbers(const char *name)
{
    const struct safetensor *t = entry(name);
    loci_error e = { 0 };
    if (!t) return NULL;
    double *x = mem_alloc(&mem, (size_t)(t->count + 1) * sizeof *x);
    float *stored = mem_alloc(&mem, (size_t)(t->count + 1) * sizeof *stored);
    const bool wide = t->type == ST_F64;
    CHECK_THAT((wide || t->type == ST_F32)
                   && !loci_safetensors_read(&file, t, wide ? (void *)x : stored, &e),
               "%s: %s", name, e.text);
    for (ptrdiff_t i = 0; i < t->count && !wide; i++) x[i] = (double)stored[i];
    return x;
}
/* The largest difference from what the file expects, NAN if it has nothing. */
static double off(const char *name, const double *got, bool angle)
{
    const struct safetensor *t = entry(name);
    const double *want = numbers(name);
    double most = want ? 0 : NAN;
    for (ptrdiff_t i = 0; want && i < t->count; i++) {
        const double d = angle ? hypot(cos(got[i]) - cos(want[i]), sin(got[i]) - sin(want[i]))
                               : got[i] - want[i];
        if (!(fabs(d) <= most)) most = isnan(d) ? INFINITY : fabs(d);
    }
    return most;
}
static loci_view at(const void *x) { return (loci_view){ (void *)x, 0, 0, 0 }; }

static void check_case(const char *path)
{
    loci_error e = { 0 };
    if (!CHECK_THAT(!loci_safetensors_open(&file, path, &e), "%s: %s", path, e.text)) return;
    const char *name = loci_safetensors_meta(&file, "loci.layer"),
               *exclusive = loci_safetensors_meta(&file, "exclusive");
    const struct safetensor *t = entry("x");
    CHECK_THAT(name && !strcmp(name, "running_angles") && exclusive && t && t->rank == 4,
               "%s: an unknown layer", path);
    const ptrdiff_t B = t->shape[0], H = t->shape[1], W = t->shape[3], sums = B * H * W;
    const loci_layer l = LOCI_LAYER(.dtype = LOCI_F64, .batch = B, .rows = t->shape[2],
                                    .heads = (int)H, .width = (int)W, .error = &e);
    const double *x = numbers("x"), *dy = numbers("dy"), *rate = numbers("rate"),
                 *before = numbers("before"), *dafter = numbers("dafter");
    double *y = mem_alloc(&mem, (size_t)t->count * sizeof *y),
           *dx = mem_alloc(&mem, (size_t)t->count * sizeof *dx),
           *after = mem_alloc(&mem, (size_t)sums * sizeof *after),
           *drate = mem_alloc(&mem, (size_t)(H * W) * sizeof *drate),
           *dbefore = mem_alloc(&mem, (size_t)sums * sizeof *dbefore);
    CHECK_THAT(!loci_running_angles(&l, at(x), rate, exclusive[0] == '1', NULL, 0, before, after,
                                    at(y))
                   && !loci_running_angles_backward(&l, at(x), rate, exclusive[0] == '1', NULL, 0,
                                                    at(dy), dafter, at(dx), drate, dbefore),
               "%s: %s", path, e.text);
    CHECK_CLOSE(off("expect.y", y, true), 0, 1e-12, "%s: y", path);
    CHECK_CLOSE(off("expect.after", after, true), 0, 1e-12, "%s: after", path);
    CHECK_CLOSE(off("expect.d.x", dx, false), 0, 1e-11, "%s: dx", path);
    CHECK_CLOSE(off("expect.d.before", dbefore, false), 0, 1e-11, "%s: dbefore", path);
    if (rate) CHECK_CLOSE(off("expect.d.rate", drate, false), 0, 1e-10, "%s: drate", path);
    loci_safetensors_close(&file);
    mem_release(&mem, 0);
}

int main(void)
{
    DIR *folder = opendir("tests/cases/layers");
    int count = 0;
    char path[512];
    if (!folder) exit(2);
    for (struct dirent *d; (d = readdir(folder));) {
        if (!strstr(d->d_name, ".safetensors")) continue;
        snprintf(path, sizeof path, "tests/cases/layers/%s", d->d_name);
        check_case(path);
        count++;
    }
    closedir(folder);
    CHECK_THAT(count == 3, "tests/cases/layers has %d files", count);
    return harness_end();
}
