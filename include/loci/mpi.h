/* SPDX-License-Identifier: MIT */
/* loci/mpi.h: the transport of loci/parallel.h over MPI.
 *
 *     int level;
 *     MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level);
 *     loci_transport transport;
 *     if (loci_mpi_create(&transport, MPI_COMM_WORLD, 600, &e)) MPI_Abort(MPI_COMM_WORLD, 1);
 *     ...                                   // .transport = &transport in loci_parallel
 *     loci_mpi_destroy(&transport);
 *     MPI_Finalize();
 *
 * Use the MPI that the library was built with, version 3 or later.  Link with -lloci-mpi -lloci. */
#ifndef LOCI_LOCI_MPI_H
#define LOCI_LOCI_MPI_H

#include <mpi.h>

#include "loci/parallel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Ranks are those of the communicator, which must be an intracommunicator.  All its ranks call this
 * function; if one fails, all fail and zero the transport.  The communicator is duplicated, so
 * messages of loci cannot meet yours.  Errors on the duplicate are returned as LOCI_TRANSPORT.
 *
 * MPI_THREAD_FUNNELED is enough if the thread that initialised MPI is the one that calls loci.
 *
 * `seconds` is the longest wait for one message or one agreement; 0 = no limit.  Choose it longer
 * than the time by which ranks may be apart in their work.  A longer wait breaks the transport for
 * good.
 *
 * After LOCI_TRANSPORT, end the process by MPI_Abort(), because other ranks may still wait for it.
 * Pending messages are cancelled by MPI_Cancel() if possible.  If another rank has begun a message
 * and neither continues nor ends, MPI may access the message's memory later: do not free the
 * buffers of the call, `work` included, before the process ends. */
LOCI_API loci_status loci_mpi_create(loci_transport *, MPI_Comm, double seconds, loci_error *);

/* All ranks call it before MPI_Finalize().  NULL or a zeroed transport: it does nothing. */
LOCI_API void loci_mpi_destroy(loci_transport *);

/* For programs that use MPI for nothing else, or load this library at run time.  loci_mpi_world()
 * initialises MPI unless it is initialised, and uses all ranks of MPI_COMM_WORLD.
 * loci_mpi_finish() ends both. */
LOCI_API loci_status loci_mpi_world(loci_transport *, double seconds, loci_error *);
LOCI_API void loci_mpi_finish(loci_transport *);

#ifdef __cplusplus
}
#endif
#endif
