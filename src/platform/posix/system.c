/* SPDX-License-Identifier: MIT */
/* system.c -- see platform/system.h. */
#define _DEFAULT_SOURCE
#include "platform/system.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

bool loci_system_begin(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0
            && open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd)
            return false;
#ifdef SIGXFSZ
    /* a file size limit is an error of write(), not a fatal signal */
    signal(SIGXFSZ, SIG_IGN);
#endif
    return true;
}

/* ---- Terminals ------------------------------------------------------------------------------- */

bool loci_terminal(void) { return isatty(STDOUT_FILENO); }
bool loci_terminal_colours(void)
{
    const char *term = getenv("TERM");
    return loci_terminal() && term && strcmp(term, "dumb");
}
bool loci_terminal_unicode(void)
{
    static const char *const names[] = { "LC_ALL", "LC_CTYPE", "LANG" };
    const char *locale = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !locale; i++) {
        locale = getenv(names[i]);
        if (locale && !*locale) locale = NULL;
    }
    return locale && (strstr(locale, "UTF-8") || strstr(locale, "utf8"));
}
int loci_terminal_columns(void)
{
    struct winsize size;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) ? 0 : size.ws_col;
}

/* ---- The machine ----------------------------------------------------------------------------- */

void loci_system_names(char *system, char *machine, size_t capacity)
{
    struct utsname os;
    const bool known = uname(&os) >= 0;
    snprintf(system, capacity, "%s", known ? os.sysname : "unknown");
    snprintf(machine, capacity, "%s", known ? os.machine : "unknown");
}
void loci_host_name(char *name, size_t capacity)
{
    if (gethostname(name, capacity)) snprintf(name, capacity, "unknown");
    name[capacity - 1] = 0;
}
double loci_system_memory(void)
{
#ifdef _SC_PHYS_PAGES
    return (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
#else
    return 0;
#endif
}
/* Linux knows what this processor shares.  In virtual machines sysconf() of glibc 2.36 has ten
 * times as much for AMD's. */
double loci_system_cache(void)
{
    double kib = 0;
    for (int level = 0; level < 5; level++) {
        char path[64];
        double size = 0;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", level);
        FILE *f = fopen(path, "re");
        if (f && fscanf(f, "%lfK", &size) == 1 && size > kib) kib = size;
        if (f) fclose(f);
    }
    if (kib > 0) return 1024 * kib;
#ifdef _SC_LEVEL3_CACHE_SIZE
    return (double)sysconf(_SC_LEVEL3_CACHE_SIZE);
#else
    return 0;
#endif
}

/* ---- Processes ------------------------------------------------------------------------------- */

void loci_sleep(double seconds)
{
    const time_t whole = (time_t)seconds;
    const struct timespec nap = { whole, (long)(1e9 * (seconds - (double)whole)) };
    nanosleep(&nap, NULL);
}
bool loci_process_gone(long process) { return kill((pid_t)process, 0) && errno == ESRCH; }
long loci_preemptions(void)
{
    struct rusage r;
    return getrusage(RUSAGE_SELF, &r) ? 0 : r.ru_nivcsw;
}
void loci_allow_files(int count)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) || files.rlim_cur >= (rlim_t)count) return;
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files); /* on failure, open() reports too many files */
}
bool loci_name_matches(const char *pattern, const char *name) { return !fnmatch(pattern, name, 0); }

struct command_output *loci_command_begin(const char *command)
{
    return (struct command_output *)popen(command, "r");
}
size_t loci_command_read(struct command_output *c, void *to, size_t bytes)
{
    return fread(to, 1, bytes, (FILE *)c);
}
int loci_command_end(struct command_output *c)
{
    const int code = pclose((FILE *)c);
    return WIFEXITED(code) ? WEXITSTATUS(code) : 1;
}

void *loci_library_open(const char *name) { return dlopen(name, RTLD_NOW); }
void *loci_library_find(void *library, const char *name) { return dlsym(library, name); }
const char *loci_library_error(void) { return dlerror(); }
