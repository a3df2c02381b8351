/* SPDX-License-Identifier: MIT */
/* command.c -- runs commands in this process. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "command.h"
#include "tests/support/scratch.h"

/* Inputs and printed output have no name in any folder.  Outputs have names, since they are
 * renamed. */
static struct {
    int file, config, said, printed;
    char paths[2][32], out[2][SCRATCH + 8];
} places;

static int in_memory(const char *name)
{
    const int fd = memfd_create(name, MFD_CLOEXEC);
    if (fd < 0) exit(2);
    return fd;
}
static void remove_folder(void)
{
    char *slash = strrchr(places.out[0], '/');
    for (int i = 0; i < 2; i++) unlink(places.out[i]);
    *slash = 0;
    rmdir(places.out[0]);
}
static void make_places(void)
{
    char folder[SCRATCH];
    if (places.paths[0][0]) return;
    places.file = in_memory("file");
    places.config = in_memory("config");
    places.said = in_memory("said");
    places.printed = in_memory("printed");
    snprintf(places.paths[0], sizeof places.paths[0], "/proc/self/fd/%d", places.file);
    snprintf(places.paths[1], sizeof places.paths[1], "/proc/self/fd/%d", places.config);
    scratch(folder, "command");
    if (!mkdtemp(folder)) exit(2);
    snprintf(places.out[0], sizeof places.out[0], "%s/out", folder);
    snprintf(places.out[1], sizeof places.out[1], "%s/back", folder);
    atexit(remove_folder);
}
static void fill(int fd, const uint8_t *data, size_t size)
{
    if (ftruncate(fd, 0) || pwrite(fd, data, size, 0) != (ssize_t)size) exit(2);
}

bool input_open(struct input *in, const uint8_t *data, size_t size)
{
    const uint8_t *line = memchr(data, '\n', size);
    const size_t length = line ? (size_t)(line - data) : 0;
    if (!line || length >= sizeof in->words || memchr(data, 0, length)) return false;
    make_places();
    *in = (struct input){ .file = places.paths[0],
                          .config = places.paths[1],
                          .out = places.out[0],
                          .back = places.out[1] };
    memcpy(in->words, data, length);
    for (char *p = strtok(in->words, " "); p && in->count < MOST_WORDS; p = strtok(NULL, " "))
        in->word[in->count++] = p;
    for (int i = 0; i < in->count; i++) /* it writes nowhere else */
        if ((!strncmp(in->word[i], "-o", 2) || !strncmp(in->word[i], "--o", 3))
            && (strcmp(in->word[i], "-o") || !in->word[i + 1] || strcmp(in->word[i + 1], "OUT")))
            return false;
    const uint8_t *config = line + 1, *end = data + size,
                  *zero = memchr(config, 0, (size_t)(end - config)), *stop = zero ? zero : end,
                  *file = zero ? zero + 1 : end;
    fill(places.config, config, (size_t)(stop - config));
    fill(places.file, file, (size_t)(end - file));
    return true;
}
void input_close(struct input *in)
{
    unlink(in->out);
    unlink(in->back);
}
const char *input_value(const struct input *in, const char *option)
{
    const size_t n = strlen(option);
    for (int i = 0; i < in->count; i++) {
        if (strncmp(in->word[i], option, n)) continue;
        if (in->word[i][n] == '=') return in->word[i] + n + 1;
        if (!in->word[i][n]) return in->word[i + 1];
    }
    return NULL;
}

int run_command(const struct command *command, const struct input *in)
{
    static int streams[2];
    char *argv[MOST_WORDS + 1] = { 0 };
    struct args a;
    for (int i = 0; i < in->count; i++) {
        const char *w = in->word[i];
        argv[i] = (char *)(!strcmp(w, "FILE")     ? in->file
                           : !strcmp(w, "CONFIG") ? in->config
                           : !strcmp(w, "OUT")    ? in->out
                           : !strcmp(w, "BACK")   ? in->back
                                                  : w);
    }
    fflush(stdout);
    if (!streams[0]) {
        streams[0] = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
        streams[1] = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
    }
    if (ftruncate(places.said, 0) || ftruncate(places.printed, 0)) exit(2);
    lseek(places.said, 0, SEEK_SET);
    lseek(places.printed, 0, SEEK_SET);
    dup2(places.printed, STDOUT_FILENO);
    dup2(places.said, STDERR_FILENO);
    const bool parsed = args_parse(&a, command, in->count, argv);
    const int code = !parsed ? EXIT_ERROR : a.help ? EXIT_DONE : command->run(&a);
    fflush(stdout);
    dup2(streams[0], STDOUT_FILENO);
    dup2(streams[1], STDERR_FILENO);

    char said[8192];
    const ssize_t n = pread(places.said, said, sizeof said - 1, 0);
    said[n > 0 ? n : 0] = 0;
    FUZZ_CHECK(code == EXIT_DONE || code == EXIT_BROKEN || code == EXIT_ERROR);
    if (code == EXIT_ERROR) {
        const char *lines = strchr(said, '\n');
        FUZZ_CHECK(!strncmp(said, "loci: ", 6) && lines);
        FUZZ_CHECK(!lines[1] || n == (ssize_t)sizeof said - 1);
    } else FUZZ_CHECK(!n);
    return code;
}
size_t printed(char *text, size_t capacity)
{
    const ssize_t n = pread(places.printed, text, capacity - 1, 0);
    text[n > 0 ? n : 0] = 0;
    return n > 0 ? (size_t)n : 0;
}

static size_t whole(const char *path, unsigned char *to, size_t capacity)
{
    FILE *f = path ? fopen(path, "rb") : NULL;
    const size_t n = f ? fread(to, 1, capacity, f) : 0;
    if (f) fclose(f);
    return n;
}
const char *fuzz_scratch(void)
{
    make_places();
    return places.out[0];
}
void add_input(void (*add)(const void *, size_t), const char *line, const char *config,
               const char *file)
{
    static unsigned char data[1 << 15];
    size_t n = (size_t)snprintf((char *)data, sizeof data, "%s\n", line);
    if (config && *config == '{')
        n += (size_t)snprintf((char *)data + n, sizeof data - n, "%s", config);
    else n += whole(config, data + n, sizeof data - n - 1);
    data[n++] = 0;
    n += whole(file, data + n, sizeof data - n);
    add(data, n);
}
