/* SPDX-License-Identifier: MIT */
/* faults.c -- every command of the program while one system call after the other fails: memory,
 * threads, and calls that open, read and write files.
 *
 * Every command must terminate by itself.  Either its output is complete, to the byte, or it exits
 * with code 2, one sentence, and unchanged files.  Partial or repeated calls (half reads, half
 * writes, EINTR) change nothing.  A lab experiment then continues to the bits of an undisturbed
 * one.
 *
 * Of many calls some fail here, drawn from a seed.  With the argument `all` each of them does
 * (scripts/faults memory, scripts/faults writes), except that the slowest commands get 300 and some
 * more.  The argument `memory` or `files` selects one half of the test, and the first words of a
 * command select that command.  The program runs in children of this process, which share its
 * counters. */
#define _DEFAULT_SOURCE
#define _XOPEN_SOURCE 700
#include "inject.h"

#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define main program
#include "cli/main.c"
#undef main
#include "harness.h"
#include "models/safetensors.h"
#include "scratch.h"

#ifdef LOCI_SANITIZED
enum { FIRST = 4, DRAWN = 2, SLOW_TOO = 0 }; /* slow commands take half a minute each here */
#else
/* Of the calls of one kind, the first ones and some later ones. */
enum { FIRST = 9, DRAWN = 5, SLOW_TOO = 1 };
#endif
enum { MANY = 300 };                     /* the total for a command that takes a second */
enum { PATIENCE = 600, TEXT = 1 << 22 }; /* seconds, for a very busy machine; bytes */

static bool all;
static char folder[SCRATCH];
static const char *path(const char *name)
{
    static char list[8][SCRATCH + 64];
    static int turn;
    char *to = list[turn++ % 8];
    snprintf(to, SCRATCH + 64, "%.*s/%s", SCRATCH - 1, folder, name);
    return to;
}

/* ---- Commands -------------------------------------------------------------------------------- */

/* `@` in its words is the folder of this test. files: its outputs, which contain the word "old"
 * before each try. own: its output differs from run to run. fresh: a folder that does not exist
 * before.  Such a command continues where it was stopped. sentences: the allowed number of error
 * sentences, 0 means 1. says: it skips unreadable inputs and reports them. slow: it takes a second,
 * so it gets fewer tries. */
struct command_line {
    const char *words, *files[2];
    bool own;
    const char *fresh;
    int sentences;
    bool says, slow;
};
#define CASE "tests/cases/alibi-kerple-shaw.safetensors"
#define TINY \
    "--tasks recall --size XS --length 16 " \
    "--set layers=1,dim=16,keys=4,values=4,tokens=64,variants=0 --steps 12 -q -t 2"
static const struct command_line lines[] = {
    { .words = "--help" },
    { .words = "version" },
    { .words = "info" },
    { .words = "info --json" },
    { .words = "list" },
    { .words = "list --json" },
    { .words = "list rope" },
    { .words = "lst" },
    { .words = "run --help" },
    { .words = "run " CASE },
    { .words = "run " CASE " --threads 3" },
    { .words = "run " CASE " --engine reference" },
    { .words = "run " CASE " -o @/out", .files = { "out" } },
    { .words = "run tests/cases/rope-t5.safetensors --device host -o @/out", .files = { "out" } },
    { .words = "run tests/cases/rope-cope.safetensors tests/cases/mrope-batch.safetensors",
      .sentences = 2 },
    { .words = "run tests/cases/errors/file-overlap.safetensors" },
    { .words = "check @/table -e rope:pairing=half" },
    { .words = "check @/table -e rope:pairing=half --json" },
    { .words = "rope tests/cases/models/gemma-3-12b.json" },
    { .words = "rope tests/cases/models/deepseek-v3.json --json" },
    { .words = "rope tests/cases/rope/llama-3.1.gguf" },
    { .words = "convert @/weights --to interleaved --dim 8 -o @/out", .files = { "out" } },
    { .words = "convert @/weights --to interleaved --dim 8 -n" },
    { .words = "convert --table half -e rope:pairing=half --dim 8 --rows 40 -o @/out",
      .files = { "out" } },
    { .words = "show alibi --len 16", .slow = true },
    { .words = "show rope:pairing=half --len 16 --json", .slow = true },
    { .words = "show t5 --len 16 --svg @/out", .files = { "out" }, .slow = true },
    { .words = "show nope --example" },
    { .words = "show fox --what properties --len 16 --html @/out",
      .files = { "out" },
      .slow = true },
    { .words = "race nope --len 64 --svg @/out", .files = { "out" }, .own = true, .slow = true },
    { .words = "bench nope --len 32 --heads 1 --repeat 5 --json", .own = true, .slow = true },
    { .words = "bench nope --len 32 --heads 1 --repeat 5 --threads 3", .own = true, .slow = true },
    { .words = "bench nope --len 128 --heads 1 --repeat 5 --parallel contiguous --ranks 2",
      .own = true,
      .sentences = 2,
      .slow = true },
    { .words = "lab list" },
    { .words = "lab report @/lab --json", .sentences = 2, .says = true },
    { .words = "lab report @/lab -o @/out",
      .files = { "out" },
      .sentences = 2,
      .says = true,
      .slow = true },
    { .words = "lab watch @/lab --once" },
    { .words = "lab sample @/lab nope recall", .slow = true },
    { .words = "lab dump --arm nope --task recall --size XS --length 16 "
               "--set layers=1,dim=16,keys=4,values=4,tokens=64 -o @/out",
      .files = { "out" },
      .slow = true },
    { .words = "lab run --arms nope,t5 " TINY " -o @/new", .fresh = "new", .slow = true },
};

/* ---- Files ----------------------------------------------------------------------------------- */

static void put(const char *name, const char *text)
{
    FILE *f = __real_fopen(path(name), "wb");
    if (!f || fputs(text, f) < 0 || fclose(f)) exit(2);
}
/* Reads *n bytes of a file, at most TEXT.  NULL on failure. */
static char *get(const char *name, size_t *n)
{
    FILE *f = __real_fopen(path(name), "rb");
    if (!f) return *n = 0, NULL;
    char *text = __real_malloc(TEXT + 1);
    if (!text) exit(2);
    *n = fread(text, 1, TEXT, f);
    text[*n] = 0;
    fclose(f);
    return text;
}
static int drop_one(const char *name, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(name);
}
static void drop(const char *name) { nftw(path(name), drop_one, 8, FTW_DEPTH | FTW_PHYS); }

/* The number of names in the folder itself, and of half-written files anywhere in it. */
static int names, halves;
static int count_one(const char *name, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)kind;
    names += ftw->level == 1;
    halves += strstr(name, ".loci-tmp") != NULL;
    return 0;
}
static void count_files(void)
{
    names = halves = 0;
    nftw(folder, count_one, 8, FTW_PHYS);
}

/* The weight hashes in the results of a lab, ordered by name.  "": there are none. */
static void hashes(const char *lab, char *to, size_t capacity)
{
    char runs[SCRATCH + 128];
    struct dirent **list = NULL;
    snprintf(runs, sizeof runs, "%s/runs", path(lab));
    const int n = scandir(runs, &list, NULL, alphasort);
    *to = 0;
    for (int i = 0; i < n; i++) {
        char name[512];
        size_t bytes;
        snprintf(name, sizeof name, "%s/runs/%.40s/result.json", lab, list[i]->d_name);
        char *text = get(name, &bytes), *at = text ? strstr(text, "weights_sha256") : NULL;
        if (at) snprintf(to + strlen(to), capacity - strlen(to), "%.84s\n", at);
        __real_free(text);
        __real_free(list[i]);
    }
    __real_free(list);
}

/* ---- One try --------------------------------------------------------------------------------- */

struct ending {
    int code, signal, lines;
    size_t out_bytes, file_bytes;
    char *out, *file, said[600];
};

static const struct command_line *line;
static long tries, harmless;

static int split(const char *words, char *to, char **argv)
{
    int n = 0;
    argv[n++] = (char *)"loci";
    for (const char *p = words; *p;) {
        argv[n++] = to;
        for (; *p && *p != ' '; p++)
            if (*p == '@') to += sprintf(to, "%s", folder);
            else *to++ = *p;
        *to++ = 0;
        while (*p == ' ') p++;
    }
    argv[n] = NULL;
    return n;
}

#ifdef LOCI_SANITIZED
static void leave(int code, void *arg)
{
    (void)arg;
    fflush(NULL);
    _exit(code);
}
#endif
/* In a child: exit() instead of a return, as commands may call it too. */
static void run_child(const char *words, int kinds, enum inject_how how, int error, long at)
{
    char buffer[8192], *argv[64];
    const int argc = split(words, buffer, argv);
    const int out = __real_open(path("said"), O_WRONLY | O_CREAT | O_TRUNC, 0600),
              err = __real_open(path("errors"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (dup2(out, 1) < 0 || dup2(err, 2) < 0) _exit(99);
    __real_close(out);
    __real_close(err);
    alarm(PATIENCE);
#ifdef LOCI_SANITIZED
    on_exit(leave, NULL); /* the process exit frees memory that a command has not */
#endif
    /* before gcov writes its data, which also allocates memory */
    atexit(inject_off);
    inject_arm(kinds, how, error, at);
    exit(program(argc, argv));
}

static struct ending run_words(const char *words, int kinds, enum inject_how how, int error,
                               long at)
{
    struct ending e = { 0 };
    int status;
    fflush(stdout);
    inject_arm(0, how, error, at);
    const pid_t pid = fork();
    if (pid == 0) run_child(words, kinds, how, error, at);
    if (pid < 0 || waitpid(pid, &status, 0) != pid) exit(2);
    inject_off();
    e.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    e.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    e.out = get("said", &e.out_bytes);
    if (line->files[0]) e.file = get(line->files[0], &e.file_bytes);
    size_t n;
    char *said = get("errors", &n);
    for (size_t i = 0; i < n; i++) e.lines += said[i] == '\n';
    snprintf(e.said, sizeof e.said, "%s", said ? said : "");
    __real_free(said);
    return e;
}
static void forget(struct ending *e)
{
    __real_free(e->out);
    __real_free(e->file);
}

/* Weights of two heads of queries and keys, and another tensor. */
static void make_weights(void)
{
    static float numbers[16 * 12];
    const struct safetensor list[] = {
        { .name = "layers.0.self_attn.q_proj.weight",
          .type = ST_F32,
          .rank = 2,
          .shape = { 16, 12 } },
        { .name = "layers.0.self_attn.k_proj.weight",
          .type = ST_F32,
          .rank = 2,
          .shape = { 16, 12 } },
        { .name = "norm", .type = ST_F32, .rank = 1, .shape = { 12 } },
    };
    const void *const data[] = { numbers, numbers, numbers };
    for (int i = 0; i < COUNT(numbers); i++) numbers[i] = (float)i;
    if (loci_safetensors_write(path("weights"), 3, list, data, 0, NULL, NULL)) exit(2);
}
/* Truncates an input file between two reads. */
static bool reads_weights(void) { return strstr(line->words, "@/weights"); }
static void shrink(void)
{
    if (truncate(path("weights"), 800)) exit(2);
}

static void before_each(void)
{
    if (reads_weights()) make_weights();
    for (int i = 0; i < 2 && line->files[i]; i++) put(line->files[i], "old");
    if (line->fresh) drop(line->fresh);
}

static bool is_old(const struct ending *e)
{
    return !line->files[0] || (e->file_bytes == 3 && !memcmp(e->file, "old", 3));
}
static bool is_same(const struct ending *e, const struct ending *calm)
{
    if (line->own) return !line->files[0] || !is_old(e);
    return e->out_bytes == calm->out_bytes && !memcmp(e->out, calm->out, e->out_bytes)
        && e->file_bytes == calm->file_bytes
        && (!e->file || !memcmp(e->file, calm->file, e->file_bytes));
}

/* ---- Kinds of failure ------------------------------------------------------------------------ */

static const struct fault {
    const char *name;
    int kinds;
    enum inject_how how;
    int error;
    bool harmless; /* it must change nothing */
    bool writes;   /* for commands that write files only */
    /* a failure of the first of these calls must be reported */
    bool must;
} faults[] = {
    { "no memory", INJECT_MEMORY, INJECT_ONCE, ENOMEM, false, false, false },
    { "no memory from then on", INJECT_MEMORY, INJECT_ON, ENOMEM, false, false, false },
    { "no thread", INJECT_THREAD, INJECT_ONCE, EAGAIN, false, false, false },
    { "no thread from then on", INJECT_THREAD, INJECT_ON, EAGAIN, false, false, false },
    { "too many open files", INJECT_OPEN, INJECT_ONCE, EMFILE, false, false, false },
    { "reading is interrupted", INJECT_READ, INJECT_ONCE, EINTR, true, false, false },
    { "half a read", INJECT_READ, INJECT_SHORT, 0, true, false, false },
    { "a disk that cannot be read", INJECT_READ, INJECT_ONCE, EIO, false, false, false },
    { "a file that shrinks", INJECT_READ, INJECT_HOOK, 0, false, false, false },
    { "a full disk", INJECT_WRITE, INJECT_ON, ENOSPC, false, true, true },
    { "a full disk, once", INJECT_WRITE, INJECT_ONCE, ENOSPC, false, true, true },
    { "a disk that cannot be written", INJECT_WRITE, INJECT_ONCE, EIO, false, true, true },
    { "writing is interrupted", INJECT_WRITE, INJECT_ONCE, EINTR, true, true, false },
    { "half a write", INJECT_WRITE, INJECT_SHORT, 0, true, true, false },
    { "syncing", INJECT_SYNC, INJECT_ONCE, EIO, false, true, true },
    { "names", INJECT_NAME, INJECT_ONCE, EACCES, false, true, true },
    { "modes", INJECT_MODE, INJECT_ONCE, EPERM, false, true, false },
    { "closing", INJECT_CLOSE, INJECT_ONCE, EIO, false, true, false },
};
static bool is_memory(const struct fault *f) { return f->kinds & (INJECT_MEMORY | INJECT_THREAD); }

static struct ending calm;
static char calm_hashes[4096];
static int calm_names;

static void judge(const struct fault *f, long at, struct ending *e)
{
    const bool fired = inject->fired > 0;
    count_files();
    const int most = line->sentences ? line->sentences : 1;
    const bool good = e->code == calm.code && e->lines == calm.lines && is_same(e, &calm);
    const bool refused = e->code == EXIT_ERROR && e->lines >= 1 && e->lines <= most
                      && !strncmp(e->said, "loci: ", 6) && is_old(e);
    const bool without = line->says && !e->code
                      && (strstr(e->said, "left out") || (e->out && strstr(e->out, "left out"))
                          || (e->file && strstr(e->file, "left out")));
    tries += fired;
    harmless += fired && good;
    if (!line->fresh) {
        const bool heard = refused || !f->must || at > 0 || !fired;
        CHECK_THAT((good && heard) || ((refused || without) && fired && !f->harmless),
                   "loci %s: %s, call %ld: exit code %d, signal %d, %d lines: %s", line->words,
                   f->name, at, e->code, e->signal, e->lines, e->said);
        CHECK_THAT(names == calm_names && halves == 0,
                   "loci %s: %s, call %ld: %d files, not %d, "
                   "and %d half written",
                   line->words, f->name, at, names, calm_names, halves);
        return;
    }
    /* A folder of runs: repeating the command completes it. */
    char then[sizeof calm_hashes];
    CHECK_THAT(!e->signal
                   && (e->code == EXIT_DONE
                       || (e->code == EXIT_ERROR && e->lines >= 1
                           && !strncmp(e->said, "loci: ", 6)))
                   && (!f->harmless || good),
               "loci %s: %s, call %ld: exit code %d, signal %d: %s", line->words, f->name, at,
               e->code, e->signal, e->said);
    struct ending on = run_words(line->words, 0, INJECT_ONCE, 0, 0);
    hashes(line->fresh, then, sizeof then);
    count_files();
    CHECK_THAT(on.code == EXIT_DONE && !strcmp(then, calm_hashes) && halves == 0,
               "loci %s: %s, call %ld, and again: exit code %d, %d files half written, %s",
               line->words, f->name, at, on.code, halves, on.said);
    forget(&on);
}

static void fail_at(const struct fault *f, long at)
{
    before_each();
    struct ending e = run_words(line->words, f->kinds, f->how, f->error, at);
    judge(f, at, &e);
    forget(&e);
}

static uint64_t state = 1;
static long draw(long below)
{
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (long)((z ^ z >> 31) % (uint64_t)below);
}

/* `info` works without the CPU's name, so opening its file may fail.
 *
 * The number of calls is known only from a try in which none fails. */
static void fail_each(const struct fault *f)
{
    before_each();
    struct ending e = run_words(line->words, f->kinds, INJECT_ONCE, f->error, LONG_MAX);
    const long calls = inject->seen;
    forget(&e);
    const long first = all        ? MANY
                     : line->slow ? 1
                                  : FIRST,
               drawn = all        ? MANY / 3
                     : line->slow ? 2
                                  : DRAWN;
    const bool each = calls <= first + drawn || (all && !line->slow);
    for (long k = 0; k < (each ? calls : first); k++) fail_at(f, k);
    for (long k = 0; k < (each ? 0 : drawn); k++) fail_at(f, first + draw(calls - first));
}

static void fail_command(bool memory, bool files)
{
    before_each();
    calm = run_words(line->words, 0, INJECT_ONCE, 0, 0);
    count_files();
    calm_names = names;
    if (line->fresh) hashes(line->fresh, calm_hashes, sizeof calm_hashes);
    CHECK_THAT(calm.code != -1 && (!line->fresh || *calm_hashes)
                   && (line->own || !is_old(&calm) || !line->files[0]),
               "loci %s: exit code %d: %s", line->words, calm.code, calm.said);
    for (int i = 0; i < COUNT(faults); i++)
        if ((is_memory(&faults[i]) ? memory : files)
            && (!faults[i].writes || line->files[0] || line->fresh)
            && !(line->own && faults[i].harmless)
            && (faults[i].how != INJECT_HOOK || reads_weights())
            && !(faults[i].kinds == INJECT_OPEN && !strncmp(line->words, "info", 4)))
            fail_each(&faults[i]);
    forget(&calm);
}

/* ---- Existing files -------------------------------------------------------------------------- */

static void make_inputs(void)
{
    static const char *const makes[] = {
        "convert --table half -e rope:pairing=half --dim 8 --rows 40 -o @/table",
        "lab run --arms nope " TINY " -o @/lab",
    };
    make_weights();
    static const struct command_line none = { .words = "" };
    line = &none;
    for (int i = 0; i < COUNT(makes); i++) {
        struct ending e = run_words(makes[i], 0, INJECT_ONCE, 0, 0);
        if (e.code) {
            printf("loci %s: %s", makes[i], e.said);
            exit(2);
        }
        forget(&e);
    }
}

int main(int argc, char **argv)
{
    const char *what = "", *only = "";
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "all")) all = true;
        else if (!strcmp(argv[i], "memory") || !strcmp(argv[i], "files")) what = argv[i];
        else only = argv[i];
    scratch(folder, "faults");
    if (!mkdtemp(folder)) return 2;
    setenv("LC_ALL", "C", 1);
    inject_open();
    inject->hook = shrink;
    make_inputs();
    for (int i = 0; i < COUNT(lines); i++) {
        line = &lines[i];
        if (strncmp(line->words, only, strlen(only)) || (line->slow && !SLOW_TOO && !all)) continue;
        fail_command(strcmp(what, "files") != 0, strcmp(what, "memory") != 0);
        drop("out");
        drop("new");
        if (all) {
            printf("%6ld calls failed so far: loci %s\n", tries, line->words);
            fflush(stdout);
        }
    }
    printf("%ld calls failed, of which %ld were done without\n", tries, harmless);
    drop("");
    return harness_end();
}
