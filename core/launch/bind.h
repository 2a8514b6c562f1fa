/* bind.h - on which CPUs the ranks of one host may run, where there are fewer CPUs than ranks. */
#ifndef TESS_COMM_BIND_H
#define TESS_COMM_BIND_H

#include <sched.h>
#include <stdbool.h>
#include <tessera/plugin.h>

/* TESS_EINVAL: not auto, cpu or none. */
tess_status tess_bind_check(const char *how);

/*
 * Whether rank `rank` of `nranks` is bound, and to which of the CPUs `ours`. cpu: to one, neighbours to the
 * same. none: not. auto: as cpu, where it is as good as sure to be better: the backend gains by it, as shm
 * whose ranks yield the CPU to each other, and each CPU gets as many ranks, more than one. Then no rank waits
 * for one that the kernel keeps off a CPU shared by ranks that wait.
 */
bool tess_bind(const char *how, bool gains, const cpu_set_t *ours, int32_t rank, int32_t nranks,
               cpu_set_t *out);

/* Whether ranks of this host over the backend, named as TESSERA_BACKEND has it, gain by being bound. */
bool tess_bind_gains(const char *backend, int32_t nranks);

#endif
