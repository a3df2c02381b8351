/* SPDX-License-Identifier: MIT */
/* case.c -- case files.  An accepted one is computed, forward and backward, with a result or a
 * sentence.  Cases with positions far apart are not computed: the tables of a million distances are
 * too slow for a fuzzer. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cli/case.h"
#include "fuzz.h"

enum { FAR = 1 << 14 };

static void compute(struct case_file *c)
{
    struct task *t = &c->task;
    loci_status s = task_prepare(t, c->max_distance, c->backward);
    if (!s) s = task_forward(t);
    if (!s && c->backward) s = task_backward(t);
    FUZZ_CHECK(!s || t->error.text[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1, nowhere, screen;
    static char path[32];
    struct case_file c;
    if (fd < 0) {
        fd = memfd_create("fuzz", MFD_CLOEXEC);
        nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
        screen = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    if (fd < 0 || ftruncate(fd, 0) || pwrite(fd, data, size, 0) != (ssize_t)size) exit(2);
    dup2(nowhere, STDERR_FILENO); /* a sentence for nearly every input */
    const bool sound = case_open(&c, path, size % 2 ? LOCI_F32 : LOCI_BF16, false, NULL, false);
    dup2(screen, STDERR_FILENO);
    if (sound && c.max_distance <= FAR) compute(&c);
    case_close(&c);
    return 0;
}

void fuzz_seeds(void (*add)(const void *, size_t))
{
    fuzz_add_folder("tests/cases/errors", ".safetensors", add);
    fuzz_add_folder("tests/cases", ".safetensors", add);
}
