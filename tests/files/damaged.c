/* SPDX-License-Identifier: MIT */
/* damaged.c -- damaged case files through the whole of `loci run`, in this process.
 *
 * Golden cases are truncated, get bits flipped and hostile numbers and words spliced in.  Whatever
 * the file, the command ends within a deadline and 1 GiB, with a result or with one sentence and no
 * output file.  The files come from a fixed seed.  The first failure ends the test and preserves
 * its file. */
#define _DEFAULT_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cli/cli.h"
#include "deadline.h"
#include "harness.h"
#include "models/safetensors.h"
#include "util/byte_order.h"
#include "scratch.h"

#ifdef LOCI_SANITIZED
#include <sanitizer/common_interface_defs.h>
enum { THIN = 4, DEADLINE = 120 }; /* test one file of THIN; seconds */
#else
enum { THIN = 1, DEADLINE = 20 };
#endif

static const char *const cases[] = {
    "nope-one-token",
    "nope-packed",
    "seed-rope-d4-m2",
    "seed-t5-buckets-causal",
    "sinusoidal-odd-width",
    "fox-decode",
    "learned-repeated-positions",
    "shaw-asymmetric-full",
    "rope-cope",
    "sba-value-remainder",
    "cape-alone",
};

static char folder[SCRATCH] = "/dev/shm/loci-damaged-XXXXXX", path[SCRATCH + 16],
            result[SCRATCH + 16], said_path[SCRATCH + 16];
/* the damaged file; captured stderr; the real stdout */
static int file, said, screen;

/* ---- One file -------------------------------------------------------------------------------- */

static struct {
    const char *name, *how;
    long at;
    bool feeding;
} now_at;

static void give_up(const char *what)
{
    char text[1024] = "";
    fflush(stderr);
    if (pread(said, text, sizeof text - 1, 0) < 0) text[0] = 0;
    dprintf(screen,
            "damaged: %s, %s at %ld: %s\nits file is kept as %s, and stderr got: %s\n%d "
            "passed, 1 failed\n",
            now_at.name, now_at.how, now_at.at, what, path, text, harness_checks());
    _exit(1);
}

/* A crash, the deadline, or an exit() inside the library. */
static void die(void)
{
    if (now_at.feeding) {
        now_at.feeding = false;
        give_up("the program ended");
    }
}
static void on_signal(int number)
{
    die();
    _exit(128 + number); /* outside of feed(): a mistake of this test */
}

static void feed(void)
{
    static long turn;
    char *argv[] = { path, "-o", result, "--engine", "reference" }, text[1024];
    const bool writes = ++turn % 16 == 0, reference = turn % 64 == 0;
    struct args a;
    if (!args_parse(&a, &cmd_run, reference ? 5 : writes ? 3 : 1, argv)) exit(1);

    now_at.feeding = true;
    deadline(DEADLINE);
    const int code = cmd_run.run(&a);
    deadline(0);
    fflush(stderr);
    now_at.feeding = false;

    const ssize_t n = pread(said, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = 0;
    const char *end = strchr(text, '\n');
    const bool one_line = !strncmp(text, "loci: ", 6) && end && !end[1],
               wrote = unlink(result) == 0;
    const bool refused = code == EXIT_ERROR && one_line && !wrote;
    const bool done = (code == EXIT_DONE || code == EXIT_BROKEN) && n == 0 && wrote == writes;
    if (!refused && !done)
        give_up("neither results without a word nor one sentence without results");
    if (n && (ftruncate(said, 0) || lseek(said, 0, SEEK_SET))) exit(1);
}

static void put(const void *data, size_t n)
{
    if (ftruncate(file, 0) || pwrite(file, data, n, 0) != (ssize_t)n) exit(1);
}
static void copy_file(void) /* the contents of `result` become the damaged file */
{
    char block[4096];
    const int f = open(result, O_RDONLY);
    ssize_t n;
    if (f < 0 || ftruncate(file, 0)) exit(1);
    for (off_t at = 0; (n = read(f, block, sizeof block)) > 0; at += n)
        if (pwrite(file, block, (size_t)n, at) != n) exit(1);
    close(f);
    unlink(result);
}
static void begin(const char *how) { now_at.how = how; }
static void end(void) { harness_pass(); }

/* a counter and a mixing function: the same files every time */
static uint64_t state;
static uint64_t draw(void)
{
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* ---- Kinds of damage: data[size] is a sound case, its header header[n] ----------------------- */

static unsigned char *data, *buffer;
static size_t size, n;
static const char *header;

static void truncated(void)
{
    begin("truncated");
    put(data, size);
    for (size_t k = size; k-- > 0;) {
        if ((k >= 8 + n && k % 7) || k % THIN) continue;
        now_at.at = (long)k;
        if (ftruncate(file, (off_t)k)) exit(1);
        feed();
    }
    end();
}

static void flipped(void)
{
    begin("flipped bit");
    put(data, size);
    for (size_t bit = 0; bit < 8 * size;) {
        const unsigned char was = data[bit / 8], is = (unsigned char)(was ^ 1u << bit % 8);
        now_at.at = (long)bit;
        if (pwrite(file, &is, 1, (off_t)(bit / 8)) != 1) exit(1);
        feed();
        if (pwrite(file, &was, 1, (off_t)(bit / 8)) != 1) exit(1);
        bit += bit < 8 * 608 ? THIN : 1 + draw() % (8 * size / 200 * THIN + 1);
    }
    end();
}

/* Replaces words of the data by numbers that are dangerous as positions, segments or floats. */
static void poisoned(void)
{
    static const uint64_t words[] = {
        0,
        1,
        1u << 24,
        1u << 31,
        UINT32_MAX,
        (uint64_t)1 << 40,
        INT64_MAX,
        (uint64_t)1 << 63,
        UINT64_MAX,
        0x7f8000007f800000,
        0xff800000ff800000,
        0x7fc000007fc00000,
        0x7f7fffff7f7fffff,
        0x0000000100000001,
    };
    begin("poisoned data");
    for (int i = 0; i < 400; i += THIN) {
        const size_t at = 8 + n;
        put(data, size);
        now_at.at = i;
        for (int k = 0; k <= i % 4 && size - at >= 8; k++)
            if (pwrite(file, &words[draw() % COUNT(words)], 8,
                       (off_t)(at + draw() % ((size - at) / 8) * 8))
                != 8)
                exit(1);
        feed();
    }
    end();
}

static void wrong_lengths(void)
{
    const uint64_t lengths[] = { 0,
                                 1,
                                 2,
                                 7,
                                 n - 1,
                                 n + 1,
                                 size - 8,
                                 size - 7,
                                 size,
                                 1u << 31,
                                 UINT32_MAX,
                                 (uint64_t)1 << 62,
                                 (uint64_t)1 << 63,
                                 UINT64_MAX - 8,
                                 UINT64_MAX - 7,
                                 UINT64_MAX };
    begin("length of the header");
    for (int i = 0; i < COUNT(lengths); i++) {
        now_at.at = i;
        put(data, size);
        uint64_t length = lengths[i];
        little_endian(&length, 1, 8);
        if (pwrite(file, &length, 8, 0) != 8) exit(1);
        feed();
    }
    end();
}

/* Replaces header[from .. to - 1] by `word`. */
static void splice(size_t from, size_t to, const char *word)
{
    const size_t w = strlen(word);
    const uint64_t length = from + w + (n - to);
    memcpy(buffer, &length, 8);
    little_endian(buffer, 1, 8);
    memcpy(buffer + 8, header, from);
    memcpy(buffer + 8 + from, word, w);
    memcpy(buffer + 8 + from + w, header + to, size - 8 - to);
    put(buffer, 8 + length + (size - 8 - n));
    feed();
}

enum { LONG = 1 << 20 };
static char long_word[LONG + 1];

/* Replaces every number of shapes and offsets by each of these, and every string by each of the
 * others. */
static void spliced(void)
{
    static const char *const numbers[] = {
        "",
        "0",
        "1",
        "2",
        "3",
        "-1",
        "65536",
        "1073741824,4",
        "2147483648",
        "4294967295",
        "4294967296",
        "9223372036854775807",
        "9223372036854775808",
        "18446744073709551616",
        "1e9",
        "1.5",
        "null",
        "\"1\"",
        "[1]",
        "{}",
        "1,1",
        "0,0,0,0,0,0",
    };
    static const char *const words[] = {
        "",
        "x",
        "F32",
        "F64",
        "I64",
        "q",
        "pos",
        "q_pos",
        "lse",
        "out",
        "expect.out",
        "dout",
        "full",
        "rotate",
        "embed",
        "param.",
        "param..",
        "param.t5.table",
        "__metadata__",
        "%s%n",
        "\\u0000",
        "\\u001b[2J",
        "\\ud800",
        "\xff",
        "nan",
        "-1",
        "0",
        "1e999",
        "2147483648",
        "9223372036854775807",
        "1e-5 1e-4",
        "nope",
        "nope+nope",
        "rope:pairing=half",
        "rope:pairing=half,dim=1e9",
        "t5:buckets=65536",
        "sba:remainder=value",
        "shaw:left=65536",
        "cope:npos=1",
        "cape",
        "alibi:slopes=given",
        "fox",
    };
    begin("spliced number");
    for (size_t i = 1; i < n; i++) {
        if ((header[i - 1] != '[' && header[i - 1] != ',') || header[i] < '0' || header[i] > '9')
            continue;
        const size_t digits = strspn(header + i, "0123456789");
        for (int k = 0; k < COUNT(numbers); k++)
            if (draw() % THIN == 0) {
                now_at.at = (long)i * 100 + k;
                splice(i, i + digits, numbers[k]);
            }
    }
    end();
    begin("spliced word");
    for (size_t i = 1; i < n; i++) {
        if (header[i - 1] != '"') continue;
        size_t letters = 0;
        while (header[i + letters] != '"') letters++;
        for (int k = 0; k < COUNT(words); k++)
            if (draw() % THIN == 0) {
                now_at.at = (long)i * 100 + k;
                splice(i, i + letters, words[k]);
            }
        if (draw() % (16 * THIN) == 0) {
            now_at.at = (long)i * 100 + 99;
            splice(i, i + letters, long_word);
        }
        i += letters + 1;
    }
    end();
    begin("spliced digits");
    for (int i = 0; i < 800; i += THIN) {
        char copy[1 << 14];
        now_at.at = i;
        memcpy(copy, header, n);
        copy[n] = 0;
        for (int changes = 0, tries = 0; changes < 1 + i % 3 && tries < 1000; tries++) {
            char *c = &copy[draw() % n];
            if (*c >= '0' && *c <= '9') {
                *c = (char)('0' + draw() % 10);
                changes++;
            }
        }
        splice(0, n, copy);
    }
    end();
}

/* Duplicates the whole header, then one entry of the metadata. */
static void twice(void)
{
    size_t close = n - 1;
    while (header[close] != '}') close--;
    char *copy = malloc(2 * n + 64);
    if (!copy) exit(1);
    begin("said twice");
    now_at.at = 0;
    sprintf(copy, "{%.*s,%.*s}", (int)close - 1, header + 1, (int)close - 1, header + 1);
    splice(0, n, copy);
    now_at.at = 1;
    const char *meta = strstr(header, "\"loci.case\"");
    if (meta) splice((size_t)(meta - header), (size_t)(meta - header), "\"loci.case\":\"1\",");
    end();
    free(copy);
}

/* Sound files with a tensor of another shape or type, or without it. */
static void reshaped(void)
{
    static const enum safetensors_type types[] = { ST_F32, ST_F64, ST_I64, ST_I32, ST_BF16, ST_U8 };
    struct safetensors f;
    loci_error e;
    begin("reshaped tensor");
    put(data, size);
    if (loci_safetensors_open(&f, path, &e)) exit(1);
    struct safetensor *t = calloc((size_t)f.count, sizeof *t);
    const void **from = calloc((size_t)f.count, sizeof *from);
    for (int i = 0; i < f.count; i++) { /* capacity for the largest of the changes */
        void *x = calloc(1, 16 * f.tensor[i].bytes + 64);
        if (!t || !x || loci_safetensors_read(&f, &f.tensor[i], x, &e)) exit(1);
        from[i] = x;
    }
    for (int i = 0; i < f.count; i++) {
        for (int change = 0, changes = 5 * f.tensor[i].rank; change < changes + 4 + COUNT(types);
             change++) {
            const struct safetensor *was = &f.tensor[i];
            int count = f.count;
            memcpy(t, f.tensor, (size_t)f.count * sizeof *t);
            if (change < changes) {
                const ptrdiff_t d = was->shape[change / 5], sizes[] = { 0, 1, d - 1, d + 1, 2 * d };
                t[i].shape[change / 5] = sizes[change % 5];
            } else if (change == changes) {
                t[i] = t[--count];
                /* ones in front: one of them, and the most that fit */
            } else if (change <= changes + 2) {
                const int ones = change == changes + 1 ? 1 : ST_MAX_RANK - was->rank;
                for (int k = 0; k < ST_MAX_RANK; k++)
                    t[i].shape[k] = k < ones ? 1 : was->shape[k - ones];
                t[i].rank += ones;
            } else if (change == changes + 3) {
                t[i].rank = 1;
                t[i].shape[0] = was->count;
            } else {
                t[i].type = types[change - changes - 4];
            }
            const void *kept = from[i];
            from[i] = change == changes ? from[count] : kept;
            if (loci_safetensors_write(result, count, t, from, f.meta_count, f.meta, &e)) exit(1);
            from[i] = kept;
            now_at.at = i * 100 + change;
            copy_file();
            feed();
        }
    }
    end();
    for (int i = 0; i < f.count; i++) free((void *)from[i]);
    free(from);
    free(t);
    loci_safetensors_close(&f);
}

/* Files that never were cases. */
static void nonsense(void)
{
    static const char *const opening[] = { "[", "{\"a\":", "[{\"a\":", "{\"x\":[",
                                           "{\"__metadata__\":{\"a\":" };
    static const char letters[] = "{}[]\",:0123456789.-+eE \\untrfalsqkv";
    now_at.name = "nonsense";
    n = size - 8;
    begin("nested deeply");
    for (int i = 0; i < COUNT(opening); i++) {
        char *deep = malloc(LONG + 1);
        const size_t w = strlen(opening[i]);
        if (!deep) exit(1);
        for (size_t k = 0; k < LONG; k++) deep[k] = opening[i][k % w];
        deep[LONG] = 0;
        now_at.at = i;
        splice(0, n, deep);
        deep[0] = '{';
        splice(0, n, deep);
        splice(1, 1, deep);
        free(deep);
    }
    end();
    begin("random bytes");
    for (int i = 0; i < 4000; i += THIN) {
        uint64_t length = 8 + draw() % 2000,
                 claim = i % 4 ? length - 8 - draw() % (length - 7) / 8 : draw();
        for (uint64_t k = 8; k < length; k++)
            buffer[k] = i % 2 ? (unsigned char)letters[draw() % (sizeof letters - 1)]
                              : (unsigned char)draw();
        if (i % 8) buffer[8] = '{';
        memcpy(buffer, &claim, 8);
        little_endian(buffer, 1, 8);
        now_at.at = i;
        put(buffer, length);
        feed();
    }
    end();
}

/* ---- The run --------------------------------------------------------------------------------- */

static void load(const char *name)
{
    char from[128];
    snprintf(from, sizeof from, "tests/cases/%s.safetensors", name);
    FILE *f = fopen(from, "rb");
    if (!f || fseek(f, 0, SEEK_END)) exit((dprintf(screen, "damaged: cannot open %s\n", from), 1));
    size = (size_t)ftell(f);
    rewind(f);
    data = realloc(data, size + 1);
    buffer = realloc(buffer, size + 4 * LONG);
    if (!data || !buffer || fread(data, 1, size, f) != size) exit(1);
    data[size] = 0;
    fclose(f);
    uint64_t length;
    memcpy(&length, data, 8);
    little_endian(&length, 1, 8);
    n = (size_t)length;
    header = (const char *)data + 8;
    now_at.name = name;
    begin("sound");
    put(data, size);
    feed();
    end();
}

/* Redirects stdout to nowhere and stderr to a file that feed() reads.  Crashes and the deadline
 * report the file. */
static void set_the_stage(void)
{
    screen = dup(STDOUT_FILENO);
    if (access("/dev/shm", W_OK)) scratch(folder, "damaged");
    if (!mkdtemp(folder)) exit(1);
    snprintf(path, sizeof path, "%s/case", folder);
    snprintf(result, sizeof result, "%s/result", folder);
    snprintf(said_path, sizeof said_path, "%s/said", folder);
    file = open(path, O_RDWR | O_CREAT, 0600);
    said = open(said_path, O_RDWR | O_CREAT, 0600);
    const int nowhere = open("/dev/null", O_WRONLY);
    if (screen < 0 || file < 0 || dup2(said, STDERR_FILENO) < 0 || dup2(nowhere, STDOUT_FILENO) < 0)
        exit(1);
    setvbuf(stderr, NULL, _IOFBF, 1 << 16);
    atexit(die);
    signal(SIGPROF, on_signal);
#ifdef LOCI_SANITIZED
    __sanitizer_set_report_fd((void *)(intptr_t)screen);
    __sanitizer_set_death_callback(die);
#else
    const int deadly[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT };
    for (int i = 0; i < COUNT(deadly); i++) signal(deadly[i], on_signal);
    if (setrlimit(RLIMIT_AS, &(struct rlimit){ 1 << 30, 1 << 30 })) exit(1);
#endif
}

int main(int argc, char **argv)
{
    set_the_stage();
    memset(long_word, 'a', LONG);
    for (int i = 0; i < COUNT(cases); i++) {
        if (argc > 1 && strcmp(argv[1], cases[i]) != 0) continue;
        load(cases[i]);
        truncated();
        flipped();
        poisoned();
        wrong_lengths();
        spliced();
        twice();
        reshaped();
    }
    if (argc == 1) nonsense();
    free(data);
    free(buffer);
    unlink(path);
    unlink(said_path);
    fflush(stdout);
    dup2(screen, STDOUT_FILENO);
    if (rmdir(folder)) CHECK_FAILED("%s is not empty", folder);
    return harness_end();
}
