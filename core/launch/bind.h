/* bind.h - CPU affinity of the ranks of one host, where ranks outnumber CPUs. */
#ifndef TESS_LAUNCH_BIND_H
#define TESS_LAUNCH_BIND_H

#include <sched.h>
#include <stdbool.h>
#include <tessera/plugin.h>

/* TESS_EINVAL: not auto, cpu or none. */
tess_status tess_bind_check(const char *how);

/*
 * Whether rank `rank` of `nranks` is bound, and to which of the CPUs `allowed`. cpu: to one,
 * neighbours to the same. none: not. auto: as cpu where the backend benefits, as shm does, whose
 * waiting ranks yield the CPU, and each CPU gets the same number of ranks, more than one. Then no
 * rank waits for one that the kernel has put behind waiting ranks on another CPU.
 */
bool tess_bind_choose(const char *how, bool benefits, const cpu_set_t *allowed, int32_t rank,
                      int32_t nranks, cpu_set_t *out);

/* Whether ranks of this host benefit from binding; `backend` as in TESSERA_BACKEND. */
bool tess_bind_benefits(const char *backend, int32_t nranks);

#endif
