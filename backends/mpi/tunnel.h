/* tunnel.h - connections of all ranks to rank 0, carried by MPI. */
#ifndef MPI_TUNNEL_H
#define MPI_TUNNEL_H

#include "member.h"

/* tess_backend.bootstrap */
tess_status tunnel_open_all(int32_t rank, int32_t nranks, int64_t deadline, int32_t *own,
                            int32_t *end);
/* Flushes written bytes in bounded time, then ends the thread, if it is running. */
void tunnel_finish_all(void);

#endif
