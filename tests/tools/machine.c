/* SPDX-License-Identifier: MIT */
/* machine.c -- the program's report about its machine, whatever the system reports. */
#define _DEFAULT_SOURCE
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "harness.h"
#include "scratch.h"

static char path[SCRATCH];

/* The name found in such a text, with a capacity of 20 characters. */
static void named(const char *text, size_t size, const char *want)
{
    char name[21];
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(text, 1, size, f) != size || fclose(f)) exit(2);
    cpu_name_in(path, name, sizeof name);
    CHECK_THAT(!strcmp(name, want), "%s: '%s'", want, name);
}
#define NAMED(text, want) named(text, sizeof(text) - 1, want)

/* After lines of every length around that of a buffer, one of which has the words in its middle. */
static void long_lines(void)
{
    char text[5000];
    for (int n = 1; n < 4000; n = n < 600 ? n + 1 : n + 97) {
        memset(text, 'x', (size_t)n);
        const int more = snprintf(text + n, sizeof text - (size_t)n,
                                  "model name : not this\nmodel name : this\n");
        named(text, (size_t)(n + more), "this");
    }
    memset(text, 'y', sizeof text);
    memcpy(text, "model name\t: ", 13);
    named(text, sizeof text, "yyyyyyyyyyyyyyyyy...");
}

int main(void)
{
    scratch(path, "machine");
    const int fd = mkstemp(path);
    if (fd < 0 || close(fd)) return 2;
    NAMED("", "unknown");
    NAMED("\n\n\n", "unknown");
    NAMED("processor\t: 0\nBogoMIPS\t: 50.00\n", "unknown"); /* as ARM has it */
    NAMED("model name", "unknown");
    NAMED("model name\n", "unknown");
    NAMED("model name\t:", "unknown");
    NAMED("model name\t: \n", "unknown");
    NAMED("model name\t: \t \nmodel name\t: the second\n", "the second");
    NAMED("model names\t: no\nmodel\t\t: 17\nmodel name\t: AMD EPYC\nmodel name\t: other\n",
          "AMD EPYC");
    NAMED("model name\t: no end of line", "no end of line");
    NAMED("model name:packed: twice", "packed: twice");
    NAMED("model name\t:   a   lot \t of   room   \r\n", "a lot of room");
    NAMED("model name\t: twenty characters ok\n", "twenty characters ok");
    NAMED("model name\t: twenty-one characters\n", "twenty-one charac...");
    NAMED("model name\t: twenty characters ok    \n", "twenty characters ok");
    NAMED("model name\t: \033[31mred\033[0m \xc3\xa9 \xff\n", "?[31mred?[0m ?? ?");
    NAMED("model name\t: a\0b\n", "a");
    long_lines();

    char name[64];
    unlink(path);
    CHECK_THAT(!strcmp(cpu_name_in(path, name, sizeof name), "unknown"),
               "a file that is not there: '%s'", name);
    CHECK_THAT(!strcmp(cpu_name_in("/", name, sizeof name), "unknown"), "a folder: '%s'", name);
    CHECK_THAT(!strcmp(cpu_name_in("/dev/null", name, sizeof name), "unknown"),
               "a device without end: '%s'", name);
    for (size_t capacity = 1; capacity <= sizeof name; capacity++)
        CHECK_THAT(cpu_name(name, capacity) == name && strlen(name) < capacity,
                   "the name of this processor fits: '%s'", name);
    return harness_end();
}
