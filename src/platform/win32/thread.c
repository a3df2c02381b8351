/* SPDX-License-Identifier: MIT */
/* thread.c -- see platform/thread.h. */
#include "platform/win32/windows.h"
#include "platform/thread.h"

#include <process.h>
#include <stdint.h>

_Static_assert(sizeof(SRWLOCK) == sizeof(struct mutex), "a lock is one pointer");
_Static_assert(sizeof(CONDITION_VARIABLE) == sizeof(struct condition), "so is a condition");
_Static_assert(sizeof(INIT_ONCE) == sizeof(struct once), "and a job that runs once");

void loci_win32_lock(struct mutex *m) { AcquireSRWLockExclusive((SRWLOCK *)&m->own); }
void loci_win32_unlock(struct mutex *m) { ReleaseSRWLockExclusive((SRWLOCK *)&m->own); }
void loci_win32_wait(struct condition *c, struct mutex *m)
{
    SleepConditionVariableSRW((CONDITION_VARIABLE *)&c->own, (SRWLOCK *)&m->own, INFINITE, 0);
}
void loci_win32_signal(struct condition *c)
{
    WakeConditionVariable((CONDITION_VARIABLE *)&c->own);
}
void loci_win32_broadcast(struct condition *c)
{
    WakeAllConditionVariable((CONDITION_VARIABLE *)&c->own);
}

struct job {
    void (*run)(void);
};
static BOOL CALLBACK run_job(PINIT_ONCE once, PVOID user, PVOID *context)
{
    (void)once, (void)context;
    ((const struct job *)user)->run();
    return TRUE;
}
void loci_win32_once(struct once *o, void (*job)(void))
{
    InitOnceExecuteOnce((INIT_ONCE *)&o->own, run_job, &(struct job){ job }, NULL);
}

/* Windows starts threads with an x87 unit that rounds to 53 bits.  MinGW's main() sets 64, and
 * exp() and log() in double, which float64 calls use, have other last bits then.  So a thread
 * rounds like the one that starts it, as on other systems. */
#if defined __x86_64__ || defined __i386__
static void get_x87(unsigned short *word) { __asm__ volatile("fnstcw %0" : "=m"(*word)); }
static void set_x87(const unsigned short *word) { __asm__ volatile("fldcw %0" : : "m"(*word)); }
#else
static void get_x87(unsigned short *word) { *word = 0; }
static void set_x87(const unsigned short *word) { (void)word; }
#endif

/* _beginthreadex() also sets up the C library's data of the thread. */
static unsigned __stdcall run_thread(void *user)
{
    struct thread *t = user;
    set_x87(&t->x87);
    t->body(t->arg);
    return 0;
}
bool loci_thread_start(struct thread *t, void *(*body)(void *arg), void *arg)
{
    t->body = body;
    t->arg = arg;
    get_x87(&t->x87);
    t->own = (void *)_beginthreadex(NULL, 0, run_thread, t, 0, NULL);
    return t->own != NULL;
}
void loci_thread_join(struct thread *t)
{
    WaitForSingleObject(t->own, INFINITE);
    CloseHandle(t->own);
}

int loci_processors(void)
{
    const DWORD n = GetActiveProcessorCount(ALL_PROCESSOR_GROUPS);
    return n > 0 && n < 1 << 20 ? (int)n : 1;
}
long loci_process(void) { return (long)GetCurrentProcessId(); }
