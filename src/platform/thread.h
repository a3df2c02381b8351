/* SPDX-License-Identifier: MIT */
/* thread.h -- threads, locks and conditions of the system.
 *
 * A `struct mutex` is initialised by MUTEX_INIT, a `struct condition` by CONDITION_INIT and a
 * `struct once` by ONCE_INIT.  These are values: no call is needed, which could fail. */
#ifndef LOCI_PLATFORM_THREAD_H
#define LOCI_PLATFORM_THREAD_H

#include <stdbool.h>

#if defined _WIN32
#include "platform/win32/thread.h"
#else
#include "platform/posix/thread.h"
#endif

/* Both folders have these as functions or inline:
 *
 *     mutex_lock(m)  mutex_unlock(m)  mutex_destroy(m)
 *     condition_wait(c, m)       releases m, waits, and acquires it again; may return early
 *     condition_signal(c)  condition_broadcast(c)  condition_destroy(c)
 *     once_run(o, job)           runs job() in the first call, and returns when it has ended */

/* Starts a thread that leaves every signal to other threads.  False: the system has none left. */
bool loci_thread_start(struct thread *, void *(*body)(void *arg), void *arg);
void loci_thread_join(struct thread *);

/* Processors that are online, at least 1. */
int loci_processors(void);
/* The number of this process.  A forked child has another one. */
long loci_process(void);

#endif
