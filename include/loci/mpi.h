/* SPDX-License-Identifier: MIT */
/* loci-mpi: the transport of loci/parallel.h over MPI.
 *
 *     int level;
 *     MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level);
 *     loci_transport transport;
 *     if (loci_mpi_create(&transport, MPI_COMM_WORLD, 600, &e)) MPI_Abort(MPI_COMM_WORLD, 1);
 *     ...                                   // .transport = &transport in loci_parallel
 *     loci_mpi_destroy(&transport);
 *     MPI_Finalize();
 *
 * Any MPI of version 3 or later will do, but the one that the library was built with.  Link with
 * -lloci-mpi -lloci. */
#ifndef LOCI_LOCI_MPI_H
#define LOCI_LOCI_MPI_H

#include <mpi.h>

#include "loci/parallel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Ranks are those of the communicator, which is one of a group, not between two.  It is duplicated,
 * so that no message meets one of the host's; errors on the duplicate come back as LOCI_TRANSPORT.
 * All its ranks call, and when one of them fails so do all.  On failure the transport is zeroed.
 *
 * MPI_THREAD_FUNNELED is enough, and then the thread that began MPI is the one that calls loci.
 *
 * `seconds` is the longest wait for one message or for one agreement; 0: as long as it takes.
 * Choose it longer than ranks may be apart in their work.  A wait that takes longer breaks the
 * transport for good.
 *
 * After LOCI_TRANSPORT a process best ends by MPI_Abort(), as the others may still wait for it.
 * What MPI_Cancel() can take back is taken back; but where another rank has begun a message and
 * neither goes on with it nor ends, MPI may touch the memory of that message later: keep what was
 * given to the call, `work` included, until the process ends. */
LOCI_API loci_status loci_mpi_create(loci_transport *, MPI_Comm, double seconds, loci_error *);

/* All ranks call it, before MPI_Finalize().  Harmless for NULL and for a zeroed transport. */
LOCI_API void loci_mpi_destroy(loci_transport *);

/* For programs that do nothing else with MPI, or that load this library while they run: begins MPI
 * where nobody has, and has all of MPI_COMM_WORLD as ranks; and the end of both. */
LOCI_API loci_status loci_mpi_world(loci_transport *, double seconds, loci_error *);
LOCI_API void        loci_mpi_finish(loci_transport *);

#ifdef __cplusplus
}
#endif
#endif
