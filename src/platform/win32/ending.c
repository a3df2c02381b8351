/* SPDX-License-Identifier: MIT */
/* ending.c -- see platform/ending.h.  The system tells a console program to end in a thread of its
 * own, so holding is a lock. */
#include "platform/win32/windows.h"
#include "platform/ending.h"
#include "platform/thread.h"

#include <signal.h>

static struct mutex changing = MUTEX_INIT;
static void (*cleaner)(void), (*replaced)(int);
static bool listens;

void loci_ending_hold(struct ending *e)
{
    (void)e;
    mutex_lock(&changing);
}
void loci_ending_release(const struct ending *e)
{
    (void)e;
    mutex_unlock(&changing);
}

/* TRUE: treated.  FALSE: the next handler, which ends the program. */
static BOOL WINAPI on_event(DWORD event)
{
    if (replaced) {
        replaced(event == CTRL_C_EVENT || event == CTRL_BREAK_EVENT ? SIGINT : SIGTERM);
        return TRUE;
    }
    mutex_lock(&changing);
    if (cleaner) cleaner();
    cleaner = NULL;
    mutex_unlock(&changing);
    return FALSE;
}
static void listen(void)
{
    if (!listens) SetConsoleCtrlHandler(on_event, TRUE);
    listens = true;
}
void loci_ending_catch(void (*clean)(void))
{
    cleaner = clean;
    listen();
}
void loci_ending_forget(void) { cleaner = NULL; }

void loci_ending_replace(void (*stop)(int number))
{
    replaced = stop;
    listen();
}
