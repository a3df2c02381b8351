/* SPDX-License-Identifier: MIT */
/* device_none.c -- replaces device.c and the commands on a device in builds without libloci-gpu. */
#include <string.h>

#include "cli/device.h"

static const char sentence[] = "this build has no GPU support; -DLOCI_GPU=ON builds it";

void device_look(struct device_list *l)
{
    *l = (struct device_list){ .absent = 1, .why = { { .status = LOCI_UNSUPPORTED } } };
    strcpy(l->why[0].text, sentence);
}
bool device_open(const struct args *a, int flag, loci_gpu **gpu)
{
    *gpu = NULL;
    return refuse("%s: --%s: %s", a->command->name, a->command->flags[flag].name, sentence);
}
void device_close(loci_gpu *gpu) { (void)gpu; }
void device_print(const loci_gpu_info *info) { (void)info; }

/* Without a device none of these is called. */
loci_status device_compute(loci_gpu *gpu, struct task *t, ptrdiff_t max_distance, bool backward)
{
    (void)gpu, (void)t, (void)max_distance, (void)backward;
    return LOCI_UNSUPPORTED;
}
int device_check(loci_gpu *gpu, bool json)
{
    (void)gpu, (void)json;
    return fail("%s", sentence);
}
bool device_bench_open(struct device_bench *b)
{
    (void)b;
    return refuse("%s", sentence);
}
bool device_bench_one(struct device_bench *b, const struct problem *p, const char *encoding)
{
    (void)b, (void)p, (void)encoding;
    return refuse("%s", sentence);
}
void device_bench_close(struct device_bench *b, bool done) { (void)b, (void)done; }
