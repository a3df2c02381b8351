/* SPDX-License-Identifier: MIT */
/* ending.c -- see platform/ending.h. */
#define _DEFAULT_SOURCE
#include "platform/ending.h"

#include <signal.h>
#include <stdbool.h>
#include <string.h>

static const int ending[] = { SIGINT, SIGTERM, SIGHUP };
enum { ENDING = sizeof ending / sizeof *ending };
static bool caught[ENDING];
static void (*volatile cleaner)(void);

_Static_assert(sizeof(sigset_t) <= sizeof(struct ending), "a mask fits");

/* The handler must wait while what it cleans changes. */
void loci_ending_hold(struct ending *e)
{
    sigset_t set, before;
    sigemptyset(&set);
    for (int i = 0; i < ENDING; i++) sigaddset(&set, ending[i]);
    pthread_sigmask(SIG_BLOCK, &set, &before);
    memcpy(e->before, &before, sizeof before);
}
void loci_ending_release(const struct ending *e)
{
    sigset_t before;
    memcpy(&before, e->before, sizeof before);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* Handlers may call unlink().  The signal is raised again for its default action. */
static void on_ending(int number)
{
    if (cleaner) cleaner();
    signal(number, SIG_DFL);
    raise(number); /* arrives when this function returns */
}

/* Ignored signals, as under nohup, stay ignored, and those that the host handles are not
 * changed. */
void loci_ending_catch(void (*clean)(void))
{
    struct sigaction act = { .sa_handler = on_ending }, was;
    cleaner = clean;
    sigemptyset(&act.sa_mask);
    for (int i = 0; i < ENDING; i++) sigaddset(&act.sa_mask, ending[i]);
    for (int i = 0; i < ENDING; i++) {
        sigaction(ending[i], NULL, &was);
        caught[i] = !(was.sa_flags & SA_SIGINFO) && was.sa_handler == SIG_DFL;
        if (caught[i]) sigaction(ending[i], &act, NULL);
    }
}
void loci_ending_forget(void)
{
    for (int i = 0; i < ENDING; i++)
        if (caught[i]) signal(ending[i], SIG_DFL);
}

void loci_ending_replace(void (*stop)(int number))
{
    struct sigaction act = { .sa_handler = stop, .sa_flags = SA_RESTART };
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
}
