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
 * same. none: not. auto: as cpu, where it is as good as sure to be better: over shm, whose ranks hand the CPU
 * to each other, and where each CPU gets as many ranks, more than one. Then none of them waits for a rank that
 * the kernel keeps off a CPU which others, who wait, share.
 */
bool tess_bind(const char *how, const char *backend, const cpu_set_t *ours, int32_t rank,
               int32_t nranks, cpu_set_t *out);

#endif
