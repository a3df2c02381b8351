/* SPDX-License-Identifier: MIT */
/* args.c -- command-line parsing, error output and small helpers of all commands. */

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "platform/clock.h"
#include "platform/system.h"
#include "cli/cli.h"
#include "models/output.h"
#include "util/printable.h"
#include "common/alloc.h"

/* ---- Errors, memory, time -------------------------------------------------------------------- */

/* Does what make_plain() does without allocating: results may already be on disk. */
void print_plain(FILE *to, const char *text)
{
    uint32_t code;
    for (int n; *text && (n = read_utf8(text, &code)) >= 0; text += n ? n : 1)
        if (n > 0 && is_plain(code)) fwrite(text, 1, (size_t)n, to);
        else putc('?', to);
}

/* A path may be longer than any buffer.  The sentence follows it. */
int fail(const char *format, ...)
{
    char brief[512], *text = NULL;
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(brief, sizeof brief, format, args);
    va_end(args);
    if (n >= (int)sizeof brief && (text = malloc((size_t)n + 1))) {
        va_start(args, format);
        vsnprintf(text, (size_t)n + 1, format, args);
        va_end(args);
    }
    make_plain(text ? text : brief);
    fflush(stdout); /* so that earlier output comes before the sentence */
    fprintf(stderr, "loci: %s\n", text ? text : brief);
    free(text);
    return EXIT_ERROR;
}

void *alloc(size_t count, size_t each)
{
    void *p = alloc_zeroed(count, each);
    if (!p) exit(fail("out of memory for %zu values of %zu bytes", count, each));
    return p;
}

/* Monotonic, so setting the clock during a measurement changes nothing.  Some virtual machines
 * still step back.  Time then goes on from the last value. */
double now(void)
{
    static _Thread_local double last, lost;
    const double read = loci_clock_steady() + lost;
    if (read < last) lost += last - read;
    else last = read;
    return last;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* For an even count, the mean of the two middle numbers. */
double median(double *x, int count)
{
    qsort(x, (size_t)count, sizeof *x, by_size);
    return count % 2 ? x[count / 2] : (x[count / 2 - 1] + x[count / 2]) / 2;
}

/* Interpolates where the share falls between two numbers. */
double quantile(double *x, int count, double share)
{
    qsort(x, (size_t)count, sizeof *x, by_size);
    const double place = share * (count - 1);
    const int low = (int)place, high = low + (low < count - 1);
    return x[low] + (place - low) * (x[high] - x[low]);
}

/* By the NO_COLOR convention, an empty value does not count. */
bool colours(void)
{
    const char *off = getenv("NO_COLOR");
    return !(off && *off) && loci_terminal_colours();
}

/* ---- Names ----------------------------------------------------------------------------------- */

const loci_encoding_info *find_encoding(const char *name, size_t length)
{
    const loci_encoding_info *list;
    int n = loci_encodings(&list);
    for (int i = 0; i < n; i++)
        if (strlen(list[i].name) == length && !memcmp(list[i].name, name, length)) return &list[i];
    return NULL;
}

int text_places(const char *text)
{
    int places = 0;
    for (const char *p = text ? text : ""; *p; p += strcspn(p, "+"), p += *p == '+') {
        const loci_encoding_info *info = find_encoding(p, strcspn(p, ":+"));
        if (info) places |= info->places;
    }
    return places;
}

const char *runnable_text(const char *text)
{
    const loci_encoding_info *info = find_encoding(text, strlen(text));
    for (int i = 0; info && i < info->option_count; i++)
        if (info->options[i].required) return info->example;
    return text;
}

/* The plan's text says which kernels it selected. */
bool runs_fast(const char *isa)
{
    const loci_desc d = LOCI_DESC(.heads = 1, .dim = 2, .dtype = LOCI_BF16, .fast = 1, .isa = isa);
    loci_plan *plan;
    const loci_status status = loci_plan_create(&plan, &d, NULL);
    if (status == LOCI_NO_MEMORY) exit(fail("out of memory"));
    if (status) return false;
    const bool fast = strstr(loci_plan_text(plan), " fast=") != NULL;
    loci_plan_destroy(plan);
    return fast;
}

/* loci_isas() lists the slowest first, so this is the last one. */
const char *best_isa(void)
{
    const char *names[16];
    int n = loci_isas(names, COUNT(names));
    return n > 0 ? names[(n < COUNT(names) ? n : COUNT(names)) - 1] : "scalar";
}

/* Words of printable ASCII with one blank between them.  Text that does not fit ends with dots. */
static void tidy(const char *text, char *buffer, size_t capacity)
{
    size_t n = 0;
    bool blank = false;
    for (; *text && n < capacity; text++) {
        const bool space = strchr(" \t\r\n", *text) != NULL;
        if (!space && blank && n) buffer[n++] = ' ';
        if (!space && n < capacity) buffer[n++] = *text > 0x20 && *text < 0x7f ? *text : '?';
        blank = space;
    }
    if (n == capacity) {
        n = capacity - 1;
        for (size_t dots = n < 3 ? n : 3; dots > 0; dots--) buffer[n - dots] = '.';
    }
    buffer[n] = 0;
}

/* Uses the first line "model name : ...".  Later lines may also contain these words. */
const char *cpu_name_in(const char *file, char *buffer, size_t capacity)
{
    FILE *f = fopen(file, "r");
    char line[1024];
    bool begins = true; /* at the start of a line; long lines are read in parts */
    buffer[0] = 0;
    while (f && !buffer[0] && fgets(line, sizeof line, f)) {
        const char *value =
            begins && !strncmp(line, "model name", 10) ? line + 10 + strspn(line + 10, " \t") : "";
        if (*value == ':') tidy(value + 1, buffer, capacity);
        begins = strchr(line, '\n') != NULL;
    }
    if (f) fclose(f);
    if (!buffer[0]) tidy("unknown", buffer, capacity);
    return buffer;
}

const char *cpu_name(char *buffer, size_t capacity)
{
    return cpu_name_in("/proc/cpuinfo", buffer, capacity);
}

/* ---- Arguments ------------------------------------------------------------------------------- */

int value_name(const struct flag *f) { return f->value ? (int)strcspn(f->value, ":") : 0; }
const char *value_words(const struct flag *f)
{
    const char *colon = f->value ? strchr(f->value, ':') : NULL;
    return colon ? colon + 1 : "";
}

static const struct flag *flags; /* of the command being parsed, for nearest() */
static const char *flag_name(int i) { return flags[i].name; }

/* A single letter gets no suggestion: every other letter is equally near. */
static bool unknown_flag(const struct command *c, const char *given, const char *name)
{
    int n = 0;
    while (c->flags[n].name) n++;
    flags = c->flags;
    const char *hint = nearest(name, flag_name, n);
    if (hint)
        fail("%s: unknown option '%s'; did you mean --%s? ('loci %s --help' lists all)", c->name,
             given, hint, c->name);
    else fail("%s: unknown option '%s'; 'loci %s --help' lists all", c->name, given, c->name);
    return false;
}

/* argv[*i] is "--name", "--name=value", "-l" or "-lvalue".  Consumes a second argument if the value
 * is separate. */
static bool parse_flag(struct args *a, int argc, char **argv, int *i)
{
    const struct command *c = a->command;
    const char *given = argv[*i], *value = NULL;
    bool is_long = given[1] == '-';
    char name[64];
    if (is_long) {
        size_t n = strcspn(given + 2, "=");
        snprintf(name, sizeof name, "%.*s", (int)(n < sizeof name ? n : sizeof name - 1),
                 given + 2);
        if (given[2 + n]) value = given + 3 + n;
    } else {
        snprintf(name, sizeof name, "%c", given[1]);
        if (given[2]) value = given + 2;
    }
    if (is_long ? !strcmp(name, "help") : !strcmp(given, "-h")) return a->help = true;

    int k = 0;
    while (c->flags[k].name
           && (is_long ? strcmp(c->flags[k].name, name)
                       : !c->flags[k].letter || strcmp(c->flags[k].letter, name)))
        k++;
    if (!c->flags[k].name) return unknown_flag(c, given, name);
    if (!c->flags[k].value) {
        if (value) return refuse("%s: --%s has no value", c->name, c->flags[k].name);
        value = "";
    } else if (!value) {
        if (*i + 1 >= argc)
            return refuse("%s: --%s needs a value: %.*s", c->name, c->flags[k].name,
                          value_name(&c->flags[k]), c->flags[k].value);
        value = argv[++*i];
    }
    const char *kind = c->flags[k].value;
    if (a->value[k] && kind && (!strncmp(kind, "LIST", 4) || !strcmp(kind, "KEY=VALUE"))) {
        char *both = alloc(strlen(a->value[k]) + strlen(value) + 2, 1);
        sprintf(both, "%s,%s", a->value[k], value); /* lives until the program exits */
        value = both;
    }
    a->value[k] = value;
    return true;
}

bool args_parse(struct args *a, const struct command *c, int argc, char **argv)
{
    *a = (struct args){ .command = c, .rest = (const char **)argv };
    bool options = true; /* until "--" */
    for (int i = 0; i < argc; i++) {
        if (options && !strcmp(argv[i], "--")) options = false;
        else if (options && argv[i][0] == '-' && argv[i][1]) {
            if (!parse_flag(a, argc, argv, &i)) return false;
        } else a->rest[a->rest_count++] = argv[i]; /* within argv itself, never past i */
    }
    return true;
}

/* strtoll() alone would accept blanks and a plus sign in front. */
bool parse_whole(const char *text, int64_t *value)
{
    char *end;
    if (!(text[0] >= '0' && text[0] <= '9')
        && !(text[0] == '-' && text[1] >= '0' && text[1] <= '9'))
        return false;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (*end || errno) return false;
    *value = v;
    return true;
}

/* strtod() alone would accept blanks, "inf" and "nan". */
bool parse_number(const char *text, double *value)
{
    char *end;
    if (!strchr("+-.0123456789", text[0]) || !text[0]) return false;
    *value = strtod(text, &end);
    return !*end && isfinite(*value);
}

/* The error names the command, the option, its range and the given value. */
bool args_whole(const struct args *a, int flag, int low, int high, int *value)
{
    int64_t v;
    if (!a->value[flag]) return true;
    if (!parse_whole(a->value[flag], &v) || v < low || v > high) {
        fail("%s: --%s must be a whole number from %d to %d, not '%s'", a->command->name,
             a->command->flags[flag].name, low, high, a->value[flag]);
        return false;
    }
    *value = (int)v;
    return true;
}

/* Accepts whole words only: a prefix could become ambiguous later. */
bool args_word_of(const struct args *a, int flag, const char *words, int *index)
{
    const char *given = a->value[flag];
    if (!given) return true;
    int k = 0;
    for (const char *p = words; *p; p += strcspn(p, "|"), p += *p == '|', k++)
        if (strcspn(p, "|") == strlen(given) && !memcmp(p, given, strlen(given)))
            return *index = k, true;
    fail("%s: --%s must be one of %s, not '%s'", a->command->name, a->command->flags[flag].name,
         words, given);
    return false;
}

bool args_word(const struct args *a, int flag, int *index)
{
    return args_word_of(a, flag, value_words(&a->command->flags[flag]), index);
}

/* Called before anything is computed, so that no work is lost to a folder that is not writable. */
bool args_output(const struct args *a, int flag)
{
    loci_error e;
    const char *path = a->value[flag];
    return !path || !loci_output_check(path, a->rest_count, a->rest, &e)
        || refuse("%s: %s", *path ? path : a->command->name, e.text);
}

bool args_rest(const struct args *a, int most)
{
    const char *name = a->command->name;
    return a->rest_count <= most
        || refuse("%s: '%s' is one argument too many; 'loci %s --help' shows the arguments", name,
                  a->rest[most], name);
}

bool start_threads(const struct args *a, int threads, loci_host *pool, const loci_host **host)
{
    if (threads < 2) return true;
    if (loci_pool_create(pool, threads))
        return refuse("%s: cannot start %d threads", a->command->name, threads);
    *host = pool;
    return true;
}
