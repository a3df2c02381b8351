/* SPDX-License-Identifier: MIT */
/* output.c -- writing files: completely or not at all, with the mode of the old one, never over an
 * input, whatever is in the way, and however many programs write or are killed meanwhile. */
#define _DEFAULT_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "models/output.h"
#include "harness.h"
#include "scratch.h"

enum { SIZE = 1 << 16, NOBODY = 65534 };

static char folder[SCRATCH] = "/dev/shm/loci-output-XXXXXX";

/* ---- Files: the test runs in a folder of its own --------------------------------------------- */

static void put(const char *path, char letter, mode_t mode)
{
    FILE *f = fopen(path, "wb");
    if (!f || putc(letter, f) < 0 || fclose(f) || chmod(path, mode)) exit(2);
}

/* The letter that fills the whole file, and the count. 0: no file, or a mixture. */
static char letter_of(const char *path, size_t *count)
{
    static char data[SIZE + 1];
    FILE *f = fopen(path, "rb");
    *count = f ? fread(data, 1, sizeof data, f) : 0;
    if (f) fclose(f);
    for (size_t i = 1; i < *count; i++)
        if (data[i] != *data) return 0;
    return *count ? *data : 0;
}
static bool holds(const char *path, char letter)
{
    size_t count;
    return letter_of(path, &count) == letter;
}

static mode_t mode_of(const char *path)
{
    struct stat st;
    return lstat(path, &st) ? 0 : st.st_mode & 07777;
}

/* Deletes all files.  Returns their number. */
static int clear(void)
{
    int n = 0;
    DIR *d = opendir(".");
    for (struct dirent *f; d && (f = readdir(d));)
        if (strcmp(f->d_name, ".") && strcmp(f->d_name, ".."))
            n += unlinkat(dirfd(d), f->d_name, f->d_type == DT_DIR ? AT_REMOVEDIR : 0) == 0;
    if (d) closedir(d);
    return n;
}

static loci_status write_letters(const char *path, char letter, size_t count, loci_error *e)
{
    struct new_file f;
    loci_status s = loci_output_begin(&f, path, e);
    if (s) return s;
    for (size_t i = 0; i < count && !s; i += 1024) {
        char data[1024];
        memset(data, letter, sizeof data);
        s = loci_output_put(&f, data, sizeof data, e);
    }
    return loci_output_end(&f, s, e);
}

static bool written(const char *path, char letter)
{
    loci_error e = { 0 };
    return CHECK_THAT(!write_letters(path, letter, SIZE, &e), "%s: %s", path, e.text)
        && CHECK_THAT(holds(path, letter), "%s: holds what was written", path);
}

static void refused(const char *path, const char *sentence)
{
    loci_error e = { 0 }, before = { 0 };
    const loci_status s = write_letters(path, 'x', SIZE, &e);
    CHECK_SAYS(s, LOCI_BAD_ARG, &e, sentence, path);
    CHECK_THAT(loci_output_check(path, 0, NULL, &before) == s && !strcmp(e.text, before.text),
               "is said before as well: %s", path);
}

/* ---- One program ----------------------------------------------------------------------------- */

static void modes(void)
{
    static const mode_t masks[] = { 022, 027, 077, 0 }, olds[] = { 0600, 0640, 0664, 0755 };
    struct stat st;
    for (int i = 0; i < 4; i++) {
        char what[64];
        snprintf(what, sizeof what, "umask %03o", (unsigned)masks[i]);
        umask(masks[i]);
        CHECK_THAT(written("new", 'a') && mode_of("new") == (0666 & ~masks[i]),
                   "a new file's mode: %s", what);
        for (int k = 0; k < 4; k++) {
            put("old", 'o', olds[k]);
            CHECK_THAT(written("old", 'a') && mode_of("old") == olds[k],
                       "an old file's mode is kept: %s", what);
        }
        unlink("new");
    }
    umask(022);
    if (geteuid() == 0) {
        put("old", 'o', 0640);
        CHECK_THAT(!chown("old", 1234, 4321) && written("old", 'a') && !stat("old", &st)
                       && st.st_uid == 1234 && st.st_gid == 4321 && mode_of("old") == 0640,
                   "owner and group are kept: old");
    }
    put("old", 'o', 04755);
    CHECK_THAT(written("old", 'a') && mode_of("old") == 0755,
               "but nothing runs as another user: old");
    CHECK_THAT(clear() == 1, "nothing else is left: modes");
}

static void names(void)
{
    char longest[257];
    memset(longest, 'n', 256);
    longest[256] = 0;
    refused(longest, "too long");
    longest[255] = 0;
    written(longest, 'a');
    written("./sp ace\n\xe2\x80\xae\xff", 'b');
    CHECK_THAT(clear() == 2, "nothing else is left: names");
    refused("", "the name is empty");
    refused("-", "use ./- for a file");
    written("./-", 'a');
    refused("folder/", "names a folder");
    if (mkdir("folder", 0755)) exit(2);
    refused("folder", "this is a folder");
    refused("folder/", "names a folder");
    refused("missing/x", "cannot write into its folder: No such file");
    refused("-/x", "cannot write: Not a directory");
    if (mkfifo("fifo", 0644)) exit(2);
    refused("fifo", "not a regular file");
    refused("/dev/full", "not a regular file");
    refused("/dev/null", "not a regular file");
    CHECK_THAT(clear() == 3, "nothing else is left: refused names");
}

static void links(void)
{
    char to[64] = "";
    if (mkdir("folder", 0755)) exit(2);
    put("folder/target", 'o', 0640);
    if (symlink("folder/target", "link") || symlink("../link", "folder/again")
        || symlink("folder/none", "dangling") || symlink("loop", "loop")
        || symlink("folder", "through"))
        exit(2);
    CHECK_THAT(written("folder/again", 'a') && holds("folder/target", 'a')
                   && mode_of("folder/target") == 0640,
               "links are followed: again");
    CHECK_THAT(readlink("link", to, sizeof to - 1) == 13 && !strcmp(to, "folder/target"),
               "and stay: %s", to);
    CHECK_THAT(written("dangling", 'b') && holds("folder/none", 'b')
                   && readlink("dangling", to, sizeof to - 1) == 11,
               "to where nothing was, too: dangling");
    CHECK_THAT(written("through/target", 'c') && holds("folder/target", 'c'),
               "and through folders: through");
    refused("loop", "symbolic links");
    unlink("folder/none");
    unlink("folder/again");
    unlink("folder/target");

    /* existing temporary names have no effect */
    put("old", 'o', 0644);
    put("old.loci-tmp", 't', 0644);
    if (link("old", "hard")) exit(2);
    CHECK_THAT(written("old", 'a') && holds("hard", 'o') && holds("old.loci-tmp", 't'),
               "another name of the old file stays the old file: hard");
    CHECK_THAT(clear() == 8, "nothing else is left: links");
}

static void same_files(void)
{
    loci_error e;
    char whole[SCRATCH + 8];
    snprintf(whole, sizeof whole, "%s/in", folder);
    put("in", 'i', 0644);
    put("other", 'i', 0644);
    if (link("in", "hard") || symlink("in", "link")) exit(2);
    const char *const read[] = { "missing", "other", "in" };
    const char *const names[] = { "in", "./in", whole, "hard", "link" };
    for (int i = 0; i < 5; i++)
        CHECK_SAYS(loci_output_check(names[i], 3, read, &e), LOCI_BAD_ARG, &e,
                   "would be overwritten", names[i]);
    CHECK_THAT(!loci_output_check("out", 3, read, &e) && !loci_output_check("missing", 3, read, &e),
               "but other names are: %s", e.text);
    CHECK_THAT(clear() == 4, "nothing else is left: same files");
}

static void no_permission(void)
{
    const bool root = geteuid() == 0;
    if (mkdir("closed", 0755)) exit(2);
    put("closed/old", 'o', 0666);
    put("locked", 'o', 0444);
    if (chmod("closed", 0555) || (root && seteuid(NOBODY))) exit(2);
    refused("closed/old", "cannot write into its folder: Permission denied");
    refused("closed/new", "cannot write into its folder: Permission denied");
    refused("locked", "cannot write: Permission denied");
    if (root && seteuid(0)) exit(2);
    if (chmod("closed", 0755)) exit(2);
    CHECK_THAT(holds("closed/old", 'o') && holds("locked", 'o'),
               "what must not be written stays: locked");
    unlink("closed/old");
    CHECK_THAT(clear() == 2, "nothing else is left: no permission");
}

/* A full disk, simulated by a limit on the size of files. */
static void full_disk(void)
{
    struct rlimit was, little;
    loci_error e;
    put("old", 'o', 0600);
    getrlimit(RLIMIT_FSIZE, &was);
    signal(SIGXFSZ, SIG_IGN);
    little = was;
    little.rlim_cur = SIZE / 2;
    setrlimit(RLIMIT_FSIZE, &little);
    CHECK_THAT(write_letters("old", 'a', SIZE, &e) == LOCI_BAD_ARG
                   && strstr(e.text, "cannot write"),
               "a full disk: %s", e.text);
    CHECK_THAT(write_letters("new", 'a', SIZE, &e) == LOCI_BAD_ARG, "a full disk, a new file: %s",
               e.text);
    setrlimit(RLIMIT_FSIZE, &was);
    CHECK_THAT(holds("old", 'o') && mode_of("old") == 0600 && clear() == 1,
               "leaves what was there: old");
}

/* ---- Several --------------------------------------------------------------------------------- */

static void in_turns(void)
{
    struct new_file f, g;
    loci_error e;
    put("old", 'o', 0644);
    CHECK_THAT(!loci_output_begin(&f, "old", &e) && !loci_output_begin(&g, "old", &e),
               "two begin one file: old");
    CHECK_THAT(!loci_output_put(&f, "ff", 2, &e) && !loci_output_put(&g, "g", 1, &e)
                   && holds("old", 'o'),
               "and write: old");
    CHECK_THAT(!loci_output_end(&f, LOCI_OK, &e) && holds("old", 'f'), "the first ends: old");
    CHECK_THAT(!loci_output_end(&g, LOCI_OK, &e) && holds("old", 'g'), "the last one's stays: old");
    CHECK_THAT(!loci_output_begin(&f, "old", &e)
                   && loci_output_end(&f, LOCI_CANCELLED, &e) == LOCI_CANCELLED
                   && holds("old", 'g'),
               "a failure changes nothing: old");
    CHECK_THAT(clear() == 1, "nothing else is left: in turns");
}

static void at_once(void)
{
    enum { TIMES = 200 };
    pid_t child[2];
    put("old", 'o', 0644);
    for (int i = 0; i < 2; i++)
        if ((child[i] = fork()) == 0) {
            int bad = 0;
            for (int n = 0; n < TIMES; n++)
                bad += write_letters("old", i ? 'b' : 'a', SIZE, NULL) != LOCI_OK;
            _exit(bad);
        }
    int bad = 0, status[2], running = 2;
    while (running) {
        size_t count;
        const char letter = letter_of("old", &count);
        bad +=
            !(letter == 'o' && count == 1) && !((letter == 'a' || letter == 'b') && count == SIZE);
        for (int i = 0; i < 2; i++)
            if (child[i] && waitpid(child[i], &status[i], WNOHANG) == child[i]) {
                child[i] = 0;
                running--;
            }
    }
    CHECK_THAT(bad == 0 && status[0] == 0 && status[1] == 0,
               "two programs write one file: both finish, and none sees a mixture");
    CHECK_THAT(clear() == 1, "nothing else is left: at once");
}

/* ---- Signals --------------------------------------------------------------------------------- */

static const int ending[] = { SIGINT, SIGTERM, SIGHUP };

static void ended(void)
{
    for (int i = 0; i < 3; i++) {
        int ready[2], status;
        put("old", 'o', 0644);
        if (pipe(ready)) exit(2);
        const pid_t child = fork();
        if (child == 0) {
            struct new_file f, g;
            if (loci_output_begin(&f, "old", NULL) || loci_output_put(&f, "f", 1, NULL)
                || loci_output_begin(&g, "new", NULL) || write(ready[1], "", 1) != 1)
                _exit(2);
            for (;;) pause();
        }
        char byte;
        close(ready[1]);
        if (read(ready[0], &byte, 1) != 1) exit(2);
        close(ready[0]);
        kill(child, ending[i]);
        waitpid(child, &status, 0);
        CHECK_THAT(WIFSIGNALED(status) && WTERMSIG(status) == ending[i],
                   "a signal takes its usual end: %s", strsignal(ending[i]));
        CHECK_THAT(holds("old", 'o') && clear() == 1, "and only the old file is left: %s",
                   strsignal(ending[i]));
    }
}

/* A signal at any moment. */
static void ended_anywhere(void)
{
    int bad = 0;
    put("old", 'a', 0644);
    for (int n = 0; n < 300; n++) {
        int status;
        const pid_t child = fork();
        if (child == 0)
            for (;;) write_letters("old", 'a', 4096, NULL);
        usleep((useconds_t)(500 + n * 37 % 3000));
        kill(child, ending[n % 3]);
        waitpid(child, &status, 0);
        bad += !WIFSIGNALED(status) || WTERMSIG(status) != ending[n % 3] || !holds("old", 'a');
    }
    CHECK_THAT(bad == 0, "a signal at any time: old");
    CHECK_THAT(clear() == 1, "leaves nothing but the file: old");
}

static void other_handlers(void)
{
    struct new_file f;
    loci_error e;
    struct sigaction is;
    signal(SIGHUP, SIG_IGN);
    CHECK_THAT(!loci_output_begin(&f, "new", &e) && !raise(SIGHUP)
                   && !loci_output_put(&f, "n", 1, &e) && !loci_output_end(&f, LOCI_OK, &e)
                   && holds("new", 'n'),
               "a signal that is ignored: stays so");
    sigaction(SIGHUP, NULL, &is);
    CHECK_THAT(is.sa_handler == SIG_IGN, "and afterwards: SIGHUP");
    signal(SIGHUP, SIG_DFL);
    sigaction(SIGINT, NULL, &is);
    CHECK_THAT(is.sa_handler == SIG_DFL && clear() == 1, "all is as it was: SIGINT");
}

int main(void)
{
    if (access("/dev/shm", W_OK)) scratch(folder, "output");
    if (!mkdtemp(folder) || chmod(folder, 0777) || chdir(folder)) return 2;
    umask(022);
    /* a shell's `&` leaves SIGINT ignored */
    for (int i = 0; i < 3; i++) signal(ending[i], SIG_DFL);
    modes();
    names();
    links();
    same_files();
    no_permission();
    full_disk();
    in_turns();
    at_once();
    ended();
    ended_anywhere();
    other_handlers();
    CHECK_THAT(!chdir("/") && rmdir(folder) == 0, "the folder is empty: %s", folder);
    return harness_end();
}
