/* SPDX-License-Identifier: MIT */
/* mpi.c -- the transport of loci/parallel.h over MPI-3.  No other source includes mpi.h.
 *
 * A request is a chain of pieces, because MPI counts bytes in int.  All pieces are started at once
 * with the tag of the message.  MPI matches messages with the same tag in the order in which they
 * were started.  So both sides cut a message of the same size alike, and pieces need no tags of
 * their own.
 *
 * MPI libraries move large messages only while they are called.  So waiting means testing again and
 * again.  Between two tests the thread yields the processor.  Otherwise a rank on the same core
 * would wait for the end of a time slice.
 *
 * After any failure the transport is broken, and no new request is started.  Requests that are open
 * then end in wait():
 *
 *     receives   are cancelled, which MPI does without the other side, unless the message has begun
 *                to arrive
 *     sends      cannot be cancelled in most MPI libraries.  Small ones have completed already, and
 *                the others complete when the other side receives or has ended
 *
 * Requests that have not ended within GRACE seconds after the failure, all together, are abandoned.
 * MPI may then still use the memory of that message, as loci/mpi.h documents.  The alternative
 * would be to wait for a rank that may have stopped for good.  MPI_Request_free() would not release
 * the memory either.  MPICH 4.0 reuses a request that is freed early, of a message to the
 * rank itself, for the next request while it is still in use.  An agreement can neither be
 * cancelled nor freed.  So its numbers belong to the transport and are left to MPI.  So is the
 * communicator of a broken transport: if it were freed, another one might get its number, and the
 * messages that were never received. */
#define _POSIX_C_SOURCE 200809L
#include "loci/mpi.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef LOCI_MPI_PIECE /* tests have smaller ones */
#define LOCI_MPI_PIECE ((size_t)1 << 30)
#endif

enum { GRACE = 1 };

struct mpi_piece {
    struct mpi_piece *next;
    MPI_Request request;
    int bytes, comes; /* comes: it is a receive */
};

struct mpi {
    MPI_Comm comm;
    int ranks, highest_tag;
    double seconds;
    int broken;
    double grace; /* if broken: open requests may end until this time */
    struct mpi_piece *idle;
    MPI_Request agreement;
    int64_t *numbers; /* of the agreement */
    int measured;
    int ends; /* loci initialised MPI, and finalises it */
};

static loci_status fail(loci_error *e, loci_status status, const char *format, ...)
#if defined __GNUC__
    __attribute__((format(printf, 3, 4)))
#endif
    ;
static loci_status fail(loci_error *e, loci_status status, const char *format, ...)
{
    if (e) {
        va_list args;
        va_start(args, format);
        vsnprintf(e->text, sizeof e->text, format, args);
        va_end(args);
        e->status = status;
    }
    return status;
}

static int breaks(struct mpi *m)
{
    if (!m->broken) m->grace = MPI_Wtime() + GRACE;
    return m->broken = 1;
}

/* For loops that wait: 0 after too much time has passed since `from`. */
static int may_wait(const struct mpi *m, double from)
{
    sched_yield();
    return m->seconds == 0 || MPI_Wtime() - from <= m->seconds;
}

/* ---- Messages -------------------------------------------------------------------------------- */

static struct mpi_piece *next_piece(struct mpi *m)
{
    struct mpi_piece *p = m->idle;
    if (p) m->idle = p->next;
    else p = malloc(sizeof *p);
    return p;
}

/* Returns the next piece. */
static struct mpi_piece *put_back(struct mpi *m, struct mpi_piece *p)
{
    struct mpi_piece *next = p->next;
    p->next = m->idle;
    m->idle = p;
    return next;
}

/* In a broken transport: ends a piece, whatever its state, and returns the next one. */
static struct mpi_piece *end(struct mpi *m, struct mpi_piece *p)
{
    int done = p->request == MPI_REQUEST_NULL;
    if (!done && p->comes) MPI_Cancel(&p->request);
    while (!done && !MPI_Test(&p->request, &done, MPI_STATUS_IGNORE) && !done
           && MPI_Wtime() < m->grace)
        sched_yield();
    return put_back(m, p);
}

/* Ends the completed pieces, from the first one on, until one is not complete.  1: an error. */
static int go_on(struct mpi *m, struct mpi_piece **chain)
{
    while (*chain) {
        struct mpi_piece *p = *chain;
        MPI_Status status;
        int done = 0, bytes = p->bytes;
        if (MPI_Test(&p->request, &done, &status)) return breaks(m);
        if (!done) break;
        /* MPI expects longer messages, but accepts a shorter one */
        if (p->comes && (MPI_Get_count(&status, MPI_BYTE, &bytes) || bytes != p->bytes))
            return breaks(m);
        *chain = put_back(m, p);
    }
    return 0;
}

/* Exactly one of `from` and `to` is used. */
static int begin(struct mpi *m, int rank, int tag, const char *from, char *to, int comes,
                 size_t bytes, void **request)
{
    *request = NULL;
    if (m->broken || rank < 0 || rank >= m->ranks || tag < 0 || tag > m->highest_tag)
        return breaks(m);

    /* Allocates first, because a message that was started in part could not be withdrawn. */
    struct mpi_piece *chain = NULL, **last = &chain;
    size_t rest = bytes;
    do { /* an empty message is a piece, too */
        struct mpi_piece *p = next_piece(m);
        if (!p) {
            while (chain) chain = put_back(m, chain);
            return breaks(m);
        }
        p->next = NULL;
        p->request = MPI_REQUEST_NULL;
        p->bytes = (int)(rest < LOCI_MPI_PIECE ? rest : LOCI_MPI_PIECE);
        p->comes = comes;
        rest -= (size_t)p->bytes;
        *last = p;
        last = &p->next;
    } while (rest > 0);

    size_t at = 0;
    for (struct mpi_piece *p = chain; p && !m->broken; at += (size_t)p->bytes, p = p->next)
        if (comes ? MPI_Irecv(to ? to + at : NULL, p->bytes, MPI_BYTE, rank, tag, m->comm,
                              &p->request)
                  : MPI_Isend(from ? from + at : NULL, p->bytes, MPI_BYTE, rank, tag, m->comm,
                              &p->request))
            breaks(m);
    while (m->broken && chain) chain = end(m, chain);
    *request = chain;
    return m->broken;
}

static int send_to(void *user, int to, int tag, const void *data, size_t bytes, void **request)
{
    return begin(user, to, tag, data, NULL, 0, bytes, request);
}

static int receive_from(void *user, int from, int tag, void *data, size_t bytes, void **request)
{
    return begin(user, from, tag, NULL, data, 1, bytes, request);
}

static int wait_for(void *user, void **request)
{
    struct mpi *m = user;
    struct mpi_piece *chain = *request;
    const double from = MPI_Wtime();
    while (!m->broken && !go_on(m, &chain) && chain)
        if (!may_wait(m, from)) breaks(m);
    while (chain) chain = end(m, chain);
    *request = NULL;
    return m->broken;
}

static int test_one(void *user, void **request)
{
    struct mpi *m = user;
    struct mpi_piece *chain = *request;
    if (!m->broken) go_on(m, &chain);
    *request = chain;
    return m->broken;
}

/* ---- Agreements ------------------------------------------------------------------------------ */

static int highest(void *user, int64_t *list, int n)
{
    struct mpi *m = user;
    if (m->broken || n < 0) return breaks(m);
    if (n > m->measured) {
        int64_t *more = malloc((size_t)n * sizeof *more);
        if (!more) return breaks(m);
        free(m->numbers);
        m->numbers = more;
        m->measured = n;
    }
    if (n == 0) return 0;
    memcpy(m->numbers, list, (size_t)n * sizeof *list);
    if (MPI_Iallreduce(MPI_IN_PLACE, m->numbers, n, MPI_INT64_T, MPI_MAX, m->comm, &m->agreement))
        return breaks(m);
    const double from = MPI_Wtime();
    for (int done = 0;;) {
        if (MPI_Test(&m->agreement, &done, MPI_STATUS_IGNORE)) return breaks(m);
        if (done) break;
        if (!may_wait(m, from)) return breaks(m);
    }
    memcpy(list, m->numbers, (size_t)n * sizeof *list);
    return 0;
}

/* ---- The transport --------------------------------------------------------------------------- */

static void drop(struct mpi *m)
{
    int over = 0, done = 1;
    const int runs = !MPI_Finalized(&over) && !over;
    if (runs && !m->broken) MPI_Comm_free(&m->comm);
    if (m->agreement != MPI_REQUEST_NULL
        && (!runs || MPI_Test(&m->agreement, &done, MPI_STATUS_IGNORE)))
        done = 0;
    if (done) free(m->numbers);
    while (m->idle) {
        struct mpi_piece *p = m->idle;
        m->idle = p->next;
        free(p);
    }
    free(m);
}

/* Checks the arguments of this process. */
static loci_status look(const struct mpi *m, const loci_transport *t, double seconds, loci_error *e)
{
    int level = MPI_THREAD_SINGLE;
    if (!m) return fail(e, LOCI_NO_MEMORY, "mpi: out of memory");
    if (!t) return fail(e, LOCI_BAD_ARG, "mpi: the transport must not be NULL");
    if (!(seconds >= 0))
        return fail(e, LOCI_BAD_ARG, "mpi: seconds %g must be above 0, or 0 for no limit", seconds);
    if (MPI_Query_thread(&level) || level < MPI_THREAD_FUNNELED)
        return fail(e, LOCI_UNSUPPORTED,
                    "mpi: MPI was initialised without thread support; call MPI_Init_thread() with "
                    "MPI_THREAD_FUNNELED");
    return LOCI_OK;
}

loci_status loci_mpi_create(loci_transport *t, MPI_Comm comm, double seconds, loci_error *e)
{
    if (t) memset(t, 0, sizeof *t);
    int begun = 0, over = 0, between = 0;
    if (MPI_Initialized(&begun) || !begun || MPI_Finalized(&over) || over)
        return fail(e, LOCI_BAD_ARG,
                    "mpi: MPI %s; call MPI_Init_thread() before and MPI_Finalize() after",
                    over ? "has ended" : "is not initialised");
    if (comm == MPI_COMM_NULL)
        return fail(e, LOCI_BAD_ARG,
                    "mpi: the communicator is MPI_COMM_NULL, but must contain this process");
    if (MPI_Comm_test_inter(comm, &between) || between)
        return fail(e, LOCI_BAD_ARG,
                    "mpi: the communicator must be an intracommunicator; MPI_Intercomm_merge() "
                    "makes one");

    /* The other ranks call this, too.  So errors from here on are reported to all of them. */
    MPI_Comm own;
    const int code = MPI_Comm_dup(comm, &own);
    if (code) {
        char text[MPI_MAX_ERROR_STRING] = "";
        int length;
        MPI_Error_string(code, text, &length);
        return fail(e, LOCI_TRANSPORT, "mpi: the communicator cannot be duplicated: %s", text);
    }
    MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN);
    struct mpi *m = calloc(1, sizeof *m);
    loci_status status = look(m, t, seconds, e);
    int worst = (int)status;
    if (MPI_Allreduce(MPI_IN_PLACE, &worst, 1, MPI_INT, MPI_MAX, own)) worst = LOCI_TRANSPORT;
    if (worst && !status)
        status = fail(e, (loci_status)worst,
                      "mpi: another rank of the communicator failed; see the error on that rank");
    if (status) {
        MPI_Comm_free(&own);
        free(m);
        return status;
    }

    int *tag, found = 0;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &tag, &found);
    m->highest_tag = found ? *tag : 32767; /* the value that MPI guarantees */
    m->comm = own;
    m->agreement = MPI_REQUEST_NULL;
    m->seconds = seconds;
    *t = (loci_transport){ .size = sizeof *t,
                           .send = send_to,
                           .receive = receive_from,
                           .wait = wait_for,
                           .test = test_one,
                           .highest = highest,
                           .user = m };
    MPI_Comm_rank(own, &t->rank);
    MPI_Comm_size(own, &t->ranks);
    m->ranks = t->ranks;
    return LOCI_OK;
}

void loci_mpi_destroy(loci_transport *t)
{
    if (!t) return;
    if (t->user) drop(t->user);
    memset(t, 0, sizeof *t);
}

loci_status loci_mpi_world(loci_transport *t, double seconds, loci_error *e)
{
    int begun = 0, level;
    if (t) memset(t, 0, sizeof *t);
    if (MPI_Initialized(&begun)) begun = 0;
    if (!begun && MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level))
        return fail(e, LOCI_TRANSPORT, "mpi: MPI_Init_thread() failed");
    const loci_status status = loci_mpi_create(t, MPI_COMM_WORLD, seconds, e);
    if (!status) ((struct mpi *)t->user)->ends = !begun;
    else if (!begun) MPI_Finalize();
    return status;
}

void loci_mpi_finish(loci_transport *t)
{
    const int ends = t && t->user && ((struct mpi *)t->user)->ends;
    int over = 0;
    loci_mpi_destroy(t);
    if (ends && !MPI_Finalized(&over) && !over) MPI_Finalize();
}
