/* SPDX-License-Identifier: MIT */
/* main.c -- drives a fuzz target without libFuzzer: seeds, changed in one to four ways, for a short
 * fixed amount of CPU time.  So a busy machine causes no timeout.
 *
 * Each input ends at a guard page, so that reading past it is detected in every build.  The first
 * input that crashes, breaks a check or takes too long ends the run and is saved.  Inputs in
 * tests/fuzz/kept/TARGET are also seeds.
 *
 *     fuzz_TARGET                  a short time, as a test
 *     fuzz_TARGET SECONDS          this time
 *     fuzz_TARGET --seeds FOLDER   writes the seeds there
 *     fuzz_TARGET --feed FILE...   these inputs, once each
 *
 * Built with LOCI_PLANTED, the run must find the planted bug within a number of inputs, and fails
 * if it does not.  The inputs come from a fixed seed. */
#define _DEFAULT_SOURCE
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/deadline.h"
#include "tests/support/scratch.h"
#include "fuzz.h"

#ifndef LOCI_PLANTED
#define LOCI_PLANTED 0
#endif
#ifdef LOCI_SANITIZED
#include <sanitizer/common_interface_defs.h>
#endif
enum {
    MOST_BYTES = 1 << 15,
    MAX_SEEDS = 256,
    DEADLINE = 2,
    USUAL_SECONDS = 2,
    FOUND_WITHIN = 500000
};

static struct seed {
    unsigned char *data;
    size_t size;
} seeds[MAX_SEEDS];
static int seed_count;
static unsigned char *page; /* the guard page */
static size_t size;         /* of the input, which ends there */
static long inputs;
static volatile sig_atomic_t feeding;

/* ---- Seeds ----------------------------------------------------------------------------------- */

static void add(const void *data, size_t n)
{
    if (seed_count == MAX_SEEDS || n > MOST_BYTES / 2) return;
    struct seed *s = &seeds[seed_count++];
    s->data = malloc(n + 1);
    if (!s->data) exit(2);
    memcpy(s->data, data, n);
    s->size = n;
}

/* ---- Changes --------------------------------------------------------------------------------- */

static uint64_t draw(void)
{
    static uint64_t state = 0x9e3779b97f4a7c15;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}
static size_t below(size_t n) { return n ? (size_t)(draw() % n) : 0; }

/* Replaces `gone` bytes at `at` by n bytes, if they fit the capacity. */
static void replace(unsigned char *data, size_t *length, size_t at, size_t gone, const void *with,
                    size_t n)
{
    static unsigned char copy[MOST_BYTES];
    if (*length - gone + n > MOST_BYTES || n > MOST_BYTES) return;
    memcpy(copy, with, n);
    memmove(data + at + n, data + at + gone, *length - at - gone);
    memcpy(data + at, copy, n);
    *length += n - gone;
}

static void change(unsigned char *data, size_t *length)
{
    static const uint64_t numbers[] = { 0,
                                        1,
                                        7,
                                        8,
                                        9,
                                        32,
                                        127,
                                        128,
                                        255,
                                        256,
                                        1024,
                                        65535,
                                        65536,
                                        INT32_MAX,
                                        UINT32_MAX,
                                        UINT64_C(1) << 32,
                                        UINT64_C(1) << 60,
                                        INT64_MAX,
                                        UINT64_C(1) << 63,
                                        UINT64_MAX,
                                        UINT64_MAX - 31 };
    static const char *const words[] = { "0",         "-1",         "0.1",
                                         "1e999",     "1e-300",     "1024",
                                         "999999999", "2147483648", "18446744073709551615",
                                         "nan",       "null",       "true",
                                         "[]",        "{}",         "\"\"",
                                         ",",         "+",          ":",
                                         "/",         "=" };
    const size_t at = below(*length), left = *length - at, part = 1 + below(left < 64 ? left : 64);
    if (*length == 0) return;
    switch (below(10)) {
    case 0:
        data[at] ^= (unsigned char)(1 << below(8));
        return;
    case 1:
        data[at] = (unsigned char)draw();
        return;
    case 2: {
        const uint64_t x = numbers[below(sizeof numbers / sizeof *numbers)];
        const size_t n = (size_t)1 << below(4);
        memcpy(data + at, &x, n < left ? n : left);
        return;
    }
    case 3:
        replace(data, length, at, part < left ? part : left, "", 0);
        return;
    case 4: { /* repeats a byte or a part */
        const size_t unit = below(2) ? 1 : part < left ? part : left;
        for (size_t i = 1 + below(100); i > 0; i--) replace(data, length, at, 0, data + at, unit);
        return;
    }
    case 5: {
        const char *word = words[below(sizeof words / sizeof *words)];
        const size_t gone = below(4);
        replace(data, length, at, gone < left ? gone : left, word, strlen(word));
        return;
    }
    case 6: { /* moves a line */
        size_t from = at, to = at, place = below(*length);
        while (from > 0 && data[from - 1] != '\n') from--;
        while (to < *length && data[to++] != '\n') {}
        while (place > 0 && data[place - 1] != '\n') place--;
        replace(data, length, place, 0, data + from, to - from);
        return;
    }
    case 7: { /* inserts a part of another seed */
        const struct seed *s = &seeds[below((size_t)seed_count)];
        const size_t from = below(s->size), n = s->size - from < 64 ? s->size - from : 64;
        replace(data, length, at, below(2) && n <= left ? n : 0, s->data + from, n);
        return;
    }
    case 8: /* another digit, in texts */
        for (size_t i = at; i < *length; i++)
            if (data[i] >= '0' && data[i] <= '9') {
                data[i] = (unsigned char)('0' + below(10));
                return;
            }
        return;
    default:
        *length = at;
        return;
    }
}

/* ---- The run --------------------------------------------------------------------------------- */

/* The input is a failure: of the reader, or of the bug planted in it. */
static void found(const char *how)
{
    feeding = 0;
#if LOCI_PLANTED
    printf("planted mistake found: %s, after %ld inputs\n1 passed, 0 failed\n", how, inputs);
    fflush(stdout);
    _exit(0);
#else
    char path[SCRATCH];
    scratch(path, "fuzz");
    const int fd = mkstemp(path);
    const bool kept = fd >= 0 && write(fd, page - size, size) == (ssize_t)size;
    printf("fuzz: %s, at input %ld, %s %s\n0 passed, 1 failed\n", how, inputs,
           kept ? "kept as" : "not kept as", path);
    fflush(stdout);
    _exit(1);
#endif
}
static void on_signal(int number)
{
    if (!feeding) _exit(128 + number);
    found(number == SIGPROF   ? "it took too long"
          : number == SIGABRT ? "a check does not hold"
                              : "a crash");
}
#ifdef LOCI_SANITIZED
static void on_death(void)
{
    if (feeding) found("a sanitizer's report");
}
#endif

static double spent(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void feed(const unsigned char *data, size_t n)
{
    size = n;
    memcpy(page - n, data, n);
    inputs++;
    feeding = 1;
    deadline(DEADLINE);
    LLVMFuzzerTestOneInput(page - n, n);
    deadline(0);
    feeding = 0;
}

/* The target's name is the program's, without prefix and suffix. */
static void add_kept(const char *program)
{
    char folder[4096];
    const char *slash = strrchr(program, '/'), *name = slash ? slash + 1 : program;
    if (!strncmp(name, "fuzz_", 5)) name += 5;
    snprintf(folder, sizeof folder, "%s/%.*s", LOCI_KEPT, (int)strcspn(name, "_"), name);
    fuzz_add_folder(folder, "", add);
}
static int write_seeds(const char *folder)
{
    for (int i = 0; i < seed_count; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/seed-%03d", folder, i);
        FILE *f = fopen(path, "wb");
        if (!f || fwrite(seeds[i].data, 1, seeds[i].size, f) != seeds[i].size || fclose(f)) {
            fprintf(stderr, "fuzz: %s cannot be written\n", path);
            return 1;
        }
    }
    return 0;
}
static int feed_files(int n, char **paths)
{
    static unsigned char data[MOST_BYTES];
    for (int i = 0; i < n; i++) {
        FILE *f = fopen(paths[i], "rb");
        if (!f) {
            fprintf(stderr, "fuzz: %s cannot be read\n", paths[i]);
            return 1;
        }
        const size_t bytes = fread(data, 1, sizeof data, f);
        fclose(f);
        feed(data, bytes);
    }
    printf("%d inputs\n%d passed, 0 failed\n", n, n);
    return 0;
}

int main(int argc, char **argv)
{
    static unsigned char data[MOST_BYTES];
    static const int signals[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGPROF };
    const double seconds = argc > 1 ? atof(argv[1]) : USUAL_SECONDS;
    const long step = sysconf(_SC_PAGESIZE);
    unsigned char *map = mmap(NULL, MOST_BYTES + (size_t)step, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED || mprotect(map + MOST_BYTES, (size_t)step, PROT_NONE)) return 2;
    page = map + MOST_BYTES;

    /* On a stack of its own: a bug may have destroyed the main one. */
    static unsigned char stack[1 << 16];
    sigaltstack(&(stack_t){ .ss_sp = stack, .ss_size = sizeof stack }, NULL);
    struct sigaction act = { .sa_handler = on_signal, .sa_flags = SA_ONSTACK | SA_NODEFER };
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) sigaction(signals[i], &act, NULL);
#ifdef LOCI_SANITIZED
    __sanitizer_set_death_callback(on_death);
#endif
    if (LOCI_PLANTED && !freopen("/dev/null", "w", stderr)) return 2;

    static char buffer[1 << 12];
    /* after a crash malloc() may not work */
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    if (argc > 2 && !strcmp(argv[1], "--feed")) return feed_files(argc - 2, argv + 2);
    fuzz_seeds(add);
    add_kept(argv[0]);
    if (argc > 2 && !strcmp(argv[1], "--seeds")) return write_seeds(argv[2]);
    if (seed_count == 0) {
        printf("fuzz: no seeds\n0 passed, 1 failed\n");
        return 1;
    }
    for (int i = 0; i < seed_count; i++) feed(seeds[i].data, seeds[i].size);
    for (const double end = spent() + seconds;
         LOCI_PLANTED ? inputs < FOUND_WITHIN : spent() < end;) {
        const struct seed *s = &seeds[below((size_t)seed_count)];
        size_t n = s->size;
        memcpy(data, s->data, n);
        for (size_t i = 1 + below(4); i > 0; i--) change(data, &n);
        feed(data, n);
    }
    for (int i = 0; i < seed_count; i++) free(seeds[i].data);
    if (LOCI_PLANTED)
        printf("fuzz: the planted mistake was not found in %ld inputs\n0 passed, 1 failed\n",
               inputs);
    else printf("%ld inputs from %d seeds\n1 passed, 0 failed\n", inputs, seed_count);
    return LOCI_PLANTED;
}
