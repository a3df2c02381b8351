/* SPDX-License-Identifier: MIT */
/* ranks.c -- see ranks.h.  Threads share memory, so a message is a pointer.  The second of sender
 * and receiver copies it, and both have then finished. */
#include <stdlib.h>
#include <string.h>

#include "platform/system.h"
#include "platform/thread.h"
#include "cli/cli.h"
#include "cli/ranks.h"

/* ---- Threads --------------------------------------------------------------------------------- */

/* A send or a receive in progress. */
struct letter {
    struct letter *next;
    int from, to, tag;
    bool sends, done;
    void *data;
    size_t bytes;
};
struct office {
    struct mutex lock;
    struct condition news;
    struct letter *open; /* without a counterpart yet, oldest first */
    int ranks, here;     /* here: ranks that have entered highest() */
    long round;
    int64_t *highest, *known; /* of this round so far, and of the one before */
    void (*body)(const loci_transport *, void *);
    void *arg;
};
struct member {
    struct office *office;
    int rank;
    struct thread thread;
};
enum { MOST_NUMBERS_AGREED = 256 };

/* Removes the counterpart of a message from the list, if it is there. */
static struct letter *find(struct office *o, const struct letter *l)
{
    for (struct letter **at = &o->open; *at; at = &(*at)->next) {
        struct letter *s = *at;
        if (s->from != l->from || s->to != l->to || s->tag != l->tag || s->sends == l->sends)
            continue;
        *at = s->next;
        return s;
    }
    return NULL;
}
/* Releases the lock while a message is copied. */
static void begin_letter(struct office *o, struct letter *l)
{
    mutex_lock(&o->lock);
    struct letter *s = find(o, l), **at = &o->open;
    if (s) {
        const struct letter *from = l->sends ? l : s, *to = l->sends ? s : l;
        mutex_unlock(&o->lock);
        memcpy(to->data, from->data, to->bytes < from->bytes ? to->bytes : from->bytes);
        mutex_lock(&o->lock);
        l->done = s->done = true;
        condition_broadcast(&o->news);
    } else {
        while (*at) at = &(*at)->next;
        *at = l;
    }
    mutex_unlock(&o->lock);
}
static int office_send(void *user, int to, int tag, const void *data, size_t bytes, void **request)
{
    struct member *m = user;
    struct letter *l = *request = alloc(1, sizeof *l);
    *l = (struct letter){
        .from = m->rank, .to = to, .tag = tag, .sends = true, .data = (void *)data, .bytes = bytes
    };
    begin_letter(m->office, l);
    return 0;
}
static int office_receive(void *user, int from, int tag, void *data, size_t bytes, void **request)
{
    struct member *m = user;
    struct letter *l = *request = alloc(1, sizeof *l);
    *l = (struct letter){ .from = from, .to = m->rank, .tag = tag, .data = data, .bytes = bytes };
    begin_letter(m->office, l);
    return 0;
}
static int office_end(struct member *m, void **request, bool wait)
{
    struct letter *l = *request;
    if (!l) return 0;
    mutex_lock(&m->office->lock);
    while (!l->done && wait) condition_wait(&m->office->news, &m->office->lock);
    const bool done = l->done;
    mutex_unlock(&m->office->lock);
    if (done) {
        free(l);
        *request = NULL;
    }
    return 0;
}
static int office_wait(void *user, void **request) { return office_end(user, request, true); }
static int office_test(void *user, void **request) { return office_end(user, request, false); }
static int office_highest(void *user, int64_t *list, int n)
{
    struct office *o = ((struct member *)user)->office;
    if (n > MOST_NUMBERS_AGREED) return 1;
    mutex_lock(&o->lock);
    const long round = o->round;
    for (int i = 0; i < n; i++)
        if (!o->here || list[i] > o->highest[i]) o->highest[i] = list[i];
    if (++o->here == o->ranks) {
        int64_t *done = o->highest;
        o->highest = o->known;
        o->known = done;
        o->here = 0;
        o->round++;
        condition_broadcast(&o->news);
    }
    while (o->round == round) condition_wait(&o->news, &o->lock);
    memcpy(list, o->known, sizeof *list * (size_t)n);
    mutex_unlock(&o->lock);
    return 0;
}
static void *live(void *arg)
{
    struct member *m = arg;
    const loci_transport t =
        LOCI_TRANSPORT_INIT(.rank = m->rank, .ranks = m->office->ranks, .send = office_send,
                            .receive = office_receive, .wait = office_wait, .test = office_test,
                            .highest = office_highest, .user = m);
    m->office->body(&t, m->office->arg);
    return NULL;
}
bool ranks_as_threads(int ranks, void (*body)(const loci_transport *, void *), void *arg)
{
    struct office o = { .lock = MUTEX_INIT,
                        .news = CONDITION_INIT,
                        .ranks = ranks,
                        .body = body,
                        .arg = arg,
                        .highest = alloc(MOST_NUMBERS_AGREED, sizeof(int64_t)),
                        .known = alloc(MOST_NUMBERS_AGREED, sizeof(int64_t)) };
    struct member *members = alloc((size_t)ranks, sizeof *members);
    int n = 0;
    for (; n < ranks; n++) {
        members[n] = (struct member){ .office = &o, .rank = n };
        if (!loci_thread_start(&members[n].thread, live, &members[n])) break;
    }
    /* The others would wait for those that are not there. */
    if (n < ranks) exit(fail("bench: cannot start more than %d threads", n));
    for (int i = 0; i < n; i++) loci_thread_join(&members[i].thread);
    condition_destroy(&o.news);
    mutex_destroy(&o.lock);
    free(members);
    free(o.highest);
    free(o.known);
    return true;
}

/* ---- A job ----------------------------------------------------------------------------------- */

bool ranks_in_job(void)
{
    static const char *const names[] = { "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK" };
    for (int i = 0; i < COUNT(names); i++)
        if (getenv(names[i])) return true;
    return false;
}
bool ranks_of_job(void (*body)(const loci_transport *, void *), void *arg)
{
    static const char *const names[] = { "libloci-mpi.so", "libloci-mpi.so.0" };
    loci_transport t = LOCI_TRANSPORT_INIT();
    loci_error e = { .status = LOCI_OK };
    void *library = NULL;
    for (int i = 0; i < COUNT(names) && !library; i++) library = loci_library_open(names[i]);
    if (!library)
        return refuse("bench: libloci-mpi is not found (%s); build with -DLOCI_MPI=ON and set "
                      "LD_LIBRARY_PATH to its folder",
                      loci_library_error());
    loci_status (*begin)(loci_transport *, double, loci_error *);
    void (*end)(loci_transport *);
    /* C has no conversion from an object pointer to a function pointer.  POSIX permits this one. */
    *(void **)&begin = loci_library_find(library, "loci_mpi_world");
    *(void **)&end = loci_library_find(library, "loci_mpi_finish");
    if (!begin || !end) return refuse("bench: libloci-mpi has another version than this program");
    if (begin(&t, 0, &e)) return refuse("bench: %s", e.text);
    body(&t, arg);
    end(&t);
    return true;
}
