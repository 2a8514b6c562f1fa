/* bind.h - CPU affinity of the ranks of one host, if ranks outnumber CPUs. */
#ifndef TESS_LAUNCH_BIND_H
#define TESS_LAUNCH_BIND_H

#include <sched.h>
#include <stdbool.h>
#include <tessera/plugin.h>

/* Fails with TESS_EINVAL unless `how` is auto, cpu or none. */
tess_status tess_bind_check(const char *how);

/*
 * Returns whether rank `rank` of `nranks` is bound, and to which of the CPUs `allowed`.
 * cpu: to one CPU, neighbours to the same one. none: not bound.
 * auto: as cpu if the backend benefits and each CPU gets the same number of ranks, more than one.
 * shm benefits: its waiting ranks yield the CPU, and no rank is queued behind waiting ranks of
 * another CPU.
 */
bool tess_bind_choose(const char *how, bool benefits, const cpu_set_t *allowed, int32_t rank,
                      int32_t nranks, cpu_set_t *out);

/* Returns whether ranks of this host benefit from binding; `backend` as in TESSERA_BACKEND. */
bool tess_bind_benefits(const char *backend, int32_t nranks);

#endif
