/* SPDX-License-Identifier: MIT */
/* thread.c -- see platform/thread.h. */
#define _DEFAULT_SOURCE /* on macOS, POSIX alone hides _SC_NPROCESSORS_ONLN */
#include "platform/thread.h"

#include <signal.h>
#include <unistd.h>

/* The thread inherits a mask with all signals. */
bool loci_thread_start(struct thread *t, void *(*body)(void *arg), void *arg)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool started = pthread_create(&t->own, NULL, body, arg) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}
void loci_thread_join(struct thread *t) { pthread_join(t->own, NULL); }

int loci_processors(void)
{
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}
long loci_process(void) { return (long)getpid(); }
